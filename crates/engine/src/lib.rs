//! The LSM engine: an ordered, crash-safe key-value store whose unit is the bucket.
//!
//! Layer 3 of the crates. The engine knows no network: files come from
//! [`archipelago_env::FileSystem`], and memtable memory comes from a slab source. `ARCHITECTURE.md`
//! follows one write and one read through the modules.

pub mod border;
pub mod bucket;
pub mod event;
pub mod extension;
pub mod file_meta;
pub mod iter;
pub mod key;
pub mod live_file;
pub mod lock_order;
pub mod lookup;
pub mod options;
pub mod pinned;
pub mod table_content;
pub mod tombstone;
mod value_check;
pub mod value_ref;

pub mod cache;
pub mod compaction;
pub(crate) mod concurrency;
pub mod db;
pub mod disk_space;
pub mod executor;
pub mod flush;
pub mod gc;
pub(crate) mod indexed_batch;
pub mod job;
pub mod manifest;
mod memory_shares;
pub mod memtable;
pub mod remote;
pub mod repair;
pub mod sabotage;
pub mod sst;
pub mod stall;
pub mod stats;
pub mod table_cache;
pub mod transaction;
pub(crate) mod value;
pub mod version;
pub mod wal;
