//! Common parts of the specs of flushes and compactions: which records may be dropped, and how
//! outputs are written.

use std::path::{Path, PathBuf};

use archipelago_base::random::{self, Rng};
use archipelago_base::{CfId, Error, FileNo, Result};
use serde::{Deserialize, Serialize};

use super::below::Below;
use super::output::GRANDPARENT_TARGETS;
use crate::options::{Compression, LEVELS};
use crate::sst::TableOptions;
use crate::value_ref::ValueFileMeta;

/// Facts that decide which records a job may drop, by the rules of [`crate::compaction::iterator`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retention {
    /// Newest published sequence number. The owner reads it *before* it lists the snapshots.
    pub visible_seq: u64,
    /// Sequence numbers of all live snapshots, in any order.
    pub snapshots: Vec<u64>,
    /// All data of the column family that is older than the inputs and not among them.
    pub below: Below,
    /// Time by which records expire, in Unix milliseconds.
    pub now_ms: u64,
    /// Name of the column family's merge operator, if it has one.
    pub merge_operator: Option<String>,
    /// Name of the column family's compaction filter, if it has one.
    pub compaction_filter: Option<String>,
}

/// File numbers that the owner has reserved for a job: `first`, `first + 1` and so on. Numbers that
/// are not used are lost, which costs nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileNumbers {
    /// The smallest of the numbers.
    pub first: u64,
    /// Number of file numbers.
    pub count: u64,
}

/// A file of the level below the outputs' level. Its size bounds what a later compaction of one
/// output must read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grandparent {
    /// First key past the file.
    pub end: Vec<u8>,
    /// Bytes of the file.
    pub bytes: u64,
}

/// How a job's outputs are written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputSpec {
    /// Name of the column family, which the outputs record.
    pub cf_name: String,
    /// Directory of the outputs.
    pub dir: PathBuf,
    /// Level of the outputs.
    pub level: u8,
    /// File numbers of the outputs. If they run out, [`super::JobContext::more_file_numbers`] is
    /// called. Without that source, outputs end only at `cuts` when the other numbers are used up.
    pub file_numbers: FileNumbers,
    /// Random number of the job. The outputs' unique ids follow from it and their numbers.
    pub unique_seed: u64,
    /// Size in bytes at which an output is closed, before the next user key. So an output may be
    /// larger. It is also larger if `file_numbers` are scarce.
    pub target_file_bytes: u64,
    /// Keys, ascending, that no output may straddle: the boundaries of the bucket map for outputs
    /// in L0 and in the base level.
    pub cuts: Vec<Vec<u8>>,
    /// Files of the level below the outputs' level, ascending; empty if there are none.
    pub grandparents: Vec<Grandparent>,
    /// Data block size before compression, in bytes.
    pub block_bytes: u32,
    /// Compression of the blocks.
    pub compression: Compression,
    /// Bits per key of the Bloom filter; 0 for none.
    pub bloom_bits_per_key: u32,
    /// Time that the outputs record as their creation, in Unix milliseconds.
    pub created_unix_ms: u64,
    /// Bypass the page cache when writing.
    pub direct_io: bool,
    /// Which values the job separates, and in which files separated values lie.
    pub values: ValueSpec,
}

/// The file that holds the values of a number that tables name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CurrentNumber {
    /// Number that references of the inputs name.
    pub named: u64,
    /// Number of the file that holds the values now.
    pub current: u64,
}

/// How a flush or compaction treats values (Terark-DS §2.2).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ValueSpec {
    /// Smallest value, in bytes before compression, that the job writes to a value file. 0 keeps
    /// all values in the tables, and puts values that the inputs reference back into them.
    pub separation_bytes: u64,
    /// Size in bytes at which a value file is closed.
    pub value_file_bytes: u64,
    /// The current number of each number that references of the inputs name, ascending by the named
    /// number. The outputs name the current numbers.
    pub current: Vec<CurrentNumber>,
    /// Metadata of the files of `current`, ascending by number. The owner keeps the files until the
    /// job has ended.
    pub files: Vec<ValueFileMeta>,
    /// Numbers of the invalid files in which a compaction notes the references that it drops.
    /// Without numbers it notes none.
    pub invalid: FileNumbers,
}

impl ValueSpec {
    /// The number of the file that holds the values of `named`; `None` if the spec does not say.
    #[must_use]
    pub fn current(&self, named: u64) -> Option<u64> {
        let at = self.current.binary_search_by_key(&named, |at| at.named).ok()?;
        Some(self.current[at].current)
    }

    /// Metadata of the file `no`; `None` if the spec does not name it.
    #[must_use]
    pub fn file(&self, no: u64) -> Option<&ValueFileMeta> {
        let at = self.files.binary_search_by_key(&no, |file| file.no).ok()?;
        Some(&self.files[at])
    }

    /// Checks that both lists ascend, that every current number has a file, and that the size of
    /// value files is not 0.
    fn validate(&self) -> Result<()> {
        if self.separation_bytes > 0 && self.value_file_bytes == 0 {
            return Err(Error::invalid(
                "job spec: value files have no room: value_file_bytes is 0",
            ));
        }
        let ascend = self.current.windows(2).all(|pair| pair[0].named < pair[1].named)
            && self.files.windows(2).all(|pair| pair[0].no < pair[1].no);
        if !ascend {
            return Err(Error::invalid("job spec: numbers of value files are not ascending"));
        }
        match self.current.iter().find(|at| self.file(at.current).is_none()) {
            None => Ok(()),
            Some(at) => Err(Error::invalid(format!(
                "job spec: value file {} is named but not described",
                at.current
            ))),
        }
    }
}

impl OutputSpec {
    /// Upper estimate of the number of tables of a job that writes `written_bytes` before
    /// compression. It is twice the tables that the bytes fill, one per cut, and one per overlap
    /// with `grandparents` that ends a table. 64 more are for short tables.
    #[must_use]
    pub fn file_numbers_wanted(
        written_bytes: u64,
        target_file_bytes: u64,
        cuts: usize,
        grandparents: &[Grandparent],
    ) -> u64 {
        let target = target_file_bytes.max(1);
        let full = written_bytes / target;
        // A table that ends for its overlap has passed more than this many bytes of files, at
        // least one. No other table counts the same file.
        let overlap = target.saturating_mul(GRANDPARENT_TARGETS);
        let below = grandparents.iter().map(|file| file.bytes).fold(0, u64::saturating_add);
        let overlaps = (below / overlap).min(grandparents.len() as u64);
        let cuts = (cuts as u64).saturating_add(overlaps);
        full.saturating_mul(2).saturating_add(cuts).saturating_add(64)
    }

    /// Checks the conditions that the writer relies on.
    pub(crate) fn validate(&self) -> Result<()> {
        if usize::from(self.level) >= LEVELS {
            return Err(Error::invalid(format!(
                "job spec: level {} does not exist, there are {LEVELS}",
                self.level
            )));
        }
        if !self.cuts.windows(2).all(|pair| pair[0] < pair[1]) {
            return Err(Error::invalid("job spec: cuts are not ascending"));
        }
        if !self.grandparents.windows(2).all(|pair| pair[0].end < pair[1].end) {
            return Err(Error::invalid("job spec: grandparents are not ascending"));
        }
        self.values.validate()
    }

    /// The unique id of output `no`.
    pub(crate) fn unique_id(&self, no: FileNo) -> [u8; 16] {
        let seed = self.unique_seed ^ no.0.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        random::unique_id(&mut Rng::with_seed(seed))
    }

    pub(crate) fn table_options(&self, cf: CfId) -> TableOptions {
        TableOptions {
            block_bytes: self.block_bytes as usize,
            compression: self.compression,
            bloom_bits_per_key: self.bloom_bits_per_key,
            created_unix_ms: self.created_unix_ms,
            cf,
            cf_name: self.cf_name.clone(),
            ..TableOptions::default()
        }
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }
}
