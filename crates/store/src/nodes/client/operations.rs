//! Times of the operations of the drivers, by class of file and redundancy.
//!
//! An operation is what a caller of a driver waits for, and may be many calls to nodes. The times
//! of single calls are in the statistics of each node.
//!
//! Thread-safety: any thread may record and read.
//! Failure: operations that fail are not recorded.
//! Cost: three relaxed atomic operations. The first operation of each kind, class and redundancy
//! allocates its histogram.

use std::sync::OnceLock;

use archipelago_base::metrics::{Distribution, Histogram};
use archipelago_env::FileClass;

use super::super::layout::Redundancy;

/// Kinds of operations whose times are comparable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationKind {
    /// A read of one or several ranges of a blob, with all its hedges and repetitions.
    Read,
    /// A piece of a blob that is sent to one node, until the answer of that node.
    Put,
    /// The end of a blob: from its last byte until all its nodes have made it durable.
    Seal,
    /// An append to a log, from the submission until the acknowledgement.
    Append,
    /// A sync of a log that had bytes to sync.
    Sync,
}

impl OperationKind {
    /// All kinds of operations.
    pub const ALL: [Self; 5] = [Self::Read, Self::Put, Self::Seal, Self::Append, Self::Sync];

    /// Name of the kind in metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Put => "put",
            Self::Seal => "seal",
            Self::Append => "append",
            Self::Sync => "sync",
        }
    }
}

/// An operation, as far as its time depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreOperation {
    /// Kind of the operation.
    pub kind: OperationKind,
    /// Class of the file.
    pub class: FileClass,
    /// Redundancy of the file. Logs are replicated.
    pub redundancy: Redundancy,
}

/// Times of the operations of one kind, class and redundancy.
#[derive(Clone, Debug, PartialEq)]
pub struct OperationTimes {
    /// Kind, class and redundancy.
    pub operation: StoreOperation,
    /// Times in nanoseconds, by powers of two.
    pub times: Distribution,
}

const KINDS: usize = OperationKind::ALL.len();
const CLASSES: usize = 5;
const REDUNDANCIES: [Redundancy; 2] = [Redundancy::Replicated, Redundancy::Coded];

/// The histograms of all operations that have occurred.
#[derive(Debug, Default)]
pub(super) struct OperationHistograms {
    times_ns: [[[OnceLock<Histogram>; REDUNDANCIES.len()]; CLASSES]; KINDS],
}

impl OperationHistograms {
    /// Notes the time of an operation that succeeded.
    pub(super) fn record(&self, operation: StoreOperation, time_ns: u64) {
        self.of(operation).get_or_init(Histogram::default).record(time_ns);
    }

    fn of(&self, operation: StoreOperation) -> &OnceLock<Histogram> {
        let StoreOperation { kind, class, redundancy } = operation;
        let class = usize::from(class.code()) - 1;
        &self.times_ns[kind as usize][class][redundancy as usize]
    }

    /// The times of the operations that have occurred.
    pub(super) fn all(&self) -> Vec<OperationTimes> {
        let classes = (1..=CLASSES as u8).filter_map(FileClass::from_code);
        let of_class = |class| {
            let kinds = OperationKind::ALL.into_iter();
            kinds.flat_map(move |kind| {
                REDUNDANCIES.map(|redundancy| StoreOperation { kind, class, redundancy })
            })
        };
        let operations = classes.flat_map(of_class);
        let times = operations.filter_map(|operation| {
            let times = self.of(operation).get()?.distribution();
            Some(OperationTimes { operation, times })
        });
        times.collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn operations_are_told_apart_by_kind_class_and_redundancy() {
        let histograms = OperationHistograms::default();
        assert!(histograms.all().is_empty());
        let mut recorded = 0;
        for kind in OperationKind::ALL {
            for class in (1..=CLASSES as u8).filter_map(FileClass::from_code) {
                for redundancy in REDUNDANCIES {
                    recorded += 1;
                    histograms.record(StoreOperation { kind, class, redundancy }, recorded);
                }
            }
        }
        let all = histograms.all();
        assert_eq!(all.len() as u64, recorded);
        assert!(all.iter().all(|one| one.times.by_bits.iter().sum::<u64>() == 1));
        let sums: BTreeSet<u64> = all.iter().map(|one| one.times.sum).collect();
        assert_eq!(sums.len() as u64, recorded, "each has the time that was recorded for it");
    }

    #[test]
    fn every_kind_has_its_own_name() {
        let names: BTreeSet<_> = OperationKind::ALL.iter().map(|kind| kind.name()).collect();
        assert_eq!(names.len(), KINDS);
    }
}
