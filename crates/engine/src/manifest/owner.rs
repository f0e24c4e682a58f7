//! The owner of a database: which open for writing made the last change of ownership.
//!
//! Every open for writing raises the *owner epoch* by an edit. An owner names its epoch and token
//! to the processes that work for it. So such a process can refuse an owner that another one has
//! replaced. A checkpoint has no owner. The module consists of plain values.

use archipelago_base::Epoch;
use archipelago_base::codec::{Reader, put_bytes, put_varint};

/// Largest length in bytes of a log's place.
const PLACE_BYTES_MAX: usize = 4096;

/// The owner of a database, as the manifest names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Number of the open, above that of every earlier one.
    pub epoch: Epoch,
    /// Random number of this open. It distinguishes two owners that both claim one epoch.
    pub token: [u8; 16],
    /// Random id of the database for other processes. A copy of the database gets another one.
    pub offload_id: [u8; 16],
    /// Place of the write-ahead log; empty for the directory of the database.
    pub log_place: String,
}

/// Random numbers that an open draws for its ownership.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnerClaim {
    /// [`Owner::token`] of this open.
    pub token: [u8; 16],
    /// [`Owner::offload_id`] of a database that has none.
    pub offload_id: [u8; 16],
}

impl Owner {
    /// The owner that follows `previous` with the numbers of `claim`. Its log lies in `log_place`.
    pub(super) fn after(previous: Option<&Self>, claim: OwnerClaim, log_place: String) -> Self {
        Self {
            epoch: Epoch(previous.map_or(0, |owner| owner.epoch.0).saturating_add(1)),
            token: claim.token,
            offload_id: previous.map_or(claim.offload_id, |owner| owner.offload_id),
            log_place,
        }
    }

    /// Appends the fields of the change to `out`.
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        put_varint(out, self.epoch.0);
        out.extend_from_slice(&self.token);
        out.extend_from_slice(&self.offload_id);
        put_bytes(out, self.log_place.as_bytes());
    }

    /// Decodes the fields of a change; `None` if they are damaged.
    pub(super) fn decode(reader: &mut Reader<'_>) -> Option<Self> {
        let epoch = Epoch(reader.varint().filter(|&epoch| epoch > 0)?);
        let token = reader.take(16)?.try_into().ok()?;
        let offload_id = reader.take(16)?.try_into().ok()?;
        let place = reader.bytes().filter(|place| place.len() <= PLACE_BYTES_MAX)?;
        let log_place = str::from_utf8(place).ok()?.to_owned();
        Some(Self { epoch, token, offload_id, log_place })
    }
}
