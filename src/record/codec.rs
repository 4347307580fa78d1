//! The bytes of a record, as `log_format.md` specifies them.
//!
//! A *frame* is what a backend stores for one record: header, chain value, payload state, payload.
//! Integers are big-endian. Decoding checks every length against the bytes at hand and never
//! panics; [`Frame::verify`] checks the hashes.

use bytes::Bytes;

use super::{
    CHAIN_START, Chain, Class, Encoding, Epoch, Header, NewRecord, Offset, Origin, Payload, Record,
    Stream,
};

/// The header format that this version writes.
pub const FORMAT: u8 = 1;

const FLAG_MUST_NOT_REWIND: u8 = 1;
const FLAG_EPHEMERAL: u8 = 1 << 1;
const FLAG_SEALED: u8 = 1 << 2;
const KNOWN_FLAGS: u8 = FLAG_MUST_NOT_REWIND | FLAG_EPHEMERAL | FLAG_SEALED;

const ENCODING_JSON: u8 = 1;

const STATE_PRESENT: u8 = 0;
const STATE_ERASED: u8 = 1;
const STATE_REDUCED: u8 = 2;

/// Why bytes are not a record.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    /// The bytes end inside a field.
    #[error("the record ends inside `{0}`")]
    Truncated(&'static str),
    /// Bytes are left after the payload.
    #[error("{0} bytes follow the payload")]
    Trailing(usize),
    /// The header is in a format that this version does not read.
    #[error("header format {0} is not known to this version of logcabin")]
    Format(u8),
    #[error("`{field}` holds {value}, which the format does not have")]
    Value { field: &'static str, value: u64 },
    /// A text field is not UTF-8.
    #[error("`{0}` is not UTF-8")]
    Text(&'static str),
    /// A text field is too long for the format.
    #[error("`{0}` is too long")]
    TooLong(&'static str),
    /// The chain value does not follow from the header and the chain value before it.
    #[error("the hash chain breaks here")]
    Chain,
    /// The payload does not match the hash in the header.
    #[error("the payload does not match its hash")]
    PayloadHash,
    /// The reduced payload does not match the hash that was stored with it.
    #[error("the reduced payload does not match its hash")]
    ReducedHash,
    /// The records that are stored in one piece with it cannot be unpacked.
    #[error("its group cannot be read: {0}")]
    Group(String),
}

/// Encodes `header` alone: the bytes that the chain value covers.
///
/// # Errors
/// When a text field is too long for the format.
pub fn encode_header(header: &Header) -> Result<Vec<u8>, CodecError> {
    let mut out = Vec::with_capacity(160 + header.stream.as_str().len());
    let mut flags = 0;
    if header.class == Class::MustNotRewind {
        flags |= FLAG_MUST_NOT_REWIND;
    }
    if header.ephemeral {
        flags |= FLAG_EPHEMERAL;
    }
    if !header.seal_key.is_empty() {
        flags |= FLAG_SEALED;
    }
    out.push(FORMAT);
    out.push(flags);
    out.extend_from_slice(&[0; 4]); // length of the header, filled in below
    out.extend_from_slice(&header.offset.get().to_be_bytes());
    out.extend_from_slice(&header.time_ms.to_be_bytes());
    out.extend_from_slice(&header.epoch.0.to_be_bytes());
    out.extend_from_slice(&header.batch_remaining.to_be_bytes());
    out.extend_from_slice(&header.version.to_be_bytes());
    out.push(match header.encoding {
        Encoding::Json => ENCODING_JSON,
    });
    out.extend_from_slice(&header.payload_len.to_be_bytes());
    out.extend_from_slice(&header.payload_hash);
    put_text(&mut out, "kind", &header.kind)?;
    put_text(&mut out, "stream", header.stream.as_str())?;
    put_text(&mut out, "user", &header.origin.user)?;
    put_text(&mut out, "device", &header.origin.device)?;
    put_text(&mut out, "request", &header.origin.request)?;
    put_text(&mut out, "seal_key", &header.seal_key)?;
    let length = u32::try_from(out.len()).map_err(|_| CodecError::TooLong("header"))?;
    out[2..6].copy_from_slice(&length.to_be_bytes());
    Ok(out)
}

fn put_text(out: &mut Vec<u8>, field: &'static str, text: &str) -> Result<(), CodecError> {
    let length = u16::try_from(text.len()).map_err(|_| CodecError::TooLong(field))?;
    out.extend_from_slice(&length.to_be_bytes());
    out.extend_from_slice(text.as_bytes());
    Ok(())
}

/// The chain value that follows `previous` for a record with this encoded header.
pub fn chain(previous: &Chain, encoded_header: &[u8]) -> Chain {
    let mut hasher = blake3::Hasher::new();
    hasher.update(previous).update(encoded_header);
    *hasher.finalize().as_bytes()
}

/// Encodes the frame of a record.
///
/// # Errors
/// When a text field is too long for the format.
pub fn encode_frame(record: &Record) -> Result<Vec<u8>, CodecError> {
    let mut out = encode_header(&record.header)?;
    put_after_header(&mut out, &record.chain, &record.payload);
    Ok(out)
}

fn put_after_header(out: &mut Vec<u8>, chain: &Chain, payload: &Payload) {
    out.extend_from_slice(chain);
    match payload {
        Payload::Present(bytes) => {
            out.reserve(1 + bytes.len());
            out.push(STATE_PRESENT);
            out.extend_from_slice(bytes);
        }
        Payload::Reduced(bytes) => {
            out.reserve(1 + 4 + 32 + bytes.len());
            out.push(STATE_REDUCED);
            // A reduced payload is never longer than the log accepts.
            out.extend_from_slice(&u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_be_bytes());
            out.extend_from_slice(blake3::hash(bytes).as_bytes());
            out.extend_from_slice(bytes);
        }
        Payload::Erased => out.push(STATE_ERASED),
    }
}

/// The end of the log, and what the next record needs from it to get its offset, time and chain
/// value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tip {
    /// The last record's offset.
    pub offset: Offset,
    /// The last record's time.
    pub time_ms: u64,
    /// The last record's chain value.
    pub chain: Chain,
    /// The epoch that new records are written in.
    pub epoch: Epoch,
}

impl Default for Tip {
    fn default() -> Self {
        Self { offset: Offset::ZERO, time_ms: 0, chain: CHAIN_START, epoch: Epoch(0) }
    }
}

impl Tip {
    /// The tip after `record`.
    pub fn after(record: &Record) -> Self {
        Self {
            offset: record.header.offset,
            time_ms: record.header.time_ms,
            chain: record.chain,
            epoch: record.header.epoch,
        }
    }

    /// Makes `new` the next record, encodes its frame, and advances the tip to it.
    ///
    /// `batch_remaining` records of the same batch follow. The time is `now_ms`, or the last
    /// record's if the clock went backwards.
    ///
    /// # Errors
    /// When a field is too long for the format, or the payload is empty; then the tip has not
    /// advanced.
    pub fn extend(
        &mut self,
        new: NewRecord,
        batch_remaining: u32,
        now_ms: u64,
    ) -> Result<(Record, Vec<u8>), CodecError> {
        let payload_len =
            u32::try_from(new.payload.len()).map_err(|_| CodecError::TooLong("payload"))?;
        if payload_len == 0 {
            return Err(CodecError::Value { field: "payload_len", value: 0 });
        }
        let header = Header {
            offset: self.offset.next(),
            time_ms: now_ms.max(self.time_ms),
            epoch: self.epoch,
            class: new.class,
            ephemeral: new.ephemeral,
            batch_remaining,
            stream: new.stream,
            kind: new.kind.into(),
            version: new.version,
            origin: new.origin,
            seal_key: Box::default(),
            encoding: Encoding::Json,
            payload_len,
            payload_hash: *blake3::hash(&new.payload).as_bytes(),
        };
        let mut frame = encode_header(&header)?;
        let chain = chain(&self.chain, &frame);
        let record = Record { header, chain, payload: Payload::Present(new.payload) };
        put_after_header(&mut frame, &record.chain, &record.payload);
        *self = Self::after(&record);
        Ok((record, frame))
    }
}

/// A decoded frame with the bytes that its hashes cover.
#[derive(Clone, Debug)]
pub struct Frame {
    pub record: Record,
    header_bytes: Bytes,
}

impl Frame {
    /// Decodes a frame without checking the hashes: see [`Frame::verify`].
    pub fn decode(bytes: &Bytes) -> Result<Self, CodecError> {
        let mut reader = Reader { bytes, at: 0 };
        let format = reader.u8("format")?;
        if format != FORMAT {
            return Err(CodecError::Format(format));
        }
        let flags = reader.u8("flags")?;
        if flags & !KNOWN_FLAGS != 0 {
            return Err(CodecError::Value { field: "flags", value: flags.into() });
        }
        let header_len = reader.u32("header_len")? as usize;
        let offset = Offset::new(reader.u64("offset")?);
        let time_ms = reader.u64("time_ms")?;
        let epoch = Epoch(reader.u32("epoch")?);
        let batch_remaining = reader.u32("batch_remaining")?;
        let version = reader.u16("version")?;
        let encoding = match reader.u8("encoding")? {
            ENCODING_JSON => Encoding::Json,
            other => return Err(CodecError::Value { field: "encoding", value: other.into() }),
        };
        let payload_len = reader.u32("payload_len")?;
        if payload_len == 0 {
            // An empty payload could not be told from an erased one with a damaged state byte.
            return Err(CodecError::Value { field: "payload_len", value: 0 });
        }
        let payload_hash = reader.array("payload_hash")?;
        let kind = reader.text("kind")?.into();
        let stream = Stream::from_name(reader.text("stream")?);
        let origin = Origin {
            user: reader.text("user")?.into(),
            device: reader.text("device")?.into(),
            request: reader.text("request")?.into(),
        };
        let seal_key: Box<str> = reader.text("seal_key")?.into();
        if (flags & FLAG_SEALED != 0) == seal_key.is_empty() {
            return Err(CodecError::Value { field: "flags", value: flags.into() });
        }
        if reader.at != header_len {
            return Err(CodecError::Value { field: "header_len", value: header_len as u64 });
        }
        let header_bytes = bytes.slice(..header_len);
        let chain = reader.array("chain")?;
        let state = reader.u8("payload_state")?;
        let rest = bytes.slice(reader.at..);
        let payload = match state {
            STATE_PRESENT => {
                let length = payload_len as usize;
                if rest.len() < length {
                    return Err(CodecError::Truncated("payload"));
                }
                if rest.len() > length {
                    return Err(CodecError::Trailing(rest.len() - length));
                }
                Payload::Present(rest)
            }
            STATE_ERASED if rest.is_empty() => Payload::Erased,
            STATE_ERASED => return Err(CodecError::Trailing(rest.len())),
            STATE_REDUCED => {
                let length = reader.u32("reduced length")? as usize;
                let hash: [u8; 32] = reader.array("reduced hash")?;
                let rest = bytes.slice(reader.at..);
                if rest.len() < length {
                    return Err(CodecError::Truncated("reduced payload"));
                }
                if rest.len() > length {
                    return Err(CodecError::Trailing(rest.len() - length));
                }
                // Checked here and not with the others, because the decoded frame does not keep the
                // hash.
                if *blake3::hash(&rest).as_bytes() != hash {
                    return Err(CodecError::ReducedHash);
                }
                Payload::Reduced(rest)
            }
            other => {
                return Err(CodecError::Value { field: "payload_state", value: other.into() });
            }
        };
        let header = Header {
            offset,
            time_ms,
            epoch,
            class: if flags & FLAG_MUST_NOT_REWIND == 0 {
                Class::Rewindable
            } else {
                Class::MustNotRewind
            },
            ephemeral: flags & FLAG_EPHEMERAL != 0,
            batch_remaining,
            stream,
            kind,
            version,
            origin,
            seal_key,
            encoding,
            payload_len,
            payload_hash,
        };
        Ok(Self { record: Record { header, chain, payload }, header_bytes })
    }

    /// Checks that the record follows `previous` in the chain, and that its payload matches the
    /// header.
    ///
    /// # Errors
    /// [`CodecError::Chain`] or [`CodecError::PayloadHash`].
    pub fn verify(&self, previous: &Chain) -> Result<(), CodecError> {
        if chain(previous, &self.header_bytes) != self.record.chain {
            return Err(CodecError::Chain);
        }
        if self.record.holds_its_payload() { Ok(()) } else { Err(CodecError::PayloadHash) }
    }
}

/// Where the header has the hash of the payload.
const PAYLOAD_HASH: std::ops::Range<usize> = 37..69;

/// Where the length of the header is in a short frame, after the payload state.
const SHORT_HEADER_LEN: usize = 1 + 2;

/// Appends a frame without what [`lengthen`] computes again: the chain value, and the payload's
/// hash if the payload is there.
///
/// # Errors
/// When the frame is shorter than its header says.
pub fn shorten(frame: &[u8], short: &mut Vec<u8>) -> Result<(), CodecError> {
    let mut reader = Reader { bytes: frame, at: 2 };
    let header_len = reader.u32("header_len")? as usize;
    reader.at = 0;
    let header = reader.take(header_len, "header")?;
    reader.array::<32>("chain")?;
    let state = reader.u8("payload_state")?;
    short.push(state);
    if state == STATE_PRESENT {
        short.extend_from_slice(header.get(..PAYLOAD_HASH.start).unwrap_or(header));
        short.extend_from_slice(header.get(PAYLOAD_HASH.end..).unwrap_or_default());
    } else {
        short.extend_from_slice(header);
    }
    short.extend_from_slice(frame.get(reader.at..).unwrap_or_default());
    Ok(())
}

/// Appends the frame that [`shorten`] has shortened. `previous` is the chain value before it.
/// Returns its own.
///
/// # Errors
/// When the bytes end inside the header.
pub fn lengthen(short: &[u8], previous: &Chain, frame: &mut Vec<u8>) -> Result<Chain, CodecError> {
    let mut reader = Reader { bytes: short, at: 0 };
    let state = reader.u8("payload_state")?;
    reader.at = SHORT_HEADER_LEN;
    let header_len = reader.u32("header_len")? as usize;
    reader.at = 1;
    let begin = frame.len();
    if state == STATE_PRESENT {
        let after = header_len.checked_sub(PAYLOAD_HASH.end);
        frame.extend_from_slice(reader.take(PAYLOAD_HASH.start, "header")?);
        let after = reader.take(after.ok_or(CodecError::Truncated("header"))?, "header")?;
        let payload = short.get(reader.at..).unwrap_or_default();
        frame.extend_from_slice(blake3::hash(payload).as_bytes());
        frame.extend_from_slice(after);
    } else {
        frame.extend_from_slice(reader.take(header_len, "header")?);
    }
    let chain = chain(previous, &frame[begin..]);
    frame.extend_from_slice(&chain);
    frame.push(state);
    frame.extend_from_slice(short.get(reader.at..).unwrap_or_default());
    Ok(chain)
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize, field: &'static str) -> Result<&'a [u8], CodecError> {
        let end = self.at.checked_add(length).ok_or(CodecError::Truncated(field))?;
        let taken = self.bytes.get(self.at..end).ok_or(CodecError::Truncated(field))?;
        self.at = end;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], CodecError> {
        self.take(N, field)?.try_into().map_err(|_| CodecError::Truncated(field))
    }

    fn u8(&mut self, field: &'static str) -> Result<u8, CodecError> {
        self.array::<1>(field).map(|[byte]| byte)
    }

    fn u16(&mut self, field: &'static str) -> Result<u16, CodecError> {
        self.array(field).map(u16::from_be_bytes)
    }

    fn u32(&mut self, field: &'static str) -> Result<u32, CodecError> {
        self.array(field).map(u32::from_be_bytes)
    }

    fn u64(&mut self, field: &'static str) -> Result<u64, CodecError> {
        self.array(field).map(u64::from_be_bytes)
    }

    fn text(&mut self, field: &'static str) -> Result<&'a str, CodecError> {
        let length = self.u16(field)?;
        let bytes = self.take(length.into(), field)?;
        std::str::from_utf8(bytes).map_err(|_| CodecError::Text(field))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn text() -> impl Strategy<Value = String> {
        prop_oneof!["[a-z/.!:]{0,40}", "\\PC{0,20}"]
    }

    prop_compose! {
        fn header()(
            offset in 1..u64::MAX,
            time_ms: u64,
            epoch: u32,
            must_not_rewind: bool,
            ephemeral: bool,
            batch_remaining: u32,
            version: u16,
            texts in prop::array::uniform6(text()),
        ) -> Header {
            let [stream, kind, user, device, request, seal_key] = texts;
            Header {
                offset: Offset::new(offset),
                time_ms,
                epoch: Epoch(epoch),
                class: if must_not_rewind { Class::MustNotRewind } else { Class::Rewindable },
                ephemeral,
                batch_remaining,
                stream: Stream::from_name(&stream),
                kind: kind.into(),
                version,
                origin: Origin {
                    user: user.into(),
                    device: device.into(),
                    request: request.into(),
                },
                seal_key: seal_key.into(),
                encoding: Encoding::Json,
                payload_len: 0,
                payload_hash: [0; 32],
            }
        }
    }

    prop_compose! {
        fn record()(
            mut header in header(),
            payload in prop::collection::vec(any::<u8>(), 1..200),
            state in 0..3_u8,
            previous: Chain,
        ) -> (Chain, Record) {
            header.payload_len = payload.len() as u32;
            header.payload_hash = *blake3::hash(&payload).as_bytes();
            let chain = chain(&previous, &encode_header(&header).unwrap());
            let payload = match state {
                0 => Payload::Present(payload.into()),
                1 => Payload::Erased,
                _ => Payload::Reduced(payload[payload.len() / 2..].to_vec().into()),
            };
            (previous, Record { header, chain, payload })
        }
    }

    proptest! {
        #[test]
        fn every_record_comes_back_as_it_was((previous, record) in record()) {
            let bytes = Bytes::from(encode_frame(&record).unwrap());
            let frame = Frame::decode(&bytes).unwrap();
            frame.verify(&previous).unwrap();
            prop_assert_eq!(&frame.record, &record);
            prop_assert_eq!(encode_frame(&frame.record).unwrap(), bytes);
        }

        #[test]
        fn a_short_frame_has_all_that_cannot_be_computed((previous, record) in record()) {
            let frame = encode_frame(&record).unwrap();
            let (mut short, mut long) = (Vec::new(), vec![7]);
            shorten(&frame, &mut short).unwrap();
            prop_assert!(short.len() <= frame.len() - 32);
            prop_assert_eq!(lengthen(&short, &previous, &mut long).unwrap(), record.chain);
            prop_assert_eq!(&long[1..], frame);
            // Of other bytes comes another chain value.
            let chain = lengthen(&short, &[1; 32], &mut Vec::new()).unwrap();
            prop_assert!(chain != record.chain || previous == [1; 32]);
        }

        #[test]
        fn a_changed_byte_is_found(
            (previous, record) in record(),
            at: prop::sample::Index,
            change in 1..=u8::MAX,
        ) {
            let mut bytes = encode_frame(&record).unwrap();
            let at = at.index(bytes.len());
            bytes[at] ^= change;
            let found = Frame::decode(&bytes.into()).and_then(|frame| frame.verify(&previous));
            prop_assert!(found.is_err(), "byte {} of the frame", at);
        }

        #[test]
        fn a_changed_length_is_found((_, record) in record(), at: prop::sample::Index) {
            let mut bytes = encode_frame(&record).unwrap();
            let cut = Bytes::copy_from_slice(&bytes[..at.index(bytes.len())]);
            prop_assert!(Frame::decode(&cut).is_err());
            bytes.push(0);
            prop_assert!(Frame::decode(&bytes.into()).is_err());
        }

        #[test]
        fn no_bytes_make_decoding_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let (mut short, mut long) = (Vec::new(), Vec::new());
            let _ = shorten(&bytes, &mut short);
            let _ = lengthen(&bytes, &[0; 32], &mut long);
            let _ = Frame::decode(&bytes.into());
        }
    }
}
