//! The YCSB core workloads (Cooper et al., "Benchmarking cloud serving systems with YCSB", SoCC
//! 2010): a update-heavy, b read-mostly, c read-only, d read-latest, e short ranges, and f
//! read-modify-write.
//!
//! Two write-heavy mixes are from BucketLSM's evaluation (§VI-A): `ycsbget` has seven puts to three
//! gets, and `ycsbscan` has nine puts to one scan. `ycsbput` only puts (W100 of O³-LSM's
//! evaluation, §5.2).
//!
//! A record is one key and one value of `--value_size`. Records are loaded in scattered order.
//! `--benchmark_write_rate_limit` limits the writes of the workload, but not the load.

use std::sync::atomic::Ordering;

use archipelago_base::random::Rng;

use super::{Body, Message, Spec, Worker};
use crate::harness::flags::Distribution;
use crate::harness::store::Result;
use crate::harness::tally::{Counts, OpKind};
use crate::zipf::{Chooser, below};

/// Shares of a hundred operations; the rest are read-modify-writes.
#[derive(Clone, Copy, Debug)]
struct Mix {
    reads: u64,
    updates: u64,
    inserts: u64,
    scans: u64,
    newest: bool,
}

const NONE: Mix = Mix { reads: 0, updates: 0, inserts: 0, scans: 0, newest: false };
const A: Mix = Mix { reads: 50, updates: 50, ..NONE };
const B: Mix = Mix { reads: 95, updates: 5, ..NONE };
const C: Mix = Mix { reads: 100, ..NONE };
const D: Mix = Mix { reads: 95, inserts: 5, newest: true, ..NONE };
const E: Mix = Mix { scans: 95, inserts: 5, ..NONE };
const F: Mix = Mix { reads: 50, ..NONE };
const GET: Mix = Mix { updates: 70, reads: 30, ..NONE };
const PUT: Mix = Mix { updates: 100, ..NONE };
const SCAN: Mix = Mix { updates: 90, scans: 10, ..NONE };

/// Skew of the zipfian, as YCSB has it and as BucketLSM's evaluation has it.
const THETA: f64 = 0.99;
const THETA_BUCKETLSM: f64 = 0.9;

/// The workload called `name`.
pub(super) fn find(name: &str, workers: impl Fn(Body, Message) -> Spec) -> Option<Spec> {
    let body: Body = match name {
        "ycsba" => |worker| run(worker, A),
        "ycsbb" => |worker| run(worker, B),
        "ycsbc" => return Some(workers(|worker| run(worker, C), message)),
        "ycsbd" => |worker| run(worker, D),
        "ycsbe" => |worker| run(worker, E),
        "ycsbf" => |worker| run(worker, F),
        "ycsbget" => |worker| run(worker, GET),
        "ycsbput" => |worker| run(worker, PUT),
        "ycsbscan" => |worker| run(worker, SCAN),
        _ => return None,
    };
    Some(workers(body, message).writing())
}

/// Writes the records that the workloads start from.
pub(crate) fn load_spec() -> Spec {
    Spec::new("ycsbload", super::Run::Workers(load, super::quiet)).writing()
}

/// Each worker loads a part. Record numbers advance in steps that have no factor in common with
/// their count, so that each number occurs once, far from the one before.
fn load(worker: &mut Worker<'_>) -> Result<()> {
    let bytes = worker.bench.flags.load.value_size;
    load_with(worker, |_, _| bytes)
}

/// Loads the records as `load` does, with values of the length that `value_bytes` gives for the
/// record's number.
pub(super) fn load_with(
    worker: &mut Worker<'_>,
    value_bytes: impl Fn(u64, &mut Rng) -> usize,
) -> Result<()> {
    let flags = worker.bench.flags;
    let (num, threads) = (flags.load.num, flags.load.threads);
    let step = stride(num);
    let index = worker.index as u64;
    for at in num * index / threads..num * (index + 1) / threads {
        let number = (u128::from(at) * u128::from(step) % u128::from(num)) as u64;
        let key = worker.keys.set(number);
        let value = worker.values.take(value_bytes(number, &mut worker.rng));
        worker.db.put_with(worker.cf, key, value, &worker.write_options)?;
        worker.tally.add_bytes(key.len() + value.len());
        worker.tally.finished(1, OpKind::Write);
    }
    Ok(())
}

/// The first number from about 0.618 `num` on that shares no factor with it.
fn stride(num: u64) -> u64 {
    let start = (num as f64 * 0.618_033_988_75) as u64;
    (start.max(1)..).find(|&step| common_factor(step, num) == 1).unwrap_or(1)
}

fn common_factor(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

fn run(worker: &mut Worker<'_>, mix: Mix) -> Result<()> {
    let flags = worker.bench.flags;
    let default = if mix.newest { Distribution::Latest } else { Distribution::Zipfian };
    let distribution = flags.ycsb.ycsb_distribution.unwrap_or(default);
    let records = flags.load.num;
    let is_bucketlsm = ["ycsbget", "ycsbscan"].contains(&worker.bench.spec.name);
    let default = if is_bucketlsm { THETA_BUCKETLSM } else { THETA };
    let theta = flags.ycsb.ycsb_theta.unwrap_or(default);
    let chooser = Chooser::new(distribution, records, theta);
    let mut limit = worker.limit(flags.reads_and_writes());
    while limit.more(1) {
        let dice = below(&mut worker.rng, 100);
        if dice < mix.inserts {
            insert(worker)?;
            continue;
        }
        let records = worker.bench.records.load(Ordering::Relaxed);
        let number = chooser.next(&mut worker.rng, records);
        worker.keys.set(number);
        let dice = dice - mix.inserts;
        if dice < mix.reads {
            read(worker)?;
            worker.tally.finished(1, OpKind::Read);
        } else if dice < mix.reads + mix.updates {
            update_with(worker, flags.load.value_size)?;
            worker.tally.finished(1, OpKind::Update);
        } else if dice < mix.reads + mix.updates + mix.scans {
            scan(worker)?;
        } else {
            pace_record(worker);
            read(worker)?;
            update(worker, flags.load.value_size)?;
            worker.tally.finished(1, OpKind::Other);
        }
    }
    Ok(())
}

/// `warmup`: reads each of `--num` records once, so that the block cache holds what fits. Each
/// worker reads a part.
pub(super) fn warm_up(worker: &mut Worker<'_>) -> Result<()> {
    let (num, threads) = (worker.bench.flags.load.num, worker.bench.flags.load.threads);
    let index = worker.index as u64;
    for number in num * index / threads..num * (index + 1) / threads {
        worker.keys.set(number);
        read(worker)?;
        worker.tally.finished(1, OpKind::Read);
    }
    Ok(())
}

pub(super) fn read(worker: &mut Worker<'_>) -> Result<()> {
    let key = worker.keys.get();
    worker.tally.counts.reads += 1;
    worker.tally.counts.looked += 1;
    if let Some(value) = worker.db.get_with(worker.cf, key, &worker.read_options)? {
        worker.tally.counts.found += 1;
        worker.tally.add_bytes(key.len() + value.len());
    }
    Ok(())
}

fn pace_record(worker: &mut Worker<'_>) {
    let load = &worker.bench.flags.load;
    worker.pace_write((load.key_size + load.value_size) as u64);
}

/// Writes `value_bytes` to the key that was set, when the rate of writes permits it.
pub(super) fn update_with(worker: &mut Worker<'_>, value_bytes: usize) -> Result<()> {
    worker.pace_write((worker.bench.flags.load.key_size + value_bytes) as u64);
    update(worker, value_bytes)
}

fn update(worker: &mut Worker<'_>, value_bytes: usize) -> Result<()> {
    let key = worker.keys.get();
    let value = worker.values.take(value_bytes);
    worker.db.put_with(worker.cf, key, value, &worker.write_options)?;
    worker.tally.counts.updates += 1;
    worker.tally.add_bytes(key.len() + value.len());
    Ok(())
}

fn insert(worker: &mut Worker<'_>) -> Result<()> {
    pace_record(worker);
    let number = worker.bench.records.fetch_add(1, Ordering::Relaxed);
    let key = worker.keys.set(number);
    let value = worker.values.take(worker.bench.flags.load.value_size);
    worker.db.put_with(worker.cf, key, value, &worker.write_options)?;
    worker.tally.counts.inserts += 1;
    worker.tally.add_bytes(key.len() + value.len());
    worker.tally.finished(1, OpKind::Write);
    Ok(())
}

pub(super) fn scan(worker: &mut Worker<'_>) -> Result<()> {
    let wanted = 1 + below(&mut worker.rng, worker.bench.flags.ycsb.ycsb_max_scan);
    scan_entries(worker, wanted)
}

/// Reads at most `wanted` entries from the key that was set.
pub(super) fn scan_entries(worker: &mut Worker<'_>, wanted: u64) -> Result<()> {
    let mut iter = worker.db.iter(worker.cf, &worker.read_options)?;
    iter.seek(worker.keys.get());
    let mut read = 0;
    while read < wanted && iter.valid() {
        worker.tally.add_bytes(iter.key().len() + iter.value().len());
        iter.next();
        read += 1;
    }
    iter.status()?;
    worker.tally.counts.seeks += 1;
    worker.tally.counts.scan_entries += read;
    worker.tally.finished(1, OpKind::Seek);
    Ok(())
}

pub(super) fn message(counts: &Counts) -> String {
    let Counts { reads, updates, inserts, seeks, found, .. } = counts;
    format!("( reads:{reads} updates:{updates} inserts:{inserts} scans:{seeks} found:{found})")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_hits_every_record_once() {
        for num in [1, 2, 3, 10, 1000, 1024, 4097] {
            let step = stride(num);
            let mut seen: Vec<u64> = (0..num).map(|at| at * step % num).collect();
            seen.sort_unstable();
            assert!(seen.iter().enumerate().all(|(at, &number)| at as u64 == number), "{num}");
        }
    }

    #[test]
    fn shares_make_a_hundred() {
        for mix in [A, B, C, D, E, GET, PUT, SCAN] {
            assert_eq!(mix.reads + mix.updates + mix.inserts + mix.scans, 100, "{mix:?}");
        }
    }
}
