//! Devices and keys of users of other homeservers.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::hostile::Hostile;
use super::peer::{Answers, Peer};
use super::with_synapse::both;
use super::{Federated, authority};
use crate::api::encryption::Key;
use crate::harness::stand_in::reply_json;
use crate::harness::{DeviceKeys, User, encode, until};

const PASSWORD: &str = "correct horse battery";

/// What `by` is told of the keys of `of`.
pub(super) async fn query(by: &User, of: &str) -> Value {
    let body = json!({ "device_keys": { of: [] }, "timeout": 5000 });
    by.request("POST", "/keys/query", Some(&body)).await.ok()
}

pub(super) fn devices_in(found: &Value, of: &str) -> BTreeSet<String> {
    let devices = found["device_keys"][of].as_object().cloned().unwrap_or_default();
    devices.into_iter().map(|(id, _)| id).collect()
}

/// Waits until `by` is told of these devices.
async fn until_devices(by: &User, of: &User, devices: &[&User]) {
    let wanted: BTreeSet<_> = devices.iter().map(|device| device.device_id.clone()).collect();
    until(&format!("{} sees {wanted:?}", by.user_id), async || {
        devices_in(&query(by, &of.user_id).await, &of.user_id) == wanted
    })
    .await;
}

/// Waits until a sync says that the devices of `of` changed; gives the next token.
async fn until_changed(user: &User, since: &str, of: &User) -> String {
    let mut since = since.to_owned();
    until(
        &format!("{} hears that the devices of {} changed", user.user_id, of.user_id),
        async || {
            let synced = user.sync(Some(&since), 0, None).await;
            since = synced["next_batch"].as_str().expect("a token").to_owned();
            let changed = synced["device_lists"]["changed"].as_array().cloned().unwrap_or_default();
            changed.contains(&json!(of.user_id))
        },
    )
    .await;
    since
}

async fn token(user: &User) -> String {
    user.sync(None, 0, None).await["next_batch"].as_str().expect("a token").to_owned()
}

async fn upload(user: &User) {
    let own = user.keys();
    let keys = json!({
        "device_keys": own.identity(), "one_time_keys": own.one_time(&["A", "B"]),
    });
    user.request("POST", "/keys/upload", Some(&keys)).await.ok();
}

async fn cross_sign(user: &User) -> Value {
    let (master, own) = (Key::new(""), Key::new(""));
    let body = json!({
        "master_key": master.cross_signing(user, "master"),
        "self_signing_key": master.sign(user, &own.cross_signing(user, "self_signing")),
    });
    user.request("POST", "/keys/device_signing/upload", Some(&body)).await.ok();
    body
}

/// Ann here and bob there, with keys, in an encrypted room.
async fn meet(host: &User, guest: &User, via: &str) -> String {
    for user in [host, guest] {
        upload(user).await;
    }
    let encryption = json!({
        "type": "m.room.encryption", "state_key": "",
        "content": { "algorithm": "m.megolm.v1.aes-sha2" },
    });
    let options = json!({ "preset": "public_chat", "initial_state": [encryption] });
    let room_id = host.create_room(options).await;
    let path = format!("/join/{}?via={}", encode(&room_id), encode(via));
    guest.request("POST", &path, Some(&json!({}))).await.ok();
    room_id
}

#[tokio::test(flavor = "multi_thread")]
async fn each_server_knows_the_devices_of_the_other_and_their_changes() {
    let Some((_authority, mut cabin, mut synapse)) = both("Synapse").await else { return };
    let ann = cabin.server.register("ann").await;
    let bob = User::register(&synapse.http(), "bob", PASSWORD).await;
    meet(&ann, &bob, &cabin.name).await;
    for (one, other) in [(&ann, &bob), (&bob, &ann)] {
        until_devices(one, other, &[other]).await;
        let found = query(one, &other.user_id).await;
        let keys = &found["device_keys"][&other.user_id][&other.device_id];
        assert_eq!(keys["keys"], other.keys().public(), "{found}");
        let wanted = json!({
            "one_time_keys": { &*other.user_id: { &*other.device_id: "signed_curve25519" } },
        });
        let claimed = one.request("POST", "/keys/claim", Some(&wanted)).await.ok();
        let claimed = &claimed["one_time_keys"][&other.user_id][&other.device_id];
        let all = other.keys().one_time(&["A", "B"]);
        let (id, key) = claimed.as_object().and_then(|of| of.iter().next()).expect("a key");
        assert_eq!(&all[id], key, "{claimed}");
    }
    // New devices.
    let (of_ann, of_bob) = (token(&ann).await, token(&bob).await);
    let bob2 = User::login(&synapse.http(), "bob", PASSWORD).await;
    upload(&bob2).await;
    let of_ann = until_changed(&ann, &of_ann, &bob).await;
    until_devices(&ann, &bob, &[&bob, &bob2]).await;
    let ann2 = User::login(&cabin.server.http(), "ann", "a password that is long enough").await;
    upload(&ann2).await;
    let of_bob = until_changed(&bob, &of_bob, &ann).await;
    until_devices(&bob, &ann, &[&ann, &ann2]).await;
    // Cross-signing keys.
    let (keys_of_ann, keys_of_bob) = (cross_sign(&ann).await, cross_sign(&bob).await);
    let of_ann = until_changed(&ann, &of_ann, &bob).await;
    let of_bob = until_changed(&bob, &of_bob, &ann).await;
    for (one, other, keys) in [(&ann, &bob, &keys_of_bob), (&bob, &ann, &keys_of_ann)] {
        until(&format!("{} has the keys of {}", one.user_id, other.user_id), async || {
            let found = query(one, &other.user_id).await;
            ["master", "self_signing"].iter().all(|usage| {
                let found = &found[format!("{usage}_keys")][&other.user_id];
                found["keys"] == keys[format!("{usage}_key")]["keys"]
            })
        })
        .await;
    }

    // Synapse is down: what is known of it is enough to encrypt. It misses a new device, and one
    // that is gone.
    synapse.kill();
    let found = query(&ann, &bob.user_id).await;
    assert_eq!(devices_in(&found, &bob.user_id).len(), 2, "{found}");
    assert_eq!(found["master_keys"][&bob.user_id]["keys"], keys_of_bob["master_key"]["keys"]);
    assert_eq!(found["failures"], json!({}), "it need not be asked");
    let wanted = json!({
        "one_time_keys": { &*bob.user_id: { &*bob.device_id: "signed_curve25519" } },
    });
    let claimed = ann.request("POST", "/keys/claim", Some(&wanted)).await.ok();
    assert!(claimed["failures"][&synapse.name].is_object(), "{claimed}");
    let ann3 = User::login(&cabin.server.http(), "ann", "a password that is long enough").await;
    upload(&ann3).await;
    ann2.request("POST", "/logout", Some(&json!({}))).await.ok();
    cabin.server.restart().await;
    synapse.run().await;
    // What comes from it says that it is back.
    bob2.request("POST", "/logout", Some(&json!({}))).await.ok();
    until_changed(&ann, &of_ann, &bob).await;
    until_devices(&ann, &bob, &[&bob]).await;
    until_changed(&bob, &of_bob, &ann).await;
    until_devices(&bob, &ann, &[&ann, &ann3]).await;

    // This server is down, and misses a new device.
    let of_ann = token(&ann).await;
    cabin.server.stop();
    let bob3 = User::login(&synapse.http(), "bob", PASSWORD).await;
    upload(&bob3).await;
    cabin.server.restart().await;
    until_changed(&ann, &of_ann, &bob).await;
    until_devices(&ann, &bob, &[&bob, &bob3]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_joins_a_room_of_another_server_makes_their_devices_known() {
    let Some((_authority, cabin, synapse)) = both("Synapse").await else { return };
    let (ann, bob) = (cabin.server.register("ann").await, synapse.register("bob").await);
    let of_bob = token(&bob).await;
    let room_id = meet(&bob, &ann, &synapse.name).await;
    until_changed(&bob, &of_bob, &ann).await;
    until_devices(&bob, &ann, &[&ann]).await;
    until_devices(&ann, &bob, &[&bob]).await;
    // They part, bob gets another device, and they meet again.
    let since = token(&ann).await;
    ann.act(&room_id, "leave", None).await.ok();
    let synced = ann.sync(Some(&since), 0, None).await;
    assert_eq!(synced["device_lists"]["left"], json!([bob.user_id]), "{synced}");
    let since = token(&ann).await;
    let other = User { device_id: "OTHER".to_owned(), ..bob.clone() };
    let login = json!({
        "type": "m.login.password", "device_id": other.device_id, "password": PASSWORD,
        "identifier": { "type": "m.id.user", "user": "bob" },
    });
    let path = "/_matrix/client/v3/login";
    let other = User::of(&bob.http, bob.http.request("POST", path, None, Some(&login)).await);
    upload(&other).await;
    let path = format!("/join/{}?via={}", encode(&room_id), encode(&synapse.name));
    ann.request("POST", &path, Some(&json!({}))).await.ok();
    until_changed(&ann, &since, &bob).await;
    until_devices(&ann, &bob, &[&bob, &other]).await;
}

/// What a peer says of the devices of one of its users.
#[derive(Default)]
struct Says {
    stream_id: u64,
    devices: Vec<String>,
    asked: Vec<String>,
    bytes: usize,
}

pub(super) fn keys(user_id: &str, device_id: &str) -> Value {
    DeviceKeys::of(user_id, device_id).identity()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_homeserver_speaks_for_the_devices_of_its_own_users_only() {
    const EDU: &str = "m.device_list_update";
    let Some(authority) = authority("hostile peers") else { return };
    let cabin =
        Federated::start_with(&authority, &[("LOGCABIN_RATE_LIMITS_ENABLED", "false")]).await;
    let says = Arc::new(Mutex::new(Says::default()));
    let said = Arc::clone(&says);
    let victim = Arc::new(Mutex::new(String::new()));
    let of_victim = Arc::clone(&victim);
    let answers = move |asked: &crate::harness::Asked| {
        let mut said = said.lock().expect("no panic");
        let host = asked.headers.get("host")?.to_str().ok()?.to_owned();
        let pia = format!("@pia:{host}");
        let path = asked.path.split('?').next()?.to_owned();
        let all = said.devices.iter();
        let all: serde_json::Map<_, _> = all
            .map(|id| {
                let mut of = keys(&pia, id);
                of["padding"] = json!("x".repeat(said.bytes));
                (id.clone(), of)
            })
            .collect();
        let answer = if path.ends_with("/user/keys/query") {
            // And what it must not say.
            let victim = of_victim.lock().expect("no panic").clone();
            let mut devices = json!({ &*pia: all, &*victim: { "EVIL": keys(&victim, "EVIL") } });
            devices[&pia]["FORGED"] = keys(&victim, "FORGED");
            devices[&pia]["SHAPELESS"] = json!("shapeless");
            json!({ "device_keys": devices, "master_keys": { &*pia: { "user_id": victim } } })
        } else if path.contains("/user/devices/") {
            let devices = all.iter().map(|(id, of)| json!({ "device_id": id, "keys": of }));
            let devices: Vec<_> = devices.collect();
            json!({ "user_id": pia, "stream_id": said.stream_id, "devices": devices })
        } else if path.contains("/user/keys/claim") {
            let victim = of_victim.lock().expect("no panic").clone();
            let key = json!({ "signed_curve25519:A": { "key": "a" } });
            json!({ "one_time_keys": {
                &*victim: { "A": key }, &*pia: { "A": key, "NONE": key, "B": { "other:A": "a" } },
            } })
        } else {
            return None;
        };
        said.asked.push(path);
        Some(reply_json(200, &answer))
    };
    let valid = Duration::from_secs(3600);
    let peer = Peer::start_with(&authority, valid, Arc::new(answers)).await;
    let (ann, bob) = (cabin.server.register("ann").await, cabin.server.register("bob").await);
    victim.lock().expect("no panic").push_str(&bob.user_id);
    let options = json!({ "preset": "public_chat", "room_version": "10" });
    let room_id = ann.create_room(options).await;
    bob.join(&room_id).await.ok();
    upload(&bob).await;
    let mut hostile = Hostile::new(&peer, &cabin, &room_id);
    hostile.join().await;
    let pia = hostile.user("pia");
    let set = |stream_id: u64, devices: &[&str]| {
        let mut says = says.lock().expect("no panic");
        says.stream_id = stream_id;
        says.devices = devices.iter().map(|id| (*id).to_owned()).collect();
        says.asked.clear();
    };
    let asked = || says.lock().expect("no panic").asked.clone();
    let update = |user: &str, device: &str, stream: u64, before: &[u64]| {
        json!({
            "user_id": user, "device_id": device, "stream_id": stream, "prev_id": before,
            "keys": keys(user, device),
        })
    };
    let seen = async || devices_in(&query(&ann, &pia).await, &pia);
    let ids = |ids: &[&str]| ids.iter().map(|id| (*id).to_owned()).collect::<BTreeSet<_>>();

    // What it says of others, or of itself in a wrong form, is not taken.
    set(5, &["A"]);
    assert_eq!(seen().await, ids(&["A"]));
    assert_eq!(seen().await, ids(&["A"]));
    assert_eq!(asked().len(), 1, "asked once: {:?}", asked());
    let found = query(&ann, &bob.user_id).await;
    assert_eq!(devices_in(&found, &bob.user_id), ids(&[&bob.device_id]));
    assert!(query(&ann, &pia).await["master_keys"].get(&pia).is_none());
    let wanted = json!({ "one_time_keys": { &*pia: {
        "A": "signed_curve25519", "B": "signed_curve25519",
    } } });
    let claimed = ann.request("POST", "/keys/claim", Some(&wanted)).await.ok();
    let expected = json!({ &*pia: { "A": { "signed_curve25519:A": { "key": "a" } } } });
    assert_eq!(claimed["one_time_keys"], expected, "{claimed}");

    // The first change makes it fetch the list, the next ones do not.
    let since = token(&ann).await;
    set(6, &["A", "B"]);
    hostile.send_edus(&[(EDU, update(&pia, "B", 6, &[5]))]).await;
    until("the list is fetched", async || asked().iter().any(|path| path.contains("devices")))
        .await;
    assert_eq!(seen().await, ids(&["A", "B"]));
    let fetches = asked().len();
    hostile.send_edus(&[(EDU, update(&pia, "C", 7, &[6]))]).await;
    let mut gone = update(&pia, "A", 8, &[7]);
    gone["deleted"] = json!(true);
    hostile.send_edus(&[(EDU, gone)]).await;
    assert_eq!(seen().await, ids(&["B", "C"]));
    assert_eq!(asked().len(), fetches, "{:?}", asked());
    let changed = ann.sync(Some(&since), 0, None).await["device_lists"]["changed"].clone();
    assert_eq!(changed, json!([pia]));

    // Of others, of no one, of another shape: nothing changes, and nothing is fetched.
    let since = token(&ann).await;
    let mut misfit = update(&pia, "D", 9, &[8]);
    misfit["keys"] = keys(&pia, "E");
    let mut large = update(&pia, "D", 9, &[8]);
    large["keys"]["padding"] = json!("x".repeat(40_000));
    let bad = [
        (EDU, update(&bob.user_id, "EVIL", 9, &[8])),
        (EDU, update(&hostile.user("nobody"), "EVIL", 9, &[8])),
        (EDU, update("@sam:localhost:1", "EVIL", 9, &[8])),
        (EDU, misfit),
        (EDU, large),
        (EDU, json!({ "user_id": pia, "device_id": "D", "stream_id": -1, "prev_id": [8] })),
        ("m.signing_key_update", json!({ "user_id": bob.user_id, "master_key": {} })),
        ("m.signing_key_update", json!({ "user_id": pia, "master_key": { "user_id": pia } })),
    ];
    hostile.send_edus(&bad).await;
    let synced = ann.sync(Some(&since), 0, None).await;
    assert!(synced["device_lists"]["changed"].is_null(), "{synced}");
    assert_eq!(seen().await, ids(&["B", "C"]));
    let found = query(&ann, &bob.user_id).await;
    assert_eq!(devices_in(&found, &bob.user_id), ids(&[&bob.device_id]));
    assert_eq!(asked().len(), fetches, "{:?}", asked());

    // Numbers that go back: the list is fetched, and is what counts.
    set(3, &["Z"]);
    hostile.send_edus(&[(EDU, update(&pia, "B", 3, &[2]))]).await;
    until("the list is fetched", async || !asked().is_empty()).await;
    assert_eq!(seen().await, ids(&["Z"]));

    // One who has too many keys to be kept is asked each time, and what is known stays bounded.
    let many: Vec<_> = (0..30).map(|number| format!("D{number}")).collect();
    set(9, &many.iter().map(String::as_str).collect::<Vec<_>>());
    says.lock().expect("no panic").bytes = 10_000;
    hostile.send_edus(&[(EDU, update(&pia, "B", 9, &[8]))]).await;
    for _ in 0..2 {
        let before = asked().len();
        assert_eq!(seen().await.len(), 30);
        assert!(asked().len() > before, "it is asked");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_that_comes_too_often_while_the_list_is_fetched_is_not_forgotten() {
    const EDU: &str = "m.device_list_update";
    const DEVICES: &str = "/_matrix/federation/v1/user/devices/";
    const KEYS: &str = "/_matrix/federation/v1/user/keys/query";
    let Some(authority) = authority("hostile peers") else { return };
    let cabin =
        Federated::start_with(&authority, &[("LOGCABIN_RATE_LIMITS_ENABLED", "false")]).await;
    let says = Arc::new(Mutex::new(Says::default()));
    let said = Arc::clone(&says);
    let answers = move |asked: &crate::harness::Asked| {
        let host = asked.headers.get("host")?.to_str().ok()?.to_owned();
        let pia = format!("@pia:{host}");
        let said = said.lock().expect("no panic");
        let all = said.devices.iter().map(|id| (id.clone(), keys(&pia, id)));
        let answer = if asked.path.starts_with(DEVICES) {
            let of = |(id, of)| json!({ "device_id": id, "keys": of });
            let devices: Vec<_> = all.map(of).collect();
            json!({ "user_id": pia, "stream_id": said.stream_id, "devices": devices })
        } else if asked.path == KEYS {
            json!({ "device_keys": { &*pia: all.collect::<serde_json::Map<_, _>>() } })
        } else {
            return None;
        };
        Some(reply_json(200, &answer))
    };
    let valid = Duration::from_secs(3600);
    let peer = Peer::start_with(&authority, valid, Arc::new(answers)).await;
    let ann = cabin.server.register("ann").await;
    let options = json!({ "preset": "public_chat", "room_version": "10" });
    let room_id = ann.create_room(options).await;
    let mut hostile = Hostile::new(&peer, &cabin, &room_id);
    hostile.join().await;
    let pia = hostile.user("pia");
    let seen = async || devices_in(&query(&ann, &pia).await, &pia);
    let ids = |ids: &[&str]| ids.iter().map(|id| (*id).to_owned()).collect::<BTreeSet<_>>();
    let set = |stream_id: u64, devices: &[&str]| {
        let mut says = says.lock().expect("no panic");
        says.stream_id = stream_id;
        says.devices = devices.iter().map(|id| (*id).to_owned()).collect();
    };
    // It leaves the list out of date, because it comes after one that was missed.
    let change = |stream_id: u64| {
        let of = json!({
            "user_id": pia, "device_id": "A", "stream_id": stream_id, "prev_id": [stream_id - 1],
            "keys": keys(&pia, "A"),
        });
        (EDU, of)
    };
    let asked = |path: &str| {
        let asked = peer.asked();
        asked.iter().filter(|asked| asked.path.starts_with(path)).count()
    };
    // The homeserver fetches the list after one change less than there may be, and ann asks for it
    // after more.
    for (changes, path) in [(59, DEVICES), (90, KEYS)] {
        set(1, &["A"]);
        peer.is_silent_on(&[path]);
        let before = asked(path);
        let all: Vec<_> = (0..changes).map(|number| change(1000 + 2 * number)).collect();
        hostile.send_edus(&all).await;
        let asking = (path == KEYS).then(|| {
            let (ann, pia) = (ann.clone(), pia.clone());
            tokio::spawn(async move { query(&ann, &pia).await })
        });
        until("the list is being fetched", async || asked(path) > before).await;
        // The answer is on its way when pia gets another device, which is a change too many.
        set(2, &["A", "B"]);
        hostile.send_edus(&[change(2000)]).await;
        peer.is_silent_on(&[]);
        if let Some(asking) = asking {
            asking.await.expect("an answer");
        }
        until("ann is told of it", async || seen().await == ids(&["A", "B"])).await;
        until("it is not fetched without end", async || {
            let before = (asked(DEVICES), asked(KEYS));
            assert_eq!(seen().await, ids(&["A", "B"]));
            (asked(DEVICES), asked(KEYS)) == before
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn key_queries_to_unresponsive_homeservers_do_not_delay_other_users() {
    const PATH: &str = "/_matrix/federation/v1/user/keys/query";
    let Some(authority) = authority("hostile peers") else { return };
    let unlimited = [("LOGCABIN_RATE_LIMITS_ENABLED", "false")];
    let cabin = Federated::start_with(&authority, &unlimited).await;
    let (ann, bob) = (cabin.server.register("ann").await, cabin.server.register("bob").await);
    let mut silent = Vec::new();
    for _ in 0..40 {
        let peer = Peer::start(&authority).await;
        peer.is_silent_on(&[PATH]);
        silent.push(peer);
    }
    let answers: Answers = Arc::new(|asked| {
        (asked.path == PATH).then(|| reply_json(200, &json!({ "device_keys": {} })))
    });
    let good = Peer::start_with(&authority, Duration::from_secs(3600), answers).await;
    let of_silent = silent.iter().map(|peer| (format!("@sam:{}", peer.name), json!([])));
    let body = json!({ "timeout": 30_000, "device_keys": Value::Object(of_silent.collect()) });
    let asking = tokio::spawn(async move { ann.post("/keys/query", body).await });
    let asked =
        || silent.iter().filter(|peer| peer.asked().iter().any(|of| of.path == PATH)).count();
    until("ann asks all that she may", async || asked() >= 32).await;
    let began = Instant::now();
    let of_good = json!({ "device_keys": { format!("@pia:{}", good.name): [] } });
    let answer = bob.post("/keys/query", of_good).await.ok();
    assert_eq!(answer["failures"], json!({}));
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    asking.abort();
}
