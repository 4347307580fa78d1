//! Answers one question about a log.

use std::{collections::VecDeque, fmt, io::Write};

use ruma::OwnedRoomId;
use serde::Serialize;

use super::{
    HistoryError, Layout,
    audit::{AuditOptions, audit},
    check,
    diff::{Scope, diff},
    du::usage,
    moment::Moment,
    query::{self, History, RecordView},
    render,
    select::{Kinds, Selection},
    user_view,
    why::{Subject, why},
};
use crate::source::Source;
use logcabin_record::{
    Offset, Record,
    command::{Body as _, ReportCreate},
};
use logcabin_service::observe::Directories;

/// A question about a log.
#[derive(Clone, Debug)]
pub enum Question {
    /// The records as they arrive.
    Tail {
        /// How many existing records to start with; none for all.
        last: Option<usize>,
        /// Whether to continue with new ones.
        follow: bool,
        only: Box<TailFilter>,
    },
    /// One record.
    Show(Offset),
    /// The log as of a moment.
    AsOf {
        /// The subject.
        what: Target,
        /// The moment; none for now.
        at: Option<Moment>,
    },
    /// A summary of what happened between two moments.
    Diff {
        of: Scope,
        from: Moment,
        /// The other.
        to: Moment,
    },
    /// Why a value is what it is.
    Why {
        /// The value.
        subject: Subject,
        /// The moment; none for now.
        at: Option<Moment>,
    },
    /// Storage use.
    Usage {
        /// Where the parts of the data directory are; `None` for their default places.
        directories: Option<Directories>,
    },
    /// Whether the log is intact.
    Verify,
    /// Whether syncs told a user what the log says they should have.
    AuditSync(Box<AuditOptions>),
}

/// Which records of a tail are wanted.
#[derive(Clone, Debug, Default)]
pub struct TailFilter {
    /// Those of a room: id, alias, name, or a prefix of an id or alias.
    pub room: Option<String>,
    /// Those by or about a user: the user id, or its part before the colon.
    pub user: Option<String>,
    /// Those of these kinds.
    pub kinds: Kinds,
}

impl TailFilter {
    fn selection(&self, source: &Source) -> Result<Selection, HistoryError> {
        let kinds = self.kinds.clone();
        let full_id = |name: &String| OwnedRoomId::try_from(name.as_str()).ok();
        if self.user.is_none() && self.room.as_ref().is_none_or(|room| full_id(room).is_some()) {
            return Ok(Selection { room: self.room.as_ref().and_then(full_id), user: None, kinds });
        }
        // Names are those of now.
        let history = History::open(source, None)?;
        let room = self.room.as_ref().map(|name| match full_id(name) {
            Some(room_id) => Ok(room_id),
            None => history.room(name).map(|room| room.id.clone()),
        });
        let user = self.user.as_ref().map(|name| history.user_id(name)).transpose()?;
        Ok(Selection { room: room.transpose()?, user: user.map(Into::into), kinds })
    }
}

/// The subjects of questions about a moment.
#[derive(Clone, Debug)]
pub enum Target {
    /// All rooms.
    Rooms,
    /// A room's events.
    Room {
        /// Id, alias, name, or a prefix of an id or alias.
        room: String,
        /// Only this many of the newest; none for all.
        last: Option<usize>,
    },
    /// A room's state.
    State {
        room: String,
    },
    /// The present and former members of a room.
    Members {
        room: String,
    },
    /// All users.
    Users,
    /// An account with the user's data.
    User {
        /// The user id, or its part before the colon.
        user: String,
    },
    /// The devices of a user, or all.
    Devices {
        user: Option<String>,
    },
    /// The aliases of a room, or all.
    Aliases {
        room: Option<String>,
    },
    /// The pushers of a user, or all.
    Pushers {
        user: Option<String>,
    },
    /// The uploads of a user, or all.
    Media {
        user: Option<String>,
    },
    RegistrationTokens,
    /// The users' reports.
    Reports,
    /// The size of the log.
    Stats,
}

/// Where an answer is written, and in which form.
///
/// For programs, an answer is JSON: a list (`tail`, `why`, and [`Target`] except `User` and
/// `Stats`) is one object on each line, everything else one object on one line. The members are
/// those of [`RecordView`], [`Step`](super::step::Step), [`Diff`](super::diff::Diff),
/// [`Usage`](super::du::Usage), [`Report`](check::Report), [`Audit`](super::audit::Audit), of the
/// rows in [`query`] and those in [`rows`](super::rows).
pub struct Output<'a> {
    writer: &'a mut dyn Write,
    look: Option<Layout>,
}

impl fmt::Debug for Output<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Output").field("look", &self.look).finish_non_exhaustive()
    }
}

impl<'a> Output<'a> {
    pub fn for_people(writer: &'a mut dyn Write, look: Layout) -> Self {
        Self { writer, look: Some(look) }
    }

    pub fn for_programs(writer: &'a mut dyn Write) -> Self {
        Self { writer, look: None }
    }

    /// Writes one object, or the text for people.
    fn put<T: Serialize>(
        &mut self,
        item: &T,
        text: impl FnOnce(&T, &Layout) -> String,
    ) -> Result<(), HistoryError> {
        match &self.look {
            Some(look) => self.writer.write_all(text(item, look).as_bytes())?,
            None => {
                serde_json::to_writer(&mut *self.writer, item).map_err(std::io::Error::from)?;
                self.writer.write_all(b"\n")?;
            }
        }
        Ok(())
    }

    /// Writes a list: an object on each line, or the text for people.
    fn put_all<T: Serialize>(
        &mut self,
        items: &[T],
        text: impl FnOnce(&[T], &Layout) -> String,
    ) -> Result<(), HistoryError> {
        match &self.look {
            Some(look) => Ok(self.writer.write_all(text(items, look).as_bytes())?),
            None => items.iter().try_for_each(|item| self.put(item, |_, _| String::new())),
        }
    }

    /// Writes what only people need.
    fn remark(&mut self, text: impl FnOnce(&Layout) -> String) -> Result<(), HistoryError> {
        match &self.look {
            Some(look) => Ok(self.writer.write_all(text(look).as_bytes())?),
            None => Ok(()),
        }
    }
}

/// Answers `question` from `source`. Returns whether what was examined is intact, which only
/// [`Question::Verify`] and [`Question::AuditSync`] can deny.
pub fn run(
    source: &Source,
    question: &Question,
    out: &mut Output<'_>,
) -> Result<bool, HistoryError> {
    match question {
        Question::Tail { last, follow, only } => tail(source, *last, *follow, only, out)?,
        Question::Show(offset) => {
            out.put(&query::show(source, *offset)?, render::record_in_full)?;
        }
        Question::AsOf { what, at } => as_of(source, what, *at, out)?,
        Question::Diff { of, from, to } => {
            out.put(&diff(source, of, *from, *to)?, render::diff)?;
        }
        Question::Why { subject, at } => {
            let steps = why(source, subject, *at)?;
            out.put_all(&steps, render::why)?;
        }
        Question::Usage { directories } => {
            out.put(&usage(source, directories.as_ref())?, render::usage)?;
        }
        Question::Verify => {
            let report = check::check_all(source, None)?;
            out.put(&report, render::report)?;
            return Ok(report.intact);
        }
        Question::AuditSync(options) => {
            let audit = audit(source, options)?;
            out.put(&audit, render::audit)?;
            return Ok(audit.wrong.is_empty());
        }
    }
    out.writer.flush()?;
    Ok(true)
}

fn as_of(
    source: &Source,
    what: &Target,
    at: Option<Moment>,
    out: &mut Output<'_>,
) -> Result<(), HistoryError> {
    match what {
        Target::Reports => return reports(source, at, out),
        Target::Stats => return out.put(&query::stats(source, at)?, render::stats),
        _ => {}
    }
    let history = History::open(source, at)?;
    if at.is_some() {
        out.remark(|look| render::way(look, &history.way()))?;
    }
    let room = |name: &String| history.room(name);
    let user = |name: &Option<String>| name.as_ref().map(|name| history.user_id(name)).transpose();
    match what {
        Target::Rooms => out.put_all(&history.rooms()?, render::rooms),
        Target::Room { room: name, last } => {
            let room = room(name)?;
            out.remark(|look| render::heading(look, room.id.as_str(), None))?;
            let mut day = String::new();
            history.timeline(&room, Offset::ZERO, history.end(), *last, |row| {
                out.put(&row, |row, look| render::event(row, look, &mut day))
            })
        }
        Target::State { room: name } => {
            let room = room(name)?;
            out.remark(|look| render::heading(look, room.id.as_str(), Some(history.end())))?;
            out.put_all(&history.room_state(&room, history.end())?, render::state)
        }
        Target::Members { room: name } => {
            let room = room(name)?;
            out.remark(|look| render::heading(look, room.id.as_str(), Some(history.end())))?;
            out.put_all(&history.members(&room)?, render::members)
        }
        Target::Users => out.put_all(&history.users()?, render::users),
        Target::User { user: name } => {
            out.put(&history.user(&history.user_id(name)?)?, user_view::user)
        }
        Target::Devices { user: name } => {
            out.put_all(&history.devices(user(name)?.as_deref()), render::devices)
        }
        Target::Aliases { room: name } => {
            let room = name.as_ref().map(room).transpose()?;
            out.put_all(&history.aliases(room.as_deref()), render::aliases)
        }
        Target::Pushers { user: name } => {
            out.put_all(&history.pushers(user(name)?.as_deref()), render::pushers)
        }
        Target::Media { user: name } => {
            out.put_all(&history.media(user(name)?.as_deref()), render::media)
        }
        Target::RegistrationTokens => {
            out.put_all(&history.registration_tokens(), render::registration_tokens)
        }
        Target::Reports | Target::Stats => Ok(()),
    }
}

fn reports(source: &Source, at: Option<Moment>, out: &mut Output<'_>) -> Result<(), HistoryError> {
    let end = at.map(|at| query::offset_of(source, at)).transpose()?.unwrap_or(Offset::MAX);
    let mut day = String::new();
    for record in source.records(Offset::new(1))? {
        let record = record?;
        if record.offset() > end {
            break;
        }
        if &*record.header.kind == ReportCreate::KIND.name {
            out.put(&RecordView::of(&record), |view, look| {
                render::record_in_line(view, look, &mut day)
            })?;
        }
    }
    Ok(())
}

fn tail(
    source: &Source,
    last: Option<usize>,
    follow: bool,
    only: &TailFilter,
    out: &mut Output<'_>,
) -> Result<(), HistoryError> {
    let selection = only.selection(source)?;
    let mut day = String::new();
    let mut put = |view: RecordView, out: &mut Output<'_>| {
        out.put(&view, |view, look| render::record_in_line(view, look, &mut day))
    };
    let mut next = match last {
        Some(last) => {
            let (records, next) = newest(source, &selection, last)?;
            records.iter().try_for_each(|record| put(RecordView::of(record), out))?;
            next
        }
        None => Offset::new(1),
    };
    for record in source.records(next)? {
        let record = record?;
        next = record.offset().next();
        if selection.has(&record) {
            put(RecordView::of(&record), out)?;
        }
    }
    out.writer.flush()?;
    if !follow {
        return Ok(());
    }
    let Some(records) = source.follow(next)? else {
        return out.remark(render::nothing_to_follow);
    };
    for record in records {
        let record = record?;
        if selection.has(&record) {
            put(RecordView::of(&record), out)?;
            out.writer.flush()?;
        }
    }
    out.remark(render::server_stopped)
}

/// The newest records that `selection` chooses, at most `most`, and what comes after the last one
/// that was examined.
fn newest(
    source: &Source,
    selection: &Selection,
    most: usize,
) -> Result<(VecDeque<Record>, Offset), HistoryError> {
    let end = source.end()?;
    let mut span = u64::try_from(most).unwrap_or(u64::MAX);
    loop {
        let first = Offset::new(end.get().saturating_sub(span)).next();
        let mut found = VecDeque::new();
        for record in source.records(first)? {
            let record = record?;
            if record.offset() > end {
                break;
            }
            if most > 0 && selection.has(&record) {
                if found.len() == most {
                    found.pop_front();
                }
                found.push_back(record);
            }
        }
        if found.len() == most || first == Offset::new(1) {
            return Ok((found, end.next()));
        }
        // This reads the previous span again, an eighth of the new one.
        span = span.saturating_mul(8);
    }
}
