//! Server notices (client-server API, "Server Notices").

use serde_json::{Value, json};

use super::super::{each, unique};
use super::{admin, dry_run};
use crate::administration::{command, done, failed, history};
use crate::crash::assert_verifies;
use crate::harness::{TestServer, User, encode};

fn notice(user: &User, text: &str) -> Value {
    json!({ "user_id": user.user_id, "content": { "msgtype": "m.text", "body": text } })
}

/// The room to which the user is invited.
async fn invited(user: &User) -> Option<String> {
    let sync = user.sync(None, 0, None).await;
    let rooms = sync["rooms"]["invite"].as_object().cloned().unwrap_or_default();
    assert!(rooms.len() < 2, "{rooms:?}");
    rooms.into_iter().next().map(|(room_id, _)| room_id)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_notice_is_told_in_a_room_of_its_own_whose_invite_cannot_be_rejected() {
    let mut server = TestServer::start().await;
    let (mut admin, mut bob) = (admin(&server).await, server.register("bob").await);
    let ann = server.register("ann").await;
    // Whoever takes no invites is told all the same.
    let config = format!("/user/{}/account_data/m.invite_permission_config", encode(&bob.user_id));
    bob.put(&config, json!({ "default_action": "block" })).await.ok();
    let path = "/v1/send_server_notice";
    let said = dry_run(&server, &admin, "POST", path, notice(&bob, "x")).await;
    assert_eq!(said, [format!("{} gets a notice", bob.user_id)]);
    assert_eq!(invited(&bob).await, None);

    let told = bob.clone();
    let put = async |admin: &User, id: &str, text: &str| {
        let path = format!("/v1/send_server_notice/{id}");
        admin.administer("PUT", &path, Some(notice(&told, text))).await.ok_string("event_id")
    };
    let first = put(&admin, "1", "The server stops at noon.").await;
    assert_eq!(put(&admin, "1", "The server stops at noon.").await, first);
    let room_id = invited(&bob).await.expect("an invite");
    let tags = format!("/user/{}/rooms/{}/tags", encode(&bob.user_id), encode(&room_id));
    assert_eq!(bob.get(&tags).await.ok(), json!({ "tags": { "m.server_notice": {} } }));

    let code = "M_CANNOT_LEAVE_SERVER_NOTICE_ROOM";
    bob.act(&room_id, "leave", None).await.refused(403, code);
    let left = json!({ "membership": "leave" });
    let by_state = bob.set_state(&room_id, "m.room.member", &bob.user_id, &left).await;
    by_state.refused(403, "M_CANNOT_LEAVE_SERVER_NOTICE_ROOM");
    assert_eq!(invited(&bob).await, Some(room_id.clone()));

    bob.join(&room_id).await.ok();
    let page = bob.get_room(&room_id, "/messages?dir=f&limit=50").await.ok();
    let messages = each(&page["chunk"], "/content/body");
    assert_eq!(messages.iter().filter(|text| *text == "The server stops at noon.").count(), 1);
    assert_eq!(bob.state(&room_id, "m.room.name", "").await.ok()["name"], "Server Notices");
    assert_eq!(each(&json!([page["chunk"][0]]), "/sender"), ["@notices:e2e.test"], "{page}");
    // It is for being told alone.
    let answer = bob.try_send_text(&room_id, "1", "thanks").await.expect("an answer");
    answer.refused(403, "M_FORBIDDEN");
    bob.act(&room_id, "invite", Some(&ann)).await.refused(403, "M_FORBIDDEN");

    // There is one room, also after a crash, and for one who has left.
    server.kill9();
    server.restart().await;
    (admin.http, bob.http) = (server.http(), server.http());
    assert_eq!(put(&admin, "1", "The server stops at noon.").await, first);
    bob.act(&room_id, "leave", None).await.ok();
    let second = put(&admin, "2", "It is back.").await;
    assert_ne!(second, first);
    assert_eq!(invited(&bob).await, Some(room_id.clone()));
    let why = "bob Hello --reason as-agreed-on-Monday";
    let said = done(command("notice", server.data_dir(), why, ""));
    assert!(said.starts_with(&format!("Sent to {} in {room_id} (", bob.user_id)), "{said}");
    let another = notice(&bob, "and again");
    admin.administer("POST", path, Some(another.clone())).await.ok();
    admin.administer("POST", path, Some(another)).await.ok();
    bob.join(&room_id).await.ok();
    let page = bob.get_room(&room_id, "/messages?dir=b&limit=50").await.ok();
    let mut messages = each(&page["chunk"], "/content/body");
    messages.retain(|text| !text.is_empty());
    let expected = ["and again", "and again", "Hello", "It is back.", "The server stops at noon."];
    assert_eq!(messages, expected, "{page}");
    // The history shows the reason. The room does not.
    assert!(!page.to_string().contains("as-agreed-on-Monday"), "{page}");
    server.stop();
    let words = history(server.data_dir());
    let lines: Vec<_> = words.lines().collect();
    let notice = lines.iter().position(|line| line.contains("@notices:e2e.test Hello"));
    let notice = notice.unwrap_or_else(|| panic!("no notice in {words}"));
    let reason = lines.get(notice + 1).copied().unwrap_or_default();
    assert!(reason.contains("did so because: as-agreed-on-Monday"), "{reason} in {words}");
    assert_eq!(words.matches("did so because").count(), 1, "{words}");
    assert_verifies(server.data_dir());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_else_has_the_name_of_the_notices() {
    crate::harness::nodes::one_server!("it writes to a stopped server");
    let directory = tempfile::tempdir().expect("a temporary directory");
    let off = [("LOGCABIN_SERVER_NOTICES_LOCALPART", "off")];
    let mut server = TestServer::start_on_with(directory.path(), &off).await;
    let (admin, bob) = (admin(&server).await, server.register("bob").await);
    let answer = admin.administer("POST", "/v1/send_server_notice", Some(notice(&bob, "x"))).await;
    answer.refused(400, "M_INVALID_PARAM");
    // While there are none, the name is anyone's.
    let name = unique("official");
    server.register(&name).await;
    server.stop();

    let settings = [
        ("LOGCABIN_SERVER_NOTICES_LOCALPART", name.as_str()),
        ("LOGCABIN_SERVER_NOTICES_DISPLAY_NAME", "The Desk"),
    ];
    let mut server = TestServer::start_on_with(directory.path(), &settings).await;
    let refused = failed(command("notice", server.data_dir(), "bob Hello", ""));
    assert!(refused.contains("is somebody's account"), "{refused}");
    server.stop();

    let settings = [
        ("LOGCABIN_SERVER_NOTICES_LOCALPART", "desk"),
        ("LOGCABIN_SERVER_NOTICES_DISPLAY_NAME", "The Desk"),
        ("LOGCABIN_SERVER_NOTICES_ROOM_NAME", "From the Desk"),
    ];
    let mut server = TestServer::start_on_with(directory.path(), &settings).await;
    let body = json!({ "username": "desk", "password": super::super::PASSWORD });
    let http = server.http();
    let answer = http.request("POST", "/_matrix/client/v3/register", None, Some(&body)).await;
    answer.refused(400, "M_EXCLUSIVE");
    let taken = failed(command("user", server.data_dir(), "create desk --no-password", ""));
    assert!(taken.contains("taken"), "{taken}");
    done(command("notice", server.data_dir(), "bob Hello", ""));
    done(command("notice", server.data_dir(), "bob Again", ""));
    // Also while no server runs; under another name, in another room.
    server.stop();
    done(command("notice", server.data_dir(), "bob Bye", ""));
    let words = history(server.data_dir());
    let rooms = words.matches("@bob:e2e.test gets the server's notices in ").count();
    assert_eq!(rooms, 2, "{words}");
    for said in [
        "@desk:e2e.test set displayname to The Desk",
        "@desk:e2e.test set the name to From the Desk",
        "@desk:e2e.test Hello",
        "@desk:e2e.test Again",
        "@notices:e2e.test Bye",
    ] {
        assert!(words.contains(said), "no {said:?} in {words}");
    }
    assert_verifies(server.data_dir());
}
