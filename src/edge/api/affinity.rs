//! What a request refers to: the process that has it in memory, by the mark in the id ([`Tag`]),
//! for sessions of user-interactive authentication, nonces, rendezvous sessions and connections of
//! sliding sync; and the room that it writes into.

use http::{Method, Uri};
use ruma::{OwnedRoomId, OwnedUserId};
use serde::Deserialize;

use logcabin_base::tag::Tag;
use logcabin_read::view::token::Pos;
use logcabin_record::Stream;

/// A larger body has none of these ids.
const BODY_BYTES: usize = 256 * 1024;

/// The mark of the process to which a request belongs, if it refers to one.
pub(super) fn process_of(uri: &Uri, body: &[u8]) -> Option<u16> {
    in_path(uri.path()).or_else(|| in_query(uri.query()?)).or_else(|| in_body(body))
}

/// The room that a request writes into, if its path names one.
pub(super) fn written_room(method: &Method, uri: &Uri) -> Option<OwnedRoomId> {
    if !matches!(*method, Method::PUT | Method::POST) {
        return None;
    }
    let (_, rest) = uri.path().split_once("/rooms/").or_else(|| uri.path().split_once("/join/"))?;
    decoded(rest.split('/').next()?).as_ref().try_into().ok()
}

/// The name of what one node does for all, by which that node is chosen: a user's presence, and the
/// messages that confirm an address.
pub(super) fn one_place(uri: &Uri, body: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct ValidationBody {
        client_secret: String,
    }
    if let Some((_, rest)) = uri.path().split_once("/presence/") {
        let user_id: OwnedUserId = decoded(rest.split('/').next()?).as_ref().try_into().ok()?;
        return Some(Stream::presence(&user_id).as_str().to_owned());
    }
    if uri.path().ends_with("/requestToken") && body.len() <= BODY_BYTES {
        let ValidationBody { client_secret } = serde_json::from_slice(body).ok()?;
        return Some(format!("requestToken/{client_secret}"));
    }
    None
}

fn in_path(path: &str) -> Option<u16> {
    let (_, rest) = path.split_once("/rendezvous/")?;
    Tag::in_id(&decoded(rest.split('/').next()?))
}

fn in_query(query: &str) -> Option<u16> {
    query.split('&').filter_map(|pair| pair.split_once('=')).find_map(|(name, value)| match name {
        "session" | "state" => Tag::in_id(&decoded(value)),
        "pos" => decoded(value).parse::<Pos>().ok().map(|pos| (pos.ticket >> 47) as u16),
        _ => None,
    })
}

fn in_body(body: &[u8]) -> Option<u16> {
    #[derive(Deserialize)]
    struct Body {
        auth: Option<Auth>,
        nonce: Option<String>,
        // Of a form on a page.
        session: Option<String>,
    }
    #[derive(Deserialize)]
    struct Auth {
        session: Option<String>,
    }
    let is_named =
        |name: &str| memchr::memmem::find(body, format!("\"{name}\"").as_bytes()).is_some();
    if body.len() > BODY_BYTES {
        return None;
    }
    if !body.starts_with(b"{") {
        return in_query(std::str::from_utf8(body).ok()?);
    }
    if !is_named("session") && !is_named("nonce") {
        return None;
    }
    let Body { auth, nonce, session } = serde_json::from_slice(body).ok()?;
    let ids = [auth.and_then(|auth| auth.session), session, nonce];
    ids.iter().flatten().find_map(|id| Tag::in_id(id))
}

fn decoded(text: &str) -> std::borrow::Cow<'_, str> {
    percent_encoding::percent_decode_str(text).decode_utf8_lossy()
}

#[cfg(test)]
mod tests {
    use super::*;
    use logcabin_read::view::token::Token;
    use logcabin_record::{Epoch, Offset};

    fn of(uri: &str, body: &str) -> Option<u16> {
        process_of(&uri.parse().unwrap(), body.as_bytes())
    }

    #[test]
    fn the_room_is_in_the_path_of_a_write() {
        let of = |method: Method, path: &str| {
            written_room(&method, &path.parse().unwrap()).map(|room| room.to_string())
        };
        let room = Some("!a:test".to_owned());
        assert_eq!(of(Method::PUT, "/_matrix/client/v3/rooms/!a:test/send/m/1"), room);
        assert_eq!(of(Method::POST, "/_matrix/client/v3/rooms/%21a%3Atest/join"), room);
        assert_eq!(of(Method::POST, "/_matrix/client/v3/join/!a:test?via=b"), room);
        assert_eq!(of(Method::GET, "/_matrix/client/v3/rooms/!a:test/messages"), None);
        assert_eq!(of(Method::POST, "/_matrix/client/v3/join/%23a:test"), None);
        assert_eq!(of(Method::POST, "/_matrix/client/v3/createRoom"), None);
    }

    #[test]
    fn ids_with_a_mark_are_found_wherever_they_are() {
        let token = Token { epoch: Epoch(1), offset: Offset::new(9) };
        let ticket = Tag::of(0xabcd).mark_number(u64::MAX) >> 1;
        let pos = Pos { token, connection: 1, ticket };
        for (uri, body) in [
            ("/rendezvous/x~abcd", ""),
            ("/rendezvous/x%7Eabcd/txn", ""),
            ("/web?session=x%7Eabcd", ""),
            (&*format!("/sync?timeout=1&pos={pos}"), "{}"),
            ("/register", r#"{"auth":{"type":"t","session":"x~abcd"},"a":1}"#),
            ("/register", r#"{"nonce":"x~abcd"}"#),
            ("/web", "session=x~abcd"),
        ] {
            assert_eq!(of(uri, body), Some(0xabcd), "{uri} {body}");
        }
        for (uri, body) in [
            ("/rooms/x~abcd", ""),
            ("/sync?since=s1_9", ""),
            ("/register", r#"{"auth":{"session":"x"}}"#),
            ("/register", r#"{"auth":"x~abcd"}"#),
        ] {
            assert_eq!(of(uri, body), None, "{uri} {body}");
        }
    }
}
