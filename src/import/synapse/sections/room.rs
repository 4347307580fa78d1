//! Rooms, apart from their events.

use crate::{
    facts::{
        Alias, BackwardExtremity, BanRedaction, CurrentState, Fact, ForwardExtremity, Membership,
        Published, Redaction, Room, RoomBlock, RoomRetention, TimelineGap,
    },
    sql::plan::Plan,
    synapse::context::Context,
};

pub(super) const ROOMS: &[Plan<Context>] = &[
    Plan {
        from: "rooms r LEFT JOIN partial_state_rooms p ON p.room_id = r.room_id",
        only: "",
        keys: 1,
        columns: &[
            "r.room_id",
            "r.room_version",
            "r.creator",
            "p.room_id AS partial",
            "EXISTS (SELECT 1 FROM local_current_membership l
                WHERE l.room_id = r.room_id AND l.membership = 'join') AS joined",
            "(SELECT min(e.stream_ordering) FROM events e
                WHERE e.room_id = r.room_id AND e.stream_ordering > 0) AS began",
        ],
        shown: 1,
        tell: |row, _, facts| {
            facts.push(Fact::Room(Room {
                room_id: row.text("room_id")?,
                version: row.text_or_none("room_version")?,
                creator: row.text_or_none("creator")?.filter(|creator| !creator.is_empty()),
                partial: row.text_or_none("partial")?.is_some(),
                joined: row.flag("joined")?,
                began: row.int_or_none("began")?,
            }));
            Ok(())
        },
    },
    // An experiment of Synapse (MSC4293).
    Plan {
        from: "room_ban_redactions b",
        only: "",
        keys: 2,
        columns: &["b.room_id", "b.user_id", "b.redacting_event_id", "b.redact_end_ordering"],
        shown: 2,
        tell: |row, _, facts| {
            facts.push(Fact::BanRedaction(BanRedaction {
                room_id: row.text("room_id")?,
                user_id: row.text("user_id")?,
                event_id: row.text("redacting_event_id")?,
                until: row.int_or_none("redact_end_ordering")?,
            }));
            Ok(())
        },
    },
];

pub(super) const BACKWARD_EXTREMITIES: &[Plan<Context>] = &[Plan {
    from: "event_backward_extremities b
        JOIN event_edges e ON e.prev_event_id = b.event_id AND NOT e.is_state",
    only: "",
    keys: 3,
    columns: &["b.room_id", "b.event_id", "e.event_id"],
    shown: 3,
    tell: |row, _, facts| {
        facts.push(Fact::BackwardExtremity(BackwardExtremity {
            room_id: row.text("room_id")?,
            event_id: row.text("b.event_id")?,
            before: row.text_or_none("e.event_id")?,
        }));
        Ok(())
    },
}];

pub(super) const TIMELINE_GAPS: &[Plan<Context>] = &[Plan {
    from: "timeline_gaps g",
    only: "",
    keys: 2,
    columns: &["g.room_id", "g.stream_ordering"],
    shown: 2,
    tell: |row, _, facts| {
        facts.push(Fact::TimelineGap(TimelineGap {
            room_id: row.text("room_id")?,
            stream: row.int("stream_ordering")?,
        }));
        Ok(())
    },
}];

pub(super) const REDACTIONS: &[Plan<Context>] = &[Plan {
    from: "redactions r",
    only: "",
    keys: 1,
    columns: &["r.event_id", "r.redacts", "r.have_censored", "r.received_ts"],
    shown: 1,
    tell: |row, _, facts| {
        facts.push(Fact::Redaction(Redaction {
            event_id: row.text("event_id")?,
            redacts: row.text("redacts")?,
            carried_out: row.flag("have_censored")?,
            received_ms: row.int_or_none("received_ts")?,
        }));
        Ok(())
    },
}];

pub(super) const FORWARD_EXTREMITIES: &[Plan<Context>] = &[Plan {
    from: "event_forward_extremities f",
    only: "",
    keys: 2,
    columns: &["f.room_id", "f.event_id"],
    shown: 2,
    tell: |row, _, facts| {
        facts.push(Fact::ForwardExtremity(ForwardExtremity {
            room_id: row.text("room_id")?,
            event_id: row.text("event_id")?,
        }));
        Ok(())
    },
}];

pub(super) const CURRENT_STATE: &[Plan<Context>] = &[Plan {
    from: "current_state_events c",
    only: "",
    keys: 3,
    columns: &["c.room_id", "c.type", "c.state_key", "c.event_id", "c.membership"],
    shown: 3,
    tell: |row, _, facts| {
        facts.push(Fact::CurrentState(CurrentState {
            room_id: row.text("room_id")?,
            event_type: row.text("type")?,
            state_key: row.text("state_key")?,
            event_id: row.text("event_id")?,
            membership: row.text_or_none("membership")?,
        }));
        Ok(())
    },
}];

pub(super) const MEMBERSHIPS: &[Plan<Context>] = &[Plan {
    from: "local_current_membership l LEFT JOIN room_memberships m ON m.event_id = l.event_id",
    only: "",
    keys: 2,
    columns: &["l.user_id", "l.room_id", "l.event_id", "l.membership", "m.forgotten"],
    shown: 2,
    tell: |row, _, facts| {
        facts.push(Fact::Membership(Membership {
            room_id: row.text("room_id")?,
            user_id: row.text("user_id")?,
            event_id: row.text("event_id")?,
            membership: row.text("membership")?,
            forgotten: row.flag("forgotten")?,
        }));
        Ok(())
    },
}];

pub(super) const ALIASES: &[Plan<Context>] = &[Plan {
    from: "room_aliases a",
    only: "",
    keys: 1,
    columns: &["a.room_alias", "a.room_id", "a.creator"],
    shown: 1,
    tell: |row, _, facts| {
        facts.push(Fact::Alias(Alias {
            alias: row.text("room_alias")?,
            room_id: row.text("room_id")?,
            creator: row.text_or_none("creator")?,
        }));
        Ok(())
    },
}];

pub(super) const DIRECTORY: &[Plan<Context>] = &[
    Plan {
        from: "rooms r",
        only: "r.is_public",
        keys: 1,
        columns: &["r.room_id"],
        shown: 1,
        tell: |row, _, facts| {
            let room_id = row.text("room_id")?;
            facts.push(Fact::Published(Published { room_id, network: None }));
            Ok(())
        },
    },
    Plan {
        from: "appservice_room_list l",
        only: "",
        keys: 3,
        columns: &["l.appservice_id", "l.network_id", "l.room_id"],
        shown: 3,
        tell: |row, _, facts| {
            facts.push(Fact::Published(Published {
                room_id: row.text("room_id")?,
                network: Some((row.text("appservice_id")?, row.text("network_id")?)),
            }));
            Ok(())
        },
    },
];

pub(super) const ROOM_BLOCKS: &[Plan<Context>] = &[Plan {
    from: "blocked_rooms b",
    only: "",
    keys: 1,
    columns: &["b.room_id", "b.user_id"],
    shown: 1,
    tell: |row, _, facts| {
        facts.push(Fact::RoomBlock(RoomBlock {
            room_id: row.text("room_id")?,
            by: row.text("user_id")?,
        }));
        Ok(())
    },
}];

pub(super) const ROOM_RETENTION: &[Plan<Context>] = &[Plan {
    from: "room_retention r",
    only: "",
    keys: 2,
    columns: &["r.room_id", "r.event_id", "r.min_lifetime", "r.max_lifetime"],
    shown: 2,
    tell: |row, _, facts| {
        facts.push(Fact::RoomRetention(RoomRetention {
            room_id: row.text("room_id")?,
            event_id: row.text("event_id")?,
            min_ms: row.int_or_none("min_lifetime")?,
            max_ms: row.int_or_none("max_lifetime")?,
        }));
        Ok(())
    },
}];
