//! Turns of column families at the picks of compactions.
//!
//! A family whose writers are delayed for space goes before all others
//! ([`crate::compaction::pick::SpaceDemand`]), because the jobs that free its space may have no
//! urgency. With one slot for compactions its jobs could occupy that slot for ever, and the writers
//! of other families would wait for compactions that never start. So after each compaction of such
//! a family, one is picked by urgency alone. Several such families take turns among themselves.
//!
//! Thread-safety: none of its own; the jobs lock guards it.
//! Failure: none.
//! Cost: O(log families) for each call.

use std::collections::BTreeMap;

use archipelago_base::CfId;

/// The turns of all families. A plain value.
#[derive(Debug, Default)]
pub(crate) struct CompactionTurns {
    /// Number of compactions of families with delayed writers that have started.
    started: u64,
    /// Number of the latest such compaction of each family, counted from 1.
    latest: BTreeMap<CfId, u64>,
    /// Whether the next compaction is picked by urgency alone.
    is_by_urgency: bool,
}

impl CompactionTurns {
    /// Notes the start of a compaction. `is_delayed` says whether writers of its family are delayed
    /// for space.
    pub(crate) fn note(&mut self, cf: CfId, is_delayed: bool) {
        if is_delayed {
            self.started += 1;
            self.latest.insert(cf, self.started);
        }
        self.is_by_urgency = is_delayed && !self.is_by_urgency;
    }

    /// The turn of a family whose writers are delayed for space: the smallest number goes first.
    /// `None` if the next compaction is picked by urgency alone.
    pub(crate) fn of(&self, cf: CfId) -> Option<u64> {
        let latest = self.latest.get(&cf).copied().unwrap_or(0);
        (!self.is_by_urgency).then_some(latest)
    }

    /// Forgets a family that was dropped.
    pub(crate) fn forget(&mut self, cf: CfId) {
        self.latest.remove(&cf);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DELAYED: [CfId; 2] = [CfId(1), CfId(2)];
    const OTHER: CfId = CfId(3);

    #[test]
    fn every_other_compaction_is_picked_by_urgency() {
        let mut turns = CompactionTurns::default();
        assert!(turns.of(DELAYED[0]).is_some());
        turns.note(DELAYED[0], true);
        assert_eq!(turns.of(DELAYED[0]), None, "its next job would be the second in a row");
        assert_eq!(turns.of(DELAYED[1]), None, "a due job of another family goes first");
        turns.note(OTHER, false);
        assert!(turns.of(DELAYED[0]).is_some());
        turns.note(OTHER, false);
        assert!(turns.of(DELAYED[0]).is_some(), "only jobs of delayed families end the turn");
    }

    #[test]
    fn urgent_job_of_a_delayed_family_takes_the_turn_of_urgency() {
        let mut turns = CompactionTurns::default();
        turns.note(DELAYED[0], true);
        turns.note(DELAYED[0], true);
        assert!(turns.of(DELAYED[1]).is_some(), "delayed families go first again");
    }

    #[test]
    fn delayed_family_that_waited_longest_goes_first() {
        let mut turns = CompactionTurns::default();
        let order = |turns: &CompactionTurns| DELAYED.map(|cf| turns.of(cf).expect("a turn"));
        turns.note(DELAYED[0], true);
        turns.note(OTHER, false);
        let [first, second] = order(&turns);
        assert!(second < first);
        turns.note(DELAYED[1], true);
        turns.note(OTHER, false);
        let [first, second] = order(&turns);
        assert!(first < second);
        turns.forget(DELAYED[1]);
        assert_eq!(turns.of(DELAYED[1]), Some(0));
    }
}
