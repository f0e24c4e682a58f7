//! Internal keys: a user key, a sequence number and a kind, in the order in which every sorted
//! structure of the engine keeps them.
//!
//! Encoded: `user_key ++ trailer`, the trailer being `seq << 8 | kind` as a little-endian u64.
//! Order: user key ascending (bytewise), then trailer *descending*, so that the newest version of
//! a key comes first. Source: LevelDB's internal key, with kinds of our own.

use std::cmp::Ordering;

use archipelago_base::SeqNo;

/// Length in bytes of the trailer of an encoded internal key.
pub const TRAILER_BYTES: usize = 8;
/// Largest length of a user key, in bytes.
pub const KEY_BYTES_MAX: usize = 64 << 10;
/// Largest length of a value, in bytes.
pub const VALUE_BYTES_MAX: usize = 1 << 30;

/// Bytes of the expiry before the value of a [`Kind::PutExpiring`] record.
const EXPIRY_BYTES: usize = 8;

/// What a record does. The numbers are stored in files and never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Kind {
    /// The key has no value.
    Delete = 0,
    /// The key has this value.
    Put = 1,
    /// An operand for the merge operator of the column family.
    Merge = 2,
    /// The key has this value until a time. The stored value is the expiry (Unix milliseconds,
    /// little-endian u64), followed by the user's value. From that time on the key reads as
    /// deleted.
    PutExpiring = 3,
    /// Reserved: a delete of a key that was put once.
    SingleDelete = 7,
    /// Deletes every older version in a range: the key is its start, the value its end (exclusive).
    /// Range deletes are kept apart from point records in memtables and files.
    RangeDelete = 15,
    /// The key has a value that lies in a value file: the stored value is a reference
    /// ([`crate::value_ref::Reference`]). Only tables hold such records; logs and memtables refuse
    /// them.
    Indirect = 17,
    /// Reserved: an entity of several columns.
    WideEntity = 22,
}

impl Kind {
    /// The largest kind: seeking `(key, seq, Kind::SEEK)` finds the first record of `key` with a
    /// sequence number of at most `seq`.
    pub const SEEK: Self = Self::WideEntity;

    /// The kind of a stored byte. `None` for an unknown **or a reserved** kind: this version
    /// neither writes nor reads those.
    #[inline]
    #[must_use]
    pub fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            0 => Some(Self::Delete),
            1 => Some(Self::Put),
            2 => Some(Self::Merge),
            3 => Some(Self::PutExpiring),
            15 => Some(Self::RangeDelete),
            17 => Some(Self::Indirect),
            _ => None,
        }
    }

    /// Whether a user can write a record of this kind, and whether logs and memtables may hold it.
    #[inline]
    #[must_use]
    pub(crate) fn is_writable(self) -> bool {
        self != Self::Indirect
    }
}

/// The trailer word of `(seq, kind)`.
#[inline]
#[must_use]
pub fn pack(seq: SeqNo, kind: Kind) -> u64 {
    debug_assert!(seq <= SeqNo::MAX);
    seq.0 << 8 | kind as u64
}

/// The sequence number of a trailer word.
#[inline]
#[must_use]
pub fn trailer_seq(trailer: u64) -> SeqNo {
    SeqNo(trailer >> 8)
}

/// Appends the encoded internal key to `out`.
#[inline]
pub fn encode_into(out: &mut Vec<u8>, user_key: &[u8], seq: SeqNo, kind: Kind) {
    out.extend_from_slice(user_key);
    out.extend_from_slice(&pack(seq, kind).to_le_bytes());
}

/// The encoded internal key.
#[must_use]
pub fn encode(user_key: &[u8], seq: SeqNo, kind: Kind) -> Vec<u8> {
    let mut out = Vec::with_capacity(user_key.len() + TRAILER_BYTES);
    encode_into(&mut out, user_key, seq, kind);
    out
}

/// The user key of an encoded internal key of at least eight bytes.
#[inline]
#[must_use]
pub fn user_key(encoded: &[u8]) -> &[u8] {
    &encoded[..encoded.len() - TRAILER_BYTES]
}

/// The trailer word of an encoded internal key of at least eight bytes.
#[inline]
#[must_use]
pub fn trailer(encoded: &[u8]) -> u64 {
    let mut word = [0; TRAILER_BYTES];
    word.copy_from_slice(&encoded[encoded.len() - TRAILER_BYTES..]);
    u64::from_le_bytes(word)
}

/// A decoded internal key that borrows its user key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyRef<'a> {
    /// The user's key.
    pub user_key: &'a [u8],
    /// Sequence number of the record.
    pub seq: SeqNo,
    /// What the record does.
    pub kind: Kind,
}

impl<'a> KeyRef<'a> {
    /// Decodes an internal key. `None` if it is shorter than a trailer or this version does not
    /// know its kind.
    #[inline]
    #[must_use]
    pub fn decode(encoded: &'a [u8]) -> Option<Self> {
        if encoded.len() < TRAILER_BYTES {
            return None;
        }
        let word = trailer(encoded);
        let kind = Kind::from_byte(word as u8)?;
        Some(Self { user_key: user_key(encoded), seq: trailer_seq(word), kind })
    }
}

/// Compares two encoded internal keys, each of at least eight bytes.
#[inline]
#[must_use]
pub fn compare(a: &[u8], b: &[u8]) -> Ordering {
    user_key(a).cmp(user_key(b)).then_with(|| trailer(b).cmp(&trailer(a)))
}

/// A range of user keys: `start` inclusive, `end` exclusive, `None` for no end.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default, serde::Serialize, serde::Deserialize)]
pub struct KeyRange {
    /// First key; empty for the first of all.
    pub start: Vec<u8>,
    /// First key that is not in the range any more.
    pub end: Option<Vec<u8>>,
}

impl KeyRange {
    /// The range that contains every key.
    #[must_use]
    pub fn all() -> Self {
        Self::default()
    }

    /// Whether `key` is in the range.
    #[must_use]
    pub fn contains(&self, key: &[u8]) -> bool {
        self.start.as_slice() <= key && self.end.as_deref().is_none_or(|end| key < end)
    }

    /// Whether no key is in the range.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.end.as_ref().is_some_and(|end| *end <= self.start)
    }

    /// Whether the two ranges share a key.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        let before = |a: &Self, b: &Self| a.end.as_ref().is_some_and(|end| *end <= b.start);
        !before(self, other) && !before(other, self)
    }
}

/// Splits the stored value of an expiring record into expiry (Unix milliseconds) and user value.
/// `None` if it is too short.
pub(crate) fn split_expiry(stored: &[u8]) -> Option<(u64, &[u8])> {
    let (expiry, value) = stored.split_at_checked(EXPIRY_BYTES)?;
    Some((u64::from_le_bytes(expiry.try_into().ok()?), value))
}

/// Returns `InvalidArgument` if `key` is too long.
pub(crate) fn check_key(key: &[u8]) -> archipelago_base::Result<()> {
    if key.len() > KEY_BYTES_MAX {
        return Err(archipelago_base::Error::invalid(format!(
            "a key of {} bytes is too long: at most {KEY_BYTES_MAX}",
            key.len()
        )));
    }
    Ok(())
}

/// Returns `InvalidArgument` if a record with this key and value is too long, or if a range delete
/// ends before its start.
pub(crate) fn check_limits(kind: Kind, key: &[u8], value: &[u8]) -> archipelago_base::Result<()> {
    check_key(key)?;
    if kind == Kind::RangeDelete {
        check_key(value)?;
        if value < key {
            return Err(archipelago_base::Error::invalid(format!(
                "delete_range: the end \"{}\" is before the start \"{}\"",
                value.escape_ascii(),
                key.escape_ascii()
            )));
        }
        return Ok(());
    }
    if value.len() > VALUE_BYTES_MAX {
        return Err(archipelago_base::Error::invalid(format!(
            "a value of {} bytes is too long: at most {VALUE_BYTES_MAX}",
            value.len()
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newer_versions_come_first_and_empty_keys_are_keys() {
        let newer = encode(b"k", SeqNo(2), Kind::Delete);
        let older = encode(b"k", SeqNo(1), Kind::Put);
        assert_eq!(compare(&newer, &older), Ordering::Less);
        assert_eq!(compare(&encode(b"", SeqNo(1), Kind::Put), &older), Ordering::Less);
        assert_eq!(compare(&encode(b"k", SeqNo(2), Kind::SEEK), &newer), Ordering::Less);
        let decoded = KeyRef::decode(&newer).expect("valid");
        assert_eq!(decoded, KeyRef { user_key: b"k", seq: SeqNo(2), kind: Kind::Delete });
    }

    #[test]
    fn reserved_kinds_are_refused() {
        for kind in [Kind::SingleDelete, Kind::WideEntity] {
            assert_eq!(KeyRef::decode(&encode(b"k", SeqNo(1), kind)), None);
        }
        assert_eq!(KeyRef::decode(b"short"), None);
    }

    #[test]
    fn ranges_overlap_by_half_open_rules() {
        let range = |start: &[u8], end: Option<&[u8]>| KeyRange {
            start: start.to_vec(),
            end: end.map(<[u8]>::to_vec),
        };
        assert!(!range(b"a", Some(b"b")).overlaps(&range(b"b", None)));
        assert!(range(b"a", Some(b"bb")).overlaps(&range(b"b", None)));
        assert!(KeyRange::all().overlaps(&range(b"x", Some(b"y"))));
        assert!(range(b"b", Some(b"b")).is_empty());
    }
}
