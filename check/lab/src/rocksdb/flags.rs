//! The command line of `archipelago-lab rocksdb`, and the settings that follow from it.
//!
//! [`Settings`] decides which steps run, and with which sizes. It is the head of the journal, so
//! that an interrupted run continues with the same settings.

use std::ffi::OsString;
use std::path::PathBuf;

use archipelago_base::random::entropy_seed;
use clap::Parser;
use serde::{Deserialize, Serialize};

use super::rows;
use archipelago_bench::harness::flags::Stop;

const ABOUT: &str = "Measures Archipelago against RocksDB's db_bench and prints one table with \
                     targets and verdicts.";

const TEACH: &str = "\
Both sides get the same keys, values, memory, cache, jobs and durability. They run in turn and are
measured from outside. The plan with its estimated time and the progress go to standard error, the
table goes to standard output, and every run goes to --json. The default is 10 million keys of 16
bytes, values of 100 bytes, 1 million reads and five runs a side. If the estimate exceeds --minutes,
the slowest rows get fewer runs, but at least three. The machine should do nothing else.

Every result is appended to a journal next to the --json file; --resume continues with it.

Rows: fillseq, fillrandom, overwrite, fillrandom2, readrandom, readmissing, readrandom2,
readmissing2, readcold, seekrandom, seekrandom10, readseq, readreverse, readwhilewriting, fillsync,
throttled (a name that ends with 2 has two threads).

Examples:
  archipelago-lab rocksdb
  archipelago-lab rocksdb --quick
  archipelago-lab rocksdb --rows fillrandom,readcold --runs 3 --num 2000000
  archipelago-lab rocksdb --resume reproduce-rocksdb.jsonl

db_bench is in Debian's package rocksdb-tools.";

/// Flags of the command.
#[derive(Clone, Debug, Parser)]
#[command(name = "archipelago-lab rocksdb", about = ABOUT, after_help = TEACH,
          bin_name = "archipelago-lab rocksdb", rename_all = "snake_case",
          disable_version_flag = true)]
pub(crate) struct TableFlags {
    /// Runs of each side [default: 5; 1 with --quick]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100))]
    pub(crate) runs: Option<u64>,
    /// Keys [default: 10000000; 200000 with --quick]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1000..))]
    pub(crate) num: Option<u64>,
    /// Reads of a read row; a tenth of it from a cold cache [default: 1000000; 50000 with --quick]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(10..))]
    pub(crate) reads: Option<u64>,
    /// Seconds of the row under a rate limit [default: 120; 3 with --quick]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) seconds: Option<u64>,
    /// Synced writes of fillsync [default: 100000; 2000 with --quick]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) syncs: Option<u64>,
    /// Measure only these rows
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub(crate) rows: Vec<String>,
    /// Limit of the estimated time, which gives slow rows fewer runs; 0: no limit
    #[arg(long, value_name = "N", default_value_t = 60)]
    pub(crate) minutes: u64,
    /// Make a small table as a test of the command; its figures mean nothing
    #[arg(long)]
    pub(crate) quick: bool,
    /// Result file; the journal next to it ends in .jsonl
    #[arg(long, value_name = "FILE", default_value = "reproduce-rocksdb.json")]
    pub(crate) json: PathBuf,
    /// Continue with the journal of an interrupted run and its settings
    #[arg(long, value_name = "FILE", conflicts_with_all = ["runs", "num", "reads", "seconds",
          "syncs", "rows", "minutes", "quick", "json", "db", "db_bench", "db_bench_flags",
          "archipelago"])]
    pub(crate) resume: Option<PathBuf>,
    /// Write the page of docs/benchmarks to this file; FILE#PART writes one part of a page
    #[arg(long, value_name = "FILE")]
    pub(crate) page: Option<PathBuf>,
    /// Directory of the databases, which are removed [default: in the temporary directory]
    #[arg(long, value_name = "DIR")]
    pub(crate) db: Option<PathBuf>,
    /// Program of the other side
    #[arg(long, value_name = "PROGRAM", default_value = "/usr/bin/db_bench")]
    pub(crate) db_bench: PathBuf,
    /// More flags for db_bench alone, space-separated
    #[arg(long, value_name = "FLAGS", default_value = "", allow_hyphen_values = true)]
    pub(crate) db_bench_flags: String,
    /// Program of this side; default: archipelago in the folder of archipelago-lab
    #[arg(long, value_name = "PROGRAM")]
    pub(crate) archipelago: Option<PathBuf>,
}

/// Settings of a comparison.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Settings {
    pub(crate) runs: u64,
    pub(crate) num: u64,
    pub(crate) reads: u64,
    /// Length of the row under a rate limit.
    pub(crate) throttled_seconds: u64,
    /// Length of the reads in parallel with a writer, and of the rows that run with them.
    pub(crate) mixed_seconds: u64,
    pub(crate) syncs: u64,
    pub(crate) rows: Vec<String>,
    /// Limit of the estimated time, or 0 for no limit.
    pub(crate) minutes: u64,
    /// Seed from which all other seeds follow, the same on both sides.
    pub(crate) seed: u64,
    pub(crate) db: PathBuf,
    pub(crate) db_bench: PathBuf,
    pub(crate) db_bench_flags: String,
    pub(crate) archipelago: Option<PathBuf>,
}

/// Parses `args`, the words after `rocksdb`.
pub(crate) fn read(args: &[OsString]) -> Result<TableFlags, Stop> {
    let words = std::iter::once("reproduce rocksdb".into()).chain(args.iter().cloned());
    let flags = TableFlags::try_parse_from(words)?;
    match flags.rows.iter().find(|name| !rows::NAMES.contains(&name.as_str())) {
        Some(name) => Err(Stop::Usage(format!(
            "--rows: there is no row '{name}'; there are: {}",
            rows::NAMES.join(", ")
        ))),
        None => Ok(flags),
    }
}

impl TableFlags {
    /// The settings of a new run.
    pub(crate) fn settings(&self) -> Settings {
        let usual = |given: Option<u64>, whole: u64, quick: u64| {
            given.unwrap_or(if self.quick { quick } else { whole })
        };
        // The seed leaves room for the numbers that are added per run and step, within db_bench's
        // signed 64 bits.
        let seed = 1 + (entropy_seed() >> 32);
        let mut rows = self.rows.clone();
        if rows.is_empty() {
            rows = rows::NAMES.iter().map(|&name| name.to_owned()).collect();
        }
        Settings {
            runs: usual(self.runs, 5, 1),
            num: usual(self.num, 10_000_000, 200_000),
            reads: usual(self.reads, 1_000_000, 50_000),
            throttled_seconds: usual(self.seconds, 120, 3),
            mixed_seconds: usual(None, 10, 2),
            syncs: usual(self.syncs, 100_000, 2000),
            rows,
            minutes: self.minutes,
            seed,
            db: self.db.clone().unwrap_or_else(|| {
                std::env::temp_dir().join(format!("archipelago-rocksdb-{seed:08x}"))
            }),
            db_bench: self.db_bench.clone(),
            db_bench_flags: self.db_bench_flags.clone(),
            archipelago: self.archipelago.clone(),
        }
    }
}
