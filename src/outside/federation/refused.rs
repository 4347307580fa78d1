//! The refusal of a request by another homeserver.

use std::time::Duration;

use ruma::RoomVersionId;
use serde::Deserialize;

use super::FederationResponse;
use logcabin_base::limits;

/// The refusal of another homeserver: its status, and what it says in a standard error response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refused {
    pub status: u16,
    /// Empty if the answer is no standard error response, such as a proxy's page.
    pub errcode: String,
    pub error: String,
    /// With `M_INCOMPATIBLE_ROOM_VERSION`.
    pub room_version: Option<RoomVersionId>,
    /// With `M_LIMIT_EXCEEDED`.
    pub retry_after: Option<Duration>,
}

/// A standard error response.
#[derive(Deserialize)]
struct Standard {
    errcode: String,
    #[serde(default)]
    error: String,
}

#[derive(Deserialize)]
struct Version {
    room_version: RoomVersionId,
}

#[derive(Deserialize)]
struct Pause {
    retry_after_ms: u64,
}

impl Refused {
    /// Whether the homeserver does not know the endpoint, so that an older one may do.
    pub fn is_of_unknown_endpoint(&self) -> bool {
        match &*self.errcode {
            "M_UNRECOGNIZED" => matches!(self.status, 400 | 404 | 405),
            // Servers without Matrix at that path.
            "" => self.status == 404,
            _ => false,
        }
    }
}

impl FederationResponse {
    /// What it refuses with, unless the request succeeded.
    pub fn refused(&self) -> Option<Refused> {
        if self.status.is_success() {
            return None;
        }
        let standard = serde_json::from_slice::<Standard>(&self.body).ok();
        let version = serde_json::from_slice::<Version>(&self.body).ok();
        let pause = serde_json::from_slice::<Pause>(&self.body).ok();
        let longest = limits::REFUSED_PAUSE;
        let Standard { errcode, error } =
            standard.unwrap_or(Standard { errcode: String::new(), error: String::new() });
        Some(Refused {
            status: self.status.as_u16(),
            errcode,
            error: error.chars().take(limits::REFUSED_TEXT).collect(),
            room_version: version.map(|of| of.room_version),
            retry_after: pause.map(|of| Duration::from_millis(of.retry_after_ms).min(longest)),
        })
    }
}

#[cfg(test)]
mod tests {
    use http::StatusCode;

    use super::{super::AnswerBody, *};

    fn refused(status: StatusCode, body: &str) -> Refused {
        let body = AnswerBody::new(body.as_bytes().to_vec(), None);
        let answer = FederationResponse { status, body };
        answer.refused().expect("a refusal")
    }

    #[test]
    fn an_endpoint_is_unknown_where_nothing_else_is_said() {
        let is_unknown = |status, body| refused(status, body).is_of_unknown_endpoint();
        let unrecognized = r#"{"errcode":"M_UNRECOGNIZED","error":"no"}"#;
        assert!(is_unknown(StatusCode::NOT_FOUND, unrecognized));
        assert!(is_unknown(StatusCode::BAD_REQUEST, unrecognized));
        assert!(is_unknown(StatusCode::NOT_FOUND, "<html>"));
        assert!(!is_unknown(StatusCode::NOT_FOUND, r#"{"errcode":"M_NOT_FOUND"}"#));
        assert!(!is_unknown(StatusCode::FORBIDDEN, unrecognized));
        assert!(!is_unknown(StatusCode::BAD_REQUEST, "<html>"));
    }

    #[test]
    fn a_refusal_is_read_whatever_else_is_wrong_with_it() {
        let body = r#"{"errcode":"M_X","error":"no","room_version":"7","retry_after_ms":5}"#;
        let full = refused(StatusCode::BAD_REQUEST, body);
        assert_eq!((full.status, &*full.errcode, &*full.error), (400, "M_X", "no"));
        assert_eq!(full.room_version, Some(RoomVersionId::V7));
        assert_eq!(full.retry_after, Some(Duration::from_millis(5)));
        let odd = refused(StatusCode::FORBIDDEN, r#"{"errcode":"M_X","room_version":7}"#);
        assert_eq!((&*odd.errcode, odd.room_version), ("M_X", None));
        let page = refused(StatusCode::NOT_FOUND, "<html>");
        assert_eq!(page, Refused { status: 404, ..Refused::default() });
        let late = refused(StatusCode::TOO_MANY_REQUESTS, r#"{"retry_after_ms":1e300}"#);
        assert_eq!(late.retry_after, None);
    }
}
