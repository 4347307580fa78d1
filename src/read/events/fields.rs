//! Parts of events, named by dot-separated paths (appendices, "Dot-separated property paths").

use std::collections::BTreeMap;

use serde_json::{Map, Value};

/// The requested fields of an event, as a tree of names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fields(BTreeMap<String, FieldSelection>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum FieldSelection {
    Whole,
    Parts(Fields),
}

impl Fields {
    /// The fields that `paths` name, for example `type` and `content.body`.
    pub fn new<P: AsRef<str>>(paths: &[P]) -> Self {
        let mut fields = Self::default();
        for path in paths {
            fields.add(&names(path.as_ref()));
        }
        fields
    }

    fn add(&mut self, path: &[String]) {
        let Some((name, rest)) = path.split_first() else { return };
        if rest.is_empty() {
            self.0.insert(name.clone(), FieldSelection::Whole);
            return;
        }
        let empty = || FieldSelection::Parts(Self::default());
        if let FieldSelection::Parts(parts) = self.0.entry(name.clone()).or_insert_with(empty) {
            parts.add(rest);
        }
    }

    /// The requested part of `object`. A path that does not exist adds nothing.
    pub fn of(&self, object: &Map<String, Value>) -> Map<String, Value> {
        let part = |(name, wanted): (&String, &FieldSelection)| {
            let value = object.get(name)?;
            let value = match wanted {
                FieldSelection::Whole => value.clone(),
                FieldSelection::Parts(parts) => {
                    let part = parts.of(value.as_object()?);
                    (!part.is_empty()).then_some(Value::Object(part))?
                }
            };
            Some((name.clone(), value))
        };
        self.0.iter().filter_map(part).collect()
    }
}

/// The names in a path. `\.` and `\\` stand for a dot and a backslash within a name; any other
/// backslash stands for itself.
fn names(path: &str) -> Vec<String> {
    let mut names = vec![String::new()];
    let mut chars = path.chars().peekable();
    while let Some(char) = chars.next() {
        if char == '.' {
            names.push(String::new());
            continue;
        }
        let escaped = chars.next_if(|next| char == '\\' && matches!(next, '.' | '\\'));
        if let Some(name) = names.last_mut() {
            name.push(escaped.unwrap_or(char));
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_path_is_split_at_dots_that_are_not_escaped() {
        for (path, expected) in [
            ("type", vec!["type"]),
            ("content.body", vec!["content", "body"]),
            (r"content.m\.relates_to", vec!["content", "m.relates_to"]),
            (r"content.m\\foo", vec!["content", r"m\foo"]),
            (r"a\\.b", vec![r"a\", "b"]),
            (r"a\\\.b", vec![r"a\.b"]),
            (r"a\x.b", vec![r"a\x", "b"]),
            (r"a\", vec![r"a\"]),
            ("", vec![""]),
            ("a..b", vec!["a", "", "b"]),
        ] {
            assert_eq!(names(path), expected, "{path}");
        }
    }

    #[test]
    fn only_named_fields_remain() {
        let event = json!({
            "type": "m.room.message", "sender": "@a:b", "": 1,
            "content": { "body": "hi", "m.relates_to": { "rel_type": "x", "event_id": "$1" } },
        });
        for (fields, expected) in [
            (vec![], json!({})),
            (vec!["type"], json!({ "type": "m.room.message" })),
            (vec!["content.body"], json!({ "content": { "body": "hi" } })),
            (
                vec![r"content.m\.relates_to.rel_type", "content.body"],
                json!({ "content": { "body": "hi", "m.relates_to": { "rel_type": "x" } } }),
            ),
            (vec!["content.m.relates_to"], json!({})),
            (vec!["content.none", "none", "sender.x"], json!({})),
            (vec!["content.body.x"], json!({})),
            (vec!["content.body", "content"], json!({ "content": event["content"] })),
            (vec!["content", "content.body"], json!({ "content": event["content"] })),
            (vec![""], json!({ "": 1 })),
        ] {
            let found = Fields::new(&fields).of(event.as_object().unwrap());
            assert_eq!(Value::Object(found), expected, "{fields:?}");
        }
    }
}
