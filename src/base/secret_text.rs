//! Secrets in files that people write.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{self, EnumAccess, MapAccess, SeqAccess, Visitor},
};

/// A secret text. If the file has another type in its place, the error does not quote it as serde's
/// errors do, because that may be the secret, for example a number.
#[derive(Clone)]
pub(crate) struct SecretText(String);

impl SecretText {
    /// The text.
    pub(crate) fn into_inner(self) -> String {
        self.0
    }

    /// The text.
    pub(crate) fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for SecretText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(hidden)")
    }
}

impl<'de> Deserialize<'de> for SecretText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_string(Text)
    }
}

struct Text;

/// The error for everything that is not a text.
fn no_text<T, E: de::Error>() -> Result<T, E> {
    Err(E::custom("a secret is a text in quotes"))
}

impl<'de> Visitor<'de> for Text {
    type Value = SecretText;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text in quotes")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<SecretText, E> {
        Ok(SecretText(text.to_owned()))
    }

    fn visit_bool<E: de::Error>(self, _: bool) -> Result<SecretText, E> {
        no_text()
    }

    fn visit_i64<E: de::Error>(self, _: i64) -> Result<SecretText, E> {
        no_text()
    }

    fn visit_i128<E: de::Error>(self, _: i128) -> Result<SecretText, E> {
        no_text()
    }

    fn visit_u64<E: de::Error>(self, _: u64) -> Result<SecretText, E> {
        no_text()
    }

    fn visit_u128<E: de::Error>(self, _: u128) -> Result<SecretText, E> {
        no_text()
    }

    fn visit_f64<E: de::Error>(self, _: f64) -> Result<SecretText, E> {
        no_text()
    }

    fn visit_char<E: de::Error>(self, _: char) -> Result<SecretText, E> {
        no_text()
    }

    fn visit_bytes<E: de::Error>(self, _: &[u8]) -> Result<SecretText, E> {
        no_text()
    }

    fn visit_unit<E: de::Error>(self) -> Result<SecretText, E> {
        no_text()
    }

    fn visit_none<E: de::Error>(self) -> Result<SecretText, E> {
        no_text()
    }

    fn visit_seq<A: SeqAccess<'de>>(self, _: A) -> Result<SecretText, A::Error> {
        no_text()
    }

    fn visit_map<A: MapAccess<'de>>(self, _: A) -> Result<SecretText, A::Error> {
        no_text()
    }

    fn visit_enum<A: EnumAccess<'de>>(self, _: A) -> Result<SecretText, A::Error> {
        no_text()
    }
}

/// Wrong ways to write `secret` as the value of a key in TOML: the text after `key = `.
#[cfg(test)]
pub(crate) fn wrong_in_toml(secret: &str) -> Vec<String> {
    let mut wrong: Vec<String> = [
        "S",
        "\"S",
        "'S",
        "S\"",
        "\"S\" S",
        "\"S\"S",
        "\"S\\q\"",
        "\"\\S\"",
        "\"S\\u12\"",
        "\"S\nS\"",
        "\"\"\"S",
        "\"\"\"S\"\"",
        "\"S\" = 1",
        "S = S",
        "S.S",
        "[\"S\"",
        "[\"S\"]]",
        "[\"S\" \"S\"]",
        "[S]",
        "{ S }",
        "{ a = \"S\"",
        "{ a = \"S\" b }",
        "\"S\u{7}\"",
        "#S",
        "= \"S\"",
        "\"S\"\nkey = \"S\"",
        "[\"S\", 5]",
        "[[\"S\"]]",
        "{ a = \"S\" }",
        "{ S = 1 }",
    ]
    .iter()
    .map(|form| form.replace('S', secret))
    .collect();
    // As a number with the digits of the secret.
    let digits: String = secret.chars().filter(char::is_ascii_digit).collect();
    let numbers =
        ["D", "-D", "+D", "D.5", "0D", "D_", "Dx", "[D]", "{ a = D }", "1979-05-27TD", "0xD"];
    wrong.extend(numbers.iter().map(|form| form.replace('D', &digits)));
    wrong
}

/// Whether a message reveals more of a secret than any three of its characters.
#[cfg(test)]
pub(crate) fn is_told(secret: &str, message: &str) -> bool {
    let characters: Vec<char> = secret.chars().collect();
    characters.windows(4).any(|part| message.contains(&part.iter().collect::<String>()))
}
