//! The parameters of an act, as a form asks for them.
//!
//! An act that people can order by a form declares it beside its type, as [`Act::FORM`]. What they
//! fill in becomes the act's JSON here, so that forms and programs order acts in the same way.
//!
//! [`Act::FORM`]: super::act::Act::FORM

use serde_json::{Map, Value, json};

#[derive(Debug)]
pub struct Form {
    pub title: &'static str,
    pub(crate) fields: &'static [Field],
    /// Whether the act cannot be undone.
    pub is_final: bool,
    /// Whether the act can describe its effect beforehand.
    pub foretells: bool,
}

/// A parameter of an act.
#[derive(Debug)]
pub struct Field {
    /// Its name in the act. A slash separates the names of nested objects.
    pub name: &'static str,
    pub label: &'static str,
    pub kind: Kind,
}

/// What a field holds.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// Required text.
    Text,
    /// Optional text.
    TextIfAny,
    /// One of these texts.
    OneOf(&'static [&'static str]),
    /// A secret, which is asked for only when the act is confirmed; missing if empty.
    Secret,
    /// Yes or no.
    Flag,
    /// Yes, no, or unchanged.
    FlagIfAny,
    /// A whole number.
    Number,
    /// An optional whole number.
    NumberIfAny,
    /// Words with spaces between them; missing if there are none.
    Words,
    /// A fixed value, in JSON, that is not asked for.
    Fixed(&'static str),
    /// A number that may stay as it is (empty) or be cleared (`none`).
    Change,
    /// Text that may stay as it is (empty) or be cleared (`none`).
    ChangeText,
    /// Files: some by their ids, those of a user, or those of a room.
    Media,
}

/// A field is missing or invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is missing or invalid.")]
pub struct InvalidField(pub(crate) &'static str);

impl Form {
    /// The fields that are filled in at first, and shown.
    pub fn open(&self) -> impl Iterator<Item = &Field> {
        self.fields.iter().filter(|field| !matches!(field.kind, Kind::Fixed(_) | Kind::Secret))
    }

    /// The secrets, which are asked for when the act is confirmed.
    pub fn secrets(&self) -> impl Iterator<Item = &Field> {
        self.fields.iter().filter(|field| matches!(field.kind, Kind::Secret))
    }

    /// The act's JSON, from what was filled in.
    pub fn act(&self, given: impl Fn(&str) -> Option<String>) -> Result<Value, InvalidField> {
        let mut act = json!({});
        for field in self.fields {
            let text = given(field.name).unwrap_or_default();
            if let Some(value) = field.value(text.trim())? {
                put(&mut act, field.name, value);
            }
        }
        Ok(act)
    }
}

impl Form {
    /// Fills in what is not asked for, and flags that were left out.
    pub fn complete(&self, act: &mut Map<String, Value>) {
        let mut whole = Value::Object(std::mem::take(act));
        for field in self.fields {
            let given = match field.kind {
                Kind::Fixed(json) => serde_json::from_str(json).ok(),
                Kind::Flag => Some(Value::Bool(false)),
                _ => None,
            };
            let is_there = field.name.split('/').try_fold(&whole, |value, part| value.get(part));
            if let Some(given) = given.filter(|_| is_there.is_none()) {
                put(&mut whole, field.name, given);
            }
        }
        if let Value::Object(whole) = whole {
            *act = whole;
        }
    }
}

impl Kind {
    /// What programs give for it, and whether they have to.
    pub const fn in_words(self) -> (&'static str, bool) {
        match self {
            Self::Text => ("text", true),
            Self::OneOf(_) => ("one of several words", true),
            Self::Number => ("number", true),
            Self::Media => ("object with `id`, `ids`, `user` or `room`", true),
            Self::TextIfAny | Self::Secret => ("text", false),
            Self::Flag | Self::FlagIfAny => ("boolean", false),
            Self::NumberIfAny => ("number", false),
            Self::Words => ("array of texts", false),
            Self::Fixed(_) => ("fixed", false),
            Self::Change => ("`clear`, or object with the number `to`", false),
            Self::ChangeText => ("`clear`, or object with the text `to`", false),
        }
    }
}

impl Field {
    pub(crate) const fn new(name: &'static str, label: &'static str, kind: Kind) -> Self {
        Self { name, label, kind }
    }

    /// The value of a text; none if the field may be and is left out.
    fn value(&self, text: &str) -> Result<Option<Value>, InvalidField> {
        let unfit = || InvalidField(self.label);
        let number = || text.parse::<u64>().map(Value::from).map_err(|_| unfit());
        Ok(Some(match self.kind {
            Kind::Text if text.is_empty() => return Err(unfit()),
            Kind::OneOf(texts) if !texts.contains(&text) => return Err(unfit()),
            Kind::Text | Kind::OneOf(_) => text.into(),
            Kind::Flag => (text == "yes").into(),
            Kind::FlagIfAny if matches!(text, "yes" | "no") => (text == "yes").into(),
            Kind::Number => number()?,
            Kind::Fixed(json) => serde_json::from_str(json).map_err(|_| unfit())?,
            _ if text.is_empty() => return Ok(None),
            Kind::TextIfAny | Kind::Secret => text.into(),
            Kind::FlagIfAny => return Err(unfit()),
            Kind::NumberIfAny => number()?,
            Kind::Words => text.split_whitespace().collect(),
            Kind::Change | Kind::ChangeText if text == "none" => "clear".into(),
            Kind::Change => json!({ "to": number()? }),
            Kind::ChangeText => json!({ "to": text }),
            Kind::Media => {
                let of = match text.chars().next() {
                    Some('@') => "user",
                    Some('!' | '#') => "room",
                    _ if text.contains(char::is_whitespace) => {
                        return Ok(Some(
                            json!({ "ids": text.split_whitespace().collect::<Vec<_>>() }),
                        ));
                    }
                    _ => "id",
                };
                json!({ of: text })
            }
        }))
    }
}

/// Puts a value at the path in its name.
fn put(act: &mut Value, name: &str, value: Value) {
    let mut place = act;
    for part in name.split('/') {
        if !place.is_object() {
            *place = Value::Object(Map::new());
        }
        place = &mut place[part];
    }
    *place = value;
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORM: Form = Form {
        title: "Try",
        fields: &[
            Field::new("user", "User", Kind::Text),
            Field::new("content/body", "Text", Kind::TextIfAny),
            Field::new("admin", "Administrator", Kind::FlagIfAny),
            Field::new("devices", "Devices", Kind::Words),
            Field::new("uses", "Uses", Kind::Change),
            Field::new("of", "Files", Kind::Media),
        ],
        is_final: false,
        foretells: true,
    };

    fn filled(texts: &[(&str, &str)]) -> Result<Value, InvalidField> {
        FORM.act(|name| {
            let found = texts.iter().find(|(of, _)| *of == name);
            found.map(|(_, text)| (*text).to_owned())
        })
    }

    #[test]
    fn what_is_filled_in_becomes_an_act() {
        assert_eq!(filled(&[("user", " ann ")]), Ok(json!({ "user": "ann" })));
        let all = filled(&[
            ("user", "ann"),
            ("content/body", "hello"),
            ("admin", "no"),
            ("devices", "A  B"),
            ("uses", "7"),
            ("of", "@ann:a.example"),
        ]);
        let expected = json!({
            "user": "ann", "content": { "body": "hello" }, "admin": false, "devices": ["A", "B"],
            "uses": { "to": 7 }, "of": { "user": "@ann:a.example" },
        });
        assert_eq!(all, Ok(expected));
        let several = filled(&[("user", "a"), ("of", " one  two ")]);
        assert_eq!(several, Ok(json!({ "user": "a", "of": { "ids": ["one", "two"] } })));
        let cleared = filled(&[("user", "a"), ("uses", "none"), ("of", "!r:a.example")]);
        assert_eq!(
            cleared,
            Ok(json!({ "user": "a", "uses": "clear", "of": { "room": "!r:a.example" } }))
        );
        for wrong in [&[][..], &[("user", "a"), ("uses", "many")], &[("user", "a"), ("admin", "x")]]
        {
            assert!(filled(wrong).is_err(), "{wrong:?}");
        }
    }
}
