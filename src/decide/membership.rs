//! Memberships: join, leave, invite, kick, ban, unban, knock, forget.

use ruma::{
    CanonicalJsonObject, CanonicalJsonValue, MilliSecondsSinceUnixEpoch, OwnedEventId, OwnedRoomId,
    OwnedUserId, RoomId, UserId,
    events::{StateEventType, TimelineEventType, room::member::MembershipState},
    state_res::events::RoomPowerLevelsIntField,
};

use super::{
    Commit, Env, Membership, NewEvent, Proposal, Refusal, RoomDraft, is_local,
    member_event::{
        authorise_join, may_come, may_reject, member_content, must_be_welcome, must_not_be_blocked,
        must_take_guests, must_take_invites, with_the_rest_of,
    },
    not_in_it,
    redaction::REDACT_EVENTS,
    upgrade::bring_along,
};
use logcabin_base::planted::{self, Fault};
use logcabin_read::events::EventRef;
use logcabin_record::{Stream, command::RoomForget};

/// A change of a membership.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The sender joins.
    Join,
    /// The sender leaves, rejects an invite or withdraws a knock.
    Leave,
    /// The sender knocks.
    Knock,
    /// The target is invited.
    Invite,
    /// The target is kicked.
    Kick,
    /// The target is banned.
    Ban,
    /// The target's ban ends.
    Unban,
    /// The sender's changed profile is copied to a room that they are joined to.
    Profile,
}

/// Change a membership.
#[derive(Clone, Debug)]
pub struct ChangeMembership {
    pub room_id: OwnedRoomId,
    pub sender: OwnedUserId,
    /// The user whose membership changes.
    pub target: OwnedUserId,
    pub change: Change,
    /// The reason given.
    pub reason: Option<String>,
    /// For invites to direct chats.
    pub is_direct: bool,
    /// For a kick or a ban: whether what the target sent since they joined is redacted.
    pub redact_events: bool,
    /// For a join by third-party invite: its signed part, as the client sent it.
    pub third_party_signed: Option<CanonicalJsonObject>,
    /// The time, by the server's clock.
    pub ts: MilliSecondsSinceUnixEpoch,
}

/// The result of a membership change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Changed {
    /// The new member event.
    To(OwnedEventId),
    /// The membership was like that already.
    Already,
}

impl Proposal for ChangeMembership {
    type Outcome = Changed;

    fn stream(&self) -> Stream {
        Stream::room(&self.room_id)
    }

    fn shares_commit(&self) -> bool {
        // A restricted join looks at the members of other rooms, and at those who may invite.
        self.change != Change::Join
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<Changed, Refusal> {
        let env = commit.env;
        if matches!(self.change, Change::Join | Change::Knock) {
            // A user who closes their account then leaves all of their rooms: no join may follow.
            commit.rests_on(Stream::user(&self.sender));
            if env.state.accounts.is_deactivated(&self.sender) {
                return Err(Refusal::UserDeactivated);
            }
        }
        let room = commit.room(&self.room_id).map_err(|refusal| match (refusal, self.change) {
            // The same refusal as for a room that does not admit the user.
            (Refusal::Forbidden(_), Change::Join) => {
                Refusal::Forbidden("Cannot join a room that is not `public`.".to_owned())
            }
            (refusal, _) => refusal,
        })?;
        if self.sender != self.target
            && room.membership(env, &self.sender)? != Some(Membership::Join)
        {
            return Err(Refusal::Forbidden("You are not in this room.".to_owned()));
        }
        if matches!(self.change, Change::Join | Change::Knock | Change::Invite) {
            must_not_be_blocked(env, room, &self.sender)?;
        }
        let now = room.membership(env, &self.target)?;
        if self.change == Change::Leave && now == Some(Membership::Invite) {
            may_reject(env, &self.room_id, &self.target)?;
        }
        let Some(membership) = self.checked(now)? else { return Ok(Changed::Already) };
        if self.change == Change::Join {
            must_take_guests(env, room, &self.target)?;
        }
        if matches!(self.change, Change::Join | Change::Knock) {
            must_be_welcome(env, room, &self.target)?;
            may_come(env, &self.target, now)?;
        }
        let mut content = member_content(env, &self.target, membership, self.reason.as_deref());
        match self.change {
            Change::Invite if self.is_direct => {
                content.insert("is_direct".to_owned(), CanonicalJsonValue::Bool(true));
            }
            Change::Kick | Change::Ban if self.redact_events => {
                content.insert(REDACT_EVENTS.to_owned(), CanonicalJsonValue::Bool(true));
            }
            Change::Join if matches!(now, Some(Membership::Invite | Membership::Ban)) => {}
            Change::Join => match &self.third_party_signed {
                Some(signed) => {
                    let accepted = AcceptAddressInvite {
                        room_id: self.room_id.clone(),
                        user_id: self.target.clone(),
                        signed: signed.clone(),
                        ts: self.ts,
                    };
                    let invite = accepted.invite(commit)?;
                    accepted.add(commit, &invite)?;
                }
                None => authorise_join(env, room, &self.target, &mut content)?,
            },
            Change::Profile => {
                let member = StateEventType::RoomMember;
                let before = room.shown_content(env, &member, self.target.as_str())?;
                content = with_the_rest_of(before.unwrap_or_default(), content);
            }
            _ => {}
        }
        let (event_id, new) = commit.settle(NewEvent::state(
            TimelineEventType::RoomMember,
            self.target.as_str(),
            content,
            &self.sender,
            self.ts,
        ))?;
        match self.change {
            // Last, so that only users who may invite learn of it.
            Change::Invite => {
                must_take_invites(env, Some(&self.room_id), &self.target, &self.sender, now)?;
            }
            Change::Join => bring_along(commit, &self.target, &self.room_id)?,
            _ => {}
        }
        Ok(if new { Changed::To(event_id) } else { Changed::Already })
    }
}

impl ChangeMembership {
    /// A change without a reason and without anything that only some changes have.
    pub const fn new(
        room_id: OwnedRoomId,
        sender: OwnedUserId,
        target: OwnedUserId,
        change: Change,
        ts: MilliSecondsSinceUnixEpoch,
    ) -> Self {
        Self {
            room_id,
            sender,
            target,
            change,
            reason: None,
            is_direct: false,
            redact_events: false,
            third_party_signed: None,
            ts,
        }
    }

    /// The membership to set, given the present one; `None` if nothing changes. Refuses what the
    /// endpoint is not for; the room's rules decide the rest.
    fn checked(&self, now: Option<Membership>) -> Result<Option<MembershipState>, Refusal> {
        let forbidden = |text: &str| Err(Refusal::Forbidden(text.to_owned()));
        match (self.change, now) {
            (Change::Join, Some(Membership::Join)) => Ok(None),
            (Change::Join, _) => Ok(Some(MembershipState::Join)),
            (Change::Profile, Some(Membership::Join)) => Ok(Some(MembershipState::Join)),
            (Change::Profile, _) => Ok(None),
            (Change::Knock, Some(Membership::Join)) => forbidden("You are in this room already."),
            (Change::Knock, _) => Ok(Some(MembershipState::Knock)),
            (Change::Leave, Some(Membership::Leave)) => Ok(None),
            (Change::Leave, None) => forbidden("You are not in this room."),
            (Change::Leave, _) => Ok(Some(MembershipState::Leave)),
            (Change::Invite, Some(Membership::Join)) => forbidden("They are in this room already."),
            (Change::Invite, _) => Ok(Some(MembershipState::Invite)),
            (Change::Kick, None | Some(Membership::Leave)) => {
                forbidden("They are not in this room.")
            }
            (Change::Kick, Some(Membership::Ban)) => {
                forbidden("They are banned from this room, not in it.")
            }
            (Change::Kick, _) => Ok(Some(MembershipState::Leave)),
            (Change::Ban, _) if planted::has(Fault::BanIsKick) => Ok(Some(MembershipState::Leave)),
            (Change::Ban, _) => Ok(Some(MembershipState::Ban)),
            (Change::Unban, Some(Membership::Ban)) => Ok(Some(MembershipState::Leave)),
            (Change::Unban, _) => Err(Refusal::BadState("They are not banned.".to_owned())),
        }
    }
}

/// Turn an invitation by email address or phone number into a membership of the user with whom an
/// identity server has bound the address (client-server API, "Third-party invites").
#[derive(Clone, Debug)]
pub struct AcceptAddressInvite {
    pub room_id: OwnedRoomId,
    pub user_id: OwnedUserId,
    /// The data signed by the identity server: the user's id and the invitation's token.
    pub signed: CanonicalJsonObject,
    /// The time, by the server's clock.
    pub ts: MilliSecondsSinceUnixEpoch,
}

impl Proposal for AcceptAddressInvite {
    type Outcome = Changed;

    fn stream(&self) -> Stream {
        Stream::room(&self.room_id)
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<Changed, Refusal> {
        let env = commit.env;
        if !env.state.accounts.contains(&self.user_id) {
            return Err(Refusal::NotFound("There is no such user.".to_owned()));
        }
        let room = commit.room(&self.room_id)?;
        must_not_be_blocked(env, room, &self.user_id)?;
        let now = room.membership(env, &self.user_id)?;
        if matches!(now, Some(Membership::Join | Membership::Invite)) {
            return Ok(Changed::Already);
        }
        let invite = self.invite(commit)?;
        must_take_invites(env, Some(&self.room_id), &self.user_id, &invite.sender, now)?;
        self.add(commit, &invite)
    }
}

impl AcceptAddressInvite {
    /// The event by which the address was invited.
    fn invite(&self, commit: &mut Commit<'_>) -> Result<EventRef, Refusal> {
        let env = commit.env;
        let token = self.signed.get("token").and_then(CanonicalJsonValue::as_str);
        let kind = StateEventType::RoomThirdPartyInvite;
        let room = commit.room(&self.room_id)?;
        let invite = room.state_event(env, &kind, token.unwrap_or_default())?;
        invite.filter(|invite| is_local(&env.server, &invite.sender)).ok_or_else(|| {
            Refusal::Forbidden("There is no such invite from a user of this server.".to_owned())
        })
    }

    /// Invites the user in the name of the one who invited the address. The room's rules check the
    /// signature.
    fn add(&self, commit: &mut Commit<'_>, invite: &EventRef) -> Result<Changed, Refusal> {
        let content = address_invite_content(commit.env, &self.user_id, invite, &self.signed);
        commit
            .add_event(NewEvent::state(
                TimelineEventType::RoomMember,
                self.user_id.as_str(),
                content,
                &invite.sender,
                self.ts,
            ))
            .map(Changed::To)
    }
}

/// The content of the invite into which the invitation of an address turns.
pub(super) fn address_invite_content(
    env: &Env,
    user_id: &UserId,
    invite: &EventRef,
    signed: &CanonicalJsonObject,
) -> CanonicalJsonObject {
    let name = invite.content_as::<CanonicalJsonObject>().unwrap_or_default();
    let name = name.get("display_name").and_then(CanonicalJsonValue::as_str);
    let mut content = member_content(env, user_id, MembershipState::Invite, None);
    let third_party = CanonicalJsonObject::from([
        ("display_name".to_owned(), CanonicalJsonValue::String(name.unwrap_or("").to_owned())),
        ("signed".to_owned(), CanonicalJsonValue::Object(signed.clone())),
    ]);
    content.insert("third_party_invite".to_owned(), CanonicalJsonValue::Object(third_party));
    content
}

/// Refuses a user who may not invite to this room, before an identity server is contacted.
///
/// # Errors
/// When they are not in the room, or lack the power level.
pub fn must_be_able_to_invite(
    env: &Env,
    room_id: &RoomId,
    user_id: &UserId,
) -> Result<(), Refusal> {
    let room = env.state.rooms.get(room_id).ok_or_else(not_in_it)?;
    let room = RoomDraft::of(room);
    if room.membership(env, user_id)? != Some(Membership::Join) {
        return Err(not_in_it());
    }
    must_not_be_blocked(env, &room, user_id)?;
    if room.powers(env)?.has_level(user_id, RoomPowerLevelsIntField::Invite) {
        Ok(())
    } else {
        Err(Refusal::Forbidden(
            "You do not have the power level to invite to this room.".to_owned(),
        ))
    }
}

/// Leave a room and forget it, atomically.
#[derive(Clone, Debug)]
pub struct LeaveAndForget(pub ChangeMembership);

impl Proposal for LeaveAndForget {
    type Outcome = Changed;

    fn stream(&self) -> Stream {
        self.0.stream()
    }

    fn shares_commit(&self) -> bool {
        // Whether it is forgotten already is looked up in the state.
        false
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<Changed, Refusal> {
        let ChangeMembership { room_id, target, .. } = &self.0;
        commit.rests_on(Stream::user(target));
        let changed = self.0.decide(commit)?;
        let part = commit.env.state.memberships.part(target, room_id);
        let is_forgotten = part.is_some_and(|part| part.forgotten.latest() == Some(&true));
        if changed != Changed::Already || !is_forgotten {
            let (user_id, room_id) = (target.clone(), room_id.clone());
            commit.append(Stream::user(target), RoomForget { user_id, room_id });
        }
        Ok(changed)
    }
}

/// Forget a room that the user has left.
#[derive(Clone, Debug)]
pub struct ForgetRoom {
    pub user_id: OwnedUserId,
    pub room_id: OwnedRoomId,
}

impl Proposal for ForgetRoom {
    type Outcome = ();

    fn stream(&self) -> Stream {
        Stream::user(&self.user_id)
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<(), Refusal> {
        // Before the membership is read: a change in between is then a conflict.
        commit.rests_on(Stream::room(&self.room_id));
        let part = commit.env.state.memberships.part(&self.user_id, &self.room_id);
        let Some(part) = part else {
            return Err(Refusal::NotFound("You were never in this room.".to_owned()));
        };
        let membership = part.membership.latest();
        if matches!(membership, Some(Membership::Join | Membership::Invite | Membership::Knock)) {
            return Err(Refusal::StillInRoom);
        }
        if part.forgotten.latest() == Some(&true) {
            return Ok(());
        }
        commit.append(
            self.stream(),
            RoomForget { user_id: self.user_id.clone(), room_id: self.room_id.clone() },
        );
        Ok(())
    }
}
