//! What a server makes of a log that another server's database was imported to. The log is written
//! here, so that these tests need none.

use std::path::Path;
use std::sync::Arc;

use logcabin::clock::Clock;
use logcabin::decide::account::Register;
use logcabin::decide::create_room::{CreateRoom, Preset};
use logcabin::decide::membership::{Change, ChangeMembership};
use logcabin::engine::{Engine, Options};
use logcabin::log::{
    Batch, Log, StreamHeads,
    memory::MemoryLog,
    store::{SledLog, SledOptions},
};
use logcabin::record::{
    Command, NewRecord, Offset, Origin, Record, Stream,
    command::{
        DeviceLogin, FileHash, ImportBegin, ImportEnd, ImportSource, OauthClient, OauthGrant,
        PasswordFlags, ServerOldKey, TokenHash, Tokens, UserPassword, imported_password,
    },
};
use ruma::{OwnedUserId, RoomVersionId, owned_room_id, owned_user_id};
use serde_json::json;
use tempfile::TempDir;

use crate::administration::{command, done, done_json};
use crate::crash::assert_verifies;
use crate::harness::{TestServer, User, encode, run_logcabin};

/// When everything happened at the source: two years ago when this was written.
const THEN: u64 = 1_700_000_000_000;
/// Bob's access token there.
const TOKEN: &str = "syt_Ym9i_abcdefghijklmnopqrst_123456";
/// Bob's password there, with the pepper `pfeffer`.
const PASSWORD: &str = "correct horse";
const HASH: &str = "$2b$04$abcdefghijklmnopqrstuupayQdzyITqVnkTh96tjMrRDj3X.Q5bC";

/// The client that bob's tablet uses, and its refresh token: its access token has expired.
const CLIENT: &str = "01HENBZ12TMNVTTFB84J0T5MFA";
const REFRESH: &str = "mar_abcdefghijklmnopqrstuvwxyz0123_1aBcDe";
const SCOPE: &str = "urn:matrix:org.matrix.msc2967.client:api:* \
                     urn:matrix:org.matrix.msc2967.client:device:TABLET";

/// What a service beside the source knew: a client, and a session of it.
fn granted() -> Vec<Command> {
    let metadata = json!({
        "application_type": "web", "client_uri": "https://app.example/",
        "grant_types": ["authorization_code", "refresh_token"],
        "redirect_uris": ["https://app.example/cb"], "response_types": ["code"],
        "token_endpoint_auth_method": "none", "client_name": "App",
    });
    let client = OauthClient {
        client_id: CLIENT.to_owned(),
        client_secret: None,
        metadata: serde_json::from_value(metadata).expect("metadata"),
    };
    let login = DeviceLogin {
        user_id: bob(),
        device_id: "TABLET".into(),
        display_name: Some("Bob's tablet".to_owned()),
        tokens: Tokens {
            access: TokenHash([9; 32]),
            expires_ms: None,
            refresh: Some(TokenHash::of(REFRESH)),
        },
        sent: Vec::new(),
    };
    let grant = OauthGrant {
        grant_id: "01HENBZ12TMNVTTFB84J0T5MFB".to_owned(),
        user_id: bob(),
        client_id: CLIENT.to_owned(),
        scope: SCOPE.to_owned(),
        device_id: Some("TABLET".into()),
        tokens: None,
        code: TokenHash([8; 32]),
        auth_ms: THEN,
    };
    vec![client.into(), login.into(), grant.into()]
}

fn bob() -> OwnedUserId {
    owned_user_id!("@bob:e2e.test")
}

fn options(clock: Clock) -> Options {
    Options { server_name: "e2e.test".try_into().expect("a server name"), ..Options::small(clock) }
}

/// The records of a server on which bob made a room and left it.
async fn at_the_source() -> Vec<Record> {
    let clock = Clock::manual(THEN);
    let log: Arc<dyn Log> = Arc::new(MemoryLog::new(clock.clone()));
    let engine = Engine::open(Arc::clone(&log), options(clock.clone())).await.expect("an engine");
    let _ = engine.propose(Origin::server(), Register::user(bob())).await.expect("a user");
    let room_id = owned_room_id!("!left:e2e.test");
    let ts = clock.timestamp();
    let create =
        CreateRoom::new(room_id.clone(), bob(), RoomVersionId::V10, Preset::PublicChat, ts);
    let _ = engine.propose(Origin::server(), create).await.expect("a room");
    let leave = ChangeMembership::new(room_id, bob(), bob(), Change::Leave, ts);
    let _ = engine.propose(Origin::server(), leave).await.expect("a change");
    log.read(Offset::new(1), usize::MAX).expect("the records")
}

/// Writes what an import writes into an empty data directory. The number of each event at the
/// source is the offset of its record there. Returns that of the last one.
async fn import(data_dir: &Path) -> u64 {
    let source = ImportSource::Synapse;
    let own = |command: &Command| NewRecord::new(Stream::server(), Origin::server(), command);
    let user = Stream::user(&bob());
    let imported = |stream: &Stream, row: &str, command: &Command| {
        NewRecord::imported(stream.clone(), source, row, Some(THEN), command)
    };
    let (mut records, mut last) = (Vec::new(), 0);
    for record in at_the_source().await {
        let command = record.command().expect("a command").expect("a payload");
        if matches!(command, Command::ServerIdentity(_)) {
            let begin = ImportBegin {
                source,
                version: "1.157.0".to_owned(),
                schema: 94,
                database: "sqlite".to_owned(),
                tool: "0.1.0".to_owned(),
                begun_ms: THEN,
            };
            records.extend([own(&command), own(&begin.into())]);
            continue;
        }
        let row = match command {
            Command::RoomEvent(_) => {
                last = record.offset().get();
                format!("event {last}")
            }
            _ => "users".to_owned(),
        };
        records.push(imported(&record.header.stream, &row, &command));
    }
    let flags = PasswordFlags { nfkc: true, pepper: true };
    let password = imported_password(flags, HASH);
    let password = UserPassword { user_id: bob(), password, renewed: false };
    let access = TokenHash::of(TOKEN);
    let login = DeviceLogin {
        user_id: bob(),
        device_id: "PHONE".into(),
        display_name: Some("Bob's phone".to_owned()),
        tokens: Tokens { access, expires_ms: None, refresh: None },
        sent: Vec::new(),
    };
    let key = ServerOldKey {
        key_id: "ed25519:a_OLD".to_owned(),
        public_key: "XGX0JRS2Af3be3knz2fBiRbApjm2Dh61gXDJA8kcJNI".to_owned(),
        expired_ms: THEN,
    };
    let end = ImportEnd {
        source,
        digest: FileHash([7; 32]),
        positions: [("events".to_owned(), i64::try_from(last).expect("a small number"))].into(),
        read: [("users".to_owned(), 1)].into(),
        left: Vec::new(),
        differing_rooms: 0,
        rehearsal: false,
    };
    for command in granted() {
        let stream = match &command {
            Command::OauthClient(body) => Stream::oauth_client(&body.client_id),
            _ => user.clone(),
        };
        records.push(imported(&stream, "mas.oauth2_sessions", &command));
    }
    records.extend([
        imported(&user, "users", &password.into()),
        imported(&user, "access_tokens", &login.into()),
        imported(&Stream::server(), "homeserver.yaml", &key.into()),
        own(&end.into()),
    ]);
    let log = SledLog::open(SledOptions::new(data_dir)).expect("a log");
    log.start(StreamHeads::new(), Box::new(|_| ()));
    for record in records {
        let batch = Batch { expect: Vec::new(), records: vec![record] };
        log.append(batch).await.expect("a record");
    }
    log.close();
    last
}

/// The position of a client of Synapse after the event with this number.
fn since(number: u64) -> String {
    format!("s{number}_17_338_6732159_1082514_541479_274711_265584_1_379_4242_4141_4343_4444")
}

#[tokio::test(flavor = "multi_thread")]
async fn users_of_an_imported_server_go_on_as_if_nothing_had_happened() {
    let directory = TempDir::new().expect("a temporary directory");
    let data_dir = directory.path().join("data");
    let pepper = directory.path().join("pepper");
    std::fs::write(&pepper, "pfeffer\n").expect("a file");
    let pepper = pepper.to_str().expect("a path in UTF-8");
    let last = import(&data_dir).await;
    let settings = [("LOGCABIN_PASSWORDS_IMPORTED_PEPPER_FILE", pepper)];
    let mut server = TestServer::start_alone_with(&data_dir, &settings).await;
    let phone = User {
        http: server.http(),
        user_id: bob().to_string(),
        access_token: TOKEN.to_owned(),
        device_id: "PHONE".to_owned(),
    };

    // The session.
    let whoami = phone.request("GET", "/account/whoami", None).await.ok();
    assert_eq!((&whoami["user_id"], &whoami["device_id"]), (&json!(bob()), &json!("PHONE")));

    // Positions. A client starts over, and learns of the room if it did not know that bob left it.
    for (number, is_told) in [(last, false), (last - 1, true)] {
        let path = format!("/sync?timeout=0&since={}", since(number));
        let answer = phone.request("GET", &path, None).await.ok();
        let left = &answer["rooms"]["leave"]["!left:e2e.test"];
        assert_eq!(left.is_object(), is_told, "after event {number}: {answer}");
        let path = format!("/sync?timeout=0&since={}", answer["next_batch"].as_str().unwrap_or(""));
        phone.request("GET", &path, None).await.ok();
    }
    let sliding = |pos: &str| {
        let path = "/_matrix/client/unstable/org.matrix.simplified_msc3575/sync";
        format!("{path}?timeout=0{pos}")
    };
    let body = json!({ "lists": { "all": {
        "ranges": [[0, 9]], "required_state": [], "timeline_limit": 1,
    } } });
    let post =
        async |path: String| phone.http.request("POST", &path, Some(TOKEN), Some(&body)).await;
    let pos = format!("&pos=5/{}", since(last - 1));
    post(sliding(&pos)).await.refused(400, "M_UNKNOWN_POS");
    let answer = post(sliding("")).await.ok();
    let left = &answer["rooms"]["!left:e2e.test"]["required_state"][0];
    assert_eq!(left["content"]["membership"], "leave", "{answer}");
    // Clients keep positions with the parts of a room's history that they do not have.
    let room = encode("!left:e2e.test");
    let newest = async |from: &str| {
        let path = format!("/rooms/{room}/messages?dir=b&limit=1&from={from}");
        let answer = phone.request("GET", &path, None).await.ok();
        let event = answer["chunk"].get(0).cloned().unwrap_or_default();
        (event["type"].clone(), event["content"]["membership"].clone())
    };
    let after = |number: u64| since(number).replacen('s', "t7-", 1);
    for from in [since(last), after(last), since(last + 1000)] {
        assert_eq!(newest(&from).await, (json!("m.room.member"), json!("leave")), "{from}");
    }
    for from in [since(last - 1), after(last - 1)] {
        let (kind, membership) = newest(&from).await;
        assert!(kind.is_string() && membership != "leave", "{from}: {kind} {membership}");
    }
    for from in [since(0), since(3).replacen("s3", "t7--3", 1)] {
        assert_eq!(newest(&from).await, (json!(null), json!(null)), "{from}");
    }
    for (number, membership) in [(last, "leave"), (last - 1, "join")] {
        let path = format!("/rooms/{room}/members?at={}", after(number));
        let answer = phone.request("GET", &path, None).await.ok();
        assert_eq!(answer["chunk"][0]["content"]["membership"], membership, "{answer}");
    }
    let now = answer["pos"].as_str().unwrap_or_default();
    let path = format!("/keys/changes?from={}&to={}", since(last), encode(now));
    phone.request("GET", &path, None).await.ok();

    // The password, twice: the second time by its new hash.
    for _ in 0..2 {
        let laptop = User::login(&server.http(), "bob", PASSWORD).await;
        laptop.request("POST", "/logout", Some(&json!({}))).await.ok();
    }

    // The time.
    let shown = done_json(command("user", &data_dir, "show bob --json", ""));
    assert_eq!(shown["created_ms"], THEN, "{shown}");
    assert_eq!(shown["logged_in"]["PHONE"]["since_ms"], THEN, "{shown}");

    server.stop();
    assert_verifies(&data_dir);
    let path = data_dir.to_str().expect("a path in UTF-8");
    let why = |words: &[&str]| {
        done(run_logcabin([&["history", "--json", "why", path][..], words].concat()))
    };
    let account = why(&["user", "bob", "account"]);
    assert!(account.contains("imported from Synapse, users"), "{account}");
    assert!(account.contains("2023-11-14"), "{account}");
    let password = why(&["user", "bob", "password"]);
    assert_eq!(password.matches("$pbkdf2-sha512$").count(), 1, "{password}");
    let member = why(&["room", "!left:e2e.test", "member", "bob"]);
    assert!(member.contains(&format!("imported from Synapse, event {last}")), "{member}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_of_a_service_beside_the_source_goes_on_by_its_refresh_token() {
    let directory = TempDir::new().expect("a temporary directory");
    let data_dir = directory.path().join("data");
    import(&data_dir).await;
    let server = TestServer::start_alone_with(&data_dir, &[]).await;
    let http = server.http();
    let refreshed = async |refresh_token: &str, client_id: &str| {
        let body =
            format!("grant_type=refresh_token&refresh_token={refresh_token}&client_id={client_id}");
        let form = [("content-type", "application/x-www-form-urlencoded")];
        http.raw("POST", "/_matrix/oauth2/token", &form, body).await.json()
    };
    assert_eq!(refreshed(REFRESH, "another").await.status, 401);
    let wrong = refreshed("mar_abcdefghijklmnopqrstuvwxyz0123_zzzzzz", CLIENT).await;
    assert_eq!((wrong.status, &wrong.body["error"]), (400, &json!("invalid_grant")));

    // It may not have got the first answer.
    refreshed(REFRESH, CLIENT).await.ok();
    let tokens = refreshed(REFRESH, CLIENT).await.ok();
    assert_eq!(tokens["scope"], SCOPE, "{tokens}");
    let access = tokens["access_token"].as_str().expect("a token");
    let path = "/_matrix/client/v3/account/whoami";
    let whoami = http.request("GET", path, Some(access), None).await.ok();
    assert_eq!((&whoami["user_id"], &whoami["device_id"]), (&json!(bob()), &json!("TABLET")));
    // Now it has: the former token is over, and the session goes on with the newer one.
    assert_eq!(refreshed(REFRESH, CLIENT).await.status, 400);
    let next = tokens["refresh_token"].as_str().expect("a token").to_owned();
    refreshed(&next, CLIENT).await.ok();
    drop(server);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_an_import_positions_of_synapse_are_nobodys() {
    let server = TestServer::start().await;
    let ann = server.register("ann").await;
    let path = format!("/sync?timeout=0&since={}", since(7));
    ann.request("GET", &path, None).await.refused(400, "M_INVALID_PARAM");
}
