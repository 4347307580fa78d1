//! What holds for the content of events holds for those of a room's history that were fetched from
//! another homeserver.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::Federated;
use super::elsewhere::{Stage, stage, stage_with, texts};
use crate::administration::done;
use crate::contents::files_with;
use crate::crash::assert_verifies;
use crate::harness::{User, encode, run_logcabin_with, until, until_ok};

/// Everything that is due is erased at once.
const AT_ONCE: [(&str, &str); 2] =
    [("LOGCABIN_ERASURE_REDACTED_AFTER_SECONDS", "0"), ("LOGCABIN_ERASURE_SWEEP_SECONDS", "1")];

async fn until_gone(cabin: &Federated, text: &str) {
    until_ok(&format!("`{text}` is in no file"), async || {
        let found = files_with(cabin.server.data_dir(), text);
        if found.is_empty() { Ok(()) } else { Err(found) }
    })
    .await;
}

fn logcabin(cabin: &Federated, arguments: &[&str]) -> std::process::Output {
    let data_dir = cabin.server.data_dir().to_str().expect("a plain name");
    run_logcabin_with("", arguments.iter().copied().chain(["--data-dir", data_dir]))
}

async fn event(user: &User, room_id: &str, event_id: &str) -> Value {
    let path = format!("/rooms/{}/event/{}", encode(room_id), encode(event_id));
    user.request("GET", &path, None).await.ok()
}

/// How many events a search finds.
async fn found(user: &User, term: &str) -> Value {
    let search = json!({ "search_categories": { "room_events": { "search_term": term } } });
    let found = user.request("POST", "/search", Some(&search)).await.ok();
    found["search_categories"]["room_events"]["count"].clone()
}

/// Everything that is said in a room.
async fn all(user: &User, room_id: &str) -> Vec<String> {
    let (mut all, mut from) = (Vec::new(), String::new());
    loop {
        let (read, end) = texts(user, room_id, &format!("limit=50{from}")).await;
        all.extend(read);
        let Some(end) = end else { return all };
        from = format!("&from={end}");
    }
}

/// The server without what it keeps in memory.
async fn restarted(cabin: &mut Federated, user: &User) -> User {
    cabin.server.restart().await;
    User { http: cabin.server.http(), ..user.clone() }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_taken_back_is_gone_whether_its_redaction_comes_before_it_or_after_it() {
    let Some((_authority, mut cabin, stage, ann)) = stage_with(&AT_ONCE).await else { return };
    let early = stage.say("falcon");
    let late = stage.say("kestrel");
    stage.say("osprey");
    let room_id = stage.entered_by(&ann).await;
    let since = ann.sync(None, 0, None).await["next_batch"].as_str().map(ToOwned::to_owned);
    // Before anybody has read what it takes back.
    stage.tell(&cabin, "m.room.redaction", json!({ "redacts": early })).await;
    assert_eq!(all(&ann, &room_id).await, ["osprey", "kestrel"]);
    let shown = event(&ann, &room_id, &early).await;
    assert_eq!(shown["content"], json!({}), "{shown}");
    assert_eq!(shown["unsigned"]["redacted_because"]["redacts"], early, "{shown}");
    assert_eq!(found(&ann, "falcon").await, 0);
    assert_eq!(found(&ann, "kestrel").await, 1);
    until_gone(&cabin, "falcon").await;
    // And after that.
    let redaction = stage.tell(&cabin, "m.room.redaction", json!({ "redacts": late })).await;
    let told = ann.sync(since.as_deref(), 0, None).await;
    assert!(told.to_string().contains(&redaction), "{told}");
    for user in [ann.clone(), restarted(&mut cabin, &ann).await] {
        assert_eq!(all(&user, &room_id).await, ["osprey"]);
        assert_eq!(event(&user, &room_id, &late).await["content"], json!({}));
        assert_eq!(found(&user, "kestrel").await, 0);
        until_gone(&cabin, "kestrel").await;
    }
    // Ann has no power over what others said.
    let user = User { http: cabin.server.http(), ..ann };
    let kept = stage.room().order[6].clone();
    let path = format!("/rooms/{}/redact/{}/r", encode(&room_id), encode(&kept));
    user.request("PUT", &path, Some(&json!({}))).await.refused(403, "M_FORBIDDEN");
    cabin.server.stop();
    assert_verifies(cabin.server.data_dir());
}

/// What a user says in a room of the peer, who then leaves it.
async fn say_there(stage: &Stage, user: &User, text: &str) {
    stage.say("old");
    let room_id = stage.entered_by(user).await;
    // The id of a transaction is not content.
    user.send_text(&room_id, &text[..1], text).await;
    user.act(&room_id, "leave", None).await.ok();
    stage.keep_received(3).await;
}

fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-a").arg(from).arg(to).status().expect("cp");
    assert!(copied.success(), "{} cannot be copied", from.display());
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_of_an_erased_user_do_not_come_back_from_another_homeserver() {
    let Some((_authority, mut cabin, stage, ann)) = stage_with(&AT_ONCE).await else { return };
    let bob = cabin.server.register("bob").await;
    let other = stage.another();
    // A server that was put back to before ann was there only has others who know of it.
    let data_dir = cabin.server.data_dir().to_owned();
    let aside = TempDir::new().expect("a temporary directory");
    let before = aside.path().join("data");
    cabin.server.stop();
    copy(&data_dir, &before);
    let user = restarted(&mut cabin, &ann).await;
    say_there(&stage, &user, "goshawk").await;
    say_there(&other, &user, "harrier").await;
    cabin.server.stop();
    std::fs::remove_dir_all(&data_dir).expect("the data can be removed");
    copy(&before, &data_dir);
    let bob = restarted(&mut cabin, &bob).await;
    // Bob reads there before ann is erased.
    let room_id = stage.entered_by(&bob).await;
    assert_eq!(all(&bob, &room_id).await, ["goshawk", "old"]);
    assert_eq!(found(&bob, "goshawk").await, 1);
    done(logcabin(&cabin, &["user", "erase", "ann", "--messages", "--yes"]));
    until_gone(&cabin, "goshawk").await;
    // And in the other room after that.
    let other_id = other.entered_by(&bob).await;
    assert_eq!(all(&bob, &other_id).await, ["old"]);
    for user in [bob.clone(), restarted(&mut cabin, &bob).await] {
        for (room_id, text) in [(&room_id, "goshawk"), (&other_id, "harrier")] {
            assert_eq!(all(&user, room_id).await, ["old"]);
            assert_eq!(found(&user, text).await, 0, "{text}");
            until_gone(&cabin, text).await;
        }
    }
    cabin.server.stop();
    assert_verifies(cabin.server.data_dir());
}

#[tokio::test(flavor = "multi_thread")]
async fn history_that_has_outlived_its_room_s_lifetime_is_not_shown_and_is_deleted() {
    let settings = [
        ("LOGCABIN_RETENTION_LOWEST_SECONDS", "0"),
        ("LOGCABIN_RETENTION_HIGHEST_SECONDS", "100000"),
        ("LOGCABIN_ERASURE_SWEEP_SECONDS", "1"),
    ];
    let Some((_authority, mut cabin, stage, ann)) = stage_with(&settings).await else { return };
    // So long that it is not over since the server got it, only since it was said.
    let hour = json!({ "max_lifetime": 3_600_000 });
    stage.state("m.room.retention", "", hour);
    let said = stage.say("merlin");
    let name = stage.state("m.room.name", "", json!({ "name": "Mews" }));
    let room_id = stage.entered_by(&ann).await;
    assert_eq!(all(&ann, &room_id).await, [""; 0]);
    for what in ["event", "context"] {
        let path = format!("/rooms/{}/{what}/{}", encode(&room_id), encode(&said));
        ann.request("GET", &path, None).await.refused(404, "M_NOT_FOUND");
    }
    assert_eq!(event(&ann, &room_id, &name).await["content"]["name"], "Mews");
    assert_eq!(found(&ann, "merlin").await, 0);
    // In a room where nothing lives for longer than a moment, it leaves the disk.
    let short = stage.another();
    short.state("m.room.retention", "", json!({ "max_lifetime": 1 }));
    short.say("hobby-falcon");
    let short_id = short.entered_by(&ann).await;
    assert_eq!(all(&ann, &short_id).await, [""; 0]);
    until_gone(&cabin, "hobby-falcon").await;
    // It does not come again.
    let asked = short.room().asked;
    let ann = restarted(&mut cabin, &ann).await;
    assert_eq!(all(&ann, &short_id).await, [""; 0]);
    assert_eq!(short.room().asked, asked);
    assert_eq!(files_with(cabin.server.data_dir(), "hobby-falcon").len(), 0);
    cabin.server.stop();
    assert_verifies(cabin.server.data_dir());
}

#[tokio::test(flavor = "multi_thread")]
async fn threads_edits_searches_and_reports_reach_into_fetched_history() {
    let Some((_authority, mut cabin, stage, ann)) = stage().await else { return };
    let root = stage.say("root");
    let related = |rel_type: &str, text: &str| {
        let mut content = json!({ "msgtype": "m.text", "body": text,
            "m.relates_to": { "rel_type": rel_type, "event_id": root } });
        if rel_type == "m.replace" {
            content["m.new_content"] = json!({ "msgtype": "m.text", "body": text });
        }
        stage.add(stage.event("m.room.message", None, content))
    };
    let replies = [related("m.thread", "eyrie one"), related("m.thread", "eyrie two")];
    let edit = related("m.replace", "eyrie edited");
    stage.say("last");
    let room_id = stage.entered_by(&ann).await;
    assert_eq!(all(&ann, &room_id).await.len(), 5);
    let v1 = |path: &str| format!("/_matrix/client/v1/rooms/{}/{path}", encode(&room_id));
    let mut ann = ann;
    for round in ["before", "after a restart"] {
        let get = async |path: String| {
            ann.http.request("GET", &path, Some(&ann.access_token), None).await.ok()
        };
        let ids = |chunk: &Value| -> Vec<Value> {
            let chunk = chunk["chunk"].as_array().expect("a list").iter();
            chunk.map(|event| event["event_id"].clone()).collect()
        };
        let threads = get(v1("threads")).await;
        assert_eq!(ids(&threads), [json!(root)], "{round}: {threads}");
        let shown = event(&ann, &room_id, &root).await;
        let bundled = &shown["unsigned"]["m.relations"];
        assert_eq!(bundled["m.thread"]["count"], 2, "{round}: {shown}");
        assert_eq!(bundled["m.thread"]["latest_event"]["event_id"], replies[1], "{shown}");
        assert_eq!(bundled["m.replace"]["event_id"], edit, "{round}: {shown}");
        let of_thread = get(v1(&format!("relations/{}/m.thread", encode(&root)))).await;
        assert_eq!(ids(&of_thread), [json!(replies[1]), json!(replies[0])], "{round}");
        assert_eq!(found(&ann, "eyrie").await, 3, "{round}");
        // Reading it changes no count, and can be said.
        let path = format!("/rooms/{}/receipt/m.read/{}", encode(&room_id), encode(&replies[0]));
        ann.request("POST", &path, Some(&json!({}))).await.ok();
        ann = restarted(&mut cabin, &ann).await;
    }
    let path = format!("/rooms/{}/report/{}", encode(&room_id), encode(&replies[0]));
    ann.request("POST", &path, Some(&json!({ "reason": "moulting" }))).await.ok();
    let reports = done(logcabin(&cabin, &["report", "list", "--json"]));
    assert!(reports.contains(&replies[0]) && reports.contains("moulting"), "{reports}");
    // What is taken back does not count any more.
    stage.tell(&cabin, "m.room.redaction", json!({ "redacts": replies[1] })).await;
    until("the thread is shorter", async || {
        let shown = event(&ann, &room_id, &root).await;
        shown["unsigned"]["m.relations"]["m.thread"]["count"] == 1
    })
    .await;
    assert_eq!(found(&ann, "eyrie").await, 2);
}
