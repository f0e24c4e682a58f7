//! The only module that names the database's crate. It turns flags into the database's settings.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use archipelago_base::clock::{Clock, SystemClock};
use archipelago_compute::volume::VolumeStorage;
use archipelago_compute::{Offloaded, Storage};
use archipelago_env::device::ThrottledFs;
use archipelago_env::stats::CountingFs;
use archipelago_fabric::endpoint;
use archipelago_fabric::paced::CardStats;
use archipelago_offload::net::OwnerSettings;
use archipelago_offload::shard_owner::takeover_facts;

use serde::{Deserialize, Serialize};

pub use archipelago_base::{Error, Result};
pub use archipelago_engine::{
    db::{ColumnFamily, Components, Db, ReadOptions},
    event::{Event, EventListener, Listeners},
    key::KeyRange,
    manifest::{DirectoryState, inspect},
    options::{CfOptions, Compression, DbOptions, VALUE_SEPARATION_BYTES, WriteOptions},
    stats::{Ticker, Timer},
    wal::WriteBatch,
};
pub use archipelago_env::device::DeviceSpec;
pub use archipelago_env::stats::IoStats;
pub use archipelago_env::{FileClass, FileSystem, IoContext, IoPurpose, local::LocalFs};

use crate::harness::flags::{BucketBoundaries, CompressionType, Flags};
use crate::harness::local_log::LocalLogFs;
use crate::harness::tiers::{self, TierPlan, Tiers};
use crate::harness::volume;

/// Settings of the database that the flags ask for.
pub fn db_options(flags: &Flags) -> DbOptions {
    let defaults = DbOptions::default();
    DbOptions {
        max_background_jobs: flags.storage.max_background_jobs,
        subcompactions_max: flags.storage.subcompactions as usize,
        rate_limit_bytes_per_s: flags.storage.rate_limiter_bytes_per_sec,
        block_cache_bytes: flags.storage.cache_size,
        wal_segment_bytes: flags.storage.wal_segment_size,
        table_readers_max: usize::try_from(flags.storage.open_files)
            .unwrap_or(defaults.table_readers_max),
        direct_reads: flags.storage.use_direct_reads,
        direct_background_io: flags.storage.use_direct_io_for_flush_and_compaction,
        log_write_through: flags.storage.log_write_through,
        log_buffer_bytes: flags.storage.log_buffer_bytes,
        latency_histograms: flags.output.statistics,
        ..defaults
    }
}

/// Settings of the default column family that the flags ask for.
pub(crate) fn family_options(flags: &Flags) -> CfOptions {
    let (storage, separation) = (&flags.storage, &flags.separation);
    let compression = match storage.compression_type {
        CompressionType::None => Compression::None,
        CompressionType::Lz4 => Compression::Lz4,
        CompressionType::Zstd => Compression::Zstd,
    };
    let defaults = CfOptions::default();
    CfOptions {
        write_buffer_bytes: storage.write_buffer_size,
        write_buffers_max: storage.max_write_buffer_number,
        buckets: storage.buckets,
        buckets_dynamic: storage.bucket_boundaries == BucketBoundaries::Dynamic,
        bloom_bits_per_key: u32::try_from(storage.bloom_bits)
            .unwrap_or(defaults.bloom_bits_per_key),
        block_bytes: storage.block_size,
        compression,
        compression_last: compression,
        l0_compaction_trigger: storage.level0_file_num_compaction_trigger,
        l0_slowdown: storage.level0_slowdown_writes_trigger,
        l0_stop: storage.level0_stop_writes_trigger,
        level_base_bytes: storage.max_bytes_for_level_base,
        target_file_bytes: storage.target_file_size_base,
        value_separation_bytes: separation
            .threshold_bytes()
            .unwrap_or(defaults.value_separation_bytes),
        value_file_bytes: separation.file_bytes().unwrap_or(defaults.value_file_bytes),
        space_amplification_max: separation
            .space_bound()
            .unwrap_or(defaults.space_amplification_max),
        ..defaults
    }
}

/// Listener that notes the time of the last installed flush, compaction or garbage collection.
#[derive(Debug)]
pub(crate) struct LastJob {
    clock: Arc<SystemClock>,
    ended_ns: AtomicU64,
}

impl LastJob {
    /// A listener before the first install.
    pub(crate) fn new(clock: Arc<SystemClock>) -> Self {
        Self { clock, ended_ns: AtomicU64::new(0) }
    }

    /// Time of the last install, or 0 before the first one.
    pub(crate) fn ended_ns(&self) -> u64 {
        self.ended_ns.load(Ordering::Acquire)
    }
}

impl EventListener for LastJob {
    fn on_event(&self, event: &Event) {
        if matches!(
            event,
            Event::FlushInstalled { .. }
                | Event::CompactionInstalled { .. }
                | Event::GcInstalled { .. }
        ) {
            self.ended_ns.fetch_max(self.clock.now_ns(), Ordering::AcqRel);
        }
    }
}

/// Bytes that a process has moved over its emulated device and its link to memory nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MovedBytes {
    /// Bytes that were read from the device.
    pub read: u64,
    /// Bytes that were written to the device, without the log if that lies elsewhere.
    pub written: u64,
    /// Bytes of memtable images that were sent to memory nodes.
    pub memtables_sent: u64,
    /// Bytes of memtable images that were fetched from memory nodes.
    pub memtables_fetched: u64,
}

impl MovedBytes {
    /// Bytes that were moved since `before`.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        Self {
            read: self.read.saturating_sub(before.read),
            written: self.written.saturating_sub(before.written),
            memtables_sent: self.memtables_sent.saturating_sub(before.memtables_sent),
            memtables_fetched: self.memtables_fetched.saturating_sub(before.memtables_fetched),
        }
    }
}

/// An open database and its devices.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) db: Db,
    /// Open tiers below the database, with `--tiers`.
    pub(crate) tiers: Option<Tiers>,
    /// The volume of the database, with `--store`.
    volume: Option<VolumeStorage>,
    /// Counter of reads and writes above the devices, with `--io_statistics`.
    pub(crate) io: Option<CountingFs>,
    /// The emulated device, with `--device`.
    device: Option<Arc<ThrottledFs>>,
    /// The part of the database's work that leaves the process, with `--offload_mode`.
    offloaded: Offloaded,
}

impl Opened {
    /// Messages that the card of this process has sent and received. `None` without `--store`.
    pub(crate) fn network(&self) -> Option<CardStats> {
        self.volume.as_ref()?.pool_report().card
    }

    /// Bytes that crossed the emulated device and the link to memory nodes so far.
    pub(crate) fn moved(&self) -> Option<MovedBytes> {
        let device = self.device.as_ref()?.stats().total();
        let shards = self.offloaded.shards().map(|shards| shards.figures()).unwrap_or_default();
        Some(MovedBytes {
            read: device.read_bytes,
            written: device.write_bytes,
            memtables_sent: shards.sent_bytes,
            memtables_fetched: shards.fetched_bytes,
        })
    }

    /// Counters of the work that leaves the process, and of the memtable shards that the open has
    /// kept at memory nodes.
    pub(crate) fn offload_counters(&self) -> BTreeMap<String, u64> {
        let mut counters = self.offloaded.counters();
        if self.offloaded.shards().is_some() {
            let facts = takeover_facts(self.db.statistics());
            counters.extend(facts.lines().filter_map(|line| {
                let (name, value) = line.split_once(':')?;
                Some((name.to_owned(), value.parse().ok()?))
            }));
        }
        counters
    }

    /// Closes the database and then its devices.
    pub(crate) fn close(self) -> Result<()> {
        let closed = self.db.close();
        let given_up = self.volume.map_or(Ok(()), |volume| volume.close());
        closed?;
        given_up?;
        self.tiers.map_or(Ok(()), |tiers| tiers.close())
    }
}

/// Opens or creates the database in `dir`, or on the tiers or in the volume that the flags name.
/// `listeners` are notified of its background work.
pub(crate) fn open(dir: &Path, flags: &Flags, listeners: Listeners) -> Result<Opened> {
    let families = [("default".to_owned(), family_options(flags))].into();
    let tiers = match &flags.storage.tiers {
        Some(file) => Some(Tiers::open(&TierPlan::read(file)?)?),
        None => None,
    };
    let volume = volume::settings(flags)?.as_ref().map(volume::open).transpose()?;
    // Executors find the files of a database only under an absolute path.
    let dir = &std::path::absolute(dir)
        .map_err(|source| Error::io("find the absolute path of", dir, source))?;
    let device = emulated(flags)?;
    let (fs, dir) = match (&tiers, &volume) {
        (Some(tiers), _) => (tiers.file_system(), Path::new(tiers::DATABASE)),
        (_, Some(volume)) => (Arc::clone(volume.files()) as Arc<dyn FileSystem>, volume.dir()),
        _ => (file_system(flags, device.as_ref()), dir.as_path()),
    };
    let io = flags.output.io_statistics.then(|| CountingFs::new(Arc::clone(&fs)));
    let fs = io.as_ref().map_or(fs, |io| Arc::new(io.clone()) as Arc<dyn FileSystem>);
    let offloaded = offloaded(dir, &fs, flags)?;
    let mut components = Components { families, listeners, fs, ..Components::default() };
    offloaded.join(&mut components);
    let db = Db::open_with(dir, db_options(flags), components)?;
    wait_for_nodes(&offloaded)?;
    Ok(Opened { db, tiers, volume, io, device, offloaded })
}

/// The device that the flags name, over the local file system.
fn emulated(flags: &Flags) -> Result<Option<Arc<ThrottledFs>>> {
    let Some(path) = &flags.storage.device else { return Ok(None) };
    let mut spec = tiers::read_device(path)?;
    spec.scale = flags.storage.device_scale.unwrap_or(spec.scale);
    spec.validate()?;
    let local = Arc::new(LocalFs::new());
    Ok(Some(ThrottledFs::new(local, spec, SystemClock::shared())))
}

/// The local file system, as slow as the device.
fn file_system(flags: &Flags, device: Option<&Arc<ThrottledFs>>) -> Arc<dyn FileSystem> {
    let local: Arc<dyn FileSystem> = Arc::new(LocalFs::new());
    match device {
        None => local,
        Some(device) if flags.offload.local_log => LocalLogFs::new(Arc::clone(device) as _, local),
        Some(device) => Arc::clone(device) as _,
    }
}

/// Time within which a memory node must take memtables.
const NODES_MAX: Duration = Duration::from_secs(60);
/// Pause between two checks for a memory node.
const NODES_EVERY: Duration = Duration::from_millis(10);

/// Waits until a memory node takes memtables, if they leave. A benchmark that began before would
/// measure memtables that stay.
fn wait_for_nodes(offloaded: &Offloaded) -> Result<()> {
    let Some(shards) = offloaded.shards() else { return Ok(()) };
    let clock = SystemClock::new();
    let started_ns = clock.now_ns();
    while shards.figures().nodes == 0 {
        if u128::from(clock.now_ns() - started_ns) > NODES_MAX.as_nanos() {
            return Err(Error::invalid(format!(
                "no memory node takes memtables after {NODES_MAX:?}: start one (`archipelago node \
                 memory`) and name its managers with --manager, or choose another --offload_mode"
            )));
        }
        clock.sleep(NODES_EVERY);
    }
    Ok(())
}

/// Starts the components that offload parts of the database in `dir`.
fn offloaded(dir: &Path, fs: &Arc<dyn FileSystem>, flags: &Flags) -> Result<Offloaded> {
    let Some(mode) = flags.offload.offload_mode.mode() else { return Ok(Offloaded::default()) };
    let settings = OwnerSettings {
        managers: flags.offload.manager.split(',').map(endpoint).collect::<Result<_>>()?,
        mode,
        secret: None,
        memtable_bytes_max: flags.offload.remote_memtables_bytes,
        memtable_bytes_guaranteed: 0,
        key_offset_cache_bytes: flags.offload.offset_cache_bytes,
        shard_copies: None,
        staying: flags.offload.local_memtables,
        gc_invalid_files: false,
        address: String::new(),
    };
    let (fs, dir) = (Arc::clone(fs), dir.to_owned());
    Offloaded::start(&Storage { fs, dir, tiers: None, volume: None }, settings)
}

/// Removes the database in `dir`, or on the tiers or in the volume that the flags name. A directory
/// that holds something else is refused, untouched.
pub(crate) fn destroy(dir: &Path, flags: &Flags) -> Result<()> {
    if let Some(file) = &flags.storage.tiers {
        return tiers::destroy(&TierPlan::read(file)?);
    }
    if let Some(settings) = volume::settings(flags)? {
        return volume::destroy(&settings);
    }
    let fs = LocalFs::new();
    if !fs.exists(dir)? {
        return Ok(());
    }
    match inspect(&fs, dir)? {
        DirectoryState::Database(_) => fs.remove_dir_all(dir),
        DirectoryState::Absent => Ok(()),
    }
}
