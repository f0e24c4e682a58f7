//! Steps of an owner that offloads, at which a fault hits. The fault points of the engine show
//! which step is at work. In a run with `--messages`, each message of the protocols is a step, and
//! the process that receives the message is at it.
//!
//! The module consists of plain values.

use std::fmt;

use crate::children::{MESSAGES, Message};

/// Work of an owner, or a message.
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
    /// A process receives the message with this index in [`MESSAGES`].
    Message(usize),
}

impl Step {
    /// All steps of an owner, in the order of the summary.
    pub(super) const ALL: [Self; 7] = [
        Self::Write,
        Self::Send,
        Self::Flush,
        Self::Compaction,
        Self::Gc,
        Self::Rebuild,
        Self::TakeOver,
    ];

    /// All messages as steps, in the order of the summary.
    pub(super) fn messages() -> impl Iterator<Item = Self> {
        (0..MESSAGES.len()).map(Self::Message)
    }

    /// All steps, by their numbers on a command line.
    pub(super) fn known() -> Vec<Self> {
        Self::ALL.into_iter().chain(Self::messages()).collect()
    }

    /// The message of the step; `None` for a step of an owner.
    pub(super) fn message(self) -> Option<&'static Message> {
        match self {
            Self::Message(index) => MESSAGES.get(index),
            _ => None,
        }
    }

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
            Self::Message(index) => MESSAGES.get(index).map_or(1, |message| message.moments),
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(message) = self.message() {
            return fmt::Display::fmt(message, f);
        }
        f.write_str(match self {
            Self::Write => "write",
            Self::Send => "send",
            Self::Flush => "flush",
            Self::Compaction => "compaction",
            Self::Gc => "gc",
            Self::Rebuild => "rebuild",
            Self::TakeOver => "take-over",
            Self::Message(_) => "message",
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn step_follows_from_the_fault_point() {
        assert_eq!(Step::of("send.sent"), Some(Step::Send));
        assert_eq!(Step::of("takeover.before_edit"), Some(Step::TakeOver));
        assert_eq!(Step::of("gc.pick"), None, "it runs under a lock");
        assert_eq!(Step::of("strays.sweep"), None);
    }

    #[test]
    fn each_message_is_a_step_of_its_own() {
        let known = Step::known();
        assert_eq!(known.len(), Step::ALL.len() + MESSAGES.len());
        let names: BTreeSet<String> = Step::messages().map(|step| step.to_string()).collect();
        assert_eq!(names.len(), MESSAGES.len());
        assert!(Step::messages().all(|step| step.moments() > 0));
    }
}
