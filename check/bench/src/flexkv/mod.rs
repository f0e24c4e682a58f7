//! `archipelago bench --engine flexkv`: measures the store over remote memory in real processes.
//!
//! `archipelago cluster up` starts the manager, the memory nodes and all compute nodes but one as
//! processes, and this process starts and ends it. This process is the last compute node, so it
//! times calls of the store, without a server before them. Every key is set before the first
//! benchmark. Workloads of Twitter's clusters have keys of their own, which are set before them and
//! deleted after them.

mod flags;
mod work;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::skew::Skew;
use archipelago_base::clock::{Clock, SystemClock};
use archipelago_base::random::entropy_seed;
use archipelago_base::{Error, ErrorKind, Result};
use archipelago_compute::flexkv::{CacheMode, FlexKvNode, FlexKvNodeSettings, FlexKvSettings};
use archipelago_fabric::block_on;
use archipelago_flexkv::WriteError;
use archipelago_flexkv::format::{Geometry, key_hash};
use clap::Parser;
use comfy_table::Table;
use comfy_table::presets::UTF8_FULL_CONDENSED;
use serde::Serialize;

use crate::harness::histogram::Quantiles;
use crate::harness::json;
use crate::harness::progress::Watch;
use crate::harness::report::say;
use crate::harness::tally::Progress;
use crate::harness::twitter::{self, Stream};
use flags::{Arguments, Cache, Place, Provider};
use work::{Kind, Measured, Naming, Run, Source};

/// Whether these arguments select this benchmark.
pub(crate) fn is_asked(args: &[OsString]) -> bool {
    let is_flexkv = |word: &OsString| word == "flexkv" || word == "flex";
    let is_pair = |pair: &[OsString]| pair[0] == "--engine" && is_flexkv(&pair[1]);
    args.iter().any(|word| word == "--engine=flexkv" || word == "--engine=flex")
        || args.windows(2).any(is_pair)
}

/// Runs with `args`, the words after `bench`.
pub(crate) fn main(args: &[OsString]) -> std::result::Result<Result<()>, clap::Error> {
    let arguments = Arguments::try_parse_from(args)?;
    Ok(run(&arguments))
}

/// The other processes of the cluster, which end when this is dropped.
struct Cluster {
    child: Child,
    manager: String,
}

fn io(doing: &'static str) -> impl Fn(std::io::Error) -> Error {
    move |source| Error::with_source(ErrorKind::Io, doing, source)
}

impl Cluster {
    fn start(arguments: &Arguments) -> Result<Self> {
        let program = std::env::current_exe().map_err(io("cannot find this program"))?;
        let others = arguments.compute - 1;
        let mut child = Command::new(program)
            .args(["cluster", "up", "--stop-with-stdin", "--manager", "127.0.0.1:0"])
            .args(["--resp", "127.0.0.1:0", "--size", &arguments.size])
            .args(["--compute", &others.to_string(), "--memory", &arguments.memory.to_string()])
            .args(["--partitions", &arguments.partitions.to_string()])
            .args(["--offload", &arguments.offload.to_string()])
            .args(["--provider", arguments.provider.name()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(io("cannot start the cluster"))?;
        let mut manager = None;
        let mut lines = 1 + arguments.memory + u64::from(others);
        if let Some(output) = child.stdout.take() {
            let mut output = BufReader::new(output);
            let mut line = String::new();
            while lines > 0 && output.read_line(&mut line).map_err(io("cannot hear it"))? > 0 {
                let first = line.split_whitespace().nth(1).map(str::to_owned);
                manager = manager.or(first);
                line.clear();
                lines -= 1;
            }
            // The pipe holds the rest of its output, which this process does not read.
            std::mem::forget(output);
        }
        match manager {
            Some(manager) if lines == 0 => Ok(Self { child, manager }),
            _ => {
                let _ended = child.kill();
                let _reaped = child.wait();
                Err(Error::new(ErrorKind::Io, "the cluster did not come up"))
            }
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        // The process ends when its input does. If it ended before, the write fails harmlessly.
        let _reaped = self.child.wait();
    }
}

/// One benchmark's result.
#[derive(Serialize)]
struct Outcome {
    name: String,
    /// Number of keys that were loaded first.
    keys: u64,
    ops: u64,
    seconds: f64,
    ops_per_s: f64,
    reads: Option<Quantiles>,
    writes: Option<Quantiles>,
    /// Reads that found a value.
    found: u64,
    /// Counts of this node during the benchmark.
    counted: BTreeMap<String, u64>,
}

#[derive(Serialize)]
struct Report {
    program: &'static str,
    version: &'static str,
    unix_ms: u64,
    flags: String,
    results: Vec<Outcome>,
}

fn run(arguments: &Arguments) -> Result<()> {
    let kinds = arguments.kinds()?;
    let cluster = Cluster::start(arguments)?;
    let node = join(arguments, &cluster)?;
    let clock = SystemClock::new();
    let (naming, value) = (Naming::ycsb(), vec![b'v'; arguments.value_size]);
    let mut keys = Vec::new();
    if kinds.iter().any(|(_, kind)| matches!(kind, Kind::Mix(_))) {
        load(&node, &naming, arguments.num, &value)?;
        keys = placed(arguments, &node, &naming, arguments.num)?;
    }
    let mut results = Vec::new();
    for (name, kind) in kinds {
        let outcome = match kind {
            Kind::Mix(mix) => {
                let source = Source::Mix(mix, Skew::new(keys.len() as u64, arguments.alpha));
                let asked = Asked { name: &name, source, naming: &naming, keys: &keys };
                measure(arguments, &node, &clock, asked, arguments.value_size)?
            }
            Kind::Cluster(cluster) => measure_like(arguments, &node, &clock, &name, &cluster)?,
        };
        results.push(outcome);
    }
    say(&table(&results));
    say(
        "Times are of calls in this process, a compute node of the store; nothing ran before it on the way.",
    );
    // The node is dropped first, so that it can still tell the manager that it leaves.
    drop(node);
    drop(cluster);
    let Some(path) = &arguments.json else { return Ok(()) };
    let report = Report {
        program: "archipelago bench --engine flexkv",
        version: env!("CARGO_PKG_VERSION"),
        unix_ms: SystemClock::new().unix_ms(),
        flags: format!("{arguments:?}"),
        results,
    };
    json::write_file(path, &report)
}

fn join(arguments: &Arguments, cluster: &Cluster) -> Result<FlexKvNode> {
    let name = format!("archipelago-bench-{:016x}.sock", entropy_seed());
    let mut listen = vec!["tcp:127.0.0.1:0".to_owned()];
    if arguments.provider == Provider::Shm {
        listen.push(format!("shm:{}", std::env::temp_dir().join(name).display()));
    }
    let limit = arguments.memory_limit.checked_mul(1 << 20);
    let store = FlexKvSettings {
        memory_limit: limit.ok_or_else(|| Error::invalid("--memory-limit is too large"))?,
        cache: match arguments.cache {
            Cache::Off => CacheMode::Off,
            Cache::Addresses => CacheMode::Addresses,
            Cache::Pairs => CacheMode::Pairs,
        },
        ..FlexKvSettings::default()
    };
    let manager = vec![format!("tcp:{}", cluster.manager)];
    let advertise = Vec::new();
    FlexKvNode::start(FlexKvNodeSettings { manager, listen, advertise, secret: None, store })
}

/// Sets the keys `0..keys`.
fn load(node: &FlexKvNode, naming: &Naming, keys: u64, value: &[u8]) -> Result<()> {
    let set = |number| node.set(&naming.key(number), value, 0).map_err(WriteError::into_error);
    (0..keys).try_for_each(set)
}

/// Numbers of the keys that are used, by where their partitions are served.
fn placed(
    arguments: &Arguments,
    node: &FlexKvNode,
    naming: &Naming,
    keys: u64,
) -> Result<Vec<u64>> {
    let none = || Error::busy("the node has not joined");
    let map = node.node()?.map_status().ok_or_else(none)?;
    let bits = map.entries.len().trailing_zeros();
    let geometry = Geometry::new(bits).ok_or_else(none)?;
    let fits = |number: &u64| {
        let partition = geometry.partition(key_hash(&naming.key(*number)));
        let entry = &map.entries[partition.0 as usize];
        match arguments.place {
            Place::Any => true,
            Place::Here => entry.offloaded && entry.node == map.number,
            Place::Elsewhere => entry.offloaded && entry.node != map.number,
            Place::OneSided => !entry.offloaded,
        }
    };
    let keys: Vec<u64> = (0..keys).filter(fits).collect();
    if keys.is_empty() {
        return Err(Error::invalid("no key lies there: see --place, --offload and --compute"));
    }
    Ok(keys)
}

/// Divisor of the pool's memory: the keys and values of a cluster take at most this part of it.
/// Replicas and rewritten values come in addition.
const PART_OF_MEMORY: u64 = 8;

/// A benchmark like one of Twitter's clusters, with keys of its own. Their number is the requested
/// one, or less if the pool has no room for it.
fn measure_like(
    arguments: &Arguments,
    node: &FlexKvNode,
    clock: &SystemClock,
    name: &str,
    cluster: &twitter::Cluster,
) -> Result<Outcome> {
    let naming = Naming::of_cluster(cluster);
    let room = arguments.size_bytes()?.saturating_mul(arguments.memory) / PART_OF_MEMORY;
    let bytes = (cluster.key_bytes + cluster.value_bytes) as u64;
    let count = arguments.num.min(room / bytes).max(1);
    load(node, &naming, count, &vec![b'v'; cluster.value_bytes])?;
    let keys = placed(arguments, node, &naming, count)?;
    let source = Source::Cluster(Stream::new(cluster, keys.len() as u64));
    let asked = Asked { name, source, naming: &naming, keys: &keys };
    let outcome = measure(arguments, node, clock, asked, cluster.value_bytes)?;
    let delete = |number| node.delete(&naming.key(number)).map(drop);
    (0..count).try_for_each(delete).map_err(WriteError::into_error)?;
    Ok(outcome)
}

/// Requests of a benchmark.
struct Asked<'a> {
    name: &'a str,
    source: Source,
    naming: &'a Naming,
    keys: &'a [u64],
}

fn counted(node: &FlexKvNode) -> BTreeMap<String, u64> {
    node.figures().into_iter().map(|figure| (figure.name, figure.value)).collect()
}

fn measure(
    arguments: &Arguments,
    node: &FlexKvNode,
    clock: &SystemClock,
    asked: Asked<'_>,
    value_bytes: usize,
) -> Result<Outcome> {
    let Asked { name, source, naming, keys } = asked;
    let run = Run {
        node: node.node()?,
        source,
        naming,
        keys,
        inserted: AtomicU64::new(0),
        value: vec![b'w'; value_bytes],
        clock,
        end: AtomicBool::new(false),
    };
    let progress: Vec<Progress> = (0..arguments.clients).map(|_| Progress::default()).collect();
    let watch = Watch { name, expected: 0, progress: &progress, clock, report: None };
    let (ended, before, started_ns) = (AtomicBool::new(false), counted(node), clock.now_ns());
    let all = std::thread::scope(|scope| {
        let clients: Vec<_> = progress
            .iter()
            .enumerate()
            .map(|(nth, progress)| {
                let run = &run;
                let seed = arguments.seed.wrapping_add(nth as u64);
                scope.spawn(move || block_on(run.client(arguments.coroutines, seed, progress)))
            })
            .collect();
        if watch.is_wanted() {
            scope.spawn(|| watch.run(&ended));
        }
        clock.sleep(arguments.time());
        run.end.store(true, Ordering::SeqCst);
        let mut all: Result<Measured> = Ok(Measured::new());
        for client in clients {
            let done = client.join().unwrap_or_else(|_| Err(Error::busy("a client panicked")));
            all = all.and_then(|mut all| {
                all.merge(&done?);
                Ok(all)
            });
        }
        ended.store(true, Ordering::SeqCst);
        all
    })?;
    let seconds = (clock.now_ns() - started_ns) as f64 / 1e9;
    let ops = progress.iter().map(Progress::get).sum::<u64>();
    let mut counted = counted(node);
    for (name, value) in &mut counted {
        *value = value.saturating_sub(before.get(name).copied().unwrap_or(0));
    }
    Ok(Outcome {
        name: name.to_owned(),
        keys: keys.len() as u64,
        ops,
        seconds,
        ops_per_s: ops as f64 / seconds,
        reads: all.reads.quantiles(),
        writes: all.writes.quantiles(),
        found: all.found,
        counted,
    })
}

fn table(results: &[Outcome]) -> String {
    let mut table = Table::new();
    table.load_preset(UTF8_FULL_CONDENSED);
    table.set_header([
        "benchmark",
        "ops/s",
        "read p50",
        "read p99",
        "write p50",
        "write p99",
        "found",
        "from the cache",
    ]);
    let micros = |of: Option<&Quantiles>, which: fn(&Quantiles) -> u64| {
        of.map_or_else(|| "-".to_owned(), |of| format!("{:.2} µs", which(of) as f64 / 1e3))
    };
    for result in results {
        let (reads, writes) = (result.reads.as_ref(), result.writes.as_ref());
        let count = |name: &str| result.counted.get(name).copied().unwrap_or(0);
        let hits = count("pair_hits") + count("address_hits");
        let looked = reads.map_or(0, |reads| reads.count);
        let share = |part: u64| match looked {
            0 => "-".to_owned(),
            looked => format!("{:.1} %", 100.0 * part as f64 / looked as f64),
        };
        table.add_row([
            result.name.clone(),
            format!("{:.0}", result.ops_per_s),
            micros(reads, |of| of.p50_ns),
            micros(reads, |of| of.p99_ns),
            micros(writes, |of| of.p50_ns),
            micros(writes, |of| of.p99_ns),
            share(result.found),
            share(hits),
        ]);
    }
    table.to_string()
}
