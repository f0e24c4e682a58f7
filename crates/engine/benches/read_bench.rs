//! Warm reads of a settled database, for profiling: `cargo bench -p archipelago-engine --bench
//! read_bench -- DIR NUM WORKLOAD...`.
//!
//! The first run fills DIR with NUM keys of 16 bytes and values of 100, compacts and closes it;
//! later runs open it. Workloads: readrandom, readmissing, readseq, readreverse, seekrandom,
//! multiget. Each is measured in CPU time per operation, three times, after one warm-up.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, missing_docs)]

use archipelago_engine::db::{Components, Db, ReadOptions};
use archipelago_engine::key::KeyRange;
use archipelago_engine::options::{CfOptions, Compression, DbOptions};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const OPS: u64 = 1_000_000;

fn key(n: u64, buf: &mut [u8; 16]) {
    buf[..8].copy_from_slice(&n.to_be_bytes());
    buf[8..].fill(b'0');
}

/// CPU time of the process in nanoseconds (`/proc/self/schedstat`).
fn cpu_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/self/schedstat").unwrap();
    text.split(' ').next().unwrap().parse().unwrap()
}

fn open(dir: &str, cache: u64) -> Db {
    let options = DbOptions { block_cache_bytes: cache, ..DbOptions::default() };
    let cf = CfOptions {
        compression: Compression::None,
        compression_last: Compression::None,
        ..CfOptions::default()
    };
    let components = Components {
        families: [("default".to_owned(), cf)].into_iter().collect(),
        ..Components::default()
    };
    Db::open_with(dir, options, components).unwrap()
}

fn fill(dir: &str, num: u64) {
    let db = open(dir, 64 << 20);
    let mut rng = fastrand::Rng::with_seed(7);
    let mut buf = [0; 16];
    let bytes: Vec<u8> = (0..1 << 20).map(|_| rng.u8(..)).collect();
    // Every key once, in an order without locality: the step is a prime.
    for index in 0..num {
        key(index * 2_654_435_761 % num, &mut buf);
        let at = rng.usize(..(1 << 20) - 100);
        db.put(&buf, &bytes[at..at + 100]).unwrap();
    }
    db.compact_range(db.default_family(), &KeyRange::all()).unwrap();
    db.wait_for_background().unwrap();
    println!("{}", db.stats_text());
    db.close().unwrap();
}

fn run(db: &Db, num: u64, workload: &str, rng: &mut fastrand::Rng) -> (u64, u64) {
    let mut buf = [0; 16];
    let mut sum = 0;
    let options = ReadOptions::default();
    match workload {
        "readrandom" | "readmissing" => {
            for _ in 0..OPS {
                key(rng.u64(..num), &mut buf);
                if workload == "readmissing" {
                    buf[15] = b'.';
                }
                sum += u64::from(db.get(&buf).unwrap().is_some());
            }
            (OPS, sum)
        }
        "readseq" | "readreverse" => {
            let mut iter = db.iter(db.default_family(), &options).unwrap();
            if workload == "readseq" {
                iter.seek_to_first();
            } else {
                iter.seek_to_last();
            }
            let mut n = 0;
            while iter.valid() {
                n += 1;
                sum += (iter.key().len() + iter.value().len()) as u64;
                if workload == "readseq" { iter.next() } else { iter.prev() }
            }
            iter.status().unwrap();
            (n, sum)
        }
        "seekrandom" => {
            let mut iter = db.iter(db.default_family(), &options).unwrap();
            for _ in 0..OPS / 2 {
                key(rng.u64(..num), &mut buf);
                iter.seek(&buf);
                sum += u64::from(iter.valid() && iter.key() == buf);
            }
            (OPS / 2, sum)
        }
        "multiget" => {
            for _ in 0..OPS / 100 {
                let mut bufs = [[0; 16]; 100];
                bufs.iter_mut().for_each(|buf| key(rng.u64(..num), buf));
                let keys: Vec<&[u8]> = bufs.iter().map(|buf| buf.as_slice()).collect();
                let values = db.multi_get(db.default_family(), &keys, &options).unwrap();
                sum += values.iter().flatten().count() as u64;
            }
            (OPS, sum)
        }
        other => panic!("unknown workload {other}"),
    }
}

fn main() {
    let args: Vec<String> = std::env::args().filter(|argument| argument != "--bench").collect();
    if args.len() < 3 {
        println!("usage: read_bench DIR NUM WORKLOAD...");
        return;
    }
    let num: u64 = args[2].parse().unwrap();
    if !std::path::Path::new(&args[1]).exists() {
        fill(&args[1], num);
    }
    let cache = std::env::var("CACHE_MB").map_or(2048, |mb| mb.parse().unwrap());
    let db = open(&args[1], cache << 20);
    db.wait_for_background().unwrap();
    let mut rng = fastrand::Rng::with_seed(9);
    run(&db, num, "readseq", &mut rng);
    for workload in &args[3..] {
        let mut figures: Vec<(u64, u64)> = (0..4)
            .map(|_| {
                let start = cpu_ns();
                let (ops, sum) = run(&db, num, workload, &mut rng);
                ((cpu_ns() - start) / ops, sum)
            })
            .skip(1)
            .collect();
        figures.sort_unstable();
        println!("{workload:12} {:5} ns CPU/op, all {figures:?}", figures[1].0);
    }
    db.close().unwrap();
}
