//! Large buffers that are used again.
//!
//! Background jobs read and write through buffers of hundreds of kilobytes, one for each file. An
//! allocator gives memory of that size back to the system when it is freed, and the next buffer is
//! mapped, cleared and faulted in page by page: a load of 800 MB with 8 MiB memtables had 400,000
//! page faults (decision 0019). So a buffer that is given back here is kept for the next one of
//! about its size.
//!
//! Invariants:
//! 1. The whole process keeps at most [`KEPT_BYTES_MAX`], or less after [`keep_at_most`]. A buffer
//!    beyond that is freed. No byte budget counts the kept buffers; a process with a small budget
//!    therefore keeps few ([`ByteBudget::within`](crate::budget::ByteBudget::within)).
//! 2. A buffer is initialised memory with the content that its last user left. Its user counts the
//!    bytes that it has filled.
//!
//! Thread-safe: one lock, held for a search among a few dozen. Cost: no allocation while buffers of
//! fitting sizes come and go.

use parking_lot::Mutex;

/// The most that is kept for later, in bytes.
pub const KEPT_BYTES_MAX: usize = 16 << 20;

/// Sizes are multiples of this, so that buffers of about the same size can replace each other.
const GRAIN_BYTES: usize = 64 << 10;

static KEPT: Mutex<Kept> =
    Mutex::new(Kept { buffers: Vec::new(), bytes: 0, bytes_max: KEPT_BYTES_MAX });

/// Keeps at most `bytes` from now on, for a process that may take little memory. The process never
/// keeps more than [`KEPT_BYTES_MAX`].
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
    // After the lock is let go.
    drop(surplus);
}

/// Buffers that nobody uses.
struct Kept {
    buffers: Vec<Box<[u8]>>,
    bytes: usize,
    /// Most bytes that are kept.
    bytes_max: usize,
}

impl Kept {
    /// The smallest that fits; none of more than twice the size, which would be missed elsewhere.
    fn take(&mut self, bytes: usize) -> Option<Box<[u8]>> {
        let lengths = self.buffers.iter().map(|buffer| buffer.len()).enumerate();
        let fitting = lengths.filter(|&(_, len)| len >= bytes && len / 2 <= bytes);
        let (at, _) = fitting.min_by_key(|&(_, len)| len)?;
        let buffer = self.buffers.swap_remove(at);
        self.bytes -= buffer.len();
        Some(buffer)
    }

    /// Keeps it if there is room; gives back what is to be freed.
    fn give(&mut self, buffer: Box<[u8]>) -> Option<Box<[u8]>> {
        if self.bytes + buffer.len() > self.bytes_max {
            return Some(buffer);
        }
        self.bytes += buffer.len();
        self.buffers.push(buffer);
        None
    }
}

/// A buffer; given back for the next user when it is dropped.
#[derive(Debug, Default)]
pub struct Buffer(Box<[u8]>);

impl Buffer {
    /// A buffer of at least `bytes`, of any content.
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
            // After the lock is let go.
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
    fn the_smallest_that_fits_is_taken_and_none_that_is_far_too_large() {
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
    fn less_is_kept_if_less_may_be() {
        let mut kept = Kept { bytes_max: 2 * GRAIN_BYTES, ..none() };
        assert!(kept.give(buffer(2 * GRAIN_BYTES)).is_none());
        assert!(kept.give(buffer(GRAIN_BYTES)).is_some());
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let mut kept = none();
        assert!(kept.give(buffer(KEPT_BYTES_MAX)).is_none());
        assert_eq!(kept.give(buffer(GRAIN_BYTES)).map(|b| b.len()), Some(GRAIN_BYTES));
        assert!(kept.take(KEPT_BYTES_MAX).is_some());
        assert_eq!((kept.bytes, kept.buffers.len()), (0, 0));
    }

    #[test]
    fn a_buffer_has_at_least_what_was_asked_for_and_an_empty_one_holds_nothing() {
        let mut taken = Buffer::take(GRAIN_BYTES + 1);
        assert!(taken.len() > GRAIN_BYTES);
        taken.fill(7);
        drop(taken);
        assert!(Buffer::take(GRAIN_BYTES + 1).len() > GRAIN_BYTES);
        assert!(Buffer::default().is_empty());
    }
}
