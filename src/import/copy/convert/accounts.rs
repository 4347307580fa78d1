//! Accounts, and what belongs to them.

use std::collections::BTreeMap;

use ruma::ServerName;

use super::{Made, ms, number, own_user};
use crate::{
    copy::writer::Left,
    facts::{self, Preparation},
};
use logcabin_record::{
    Stream, address,
    command::{
        AccountKind, PasswordFlags, ProfileSet, RegistrationTokenSet, Requirements, Secret,
        SsoLink, TokenHash, UserDeactivate, UserPassword, UserRegister, UserStatus, UserWait,
        imported_password,
    },
    threepid::{Threepid, ThreepidAdd, ThreepidBind},
};

/// The name under which the version of the terms is recorded that a user has agreed to.
const TERMS: &str = "privacy_policy";

/// What of an account is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::copy) enum Part {
    /// That it is there. All else may still be taken back.
    Begin,
    /// What is left of one whose begin is recorded.
    Rest,
    /// Everything.
    Whole,
}

/// What is to be known of an account.
pub(in crate::copy) fn account(
    fact: &facts::Account,
    own: &ServerName,
    part: Part,
) -> Result<Made, Left> {
    let user_id = own_user(&fact.user_id, own)?;
    let stream = Stream::user(&user_id);
    let password = fact.password.as_ref().map(password).filter(|_| part != Part::Begin);
    let mut made = Made::default().at(Some(fact.created_ms));
    if part == Part::Rest {
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
    if part == Part::Begin {
        return Ok(made);
    }
    let shadow_banned = fact.is_shadow_banned();
    if fact.admin || fact.locked || fact.suspended || shadow_banned {
        made.add(
            stream.clone(),
            UserStatus {
                user_id: user_id.clone(),
                admin: Some(fact.admin),
                locked: Some(fact.locked),
                suspended: Some(fact.suspended),
                shadow_banned: shadow_banned.then_some(true),
                approved: None,
                reason: None,
                terms: BTreeMap::new(),
            },
        );
    }
    if !fact.approved && !fact.deactivated {
        let user_id = user_id.clone();
        made.add(stream.clone(), UserWait { user_id, answer: None, address: None });
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

/// What the user has agreed to, of an account whose begin was recorded before that.
pub(in crate::copy) fn agreed(
    fact: &facts::Account,
    own: &ServerName,
) -> Result<Option<Made>, Left> {
    let Some(version) = fact.consent_version.clone() else { return Ok(None) };
    let user_id = own_user(&fact.user_id, own)?;
    let stream = Stream::user(&user_id);
    let terms = BTreeMap::from([(TERMS.to_owned(), version)]);
    let body = UserStatus { terms, ..UserStatus::of(user_id) };
    Ok(Some(Made::one(stream, body).at(fact.consent_ms)))
}

fn password(password: &facts::Password) -> Secret {
    let (facts::Password::Bcrypt { hash, preparation, peppered }
    | facts::Password::Argon2id { hash, preparation, peppered }
    | facts::Password::Pbkdf2 { hash, preparation, peppered }) = password;
    let nfkc = matches!(preparation, Preparation::Nfkc);
    imported_password(PasswordFlags { nfkc, pepper: *peppered }, hash.expose())
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
                preparation: Preparation::Nfkc,
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
        let made = account(&fact, own, Part::Whole).unwrap();
        assert_eq!((kinds(&made), made.original_ms), (vec!["user.register"], Some(5_000)));
        let Command::UserRegister(body) = &made.commands[0].1 else { panic!("no registration") };
        assert_eq!(body.password.as_ref().unwrap().expose(), "{nfkc,pepper}$2b$12$x");
        assert_eq!(body.met.terms[TERMS], "2");
        let made = account(&fact, own, Part::Begin).unwrap();
        let Command::UserRegister(body) = &made.commands[0].1 else { panic!("no registration") };
        assert!(body.password.is_none());
        let made = account(&fact, own, Part::Rest).unwrap();
        assert_eq!(kinds(&made), ["user.password"]);
        (fact.shadow_banned, fact.deactivated) = (true, true);
        assert_eq!(kinds(&account(&fact, own, Part::Begin).unwrap()), ["user.register"]);
        let made = account(&fact, own, Part::Rest).unwrap();
        assert_eq!(kinds(&made), ["user.status", "user.deactivate"]);
        let made = account(&fact, own, Part::Whole).unwrap();
        assert_eq!(kinds(&made), ["user.register", "user.status", "user.deactivate"]);
        let Command::UserStatus(body) = &made.commands[1].1 else { panic!("no status") };
        assert_eq!((body.shadow_banned, body.locked), (Some(true), Some(false)));
        (fact.shadow_banned, fact.approved, fact.deactivated) = (false, false, false);
        let made = account(&fact, own, Part::Whole).unwrap();
        assert_eq!(kinds(&made), ["user.register", "user.wait"]);
        fact.user_id = "@ann:b.example".to_owned();
        assert!(account(&fact, own, Part::Whole).is_err());
    }
}
