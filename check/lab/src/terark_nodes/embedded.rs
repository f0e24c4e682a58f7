//! A database in a directory, without storage nodes: rates, instructions and files of one program.
//!
//! The rows compare this program with one of an earlier commit. So the words are those that both
//! know, and of the result file only names, operations and seconds are read.
//!
//! Failure: an error of a process, or a valgrind that is missing.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use archipelago_bench::harness::store::{FileSystem as _, LocalFs, Result};
use serde::{Deserialize, Serialize};

use crate::counted::{COUNTED, Counting};
use crate::program::run_to_end;
use crate::results;

/// Bytes of a record with the default lengths of key and value.
const RECORD_BYTES: u64 = 16 + 100;
/// Records of the load whose files are compared. They fit into one memtable, so that one flush
/// makes all files.
const FILE_RECORDS: u64 = 20_000;
/// Records for each read or scan whose rate is measured.
const RECORDS_PER_READ: u64 = 4;

/// Figures of one program.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct EmbeddedFigures {
    /// Operations per second, by benchmark.
    pub(super) rates: BTreeMap<String, f64>,
    /// Instructions per operation, by benchmark. Empty after the first round, because they do not
    /// differ between rounds.
    pub(super) instructions: BTreeMap<String, f64>,
    /// Kinds and lengths of the files after a load, sorted. Empty after the first round.
    pub(super) files: Vec<String>,
}

/// Parameters of a measurement.
#[derive(Clone, Copy, Debug)]
pub(super) struct Embedded<'a> {
    pub(super) program: &'a Path,
    /// Directory of the databases.
    pub(super) dir: &'a Path,
    pub(super) data_bytes: u64,
    pub(super) seed: u64,
    /// Whether instructions and files are measured as well.
    pub(super) is_first: bool,
}

/// The part of a result file that programs of all commits have.
#[derive(Debug, Deserialize)]
struct Rates {
    results: Vec<Rate>,
}

#[derive(Debug, Deserialize)]
struct Rate {
    name: String,
    ops: u64,
    seconds: f64,
}

impl Embedded<'_> {
    pub(super) fn measure(&self) -> Result<EmbeddedFigures> {
        let json = self.dir.join("results.json");
        let mut words = self.rate_words();
        words.push(format!("--json={}", json.display()));
        run_to_end(self.program, &words)?;
        let found: Rates = results::read(&json)?;
        let rates = found.results.into_iter().filter(|found| found.seconds > 0.0);
        let rates = rates.map(|found| (found.name, found.ops as f64 / found.seconds)).collect();
        let (mut instructions, mut files) = (BTreeMap::new(), Vec::new());
        if self.is_first {
            let Self { program, dir, seed, .. } = *self;
            instructions = Counting { program, dir, seed, more: &[] }.per_operation()?;
            run_to_end(program, &self.file_words())?;
            files = files_in(&self.file_dir())?;
        }
        Ok(EmbeddedFigures { rates, instructions, files })
    }

    /// Words of a load, of reads and of scans.
    fn rate_words(&self) -> Vec<String> {
        let num = (self.data_bytes / RECORD_BYTES).max(1);
        let [fill, read, scan] = COUNTED;
        vec![
            format!("--benchmarks={fill},flush,waitforcompaction,{read},{scan}"),
            format!("--db={}", self.dir.join("rates").display()),
            format!("--num={num}"),
            format!("--reads={}", num.div_ceil(RECORDS_PER_READ)),
            format!("--seed={}", self.seed),
            "--seek_nexts=10".to_owned(),
            "--compression_type=none".to_owned(),
        ]
    }

    fn file_dir(&self) -> PathBuf {
        self.dir.join("files")
    }

    /// Words of a load by one thread whose files follow from the seed.
    fn file_words(&self) -> Vec<String> {
        vec![
            "--benchmarks=fillrandom,flush".to_owned(),
            format!("--db={}", self.file_dir().display()),
            format!("--num={FILE_RECORDS}"),
            format!("--seed={}", self.seed),
            "--compression_type=none".to_owned(),
        ]
    }
}

/// Kinds of the files in `dir`, and the lengths of tables and value files, sorted.
fn files_in(dir: &Path) -> Result<Vec<String>> {
    let entries = LocalFs::new().list(dir)?;
    let mut files: Vec<String> =
        entries.iter().map(|entry| description(&entry.name, entry.len)).collect();
    files.sort_unstable();
    Ok(files)
}

/// Kind of a file, which is its name without numbers. The number depends on the order of background
/// work, and the lengths of logs and manifests on their preparation in advance.
fn description(name: &str, bytes: u64) -> String {
    let kind: String = name.chars().filter(|letter| !letter.is_ascii_digit()).collect();
    match kind.ends_with("sst") {
        true => format!("{kind}, {bytes} bytes"),
        false => kind,
    }
}

/// Number of files that one of two sorted lists has and the other one has not.
pub(super) fn differing(ours: &[String], theirs: &[String]) -> u64 {
    let mut counts: BTreeMap<&str, i64> = BTreeMap::new();
    for (files, sign) in [(ours, 1), (theirs, -1)] {
        for file in files {
            *counts.entry(file).or_default() += sign;
        }
    }
    counts.values().map(|count| count.unsigned_abs()).sum()
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;

    #[test]
    fn files_differ_by_kind_and_by_length_of_tables() {
        assert_eq!(description("000012.sst", 345), ".sst, 345 bytes");
        assert_eq!(description("000012.vsst", 9), ".vsst, 9 bytes");
        assert_eq!(description("000013.log", 345), ".log");
        let list = |files: &[(&str, u64)]| -> Vec<String> {
            files.iter().map(|file| description(file.0, file.1)).collect()
        };
        let before = list(&[("000001.sst", 10), ("000002.log", 7), ("CURRENT", 1)]);
        let same = list(&[("000009.sst", 10), ("000003.log", 8), ("CURRENT", 1)]);
        assert_eq!(differing(&same, &before), 0);
        let longer = list(&[("000001.sst", 11), ("000002.log", 7), ("CURRENT", 1)]);
        assert_eq!(differing(&longer, &before), 2, "one length went, and another one came");
        let more =
            list(&[("000001.sst", 10), ("000002.log", 7), ("CURRENT", 1), ("000003.log", 7)]);
        assert_eq!(differing(&more, &before), 1);
    }

    #[test]
    fn words_are_known_to_the_benchmark() {
        let dir = Path::new("/tmp/x");
        let program = Path::new("/tmp/archipelago");
        let embedded = Embedded { program, dir, data_bytes: 116_000, seed: 3, is_first: true };
        assert!(embedded.rate_words().contains(&"--num=1000".to_owned()));
        assert!(embedded.rate_words().contains(&"--reads=250".to_owned()));
        for words in [embedded.rate_words(), embedded.file_words()] {
            let given: Vec<OsString> = words.iter().map(OsString::from).collect();
            let (_, ignored) = archipelago_bench::harness::flags::read(&given)
                .unwrap_or_else(|stop| panic!("{words:?}: {stop:?}"));
            assert_eq!(ignored, Vec::<String>::new());
        }
    }
}
