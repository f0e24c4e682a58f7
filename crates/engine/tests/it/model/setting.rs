//! Settings of one run of a case: the directory of its database, and the options.

use std::path::PathBuf;
use std::sync::Arc;

use archipelago_engine::db::BackgroundMode;
use archipelago_engine::options::{CfOptions, DbOptions};
use archipelago_env::FileSystem;

use super::tiered::Tiered;
use crate::away::Mood;
use crate::disk::TestDisk;
use crate::separation::Separation;

/// Directory of a case's database.
#[derive(Clone)]
pub(crate) enum Disk {
    Memory(TestDisk),
    Local(Arc<dyn FileSystem>, PathBuf),
    Tiers(Tiered),
}

/// Settings of one run of a case.
#[derive(Clone)]
pub(crate) struct Setting {
    pub(crate) background: BackgroundMode,
    pub(crate) db: DbOptions,
    pub(crate) family: CfOptions,
    pub(crate) separation: Separation,
    pub(crate) disk: Disk,
    /// Memory nodes for memtable shards, if there are some.
    pub(crate) away: Option<Mood>,
}

/// Whether the merge operator of this family counts.
pub(super) fn is_counter(name: &str) -> bool {
    name == "counter" || name == "y"
}

impl Setting {
    pub(super) fn dir(&self) -> PathBuf {
        match &self.disk {
            Disk::Memory(_) => PathBuf::from("/db"),
            Disk::Local(_, dir) => dir.join("db"),
            Disk::Tiers(tiered) => tiered.dir(),
        }
    }

    pub(super) fn fs(&self) -> Arc<dyn FileSystem> {
        match &self.disk {
            Disk::Memory(fs) => Arc::new(fs.clone()),
            Disk::Local(fs, _) => Arc::clone(fs),
            Disk::Tiers(tiered) => tiered.fs(),
        }
    }

    pub(super) fn family(&self, name: &str) -> CfOptions {
        let operator = if is_counter(name) { "u64-counter" } else { "append" };
        CfOptions {
            merge_operator: Some(operator.to_owned()),
            compaction_filter: match name {
                "x" => Some("ttl".to_owned()),
                "filtered" => Some("remove-thirds".to_owned()),
                _ => None,
            },
            ..self.separation.of(self.family.clone())
        }
    }

    pub(super) fn is_manual(&self) -> bool {
        self.background == BackgroundMode::Manual
    }

    /// Whether an executor of the case may leave files of flushes that are planned again.
    pub(super) fn leaves_files(&self) -> bool {
        let whim = self.away.and_then(|mood| mood.whim);
        whim.is_some_and(|whim| whim.silence > 0 || whim.wrong > 0)
    }
}
