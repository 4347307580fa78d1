use std::sync::Arc;

use logcabin_base::clock::Clock;
use logcabin_decide::{
    Commit, Proposal, Refusal,
    account::{MetRequirements, Register, UpgradeGuest},
    status::SetStatus,
};
use logcabin_engine::{Engine, Options, ProposeError};
use logcabin_log::memory::MemoryLog;
use logcabin_record::{
    Origin, Stream,
    command::{AccountKind, Requirements, TokenHash},
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
        reason: None,
    };
    engine.propose(Origin::server(), lock(true)).await.unwrap().into_inner();
    let refused = engine.propose(Origin::server(), upgrade()).await.unwrap_err();
    assert!(matches!(refused, ProposeError::Refused(Refusal::UserLocked)), "{refused:?}");
    engine.propose(Origin::server(), lock(false)).await.unwrap().into_inner();
    engine.propose(Origin::server(), upgrade()).await.unwrap().into_inner();
    assert!(!engine.state().accounts.is_guest(&ann()));
}
