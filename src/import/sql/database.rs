//! Rows of a database, whichever it is.

use std::collections::{HashMap, HashSet};

use serde::{Deserialize, Serialize};

use crate::facts::{Bad, Json, Key, Origin, SourceError, json};

/// A value of a row, or one to look for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Cell {
    Null,
    Int(i64),
    Real(f64),
    Text(String),
    /// A text that is not UTF-8. SQLite does not look at what it stores.
    Raw(Vec<u8>),
    Bytes(Vec<u8>),
}

impl Cell {
    /// Its size in memory, roughly.
    fn bytes(&self) -> usize {
        let beside = match self {
            Self::Text(text) => text.len(),
            Self::Raw(bytes) | Self::Bytes(bytes) => bytes.len(),
            Self::Null | Self::Int(_) | Self::Real(_) => 0,
        };
        beside + size_of::<Self>()
    }
}

/// What SQL gets from a program, by number: `$1` is the first. Each is used once, in this order.
pub(crate) type Args<'a> = &'a [Cell];

/// The columns of each table.
pub(crate) type Tables = HashMap<String, HashSet<String>>;

/// A database that is only read.
pub(crate) trait Database: Send {
    /// `sqlite` or `postgresql`.
    fn kind(&self) -> &'static str;

    /// What a person calls it, without secrets.
    fn place(&self) -> String;

    /// All that is read before [`Database::end`] is of one moment.
    fn begin(&mut self) -> Result<(), SourceError>;

    fn end(&mut self);

    /// Hands over one row after the other, until there are no more, or `each` says `false`.
    fn query(
        &mut self,
        sql: &str,
        args: Args<'_>,
        each: &mut dyn FnMut(Vec<Cell>) -> bool,
    ) -> Result<(), SourceError>;

    /// What asks for the columns of all tables: pairs of a table and a column.
    fn tables_sql(&self) -> &'static str;

    fn tables(&mut self) -> Result<Tables, SourceError> {
        let mut tables = Tables::new();
        self.query(self.tables_sql(), &[], &mut |row| {
            if let [Cell::Text(table), Cell::Text(column)] = &row[..] {
                tables.entry(table.clone()).or_default().insert(column.clone());
            }
            true
        })?;
        Ok(tables)
    }

    /// Whether each row has a number, `rowid`, by which a table can be read in the order in which
    /// its rows were written.
    fn has_row_numbers(&self) -> bool {
        false
    }

    /// A few rows at once.
    fn rows(&mut self, sql: &str, args: Args<'_>) -> Result<Vec<Vec<Cell>>, SourceError> {
        let mut rows = Vec::new();
        self.query(sql, args, &mut |row| {
            rows.push(row);
            true
        })?;
        Ok(rows)
    }

    /// The only value of the only row, if it is a number.
    fn number(&mut self, sql: &str, args: Args<'_>) -> Result<Option<i64>, SourceError> {
        let rows = self.rows(sql, args)?;
        match rows.first().and_then(|row| row.first()) {
            Some(Cell::Int(number)) => Ok(Some(*number)),
            _ => Ok(None),
        }
    }
}

/// A database that lacks tables, with what stands in for them.
pub(crate) struct Completed {
    pub(crate) database: Box<dyn Database>,
    /// What comes before every statement.
    pub(crate) before: String,
}

impl Database for Completed {
    fn kind(&self) -> &'static str {
        self.database.kind()
    }

    fn place(&self) -> String {
        self.database.place()
    }

    fn begin(&mut self) -> Result<(), SourceError> {
        self.database.begin()
    }

    fn end(&mut self) {
        self.database.end();
    }

    fn query(
        &mut self,
        sql: &str,
        args: Args<'_>,
        each: &mut dyn FnMut(Vec<Cell>) -> bool,
    ) -> Result<(), SourceError> {
        self.database.query(&format!("{}{sql}", self.before), args, each)
    }

    fn tables_sql(&self) -> &'static str {
        self.database.tables_sql()
    }
}

/// A row, whose columns have names.
pub(crate) struct Row {
    names: &'static [&'static str],
    cells: Vec<Cell>,
    /// Columns are mostly taken in their order.
    next: usize,
}

/// Why a column is not what it must be, as a sentence without its full stop.
pub(crate) type Fault = String;

impl Row {
    /// The names are SQL: what counts is the part after the last space or point.
    pub(crate) const fn new(names: &'static [&'static str], cells: Vec<Cell>) -> Self {
        Self { names, cells, next: 0 }
    }

    /// Its size in memory, roughly.
    pub(crate) fn bytes(&self) -> usize {
        self.cells.iter().map(Cell::bytes).sum()
    }

    fn take(&mut self, name: &str) -> Cell {
        let is_next = self.names.get(self.next).is_some_and(|column| is_called(column, name));
        let place = if is_next {
            Some(self.next)
        } else {
            self.names.iter().position(|column| is_called(column, name))
        };
        let cell = place.and_then(|place| self.cells.get_mut(place));
        debug_assert!(cell.is_some(), "no column is called {name}");
        self.next = place.map_or(0, |place| place + 1);
        cell.map_or(Cell::Null, |cell| std::mem::replace(cell, Cell::Null))
    }

    pub(crate) fn text_or_none(&mut self, name: &str) -> Result<Option<String>, Fault> {
        match self.take(name) {
            Cell::Null => Ok(None),
            Cell::Text(text) => Ok(Some(text)),
            Cell::Int(number) => Ok(Some(number.to_string())),
            Cell::Real(number) => Ok(Some(number.to_string())),
            Cell::Raw(_) => Err(format!("the column `{name}` is not UTF-8")),
            // SQLite keeps the type that a value was written with.
            Cell::Bytes(bytes) => String::from_utf8(bytes)
                .map(Some)
                .map_err(|_| format!("the column `{name}` is not UTF-8")),
        }
    }

    pub(crate) fn text(&mut self, name: &str) -> Result<String, Fault> {
        self.text_or_none(name)?.ok_or_else(|| absent(name))
    }

    pub(crate) fn int_or_none(&mut self, name: &str) -> Result<Option<i64>, Fault> {
        match self.take(name) {
            Cell::Null => Ok(None),
            Cell::Int(number) => Ok(Some(number)),
            Cell::Text(text) => text
                .trim()
                .parse()
                .map(Some)
                .map_err(|_| format!("the column `{name}` holds no number")),
            // Whole, and in range.
            Cell::Real(number) if number.fract() == 0.0 && number.abs() < 9e15 => {
                Ok(Some(number as i64))
            }
            Cell::Real(_) | Cell::Raw(_) | Cell::Bytes(_) => {
                Err(format!("the column `{name}` holds no whole number"))
            }
        }
    }

    pub(crate) fn int(&mut self, name: &str) -> Result<i64, Fault> {
        self.int_or_none(name)?.ok_or_else(|| absent(name))
    }

    /// Null counts as `false`.
    pub(crate) fn flag(&mut self, name: &str) -> Result<bool, Fault> {
        Ok(self.int_or_none(name)?.is_some_and(|number| number != 0))
    }

    pub(crate) fn json_or_none(&mut self, name: &str) -> Result<Option<Json>, Fault> {
        let Some(text) = self.text_or_none(name)? else { return Ok(None) };
        json(text).map(Some).map_err(|why| format!("the column `{name}`: {why}"))
    }

    pub(crate) fn json(&mut self, name: &str) -> Result<Json, Fault> {
        self.json_or_none(name)?.ok_or_else(|| absent(name))
    }

    /// A JSON object; another value is a fault.
    pub(crate) fn object(&mut self, name: &str) -> Result<Json, Fault> {
        let object = self.json(name)?;
        if object.get().starts_with('{') {
            Ok(object)
        } else {
            Err(format!("the column `{name}` holds no JSON object"))
        }
    }

    pub(crate) fn bytes_or_none(&mut self, name: &str) -> Result<Option<Vec<u8>>, Fault> {
        match self.take(name) {
            Cell::Null => Ok(None),
            Cell::Bytes(bytes) | Cell::Raw(bytes) => Ok(Some(bytes)),
            Cell::Text(text) => Ok(Some(text.into_bytes())),
            Cell::Int(_) | Cell::Real(_) => Err(format!("the column `{name}` holds a number")),
        }
    }
}

fn absent(name: &str) -> Fault {
    format!("the column `{name}` is empty")
}

fn is_called(column: &str, name: &str) -> bool {
    column
        .strip_suffix(name)
        .is_some_and(|before| before.is_empty() || before.ends_with(['.', ' ']))
}

/// `user_id` of `d.user_id`, and of `x.name AS user_id`.
pub(crate) fn short(column: &str) -> &str {
    column.rsplit([' ', '.']).next().unwrap_or(column)
}

/// What a report calls a row with these values in its key.
pub(crate) fn key(cells: &[Cell]) -> Key {
    if let [Cell::Int(number)] = cells {
        return Key::Number(*number);
    }
    let shown = cells.iter().map(|cell| match cell {
        Cell::Null => "-".to_owned(),
        Cell::Int(number) => number.to_string(),
        Cell::Real(number) => number.to_string(),
        Cell::Text(text) => text.clone(),
        Cell::Raw(bytes) | Cell::Bytes(bytes) => String::from_utf8_lossy(bytes).into_owned(),
    });
    Key::Text(shown.collect::<Vec<_>>().join(" / ").into())
}

pub(crate) fn bad(table: &'static str, key: Key, why: impl Into<String>) -> Bad {
    Bad { origin: Origin { table, key }, why: why.into() }
}

#[cfg(test)]
mod tests {
    use super::{Cell, Row, key};

    #[test]
    fn a_column_is_what_it_must_be_or_a_fault_with_its_name() {
        const NAMES: &[&str] = &["u.name", "COALESCE(u.x, 1) AS number", "data"];
        let row = |cells| Row::new(NAMES, cells);
        let text = |text: &str| Cell::Text(text.to_owned());
        let mut good = row(vec![text("@a:b"), Cell::Int(7), text("{}")]);
        assert_eq!(good.text("name").as_deref(), Ok("@a:b"));
        assert_eq!(good.int("number"), Ok(7));
        assert_eq!(good.object("data").map(|json| json.get().to_owned()).as_deref(), Ok("{}"));
        let mut wrong = row(vec![Cell::Raw(vec![0xff]), text("seven"), text("[]")]);
        for fault in [
            wrong.text("name").err(),
            wrong.int("number").err(),
            wrong.object("data").map(drop).err(),
        ] {
            let fault = fault.expect("a fault");
            assert!(NAMES.iter().any(|name| fault.contains(super::short(name))), "{fault}");
        }
        assert_eq!(wrong.text("name"), Err("the column `name` is empty".to_owned()), "taken");
    }

    #[test]
    fn a_key_is_shown_as_it_can_be_looked_for() {
        assert_eq!(key(&[Cell::Int(-4)]).to_string(), "-4");
        let cells = [Cell::Text("@a:b".to_owned()), Cell::Raw(b"D\x1b".to_vec())];
        assert_eq!(key(&cells).to_string(), "@a:b / D\\u{1b}");
    }
}
