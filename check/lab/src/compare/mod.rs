//! `archipelago-lab compare`: the same benchmarks here and in RocksDB's db_bench.
//!
//! `run` starts a side and observes it, `parse` reads its output, and `table` makes the report.
//!
//! Invariants:
//! 1. Sides alternate, so that other work of the machine affects both. Each run has a process and a
//!    fresh directory of its own, which is removed after the run.
//! 2. Every flag goes to both sides with its value, given or default; db_bench gets the flags that
//!    it knows. So both sides promise the same: each write is logged, and with `--sync` it is
//!    synced.
//! 3. `waitforcompaction` ends each run, so that no debt is left when sizes and bytes are read.

pub(crate) mod parse;
pub(crate) mod run;
pub(crate) mod table;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicBool;

use archipelago_base::random::entropy_seed;
use clap::CommandFactory;

use archipelago_bench::harness::flags::{self, CompareFlags, Flags, OURS_ONLY, Spelled, Stop};
use archipelago_bench::harness::json;
use archipelago_bench::harness::report::say;
use archipelago_bench::harness::store::{CfOptions, Error, FileSystem, LocalFs, Result};
use run::{EntrySize, Onlooker, Program, Side};
use table::Comparison;

/// Flags that this command sets for a side, whatever the user gives.
const SET_HERE: &[&str] = &[
    "benchmarks",
    "db",
    "json",
    "runs",
    "archipelago",
    "db_bench",
    "db_bench_flags",
    "markdown",
    "bloom_bits",
    "use_existing_db",
    "report_interval_seconds",
    "report_file",
    "seed",
    "help",
];

/// Benchmark that ends each run.
const SETTLE: &str = "waitforcompaction";

/// Runs the comparison with `args`, the words after `compare`.
pub(crate) fn compare(args: &[OsString]) -> std::result::Result<Result<()>, Stop> {
    let (flags, spelled) = flags::read_compare(args)?;
    Ok(check(&flags).and_then(|()| run_both(&flags, &spelled)))
}

/// Refuses benchmarks that cannot be compared, before any of them runs.
fn check(flags: &CompareFlags) -> Result<()> {
    let ycsb = flags.bench.benchmarks.iter().find(|name| name.starts_with("ycsb"));
    if let Some(name) = ycsb {
        return Err(Error::invalid(format!(
            "db_bench has no {name}: mixgraph is the mixed workload that both have"
        )));
    }
    let own = ["mixed8k", "fixed16k", "pareto1k"];
    let is_own = |name: &&String| own.iter().any(|workload| name.starts_with(workload));
    if let Some(name) = flags.bench.benchmarks.iter().find(is_own) {
        return Err(Error::invalid(format!(
            "db_bench has no {name}: overwrite with --value_size, or with \
             --value_size_distribution_type=uniform, is what both have"
        )));
    }
    if flags.bench.storage.use_existing_db || flags.bench.output.report_interval_seconds > 0 {
        return Err(Error::invalid(
            "--use_existing_db and --report_interval_seconds do not go with compare: each run has \
             a fresh database, and db_bench writes a report file of its own",
        ));
    }
    for name in flags.bench.benchmarks.iter().filter(|name| !name.is_empty()) {
        if archipelago_bench::writes(name).is_none() {
            return Err(Error::invalid(format!("unknown benchmark '{name}'")));
        }
    }
    db_bench_version(&flags.db_bench).map(drop)
}

/// Text of `db_bench --version`. An error says how to install the program.
pub(crate) fn db_bench_version(program: &Path) -> Result<String> {
    let asked = Command::new(program).arg("--version").stdin(Stdio::null()).output();
    let output = asked.map_err(|error| {
        Error::invalid(format!(
            "{} cannot be run ({error}): db_bench is in Debian's package rocksdb-tools (apt install \
             rocksdb-tools); --db_bench=PROGRAM names another one",
            program.display()
        ))
    })?;
    let said = String::from_utf8_lossy(&output.stdout);
    Ok(said.lines().next().unwrap_or_default().trim().to_owned())
}

fn run_both(flags: &CompareFlags, spelled: &Spelled) -> Result<()> {
    let base = directory(flags);
    let fs = LocalFs::new();
    fs.create_dir_all(&base)?;
    let shared = shared_args(&spelled.args);
    if !spelled.ignored.is_empty() {
        eprintln!(
            "note: left out on both sides: --{} (--db_bench_flags gives flags to db_bench alone)",
            spelled.ignored.join(", --")
        );
    }
    let mut comparison = Comparison::new(flags);
    let stop = AtomicBool::new(false);
    let onlooker = Onlooker { said: &|line| eprintln!("  {line}"), stop: &stop };
    let result: Result<()> = (0..flags.runs).try_for_each(|round| {
        for side in [Side::Archipelago, Side::RocksDb] {
            eprintln!("run {} of {}: {}", round + 1, flags.runs, side.name());
            let dir = base.join(format!("{}-{}", side.word(), round + 1));
            let program = program(side, flags, &shared, &dir)?;
            let load = &flags.bench.load;
            let (key_bytes, value_bytes) = (load.key_size as u64, load.value_size as u64);
            let size = EntrySize { key_bytes, value_bytes };
            let run = run::run(side, &program, &dir, size, onlooker);
            let removed = if fs.exists(&dir)? { fs.remove_dir_all(&dir) } else { Ok(()) };
            comparison.add(run?);
            removed?;
        }
        Ok(())
    });
    // A directory that is not empty may be the user's, so it stays.
    if fs.list(&base).is_ok_and(|entries| entries.is_empty()) {
        fs.remove_dir_all(&base)?;
    }
    result?;
    say(&comparison.text(flags.markdown));
    match &flags.bench.output.json {
        Some(path) => json::write_file(path, &comparison.summary()),
        None => Ok(()),
    }
}

/// Directory in which the sides' directories are made.
fn directory(flags: &CompareFlags) -> PathBuf {
    flags.bench.storage.db.clone().unwrap_or_else(|| {
        std::env::temp_dir().join(format!("archipelago-compare-{:08x}", entropy_seed() as u32))
    })
}

/// Every flag with its value, given or default, as `--name=value`.
fn shared_args(given: &[String]) -> Vec<(String, String)> {
    let command = CompareFlags::command();
    let args = std::iter::once("compare".to_owned()).chain(given.iter().cloned());
    // The flags were parsed before, and an error was reported then.
    let Ok(matches) = command.clone().try_get_matches_from(args) else { return Vec::new() };
    let long = |arg: &clap::Arg| Some((arg.get_id().clone(), arg.get_long()?.to_owned()));
    command
        .get_arguments()
        .filter_map(long)
        .filter(|(_, name)| !SET_HERE.contains(&name.as_str()))
        .filter_map(|(id, name)| {
            let value = matches.get_raw(id.as_str())?.next()?.to_str()?.to_owned();
            Some((name, value))
        })
        .collect()
}

/// The flag that compresses blob files as tables, which Archipelago does, unless it was given.
fn compression_of_blobs(shared: &[(String, String)]) -> Option<String> {
    let value = |name: &str| {
        shared.iter().find(|(given, _)| given == name).map(|(_, value)| value.as_str())
    };
    let is_missing =
        value("enable_blob_files") == Some("true") && value("blob_compression_type").is_none();
    let compression = value("compression_type").filter(|_| is_missing)?;
    Some(format!("--blob_compression_type={compression}"))
}

/// The list of benchmarks, with [`SETTLE`] at its end.
fn benchmarks(flags: &Flags) -> String {
    let mut names: Vec<&str> = flags.benchmarks.iter().map(String::as_str).collect();
    names.retain(|name| !name.is_empty());
    if names.last() != Some(&SETTLE) {
        names.push(SETTLE);
    }
    names.join(",")
}

fn program(
    side: Side,
    flags: &CompareFlags,
    shared: &[(String, String)],
    dir: &Path,
) -> Result<Program> {
    let bloom_bits = match u32::try_from(flags.bench.storage.bloom_bits) {
        Ok(bits) => bits,
        Err(_) => CfOptions::default().bloom_bits_per_key,
    };
    let seed = if flags.bench.load.seed == 0 { entropy_seed() >> 1 } else { flags.bench.load.seed };
    let mut args = vec![
        format!("--benchmarks={}", benchmarks(&flags.bench)),
        format!("--db={}", dir.display()),
        format!("--bloom_bits={bloom_bits}"),
        format!("--seed={seed}"),
    ];
    let has = |name: &str| side == Side::Archipelago || !OURS_ONLY.contains(&name);
    args.extend(
        shared
            .iter()
            .filter(|(name, _)| has(name))
            .map(|(name, value)| format!("--{name}={value}")),
    );
    let path = match side {
        Side::RocksDb => {
            args.extend(compression_of_blobs(shared));
            args.extend(flags.db_bench_flags.split_whitespace().map(str::to_owned));
            flags.db_bench.clone()
        }
        Side::Archipelago => {
            args.insert(0, "bench".to_owned());
            crate::program::named_or_beside(flags.archipelago.as_ref())?
        }
    };
    Ok(Program { path, args })
}

#[cfg(test)]
mod tests;
