//! Events that relate to others: children, threads, what is bundled with an event, edits,
//! reactions.

use serde_json::{Value, json};

use super::{each, event_ids, server, string, user};
use crate::harness::{Answer, TestServer, User, encode};

/// A message that relates to another.
fn related(event_id: &str, rel_type: &str, body: &str) -> Value {
    json!({
        "msgtype": "m.text", "body": body,
        "m.relates_to": { "rel_type": rel_type, "event_id": event_id },
    })
}

fn edit(event_id: &str, body: &str) -> Value {
    let mut content = related(event_id, "m.replace", &format!("* {body}"));
    content["m.new_content"] = json!({ "msgtype": "m.text", "body": body });
    content
}

fn reaction(event_id: &str, key: &str) -> Value {
    json!({ "m.relates_to": { "rel_type": "m.annotation", "event_id": event_id, "key": key } })
}

async fn send(user: &User, room_id: &str, content: &Value) -> String {
    send_as(user, room_id, "m.room.message", content).await.ok_string("event_id")
}

async fn send_as(user: &User, room_id: &str, event_type: &str, content: &Value) -> Answer {
    user.send(room_id, event_type, &super::unique("t"), content).await
}

async fn redact(user: &User, room_id: &str, event_id: &str) {
    let txn_id = super::unique("r");
    let path = format!("/rooms/{}/redact/{}/{txn_id}", encode(room_id), encode(event_id));
    user.put(&path, json!({})).await.ok();
}

/// Redacts an event with what relates to it.
async fn redact_with(user: &User, room_id: &str, event_id: &str, with: Value) -> Answer {
    let txn_id = super::unique("r");
    let path = format!("/rooms/{}/redact/{}/{txn_id}", encode(room_id), encode(event_id));
    user.put(&path, with).await
}

async fn is_redacted(user: &User, room_id: &str, event_id: &str) -> bool {
    event(user, room_id, event_id).await["unsigned"].get("redacted_because").is_some()
}

async fn event(user: &User, room_id: &str, event_id: &str) -> Value {
    user.get_room(room_id, &format!("/event/{}", encode(event_id))).await.ok()
}

/// What is bundled with an event.
async fn bundle(user: &User, room_id: &str, event_id: &str) -> Value {
    event(user, room_id, event_id).await["unsigned"]["m.relations"].take()
}

async fn get_v1(user: &User, path: &str) -> Answer {
    let path = format!("/_matrix/client/v1{path}");
    user.http.request("GET", &path, Some(&user.access_token), None).await
}

/// `/relations/{event_id}` with what follows.
async fn relations(user: &User, room_id: &str, event_id: &str, rest: &str) -> Answer {
    let path = format!("/rooms/{}/relations/{}{rest}", encode(room_id), encode(event_id));
    get_v1(user, &path).await
}

async fn threads(user: &User, room_id: &str, query: &str) -> Answer {
    get_v1(user, &format!("/rooms/{}/threads{query}", encode(room_id))).await
}

async fn ignore(user: &User, others: &[&User]) {
    let ignored: serde_json::Map<_, _> =
        others.iter().map(|other| (other.user_id.clone(), json!({}))).collect();
    let path = format!("/user/{}/account_data/m.ignored_user_list", encode(&user.user_id));
    user.put(&path, json!({ "ignored_users": ignored })).await.ok();
}

async fn room_of_two(ann: &User, bob: &User) -> String {
    let room_id = ann.create_room(json!({ "preset": "public_chat" })).await;
    bob.join(&room_id).await.ok();
    room_id
}

#[tokio::test]
async fn children_are_found_by_relation_and_type_newest_first() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let room_id = room_of_two(&ann, &bob).await;
    let root = ann.send_text(&room_id, "1", "root").await;
    let other = ann.send_text(&room_id, "2", "other").await;
    let reply = send(&ann, &room_id, &related(&root, "m.thread", "reply")).await;
    let like = send_as(&bob, &room_id, "m.reaction", &reaction(&root, "+")).await;
    let like = like.ok_string("event_id");
    let sticker = send_as(&bob, &room_id, "m.sticker", &related(&root, "m.thread", "s")).await;
    let sticker = sticker.ok_string("event_id");
    send(&bob, &room_id, &related(&other, "m.thread", "elsewhere")).await;

    for (rest, expected) in [
        ("", vec![&sticker, &like, &reply]),
        ("?dir=b", vec![&sticker, &like, &reply]),
        ("?dir=f", vec![&reply, &like, &sticker]),
        ("/m.thread", vec![&sticker, &reply]),
        ("/m.thread/m.sticker", vec![&sticker]),
        ("/m.thread/m.room.message", vec![&reply]),
        ("/m.annotation", vec![&like]),
        ("/m.annotation/m.room.message", vec![]),
        ("/org.example.none", vec![]),
    ] {
        let page = relations(&bob, &room_id, &root, rest).await.ok();
        assert_eq!(
            event_ids(&page["chunk"]),
            expected.into_iter().cloned().collect::<Vec<_>>(),
            "{rest}"
        );
        assert!(
            page.get("next_batch").is_none() && page.get("recursion_depth").is_none(),
            "{page}"
        );
        assert!(each(&page["chunk"], "/room_id").iter().all(|id| *id == room_id), "{page}");
    }
    relations(&bob, &room_id, "$none", "").await.refused(404, "M_NOT_FOUND");
    let elsewhere = bob.create_room(json!({})).await;
    relations(&bob, &elsewhere, &root, "").await.refused(404, "M_NOT_FOUND");
    relations(&bob, &room_id, &root, "?from=nonsense").await.refused(400, "M_INVALID_PARAM");
    relations(&bob, &room_id, &root, "?to=s0_99999999").await.refused(400, "M_INVALID_PARAM");
    relations(&bob, &room_id, &root, "?dir=x").await.refused(400, "M_INVALID_PARAM");
    relations(&bob, &room_id, &root, "?limit=-1").await.refused(400, "M_INVALID_PARAM");
    let stranger = user(&server, "cas").await;
    relations(&stranger, &room_id, &root, "").await.refused(404, "M_NOT_FOUND");
}

#[tokio::test]
async fn children_come_in_pages_with_tokens_of_the_log() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let room_id = ann.create_room(json!({})).await;
    let root = ann.send_text(&room_id, "1", "root").await;
    let mut replies = Vec::new();
    let mut between = Vec::new();
    for number in 0..7 {
        replies.push(send(&ann, &room_id, &related(&root, "m.thread", &number.to_string())).await);
        ann.send_text(&room_id, &format!("x{number}"), "something else").await;
        between.push(ann.here().await);
    }
    for (dir, expected) in
        [("b", replies.iter().rev().cloned().collect::<Vec<_>>()), ("f", replies.clone())]
    {
        let mut seen = Vec::new();
        let mut from: Option<String> = None;
        loop {
            let from_part =
                from.as_ref().map_or_else(String::new, |f| format!("&from={}", encode(f)));
            let rest = format!("/m.thread?limit=3&dir={dir}{from_part}");
            let page = relations(&ann, &room_id, &root, &rest).await.ok();
            assert_eq!(page.get("prev_batch").and_then(Value::as_str), from.as_deref());
            seen.extend(event_ids(&page["chunk"]));
            match page.get("next_batch") {
                Some(next) => from = next.as_str().map(str::to_owned),
                None => break,
            }
        }
        assert_eq!(seen, expected, "{dir}");
    }
    // Tokens of `/sync` bound a page on both sides.
    let rest = format!("?from={}&to={}", encode(&between[4]), encode(&between[1]));
    let page = relations(&ann, &room_id, &root, &rest).await.ok();
    assert_eq!(
        event_ids(&page["chunk"]),
        [&replies[4], &replies[3], &replies[2]].map(Clone::clone)
    );
    let rest = format!("?from={}&to={}", encode(&between[1]), encode(&between[4]));
    let page = relations(&ann, &room_id, &root, &rest).await.ok();
    assert_eq!(page["chunk"], json!([]));
    let page = relations(&ann, &room_id, &root, &format!("{rest}&dir=f")).await.ok();
    assert_eq!(event_ids(&page["chunk"]), replies[2..5]);
}

#[tokio::test]
async fn relations_of_relations_are_followed_when_asked() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let room_id = ann.create_room(json!({})).await;
    let root = ann.send_text(&room_id, "1", "root").await;
    let one = send(&ann, &room_id, &related(&root, "m.thread", "1")).await;
    let two = send(&ann, &room_id, &related(&one, "m.reference", "2")).await;
    let three = send(&ann, &room_id, &related(&two, "m.reference", "3")).await;
    send(&ann, &room_id, &related(&three, "m.reference", "4")).await;
    let page = relations(&ann, &room_id, &root, "?recurse=true&dir=f").await.ok();
    assert_eq!(event_ids(&page["chunk"]), [&one, &two, &three].map(Clone::clone));
    assert_eq!(page["recursion_depth"], 3);
    let page = relations(&ann, &room_id, &root, "/m.reference?recurse=true&dir=f").await.ok();
    assert_eq!(event_ids(&page["chunk"]), [two, three]);
    let page = relations(&ann, &room_id, &root, "?recurse=false").await.ok();
    assert_eq!(event_ids(&page["chunk"]), [one]);
}

#[tokio::test]
async fn one_sees_the_children_that_one_may_see() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let room_id = ann
        .create_room(json!({
            "preset": "public_chat",
            "initial_state": [{ "type": "m.room.history_visibility",
                                "content": { "history_visibility": "joined" } }],
        }))
        .await;
    bob.join(&room_id).await.ok();
    let root = ann.send_text(&room_id, "1", "root").await;
    let seen = send(&ann, &room_id, &related(&root, "m.thread", "seen")).await;
    bob.act(&room_id, "leave", None).await.ok();
    send(&ann, &room_id, &related(&root, "m.thread", "hidden")).await;
    send(&ann, &room_id, &edit(&root, "hidden")).await;
    send(&ann, &room_id, &related(&root, "m.reference", "hidden")).await;
    for rejoined in [false, true] {
        if rejoined {
            bob.join(&room_id).await.ok();
        }
        let page = relations(&bob, &room_id, &root, "").await.ok();
        assert_eq!(event_ids(&page["chunk"]), std::slice::from_ref(&seen));
        let bundled = bundle(&bob, &room_id, &root).await;
        assert_eq!(bundled["m.thread"]["count"], 1);
        assert_eq!(bundled["m.thread"]["latest_event"]["event_id"], seen.as_str());
        assert_eq!((bundled.get("m.replace"), bundled.get("m.reference")), (None, None));
    }
    let newcomer = user(&server, "cas").await;
    newcomer.join(&room_id).await.ok();
    relations(&newcomer, &room_id, &root, "").await.refused(404, "M_NOT_FOUND");
    assert_eq!(threads(&newcomer, &room_id, "").await.ok()["chunk"], json!([]));
    let all = bundle(&ann, &room_id, &root).await;
    assert_eq!(all["m.thread"]["count"], 2);
}

#[tokio::test]
async fn the_newest_valid_edit_comes_with_the_event() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let room_id = room_of_two(&ann, &bob).await;
    let original = ann.send_text(&room_id, "1", "first").await;
    assert_eq!(bundle(&ann, &room_id, &original).await, Value::Null);
    let first = send(&ann, &room_id, &edit(&original, "second")).await;
    let second = send(&ann, &room_id, &edit(&original, "third")).await;
    // None of these is valid: of someone else, of another type, without the new content, of an
    // edit.
    send(&bob, &room_id, &edit(&original, "of bob")).await;
    send_as(&ann, &room_id, "m.sticker", &edit(&original, "a sticker")).await.ok();
    send(&ann, &room_id, &related(&original, "m.replace", "nothing new")).await;
    send(&ann, &room_id, &edit(&first, "an edit of an edit")).await;
    assert_eq!(bundle(&bob, &room_id, &first).await, Value::Null);

    let shown = event(&bob, &room_id, &original).await;
    assert_eq!(shown["content"]["body"], "first", "the content is left as it was");
    let replaced = &shown["unsigned"]["m.relations"]["m.replace"];
    assert_eq!(replaced["event_id"], second.as_str());
    assert_eq!(replaced["content"]["m.new_content"]["body"], "third");
    assert_eq!(replaced["room_id"], room_id.as_str());
    assert_eq!(replaced["sender"], ann.user_id.as_str());
    assert!(replaced["origin_server_ts"].is_u64() && replaced["unsigned"]["age"].is_i64());

    // Without its newest edit, the event is what it was before that.
    redact(&ann, &room_id, &second).await;
    let bundled = bundle(&bob, &room_id, &original).await;
    assert_eq!(bundled["m.replace"]["event_id"], first.as_str());
    // A redacted event is not edited.
    redact(&ann, &room_id, &original).await;
    assert_eq!(bundle(&bob, &room_id, &original).await.get("m.replace"), None);

    // State is not edited, and what an encrypted edit holds is not asked.
    let topic = ann.set_state(&room_id, "m.room.topic", "", &json!({ "topic": "x" })).await;
    let topic = topic.ok_string("event_id");
    send_as(&ann, &room_id, "m.room.topic", &edit(&topic, "y")).await.ok();
    assert_eq!(bundle(&bob, &room_id, &topic).await, Value::Null);
    let encrypted = json!({ "algorithm": "x", "ciphertext": "y" });
    let secret = send_as(&ann, &room_id, "m.room.encrypted", &encrypted).await;
    let secret = secret.ok_string("event_id");
    let change = related(&secret, "m.replace", "");
    let change = send_as(&ann, &room_id, "m.room.encrypted", &change).await.ok_string("event_id");
    let bundled = bundle(&bob, &room_id, &secret).await;
    assert_eq!(bundled["m.replace"]["event_id"], change.as_str());
}

#[tokio::test]
async fn a_thread_comes_with_its_root() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let cas = user(&server, "cas").await;
    let room_id = room_of_two(&ann, &bob).await;
    cas.join(&room_id).await.ok();
    let root = ann.send_text(&room_id, "1", "root").await;
    send(&bob, &room_id, &related(&root, "m.thread", "1")).await;
    let latest = send(&bob, &room_id, &related(&root, "m.thread", "2")).await;
    send(&bob, &room_id, &edit(&latest, "2, edited")).await;
    let refers = send(&bob, &room_id, &related(&latest, "m.reference", "see there")).await;
    for (who, participated) in [(&ann, true), (&bob, true), (&cas, false)] {
        let thread = bundle(who, &room_id, &root).await["m.thread"].take();
        assert_eq!(thread["count"], 2);
        assert_eq!(thread["current_user_participated"], participated, "{}", who.user_id);
        let event = &thread["latest_event"];
        assert_eq!(event["event_id"], latest.as_str());
        assert_eq!(event["room_id"], room_id.as_str());
        let inner = &event["unsigned"]["m.relations"];
        assert_eq!(inner["m.replace"]["content"]["m.new_content"]["body"], "2, edited");
        assert_eq!(inner["m.reference"]["chunk"], json!([{ "event_id": refers }]));
    }
    // Those whom one ignores do not count.
    ignore(&cas, &[&bob]).await;
    let own = send(&cas, &room_id, &related(&root, "m.thread", "3")).await;
    send(&bob, &room_id, &related(&root, "m.thread", "4")).await;
    let thread = bundle(&cas, &room_id, &root).await["m.thread"].take();
    assert_eq!((&thread["count"], &thread["latest_event"]["event_id"]), (&json!(1), &json!(own)));
    let page = relations(&cas, &room_id, &root, "").await.ok();
    assert_eq!(event_ids(&page["chunk"]), [own]);
    // Nor do replies that were redacted; with the last one the thread is gone.
    let replies = relations(&ann, &room_id, &root, "").await.ok();
    let replies = event_ids(&replies["chunk"]);
    assert_eq!(replies.len(), 4);
    for (left, reply) in replies.iter().enumerate().rev() {
        redact(&ann, &room_id, reply).await;
        let bundled = bundle(&ann, &room_id, &root).await;
        assert_eq!(bundled["m.thread"]["count"].as_u64().unwrap_or_default(), left as u64);
    }
    assert_eq!(bundle(&ann, &room_id, &root).await, Value::Null);
}

#[tokio::test]
async fn a_thread_does_not_begin_with_an_event_that_relates_to_another() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let room_id = ann.create_room(json!({})).await;
    let root = ann.send_text(&room_id, "1", "root").await;
    let reply = send(&ann, &room_id, &related(&root, "m.thread", "reply")).await;
    let nested = related(&reply, "m.thread", "nested");
    send_as(&ann, &room_id, "m.room.message", &nested).await.refused(400, "M_UNKNOWN");
    // A plain reply is no relation of this kind.
    let plain = json!({ "body": "x", "m.relates_to": { "m.in_reply_to": { "event_id": root } } });
    let plain = send(&ann, &room_id, &plain).await;
    send(&ann, &room_id, &related(&plain, "m.thread", "below a reply")).await;
    assert_eq!(bundle(&ann, &room_id, &plain).await["m.thread"]["count"], 1);
    // What cannot be a relation is just content.
    for odd in [
        json!({ "m.relates_to": { "rel_type": "m.thread" } }),
        json!({ "m.relates_to": { "rel_type": 7, "event_id": root } }),
        json!({ "m.relates_to": [root] }),
        json!({ "m.relates_to": { "rel_type": "m.thread", "event_id": "$nothing" } }),
        json!({ "m.relates_to": null }),
    ] {
        send(&ann, &room_id, &odd).await;
    }
    assert_eq!(bundle(&ann, &room_id, &root).await["m.thread"]["count"], 1);
}

#[tokio::test]
async fn nobody_annotates_an_event_twice_with_the_same() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let room_id = room_of_two(&ann, &bob).await;
    let (one, two) =
        (ann.send_text(&room_id, "1", "one").await, ann.send_text(&room_id, "2", "two").await);
    let react = |user: &User, event_id: &str, key: &str| {
        let (user, room_id) = (user.clone(), room_id.clone());
        let content = reaction(event_id, key);
        async move { send_as(&user, &room_id, "m.reaction", &content).await }
    };
    let first = react(&ann, &one, "+").await.ok_string("event_id");
    react(&ann, &one, "+").await.refused(400, "M_DUPLICATE_ANNOTATION");
    for (who, event_id, key) in [(&ann, &one, "-"), (&bob, &one, "+"), (&ann, &two, "+")] {
        react(who, event_id, key).await.ok();
    }
    // Of another type it is another annotation.
    send_as(&ann, &room_id, "org.example.mark", &reaction(&one, "+")).await.ok();
    // Sent again under its transaction it is the same annotation.
    let again = reaction(&two, "again");
    let sent = ann.send(&room_id, "m.reaction", "same", &again).await.ok_string("event_id");
    assert_eq!(ann.send(&room_id, "m.reaction", "same", &again).await.ok_string("event_id"), sent);
    redact(&ann, &room_id, &first).await;
    react(&ann, &one, "+").await.ok();
    // Reactions are not bundled.
    assert_eq!(bundle(&bob, &room_id, &one).await, Value::Null);
}

#[tokio::test]
async fn of_the_same_annotation_sent_at_once_many_times_one_is_taken() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let room_id = ann.create_room(json!({})).await;
    let event_id = ann.send_text(&room_id, "1", "x").await;
    let sends: Vec<_> = (0..20)
        .map(|_| {
            let (ann, room_id, content) = (ann.clone(), room_id.clone(), reaction(&event_id, "+"));
            tokio::spawn(
                async move { send_as(&ann, &room_id, "m.reaction", &content).await.status },
            )
        })
        .collect();
    let mut statuses = Vec::new();
    for send in sends {
        statuses.push(send.await.expect("a send does not panic"));
    }
    statuses.sort_unstable();
    assert_eq!(statuses[0], 200);
    assert!(statuses[1..].iter().all(|status| *status == 400), "{statuses:?}");
    let page = relations(&ann, &room_id, &event_id, "").await.ok();
    assert_eq!(event_ids(&page["chunk"]).len(), 1);
}

#[tokio::test]
async fn a_token_of_an_earlier_moment_brings_no_thread_back_whose_replies_were_redacted() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let room_id = room_of_two(&ann, &bob).await;
    let mut replies = Vec::new();
    for number in 0..2 {
        let root = ann.send_text(&room_id, &format!("r{number}"), "root").await;
        replies.push((root.clone(), send(&bob, &room_id, &related(&root, "m.thread", "a")).await));
    }
    let then = bob.here().await;
    redact(&bob, &room_id, &replies[0].1).await;
    let last = u64::MAX;
    let page = threads(&bob, &room_id, &format!("?from={then}.{last}")).await.ok();
    assert_eq!(event_ids(&page["chunk"]), [&*replies[1].0]);
}

#[tokio::test]
async fn threads_are_listed_newest_reply_first_and_paged_over_new_replies() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let room_id = room_of_two(&ann, &bob).await;
    let mut roots = Vec::new();
    for number in 0..7 {
        let root = ann.send_text(&room_id, &format!("r{number}"), &format!("root {number}")).await;
        send(&bob, &room_id, &related(&root, "m.thread", "a")).await;
        roots.push(root);
    }
    send(&ann, &room_id, &related(&roots[2], "m.thread", "moves to the front")).await;
    let gone = send(&ann, &room_id, &related(&roots[0], "m.thread", "does not")).await;
    redact(&ann, &room_id, &gone).await;
    let expected = [2, 6, 5, 4, 3, 1, 0].map(|index: usize| roots[index].clone());

    let mut seen = Vec::new();
    let mut query = "?limit=2".to_owned();
    loop {
        let page = threads(&bob, &room_id, &query).await.ok();
        assert!(
            page["chunk"][0]["unsigned"]["m.relations"]["m.thread"]["count"].is_u64(),
            "{page}"
        );
        seen.extend(event_ids(&page["chunk"]));
        let Some(next) = page.get("next_batch").and_then(Value::as_str) else { break };
        query = format!("?limit=2&from={}", encode(next));
        // What is said meanwhile moves nothing, be it in an old thread or a new one.
        for root in [&roots[0], &roots[6]] {
            send(&bob, &room_id, &related(root, "m.thread", "meanwhile")).await;
        }
        let new = ann.send_text(&room_id, &super::unique("n"), "new").await;
        send(&ann, &room_id, &related(&new, "m.thread", "x")).await;
    }
    assert_eq!(seen, expected);

    let stranger = user(&server, "cas").await;
    threads(&stranger, &room_id, "").await.refused(403, "M_FORBIDDEN");
    threads(&ann, "!none:e2e.test", "").await.refused(403, "M_FORBIDDEN");
    for bad in ["?limit=0", "?limit=x", "?include=some", "?from=x", "?from=s0_1", "?from=s0_1.x"] {
        threads(&ann, &room_id, bad).await.refused(400, "M_INVALID_PARAM");
    }
    assert_eq!(threads(&ann, &room_id, "?limit=100000").await.ok().get("next_batch"), None);
}

#[tokio::test]
async fn threads_are_listed_by_who_takes_part_and_whom_one_ignores() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let cas = user(&server, "cas").await;
    let room_id = room_of_two(&ann, &bob).await;
    cas.join(&room_id).await.ok();
    let of_ann = ann.send_text(&room_id, "1", "of ann").await;
    send(&bob, &room_id, &related(&of_ann, "m.thread", "by bob")).await;
    let of_bob = bob.send_text(&room_id, "2", "of bob").await;
    send(&cas, &room_id, &related(&of_bob, "m.thread", "by cas")).await;
    let list = |user: &User, query: &'static str| {
        let (user, room_id) = (user.clone(), room_id.clone());
        async move { threads(&user, &room_id, query).await.ok() }
    };
    for (who, expected) in
        [(&ann, vec![&of_ann]), (&bob, vec![&of_bob, &of_ann]), (&cas, vec![&of_bob])]
    {
        let page = list(who, "?include=participated").await;
        assert_eq!(event_ids(&page["chunk"]), expected.into_iter().cloned().collect::<Vec<_>>());
        let page = list(who, "?include=all").await;
        assert_eq!(event_ids(&page["chunk"]), [&of_bob, &of_ann].map(Clone::clone));
    }
    // A root of someone who is ignored is there without its content; a thread in which only such
    // users replied is not.
    ignore(&cas, &[&bob]).await;
    let page = list(&cas, "").await;
    assert_eq!(event_ids(&page["chunk"]), [of_bob]);
    assert_eq!(page["chunk"][0]["content"], json!({}));
    assert_eq!(page["chunk"][0]["unsigned"]["m.relations"]["m.thread"]["count"], 1);
}

#[tokio::test]
async fn what_relates_is_bundled_wherever_the_specification_says_so() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let room_id = ann.create_room(json!({})).await;
    let since = ann.here().await;
    let root = ann.send_text(&room_id, "1", "root").await;
    send(&ann, &room_id, &related(&root, "m.thread", "reply")).await;
    let count = |event: &Value| event["unsigned"]["m.relations"]["m.thread"]["count"].clone();
    let page = ann.get_room(&room_id, "/messages?dir=b&limit=2").await.ok();
    assert_eq!(count(&page["chunk"][1]), 1);
    let path = format!("/context/{}?limit=2", encode(&root));
    assert_eq!(count(&ann.get_room(&room_id, &path).await.ok()["event"]), 1);
    assert_eq!(count(&event(&ann, &room_id, &root).await), 1);
    assert_eq!(count(&threads(&ann, &room_id, "").await.ok()["chunk"][0]), 1);
    let refers = send(&ann, &room_id, &related(&root, "m.reference", "refers")).await;
    let child = send(&ann, &room_id, &edit(&refers, "edited")).await;
    let page = relations(&ann, &room_id, &root, "/m.reference").await.ok();
    let bundled = &page["chunk"][0]["unsigned"]["m.relations"];
    assert_eq!(bundled["m.replace"]["event_id"], child.as_str());

    // A sync that leaves something out, and only such a one: others bring the children themselves.
    let filter = json!({ "room": { "timeline": { "related_by_rel_types": ["m.thread"] } } });
    let sync = ann.sync(Some(&since), 0, Some(&filter.to_string())).await;
    let timeline = &sync["rooms"]["join"][&room_id]["timeline"];
    assert_eq!(event_ids(&timeline["events"]), [root]);
    assert_eq!((&timeline["limited"], count(&timeline["events"][0])), (&json!(false), Value::Null));
    let filter = json!({ "room": { "timeline": { "limit": 1, "types": ["m.room.topic"] } } });
    for topic in ["one", "two"] {
        ann.set_state(&room_id, "m.room.topic", "", &json!({ "topic": topic })).await.ok();
    }
    let topic = event_ids(&ann.get_room(&room_id, "/messages?dir=b&limit=1").await.ok()["chunk"]);
    send(&ann, &room_id, &related(&topic[0], "m.thread", "on the topic")).await;
    let sync = ann.sync(Some(&since), 0, Some(&filter.to_string())).await;
    let timeline = &sync["rooms"]["join"][&room_id]["timeline"];
    assert_eq!((&timeline["limited"], count(&timeline["events"][0])), (&json!(true), json!(1)));
}

#[tokio::test]
async fn relations_and_threads_are_the_same_after_a_restart() {
    let mut server = TestServer::start().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let room_id = room_of_two(&ann, &bob).await;
    for number in 0..3 {
        let root = ann.send_text(&room_id, &format!("r{number}"), "root").await;
        send(&bob, &room_id, &related(&root, "m.thread", "1")).await;
        send(&ann, &room_id, &edit(&root, "edited")).await;
    }
    let token = string(&threads(&ann, &room_id, "?limit=1").await.ok(), "next_batch");
    let root = event_ids(&threads(&ann, &room_id, "").await.ok()["chunk"])[0].clone();
    let before = (
        event_ids(
            &threads(&ann, &room_id, &format!("?from={}", encode(&token))).await.ok()["chunk"],
        ),
        event_ids(&relations(&ann, &room_id, &root, "").await.ok()["chunk"]),
    );
    assert_eq!((before.0.len(), before.1.len()), (2, 2));
    server.restart().await;
    let ann = User { http: server.http(), ..ann };
    let after = (
        event_ids(
            &threads(&ann, &room_id, &format!("?from={}", encode(&token))).await.ok()["chunk"],
        ),
        event_ids(&relations(&ann, &room_id, &root, "").await.ok()["chunk"]),
    );
    assert_eq!(after, before);
}

#[tokio::test]
async fn a_redaction_takes_with_it_what_relates_to_the_event() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let room_id = ann.create_room(json!({ "preset": "public_chat" })).await;
    bob.join(&room_id).await.ok();
    let root = send(&bob, &room_id, &json!({ "msgtype": "m.text", "body": "root" })).await;
    let edited = send(&bob, &room_id, &edit(&root, "better")).await;
    let of_edit = send(&bob, &room_id, &edit(&edited, "of an edit")).await;
    let mut replies = Vec::new();
    for number in 0..70 {
        let from = if number % 2 == 0 { &ann } else { &bob };
        let reply = related(&root, "m.thread", &number.to_string());
        replies.push(send(from, &room_id, &reply).await);
    }
    let reacted = send_as(&ann, &room_id, "m.reaction", &reaction(&root, "x")).await;
    let reacted = reacted.ok_string("event_id");

    // Whoever has no power redacts their own, and the rest stays.
    let with = json!({ "reason": "gone", "with_rel_types": ["m.replace", "m.thread"] });
    redact_with(&bob, &room_id, &root, with).await.ok();
    assert!(is_redacted(&bob, &room_id, &root).await);
    assert!(is_redacted(&bob, &room_id, &edited).await);
    assert!(!is_redacted(&bob, &room_id, &of_edit).await, "it relates to the edit");
    assert!(!is_redacted(&bob, &room_id, &reacted).await, "another relation");
    for (number, reply) in replies.iter().enumerate() {
        assert_eq!(is_redacted(&bob, &room_id, reply).await, number % 2 == 1, "{number}");
    }
    let because = event(&bob, &room_id, &edited).await["unsigned"]["redacted_because"].take();
    assert_eq!(because["content"]["reason"], "gone");
    assert!(because["content"].get("with_rel_types").is_none(), "{because}");

    // A moderator takes all, also after the event itself was redacted; what is asked for several
    // times is redacted once, and state stays.
    let topic = json!({ "topic": "t", "m.relates_to": { "rel_type": "x", "event_id": root } });
    let topic = ann.set_state(&room_id, "m.room.topic", "", &topic).await.ok_string("event_id");
    let with = json!({ "org.matrix.msc3912.with_relations": ["*"] });
    let again = (0..4).map(|_| redact_with(&ann, &room_id, &root, with.clone()));
    for answer in futures_util::future::join_all(again).await {
        answer.ok();
    }
    assert!(!is_redacted(&ann, &room_id, &topic).await);
    let page = ann.get_room(&room_id, "/messages?dir=b&limit=1000").await.ok();
    let redactions = page["chunk"].as_array().into_iter().flatten();
    let redacts = redactions.filter_map(|event| event["content"]["redacts"].as_str());
    let of_first = redacts.filter(|id| *id == replies[0]).count();
    assert!(of_first <= 2, "{of_first} redactions of one event");
    for event in replies.iter().chain([&reacted]) {
        assert!(is_redacted(&ann, &room_id, event).await);
    }
    assert!(!is_redacted(&ann, &room_id, &of_edit).await);

    // Nothing more for nothing, and nothing at all for nonsense.
    let other = send(&ann, &room_id, &json!({ "msgtype": "m.text", "body": "other" })).await;
    let reply = send(&ann, &room_id, &related(&other, "m.thread", "reply")).await;
    for bad in [json!("m.thread"), json!([1]), json!(vec!["x"; 101])] {
        let answer = redact_with(&ann, &room_id, &other, json!({ "with_rel_types": bad })).await;
        assert_eq!(answer.status, 400, "{answer:?}");
    }
    assert!(!is_redacted(&ann, &room_id, &other).await);
    redact_with(&ann, &room_id, &other, json!({ "with_rel_types": [] })).await.ok();
    assert!(is_redacted(&ann, &room_id, &other).await);
    assert!(!is_redacted(&ann, &room_id, &reply).await);
    let features = ann.http.request("GET", "/_matrix/client/versions", None, None).await.ok();
    assert_eq!(features["unstable_features"]["org.matrix.msc3912"], true);
}
