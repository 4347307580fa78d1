//! Policy lists: what their rules are applied to, what waits for approval, and what is seen of it.

use std::path::Path;

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::administration::{command, done, done_json, failed, history};
use crate::crash::assert_verifies;
use crate::harness::{TestServer, User, encode, until};

fn base64(bytes: &[u8]) -> String {
    ruma::serde::Base64::<ruma::serde::base64::Standard, _>::new(bytes).encode()
}

/// The content of a rule.
fn ban(entity: &str) -> Value {
    json!({ "entity": entity, "recommendation": "m.ban", "reason": "spam" })
}

/// A rule of the list in this room, under a key of its own.
async fn rule(owner: &User, list: &str, kind: &str, key: &str, content: Value) -> String {
    let event_type = format!("m.policy.rule.{kind}");
    owner.set_state(list, &event_type, key, &content).await.ok_string("event_id")
}

/// Waits until the rules are applied as they are now.
pub(crate) async fn settled(data_dir: &Path) {
    until("no rule is new", async || {
        let said = done_json(command("policy", data_dir, "list --json", ""));
        said["lists"].as_array().expect("lists").iter().all(|list| list["new"] == 0)
    })
    .await;
}

async fn register(server: &TestServer, name: &str) -> crate::harness::Answer {
    let body = json!({
        "username": name, "password": "correct horse", "auth": { "type": "m.login.dummy" },
    });
    server.http().request("POST", "/_matrix/client/v3/register", None, Some(&body)).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_rules_of_a_policy_list_are_applied_where_the_operator_says() {
    crate::harness::nodes::one_server!("it stops the server");
    let mut server = TestServer::start_with(&[("LOGCABIN_REGISTRATION_OPEN", "true")]).await;
    let (ann, eve) = (server.register("ann").await, server.register("eve").await);
    let admin = super::admin(&server).await;
    let data_dir = server.data_dir().to_owned();
    let run = |arguments: &str| command("policy", &data_dir, arguments, "");
    let list = ann.create_room(json!({ "name": "Bans", "preset": "public_chat" })).await;
    rule(&ann, &list, "user", "eve", ban(&eve.user_id)).await;
    rule(&ann, &list, "user", "root", ban(&admin.user_id)).await;
    rule(&ann, &list, "user", "names", ban("@spam*:*")).await;
    rule(&ann, &list, "server", "own", ban("e2e.test")).await;
    let hidden = Sha256::digest("@mallory:e2e.test");
    let hashed = json!({
        "org.matrix.msc4205.hashes": { "sha256": base64(&hidden) }, "recommendation": "m.ban",
    });
    rule(&ann, &list, "user", "hash", hashed).await;
    let bad_room =
        eve.create_room(json!({ "preset": "public_chat", "visibility": "public" })).await;
    let alias = json!({ "room_id": bad_room });
    eve.put("/directory/room/%23bad:e2e.test", alias).await.ok();

    // Before anybody says so, a list is a room like others.
    let would = done(run(&format!("subscribe {list} --dry-run")));
    assert!(
        would.contains("4 rule(s) about users, 0 about rooms and 1 about homeservers"),
        "{would}"
    );
    assert!(would.contains("invites, joins, registration, directory, media"), "{would}");
    let first = eve.create_room(json!({ "invite": [ann.user_id] })).await;
    assert!(ann.sync(None, 0, None).await["rooms"]["invite"].get(&first).is_some());
    register(&server, "spammer1").await.ok();

    let said = done_json(run(&format!("subscribe {list} --reason raids --json")));
    assert_eq!((&said["changed"], &said["list"]["users"]), (&json!(true), &json!(4)), "{said}");
    assert!(done(run(&format!("subscribe {list}"))).contains("It was so already"));

    // Invites: new ones are refused, earlier ones are hidden.
    eve.create_room(json!({})).await;
    let answer = eve.post("/createRoom", json!({ "invite": [ann.user_id] })).await;
    answer.refused(403, "M_FORBIDDEN");
    assert_eq!(ann.sync(None, 0, None).await["rooms"]["invite"], json!({}));
    // Nobody bans this server's administrators, or the server.
    admin.post("/createRoom", json!({ "invite": [ann.user_id] })).await.ok();
    ann.post("/createRoom", json!({ "invite": [eve.user_id] })).await.ok();

    // Names of new accounts, also by a hash.
    for name in ["spammer2", "mallory"] {
        register(&server, name).await.refused(400, "M_INVALID_USERNAME");
        let path = format!("/_matrix/client/v3/register/available?username={name}");
        server.http().request("GET", &path, None, None).await.refused(400, "M_INVALID_USERNAME");
    }
    let bob = server.register("bob").await;

    // Joins, in rooms that ask for it.
    let open = ann.create_room(json!({ "preset": "public_chat" })).await;
    eve.join(&open).await.ok();
    eve.act(&open, "leave", None).await.ok();
    let asks = json!({ "enabled": true });
    ann.set_state(&open, "org.logcabin.policy_lists", "", &asks).await.ok();
    eve.join(&open).await.refused(403, "M_FORBIDDEN");
    let join = json!({ "membership": "join" });
    let answer = eve.set_state(&open, "m.room.member", &eve.user_id, &join).await;
    answer.refused(403, "M_FORBIDDEN");
    bob.join(&open).await.ok();
    admin.join(&open).await.ok();

    // Rooms.
    let in_directory = async || {
        let listed = bob.get("/publicRooms").await.ok()["chunk"].clone();
        listed.as_array().expect("rooms").iter().any(|room| room["room_id"] == bad_room)
    };
    assert!(in_directory().await);
    let of_room = rule(&ann, &list, "room", "bad", ban(&bad_room)).await;
    settled(&data_dir).await;
    assert!(!in_directory().await);
    bob.get("/directory/room/%23bad:e2e.test").await.refused(403, "M_FORBIDDEN");
    bob.join("#bad:e2e.test").await.refused(403, "M_FORBIDDEN");
    bob.join(&bad_room).await.refused(403, "M_FORBIDDEN");
    // Whom no rule keeps out may look.
    admin.join("#bad:e2e.test").await.ok();

    // What is seen of it.
    let said = done(run(&format!("test {bad_room}")));
    assert!(said.contains("applied by `!") && said.contains("spam"), "{said}");
    let said = done_json(run(&format!("test {} --json", admin.user_id)));
    assert_eq!(said["matches"][0]["outcome"], "excepted", "{said}");
    assert!(done(run("test good.example")).contains("No rule matches"));
    assert!(done(run("test e2e.test")).contains("No rule matches"));
    assert!(failed(run("test not,a,name")).contains("neither the id"));
    let said = done_json(run("kept-away --json"));
    let kept = said["kept_away"].as_array().expect("a list");
    let of = |area: &str, name: &str| {
        kept.iter().find(|kept| kept["area"] == area && kept["name"] == name).expect("it is listed")
    };
    assert_eq!(of("joins", &eve.user_id)["times"], 2, "{said}");
    assert_eq!(of("registration", "@spammer2:e2e.test")["times"], 2, "{said}");
    assert_eq!(of("invites", &eve.user_id)["refused"], true, "{said}");
    assert_eq!(of("directory", &bad_room)["list"], list, "{said}");

    // A rule that is removed or redacted is none.
    ann.set_state(&list, "m.policy.rule.room", "bad", &json!({})).await.ok();
    settled(&data_dir).await;
    bob.join(&bad_room).await.ok();
    let again = rule(&ann, &list, "room", "bad", ban(&bad_room)).await;
    assert_ne!(again, of_room);
    settled(&data_dir).await;
    bob.act(&bad_room, "leave", None).await.ok();
    bob.join(&bad_room).await.refused(403, "M_FORBIDDEN");
    let path = format!("/rooms/{}/redact/{}/1", encode(&list), encode(&again));
    ann.put(&path, json!({})).await.ok();
    bob.join(&bad_room).await.ok();

    // Exceptions; what it is applied to; an end to it.
    done(run(&format!("subscribe {list} --except @eve:*")));
    eve.join(&open).await.ok();
    eve.act(&open, "leave", None).await.ok();
    done(run(&format!("subscribe {list} --to invites")));
    register(&server, "spammer3").await.ok();
    eve.join(&open).await.ok();
    let answer = eve.post("/createRoom", json!({ "invite": [bob.user_id] })).await;
    answer.refused(403, "M_FORBIDDEN");

    server.kill9();
    server.restart().await;
    let eve = User { http: server.http(), ..eve };
    let answer = eve.post("/createRoom", json!({ "invite": [bob.user_id] })).await;
    answer.refused(403, "M_FORBIDDEN");
    assert!(done(run("list")).contains("applied to invites, order 0"));
    let would = done(run(&format!("unsubscribe {list} --dry-run")));
    assert!(would.contains("are no longer applied"), "{would}");
    done(run(&format!("unsubscribe {list}")));
    failed(run(&format!("unsubscribe {list}")));
    eve.post("/createRoom", json!({ "invite": [bob.user_id] })).await.ok();
    assert!(done(run("list")).contains("0 policy list(s)"));
    server.stop();
    let said = history(&data_dir);
    assert!(said.contains(&format!("applied the policy list {list} to invites, joins")), "{said}");
    assert!(said.contains("did so because: raids") && said.contains("stopped applying"), "{said}");
    assert_verifies(&data_dir);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_policy_list_cannot_hit_many_users_and_rooms_before_somebody_approves() {
    crate::harness::nodes::one_server!("it restarts the server");
    let mut server = TestServer::start().await;
    let ann = server.register("ann").await;
    let mut victims = Vec::new();
    for number in 0..4 {
        victims.push(server.register(&format!("victim{number}")).await);
    }
    let data_dir = server.data_dir().to_owned();
    let run = |arguments: &str| command("policy", &data_dir, arguments, "");
    let list = ann.create_room(json!({})).await;
    done(run(&format!("subscribe {list} --hold-above 2")));
    let is_banned = async |user: &User| {
        let answer = user.post("/createRoom", json!({ "invite": [ann.user_id] })).await;
        answer.status == 403
    };
    let all = rule(&ann, &list, "user", "all", ban("@victim*:*")).await;
    settled(&data_dir).await;
    for victim in &victims {
        assert!(!is_banned(victim).await);
    }
    let said = done_json(run("list --json"));
    let waiting = &said["lists"][0]["waiting_rules"][0];
    assert_eq!((&waiting["event_id"], &waiting["hits"]), (&json!(all), &json!(4)), "{said}");
    assert!(done(run("test @victim1:e2e.test")).starts_with("waits by `@victim*:*`"));

    // One by one, two are banned, and no third one, whatever way it is named.
    for (number, victim) in victims.iter().enumerate().take(3) {
        let content = match number {
            1 => json!({
                "hashes": { "sha256": base64(&Sha256::digest(&victim.user_id)) },
                "recommendation": "m.ban",
            }),
            _ => ban(&victim.user_id),
        };
        rule(&ann, &list, "user", &number.to_string(), content).await;
        settled(&data_dir).await;
        assert_eq!(is_banned(victim).await, number < 2, "{number}");
    }
    // Elsewhere no rule waits, but for one about everybody; aliases are rooms here.
    let open = ann.create_room(json!({ "preset": "public_chat", "room_alias_name": "open" })).await;
    for (kind, entity, waits) in [
        ("user", "@*:elsewhere.example", false),
        ("server", "*.elsewhere.example", false),
        ("server", "*", true),
        ("user", "@*:*", true),
        ("user", "@??*:elsewhere.example", false),
        ("user", "@??*:*", true),
        ("server", "*.*", true),
        ("room", "!??*", true),
        ("room", "#op*:e2e.test", true),
        ("room", "#*", true),
        ("room", &*open, true),
    ] {
        let event_id = rule(&ann, &list, kind, "more", ban(entity)).await;
        settled(&data_dir).await;
        let said = done_json(run("list --json"));
        let waiting = said["lists"][0]["waiting_rules"].as_array().expect("rules");
        let is_held = waiting.iter().any(|rule| rule["event_id"] == event_id);
        assert_eq!(is_held, waits, "{kind} {entity}: {said}");
        ann.set_state(&list, &format!("m.policy.rule.{kind}"), "more", &json!({})).await.ok();
    }
    victims[3].join("#open:e2e.test").await.ok();
    settled(&data_dir).await;

    // Approved by a person, who names them.
    failed(run(&format!("approve {list} --rule $other")));
    let would = done(run(&format!("approve {list} --rule {all} --dry-run")));
    assert!(would.contains("`@victim*:*`") && would.contains("hits 4"), "{would}");
    assert!(!is_banned(&victims[3]).await);
    done(run(&format!("approve {list} --rule {all} --reason seen")));
    assert!(is_banned(&victims[3]).await);
    server.kill9();
    server.restart().await;
    let said = done_json(run("list --json"));
    assert_eq!(said["lists"][0]["waiting"], 1, "{said}");
    let victim = User { http: server.http(), ..victims.remove(3) };
    let ann = User { http: server.http(), ..ann };
    let banned = victim.post("/createRoom", json!({ "invite": [ann.user_id] })).await;
    banned.refused(403, "M_FORBIDDEN");
    // A change of the same rule waits again.
    rule(&ann, &list, "user", "all", ban("@*")).await;
    settled(&data_dir).await;
    victim.post("/createRoom", json!({ "invite": [ann.user_id] })).await.ok();
    // Other exceptions, and more that may be hit, are counted from the beginning.
    rule(&ann, &list, "user", "all", ban("@victim*:*")).await;
    settled(&data_dir).await;
    done(run(&format!("subscribe {list} --hold-above 2 --except @victim3:*")));
    let said = done_json(run("list --json"));
    assert_eq!(said["lists"][0]["waiting_rules"][1]["hits"], 3, "{said}");
    failed(run(&format!("subscribe {list} --hold-above 1001")));
    done(run(&format!("subscribe {list} --hold-above 100")));
    assert_eq!(done_json(run("list --json"))["lists"][0]["waiting"], 0);
    let banned = victim.post("/createRoom", json!({ "invite": [ann.user_id] })).await;
    banned.refused(403, "M_FORBIDDEN");
    server.stop();
    let history = history(&data_dir);
    assert!(history.contains("wait for approval") && history.contains("approved rules"));
    assert_verifies(&data_dir);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn takedowns_are_only_noted_unless_the_operator_says_otherwise_and_rules_are_simulated() {
    crate::harness::nodes::one_server!("it reads the server's directory");
    let server = TestServer::start_with(&[("LOGCABIN_REGISTRATION_OPEN", "true")]).await;
    let (ann, eve) = (server.register("ann").await, server.register("eve").await);
    let data_dir = server.data_dir().to_owned();
    let run = |arguments: &str| command("policy", &data_dir, arguments, "");
    let list = ann.create_room(json!({ "preset": "public_chat" })).await;
    let takedown = json!({ "entity": eve.user_id, "recommendation": "m.takedown" });
    rule(&ann, &list, "user", "eve", takedown).await;
    done(run(&format!("subscribe {list}")));
    let invited = eve.create_room(json!({ "invite": [ann.user_id] })).await;
    assert!(ann.sync(None, 0, None).await["rooms"]["invite"].get(&invited).is_some());
    let said = done(run("kept-away"));
    assert!(said.contains("invites: noted @eve:e2e.test, 1 time(s)"), "{said}");
    done(run(&format!("subscribe {list} --takedowns")));
    let answer = eve.post("/createRoom", json!({ "invite": [ann.user_id] })).await;
    answer.refused(403, "M_FORBIDDEN");
    done(run(&format!("unsubscribe {list}")));

    // What rules would have refused: those of a room, and proposed ones.
    let said = done_json(run(&format!("simulate --room {list} --json")));
    let found = said["matches"].as_array().expect("matches");
    let of = |area: &str| found.iter().find(|found| found["area"] == area).expect("it is found");
    assert_eq!((&of("invites")["name"], &of("invites")["times"]), (&json!(eve.user_id), &json!(1)));
    // Her registration, her joins, and her invite.
    assert_eq!(of("registration")["times"], 1, "{said}");
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("rules.json");
    let rules = json!([
        { "type": "m.policy.rule.user", "content": ban("@an*:e2e.test") },
        { "type": "m.policy.rule.tree", "content": ban("@an*:e2e.test") },
        { "type": "m.policy.rule.user" },
    ]);
    std::fs::write(&file, rules.to_string()).expect("written");
    let file = file.display();
    let said = done_json(run(&format!("simulate --file {file} --since 1 --json")));
    assert_eq!(said["wrong"], json!([2, 3]), "{said}");
    assert!(said["matches"][0]["name"] == ann.user_id && said["matches"][0]["rule"] == 1, "{said}");
    let end = said["to"].as_u64().expect("an offset");
    let said = done_json(run(&format!("simulate --file {file} --since {end} --json")));
    assert_eq!(said["refused"], 0, "{said}");
    failed(run(&format!("simulate --file {file} --since whenever")));
    failed(run(&format!("simulate --file {file} --since {}", end + 1000)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_policy_list_can_be_applied_over_http_and_bad_orders_are_refused() {
    crate::harness::nodes::one_server!("it reads the server's directory");
    let server = TestServer::start().await;
    let ann = server.register("ann").await;
    let admin = super::admin(&server).await;
    let list = ann.create_room(json!({})).await;
    let act = async |by: &User, name: &str, order: Value| {
        let path = format!("/_logcabin/admin/v1/acts/{name}");
        let order = json!({ "act": order });
        by.http.request("POST", &path, Some(&by.access_token), Some(&order)).await
    };
    let order = json!({ "room": list, "areas": ["invites", "media"], "takedowns": false });
    act(&ann, "subscribe-policy-list", order.clone()).await.refused(403, "M_FORBIDDEN");
    let said = act(&admin, "subscribe-policy-list", order).await.ok();
    assert_eq!(said["result"]["list"]["areas"], json!(["invites", "media"]), "{said}");
    let many: Vec<_> = (0..1001).map(|number| number.to_string()).collect();
    for order in [
        json!({ "room": list, "areas": ["everything"] }),
        json!({ "room": "nowhere" }),
        json!({ "room": list, "except": many }),
        json!({ "room": list, "except": ["?".repeat(200)] }),
        json!({ "room": list, "hold_above": -1 }),
        json!({ "room": list, "rules": [] }),
    ] {
        act(&admin, "subscribe-policy-list", order).await.refused(400, "M_INVALID_PARAM");
    }
    // A room that nobody here has joined can be named; nothing comes of it yet.
    let elsewhere = json!({ "room": "!elsewhere:elsewhere.example" });
    let said = act(&admin, "subscribe-policy-list", elsewhere.clone()).await.ok();
    assert_eq!(said["result"]["list"]["is_joined"], false, "{said}");
    act(&admin, "unsubscribe-policy-list", elsewhere).await.ok();
}
