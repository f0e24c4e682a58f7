//! Runs steps on a database and on the model, and compares their results.

use std::collections::hash_map::DefaultHasher;
use std::fmt::Debug;
use std::hash::{Hash, Hasher};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use archipelago_base::clock::ManualClock;
use archipelago_base::{CfId, ErrorKind, Result};
use archipelago_engine::db::{
    BackgroundMode, ColumnFamily, Components, Db, FaultPoint, IngestOptions, ReadOptions,
};
use archipelago_engine::event::{Event as Told, EventListener, Listeners};
use archipelago_engine::key::KeyRange;
use archipelago_engine::options::{CfOptions, DbOptions, WriteOptions};
use archipelago_engine::stats::Ticker;
use archipelago_engine::wal::WriteBatch;
use archipelago_env::FileSystem;
use parking_lot::Mutex;

use super::iterator_rows::{Held, contents, rows_of};
use super::oracle::{Event, Family, RemoveThirds, Row, Version};
use super::ordered::{self, Ordered};
use super::steps::{Bounds, KeyNo, Move, Record, Step, universe};
use super::taken::{MidwayTaker, Read, Taken};
use super::tiered::{Did, Tiered};
use crate::away::{FakeExecutor, FakeStore, Mood, with_executor};
use crate::beside::Beside;
use crate::disk::TestDisk;
use crate::fragile::Fragile;
use crate::separation::Separation;

/// Directory of a case's database.
#[derive(Clone)]
pub(crate) enum Disk {
    Memory(TestDisk),
    Local(Arc<dyn FileSystem>, PathBuf),
    Tiers(Tiered),
}

/// Settings of one run of a case.
#[derive(Clone)]
pub(crate) struct Setting {
    pub(crate) background: BackgroundMode,
    pub(crate) db: DbOptions,
    pub(crate) family: CfOptions,
    pub(crate) separation: Separation,
    pub(crate) disk: Disk,
    /// Memory nodes for memtable shards, if there are some.
    pub(crate) away: Option<Mood>,
}

/// What a case's database is watched and disturbed by: which families' memtables were sealed since
/// it was last asked, how many bucket boundaries have moved, by hand and by the load, how many
/// parts compactions were cut into, and extensions that may panic.
#[derive(Default)]
pub(super) struct Seals {
    sealed: Mutex<Vec<CfId>>,
    by_hand: AtomicUsize,
    by_load: AtomicUsize,
    parts: AtomicUsize,
    /// Garbage collections that were installed.
    pub(super) collected: AtomicU64,
    /// Controls when extensions panic.
    pub(super) fragile: Fragile,
    /// Background steps during the installation of an ingestion.
    beside: Arc<Beside>,
}

impl Seals {
    /// Makes ingestions and snapshots coincide with jobs. (The reads of `taker` are only for that,
    /// and not for panics.)
    fn fault_point(&self, taker: &Arc<MidwayTaker>, separation: Separation) -> FaultPoint {
        let (beside, fragile) = (Arc::clone(&self.beside), self.fragile.clone());
        let take = taker.fault_point();
        Arc::new(move |name| {
            separation.reached(name)?;
            beside.reached(name);
            fragile.pause(true);
            let taken = take(name);
            fragile.pause(false);
            taken
        })
    }
}

impl EventListener for Seals {
    fn on_event(&self, event: &Told) {
        match event {
            Told::MemtableSealed { cf, .. } => self.sealed.lock().push(*cf),
            Told::CompactionInstalled { threads_ns, .. } if threads_ns.len() > 1 => {
                self.parts.fetch_add(threads_ns.len(), Ordering::Relaxed);
            }
            Told::GcInstalled { .. } => {
                self.collected.fetch_add(1, Ordering::Relaxed);
            }
            Told::BucketMapChanged { reason, .. } if reason.ends_with("on request") => {
                self.by_hand.fetch_add(1, Ordering::Relaxed);
            }
            Told::BucketMapChanged { reason, .. } if reason.contains("temperature") => {
                self.by_load.fetch_add(1, Ordering::Relaxed);
            }
            _ => {}
        }
    }
}

/// Snapshots of the middle of jobs that are kept.
const MIDWAY_KEPT: usize = 3;

pub(crate) struct Runner {
    pub(super) setting: Setting,
    pub(super) db: Db,
    pub(super) families: Vec<(Family, ColumnFamily)>,
    pub(super) ordered: Ordered,
    pub(super) clock: Arc<ManualClock>,
    pub(super) seals: Arc<Seals>,
    pub(super) keys: Vec<Vec<u8>>,
    snapshots: Vec<Taken>,
    /// Snapshots that were taken in the middle of jobs. (Kept separately, because their number
    /// depends on the settings.)
    midway: Vec<Taken>,
    midway_count: usize,
    taker: Arc<MidwayTaker>,
    held: Vec<Held>,
    /// Sequence number of the last record.
    seq: u64,
    /// Whether something was written past the log since the last open.
    past_log: bool,
    copies: u32,
    /// The memory nodes of the open database.
    store: Option<Arc<FakeStore>>,
    /// Shards that earlier opens sent, and that their nodes lost.
    sent: (u64, u64),
    /// Shards that opens kept.
    kept: u64,
    steps: u32,
    /// A hash of every read's answer.
    pub(crate) transcript: Vec<u64>,
}

fn is_counter(name: &str) -> bool {
    name == "counter" || name == "y"
}

impl Setting {
    fn dir(&self) -> PathBuf {
        match &self.disk {
            Disk::Memory(_) => PathBuf::from("/db"),
            Disk::Local(_, dir) => dir.join("db"),
            Disk::Tiers(tiered) => tiered.dir(),
        }
    }

    pub(super) fn fs(&self) -> Arc<dyn FileSystem> {
        match &self.disk {
            Disk::Memory(fs) => Arc::new(fs.clone()),
            Disk::Local(fs, _) => Arc::clone(fs),
            Disk::Tiers(tiered) => tiered.fs(),
        }
    }

    fn family(&self, name: &str) -> CfOptions {
        let operator = if is_counter(name) { "u64-counter" } else { "append" };
        CfOptions {
            merge_operator: Some(operator.to_owned()),
            compaction_filter: match name {
                "x" => Some("ttl".to_owned()),
                "filtered" => Some("remove-thirds".to_owned()),
                _ => None,
            },
            ..self.separation.of(self.family.clone())
        }
    }

    pub(super) fn is_manual(&self) -> bool {
        self.background == BackgroundMode::Manual
    }

    /// Whether an executor of the case may leave files of flushes that are planned again.
    pub(super) fn leaves_files(&self) -> bool {
        let whim = self.away.and_then(|mood| mood.whim);
        whim.is_some_and(|whim| whim.silence > 0 || whim.wrong > 0)
    }
}

/// The same components with memory nodes, and with their executor if the mood has one.
fn over_nodes(
    components: Components,
    store: Option<&Arc<FakeStore>>,
    mood: Option<Mood>,
) -> Components {
    let (Some(store), Some(mood)) = (store, mood) else { return components };
    let executor = FakeExecutor::of(1, store, mood);
    let components = Components { shard_store: Some(Arc::clone(store) as _), ..components };
    with_executor(components, executor.as_ref())
}

impl Runner {
    pub(crate) fn new(setting: Setting) -> Self {
        let clock = Arc::new(ManualClock::new(1_000_000));
        let seals = Arc::new(Seals::default());
        let taker = Arc::new(MidwayTaker::default());
        let mut components = Self::components(&setting, &clock, &seals);
        components.fault_point = Some(seals.fault_point(&taker, setting.separation));
        components.families.insert("default".to_owned(), setting.family("default"));
        let store = setting.away.map(|mood| FakeStore::new(1, mood));
        let components = over_nodes(components, store.as_ref(), setting.away);
        let db = Db::open_with(setting.dir(), setting.db.clone(), components).unwrap();
        let default = (Family::new("default", false), db.default_family().clone());
        let ordered = db.create_family(ordered::NAME, setting.family(ordered::NAME)).unwrap();
        let mut runner = Self {
            ordered: Ordered::new(ordered),
            families: vec![default],
            db,
            clock,
            seals,
            keys: universe(),
            snapshots: Vec::new(),
            midway: Vec::new(),
            midway_count: 0,
            taker,
            held: Vec::new(),
            seq: 0,
            past_log: false,
            copies: 0,
            store,
            sent: (0, 0),
            kept: 0,
            steps: 0,
            transcript: Vec::new(),
            setting,
        };
        runner.create_family("counter");
        runner.create_family("filtered");
        runner.begin_midway();
        runner
    }

    /// Makes jobs on this thread take snapshots in their middle.
    fn begin_midway(&self) {
        self.taker.set(self.setting.is_manual().then(|| self.db.clone()));
    }

    /// Number of snapshots that were taken in the middle of jobs.
    pub(crate) fn midway(&self) -> usize {
        self.midway_count
    }

    /// Takes over the snapshots of the middle of jobs, and repeats the reads at each of them.
    fn check_midway(&mut self) {
        let (db, now_ms) = (&self.db, self.now_ms());
        let of = |cf: CfId| self.families.iter().find(move |(_, handle)| handle.id() == cf);
        for midway in self.taker.take() {
            self.midway_count += 1;
            let taken = Taken::new(midway.snapshot);
            if let Some((model, handle)) = of(midway.cf) {
                let (cf, at) = (handle.id(), taken.seq());
                let read = Read { model, cf, taken: Some(&taken), at, now_ms };
                read.check_rows(&midway.rows, &self.keys);
            }
            self.midway.push(taken);
        }
        let many = self.midway.len().saturating_sub(MIDWAY_KEPT);
        self.midway.drain(..many);
        for taken in &self.midway {
            for (model, handle) in self.families.iter().filter(|(model, _)| model.filtered) {
                let options = ReadOptions::new().snapshot(&taken.snapshot);
                let (cf, at) = (handle.id(), taken.seq());
                let read = Read { model, cf, taken: Some(taken), at, now_ms };
                read.check_rows(&contents(db, handle, &options), &self.keys);
            }
        }
    }

    /// Number of parts that compactions were cut into, where they were.
    pub(crate) fn parts(&self) -> usize {
        self.seals.parts.load(Ordering::Relaxed)
    }

    /// Number of panics of merge operators and filters.
    pub(crate) fn panicked(&self) -> u64 {
        self.seals.fragile.panicked()
    }

    fn components(setting: &Setting, clock: &Arc<ManualClock>, seals: &Arc<Seals>) -> Components {
        let mut listeners = Listeners::default();
        listeners.add(Arc::new(seals.fragile.clone()));
        listeners.add(Arc::clone(seals) as _);
        let clock = Arc::clone(clock) as _;
        let mut registry = seals.fragile.registry();
        registry.add_compaction_filter(Arc::new(RemoveThirds));
        Components {
            fs: setting.fs(),
            clock,
            listeners,
            registry,
            background: setting.background,
            flat_index: setting.separation.flat_index,
            seed: Some(7),
            ..Components::default()
        }
    }

    pub(super) fn now_ms(&self) -> u64 {
        use archipelago_base::clock::Clock;
        self.clock.unix_ms()
    }

    /// Executes one step.
    pub(crate) fn run(&mut self, step: &Step) {
        let before = self.seq;
        match step {
            Step::Write { records, wal, sync } => self.write(records, *wal, *sync),
            Step::WriteOrdered { rows, ms_ahead } => self.write_ordered(*rows, *ms_ahead),
            Step::Storm { cf, records, batch, snapshots } => {
                let of_family =
                    |records: &[Record]| records.iter().map(|r| (*cf, r.clone())).collect();
                let batches: Vec<_> = records.chunks(*batch).map(of_family).collect();
                self.storm(*cf, &batches, snapshots);
            }
            Step::Advance { ms } => self.clock.advance(Duration::from_millis(*ms)),
            Step::TakeSnapshot => self.take_snapshot(),
            Step::DropSnapshot { snapshot } => {
                if !self.snapshots.is_empty() {
                    self.snapshots.swap_remove(snapshot % self.snapshots.len());
                }
            }
            Step::Get { cf, key, snapshot } => self.get(*cf, *key, *snapshot),
            Step::MultiGet { cf, keys, snapshot } => self.multi_get(*cf, keys, *snapshot),
            Step::LatestSeq { cf, key } => self.latest_seq(*cf, *key),
            Step::Scan { cf, snapshot, bounds, moves } => {
                self.scan(*cf, *snapshot, bounds, moves);
            }
            Step::HoldIterator { cf, snapshot } => self.hold(*cf, *snapshot),
            Step::MoveHeld { iterator, moves } => self.move_held(*iterator, moves),
            Step::CheckAll => self.check_all(),
            Step::Reopen => self.reopen(),
            Step::Kill => self.kill(),
            _ => self.upkeep(step),
        }
        for cf in std::mem::take(&mut *self.seals.sealed.lock()) {
            let family = self.families.iter_mut().find(|(_, handle)| handle.id() == cf);
            if let Some((model, _)) = family {
                model.seals.push(before);
            }
        }
        assert_eq!(self.db.latest_seq_of_all().0, self.seq);
        self.check_midway();
        if let Disk::Tiers(tiered) = &self.setting.disk {
            tiered.step();
        }
        self.steps += 1;
        if let Some(store) = self.store.as_ref().filter(|_| self.steps.is_multiple_of(17)) {
            store.lose_all(true);
        }
    }

    /// Number of memtable shards that opens kept at memory nodes.
    pub(crate) fn kept(&self) -> u64 {
        self.kept
    }

    /// Number of memtable shards that were sent to memory nodes, and of those that nodes lost.
    pub(crate) fn sent(&self) -> (u64, u64) {
        let did = self.store.as_ref().map(|store| store.did()).unwrap_or_default();
        (self.sent.0 + did.sent, self.sent.1 + did.lost)
    }

    /// Counts of the tiers' work, if the case is over tiers.
    pub(crate) fn tiers_did(&self) -> Did {
        match &self.setting.disk {
            Disk::Tiers(tiered) => tiered.did(),
            _ => Did::default(),
        }
    }

    fn upkeep(&mut self, step: &Step) {
        match step {
            Step::Flush { cf } => self.db.flush(self.handle(*cf)).unwrap(),
            Step::Background { steps } if self.setting.is_manual() => {
                let mut left = *steps;
                while left > 0 && self.db.step_background().unwrap() {
                    left -= 1;
                }
            }
            Step::Background { .. } => self.db.wait_for_background().unwrap(),
            Step::CompactRange { cf, start, end } => {
                let end = self.keys.get(*end).cloned();
                let range = KeyRange { start: self.keys[*start].clone(), end };
                self.db.compact_range(self.handle(*cf), &range).unwrap();
            }
            Step::Split { cf, bucket, key } => {
                let cf = self.handle(*cf);
                let index = bucket % self.db.buckets(cf).unwrap().len();
                let key = key.map(|key| self.keys[key].as_slice());
                self.cleared(cf, index, || self.db.split_bucket(cf, index, key));
            }
            Step::Join { cf, bucket } => {
                let cf = self.handle(*cf);
                let index = bucket % self.db.buckets(cf).unwrap().len();
                self.cleared(cf, index, || self.db.merge_buckets(cf, index));
            }
            Step::Ingest { cf, tables, link, beside } => self.ingest(*cf, tables, *link, *beside),
            Step::IngestIntoGap { cf, gap, stamp, beside } => {
                self.ingest_into_gap(*cf, *gap, *stamp, *beside);
            }
            Step::PanicInBackground { nth } => self.panic_in_background(*nth),
            Step::PanicInRead { cf, key, nth } => self.panic_in_read(*cf, *key, *nth),
            Step::PanicInListener { nth } => self.seals.fragile.arm_listener(*nth),
            Step::Checkpoint => self.checkpoint(),
            Step::CreateFamily => {
                let used = |name: &str| self.families.iter().any(|(model, _)| model.name == name);
                if let Some(name) = ["filtered", "x", "y", "w"].into_iter().find(|name| !used(name))
                {
                    self.create_family(name);
                }
            }
            Step::DropFamily { cf } => {
                let at = cf % self.families.len();
                if at > 1 {
                    let (_, handle) = self.families.remove(at);
                    self.db.drop_family(&handle).unwrap();
                    let gone = self.db.contains(&handle, b"a", &ReadOptions::default());
                    assert_eq!(gone.unwrap_err().kind(), ErrorKind::Closed);
                }
            }
            other => unreachable!("{other:?} is not upkeep"),
        }
    }

    /// Runs background steps until an extension panics or none is due, then until no error is left.
    fn panic_in_background(&self, nth: u64) {
        if !self.setting.is_manual() {
            return;
        }
        self.seals.fragile.arm(nth);
        let mut step = self.db.step_background();
        while matches!(step, Ok(true)) {
            step = self.db.step_background();
        }
        self.seals.fragile.arm(0);
        let is_healthy = || {
            let health = self.db.property(self.db.default_family(), "archipelago.health");
            health.is_some_and(|text| text.starts_with("healthy"))
        };
        if let Err(error) = step {
            assert!(Fragile::is_named_in(&error), "{error}");
            assert!(!is_healthy(), "{error}");
        }
        while !is_healthy() {
            assert!(self.db.step_background().unwrap(), "what failed is not planned again");
        }
    }

    /// Reads fail with an error that names the operator, or are right. After the panic they are
    /// right.
    fn panic_in_read(&mut self, cf: usize, key: KeyNo, nth: u64) {
        // Threads of the database could get the panic as well.
        self.seals.fragile.arm(if self.setting.is_manual() { nth } else { 0 });
        let handle = self.handle(cf);
        if let Err(error) = self.db.get(self.key(key)) {
            assert!(Fragile::is_named_in(&error), "{error}");
        }
        let mut iter = self.db.iter(handle, &ReadOptions::default()).unwrap();
        iter.seek_to_first();
        while iter.valid() {
            iter.next();
        }
        if let Err(error) = iter.status() {
            assert!(Fragile::is_named_in(&error), "{error}");
        }
        drop(iter);
        self.seals.fragile.arm(0);
        self.get(cf, key, None);
    }

    /// Ingests; in manual mode, background steps run meanwhile.
    pub(super) fn ingest_beside(&self, cf: usize, paths: &[PathBuf], link: bool, beside: usize) {
        let (handle, options) = (self.handle(cf), IngestOptions { link });
        let steps = if self.setting.is_manual() { beside } else { 0 };
        self.patiently(|| {
            let (ingested, stepped) =
                self.seals.beside.ingest(&self.db, handle, paths, &options, steps);
            stepped.unwrap();
            ingested
        });
    }

    /// Changes a bucket. If the bucket is in use, clears it and its right neighbour and tries
    /// again.
    fn cleared(&self, cf: &ColumnFamily, index: usize, change: impl Fn() -> Result<()>) {
        match change() {
            Err(error) if error.kind() == ErrorKind::Busy => {
                let buckets = self.db.buckets(cf).unwrap();
                let Some(bucket) = buckets.get(index) else { return };
                let next = buckets.get(index + 1).unwrap_or(bucket);
                let (start, end) = (bucket.range.start.clone(), next.range.end.clone());
                self.db.compact_range(cf, &KeyRange { start, end }).unwrap();
                allow_refusal(change());
            }
            done => allow_refusal(done),
        }
    }

    /// Number of bucket boundaries that moved so far, by request or because of the load.
    pub(crate) fn moved(&self) -> (usize, usize) {
        let Seals { by_hand, by_load, .. } = &*self.seals;
        (by_hand.load(Ordering::Relaxed), by_load.load(Ordering::Relaxed))
    }

    fn create_family(&mut self, name: &str) {
        let handle = self.db.create_family(name, self.setting.family(name)).unwrap();
        self.families.push((Family::new(name, is_counter(name)), handle));
    }

    pub(super) fn handle(&self, cf: usize) -> &ColumnFamily {
        &self.families[cf % self.families.len()].1
    }

    pub(super) fn fs(&self) -> Arc<dyn FileSystem> {
        self.setting.fs()
    }

    pub(super) fn dir_beside(&mut self, name: &str) -> PathBuf {
        self.copies += 1;
        self.setting.dir().with_file_name(format!("{name}{}", self.copies))
    }

    pub(super) fn key(&self, key: KeyNo) -> &[u8] {
        &self.keys[key]
    }

    pub(super) fn advance_seq(&mut self) -> u64 {
        self.seq += 1;
        self.seq
    }

    /// Repeats a refused call as long as background work is due that no thread does.
    pub(super) fn patiently<T>(&self, what: impl Fn() -> Result<T>) -> T {
        loop {
            match what() {
                Ok(done) => return done,
                Err(error) if error.kind() == ErrorKind::Busy && self.setting.is_manual() => {
                    assert!(self.db.step_background().unwrap(), "busy for ever: {error}");
                }
                Err(error) => panic!("{error}"),
            }
        }
    }

    pub(super) fn write(&mut self, records: &[(usize, Record)], wal: bool, sync: bool) {
        let now_ms = self.now_ms();
        let mut batch = WriteBatch::new();
        for (cf, record) in records {
            let (model, handle) = &self.families[cf % self.families.len()];
            let id = handle.id();
            match record {
                Record::Put { key, stamp, len } => {
                    batch.put_cf(id, self.key(*key), &model.value(*stamp, *len));
                }
                Record::Expiring { key, stamp, len, ms_ahead } => {
                    let value = model.value(*stamp, *len);
                    batch.put_expiring_cf(id, self.key(*key), &value, now_ms + ms_ahead);
                }
                Record::Delete { key } => batch.delete_cf(id, self.key(*key)),
                Record::DeleteRange { start, end } => {
                    batch.delete_range_cf(id, self.key(*start), self.key(*end));
                }
                Record::Merge { key, stamp } => {
                    batch.merge_cf(id, self.key(*key), &model.value(*stamp, 0));
                }
            }
        }
        let options = WriteOptions { sync, wal, ..WriteOptions::default() };
        let last = self.patiently(|| self.db.write(&batch, &options));
        self.past_log |= !wal;
        for (cf, record) in records {
            let seq = self.advance_seq();
            self.note(*cf, record, seq, now_ms, wal);
        }
        assert_eq!(last.0, self.seq);
    }

    fn take_snapshot(&mut self) {
        let snapshot = self.db.snapshot();
        assert_eq!(snapshot.seq().0, self.seq);
        self.snapshots.push(Taken::new(snapshot));
    }

    /// Background work runs in between: writers that it slows down advance the clock.
    fn storm(&mut self, cf: usize, batches: &[Vec<(usize, Record)>], snapshots: &[usize]) {
        for (at, records) in batches.iter().enumerate() {
            self.write(records, true, false);
            self.upkeep(&Step::Background { steps: usize::MAX });
            if snapshots.contains(&at) {
                self.take_snapshot();
            }
            // A read in between makes the memtable sort its new entries.
            if at % 16 == 0 {
                self.get(cf, at % self.keys.len(), None);
            }
        }
    }

    /// Adds a record to the model.
    pub(super) fn note(&mut self, cf: usize, record: &Record, seq: u64, now_ms: u64, logged: bool) {
        let at = cf % self.families.len();
        let model = &mut self.families[at].0;
        let (key, event) = match *record {
            Record::Put { key, stamp, len } => (key, Event::Put(model.value(stamp, len))),
            Record::Expiring { key, stamp, len, ms_ahead } => {
                (key, Event::Expiring(model.value(stamp, len), now_ms + ms_ahead))
            }
            Record::Delete { key } => (key, Event::Delete),
            Record::DeleteRange { start, end } => {
                return model.delete_range(&self.keys[start], &self.keys[end], seq, logged);
            }
            Record::Merge { key, stamp } => (key, Event::Merge(model.value(stamp, 0))),
        };
        model.add(&self.keys[key], Version { seq, event, logged });
    }

    /// Notes an answer, without sequence numbers: the mark at a close takes one where the log has
    /// records, which depends on the settings. Each run checks them against the model.
    fn tell(&mut self, answer: &impl Debug) {
        let mut hasher = DefaultHasher::new();
        format!("{answer:#?}").hash(&mut hasher);
        self.transcript.push(hasher.finish());
    }

    /// Options to read as of a snapshot, and what a read of a family with them is.
    fn as_of(&self, cf: usize, snapshot: Option<usize>) -> (ReadOptions, Read<'_>) {
        let (model, handle) = &self.families[cf % self.families.len()];
        let (options, taken) = match snapshot {
            Some(at) if !self.snapshots.is_empty() => {
                let taken = &self.snapshots[at % self.snapshots.len()];
                (ReadOptions::new().snapshot(&taken.snapshot), Some(taken))
            }
            _ => (ReadOptions::default(), None),
        };
        let at = taken.map_or(self.seq, Taken::seq);
        (options, Read { model, cf: handle.id(), taken, at, now_ms: self.now_ms() })
    }

    /// Whether the rows of a family depend on the time at which its filter ran.
    fn is_filtered(&self, cf: usize) -> bool {
        self.families[cf % self.families.len()].0.filtered
    }

    fn get(&mut self, cf: usize, key: KeyNo, snapshot: Option<usize>) {
        let (options, read) = self.as_of(cf, snapshot);
        let handle = self.handle(cf);
        let entry = self.db.get_entry(handle, self.key(key), &options).unwrap();
        let found = entry.map(|entry| Row {
            key: self.key(key).to_vec(),
            value: entry.value.to_vec(),
            expires_at_ms: entry.expires_at_ms,
            seq: entry.seq.0,
        });
        read.check(self.key(key), |row| row == found.as_ref());
        let contains = self.db.contains(handle, self.key(key), &options).unwrap();
        // The filter may run between two reads of the newest state.
        let may_differ = self.is_filtered(cf) && read.taken.is_none();
        assert!(contains == found.is_some() || may_differ, "contains");
        if read.is_settled(self.key(key)) {
            self.tell(&found);
        }
    }

    fn multi_get(&mut self, cf: usize, keys: &[KeyNo], snapshot: Option<usize>) {
        let (options, read) = self.as_of(cf, snapshot);
        let keys: Vec<&[u8]> = keys.iter().map(|&key| self.key(key)).collect();
        let found = self.db.multi_get(self.handle(cf), &keys, &options).unwrap();
        let found: Vec<_> = found.into_iter().map(|value| value.map(|v| v.to_vec())).collect();
        for (key, found) in keys.iter().zip(&found) {
            read.check(key, |row| row.map(|row| &row.value) == found.as_ref());
        }
        let settled = keys.iter().zip(&found).filter(|(key, _)| read.is_settled(key));
        let settled: Vec<_> = settled.map(|(_, found)| found.clone()).collect();
        self.tell(&settled);
    }

    /// The newest write of a live key is known. That of a deleted key is known at least to the
    /// holder of a snapshot from before it.
    fn latest_seq(&mut self, cf: usize, key: KeyNo) {
        let (model, handle) = &self.families[cf % self.families.len()];
        let found = self.db.latest_seq(handle, self.key(key)).unwrap().map(|seq| seq.0);
        let newest = model.newest(self.key(key));
        let live = model.read(self.key(key), self.seq, self.now_ms());
        if model.read_filtered(self.key(key), self.seq, self.now_ms()).is_some() {
            assert!(found <= newest, "{found:?} but {newest:?}");
        } else if live.is_some() {
            assert_eq!(found, newest);
        } else if let Some(newest) = newest {
            assert!(found.is_none_or(|found| found <= newest), "{found:?} but {newest}");
            let before = self.snapshots.iter().map(Taken::seq).filter(|s| *s < newest).max();
            if let Some(before) = before {
                assert!(found.is_some_and(|found| found > before), "{found:?} after {before}");
            }
        }
        self.tell(&live.is_some());
    }

    fn scan(&mut self, cf: usize, snapshot: Option<usize>, bounds: &Bounds, moves: &[Move]) {
        let (mut options, read) = self.as_of(cf, snapshot);
        options.lower_bound = bounds.lower.map(|key| self.key(key).to_vec());
        options.upper_bound = bounds.upper.map(|key| self.key(key).to_vec());
        options.prefix = bounds.prefix.map(|prefix| prefix.as_bytes().to_vec());
        let mut iter = match self.db.iter(self.handle(cf), &options) {
            Ok(iter) => iter,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::InvalidArgument);
                assert!(options.lower_bound > options.upper_bound, "{error}");
                return;
            }
        };
        let mut keys = self.keys.clone();
        keys.retain(|key| {
            options.lower_bound.as_ref().is_none_or(|lower| lower <= key)
                && options.upper_bound.as_ref().is_none_or(|upper| key < upper)
                && options.prefix.as_ref().is_none_or(|prefix| key.starts_with(prefix))
        });
        let rows = rows_of(&mut iter);
        assert!(rows.iter().all(|row| keys.contains(&row.key)), "out of bounds");
        read.check_rows(&rows, &keys);
        let filtered = self.is_filtered(cf);
        let mut held = Held { iter, rows, at: None, filtered };
        let shown = held.walk(moves, &self.keys);
        if !self.is_filtered(cf) {
            self.tell(&shown);
        }
    }

    fn hold(&mut self, cf: usize, snapshot: Option<usize>) {
        let (options, read) = self.as_of(cf, snapshot);
        let mut iter = self.db.iter(self.handle(cf), &options).unwrap();
        let rows = rows_of(&mut iter);
        read.check_rows(&rows, &self.keys);
        let filtered = self.is_filtered(cf);
        if self.held.len() == 3 {
            self.held.remove(0);
        }
        self.held.push(Held { iter, rows, at: None, filtered });
    }

    fn move_held(&mut self, iterator: usize, moves: &[Move]) {
        if self.held.is_empty() {
            return;
        }
        let at = iterator % self.held.len();
        let shown = self.held[at].walk(moves, &self.keys);
        if !self.held[at].filtered {
            self.tell(&shown);
        }
    }

    /// Compares all families completely, in both directions, now and at every snapshot.
    pub(crate) fn check_all(&mut self) {
        for snapshot in std::iter::once(None).chain((0..self.snapshots.len()).map(Some)) {
            for cf in 0..self.families.len() {
                let (options, read) = self.as_of(cf, snapshot);
                let mut iter = self.db.iter(self.handle(cf), &options).unwrap();
                let found = rows_of(&mut iter);
                read.check_rows(&found, &self.keys);
                if !self.is_filtered(cf) {
                    assert_eq!(contents(&self.db, self.handle(cf), &options), found);
                }
                let mut settled = found;
                settled.retain(|row| read.is_settled(&row.key));
                self.tell(&settled);
            }
            let (options, Read { at, now_ms, .. }) = self.as_of(0, snapshot);
            let Ordered { model, handle, .. } = &self.ordered;
            let found = contents(&self.db, handle, &options);
            assert_eq!(found, model.rows(at, now_ms), "family \"{}\" at {at}", model.name);
            self.tell(&found);
        }
        self.check_values();
    }

    pub(super) fn forget_readers(&mut self) {
        self.held.clear();
        self.snapshots.clear();
        self.midway.clear();
        self.taker.set(None);
    }

    fn open_again(&mut self) {
        let mut components = Self::components(&self.setting, &self.clock, &self.seals);
        components.fault_point = Some(self.seals.fault_point(&self.taker, self.setting.separation));
        self.sent = self.sent();
        let seed = u64::from(self.steps);
        let mood = self.setting.away;
        self.store = self.store.take().zip(mood).map(|(store, mood)| store.next(seed, mood));
        let components = over_nodes(components, self.store.as_ref(), mood);
        self.db = Db::open_with(self.setting.dir(), self.setting.db.clone(), components).unwrap();
        self.kept += self.db.statistics().get(Ticker::AwayShardsKept);
        self.begin_midway();
        let mut names: Vec<&str> = self.families.iter().map(|(m, _)| m.name.as_str()).collect();
        names.push(ordered::NAME);
        let mut listed = self.db.list_families();
        names.sort_unstable();
        listed.sort_unstable();
        assert_eq!(listed, names);
        for (model, handle) in &mut self.families {
            *handle = self.db.family(&model.name).unwrap();
        }
        self.ordered.handle = self.db.family(ordered::NAME).unwrap();
        self.check_values_at_rest();
    }

    fn reopen(&mut self) {
        self.forget_readers();
        self.db.clone().close().unwrap();
        if let Disk::Tiers(tiered) = &mut self.setting.disk {
            *tiered = tiered.reopened();
        }
        self.open_again();
        self.families.iter_mut().for_each(|(model, _)| model.settle());
        self.adopt_seq();
        self.check_all();
    }

    /// `kill -9`: logged writes stay, of the others those of unflushed memtables go, a memtable
    /// with all of them or none.
    fn kill(&mut self) {
        let left = match &self.setting.disk {
            Disk::Memory(fs) => Disk::Memory(fs.kill_clone()),
            Disk::Tiers(tiered) => Disk::Tiers(tiered.killed()),
            Disk::Local(..) => return self.reopen(),
        };
        self.forget_readers();
        self.setting.disk = left;
        self.open_again();
        let now_ms = self.now_ms();
        for (model, handle) in &mut self.families {
            let found = contents(&self.db, handle, &ReadOptions::default());
            let mut candidates: Vec<u64> = model.seals.iter().rev().copied().collect();
            candidates.push(0);
            let survivor = candidates.iter().find_map(|&flushed| {
                let left = model.without_unlogged_after(flushed);
                left.accepts(&found, u64::MAX, now_ms).then_some(left)
            });
            let Some(mut survivor) = survivor else {
                let all = model.rows(u64::MAX, now_ms);
                panic!("{}: {found:?} are not what survives of {all:?}", model.name);
            };
            survivor.settle();
            *model = survivor;
        }
        self.adopt_seq();
        self.check_all();
    }

    /// Checks the numbers after an open. They are as before, except for the mark that a close
    /// appends, which takes one. Writes past the log are another exception: they may be lost, or
    /// leave no trace (range deletes of nothing).
    fn adopt_seq(&mut self) {
        let newest = self.families.iter().map(|(model, _)| model.newest_of_all()).max();
        let newest = newest.max(Some(self.ordered.model.newest_of_all()));
        let seq = self.db.latest_seq_of_all().0;
        let before = self.seq;
        let may_fall = std::mem::take(&mut self.past_log);
        assert!(newest <= Some(seq) && seq <= before + 1, "{seq}, {before} before");
        assert!(may_fall || seq >= before, "{seq}, {before} before");
        self.seq = seq;
    }

    /// Opens another copy of the database and compares.
    pub(super) fn check_copy(&mut self, dir: &std::path::Path) {
        for read_only in [true, false] {
            let options = DbOptions { read_only, ..self.setting.db.clone() };
            let components = Self::components(&self.setting, &self.clock, &Arc::default());
            let copy = Db::open_with(dir, options, components).unwrap();
            let ordered = std::iter::once(&self.ordered.model);
            for model in self.families.iter().map(|(model, _)| model).chain(ordered) {
                let handle = copy.family(&model.name).unwrap();
                let found = contents(&copy, &handle, &ReadOptions::default());
                let (at, now_ms) = (u64::MAX, self.now_ms());
                let expected = model.rows(at, now_ms);
                assert!(
                    model.accepts(&found, at, now_ms),
                    "copy of \"{}\", {read_only}: {found:?} instead of {expected:?}",
                    model.name
                );
            }
            copy.close().unwrap();
        }
    }
}

fn allow_refusal(result: Result<()>) {
    if let Err(error) = result {
        let refused = matches!(error.kind(), ErrorKind::Busy | ErrorKind::InvalidArgument);
        assert!(refused, "{error}");
    }
}
