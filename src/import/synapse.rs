//! Synapse: its settings, and its database as facts.

mod beside;
mod context;
mod events;
mod late;
mod left;
mod newest;
mod past;
mod positions;
mod schema;
mod sections;
mod settings;
mod state;
#[cfg(test)]
mod tests;
mod unread;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

use serde_json::Value;

use logcabin_base::clock::Clock;

pub use self::settings::Settings;
use self::{
    context::Context, events::Places, late::Mark as StreamMark, newest::Later, past::Mark,
    sections::plans, settings::DatabaseSettings,
};
use crate::{
    ImportError,
    facts::{
        self, About, AppService, Bad, Cursor, Fact, Key, LeftTable, Origin, Section, ServerKey,
        Slice, SourceError, StateEntry, StateGroup, StateStep, Told, UnreadCount,
    },
    sql::{
        database::{Cell, Completed, Database},
        plan,
        postgresql::Postgresql,
        schema::Schema,
        sqlite::Sqlite,
    },
    yaml,
};

/// Synapse's database, opened for reading.
pub struct Source {
    database: Box<dyn Database>,
    schema: Schema,
    context: Context,
    keys: Vec<ServerKey>,
    /// The registrations of application services.
    registrations: Vec<PathBuf>,
    places: Places,
    past: past::Left,
    later: Option<Later>,
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
            DatabaseSettings::Postgresql(access) => Box::new(Postgresql::open((**access).clone())?),
        };
        let schema = schema::read(&mut *database)?;
        let before = schema::stand_ins(&schema);
        if !before.is_empty() {
            database = Box::new(Completed { database, before });
        }
        let context = Context {
            server_name: settings.server_name.clone(),
            peppered: settings.peppered,
            session_lifetime_ms: settings.session_lifetime_ms(),
        };
        let keys = settings.server_keys()?;
        Ok(Self {
            database,
            schema,
            context,
            keys,
            registrations: settings.app_service_config_files.clone(),
            places: Places::of(settings.event_writers()),
            past: past::Left::default(),
            later: None,
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

    /// How many rows a table has; none if it is not there.
    pub(super) fn rows(&mut self, table: &str) -> Result<u64, SourceError> {
        self.at_once(|source| source.schema.rows(&mut *source.database, table))
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
        let mut mark = if after.is_start() {
            StreamMark::default()
        } else {
            StreamMark::parse(&after.0).ok_or(SourceError::Cursor { section })?
        };
        let now_ms = Clock::system().now_ms();
        let (database, schema, places) = (&mut *self.database, &self.schema, &mut self.places);
        let stopped = places.stopped;
        let (run, late) = if section == Section::Outliers {
            let run = past::outliers(database, places, mark.after, now_ms)?;
            let holes = mark.holes.as_slice();
            (run, stopped.then(|| late::below_zero(database, places, holes, true)))
        } else {
            let run = events::read(database, schema, places, mark.after, now_ms)?;
            let holes = mark.holes.as_slice();
            let late = || late::above_zero(database, schema, places, holes, now_ms);
            (run, stopped.then(late))
        };
        mark.after = run.end;
        let (mut facts, mut bad) = (run.facts, run.bad);
        if after.is_start() && section == Section::Events {
            bad.splice(..0, schema::missing(schema));
        }
        if let Some(late) = late.transpose()? {
            facts.splice(..0, late.facts);
            bad.splice(..0, late.bad);
            mark.holes.clear();
        } else if !run.more {
            mark.holes = late::with_new(database, schema, mark.holes, mark.after, now_ms)?;
        }
        let partial = self.database.rows("SELECT room_id FROM partial_state_rooms", &[])?;
        let partial = partial.into_iter().filter_map(|mut row| match row.pop() {
            Some(Cell::Text(room_id)) => Some(room_id),
            _ => None,
        });
        let partial = Some(partial.collect());
        let end = Cursor(mark.text());
        let next = run.more.then(|| end.clone());
        Ok(Slice { facts, bad, next, end, partial })
    }

    fn backfilled(&mut self, after: &Cursor) -> Result<Slice, SourceError> {
        let mark = if after.is_start() {
            Mark::default()
        } else {
            let section = Section::Backfilled;
            serde_json::from_str(&after.0).map_err(|_| SourceError::Cursor { section })?
        };
        let now_ms = Clock::system().now_ms();
        let (mut mark, mut late) = (mark, None);
        if self.places.stopped && mark.at.is_none() {
            let holes = std::mem::take(&mut mark.holes);
            let (database, places) = (&mut *self.database, &mut self.places);
            late = Some(late::below_zero(database, places, &holes, false)?);
        }
        let (mut run, mut mark) =
            past::backfilled(&mut *self.database, &mut self.places, &mut self.past, mark, now_ms)?;
        if let Some(late) = late {
            run.facts.splice(..0, late.facts);
            run.bad.splice(..0, late.bad);
        } else if !run.more {
            let (database, schema) = (&mut *self.database, &self.schema);
            mark.holes = late::with_new(database, schema, mark.holes, mark.to, now_ms)?;
        }
        // A mark is numbers and texts: it is JSON whatever it holds.
        let end = Cursor(serde_json::to_string(&mark).unwrap_or_default());
        let next = run.more.then(|| end.clone());
        Ok(Slice { facts: run.facts, bad: run.bad, next, end, partial: None })
    }

    /// Application services of which Synapse has noted nothing, as nothing ever went wrong: it has
    /// told them everything up to the same place.
    fn quiet_services(&mut self, slice: &mut Slice) -> Result<(), SourceError> {
        const TABLE: &str = "app_service_config_files";
        let position = "SELECT max(stream_ordering) FROM appservice_stream_position";
        let told_up_to = self.database.number(position, &[])?;
        let known = self.database.rows("SELECT as_id FROM application_services_state", &[])?;
        let known: BTreeSet<String> = known
            .into_iter()
            .filter_map(|mut row| match row.pop() {
                Some(Cell::Text(id)) => Some(id),
                _ => None,
            })
            .collect();
        for path in &self.registrations {
            let key = Key::Text(path.display().to_string().into());
            let origin = Origin { table: TABLE, key };
            let id = match yaml::sections(path) {
                Ok(registration) => {
                    registration.get("id").and_then(Value::as_str).map(str::to_owned)
                }
                Err(error) => {
                    slice.bad.push(Bad { origin, why: error.to_string() });
                    continue;
                }
            };
            match id {
                None => slice.bad.push(Bad { origin, why: "it has no `id`".to_owned() }),
                Some(id) if known.contains(&id) => {}
                Some(id) => {
                    let fact = Fact::AppService(AppService { id, state: None, told_up_to });
                    slice.facts.push(Told { origin, fact });
                }
            }
        }
        Ok(())
    }

    fn tables(
        &mut self,
        section: Section,
        owners: &[String],
        after: &Cursor,
    ) -> Result<Slice, SourceError> {
        let of = (&self.schema, &self.context);
        let (database, plans) = (&mut *self.database, plans(section));
        let mut slice = plan::read(database, of, (section, plans), owners, after)?;
        if section == Section::AppServices && slice.next.is_none() {
            self.quiet_services(&mut slice)?;
        }
        Ok(slice)
    }
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
            _ => plan::count(&mut *source.database, &source.schema, plans(section)),
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

    fn newest(&mut self, room_id: &str, most: usize) -> Result<Vec<String>, SourceError> {
        self.at_once(|source| {
            let (database, places) = (&mut *source.database, &mut source.places);
            let later = match source.later.take() {
                Some(later) => later,
                None => newest::later(database)?,
            };
            let newest = newest::of_room(database, places, &later, room_id, most);
            source.later = Some(later);
            newest
        })
    }

    fn head(&mut self) -> Result<i64, SourceError> {
        self.at_once(|source| events::head(&mut *source.database))
    }

    fn unread(
        &mut self,
        user_id: &str,
    ) -> Result<Option<BTreeMap<String, UnreadCount>>, SourceError> {
        self.at_once(|source| unread::of_user(&mut *source.database, &source.schema, user_id))
    }

    fn positions(&mut self) -> Result<BTreeMap<String, i64>, SourceError> {
        self.at_once(|source| positions::all(&mut *source.database, &source.schema))
    }

    fn left(&mut self) -> Result<Vec<LeftTable>, SourceError> {
        self.at_once(|source| left::left(&mut *source.database, &source.schema))
    }

    fn unfinished(&mut self) -> Result<Vec<String>, SourceError> {
        self.at_once(|source| schema::unfinished(&mut *source.database, &source.schema))
    }

    fn unready(&mut self) -> Result<Vec<String>, SourceError> {
        self.at_once(|source| schema::unready(&mut *source.database, &source.schema))
    }

    fn changed_rooms(&mut self, after: i64) -> Result<Vec<String>, SourceError> {
        self.at_once(|source| events::changed_rooms(&mut *source.database, &source.schema, after))
    }

    fn stopped(&mut self) {
        self.places.stopped = true;
    }
}
