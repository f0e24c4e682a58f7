//! Which files leave a device that gets full, and how many threads copy and move (Keigo §4.2,
//! §4.3). Pure.

/// How short a device is of space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pressure {
    /// Not at all.
    None,
    /// Files leave as far as the devices' writers allow.
    Low,
    /// Files leave whatever else is written.
    Forced,
}

/// When a device is relieved, so much of it more than the threshold is free again.
const RELIEF: f64 = 0.02;

/// How short a device with `free` of `capacity` bytes is.
#[must_use]
pub fn pressure(free: u64, capacity: u64, low: f64, forced: f64) -> Pressure {
    let below = |part: f64| (free as f64) < capacity as f64 * part;
    match (below(low), below(forced)) {
        (_, true) => Pressure::Forced,
        (true, _) => Pressure::Low,
        _ => Pressure::None,
    }
}

/// Bytes that have to leave until the pressure is gone for a while.
#[must_use]
pub fn excess(free: u64, capacity: u64, low: f64) -> u64 {
    ((capacity as f64 * (low + RELIEF)) as u64).saturating_sub(free)
}

/// A file on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resident {
    /// Its unique id.
    pub file: u64,
    /// Its level; none counts as the deepest.
    pub level: Option<u8>,
    /// How long it was not read, in milliseconds.
    pub idle_ms: u64,
    /// Its bytes.
    pub len: u64,
}

/// A level deeper counts like being idle this many times as long.
const LEVEL_WEIGHT: f64 = 2.0;
/// A file that was read just now counts as idle for so long, so that levels still tell.
const IDLE_MS_MIN: u64 = 1000;

fn weight(resident: &Resident) -> f64 {
    let level = resident.level.map_or(16, |level| i32::from(level.min(16)));
    (resident.idle_ms + IDLE_MS_MIN) as f64 * LEVEL_WEIGHT.powi(level)
}

/// The files to leave, until they are `bytes` in all: longest idle first, deeper levels sooner.
#[must_use]
pub fn pick(residents: &[Resident], bytes: u64) -> Vec<u64> {
    let mut order: Vec<&Resident> = residents.iter().collect();
    order.sort_by(|a, b| weight(b).total_cmp(&weight(a)).then(a.file.cmp(&b.file)));
    let mut left = bytes;
    let mut picked = Vec::new();
    for resident in order {
        if left == 0 {
            break;
        }
        left = left.saturating_sub(resident.len);
        picked.push(resident.file);
    }
    picked
}

/// How many threads may write to a device for copies and moves: what it takes (`limit`) beside the
/// writers from above, at most `most`.
#[must_use]
pub fn threads(limit: u32, callers: usize, most: usize) -> usize {
    (limit as usize).saturating_sub(callers).min(most)
}

/// How many more copies to a device may be queued at a look: as many as `threads` may write at
/// once, or twice as many as were `finished` since the last look, less those that wait or run. At
/// least one is tried: whether it may begin is asked again when its turn comes. So a cold cache
/// fills at the device's speed. More wait only where copies pay (`cache::payback`).
#[must_use]
pub fn queue_room(threads: usize, finished: usize, busy: usize) -> usize {
    threads.max(2 * finished).max(1).saturating_sub(busy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pressure_begins_and_is_forced_at_its_thresholds() {
        let at = |free| pressure(free, 1000, 0.05, 0.02);
        assert_eq!(
            [at(50), at(49), at(20), at(19)],
            [Pressure::None, Pressure::Low, Pressure::Low, Pressure::Forced]
        );
        assert_eq!(excess(49, 1000, 0.05), 21, "until 7 % are free");
        assert_eq!(excess(70, 1000, 0.05), 0);
    }

    #[test]
    fn deep_and_idle_files_leave_first_and_no_more_than_needed() {
        let file = |file, level, idle_ms| Resident { file, level, idle_ms, len: 10 };
        let residents = [
            file(1, Some(1), 60_000),
            file(2, Some(5), 60_000),
            file(3, Some(5), 10),
            file(4, Some(1), 10),
            file(5, None, 60_000),
        ];
        assert_eq!(pick(&residents, 50), [5, 2, 1, 3, 4]);
        assert_eq!(pick(&residents, 11), [5, 2]);
        assert!(pick(&residents, 0).is_empty());
    }

    #[test]
    fn a_queue_follows_what_is_finished() {
        assert_eq!(queue_room(4, 0, 0), 4);
        assert_eq!(queue_room(4, 30, 5), 55, "the last look's copies were small");
        assert_eq!(queue_room(0, 0, 0), 1, "a gap between two writers is enough");
        assert_eq!(queue_room(0, 0, 1), 0);
    }

    #[test]
    fn copies_stand_back_for_writers() {
        assert_eq!(threads(4, 1, 16), 3);
        assert_eq!(threads(4, 9, 16), 0);
        assert_eq!(threads(64, 0, 16), 16);
    }
}
