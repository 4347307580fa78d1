//! Files: quarantine, lists, statistics.

use serde_json::json;

use super::super::each;
use super::{admin, dry_run, server, user};
use crate::administration::{command, done, done_json, history};
use crate::crash::assert_verifies;
use crate::harness::{TestServer, User, encode};

async fn downloads(user: &User, media: &str) -> u16 {
    let answer = user.download(media).await;
    let status = answer.parts.status.as_u16();
    if status != 200 {
        answer.json().refused(404, "M_NOT_FOUND");
    }
    status
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_downloads_a_file_in_quarantine_under_any_address() {
    crate::harness::nodes::one_server!("it looks into the directory of one node");
    let directory = tempfile::tempdir().expect("a temporary directory");
    let open = [("LOGCABIN_MEDIA_UNAUTHENTICATED", "all")];
    let mut server = TestServer::start_on_with(directory.path(), &open).await;
    let (mut admin, mut bob) = (admin(&server).await, server.register("bob").await);
    let ann = server.register("ann").await;
    let bad = bob.upload("text/plain", "something bad").await;
    let same = ann.upload("text/plain", "something bad").await;
    let good = bob.upload("text/plain", "something good").await;
    let path = format!("/v1/media/quarantine/{bad}");
    let said = dry_run(&server, &admin, "POST", &path, json!({})).await;
    assert_eq!(said, ["1 file(s) cannot be downloaded any more"]);
    assert_eq!(downloads(&bob, &bad).await, 200);

    let body = json!({ "reason": "harmful" });
    assert_eq!(admin.administer("POST", &path, Some(body)).await.ok(), json!({}));
    let later = ann.upload("text/plain", "something bad").await;
    for restarted in [false, true] {
        for media in [&bad, &same, &later] {
            assert_eq!(downloads(&bob, media).await, 404, "{media}, {restarted}");
            let thumbnail = format!("/_matrix/client/v1/media/thumbnail/{media}?width=9&height=9");
            let token = Some(bob.access_token.as_str());
            bob.http.request("GET", &thumbnail, token, None).await.refused(404, "M_NOT_FOUND");
            let old = format!("/_matrix/media/v3/download/{media}");
            bob.http.request("GET", &old, None, None).await.refused(404, "M_NOT_FOUND");
        }
        assert_eq!(downloads(&bob, &good).await, 200);
        if !restarted {
            server.kill9();
            server.restart().await;
            (admin.http, bob.http) = (server.http(), server.http());
        }
    }
    let info = admin.administer("GET", &format!("/v1/media/{bad}"), None).await.ok();
    assert_eq!(info["media_info"]["quarantined_by"], admin.user_id.as_str(), "{info}");
    assert_eq!(info["media_info"]["user_id"], bob.user_id.as_str(), "{info}");

    // What is exempt can be downloaded, and stays so when all of the user's goes into quarantine.
    let id = |media: &str| media.split('/').nth(1).expect("an id").to_owned();
    let protect = format!("/v1/media/protect/{}", id(&same));
    admin.administer("POST", &protect, Some(json!({}))).await.ok();
    assert_eq!((downloads(&bob, &same).await, downloads(&bob, &bad).await), (200, 404));
    let unprotect = format!("/v1/media/unprotect/{}", id(&same));
    admin.administer("POST", &unprotect, Some(json!({}))).await.ok();
    assert_eq!(downloads(&bob, &same).await, 404);

    // By user, on a stopped server; and out of it again, by its address.
    server.stop();
    let data_dir = server.data_dir().to_owned();
    let run = |arguments: &str| command("media", &data_dir, arguments, "");
    let dry = done(run("quarantine --user bob --dry-run"));
    assert!(dry.contains("1 file(s) cannot"), "{dry}");
    let done_to = done_json(run("quarantine --user bob --reason all --json"));
    assert_eq!(done_to["media_ids"], json!([id(&good)]));
    let listed = done(run("list --user bob"));
    assert!(
        listed.contains("in quarantine, by admin (") && listed.contains("2 file(s)"),
        "{listed}"
    );
    done(run(&format!("unquarantine mxc://{good}")));
    server.restart().await;
    bob.http = server.http();
    assert_eq!((downloads(&bob, &good).await, downloads(&bob, &bad).await), (200, 404));
    admin.http = server.http();
    let back = format!("/v1/media/unquarantine/{bad}");
    admin.administer("POST", &back, Some(json!({}))).await.ok();
    for media in [&bad, &same, &later] {
        assert_eq!(downloads(&bob, media).await, 200, "{media}");
    }
    server.stop();
    let words = history(&data_dir);
    let said = format!("{} put into quarantine {}: harmful", admin.user_id, id(&bad));
    assert!(words.contains(&said), "{words}");
    assert_verifies(&data_dir);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_are_listed_by_user_and_by_room_and_a_room_goes_into_quarantine_at_once() {
    let server = server().await;
    let (admin, bob) = (admin(&server).await, user(&server, "bob").await);
    let room_id = bob.create_room(json!({})).await;
    let (one, two) = (bob.upload("text/plain", "one").await, bob.upload("image/png", "two!").await);
    let unsent = bob.upload("text/plain", "three").await;
    for (number, media) in [&one, &two].into_iter().enumerate() {
        let content = json!({ "msgtype": "m.file", "body": "f", "url": format!("mxc://{media}") });
        bob.send(&room_id, "m.room.message", &number.to_string(), &content).await.ok();
    }
    let elsewhere = json!({
        "msgtype": "m.image", "body": "f", "url": "mxc://elsewhere.test/x",
        "info": { "thumbnail_url": format!("mxc://{one}") },
    });
    bob.send(&room_id, "m.room.message", "3", &elsewhere).await.ok();

    let of_room = format!("/v1/room/{}/media", encode(&room_id));
    let listed = admin.administer("GET", &of_room, None).await.ok();
    let mut local =
        each(
            &json!(listed["local"].as_array().map(|all| {
                all.iter().map(|address| json!({ "a": address })).collect::<Vec<_>>()
            })),
            "/a",
        );
    local.sort();
    let mut expected = [&one, &two].map(|media| format!("mxc://{media}"));
    expected.sort();
    assert_eq!(local, expected, "{listed}");
    assert_eq!(listed["remote"], json!(["mxc://elsewhere.test/x"]));

    let of_user = format!("/v1/users/{}/media", encode(&bob.user_id));
    let all = admin.administer("GET", &of_user, None).await.ok();
    assert_eq!(all["total"], 3, "{all}");
    let lengths = |list: &serde_json::Value| -> Vec<u64> {
        let list = list["media"].as_array().expect("a list").iter();
        list.map(|file| file["media_length"].as_u64().expect("a length")).collect()
    };
    let sorted = format!("{of_user}?order_by=media_length&dir=b");
    assert_eq!(lengths(&admin.administer("GET", &sorted, None).await.ok()), [5, 4, 3]);
    let first = admin.administer("GET", &format!("{sorted}&limit=2"), None).await.ok();
    assert_eq!((lengths(&first), &first["next_token"]), (vec![5, 4], &json!(2)));
    let rest = admin.administer("GET", &format!("{sorted}&limit=2&from=2"), None).await.ok();
    assert_eq!((lengths(&rest), rest.get("next_token")), (vec![3], None));

    let statistics = format!("/v1/statistics/users/media?search_term={}", bob.localpart());
    let told = admin.administer("GET", &statistics, None).await.ok();
    assert_eq!(told["users"][0]["media_count"], 3, "{told}");
    assert_eq!(told["users"][0]["media_length"], 12, "{told}");
    let before = format!("{statistics}&until_ts=1000");
    assert_eq!(admin.administer("GET", &before, None).await.ok()["users"], json!([]));

    let quarantine = format!("{of_room}/quarantine");
    let counted = admin.administer("POST", &quarantine, Some(json!({}))).await.ok();
    // With the one of another homeserver.
    assert_eq!(counted, json!({ "num_quarantined": 3 }));
    let again = admin.administer("POST", &quarantine, Some(json!({}))).await.ok();
    assert_eq!(again, json!({ "num_quarantined": 0 }));
    assert_eq!((downloads(&bob, &one).await, downloads(&bob, &unsent).await), (404, 200));
    let quarantine = format!("/v1/user/{}/media/quarantine", encode(&bob.user_id));
    let counted = admin.administer("POST", &quarantine, Some(json!({}))).await.ok();
    assert_eq!(counted, json!({ "num_quarantined": 1 }));
    assert_eq!(downloads(&bob, &unsent).await, 404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_are_removed_one_by_one_by_user_and_by_age() {
    crate::harness::nodes::one_server!("it looks into the directory of one node");
    let directory = tempfile::tempdir().expect("a temporary directory");
    let mut server = TestServer::start_on_with(directory.path(), &[]).await;
    let (mut admin, bob) = (admin(&server).await, server.register("bob").await);
    let (one, two) = (bob.upload("text/plain", "one").await, bob.upload("text/plain", "two").await);
    let id = |media: &str| media.split('/').nth(1).expect("an id").to_owned();
    let path = format!("/v1/media/{one}");
    let said = dry_run(&server, &admin, "DELETE", &path, json!({})).await;
    assert_eq!(said, ["1 file(s) of 3 bytes are deleted, which cannot be undone"]);
    assert_eq!(downloads(&bob, &one).await, 200);
    let body = json!({ "reason": "not ours" });
    let gone = admin.administer("DELETE", &path, Some(body)).await.ok();
    assert_eq!(gone, json!({ "deleted_media": [id(&one)], "total": 1 }));
    assert_eq!((downloads(&bob, &one).await, downloads(&bob, &two).await), (404, 200));
    admin.administer("DELETE", &path, None).await.refused(404, "M_NOT_FOUND");

    let of_bob = format!("/v1/users/{}/media", encode(&bob.user_id));
    let gone = admin.administer("DELETE", &of_bob, None).await.ok();
    assert_eq!(gone, json!({ "deleted_media": [id(&two)], "total": 1 }));
    assert_eq!(downloads(&bob, &two).await, 404);

    let (picture, small) =
        (bob.upload("image/png", "a picture").await, bob.upload("a/b", "x").await);
    let large = bob.upload("text/plain", "large").await;
    let avatar = json!({ "avatar_url": format!("mxc://{picture}") });
    let profile = format!("/profile/{}/avatar_url", encode(&bob.user_id));
    bob.request("PUT", &profile, Some(&avatar)).await.ok();
    let nothing = json!({ "deleted_media": [], "total": 0 });
    let before = |ts: u64, more: &str| format!("/v1/media/delete?before_ts={ts}{more}");
    let long_ago = before(1_600_000_000_000, "&size_gt=2");
    assert_eq!(admin.administer("POST", &long_ago, None).await.ok(), nothing);
    let now = before(4_000_000_000_000, "&size_gt=2&keep_profiles=true");
    let gone = admin.administer("POST", &now, None).await.ok();
    assert_eq!(gone["deleted_media"], json!([id(&large)]), "{gone}");
    let left = [&picture, &small, &large].map(|media| downloads(&bob, media));
    let left = futures_util::future::join_all(left).await;
    assert_eq!(left, [200, 200, 404]);

    // On a stopped server, by the command line.
    server.stop();
    let data_dir = server.data_dir().to_owned();
    let run = |arguments: &str| command("media", &data_dir, arguments, "");
    assert!(done(run("delete --older-than 0 --dry-run")).contains("1 file(s) of 1 bytes"));
    assert!(!run("delete --older-than 0").status.success());
    let gone = done_json(run("delete --user bob --yes --reason bye --json"));
    assert_eq!(gone["media_ids"].as_array().map(Vec::len), Some(2), "{gone}");
    server.restart().await;
    admin.http = server.http();
    let bob = User { http: server.http(), ..bob };
    assert_eq!((downloads(&bob, &picture).await, downloads(&bob, &small).await), (404, 404));
    assert_eq!(admin.administer("GET", &of_bob, None).await.ok()["total"], 0);
    server.stop();
    let words = history(&data_dir);
    assert!(words.contains("did so because: not ours"), "{words}");
    assert_verifies(&data_dir);
    // Deleting files causes no warnings. The machine may have too low a limit.
    let output = server.output();
    let is_warning = |line: &&str| line.contains("WARN") && !line.contains("file descriptors");
    assert_eq!(output.lines().find(is_warning), None);
}
