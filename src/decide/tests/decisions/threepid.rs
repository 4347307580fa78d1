use std::sync::Arc;

use logcabin_base::{clock::Clock, limits};
use logcabin_decide::{Refusal, threepid::NoteBound};
use logcabin_engine::{Engine, Options, ProposeError};
use logcabin_log::memory::MemoryLog;
use logcabin_record::{Origin, address::email};
use ruma::{OwnedUserId, UserId};

fn bound(user_id: &UserId, address: usize) -> NoteBound {
    let threepid = email(&format!("{address}@example.org")).unwrap();
    NoteBound { user_id: user_id.to_owned(), threepid, id_server: "id.example".to_owned() }
}

#[tokio::test]
async fn a_user_has_a_bounded_number_of_bindings() {
    let clock = Clock::manual(1);
    let log = Arc::new(MemoryLog::new(clock.clone()));
    let engine = Engine::open(log, Options::small(clock)).await.unwrap();
    let [ann, bob]: [OwnedUserId; 2] = ["@ann:test", "@bob:test"].map(|id| id.try_into().unwrap());
    for address in 0..limits::THREEPIDS {
        engine.propose(Origin::server(), bound(&ann, address)).await.unwrap().into_inner();
    }
    let more = engine.propose(Origin::server(), bound(&ann, limits::THREEPIDS)).await;
    assert!(matches!(more, Err(ProposeError::Refused(Refusal::Forbidden(_)))), "{more:?}");
    // A known one changes nothing, and other users have bindings of their own.
    for known in [bound(&ann, 0), bound(&bob, limits::THREEPIDS)] {
        engine.propose(Origin::server(), known).await.unwrap().into_inner();
    }
}
