//! The marks of records that were made from another server's database: where each comes from, and
//! when what it says happened.

use std::fmt;

use bytes::{BufMut as _, BytesMut};
use serde::Deserialize;

use crate::{Command, NewRecord, Origin, Payload, Record, Stream, command::ImportSource};

/// The user in the origin of an imported record.
const USER: &str = "import";
/// How a payload with an original time begins.
const BEGINS: &[u8] = br#"{"original_ms":"#;
/// What the name of an event's row begins with; its number follows.
const EVENT: &str = "event ";

/// The longest name of a row, in bytes. A header is never erased, so the name must not tell
/// anything personal.
const MAX_ROW: usize = 64;

/// Where an imported record comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImportedFrom<'a> {
    pub source: ImportSource,
    /// `event <number>`, with the number that the source gave the event, or the name of a table.
    pub row: &'a str,
}

impl ImportedFrom<'_> {
    /// For an event, the number that the source gave it.
    pub fn event(&self) -> Option<i64> {
        self.row.strip_prefix(EVENT)?.parse().ok()
    }
}

/// For people: `imported from Synapse, event 123`.
impl fmt::Display for ImportedFrom<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "imported from {}", self.source.title())?;
        match self.row {
            "" => Ok(()),
            row => write!(f, ", {row}"),
        }
    }
}

impl Origin {
    /// A row of another server's database. A name that is too long is cut.
    fn imported(source: ImportSource, row: &str) -> Self {
        let mut end = row.len().min(MAX_ROW);
        while !row.is_char_boundary(end) {
            end -= 1;
        }
        Self { user: USER.into(), device: source.as_str().into(), request: row[..end].into() }
    }

    /// The user who caused the record, if somebody did: whose row was imported is not known here.
    pub fn person(&self) -> Option<&str> {
        let is_person = !self.user.is_empty() && self.import().is_none();
        is_person.then_some(&*self.user)
    }

    /// Where the record comes from, if it was imported.
    pub fn import(&self) -> Option<ImportedFrom<'_>> {
        if &*self.user != USER {
            return None;
        }
        let source = ImportSource::named(&self.device)?;
        Some(ImportedFrom { source, row: &self.request })
    }
}

impl Record {
    /// When what an imported record says happened, in milliseconds since the Unix epoch, if its
    /// source knew that. Clocks may have been wrong: nothing happened after it was recorded.
    pub fn original_ms(&self) -> Option<u64> {
        self.header.origin.import()?;
        let original_ms = match &self.payload {
            Payload::Present(payload) => first_member(payload)?,
            // Its members are in another order.
            Payload::Reduced(left) => serde_json::from_slice::<Original>(left).ok()?.original_ms?,
            Payload::Erased => return None,
        };
        Some(original_ms.min(self.header.time_ms))
    }

    /// When what it says happened: its original time if it was imported with one, and otherwise the
    /// time at which it was appended.
    pub fn happened_ms(&self) -> u64 {
        self.original_ms().unwrap_or(self.header.time_ms)
    }
}

impl NewRecord {
    /// A record made from a `row` (see [`ImportedFrom::row`]) of another server's database, about
    /// what happened at `original_ms`, if that is known.
    pub fn imported(
        stream: Stream,
        source: ImportSource,
        row: &str,
        original_ms: Option<u64>,
        command: &Command,
    ) -> Self {
        Self::new(stream, Origin::imported(source, row), command).with_original_ms(original_ms)
    }

    /// The same, about what happened at this time. To be called once.
    #[must_use]
    pub fn with_original_ms(self, original_ms: Option<u64>) -> Self {
        let Some(original_ms) = original_ms else { return self };
        // Every payload is an object. The member is the first one, where it is found without
        // parsing: records are replayed at every start.
        let members = self.payload.get(1..).unwrap_or_default();
        let mut payload = BytesMut::with_capacity(BEGINS.len() + 24 + members.len());
        payload.put_slice(BEGINS);
        payload.put_slice(original_ms.to_string().as_bytes());
        if members != b"}" {
            payload.put_u8(b',');
        }
        payload.put_slice(members);
        Self { payload: payload.freeze(), ..self }
    }
}

/// The part of a payload that any kind may have.
#[derive(Deserialize)]
struct Original {
    #[serde(default)]
    original_ms: Option<u64>,
}

/// The original time in a complete payload, whatever its bytes are.
fn first_member(payload: &[u8]) -> Option<u64> {
    let rest = payload.strip_prefix(BEGINS)?;
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    std::str::from_utf8(&rest[..digits]).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        CHAIN_START, Encoding, Epoch, Header, Offset,
        command::{KeysDrop, MediaUpload},
        reduced,
    };

    const NOW: u64 = 1_770_000_000_000;

    fn record(new: NewRecord, payload: Payload) -> Record {
        let header = Header {
            offset: Offset::new(1),
            time_ms: NOW,
            epoch: Epoch(0),
            class: new.class,
            ephemeral: new.ephemeral,
            batch_remaining: 0,
            stream: new.stream,
            kind: new.kind.into(),
            version: new.version,
            origin: new.origin,
            seal_key: Box::default(),
            encoding: Encoding::Json,
            payload_len: new.payload.len() as u32,
            payload_hash: *blake3::hash(&new.payload).as_bytes(),
        };
        Record { header, chain: CHAIN_START, payload }
    }

    fn upload() -> Command {
        let json = format!(
            r#"{{"media_id":"abc","user_id":"@ann:example.org","hash":"{}","size":3,"content_type":"text/plain"}}"#,
            "ab".repeat(32)
        );
        serde_json::from_str::<MediaUpload>(&json).unwrap().into()
    }

    fn imported(original_ms: Option<u64>, command: &Command) -> NewRecord {
        let stream = Stream::server();
        NewRecord::imported(stream, ImportSource::Synapse, "event -7", original_ms, command)
    }

    #[test]
    fn an_imported_record_says_when_it_happened_and_where_it_comes_from() {
        let new = imported(Some(5), &upload());
        let text = std::str::from_utf8(&new.payload).unwrap();
        assert!(text.starts_with(r#"{"original_ms":5,"media_id":"abc","#), "{text}");
        let payload = new.payload.clone();
        let record = record(new, Payload::Present(payload));
        assert_eq!((record.original_ms(), record.happened_ms()), (Some(5), 5));
        let Ok(Some(Command::MediaUpload(read))) = record.command() else { panic!("not read") };
        assert_eq!(read.media_id, "abc");
        let import = record.header.origin.import().unwrap();
        assert_eq!(import.to_string(), "imported from Synapse, event -7");
        assert_eq!(import.event(), Some(-7));
        assert_eq!(record.header.origin.person(), None);
        let origins = [Origin::administrator("import"), Origin::server()];
        assert_eq!(origins.each_ref().map(Origin::person), [Some("admin"), None]);
    }

    #[test]
    fn the_original_time_outlives_a_reduction() {
        let new = imported(Some(5), &upload());
        let left = reduced(new.kind, &new.payload, None).unwrap();
        assert!(!left.starts_with(BEGINS));
        assert_eq!(record(new, Payload::Reduced(left)).happened_ms(), 5);
    }

    #[test]
    fn a_payload_without_members_can_have_a_time() {
        let new = imported(Some(5), &KeysDrop {}.into());
        assert_eq!(&*new.payload, br#"{"original_ms":5}"#);
    }

    #[test]
    fn nothing_happens_after_it_was_recorded() {
        let new = imported(Some(NOW + 1), &upload());
        let payload = new.payload.clone();
        assert_eq!(record(new, Payload::Present(payload)).happened_ms(), NOW);
    }

    /// A log may come from anywhere: no payload stops a replay.
    #[test]
    fn a_time_that_is_none_is_ignored() {
        for payload in [
            "",
            "{",
            "5",
            r#"{"original_ms":"#,
            r#"{"original_ms":}"#,
            r#"{"original_ms":-5}"#,
            r#"{"original_ms":"5"}"#,
            r#"{"original_ms":99999999999999999999}"#,
            r#"{"media_id":{"original_ms":5}}"#,
        ] {
            for payload in [Payload::Present(payload.into()), Payload::Reduced(payload.into())] {
                let record = record(imported(None, &upload()), payload);
                assert_eq!(record.happened_ms(), NOW, "{:?}", record.payload);
            }
        }
        assert_eq!(record(imported(Some(5), &upload()), Payload::Erased).original_ms(), None);
    }

    #[test]
    fn only_imported_records_have_an_original_time() {
        let mut new = imported(Some(5), &upload());
        new.origin = Origin::administrator("import");
        let payload = new.payload.clone();
        assert_eq!(record(new, Payload::Present(payload)).original_ms(), None);
        let new = imported(None, &upload());
        assert_eq!(new.payload, upload().encode());
        let payload = new.payload.clone();
        let record = record(new, Payload::Present(payload));
        assert_eq!((record.original_ms(), record.happened_ms()), (None, NOW));
    }

    #[test]
    fn a_row_is_cut_between_characters() {
        let origin = Origin::imported(ImportSource::Synapse, &"ä".repeat(40));
        assert_eq!(origin.import().unwrap().row, "ä".repeat(32));
        let origin = Origin { user: "import".into(), device: "other".into(), ..Origin::default() };
        assert!(origin.import().is_none() && Origin::server().import().is_none());
    }
}
