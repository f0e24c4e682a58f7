//! Devices that are described rather than owned: how fast a disk or a volume is, as a value.
//!
//! [`DeviceSpec`] is the description, read from TOML, with pure functions that say how long an
//! operation takes and what each of many streams gets. [`ThrottledFs`] makes any file system as
//! slow as that. `docs/guide/emulated-devices.md` explains the model and has the fields; the
//! files in `docs/devices` describe three devices.

mod handles;
mod queues;
mod spec;
mod stats;
mod throttled;

pub use self::spec::{DeviceSpec, Direction};
pub use self::stats::{DeviceCounts, DeviceStats};
pub use self::throttled::ThrottledFs;
