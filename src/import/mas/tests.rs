//! A small database as the service has it, beside a Synapse of the same users: read from SQLite,
//! and from PostgreSQL where that is installed.

use std::{fs, path::Path, sync::atomic::AtomicBool};

use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use rusqlite::Connection;
use tempfile::TempDir;

use super::*;
use crate::{
    check::check,
    compare::{Extent, compare},
    copy,
    facts::{Password, Preparation, Source as _, Token},
    sql::{server::Server, sqlite::Sqlite, uuid},
};
use logcabin_log::store::{SledLog, SledOptions};
use logcabin_log::{Log, samples::start};
use logcabin_record::{Offset, command::TokenHash};
use logcabin_state::State;

const TABLES: &str = include_str!("tests/tables.sql");
const ROWS: &str = include_str!("tests/rows.sql");
const SYNAPSE: &str = include_str!("../synapse/tests/tables.sql");

/// What only one kind of database understands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Sqlite,
    Postgresql,
}

/// SQL for one kind of database: `@U(7)` is a UUID, `@T(5)` a time in milliseconds, `@A(a b)` a
/// list of texts, and `@X(…)` bytes in hex.
fn sql(kind: Kind, text: &str) -> String {
    let mut made = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('@') {
        made.push_str(before);
        let call = after.split_at_checked(2).filter(|(name, _)| name.ends_with('('));
        let Some(((name, inside), (value, end))) =
            call.and_then(|(name, inside)| Some(((name, inside), inside.split_once(')')?)))
        else {
            made.push('@');
            rest = after;
            continue;
        };
        debug_assert!(inside.starts_with(value));
        let words: Vec<&str> = value.split(' ').filter(|word| !word.is_empty()).collect();
        made.push_str(&match (name, kind) {
            ("U(", _) => format!("'{}'", uuid_of(value.parse().expect("a number"))),
            ("T(", Kind::Sqlite) => value.to_owned(),
            ("T(", Kind::Postgresql) => format!("to_timestamp({value} / 1000.0)"),
            ("A(", Kind::Sqlite) => format!("'{}'", json!(words)),
            ("A(", Kind::Postgresql) => format!("'{{{}}}'", words.join(",")),
            ("X(", Kind::Sqlite) => format!("x'{value}'"),
            ("X(", Kind::Postgresql) => format!("'\\x{value}'"),
            (other, _) => panic!("@{other} means nothing"),
        });
        rest = end;
    }
    made + rest
}

/// Later ones have greater numbers.
fn uuid_of(number: u128) -> String {
    uuid::text(((0x018b_aabf_845a + number) << 80) | (0x7 << 76) | number)
}

fn ulid_of(number: u128) -> String {
    ids::ulid(&uuid_of(number)).expect("a ULID")
}

/// How the secret of a client is stored, with a key of 32 times 10.
fn encrypted(secret: &str) -> String {
    let key = LessSafeKey::new(UnboundKey::new(&CHACHA20_POLY1305, &[10; 32]).expect("a key"));
    let mut sealed = secret.as_bytes().to_vec();
    let nonce = Nonce::assume_unique_for_key([7; 12]);
    key.seal_in_place_append_tag(nonce, Aad::empty(), &mut sealed).expect("sealed");
    STANDARD.encode([&[7; 12][..], &sealed].concat())
}

/// A Synapse with the service, in a directory of its own.
struct Both {
    directory: TempDir,
    server: Option<Server>,
}

impl Both {
    fn on_sqlite() -> Self {
        let both = Self { directory: tempfile::tempdir().expect("a directory"), server: None };
        both.fill();
        let tables = TABLES.replace("TEXT[]", "TEXT");
        both.run(&tables);
        both.run(&both.rows());
        both
    }

    /// None without PostgreSQL.
    fn on_postgresql(test: &str) -> Option<Self> {
        let server = Some(Server::start(test)?);
        let both = Self { directory: tempfile::tempdir().expect("a directory"), server };
        both.fill();
        both.run(TABLES);
        both.run(&both.rows());
        Some(both)
    }

    fn rows(&self) -> String {
        ROWS.replace("@SECRET", &format!("'{}'", encrypted("shared")))
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.directory.path().join(name)
    }

    /// Makes the Synapse, and the settings of both.
    fn fill(&self) {
        let write = |name: &str, text: &str| fs::write(self.path(name), text).expect("a file");
        write(
            "homeserver.yaml",
            "server_name: a.example\nsigning_key_path: signing.key\nmedia_store_path: media\n\
             database: {name: sqlite3, args: {database: homeserver.db}}\n",
        );
        write("signing.key", "ed25519 a_1 YWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWE\n");
        write(
            "mas.yaml",
            &format!(
                "matrix: {{homeserver: a.example}}\nsecrets: {{encryption: '{}'}}\n\
                 passwords: {{schemes: [\
                   {{version: 1, algorithm: bcrypt, unicode_normalization: true, secret: pepper}},\
                   {{version: 2, algorithm: argon2id}}, {{version: 3, algorithm: pbkdf2}}]}}\n\
                 upstream_oauth2: {{providers: [{{id: {}, synapse_idp_id: oidc-google}}]}}\n",
                "0a".repeat(32),
                ulid_of(900)
            ),
        );
        let database = Connection::open(self.path("homeserver.db")).expect("a database");
        database.execute_batch(SYNAPSE).expect("tables");
        database
            .execute_batch(
                "INSERT INTO users (name, creation_ts, password_hash, admin, appservice_id) VALUES
                    ('@ann:a.example', 5, '$2b$12$stale', 0, NULL),
                    ('@bob:a.example', 5, NULL, 1, NULL), ('@carl:a.example', 5, NULL, 0, NULL),
                    ('@eve:a.example', 5, NULL, 0, NULL), ('@bot:a.example', 5, NULL, 1, 'bridge'),
                    ('@ghost:a.example', 5, '$2b$12$stale', 0, NULL);
                 INSERT INTO devices (user_id, device_id, display_name, last_seen) VALUES
                    ('@ann:a.example', 'PHONE', 'Phone of ann', 7000),
                    ('@ann:a.example', 'WEB', 'Browser of ann', 8000);
                 INSERT INTO access_tokens (id, user_id, device_id, token) VALUES
                    (1, '@ann:a.example', 'PHONE', 'stale');
                 INSERT INTO user_threepids VALUES
                    ('@ann:a.example', 'email', 'stale@a.example', 1, 1)",
            )
            .expect("rows");
    }

    fn run(&self, text: &str) {
        match &self.server {
            None => {
                let database = Connection::open(self.path("mas.db")).expect("a database");
                let text = sql(Kind::Sqlite, text);
                database.execute_batch(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
            }
            Some(server) => server.run(&sql(Kind::Postgresql, text)),
        }
    }

    fn settings(&self) -> synapse::Settings {
        synapse::Settings::read(&self.path("homeserver.yaml")).expect("settings")
    }

    fn open(&self) -> Result<Source, ImportError> {
        let synapse = synapse::Source::open(&self.settings())?;
        let mut settings = Settings::read(&self.path("mas.yaml"), "a.example")?;
        match &self.server {
            None => {
                let database = Box::new(Sqlite::open(&self.path("mas.db"))?);
                Source::with(database, &settings, synapse)
            }
            Some(server) => {
                settings.database.config = server.config();
                Source::open(&settings, synapse)
            }
        }
    }

    fn source(&self) -> Source {
        self.open().unwrap_or_else(|error| panic!("it opens: {error}"))
    }
}

/// All of a section.
fn all(source: &mut Source, section: Section) -> (Vec<Fact>, Vec<String>) {
    let (mut facts, mut bad) = (Vec::new(), Vec::new());
    let mut cursor = Cursor::START;
    loop {
        let slice = source.read(section, &cursor).unwrap_or_else(|error| panic!("{error}"));
        facts.extend(slice.facts.into_iter().map(|told| told.fact));
        bad.extend(slice.bad.iter().map(ToString::to_string));
        match slice.next {
            Some(next) => cursor = next,
            None => return (facts, bad),
        }
    }
}

fn accounts(facts: Vec<Fact>) -> HashMap<String, Account> {
    let accounts = facts.into_iter().map(|fact| match fact {
        Fact::Account(account) => (localpart(&account.user_id).expect("a name"), account),
        other => panic!("an account, not {other:?}"),
    });
    accounts.collect()
}

/// Every section, as it is told of the rows, whichever database has them.
fn everything_is_told(source: &mut Source) {
    let (facts, bad) = all(source, Section::Accounts);
    let accounts = accounts(facts);
    assert_eq!(accounts.len(), 7, "{accounts:?}");
    let ann = &accounts["ann"];
    assert_eq!((ann.admin, ann.locked, ann.created_ms), (true, false, 1_700_000_001_234));
    let Some(Password::Argon2id { hash, preparation: Preparation::Nothing, peppered: false }) =
        &ann.password
    else {
        panic!("not the newest password: {:?}", ann.password)
    };
    assert_eq!(hash.expose(), "$argon2id$v=19$new");
    let bob = &accounts["bob"];
    assert_eq!((bob.admin, bob.locked), (false, true), "Synapse is not asked");
    assert!(matches!(
        bob.password,
        Some(Password::Bcrypt { preparation: Preparation::Nfkc, peppered: true, .. })
    ));
    assert!(accounts["carl"].password.is_none() && accounts["eve"].deactivated);
    // Only the service has this one yet.
    assert!(matches!(accounts["dora"].password, Some(Password::Pbkdf2 { .. })));
    assert!(!accounts["bot"].admin && accounts["ghost"].password.is_none());
    assert_eq!(
        bad,
        [
            "mas.users carl: its password is of scheme 9, which mas.yaml does not have: the user \
             needs another one",
            "users @ghost:a.example: matrix-authentication-service does not know the user: nobody \
             can log in",
        ]
    );

    let (facts, bad) = all(source, Section::Threepids);
    let told = facts.iter().map(|fact| match fact {
        Fact::Threepid(of) => (of.medium.as_str(), of.address.as_str(), of.validated_ms),
        other => panic!("an address, not {other:?}"),
    });
    assert_eq!(told.collect::<Vec<_>>(), [("email", "ann@mail.example", 7), ("msisdn", "491", 8)]);
    assert_eq!(bad, [format!("mas.user_emails {}: its user is not there", uuid_of(31))]);

    let (facts, bad) = all(source, Section::ExternalIds);
    let [Fact::ExternalId(id)] = &facts[..] else { panic!("one identity, not {facts:?}") };
    assert_eq!((id.provider.as_str(), id.subject.as_str()), ("google", "sub"));
    assert_eq!(bad.len(), 1, "{bad:?}");
    assert!(bad[0].ends_with("mas.yaml does not have its provider"), "{bad:?}");

    let (facts, _) = all(source, Section::RegistrationTokens);
    let [Fact::RegistrationToken(token)] = &facts[..] else { panic!("one token, not {facts:?}") };
    assert_eq!((token.uses_allowed, token.completed, token.expires_ms), (Some(5), 2, Some(9)));

    let (facts, _) = all(source, Section::OauthClients);
    let clients: Vec<_> = facts
        .iter()
        .map(|fact| match fact {
            Fact::OauthClient(client) => client,
            other => panic!("a client, not {other:?}"),
        })
        .collect();
    let names: Vec<_> = clients.iter().map(|client| client.client_id.clone()).collect();
    assert_eq!(names, [ulid_of(50), ulid_of(51), PERSONAL.to_owned()]);
    assert_eq!(clients[0].metadata["redirect_uris"], json!(["https://app.example/cb"]));
    assert_eq!(clients[1].secret.as_ref().map(facts::Secret::expose), Some("shared"));

    let (facts, bad) = all(source, Section::OauthGrants);
    let grants = facts.iter().map(|fact| match fact {
        Fact::OauthGrant(grant) => (grant.grant_id.clone(), grant.granted_ms),
        other => panic!("a grant, not {other:?}"),
    });
    let expected = [(ulid_of(60), 100), (ulid_of(64), 104), (ulid_of(65), 105), (ulid_of(90), 110)];
    assert_eq!(grants.collect::<Vec<_>>(), expected);
    assert_eq!(bad, [format!("mas.oauth2_sessions {}: its user is not there", uuid_of(63))]);

    let (facts, _) = all(source, Section::Devices);
    let devices = facts.iter().map(|fact| match fact {
        Fact::Device(of) => (of.device_id.as_str(), of.seen_ms, of.address.as_deref()),
        other => panic!("a device, not {other:?}"),
    });
    assert_eq!(
        devices.collect::<Vec<_>>(),
        [
            ("PHONE", Some(7000), None),
            ("WEB", Some(8000), None),
            ("NEW", Some(12), Some("192.0.2.1"))
        ]
    );

    let (facts, bad) = all(source, Section::AccessTokens);
    let tokens = facts.iter().map(|fact| match fact {
        Fact::AccessToken(token) => match &token.token {
            Token::Plain(text) => (text.expose(), token.used, token.refresh.is_some()),
            Token::Hashed(hash) => (if *hash == [7; 32] { "mpt" } else { "?" }, token.used, false),
        },
        other => panic!("a token, not {other:?}"),
    });
    assert_eq!(
        tokens.collect::<Vec<_>>(),
        [
            ("mct_web", true, true),
            ("syt_new", true, false),
            ("mat_phone", false, true),
            ("mat_admin", true, false),
            ("mpt", true, false),
        ]
    );
    assert_eq!(
        bad,
        [format!("mas.compat_access_tokens {}: its session is not there", uuid_of(74))]
    );

    let (facts, bad) = all(source, Section::RefreshTokens);
    let tokens = facts.iter().map(|fact| match fact {
        Fact::RefreshToken(token) => match &token.token {
            Token::Plain(text) => (text.expose(), token.next.is_some()),
            Token::Hashed(_) => ("?", false),
        },
        other => panic!("a token, not {other:?}"),
    });
    // The phone may not have got what its first one was exchanged for.
    assert_eq!(
        tokens.collect::<Vec<_>>(),
        [("mcr_web", false), ("mar_phone_1", true), ("mar_phone_2", false), ("mar_bob", false)]
    );
    assert!(bad.is_empty(), "{bad:?}");
}

#[test]
fn sessions_and_accounts_are_those_of_the_service_beside_those_of_synapse() {
    everything_is_told(&mut Both::on_sqlite().source());
}

#[test]
fn postgresql_tells_the_same() {
    if let Some(both) = Both::on_postgresql("postgresql_tells_the_same") {
        everything_is_told(&mut both.source());
        // What SQLite cannot hold: a time that is none.
        both.run("UPDATE users SET created_at = 'infinity' WHERE username = 'ann'");
        let (facts, bad) = all(&mut both.source(), Section::Accounts);
        let ann = &accounts(facts)["ann"];
        assert_eq!(ann.created_ms, 5000, "as Synapse has it");
        assert!(bad.iter().any(|bad| bad.contains("mas.users ann") && bad.contains("created_at")));
    }
}

#[test]
fn a_section_in_small_slices_tells_the_same_again_after_each_place() {
    let both = Both::on_sqlite();
    let mut source = both.source();
    for section in [Section::Accounts, Section::Devices, Section::OauthGrants] {
        let mut after = Cursor::START;
        while let Some(next) = source.read(section, &after).expect("a slice").next {
            // A new reader goes on where another one was.
            let again = both.source().read(section, &next).expect("a slice");
            let here = source.read(section, &next).expect("a slice");
            assert_eq!(format!("{again:?}"), format!("{here:?}"), "{section:?}");
            after = next;
        }
    }
    let odd = Cursor("x".to_owned());
    assert!(matches!(source.read(Section::Accounts, &odd), Err(SourceError::Cursor { .. })));
}

#[test]
fn a_check_finds_what_a_copy_leaves() {
    let both = Both::on_sqlite();
    let media = both.settings().media_store_path;
    let report = check(&mut both.source(), &media).unwrap_or_else(|error| panic!("{error}"));
    let text = report.to_string();
    for expected in [
        format!("mas.oauth2_sessions {}: its user is not there", uuid_of(63)),
        format!("mas.oauth2_sessions {}: its client does not come along", uuid_of(65)),
        format!("mas.oauth2_refresh_tokens {}: its session does not come along", uuid_of(86)),
        "access_tokens: of the time before matrix-authentication-service".to_owned(),
        "mas.user_sessions: people sign in".to_owned(),
    ] {
        assert!(text.contains(&expected), "{expected}: {text}");
    }
}

#[test]
fn other_databases_are_refused_with_a_reason() {
    let both = Both::on_sqlite();
    let refused = || match both.open() {
        Err(error) => error.to_string(),
        Ok(_) => panic!("it opens"),
    };
    both.run("UPDATE _sqlx_migrations SET version = 20990101000000");
    assert!(refused().contains("newer Logcabin"), "{}", refused());
    both.run("DROP TABLE _sqlx_migrations");
    assert!(refused().contains("no database of matrix-authentication-service"), "{}", refused());
}

#[test]
fn tables_of_earlier_versions_are_read() {
    let both = Both::on_sqlite();
    both.run(
        "UPDATE _sqlx_migrations SET version = 20250113102144;
         DROP TABLE personal_sessions; DROP TABLE personal_access_tokens;
         DROP TABLE user_registration_tokens; DROP TABLE user_unsupported_third_party_ids;
         ALTER TABLE users DROP COLUMN deactivated_at; ALTER TABLE users DROP COLUMN is_guest;
         ALTER TABLE oauth2_sessions DROP COLUMN human_name;
         ALTER TABLE compat_sessions DROP COLUMN human_name;
         ALTER TABLE user_emails ADD COLUMN confirmed_at BIGINT",
    );
    let mut source = both.source();
    for section in Section::ALL {
        let (_, bad) = all(&mut source, section);
        assert!(!bad.iter().any(|bad| bad.contains("missing")), "{section:?}: {bad:?}");
    }
    let (facts, bad) = all(&mut source, Section::Threepids);
    assert!(facts.is_empty() && bad[0].ends_with("the address was never confirmed"), "{bad:?}");
}

/// The whole way: what is told becomes a log, whose projections know the tokens.
fn sessions_go_on(both: &Both) {
    let data = tempfile::tempdir().expect("a directory");
    let options = copy::Options {
        data_dir: data.path().to_owned(),
        server_name: "a.example".to_owned(),
        follow: false,
        rehearsal: false,
    };
    let stop = AtomicBool::new(false);
    copy::finish(&mut both.source(), None, &options, &stop, &mut |_| ())
        .unwrap_or_else(|error| panic!("{error}"));
    let state = replayed(data.path());
    let hash = TokenHash::of;
    let phone = state.accounts.refresh_token(&hash("mar_phone_2")).expect("the phone's token");
    let grant = state.oauth.grant_of_session(phone.session).expect("its grant");
    assert_eq!((grant.grant_id.as_str(), &*grant.client_id), (&*ulid_of(60), &*ulid_of(50)));
    assert_eq!(grant.device_id.as_deref(), Some("PHONE".into()));
    // Until the new ones are used, the one before them is good, and nothing that was revoked.
    let first = state.accounts.refresh_token(&hash("mar_phone_1")).expect("the one before it");
    assert_eq!(first.session, phone.session);
    for gone in ["stale", "mat_revoked", "mcr_used", "mat_ended", "mar_bob"] {
        assert!(state.accounts.access_token(&hash(gone)).is_none(), "{gone}");
        assert!(state.accounts.refresh_token(&hash(gone)).is_none(), "{gone}");
    }
    let web = state.accounts.access_token(&hash("mct_web")).expect("the browser's token");
    assert!(state.oauth.grant_of_session(web.session).is_none(), "it began without OAuth");
    assert!(state.accounts.access_token(&hash("syt_new")).is_some(), "a device of the service");
    let admin = state.oauth.access_token(&hash("mat_admin")).expect("a token without a device");
    assert!(admin.grant.scope().admin && admin.grant.device_id.is_none());
    let own = TokenHash([7; 32]);
    let own = state.accounts.access_token(&own).expect("a token that ann made for herself");
    let grant = state.oauth.grant_of_session(own.session).expect("its grant");
    assert_eq!((&*grant.client_id, grant.device_id.is_some()), (PERSONAL, true));
    assert!(state.oauth.client(&ulid_of(51)).is_some_and(|client| client.secret.is_some()));
    let compared = compare(&mut both.source(), None, data.path(), Extent::default())
        .unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(compared.faults, 0, "{:#?}", compared.differences);
}

fn replayed(data_dir: &Path) -> State {
    let log = SledLog::open(SledOptions::new(data_dir)).expect("a log");
    start(&log);
    let state = State::default();
    for record in log.read(Offset::new(1), usize::MAX).expect("records") {
        state.apply(&record).expect("it can be applied");
    }
    log.close();
    state
}

#[test]
fn clients_go_on_with_their_tokens() {
    sessions_go_on(&Both::on_sqlite());
}

#[test]
fn clients_go_on_with_their_tokens_from_postgresql() {
    if let Some(both) = Both::on_postgresql("clients_go_on_with_their_tokens_from_postgresql") {
        sessions_go_on(&both);
    }
}
