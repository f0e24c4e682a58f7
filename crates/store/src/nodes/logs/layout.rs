//! The layout of a log as the owner keeps it: the volume of the log, and its extents.
//!
//! The volume is part of it, because every request to a node names the volume, and a recovery has
//! only the layout. `docs/formats/store-values.md` has the byte table.
//!
//! The functions are pure. Failure: `Corrupt` for other bytes, `Unsupported` for another version.

use std::fmt;

use archipelago_base::{Result, wire_struct};

use super::super::log::LogLayout;
use super::super::wire::stored::{Enclosed, decode_enclosed, encode_enclosed};
use crate::ids::VolumeId;
use crate::log::Layout;

/// A log's place on storage nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeLog {
    /// Volume of the log.
    pub volume: VolumeId,
    /// Extents of the log.
    pub layout: LogLayout,
}
wire_struct!(VolumeLog { volume, layout });

impl Enclosed for VolumeLog {
    const VERSION: u8 = 1;
    const NAME: &'static str = "layout of a log on storage nodes";
}

impl VolumeLog {
    /// The form in which the owner keeps it.
    pub(super) fn encode(&self) -> Layout {
        Layout(encode_enclosed(self))
    }

    /// Reads a layout of the log that `log` names.
    pub(super) fn decode(layout: &Layout, log: &dyn fmt::Display) -> Result<Self> {
        decode_enclosed(log, &layout.0)
    }
}
