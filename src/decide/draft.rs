//! A room with the events that a turn is about to add.

use std::{
    cmp::Reverse,
    collections::HashMap,
    sync::{Arc, OnceLock},
};

use ruma::{
    CanonicalJsonObject, CanonicalJsonValue, EventId, Int, MilliSecondsSinceUnixEpoch,
    OwnedEventId, OwnedRoomId, OwnedUserId, RoomVersionId, UserId,
    events::{StateEventType, TimelineEventType},
    room_version_rules::RoomVersionRules,
    state_res::{
        auth_types_for_event, check_state_dependent_auth_rules, check_state_independent_auth_rules,
        events::RoomPowerLevelsIntField,
    },
};

use super::{Env, Refusal, is_local, not_in_it, permits, powers::Powers};
use logcabin_base::{
    limits,
    planted::{self, Fault},
};
use logcabin_read::events::{EventRef, StoredEvent, as_shown};
use logcabin_record::{
    Offset,
    command::{RoomEvent, Transaction},
    event_format::{has_chosen_ids, references},
    lax_object::LaxObject,
};
use logcabin_state::{Membership, Room, rooms::Tip};

/// An event that has no place in the room yet.
#[derive(Clone, Debug)]
pub struct NewEvent {
    pub event_type: TimelineEventType,
    /// The state key, for a state event.
    pub state_key: Option<String>,
    pub content: LaxObject,
    pub sender: OwnedUserId,
    /// The time, by the server's clock.
    pub ts: MilliSecondsSinceUnixEpoch,
    /// For a redaction: the event that it redacts, and its offset.
    pub redacts: Option<(OwnedEventId, Offset)>,
    /// The transaction that sends it.
    pub transaction: Option<Transaction>,
}

impl NewEvent {
    /// A state event with an empty state key unless [`NewEvent::state_key`] is set afterwards.
    pub fn state(
        event_type: TimelineEventType,
        state_key: impl Into<String>,
        content: impl Into<LaxObject>,
        sender: &UserId,
        ts: MilliSecondsSinceUnixEpoch,
    ) -> Self {
        Self {
            event_type,
            state_key: Some(state_key.into()),
            content: content.into(),
            sender: sender.to_owned(),
            ts,
            redacts: None,
            transaction: None,
        }
    }
}

/// A room with additional events that are not in the log yet.
#[derive(Debug)]
pub struct RoomDraft {
    room_id: Option<OwnedRoomId>,
    version: RoomVersionId,
    rules: RoomVersionRules,
    base: Option<Arc<Room>>,
    added: Vec<Added>,
    state: HashMap<(StateEventType, String), EventRef>,
    /// The forward extremities.
    tips: Vec<Tip>,
}

/// An event that is not in the log yet.
#[derive(Debug)]
struct Added {
    body: RoomEvent,
    /// Read from the body when it is first needed.
    event: OnceLock<Option<EventRef>>,
}

impl Added {
    fn event(&self) -> Option<&EventRef> {
        let read = || StoredEvent::new(Offset::ZERO, self.body.clone()).ok().map(Arc::new);
        self.event.get_or_init(read).as_ref()
    }
}

/// A state of a draft to return to.
#[derive(Debug)]
pub(super) struct Mark {
    added: usize,
    tips: Vec<Tip>,
}

impl RoomDraft {
    /// A draft of an existing room.
    pub(super) fn of(room: Arc<Room>) -> Self {
        Self {
            room_id: Some(room.id.clone()),
            version: room.version.clone(),
            rules: room.rules.clone(),
            tips: room.extremities(),
            base: Some(room),
            added: Vec::new(),
            state: HashMap::new(),
        }
    }

    /// A draft of a new room. `room_id` is `None` for versions that derive the id from the create
    /// event.
    pub(super) fn new(
        room_id: Option<OwnedRoomId>,
        version: RoomVersionId,
        rules: RoomVersionRules,
    ) -> Self {
        Self {
            room_id,
            version,
            rules,
            base: None,
            added: Vec::new(),
            state: HashMap::new(),
            tips: Vec::new(),
        }
    }

    pub(super) fn mark(&self) -> Mark {
        Mark { added: self.added.len(), tips: self.tips.clone() }
    }

    pub(super) fn rewind(&mut self, mark: &Mark) {
        self.added.truncate(mark.added);
        self.tips.clone_from(&mark.tips);
        self.state.clear();
        let added: Vec<_> = self.added.iter().filter_map(Added::event).cloned().collect();
        for event in added {
            self.note_state(&event);
        }
    }

    /// The room's id, once it is known.
    pub fn room_id(&self) -> Option<&OwnedRoomId> {
        self.room_id.as_ref()
    }

    pub fn version(&self) -> &RoomVersionId {
        &self.version
    }

    pub fn rules(&self) -> &RoomVersionRules {
        &self.rules
    }

    /// The state event of this key.
    pub fn state_event(
        &self,
        env: &Env,
        event_type: &StateEventType,
        state_key: &str,
    ) -> Result<Option<EventRef>, Refusal> {
        if !self.state.is_empty() {
            let key = (event_type.clone(), state_key.to_owned());
            if let Some(event) = self.state.get(&key) {
                return Ok(Some(Arc::clone(event)));
            }
        }
        let Some(room) = &self.base else { return Ok(None) };
        match room.state_event(event_type, state_key, Offset::MAX) {
            // A redaction takes effect at once, before the content has left the log.
            Some(offset) => {
                let event = env.events.get(offset)?;
                Ok(event.map(|event| as_shown(room, event, Offset::MAX)))
            }
            None => Ok(None),
        }
    }

    /// The additional events, which are not in the log yet.
    pub fn added(&self) -> impl Iterator<Item = &EventRef> {
        self.added.iter().filter_map(Added::event)
    }

    /// The content of the state event of this key, without redacted parts.
    pub fn shown_content(
        &self,
        env: &Env,
        event_type: &StateEventType,
        state_key: &str,
    ) -> Result<Option<CanonicalJsonObject>, Refusal> {
        let event = self.state_event(env, event_type, state_key)?;
        let event = match (&self.base, event) {
            // An event of the commit itself has no offset yet, and no redaction.
            (Some(room), Some(event)) => Some(as_shown(room, event, Offset::MAX)),
            (None, event) => event,
            (_, None) => None,
        };
        Ok(event.and_then(|event| event.content_as().ok()))
    }

    /// The membership of a user.
    pub fn membership(&self, env: &Env, user_id: &UserId) -> Result<Option<Membership>, Refusal> {
        #[derive(serde::Deserialize)]
        struct Content {
            membership: ruma::events::room::member::MembershipState,
        }
        let event = self.state_event(env, &StateEventType::RoomMember, user_id.as_str())?;
        let content = event.and_then(|event| event.content_as::<Content>().ok());
        Ok(content.and_then(|content| Membership::from_ruma(&content.membership)))
    }

    /// The present powers in the room.
    pub fn powers(&self, env: &Env) -> Result<Powers<'_>, Refusal> {
        let create = self.state_event(env, &StateEventType::RoomCreate, "")?;
        let levels = self.state_event(env, &StateEventType::RoomPowerLevels, "")?;
        Ok(Powers::new(&self.rules.authorization, create, levels))
    }

    /// A joined local user who may invite, for joins that one of them must authorise.
    pub(crate) fn someone_who_may_invite(&self, env: &Env) -> Result<Option<OwnedUserId>, Refusal> {
        let Some(room) = &self.base else { return Ok(None) };
        let powers = self.powers(env)?;
        let may = |user_id: &OwnedUserId| {
            is_local(&env.server, user_id)
                && powers.has_level(user_id, RoomPowerLevelsIntField::Invite)
        };
        // Users with a level of their own come first: they are few, and likely to be able to.
        let joined = |user_id: &OwnedUserId| room.is_joined(user_id, Offset::MAX);
        if let Some(user_id) = powers.named().into_iter().find(|id| joined(id) && may(id)) {
            return Ok(Some(user_id));
        }
        let members = room.members(Membership::Join, Offset::MAX).into_iter();
        Ok(members.map(|(user_id, _)| user_id).find(may))
    }

    /// The joined local users who have the power level for this by name, the most powerful first.
    pub(crate) fn named_with(
        &self,
        env: &Env,
        field: RoomPowerLevelsIntField,
    ) -> Result<Vec<OwnedUserId>, Refusal> {
        let Some(room) = &self.base else { return Ok(Vec::new()) };
        let powers = self.powers(env)?;
        let mut found = powers.named();
        found.retain(|user_id| {
            is_local(&env.server, user_id)
                && powers.has_level(user_id, field)
                && room.is_joined(user_id, Offset::MAX)
        });
        found.sort_by_key(|user_id| Reverse(powers.level(user_id)));
        Ok(found)
    }

    /// The depth of the next event. An event of the greatest depth does not keep others from
    /// sending more.
    fn depth(&self) -> u64 {
        let deepest = self.tips.iter().map(|tip| tip.depth).max().unwrap_or(0);
        deepest.saturating_add(1).min(limits::EVENT_DEPTH)
    }

    /// The event as a user of another homeserver may send it here, without hashes.
    pub(super) fn template(
        &self,
        env: &Env,
        new: &NewEvent,
    ) -> Result<CanonicalJsonObject, Refusal> {
        check_lengths(new)?;
        let auth_events = self.auth_events(env, new)?;
        let mut pdu = self.pdu(env, new, &auth_events)?;
        pdu.choose_id(&env.server.name, &self.rules);
        let bad = |error: &dyn std::fmt::Display| Refusal::BadJson(error.to_string());
        let event_id = pdu.event_id(&self.rules).map_err(|error| bad(&error))?;
        let body = RoomEvent::new(
            self.room_id.clone().ok_or_else(not_in_it)?,
            event_id,
            pdu.to_raw().map_err(|error| bad(&error))?,
        );
        let event = StoredEvent::new(Offset::ZERO, body).map_err(|error| bad(&error))?;
        self.authorise(env, &Arc::new(event))?;
        // The server that signs it chooses its id.
        pdu.remove("event_id");
        Ok(pdu.into_strict())
    }

    /// Builds the event on the room's extremities, hashes it, authorises it, and adds it.
    pub(super) fn add(&mut self, env: &Env, new: NewEvent) -> Result<RoomEvent, Refusal> {
        check_lengths(&new)?;
        let is_create = self.tips.is_empty();
        let key = self.permit_key(&new);
        let permit = key.as_ref().and_then(|key| env.permits.get(key));
        let auth_events = match &permit {
            Some(auth_events) => auth_events.to_vec(),
            None => self.auth_events(env, &new)?,
        };
        let mut pdu = self.pdu(env, &new, &auth_events)?;
        if pdu.has_odd_numbers() && self.rules.authorization.strict_canonical_json {
            let message = "In this room, numbers have to be integers between -2^53 and 2^53.";
            return Err(Refusal::BadJson(message.to_owned()));
        }
        let no_hash = |error| Refusal::TooLarge(format!("The event cannot be hashed: {error}"));
        pdu.choose_id(&env.server.name, &self.rules);
        pdu.add_content_hash().map_err(no_hash)?;
        let event_id = pdu.event_id(&self.rules).map_err(no_hash)?;
        let pdu = pdu
            .to_raw()
            .map_err(|error| Refusal::BadJson(format!("Not canonical JSON: {error}")))?;
        // The limit is for the event as another server gets it.
        let length = pdu.get().len() + env.server.signature_bytes();
        if length > limits::EVENT_BYTES {
            return Err(Refusal::TooLarge(format!(
                "The event takes {length} bytes, {} are allowed.",
                limits::EVENT_BYTES
            )));
        }
        let room_id = match &self.room_id {
            Some(room_id) => room_id.clone(),
            None => OwnedRoomId::try_from(format!("!{}", event_id.localpart()))
                .map_err(|error| Refusal::BadJson(error.to_string()))?,
        };
        let depth = self.depth();
        let body = RoomEvent {
            room_id: room_id.clone(),
            event_id: event_id.clone(),
            room_version: is_create.then(|| self.version.clone()),
            transaction: new.transaction,
            redacts: new.redacts.map(|(_, offset)| offset),
            delay_id: None,
            received: None,
            pdu,
        };
        let added = Added { body: body.clone(), event: OnceLock::new() };
        if permit.is_none() {
            let event = StoredEvent::new(Offset::ZERO, body.clone())
                .map_err(|error| Refusal::BadJson(error.to_string()))?;
            let event = Arc::new(event);
            self.authorise(env, &event)?;
            if let Some(key) = key {
                env.permits.give(key, &auth_events);
            }
            self.note_state(&event);
            let _ = added.event.set(Some(event));
        }
        self.room_id = Some(room_id);
        self.tips = vec![Tip { event_id, depth }];
        self.added.push(added);
        Ok(body)
    }

    /// What the authorisation of an event depends on, if that is the present state alone.
    fn permit_key(&self, new: &NewEvent) -> Option<permits::Key> {
        let room = self.base.as_ref()?;
        if new.state_key.is_some() || permits::has_own_rules(&new.event_type) {
            return None;
        }
        // State that this commit adds has no offset yet.
        if !self.state.is_empty() {
            return None;
        }
        let standing =
            |event_type, state_key: &str| room.state_event(&event_type, state_key, Offset::MAX);
        let key = permits::Key {
            create: standing(StateEventType::RoomCreate, "")?,
            levels: standing(StateEventType::RoomPowerLevels, ""),
            member: standing(StateEventType::RoomMember, new.sender.as_str())?,
            event_type: new.event_type.clone(),
        };
        // A redaction removes some of the content that the rules look at.
        let of = [Some(key.create), key.levels, Some(key.member)];
        let is_redacted = |event: Offset| room.redaction_of(event, Offset::MAX).is_some();
        (!of.into_iter().flatten().any(is_redacted)).then_some(key)
    }

    fn note_state(&mut self, event: &EventRef) {
        if let Some((event_type, state_key)) = event.key() {
            self.state.insert((event_type, state_key.into_string()), Arc::clone(event));
        }
    }

    fn pdu(
        &self,
        env: &Env,
        new: &NewEvent,
        auth_events: &[OwnedEventId],
    ) -> Result<LaxObject, Refusal> {
        let text = |text: &str| CanonicalJsonValue::String(text.to_owned());
        let depth = Int::try_from(self.depth())
            .map_err(|_| Refusal::Forbidden("The room accepts no more events.".to_owned()))?;
        let ts = Int::try_from(u64::from(new.ts.get()))
            .map_err(|_| Refusal::BadJson("The time is out of range.".to_owned()))?;

        let mut pdu = LaxObject::default();
        pdu.insert("type".to_owned(), text(&new.event_type.to_string()));
        pdu.insert("sender".to_owned(), text(new.sender.as_str()));
        pdu.insert("origin_server_ts".to_owned(), CanonicalJsonValue::Integer(ts));
        pdu.insert_object("content", new.content.clone());
        pdu.insert("depth".to_owned(), CanonicalJsonValue::Integer(depth));
        if let Some(room_id) = &self.room_id {
            pdu.insert("room_id".to_owned(), text(room_id.as_str()));
        }
        if let Some(state_key) = &new.state_key {
            pdu.insert("state_key".to_owned(), text(state_key));
        }
        if let Some((redacts, _)) = &new.redacts
            && !self.rules.redaction.content_field_redacts
        {
            pdu.insert("redacts".to_owned(), text(redacts.as_str()));
        }
        let prev = self.references(env, self.tips.iter().map(|tip| &*tip.event_id))?;
        pdu.insert("prev_events".to_owned(), prev);
        let auth = self.references(env, auth_events.iter().map(|event_id| &**event_id))?;
        pdu.insert("auth_events".to_owned(), auth);
        Ok(pdu)
    }

    /// A list of events as the room's format names them.
    fn references<'e>(
        &self,
        env: &Env,
        events: impl Iterator<Item = &'e EventId>,
    ) -> Result<CanonicalJsonValue, Refusal> {
        if !has_chosen_ids(&self.rules) {
            return Ok(references(events.map(|event_id| (event_id, None)), &self.rules));
        }
        let mut named = Vec::new();
        for event_id in events {
            let event = self.event(env, event_id)?;
            // The hash of an expired event cannot be computed any more.
            let hash = event.and_then(|event| {
                LaxObject::parse(event.pdu.get()).ok()?.reference_hash(&self.rules).ok()
            });
            named.push((event_id, hash));
        }
        Ok(references(named, &self.rules))
    }

    /// The event of this id.
    fn event(&self, env: &Env, event_id: &EventId) -> Result<Option<EventRef>, Refusal> {
        let added = self.added().find(|event| event.event_id == event_id);
        match (added, &self.base) {
            (Some(added), _) => Ok(Some(Arc::clone(added))),
            (None, Some(room)) => Ok(env.events.find_known(&env.state, room, event_id)?),
            (None, None) => Ok(None),
        }
    }

    fn auth_events(&self, env: &Env, new: &NewEvent) -> Result<Vec<OwnedEventId>, Refusal> {
        let content = logcabin_read::events::to_raw(&new.content);
        let types = auth_types_for_event(
            &new.event_type,
            &new.sender,
            new.state_key.as_deref(),
            &content,
            &self.rules.authorization,
        )
        .map_err(Refusal::BadJson)?;
        let mut ids = Vec::with_capacity(types.len());
        for (event_type, state_key) in types {
            let event = self.state_event(env, &event_type, &state_key)?;
            ids.extend(event.map(|event| event.event_id.clone()));
        }
        Ok(ids)
    }

    fn authorise(&self, env: &Env, event: &EventRef) -> Result<(), Refusal> {
        let rules = &self.rules.authorization;
        // The rules call closures that cannot fail, so a failed read is stored and reported
        // afterwards.
        let failed = std::cell::RefCell::new(None);
        let keep = |result: Result<Option<EventRef>, Refusal>| {
            result.unwrap_or_else(|refusal| {
                *failed.borrow_mut() = Some(refusal);
                None
            })
        };
        let by_id = |event_id: &EventId| keep(self.event(env, event_id));
        let by_key = |event_type: &StateEventType, state_key: &str| {
            keep(self.state_event(env, event_type, state_key))
        };
        let allowed = check_state_independent_auth_rules(rules, event, by_id)
            .and_then(|()| check_state_dependent_auth_rules(rules, event, by_key));
        if let Some(refusal) = failed.into_inner() {
            return Err(refusal);
        }
        if planted::has(Fault::RulesNotChecked) {
            return Ok(());
        }
        allowed.map_err(|reason| Refusal::Forbidden(sentence(&reason)))
    }
}

/// The limits of single fields (client-server API, "Size limits").
fn check_lengths(new: &NewEvent) -> Result<(), Refusal> {
    let event_type = new.event_type.to_string();
    let fields = [
        ("type", event_type.as_str()),
        ("state_key", new.state_key.as_deref().unwrap_or_default()),
        ("sender", new.sender.as_str()),
    ];
    for (field, value) in fields {
        if value.len() > limits::EVENT_FIELD_BYTES {
            return Err(Refusal::TooLarge(format!(
                "`{field}` takes {} bytes, {} are allowed.",
                value.len(),
                limits::EVENT_FIELD_BYTES
            )));
        }
    }
    if event_type.is_empty() {
        return Err(Refusal::InvalidParam("An event needs a type.".to_owned()));
    }
    Ok(())
}

/// Turns a rule's reason into a sentence.
fn sentence(reason: &str) -> String {
    let mut chars = reason.chars();
    let first = chars.next().map(|first| first.to_uppercase().to_string()).unwrap_or_default();
    format!("{first}{}.", chars.as_str().trim_end_matches('.'))
}
