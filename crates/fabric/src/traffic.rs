//! Traffic classes: the purposes of messages, in the order in which a network card sends them.
//!
//! The types are plain values, and their functions are pure.

use std::fmt;

/// The purpose of a message. A card sends messages of an earlier class first
/// ([`paced`](crate::paced)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TrafficClass {
    /// An append to a log, for whose acknowledgement a writer waits.
    Log,
    /// A read or another request for which a user waits, and everything that names no class.
    #[default]
    Foreground,
    /// A part of a table that a flush writes.
    Flush,
    /// A message of a compaction.
    Compaction,
    /// A message of a garbage collection.
    Gc,
}

impl TrafficClass {
    /// All classes, in the order in which a card sends them.
    pub const ALL: [Self; 5] =
        [Self::Log, Self::Foreground, Self::Flush, Self::Compaction, Self::Gc];

    /// Whether no user waits for the message. A card has a bounded number of bytes of such messages
    /// in flight.
    #[must_use]
    pub const fn is_background(self) -> bool {
        matches!(self, Self::Flush | Self::Compaction | Self::Gc)
    }

    /// Name of the class in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Log => "log",
            Self::Foreground => "foreground",
            Self::Flush => "flush",
            Self::Compaction => "compaction",
            Self::Gc => "gc",
        }
    }
}

impl fmt::Display for TrafficClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
