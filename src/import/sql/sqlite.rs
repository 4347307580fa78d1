//! SQLite, as Synapse uses it: with a write-ahead log, so that readers stand in nobody's way.

use std::{
    path::{Path, PathBuf},
    time::SystemTime,
};

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};
use rusqlite::{
    Connection, OpenFlags, ToSql, params_from_iter,
    types::{ToSqlOutput, ValueRef},
};

use super::database::{Args, Cell, Database};
use crate::facts::SourceError;
use logcabin_base::limits;

/// What a file's name is written as in a URI.
const IN_A_PATH: &AsciiSet = &NON_ALPHANUMERIC.remove(b'/').remove(b'.').remove(b'-').remove(b'_');

pub(crate) struct Sqlite {
    path: PathBuf,
    connection: Connection,
    use_of: Use,
}

/// How the file is used by other programs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    /// No program had it open, and it was as long and as old as this: SQLite needs no files beside
    /// it.
    Alone(Option<(u64, SystemTime)>),
    /// What was written last is in a file beside it.
    Shared,
}

impl Use {
    fn of(path: &Path) -> Self {
        let beside = |end: &str| {
            let mut name = path.as_os_str().to_owned();
            name.push(end);
            Path::new(&name).exists()
        };
        if beside("-wal") || beside("-journal") {
            return Self::Shared;
        }
        let found = std::fs::metadata(path).ok();
        Self::Alone(found.and_then(|found| Some(found.len()).zip(found.modified().ok())))
    }
}

impl Sqlite {
    pub(crate) fn open(path: &Path) -> Result<Self, SourceError> {
        let use_of = Use::of(path);
        Ok(Self { connection: connect(path, use_of)?, path: path.to_owned(), use_of })
    }

    fn failed(&self, error: &rusqlite::Error) -> SourceError {
        failed(&self.path, error)
    }
}

/// A connection that writes nothing: not to the file, and, if no program uses it, nothing beside it
/// either.
fn connect(path: &Path, use_of: Use) -> Result<Connection, SourceError> {
    let encoded = percent_encode(path.as_os_str().as_encoded_bytes(), IN_A_PATH);
    let how = match use_of {
        Use::Alone(_) => "immutable=1",
        Use::Shared => "mode=ro",
    };
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY
        | OpenFlags::SQLITE_OPEN_URI
        | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(format!("file:{encoded}?{how}"), flags)
        .map_err(|error| failed(path, &error))?;
    connection.busy_timeout(limits::SOURCE_LOCK_TIME).map_err(|error| failed(path, &error))?;
    // It would hold on to pages of a large database for nothing.
    let cache = format!("PRAGMA cache_size = -{}", limits::SOURCE_CACHE_KIB);
    connection.execute_batch(&cache).map_err(|error| failed(path, &error))?;
    Ok(connection)
}

fn failed(path: &Path, error: &rusqlite::Error) -> SourceError {
    use rusqlite::ErrorCode::{
        CannotOpen, DatabaseBusy, DatabaseCorrupt, DatabaseLocked, NotADatabase,
    };
    let place = path.display().to_string();
    match error.sqlite_error_code() {
        Some(DatabaseBusy | DatabaseLocked | CannotOpen) => {
            SourceError::Away { place, why: error.to_string() }
        }
        Some(DatabaseCorrupt | NotADatabase) => SourceError::Damaged {
            what: place,
            why: format!("{error}; sqlite3 with `.recover` may save the rest"),
        },
        _ => SourceError::Damaged { what: place, why: error.to_string() },
    }
}

impl ToSql for Cell {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match self {
            Self::Null => ValueRef::Null,
            Self::Int(number) => ValueRef::Integer(*number),
            Self::Real(number) => ValueRef::Real(*number),
            Self::Text(text) => ValueRef::Text(text.as_bytes()),
            Self::Raw(bytes) => ValueRef::Text(bytes),
            Self::Bytes(bytes) => ValueRef::Blob(bytes),
        }))
    }
}

impl From<ValueRef<'_>> for Cell {
    fn from(value: ValueRef<'_>) -> Self {
        match value {
            ValueRef::Null => Self::Null,
            ValueRef::Integer(number) => Self::Int(number),
            ValueRef::Real(number) => Self::Real(number),
            ValueRef::Text(bytes) => match std::str::from_utf8(bytes) {
                Ok(text) => Self::Text(text.to_owned()),
                Err(_) => Self::Raw(bytes.to_vec()),
            },
            ValueRef::Blob(bytes) => Self::Bytes(bytes.to_vec()),
        }
    }
}

impl Database for Sqlite {
    fn kind(&self) -> &'static str {
        "sqlite"
    }

    fn place(&self) -> String {
        self.path.display().to_string()
    }

    fn has_row_numbers(&self) -> bool {
        true
    }

    fn begin(&mut self) -> Result<(), SourceError> {
        // Somebody has opened it since: SQLite does not look for that in a file that is alone.
        if self.use_of != Use::Shared {
            let use_of = Use::of(&self.path);
            if use_of != self.use_of {
                self.connection = connect(&self.path, use_of)?;
                self.use_of = use_of;
            }
        }
        self.connection.execute_batch("BEGIN").map_err(|error| self.failed(&error))
    }

    fn end(&mut self) {
        // It has read only: there is nothing that could fail to be kept.
        let _ = self.connection.execute_batch("ROLLBACK");
    }

    fn query(
        &mut self,
        sql: &str,
        args: Args<'_>,
        each: &mut dyn FnMut(Vec<Cell>) -> bool,
    ) -> Result<(), SourceError> {
        let failed = |error: rusqlite::Error| failed(&self.path, &error);
        let mut statement = self.connection.prepare(sql).map_err(failed)?;
        let columns = statement.column_count();
        let mut rows = statement.query(params_from_iter(args)).map_err(failed)?;
        while let Some(row) = rows.next().map_err(failed)? {
            let mut cells = Vec::with_capacity(columns);
            for column in 0..columns {
                cells.push(Cell::from(row.get_ref(column).map_err(failed)?));
            }
            if !each(cells) {
                break;
            }
        }
        Ok(())
    }

    fn tables_sql(&self) -> &'static str {
        "SELECT t.name, c.name FROM sqlite_master t, pragma_table_info(t.name) c
            WHERE t.type = 'table'"
    }
}
