//! The versions of the service's tables, which are named by the day of their last change.

use crate::{
    facts::SourceError,
    sql::{
        database::Database,
        schema::{Difference, Schema, column, table},
    },
};

/// The oldest version that is read.
const OLDEST: i64 = 20_250_113_102_144;

/// The newest one. A newer one may mean something else by what it has.
const NEWEST: i64 = 20_260_720_134_722;

/// All of the differences that a reader sees.
const DIFFERENCES: &[Difference] = &[
    table("user_unsupported_third_party_ids", 20_250_124_151_529),
    column("compat_sessions", "human_name", 20_250_129_154_003, "CAST(NULL AS TEXT)"),
    column("users", "is_guest", 20_250_130_170_011, "FALSE"),
    column("users", "deactivated_at", 20_250_311_093_145, "CAST(NULL AS TEXT)"),
    column("oauth2_sessions", "human_name", 20_250_425_113_717, "CAST(NULL AS TEXT)"),
    table("user_registration_tokens", 20_250_602_212_100),
    table("personal_sessions", 20_250_924_132_713),
    table("personal_access_tokens", 20_250_924_132_713),
    // Since it is gone, all addresses are confirmed.
    column("user_emails", "confirmed_at", i64::MAX, "e.created_at"),
];

pub(super) fn read(database: &mut dyn Database) -> Result<Schema, SourceError> {
    let place = database.place();
    let tables = database.tables()?;
    let wanted = ["_sqlx_migrations", "compat_sessions", "oauth2_sessions", "user_passwords"];
    if wanted.iter().any(|table| !tables.contains_key(*table)) {
        return Err(SourceError::Refused(format!(
            "{place} is no database of matrix-authentication-service: it lacks its tables"
        )));
    }
    let sql = "SELECT max(version) FROM _sqlx_migrations WHERE success";
    let version = database.number(sql, &[])?.unwrap_or_default();
    match refused(version) {
        Some(refused) => Err(SourceError::Refused(format!("{place} {refused}"))),
        None => Ok(Schema::new(version, tables, DIFFERENCES)),
    }
}

/// Why a version is not read, as the end of a sentence.
fn refused(version: i64) -> Option<String> {
    let what_to_do = if version < OLDEST {
        "start a newer matrix-authentication-service on it once"
    } else if version > NEWEST {
        "a newer Logcabin may read it"
    } else {
        return None;
    };
    let [version, oldest, newest] = [version, OLDEST, NEWEST].map(|version| version / 1_000_000);
    Some(format!(
        "has tables of {version}, and this program reads those of {oldest} to {newest}: {what_to_do}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_versions_are_refused_with_what_to_do() {
        assert_eq!((refused(OLDEST), refused(NEWEST)), (None, None));
        let old = refused(OLDEST - 1).expect("a refusal");
        assert!(old.contains("20250113") && old.contains("start a newer"), "{old}");
        let new = refused(NEWEST + 1).expect("a refusal");
        assert!(new.contains("newer Logcabin"), "{new}");
    }
}
