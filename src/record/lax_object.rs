//! JSON objects with whatever numbers a room's version allows: events in federation format, and
//! their content.
//!
//! ruma hashes, redacts and signs events as canonical JSON, which knows integers of 53 bits only.
//! In rooms of versions 1 to 5, other numbers are allowed, and count as they are written. An object
//! that has some is handled here: ruma sees a zero in place of each.

use std::{
    collections::BTreeMap,
    ops::{Deref, DerefMut},
};

use base64::{
    Engine as _,
    engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD},
};
use ruma::{
    CanonicalJsonObject, CanonicalJsonValue, Int, OwnedEventId, SigningKeyAlgorithm,
    canonical_json::{RedactingSerializer, redact},
    room_version_rules::{EventIdFormatVersion, RedactionRules, RoomVersionRules},
    serde::{Base64, base64::Standard},
    signatures::{
        Ed25519KeyPair, KeyPair as _, PublicKeyMap, Verified, content_hash, reference_hash,
        required_server_signatures_to_verify_event, verify_canonical_json_bytes, verify_event,
    },
    state_res::check_pdu_format,
};
use serde::{Deserialize, Deserializer, Serialize, Serializer, ser::Error as _};
use serde_json::value::RawValue;
use sha2::{Digest as _, Sha256};

use super::event_format;
use logcabin_base::{
    canonical::{
        NotCanonical, Numbers, Token, canonical, check, depth, is_readable, is_strict, tokens,
    },
    limits,
};

/// Members that the content hash does not cover.
const NOT_HASHED: [&str; 3] = ["hashes", "signatures", "unsigned"];

/// Members that the signatures and the event's id do not cover.
const NOT_SIGNED: [&str; 2] = ["signatures", "unsigned"];

/// A JSON object that may have numbers that canonical JSON does not have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LaxObject {
    /// The object, with a zero in place of each of these numbers.
    object: CanonicalJsonObject,
    /// The numbers, if there are any.
    odd: Option<Box<OddNumbers>>,
}

/// Where in a value there are such numbers, and which.
#[derive(Clone, Debug, PartialEq, Eq)]
enum OddNumbers {
    Number(Box<str>),
    Members(BTreeMap<String, Self>),
    Elements(BTreeMap<usize, Self>),
}

/// Why something is not such an object, or not an event, or not one with valid signatures.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub struct LaxError(String);

impl LaxError {
    pub(super) fn of(why: impl std::fmt::Display) -> Self {
        Self(why.to_string())
    }
}

impl From<CanonicalJsonObject> for LaxObject {
    fn from(object: CanonicalJsonObject) -> Self {
        Self { object, odd: None }
    }
}

impl<'de> Deserialize<'de> for LaxObject {
    /// Reads an object whose numbers are canonical.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        CanonicalJsonObject::deserialize(deserializer).map(Self::from)
    }
}

impl Deref for LaxObject {
    type Target = CanonicalJsonObject;

    fn deref(&self) -> &CanonicalJsonObject {
        &self.object
    }
}

impl DerefMut for LaxObject {
    fn deref_mut(&mut self) -> &mut CanonicalJsonObject {
        &mut self.object
    }
}

impl LaxObject {
    /// Parses an object with any finite numbers, which others have hashed as they are written.
    pub fn parse(text: &str) -> Result<Self, LaxError> {
        Self::parse_as(text, Numbers::AsWritten)
    }

    /// Parses an object, and writes its numbers as Python does: Synapse reads and writes them
    /// before it hashes them.
    pub fn parse_to_hash(text: &str) -> Result<Self, LaxError> {
        Self::parse_as(text, Numbers::Lax)
    }

    /// Parses an event. Parts that nest too deeply, or have numbers beyond the range of doubles,
    /// are left out. If they are in its content, the content hash is then wrong, and the event
    /// counts without its content. It cannot be refused, because others accept it as it is and
    /// build on it.
    pub fn parse_event(text: &str) -> Result<Self, LaxError> {
        Self::parse(text).or_else(|why| Self::readable_part(text).unwrap_or(Err(why)))
    }

    /// The event without numbers that others cannot hold, as [`Self::parse_event`] leaves them out.
    /// Only rooms of versions that allow more numbers than canonical JSON have such events.
    pub fn without_unreadable(self) -> Result<Self, LaxError> {
        if self.odd.is_none() {
            return Ok(self);
        }
        let text = self.to_text();
        if is_readable(&text) { Ok(self) } else { Self::readable_part(&text).unwrap_or(Ok(self)) }
    }

    /// The part of an event that others can read; `None` if it is not an object.
    fn readable_part(text: &str) -> Option<Result<Self, LaxError>> {
        let mut members = readable(text, limits::ITEM_DEPTH, &["content"])?;
        if let Some(content) = members.get_mut("content") {
            let kept = readable(content.get(), limits::ITEM_DEPTH - 1, &[]);
            *content = serde_json::value::to_raw_value(&kept.unwrap_or_default()).ok()?;
        }
        let text = serde_json::to_string(&members).ok()?;
        Some(Self::parse(&text))
    }

    fn parse_as(text: &str, numbers: Numbers) -> Result<Self, LaxError> {
        if is_deep(text, limits::ITEM_DEPTH)? {
            return Err(LaxError::of(NotCanonical::TooDeep));
        }
        let error = match serde_json::from_str(text) {
            Ok(object) => return Ok(Self { object, odd: None }),
            Err(error) => error,
        };
        // Its numbers may be the reason.
        check(text, Numbers::Lax).map_err(|why| match why {
            NotCanonical::Number(_) => LaxError::of(why),
            _ => LaxError::of(error),
        })?;
        let text = canonical(text, numbers).map_err(LaxError::of)?;
        let mut tokens = tokens(&text);
        match value(&mut tokens) {
            Some((CanonicalJsonValue::Object(object), odd)) => {
                Ok(Self { object, odd: odd.map(Box::new) })
            }
            _ => Err(LaxError::of("it is not an object")),
        }
    }

    /// The object, for one that is known to have canonical numbers only.
    pub fn into_strict(self) -> CanonicalJsonObject {
        self.object
    }

    /// Removes a member, with its numbers.
    pub fn remove(&mut self, name: &str) -> Option<CanonicalJsonValue> {
        if let Some(OddNumbers::Members(members)) = self.odd.as_deref_mut() {
            members.remove(name);
            if members.is_empty() {
                self.odd = None;
            }
        }
        self.object.remove(name)
    }

    pub fn insert_object(&mut self, name: &str, member: Self) {
        self.remove(name);
        self.object.insert(name.to_owned(), CanonicalJsonValue::Object(member.object));
        let odd = member.odd.map(|odd| (name.to_owned(), *odd));
        if let Some(OddNumbers::Members(members)) = self.odd.as_deref_mut() {
            members.extend(odd);
        } else if let Some(odd) = odd {
            self.odd = Some(Box::new(OddNumbers::Members([odd].into())));
        }
    }

    /// Whether it has numbers that canonical JSON does not have, which room version 6 and later do
    /// not allow.
    pub const fn has_odd_numbers(&self) -> bool {
        self.odd.is_some()
    }

    /// Its text, in canonical form.
    pub(super) fn to_text(&self) -> String {
        self.text_of(&self.object)
    }

    /// The same, to be embedded in other JSON.
    ///
    /// # Errors
    /// Never, as it is JSON.
    pub fn to_raw(&self) -> serde_json::Result<Box<RawValue>> {
        match self.odd {
            None => serde_json::value::to_raw_value(&self.object),
            Some(_) => RawValue::from_string(self.to_text()),
        }
    }

    /// The text of `object`, a part of it, with its numbers.
    fn text_of(&self, object: &CanonicalJsonObject) -> String {
        let mut out = String::new();
        write_object(&mut out, object, self.odd.as_deref());
        out
    }

    /// Redacts it.
    ///
    /// # Errors
    /// When it lacks a member that every event has.
    pub fn redacted(self, rules: &RedactionRules) -> Result<Self, LaxError> {
        let object = redact(self.object, rules, None).map_err(LaxError::of)?;
        Ok(Self { object, odd: self.odd })
    }

    /// Checks its members, their types and sizes.
    pub fn check_format(&self, rules: &RoomVersionRules) -> Result<(), LaxError> {
        if event_format::has_chosen_ids(rules) {
            event_format::check(&self.object)?;
        }
        if self.odd.is_none() {
            return check_pdu_format(&self.object, &rules.event_format).map_err(LaxError);
        }
        if rules.authorization.strict_canonical_json {
            return Err(LaxError::of("it has numbers that its room version does not allow"));
        }
        if self.to_text().len() > limits::EVENT_BYTES {
            return Err(LaxError::of("it is too large"));
        }
        let mut object = self.object.clone();
        if let Some(OddNumbers::Number(depth)) = self.odd_member("depth") {
            if !depth.bytes().all(|byte| byte.is_ascii_digit()) {
                return Err(LaxError::of("its depth is not a natural number"));
            }
            // Depths end where the integers of canonical JSON do.
            object.insert("depth".to_owned(), CanonicalJsonValue::Integer(Int::MAX));
        }
        check_pdu_format(&object, &rules.event_format).map_err(LaxError)
    }

    fn odd_member(&self, name: &str) -> Option<&OddNumbers> {
        match self.odd.as_deref() {
            Some(OddNumbers::Members(members)) => members.get(name),
            _ => None,
        }
    }

    /// The SHA-256 of its content (server-server API, "Calculating the content hash for an event"),
    /// in unpadded base64.
    pub(crate) fn content_hash(&self) -> Result<String, LaxError> {
        if self.odd.is_none() {
            return Ok(content_hash(&self.object).map_err(LaxError::of)?.encode());
        }
        let mut object = self.object.clone();
        object.retain(|name, _| !NOT_HASHED.contains(&name.as_str()));
        Ok(STANDARD_NO_PAD.encode(Sha256::digest(self.text_of(&object))))
    }

    pub fn add_content_hash(&mut self) -> Result<(), LaxError> {
        let hash = CanonicalJsonValue::String(self.content_hash()?);
        let hash = CanonicalJsonObject::from([("sha256".to_owned(), hash)]);
        self.object.insert("hashes".to_owned(), CanonicalJsonValue::Object(hash));
        Ok(())
    }

    /// Its reference hash, in the base64 of its room version: its id without the sigil.
    ///
    /// # Errors
    /// When it lacks a member that every event has, or is too large.
    pub fn reference_hash(&self, rules: &RoomVersionRules) -> Result<String, LaxError> {
        if self.odd.is_none() {
            return reference_hash(&self.object, rules).map_err(LaxError::of);
        }
        let hash = Sha256::digest(self.signed_text(&rules.redaction)?);
        Ok(match rules.event_id_format {
            EventIdFormatVersion::V1 | EventIdFormatVersion::V2 => STANDARD_NO_PAD.encode(hash),
            _ => URL_SAFE_NO_PAD.encode(hash),
        })
    }

    /// Its id: the one that its hash gives it, or, in rooms of versions 1 and 2, the one that its
    /// maker chose.
    ///
    /// # Errors
    /// As for [`Self::reference_hash`], or when its maker chose none that is allowed.
    pub fn event_id(&self, rules: &RoomVersionRules) -> Result<OwnedEventId, LaxError> {
        if event_format::has_chosen_ids(rules) {
            return event_format::chosen_id(&self.object);
        }
        let id = format!("${}", self.reference_hash(rules)?);
        OwnedEventId::try_from(id).map_err(LaxError::of)
    }

    /// What signatures cover.
    fn signed_text(&self, rules: &RedactionRules) -> Result<String, LaxError> {
        if self.odd.is_none() {
            let serializer = RedactingSerializer::new().rules(rules);
            let serializer = serializer.custom_redacted_root_fields(&NOT_SIGNED);
            return serializer.serialize(&self.object).map_err(LaxError::of);
        }
        let mut object = redact(self.object.clone(), rules, None).map_err(LaxError::of)?;
        object.retain(|name, _| !NOT_SIGNED.contains(&name.as_str()));
        Ok(self.text_of(&object))
    }

    /// Verifies the signatures that it needs. Returns whether its content matches its content hash.
    ///
    /// # Errors
    /// When a signature is missing or wrong.
    pub fn verify(&self, keys: &PublicKeyMap, rules: &RoomVersionRules) -> Result<bool, LaxError> {
        if self.odd.is_none() {
            let verified = verify_event(keys, &self.object, rules).map_err(LaxError::of)?;
            return Ok(verified == Verified::All);
        }
        let servers = required_server_signatures_to_verify_event(&self.object, &rules.signatures);
        let text = self.signed_text(&rules.redaction)?;
        for server in servers.map_err(LaxError::of)? {
            self.verify_one(server.as_str(), keys, &text)?;
        }
        Ok(self.has_own_content())
    }

    /// Whether its content matches its content hash.
    pub fn has_own_content(&self) -> bool {
        let said = member(&self.object, &["hashes", "sha256"]).and_then(CanonicalJsonValue::as_str);
        let said = said.and_then(|said| Base64::<Standard>::parse(said).ok());
        said.is_some_and(|said| self.content_hash().is_ok_and(|hash| hash == said.encode()))
    }

    /// Verifies the signatures of a homeserver with those of its keys that are known.
    fn verify_one(&self, server: &str, keys: &PublicKeyMap, text: &str) -> Result<(), LaxError> {
        let missing = || LaxError(format!("there is no valid signature of {server}"));
        let signatures = member(&self.object, &["signatures", server]);
        let signatures = signatures.and_then(CanonicalJsonValue::as_object).ok_or_else(missing)?;
        let keys = keys.get(server).ok_or_else(missing)?;
        let ed25519 = SigningKeyAlgorithm::Ed25519;
        let mut is_verified = false;
        for (key_id, signature) in signatures {
            let Some(key) = keys.get(key_id).filter(|_| key_id.starts_with("ed25519:")) else {
                continue;
            };
            let signature = signature.as_str().ok_or_else(missing)?;
            let signature = Base64::<Standard>::parse(signature).map_err(LaxError::of)?;
            let (key, signature) = (key.as_bytes(), signature.as_bytes());
            let verified = verify_canonical_json_bytes(&ed25519, key, signature, text.as_bytes());
            verified.map_err(LaxError::of)?;
            is_verified = true;
        }
        if is_verified { Ok(()) } else { Err(missing()) }
    }

    /// Whether `server` has signed it with this key, and perhaps with others.
    pub fn is_signed_with(
        &self,
        server: &str,
        key_id: &str,
        key: &Base64,
        rules: &RedactionRules,
    ) -> bool {
        let keys = BTreeMap::from([(key_id.to_owned(), key.clone())]);
        let keys = PublicKeyMap::from([(server.to_owned(), keys)]);
        let text = self.signed_text(rules);
        text.is_ok_and(|text| self.verify_one(server, &keys, &text).is_ok())
    }

    /// Sets a signature (server-server API, "Signing Events"). It is the same before and after a
    /// redaction.
    ///
    /// # Errors
    /// When it lacks a member that every event has.
    pub(super) fn sign(
        &mut self,
        server: &str,
        pair: &Ed25519KeyPair,
        rules: &RedactionRules,
    ) -> Result<(), LaxError> {
        let (key_id, signature) = pair.sign(self.signed_text(rules)?.as_bytes()).into_parts();
        let signature = Base64::<Standard, _>::new(signature).encode();
        let wrong = || LaxError("its signatures are no object".to_owned());
        let all = self.object.entry("signatures".to_owned());
        let all = all.or_insert_with(empty).as_object_mut().ok_or_else(wrong)?;
        let own = all.entry(server.to_owned()).or_insert_with(empty);
        let own = own.as_object_mut().ok_or_else(wrong)?;
        own.insert(key_id.to_string(), CanonicalJsonValue::String(signature));
        Ok(())
    }
}

impl Serialize for LaxObject {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.odd {
            None => self.object.serialize(serializer),
            Some(_) => self.to_raw().map_err(S::Error::custom)?.serialize(serializer),
        }
    }
}

/// Whether a JSON text nests deeper than this.
fn is_deep(text: &str, most: usize) -> Result<bool, LaxError> {
    let opening = |byte: &u8| matches!(byte, b'{' | b'[');
    if text.bytes().filter(opening).count() <= most {
        return Ok(false);
    }
    Ok(depth(text).map_err(LaxError::of)? > most)
}

/// The members of an object that others can read and that nest at most `most` levels deep with it,
/// and the `others` whatever they contain; `None` if it is not an object.
fn readable(text: &str, most: usize, others: &[&str]) -> Option<BTreeMap<String, Box<RawValue>>> {
    let mut members: BTreeMap<String, Box<RawValue>> = serde_json::from_str(text).ok()?;
    members.retain(|name, member| {
        let is_deep = || is_deep(member.get(), most - 1).unwrap_or(true);
        others.contains(&name.as_str()) || (is_readable(member.get()) && !is_deep())
    });
    Some(members)
}

fn empty() -> CanonicalJsonValue {
    CanonicalJsonValue::Object(CanonicalJsonObject::new())
}

/// A member of an object, by the names that lead to it.
fn member<'a>(object: &'a CanonicalJsonObject, names: &[&str]) -> Option<&'a CanonicalJsonValue> {
    let (first, rest) = names.split_first()?;
    rest.iter().try_fold(object.get(*first)?, |value, name| value.as_object()?.get(*name))
}

/// The next value of a text in canonical form, and its odd numbers.
fn value<'a>(
    tokens: &mut impl Iterator<Item = Token<'a>>,
) -> Option<(CanonicalJsonValue, Option<OddNumbers>)> {
    first_value(tokens.next()?, tokens)
}

fn first_value<'a>(
    first: Token<'a>,
    tokens: &mut impl Iterator<Item = Token<'a>>,
) -> Option<(CanonicalJsonValue, Option<OddNumbers>)> {
    Some(match first {
        Token::Number(number) if !is_strict(number) => {
            (CanonicalJsonValue::Integer(Int::default()), Some(OddNumbers::Number(number.into())))
        }
        Token::Number(number) => (CanonicalJsonValue::Integer(number.parse().ok()?), None),
        Token::Text(text) => (CanonicalJsonValue::String(text.into_owned()), None),
        Token::Word("null") => (CanonicalJsonValue::Null, None),
        Token::Word(word) => (CanonicalJsonValue::Bool(word == "true"), None),
        Token::BeginArray => {
            let (mut elements, mut odd) = (Vec::new(), BTreeMap::new());
            loop {
                let next = tokens.next()?;
                if matches!(next, Token::End) {
                    break;
                }
                let (element, of) = first_value(next, tokens)?;
                odd.extend(of.map(|of| (elements.len(), of)));
                elements.push(element);
            }
            let odd = (!odd.is_empty()).then_some(OddNumbers::Elements(odd));
            (CanonicalJsonValue::Array(elements), odd)
        }
        Token::BeginObject => {
            let (mut members, mut odd) = (CanonicalJsonObject::new(), BTreeMap::new());
            while let Token::Text(name) = tokens.next()? {
                let (member, of) = value(tokens)?;
                odd.extend(of.map(|of| (name.to_string(), of)));
                members.insert(name.into_owned(), member);
            }
            let odd = (!odd.is_empty()).then_some(OddNumbers::Members(odd));
            (CanonicalJsonValue::Object(members), odd)
        }
        Token::End => return None,
    })
}

fn write_object(out: &mut String, object: &CanonicalJsonObject, odd: Option<&OddNumbers>) {
    out.push('{');
    for (at, (name, value)) in object.iter().enumerate() {
        if at > 0 {
            out.push(',');
        }
        out.push_str(&CanonicalJsonValue::String(name.clone()).to_string());
        out.push(':');
        let of = match odd {
            Some(OddNumbers::Members(members)) => members.get(name),
            _ => None,
        };
        write_value(out, value, of);
    }
    out.push('}');
}

fn write_value(out: &mut String, value: &CanonicalJsonValue, odd: Option<&OddNumbers>) {
    match (value, odd) {
        (CanonicalJsonValue::Integer(_), Some(OddNumbers::Number(number))) => out.push_str(number),
        (CanonicalJsonValue::Object(object), Some(_)) => write_object(out, object, odd),
        (CanonicalJsonValue::Array(elements), Some(OddNumbers::Elements(of))) => {
            out.push('[');
            for (at, element) in elements.iter().enumerate() {
                if at > 0 {
                    out.push(',');
                }
                write_value(out, element, of.get(&at));
            }
            out.push(']');
        }
        (value, _) => out.push_str(&value.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use ruma::RoomVersionId;

    use super::*;

    #[derive(Deserialize)]
    struct Vectors {
        key: String,
        events: Vec<Vector>,
    }

    #[derive(Deserialize)]
    struct Vector {
        version: RoomVersionId,
        pdu: String,
        event_id: OwnedEventId,
        redacted: String,
    }

    /// Events that Synapse 1.163 has hashed and signed.
    fn vectors() -> (PublicKeyMap, Vec<Vector>) {
        let Vectors { key, events } =
            serde_json::from_str(include_str!("lax_object/vectors.json")).unwrap();
        let keys = [("ed25519:k".to_owned(), Base64::parse(key).unwrap())];
        (PublicKeyMap::from([("a.example".to_owned(), keys.into())]), events)
    }

    #[test]
    fn events_of_synapse_have_their_ids_hashes_signatures_and_redactions() {
        let (keys, events) = vectors();
        for Vector { version, pdu, event_id, redacted } in events {
            let rules = version.rules().unwrap();
            let event = LaxObject::parse(&pdu).unwrap();
            assert_eq!(event.to_text(), pdu);
            assert_eq!(event.check_format(&rules).map_err(|error| error.to_string()), Ok(()));
            assert_eq!(event.event_id(&rules).unwrap(), event_id, "{pdu}");
            assert!(event.verify(&keys, &rules).unwrap(), "{pdu}");
            let without = event.clone().redacted(&rules.redaction).unwrap();
            assert_eq!(without.to_text(), redacted);
            assert_eq!(without.event_id(&rules).unwrap(), event_id);
            assert_eq!(without.verify(&keys, &rules).unwrap(), pdu == redacted, "{pdu}");

            let other = pdu.replacen("1.5", "2.5", 1).replacen("\"deep\"}", "\"other\"}", 1);
            if other != pdu {
                assert!(
                    !LaxObject::parse(&other).unwrap().verify(&keys, &rules).unwrap(),
                    "{other}"
                );
            }
            let depth = pdu.replacen("\"depth\":", "\"depth\":1", 1);
            assert!(LaxObject::parse(&depth).unwrap().verify(&keys, &rules).is_err());
            assert!(event.verify(&PublicKeyMap::new(), &rules).is_err());
        }
    }

    #[test]
    fn odd_numbers_are_refused_where_the_room_version_is_strict() {
        let (_, events) = vectors();
        for Vector { pdu, .. } in events {
            let event = LaxObject::parse(&pdu).unwrap();
            let strict = RoomVersionId::V6.rules().unwrap();
            assert_eq!(event.check_format(&strict).is_ok(), !event.has_odd_numbers());
        }
        for depth in ["1.5", "-1", "1e3", "99999999999999999999e1", "\"1\""] {
            let pdu = format!(
                r#"{{"type":"t","sender":"@u:a","room_id":"!r:a","prev_events":[],"auth_events":[],"depth":{depth}}}"#
            );
            let event = LaxObject::parse(&pdu).unwrap();
            assert!(event.check_format(&RoomVersionId::V5.rules().unwrap()).is_err(), "{depth}");
        }
    }

    #[test]
    fn our_signatures_equal_those_of_synapse() {
        let (_, events) = vectors();
        let key = Ed25519KeyPair::from_der(&Ed25519KeyPair::generate(), "own".to_owned()).unwrap();
        let public = [("ed25519:own".to_owned(), Base64::new(key.public_key().to_vec()))];
        let keys = PublicKeyMap::from([("a.example".to_owned(), public.into())]);
        for Vector { version, pdu, .. } in events {
            let rules = version.rules().unwrap();
            let mut event = LaxObject::parse(&pdu).unwrap();
            event.sign("a.example", &key, &rules.redaction).unwrap();
            assert!(event.verify(&keys, &rules).unwrap());
            assert!(event.is_signed_with(
                "a.example",
                "ed25519:own",
                &keys["a.example"]["ed25519:own"],
                &rules.redaction
            ));
        }
    }

    #[test]
    fn only_objects_are_accepted() {
        for text in [
            "",
            "[]",
            "1.5",
            "[1.5]",
            "{",
            r#"{"a":1e999}"#,
            r#"{"a":1.5,"b":"\ud800"}"#,
            r#"{"a":"\ud800"}"#,
        ] {
            assert!(LaxObject::parse(text).is_err(), "{text}");
        }
        for number in ["1", "1.5"] {
            let nested = |levels: usize| {
                format!("{{\"a\":{}{number}{}}}", "[".repeat(levels - 1), "]".repeat(levels - 1))
            };
            assert!(LaxObject::parse(&nested(limits::ITEM_DEPTH)).is_ok());
            assert!(LaxObject::parse(&nested(limits::ITEM_DEPTH + 1)).is_err());
            assert!(LaxObject::parse(&nested(100_000)).is_err());
        }
        // The last of two members of one name counts, as it does for Synapse.
        assert_eq!(
            LaxObject::parse(r#"{"a":1.5,"a":2}"#).unwrap(),
            LaxObject::parse(r#"{"a":2}"#).unwrap()
        );
        let written = r#"{"a":[-0,1e2,1.50]}"#;
        assert_eq!(LaxObject::parse(written).unwrap().to_text(), written);
        let to_hash = LaxObject::parse_to_hash(written).unwrap();
        assert_eq!(to_hash.to_text(), r#"{"a":[0,100.0,1.5]}"#);
    }

    #[test]
    fn a_member_keeps_its_numbers_in_an_object() {
        let mut outer = LaxObject::parse(r#"{"a":0.5}"#).unwrap();
        outer.insert_object("content", LaxObject::parse(r#"{"b":[1,2.5]}"#).unwrap());
        assert_eq!(outer.to_text(), r#"{"a":0.5,"content":{"b":[1,2.5]}}"#);
        outer.insert_object("content", LaxObject::parse(r#"{"b":1}"#).unwrap());
        assert_eq!(outer.to_text(), r#"{"a":0.5,"content":{"b":1}}"#);
        outer.remove("a");
        assert!(!outer.has_odd_numbers());
    }

    proptest! {
        #[test]
        fn an_object_is_written_as_it_was_read(
            numbers in prop::collection::vec("-?(0|[1-9][0-9]{0,20})(\\.[0-9]{1,9})?([eE][+-]?[0-9]{1,2})?", 1..6),
        ) {
            let list = numbers.join(",");
            let text = format!(r#"{{"z":[{list},{{"y":[{list}]}}],"x":{}}}"#, numbers[0]);
            let read = LaxObject::parse(&text).unwrap();
            let expected = canonical(&text, Numbers::AsWritten).unwrap();
            prop_assert_eq!(&read.to_text(), &expected);
            prop_assert_eq!(LaxObject::parse(&expected).unwrap(), read);
            let to_hash = LaxObject::parse_to_hash(&text).unwrap().to_text();
            prop_assert_eq!(&to_hash, &canonical(&text, Numbers::Lax).unwrap());
        }
    }
}
