//! The picker on a simulated store. Jobs run in any order and overlap. After each step the versions
//! of every key are checked by level, and at the end all due work must be done.

mod hidden;
mod space;
mod way_down;

use std::collections::{BTreeMap, HashSet};

use archipelago_base::Epoch;
use archipelago_base::random::Rng;

use super::*;
use crate::bucket::BucketMap;
use crate::options::{CfOptions, LEVELS};
use crate::version::VersionBuilder;
use crate::version::tests::meta;

const CF: CfId = CfId(1);

fn options() -> CfOptions {
    CfOptions {
        write_buffer_bytes: 1_000,
        level_base_bytes: 5_000,
        level_multiplier: 4,
        target_file_bytes: 5_000,
        ..CfOptions::default()
    }
}

/// Input of a decision over `version`, without snapshots and at time 0.
fn input<'a>(version: &'a Version, running: &'a [Running], jobs_max: usize) -> PickInput<'a> {
    PickInput {
        version,
        running,
        jobs_max,
        snapshots: &[],
        visible: SeqNo::MAX,
        now_ms: 0,
        loading: false,
        space: &[],
    }
}

/// The request to compact the content of `range` now.
fn wish<'a>(
    input: &PickInput<'a>,
    range: &'a KeyRange,
    written: &'a HashSet<u64>,
) -> RangeInput<'a> {
    RangeInput {
        input: *input,
        range,
        through: SeqNo::MAX,
        first_new_no: u64::MAX,
        is_forced: false,
        written,
    }
}

/// A store whose files hold, per key (two bytes), the sequence numbers of its versions.
struct Sim {
    version: Arc<Version>,
    content: BTreeMap<u64, BTreeMap<Vec<u8>, u64>>,
    running: Vec<(Running, Pick)>,
    trash: Arc<crate::live_file::Trash>,
    next_no: u64,
    seq: u64,
    moved: usize,
    merged: usize,
    intra: usize,
    concurrent: usize,
    loading: bool,
    rng: Rng,
}

fn key(number: u64) -> Vec<u8> {
    format!("{number:04}").into_bytes()
}

impl Sim {
    fn new(seed: u64, boundaries: &[u64], options: CfOptions) -> Self {
        let version = Version::empty(CF, Arc::new(options));
        let mut builder = VersionBuilder::new(&version);
        if !boundaries.is_empty() {
            let map = BucketMap::new(Epoch(1), boundaries.iter().map(|&b| key(b)).collect());
            builder.set_map(map.expect("ascending")).expect("newer");
        }
        let trash = Arc::default();
        Self {
            version: builder.finish(&trash).expect("possible").version,
            content: BTreeMap::new(),
            running: Vec::new(),
            trash,
            next_no: 1,
            seq: 1,
            moved: 0,
            merged: 0,
            intra: 0,
            concurrent: 0,
            loading: false,
            rng: Rng::with_seed(seed),
        }
    }

    /// Adds the records as files of at most `most` keys, which are cut at the bucket map.
    fn write(&mut self, builder: &mut VersionBuilder, level: usize, most: usize, records: Records) {
        let map = Arc::clone(self.version.map());
        let mut files: Vec<BTreeMap<Vec<u8>, u64>> = Vec::new();
        let mut bucket = usize::MAX;
        for (key, seq) in records {
            let here = map.bucket_of(&key);
            match files.last_mut() {
                Some(file) if here == bucket && file.len() < most => drop(file.insert(key, seq)),
                _ => files.push(BTreeMap::from([(key, seq)])),
            }
            bucket = here;
        }
        for file in files {
            let (first, last) = (file.first_key_value(), file.last_key_value());
            let (first, last) = (first.expect("full").0, last.expect("full").0);
            let seqs = (file.values().min().expect("full"), file.values().max().expect("full"));
            let mut meta = meta(self.next_no, first, last, (*seqs.0, *seqs.1));
            meta.size_bytes = 100 * file.len() as u64;
            builder.add(level, meta).expect("new");
            self.content.insert(self.next_no, file);
            self.next_no += 1;
        }
    }

    fn flush(&mut self, keys: &[u64]) {
        let records: Records = keys
            .iter()
            .map(|&number| {
                self.seq += 1;
                (key(number), self.seq)
            })
            .collect();
        let mut builder = VersionBuilder::new(&self.version);
        self.write(&mut builder, 0, usize::MAX, records);
        self.version = builder.finish(&self.trash).expect("possible").version;
    }

    /// Starts a job if one is picked.
    fn start(&mut self, jobs_max: usize) -> bool {
        let running: Vec<Running> = self.running.iter().map(|(job, _)| job.clone()).collect();
        let input = PickInput {
            version: &self.version,
            running: &running,
            jobs_max,
            snapshots: &[],
            visible: SeqNo::MAX,
            now_ms: 0,
            loading: self.loading,
            space: &[],
        };
        let Some(picked) = pick(&input) else { return false };
        self.check_promises(&picked, &running);
        match picked {
            Pick::TrivialMove { .. } => self.moved += 1,
            Pick::IntraL0 { .. } => self.intra += 1,
            _ => self.merged += 1,
        }
        self.concurrent = self.concurrent.max(running.len() + 1);
        self.running.push((picked.running(CF), picked));
        true
    }

    fn check_promises(&self, picked: &Pick, running: &[Running]) {
        let range = picked.range();
        assert!(picked.inputs().all(|(_, file)| file.within(&range)), "the range covers all");
        for (_, file) in picked.inputs() {
            let twice = running.iter().any(|job| job.files.contains(&file.no));
            assert!(!twice, "file {} is in use", file.no);
        }
        for job in running {
            assert!(job.to != picked.to() || !job.range.overlaps(&range), "{job:?} {picked:?}");
        }
    }

    /// Ends a running job: its outputs replace its inputs.
    fn end(&mut self, at: usize) {
        let (_, pick) = self.running.swap_remove(at);
        let mut builder = VersionBuilder::new(&self.version);
        let mut merged: BTreeMap<Vec<u8>, u64> = BTreeMap::new();
        for (level, file) in pick.inputs() {
            builder.remove(level, file.no).expect("still there");
            for (key, &seq) in &self.content[&file.no] {
                let newest = merged.entry(key.clone()).or_default();
                *newest = seq.max(*newest);
            }
        }
        match &pick {
            Pick::TrivialMove { to, files, .. } => {
                files.iter().for_each(|f| builder.add(*to, f.meta().clone()).expect("moves"));
            }
            _ => {
                let most = if pick.to() == 0 { usize::MAX } else { 50 };
                self.write(&mut builder, pick.to(), most, merged.into_iter().collect());
            }
        }
        self.version = builder.finish(&self.trash).expect("possible").version;
    }

    /// For every key, versions get older from the newest L0 file down to the last level.
    fn check(&self) {
        self.version.check().expect("sound");
        let mut last_seen: BTreeMap<&[u8], u64> = BTreeMap::new();
        for (level, file) in self.version.files() {
            for (key, &seq) in &self.content[&file.no] {
                if let Some(newer) = last_seen.insert(key, seq) {
                    assert!(newer > seq, "file {} of level {level} hides what is newer", file.no);
                }
            }
        }
    }

    fn drain(&mut self, jobs_max: usize) {
        loop {
            while self.start(jobs_max) {}
            if self.running.is_empty() {
                return;
            }
            let at = self.rng.usize(..self.running.len());
            self.end(at);
            self.check();
        }
    }
}

type Records = Vec<(Vec<u8>, u64)>;

fn random_run(seed: u64, boundaries: &[u64], jobs_max: usize) -> Sim {
    let mut sim = Sim::new(seed, boundaries, options());
    for _ in 0..150 {
        match sim.rng.u8(..10) {
            0..3 => {
                let mut keys = std::collections::BTreeSet::new();
                let (from, width) = (sim.rng.u64(..1000), sim.rng.u64(1..1000));
                for _ in 0..60 {
                    keys.insert((from + sim.rng.u64(..width)) % 1000);
                }
                sim.flush(&keys.into_iter().collect::<Vec<_>>());
            }
            3..7 => {
                sim.loading = sim.rng.u8(..4) == 0;
                let _ = sim.start(jobs_max);
            }
            _ if sim.running.is_empty() => {}
            _ => {
                let at = sim.rng.usize(..sim.running.len());
                sim.end(at);
                sim.check();
            }
        }
    }
    sim.loading = false;
    sim.drain(jobs_max);
    let trigger = sim.version.options().l0_compaction_trigger;
    assert!(sim.version.l0_layers_max() < trigger, "L0 drained");
    assert!((1..LEVELS).all(|level| sim.version.score(level) <= 1.0), "levels drained");
    sim
}

#[test]
fn random_stores_stay_ordered_and_drain() {
    for (name, boundaries) in
        [("one bucket", &[][..]), ("four", &[250, 500, 750]), ("uneven", &[10, 20, 900])]
    {
        let (mut merged, mut intra, mut concurrent) = (0, 0, 0);
        for seed in 0..2 {
            for jobs_max in [1, 3, 8] {
                let sim = random_run(seed, boundaries, jobs_max);
                merged += sim.merged;
                intra += sim.intra;
                concurrent = concurrent.max(sim.concurrent);
            }
        }
        assert!(merged > 30, "{name}");
        assert!(boundaries.is_empty() || concurrent >= 4, "{name}: {concurrent} jobs at once");
        assert!(!boundaries.is_empty() || intra > 0, "{name}: a blocked bucket merges in L0");
    }
}

#[test]
fn a_sequential_load_only_moves_files() {
    let mut sim = Sim::new(1, &[2500, 5000, 7500], options());
    for chunk in 0..100 {
        let keys: Vec<u64> = (chunk * 100..(chunk + 1) * 100).collect();
        sim.flush(&keys);
        sim.drain(2);
    }
    assert_eq!(sim.merged + sim.intra, 0, "nothing is rewritten");
    assert!(sim.moved > 20);
    assert!(sim.version.file_count(0) < 16);
}

#[test]
fn the_fullest_bucket_comes_first_and_then_the_smaller_job() {
    let mut sim = Sim::new(1, &[100, 200], options());
    let flush = |sim: &mut Sim, keys: &[u64]| sim.flush(keys);
    for _ in 0..4 {
        flush(&mut sim, &[1, 2, 3, 4, 101, 102, 201, 202, 203]);
    }
    flush(&mut sim, &[201, 202]);
    let mut order = Vec::new();
    while sim.start(8) {
        let (_, pick) = sim.running.last().expect("started");
        let Pick::L0ToBase { bucket, to, straddlers, .. } = pick else { panic!("{pick:?}") };
        assert_eq!((*to, straddlers.len()), (LAST_LEVEL, 0));
        order.push(*bucket);
    }
    assert_eq!(order, [2, 1, 0]);
}

#[test]
fn bucket_under_load_waits_until_a_rewrite_pays() {
    let mut sim = Sim::new(1, &[], options());
    let most = sim.version.options().l0_slowdown / 2;
    assert!(most > 4, "{most}");
    let wide: Vec<u64> = (0..100).collect();
    (0..4).for_each(|_| sim.flush(&wide));
    sim.loading = true;
    assert!(sim.start(1), "nothing lies below: no reason to wait");
    sim.end(0);
    // Every batch of four is smaller than the 100 keys below.
    for _ in 0..most - 1 {
        sim.flush(&[1, 50, 99]);
        assert!(!sim.start(1), "{} files wait", sim.version.l0(0).len());
    }
    sim.flush(&[2]);
    assert!(sim.start(1), "half of what slows writers is the end of patience");
    sim.end(0);
    (0..4).for_each(|_| sim.flush(&[1, 50, 99]));
    assert!(!sim.start(1));
    sim.loading = false;
    assert!(sim.start(1), "the load has paused");
    sim.end(0);
    (0..4).for_each(|_| sim.flush(&wide));
    sim.loading = true;
    assert!(sim.start(1), "twice as large as what lies below");
    sim.end(0);
    sim.check();
}

#[test]
fn first_job_cuts_a_base_file_across_two_buckets() {
    let mut sim = Sim::new(1, &[], options());
    for round in 0..4 {
        sim.flush(&[50 + round, 150]);
    }
    sim.drain(1);
    assert_eq!(sim.version.file_count(LAST_LEVEL), 1);
    let mut builder = VersionBuilder::new(&sim.version);
    let map = BucketMap::new(Epoch(1), vec![key(100)]).expect("valid");
    builder.set_map(map).expect("newer");
    sim.version = builder.finish(&sim.trash).expect("possible").version;
    for _ in 0..4 {
        sim.flush(&[10, 60, 120, 160]);
    }
    assert!(sim.start(8));
    let (_, Pick::L0ToBase { straddlers, .. }) = &sim.running[0] else { panic!("an L0 job") };
    assert_eq!(straddlers.len(), 1);
    assert!(!sim.start(8), "the other bucket waits");
    sim.end(0);
    assert!(sim.start(8));
    sim.drain(8);
    sim.check();
    assert!(sim.version.level(LAST_LEVEL).files().iter().all(|file| {
        let bucket = sim.version.map().bucket_of(&file.smallest);
        file.within(&sim.version.map().range(bucket))
    }));
}

#[test]
fn compacting_a_range_by_hand_brings_it_to_the_last_level() {
    let mut sim = random_run(3, &[250, 500, 750], 3);
    sim.flush(&(0..1000).step_by(7).collect::<Vec<_>>());
    for (start, end) in [(200, 600), (0, 9999)] {
        let range = KeyRange { start: key(start), end: Some(key(end)) };
        for level in 0..LAST_LEVEL {
            let none = HashSet::new();
            loop {
                let input = input(&sim.version, &[], 9);
                let picked = pick_range(&wish(&input, &range, &none), level);
                let RangePick::Ready(pick) = picked else { break };
                assert!(pick.from() == level && !matches!(pick, Pick::TrivialMove { .. }));
                let busy = [pick.running(CF)];
                let input = PickInput { running: &busy, ..input };
                if let RangePick::Ready(other) = pick_range(&wish(&input, &range, &none), level) {
                    sim.check_promises(&other, &busy);
                }
                sim.running.push((pick.running(CF), pick));
                sim.end(0);
                sim.check();
            }
        }
        let above = sim.version.files().filter(|(level, _)| *level < LAST_LEVEL);
        assert_eq!(above.filter(|(_, file)| file.overlaps(&range)).count(), 0);
    }
}

#[test]
fn a_job_neither_writes_where_another_does_nor_passes_it() {
    // The idle files share no key with the running jobs; only the ranges of the jobs overlap them.
    // This happens with an ingested file, or with a file that a change of the base level left.
    let mut options = options();
    options.l0_compaction_trigger = 1;
    let mut builder = VersionBuilder::new(&Version::empty(CF, Arc::new(options)));
    builder.set_map(BucketMap::new(Epoch(1), vec![b"m".to_vec()]).expect("valid")).expect("newer");
    builder.add(0, meta(1, b"c", b"d", (9, 9))).expect("new");
    builder.add(LAST_LEVEL, meta(2, b"d", b"x", (1, 1))).expect("new");
    let version = builder.finish(&Arc::default()).expect("possible").version;
    let job = |start: &[u8], to| Running {
        cf: CF,
        range: KeyRange { start: start.to_vec(), end: Some(b"z".to_vec()) },
        from: 0,
        to,
        files: vec![99],
    };
    let picked = |running: &[Running], level: usize| {
        let input = PickInput {
            version: &version,
            running,
            jobs_max: 9,
            snapshots: &[],
            visible: SeqNo::MAX,
            now_ms: 0,
            loading: false,
            space: &[],
        };
        let by_hand = pick_range(&wish(&input, &KeyRange::all(), &HashSet::new()), level);
        let by_hand = matches!(by_hand, RangePick::Ready(_));
        assert_eq!(pick(&input).is_some(), by_hand);
        by_hand
    };
    assert!(picked(&[], 0));
    assert!(!picked(&[job(b"c", LAST_LEVEL)], 0), "writes the same range of the same level");
    assert!(!picked(&[job(b"n", LAST_LEVEL)], 0), "the straddling file reaches there");
    assert!(picked(&[job(b"y", LAST_LEVEL)], 0), "another range");
    assert!(!picked(&[job(b"c", LAST_LEVEL - 2)], 0), "older data would end up above");
    let mut other = job(b"c", LAST_LEVEL);
    other.cf = CfId(7);
    assert!(picked(&[other], 0), "another column family");
}
