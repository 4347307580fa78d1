//! Synapse: its settings, and its database as facts.

mod check;
mod database;
mod events;
mod past;
mod plan;
mod postgresql;
mod schema;
mod sections;
mod settings;
mod sqlite;
mod state;
#[cfg(test)]
mod tests;

use logcabin_base::clock::Clock;

pub use self::{
    check::{Left, Report, check},
    settings::Settings,
};
use self::{
    database::{Cell, Database},
    events::Places,
    past::Mark,
    plan::Context,
    postgresql::Postgresql,
    schema::Schema,
    sections::plans,
    settings::DatabaseSettings,
    sqlite::Sqlite,
};
use crate::{
    ImportError,
    facts::{
        self, About, Cursor, Fact, Key, Origin, Section, ServerKey, Slice, SourceError, StateEntry,
        StateGroup, StateStep, Told,
    },
};

/// Synapse's database, opened for reading.
pub struct Source {
    database: Box<dyn Database>,
    schema: Schema,
    context: Context,
    keys: Vec<ServerKey>,
    places: Places,
    past: past::Left,
}

impl Source {
    /// Opens the database that the settings name, and refuses one that cannot be read as a whole.
    pub fn open(settings: &Settings) -> Result<Self, ImportError> {
        let mut database: Box<dyn Database> = match &settings.database {
            DatabaseSettings::Sqlite(path) => {
                // SQLite says of a file that is not there only that it cannot be opened.
                std::fs::metadata(path).map_err(|source| ImportError::File {
                    what: "read",
                    path: path.clone(),
                    source,
                })?;
                Box::new(Sqlite::open(path)?)
            }
            DatabaseSettings::Postgresql { config, place } => {
                Box::new(Postgresql::open((**config).clone(), place.clone())?)
            }
        };
        let schema = Schema::read(&mut *database)?;
        let context =
            Context { server_name: settings.server_name.clone(), peppered: settings.peppered };
        let keys = settings.server_keys()?;
        Ok(Self {
            database,
            schema,
            context,
            keys,
            places: Places::default(),
            past: past::Left::default(),
        })
    }

    /// Reads as of one moment.
    fn at_once<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, SourceError>,
    ) -> Result<T, SourceError> {
        self.database.begin()?;
        let read = read(self);
        self.database.end();
        read
    }

    /// The server's own keys.
    fn server(&self) -> Slice {
        let told = |key: &ServerKey| Told {
            origin: Origin { table: "signing keys", key: Key::Text(key.key_id.as_str().into()) },
            fact: Fact::ServerKey(key.clone()),
        };
        Slice { facts: self.keys.iter().map(told).collect(), ..Slice::default() }
    }

    /// The stream of events, or the outliers below its start.
    fn stream(&mut self, section: Section, after: &Cursor) -> Result<Slice, SourceError> {
        let place = if after.is_start() {
            0
        } else {
            after.0.parse::<i64>().map_err(|_| SourceError::Cursor { section })?
        };
        let now_ms = Clock::system().now_ms();
        let (database, places) = (&mut *self.database, &mut self.places);
        let run = if section == Section::Outliers {
            past::outliers(database, places, place, now_ms)?
        } else {
            events::read(database, &self.schema, places, place, now_ms)?
        };
        let end = Cursor(run.end.to_string());
        Ok(Slice { facts: run.facts, bad: run.bad, next: run.more.then(|| end.clone()), end })
    }

    fn backfilled(&mut self, after: &Cursor) -> Result<Slice, SourceError> {
        let mark = if after.is_start() {
            Mark::default()
        } else {
            let section = Section::Backfilled;
            serde_json::from_str(&after.0).map_err(|_| SourceError::Cursor { section })?
        };
        let now_ms = Clock::system().now_ms();
        let (run, mark) =
            past::backfilled(&mut *self.database, &mut self.places, &mut self.past, mark, now_ms)?;
        // A mark is numbers and texts: it is JSON whatever it holds.
        let end = Cursor(serde_json::to_string(&mark).unwrap_or_default());
        Ok(Slice { facts: run.facts, bad: run.bad, next: run.more.then(|| end.clone()), end })
    }

    fn tables(
        &mut self,
        section: Section,
        owners: &[String],
        after: &Cursor,
    ) -> Result<Slice, SourceError> {
        let (number, key) = if after.is_start() {
            (0, None)
        } else {
            serde_json::from_str::<(usize, Option<Vec<Cell>>)>(&after.0)
                .map_err(|_| SourceError::Cursor { section })?
        };
        let plans = plans(section);
        let Some(plan) = plans.get(number) else {
            return Err(SourceError::Cursor { section });
        };
        if key.as_ref().is_some_and(|key| key.len() != plan.cells()) {
            return Err(SourceError::Cursor { section });
        }
        let (database, schema) = (&mut *self.database, &self.schema);
        let part = plan.read(database, schema, &self.context, owners, key.as_deref())?;
        let next = match part.after {
            Some(key) => Some(cursor(number, Some(&key))),
            None if number + 1 < plans.len() => Some(cursor(number + 1, None)),
            None => None,
        };
        let end = next.clone().unwrap_or_else(|| after.clone());
        Ok(Slice { facts: part.facts, bad: part.bad, next, end })
    }
}

/// A place in the table of this number, as text.
fn cursor(number: usize, key: Option<&[Cell]>) -> Cursor {
    // Cells are numbers and texts: they are JSON whatever they hold.
    Cursor(serde_json::to_string(&(number, key)).unwrap_or_default())
}

impl facts::Source for Source {
    fn about(&mut self) -> Result<About, SourceError> {
        Ok(About {
            program: "Synapse".to_owned(),
            // Its tables say their version, and not the program's.
            version: String::new(),
            schema: u32::try_from(self.schema.version).unwrap_or_default(),
            database: self.database.kind().to_owned(),
            server_name: self.context.server_name.clone(),
            place: self.database.place(),
        })
    }

    fn count(&mut self, section: Section) -> Result<u64, SourceError> {
        self.at_once(|source| match section {
            Section::Server => Ok(source.keys.len() as u64),
            Section::Outliers => past::count(&mut *source.database, true),
            Section::Events => events::count(&mut *source.database),
            Section::Backfilled => past::count(&mut *source.database, false),
            _ => {
                let mut count = 0;
                for plan in plans(section) {
                    count += plan.count(&mut *source.database, &source.schema)?;
                }
                Ok(count)
            }
        })
    }

    fn read(&mut self, section: Section, after: &Cursor) -> Result<Slice, SourceError> {
        self.at_once(|source| match section {
            Section::Server => Ok(source.server()),
            Section::Outliers | Section::Events => source.stream(section, after),
            Section::Backfilled => source.backfilled(after),
            _ => source.tables(section, &[], after),
        })
    }

    fn read_of(
        &mut self,
        section: Section,
        owners: &[String],
        after: &Cursor,
    ) -> Result<Slice, SourceError> {
        if owners.is_empty() {
            return Ok(Slice { end: after.clone(), ..Slice::default() });
        }
        self.at_once(|source| source.tables(section, owners, after))
    }

    fn state(&mut self, group: StateGroup) -> Result<Vec<StateEntry>, SourceError> {
        self.at_once(|source| state::whole(&mut *source.database, group))
    }

    fn state_step(&mut self, group: StateGroup) -> Result<StateStep, SourceError> {
        self.at_once(|source| state::step(&mut *source.database, group))
    }

    fn events(&mut self, event_ids: &[String]) -> Result<Slice, SourceError> {
        self.at_once(|source| {
            let (facts, bad) = events::by_id(&mut *source.database, event_ids)?;
            Ok(Slice { facts, bad, ..Slice::default() })
        })
    }

    fn head(&mut self) -> Result<i64, SourceError> {
        self.at_once(|source| events::head(&mut *source.database))
    }

    fn stopped(&mut self) {
        self.places.stopped = true;
    }
}
