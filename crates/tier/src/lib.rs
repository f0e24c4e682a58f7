//! Tiered storage: one [`TieredFs`] over a hierarchy of devices (Keigo).
//!
//! A file goes to the device that its [`archipelago_env::IoContext`] says: the log and the levels
//! whose writers the fastest device takes to that, the rest by capacity ([`place`], [`scheme`]).
//! Files leave a device that gets full ([`migrate`]), and hot files of slower devices are copied up
//! for reading ([`cache`]). The namespace that knows where everything lies is durable and
//! crash-safe. `docs/operate/tiers.md` tells it to operators.
//!
//! Layer 2: above `env`, below the engine, which sees a `FileSystem` and nothing else. Decisions
//! are pure functions; the devices do their I/O through `env`.

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
    Components, DeviceParts, Emptied, ExclusiveDevices, FaultPoint, FileInfo, TierFile, TieredFs,
    forget_device,
};
pub use history::{Event, Reason};
pub use settings::{CacheBy, DeviceKind, DeviceSettings, Policy};
pub use stats::TierStats;
