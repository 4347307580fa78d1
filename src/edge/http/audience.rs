//! Who receives the content of a body, which decides what it may contain: nothing may come in that
//! cannot leave.
//!
//! Whatever is not canonical JSON (specification, appendix "Canonical JSON") cannot be signed, and
//! so cannot be sent to another homeserver. That would show only when it is sent, long after the
//! client was told of success. So bodies are checked on arrival, and strictly unless the endpoint's
//! policy says why their content stays here.

use super::{Access, ApiError, Body};
use logcabin_base::canonical::{self, Numbers};

/// Who receives the content of an endpoint's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Audience {
    /// Possibly other homeservers, or their users: it must be canonical JSON.
    Others,
    /// The same, in an event of a room, whose version may allow any number that homeservers can
    /// hold: the decision on the event checks that.
    Room,
    /// Only the user's own clients, for this reason: any finite number may be in it, because nobody
    /// signs it. Strings must be Unicode nevertheless: most JSON parsers refuse a whole text for an
    /// invalid one.
    Own(&'static str),
}

/// Checks that the recipients of a body's content can read it.
///
/// # Errors
/// `M_BAD_JSON`.
pub(crate) fn check(
    body: &[u8],
    kind: Body,
    access: Access,
    reach: Audience,
) -> Result<(), ApiError> {
    // Each item of another homeserver's transaction is judged by itself.
    if !kind.is_json() || access == Access::Server || body == b"{}" {
        return Ok(());
    }
    let numbers = match reach {
        Audience::Others => Numbers::Strict,
        Audience::Room => Numbers::Held,
        Audience::Own(_) => Numbers::Lax,
    };
    let text = std::str::from_utf8(body);
    let text = text.map_err(|_| ApiError::not_json("The body is not UTF-8."))?;
    canonical::check(text, numbers)
        .map_err(|error| ApiError::bad_json(format!("The body: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_fine(reach: Audience, value: &str) -> bool {
        let body = format!(r#"{{"a":{{"b":[{value}]}}}}"#);
        check(body.as_bytes(), Body::Json, Access::Required, reach).is_ok()
    }

    #[test]
    fn what_cannot_leave_does_not_come_in() {
        for bad in ["1.5", "1e2", "1e999", "-0", "9007199254740992", r#""\ud800""#, r#""\ud800x""#]
        {
            assert!(!is_fine(Audience::Others, bad), "{bad}");
        }
        for good in ["1", "-9007199254740991", r#""\ud83d\ude00""#, r#""\u0000""#, "null"] {
            assert!(is_fine(Audience::Others, good), "{good}");
        }
    }

    #[test]
    fn what_stays_may_have_fractions_but_nothing_that_cannot_be_read() {
        for good in ["1.5", "1e2", "9007199254740992", "-0"] {
            assert!(is_fine(Audience::Own("test"), good), "{good}");
        }
        for bad in ["1e999", r#""\udc00""#] {
            assert!(!is_fine(Audience::Own("test"), bad), "{bad}");
        }
        for (number, is_held) in [("9223372036854775807", true), ("9223372036854775808", false)] {
            assert_eq!(is_fine(Audience::Room, number), is_held, "{number}");
            assert!(is_fine(Audience::Own("test"), number), "{number}");
        }
    }

    #[test]
    fn what_another_homeserver_sends_is_judged_elsewhere() {
        let body = br#"{"a":1.5}"#;
        assert!(check(body, Body::Json, Access::Server, Audience::Others).is_ok());
        assert!(check(body, Body::Bytes, Access::Required, Audience::Others).is_ok());
        assert!(check(body, Body::Json, Access::Required, Audience::Others).is_err());
    }
}
