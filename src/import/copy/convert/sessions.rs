//! The sessions of devices, and what users granted to OAuth clients.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use ruma::{OwnedDeviceId, ServerName};
use serde_json::value::RawValue;

use super::{Made, ms, own_user};
use crate::{
    copy::{rules::NO_CLIENT, writer::Left},
    facts::{self, Origin},
};
use logcabin_base::limits;
use logcabin_record::{
    Offset, Stream,
    command::{
        DeviceDehydrate, DeviceLogin, DeviceRefresh, DeviceSeen, OauthGrant, OauthRefresh,
        SentBefore, Sighting, TokenHash, Tokens,
    },
    scope::{InvalidScope, Scope},
};

/// A device, with all that makes its session.
#[derive(Debug, Default)]
pub(in crate::copy) struct Session {
    pub(in crate::copy) device: Option<facts::Device>,
    pub(in crate::copy) access: Vec<facts::AccessToken>,
    pub(in crate::copy) refresh: Vec<facts::RefreshToken>,
    /// What clients were granted that are this device.
    pub(in crate::copy) granted: Vec<Granted>,
    /// What its client has sent.
    pub(in crate::copy) sent: Vec<SentBefore>,
    /// The private keys of a dehydrated device.
    pub(in crate::copy) dehydrated: Option<Box<RawValue>>,
}

/// How many events of a device are kept. A client repeats what was not answered, and has few of
/// these under way.
const SENT: usize = 500;

/// What clients have sent, by user and device.
#[derive(Debug, Default)]
pub(in crate::copy) struct Sent(BTreeMap<(String, String), Vec<(i64, SentBefore)>>);

impl Sent {
    /// Notes that an event was sent. A client repeats what it has sent lately: of each, the newest
    /// are kept.
    pub(in crate::copy) fn add(&mut self, fact: facts::Transaction, event: Offset) {
        let facts::Transaction { room_id, user_id, device_id, transaction_id, time_ms, .. } = fact;
        let scope = match (fact.redacts, fact.event_type, fact.state_key) {
            (Some(target), _, None) => format!("redact/{room_id}/{target}"),
            (None, Some(event_type), None) => format!("send/{room_id}/{event_type}"),
            _ => return,
        };
        let of_device = self.0.entry((user_id, device_id)).or_default();
        of_device.push((time_ms, SentBefore { scope, id: transaction_id, event }));
        if of_device.len() >= 2 * SENT {
            keep_newest(of_device);
        }
    }

    pub(in crate::copy) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What a device has sent, oldest first, as much of it as fits into a record.
    pub(in crate::copy) fn take(&mut self, device: &(String, String)) -> Vec<SentBefore> {
        let mut sent = self.0.remove(device).unwrap_or_default();
        keep_newest(&mut sent);
        sent.into_iter().map(|(_, sent)| sent).collect()
    }
}

fn keep_newest(sent: &mut Vec<(i64, SentBefore)>) {
    sent.sort_by_key(|(time_ms, sent)| (*time_ms, sent.event));
    let mut bytes = 0;
    let newest = sent.iter().rev().take(SENT).take_while(|(_, sent)| {
        bytes += sent.scope.len() + sent.id.len() + 64;
        bytes <= limits::IMPORT_GROUP_BYTES
    });
    let older = sent.len() - newest.count();
    drop(sent.drain(..older));
}

/// The sessions of all devices, by user and device.
pub(in crate::copy) type Sessions = BTreeMap<(String, String), Session>;

/// A grant with its tokens.
#[derive(Debug)]
pub(in crate::copy) struct Granted {
    pub(in crate::copy) origin: Origin,
    /// Missing if there are tokens only.
    pub(in crate::copy) grant: Option<facts::OauthGrant>,
    pub(in crate::copy) access: Vec<facts::AccessToken>,
    pub(in crate::copy) refresh: Vec<facts::RefreshToken>,
}

impl Granted {
    pub(in crate::copy) const fn new(origin: Origin) -> Self {
        Self { origin, grant: None, access: Vec::new(), refresh: Vec::new() }
    }
}

/// Grants by their ids.
pub(in crate::copy) type Grants = BTreeMap<String, Granted>;

/// A grant without what this server does not grant, and the device that its client is. A client
/// that may use the API without a device becomes one that is named as the grant is: here, the API
/// is for devices.
pub(in crate::copy) fn scope_of(grant: &facts::OauthGrant) -> Result<Scope, Left> {
    let parsed = match Scope::parse(&grant.scope) {
        Err(InvalidScope::NoDevice) => {
            Scope::parse(&format!("{} urn:matrix:client:device:{}", grant.scope, grant.grant_id))
        }
        parsed => parsed,
    };
    parsed.map_err(|why| ("its scope cannot be granted here", why.to_string()))
}

/// Grants without a device.
type LoneGrants = Vec<(Granted, Scope)>;

/// Puts each grant to the device that it is of, and returns those that are of none, and those that
/// do not come along. `clients` are those that did.
pub(in crate::copy) fn assign(
    grants: Grants,
    clients: &BTreeSet<String>,
    sessions: &mut Sessions,
    origins: &mut BTreeMap<(String, String), Origin>,
) -> (LoneGrants, Vec<(Origin, Left)>) {
    let (mut lone, mut left) = (Vec::new(), Vec::new());
    for granted in grants.into_values() {
        let Some(grant) = &granted.grant else {
            let why = "there is no session of this token".to_owned();
            left.push((granted.origin, ("its session is not there", why)));
            continue;
        };
        if !clients.contains(&grant.client_id) {
            let why = format!("the client `{}` does not come along", grant.client_id);
            left.push((granted.origin, (NO_CLIENT, why)));
            continue;
        }
        let scope = match scope_of(grant) {
            Ok(scope) => scope,
            Err(why) => {
                left.push((granted.origin, why));
                continue;
            }
        };
        let Some(device_id) = &scope.device else {
            lone.push((granted, scope));
            continue;
        };
        let id = (grant.user_id.clone(), device_id.to_string());
        origins.entry(id.clone()).or_insert_with(|| granted.origin.clone());
        let session = sessions.entry(id).or_default();
        if session.device.is_none() && device_id.as_str() == grant.grant_id {
            session.device = Some(facts::Device {
                user_id: grant.user_id.clone(),
                device_id: device_id.to_string(),
                display_name: grant.name.clone(),
                seen_ms: None,
                address: None,
                agent: None,
            });
        }
        session.granted.push(granted);
    }
    (lone, left)
}

/// The record that opens the session of a device, as of `now_ms`. `secret` makes a token that
/// nobody has, for a device without one.
pub(in crate::copy) fn session(
    (user_id, device_id): (&str, &str),
    session: Session,
    own: &ServerName,
    (secret, now_ms): (&[u8], u64),
) -> Result<(Made, Vec<Left>), Left> {
    let user_id = own_user(user_id, own)?;
    let device_id = OwnedDeviceId::from(device_id);
    let stream = Stream::user(&user_id);
    let Session { device, mut access, mut refresh, mut granted, sent, dehydrated } = session;
    let display_name = device.as_ref().and_then(|device| device.display_name.clone());
    let Some(device) = device else {
        let why = format!("there is no device `{device_id}`");
        return Err(("its device is not there", why));
    };
    if let Some(device_data) = dehydrated {
        let body = DeviceDehydrate { user_id, device_id, display_name, device_data };
        return Ok((Made::one(stream, body), Vec::new()));
    }
    let mut left = Vec::new();
    // A login as a device ends what was before it.
    granted.sort_by_key(|granted| granted.grant.as_ref().map(|grant| grant.granted_ms));
    let grant = granted.pop().and_then(|newest| {
        let others = access.len() + granted.iter().map(|other| other.access.len()).sum::<usize>();
        let why = "a later login as the same device ended it".to_owned();
        left.extend((0..others).map(|_| ("a device has one session", why.clone())));
        (access, refresh) = (newest.access, newest.refresh);
        newest.grant
    });
    let began_ms = refresh.iter().filter_map(|token| token.session_began_ms).max();
    let (refresh, over): (Vec<_>, Vec<_>) =
        refresh.into_iter().partition(|token| !is_over(token, now_ms));
    for token in over {
        let why = format!("the refresh token {} has expired", token.id);
        left.push(("the refresh token has expired", why));
    }
    let of_device = format!("{user_id} {device_id}");
    let (now, next) = tokens(&access, &refresh, (secret, &of_device));
    let told = [&now, &next].map(|tokens| tokens.as_ref().map(|tokens| tokens.access));
    let is_told =
        |token: &facts::AccessToken| told.contains(&Some(TokenHash(token.token.sha256())));
    let older = access.iter().filter(|token| !is_told(token)).count();
    let why = format!("{older} older tokens of the same device");
    left.extend((0..older).map(|_| ("a device has one token", why.clone())));
    let issued_ms = access.iter().filter_map(|token| token.used_ms).max();
    // Without a token, nobody can use what was granted.
    let grant = grant.filter(|_| now.is_some());
    let tokens = now.unwrap_or_else(|| Tokens {
        access: nobodys(secret, &of_device),
        expires_ms: None,
        refresh: None,
    });
    let login = DeviceLogin {
        user_id: user_id.clone(),
        device_id: device_id.clone(),
        display_name,
        tokens,
        sent,
    };
    let granted_ms = grant.as_ref().map(|grant| grant.granted_ms);
    let original_ms = granted_ms.or(began_ms).or(device.seen_ms).or(issued_ms);
    let mut made = Made::one(stream.clone(), login).at(original_ms);
    if let Some(grant) = grant {
        let scope = scope_of(&grant)?;
        let mut body = given(grant, &scope, own, secret)?;
        body.device_id = Some(device_id.clone());
        made.add(stream.clone(), body);
    }
    if let Some(tokens) = next {
        let (user_id, device_id) = (user_id.clone(), device_id.clone());
        made.add(stream, DeviceRefresh { user_id, device_id, tokens });
    }
    let address = device.address.as_deref().and_then(|text| text.parse::<IpAddr>().ok());
    if let (Some(seen_ms), Some(address)) = (device.seen_ms, address) {
        let sighting = Sighting { seen_ms: ms(seen_ms), address, agent: device.agent };
        made.add(Stream::seen(), DeviceSeen { user_id, device_id, sighting });
    }
    Ok((made, left))
}

/// Whether nothing is given for a refresh token any more.
fn is_over(token: &facts::RefreshToken, now_ms: u64) -> bool {
    let ends = [token.expires_ms, token.session_ends_ms];
    ends.into_iter().flatten().any(|end| ms(end) < now_ms)
}

/// The record of a grant without a device.
pub(in crate::copy) fn lone_grant(
    (granted, scope): (Granted, Scope),
    own: &ServerName,
    secret: &[u8],
) -> Result<Made, Left> {
    let Granted { grant, access, refresh, .. } = granted;
    let grant =
        grant.ok_or_else(|| ("its session is not there", "it has no session".to_owned()))?;
    let (now, next) = tokens(&access, &refresh, (secret, &grant.grant_id));
    let Some(now) = now else {
        let why = "none of its tokens can be used any more".to_owned();
        return Err(("it has no token", why));
    };
    let granted_ms = grant.granted_ms;
    let mut body = given(grant, &scope, own, secret)?;
    body.tokens = Some(now);
    let (stream, grant_id) = (Stream::user(&body.user_id), body.grant_id.clone());
    let mut made = Made::one(stream.clone(), body).at(Some(granted_ms));
    if let Some(tokens) = next {
        made.add(stream, OauthRefresh { grant_id, tokens });
    }
    Ok(made)
}

/// A grant, without its device and its tokens.
fn given(
    grant: facts::OauthGrant,
    scope: &Scope,
    own: &ServerName,
    secret: &[u8],
) -> Result<OauthGrant, Left> {
    let facts::OauthGrant { grant_id, user_id, client_id, granted_ms, .. } = grant;
    Ok(OauthGrant {
        user_id: own_user(&user_id, own)?,
        client_id,
        scope: scope.to_string(),
        device_id: None,
        tokens: None,
        // It was used up elsewhere.
        code: nobodys(secret, &format!("code of {grant_id}")),
        auth_ms: ms(granted_ms),
        grant_id,
    })
}

/// The valid tokens of a session, and those that they are exchanged for once these are used. A
/// refresh token without its access token comes with one that nobody has.
fn tokens(
    access: &[facts::AccessToken],
    refresh: &[facts::RefreshToken],
    (secret, owner): (&[u8], &str),
) -> (Option<Tokens>, Option<Tokens>) {
    let with = |id: i64| refresh.iter().find(|refresh| refresh.id == id);
    let hash = |token: &facts::Token| TokenHash(token.sha256());
    let of_access = |token: &facts::AccessToken| {
        let with = token.refresh.and_then(with);
        let ends = with.and_then(|refresh| refresh.session_ends_ms);
        Tokens {
            access: hash(&token.token),
            expires_ms: token.valid_until_ms.into_iter().chain(ends).min().map(ms),
            refresh: with.map(|refresh| hash(&refresh.token)),
        }
    };
    let of_refresh = |token: &facts::RefreshToken| {
        match access.iter().find(|access| access.refresh == Some(token.id)) {
            Some(access) => of_access(access),
            // It has expired, or was revoked.
            None => Tokens {
                access: nobodys(secret, &format!("{owner} with {}", token.id)),
                expires_ms: None,
                refresh: Some(hash(&token.token)),
            },
        }
    };
    // Those that are exchanged for each other are one, and its newest may not have been used yet.
    let of_chain = access.iter().filter(|token| token.refresh.is_some());
    let of_chain = of_chain.filter_map(|token| token.seen_ms).max();
    let seen_ms = |token: &facts::AccessToken| match token.refresh {
        Some(_) => of_chain,
        None => token.seen_ms,
    };
    let rank = |token: &&facts::AccessToken| (seen_ms(token), token.refresh, token.used_ms);
    let newest = access.iter().max_by_key(rank);
    let newest_refresh = refresh.iter().max_by_key(|token| token.id);
    let is_before = |last: &facts::RefreshToken, token: &facts::AccessToken| {
        token.refresh.is_some_and(|id| id < last.id)
    };
    let (now, id, is_used) = match (newest, newest_refresh) {
        // Its own access token is gone.
        (newest, Some(last)) if newest.is_none_or(|token| is_before(last, token)) => {
            (of_refresh(last), Some(last.id), false)
        }
        (Some(token), _) => (of_access(token), token.refresh, token.used),
        (None, _) => return (None, None),
    };
    let before = id
        .filter(|_| !is_used)
        .and_then(|id| refresh.iter().find(|earlier| earlier.next == Some(id)));
    match before {
        // Nobody has used the new ones yet: the old ones are valid until then.
        Some(before) => (Some(of_refresh(before)), Some(now)),
        None => (Some(now), None),
    }
}

/// The hash of a token that does not exist.
fn nobodys(secret: &[u8], of: &str) -> TokenHash {
    let key = blake3::derive_key("logcabin 2026-11 tokens that nobody has", secret);
    TokenHash(*blake3::keyed_hash(&key, of.as_bytes()).as_bytes())
}

#[cfg(test)]
mod tests {
    use ruma::server_name;

    use super::*;
    use logcabin_record::Command;

    fn plain(text: &str) -> facts::Token {
        facts::Token::Plain(facts::Secret(text.to_owned()))
    }

    fn kinds(made: &Made) -> Vec<&'static str> {
        made.commands.iter().map(|(_, command)| command.kind().name).collect()
    }

    fn access(token: &str, refresh: Option<i64>, used: bool) -> facts::AccessToken {
        facts::AccessToken {
            user_id: "@ann:a.example".to_owned(),
            device_id: Some("D".to_owned()),
            grant_id: None,
            token: plain(token),
            valid_until_ms: None,
            puppet_of: None,
            used_ms: Some(9),
            seen_ms: None,
            used,
            refresh,
        }
    }

    fn refresh(id: i64, next: Option<i64>) -> facts::RefreshToken {
        facts::RefreshToken {
            id,
            user_id: "@ann:a.example".to_owned(),
            device_id: Some("D".to_owned()),
            grant_id: None,
            token: plain(&format!("r{id}")),
            next,
            expires_ms: None,
            session_ends_ms: None,
            session_began_ms: None,
        }
    }

    fn made(access: Vec<facts::AccessToken>, refresh: Vec<facts::RefreshToken>) -> Made {
        let device = facts::Device {
            user_id: "@ann:a.example".to_owned(),
            device_id: "D".to_owned(),
            display_name: None,
            seen_ms: Some(7),
            address: Some("::1".to_owned()),
            agent: None,
        };
        let of = Session { device: Some(device), access, refresh, ..Session::default() };
        let id = ("@ann:a.example", "D");
        session(id, of, server_name!("a.example"), (b"secret", 1_000)).unwrap().0
    }

    #[test]
    fn tokens_that_were_not_used_yet_leave_those_before_them_valid() {
        let chain = || vec![refresh(1, Some(2)), refresh(2, None)];
        let tokens = |made: &Made, at: usize| match &made.commands[at].1 {
            Command::DeviceLogin(body) => body.tokens.clone(),
            Command::DeviceRefresh(body) => body.tokens.clone(),
            other => panic!("{other:?}"),
        };
        let hash = |text: &str| TokenHash::of(text);
        let unused = made(vec![access("a1", Some(1), true), access("a2", Some(2), false)], chain());
        assert_eq!(kinds(&unused), ["device.login", "device.refresh", "device.seen"]);
        assert_eq!(tokens(&unused, 0).access, hash("a1"));
        assert_eq!(tokens(&unused, 0).refresh, Some(hash("r1")));
        assert_eq!(tokens(&unused, 1).access, hash("a2"));
        let used = made(vec![access("a1", Some(1), true), access("a2", Some(2), true)], chain());
        assert_eq!(kinds(&used), ["device.login", "device.seen"]);
        assert_eq!(tokens(&used, 0).refresh, Some(hash("r2")));
        let plain = made(vec![access("a", None, false)], vec![]);
        assert_eq!((tokens(&plain, 0).access, tokens(&plain, 0).refresh), (hash("a"), None));
    }

    #[test]
    fn the_token_that_is_in_use_stays_valid() {
        let seen =
            |token: &str, seen_ms| facts::AccessToken { seen_ms, ..access(token, None, true) };
        let newer = facts::AccessToken { used_ms: Some(99), ..seen("newer", Some(10)) };
        let made = made(vec![newer, seen("used", Some(20)), seen("never", None)], vec![]);
        let Command::DeviceLogin(body) = &made.commands[0].1 else { panic!("no login") };
        assert_eq!(body.tokens.access, TokenHash::of("used"));
    }

    #[test]
    fn a_session_that_ends_in_the_source_ends_here() {
        let login = |made: &Made| match &made.commands[0].1 {
            Command::DeviceLogin(body) => body.tokens.clone(),
            other => panic!("{other:?}"),
        };
        let token = |ends: i64, expires: i64| facts::RefreshToken {
            session_began_ms: Some(ends - 600),
            session_ends_ms: Some(ends),
            expires_ms: Some(expires),
            ..refresh(1, None)
        };
        let lasting = made(vec![access("a", Some(1), true)], vec![token(1_500, 1_200)]);
        assert_eq!(lasting.original_ms, Some(900), "its lifetime counts from there");
        assert_eq!(login(&lasting).expires_ms, Some(1_500));
        assert_eq!(login(&lasting).refresh, Some(TokenHash::of("r1")));
        for over in [token(1_500, 999), token(999, 2_000)] {
            let made = made(vec![access("a", Some(1), true)], vec![over]);
            assert_eq!(login(&made).refresh, None);
        }
    }

    #[test]
    fn a_device_without_a_token_is_there_and_nobody_can_use_it() {
        let (one, again) = (made(vec![], vec![]), made(vec![], vec![]));
        let access = |made: &Made| match &made.commands[0].1 {
            Command::DeviceLogin(body) => body.tokens.access,
            other => panic!("{other:?}"),
        };
        assert_eq!(access(&one), access(&again));
        assert_ne!(access(&one), TokenHash::of(""));
    }
    /// A grant of `App`, with tokens as they are found after a pause: the access token is gone.
    fn granted(grant_id: &str, scope: &str, granted_ms: i64) -> Granted {
        let mut granted = Granted::new(Origin {
            table: "oauth2_sessions",
            key: facts::Key::Text(grant_id.into()),
        });
        granted.grant = Some(facts::OauthGrant {
            grant_id: grant_id.to_owned(),
            user_id: "@ann:a.example".to_owned(),
            client_id: "App".to_owned(),
            scope: scope.to_owned(),
            name: Some("My app".to_owned()),
            granted_ms,
        });
        granted.refresh = vec![refresh(2, None)];
        granted
    }

    const API: &str = "urn:matrix:org.matrix.msc2967.client:api:*";

    fn assigned(grants: Vec<Granted>) -> (LoneGrants, Sessions, Vec<(Origin, Left)>) {
        let id = |granted: &Granted| granted.origin.key.to_string();
        let grants = grants.into_iter().map(|granted| (id(&granted), granted)).collect();
        let clients = BTreeSet::from(["App".to_owned()]);
        let mut sessions = Sessions::new();
        let (lone, left) = assign(grants, &clients, &mut sessions, &mut BTreeMap::new());
        (lone, sessions, left)
    }

    fn only(sessions: Sessions) -> Session {
        let mut sessions = sessions.into_values();
        let session = sessions.next().expect("a session");
        assert!(sessions.next().is_none(), "one session");
        session
    }

    fn logged_in(session: Session, device_id: &str) -> (DeviceLogin, OauthGrant, usize) {
        let id = ("@ann:a.example", device_id);
        let own = server_name!("a.example");
        let (made, left) = super::session(id, session, own, (b"s", 1)).unwrap();
        let mut commands = made.commands.into_iter().map(|(_, command)| command);
        match (commands.next(), commands.next()) {
            (Some(Command::DeviceLogin(login)), Some(Command::OauthGrant(grant))) => {
                (login, grant, left.len())
            }
            other => panic!("not a login with its grant: {other:?}"),
        }
    }

    #[test]
    fn a_grant_is_of_the_device_that_its_scope_names_and_goes_on_by_its_refresh_token() {
        let scope = format!("{API} urn:matrix:org.matrix.msc2967.client:device:D urn:mas:admin");
        let (lone, sessions, left) = assigned(vec![granted("G", &scope, 5)]);
        assert!(lone.is_empty() && left.is_empty());
        let mut session = only(sessions);
        session.device = Some(facts::Device {
            user_id: "@ann:a.example".to_owned(),
            device_id: "D".to_owned(),
            display_name: Some("Phone".to_owned()),
            seen_ms: Some(9),
            address: None,
            agent: None,
        });
        // What the device had before it was granted something.
        session.access = vec![access("old", None, true)];
        let (login, grant, left) = logged_in(session, "D");
        assert_eq!(login.tokens.refresh, Some(TokenHash::of("r2")));
        assert_ne!(login.tokens.access, TokenHash::of("old"));
        assert_eq!(login.display_name.as_deref(), Some("Phone"));
        assert_eq!((grant.device_id.as_deref(), left), (Some("D".into()), 1));
        assert!(!grant.scope.contains("urn:mas"), "{}", grant.scope);
        assert_eq!((grant.tokens, grant.auth_ms), (None, 5));
    }

    #[test]
    fn who_may_use_the_api_without_a_device_gets_one_of_that_grants_name() {
        let (lone, sessions, _) = assigned(vec![granted("G", API, 5)]);
        assert!(lone.is_empty());
        let (login, grant, _) = logged_in(only(sessions), "G");
        assert_eq!(login.display_name.as_deref(), Some("My app"));
        assert_eq!(grant.device_id.as_deref(), Some("G".into()));
    }

    #[test]
    fn of_two_grants_for_one_device_the_later_one_goes_on() {
        let scope = format!("{API} urn:matrix:client:device:D");
        let (mut first, second) = (granted("G1", &scope, 5), granted("G2", &scope, 6));
        first.refresh = vec![refresh(1, None)];
        let (_, sessions, _) = assigned(vec![second, first]);
        let mut session = only(sessions);
        session.device = Some(facts::Device {
            user_id: "@ann:a.example".to_owned(),
            device_id: "D".to_owned(),
            display_name: None,
            seen_ms: None,
            address: None,
            agent: None,
        });
        let (login, grant, _) = logged_in(session, "D");
        assert_eq!(
            (grant.grant_id.as_str(), login.tokens.refresh),
            ("G2", Some(TokenHash::of("r2")))
        );
    }

    #[test]
    fn a_grant_without_a_device_keeps_its_tokens_to_itself() {
        let (mut lone, sessions, left) = assigned(vec![granted("G", "urn:synapse:admin:*", 5)]);
        assert!(sessions.is_empty() && left.is_empty());
        let one = lone.pop().expect("a grant");
        let made = lone_grant(one, server_name!("a.example"), b"s").unwrap();
        let Command::OauthGrant(body) = &made.commands[0].1 else { panic!("no grant") };
        assert_eq!(body.tokens.as_ref().unwrap().refresh, Some(TokenHash::of("r2")));
        assert_eq!(made.original_ms, Some(5));
        let mut empty = granted("G", "urn:synapse:admin:*", 5);
        empty.refresh.clear();
        let (mut lone, ..) = assigned(vec![empty]);
        let one = lone.pop().expect("a grant");
        assert!(lone_grant(one, server_name!("a.example"), b"s").is_err());
    }

    #[test]
    fn what_cannot_be_granted_here_is_left_with_its_reason() {
        let mut unknown = granted("G1", "urn:synapse:admin:*", 5);
        unknown.grant.as_mut().unwrap().client_id = "other".to_owned();
        let mut tokens_only = granted("G2", "", 5);
        tokens_only.grant = None;
        let nothing = granted("G3", "urn:mas:graphql:*", 5);
        let (lone, sessions, left) = assigned(vec![unknown, tokens_only, nothing]);
        assert!(lone.is_empty() && sessions.is_empty());
        let reasons: Vec<_> =
            left.iter().map(|(origin, (why, _))| (origin.key.to_string(), *why)).collect();
        assert_eq!(
            reasons,
            [
                ("G1".to_owned(), "its client does not come along"),
                ("G2".to_owned(), "its session is not there"),
                ("G3".to_owned(), "its scope cannot be granted here"),
            ]
        );
    }
}
