//! Search the accounts, for the HTTP API.

use super::summary::{UserSummary, summary};
use crate::{base::text, ops::admin::office::Office, record::Offset};

/// Which users, and in which order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct UsersWanted {
    /// What their id has in it.
    pub(crate) id: Option<String>,
    /// What the local part of their id, or their display name, has in it.
    pub(crate) name: Option<String>,
    /// Whether they are guests.
    pub(crate) guests: Option<bool>,
    /// Whether they administer the server.
    pub(crate) admins: Option<bool>,
    /// Whether their account is closed.
    pub(crate) deactivated: Option<bool>,
    /// Whether it is locked.
    pub(crate) locked: Option<bool>,
    /// By what they are ordered.
    pub(crate) order: UserOrder,
    /// The other way round.
    pub(crate) reverse: bool,
    /// How many are passed over.
    pub(crate) from: usize,
    /// How many are shown.
    pub(crate) limit: usize,
}

/// By what users are ordered; of equals, by their ids.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum UserOrder {
    #[default]
    Name,
    DisplayName,
    AvatarUrl,
    IsGuest,
    Admin,
    Deactivated,
    Locked,
    CreationTs,
    LastSeenTs,
    /// By something that all have alike.
    Nothing,
}

/// A user, with the record of the registration.
pub(crate) struct Listed {
    pub(crate) user: UserSummary,
    pub(crate) registered: Offset,
}

/// The users who are wanted, in order, and how many there are.
pub(crate) fn search(office: &Office, wanted: &UsersWanted) -> (Vec<Listed>, usize) {
    let accounts = &office.engine.state().accounts;
    let mut found = Vec::new();
    let (id, name) = (wanted.id.as_deref().map(text::fold), wanted.name.as_deref().map(text::fold));
    for user_id in accounts.user_ids() {
        let Some(account) = accounts.get(&user_id) else { continue };
        let (user, registered) = {
            let account = account.read();
            (summary(office, &account), account.registered)
        };
        let is = |asked: Option<bool>, is: bool| asked.is_none_or(|asked| asked == is);
        let has = |text: &str, part: &str| text::fold(text).contains(part);
        let by_id = id.as_ref().is_none_or(|part| has(user_id.as_str(), part));
        let display_name = user.display_name.as_deref().unwrap_or_default();
        let by_name = name
            .as_ref()
            .is_none_or(|part| has(user_id.localpart(), part) || has(display_name, part));
        let by_standing = is(wanted.guests, user.guest)
            && is(wanted.admins, user.admin)
            && is(wanted.deactivated, user.deactivated)
            && is(wanted.locked, user.locked);
        if by_standing && by_id && by_name {
            found.push(Listed { user, registered });
        }
    }
    let key = |listed: &Listed| {
        let Listed { user, registered } = listed;
        let (text, number) = match wanted.order {
            UserOrder::Name | UserOrder::Nothing => (None, 0),
            UserOrder::DisplayName => (user.display_name.as_deref().map(text::fold), 0),
            UserOrder::AvatarUrl => (user.avatar_url.clone(), 0),
            UserOrder::IsGuest => (None, user.guest.into()),
            UserOrder::Admin => (None, user.admin.into()),
            UserOrder::Deactivated => (None, user.deactivated.into()),
            UserOrder::Locked => (None, user.locked.into()),
            UserOrder::CreationTs => (None, registered.get()),
            UserOrder::LastSeenTs => (None, user.last_seen_ms.unwrap_or_default()),
        };
        (text, number)
    };
    // They come by their ids, and stay so where they are equal.
    found.sort_by_cached_key(key);
    if wanted.reverse {
        found.reverse();
    }
    let total = found.len();
    let page = found.into_iter().skip(wanted.from).take(wanted.limit);
    (page.collect(), total)
}
