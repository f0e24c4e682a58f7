//! The history of operations on one register, and the check that it is linearizable.
//!
//! Every swap writes a value of its own, and a version belongs to one swap. So the order of the
//! versions is the only possible order of swaps. A history is linearizable if every operation
//! observes a permitted version. Such a version is not older than those observed before the
//! operation began. It is not newer than the swaps that had begun before the operation ended.

use std::collections::BTreeMap;

use super::super::proposer::{Operation, ProposalResult};
use crate::register::Versioned;

/// An operation, by its number.
struct Recorded {
    operation: Operation,
    began: u64,
    ended: Option<(u64, ProposalResult)>,
}

/// The operations on one register.
#[derive(Default)]
pub(in crate::nodes) struct History {
    operations: Vec<Recorded>,
}

/// The value that swap number `operation` writes.
pub(in crate::nodes) fn value_of(operation: usize) -> Vec<u8> {
    (operation as u64).to_le_bytes().to_vec()
}

impl History {
    /// Notes that an operation begins, and returns its number.
    pub(in crate::nodes) fn begin(&mut self, time: u64, operation: Operation) -> usize {
        self.operations.push(Recorded { operation, began: time, ended: None });
        self.operations.len() - 1
    }

    /// Number that the next operation gets.
    pub(in crate::nodes) fn next(&self) -> usize {
        self.operations.len()
    }

    pub(in crate::nodes) fn end(&mut self, time: u64, number: usize, result: ProposalResult) {
        self.operations[number].ended = Some((time, result));
    }

    pub(in crate::nodes) fn count(&self, is: impl Fn(&ProposalResult) -> bool) -> u32 {
        let ended = self.operations.iter().filter_map(|operation| operation.ended.as_ref());
        ended.filter(|(_, result)| is(result)).count() as u32
    }

    /// The rule that the history breaks, if any.
    pub(in crate::nodes) fn problem(&self) -> Option<String> {
        let mut ends: Vec<(u64, usize, &ProposalResult)> = Vec::new();
        for (number, operation) in self.operations.iter().enumerate() {
            if let Some((time, result)) = &operation.ended {
                ends.push((*time, number, result));
            }
        }
        ends.sort_by_key(|(time, number, _)| (*time, *number));
        // Largest versions observed by operations that have ended, with the times.
        let mut floors: Vec<(u64, u64)> = vec![(0, 0)];
        let mut writers: BTreeMap<u64, usize> = BTreeMap::new();
        for (time, number, result) in ends {
            let observed = match result {
                ProposalResult::Value(value) | ProposalResult::Lost(value) => value.clone(),
                ProposalResult::Swapped(version) => {
                    Some(Versioned { version: *version, value: value_of(number) })
                }
                ProposalResult::Unknown | ProposalResult::Replaced(_) => continue,
            };
            if let Some(observed) = &observed
                && let Some(problem) = self.wrong_writer(time, observed, &mut writers)
            {
                return Some(format!("operation {number}: {problem}"));
            }
            let version = observed.map_or(0, |observed| observed.version);
            let began = self.operations[number].began;
            let before = floors.iter().rev().find(|(at, _)| *at < began).map_or(0, |(_, v)| *v);
            let is_swap = matches!(result, ProposalResult::Swapped(_));
            if version < before || (is_swap && version == before && before > 0) {
                return Some(format!("operation {number} saw {version} after {before}"));
            }
            let floor = floors.last().map_or(0, |(_, floor)| *floor);
            floors.push((time, floor.max(version)));
        }
        None
    }

    /// Checks that the swap that wrote an observed value may have done so.
    fn wrong_writer(
        &self,
        time: u64,
        observed: &Versioned,
        writers: &mut BTreeMap<u64, usize>,
    ) -> Option<String> {
        let bytes = observed.value.as_slice().try_into().ok()?;
        let writer = u64::from_le_bytes(bytes) as usize;
        let version = observed.version;
        let known = *writers.entry(version).or_insert(writer);
        if known != writer {
            return Some(format!("version {version} is of {known} and of {writer}"));
        }
        let swap = &self.operations[writer];
        if swap.began > time {
            return Some(format!("saw {version} before swap {writer} began"));
        }
        if !matches!(swap.operation, Operation::Swap { expected, .. } if expected + 1 == version) {
            return Some(format!("version {version} is of {:?}", swap.operation));
        }
        match &swap.ended {
            Some((_, ProposalResult::Lost(_) | ProposalResult::Replaced(_))) => {
                Some(format!("saw {version}, but swap {writer} was reported as lost"))
            }
            Some((_, ProposalResult::Swapped(own))) if *own != version => {
                Some(format!("swap {writer} made version {own} and {version}"))
            }
            _ => None,
        }
    }
}
