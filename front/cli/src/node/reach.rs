//! Flags that say which files an executor reaches: shared directories and a storage cluster.

use std::path::PathBuf;

use archipelago_base::{Error, Result};
use archipelago_compute::volume::{NodeStoresOptions, pool_of_executor};
use archipelago_offload::net::VolumePool;

use crate::managers::managers;
use crate::secret::SecretArgs;
use crate::volume::Redundancy;

/// Files that an executor reaches.
#[derive(clap::Args, Clone, Debug)]
pub(super) struct ReachArgs {
    /// Directory below which the executor may read and write databases of other processes. It must
    /// exist, and those processes must have it under the same path. The flag may be repeated
    #[arg(long = "share", value_name = "DIR")]
    shares: Vec<PathBuf>,
    /// Addresses of the managers of a storage cluster, separated by commas. The executor then reads
    /// and writes databases in its volumes, as far as their owners grant it
    #[arg(long, value_name = "HOST:PORT,...")]
    pub(super) store: Option<String>,
    /// Redundancy of the files that the executor writes: as in the processes that serve the
    /// databases (needs --store)
    #[arg(long, value_enum, default_value_t = Redundancy::ByClass, requires = "store")]
    redundancy: Redundancy,
    /// Fewest copies with which a file is written while domains are down: 2, or 1 for a trial on
    /// one storage node (needs --store)
    #[arg(
        long,
        value_name = "N",
        default_value_t = 2,
        value_parser = clap::value_parser!(u8).range(1..=3),
        requires = "store"
    )]
    copies_min: u8,
    /// Jobs that run at the same time. Default: the number of cores
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    slots: Option<u32>,
}

impl ReachArgs {
    /// Whether the flags name any files.
    pub(super) fn is_given(&self) -> bool {
        !self.shares.is_empty() || self.store.is_some()
    }

    /// Whether the number of slots is given.
    pub(super) fn has_slots(&self) -> bool {
        self.slots.is_some()
    }

    /// Jobs that run at the same time.
    pub(super) fn slots(&self) -> u32 {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        self.slots.unwrap_or(u32::try_from(cores).unwrap_or(1))
    }

    /// The shared directories as absolute paths.
    pub(super) fn shares(&self) -> Result<Vec<PathBuf>> {
        let absolute = |share: &PathBuf| {
            if !share.is_dir() {
                return Err(Error::invalid(format!(
                    "--share {}: there is no such directory",
                    share.display()
                )));
            }
            std::path::absolute(share)
                .map_err(|source| Error::io("find the absolute path of", share, source))
        };
        self.shares.iter().map(absolute).collect()
    }

    /// Connects to the storage cluster, if the flags name one.
    pub(super) fn volumes(&self, secret: &SecretArgs) -> Result<Option<VolumePool>> {
        let Some(store) = &self.store else { return Ok(None) };
        let at = managers(store).map_err(|error| error.context_at(format!("--store {store}")))?;
        let options = NodeStoresOptions {
            mode: self.redundancy.into(),
            copies_min: self.copies_min,
            ..NodeStoresOptions::default()
        };
        pool_of_executor(at, secret.read()?, options).map(Some)
    }

    /// The files, for people.
    pub(super) fn describe(&self, shares: &[PathBuf]) -> String {
        let shares = shares.iter().map(|share| format!("below {}", share.display()));
        let store =
            self.store.iter().map(|at| format!("in volumes of the storage cluster at {at}"));
        shares.chain(store).collect::<Vec<String>>().join(", ")
    }
}
