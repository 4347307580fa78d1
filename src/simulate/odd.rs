//! What JSON allows and nobody expects.

use serde_json::{Value, json};

use super::dice::Dice;

/// A string in whose place something odd is put.
pub(crate) const ODD: &str = "ODD";

/// The text with something odd in each of these places.
pub(crate) fn put(text: &str, odd: &str) -> String {
    text.replace(r#""ODD""#, odd)
}

/// Something odd, as JSON text.
pub(crate) fn json(dice: &Dice) -> String {
    let nested = |open: &str, close: &str, levels| {
        format!("{}1{}", open.repeat(levels), close.repeat(levels))
    };
    match dice.below(28) {
        0 => "1.5".to_owned(),
        1 => "-0.0".to_owned(),
        2 => "-0".to_owned(),
        3 => "1e300".to_owned(),
        4 => "1e400".to_owned(),
        5 => "1E2".to_owned(),
        6 => "9007199254740991".to_owned(),
        7 => "9007199254740992".to_owned(),
        8 => "-9007199254740993".to_owned(),
        9 => "9223372036854775807".to_owned(),
        10 => "9223372036854775808".to_owned(),
        11 => "-1".to_owned(),
        12 => "9".repeat(400),
        13 => nested("[", "]", 90),
        14 => nested("[", "]", 200),
        15 => nested(r#"{"a":"#, "}", 150),
        16 => r#""""#.to_owned(),
        17 => format!(r#""{}""#, "a".repeat(255 + dice.below(3))),
        18 => format!(r#""{}""#, "ä".repeat(33_000)),
        19 => r#""\ud800""#.to_owned(),
        20 => r#""\udc00\ud800""#.to_owned(),
        21 => r#""\u0000""#.to_owned(),
        22 => r#"{"a":1,"a":2}"#.to_owned(),
        23 => r#"{"":{"":null},"\u0000":true}"#.to_owned(),
        24 => "null".to_owned(),
        25 => "[]".to_owned(),
        26 => r#""\u202e\ufeff\ud83d\ude00""#.to_owned(),
        _ => format!("[{}]", vec!["{}"; 2_000].join(",")),
    }
}

/// The beginning of a text, for the story.
pub(crate) fn short(text: &str) -> String {
    text.chars().take(40).collect()
}

/// An EDU from `user` to `of`, as text, in which [`ODD`] may stand somewhere.
pub(crate) fn edu(
    dice: &Dice,
    room: &str,
    user: &str,
    of: &str,
    event: &str,
    number: u32,
) -> String {
    // Each place is odd now and then only, so that what surrounds it is looked at.
    let or_odd = |usual: Value| if dice.happens(25) { json!(ODD) } else { usual };
    let (edu_type, content) = match dice.below(8) {
        0 => (
            "m.typing",
            json!({
                "room_id": or_odd(json!(room)), "user_id": user, "typing": or_odd(json!(true)),
            }),
        ),
        1 => (
            "m.receipt",
            json!({ room: { "m.read": { user: {
            "event_ids": [or_odd(json!(event))],
            "data": { "ts": or_odd(json!(number)), "thread_id": or_odd(json!("main")) },
        } } } }),
        ),
        2 => (
            "m.presence",
            json!({ "push": [or_odd(json!({
            "user_id": user, "presence": or_odd(json!("online")),
            "last_active_ago": or_odd(json!(number)), "status_msg": or_odd(json!("odd")),
        }))] }),
        ),
        3 => (
            "m.direct_to_device",
            json!({
                "sender": user, "type": or_odd(json!("org.example.odd")),
                "message_id": or_odd(json!(format!("m{number}"))),
                "messages": { of: { "*": or_odd(json!({ "odd": or_odd(json!(1)) })) } },
            }),
        ),
        4 => (
            "m.device_list_update",
            json!({
                "user_id": user, "device_id": or_odd(json!("ODDITY")), "stream_id": or_odd(json!(number)),
                "prev_id": [or_odd(json!(number))], "deleted": or_odd(json!(false)),
                "keys": or_odd(json!({})), "device_display_name": or_odd(json!("odd")),
            }),
        ),
        5 => (
            "m.signing_key_update",
            json!({
                "user_id": user, "master_key": or_odd(json!({})), "self_signing_key": or_odd(json!({})),
            }),
        ),
        6 => ("org.example.unknown", or_odd(json!({}))),
        // In the name of somebody else.
        _ => ("m.typing", json!({ "room_id": room, "user_id": of, "typing": true })),
    };
    json!({ "edu_type": or_odd(json!(edu_type)), "content": content }).to_string()
}
