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
pub(crate) struct ReachArgs {
    /// Directory below which the executor may read and write databases of other processes. It must
    /// exist, and those processes must have it under the same path. The flag may be repeated
    #[arg(long = "share", value_name = "DIR")]
    shares: Vec<PathBuf>,
    /// Addresses of the managers of a storage cluster, separated by commas. The executor then reads
    /// and writes databases in its volumes, as far as their owners grant it
    #[arg(long, value_name = "HOST:PORT,...")]
    pub(crate) store: Option<String>,
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
    #[arg(
        long,
        visible_alias = "executor-slots",
        value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..=1024)
    )]
    slots: Option<u32>,
}

impl ReachArgs {
    /// Whether the flags name any files.
    pub(crate) fn is_given(&self) -> bool {
        !self.shares.is_empty() || self.store.is_some()
    }

    /// Whether the number of slots is given.
    pub(crate) fn has_slots(&self) -> bool {
        self.slots.is_some()
    }

    /// Jobs that run at the same time.
    pub(crate) fn slots(&self) -> u32 {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        self.slots.unwrap_or(u32::try_from(cores).unwrap_or(1))
    }

    /// The files that the flags name.
    pub(crate) fn files(&self) -> JobFiles {
        JobFiles {
            shares: self.shares.clone(),
            store: self.store.clone(),
            redundancy: self.redundancy,
            copies_min: self.copies_min,
        }
    }
}

/// Flags of a process that may run jobs in addition to what it is for.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct SideArgs {
    /// Jobs of databases of the cluster that this process runs at the same time, as an executor
    /// does: compactions, garbage collections and flushes. 0 for none
    #[arg(
        long,
        value_name = "N",
        default_value_t = 0,
        value_parser = clap::value_parser!(u32).range(0..=1024)
    )]
    executor_slots: u32,
    /// Directory below which these jobs may read and write databases of other processes. It must
    /// exist, and those processes must have it under the same path. The flag may be repeated (needs
    /// --executor-slots)
    #[arg(long = "share", value_name = "DIR")]
    shares: Vec<PathBuf>,
}

impl SideArgs {
    /// Jobs that run at the same time; `None` if the process runs none. Errors: `InvalidArgument`
    /// for shared directories without slots.
    pub(crate) fn slots(&self) -> Result<Option<u32>> {
        if self.executor_slots == 0 && !self.shares.is_empty() {
            return Err(Error::invalid(
                "--share is for a process that runs jobs: add --executor-slots N, or leave it out",
            ));
        }
        Ok((self.executor_slots > 0).then_some(self.executor_slots))
    }

    /// The shared directories, as they were given.
    pub(crate) fn shares(&self) -> &[PathBuf] {
        &self.shares
    }
}

/// Files that the jobs of an executor reach.
#[derive(Clone, Debug)]
pub(crate) struct JobFiles {
    /// Directories below which databases lie.
    pub(crate) shares: Vec<PathBuf>,
    /// Addresses of the managers of a storage cluster, separated by commas.
    pub(crate) store: Option<String>,
    /// Redundancy of the files that jobs write to the storage cluster.
    pub(crate) redundancy: Redundancy,
    /// Fewest copies of such a file while domains are down.
    pub(crate) copies_min: u8,
}

impl JobFiles {
    /// The shared directories as absolute paths.
    pub(crate) fn shares(&self) -> Result<Vec<PathBuf>> {
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

    /// Connects to the storage cluster, if there is one.
    pub(crate) fn volumes(&self, secret: &SecretArgs) -> Result<Option<VolumePool>> {
        let Some(store) = &self.store else { return Ok(None) };
        let at = managers(store).map_err(|error| error.context_at(format!("--store {store}")))?;
        let options = NodeStoresOptions {
            mode: self.redundancy.into(),
            copies_min: self.copies_min,
            ..NodeStoresOptions::default()
        };
        pool_of_executor(at, secret.read()?, options).map(Some)
    }

    /// The files, for people. `shares` has the absolute paths.
    pub(crate) fn describe(&self, shares: &[PathBuf]) -> String {
        let shares = shares.iter().map(|share| format!("below {}", share.display()));
        let store =
            self.store.iter().map(|at| format!("in volumes of the storage cluster at {at}"));
        shares.chain(store).collect::<Vec<String>>().join(", ")
    }
}
