//! What the tests share: a database over memory, stepped by hand or in threads.

use std::sync::Arc;

use archipelago_engine::db::{Components, Db};
use archipelago_engine::options::{BackgroundMode, CfOptions, DbOptions};
use archipelago_env::mem::MemFs;

/// Small sizes, so that few records make many files.
pub(crate) fn small_family() -> CfOptions {
    CfOptions {
        write_buffer_bytes: 16 << 10,
        level_base_bytes: 64 << 10,
        target_file_bytes: 16 << 10,
        block_bytes: 512,
        buckets: 3,
        ..CfOptions::default()
    }
}

/// Small sizes, stepped by hand.
pub(crate) fn small_db() -> DbOptions {
    DbOptions {
        background: BackgroundMode::Manual,
        wal_segment_bytes: 64 << 10,
        block_cache_bytes: 1 << 20,
        ..DbOptions::default()
    }
}

/// Components over `fs` with `family` as the default family's settings.
pub(crate) fn over(fs: &MemFs, family: CfOptions) -> Components {
    Components {
        fs: Arc::new(fs.clone()),
        families: [("default".to_owned(), family)].into_iter().collect(),
        seed: Some(1),
        ..Components::default()
    }
}

/// A small database in memory.
pub(crate) fn open(fs: &MemFs) -> Db {
    Db::open_with("/db", small_db(), over(fs, small_family())).unwrap()
}
