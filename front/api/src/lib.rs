//! **Archipelago**: an ordered key-value store for disaggregated data centres.
//!
//! A program embeds this crate: it opens a directory, puts, gets and iterates. The interface is
//! synchronous, and any thread may make any call.
//!
//! ```
//! use archipelago::{Db, DbOptions, ReadOptions};
//!
//! let dir = tempfile::tempdir()?;
//! let db = Db::open(dir.path(), DbOptions::default())?;
//! db.put(b"reef:1", b"coral")?;
//! db.put(b"reef:2", b"sponge")?;
//! assert_eq!(db.get(b"reef:1")?.as_deref(), Some(&b"coral"[..]));
//! let mut iter = db.iter(db.default_family(), &ReadOptions::new().prefix(b"reef:"))?;
//! iter.seek_to_last();
//! assert_eq!(iter.value(), b"sponge");
//! drop(iter);
//! db.close()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Durability: a write that has returned survives `kill -9` of the process. With
//! [`WriteOptions::sync`] it also survives power loss. [`Db`] has the details.
//!
//! A [`Transaction`] reads and writes as if no other write existed. If another write changes what
//! it has read, its commit fails with a [`Conflict`], and the program runs it again:
//!
//! ```
//! use archipelago::{Conflict, Db, DbOptions, WriteOptions};
//!
//! let dir = tempfile::tempdir()?;
//! let db = Db::open(dir.path(), DbOptions::default())?;
//! let cf = db.default_family();
//! let mut transaction = db.transaction();
//! loop {
//!     let visits = transaction.get(cf, b"visits")?.map_or(0, |value| value[0]);
//!     transaction.put(cf, b"visits", &[visits + 1])?;
//!     match transaction.commit(&WriteOptions::default()) {
//!         Ok(_) => break,
//!         Err(error) if Conflict::of(&error).is_some() => transaction.rollback(),
//!         Err(error) => return Err(error.into()),
//!     }
//! }
//! assert_eq!(db.get(b"visits")?.as_deref(), Some(&[1][..]));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

// Errors, identifiers and byte budgets.
pub use archipelago_base::budget::{ByteBudget, MemoryClass};
pub use archipelago_base::{CfId, Error, ErrorKind, Result, SeqNo};

// Clocks, randomness, threads and summaries of measurements, which a program can replace or use.
pub use archipelago_base::clock::{Clock, ManualClock, SystemClock};
pub use archipelago_base::metrics::Summary;
pub use archipelago_base::random::{Rng, entropy_seed};
pub use archipelago_base::spawn::{Joiner, Spawn, SystemSpawn};

// A database by a settings file, over a directory or over tiers.
pub use archipelago_compute::{ComputeNode, Settings, Storage, default_dir, load_settings};

// The database: handles, reads, maintenance and reports.
pub use archipelago_engine::db::{
    BucketChange, BucketInfo, ColumnFamily, CompactRangeOptions, Components, DatabaseReport, Db,
    DiskReport, FamilyReport, HealthState, IngestOptions, Iter, JobKind, LastLevel, LevelInfo,
    OnProgress, PinnedInfo, ReadOptions, Snapshot, SpaceInfo, ValueEntry, ValueFileInfo,
    ValuesReport, VerifyReport,
};
pub use archipelago_engine::disk_space::{SpaceState, SpaceUse};
pub use archipelago_engine::job::Cancel;
pub use archipelago_engine::key::KeyRange;
pub use archipelago_engine::pinned::PinnedSlice;

// Settings of a database, of a column family and of one write.
pub use archipelago_engine::options::{
    CfOptions, Compression, DbOptions, RecoveryMode, WriteOptions,
};
pub use archipelago_env::GroupAccess;

// Batches, transactions and tables that a program writes for ingestion.
pub use archipelago_engine::sst::{SstWriter, TableOptions};
pub use archipelago_engine::transaction::{
    Conflict, Isolation, KeyWatch, LockMode, Locking, Transaction, TransactionIter,
    TransactionOptions,
};
pub use archipelago_engine::wal::WriteBatch;

// Extensions, events and statistics.
pub use archipelago_engine::border::running_extension;
pub use archipelago_engine::event::{Event, EventListener, Listeners};
pub use archipelago_engine::extension::{
    CompactionFilter, FilterDecision, MergeOperator, Registry,
};
pub use archipelago_engine::stats::{Statistics, Ticker, Timer};

pub mod env {
    //! Files: the interface below the engine and the tiers, and the local file system.

    pub use archipelago_env::{FileClass, FileSystem, IoContext, IoPurpose};

    pub mod local {
        //! Directories of the machine.

        pub use archipelago_env::local::LocalFs;
    }
}

pub mod tier {
    //! Tiers: one file system over several devices.

    pub use archipelago_tier::profile;
    pub use archipelago_tier::{
        Components, DeviceKind, DeviceSettings, ExclusiveDevices, Policy, TieredFs,
    };

    pub mod scheme {
        //! The placement scheme: the devices as they were measured, and the levels of the fastest.

        pub use archipelago_tier::scheme::{DeviceProfile, ObservedLoad, Scheme};
    }
}

pub mod storage {
    //! Where a database on tiers keeps its list of devices.

    pub use archipelago_compute::storage::{DATABASE, TIERS_ROOT, devices_of, remove_device};
}

pub mod volume {
    //! Volumes of a storage cluster, in which a database can lie instead of a directory.

    pub use archipelago_compute::volume::{
        LogWriting, RedundancyMode, Secret, VolumeSettings, VolumeStorage,
    };
}

pub mod repair {
    //! Verification of a damaged database's files, and copying what is whole into a new one.

    pub use archipelago_engine::repair::{
        DamageReport, LinkTables, LogAfterDamage, Loss, LossEffect, LossScope, RepairOptions,
        RepairProgress, RepairReport, RepairedFamily, repair, verify_files,
    };
}

pub mod inspect {
    //! Inspection of a database's files without opening the database.
    use std::path::Path;
    use std::sync::Arc;

    use archipelago_base::{ErrorKind, Result};
    pub use archipelago_engine::manifest::dump as dump_manifest;
    pub use archipelago_engine::sst::DumpedRecords;
    use archipelago_engine::sst::dump_file;
    use archipelago_env::{FileClass, FileLock, FileSystem, IoContext, IoPurpose, OpenOptions};

    /// Takes the lock of the database in `dir`. Errors: `Busy` if the database is open elsewhere,
    /// `NotFound` if there is no database.
    pub fn lock(fs: &dyn FileSystem, dir: &Path) -> Result<Box<dyn FileLock>> {
        let path = dir.join(archipelago_engine::file_meta::LOCK_NAME);
        if !fs.exists(&path)? {
            return Err(archipelago_base::Error::new(
                ErrorKind::NotFound,
                format!("{} has no database", dir.display()),
            ));
        }
        fs.lock(&path)
    }

    /// The table or value file at `path` as text: its properties, its range tombstones, and the
    /// records that `shown` asks for. Errors: `Corrupt` if the file is neither.
    pub fn dump_sst(fs: &Arc<dyn FileSystem>, path: &Path, shown: DumpedRecords) -> Result<String> {
        let context = IoContext::new(FileClass::Sst, IoPurpose::Maintenance);
        let file = fs.open(path, context, OpenOptions::default())?;
        dump_file(&file, path, shown, context)
    }
}

/// Hooks of tests, which the crate does not offer:
///
/// ```compile_fail,E0432
/// use archipelago::env::fault;
/// ```
/// ```compile_fail,E0432
/// use archipelago::tier::fuzz;
/// ```
/// ```compile_fail,E0432
/// use archipelago::BackgroundMode;
/// ```
#[cfg(doctest)]
struct Hooks;

/// The README's program, which compiles as a documentation test.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

/// The guide's program, which compiles as a documentation test.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/rust.md")]
struct RustGuide;
