//! Measures the memtable shard against a `RwLock<BTreeMap>`.
//!
//! `cargo bench -p archipelago-engine --bench memtable_bench -- [RECORDS] [ROUNDS]`
//!
//! Prints million operations a second of **CPU time** of the slowest thread, so that figures from a
//! shared machine are usable. They are medians over the rounds (default: 550,000 records of 16 B
//! keys and 100 B values, five rounds). Slabs come from a pool that a first, unmeasured round has
//! filled, as in a database that has run for a while.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use archipelago_base::SeqNo;
use archipelago_base::budget::ByteBudget;
use archipelago_base::random::Rng;
use archipelago_engine::iter::InternalIterator;
use archipelago_engine::key::Kind;
use archipelago_engine::lookup::Lookup;
use archipelago_engine::memtable::{SealedImage, SealedShard, Shard, SlabPool};
use parking_lot::RwLock;

const VALUE: [u8; 100] = [b'v'; 100];

type Key = Vec<u8>;

/// A table whose speed is compared.
trait Table: Send + Sync {
    fn put(&self, key: &[u8], seq: u64);
    fn get(&self, key: &[u8]) -> bool;
    fn scan(&self, forward: bool) -> usize;
}

impl Table for Arc<Shard> {
    fn put(&self, key: &[u8], seq: u64) {
        self.insert(key, SeqNo(seq), Kind::Put, &VALUE);
    }
    fn get(&self, key: &[u8]) -> bool {
        let mut found = false;
        // The filter is not measured here, so neither is the hash.
        self.lookup(&Lookup { key, hash: 0, snapshot: SeqNo::MAX }, |version| {
            found = black_box(version.value).len() == VALUE.len();
            ControlFlow::Break(())
        });
        found
    }
    fn scan(&self, forward: bool) -> usize {
        let mut iter = self.iter();
        walk(&mut iter, forward)
    }
}

fn walk(iter: &mut dyn InternalIterator, forward: bool) -> usize {
    let mut bytes = 0;
    if forward {
        iter.seek_to_first();
    } else {
        iter.seek_to_last();
    }
    while iter.valid() {
        bytes += usize::from(iter.key()[0]) + usize::from(iter.value()[0]);
        if forward { iter.next() } else { iter.prev() }
    }
    bytes
}

#[derive(Default)]
struct Locked(RwLock<Map>);

type Map = BTreeMap<(Key, u64), Vec<u8>>;

impl Table for Locked {
    fn put(&self, key: &[u8], seq: u64) {
        let entry = ((key.to_vec(), !seq), VALUE.to_vec());
        self.0.write().insert(entry.0, entry.1);
    }
    fn get(&self, key: &[u8]) -> bool {
        let map = self.0.read();
        let found = map.range((key.to_vec(), 0)..).next();
        found.is_some_and(|(found, value)| found.0 == key && black_box(value).len() == VALUE.len())
    }
    fn scan(&self, forward: bool) -> usize {
        let map = self.0.read();
        let touch =
            |entry: (&(Key, u64), &Vec<u8>)| usize::from(entry.0.0[0]) + usize::from(entry.1[0]);
        if forward { map.iter().map(touch).sum() } else { map.iter().rev().map(touch).sum() }
    }
}

struct Keys {
    random: Vec<Key>,
    sequential: Vec<Key>,
    shared: Vec<Key>,
    missing: Vec<Key>,
}

impl Keys {
    fn new(count: usize) -> Self {
        let mut rng = Rng::with_seed(42);
        let mut random = |prefix: &str| -> Vec<Key> {
            (0..count).map(|_| format!("{prefix}{:016}", rng.u64(..10u64.pow(16))).into()).collect()
        };
        Self {
            random: random(""),
            shared: random("tenant-0001/object-"),
            missing: random(""),
            sequential: (0..count).map(|at| format!("{at:016}").into()).collect(),
        }
    }
}

struct Bench {
    rounds: usize,
}

/// CPU time of the calling thread in nanoseconds.
fn cpu_ns() -> u64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux");
    stat.split(' ').next().and_then(|ns| ns.parse().ok()).expect("the kernel's format")
}

/// Runs `body`. Returns its result and its CPU time in nanoseconds.
fn time<T>(body: impl FnOnce() -> T) -> (T, u64) {
    let start = cpu_ns();
    let result = body();
    (result, cpu_ns() - start)
}

impl Bench {
    /// Median of the rounds' rates in million operations a second.
    fn rate(&self, mut round: impl FnMut() -> (usize, u64)) -> f64 {
        let mut rates: Vec<f64> = (0..=self.rounds)
            .map(|_| {
                let (operations, ns) = round();
                operations as f64 * 1e3 / ns as f64
            })
            .skip(1)
            .collect();
        rates.sort_by(f64::total_cmp);
        rates[rates.len() / 2]
    }

    fn fill<T: Table>(&self, make: impl Fn() -> T, keys: &[Key], threads: usize) -> f64 {
        self.rate(|| {
            let table = make();
            (keys.len(), fill(&table, keys, threads))
        })
    }

    fn report<T: Table>(&self, name: &str, make: impl Fn() -> T, keys: &Keys) {
        for (what, keys) in [
            ("random", &keys.random),
            ("sequential", &keys.sequential),
            ("shared prefix", &keys.shared),
        ] {
            for threads in [1, 2] {
                let rate = self.fill(&make, keys, threads);
                println!("{name:10} insert {what:14} {threads}T {rate:8.2}");
            }
        }
        let table = make();
        fill(&table, &keys.random, 1);
        let mut shuffled = keys.random.clone();
        Rng::with_seed(7).shuffle(&mut shuffled);
        for (what, probes) in [("hit", &shuffled), ("miss", &keys.missing)] {
            let rate = self.rate(|| {
                let (hits, ns) = time(|| probes.iter().filter(|key| table.get(key)).count());
                assert_eq!(hits > probes.len() / 2, what == "hit");
                (probes.len(), ns)
            });
            println!("{name:10} get {what:17} 1T {rate:8.2}");
        }
        for (what, forward) in [("forward", true), ("backward", false)] {
            let rate = self.rate(|| {
                let (bytes, ns) = time(|| table.scan(forward));
                black_box(bytes);
                (keys.random.len(), ns)
            });
            println!("{name:10} scan {what:16} 1T {rate:8.2}");
        }
        self.beside_a_writer(name, make, &shuffled);
    }

    fn beside_a_writer<T: Table>(&self, name: &str, make: impl Fn() -> T, keys: &[Key]) {
        let written = AtomicU64::new(0);
        let mut writes = Vec::new();
        let rate = self.rate(|| {
            let table = make();
            let (old, new) = keys.split_at(keys.len() / 2);
            fill(&table, old, 1);
            let stop = AtomicBool::new(false);
            written.store(0, Ordering::Relaxed);
            let ns = std::thread::scope(|scope| {
                scope.spawn(|| {
                    for (seq, key) in new.iter().enumerate() {
                        table.put(key, (keys.len() + seq) as u64);
                        written.fetch_add(1, Ordering::Relaxed);
                        if stop.load(Ordering::Relaxed) {
                            break;
                        }
                    }
                });
                let probes = &old[..old.len() / 4];
                let (hits, ns) = time(|| probes.iter().filter(|key| table.get(key)).count());
                writes.push(written.load(Ordering::Relaxed) as f64 * 1e3 / ns as f64);
                stop.store(true, Ordering::Relaxed);
                assert_eq!(hits, probes.len());
                ns
            });
            (keys.len() / 8, ns)
        });
        writes.sort_by(f64::total_cmp);
        println!(
            "{name:10} get hit beside a writer  {rate:8.2} (writer {:.2})",
            writes[writes.len() / 2]
        );
    }
}

/// CPU time of the slowest thread.
fn fill<T: Table>(table: &T, keys: &[Key], threads: usize) -> u64 {
    let next = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let next = &next;
        let threads: Vec<_> = (0..threads)
            .map(|part| {
                scope.spawn(move || {
                    let write = || {
                        for key in keys.iter().skip(part).step_by(threads) {
                            table.put(key, next.fetch_add(1, Ordering::Relaxed));
                        }
                    };
                    time(write).1
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).max().unwrap_or(1)
    })
}

fn sealed(bench: &Bench, pool: &Arc<SlabPool>, keys: &Keys) {
    let count = keys.random.len();
    let shard = Shard::new(pool);
    fill(&shard, &keys.random, 1);
    let index = shard.memory_bytes() as f64 - shard.data_bytes() as f64;
    println!("memory beyond the record bytes     {:8.1} B a record", index / count as f64);
    let ((), ns) = time(|| shard.seal());
    println!("seal (filter)                      {:8.1} ns a record", ns as f64 / count as f64);
    let mut bytes = Vec::new();
    let (written, ns) = time(|| shard.write_image(&mut bytes));
    written.expect("the shard is sealed");
    println!("write image                        {:8.1} ns a record", ns as f64 / count as f64);
    let over = (bytes.len() as f64 - shard.data_bytes() as f64) / count as f64;
    println!("image beyond the record bytes      {over:8.1} B a record (filter 1.25)");
    let (image, ns) = time(|| SealedImage::open(bytes));
    let image = image.expect("just written");
    println!("open image                         {:8.1} ns a record", ns as f64 / count as f64);
    let mut shuffled = keys.random.clone();
    Rng::with_seed(7).shuffle(&mut shuffled);
    for (what, probes) in [("hit", &shuffled), ("miss", &keys.missing)] {
        let lookups = |get: &dyn Fn(&Lookup<'_>)| {
            bench.rate(|| {
                let ((), ns) = time(|| {
                    probes.iter().for_each(|key| get(&Lookup::new(key, SeqNo::MAX)));
                });
                (probes.len(), ns)
            })
        };
        let live = lookups(&|lookup| {
            shard.lookup(lookup, |version| {
                black_box(version.value);
                ControlFlow::Break(())
            });
        });
        let landed = lookups(&|lookup| {
            let found = image.lookup(lookup, |version| {
                black_box(version.value);
                ControlFlow::Break(())
            });
            found.expect("the image is intact");
        });
        println!("sealed get {what} with filter: shard {live:.2}, image {landed:.2}");
    }
    let shards: [Arc<dyn SealedShard>; 2] = [shard, image];
    for (name, shard) in ["shard", "image"].iter().zip(shards) {
        let rate = bench.rate(|| {
            let mut iter = Arc::clone(&shard).verified_iter();
            let (bytes, ns) = time(|| walk(&mut iter, true));
            black_box(bytes);
            (count, ns)
        });
        println!("verified scan of the {name}: {rate:.2}");
    }
}

fn main() {
    let mut args = std::env::args()
        .skip(1)
        .filter(|argument| argument != "--bench")
        .map(|arg| arg.parse().expect("a number"));
    let count = args.next().unwrap_or(550_000);
    let bench = Bench { rounds: args.next().unwrap_or(5).max(1) };
    let keys = Keys::new(count);
    let pool = SlabPool::new(ByteBudget::unlimited());
    pool.set_keep_bytes(1 << 30);
    bench.report("shard", || Shard::new(&pool), &keys);
    sealed(&bench, &pool, &keys);
    bench.report("RwLock<BTreeMap>", Locked::default, &keys);
}
