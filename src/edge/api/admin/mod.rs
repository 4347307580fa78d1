//! Administration over HTTP, compatible with existing tools (`/_synapse/admin/…`), one file for
//! each section. A request becomes an [`Act`] like those of the command line, and is carried out in
//! the same place (`ops::admin`). The code here translates between both.
//!
//! Every endpoint that changes something takes `reason`, in the query or in the body, which is
//! recorded, and `?dry_run=true`, which reports the effect without changing anything.

pub(super) mod changes;
mod media;
mod notices;
mod reports;
mod rooms;
mod tokens;
mod users;

use std::sync::Arc;

use http::StatusCode;
use ruma::api::auth_scheme::NoAccessToken;
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

use super::{answer::json as to_json, bodies::ADMIN_USER, server::Server};
use crate::{
    edge::http::{
        ApiError, Class, Cx, ErrorCode, Json, Policy, Received, Table, endpoint, limited,
        query_parameter, read_body,
    },
    ops::{
        admin::{
            act::{Act, Order, Outcome},
            office::ActError,
        },
        proof::ProofError,
    },
};

/// The default number of items on a page.
const PAGE: usize = 100;

/// The most items on a page.
const LARGEST_PAGE: usize = 1000;

/// Only for administrators. Nobody else learns anything.
const ADMINISTRATORS: Policy = limited(Class::Admin).administrators();

/// Every endpoint of administration, by section.
pub(super) fn endpoints(table: Table<Server>) -> Table<Server> {
    table
        .on(server_version, limited(Class::Admin))
        .on(changes::changes, ADMINISTRATORS.scope_of_changes())
        // Users
        .on(users::list, ADMINISTRATORS)
        .on(users::list_v3, ADMINISTRATORS)
        .on(users::get, ADMINISTRATORS)
        .on(users::put, ADMINISTRATORS.objects(ADMIN_USER))
        .on(users::is_admin, ADMINISTRATORS)
        .on(users::set_admin, ADMINISTRATORS)
        .on(users::deactivate, ADMINISTRATORS.body_optional())
        .on(users::password, ADMINISTRATORS)
        .on(users::suspend, ADMINISTRATORS)
        .on(users::whois, ADMINISTRATORS)
        .on(users::log_in, ADMINISTRATORS.body_optional())
        .on(users::joined_rooms, ADMINISTRATORS)
        .on(users::parts, ADMINISTRATORS)
        .on(users::devices, ADMINISTRATORS)
        .on(users::device, ADMINISTRATORS)
        .on(users::rename_device, ADMINISTRATORS)
        .on(users::delete_device, ADMINISTRATORS)
        .on(users::delete_devices, ADMINISTRATORS)
        .on(users::is_free, ADMINISTRATORS)
        .on(users::by_link, ADMINISTRATORS)
        .on(users::by_threepid, ADMINISTRATORS)
        // Rooms
        .on(rooms::list, ADMINISTRATORS)
        .on(rooms::get, ADMINISTRATORS)
        .on(rooms::members, ADMINISTRATORS)
        .on(rooms::state, ADMINISTRATORS)
        .on(rooms::messages, ADMINISTRATORS)
        .on(rooms::is_blocked, ADMINISTRATORS)
        .on(rooms::block, ADMINISTRATORS)
        .on(rooms::delete, ADMINISTRATORS.body_required())
        .on(rooms::begin_delete, ADMINISTRATORS.body_required())
        .on(rooms::status_of_room, ADMINISTRATORS)
        .on(rooms::status, ADMINISTRATORS)
        .on(rooms::make_admin, ADMINISTRATORS.body_optional())
        .on(rooms::join, ADMINISTRATORS)
        // Registration tokens
        .on(tokens::list, ADMINISTRATORS)
        .on(tokens::create, ADMINISTRATORS)
        .on(tokens::get, ADMINISTRATORS)
        .on(tokens::update, ADMINISTRATORS)
        .on(tokens::delete, ADMINISTRATORS)
        // Server notices
        .on(notices::send, ADMINISTRATORS)
        .on(notices::send_once, ADMINISTRATORS)
        // Media
        .on(media::get, ADMINISTRATORS)
        .on(media::delete, ADMINISTRATORS)
        .on(media::delete_old, ADMINISTRATORS.body_optional())
        .on(media::purge_cache, ADMINISTRATORS.body_optional())
        .on(media::delete_of_user, ADMINISTRATORS)
        .on(media::of_room, ADMINISTRATORS)
        .on(media::of_user, ADMINISTRATORS)
        .on(media::quarantine, ADMINISTRATORS.body_optional())
        .on(media::unquarantine, ADMINISTRATORS.body_optional())
        .on(media::quarantine_room, ADMINISTRATORS.body_optional())
        .on(media::quarantine_user, ADMINISTRATORS.body_optional())
        .on(media::protect, ADMINISTRATORS.body_optional())
        .on(media::unprotect, ADMINISTRATORS.body_optional())
        .on(media::statistics, ADMINISTRATORS)
        // Reports
        .on(reports::list, ADMINISTRATORS)
        .on(reports::get, ADMINISTRATORS)
        .on(reports::delete, ADMINISTRATORS)
}

endpoint! {
    /// The version of the server.
    struct ServerVersion = GET "/_synapse/admin/v1/server_version";
    for NoAccessToken;
    {}
}

async fn server_version(_: Cx<Server, ()>, _: ServerVersion) -> Result<Json, ApiError> {
    let version = concat!("logcabin ", env!("CARGO_PKG_VERSION"));
    to_json(&json!({ "server_version": version }))
}

/// The common parameters of an act.
pub(super) struct Terms {
    /// The recorded reason.
    reason: Option<String>,
    /// Whether to report the effect without changing anything.
    dry_run: bool,
}

/// A page of a list.
pub(super) struct PageOf {
    from: usize,
    limit: usize,
}

/// The parts of requests that are common in administration, for [`endpoint!`].
trait AdminParts {
    /// From `reason` in the query or the body, and `dry_run` in the query.
    fn terms(&mut self, name: &str) -> Result<Terms, ApiError>;
    /// From `from` and `limit` in the query.
    fn page(&mut self, name: &str) -> Result<PageOf, ApiError>;
    /// A boolean query parameter.
    fn flag(&mut self, name: &str) -> Result<Option<bool>, ApiError>;
    /// A number of the query.
    fn number(&mut self, name: &str) -> Result<Option<u64>, ApiError>;
    /// Whether a list is to be in reverse order; `None` if the query does not say.
    fn backwards(&mut self, name: &str) -> Result<Option<bool>, ApiError>;
}

impl AdminParts for Received<'_> {
    fn terms(&mut self, _: &str) -> Result<Terms, ApiError> {
        #[derive(Deserialize)]
        struct InBody {
            reason: Option<String>,
        }
        let reason = match query_parameter(self.uri, "reason")? {
            Some(reason) => Some(reason),
            None => read_body::<InBody>(self.body)?.reason,
        };
        Ok(Terms { reason, dry_run: self.flag("dry_run")?.unwrap_or(false) })
    }

    fn page(&mut self, _: &str) -> Result<PageOf, ApiError> {
        let index = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        let limit = self.number("limit")?.map_or(PAGE, index);
        if limit == 0 {
            return Err(ApiError::invalid_param("`limit` is greater than 0."));
        }
        let from = self.number("from")?.map_or(0, index);
        Ok(PageOf { from, limit: limit.min(LARGEST_PAGE) })
    }

    fn flag(&mut self, name: &str) -> Result<Option<bool>, ApiError> {
        // Some tools in Python write booleans as Python does.
        match query_parameter(self.uri, name)?.map(|text| text.to_ascii_lowercase()).as_deref() {
            None => Ok(None),
            Some("true") => Ok(Some(true)),
            Some("false") => Ok(Some(false)),
            Some(_) => Err(ApiError::invalid_param(format!("`{name}` is true or false."))),
        }
    }

    fn number(&mut self, name: &str) -> Result<Option<u64>, ApiError> {
        let number = query_parameter(self.uri, name)?.map(|text| text.parse());
        number.transpose().map_err(|_| ApiError::invalid_param(format!("`{name}` is a number.")))
    }

    fn backwards(&mut self, _: &str) -> Result<Option<bool>, ApiError> {
        match query_parameter(self.uri, "dir")?.as_deref() {
            None => Ok(None),
            Some("f") => Ok(Some(false)),
            Some("b") => Ok(Some(true)),
            Some(_) => Err(ApiError::invalid_param("`dir` is `f` or `b`.")),
        }
    }
}

/// A member of a body for which missing and null differ.
#[allow(clippy::unnecessary_wraps, reason = "serde's form of it")]
#[allow(clippy::option_option, reason = "missing, null, and a value")]
fn nullable<'de, T, D>(deserializer: D) -> Result<Option<Option<T>>, D::Error>
where
    T: Deserialize<'de>,
    D: Deserializer<'de>,
{
    Option::deserialize(deserializer).map(Some)
}

impl Terms {
    fn order<A>(&self, act: A) -> Order<A> {
        Order { act, reason: self.reason.clone(), dry_run: self.dry_run }
    }
}

impl Cx<Server> {
    /// Runs `work` in its own task, so that it is completed even if the caller hangs up.
    async fn complete<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, ActError>> + Send + 'static,
    ) -> Result<T, ApiError> {
        tokio::spawn(work).await.map_err(ApiError::internal)?.map_err(ApiError::from)
    }

    /// Carries out an act in the caller's name, and formats the response with `shape`; in a dry
    /// run, describes what would be done.
    async fn act<A: Act>(
        &self,
        act: A,
        terms: Terms,
        shape: impl FnOnce(A::Done) -> Value,
    ) -> Result<Json, ApiError> {
        let (office, origin, order) =
            (Arc::clone(&self.app.office), self.origin(), terms.order(act));
        match self.complete(async move { order.carry_out(&office, origin).await }).await? {
            Outcome::WouldDo(effect) => to_json(&would_do(effect)),
            Outcome::Done(done) => to_json(&shape(done)),
        }
    }
}

fn would_do(effect: Vec<String>) -> Value {
    json!({ "dry_run": true, "effect": effect })
}

/// For acts with an empty response.
fn nothing<D>(_: D) -> Value {
    json!({})
}

/// A page of a complete list, and the start of the next one.
fn page_of<T>(all: Vec<T>, PageOf { from, limit }: PageOf) -> (Vec<T>, Option<usize>) {
    let next = from.saturating_add(limit);
    let more = next < all.len();
    (all.into_iter().skip(from).take(limit).collect(), more.then_some(next))
}

impl From<ActError> for ApiError {
    fn from(error: ActError) -> Self {
        let text = error.to_string();
        match error {
            ActError::NoUser(_)
            | ActError::NoRoom(_)
            | ActError::NoMedia(_)
            | ActError::NoDestination(_)
            | ActError::NoReport(_)
            | ActError::NoToken => Self::not_found(text),
            ActError::Taken(_) => Self::new(ErrorCode::UserInUse, text),
            ActError::Deactivated(_) => {
                Self::new(ErrorCode::UserDeactivated, text).with_status(StatusCode::BAD_REQUEST)
            }
            ActError::Invalid(_) => Self::invalid_param(text),
            ActError::Unfit(error) => error.into(),
            ActError::Rejected(rejected) => rejected.into(),
            ActError::Read(error) => error.into(),
            ActError::Proof(error) => match error {
                ProofError::NoRecord { .. } | ProofError::NoCheckpoint(_) => Self::not_found(text),
                ProofError::Rejected(rejected) => rejected.into(),
                ProofError::Read(error) => error.into(),
                ProofError::Record { .. } | ProofError::NoServer => Self::internal(text),
                ProofError::Secret(_)
                | ProofError::Order { .. }
                | ProofError::Diverged { .. }
                | ProofError::Checkpoint(_) => Self::invalid_param(text),
            },
            other => Self::internal(other.to_string()),
        }
    }
}
