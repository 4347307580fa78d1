use std::sync::Arc;

use logcabin_base::clock::Clock;
use logcabin_decide::{
    Commit, Proposal,
    account::{MetRequirements, Register},
    oauth::{Exchange, IssueCode, RegisterClient, RemoveIdleClients, SignIn},
};
use logcabin_engine::{Engine, Options};
use logcabin_log::{AppendError, Batch, Log as _, memory::MemoryLog};
use logcabin_record::{
    Origin,
    client::ClientMetadata,
    command::{
        AccountKind, BrowserSignIn, OauthClient, OauthCode, OauthGrant, SignedInBy, TokenHash,
        Tokens,
    },
};
use ruma::OwnedUserId;

const NOW_MS: u64 = 1_000_000;

fn ann() -> OwnedUserId {
    "@ann:test".try_into().unwrap()
}

/// A log in which Ann has allowed a client something, and the client has the code.
async fn with_a_code() -> (Arc<MemoryLog>, Engine) {
    let clock = Clock::manual(NOW_MS);
    let log = Arc::new(MemoryLog::new(clock.clone()));
    let engine = Engine::open(log.clone(), Options::small(clock)).await.unwrap();
    let (password, display_name, login) = (None, None, None);
    let (user_id, kind, met) = (ann(), AccountKind::User, MetRequirements::default());
    let ann_registers = Register { user_id, kind, password, display_name, login, met };
    engine.propose(Origin::server(), ann_registers).await.unwrap().into_inner();
    let described = serde_json::json!({
        "client_uri": "https://x.example/",
        "redirect_uris": ["https://x.example/callback"],
        "token_endpoint_auth_method": "none",
    });
    let metadata = ClientMetadata::parse(described.as_object().unwrap()).unwrap();
    let client = OauthClient { client_id: "client".to_owned(), client_secret: None, metadata };
    let register = RegisterClient { client, now_ms: NOW_MS, idle_ms: 1000 };
    assert!(engine.propose(Origin::server(), register).await.unwrap().into_inner());
    let browser = TokenHash::of("browser");
    let sign_in = BrowserSignIn {
        user_id: ann(),
        browser,
        by: SignedInBy::Password,
        expires_ms: 2 * NOW_MS,
        address: None,
        agent: None,
    };
    let sign_in = SignIn { sign_in, verified: None, replaces: None, now_ms: NOW_MS };
    engine.propose(Origin::server(), sign_in).await.unwrap().into_inner();
    let code = OauthCode {
        user_id: ann(),
        client_id: "client".to_owned(),
        scope: "openid".to_owned(),
        code: TokenHash::of("code"),
        redirect_uri: "https://x.example/callback".to_owned(),
        code_challenge: "x".repeat(43),
        nonce: None,
        auth_ms: NOW_MS,
        expires_ms: 2 * NOW_MS,
    };
    let issue = IssueCode { code, configured: false, browser, now_ms: NOW_MS };
    engine.propose(Origin::server(), issue).await.unwrap().into_inner();
    (log, engine)
}

/// What a node would append that decided this without knowing of anything newer.
fn decided(engine: &Engine, proposal: &impl Proposal) -> Batch {
    let env = engine.env();
    let mut commit = Commit::new(&env, &proposal.stream());
    if proposal.is_exclusive() {
        commit.rests_on_everything();
    }
    proposal.decide(&mut commit).ok();
    assert!(!commit.is_empty());
    commit.into_batch()
}

#[tokio::test]
async fn a_client_is_removed_or_gets_a_grant_but_not_both() {
    for removed_first in [false, true] {
        let (log, engine) = with_a_code().await;
        let removal = decided(&engine, &RemoveIdleClients { until_ms: 0, most: 0 });
        let tokens = Tokens { access: TokenHash::of("access"), expires_ms: None, refresh: None };
        let grant = OauthGrant {
            grant_id: "grant".to_owned(),
            user_id: ann(),
            client_id: "client".to_owned(),
            scope: "openid".to_owned(),
            device_id: None,
            tokens: Some(tokens),
            code: TokenHash::of("code"),
            auth_ms: NOW_MS,
        };
        let exchange = Exchange { login: None, grant, configured: false, now_ms: NOW_MS };
        let grant = decided(&engine, &exchange);
        let (first, late) = if removed_first { (removal, grant) } else { (grant, removal) };
        log.append(first).await.unwrap();
        let late = log.append(late).await;
        assert!(matches!(late, Err(AppendError::Conflict { .. })), "{removed_first}: {late:?}");
    }
}
