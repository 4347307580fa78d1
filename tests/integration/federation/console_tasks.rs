//! What administrators do most with the console, in a browser that counts what they do.

use std::env;
use std::process::Command;

use serde_json::{Value, json};

use super::{Federated, authority};
use crate::administration::{command, done, done_json, user_command};
use crate::api::admin::policies::settled;
use crate::harness::tools::{chromium, judged, node, programs};
use crate::harness::{Http, TestServer, User, encode, skip, until};

const PASSWORD: &str = "a password that is long enough";

/// How many rooms the spammer is in.
const ROOMS: usize = 5;

/// An account that an administrator has made, so that it does not wait for approval.
async fn made(server: &TestServer, name: &str) -> User {
    done(user_command(server.data_dir(), &format!("create {name}"), &format!("{PASSWORD}\n")));
    User::login(&server.http(), name, PASSWORD).await
}

async fn newcomer(http: &Http, name: &str) {
    let body = json!({
        "username": name, "password": PASSWORD, "auth": { "type": "m.login.dummy" },
    });
    http.request("POST", "/_matrix/client/v3/register", None, Some(&body)).await;
}

fn shown(server: &TestServer, user: &str) -> Value {
    done_json(user_command(server.data_dir(), &format!("show {user} --json"), ""))
}

async fn body_of(by: &User, room_id: &str, event_id: &str) -> Value {
    let path = format!("/rooms/{}/event/{}", encode(room_id), encode(event_id));
    by.request("GET", &path, None).await.ok()["content"]["body"].clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_ten_tasks_of_administrators_take_few_actions() {
    let found = node("puppeteer-core").and_then(|()| node("axe-core"));
    let chromium = match found.and_then(|()| chromium()) {
        Ok(chromium) => chromium,
        Err(missing) => return skip("the tasks in the console", &missing),
    };
    let Some(authority) = authority("tasks") else { return };
    let settings = [
        ("LOGCABIN_CONSOLE_ENABLED", "true"),
        ("LOGCABIN_REGISTRATION_OPEN", "true"),
        ("LOGCABIN_REGISTRATION_APPROVAL", "true"),
    ];
    let cabin = Federated::start_with(&authority, &settings).await;
    let server = &cabin.server;
    let run = |of: &str, arguments: &str| done(command(of, server.data_dir(), arguments, ""));
    done(user_command(server.data_dir(), "create root --admin", &format!("{PASSWORD}\n")));
    let root = User::login(&server.http(), "root", PASSWORD).await;
    let (ann, bob) = (made(server, "ann").await, made(server, "bobby").await);

    // A spammer in five rooms, of whom two reports tell.
    let spammer = made(server, "spammer").await;
    let mut spam = Vec::new();
    for number in 0..ROOMS {
        let options = json!({ "preset": "public_chat", "name": format!("Room {number}") });
        let room_id = ann.create_room(options).await;
        spammer.join(&room_id).await.ok();
        let event_id = spammer.send_text(&room_id, "1", "buy now").await;
        spam.push((room_id, event_id));
    }
    for (room_id, event_id) in &spam[..2] {
        let path = format!("/rooms/{}/report/{}", encode(room_id), encode(event_id));
        ann.request("POST", &path, Some(&json!({ "reason": "spam" }))).await.ok();
    }
    // Who made bob an administrator.
    let path = format!("/v2/users/{}", encode(&bob.user_id));
    root.administer("PUT", &path, Some(json!({ "admin": true }))).await.ok();
    // Somebody whose files are large.
    let hoarder = made(server, "hoarder").await;
    let token = format!("Bearer {}", hoarder.access_token);
    let headers = [("authorization", &*token), ("content-type", "text/plain")];
    for _ in 0..2 {
        let file = "x".repeat(3_000_000);
        let uploaded = server.http().raw("POST", "/_matrix/media/v3/upload", &headers, file).await;
        assert_eq!(uploaded.parts.status.as_u16(), 200);
    }
    // Somebody who was suspended, and one who was banned by mistake.
    let dave = made(server, "davide").await;
    run("user", &format!("suspend {} --reason insults", dave.user_id));
    let carol = made(server, "carolin").await;
    carol.join(&spam[0].0).await.ok();
    ann.act(&spam[0].0, "ban", Some(&carol)).await.ok();
    // Three who wait.
    for name in ["xena", "yves", "zoe"] {
        newcomer(&server.http(), name).await;
        assert_eq!(shown(server, name)["waiting"], true);
    }
    // A policy list that keeps away somebody who should not be.
    let frank = made(server, "frank").await;
    let list = ann.create_room(json!({ "name": "Bans", "preset": "public_chat" })).await;
    let rule = json!({ "entity": frank.user_id, "recommendation": "m.ban", "reason": "spam" });
    ann.set_state(&list, "m.policy.rule.user", "frank", &rule).await.ok();
    run("policy", &format!("subscribe {list}"));
    settled(server.data_dir()).await;
    let asks = json!({ "enabled": true });
    ann.set_state(&spam[1].0, "org.logcabin.policy_lists", "", &asks).await.ok();
    frank.join(&spam[1].0).await.refused(403, "M_FORBIDDEN");
    // A backup that was verified.
    let place = tempfile::tempdir().expect("a temporary directory");
    let backup = place.path().join("backup").display().to_string();
    run("backup", &backup);
    run("verify-backup", &backup);
    // Another homeserver that is gone.
    let other = Federated::start(&authority).await;
    let guest = other.server.register("guest").await;
    let path = format!("/join/{}?via={}", encode(&spam[2].0), encode(&cabin.name));
    guest.request("POST", &path, Some(&json!({}))).await.ok();
    let elsewhere = other.name.clone();
    drop(other);
    ann.send_text(&spam[2].0, "lost", "does anybody hear me?").await;
    until("the other homeserver is known to be gone", async || {
        let listed = done_json(command("federation", server.data_dir(), "status --json", ""));
        listed["destinations"].as_array().is_some_and(|all| {
            all.iter().any(|of| of["server_name"] == *elsewhere && !of["failing"].is_null())
        })
    })
    .await;

    let mut node = Command::new("node");
    node.arg(programs().join("console_tasks.mjs"));
    node.args([&*server.base(), &*chromium, "root", PASSWORD, &*elsewhere]);
    node.args(env::var_os("LOGCABIN_E2E_SCREENSHOTS"));
    judged("console_tasks.mjs", node).await;

    // They are really done.
    assert_eq!(shown(server, "spammer")["suspended"], true);
    let spammer_id = &spammer.user_id;
    for (room_id, event_id) in &spam {
        let member = ann.state(room_id, "m.room.member", spammer_id).await.ok();
        assert_eq!(member["membership"], "ban", "{room_id}");
        until("the spam is redacted", async || body_of(&ann, room_id, event_id).await.is_null())
            .await;
    }
    let reports = done_json(command("report", server.data_dir(), "list --json", ""));
    assert_eq!(reports["reports"], json!([]));
    assert_eq!(shown(server, "hoarder")["media_bytes"], 0);
    assert_eq!(shown(server, "davide")["suspended"], false);
    let member = ann.state(&spam[0].0, "m.room.member", &carol.user_id).await.ok();
    assert_eq!(member["membership"], "leave");
    for name in ["xena", "yves", "zoe"] {
        assert_eq!(shown(server, name)["waiting"], false, "{name}");
        User::login(&server.http(), name, PASSWORD).await;
    }
    frank.join(&spam[1].0).await.ok();
}
