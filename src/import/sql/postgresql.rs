//! PostgreSQL. The tables are in the first schema of the search path.
//!
//! Times are told in milliseconds since the Unix epoch, UUIDs and addresses as text, and arrays of
//! texts as JSON.

use std::net::IpAddr;

use bytes::BytesMut;
use postgres::{
    Client, NoTls, Row,
    config::{Host, SslMode},
    fallible_iterator::FallibleIterator as _,
    types::{FromSql, IsNull, ToSql, Type, to_sql_checked},
};

use super::{
    access::Access,
    database::{Args, Cell, Database},
    tls::{Connector, Mode},
    uuid,
};
use crate::facts::SourceError;

pub(crate) struct Postgresql {
    client: Client,
    way: Way,
}

/// How the database is reached.
struct Way {
    access: Access,
    mode: Mode,
    /// Of a mode that has no encryption, none.
    connector: Option<Connector>,
}

/// What every connection says first: a mistake of ours must not write, and what waits for a lock
/// must not keep others waiting.
const FIRST: &str =
    "SET default_transaction_read_only = on; SET lock_timeout = '10s'; SET jit = off;
    SET idle_in_transaction_session_timeout = '10min'";

impl Postgresql {
    pub(crate) fn open(access: Access) -> Result<Self, SourceError> {
        // A socket leads to this machine only, and libpq encrypts nothing there either.
        let is_local = |host: &Host| matches!(host, Host::Unix(_));
        let all_local = access.config.get_hosts().iter().all(is_local);
        let mode = if all_local { Mode::Disable } else { access.tls.mode };
        let connector = (mode != Mode::Disable).then(|| access.tls.connector()).transpose();
        let refused = |why| SourceError::Refused(format!("{}: {why}", access.place));
        let connector = connector.map_err(refused)?;
        let way = Way { access, mode, connector };
        Ok(Self { client: way.connect()?, way })
    }

    fn failed(&self, error: &postgres::Error) -> SourceError {
        failed(&self.way.access.place, error)
    }
}

impl Way {
    /// Tries what the mode allows, one after the other.
    fn connect(&self) -> Result<Client, SourceError> {
        let mut why = Vec::new();
        for encrypted in self.mode.tries() {
            let connected = self.connect_as(*encrypted).and_then(|mut client| {
                client.batch_execute(FIRST)?;
                Ok(client)
            });
            match connected {
                Ok(client) => return Ok(client),
                Err(error) => {
                    let how = if *encrypted { "with TLS" } else { "without TLS" };
                    why.push(format!("{how}: {}", in_full(&error)));
                }
            }
        }
        let (place, why) = (self.access.place.clone(), why.join("; "));
        Err(SourceError::Away { place, why })
    }

    fn connect_as(&self, encrypted: bool) -> Result<Client, postgres::Error> {
        let mut config = self.access.config.clone();
        match self.connector.clone().filter(|_| encrypted) {
            Some(connector) => config.ssl_mode(SslMode::Require).connect(connector),
            None => config.ssl_mode(SslMode::Disable).connect(NoTls),
        }
    }
}

/// The error with its causes, which say what the first one does not.
fn in_full(error: &postgres::Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

/// What PostgreSQL says when the same may succeed later, by the first two letters of its codes: a
/// connection that broke, one query that met another, a lack of memory, a lock that is held, and a
/// restart.
const PASSES: [&str; 5] = ["08", "40", "53", "55", "57"];

fn failed(place: &str, error: &postgres::Error) -> SourceError {
    let passes = match error.code() {
        Some(code) => PASSES.iter().any(|class| code.code().starts_with(*class)),
        None => {
            let cause = std::error::Error::source(error);
            error.is_closed() || cause.is_some_and(|cause| cause.is::<std::io::Error>())
        }
    };
    if passes {
        SourceError::Away { place: place.to_owned(), why: in_full(error) }
    } else {
        SourceError::Damaged { what: place.to_owned(), why: in_full(error) }
    }
}

impl ToSql for Cell {
    fn to_sql(
        &self,
        ty: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        match self {
            Self::Null => Ok(IsNull::Yes),
            Self::Int(number) if *ty == Type::INT2 => i16::try_from(*number)?.to_sql(ty, out),
            Self::Int(number) if *ty == Type::INT4 => i32::try_from(*number)?.to_sql(ty, out),
            Self::Int(number) if *ty == Type::BOOL => (*number != 0).to_sql(ty, out),
            Self::Int(number) if *ty == Type::INT8 => number.to_sql(ty, out),
            Self::Int(number) => number.to_string().to_sql(ty, out),
            Self::Real(number) => number.to_sql(ty, out),
            Self::Text(text) if *ty == Type::UUID => {
                let uuid = uuid::number(text).ok_or("it is no UUID")?;
                out.extend_from_slice(&uuid.to_be_bytes());
                Ok(IsNull::No)
            }
            Self::Text(text) => text.to_sql(ty, out),
            Self::Raw(bytes) | Self::Bytes(bytes) => bytes.as_slice().to_sql(ty, out),
        }
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    to_sql_checked!();
}

impl<'a> FromSql<'a> for Cell {
    fn from_sql(
        ty: &Type,
        raw: &'a [u8],
    ) -> Result<Self, Box<dyn std::error::Error + Sync + Send>> {
        Ok(match *ty {
            Type::BOOL => Self::Int(i64::from(bool::from_sql(ty, raw)?)),
            Type::INT2 => Self::Int(i64::from(i16::from_sql(ty, raw)?)),
            Type::INT4 => Self::Int(i64::from(i32::from_sql(ty, raw)?)),
            Type::INT8 => Self::Int(i64::from_sql(ty, raw)?),
            Type::FLOAT4 => Self::Real(f64::from(f32::from_sql(ty, raw)?)),
            Type::FLOAT8 => Self::Real(f64::from_sql(ty, raw)?),
            Type::BYTEA => Self::Bytes(raw.to_vec()),
            Type::TIMESTAMPTZ | Type::TIMESTAMP => time(i64::from_sql(&Type::INT8, raw)?),
            Type::UUID => match raw.try_into() {
                Ok(bytes) => Self::Text(uuid::text(u128::from_be_bytes(bytes))),
                Err(_) => text(raw),
            },
            Type::INET => Self::Text(IpAddr::from_sql(ty, raw)?.to_string()),
            Type::TEXT_ARRAY | Type::VARCHAR_ARRAY => {
                let texts = Vec::<Option<&str>>::from_sql(ty, raw)?;
                Self::Text(serde_json::to_string(&texts)?)
            }
            // One byte says the version of what follows.
            Type::JSONB => text(raw.get(1..).unwrap_or_default()),
            _ => text(raw),
        })
    }

    fn from_sql_null(_: &Type) -> Result<Self, Box<dyn std::error::Error + Sync + Send>> {
        Ok(Self::Null)
    }

    fn accepts(_: &Type) -> bool {
        true
    }
}

/// When PostgreSQL begins to count, in milliseconds since the Unix epoch.
const EPOCH_MS: i64 = 946_684_800_000;

/// A time in microseconds since PostgreSQL's epoch.
fn time(us: i64) -> Cell {
    match us {
        // Columns that hold it hold no time.
        i64::MIN => Cell::Text("-infinity".to_owned()),
        i64::MAX => Cell::Text("infinity".to_owned()),
        _ => Cell::Int(us.div_euclid(1000).saturating_add(EPOCH_MS)),
    }
}

fn text(raw: &[u8]) -> Cell {
    match std::str::from_utf8(raw) {
        Ok(text) => Cell::Text(text.to_owned()),
        Err(_) => Cell::Raw(raw.to_vec()),
    }
}

fn cells(row: &Row) -> Result<Vec<Cell>, postgres::Error> {
    (0..row.len()).map(|column| row.try_get(column)).collect()
}

impl Database for Postgresql {
    fn kind(&self) -> &'static str {
        "postgresql"
    }

    fn place(&self) -> String {
        self.way.access.place.clone()
    }

    fn begin(&mut self) -> Result<(), SourceError> {
        if self.client.is_closed() {
            self.client = self.way.connect()?;
        }
        let begin = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";
        self.client.batch_execute(begin).map_err(|error| self.failed(&error))
    }

    fn end(&mut self) {
        // It has read only. If the connection is gone, so is the transaction.
        let _ = self.client.batch_execute("ROLLBACK");
    }

    fn query(
        &mut self,
        sql: &str,
        args: Args<'_>,
        each: &mut dyn FnMut(Vec<Cell>) -> bool,
    ) -> Result<(), SourceError> {
        let failed = |error: postgres::Error| failed(&self.way.access.place, &error);
        let mut rows = self.client.query_raw(sql, args).map_err(failed)?;
        while let Some(row) = rows.next().map_err(failed)? {
            let cells = cells(&row).map_err(failed)?;
            if !each(cells) {
                break;
            }
        }
        Ok(())
    }

    fn tables_sql(&self) -> &'static str {
        "SELECT c.relname::text, a.attname::text
            FROM pg_catalog.pg_class c JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid
            WHERE c.relkind IN ('r', 'p') AND pg_catalog.pg_table_is_visible(c.oid)
                AND a.attnum > 0 AND NOT a.attisdropped"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_count_from_the_unix_epoch_and_infinity_is_none() {
        assert_eq!(time(0), Cell::Int(EPOCH_MS));
        assert_eq!(time(-EPOCH_MS * 1000 - 1), Cell::Int(-1), "before the Unix epoch");
        assert_eq!(time(i64::MAX), Cell::Text("infinity".to_owned()));
    }
}
