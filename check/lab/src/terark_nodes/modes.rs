//! The workloads and the modes that are compared. The functions are pure.

use serde::{Deserialize, Serialize};

use super::bounds::Redundancy;
use super::flags::NodesFlags;
use crate::terark_engine::bounds;

pub(super) const KEY_BYTES: u64 = 24;
pub(super) const SEPARATION_BYTES: u64 = 512;
/// Length of the values of YCSB and of the group `loopback`.
pub(super) const VALUE_BYTES: u64 = 16 << 10;
/// Largest number of records whose lengths are read for the share in the levels.
const SHARE_RECORDS_MAX: u64 = 100_000;

/// A workload of the paper (§5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
#[value(rename_all = "lower")]
pub(super) enum Workload {
    Fixed16k,
    Mixed8k,
    Pareto1k,
}

impl Workload {
    pub(super) const ALL: [Self; 3] = [Self::Fixed16k, Self::Mixed8k, Self::Pareto1k];

    /// Name, which its benchmarks begin with.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Fixed16k => "fixed16k",
            Self::Mixed8k => "mixed8k",
            Self::Pareto1k => "pareto1k",
        }
    }

    /// The element for this workload, in the order Fixed-16K, Mixed-8K, Pareto-1K.
    pub(super) fn pick<T>(self, [fixed, mixed, pareto]: [T; 3]) -> T {
        match self {
            Self::Fixed16k => fixed,
            Self::Mixed8k => mixed,
            Self::Pareto1k => pareto,
        }
    }

    /// Mean bytes of a value.
    fn value_bytes(self) -> u64 {
        self.pick([VALUE_BYTES, 8345, 1024])
    }

    /// Number of records.
    pub(super) fn records(self, flags: &NodesFlags) -> u64 {
        (flags.data_bytes() / (KEY_BYTES + self.value_bytes())).max(1)
    }

    /// Lengths of the values of the first records.
    fn lengths(self, records: u64) -> impl Iterator<Item = u64> {
        let benchmark = format!("{}load", self.name());
        let bytes = move |number| archipelago_bench::record_value_bytes(&benchmark, number);
        (0..records).map(move |number| bytes(number).unwrap_or(0) as u64)
    }

    /// Bytes of keys and values that are live after the load and during updates.
    pub(super) fn live_bytes(self, flags: &NodesFlags) -> u64 {
        let records = self.records(flags);
        records * KEY_BYTES + self.lengths(records).sum::<u64>()
    }

    /// Share of the bytes that lies in the levels with separation.
    pub(super) fn share_in_levels(self, flags: &NodesFlags) -> f64 {
        let records = self.records(flags).min(SHARE_RECORDS_MAX);
        bounds::share_in_levels(KEY_BYTES, self.lengths(records), SEPARATION_BYTES)
    }
}

/// Way in which a run stores bytes. Modes without `local` in their name lie on storage nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub(super) enum Mode {
    InlineR3,
    InlineEc,
    /// Each read takes as many bytes as a row of an erasure-coded file has, as with HDFS.
    InlineEcRows,
    SeparatedR3,
    SeparatedEc,
    /// Separated, with the redundancy of each class, and a serial log.
    Dr,
    /// The same with adaptive log writing. Network-efficient garbage collection has no switch.
    AllOn,
    /// The same with a program whose garbage collection looks up and reads key by key.
    AllOnByKey,
    /// The same with a bound of 1.15 on space under throttled updates.
    AllOnStretch,
    AllOnNoPrefetch,
    DrBuffered,
    AllOnBuffered,
    InlineNoLog,
    SeparatedNoLog,
    LocalInline,
    LocalInlineNoLog,
    LocalSeparated,
    LocalSeparatedNoLog,
    /// Storage nodes, clients and network in virtual time.
    Simulated,
    /// A database in a directory, without storage nodes, by this program.
    Embedded,
    /// The same by a program of an earlier commit.
    EmbeddedBefore,
}

impl Mode {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::InlineR3 => "no separation, R3",
            Self::InlineEc => "no separation, EC",
            Self::InlineEcRows => "no separation, EC, whole rows",
            Self::SeparatedR3 => "separated, R3",
            Self::SeparatedEc => "separated, EC",
            Self::Dr => "separated, DR",
            Self::AllOn => "all on",
            Self::AllOnByKey => "all on, collection key by key",
            Self::AllOnStretch => "all on, bound 1.15",
            Self::AllOnNoPrefetch => "all on, no prefetch",
            Self::DrBuffered => "separated, DR, log buffer",
            Self::AllOnBuffered => "all on, log buffer",
            Self::InlineNoLog => "no separation, R3, no log",
            Self::SeparatedNoLog => "separated, R3, no log",
            Self::LocalInline => "local, no separation",
            Self::LocalInlineNoLog => "local, no separation, no log",
            Self::LocalSeparated => "local, separated",
            Self::LocalSeparatedNoLog => "local, separated, no log",
            Self::Simulated => "simulation",
            Self::Embedded => "this program",
            Self::EmbeddedBefore => "earlier program",
        }
    }

    pub(super) fn is_separated(self) -> bool {
        !matches!(
            self,
            Self::InlineR3
                | Self::InlineEc
                | Self::InlineEcRows
                | Self::InlineNoLog
                | Self::LocalInline
                | Self::LocalInlineNoLog
                | Self::Simulated
                | Self::Embedded
                | Self::EmbeddedBefore
        )
    }

    /// Whether the mode has no processes of storage nodes.
    pub(super) fn is_local(self) -> bool {
        matches!(
            self,
            Self::LocalInline
                | Self::LocalInlineNoLog
                | Self::LocalSeparated
                | Self::LocalSeparatedNoLog
                | Self::Simulated
                | Self::Embedded
                | Self::EmbeddedBefore
        )
    }

    pub(super) fn is_buffered(self) -> bool {
        matches!(self, Self::DrBuffered | Self::AllOnBuffered)
    }

    pub(super) fn has_log(self) -> bool {
        !matches!(
            self,
            Self::InlineNoLog
                | Self::SeparatedNoLog
                | Self::LocalInlineNoLog
                | Self::LocalSeparatedNoLog
        )
    }

    /// Redundancy of its files on storage nodes.
    pub(super) fn redundancy(self) -> Redundancy {
        match self {
            Self::InlineEc | Self::InlineEcRows | Self::SeparatedEc => Redundancy::CODED,
            Self::Dr
            | Self::AllOn
            | Self::AllOnByKey
            | Self::AllOnStretch
            | Self::AllOnNoPrefetch
            | Self::DrBuffered
            | Self::AllOnBuffered => Redundancy::BY_CLASS,
            _ => Redundancy::REPLICATED,
        }
    }

    /// Whether each copy of a log lies on one node.
    pub(super) fn has_serial_log(self) -> bool {
        use Mode::{AllOn, AllOnBuffered, AllOnByKey, AllOnNoPrefetch, AllOnStretch};
        !matches!(self, AllOn | AllOnByKey | AllOnStretch | AllOnNoPrefetch | AllOnBuffered)
    }

    /// Words of a mode on storage nodes.
    pub(super) fn store_words(self) -> Vec<String> {
        let redundancy = match self.redundancy() {
            redundancy if redundancy == Redundancy::CODED => "coded",
            redundancy if redundancy == Redundancy::BY_CLASS => "by_class",
            _ => "replicated",
        };
        let log = if self.has_serial_log() { "serial" } else { "striped" };
        vec![format!("--redundancy={redundancy}"), format!("--log_writing={log}")]
    }
}
