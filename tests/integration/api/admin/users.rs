//! Users and their devices.

use serde_json::{Value, json};

use super::super::{each, encryption::Key, unique};
use super::{admin, dry_run, server, user};
use crate::administration::{command, done, history};
use crate::crash::assert_verifies;
use crate::harness::{TestServer, User, encode};

fn of(user_id: &str) -> String {
    format!("/v2/users/{}", encode(user_id))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn accounts_are_made_and_changed_and_show_it() {
    crate::harness::nodes::one_server!("every cluster of the tests has open registration");
    let mut server = TestServer::start_with(&[("LOGCABIN_REGISTRATION_OPEN", "auto")]).await;
    let mut admin = admin(&server).await;
    let new = of("@new:e2e.test");
    let body = json!({
        "password": "the password of new", "displayname": "New", "admin": false,
        "avatar_url": "mxc://e2e.test/face", "threepids": [], "user_type": null, "reason": "hired",
    });
    let said = dry_run(&server, &admin, "PUT", &new, body.clone()).await;
    assert_eq!(said, ["the account @new:e2e.test is created"]);
    admin.administer("GET", &new, None).await.refused(404, "M_NOT_FOUND");

    let made = admin.administer("PUT", &new, Some(body)).await;
    assert_eq!(made.status, 201, "{made}");
    for (field, value) in [
        ("name", json!("@new:e2e.test")),
        ("displayname", json!("New")),
        ("avatar_url", json!("mxc://e2e.test/face")),
        ("is_guest", json!(false)),
        ("admin", json!(false)),
        ("deactivated", json!(false)),
        ("erased", json!(false)),
        ("locked", json!(false)),
        ("suspended", json!(false)),
        ("shadow_banned", json!(false)),
        ("threepids", json!([])),
        ("external_ids", json!([])),
        ("user_type", Value::Null),
        ("appservice_id", Value::Null),
    ] {
        assert_eq!(made.body[field], value, "{field} in {made}");
    }
    let mut bob = User::login(&server.http(), "new", "the password of new").await;
    let room_id = bob.create_room(json!({})).await;

    let body = json!({ "displayname": "Newer", "avatar_url": "", "locked": true, "admin": true });
    let changed = admin.administer("PUT", &new, Some(body)).await.ok();
    assert_eq!((&changed["displayname"], &changed["avatar_url"]), (&json!("Newer"), &Value::Null));
    assert_eq!((&changed["locked"], &changed["admin"]), (&json!(true), &json!(true)));
    bob.get("/account/whoami").await.refused(401, "M_USER_LOCKED");
    server.kill9();
    server.restart().await;
    (admin.http, bob.http) = (server.http(), server.http());
    bob.get("/account/whoami").await.refused(401, "M_USER_LOCKED");
    let body = json!({ "locked": false, "admin": false });
    admin.administer("PUT", &new, Some(body)).await.ok();
    let member = bob.state(&room_id, "m.room.member", &bob.user_id).await.ok();
    assert_eq!(member["displayname"], "Newer", "the rooms know of it");

    // A new password logs everyone out, unless it is said otherwise.
    let body = json!({ "password": "another password of new", "logout_devices": false });
    admin.administer("PUT", &new, Some(body)).await.ok();
    bob.get("/account/whoami").await.ok();
    let reset = "/v1/reset_password/%40new%3Ae2e.test";
    let body = json!({ "new_password": "the third password of new", "reason": "forgotten" });
    let said = dry_run(&server, &admin, "POST", reset, body.clone()).await;
    assert!(said.contains(&"1 device(s) are logged out".to_owned()), "{said:?}");
    bob.get("/account/whoami").await.ok();
    admin.administer("POST", reset, Some(body)).await.ok();
    bob.get("/account/whoami").await.refused(401, "M_UNKNOWN_TOKEN");
    let mut bob = User::login(&server.http(), "new", "the third password of new").await;

    // What nobody can do for another is refused, and nothing else of the request is done.
    for body in [
        json!({ "displayname": "No", "threepids": [{ "medium": "email", "address": "a@b.test" }] }),
        json!({ "displayname": "No", "external_ids": [{ "auth_provider": "x", "external_id": "y" }] }),
        json!({ "displayname": "No", "user_type": "bot" }),
    ] {
        admin.administer("PUT", &new, Some(body)).await.refused(400, "M_INVALID_PARAM");
    }
    assert_eq!(admin.administer("GET", &new, None).await.ok()["displayname"], "Newer");

    let path = "/v1/users/@new:e2e.test/admin";
    assert_eq!(admin.administer("GET", path, None).await.ok(), json!({ "admin": false }));
    admin.administer("PUT", path, Some(json!({ "admin": true }))).await.ok();
    assert_eq!(bob.administer("GET", path, None).await.ok(), json!({ "admin": true }));
    admin.administer("PUT", path, Some(json!({ "admin": false }))).await.ok();
    bob.administer("GET", path, None).await.refused(403, "M_FORBIDDEN");
    let suspend = "/v1/suspend/@new:e2e.test";
    admin.administer("PUT", suspend, Some(json!({ "suspend": true }))).await.ok();
    bob.post("/createRoom", json!({})).await.refused(403, "M_USER_SUSPENDED");
    admin.administer("PUT", suspend, Some(json!({ "suspend": false }))).await.ok();

    // The end of it.
    let close = "/v1/deactivate/@new:e2e.test";
    let body = json!({ "erase": true, "reason": "left" });
    let said = dry_run(&server, &admin, "POST", close, body.clone()).await.join("\n");
    for part in [
        "closed, which cannot be undone",
        "1 device(s)",
        "1 room(s) are left",
        "profile and account data",
    ] {
        assert!(said.contains(part), "no {part:?} in {said}");
    }
    bob.get("/account/whoami").await.ok();
    admin.administer("POST", close, Some(body)).await.ok();
    bob.get("/account/whoami").await.refused(401, "M_UNKNOWN_TOKEN");
    let shown = admin.administer("GET", &new, None).await.ok();
    assert_eq!((&shown["deactivated"], &shown["erased"]), (&json!(true), &json!(true)));
    let back = admin.administer("PUT", &new, Some(json!({ "deactivated": false }))).await;
    back.refused(400, "M_INVALID_PARAM");

    bob.http = server.http();
    server.stop();
    let words = history(server.data_dir());
    let by = &admin.user_id;
    for said in [
        format!("{by} did so because: hired"),
        format!("{by} did so because: forgotten"),
        format!("{by} deactivated @new:e2e.test and erased what they sent: left"),
        format!("{by} made @new:e2e.test an administrator, locked @new:e2e.test"),
    ] {
        assert!(words.contains(&said), "no {said:?} in {words}");
    }
    assert!(!words.contains("password of new"), "{words}");
    assert_verifies(server.data_dir());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn users_are_listed_found_and_ordered() {
    let server = TestServer::start().await;
    let admin = admin(&server).await;
    let (ann, bob) = (server.register("ann").await, server.register("bob").await);
    let cas = server.register("cas").await;
    let name = format!("/profile/{}/displayname", encode(&bob.user_id));
    bob.put(&name, json!({ "displayname": "Zed" })).await.ok();
    done(command("user", server.data_dir(), "lock cas", ""));
    done(command("user", server.data_dir(), "deactivate ann --yes", ""));

    let list = async |query: &str| {
        let listed = admin.administer("GET", &format!("/v2/users{query}"), None).await.ok();
        each(&listed["users"], "/name")
    };
    // Those that are locked or deactivated are shown to whoever asks for them.
    assert_eq!(list("").await, [admin.user_id.clone(), bob.user_id.clone()]);
    let all = [&admin, &ann, &bob, &cas].map(|user| user.user_id.clone());
    let everyone = "?deactivated=true&locked=true";
    assert_eq!(list(everyone).await, all);
    assert_eq!(list("?name=zed").await, std::slice::from_ref(&bob.user_id));
    assert_eq!(list("?user_id=bo").await, std::slice::from_ref(&bob.user_id));
    assert_eq!(list("?admins=true").await, std::slice::from_ref(&admin.user_id));
    assert_eq!(list("?admins=false").await, std::slice::from_ref(&bob.user_id));
    assert_eq!(list("?order_by=creation_ts&dir=b").await[0], bob.user_id);
    assert_eq!(list("?order_by=displayname&dir=b").await[0], bob.user_id);
    let v3 = admin.administer("GET", "/v3/users?deactivated=true", None).await.ok();
    assert_eq!(each(&v3["users"], "/name"), std::slice::from_ref(&ann.user_id));
    let page = admin.administer("GET", &format!("/v2/users{everyone}&limit=3"), None).await.ok();
    assert_eq!((&page["total"], &page["next_token"]), (&json!(4), &json!("3")), "{page}");
    assert!(page["users"][0]["creation_ts"].as_u64() > Some(1_700_000_000_000), "{page}");
    assert_eq!(
        list(&format!("{everyone}&limit=3&from=3")).await,
        std::slice::from_ref(&cas.user_id)
    );

    let free = async |name: &str| {
        admin.administer("GET", &format!("/v1/username_available?username={name}"), None).await
    };
    assert_eq!(free("dee").await.ok(), json!({ "available": true }));
    free("bob").await.refused(400, "M_USER_IN_USE");
    free("b!").await.refused(400, "M_INVALID_USERNAME");
    // A new account has a lowercase name, and is found by the other spelling.
    for status in [201, 200] {
        let made = admin.administer("PUT", "/v2/users/@Dee:e2e.test", Some(json!({}))).await;
        assert_eq!((made.status, &made.body["name"]), (status, &json!("@dee:e2e.test")), "{made}");
    }
    let http = server.http();
    let version = http.request("GET", "/_synapse/admin/v1/server_version", None, None);
    assert!(
        version.await.ok()["server_version"].as_str().is_some_and(|v| v.starts_with("logcabin"))
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn devices_are_shown_renamed_and_logged_out() {
    let server = server().await;
    let (admin, bob) = (admin(&server).await, user(&server, "bob").await);
    let (other, third) = (bob.another_device().await, bob.another_device().await);
    let room_id = bob.create_room(json!({})).await;
    bob.get("/account/whoami").await.ok();

    let path = format!("{}/devices", of(&bob.user_id));
    let devices = admin.administer("GET", &path, None).await.ok();
    assert_eq!(devices["total"], 3, "{devices}");
    let one = format!("{path}/{}", bob.device_id);
    let device = admin.administer("GET", &one, None).await.ok();
    assert_eq!(device["user_id"], bob.user_id.as_str());
    assert_eq!(device["last_seen_ip"], "127.0.0.1", "{device}");
    assert!(device["last_seen_ts"].as_u64() > Some(1_700_000_000_000), "{device}");
    // A device that nobody has used yet has a time, and nothing that is null.
    let log_in = format!("/v1/users/{}/login", encode(&bob.user_id));
    admin.administer("POST", &log_in, Some(json!({}))).await.ok();
    let list = bob.get("/devices").await.ok();
    for device in list["devices"].as_array().expect("a list") {
        let members = device.as_object().expect("an object");
        assert!(members.values().all(|value| !value.is_null()), "{device}");
        assert!(device["last_seen_ts"].as_u64() > Some(1_700_000_000_000), "{device}");
    }
    admin.administer("PUT", &one, Some(json!({ "display_name": "seized" }))).await.ok();
    let own = bob.get(&format!("/devices/{}", bob.device_id)).await.ok();
    assert_eq!(own["display_name"], "seized");
    let none = format!("{path}/NONE");
    admin.administer("GET", &none, None).await.refused(404, "M_NOT_FOUND");
    admin.administer("DELETE", &none, None).await.refused(404, "M_NOT_FOUND");

    admin.administer("DELETE", &format!("{path}/{}", other.device_id), None).await.ok();
    other.get("/account/whoami").await.refused(401, "M_UNKNOWN_TOKEN");
    third.get("/account/whoami").await.ok();
    let many = format!("{}/delete_devices", of(&bob.user_id));
    let body = json!({ "devices": [third.device_id, "NONE"] });
    admin.administer("POST", &many, Some(body)).await.ok();
    third.get("/account/whoami").await.refused(401, "M_UNKNOWN_TOKEN");
    bob.get("/account/whoami").await.ok();

    // As another: with a device that they see.
    let login = format!("/v1/users/{}/login", encode(&bob.user_id));
    let body = json!({ "valid_until_ms": 4_102_444_800_000_u64 });
    let logged_in = admin.administer("POST", &login, Some(body)).await;
    let mut as_bob = bob.clone();
    as_bob.access_token = logged_in.ok_string("access_token");
    let who = as_bob.get("/account/whoami").await.ok();
    assert_eq!(who["user_id"], bob.user_id.as_str());
    as_bob.post("/logout", json!({})).await.ok();
    bob.get("/account/whoami").await.ok();
    let past = json!({ "valid_until_ms": 1000 });
    admin.administer("POST", &login, Some(past)).await.refused(400, "M_INVALID_PARAM");

    let rooms = format!("/v1/users/{}/joined_rooms", encode(&bob.user_id));
    let rooms = admin.administer("GET", &rooms, None).await.ok();
    assert_eq!(rooms, json!({ "joined_rooms": [room_id], "total": 1 }));
    bob.act(&room_id, "leave", None).await.ok();
    let parts = format!("/v1/users/{}/memberships", encode(&bob.user_id));
    let parts = admin.administer("GET", &parts, None).await.ok();
    assert_eq!(parts, json!({ "memberships": { &room_id: "leave" } }));
    let whois = format!("/v1/whois/{}", encode(&bob.user_id));
    let whois = admin.administer("GET", &whois, None).await.ok();
    assert!(whois["devices"].get(&bob.device_id).is_some(), "{whois}");
    let nobody = format!("/v1/threepid/email/users/{}", encode(&unique("a@b.test")));
    admin.administer("GET", &nobody, None).await.refused(404, "M_NOT_FOUND");
    let nobody = "/v1/auth_providers/none/users/none";
    admin.administer("GET", nobody, None).await.refused(404, "M_NOT_FOUND");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_administrator_reads_a_users_pushers_and_account_data() {
    let server = server().await;
    let (admin, ann) = (admin(&server).await, user(&server, "ann").await);
    let room_id = ann.create_room(json!({})).await;
    let of_ann = |what: &str| format!("/v1/users/{}/{what}", encode(&ann.user_id));
    let read = async |what: &str| admin.administer("GET", &of_ann(what), None).await.ok();
    assert_eq!(read("pushers").await, json!({ "pushers": [], "total": 0 }));
    assert_eq!(read("accountdata").await, json!({ "account_data": { "global": {}, "rooms": {} } }));

    let pusher = json!({
        "kind": "http", "app_id": "org.example.app", "pushkey": "key", "lang": "en",
        "app_display_name": "App", "device_display_name": "Phone",
        "data": { "url": "https://push.example.org/_matrix/push/v1/notify" },
    });
    ann.post("/pushers/set", pusher).await.ok();
    let set = async |path: &str, content: Value| {
        let path = format!("/user/{}{path}", encode(&ann.user_id));
        ann.request("PUT", &path, Some(&content)).await.ok()
    };
    set("/account_data/org.example.theme", json!({ "dark": true })).await;
    let of_room = format!("/rooms/{}/account_data/org.example.note", encode(&room_id));
    set(&of_room, json!({ "text": "mine" })).await;
    let rule = json!({ "actions": [] });
    ann.request("PUT", "/pushrules/global/sender/@bob:e2e.test", Some(&rule)).await.ok();

    let pushers = read("pushers").await;
    assert_eq!(
        (&pushers["total"], &pushers["pushers"][0]["app_id"]),
        (&json!(1), &json!("org.example.app"))
    );
    let expected = json!({
        "global": { "org.example.theme": { "dark": true } },
        "rooms": { (room_id): { "org.example.note": { "text": "mine" } } },
    });
    assert_eq!(read("accountdata").await["account_data"], expected);
    for what in ["pushers", "accountdata"] {
        let path = format!("/v1/users/@nobody:e2e.test/{what}");
        admin.administer("GET", &path, None).await.refused(404, "M_NOT_FOUND");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_device_is_created_on_which_nobody_is_logged_in() {
    let server = server().await;
    let (admin, bob) = (admin(&server).await, user(&server, "bob").await);
    let path = format!("{}/devices", of(&bob.user_id));
    let create = async |device_id: &str| {
        admin.administer("POST", &path, Some(json!({ "device_id": device_id }))).await
    };
    let said = dry_run(&server, &admin, "POST", &path, json!({ "device_id": "NEW" })).await;
    assert_eq!(said.len(), 1, "{said:?}");
    // What is there stays as it is.
    for device_id in ["NEW", "NEW", &bob.device_id] {
        let created = create(device_id).await;
        assert_eq!((created.status, &created.body), (201, &json!({})), "{created}");
    }
    bob.get("/account/whoami").await.ok();
    let devices = admin.administer("GET", &path, None).await.ok();
    let mut ids = each(&devices["devices"], "/device_id");
    ids.sort_unstable();
    let mut expected = [bob.device_id.clone(), "NEW".to_owned()];
    expected.sort_unstable();
    assert_eq!(ids, expected, "{devices}");
    let own = bob.get("/devices/NEW").await.ok();
    assert_eq!(own["device_id"], "NEW", "{own}");

    // Somebody who logs in with its name has it.
    let login = json!({
        "type": "m.login.password", "password": super::super::PASSWORD, "device_id": "NEW",
        "identifier": { "type": "m.id.user", "user": bob.user_id },
    });
    let logged_in = bob.post("/login", login).await.ok();
    assert_eq!(logged_in["device_id"], "NEW", "{logged_in}");
    let own = bob.get("/devices").await.ok();
    assert_eq!(own["devices"].as_array().map(Vec::len), Some(2), "{own}");

    admin.administer("POST", &path, Some(json!({}))).await.refused(400, "M_MISSING_PARAM");
    create("").await.refused(400, "M_INVALID_PARAM");
    create(&"x".repeat(1000)).await.refused(400, "M_INVALID_PARAM");
    let body = Some(json!({ "device_id": "NEW" }));
    let nobody = "/v2/users/@nobody:e2e.test/devices";
    admin.administer("POST", nobody, body.clone()).await.refused(404, "M_NOT_FOUND");
    let lock = async |locked: bool| {
        admin.administer("PUT", &of(&bob.user_id), Some(json!({ "locked": locked }))).await.ok()
    };
    lock(true).await;
    create("NEWER").await.refused(400, "M_INVALID_PARAM");
    lock(false).await;
    done(command("user", server.data_dir(), &format!("deactivate {} --yes", bob.user_id), ""));
    admin.administer("POST", &path, body).await.refused(400, "M_USER_DEACTIVATED");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_administrator_lets_a_user_replace_the_cross_signing_keys_once() {
    let server = server().await;
    let (admin, bob) = (admin(&server).await, user(&server, "bob").await);
    let of_bob =
        format!("/v1/users/{}/_allow_cross_signing_replacement_without_uia", encode(&bob.user_id));
    admin.administer("POST", &of_bob, Some(json!({}))).await.refused(404, "M_NOT_FOUND");
    let upload = async || {
        let keys = json!({ "master_key": Key::new("").cross_signing(&bob, "master") });
        bob.post("/keys/device_signing/upload", keys).await
    };
    upload().await.ok();
    assert_eq!(upload().await.status, 401);

    let said = dry_run(&server, &admin, "POST", &of_bob, json!({})).await;
    assert_eq!(said.len(), 1, "{said:?}");
    assert_eq!(upload().await.status, 401);
    let before = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let before = u64::try_from(before.expect("a time").as_millis()).expect("a time");
    // Synapse takes it without a body, too.
    let allowed = admin.administer("POST", &of_bob, None).await.ok();
    let until = allowed["updatable_without_uia_before_ms"].as_u64().expect("a time");
    assert!((before + 500_000..before + 700_000).contains(&until), "{until} after {before}");
    upload().await.ok();
    assert_eq!(upload().await.status, 401, "it was for one replacement");

    let nobody = "/v1/users/@nobody:e2e.test/_allow_cross_signing_replacement_without_uia";
    admin.administer("POST", nobody, Some(json!({}))).await.refused(404, "M_NOT_FOUND");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn features_that_are_for_everyone_are_told_and_not_changed() {
    let server = server().await;
    let (admin, bob) = (admin(&server).await, user(&server, "bob").await);
    let path = format!("/v1/experimental_features/{}", encode(&bob.user_id));
    let features = json!({ "features": { "msc3881": false, "msc3575": true, "msc4222": true } });
    assert_eq!(admin.administer("GET", &path, None).await.ok(), features);
    let put = async |features: Value| {
        admin.administer("PUT", &path, Some(json!({ "features": features }))).await
    };
    assert_eq!(admin.administer("PUT", &path, Some(features)).await.ok(), json!({}));
    put(json!({ "msc3575": true, "msc4222": false })).await.refused(400, "M_INVALID_PARAM");
    put(json!({ "msc3881": true })).await.refused(400, "M_INVALID_PARAM");
    put(json!({ "msc1": true })).await.refused(400, "M_INVALID_PARAM");
    admin.administer("PUT", &path, Some(json!({}))).await.refused(400, "M_MISSING_PARAM");
    let nobody = "/v1/experimental_features/@nobody:e2e.test";
    admin.administer("GET", nobody, None).await.refused(404, "M_NOT_FOUND");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deactivated_user_is_found_without_devices_and_rooms() {
    let server = server().await;
    let (admin, bob) = (admin(&server).await, user(&server, "bob").await);
    let room_id = bob.create_room(json!({})).await;
    done(command("user", server.data_dir(), &format!("deactivate {} --yes", bob.user_id), ""));
    let read = async |path: String| admin.administer("GET", &path, None).await;
    let id = encode(&bob.user_id);
    let whois = read(format!("/v1/whois/{id}")).await.ok();
    assert_eq!(whois, json!({ "user_id": bob.user_id, "devices": {} }));
    let rooms = read(format!("/v1/users/{id}/joined_rooms")).await.ok();
    assert_eq!(rooms, json!({ "joined_rooms": [], "total": 0 }));
    let parts = read(format!("/v1/users/{id}/memberships")).await.ok();
    assert_eq!(parts, json!({ "memberships": { (room_id): "leave" } }));
    let devices = read(format!("/v2/users/{id}/devices")).await.ok();
    assert_eq!(devices, json!({ "devices": [], "total": 0 }));
    read("/v1/whois/@bob:elsewhere.test".to_owned()).await.refused(400, "M_INVALID_PARAM");
    read("/v1/whois/@nobody:e2e.test".to_owned()).await.refused(404, "M_NOT_FOUND");
}
