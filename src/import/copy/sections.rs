//! Goes through the sections of the source, and hands each fact to what makes a record of it.

use super::{
    Progress, Stop,
    changes::marked,
    compare::Comparison,
    convert::{
        Made,
        accounts::{self, Part},
        keys, oauth, peers, personal, rooms,
        sessions::{self, Session},
    },
    gaps::note_missing,
    gather::{Gather, Gathered, Group},
    index::Status,
    media::MediaPlaces,
    pipeline::ReadySlice,
    prepare::Ready,
    progress::Pass,
    resume::{Handled, Place, handled_of},
    rules::{self, room_fault},
    writer::{Left, Writer},
};
use crate::{
    ImportError,
    facts::{Cursor, Fact, Origin, Section, ServerKey},
};
use logcabin_base::limits;

/// What is copied while the source may be in use: what is large, and mostly grows. Nothing is here
/// that a source takes back when it is used, such as tokens and keys: see [`super::changes`].
pub(super) const EARLY: &[Section] = &[
    Section::Accounts,
    Section::Profiles,
    // What a user has not read is counted by the rules, and without those who are ignored, of the
    // time of each event.
    Section::AccountData,
    Section::PushRules,
    Section::PushRuleChanges,
    Section::Rooms,
    Section::Outliers,
    Section::Events,
    Section::Backfilled,
    Section::KeyBackups,
    Section::BackedUpKeys,
    Section::Receipts,
    Section::Filters,
    Section::Media,
    Section::PeerCrossSigningKeys,
    Section::PeerDeviceLists,
    Section::PeerDevices,
    // Rooms that are quiet need not be compared when the source has stopped.
    Section::CurrentState,
];

/// What a copy takes that goes on.
pub(super) const TAIL: &[Section] = &[Section::Outliers, Section::Events];

/// Everything, in the order of the log, apart from sections of which nothing is made: what they say
/// of events is in the events, and how far other servers have been told is with their names.
pub(super) const ALL: &[Section] = &[
    Section::RegistrationTokens,
    Section::Accounts,
    Section::Profiles,
    Section::Threepids,
    Section::ThreepidBindings,
    Section::ExternalIds,
    // What was sent before is said of the session.
    Section::Transactions,
    Section::OauthClients,
    // The sessions are written after the last of these five.
    Section::OauthGrants,
    Section::DehydratedDevices,
    Section::Devices,
    Section::AccessTokens,
    Section::RefreshTokens,
    Section::DeviceKeys,
    Section::OneTimeKeys,
    Section::FallbackKeys,
    Section::CrossSigningKeys,
    Section::KeySignatures,
    Section::KeyBackups,
    Section::BackedUpKeys,
    Section::PeerKeys,
    // As in the first copy, before the events.
    Section::AccountData,
    Section::PushRules,
    Section::PushRuleChanges,
    Section::Rooms,
    Section::Outliers,
    Section::Events,
    Section::Backfilled,
    Section::BackwardExtremities,
    Section::Memberships,
    Section::Aliases,
    Section::Directory,
    Section::RoomBlocks,
    Section::Tags,
    Section::Pushers,
    Section::Receipts,
    Section::Filters,
    Section::ThreadSubscriptions,
    Section::Presence,
    Section::DelayedEvents,
    Section::Reports,
    Section::Media,
    Section::RemoteMedia,
    // The devices come last: what has changed of their users is known then.
    Section::PeerCrossSigningKeys,
    Section::PeerDeviceLists,
    Section::PeerDevices,
    // Up to here, everybody was told. What follows has not arrived.
    Section::Destinations,
    Section::DeviceChanges,
    Section::AppServiceTransactions,
    Section::AppServices,
    Section::ToDevice,
    Section::ToPeerDevice,
    Section::CurrentState,
    Section::ForwardExtremities,
];

/// Why going through sections ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    Complete,
    /// It was asked to stop. Everything is saved.
    Stopped,
}

/// Goes through sections. See the module's documentation.
pub(super) struct Sections<'a, 'b> {
    pub(super) writer: &'a mut Writer<'b>,
    pub(super) gather: Gather,
    pub(super) media: Option<&'a MediaPlaces>,
    pub(super) stop: Stop<'a>,
    pub(super) secret: &'a [u8],
    /// The keys that the source signs with, and did.
    pub(super) keys: &'a [ServerKey],
    pub(super) progress: &'a mut dyn FnMut(&Progress),
    /// Whether it was read what must be known of rooms.
    pub(super) knows_rooms: bool,
}

impl Sections<'_, '_> {
    /// Goes through these sections, from where the pass stands.
    pub(super) fn run(&mut self, sections: &[Section]) -> Result<Ended, ImportError> {
        self.read_rooms()?;
        let (begin, mut cursor, mut handled) = {
            let progress = &self.writer.progress;
            (progress.section, progress.cursor.clone(), progress.handled)
        };
        for (index, section) in sections.iter().enumerate().skip(begin) {
            if index > begin || (cursor.is_start() && handled.is_none()) {
                (cursor, handled) = (self.start_of(*section), None);
            }
            self.writer.progress.counts.enter(*section);
            if *section == Section::Receipts && self.writer.progress.pass == Pass::Finish {
                self.write_waiting_receipts()?;
            }
            if *section == Section::CurrentState && self.writer.progress.pass == Pass::Finish {
                self.writer.write_waiting_changes()?;
            }
            if let Some(owners) = self.owners(*section)? {
                if self.run_of(index, *section, &owners)? == Ended::Stopped {
                    return Ok(Ended::Stopped);
                }
                self.end(*section)?;
                continue;
            }
            loop {
                let slice = self.writer.feeder.slice(*section, &cursor)?;
                let next = slice.next.clone();
                let Some(from) = handled_of(&slice.facts, *section, handled) else {
                    (cursor, handled) = (self.start_of(*section), None);
                    continue;
                };
                let place = Place { section: index, cursor: &cursor, handled };
                if self.slice(*section, slice, from, place)? == Ended::Stopped {
                    return Ok(Ended::Stopped);
                }
                self.tell(*section);
                let Some(next) = next else { break };
                (cursor, handled) = (next, None);
            }
            self.end(*section)?;
        }
        Ok(Ended::Complete)
    }

    /// Goes through what belongs to some users or rooms in a section.
    fn run_of(
        &mut self,
        index: usize,
        section: Section,
        owners: &[String],
    ) -> Result<Ended, ImportError> {
        // The rows of one are in the order of an index; those of several are sorted for each slice,
        // which is no loss if they have few.
        let at_once = if section == Section::PeerDevices { limits::SOURCE_OWNERS } else { 1 };
        for some in owners.chunks(at_once) {
            let mut cursor = Cursor::START;
            loop {
                let slice = self.writer.feeder.slice_of(section, some, &cursor)?;
                let next = slice.next.clone();
                if self.slice(section, slice, 0, Place::start(index, &cursor))? == Ended::Stopped {
                    return Ok(Ended::Stopped);
                }
                self.tell(section);
                let Some(next) = next else { break };
                cursor = next;
            }
        }
        Ok(Ended::Complete)
    }

    fn tell(&mut self, section: Section) {
        let progress = &self.writer.progress;
        let told = Progress {
            section,
            rows: progress.counts.read_rows().values().sum(),
            records: self.writer.log.tip().offset.get(),
            newest: progress.newest,
        };
        (self.progress)(&told);
    }

    fn start_of(&mut self, section: Section) -> Cursor {
        let is_last = self.writer.progress.pass == Pass::Finish;
        // Receipts have numbers, and a newer one replaces the one before it.
        let goes_on = match section {
            Section::Receipts => is_last && !self.writer.marks.has_more_receipts,
            _ => section.grows(),
        };
        let progress = &mut self.writer.progress;
        if goes_on && let Some(cursor) = progress.grown.get(&section) {
            return cursor.clone();
        }
        // Of these, only what has changed is read again.
        let adds = is_last && matches!(section, Section::BackedUpKeys | Section::PeerDevices);
        if !section.grows() && !adds {
            progress.counts.begin(section);
        }
        Cursor::START
    }

    /// Handles the facts of a slice, apart from so many that were handled before. `place` is the
    /// first of the others.
    fn slice(
        &mut self,
        section: Section,
        slice: ReadySlice,
        from: usize,
        mut place: Place<'_>,
    ) -> Result<Ended, ImportError> {
        let ReadySlice { facts, bad, end, partial, .. } = slice;
        if let Some(partial) = partial {
            // A room may become one while the source is followed.
            self.gather.partial = partial.into_iter().collect();
            self.gather.partial.extend(self.writer.progress.partial.iter().cloned());
        }
        if section == Section::PeerDevices {
            self.read_peers(&facts)?;
        }
        if section == Section::Receipts && self.writer.progress.pass == Pass::Copy {
            // The last thousands are read again: one with a lower number may be under way yet.
            if let Some(before) = self.gather.receipts_from.replace(place.cursor.clone()) {
                self.writer.progress.grown.insert(section, before);
            }
        }
        for ready in facts.into_iter().skip(from) {
            let continues =
                self.gather.group.as_ref().is_some_and(|group| group.takes(&ready.told.fact));
            if !continues {
                self.flush()?;
                if self.gather.is_clean() {
                    let place = saved_place(section, place);
                    if (self.stop)() {
                        self.writer.stop(place)?;
                        return Ok(Ended::Stopped);
                    }
                    self.writer.between(place)?;
                } else {
                    self.writer.within()?;
                }
            }
            let origin = ready.told.origin.table;
            self.writer.progress.counts.read(section, origin, &ready.hash);
            place.handled = Some(Handled::after(place.handled, section, &ready));
            self.fact(ready)?;
        }
        for bad in &bad {
            self.gather.seen.add_bad(bad);
            let Writer { list, progress, .. } = &mut *self.writer;
            list.leave_bad(&mut progress.counts, bad)?;
        }
        if section.grows() {
            self.writer.progress.grown.insert(section, end);
        }
        Ok(Ended::Complete)
    }

    /// What must be known of rooms before their events, also after an interruption.
    fn read_rooms(&mut self) -> Result<(), ImportError> {
        if std::mem::replace(&mut self.knows_rooms, true) {
            return Ok(());
        }
        let mut cursor = Cursor::START;
        loop {
            let slice = self.writer.feeder.slice(Section::Rooms, &cursor)?;
            for ready in slice.facts {
                match ready.told.fact {
                    Fact::Room(room) => {
                        self.purge_if_rejoined(&room)?;
                        self.know_room(room);
                    }
                    Fact::BanRedaction(ban) => self.writer.know_ban(ban)?,
                    _ => {}
                }
            }
            match slice.next {
                Some(next) => cursor = next,
                None => return Ok(()),
            }
        }
    }

    /// Writes what a function made of a row, or leaves the row.
    pub(super) fn made(
        &mut self,
        origin: &Origin,
        made: Result<Made, Left>,
    ) -> Result<(), ImportError> {
        match made {
            Ok(made) => {
                self.writer.put(origin, made.original_ms, &made.commands)?;
                Ok(())
            }
            Err((reason, why)) => self.writer.leave(origin, reason, &why),
        }
    }

    /// The same for a message: there may be several that are alike.
    fn made_again(&mut self, origin: &Origin, made: Result<Made, Left>) -> Result<(), ImportError> {
        match made {
            Ok(made) => {
                self.writer.put_again(origin, made.original_ms, &made.commands)?;
                Ok(())
            }
            Err((reason, why)) => self.writer.leave(origin, reason, &why),
        }
    }

    pub(super) fn made_partly(
        &mut self,
        origin: &Origin,
        made: Result<(Made, Vec<Left>), Left>,
    ) -> Result<(), ImportError> {
        match made {
            Ok((made, left)) => {
                for (reason, why) in left {
                    self.writer.leave(origin, reason, &why)?;
                }
                self.made(origin, Ok(made))
            }
            Err(left) => self.made(origin, Err(left)),
        }
    }

    fn leave(&mut self, origin: &Origin, reason: &'static str) -> Result<(), ImportError> {
        self.writer.leave(origin, reason, reason)
    }

    fn fact(&mut self, ready: Ready) -> Result<(), ImportError> {
        let Ready { told, event, hash } = ready;
        if self.is_too_early(&told.fact) {
            return Ok(());
        }
        let origin = &told.origin;
        if self.writer.progress.pass == Pass::Finish
            && let Some(reason) = self.gather.owners.note(&told.fact, &self.writer.own)
        {
            return self.leave(origin, reason);
        }
        if let Fact::BackedUpKey(key) = &told.fact {
            self.gather.changed_backups.note(key);
        }
        let fact = match &mut self.gather.group {
            Some(group) if group.takes(&told.fact) => {
                group.add(told.fact);
                return Ok(());
            }
            _ => told.fact,
        };
        let fact = match Gathered::begin(origin, fact) {
            Ok(group) => {
                self.gather.group = Some(group);
                return Ok(());
            }
            Err(fact) => *fact,
        };
        let own = self.writer.own.clone();
        let pass = self.writer.progress.pass;
        if pass == Pass::Finish {
            self.gather.seen.add(&fact);
        }
        match fact {
            Fact::Event(fact) => {
                let progress = &mut self.writer.progress;
                progress.newest = progress.newest.max(fact.stream);
                progress.oldest = progress.oldest.min(fact.stream);
                if self.is_partial(&fact.room_id)? {
                    self.writer.progress.partial.insert(fact.room_id.clone());
                    return self.leave(origin, rules::PARTIAL);
                }
                match event {
                    Some(Ok(ready)) => self.writer.event(origin, &fact, *ready),
                    Some(Err(why)) => self.writer.leave(origin, "it cannot be an event", &why),
                    None => Ok(()),
                }
            }
            Fact::StateDelta(fact) => match self.is_partial(&fact.room_id)? {
                true => Ok(()),
                false => self.writer.delta(origin, fact),
            },
            Fact::Account(fact) => {
                let exists = self.writer.known.all.accounts.contains(&*fact.user_id);
                let part = match pass {
                    Pass::Finish if exists => Part::Rest,
                    Pass::Finish => Part::Whole,
                    // A guest may become another user, and no record takes that back.
                    _ if exists || fact.guest => return Ok(()),
                    _ => Part::Begin,
                };
                if part == Part::Rest
                    && let Ok(begin) = accounts::account(&fact, &own, Part::Begin)
                    && !self.writer.was_put(origin, &begin)
                    && let Ok(Some(agreed)) = accounts::agreed(&fact, &own)
                {
                    self.made(origin, Ok(agreed))?;
                }
                self.made(origin, accounts::account(&fact, &own, part))
            }
            Fact::RegistrationToken(fact) => {
                self.made(origin, Ok(accounts::registration_token(&fact)))
            }
            Fact::Profile(fact) => self.made(origin, accounts::profile(fact, &own)),
            Fact::Threepid(fact) => self.made(origin, accounts::threepid_add(&fact, &own)),
            Fact::ThreepidBinding(fact) => self.made(origin, accounts::threepid_bind(fact, &own)),
            Fact::ExternalId(fact) => self.made(origin, accounts::external_id(fact, &own)),
            Fact::OauthClient(fact) => {
                let client_id = fact.client_id.clone();
                let made = oauth::client(fact);
                if made.is_ok() {
                    self.gather.clients.insert(client_id);
                }
                self.made_partly(origin, made)
            }
            Fact::OauthGrant(fact) => {
                let granted = self.granted(origin, fact.grant_id.clone());
                (granted.origin, granted.grant) = (origin.clone(), Some(fact));
                Ok(())
            }
            Fact::DehydratedDevice(fact) => {
                self.session(origin, (fact.user_id, fact.device_id)).dehydrated = Some(fact.data);
                Ok(())
            }
            Fact::Device(fact) => {
                let id = (fact.user_id.clone(), fact.device_id.clone());
                self.session(origin, id).device = Some(fact);
                Ok(())
            }
            Fact::AccessToken(fact) => {
                if let Some(grant_id) = fact.grant_id.clone() {
                    self.granted(origin, grant_id).access.push(fact);
                    return Ok(());
                }
                let Some(device_id) = fact.device_id.clone() else {
                    return self.leave(origin, rules::NO_DEVICE_NAMED);
                };
                let id = (fact.user_id.clone(), device_id);
                self.session(origin, id).access.push(fact);
                Ok(())
            }
            Fact::RefreshToken(fact) => {
                if let Some(grant_id) = fact.grant_id.clone() {
                    self.granted(origin, grant_id).refresh.push(fact);
                    return Ok(());
                }
                let Some(device_id) = fact.device_id.clone() else {
                    return self.leave(origin, rules::NO_DEVICE_NAMED);
                };
                let id = (fact.user_id.clone(), device_id);
                self.session(origin, id).refresh.push(fact);
                Ok(())
            }
            Fact::DeviceKeys(fact) => {
                let device_id = fact.device_id.as_str().into();
                self.gather.keyed.insert(fact.user_id.as_str().into(), device_id);
                self.made(origin, keys::device_keys(fact, &own))
            }
            Fact::DeviceChange(fact) => {
                // One for each user says that something changed, and is told to all servers.
                match self.gather.keyed.remove(fact.user_id.as_str()) {
                    Some(device_id) => {
                        let made = keys::device_change(&fact, device_id.into(), &own);
                        self.gather.changed.insert(fact.user_id.into());
                        self.made(origin, made)
                    }
                    None if self.gather.changed.contains(fact.user_id.as_str()) => Ok(()),
                    None => self.leave(origin, rules::NO_KEYS_LEFT),
                }
            }
            Fact::FallbackKey(fact) => self.made(origin, keys::fallback_key(fact, &own)),
            Fact::CrossSigningKey(fact) => self.made(origin, keys::cross_signing_key(fact, &own)),
            Fact::KeySignature(fact) => self.made(origin, keys::signature(fact, &own)),
            Fact::KeyBackup(fact) => {
                self.gather.mark_backup(&mut self.writer.marks, pass, &fact);
                self.made(origin, keys::backup(fact, &own))
            }
            Fact::ToDevice(fact) => self.made_again(origin, keys::to_device(&fact, &own)),
            Fact::ToPeerDevice(fact) => self.made_again(origin, keys::to_peer_device(&fact, &own)),
            Fact::Room(fact) if self.gather.partial.contains(&fact.room_id) => {
                let why = match fact.partial {
                    true => rules::STILL_PARTIAL,
                    false => {
                        "the source had not been told of all its members when it was copied; \
                         import into an empty directory to take it along"
                    }
                };
                self.writer.leave(origin, rules::PARTIAL, why)
            }
            Fact::Room(fact) => match room_fault(&fact) {
                Some((reason, why)) => self.writer.leave(origin, reason, &why),
                None => Ok(()),
            },
            Fact::BackwardExtremity(fact) => {
                note_missing(&mut self.gather.missing, fact);
                Ok(())
            }
            Fact::Membership(fact) if fact.forgotten => {
                self.made(origin, rooms::forgotten(&fact, &own))
            }
            Fact::Alias(fact) => {
                let creator = self.gather.creators.get(&fact.room_id).map(String::as_str);
                let made = rooms::alias(&fact, creator, &own);
                self.made(origin, made)
            }
            Fact::Published(fact) => self.made(origin, rooms::published(fact)),
            Fact::RoomBlock(fact) => self.made(origin, rooms::block(&fact)),
            Fact::AccountData(fact) => self.made(origin, personal::account_data(fact, &own)),
            Fact::PushRule(fact) => {
                let rules = self.gather.rules.entry(fact.user_id.clone());
                rules.or_insert_with(|| (origin.clone(), vec![], vec![])).1.push(fact);
                Ok(())
            }
            Fact::PushRuleChange(fact) => {
                let rules = self.gather.rules.entry(fact.user_id.clone());
                rules.or_insert_with(|| (origin.clone(), vec![], vec![])).2.push(fact);
                Ok(())
            }
            Fact::Pusher(fact) => self.made(origin, personal::pusher(fact, &own)),
            Fact::Filter(fact) => self.made(origin, personal::filter(fact, &own)),
            Fact::Presence(fact) => self.made(origin, personal::presence(fact, &own)),
            Fact::DelayedEvent(fact) => self.made(origin, personal::delayed(fact, &own)),
            Fact::Report(fact) => self.made(origin, rooms::report(fact, &own)),
            Fact::Media(fact) => self.writer.media(self.media, origin, &fact),
            Fact::RemoteMedia(fact) => self.writer.remote_media(origin, &fact),
            Fact::PeerCrossSigningKey(fact) => {
                let mark = self.gather.peer_marks.entry(fact.user_id).or_default();
                *mark = marked(*mark, &hash);
                Ok(())
            }
            Fact::PeerDeviceList(fact) => {
                let mark = self.gather.peer_marks.entry(fact.user_id).or_default();
                *mark = marked(*mark, &hash);
                Ok(())
            }
            Fact::Destination(fact) => {
                self.gather.destinations.push((origin.clone(), fact));
                Ok(())
            }
            Fact::AppService(fact) => {
                self.gather.services.push((origin.clone(), fact));
                Ok(())
            }
            Fact::CurrentState(fact) => match self.gather.partial.contains(&fact.room_id) {
                true => Ok(()),
                false => self.writer.compare_state(&mut self.gather.comparison, &fact),
            },
            Fact::ForwardExtremity(fact) => {
                self.writer.compare_tip(&mut self.gather.comparison, fact)
            }
            Fact::ThreadSubscription(_) => self.leave(origin, rules::NO_SUBSCRIPTIONS),
            Fact::Transaction(fact) => {
                self.writer.known.look_at(&fact.room_id);
                let seen = self.writer.known.seen(&fact.event_id);
                // The events of the tail say it themselves.
                if let Some(seen) = seen.filter(|seen| seen.status == Status::Timeline) {
                    self.gather.sent.add(fact, seen.offset);
                }
                Ok(())
            }
            Fact::AppServiceTransaction(fact) => {
                let events =
                    fact.event_ids.iter().filter_map(|id| self.writer.known.events.get(id));
                if let Some(first) = events.map(|seen| seen.offset).min() {
                    let known = self.gather.untaken.entry(fact.id).or_insert(first);
                    *known = first.min(*known);
                }
                Ok(())
            }
            // It is with the destination.
            Fact::DestinationRoom(_) => Ok(()),
            // The events say it, or nothing is to be said.
            Fact::BanRedaction(_)
            | Fact::Membership(_)
            | Fact::TimelineGap(_)
            | Fact::Redaction(_)
            | Fact::RoomRetention(_)
            | Fact::ServerKey(_) => Ok(()),
            // These are gathered.
            Fact::OneTimeKey(_)
            | Fact::BackedUpKey(_)
            | Fact::PeerKey(_)
            | Fact::PeerDevices(_)
            | Fact::Tag(_)
            | Fact::Receipt(_) => Ok(()),
        }
    }

    fn granted(&mut self, origin: &Origin, grant_id: String) -> &mut sessions::Granted {
        let grants = self.gather.grants.entry(grant_id);
        grants.or_insert_with(|| sessions::Granted::new(origin.clone()))
    }

    fn session(&mut self, origin: &Origin, id: (String, String)) -> &mut Session {
        self.gather.session_origins.entry(id.clone()).or_insert_with(|| origin.clone());
        self.gather.sessions.entry(id).or_default()
    }

    /// Writes the group that was gathered.
    fn flush(&mut self) -> Result<(), ImportError> {
        let Some(Gathered { origin, group, .. }) = self.gather.group.take() else { return Ok(()) };
        let own = self.writer.own.clone();
        match group {
            Group::OneTimeKeys(facts) => self.made(&origin, keys::one_time_keys(facts, &own)),
            Group::BackedUpKeys(facts) => self.made(&origin, keys::backed_up_keys(facts, &own)),
            Group::PeerKeys(facts) => self.made(&origin, peers::peer_keys(facts)),
            Group::Tags(facts) => self.made(&origin, personal::tags(facts, &own)),
            Group::Receipts(facts) => {
                let facts = self.known_receipts(&origin, facts);
                self.made_partly(&origin, rooms::receipts(facts))
            }
            Group::PeerDevices(facts) => {
                let user_id = facts.first().map(|fact| fact.user_id.clone()).unwrap_or_default();
                let known = self.gather.peers.remove(&user_id).unwrap_or_default();
                self.gather.with_devices.insert(user_id.as_str().into());
                self.made(&origin, peers::peer_devices(&user_id, facts, known))
            }
        }
    }

    /// Writes what was gathered in a section, and in those before it.
    fn end(&mut self, section: Section) -> Result<(), ImportError> {
        self.flush()?;
        if section == Section::BackedUpKeys {
            self.remove_gone_keys()?;
        }
        self.remove_gone(section)?;
        match section {
            Section::RefreshTokens => self.write_sessions(),
            Section::PushRuleChanges => {
                let own = self.writer.own.clone();
                for (user_id, (origin, rules, changes)) in std::mem::take(&mut self.gather.rules) {
                    let made = personal::push_rules(&user_id, rules, &changes, &own);
                    self.made_partly(&origin, made)?;
                    self.writer.within()?;
                }
                Ok(())
            }
            Section::Receipts => {
                self.gather.receipts_from = None;
                Ok(())
            }
            // Of users without devices, the keys are asked for again.
            Section::PeerDevices => self.end_peers(),
            Section::BackwardExtremities => {
                let missing = std::mem::take(&mut self.gather.missing);
                self.writer.fill_gaps(missing)
            }
            Section::Destinations => self.write_destinations(),
            Section::AppServices => self.write_services(),
            Section::CurrentState => {
                self.writer.end_state(&mut self.gather.comparison)?;
                if self.writer.progress.pass == Pass::Copy {
                    self.gather.comparison = Comparison::default();
                }
                Ok(())
            }
            Section::ForwardExtremities => self.writer.end_tips(&mut self.gather.comparison),
            _ => Ok(()),
        }
    }

    fn write_sessions(&mut self) -> Result<(), ImportError> {
        let own = self.writer.own.clone();
        let mut origins = std::mem::take(&mut self.gather.session_origins);
        let mut sessions = std::mem::take(&mut self.gather.sessions);
        let mut sent = std::mem::take(&mut self.gather.sent);
        let grants = std::mem::take(&mut self.gather.grants);
        let clients = std::mem::take(&mut self.gather.clients);
        let (lone, left) = sessions::assign(grants, &clients, &mut sessions, &mut origins);
        for (origin, (reason, why)) in left {
            self.writer.leave(&origin, reason, &why)?;
        }
        for (id, session) in sessions {
            let Some(origin) = origins.get(&id) else { continue };
            let now = (self.secret, self.writer.progress.now_ms);
            let session = Session { sent: sent.take(&id), ..session };
            let made = sessions::session((&id.0, &id.1), session, &own, now);
            self.made_partly(origin, made)?;
            self.writer.within()?;
        }
        for granted in lone {
            let origin = granted.0.origin.clone();
            self.made(&origin, sessions::lone_grant(granted, &own, self.secret))?;
            self.writer.within()?;
        }
        Ok(())
    }

    /// Which sections a pass goes through.
    pub(super) const fn of(pass: Pass) -> &'static [Section] {
        match pass {
            Pass::Copy => EARLY,
            Pass::Follow => TAIL,
            Pass::Finish => ALL,
            Pass::Sealed => &[],
        }
    }
}

/// The place that is saved for one in a section. A room's state is compared as a whole, and users
/// of other servers are marked as a whole: these sections are read from their start again.
fn saved_place(section: Section, place: Place<'_>) -> Place<'_> {
    static START: Cursor = Cursor::START;
    let before = match section {
        Section::CurrentState | Section::PeerCrossSigningKeys => 0,
        Section::PeerDeviceLists => 1,
        Section::PeerDevices => 2,
        _ => return place,
    };
    // They are next to each other in each pass.
    Place::start(place.section.saturating_sub(before), &START)
}
