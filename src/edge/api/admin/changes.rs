//! The feed of changes: every record from one on and then each new one, as newline-delimited JSON
//! or as server-sent events.
//!
//! A reader is never queued for. Its task reads the next piece of the log when the piece before has
//! gone to the connection, so a reader that lags costs one piece. One that takes nothing loses its
//! connection as everybody does, and goes on after the last position that it has.

use std::{io::Write as _, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::StreamExt as _;
use http::{
    HeaderMap, HeaderName, HeaderValue,
    header::{ACCEPT, CACHE_CONTROL},
};
use ruma::{OwnedRoomOrAliasId, OwnedUserId, api::auth_scheme::AccessToken};
use serde::Serialize;
use tokio::{
    sync::{OwnedSemaphorePermit, mpsc},
    time::{Instant, sleep, sleep_until},
};
use tokio_stream::wrappers::ReceiverStream;

use super::parts::AdminParts as _;
use crate::{
    api::{
        auth::{rights, session},
        server::{Server, positions::Undone},
    },
    http::{ApiError, Cx, ErrorCode, OpenTo, Reply, Session, endpoint},
};
use logcabin_base::{limits, shutdown::Shutdown};
use logcabin_log::{ReadError, follow::Follow};
use logcabin_ops::history::{query::RecordView, select::Selection};
use logcabin_read::view::token::Token;
use logcabin_record::{Offset, Record};
use logcabin_service::requester::Requester;

const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

endpoint! {
    /// `GET /_logcabin/v1/changes`
    pub(super) struct Changes = GET "/_logcabin/v1/changes";
    for AccessToken;
    {
        from: Option<u64> = number,
        since: Option<String> = parameter,
        follow: Option<bool> = flag,
        room: Option<String> = parameter,
        user: Option<String> = parameter,
        kind: Option<String> = parameter,
        headers: HeaderMap = headers,
    }
}

/// What a reader wants.
pub(crate) struct FeedRequest {
    pub(crate) from: Option<u64>,
    pub(crate) since: Option<String>,
    pub(crate) follow: bool,
    pub(crate) room: Option<String>,
    pub(crate) user: Option<String>,
    pub(crate) kind: Option<String>,
    pub(crate) headers: HeaderMap,
}

pub(super) async fn changes(cx: Cx<Server>, request: Changes) -> Result<Reply, ApiError> {
    let Changes { from, since, follow, room, user, kind, headers } = request;
    let follow = follow.unwrap_or(true);
    let form = FeedFormat::asked(&headers);
    let wanted = FeedRequest { from, since, follow, room, user, kind, headers };
    open(cx.app, cx.caller, cx.shutdown, &wanted, form)
}

/// Begins to tell `session` of changes.
pub(crate) fn open(
    app: Arc<Server>,
    session: Session,
    shutdown: Shutdown,
    wanted: &FeedRequest,
    form: FeedFormat,
) -> Result<Reply, ApiError> {
    let FeedRequest { room, user, kind, .. } = wanted;
    let selection = selection(&app, [room, user, kind].map(Option::as_deref))?;
    let first = first(&app, wanted)?;
    let places = Arc::clone(&app.sync.changes);
    let place = places.try_acquire_owned();
    let place = place.map_err(|_| ApiError::limit_exceeded(Duration::from_secs(5)))?;
    // What does not fit waits in the log.
    let (pieces, body) = mpsc::channel(1);
    let timeout = Duration::from_secs(app.config.http.response_timeout_seconds);
    let feed = Feed {
        form,
        selection,
        records: app.engine.follow(first),
        told: first.prev(),
        // A connection without progress counts as one that nobody reads.
        silence: limits::CHANGES_SILENCE.min(timeout / 2),
        spoke: Instant::now(),
        pieces,
        app,
        session,
        _place: place,
    };
    let follows = wanted.follow;
    tokio::spawn(async move {
        let mut feed = feed;
        let end = tokio::select! {
            biased;
            () = shutdown.given() => Some(End::Stopping),
            end = feed.run(follows) => end,
        };
        if let Some(end) = end {
            feed.end(&end).await;
        }
    });
    let reply = Reply::stream(form.content_type(), ReceiverStream::new(body).map(Ok));
    Ok(reply
        .with_header(CACHE_CONTROL, HeaderValue::from_static("no-store"))
        // nginx would collect pieces until they fill a buffer.
        .with_header(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no")))
}

/// Which records these texts choose.
pub(crate) fn selection(
    app: &Server,
    [room, user, kind]: [Option<&str>; 3],
) -> Result<Selection, ApiError> {
    let invalid = |name| move |_| ApiError::invalid_param(format!("`{name}` is not valid."));
    let room = match room {
        Some(room) => {
            let room = OwnedRoomOrAliasId::try_from(room).map_err(invalid("room"))?;
            Some(app.resolve(&room)?)
        }
        None => None,
    };
    let user = user.map(OwnedUserId::try_from).transpose();
    let user = user.map_err(invalid("user"))?.map(Into::into);
    let kinds = kind.unwrap_or_default().parse();
    let kinds = kinds.map_err(|error| ApiError::invalid_param(format!("There is {error}.")))?;
    Ok(Selection { room, user, kinds })
}

/// The first record that the reader lacks.
fn first(app: &Server, request: &FeedRequest) -> Result<Offset, ApiError> {
    let last_event = request.headers.get(LAST_EVENT_ID).map(HeaderValue::to_str).transpose();
    let last_event =
        last_event.map_err(|_| ApiError::invalid_param("`Last-Event-ID` is not a position."))?;
    if let Some(position) = last_event.or(request.since.as_deref()) {
        return match app.position_or_undone(position)? {
            Ok(offset) => Ok(offset.next()),
            // What the reader has of the time after it never was.
            Err(Undone(from)) => {
                let left = app.token(from.after);
                let text = format!(
                    "A restore undid everything after record {}: give that up and go on since \
                     {left}.",
                    from.after
                );
                Err(ApiError::new(ErrorCode::UnknownPos, text))
            }
        };
    }
    let next = app.engine.head().offset().next();
    match request.from.map(|from| Offset::new(from.max(1))) {
        Some(from) if from > next => {
            Err(ApiError::invalid_param(format!("The log ends at record {}.", next.prev())))
        }
        from => Ok(from.unwrap_or(next)),
    }
}

/// How the feed is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FeedFormat {
    /// A JSON object in each line.
    Lines,
    /// Server-sent events.
    Events,
}

/// What is said of a record.
#[derive(Serialize)]
struct Change {
    position: String,
    #[serde(flatten)]
    record: RecordView,
}

/// The keep-alive, so that the connection is not considered dead, and a reader that selects few
/// records does not examine the same ones again.
#[derive(Serialize)]
struct Position {
    position: String,
}

/// The last that is said.
#[derive(Serialize)]
struct FeedEnd {
    end: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    position: String,
}

/// Why the feed ends.
#[derive(Debug)]
enum End {
    /// It was to end at the end of the log.
    Reached,
    /// The server stops.
    Stopping,
    /// The reader may not read any more.
    Refused(ApiError),
    Failed(ReadError),
}

impl FeedFormat {
    fn asked(headers: &HeaderMap) -> Self {
        let accepted = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
        let events = Self::Events.content_type();
        if accepted
            .flat_map(|accepted| accepted.split(','))
            .any(|of| of.split(';').next().is_some_and(|of| of.trim().eq_ignore_ascii_case(events)))
        {
            Self::Events
        } else {
            Self::Lines
        }
    }

    const fn content_type(self) -> &'static str {
        match self {
            Self::Lines => "application/x-ndjson",
            Self::Events => "text/event-stream",
        }
    }

    /// Adds something that is said at `position`. An event without a name is that of a record.
    fn put<T: Serialize>(self, out: &mut Vec<u8>, name: Option<&str>, position: &str, what: &T) {
        // To write into memory does not fail, and neither does what is written here.
        if self == Self::Events {
            let _ = writeln!(out, "id: {position}");
            if let Some(name) = name {
                let _ = writeln!(out, "event: {name}");
            }
            out.extend_from_slice(b"data: ");
        }
        let _ = serde_json::to_writer(&mut *out, what);
        out.extend_from_slice(if self == Self::Events { b"\n\n" } else { b"\n" });
    }
}

/// The records on their way to one reader.
struct Feed {
    app: Arc<Server>,
    session: Session,
    form: FeedFormat,
    selection: Selection,
    records: Follow,
    /// The last record that was told or was not selected.
    told: Offset,
    /// After how long something is said.
    silence: Duration,
    spoke: Instant,
    pieces: mpsc::Sender<Bytes>,
    _place: OwnedSemaphorePermit,
}

impl Feed {
    /// Tells of records until there is a reason to end; `None` if nobody listens.
    async fn run(&mut self, follows: bool) -> Option<End> {
        self.say_position().await?;
        loop {
            if let Err(error) = self.may_read() {
                return Some(End::Refused(error));
            }
            let is_at_end = match self.tell().await? {
                Ok(is_at_end) => is_at_end,
                Err(error) => return Some(End::Failed(error)),
            };
            if self.spoke.elapsed() >= self.silence {
                self.say_position().await?;
            }
            if !is_at_end {
                continue;
            }
            if !follows {
                return Some(End::Reached);
            }
            tokio::select! {
                () = self.pieces.closed() => return None,
                more = self.records.wait() => if !more {
                    return Some(End::Stopping);
                },
                () = sleep_until(self.spoke + self.silence) => {}
            }
        }
    }

    /// Whether the reader's session lasts and the reader administers the server.
    fn may_read(&self) -> Result<(), ApiError> {
        let Session { user_id, device_id, session, service } = &self.session;
        rights::admit(&self.app.engine, &self.session, OpenTo::FOLLOWERS_OF_CHANGES)?;
        if service.is_none() && !session::lasts(&self.app, user_id, device_id, *session) {
            return Err(ApiError::unknown_token(false));
        }
        Ok(())
    }

    /// Tells of some records, once there is room for a piece. Says whether they were the last ones
    /// there are; `None` if nobody listens.
    async fn tell(&mut self) -> Option<Result<bool, ReadError>> {
        // First, so that everything that was read is sent in any case.
        let room = self.pieces.reserve().await.ok()?;
        let whose = Requester::User(self.session.user_id.clone());
        let exempt = self.app.is_exempt(&self.session);
        loop {
            let (form, epoch) = (self.form, self.app.epoch);
            let (records, selection) = (&mut self.records, &self.selection);
            let read = || {
                read_piece(records, |record, out| {
                    if selection.has(record) {
                        let position = Token { epoch, offset: record.offset() }.to_string();
                        let change =
                            Change { position: position.clone(), record: RecordView::of(record) };
                        form.put(out, None, &position, &change);
                    }
                })
            };
            match self.app.long_work.run(&whose, exempt, read).await {
                Ok((piece, read)) => {
                    self.told = self.records.next_offset().prev();
                    if !piece.is_empty() {
                        room.send(piece.into());
                        self.spoke = Instant::now();
                    }
                    return Some(read);
                }
                Err(busy) => sleep(busy.retry_after).await,
            }
        }
    }

    async fn say_position(&mut self) -> Option<()> {
        let position = self.app.token(self.told);
        self.say("position", &position.clone(), &Position { position }).await
    }

    async fn end(mut self, end: &End) {
        let (name, reason) = match end {
            End::Reached => ("reached", None),
            End::Stopping => ("stopping", None),
            End::Refused(error) => ("refused", Some(error.message().to_owned())),
            End::Failed(error) => {
                tracing::warn!(%error, "the feed of changes cannot read the log");
                ("failed", Some(error.to_string()))
            }
        };
        let position = self.app.token(self.told);
        let last = FeedEnd { end: name, reason, position: position.clone() };
        let _ = self.say("end", &position, &last).await;
    }

    async fn say<T: Serialize>(&mut self, name: &str, position: &str, what: &T) -> Option<()> {
        let mut out = Vec::new();
        self.form.put(&mut out, Some(name), position, what);
        self.pieces.send(out.into()).await.ok()?;
        self.spoke = Instant::now();
        Some(())
    }
}

/// Reads and writes records until they are a piece, many, or all there are: and says whether they
/// are all.
fn read_piece(
    records: &mut Follow,
    mut write: impl FnMut(&Record, &mut Vec<u8>),
) -> (Vec<u8>, Result<bool, ReadError>) {
    let mut out = Vec::new();
    for _ in 0..limits::CHANGES_LOOK {
        match records.ready() {
            Ok(Some(record)) => write(&record, &mut out),
            Ok(None) => return (out, Ok(true)),
            Err(error) => return (out, Err(error)),
        }
        if out.len() >= limits::CHANGES_PIECE_BYTES {
            break;
        }
    }
    (out, Ok(false))
}
