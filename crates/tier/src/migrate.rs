//! Migration: the choice of the files that leave a device that gets full, and the number of threads
//! that copy and move (Keigo §4.2, §4.3). All functions are pure.

/// Shortage of space on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pressure {
    /// The device has enough free space.
    None,
    /// Files leave the device, as far as the writers of the devices allow.
    Low,
    /// Files leave the device, without regard to other writers.
    Forced,
}

/// Fraction of a device that is free in addition to the threshold once files have left.
const RELIEF: f64 = 0.02;

/// Shortage of a device with `free` of `capacity` bytes. `low` and `forced` are the free fractions
/// below which it begins.
#[must_use]
pub fn pressure(free: u64, capacity: u64, low: f64, forced: f64) -> Pressure {
    let below = |part: f64| (free as f64) < capacity as f64 * part;
    match (below(low), below(forced)) {
        (_, true) => Pressure::Forced,
        (true, _) => Pressure::Low,
        _ => Pressure::None,
    }
}

/// Bytes that must leave a device until it is relieved.
#[must_use]
pub fn excess(free: u64, capacity: u64, low: f64) -> u64 {
    ((capacity as f64 * (low + RELIEF)) as u64).saturating_sub(free)
}

/// A file on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resident {
    /// Unique id of the file.
    pub file: u64,
    /// Level of the file. A file without a level counts as one of the deepest level.
    pub level: Option<u8>,
    /// Time since the last read, in milliseconds.
    pub idle_ms: u64,
    /// Length in bytes.
    pub len: u64,
}

/// Factor by which each further level raises the weight of a file, as if the file had been idle
/// that many times longer.
const LEVEL_WEIGHT: f64 = 2.0;
/// Idle time, in milliseconds, that is added to that of every file, so that levels decide between
/// files that were just read.
const IDLE_MS_MIN: u64 = 1000;

fn weight(resident: &Resident) -> f64 {
    let level = resident.level.map_or(16, |level| i32::from(level.min(16)));
    (resident.idle_ms + IDLE_MS_MIN) as f64 * LEVEL_WEIGHT.powi(level)
}

/// Picks files of `bytes` in total to leave the device. Files that were idle for long and files of
/// deep levels come first.
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

/// Number of threads that may write to a device for copies and moves: the writers that the device
/// takes (`limit`), less those of callers, and at most `most`.
#[must_use]
pub fn threads(limit: u32, callers: usize, most: usize) -> usize {
    (limit as usize).saturating_sub(callers).min(most)
}

/// Number of further copies to a device that may be queued in an iteration.
///
/// This is the number of `threads` that may write, or twice the number of copies that `finished`
/// since the last iteration, less the `busy` ones, which are queued or running. At least one copy
/// is queued if none is busy: whether it may begin is decided when it is taken. So a cold cache
/// fills at the device's speed. More copies are queued only if copies win back their cost
/// (`cache::payback`).
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
    fn deep_and_idle_files_leave_first() {
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
    fn queue_room_follows_finished_copies() {
        assert_eq!(queue_room(4, 0, 0), 4);
        assert_eq!(queue_room(4, 30, 5), 55, "the copies of the last iteration were small");
        assert_eq!(queue_room(0, 0, 0), 1, "a gap between two writers is enough");
        assert_eq!(queue_room(0, 0, 1), 0);
    }

    #[test]
    fn copies_use_the_writers_that_callers_leave() {
        assert_eq!(threads(4, 1, 16), 3);
        assert_eq!(threads(4, 9, 16), 0);
        assert_eq!(threads(64, 0, 16), 16);
    }
}
