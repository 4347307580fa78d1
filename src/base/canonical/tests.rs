use proptest::prelude::*;
use ruma::CanonicalJsonValue;

use super::*;

/// Texts, and what Synapse's `canonicaljson` 2.0 makes of them as Python reads them.
const VECTORS: &str = include_str!("vectors.json");

#[test]
fn texts_become_what_synapse_signs() {
    let vectors: Vec<(String, Option<String>)> = serde_json::from_str(VECTORS).unwrap();
    for (text, expected) in vectors {
        let made = canonical(&text, Numbers::Lax).ok();
        assert_eq!(made.as_deref(), expected.as_deref(), "{text}");
        // What is canonical stays as it is.
        if let Some(expected) = expected {
            assert!(matches!(canonical(&expected, Numbers::Lax), Ok(Cow::Borrowed(_))));
        }
    }
}

#[test]
fn only_json_has_a_canonical_form() {
    for text in [
        "",
        " ",
        "{",
        "}",
        "[",
        "]",
        "[1,]",
        "[,1]",
        "[1 2]",
        "{\"a\"}",
        "{\"a\":}",
        "{\"a\":1,}",
        "{a:1}",
        "{\"a\":1 \"b\":2}",
        "{,}",
        "[1]]",
        "{}{}",
        "01",
        "1.",
        ".5",
        "-",
        "+1",
        "1e",
        "1e+",
        "NaN",
        "Infinity",
        "nul",
        "\"a",
        "\"\\\"",
        "\"\\x\"",
        "\"\\u12\"",
        "\"\u{1}\"",
        "\"\n\"",
        "\"\\",
        "'a'",
        "nul",
        "truex",
        "[}",
        "{]",
        "{\"a\":]}",
        "\"\\",
        "[\"\\",
        "\"\\u\"",
    ] {
        let made = canonical(text, Numbers::Lax);
        assert!(matches!(made, Err(NotCanonical::Syntax(_))), "{text}: {made:?}");
    }
    let half = canonical(r#"{"a":"\uD83D"}"#, Numbers::Lax);
    assert_eq!(half, Err(NotCanonical::Surrogate));
    let half = r#"{"\uD83D":"\ud83d","a":1}"#;
    assert_eq!(canonical(half, Numbers::AsWritten).as_deref(), Ok(half));
    // A lone surrogate is not the same name as the text of its escape.
    let two = r#"{"\ud83d":1,"\\ud83d":2}"#;
    assert_eq!(canonical(two, Numbers::AsWritten).as_deref(), Ok(two));
}

#[test]
fn others_hold_integers_of_64_bits_and_doubles() {
    for (number, is_held) in [
        ("9223372036854775807", true),
        ("-9223372036854775808", true),
        ("-0", true),
        ("1e300", true),
        ("9223372036854775808.5", true),
        ("9223372036854775808", false),
        ("-9223372036854775809", false),
        ("1e400", false),
    ] {
        let text = format!(r#"{{"a":[{number}]}}"#);
        assert_eq!(is_readable(&text), is_held, "{number}");
        assert!(check(&text, Numbers::AsWritten).is_ok(), "{number}");
    }
}

#[test]
fn strict_numbers_are_integers_of_53_bits_in_one_form() {
    for (number, is_allowed) in [
        ("0", true),
        ("-1", true),
        ("9007199254740991", true),
        ("-9007199254740991", true),
        ("9007199254740992", false),
        ("-9007199254740992", false),
        ("-0", false),
        ("1.0", false),
        ("1e2", false),
        ("1152921504606846976", false),
        ("99999999999999999999", false),
    ] {
        let text = format!("[{number}]");
        let checked = check(&text, Numbers::Strict);
        assert_eq!(checked.is_ok(), is_allowed, "{number}");
        assert_eq!(canonical(&text, Numbers::AsWritten).as_deref(), Ok(&*text));
    }
    assert_eq!(canonical("[ 1.50]", Numbers::AsWritten).as_deref(), Ok("[1.50]"));
}

#[test]
fn depth_is_bounded_where_others_read_and_not_where_signatures_are_verified() {
    let nested = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
    assert_eq!(check(&nested(limits::ITEM_DEPTH), Numbers::Strict), Ok(()));
    assert_eq!(check(&nested(limits::ITEM_DEPTH + 1), Numbers::Strict), Err(NotCanonical::TooDeep));
    let deep = nested(limits::TEXT_DEPTH);
    assert_eq!(canonical(&deep, Numbers::Strict).as_deref(), Ok(&*deep));
    // Not canonical: every level is written again.
    let levels = limits::TEXT_DEPTH;
    let deep =
        format!("{} {}", "{\"\":".repeat(levels - 1), "[]".to_owned() + &"}".repeat(levels - 1));
    assert_eq!(canonical(&deep, Numbers::Strict).as_deref(), Ok(&*deep.replace(' ', "")));
    assert_eq!(canonical(&nested(levels + 1), Numbers::Strict), Err(NotCanonical::TooDeep));
}

fn json() -> impl Strategy<Value = serde_json::Value> {
    let largest = (1_i64 << 53) - 1;
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<bool>().prop_map(Into::into),
        (-largest..=largest).prop_map(Into::into),
        ".{0,8}".prop_map(Into::into),
        "[\u{0}-\u{24}\\\\\"/\u{7f}-\u{a0}]{0,6}".prop_map(Into::into),
    ];
    leaf.prop_recursive(5, 40, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Into::into),
            prop::collection::vec((".{0,3}", inner), 0..6)
                .prop_map(|members| serde_json::Value::Object(members.into_iter().collect())),
        ]
    })
}

proptest! {
    /// Where ruma has a canonical form, too, it is the same, however the text was written.
    #[test]
    fn the_form_is_that_of_ruma(value in json(), pretty in any::<bool>()) {
        let text = if pretty { serde_json::to_string_pretty(&value) } else { serde_json::to_string(&value) };
        let text = text.unwrap();
        let expected = serde_json::from_str::<CanonicalJsonValue>(&text).unwrap().to_string();
        for numbers in [Numbers::Strict, Numbers::Lax, Numbers::AsWritten] {
            let made = canonical(&text, numbers);
            prop_assert_eq!(made.as_deref(), Ok(&*expected));
        }
    }

    #[test]
    fn what_serde_json_reads_is_json_here_too(text in "[\\[\\]{}:,\"a1.e+\\- \\\\u0]{0,12}") {
        let read = serde_json::from_str::<serde_json::Value>(&text).is_ok();
        let made = canonical(&text, Numbers::Lax);
        prop_assert_eq!(made.is_ok(), read, "{:?}", made);
    }
}
