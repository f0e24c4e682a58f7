//! The executors that a scheduler knows by their beats.

use std::collections::BTreeMap;

use super::jobs::Head;
use crate::decide::{Candidate, Load};
use crate::ids::ExecutorId;

/// What a beat tells.
#[derive(Clone, Debug, Default)]
pub(super) struct Offer {
    /// Names of the merge operators and filters, and of the build.
    pub(super) names: Vec<String>,
    /// Jobs that it runs at the same time.
    pub(super) slots: u32,
    /// Load of the executor.
    pub(super) load: Load,
}

#[derive(Clone, Debug)]
struct Known {
    offer: Offer,
    heard_ns: u64,
}

/// The living executors.
#[derive(Clone, Debug, Default)]
pub(super) struct Executors {
    known: BTreeMap<ExecutorId, Known>,
}

impl Executors {
    /// Notes a beat.
    pub(super) fn beat(&mut self, now_ns: u64, executor: ExecutorId, offer: Offer) {
        self.known.insert(executor, Known { offer, heard_ns: now_ns });
    }

    /// Removes and returns the executors that have been silent for too long.
    pub(super) fn drop_gone(&mut self, now_ns: u64, gone_ns: u64) -> Vec<ExecutorId> {
        let is_gone = |known: &Known| now_ns.saturating_sub(known.heard_ns) >= gone_ns;
        let gone = self.known.iter().filter(|(_, known)| is_gone(known));
        let gone: Vec<ExecutorId> = gone.map(|(executor, _)| *executor).collect();
        gone.iter().for_each(|executor| {
            self.known.remove(executor);
        });
        gone
    }

    /// All executors as candidates for a job. `taken` has the slots that each one's attempts hold.
    pub(super) fn candidates(
        &self,
        head: &Head,
        taken: &BTreeMap<ExecutorId, u32>,
    ) -> Vec<Candidate> {
        let of = |(executor, known): (&ExecutorId, &Known)| {
            let offer = &known.offer;
            let used = taken.get(executor).copied().unwrap_or(0);
            // The beat may be older than the last assignments, so they count as load.
            let share = 1000 * used / offer.slots.max(1);
            let load = Load { cpu: offer.load.cpu.max(share), ..offer.load };
            Candidate {
                executor: *executor,
                load,
                fetch: 0,
                has_slot: used < offer.slots,
                can_run: head.needs.iter().all(|name| offer.names.contains(name)),
                is_excluded: head.excluded.contains(executor),
            }
        };
        self.known.iter().map(of).collect()
    }
}
