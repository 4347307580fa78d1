//! An event as push rules see it.

use std::sync::OnceLock;

use serde_json::{Map, Value};

use crate::events::{Derived, StoredEvent};
use logcabin_base::glob::Text;

/// An event prepared for push rules, once for all users.
#[derive(Debug)]
pub struct Subject {
    event: Value,
    bytes: u64,
    body: OnceLock<Option<Text>>,
    common: OnceLock<u64>,
}

impl Subject {
    /// The event in the client format, without `unsigned`.
    pub fn new(event: &StoredEvent) -> Self {
        let text = |text: &str| Value::String(text.to_owned());
        let mut whole = Map::new();
        whole.insert("type".to_owned(), text(&event.event_type.to_string()));
        whole.insert("sender".to_owned(), text(event.sender.as_str()));
        whole.insert("room_id".to_owned(), text(event.room_id.as_str()));
        whole.insert("event_id".to_owned(), text(event.event_id.as_str()));
        whole.insert("origin_server_ts".to_owned(), u64::from(event.origin_server_ts.get()).into());
        if let Some(state_key) = &event.state_key {
            whole.insert("state_key".to_owned(), text(state_key));
        }
        // Every stored content is an object. If one were not, no rule about it would match.
        whole.insert("content".to_owned(), event.content_as().unwrap_or_default());
        let bytes = 1024 + 4 * event.content.get().len() as u64;
        Self { event: Value::Object(whole), bytes, body: OnceLock::new(), common: OnceLock::new() }
    }

    /// The value at a path of property names.
    pub fn get(&self, path: &[String]) -> Option<&Value> {
        path.iter().try_fold(&self.event, |value, name| value.get(name))
    }

    pub fn sender(&self) -> &str {
        self.event["sender"].as_str().unwrap_or_default()
    }

    /// `content.body`, if it is a text.
    pub fn body(&self) -> Option<&Text> {
        let body = || self.event["content"]["body"].as_str().map(Text::new);
        self.body.get_or_init(body).as_ref()
    }

    /// Which of the common conditions hold: computed once for the event by `compute`.
    pub(super) fn common_or(&self, compute: impl FnOnce(&Self) -> u64) -> u64 {
        *self.common.get_or_init(|| compute(self))
    }

    /// Whether it has `m.mentions`.
    pub(crate) fn has_mentions(&self) -> bool {
        self.event["content"].get("m.mentions").is_some()
    }
}

impl Derived for Subject {
    fn weight(&self) -> u64 {
        self.bytes
    }
}

/// The names in a path like `content.m\.mentions.user_ids` (appendices, "Dot-separated property
/// paths").
pub(super) fn path(written: &str) -> Vec<String> {
    let mut names = vec![String::new()];
    let mut chars = written.chars().peekable();
    while let Some(c) = chars.next() {
        let name = match c {
            '.' => {
                names.push(String::new());
                continue;
            }
            // A backslash before anything else stands for itself.
            '\\' => chars.next_if(|next| matches!(next, '.' | '\\')).unwrap_or('\\'),
            c => c,
        };
        if let Some(last) = names.last_mut() {
            last.push(name);
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_split_at_dots_that_are_not_escaped() {
        for (written, names) in [
            ("content.body", &["content", "body"][..]),
            (r"content.m\.mentions.user_ids", &["content", "m.mentions", "user_ids"]),
            (r"a\\.b\c", &[r"a\", r"b\c"]),
            ("type", &["type"]),
            ("", &[""]),
        ] {
            assert_eq!(path(written), names, "{written}");
        }
    }
}
