//! What the metadata of a node keep about an extent. `docs/formats/extent.md` has the table.
//!
//! The record names the parts of the extent, and is replaced as a whole. So a part counts from the
//! moment on at which a record with it is durable.
//!
//! Invariants:
//! 1. An extent has a record before its first append is answered, so a node that lost its bytes
//!    still knows that there were some.
//! 2. The starts of parts ascend. A part ends where the next one starts.
//!
//! All functions are pure. Failure: `Corrupt` names the extent. Cost: O(parts).

use archipelago_base::codec::{Reader, put_u8, put_u64, put_varint};
use archipelago_base::{Epoch, Error, ErrorKind, Result};
use archipelago_env::FileClass;
use archipelago_store::nodes::wire::ExtentAt;
use archipelago_store::{LogId, VolumeId};

/// Version of the record.
const RECORD_VERSION: u8 = 1;
/// The extent takes no more bytes.
const FLAG_SEALED: u8 = 1;
/// The node may have lost unsynced bytes of the extent.
const FLAG_LIMBO: u8 = 2;

/// A part of an extent: one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PartRecord {
    /// Number of the part, which its name contains.
    pub(crate) number: Epoch,
    /// Offset in the log of its first byte.
    pub(crate) start: u64,
}

/// The durable state of an extent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ExtentRecord {
    /// Volume of the log.
    pub(crate) volume: VolumeId,
    /// Class of the file.
    pub(crate) class: FileClass,
    /// Epoch of the request that created the extent.
    pub(crate) epoch: Epoch,
    /// Offset in the log at which the extent begins.
    pub(crate) start: u64,
    /// Offset at which it was sealed.
    pub(crate) sealed: Option<u64>,
    /// Whether the node may have lost unsynced bytes.
    pub(crate) is_in_limbo: bool,
    /// The parts, in the order of their starts.
    pub(crate) parts: Vec<PartRecord>,
}

impl ExtentRecord {
    /// The bytes of the record.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(64);
        put_u8(&mut out, RECORD_VERSION);
        out.extend_from_slice(&self.volume.0);
        put_u8(&mut out, self.class.code());
        put_u64(&mut out, self.epoch.0);
        put_u64(&mut out, self.start);
        let limbo = if self.is_in_limbo { FLAG_LIMBO } else { 0 };
        let sealed = if self.sealed.is_some() { FLAG_SEALED } else { 0 };
        put_u8(&mut out, sealed | limbo);
        put_u64(&mut out, self.sealed.unwrap_or(0));
        put_varint(&mut out, self.parts.len() as u64);
        for part in &self.parts {
            put_u64(&mut out, part.number.0);
            put_u64(&mut out, part.start);
        }
        out
    }

    /// Reads the record of the extent `at`.
    pub(crate) fn decode(at: ExtentAt, bytes: &[u8]) -> Result<Self> {
        let mut reader = Reader::new(bytes);
        match reader.u8() {
            Some(RECORD_VERSION) => {}
            version => {
                return Err(Error::unsupported(format!(
                    "extent {at}: its record has version {}, and this program reads version \
                     {RECORD_VERSION}: use the program that wrote it",
                    version.unwrap_or(0)
                )));
            }
        }
        let record = Self::fields(&mut reader).filter(|_| reader.is_empty());
        record.ok_or_else(|| {
            Error::new(ErrorKind::Corrupt, format!("extent {at}: its record cannot be read"))
        })
    }

    fn fields(reader: &mut Reader<'_>) -> Option<Self> {
        let volume = VolumeId(reader.take(16)?.try_into().ok()?);
        let class = FileClass::from_code(reader.u8()?)?;
        let (epoch, start) = (Epoch(reader.u64()?), reader.u64()?);
        let flags = reader.u8()?;
        let end = reader.u64()?;
        let mut parts = Vec::new();
        for _ in 0..reader.varint()? {
            // A count without its parts ends here, before it costs memory.
            parts.push(PartRecord { number: Epoch(reader.u64()?), start: reader.u64()? });
        }
        let is_known = flags & !(FLAG_SEALED | FLAG_LIMBO) == 0;
        let is_sound = is_known && parts.is_sorted_by(|a, b| a.start <= b.start);
        let sealed = (flags & FLAG_SEALED != 0).then_some(end);
        let is_in_limbo = flags & FLAG_LIMBO != 0;
        is_sound.then_some(Self { volume, class, epoch, start, sealed, is_in_limbo, parts })
    }
}

/// The key of an extent in the metadata: the extents of a log stand together, in order.
pub(crate) fn extent_key(at: ExtentAt) -> [u8; 20] {
    let mut key = [0; 20];
    key[..16].copy_from_slice(&at.log.0);
    key[16..].copy_from_slice(&at.extent.to_be_bytes());
    key
}

/// The extent of a key.
pub(crate) fn extent_of_key(key: &[u8]) -> Result<ExtentAt> {
    let parts = key.split_first_chunk::<16>();
    let at = parts.and_then(|(log, extent)| {
        let extent = u32::from_be_bytes(extent.try_into().ok()?);
        Some(ExtentAt { log: LogId(*log), extent })
    });
    at.ok_or_else(|| Error::new(ErrorKind::Corrupt, format!("the key {key:02x?} is no extent")))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A record in which every field differs.
    pub(crate) fn record() -> ExtentRecord {
        ExtentRecord {
            volume: VolumeId(*b"id of the volume"),
            class: FileClass::Wal,
            epoch: Epoch(3),
            start: 0x100,
            sealed: Some(0x300),
            is_in_limbo: false,
            parts: vec![
                PartRecord { number: Epoch(5), start: 0x100 },
                PartRecord { number: Epoch(6), start: 0x200 },
            ],
        }
    }

    #[test]
    fn golden_bytes_do_not_change() {
        let hex: String = record().encode().iter().map(|byte| format!("{byte:02x}")).collect();
        let head = "016964206f662074686520766f6c756d65010300000000000000";
        let ends = "0001000000000000010003000000000000";
        let parts = "020500000000000000000100000000000006000000000000000002000000000000";
        assert_eq!(hex, format!("{head}{ends}{parts}"));
    }

    #[test]
    fn record_round_trips_with_every_flag() {
        let at = ExtentAt { log: LogId([1; 16]), extent: 2 };
        for (sealed, is_in_limbo) in [(None, false), (None, true), (Some(9), false)] {
            let record = ExtentRecord { sealed, is_in_limbo, ..record() };
            assert_eq!(ExtentRecord::decode(at, &record.encode()).unwrap(), record);
        }
        assert_eq!(extent_of_key(&extent_key(at)).unwrap(), at);
    }

    #[test]
    fn cut_or_foreign_record_is_refused() {
        let at = ExtentAt::default();
        let bytes = record().encode();
        for cut in 0..bytes.len() {
            assert!(ExtentRecord::decode(at, &bytes[..cut]).is_err(), "{cut} bytes");
        }
        assert!(ExtentRecord::decode(at, &[&bytes[..], &[0]].concat()).is_err());
        let mut other = bytes;
        other[0] = 2;
        let error = ExtentRecord::decode(at, &other).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(extent_of_key(&[0; 19]).is_err() && extent_of_key(&[0; 21]).is_err());
    }
}
