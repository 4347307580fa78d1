//! Invites of users of other homeservers, and of users of this one by others (server-server API,
//! "Inviting to a room").

use std::sync::Arc;

use ruma::{
    CanonicalJsonObject, CanonicalJsonValue, EventId, OwnedEventId, OwnedRoomId, OwnedUserId,
    RoomId, RoomVersionId, ServerName, UserId, events::room::member::MembershipState,
};
use serde::{Deserialize, Serialize};
use serde_json::{json, value::RawValue};
use tracing::debug;

use super::{
    enter::{EnterError, EntryRequest, Version, bounded, seal, sent_to},
    pdu::{Pdu, PduError},
    receive::{PduReceiver, Verified},
};
use logcabin_base::{metrics::metrics, text::encoded};
use logcabin_decide::{
    Refusal,
    federation::{ReceiveOutcome, RemoteMembership, TemplateError, address_invite, invitation},
    is_local, may_be_invited,
    quota::InviteOverflow,
};
use logcabin_outside::federation::FederationRequest;
use logcabin_read::{events::as_shown, policy_server::policy_server, servers::admits};
use logcabin_record::{
    Offset, Origin, event_format::has_chosen_ids, lax_object::LaxObject,
    room_version::ROOM_VERSIONS,
};
use logcabin_state::{Membership, Room, usage::Invite};

/// An invite as it is sent, with events as they are.
#[derive(Serialize)]
struct Offer<'a> {
    room_version: &'a RoomVersionId,
    event: &'a LaxObject,
    invite_room_state: Vec<Box<RawValue>>,
}

#[derive(Deserialize)]
struct Invited {
    event: Box<RawValue>,
}

/// Who an event invites, and who does.
fn invited(object: &CanonicalJsonObject) -> Option<(OwnedUserId, OwnedUserId)> {
    let user = |name: &str| object.get(name)?.as_str()?.try_into().ok();
    Some((user("state_key")?, user("sender")?))
}

impl PduReceiver<'_> {
    /// Invites a user of another homeserver, by an event with this content. Returns its id.
    pub async fn invite(
        &self,
        room_id: &RoomId,
        user_id: &UserId,
        target: &UserId,
        content: CanonicalJsonObject,
    ) -> Result<OwnedEventId, EnterError> {
        let (env, now) = (self.engine.env(), self.engine.clock().timestamp());
        let template = invitation(&env, room_id, user_id, target, content, now);
        let (version, object) = template.map_err(|error| match error {
            TemplateError::Refused(refusal) => EnterError::NotRecorded(refusal.into()),
            _ => EnterError::NotRecorded(
                Refusal::Forbidden("You are not in this room.".to_owned()).into(),
            ),
        })?;
        self.offer(room_id, target.server_name(), &version, object).await
    }

    /// Gets the signature of an invited user's homeserver, and adds the invite to the room.
    async fn offer(
        &self,
        room_id: &RoomId,
        server: &ServerName,
        version: &RoomVersionId,
        object: CanonicalJsonObject,
    ) -> Result<OwnedEventId, EnterError> {
        let wrong =
            |error: &dyn std::fmt::Display| EnterError::Wrong(server.to_owned(), error.to_string());
        let mut signed = seal(&self.engine.env(), version, object).map_err(|why| wrong(&why))?;
        let room = self.room(room_id).map_err(|error| wrong(&error))?;
        let policy = policy_server(self.engine.events(), &room).map_err(|error| wrong(&error))?;
        if let Some(policy) = policy {
            let (servers, rules) = (&self.federation.policy, &room.rules.redaction);
            let signature = servers.signed(&policy, &signed.object, rules).await;
            let signature =
                signature.map_err(|why| EnterError::NotRecorded(Refusal::from(why).into()))?;
            policy.add(&mut signed.object, signature);
        }
        let state = self.shown_to_invitees(&room).map_err(|error| wrong(&error))?;
        let body = Offer { room_version: version, event: &signed.object, invite_room_state: state };
        let path = sent_to("invite", room_id, &signed.event_id);
        let invited: Invited = if has_chosen_ids(&room.rules) {
            let older = older(&body);
            let question = |version| match version {
                Version::First => FederationRequest::put(path(version), &older),
                Version::Second => FederationRequest::put(path(version), &body),
            };
            self.answer_to_either(server, question).await?.parts()?
        } else {
            self.asked(server, FederationRequest::put(path(Version::Second), &body)).await?
        };
        let object = Pdu::object(&invited.event).map_err(|error| wrong(&error))?;
        let pdu = Pdu::in_room(&room, object).map_err(|error| wrong(&error))?;
        // Its id does not depend on all of its content.
        if pdu.event_id != signed.event_id || !pdu.object.has_own_content() {
            return Err(wrong(&"it changed the invite"));
        }
        let mut event = self.verify(&room, pdu).await.map_err(|error| wrong(&error))?;
        event.relayed = true;
        let own = self.federation.client.own_name();
        self.accept(own, &room, event).await.map_err(|error| match error {
            PduError::NotRecorded(error) => error.into(),
            error => wrong(&error),
        })?;
        Ok(signed.event_id)
    }

    /// Turns the invitation of an address in a room of this homeserver into an invite, using what
    /// an identity server signed. The invited user belongs to another homeserver if the address was
    /// invited from here, or to this one if it was invited from elsewhere. Returns whether that
    /// changed anything.
    pub async fn invite_by_address(
        &self,
        room_id: &RoomId,
        target: &UserId,
        signed: &CanonicalJsonObject,
    ) -> Result<bool, EnterError> {
        let (env, now) = (self.engine.env(), self.engine.clock().timestamp());
        let invite = address_invite(&env, room_id, target, signed, now);
        let invite = invite.map_err(|error| match error {
            TemplateError::Refused(refusal) => EnterError::NotRecorded(refusal.into()),
            error => EnterError::NotRecorded(Refusal::NotFound(error.to_string()).into()),
        })?;
        let Some((version, object)) = invite else { return Ok(false) };
        if !is_local(&env.server, target) {
            self.offer(room_id, target.server_name(), &version, object).await?;
            return Ok(true);
        }
        // It needs no signature in the sender's name: the identity server's signature is enough.
        let own = self.federation.client.own_name();
        let wrong =
            |error: &dyn std::fmt::Display| EnterError::Wrong(own.to_owned(), error.to_string());
        let sealed = seal(&env, &version, object).map_err(|why| wrong(&why))?;
        let room = self.room(room_id).map_err(|error| wrong(&error))?;
        let pdu = Pdu::in_room(&room, sealed.object).map_err(|error| wrong(&error))?;
        let mut event = self.verify(&room, pdu).await.map_err(|error| wrong(&error))?;
        event.relayed = true;
        self.accept(own, &room, event).await.map_err(|error| match error {
            PduError::NotRecorded(error) => error.into(),
            error => wrong(&error),
        })?;
        Ok(true)
    }

    /// Asks the homeserver of `inviter`, who invited an address, to invite the user who owns the
    /// address: this homeserver is not in the room.
    pub async fn ask_for_invite(
        &self,
        room_id: &RoomId,
        inviter: &UserId,
        target: &UserId,
        signed: &CanonicalJsonObject,
    ) -> Result<(), EnterError> {
        let event = json!({
            "type": "m.room.member",
            "room_id": room_id,
            "sender": inviter,
            "state_key": target,
            "content": {
                "membership": "invite",
                // Only servers in the room know the name.
                "third_party_invite": { "display_name": "", "signed": signed },
            },
        });
        let room = encoded(room_id.as_str());
        let path = format!("/_matrix/federation/v1/exchange_third_party_invite/{room}");
        let question = FederationRequest::put(path, &event);
        self.asked::<serde::de::IgnoredAny>(inviter.server_name(), question).await?;
        Ok(())
    }

    /// The room state that an invited user is shown.
    fn shown_to_invitees(
        &self,
        room: &Room,
    ) -> Result<Vec<Box<RawValue>>, logcabin_log::ReadError> {
        let events = self.engine.events();
        let Some(tip) = room.last_event(Offset::MAX) else { return Ok(Vec::new()) };
        let Some(newest) = events.get(tip)? else { return Ok(Vec::new()) };
        let state = events.state_to_strip(room, &newest, Offset::MAX)?;
        Ok(state
            .into_iter()
            .map(|event| {
                let shown = as_shown(room, event, Offset::MAX);
                events.in_federation_format(room, &shown)
            })
            .collect())
    }

    /// Accepts an invite of a user of this homeserver. Returns the event with this server's
    /// signature added.
    pub async fn take_invite(
        &self,
        origin: &ServerName,
        room_id: OwnedRoomId,
        event_id: &EventId,
        version: RoomVersionId,
        raw: &RawValue,
        stripped: Vec<Box<RawValue>>,
    ) -> Result<LaxObject, PduError> {
        let form = |why: &str| PduError::Form(why.to_owned());
        let rules = version.rules().filter(|_| ROOM_VERSIONS.contains(&version));
        let rules = rules.ok_or_else(|| PduError::Version(version.clone()))?;
        let pdu = Pdu::new(room_id.clone(), Pdu::object(raw)?, &rules)?;
        if pdu.event_id != event_id || Pdu::room_of(&pdu.object)? != room_id {
            return Err(PduError::OtherEvent);
        }
        let text = |name: &str| pdu.object.get(name).and_then(CanonicalJsonValue::as_str);
        let content = pdu.object.get("content").and_then(CanonicalJsonValue::as_object);
        let membership = content.and_then(|content| content.get("membership"));
        let target = text("state_key").and_then(|key| <&UserId>::try_from(key).ok());
        let sender = text("sender").and_then(|sender| <&UserId>::try_from(sender).ok());
        let env = self.engine.env();
        let fits = text("type") == Some("m.room.member")
            && membership.and_then(CanonicalJsonValue::as_str)
                == Some(MembershipState::Invite.as_str())
            && target.is_some_and(|target| is_local(&env.server, target))
            && sender.is_some_and(|sender| sender.server_name() == origin);
        if !fits {
            return Err(form("it is not an invite of a user of this server"));
        }
        // Otherwise this server would sign an event id in its own or a third server's name.
        if has_chosen_ids(&rules) && event_id.server_name() != Some(origin) {
            return Err(form("its id is not one of its sender's homeserver"));
        }
        let known = self.engine.state().rooms.get(&room_id);
        let room = known.filter(|room| room.has_server(&env.server.name));
        let pdu = pdu.verified(&self.federation.keys, &rules).await?;
        let mut object = Pdu::object(&pdu)?;
        env.server
            .sign_event(&mut object, &rules.redaction)
            .map_err(|error| PduError::Form(error.to_string()))?;
        let pdu = object.to_raw().map_err(|error| PduError::Form(error.to_string()))?;
        if let Some(room) = room {
            if !admits(self.engine.events(), &room, origin).map_err(super::receive::read)? {
                return Err(PduError::AccessControl);
            }
            if let Some((user_id, inviter)) = invited(&object) {
                let may = may_be_invited(&env, &room_id, &user_id, &inviter);
                may.map_err(|refusal| PduError::NotRecorded(refusal.into()))?;
            }
            let event = Verified::new(room_id, event_id.to_owned(), pdu)?;
            self.accept(origin, &room, event).await?;
        } else {
            let invite = RemoteMembership {
                room_id,
                version,
                from: origin.to_owned(),
                event_id: event_id.to_owned(),
                pdu,
                stripped: bounded(stripped),
            };
            if let Some((user_id, inviter)) = invited(&object) {
                self.make_place(&user_id, &inviter).await;
            }
            let invited = self.engine.propose(Origin::server(), invite).await?;
            self.charged(origin, invited);
        }
        Ok(object)
    }

    /// Whether an event ends the invite or the knock of a user of this homeserver, which is not in
    /// the room.
    pub(super) fn is_withdrawal(&self, room: &Room, pdu: &Pdu) -> bool {
        let env = self.engine.env();
        if room.has_server(&env.server.name) {
            return false;
        }
        let text = |name: &str| pdu.object.get(name).and_then(CanonicalJsonValue::as_str);
        let content = pdu.object.get("content").and_then(CanonicalJsonValue::as_object);
        let membership = content.and_then(|content| content.get("membership")?.as_str());
        let target = text("state_key").and_then(|key| <&UserId>::try_from(key).ok());
        let now = target.and_then(|target| room.membership(target, Offset::MAX));
        text("type") == Some("m.room.member")
            && matches!(membership, Some("leave" | "ban"))
            && text("sender") != text("state_key")
            && target.is_some_and(|target| is_local(&env.server, target))
            && now.is_some_and(|(_, now)| matches!(now, Membership::Invite | Membership::Knock))
    }

    /// Ends the invite or the knock of a user of this homeserver, if `origin` may do so.
    pub(super) async fn withdraw(
        &self,
        origin: &ServerName,
        room: &Room,
        pdu: Pdu,
    ) -> Result<ReceiveOutcome, PduError> {
        let event_id = pdu.event_id.clone();
        let pdu = pdu.verified(&self.federation.keys, &room.rules).await?;
        let withdrawal = RemoteMembership {
            room_id: room.id.clone(),
            version: room.version.clone(),
            from: origin.to_owned(),
            event_id,
            pdu,
            stripped: Vec::new(),
        };
        self.engine.propose(Origin::server(), withdrawal).await?.into_inner();
        Ok(ReceiveOutcome::Accepted)
    }

    /// Rejects the oldest invite by a stranger, if too many are pending to accept a new one. The
    /// user's clients see it vanish; its homeserver, which may send any number, is not told.
    async fn make_place(&self, user_id: &UserId, inviter: &UserId) {
        let env = self.engine.env();
        let crowd = env.quotas.crowd(&env.state, &env.server.name, user_id, inviter);
        let Some(crowd) = crowd else { return };
        let Some(room_id) = self.oldest_to_give_way(user_id, inviter, crowd) else { return };
        let wish = EntryRequest { room_id: &room_id, user_id, reason: None };
        match self.leave_alone(wish).await {
            Ok(()) => metrics().federation_dropped.with_label_values(&["invite"]).inc(),
            Err(error) => debug!(%user_id, %error, "an old invite stays"),
        }
    }

    /// The room of the oldest of these invites of a user by somebody with whom the user shares no
    /// room. It is from a homeserver with the most such invites, so homeservers with few keep
    /// theirs.
    ///
    /// If there is none, the homeservers share the space: a homeserver in a public room shares a
    /// room with everybody there, and may have any number of users.
    fn oldest_to_give_way(
        &self,
        user_id: &UserId,
        inviter: &UserId,
        crowd: InviteOverflow,
    ) -> Option<OwnedRoomId> {
        let (state, own) = (self.engine.state(), &self.engine.env().server.name);
        let mut invites = state.usage.invites_by_age(user_id);
        invites.retain(|(room_id, invite)| {
            let is_outside = |room: Arc<Room>| !room.has_server(own);
            !invite.is_from(own) && state.rooms.get(room_id).is_some_and(is_outside)
        });
        let is_by_stranger = |(_, invite): &&(OwnedRoomId, Invite)| {
            let event = self.engine.events().get(invite.at).ok().flatten();
            event.is_some_and(|event| {
                !state.memberships.share_a_room(user_id, &event.sender, Offset::MAX)
            })
        };
        let strange: Vec<_> = invites.iter().filter(is_by_stranger).cloned().collect();
        let server = inviter.server_name();
        match crowd {
            InviteOverflow::OfOne => strange.into_iter().find(|(_, of)| of.is_from(server)),
            InviteOverflow::OfAll if !strange.is_empty() => oldest_of_most(strange, 0),
            InviteOverflow::OfAll
                if !state.memberships.share_a_room(user_id, inviter, Offset::MAX) =>
            {
                None
            }
            InviteOverflow::OfAll => {
                let own = invites.iter().filter(|(_, of)| of.is_from(server)).count();
                oldest_of_most(invites, own + 1)
            }
        }
        .map(|(room_id, _)| room_id)
    }
}

/// An invite as the first version of its endpoint takes it, which is for rooms of versions 1 and 2.
fn older(offer: &Offer<'_>) -> LaxObject {
    let state = json!({ "invite_room_state": offer.invite_room_state });
    let mut event = offer.event.clone();
    if let Ok(unsigned) = LaxObject::parse(&state.to_string()) {
        event.insert_object("unsigned", unsigned);
    }
    event
}

/// The oldest of the invites from the homeserver that has most of these, if it has more than this.
fn oldest_of_most(
    invites: Vec<(OwnedRoomId, Invite)>,
    more_than: usize,
) -> Option<(OwnedRoomId, Invite)> {
    let count =
        |one: &Invite| invites.iter().filter(|(_, other)| other.is_from_that_of(one)).count();
    let counted = invites.iter().map(|(_, of)| (count(of), *of));
    let (_, most) = counted.filter(|of| of.0 > more_than).max_by_key(|of| of.0)?;
    invites.into_iter().find(|(_, of)| of.is_from_that_of(&most))
}
