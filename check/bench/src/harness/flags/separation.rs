//! Flags of separated values: the own names, and db_bench's names for the same.
//!
//! db_bench switches its blob files on with one flag and gives the threshold with another. The
//! functions of [`Separation`] turn both spellings into the settings of a column family. A flag of
//! BlobDB without a counterpart here is refused with a reason ([`peer_only_reason`]); the command
//! `compare` hands such a flag to db_bench alone.

use clap::Args;

use super::groups::{CompressionType, compression, truth};
use crate::harness::store::VALUE_SEPARATION_BYTES;

/// Flags of separated values.
#[derive(Clone, Debug, Args)]
#[command(rename_all = "snake_case", next_help_heading = "Separated values")]
pub(crate) struct Separation {
    /// Bytes of the smallest value that is stored in a value file, 512 without a number; 0: none
    /// (not in db_bench)
    #[arg(long, value_name = "N", num_args = 0..=1, require_equals = true)]
    pub(crate) value_separation_bytes: Option<Option<u64>>,
    /// Bytes at which a value file is closed (not in db_bench)
    #[arg(long, value_name = "N", conflicts_with = "blob_file_size",
          value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) value_file_bytes: Option<u64>,
    /// Bound of the space, as a multiple of the live bytes; 0: no bound (not in db_bench)
    #[arg(long, value_name = "F")]
    pub(crate) space_amplification_max: Option<f64>,
    /// Let iterators read separated values ahead, several at a time (not in db_bench)
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true",
          default_value = "true", value_parser = truth, action = clap::ArgAction::Set)]
    pub(crate) value_prefetch: bool,
    /// Separate values of --min_blob_size bytes and more
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true",
          default_value = "false", value_parser = truth, action = clap::ArgAction::Set)]
    pub(crate) enable_blob_files: bool,
    /// With --enable_blob_files: bytes of the smallest value that is separated
    #[arg(long, default_value_t = 0)]
    pub(crate) min_blob_size: u64,
    /// The same as --value_file_bytes, by db_bench's name
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) blob_file_size: Option<u64>,
    /// Compression of separated values, which must be that of --compression_type
    #[arg(long, value_name = "NAME", ignore_case = true, value_parser = compression)]
    pub(crate) blob_compression_type: Option<CompressionType>,
    /// With --enable_blob_files: collect garbage, within --space_amplification_max; there is no
    /// bound without it
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true",
          default_value = "false", value_parser = truth, action = clap::ArgAction::Set)]
    pub(crate) enable_blob_garbage_collection: bool,
}

impl Separation {
    /// Checks what neither clap nor the database checks. The error names the flags and a remedy.
    pub(super) fn check(&self, blocks: CompressionType) -> Result<(), String> {
        if self.enable_blob_files && self.value_separation_bytes.is_some() {
            return Err("--value_separation_bytes and --enable_blob_files are two names for one \
                        thing: leave one out"
                .to_owned());
        }
        if self.blob_compression_type.is_some_and(|values| values != blocks) {
            return Err("--blob_compression_type must be the same as --compression_type: \
                        Archipelago compresses separated values as it compresses blocks"
                .to_owned());
        }
        let is_bounded = self.space_amplification_max.is_some_and(|bound| bound != 0.0);
        if is_bounded && self.enable_blob_files && !self.enable_blob_garbage_collection {
            return Err("--space_amplification_max with --enable_blob_files needs \
                        --enable_blob_garbage_collection"
                .to_owned());
        }
        Ok(())
    }

    /// Bytes of the smallest value that is separated, or `None` for the database's default.
    pub(crate) fn threshold_bytes(&self) -> Option<u64> {
        match self.enable_blob_files {
            // A threshold of 0 would turn separation off; no value has less than one byte to store.
            true => Some(self.min_blob_size.max(1)),
            false => self.value_separation_bytes.map(|n| n.unwrap_or(VALUE_SEPARATION_BYTES)),
        }
    }

    /// Bytes at which a value file is closed, or `None` for the database's default.
    pub(crate) fn file_bytes(&self) -> Option<u64> {
        self.value_file_bytes.or(self.blob_file_size)
    }

    /// Bound of the space, or `None` for the database's default.
    pub(crate) fn space_bound(&self) -> Option<f64> {
        match self.enable_blob_files && !self.enable_blob_garbage_collection {
            true => Some(0.0),
            false => self.space_amplification_max,
        }
    }
}

/// Flags of db_bench's blob files that have no counterpart here, with the reason.
const PEER_ONLY: [(&str, &str); 10] = [
    ("blob_garbage_collection_age_cutoff", BY_GARBAGE),
    ("blob_garbage_collection_force_threshold", BY_GARBAGE),
    (
        "blob_file_starting_level",
        "Archipelago separates values when it flushes them, whatever the level",
    ),
    (
        "blob_compaction_readahead_size",
        "garbage collection chooses its read-ahead by the valid records of a file",
    ),
    ("blob_cache_size", ONE_CACHE),
    ("blob_cache_numshardbits", ONE_CACHE),
    ("use_blob_cache", ONE_CACHE),
    ("use_shared_block_and_blob_cache", ONE_CACHE),
    ("prepopulate_blob_cache", ONE_CACHE),
    ("charge_blob_cache", ONE_CACHE),
];

const BY_GARBAGE: &str = "Archipelago collects the value files with the most garbage, whatever \
                          their age, as --space_amplification_max asks";
const ONE_CACHE: &str = "separated values are in the block cache (--cache_size)";

/// Why the flag `name` of db_bench has no counterpart here, if it is a flag of its blob files.
pub(super) fn peer_only_reason(name: &str) -> Option<&'static str> {
    let of = |name: &str| PEER_ONLY.iter().find(|(flag, _)| *flag == name).map(|found| found.1);
    of(name).or_else(|| of(name.strip_prefix("no")?))
}
