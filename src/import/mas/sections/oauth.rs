//! Clients, sessions and their tokens. Sessions that have ended are left out, and so are tokens
//! that were revoked or exchanged.

use serde_json::{Map, Value, json};

use super::user_id;
use crate::{
    facts::{AccessToken, Device, Fact, OauthClient, OauthGrant, RefreshToken, Secret, Token},
    mas::{Context, PERSONAL, ids},
    sql::{
        database::{Fault, Row},
        plan::Plan,
    },
};

/// What comes before a device's id in a scope.
const DEVICE: [&str; 2] =
    ["urn:matrix:client:device:", "urn:matrix:org.matrix.msc2967.client:device:"];

/// Those that act for themselves only have no sessions of users.
pub(super) const CLIENTS: &[Plan<Context>] = &[Plan {
    from: "oauth2_clients c",
    only: "(c.grant_type_authorization_code OR c.grant_type_refresh_token
        OR c.grant_type_device_code)",
    keys: 1,
    columns: &[
        "c.oauth2_client_id",
        "c.encrypted_client_secret",
        "c.application_type",
        "c.redirect_uris",
        "c.grant_type_authorization_code",
        "c.grant_type_refresh_token",
        "c.grant_type_device_code",
        "c.client_name",
        "c.logo_uri",
        "c.client_uri",
        "c.policy_uri",
        "c.tos_uri",
        "c.token_endpoint_auth_method",
    ],
    shown: 1,
    tell: |row, context, facts| {
        let client_id = ulid(row, "oauth2_client_id")?;
        let secret = row.text_or_none("encrypted_client_secret")?;
        let secret = secret.and_then(|secret| context.decrypted(&secret)).map(Secret);
        let mut metadata = Map::new();
        for name in [
            "application_type",
            "client_name",
            "logo_uri",
            "client_uri",
            "policy_uri",
            "tos_uri",
            "token_endpoint_auth_method",
        ] {
            if let Some(text) = row.text_or_none(name)? {
                metadata.insert(name.to_owned(), text.into());
            }
        }
        metadata.insert("redirect_uris".to_owned(), json!(texts(row, "redirect_uris")?));
        let mut grants = Vec::new();
        for (name, grant) in [
            ("grant_type_authorization_code", "authorization_code"),
            ("grant_type_refresh_token", "refresh_token"),
            ("grant_type_device_code", "urn:ietf:params:oauth:grant-type:device_code"),
        ] {
            if row.flag(name)? {
                grants.push(Value::from(grant));
            }
        }
        metadata.insert("grant_types".to_owned(), Value::Array(grants));
        facts.push(Fact::OauthClient(OauthClient { client_id, secret, metadata }));
        Ok(())
    },
}];

pub(super) const GRANTS: &[Plan<Context>] = &[
    Plan {
        from: "oauth2_sessions s LEFT JOIN users u ON u.user_id = s.user_id",
        // Without a user, a client acts for itself.
        only: "s.finished_at IS NULL AND s.user_id IS NOT NULL",
        keys: 1,
        columns: &[
            "s.oauth2_session_id",
            "s.oauth2_client_id",
            "s.scope_list",
            "s.created_at",
            "s.human_name",
            "u.username",
        ],
        shown: 1,
        tell: |row, context, facts| {
            facts.push(Fact::OauthGrant(OauthGrant {
                grant_id: ulid(row, "oauth2_session_id")?,
                client_id: ulid(row, "oauth2_client_id")?,
                scope: texts(row, "scope_list")?.join(" "),
                granted_ms: row.int("created_at")?,
                name: row.text_or_none("human_name")?,
                user_id: user_id(row, context)?,
            }));
            Ok(())
        },
    },
    // Tokens that a user, or a program, made to act by.
    Plan {
        from: "personal_sessions s LEFT JOIN users u ON u.user_id = s.actor_user_id
            LEFT JOIN users o ON o.user_id = s.owner_user_id",
        only: "s.revoked_at IS NULL AND o.deactivated_at IS NULL AND o.locked_at IS NULL",
        keys: 1,
        columns: &[
            "s.personal_session_id",
            "s.scope_list",
            "s.created_at",
            "s.human_name",
            "u.username",
        ],
        shown: 1,
        tell: |row, context, facts| {
            facts.push(Fact::OauthGrant(OauthGrant {
                grant_id: ulid(row, "personal_session_id")?,
                client_id: PERSONAL.to_owned(),
                scope: texts(row, "scope_list")?.join(" "),
                granted_ms: row.int("created_at")?,
                name: row.text_or_none("human_name")?,
                user_id: user_id(row, context)?,
            }));
            Ok(())
        },
    },
];

/// The devices of sessions. Synapse has most of them, and tells more of these.
pub(super) const DEVICES: &[Plan<Context>] = &[
    Plan {
        from: "compat_sessions s LEFT JOIN users u ON u.user_id = s.user_id",
        only: "s.finished_at IS NULL AND s.device_id IS NOT NULL",
        keys: 1,
        columns: &[
            "s.compat_session_id",
            "s.device_id",
            "s.human_name",
            "s.last_active_at",
            "s.last_active_ip",
            "s.user_agent",
            "u.username",
        ],
        shown: 1,
        tell: |row, context, facts| {
            let device_id = row.text("device_id")?;
            facts.push(device(row, device_id, context)?);
            Ok(())
        },
    },
    Plan {
        from: "oauth2_sessions s LEFT JOIN users u ON u.user_id = s.user_id",
        only: "s.finished_at IS NULL AND s.user_id IS NOT NULL",
        keys: 1,
        columns: &[
            "s.oauth2_session_id",
            "s.scope_list",
            "s.human_name",
            "s.last_active_at",
            "s.last_active_ip",
            "s.user_agent",
            "u.username",
        ],
        shown: 1,
        tell: |row, context, facts| {
            if let Some(device_id) = named(&texts(row, "scope_list")?) {
                facts.push(device(row, device_id, context)?);
            }
            Ok(())
        },
    },
    Plan {
        from: "personal_sessions s LEFT JOIN users u ON u.user_id = s.actor_user_id",
        only: "s.revoked_at IS NULL",
        keys: 1,
        columns: &[
            "s.personal_session_id",
            "s.scope_list",
            "s.human_name",
            "s.last_active_at",
            "s.last_active_ip",
            "NULL AS user_agent",
            "u.username",
        ],
        shown: 1,
        tell: |row, context, facts| {
            if let Some(device_id) = named(&texts(row, "scope_list")?) {
                facts.push(device(row, device_id, context)?);
            }
            Ok(())
        },
    },
];

fn device(row: &mut Row, device_id: String, context: &Context) -> Result<Fact, Fault> {
    Ok(Fact::Device(Device {
        device_id,
        display_name: row.text_or_none("human_name")?,
        seen_ms: row.int_or_none("last_active_at")?,
        address: row.text_or_none("last_active_ip")?,
        agent: row.text_or_none("user_agent")?.filter(|agent| !agent.is_empty()),
        user_id: user_id(row, context)?,
    }))
}

/// The device that a scope names.
fn named(scope: &[String]) -> Option<String> {
    let mut devices =
        scope.iter().filter_map(|token| DEVICE.iter().find_map(|of| token.strip_prefix(of)));
    devices.next().map(str::to_owned)
}

pub(super) const ACCESS_TOKENS: &[Plan<Context>] = &[
    Plan {
        from: "compat_access_tokens t
            LEFT JOIN compat_sessions s ON s.compat_session_id = t.compat_session_id
            LEFT JOIN users u ON u.user_id = s.user_id",
        only: "s.finished_at IS NULL AND NOT EXISTS (SELECT 1 FROM compat_refresh_tokens r
            WHERE r.compat_access_token_id = t.compat_access_token_id
                AND r.consumed_at IS NOT NULL)",
        keys: 1,
        columns: &[
            "t.compat_access_token_id",
            "t.access_token",
            "t.created_at",
            "t.expires_at",
            "(SELECT max(CAST(r.compat_refresh_token_id AS TEXT)) FROM compat_refresh_tokens r
                WHERE r.compat_access_token_id = t.compat_access_token_id) AS refresh",
            "s.compat_session_id AS session",
            "s.device_id",
            "u.username",
        ],
        shown: 1,
        tell: |row, context, facts| {
            let token = Token::Plain(Secret(row.text("access_token")?));
            let (used_ms, valid_until_ms) =
                (row.int("created_at")?, row.int_or_none("expires_at")?);
            let refresh = place_or_none(row, "refresh")?;
            session(row)?;
            facts.push(Fact::AccessToken(AccessToken {
                device_id: row.text_or_none("device_id")?,
                grant_id: None,
                token,
                valid_until_ms,
                puppet_of: None,
                used_ms: Some(used_ms),
                seen_ms: None,
                // Those before it ended when it was made.
                used: true,
                refresh,
                user_id: user_id(row, context)?,
            }));
            Ok(())
        },
    },
    Plan {
        from: "oauth2_access_tokens t
            LEFT JOIN oauth2_sessions s ON s.oauth2_session_id = t.oauth2_session_id
            LEFT JOIN users u ON u.user_id = s.user_id",
        only: "t.revoked_at IS NULL AND s.finished_at IS NULL
            AND (s.user_id IS NOT NULL OR s.oauth2_session_id IS NULL)",
        keys: 1,
        columns: &[
            "t.oauth2_access_token_id",
            "t.access_token",
            "t.created_at",
            "t.expires_at",
            "t.first_used_at",
            "(SELECT max(CAST(r.oauth2_refresh_token_id AS TEXT)) FROM oauth2_refresh_tokens r
                WHERE r.oauth2_access_token_id = t.oauth2_access_token_id
                    AND r.revoked_at IS NULL AND r.consumed_at IS NULL) AS refresh",
            "s.oauth2_session_id AS session",
            "u.username",
        ],
        shown: 1,
        tell: |row, context, facts| {
            let token = Token::Plain(Secret(row.text("access_token")?));
            let (used_ms, valid_until_ms) =
                (row.int("created_at")?, row.int_or_none("expires_at")?);
            let used = row.text_or_none("first_used_at")?.is_some();
            let refresh = place_or_none(row, "refresh")?;
            let grant_id = Some(session(row)?);
            facts.push(Fact::AccessToken(AccessToken {
                device_id: None,
                grant_id,
                token,
                valid_until_ms,
                puppet_of: None,
                used_ms: Some(used_ms),
                seen_ms: None,
                used,
                refresh,
                user_id: user_id(row, context)?,
            }));
            Ok(())
        },
    },
    Plan {
        from: "personal_access_tokens t
            LEFT JOIN personal_sessions s ON s.personal_session_id = t.personal_session_id
            LEFT JOIN users u ON u.user_id = s.actor_user_id
            LEFT JOIN users o ON o.user_id = s.owner_user_id",
        only: "t.revoked_at IS NULL AND s.revoked_at IS NULL AND o.deactivated_at IS NULL
            AND o.locked_at IS NULL",
        keys: 1,
        columns: &[
            "t.personal_access_token_id",
            "t.access_token_sha256",
            "t.created_at",
            "t.expires_at",
            "s.personal_session_id AS session",
            "u.username",
        ],
        shown: 1,
        tell: |row, context, facts| {
            let hash = row.bytes_or_none("access_token_sha256")?.unwrap_or_default();
            let hash = <[u8; 32]>::try_from(hash).map_err(|_| "its hash is not one".to_owned())?;
            let (used_ms, valid_until_ms) =
                (row.int("created_at")?, row.int_or_none("expires_at")?);
            let grant_id = Some(session(row)?);
            let user_id = user_id(row, context)?;
            if valid_until_ms.is_some_and(|until| until <= context.now_ms) {
                return Ok(());
            }
            facts.push(Fact::AccessToken(AccessToken {
                user_id,
                device_id: None,
                grant_id,
                token: Token::Hashed(hash),
                valid_until_ms,
                puppet_of: None,
                used_ms: Some(used_ms),
                seen_ms: None,
                used: true,
                refresh: None,
            }));
            Ok(())
        },
    },
];

pub(super) const REFRESH_TOKENS: &[Plan<Context>] = &[
    Plan {
        from: "compat_refresh_tokens t
            LEFT JOIN compat_sessions s ON s.compat_session_id = t.compat_session_id
            LEFT JOIN users u ON u.user_id = s.user_id",
        only: "t.consumed_at IS NULL AND s.finished_at IS NULL",
        keys: 1,
        columns: &[
            "t.compat_refresh_token_id",
            "t.refresh_token",
            "s.compat_session_id AS session",
            "s.device_id",
            "u.username",
        ],
        shown: 1,
        tell: |row, context, facts| {
            let id = place(row, "compat_refresh_token_id")?;
            let token = Token::Plain(Secret(row.text("refresh_token")?));
            session(row)?;
            facts.push(Fact::RefreshToken(RefreshToken {
                id,
                device_id: row.text_or_none("device_id")?,
                grant_id: None,
                token,
                next: None,
                expires_ms: None,
                session_ends_ms: None,
                session_began_ms: None,
                user_id: user_id(row, context)?,
            }));
            Ok(())
        },
    },
    Plan {
        from: "oauth2_refresh_tokens t
            LEFT JOIN oauth2_sessions s ON s.oauth2_session_id = t.oauth2_session_id
            LEFT JOIN oauth2_refresh_tokens n
                ON n.oauth2_refresh_token_id = t.next_oauth2_refresh_token_id
            LEFT JOIN oauth2_access_tokens a
                ON a.oauth2_access_token_id = n.oauth2_access_token_id
            LEFT JOIN users u ON u.user_id = s.user_id",
        // One that was exchanged is good until what it was exchanged for is used: its client may
        // not have got that.
        only: "t.revoked_at IS NULL AND s.finished_at IS NULL
            AND (s.user_id IS NOT NULL OR s.oauth2_session_id IS NULL)
            AND (t.consumed_at IS NULL OR (n.oauth2_refresh_token_id IS NOT NULL
                AND n.consumed_at IS NULL AND n.revoked_at IS NULL AND a.first_used_at IS NULL))",
        keys: 1,
        columns: &[
            "t.oauth2_refresh_token_id",
            "t.refresh_token",
            "t.consumed_at",
            "t.next_oauth2_refresh_token_id",
            "s.oauth2_session_id AS session",
            "u.username",
        ],
        shown: 1,
        tell: |row, context, facts| {
            let id = place(row, "oauth2_refresh_token_id")?;
            let token = Token::Plain(Secret(row.text("refresh_token")?));
            let is_consumed = row.text_or_none("consumed_at")?.is_some();
            let next = place_or_none(row, "next_oauth2_refresh_token_id")?;
            let grant_id = Some(session(row)?);
            facts.push(Fact::RefreshToken(RefreshToken {
                id,
                device_id: None,
                grant_id,
                token,
                next: next.filter(|_| is_consumed),
                expires_ms: None,
                session_ends_ms: None,
                session_began_ms: None,
                user_id: user_id(row, context)?,
            }));
            Ok(())
        },
    },
];

fn ulid(row: &mut Row, name: &str) -> Result<String, Fault> {
    ids::ulid(&row.text(name)?).ok_or_else(|| format!("the column `{name}` holds no UUID"))
}

/// The session of a token, by its id.
fn session(row: &mut Row) -> Result<String, Fault> {
    let session = row.text_or_none("session")?.ok_or("its session is not there")?;
    ids::ulid(&session).ok_or_else(|| "its session has no UUID".to_owned())
}

fn place_or_none(row: &mut Row, name: &str) -> Result<Option<i64>, Fault> {
    let Some(text) = row.text_or_none(name)? else { return Ok(None) };
    ids::place(&text).map(Some).ok_or_else(|| format!("the column `{name}` holds no UUID"))
}

fn place(row: &mut Row, name: &str) -> Result<i64, Fault> {
    place_or_none(row, name)?.ok_or_else(|| format!("the column `{name}` is empty"))
}

/// A list of texts.
fn texts(row: &mut Row, name: &str) -> Result<Vec<String>, Fault> {
    let list = row.json(name)?;
    serde_json::from_str(list.get()).map_err(|_| format!("the column `{name}` is no list of texts"))
}
