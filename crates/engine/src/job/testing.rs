//! Common parts of the jobs' tests: an executor over a file system, shards in vectors, and a reader
//! of the exact content of outputs.

use std::collections::BTreeMap;
use std::path::Path;

use archipelago_base::clock::SystemClock;
use archipelago_base::{Error, SeqNo};
use archipelago_env::mem::MemFs;
use archipelago_env::{IoContext, IoPurpose, OpenOptions};

use super::below::Below;
use super::spec::{CurrentNumber, FileNumbers, OutputSpec, Retention, ValueSpec};
use super::*;
use crate::compaction::job::{CompactionSpec, Input};
use crate::file_meta::sst_name;
use crate::flush::FlushSpec;
use crate::iter::{InternalIterator, VecIterator};
use crate::key::{self, KeyRange, KeyRef, Kind};
use crate::memtable::SealedShard;
use crate::options::Compression;
use crate::sst::{TableReadOptions, TableReader};
use crate::tombstone::RangeTombstone;
use crate::value::ValueKey;
use crate::value_ref::Reference;

pub(crate) const DIR: &str = "/db";

/// A record as tests write it down: key, sequence number, kind, value.
pub(crate) type Record = (Vec<u8>, u64, Kind, Vec<u8>);

pub(crate) fn record(key: &str, seq: u64, kind: Kind, value: &str) -> Record {
    (key.into(), seq, kind, value.into())
}

pub(crate) fn put(key: &str, seq: u64, value: &str) -> Record {
    record(key, seq, Kind::Put, value)
}

/// A value that expires.
pub(crate) fn expiring(key: &str, seq: u64, expiry: u64, value: &str) -> Record {
    let stored = [&expiry.to_le_bytes(), value.as_bytes()].concat();
    (key.into(), seq, Kind::PutExpiring, stored)
}

pub(crate) fn tombstone(start: &str, end: &str, seq: u64) -> RangeTombstone {
    RangeTombstone { start: start.as_bytes().into(), end: end.as_bytes().into(), seq: SeqNo(seq) }
}

pub(crate) fn range(start: &str, end: Option<&str>) -> KeyRange {
    KeyRange { start: start.into(), end: end.map(|end| end.as_bytes().to_vec()) }
}

/// A sealed shard in vectors.
pub(crate) struct VecShard {
    records: Vec<(Vec<u8>, Vec<u8>)>,
    tombstones: Vec<RangeTombstone>,
    entries: u64,
}

impl SealedShard for VecShard {
    fn verified_iter(self: Arc<Self>) -> Box<dyn InternalIterator> {
        Box::new(VecIterator::new(self.records.clone()))
    }

    fn tombstone_list(&self) -> Vec<RangeTombstone> {
        self.tombstones.clone()
    }

    fn entries(&self) -> u64 {
        self.entries
    }

    fn data_bytes(&self) -> u64 {
        self.records.iter().map(|(key, value)| (key.len() + value.len()) as u64).sum()
    }

    fn write_image(&self, _out: &mut Vec<u8>) -> Result<()> {
        Err(Error::unsupported("a shard in vectors has no image"))
    }

    fn seq_range(&self) -> (SeqNo, SeqNo) {
        (SeqNo::ZERO, SeqNo::MAX)
    }
}

#[derive(Default)]
pub(crate) struct VecShards(BTreeMap<u64, Arc<VecShard>>);

impl ShardSource for VecShards {
    fn shard(&self, shard: &ShardRef) -> Result<Arc<dyn SealedShard>> {
        match self.0.get(&shard.memtable) {
            Some(found) => Ok(Arc::clone(found) as _),
            None => Err(Error::not_found(format!("memtable {}", shard.memtable))),
        }
    }
}

/// Runs the jobs of tests on the calling thread.
pub(crate) struct Executor {
    pub(crate) fs: Arc<dyn FileSystem>,
    pub(crate) shards: VecShards,
    pub(crate) cancel: Cancel,
    pub(crate) budget: Arc<ByteBudget>,
    cache: Arc<BlockCache>,
    next_file: AtomicU64,
}

impl Executor {
    pub(crate) fn new() -> Self {
        Self::over(Arc::new(MemFs::new()))
    }

    pub(crate) fn over(fs: Arc<dyn FileSystem>) -> Self {
        fs.create_dir_all(Path::new(DIR)).unwrap();
        let budget = ByteBudget::unlimited();
        Self {
            fs,
            shards: VecShards::default(),
            cancel: Cancel::default(),
            cache: BlockCache::new(1 << 20, &budget),
            budget,
            next_file: AtomicU64::new(1),
        }
    }

    /// Adds a memtable of one shard.
    pub(crate) fn memtable(
        &mut self,
        no: u64,
        records: &[Record],
        tombstones: &[RangeTombstone],
    ) -> ShardRef {
        let entries = records.len() as u64;
        let records = records
            .iter()
            .map(|(key, seq, kind, value)| (key::encode(key, SeqNo(*seq), *kind), value.clone()))
            .collect();
        let tombstones = tombstones.to_vec();
        self.shards.0.insert(no, Arc::new(VecShard { records, tombstones, entries }));
        ShardRef { memtable: no, shard: 0 }
    }

    /// Makes a memtable claim to have `entries` records.
    pub(crate) fn pretend_entries(&mut self, no: u64, entries: u64) {
        self.shards.0.get_mut(&no).and_then(Arc::get_mut).unwrap().entries = entries;
    }

    pub(crate) fn context(&self) -> JobContext<'_> {
        JobContext {
            fs: Arc::clone(&self.fs),
            registry: Registry::default(),
            clock: SystemClock::shared(),
            limiter: None,
            cancel: self.cancel.clone(),
            shards: &self.shards,
            cache: Arc::clone(&self.cache),
            warm: false,
            budget: Arc::clone(&self.budget),
            more_file_numbers: None,
            value_keys: KnownKeys::default(),
            progress: Arc::default(),
        }
    }

    /// Names of the tables in the directory.
    pub(crate) fn tables(&self) -> Vec<String> {
        let entries = self.fs.list(Path::new(DIR)).unwrap();
        entries.into_iter().map(|entry| entry.name).filter(|name| name.ends_with("sst")).collect()
    }

    pub(crate) fn output_spec(&self, level: u8) -> OutputSpec {
        OutputSpec {
            cf_name: "default".into(),
            dir: DIR.into(),
            level,
            file_numbers: FileNumbers {
                first: self.next_file.fetch_add(1000, Ordering::Relaxed),
                count: 1000,
            },
            unique_seed: 42,
            target_file_bytes: 64 << 20,
            cuts: vec![],
            grandparents: vec![],
            block_bytes: 4096,
            compression: Compression::None,
            bloom_bits_per_key: 10,
            created_unix_ms: 1000,
            direct_io: false,
            values: ValueSpec::default(),
        }
    }

    pub(crate) fn flush_spec(&self, shards: Vec<ShardRef>) -> FlushSpec {
        FlushSpec {
            cf: 0,
            range: KeyRange::all(),
            shards,
            retention: retention(),
            output: self.output_spec(0),
        }
    }

    pub(crate) fn compaction_spec(&self, inputs: Vec<Input>) -> CompactionSpec {
        CompactionSpec {
            cf: 0,
            from: 0,
            inputs,
            range: KeyRange::all(),
            subrange: None,
            retention: Retention { below: Below::nothing(), ..retention() },
            output: self.output_spec(1),
            readahead_bytes: 64 << 10,
            direct_reads: false,
        }
    }

    /// The user's records: `records` with the values that they reference, which lie in the files of
    /// `values`.
    pub(crate) fn resolved(&self, records: &[Record], values: &ValueSpec) -> Vec<Record> {
        let io = IoContext::sst(IoPurpose::Maintenance, 0);
        let context = self.context();
        let mut source = ValueInputs::new(values, DIR.into(), io, false, &context);
        let mut resolve = |record: &Record| {
            let (key, seq, kind, stored) = record.clone();
            if kind != Kind::Indirect {
                return (key, seq, kind, stored);
            }
            let reference = Reference::decode(&stored).unwrap();
            let current = values.current(reference.file_no.0).expect("a known value file");
            let at = ValueKey { user_key: &key, seq: SeqNo(seq) };
            let value = source.fetch(&reference, FileNo(current), at).unwrap();
            match reference.expiry_unix_ms {
                None => (key, seq, Kind::Put, value.into_vec()),
                Some(expiry) => {
                    let stored = [&expiry.to_le_bytes(), &value[..]].concat();
                    (key, seq, Kind::PutExpiring, stored)
                }
            }
        };
        records.iter().map(&mut resolve).collect()
    }

    /// A reader of an output.
    pub(crate) fn table(&self, meta: &FileMeta) -> Arc<TableReader> {
        let io = IoContext::sst(IoPurpose::Maintenance, 0);
        let path = Path::new(DIR).join(sst_name(meta.file_no()));
        let file = self.fs.open(&path, io, OpenOptions::default()).unwrap();
        TableReader::open(file, &path, Some(meta), &self.cache, &self.budget).unwrap()
    }

    /// Opens an output, checks it against its metadata, and returns its records and range
    /// tombstones.
    pub(crate) fn contents(&self, meta: &FileMeta) -> (Vec<Record>, Vec<RangeTombstone>) {
        let io = IoContext::sst(IoPurpose::Maintenance, 0);
        let path = Path::new(DIR).join(sst_name(meta.file_no()));
        contents(&*self.fs, &path, meta, &self.cache, &self.budget, io)
    }
}

pub(crate) fn contents(
    fs: &dyn FileSystem,
    path: &Path,
    meta: &FileMeta,
    cache: &Arc<BlockCache>,
    budget: &Arc<ByteBudget>,
    context: IoContext,
) -> (Vec<Record>, Vec<RangeTombstone>) {
    let file = fs.open(path, context, OpenOptions::default()).unwrap();
    assert_eq!(file.len(), meta.size_bytes);
    let table = TableReader::open(file, path, Some(meta), cache, budget).unwrap();
    let mut iter = table.iter(TableReadOptions::job(context, 0));
    let mut records = Vec::new();
    iter.seek_to_first();
    while iter.valid() {
        let KeyRef { user_key, seq, kind } = KeyRef::decode(iter.key()).unwrap();
        assert!(meta.contains(user_key));
        records.push((user_key.to_vec(), seq.0, kind, iter.value().to_vec()));
        iter.next();
    }
    iter.status().unwrap();
    assert_eq!(records.len() as u64, meta.entries);
    let tombstones = table.tombstones().list();
    let within = |t: &RangeTombstone| *meta.smallest <= *t.start && *t.end <= *meta.largest;
    assert!(tombstones.iter().all(within));
    (records, tombstones)
}

pub(crate) fn retention() -> Retention {
    Retention {
        visible_seq: SeqNo::MAX.0,
        snapshots: vec![],
        below: Below::Everything,
        now_ms: 1000,
        merge_operator: Some("append".into()),
        compaction_filter: None,
    }
}

/// A value spec that separates values from `separation_bytes` on. References name `files`.
pub(crate) fn value_spec(separation_bytes: u64, files: &[ValueFileMeta]) -> ValueSpec {
    let mut files = files.to_vec();
    files.sort_by_key(|file| file.no);
    let same = |file: &ValueFileMeta| CurrentNumber { named: file.no, current: file.no };
    ValueSpec {
        separation_bytes,
        value_file_bytes: 64 << 20,
        current: files.iter().map(same).collect(),
        files,
        invalid: FileNumbers::default(),
    }
}

/// The files of a level as inputs.
pub(crate) fn inputs(level: u8, files: &[FileMeta]) -> impl Iterator<Item = Input> + '_ {
    files.iter().map(move |meta| Input { level, meta: meta.clone() })
}

/// Checks that no file reaches into the next one.
pub(crate) fn assert_disjoint(files: &[FileMeta]) {
    for pair in files.windows(2) {
        assert!(pair[0].ends_before(&pair[1].smallest), "{pair:?}");
    }
}
