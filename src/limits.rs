//! Every bound that is not configuration, with its reason. What an operator may want to change is
//! in [`crate::config`] instead.

use std::time::Duration;

/// How deep a JSON body may nest. serde_json (and many a client's parser) gives up at 128 levels;
/// content is wrapped in several more before a client reads it back in a sync response.
pub(crate) const JSON_DEPTH: usize = 100;

/// How much of an oversized body is read and thrown away, so that the client gets to read the
/// refusal instead of a reset connection.
pub(crate) const OVERSIZED_BODY_DRAIN: usize = 16 * 1024 * 1024;

/// Requests in progress on one HTTP/2 connection. Browsers ask for about this many.
pub(crate) const HTTP2_STREAMS: u32 = 128;

/// Bytes of all headers of one HTTP/2 request; HTTP/1 bounds them by its read buffer.
pub(crate) const HTTP2_HEADER_BYTES: u32 = 32 * 1024;

/// The HTTP/1 read buffer, which bounds the request line with all headers.
pub(crate) const HTTP1_BUFFER_BYTES: usize = 64 * 1024;

/// How often an HTTP/2 peer that says nothing is asked whether it is still there.
pub(crate) const HTTP2_PING: Duration = Duration::from_secs(60);

/// How long to wait before accepting again after the operating system refused (for example because
/// all file descriptors are in use): the condition does not go away any faster by asking again.
pub(crate) const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// How often rate limiters forget the callers that have been quiet long enough to have their whole
/// allowance back. Bounds their memory to the callers of about this long.
pub(crate) const RATE_LIMIT_SWEEP: Duration = Duration::from_secs(60);

/// How long a browser may remember that cross-origin requests are allowed, in seconds: two hours is
/// the most that common browsers honour.
pub(crate) const CORS_MAX_AGE_S: &str = "7200";

/// How long someone is shown as typing whose client does not say how long: as long as common
/// clients ask for.
pub(crate) const TYPING: Duration = Duration::from_secs(30);
