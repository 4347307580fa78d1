//! What users see of rooms, on whichever homeserver they are.

use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::{Value, json};

use crate::harness::{User, encode, until};

/// A user's view of a room: each message's text with its sender.
pub(super) async fn texts(user: &User, room_id: &str) -> Vec<(String, String)> {
    let path = format!("/rooms/{}/messages?dir=b&limit=100", encode(room_id));
    let answer = user.request("GET", &path, None).await;
    let chunk = answer.body["chunk"].as_array().cloned().unwrap_or_default();
    let text = |event: &Value| {
        let body = event["content"]["body"].as_str()?;
        Some((event["sender"].as_str()?.to_owned(), body.to_owned()))
    };
    chunk.iter().rev().filter_map(text).collect()
}

pub(super) async fn say(user: &User, room_id: &str, body: &str) -> String {
    user.send_text(room_id, &encode(body), body).await
}

pub(super) async fn until_says(user: &User, room_id: &str, sender: &User, body: &str) {
    let wanted = (sender.user_id.clone(), body.to_owned());
    until(&format!("{} hears `{body}`", user.user_id), async || {
        texts(user, room_id).await.contains(&wanted)
    })
    .await;
}

pub(super) async fn state(user: &User, room_id: &str, event_type: &str, key: &str) -> Value {
    let path = format!("/rooms/{}/state/{event_type}/{}", encode(room_id), encode(key));
    user.request("GET", &path, None).await.body
}

/// A first sync. Synapse answers one that is the same as another from memory for minutes.
pub(super) async fn fresh_sync(user: &User) -> Value {
    static NUMBER: AtomicU32 = AtomicU32::new(1);
    let limit = NUMBER.fetch_add(1, Ordering::Relaxed);
    let filter = json!({ "room": { "timeline": { "limit": limit } } }).to_string();
    user.sync(None, 0, Some(&filter)).await
}

pub(super) async fn until_member(user: &User, room_id: &str, of: &User, membership: &str) {
    until(&format!("{} sees {} {membership}", user.user_id, of.user_id), async || {
        state(user, room_id, "m.room.member", &of.user_id).await["membership"] == *membership
    })
    .await;
}

/// The whole state of a room as a user sees it, without what servers add.
pub(super) async fn whole_state(user: &User, room_id: &str) -> Vec<String> {
    let path = format!("/rooms/{}/state", encode(room_id));
    let all = user.request("GET", &path, None).await.ok();
    let mut ids: Vec<_> = all
        .as_array()
        .expect("a list")
        .iter()
        .map(|event| format!("{} {} {}", event["type"], event["state_key"], event["event_id"]))
        .collect();
    ids.sort();
    ids
}

pub(super) async fn until_same_state(room_id: &str, one: &User, other: &User) {
    until(&format!("{} and {} see the same state", one.user_id, other.user_id), async || {
        whole_state(one, room_id).await == whole_state(other, room_id).await
    })
    .await;
}

pub(super) async fn join(user: &User, alias_or_id: &str) -> Value {
    let path = format!("/join/{}", encode(alias_or_id));
    user.request("POST", &path, Some(&json!({}))).await.ok()
}
