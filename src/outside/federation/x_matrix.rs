//! The signatures of requests between homeservers (server-server API, "Request Authentication").
//!
//! A signature covers the body in canonical form. Others send bodies with numbers that canonical
//! JSON does not have, so it is made and verified over the tokens of the text, not by ruma.

use std::borrow::Cow;

use http::{HeaderMap, Request, header::AUTHORIZATION};
use ruma::{
    OwnedServerName, ServerName, SigningKeyAlgorithm,
    serde::{Base64, base64::Standard},
    signatures::{Ed25519KeyPair, KeyPair as _, verify_canonical_json_bytes},
};

use logcabin_base::canonical::{NotCanonical, Numbers, canonical};

const SCHEME: &str = "X-Matrix";

/// The `Authorization` header of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XMatrix {
    /// The homeserver that sent it.
    pub origin: OwnedServerName,
    /// The homeserver that it is for. Older ones do not say.
    pub destination: Option<OwnedServerName>,
    /// The id of the key that it is signed with.
    pub(crate) key_id: String,
    signature: Vec<u8>,
}

/// Why a signature is not one of the request.
#[derive(Clone, Debug, thiserror::Error)]
pub enum NotSigned {
    /// The body has no canonical form.
    #[error("the body cannot be signed: {0}")]
    Body(#[from] NotCanonical),
    #[error("the body is not UTF-8")]
    Text,
    /// The signature does not fit.
    #[error("it does not fit the request")]
    Wrong,
}

impl XMatrix {
    /// The signature in the headers of a request; `None` if there is none.
    pub fn of(headers: &HeaderMap) -> Option<Self> {
        Self::parse(headers.get(AUTHORIZATION)?.to_str().ok()?)
    }

    /// A header's value. As the specification recommends, values without quotes may have colons.
    fn parse(header: &str) -> Option<Self> {
        let (scheme, mut rest) = header.trim_start().split_once(' ')?;
        if !scheme.eq_ignore_ascii_case(SCHEME) {
            return None;
        }
        let [mut origin, mut destination, mut key, mut sig] = [const { None::<String> }; 4];
        while let Some((name, value, left)) = parameter(rest)? {
            rest = left;
            let known = [
                ("origin", &mut origin),
                ("destination", &mut destination),
                ("key", &mut key),
                ("sig", &mut sig),
            ];
            let found = known.into_iter().find(|(known, _)| name.eq_ignore_ascii_case(known));
            if let Some((_, place)) = found
                && place.replace(value.into_owned()).is_some()
            {
                return None;
            }
        }
        let destination = destination.map(OwnedServerName::try_from).transpose().ok()?;
        Some(Self {
            origin: origin?.try_into().ok()?,
            destination,
            key_id: key?,
            signature: Base64::<Standard>::parse(sig?).ok()?.into_inner(),
        })
    }

    /// Signs a request of `origin` to `destination`.
    ///
    /// # Errors
    /// When the body is not JSON, or has a number that is not finite.
    pub(crate) fn sign(
        request: &Request<impl AsRef<[u8]>>,
        origin: &ServerName,
        destination: &ServerName,
        key_pair: &Ed25519KeyPair,
    ) -> Result<Self, NotSigned> {
        let signed = signed(request, origin, destination, Numbers::Lax)?;
        let (key_id, signature) = key_pair.sign(signed.as_bytes()).into_parts();
        Ok(Self {
            origin: origin.to_owned(),
            destination: Some(destination.to_owned()),
            key_id: key_id.to_string(),
            signature,
        })
    }

    /// Checks that a request to `destination` was signed with this key.
    pub(crate) fn verify(
        &self,
        request: &Request<impl AsRef<[u8]>>,
        destination: &ServerName,
        key: &[u8],
    ) -> Result<(), NotSigned> {
        let text = |numbers| signed(request, &self.origin, destination, numbers);
        let fits = |text: &str| {
            let algorithm = SigningKeyAlgorithm::Ed25519;
            let (signature, text) = (&self.signature, text.as_bytes());
            verify_canonical_json_bytes(&algorithm, key, signature, text).is_ok()
        };
        // Most write numbers in one way only. Some sign them as they wrote them, and Synapse signs
        // them as Python would write them.
        let written = text(Numbers::AsWritten)?;
        if fits(&written) || text(Numbers::Lax).is_ok_and(|lax| lax != written && fits(&lax)) {
            Ok(())
        } else {
            Err(NotSigned::Wrong)
        }
    }

    /// The value of the header.
    pub(crate) fn header(&self) -> String {
        let Self { origin, destination, key_id, signature } = self;
        let signature = Base64::<Standard, _>::new(signature).encode();
        let destination = destination.as_deref().map(|to| format!("destination=\"{to}\","));
        let destination = destination.unwrap_or_default();
        format!("{SCHEME} origin=\"{origin}\",{destination}key=\"{key_id}\",sig=\"{signature}\"")
    }
}

/// The first parameter of a list, and what follows it; the inner `None` at the end of the list, the
/// outer one if it is not a list of parameters.
#[expect(clippy::option_option, reason = "a list ends, or is not one")]
fn parameter(list: &str) -> Option<Option<(&str, Cow<'_, str>, &str)>> {
    let is_between = |letter: char| matches!(letter, ' ' | '\t' | ',');
    let list = list.trim_start_matches(is_between);
    if list.is_empty() {
        return Some(None);
    }
    let (name, rest) = list.split_once('=')?;
    let Some(quoted) = rest.strip_prefix('"') else {
        let end = rest.find(is_between).unwrap_or(rest.len());
        return Some(Some((name, Cow::Borrowed(&rest[..end]), &rest[end..])));
    };
    let (mut value, mut letters) = (String::new(), quoted.char_indices());
    while let Some((at, letter)) = letters.next() {
        match letter {
            '"' => return Some(Some((name, Cow::Owned(value), &quoted[at + 1..]))),
            '\\' => value.push(letters.next()?.1),
            letter => value.push(letter),
        }
    }
    None
}

/// What the signature of a request covers.
fn signed(
    request: &Request<impl AsRef<[u8]>>,
    origin: &ServerName,
    destination: &ServerName,
    numbers: Numbers,
) -> Result<String, NotSigned> {
    let text = |text: &str| serde_json::Value::from(text).to_string();
    let body = std::str::from_utf8(request.body().as_ref()).map_err(|_| NotSigned::Text)?;
    let content = match body {
        "" => Cow::Borrowed(""),
        body => canonical(body, numbers)?,
    };
    let uri = request.uri().path_and_query().map_or("/", |uri| uri.as_str());
    let [destination, origin] = [destination, origin].map(|server| text(server.as_str()));
    let (method, uri) = (text(request.method().as_str()), text(uri));
    let rest = format!(
        "\"destination\":{destination},\"method\":{method},\"origin\":{origin},\"uri\":{uri}}}"
    );
    let before = if content.is_empty() { ["{", "", ""] } else { ["{\"content\":", &content, ","] };
    // A body may be large: this copy of it does not grow.
    Ok([before[0], before[1], before[2], &rest].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(header: &str) -> Option<(String, Option<String>, String, Vec<u8>)> {
        let XMatrix { origin, destination, key_id, signature } = XMatrix::parse(header)?;
        Some((origin.to_string(), destination.map(|to| to.to_string()), key_id, signature))
    }

    #[test]
    fn headers_are_read_in_every_form_that_homeservers_write() {
        let expected = (
            "a.example:8448".to_owned(),
            Some("b.example".to_owned()),
            "ed25519:k".to_owned(),
            vec![0, 1, 2],
        );
        for header in [
            r#"X-Matrix origin="a.example:8448",destination="b.example",key="ed25519:k",sig="AAEC""#,
            r"X-Matrix origin=a.example:8448,destination=b.example,key=ed25519:k,sig=AAEC",
            r#"x-matrix   KEY="ed25519:k" , Origin="a.example:8448"	,	other=1,sig=AAEC,destination="b.example""#,
            r#"X-Matrix origin="a.ex\ample:8448",destination=b.example,key="ed25519:k",sig="AAEC",x="a,\"b""#,
        ] {
            assert_eq!(parsed(header).as_ref(), Some(&expected), "{header}");
        }
        let old = parsed("X-Matrix origin=a.example,key=ed25519:k,sig=AAEC").unwrap();
        assert_eq!(old.1, None);
        for header in [
            "",
            "X-Matrix",
            "X-Matrix ",
            "Bearer abc",
            "X-Matrix origin=a.example,key=ed25519:k",
            "X-Matrix origin=a.example,origin=b.example,key=ed25519:k,sig=AAEC",
            "X-Matrix origin=a_b/c,key=ed25519:k,sig=AAEC",
            "X-Matrix origin=\"a.example,key=ed25519:k,sig=AAEC",
            "X-Matrix origin=a.example,key=ed25519:k,sig=AA EC",
            "X-Matrix origin=a.example,key=ed25519:k,sig=!",
            "X-Matrix origin,key=ed25519:k,sig=AAEC",
        ] {
            assert_eq!(parsed(header), None, "{header}");
        }
    }

    fn pair() -> Ed25519KeyPair {
        Ed25519KeyPair::from_der(&Ed25519KeyPair::generate(), "k".to_owned()).unwrap()
    }

    fn request(body: &str) -> Request<Vec<u8>> {
        let uri = "/_matrix/federation/v1/send/1?a=%20";
        Request::builder().method("PUT").uri(uri).body(body.as_bytes().to_vec()).unwrap()
    }

    #[test]
    fn a_signature_is_the_one_that_ruma_makes() {
        use ruma::api::federation::authentication::{XMatrix as Theirs, XMatrixSigningInput};
        let (pair, a, b) = (pair(), "a.example", "b.example:1");
        let [a, b] = [a, b].map(|name| OwnedServerName::try_from(name).unwrap());
        for body in ["", r#"{ "b": [1, "\u00e9"], "a": {} }"#] {
            let request = request(body);
            let input = XMatrixSigningInput::new(a.clone(), b.clone(), &pair);
            let theirs = Theirs::sign_http_request(&request, input).unwrap();
            let ours = XMatrix::sign(&request, &a, &b, &pair).unwrap();
            assert_eq!(Base64::<Standard, _>::new(&ours.signature).encode(), theirs.sig.encode());
            assert_eq!(XMatrix::parse(&ours.header()), Some(ours.clone()));
            assert_eq!(XMatrix::parse(&theirs.to_string()), Some(ours));
        }
    }

    #[test]
    fn a_body_is_verified_whatever_numbers_it_has_and_only_as_it_was_signed() {
        let pair = pair();
        let [a, b] = ["a.example", "b.example"].map(|name| <&ServerName>::try_from(name).unwrap());
        let key = pair.public_key();
        for body in [
            r#"{"f":[1.5,1e16,-0,1152921504606846976,1e2]}"#,
            r#"{"depth":9007199254741000}"#,
            r#"{"a":2,"a":1}"#,
        ] {
            let made = XMatrix::sign(&request(body), a, b, &pair).unwrap();
            assert!(made.verify(&request(body), b, &key).is_ok(), "{body}");
            let other = body.replacen('1', "2", 1).replace("900", "901");
            assert!(matches!(made.verify(&request(&other), b, &key), Err(NotSigned::Wrong)));
            assert!(made.verify(&request(body), a, &key).is_err());
            assert!(made.verify(&request(""), b, &key).is_err());
        }
        // A homeserver that signs numbers as they stand.
        let body = r#"{"f":1.50}"#;
        let signed = signed(&request(body), a, b, Numbers::AsWritten).unwrap();
        let signature = pair.sign(signed.as_bytes()).into_parts().1;
        let made = XMatrix { signature, ..XMatrix::sign(&request(body), a, b, &pair).unwrap() };
        assert!(made.verify(&request(body), b, &key).is_ok());
        assert!(XMatrix::sign(&request("{"), a, b, &pair).is_err());
        assert!(XMatrix::sign(&request("{\"a\":1e999}"), a, b, &pair).is_err());
    }
}
