//! What an import writes, and how it is read.

use std::collections::BTreeMap;

use logcabin::{
    log::archive::ArchiveReader,
    record::{
        Command, NewRecord, Offset, Origin, Stream,
        command::{
            FileHash, ImportBegin, ImportEnd, ImportSource, LeftOut, MediaUpload, PasswordFlags,
            RegistrationTokenSet, ReportCreate, ServerOldKey, TokenHash, UserPassword,
            imported_password,
        },
    },
    state::State,
};
use ruma::OwnedUserId;

use super::golden;

/// When what is imported happened.
const TIME: u64 = 1_600_000_000_000;

/// An import from beginning to end.
pub(crate) fn records() -> Vec<NewRecord> {
    let source = ImportSource::Synapse;
    let ann: OwnedUserId = "@ann:golden.example".try_into().unwrap();
    let own = |command: Command| NewRecord::new(Stream::server(), Origin::server(), &command);
    let begin = ImportBegin {
        source,
        version: "1.157.0".to_owned(),
        schema: 94,
        database: "sqlite".to_owned(),
        tool: "0.1.0".to_owned(),
        begun_ms: 1_770_000_000_000,
    };
    let key = ServerOldKey {
        key_id: "ed25519:a_OLD".to_owned(),
        public_key: "XGX0JRS2Af3be3knz2fBiRbApjm2Dh61gXDJA8kcJNI".to_owned(),
        expired_ms: TIME,
    };
    let flags = PasswordFlags { nfkc: true, pepper: true };
    let hash = "$2b$04$abcdefghijklmnopqrstuupayQdzyITqVnkTh96tjMrRDj3X.Q5bC";
    let password = UserPassword {
        user_id: ann.clone(),
        password: imported_password(flags, hash),
        renewed: true,
    };
    let registration_token = TokenHash::of("imported");
    let token = RegistrationTokenSet {
        registration_token,
        label: None,
        uses_allowed: Some(5),
        expires_ms: None,
        used: Some(3),
    };
    let report = ReportCreate {
        reporter: ann.clone(),
        room_id: None,
        event_id: None,
        user_id: Some("@bob:golden.example".try_into().unwrap()),
        reason: Some("imported".to_owned()),
        score: None,
    };
    let upload = MediaUpload {
        media_id: "imported".to_owned(),
        user_id: Some(ann.clone()),
        hash: FileHash::from(blake3::hash(b"imported")),
        size: 8,
        content_type: Some("text/plain".to_owned()),
        name: None,
    };
    let left = LeftOut {
        table: "thread_subscriptions".to_owned(),
        reason: "there is no kind for it".to_owned(),
        count: 1,
    };
    let end = ImportEnd {
        source,
        digest: FileHash::from(blake3::hash(b"read")),
        positions: BTreeMap::from([("events".to_owned(), 123_456)]),
        read: BTreeMap::from([("users".to_owned(), 2)]),
        left: vec![left],
        differing_rooms: 0,
        rehearsal: false,
    };
    let user = Stream::user(&ann);
    let imported = |stream: &Stream, row: &str, time_ms: Option<u64>, command: Command| {
        NewRecord::imported(stream.clone(), source, row, time_ms, &command)
    };
    let token_stream = Stream::registration_token(&registration_token);
    vec![
        own(begin.into()),
        imported(&Stream::server(), "homeserver.yaml", None, key.into()),
        imported(&user, "users", None, password.into()),
        imported(&token_stream, "registration_tokens", None, token.into()),
        imported(&user, "user_reports", Some(TIME), report.into()),
        imported(
            &Stream::media(Some(&ann)),
            "local_media_repository",
            Some(TIME + 1),
            upload.into(),
        ),
        own(end.into()),
    ]
}

/// What was imported happened when the source says, and no later than it was recorded.
#[test]
fn an_import_is_read_as_it_was_written() {
    let state = State::default();
    let log = golden().join("0.1.0-import");
    let mut described = Vec::new();
    for record in ArchiveReader::open(&log).unwrap().records(Offset::new(1)) {
        let record = record.unwrap();
        let _ = state.apply(&record).unwrap();
        if let Some(import) = record.header.origin.import() {
            described.push((import.to_string(), record.original_ms()));
        }
    }
    let from = |row: &str| format!("imported from Synapse, {row}");
    let expected = [
        (from("homeserver.yaml"), None),
        (from("users"), None),
        (from("registration_tokens"), None),
        (from("user_reports"), Some(TIME)),
        (from("local_media_repository"), Some(TIME + 1)),
    ];
    assert_eq!(described, expected);
    let imports = state.imports.all();
    assert_eq!(imports.len(), 1);
    assert!(imports[0].ended.is_some() && !state.imports.unfinished());
    let old = state.federation_keys.retired_keys();
    assert_eq!(old["ed25519:a_OLD"].expired_ms, TIME);
    let reports = state.reports.all();
    assert!(reports.iter().any(|(_, report)| report.time_ms == TIME));
    let token = state.registration_tokens.get(&TokenHash::of("imported")).unwrap();
    assert_eq!((token.uses_allowed, token.uses), (Some(5), 3));
}
