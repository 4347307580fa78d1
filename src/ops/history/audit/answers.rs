//! The answers that an audit checks: those that this version gives to a client that follows its
//! tokens through the whole log.

use std::{collections::BTreeMap, sync::Arc};

use parking_lot::Mutex;
use ruma::{DeviceId, OwnedUserId, UserId};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::{Finding, Ledger, SyncParameters};
use crate::history::{HistoryError, Source, SourceError};
use logcabin_log::{AppendError, Appending, Batch, Follower, Log, ReadError, StreamHeads};
use logcabin_read::{
    events::{EventStore, Viewer},
    notifications::Unread,
    sync::{
        Effort, KnownMembers, LookError,
        v3::{Memory, Request, SyncFilter, respond},
    },
    view::{View, filter::Filter, token::Token},
};
use logcabin_record::{Command, Epoch, Offset, Record};
use logcabin_state::State;

/// How many bytes of parsed events are kept while answers are computed.
const EVENT_CACHE_BYTES: u64 = 64 << 20;

/// The parameters of an audit.
#[derive(Clone, Debug, Default)]
pub struct AuditOptions {
    pub user: String,
    /// The parameters of the client's syncs.
    pub asked: SyncParameters,
    /// One answer as a client received it, to be audited in place of computed ones.
    pub answer: Option<Value>,
    /// The number of syncs in which the client follows the log.
    pub steps: u64,
}

/// The result of an audit.
#[derive(Clone, Debug, Serialize)]
pub struct Audit {
    pub user_id: OwnedUserId,
    /// How many answers were audited.
    pub answers: u64,
    /// How many timeline events they contained.
    pub events: u64,
    /// The findings, by answer.
    pub wrong: Vec<WrongAnswer>,
}

/// An answer that disagrees with the log.
#[derive(Clone, Debug, Serialize)]
pub struct WrongAnswer {
    /// The client's position; `None` for an initial sync.
    pub since: Option<Offset>,
    /// The position as of which it was answered.
    pub to: Offset,
    pub findings: Vec<Finding>,
}

/// Audits the syncs of a user.
///
/// # Errors
/// When the source cannot be read, there is no such user, or the given answer has no valid
/// position.
pub fn audit(source: &Source, options: &AuditOptions) -> Result<Audit, HistoryError> {
    let user_id = find_user(source, &options.user)?;
    let mut audit = Audit { user_id: user_id.clone(), answers: 0, events: 0, wrong: Vec::new() };
    let mut ledger = Ledger::new(&user_id);
    if let Some(answer) = &options.answer {
        let token = answer["next_batch"].as_str().and_then(|text| text.parse::<Token>().ok());
        let Some(token) = token else { return Err(HistoryError::NoToken) };
        for record in source.records(Offset::new(1))? {
            ledger.take(&record?)?;
        }
        ledger.settle();
        if token.offset > ledger.end {
            return Err(HistoryError::NoRecord { offset: token.offset, end: ledger.end });
        }
        audit.add(&ledger, &SyncParameters { to: token.offset, ..options.asked }, answer);
        return Ok(audit);
    }
    let end = source.end()?;
    let step = end.get().div_ceil(options.steps.max(1)).max(1);
    let bodies = Arc::new(Bodies::default());
    let server = Server {
        user_id: &user_id,
        state: Arc::default(),
        events: EventStore::new(Arc::clone(&bodies) as Arc<dyn Log>, EVENT_CACHE_BYTES),
        known: KnownMembers::new(u64::MAX),
        unread: Unread::default(),
    };
    let mut since = options.asked.since;
    for record in source.records(Offset::new(1))? {
        let record = record?;
        let to = record.offset();
        ledger.take(&record)?;
        let _ = server.state.apply(&record)?;
        bodies.add(record);
        let due = to.get().is_multiple_of(step) || to == end;
        if due && since.is_none_or(|since| since < to) && server.knows_user() {
            let asked = SyncParameters { since, to, ..options.asked };
            let answer = server.answer(&asked)?;
            audit.add(&ledger, &asked, &answer);
            since = Some(to);
        }
    }
    Ok(audit)
}

fn find_user(source: &Source, name: &str) -> Result<OwnedUserId, HistoryError> {
    let full = <&UserId>::try_from(name).ok();
    for record in source.records(Offset::new(1))? {
        if let Some(Command::UserRegister(body)) = record?.command()?
            && (full == Some(&body.user_id) || body.user_id.localpart() == name)
        {
            return Ok(body.user_id);
        }
    }
    Err(HistoryError::NoUser(name.to_owned()))
}

impl Audit {
    fn add(&mut self, ledger: &Ledger, asked: &SyncParameters, answer: &Value) {
        self.answers += 1;
        for section in ["join", "leave"] {
            for (_, room) in answer["rooms"][section].as_object().into_iter().flatten() {
                self.events += super::events(&room["timeline"]).count() as u64;
            }
        }
        let findings = ledger.check(asked, answer);
        if !findings.is_empty() {
            self.wrong.push(WrongAnswer { since: asked.since, to: asked.to, findings });
        }
    }
}

/// The parts of a server that answer one user's syncs.
struct Server<'a> {
    user_id: &'a UserId,
    state: Arc<State>,
    events: EventStore,
    known: KnownMembers,
    unread: Unread,
}

impl Server<'_> {
    fn knows_user(&self) -> bool {
        self.state.accounts.contains(self.user_id)
    }

    fn answer(&self, asked: &SyncParameters) -> Result<Value, HistoryError> {
        let filter = json!({ "room": {
            "include_leave": asked.include_leave,
            "state": { "lazy_load_members": asked.lazy_load_members },
        } });
        let filter: Filter = serde_json::from_value(filter).unwrap_or_default();
        let request = Request {
            since: asked.since,
            came_from: None,
            full_state: asked.full_state,
            use_state_after: asked.use_state_after,
            filter: SyncFilter::new(filter, 10, 1000).into(),
            epoch: Epoch::default(),
        };
        let viewer = Viewer {
            user_id: self.user_id,
            device_id: <&DeviceId>::from("AUDIT"),
            session: Offset::ZERO,
            at: asked.to,
            now_ms: 0,
        };
        let view = View { state: Arc::clone(&self.state), events: &self.events, viewer };
        let memory = Memory { members: &self.known, unread: &self.unread, effort: Effort::Any };
        let response = respond(&view, &request, memory).map_err(|error| match error {
            LookError::Read(error) => SourceError::from(error),
            // Cannot happen: the audit has no limit on effort.
            LookError::TooLong(error) => SourceError::from(ReadError::Storage(error.to_string())),
        })?;
        Ok(serde_json::to_value(&response).unwrap_or_default())
    }
}

/// The records that were read so far, as a log to read event bodies from.
#[derive(Debug, Default)]
pub(in crate::history) struct Bodies(Mutex<BTreeMap<Offset, Record>>);

impl Bodies {
    pub(in crate::history) fn add(&self, record: Record) {
        self.0.lock().insert(record.offset(), record);
    }
}

impl Log for Bodies {
    fn append(&self, _: Batch) -> Appending<'_> {
        Box::pin(async { Err(AppendError::Closed) })
    }

    fn get(&self, offset: Offset) -> Result<Option<Record>, ReadError> {
        Ok(self.0.lock().get(&offset).cloned())
    }

    fn read(&self, from: Offset, limit: usize) -> Result<Vec<Record>, ReadError> {
        Ok(self.0.lock().range(from..).take(limit).map(|(_, record)| record.clone()).collect())
    }

    fn durable(&self) -> watch::Receiver<Offset> {
        watch::Sender::new(Offset::ZERO).subscribe()
    }

    fn start(&self, _: StreamHeads, _: Follower) {}

    fn close(&self) {}
}
