//! End-to-end encryption: keys, claims, cross-signing, messages to devices, device lists.
#![allow(clippy::unwrap_used, reason = "clippy exempts tests, not their helpers")]

use std::collections::BTreeSet;

use ruma::{
    CanonicalJsonObject,
    serde::Base64,
    signatures::{Ed25519KeyPair, sign_json},
};
use serde_json::{Value, json};

use super::{next_batch, server, user};
use crate::harness::{DeviceKeys, TestServer, User, curve25519, encode};

/// An ed25519 key that is known by its own public part, as devices and cross-signing keys are.
pub(crate) struct Key {
    pair: Ed25519KeyPair,
    public: String,
}

impl Key {
    pub(crate) fn new(version: &str) -> Self {
        let der = Ed25519KeyPair::generate();
        let pair = Ed25519KeyPair::from_der(&der, String::new()).unwrap();
        let public: Base64 = Base64::new(pair.public_key().to_vec());
        let public = public.encode();
        // A cross-signing key's id is its public part.
        let version = if version.is_empty() { public.clone() } else { version.to_owned() };
        Self { pair: Ed25519KeyPair::from_der(&der, version).unwrap(), public }
    }

    fn id(&self) -> String {
        format!("ed25519:{}", self.pair.version())
    }

    pub(crate) fn sign(&self, user: &User, object: &Value) -> Value {
        let mut object: CanonicalJsonObject = serde_json::from_value(object.clone()).unwrap();
        sign_json(&user.user_id, &self.pair, &mut object).unwrap();
        serde_json::to_value(&object).unwrap()
    }

    pub(crate) fn cross_signing(&self, user: &User, usage: &str) -> Value {
        json!({ "user_id": user.user_id, "usage": [usage], "keys": { self.id(): self.public } })
    }
}

fn device_keys(user: &User, key: &Key) -> Value {
    let keys = json!({
        "user_id": user.user_id,
        "device_id": user.device_id,
        "algorithms": ["m.olm.v1.curve25519-aes-sha2", "m.megolm.v1.aes-sha2"],
        "keys": { format!("ed25519:{}", user.device_id): key.public,
                  format!("curve25519:{}", user.device_id): curve25519("curve") },
    });
    key.sign(user, &keys)
}

/// Uploads identity keys and gives the key that made them.
async fn with_keys(user: &User) -> Key {
    let key = Key::new(&user.device_id);
    let body = json!({ "device_keys": device_keys(user, &key) });
    user.request("POST", "/keys/upload", Some(&body)).await.ok();
    key
}

async fn upload_one_time(user: &User, names: &[&str]) -> Value {
    let keys = user.keys().one_time(names);
    user.request("POST", "/keys/upload", Some(&json!({ "one_time_keys": keys }))).await.ok()
}

async fn claim(by: &User, of: &User) -> Value {
    let body = json!({ "one_time_keys": { &of.user_id: { &of.device_id: "signed_curve25519" } } });
    let claimed = by.request("POST", "/keys/claim", Some(&body)).await.ok();
    claimed["one_time_keys"][&of.user_id][&of.device_id].clone()
}

async fn query(by: &User, of: &User) -> Value {
    let body = json!({ "device_keys": { &of.user_id: [] } });
    by.request("POST", "/keys/query", Some(&body)).await.ok()
}

async fn to_device(from: &User, txn: &str, messages: Value) {
    let path = format!("/sendToDevice/m.test/{txn}");
    from.request("PUT", &path, Some(&json!({ "messages": messages }))).await.ok();
}

fn bodies(sync: &Value) -> Vec<String> {
    let events = sync["to_device"]["events"].as_array().unwrap();
    events.iter().map(|event| event["content"]["body"].as_str().unwrap().to_owned()).collect()
}

async fn public_room(ann: &User) -> String {
    ann.create_room(json!({ "preset": "public_chat" })).await
}

async fn encrypted_room(ann: &User) -> String {
    let room_id = public_room(ann).await;
    let content = json!({ "algorithm": "m.megolm.v1.aes-sha2" });
    ann.set_state(&room_id, "m.room.encryption", "", &content).await.ok();
    room_id
}

fn listed(sync: &Value, which: &str) -> BTreeSet<String> {
    let users = sync["device_lists"][which].as_array().cloned().unwrap_or_default();
    users.iter().map(|user| user.as_str().unwrap().to_owned()).collect()
}

fn set(users: &[&User]) -> BTreeSet<String> {
    users.iter().map(|user| user.user_id.clone()).collect()
}

#[tokio::test]
async fn identity_keys_are_found_by_others_with_the_name_of_the_device() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let key = Key::new(&ann.device_id);
    let keys = device_keys(&ann, &key);
    let body = json!({ "device_keys": keys });
    let counts = ann.request("POST", "/keys/upload", Some(&body)).await.ok();
    assert_eq!(counts["one_time_key_counts"]["signed_curve25519"], 0);
    let path = format!("/devices/{}", ann.device_id);
    ann.request("PUT", &path, Some(&json!({ "display_name": "Phone" }))).await.ok();
    let found = query(&bob, &ann).await;
    let device = &found["device_keys"][&ann.user_id][&ann.device_id];
    assert_eq!(device["keys"], keys["keys"]);
    assert_eq!(device["signatures"], keys["signatures"]);
    assert_eq!(device["unsigned"]["device_display_name"], "Phone");
    // Of a device that is not named, nothing; of a server that is not reached, that it is not.
    let body = json!({ "device_keys": { &ann.user_id: ["OTHER"], "@eve:elsewhere.example": [] } });
    let found = bob.request("POST", "/keys/query", Some(&body)).await.ok();
    assert_eq!(found["device_keys"][&ann.user_id], json!({}));
    assert!(found["failures"]["elsewhere.example"].is_object(), "{found}");
    // Keys of somebody else are refused.
    let body = json!({ "device_keys": keys });
    bob.request("POST", "/keys/upload", Some(&body)).await.refused(400, "M_INVALID_PARAM");
}

#[tokio::test]
async fn a_one_time_key_is_handed_out_once_even_if_many_ask_at_once() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    with_keys(&ann).await;
    let names: Vec<String> = (0..20).map(|n| format!("K{n:02}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let counts = upload_one_time(&ann, &names).await;
    assert_eq!(counts["one_time_key_counts"]["signed_curve25519"], 20);
    let bob = user(&server, "bob").await;
    let claims = (0..30).map(|_| {
        let (bob, ann) = (bob.clone(), ann.clone());
        async move { claim(&bob, &ann).await }
    });
    let mut seen = BTreeSet::new();
    let mut none = 0;
    for claimed in futures_util::future::join_all(claims).await {
        match claimed.as_object() {
            Some(keys) => {
                assert_eq!(keys.len(), 1);
                let id = keys.keys().next().unwrap().clone();
                assert!(seen.insert(id.clone()), "{id} was handed out twice");
            }
            None => none += 1,
        }
    }
    assert_eq!((seen.len(), none), (20, 10));
    // Nor is one that was handed out taken again.
    let counts = upload_one_time(&ann, &["K00", "K01"]).await;
    assert_eq!(counts["one_time_key_counts"]["signed_curve25519"], 0);
    assert_eq!(claim(&bob, &ann).await, Value::Null);
}

#[tokio::test]
async fn a_one_time_key_cannot_be_replaced_by_another_of_its_name() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    upload_one_time(&ann, &["A"]).await;
    upload_one_time(&ann, &["A"]).await;
    let mut other = ann.keys().one_time(&["A"]);
    other["signed_curve25519:A"]["key"] = curve25519("another").into();
    let other = json!({ "one_time_keys": other });
    ann.request("POST", "/keys/upload", Some(&other)).await.refused(400, "M_INVALID_PARAM");
    // Signed by another key, too, it is the same.
    let mut signed = ann.keys().one_time(&["A"]);
    signed["signed_curve25519:A"]["signatures"][&ann.user_id]["ed25519:MORE"] = json!("AAAA");
    let signed = json!({ "one_time_keys": signed });
    let counts = ann.request("POST", "/keys/upload", Some(&signed)).await.ok();
    assert_eq!(counts["one_time_key_counts"]["signed_curve25519"], 1);
}

#[tokio::test]
async fn the_fallback_key_is_handed_out_when_no_other_is_left_and_sync_says_that_it_was() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    with_keys(&ann).await;
    upload_one_time(&ann, &["ONE"]).await;
    let fallback = ann.keys().fallback("F");
    let body = json!({ "fallback_keys": fallback });
    ann.request("POST", "/keys/upload", Some(&body)).await.ok();
    let sync = ann.sync(None, 0, None).await;
    assert_eq!(sync["device_one_time_keys_count"]["signed_curve25519"], 1);
    assert_eq!(sync["device_unused_fallback_key_types"], json!(["signed_curve25519"]));
    assert!(claim(&bob, &ann).await.get("signed_curve25519:ONE").is_some());
    // The device learns at once that it has no more, and makes new ones.
    let sync = ann.sync(Some(&next_batch(&sync)), 10_000, None).await;
    assert_eq!(sync["device_one_time_keys_count"]["signed_curve25519"], 0);
    for _ in 0..2 {
        assert_eq!(claim(&bob, &ann).await, fallback);
    }
    let sync = ann.sync(Some(&next_batch(&sync)), 10_000, None).await;
    assert_eq!(sync["device_unused_fallback_key_types"], json!([]));
}

#[tokio::test]
async fn cross_signing_keys_need_a_password_only_to_be_replaced() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let (master, own, others) = (Key::new(""), Key::new(""), Key::new(""));
    let body = json!({
        "master_key": master.cross_signing(&ann, "master"),
        "self_signing_key": master.sign(&ann, &own.cross_signing(&ann, "self_signing")),
        "user_signing_key": master.sign(&ann, &others.cross_signing(&ann, "user_signing")),
    });
    let path = "/keys/device_signing/upload";
    ann.request("POST", path, Some(&body)).await.ok();
    // The same again is no change.
    ann.request("POST", path, Some(&body)).await.ok();
    let seen = query(&bob, &ann).await;
    assert_eq!(seen["master_keys"][&ann.user_id]["keys"], body["master_key"]["keys"]);
    assert_eq!(seen["self_signing_keys"][&ann.user_id]["keys"], body["self_signing_key"]["keys"]);
    assert!(seen["user_signing_keys"].get(&ann.user_id).is_none(), "{seen}");
    assert!(query(&ann, &ann).await["user_signing_keys"].get(&ann.user_id).is_some());
    let new = Key::new("");
    let replaced = json!({ "master_key": new.cross_signing(&ann, "master") });
    let asked = ann.request("POST", path, Some(&replaced)).await;
    assert_eq!(asked.status, 401, "{asked}");
    let mut confirmed = replaced.clone();
    confirmed["auth"] = json!({
        "type": "m.login.password",
        "identifier": { "type": "m.id.user", "user": ann.user_id },
        "password": super::PASSWORD,
        "session": asked.body["session"],
    });
    ann.request("POST", path, Some(&confirmed)).await.ok();
    let seen = query(&bob, &ann).await;
    assert_eq!(seen["master_keys"][&ann.user_id]["keys"], replaced["master_key"]["keys"]);
    // Keys that the master key did not sign, of the wrong user, or for another use.
    let unsigned = json!({ "self_signing_key": own.cross_signing(&ann, "self_signing") });
    ann.request("POST", path, Some(&unsigned)).await.refused(400, "M_INVALID_SIGNATURE");
    let of_other = json!({ "master_key": new.cross_signing(&bob, "master") });
    ann.request("POST", path, Some(&of_other)).await.refused(400, "M_INVALID_PARAM");
    let other_use = json!({ "master_key": new.cross_signing(&ann, "self_signing") });
    ann.request("POST", path, Some(&other_use)).await.refused(400, "M_INVALID_PARAM");
    let without_master = json!({ "self_signing_key": own.cross_signing(&bob, "self_signing") });
    bob.request("POST", path, Some(&without_master)).await.refused(400, "M_MISSING_PARAM");
}

#[tokio::test]
async fn signatures_are_checked_and_seen_by_those_they_are_for() {
    let server = server().await;
    let (ann, bob, cas) =
        (user(&server, "ann").await, user(&server, "bob").await, user(&server, "cas").await);
    let device = with_keys(&ann).await;
    let (master, own, others) = (Key::new(""), Key::new(""), Key::new(""));
    let body = json!({
        "master_key": master.cross_signing(&ann, "master"),
        "self_signing_key": master.sign(&ann, &own.cross_signing(&ann, "self_signing")),
        "user_signing_key": master.sign(&ann, &others.cross_signing(&ann, "user_signing")),
    });
    let path = "/keys/device_signing/upload";
    ann.request("POST", path, Some(&body)).await.ok();
    let bobs = Key::new("");
    let bobs_master = bobs.cross_signing(&bob, "master");
    bob.request("POST", path, Some(&json!({ "master_key": bobs_master }))).await.ok();
    // One's own device by the self-signing key, one's master key by a device, another's master key.
    let signed = json!({
        &ann.user_id: {
            &ann.device_id: own.sign(&ann, &device_keys(&ann, &device)),
            &master.public: device.sign(&ann, &body["master_key"]),
        },
        &bob.user_id: { &bobs.public: others.sign(&ann, &bobs_master) },
    });
    let path = "/keys/signatures/upload";
    let answer = ann.request("POST", path, Some(&signed)).await.ok();
    assert_eq!(answer["failures"], json!({}));
    let by_ann = |key: &Value| key["signatures"][&ann.user_id].clone();
    let seen = query(&cas, &ann).await;
    let of_device = by_ann(&seen["device_keys"][&ann.user_id][&ann.device_id]);
    assert_eq!(of_device.as_object().unwrap().len(), 2, "the device's own and the new one: {seen}");
    assert!(by_ann(&seen["master_keys"][&ann.user_id]).get(device.id()).is_some(), "{seen}");
    // Whom Ann has verified, nobody else sees but Ann.
    assert!(by_ann(&query(&ann, &bob).await["master_keys"][&bob.user_id]).is_object());
    assert!(by_ann(&query(&cas, &bob).await["master_keys"][&bob.user_id]).is_null());
    // A wrong signature, a key that is not there, something else than the key that is known.
    let mut forged = others.sign(&ann, &bobs_master);
    forged["signatures"][&ann.user_id][others.id()] = json!("AAAA");
    let mut changed = bobs_master.clone();
    changed["usage"] = json!(["master", "self_signing"]);
    for (name, key, code) in [
        (bobs.public.as_str(), forged, "M_INVALID_SIGNATURE"),
        ("nosuchkey", others.sign(&ann, &bobs_master), "M_NOT_FOUND"),
        (bobs.public.as_str(), others.sign(&ann, &changed), "M_INVALID_SIGNATURE"),
        (bobs.public.as_str(), bobs_master.clone(), "M_INVALID_SIGNATURE"),
    ] {
        let body = json!({ &bob.user_id: { name: key } });
        let answer = ann.request("POST", path, Some(&body)).await.ok();
        assert_eq!(answer["failures"][&bob.user_id][name]["errcode"], code, "{answer}");
    }
}

#[tokio::test]
async fn identity_keys_need_their_members_and_a_valid_signature_if_they_have_one() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let key = ann.keys();
    let good = key.identity();
    let upload =
        async |keys: &Value| ann.post("/keys/upload", json!({ "device_keys": keys })).await;
    let with = |name: &str, value: Value| {
        let mut keys = good.clone();
        keys[name] = value;
        keys
    };
    let without = |name: &str| {
        let mut keys = good.clone();
        keys.as_object_mut().unwrap().remove(name);
        keys
    };
    let (own, curve) = (key.id(), format!("curve25519:{}", ann.device_id));
    let signed = |keys: Value| {
        key.sign(&{
            let mut object = without("signatures");
            object["keys"] = keys;
            object
        })
    };
    let public = &good["keys"];
    let mut bad: Vec<(Value, &str)> = ["user_id", "device_id", "algorithms", "keys", "signatures"]
        .map(|name| (without(name), "M_BAD_JSON"))
        .to_vec();
    bad.extend(
        [
            json!({}),
            json!([]),
            json!([ann.user_id, ann.device_id, [], {}, {}]),
            with("algorithms", json!(5)),
            with("algorithms", json!([5])),
            with("algorithms", json!({})),
            with("keys", json!("none")),
            with("keys", json!([])),
            with("keys", json!({ &own: 5 })),
            with("signatures", json!("none")),
            with("signatures", json!([])),
            with("signatures", json!({ &ann.user_id: 5 })),
            with("signatures", json!({ &ann.user_id: { &own: 5 } })),
            signed(json!({})),
            signed(json!({ &curve: public[&curve] })),
            signed(json!({ &own: "AAAA", &curve: public[&curve] })),
            signed(json!({ &own: public[&own], &curve: "curve" })),
            with("number", json!(1.5)),
        ]
        .map(|keys| (keys, "M_BAD_JSON")),
    );
    bad.extend(
        [
            with("signatures", json!({ &ann.user_id: { &own: "AAAA" } })),
            with("algorithms", json!(["m.megolm.v1.aes-sha2"])),
            with("keys", DeviceKeys::others_of(&ann.user_id, &ann.device_id).public()),
        ]
        .map(|keys| (keys, "M_INVALID_SIGNATURE")),
    );
    bad.extend(
        [
            DeviceKeys::of(&ann.user_id, "OTHER").identity(),
            DeviceKeys::of(&bob.user_id, &ann.device_id).identity(),
        ]
        .map(|keys| (keys, "M_INVALID_PARAM")),
    );
    for (keys, code) in bad {
        upload(&keys).await.refused(400, code);
        assert_eq!(query(&bob, &ann).await["device_keys"][&ann.user_id], json!({}), "{keys}");
    }
    // Simple clients sign nothing. A signature may follow, other keys may not.
    let seen = async || {
        let keys = query(&bob, &ann).await["device_keys"][&ann.user_id][&ann.device_id].clone();
        keys["signatures"].clone()
    };
    upload(&with("signatures", json!({}))).await.ok();
    assert_eq!(seen().await, json!({}));
    upload(&good).await.ok();
    assert_eq!(seen().await, good["signatures"]);
    upload(&with("signatures", json!({}))).await.refused(400, "M_INVALID_PARAM");
    let mut others = with("signatures", json!({}));
    others["keys"] = DeviceKeys::others_of(&ann.user_id, &ann.device_id).public();
    upload(&others).await.refused(400, "M_INVALID_PARAM");
}

#[tokio::test]
async fn the_identity_keys_of_a_device_stay() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let upload = async |keys: Value| ann.post("/keys/upload", json!({ "device_keys": keys })).await;
    let identity = ann.keys().identity();
    upload(identity.clone()).await.ok();
    let others = DeviceKeys::others_of(&ann.user_id, &ann.device_id);
    upload(others.identity()).await.refused(400, "M_INVALID_PARAM");
    // The same keys with another signature, or with more that nobody signs.
    let mut more = identity.clone();
    more["signatures"][&ann.user_id]["ed25519:more"] = "AAAA".into();
    more["unsigned"] = json!({ "x": 1 });
    upload(more).await.ok();
    let seen = &query(&bob, &ann).await["device_keys"][&ann.user_id][&ann.device_id];
    assert_eq!(seen["keys"], ann.keys().public());
    assert_eq!(seen["signatures"][&ann.user_id]["ed25519:more"], "AAAA");
    // A device of that name that comes later is another one.
    let path = format!("/devices/{}", ann.device_id);
    let body = json!({ "auth": {
        "type": "m.login.password", "password": super::PASSWORD,
        "identifier": { "type": "m.id.user", "user": ann.user_id },
    } });
    let other = ann.another_device().await;
    other.request("DELETE", &path, Some(&body)).await.ok();
    let login = json!({
        "type": "m.login.password", "password": super::PASSWORD, "device_id": ann.device_id,
        "identifier": { "type": "m.id.user", "user": ann.user_id },
    });
    let again = User::of(&ann.http, ann.post("/login", login).await);
    let keys = json!({ "device_keys": others.identity() });
    again.post("/keys/upload", keys).await.ok();
}

#[tokio::test]
async fn one_time_keys_have_the_form_of_their_algorithm() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let good = ann.keys().one_time(&["A"])["signed_curve25519:A"].clone();
    let with = |name: &str, value: Value| {
        let mut key = good.clone();
        key[name] = value;
        key
    };
    let own = ann.keys().id();
    for (algorithm, key) in [
        ("signed_curve25519", json!(curve25519("A"))),
        ("signed_curve25519", json!({ "key": curve25519("A") })),
        ("signed_curve25519", json!([curve25519("A"), {}, false])),
        ("signed_curve25519", with("key", json!(5))),
        ("signed_curve25519", with("key", json!("short"))),
        ("signed_curve25519", with("fallback", json!("yes"))),
        ("signed_curve25519", with("signatures", json!({}))),
        ("signed_curve25519", with("signatures", json!({ &ann.user_id: {} }))),
        ("signed_curve25519", with("signatures", json!({ &ann.user_id: { &own: 5 } }))),
        ("signed_curve25519", with("signatures", json!({ &bob.user_id: { &own: "A" } }))),
        ("curve25519", json!("short")),
        ("curve25519", good.clone()),
        ("unknown", json!(5)),
        ("unknown", json!({ "key": "any" })),
    ] {
        for kind in ["one_time_keys", "fallback_keys"] {
            let body = json!({ kind: { format!("{algorithm}:A"): key } });
            ann.post("/keys/upload", body).await.refused(400, "M_BAD_JSON");
        }
    }
    let body = json!({ "one_time_keys": {
        "signed_curve25519:A": good, "curve25519:A": curve25519("A"), "unknown:A": "any",
    } });
    let counts = ann.post("/keys/upload", body).await.ok();
    let expected = json!({ "signed_curve25519": 1, "curve25519": 1, "unknown": 1 });
    assert_eq!(counts["one_time_key_counts"], expected);
}

#[tokio::test]
async fn only_the_two_users_learn_of_a_signature_on_the_others_key() {
    let server = server().await;
    let (ann, bob, cas) =
        (user(&server, "ann").await, user(&server, "bob").await, user(&server, "cas").await);
    let room_id = encrypted_room(&ann).await;
    bob.join(&room_id).await.ok();
    cas.join(&room_id).await.ok();
    let (master, others) = (Key::new(""), Key::new(""));
    let body = json!({
        "master_key": master.cross_signing(&ann, "master"),
        "user_signing_key": master.sign(&ann, &others.cross_signing(&ann, "user_signing")),
    });
    let path = "/keys/device_signing/upload";
    ann.request("POST", path, Some(&body)).await.ok();
    let bobs = Key::new("");
    let bobs_master = bobs.cross_signing(&bob, "master");
    bob.request("POST", path, Some(&json!({ "master_key": bobs_master }))).await.ok();
    let since = [ann.here().await, bob.here().await, cas.here().await];
    let signed = json!({ &bob.user_id: { &bobs.public: others.sign(&ann, &bobs_master) } });
    let answer = ann.request("POST", "/keys/signatures/upload", Some(&signed)).await.ok();
    assert_eq!(answer["failures"], json!({}));
    assert_eq!(listed(&ann.news(&since[0]).await, "changed"), set(&[&bob]));
    assert_eq!(listed(&bob.news(&since[1]).await, "changed"), set(&[&bob]));
    assert_eq!(listed(&cas.sync(Some(&since[2]), 0, None).await, "changed"), set(&[]));
}

#[tokio::test]
async fn keys_are_bounded_in_their_number_and_their_names() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let upload = async |kind: &str, names: Vec<String>| {
        let keys: serde_json::Map<_, _> = names
            .into_iter()
            .map(|name| (name, json!({ "key": "k", "signatures": {}, "fallback": true })))
            .collect();
        ann.request("POST", "/keys/upload", Some(&json!({ kind: keys }))).await
    };
    let algorithms = |from: usize, to: usize| (from..to).map(|n| format!("alg{n}:k")).collect();
    upload("fallback_keys", algorithms(0, 16)).await.ok();
    upload("fallback_keys", algorithms(0, 16)).await.ok();
    upload("fallback_keys", algorithms(16, 17)).await.refused(400, "M_INVALID_PARAM");
    let long = vec![format!("signed_curve25519:{}", "x".repeat(255))];
    upload("one_time_keys", long.clone()).await.refused(400, "M_INVALID_PARAM");
    upload("fallback_keys", long).await.refused(400, "M_INVALID_PARAM");
}

#[tokio::test]
async fn users_who_share_a_room_learn_of_changed_devices() {
    let server = server().await;
    let (ann, bob, cas) =
        (user(&server, "ann").await, user(&server, "bob").await, user(&server, "cas").await);
    let room_id = encrypted_room(&ann).await;
    bob.join(&room_id).await.ok();
    let (anns, cass) = (ann.here().await, cas.here().await);
    with_keys(&bob).await;
    let sync = ann.news(&anns).await;
    assert_eq!((listed(&sync, "changed"), listed(&sync, "left")), (set(&[&bob]), set(&[])));
    assert!(cas.sync(Some(&cass), 0, None).await.get("device_lists").is_none());
    // One who comes is new, whatever they did with their keys before; one who goes is gone.
    let since = next_batch(&sync);
    cas.join(&room_id).await.ok();
    let joined = ann.news(&since).await;
    assert_eq!(listed(&joined, "changed"), set(&[&cas]));
    let all = cas.sync(Some(&cass), 0, None).await;
    assert_eq!(listed(&all, "changed"), set(&[&ann, &bob]));
    let since = next_batch(&joined);
    cas.act(&room_id, "leave", None).await.ok();
    let left = ann.news(&since).await;
    assert_eq!((listed(&left, "changed"), listed(&left, "left")), (set(&[]), set(&[&cas])));
    let gone = cas.sync(Some(&next_batch(&all)), 0, None).await;
    assert_eq!(listed(&gone, "left"), set(&[&ann, &bob]));
    // A logout takes a device with it.
    let since = next_batch(&left);
    bob.request("POST", "/logout", Some(&json!({}))).await.ok();
    assert_eq!(listed(&ann.news(&since).await, "changed"), set(&[&bob]));
    let path = format!("/keys/changes?from={anns}&to={}", next_batch(&left));
    let changes = ann.request("GET", &path, None).await.ok();
    assert_eq!(changes["changed"], json!([bob.user_id]));
    ann.request("GET", "/keys/changes?from=x&to=y", None).await.refused(400, "M_INVALID_PARAM");
}

#[tokio::test]
async fn a_device_that_is_renamed_is_news_and_a_user_signing_key_is_not() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let room_id = encrypted_room(&ann).await;
    bob.join(&room_id).await.ok();
    let rename = async |user: &User, name: &str| {
        let path = format!("/devices/{}", encode(&user.device_id));
        user.put(&path, json!({ "display_name": name })).await.ok();
    };
    // Others see the name of a device that has keys, and of no other.
    let since = ann.here().await;
    rename(&bob, "first").await;
    assert_eq!(listed(&ann.sync(Some(&since), 0, None).await, "changed"), set(&[]));
    with_keys(&bob).await;
    let since = ann.here().await;
    rename(&bob, "second").await;
    assert_eq!(listed(&ann.news(&since).await, "changed"), set(&[&bob]));
    let since = ann.here().await;
    rename(&bob, "second").await;
    assert_eq!(listed(&ann.sync(Some(&since), 0, None).await, "changed"), set(&[]));

    let (master, others) = (Key::new(""), Key::new(""));
    let path = "/keys/device_signing/upload";
    let body = json!({ "master_key": master.cross_signing(&bob, "master") });
    bob.post(path, body).await.ok();
    let news = ann.news(&since).await;
    assert_eq!(listed(&news, "changed"), set(&[&bob]));
    let since = next_batch(&news);
    let key = master.sign(&bob, &others.cross_signing(&bob, "user_signing"));
    let mut body = json!({ "user_signing_key": key });
    let asked = bob.post(path, body.clone()).await;
    if asked.status == 401 {
        body["auth"] = json!({
            "type": "m.login.password", "password": super::PASSWORD,
            "identifier": { "type": "m.id.user", "user": bob.user_id },
            "session": asked.body["session"],
        });
        bob.post(path, body).await.ok();
    }
    assert!(query(&bob, &bob).await["user_signing_keys"].get(&bob.user_id).is_some());
    let sync = ann.sync(Some(&since), 0, None).await;
    assert_eq!(listed(&sync, "changed"), set(&[]), "{sync}");
}

#[tokio::test]
async fn a_room_that_is_encrypted_later_makes_its_members_known() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let room_id = public_room(&ann).await;
    bob.join(&room_id).await.ok();
    let since = bob.here().await;
    let content = json!({ "algorithm": "m.megolm.v1.aes-sha2" });
    ann.set_state(&room_id, "m.room.encryption", "", &content).await.ok();
    assert_eq!(listed(&bob.news(&since).await, "changed"), set(&[&ann]));
}

#[tokio::test]
async fn messages_reach_the_devices_they_are_for_once() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let other = bob.another_device().await;
    let (one, two) = (bob.here().await, other.here().await);
    let to = json!({ &bob.user_id: { &bob.device_id: { "body": "for one" } } });
    to_device(&ann, "1", to.clone()).await;
    // The same transaction again is the same message.
    to_device(&ann, "1", to).await;
    to_device(&ann, "2", json!({ &bob.user_id: { "*": { "body": "for both" } } })).await;
    let nobody = json!({ &bob.user_id: { "NOSUCH": {} }, "@no:one.example": { "*": {} } });
    to_device(&ann, "3", nobody).await;
    let sync = bob.sync(Some(&one), 0, None).await;
    assert_eq!(bodies(&sync), ["for one", "for both"]);
    assert_eq!(sync["to_device"]["events"][0]["sender"], json!(ann.user_id));
    assert_eq!(sync["to_device"]["events"][0]["type"], "m.test");
    assert_eq!(bodies(&other.sync(Some(&two), 0, None).await), ["for both"]);
    // Until the device comes back with the token, it may not have got them.
    assert_eq!(bodies(&bob.sync(Some(&one), 0, None).await).len(), 2);
    let after = bob.sync(Some(&next_batch(&sync)), 0, None).await;
    assert_eq!(bodies(&after), [""; 0]);
}

#[tokio::test]
async fn a_waiting_sync_is_woken_by_a_message_to_its_device() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let since = bob.here().await;
    let waiting = tokio::spawn({
        let bob = bob.clone();
        async move { bob.sync(Some(&since), 20_000, None).await }
    });
    to_device(&ann, "1", json!({ &bob.user_id: { "*": { "body": "wake up" } } })).await;
    assert_eq!(bodies(&waiting.await.unwrap()), ["wake up"]);
}

#[tokio::test]
async fn many_messages_come_in_order_over_several_syncs_with_nothing_else_lost() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let room_id = public_room(&ann).await;
    bob.join(&room_id).await.ok();
    let mut since = bob.here().await;
    for number in 0..250 {
        let to = json!({ &bob.user_id: { "*": { "body": number.to_string() } } });
        to_device(&ann, &number.to_string(), to).await;
        if number % 100 == 50 {
            ann.send_text(&room_id, &number.to_string(), &number.to_string()).await;
        }
    }
    let (mut got, mut texts, mut rounds) = (Vec::new(), Vec::new(), 0);
    while got.len() < 250 && rounds < 5 {
        let sync = bob.sync(Some(&since), 0, None).await;
        got.extend(bodies(&sync));
        let room = &sync["rooms"]["join"][&room_id];
        for event in room["timeline"]["events"].as_array().into_iter().flatten() {
            texts.push(event["content"]["body"].as_str().unwrap().to_owned());
        }
        since = next_batch(&sync);
        rounds += 1;
    }
    assert_eq!(got, (0..250).map(|number| number.to_string()).collect::<Vec<_>>());
    assert_eq!(texts, ["50", "150"]);
    assert_eq!(rounds, 3);
}

#[tokio::test]
async fn keys_claims_and_messages_survive_a_restart() {
    let mut server = TestServer::start().await;
    let ann = User::register(&server.http(), "ann", super::PASSWORD).await;
    let bob = User::register(&server.http(), "bob", super::PASSWORD).await;
    with_keys(&ann).await;
    upload_one_time(&ann, &["A", "B"]).await;
    let first = claim(&bob, &ann).await;
    let since = ann.here().await;
    to_device(&bob, "1", json!({ &ann.user_id: { "*": { "body": "kept" } } })).await;
    server.restart().await;
    let second = claim(&bob, &ann).await;
    assert_ne!(first, second);
    assert_eq!(claim(&bob, &ann).await, Value::Null);
    upload_one_time(&ann, &["A", "B"]).await;
    assert_eq!(claim(&bob, &ann).await, Value::Null, "a key was handed out twice");
    let sync = ann.sync(Some(&since), 0, None).await;
    assert_eq!(bodies(&sync), ["kept"]);
    assert!(query(&bob, &ann).await["device_keys"][&ann.user_id][&ann.device_id].is_object());
    // Acknowledged by the next sync, it is gone for an initial one, too.
    ann.sync(Some(&next_batch(&sync)), 0, None).await;
    let gone = async {
        while !bodies(&ann.sync(None, 0, None).await).is_empty() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(20), gone).await.unwrap();
}
