//! The command line of `archipelago bench --engine flexkv`.

use std::path::PathBuf;
use std::time::Duration;

use archipelago_base::{Error, Result, size};
use clap::{Parser, ValueEnum};

use super::work::{Kind, kinds};

/// Transport between processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Provider {
    /// Shared memory of this machine.
    Shm,
    /// TCP on loopback.
    Tcp,
}

impl Provider {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Shm => "shm",
            Self::Tcp => "tcp",
        }
    }
}

/// Entries that this process's compute node caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Cache {
    Off,
    Addresses,
    Pairs,
}

/// Partitions whose keys are used, by the place of their proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Place {
    /// Any key of the store.
    Any,
    /// Keys of partitions whose proxy is this process.
    Here,
    /// Keys of partitions whose proxy is another process.
    Elsewhere,
    /// Keys of partitions without a proxy.
    OneSided,
}

/// Measure the store over remote memory. This process is one of the compute nodes, and it starts
/// the other compute nodes, the manager and the memory nodes.
#[derive(Parser, Clone, Debug)]
#[command(name = "archipelago bench --engine flexkv", no_binary_name = true)]
pub(crate) struct Arguments {
    /// The engine that the benchmark measures: flexkv (or flex, its name until release 0.2)
    #[arg(long, value_parser = ["flexkv", "flex"])]
    engine: String,
    /// Benchmarks to run, in order: ycsba, ycsbb, ycsbc, ycsbd; updateN: N per cent updates, the
    /// rest reads; twitterN: like Twitter's cache cluster N, with its sizes, shares and skew;
    /// twitter: like all 53 of them, one after another
    #[arg(long, value_delimiter = ',', default_value = "ycsba,ycsbb,ycsbc,ycsbd")]
    pub(crate) benchmarks: Vec<String>,
    /// Number of keys that are loaded first
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    pub(crate) num: u64,
    /// Bytes of a value; twitterN has its own
    #[arg(long, value_name = "BYTES", default_value_t = 256)]
    pub(crate) value_size: usize,
    /// Seconds of each benchmark
    #[arg(long, value_name = "SECONDS", default_value_t = 5)]
    duration: u64,
    /// Skew of the zipfian choice of keys: 0 is uniform; twitterN has its own
    #[arg(long, value_name = "ALPHA", default_value_t = 0.99)]
    pub(crate) alpha: f64,
    /// Clients: threads of this process
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) clients: usize,
    /// Requests that each client has under way
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) coroutines: usize,
    /// Compute nodes, this process among them
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub(crate) compute: u16,
    /// Number of memory nodes
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) memory: u64,
    /// Memory that each lends
    #[arg(long, value_name = "SIZE", default_value = "1GiB")]
    pub(crate) size: String,
    /// This node's memory for index and cache, MiB
    #[arg(long, value_name = "MIB", default_value_t = 128)]
    pub(crate) memory_limit: u64,
    /// Entries that this node caches
    #[arg(long, value_enum, default_value_t = Cache::Pairs)]
    pub(crate) cache: Cache,
    /// Partitions, a power of two
    #[arg(long, value_name = "N", default_value_t = 1024)]
    pub(crate) partitions: u32,
    /// Share of them that has a proxy, in a thousand
    #[arg(long, value_name = "N", default_value_t = 500)]
    pub(crate) offload: u32,
    /// Partitions whose keys are used, by the place of their proxy
    #[arg(long, value_enum, default_value_t = Place::Any)]
    pub(crate) place: Place,
    /// Transport between processes
    #[arg(long, value_enum, default_value_t = Provider::Shm)]
    pub(crate) provider: Provider,
    /// Seed of drawn keys and operations
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Write the result to this file, too
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

impl Arguments {
    /// The benchmarks. An error names the one that does not exist.
    pub(super) fn kinds(&self) -> Result<Vec<(String, Kind)>> {
        if [self.num, self.duration, self.memory].contains(&0)
            || [self.clients, self.coroutines].contains(&0)
            || self.compute == 0
        {
            return Err(Error::invalid(
                "--num, --duration, --memory, --clients, --coroutines and --compute are at least 1",
            ));
        }
        if !(0.0..=100.0).contains(&self.alpha) {
            return Err(Error::invalid(format!("--alpha {}: from 0 to 100", self.alpha)));
        }
        let mut all = Vec::new();
        for name in &self.benchmarks {
            let named = kinds(name);
            if named.is_empty() {
                return Err(Error::invalid(format!(
                    "no benchmark {name}: there are ycsba to ycsbd, update0 to update100, twitter, and twitter1 to twitter54 without 5"
                )));
            }
            all.extend(named);
        }
        Ok(all)
    }

    /// Bytes that a memory node lends.
    pub(super) fn size_bytes(&self) -> Result<u64> {
        size::parse(&self.size)
    }

    pub(super) fn time(&self) -> Duration {
        Duration::from_secs(self.duration)
    }
}
