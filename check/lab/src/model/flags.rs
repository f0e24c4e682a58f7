//! The command line of `archipelago-lab model`.

use std::path::PathBuf;

use clap::Parser;

use super::setting::Mode;

const ABOUT: &str = "Models many cores: the engine's own decisions in virtual time, with costs measured on one core.";

const TEACH: &str = "\
Two sweeps are printed. In the first the background jobs are as many as the degree; in the second
they stay at --background, as in the BucketLSM paper's Fig. 10. The degree is the number of buckets,
or of the parts that an L0 compaction is cut into; classic has neither.

What the model assumes and what its costs are from: docs/guide/bench.md and decision 0009
in docs/decisions. The same seed gives the same result on every machine.

  archipelago-lab model
  archipelago-lab model --degrees=8,64 --modes=buckets --json=model.json --svg=charts
  archipelago-lab model --device=docs/devices/nvme.toml
  archipelago-lab model --device=none --writers=16
  archipelago-lab model --measure=profile.json --machine='2 cores of a laptop'";

/// A sweep of the model.
#[derive(Clone, Debug, Parser)]
#[command(name = "archipelago-lab model", bin_name = "archipelago-lab model", about = ABOUT,
          after_help = TEACH, rename_all = "snake_case", disable_version_flag = true)]
pub(crate) struct ModelFlags {
    /// Degrees of parallelism
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8,16,32,64,80",
          value_parser = clap::value_parser!(u64).range(1..=256))]
    pub(crate) degrees: Vec<u64>,
    /// Background jobs of the second sweep; 0: without it
    #[arg(long, default_value_t = 80, value_parser = clap::value_parser!(u64).range(0..=256))]
    pub(crate) background: u64,
    /// Modes
    #[arg(long, value_delimiter = ',', default_value = "classic,subcompactions,buckets")]
    pub(crate) modes: Vec<Mode>,
    /// Gigabytes (10^9) of keys and values to write; the key space has as many records
    #[arg(long, default_value_t = 40, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub(crate) gigabytes: u64,
    /// Threads that write
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1024))]
    pub(crate) writers: u64,
    /// Seed of what is drawn
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// A cost profile instead of the one that comes with the program
    #[arg(long, value_name = "FILE")]
    pub(crate) profile: Option<PathBuf>,
    /// A device's description instead of the paper's SSD; `none` for a device that never limits
    #[arg(long, value_name = "FILE")]
    pub(crate) device: Option<PathBuf>,
    /// Write every result, with series over time, to this file as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Write charts as SVG into this directory
    #[arg(long, value_name = "DIR")]
    pub(crate) svg: Option<PathBuf>,
    /// Only measure this machine's costs and write them to this file
    #[arg(long, value_name = "FILE")]
    pub(crate) measure: Option<PathBuf>,
    /// What the measured profile says of its machine
    #[arg(long, default_value = "not said", value_name = "TEXT")]
    pub(crate) machine: String,
}
