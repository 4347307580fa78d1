//! Show one user.

use std::collections::BTreeMap;

use ruma::{OwnedDeviceId, UserId};
use serde::{Deserialize, Serialize};

use super::summary::{UserSummary, summary};
use crate::admin::{
    act::{Act, Attribution},
    context::{ActContext, ActError},
};
use logcabin_record::Offset;
use logcabin_state::Membership;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ShowUser {
    pub user: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserDetails {
    #[serde(flatten)]
    pub summary: UserSummary,
    /// When the account was created, in milliseconds since the Unix epoch.
    pub created_ms: u64,
    pub has_password: bool,
    pub logged_in: BTreeMap<OwnedDeviceId, UserDevice>,
    /// How many rooms the user is joined to.
    pub joined_rooms: usize,
    #[serde(default)]
    pub threepids: Vec<UserThreepid>,
    #[serde(default)]
    pub external_ids: Vec<ExternalId>,
    /// How many files the user has uploaded, and their size in bytes.
    #[serde(default)]
    pub media_count: usize,
    #[serde(default)]
    pub media_bytes: u64,
}

/// An e-mail address or phone number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserThreepid {
    /// `email` or `msisdn`.
    pub medium: String,
    pub address: String,
    /// In milliseconds since the Unix epoch.
    pub(crate) added_at: u64,
    /// In milliseconds since the Unix epoch.
    pub(crate) validated_at: u64,
}

/// The user's identity at a provider of single sign-on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExternalId {
    /// The provider's id in the configuration.
    pub auth_provider: String,
    /// The subject that the provider reports.
    pub external_id: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserDevice {
    pub display_name: Option<String>,
    /// When it logged in, in milliseconds since the Unix epoch.
    pub since_ms: u64,
    /// When it was last used, in milliseconds since the Unix epoch, as far as is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seen_ms: Option<u64>,
    /// The address from which it was last used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seen_ip: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seen_agent: Option<String>,
    /// Whether it only receives messages until the user logs in elsewhere.
    #[serde(default)]
    pub dehydrated: bool,
}

impl Act for ShowUser {
    const NAME: &'static str = "show-user";
    const DONE: &'static str = "user";
    type Done = Box<UserDetails>;

    async fn perform(self, context: &ActContext, _: Attribution) -> Result<Self::Done, ActError> {
        details(context, &self.user).map(Box::new)
    }
}

pub fn details(context: &ActContext, user: &str) -> Result<UserDetails, ActError> {
    let user_id = context.user_id(user)?;
    let state = context.engine.state();
    let account = state.accounts.get(&user_id).ok_or_else(|| ActError::NoUser(user.to_owned()))?;
    let (summary, registered, has_password, logged_in) = {
        let account = account.read();
        let devices = account.active_devices();
        let logged_in = devices.map(|(id, device)| {
            let seen = context.last_seen.of(&state, &user_id, id, device);
            let device = UserDevice {
                display_name: device.display_name.clone(),
                since_ms: device.login_ms,
                seen_ms: seen.as_ref().map(|seen| seen.seen_ms),
                seen_ip: seen.as_ref().map(|seen| seen.address.to_string()),
                seen_agent: seen.and_then(|seen| seen.agent),
                dehydrated: device.tokens.is_none(),
            };
            (id.clone(), device)
        });
        let has_password = account.password.latest().is_some_and(Option::is_some);
        (summary(context, &account), account.registered, has_password, logged_in.collect())
    };
    let parts = state.memberships.of(&user_id, Offset::MAX);
    Ok(UserDetails {
        summary,
        created_ms: context.time_of(registered)?,
        has_password,
        logged_in,
        joined_rooms: parts.iter().filter(|part| part.membership == Membership::Join).count(),
        threepids: threepids(context, &user_id),
        external_ids: external_ids(context, &user_id),
        media_count: state.media.of_user(&user_id).len(),
        media_bytes: state.media.bytes_of(Some(&user_id)),
    })
}

fn threepids(context: &ActContext, user_id: &UserId) -> Vec<UserThreepid> {
    let own = context.engine.state().threepids.of_user(user_id).into_iter();
    let shown = own.map(|(threepid, owned)| UserThreepid {
        medium: threepid.medium.as_str().to_owned(),
        address: threepid.address,
        added_at: owned.added_ms,
        validated_at: owned.validated_ms,
    });
    shown.collect()
}

fn external_ids(context: &ActContext, user_id: &UserId) -> Vec<ExternalId> {
    let account = context.engine.state().accounts.get(user_id);
    account.map_or_else(Vec::new, |account| {
        let account = account.read();
        let links = account.links.iter().cloned();
        links
            .map(|(auth_provider, external_id)| ExternalId { auth_provider, external_id })
            .collect()
    })
}
