//! Records from another node, for a node that is new or has fallen behind what the stream keeps.
//!
//! A node that needs records asks on a subject that all nodes serve; one of them answers. A request
//! names the last record that the node has and its chain value. The answer has the frames that
//! follow, and the position that the answering node has reached in the stream. Once the asking node
//! has all records up to that position, it follows the stream from there.
//!
//! ```text
//! {"after":41,"chain":"9f2c…"}
//! {"position":{"stream":…,"sequence":7,"offset":99,…},"lengths":[812,…]}⏎<frames>
//! ```

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use futures_util::StreamExt as _;
use serde::{Deserialize, Serialize};
use tokio::time::sleep;

use super::{Shared, consume::PAUSE, position::Position};
use crate::{Log as _, ReadError, store::SledLog};
use logcabin_base::threads;
use logcabin_record::{
    Offset,
    codec::{self, Frame},
    hex,
};

/// An answer has about this many bytes of frames.
const ANSWER_BYTES: usize = 1024 * 1024;

/// How many records are read at once for an answer.
const RECORDS: usize = 256;

/// The queue group of the nodes that answer.
const GROUP: &str = "records";

/// A request for the records after one.
#[derive(Serialize, Deserialize)]
struct RecordsRequest {
    after: Offset,
    /// The chain value of that record, in hex; empty for offset 0.
    chain: String,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum AnswerHead {
    /// Frames of these lengths follow.
    Records { position: Position, lengths: Vec<usize> },
    /// The node does not have the record, or is asking others itself.
    Behind,
    /// The node has another record at this offset.
    Differs,
    /// The node cannot read its log.
    Failed(String),
}

/// What another node answered.
pub(super) enum Answer {
    /// The next records, and how far the other node has followed the stream.
    Records { position: Position, frames: Vec<(Frame, Bytes)> },
    /// No node has more records now.
    None,
    /// The records of the cluster differ.
    Differs,
}

/// The subject of the requests.
fn subject(stream: &str) -> String {
    format!("{stream}.records")
}

/// Asks for the records after `after`, whose chain value is `chain`.
///
/// # Errors
/// When nobody answers, or the answer is damaged.
pub(super) async fn ask(
    shared: &Shared,
    after: Offset,
    chain: Option<&[u8; 32]>,
) -> Result<Answer, String> {
    let chain = chain.map(hex).unwrap_or_default();
    let ask =
        serde_json::to_vec(&RecordsRequest { after, chain }).map_err(|error| error.to_string())?;
    let subject = subject(&shared.stream.cached_info().config.name);
    let answer = shared.jetstream.client().request(subject, ask.into()).await;
    let answer = answer.map_err(|error| error.to_string())?.payload;
    let damaged = || "an answer is damaged".to_owned();
    let end = memchr::memchr(b'\n', &answer).ok_or_else(damaged)?;
    let mut rest = answer.slice(end + 1..);
    match serde_json::from_slice(&answer[..end]).map_err(|error| error.to_string())? {
        AnswerHead::Records { position, lengths } => {
            let mut frames = Vec::with_capacity(lengths.len());
            for length in lengths {
                if length > rest.len() {
                    return Err(damaged());
                }
                let bytes = rest.split_to(length);
                let frame = Frame::decode(&bytes).map_err(|error| error.to_string())?;
                frames.push((frame, bytes));
            }
            Ok(Answer::Records { position, frames })
        }
        AnswerHead::Behind => Ok(Answer::None),
        AnswerHead::Differs => Ok(Answer::Differs),
        AnswerHead::Failed(reason) => Err(reason),
    }
}

/// Answers other nodes until the log is closed, except while this node needs records itself. A NATS
/// server prefers the members of a group that are connected to it, so a member that asks would get
/// its own answer again and again.
pub(super) async fn serve(shared: Arc<Shared>, local: Arc<SledLog>) {
    let mut stop = shared.stop.subscribe();
    let mut lacks = shared.lacks_records.subscribe();
    let client = shared.jetstream.client();
    let subject = subject(&shared.stream.cached_info().config.name);
    loop {
        tokio::select! {
            _ = lacks.wait_for(|lacks| !*lacks) => {}
            _ = stop.wait_for(|stop| *stop) => return,
        }
        if let Ok(mut asked) = client.queue_subscribe(subject.clone(), GROUP.to_owned()).await {
            loop {
                let request = tokio::select! {
                    request = asked.next() => request,
                    _ = lacks.wait_for(|lacks| *lacks) => break,
                    _ = stop.wait_for(|stop| *stop) => return,
                };
                let Some(request) = request else { break };
                let Some(reply) = request.reply else { continue };
                let (reading, local) = (Arc::clone(&shared), Arc::clone(&local));
                // One at a time: a node that catches up leaves the others their processors.
                let read =
                    threads::spawn_blocking(move || answer(&reading, &local, &request.payload));
                let Ok(answer) = read.await else { continue };
                if let Err(error) = client.publish(reply, answer).await {
                    tracing::debug!(%error, "another node did not get records");
                }
            }
        }
        tokio::select! {
            () = sleep(PAUSE) => {}
            _ = stop.wait_for(|stop| *stop) => return,
        }
    }
}

fn answer(shared: &Shared, local: &SledLog, request: &[u8]) -> Bytes {
    let (head, frames) = match records(shared, local, request) {
        Ok(answer) => answer,
        Err(reason) => (AnswerHead::Failed(reason), Vec::new()),
    };
    let mut bytes = BytesMut::from(&*serde_json::to_vec(&head).unwrap_or_default());
    bytes.extend_from_slice(b"\n");
    frames.iter().for_each(|frame| bytes.extend_from_slice(frame));
    bytes.freeze()
}

fn records(
    shared: &Shared,
    local: &SledLog,
    request: &[u8],
) -> Result<(AnswerHead, Vec<Vec<u8>>), String> {
    let RecordsRequest { after, chain } =
        serde_json::from_slice(request).map_err(|error| error.to_string())?;
    let position = shared.position.lock().clone();
    if after > position.offset || *shared.lacks_records.borrow() {
        return Ok((AnswerHead::Behind, Vec::new()));
    }
    let failed = |error: ReadError| error.to_string();
    if after > Offset::ZERO {
        let mine = local.get(after).map_err(failed)?;
        if mine.is_none_or(|record| hex(&record.chain) != chain) {
            return Ok((AnswerHead::Differs, Vec::new()));
        }
    }
    let (mut frames, mut bytes, mut next) = (Vec::new(), 0, after.next());
    let mut is_whole = true;
    while next <= position.offset && (bytes < ANSWER_BYTES || !is_whole) {
        let read = local.read(next, RECORDS).map_err(failed)?;
        if read.is_empty() {
            return Err(format!("record {next} cannot be read"));
        }
        for record in read {
            if record.offset() > position.offset || bytes >= ANSWER_BYTES && is_whole {
                break;
            }
            let frame = codec::encode_frame(&record).map_err(|error| error.to_string())?;
            bytes += frame.len();
            is_whole = record.header.batch_remaining == 0;
            next = record.offset().next();
            frames.push(frame);
        }
    }
    let lengths = frames.iter().map(Vec::len).collect();
    Ok((AnswerHead::Records { position, lengths }, frames))
}
