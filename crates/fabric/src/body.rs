//! The bytes of a request or an answer. Short bodies are stored inline, without an allocation.

use std::fmt;
use std::ops::Deref;

/// Limit of the bytes of a request or an answer that is not bulk.
pub const MESSAGE_BYTES_MAX: usize = 256 << 10;
/// Limit of the bytes of a bulk request or its answer ([`Call::bulk`](crate::Call::bulk)).
pub const BULK_BYTES_MAX: usize = 4 << 20;
/// Number of bytes that a [`Body`] holds inline.
pub const INLINE_BYTES_MAX: usize = 62;

/// The bytes of a message.
#[derive(Clone)]
pub struct Body(Form);

#[derive(Clone)]
enum Form {
    Inline { len: u8, bytes: [u8; INLINE_BYTES_MAX] },
    Heap(Vec<u8>),
}

impl Body {
    /// Makes a body from a copy of `bytes`. The copy is inline if it fits.
    #[must_use]
    pub fn copy(bytes: &[u8]) -> Self {
        if bytes.len() > INLINE_BYTES_MAX {
            return Self(Form::Heap(bytes.to_vec()));
        }
        let mut inline = [0; INLINE_BYTES_MAX];
        inline[..bytes.len()].copy_from_slice(bytes);
        Self(Form::Inline { len: bytes.len() as u8, bytes: inline })
    }

    /// Makes a body without bytes.
    #[must_use]
    pub fn empty() -> Self {
        Self::copy(&[])
    }
}

impl From<Vec<u8>> for Body {
    fn from(bytes: Vec<u8>) -> Self {
        if bytes.len() <= INLINE_BYTES_MAX { Self::copy(&bytes) } else { Self(Form::Heap(bytes)) }
    }
}

impl From<&[u8]> for Body {
    fn from(bytes: &[u8]) -> Self {
        Self::copy(bytes)
    }
}

impl Deref for Body {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Form::Inline { len, bytes } => &bytes[..usize::from(*len)],
            Form::Heap(bytes) => bytes,
        }
    }
}

impl PartialEq for Body {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Body {}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Body({} bytes)", self.len())
    }
}
