//! Search the accounts, for the HTTP API.

use super::summary::{UserSummary, last_seen, profile_text, summary};
use crate::admin::context::ActContext;
use logcabin_base::text;
use logcabin_record::Offset;
use logcabin_state::{Account, State};

/// Which users, and in which order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UserSearch {
    /// A part of their id.
    pub id: Option<String>,
    /// A part of the localpart of their id, or of their display name.
    pub name: Option<String>,
    /// Whether they are guests.
    pub guests: Option<bool>,
    /// Whether they administer the server.
    pub admins: Option<bool>,
    pub deactivated: Option<bool>,
    pub locked: Option<bool>,
    /// Whether they wait for approval.
    pub waiting: Option<bool>,
    pub order: UserOrder,
    /// Whether to reverse the order.
    pub reverse: bool,
    /// How many to skip.
    pub from: usize,
    /// How many to return.
    pub limit: usize,
}

/// The order of users; equal ones are ordered by id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UserOrder {
    #[default]
    Name,
    DisplayName,
    AvatarUrl,
    IsGuest,
    Admin,
    Deactivated,
    Locked,
    ShadowBanned,
    CreationTs,
    LastSeenTs,
    /// All are equal.
    Nothing,
}

/// A user, with the record of the registration.
pub struct FoundUser {
    pub user: UserSummary,
    pub registered: Offset,
}

/// The wanted users, in order, and how many there are in all. For users who are not returned, only
/// what decides that is computed.
pub fn search(context: &ActContext, wanted: &UserSearch) -> (Vec<FoundUser>, usize) {
    let state = context.engine.state().share();
    let accounts = &state.accounts;
    let texts = [&wanted.id, &wanted.name].map(|text| text.as_deref().map(text::fold));
    let mut found = Vec::new();
    for user_id in accounts.user_ids() {
        let Some(account) = accounts.get(&user_id) else { continue };
        let account = account.read();
        if is_wanted(&account, wanted, &texts) {
            found.push((key(context, &state, &account, wanted.order), user_id));
        }
    }
    // The sort is stable: they come in the order of their ids.
    found.sort_by(|(one, _), (other, _)| one.cmp(other));
    if wanted.reverse {
        found.reverse();
    }
    let total = found.len();
    let page = found.into_iter().skip(wanted.from).take(wanted.limit);
    let listed = page.filter_map(|(_, user_id)| {
        let account = accounts.get(&user_id)?;
        let account = account.read();
        Some(FoundUser { user: summary(context, &account), registered: account.registered })
    });
    (listed.collect(), total)
}

/// Whether an account is wanted; `texts` are the folded id and name.
fn is_wanted(account: &Account, wanted: &UserSearch, texts: &[Option<String>; 2]) -> bool {
    let [id, name] = texts;
    let is = |asked: Option<bool>, is: bool| asked.is_none_or(|asked| asked == is);
    let has = |text: &str, part: &str| text::fold(text).contains(part);
    let standing = &account.standing;
    is(wanted.guests, standing.guest)
        && is(wanted.admins, standing.admin)
        && is(wanted.deactivated, standing.deactivated.is_some())
        && is(wanted.locked, standing.locked)
        && is(wanted.waiting, standing.waiting.is_some())
        && id.as_ref().is_none_or(|part| has(account.user_id.as_str(), part))
        && name.as_ref().is_none_or(|part| {
            has(account.user_id.localpart(), part)
                || has(profile_text(account, "displayname").unwrap_or_default(), part)
        })
}

/// What users are ordered by.
fn key(
    context: &ActContext,
    state: &State,
    account: &Account,
    order: UserOrder,
) -> (Option<String>, u64) {
    let text = |field| profile_text(account, field);
    match order {
        UserOrder::Name | UserOrder::Nothing => (None, 0),
        UserOrder::DisplayName => (text("displayname").map(text::fold), 0),
        UserOrder::AvatarUrl => (text("avatar_url").map(ToOwned::to_owned), 0),
        UserOrder::IsGuest => (None, account.standing.guest.into()),
        UserOrder::Admin => (None, account.standing.admin.into()),
        UserOrder::Deactivated => (None, account.standing.deactivated.is_some().into()),
        UserOrder::Locked => (None, account.standing.locked.into()),
        UserOrder::ShadowBanned => (None, account.standing.shadow_banned.into()),
        UserOrder::CreationTs => (None, account.registered.get()),
        UserOrder::LastSeenTs => (None, last_seen(context, state, account).unwrap_or_default()),
    }
}
