//! The command line of `archipelago-lab model`.

use std::path::PathBuf;

use clap::Parser;

use super::setting::Mode;

const ABOUT: &str = "Models many cores: the engine's own decisions in virtual time, with costs measured on one core.";

const TEACH: &str = "\
The command prints two sweeps. In the first, the number of background jobs is the degree. In the
second, it stays at --background, as in the BucketLSM paper's Fig. 10. The degree is the number of
buckets, or of the parts into which an L0 compaction is cut; classic has neither.

Decision 0009 in docs/decisions has the assumptions of the model and the source of its costs. The
same seed gives the same result on every machine.

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
    /// Background jobs of the second sweep; 0 leaves it out
    #[arg(long, default_value_t = 80, value_parser = clap::value_parser!(u64).range(0..=256))]
    pub(crate) background: u64,
    /// Modes to compare
    #[arg(long, value_delimiter = ',', default_value = "classic,subcompactions,buckets")]
    pub(crate) modes: Vec<Mode>,
    /// Gigabytes (10^9) of keys and values to write; the key space has as many records
    #[arg(long, default_value_t = 40, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub(crate) gigabytes: u64,
    /// Threads that write
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1024))]
    pub(crate) writers: u64,
    /// Seed of all random choices
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Cost profile that replaces the built-in one
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
    /// Write the page of docs/benchmarks to this file; FILE#PART writes one part of a page
    #[arg(long, value_name = "FILE")]
    pub(crate) page: Option<PathBuf>,
    /// Only measure this machine's costs and write them to this file
    #[arg(long, value_name = "FILE")]
    pub(crate) measure: Option<PathBuf>,
    /// Name of the machine in the measured profile
    #[arg(long, default_value = "not said", value_name = "TEXT")]
    pub(crate) machine: String,
}
