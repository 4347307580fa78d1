//! Application services: bridges and bots that act for many users and receive the events that
//! concern them (application service API).
//!
//! ```text
//! registration files ─ registration → Services ─ who may be whom, reserved names → api
//! log ─ interest → what concerns a service ─ transaction → JSON ─ deliver → service
//! questions (a user, an alias, a ping) ─ query → the service
//! ```

mod deliver;
mod interest;
mod query;
mod registration;
mod transaction;

use std::sync::Arc;

use regex::Regex;
use ruma::{OwnedUserId, RoomAliasId, RoomId, ServerName, UserId};
use subtle::{Choice, ConditionallySelectable as _, ConstantTimeEq as _};
use url::Url;

pub use deliver::Transactions;
pub use query::{QueryClient, QueryResult, Request};
use registration::RegistrationError;

use logcabin_config::FilePath;
use logcabin_record::command::{Secret, TokenHash};

/// One application service, as it is registered.
#[derive(Clone, Debug)]
pub struct Service {
    pub id: String,
    /// Its address; `None` if it only calls this server.
    pub url: Option<Url>,
    /// The token with which it authenticates here.
    as_token: TokenHash,
    /// The token with which this server authenticates there.
    hs_token: Secret,
    /// The user that it acts as by default.
    pub sender: OwnedUserId,
    users: Vec<Namespace>,
    aliases: Vec<Namespace>,
    rooms: Vec<Namespace>,
    rate_limited: bool,
    /// The networks that it bridges.
    pub protocols: Vec<String>,
    /// Whether it receives receipts, typing and presence (`receive_ephemeral`), and messages to its
    /// users' devices.
    ephemeral: bool,
    /// Whether ephemeral events are also sent under the name in MSC2409, because only the old key
    /// is in its registration.
    old_ephemeral_name: bool,
    /// Whether its users use encryption and receive the necessary data in transactions (MSC3202).
    encryption: bool,
}

impl PartialEq for Service {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl Eq for Service {}

/// Names that match a regular expression; if `exclusive`, nobody else may create them.
#[derive(Clone, Debug)]
struct Namespace {
    regex: Regex,
    exclusive: bool,
}

fn any(namespaces: &[Namespace], name: &str) -> bool {
    namespaces.iter().any(|namespace| namespace.regex.is_match(name))
}

fn any_exclusive(namespaces: &[Namespace], name: &str) -> bool {
    namespaces.iter().any(|namespace| namespace.exclusive && namespace.regex.is_match(name))
}

impl Service {
    /// Whether it may act as this user: its sender, or a local user in its namespaces.
    pub fn owns_user(&self, user_id: &UserId) -> bool {
        self.sender == user_id
            || (user_id.server_name() == self.sender.server_name()
                && any(&self.users, user_id.as_str()))
    }

    /// Whether this alias is in its namespaces.
    pub fn owns_alias(&self, alias: &RoomAliasId) -> bool {
        any(&self.aliases, alias.as_str())
    }

    /// Whether this room is in its namespaces.
    pub(crate) fn owns_room(&self, room_id: &RoomId) -> bool {
        any(&self.rooms, room_id.as_str())
    }

    /// Whether this user id is reserved for this service.
    fn reserves_user(&self, user_id: &UserId) -> bool {
        self.sender == user_id
            || (user_id.server_name() == self.sender.server_name()
                && any_exclusive(&self.users, user_id.as_str()))
    }

    /// Whether its requests as `user_id` are exempt from rate limits.
    pub fn is_exempt_from_rate_limits(&self, user_id: &UserId) -> bool {
        !self.rate_limited || self.sender == user_id
    }
}

/// All application services.
#[derive(Clone, Debug, Default)]
pub struct Services(Vec<Arc<Service>>);

impl Services {
    /// Reads their registration files.
    ///
    /// # Errors
    /// When one cannot be read, or two could be confused.
    pub fn load(files: &[FilePath], server: &ServerName) -> Result<Self, RegistrationError> {
        let mut services: Vec<Arc<Service>> = Vec::with_capacity(files.len());
        for FilePath(file) in files {
            let service = registration::read(file, server)?;
            for other in &services {
                let same = |what: &str| {
                    let reason = format!("another application service has the same {what}");
                    RegistrationError::new(file, None, reason)
                };
                if other.id == service.id {
                    return Err(same("`id`"));
                }
                if other.as_token == service.as_token {
                    return Err(same("`as_token`"));
                }
                if other.sender == service.sender {
                    return Err(same("`sender_localpart`"));
                }
            }
            services.push(Arc::new(service));
        }
        Ok(Self(services))
    }

    pub fn iter(&self) -> impl Iterator<Item = &Arc<Service>> {
        self.0.iter()
    }

    /// The service with this token. Takes the same time for every token, so that timing tells
    /// nothing about it.
    pub fn by_token(&self, token: &TokenHash) -> Option<Arc<Service>> {
        let mut found = u64::MAX;
        for (index, service) in (0_u64..).zip(&self.0) {
            let same: Choice = service.as_token.0.ct_eq(&token.0);
            found.conditional_assign(&index, same);
        }
        self.0.get(usize::try_from(found).ok()?).cloned()
    }

    /// Whether quotas do not apply to this user. This follows the rule for rate limits: users of a
    /// service are exempt unless its registration says otherwise. Users in a namespace that is not
    /// exclusive are ordinary users for whom the service may act, so quotas do apply to them.
    pub fn is_exempt_from_quotas(&self, user_id: &UserId) -> bool {
        self.0.iter().any(|service| {
            service.reserves_user(user_id) && service.is_exempt_from_rate_limits(user_id)
        })
    }

    /// Whether this user is reserved for somebody other than `caller`.
    pub fn user_is_reserved(&self, user_id: &UserId, caller: Option<&Service>) -> bool {
        self.others(caller).any(|service| {
            service.sender == user_id || any_exclusive(&service.users, user_id.as_str())
        })
    }

    /// Whether this alias is reserved for somebody other than `caller`.
    pub fn alias_is_reserved(&self, alias: &RoomAliasId, caller: Option<&Service>) -> bool {
        self.others(caller).any(|service| any_exclusive(&service.aliases, alias.as_str()))
    }

    fn others(&self, caller: Option<&Service>) -> impl Iterator<Item = &Arc<Service>> {
        self.0.iter().filter(move |service| caller != Some(&***service))
    }
}
