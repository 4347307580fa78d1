//! Accounts, what belongs to them, and the sessions of their devices.

use std::{collections::BTreeMap, net::IpAddr};

use ruma::{OwnedDeviceId, OwnedUserId, ServerName};
use serde_json::value::RawValue;

use super::{Made, ms, number, own_user};
use crate::{
    copy::writer::Left,
    facts::{self, Preparation},
};
use logcabin_record::{
    Stream, address,
    command::{
        AccountKind, DeviceDehydrate, DeviceLogin, DeviceRefresh, DeviceSeen, PasswordFlags,
        ProfileSet, RegistrationTokenSet, Requirements, Secret, Sighting, SsoLink, TokenHash,
        Tokens, UserDeactivate, UserPassword, UserRegister, UserStatus, imported_password,
    },
    threepid::{Threepid, ThreepidAdd, ThreepidBind},
};

/// The name under which the version of the terms is recorded that a user has agreed to.
const TERMS: &str = "privacy_policy";

/// What is to be known of a new account, or what may have changed of one that is there.
pub(in crate::copy) fn account(
    fact: &facts::Account,
    own: &ServerName,
    exists: bool,
) -> Result<Made, Left> {
    let user_id = own_user(&fact.user_id, own)?;
    let stream = Stream::user(&user_id);
    let password = fact.password.as_ref().map(password);
    let mut made = Made::default().at(Some(fact.created_ms));
    if exists {
        if let Some(password) = password.filter(|_| !fact.deactivated) {
            made.add(
                stream.clone(),
                UserPassword { user_id: user_id.clone(), password, renewed: false },
            );
        }
    } else {
        let terms = fact.consent_version.iter().map(|of| (TERMS.to_owned(), of.clone()));
        let met = Requirements { registration_token: None, terms: terms.collect() };
        let kind = if fact.guest { AccountKind::Guest } else { AccountKind::User };
        made.add(stream.clone(), UserRegister { user_id: user_id.clone(), kind, password, met });
    }
    // What a shadow-banned user sends reaches nobody; a suspended one cannot send.
    let suspended = fact.suspended || fact.shadow_banned;
    // An account that nobody has let in yet cannot be used.
    let locked = fact.locked || !fact.approved;
    if exists || fact.admin || locked || suspended {
        made.add(
            stream.clone(),
            UserStatus {
                user_id: user_id.clone(),
                admin: Some(fact.admin),
                locked: Some(locked),
                suspended: Some(suspended),
                reason: None,
            },
        );
    }
    if fact.deactivated {
        let erase = fact.erased;
        made.add(
            stream,
            UserDeactivate { user_id, erase, messages: false, media: false, reason: None },
        );
    }
    Ok(made)
}

fn password(password: &facts::Password) -> Secret {
    let nfkc = |preparation: &Preparation| matches!(preparation, Preparation::Nfkc);
    let (hash, nfkc, pepper) = match password {
        facts::Password::Bcrypt { hash, peppered } => (hash, true, *peppered),
        facts::Password::Argon2id { hash, preparation }
        | facts::Password::Pbkdf2 { hash, preparation } => (hash, nfkc(preparation), false),
    };
    imported_password(PasswordFlags { nfkc, pepper }, hash.expose())
}

pub(in crate::copy) fn registration_token(fact: &facts::RegistrationToken) -> Made {
    let body = RegistrationTokenSet {
        registration_token: TokenHash::of(fact.token.expose()),
        label: None,
        uses_allowed: fact.uses_allowed.map(number),
        expires_ms: fact.expires_ms.map(ms),
        used: Some(number(fact.completed)),
    };
    Made::one(Stream::registration_token(&body.registration_token), body)
}

pub(in crate::copy) fn profile(fact: facts::Profile, own: &ServerName) -> Result<Made, Left> {
    let user_id = own_user(&fact.user_id, own)?;
    let value = Some(fact.value).filter(|value| !value.is_null());
    Ok(Made::one(Stream::user(&user_id), ProfileSet { user_id, field: fact.field, value }))
}

fn threepid(medium: &str, address: &str) -> Result<Threepid, Left> {
    let odd = |_| ("it is no address", format!("it is no address of the kind `{medium}`"));
    address::parse(medium, address).map_err(odd)
}

pub(in crate::copy) fn threepid_add(
    fact: &facts::Threepid,
    own: &ServerName,
) -> Result<Made, Left> {
    let user_id = own_user(&fact.user_id, own)?;
    let threepid = threepid(&fact.medium, &fact.address)?;
    let stream = Stream::threepid(&threepid);
    let (validated_ms, added_ms) = (ms(fact.validated_ms), ms(fact.added_ms));
    Ok(Made::one(stream, ThreepidAdd { user_id, threepid, validated_ms, added_ms }))
}

pub(in crate::copy) fn threepid_bind(
    fact: facts::ThreepidBinding,
    own: &ServerName,
) -> Result<Made, Left> {
    let user_id = own_user(&fact.user_id, own)?;
    let threepid = threepid(&fact.medium, &fact.address)?;
    let stream = Stream::user(&user_id);
    Ok(Made::one(stream, ThreepidBind { user_id, threepid, id_server: fact.id_server }))
}

pub(in crate::copy) fn external_id(
    fact: facts::ExternalId,
    own: &ServerName,
) -> Result<Made, Left> {
    let user_id = own_user(&fact.user_id, own)?;
    // Synapse names providers of OpenID Connect so, and others by what they are.
    let provider = fact.provider.strip_prefix("oidc-").unwrap_or(&fact.provider).to_owned();
    let stream = Stream::sso(&provider, &fact.subject);
    Ok(Made::one(stream, SsoLink { user_id, provider, subject: fact.subject }))
}

/// A device, with all that makes its session.
#[derive(Debug, Default)]
pub(in crate::copy) struct Session {
    pub(in crate::copy) device: Option<facts::Device>,
    pub(in crate::copy) access: Vec<facts::AccessToken>,
    pub(in crate::copy) refresh: Vec<facts::RefreshToken>,
    /// The private keys of a dehydrated device.
    pub(in crate::copy) dehydrated: Option<Box<RawValue>>,
}

/// The sessions of all devices, by user and device.
pub(in crate::copy) type Sessions = BTreeMap<(String, String), Session>;

/// The record that opens the session of a device. `secret` makes a token that nobody has, for a
/// device without one.
pub(in crate::copy) fn session(
    (user_id, device_id): (&str, &str),
    session: Session,
    own: &ServerName,
    secret: &[u8],
) -> Result<(Made, Vec<Left>), Left> {
    let user_id = own_user(user_id, own)?;
    let device_id = OwnedDeviceId::from(device_id);
    let stream = Stream::user(&user_id);
    let Session { device, access, refresh, dehydrated } = session;
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
    let (now, next) = tokens(&access, &refresh);
    if access.len() > 1 + usize::from(next.is_some()) {
        let count = access.len() - 1 - usize::from(next.is_some());
        let why = format!("{count} older tokens of the same device");
        left.extend((0..count).map(|_| ("a device has one token", why.clone())));
    }
    let issued_ms = access.iter().filter_map(|token| token.used_ms).max();
    let tokens = now.unwrap_or_else(|| Tokens {
        access: TokenHash(nobodys(secret, &user_id, device_id.as_str())),
        expires_ms: None,
        refresh: None,
    });
    let login = DeviceLogin {
        user_id: user_id.clone(),
        device_id: device_id.clone(),
        display_name,
        tokens,
    };
    let mut made = Made::one(stream.clone(), login).at(device.seen_ms.or(issued_ms));
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

/// The valid tokens of a session, and those that they are exchanged for once these are used.
fn tokens(
    access: &[facts::AccessToken],
    refresh: &[facts::RefreshToken],
) -> (Option<Tokens>, Option<Tokens>) {
    let newest = access.iter().max_by_key(|token| (token.refresh, token.used_ms));
    let Some(newest) = newest else { return (None, None) };
    let of = |token: &facts::AccessToken| {
        let with = token.refresh.and_then(|id| refresh.iter().find(|refresh| refresh.id == id));
        Tokens {
            access: TokenHash::of(token.token.expose()),
            expires_ms: token.valid_until_ms.map(ms),
            refresh: with.map(|refresh| TokenHash::of(refresh.token.expose())),
        }
    };
    let before = newest.refresh.filter(|_| !newest.used).and_then(|id| {
        let earlier = refresh.iter().find(|refresh| refresh.next == Some(id))?;
        access.iter().find(|token| token.refresh == Some(earlier.id))
    });
    match before {
        // Nobody has used the new ones yet: the old ones are valid until then.
        Some(before) => (Some(of(before)), Some(of(newest))),
        None => (Some(of(newest)), None),
    }
}

/// The hash of a token that does not exist.
fn nobodys(secret: &[u8], user_id: &OwnedUserId, device_id: &str) -> [u8; 32] {
    let key = blake3::derive_key("logcabin 2026-11 tokens that nobody has", secret);
    let mut hasher = blake3::Hasher::new_keyed(&key);
    hasher.update(user_id.as_bytes()).update(b" ").update(device_id.as_bytes());
    *hasher.finalize().as_bytes()
}

#[cfg(test)]
mod tests {
    use ruma::server_name;

    use super::*;
    use logcabin_record::Command;

    fn account_fact() -> facts::Account {
        facts::Account {
            user_id: "@ann:a.example".to_owned(),
            password: Some(facts::Password::Bcrypt {
                hash: facts::Secret("$2b$12$x".to_owned()),
                peppered: true,
            }),
            created_ms: 5_000,
            admin: false,
            guest: false,
            deactivated: false,
            erased: false,
            locked: false,
            suspended: false,
            shadow_banned: false,
            approved: true,
            user_type: None,
            consent_version: Some("2".to_owned()),
            consent_ms: None,
            app_service: None,
        }
    }

    fn kinds(made: &Made) -> Vec<&'static str> {
        made.commands.iter().map(|(_, command)| command.kind().name).collect()
    }

    #[test]
    fn an_account_is_registered_once_and_what_changed_is_set_afterwards() {
        let own = server_name!("a.example");
        let mut fact = account_fact();
        let made = account(&fact, own, false).unwrap();
        assert_eq!((kinds(&made), made.original_ms), (vec!["user.register"], Some(5_000)));
        let Command::UserRegister(body) = &made.commands[0].1 else { panic!("no registration") };
        assert_eq!(body.password.as_ref().unwrap().expose(), "{nfkc,pepper}$2b$12$x");
        assert_eq!(body.met.terms[TERMS], "2");
        let made = account(&fact, own, true).unwrap();
        assert_eq!(kinds(&made), ["user.password", "user.status"]);
        (fact.shadow_banned, fact.deactivated) = (true, true);
        let made = account(&fact, own, false).unwrap();
        assert_eq!(kinds(&made), ["user.register", "user.status", "user.deactivate"]);
        let Command::UserStatus(body) = &made.commands[1].1 else { panic!("no status") };
        assert_eq!((body.suspended, body.locked), (Some(true), Some(false)));
        fact.user_id = "@ann:b.example".to_owned();
        assert!(account(&fact, own, false).is_err());
    }

    fn access(token: &str, refresh: Option<i64>, used: bool) -> facts::AccessToken {
        facts::AccessToken {
            user_id: "@ann:a.example".to_owned(),
            device_id: Some("D".to_owned()),
            token: facts::Secret(token.to_owned()),
            valid_until_ms: None,
            puppet_of: None,
            used_ms: Some(9),
            used,
            refresh,
        }
    }

    fn refresh(id: i64, next: Option<i64>) -> facts::RefreshToken {
        facts::RefreshToken {
            id,
            user_id: "@ann:a.example".to_owned(),
            device_id: "D".to_owned(),
            token: facts::Secret(format!("r{id}")),
            next,
            expires_ms: None,
            session_ends_ms: None,
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
        let of = Session { device: Some(device), access, refresh, dehydrated: None };
        let id = ("@ann:a.example", "D");
        session(id, of, server_name!("a.example"), b"secret").unwrap().0
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
    fn a_device_without_a_token_is_there_and_nobody_can_use_it() {
        let (one, again) = (made(vec![], vec![]), made(vec![], vec![]));
        let access = |made: &Made| match &made.commands[0].1 {
            Command::DeviceLogin(body) => body.tokens.access,
            other => panic!("{other:?}"),
        };
        assert_eq!(access(&one), access(&again));
        assert_ne!(access(&one), TokenHash::of(""));
    }
}
