//! The index on disk: from words to the events that contain them. It stores words but no text, and
//! it can be deleted at any time.

use std::{
    collections::HashSet,
    iter::FlatMap,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
    vec,
};

use tantivy::{
    DocId, DocSet as _, Index, IndexReader, IndexSettings, IndexWriter, ReloadPolicy, Score,
    Searcher, SegmentOrdinal, SegmentReader, TERMINATED, TantivyDocument, Term,
    collector::{Collector, SegmentCollector},
    columnar::ColumnValues,
    directory::MmapDirectory,
    indexer::IndexWriterOptions,
    query::{Bm25StatisticsProvider, BooleanQuery, Query as TantivyQuery, TermQuery, Weight},
    schema::{FAST, Field, INDEXED, IndexRecordOption, Schema, TextFieldIndexing, TextOptions},
    tokenizer::{Token, TokenStream, Tokenizer},
};

use super::{Hit, HitPosition, Key, Order, Query};
use logcabin_base::text::{self, Word};
use logcabin_record::Offset;

/// An index of another version is not read but rebuilt. Change this with the fields, with their
/// contents, and with how text is split into words.
const VERSION: u32 = 2;

/// The writer's memory before it flushes: the least that tantivy accepts.
const WRITER_BYTES: usize = 16_000_000;

/// The pause between two purges, as a multiple of the time that the last one took: at most a tenth
/// of the time goes into purges, however large the index.
const PURGE_PAUSE: u32 = 10;

/// A text to index.
#[derive(Debug)]
pub(super) struct Entry<'a> {
    /// The room's `created`, which identifies the room.
    pub(super) room: Offset,
    /// The event that a search for it finds.
    pub(super) event: Offset,
    /// The event that contains the text: the same event, or an edit of it.
    pub(super) version: Offset,
    pub(super) key: Key,
    pub(super) text: &'a str,
}

#[derive(Clone, Copy, Debug)]
struct Fields {
    room: Field,
    event: Field,
    version: Field,
    body: Field,
    name: Field,
    topic: Field,
}

impl Fields {
    fn new() -> (Schema, Self) {
        let mut schema = Schema::builder();
        // Words and their frequencies, not their positions: the text cannot be reconstructed from
        // the index.
        let indexing = TextFieldIndexing::default()
            .set_tokenizer(Terms::NAME)
            .set_index_option(IndexRecordOption::WithFreqs);
        let words = TextOptions::default().set_indexing_options(indexing);
        let fields = Self {
            room: schema.add_u64_field("room", FAST),
            event: schema.add_u64_field("event", FAST | INDEXED),
            version: schema.add_u64_field("version", FAST | INDEXED),
            body: schema.add_text_field("body", words.clone()),
            name: schema.add_text_field("name", words.clone()),
            topic: schema.add_text_field("topic", words),
        };
        (schema.build(), fields)
    }

    const fn of(self, key: Key) -> Field {
        match key {
            Key::Body => self.body,
            Key::Name => self.name,
            Key::Topic => self.topic,
        }
    }
}

/// How far an index goes: the offset and the chain value of the last indexed record. Together they
/// identify a log up to that record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) offset: Offset,
    pub(super) chain: blake3::Hash,
}

impl Mark {
    fn to_payload(self) -> String {
        format!("{VERSION} {} {}", self.offset, self.chain.to_hex())
    }

    fn of_payload(payload: &str) -> Option<Self> {
        let mut parts = payload.split(' ');
        let (version, offset, chain) = (parts.next()?, parts.next()?, parts.next()?);
        (version.parse() == Ok(VERSION)).then_some(())?;
        let offset = Offset::new(offset.parse().ok()?);
        Some(Self { offset, chain: blake3::Hash::from_hex(chain).ok()? })
    }
}

/// Splits a text into terms.
#[derive(Clone)]
struct Terms;

impl Terms {
    /// Its name in the schema.
    const NAME: &str = "terms";
}

impl Tokenizer for Terms {
    type TokenStream<'a> = TermsOf;

    fn token_stream(&mut self, text: &str) -> TermsOf {
        let of_word: OfWord = |word| text::terms(&word.folded);
        TermsOf { terms: text::words(text).into_iter().flat_map(of_word), token: Token::default() }
    }
}

type OfWord = fn(Word) -> Vec<String>;

/// The terms of a text, one after the other. Their positions are not needed.
struct TermsOf {
    terms: FlatMap<vec::IntoIter<Word>, Vec<String>, OfWord>,
    token: Token,
}

impl TokenStream for TermsOf {
    fn advance(&mut self) -> bool {
        let Some(term) = self.terms.next() else { return false };
        self.token.text = term;
        self.token.position = self.token.position.wrapping_add(1);
        true
    }

    fn token(&self) -> &Token {
        &self.token
    }

    fn token_mut(&mut self) -> &mut Token {
        &mut self.token
    }
}

/// The index, as it is written.
pub(super) struct Writer {
    index: Index,
    writer: IndexWriter,
    reader: IndexReader,
    fields: Fields,
    /// Whether there is something to commit.
    dirty: bool,
    /// The earliest time of the next purge.
    purge_from: Instant,
}

impl Writer {
    /// Opens the index in `dir` with its mark, if it is of this version and intact.
    pub(super) fn open(dir: &Path) -> tantivy::Result<Option<(Self, Mark)>> {
        if !dir.is_dir() || !Index::exists(&MmapDirectory::open(dir)?)? {
            return Ok(None);
        }
        let index = Index::open_in_dir(dir)?;
        let (schema, fields) = Fields::new();
        let mark = index.load_metas()?.payload.as_deref().and_then(Mark::of_payload);
        let Some(mark) = mark.filter(|_| index.schema() == schema) else { return Ok(None) };
        if !index.validate_checksum()?.is_empty() {
            return Ok(None);
        }
        Ok(Some((Self::of(index, fields)?, mark)))
    }

    /// Creates an empty index in `dir`, which is cleared first.
    pub(super) fn create(dir: &Path) -> tantivy::Result<Self> {
        match std::fs::remove_dir_all(dir) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
            _ => std::fs::create_dir_all(dir)?,
        }
        let (schema, fields) = Fields::new();
        let index = Index::create(MmapDirectory::open(dir)?, schema, IndexSettings::default())?;
        Self::of(index, fields)
    }

    fn of(index: Index, fields: Fields) -> tantivy::Result<Self> {
        index.tokenizers().register(Terms::NAME, Terms);
        let options = IndexWriterOptions::builder()
            .num_worker_threads(1)
            .num_merge_threads(1)
            .memory_budget_per_thread(WRITER_BYTES)
            .build();
        let writer = index.writer_with_options(options)?;
        let reader = index.reader_builder().reload_policy(ReloadPolicy::Manual).try_into()?;
        Ok(Self { index, writer, reader, fields, dirty: false, purge_from: Instant::now() })
    }

    pub(super) fn reader(&self) -> Reader {
        Reader { reader: self.reader.clone(), fields: self.fields }
    }

    pub(super) fn add(&mut self, entry: &Entry<'_>) -> tantivy::Result<()> {
        if !text::has_words(entry.text) {
            return Ok(());
        }
        let Fields { room, event, version, .. } = self.fields;
        let mut document = TantivyDocument::new();
        document.add_u64(room, entry.room.get());
        document.add_u64(event, entry.event.get());
        document.add_u64(version, entry.version.get());
        document.add_text(self.fields.of(entry.key), entry.text);
        self.writer.add_document(document)?;
        self.dirty = true;
        Ok(())
    }

    /// Removes the texts of the event at `offset`, and of its edits.
    pub(super) fn remove(&mut self, offset: Offset) {
        for field in [self.fields.event, self.fields.version] {
            self.writer.delete_term(Term::from_field_u64(field, offset.get()));
        }
        self.dirty = true;
    }

    /// Removes the texts of the room that was created by the event at `created`.
    pub(super) fn remove_room(&mut self, created: Offset) {
        self.writer.delete_term(Term::from_field_u64(self.fields.room, created.get()));
        self.dirty = true;
    }

    /// Whether anything was added or removed since the last commit.
    pub(super) const fn is_dirty(&self) -> bool {
        self.dirty
    }

    /// Commits additions and removals, and makes them visible to readers. The index then goes up to
    /// `mark`.
    pub(super) fn commit(&mut self, mark: Mark) -> tantivy::Result<()> {
        let mut commit = self.writer.prepare_commit()?;
        commit.set_payload(&mark.to_payload());
        commit.commit()?;
        self.dirty = false;
        self.reader.reload()
    }

    /// Rewrites segments that contain removed texts, so that no file contains them any more. Does
    /// nothing if there are none, or if the last purge was too recent.
    pub(super) fn purge(&mut self) -> tantivy::Result<()> {
        let with_deletions = |index: &Index| -> tantivy::Result<Vec<_>> {
            let metas = index.searchable_segment_metas()?;
            Ok(metas.iter().filter(|meta| meta.has_deletes()).map(|meta| meta.id()).collect())
        };
        let began = Instant::now();
        if began < self.purge_from {
            return Ok(());
        }
        let segments = with_deletions(&self.index)?;
        if segments.is_empty() {
            // Deletes old files that were still being read before.
            self.writer.garbage_collect_files().wait()?;
            return Ok(());
        }
        for segment in segments {
            // A segment that is already being merged cannot be merged here, and need not be.
            if let Err(error) = self.writer.merge(&[segment]).wait() {
                tracing::debug!(%error, "a segment of the search index is purged later");
            }
        }
        self.reader.reload()?;
        self.writer.garbage_collect_files().wait()?;
        let took = began.elapsed().max(Duration::from_millis(10));
        self.purge_from = Instant::now() + took * PURGE_PAUSE;
        Ok(())
    }
}

/// The index, as it is read. Each snapshot shows one commit.
#[derive(Clone)]
pub(super) struct Reader {
    reader: IndexReader,
    fields: Fields,
}

impl Reader {
    /// A snapshot of the latest commit.
    pub(super) fn snapshot(&self) -> Snapshot {
        Snapshot { searcher: self.reader.searcher(), fields: self.fields }
    }
}

/// The index as of one commit.
pub struct Snapshot {
    searcher: Searcher,
    fields: Fields,
}

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Snapshot").field("texts", &self.searcher.num_docs()).finish()
    }
}

impl Snapshot {
    /// The first hits of `query`, in order. An edited event may be among them more than once.
    pub fn hits(&self, query: &Query<'_>) -> tantivy::Result<Vec<Hit>> {
        if query.terms.is_empty() || query.keys.is_empty() || query.rooms.is_empty() {
            return Ok(Vec::new());
        }
        let any_key = |term: &String| {
            let keys = query.keys.iter().map(|key| {
                let term = Term::from_field_text(self.fields.of(*key), term);
                Box::new(TermQuery::new(term, IndexRecordOption::WithFreqs))
                    as Box<dyn TantivyQuery>
            });
            Box::new(BooleanQuery::union(keys.collect())) as Box<dyn TantivyQuery>
        };
        let all = BooleanQuery::intersection(query.terms.iter().map(any_key).collect());
        let collector = First {
            rooms: Arc::new(query.rooms.clone()),
            order: query.order,
            after: query.after,
            until: query.until,
            most: query.most,
            looks: AtomicUsize::new(query.looks),
        };
        self.searcher.search_with_statistics_provider(&all, &collector, &Evenly)
    }

    /// The events that contain, or contained, the text of the event at `event`, oldest first.
    pub fn versions(&self, event: Offset) -> tantivy::Result<Vec<Offset>> {
        let term = Term::from_field_u64(self.fields.event, event.get());
        let mut versions = Vec::new();
        for segment in self.searcher.segment_readers() {
            let postings = segment.inverted_index(self.fields.event)?;
            let Some(mut postings) = postings.read_postings(&term, IndexRecordOption::Basic)?
            else {
                continue;
            };
            let column = segment.fast_fields().u64("version")?.first_or_default_col(0);
            while postings.doc() != TERMINATED {
                if !segment.is_deleted(postings.doc()) {
                    versions.push(Offset::new(column.get_val(postings.doc())));
                }
                postings.advance();
            }
        }
        versions.sort_unstable();
        versions.dedup();
        Ok(versions)
    }

    /// Whether any file of the index contains this word, findable or not.
    #[cfg(test)]
    pub(super) fn holds(&self, word: &str) -> bool {
        let term = Term::from_field_text(self.fields.body, word);
        self.searcher.segment_readers().iter().any(|segment| {
            let index = segment.inverted_index(self.fields.body).expect("an index of words");
            index.get_term_info(&term).expect("a readable index").is_some()
        })
    }

    /// The prefixes of its file names.
    #[cfg(test)]
    pub(super) fn segments(&self) -> Vec<String> {
        let segments = self.searcher.segment_readers().iter();
        segments.map(|segment| segment.segment_id().uuid_string()).collect()
    }
}

/// Constants in place of the statistics of the whole index, so that the relevance of a hit depends
/// on its text alone. It then stays the same when other texts are added, which paging relies on,
/// and reveals nothing about texts that the searching user may not see.
struct Evenly;

impl Bm25StatisticsProvider for Evenly {
    fn total_num_tokens(&self, _: Field) -> tantivy::Result<u64> {
        Ok(16_000_000)
    }

    fn total_num_docs(&self) -> tantivy::Result<u64> {
        Ok(1_000_000)
    }

    fn doc_freq(&self, _: &Term) -> tantivy::Result<u64> {
        Ok(1_000)
    }
}

/// Collects the first hits in an order for which the index has no support.
struct First {
    rooms: Arc<HashSet<Offset>>,
    order: Order,
    after: Option<HitPosition>,
    until: Offset,
    most: usize,
    /// How many texts may still be examined.
    looks: AtomicUsize,
}

struct FirstOfSegment {
    rooms: Arc<HashSet<Offset>>,
    order: Order,
    after: Option<HitPosition>,
    until: Offset,
    room: Arc<dyn ColumnValues<u64>>,
    event: Arc<dyn ColumnValues<u64>>,
    version: Arc<dyn ColumnValues<u64>>,
    found: TopHits,
}

/// The best hits so far, and some more.
struct TopHits {
    most: usize,
    hits: Vec<Hit>,
}

impl TopHits {
    fn add(&mut self, hit: Hit) {
        self.hits.push(hit);
        if self.hits.len() >= self.most.saturating_mul(2).max(64) {
            self.cut();
        }
    }

    fn cut(&mut self) {
        if self.hits.len() > self.most {
            self.hits.select_nth_unstable_by(self.most, |a, b| b.cmp(a));
            self.hits.truncate(self.most);
        }
    }

    fn in_order(mut self) -> Vec<Hit> {
        self.cut();
        self.hits.sort_unstable_by(|a, b| b.cmp(a));
        self.hits
    }
}

impl Collector for First {
    type Fruit = Vec<Hit>;
    type Child = FirstOfSegment;

    fn for_segment(
        &self,
        _: SegmentOrdinal,
        segment: &SegmentReader,
    ) -> tantivy::Result<FirstOfSegment> {
        let column = |name| -> tantivy::Result<_> {
            Ok(segment.fast_fields().u64(name)?.first_or_default_col(0))
        };
        Ok(FirstOfSegment {
            rooms: Arc::clone(&self.rooms),
            order: self.order,
            after: self.after,
            until: self.until,
            room: column("room")?,
            event: column("event")?,
            version: column("version")?,
            found: TopHits { most: self.most, hits: Vec::new() },
        })
    }

    fn requires_scoring(&self) -> bool {
        true
    }

    /// Like tantivy's own, except that it is bounded, and that texts which do not count are not
    /// scored.
    fn collect_segment(
        &self,
        weight: &dyn Weight,
        ordinal: SegmentOrdinal,
        segment: &SegmentReader,
    ) -> tantivy::Result<Vec<Hit>> {
        let mut first = self.for_segment(ordinal, segment)?;
        let mut scorer = weight.scorer(segment, 1.0)?;
        let alive = segment.alive_bitset();
        let mut doc = scorer.doc();
        let mut looks = self.looks.load(Ordering::Relaxed);
        while doc != TERMINATED && looks > 0 {
            looks -= 1;
            if alive.is_none_or(|alive| alive.is_alive(doc)) && first.is_wanted(doc) {
                first.add(doc, scorer.score());
            }
            doc = scorer.advance();
        }
        self.looks.store(looks, Ordering::Relaxed);
        Ok(first.harvest())
    }

    fn merge_fruits(&self, segments: Vec<Vec<Hit>>) -> tantivy::Result<Vec<Hit>> {
        let mut found = TopHits { most: self.most, hits: Vec::new() };
        segments.into_iter().flatten().for_each(|hit| found.add(hit));
        Ok(found.in_order())
    }
}

impl FirstOfSegment {
    /// Whether a text is in one of the rooms, and old enough.
    fn is_wanted(&self, doc: DocId) -> bool {
        self.rooms.contains(&Offset::new(self.room.get_val(doc)))
            && Offset::new(self.version.get_val(doc)) <= self.until
    }

    fn add(&mut self, doc: DocId, score: Score) {
        let offset = |column: &Arc<dyn ColumnValues<u64>>| Offset::new(column.get_val(doc));
        let (room, version) = (offset(&self.room), offset(&self.version));
        // In thousandths: the same words may be summed in another order elsewhere.
        let rank = (score * 1000.0).round().clamp(0.0, 1e9) as u32;
        let ordered = if self.order == Order::Rank { rank } else { 0 };
        let place = HitPosition { rank: ordered, event: offset(&self.event) };
        if self.after.is_none_or(|after| place < after) {
            self.found.add(Hit { place, version, room, rank });
        }
    }
}

impl SegmentCollector for FirstOfSegment {
    type Fruit = Vec<Hit>;

    fn collect(&mut self, doc: DocId, score: Score) {
        if self.is_wanted(doc) {
            self.add(doc, score);
        }
    }

    fn harvest(self) -> Vec<Hit> {
        self.found.in_order()
    }
}
