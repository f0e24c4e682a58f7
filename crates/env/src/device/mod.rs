//! Devices that are described rather than owned: how fast a disk or a volume is, as a value.
//!
//! [`DeviceSpec`] is the description, read from TOML, with pure functions that say how long an
//! operation takes and what each of many streams gets. `docs/devices.md` explains the model and
//! has the fields; the files beside it describe three devices.

mod spec;

pub use self::spec::{DeviceSpec, Direction};
