//! Calls: who is let into which ones, by tokens that LiveKit takes.

use std::process::Command;
use std::sync::{Arc, Mutex};

use hmac::{Hmac, KeyInit as _, Mac as _};
use ruma::serde::{
    Base64,
    base64::{Standard, UrlSafe},
};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tempfile::{NamedTempFile, TempDir};

use crate::api::guests::{guest, log_with_guests};
use crate::harness::stand_in::{Reply, Service, reply_json};
use crate::harness::tools::{judged, programs, python_for_livekit};
use crate::harness::{Answer, Asked, TestServer, User, encode, refused_start, skip, until};

pub(crate) const KEY: &str = "APItest";
pub(crate) const SECRET: &str = "a-secret-that-is-as-long-as-LiveKit-wants-it";

/// Where clients are let into calls by OpenID tokens.
const SERVICE: &str = "/_matrix/client/unstable/org.logcabin/rtc";
const GET_TOKEN: &str = "/_matrix/client/unstable/io.element.msc4195/rtc/livekit/get_token";

/// In the place of LiveKit: answers those who have its key, and knows which rooms it made.
pub(crate) struct Livekit {
    service: Service,
    made: Arc<Mutex<Vec<String>>>,
    /// The status of all answers, if they are refusals.
    refuses: Arc<Mutex<Option<u16>>>,
    keys: NamedTempFile,
}

impl Livekit {
    pub(crate) async fn start() -> Self {
        let (made, refuses) = (Arc::<Mutex<Vec<_>>>::default(), Arc::<Mutex<_>>::default());
        let (makes, refusing) = (Arc::clone(&made), Arc::clone(&refuses));
        let answer = move |asked: Asked| {
            let reply = match *refusing.lock().expect("no panic") {
                Some(status) => reply_json(status, &json!({ "code": "internal" })),
                None => answered(&asked, &makes),
            };
            async move { reply }
        };
        let keys = NamedTempFile::new().expect("a file");
        let livekit = Self { service: Service::start(answer).await, made, refuses, keys };
        livekit.has_keys(&format!("{KEY}: {SECRET}\n"));
        livekit
    }

    pub(crate) fn url(&self) -> String {
        format!("ws://{}", self.service.address)
    }

    /// Writes the file of keys of this server.
    pub(crate) fn has_keys(&self, text: &str) {
        std::fs::write(self.keys.path(), text).expect("written");
    }

    pub(crate) fn refuses(&self, status: Option<u16>) {
        *self.refuses.lock().expect("no panic") = status;
    }

    /// The rooms that it was told to make, each time.
    pub(crate) fn made(&self) -> Vec<String> {
        self.made.lock().expect("no panic").clone()
    }

    pub(crate) fn settings(&self) -> [(&'static str, String); 2] {
        let keys = self.keys.path().display().to_string();
        [("LOGCABIN_RTC_LIVEKIT_URL", self.url()), ("LOGCABIN_RTC_LIVEKIT_KEYS_FILE", keys)]
    }

    pub(crate) async fn server(&self, more: &[(&str, &str)]) -> TestServer {
        let own = self.settings();
        let mut all: Vec<_> = own.iter().map(|(name, value)| (*name, &**value)).collect();
        all.extend(more);
        TestServer::start_with(&all).await
    }
}

fn answered(asked: &Asked, makes: &Mutex<Vec<String>>) -> Reply {
    let bearer = asked.headers["authorization"].to_str().expect("text");
    let claims = bearer.strip_prefix("Bearer ").and_then(|jwt| opened(jwt, SECRET));
    let may = |grant: &str| claims.as_ref().is_some_and(|claims| claims["video"][grant] == true);
    match &*asked.path {
        "/twirp/livekit.RoomService/CreateRoom" if may("roomCreate") => {
            let name = asked.body["name"].as_str().expect("a name").to_owned();
            makes.lock().expect("no panic").push(name.clone());
            reply_json(200, &json!({ "sid": "RM_1", "name": name }))
        }
        "/twirp/livekit.RoomService/ListRooms" if may("roomList") => {
            reply_json(200, &json!({ "rooms": [] }))
        }
        _ => reply_json(401, &json!({ "code": "unauthenticated" })),
    }
}

/// What a token says, if it is signed by this secret.
pub(crate) fn opened(jwt: &str, secret: &str) -> Option<Value> {
    let (signed, signature) = jwt.rsplit_once('.')?;
    let (_, claims) = signed.split_once('.')?;
    let mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).ok()?.chain_update(signed);
    let expected = Base64::<UrlSafe, _>::new(mac.finalize().into_bytes().to_vec()).encode();
    let claims = Base64::<UrlSafe>::parse(claims).ok()?;
    (expected == signature).then(|| serde_json::from_slice(claims.as_bytes()).expect("JSON"))
}

/// What the token in an answer says.
#[track_caller]
pub(crate) fn claims(answer: &Value) -> Value {
    opened(answer["jwt"].as_str().expect("a token"), SECRET).expect("the signature")
}

pub(crate) fn hash(parts: &[&str]) -> String {
    let digest = Sha256::digest(json!(parts).to_string());
    Base64::<Standard, _>::new(digest.to_vec()).encode()
}

pub(crate) async fn openid(user: &User) -> Value {
    let path = format!("/user/{}/openid/request_token", encode(&user.user_id));
    user.post(&path, json!({})).await.ok()
}

pub(crate) async fn ask(server: &TestServer, path: &str, body: &Value) -> Answer {
    server.http().request("POST", &format!("{SERVICE}{path}"), None, Some(body)).await
}

/// What clients send to `/sfu/get`.
pub(crate) fn of_device(token: &Value, room_id: &str) -> Value {
    json!({ "room": room_id, "openid_token": token, "device_id": "PHONE" })
}

/// What clients send to `/get_token`.
fn of_member(token: &Value, room_id: &str, user_id: &str) -> Value {
    json!({
        "room_id": room_id, "slot_id": "m.call#ROOM", "openid_token": token,
        "member": { "id": "xyz", "claimed_user_id": user_id, "claimed_device_id": "PHONE" },
    })
}

fn of_slot(url: &str, room_id: &str) -> Value {
    json!({ "url": url, "room_id": room_id, "slot_id": "m.call#ROOM", "member_id": "xyz" })
}

async fn own(user: &User, body: &Value) -> Answer {
    user.http.request("POST", GET_TOKEN, Some(&user.access_token), Some(body)).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_of_a_room_get_into_its_calls_and_nobody_else_does() {
    let livekit = Livekit::start().await;
    let mut server = livekit.server(&[]).await;
    let (ann, bob) = (server.register("ann").await, server.register("bob").await);
    let room_id = ann.create_room(json!({ "preset": "public_chat" })).await;
    let (of_ann, of_bob) = (openid(&ann).await, openid(&bob).await);
    let room = hash(&[&room_id, "m.call#ROOM"]);
    let video = json!({
        "room": room, "roomCreate": false, "roomJoin": true, "canPublish": true,
        "canSubscribe": true, "canUpdateOwnMetadata": false, "hidden": false,
    });
    let (url, id) = (livekit.url(), ann.user_id.clone());
    let device = ask(&server, "/sfu/get", &of_device(&of_ann, &room_id)).await;
    assert_eq!(device.header("access-control-allow-origin"), "*");
    let device = device.ok();
    let member = ask(&server, "/get_token", &of_member(&of_ann, &room_id, &id)).await.ok();
    let slot = own(&ann, &of_slot(&url, &room_id)).await.ok();
    for (answer, sub) in [
        (&device, format!("{id}:PHONE")),
        (&member, hash(&[&id, "PHONE", "xyz"])),
        (&slot, hash(&[&id, "xyz"])),
    ] {
        let claims = claims(answer);
        assert_eq!((&claims["iss"], &claims["sub"]), (&json!(KEY), &json!(sub)), "{claims}");
        assert_eq!(claims["video"], video, "{claims}");
        let (from, until) = (claims["nbf"].as_u64(), claims["exp"].as_u64());
        assert_eq!(until, from.map(|from| from + 600), "{claims}");
    }
    assert_eq!((&device["url"], &member["url"]), (&json!(url), &json!(url)));
    assert_eq!(livekit.made(), [&*room, &room, &room]);

    // Of a room that bob is not in, and of one that does not exist.
    for room_id in [&*room_id, "!nowhere:e2e.test"] {
        let device = of_device(&of_bob, room_id);
        ask(&server, "/sfu/get", &device).await.refused(403, "M_FORBIDDEN");
        let member = of_member(&of_bob, room_id, &bob.user_id);
        ask(&server, "/get_token", &member).await.refused(403, "M_FORBIDDEN");
        own(&bob, &of_slot(&url, room_id)).await.refused(403, "M_FORBIDDEN");
    }
    // Tokens that are none, are for something else, or are somebody else's.
    let mut wrong = of_ann.clone();
    for token in ["", "nonsense", &ann.access_token, &"x".repeat(5000)] {
        wrong["access_token"] = json!(token);
        let device = of_device(&wrong, &room_id);
        ask(&server, "/sfu/get", &device).await.refused(401, "M_UNAUTHORIZED");
    }
    let stolen = of_member(&of_bob, &room_id, &id);
    ask(&server, "/get_token", &stolen).await.refused(401, "M_UNAUTHORIZED");
    let foreign = json!({ "access_token": "x", "matrix_server_name": "other.test" });
    let foreign = of_device(&foreign, &room_id);
    ask(&server, "/sfu/get", &foreign).await.refused(401, "M_UNAUTHORIZED");
    own(&ann, &of_slot("wss://other.test", &room_id)).await.refused(400, "M_INVALID_PARAM");
    let request = of_slot(&url, &room_id);
    ann.http.request("POST", GET_TOKEN, None, Some(&request)).await.refused(401, "M_MISSING_TOKEN");
    assert_eq!(livekit.made().len(), 3, "no room was made for them");

    // A member who joins gets in, also after a restart, and does not after leaving.
    bob.join(&room_id).await.ok();
    server.restart().await;
    ask(&server, "/sfu/get", &of_device(&of_bob, &room_id)).await.ok();
    let bob = User { http: server.http(), ..bob };
    bob.act(&room_id, "leave", None).await.ok();
    ask(&server, "/sfu/get", &of_device(&of_bob, &room_id)).await.refused(403, "M_FORBIDDEN");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_that_are_not_understood_are_refused() {
    let livekit = Livekit::start().await;
    let server = livekit.server(&[]).await;
    let ann = server.register("ann").await;
    let room_id = ann.create_room(json!({})).await;
    let token = openid(&ann).await;
    let right = of_device(&token, &room_id);
    // A client that is told this looks after its delayed event itself.
    for (name, value) in [
        ("delay_id", json!("abc")),
        ("delay_timeout", json!(1000)),
        ("room", json!("no room")),
        ("room", Value::Null),
        ("device_id", json!("")),
        ("device_id", json!("x".repeat(256))),
        ("openid_token", json!({ "access_token": "x" })),
    ] {
        let mut wrong = right.clone();
        wrong[name] = value;
        ask(&server, "/sfu/get", &wrong).await.refused(400, "M_BAD_JSON");
    }
    for name in ["slot_id", "member", "openid_token"] {
        let mut wrong = of_member(&token, &room_id, &ann.user_id);
        wrong.as_object_mut().expect("an object").remove(name);
        ask(&server, "/get_token", &wrong).await.refused(400, "M_BAD_JSON");
    }
    let delegate = GET_TOKEN.replace("get_token", "delegate_delayed_leave");
    let asked = ann.http.request("POST", &delegate, Some(&ann.access_token), Some(&right)).await;
    asked.refused(404, "M_UNRECOGNIZED");
    assert!(livekit.made().is_empty());
    ask(&server, "/sfu/get", &right).await.ok();
    let health = format!("{SERVICE}/healthz");
    server.http().request("GET", &health, None, None).await.ok();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_livekit_that_fails_is_no_fault_of_the_client() {
    let livekit = Livekit::start().await;
    let server = livekit.server(&[]).await;
    let ann = server.register("ann").await;
    let room_id = ann.create_room(json!({})).await;
    let asked = of_device(&openid(&ann).await, &room_id);
    livekit.refuses(Some(500));
    ask(&server, "/sfu/get", &asked).await.refused(502, "M_CONNECTION_FAILED");
    livekit.refuses(None);
    ask(&server, "/sfu/get", &asked).await.ok();
    let url = livekit.url();
    drop(livekit);
    ask(&server, "/sfu/get", &asked).await.refused(502, "M_CONNECTION_FAILED");
    own(&ann, &of_slot(&url, &room_id)).await.refused(502, "M_CONNECTION_FAILED");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restricted_users_get_into_no_calls_of_others_and_guests_do() {
    let livekit = Livekit::start().await;
    let directory = TempDir::new().expect("a temporary directory");
    log_with_guests(directory.path(), &["gus"]).await;
    let own_settings = livekit.settings();
    let settings: Vec<_> = own_settings.iter().map(|(name, value)| (*name, &**value)).collect();
    let server = TestServer::start_on_with(directory.path(), &settings).await;
    let admin = server.register("admin").await;
    let set_admin = format!("set-admin {}", admin.user_id);
    crate::administration::done(crate::administration::user_command(
        server.data_dir(),
        &set_admin,
        "",
    ));
    let (eve, gus) = (server.register("eve").await, guest(&server, "gus"));
    let room_id = admin
        .create_room(json!({
            "preset": "public_chat",
            "initial_state": [{
                "type": "m.room.guest_access", "state_key": "",
                "content": { "guest_access": "can_join" },
            }],
        }))
        .await;
    eve.join(&room_id).await.ok();
    gus.join(&room_id).await.ok();
    let (url, token) = (livekit.url(), openid(&eve).await);
    let slot = of_slot(&url, &room_id);
    let room = hash(&[&room_id, "m.call#ROOM"]);
    assert_eq!(claims(&own(&gus, &slot).await.ok())["video"]["room"], room);

    let device = of_device(&token, &room_id);
    admin.moderate("suspend", &eve.user_id, Some(json!({ "suspended": true }))).await.ok();
    ask(&server, "/sfu/get", &device).await.refused(403, "M_USER_SUSPENDED");
    own(&eve, &slot).await.refused(403, "M_USER_SUSPENDED");
    admin.moderate("suspend", &eve.user_id, Some(json!({ "suspended": false }))).await.ok();
    // She seems to be let in, and is alone there.
    let shadow_ban = format!("/v1/users/{}/shadow_ban", encode(&eve.user_id));
    admin.administer("POST", &shadow_ban, Some(json!({}))).await.ok();
    let alone = hash(&[&room_id, "m.call#ROOM", &eve.user_id]);
    for answer in [ask(&server, "/sfu/get", &device).await, own(&eve, &slot).await] {
        assert_eq!(claims(&answer.ok())["video"]["room"], alone);
    }
    admin.moderate("lock", &eve.user_id, Some(json!({ "locked": true }))).await.ok();
    ask(&server, "/sfu/get", &device).await.refused(401, "M_UNAUTHORIZED");
    own(&eve, &slot).await.refused(401, "M_USER_LOCKED");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_for_calls_are_limited_in_rate() {
    let livekit = Livekit::start().await;
    let limits =
        [("LOGCABIN_RATE_LIMITS_ENABLED", "true"), ("LOGCABIN_RATE_LIMITS_CALLS", "1/h burst 2")];
    let server = livekit.server(&limits).await;
    let ann = server.register("ann").await;
    let room_id = ann.create_room(json!({})).await;
    let device = of_device(&openid(&ann).await, &room_id);
    let slot = of_slot(&livekit.url(), &room_id);
    for _ in 0..2 {
        ask(&server, "/sfu/get", &device).await.ok();
        own(&ann, &slot).await.ok();
    }
    ask(&server, "/sfu/get", &device).await.refused(429, "M_LIMIT_EXCEEDED");
    own(&ann, &slot).await.refused(429, "M_LIMIT_EXCEEDED");
    assert_eq!(livekit.made().len(), 4);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_are_told_of_the_own_service_and_then_of_others() {
    let livekit = Livekit::start().await;
    let other = "https://calls.example.org/livekit";
    let server = livekit.server(&[("LOGCABIN_RTC_SERVICE_URLS", other)]).await;
    let ann = server.register("ann").await;
    let own = format!("{}{SERVICE}", server.base().trim_end_matches('/'));
    let expected = json!([
        { "type": "livekit", "url": livekit.url(), "livekit_service_url": own },
        { "type": "livekit", "livekit_service_url": other },
    ]);
    let path = "/_matrix/client/unstable/org.matrix.msc4143/rtc/transports";
    let told = ann.http.request("GET", path, Some(&ann.access_token), None).await.ok();
    assert_eq!(told, json!({ "transports": expected, "rtc_transports": expected }));
    ann.http.request("GET", path, None, None).await.refused(401, "M_MISSING_TOKEN");
    let document = server.http().request("GET", "/.well-known/matrix/client", None, None).await;
    assert_eq!(document.ok()["org.matrix.msc4143.rtc_foci"], expected);
    let versions = server.http().request("GET", "/_matrix/client/versions", None, None).await;
    assert_eq!(versions.ok()["unstable_features"]["org.matrix.msc4143"], true);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_livekit_there_are_no_tokens() {
    let server = TestServer::start().await;
    let ann = server.register("ann").await;
    let room_id = ann.create_room(json!({})).await;
    let token = openid(&ann).await;
    let device = of_device(&token, &room_id);
    ask(&server, "/sfu/get", &device).await.refused(404, "M_UNRECOGNIZED");
    let member = of_member(&token, &room_id, &ann.user_id);
    ask(&server, "/get_token", &member).await.refused(404, "M_UNRECOGNIZED");
    let health = format!("{SERVICE}/healthz");
    server.http().request("GET", &health, None, None).await.refused(404, "M_UNRECOGNIZED");
    own(&ann, &of_slot("wss://l.test", &room_id)).await.refused(400, "M_INVALID_PARAM");
}

#[test]
fn a_server_without_the_key_does_not_start() {
    let keys = NamedTempFile::new().expect("a file");
    let path = keys.path().display().to_string();
    let url = ("LOGCABIN_RTC_LIVEKIT_URL", "wss://livekit.example.org");
    let said = refused_start(&[url], &[]);
    assert!(said.contains("rtc.livekit_keys_file"), "{said}");
    let said = refused_start(&[url, ("LOGCABIN_RTC_LIVEKIT_KEYS_FILE", &path)], &[]);
    assert!(said.contains("key: secret"), "{said}");
    std::fs::write(keys.path(), "only-a-secret-that-nobody-may-see").expect("written");
    let said = refused_start(&[url, ("LOGCABIN_RTC_LIVEKIT_KEYS_FILE", &path)], &[]);
    assert!(said.contains("key: secret") && !said.contains("nobody-may-see"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_key_is_taken_over_while_the_server_runs() {
    let livekit = Livekit::start().await;
    let server = livekit.server(&[]).await;
    if server.process().is_none() {
        // Several nodes: each is told for itself.
        return;
    }
    let ann = server.register("ann").await;
    let room_id = ann.create_room(json!({})).await;
    let device = of_device(&openid(&ann).await, &room_id);
    livekit.has_keys("nonsense\n");
    server.hang_up();
    server.prints("the key of LiveKit stays").await;
    claims(&ask(&server, "/sfu/get", &device).await.ok());
    // LiveKit knows both for a while.
    livekit.has_keys(&format!("APInext: {SECRET}\n{KEY}: {SECRET}\n"));
    server.hang_up();
    until("the next key signs", async || {
        let answer = ask(&server, "/sfu/get", &device).await.ok();
        claims(&answer)["iss"] == "APInext"
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn livekits_own_library_takes_the_tokens() {
    let python = match python_for_livekit() {
        Ok(python) => python,
        Err(missing) => return skip("LiveKit's library", &missing),
    };
    let livekit = Livekit::start().await;
    let server = livekit.server(&[]).await;
    let ann = server.register("ann").await;
    let room_id = ann.create_room(json!({})).await;
    let asked = of_device(&openid(&ann).await, &room_id);
    let jwt = ask(&server, "/sfu/get", &asked).await.ok_string("jwt");
    let room = hash(&[&room_id, "m.call#ROOM"]);
    let mut command = Command::new(python);
    command.arg(programs().join("livekit_token.py")).args([KEY, SECRET, &jwt, &room]);
    command.arg(format!("{}:PHONE", ann.user_id));
    let said = judged("LiveKit's library", command).await;
    assert!(said.contains("taken"), "{said}");
}
