//! One question about a log, answered on an output.

use std::{fmt, io::Write};

use serde::Serialize;

use super::{
    HistoryError, Look,
    audit::{AuditOptions, audit},
    check,
    moment::Moment,
    query::{self, History, RecordView},
    render,
    source::Source,
    why::{Subject, why},
};
use crate::record::Offset;

/// What can be asked of a log.
#[derive(Clone, Debug)]
pub enum Question {
    /// The records as they come.
    Tail {
        /// Begin with this many of those that are there; all, if not given.
        last: Option<usize>,
        /// Go on with each new one.
        follow: bool,
    },
    /// One record.
    Show(Offset),
    /// All rooms.
    Rooms,
    /// A room's events.
    Room {
        /// Id, alias, or a beginning of one.
        room: String,
        /// Only this many at the end.
        last: Option<usize>,
    },
    /// A room's state.
    State {
        /// Id, alias, or a beginning of one.
        room: String,
        /// As of this moment; as of now, if not given.
        at: Option<Moment>,
    },
    /// What changed in a room.
    Diff {
        /// Id, alias, or a beginning of one.
        room: String,
        /// The one moment.
        from: Moment,
        /// The other.
        to: Moment,
    },
    /// Why a value is what it is.
    Why {
        /// Which value.
        subject: Subject,
        /// As of this moment; as of now, if not given.
        at: Option<Moment>,
    },
    /// All users.
    Users,
    /// What users have reported.
    Reports,
    /// What the log holds.
    Stats,
    /// Whether the log is intact.
    Verify,
    /// Whether a user was told by sync what the log says they were to be told.
    AuditSync(Box<AuditOptions>),
}

/// Where an answer goes, and how it is to look.
///
/// For programs, an answer is JSON: one object on a line for each item of `tail`, `rooms`, `room`,
/// `state`, `why`, `users` and `reports`, one object on one line as the whole answer of `show`, `diff`, `stats`,
/// `verify` and `audit-sync`. Their members are those of [`RecordView`],
/// [`RoomRow`](query::RoomRow), [`EventRow`](query::EventRow) (`room` and `state`),
/// [`Step`](super::why::Step), [`UserRow`](query::UserRow), [`Diff`](query::Diff), [`Stats`](query::Stats),
/// [`Report`](check::Report) and [`Audit`](super::audit::Audit).
pub struct Output<'a> {
    writer: &'a mut dyn Write,
    look: Option<Look>,
}

impl fmt::Debug for Output<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Output").field("look", &self.look).finish_non_exhaustive()
    }
}

impl<'a> Output<'a> {
    /// For people.
    pub fn for_people(writer: &'a mut dyn Write, look: Look) -> Self {
        Self { writer, look: Some(look) }
    }

    /// For programs.
    pub fn for_programs(writer: &'a mut dyn Write) -> Self {
        Self { writer, look: None }
    }

    /// Writes one object, or what people get instead.
    fn put<T: Serialize>(
        &mut self,
        item: &T,
        text: impl FnOnce(&T, &Look) -> String,
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

    /// Writes a list: an object on each line, or what people get instead.
    fn put_all<T: Serialize>(
        &mut self,
        items: &[T],
        text: impl FnOnce(&[T], &Look) -> String,
    ) -> Result<(), HistoryError> {
        match &self.look {
            Some(look) => Ok(self.writer.write_all(text(items, look).as_bytes())?),
            None => items.iter().try_for_each(|item| self.put(item, |_, _| String::new())),
        }
    }

    /// Writes what only people need.
    fn remark(&mut self, text: impl FnOnce(&Look) -> String) -> Result<(), HistoryError> {
        match &self.look {
            Some(look) => Ok(self.writer.write_all(text(look).as_bytes())?),
            None => Ok(()),
        }
    }
}

/// Answers `question` from `source`. Gives whether what was looked at is intact, which only
/// [`Question::Verify`] and [`Question::AuditSync`] can deny.
///
/// # Errors
/// When there is no answer, or it cannot be written.
pub fn run(
    source: &Source,
    question: &Question,
    out: &mut Output<'_>,
) -> Result<bool, HistoryError> {
    match question {
        Question::Tail { last, follow } => tail(source, *last, *follow, out)?,
        Question::Show(offset) => {
            out.put(&query::show(source, *offset)?, render::record_in_full)?;
        }
        Question::Rooms => {
            let rooms = History::replay(source, &[])?.rooms()?;
            out.put_all(&rooms, render::rooms)?;
        }
        Question::Room { room, last } => {
            let history = History::replay(source, &[])?;
            let room = history.room(room)?;
            out.remark(|look| render::heading(look, room.id.as_str(), None))?;
            let mut day = String::new();
            history.timeline(&room, Offset::ZERO, history.end(), *last, |row| {
                out.put(&row, |row, look| render::event(row, look, &mut day))
            })?;
        }
        Question::State { room, at } => {
            let history = History::replay(source, at.as_slice())?;
            let room = history.room(room)?;
            let at = history.moment(0);
            out.remark(|look| render::heading(look, room.id.as_str(), Some(at)))?;
            out.put_all(&history.room_state(&room, at)?, render::state)?;
        }
        Question::Diff { room, from, to } => {
            let history = History::replay(source, &[*from, *to])?;
            let room = history.room(room)?;
            let diff = history.diff(&room, history.moment(0), history.moment(1))?;
            out.put(&diff, render::diff)?;
        }
        Question::Why { subject, at } => {
            let steps = why(source, subject, *at)?;
            out.put_all(&steps, render::why)?;
        }
        Question::Users => {
            let users = History::replay(source, &[])?.users()?;
            out.put_all(&users, render::users)?;
        }
        Question::Reports => {
            let mut day = String::new();
            for record in source.records(Offset::new(1))? {
                let record = record?;
                if &*record.header.kind == "report.create" {
                    out.put(&RecordView::of(&record), |view, look| {
                        render::record_in_line(view, look, &mut day)
                    })?;
                }
            }
        }
        Question::Stats => out.put(&query::stats(source)?, render::stats)?,
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

fn tail(
    source: &Source,
    last: Option<usize>,
    follow: bool,
    out: &mut Output<'_>,
) -> Result<(), HistoryError> {
    let end = source.end()?;
    let last = last.and_then(|last| u64::try_from(last).ok()).unwrap_or(u64::MAX);
    let first = Offset::new(end.get().saturating_sub(last)).next();
    let mut day = String::new();
    let mut put = |view: RecordView, out: &mut Output<'_>| {
        out.put(&view, |view, look| render::record_in_line(view, look, &mut day))
    };
    let mut next = first;
    for record in source.records(first)? {
        let record = record?;
        next = record.offset().next();
        put(RecordView::of(&record), out)?;
    }
    out.writer.flush()?;
    if !follow {
        return Ok(());
    }
    let Some(records) = source.follow(next)? else {
        return out.remark(render::nothing_to_follow);
    };
    for record in records {
        put(RecordView::of(&record?), out)?;
        out.writer.flush()?;
    }
    out.remark(render::server_stopped)
}
