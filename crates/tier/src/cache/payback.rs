//! Whether copies win back what they cost. Pure.
//!
//! A copy reads and writes all of its bytes once, and saves a slower device the reads that it
//! serves. Where it stays for long, as between two bursts of compactions that take all of a cache's
//! room, it pays to fill the room at once; where levels are rewritten all the time, copies go
//! before they have served what they cost, and are made a few at a time. What was won lately is
//! what may be spent beyond that.

use super::BLOCK_BYTES;

/// Sums of looks count so much less from one to the next: half after half a minute.
const KEPT: f64 = 0.99;

/// Copies of a device, lately.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Payback {
    /// Reads of users that copies served.
    hits: f64,
    /// Blocks that were to be copied, whether or not that came to something.
    blocks: f64,
}

impl Payback {
    /// Takes the reads that copies served since the last look.
    pub(crate) fn look(&mut self, hits: u64) {
        self.hits = self.hits * KEPT + hits as f64;
        self.blocks *= KEPT;
    }

    /// So many bytes are to be copied.
    pub(crate) fn spend(&mut self, bytes: u64) {
        self.blocks += bytes as f64 / BLOCK_BYTES;
    }

    /// Bytes that may be copied for what was won beyond what was spent.
    pub(crate) fn won(&self) -> u64 {
        ((self.hits - self.blocks).max(0.0) * BLOCK_BYTES) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_won_can_be_spent_once() {
        let mut payback = Payback::default();
        assert_eq!(payback.won(), 0, "nothing is known");
        payback.spend(100 * 4096);
        payback.look(90);
        assert_eq!(payback.won(), 0);
        payback.look(30);
        assert!((18 * 4096..22 * 4096).contains(&payback.won()), "{}", payback.won());
        payback.spend(payback.won());
        assert!(payback.won() <= 4096);
    }

    #[test]
    fn half_is_forgotten_after_half_a_minute() {
        let mut payback = Payback::default();
        payback.look(1000);
        (0..69).for_each(|_| payback.look(0));
        assert!((490 * 4096..510 * 4096).contains(&payback.won()), "{}", payback.won());
    }
}
