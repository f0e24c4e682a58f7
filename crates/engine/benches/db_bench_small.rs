//! A short fill and read of a database, for profiling: `cargo bench -p archipelago-engine --bench
//! db_bench_small -- DIR NUM`.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, missing_docs)]
use archipelago_engine::db::{Components, Db};
use archipelago_engine::options::{CfOptions, Compression, DbOptions};
use std::time::Instant;

fn key(n: u64, buf: &mut [u8; 16]) {
    buf[..8].copy_from_slice(&n.to_be_bytes());
    buf[8..].fill(b'0');
}

fn main() {
    let args: Vec<String> = std::env::args().filter(|argument| argument != "--bench").collect();
    if args.len() < 3 {
        println!("usage: db_bench_small DIR NUM");
        return;
    }
    let num: u64 = args[2].parse().unwrap();
    let options = DbOptions { block_cache_bytes: 1 << 30, ..DbOptions::default() };
    let cf = CfOptions {
        compression: Compression::None,
        compression_last: Compression::None,
        ..CfOptions::default()
    };
    let components = Components {
        families: [("default".to_owned(), cf)].into_iter().collect(),
        ..Components::default()
    };
    let db = Db::open_with(&args[1], options, components).unwrap();
    let mut rng = fastrand::Rng::with_seed(7);
    let mut buf = [0; 16];
    let value: Vec<u8> = (0..1 << 20).map(|_| rng.u8(..)).collect();
    let start = Instant::now();
    for _ in 0..num {
        key(rng.u64(..num), &mut buf);
        let at = rng.usize(..(1 << 20) - 100);
        db.put(&buf, &value[at..at + 100]).unwrap();
    }
    let s = start.elapsed().as_secs_f64();
    println!("fillrandom {:.3} us/op {:.0} ops/s", s * 1e6 / num as f64, num as f64 / s);
    let start = Instant::now();
    db.wait_for_background().unwrap();
    println!("settle {:.2} s", start.elapsed().as_secs_f64());
    for round in 0..3 {
        let start = Instant::now();
        let mut found = 0;
        let reads = 1_000_000;
        for _ in 0..reads {
            key(rng.u64(..num), &mut buf);
            found += u64::from(db.get(&buf).unwrap().is_some());
        }
        let s = start.elapsed().as_secs_f64();
        println!(
            "readrandom {round} {:.3} us/op {:.0} ops/s found {found}",
            s * 1e6 / reads as f64,
            reads as f64 / s
        );
    }
    let start = Instant::now();
    let mut iter = db.iter(db.default_family(), &Default::default()).unwrap();
    iter.seek_to_first();
    let mut n = 0u64;
    while iter.valid() {
        n += 1;
        iter.next();
    }
    iter.status().unwrap();
    let s = start.elapsed().as_secs_f64();
    println!("readseq {n} {:.3} us/op {:.0} ops/s", s * 1e6 / n as f64, n as f64 / s);
    drop(iter);
    println!("{}", db.stats_text());
    db.close().unwrap();
}
