//! What users do besides sending messages.

use std::{cell::RefCell, collections::BTreeSet, rc::Rc, time::Duration};

use http::Method;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::{
    http::Client,
    ledger::now,
    promises::{News, Standing},
    user::{User, encoded, list},
};

/// Users whose devices are to be asked for.
pub(crate) type Outdated = RefCell<BTreeSet<usize>>;

impl User {
    /// Redacts a message: an own one, or, in the room that this user made, any.
    pub(crate) async fn redact(&self, room: &str, action: usize) {
        let own_room = self.crowd.ledger.maker(room) == Some(self.number);
        let sent = self.crowd.ledger.sent_in(room);
        // Others' messages may not have come here yet.
        let has_seen = |id: &str| self.crowd.ledger.has_seen(self.number, room, id);
        let may =
            sent.into_iter().filter(|(by, id)| *by == self.number || (own_room && has_seen(id)));
        let may: Vec<_> = may.collect();
        let Some((_, event_id)) = self.dice.pick(&may) else { return };
        self.crowd.promises.redacting(event_id);
        let audience = self.crowd.ledger.audience(room);
        let path = format!("v3/rooms/{}/redact/{}/r{action}", encoded(room), encoded(event_id));
        let answer = self.done(Method::PUT, &path, Some(&json!({}))).await;
        let redaction = answer.text("/event_id").unwrap_or_default();
        self.note(&format!("has redacted {event_id} by {redaction}"));
        let text = format!("redaction {action} of {}", self.name());
        self.crowd.ledger.sent(room, redaction, text, audience);
        self.crowd.promises.redacted(room, event_id);
    }

    /// Nobody may see what was redacted.
    pub(crate) async fn look_for_redacted(&self) {
        for (room, event_id) in self.crowd.promises.all_redacted() {
            let path = format!("v3/rooms/{}/event/{}", encoded(&room), encoded(&event_id));
            let answer = self.done(Method::GET, &path, None).await;
            if answer.body["content"] != json!({}) {
                let how = format!("{} gets {}", self.name(), answer.body);
                self.crowd.story.broken("what was redacted is shown to nobody", &how);
            }
        }
    }

    /// Has read up to one of the last events, or the last one.
    pub(crate) async fn read(&self, room: &str, is_last: bool) {
        let seen = self.crowd.ledger.seen(self.number, room);
        let back = if is_last { 0 } else { self.dice.below(10) };
        let Some(event_id) = seen.iter().rev().nth(back) else { return };
        let path = format!("v3/rooms/{}/receipt/m.read/{}", encoded(room), encoded(event_id));
        self.done(Method::POST, &path, Some(&json!({}))).await;
    }

    /// All others must know that this user has read all.
    pub(crate) fn check_reads(&self) {
        let own = &self.crowd.user_ids[self.number];
        for room in self.crowd.ledger.rooms() {
            let Some(last) = self.crowd.ledger.seen(self.number, &room).pop() else { continue };
            for other in self.crowd.ledger.members(&room) {
                let place = self.crowd.ledger.place(other, &room, &last);
                if place > self.crowd.promises.read(other, &room, own) {
                    let how = format!("that of {own} in {room} at user {other}");
                    self.crowd.story.broken("receipts arrive", &how);
                }
            }
        }
    }

    pub(crate) async fn begin_typing(&self, room: &str) {
        let own = encoded(&self.crowd.user_ids[self.number]);
        let path = format!("v3/rooms/{}/typing/{own}", encoded(room));
        let body = json!({ "typing": true, "timeout": 1_000 + self.dice.below(20_000) });
        self.done(Method::PUT, &path, Some(&body)).await;
    }

    pub(crate) async fn set_account_data(&self, action: usize) {
        let own = encoded(&self.crowd.user_ids[self.number]);
        let path = format!("v3/user/{own}/account_data/org.example.note");
        self.done(Method::PUT, &path, Some(&json!({ "note": action + 1 }))).await;
        self.crowd.promises.noted(self.number, action as u64 + 1);
    }

    /// What the rules forbid is refused: only who made a room may set its topic.
    pub(crate) async fn set_topic(&self, room: &str, action: usize) {
        let path = format!("v3/rooms/{}/state/m.room.topic", encoded(room));
        let body = json!({ "topic": action.to_string() });
        let answer = self.settle(Method::PUT, &path, Some(&body)).await;
        if self.crowd.ledger.maker(room) != Some(self.number) && answer.status != 403 {
            let how = format!("{} {path}: {}", self.name(), answer.status);
            self.crowd.story.broken("what the rules forbid is refused", &how);
        }
    }

    /// Logs in with another device, and out again, or not.
    pub(crate) async fn use_another_device(&self, action: usize) {
        let device = format!("{}_{action}", self.device);
        let body = json!({
            "type": "m.login.password", "password": self.password(), "device_id": device,
            "identifier": { "type": "m.id.user", "user": self.name() },
        });
        let answer = self.done(Method::POST, "v3/login", Some(&body)).await;
        let token = answer.text("/access_token").map(str::to_owned);
        let other = Self {
            number: self.number,
            is_host: false,
            crowd: Rc::clone(&self.crowd),
            dice: self.dice.apart(action),
            client: Client { server: self.client.server, token },
            device,
        };
        other.upload_keys().await;
        if other.dice.happens(50) {
            return;
        }
        sleep(other.dice.between_ms(0, 3_000)).await;
        // If the answer is lost, the next one is that the session is gone.
        other.settle(Method::POST, "v3/logout", Some(&json!({}))).await;
        self.crowd.promises.has_no_device(self.number, &other.device);
        self.note(&format!("has logged {} out", other.device));
        let answer = other.settle(Method::GET, "v3/account/whoami", None).await;
        if answer.status != 401 {
            let how = format!("{} of {}: {}", other.device, self.name(), answer.status);
            self.crowd.story.broken("a session that has ended is refused", &how);
        }
    }

    /// Speaks in a room when about to be removed from it.
    pub(crate) async fn shout(&self) {
        for number in 0.. {
            sleep(Duration::from_millis(100)).await;
            if let Some(room) = self.crowd.promises.is_to_shout(self.number) {
                for nth in 0..4 {
                    self.send(&room, 100_000 + 4 * number + nth).await;
                }
            }
        }
    }

    /// Asks for the devices of those whose devices are outdated, as they become so.
    pub(crate) async fn follow_devices(&self, outdated: &Outdated) {
        let everybody = self.crowd.user_ids.len();
        let is_there = |room: &String| self.crowd.ledger.members(room).len() == everybody;
        while !self.crowd.ledger.rooms().iter().all(is_there) {
            sleep(Duration::from_millis(500)).await;
        }
        outdated.borrow_mut().extend(0..everybody);
        loop {
            sleep(Duration::from_millis(500)).await;
            let asked: Vec<_> = outdated.take().into_iter().collect();
            if asked.is_empty() {
                continue;
            }
            let of = asked.iter().map(|of| (self.crowd.user_ids[*of].clone(), json!([])));
            let body = json!({ "device_keys": of.collect::<serde_json::Map<_, _>>() });
            let answer = self.done(Method::POST, "v3/keys/query", Some(&body)).await;
            for of in asked {
                let user_id = &self.crowd.user_ids[of];
                let server = user_id.split_once(':').map_or("", |(_, server)| server);
                match answer.body["device_keys"][user_id].as_object() {
                    Some(devices) if answer.body["failures"][server].is_null() => {
                        let devices = devices.keys().cloned().collect();
                        self.crowd.promises.saw_devices(self.number, of, devices);
                    }
                    // Its homeserver cannot be reached now.
                    _ => drop(outdated.borrow_mut().insert(of)),
                }
            }
        }
    }

    /// Makes a room for some only.
    pub(crate) async fn make_private_room(&self) {
        let body = json!({ "preset": "private_chat", "name": format!("Private {}", self.name()) });
        let answer = self.done(Method::POST, "v3/createRoom", Some(&body)).await;
        let room = answer.text("/room_id").unwrap_or_default();
        self.note(&format!("has made {room} for some"));
        self.crowd.promises.made_private(room, self.number);
        self.crowd.ledger.joined(self.number, room);
    }

    /// Invites somebody to the private room, or removes somebody from it.
    pub(crate) async fn moderate(&self) {
        let Some(room) = self.crowd.promises.private_of(self.number) else { return };
        let promises = &self.crowd.promises;
        let others = (0..self.crowd.user_ids.len()).filter(|other| *other != self.number);
        // Those who are or were there come first.
        let (mut others, known): (Vec<_>, Vec<_>) =
            others.partition(|other| promises.standing(&room, *other) == Standing::Out);
        if !known.is_empty() && self.dice.happens(60) {
            others = known;
        }
        let Some(&target) = self.dice.pick(&others) else { return };
        let (body, asked) = (json!({ "user_id": self.crowd.user_ids[target] }), now());
        let path = |what: &str| format!("v3/rooms/{}/{what}", encoded(&room));
        match promises.standing(&room, target) {
            Standing::Out => {
                promises.set_standing(&room, target, Standing::Pending);
                let answer = self.settle(Method::POST, &path("invite"), Some(&body)).await;
                self.note(&format!("invites user {target} to {room}: {}", answer.status));
                if answer.status.is_success() {
                    promises.is_to_learn(target, &room, News::Invite, asked);
                }
            }
            Standing::In => {
                let bans = self.dice.happens(50);
                promises.set_standing(&room, target, Standing::Pending);
                self.crowd.ledger.leaves(target, &room);
                // They speak while they are removed.
                promises.will_go(target, &room);
                sleep(self.dice.between_ms(100, 600)).await;
                let what = if bans { "ban" } else { "kick" };
                // If the answer is lost, the next one is that they are not there.
                let answer = self.settle(Method::POST, &path(what), Some(&body)).await;
                self.note(&format!("{what}s user {target} in {room}: {}", answer.status));
                promises.is_to_learn(target, &room, News::Removal, asked);
                let after = if bans { Standing::Banned } else { Standing::Out };
                promises.set_standing(&room, target, after);
            }
            Standing::Banned => {
                let answer = self.settle(Method::POST, &path("invite"), Some(&body)).await;
                if answer.status != 403 {
                    let how = format!("user {target} in {room}: {}", answer.status);
                    self.crowd.story.broken("who is banned cannot come back", &how);
                }
            }
            Standing::Pending => {}
        }
    }

    /// Looks at what a sync says besides messages.
    pub(crate) fn take_news(self: &Rc<Self>, body: &Value, outdated: &Outdated) {
        let promises = &self.crowd.promises;
        for event in list(&body["account_data"]["events"]) {
            if event["type"] == "org.example.note" {
                promises.saw_note(self.number, event["content"]["note"].as_u64().unwrap_or(0));
            }
        }
        for user_id in list(&body["device_lists"]["changed"]) {
            let of = self.crowd.user_ids.iter().position(|known| *user_id == **known);
            outdated.borrow_mut().extend(of);
        }
        for (room, _) in body["rooms"]["invite"].as_object().into_iter().flatten() {
            promises.learns(self.number, room, News::Invite);
            self.note(&format!("is invited to {room}"));
            let (this, room) = (Rc::clone(self), room.clone());
            tokio::task::spawn_local(async move {
                let server = room.split_once(':').map_or("", |(_, server)| server).to_owned();
                this.join(&room, &server).await;
                this.crowd.promises.set_standing(&room, this.number, Standing::In);
            });
        }
        for (room, _) in body["rooms"]["leave"].as_object().into_iter().flatten() {
            promises.learns(self.number, room, News::Removal);
            // If they come back, they get what they have seen before once more.
            self.crowd.ledger.forgets(self.number, room);
            self.note(&format!("is no longer in {room}"));
        }
        for (room, part) in body["rooms"]["join"].as_object().into_iter().flatten() {
            for event in list(&part["ephemeral"]["events"]) {
                if event["type"] == "m.typing" {
                    let who = list(&event["content"]["user_ids"]).iter();
                    let who = who.filter_map(Value::as_str).map(str::to_owned);
                    let ours = who.filter(|who| self.crowd.user_ids.contains(who));
                    promises.saw_typing(self.number, room, ours.collect());
                }
                for (event_id, of) in event["content"].as_object().into_iter().flatten() {
                    let Some(place) = self.crowd.ledger.place(self.number, room, event_id) else {
                        continue;
                    };
                    for (of, _) in of["m.read"].as_object().into_iter().flatten() {
                        promises.saw_read(&self.crowd.story, self.number, room, of, place);
                    }
                }
            }
        }
    }
}
