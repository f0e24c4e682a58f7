//! `archipelago bench`: db_bench's benchmarks, flags and result line for Archipelago. `archipelago
//! bench fabric` measures the fabric's providers, `archipelago bench --engine flexkv` the store
//! over remote memory. Comparisons, reproductions of papers and models are commands of the
//! laboratory (`archipelago-lab`).
//!
//! A library that the `archipelago` program calls. [`harness`] holds what the laboratory uses as
//! well: flags, the database behind them, result lines, result files, timelines. `runner` runs a
//! list of benchmarks on one database, and `workloads` has a loop for each benchmark. Only
//! `harness::store` names the database's crate, and only `harness::tiers` that of tiers.
//!
//! The harness must not be slower than db_bench: values are slices of a buffer made beforehand,
//! keys are written into a buffer that is kept, random numbers come from wyrand, and a loop reads
//! the clock for each operation only if a flag needs it.

mod fabric;
mod fabric_measure;
mod flexkv;
pub mod harness;
mod keys;
mod pace;
mod runner;
pub mod skew;
mod values;
mod workloads;
mod zipf;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::process::ExitCode;

use archipelago_base::clock::{Clock, SystemClock};

use harness::flags::{self, Flags, Stop};
use harness::json::{self, RunReport};
use harness::store::{Result, family_options};
use runner::Runner;

pub use fabric::simulated_table;

/// Whether `args`, everything after the word `bench`, ask for the benchmark of the store over
/// remote memory.
#[must_use]
pub fn measures_flexkv(args: &[OsString]) -> bool {
    flexkv::is_asked(args)
}

/// Whether the benchmark of this name writes; `None` if there is no such benchmark.
#[must_use]
pub fn writes(benchmark: &str) -> Option<bool> {
    workloads::find(benchmark).map(|found| found.writes)
}

/// Bytes of the value of record `number` in a phase of a workload of Terark-DS, such as
/// `mixed8kload`. `None` if `benchmark` is another one.
#[must_use]
pub fn record_value_bytes(benchmark: &str, number: u64) -> Option<usize> {
    workloads::terark::value_bytes(benchmark, number)
}

/// Runs `archipelago bench` with `args`, the words after `bench`. Standard output gets the same
/// lines as that of db_bench. Errors, notes and the progress bar go to standard error. Exit code 0
/// on success, 1 if a benchmark failed, 2 for wrong usage.
#[must_use]
#[expect(clippy::needless_pass_by_value, reason = "the program hands its arguments over")]
pub fn main(args: Vec<OsString>) -> ExitCode {
    let first = args.first().and_then(|word| word.to_str());
    if let Some(word @ ("compare" | "reproduce" | "model")) = first {
        return refuse(&Stop::Usage(format!(
            "`archipelago bench {word}` is a command of the laboratory: run `archipelago-lab --help`"
        )));
    }
    if first == Some("fabric") {
        return exit_code(fabric::main(&args[1..]).map_err(Stop::Clap));
    }
    if flexkv::is_asked(&args) {
        return exit_code(flexkv::main(&args).map_err(Stop::Clap));
    }
    exit_code(flags::read(&args).map(|(flags, ignored)| {
        note_ignored(&ignored);
        run(flags)
    }))
}

/// Prints how a command ended, and makes an exit code of it: 0, 1 for an error of the run, 2 for
/// wrong usage.
#[must_use]
pub fn exit_code(outcome: std::result::Result<Result<()>, Stop>) -> ExitCode {
    match outcome {
        Ok(result) => answer(result),
        Err(stop) => refuse(&stop),
    }
}

fn run(flags: Flags) -> Result<()> {
    let written_to = flags.output.json.clone();
    let report = RunReport {
        program: "archipelago bench",
        version: env!("CARGO_PKG_VERSION"),
        unix_ms: SystemClock::new().unix_ms(),
        flags: described(&flags),
        results: Runner::new(flags)?.run()?,
    };
    match written_to {
        Some(path) => json::write_file(&path, &report),
        None => Ok(()),
    }
}

/// The settings that a reader of the result file needs to repeat it.
fn described(flags: &Flags) -> BTreeMap<String, String> {
    let (load, storage) = (&flags.load, &flags.storage);
    let family = family_options(flags);
    [
        ("num", load.num.to_string()),
        ("threads", load.threads.to_string()),
        ("duration", load.duration.to_string()),
        ("key_size", load.key_size.to_string()),
        ("value_size", load.value_size.to_string()),
        ("batch_size", load.batch_size.to_string()),
        ("seed", load.seed.to_string()),
        ("sync", load.sync.to_string()),
        ("disable_wal", load.disable_wal.to_string()),
        ("compression_type", format!("{:?}", storage.compression_type).to_lowercase()),
        ("write_buffer_size", storage.write_buffer_size.to_string()),
        ("max_write_buffer_number", storage.max_write_buffer_number.to_string()),
        ("cache_size", storage.cache_size.to_string()),
        ("bloom_bits", storage.bloom_bits.to_string()),
        ("max_background_jobs", storage.max_background_jobs.to_string()),
        ("value_separation_bytes", family.value_separation_bytes.to_string()),
        ("value_file_bytes", family.value_file_bytes.to_string()),
        ("space_amplification_max", family.space_amplification_max.to_string()),
        ("buckets", storage.buckets.to_string()),
        ("bucket_boundaries", format!("{:?}", storage.bucket_boundaries).to_lowercase()),
        ("subcompactions", storage.subcompactions.to_string()),
        (
            "device",
            storage.device.as_ref().map_or_else(String::new, |file| file.display().to_string()),
        ),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), value))
    .collect()
}

fn note_ignored(ignored: &[String]) {
    if !ignored.is_empty() {
        eprintln!("note: without effect on Archipelago: --{}", ignored.join(", --"));
    }
}

fn answer(result: Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn refuse(stop: &Stop) -> ExitCode {
    match stop {
        Stop::Clap(error) => {
            let _ = error.print();
            ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
        }
        Stop::Usage(text) => {
            eprintln!("error: {text}");
            ExitCode::from(2)
        }
    }
}
