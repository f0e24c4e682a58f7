//! Who is who on the fabric, and the key that names a region from afar.

use std::fmt;

use archipelago_base::Epoch;
use archipelago_base::codec::Reader;
use archipelago_base::wire::Wire;

/// A node that serves regions and requests. Chosen by who runs the cluster; stays over restarts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u64);

/// One life of a client: a process that starts again takes a new one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub u64);

/// The number of a key in its node's key table. Another key may take it after a revocation.
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

impl fmt::Display for RegionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// What a key allows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Rights(u8);

impl Rights {
    /// READ.
    pub const READ: Self = Self(1);
    /// WRITE.
    pub const WRITE: Self = Self(2);
    /// Compare-and-swap, fetch-and-add.
    pub const ATOMIC: Self = Self(4);
    /// All of them.
    pub const ALL: Self = Self(7);

    /// Both.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether all of `other` are allowed.
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

    /// As a byte of a message.
    #[must_use]
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// `None` for bits that mean nothing.
    #[must_use]
    pub const fn from_bits(bits: u8) -> Option<Self> {
        if bits & !Self::ALL.0 == 0 { Some(Self(bits)) } else { None }
    }
}

/// Names a region of a node's life to whoever gets it, and proves that it was given. It goes to
/// clients inside messages of the application's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RemoteKey {
    /// Whose region.
    pub node: NodeId,
    /// In which life of that node: after a restart the key is stale.
    pub epoch: Epoch,
    /// Its place in the node's key table.
    pub region: RegionId,
    /// 16 bits of generation, 48 random bits: what a guesser does not know.
    pub tag: u64,
    /// Bytes that can be reached.
    pub len: u64,
    /// What may be done.
    pub rights: Rights,
}

impl RemoteKey {
    /// Appends the key's 37 bytes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        self.put(out);
    }

    /// Reads a key; `None` if bytes are missing or the rights mean nothing.
    #[must_use]
    pub fn decode(reader: &mut Reader<'_>) -> Option<Self> {
        Self::get(reader)
    }
}

/// The generation that a tag carries.
#[inline]
pub(crate) fn generation(tag: u64) -> u16 {
    (tag >> 48) as u16
}

/// Bits of a tag that are random, never all zero in a key that is valid.
pub(crate) const TAG_RANDOM: u64 = (1 << 48) - 1;
