//! Bytes of the files of an extent: a header, and groups with checksums. `docs/formats/extent.md`
//! has the tables.
//!
//! An extent consists of *parts*, one file each. The first append creates the first part. Another
//! part follows when a node continues an extent after a restart, or when a recovery puts bytes into
//! an extent. Each append becomes one group.
//!
//! Invariants:
//! 1. The checksum of a group covers its extent, its offset in the log, and its length, so that a
//!    group counts only in its own place.
//! 2. A decoder returns a value or a reason for every input. A header whose part starts before its
//!    extent is damaged.
//! 3. A header with a wrong checksum is damaged, whatever its version says.
//!
//! All functions are pure. Failure: [`BadHeader`]. Cost: O(bytes), and a thousand combinations of
//! checksums for a group that looks torn.

use std::fmt;

use archipelago_base::Epoch;
use archipelago_base::checksum::{crc, crc_append, crc_combine};
use archipelago_env::FileClass;
use archipelago_store::nodes::wire::ExtentAt;
use archipelago_store::{LogId, VolumeId};

/// First bytes of a part.
const MAGIC: [u8; 8] = *b"ARCHEXTN";
/// Version of the format.
const FORMAT_VERSION: u32 = 1;
/// Bytes of the header of a part.
pub(crate) const HEADER_BYTES: usize = 112;
/// Bytes of a group before those of the log: length and checksum.
pub(crate) const GROUP_HEADER_BYTES: usize = 8;
/// Limit of the bytes of a group, so that a damaged length is noticed. An append is shorter.
pub(crate) const GROUP_BYTES_MAX: u32 = 8 << 20;

/// The header of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PartHeader {
    /// Extent of the part.
    pub(crate) at: ExtentAt,
    /// Volume of the log.
    pub(crate) volume: VolumeId,
    /// Class of the file.
    pub(crate) class: FileClass,
    /// Epoch of the request that created the part.
    pub(crate) epoch: Epoch,
    /// Offset in the log at which the extent begins.
    pub(crate) extent_start: u64,
    /// Offset in the log of the first byte of the part.
    pub(crate) start: u64,
    /// Number of the part, which the node never uses twice.
    pub(crate) part: Epoch,
    /// Boot id of the machine at the creation; zeros if it is unknown.
    pub(crate) boot_id: [u8; 16],
}

/// Reason for which bytes are not the header of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BadHeader {
    /// The bytes are damaged, or were never written.
    Damaged,
    /// A header with a right checksum, of another version of the format.
    Version(u32),
}

impl fmt::Display for BadHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Damaged => f.write_str("its header is damaged"),
            Self::Version(version) => write!(
                f,
                "its format has version {version}, and this program reads version \
                 {FORMAT_VERSION}: use the program that wrote it"
            ),
        }
    }
}

impl PartHeader {
    /// The bytes of the header.
    pub(crate) fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.at.extent.to_le_bytes());
        bytes[16..32].copy_from_slice(&self.at.log.0);
        bytes[32..48].copy_from_slice(&self.volume.0);
        bytes[48..56].copy_from_slice(&self.epoch.0.to_le_bytes());
        bytes[56..64].copy_from_slice(&self.extent_start.to_le_bytes());
        bytes[64..72].copy_from_slice(&self.start.to_le_bytes());
        bytes[72..80].copy_from_slice(&self.part.0.to_le_bytes());
        bytes[80..96].copy_from_slice(&self.boot_id);
        bytes[96] = self.class.code();
        let sum = crc(&bytes[..HEADER_BYTES - 4]);
        bytes[HEADER_BYTES - 4..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// The header that `bytes` begin with.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, BadHeader> {
        let bytes: &[u8; HEADER_BYTES] = bytes.first_chunk().ok_or(BadHeader::Damaged)?;
        // The checksum comes before the version. A version that rotted would otherwise count as
        // another format, and the node would not open. Every version has this checksum here.
        let sum = u32::from_le_bytes(part_of(bytes, HEADER_BYTES - 4));
        if bytes[..8] != MAGIC || crc(&bytes[..HEADER_BYTES - 4]) != sum {
            return Err(BadHeader::Damaged);
        }
        let version = u32::from_le_bytes(part_of(bytes, 8));
        if version != FORMAT_VERSION {
            return Err(BadHeader::Version(version));
        }
        let u64_at = |at| u64::from_le_bytes(part_of(bytes, at));
        let extent = u32::from_le_bytes(part_of(bytes, 12));
        if u64_at(56) > u64_at(64) {
            return Err(BadHeader::Damaged);
        }
        Ok(Self {
            at: ExtentAt { log: LogId(part_of(bytes, 16)), extent },
            volume: VolumeId(part_of(bytes, 32)),
            class: FileClass::from_code(bytes[96]).ok_or(BadHeader::Damaged)?,
            epoch: Epoch(u64_at(48)),
            extent_start: u64_at(56),
            start: u64_at(64),
            part: Epoch(u64_at(72)),
            boot_id: part_of(bytes, 80),
        })
    }
}

fn part_of<const N: usize>(bytes: &[u8; HEADER_BYTES], at: usize) -> [u8; N] {
    let mut part = [0; N];
    part.copy_from_slice(&bytes[at..at + N]);
    part
}

/// The length and the checksum of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GroupHeader {
    /// Number of bytes of the log.
    pub(crate) len: u32,
    /// CRC-32C of the group's place and its bytes.
    crc: u32,
}

impl GroupHeader {
    /// The header of a group of `bytes` at `offset` of the log.
    pub(crate) fn new(at: ExtentAt, offset: u64, bytes: &[u8]) -> Self {
        let len = bytes.len() as u32;
        Self { len, crc: group_crc(at, offset, bytes) }
    }

    /// The bytes of the header.
    pub(crate) fn encode(self) -> [u8; GROUP_HEADER_BYTES] {
        let mut bytes = [0; GROUP_HEADER_BYTES];
        bytes[..4].copy_from_slice(&self.len.to_le_bytes());
        bytes[4..].copy_from_slice(&self.crc.to_le_bytes());
        bytes
    }

    /// The header in `bytes`, unchecked.
    pub(crate) fn decode(bytes: [u8; GROUP_HEADER_BYTES]) -> Self {
        let [a, b, c, d, e, f, g, h] = bytes;
        Self { len: u32::from_le_bytes([a, b, c, d]), crc: u32::from_le_bytes([e, f, g, h]) }
    }

    /// Whether the bytes of the header were never written.
    pub(crate) fn is_unwritten(self) -> bool {
        self.len == 0 && self.crc == 0
    }

    /// Whether the length is one that a writer writes.
    pub(crate) fn has_plausible_length(self) -> bool {
        (1..=GROUP_BYTES_MAX).contains(&self.len)
    }

    /// Whether `bytes` are those of the group at `offset` of the log.
    pub(crate) fn matches(self, at: ExtentAt, offset: u64, bytes: &[u8]) -> bool {
        self.len as usize == bytes.len() && self.crc == group_crc(at, offset, bytes)
    }

    /// Whether `rest`, the bytes of the part behind the header, prove that the whole group was
    /// written, although its length says that bytes are missing. The checksum then holds for all of
    /// them, or for a length that differs in one byte. That of an append which a kill tore does
    /// not hold for its first bytes.
    pub(crate) fn has_rotten_length(self, at: ExtentAt, offset: u64, rest: &[u8]) -> bool {
        let with_byte = |index: usize, byte: u8| {
            let mut len = self.len.to_le_bytes();
            len[index] = byte;
            u32::from_le_bytes(len) as usize
        };
        let lengths = (0..4)
            .flat_map(|index| (0..=u8::MAX).map(move |byte| with_byte(index, byte)))
            .chain([rest.len()]);
        let mut lengths: Vec<usize> =
            lengths.filter(|len| (1..=rest.len()).contains(len)).collect();
        lengths.sort_unstable();
        let (mut sum, mut summed) = (crc(&[]), 0);
        lengths.into_iter().any(|len| {
            sum = crc_append(sum, &rest[summed..len]);
            summed = len;
            self.crc == crc_combine(place_crc(at, offset, len as u32), sum, len)
        })
    }
}

fn group_crc(at: ExtentAt, offset: u64, bytes: &[u8]) -> u32 {
    crc_append(place_crc(at, offset, bytes.len() as u32), bytes)
}

/// CRC-32C of the bytes that the checksum of a group covers before those of the log.
fn place_crc(at: ExtentAt, offset: u64, len: u32) -> u32 {
    let mut place = [0; 32];
    place[..16].copy_from_slice(&at.log.0);
    place[16..20].copy_from_slice(&at.extent.to_le_bytes());
    place[20..28].copy_from_slice(&offset.to_le_bytes());
    place[28..].copy_from_slice(&len.to_le_bytes());
    crc(&place)
}

/// Name of the file of a part.
pub(crate) fn part_name(at: ExtentAt, part: Epoch) -> String {
    format!("{}-{:08x}-{:016x}", at.log, at.extent, part.0)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Gives the header in `bytes` another version, and its checksum.
    pub(crate) fn set_version(bytes: &mut [u8], version: u32) {
        bytes[8..12].copy_from_slice(&version.to_le_bytes());
        let sum = crc(&bytes[..HEADER_BYTES - 4]);
        bytes[HEADER_BYTES - 4..HEADER_BYTES].copy_from_slice(&sum.to_le_bytes());
    }

    /// A header in which every field differs.
    pub(crate) fn header() -> PartHeader {
        PartHeader {
            at: ExtentAt { log: LogId(*b"identity: a log."), extent: 7 },
            volume: VolumeId(*b"id of the volume"),
            class: FileClass::Manifest,
            epoch: Epoch(3),
            extent_start: 0x100,
            start: 0x200,
            part: Epoch(0x1_0000_0002),
            boot_id: *b"id of this boot.",
        }
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn golden_bytes_do_not_change() {
        let bytes = header().encode();
        let head = "415243484558544e0100000007000000";
        let ids = "6964656e746974793a2061206c6f672e6964206f662074686520766f6c756d65";
        let offsets = "0300000000000000000100000000000000020000000000000200000001000000";
        let rest = "6964206f66207468697320626f6f742e030000000000000000000000";
        assert_eq!(hex(&bytes[..HEADER_BYTES - 4]), format!("{head}{ids}{offsets}{rest}"));
        assert_eq!(u32::from_le_bytes(part_of(&bytes, 108)), crc(&bytes[..108]));
        let group = GroupHeader::new(header().at, 0x200, b"coral").encode();
        let place = [&header().at.log.0[..], &[7, 0, 0, 0], &[0, 2, 0, 0, 0, 0, 0, 0]].concat();
        let covered = [&place[..], &[5, 0, 0, 0], b"coral"].concat();
        assert_eq!(hex(&group), format!("05000000{}", hex(&crc(&covered).to_le_bytes())));
        assert_eq!(
            part_name(header().at, header().part),
            "6964656e746974793a2061206c6f672e-00000007-0000000100000002"
        );
    }

    #[test]
    fn every_changed_or_missing_byte_of_a_header_is_refused() {
        let bytes = header().encode();
        assert_eq!(PartHeader::decode(&bytes), Ok(header()));
        for at in 0..bytes.len() {
            let mut damaged = bytes;
            damaged[at] ^= 0x10;
            assert_eq!(PartHeader::decode(&damaged), Err(BadHeader::Damaged), "byte {at}");
            assert_eq!(PartHeader::decode(&bytes[..at]), Err(BadHeader::Damaged));
        }
        let contradiction = PartHeader { extent_start: header().start + 1, ..header() };
        assert_eq!(PartHeader::decode(&contradiction.encode()), Err(BadHeader::Damaged));
    }

    #[test]
    fn only_a_right_checksum_makes_another_version_of_a_header() {
        for version in [0, 2, u32::MAX] {
            let mut other = header().encode();
            set_version(&mut other, version);
            assert_eq!(PartHeader::decode(&other), Err(BadHeader::Version(version)));
            other[HEADER_BYTES - 1] ^= 1;
            assert_eq!(PartHeader::decode(&other), Err(BadHeader::Damaged));
        }
    }

    #[test]
    fn group_counts_only_in_its_own_place() {
        let at = header().at;
        let group = GroupHeader::new(at, 500, b"coral");
        assert!(group.matches(at, 500, b"coral"));
        assert!(!group.matches(at, 501, b"coral"));
        assert!(!group.matches(ExtentAt { extent: 8, ..at }, 500, b"coral"));
        assert!(!group.matches(ExtentAt { log: LogId([0; 16]), ..at }, 500, b"coral"));
        assert!(!group.matches(at, 500, b"corak"));
        assert!(!group.matches(at, 500, b"cora"));
    }

    #[test]
    fn rotten_length_is_told_from_a_torn_group() {
        let at = header().at;
        let group = GroupHeader::new(at, 500, b"coral");
        assert!(!group.has_rotten_length(at, 500, b"cora"));
        for index in 0..4 {
            let mut bytes = group.encode();
            bytes[index] ^= 0x20;
            let rotten = GroupHeader::decode(bytes);
            assert!(rotten.has_rotten_length(at, 500, b"coral"), "the last group, byte {index}");
            assert!(rotten.has_rotten_length(at, 500, b"coral reef"), "byte {index}");
            assert!(!rotten.has_rotten_length(at, 500, b"cora"), "byte {index}");
            assert!(!rotten.has_rotten_length(at, 501, b"coral"), "byte {index}");
            bytes[..4].copy_from_slice(&[0, 0, 1, 1]);
            let rotten = GroupHeader::decode(bytes);
            assert!(rotten.has_rotten_length(at, 500, b"coral"), "it is all that the part has");
            assert!(!rotten.has_rotten_length(at, 500, b"coral reef"));
        }
    }
}
