//! The shared queues of an emulated device. The module consists of arithmetic on times, without a
//! clock and without sleeps.
//!
//! Each limit that callers share (read bandwidth, write bandwidth, both, operations) is a [`Lane`].
//! An operation waits for the lane that is busy for longest. A log is a stream for which no caller
//! waits. Its pieces are queued when their time has come ([`Queues::advance`], which is called
//! before anything else), so that a backlog of log bytes never reserves future time.
//!
//! Invariants:
//! 1. In any interval a lane passes no more than its rate times the interval, plus the worth of
//!    [`CREDIT_NS`] and one piece per caller.
//! 2. A piece has at most `io_bytes_max`, so that no caller waits for a long operation of another.
//! 3. Within a log, the next piece starts when the previous one ends.
//!
//! Thread-safety: none. A [`super::ThrottledFs`] owns the queues and holds a lock. Cost: a few
//! divisions, and a check of every log with unwritten bytes (one or two).

use super::{DeviceSpec, Direction};

/// Time that a lane or a caller may be idle and make up for later. Sleeps end late by about a tenth
/// of a millisecond, which is not a property of the emulated device.
pub(super) const CREDIT_NS: i64 = 200_000;

/// Time after its last operation for which a writer counts for the curve. A writer computes between
/// two writes, and its file is still being written.
const WRITER_STAYS_NS: u64 = 10_000_000;

/// One limit that callers share: the amount of queued work at `at_ns`.
#[derive(Clone, Copy, Debug, Default)]
struct Lane {
    at_ns: u64,
    /// Queued work in nanoseconds. It is negative after an idle time.
    backlog_ns: i64,
}

impl Lane {
    /// Queues work that takes `cost_ns` on an idle lane. Returns its end.
    fn add(&mut self, now_ns: u64, cost_ns: i64) -> i64 {
        let passed = now_ns.saturating_sub(self.at_ns) as i64;
        self.at_ns = self.at_ns.max(now_ns);
        self.backlog_ns = (self.backlog_ns - passed).max(-CREDIT_NS) + cost_ns;
        self.at_ns as i64 + self.backlog_ns
    }
}

/// Bytes of a log that are on their way to the device.
#[derive(Clone, Copy, Debug)]
struct LogQueue {
    stream: u64,
    appended: u64,
    /// Number of bytes of the pieces that were started.
    started: u64,
    /// Number of bytes of the last piece, which ends at `done_ns`.
    last: u64,
    done_ns: i64,
    /// Whether the log takes no more appends.
    closed: bool,
}

/// The queues of a device.
#[derive(Debug, Default)]
pub(super) struct Queues {
    directions: [Lane; 2],
    total: Lane,
    operations: Lane,
    /// Streams that write, and the time until which they count.
    writers: Vec<(u64, u64)>,
    logs: Vec<LogQueue>,
}

impl Queues {
    /// Moves one piece of at most `io_bytes_max`. The caller, whose own time is `from_ns`, queues
    /// it at `now_ns`. Returns its end without the latency.
    pub(super) fn transfer(
        &mut self,
        spec: &DeviceSpec,
        direction: Direction,
        stream: u64,
        from_ns: i64,
        now_ns: u64,
        bytes: u64,
    ) -> i64 {
        let writers = self.writers_at(direction, stream, now_ns);
        let rate = spec.direction_rate(direction, writers);
        let own_ns = cost_ns(bytes, rate.min(spec.stream_rate()));
        let lane = &mut self.directions[direction as usize];
        let done_ns = (from_ns + own_ns)
            .max(lane.add(now_ns, cost_ns(bytes, rate)))
            .max(self.total.add(now_ns, cost_ns(bytes, spec.total_rate())))
            .max(self.operations.add(now_ns, cost_ns(1, spec.operation_rate())));
        if direction == Direction::Write {
            let until_ns = done_ns.max(0) as u64 + WRITER_STAYS_NS;
            match self.writers.iter_mut().find(|(id, _)| *id == stream) {
                Some(writer) => writer.1 = until_ns,
                None => self.writers.push((stream, until_ns)),
            }
        }
        done_ns
    }

    /// Number of streams that write, including `stream` if it is about to.
    fn writers_at(&mut self, direction: Direction, stream: u64, now_ns: u64) -> usize {
        self.writers.retain(|&(_, until_ns)| until_ns > now_ns);
        let known = self.writers.iter().any(|&(id, _)| id == stream);
        self.writers.len() + usize::from(direction == Direction::Write && !known)
    }

    /// Records that a stream ended, and no longer counts as a writer.
    pub(super) fn forget(&mut self, stream: u64) {
        self.writers.retain(|&(id, _)| id != stream);
    }

    /// Starts every piece of a log whose time has come until `now_ns`.
    pub(super) fn advance(&mut self, spec: &DeviceSpec, now_ns: u64) {
        for index in 0..self.logs.len() {
            loop {
                let log = self.logs[index];
                let bytes = (log.appended - log.started).min(spec.io_bytes_max);
                if bytes == 0 || log.done_ns > now_ns as i64 {
                    break;
                }
                let from_ns = log.done_ns;
                let at_ns = from_ns.max(0) as u64;
                let direction = Direction::Write;
                let done_ns = self.transfer(spec, direction, log.stream, from_ns, at_ns, bytes);
                let log = &mut self.logs[index];
                log.started += bytes;
                log.last = bytes;
                log.done_ns = done_ns;
            }
        }
        self.logs.retain(|log| !log.closed || log.started < log.appended);
    }

    /// Records that a log was created.
    pub(super) fn open_log(&mut self, stream: u64, now_ns: u64) {
        let done_ns = now_ns as i64;
        let log = LogQueue { stream, appended: 0, started: 0, last: 0, done_ns, closed: false };
        self.logs.push(log);
    }

    /// Records that the log has `appended` bytes. The caller calls [`Queues::advance`] before.
    pub(super) fn append_log(&mut self, stream: u64, appended: u64, now_ns: u64) {
        if let Some(log) = self.logs.iter_mut().find(|log| log.stream == stream) {
            if log.started == log.appended {
                log.done_ns = log.done_ns.max(now_ns as i64);
            }
            log.appended = log.appended.max(appended);
        }
    }

    /// Records that the log takes no more appends. Its bytes continue to the device.
    pub(super) fn close_log(&mut self, stream: u64) {
        if let Some(log) = self.logs.iter_mut().find(|log| log.stream == stream) {
            log.closed = true;
        }
    }

    /// The next time at which more of the log's first `through` bytes are on the device; `None` if
    /// all of them are. The caller calls [`Queues::advance`] before.
    pub(super) fn log_step(&self, stream: u64, through: u64, now_ns: u64) -> Option<i64> {
        let log = self.logs.iter().find(|log| log.stream == stream)?;
        let on_device = log.started - if log.done_ns > now_ns as i64 { log.last } else { 0 };
        (on_device < through.min(log.appended)).then_some(log.done_ns)
    }

    /// Number of bytes of all logs that are not on the device. The caller calls [`Queues::advance`]
    /// before.
    pub(super) fn dirty_bytes(&self, now_ns: u64) -> u64 {
        let dirty = |log: &LogQueue| {
            let moving = if log.done_ns > now_ns as i64 { log.last } else { 0 };
            log.appended - log.started + moving
        };
        self.logs.iter().map(dirty).sum()
    }
}

/// Duration of `count` at `rate` a second; 0 at an infinite rate.
fn cost_ns(count: u64, rate: f64) -> i64 {
    (count as f64 * 1e9 / rate).round() as i64
}
