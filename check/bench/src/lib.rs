//! `archipelago bench`: db_bench's benchmarks, flags and result line for Archipelago, and
//! `archipelago bench compare`, which runs the same list in RocksDB's db_bench in turn, and
//! `archipelago bench reproduce`, which runs a paper's comparisons, or the whole one with RocksDB;
//! `archipelago bench fabric` measures the fabric's providers, `archipelago bench --engine flex` the store over remote memory;
//! `archipelago sim flex` ([`sim`]) runs that store in virtual time.
//!
//! A library that the `archipelago` program calls. `flags` is the command line; `runner` runs a
//! list on one database; `workloads` has a loop for each benchmark; `tally`, `histogram` and
//! `report` make the result line, `json` the result file, `samples` the timeline; `plot` draws,
//! `compare` runs both sides, `table` all rows of a comparison, `reproduce` the modes of a paper, `keigo`
//! those of another on `tiers`; `model` models many cores. Only `store` and `model` name the database's
//! crate, only `tiers` that of tiers.
//!
//! The harness must not be slower than what it is compared with: values are slices of a buffer
//! made beforehand, keys are written into a buffer that is kept, random numbers come from wyrand,
//! and nobody asks for the time per operation unless a flag needs it.

mod claim;
mod compare;
mod fabric;
mod flags;
mod flex;
mod flexsim;
mod histogram;
mod json;
mod keigo;
mod keys;
mod model;
mod pace;
mod plot;
mod process;
mod progress;
mod report;
mod reproduce;
mod runner;
mod samples;
mod store;
mod table;
mod tally;
mod tiers;
mod twitter;
mod values;
mod workloads;
mod zipf;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::process::ExitCode;

use archipelago_base::clock::{Clock, SystemClock};

use flags::{Flags, Stop};
use json::RunReport;
use runner::Runner;
use store::Result;

/// Runs `archipelago bench` with `args`, everything behind that word. Prints to standard output
/// what db_bench prints there; errors, notes and the progress bar go to standard error. Exit code
/// 0 on success, 1 if a benchmark failed, 2 for wrong usage.
#[must_use]
#[expect(clippy::needless_pass_by_value, reason = "the program hands its arguments over")]
pub fn main(args: Vec<OsString>) -> ExitCode {
    if args.first().is_some_and(|word| word == "compare") {
        return match compare::compare(&args[1..]) {
            Ok(result) => answer(result),
            Err(stop) => refuse(&stop),
        };
    }
    if args.len() >= 2 && args[0] == "reproduce" && args[1] == "rocksdb" {
        return match table::reproduce(&args[2..]) {
            Ok(result) => answer(result),
            Err(stop) => refuse(&stop),
        };
    }
    if args.len() >= 2 && args[0] == "reproduce" && args[1] == "keigo" {
        return match keigo::reproduce(&args[2..]) {
            Ok(result) => answer(result),
            Err(stop) => refuse(&stop),
        };
    }
    if args.first().is_some_and(|word| word == "model") {
        return match model::model(&args[1..]) {
            Ok(result) => answer(result),
            Err(stop) => refuse(&stop),
        };
    }
    if args.first().is_some_and(|word| word == "reproduce") {
        return match reproduce::reproduce(&args[1..]) {
            Ok(result) => answer(result),
            Err(stop) => refuse(&stop),
        };
    }
    if args.first().is_some_and(|word| word == "fabric") {
        return match fabric::main(&args[1..]) {
            Ok(result) => answer(result),
            Err(error) => refuse(&Stop::Clap(error)),
        };
    }
    if flex::is_asked(&args) {
        return match flex::main(&args) {
            Ok(result) => answer(result),
            Err(error) => refuse(&Stop::Clap(error)),
        };
    }
    match flags::read(&args) {
        Ok((flags, ignored)) => {
            note_ignored(&ignored);
            answer(run(flags))
        }
        Err(stop) => refuse(&stop),
    }
}

/// Runs `archipelago sim` with `args`, everything behind that word. Exit codes as of [`main`].
#[must_use]
#[expect(clippy::needless_pass_by_value, reason = "the program hands its arguments over")]
pub fn sim(args: Vec<OsString>) -> ExitCode {
    if args.first().is_none_or(|word| word != "flex") {
        return refuse(&Stop::Usage(
            "`archipelago sim flex [FIGURE…]`: there is nothing else".into(),
        ));
    }
    match flexsim::main(&args[1..]) {
        Ok(result) => answer(result),
        Err(error) => refuse(&Stop::Clap(error)),
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
