//! What an operator asks for about uploaded files.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    ops::RangeInclusive,
};

use ruma::{MxcUri, OwnedMxcUri, OwnedUserId};
use serde_json::Value;

use super::{
    acts::{Done, MediaOf, MediaSummary, MediaUsage},
    office::{ActError, Office},
};
use crate::{
    base::{background, limits},
    decide::{
        media::{ProtectMedia, QuarantineMedia, RemoveMedia},
        moderation::Because,
    },
    log::ReadError,
    record::{Command, Offset, Origin},
    service::erasure,
    state::media::{Item, Stored},
};

/// Events of a room that are looked at together.
const EVENTS: usize = 500;

/// The fields of an event in which addresses of files stand.
const POINTERS: [&str; 6] = [
    "/url",
    "/avatar_url",
    "/file/url",
    "/info/thumbnail_url",
    "/info/thumbnail_file/url",
    "/m.new_content/url",
];

impl Office {
    /// The id of the file that an id or an address names.
    pub(super) fn media_id(&self, name: &str) -> Result<String, ActError> {
        let id = match <&MxcUri>::from(name).parts() {
            Ok((server, id)) if *server == self.engine.env().server.name => id,
            Ok(_) => return Err(ActError::NoMedia(name.to_owned())),
            Err(_) => name,
        };
        match self.engine.state().media.get(id) {
            Some(Item::Stored(_)) => Ok(id.to_owned()),
            _ => Err(ActError::NoMedia(name.to_owned())),
        }
    }

    /// The ids of files of this server, and the addresses of others that were found with them.
    fn ids(&self, of: &MediaOf) -> Result<(Vec<String>, Vec<OwnedMxcUri>), ActError> {
        match of {
            MediaOf::Id(id) => Ok((vec![self.media_id(id)?], Vec::new())),
            MediaOf::User(user) => {
                let own = self.engine.state().media.of_user(&self.user_id(user)?);
                Ok((own.into_iter().map(|(id, _)| id.into()).collect(), Vec::new()))
            }
            MediaOf::Ids(ids) => {
                let there = ids.iter().map(|id| self.media_id(id));
                Ok((there.collect::<Result<_, _>>()?, Vec::new()))
            }
            MediaOf::Before { before_ms, larger_than, pictures } => {
                let shown =
                    if *pictures { HashSet::new() } else { erasure::pictures(&self.engine)? };
                let all = self.engine.state().media.all().into_iter();
                let old = all.filter(|(id, stored)| {
                    stored.time_ms < *before_ms
                        && stored.size > *larger_than
                        && !shown.contains(&**id)
                });
                Ok((old.map(|(id, _)| id.to_string()).collect(), Vec::new()))
            }
            MediaOf::Room(room) => {
                let found = background::at_length(|| self.addresses_in(room))?;
                let own_name = &self.engine.env().server.name;
                let (mut own, mut remote) = (Vec::new(), Vec::new());
                for address in found {
                    match address.parts() {
                        Ok((server, id)) if server == own_name => own.push(id.to_owned()),
                        Ok(_) => remote.push(address),
                        Err(_) => {}
                    }
                }
                let media = &self.engine.state().media;
                own.retain(|id| matches!(media.get(id), Some(Item::Stored(_))));
                Ok((own, remote))
            }
        }
    }

    /// The addresses that the events of a room name, as far as they are not encrypted.
    fn addresses_in(&self, room: &str) -> Result<BTreeSet<OwnedMxcUri>, ActError> {
        let room = self.room(room)?;
        let mut found = BTreeSet::new();
        let mut after = Offset::ZERO;
        loop {
            let offsets = room.events_forward(after, Offset::MAX, EVENTS);
            let Some(last) = offsets.last() else { return Ok(found) };
            after = *last;
            for event in self.engine.events().get_all(&offsets)? {
                let content: Value = event.content_as().unwrap_or_default();
                let texts = POINTERS.iter().filter_map(|at| content.pointer(at)?.as_str());
                found.extend(texts.map(OwnedMxcUri::from).filter(|address| address.is_valid()));
            }
        }
    }

    /// Some files.
    pub(crate) fn list_media(&self, of: &MediaOf) -> Result<Done, ActError> {
        let (ids, remote) = self.ids(of)?;
        let state = self.engine.state();
        let mut media = Vec::with_capacity(ids.len());
        for id in ids {
            if let Some(Item::Stored(stored)) = state.media.get(&id) {
                media.push(self.media_summary(id, stored)?);
            }
        }
        Ok(Done::Media { media, remote })
    }

    fn media_summary(&self, media_id: String, stored: Stored) -> Result<MediaSummary, ReadError> {
        let (media_type, upload_name) = match self.engine.events().command(stored.offset)? {
            Some(Command::MediaUpload(body)) => (body.content_type, body.name),
            _ => (None, None),
        };
        let media = &self.engine.state().media;
        let quarantined = media.quarantined(&media_id);
        Ok(MediaSummary {
            safe_from_quarantine: media.is_protected(&media_id),
            quarantined_by: quarantined.map(|offset| self.by(offset)).transpose()?,
            media_id,
            user_id: stored.user_id,
            created_ts: stored.time_ms,
            media_length: stored.size,
            media_type,
            upload_name,
            blake3: stored.hash.to_string(),
        })
    }

    pub(super) async fn quarantine(
        &self,
        of: MediaOf,
        quarantined: bool,
        origin: Origin,
        reason: Option<String>,
    ) -> Result<Done, ActError> {
        let mut changed = Vec::new();
        for some in self.ids(&of)?.0.chunks(limits::QUARANTINE_IDS) {
            let (media_ids, reason) = (some.to_vec(), reason.clone());
            let proposal = QuarantineMedia { media_ids, quarantined, reason };
            let done = self.engine.propose(origin.clone(), proposal).await;
            changed.extend(done.map_err(ActError::Rejected)?.into_inner());
        }
        Ok(Done::Quarantined { media_ids: changed, quarantined })
    }

    pub(super) async fn delete_media(
        &self,
        of: &MediaOf,
        origin: Origin,
        reason: Option<String>,
    ) -> Result<Done, ActError> {
        let mut gone = Vec::new();
        let ids = background::at_length(|| self.ids(of))?.0;
        for some in ids.chunks(limits::QUARANTINE_IDS) {
            let of = RemoveMedia { media_ids: some.to_vec() };
            let because = Because { of, reason: reason.clone() };
            let done = self.engine.propose(origin.clone(), because).await;
            gone.extend(done.map_err(ActError::Rejected)?.into_inner());
        }
        Ok(Done::MediaDeleted { media_ids: gone })
    }

    /// What a removal would come to.
    pub(super) fn effect_of_deletion(&self, of: &MediaOf) -> Result<Vec<String>, ActError> {
        let media = &self.engine.state().media;
        let size = |id: &String| match media.get(id) {
            Some(Item::Stored(stored)) => stored.size,
            _ => 0,
        };
        let ids = self.ids(of)?.0;
        let bytes: u64 = ids.iter().map(size).sum();
        Ok(vec![format!(
            "{} file(s) of {bytes} bytes are deleted, which cannot be undone",
            ids.len()
        )])
    }

    pub(super) async fn protect(
        &self,
        media: &str,
        protected: bool,
        origin: Origin,
        reason: Option<String>,
    ) -> Result<Done, ActError> {
        let media_id = self.media_id(media)?;
        let of = ProtectMedia { media_id: media_id.clone(), protected };
        let done = self.engine.propose(origin, Because { of, reason }).await;
        let changed = done.map_err(ActError::Rejected)?.into_inner();
        Ok(Done::Protected { media_id, protected, changed })
    }

    /// How much each user has uploaded, those with the most bytes first.
    /// Of what was uploaded within `when`, in milliseconds since the Unix epoch.
    pub(crate) fn media_statistics(&self, when: RangeInclusive<u64>) -> Vec<MediaUsage> {
        let mut by_user: BTreeMap<OwnedUserId, (usize, u64)> = BTreeMap::new();
        for (_, stored) in self.engine.state().media.all() {
            if let Some(user_id) = stored.user_id
                && when.contains(&stored.time_ms)
            {
                let (count, bytes) = by_user.entry(user_id).or_default();
                *count += 1;
                *bytes = bytes.saturating_add(stored.size);
            }
        }
        let accounts = &self.engine.state().accounts;
        let usage = |(user_id, (media_count, media_length)): (OwnedUserId, _)| {
            let account = accounts.get(&user_id);
            let displayname = account.and_then(|account| {
                let account = account.read();
                account.profile_field("displayname")?.as_str().map(ToOwned::to_owned)
            });
            MediaUsage { user_id, displayname, media_count, media_length }
        };
        let mut usage: Vec<_> = by_user.into_iter().map(usage).collect();
        usage.sort_by_key(|of| std::cmp::Reverse(of.media_length));
        usage
    }

    /// What a quarantine would come to.
    pub(super) fn effect_of_quarantine(
        &self,
        of: &MediaOf,
        quarantined: bool,
    ) -> Result<Vec<String>, ActError> {
        let media = &self.engine.state().media;
        let mut ids = self.ids(of)?.0;
        ids.retain(|id| match quarantined {
            true => media.quarantined(id).is_none() && !media.is_protected(id),
            false => media.quarantined(id).is_some(),
        });
        let can =
            if quarantined { "cannot be downloaded any more" } else { "can be downloaded again" };
        Ok(vec![format!("{} file(s) {can}", ids.len())])
    }
}
