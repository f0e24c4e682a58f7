//! Payback of copies: whether the copies of a device win back their cost.
//!
//! A copy reads and writes all of its bytes once, and saves a slower device the reads that it
//! serves. If copies stay for long, it pays to fill free room in one batch, for example after a
//! burst of compactions has taken all of a cache's room. If levels are rewritten all the time,
//! copies are dropped before they have served as many reads as they cost, and only a few are made
//! in parallel. The bytes that copies won recently are the bytes that may be spent beyond that.
//!
//! All functions are pure. The control loop owns one [`Payback`] per device.

use super::BLOCK_BYTES;

/// Factor by which sums decay from one iteration to the next: to one half within half a minute.
const KEPT: f64 = 0.99;

/// Recent cost and gain of the copies of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Payback {
    /// Foreground reads that copies served, decayed.
    hits: f64,
    /// Blocks that were queued to be copied, decayed. Copies that failed count as well.
    blocks: f64,
}

impl Payback {
    /// Takes the reads that copies served since the last iteration.
    pub(crate) fn look(&mut self, hits: u64) {
        self.hits = self.hits * KEPT + hits as f64;
        self.blocks *= KEPT;
    }

    /// Notes that `bytes` are queued to be copied.
    pub(crate) fn spend(&mut self, bytes: u64) {
        self.blocks += bytes as f64 / BLOCK_BYTES;
    }

    /// Bytes that copies have won beyond their cost, which may be copied in addition.
    pub(crate) fn won(&self) -> u64 {
        ((self.hits - self.blocks).max(0.0) * BLOCK_BYTES) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_were_won_can_be_spent_once() {
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
    fn gain_halves_within_half_a_minute() {
        let mut payback = Payback::default();
        payback.look(1000);
        (0..69).for_each(|_| payback.look(0));
        assert!((490 * 4096..510 * 4096).contains(&payback.won()), "{}", payback.won());
    }
}
