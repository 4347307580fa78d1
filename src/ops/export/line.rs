//! Records as lines of JSON: a record always has the same line, byte for byte.

use std::borrow::Cow;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::hex;
use logcabin_record::{Class, Encoding, Epoch, Header, Offset, Origin, Payload, Record, Stream};

/// The members of a line, in order.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RecordLine<'a> {
    offset: Offset,
    time_ms: u64,
    epoch: Epoch,
    #[serde(borrow)]
    kind: Cow<'a, str>,
    version: u16,
    #[serde(borrow)]
    stream: Cow<'a, str>,
    #[serde(borrow, default, skip_serializing_if = "str::is_empty")]
    user: Cow<'a, str>,
    #[serde(borrow, default, skip_serializing_if = "str::is_empty")]
    device: Cow<'a, str>,
    #[serde(borrow, default, skip_serializing_if = "str::is_empty")]
    request: Cow<'a, str>,
    must_not_rewind: bool,
    ephemeral: bool,
    batch_remaining: u32,
    #[serde(borrow, default, skip_serializing_if = "str::is_empty")]
    seal_key: Cow<'a, str>,
    payload_len: u32,
    payload_hash: Cow<'a, str>,
    chain: Cow<'a, str>,
    payload_state: State,
    /// The payload for people and programs: unchanged, except that line breaks are blanks.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    payload: Option<&'a RawValue>,
    /// The exact payload, if it differs from `payload`.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    payload_base64: Option<Cow<'a, str>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum State {
    Present,
    Reduced,
    Erased,
}

/// The line of `record`, with its line feed.
pub(super) fn write(record: &Record) -> serde_json::Result<Vec<u8>> {
    let Record { header, chain, payload } = record;
    let (state, bytes) = match payload {
        Payload::Present(bytes) => (State::Present, Some(bytes)),
        Payload::Reduced(bytes) => (State::Reduced, Some(bytes)),
        Payload::Erased => (State::Erased, None),
    };
    let on_one_line = bytes.and_then(|bytes| one_line(bytes));
    let raw = on_one_line.as_deref().and_then(|text| serde_json::from_str::<&RawValue>(text).ok());
    let is_exact = raw.map(|raw| raw.get().as_bytes()) == bytes.map(|bytes| &**bytes);
    let base64 = bytes.filter(|_| !is_exact).map(|bytes| STANDARD.encode(bytes));
    let line = RecordLine {
        offset: header.offset,
        time_ms: header.time_ms,
        epoch: header.epoch,
        kind: (&*header.kind).into(),
        version: header.version,
        stream: header.stream.as_str().into(),
        user: (&*header.origin.user).into(),
        device: (&*header.origin.device).into(),
        request: (&*header.origin.request).into(),
        must_not_rewind: header.class == Class::MustNotRewind,
        ephemeral: header.ephemeral,
        batch_remaining: header.batch_remaining,
        seal_key: (&*header.seal_key).into(),
        payload_len: header.payload_len,
        payload_hash: hex(&header.payload_hash).into(),
        chain: hex(chain).into(),
        payload_state: state,
        payload: raw,
        payload_base64: base64.map(Cow::Owned),
    };
    let mut text = serde_json::to_vec(&line)?;
    text.push(b'\n');
    Ok(text)
}

/// JSON on one line: strings escape their line breaks, so those between tokens are insignificant.
fn one_line(bytes: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(bytes).ok()?;
    Some(text.replace(['\n', '\r'], " "))
}

/// Why a line is not that of a record.
#[derive(Debug, thiserror::Error)]
pub(super) enum LineError {
    #[error("it is not the line of a record: {0}")]
    Json(#[from] serde_json::Error),
    #[error("`{0}` is invalid")]
    Field(&'static str),
    #[error("it was altered after it was written")]
    Changed,
}

/// The record of a line, which ends with a line feed. Its hashes are not checked.
pub(super) fn read(text: &[u8]) -> Result<Record, LineError> {
    let line: RecordLine<'_> = serde_json::from_slice(text)?;
    let bytes = match (&line.payload_base64, line.payload) {
        (Some(base64), _) => {
            let bytes = STANDARD.decode(&**base64);
            Some(Bytes::from(bytes.map_err(|_| LineError::Field("payload_base64"))?))
        }
        (None, Some(raw)) => Some(Bytes::copy_from_slice(raw.get().as_bytes())),
        (None, None) => None,
    };
    let payload = match (line.payload_state, bytes) {
        (State::Present, Some(bytes)) => Payload::Present(bytes),
        (State::Reduced, Some(bytes)) => Payload::Reduced(bytes),
        (State::Erased, None) => Payload::Erased,
        _ => return Err(LineError::Field("payload")),
    };
    let class = if line.must_not_rewind { Class::MustNotRewind } else { Class::Rewindable };
    let hash = |text: &str, field| {
        let hash = blake3::Hash::from_hex(text).map_err(|_| LineError::Field(field))?;
        Ok::<_, LineError>(*hash.as_bytes())
    };
    let record = Record {
        header: Header {
            offset: line.offset,
            time_ms: line.time_ms,
            epoch: line.epoch,
            class,
            ephemeral: line.ephemeral,
            batch_remaining: line.batch_remaining,
            stream: Stream::from_name(&line.stream),
            kind: (&*line.kind).into(),
            version: line.version,
            origin: Origin {
                user: (&*line.user).into(),
                device: (&*line.device).into(),
                request: (&*line.request).into(),
            },
            seal_key: (&*line.seal_key).into(),
            encoding: Encoding::Json,
            payload_len: line.payload_len,
            payload_hash: hash(&line.payload_hash, "payload_hash")?,
        },
        chain: hash(&line.chain, "chain")?,
        payload,
    };
    // This also covers what no hash of the log covers, such as the readable form of a payload.
    if write(&record)? != text {
        return Err(LineError::Changed);
    }
    Ok(record)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn record(payload: Payload, user: &str) -> Record {
        Record {
            header: Header {
                offset: Offset::new(7),
                time_ms: 1_700_000_000_000,
                epoch: Epoch(2),
                class: Class::MustNotRewind,
                ephemeral: false,
                batch_remaining: 1,
                stream: Stream::from_name("user/ann"),
                kind: "account_data.set".into(),
                version: 1,
                origin: Origin { user: user.into(), ..Origin::default() },
                seal_key: Box::default(),
                encoding: Encoding::Json,
                payload_len: 9,
                payload_hash: [3; 32],
            },
            chain: [4; 32],
            payload,
        }
    }

    fn present(text: &str) -> Payload {
        Payload::Present(Bytes::copy_from_slice(text.as_bytes()))
    }

    #[test]
    fn a_payload_is_json_in_its_line() {
        let line = write(&record(present(r#"{"a":1.50,"b":"ö"}"#), "@ann:x")).unwrap();
        let line = String::from_utf8(line).unwrap();
        assert!(
            line.ends_with(
                ",\"payload_state\":\"present\",\"payload\":{\"a\":1.50,\"b\":\"ö\"}}\n"
            ),
            "{line}"
        );
        assert!(line.contains(r#""user":"@ann:x","must_not_rewind":true"#), "{line}");
        let erased = String::from_utf8(write(&record(Payload::Erased, "")).unwrap()).unwrap();
        assert!(erased.ends_with(",\"payload_state\":\"erased\"}\n"), "{erased}");
    }

    #[test]
    fn a_payload_of_several_lines_is_read_as_json_and_kept_to_the_byte() {
        for text in ["{\n \"a\": 1,\r\n \"b\": \"x\\ny\" }", " {}", "{} "] {
            let written = record(present(text), "");
            let line = write(&written).unwrap();
            assert_eq!(line.iter().filter(|byte| **byte == b'\n').count(), 1);
            let value: serde_json::Value = serde_json::from_slice(&line).unwrap();
            assert_eq!(value["payload"], serde_json::from_str::<serde_json::Value>(text).unwrap());
            assert_eq!(read(&line).unwrap(), written);
        }
        let sealed = record(Payload::Present(Bytes::from_static(&[0xff, 0, b'\n'])), "");
        assert_eq!(read(&write(&sealed).unwrap()).unwrap(), sealed);
    }

    #[test]
    fn a_line_that_was_changed_is_refused_or_another_record() {
        for text in ["{\"a\":[1,2]}", "{\n\"a\":[1,2]}"] {
            let written = record(present(text), "@ann:x");
            let line = write(&written).unwrap();
            for at in 0..line.len() {
                for change in [1, 2, 0x20] {
                    let mut changed = line.clone();
                    changed[at] ^= change;
                    assert!(read(&changed).map_or(true, |read| read != written), "byte {at}");
                }
            }
            let spaced = String::from_utf8(line).unwrap().replacen(':', ": ", 1);
            assert!(matches!(read(spaced.as_bytes()), Err(LineError::Changed)));
        }
    }

    proptest! {
        #[test]
        fn every_record_comes_back(bytes in prop::collection::vec(any::<u8>(), 0..40), state in 0..3_u8, user in "\\PC{0,9}") {
            let bytes = Bytes::from(bytes);
            let payload = match state {
                0 => Payload::Present(bytes),
                1 => Payload::Reduced(bytes),
                _ => Payload::Erased,
            };
            let written = record(payload, &user);
            let line = write(&written).unwrap();
            prop_assert_eq!(line.iter().filter(|byte| **byte == b'\n').count(), 1);
            prop_assert_eq!(read(&line).unwrap(), written);
        }
    }
}
