//! Accounts, and what proves who somebody is.

use super::user_id;
use crate::{
    facts::{
        Account, ExternalId, Fact, Password, Preparation, RegistrationToken, Secret, Threepid,
    },
    mas::{Context, settings::Algorithm},
    sql::{
        database::{Fault, Row},
        plan::Plan,
    },
};

pub(super) const REGISTRATION_TOKENS: &[Plan<Context>] = &[Plan {
    from: "user_registration_tokens t",
    only: "t.revoked_at IS NULL",
    keys: 1,
    columns: &[
        "t.user_registration_token_id",
        "t.token",
        "t.usage_limit",
        "t.times_used",
        "t.expires_at",
    ],
    shown: 1,
    tell: |row, _, facts| {
        facts.push(Fact::RegistrationToken(RegistrationToken {
            token: Secret(row.text("token")?),
            uses_allowed: row.int_or_none("usage_limit")?,
            pending: 0,
            completed: row.int("times_used")?,
            expires_ms: row.int_or_none("expires_at")?,
        }));
        Ok(())
    },
}];

/// What Synapse does not know of its users. Of several passwords, the newest is in use.
pub(super) const ACCOUNTS: &[Plan<Context>] = &[Plan {
    from: "users u",
    only: "",
    keys: 1,
    columns: &[
        "u.username",
        "u.created_at",
        "u.locked_at",
        "u.deactivated_at",
        "u.can_request_admin",
        "u.is_guest",
        "(SELECT p.hashed_password FROM user_passwords p WHERE p.user_id = u.user_id
            ORDER BY p.created_at DESC, p.user_password_id DESC LIMIT 1) AS hashed_password",
        "(SELECT p.version FROM user_passwords p WHERE p.user_id = u.user_id
            ORDER BY p.created_at DESC, p.user_password_id DESC LIMIT 1) AS version",
    ],
    shown: 1,
    tell: |row, context, facts| {
        let user_id = context.user_id(&row.text("username")?);
        // A time that cannot be read does not change what it says by being there.
        let created_ms = row.int("created_at");
        let is_set = |cell: Result<Option<String>, Fault>| cell.is_ok_and(|cell| cell.is_some());
        let locked = is_set(row.text_or_none("locked_at"));
        let deactivated = is_set(row.text_or_none("deactivated_at"));
        let (admin, guest) = (row.flag("can_request_admin")?, row.flag("is_guest")?);
        let password = password(row, context);
        facts.push(Fact::Account(Account {
            user_id,
            password: password.clone().ok().flatten(),
            created_ms: created_ms.clone().unwrap_or_default(),
            admin,
            guest,
            deactivated,
            erased: false,
            locked,
            suspended: false,
            shadow_banned: false,
            approved: true,
            user_type: None,
            consent_version: None,
            consent_ms: None,
            app_service: None,
        }));
        password?;
        created_ms?;
        Ok(())
    },
}];

fn password(row: &mut Row, context: &Context) -> Result<Option<Password>, Fault> {
    let Some(hash) = row.text_or_none("hashed_password")? else { return Ok(None) };
    let version = row.int("version")?;
    let Some(scheme) = context.schemes.get(&version) else {
        return Err(format!(
            "its password is of scheme {version}, which mas.yaml does not have: the user needs \
             another one"
        ));
    };
    let preparation = if scheme.normalized { Preparation::Nfkc } else { Preparation::Nothing };
    let (begins, peppered) = (|start: &str| hash.starts_with(start), scheme.peppered);
    let is_one = match scheme.algorithm {
        Algorithm::Bcrypt => begins("$2"),
        Algorithm::Argon2id => begins("$argon2id$"),
        Algorithm::Pbkdf2 => begins("$pbkdf2-"),
    };
    if !is_one {
        return Err(format!(
            "its password is not hashed as scheme {version} says: it never was right"
        ));
    }
    let hash = Secret(hash);
    Ok(Some(match scheme.algorithm {
        Algorithm::Bcrypt => Password::Bcrypt { hash, preparation, peppered },
        Algorithm::Argon2id => Password::Argon2id { hash, preparation, peppered },
        Algorithm::Pbkdf2 => Password::Pbkdf2 { hash, preparation, peppered },
    }))
}

pub(super) const THREEPIDS: &[Plan<Context>] = &[
    Plan {
        from: "user_emails e LEFT JOIN users u ON u.user_id = e.user_id",
        only: "",
        keys: 1,
        columns: &["e.user_email_id", "e.email", "e.created_at", "e.confirmed_at", "u.username"],
        shown: 1,
        tell: |row, context, facts| {
            let address = row.text("email")?;
            let added_ms = row.int("created_at")?;
            let validated_ms = row.int_or_none("confirmed_at")?;
            let user_id = user_id(row, context)?;
            let validated_ms = validated_ms.ok_or("the address was never confirmed")?;
            let medium = "email".to_owned();
            facts.push(Fact::Threepid(Threepid {
                user_id,
                medium,
                address,
                validated_ms,
                added_ms,
            }));
            Ok(())
        },
    },
    // Those that Synapse had before, and that are no email addresses.
    Plan {
        from: "user_unsupported_third_party_ids t LEFT JOIN users u ON u.user_id = t.user_id",
        only: "",
        keys: 3,
        columns: &["t.user_id", "t.medium", "t.address", "t.created_at", "u.username"],
        shown: 3,
        tell: |row, context, facts| {
            let (medium, address) = (row.text("medium")?, row.text("address")?);
            let added_ms = row.int("created_at")?;
            let user_id = user_id(row, context)?;
            let validated_ms = added_ms;
            facts.push(Fact::Threepid(Threepid {
                user_id,
                medium,
                address,
                validated_ms,
                added_ms,
            }));
            Ok(())
        },
    },
];

/// A link without a user is of somebody who has not chosen an account yet.
pub(super) const EXTERNAL_IDS: &[Plan<Context>] = &[Plan {
    from: "upstream_oauth_links l LEFT JOIN users u ON u.user_id = l.user_id",
    only: "l.user_id IS NOT NULL",
    keys: 1,
    columns: &[
        "l.upstream_oauth_link_id",
        "l.upstream_oauth_provider_id",
        "l.subject",
        "u.username",
    ],
    shown: 1,
    tell: |row, context, facts| {
        let (provider, subject) = (row.text("upstream_oauth_provider_id")?, row.text("subject")?);
        let user_id = user_id(row, context)?;
        let provider = context.providers.get(&provider);
        let provider = provider.ok_or("mas.yaml does not have its provider")?.clone();
        facts.push(Fact::ExternalId(ExternalId { user_id, provider, subject }));
        Ok(())
    },
}];
