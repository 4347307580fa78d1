//! A model of a person with one device, whose client does what real ones do: it repeats what was
//! not answered, with the same transaction id, and goes on with the token that it has.

use std::{collections::BTreeSet, rc::Rc, time::Duration};

use base64::{Engine as _, engine::general_purpose::STANDARD_NO_PAD};
use ed25519_dalek::{Signer as _, SigningKey};
use http::Method;
use serde_json::{Value, json};
use tokio::{sync::watch, time::sleep};

use super::{
    acts::Outdated,
    dice::Dice,
    hostile::FORBIDDEN,
    http::{Answer, Client},
    ledger::{Ledger, Saw},
    promises::Promises,
    story::Story,
};

/// How long a client waits for an answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long a request may be repeated without an answer that settles it. Faults end long before.
const BEARABLE: Duration = Duration::from_secs(600);

/// How long receipts take to arrive, when all is well.
const ARRIVAL: Duration = Duration::from_secs(20);

/// What all users share.
pub(crate) struct Crowd {
    pub(crate) story: Story,
    pub(crate) ledger: Ledger,
    pub(crate) promises: Promises,
    /// The user ids, by number, once the world is made.
    pub(crate) user_ids: Vec<String>,
    /// How many rooms there are to be: one for each homeserver.
    pub(crate) rooms: usize,
    pub(crate) actions: usize,
    /// How long news may take, if nothing goes wrong.
    pub(crate) prompt: Option<Duration>,
    /// Whether a homeserver is hostile.
    pub(crate) is_hostile: bool,
    /// Whether the hostile homeserver does no more harm.
    pub(crate) peace: watch::Receiver<bool>,
    /// Whether users are to say what state they see.
    pub(crate) ending: watch::Receiver<bool>,
}

pub(crate) struct User {
    pub(crate) number: usize,
    /// Whether this one makes a room.
    pub(crate) is_host: bool,
    pub(crate) crowd: Rc<Crowd>,
    pub(crate) dice: Dice,
    pub(crate) client: Client,
    pub(crate) device: String,
}

impl User {
    pub(crate) fn new(
        number: usize,
        is_host: bool,
        crowd: &Rc<Crowd>,
        dice: Dice,
        client: Client,
    ) -> Self {
        let device = format!("D{number}");
        Self { number, is_host, crowd: Rc::clone(crowd), dice, client, device }
    }

    pub(crate) fn name(&self) -> String {
        format!("u{}", self.number)
    }

    pub(crate) fn note(&self, what: &str) {
        self.crowd.story.note(&self.name(), what);
    }

    /// Asks until an answer settles it: a success, or a refusal that repeating does not change.
    pub(crate) async fn settle(&self, method: Method, path: &str, body: Option<&Value>) -> Answer {
        let began = tokio::time::Instant::now();
        loop {
            self.crowd.ledger.requested();
            let asked = tokio::time::Instant::now();
            let answer = self.client.ask(method.clone(), path, body, PATIENCE).await;
            match answer {
                Some(answer)
                    if !answer.status.is_server_error() && answer.status.as_u16() != 429 =>
                {
                    return answer;
                }
                Some(answer) => self.note(&format!("{path}: {}", answer.status)),
                None => {
                    self.note(&format!("{path}: no answer"));
                    if self.crowd.prompt.is_some() && asked.elapsed() >= PATIENCE {
                        let how = format!("{} {method} {path}", self.name());
                        self.crowd.story.broken("each request is answered at once", &how);
                    }
                }
            }
            if began.elapsed() > BEARABLE {
                let how = format!("{} {method} {path}", self.name());
                self.crowd.story.broken("each request is answered in time", &how);
                std::future::pending::<()>().await;
            }
            sleep(self.dice.between_ms(200, 3_000)).await;
        }
    }

    /// The same for what must succeed.
    pub(crate) async fn done(&self, method: Method, path: &str, body: Option<&Value>) -> Answer {
        let answer = self.settle(method.clone(), path, body).await;
        if !answer.status.is_success() {
            let how = format!("{} {method} {path}: {} {}", self.name(), answer.status, answer.body);
            self.crowd.story.broken("no correct request is refused", &how);
            std::future::pending::<()>().await;
        }
        answer
    }

    /// The whole life.
    pub(crate) async fn live(mut self) {
        self.register().await;
        let this = Rc::new(self);
        this.upload_keys().await;
        if this.is_host {
            this.make_room().await;
        }
        while this.crowd.ledger.rooms().len() < this.crowd.rooms {
            sleep(Duration::from_millis(200)).await;
        }
        let (syncing, following) = (Rc::clone(&this), Rc::clone(&this));
        let outdated = Rc::new(Outdated::default());
        let (known, shouting) = (Rc::clone(&outdated), Rc::clone(&this));
        tokio::task::spawn_local(async move { shouting.shout().await });
        tokio::task::spawn_local(async move { syncing.sync(&outdated).await });
        tokio::task::spawn_local(async move { following.follow_devices(&known).await });
        for (room, server) in this.crowd.ledger.places() {
            this.join(&room, &server).await;
        }
        if this.is_host {
            this.make_private_room().await;
        }
        for action in 0..this.crowd.actions {
            sleep(this.dice.between_ms(0, 2_000)).await;
            this.act(action).await;
        }
        this.say_last_words().await;
        this.note("has done all");
        this.crowd.ledger.done();
        let mut ending = this.crowd.ending.clone();
        let _ = ending.wait_for(|ends| *ends).await;
        this.look_for_redacted().await;
        for room in this.crowd.ledger.rooms() {
            this.read(&room, true).await;
        }
        sleep(ARRIVAL).await;
        this.check_reads();
        for room in this.crowd.ledger.rooms() {
            let path = format!("v3/rooms/{}/state", encoded(&room));
            let answer = this.done(Method::GET, &path, None).await;
            // A homeserver that the hostile one never gave its keys knows nothing of its users.
            let is_ours =
                |event: &&Value| this.crowd.user_ids.iter().any(|user| event["sender"] == **user);
            let ours = list(&answer.body).iter().filter(is_ours);
            let ids = ours.filter_map(|event| event["event_id"].as_str());
            this.crowd.ledger.state(&room, this.number, ids.map(str::to_owned).collect());
        }
    }

    /// Says something in each room once nobody does harm any more. What comes after all else brings
    /// together what the hostile homeserver has driven apart.
    async fn say_last_words(&self) {
        if !self.crowd.is_hostile {
            return;
        }
        let mut peace = self.crowd.peace.clone();
        let _ = peace.wait_for(|peace| *peace).await;
        for (nth, room) in self.crowd.ledger.rooms().iter().enumerate() {
            self.send(room, self.crowd.actions + nth).await;
        }
    }

    pub(crate) fn password(&self) -> String {
        format!("password of {}", self.number)
    }

    async fn register(&mut self) {
        let password = self.password();
        let body = json!({
            "username": self.name(), "password": password, "device_id": self.device,
            "auth": { "type": "m.login.dummy" },
        });
        let mut answer = self.settle(Method::POST, "v3/register", Some(&body)).await;
        if answer.errcode() == "M_USER_IN_USE" {
            // An earlier attempt arrived, and its answer did not.
            let body = json!({
                "type": "m.login.password", "password": password, "device_id": self.device,
                "identifier": { "type": "m.id.user", "user": self.name() },
            });
            answer = self.done(Method::POST, "v3/login", Some(&body)).await;
        }
        match answer.text("/access_token") {
            Some(token) => self.client.token = Some(token.to_owned()),
            None => self.crowd.story.broken("people can register", &answer.body.to_string()),
        }
        self.note("has registered");
    }

    pub(crate) async fn upload_keys(&self) {
        let user_id = &self.crowd.user_ids[self.number];
        let signing = SigningKey::from_bytes(&bytes_of(&format!("signing key of {}", self.device)));
        let signing_id = format!("ed25519:{}", self.device);
        let signed = |mut object: Value| {
            // serde_json sorts members, which makes this the canonical form.
            let signature = signing.sign(object.to_string().as_bytes()).to_bytes();
            object["signatures"] =
                json!({ user_id: { &signing_id: STANDARD_NO_PAD.encode(signature) } });
            object
        };
        let key =
            |what: String| STANDARD_NO_PAD.encode(bytes_of(&format!("{what} of {}", self.device)));
        // Some have so few that others get the fallback key.
        let many = if self.number.is_multiple_of(2) { 50 } else { 1 };
        let keys: serde_json::Map<String, Value> = (0..many)
            .map(|number| {
                let key = json!({ "key": key(format!("key {number}")) });
                (format!("signed_curve25519:K{number}"), signed(key))
            })
            .collect();
        let body = json!({
            "device_keys": signed(json!({
                "user_id": user_id, "device_id": self.device,
                "algorithms": ["m.olm.v1.curve25519-aes-sha2", "m.megolm.v1.aes-sha2"],
                "keys": {
                    &signing_id: STANDARD_NO_PAD.encode(signing.verifying_key().to_bytes()),
                    format!("curve25519:{}", self.device): key("identity key".to_owned()),
                },
            })),
            "one_time_keys": keys,
            "fallback_keys": { "signed_curve25519:F": signed(json!({
                "key": key("fallback key".to_owned()), "fallback": true,
            })) },
        });
        self.done(Method::POST, "v3/keys/upload", Some(&body)).await;
        self.crowd.promises.has_device(self.number, &self.device);
    }

    async fn make_room(&self) {
        // Not repeated blindly: there is no transaction id, and a room too many harms nobody.
        let mut body = json!({
            "preset": "public_chat", "name": format!("Room of {}", self.name()),
            "power_level_content_override": { "events": { "org.example.note": 0 } },
        });
        if self.crowd.is_hostile {
            body["room_version"] = json!(self.dice.pick(&["3", "5", "6", "10", "11", "12"]));
        }
        let answer = self.done(Method::POST, "v3/createRoom", Some(&body)).await;
        let room = answer.text("/room_id").unwrap_or_default().to_owned();
        self.note(&format!("has made {room}"));
        self.crowd.ledger.joined(self.number, &room);
        let server = self.crowd.user_ids[self.number].split_once(':');
        self.crowd.ledger.add_room(
            room,
            self.number,
            server.map_or("", |(_, server)| server).to_owned(),
        );
    }

    pub(crate) async fn join(&self, room: &str, server: &str) {
        let path = format!("v3/join/{}?server_name={server}", encoded(room));
        // It may take some attempts: the other homeserver may be down.
        let began = tokio::time::Instant::now();
        loop {
            let answer = self.settle(Method::POST, &path, Some(&json!({}))).await;
            if answer.status.is_success() {
                break;
            }
            self.note(&format!("cannot join {room}: {} {}", answer.status, answer.errcode()));
            if began.elapsed() > BEARABLE {
                let how = format!("{} {room}: {}", self.name(), answer.body);
                self.crowd.story.broken("a public room can be joined", &how);
                std::future::pending::<()>().await;
            }
            sleep(self.dice.between_ms(500, 5_000)).await;
        }
        self.note(&format!("has joined {room}"));
        self.crowd.ledger.joined(self.number, room);
    }

    async fn act(&self, action: usize) {
        let (rooms, private) =
            (self.crowd.ledger.rooms(), self.crowd.promises.private_with(self.number));
        let Some(room) = self.dice.pick(&rooms) else { return };
        if self.is_host && self.dice.happens(30) {
            return self.moderate().await;
        }
        match self.dice.below(25) {
            0..=1 => self.send(self.dice.pick(&private).unwrap_or(room), action).await,
            2..=3 => self.set_state(room, action).await,
            4..=8 => self.tell(action).await,
            9..=10 => self.claim().await,
            11 => self.redact(room, action).await,
            12..=13 => self.read(room, false).await,
            14 => self.begin_typing(room).await,
            15 => self.set_account_data(action).await,
            16 => self.set_topic(room, action).await,
            17 => self.use_another_device(action).await,
            _ => self.send(room, action).await,
        }
    }

    pub(crate) async fn send(&self, room: &str, action: usize) {
        let text = format!("message {action} of {}", self.name());
        // Somebody may speak there who does not know of a member yet, and nobody after them.
        let is_private = !self.crowd.ledger.rooms().iter().any(|other| other == room);
        let audience = match is_private {
            true => BTreeSet::new(),
            false => self.crowd.ledger.audience(room),
        };
        let path = format!("v3/rooms/{}/send/m.room.message/t{action}", encoded(room));
        let body = json!({ "msgtype": "m.text", "body": text });
        let answer = match is_private {
            // This user may just be removed.
            true => self.settle(Method::PUT, &path, Some(&body)).await,
            false => self.done(Method::PUT, &path, Some(&body)).await,
        };
        let Some(event_id) = answer.text("/event_id") else { return };
        self.note(&format!("has sent {text:?} as {event_id}"));
        self.crowd.ledger.said(room, event_id, self.number);
        self.crowd.ledger.sent(room, event_id, text, audience);
        if is_private {
            return;
        }
        if self.dice.happens(20) {
            let again = self.done(Method::PUT, &path, Some(&body)).await;
            if again.text("/event_id") != Some(event_id) {
                let how = format!("{path}: {event_id}, then {}", again.body);
                self.crowd.story.broken("a transaction id makes one event", &how);
            }
        }
    }

    async fn set_state(&self, room: &str, action: usize) {
        // All set the same, so that they are at odds.
        let path = format!("v3/rooms/{}/state/org.example.note", encoded(room));
        let body = json!({ "note": action, "by": self.number });
        self.done(Method::PUT, &path, Some(&body)).await;
    }

    /// Sends a to-device message.
    async fn tell(&self, action: usize) {
        let to = self.dice.below(self.crowd.user_ids.len());
        let text = format!("secret {action} of {}", self.name());
        let body = json!({ "messages": { &self.crowd.user_ids[to]: {
            format!("D{to}"): { "text": text }
        } } });
        // A message for a device that does not exist yet is dropped.
        let path = format!("v3/sendToDevice/org.example.secret/d{action}");
        let exists = self.exists(to);
        self.done(Method::PUT, &path, Some(&body)).await;
        if exists {
            self.crowd.ledger.told(text, to);
        }
    }

    /// Whether somebody has done all that one does at first.
    fn exists(&self, user: usize) -> bool {
        let is_in = |room: &String| self.crowd.ledger.members(room).contains(&user);
        self.crowd.ledger.rooms().iter().all(is_in)
    }

    /// Takes somebody's one-time key.
    async fn claim(&self) {
        let of = self.dice.below(self.crowd.user_ids.len());
        let user_id = &self.crowd.user_ids[of];
        let device = format!("D{of}");
        let body = json!({ "timeout": 5000, "one_time_keys": {
            user_id: { &device: "signed_curve25519" }
        } });
        let exists = self.exists(of);
        let answer = self.done(Method::POST, "v3/keys/claim", Some(&body)).await;
        let given = answer.body["one_time_keys"][user_id][&device].as_object().cloned();
        let failures = answer.body["failures"].as_object().is_some_and(|all| !all.is_empty());
        if exists && !failures && given.is_none() {
            let how = format!("{} wants one of {device}: {}", self.name(), answer.body);
            self.crowd.story.broken("a device with a fallback key has a key for all", &how);
        }
        for (name, _) in given.into_iter().flatten().filter(|(name, _)| !name.ends_with(":F")) {
            let key = format!("{name} of {device}");
            self.note(&format!("was given {key}"));
            self.crowd.ledger.claimed(&self.crowd.story, &key, self.number);
        }
    }

    async fn sync(self: &Rc<Self>, outdated: &Outdated) {
        let filter = encoded(r#"{"room":{"timeline":{"limit":500}}}"#);
        let mut since = String::new();
        loop {
            let from = if since.is_empty() { String::new() } else { format!("&since={since}") };
            let path = format!("v3/sync?timeout=20000&filter={filter}{from}");
            let answer = self.settle(Method::GET, &path, None).await;
            let Some(next) = answer.text("/next_batch") else {
                let how = format!("{}: {} {}", self.name(), answer.status, answer.body);
                self.crowd.story.broken("a client can sync", &how);
                return;
            };
            let next = next.to_owned();
            self.take(&answer.body, &since).await;
            self.take_news(&answer.body, outdated);
            since = next;
        }
    }

    async fn take(&self, body: &Value, since: &str) {
        let Crowd { story, ledger, .. } = &*self.crowd;
        for event in list(&body["to_device"]["events"]) {
            if let Some(text) = event["content"]["text"].as_str() {
                ledger.heard(story, self.number, text);
            }
        }
        let joined = body["rooms"]["join"].as_object();
        for (room, part) in joined.into_iter().flatten() {
            let timeline = &part["timeline"];
            let mut events: Vec<Value> = list(&timeline["events"]).to_vec();
            if timeline["limited"] == true && !since.is_empty() {
                let before = self.fill(room, timeline["prev_batch"].as_str()).await;
                events.splice(0..0, before);
            }
            for event in &events {
                let event_id = event["event_id"].as_str().unwrap_or_default();
                let body = event["content"]["body"].as_str();
                if body == Some(FORBIDDEN) {
                    let how = format!("{} got {event}", self.name());
                    story.broken("what the rules forbid is not seen", &how);
                }
                let is_ours = self.crowd.user_ids.iter().any(|user| event["sender"] == **user);
                let is_emptied = event["type"] == "m.room.message" && body.is_none();
                if is_ours && is_emptied && !self.crowd.promises.is_redacting(event_id) {
                    let how = format!("{} got {event}", self.name());
                    story.broken("nobody empties what others say", &how);
                }
                // The hostile homeserver's users may leave in one branch and stay in another.
                let member =
                    event["state_key"].as_str().zip(event["content"]["membership"].as_str());
                let saw = Saw {
                    event_id,
                    body: body.filter(|_| is_ours),
                    sender: event["sender"].as_str().filter(|_| is_ours).unwrap_or_default(),
                    member: member
                        .filter(|(of, _)| self.crowd.user_ids.iter().any(|user| user == of)),
                };
                ledger.saw(story, self.number, room, &saw);
                if let Some(most) = self.crowd.prompt {
                    ledger.saw_in_time(story, self.number, event_id, most);
                }
                self.note(&format!("got {event_id}"));
            }
        }
    }

    /// The events of a room before a token that are not known yet, in order.
    async fn fill(&self, room: &str, from: Option<&str>) -> Vec<Value> {
        let mut found = Vec::new();
        let mut from = from.map(str::to_owned);
        while let Some(token) = from {
            let path = format!("v3/rooms/{}/messages?dir=b&limit=100&from={token}", encoded(room));
            let answer = self.done(Method::GET, &path, None).await;
            from = answer.text("/end").map(str::to_owned);
            for event in list(&answer.body["chunk"]) {
                let event_id = event["event_id"].as_str().unwrap_or_default();
                if self.crowd.ledger.has_seen(self.number, room, event_id) {
                    from = None;
                    break;
                }
                found.push(event.clone());
            }
        }
        found.reverse();
        found
    }
}

fn bytes_of(what: &str) -> [u8; 32] {
    *blake3::hash(what.as_bytes()).as_bytes()
}

pub(crate) fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// A text as a segment of a path.
pub(crate) fn encoded(text: &str) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}
