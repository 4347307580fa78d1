use std::sync::Arc;

use proptest::prelude::*;
use ruma::{OwnedRoomId, RoomVersionId};

use super::*;
use crate::rooms::EventFacts;

const NOW_MS: u64 = 1000;

fn id(number: u64) -> OwnedEventId {
    format!("${number}").try_into().unwrap()
}

/// A room that grows at its end and in its gaps.
struct Growing {
    room: Arc<Room>,
    head: u64,
    gaps: Vec<Offset>,
}

impl Growing {
    fn new() -> Self {
        let room_id: OwnedRoomId = "!r:test".try_into().unwrap();
        let rooms = Rooms::default();
        assert!(rooms.create(Offset::new(1), room_id.clone(), RoomVersionId::V11));
        Self { room: rooms.get(&room_id).unwrap(), head: 1, gaps: Vec::new() }
    }

    fn next(&mut self) -> Offset {
        self.head += 1;
        Offset::new(self.head)
    }

    fn live(&mut self, has_gap: bool) {
        let offset = self.next();
        let missing = if has_gap { vec![id(0)] } else { Vec::new() };
        let facts = EventFacts { missing, ..EventFacts::message(id(offset.get())) };
        self.room.add_event(offset, facts);
        if has_gap {
            self.gaps.push(offset);
        }
    }

    fn fill(&mut self, gap: Offset, count: usize, closes: bool) {
        let events: Vec<Offset> = (0..count).map(|_| self.next()).collect();
        let filled = |event: &Offset| Filled {
            event: *event,
            event_id: id(event.get()),
            ts: 1,
            visibility: None,
            redacts: None,
            redacted_by: None,
        };
        let body = RoomGap {
            room_id: self.room.id.clone(),
            gap,
            from: None,
            events: events.iter().rev().map(filled).collect(),
            missing: if closes { Vec::new() } else { vec![id(0)] },
            bytes: 1,
            given_up_until_ms: None,
        };
        let offset = self.next();
        self.room.inner.write().fill(offset, body);
    }

    fn reading(&self, stops: bool) -> ReadOptions {
        ReadOptions { at: Offset::new(self.head), now_ms: NOW_MS, stops }
    }

    /// All events, oldest first.
    fn order(&self) -> Vec<Offset> {
        let (from, to) =
            (TimelinePosition::After(Offset::ZERO), TimelinePosition::After(Offset::MAX));
        let on = self.room.walk_on(from, to, self.reading(false), usize::MAX);
        let on: Vec<_> = on.events.into_iter().map(|(event, _)| event).collect();
        let back = self.room.walk_back(to, from, self.reading(false), usize::MAX);
        let back: Vec<_> = back.events.into_iter().map(|(event, _)| event).rev().collect();
        assert_eq!(on, back, "it is another order in the other direction");
        on
    }
}

/// A reader who reads page by page.
struct Reader {
    backward: bool,
    place: TimelinePosition,
    read: Vec<Offset>,
}

impl Reader {
    fn page(&mut self, of: &Growing, limit: usize) -> usize {
        let reading = of.reading(true);
        let walk = if self.backward {
            of.room.walk_back(self.place, TimelinePosition::After(Offset::ZERO), reading, limit)
        } else {
            of.room.walk_on(self.place, TimelinePosition::After(Offset::MAX), reading, limit)
        };
        for (event, place) in &walk.events {
            assert_eq!(self.backward, *place < self.place, "a page moves one way");
            self.place = *place;
            self.read.push(*event);
        }
        walk.events.len()
    }
}

#[derive(Clone, Debug)]
enum Step {
    Live { has_gap: bool },
    Fill { gap: usize, count: usize, closes: bool },
    Page { reader: usize, limit: usize },
    Begin,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => prop::bool::weighted(0.3).prop_map(|has_gap| Step::Live { has_gap }),
        3 => (any::<usize>(), 0..4_usize, prop::bool::weighted(0.2))
            .prop_map(|(gap, count, closes)| Step::Fill { gap, count, closes }),
        4 => (any::<usize>(), 1..4_usize)
            .prop_map(|(reader, limit)| Step::Page { reader, limit }),
        1 => Just(Step::Begin),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]
    #[test]
    fn a_reader_gets_each_event_once_whatever_comes_meanwhile(
        steps in prop::collection::vec(step(), 1..80),
    ) {
        let mut room = Growing::new();
        let forward = |from| Reader { backward: false, place: from, read: Vec::new() };
        let mut readers = vec![forward(TimelinePosition::After(Offset::ZERO))];
        let mut orders = Vec::new();
        let mut begun = Vec::new();
        for step in steps {
            match step {
                Step::Live { has_gap } => room.live(has_gap),
                Step::Fill { gap, count, closes } => {
                    let open = room.room.open_gaps(NOW_MS);
                    if !open.is_empty() {
                        room.fill(open[gap % open.len()], count, closes);
                    }
                }
                Step::Page { reader, limit } => {
                    let reader = reader % readers.len();
                    readers[reader].page(&room, limit);
                }
                Step::Begin => {
                    let place = TimelinePosition::After(Offset::new(room.head));
                    begun.push((readers.len(), room.head));
                    readers.push(Reader { backward: true, place, read: Vec::new() });
                }
            }
            orders.push(room.order());
        }
        while let Some(gap) = room.room.open_gaps(NOW_MS).first().copied() {
            room.fill(gap, 2, true);
        }
        let order = room.order();
        for earlier in orders {
            // No event moves or disappears.
            let mut all = order.iter();
            prop_assert!(earlier.iter().all(|event| all.any(|other| other == event)));
        }
        for reader in &mut readers {
            while reader.page(&room, 2) > 0 {}
        }
        prop_assert_eq!(&readers[0].read, &order);
        for (reader, head) in begun {
            // Events found for the gaps before it, at any time.
            let end = room.room.last_event(Offset::new(head));
            let end = end.and_then(|end| order.iter().position(|event| *event == end));
            let mut expected = end.map_or_else(Vec::new, |end| order[..=end].to_vec());
            expected.reverse();
            prop_assert_eq!(&readers[reader].read, &expected);
        }
        // From a snapshot.
        let bytes = postcard::to_allocvec(&*room.room).unwrap();
        let kept: Room = postcard::from_bytes(&bytes).unwrap();
        let kept = Growing { room: Arc::new(kept), ..room };
        prop_assert_eq!(kept.order(), order);
    }
}
