//! Steps of an owner that offloads, at which a fault hits. The fault points of the engine tell
//! which step is at work.
//!
//! The module consists of plain values.

use std::fmt;

/// Work of an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Step {
    Write,
    /// A sealed shard goes to a memory node.
    Send,
    Flush,
    Compaction,
    Gc,
    /// Shards that a memory node lost are made again from the log.
    Rebuild,
    /// The next owner keeps the shards of a dead one.
    TakeOver,
}

impl Step {
    /// All steps, in the order of the summary.
    pub(super) const ALL: [Self; 7] = [
        Self::Write,
        Self::Send,
        Self::Flush,
        Self::Compaction,
        Self::Gc,
        Self::Rebuild,
        Self::TakeOver,
    ];

    /// The step of a fault point of the engine; `None` for work without a step.
    pub(super) fn of(point: &str) -> Option<Self> {
        match point {
            "send.picked" | "send.before_send" | "send.sent" => Some(Self::Send),
            "flush.picked" | "flush.run_here" | "flush.before_install" => Some(Self::Flush),
            "compaction.picked" | "compaction.before_install" => Some(Self::Compaction),
            "gc.picked" | "gc.after_write" | "gc.before_install" => Some(Self::Gc),
            "rebuild.picked" | "rebuild.before_swap" => Some(Self::Rebuild),
            "takeover.told"
            | "takeover.listed"
            | "takeover.replayed"
            | "takeover.before_edit"
            | "takeover.before_adopt"
            | "takeover.adopted" => Some(Self::TakeOver),
            _ => None,
        }
    }

    /// Number of moments of the step among which a run chooses one.
    pub(super) fn moments(self) -> u64 {
        match self {
            Self::Write => 1500,
            Self::Send => 24,
            Self::Flush => 12,
            Self::Compaction => 8,
            Self::Gc => 4,
            Self::Rebuild => 2,
            Self::TakeOver => 6,
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Write => "write",
            Self::Send => "send",
            Self::Flush => "flush",
            Self::Compaction => "compaction",
            Self::Gc => "gc",
            Self::Rebuild => "rebuild",
            Self::TakeOver => "take-over",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn step_follows_from_the_fault_point() {
        assert_eq!(Step::of("send.sent"), Some(Step::Send));
        assert_eq!(Step::of("takeover.before_edit"), Some(Step::TakeOver));
        assert_eq!(Step::of("gc.pick"), None, "it runs under a lock");
        assert_eq!(Step::of("strays.sweep"), None);
    }
}
