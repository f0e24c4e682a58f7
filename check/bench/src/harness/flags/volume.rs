//! Flags of a database in a volume of a storage cluster.

use std::path::PathBuf;
use std::time::Duration;

use archipelago_compute::volume::{LogWriting, RedundancyMode};
use archipelago_fabric::paced::CardSettings;
use clap::{Args, ValueEnum};

use super::groups::truth;

/// The volume with the database of a run. db_bench has none.
#[derive(Clone, Debug, Args)]
#[command(rename_all = "snake_case", next_help_heading = "Storage cluster")]
pub(crate) struct VolumeFlags {
    /// Managers of a storage cluster; the database lies in a volume there, and --db is not used
    /// (not in db_bench)
    #[arg(long, value_name = "HOST:PORT,...", requires = "volume",
          conflicts_with_all = ["db", "device", "tiers"])]
    pub(crate) store: Option<String>,
    /// Volume with the database, which is created if it does not exist (not in db_bench)
    #[arg(long, value_name = "NAME", requires = "store")]
    pub(crate) volume: Option<String>,
    /// File with the secret of the storage cluster (not in db_bench)
    #[arg(long, value_name = "FILE", requires = "store")]
    pub(crate) secret_file: Option<PathBuf>,
    /// Take the volume over from an owner whose lease lives (not in db_bench)
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true",
          default_value = "false", value_parser = truth, action = clap::ArgAction::Set)]
    pub(crate) take_over: bool,
    /// Redundancy of new files; without the flag by_class (not in db_bench)
    #[arg(long, value_enum, value_name = "NAME", requires = "store")]
    pub(crate) redundancy: Option<Redundancy>,
    /// How the log is sent to the storage nodes; without the flag as the volume's default says (not
    /// in db_bench)
    #[arg(long, value_enum, value_name = "NAME", requires = "store")]
    pub(crate) log_writing: Option<LogForm>,
    /// Emulate a network card that moves this number of bytes a second in each direction; 0: no
    /// limit (not in db_bench)
    #[arg(long, value_name = "N", default_value_t = 0)]
    network_bytes_per_s: u64,
    /// Emulate connections that move this number of bytes a second in each direction; 0: no limit
    /// (not in db_bench)
    #[arg(long, value_name = "N", default_value_t = 0)]
    network_stream_bytes_per_s: u64,
    /// Emulate a round trip of this number of microseconds, in addition to the real one (not in
    /// db_bench)
    #[arg(long, value_name = "N", default_value_t = 0)]
    network_round_trip_us: u64,
}

/// Redundancy of the files of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum Redundancy {
    /// Value files have four parts and two parities, and other files have three copies.
    ByClass,
    /// All files have three copies.
    Replicated,
    /// Tables and value files have four parts and two parities.
    Coded,
}

impl From<Redundancy> for RedundancyMode {
    fn from(redundancy: Redundancy) -> Self {
        match redundancy {
            Redundancy::ByClass => Self::ByClass,
            Redundancy::Replicated => Self::AllReplicated,
            Redundancy::Coded => Self::AllCoded,
        }
    }
}

/// How the log of a volume is sent to storage nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogForm {
    /// Each group of writes travels to the three nodes of one log.
    Serial,
    /// Large groups travel over four logs.
    Striped,
}

impl From<LogForm> for LogWriting {
    fn from(form: LogForm) -> Self {
        match form {
            LogForm::Serial => Self::Serial,
            LogForm::Striped => Self::Striped,
        }
    }
}

impl VolumeFlags {
    /// The card of this process. Without flags it has no rates and orders messages only.
    pub(crate) fn card(&self) -> CardSettings {
        CardSettings {
            out_bytes_per_s: self.network_bytes_per_s,
            in_bytes_per_s: self.network_bytes_per_s,
            stream_bytes_per_s: self.network_stream_bytes_per_s,
            // Request and answer have a latency each.
            latency: Duration::from_micros(self.network_round_trip_us) / 2,
            ..CardSettings::default()
        }
    }

    /// Checks what clap does not check. The error names the flags and a remedy.
    pub(super) fn check(&self) -> Result<(), String> {
        let is_emulated = self.network_bytes_per_s > 0
            || self.network_stream_bytes_per_s > 0
            || self.network_round_trip_us > 0;
        match self.store.is_none() && (is_emulated || self.take_over) {
            true => Err("--network_bytes_per_s, --network_stream_bytes_per_s, \
                         --network_round_trip_us and --take_over need --store: a local database \
                         uses no network, and has no volume"
                .to_owned()),
            false => Ok(()),
        }
    }
}
