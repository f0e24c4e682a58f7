//! The bytes of one generation of a namespace: header, snapshot, and one frame per commit.
//! `docs/formats/volume.md` has the tables.

use archipelago_base::{Epoch, Result};

use super::record::Record;
use super::state::NamespaceState;
use crate::ids::{LogId, VolumeId};

/// What the header of a generation says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GenerationHeader {
    pub(crate) volume: VolumeId,
    /// Number of the generation; each one of a volume has a larger number.
    pub(crate) number: u64,
    /// Epoch of the owner that wrote it.
    pub(crate) epoch: Epoch,
}

/// The place of a commit in the log of its generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CommitPlace {
    pub(crate) log: LogId,
    /// Offset of the commit's frame, which is the length of the log before it.
    pub(crate) offset: u64,
    /// Offset through which the log is known to be acknowledged when the frame is submitted. A
    /// recovery takes damage before it for corruption, and never for a torn end.
    pub(crate) acknowledged: u64,
}

/// A generation that was read back.
#[derive(Debug)]
pub(crate) struct RecoveredGeneration {
    pub(crate) header: GenerationHeader,
    /// State after the last whole commit.
    pub(crate) state: NamespaceState,
    /// Number of bytes through the end of the last whole commit.
    pub(crate) whole_bytes: u64,
    /// Number of bytes after it. They belong to a commit that was not acknowledged.
    pub(crate) torn_bytes: u64,
    /// Number of whole commits after the snapshot.
    pub(crate) commits: u64,
}

/// Header and snapshot of a new generation: the first bytes of the log `log`. They must be durable
/// before the register names the log. Errors: `InvalidArgument` if a record is too long.
pub(crate) fn encode_generation(
    log: LogId,
    header: &GenerationHeader,
    state: &NamespaceState,
) -> Result<Vec<u8>> { todo!() }

/// Appends the frame of a commit to `out`. A recovery finds all of its records, or none. Errors:
/// `InvalidArgument` if there are no records or if they are too long; `out` is as before then.
pub(crate) fn encode_commit(place: CommitPlace, records: &[Record], out: &mut Vec<u8>) -> Result<()> { todo!() }

/// Decodes the recovered bytes of the log `log`. Errors: `Corrupt` if header or snapshot are not
/// whole, if a commit before the acknowledged end is damaged, or if a whole commit contradicts the
/// state; `Unsupported` for another format version.
pub(crate) fn decode_generation(log: LogId, bytes: &[u8]) -> Result<RecoveredGeneration> { todo!() }
