//! Secrets in files that people write.

#[doc(hidden)]
pub mod testing;

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{self, EnumAccess, MapAccess, SeqAccess, Visitor},
};

/// A secret text. If the file has another type in its place, the error does not quote it as serde's
/// errors do, because that may be the secret, for example a number.
#[derive(Clone)]
pub struct SecretText(String);

impl SecretText {
    pub fn into_inner(self) -> String {
        self.0
    }

    pub fn expose(&self) -> &str {
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
