//! A client's request: lists, subscriptions, extensions (MSC4186, "Request Body").
//!
//! The format is that of the unstable path, as clients use it today.

use std::{
    collections::{BTreeMap, BTreeSet, hash_map::DefaultHasher},
    hash::{Hash, Hasher},
    sync::Arc,
};

use ruma::{
    OwnedRoomId, RoomId, UserId,
    api::client::sync::sync_events::v5::request::{self as extensions, ExtensionRoomConfig},
    events::StateEventType,
};
use serde::{Deserialize, Serialize};

use logcabin_base::limits;
use logcabin_record::Offset;
use logcabin_state::Room;

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ListConfig {
    /// The ranges of the list, both ends inclusive.
    pub ranges: Vec<(u64, u64)>,
    /// What is requested of its rooms.
    #[serde(flatten)]
    pub room: RoomConfig,
    /// The rooms in it.
    #[serde(default)]
    pub filters: Option<Filters>,
}

/// What is requested of a room.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct RoomConfig {
    /// Pairs of event type and state key.
    #[serde(default)]
    pub required_state: Vec<(String, String)>,
    /// The most events of its timeline.
    pub timeline_limit: u64,
}

/// A filter of rooms: all of its conditions must hold. An absent condition always holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Filters {
    /// Direct chats, by the user's `m.direct`.
    #[serde(default)]
    pub is_dm: Option<bool>,
    /// Children of these spaces, if the user is joined to the space.
    #[serde(default)]
    pub spaces: Option<Vec<OwnedRoomId>>,
    /// Rooms with encryption.
    #[serde(default)]
    pub is_encrypted: Option<bool>,
    /// Rooms that the user is invited to.
    #[serde(default)]
    pub is_invite: Option<bool>,
    /// Rooms of these types; `null` stands for none.
    #[serde(default)]
    pub room_types: Option<Vec<Option<String>>>,
    /// No rooms of these types.
    #[serde(default)]
    pub not_room_types: Option<Vec<Option<String>>>,
    /// Rooms with one of these tags.
    #[serde(default)]
    pub tags: Option<Vec<String>>,
    /// No rooms with any of these tags.
    #[serde(default)]
    pub not_tags: Option<Vec<String>>,
}

/// Why a request is refused: it exceeds a limit or is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadRules {
    #[error("There are at most {} lists in a request.", limits::SLIDING_LISTS)]
    Lists,
    #[error("There are at most {} room subscriptions in a request.", limits::SLIDING_SUBSCRIPTIONS)]
    Subscriptions,
    #[error("`required_state` has at most {} entries.", limits::SLIDING_REQUIRED_STATE)]
    RequiredState,
    #[error("A list has at most {} ranges.", limits::SLIDING_RANGES)]
    Ranges,
    #[error("The range [{0}, {1}] ends before it begins.")]
    Range(u64, u64),
}

/// A parsed request.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    /// The lists, in the order of their names.
    pub(super) lists: Vec<List>,
    pub(super) subscriptions: BTreeMap<OwnedRoomId, Rule>,
    pub(super) account_data: Option<Scope>,
    pub(super) receipts: Option<Scope>,
    pub(super) typing: Option<Scope>,
    pub(super) to_device: Option<extensions::ToDevice>,
    pub(super) e2ee: bool,
    /// Equal for two requests for the same rooms and the same parts of them.
    pub(super) fingerprint: u64,
    /// The length of the request, in bytes.
    pub(super) bytes: usize,
}

#[derive(Clone, Debug)]
pub(super) struct List {
    pub(super) name: String,
    /// Half-open ranges of indexes.
    pub(super) ranges: Vec<(usize, usize)>,
    pub(super) rule: Rule,
    pub(super) filters: Filters,
}

/// What is requested of a room, within the server's limits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Rule {
    pub(super) state: Arc<RequiredState>,
    pub(super) timeline_limit: usize,
}

/// The lists, and the subscribed rooms, that an extension applies to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Scope {
    lists: Lists,
    /// `None` stands for all.
    rooms: Option<BTreeSet<OwnedRoomId>>,
}

/// A set of lists, by their indexes in [`Rules::lists`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Lists(u128);

// A set has one bit for each list.
const _: () = assert!(limits::SLIDING_LISTS <= 128);

impl Lists {
    pub(super) const ALL: Self = Self(u128::MAX);

    pub(super) const fn insert(&mut self, list: usize) {
        self.0 |= 1 << list;
    }

    pub(super) const fn contains(self, list: usize) -> bool {
        self.0 & (1 << list) != 0
    }

    pub(super) const fn is_empty(self) -> bool {
        self.0 == 0
    }

    const fn meets(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

/// Why a room belongs in the response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Matched {
    pub(super) lists: Lists,
    pub(super) subscribed: bool,
}

impl Matched {
    pub(super) const fn is_any(self) -> bool {
        self.subscribed || !self.lists.is_empty()
    }
}

impl Scope {
    pub(super) fn includes(&self, room_id: &RoomId, matched: Matched) -> bool {
        let by_id = || self.rooms.as_ref().is_none_or(|rooms| rooms.contains(room_id));
        matched.lists.meets(self.lists) || (matched.subscribed && by_id())
    }
}

impl Rules {
    /// The rules of a request of `user_id` that was `bytes` long. A timeline has at most
    /// `max_timeline_limit` events.
    pub fn new(
        user_id: &UserId,
        lists: BTreeMap<String, ListConfig>,
        subscriptions: BTreeMap<OwnedRoomId, RoomConfig>,
        extensions: extensions::Extensions,
        max_timeline_limit: usize,
        bytes: usize,
    ) -> Result<Self, BadRules> {
        if lists.len() > limits::SLIDING_LISTS {
            return Err(BadRules::Lists);
        }
        if subscriptions.len() > limits::SLIDING_SUBSCRIPTIONS {
            return Err(BadRules::Subscriptions);
        }
        let names: Vec<String> = lists.keys().cloned().collect();
        let scope = |enabled, lists, rooms| {
            (enabled == Some(true)).then(|| Scope::new(&names, lists, rooms))
        };
        let extensions::Extensions { to_device, e2ee, account_data, receipts, typing, .. } =
            extensions;
        let mut rules = Self {
            account_data: scope(account_data.enabled, account_data.lists, account_data.rooms),
            receipts: scope(receipts.enabled, receipts.lists, receipts.rooms),
            typing: scope(typing.enabled, typing.lists, typing.rooms),
            to_device: (to_device.enabled == Some(true)).then_some(to_device),
            e2ee: e2ee.enabled == Some(true),
            bytes,
            ..Self::default()
        };
        for (name, list) in lists {
            rules.lists.push(List {
                name,
                ranges: ranges(list.ranges)?,
                rule: Rule::new(user_id, list.room, max_timeline_limit)?,
                filters: list.filters.unwrap_or_default(),
            });
        }
        for (room_id, room) in subscriptions {
            let rule = Rule::new(user_id, room, max_timeline_limit)?;
            rules.subscriptions.insert(room_id, rule);
        }
        let mut hasher = DefaultHasher::new();
        for list in &rules.lists {
            (&list.name, &list.ranges, &list.rule, &list.filters).hash(&mut hasher);
        }
        (&rules.subscriptions, &rules.account_data, &rules.receipts, &rules.typing)
            .hash(&mut hasher);
        rules.fingerprint = hasher.finish();
        Ok(rules)
    }

    /// What is requested of a room that matched for these reasons: the union of their requests.
    pub(super) fn combined(&self, room_id: &RoomId, matched: Matched) -> Rule {
        let of_lists = self.lists.iter().enumerate();
        let of_lists = of_lists.filter(|(list, _)| matched.lists.contains(*list));
        let of_lists = of_lists.map(|(_, list)| &list.rule);
        let own = self.subscriptions.get(room_id).filter(|_| matched.subscribed);
        of_lists.chain(own).cloned().reduce(|a, b| a.and(&b)).unwrap_or_default()
    }
}

impl Rule {
    fn new(
        user_id: &UserId,
        config: RoomConfig,
        max_timeline_limit: usize,
    ) -> Result<Self, BadRules> {
        if config.required_state.len() > limits::SLIDING_REQUIRED_STATE {
            return Err(BadRules::RequiredState);
        }
        let limit = usize::try_from(config.timeline_limit).unwrap_or(usize::MAX);
        Ok(Self {
            state: Arc::new(RequiredState::new(user_id, config.required_state)),
            timeline_limit: limit.min(max_timeline_limit),
        })
    }

    fn and(self, other: &Self) -> Self {
        Self {
            timeline_limit: self.timeline_limit.max(other.timeline_limit),
            state: if self.state.covers(&other.state) {
                self.state
            } else {
                Arc::new(self.state.union(&other.state))
            },
        }
    }
}

impl Scope {
    fn new(
        names: &[String],
        lists: Option<Vec<String>>,
        rooms: Option<Vec<ExtensionRoomConfig>>,
    ) -> Self {
        let lists = match lists {
            Some(wanted) if !wanted.iter().any(|name| name == "*") => {
                let mut lists = Lists::default();
                for (list, name) in names.iter().enumerate() {
                    if wanted.contains(name) {
                        lists.insert(list);
                    }
                }
                lists
            }
            _ => Lists::ALL,
        };
        let rooms = rooms.and_then(|rooms| {
            let id = |room| match room {
                ExtensionRoomConfig::Room(room_id) => Some(room_id),
                _ => None,
            };
            // A wildcard makes the set include all: `None`.
            rooms.into_iter().map(id).collect()
        });
        Self { lists, rooms }
    }
}

fn ranges(ranges: Vec<(u64, u64)>) -> Result<Vec<(usize, usize)>, BadRules> {
    if ranges.len() > limits::SLIDING_RANGES {
        return Err(BadRules::Ranges);
    }
    let place = |place: u64| usize::try_from(place).unwrap_or(usize::MAX);
    let half_open = |(first, last)| {
        if first > last {
            return Err(BadRules::Range(first, last));
        }
        Ok((place(first), place(last).saturating_add(1)))
    };
    ranges.into_iter().map(half_open).collect()
}

/// The requested state: a set of keys, partly unbounded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct RequiredState {
    whole: WildcardState,
    /// Pairs of type and key, in which `None` is a wildcard; never both.
    pairs: BTreeSet<(Option<StateEventType>, Option<Box<str>>)>,
    /// Whether the members of a timeline are requested.
    pub(super) lazy_members: bool,
}

/// How much of the state is requested regardless of its key.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
enum WildcardState {
    #[default]
    Nothing,
    /// The meaning of `*`, `*` together with lazily loaded members.
    ButMembers,
    Everything,
}

impl RequiredState {
    pub(super) fn new(user_id: &UserId, wanted: Vec<(String, String)>) -> Self {
        let mut state = Self::default();
        let mut everything = false;
        for (event_type, state_key) in wanted {
            let member = event_type == "m.room.member" || event_type == "*";
            let event_type = (event_type != "*").then(|| StateEventType::from(event_type));
            let state_key = match state_key.as_str() {
                "$LAZY" if member => {
                    state.lazy_members = true;
                    continue;
                }
                "$ME" => Some(user_id.as_str().into()),
                "*" => None,
                _ => Some(state_key.into()),
            };
            if event_type.is_none() && state_key.is_none() {
                everything = true;
            } else {
                state.pairs.insert((event_type, state_key));
            }
        }
        state.whole = match (everything, state.lazy_members) {
            (false, _) => WildcardState::Nothing,
            (true, true) => WildcardState::ButMembers,
            (true, false) => WildcardState::Everything,
        };
        state
    }

    /// Whether the state event of this key is requested.
    pub(super) fn wants(&self, event_type: &StateEventType, state_key: &str) -> bool {
        let whole = match self.whole {
            WildcardState::Nothing => false,
            WildcardState::ButMembers => *event_type != StateEventType::RoomMember,
            WildcardState::Everything => true,
        };
        whole
            || self.pairs.iter().any(|(of_type, with_key)| {
                of_type.as_ref().is_none_or(|of_type| of_type == event_type)
                    && with_key.as_deref().is_none_or(|with_key| with_key == state_key)
            })
    }

    /// The offsets of the requested state of the room as of `at`, in order.
    pub(super) fn of(&self, room: &Room, at: Offset) -> Vec<Offset> {
        let mut state = match self.whole {
            WildcardState::Everything => return room.full_state(at),
            WildcardState::ButMembers => room.state_without_members(at),
            WildcardState::Nothing => Vec::new(),
        };
        for (event_type, state_key) in &self.pairs {
            state.extend(room.state_like(event_type.as_ref(), state_key.as_deref(), at));
        }
        state.sort_unstable();
        state.dedup();
        state
    }

    /// Whether this includes everything in `other`, by a conservative check.
    pub(super) fn covers(&self, other: &Self) -> bool {
        self.whole >= other.whole
            && self.lazy_members >= other.lazy_members
            && (self.whole == WildcardState::Everything || other.pairs.is_subset(&self.pairs))
    }

    fn union(&self, other: &Self) -> Self {
        Self {
            whole: self.whole.max(other.whole),
            pairs: &self.pairs | &other.pairs,
            lazy_members: self.lazy_members || other.lazy_members,
        }
    }

    /// Its approximate size in memory, in bytes.
    pub(super) fn weight(&self) -> u64 {
        let text = |(event_type, key): &(Option<StateEventType>, Option<Box<str>>)| {
            let event_type = event_type.as_ref().map_or(0, |of| of.to_string().len());
            event_type + key.as_ref().map_or(0, |key| key.len())
        };
        let texts: usize = self.pairs.iter().map(text).sum();
        (128 + self.pairs.len() * 96 + texts) as u64
    }
}

#[cfg(test)]
mod tests {
    use ruma::user_id;

    use super::*;

    fn state(pairs: &[(&str, &str)]) -> RequiredState {
        let pairs = pairs.iter().map(|(t, k)| ((*t).to_owned(), (*k).to_owned())).collect();
        RequiredState::new(user_id!("@me:test"), pairs)
    }

    fn wants(state: &RequiredState, event_type: &str, key: &str) -> bool {
        state.wants(&event_type.into(), key)
    }

    #[test]
    fn stars_and_dollars_have_their_special_meaning() {
        let everything = state(&[("*", "*")]);
        assert!(wants(&everything, "m.room.member", "@a:test") && wants(&everything, "x", "y"));
        let lazy = state(&[("*", "*"), ("m.room.member", "$LAZY")]);
        assert!(lazy.lazy_members && wants(&lazy, "m.room.name", ""));
        assert!(!wants(&lazy, "m.room.member", "@a:test"));
        let own = state(&[("*", "*"), ("m.room.member", "$LAZY"), ("m.room.member", "$ME")]);
        assert!(wants(&own, "m.room.member", "@me:test"));
        assert!(!wants(&own, "m.room.member", "@you:test"));
        let of_type = state(&[("m.space.child", "*")]);
        assert!(wants(&of_type, "m.space.child", "!a:test") && !wants(&of_type, "m.room.name", ""));
        let with_key = state(&[("*", "k")]);
        assert!(wants(&with_key, "x", "k") && !wants(&with_key, "x", "other"));
        assert!(!wants(&state(&[]), "m.room.name", ""));
        assert!(!state(&[("m.room.name", "$LAZY")]).lazy_members);
    }

    #[test]
    fn a_union_requests_what_either_requests() {
        let (a, b) = (state(&[("*", "*"), ("m.room.member", "$LAZY")]), state(&[("*", "*")]));
        assert!(!a.covers(&b) && wants(&a.union(&b), "m.room.member", "@a:test"));
        let (a, b) = (state(&[("x", "")]), state(&[("x", ""), ("y", "*")]));
        assert!(b.covers(&a) && !a.covers(&b));
        assert_eq!(a.union(&b), b);
    }

    #[test]
    fn ranges_include_both_ends_and_end_after_they_begin() {
        assert_eq!(ranges(vec![(0, 0), (3, 5)]), Ok(vec![(0, 1), (3, 6)]));
        assert_eq!(ranges(vec![(0, u64::MAX)]), Ok(vec![(0, usize::MAX)]));
        assert_eq!(ranges(vec![(2, 1)]), Err(BadRules::Range(2, 1)));
    }
}
