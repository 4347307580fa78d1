//! The answers of other homeservers, and the memory that they take.

use std::ops::{Deref, Range};

use http::StatusCode;
use serde_json::value::RawValue;

use super::Unreachable;
use logcabin_base::{bodies, limits};

/// The answer of another homeserver, whatever its status.
#[derive(Debug)]
pub struct FederationResponse {
    pub status: StatusCode,
    pub body: AnswerBody,
}

/// The whole body of an answer. It is charged to whoever gave it until this is dropped.
#[derive(Debug, Default)]
pub struct AnswerBody {
    bytes: Vec<u8>,
    /// `None` for a small body, which does not count.
    charge: Option<bodies::Body>,
}

/// Keeps the parts of an answer charged that are in use.
#[derive(Debug)]
pub struct AnswerCharge {
    body: Option<bodies::Body>,
    left: usize,
}

impl AnswerCharge {
    /// Gives back what parts of `bytes` bytes took.
    pub fn give_back(&mut self, bytes: usize) {
        self.left = self.left.saturating_sub(bytes);
        if let Some(body) = &mut self.body {
            body.shrink(self.left);
        }
    }

    /// What is still charged. A small answer was not charged.
    pub fn into_charge(self) -> Option<bodies::Body> {
        self.body
    }
}

impl AnswerBody {
    pub(super) const fn new(bytes: Vec<u8>, charge: Option<bodies::Body>) -> Self {
        Self { bytes, charge }
    }
}

impl Deref for AnswerBody {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl FederationResponse {
    /// The body as JSON, if the request succeeded.
    pub fn json<T: serde::de::DeserializeOwned>(&self) -> Result<T, Unreachable> {
        self.parts()
    }

    /// The same for JSON whose parts refer to the body, so that they are not copied.
    pub fn parts<'a, T: serde::Deserialize<'a>>(&'a self) -> Result<T, Unreachable> {
        if !self.status.is_success() {
            return Err(Unreachable::Status(self.status.as_u16()));
        }
        serde_json::from_slice(&self.body)
            .map_err(|error| Unreachable::Unexpected(error.to_string()))
    }

    /// Drops the answer, and gives what it was charged to. A small one was not charged.
    pub fn into_charge(self) -> Option<bodies::Body> {
        self.body.charge
    }

    /// Where these parts of the body are, for [`Self::take_apart`].
    pub fn places(&self, parts: &[&RawValue]) -> Vec<Range<usize>> {
        let begin = self.body.as_ptr().addr();
        let place = |part: &&RawValue| {
            let start = part.get().as_ptr().addr().checked_sub(begin)?;
            let end = start.checked_add(part.get().len())?;
            (end <= self.body.len()).then_some(start..end)
        };
        parts.iter().filter_map(place).collect()
    }

    /// Gives each of these lists of parts, of which none overlaps another, memory of its own. The
    /// memory of a part that is done with is free, while that of a body is free only as a whole.
    /// Meanwhile hardly more is used than before: the body is cut from its end.
    pub fn take_apart<const LISTS: usize>(
        self,
        mut places: [Vec<Range<usize>>; LISTS],
    ) -> ([Vec<Box<RawValue>>; LISTS], AnswerCharge) {
        let AnswerBody { mut bytes, charge } = self.body;
        for list in &mut places {
            list.sort_unstable_by_key(|place| place.start);
        }
        let mut parts = [const { Vec::new() }; LISTS];
        while let Some((from, to)) = places
            .iter_mut()
            .zip(&mut parts)
            .max_by_key(|(list, _)| list.last().map(|place| place.start))
        {
            let Some(place) = from.pop() else { break };
            // It was read as JSON before.
            let text = bytes.get(place.clone()).map(|part| String::from_utf8(part.to_vec()));
            if let Some(Ok(text)) = text {
                to.extend(RawValue::from_string(text));
            }
            bytes.truncate(place.start);
            if bytes.capacity() - bytes.len() >= limits::ANSWER_CUT_BYTES {
                bytes.shrink_to_fit();
            }
        }
        parts.iter_mut().for_each(|list| list.reverse());
        let left = parts.iter().flatten().map(|part| part.get().len()).sum();
        (parts, AnswerCharge { body: charge, left })
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Deserialize)]
    struct Lists<'a> {
        #[serde(borrow)]
        a: Vec<&'a RawValue>,
        #[serde(borrow)]
        b: Vec<&'a RawValue>,
    }

    #[test]
    fn parts_of_a_body_are_the_same_in_memory_of_their_own() {
        let large = format!("\"{}\"", "x".repeat(2 * limits::ANSWER_CUT_BYTES));
        let text = format!(r#"{{"b":[{{"c":[1,2]}}, {large} ,"é"],"a":[7,[]],"rest":{large}}}"#);
        let body = AnswerBody::new(text.into_bytes(), None);
        let answer = FederationResponse { status: StatusCode::OK, body };
        let places = {
            let Lists { a, b } = answer.parts().expect("it is JSON");
            let elsewhere = RawValue::from_string("1".to_owned()).expect("JSON");
            assert!(answer.places(&[&elsewhere]).is_empty());
            [answer.places(&a), answer.places(&b)]
        };
        let ([a, b], _charge) = answer.take_apart(places);
        let texts = |list: &[Box<RawValue>]| -> Vec<_> {
            list.iter().map(|part| part.get().to_owned()).collect()
        };
        assert_eq!(texts(&a), ["7", "[]"]);
        assert_eq!(texts(&b), [r#"{"c":[1,2]}"#, &large, "\"é\""]);
    }
}
