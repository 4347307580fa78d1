//! The open reports as an inbox: those about the same message, user or room are one line.

use std::collections::BTreeMap;

use ruma::{OwnedEventId, OwnedRoomId, OwnedUserId};

use super::{
    list::newest,
    summary::{ReportSummary, summary},
};
use crate::admin::context::ActContext;
use logcabin_log::ReadError;
use logcabin_record::Offset;
use logcabin_state::reports::Report;

/// How many reports of a line are read for their words.
const WORDS: usize = 3;

/// What a report is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReportKind {
    Message,
    User,
    Room,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct InboxQuery {
    /// Only reports about one of these.
    pub kind: Option<ReportKind>,
    pub oldest_first: bool,
}

/// The open reports about one message, user or room.
#[derive(Clone, Debug)]
pub struct ReportGroup {
    /// The newest report.
    pub newest: ReportSummary,
    /// How many there are.
    pub count: usize,
    /// What the newest reporters wrote.
    pub words: Vec<String>,
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Subject {
    Message(OwnedEventId),
    User(OwnedUserId),
    Room(Option<OwnedRoomId>),
}

impl Subject {
    fn of(report: &Report) -> Self {
        match (&report.event_id, &report.user_id) {
            (Some(event_id), _) => Self::Message(event_id.clone()),
            (None, Some(user_id)) => Self::User(user_id.clone()),
            (None, None) => Self::Room(report.room_id.clone()),
        }
    }

    const fn kind(&self) -> ReportKind {
        match self {
            Self::Message(_) => ReportKind::Message,
            Self::User(_) => ReportKind::User,
            Self::Room(_) => ReportKind::Room,
        }
    }
}

/// The reports of each line, the newest first.
fn groups(context: &ActContext, query: InboxQuery) -> Vec<Vec<(Offset, Report)>> {
    let mut by_subject = BTreeMap::<Subject, Vec<(Offset, Report)>>::new();
    for (id, report) in newest(context) {
        by_subject.entry(Subject::of(&report)).or_default().push((id, report));
    }
    let is_wanted = |of: &Subject| query.kind.is_none_or(|kind| kind == of.kind());
    let wanted = by_subject.into_iter().filter(|(of, _)| is_wanted(of));
    let mut groups: Vec<_> = wanted.map(|(_, reports)| reports).collect();
    match query.oldest_first {
        true => groups.sort_by_key(|reports| reports.last().map(|(id, _)| *id)),
        false => {
            groups.sort_by_key(|reports| reports.first().map(|(id, _)| std::cmp::Reverse(*id)))
        }
    }
    groups
}

/// A page of the inbox, and how many lines there are.
pub fn inbox(
    context: &ActContext,
    query: InboxQuery,
    from: usize,
    limit: usize,
) -> Result<(Vec<ReportGroup>, usize), ReadError> {
    let groups = groups(context, query);
    let total = groups.len();
    let mut shown = Vec::new();
    for reports in groups.into_iter().skip(from).take(limit) {
        let count = reports.len();
        let read = reports.into_iter().take(WORDS);
        let read = read.map(|(id, report)| summary(context, id, report));
        let read = read.collect::<Result<Vec<_>, _>>()?;
        let words = read.iter().filter_map(|one| one.reason.clone()).collect();
        shown.extend(read.into_iter().next().map(|newest| ReportGroup { newest, count, words }));
    }
    Ok((shown, total))
}

/// All open reports about the same as this open one, the newest first.
pub fn of_same_line(context: &ActContext, id: Offset) -> Vec<Offset> {
    let Some(report) = context.engine.state().reports.get(id) else { return Vec::new() };
    let subject = Subject::of(&report);
    newest(context).filter(|(_, report)| Subject::of(report) == subject).map(|(id, _)| id).collect()
}

/// The newest report of the line after the one with this report; the first line, if that is the
/// last.
pub fn next_line(context: &ActContext, query: InboxQuery, id: Offset) -> Option<Offset> {
    let groups = groups(context, query);
    let at = groups.iter().position(|reports| reports.iter().any(|(other, _)| *other == id));
    let newest = |index: usize| Some(groups.get(index)?.first()?.0);
    newest(at.map_or(0, |at| at + 1)).or_else(|| newest(0)).filter(|next| *next != id)
}
