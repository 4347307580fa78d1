//! What is to happen next: numbers that follow from a seed, and events that are to be made.

use serde_json::{Value, json};

/// Numbers that follow from a seed (SplitMix64).
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut number = self.0;
        number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        number ^ (number >> 31)
    }

    /// A number below another one, which is not 0.
    pub(super) fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % end as u64).unwrap()
    }

    pub(super) fn one_in(&mut self, number: usize) -> bool {
        self.below(number) == 0
    }

    pub(super) fn of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }
}

/// An event that is to be made.
pub(super) struct Wanted {
    pub(super) sender: String,
    pub(super) event_type: &'static str,
    pub(super) state_key: Option<String>,
    pub(super) content: Value,
    pub(super) redacts: Option<String>,
}

pub(super) fn create(sender: &str, version: &str) -> Wanted {
    let content = json!({ "room_version": version, "creator": sender });
    Wanted {
        sender: sender.to_owned(),
        event_type: "m.room.create",
        state_key: Some(String::new()),
        content,
        redacts: None,
    }
}

pub(super) fn member(sender: &str, user_id: &str, membership: &str) -> Wanted {
    Wanted {
        sender: sender.to_owned(),
        event_type: "m.room.member",
        state_key: Some(user_id.to_owned()),
        content: json!({ "membership": membership }),
        redacts: None,
    }
}

pub(super) fn state(
    sender: &str,
    event_type: &'static str,
    state_key: &str,
    name: &str,
    value: &str,
) -> Wanted {
    Wanted {
        sender: sender.to_owned(),
        event_type,
        state_key: Some(state_key.to_owned()),
        content: json!({ name: value }),
        redacts: None,
    }
}
