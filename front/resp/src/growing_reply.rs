//! Memory of a reply that grows while a command reads values of unknown sizes.
//!
//! Owned by one run of a command. The share for values bounds all such replies together.
//! Invariants:
//!
//! 1. A reply of up to [`FREE_BYTES`] holds nothing.
//! 2. While the command runs for the first time, it takes what it needs without waiting. If the
//!    share has too little left, the command drops its reply and its memory, waits for the whole
//!    share and starts again. It therefore never waits while it holds memory.
//! 3. A command of a transaction holds nothing, because EXEC holds the locks of its keys and must
//!    not wait.
//!
//! Cost: one comparison for each value; one short lock for each that makes a large reply larger.

use crate::memory::{FREE_BYTES, Held, Share};
use crate::refusal::Handled;

/// A reply that grows while a command reads values, and the memory that it holds.
pub(crate) struct GrowingReply<'a> {
    /// `None` if the share bounds the reply no longer.
    share: Option<&'a Share>,
    held: Held,
}

impl<'a> GrowingReply<'a> {
    /// An empty reply in `share`, unless it is part of a transaction. `held` is the memory that the
    /// command holds already. It counts as the first part of the reply.
    pub(crate) fn new(share: &'a Share, held: Held, is_in_transaction: bool) -> Self {
        Self { share: (!is_in_transaction).then_some(share), held }
    }

    /// Whether the reply may take `bytes` in total. If not, the caller drops the reply, calls
    /// [`GrowingReply::take_all`] and starts again.
    pub(crate) fn may_take(&mut self, bytes: usize) -> bool {
        let bytes = bytes as u64;
        match self.share {
            Some(share) if bytes > FREE_BYTES => share.try_hold(&mut self.held, bytes),
            _ => true,
        }
    }

    /// Waits for the whole share. Afterwards the reply may take what the limit of replies allows.
    pub(crate) fn take_all(&mut self) -> Handled {
        self.held = Held::default();
        if let Some(share) = self.share.take() {
            self.held = share.hold_blocking(share.limit_bytes())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use archipelago_base::budget::ByteBudget;

    use super::*;
    use crate::memory::Shares;

    const MIB: usize = 1 << 20;

    #[tokio::test(flavor = "multi_thread")]
    async fn starved_reply_starts_again_with_the_whole_share() {
        let shares = Shares::of(&ByteBudget::new(64 << 20), Duration::from_secs(60));
        let share = &shares.working;
        let (mut first, mut second) = (
            GrowingReply::new(share, Held::default(), false),
            GrowingReply::new(share, Held::default(), false),
        );
        assert!(first.may_take(FREE_BYTES as usize));
        assert_eq!(share.held_bytes(), 0);
        assert!(first.may_take(MIB) && first.may_take(10 * MIB));
        assert!(second.may_take(6 * MIB) && !second.may_take(7 * MIB));
        assert_eq!(share.held_bytes(), 16 << 20);
        drop(first);
        second.take_all().unwrap();
        assert_eq!(share.held_bytes(), 16 << 20);
        assert!(second.may_take(100 * MIB), "other limits bound it now");
        drop(second);
        assert_eq!(share.held_bytes(), 0);
    }

    #[test]
    fn reply_within_a_transaction_holds_nothing() {
        let shares = Shares::of(&ByteBudget::new(64 << 20), Duration::ZERO);
        let mut reply = GrowingReply::new(&shares.working, Held::default(), true);
        assert!(reply.may_take(100 * MIB));
        reply.take_all().unwrap();
        assert_eq!(shares.working.held_bytes(), 0);
    }
}
