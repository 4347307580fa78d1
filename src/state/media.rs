//! Uploads: the file of each media id, its owner, and the usage of each user.
//!
//! The names and types of files are in the log, at `Stored::offset`.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use parking_lot::RwLock;
use ruma::{OwnedUserId, UserId};
use serde::{Deserialize, Serialize};

use super::serializers;
use logcabin_record::{
    Offset,
    command::{FileHash, MediaCreate, MediaProtect, MediaQuarantine, MediaUpload},
};

/// Every media id.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Media(#[serde(with = "serializers::locked")] RwLock<Inner>);

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(from = "Written")]
struct Inner {
    items: BTreeMap<Box<str>, Item>,
    /// By user; `None` is the server itself.
    users: BTreeMap<Option<OwnedUserId>, Usage>,
    /// The number of ids of each file.
    files: BTreeMap<FileHash, u64>,
    /// The quarantined files, each with the record that says so.
    quarantined: BTreeMap<FileHash, Offset>,
    /// The ids that are exempt from quarantine.
    protected: BTreeSet<Box<str>>,
    /// The ids with a file, in the order of upload.
    uploads: BTreeMap<Offset, Box<str>>,
    /// For each of the last records that removed files: the files that lost their last id.
    unnamed: VecDeque<Vec<FileHash>>,
    #[serde(skip)]
    late: Late,
}

/// Files that were recorded after younger ones: an import has them in any order.
#[derive(Debug, Default)]
struct Late {
    /// When the youngest file so far was uploaded, in milliseconds since the Unix epoch.
    youngest_ms: u64,
    /// When each was uploaded, and the record that says so.
    by_time: BTreeSet<(u64, Offset)>,
}

impl Late {
    /// Notes the next file in the order of the log.
    fn note(&mut self, stored: &Stored) {
        if stored.time_ms < self.youngest_ms {
            self.by_time.insert((stored.time_ms, stored.offset));
        } else {
            self.youngest_ms = stored.time_ms;
        }
    }
}

#[derive(Deserialize)]
struct Written {
    items: BTreeMap<Box<str>, Item>,
    users: BTreeMap<Option<OwnedUserId>, Usage>,
    files: BTreeMap<FileHash, u64>,
    quarantined: BTreeMap<FileHash, Offset>,
    protected: BTreeSet<Box<str>>,
    uploads: BTreeMap<Offset, Box<str>>,
    unnamed: VecDeque<Vec<FileHash>>,
}

impl From<Written> for Inner {
    fn from(written: Written) -> Self {
        let Written { items, users, files, quarantined, protected, uploads, unnamed } = written;
        let mut late = Late::default();
        for media_id in uploads.values() {
            if let Some(Item::Stored(stored)) = items.get(media_id) {
                late.note(stored);
            }
        }
        Self { items, users, files, quarantined, protected, uploads, unnamed, late }
    }
}

/// For how many records that is kept: a server that was killed may not have deleted the files of
/// the last few.
const REMOVALS_KNOWN: usize = 16;

/// The state of a media id.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Item {
    /// No file yet.
    Unused {
        /// Who may upload to it.
        user_id: OwnedUserId,
        /// When it expires, in milliseconds since the Unix epoch.
        expires_ms: u64,
    },
    /// A file.
    Stored(Stored),
}

/// The file of a media id.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stored {
    /// The record that says so and has the file's name.
    pub offset: Offset,
    /// When it was uploaded, in milliseconds since the Unix epoch.
    pub time_ms: u64,
    /// The uploader; `None` for a file that the server fetched.
    pub user_id: Option<OwnedUserId>,
    pub hash: FileHash,
    /// Its length in bytes.
    pub size: u64,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Usage {
    /// The size of the user's files together; equal files count each.
    bytes: u64,
    /// The unused ids, by expiry.
    unused: BTreeSet<(u64, Box<str>)>,
}

impl Media {
    /// The state of `media_id`; `None` if it was never given out, or has expired and been
    /// forgotten.
    pub fn get(&self, media_id: &str) -> Option<Item> {
        self.0.read().items.get(media_id).cloned()
    }

    /// The size of the files of `user_id` together, in bytes; `None` is the server itself.
    pub fn bytes_of(&self, user_id: Option<&UserId>) -> u64 {
        self.0.read().users.get(&user_id.map(UserId::to_owned)).map_or(0, |usage| usage.bytes)
    }

    /// The users whose files are largest together, from the largest on, each with their bytes;
    /// `None` is the server itself.
    pub fn largest_users(&self, most: usize) -> Vec<(Option<OwnedUserId>, u64)> {
        let inner = self.0.read();
        let mut all: Vec<_> = inner.users.iter().filter(|(_, usage)| usage.bytes > 0).collect();
        type Of<'u> = (&'u Option<OwnedUserId>, &'u Usage);
        let by_size = |a: &Of<'_>, b: &Of<'_>| b.1.bytes.cmp(&a.1.bytes).then(a.0.cmp(b.0));
        if all.len() > most {
            all.select_nth_unstable_by(most, by_size);
            all.truncate(most);
        }
        all.sort_by(by_size);
        all.into_iter().map(|(user_id, usage)| (user_id.clone(), usage.bytes)).collect()
    }

    /// When the unused ids of `user_id` expire, for those that have not at `now_ms`, in order.
    pub fn unused_of(&self, user_id: &UserId, now_ms: u64) -> Vec<u64> {
        let inner = self.0.read();
        let user = inner.users.get(&Some(user_id.to_owned()));
        let unused = user.into_iter().flat_map(|usage| &usage.unused);
        unused
            .map(|(expires_ms, _)| *expires_ms)
            .filter(|expires_ms| *expires_ms > now_ms)
            .collect()
    }

    /// Whether any id names this file.
    pub fn names(&self, file: &FileHash) -> bool {
        self.0.read().files.contains_key(file)
    }

    /// The record that quarantined the file under `media_id`, if downloads are refused.
    pub fn quarantined(&self, media_id: &str) -> Option<Offset> {
        let inner = self.0.read();
        let Some(Item::Stored(stored)) = inner.items.get(media_id) else { return None };
        let by = inner.quarantined.get(&stored.hash).copied();
        by.filter(|_| !inner.protected.contains(media_id))
    }

    /// The record that put this file into quarantine, whoever has it.
    pub fn quarantined_by(&self, file: &FileHash) -> Option<Offset> {
        self.0.read().quarantined.get(file).copied()
    }

    /// Whether `media_id` is exempt from quarantine.
    pub fn is_protected(&self, media_id: &str) -> bool {
        self.0.read().protected.contains(media_id)
    }

    /// The ids of a user with their files, ordered by id.
    pub fn of_user(&self, user_id: &UserId) -> Vec<(Box<str>, Stored)> {
        let inner = self.0.read();
        let own = inner.items.iter().filter_map(|(media_id, item)| match item {
            Item::Stored(stored) if stored.user_id.as_deref() == Some(user_id) => {
                Some((media_id.clone(), stored.clone()))
            }
            _ => None,
        });
        own.collect()
    }

    /// Every id with its file, ordered by id.
    pub fn all(&self) -> Vec<(Box<str>, Stored)> {
        let inner = self.0.read();
        let stored = inner.items.iter().filter_map(|(media_id, item)| match item {
            Item::Stored(stored) => Some((media_id.clone(), stored.clone())),
            Item::Unused { .. } => None,
        });
        stored.collect()
    }

    /// Up to `limit` ids whose file was uploaded at or before `until_ms` (milliseconds since the
    /// Unix epoch), among those that `wanted` accepts: oldest first, but those that were recorded
    /// after younger ones at the end.
    pub fn until(
        &self,
        until_ms: u64,
        limit: usize,
        wanted: impl Fn(&str) -> bool,
    ) -> Vec<Box<str>> {
        let inner = &*self.0.read();
        let late = &inner.late.by_time;
        let in_order = inner.uploads.values().filter_map(|id| match inner.items.get(id) {
            Some(Item::Stored(stored)) => Some((id, stored)),
            _ => None,
        });
        let in_order = in_order
            .filter(|(_, stored)| !late.contains(&(stored.time_ms, stored.offset)))
            .take_while(|(_, stored)| stored.time_ms <= until_ms)
            .map(|(id, _)| id);
        let late = late.iter().take_while(|(time_ms, _)| *time_ms <= until_ms);
        let due = in_order.chain(late.filter_map(|(_, record)| inner.uploads.get(record)));
        due.filter(|id| wanted(id)).take(limit).cloned().collect()
    }

    /// Up to `limit` files that were uploaded before the record at `before`, by `user_id` if one is
    /// named: each with the record of its upload, the newest first.
    pub fn newest(
        &self,
        before: Offset,
        limit: usize,
        user_id: Option<&UserId>,
    ) -> Vec<(Offset, Box<str>)> {
        let inner = self.0.read();
        let of_user = |id: &str| match inner.items.get(id) {
            Some(Item::Stored(stored)) => {
                user_id.is_none_or(|user_id| stored.user_id.as_deref() == Some(user_id))
            }
            _ => false,
        };
        let earlier = inner.uploads.range(..before).rev();
        let found = earlier.filter(|(_, id)| of_user(id)).take(limit);
        found.map(|(offset, id)| (*offset, id.clone())).collect()
    }

    /// Removes ids. Returns the records of their uploads, and the files without any id left.
    pub(super) fn remove(&self, media_ids: &[String]) -> (Vec<Offset>, Vec<FileHash>) {
        let (mut records, mut unnamed) = (Vec::new(), Vec::new());
        let inner = &mut *self.0.write();
        for media_id in media_ids {
            let Some(Item::Stored(stored)) = inner.items.get(media_id.as_str()).cloned() else {
                continue;
            };
            inner.items.remove(media_id.as_str());
            inner.uploads.remove(&stored.offset);
            inner.late.by_time.remove(&(stored.time_ms, stored.offset));
            inner.protected.remove(media_id.as_str());
            records.push(stored.offset);
            if let Some(usage) = inner.users.get_mut(&stored.user_id) {
                usage.bytes = usage.bytes.saturating_sub(stored.size);
            }
            if let Some(count) = inner.files.get_mut(&stored.hash) {
                *count -= 1;
                if *count == 0 {
                    inner.files.remove(&stored.hash);
                    unnamed.push(stored.hash);
                }
            }
        }
        inner.unnamed.push_back(unnamed.clone());
        if inner.unnamed.len() > REMOVALS_KNOWN {
            inner.unnamed.pop_front();
        }
        (records, unnamed)
    }

    /// Files that lately lost their last id. Some may have another one by now.
    pub fn lately_unnamed(&self) -> Vec<FileHash> {
        self.0.read().unnamed.iter().flatten().copied().collect()
    }

    pub(super) fn create(&self, time_ms: u64, body: MediaCreate) {
        let MediaCreate { media_id, user_id, expires_ms } = body;
        let media_id: Box<str> = media_id.into();
        let inner = &mut *self.0.write();
        let usage = inner.users.entry(Some(user_id.clone())).or_default();
        // Nobody can upload to expired ids any more, so they are dropped.
        while let Some((expired, _)) = usage.unused.first()
            && *expired <= time_ms
        {
            if let Some((_, lapsed)) = usage.unused.pop_first() {
                inner.items.remove(&lapsed);
            }
        }
        usage.unused.insert((expires_ms, media_id.clone()));
        inner.items.insert(media_id, Item::Unused { user_id, expires_ms });
    }

    pub(super) fn upload(&self, offset: Offset, time_ms: u64, body: MediaUpload) {
        let MediaUpload { media_id, user_id, hash, size, .. } = body;
        let media_id: Box<str> = media_id.into();
        let inner = &mut *self.0.write();
        *inner.files.entry(hash).or_default() += 1;
        let usage = inner.users.entry(user_id.clone()).or_default();
        usage.bytes = usage.bytes.saturating_add(size);
        inner.uploads.insert(offset, media_id.clone());
        let stored = Stored { offset, time_ms, user_id, hash, size };
        inner.late.note(&stored);
        if let Some(Item::Unused { user_id, expires_ms }) =
            inner.items.insert(media_id.clone(), Item::Stored(stored))
            && let Some(usage) = inner.users.get_mut(&Some(user_id))
        {
            usage.unused.remove(&(expires_ms, media_id));
        }
    }

    pub(super) fn quarantine(&self, offset: Offset, body: &MediaQuarantine) {
        let inner = &mut *self.0.write();
        let items = &inner.items;
        let own = body.media_ids.iter().filter_map(|id| match items.get(id.as_str()) {
            Some(Item::Stored(stored)) => Some(stored.hash),
            _ => None,
        });
        for hash in own.chain(body.hashes.iter().copied()) {
            if body.quarantined {
                inner.quarantined.entry(hash).or_insert(offset);
            } else {
                inner.quarantined.remove(&hash);
            }
        }
    }

    pub(super) fn protect(&self, body: MediaProtect) {
        let mut inner = self.0.write();
        if body.protected {
            inner.protected.insert(body.media_id.into());
        } else {
            inner.protected.remove(body.media_id.as_str());
        }
    }

    pub(super) fn digest(&self, digest: &mut super::digest::Digest) {
        digest.add(&*self.0.read());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ann() -> OwnedUserId {
        "@ann:example.org".try_into().unwrap()
    }

    fn create(media: &Media, time_ms: u64, media_id: &str, expires_ms: u64) {
        let media_id = media_id.to_owned();
        media.create(time_ms, MediaCreate { media_id, user_id: ann(), expires_ms });
    }

    fn upload(media: &Media, media_id: &str, size: u64) {
        let body = MediaUpload {
            media_id: media_id.to_owned(),
            user_id: Some(ann()),
            hash: FileHash([7; 32]),
            size,
            content_type: None,
            name: None,
        };
        media.upload(Offset::new(1), 5, body);
    }

    #[test]
    fn an_id_is_unused_until_a_file_is_uploaded_to_it() {
        let media = Media::default();
        create(&media, 10, "one", 100);
        create(&media, 10, "two", 200);
        assert_eq!(media.unused_of(&ann(), 10), [100, 200]);
        assert!(!media.names(&FileHash([7; 32])));
        upload(&media, "one", 3);
        assert_eq!(media.unused_of(&ann(), 10), [200]);
        assert!(matches!(media.get("one"), Some(Item::Stored(stored)) if stored.size == 3));
        assert!(media.names(&FileHash([7; 32])));
        assert_eq!(media.all().len(), 1);
    }

    #[test]
    fn a_file_is_quarantined_under_all_ids_except_protected_ones() {
        let media = Media::default();
        for media_id in ["one", "two"] {
            upload(&media, media_id, 3);
        }
        let quarantine = |quarantined| {
            let media_ids = vec!["one".to_owned(), "none".to_owned()];
            let body = MediaQuarantine { media_ids, quarantined, ..MediaQuarantine::default() };
            media.quarantine(Offset::new(9), &body);
        };
        let protect = |protected| {
            media.protect(MediaProtect { media_id: "two".to_owned(), protected });
        };
        quarantine(true);
        assert_eq!(media.quarantined("one"), Some(Offset::new(9)));
        assert_eq!(media.quarantined("two"), Some(Offset::new(9)));
        upload(&media, "later", 3);
        assert!(media.quarantined("later").is_some() && media.quarantined("none").is_none());
        protect(true);
        assert_eq!(media.quarantined("two"), None);
        protect(false);
        assert!(media.quarantined("two").is_some());
        quarantine(false);
        assert!(media.quarantined("one").is_none() && media.quarantined("two").is_none());
    }

    #[test]
    fn files_expire_by_their_times_in_whatever_order_they_were_recorded() {
        let mut media = Media::default();
        for (number, time_ms) in (1..).zip([5_u64, 90, 20, 95, 10, 96]) {
            let body = MediaUpload {
                media_id: time_ms.to_string(),
                user_id: None,
                hash: FileHash([7; 32]),
                size: 3,
                content_type: None,
                name: None,
            };
            media.upload(Offset::new(number), time_ms, body);
        }
        let due = |media: &Media, until_ms, limit| -> Vec<String> {
            media.until(until_ms, limit, |id| id != "90").into_iter().map(String::from).collect()
        };
        // Also after a start from a snapshot.
        for _ in 0..2 {
            assert_eq!(due(&media, 30, 9), ["5", "10", "20"]);
            assert_eq!(due(&media, 30, 2), ["5", "10"]);
            assert_eq!(due(&media, 95, 9), ["5", "95", "10", "20"]);
            media = postcard::from_bytes(&postcard::to_stdvec(&media).unwrap()).unwrap();
        }
        media.remove(&["10".to_owned(), "95".to_owned()]);
        assert_eq!(due(&media, 95, 9), ["5", "20"]);
    }

    #[test]
    fn expired_ids_do_not_pile_up() {
        let media = Media::default();
        for number in 0..100 {
            create(&media, number, &format!("id {number}"), number + 1);
        }
        assert_eq!(media.0.read().items.len(), 1);
        assert_eq!(media.unused_of(&ann(), 100), Vec::<u64>::new());
    }

    #[test]
    fn equal_files_count_each_and_stay_until_the_last_is_removed() {
        let media = Media::default();
        upload(&media, "one", 3);
        upload(&media, "two", 3);
        assert_eq!(media.bytes_of(Some(&ann())), 6);
        let ids = |ids: &[&str]| ids.iter().map(|id| (*id).to_owned()).collect::<Vec<_>>();
        assert_eq!(media.remove(&ids(&["one", "never there"])).1, []);
        assert_eq!((media.bytes_of(Some(&ann())), media.get("one")), (3, None));
        assert_eq!(media.remove(&ids(&["two", "two"])).1, [FileHash([7; 32])]);
        assert!(!media.names(&FileHash([7; 32])));
    }
}
