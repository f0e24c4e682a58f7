//! History of recent moves, copies and changes of the scheme, with their reasons, for statistics.
//!
//! Thread-safety: one lock guards the events. Cost: the last 64 events stay in memory.

use std::collections::VecDeque;
use std::fmt;

use parking_lot::Mutex;

/// Number of events that are kept.
const KEPT: usize = 64;

/// The reason for a step of background work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// A trivial move or an ingestion changed the level of the file.
    LevelChanged,
    /// The device is short of space.
    SpaceLow,
    /// The device has so little space that files leave it without regard to other writers.
    SpaceForced,
    /// The device served too few of the foreground reads that it could have served.
    HitRatio,
    /// Another file or copy is hotter.
    Colder,
    /// Files need the room of the copy.
    RoomForFiles,
    /// A faster device got a whole copy of the file.
    CopiedHigher,
    /// A better copy of the file replaced the copy.
    CopiedAnew,
    /// The device reaches this percentage of its profile's write throughput.
    SlowerThanProfiled(u32),
    /// The device reaches its profile's write throughput again.
    AsProfiled,
    /// The device lost the file, and it was restored from a whole copy.
    Missing,
    /// The device is being emptied.
    DeviceLeaves,
    /// The observed writers and sizes led to another scheme, which the sentence describes.
    Scheme(String),
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::SlowerThanProfiled(percent) => {
                return write!(f, "the device reaches {percent} % of its profile in writes");
            }
            Self::AsProfiled => "the device reaches its profile in writes again",
            Self::LevelChanged => "its level changed",
            Self::SpaceLow => "space is low",
            Self::SpaceForced => "space is almost gone",
            Self::HitRatio => "the device served too few reads",
            Self::Colder => "another file is hotter",
            Self::RoomForFiles => "files need the room",
            Self::CopiedHigher => "a faster device has a copy",
            Self::CopiedAnew => "a better copy of the file took its place",
            Self::Missing => "its device did not have it any more, and a whole copy was there",
            Self::DeviceLeaves => "its device is being emptied",
            Self::Scheme(why) => why,
        })
    }
}

/// One step of background work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Time of the step, in milliseconds of the tiers' clock.
    pub at_ms: u64,
    /// Description of the step.
    pub what: String,
    /// Reason for the step.
    pub reason: Reason,
}

/// The last events.
#[derive(Debug, Default)]
pub(crate) struct History {
    events: Mutex<VecDeque<Event>>,
}

impl History {
    /// Adds an event, and logs it.
    pub(crate) fn tell(&self, at_ms: u64, what: String, reason: Reason) {
        tracing::info!(%reason, "tiers: {what}");
        let mut events = self.events.lock();
        if events.len() == KEPT {
            events.pop_front();
        }
        events.push_back(Event { at_ms, what, reason });
    }

    pub(crate) fn events(&self) -> Vec<Event> {
        self.events.lock().iter().cloned().collect()
    }
}
