//! The workloads of Terark-DS's evaluation (§5.1): Mixed-8K, Fixed-16K and Pareto-1K. Each has four
//! phases: load, update, read and scan.
//!
//! Invariants:
//! 1. The length of a value is a function of its record's number alone. So an update keeps the
//!    length, and the live bytes stay the same while updates run.
//! 2. Mixed-8K: half of the records have 100 to 512 B with equal probability, the others 16 KiB.
//!    Fixed-16K: 16 KiB. Pareto-1K: a generalised Pareto distribution with a mean of 1 KiB.
//! 3. All phases choose records with equal probability, unless `--read_random_exp_range` says
//!    otherwise.
//!
//! The paper gives no parameters of its Pareto distribution. The shape here is that of value sizes
//! in "Characterizing, Modeling, and Benchmarking RocksDB Key-Value Workloads at Facebook" (Cao et
//! al., FAST 2020), which the paper cites, and the scale follows from the mean.

use archipelago_base::checksum::hash64;

use super::{Run, Spec, Worker, mixgraph, read, ycsb};
use crate::harness::flags::Flags;
use crate::harness::store::Result;
use crate::harness::tally::{Counts, OpKind};
use crate::zipf::below;

const SMALL_BYTES_MIN: u64 = 100;
const SMALL_BYTES_MAX: u64 = 512;
const LARGE_BYTES: usize = 16 << 10;
const PARETO_K: f64 = 0.2615;
const PARETO_MEAN_BYTES: f64 = 1024.0;
/// Bytes of the largest value. Five in a million values of Pareto-1K would be longer.
pub(crate) const VALUE_BYTES_MAX: usize = 64 << 10;

/// Updates of all threads for each record, as in the paper.
const UPDATES_PER_RECORD: u64 = 3;
/// Records for each scan of all threads.
const RECORDS_PER_SCAN: u64 = 100;
const SCAN_ENTRIES_MIN: u64 = 2;
const SCAN_ENTRIES_MAX: u64 = 1000;

/// Lengths of the values of a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ValueLengths {
    Mixed8k,
    Fixed16k,
    Pareto1k,
}

/// A phase of a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Load,
    Update,
    Read,
    Scan,
}

/// A workload: its name, the lengths of its values, and the list of benchmarks that it stands for.
struct Workload {
    name: &'static str,
    lengths: ValueLengths,
    phases: [&'static str; 5],
}

/// The workloads. Compaction and garbage collection settle before the reads.
const WORKLOADS: [Workload; 3] = [
    Workload {
        name: "mixed8k",
        lengths: ValueLengths::Mixed8k,
        phases: ["mixed8kload", "mixed8kupdate", SETTLE, "mixed8kread", "mixed8kscan"],
    },
    Workload {
        name: "fixed16k",
        lengths: ValueLengths::Fixed16k,
        phases: ["fixed16kload", "fixed16kupdate", SETTLE, "fixed16kread", "fixed16kscan"],
    },
    Workload {
        name: "pareto1k",
        lengths: ValueLengths::Pareto1k,
        phases: ["pareto1kload", "pareto1kupdate", SETTLE, "pareto1kread", "pareto1kscan"],
    },
];

const SETTLE: &str = "waitforcompaction";

/// The benchmarks that `name` stands for, if it is the name of a whole workload.
pub(crate) fn phases(name: &str) -> Option<&'static [&'static str]> {
    WORKLOADS.iter().find(|workload| workload.name == name).map(|workload| &workload.phases[..])
}

/// Whether `name` is a workload of this module or a phase.
pub(crate) fn is_one(name: &str) -> bool {
    phases(name).is_some() || split(name).is_some()
}

/// Bytes of the value of record `number` in the benchmark called `name`; `None` if it is another
/// benchmark.
pub(crate) fn value_bytes(name: &str, number: u64) -> Option<usize> {
    Some(split(name)?.0.of(number))
}

/// Lengths and phase of the benchmark called `name`.
fn split(name: &str) -> Option<(ValueLengths, Phase)> {
    let workload = WORKLOADS.iter().find(|workload| name.starts_with(workload.name))?;
    let phase = match name.strip_prefix(workload.name)? {
        "load" => Phase::Load,
        "update" => Phase::Update,
        "read" => Phase::Read,
        "scan" => Phase::Scan,
        _ => return None,
    };
    Some((workload.lengths, phase))
}

/// The phase called `name`.
pub(super) fn find(name: &'static str) -> Option<Spec> {
    let (_, phase) = split(name)?;
    Some(match phase {
        Phase::Load => Spec::new(name, Run::Workers(load, super::quiet)).fresh(),
        Phase::Update => Spec::new(name, Run::Workers(update, super::quiet)).writing(),
        Phase::Read => Spec::new(name, Run::Workers(read_records, read::found_line)),
        Phase::Scan => Spec::new(name, Run::Workers(scan, scan_message)),
    })
}

/// Operations of one thread in the phase called `name`; `None` if it is another benchmark.
pub(crate) fn ops_per_thread(name: &str, flags: &Flags) -> Option<u64> {
    let (_, phase) = split(name)?;
    let (num, threads) = (flags.load.num, flags.load.threads);
    let given = |ops: i64, all: u64| u64::try_from(ops).unwrap_or((all / threads).max(1));
    Some(match phase {
        Phase::Load => num.div_ceil(threads),
        Phase::Update => given(flags.load.writes, num.saturating_mul(UPDATES_PER_RECORD)),
        Phase::Read => given(flags.load.reads, num),
        Phase::Scan => given(flags.load.reads, num / RECORDS_PER_SCAN),
    })
}

impl ValueLengths {
    /// Bytes of the value of record `number`.
    pub(super) fn of(self, number: u64) -> usize {
        let hash = || hash64(&number.to_le_bytes());
        match self {
            Self::Fixed16k => LARGE_BYTES,
            Self::Mixed8k => match hash() {
                hash if hash & 1 == 1 => LARGE_BYTES,
                hash => {
                    (SMALL_BYTES_MIN + (hash >> 1) % (SMALL_BYTES_MAX - SMALL_BYTES_MIN + 1))
                        as usize
                }
            },
            Self::Pareto1k => {
                // 53 bits of the hash give a number above 0 and at most 1.
                let u = ((hash() >> 11) + 1) as f64 / (1u64 << 53) as f64;
                let sigma = PARETO_MEAN_BYTES * (1.0 - PARETO_K);
                let bytes = mixgraph::pareto(u, 0.0, PARETO_K, sigma);
                bytes.clamp(1, VALUE_BYTES_MAX as u64) as usize
            }
        }
    }
}

fn lengths_and_ops(worker: &Worker<'_>) -> Option<(ValueLengths, u64)> {
    let name = worker.bench.spec.name;
    Some((split(name)?.0, ops_per_thread(name, worker.bench.flags)?))
}

/// Writes each record once, in scattered order.
fn load(worker: &mut Worker<'_>) -> Result<()> {
    let Some((lengths, _)) = lengths_and_ops(worker) else { return Ok(()) };
    ycsb::load_with(worker, |number, _| lengths.of(number))
}

/// Writes random records again.
fn update(worker: &mut Worker<'_>) -> Result<()> {
    let Some((lengths, ops)) = lengths_and_ops(worker) else { return Ok(()) };
    let mut limit = worker.limit(ops);
    while limit.more(1) {
        let number = worker.picker.next(&mut worker.rng);
        worker.keys.set(number);
        ycsb::update_with(worker, lengths.of(number))?;
        worker.tally.finished(1, OpKind::Update);
    }
    Ok(())
}

/// Reads random records.
fn read_records(worker: &mut Worker<'_>) -> Result<()> {
    let Some((_, ops)) = lengths_and_ops(worker) else { return Ok(()) };
    read::random_of(worker, ops)
}

/// Reads 2 to 1,000 entries from random records on.
fn scan(worker: &mut Worker<'_>) -> Result<()> {
    let Some((_, ops)) = lengths_and_ops(worker) else { return Ok(()) };
    let mut limit = worker.limit(ops);
    while limit.more(1) {
        let number = worker.picker.next(&mut worker.rng);
        let span = SCAN_ENTRIES_MAX - SCAN_ENTRIES_MIN + 1;
        let entries = SCAN_ENTRIES_MIN + below(&mut worker.rng, span);
        worker.keys.set(number);
        ycsb::scan_entries(worker, entries)?;
    }
    Ok(())
}

fn scan_message(counts: &Counts) -> String {
    format!("( scans:{} entries:{})", counts.seeks, counts.scan_entries)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::flags::tests::flags;

    fn drawn(lengths: ValueLengths) -> Vec<usize> {
        (0..200_000).map(|number| lengths.of(number)).collect()
    }

    fn mean(lengths: &[usize]) -> f64 {
        lengths.iter().sum::<usize>() as f64 / lengths.len() as f64
    }

    #[test]
    fn mixed8k_has_as_many_small_as_large_values() {
        let drawn = drawn(ValueLengths::Mixed8k);
        let small: Vec<usize> =
            drawn.iter().copied().filter(|&bytes| bytes < LARGE_BYTES).collect();
        let share = small.len() as f64 / drawn.len() as f64;
        assert!((share - 0.5).abs() < 0.01, "{share}");
        assert_eq!((small.iter().min(), small.iter().max()), (Some(&100), Some(&512)));
        assert!((mean(&small) - 306.0).abs() < 3.0, "{}", mean(&small));
    }

    #[test]
    fn pareto1k_has_a_mean_of_one_kibibyte() {
        let drawn = drawn(ValueLengths::Pareto1k);
        assert!((mean(&drawn) - 1024.0).abs() < 20.0, "{}", mean(&drawn));
        let small = drawn.iter().filter(|&&bytes| bytes < 512).count() as f64;
        let share = small / drawn.len() as f64;
        assert!((share - 0.464).abs() < 0.01, "most values are small or medium: {share}");
        assert!(drawn.iter().all(|bytes| (1..=VALUE_BYTES_MAX).contains(bytes)));
    }

    #[test]
    fn records_keep_their_lengths() {
        assert_eq!(ValueLengths::Fixed16k.of(7), 16_384);
        assert_eq!(drawn(ValueLengths::Pareto1k)[..50], drawn(ValueLengths::Pareto1k)[..50]);
    }

    #[test]
    fn whole_workload_stands_for_its_phases() {
        for workload in &WORKLOADS {
            let names = phases(workload.name).expect("a workload");
            assert!(names.iter().all(|name| super::super::find(name).is_some()), "{names:?}");
            let load = super::super::find(names[0]).expect("a load");
            assert!(load.fresh && load.writes);
        }
        assert!(is_one("mixed8k") && is_one("pareto1kscan"));
        assert!(!is_one("mixgraph") && !is_one("fixed16kwrite"));
    }

    #[test]
    fn phases_follow_the_paper_unless_flags_say_otherwise() {
        let default = flags(&["--num=4000", "--threads=2"]);
        let ops = |name, flags: &Flags| ops_per_thread(name, flags);
        assert_eq!(ops("fixed16kupdate", &default), Some(6000));
        assert_eq!(ops("fixed16kread", &default), Some(2000));
        assert_eq!(ops("fixed16kscan", &default), Some(20));
        let given = flags(&["--num=4000", "--threads=2", "--writes=7", "--reads=9"]);
        assert_eq!(ops("mixed8kupdate", &given), Some(7));
        assert_eq!(ops("mixed8kscan", &given), Some(9));
        assert_eq!(ops("fillrandom", &given), None);
    }
}
