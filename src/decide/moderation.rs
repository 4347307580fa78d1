//! What administrators do with rooms: block them, shut them down, make a user the admin of one or
//! join one; and the reasons for administrative acts.

use ruma::{
    CanonicalJsonObject, CanonicalJsonValue, Int, MilliSecondsSinceUnixEpoch, OwnedRoomAliasId,
    OwnedRoomId, OwnedUserId, RoomId, UserId,
    events::{StateEventType, TimelineEventType, room::member::MembershipState},
    int,
    state_res::events::RoomPowerLevelsIntField,
};
use serde_json::json;

use super::{
    Commit, Env, Membership, NewEvent, Proposal, Refusal, RoomDraft,
    create_room::{CreateRoom, DEFAULT_ROOM_VERSION, Preset},
    is_local,
    member_event::{member_content, must_not_be_blocked},
    membership::{Change, ChangeMembership, Changed},
    object,
};
use logcabin_record::{
    Offset, Stream,
    command::{
        AdminReason, AliasRemove, AliasSet, Replacement, RoomBlock, RoomNetwork, RoomShutdown,
        RoomShutdownFinish, RoomVisibility,
    },
};

/// A proposal with a recorded reason.
#[derive(Clone, Debug)]
pub struct WithReason<P> {
    /// The proposal.
    pub of: P,
    pub reason: Option<String>,
}

impl<P: Proposal> Proposal for WithReason<P> {
    type Outcome = P::Outcome;

    fn stream(&self) -> Stream {
        self.of.stream()
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<P::Outcome, Refusal> {
        let before = commit.len();
        let outcome = self.of.decide(commit)?;
        if let Some(reason) = &self.reason
            && commit.len() > before
        {
            commit.append(self.stream(), AdminReason { reason: reason.clone() });
        }
        Ok(outcome)
    }
}

/// Decides a proposal in the name of a joined local user for whom the room's rules allow it: one of
/// `first`, or else one who has the power level `field` by name, the most powerful first. Returns
/// in whose name.
pub(super) fn in_the_name_of<P: Proposal>(
    commit: &mut Commit<'_>,
    room_id: &RoomId,
    first: &[&UserId],
    field: RoomPowerLevelsIntField,
    proposal: impl Fn(&UserId) -> P,
) -> Result<OwnedUserId, Refusal> {
    let env = commit.env;
    let room = commit.room(room_id)?;
    let mut names = Vec::new();
    for user_id in first {
        if is_local(&env.server, user_id)
            && room.membership(env, user_id)? == Some(Membership::Join)
        {
            names.push((*user_id).to_owned());
        }
    }
    names.extend(room.named_with(env, field)?);
    // Whoever has the level may yet be unable to send such an event, or to act on this user.
    for sender in names {
        match proposal(&sender).decide(commit) {
            Ok(_) => return Ok(sender),
            Err(Refusal::Forbidden(_)) => {}
            Err(other) => return Err(other),
        }
    }
    let why = "No user of this server who is in the room may do this.";
    Err(Refusal::Forbidden(why.to_owned()))
}

/// What is done with a member of a room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberChange {
    /// They leave, their invite or their knock ends.
    Kick,
    Ban,
    Unban,
}

/// Kick, ban or unban a user in the name of a joined local user who may: the one who is named, or
/// else the most powerful. Where nobody may kick a local user, they leave.
#[derive(Clone, Debug)]
pub struct ChangeMember {
    pub room_id: OwnedRoomId,
    pub user_id: OwnedUserId,
    pub change: MemberChange,
    /// In whose name, if they may.
    pub by: Option<OwnedUserId>,
    /// The reason that the room is told.
    pub say: Option<String>,
    /// For a kick or a ban: whether what they sent since they joined is redacted.
    pub redact_events: bool,
    /// The time, by the server's clock.
    pub ts: MilliSecondsSinceUnixEpoch,
}

impl MemberChange {
    /// Whether it changes anything for a user with this membership.
    pub fn changes(self, membership: Option<Membership>) -> bool {
        match self {
            Self::Kick => matches!(
                membership,
                Some(Membership::Join | Membership::Invite | Membership::Knock)
            ),
            Self::Ban => membership != Some(Membership::Ban),
            Self::Unban => membership == Some(Membership::Ban),
        }
    }
}

impl Proposal for ChangeMember {
    /// In whose name; `None` if it was so before.
    type Outcome = Option<OwnedUserId>;

    fn stream(&self) -> Stream {
        Stream::room(&self.room_id)
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<Option<OwnedUserId>, Refusal> {
        let env = commit.env;
        let membership = commit.room(&self.room_id)?.membership(env, &self.user_id)?;
        if !self.change.changes(membership) {
            return Ok(None);
        }
        let (change, field) = match self.change {
            MemberChange::Kick => (Change::Kick, RoomPowerLevelsIntField::Kick),
            MemberChange::Ban => (Change::Ban, RoomPowerLevelsIntField::Ban),
            MemberChange::Unban => (Change::Unban, RoomPowerLevelsIntField::Ban),
        };
        let by: Vec<_> = self.by.as_deref().into_iter().collect();
        let done = in_the_name_of(commit, &self.room_id, &by, field, |sender| {
            ByPowerful(self.made_by(sender, change))
        });
        match done {
            Err(Refusal::Forbidden(_))
                if self.change == MemberChange::Kick
                    && (!self.redact_events || membership != Some(Membership::Join))
                    && is_local(&env.server, &self.user_id) =>
            {
                self.made_by(&self.user_id, Change::Leave).decide(commit)?;
                Ok(Some(self.user_id.clone()))
            }
            Err(Refusal::Forbidden(_)) if self.redact_events => {
                let why = "No user of this server who is in the room may do this and redact.";
                Err(Refusal::Forbidden(why.to_owned()))
            }
            done => done.map(Some),
        }
    }
}

/// A change by somebody who, if it redacts, has the power to redact.
struct ByPowerful(ChangeMembership);

impl Proposal for ByPowerful {
    type Outcome = Changed;

    fn stream(&self) -> Stream {
        self.0.stream()
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<Changed, Refusal> {
        let Self(change) = self;
        let env = commit.env;
        let room = commit.room(&change.room_id)?;
        if change.redact_events
            && room.membership(env, &change.target)? == Some(Membership::Join)
            && !room.powers(env)?.may_redact_others(&change.sender)
        {
            let why = "They may not redact what others sent.";
            return Err(Refusal::Forbidden(why.to_owned()));
        }
        change.decide(commit)
    }
}

impl ChangeMember {
    fn made_by(&self, sender: &UserId, change: Change) -> ChangeMembership {
        let (room_id, target) = (self.room_id.clone(), self.user_id.clone());
        ChangeMembership {
            reason: self.say.clone(),
            redact_events: self.redact_events,
            ..ChangeMembership::new(room_id, sender.to_owned(), target, change, self.ts)
        }
    }
}

/// Reject an invite in the name of the invited user.
#[derive(Clone, Debug)]
pub struct RejectInvite {
    pub room_id: OwnedRoomId,
    pub user_id: OwnedUserId,
    /// The time, by the server's clock.
    pub ts: MilliSecondsSinceUnixEpoch,
}

impl Proposal for RejectInvite {
    /// False if they are not invited any more: perhaps they have joined.
    type Outcome = bool;

    fn stream(&self) -> Stream {
        Stream::room(&self.room_id)
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<bool, Refusal> {
        let env = commit.env;
        let membership = commit.room(&self.room_id)?.membership(env, &self.user_id)?;
        if membership != Some(Membership::Invite) {
            return Ok(false);
        }
        let leave = ChangeMembership::new(
            self.room_id.clone(),
            self.user_id.clone(),
            self.user_id.clone(),
            Change::Leave,
            self.ts,
        );
        leave.decide(commit).map(|_| true)
    }
}

/// Block a room, which need not exist, or unblock it.
#[derive(Clone, Debug)]
pub struct BlockRoom {
    pub room_id: OwnedRoomId,
    /// Whether entering it is refused from now on.
    pub blocked: bool,
    pub reason: Option<String>,
}

impl Proposal for BlockRoom {
    /// Whether that changed.
    type Outcome = bool;

    fn stream(&self) -> Stream {
        Stream::room(&self.room_id)
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<bool, Refusal> {
        let is_blocked = commit.env.state.closures.blocked(&self.room_id).is_some();
        let changed = is_blocked != self.blocked;
        if changed {
            let Self { room_id, blocked, reason } = self.clone();
            commit.append(self.stream(), RoomBlock { room_id, blocked, reason });
        }
        Ok(changed)
    }
}

/// Begin to shut a room down. The caller does the rest.
#[derive(Clone, Debug)]
pub struct BeginShutdown {
    /// The id of the shutdown: a new one.
    pub id: String,
    pub room_id: OwnedRoomId,
    /// Whether to block the room.
    pub block: bool,
    /// The room to which members and aliases move.
    pub replacement: Option<Replacement>,
    /// Whether it is purged at the end.
    pub purge: bool,
    pub reason: Option<String>,
}

impl Proposal for BeginShutdown {
    type Outcome = ();

    fn stream(&self) -> Stream {
        Stream::room(&self.room_id)
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<(), Refusal> {
        let state = &commit.env.state;
        let Self { id, room_id, block, replacement, purge, reason } = self.clone();
        let room = state.rooms.get(&room_id);
        let room = room.ok_or_else(|| Refusal::NotFound("There is no such room.".to_owned()))?;
        if state.closures.is_closing(&room_id) {
            let why = "This room is being shut down already.";
            return Err(Refusal::InvalidParam(why.to_owned()));
        }
        let begin = RoomShutdown { room_id: room_id.clone(), id, replacement, purge, reason };
        commit.append(self.stream(), begin);
        if block && state.closures.blocked(&room_id).is_none() {
            let blocking = RoomBlock { room_id: room_id.clone(), blocked: true, reason: None };
            commit.append(self.stream(), blocking);
        }
        if room.is_public() {
            let hidden = RoomVisibility { room_id: room_id.clone(), public: false };
            commit.append(self.stream(), hidden);
        }
        for (service, network_id) in state.rooms.networks_of(&room_id) {
            let (room_id, listed) = (room_id.clone(), false);
            commit.append(self.stream(), RoomNetwork { room_id, service, network_id, listed });
        }
        Ok(())
    }
}

/// Create the replacement of a room that is shut down: everyone may join it, and only its creator
/// may send messages.
#[derive(Clone, Debug)]
pub struct OpenReplacement {
    /// Its properties.
    pub replacement: Replacement,
    /// The time, by the server's clock.
    pub ts: MilliSecondsSinceUnixEpoch,
}

impl Proposal for OpenReplacement {
    type Outcome = ();

    fn stream(&self) -> Stream {
        Stream::room(&self.replacement.room_id)
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<(), Refusal> {
        let Replacement { room_id, creator, name, message } = self.replacement.clone();
        if commit.env.state.rooms.get(&room_id).is_some() {
            return Ok(());
        }
        let create = CreateRoom {
            power_levels: object(json!({ "users_default": -10 })),
            name: Some(name),
            ..CreateRoom::new(
                room_id,
                creator.clone(),
                DEFAULT_ROOM_VERSION,
                Preset::PublicChat,
                self.ts,
            )
        };
        create.decide(commit)?;
        let content = object(json!({ "msgtype": "m.text", "body": message }));
        commit.add_event(NewEvent {
            event_type: TimelineEventType::RoomMessage,
            state_key: None,
            content: content.into(),
            sender: creator,
            ts: self.ts,
            redacts: None,
            transaction: None,
        })?;
        Ok(())
    }
}

/// Point an alias of a room that is shut down at another room, or remove it.
#[derive(Clone, Debug)]
pub struct MoveAlias {
    pub alias: OwnedRoomAliasId,
    /// The room that it points at now.
    pub from: OwnedRoomId,
    /// The new room; `None` removes the alias.
    pub to: Option<OwnedRoomId>,
}

impl Proposal for MoveAlias {
    type Outcome = ();

    fn stream(&self) -> Stream {
        Stream::alias(&self.alias)
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<(), Refusal> {
        let target = commit.env.state.aliases.get(&self.alias, Offset::MAX);
        let Some(target) = target.filter(|target| target.room_id == self.from) else {
            return Ok(());
        };
        let alias = self.alias.clone();
        match self.to.clone() {
            Some(room_id) => {
                let creator = target.creator;
                commit.append(self.stream(), AliasSet { alias, room_id, creator });
            }
            None => commit.append(self.stream(), AliasRemove { alias }),
        }
        Ok(())
    }
}

/// Record the end of a shutdown.
#[derive(Clone, Debug)]
pub struct FinishShutdown {
    pub room_id: OwnedRoomId,
    /// The id of the shutdown.
    pub id: String,
    /// Users who could not be removed.
    pub failed: Vec<OwnedUserId>,
    /// For a purged room, the users who left.
    pub left: Vec<OwnedUserId>,
}

impl Proposal for FinishShutdown {
    type Outcome = ();

    fn stream(&self) -> Stream {
        Stream::room(&self.room_id)
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<(), Refusal> {
        let shutdown = commit.env.state.closures.shutdown(&self.id);
        if shutdown.is_some_and(|shutdown| shutdown.ended.is_none()) {
            let Self { room_id, id, failed, left } = self.clone();
            commit.append(self.stream(), RoomShutdownFinish { room_id, id, failed, left });
        }
        Ok(())
    }
}

/// Give a user as much power in a room as its most powerful local member can grant, and invite them
/// if they could not join otherwise.
#[derive(Clone, Debug)]
pub struct MakeRoomAdmin {
    pub room_id: OwnedRoomId,
    pub user_id: OwnedUserId,
    /// The time, by the server's clock.
    pub ts: MilliSecondsSinceUnixEpoch,
}

/// The result of [`MakeRoomAdmin`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Empowered {
    /// The user who granted the power; `None` if it was there already.
    pub by: Option<OwnedUserId>,
    /// Whether the user was invited.
    pub invited: bool,
}

impl Proposal for MakeRoomAdmin {
    type Outcome = Empowered;

    fn stream(&self) -> Stream {
        Stream::room(&self.room_id)
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<Empowered, Refusal> {
        let env = commit.env;
        let room = commit.room(&self.room_id)?;
        let kind = StateEventType::RoomPowerLevels;
        let mut content = room.shown_content(env, &kind, "")?.unwrap_or_default();
        let is_first = content.is_empty();
        let (giver, level) = most_powerful(env, room, &content)?.ok_or_else(|| {
            let why = "No user of this server who is in the room may change its power levels.";
            Refusal::InvalidParam(why.to_owned())
        })?;
        let now = room.membership(env, &self.user_id)?;
        if now == Some(Membership::Ban) {
            return Err(Refusal::InvalidParam("They are banned from this room.".to_owned()));
        }
        let is_creator = room.powers(env)?.creators().contains(&self.user_id);
        let above = room.rules().authorization.explicitly_privilege_room_creators;
        let has = level_of(&content, &self.user_id);
        let enough = giver == self.user_id || has >= level || (above && is_creator);
        let join_rule = room.shown_content(env, &StateEventType::RoomJoinRules, "")?;
        let join_rule = join_rule.as_ref().and_then(|rules| rules.get("join_rule")?.as_str());
        let invited = !matches!(now, Some(Membership::Join | Membership::Invite))
            && join_rule != Some("public");
        if !enough {
            let users = content
                .entry("users".to_owned())
                .or_insert_with(|| CanonicalJsonValue::Object(CanonicalJsonObject::new()));
            if let CanonicalJsonValue::Object(users) = users {
                if is_first && !above {
                    // The creator's implicit level is written out.
                    users.insert(giver.to_string(), CanonicalJsonValue::Integer(level));
                }
                users.insert(self.user_id.to_string(), CanonicalJsonValue::Integer(level));
            }
            let event_type = TimelineEventType::RoomPowerLevels;
            commit.add_event(NewEvent::state(event_type, "", content, &giver, self.ts))?;
        }
        if invited {
            let invite = member_content(env, &self.user_id, MembershipState::Invite, None);
            let (event_type, key) = (TimelineEventType::RoomMember, self.user_id.as_str());
            commit.add_event(NewEvent::state(event_type, key, invite, &giver, self.ts))?;
        }
        Ok(Empowered { by: (!enough).then_some(giver), invited })
    }
}

/// The local user in the room who can grant the most power, and how much that is.
fn most_powerful(
    env: &Env,
    room: &RoomDraft,
    levels: &CanonicalJsonObject,
) -> Result<Option<(OwnedUserId, Int)>, Refusal> {
    let powers = room.powers(env)?;
    let above = room.rules().authorization.explicitly_privilege_room_creators;
    let mut best: Option<(bool, Int, OwnedUserId)> = None;
    let mut candidates = powers.named();
    candidates.extend(powers.creators().iter().cloned());
    for user_id in candidates {
        let may = is_local(&env.server, &user_id)
            && powers.may_send_state(&user_id, StateEventType::RoomPowerLevels)
            && room.membership(env, &user_id)? == Some(Membership::Join);
        if may {
            let rank = (above && powers.creators().contains(&user_id), level_of(levels, &user_id));
            if best.as_ref().is_none_or(|(first, level, _)| (*first, *level) < rank) {
                best = Some((rank.0, rank.1, user_id));
            }
        }
    }
    Ok(best.map(|(creator, level, user_id)| {
        // A creator's own power cannot be granted, but everything below it can.
        let most = if creator || levels.is_empty() { greatest(levels) } else { level };
        (user_id, most)
    }))
}

/// The level of a user by the content of `m.room.power_levels`.
fn level_of(levels: &CanonicalJsonObject, user_id: &UserId) -> Int {
    let users = levels.get("users").and_then(CanonicalJsonValue::as_object);
    let own = users.and_then(|users| users.get(user_id.as_str())?.as_integer());
    let default = || levels.get("users_default")?.as_integer();
    own.or_else(default).unwrap_or_default()
}

/// A level that is sufficient for every action.
fn greatest(levels: &CanonicalJsonObject) -> Int {
    let events = levels.get("events").and_then(CanonicalJsonValue::as_object);
    let events = events.into_iter().flat_map(|events| events.values());
    let asked = levels.values().chain(events).filter_map(CanonicalJsonValue::as_integer);
    asked.max().unwrap_or_default().max(int!(100))
}

/// Make a user join a room: by their own right, or else by an invite of a member who may invite.
#[derive(Clone, Debug)]
pub struct HaveJoin {
    pub room_id: OwnedRoomId,
    pub user_id: OwnedUserId,
    /// The time, by the server's clock.
    pub ts: MilliSecondsSinceUnixEpoch,
}

impl Proposal for HaveJoin {
    type Outcome = ();

    fn stream(&self) -> Stream {
        Stream::room(&self.room_id)
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<(), Refusal> {
        let join = ChangeMembership::new(
            self.room_id.clone(),
            self.user_id.clone(),
            self.user_id.clone(),
            Change::Join,
            self.ts,
        );
        match join.decide(commit) {
            Ok(_) => return Ok(()),
            Err(Refusal::Forbidden(_)) => {}
            Err(other) => return Err(other),
        }
        let env = commit.env;
        let room = commit.room(&self.room_id)?;
        must_not_be_blocked(env, room, &self.user_id)?;
        let inviter = room.someone_who_may_invite(env)?.ok_or(Refusal::UnableToGrantJoin)?;
        let invite = member_content(env, &self.user_id, MembershipState::Invite, None);
        let (event_type, key) = (TimelineEventType::RoomMember, self.user_id.as_str());
        commit.add_event(NewEvent::state(event_type, key, invite, &inviter, self.ts))?;
        join.decide(commit).map(drop)
    }
}
