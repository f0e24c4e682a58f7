//! Runs steps on a database and on the model, and compares their results.
//!
//! | module | concept |
//! | --- | --- |
//! | `reads` | reads of the database, and what the model expects of them |
//! | `reopening` | close, `kill -9` and copies, and what is left after them |

mod reads;
mod reopening;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use archipelago_base::clock::ManualClock;
use archipelago_base::{CfId, ErrorKind, Result};
use archipelago_engine::db::{ColumnFamily, Components, Db, IngestOptions, ReadOptions};
use archipelago_engine::event::Listeners;
use archipelago_engine::key::KeyRange;
use archipelago_engine::options::WriteOptions;
use archipelago_engine::wal::WriteBatch;
use archipelago_env::FileSystem;

use super::iterator_rows::{Held, contents};
use super::oracle::{Event, Family, RemoveThirds, Version};
use super::ordered::{self, Ordered};
use super::seals::Seals;
use super::setting::{Disk, Setting, is_counter};
use super::steps::{KeyNo, Record, Step, universe};
use super::taken::{MidwayTaker, Read, Taken};
use super::tiered::Did;
use crate::away::{FakeExecutor, FakeStore, Mood, with_executor};
use crate::fragile::Fragile;

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
        self.seals.parts()
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
        for cf in self.seals.take_sealed() {
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
        self.seals.moved()
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
}

fn allow_refusal(result: Result<()>) {
    if let Err(error) = result {
        let refused = matches!(error.kind(), ErrorKind::Busy | ErrorKind::InvalidArgument);
        assert!(refused, "{error}");
    }
}
