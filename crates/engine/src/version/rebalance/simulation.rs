//! Simulates the rules under loads, seal by seal, without a database. `--nocapture` prints the
//! table of `docs/decisions/0008-bucket-rebalancing.md`.

use archipelago_base::Epoch;
use archipelago_base::random::Rng;

use super::*;
use crate::bucket::BucketMap;

/// Number of records of a memtable, all of one size.
const RECORDS: usize = 2048;
const RECORD_BYTES: u64 = 100;

/// The keys of the `seal`-th memtable, in any order.
type Load = dyn Fn(&mut Rng, u64) -> Vec<u64>;

struct Sim {
    map: BucketMap,
    /// The map with which the active memtable was created.
    born: BucketMap,
    window: Window,
    initial: usize,
    most: usize,
    rng: Rng,
    /// Number of seals from a decision until the change is made.
    lag: u64,
    wanted: Option<(u64, MapChange)>,
    splits: usize,
    merges: usize,
    /// Seals at which changes were made.
    changed_at: Vec<u64>,
    most_seen: usize,
    seal: u64,
}

fn bytes_of(key: u64) -> Vec<u8> {
    key.to_be_bytes().to_vec()
}

fn at_part(sorted: &[u64], part: usize, parts: usize) -> u64 {
    sorted[part * sorted.len() / parts]
}

impl Sim {
    /// The first memtable decides the map, as in the database.
    fn new(initial: usize, width: usize, load: &Load) -> Self {
        let mut rng = Rng::with_seed(initial as u64 * 31 + width as u64);
        let mut first = load(&mut rng, 0);
        first.sort_unstable();
        let mut cuts: Vec<u64> = (1..initial).map(|part| at_part(&first, part, initial)).collect();
        cuts.dedup();
        cuts.retain(|cut| *cut > first[0]);
        let map = BucketMap::new(Epoch(1), cuts.into_iter().map(bytes_of).collect());
        let map = map.expect("sorted and without repetition");
        Self {
            born: map.clone(),
            most_seen: map.len(),
            map,
            window: Window::of_width(width),
            initial,
            most: initial * 4,
            rng,
            lag: 0,
            wanted: None,
            splits: 0,
            merges: 0,
            changed_at: Vec::new(),
            seal: 0,
        }
    }

    fn input(&self) -> RebalanceInput<'_> {
        RebalanceInput {
            map: &self.map,
            window: &self.window,
            initial: self.initial,
            most: self.most,
            planned_cuts: self.wanted.as_ref().map_or(&[], |(_, change)| change.kind.cuts()),
        }
    }

    fn temperatures(&self) -> Vec<f64> {
        self.input().temperatures().expect("something was written")
    }

    /// Adds one memtable, as `db::background::rebalance` does, and makes the wanted change.
    fn step(&mut self, load: &Load) {
        let mut keys = load(&mut self.rng, self.seal);
        keys.sort_unstable();
        let total = keys.len() as u64 * RECORD_BYTES;
        let mut sample = SealSample::new();
        let mut rest = keys.as_slice();
        for shard in 0..self.born.len() {
            let end = self.born.end(shard);
            let inside = |key: &u64| end.is_none_or(|end| key.to_be_bytes().as_slice() < end);
            let (shard, after) = rest.split_at(rest.partition_point(inside));
            rest = after;
            let bytes = shard.len() as u64 * RECORD_BYTES;
            let wanted = SealSample::keys_wanted(self.map.len(), bytes, total).min(shard.len());
            let keys = (0..wanted).map(|n| bytes_of(at_part(shard, 2 * n + 1, 2 * wanted)));
            sample.add_shard(keys.collect(), bytes);
        }
        self.window.push(sample);
        self.born = self.map.clone();
        let before = self.changed_at.len();
        let decided = rebalance(&self.input());
        self.wanted = match (self.wanted.take(), decided) {
            (Some((since, old)), Some(new))
                if old.kind.touched(&self.map) == new.kind.touched(&self.map) =>
            {
                Some((since, new))
            }
            (_, decided) => decided.map(|change| (self.seal, change)),
        };
        if self.wanted.as_ref().is_some_and(|(since, _)| since + self.lag <= self.seal) {
            let (_, change) = self.wanted.take().expect("just looked at");
            self.apply(&change);
        }
        assert!(self.changed_at.len() - before <= 1, "one change per seal");
        assert!(self.map.len() <= self.most.max(self.initial));
        self.most_seen = self.most_seen.max(self.map.len());
        self.seal += 1;
    }

    fn apply(&mut self, change: &MapChange) {
        self.map = change.kind.apply(&self.map).expect("a change of this map");
        match &change.kind {
            ChangeKind::Split { keys } => self.splits += keys.len(),
            ChangeKind::Merge { .. } => self.merges += 1,
        }
        self.changed_at.push(self.seal);
    }

    fn run(&mut self, seals: u64, load: &Load) {
        (0..seals).for_each(|_| self.step(load));
    }

    /// Whether no change is wanted any more.
    fn is_settled(&self) -> bool {
        rebalance(&self.input()).is_none()
    }

    fn hot_buckets(&self) -> usize {
        (0..self.map.len()).filter(|&bucket| self.input().is_hot(bucket)).count()
    }

    /// Share of the busiest bucket over the last seals, as a multiple of an even share.
    fn hottest(&self) -> f64 {
        self.temperatures().into_iter().fold(0.0, f64::max)
    }

    fn line(&self, name: &str, width: usize) -> String {
        format!(
            "{name:<22} W={width:<3} splits {:>3} merges {:>3} last change at {:>4} buckets {:>3} \
             (most {:>3}) hottest {:.2}",
            self.splits,
            self.merges,
            self.changed_at.last().copied().unwrap_or(0),
            self.map.len(),
            self.most_seen,
            self.hottest()
        )
    }
}

fn uniform(rng: &mut Rng, _: u64) -> Vec<u64> {
    (0..RECORDS).map(|_| rng.u64(..)).collect()
}

fn ascending(_: &mut Rng, seal: u64) -> Vec<u64> {
    let from = seal * RECORDS as u64;
    (from..from + RECORDS as u64).map(|n| n << 20).collect()
}

fn descending(rng: &mut Rng, seal: u64) -> Vec<u64> {
    ascending(rng, 1 << 20).into_iter().map(|key| key - ((seal * RECORDS as u64) << 20)).collect()
}

/// Key `k` with a probability that falls like 1/k, in key order: the start is hot.
fn zipf(rng: &mut Rng, _: u64) -> Vec<u64> {
    let key = |u: f64| ((1e9f64).powf(u) * 1e6) as u64;
    (0..RECORDS).map(|_| key(rng.f64())).collect()
}

/// Sends nine in ten writes to one of the places, each a thousandth of the key space.
fn hot_places(rng: &mut Rng, places: &[u64]) -> Vec<u64> {
    let part = u64::MAX / 1000;
    (0..RECORDS)
        .map(|_| match rng.u32(..10) {
            0 => rng.u64(..),
            _ => places[rng.usize(..places.len())] * part + rng.u64(..part),
        })
        .collect()
}

fn jump(every: u64) -> impl Fn(&mut Rng, u64) -> Vec<u64> {
    move |rng, seal| hot_places(rng, &[(seal / every * 377 + 55) % 1000])
}

/// Ten hot ranges that become fifty over the run, as in MixGraph1.
fn growing(rng: &mut Rng, seal: u64) -> Vec<u64> {
    let count = 10 + (seal / 10).min(40);
    let places: Vec<u64> = (0..count).map(|n| n * 389 % 1000).collect();
    hot_places(rng, &places)
}

fn uniform_then_zipf(rng: &mut Rng, seal: u64) -> Vec<u64> {
    if seal < 20 { uniform(rng, seal) } else { zipf(rng, seal) }
}

fn uniform_then_one_key(rng: &mut Rng, seal: u64) -> Vec<u64> {
    if seal < 20 { uniform(rng, seal) } else { one_key(rng, seal) }
}

fn one_key(rng: &mut Rng, _: u64) -> Vec<u64> {
    (0..RECORDS).map(|_| if rng.u32(..10) == 0 { rng.u64(..) } else { 1 << 60 }).collect()
}

#[test]
fn the_table_of_the_decision_record() {
    let loads: [(&str, &Load, u64); 8] = [
        ("uniform", &uniform, 200),
        ("ascending", &ascending, 100),
        ("descending", &descending, 100),
        ("uniform, then zipf", &uniform_then_zipf, 150),
        ("jump every 100 seals", &jump(100), 300),
        ("jump every 10 seals", &jump(10), 200),
        ("10 to 50 hot ranges", &growing, 500),
        ("uniform, then one key", &uniform_then_one_key, 150),
    ];
    for (name, load, seals) in loads {
        for width in [4, 8, 16, 32] {
            let mut sim = Sim::new(8, width, load);
            sim.run(seals, load);
            eprintln!("{}", sim.line(name, width));
        }
    }
}

#[test]
fn a_uniform_load_moves_nothing() {
    for initial in [2, 8, 32] {
        let mut sim = Sim::new(initial, WINDOW_SEALS, &uniform);
        sim.run(1000, &uniform);
        assert_eq!((sim.splits, sim.merges), (0, 0), "{initial} buckets");
        assert_eq!(sim.hot_buckets(), 0);
    }
}

#[test]
fn keys_in_order_are_never_split_and_cold_buckets_go() {
    for (initial, load) in
        [2, 8, 64].into_iter().flat_map(|n| [(n, &ascending as &Load), (n, &descending as &Load)])
    {
        let mut sim = Sim::new(initial, WINDOW_SEALS, load);
        sim.run(400, load);
        assert_eq!(sim.splits, 0, "splitting does not share out what comes in order");
        assert!(sim.merges < initial, "at most one merge for each boundary");
        assert_eq!(sim.map.len(), 1);
        // Other loads restore their buckets.
        let spread = |rng: &mut Rng, _| (0..RECORDS).map(|_| rng.u64(..1 << 42)).collect();
        sim.run((initial + WINDOW_SEALS) as u64 * 2, &spread);
        assert!(sim.map.len() >= initial, "{} of {initial}", sim.map.len());
        assert!(sim.is_settled() && sim.hottest() <= 2.0, "{:?}", sim.temperatures());
    }
}

#[test]
fn skew_is_shared_out() {
    for initial in [2, 4, 8, 16] {
        let mut sim = Sim::new(initial, WINDOW_SEALS, &uniform);
        // The first map was made for another load.
        sim.run(50, &uniform);
        sim.run(200, &zipf);
        let changes = sim.changed_at.len();
        assert!(sim.is_settled());
        let temperatures = sim.temperatures();
        assert!(temperatures.iter().all(|t| *t > 0.5 && *t <= 2.0), "{initial}: {temperatures:?}");
        sim.run(200, &zipf);
        assert!(sim.changed_at.len() - changes <= 4, "it stays: {:?}", sim.changed_at);
    }
}

#[test]
fn a_load_that_jumps_is_followed_within_two_windows() {
    let load = jump(100);
    for lag in [0, 2] {
        let mut sim = Sim::new(8, WINDOW_SEALS, &load);
        sim.lag = lag;
        for round in 0..10 {
            sim.run(100, &load);
            let late = sim.changed_at.iter().filter(|at| **at >= round * 100).map(|at| at % 100);
            // Two windows, and what the lag adds to each of at most 16 changes.
            let last = late.max().unwrap_or(0);
            assert!(last <= 2 * WINDOW_SEALS as u64 + 20 * lag, "{last}");
            let temperatures = sim.temperatures();
            assert!(temperatures.iter().all(|t| *t > 0.5 && *t <= 2.0), "{temperatures:?}");
        }
        assert!(sim.most_seen <= 16, "{}", sim.most_seen);
    }
}

#[test]
fn growing_hot_ranges_are_shared_out_all_the_time() {
    let mut sim = Sim::new(8, WINDOW_SEALS, &growing);
    sim.lag = 1;
    let mut too_hot = 0;
    for seal in 0..600 {
        sim.step(&growing);
        too_hot += usize::from(seal > 40 && sim.hottest() > 2.5);
    }
    assert!(too_hot <= 20, "{too_hot} of 560");
    assert!(sim.changed_at.len() < 100, "{}", sim.changed_at.len());
    assert!(sim.is_settled() && sim.most_seen <= 16);
}

#[test]
fn one_hot_key_is_left_alone() {
    let mut sim = Sim::new(8, WINDOW_SEALS, &uniform);
    sim.run(20, &uniform);
    sim.run(100, &one_key);
    let changes = sim.changed_at.len();
    assert!(sim.hottest() > 5.0 && sim.is_settled());
    assert_eq!(sim.hot_buckets(), 1, "no cut shares the bucket out, and it is hot nevertheless");
    sim.run(300, &one_key);
    assert_eq!(sim.changed_at.len(), changes, "no loop");
}

#[test]
fn a_family_of_one_bucket_and_an_unread_window_are_left_alone() {
    let mut sim = Sim::new(1, WINDOW_SEALS, &zipf);
    sim.run(100, &zipf);
    assert_eq!(sim.map.len(), 1);
    let mut sim = Sim::new(8, WINDOW_SEALS, &uniform);
    sim.run(WINDOW_SEALS as u64 / 2 - 1, &zipf);
    assert!(sim.is_settled(), "nothing is decided before half of the window is known");
    assert!(sim.hottest() > 2.0);
    assert_eq!(sim.hot_buckets(), 0);
}

/// A load of random hot places, some of which are single keys and some of which move.
fn random_load(seed: u64) -> impl Fn(&mut Rng, u64) -> Vec<u64> {
    move |rng, seal| {
        let mut shape = Rng::with_seed(seed);
        let spots: Vec<(u64, u64, u64)> = (0..shape.usize(1..6))
            .map(|_| (shape.u64(..), 1 << shape.u32(..63), shape.u64(..1 << 58)))
            .collect();
        let moving = shape.bool();
        (0..RECORDS / 8)
            .map(|_| {
                let (at, width, speed) = spots[rng.usize(..spots.len())];
                let at = if moving { at.wrapping_add(seal.wrapping_mul(speed)) } else { at };
                at.wrapping_add(rng.u64(..width))
            })
            .collect()
    }
}

#[test]
fn still_window_ends_changes_of_a_sound_map() {
    for seed in 0..120 {
        let load = random_load(seed);
        let mut sim = Sim::new(1 << (seed % 6), WINDOW_SEALS, &load);
        sim.lag = seed % 3;
        sim.run(60, &load);
        // `step` has checked bounds and that there is one change per seal. Now nothing is written
        // any more, and the same window must not demand changes for ever.
        let mut more = 0;
        while let Some(change) = rebalance(&sim.input()) {
            let before = sim.map.clone();
            sim.apply(&change);
            assert_eq!(sim.map.epoch().0, before.epoch().0 + 1);
            let after = sim.temperatures();
            for key in change.kind.cuts() {
                let right = sim.map.bucket_of(key);
                assert!(after[right - 1] > 0.5 && after[right] > 0.5, "{after:?}");
            }
            more += 1;
            assert!(more <= sim.most * 4, "case {seed} does not end: {change}");
        }
    }
}
