//! Records of a room of another homeserver.

use std::collections::BTreeMap;

use logcabin::{
    decide::{
        federation::{
            BeginRoom, DeviceListUpdate, EnterRoom, FillGap, NoteDevices, NoteReached,
            OutlierOutcome, ReceiveOutcome, ReceivePdu, RecordOutliers,
        },
        to_device::{ReceiveToDevice, SendToDevice},
    },
    engine::Engine,
    record::{
        Offset, Origin,
        command::{DeviceList, Reached, SetAside, SetAsideItem, Transaction},
    },
};
use ruma::{OwnedEventId, OwnedRoomId, OwnedServerName, OwnedUserId, RoomVersionId};
use serde_json::{Value, value::RawValue};

/// Grows a branch in that room: the state before each event is recorded as the difference from that
/// before the previous event.
#[allow(dead_code, reason = "only golden logs have it")]
pub(crate) async fn branch(engine: &Engine) {
    let mut after = "one".to_owned();
    for number in 1..4 {
        let name = format!("branch{number}");
        let pdu = serde_json::value::to_raw_value(&serde_json::json!({
            "room_id": "!elsewhere:peer.example", "type": "m.room.topic", "state_key": "",
            "sender": "@pia:peer.example", "depth": 5 + number, "content": { "topic": name },
            "origin_server_ts": 1_770_000_000_000_u64, "hashes": {},
            "signatures": { "peer.example": { "ed25519:a": "none" } },
            "prev_events": [format!("${after}")], "auth_events": ["$create", "$pia"],
        }));
        let receive = ReceivePdu {
            room_id: "!elsewhere:peer.example".try_into().unwrap(),
            event_id: format!("${name}").try_into().unwrap(),
            from: "peer.example".try_into().unwrap(),
            pdu: pdu.unwrap(),
            as_outlier: false,
            is_placed: false,
            relayed: false,
            not_recommended: None,
        };
        let taken = engine.propose(Origin::server(), receive).await.unwrap().into_inner();
        assert_eq!(taken, ReceiveOutcome::Accepted);
        after = name;
    }
}

/// Has a user enter a room in which two branches are merged.
pub(crate) async fn enter(engine: &Engine, ann: &OwnedUserId) {
    macro_rules! propose {
        ($proposal:expr) => {
            engine.propose(Origin::server(), $proposal).await.unwrap().into_inner()
        };
    }
    let elsewhere: OwnedRoomId = "!elsewhere:peer.example".try_into().unwrap();
    let pdu = |event: Value| {
        let mut whole = serde_json::json!({
            "room_id": elsewhere, "origin_server_ts": 1_770_000_000_000_u64, "hashes": {},
            "signatures": { "peer.example": { "ed25519:a": "none" } },
        });
        whole.as_object_mut().unwrap().extend(event.as_object().unwrap().clone());
        serde_json::value::to_raw_value(&whole).unwrap()
    };
    let id = |name: &str| -> OwnedEventId { format!("${name}").try_into().unwrap() };
    let from: OwnedServerName = "peer.example".try_into().unwrap();
    propose!(BeginRoom {
        room_id: elsewhere.clone(),
        version: RoomVersionId::V10,
        event_id: id("create"),
        from: from.clone(),
        pdu: pdu(serde_json::json!({
            "type": "m.room.create", "state_key": "", "sender": "@pia:peer.example", "depth": 1,
            "content": { "creator": "@pia:peer.example", "room_version": "10" },
            "prev_events": [], "auth_events": [],
        })),
    });
    let receive = |name: &str, as_outlier, event| ReceivePdu {
        room_id: elsewhere.clone(),
        event_id: id(name),
        from: from.clone(),
        pdu: pdu(event),
        as_outlier,
        is_placed: false,
        relayed: false,
        not_recommended: None,
    };
    let pia_joins = serde_json::json!({
        "type": "m.room.member", "state_key": "@pia:peer.example", "sender": "@pia:peer.example",
        "depth": 2, "content": { "membership": "join" },
        "prev_events": ["$create"], "auth_events": ["$create"],
    });
    assert_eq!(propose!(receive("pia", true, pia_joins)), ReceiveOutcome::Outlier);
    let anybody = serde_json::json!({
        "type": "m.room.join_rules", "state_key": "", "sender": "@pia:peer.example", "depth": 3,
        "content": { "join_rule": "public" },
        "prev_events": ["$pia"], "auth_events": ["$create", "$pia"],
    });
    assert_eq!(propose!(receive("rules", true, anybody)), ReceiveOutcome::Outlier);
    let lifetime = serde_json::json!({
        "type": "m.room.retention", "state_key": "", "sender": "@pia:peer.example", "depth": 3,
        "content": { "max_lifetime": 3_000_000_000_000_u64 },
        "prev_events": ["$pia"], "auth_events": ["$create", "$pia"],
    });
    assert_eq!(propose!(receive("lifetime", true, lifetime)), ReceiveOutcome::Outlier);
    propose!(EnterRoom {
        room_id: elsewhere.clone(),
        event_id: id("ann"),
        from: from.clone(),
        pdu: pdu(serde_json::json!({
            "type": "m.room.member", "state_key": ann, "sender": ann, "depth": 4,
            "content": { "membership": "join" },
            "prev_events": ["$rules"], "auth_events": ["$create", "$rules"],
        })),
        state: vec![id("create"), id("pia"), id("rules"), id("lifetime")],
        unverified: BTreeMap::from([("@gil:gone.example".try_into().unwrap(), id("gil"))]),
    });
    // Two branches with a name each, and one that nobody may set.
    for name in ["one", "two"] {
        let named = serde_json::json!({
            "type": "m.room.name", "state_key": "", "sender": "@pia:peer.example", "depth": 5,
            "content": { "name": name },
            "prev_events": ["$ann"], "auth_events": ["$create", "$pia"],
        });
        assert_eq!(propose!(receive(name, false, named)), ReceiveOutcome::Accepted);
    }
    let unknown = serde_json::json!({
        "type": "m.room.name", "state_key": "", "sender": "@eve:peer.example", "depth": 6,
        "content": { "name": "mine" },
        "prev_events": ["$one", "$two"], "auth_events": ["$create"],
    });
    assert!(matches!(propose!(receive("eve", false, unknown)), ReceiveOutcome::Rejected(_)));
    // Messages to her devices, and from them.
    let messages = |to: &str| {
        BTreeMap::from([(
            to.try_into().unwrap(),
            vec![(None, RawValue::from_string("{}".into()).unwrap())],
        )])
    };
    propose!(ReceiveToDevice {
        sender: "@pia:peer.example".try_into().unwrap(),
        message_id: "1".to_owned(),
        event_type: "m.room.encrypted".to_owned(),
        messages: messages(ann.as_str()),
    });
    for number in ["1", "2"] {
        propose!(SendToDevice {
            sender: ann.clone(),
            event_type: "m.room.encrypted".to_owned(),
            messages: messages("@pia:peer.example"),
            outside: Some(format!("letter{number}")),
            transaction: Transaction {
                session: Offset::new(5),
                id: number.into(),
                scope: "outside".into(),
            },
        });
    }
    // What was said before.
    let said = pdu(serde_json::json!({
        "type": "m.room.message", "sender": "@pia:peer.example", "depth": 3,
        "content": { "msgtype": "m.text", "body": "anybody?" },
        "prev_events": ["$pia"], "auth_events": ["$create", "$pia"],
    }));
    let record = RecordOutliers {
        room_id: elsewhere.clone(),
        from: from.clone(),
        events: vec![(id("said"), said)],
        keeps_rejected: false,
    };
    assert_eq!(propose!(record), [OutlierOutcome::Recorded]);
    let gap = engine.state().events.candidates(&id("ann"))[0];
    let fill = |events: &[&str], given_up_until_ms| FillGap {
        room_id: elsewhere.clone(),
        gap,
        from: Some(from.clone()),
        events: events.iter().map(|name| (id(name), None)).collect(),
        passed: Vec::new(),
        bytes: 1000,
        given_up_until_ms,
    };
    assert!(propose!(fill(&["rules", "said"], Some(1_780_000_000_000))));
    assert!(propose!(fill(&["pia", "create"], None)));
    let reached = |up_to, set_aside| {
        NoteReached(vec![Reached { server_name: from.clone(), up_to, failing: None, set_aside }])
    };
    for up_to in [7, 8] {
        propose!(reached(Offset::new(up_to), SetAside::default()));
    }
    // The devices of one of them, twice, and that they changed.
    let list = DeviceList {
        stream_id: Some(7),
        devices: BTreeMap::from([(
            "PIA".to_owned(),
            RawValue::from_string(r#"{"keys":{}}"#.into()).unwrap(),
        )]),
        ..DeviceList::default()
    };
    for list in [Some(list.clone()), Some(list), None] {
        let said = DeviceListUpdate {
            user_id: "@pia:peer.example".try_into().unwrap(),
            changed: true,
            list,
            as_of: engine.head().offset(),
        };
        assert!(propose!(NoteDevices { server: from.clone(), users: vec![said] }));
    }
    let told = engine.head().offset().prev();
    let mut set_aside = SetAside::default();
    set_aside.add(SetAsideItem {
        record: Some(told),
        item: "event".to_owned(),
        at_ms: 1_770_000_000_000,
        status: Some(400),
        reason: "M_BAD_JSON".to_owned(),
    });
    propose!(reached(told, set_aside));
}
