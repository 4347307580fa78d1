//! Policy lists against other homeservers and their users.

use serde_json::{Value, json};

use super::hostile::{Hostile, with_pia};
use super::peer::Peer;
use super::shares::invite;
use super::{Federated, authority};
use crate::administration::{command, done, done_json};
use crate::api::admin::policies::settled;
use crate::harness::{User, encode};

async fn ban(owner: &User, list: &str, kind: &str, entity: &str) {
    let content = json!({ "entity": entity, "recommendation": "m.ban" });
    owner
        .set_state(list, &format!("m.policy.rule.{kind}"), &format!("rule:{entity}"), &content)
        .await
        .ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn policy_lists_keep_homeservers_and_their_users_away() {
    let Some(authority) = authority("policy lists") else { return };
    let settings = [("LOGCABIN_RATE_LIMITS_ENABLED", "false")];
    let cabin = Federated::start_with(&authority, &settings).await;
    let (peer, good) = (Peer::start_taking(&authority).await, Peer::start(&authority).await);
    let (ann, room_id, mut hostile) = with_pia(&peer, &cabin).await;
    let data_dir = cabin.server.data_dir().to_owned();
    let run = |arguments: &str| done(command("policy", &data_dir, arguments, ""));
    let list = ann.create_room(json!({})).await;
    run(&format!("subscribe {list} --hold-above 0"));

    // By name, and by a pattern; everybody else is as before.
    ban(&ann, &list, "user", &hostile.user("made-up1")).await;
    ban(&ann, &list, "user", &format!("@made-up2*:localhost:{}", port(&peer))).await;
    settled(&data_dir).await;
    invite(&hostile, &ann, 1).await.refused(403, "M_FORBIDDEN");
    invite(&hostile, &ann, 2).await.refused(403, "M_FORBIDDEN");
    invite(&hostile, &ann, 23).await.refused(403, "M_FORBIDDEN");
    invite(&hostile, &ann, 3).await.ok();
    invite(&Hostile::new(&good, &cabin, "!none"), &ann, 1).await.ok();
    let pending = async || {
        let synced = ann.sync(None, 0, None).await["rooms"]["invite"].clone();
        synced.as_object().map_or(0, serde_json::Map::len)
    };
    assert_eq!(pending().await, 2);

    // Into rooms that ask for it, their users do not come; also not by a join made up before.
    let before = hostile.make_join("made-up1").await;
    let asks = json!({ "enabled": true });
    ann.set_state(&room_id, "org.logcabin.policy_lists", "", &asks).await.ok();
    let make = format!(
        "/_matrix/federation/v1/make_join/{}/{}?ver=10",
        encode(&room_id),
        encode(&hostile.user("made-up1"))
    );
    hostile.ask("GET", &make, &Value::Null).await.refused(403, "M_FORBIDDEN");
    let (event_id, event) = hostile.signed(before);
    let send =
        format!("/_matrix/federation/v2/send_join/{}/{}", encode(&room_id), encode(&event_id));
    hostile.ask("PUT", &send, &event).await.refused(403, "M_FORBIDDEN");
    hostile.join_as("made-up3").await;

    // A homeserver that shares a room with users here waits for approval: nothing changes.
    ban(&ann, &list, "server", peer.name.as_str()).await;
    ban(&ann, &list, "user", &format!("@*:{}", peer.name)).await;
    settled(&data_dir).await;
    run(&format!("subscribe {list} --hold-above 0 --to media"));
    assert!(run("list").contains("2 rule(s) wait for approval"), "{}", run("list"));
    let message = hostile.message("still here").await;
    let (id, event) = hostile.signed(message);
    assert_eq!(hostile.send(&[event]).await[&id], json!({}));

    // Its files, then all of it.
    let said = done_json(command("policy", &data_dir, "list --json", ""));
    for waiting in said["lists"][0]["waiting_rules"].as_array().expect("rules") {
        let rule = waiting["event_id"].as_str().expect("an event");
        run(&format!("approve {list} --rule {rule}"));
    }
    let asked = peer.asked().len();
    let media = format!("/_matrix/client/v1/media/download/{}/file", peer.name);
    let answer = ann.http.request("GET", &media, Some(&ann.access_token), None).await;
    answer.refused(404, "M_NOT_FOUND");
    assert_eq!(peer.asked().len(), asked, "it was asked nothing");
    run(&format!("subscribe {list} --hold-above 0 --to federation"));
    let profile = format!("/_matrix/federation/v1/query/profile?user_id={}", encode(&ann.user_id));
    hostile.ask("GET", &profile, &Value::Null).await.refused(403, "M_FORBIDDEN");
    peer_of(&good, &cabin, &profile).await.ok();
    let path = format!("/profile/{}", encode(&hostile.user("pia")));
    let answer = ann.request("GET", &path, None).await;
    assert!(answer.status >= 400, "{answer}");
    let said = run("kept-away");
    assert!(said.contains(&format!("federation: refused {}", peer.name)), "{said}");
    assert!(said.contains(&format!("media: refused {}", peer.name)), "{said}");
    let settings = run(&format!("test {}", peer.name));
    assert!(
        settings.starts_with("applied by") && settings.contains("for federation"),
        "{settings}"
    );
    run(&format!("unsubscribe {list}"));
    hostile.ask("GET", &profile, &Value::Null).await.ok();
}

fn port(peer: &Peer) -> String {
    peer.name.port().expect("a port").to_string()
}

async fn peer_of(peer: &Peer, cabin: &Federated, path: &str) -> crate::harness::Answer {
    peer.ask(cabin.address, &cabin.name, path).await
}
