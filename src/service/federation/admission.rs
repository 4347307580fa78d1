//! What requests of another homeserver cost on its account, counted before any part of them is
//! accepted: see [`Accounts`](super::Accounts).

use std::{
    borrow::Cow,
    collections::{BTreeMap, HashSet},
    time::Duration,
};

use ruma::{ServerName, UserId, serde::Raw};
use serde::{Deserialize, de::IgnoredAny};
use serde_json::value::RawValue;

use super::{
    memory::{Amounts, Kind},
    receive::{PduReceiver, Verified},
};
use logcabin_base::{background::at_length, limits};
use logcabin_decide::is_local;
use logcabin_engine::Durable;
use logcabin_record::Offset;
use logcabin_state::{Membership, Room, State};

/// The parts of an event that count. What lacks them is refused later, and counts as an event.
#[derive(Deserialize)]
struct EventSketch<'a> {
    #[serde(borrow)]
    sender: Cow<'a, str>,
    #[serde(borrow, rename = "type")]
    event_type: Cow<'a, str>,
    #[serde(borrow)]
    content: &'a RawValue,
}

#[derive(Deserialize)]
struct EduSketch<'a> {
    #[serde(borrow)]
    edu_type: Cow<'a, str>,
    #[serde(borrow)]
    content: &'a RawValue,
}

#[derive(Deserialize)]
struct ToDeviceSketch<'a> {
    #[serde(borrow)]
    sender: Cow<'a, str>,
    #[serde(borrow)]
    messages: BTreeMap<Cow<'a, str>, IgnoredAny>,
}

#[derive(Deserialize)]
struct MemberSketch<'a> {
    #[serde(borrow)]
    membership: Cow<'a, str>,
}

/// The amounts in a transaction.
#[derive(Default)]
struct TransactionCost<'a> {
    events: u64,
    knocks: u64,
    letters: u64,
    device_lists: u64,
    edus: u64,
    new_users: HashSet<Cow<'a, str>>,
}

impl<'a> TransactionCost<'a> {
    fn add_event(&mut self, state: &State, raw: &'a RawValue) {
        self.events += 1;
        let Ok(event) = serde_json::from_str::<EventSketch<'a>>(raw.get()) else { return };
        if event.event_type == "m.room.member"
            && serde_json::from_str::<MemberSketch<'_>>(event.content.get())
                .is_ok_and(|content| content.membership == "knock")
        {
            self.knocks += 1;
        }
        self.add_sender(state, event.sender);
    }

    /// Returns whether it is presence.
    fn add_edu(&mut self, receiving: &PduReceiver<'_>, state: &State, raw: &'a RawValue) -> bool {
        let Ok(edu) = serde_json::from_str::<EduSketch<'a>>(raw.get()) else {
            self.edus += 1;
            return false;
        };
        match &*edu.edu_type {
            "m.direct_to_device" => self.add_letters(receiving, state, edu.content),
            "m.device_list_update" | "m.signing_key_update" => self.device_lists += 1,
            _ => self.edus += 1,
        }
        edu.edu_type == "m.presence"
    }

    fn add_letters(&mut self, receiving: &PduReceiver<'_>, state: &State, content: &'a RawValue) {
        let Ok(letter) = serde_json::from_str::<ToDeviceSketch<'a>>(content.get()) else {
            self.edus += 1;
            return;
        };
        let sender = <&UserId>::try_from(&*letter.sender).ok();
        let own = &receiving.engine.env().server;
        let strange = letter.messages.keys().filter(|user_id| {
            let user_id = <&UserId>::try_from(&***user_id).ok();
            let user_id = user_id.filter(|user_id| is_local(own, user_id));
            let is_there = user_id.is_some_and(|user_id| state.accounts.contains(user_id));
            is_there
                && user_id.zip(sender).is_none_or(|(user_id, sender)| {
                    !state.memberships.share_a_room(user_id, sender, Offset::MAX)
                })
        });
        self.letters += strange.count() as u64;
        // Messages for nobody are counted by themselves.
        self.edus += 1;
        self.add_sender(state, letter.sender);
    }

    fn add_sender(&mut self, state: &State, sender: Cow<'a, str>) {
        let is_known =
            <&UserId>::try_from(&*sender).is_ok_and(|sender| state.memberships.count(sender) > 0);
        if !is_known {
            self.new_users.insert(sender);
        }
    }

    fn amounts(&self) -> Amounts {
        let all = [
            (Kind::Event, self.events),
            (Kind::Knock, self.knocks),
            (Kind::Letter, self.letters),
            (Kind::DeviceList, self.device_lists),
            (Kind::Edu, self.edus),
            (Kind::NewUser, self.new_users.len() as u64),
        ];
        all.into_iter().filter(|(_, amount)| *amount > 0).collect()
    }
}

impl PduReceiver<'_> {
    /// Admits a transaction as a whole. Returns the places of the EDUs that are presence.
    ///
    /// # Errors
    /// How long to wait: nothing of it was accepted, and the same transaction is admitted then.
    pub fn admit<E>(
        &self,
        origin: &ServerName,
        pdus: &[Box<RawValue>],
        edus: &[Raw<E>],
    ) -> Result<HashSet<usize>, Duration> {
        let raws = pdus.iter().map(|pdu| &**pdu).chain(edus.iter().map(Raw::json));
        let is_large = raws.map(|raw| raw.get().len()).sum::<usize>() > limits::COUNTED_BYTES;
        let count = || {
            let (state, mut counted) = (self.engine.state(), TransactionCost::default());
            for pdu in pdus {
                counted.add_event(&state, pdu);
            }
            let edus = edus.iter().enumerate();
            let presence = edus.filter(|(_, edu)| counted.add_edu(self, &state, edu.json()));
            let presence: HashSet<usize> = presence.map(|(place, _)| place).collect();
            (counted.amounts(), presence)
        };
        let (amounts, presence) = if is_large { at_length(count) } else { count() };
        self.federation.accounts.admit(origin, &amounts)?;
        Ok(presence)
    }

    /// Admits an invite.
    ///
    /// # Errors
    /// How long to wait.
    pub fn admit_invite(&self, origin: &ServerName) -> Result<(), Duration> {
        self.federation.accounts.admit(origin, &[(Kind::Invite, 1)])
    }

    /// Admits a membership event of a user of `origin` that this homeserver adds to a room.
    ///
    /// # Errors
    /// How long to wait.
    pub fn admit_member(
        &self,
        room: &Room,
        origin: &ServerName,
        user_id: &UserId,
        is_knock: bool,
    ) -> Result<(), Duration> {
        let is_new = self.engine.state().memberships.count(user_id) == 0;
        let mut amounts = Amounts::new();
        amounts.extend(is_new.then_some((Kind::NewUser, 1)));
        amounts.extend(is_knock.then_some((Kind::Knock, 1)));
        self.federation.accounts.admit(origin, &amounts)?;
        if is_knock { self.admit_knock(room, origin, user_id) } else { Ok(()) }
    }

    /// Admits a knock on a room: each leaves a member in its state, whose number is bounded even
    /// if nothing else is.
    fn admit_knock(
        &self,
        room: &Room,
        origin: &ServerName,
        user_id: &UserId,
    ) -> Result<(), Duration> {
        let now = room.membership(user_id, Offset::MAX);
        if now.is_some_and(|(_, membership)| membership == Membership::Knock) {
            return Ok(());
        }
        let own = &self.engine.env().server.name;
        let pending = at_length(|| room.members(Membership::Knock, Offset::MAX));
        let remote = pending.iter().filter(|(user_id, _)| user_id.server_name() != own);
        let of_origin = pending.iter().filter(|(user_id, _)| user_id.server_name() == origin);
        let (of_one, of_all) = limits::ROOM_KNOCKS;
        if of_origin.count() >= of_one || remote.count() >= of_all {
            return Err(limits::ROOM_KNOCKS_AGAIN);
        }
        if !self.federation.accounts.is_enabled() {
            return Ok(());
        }
        self.federation.knocks.take(&room.id, origin)
    }

    /// The relation of a homeserver to this one has changed.
    pub fn reassess(&self, server: &ServerName) {
        self.federation.accounts.reassess(server);
    }

    /// Charges events that are recorded because an event of a homeserver depends on them.
    pub(super) fn charge_events(&self, origin: &ServerName, events: &[Verified]) {
        let bytes = events.iter().map(|event| event.pdu.get().len() as u64).sum();
        self.federation.accounts.charge_bytes(origin, Kind::Recorded, bytes);
    }

    /// Charges what was recorded for a homeserver, and gives the outcome.
    pub(super) fn charged<T>(&self, origin: &ServerName, done: Durable<T>) -> T {
        self.federation.accounts.charge_bytes(origin, Kind::Recorded, done.bytes());
        done.into_inner()
    }
}
