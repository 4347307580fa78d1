//! What other homeservers send while this one cannot record anything.

use serde_json::json;
use tempfile::TempDir;

use super::hostile::{Hostile, now};
use super::peer::Peer;
use super::{Federated, authority};
use crate::harness::{Direction, skip, until};
use crate::operations::SmallDisk;

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_that_cannot_be_recorded_is_refused_and_taken_when_it_is_repeated() {
    let Some(authority) = authority("a full disk") else { return };
    let mount = TempDir::new().expect("a temporary directory");
    let Some(_disk) = SmallDisk::mount(mount.path()) else {
        skip("full disk", "a small file system cannot be mounted here (that takes root)");
        return;
    };
    let reserve = [("LOGCABIN_LOG_MIN_FREE_BYTES", "33554432")];
    let data = mount.path().join("data");
    let cabin = Federated::launch(&authority, &reserve, Some(&data)).await;
    let peer = Peer::start(&authority).await;
    let ann = cabin.server.register("ann").await;
    let options = json!({ "preset": "public_chat", "room_version": "10" });
    let room_id = ann.create_room(options).await;
    let mut hostile = Hostile::new(&peer, &cabin, &room_id);
    hostile.join().await;
    let since = ann.sync(None, 0, None).await["next_batch"].as_str().map(ToOwned::to_owned);

    // The first event of a transaction is recorded, and then there is no room for the second.
    let (first_id, first) = hostile.signed(hostile.message("first").await);
    let said = hostile.send(std::slice::from_ref(&first)).await;
    assert_eq!(said, json!({ &*first_id: {} }));
    let (second_id, second) = hostile.signed(hostile.message("second").await);
    let mut forged = hostile.message("forged").await;
    forged["sender"] = json!(ann.user_id);
    let (forged_id, forged) = hostile.signed(forged);
    let to_ann = json!({ "edu_type": "m.direct_to_device", "content": {
        "sender": hostile.user("pia"), "type": "org.example.note", "message_id": "m1",
        "messages": { &*ann.user_id: { "*": { "body": "once" } } },
    } });
    let whole = json!({
        "origin": peer.name, "origin_server_ts": now(), "pdus": [first, forged, second],
        "edus": [to_ann],
    });
    let path = "/_matrix/federation/v1/send/whole";
    let filler = mount.path().join("filler");
    SmallDisk::fill(&filler);
    for _ in 0..2 {
        let refused = hostile.ask("PUT", path, &whole).await;
        assert_eq!(refused.status, 503, "{refused}");
        assert_eq!(refused.body["pdus"], json!(null), "{refused}");
    }
    // EDUs alone are no less worth.
    let mut edus = whole.clone();
    edus["pdus"] = json!([]);
    let refused = hostile.ask("PUT", "/_matrix/federation/v1/send/edus", &edus).await;
    assert_eq!(refused.status, 503, "{refused}");

    std::fs::remove_file(&filler).expect("the filler can be removed");
    let mut said = json!(null);
    until("there is room again", async || {
        let answer = hostile.ask("PUT", path, &whole).await;
        said = answer.body["pdus"].clone();
        answer.status == 200
    })
    .await;
    // What is wrong with an event is no reason for a repetition.
    assert_eq!((&said[&first_id], &said[&second_id]), (&json!({}), &json!({})), "{said}");
    assert!(said[&forged_id]["error"].is_string(), "{said}");
    hostile.ask("PUT", path, &whole).await.ok();
    let page = ann.messages(&room_id, None, None, Direction::Back, 20).await;
    let texts = page["chunk"].as_array().expect("a list").iter();
    let texts: Vec<_> = texts.filter_map(|event| event["content"]["body"].as_str()).collect();
    assert_eq!(texts, ["second", "first"]);
    let sync = ann.sync(since.as_deref(), 0, None).await;
    let notes = sync["to_device"]["events"].as_array().expect("a list");
    assert_eq!(notes.len(), 1, "{notes:?}");
}
