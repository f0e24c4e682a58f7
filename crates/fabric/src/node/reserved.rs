//! Bytes that the open requests of one link reserve.
//!
//! A node keeps at most [`REQUESTS_MAX`](super::REQUESTS_MAX) remembered requests per client, so
//! their bytes are bounded. Idempotent requests have no such limit, and bulk requests are large.
//! Therefore each of them reserves the bytes of its body and of the largest answer that it permits.
//! The reservation lasts from the arrival of the request until the node gives its answer to the
//! link. A link stops reading when its send buffer is full. Both limits together bound the memory
//! that one client takes. The reservation ends before the answer enters the buffer, because the
//! client may send its next request as soon as it reads the answer.
//!
//! The client counts the same bytes, and refuses a request before it sends it. So the node refuses
//! only a client that miscounts, or whose deadline has passed while the node still executes the
//! request.
//!
//! Invariants:
//! 1. The reservations of a link are at most [`RESERVED_BYTES_MAX`].
//! 2. A reservation ends exactly once: when it is dropped.
//!
//! Thread-safety: any thread may call any method.
//! Failure: a reservation that does not fit is refused, and nothing changes.
//! Cost: two atomic additions per idempotent or bulk request.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::body::MESSAGE_BYTES_MAX;
use crate::refusal::{Reason, Refusal};

/// Limit of the bytes that the open idempotent and bulk requests of one link reserve.
pub const RESERVED_BYTES_MAX: usize = 32 << 20;

/// Least reservation, in bytes. It bounds the number of empty requests.
const RESERVED_BYTES_MIN: usize = 1 << 10;

/// Bytes that a request reserves on its link; 0 for a request that the table of duplicates bounds.
pub(crate) fn reservation(
    is_idempotent: bool,
    body_bytes: usize,
    answer_bytes_max: usize,
) -> usize {
    if is_idempotent || body_bytes > MESSAGE_BYTES_MAX {
        (body_bytes + answer_bytes_max).max(RESERVED_BYTES_MIN)
    } else {
        0
    }
}

/// The reservations of one link.
#[derive(Debug, Default)]
pub(crate) struct LinkBudget(AtomicUsize);

/// A reservation, which ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Reserved {
    budget: Arc<LinkBudget>,
    bytes: usize,
}

impl LinkBudget {
    /// Bytes that are reserved now.
    #[cfg(test)]
    pub(super) fn reserved_bytes(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    /// Reserves `bytes`. Errors: [`Reason::Full`] if the link has reserved too many already.
    pub(crate) fn reserve(self: &Arc<Self>, bytes: usize) -> Result<Reserved, Refusal> {
        let before = self.0.fetch_add(bytes, Ordering::Relaxed);
        // Dropping the reservation takes the bytes back, also if it does not fit.
        let reserved = Reserved { budget: Arc::clone(self), bytes };
        match before + bytes > RESERVED_BYTES_MAX {
            true => Err(Refusal::at(Reason::Full, RESERVED_BYTES_MAX as u64)),
            false => Ok(reserved),
        }
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.budget.0.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reservations_end_with_their_drop_and_are_bounded() {
        let budget = Arc::new(LinkBudget::default());
        let half = budget.reserve(RESERVED_BYTES_MAX / 2).expect("room");
        let rest = budget.reserve(RESERVED_BYTES_MAX / 2).expect("room");
        let refused = budget.reserve(1).expect_err("no room");
        assert_eq!(refused, Refusal::at(Reason::Full, RESERVED_BYTES_MAX as u64));
        drop(half);
        let again = budget.reserve(RESERVED_BYTES_MAX / 2).expect("room");
        drop((rest, again));
        assert_eq!(budget.reserved_bytes(), 0);
    }

    #[test]
    fn only_idempotent_and_bulk_requests_reserve() {
        assert_eq!(reservation(false, MESSAGE_BYTES_MAX, MESSAGE_BYTES_MAX), 0);
        assert_eq!(reservation(false, MESSAGE_BYTES_MAX + 1, 7), MESSAGE_BYTES_MAX + 8);
        assert_eq!(reservation(true, 0, 0), RESERVED_BYTES_MIN);
        assert_eq!(reservation(true, 5, 1 << 20), (1 << 20) + 5);
    }
}
