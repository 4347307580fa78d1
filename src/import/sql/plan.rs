//! How a table becomes facts: which columns, in which order, and what they mean.

use super::{
    database::{Cell, Database, Fault, Row, bad, key, short},
    schema::Schema,
};
use crate::facts::{Bad, Cursor, Fact, Key, Origin, Section, Slice, SourceError, Told};
use logcabin_base::limits;

/// A table, and how its rows are read. Names in SQL are `alias.column`. `C` is what the meaning of
/// a row depends on besides the row.
pub(crate) struct Plan<C: 'static> {
    /// What comes after FROM: tables with their aliases. The first one is the one that is read.
    pub(crate) from: &'static str,
    /// The alias of the first one.
    pub(crate) only: &'static str,
    /// How many of `columns` are the key: they tell a row from all others, and are never null.
    pub(crate) keys: usize,
    pub(crate) columns: &'static [&'static str],
    /// How many columns of the key a report shows: those after them are secret. Places in such a
    /// table are told by how many rows are before them, as a cursor may be stored.
    pub(crate) shown: usize,
    pub(crate) tell: fn(&mut Row, &C, &mut Vec<Fact>) -> Result<(), Fault>,
}

/// The facts of a section after a cursor: its tables are read one after the other. With `owners`,
/// only theirs.
pub(crate) fn read<C>(
    database: &mut dyn Database,
    (schema, context): (&Schema, &C),
    (section, plans): (Section, &[Plan<C>]),
    owners: &[String],
    after: &Cursor,
) -> Result<Slice, SourceError> {
    let (number, key) = if after.is_start() {
        (0, None)
    } else {
        serde_json::from_str::<(usize, Option<Vec<Cell>>)>(&after.0)
            .map_err(|_| SourceError::Cursor { section })?
    };
    if plans.is_empty() {
        return Ok(Slice { end: after.clone(), ..Slice::default() });
    }
    let Some(plan) = plans.get(number) else {
        return Err(SourceError::Cursor { section });
    };
    if key.as_ref().is_some_and(|key| key.len() != plan.cells()) {
        return Err(SourceError::Cursor { section });
    }
    let part = plan.read(database, schema, context, owners, key.as_deref())?;
    let next = match part.after {
        Some(key) => Some(cursor(number, Some(&key))),
        None if number + 1 < plans.len() => Some(cursor(number + 1, None)),
        None => None,
    };
    let end = next.clone().unwrap_or_else(|| after.clone());
    Ok(Slice { facts: part.facts, bad: part.bad, next, end, partial: None })
}

/// How many rows the tables of a section have.
pub(crate) fn count<C>(
    database: &mut dyn Database,
    schema: &Schema,
    plans: &[Plan<C>],
) -> Result<u64, SourceError> {
    let mut count = 0;
    for plan in plans {
        count += plan.count(database, schema)?;
    }
    Ok(count)
}

/// A place in the table of this number, as text.
fn cursor(number: usize, key: Option<&[Cell]>) -> Cursor {
    // Cells are numbers and texts: they are JSON whatever they hold.
    Cursor(serde_json::to_string(&(number, key)).unwrap_or_default())
}

/// What one reading of a plan gives.
#[derive(Default)]
struct Part {
    facts: Vec<Told>,
    bad: Vec<Bad>,
    /// What tells the place after the last row, if there may be more: mostly its key.
    after: Option<Vec<Cell>>,
    bytes: usize,
}

impl<C> Plan<C> {
    /// The table.
    fn table(&self) -> &'static str {
        self.from.split_whitespace().next().unwrap_or_default()
    }

    /// All tables that `from` names.
    fn tables(&self) -> impl Iterator<Item = &'static str> {
        let words = self.from.split_whitespace();
        let before = std::iter::once("JOIN").chain(words.clone());
        before.zip(words).filter(|(before, _)| *before == "JOIN").map(|(_, table)| table)
    }

    /// The SQL of each column, or the first one that is missing.
    fn columns(&self, schema: &Schema) -> Result<Vec<String>, &'static str> {
        let columns = self.columns.iter().map(|column| {
            // What is computed is made of columns that every version has.
            let Some((alias, name)) = column.split_once('.').filter(|_| !column.contains(' '))
            else {
                return Ok((*column).to_owned());
            };
            let table = self.table_of(alias);
            match schema.column(table, name) {
                None => Err(*column),
                Some("") => Ok((*column).to_owned()),
                Some(instead) => Ok(format!("{instead} AS {name}")),
            }
        });
        columns.collect()
    }

    /// The table that `from` gives this alias.
    fn table_of(&self, alias: &str) -> &'static str {
        let mut before = "";
        for word in self.from.split_whitespace() {
            if word == alias {
                return before;
            }
            before = word;
        }
        ""
    }

    /// The key's columns that are the table's own.
    fn own_keys(&self) -> impl Iterator<Item = &'static str> {
        let keys = self.columns.get(..self.keys).unwrap_or_default().iter().copied();
        keys.filter(move |column| {
            column.split_once('.').is_some_and(|(alias, _)| self.table_of(alias) == self.table())
        })
    }

    const fn has_secret_key(&self) -> bool {
        self.shown < self.keys
    }

    /// How many values tell a place in the table.
    const fn cells(&self) -> usize {
        if self.has_secret_key() { 1 } else { self.keys }
    }

    /// The rows after a key, or after the first `offset`, of so many owners; of everybody if that
    /// is 0. An owner is what the key begins with.
    fn sql(&self, columns: &[String], after: bool, offset: i64, owners: usize) -> String {
        let keys = self.columns.get(..self.keys).unwrap_or_default().join(", ");
        let mut conditions = Vec::new();
        let args = |from: usize, count: usize| {
            let args = (from + 1..=from + count).map(|number| format!("${number}"));
            args.collect::<Vec<_>>().join(", ")
        };
        if after {
            conditions.push(format!("({keys}) > ({})", args(0, self.keys)));
        } else {
            conditions.extend(self.own_keys().map(|column| format!("{column} IS NOT NULL")));
        }
        if let Some(owner) = self.columns.first().filter(|_| owners > 0) {
            let from = if after { self.keys } else { 0 };
            conditions.push(format!("{owner} IN ({})", args(from, owners)));
        }
        if !self.only.is_empty() {
            conditions.push(self.only.to_owned());
        }
        let mut sql = format!("SELECT {} FROM {}", columns.join(", "), self.from);
        if !conditions.is_empty() {
            sql.push_str(" WHERE ");
            sql.push_str(&conditions.join(" AND "));
        }
        sql.push_str(&format!(" ORDER BY {keys} LIMIT {}", limits::SOURCE_SLICE_ROWS));
        if offset > 0 {
            sql.push_str(&format!(" OFFSET {offset}"));
        }
        sql
    }

    /// How many rows there are.
    fn count(&self, database: &mut dyn Database, schema: &Schema) -> Result<u64, SourceError> {
        if self.tables().any(|table| !schema.has(table)) {
            return Ok(0);
        }
        // Joins add columns to rows, and neither add rows nor take them away; a condition may be
        // about what they add.
        let first = match self.only {
            "" => self.from.split("LEFT JOIN").next().unwrap_or(self.from),
            _ => self.from,
        };
        let mut sql = format!("SELECT count(*) FROM {first}");
        if !self.only.is_empty() {
            sql.push_str(&format!(" WHERE {}", self.only));
        }
        let count = database.number(&sql, &[])?;
        Ok(count.and_then(|count| u64::try_from(count).ok()).unwrap_or_default())
    }

    /// The rows after the one with this key, until there is enough: those of `owners`, if there are
    /// any.
    fn read(
        &self,
        database: &mut dyn Database,
        schema: &Schema,
        context: &C,
        owners: &[String],
        after: Option<&[Cell]>,
    ) -> Result<Part, SourceError> {
        let mut part = Part::default();
        let table = self.table();
        if let Some(missing) = self.tables().find(|table| !schema.has(table)) {
            part.bad.extend(schema.missing(missing));
            return Ok(part);
        }
        let columns = match self.columns(schema) {
            Ok(columns) => columns,
            Err(missing) => {
                let why = format!("the column `{}` is missing", short(missing));
                part.bad.push(bad(table, Key::Text("-".into()), why));
                return Ok(part);
            }
        };
        if after.is_none() && owners.is_empty() {
            self.nameless(database, &mut part)?;
        }
        let (key, offset) = match after {
            Some([Cell::Int(rows)]) if self.has_secret_key() => (None, *rows),
            key => (key, 0),
        };
        let mut args = key.unwrap_or_default().to_vec();
        args.extend(owners.iter().map(|owner| Cell::Text(owner.clone())));
        let sql = self.sql(&columns, key.is_some(), offset, owners.len());
        let mut taken = 0_usize;
        let mut rows = offset;
        let mut full = false;
        let mut last = None;
        database.query(&sql, &args, &mut |cells| {
            let keys = cells.get(..self.keys).unwrap_or_default().to_vec();
            let mut row = Row::new(self.columns, cells);
            part.bytes += row.bytes();
            (taken, rows) = (taken + 1, rows + 1);
            full = part.bytes >= limits::SOURCE_SLICE_BYTES;
            self.tell(&mut row, context, &keys, &mut part);
            last = Some(keys);
            !full
        })?;
        if full || taken >= limits::SOURCE_SLICE_ROWS {
            part.after = if self.has_secret_key() { Some(vec![Cell::Int(rows)]) } else { last };
        }
        Ok(part)
    }

    /// Turns a row into facts, or into a bad row.
    fn tell(&self, row: &mut Row, context: &C, keys: &[Cell], part: &mut Part) {
        let shown = || {
            let known = keys.get(..self.shown).unwrap_or_default();
            if known.is_empty() { Key::Text("(hidden)".into()) } else { key(known) }
        };
        let mut facts = Vec::new();
        let told = (self.tell)(row, context, &mut facts);
        let table = self.table();
        part.facts.extend(
            facts.into_iter().map(|fact| Told { origin: Origin { table, key: shown() }, fact }),
        );
        if let Err(why) = told {
            part.bad.push(bad(table, shown(), why));
        }
    }

    /// Rows without a key cannot be told from each other, and no slice would hold them.
    fn nameless(&self, database: &mut dyn Database, part: &mut Part) -> Result<(), SourceError> {
        let empty = self.own_keys().map(|column| format!("{column} IS NULL")).collect::<Vec<_>>();
        if empty.is_empty() {
            return Ok(());
        }
        let first = self.from.split("LEFT JOIN").next().unwrap_or(self.from);
        let sql = format!("SELECT count(*) FROM {first} WHERE {}", empty.join(" OR "));
        match database.number(&sql, &[])? {
            Some(count) if count > 0 => {
                let names = self.own_keys().map(short).collect::<Vec<_>>();
                let why = format!("{count} rows have no `{}`", names.join("` or no `"));
                part.bad.push(bad(self.table(), Key::Text("-".into()), why));
            }
            _ => {}
        }
        Ok(())
    }
}
