use std::sync::Arc;

use logcabin_base::{clock::Clock, limits};
use logcabin_decide::{
    Commit, Proposal, Refusal,
    account::{Login, MetRequirements, Register, UpgradeGuest, Wait},
    status::{Approve, Refuse, SetStatus},
};
use logcabin_engine::{Engine, Options, ProposeError};
use logcabin_log::memory::MemoryLog;
use logcabin_record::{
    Origin, Stream,
    command::{AccountKind, Requirements, TokenHash, Tokens},
};
use ruma::OwnedUserId;

async fn engine() -> Engine {
    let clock = Clock::manual(1);
    let log = Arc::new(MemoryLog::new(clock.clone()));
    Engine::open(log, Options::small(clock)).await.unwrap()
}

fn ann() -> OwnedUserId {
    "@ann:test".try_into().unwrap()
}

fn register(kind: AccountKind, met: MetRequirements) -> Register {
    let (password, display_name, login) = (None, None, None);
    Register { user_id: ann(), kind, password, display_name, login, met }
}

#[tokio::test]
async fn a_registration_with_a_token_depends_on_the_name_before_it_checks_that_it_is_free() {
    let engine = engine().await;
    let first = register(AccountKind::User, MetRequirements::default());
    engine.propose(Origin::server(), first).await.unwrap().into_inner();
    let requirements = Requirements {
        registration_token: Some(TokenHash::of("token")),
        ..Requirements::default()
    };
    let late =
        register(AccountKind::User, MetRequirements { requirements, ..MetRequirements::default() });
    assert_ne!(late.stream(), Stream::user(&ann()));
    let env = engine.env();
    let mut commit = Commit::new(&env, &late.stream());
    assert!(matches!(late.decide(&mut commit), Err(Refusal::UserInUse)));
    let expect = commit.into_batch().expect;
    let rests_on: Vec<_> = expect.iter().map(|(stream, _)| stream).collect();
    assert!(rests_on.contains(&&Stream::user(&ann())), "{rests_on:?}");
}

#[tokio::test]
async fn a_locked_guest_does_not_become_a_full_user() {
    let engine = engine().await;
    let guest = register(AccountKind::Guest, MetRequirements::default());
    engine.propose(Origin::server(), guest).await.unwrap().into_inner();
    let upgrade = || UpgradeGuest {
        user_id: ann(),
        password: None,
        login: None,
        met: MetRequirements::default(),
    };
    let lock = |locked| SetStatus {
        user_id: ann(),
        admin: None,
        locked: Some(locked),
        suspended: None,
        shadow_banned: None,
        reason: None,
    };
    engine.propose(Origin::server(), lock(true)).await.unwrap().into_inner();
    let refused = engine.propose(Origin::server(), upgrade()).await.unwrap_err();
    assert!(matches!(refused, ProposeError::Refused(Refusal::UserLocked)), "{refused:?}");
    engine.propose(Origin::server(), lock(false)).await.unwrap().into_inner();
    engine.propose(Origin::server(), upgrade()).await.unwrap().into_inner();
    assert!(!engine.state().accounts.is_guest(&ann()));
}

fn waits() -> MetRequirements {
    let wait = Wait { answer: Some("because".to_owned()), address: None };
    MetRequirements { wait: Some(wait), ..MetRequirements::default() }
}

#[tokio::test]
async fn nobody_logs_in_to_an_account_that_waits() {
    let engine = engine().await;
    let login = || Login {
        user_id: ann(),
        device_id: "PHONE".into(),
        display_name: None,
        tokens: Tokens { access: TokenHash::of("token"), expires_ms: None, refresh: None },
        verified: None,
    };
    let with_login = Register { login: Some(login()), ..register(AccountKind::User, waits()) };
    engine.propose(Origin::server(), with_login).await.unwrap().into_inner();
    let state = engine.state();
    assert_eq!(state.accounts.get(&ann()).unwrap().read().device_count(), 0);
    let refused = engine.propose(Origin::server(), login()).await.unwrap_err();
    assert!(matches!(refused, ProposeError::Refused(Refusal::AwaitsApproval)), "{refused:?}");
    let approve = || Approve { user_id: ann(), reason: None };
    assert!(engine.propose(Origin::server(), approve()).await.unwrap().into_inner());
    assert!(!engine.propose(Origin::server(), approve()).await.unwrap().into_inner());
    engine.propose(Origin::server(), login()).await.unwrap().into_inner();
    // Approval came first.
    let refuse = Refuse { user_id: ann(), reason: None, ts: 1 };
    assert!(!engine.propose(Origin::server(), refuse).await.unwrap().into_inner());
    assert_eq!(state.accounts.standing(&ann()).unwrap().deactivated, None);
}

#[tokio::test]
async fn only_so_many_accounts_wait() {
    let engine = engine().await;
    let of = |number: usize| {
        let user_id = format!("@newcomer-{number}:test").try_into().unwrap();
        Register { user_id, ..register(AccountKind::User, waits()) }
    };
    for number in 0..limits::WAITING_ACCOUNTS {
        engine.propose(Origin::server(), of(number)).await.unwrap().into_inner();
    }
    let more = of(limits::WAITING_ACCOUNTS);
    let refused = engine.propose(Origin::server(), more.clone()).await.unwrap_err();
    let is_full = matches!(refused, ProposeError::Refused(Refusal::TooManyWaiting { .. }));
    assert!(is_full, "{refused:?}");
    // Others do not wait, and one place is enough.
    let other = register(AccountKind::User, MetRequirements::default());
    engine.propose(Origin::server(), other).await.unwrap().into_inner();
    let refuse = Refuse { user_id: of(7).user_id, reason: None, ts: 1 };
    assert!(engine.propose(Origin::server(), refuse).await.unwrap().into_inner());
    engine.propose(Origin::server(), more).await.unwrap().into_inner();
}

#[tokio::test]
async fn an_administrator_cannot_be_shadow_banned() {
    let engine = engine().await;
    let first = register(AccountKind::User, MetRequirements::default());
    engine.propose(Origin::server(), first).await.unwrap().into_inner();
    let set = |admin, shadow_banned| SetStatus {
        user_id: ann(),
        admin,
        locked: None,
        suspended: None,
        shadow_banned,
        reason: None,
    };
    for (first, then) in [
        (set(Some(true), None), set(None, Some(true))),
        (set(Some(false), Some(true)), set(Some(true), None)),
    ] {
        engine.propose(Origin::server(), first).await.unwrap().into_inner();
        let refused = engine.propose(Origin::server(), then).await.unwrap_err();
        let is = matches!(refused, ProposeError::Refused(Refusal::Forbidden(_)));
        assert!(is, "{refused:?}");
    }
    // In one change, one can cease to be the one and become the other.
    engine.propose(Origin::server(), set(Some(true), Some(false))).await.unwrap().into_inner();
}
