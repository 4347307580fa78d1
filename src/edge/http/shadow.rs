//! What becomes of requests of users who are shadow-banned: they are answered as those of others
//! are, and nobody else learns of anything. An endpoint states it in its
//! [`Policy`](super::Policy).

use std::borrow::Cow;

use bytes::Bytes;
use http::Uri;

use super::{App, CallerIdentity, Reply, Session};

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shadow {
    /// It is carried out, because nobody else learns of it, or of little.
    Done,
    /// It is answered with an empty object.
    Nothing,
    /// It is answered with the id of an event that is not sent.
    Event,
    /// The same, unless the user leaves the room by it.
    State,
    /// It is answered with the id of an event that is not going to be sent.
    Delayed,
    /// It is answered with the id of a room that does not replace another one.
    Replacement,
    /// It is carried out without inviting anybody, and without telling the directory.
    Alone,
    /// It is carried out without the reason that it gives.
    Silently,
}

/// A request of a user who may be shadow-banned.
pub struct Shadowable<'a> {
    pub(crate) how: Shadow,
    pub(crate) session: &'a Session,
    pub(crate) uri: &'a Uri,
    /// The parameters of the path, decoded.
    pub(crate) args: &'a [Cow<'a, str>],
    pub(crate) body: &'a Bytes,
}

/// What is done instead of what was asked for.
pub enum Instead {
    Answer(Reply),
    /// The same with this body.
    Body(Bytes),
}

/// The body of a request that is carried out, or the answer to one that only seems to be.
pub(super) fn body_or_answer<A: App>(
    app: &A,
    how: Shadow,
    who: &CallerIdentity,
    (uri, args): (&Uri, &[Cow<'_, str>]),
    body: Bytes,
) -> Result<Bytes, Box<Reply>> {
    let Some(session) = who.session.as_ref().filter(|_| how != Shadow::Done) else {
        return Ok(body);
    };
    match app.instead(&Shadowable { how, session, uri, args, body: &body }) {
        None => Ok(body),
        Some(Instead::Body(body)) => Ok(body),
        Some(Instead::Answer(answer)) => Err(Box::new(answer)),
    }
}
