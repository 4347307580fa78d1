//! The body of a request that is read as a whole, and the memory that it counts for: see
//! [`bodies`].

use std::{net::IpAddr, pin::pin, sync::Arc, time::Duration};

use bytes::{Buf, Bytes, BytesMut};
use futures_util::{FutureExt as _, Stream, StreamExt as _, stream};
use http::{HeaderMap, header::CONTENT_LENGTH};

use super::{ApiError, CallerIdentity, incoming, table::AnswerFuture};
use logcabin_base::{
    arrival::Pace,
    bodies::{self, BodyBudget, Full, Principal},
    limits,
    rate::network_prefix,
};

/// Reads a body of at most `limit` bytes, however it is sent, and what it counts for unless it
/// is small.
pub(super) async fn read<S, D, E>(
    (bodies, pace): (&Arc<BodyBudget>, Pace),
    headers: &HeaderMap,
    body: Option<S>,
    limit: usize,
    principal: Principal,
) -> Result<(Bytes, Option<bodies::Body>), ApiError>
where
    S: Stream<Item = Result<D, E>> + Send,
    D: Buf,
    E: std::error::Error + Send + Sync + 'static,
{
    let mut body = pin!(stream::iter(body).flatten());
    let mut account = ChargedTo { bodies, principal, held: None };
    let mut length = 0_usize;
    let drain = limit.saturating_add(limits::OVERSIZED_BODY_DRAIN);
    let declared = declared(headers);
    if declared.is_some_and(|declared| declared > drain as u64) {
        return Err(too_large(limit));
    }
    let expected = declared.and_then(|declared| usize::try_from(declared).ok()).unwrap_or(0);
    let mut gathered = Gathered { expected: expected.min(limit), ..Gathered::default() };
    let mut began = tokio::time::Instant::now();
    loop {
        let next = match body.next().now_or_never() {
            Some(next) => next,
            None => {
                // What is there is in memory for as long as the client likes.
                if length > 0 && length <= limit {
                    began += account.holds(length).await?;
                    gathered.settle();
                }
                let deadline = pace.deadline(began, length as u64);
                tokio::select! {
                    biased;
                    () = account.dropped() => return Err(full(Full::Dropped)),
                    next = tokio::time::timeout_at(deadline, body.next()) => {
                        next.map_err(|_| incoming::late())?
                    }
                }
            }
        };
        let Some(part) = next else { break };
        let mut part = part.map_err(incoming::cut_off)?;
        let part = part.copy_to_bytes(part.remaining());
        length = length.saturating_add(part.len());
        if length > drain {
            return Err(too_large(limit));
        } else if length > limit {
            // Read on, but keep nothing.
            gathered = Gathered::default();
            account.held = None;
        } else {
            if length > limits::SMALL_BODY_BYTES {
                // While there is no room, the client cannot go on.
                began += account.holds(length).await?;
            }
            gathered.add(part);
        }
    }
    if length > limit {
        return Err(too_large(limit));
    }
    let held = account.held.filter(|_| length > limits::SMALL_BODY_BYTES);
    Ok((gathered.whole(), held))
}

/// The parts of a body.
#[derive(Default)]
struct Gathered {
    /// Most bodies come in one piece, which is then not copied.
    first: Bytes,
    parts: BytesMut,
    /// The announced length, if there is one.
    expected: usize,
}

impl Gathered {
    fn add(&mut self, part: Bytes) {
        if self.first.is_empty() && self.parts.is_empty() {
            self.first = part;
        } else {
            self.settle();
            self.keep(&part);
        }
    }

    /// Copies what is there: the first piece is a part of a buffer that may be much larger.
    fn settle(&mut self) {
        if !self.first.is_empty() {
            let first = std::mem::take(&mut self.first);
            self.keep(&first);
        }
    }

    fn keep(&mut self, part: &[u8]) {
        let length = self.parts.len() + part.len();
        if length > self.parts.capacity() {
            let room = bodies::room_for(length, self.expected);
            self.parts.reserve(room.saturating_sub(self.parts.len()));
        }
        self.parts.extend_from_slice(part);
    }

    fn whole(self) -> Bytes {
        if self.parts.is_empty() { self.first } else { self.parts.freeze() }
    }
}

/// On whose account a body is read.
struct ChargedTo<'a> {
    bodies: &'a Arc<BodyBudget>,
    principal: Principal,
    held: Option<bodies::Body>,
}

impl ChargedTo<'_> {
    /// Has the body count for this many bytes. Returns how long there was no room for that.
    async fn holds(&mut self, bytes: usize) -> Result<Duration, ApiError> {
        let begin = || self.bodies.begin(self.principal.clone(), limits::BODY_WEIGHT);
        let began = tokio::time::Instant::now();
        let held = self.held.get_or_insert_with(begin);
        held.grow(bytes, began + limits::BODY_PATIENCE).await.map_err(full)?;
        Ok(began.elapsed())
    }

    /// Resolves when the body has to make room.
    async fn dropped(&self) {
        match &self.held {
            Some(held) => held.watch().await,
            None => std::future::pending().await,
        }
    }
}

/// Whose account the body of a request is charged to, as far as is known before it is read.
pub(super) fn principal(who: &CallerIdentity, client: IpAddr) -> Principal {
    match &who.session {
        Some(session) => Principal::User(session.user_id.clone()),
        None => Principal::Address(network_prefix(client)),
    }
}

pub(super) fn full(error: Full) -> ApiError {
    ApiError::limit_exceeded(limits::BODY_AGAIN).with_cause(error)
}

/// The answer, unless the request may be dropped, and has to make room for others before.
pub(super) fn until(
    answer: AnswerFuture,
    dropped: Option<impl Future<Output = ()> + Send + 'static>,
) -> AnswerFuture {
    let Some(dropped) = dropped else { return answer };
    Box::pin(async move {
        tokio::select! {
            biased;
            answer = answer => answer,
            () = dropped => Err(full(Full::Dropped)),
        }
    })
}

fn too_large(limit: usize) -> ApiError {
    incoming::too_large(limit as u64)
}

/// How long the body is, if the client says.
pub(super) fn declared(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok())
}
