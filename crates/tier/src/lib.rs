//! Tiered storage: one [`TieredFs`] over a hierarchy of devices (Keigo).
//!
//! A file is placed by its [`archipelago_env::IoContext`] ([`place`], [`scheme`]). The log, and the
//! levels whose writers the fastest device takes, go there. Other files go to slower devices. Files
//! leave a device that gets full ([`migrate`]). Hot files of slower devices are copied to faster
//! ones for reading ([`cache`]). A durable, crash-safe namespace knows the place of every file.
//! `docs/operate/tiers.md` describes the tiers for operators.
//!
//! Layer 2: above `env`, and below the engine, which sees only a `FileSystem`. Decisions are pure
//! functions. The devices do their I/O through `env`.

mod activity;
mod base_levels;
pub mod cache;
mod device;
mod fs;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
mod history;
mod lifecycle;
pub mod migrate;
mod mover;
mod namespace;
pub mod place;
pub mod profile;
pub mod scheme;
pub mod settings;
mod slowness;
pub mod stats;
mod write_slots;

pub use fs::{
    Components, DeviceParts, Emptied, ExclusiveDevices, ExistingFile, FaultPoint, FileInfo,
    TierDirEntry, TierFile, TieredFs, forget_device,
};
pub use history::{Event, Reason};
pub use settings::{CacheBy, DeviceKind, DeviceSettings, Policy};
pub use stats::TierStats;
