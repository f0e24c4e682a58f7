//! The executors that a scheduler knows by their beats.

use std::collections::BTreeMap;

use super::jobs::Head;
use crate::decide::{Candidate, InputReach, Load};
use crate::failure::ShortText;
use crate::ids::ExecutorId;
use crate::job::BUILD;
use crate::wire::ExecutorStanding;

/// The content of a beat.
#[derive(Clone, Debug, Default)]
pub(super) struct Offer {
    /// Names that the executor has ([`crate::job::JobOrder::needs`]).
    pub(super) names: Vec<String>,
    /// Host and process, with the kind of a node that hosts it.
    pub(super) address: ShortText,
    /// Number of jobs that it runs at the same time.
    pub(super) slots: u32,
    /// Load of the executor.
    pub(super) load: Load,
    /// How the executor reaches images.
    pub(super) reach: InputReach,
    /// Number of attempts that the executor runs.
    pub(super) running: u32,
    /// Whether an operator drains the executor.
    pub(super) is_draining: bool,
}

impl Offer {
    /// The name of the build among its names.
    fn build(&self) -> ShortText {
        let named = self.names.iter().find(|name| name.starts_with(BUILD));
        named.map(|name| ShortText::new(name)).unwrap_or_default()
    }

    fn has(&self, needs: &[String]) -> bool {
        needs.iter().all(|name| self.names.contains(name))
    }
}

#[derive(Clone, Debug)]
struct Known {
    offer: Offer,
    heard_ns: u64,
    /// The operator's order for the executor ([`Offer::is_draining`]), until a beat confirms it.
    wanted: Option<bool>,
    /// Whether it has declined a job for want of a slot since its latest beat.
    is_full: bool,
}

impl Known {
    /// Whether the executor gets no more jobs because an operator drains it.
    fn is_draining(&self) -> bool {
        self.wanted.unwrap_or(self.offer.is_draining)
    }
}

/// The living executors.
#[derive(Clone, Debug, Default)]
pub(super) struct Executors {
    known: BTreeMap<ExecutorId, Known>,
}

impl Executors {
    /// Records a beat. Returns the operator's order ([`Offer::is_draining`]) if the beat
    /// contradicts it, because the order has not arrived.
    pub(super) fn beat(&mut self, now_ns: u64, executor: ExecutorId, offer: Offer) -> Option<bool> {
        let wanted = self.known.get(&executor).and_then(|known| known.wanted);
        let wanted = wanted.filter(|wanted| *wanted != offer.is_draining);
        let known = Known { offer, heard_ns: now_ns, wanted, is_full: false };
        self.known.insert(executor, known);
        wanted
    }

    /// Notes that an executor has declined a job for want of a slot, because jobs of other
    /// schedulers have its slots. It gets no job before its next beat, which comes immediately when
    /// one of its jobs ends. Without this note, each dispatch would send it a job that it declines.
    pub(super) fn note_full(&mut self, executor: ExecutorId) {
        if let Some(known) = self.known.get_mut(&executor) {
            known.is_full = true;
        }
    }

    /// Notes that an operator drains an executor, or lets it take jobs again. Returns whether the
    /// executor is known.
    pub(super) fn drain(&mut self, executor: ExecutorId, is_draining: bool) -> bool {
        let known = self.known.get_mut(&executor);
        known.map(|known| known.wanted = Some(is_draining)).is_some()
    }

    /// The executors that have been silent for too long.
    pub(super) fn gone(&self, now_ns: u64, gone_ns: u64) -> Vec<ExecutorId> {
        let is_gone = |known: &Known| now_ns.saturating_sub(known.heard_ns) >= gone_ns;
        let gone = self.known.iter().filter(|(_, known)| is_gone(known));
        gone.map(|(executor, _)| *executor).collect()
    }

    /// Forgets an executor.
    pub(super) fn remove(&mut self, executor: ExecutorId) {
        self.known.remove(&executor);
    }

    /// Number of the living executors.
    pub(super) fn count(&self) -> u64 {
        self.known.len() as u64
    }

    /// Address of an executor; empty if the executor is not known.
    pub(super) fn address(&self, executor: ExecutorId) -> ShortText {
        let known = self.known.get(&executor);
        known.map(|known| known.offer.address.clone()).unwrap_or_default()
    }

    /// The executors, for operators. `taken` has the slots that attempts hold, and `deciding` the
    /// number of outputs that wait for their owners.
    pub(super) fn standings(
        &self,
        taken: &BTreeMap<ExecutorId, u32>,
        deciding: &BTreeMap<ExecutorId, u32>,
    ) -> Vec<ExecutorStanding> {
        let count = |of: &BTreeMap<ExecutorId, u32>, executor: &ExecutorId| {
            of.get(executor).copied().unwrap_or(0)
        };
        let standing = |(executor, known): (&ExecutorId, &Known)| {
            let taken = count(taken, executor);
            ExecutorStanding {
                executor: *executor,
                address: known.offer.address.clone(),
                build: known.offer.build(),
                slots: known.offer.slots,
                taken,
                load: known.offer.load,
                reach: known.offer.reach,
                // An earlier life of the scheduler may have given out attempts that it runs.
                held: taken.max(known.offer.running).saturating_add(count(deciding, executor)),
                is_draining: known.is_draining(),
            }
        };
        self.known.iter().map(standing).collect()
    }

    /// Slots of the executors that have these names.
    pub(super) fn slots(&self, needs: &[String]) -> u32 {
        let is_able = |known: &&Known| known.offer.has(needs) && !known.is_draining();
        let able = self.known.values().filter(is_able);
        able.map(|known| known.offer.slots).fold(0, u32::saturating_add)
    }

    /// The executors as candidates for a job. `taken` has the number of slots that attempts hold at
    /// each executor. An executor that leaves has no slots and will have none, and an executor that
    /// is drained takes no jobs. Neither is a candidate, because a job should not wait for it.
    pub(super) fn candidates(
        &self,
        head: &Head,
        taken: &BTreeMap<ExecutorId, u32>,
    ) -> Vec<Candidate> {
        let of = |(executor, known): (&ExecutorId, &Known)| {
            let offer = &known.offer;
            let used = taken.get(executor).copied().unwrap_or(0);
            // The beat may be older than the last assignments, so taken slots count as load, too.
            let share = 1000 * used / offer.slots.max(1);
            let load = Load { cpu: offer.load.cpu.max(share), ..offer.load };
            Candidate {
                executor: *executor,
                load,
                fetch: offer.reach.term(&head.places),
                has_slot: used < offer.slots && !known.is_full,
                can_run: offer.has(&head.needs),
                is_excluded: head.excluded.contains(executor),
            }
        };
        let takes_jobs = |known: &Known| known.offer.slots > 0 && !known.is_draining();
        self.known.iter().filter(|(_, known)| takes_jobs(known)).map(of).collect()
    }
}
