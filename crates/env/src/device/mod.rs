//! Emulated devices: the speed of a disk or a volume as a value.
//!
//! [`DeviceSpec`] is the description, which is read from TOML. Its pure functions compute the
//! duration of an operation and the share of each of several streams. [`ThrottledFs`] makes any
//! file system as slow as that. `docs/guide/emulated-devices.md` explains the model and its fields.
//! The files in `docs/devices` describe three devices.

mod handles;
mod queues;
mod spec;
mod stats;
mod throttled;

pub use self::spec::{DeviceSpec, Direction};
pub use self::stats::{DeviceCounts, DeviceStats};
pub use self::throttled::ThrottledFs;
