//! A homeserver that is not this program, and odd or hostile. It joins public rooms as others do
//! and signs what it sends. All else is decided by its dice: what it sends, and how it answers.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    convert::Infallible,
    net::{IpAddr, Ipv4Addr},
    rc::Rc,
    time::Duration,
};

use bytes::Bytes;
use http::{Method, Request, Response, header};
use http_body_util::{BodyExt as _, Full};
use hyper::{
    body::Incoming, client::conn::http1 as client, server::conn::http1 as server,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use ruma::{
    CanonicalJsonObject, RoomVersionId,
    serde::{
        Base64,
        base64::{Standard, UrlSafe},
    },
    signatures::{Ed25519KeyPair, KeyPair as _, hash_and_sign_event, reference_hash, sign_json},
};
use rustls::pki_types::ServerName;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::{
    io::AsyncWriteExt as _,
    sync::watch,
    time::{sleep, timeout},
};
use tokio_rustls::{TlsAcceptor, TlsConnector};
use turmoil::net::{TcpListener, TcpStream};

use super::{
    dice::Dice,
    homeserver::{Authority, Failure},
    odd::{self, ODD},
    os,
    story::Story,
    user::encoded,
};
use logcabin_base::canonical::{Numbers, canonical};

/// The port of federation.
const PORT: u16 = 8448;

/// How long it waits for an answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// What nobody may ever see, because the rules forbid it, has this in its body.
pub(crate) const FORBIDDEN: &str = "forbidden";

/// How many of its events it remembers.
const REMEMBERED: usize = 400;

/// Another homeserver of the world.
#[derive(Clone)]
pub(crate) struct Neighbour {
    pub(crate) name: String,
    pub(crate) ip: IpAddr,
}

/// What it knows of a room that it is in.
#[derive(Default)]
struct Room {
    version: Option<RoomVersionId>,
    /// Its users there.
    users: Vec<String>,
    /// The state with its auth events, as it was told at its join.
    state: Vec<Value>,
    /// Events that it has heard of, oldest first.
    heard: Vec<String>,
}

pub(crate) struct Hostile {
    name: String,
    keys: Ed25519KeyPair,
    dice: Dice,
    story: Story,
    acceptor: TlsAcceptor,
    connector: TlsConnector,
    neighbours: Vec<Neighbour>,
    /// The users of other homeservers.
    people: Vec<String>,
    rooms: RefCell<BTreeMap<String, Room>>,
    /// Its events, by id, sent or not.
    made: RefCell<BTreeMap<String, String>>,
    /// Numbers for transactions and texts.
    count: RefCell<u32>,
}

impl Hostile {
    pub(crate) fn new(
        ip: IpAddr,
        authority: &Authority,
        seed: u64,
        story: &Story,
        neighbours: Vec<Neighbour>,
        people: Vec<String>,
    ) -> Result<Self, Failure> {
        let keys = Ed25519KeyPair::from_der(&Ed25519KeyPair::generate(), "odd".to_owned())?;
        Ok(Self {
            name: format!("{ip}:{PORT}"),
            keys,
            dice: Dice::new(seed, "hostile"),
            story: story.clone(),
            acceptor: authority.acceptor(ip)?,
            connector: authority.connector()?,
            neighbours,
            people,
            rooms: RefCell::default(),
            made: RefCell::default(),
            count: RefCell::default(),
        })
    }

    fn note(&self, what: &str) {
        self.story.note("hostile", what);
    }

    fn next(&self) -> u32 {
        *self.count.borrow_mut() += 1;
        *self.count.borrow()
    }

    /// Its life: it serves for ever, and acts until `peace`. `rooms` are those of the world, each
    /// with the homeserver that made it.
    pub(crate) async fn live(
        self: Rc<Self>,
        rooms: Vec<(String, String)>,
        peace: watch::Receiver<bool>,
    ) {
        for (room, of) in rooms {
            for user in ["mal", "mal/ory=", "_"].into_iter().take(1 + self.dice.below(3)) {
                let Some(neighbour) = self.neighbours.iter().find(|other| other.name == of) else {
                    continue;
                };
                // It may be down.
                for _ in 0..5 {
                    if self.join(neighbour, &room, &format!("@{user}:{}", self.name)).await {
                        break;
                    }
                    sleep(self.dice.between_ms(500, 5_000)).await;
                }
            }
        }
        while !*peace.borrow() {
            sleep(self.dice.between_ms(50, 3_000)).await;
            self.act().await;
        }
        self.note("does no more harm");
    }

    /// Does something to a room of its choice.
    async fn act(&self) {
        let rooms: Vec<_> = self.rooms.borrow().keys().cloned().collect();
        let Some(room) = self.dice.pick(&rooms) else { return };
        match self.dice.below(16) {
            0..=2 => self.say_odd(room).await,
            3 => self.place_odd(room).await,
            4..=5 => self.send_edus(room).await,
            6..=7 => self.fork(room).await,
            8..=9 => self.withhold(room).await,
            10 => self.tell_apart(room).await,
            11 => self.flood(room).await,
            12..=13 => self.break_rules(room).await,
            14 => self.ask_odd(room).await,
            _ => self.dawdle().await,
        }
    }
}

/// What it sends.
impl Hostile {
    /// A message after the room's end, as a homeserver describes it.
    async fn draft(&self, room: &str, content: Value) -> Option<Value> {
        let user = self.a_user(room)?;
        let path = format!("v1/make_leave/{}/{}", encoded(room), encoded(&user));
        let made = self.ask(self.a_neighbour()?, Method::GET, &path, "").await?;
        let mut event = made["event"].clone();
        let members = event.as_object_mut()?;
        members.retain(|name, _| name != "state_key" && name != "unsigned");
        members.insert("type".to_owned(), json!("m.room.message"));
        members.insert("content".to_owned(), content);
        members.insert("origin_server_ts".to_owned(), json!(os::now_ms()));
        Some(event)
    }

    fn text(&self, what: &str) -> Value {
        json!({ "msgtype": "m.text", "body": format!("{what} {} of the hostile", self.next()) })
    }

    fn a_user(&self, room: &str) -> Option<String> {
        self.dice.pick(&self.rooms.borrow().get(room)?.users).cloned()
    }

    fn a_neighbour(&self) -> Option<&Neighbour> {
        self.dice.pick(&self.neighbours)
    }

    /// An event with its hash and signature, in which [`ODD`] stands for this text. `kept` is what
    /// a redaction leaves of its content. Returns its id and its text.
    fn sealed(&self, room: &str, mut event: Value, kept: Value, odd: &str) -> (String, String) {
        let version = self.rooms.borrow().get(room).and_then(|room| room.version.clone());
        let version = version.unwrap_or(RoomVersionId::V10);
        let with_odd = |event: &Value| odd::put(&event.to_string(), odd);
        let mut hashed = event.clone();
        if let Some(members) = hashed.as_object_mut() {
            members.remove("unsigned");
        }
        let hash = Sha256::digest(form(&with_odd(&hashed)));
        event["hashes"] = json!({ "sha256": Base64::<Standard, _>::new(hash).encode() });
        let mut signed = event.clone();
        signed["content"] = kept;
        if let Some(members) = signed.as_object_mut() {
            members.retain(|name, _| name != "unsigned" && !name.starts_with("org.example."));
        }
        let signed = form(&with_odd(&signed));
        let (key, signature) = self.keys.sign(signed.as_bytes()).into_parts();
        let signature = Base64::<Standard, _>::new(signature).encode();
        event["signatures"] = json!({ &self.name: { key.to_string(): signature } });
        let hash = Sha256::digest(&signed);
        let id = match version {
            RoomVersionId::V3 => Base64::<Standard, _>::new(hash).encode(),
            _ => Base64::<UrlSafe, _>::new(hash).encode(),
        };
        let (id, text) = (format!("${id}"), with_odd(&event));
        self.remember(room, &id, &text);
        (id, text)
    }

    fn remember(&self, room: &str, id: &str, text: &str) {
        let mut made = self.made.borrow_mut();
        while made.len() >= REMEMBERED {
            made.pop_first();
        }
        made.insert(id.to_owned(), text.to_owned());
        if let Some(room) = self.rooms.borrow_mut().get_mut(room) {
            room.heard.push(id.to_owned());
        }
    }

    /// Sends a transaction with these events and EDUs, which are texts, to a neighbour.
    async fn send_to(&self, to: &Neighbour, pdus: &[String], edus: &[String]) {
        let (pdus, edus) = (pdus.join(","), edus.join(","));
        let (name, now) = (&self.name, os::now_ms());
        let body = format!(
            r#"{{"origin":"{name}","origin_server_ts":{now},"pdus":[{pdus}],"edus":[{edus}]}}"#
        );
        let path = format!("v1/send/{}", self.next());
        let said = self.ask(to, Method::PUT, &path, &body).await;
        self.note(&format!("hears from {}: {}", to.name, said.unwrap_or_default()));
    }

    /// The same to all of them, or to some.
    async fn send(&self, pdus: &[String], edus: &[String]) {
        let all = self.dice.happens(60);
        for neighbour in &self.neighbours {
            if all || self.dice.happens(50) {
                self.send_to(neighbour, pdus, edus).await;
            }
        }
    }

    /// A message whose content has something odd in it.
    async fn say_odd(&self, room: &str) {
        let odd = odd::json(&self.dice);
        let mut content = self.text("odd");
        match self.dice.below(4) {
            0 => content["odd"] = json!(ODD),
            1 => content["body"] = json!(ODD),
            2 => content["m.relates_to"] = json!({ "rel_type": "m.thread", "event_id": ODD }),
            _ => content["m.mentions"] = json!({ "user_ids": ODD, "room": ODD }),
        }
        let Some(event) = self.draft(room, content).await else { return };
        self.note(&format!("says something odd: {}", odd::short(&odd)));
        let (_, text) = self.sealed(room, event, json!({}), &odd);
        self.send(&[text], &[]).await;
    }

    /// A message of which another member than its content is odd.
    async fn place_odd(&self, room: &str) {
        let odd = odd::json(&self.dice);
        let members = [
            "depth",
            "origin_server_ts",
            "prev_events",
            "auth_events",
            "type",
            "sender",
            "state_key",
            "unsigned",
            "org.example.unknown",
            "redacts",
            "content",
        ];
        let Some(mut event) = self.draft(room, self.text("odd")).await else { return };
        let Some(member) = self.dice.pick(&members) else { return };
        event[*member] = json!(ODD);
        if *member == "content" {
            event["type"] = json!("org.example.odd");
        }
        self.note(&format!("sends an event with an odd {member}: {}", odd::short(&odd)));
        let (_, text) = self.sealed(room, event, json!({}), &odd);
        self.send(&[text], &[]).await;
    }

    /// EDUs of all kinds, of which some are odd.
    async fn send_edus(&self, room: &str) {
        let (Some(user), Some(of)) = (self.a_user(room), self.dice.pick(&self.people)) else {
            return;
        };
        let heard = self.rooms.borrow().get(room).and_then(|room| room.heard.last().cloned());
        let heard = heard.unwrap_or_default();
        let mut edus = Vec::new();
        for _ in 0..=self.dice.below(20) {
            let odd = odd::json(&self.dice);
            let edu = odd::edu(&self.dice, room, &user, of, &heard, self.next());
            edus.push(odd::put(&edu, &odd));
        }
        self.note(&format!("sends {} EDUs", edus.len()));
        self.send(&[], &edus).await;
    }

    /// Messages and state that come after anything that was ever there.
    async fn fork(&self, room: &str) {
        let mut pdus = Vec::new();
        for _ in 0..=self.dice.below(6) {
            let Some(mut event) = self.draft(room, self.text("fork")).await else { return };
            let heard = self.rooms.borrow().get(room).map(|room| room.heard.clone());
            let heard = heard.unwrap_or_default();
            let prev: Vec<_> =
                (0..=self.dice.below(4)).filter_map(|_| self.dice.pick(&heard)).collect();
            if !prev.is_empty() {
                event["prev_events"] = json!(prev);
            }
            let mut kept = json!({});
            if self.dice.happens(40) {
                kept =
                    json!({ "membership": if self.dice.happens(70) { "join" } else { "leave" } });
                event["type"] = json!("m.room.member");
                event["state_key"] = event["sender"].clone();
                event["content"] = kept.clone();
                event["content"]["displayname"] = json!(format!("mal {}", self.next()));
            }
            pdus.push(self.sealed(room, event, kept, "0").1);
        }
        self.note(&format!("forks the room {} times", pdus.len()));
        self.send(&pdus, &[]).await;
    }

    /// The last of some events that come after each other. The others are to be asked for.
    async fn withhold(&self, room: &str) {
        let mut last = None;
        let mut prev =
            if self.dice.happens(30) { Some(format!("${}", "x".repeat(43))) } else { None };
        for _ in 0..=self.dice.below(8) {
            let Some(mut event) = self.draft(room, self.text("withheld")).await else { return };
            if let Some(prev) = prev {
                event["prev_events"] = json!([prev]);
            }
            if self.dice.happens(10)
                && let Some(auth) = event["auth_events"].as_array_mut()
            {
                auth.push(json!(format!("${}", "y".repeat(43))));
            }
            let (id, text) = self.sealed(room, event, json!({}), "0");
            (prev, last) = (Some(id), Some(text));
        }
        self.note("sends the last of some events");
        self.send(last.as_slice(), &[]).await;
    }

    /// Tells each neighbour another thing.
    async fn tell_apart(&self, room: &str) {
        for neighbour in &self.neighbours {
            let Some(event) = self.draft(room, self.text("for one only")).await else { return };
            let (_, text) = self.sealed(room, event, json!({}), "0");
            self.send_to(neighbour, &[text], &[]).await;
        }
    }

    /// Many events that follow each other.
    async fn flood(&self, room: &str) {
        let Some(event) = self.draft(room, self.text("flood")).await else { return };
        let (mut pdus, mut prev) = (Vec::new(), event["prev_events"].clone());
        let depth = event["depth"].as_u64().unwrap_or_default();
        for number in 0..50 {
            let mut event = event.clone();
            event["content"] = self.text("flood");
            event["prev_events"] = prev;
            event["depth"] = json!(depth + number);
            let (id, text) = self.sealed(room, event, json!({}), "0");
            pdus.push(text);
            prev = json!([id]);
        }
        self.note("sends fifty events at once");
        self.send(&pdus, &[]).await;
    }

    /// What the rules forbid.
    async fn break_rules(&self, room: &str) {
        let content = json!({ "msgtype": "m.text", "body": FORBIDDEN });
        let Some(mut event) = self.draft(room, content).await else { return };
        let Some(victim) = self.dice.pick(&self.people).cloned() else { return };
        let mut kept = json!({});
        let how = self.dice.below(9);
        match how {
            0 => event["sender"] = json!(victim),
            1 => event["sender"] = json!(format!("@nobody:{}", self.name)),
            2 => {
                kept = json!({ "users": { event["sender"].as_str().unwrap_or_default(): 100 } });
                event["type"] = json!("m.room.power_levels");
                event["state_key"] = json!("");
                event["content"] = kept.clone();
                event["content"]["body"] = json!(FORBIDDEN);
            }
            3 | 4 => {
                kept = json!({ "membership": if how == 3 { "ban" } else { "leave" } });
                event["type"] = json!("m.room.member");
                event["state_key"] = json!(victim);
                event["content"] = kept.clone();
                event["content"]["body"] = json!(FORBIDDEN);
            }
            5 => event["auth_events"] = json!([]),
            6 => event["prev_events"] = json!([]),
            7 => {
                let heard = self.rooms.borrow().get(room).map(|room| room.heard.clone());
                event["type"] = json!("m.room.redaction");
                event["redacts"] = json!(self.dice.pick(&heard.unwrap_or_default()));
                event["content"]["redacts"] = event["redacts"].clone();
            }
            _ => {}
        }
        let (id, mut text) = self.sealed(room, event, kept, "0");
        if how == 8 {
            // Its signature is wrong, and nobody gets it with the right one.
            text = text.replace(r#""depth":"#, r#""depth":1"#);
            self.made.borrow_mut().remove(&id);
        }
        self.note(&format!("breaks a rule: {how}"));
        self.send(&[text], &[]).await;
    }

    /// A request with odd arguments.
    async fn ask_odd(&self, room: &str) {
        let (Some(to), Some(of)) = (self.a_neighbour(), self.dice.pick(&self.people)) else {
            return;
        };
        let odd = odd::json(&self.dice);
        let path = encoded(&odd.chars().take(200).collect::<String>());
        let (room, of) = (encoded(room), encoded(of));
        let (method, path, body) = match self.dice.below(12) {
            0 => (Method::GET, format!("v1/event/{path}"), String::new()),
            1 => (Method::GET, format!("v1/state/{room}?event_id={path}"), String::new()),
            2 => (Method::GET, format!("v1/make_join/{room}/{path}?ver={path}"), String::new()),
            3 => (Method::GET, format!("v1/backfill/{room}?v={path}&limit={path}"), String::new()),
            4 => (Method::POST, format!("v1/get_missing_events/{room}"), {
                format!(r#"{{"earliest_events":[],"latest_events":{odd},"limit":{odd}}}"#)
            }),
            5 => (Method::PUT, format!("v2/send_join/{room}/{path}"), odd),
            6 => (Method::PUT, format!("v2/send_leave/{room}/{path}"), odd),
            7 => (Method::PUT, format!("v2/invite/{room}/{path}"), {
                format!(r#"{{"room_version":{odd},"event":{odd},"invite_room_state":[{odd}]}}"#)
            }),
            8 => (Method::POST, "v1/user/keys/claim".to_owned(), {
                format!(r#"{{"one_time_keys":{{"{of}":{odd}}}}}"#)
            }),
            9 => (Method::POST, "v1/user/keys/query".to_owned(), {
                format!(r#"{{"device_keys":{odd}}}"#)
            }),
            10 => (Method::GET, format!("v1/user/devices/{path}"), String::new()),
            _ => (Method::GET, format!("v1/hierarchy/{room}?suggested_only={path}"), String::new()),
        };
        self.note(&format!("asks something odd: {}", odd::short(&path)));
        self.ask(to, method, &path, &body).await;
    }

    /// Half a request, for a while.
    async fn dawdle(&self) {
        let Some(to) = self.a_neighbour() else { return };
        self.note("dawdles");
        let (ip, connector, pause) =
            (to.ip, self.connector.clone(), self.dice.between_ms(0, 90_000));
        tokio::task::spawn_local(async move {
            let stream = TcpStream::connect((ip, PORT)).await?;
            let mut stream = connector.connect(ServerName::from(ip), stream).await?;
            stream.write_all(b"PUT /_matrix/federation/v1/send/1 HTTP/1.1\r\nHost: x\r\n").await?;
            stream.flush().await?;
            sleep(pause).await;
            std::io::Result::Ok(())
        });
    }

    /// Joins a room properly.
    async fn join(&self, by: &Neighbour, room: &str, user: &str) -> bool {
        let versions: Vec<_> = (3..=12).map(|version| format!("ver={version}")).collect();
        let path =
            format!("v1/make_join/{}/{}?{}", encoded(room), encoded(user), versions.join("&"));
        let Some(made) = self.ask(by, Method::GET, &path, "").await else { return false };
        let version = made["room_version"].as_str().and_then(|text| text.try_into().ok());
        let Some(version) = version else { return false };
        let signed = self.signed(made["event"].clone(), &version);
        let Some((id, event)) = signed else { return false };
        let path = format!("v2/send_join/{}/{}", encoded(room), encoded(&id));
        let joined = self.ask(by, Method::PUT, &path, &event).await.unwrap_or_default();
        let (Some(state), Some(chain)) =
            (joined["state"].as_array(), joined["auth_chain"].as_array())
        else {
            self.note(&format!("cannot join {room} as {user}: {joined}"));
            return false;
        };
        self.note(&format!("has joined {room} as {user}"));
        let mut rooms = self.rooms.borrow_mut();
        let known = rooms.entry(room.to_owned()).or_default();
        known.version = Some(version);
        known.users.push(user.to_owned());
        known.state = state.iter().chain(chain).cloned().collect();
        drop(rooms);
        self.remember(room, &id, &event);
        true
    }

    /// A proper event, signed.
    fn signed(&self, event: Value, version: &RoomVersionId) -> Option<(String, String)> {
        let rules = version.rules()?;
        let mut event: CanonicalJsonObject = serde_json::from_value(event).ok()?;
        hash_and_sign_event(&self.name, &self.keys, &mut event, &rules.redaction).ok()?;
        let id = format!("${}", reference_hash(&event, &rules).ok()?);
        Some((id, json!(event).to_string()))
    }

    /// The answer of another homeserver to a signed request, if it is JSON.
    async fn ask(&self, to: &Neighbour, method: Method, path: &str, body: &str) -> Option<Value> {
        timeout(PATIENCE, self.exchange(to, method, path, body)).await.ok()?.ok()
    }

    async fn exchange(
        &self,
        to: &Neighbour,
        method: Method,
        path: &str,
        body: &str,
    ) -> Result<Value, Failure> {
        let stream = TcpStream::connect((to.ip, PORT)).await?;
        let stream = self.connector.connect(ServerName::from(to.ip), stream).await?;
        let (mut sender, connection) = client::handshake(TokioIo::new(stream)).await?;
        tokio::task::spawn_local(async move {
            let _ = connection.await;
        });
        let uri = format!("/_matrix/federation/{path}");
        let content = match body {
            "" => String::new(),
            body => format!(r#""content":{},"#, form(body)),
        };
        let (own, to_name) = (&self.name, &to.name);
        let signed = format!(
            r#"{{{content}"destination":"{to_name}","method":"{method}","origin":"{own}","uri":"{uri}"}}"#
        );
        let (key, signature) = self.keys.sign(signed.as_bytes()).into_parts();
        let signature = Base64::<Standard, _>::new(signature).encode();
        let authorization = format!(
            r#"X-Matrix origin="{own}",destination="{to_name}",key="{key}",sig="{signature}""#
        );
        let request = Request::builder()
            .method(method)
            .uri(uri)
            .header(header::HOST, to_name)
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::AUTHORIZATION, authorization)
            .body(Full::new(Bytes::from(body.to_owned())))?;
        let answer = sender.send_request(request).await?.into_body().collect().await?;
        Ok(serde_json::from_slice(&answer.to_bytes())?)
    }
}

/// How it answers.
impl Hostile {
    /// Serves other homeservers.
    pub(crate) async fn serve(self: Rc<Self>) -> Result<(), Failure> {
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT)).await?;
        loop {
            let (stream, _) = listener.accept().await?;
            let this = Rc::clone(&self);
            tokio::task::spawn_local(async move {
                let Ok(stream) = this.acceptor.accept(stream).await else { return };
                let answer = service_fn(|request| {
                    let this = Rc::clone(&this);
                    async move { Ok::<_, Infallible>(this.answer(request).await) }
                });
                let _ = server::Builder::new().serve_connection(TokioIo::new(stream), answer).await;
            });
        }
    }

    async fn answer(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let (head, body) = request.into_parts();
        let path = head.uri.path_and_query().map_or("", |path| path.as_str()).to_owned();
        let body = match body.collect().await {
            Ok(body) => body.to_bytes(),
            Err(_) => Bytes::new(),
        };
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        let honest = self.honest(&path, &body);
        let is_for_keys = path.starts_with("/_matrix/key");
        // Without its keys, nothing that it says counts.
        let mood = if is_for_keys { self.dice.below(300) } else { self.dice.below(100) };
        let (status, text) = match mood {
            0..=9 => {
                sleep(self.dice.between_ms(1_000, 60_000)).await;
                (200, honest)
            }
            10..=14 => {
                sleep(Duration::from_secs(300)).await;
                (200, honest)
            }
            15..=24 => {
                let status = [400, 401, 403, 404, 413, 429, 500, 502];
                let status = self.dice.pick(&status).copied().unwrap_or(500);
                (
                    status,
                    r#"{"errcode":"M_UNKNOWN","error":"No.","retry_after_ms":1000}"#.to_owned(),
                )
            }
            25..=29 => (200, honest.chars().take(honest.chars().count() / 2).collect()),
            30..=39 => (200, self.lie(&path)),
            40..=43 => (200, odd::json(&self.dice)),
            _ => (200, honest),
        };
        if mood < 44 {
            self.note(&format!("answers {path} in mood {mood}"));
        }
        let mut answer = Response::new(Full::new(Bytes::from(text)));
        if let Ok(status) = status.try_into() {
            *answer.status_mut() = status;
        }
        answer
    }

    /// What a correct homeserver would say, as far as this one knows it.
    fn honest(&self, path: &str, body: &Value) -> String {
        if path.starts_with("/_matrix/key") {
            return self.document();
        }
        let Some(path) = path.strip_prefix("/_matrix/federation/v1/") else {
            return "{}".to_owned();
        };
        let parts: Vec<_> = path.split(['/', '?']).map(decoded).collect();
        let part = |nth: usize| parts.get(nth).map_or("", String::as_str);
        let made = self.made.borrow();
        let (name, now) = (&self.name, os::now_ms());
        match part(0) {
            "send" => {
                self.hear(body);
                r#"{"pdus":{}}"#.to_owned()
            }
            "event" => {
                let event = made.get(part(1)).cloned().unwrap_or_default();
                format!(r#"{{"origin":"{name}","origin_server_ts":{now},"pdus":[{event}]}}"#)
            }
            "get_missing_events" => {
                let mut open: Vec<_> = ids(&body["latest_events"]);
                let (known, mut found) = (ids(&body["earliest_events"]), Vec::new());
                while let Some(id) = open.pop()
                    && found.len() < 100
                {
                    let Some(text) = made.get(&id) else { continue };
                    let event: Value = serde_json::from_str(text).unwrap_or_default();
                    let prev = ids(&event["prev_events"]);
                    found.extend(prev.iter().filter_map(|id| made.get(id).cloned()));
                    open.extend(prev.into_iter().filter(|id| !known.contains(id)));
                }
                found.reverse();
                format!(r#"{{"events":[{}]}}"#, found.join(","))
            }
            "backfill" => format!(r#"{{"origin":"{name}","origin_server_ts":{now},"pdus":[]}}"#),
            // What it was told at its join is no longer the state.
            "state" | "event_auth" => {
                let rooms = self.rooms.borrow();
                let state = json!(rooms.get(part(1)).map(|room| &room.state));
                format!(r#"{{"pdus":{state},"auth_chain":{state}}}"#)
            }
            "state_ids" => {
                let rooms = self.rooms.borrow();
                let ids: Vec<_> = rooms.get(part(1)).map_or_else(Vec::new, |room| {
                    room.state.iter().filter_map(|event| self.id_of(room, event)).collect()
                });
                json!({ "pdu_ids": ids, "auth_chain_ids": ids }).to_string()
            }
            "user" if part(1) == "devices" => {
                let odd = odd::json(&self.dice);
                format!(r#"{{"user_id":{},"stream_id":{odd},"devices":[{odd}]}}"#, json!(part(2)))
            }
            "user" => {
                format!(r#"{{"device_keys":{0},"one_time_keys":{0}}}"#, odd::json(&self.dice))
            }
            "query" => format!(r#"{{"displayname":{}}}"#, odd::json(&self.dice)),
            _ => "{}".to_owned(),
        }
    }

    fn id_of(&self, room: &Room, event: &Value) -> Option<String> {
        let rules = room.version.as_ref()?.rules()?;
        let event: CanonicalJsonObject = serde_json::from_value(event.clone()).ok()?;
        Some(format!("${}", reference_hash(&event, &rules).ok()?))
    }

    /// Another event than the one that was asked for, or one with a wrong signature.
    fn lie(&self, path: &str) -> String {
        let made: Vec<_> = self.made.borrow().values().cloned().collect();
        let event = self.dice.pick(&made).cloned().unwrap_or_default();
        let event =
            if self.dice.happens(50) { event } else { event.replace("depth\":", "depth\":2") };
        self.note(&format!("lies about {path}"));
        format!(
            r#"{{"pdus":[{event}],"events":[{event}],"auth_chain":[{event}],"pdu_ids":["$x"]}}"#
        )
    }

    /// Notes the events of a transaction.
    fn hear(&self, body: &Value) {
        for event in body["pdus"].as_array().into_iter().flatten() {
            let mut rooms = self.rooms.borrow_mut();
            let Some(room) = rooms.get_mut(event["room_id"].as_str().unwrap_or_default()) else {
                continue;
            };
            if let Some(id) = self.id_of(room, event) {
                room.heard.push(id);
            }
        }
    }

    /// What it publishes of its keys.
    fn document(&self) -> String {
        let key = Base64::<Standard, _>::new(self.keys.public_key()).encode();
        let document = json!({
            "server_name": self.name, "verify_keys": { "ed25519:odd": { "key": key } },
            "old_verify_keys": {}, "valid_until_ts": os::now_ms() + 3_600_000,
        });
        let Ok(mut document) = serde_json::from_value::<CanonicalJsonObject>(document) else {
            return String::new();
        };
        // It is canonical.
        let _ = sign_json(&self.name, &self.keys, &mut document);
        json!(document).to_string()
    }
}

/// The canonical form of a text, with numbers as Synapse writes them if it can hold them.
fn form(text: &str) -> String {
    let form = canonical(text, Numbers::Lax).or_else(|_| canonical(text, Numbers::AsWritten));
    form.map_or_else(|_| text.to_owned(), std::borrow::Cow::into_owned)
}

fn ids(value: &Value) -> Vec<String> {
    let ids = value.as_array().into_iter().flatten();
    ids.filter_map(Value::as_str).map(str::to_owned).collect()
}

/// A segment of a path as text.
fn decoded(segment: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = segment.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let hex = after.get(..2).and_then(|hex| std::str::from_utf8(hex).ok());
        let byte = hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()).filter(|_| *first == b'%');
        bytes.push(byte.unwrap_or(*first));
        rest = if byte.is_some() { &after[2..] } else { after };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
