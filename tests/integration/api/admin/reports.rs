//! Reports, as those who run the server see them and deal with them.

use serde_json::{Value, json};

use super::super::each;
use super::{admin, dry_run};
use crate::administration::{command, done, history};
use crate::harness::{TestServer, encode};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reports_are_listed_shown_and_dealt_with_also_over_a_restart() {
    let mut server = TestServer::start().await;
    let (mut admin, ann) = (admin(&server).await, server.register("ann").await);
    let bob = server.register("bob").await;
    let room_id = ann.create_room(json!({ "preset": "public_chat", "name": "Loud" })).await;
    bob.join(&room_id).await.ok();
    let event_id = ann.send_text(&room_id, "1", "rude words").await;
    let second = ann.send_text(&room_id, "2", "more of them").await;
    for (event_id, reason) in [(&event_id, "rude"), (&second, "ruder")] {
        let path = format!("/rooms/{}/report/{}", encode(&room_id), encode(event_id));
        bob.post(&path, json!({ "reason": reason, "score": -50 })).await.ok();
    }
    let of_room = format!("/rooms/{}/report", encode(&room_id));
    bob.post(&of_room, json!({ "reason": "a loud room" })).await.ok();
    let of_user = format!("/users/{}/report", encode(&ann.user_id));
    bob.post(&of_user, json!({ "reason": "a loud user" })).await.ok();

    let list = async |query: &str| {
        admin.administer("GET", &format!("/v1/event_reports{query}"), None).await.ok()
    };
    let all = list("").await;
    assert_eq!(all["total"], 2, "{all}");
    assert_eq!(each(&all["event_reports"], "/reason"), ["ruder", "rude"]);
    let one = &all["event_reports"][1];
    for (field, value) in [
        ("event_id", json!(event_id)),
        ("room_id", json!(room_id)),
        ("user_id", json!(bob.user_id)),
        ("sender", json!(ann.user_id)),
        ("name", json!("Loud")),
        ("score", json!(-50)),
        ("canonical_alias", Value::Null),
    ] {
        assert_eq!(one[field], value, "{field} in {one}");
    }
    assert!(one["received_ts"].as_u64() > Some(1_700_000_000_000), "{one}");
    assert_eq!(each(&list("?dir=f&limit=1").await["event_reports"], "/reason"), ["rude"]);
    assert_eq!(list("?limit=1").await["next_token"], 1);
    assert_eq!(list("?user_id=nobody").await["total"], 0);
    assert_eq!(list(&format!("?sender_user_id={}", encode(&bob.user_id))).await["total"], 0);
    assert_eq!(each(&list("?kind=room").await["event_reports"], "/reason"), ["a loud room"]);
    assert_eq!(each(&list("?kind=user").await["event_reports"], "/reason"), ["a loud user"]);
    assert_eq!(list("?kind=all").await["total"], 4);

    let id = one["id"].as_u64().expect("a number");
    let path = format!("/v1/event_reports/{id}");
    let shown = admin.administer("GET", &path, None).await.ok();
    assert_eq!(shown["event_json"]["content"]["body"], "rude words", "{shown}");
    let said = dry_run(&server, &admin, "DELETE", &path, json!({})).await;
    assert_eq!(said.len(), 1, "{said:?}");
    admin.administer("DELETE", &path, Some(json!({ "reason": "warned" }))).await.ok();
    admin.administer("GET", &path, None).await.refused(404, "M_NOT_FOUND");

    server.kill9();
    server.restart().await;
    admin.http = server.http();
    admin.administer("GET", &path, None).await.refused(404, "M_NOT_FOUND");
    let run = |arguments: &str| command("report", server.data_dir(), arguments, "");
    let listed = done(run("list"));
    assert!(listed.contains("a loud user") && listed.contains("3 report(s)"), "{listed}");
    let other = all["event_reports"][0]["id"].as_u64().expect("a number");
    assert!(done(run(&format!("show {other}"))).contains("more of them"));
    done(run(&format!("remove {other} --reason nonsense")));
    assert!(done(run("list")).contains("2 report(s)"));
    server.stop();
    let words = history(server.data_dir());
    for said in [
        format!("{} closed the report {id}\n", admin.user_id),
        format!("{} did so because: warned\n", admin.user_id),
        "did so because: nonsense\n".to_owned(),
    ] {
        assert!(words.contains(&said), "no {said:?} in {words}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reports_of_users_are_listed_shown_and_closed_apart_from_others() {
    let server = TestServer::start().await;
    let (admin, ann) = (admin(&server).await, server.register("ann").await);
    let (bob, cas) = (server.register("bob").await, server.register("cas").await);
    let room_id = ann.create_room(json!({ "preset": "public_chat" })).await;
    let event_id = ann.send_text(&room_id, "1", "rude words").await;
    bob.join(&room_id).await.ok();
    let of_event = format!("/rooms/{}/report/{}", encode(&room_id), encode(&event_id));
    bob.post(&of_event, json!({ "reason": "rude" })).await.ok();
    for (by, target, reason) in [(&bob, &ann, "one"), (&bob, &cas, "two"), (&cas, &ann, "three")] {
        let path = format!("/users/{}/report", encode(&target.user_id));
        by.post(&path, json!({ "reason": reason })).await.ok();
    }

    let list = async |query: &str| {
        admin.administer("GET", &format!("/v1/user_reports{query}"), None).await.ok()
    };
    let reasons = async |query: &str| each(&list(query).await["user_reports"], "/reason");
    let all = list("").await;
    assert_eq!(all["total"], 3, "{all}");
    assert!(all.get("next_token").is_none(), "{all}");
    assert_eq!(reasons("").await, ["three", "two", "one"]);
    assert_eq!(reasons("?dir=f").await, ["one", "two", "three"]);
    assert_eq!(reasons("?user_id=bob").await, ["two", "one"]);
    let of_ann = encode(&ann.user_id);
    assert_eq!(reasons(&format!("?target_user_id={of_ann}")).await, ["three", "one"]);
    assert_eq!(reasons(&format!("?target_user_id={of_ann}&user_id=cas")).await, ["three"]);
    assert_eq!(reasons("?user_id=nobody").await, Vec::<String>::new());
    let page = list("?limit=2").await;
    assert_eq!((&page["next_token"], &page["total"]), (&json!(2), &json!(3)), "{page}");
    assert_eq!(reasons("?limit=2&from=2").await, ["one"]);

    let one = all["user_reports"][2].clone();
    let path = format!("/v1/user_reports/{}", one["id"]);
    let expected = json!({
        "id": one["id"], "received_ts": one["received_ts"], "user_id": bob.user_id,
        "target_user_id": ann.user_id, "reason": "one",
    });
    assert_eq!(one, expected);
    assert!(one["received_ts"].as_u64() > Some(1_700_000_000_000), "{one}");
    assert_eq!(admin.administer("GET", &path, None).await.ok(), expected);
    let said = dry_run(&server, &admin, "DELETE", &path, json!({})).await;
    assert_eq!(said.len(), 1, "{said:?}");
    assert_eq!(admin.administer("DELETE", &path, None).await.ok(), json!({}));
    for method in ["GET", "DELETE"] {
        admin.administer(method, &path, None).await.refused(404, "M_NOT_FOUND");
    }
    assert_eq!(reasons("").await, ["three", "two"]);

    // The report of an event has other endpoints.
    let events = admin.administer("GET", "/v1/event_reports", None).await.ok();
    let other = format!("/v1/user_reports/{}", events["event_reports"][0]["id"]);
    for method in ["GET", "DELETE"] {
        admin.administer(method, &other, None).await.refused(404, "M_NOT_FOUND");
        let none = "/v1/user_reports/none";
        admin.administer(method, none, None).await.refused(400, "M_INVALID_PARAM");
    }
    let events = admin.administer("GET", "/v1/event_reports", None).await.ok();
    assert_eq!(events["total"], 1, "{events}");
}
