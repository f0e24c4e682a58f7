//! The compute role: it owns the column families of a database and serves them to front ends.
//!
//! The role runs inside of the front end's process. [`ComputeNode::open`] opens the engine over the
//! local file system, or over tiers ([`storage`]), by [`Settings`] (a TOML file or defaults) and
//! under one byte budget. [`ComputeNode::open_volume`] opens it over a volume of a storage cluster
//! ([`volume`]). [`ComputeNode::close`] flushes the memtables with unlogged records, syncs
//! the log and releases the lock. [`flexkv`] is the compute node of the store over remote memory.
//! Layer 5; it depends on the engine and on no other role.

pub mod flexkv;
mod settings;
pub mod storage;
pub mod volume;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use archipelago_base::budget::ByteBudget;
use archipelago_base::buffers;
use archipelago_base::{Error, Result};
use archipelago_engine::db::{Components, Db};

use archipelago_offload::net::{OffloadExecutor, OwnerSettings};
use archipelago_offload::shard_owner::{OwnerTerms, RemoteShards};
use archipelago_tier::TieredFs;
pub use settings::Settings;
pub use storage::Storage;

use volume::{VolumeSettings, VolumeStorage};

/// Prefix of the names of column families that are keyspaces of the Redis server, as the default
/// family is. A compute node runs them with the settings of the default family, unless they have
/// settings of their own.
pub const DATABASE_FAMILIES: &str = "archipelago.database.";

/// Divisor of the memory of a small process: the process keeps buffers for reuse in at most this
/// part of it.
const KEPT_BUFFERS_SHARE: u64 = 32;

/// Bytes of memory that a process with these settings may use; `u64::MAX` if no limit is known.
#[must_use]
pub fn memory_bytes(settings: &Settings) -> u64 {
    match settings.database.memory_budget_bytes {
        0 => archipelago_env::host::memory_bytes().map_or(u64::MAX, |bytes| bytes / 2),
        bytes => bytes,
    }
}

/// Keeps the resident memory of a small process near its memory in use. Without this, the kernel's
/// huge pages doubled it (decision 0054). Both settings hold for the whole process until its end.
fn make_memory_compact(process_bytes: u64) {
    let kept = usize::try_from(process_bytes / KEPT_BUFFERS_SHARE).unwrap_or(usize::MAX);
    buffers::keep_at_most(kept);
    if let Err(error) = archipelago_env::host::use_small_pages() {
        tracing::warn!(%error, "huge pages stay enabled, so the process may take twice its budget");
    }
}

/// A running compute node: one database and the byte budget that it shares with its front ends.
#[derive(Debug)]
pub struct ComputeNode {
    db: Db,
    budget: Arc<ByteBudget>,
    storage: Storage,
    offloaded: Offloaded,
}

/// The parts of a compute node that offload: the executor of jobs and the store of memtables.
#[derive(Clone, Debug, Default)]
pub struct Offloaded {
    jobs: Option<Arc<OffloadExecutor>>,
    shards: Option<Arc<RemoteShards>>,
}

impl Offloaded {
    /// Starts the parts that `settings` want for a database on `storage`. This is for a program
    /// that opens the database itself. Errors: those of starting threads, and `Busy` if the
    /// identity of the volume's cluster is not known.
    pub fn start(storage: &Storage, settings: OwnerSettings) -> Result<Self> {
        offloaded(storage, settings)
    }

    /// Makes the database of `components` use the parts.
    pub fn join(&self, components: &mut Components) {
        if let Some(jobs) = &self.jobs {
            components.executor = Arc::clone(jobs) as _;
        }
        if let Some(shards) = &self.shards {
            components.shard_store = Some(Arc::clone(shards) as _);
        }
    }

    /// The executor of offloaded jobs, if jobs leave.
    #[must_use]
    pub fn jobs(&self) -> Option<&Arc<OffloadExecutor>> {
        self.jobs.as_ref()
    }

    /// The store of sealed memtables at memory nodes, if memtables leave.
    #[must_use]
    pub fn shards(&self) -> Option<&Arc<RemoteShards>> {
        self.shards.as_ref()
    }

    /// The counters of all parts by the names that INFO of a server shows.
    #[must_use]
    pub fn counters(&self) -> BTreeMap<String, u64> {
        let jobs = self.jobs.as_ref().map(|jobs| jobs.facts());
        let shards = self.shards.as_ref().map(|shards| shards.figures().facts());
        let lines = jobs.iter().chain(&shards).flat_map(|facts| facts.lines());
        let counter = |line: &str| {
            let (name, value) = line.split_once(':')?;
            Some((name.to_owned(), value.parse().ok()?))
        };
        lines.filter_map(counter).collect()
    }
}

impl ComputeNode {
    /// Opens the database in `dir` by `settings`, and creates it by default. Errors are those of
    /// [`Db::open`]. If a directory cannot be used, the call fails before it changes anything.
    pub fn open(dir: &Path, settings: &Settings) -> Result<Self> {
        settings.validate()?;
        refuse_families_of_new_tiers(dir, settings)?;
        let access = settings.database.group_access;
        let open = |_: &Arc<ByteBudget>| Storage::open_for_group(dir, &settings.tiers, access);
        Self::open_on(open, settings, None)
    }

    /// Opens the database in `dir` as [`ComputeNode::open`] does, and offloads the jobs and
    /// memtables that [`OwnerSettings::mode`] names. Sealed memtables go to memory nodes. Flushes,
    /// compactions and garbage collections go to executors of the cluster. For executors, `dir`
    /// must be an absolute path, under which they find the same files. Errors: `InvalidArgument`
    /// for another path, and for a database on tiers whose jobs would leave.
    pub fn open_offloading(
        dir: &Path,
        settings: &Settings,
        offload: OwnerSettings,
    ) -> Result<Self> {
        settings.validate()?;
        if !offload.mode.sends_jobs() {
            refuse_families_of_new_tiers(dir, settings)?;
            let access = settings.database.group_access;
            let open = |_: &Arc<ByteBudget>| Storage::open_for_group(dir, &settings.tiers, access);
            return Self::open_on(open, settings, Some(offload));
        }
        if !settings.tiers.is_empty() || storage::devices_of(dir)?.is_some() {
            return Err(Error::invalid(
                "a database on tiers cannot offload its jobs, because its files lie in \
                 several directories of this machine: leave the offload mode or the tiers out",
            ));
        }
        if !dir.is_absolute() {
            return Err(Error::invalid(format!(
                "executors find the files of {} only if its path is absolute",
                dir.display()
            )));
        }
        let access = settings.database.group_access;
        let open = |_: &Arc<ByteBudget>| Storage::open_for_group(dir, &[], access);
        Self::open_on(open, settings, Some(offload))
    }

    /// Opens the database in a volume by `settings`, and creates the volume and the database if
    /// they do not exist. Errors are those of [`VolumeStorage::open`] and [`Db::open`], and
    /// `InvalidArgument` for settings with tiers. A call that fails gives the volume up. The
    /// database has no reserve of its own (`disk_reserve_bytes`), because storage nodes keep room
    /// for flushes and for jobs that free space.
    pub fn open_volume(volume: &VolumeSettings, settings: &Settings) -> Result<Self> {
        Self::open_volume_with(volume, settings, None)
    }

    /// Opens the database in a volume as [`ComputeNode::open_volume`] does, and offloads the jobs
    /// and memtables that `offload` names. Executors must reach the storage cluster
    /// ([`volume::pool_of_executor`]).
    pub fn open_volume_offloading(
        volume: &VolumeSettings,
        settings: &Settings,
        offload: OwnerSettings,
    ) -> Result<Self> {
        Self::open_volume_with(volume, settings, Some(offload))
    }

    /// Opens the database on a storage that the caller has opened, such as a decorated file system.
    /// The node closes the storage. `offload` names the jobs and memtables that leave the process;
    /// without it, none leave. Errors are those of [`Db::open`].
    pub fn open_over(
        storage: Storage,
        settings: &Settings,
        offload: Option<OwnerSettings>,
    ) -> Result<Self> {
        settings.validate()?;
        Self::open_on(|_| Ok(storage), settings, offload)
    }

    fn open_volume_with(
        volume: &VolumeSettings,
        settings: &Settings,
        offload: Option<OwnerSettings>,
    ) -> Result<Self> {
        settings.validate()?;
        let mut settings = settings.clone();
        settings.database.disk_reserve_bytes = 0;
        let settings = &settings;
        if !settings.tiers.is_empty() {
            return Err(volume::tiers_are_refused());
        }
        let may_create = || refuse_families(settings, &format!("volume {}", volume.name));
        let open = |budget: &Arc<ByteBudget>| {
            let mut volume = volume.clone();
            volume.stores.budget = Some(Arc::clone(budget));
            VolumeStorage::open_or_create(&volume, may_create).map(Storage::from)
        };
        Self::open_on(open, settings, offload)
    }

    /// Opens the database on the storage that `open` opens, within the memory of `settings`.
    fn open_on(
        open: impl FnOnce(&Arc<ByteBudget>) -> Result<Storage>,
        settings: &Settings,
        offload: Option<OwnerSettings>,
    ) -> Result<Self> {
        let budget = ByteBudget::within(memory_bytes(settings));
        if budget.is_small() {
            make_memory_compact(budget.process_bytes());
        }
        let mut storage = open(&budget)?;
        let separated = match &settings.log_dir {
            Some(log_dir) => storage.separate_log(log_dir, settings.database.group_access, true),
            None => Ok(()),
        };
        let opened = separated.and_then(|()| open_database(&storage, &budget, settings, offload));
        let (db, offloaded) = opened.inspect_err(|_| {
            // The storage is closed here. Otherwise the next opener would wait for the end of a
            // lease. The caller gets the first error.
            if let Some(volume) = &storage.volume {
                let _second = volume.close();
            }
        })?;
        Ok(Self { db, budget, storage, offloaded })
    }

    /// The open database.
    #[must_use]
    pub fn db(&self) -> &Db {
        &self.db
    }

    /// The tiers, if the database is on tiers.
    #[must_use]
    pub fn tiers(&self) -> Option<&Arc<TieredFs>> {
        self.storage.tiers.as_ref()
    }

    /// The volume, if the database lies in one.
    #[must_use]
    pub fn volume(&self) -> Option<&VolumeStorage> {
        self.storage.volume.as_ref()
    }

    /// The executor of offloaded jobs, if the node has one.
    #[must_use]
    pub fn offload(&self) -> Option<&Arc<OffloadExecutor>> {
        self.offloaded.jobs.as_ref()
    }

    /// The store of sealed memtables at memory nodes, if the node has one.
    #[must_use]
    pub fn remote_shards(&self) -> Option<&Arc<RemoteShards>> {
        self.offloaded.shards.as_ref()
    }

    /// The counters of offloading, by the names that INFO of a server shows.
    #[must_use]
    pub fn offload_counters(&self) -> BTreeMap<String, u64> {
        self.offloaded.counters()
    }

    /// The byte budget over all memory that grows with load. Front ends charge their requests to
    /// it.
    #[must_use]
    pub fn budget(&self) -> &Arc<ByteBudget> {
        &self.budget
    }

    /// Closes the database, and then the tiers or the volume. Errors are those of [`Db::close`].
    pub fn close(self) -> Result<()> {
        let closed = self.db.close();
        closed.and(self.storage.close())
    }
}

/// Opens the database on `storage`, with the parts that offload.
fn open_database(
    storage: &Storage,
    budget: &Arc<ByteBudget>,
    settings: &Settings,
    offload: Option<OwnerSettings>,
) -> Result<(Db, Offloaded)> {
    let offloaded = match offload {
        None => Offloaded::default(),
        Some(offload) => offloaded(storage, offload)?,
    };
    let mut components = Components {
        fs: Arc::clone(&storage.fs),
        budget: Some(Arc::clone(budget)),
        families: settings.families.clone(),
        alike_default: Some(DATABASE_FAMILIES.to_owned()),
        ..Components::default()
    };
    offloaded.join(&mut components);
    let db = Db::open_with(&storage.dir, settings.database.clone(), components)?;
    Ok((db, offloaded))
}

/// Starts the parts of a node that offload the jobs and memtables that `offload` names. The
/// executor of jobs needs the store of memtables, because it sends away only flushes of shards that
/// memory nodes hold.
fn offloaded(storage: &Storage, offload: OwnerSettings) -> Result<Offloaded> {
    let mut shards = None;
    if offload.mode.sends_memtables() {
        let mut terms = OwnerTerms { leaves_shards: true, ..OwnerTerms::default() };
        if offload.memtable_bytes_max > 0 {
            terms.bytes_max = offload.memtable_bytes_max;
        }
        terms.guaranteed_bytes = offload.memtable_bytes_guaranteed;
        if let Some(bytes) = offload.key_offset_cache_bytes {
            terms.key_offset_cache_bytes = bytes;
        }
        if let Some(copies) = offload.shard_copies {
            terms.copies = copies;
        }
        if let Some(staying) = offload.staying {
            terms.staying = staying;
        }
        let (managers, secret) = (offload.managers.clone(), offload.secret.clone());
        shards = Some(RemoteShards::in_cluster(managers, secret, terms)?);
    }
    let mut jobs = None;
    if offload.mode.sends_jobs() {
        let volume = storage.volume.as_ref().map(VolumeStorage::offload_files).transpose()?;
        jobs = Some(OffloadExecutor::over(offload, volume, shards.clone()));
    }
    Ok(Offloaded { jobs, shards })
}

/// Refuses settings of column families that a new database on tiers cannot have, before its devices
/// are prepared. A database without tiers checks this itself.
fn refuse_families_of_new_tiers(dir: &Path, settings: &Settings) -> Result<()> {
    if settings.tiers.is_empty() || storage::devices_of(dir)?.is_some() {
        return Ok(());
    }
    refuse_families(settings, &dir.display().to_string())
}

/// Refuses settings of column families that a new database of `place` cannot have.
fn refuse_families(settings: &Settings, place: &str) -> Result<()> {
    match settings.families.keys().find(|name| *name != "default") {
        Some(unknown) => Err(Error::invalid(format!(
            "settings were given for column family \"{unknown}\", which does not exist in the new \
             database of {place}; create it first"
        ))),
        None => Ok(()),
    }
}

/// Reads and validates a settings file. Errors: those of reading it; `InvalidArgument` names the
/// line, the setting and the allowed values.
pub fn load_settings(path: &Path) -> Result<Settings> {
    #[expect(clippy::disallowed_methods, reason = "the operator's file, not the store's")]
    let bytes =
        std::fs::read(path).map_err(|source| Error::io("read the settings file", path, source))?;
    let text = String::from_utf8(bytes).map_err(|_| {
        Error::invalid(format!("the settings file {} is not UTF-8 text", path.display()))
    })?;
    Settings::parse(&text).map_err(|e| e.context_at(format!("settings file {}", path.display())))
}

/// Default directory of a node's data.
#[must_use]
pub fn default_dir() -> PathBuf {
    PathBuf::from("./archipelago-data")
}

#[cfg(test)]
mod tests {
    use archipelago_engine::options::CfOptions;
    use archipelago_tier::{DeviceKind, DeviceSettings};

    use super::*;

    #[test]
    fn refused_open_of_new_directory_leaves_nothing() {
        let base = tempfile::tempdir().unwrap();
        let (dir, device) = (base.path().join("deep/data"), base.path().join("device"));
        let mut settings = Settings::default();
        settings.families.insert("unknown".to_owned(), Default::default());
        let on_tiers = Settings {
            tiers: vec![DeviceSettings::new(&device, DeviceKind::Directory).creating()],
            ..settings.clone()
        };
        let missing = Settings {
            tiers: vec![DeviceSettings::new(&device, DeviceKind::Directory)],
            ..Settings::default()
        };
        for (settings, why) in [
            (&settings, "\"unknown\", which does not exist"),
            (&on_tiers, "\"unknown\", which does not exist"),
            (&missing, "does not exist: mount the device there"),
        ] {
            let error = ComputeNode::open(&dir, settings).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
            let left: Vec<_> = base.path().read_dir().unwrap().collect();
            assert!(left.is_empty(), "{left:?}");
        }
        let made = Settings { families: Default::default(), ..on_tiers };
        ComputeNode::open(&dir, &made).unwrap().close().unwrap();
        // After the database exists, the settings need not name its devices again.
        ComputeNode::open(&dir, &Settings::default()).unwrap().close().unwrap();
    }

    #[test]
    fn database_families_follow_settings_of_default() {
        let dir = tempfile::tempdir().unwrap();
        let buffer = |bytes| CfOptions { write_buffer_bytes: bytes, ..CfOptions::default() };
        let open = |families: &[(&str, CfOptions)]| {
            let named =
                families.iter().map(|(name, options)| ((*name).to_owned(), options.clone()));
            let settings = Settings { families: named.collect(), ..Settings::default() };
            ComputeNode::open(dir.path(), &settings).unwrap()
        };
        let (second, other) = ("archipelago.database.2", "archipelago.databases.1");
        let node = open(&[]);
        for name in [second, other] {
            node.db().create_family(name, buffer(2 << 20)).unwrap();
        }
        let bytes = |node: &ComputeNode| {
            [second, other].map(|name| node.db().family(name).unwrap().options().write_buffer_bytes)
        };
        node.close().unwrap();
        for (given, expected) in [
            (vec![], [CfOptions::default().write_buffer_bytes, 2 << 20]),
            (vec![("default", buffer(4 << 20))], [4 << 20, 2 << 20]),
            (vec![], [4 << 20, 2 << 20]),
            (vec![("default", buffer(4 << 20)), (second, buffer(3 << 20))], [3 << 20, 2 << 20]),
        ] {
            let node = open(&given);
            assert_eq!(bytes(&node), expected, "{given:?}");
            node.close().unwrap();
        }
    }
}
