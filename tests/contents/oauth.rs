//! Records of OAuth 2.0.

use logcabin::{
    decide::{
        account::Login,
        oauth::{
            AnnounceKey, AnswerDevice, ConfirmGrant, EndGrants, Exchange, Exchanged, IssueCode,
            PermitReset, RefreshGrant, RegisterClient, RemoveIdleClients, RequestDevice, SignIn,
            SignOut,
        },
    },
    engine::Engine,
    record::{
        Origin,
        client::ClientMetadata,
        command::{
            BrowserSignIn, GrantEnd, OauthClient, OauthCode, OauthDeviceAnswer, OauthDeviceRequest,
            OauthGrant, OauthKey, SignedInBy, TokenHash, Tokens,
        },
    },
};
use ruma::OwnedUserId;

/// Clients that are authorized: one gets a device through a browser, and one a login without a
/// device through a code that is typed.
pub(crate) async fn grant(engine: &Engine, ann: &OwnedUserId) {
    macro_rules! propose {
        ($proposal:expr) => {
            engine.propose(Origin::server(), $proposal).await.unwrap().into_inner()
        };
    }
    let (now_ms, idle_ms) = (1_770_000_000_000, 86_400_000);
    let register = |name: &str| {
        let given = serde_json::json!({
            "client_name": name,
            "client_name#de": "Gold",
            "client_uri": "https://golden.example/",
            "redirect_uris": ["https://golden.example/callback"],
            "grant_types": ["authorization_code", "urn:ietf:params:oauth:grant-type:device_code"],
        });
        let metadata = ClientMetadata::parse(given.as_object().unwrap()).unwrap();
        let client_secret = Some(TokenHash::of("a secret"));
        let client = OauthClient { client_id: name.to_owned(), client_secret, metadata };
        RegisterClient { client, now_ms, idle_ms }
    };
    for name in ["web", "tv", "idle"] {
        propose!(register(name));
    }
    let browser = TokenHash::of("cookie");
    let sign_in = BrowserSignIn {
        user_id: ann.clone(),
        browser,
        by: SignedInBy::Password,
        expires_ms: now_ms + 1000,
        address: Some([192, 0, 2, 1].into()),
        agent: Some("browser".to_owned()),
    };
    let sign_in_again = sign_in.clone();
    propose!(SignIn { sign_in, verified: None, replaces: None, now_ms });
    let scope = "urn:matrix:client:api:* urn:matrix:client:device:OAUTH openid".to_owned();
    let code = OauthCode {
        user_id: ann.clone(),
        client_id: "web".to_owned(),
        scope: scope.clone(),
        code: TokenHash::of("code"),
        redirect_uri: "https://golden.example/callback".to_owned(),
        code_challenge: "A".repeat(43),
        nonce: Some("nonce".to_owned()),
        auth_ms: now_ms,
        expires_ms: now_ms + 60_000,
    };
    propose!(IssueCode { code, configured: false, browser, now_ms });
    let tokens = |name: &str| Tokens {
        access: TokenHash::of(&format!("access {name}")),
        expires_ms: Some(1_770_003_600_000),
        refresh: Some(TokenHash::of(&format!("refresh {name}"))),
    };
    let login = Login {
        user_id: ann.clone(),
        device_id: "OAUTH".into(),
        display_name: Some("web".to_owned()),
        tokens: tokens("web"),
        verified: None,
    };
    let given = OauthGrant {
        grant_id: "GOLDEN".to_owned(),
        user_id: ann.clone(),
        client_id: "web".to_owned(),
        scope,
        device_id: Some("OAUTH".into()),
        tokens: None,
        code: TokenHash::of("code"),
        auth_ms: now_ms,
    };
    let exchange = Exchange { login: Some(login), grant: given, configured: false, now_ms };
    assert_eq!(propose!(exchange), Exchanged::Granted);
    for (code, allowed) in [("device", true), ("other device", false)] {
        let device_code = TokenHash::of(code);
        let request = OauthDeviceRequest {
            device_code,
            user_code: TokenHash::of(&format!("user {code}")),
            client_id: "tv".to_owned(),
            scope: "openid".to_owned(),
            expires_ms: now_ms + 60_000,
        };
        assert!(propose!(RequestDevice { request, configured: false, now_ms }));
        let (user_id, auth_ms) = (ann.clone(), now_ms);
        let answer = OauthDeviceAnswer { user_id, device_code, allowed, auth_ms };
        propose!(AnswerDevice { answer, browser, now_ms });
    }
    for (grant_id, code) in [("SILVER", "device"), ("BRONZE", "device")] {
        let given = OauthGrant {
            grant_id: grant_id.to_owned(),
            user_id: ann.clone(),
            client_id: "tv".to_owned(),
            scope: "openid".to_owned(),
            device_id: None,
            tokens: Some(tokens("tv")),
            code: TokenHash::of(code),
            auth_ms: now_ms,
        };
        let exchange = Exchange { login: None, grant: given, configured: false, now_ms };
        if grant_id == "BRONZE" {
            assert_eq!(propose!(exchange), Exchanged::Reused);
            continue;
        }
        assert_eq!(propose!(exchange), Exchanged::Granted);
        let grant_id = || "SILVER".to_owned();
        let refresh = RefreshGrant {
            user_id: ann.clone(),
            grant_id: grant_id(),
            presented: TokenHash::of("refresh tv"),
            tokens: tokens("tv again"),
            good_enough_ms: None,
        };
        assert_eq!(propose!(refresh), Some(1_770_003_600_000));
        let used = TokenHash::of("access tv again");
        propose!(ConfirmGrant { user_id: ann.clone(), grant_id: grant_id(), used });
    }
    let key = OauthKey {
        kid: "GOLDEN".to_owned(),
        n: "AAAA".to_owned(),
        e: "AQAB".to_owned(),
        until_ms: now_ms + 1000,
    };
    propose!(AnnounceKey(key));
    propose!(PermitReset { user_id: ann.clone(), until_ms: now_ms + 1000 });
    let grants = vec!["GOLDEN".to_owned()];
    let ended = EndGrants { user_id: ann.clone(), grants, because: GrantEnd::Revoked };
    assert_eq!(propose!(ended), 1);
    propose!(SignOut { user_id: ann.clone(), browsers: vec![browser] });
    assert_eq!(propose!(RemoveIdleClients { until_ms: now_ms + idle_ms, most: 9 }), 3);
    // What stays is a part of snapshots.
    propose!(register("late"));
    propose!(SignIn { sign_in: sign_in_again, verified: None, replaces: None, now_ms });
    let device_code = TokenHash::of("late device");
    let request = OauthDeviceRequest {
        device_code,
        user_code: TokenHash::of("user late device"),
        client_id: "late".to_owned(),
        scope: "openid".to_owned(),
        expires_ms: now_ms + 60_000,
    };
    assert!(propose!(RequestDevice { request, configured: false, now_ms }));
    let answer =
        OauthDeviceAnswer { user_id: ann.clone(), device_code, allowed: true, auth_ms: now_ms };
    propose!(AnswerDevice { answer, browser, now_ms });
    let given = OauthGrant {
        grant_id: "LATE".to_owned(),
        user_id: ann.clone(),
        client_id: "late".to_owned(),
        scope: "openid".to_owned(),
        device_id: None,
        tokens: Some(tokens("late")),
        code: device_code,
        auth_ms: now_ms,
    };
    let exchange = Exchange { login: None, grant: given, configured: false, now_ms };
    assert_eq!(propose!(exchange), Exchanged::Granted);
}
