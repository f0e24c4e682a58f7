//! Identifiers of nodes, clients and regions, and the key that opens a region for remote clients.

use std::fmt;

use archipelago_base::Epoch;
use archipelago_base::codec::Reader;
use archipelago_base::wire::Wire;

/// A node that serves regions and requests. The operator chooses the number, and it survives
/// restarts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u64);

/// One life of a client. A process that starts again takes a new number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub u64);

/// A cluster, whose members share a secret. The number is random.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ClusterId(pub [u8; 16]);

/// Index of a key in the key table of its node. After a revocation another key may get it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RegionId(pub u32);

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl fmt::Display for ClientId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Display for RegionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// The operations that a key permits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Rights(u8);

impl Rights {
    /// The right to READ.
    pub const READ: Self = Self(1);
    /// The right to WRITE.
    pub const WRITE: Self = Self(2);
    /// The right to compare-and-swap and fetch-and-add.
    pub const ATOMIC: Self = Self(4);
    /// The right to do all operations.
    pub const ALL: Self = Self(7);

    /// The union of both rights.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether these rights include all rights of `other`.
    #[inline]
    #[must_use]
    pub const fn allow(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether the holder may change bytes.
    #[must_use]
    pub const fn change(self) -> bool {
        self.0 & (Self::WRITE.0 | Self::ATOMIC.0) != 0
    }

    /// The rights as a byte of a message.
    #[must_use]
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// Reads rights from a byte; `None` if a bit is unknown.
    #[must_use]
    pub const fn from_bits(bits: u8) -> Option<Self> {
        if bits & !Self::ALL.0 == 0 { Some(Self(bits)) } else { None }
    }
}

/// Names a region of one life of a node, and proves that the node gave the key. An application
/// sends keys to its clients within its own messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RemoteKey {
    /// Node of the region.
    pub node: NodeId,
    /// Life of the node. The key is stale after a restart.
    pub epoch: Epoch,
    /// Index of the key in the key table of the node.
    pub region: RegionId,
    /// A generation of 16 bits, and 48 random bits that no process can guess.
    pub tag: u64,
    /// Number of bytes that the key opens.
    pub len: u64,
    /// Operations that the key permits.
    pub rights: Rights,
}

impl RemoteKey {
    /// Appends the 37 bytes of the key.
    pub fn encode(&self, out: &mut Vec<u8>) {
        self.put(out);
    }

    /// Reads a key; `None` if bytes are missing or a right is unknown.
    #[must_use]
    pub fn decode(reader: &mut Reader<'_>) -> Option<Self> {
        Self::get(reader)
    }
}

/// The generation in a tag.
#[inline]
pub(crate) fn generation(tag: u64) -> u16 {
    (tag >> 48) as u16
}

/// The random bits of a tag. They are never all zero in a valid key.
pub(crate) const TAG_RANDOM: u64 = (1 << 48) - 1;
