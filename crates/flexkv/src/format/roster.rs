//! The end of the directory's block: the coordinator's term, the number of partitions, and the
//! clients that may act on the store.
//!
//! | offset from the block's end − 8,192 | content |
//! | --- | --- |
//! | 0 | term of the newest coordinator; 0: there was none |
//! | 8 | head: `FLXM`, version 1, x, two zeros; 0: no node began to make the index |
//! | 16 | 1,022 clients of the pool that may act on the index; 0: a free place |
//!
//! Invariants:
//! 1. Each word changes by compare-and-swap only.
//! 2. Terms grow.
//! 3. A client is in the roster before it acts on the index, and until it is gone for good. Then
//!    another client may take its place.
//!
//! Thread-safety: values.
//! Failure: a head of another version is refused. The paper has no roster, because its manager
//! never restarts.

/// Bytes of the roster, at the end of the directory's block.
pub const ROSTER_BYTES: u64 = 8192;
/// Number of places for clients.
pub const ROSTER_CLIENTS: usize = (ROSTER_BYTES / 8) as usize - 2;

const MAGIC: [u8; 4] = *b"FLXM";
const VERSION: u8 = 1;

/// A roster that was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Roster {
    /// Term of the newest coordinator.
    pub term: u64,
    /// Base-2 logarithm of the number of partitions, once a node began to make the index.
    pub partition_bits: Option<u32>,
    /// The places for clients, taken or not.
    pub clients: Vec<u64>,
}

/// Offset at which a block's roster begins.
#[must_use]
pub fn roster_offset(block_bytes: u64) -> u64 {
    block_bytes.saturating_sub(ROSTER_BYTES)
}

/// The word of the head.
#[must_use]
pub fn roster_head(partition_bits: u32) -> u64 {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&MAGIC);
    bytes[4] = VERSION;
    bytes[5] = partition_bits as u8;
    u64::from_le_bytes(bytes)
}

impl Roster {
    /// Decodes a roster. `None` if its head is not of this version.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let words: Vec<u64> =
            bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
        let (term, head) = (*words.first()?, *words.get(1)?);
        let partition_bits = u32::from(head.to_le_bytes()[5]);
        if head != 0 && head != roster_head(partition_bits) {
            return None;
        }
        let partition_bits = (head != 0).then_some(partition_bits);
        Some(Self { term, partition_bits, clients: words[2..].to_vec() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes_are_read_and_others_refused() {
        assert_eq!(roster_head(13).to_le_bytes(), *b"FLXM\x01\x0d\0\0");
        let mut bytes = vec![0; ROSTER_BYTES as usize];
        let empty = Roster { clients: vec![0; ROSTER_CLIENTS], ..Roster::default() };
        assert_eq!(Roster::decode(&bytes), Some(empty.clone()));
        bytes[..8].copy_from_slice(&9_u64.to_le_bytes());
        bytes[8..16].copy_from_slice(&roster_head(3).to_le_bytes());
        bytes[24] = 5;
        let mut clients = empty.clients;
        clients[1] = 5;
        let whole = Roster { term: 9, partition_bits: Some(3), clients };
        assert_eq!(Roster::decode(&bytes), Some(whole));
        bytes[12] = 2;
        assert_eq!(Roster::decode(&bytes), None, "another version");
        assert_eq!(Roster::decode(&[0; 8]), None);
        assert_eq!(roster_offset(64 << 10), 56 << 10);
    }
}
