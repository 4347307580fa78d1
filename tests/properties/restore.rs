//! A restore to any moment of a random history: the log until then, and the later records that must
//! not be rewound.

use logcabin::{
    history::moment::Moment,
    log::{
        archive::{ArchiveOptions, Archiver},
        store::{SledLog, SledOptions},
        verify,
    },
    record::{Epoch, Payload},
    restore::{Request, RestoreSource, restore},
    state::Account,
};

use super::*;

/// The password, and the tokens of each device, by its name.
fn credentials(account: &Account) -> (Option<String>, BTreeMap<String, String>) {
    let password = account.password.latest().cloned().flatten();
    let devices = account.active_devices().map(|(id, device)| {
        let tokens = device.tokens.as_ref().map(|issued| issued.tokens.access);
        (id.to_string(), format!("{tokens:?}"))
    });
    (password.map(|password| password.expose().to_owned()), devices.collect())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, ..ProptestConfig::default() })]

    #[test]
    fn a_restored_log_equals_the_log_until_then_and_keeps_what_must_not_be_rewound(
        ops in prop_oneof![history(), talk()],
        sweep in any::<prop::sample::Index>(),
        cut in any::<prop::sample::Index>(),
    ) {
        runtime().block_on(async {
            let mut world = World::open(Vec::new()).await;
            let policy = SweepPolicy::at_once();
            let sweep = sweep.index(ops.len() + 1);
            for number in 0..=ops.len() {
                if number == sweep {
                    erasure::sweep(&world.engine, &policy, Offset::MAX).await.unwrap();
                }
                if let Some(op) = ops.get(number) {
                    world.run(op).await;
                }
            }
            let place = tempfile::tempdir().unwrap();
            let archive = place.path().join("archive");
            Archiver::start(ArchiveOptions::new(&archive), Arc::clone(&world.log) as Arc<dyn Log>).unwrap().stop();
            let before = world.records();
            let to = before[cut.index(before.len())].offset();
            // The rest of a batch that is cut goes with it; record 1 is a batch.
            let whole = before.iter().filter(|record| record.offset() <= to && record.header.batch_remaining == 0);
            let last = whole.map(|record| record.offset()).max().unwrap();
            let kept = &before[..last.get() as usize];
            let as_of = replayed(kept);

            let data_dir = place.path().join("data");
            let request = Request {
                from: RestoreSource::Path(archive),
                to: Some(Moment::At(to)),
                data_dir: data_dir.clone(),
                archive_dir: None,
                drop_keys: false,
                dry_run: true,
            };
            let planned = Box::pin(restore(&request)).await.unwrap();
            assert!(!data_dir.exists(), "a dry run writes nothing");
            let restored = Box::pin(restore(&Request { dry_run: false, ..request })).await.unwrap();
            assert_eq!(restored.last, last);
            assert_eq!(restored.digest, as_of.digest().to_hex().to_string());
            assert_eq!((&planned.lost, &planned.carried), (&restored.lost, &restored.carried));

            let log = SledLog::open(SledOptions::new(&data_dir)).unwrap();
            verify(&log, |_| {}).unwrap();
            let now: Vec<_> = log.read(Offset::new(1), usize::MAX).unwrap().into_iter().map(Arc::new).collect();
            log.close();
            for (ours, theirs) in now.iter().zip(kept) {
                assert_eq!((&ours.header, ours.chain), (&theirs.header, theirs.chain));
            }
            let state = replayed(&now);
            assert_eq!(state.applied(), restored.end);
            assert_eq!((state.epoch(), state.epoch_end(Epoch(0))), (Epoch(1), Some(last)));
            let end = world.engine.state();
            assert_eq!(state.accounts.user_ids(), end.accounts.user_ids());
            for user_id in end.accounts.user_ids() {
                let [ours, theirs] = [&state, &end].map(|of| credentials(&of.accounts.get(&user_id).unwrap().read()));
                assert_eq!(ours, theirs, "{user_id}");
                let devices = |of: &State| of.keys.get(&user_id).map(|keys| {
                    keys.read().devices.iter().map(|(id, keys)| (id.clone(), keys.identity.is_some())).collect::<Vec<_>>()
                });
                assert_eq!(devices(&state).unwrap_or_default(), devices(&end).unwrap_or_default(), "{user_id}");
            }
            // Rooms are as they were, but for what was redacted since.
            let ids = |of: &State| of.rooms.all().iter().map(|room| room.id.clone()).collect::<std::collections::BTreeSet<_>>();
            assert_eq!(ids(&state), ids(&as_of));
            for room in state.rooms.all() {
                let then = end.rooms.get(&room.id).unwrap();
                let mut events = 0;
                for offset in room.events_forward(Offset::ZERO, last, usize::MAX) {
                    events += 1;
                    if then.redaction_of(offset, Offset::MAX).is_none() {
                        continue;
                    }
                    let gone = matches!(now[offset.get() as usize - 1].payload, Payload::Reduced(_));
                    assert!(gone || room.redaction_of(offset, Offset::MAX).is_some(), "record {offset} is back");
                }
                let was = as_of.rooms.get(&room.id).unwrap();
                assert_eq!(events, was.events_forward(Offset::ZERO, last, usize::MAX).len());
            }
        });
    }
}
