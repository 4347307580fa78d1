//! Whose invites reach a user: the user's own rules (client-server API, "Invite permission", and
//! MSC4155), those of the configuration, and those of policy lists.

use std::{cell::OnceCell, collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use ruma::{OwnedUserId, ServerName, UserId};
use serde_json::Value;

use crate::{
    events::{Derived, EventRef, EventStore},
    policy_lists::{MatchOutcome, Subject},
};
use logcabin_base::{
    glob::{Glob, Steps, Text},
    limits,
};
use logcabin_log::ReadError;
use logcabin_record::{
    Command, Offset,
    command::{AccountDataSet, PolicyArea},
};
use logcabin_state::{Membership, State};

/// The account data with a user's rules: the specification's, which newer clients use for all of
/// them, and the one of MSC4155.
pub const INVITE_RULES: [&str; 2] =
    ["m.invite_permission_config", "org.matrix.msc4155.invite_permission_config"];

/// Who may invite users with whom they share no room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Strangers {
    #[default]
    Allowed,
    /// Only users of this server.
    OfThisServer,
    Refused,
}

/// What a user's rules say about an invite.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum InviteRule {
    Allow,
    /// The invite is taken, and the user never sees it.
    Ignore,
    /// The inviter is refused.
    Block,
}

/// A user's rules in one account data event.
#[derive(Debug, Default)]
struct InviteRules {
    users: Named,
    servers: Named,
    /// Whether everybody else is blocked.
    blocks_others: bool,
    bytes: u64,
    /// What came of it for those who invited before.
    known: Mutex<HashMap<OwnedUserId, Judged>>,
}

/// What rules say by the name of a user, and by that of their homeserver.
type Judged = (Option<InviteRule>, Option<InviteRule>);

/// Patterns of users, or of homeservers.
#[derive(Debug, Default)]
struct Named {
    allowed: Vec<Glob>,
    ignored: Vec<Glob>,
    blocked: Vec<Glob>,
}

impl Named {
    /// Invalid members name nobody.
    fn of(content: &Value, which: &str) -> Self {
        let globs = |what: &str| {
            let texts = content.get(format!("{what}_{which}")).and_then(Value::as_array);
            let texts = texts.into_iter().flatten().filter_map(Value::as_str);
            texts.take(limits::INVITE_RULES).filter_map(Glob::new).collect()
        };
        Self { allowed: globs("allowed"), ignored: globs("ignored"), blocked: globs("blocked") }
    }

    fn rule(&self, names: &[&str]) -> Option<InviteRule> {
        let prepared: Vec<OnceCell<Text>> = names.iter().map(|_| OnceCell::new()).collect();
        let any = |globs: &[Glob]| {
            globs.iter().any(|glob| {
                let mut names = names.iter().zip(&prepared);
                names.any(|(name, text)| glob.is_prepared(name, text, &mut Steps::default()))
            })
        };
        match () {
            () if any(&self.allowed) => Some(InviteRule::Allow),
            () if any(&self.ignored) => Some(InviteRule::Ignore),
            () if any(&self.blocked) => Some(InviteRule::Block),
            () => None,
        }
    }
}

impl Derived for InviteRules {
    fn weight(&self) -> u64 {
        self.bytes
    }
}

impl InviteRules {
    fn of(body: &AccountDataSet) -> Self {
        let text = body.content.get();
        let content: Value = serde_json::from_str(text).unwrap_or_default();
        Self {
            users: Named::of(&content, "users"),
            servers: Named::of(&content, "servers"),
            blocks_others: content["default_action"] == "block",
            // A pattern takes more memory than its text.
            bytes: 64 * 1024 + 64 * text.len() as u64,
            known: Mutex::default(),
        }
    }

    /// What it says of one who invites: by their name, and by that of their homeserver.
    fn rules(&self, inviter: &UserId) -> Judged {
        if let Some(known) = self.known.lock().get(inviter) {
            return *known;
        }
        let server = inviter.server_name();
        let of_server = self.servers.rule(&[server.as_str(), server.host()]);
        let judged = (self.users.rule(&[inviter.as_str()]), of_server);
        let mut known = self.known.lock();
        if known.len() >= limits::INVITERS {
            known.clear();
        }
        known.insert(inviter.to_owned(), judged);
        judged
    }
}

/// What the user's own rules say about invites by `inviter`: those about users come before those
/// about homeservers.
pub fn invite_rule(
    events: &EventStore,
    state: &State,
    user_id: &UserId,
    inviter: &UserId,
) -> Result<InviteRule, ReadError> {
    let Some(account) = state.accounts.get(user_id) else { return Ok(InviteRule::Allow) };
    let at = INVITE_RULES.map(|of| account.read().account_data_at(None, of, Offset::MAX));
    let mut rules: Vec<Arc<InviteRules>> = Vec::new();
    for offset in at.into_iter().flatten() {
        rules.push(events.derived(offset, || {
            Ok(match events.command(offset)? {
                Some(Command::AccountDataSet(body)) => InviteRules::of(&body),
                _ => InviteRules::default(),
            })
        })?);
    }
    let judged: Vec<Judged> = rules.iter().map(|rules| rules.rules(inviter)).collect();
    let users = judged.iter().filter_map(|(of_user, _)| *of_user);
    let servers = judged.iter().filter_map(|(_, of_server)| *of_server);
    Ok(match users.min().or_else(|| servers.min()) {
        Some(rule) => rule,
        None if rules.iter().any(|rules| rules.blocks_others) => InviteRule::Block,
        None => InviteRule::Allow,
    })
}

/// Whether the configuration is against an invite, because the inviter shares no room with the
/// user.
pub fn is_of_refused_stranger(
    events: &EventStore,
    state: &State,
    own: &ServerName,
    user_id: &UserId,
    inviter: &UserId,
) -> bool {
    let is_allowed = match events.strangers() {
        Strangers::Allowed => true,
        Strangers::OfThisServer => inviter.server_name() == own,
        Strangers::Refused => false,
    };
    !is_allowed
        && !events.policy_lists().is_spared(state, inviter)
        && !state.memberships.share_a_room(user_id, inviter, Offset::MAX)
}

/// Whether the user sees an invite to them: not if they ignore or block the inviter, also since,
/// nor if the configuration or a rule of a policy list is against it.
pub fn is_shown(
    events: &EventStore,
    state: &State,
    user_id: &UserId,
    invite: &EventRef,
) -> Result<bool, ReadError> {
    let inviter = &invite.sender;
    let room = state.rooms.get(&invite.room_id);
    let before = room.and_then(|room| room.membership(user_id, invite.offset.prev()));
    // Whoever knocks asks to be invited.
    let was_asked_for = matches!(before, Some((_, Membership::Knock)));
    if was_asked_for {
        return Ok(true);
    }
    if invite_rule(events, state, user_id, inviter)? != InviteRule::Allow
        || is_of_refused_stranger(events, state, user_id.server_name(), user_id, inviter)
    {
        return Ok(false);
    }
    let subject = Subject::of_user(inviter).in_room(&invite.room_id);
    let found = events.policy_lists().find(state, PolicyArea::Invites, subject);
    Ok(found.is_none_or(|found| found.outcome != MatchOutcome::Applied))
}
