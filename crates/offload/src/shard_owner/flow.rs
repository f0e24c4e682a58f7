//! The flow of images to the nodes: paces the transfers of an owner (O³-LSM §4.4).
//!
//! All transfers of an owner share one flow. A transfer takes its turn for each slice that it
//! writes. A slice begins when the bytes before it have had their time at the present speed. Unused
//! time is not saved up, so it causes no burst.
//!
//! Invariants:
//! 1. At a limited speed, the bytes of any period are at most those of the speed, plus one slice of
//!    each transfer.
//! 2. A transfer that has used half of its time goes at full speed, so pacing makes no transfer
//!    fail.
//!
//! Thread-safety: any thread may call any method.
//! Failure: none.
//! Cost: a short lock per slice, and an entry for each window in which a waiting slice will begin.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;

/// Time that a slice takes at a limited speed.
const SLICE: Duration = Duration::from_millis(10);
/// Bounds of a slice, in bytes.
const SLICE_BYTES: std::ops::RangeInclusive<u64> = 16 << 10..=1 << 20;
/// Length in nanoseconds of the windows over which the peak is counted.
const WINDOW_NS: u64 = 100_000_000;

/// Bytes of a slice at this speed.
pub(super) fn slice_bytes(bytes_per_s: u64) -> u64 {
    let bytes = u128::from(bytes_per_s) * SLICE.as_millis() / 1000;
    u64::try_from(bytes).unwrap_or(u64::MAX).clamp(*SLICE_BYTES.start(), *SLICE_BYTES.end())
}

#[derive(Debug, Default)]
struct FlowState {
    /// Time at which the next slice may begin.
    next_ns: u64,
    /// Bytes of the present window, of the one before it and of later ones, by their starts. A
    /// slice that waits for its turn counts in the window in which it begins. Meanwhile a transfer
    /// at full speed counts in an earlier one.
    windows: BTreeMap<u64, u64>,
    /// Bytes of the largest window.
    peak_bytes: u64,
    written_bytes: u64,
}

/// Bytes that were written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FlowFigures {
    pub(super) written_bytes: u64,
    /// Most bytes within 100 ms.
    pub(super) peak_bytes: u64,
}

/// The flow of an owner's images.
#[derive(Debug, Default)]
pub(super) struct Flow(Mutex<FlowState>);

impl Flow {
    /// Schedules and counts a slice of `bytes` at this speed. Returns the nanoseconds until the
    /// slice may begin. The speed `u64::MAX` means no limit.
    pub(super) fn turn(&self, now_ns: u64, bytes: u64, bytes_per_s: u64) -> u64 {
        let mut state = self.0.lock();
        let begin_ns = if bytes_per_s == u64::MAX { now_ns } else { now_ns.max(state.next_ns) };
        let take_ns = u128::from(bytes) * 1_000_000_000 / u128::from(bytes_per_s.max(1));
        let take_ns = u64::try_from(take_ns).unwrap_or(u64::MAX);
        state.next_ns = state.next_ns.max(begin_ns.saturating_add(take_ns));
        // The clock of another thread may have been read shortly before the end of a window.
        let kept_ns = (now_ns - now_ns % WINDOW_NS).saturating_sub(WINDOW_NS);
        state.windows = state.windows.split_off(&kept_ns);
        let window_bytes = state.windows.entry(begin_ns - begin_ns % WINDOW_NS).or_default();
        *window_bytes += bytes;
        let window_bytes = *window_bytes;
        state.peak_bytes = state.peak_bytes.max(window_bytes);
        state.written_bytes += bytes;
        begin_ns - now_ns
    }

    pub(super) fn figures(&self) -> FlowFigures {
        let state = self.0.lock();
        FlowFigures { written_bytes: state.written_bytes, peak_bytes: state.peak_bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn slices_take_turns_at_the_speed_of_the_moment() {
        let flow = Flow::default();
        let ms = |ms: u64| ms * 1_000_000;
        assert_eq!(flow.turn(0, 1000, 100_000), 0);
        assert_eq!(flow.turn(0, 1000, 100_000), ms(10), "after the first");
        assert_eq!(flow.turn(ms(5), 1000, 1_000_000), ms(15), "another transfer, which is faster");
        assert_eq!(flow.turn(ms(21), 1000, 1_000_000), 0);
        // Unused time is not saved up.
        assert_eq!(flow.turn(ms(1000), 1000, 100_000), 0);
        assert_eq!(flow.turn(ms(1000), 1000, 100_000), ms(10));
        assert_eq!(flow.turn(ms(1000), 1000, u64::MAX), 0, "a transfer without a limit");
        assert_eq!(flow.figures().written_bytes, 7000);
    }

    #[test]
    fn paced_bytes_of_a_window_are_those_of_the_speed() {
        let (flow, mut now_ns) = (Flow::default(), 0);
        // Two transfers at 10 MiB/s.
        for _ in 0..200 {
            now_ns += flow.turn(now_ns, slice_bytes(10 * MIB), 10 * MIB);
        }
        let peak = flow.figures().peak_bytes;
        assert!((MIB..=MIB + 2 * slice_bytes(10 * MIB)).contains(&peak), "{peak}");
    }

    #[test]
    fn slice_that_waits_counts_when_it_begins() {
        let flow = Flow::default();
        let ms = |ms: u64| ms * 1_000_000;
        // The second slice waits for the next window.
        assert_eq!(flow.turn(0, 1000, 10_000), 0);
        assert_eq!(flow.turn(0, 1000, 10_000), ms(100));
        // Transfers without a limit write in the present window meanwhile.
        assert_eq!((flow.turn(ms(1), 1500, u64::MAX), flow.turn(ms(2), 500, u64::MAX)), (0, 0));
        assert_eq!(flow.figures().peak_bytes, 3000);
        // The next window has the slice that waited, and those that begin there.
        assert_eq!(flow.turn(ms(150), 2500, u64::MAX), 0);
        assert_eq!(flow.figures(), FlowFigures { written_bytes: 6500, peak_bytes: 3500 });
    }

    #[test]
    fn slice_takes_some_milliseconds() {
        assert_eq!(slice_bytes(10 * MIB), 104_857);
        assert_eq!((slice_bytes(1), slice_bytes(u64::MAX)), (16 << 10, MIB));
    }
}
