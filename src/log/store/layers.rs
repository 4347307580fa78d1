//! The log's databases and volumes, read as one.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::Bytes;
use quick_cache::{Weighter, sync::Cache};

use super::{OpenError, ReadError, Store, StoreError, decode, full_disk, remove_dir};
use crate::{
    archive::{ArchiveFallback, Erased, FallbackError, RecordRange},
    block::Block,
    volume::{self, Volume, VolumeError},
};
use logcabin_base::{
    disk,
    metrics::{CacheName, metrics},
};
use logcabin_record::{CHAIN_START, Offset, Record, codec};

/// The directory of the volumes.
pub(super) fn volumes_dir(log_dir: &Path) -> PathBuf {
    log_dir.join("volumes")
}

/// The directory of the databases.
pub(super) fn tails_dir(log_dir: &Path) -> PathBuf {
    log_dir.join("tails")
}

/// The directory of a database. A restored log has one with number 0 in the log's own directory.
pub(super) fn tail_dir(log_dir: &Path, number: u64) -> PathBuf {
    if number == 0 { log_dir.to_owned() } else { tails_dir(log_dir).join(format!("{number:06}")) }
}

/// The numbers of the existing databases, newest first.
pub(super) fn tails(log_dir: &Path) -> Result<Vec<u64>, OpenError> {
    let dir = tails_dir(log_dir);
    let failed = |source| OpenError::Io { path: dir.clone(), source };
    let mut numbers = Vec::new();
    for path in disk::entries(&dir).map_err(failed)? {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        match name.parse() {
            Ok(number) => numbers.push(number),
            // An unfinished one.
            Err(_) => remove_dir(&path)?,
        }
    }
    if log_dir.join("db").exists() {
        numbers.push(0);
    }
    numbers.sort_unstable_by(|a, b| b.cmp(a));
    Ok(numbers)
}

/// Removes a database that nobody writes to any more.
pub(super) fn remove_tail(log_dir: &Path, number: u64) -> Result<(), OpenError> {
    if number != 0 {
        return remove_dir(&tail_dir(log_dir, number));
    }
    let failed = |source| OpenError::Io { path: log_dir.to_owned(), source };
    // Without this file, the others are ignored.
    std::fs::remove_file(log_dir.join("db")).map_err(failed)?;
    for entry in std::fs::read_dir(log_dir).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if name == "conf" || name.starts_with("snap.") {
            std::fs::remove_file(&path).map_err(failed)?;
        }
    }
    remove_dir(&log_dir.join("blobs"))
}

/// The volumes of a log in order, from the first record on.
pub(super) fn volumes(log_dir: &Path) -> Result<Vec<Arc<Volume>>, OpenError> {
    let dir = volumes_dir(log_dir);
    let volumes = volume::list(&dir).map_err(OpenError::Volume)?;
    let (mut last, mut chain) = (Offset::ZERO, CHAIN_START);
    for volume in &volumes {
        if volume.first != last.next() || volume.before != chain {
            return Err(OpenError::Volume(VolumeError::Damaged {
                path: volume.path().to_owned(),
                what: format!("it does not follow record {last}, where the one before it ends"),
            }));
        }
        (last, chain) = (volume.last, volume.chain);
    }
    Ok(volumes.into_iter().map(Arc::new).collect())
}

/// All databases and volumes of a log at one moment.
pub(super) struct Layers {
    /// The databases, each with its number, newest first. Only the first takes writes. A record in
    /// one replaces the same record in later ones and in the volumes; erasures rely on that.
    pub(super) stores: Vec<(u64, Arc<Store>)>,
    pub(super) volumes: Vec<Arc<Volume>>,
    /// The last record before those of the newest database.
    pub(super) before_tail: Offset,
    blocks: Arc<Blocks>,
    /// Replaces volumes that cannot be read.
    fallback: Option<Arc<ArchiveFallback>>,
    /// Set if the databases are copies that take no writes, because their disk is full: how much
    /// memory they may use to cache pages.
    aside: Option<u64>,
}

type Blocks = Cache<(u64, usize), Arc<Block>, ByBytes>;

#[derive(Clone)]
struct ByBytes;

impl Weighter<(u64, usize), Arc<Block>> for ByBytes {
    fn weight(&self, _: &(u64, usize), block: &Arc<Block>) -> u64 {
        block.weight()
    }
}

impl Layers {
    /// Opens what is in a log's directory. Creates the first database if there is none. Half of
    /// `cache_bytes` is for blocks of volumes, for clients that page back.
    pub(super) fn open(
        log_dir: &Path,
        cache_bytes: u64,
        fallback: Option<Arc<ArchiveFallback>>,
    ) -> Result<Self, OpenError> {
        let cache_bytes = cache_bytes / 2;
        let volumes_dir = volumes_dir(log_dir);
        disk::remove_unfinished(&volumes_dir)
            .map_err(|source| OpenError::Io { path: volumes_dir, source })?;
        let mut stores = Vec::new();
        let tails = tails(log_dir)?;
        let dirs: Vec<_> =
            tails.into_iter().map(|number| (number, tail_dir(log_dir, number))).collect();
        let is_full = disk::free_bytes(log_dir).is_ok_and(|free| free < full_disk::ROOM_TO_OPEN);
        let aside = (is_full && !dirs.is_empty()).then_some(cache_bytes);
        if aside.is_some() {
            stores = full_disk::open(&dirs, cache_bytes)?;
        } else {
            for (number, dir) in &dirs {
                stores.push((*number, Arc::new(Store::open(dir, cache_bytes)?)));
            }
        }
        if stores.is_empty() {
            stores.push((1, Arc::new(begin_tail(log_dir, 1, cache_bytes, Offset::ZERO)?)));
        }
        let mut layers = Self {
            stores,
            volumes: volumes(log_dir)?,
            before_tail: Offset::ZERO,
            blocks: Arc::new(Cache::with_weighter(512, cache_bytes, ByBytes)),
            fallback,
            aside,
        };
        let unusable = |error: StoreError| OpenError::Store {
            path: log_dir.to_owned(),
            reason: error.to_string(),
        };
        layers.before_tail = layers.older().last().map_err(unusable)?.unwrap_or_default();
        Ok(layers)
    }

    /// A single database.
    #[cfg(test)]
    pub(super) fn of(store: Store) -> Self {
        Self {
            stores: vec![(1, Arc::new(store))],
            volumes: Vec::new(),
            before_tail: Offset::ZERO,
            blocks: Arc::new(Cache::with_weighter(16, 1024 * 1024, ByBytes)),
            fallback: None,
            aside: None,
        }
    }

    /// The same with a new database in front, which continues after `last`.
    pub(super) fn with_tail(&self, number: u64, store: Arc<Store>, last: Offset) -> Self {
        let mut stores = vec![(number, store)];
        stores.extend(self.stores.iter().cloned());
        Self {
            stores,
            volumes: self.volumes.clone(),
            before_tail: last,
            blocks: Arc::clone(&self.blocks),
            fallback: self.fallback.clone(),
            aside: self.aside,
        }
    }

    /// The same with only the newest database, and with other volumes.
    pub(super) fn with_volumes(&self, volumes: Vec<Arc<Volume>>) -> Self {
        let stores = self.stores.iter().take(1).cloned().collect();
        Self {
            stores,
            volumes,
            before_tail: self.before_tail,
            blocks: Arc::clone(&self.blocks),
            fallback: self.fallback.clone(),
            aside: self.aside,
        }
    }

    /// Whether the databases take no writes, because their disk is full.
    pub(super) const fn are_aside(&self) -> bool {
        self.aside.is_some()
    }

    /// The same with the databases themselves instead of copies. Blocks.
    pub(super) fn in_place(&self) -> Result<Self, OpenError> {
        let mut stores = Vec::new();
        for (number, copy) in &self.stores {
            let store = Store::open(&copy.dir, self.aside.unwrap_or_default())?;
            stores.push((*number, Arc::new(store)));
        }
        Ok(Self {
            stores,
            volumes: self.volumes.clone(),
            before_tail: self.before_tail,
            blocks: Arc::clone(&self.blocks),
            fallback: self.fallback.clone(),
            aside: None,
        })
    }

    /// The same without the newest database.
    pub(super) fn older(&self) -> Self {
        Self {
            stores: self.stores.iter().skip(1).cloned().collect(),
            volumes: self.volumes.clone(),
            before_tail: Offset::ZERO,
            blocks: Arc::clone(&self.blocks),
            fallback: self.fallback.clone(),
            aside: self.aside,
        }
    }

    /// The database that takes writes.
    pub(super) fn tail(&self) -> Result<&Arc<Store>, StoreError> {
        let newest = self.stores.first().map(|(_, store)| store);
        newest.ok_or_else(|| StoreError::Failed("there is no database".to_owned()))
    }

    /// The last record in the volumes.
    pub(super) fn sealed(&self) -> Offset {
        self.volumes.last().map_or(Offset::ZERO, |volume| volume.last)
    }

    /// The last record of all.
    pub(super) fn last(&self) -> Result<Option<Offset>, StoreError> {
        let mut last = Some(self.sealed()).filter(|sealed| *sealed > Offset::ZERO);
        for (_, store) in &self.stores {
            last = last.max(store.last()?);
        }
        Ok(last)
    }

    /// The frame of a record.
    pub(super) fn get(&self, offset: Offset) -> Result<Option<Bytes>, StoreError> {
        for (_, store) in &self.stores {
            if let Some(frame) = store.get(offset)? {
                return Ok(Some(frame));
            }
        }
        Ok(self.block_at(offset)?.and_then(|block| block.get(offset)))
    }

    /// Whether the record at `offset` differs from the one in its volume, or the volume cannot be
    /// read there.
    pub(super) fn differs_from_volume(&self, offset: Offset) -> Result<bool, StoreError> {
        let Some(block) = self.block_at(offset)? else { return Ok(false) };
        Ok(block.stands_in || block.get(offset) != self.get(offset)?)
    }

    /// The block that holds a record.
    fn block_at(&self, offset: Offset) -> Result<Option<Arc<Block>>, StoreError> {
        let block = |volume: &Arc<Volume>| self.block(volume, volume.block_of(offset));
        self.volume_of(offset).map(block).transpose()
    }

    /// Which volume holds a record.
    pub(super) fn volume_number(&self, offset: Offset) -> Option<usize> {
        let number = self.volumes.partition_point(|volume| volume.last < offset);
        self.volumes.get(number).filter(|volume| volume.first <= offset).map(|_| number)
    }

    fn volume_of(&self, offset: Offset) -> Option<&Arc<Volume>> {
        self.volume_number(offset).and_then(|number| self.volumes.get(number))
    }

    fn block(&self, volume: &Volume, number: usize) -> Result<Arc<Block>, StoreError> {
        let key = (volume.id, number);
        let kept = self.blocks.get(&key);
        metrics().looked_up(CacheName::Blocks, kept.is_some());
        if let Some(block) = kept {
            return Ok(block);
        }
        let block = Arc::new(self.read_block(volume, number, Erased::ForReason)?);
        self.blocks.insert(key, Arc::clone(&block));
        Ok(block)
    }

    /// Reads a block, from the archive if its volume is damaged.
    fn read_block(
        &self,
        volume: &Volume,
        number: usize,
        erased: Erased,
    ) -> Result<Block, StoreError> {
        let damage = match volume.block(number) {
            Ok(block) => return Ok(block),
            Err(damage) => damage,
        };
        let Some(fallback) = &self.fallback else { return Err(damage.into()) };
        let (first, last) = volume.records_of(number);
        let wanted = RecordRange { first, last, proof: (volume.last, volume.chain) };
        match self.stand_in(fallback, wanted, erased) {
            Ok(block) => {
                if fallback.is_news(first) {
                    tracing::error!(
                        %damage,
                        archive = %fallback.dir().display(),
                        "part of the log is damaged and is read from the archive; stop the server and run `logcabin verify --repair`"
                    );
                }
                Ok(block)
            }
            Err(error) => Err(StoreError::Failed(format!("{damage}; {error}"))),
        }
    }

    fn stand_in(
        &self,
        fallback: &ArchiveFallback,
        wanted: RecordRange,
        erased: Erased,
    ) -> Result<Block, FallbackError> {
        let newer = |offset| {
            // A record that the archive lacks is not in a volume, unless the archive lags by all
            // records outside of volumes.
            let frame = self.stores.iter().find_map(|(_, store)| store.get(offset).transpose());
            let frame = match frame.transpose()? {
                Some(frame) => Some(frame),
                None => match self.volume_of(offset) {
                    Some(volume) => {
                        volume.block(volume.block_of(offset)).map_err(StoreError::from)?.get(offset)
                    }
                    None => None,
                },
            };
            frame.map(|frame| decode(offset, &frame)).transpose()
        };
        let records = fallback.records(wanted, erased, newer)?;
        let frames = records.iter().map(codec::encode_frame).collect::<Result<Vec<_>, _>>();
        let frames =
            frames.map_err(|source| ReadError::Damaged { offset: wanted.first, source })?;
        Ok(Block::standing_in(wanted.first, frames))
    }

    /// The frames of the records from `from` to `to`.
    pub(super) fn frames(&self, from: Offset, to: Offset, erased: Erased) -> Frames<'_> {
        let cursor = |(_, store): &(u64, Arc<Store>)| Cursor {
            store: Arc::clone(store),
            begins: None,
            group: None,
        };
        let cursors = self.stores.iter().map(cursor).collect();
        Frames { layers: self, cursors, block: None, next: from, to, erased }
    }

    /// The records from `from` to `to`, at most `limit`.
    pub(super) fn read(
        &self,
        from: Offset,
        to: Offset,
        limit: usize,
    ) -> Result<Vec<Record>, ReadError> {
        if from > to {
            return Ok(Vec::new());
        }
        let expected = usize::try_from(to.get() - from.get()).unwrap_or(limit).saturating_add(1);
        let count = limit.min(expected);
        let mut records = Vec::with_capacity(count);
        let (mut frames, mut offset) = (self.frames(from, to, Erased::ForReason), from);
        while records.len() < count {
            let frame = frames.next()?.ok_or(ReadError::Missing(offset))?;
            records.push(decode(offset, &frame)?);
            offset = offset.next();
        }
        Ok(records)
    }

    /// The offset up to which erased content has left the disk.
    pub(super) fn compacted(&self) -> Result<Offset, StoreError> {
        self.tail()?.compacted()
    }

    /// The size on disk of all of it, in bytes.
    pub(super) fn disk_bytes(&self) -> io::Result<u64> {
        let stores = self.stores.iter().map(|(_, store)| store.disk_bytes());
        let volumes = self.volumes.iter().map(|v| v.disk_bytes().map_err(io::Error::other));
        stores.chain(volumes).sum()
    }
}

/// Creates a database atomically: the next start finds it complete or not at all.
pub(super) fn begin_tail(
    log_dir: &Path,
    number: u64,
    cache_bytes: u64,
    compacted: Offset,
) -> Result<Store, OpenError> {
    let place = tail_dir(log_dir, number);
    let made = place.with_extension("new");
    remove_dir(&made)?;
    super::make_private_dir(&tails_dir(log_dir))?;
    super::make_private_dir(&made)?;
    let mut store = Store::open(&made, cache_bytes)?;
    let unusable =
        |error: StoreError| OpenError::Store { path: place.clone(), reason: error.to_string() };
    store.note_compacted(compacted).map_err(unusable)?;
    disk::put_in_place(&made, &place)
        .map_err(|source| OpenError::Io { path: place.clone(), source })?;
    store.dir = place;
    Ok(store)
}

/// The frames of a run of records, in order.
pub(super) struct Frames<'a> {
    layers: &'a Layers,
    cursors: Vec<Cursor>,
    /// The block that was read last. It bypasses the cache, because a run is read once.
    block: Option<(Offset, usize, Block)>,
    next: Offset,
    to: Offset,
    /// Which erasures a block from the archive must reflect.
    erased: Erased,
}

/// The position of a run in one database.
struct Cursor {
    store: Arc<Store>,
    /// The first record in it; none before it was looked up.
    begins: Option<Offset>,
    /// The group that was read last.
    group: Option<Block>,
}

impl Cursor {
    /// The frame of the record at `offset`, if it is here. The offsets must increase.
    fn at(&mut self, offset: Offset) -> Result<Option<Bytes>, StoreError> {
        if let Some(remains) = self.store.remains(offset)? {
            return Ok(Some(remains));
        }
        if let Some(frame) = self.group.as_ref().and_then(|group| group.get(offset)) {
            return Ok(Some(frame));
        }
        let begins = match self.begins {
            Some(begins) => begins,
            None => *self.begins.insert(self.store.first()?.unwrap_or(Offset::MAX)),
        };
        if offset < begins {
            return Ok(None);
        }
        self.group = self.store.group_of(offset)?.map(|(_, group)| group);
        Ok(self.group.as_ref().and_then(|group| group.get(offset)))
    }
}

impl Frames<'_> {
    /// The next frame; `None` at the end, or where a record is missing.
    pub(super) fn next(&mut self) -> Result<Option<Bytes>, StoreError> {
        if self.next > self.to {
            return Ok(None);
        }
        let offset = self.next;
        let mut found = None;
        for cursor in &mut self.cursors {
            if found.is_none() {
                found = cursor.at(offset)?;
            }
        }
        if found.is_none()
            && let Some(volume) = self.layers.volume_of(offset)
        {
            let number = volume.block_of(offset);
            let block = match self.block.take() {
                Some((first, at, block)) if (first, at) == (volume.first, number) => block,
                _ => self.layers.read_block(volume, number, self.erased)?,
            };
            found = block.get(offset);
            self.block = Some((volume.first, number, block));
        }
        if found.is_some() {
            self.next = offset.next();
        }
        Ok(found)
    }
}
