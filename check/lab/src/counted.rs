//! Instructions per operation of a program on a local database, which valgrind counts.
//!
//! Each figure is the difference of two runs with different numbers of operations, so that the
//! opening and the closing of the database do not count.
//!
//! Failure: an error of a process, or a valgrind that is missing.
//! Cost: seven processes, of which six run under valgrind.

use std::collections::BTreeMap;
use std::path::Path;

use archipelago_bench::harness::store::Result;

use crate::program::{instructions, run_to_end};

/// Operations of the two runs of a benchmark.
const OPS: [u64; 2] = [10_000, 30_000];
/// The benchmarks that are counted.
pub(crate) const COUNTED: [&str; 3] = ["fillrandom", "readrandom", "seekrandom"];

/// Parameters of a count.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counting<'a> {
    /// The program, which has the command `bench`.
    pub(crate) program: &'a Path,
    /// Directory of the databases `db` and `counted`, which must not exist yet.
    pub(crate) dir: &'a Path,
    pub(crate) seed: u64,
    /// Further words of each process.
    pub(crate) more: &'a [&'a str],
}

impl Counting<'_> {
    /// Instructions per operation of each benchmark of [`COUNTED`].
    pub(crate) fn per_operation(&self) -> Result<BTreeMap<String, f64>> {
        run_to_end(self.program, &self.load_words())?;
        let mut found = BTreeMap::new();
        for benchmark in COUNTED {
            let mut counts = [0; 2];
            for (ops, count) in OPS.into_iter().zip(&mut counts) {
                let words = self.words(benchmark, ops);
                *count = instructions(self.program, &words, &self.dir.join("callgrind.out"))?;
            }
            let more = counts[1].saturating_sub(counts[0]) as f64;
            found.insert(benchmark.to_owned(), more / (OPS[1] - OPS[0]) as f64);
        }
        Ok(found)
    }

    /// Words of the process that loads the database of the reads.
    fn load_words(&self) -> Vec<String> {
        self.words_in("fillrandom", OPS[0], "db")
    }

    /// Words of a process that does `ops` operations. Reads find the database of the load, and
    /// writes have one of their own.
    fn words(&self, benchmark: &str, ops: u64) -> Vec<String> {
        let dir = if benchmark == "fillrandom" { "counted" } else { "db" };
        self.words_in(benchmark, ops, dir)
    }

    fn words_in(&self, benchmark: &str, ops: u64, dir: &str) -> Vec<String> {
        let is_fill = benchmark == "fillrandom";
        let mut words = vec![
            format!("--benchmarks={benchmark}"),
            format!("--db={}", self.dir.join(dir).display()),
            format!("--num={}", if is_fill { ops } else { OPS[0] }),
            format!("--reads={ops}"),
            format!("--use_existing_db={}", u64::from(!is_fill)),
            format!("--seed={}", self.seed),
            "--seek_nexts=10".to_owned(),
            "--compression_type=none".to_owned(),
        ];
        words.extend(self.more.iter().map(|&word| word.to_owned()));
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counted_reads_find_the_database_of_the_load() {
        let more = ["--value_separation_bytes=0"];
        let counting =
            Counting { program: Path::new("/a"), dir: Path::new("/d"), seed: 7, more: &more };
        let db = |words: &[String]| {
            let found = words.iter().find(|word| word.starts_with("--db="));
            found.cloned().expect("a database")
        };
        let load = counting.load_words();
        let (read, fill) = (counting.words("readrandom", 5), counting.words("fillrandom", 5));
        assert_eq!((db(&load), db(&read)), ("--db=/d/db".to_owned(), "--db=/d/db".to_owned()));
        assert_eq!(db(&fill), "--db=/d/counted");
        let has = |words: &[String], word: &str| words.iter().any(|one| one == word);
        assert!(has(&read, "--use_existing_db=1") && has(&read, "--num=10000"), "{read:?}");
        assert!(has(&fill, "--use_existing_db=0") && has(&fill, "--num=5"), "{fill:?}");
        assert!(has(&read, "--reads=5") && has(&read, more[0]) && has(&read, "--seed=7"));
    }
}
