//! matrix-authentication-service, which logs in the users of a Synapse: its settings, and its
//! database as facts.
//!
//! Both databases are one source. Accounts and devices are in both, under the same names; sessions,
//! passwords and addresses are here only, whatever Synapse still has of them from before. All else
//! is Synapse's.

mod ids;
mod schema;
mod sections;
mod settings;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, HashSet};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use serde_json::{Map, json};

pub use self::settings::Settings;
pub(crate) use self::settings::{find, provider_id, providers, secret};
use self::{sections::plans, settings::Scheme};
use crate::{
    ImportError,
    facts::{
        self, About, Account, Bad, Cursor, Fact, Key, LeftTable, OauthClient, Origin, Section,
        Slice, SourceError, StateEntry, StateGroup, StateStep, Told, UnreadCount,
    },
    sql::{database::Database, plan, postgresql::Postgresql, schema::Schema},
    synapse,
};
use logcabin_base::{clock::Clock, limits};

/// The client that stands for tokens which people made for themselves.
const PERSONAL: &str = "personal-access-tokens";

/// What the meaning of a row depends on besides the row.
struct Context {
    server_name: String,
    schemes: BTreeMap<i64, Scheme>,
    providers: BTreeMap<String, String>,
    encryption: Option<[u8; 32]>,
    now_ms: i64,
}

impl Context {
    fn user_id(&self, name: &str) -> String {
        format!("@{name}:{}", self.server_name)
    }

    /// A secret as it was before it was encrypted: 12 bytes of a nonce are before it.
    fn decrypted(&self, secret: &str) -> Option<String> {
        let key = UnboundKey::new(&CHACHA20_POLY1305, &self.encryption?).ok()?;
        let mut bytes = STANDARD.decode(secret).ok()?;
        if bytes.len() < 12 {
            return None;
        }
        let mut sealed = bytes.split_off(12);
        let nonce = Nonce::try_assume_unique_for_key(&bytes).ok()?;
        let opened = LessSafeKey::new(key).open_in_place(nonce, Aad::empty(), &mut sealed).ok()?;
        String::from_utf8(opened.to_vec()).ok()
    }
}

/// Synapse's database and that of the service, opened for reading.
pub struct Source {
    synapse: synapse::Source,
    database: Box<dyn Database>,
    schema: Schema,
    context: Context,
}

impl Source {
    /// Opens the database that the settings name, beside that of Synapse.
    pub fn open(settings: &Settings, synapse: synapse::Source) -> Result<Self, ImportError> {
        let database = Box::new(Postgresql::open(settings.database.clone())?);
        Self::with(database, settings, synapse)
    }

    fn with(
        mut database: Box<dyn Database>,
        settings: &Settings,
        mut synapse: synapse::Source,
    ) -> Result<Self, ImportError> {
        let schema = schema::read(&mut *database)?;
        let context = Context {
            server_name: facts::Source::about(&mut synapse)?.server_name,
            schemes: settings.schemes.clone(),
            providers: settings.providers.clone(),
            encryption: settings.encryption,
            now_ms: i64::try_from(Clock::system().now_ms()).unwrap_or(i64::MAX),
        };
        Ok(Self { synapse, database, schema, context })
    }

    /// Reads the service's database as of one moment.
    fn at_once<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, SourceError>,
    ) -> Result<T, SourceError> {
        self.database.begin()?;
        let read = read(self);
        self.database.end();
        read
    }

    /// Facts of the service's own tables.
    fn own(
        &mut self,
        section: Section,
        owners: &[String],
        after: &Cursor,
    ) -> Result<Slice, SourceError> {
        let mut slice = self.at_once(|source| {
            let of = (&source.schema, &source.context);
            plan::read(&mut *source.database, of, (section, plans(section)), owners, after)
        })?;
        let origins = slice.facts.iter_mut().map(|told| &mut told.origin);
        for origin in origins.chain(slice.bad.iter_mut().map(|bad| &mut bad.origin)) {
            origin.table = table(origin.table);
        }
        if section == Section::OauthClients && slice.next.is_none() {
            slice.facts.extend(self.personal()?);
        }
        Ok(slice)
    }

    /// The client of the tokens that people made for themselves, if there are any.
    fn personal(&mut self) -> Result<Option<Told>, SourceError> {
        let table = "personal_sessions";
        let rows = self.at_once(|source| source.schema.rows(&mut *source.database, table))?;
        let name = "Personal access tokens";
        let mut metadata = Map::new();
        metadata.insert("client_name".to_owned(), json!(name));
        metadata.insert("client_uri".to_owned(), json!("https://personal.invalid/"));
        metadata.insert("token_endpoint_auth_method".to_owned(), json!("none"));
        // No user can be asked by it.
        let grant = "urn:ietf:params:oauth:grant-type:device_code";
        metadata.insert("grant_types".to_owned(), json!([grant]));
        let client_id = PERSONAL.to_owned();
        let fact = Fact::OauthClient(OauthClient { client_id, secret: None, metadata });
        let origin = Origin { table: self::table(table), key: Key::Text("-".into()) };
        Ok((rows > 0).then_some(Told { origin, fact }))
    }

    /// What the service knows of these users, by their ids, and the rows that are not as they
    /// should be.
    fn known(
        &mut self,
        user_ids: &[String],
    ) -> Result<(HashMap<String, Account>, Vec<Bad>), SourceError> {
        let (mut known, mut bad) = (HashMap::new(), Vec::new());
        for some in user_ids.chunks(limits::SOURCE_OWNERS) {
            let names: Vec<String> = some.iter().filter_map(|id| localpart(id)).collect();
            let mut after = Cursor::START;
            while !names.is_empty() {
                let slice = self.own(Section::Accounts, &names, &after)?;
                bad.extend(slice.bad);
                known.extend(slice.facts.into_iter().filter_map(|told| match told.fact {
                    Fact::Account(account) => Some((account.user_id.clone(), account)),
                    _ => None,
                }));
                match slice.next {
                    Some(next) => after = next,
                    None => break,
                }
            }
        }
        Ok((known, bad))
    }

    /// What of a section Synapse has of these users, as pairs of user and device.
    fn of_synapse(
        &mut self,
        section: Section,
        user_ids: HashSet<String>,
    ) -> Result<HashSet<(String, String)>, SourceError> {
        let mut found = HashSet::new();
        let user_ids: Vec<String> = user_ids.into_iter().collect();
        for some in user_ids.chunks(limits::SOURCE_OWNERS) {
            let mut after = Cursor::START;
            loop {
                let slice = facts::Source::read_of(&mut self.synapse, section, some, &after)?;
                found.extend(slice.facts.iter().filter_map(|told| owned(&told.fact)));
                match slice.next {
                    Some(next) => after = next,
                    None => break,
                }
            }
        }
        Ok(found)
    }

    /// Accounts of Synapse, with what the service knows of them.
    fn accounts(&mut self, after: &Cursor) -> Result<Slice, SourceError> {
        let mut slice = facts::Source::read(&mut self.synapse, Section::Accounts, after)?;
        let ids: Vec<String> = slice.facts.iter().filter_map(|told| owner(&told.fact)).collect();
        let (mut known, bad) = self.known(&ids)?;
        slice.bad.extend(bad);
        for told in &mut slice.facts {
            let Fact::Account(account) = &mut told.fact else { continue };
            let theirs = known.remove(&account.user_id);
            // Application services make users whom the service need not know.
            if theirs.is_none() && account.app_service.is_none() && !account.deactivated {
                let why = "matrix-authentication-service does not know the user: nobody can log in";
                slice.bad.push(Bad { origin: told.origin.clone(), why: why.to_owned() });
            }
            merge(account, theirs);
        }
        Ok(slice)
    }

    /// What only the service has of a section that is in both.
    fn beside(&mut self, section: Section, after: &Cursor) -> Result<Slice, SourceError> {
        let mut slice = self.own(section, &[], after)?;
        let users = slice.facts.iter().filter_map(|told| owner(&told.fact));
        // Of a row that cannot be used, the key may be the name of a user.
        let names = slice.bad.iter().filter_map(|bad| self.named(section, bad));
        let users: HashSet<String> = users.chain(names).collect();
        let there = self.of_synapse(section, users)?;
        slice.facts.retain(|told| owned(&told.fact).is_none_or(|owned| !there.contains(&owned)));
        let bad = std::mem::take(&mut slice.bad);
        slice.bad = bad
            .into_iter()
            // It was told beside the account.
            .filter(|bad| {
                let user = self.named(section, bad);
                user.is_none_or(|user_id| !there.contains(&(user_id, String::new())))
            })
            .collect();
        Ok(slice)
    }

    /// Whose account a row is of that cannot be used.
    fn named(&self, section: Section, bad: &Bad) -> Option<String> {
        match &bad.origin.key {
            Key::Text(name) if section == Section::Accounts => Some(self.context.user_id(name)),
            _ => None,
        }
    }

    /// A section that is in both: first Synapse's part, and then what is only here.
    fn both(&mut self, section: Section, after: &Cursor) -> Result<Slice, SourceError> {
        let after = match after.0.split_at_checked(1) {
            None | Some(("", _)) => Place::Synapse(Cursor::START),
            Some(("s", inner)) => Place::Synapse(Cursor(inner.to_owned())),
            Some(("m", inner)) => Place::Beside(Cursor(inner.to_owned())),
            Some(_) => return Err(SourceError::Cursor { section }),
        };
        let (mut slice, mark) = match &after {
            Place::Synapse(inner) if section == Section::Accounts => (self.accounts(inner)?, "s"),
            Place::Synapse(inner) => (facts::Source::read(&mut self.synapse, section, inner)?, "s"),
            Place::Beside(inner) => (self.beside(section, inner)?, "m"),
        };
        let next = slice.next.take().map(|next| Cursor(format!("{mark}{}", next.0)));
        slice.next = next.or_else(|| (mark == "s").then(|| Cursor("m".to_owned())));
        slice.end = slice.next.clone().unwrap_or_else(|| Cursor(format!("{mark}{}", slice.end.0)));
        Ok(slice)
    }
}

/// Where a section is that is in both.
enum Place {
    Synapse(Cursor),
    Beside(Cursor),
}

/// What both know of an account.
fn merge(account: &mut Account, theirs: Option<Account>) {
    let Some(theirs) = theirs else {
        // Synapse asks the service who is an administrator, and about passwords.
        (account.admin, account.password) = (false, None);
        return;
    };
    account.admin = theirs.admin;
    account.password = theirs.password;
    if theirs.created_ms > 0 {
        account.created_ms = theirs.created_ms;
    }
    account.guest |= theirs.guest;
    account.deactivated |= theirs.deactivated;
    account.locked |= theirs.locked;
}

/// The part of a user's id before the server's name.
fn localpart(user_id: &str) -> Option<String> {
    let (name, _) = user_id.strip_prefix('@')?.split_once(':')?;
    Some(name.to_owned())
}

/// Whose an account or a device is.
fn owner(fact: &Fact) -> Option<String> {
    match fact {
        Fact::Account(account) => Some(account.user_id.clone()),
        Fact::Device(device) => Some(device.user_id.clone()),
        Fact::RegistrationToken(_) | Fact::OauthClient(_) => None,
        Fact::Threepid(threepid) => Some(threepid.user_id.clone()),
        Fact::ExternalId(id) => Some(id.user_id.clone()),
        Fact::OauthGrant(grant) => Some(grant.user_id.clone()),
        Fact::AccessToken(token) => Some(token.user_id.clone()),
        Fact::RefreshToken(token) => Some(token.user_id.clone()),
        _ => None,
    }
}

/// An account or a device, as user and device.
fn owned(fact: &Fact) -> Option<(String, String)> {
    match fact {
        Fact::Account(account) => Some((account.user_id.clone(), String::new())),
        Fact::Device(device) => Some((device.user_id.clone(), device.device_id.clone())),
        _ => None,
    }
}

/// The tables that are read, as reports call them: some have the names of tables of Synapse.
const TABLES: [(&str, &str); 15] = [
    ("compat_access_tokens", "mas.compat_access_tokens"),
    ("compat_refresh_tokens", "mas.compat_refresh_tokens"),
    ("compat_sessions", "mas.compat_sessions"),
    ("oauth2_access_tokens", "mas.oauth2_access_tokens"),
    ("oauth2_clients", "mas.oauth2_clients"),
    ("oauth2_refresh_tokens", "mas.oauth2_refresh_tokens"),
    ("oauth2_sessions", "mas.oauth2_sessions"),
    ("personal_access_tokens", "mas.personal_access_tokens"),
    ("personal_sessions", "mas.personal_sessions"),
    ("upstream_oauth_links", "mas.upstream_oauth_links"),
    ("user_emails", "mas.user_emails"),
    ("user_registration_tokens", "mas.user_registration_tokens"),
    ("user_unsupported_third_party_ids", "mas.user_unsupported_third_party_ids"),
    ("users", "mas.users"),
    ("user_passwords", "mas.user_passwords"),
];

fn table(name: &'static str) -> &'static str {
    TABLES.iter().find(|(known, _)| *known == name).map_or(name, |(_, shown)| shown)
}

const SHORT: &str = "lives for minutes, and clients ask again";

/// Tables of the service that do not come along.
const LEFT: [(&str, &str, &str); 8] = [
    ("compat_sso_logins", "mas.compat_sso_logins", SHORT),
    ("oauth2_authorization_grants", "mas.oauth2_authorization_grants", SHORT),
    ("oauth2_device_code_grant", "mas.oauth2_device_code_grant", SHORT),
    (
        "policy_data",
        "mas.policy_data",
        "there are no policies of that kind: see registration and rate_limits",
    ),
    ("user_recovery_sessions", "mas.user_recovery_sessions", SHORT),
    ("user_registrations", "mas.user_registrations", "who was registering begins again"),
    ("user_sessions", "mas.user_sessions", "people sign in to the pages of this server again"),
    ("user_terms", "mas.user_terms", "who agreed to which terms is not kept"),
];

/// Tables of Synapse that it does not use beside the service.
const FORMER: [&str; 5] = [
    "access_tokens",
    "refresh_tokens",
    "registration_tokens",
    "user_external_ids",
    "user_threepids",
];

impl facts::Source for Source {
    fn about(&mut self) -> Result<About, SourceError> {
        let mut about = self.synapse.about()?;
        about.place = format!(
            "{}, with matrix-authentication-service in {}",
            about.place,
            self.database.place()
        );
        Ok(about)
    }

    fn count(&mut self, section: Section) -> Result<u64, SourceError> {
        match section {
            // Nearly all of these are in both.
            Section::Accounts | Section::Devices => self.synapse.count(section),
            _ if plans(section).is_empty() => self.synapse.count(section),
            _ => self.at_once(|source| {
                plan::count(&mut *source.database, &source.schema, plans(section))
            }),
        }
    }

    fn read(&mut self, section: Section, after: &Cursor) -> Result<Slice, SourceError> {
        match section {
            Section::Accounts | Section::Devices => self.both(section, after),
            _ if plans(section).is_empty() => self.synapse.read(section, after),
            _ => self.own(section, &[], after),
        }
    }

    fn read_of(
        &mut self,
        section: Section,
        owners: &[String],
        after: &Cursor,
    ) -> Result<Slice, SourceError> {
        if plans(section).is_empty() {
            return self.synapse.read_of(section, owners, after);
        }
        // These are in the order of ids, and not large.
        let mut slice = self.read(section, after)?;
        slice.facts.retain(|told| owner(&told.fact).is_some_and(|user| owners.contains(&user)));
        slice.bad.clear();
        Ok(slice)
    }

    fn state(&mut self, group: StateGroup) -> Result<Vec<StateEntry>, SourceError> {
        self.synapse.state(group)
    }

    fn state_step(&mut self, group: StateGroup) -> Result<StateStep, SourceError> {
        self.synapse.state_step(group)
    }

    fn events(&mut self, event_ids: &[String]) -> Result<Slice, SourceError> {
        self.synapse.events(event_ids)
    }

    fn newest(&mut self, room_id: &str, most: usize) -> Result<Vec<String>, SourceError> {
        self.synapse.newest(room_id, most)
    }

    fn head(&mut self) -> Result<i64, SourceError> {
        self.synapse.head()
    }

    fn unread(
        &mut self,
        user_id: &str,
    ) -> Result<Option<BTreeMap<String, UnreadCount>>, SourceError> {
        self.synapse.unread(user_id)
    }

    fn positions(&mut self) -> Result<BTreeMap<String, i64>, SourceError> {
        self.synapse.positions()
    }

    fn left(&mut self) -> Result<Vec<LeftTable>, SourceError> {
        let mut left = self.synapse.left()?;
        for table in FORMER {
            let rows = self.synapse.rows(table)?;
            let why = "of the time before matrix-authentication-service, and not in use";
            left.extend((rows > 0).then_some(LeftTable { table, rows, why }));
        }
        for (name, table, why) in LEFT {
            let rows = self.at_once(|source| source.schema.rows(&mut *source.database, name))?;
            left.extend((rows > 0).then_some(LeftTable { table, rows, why }));
        }
        Ok(left)
    }

    fn unfinished(&mut self) -> Result<Vec<String>, SourceError> {
        self.synapse.unfinished()
    }

    fn unready(&mut self) -> Result<Vec<String>, SourceError> {
        self.synapse.unready()
    }

    fn changed_rooms(&mut self, after: i64) -> Result<Vec<String>, SourceError> {
        self.synapse.changed_rooms(after)
    }

    fn stopped(&mut self) {
        self.synapse.stopped();
    }
}
