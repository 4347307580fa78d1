//! The client format of an event for a particular viewer, with bundled aggregations.

use std::{
    cell::{Cell, OnceCell},
    cmp::Reverse,
    collections::BTreeSet,
    sync::Arc,
};

use ruma::{OwnedUserId, UserId, events::TimelineEventType};
use serde::{Deserialize, de::IgnoredAny};

use super::{View, visibility::Visibility};
use crate::{
    events::{
        ClientEvent, EventForm, EventRef, Reference, References, Relations, StoredEvent, Thread,
        Unsigned, age, as_shown, client_event, redacted,
    },
    notifications::Ignored,
};
use logcabin_base::limits;
use logcabin_log::ReadError;
use logcabin_record::Offset;
use logcabin_state::{
    ChildQuery, Membership, RelatesTo, Room,
    relations::{REFERENCE, REPLACE, THREAD},
};

/// Formats one room's events. What it needs to know of the viewer is looked up once, on demand.
pub(super) struct RoomFormatter<'v> {
    view: &'v View<'v>,
    room: &'v Room,
    visibility: OnceCell<Visibility<'v>>,
    ignored: OnceCell<Arc<Ignored>>,
    stretches: OnceCell<Vec<(Offset, Offset)>>,
    /// How many related events may still be read.
    looks: Cell<usize>,
}

/// Which related events are bundled with an event.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Bundle {
    Everything,
    /// Threads do not nest.
    WithoutThread,
    Nothing,
}

impl<'v> RoomFormatter<'v> {
    pub(super) const fn new(view: &'v View<'v>, room: &'v Room) -> Self {
        Self {
            view,
            room,
            visibility: OnceCell::new(),
            ignored: OnceCell::new(),
            stretches: OnceCell::new(),
            looks: Cell::new(limits::BUNDLED_LOOKS),
        }
    }

    pub(super) fn form(
        &self,
        event: &EventRef,
        form: &EventForm,
    ) -> Result<ClientEvent, ReadError> {
        let bundle = if form.bundled { Bundle::Everything } else { Bundle::Nothing };
        Ok(form.with_wanted_fields(self.event(event, form, bundle)?))
    }

    /// Like [`RoomFormatter::form`], without content, as if it had been redacted.
    pub(super) fn form_without_content(
        &self,
        event: &EventRef,
        form: &EventForm,
    ) -> Result<ClientEvent, ReadError> {
        let bundle = if form.bundled { Bundle::Everything } else { Bundle::Nothing };
        let event = redacted(self.room, event);
        Ok(form.with_wanted_fields(self.event(&event, form, bundle)?))
    }

    fn event(
        &self,
        event: &EventRef,
        form: &EventForm,
        bundle: Bundle,
    ) -> Result<ClientEvent, ReadError> {
        let (room, at) = (self.room, self.view.at());
        let redaction = room.redaction_of(event.offset, at);
        let mut shown = match form.unredacted {
            true => EventRef::clone(event),
            false => as_shown(room, EventRef::clone(event), at),
        };
        let is_gone =
            self.view.events.is_over(room, &shown) || self.view.is_erased(room, &shown)?;
        if (redaction.is_none() || form.unredacted) && is_gone {
            shown = redacted(room, &shown);
        }
        if form.federation {
            return Ok(self.view.events.in_federation_format(room, &shown).into());
        }
        let mut unsigned = self.unsigned(&shown);
        let previous = self.previous(&shown)?;
        if let Some(previous) = &previous {
            unsigned.prev_content = Some(&previous.content);
            unsigned.prev_sender = Some(&previous.sender);
            unsigned.replaces_state = Some(&previous.event_id);
        }
        if let Some(offset) = redaction
            && let Some(redaction) = self.view.events.redacting(&self.view.state, offset)?
        {
            // A redaction of that redaction is left out, or the chain would have no end.
            let redaction = as_shown(room, redaction, at);
            let unsigned_too = self.unsigned(&redaction);
            unsigned.redacted_by = Some(redaction.event_id.clone());
            unsigned.redacted_because = Some(client_event(room, &redaction, form, &unsigned_too));
        }
        // For the user whom it concerns; others who see the event see the state itself.
        if shown.event_type == TimelineEventType::RoomMember
            && shown.aside.is_none()
            && shown.state_key.as_deref() == Some(self.view.user_id().as_str())
        {
            let is = room.membership(self.view.user_id(), shown.offset).map(|(_, is)| is);
            let stripped = || self.view.events.stripped_state(room, &shown, at);
            match is {
                Some(Membership::Invite) => unsigned.invite_room_state = Some(stripped()?),
                Some(Membership::Knock) => unsigned.knock_room_state = Some(stripped()?),
                _ => {}
            }
        }
        if bundle != Bundle::Nothing && room.has_children(event.offset) {
            unsigned.relations = self.relations(event, form, bundle, redaction.is_some())?;
        }
        Ok(client_event(room, &shown, form, &unsigned))
    }

    /// The additions to every event.
    fn unsigned<'e>(&self, shown: &'e StoredEvent) -> Unsigned<'e> {
        let viewer = self.view.viewer;
        let membership = self.room.membership(viewer.user_id, self.at_event(shown));
        Unsigned {
            age: age(shown, viewer.now_ms),
            transaction_id: shown
                .transaction
                .as_ref()
                .filter(|transaction| transaction.session == viewer.session)
                .map(|transaction| transaction.id.as_str()),
            delay_id: shown.delay_id.as_deref().filter(|_| shown.sender == viewer.user_id),
            membership: Some(membership.map_or(Membership::Leave, |(_, is)| is).as_str()),
            ..Unsigned::default()
        }
    }

    /// The offset whose state of the room is that at the event, as far as is known.
    fn at_event(&self, event: &StoredEvent) -> Offset {
        let slot = event.aside.as_ref().and_then(|_| self.room.slot(event.offset));
        slot.map_or(event.offset, |slot| slot.gap.prev())
    }

    /// The state event that this one replaced, if the user may see it.
    fn previous(&self, event: &StoredEvent) -> Result<Option<EventRef>, ReadError> {
        let Some(state_key) = &event.state_key else { return Ok(None) };
        if event.aside.is_some() && self.room.slot(event.offset).is_some() {
            // Not known.
            return Ok(None);
        }
        let event_type = event.event_type.to_string().into();
        let Some(offset) = self.room.state_before(&event_type, state_key, event.offset) else {
            return Ok(None);
        };
        match self.view.events.get(offset)? {
            Some(previous) if self.visibility().shows(self.view, &previous)? => {
                if self.view.is_erased(self.room, &previous)? {
                    return Ok(Some(redacted(self.room, &previous)));
                }
                Ok(Some(as_shown(self.room, previous, self.view.at())))
            }
            _ => Ok(None),
        }
    }

    /// The events that relate to `event` (client-server API, "Aggregations of child events").
    fn relations(
        &self,
        event: &EventRef,
        form: &EventForm,
        bundle: Bundle,
        is_redacted: bool,
    ) -> Result<Option<Relations>, ReadError> {
        let relations = Relations {
            replace: if is_redacted { None } else { self.replacement(event, form)? },
            thread: if bundle == Bundle::Everything { self.thread(event, form)? } else { None },
            reference: self.references(event)?,
        };
        let any = relations.replace.is_some()
            || relations.thread.is_some()
            || relations.reference.is_some();
        Ok(any.then_some(relations))
    }

    /// The newest edit that is valid (client-server API, "Validity of replacement events").
    fn replacement(
        &self,
        original: &StoredEvent,
        form: &EventForm,
    ) -> Result<Option<ClientEvent>, ReadError> {
        let is_edit = |event| RelatesTo::of(event).is_some_and(|to| to.rel_type == REPLACE);
        if original.state_key.is_some()
            || is_edit(&original.content)
            || self.ignored()?.contains(&original.sender)
        {
            return Ok(None);
        }
        let event_type = original.event_type.to_string();
        let (parent, sender, most) = (original.offset, &original.sender, limits::SCANNED_EDITS);
        let sought = self.sought(self.stretches()?)?;
        let mut edits = self.room.newest_children_of(parent, REPLACE, sender, &sought, most);
        edits.retain(|edit| *edit.event_type == *event_type);
        // The newest by its timestamp; of several with the same one, the largest id.
        edits.sort_by_key(|edit| Reverse(edit.ts));
        let mut newest: Option<(u64, EventRef)> = None;
        for edit in edits {
            if newest.as_ref().is_some_and(|(ts, _)| *ts != edit.ts) {
                break;
            }
            if let Some(event) = self.counting(edit.offset)?
                && is_valid_edit(&event)
                && newest.as_ref().is_none_or(|(_, other)| event.event_id > other.event_id)
            {
                newest = Some((edit.ts, event));
            }
        }
        newest.map(|(_, edit)| self.event(&edit, form, Bundle::Nothing)).transpose()
    }

    /// The thread that begins with `root` (client-server API, "Threading").
    fn thread(&self, root: &StoredEvent, form: &EventForm) -> Result<Option<Thread>, ReadError> {
        if RelatesTo::of(&root.content).is_some() {
            return Ok(None);
        }
        let sought = self.sought(self.stretches()?)?;
        let Some(latest) = self.newest_reply(root.offset, None, &sought)? else { return Ok(None) };
        let me = self.view.user_id();
        let count = self.room.count_children(root.offset, THREAD, &sought);
        Ok(Some(Thread {
            latest_event: self.event(&latest, form, Bundle::WithoutThread)?,
            count: count.saturating_sub(self.over(root.offset, &sought)?).max(1),
            current_user_participated: root.sender == me
                || self.newest_reply(root.offset, Some(me), &sought)?.is_some(),
        }))
    }

    /// The newest reply in a thread, of one user or of any.
    pub(super) fn newest_reply(
        &self,
        root: Offset,
        of: Option<&UserId>,
        sought: &ChildQuery<'_>,
    ) -> Result<Option<EventRef>, ReadError> {
        let newest = |most| match of {
            Some(user_id) => self.room.newest_children_of(root, THREAD, user_id, sought, most),
            None => self.room.newest_children(root, THREAD, sought, most),
        };
        // Nearly always it is the first.
        for (passed, most) in [(0, 1), (1, limits::SCANNED_CHILDREN)] {
            for reply in newest(most).into_iter().skip(passed) {
                if let Some(event) = self.counting(reply.offset)? {
                    return Ok(Some(event));
                }
            }
        }
        Ok(None)
    }

    /// How many of the counted replies have expired and wait for the next sweep. They are among the
    /// oldest.
    fn over(&self, root: Offset, sought: &ChildQuery<'_>) -> Result<usize, ReadError> {
        let (room, at) = (self.room, self.view.at());
        let Some(youngest_ms) = self.view.events.youngest_over_ms(room) else { return Ok(0) };
        let most = limits::SCANNED_CHILDREN.min(self.looks.get());
        let mut over = 0;
        for offset in room.page_of_children(root, Some(THREAD), at, (Offset::ZERO, at), false, most)
        {
            self.looks.set(self.looks.get().saturating_sub(1));
            let Some(event) = self.view.events.get(offset)? else { continue };
            if event.lives_since_ms() > youngest_ms {
                // Fetched history is in the order in which it came.
                if event.aside.is_some() {
                    continue;
                }
                break;
            }
            let counted = sought.holds(offset) && !sought.without.contains(&event.sender);
            over += usize::from(counted && self.view.events.is_over(room, &event));
        }
        Ok(over)
    }

    /// The events that refer to `event`, oldest first.
    fn references(&self, event: &StoredEvent) -> Result<Option<References>, ReadError> {
        let most = limits::BUNDLED_REFERENCES.min(self.looks.get());
        let sought = self.sought(self.stretches()?)?;
        let newest = self.room.newest_children(event.offset, REFERENCE, &sought, most);
        self.looks.set(self.looks.get().saturating_sub(newest.len()));
        let mut chunk = Vec::new();
        for reference in newest.into_iter().rev() {
            let event = self.counting(reference.offset)?;
            chunk.extend(event.map(|event| Reference { event_id: event.event_id.clone() }));
        }
        Ok((!chunk.is_empty()).then_some(References { chunk }))
    }

    /// The event, unless it has expired.
    fn counting(&self, offset: Offset) -> Result<Option<EventRef>, ReadError> {
        let event = self.view.events.get(offset)?;
        Ok(event.filter(|event| !self.view.events.is_over(self.room, event)))
    }

    /// A query for the visible events in these ranges: not redacted, and not by a user whom the
    /// viewer ignores.
    pub(super) fn sought<'a>(
        &'a self,
        stretches: &'a [(Offset, Offset)],
    ) -> Result<ChildQuery<'a>, ReadError> {
        Ok(ChildQuery { stretches, without: self.ignored()?, at: self.view.at() })
    }

    /// The visible ranges of the timeline.
    pub(super) fn stretches(&self) -> Result<&[(Offset, Offset)], ReadError> {
        if let Some(stretches) = self.stretches.get() {
            return Ok(stretches);
        }
        // Related events in a gap have the offset at which they were fetched, which does not say
        // whether a user who does not see everything may see them.
        let stretches = if self.room.is_gapped() && !self.visibility().is_joined() {
            Vec::new()
        } else {
            self.visibility().stretches(self.view)?
        };
        Ok(self.stretches.get_or_init(|| stretches))
    }

    pub(super) fn visibility(&self) -> &Visibility<'v> {
        self.visibility.get_or_init(|| Visibility::of(self.view, self.room))
    }

    /// The users whom the viewer ignores.
    pub(super) fn ignored(&self) -> Result<&BTreeSet<OwnedUserId>, ReadError> {
        if let Some(ignored) = self.ignored.get() {
            return Ok(ignored.users());
        }
        let ignored = self.view.ignored()?;
        Ok(self.ignored.get_or_init(|| ignored).users())
    }
}

/// Whether an event that replaces another one of the same type and sender is a valid edit. The
/// content of an encrypted one is unknown.
fn is_valid_edit(edit: &StoredEvent) -> bool {
    #[derive(Deserialize)]
    struct Content {
        #[serde(rename = "m.new_content")]
        _new_content: IgnoredAny,
    }
    edit.state_key.is_none()
        && (edit.event_type == TimelineEventType::RoomEncrypted
            || edit.content_as::<Content>().is_ok())
}
