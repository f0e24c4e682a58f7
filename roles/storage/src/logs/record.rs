//! The record of an extent in the metadata of a node. `docs/formats/extent.md` has the table.
//!
//! The record names the parts of the extent, and is replaced as a whole. So a part counts from the
//! moment on at which a record with it is durable.
//!
//! Invariants:
//! 1. An extent has a record before its first append is answered. So a node that lost the bytes of
//!    an extent still knows that the extent had bytes.
//! 2. The starts of parts ascend. A part ends where the next one starts.
//! 3. No offset of a record lies before the begin of the extent, and no part begins behind the end
//!    of a sealed one. A decoder refuses other records.
//!
//! All functions are pure. Failure: `Corrupt` names the extent. Cost: O(parts).

use archipelago_base::codec::{Reader, put_u8, put_u64, put_varint};
use archipelago_base::{Epoch, Error, ErrorKind, Result};
use archipelago_env::FileClass;
use archipelago_store::nodes::wire::ExtentAt;
use archipelago_store::{LogId, VolumeId};

/// Version of the record.
const RECORD_VERSION: u8 = 2;
/// The extent takes no more bytes.
const FLAG_SEALED: u8 = 1;
/// The node may have lost unsynced bytes of the extent.
const FLAG_LIMBO: u8 = 2;
/// The node has found damage of stored bytes.
const FLAG_DAMAGED: u8 = 4;
/// A sync of the extent has failed.
const FLAG_SYNC_FAILED: u8 = 8;

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
    /// Offset of the first byte that is damaged or missing although it was durable.
    pub(crate) damaged_from: Option<u64>,
    /// Offset from which on bytes are not durable until they are written anew. A sync of them
    /// failed. The kernel may have dropped the bytes, and the next sync would not report that
    /// again.
    pub(crate) unsure_from: Option<u64>,
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
        let flags = [
            (self.sealed.is_some(), FLAG_SEALED),
            (self.is_in_limbo, FLAG_LIMBO),
            (self.damaged_from.is_some(), FLAG_DAMAGED),
            (self.unsure_from.is_some(), FLAG_SYNC_FAILED),
        ];
        let set = flags.iter().filter(|(is_set, _)| *is_set);
        put_u8(&mut out, set.map(|(_, flag)| flag).sum());
        for offset in [self.sealed, self.damaged_from, self.unsure_from] {
            put_u64(&mut out, offset.unwrap_or(0));
        }
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
        let mut offset_of = |flag| Some((flags & flag != 0).then_some(reader.u64()?));
        let sealed = offset_of(FLAG_SEALED)?;
        let damaged_from = offset_of(FLAG_DAMAGED)?;
        let unsure_from = offset_of(FLAG_SYNC_FAILED)?;
        let mut parts = Vec::new();
        for _ in 0..reader.varint()? {
            // A count that exceeds the parts in the bytes is refused here, before memory is
            // allocated for it.
            parts.push(PartRecord { number: Epoch(reader.u64()?), start: reader.u64()? });
        }
        let known = FLAG_SEALED | FLAG_LIMBO | FLAG_DAMAGED | FLAG_SYNC_FAILED;
        let is_in_limbo = flags & FLAG_LIMBO != 0;
        let record = Self {
            volume,
            class,
            epoch,
            start,
            sealed,
            is_in_limbo,
            damaged_from,
            unsure_from,
            parts,
        };
        (flags & !known == 0 && record.is_sound()).then_some(record)
    }

    /// Whether the offsets fit together.
    fn is_sound(&self) -> bool {
        let offsets = [self.sealed, self.damaged_from, self.unsure_from];
        let end = self.sealed.unwrap_or(u64::MAX);
        let is_inside = |part: &PartRecord| (self.start..=end).contains(&part.start);
        offsets.iter().flatten().all(|offset| *offset >= self.start)
            && self.parts.iter().all(is_inside)
            && self.parts.is_sorted_by(|a, b| a.start <= b.start)
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
            damaged_from: None,
            unsure_from: None,
            parts: vec![
                PartRecord { number: Epoch(5), start: 0x100 },
                PartRecord { number: Epoch(6), start: 0x200 },
            ],
        }
    }

    #[test]
    fn golden_bytes_do_not_change() {
        let hex: String = record().encode().iter().map(|byte| format!("{byte:02x}")).collect();
        let head = "026964206f662074686520766f6c756d65010300000000000000";
        let ends = ["0001000000000000", "01", "0003000000000000", &"00".repeat(16)].concat();
        let parts = "020500000000000000000100000000000006000000000000000002000000000000";
        assert_eq!(hex, format!("{head}{ends}{parts}"));
    }

    #[test]
    fn record_round_trips_with_every_flag() {
        let at = ExtentAt { log: LogId([1; 16]), extent: 2 };
        for flags in 0..16 {
            let offset = |flag: u8, at: u64| (flags & flag != 0).then_some(at);
            let record = ExtentRecord {
                sealed: offset(1, 0x300),
                is_in_limbo: flags & 2 != 0,
                damaged_from: offset(4, 0x150),
                unsure_from: offset(8, 0x100),
                ..record()
            };
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
        other[0] = 1;
        let error = ExtentRecord::decode(at, &other).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        let before = |offset: u64| Some(offset - 1);
        for contradiction in [
            ExtentRecord { sealed: before(0x100), parts: Vec::new(), ..record() },
            ExtentRecord { sealed: before(0x200), ..record() },
            ExtentRecord { damaged_from: before(0x100), ..record() },
            ExtentRecord { unsure_from: before(0x100), ..record() },
            ExtentRecord { start: 0x101, ..record() },
        ] {
            let error = ExtentRecord::decode(at, &contradiction.encode()).unwrap_err();
            assert!(error.to_string().contains(&at.to_string()), "{error}");
        }
        assert!(extent_of_key(&[0; 19]).is_err() && extent_of_key(&[0; 21]).is_err());
    }
}
