//! Accounts, devices and what proves who somebody is.

use crate::{
    facts::{
        AccessToken, Account, Device, ExternalId, Fact, Password, Preparation, Profile,
        RefreshToken, RegistrationToken, Secret, Threepid, ThreepidBinding, Token,
    },
    sql::plan::Plan,
    synapse::context::Context,
};

pub(super) const REGISTRATION_TOKENS: &[Plan<Context>] = &[Plan {
    from: "registration_tokens t",
    only: "",
    keys: 1,
    columns: &["t.token", "t.uses_allowed", "t.pending", "t.completed", "t.expiry_time"],
    shown: 0,
    tell: |row, _, facts| {
        facts.push(Fact::RegistrationToken(RegistrationToken {
            token: Secret(row.text("token")?),
            uses_allowed: row.int_or_none("uses_allowed")?,
            pending: row.int("pending")?,
            completed: row.int("completed")?,
            expires_ms: row.int_or_none("expiry_time")?,
        }));
        Ok(())
    },
}];

pub(super) const ACCOUNTS: &[Plan<Context>] = &[Plan {
    from: "users u LEFT JOIN erased_users x ON x.user_id = u.name",
    only: "",
    keys: 1,
    columns: &[
        "u.name",
        "u.password_hash",
        "u.creation_ts",
        "u.admin",
        "u.is_guest",
        "u.deactivated",
        "u.locked",
        "u.suspended",
        "u.shadow_banned",
        "u.approved",
        "u.user_type",
        "u.consent_version",
        "u.consent_ts",
        "u.appservice_id",
        "x.user_id AS erased",
        "EXISTS (SELECT 1 FROM users_pending_deactivation y WHERE y.user_id = u.name) AS pending",
    ],
    shown: 1,
    tell: |row, context, facts| {
        let hash = row.text_or_none("password_hash")?.filter(|hash| !hash.is_empty());
        // Synapse sets no other kind. What begins otherwise never let anybody in.
        let password = hash.filter(|hash| hash.starts_with("$2")).map(|hash| Password::Bcrypt {
            hash: Secret(hash),
            preparation: Preparation::Nfkc,
            peppered: context.peppered,
        });
        // Synapse takes the password first, then notes whom to take out of all rooms, and says at
        // last that the user is deactivated. One who was let in again since has a password.
        let is_pending = row.flag("pending")? && password.is_none();
        let created_s = row.int_or_none("creation_ts")?.unwrap_or_default();
        facts.push(Fact::Account(Account {
            user_id: row.text("name")?,
            password,
            created_ms: created_s.saturating_mul(1000),
            admin: row.flag("admin")?,
            guest: row.flag("is_guest")?,
            deactivated: row.flag("deactivated")? || is_pending,
            erased: row.text_or_none("erased")?.is_some(),
            locked: row.flag("locked")?,
            suspended: row.flag("suspended")?,
            shadow_banned: row.flag("shadow_banned")?,
            approved: row.int_or_none("approved")? != Some(0),
            user_type: row.text_or_none("user_type")?,
            consent_version: row.text_or_none("consent_version")?,
            consent_ms: row.int_or_none("consent_ts")?,
            app_service: row.text_or_none("appservice_id")?.filter(|id| !id.is_empty()),
        }));
        Ok(())
    },
}];

pub(super) const PROFILES: &[Plan<Context>] = &[Plan {
    from: "profiles p",
    only: "",
    keys: 1,
    columns: &["p.user_id", "p.displayname", "p.avatar_url", "p.fields"],
    shown: 1,
    tell: |row, context, facts| {
        let user_id = context.user_id(&row.text("user_id")?);
        for field in ["displayname", "avatar_url"] {
            if let Some(value) = row.text_or_none(field)?.filter(|value| !value.is_empty()) {
                facts.push(Fact::Profile(Profile {
                    user_id: user_id.clone(),
                    field: field.to_owned(),
                    value: value.into(),
                }));
            }
        }
        if let Some(fields) = row.json_or_none("fields")? {
            let fields: Option<serde_json::Map<String, serde_json::Value>> =
                serde_json::from_str(fields.get())
                    .map_err(|_| "the column `fields` holds no JSON object".to_owned())?;
            facts.extend(fields.into_iter().flatten().map(|(field, value)| {
                Fact::Profile(Profile { user_id: user_id.clone(), field, value })
            }));
        }
        Ok(())
    },
}];

pub(super) const THREEPIDS: &[Plan<Context>] = &[Plan {
    from: "user_threepids t",
    only: "",
    keys: 2,
    columns: &["t.medium", "t.address", "t.user_id", "t.validated_at", "t.added_at"],
    shown: 2,
    tell: |row, _, facts| {
        facts.push(Fact::Threepid(Threepid {
            user_id: row.text("user_id")?,
            medium: row.text("medium")?,
            address: row.text("address")?,
            validated_ms: row.int("validated_at")?,
            added_ms: row.int("added_at")?,
        }));
        Ok(())
    },
}];

pub(super) const THREEPID_BINDINGS: &[Plan<Context>] = &[Plan {
    from: "user_threepid_id_server t",
    only: "",
    keys: 4,
    columns: &["t.user_id", "t.medium", "t.address", "t.id_server"],
    shown: 4,
    tell: |row, _, facts| {
        facts.push(Fact::ThreepidBinding(ThreepidBinding {
            user_id: row.text("user_id")?,
            medium: row.text("medium")?,
            address: row.text("address")?,
            id_server: row.text("id_server")?,
        }));
        Ok(())
    },
}];

pub(super) const EXTERNAL_IDS: &[Plan<Context>] = &[Plan {
    from: "user_external_ids e",
    only: "",
    keys: 2,
    columns: &["e.auth_provider", "e.external_id", "e.user_id"],
    shown: 2,
    tell: |row, _, facts| {
        facts.push(Fact::ExternalId(ExternalId {
            user_id: row.text("user_id")?,
            provider: row.text("auth_provider")?,
            subject: row.text("external_id")?,
        }));
        Ok(())
    },
}];

/// Cross-signing keys have hidden rows here, too.
pub(super) const DEVICES: &[Plan<Context>] = &[Plan {
    from: "devices d",
    only: "NOT COALESCE(d.hidden, FALSE)",
    keys: 2,
    columns: &["d.user_id", "d.device_id", "d.display_name", "d.last_seen", "d.ip", "d.user_agent"],
    shown: 2,
    tell: |row, _, facts| {
        facts.push(Fact::Device(Device {
            user_id: row.text("user_id")?,
            device_id: row.text("device_id")?,
            display_name: row.text_or_none("display_name")?,
            seen_ms: row.int_or_none("last_seen")?,
            address: row.text_or_none("ip")?.filter(|address| !address.is_empty()),
            agent: row.text_or_none("user_agent")?.filter(|agent| !agent.is_empty()),
        }));
        Ok(())
    },
}];

pub(super) const ACCESS_TOKENS: &[Plan<Context>] = &[Plan {
    from: "access_tokens t",
    only: "",
    keys: 1,
    columns: &[
        "t.id",
        "t.user_id",
        "t.device_id",
        "t.token",
        "t.valid_until_ms",
        "t.puppets_user_id",
        "t.last_validated",
        "t.used",
        "t.refresh_token_id",
        "(SELECT max(i.last_seen) FROM user_ips i
            WHERE i.user_id = t.user_id AND i.access_token = t.token) AS seen",
    ],
    shown: 1,
    tell: |row, _, facts| {
        // A token that an administrator took names the administrator, and the user beside it.
        let owner = row.text("user_id")?;
        let puppet = row.text_or_none("puppets_user_id")?;
        let (user_id, puppet_of) = match puppet {
            Some(user_id) => (user_id, Some(owner)),
            None => (owner, None),
        };
        facts.push(Fact::AccessToken(AccessToken {
            user_id,
            device_id: row.text_or_none("device_id")?,
            grant_id: None,
            token: Token::Plain(Secret(row.text("token")?)),
            valid_until_ms: row.int_or_none("valid_until_ms")?,
            puppet_of,
            used_ms: row.int_or_none("last_validated")?.filter(|time| *time > 0),
            seen_ms: row.int_or_none("seen")?,
            used: row.flag("used")?,
            refresh: row.int_or_none("refresh_token_id")?,
        }));
        Ok(())
    },
}];

pub(super) const REFRESH_TOKENS: &[Plan<Context>] = &[Plan {
    from: "refresh_tokens t",
    only: "",
    keys: 1,
    columns: &[
        "t.id",
        "t.user_id",
        "t.device_id",
        "t.token",
        "t.next_token_id",
        "t.expiry_ts",
        "t.ultimate_session_expiry_ts",
    ],
    shown: 1,
    tell: |row, context, facts| {
        let session_ends_ms = row.int_or_none("ultimate_session_expiry_ts")?;
        let began = session_ends_ms.zip(context.session_lifetime_ms);
        facts.push(Fact::RefreshToken(RefreshToken {
            id: row.int("id")?,
            user_id: row.text("user_id")?,
            device_id: Some(row.text("device_id")?),
            grant_id: None,
            token: Token::Plain(Secret(row.text("token")?)),
            next: row.int_or_none("next_token_id")?,
            expires_ms: row.int_or_none("expiry_ts")?,
            session_ends_ms,
            session_began_ms: began.map(|(ends, lifetime)| ends.saturating_sub(lifetime)),
        }));
        Ok(())
    },
}];
