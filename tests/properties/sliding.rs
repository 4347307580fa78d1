//! A client that follows sliding sync misses nothing in its windows and gets nothing twice,
//! whatever it requests and however many responses are lost.

use std::collections::{BTreeMap, BTreeSet};

use logcabin::{
    events::Viewer,
    notifications::Unread,
    record::Epoch,
    state::Room,
    sync::{
        Effort,
        sliding::{self, Connections, ListConfig, RoomConfig, Rules, UnknownPos},
    },
    view::{View, token::Pos},
};
use ruma::{
    RoomId, UserId, api::client::sync::sync_events::v5::request::Extensions, events::StateEventType,
};
use serde_json::{Value, json};

use super::*;

const ROOMS: u8 = 6;
const SESSION: Offset = Offset::new(1);

#[derive(Clone, Debug)]
enum Step {
    Do(Op),
    /// Names some of the rooms as direct chats, by the bits.
    Direct(u8),
    /// Tags a room, or takes the tag away.
    Tag(u8, bool),
    /// Asks; `lost` responses do not arrive.
    Ask {
        ask: Ask,
        lost: bool,
    },
    /// As before.
    AskAgain {
        lost: bool,
    },
    /// The server forgets its connections.
    Restart,
}

#[derive(Clone, Debug)]
struct Ask {
    lists: Vec<AskList>,
    subscriptions: Vec<(u8, u64, State)>,
    account_data: bool,
    receipts: bool,
    typing: bool,
}

#[derive(Clone, Debug)]
struct AskList {
    ranges: Vec<(u64, u64)>,
    limit: u64,
    state: State,
    filter: Filter,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Some,
    Everything,
    EverythingLazily,
    SomeLazily,
}

#[derive(Clone, Copy, Debug)]
enum Filter {
    None,
    Invite(bool),
    Direct(bool),
    Tagged(bool),
}

impl State {
    fn pairs(self) -> Vec<(String, String)> {
        let pairs: &[(&str, &str)] = match self {
            Self::Some => &[("m.room.topic", ""), ("m.room.member", "$ME")],
            Self::Everything => &[("*", "*")],
            Self::EverythingLazily => &[("*", "*"), ("m.room.member", "$LAZY")],
            Self::SomeLazily => &[("org.test.state", "*"), ("m.room.member", "$LAZY")],
        };
        pairs.iter().map(|(of_type, key)| ((*of_type).to_owned(), (*key).to_owned())).collect()
    }

    fn wants(self, event_type: &str, key: &str) -> bool {
        match self {
            Self::Some => {
                event_type == "m.room.topic" && key.is_empty()
                    || event_type == "m.room.member" && key == me().as_str()
            }
            Self::Everything => true,
            Self::EverythingLazily => event_type != "m.room.member",
            Self::SomeLazily => event_type == "org.test.state",
        }
    }

    fn is_lazy(self) -> bool {
        matches!(self, Self::EverythingLazily | Self::SomeLazily)
    }
}

impl Ask {
    fn states(&self) -> impl Iterator<Item = State> {
        let of_lists = self.lists.iter().map(|list| list.state);
        of_lists.chain(self.subscriptions.iter().map(|(_, _, state)| *state))
    }
}

impl Filter {
    fn json(self) -> Value {
        match self {
            Self::None => json!({}),
            Self::Invite(wanted) => json!({ "is_invite": wanted }),
            Self::Direct(wanted) => json!({ "is_dm": wanted }),
            Self::Tagged(true) => json!({ "tags": ["t"] }),
            Self::Tagged(false) => json!({ "not_tags": ["t"] }),
        }
    }
}

fn me() -> OwnedUserId {
    user_id(0)
}

fn step() -> impl Strategy<Value = Step> {
    let user = || 0..USERS;
    let room = || 0..ROOMS;
    prop_oneof![
        6 => (user(), user(), room(), 0..8_u8).prop_map(|(u, t, r, c)| Step::Do(Op::Member(u, t, r, c))),
        3 => (room(), 0..8_u8).prop_map(|(r, c)| Step::Do(Op::Member(0, 0, r, c))),
        3 => (1..USERS, room(), 3..7_u8).prop_map(|(u, r, c)| Step::Do(Op::Member(u, 0, r, c))),
        1 => room().prop_map(|r| Step::Do(Op::Forget(0, r))),
        10 => (user(), room(), 0..6_u8).prop_map(|(u, r, t)| Step::Do(Op::Message(u, r, t))),
        4 => (user(), room(), prop_oneof![Just(0_u8), Just(2)], 0..2_u8, any::<u8>())
            .prop_map(|(u, r, t, k, v)| Step::Do(Op::State(u, r, t, k, v))),
        1 => (user(), room(), any::<u8>()).prop_map(|(u, r, n)| Step::Do(Op::Redact(u, r, n))),
        2 => (user(), room(), any::<u8>()).prop_map(|(u, r, n)| Step::Do(Op::Receipt(u, r, n))),
        2 => (user(), room(), 0..3_u8).prop_map(|(u, r, t)| Step::Do(Op::Typing(u, r, t))),
        1 => (any::<Option<u8>>(), 0..2_u8, any::<u8>())
            .prop_map(|(r, t, v)| Step::Do(Op::AccountData(0, r, t, v))),
        1 => (user(), 0..3_u8, any::<u8>()).prop_map(|(u, p, v)| Step::Do(Op::CreateRoom(u, p, v))),
        1 => any::<u8>().prop_map(Step::Direct),
        1 => (room(), any::<bool>()).prop_map(|(r, on)| Step::Tag(r, on)),
        4 => (ask(), prop::bool::weighted(0.25)).prop_map(|(ask, lost)| Step::Ask { ask, lost }),
        12 => prop::bool::weighted(0.25).prop_map(|lost| Step::AskAgain { lost }),
        1 => Just(Step::Restart),
    ]
}

fn ask() -> impl Strategy<Value = Ask> {
    let state = || {
        prop_oneof![
            Just(State::Some),
            Just(State::Everything),
            Just(State::EverythingLazily),
            Just(State::SomeLazily),
        ]
    };
    let filter = prop_oneof![
        3 => Just(Filter::None),
        1 => any::<bool>().prop_map(Filter::Invite),
        1 => any::<bool>().prop_map(Filter::Direct),
        1 => any::<bool>().prop_map(Filter::Tagged),
    ];
    let range = (0..4_u64, 0..5_u64).prop_map(|(first, more)| (first, first + more));
    let ranges = prop::collection::vec(range, 0..3);
    let list = (ranges, 0..5_u64, state(), filter)
        .prop_map(|(ranges, limit, state, filter)| AskList { ranges, limit, state, filter });
    let lists = prop::collection::vec(list, 0..3);
    let subscriptions = prop::collection::vec((0..ROOMS, 0..8_u64, state()), 0..2);
    (lists, subscriptions, any::<bool>(), any::<bool>(), any::<bool>()).prop_map(
        |(lists, subscriptions, account_data, receipts, typing)| Ask {
            lists,
            subscriptions,
            account_data,
            receipts,
            typing,
        },
    )
}

/// What the client has.
#[derive(Debug, Default)]
struct Client {
    pos: Option<Pos>,
    rooms: BTreeMap<OwnedRoomId, ClientRoom>,
    account_data: BTreeMap<String, Value>,
}

#[derive(Debug, Default)]
struct ClientRoom {
    is_joined: bool,
    invite: Vec<Value>,
    /// Type and key → event id.
    state: BTreeMap<(String, String), String>,
    timeline: Vec<String>,
    name: Option<String>,
    counts: (u64, u64),
    bump_stamp: u64,
    is_dm: bool,
    account_data: BTreeMap<String, Value>,
    receipts: BTreeMap<String, String>,
    typing: BTreeSet<String>,
}

fn strings<'a>(list: &'a Value, key: &'a str) -> impl Iterator<Item = String> + 'a {
    let list = list.as_array().into_iter().flatten();
    list.map(move |event| event[key].as_str().unwrap().to_owned())
}

impl Client {
    fn take(&mut self, response: &Value, ask: &Ask) {
        self.pos = Some(response["pos"].as_str().unwrap().parse().unwrap());
        for (room_id, room) in response["rooms"].as_object().unwrap() {
            let room_id = OwnedRoomId::try_from(room_id.as_str()).unwrap();
            self.rooms.entry(room_id).or_default().take(room, ask);
        }
        let extensions = &response["extensions"];
        for event in extensions["account_data"]["global"].as_array().into_iter().flatten() {
            let event_type = event["type"].as_str().unwrap().to_owned();
            self.account_data.insert(event_type, event["content"].clone());
        }
        let of_rooms = |value: &Value| -> Vec<(OwnedRoomId, Value)> {
            let rooms = value["rooms"].as_object().into_iter().flatten();
            rooms.map(|(id, it)| (id.as_str().try_into().unwrap(), it.clone())).collect()
        };
        for (room_id, events) in of_rooms(&extensions["account_data"]) {
            let room = self.rooms.get_mut(&room_id).unwrap();
            for event in events.as_array().unwrap() {
                let event_type = event["type"].as_str().unwrap().to_owned();
                room.account_data.insert(event_type, event["content"].clone());
            }
        }
        for (room_id, event) in of_rooms(&extensions["receipts"]) {
            let room = self.rooms.get_mut(&room_id).unwrap();
            for (event_id, receipts) in event["content"].as_object().unwrap() {
                for (user, receipt) in receipts["m.read"].as_object().into_iter().flatten() {
                    // A threaded receipt gives way to an unthreaded one for the same event.
                    if receipt.get("thread_id").is_none() {
                        room.receipts.insert(user.clone(), event_id.clone());
                    }
                }
            }
        }
        for (room_id, event) in of_rooms(&extensions["typing"]) {
            let users = event["content"]["user_ids"].as_array().unwrap().iter();
            let users = users.map(|user| user.as_str().unwrap().to_owned()).collect();
            self.rooms.get_mut(&room_id).unwrap().typing = users;
        }
    }
}

impl ClientRoom {
    fn take(&mut self, room: &Value, ask: &Ask) {
        if room["initial"] == true {
            *self = Self::default();
        }
        let (limited, expanded) =
            (room["limited"] == true, room["unstable_expanded_timeline"] == true);
        if limited || expanded {
            self.timeline.clear();
        }
        if limited {
            // Members that were loaded lazily may have changed in the gap.
            self.state.retain(|(event_type, key), _| {
                event_type != "m.room.member"
                    || ask.states().any(|state| state.wants(event_type, key))
            });
        }
        for event_id in strings(&room["timeline"], "event_id") {
            assert!(!self.timeline.contains(&event_id), "{event_id} came twice: {room}");
            self.timeline.push(event_id);
        }
        let mut keys = BTreeSet::new();
        for event in room["required_state"].as_array().into_iter().flatten() {
            let text = |key: &str| event[key].as_str().unwrap().to_owned();
            let key = (text("type"), text("state_key"));
            assert!(keys.insert(key.clone()), "{key:?} came twice: {room}");
            self.state.insert(key, text("event_id"));
        }
        self.invite = room["invite_state"].as_array().cloned().unwrap_or_default();
        let own =
            room["required_state"].as_array().into_iter().flatten().rfind(|event| {
                event["type"] == "m.room.member" && event["state_key"] == me().as_str()
            });
        // As matrix-rust-sdk has it: joined, unless something says otherwise.
        self.is_joined = self.invite.is_empty()
            && own.is_none_or(|event| event["content"]["membership"] == "join");
        if !self.is_joined {
            self.typing.clear();
            self.receipts.clear();
        }
        if let Some(name) = room.get("name") {
            self.name = name.as_str().map(ToOwned::to_owned);
        }
        let number = |key: &str, had: u64| room.get(key).map_or(had, |it| it.as_u64().unwrap());
        self.counts =
            (number("joined_count", self.counts.0), number("invited_count", self.counts.1));
        self.bump_stamp = number("bump_stamp", self.bump_stamp);
        self.is_dm = room.get("is_dm").map_or(self.is_dm, |is_dm| is_dm.as_bool().unwrap());
    }
}

/// The truth, from the log and the state as of its end.
struct Truth<'a> {
    world: &'a World,
    model: &'a Model,
    at: Offset,
}

impl<'a> Truth<'a> {
    /// Brings `model` from `at` to the end.
    fn new(world: &'a World, model: &'a mut Model, at: &mut Offset) -> Self {
        // Relations are ignored here.
        let mut places = Places::new();
        for record in world.log.read(at.next(), usize::MAX).unwrap() {
            model.apply(&record, &mut places);
        }
        *at = world.engine.state().applied();
        Self { world, model, at: *at }
    }

    fn room(&self, room_id: &RoomId) -> Arc<Room> {
        self.world.engine.state().rooms.get(room_id).unwrap()
    }

    fn event(&self, offset: Offset) -> Value {
        let event = self.world.engine.events().get(offset).unwrap().unwrap();
        json!({ "event_id": event.event_id, "type": event.event_type.to_string(), "sender": event.sender })
    }

    fn event_id(&self, offset: Offset) -> String {
        self.event(offset)["event_id"].as_str().unwrap().to_owned()
    }

    fn my_account_data(&self, room: Option<&RoomId>) -> BTreeMap<String, Value> {
        let Some(account) = self.model.accounts.get(&me()) else { return BTreeMap::new() };
        let of_room = account.account_data.iter().filter(|((of, _), _)| of.as_deref() == room);
        let content = |offset: &Offset| {
            let command = self.world.engine.events().command(*offset).unwrap();
            let Some(Command::AccountDataSet(body)) = command else { panic!("not account data") };
            serde_json::from_str(body.content.get()).unwrap()
        };
        of_room.map(|((_, of_type), offset)| (of_type.clone(), content(offset))).collect()
    }

    fn is_dm(&self, room_id: &RoomId) -> bool {
        let direct = self.my_account_data(None).remove("m.direct").unwrap_or_default();
        let rooms = direct.as_object().into_iter().flatten();
        rooms.flat_map(|(_, ids)| ids.as_array().unwrap()).any(|id| id == room_id.as_str())
    }

    fn is_tagged(&self, room_id: &RoomId) -> bool {
        let tags = self.my_account_data(Some(room_id)).remove("m.tag").unwrap_or_default();
        tags["tags"].get("t").is_some()
    }

    /// My rooms that pass the filter, the newest first.
    fn list(&self, filter: Filter) -> Vec<OwnedRoomId> {
        let mut rooms = Vec::new();
        for (room_id, room) in &self.model.rooms {
            let Some(membership) = room.members.get(&me()) else { continue };
            let member = room.state[&("m.room.member".to_owned(), me().to_string())];
            let place = match membership {
                Membership::Join => *room.timeline.last().unwrap(),
                Membership::Invite | Membership::Knock => member,
                Membership::Leave | Membership::Ban => {
                    let changes = self.room(room_id).membership_changes(&me(), self.at);
                    let was_in = changes.iter().any(|(_, was)| *was == Membership::Join);
                    let by_myself = self.event(member)["sender"] == me().as_str();
                    let forgotten = self.model.accounts[&me()].forgotten.contains_key(room_id);
                    if by_myself || forgotten || !was_in {
                        continue;
                    }
                    member
                }
            };
            let wanted = match filter {
                Filter::None => true,
                Filter::Invite(wanted) => (*membership == Membership::Invite) == wanted,
                Filter::Direct(wanted) => self.is_dm(room_id) == wanted,
                Filter::Tagged(wanted) => self.is_tagged(room_id) == wanted,
            };
            if wanted {
                rooms.push((place, room_id.clone()));
            }
        }
        rooms.sort_unstable();
        rooms.into_iter().rev().map(|(_, room_id)| room_id).collect()
    }

    /// Checks that the client has what it asked for of a room.
    fn check(&self, room_id: &RoomId, client: &Client, ask: &Ask, limit: u64, states: &[State]) {
        let truth = &self.model.rooms[room_id];
        let membership = truth.members[&me()];
        let Some(has) = client.rooms.get(room_id) else { panic!("{room_id} is missing") };
        let (my_member, state) = (me(), self.room(room_id));
        let own = truth.state[&("m.room.member".to_owned(), my_member.to_string())];
        match membership {
            Membership::Join => {
                assert!(has.is_joined && has.invite.is_empty(), "{room_id}: {has:?}")
            }
            Membership::Invite | Membership::Knock => {
                let last = &has.invite.last().unwrap()["content"]["membership"];
                assert_eq!(last, membership.as_str(), "{room_id}");
                assert_eq!(has.bump_stamp, own.get());
                assert_eq!(has.is_dm, self.is_dm(room_id), "{room_id}");
                return;
            }
            Membership::Leave | Membership::Ban => {
                assert!(!has.is_joined && has.invite.is_empty(), "{room_id}: {has:?}");
                let key = ("m.room.member".to_owned(), my_member.to_string());
                assert_eq!(has.state.get(&key), Some(&self.event_id(own)), "{room_id}");
                return;
            }
        }
        // The newest events without a gap, and as many as were asked for.
        let timeline: Vec<_> = truth.timeline.iter().map(|offset| self.event_id(*offset)).collect();
        assert!(timeline.ends_with(&has.timeline), "{room_id}: {has:?} of {timeline:?}");
        let least = usize::try_from(limit).unwrap().min(timeline.len());
        assert!(has.timeline.len() >= least, "{room_id}: {limit} of {has:?}");
        for ((event_type, key), offset) in &truth.state {
            if states.iter().any(|state| state.wants(event_type, key)) {
                let had = has.state.get(&(event_type.clone(), key.clone()));
                assert_eq!(had, Some(&self.event_id(*offset)), "{room_id}: {event_type} {key}");
            }
        }
        if states.iter().any(|state| state.is_lazy()) {
            for offset in truth.timeline.iter().rev().take(least) {
                let sender = self.event(*offset)["sender"].as_str().unwrap().to_owned();
                let sender: OwnedUserId = sender.try_into().unwrap();
                let member =
                    state.state_event(&StateEventType::RoomMember, sender.as_str(), self.at);
                let key = ("m.room.member".to_owned(), sender.to_string());
                let member = member.map(|member| self.event_id(member));
                assert_eq!(has.state.get(&key), member.as_ref(), "{room_id}: {sender}");
            }
        }
        let counts = state.counts(self.at);
        assert_eq!(has.counts, (counts.joined, counts.invited), "{room_id}");
        let activity = truth.timeline.iter().rfind(|offset| {
            let event_type = self.event(**offset)["type"].clone();
            ["m.room.create", "m.room.message"].iter().any(|activity| event_type == *activity)
        });
        assert_eq!(has.bump_stamp, activity.unwrap().get(), "{room_id}");
        assert_eq!(has.is_dm, self.is_dm(room_id), "{room_id}");
        let name = truth.state.get(&("m.room.name".to_owned(), String::new()));
        assert_eq!(has.name.is_some(), name.is_some(), "{room_id}");
        if ask.account_data {
            assert_eq!(has.account_data, self.my_account_data(Some(room_id)), "{room_id}");
        }
        if ask.receipts {
            let receipts = state.receipts_between(Offset::ZERO, self.at).into_iter();
            let unthreaded = receipts.filter(|(key, _)| key.1 == "m.read" && key.2.is_none());
            let receipts: BTreeMap<_, _> = unthreaded
                .map(|(key, receipt)| (key.0.to_string(), receipt.event_id.to_string()))
                .collect();
            assert_eq!(has.receipts, receipts, "{room_id}");
        }
        if ask.typing {
            let typing = state.typing();
            let typing: BTreeSet<_> = typing.iter().map(|(user, _)| user.to_string()).collect();
            assert_eq!(has.typing, typing, "{room_id}");
        }
    }
}

struct Server {
    world: World,
    connections: Connections,
}

impl Server {
    fn rules(&self, ask: &Ask) -> Rules {
        let lists = ask.lists.iter().enumerate().map(|(number, list)| {
            let config = ListConfig {
                ranges: list.ranges.clone(),
                room: RoomConfig { required_state: list.state.pairs(), timeline_limit: list.limit },
                filters: Some(serde_json::from_value(list.filter.json()).unwrap()),
            };
            (number.to_string(), config)
        });
        let subscriptions = ask.subscriptions.iter().filter_map(|(room, limit, state)| {
            let config = RoomConfig { required_state: state.pairs(), timeline_limit: *limit };
            Some((self.world.room(*room)?, config))
        });
        let extensions: Extensions = serde_json::from_value(json!({
            "account_data": { "enabled": ask.account_data },
            "receipts": { "enabled": ask.receipts },
            "typing": { "enabled": ask.typing },
        }))
        .unwrap();
        Rules::new(&me(), lists.collect(), subscriptions.collect(), extensions, 100, 0).unwrap()
    }

    fn ask(&self, ask: &Ask, pos: Option<Pos>) -> Result<Value, UnknownPos> {
        let user_id: &UserId = &me();
        let engine = &self.world.engine;
        let viewer = Viewer {
            user_id,
            device_id: "D0".into(),
            session: SESSION,
            at: engine.head().offset(),
            now_ms: 0,
        };
        let view = View { state: engine.state().share(), events: engine.events(), viewer };
        let resumed = self.connections.resume(SESSION, "", pos)?;
        let memory =
            sliding::Memory { unread: &Unread::default(), epoch: Epoch(0), effort: Effort::Any };
        let look = sliding::look(&view, &self.rules(ask), &resumed, None, memory).unwrap();
        let is_empty = look.is_empty();
        let response = look.send(&self.connections, &resumed, None)?;
        let response = serde_json::to_value(response).unwrap();
        if is_empty {
            assert_eq!(response["rooms"], json!({}), "an answer with rooms counts as empty");
        }
        Ok(response)
    }

    async fn set(&mut self, room_id: Option<OwnedRoomId>, event_type: &str, content: Value) {
        let proposal = SetAccountData {
            user_id: me(),
            room_id,
            event_type: event_type.to_owned(),
            content: serde_json::value::to_raw_value(&content).unwrap(),
        };
        self.world.engine.propose(Origin::server(), proposal).await.unwrap().into_inner();
    }
}

fn check(truth: &Truth<'_>, client: &Client, ask: &Ask, response: &Value) {
    let mut wanted: BTreeMap<OwnedRoomId, (u64, Vec<State>)> = BTreeMap::new();
    for (number, list) in ask.lists.iter().enumerate() {
        let rooms = truth.list(list.filter);
        assert_eq!(response["lists"][number.to_string()]["count"], rooms.len(), "{list:?}");
        for (place, room_id) in rooms.iter().enumerate() {
            let place = place as u64;
            if list.ranges.iter().any(|(first, last)| (*first..=*last).contains(&place)) {
                let (limit, states) = wanted.entry(room_id.clone()).or_default();
                *limit = (*limit).max(list.limit);
                states.push(list.state);
            }
        }
    }
    // The last of two subscriptions to the same room is the one that was made.
    let subscriptions: BTreeMap<_, _> = ask
        .subscriptions
        .iter()
        .filter_map(|(room, limit, state)| Some((truth.world.room(*room)?, (*limit, *state))))
        .collect();
    for (room_id, (limit, state)) in subscriptions {
        let member = truth.model.rooms[&room_id].members.get(&me());
        if member.is_some_and(|is| !matches!(is, Membership::Leave | Membership::Ban)) {
            let (most, states) = wanted.entry(room_id).or_default();
            *most = (*most).max(limit);
            states.push(state);
        }
    }
    for (room_id, (limit, states)) in &wanted {
        truth.check(room_id, client, ask, *limit, states);
    }
    // No room is taken to be joined that is not, whether it is in a window or not.
    for (room_id, has) in &client.rooms {
        let is_joined = truth.model.rooms[room_id].members[&me()] == Membership::Join;
        assert!(is_joined || !has.is_joined, "{room_id} was left");
    }
    if ask.account_data {
        let mut has = client.account_data.clone();
        has.remove("m.push_rules");
        assert_eq!(has, truth.my_account_data(None));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn a_client_with_windows_misses_nothing_and_gets_nothing_twice(steps in prop::collection::vec(step(), 20..150)) {
        runtime().block_on(async {
            let mut server = Server {
                world: World::open(Vec::new()).await,
                connections: Connections::new(1 << 24, 0),
            };
            for user in 0..USERS {
                server.world.run(&Op::Register(user)).await;
            }
            for room in 0..ROOMS {
                let creator = room % USERS;
                server.world.run(&Op::CreateRoom(creator, 2, 7)).await;
                server.world.run(&Op::Member(0, 0, room, 0)).await;
            }
            let mut asked = Ask {
                lists: vec![AskList {
                    ranges: vec![(0, 2)],
                    limit: 2,
                    state: State::EverythingLazily,
                    filter: Filter::None,
                }],
                subscriptions: Vec::new(),
                account_data: true,
                receipts: true,
                typing: true,
            };
            let mut client = Client::default();
            let (mut model, mut at) = (Model::default(), Offset::ZERO);
            let mut lost_one = None;
            for step in steps {
                let lost = match step {
                    Step::Do(op) => {
                        server.world.run(&op).await;
                        continue;
                    }
                    Step::Direct(bits) => {
                        let rooms = server.world.rooms.iter().enumerate();
                        let direct: Vec<_> = rooms
                            .filter(|(number, _)| bits & (1 << (number % 8)) != 0)
                            .map(|(_, room_id)| room_id.clone())
                            .collect();
                        server.set(None, "m.direct", json!({ "@user1:test": direct })).await;
                        continue;
                    }
                    Step::Tag(room, on) => {
                        let tags = if on { json!({ "t": {} }) } else { json!({}) };
                        let room_id = server.world.room(room);
                        server.set(room_id, "m.tag", json!({ "tags": tags })).await;
                        continue;
                    }
                    Step::Restart => {
                        let connections = Connections::new(1 << 24, 1 << 60);
                        server = Server { world: server.world.restart().await, connections };
                        lost_one = None;
                        continue;
                    }
                    Step::Ask { ask, lost } => {
                        asked = ask;
                        lost
                    }
                    Step::AskAgain { lost } => lost,
                };
                let response = match server.ask(&asked, client.pos) {
                    Ok(response) => response,
                    Err(UnknownPos) => {
                        client = Client::default();
                        server.ask(&asked, None).unwrap()
                    }
                };
                if lost {
                    let pos: Pos = response["pos"].as_str().unwrap().parse().unwrap();
                    lost_one = Some((client.pos, pos));
                    continue;
                }
                client.take(&response, &asked);
                let truth = Truth::new(&server.world, &mut model, &mut at);
                check(&truth, &client, &asked, &response);
                // Asked again at once, there is nothing.
                let again = server.ask(&asked, client.pos).unwrap();
                assert_eq!(again["rooms"], json!({}), "{again}");
                client.take(&again, &asked);
                check(&truth, &client, &asked, &again);
                if let Some((_, pos)) = lost_one.take() {
                    assert_eq!(server.ask(&asked, Some(pos)).err(), Some(UnknownPos));
                }
            }
        });
    }
}
