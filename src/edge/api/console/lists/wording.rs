//! What clients show of a message instead of its body: its HTML, and the new text of an edit. They
//! may say something else, so whoever moderates reads them too, as plain text.

use serde_json::Value;

/// Elements that begin a line of their own.
const BLOCKS: [&str; 10] = ["br", "p", "div", "li", "tr", "blockquote", "pre", "h1", "h2", "hr"];

/// The characters that HTML names most.
const NAMED: [(&str, &str); 7] = [
    ("&lt;", "<"),
    ("&gt;", ">"),
    ("&quot;", "\""),
    ("&#39;", "'"),
    ("&apos;", "'"),
    ("&nbsp;", " "),
    // The last, for what it makes is no name.
    ("&amp;", "&"),
];

/// The texts that differ from the body, each with what it is.
pub(super) fn otherwise(content: &Value) -> Vec<(&'static str, String)> {
    let text = |at: &str| content.pointer(at).and_then(Value::as_str);
    let html = |at: &str| text(at).map(plain);
    let all = [
        ("Formatted:", html("/formatted_body")),
        ("Changed to:", text("/m.new_content/body").map(ToOwned::to_owned)),
        ("Changed to, formatted:", html("/m.new_content/formatted_body")),
    ];
    let mut known = vec![essence(text("/body").unwrap_or_default())];
    let mut found = Vec::new();
    for (words, other) in all.into_iter().filter_map(|(words, text)| Some((words, text?))) {
        let of = essence(&other);
        if !of.is_empty() && !known.contains(&of) {
            known.push(of);
            found.push((words, other));
        }
    }
    found
}

/// A text without what only lays it out, such as the signs of Markdown.
fn essence(text: &str) -> String {
    text.chars().filter(|of| !of.is_whitespace() && !of.is_ascii_punctuation()).collect()
}

/// The text of HTML.
fn plain(html: &str) -> String {
    let mut text = String::with_capacity(html.len());
    let mut rest = html;
    while let Some((before, tag)) = rest.split_once('<') {
        text.push_str(before);
        if !tag.starts_with(|of: char| of.is_ascii_alphabetic() || "/!?".contains(of)) {
            text.push('<');
            rest = tag;
            continue;
        }
        let Some((tag, after)) = tag.split_once('>') else {
            // No tag ends any more: the rest is text.
            text.push('<');
            rest = tag;
            break;
        };
        let name = tag.trim_start_matches('/').split(|of: char| !of.is_ascii_alphanumeric()).next();
        if name.is_some_and(|name| BLOCKS.iter().any(|block| name.eq_ignore_ascii_case(block))) {
            text.push('\n');
        }
        rest = after;
    }
    text.push_str(rest);
    let named = |text: String, (name, of): &(&str, &str)| text.replace(name, of);
    NAMED.iter().fold(text, named).trim().to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn html_is_read_as_text() {
        for (html, text) in [
            ("a <b class=\"x\">bold</b> word", "a bold word"),
            ("<p>one</p><p>two<br/>three</p>", "one\n\ntwo\nthree"),
            ("1 &lt; 2 &amp;amp; 3", "1 < 2 &amp; 3"),
            ("a < b <b>and</b> c > d", "a < b and c > d"),
            ("<b>a</b> <i b < c", "a <i b < c"),
            ("", ""),
        ] {
            assert_eq!(plain(html), text, "{html}");
        }
    }

    #[test]
    fn only_what_differs_from_the_body_is_named() {
        assert!(
            otherwise(&json!({ "body": "**hi** you", "formatted_body": "<b>hi</b> you" }))
                .is_empty()
        );
        assert!(otherwise(&json!({ "body": 1, "m.new_content": "x" })).is_empty());
        let all = otherwise(&json!({
            "body": "* kind",
            "formatted_body": "<i>rude</i>",
            "m.new_content": { "body": "ruder", "formatted_body": "<b>rudest</b>" },
        }));
        let texts: Vec<_> = all.iter().map(|(_, text)| &**text).collect();
        assert_eq!(texts, ["rude", "ruder", "rudest"]);
        let edit = json!({ "body": "* kind", "m.new_content": { "body": "kind" } });
        assert!(otherwise(&edit).is_empty());
    }
}
