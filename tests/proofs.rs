//! Proofs of a log hold, and nothing else does: the verifier in `examples/`, which has none of the
//! server's code, checks proofs from random logs, intact and with single bits changed.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::sync::Arc;

use logcabin::{
    clock::Clock,
    engine::{Engine, Options},
    log::{Batch, Log, memory::MemoryLog},
    proof::{First, ProofRequest, Prover, Witness, checkpoint},
    record::{
        Command, NewRecord, Offset, Origin, Record, Stream,
        codec::{self, Tip},
        command::{LogCheckpoint, LogErase, RoomTyping, ServerIdentity},
    },
    state::{State, merkle_tree::BLOCK},
};
use proptest::prelude::*;
use ruma::signatures::{Ed25519KeyPair, KeyPair as _};
use serde_json::Value;
use tokio::runtime::Runtime;

#[path = "../examples/verify_proof.rs"]
#[allow(dead_code, reason = "its command line is not used here")]
mod verify_proof;

use verify_proof::verify;

struct Cabin {
    runtime: Runtime,
    engine: Engine,
    log: Arc<dyn Log>,
}

impl Cabin {
    fn open() -> Self {
        let runtime = Runtime::new().unwrap();
        let clock = Clock::manual(1_770_000_000_000);
        let log: Arc<dyn Log> = Arc::new(MemoryLog::new(clock.clone()));
        let options =
            Options { server_name: "proof.example".try_into().unwrap(), ..Options::small(clock) };
        let engine = runtime.block_on(Engine::open(Arc::clone(&log), options)).unwrap();
        Self { runtime, engine, log }
    }

    fn append(&self, commands: Vec<Command>) {
        let record = |command| NewRecord::new(Stream::server(), Origin::server(), command);
        let records = commands.iter().map(record).collect();
        self.runtime.block_on(self.log.append(Batch { expect: vec![], records })).unwrap();
    }

    /// Appends `count` records.
    fn write(&self, count: u64) {
        let typing = |until_ms| {
            Command::from(RoomTyping {
                room_id: "!r:proof.example".try_into().unwrap(),
                user_id: "@ann:proof.example".try_into().unwrap(),
                until_ms,
                since: None,
            })
        };
        if count > 0 {
            self.append((0..count).map(typing).collect());
        }
    }

    fn checkpoint(&self) -> Offset {
        self.runtime.block_on(checkpoint(&self.engine, Origin::server())).unwrap()
    }

    fn identity(&self) -> Arc<ServerIdentity> {
        self.engine.state().server().unwrap()
    }

    fn prove(&self, asked: ProofRequest) -> Value {
        let identity = self.identity();
        let state = self.engine.state();
        let mut prover = Prover::new(&state.tree, &*self.log, &identity);
        serde_json::to_value(prover.answer(asked).unwrap()).unwrap()
    }

    fn verify(&self, proof: &Value) -> Result<String, String> {
        verify(&self.identity().public_key, proof.to_string().as_bytes())
    }

    fn records(&self) -> Vec<Record> {
        self.log.read(Offset::new(1), usize::MAX).unwrap()
    }
}

fn at(offset: u64) -> First {
    First::At(Offset::new(offset))
}

/// A log of random length with checkpoints at random places, the last of which covers it.
fn cabin(lengths: &[u64]) -> (Cabin, Vec<Offset>) {
    let cabin = Cabin::open();
    let checkpoints = lengths.iter().map(|length| {
        cabin.write(*length);
        cabin.checkpoint()
    });
    let checkpoints = checkpoints.collect();
    (cabin, checkpoints)
}

/// The values in `proof` of which a bit can be changed.
fn values<'v>(value: &'v mut Value, found: &mut Vec<&'v mut Value>) {
    match value {
        Value::Object(members) => members.values_mut().for_each(|member| values(member, found)),
        Value::Array(items) => items.iter_mut().for_each(|item| values(item, found)),
        Value::String(_) | Value::Number(_) => found.push(value),
        _ => {}
    }
}

fn change(proof: &Value, pick: prop::sample::Index, at: prop::sample::Index, bit: u32) -> Value {
    let mut changed = proof.clone();
    let mut found = Vec::new();
    values(&mut changed, &mut found);
    let index = pick.index(found.len());
    let value = found.remove(index);
    *value = match &*value {
        Value::Number(number) => (number.as_u64().unwrap() ^ (1 << (bit % 48))).into(),
        Value::String(text) => {
            let mut bytes = text.clone().into_bytes();
            let at = at.index(bytes.len());
            // ASCII stays text.
            bytes[at] ^= 1 << (bit % 7);
            String::from_utf8(bytes).unwrap().into()
        }
        other => other.clone(),
    };
    changed
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn every_record_and_every_pair_of_checkpoints_can_be_proved(
        lengths in prop::collection::vec(0_u64..9, 1..6),
        changes in prop::collection::vec(any::<(prop::sample::Index, prop::sample::Index, u32)>(), 8),
    ) {
        let (cabin, checkpoints) = cabin(&lengths);
        let end = cabin.engine.state().tree.checkpoint(Offset::MAX).unwrap().upto;
        let mut proofs = Vec::new();
        for record in 1..=end.get() {
            let payload = record > 1 && record % 2 == 0;
            proofs.push(cabin.prove(ProofRequest::Inclusion { offset: Offset::new(record), payload }));
        }
        for (index, first) in checkpoints.iter().enumerate() {
            for second in &checkpoints[index..] {
                let (first, second) = (at(first.get()), Some(*second));
                proofs.push(cabin.prove(ProofRequest::Consistency { first, second }));
            }
        }
        for proof in &proofs {
            let shown = cabin.verify(proof);
            prop_assert!(shown.is_ok(), "{shown:?}: {proof}");
            prop_assert!(verify(&"A".repeat(43), proof.to_string().as_bytes()).is_err());
            for (pick, at, bit) in &changes {
                let changed = change(proof, *pick, *at, *bit);
                prop_assert!(cabin.verify(&changed).is_err(), "{proof}\n{changed}");
            }
        }
    }
}

#[test]
fn proofs_over_many_blocks_are_made_from_their_stored_roots() {
    let cabin = Cabin::open();
    let mut checkpoints = Vec::new();
    for length in [BLOCK - 3, 1, 2, BLOCK / 2, BLOCK, 2 * BLOCK + 7, 1] {
        cabin.write(length);
        checkpoints.push(cabin.checkpoint());
    }
    let end = cabin.engine.state().tree.checkpoint(Offset::MAX).unwrap().upto.get();
    for record in [1, 2, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK, 3 * BLOCK + 1, end - 1, end] {
        let (offset, payload) = (Offset::new(record), record > 1);
        let proof = cabin.prove(ProofRequest::Inclusion { offset, payload });
        assert!(cabin.verify(&proof).unwrap().contains(&format!("record {record},")), "{proof}");
    }
    for (index, first) in checkpoints.iter().enumerate() {
        for second in &checkpoints[index..] {
            let (first, second) = (at(first.get()), Some(*second));
            let proof = cabin.prove(ProofRequest::Consistency { first, second });
            cabin.verify(&proof).unwrap();
        }
    }
}

#[test]
fn an_erased_payload_changes_no_proof() {
    let (cabin, _) = cabin(&[20]);
    let offset = Offset::new(5);
    let before = cabin.prove(ProofRequest::Inclusion { offset, payload: false });
    let with = cabin.prove(ProofRequest::Inclusion { offset, payload: true });
    assert!(with["payload"].as_str().unwrap().contains("until_ms"), "{with}");
    let superseded = vec![(Offset::new(4), Offset::new(9))];
    cabin.append(vec![LogErase { superseded, ..LogErase::default() }.into()]);
    assert!(cabin.records()[4].command().unwrap().is_none(), "it is erased");
    assert_eq!(cabin.prove(ProofRequest::Inclusion { offset, payload: true }), before);
    let first = at(Offset::MAX.get());
    cabin.checkpoint();
    cabin.verify(&cabin.prove(ProofRequest::Consistency { first, second: None })).unwrap();
    // A client that kept the payload can still prove it.
    cabin.verify(&with).unwrap();
}

#[test]
fn a_proof_reveals_no_secret() {
    let (cabin, _) = cabin(&[1]);
    let identity = cabin.identity();
    let state = cabin.engine.state();
    let mut prover = Prover::new(&state.tree, &*cabin.log, &identity);
    let error = prover.inclusion(Offset::new(1), true).unwrap_err();
    assert!(error.to_string().contains("holds a secret"), "{error}");
    assert!(prover.inclusion(Offset::new(1), false).unwrap().is_some());
}

#[test]
fn a_diverged_log_is_not_the_continuation_of_a_backup() {
    let (cabin, _) = cabin(&[10, 10]);
    let records = cabin.records();
    let said = |cabin: &Cabin, upto: Offset| {
        let identity = cabin.identity();
        let covered = cabin.engine.state().tree.checkpoint(upto).unwrap();
        Prover::new(&cabin.engine.state().tree, &*cabin.log, &identity).statement(covered).unwrap()
    };
    let backup = said(&cabin, Offset::MAX);
    let proof =
        cabin.prove(ProofRequest::Consistency { first: First::Said(backup.clone()), second: None });
    cabin.verify(&proof).unwrap();

    // The same server goes on from an earlier moment, with other records.
    let state = State::default();
    let mut tip = Tip::default();
    let mut other = Vec::new();
    for record in &records[..8] {
        let _ = state.apply(record).unwrap();
        tip = Tip::after(record);
        other.push(Arc::new(record.clone()));
    }
    let clock = Clock::manual(1_780_000_000_000);
    let log: Arc<dyn Log> = Arc::new(MemoryLog::with_records(clock.clone(), other));
    assert_eq!(tip.offset, Offset::new(8));
    let options =
        Options { server_name: "proof.example".try_into().unwrap(), ..Options::small(clock) };
    let runtime = Runtime::new().unwrap();
    let engine = runtime.block_on(Engine::start(Arc::clone(&log), state, options)).unwrap();
    let other = Cabin { runtime, engine, log };
    other.write(40);
    other.checkpoint();
    let identity = other.identity();
    let state = other.engine.state();
    let mut prover = Prover::new(&state.tree, &*other.log, &identity);
    let asked = ProofRequest::Consistency { first: First::Said(backup.clone()), second: None };
    let error = prover.answer(asked).unwrap_err();
    assert!(error.to_string().contains("not the one of this checkpoint"), "{error}");
    let forged = LogCheckpoint { upto: Offset::new(3), ..backup };
    let asked = ProofRequest::Consistency { first: First::Said(forged), second: None };
    let error = prover.answer(asked).unwrap_err();
    assert!(error.to_string().contains("signature"), "{error}");
}

#[test]
fn a_checkpoint_that_contradicts_the_records_is_found() {
    let (cabin, checkpoints) = cabin(&[10, 10]);
    let identity = cabin.identity();
    let records = cabin.records();
    let place = usize::try_from(checkpoints[1].get() - 1).unwrap();
    let Some(Command::LogCheckpoint(said)) = records[place].command().unwrap() else {
        panic!("no checkpoint at {place}")
    };
    let sign = |said: LogCheckpoint, pair: &Ed25519KeyPair| {
        use base64::{Engine as _, engine::general_purpose::STANDARD_NO_PAD};
        let signature = STANDARD_NO_PAD.encode(pair.sign(said.statement().as_bytes()).as_bytes());
        LogCheckpoint { signature, ..said }
    };
    let ours = &cabin.engine.env().server.key_pair;
    let other = Ed25519KeyPair::from_der(&Ed25519KeyPair::generate(), "other".to_owned()).unwrap();
    let upto = said.upto;
    let changed = |root, chain, upto| LogCheckpoint { root, chain, upto, ..said.clone() };
    for (forged, why) in [
        (said.clone(), None),
        (sign(said.clone(), &other), Some("signature")),
        (changed([7; 32], said.chain, upto), Some("signature")),
        (sign(changed([7; 32], said.chain, upto), ours), Some("another root")),
        (sign(changed(said.root, [7; 32], upto), ours), Some("another value")),
        (sign(changed(said.root, said.chain, Offset::new(2)), ours), Some("cannot be")),
        (sign(changed(said.root, said.chain, checkpoints[1]), ours), Some("cannot be")),
        (sign(LogCheckpoint { server_name: "x".to_owned(), ..said.clone() }, ours), Some("x with")),
    ] {
        let mut witness = Witness::default();
        for record in &records[..place] {
            witness.take(record, Some(&identity)).unwrap();
        }
        let new = NewRecord::new(Stream::server(), Origin::server(), &Command::from(forged));
        let (record, _) = Tip::after(&records[place - 1]).extend(new, 0, 0).unwrap();
        let found = witness.take(&record, Some(&identity)).err().map(|fault| fault.to_string());
        match why {
            None => assert_eq!(found, None),
            Some(why) => assert!(found.as_ref().is_some_and(|f| f.contains(why)), "{found:?}"),
        }
    }
    // The leaves are the headers, and so is what a checkpoint is made of.
    let header = codec::encode_header(&records[0].header).unwrap();
    let proof = cabin.prove(ProofRequest::Inclusion { offset: Offset::new(1), payload: false });
    let hex: String = header.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(proof["header"], hex);
}
