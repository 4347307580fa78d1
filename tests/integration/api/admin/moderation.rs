//! Kicks, bans and rejected invites by administrators, reports that are closed with an answer, and
//! undoing.

use logcabin::{
    record::Offset,
    socket::{Client, socket_path},
};
use serde_json::{Value, json};

use super::super::each;
use super::{admin, end};
use crate::administration::{command, done, done_json, failed, history};
use crate::crash::assert_verifies;
use crate::harness::{TestServer, User, encode};

/// Orders an act over HTTP.
async fn act(admin: &User, name: &str, order: Value) -> crate::harness::Answer {
    let path = format!("/_logcabin/admin/v1/acts/{name}");
    admin.http.request("POST", &path, Some(&admin.access_token), Some(&order)).await
}

/// The number of the newest record of this kind.
fn newest(server: &TestServer, kind: &str) -> u64 {
    let mut client = Client::connect(&socket_path(server.data_dir())).expect("the admin socket");
    let records = client.records(Offset::new(1), end(server)).expect("records");
    let records = records.map(|record| record.expect("a record"));
    let of_kind = records.filter(|record| &*record.header.kind == kind);
    of_kind.map(|record| record.offset().get()).last().unwrap_or_else(|| panic!("no `{kind}`"))
}

async fn membership(of: &User, room_id: &str, user_id: &str) -> Value {
    let path = format!("/rooms/{}/state/m.room.member/{}", encode(room_id), encode(user_id));
    of.get(&path).await.ok()["membership"].clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_kicks_bans_and_unbans_a_user_in_all_rooms() {
    crate::harness::nodes::one_server!("it stops the server");
    let mut server = TestServer::start().await;
    let (ann, bob) = (server.register("ann").await, server.register("bob").await);
    let admin = admin(&server).await;
    let public = || json!({ "preset": "public_chat" });
    let rooms = [ann.create_room(public()).await, ann.create_room(public()).await];
    for room_id in &rooms {
        bob.join(room_id).await.ok();
    }
    let own = bob.create_room(public()).await;
    ann.join(&own).await.ok();
    let invited = ann.create_room(json!({ "invite": [bob.user_id] })).await;
    let data_dir = server.data_dir().to_owned();
    let run = |arguments: &str| command("user", &data_dir, arguments, "");

    let would = done(run("ban bob --dry-run"));
    assert!(would.contains("@bob:e2e.test is banned from 4 rooms"), "{would}");
    assert_eq!(membership(&ann, &rooms[0], &bob.user_id).await, "join");
    let said = done_json(run("ban bob --say spam --reason raid --json"));
    assert_eq!(said["rooms"].as_object().expect("rooms").len(), 3, "{said}");
    assert_eq!(said["rooms"][&rooms[0]], json!(ann.user_id), "{said}");
    // Nobody else has power in his own room.
    assert_eq!((&said["failures"], said["failed"].get(&own).is_some()), (&json!(1), true));
    for room_id in rooms.iter().chain([&invited]) {
        assert_eq!(membership(&ann, room_id, &bob.user_id).await, "ban", "{room_id}");
    }
    let path = format!("/rooms/{}/state/m.room.member/{}", encode(&rooms[0]), encode(&bob.user_id));
    assert_eq!(ann.get(&path).await.ok()["reason"], "spam");
    bob.join(&rooms[0]).await.refused(403, "M_FORBIDDEN");
    assert!(done(run("kick bob --dry-run")).contains(&own));
    let said = done(run("kick bob"));
    assert!(said.contains(&format!("{own} in the name of @bob:e2e.test")), "{said}");
    assert!(done(run("kick bob")).contains("in 0 room(s)"));

    // The same over HTTP, in a room that is named; and what cannot be is refused.
    let order = json!({ "user": bob.user_id, "change": "unban", "rooms": [rooms[0]] });
    let would = act(&admin, "change-member", json!({ "act": order, "dry_run": true })).await.ok();
    assert_eq!(would["dry_run"], true, "{would}");
    assert_eq!(membership(&ann, &rooms[0], &bob.user_id).await, "ban");
    let said = act(&admin, "change-member", json!({ "act": order })).await.ok();
    assert_eq!(said["result"]["rooms"], json!({ (&*rooms[0]): ann.user_id }), "{said}");
    bob.join(&rooms[0]).await.ok();
    for (name, order, status, code) in [
        ("change-member", json!({ "user": "bob", "change": "hug" }), 400, "M_INVALID_PARAM"),
        ("change-member", json!({ "user": "nobody", "change": "ban" }), 404, "M_NOT_FOUND"),
        ("reject-invites", json!({}), 400, "M_INVALID_PARAM"),
        ("make-coffee", json!({}), 404, "M_NOT_FOUND"),
        ("list-users", json!({}), 404, "M_NOT_FOUND"),
        ("set-status", json!({ "user": "bob", "suspend": true }), 400, "M_INVALID_PARAM"),
    ] {
        act(&admin, name, json!({ "act": order })).await.refused(status, code);
    }
    act(&ann, "change-member", json!({ "act": order })).await.refused(403, "M_FORBIDDEN");
    // Whichever way it is asked for, a dry run changes nothing; a misspelt one is refused.
    let ban = json!({ "user": bob.user_id, "change": "ban", "rooms": [rooms[0]] });
    let said = act(&admin, "change-member?dry_run=true", json!({ "act": ban })).await.ok();
    assert_eq!(said["dry_run"], true, "{said}");
    assert_eq!(membership(&ann, &rooms[0], &bob.user_id).await, "join");
    for body in [json!({ "act": ban, "dryrun": true }), ban.clone(), json!([])] {
        let answer = act(&admin, "change-member", body).await;
        assert!(answer.status == 400, "{:?}", answer.body);
    }
    // What a form fills in need not be given.
    let purge = json!({ "room": rooms[0], "days": 1 });
    act(&admin, "purge-history", json!({ "act": purge, "dry_run": true })).await.ok();
    let path = "/_logcabin/admin/v1/acts";
    let acts = admin.http.request("GET", path, Some(&admin.access_token), None).await.ok();
    let field = &acts["acts"]["undo"]["fields"][0];
    assert_eq!((&field["name"], &field["required"]), (&json!("record"), &json!(true)), "{acts}");
    admin
        .http
        .request("GET", path, Some(&ann.access_token), None)
        .await
        .refused(403, "M_FORBIDDEN");

    server.kill9();
    server.restart().await;
    let ann = User { http: server.http(), ..ann };
    assert_eq!(membership(&ann, &rooms[1], &bob.user_id).await, "ban");
    server.stop();
    assert!(history(&data_dir).contains("did so because: raid"));
    assert_verifies(&data_dir);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_rejects_waiting_invites() {
    let server = TestServer::start().await;
    let [ann, bob, spammer] =
        [server.register("ann").await, server.register("bob").await, server.register("eve").await];
    let invite = |to: &User| json!({ "invite": [to.user_id] });
    for to in [&ann, &bob] {
        spammer.create_room(invite(to)).await;
    }
    let wanted = bob.create_room(invite(&ann)).await;
    let run = |arguments: &str| {
        command("user", server.data_dir(), &format!("reject-invites {arguments}"), "")
    };
    let invites = async |user: &User| {
        let invites = user.get("/sync").await.ok()["rooms"]["invite"].clone();
        invites.as_object().map_or(0, serde_json::Map::len)
    };

    let would = done(run("--from eve --dry-run"));
    assert!(would.contains("2 invite(s) to 2 user(s)"), "{would}");
    assert_eq!((invites(&ann).await, invites(&bob).await), (2, 1));
    assert!(done(run("--from eve --to ann")).contains("Rejected 1 invite(s)"));
    assert_eq!((invites(&ann).await, invites(&bob).await), (1, 1));
    assert!(done(run("--from-server elsewhere.test")).contains("Rejected 0 invite(s)"));
    assert!(done(run("--from-server e2e.test --to bob")).contains("Rejected 1 invite(s)"));
    assert_eq!((invites(&ann).await, invites(&bob).await), (1, 0));
    // The one that was left can be accepted.
    ann.join(&wanted).await.ok();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reporter_is_told_what_was_decided_and_a_closed_report_is_opened_again() {
    let notices = ("LOGCABIN_SERVER_NOTICES_LOCALPART", "notices");
    let server = TestServer::start_with(&[notices]).await;
    let (admin, ann) = (admin(&server).await, server.register("ann").await);
    let bob = server.register("bob").await;
    let path = format!("/users/{}/report", encode(&ann.user_id));
    bob.post(&path, json!({ "reason": "rude" })).await.ok();
    let list = async || admin.administer("GET", "/v1/event_reports?kind=user", None).await.ok();
    let id = list().await["event_reports"][0]["id"].as_u64().expect("a report");
    let before = list().await;

    let order = json!({ "id": id, "tell": "We have talked to Ann." });
    let would = act(&admin, "remove-report", json!({ "act": order, "dry_run": true })).await.ok();
    assert_eq!(
        each(&would["effect"], ""),
        [
            format!("the report {id} is taken off the list"),
            "@bob:e2e.test is told so by a notice".to_owned(),
        ]
    );
    let said = act(&admin, "remove-report", json!({ "act": order, "reason": "warned" })).await.ok();
    assert_eq!(said["result"]["told"], json!(bob.user_id), "{said}");
    assert_eq!(list().await["total"], 0);
    let sync = bob.get("/sync").await.ok();
    let invites = sync["rooms"]["invite"].as_object().expect("an invite");
    let room_id = invites.keys().next().expect("a room").clone();
    bob.join(&room_id).await.ok();
    let messages = bob.get(&format!("/rooms/{}/messages?dir=b", encode(&room_id))).await.ok();
    assert!(messages.to_string().contains("We have talked to Ann."), "{messages}");

    let record = newest(&server, "report.remove");
    let undone = act(&admin, "undo", json!({ "act": { "record": record } })).await.ok();
    assert_eq!(undone["result"]["now"], json!(format!("the report {id} is open again")));
    assert_eq!(list().await, before);
    // A later close is not undone with the earlier one.
    act(&admin, "remove-report", json!({ "act": { "id": id } })).await.ok();
    let again = act(&admin, "undo", json!({ "act": { "record": record } })).await;
    again.refused(400, "M_INVALID_PARAM");
    let latest = newest(&server, "report.remove");
    act(&admin, "undo", json!({ "act": { "record": latest } })).await.ok();
    act(&admin, "undo", json!({ "act": { "record": record } }))
        .await
        .refused(400, "M_INVALID_PARAM");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_reports_are_closed_at_once_and_each_reporter_is_told_once() {
    let notices = ("LOGCABIN_SERVER_NOTICES_LOCALPART", "notices");
    let server = TestServer::start_with(&[notices]).await;
    let (admin, ann) = (admin(&server).await, server.register("ann").await);
    let (bob, cas) = (server.register("bob").await, server.register("cas").await);
    for (reporter, reported) in [(&bob, &ann), (&bob, &cas), (&cas, &ann), (&cas, &bob)] {
        let path = format!("/users/{}/report", encode(&reported.user_id));
        reporter.post(&path, json!({ "reason": "rude" })).await.ok();
    }
    let list = async || admin.administer("GET", "/v1/event_reports?kind=user", None).await.ok();
    let reports = list().await["event_reports"].as_array().expect("a list").clone();
    let ids: Vec<_> = reports.iter().map(|report| report["id"].to_string()).collect();
    let close = async |reports: &[String]| {
        let order = json!({ "reports": reports, "tell": "Thank you." });
        act(&admin, "remove-reports", json!({ "act": order })).await
    };
    close(&[]).await.refused(400, "M_INVALID_PARAM");
    close(&["x".to_owned()]).await.refused(400, "M_INVALID_PARAM");
    close(&[ids[0].clone(), "999999".to_owned()]).await.refused(404, "M_NOT_FOUND");
    let long = json!({ "reports": ids, "tell": "x".repeat(5000) });
    act(&admin, "remove-reports", json!({ "act": long })).await.refused(400, "M_INVALID_PARAM");
    assert_eq!(list().await["total"], 4);
    let said = close(&[ids[0].clone(), ids[1].clone(), ids[0].clone()]).await.ok();
    assert_eq!(said["result"]["closed"].as_array().map(Vec::len), Some(2), "{said}");
    assert_eq!(said["result"]["told"].as_array().map(Vec::len), Some(1), "{said}");
    let close = format!("close {} {} --json", ids[2], ids[3]);
    let said = done_json(command("report", server.data_dir(), &close, ""));
    assert_eq!(
        (&said["closed"], &said["told"]),
        (&json!([ids[2].parse::<u64>().unwrap(), ids[3].parse::<u64>().unwrap()]), &json!([])),
        "{said}"
    );
    assert_eq!(list().await["total"], 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_undoes_what_records_did_unless_later_ones_changed_it() {
    crate::harness::nodes::one_server!("it stops the server");
    let mut server = TestServer::start().await;
    let (ann, bob) = (server.register("ann").await, server.register("bob").await);
    let room_id = ann.create_room(json!({ "preset": "public_chat", "name": "Woods" })).await;
    bob.join(&room_id).await.ok();
    let data_dir = server.data_dir().to_owned();
    let undo_record = |record: u64| command("undo", &data_dir, &record.to_string(), "");
    let user = |arguments: &str| done(command("user", &data_dir, arguments, ""));
    let room = |arguments: &str| done(command("room", &data_dir, arguments, ""));

    // Accounts.
    user("suspend bob");
    let suspended = newest(&server, "user.status");
    let would = done(command("undo", &data_dir, &format!("{suspended} --dry-run"), ""));
    assert!(would.contains("@bob:e2e.test is not suspended"), "{would}");
    bob.send(&room_id, "m.room.message", "0", &json!({})).await.refused(403, "M_USER_SUSPENDED");
    let said = done(command("undo", &data_dir, &format!("{suspended} --reason mistake"), ""));
    assert!(said.contains("@bob:e2e.test is not suspended"), "{said}");
    bob.send_text(&room_id, "1", "thanks").await;
    // Undoing is a record like others, which can be undone.
    let said = done(undo_record(newest(&server, "user.status")));
    assert!(said.contains("@bob:e2e.test is suspended"), "{said}");
    user("unsuspend bob");
    let refused = failed(undo_record(newest(&server, "admin.undo")));
    assert!(refused.contains("only explains"), "{refused}");
    user("lock bob");
    let locked = newest(&server, "user.status");
    user("unlock bob");
    let unlocked = newest(&server, "user.status");
    assert!(failed(undo_record(locked)).contains(&format!("Record {unlocked} has changed")));
    // Also if it is so again.
    user("lock bob");
    assert!(failed(undo_record(locked)).contains("has changed this since"));
    user("unlock bob");
    user("set-admin bob");
    assert!(done(undo_record(newest(&server, "user.status"))).contains("not an administrator"));

    // Rooms.
    room(&format!("block {room_id}"));
    assert!(done(undo_record(newest(&server, "room.block"))).contains("is not blocked"));
    room(&format!("block {room_id}"));
    room(&format!("unblock {room_id}"));
    let unblocked = newest(&server, "room.block");
    assert!(done(undo_record(unblocked)).contains("is blocked"));
    assert!(done(undo_record(newest(&server, "room.block"))).contains("is not blocked"));
    assert!(failed(undo_record(unblocked)).contains("has changed this since"));
    let listing = format!("/directory/list/room/{}", encode(&room_id));
    ann.put(&listing, json!({ "visibility": "public" })).await.ok();
    assert!(done(undo_record(end(&server).get())).contains("is not in the public directory"));
    assert_eq!(ann.get(&listing).await.ok()["visibility"], "private");
    // Files.
    let media_id = format!("mxc://{}", ann.upload("text/plain", "words").await);
    let quarantined =
        |word: &str| done(command("media", &data_dir, &format!("{word} {media_id}"), ""));
    quarantined("quarantine");
    let first = newest(&server, "media.quarantine");
    assert!(done(undo_record(first)).contains("1 file(s) are not in quarantine"));
    assert!(failed(undo_record(first)).contains("has changed this since"));
    quarantined("protect");
    assert!(done(undo_record(newest(&server, "media.protect"))).contains("not exempt"));
    ann.set_state(&room_id, "m.room.name", "", &json!({ "name": "Desert" })).await.ok();
    let renamed = end(&server).get();
    let named = async || {
        let path = format!("/rooms/{}/state/m.room.name", encode(&room_id));
        ann.get(&path).await.ok()["name"].clone()
    };
    assert!(done(undo_record(renamed)).contains("in the name of @ann:e2e.test"));
    assert_eq!(named().await, "Woods");
    let refused = failed(undo_record(renamed));
    assert!(refused.contains("has changed this since"), "{refused}");
    ann.act(&room_id, "ban", Some(&bob)).await.ok();
    let ban = end(&server).get();
    assert!(done(undo_record(ban)).contains("is not banned from"));
    bob.join(&room_id).await.ok();
    let joined = end(&server).get();
    assert!(failed(undo_record(joined)).contains("only a ban and an invite"));
    let message = bob.send_text(&room_id, "2", "a message").await;
    assert!(message.starts_with('$'));
    assert!(failed(undo_record(end(&server).get())).contains("can be redacted"));
    let levels = json!({ "users": { (&*ann.user_id): 100, (&*bob.user_id): 100 } });
    ann.set_state(&room_id, "m.room.power_levels", "", &levels).await.ok();
    let powers = end(&server).get();
    // Ann cannot take from Bob the power that he has now, but he can.
    let said = done(undo_record(powers));
    assert!(said.contains("in the name of @bob:e2e.test"), "{said}");
    ann.set_state(&room_id, "m.room.power_levels", "", &levels).await.ok();
    let levels = json!({ "users": { (&*ann.user_id): 100, (&*bob.user_id): 50 } });
    bob.set_state(&room_id, "m.room.power_levels", "", &levels).await.ok();
    let levels = json!({ "users": { (&*ann.user_id): 100, (&*bob.user_id): 60 } });
    ann.set_state(&room_id, "m.room.power_levels", "", &levels).await.ok();
    assert!(done(undo_record(end(&server).get())).contains("m.room.power_levels"));

    // Aliases, the directory, profiles.
    let alias = "/directory/room/%23woods:e2e.test";
    ann.put(alias, json!({ "room_id": room_id })).await.ok();
    ann.request("DELETE", alias, None).await.ok();
    assert!(done(undo_record(end(&server).get())).contains("points at"));
    assert_eq!(ann.get(alias).await.ok()["room_id"], json!(room_id));
    let name = format!("/profile/{}/displayname", encode(&bob.user_id));
    bob.put(&name, json!({ "displayname": "Rude words" })).await.ok();
    let said = done(undo_record(newest(&server, "profile.set")));
    assert!(said.contains("displayname"), "{said}");
    assert_eq!(bob.get(&name).await.ok()["displayname"], "bob");
    let path = format!("/rooms/{}/state/m.room.member/{}", encode(&room_id), encode(&bob.user_id));
    assert_eq!(ann.get(&path).await.ok()["displayname"], "bob");

    // What has nothing to undo, or does not exist.
    assert!(failed(undo_record(1)).contains("cannot be undone"));
    assert!(failed(undo_record(0)).contains("no record"));
    assert!(failed(undo_record(9_999_999)).contains("no record"));

    server.kill9();
    server.restart().await;
    assert_eq!(User { http: server.http(), ..bob }.get(&name).await.ok()["displayname"], "bob");
    server.stop();
    let history = history(&data_dir);
    assert!(history.contains(&format!("undid record {renamed} so")), "{history}");
    assert!(history.contains("did so because: mistake"));
    assert_verifies(&data_dir);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_history_of_a_room_is_purged_up_to_an_event_or_a_time_also_over_a_kill() {
    crate::harness::nodes::one_server!("it stops the server");
    let mut server = TestServer::start().await;
    let ann = server.register("ann").await;
    let admin = admin(&server).await;
    let room_id = ann.create_room(json!({ "name": "Old", "preset": "public_chat" })).await;
    let mut sent = Vec::new();
    for number in 0..8 {
        sent.push(ann.send_text(&room_id, &number.to_string(), &format!("word {number}")).await);
    }
    let data_dir = server.data_dir().to_owned();
    let run = |arguments: &str| {
        command("room", &data_dir, &format!("purge-history {room_id} {arguments}"), "")
    };
    let words = async |user: &User| {
        let path = format!("/rooms/{}/messages?dir=b&limit=50", encode(&room_id));
        let chunk = user.get(&path).await.ok()["chunk"].clone();
        let bodies = chunk.as_array().expect("events").iter().rev();
        let bodies = bodies.filter_map(|event| event["content"]["body"].as_str());
        bodies.map(ToOwned::to_owned).collect::<Vec<_>>()
    };

    let would = done(run(&format!("--event {} --dry-run", sent[2])));
    assert!(would.contains("2 message(s) are removed"), "{would}");
    assert_eq!(words(&ann).await.len(), 8);
    assert!(done(run(&format!("--event {} --yes", sent[2]))).contains("Removed 2 message(s)"));
    assert_eq!(words(&ann).await, ["word 2", "word 3", "word 4", "word 5", "word 6", "word 7"]);
    // What users of this server sent stays, unless it is to go.
    assert!(done(run(&format!("--event {} --keep-local --yes", sent[7]))).contains("Removed 0"));
    let path = format!("/v1/purge_history/{}", encode(&room_id));
    for (body, status, code) in [
        (json!({}), 400, "M_MISSING_PARAM"),
        (json!({ "purge_up_to_event_id": "$none" }), 400, "M_INVALID_PARAM"),
        (json!({ "purge_up_to_ts": 9_999_999_999_999_u64 }), 400, "M_INVALID_PARAM"),
        (json!({ "purge_up_to_ts": "soon" }), 400, "M_BAD_JSON"),
    ] {
        admin.administer("POST", &path, Some(body)).await.refused(status, code);
    }
    let nowhere = "/v1/purge_history/!none:e2e.test";
    let body = || json!({ "purge_up_to_event_id": sent[7] });
    admin.administer("POST", nowhere, Some(body())).await.refused(404, "M_NOT_FOUND");
    let purged = async |path: &str, body: Value| {
        let begun = admin.administer("POST", path, Some(body)).await.ok();
        let id = begun["purge_id"].as_str().expect("an id").to_owned();
        let path = format!("/v1/purge_history_status/{id}");
        crate::harness::until("the purge is complete", async || {
            let status = admin.administer("GET", &path, None).await.ok();
            status["status"] == "complete"
        })
        .await;
        id
    };
    purged(&path, body()).await;
    assert_eq!(words(&ann).await.len(), 6);
    let up_to = format!("{path}/{}", encode(&sent[4]));
    let id = purged(&up_to, json!({ "delete_local_events": true })).await;
    assert_eq!(words(&ann).await, ["word 4", "word 5", "word 6", "word 7"]);
    let gone = format!("/rooms/{}/event/{}", encode(&room_id), encode(&sent[3]));
    ann.get(&gone).await.refused(404, "M_NOT_FOUND");
    let tasks =
        admin.administer("GET", "/v1/scheduled_tasks?action_name=purge_history", None).await;
    let tasks = tasks.ok();
    assert!(each(&tasks["scheduled_tasks"], "/id").contains(&id), "{tasks}");
    admin
        .administer("GET", "/v1/purge_history_status/none", None)
        .await
        .refused(404, "M_NOT_FOUND");

    server.kill9();
    server.restart().await;
    let ann = User { http: server.http(), ..ann };
    assert_eq!(words(&ann).await.len(), 4);
    // The state is as it was, and more can be said.
    assert_eq!(ann.state(&room_id, "m.room.name", "").await.ok()["name"], "Old");
    assert!(done(run("--days 0 --yes")).contains("Removed 4 message(s)"));
    assert_eq!(words(&ann).await, Vec::<String>::new());
    ann.send_text(&room_id, "9", "word 9").await;
    assert_eq!(words(&ann).await, ["word 9"]);
    server.stop();
    assert!(history(&data_dir).contains("purged the history of"));
    assert_verifies(&data_dir);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_spammer_is_stopped_and_cleaned_up_after_in_one_order() {
    let server = TestServer::start().await;
    let (admin, ann) = (admin(&server).await, server.register("ann").await);
    let spammer = server.register("eve").await;
    let mut rooms = Vec::new();
    for number in 0..5 {
        let room_id = ann.create_room(json!({ "preset": "public_chat" })).await;
        spammer.join(&room_id).await.ok();
        let event_id = spammer.send_text(&room_id, &number.to_string(), "buy now").await;
        let report = format!("/rooms/{}/report/{}", encode(&room_id), encode(&event_id));
        ann.post(&report, json!({ "reason": "spam" })).await.ok();
        rooms.push((room_id, event_id));
    }
    spammer.create_room(json!({ "invite": [ann.user_id] })).await;
    let order = json!({
        "user": spammer.user_id, "account": "suspend", "ban": true, "reject_invites": true,
        "redact": true, "quarantine": true, "close_reports": true,
    });

    let would = act(&admin, "clean-up", json!({ "act": order, "dry_run": true })).await.ok();
    let would = each(&would["effect"], "").join("\n");
    // The sixth room is the spammer's own. Joins are redacted, too.
    for words in ["is suspended", "from 6 rooms", "1 invite(s) to 1 user(s)", "11 event(s)"] {
        assert!(would.contains(words), "{words} in {would}");
    }
    assert_eq!(would.matches("is taken off the list").count(), 5, "{would}");
    let said = act(&admin, "clean-up", json!({ "act": order, "reason": "spam" })).await.ok();
    let failed = each(&said["result"]["failed"], "");
    assert!(failed.len() == 1 && failed[0].contains("not banned from 1 room(s)"), "{said}");
    let done = each(&said["result"]["done"], "").join("\n");
    for words in ["is suspended", "banned from 5 room(s)", "1 invite(s)"] {
        assert!(done.contains(words), "{words} in {done}");
    }
    assert_eq!(admin.administer("GET", "/v1/event_reports", None).await.ok()["total"], 0);
    for (room_id, event_id) in &rooms {
        assert_eq!(membership(&ann, room_id, &spammer.user_id).await, "ban");
        let path = format!("/rooms/{}/event/{}", encode(room_id), encode(event_id));
        crate::harness::until("the message is redacted", async || {
            ann.get(&path).await.ok()["content"] == json!({})
        })
        .await;
    }
    // Once more there is nothing left to do but in the room where nobody may.
    let again = done_json(command(
        "user",
        server.data_dir(),
        "clean-up eve --without invites,files --yes --json",
        "",
    ));
    assert_eq!(again["failed"].as_array().map(Vec::len), Some(1), "{again}");
    assert!(again["done"][0].as_str().expect("a sentence").contains("already"), "{again}");
}
