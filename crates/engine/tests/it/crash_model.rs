//! Common parts of the crash and fault tests: seeded operations, the expected content after each of
//! them, and the reading of the actual content.
//!
//! The content after every operation is kept as one hash. So "the surviving state is some prefix of
//! the write order" is a search in a list. The hash is the exclusive or of one hash per entry: an
//! operation changes it in proportion to the entries that it changes.

use std::collections::{BTreeMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use archipelago_base::random::Rng;
use archipelago_base::{Error, ErrorKind, Result};
use archipelago_engine::db::{
    ColumnFamily, Components, Db, FaultPoint, IngestOptions, ReadOptions,
};
use archipelago_engine::options::{CfOptions, Compression, DbOptions, WriteOptions};
use archipelago_engine::sst::{SstWriter, TableOptions};
use archipelago_engine::stats::Ticker;
use archipelago_engine::wal::WriteBatch;
use archipelago_env::FileSystem;

use crate::beside::Beside;
use crate::fragile::Fragile;
use crate::separation::Separation;
use crate::support::{small_db, small_family, stepped};

/// Families that every run has; a fourth one is created and dropped.
pub(crate) const FAMILIES: [&str; 3] = ["default", "counters", "texts"];
pub(crate) const GUEST: &str = "guest";
/// A family of rows in time order that had expired when they were written. It is always empty, and
/// a settled database has no table of it.
pub(crate) const ORDERED: &str = "ordered";
/// Number of different keys of a family.
const KEYS: u32 = 120;

/// The merge operator of a family.
fn operator(family: &str) -> Option<&'static str> {
    match family {
        "counters" => Some("u64-counter"),
        "texts" => Some("append"),
        _ => None,
    }
}

/// Settings under which a few hundred operations make seals, flushes and compactions.
pub(crate) fn family_options(family: &str) -> CfOptions {
    let buckets = match family {
        "default" => 3,
        "counters" => 16,
        _ => 1,
    };
    // Files are small in the family of one bucket, so that its compactions are worth cutting into
    // parts.
    let defaults = CfOptions::default();
    let (target_file_bytes, compression, compression_last) = match buckets {
        1 => (4 << 10, Compression::None, Compression::None),
        _ => (8 << 10, defaults.compression, defaults.compression_last),
    };
    CfOptions {
        write_buffer_bytes: 8 << 10,
        level_base_bytes: 24 << 10,
        target_file_bytes,
        compression,
        compression_last,
        l0_compaction_trigger: 2,
        buckets,
        merge_operator: operator(family).map(str::to_owned),
        ..small_family()
    }
}

/// Disturbances inside the database of a run: background steps while an ingestion is installed, and
/// panics of merge operators.
#[derive(Clone, Default)]
pub(crate) struct Hooks {
    pub(crate) beside: Arc<Beside>,
    pub(crate) fragile: Fragile,
    pub(crate) separation: Separation,
}

impl Hooks {
    /// Hooks for a database that separates values as given.
    pub(crate) fn of(separation: Separation) -> Self {
        Self { separation, ..Self::default() }
    }

    /// Settings of a family.
    fn family(&self, name: &str) -> CfOptions {
        self.separation.of(family_options(name))
    }
}

/// Opens the database of a run (the families must exist). The test steps its background work.
pub(crate) fn open_over(fs: Arc<dyn FileSystem>, options: DbOptions, hooks: &Hooks) -> Result<Db> {
    let families = [("default".to_owned(), hooks.family("default"))].into_iter().collect();
    let (beside, separation) = (Arc::clone(&hooks.beside), hooks.separation);
    let fault_point: FaultPoint = Arc::new(move |name| {
        separation.reached(name)?;
        beside.reached(name);
        Ok(())
    });
    let components = Components {
        fs,
        families,
        registry: hooks.fragile.registry(),
        fault_point: Some(fault_point),
        flat_index: hooks.separation.flat_index,
        seed: Some(7),
        ..stepped()
    };
    Db::open_with("/db", options, components)
}

/// Creates the database of a run with its families.
pub(crate) fn create(fs: Arc<dyn FileSystem>, options: DbOptions, hooks: &Hooks) -> Db {
    let db = open_over(fs, options, hooks).unwrap();
    for family in FAMILIES[1..].iter().chain([&ORDERED]) {
        db.create_family(family, hooks.family(family)).unwrap();
    }
    db
}

/// Options with small sizes, and with compactions cut into parts.
pub(crate) fn manual() -> DbOptions {
    cut_into(3)
}

/// Options with small sizes, and with compactions cut into at most the given number of parts.
pub(crate) fn cut_into(subcompactions_max: usize) -> DbOptions {
    DbOptions { subcompactions_max, ..small_db() }
}

/// One change of one key or range.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    Put(Vec<u8>, Vec<u8>),
    /// A value that has expired: it hides older versions and is not visible.
    Expired(Vec<u8>, Vec<u8>),
    Delete(Vec<u8>),
    DeleteRange(Vec<u8>, Vec<u8>),
    Merge(Vec<u8>, Vec<u8>),
}

/// One operation, which happens as a whole or not at all.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    /// Changes by family. `wal` says whether they go through the log.
    Write { changes: Vec<(&'static str, Change)>, sync: bool, wal: bool },
    /// Rows after all others of [`ORDERED`], from this one on.
    Ordered { first: u64, rows: u64 },
    /// Files of puts that become part of a family, with the given number of background steps
    /// meanwhile.
    Ingest { family: &'static str, files: Vec<Vec<(Vec<u8>, Vec<u8>)>>, beside: usize },
    /// The memtables of a family become tables, which changes no contents.
    Flush { family: &'static str },
    /// Creates the guest family.
    Create,
    /// Drops the guest family with its content.
    Drop,
}

/// Content of each family.
pub(crate) type Contents = BTreeMap<&'static str, BTreeMap<Vec<u8>, Vec<u8>>>;

fn hash_of(family: &str, key: &[u8], value: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    (family, key, value).hash(&mut hasher);
    hasher.finish()
}

/// The hash of the content of all families.
pub(crate) fn hash(contents: &Contents) -> u64 {
    contents
        .iter()
        .flat_map(|(family, entries)| entries.iter().map(|(k, v)| hash_of(family, k, v)))
        .fold(0, |all, one| all ^ one)
}

/// Expected content of the database.
#[derive(Clone, Debug, Default)]
pub(crate) struct Model {
    pub(crate) contents: Contents,
    pub(crate) hash: u64,
    pub(crate) has_guest: bool,
}

impl Model {
    fn set(&mut self, family: &'static str, key: &[u8], value: Option<Vec<u8>>) {
        let entries = self.contents.entry(family).or_default();
        let old = match value {
            Some(value) => {
                self.hash ^= hash_of(family, key, &value);
                entries.insert(key.to_vec(), value)
            }
            None => entries.remove(key),
        };
        if let Some(old) = old {
            self.hash ^= hash_of(family, key, &old);
        }
    }

    fn change(&mut self, family: &'static str, change: &Change) {
        match change {
            Change::Put(key, value) => self.set(family, key, Some(value.clone())),
            Change::Delete(key) | Change::Expired(key, _) => self.set(family, key, None),
            Change::DeleteRange(from, to) => {
                let entries = self.contents.entry(family).or_default();
                let gone: Vec<_> =
                    entries.range(from.clone()..to.clone()).map(|e| e.0.clone()).collect();
                gone.iter().for_each(|key| self.set(family, key, None));
            }
            Change::Merge(key, operand) => {
                let old = self.contents.get(family).and_then(|entries| entries.get(key)).cloned();
                let new = merged(family, old.as_deref(), operand);
                self.set(family, key, Some(new));
            }
        }
    }

    /// Applies `op` to the model.
    pub(crate) fn apply(&mut self, op: &Op) {
        match op {
            Op::Write { changes, .. } => {
                changes.iter().for_each(|(family, change)| self.change(family, change));
            }
            Op::Ingest { family, files, .. } => {
                for (key, value) in files.iter().flatten() {
                    self.set(family, key, Some(value.clone()));
                }
            }
            Op::Ordered { .. } | Op::Flush { .. } => {}
            Op::Create => self.has_guest = true,
            Op::Drop => {
                self.has_guest = false;
                let gone: Vec<_> =
                    self.contents.get(GUEST).into_iter().flatten().map(|e| e.0.clone()).collect();
                gone.iter().for_each(|key| self.set(GUEST, key, None));
            }
        }
    }
}

fn merged(family: &str, old: Option<&[u8]>, operand: &[u8]) -> Vec<u8> {
    if family == "counters" {
        let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap());
        return (old.map_or(0, number) + number(operand)).to_le_bytes().to_vec();
    }
    let mut whole = old.unwrap_or_default().to_vec();
    whole.extend_from_slice(operand);
    whole
}

/// Makes the operations of one random run.
pub(crate) struct Script {
    pub(crate) rng: Rng,
    made: u64,
    /// Rows of [`ORDERED`].
    ordered: u64,
    /// Whether some writes consist of many overlapping range deletes.
    stormy: bool,
    gaps: u64,
    /// Operations that come next in any case.
    queued: VecDeque<Op>,
}

impl Script {
    pub(crate) fn new(seed: u64) -> Self {
        let (rng, queued) = (Rng::with_seed(seed), VecDeque::new());
        Self { rng, made: 0, ordered: 0, stormy: false, gaps: 0, queued }
    }

    /// A script with writes of many overlapping range deletes.
    pub(crate) fn stormy(seed: u64) -> Self {
        Self { stormy: true, ..Self::new(seed) }
    }

    fn key(&mut self) -> Vec<u8> {
        format!("key{:04}", self.rng.u32(..KEYS)).into_bytes()
    }

    fn range(&mut self, widest: u32) -> (Vec<u8>, Vec<u8>) {
        let from = self.rng.u32(..KEYS);
        let to = from + self.rng.u32(..widest);
        (format!("key{from:04}").into_bytes(), format!("key{to:04}").into_bytes())
    }

    fn value(&mut self, most: usize) -> Vec<u8> {
        self.made += 1;
        let fill = self.rng.usize(..most);
        format!("{:06}{}", self.made, "x".repeat(fill)).into_bytes()
    }

    fn change(&mut self, family: &'static str) -> Change {
        let dice = self.rng.u32(..100);
        match family {
            // A counter is only merged or removed: a value of another form has no sum.
            "counters" if dice < 90 => {
                Change::Merge(self.key(), self.rng.u64(1..9).to_le_bytes().to_vec())
            }
            "texts" if dice < 50 => Change::Merge(self.key(), self.value(20)),
            _ if dice < 80 && family != "counters" => Change::Put(self.key(), self.value(1500)),
            _ if dice < 87 && family != "counters" => Change::Expired(self.key(), self.value(300)),
            _ if dice < 95 => Change::Delete(self.key()),
            _ => {
                let (from, to) = self.range(30);
                Change::DeleteRange(from, to)
            }
        }
    }

    fn family(&mut self, model: &Model) -> &'static str {
        let most = if model.has_guest { 4 } else { 3 };
        match self.rng.usize(..most) {
            3 => GUEST,
            index => FAMILIES[index],
        }
    }

    /// A write of one to eight changes, or of many overlapping range deletes.
    pub(crate) fn write(&mut self, model: &Model) -> Op {
        if self.stormy && self.rng.u32(..60) == 0 {
            return self.storm(model);
        }
        let len = if self.rng.bool() { 1 } else { self.rng.usize(2..9) };
        let mut changes = Vec::with_capacity(len);
        for _ in 0..len {
            let family = self.family(model);
            changes.push((family, self.change(family)));
        }
        Op::Write { changes, sync: self.rng.u32(..100) < 12, wal: true }
    }

    /// An operation that creates or drops the guest family, or an ingestion.
    pub(crate) fn structural(&mut self, model: &Model) -> Op {
        match self.rng.u32(..3) {
            0 => self.ingest(model),
            _ if model.has_guest => Op::Drop,
            _ => Op::Create,
        }
    }

    /// Range deletes that each cover the ones before, and a change that only the last ones cover.
    fn storm(&mut self, model: &Model) -> Op {
        let family = self.family(model);
        let (first, count) = (self.rng.u32(..KEYS), self.rng.u32(70..140));
        let key = |at: u32| format!("key{at:04}").into_bytes();
        let mut changes = Vec::new();
        for at in 0..count {
            let (from, to) = match first % 2 {
                0 => (first.saturating_sub(at / 8), first + at / 8),
                _ => (first + at / 8, first + 40),
            };
            changes.push((family, Change::DeleteRange(key(from), key(to.max(from)))));
        }
        let at = self.rng.usize(..changes.len());
        changes.insert(at, (family, self.change(family)));
        Op::Write { changes, sync: self.rng.bool(), wal: true }
    }

    fn ingest(&mut self, model: &Model) -> Op {
        let family = loop {
            match self.family(model) {
                "counters" => {}
                family => break family,
            }
        };
        // With few neighbours there are gaps below L0.
        let few = self.rng.bool();
        let first = self.rng.u32(..KEYS);
        let count = if few { 2 } else { self.rng.usize(2..40) };
        let key = |own: &mut Self, n: u32| if few { first + n } else { own.rng.u32(..KEYS) };
        let mut keys: Vec<u32> = (0..count as u32).map(|n| key(self, n)).collect();
        keys.sort_unstable();
        keys.dedup();
        let entries: Vec<_> =
            keys.iter().map(|key| (format!("key{key:04}").into_bytes(), self.value(100))).collect();
        let cut = entries.len() / 2;
        let files = [&entries[..cut], &entries[cut..]];
        let files = files.iter().filter(|file| !file.is_empty()).map(|file| file.to_vec());
        Op::Ingest { family, files: files.collect(), beside: self.rng.usize(..4) }
    }

    /// Causes a compaction over a key that none of its files has, and ingests that key while the
    /// compaction may be picked. Later gaps lie at lower keys, where no file of an earlier gap is.
    fn fill_gap(&mut self) -> Op {
        self.gaps += 1;
        let (family, gap) = ("default", 999 - self.gaps);
        let key = |end| format!("gap{gap:03}{end}").into_bytes();
        for end in ["a", "z"] {
            let changes = vec![(family, Change::Put(key(end), self.value(20)))];
            self.queued.push_back(Op::Write { changes, sync: false, wal: true });
            self.queued.push_back(Op::Flush { family });
        }
        let files = vec![vec![(key("m"), self.value(20))]];
        self.queued.push_back(Op::Ingest { family, files, beside: self.rng.usize(1..4) });
        Op::Flush { family }
    }

    /// Makes the next operation at random.
    pub(crate) fn op(&mut self, model: &Model) -> Op {
        if let Some(op) = self.queued.pop_front() {
            return op;
        }
        match self.rng.u32(..100) {
            97.. => self.fill_gap(),
            0 if model.has_guest => Op::Drop,
            0..2 if !model.has_guest => Op::Create,
            2..4 => self.ingest(model),
            4..8 => {
                let (first, rows) = (self.ordered, self.rng.u64(1..60));
                self.ordered += rows;
                Op::Ordered { first, rows }
            }
            _ => self.write(model),
        }
    }
}

fn batch_of(db: &Db, changes: &[(&'static str, Change)]) -> Result<WriteBatch> {
    let mut batch = WriteBatch::new();
    for (family, change) in changes {
        let cf = db.family(family)?.id();
        match change {
            Change::Put(key, value) => batch.put_cf(cf, key, value),
            Change::Expired(key, value) => batch.put_expiring_cf(cf, key, value, 1),
            Change::Delete(key) => batch.delete_cf(cf, key),
            Change::DeleteRange(from, to) => batch.delete_range_cf(cf, from, to),
            Change::Merge(key, operand) => batch.merge_cf(cf, key, operand),
        }
    }
    Ok(batch)
}

/// Performs `op` on the database; `fs` takes the files to ingest.
pub(crate) fn perform(db: &Db, fs: &Arc<dyn FileSystem>, op: &Op, hooks: &Hooks) -> Result<()> {
    match op {
        Op::Write { changes, sync, wal } => {
            let batch = batch_of(db, changes)?;
            let options = WriteOptions { sync: *sync, wal: *wal, ..WriteOptions::default() };
            db.write(&batch, &options).map(|_| ())
        }
        Op::Ordered { first, rows } => {
            let mut batch = WriteBatch::new();
            let cf = db.family(ORDERED)?.id();
            for row in *first..first + rows {
                batch.put_expiring_cf(cf, format!("{row:012}").as_bytes(), &[7; 100], 1);
            }
            db.write(&batch, &WriteOptions::default()).map(|_| ())
        }
        Op::Ingest { family, files, beside } => {
            let mut paths = Vec::new();
            for (index, entries) in files.iter().enumerate() {
                let path = format!("/ingest{index}.sst");
                let mut writer =
                    SstWriter::create(fs, std::path::Path::new(&path), TableOptions::default())?;
                for (key, value) in entries {
                    writer.put(key, value)?;
                }
                writer.finish()?;
                paths.push(path);
            }
            let (cf, options) = (db.family(family)?, IngestOptions::default());
            let (ingested, stepped) = hooks.beside.ingest(db, &cf, &paths, &options, *beside);
            if let Err(error) = stepped {
                // Like a step on another thread, it meets the faults of the run, and no others.
                assert_ne!(error.kind(), ErrorKind::Corrupt, "{error}");
            }
            assert_eq!(db.statistics().get(Ticker::EditsRefused), 0, "an edit did not fit");
            ingested
        }
        Op::Flush { family } => db.flush(&db.family(family)?),
        Op::Create => db.create_family(GUEST, hooks.family(GUEST)).map(|_| ()),
        Op::Drop => db.drop_family(&db.family(GUEST)?),
    }
}

/// Performs `op`, and steps background work while the operation has to wait for it.
pub(crate) fn perform_stepping(
    db: &Db,
    fs: &Arc<dyn FileSystem>,
    op: &Op,
    hooks: &Hooks,
) -> Result<()> {
    let mut is_idle = false;
    loop {
        match perform(db, fs, op, hooks) {
            // A step without work releases writers that wait for space.
            Err(error) if error.kind() == ErrorKind::Busy && !is_idle => {
                is_idle = !db.step_background()?;
            }
            done => return done,
        }
    }
}

fn entries(db: &Db, cf: &ColumnFamily) -> Result<BTreeMap<Vec<u8>, Vec<u8>>> {
    let mut iter = db.iter(cf, &ReadOptions::default())?;
    let mut forward = Vec::new();
    iter.seek_to_first();
    while iter.valid() {
        forward.push((iter.key().to_vec(), iter.value().to_vec()));
        iter.next();
    }
    iter.status()?;
    let mut backward = Vec::new();
    iter.seek_to_last();
    while iter.valid() {
        backward.push((iter.key().to_vec(), iter.value().to_vec()));
        iter.prev();
    }
    iter.status()?;
    backward.reverse();
    assert_eq!(forward, backward, "an iterator sees the same in both directions");
    for (key, value) in forward.iter().step_by(7) {
        let got = db.get_with(cf, key, &ReadOptions::default())?;
        assert_eq!(got.as_deref(), Some(value.as_slice()), "get sees what an iterator sees");
    }
    Ok(forward.into_iter().collect())
}

/// The content of the database, read in both directions.
pub(crate) fn contents(db: &Db) -> Result<Contents> {
    let mut all = Contents::new();
    for name in db.list_families() {
        let known = FAMILIES.iter().chain([&GUEST, &ORDERED]).find(|known| **known == name);
        let known = known.ok_or_else(|| Error::not_found(format!("a model of {name}")))?;
        let entries = entries(db, &db.family(&name)?)?;
        if !entries.is_empty() {
            all.insert(known, entries);
        }
    }
    Ok(all)
}

/// The first differences between actual and expected content.
pub(crate) fn differences(got: &Contents, want: &Contents) -> Vec<String> {
    let mut found = Vec::new();
    let none = BTreeMap::new();
    for family in FAMILIES.iter().chain([&GUEST]) {
        let (got, want) = (got.get(family).unwrap_or(&none), want.get(family).unwrap_or(&none));
        let keys: std::collections::BTreeSet<_> = got.keys().chain(want.keys()).collect();
        for key in keys {
            if got.get(key) != want.get(key) {
                let show = |v: Option<&Vec<u8>>| {
                    v.map(|v| v[..v.len().min(24)].escape_ascii().to_string())
                };
                found.push(format!(
                    "{family}/{}: {:?} instead of {:?}",
                    key.escape_ascii(),
                    show(got.get(key)),
                    show(want.get(key))
                ));
            }
        }
    }
    found
}
