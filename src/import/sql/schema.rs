//! What tables a database has, and what others of its kind may lack.

use super::database::{Database, Tables, bad};
use crate::facts::{Bad, Key, SourceError};

/// What is not in every database whose version is read.
pub(crate) struct Difference {
    pub(crate) table: &'static str,
    /// Without it, the whole table.
    pub(crate) column: Option<&'static str>,
    /// Before which version it may be missing.
    pub(crate) until: i64,
    /// The value of a column that is missing, as SQL.
    pub(crate) instead: &'static str,
}

pub(crate) const fn table(table: &'static str, until: i64) -> Difference {
    Difference { table, column: None, until, instead: "" }
}

pub(crate) const fn column(
    table: &'static str,
    column: &'static str,
    until: i64,
    instead: &'static str,
) -> Difference {
    Difference { table, column: Some(column), until, instead }
}

/// The tables of a source.
pub(crate) struct Schema {
    pub(crate) version: i64,
    tables: Tables,
    differences: &'static [Difference],
}

impl Schema {
    pub(crate) const fn new(
        version: i64,
        tables: Tables,
        differences: &'static [Difference],
    ) -> Self {
        Self { version, tables, differences }
    }

    pub(crate) fn has(&self, table: &str) -> bool {
        self.tables.contains_key(table)
    }

    /// How many rows a table has; none if it is not there.
    pub(crate) fn rows(
        &self,
        database: &mut dyn Database,
        table: &str,
    ) -> Result<u64, SourceError> {
        if !self.has(table) {
            return Ok(0);
        }
        let rows = database.number(&format!("SELECT count(*) FROM {table}"), &[])?;
        Ok(rows.and_then(|rows| u64::try_from(rows).ok()).unwrap_or_default())
    }

    /// Whether the source may be without this table. If it may not, the report says so.
    pub(crate) fn missing(&self, table: &'static str) -> Option<Bad> {
        if self.has(table) {
            return None;
        }
        let optional = self.differences.iter().any(|difference| {
            difference.table == table
                && difference.column.is_none()
                && self.version < difference.until
        });
        let why = "the table is missing";
        (!optional).then(|| bad(table, Key::Text("-".into()), why))
    }

    /// The SQL of a column: itself, or what stands for it where it is missing. `None` if it must
    /// not be missing.
    pub(crate) fn column(&self, table: &str, column: &str) -> Option<&'static str> {
        let known = self.tables.get(table);
        if known.is_some_and(|columns| columns.contains(column)) {
            return Some("");
        }
        let instead = self.differences.iter().find(|difference| {
            difference.table == table
                && difference.column == Some(column)
                && self.version < difference.until
        });
        instead.map(|difference| difference.instead)
    }
}
