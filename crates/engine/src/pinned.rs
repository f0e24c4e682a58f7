//! A value that is either a pinned part of a cached block or a buffer of its own.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// Immutable bytes that a [`PinnedSlice`] can keep alive.
pub trait PinOwner: Send + Sync {
    /// All of the bytes. Every call returns the same ones.
    fn bytes(&self) -> &[u8];
}

/// Bytes of a value: either owned, or a part of a cached block. The block stays in memory, and
/// counts to the cache, while this value lives. A caller that keeps many values for long can copy
/// the bytes out with [`PinnedSlice::into_vec`].
#[derive(Clone)]
pub struct PinnedSlice {
    repr: Repr,
}

#[derive(Clone)]
enum Repr {
    Owned(Vec<u8>),
    Pinned { owner: Arc<dyn PinOwner>, start: u32, end: u32 },
}

impl PinnedSlice {
    /// A slice that owns `bytes`.
    #[must_use]
    pub fn owned(bytes: Vec<u8>) -> Self {
        Self { repr: Repr::Owned(bytes) }
    }

    /// A slice of the bytes `range` of `owner`; `None` if it lies outside them or past 4 GiB.
    #[must_use]
    pub fn pinned(owner: Arc<dyn PinOwner>, range: std::ops::Range<usize>) -> Option<Self> {
        owner.bytes().get(range.clone())?;
        let (start, end) = (u32::try_from(range.start).ok()?, u32::try_from(range.end).ok()?);
        Some(Self { repr: Repr::Pinned { owner, start, end } })
    }

    /// The same bytes without the first `len`; `None` if there are fewer.
    #[must_use]
    pub fn skip(self, len: usize) -> Option<Self> {
        if len > self.as_ref().len() {
            return None;
        }
        let repr = match self.repr {
            Repr::Owned(mut bytes) => {
                bytes.drain(..len);
                Repr::Owned(bytes)
            }
            Repr::Pinned { owner, start, end } => {
                Repr::Pinned { owner, start: start + len as u32, end }
            }
        };
        Some(Self { repr })
    }

    /// Whether the bytes lie in a cached block.
    #[must_use]
    pub fn is_pinned(&self) -> bool {
        matches!(self.repr, Repr::Pinned { .. })
    }

    /// The bytes in a vector, copied if they were pinned.
    #[must_use]
    pub fn into_vec(self) -> Vec<u8> {
        match self.repr {
            Repr::Owned(bytes) => bytes,
            Repr::Pinned { .. } => self.as_ref().to_vec(),
        }
    }
}

impl AsRef<[u8]> for PinnedSlice {
    #[inline]
    fn as_ref(&self) -> &[u8] {
        match &self.repr {
            Repr::Owned(bytes) => bytes,
            Repr::Pinned { owner, start, end } => &owner.bytes()[*start as usize..*end as usize],
        }
    }
}

impl Deref for PinnedSlice {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.as_ref()
    }
}

impl fmt::Debug for PinnedSlice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.as_ref().escape_ascii())
    }
}

impl<T: AsRef<[u8]> + ?Sized> PartialEq<T> for PinnedSlice {
    fn eq(&self, other: &T) -> bool {
        self.as_ref() == other.as_ref()
    }
}

impl From<Vec<u8>> for PinnedSlice {
    fn from(bytes: Vec<u8>) -> Self {
        Self::owned(bytes)
    }
}
