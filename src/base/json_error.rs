//! Describes what is wrong with JSON that cannot be decoded: where, and what is expected there, in
//! the terms of JSON. serde names the server's own types instead.

/// Describes an error of decoding `text`.
pub fn describe(error: &serde_json::Error, text: &[u8]) -> String {
    let whole = error.to_string();
    let message = match whole.rsplit_once(" at line ") {
        Some((message, _)) if error.line() > 0 => message,
        _ => &whole,
    };
    let path = offset(text, error.line(), error.column())
        .and_then(|offset| path_to(message, text, offset))
        .filter(|path| !path.is_empty());
    let what = plain(message);
    match path {
        Some(path) if what.starts_with("missing field") => format!("{what} in `{path}`"),
        Some(path) => format!("`{path}`: {what}"),
        None => what,
    }
}

/// The path to the value that an error is about. `None` if `offset` is at another value: an error
/// in a part that was decoded by itself has its position in that part.
fn path_to(message: &str, text: &[u8], offset: usize) -> Option<String> {
    let (before, after) = text.split_at(offset);
    let (before, next) = (before.trim_ascii_end(), after.trim_ascii_start().first());
    let found = of_invalid(message).unwrap_or(message);
    let ends = |with: &str| before.ends_with(with.as_bytes());
    let begins = match found.split([' ', ',']).next() {
        Some("map") => (next == Some(&b'{')).then_some(true),
        Some("sequence") => (next == Some(&b'[')).then_some(true),
        Some("missing") => ends("}").then_some(false),
        Some("string") => ends("\"").then_some(false),
        Some("null" | "unit" | "Option") => ends("null").then_some(false),
        Some("boolean") => (ends("true") || ends("false")).then_some(false),
        Some("integer" | "floating") => {
            before.last().is_some_and(u8::is_ascii_digit).then_some(false)
        }
        Some("invalid") => ends("]").then_some(false),
        _ => None,
    };
    begins.map(|begins| path_at(before, begins))
}

/// What an error says of a value that is not the expected one.
fn of_invalid(message: &str) -> Option<&str> {
    message.strip_prefix("invalid type: ").or_else(|| message.strip_prefix("invalid value: "))
}

/// The number of bytes before a position in `text`, as serde_json counts lines and columns.
fn offset(text: &[u8], line: usize, column: usize) -> Option<usize> {
    let before = line.checked_sub(1)?;
    let starts = text.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at + 1);
    let start = std::iter::once(0).chain(starts).nth(before)?;
    Some((start + column).min(text.len()))
}

/// An object or an array that is not at its end.
enum Open {
    /// With the key of the member that was read last.
    Object(Option<String>),
    /// With the number of elements that have begun, and whether the last one was read last.
    Array(usize, bool),
}

impl Open {
    /// A value in it begins.
    fn begin(&mut self) {
        if let Self::Array(count, is_last) = self
            && !*is_last
        {
            (*count, *is_last) = (*count + 1, true);
        }
    }

    /// What follows is no longer about the last value.
    fn next(&mut self) {
        match self {
            Self::Object(key) => *key = None,
            Self::Array(_, is_last) => *is_last = false,
        }
    }

    fn segment(self) -> Option<String> {
        match self {
            Self::Object(key) => key,
            Self::Array(count, is_last) => is_last.then(|| (count - 1).to_string()),
        }
    }
}

/// The path to the value that ends with this text, or begins after it.
fn path_at(text: &[u8], begins: bool) -> String {
    let (mut open, mut string, mut rest) = (Vec::<Open>::new(), None, text);
    while let [byte, after @ ..] = rest {
        rest = after;
        match byte {
            b'{' | b'[' => {
                open.last_mut().into_iter().for_each(Open::begin);
                open.push(if *byte == b'{' { Open::Object(None) } else { Open::Array(0, false) });
            }
            b'}' | b']' => drop(open.pop()),
            b',' => open.last_mut().into_iter().for_each(Open::next),
            b':' => {
                if let (Some(Open::Object(key)), Some(name)) = (open.last_mut(), string.take()) {
                    *key = Some(name);
                }
            }
            b'"' => {
                open.last_mut().into_iter().for_each(Open::begin);
                let mut is_escaped = false;
                let end = rest.iter().position(|byte| {
                    let is_end = *byte == b'"' && !is_escaped;
                    is_escaped = *byte == b'\\' && !is_escaped;
                    is_end
                });
                let end = end.unwrap_or(rest.len());
                string = Some(String::from_utf8_lossy(&rest[..end]).into_owned());
                rest = rest.get(end + 1..).unwrap_or_default();
            }
            byte if byte.is_ascii_whitespace() => {}
            _ => open.last_mut().into_iter().for_each(Open::begin),
        }
    }
    if begins {
        open.last_mut().into_iter().for_each(Open::begin);
    }
    open.into_iter().filter_map(Open::segment).collect::<Vec<_>>().join(".")
}

/// An error of serde in the terms of JSON.
fn plain(error: &str) -> String {
    let Some((found, expected)) = error.rsplit_once(", expected ") else {
        return error.to_owned();
    };
    if found.starts_with("invalid length ") && expected.starts_with("struct ") {
        return "expected an object, found an array".to_owned();
    }
    match of_invalid(found) {
        Some(found) => format!("expected {}, found {}", of_type(expected), of_value(found)),
        None => error.to_owned(),
    }
}

/// The JSON type that serde names by a Rust type.
fn of_type(expected: &str) -> &str {
    let name = expected.strip_prefix("a ").or_else(|| expected.strip_prefix("an "));
    match name.unwrap_or(expected) {
        "map" => "an object",
        "sequence" => "an array",
        "borrowed string" => "a string",
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number that is not negative",
        "i8" | "i16" | "i32" | "i64" | "isize" | "integer" => "a whole number",
        "f32" | "f64" => "a number",
        "unit" => "null",
        of if of.starts_with("struct ") || of.starts_with("internally tagged enum ") => "an object",
        of if of.starts_with("tuple") => "an array",
        of if of.starts_with("enum ") => "a string",
        _ => expected,
    }
}

/// The JSON value that serde describes.
fn of_value(found: &str) -> String {
    let number = found.strip_prefix("integer `").or_else(|| found.strip_prefix("floating point `"));
    let other = found.strip_prefix("boolean `");
    match (found, number.and_then(|number| number.strip_suffix('`'))) {
        (_, Some(number)) => format!("the number {number}"),
        ("map", _) => "an object".to_owned(),
        ("sequence", _) => "an array".to_owned(),
        ("unit value" | "unit" | "null" | "Option value", _) => "null".to_owned(),
        _ => match other.and_then(|of| of.strip_suffix('`')) {
            Some(boolean) => boolean.to_owned(),
            None if found.starts_with("string ") => format!("the {found}"),
            None => found.to_owned(),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    struct Outer {
        #[serde(rename = "room")]
        _room: Option<Inner>,
        #[serde(rename = "by_id", default)]
        _by_id: BTreeMap<String, Vec<Inner>>,
    }

    #[derive(Debug, Deserialize)]
    struct Inner {
        #[serde(rename = "limit")]
        _limit: u8,
        #[serde(rename = "types", default)]
        _types: Vec<String>,
    }

    #[test]
    fn an_error_names_the_field_and_what_is_expected_there() {
        let whole = "expected a whole number that is not negative";
        for (text, error) in [
            (r#"{"room":[]}"#, "`room`: expected an object, found an array"),
            (r#"{"room":5}"#, "`room`: expected an object, found the number 5"),
            (
                r#"{"room":{"limit":"x"}}"#,
                &format!("`room.limit`: {whole}, found the string \"x\""),
            ),
            (r#"{"room":{"limit":-1}}"#, &format!("`room.limit`: {whole}, found the number -1")),
            (r#"{"room":{"limit":1.5}}"#, &format!("`room.limit`: {whole}, found the number 1.5")),
            (
                r#"{"room":{"limit":" at line , expected 5"}}"#,
                &format!("`room.limit`: {whole}, found the string \" at line , expected 5\""),
            ),
            (
                r#"{"room":{"limit":1,"types":{}}}"#,
                "`room.types`: expected an array, found an object",
            ),
            (
                r#"{"room":{"limit":1,"types":["a",true]}}"#,
                "`room.types.1`: expected a string, found true",
            ),
            (
                r#"{"room":{"limit":1,"types":[{}]}}"#,
                "`room.types.0`: expected a string, found an object",
            ),
            ("{\"room\":\n {\"types\":[null]}}", "`room.types.0`: expected a string, found null"),
            (r#"{"room":{"types":["a, {"]}}"#, "missing field `limit` in `room`"),
            (
                r#"{"by_id":{"a\"b":[{"limit":1},{}]}}"#,
                r#"missing field `limit` in `by_id.a\"b.1`"#,
            ),
            ("[5]", "`0`: expected an object, found the number 5"),
            ("5", "expected an object, found the number 5"),
        ] {
            let found = serde_json::from_str::<Outer>(text).unwrap_err();
            let described = describe(&found, text.as_bytes());
            assert_eq!(described, error, "{text}: {found}");
        }
    }

    #[test]
    fn a_part_that_was_decoded_by_itself_blames_no_other_field() {
        let part = r#"{"limit":true}"#;
        let found = serde_json::from_str::<Inner>(part).unwrap_err();
        let whole = br#"{"password":"long enough","room":{"limit":true}}"#;
        let described = describe(&found, whole);
        assert_eq!(described, "expected a whole number that is not negative, found true");
    }

    #[test]
    fn an_error_without_a_place_is_described_as_well() {
        let found = serde_json::from_value::<Outer>(serde_json::json!({ "room": 5 })).unwrap_err();
        assert_eq!(describe(&found, b""), "expected an object, found the number 5");
    }
}
