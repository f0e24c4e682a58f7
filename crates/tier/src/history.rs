//! What was moved, copied and changed lately, and why: for statistics.

use std::collections::VecDeque;
use std::fmt;

use parking_lot::Mutex;

/// So many are kept.
const KEPT: usize = 64;

/// Why background work was done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// A trivial move or an ingestion gave the file another level.
    LevelChanged,
    /// The device has little room.
    SpaceLow,
    /// The device has so little room that other writers do not matter.
    SpaceForced,
    /// Too many foreground reads went past the device.
    HitRatio,
    /// Another copy is hotter.
    Colder,
    /// Files need the copy's room.
    RoomForFiles,
    /// A faster device has a copy of all of the file now.
    CopiedHigher,
    /// A better copy of the file took its place.
    CopiedAnew,
    /// The device writes at this percentage of what its profile says.
    SlowerThanProfiled(u32),
    /// The device writes as its profile says again.
    AsProfiled,
    /// Its device lost it, and there was a whole copy.
    Missing,
    /// The device is being emptied.
    DeviceLeaves,
    /// Observed writers and sizes want another scheme: the sentence that says which.
    Scheme(String),
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::SlowerThanProfiled(percent) => {
                return write!(f, "the device writes at {percent} % of what its profile says");
            }
            Self::AsProfiled => "the device writes as its profile says again",
            Self::LevelChanged => "its level changed",
            Self::SpaceLow => "space is low",
            Self::SpaceForced => "space is almost gone",
            Self::HitRatio => "too many reads went past the device",
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

/// One thing that was done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Milliseconds of the tiers' clock.
    pub at_ms: u64,
    /// What was done, to what.
    pub what: String,
    /// Why.
    pub reason: Reason,
}

/// The last events.
#[derive(Debug, Default)]
pub(crate) struct History {
    events: Mutex<VecDeque<Event>>,
}

impl History {
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
