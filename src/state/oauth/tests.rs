use serde_json::json;

use super::*;

fn client(client_id: &str) -> OauthClient {
    let given = json!({
        "client_uri": "https://example.org/", "token_endpoint_auth_method": "none",
        "redirect_uris": ["https://example.org/"],
    });
    let metadata = ClientMetadata::parse(given.as_object().unwrap()).unwrap();
    OauthClient { client_id: client_id.to_owned(), client_secret: None, metadata }
}

fn ann() -> OwnedUserId {
    "@ann:test".try_into().unwrap()
}

fn grant(grant_id: &str, code: &str) -> OauthGrant {
    OauthGrant {
        grant_id: grant_id.to_owned(),
        user_id: ann(),
        client_id: "one".to_owned(),
        scope: "openid".to_owned(),
        device_id: None,
        tokens: Some(Tokens {
            access: TokenHash::of(&format!("access {grant_id}")),
            expires_ms: None,
            refresh: Some(TokenHash::of(&format!("refresh {grant_id}"))),
        }),
        code: TokenHash::of(code),
        auth_ms: 1,
    }
}

fn request(code: &str, expires_ms: u64) -> OauthDeviceRequest {
    OauthDeviceRequest {
        device_code: TokenHash::of(code),
        user_code: TokenHash::of(&format!("user {code}")),
        client_id: "one".to_owned(),
        scope: "openid".to_owned(),
        expires_ms,
    }
}

/// Everything that is derived, from what is written.
fn derived(oauth: &Oauth) -> String {
    let bytes = postcard::to_stdvec(oauth).unwrap();
    let read: Oauth = postcard::from_bytes(&bytes).unwrap();
    let (one, other) = (oauth.0.read(), read.0.read());
    assert_eq!(format!("{:?}", one.index), format!("{:?}", other.index));
    format!("{:?}", one.index)
}

#[test]
fn a_client_is_idle_as_long_as_it_has_no_grant() {
    let oauth = Oauth::default();
    oauth.register(Offset::new(1), 10, client("one"));
    oauth.register(Offset::new(2), 20, client("two"));
    assert_eq!(oauth.idle(15, 9), ["one"]);
    oauth.give(Offset::new(3), 30, 30, grant("A", "a"));
    oauth.give(Offset::new(4), 30, 30, grant("B", "b"));
    assert_eq!(oauth.idle(99, 9), ["two"]);
    derived(&oauth);
    oauth.end(40, &["A".to_owned()]);
    assert_eq!(oauth.idle(99, 9), ["two"]);
    oauth.end_session(50, Offset::new(4));
    assert_eq!(oauth.idle(99, 9), ["two", "one"]);
    // Registered once more, it is idle from then on, and the record before says nothing.
    assert_eq!(oauth.register(Offset::new(9), 60, client("two")), [Offset::new(2)]);
    assert_eq!(oauth.idle(99, 9), ["one", "two"]);
    assert_eq!(oauth.remove_clients(61, &["one".to_owned()]), [Offset::new(1)]);
    assert_eq!((oauth.client_count(), oauth.idle_count()), (1, 1));
    derived(&oauth);
}

#[test]
fn a_used_code_is_known_by_its_grant_and_tokens_by_their_hashes() {
    let oauth = Oauth::default();
    oauth.register(Offset::new(1), 10, client("one"));
    oauth.give(Offset::new(3), 30, 30, grant("A", "a"));
    assert_eq!(oauth.grant_of_code(&TokenHash::of("a")).unwrap().grant_id, "A");
    assert!(oauth.access_token(&TokenHash::of("access A")).is_some());
    assert!(oauth.access_token(&TokenHash::of("refresh A")).is_none());
    let tokens = grant("A2", "").tokens.unwrap();
    oauth.refresh(40, OauthRefresh { grant_id: "A".to_owned(), tokens });
    assert!(oauth.access_token(&TokenHash::of("access A2")).unwrap().unconfirmed);
    assert!(!oauth.refresh_token(&TokenHash::of("refresh A")).unwrap().unconfirmed);
    derived(&oauth);
    oauth.confirm(41, "A");
    assert!(oauth.refresh_token(&TokenHash::of("refresh A")).is_none());
    assert!(!oauth.refresh_token(&TokenHash::of("refresh A2")).unwrap().unconfirmed);
    derived(&oauth);
    oauth.forget_user(50, &ann());
    assert!(oauth.access_token(&TokenHash::of("access A2")).is_none());
    assert!(oauth.grant_of_code(&TokenHash::of("a")).is_none());
    derived(&oauth);
}

#[test]
fn expired_requests_are_forgotten_and_there_are_never_more_than_the_limit() {
    let oauth = Oauth::default();
    assert!(oauth.ask(Offset::new(1), 10, request("a", 100)).is_empty());
    let by_user = TokenHash::of("user a");
    assert!(oauth.request_for_user(&by_user, 99).is_some());
    assert!(oauth.request_for_user(&by_user, 100).is_none());
    derived(&oauth);
    assert_eq!(oauth.end(100, &[]), [Offset::new(1)]);
    assert!(oauth.request(&TokenHash::of("a")).is_none());
    for number in 0..limits::OAUTH_DEVICE_REQUESTS as u64 {
        let request = request(&number.to_string(), 1000 + number);
        assert!(oauth.ask(Offset::new(number + 2), 101, request).is_empty());
    }
    assert_eq!(oauth.ask(Offset::new(1 << 20), 102, request("z", 9_999_999)), [Offset::new(2)]);
    // As in a replay after the erasure of these records.
    assert_eq!(oauth.forget(103, |record| record == Offset::new(3)), [Offset::new(3)]);
    derived(&oauth);
}

#[test]
fn browsers_are_signed_out_one_by_one_all_at_once_and_by_time() {
    let oauth = Oauth::default();
    let sign_in = |name: &str, expires_ms| BrowserSignIn {
        user_id: ann(),
        browser: TokenHash::of(name),
        by: SignedInBy::Password,
        expires_ms,
        address: None,
        agent: None,
    };
    oauth.sign_in(1, sign_in("a", 10));
    oauth.sign_in(2, sign_in("b", 100));
    assert!(oauth.browser(&TokenHash::of("a"), 9).is_some());
    assert!(oauth.browser(&TokenHash::of("a"), 10).is_none());
    oauth.sign_in(11, sign_in("c", 100));
    let left: Vec<_> = oauth.browsers_of(&ann()).into_iter().map(|(hash, _)| hash).collect();
    assert_eq!(left, [TokenHash::of("b"), TokenHash::of("c")]);
    derived(&oauth);
    oauth.sign_out(&ann(), &[TokenHash::of("b")]);
    assert!(oauth.browser(&TokenHash::of("b"), 12).is_none());
    oauth.sign_out_everywhere(&ann());
    assert!(oauth.browsers_of(&ann()).is_empty());
    derived(&oauth);
}
