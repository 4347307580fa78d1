//! What other homeservers may do and see in a room.

use ruma::{
    OwnedServerName, ServerName,
    events::{
        StateEventType,
        room::{member::MembershipState, server_acl::RoomServerAclEventContent},
    },
};

use super::events::{Derived, EventRef, EventStore, StoredEvent, as_shown, redacted};
use logcabin_log::ReadError;
use logcabin_record::Offset;
use logcabin_state::{Membership, Room};

struct AccessControl(Option<RoomServerAclEventContent>, u64);

impl Derived for AccessControl {
    fn weight(&self) -> u64 {
        self.1
    }
}

/// Whether the room's access control list admits a homeserver now (server-server API, "Server
/// Access Control Lists").
pub fn admits(events: &EventStore, room: &Room, server: &ServerName) -> Result<bool, ReadError> {
    let standing = room.state_event(&StateEventType::RoomServerAcl, "", Offset::MAX);
    let Some(offset) = standing else { return Ok(true) };
    let list = events.derived(offset, || {
        let event = events.get(offset)?;
        let event = event.map(|event| as_shown(room, event, Offset::MAX));
        let bytes = event.as_ref().map_or(0, |event| event.content.get().len());
        // An invalid list admits everybody.
        let list = event.and_then(|event| event.content_as().ok());
        Ok::<_, ReadError>(AccessControl(list, 2 * bytes as u64))
    })?;
    Ok(list.0.as_ref().is_none_or(|list| list.is_allowed(server)))
}

/// When a homeserver was in a room, as precisely as is needed for the events after some record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerStays {
    /// From the join up to the leave, of which neither is in it.
    stays: Vec<(Offset, Offset)>,
    /// The last change of the membership of one of its users.
    last_change: Option<Offset>,
}

impl ServerStays {
    pub fn of(room: &Room, server: &ServerName, up_to: Offset) -> Self {
        let changed = room.members_changed(up_to, Offset::MAX).into_iter();
        let changed: Vec<_> = changed.filter(|user| user.server_name() == server).collect();
        let joined = changed.iter().filter(|user| room.is_joined(user, Offset::MAX)).count();
        if room.joined_of(server) > joined {
            return Self { stays: vec![(Offset::ZERO, Offset::MAX)], last_change: None };
        }
        // Other homeservers show the history from before its first user joined to users who may
        // see it.
        let claimed = room.claimed_since(server).filter(|_| room.has_server(server));
        let mut stays: Vec<_> = claimed.map(|since| (since, Offset::MAX)).into_iter().collect();
        for user in &changed {
            let mut since = None;
            for (offset, membership) in room.membership_changes(user, Offset::MAX) {
                if membership == Membership::Join {
                    since.get_or_insert(offset);
                } else if let Some(since) = since.take() {
                    stays.push((since, offset));
                }
            }
            stays.extend(since.map(|since| (since, Offset::MAX)));
        }
        let latest = changed.iter().filter_map(|user| room.membership(user, Offset::MAX));
        Self { stays, last_change: latest.map(|(offset, _)| offset).max() }
    }

    /// Whether a user of the homeserver is joined now.
    pub fn is_in(&self) -> bool {
        self.stays.iter().any(|(_, until)| *until == Offset::MAX)
    }

    /// The last record that can concern the homeserver.
    pub fn end(&self) -> Offset {
        self.last_change.filter(|_| !self.is_in()).unwrap_or(Offset::MAX)
    }

    /// Whether a user of the homeserver was joined before a record, and still is after it.
    fn includes(&self, offset: Offset) -> bool {
        self.stays.iter().any(|(since, until)| *since < offset && offset < *until)
    }
}

/// Whether this homeserver tells `server` of an event: one that was sent while the homeserver was
/// in the room, even if it is there no longer. A later removal of its user comes after that event,
/// for which it may not ask any more.
pub fn concerns(event: &StoredEvent, server: &ServerName, stays: &ServerStays) -> bool {
    let was_in = stays.includes(event.offset);
    is_told(event, server) && (was_in || target(event).is_some_and(|of| of == *server))
}

/// Whether this homeserver, and not the one that sent the event, tells a homeserver of it.
pub fn is_told(event: &StoredEvent, server: &ServerName) -> bool {
    let received = event.received.as_ref();
    received.is_none_or(|received| received.relayed && received.from != *server)
}

/// The homeserver of the user whose membership an event changes. `None` for an invite, which that
/// homeserver has signed and therefore has.
pub fn target(event: &StoredEvent) -> Option<OwnedServerName> {
    let (user_id, membership) = event.membership()?;
    (membership != MembershipState::Invite).then(|| user_id.server_name().to_owned())
}

/// The event as a homeserver may see it: as it is shown, or only what a redaction leaves, if none
/// of its users could see it when it was sent (server-server API, "Backfilling and retrieving
/// missing events").
pub fn shown_to(
    events: &EventStore,
    room: &Room,
    event: EventRef,
    server: &ServerName,
    at: Offset,
) -> Result<EventRef, ReadError> {
    let shown = as_shown(room, event, at);
    if events.is_over(room, &shown) || !may_see(events, room, &shown, server)? {
        return Ok(redacted(room, &shown));
    }
    Ok(shown)
}

/// Whether a homeserver may see what is in an event.
pub fn may_see(
    events: &EventStore,
    room: &Room,
    event: &StoredEvent,
    server: &ServerName,
) -> Result<bool, ReadError> {
    #[derive(serde::Deserialize)]
    struct Visibility {
        history_visibility: String,
    }
    if event.sender.server_name() == server {
        return Ok(true);
    }
    if event.aside.is_some() {
        // Other events depend on state. For anything else outside the timeline, it is not known who
        // was in the room then.
        let visibility = room.slot(event.offset).and_then(|slot| room.visibility_around(slot).0);
        return Ok(event.state_key.is_some()
            || matches!(visibility.as_deref(), Some("shared" | "world_readable")));
    }
    let visibility = &StateEventType::RoomHistoryVisibility;
    let standing = room.state_event(visibility, "", event.offset);
    let standing = standing.map_or(Ok(None), |offset| events.get(offset))?;
    let standing = standing.map(|event| as_shown(room, event, Offset::MAX));
    let standing = standing.and_then(|event| event.content_as::<Visibility>().ok());
    let is_claimed = room.claimed_since(server).is_some_and(|since| since < event.offset);
    let is_there = |membership| {
        let members = room.members(membership, event.offset);
        members.iter().any(|(user_id, _)| user_id.server_name() == server)
    };
    Ok(match standing.as_ref().map(|is| is.history_visibility.as_str()) {
        Some("joined" | "invited") if is_claimed => true,
        Some("joined") => is_there(Membership::Join),
        Some("invited") => is_there(Membership::Join) || is_there(Membership::Invite),
        _ => true,
    })
}
