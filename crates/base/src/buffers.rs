//! Large buffers that are kept for reuse.
//!
//! Background jobs read and write through buffers of hundreds of kilobytes, one for each file. The
//! allocator returns memory of that size to the system when it is freed, and the kernel must map
//! and clear the pages of the next buffer (decision 0019). Therefore this module keeps a buffer
//! that is given back, for the next request of a similar size.
//!
//! Invariants:
//! 1. The process keeps at most [`KEPT_BYTES_MAX`], or less after [`keep_at_most`]. Buffers beyond
//!    that are freed. No byte budget counts the kept buffers, so a process with a small budget
//!    keeps few ([`ByteBudget::within`](crate::budget::ByteBudget::within)).
//! 2. A buffer is initialised memory with the content of its previous user. The user must remember
//!    which bytes it has filled.
//!
//! Thread-safety: one lock, held for a search among a few dozen buffers.
//! Failure: none.
//! Cost: no allocation while a kept buffer fits.

use parking_lot::Mutex;

/// Limit of the bytes that the process keeps for reuse.
pub const KEPT_BYTES_MAX: usize = 16 << 20;

/// Sizes are multiples of this, so that buffers of similar sizes can replace each other.
const GRAIN_BYTES: usize = 64 << 10;

static KEPT: Mutex<Kept> =
    Mutex::new(Kept { buffers: Vec::new(), bytes: 0, bytes_max: KEPT_BYTES_MAX });

/// Lowers the limit of kept bytes to `bytes`, for a process that may take little memory. The limit
/// never exceeds [`KEPT_BYTES_MAX`].
pub fn keep_at_most(bytes: usize) {
    let surplus = {
        let mut kept = KEPT.lock();
        kept.bytes_max = bytes.min(KEPT_BYTES_MAX);
        let mut surplus = Vec::new();
        while kept.bytes > kept.bytes_max
            && let Some(buffer) = kept.buffers.pop()
        {
            kept.bytes -= buffer.len();
            surplus.push(buffer);
        }
        surplus
    };
    // The buffers are freed after the lock is released.
    drop(surplus);
}

/// Buffers that nothing uses now.
struct Kept {
    buffers: Vec<Box<[u8]>>,
    bytes: usize,
    /// Limit of the kept bytes.
    bytes_max: usize,
}

impl Kept {
    /// Takes the smallest buffer that fits. A buffer of more than twice the size stays for a
    /// request that needs it.
    fn take(&mut self, bytes: usize) -> Option<Box<[u8]>> {
        let lengths = self.buffers.iter().map(|buffer| buffer.len()).enumerate();
        let fitting = lengths.filter(|&(_, len)| len >= bytes && len / 2 <= bytes);
        let (at, _) = fitting.min_by_key(|&(_, len)| len)?;
        let buffer = self.buffers.swap_remove(at);
        self.bytes -= buffer.len();
        Some(buffer)
    }

    /// Keeps the buffer, or returns it if the limit is reached. The caller then frees it.
    fn give(&mut self, buffer: Box<[u8]>) -> Option<Box<[u8]>> {
        if self.bytes + buffer.len() > self.bytes_max {
            return Some(buffer);
        }
        self.bytes += buffer.len();
        self.buffers.push(buffer);
        None
    }
}

/// A buffer that returns to the kept buffers when it is dropped.
#[derive(Debug, Default)]
pub struct Buffer(Box<[u8]>);

impl Buffer {
    /// Takes a buffer of at least `bytes`, with arbitrary content.
    #[must_use]
    pub fn take(bytes: usize) -> Self {
        let bytes = bytes.next_multiple_of(GRAIN_BYTES);
        let kept = KEPT.lock().take(bytes);
        Self(kept.unwrap_or_else(|| vec![0; bytes].into_boxed_slice()))
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if !self.0.is_empty() {
            let freed = KEPT.lock().give(std::mem::take(&mut self.0));
            // The buffer is freed after the lock is released.
            drop(freed);
        }
    }
}

impl std::ops::Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl std::ops::DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn none() -> Kept {
        Kept { buffers: Vec::new(), bytes: 0, bytes_max: KEPT_BYTES_MAX }
    }

    fn buffer(bytes: usize) -> Box<[u8]> {
        vec![0; bytes].into_boxed_slice()
    }

    #[test]
    fn smallest_fitting_buffer_is_taken_unless_far_too_large() {
        let mut kept = none();
        for grains in [8, 2, 4] {
            assert!(kept.give(buffer(grains * GRAIN_BYTES)).is_none());
        }
        assert_eq!(kept.take(3 * GRAIN_BYTES).map(|b| b.len()), Some(4 * GRAIN_BYTES));
        assert_eq!(kept.take(3 * GRAIN_BYTES), None, "8 is more than twice 3");
        assert_eq!(kept.take(9 * GRAIN_BYTES), None);
        assert_eq!(kept.take(GRAIN_BYTES).map(|b| b.len()), Some(2 * GRAIN_BYTES));
        assert_eq!(kept.bytes, 8 * GRAIN_BYTES);
    }

    #[test]
    fn lower_limit_keeps_fewer_bytes() {
        let mut kept = Kept { bytes_max: 2 * GRAIN_BYTES, ..none() };
        assert!(kept.give(buffer(2 * GRAIN_BYTES)).is_none());
        assert!(kept.give(buffer(GRAIN_BYTES)).is_some());
    }

    #[test]
    fn kept_bytes_stay_below_the_limit() {
        let mut kept = none();
        assert!(kept.give(buffer(KEPT_BYTES_MAX)).is_none());
        assert_eq!(kept.give(buffer(GRAIN_BYTES)).map(|b| b.len()), Some(GRAIN_BYTES));
        assert!(kept.take(KEPT_BYTES_MAX).is_some());
        assert_eq!((kept.bytes, kept.buffers.len()), (0, 0));
    }

    #[test]
    fn buffer_has_at_least_the_requested_bytes() {
        let mut taken = Buffer::take(GRAIN_BYTES + 1);
        assert!(taken.len() > GRAIN_BYTES);
        taken.fill(7);
        drop(taken);
        assert!(Buffer::take(GRAIN_BYTES + 1).len() > GRAIN_BYTES);
        assert!(Buffer::default().is_empty());
    }
}
