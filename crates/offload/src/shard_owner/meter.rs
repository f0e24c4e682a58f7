//! Measured times of the links to one node, as moving averages.
//!
//! Short operations (up to 4 KiB) give the time of a READ and of a request. The additional time of
//! longer answers, and the time of writes, give the speed of the link. The meters of all links of
//! an owner also add the times of look-ups to the same [`LookupTimes`], which outlive the links.
//!
//! Thread-safety: any thread may call any method. Threads that measure at the same time may lose a
//! measurement.
//! Failure: the figures are estimates; no decision about correctness depends on one.
//! Cost: a few relaxed atomic operations per measurement.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use archipelago_base::metrics::Counters;

use crate::decide::LinkFigures;

/// Largest short operation, in bytes.
const SHORT_BYTES: u64 = 4096;
/// Smallest long answer, in bytes. Answers between the two limits are not measured.
const LONG_BYTES: u64 = 8192;
/// Smallest burst of writes whose speed is measured, in bytes.
const WRITE_BYTES: u64 = 16 << 10;
/// A measurement moves its average by one part in this many of the difference.
const PART: u64 = 8;
/// Number of look-ups after which one takes the path that seems slower, so that both paths stay
/// measured.
const PROBE: u64 = 64;

/// A moving average; 0 before the first measurement.
#[derive(Debug, Default)]
struct Average(AtomicU64);

impl Average {
    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn add(&self, value: u64) {
        let (value, before) = (value.max(1), self.get());
        let next = if before == 0 {
            value
        } else if value >= before {
            before + (value - before).div_ceil(PART)
        } else {
            before - (before - value).div_ceil(PART)
        };
        self.0.store(next, Ordering::Relaxed);
    }
}

fn is_probe(counter: &AtomicU64) -> bool {
    counter.fetch_add(1, Ordering::Relaxed) % PROBE == PROBE - 1
}

/// Speed in bytes a second.
fn speed(bytes: u64, ns: u64) -> u64 {
    let speed = u128::from(bytes) * 1_000_000_000 / u128::from(ns.max(1));
    u64::try_from(speed).unwrap_or(u64::MAX)
}

/// Sums over round trips of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RoundTrips {
    pub(super) count: u64,
    pub(super) ns: u64,
    /// Bytes that they brought from nodes.
    pub(super) bytes: u64,
}

/// A kind of round trip of look-ups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TripKind {
    /// A batch of READs of known records, of which none was refused.
    Known,
    /// A request that had an answer.
    Request,
}

/// Kinds of round trips, and figures of each.
const KINDS: usize = 2;
const FIGURES: usize = 3;

/// Round trips of the look-ups of an owner to all nodes, since the open of the database. The
/// threads that look keys up do not share cache lines of it, because a READ over shared memory
/// takes no longer than a few of them.
#[derive(Debug, Default)]
pub(super) struct LookupTimes(Counters<{ KINDS * FIGURES }>);

impl LookupTimes {
    fn add(&self, kind: TripKind, bytes: u64, ns: u64) {
        let first = kind as usize * FIGURES;
        for (at, value) in [1, ns, bytes].into_iter().enumerate() {
            self.0.add(first + at, value);
        }
    }

    /// The sums of a kind as of now.
    pub(super) fn get(&self, kind: TripKind) -> RoundTrips {
        let first = kind as usize * FIGURES;
        let [count, ns, bytes] = [0, 1, 2].map(|at| self.0.get(first + at));
        RoundTrips { count, ns, bytes }
    }
}

/// How the writes of a burst followed each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum BurstPace {
    /// Several writes were in flight, so the link was the limit.
    #[default]
    Full,
    /// Each write waited for the one before it, so the time includes a round trip for each.
    Paced,
}

/// Measures the links to one node.
#[derive(Debug, Default)]
pub(super) struct LinkMeter {
    read_ns: Average,
    /// Time of a READ of a long value. It is an upper bound for the time of a short READ.
    long_read_ns: Average,
    request_ns: Average,
    answer_bytes_per_s: Average,
    write_bytes_per_s: Average,
    reads: AtomicU64,
    answers: AtomicU64,
    /// Times of all links of the owner.
    times: Arc<LookupTimes>,
}

impl LinkMeter {
    /// A meter that adds the times of look-ups to `times`.
    pub(super) fn adding_to(times: &Arc<LookupTimes>) -> Self {
        Self { times: Arc::clone(times), ..Self::default() }
    }

    /// Records that a batch of READs of known records, of `bytes` together, took `ns` nanoseconds.
    pub(super) fn known_records(&self, bytes: u64, ns: u64) {
        self.times.add(TripKind::Known, bytes, ns);
        self.read(bytes, ns);
    }

    /// Records that a READ of `bytes` took `ns` nanoseconds.
    pub(super) fn read(&self, bytes: u64, ns: u64) {
        match bytes {
            ..=SHORT_BYTES => self.read_ns.add(ns),
            _ => self.long_read_ns.add(ns),
        }
    }

    /// Records that a look-up whose answer has `bytes` took `ns` nanoseconds.
    pub(super) fn request(&self, bytes: u64, ns: u64) {
        self.times.add(TripKind::Request, bytes, ns);
        let request_ns = self.request_ns.get();
        match bytes {
            ..=SHORT_BYTES => self.request_ns.add(ns),
            LONG_BYTES.. if request_ns > 0 && ns > request_ns => {
                self.answer_bytes_per_s.add(speed(bytes, ns - request_ns));
            }
            _ => {}
        }
    }

    /// Records that a burst of WRITEs with `bytes` took `ns` nanoseconds. A paced burst does not
    /// change the measured speed, because stall decisions use that speed and must not depend on the
    /// pace. Writers that need more than the measured speed end the pacing, so a speed that is too
    /// low is measured again.
    pub(super) fn write(&self, bytes: u64, ns: u64, pace: BurstPace) {
        if bytes >= WRITE_BYTES && pace == BurstPace::Full {
            self.write_bytes_per_s.add(speed(bytes, ns));
        }
    }

    /// Speed of writes, in bytes a second; 0 before the first measured burst.
    pub(super) fn write_bytes_per_s(&self) -> u64 {
        self.write_bytes_per_s.get()
    }

    /// Figures for the choice between a READ and a request.
    pub(super) fn figures(&self, is_shared: bool) -> LinkFigures {
        LinkFigures {
            is_shared,
            is_unanswered: false,
            read_ns: self.read_ns.get(),
            request_ns: self.request_ns.get(),
            answer_bytes_per_s: self.answer_bytes_per_s.get(),
        }
    }

    /// Figures for the longest value of an answer. Before a short READ was measured, they use the
    /// time of a long one.
    pub(super) fn figures_of_answers(&self) -> LinkFigures {
        let figures = self.figures(false);
        let read_ns = if figures.read_ns > 0 { figures.read_ns } else { self.long_read_ns.get() };
        LinkFigures { read_ns, ..figures }
    }

    /// Whether this look-up takes a READ although a request seems faster.
    pub(super) fn is_read_probe(&self) -> bool {
        is_probe(&self.reads)
    }

    /// Whether this look-up permits long values in the answer, so that long answers are measured.
    pub(super) fn is_answer_probe(&self) -> bool {
        is_probe(&self.answers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn averages_follow_what_is_measured() {
        let meter = LinkMeter::default();
        assert_eq!(meter.figures(true), LinkFigures { is_shared: true, ..LinkFigures::default() });
        meter.read(100, 8000);
        meter.read(100, 16_000);
        assert_eq!(meter.figures(false).read_ns, 9000);
        (0..200).for_each(|_| meter.read(4096, 500));
        assert_eq!(meter.figures(false).read_ns, 500);
        meter.read(1 << 20, 1 << 30);
        assert_eq!(meter.figures(false).read_ns, 500, "a long READ is another thing");
    }

    #[test]
    fn links_of_an_owner_add_their_look_ups_to_one_sum() {
        let times: Arc<LookupTimes> = Arc::default();
        let [one, other] = [0, 1].map(|_| LinkMeter::adding_to(&times));
        one.known_records(100, 3000);
        other.known_records(100, 5000);
        other.request(20_000, 70_000);
        // A long value is part of a look-up that a request has answered.
        other.read(20_000, 9000);
        let (known, requests) = (times.get(TripKind::Known), times.get(TripKind::Request));
        assert_eq!(known, RoundTrips { count: 2, ns: 8000, bytes: 200 });
        assert_eq!(requests, RoundTrips { count: 1, ns: 70_000, bytes: 20_000 });
        assert_eq!((one.figures(false).read_ns, other.figures(false).read_ns), (3000, 5000));
    }

    #[test]
    fn long_answers_measure_the_link_and_short_ones_the_node() {
        let meter = LinkMeter::default();
        meter.request(20_000, 50_000);
        assert_eq!(meter.figures(false).answer_bytes_per_s, 0, "the fixed part is not known");
        meter.request(100, 10_000);
        meter.request(6000, 1_000_000);
        meter.request(20_000, 50_000);
        let figures = meter.figures(false);
        assert_eq!((figures.request_ns, figures.answer_bytes_per_s), (10_000, 500_000_000));
        meter.read(20_000, 70_000);
        assert_eq!((meter.figures(false).read_ns, meter.figures_of_answers().read_ns), (0, 70_000));
    }

    #[test]
    fn paced_writes_do_not_change_the_speed_of_the_link() {
        let meter = LinkMeter::default();
        meter.write(1 << 20, 1 << 20, BurstPace::Full);
        assert_eq!(meter.write_bytes_per_s(), 1_000_000_000);
        (0..100).for_each(|_| meter.write(64 << 10, 1_000_000, BurstPace::Paced));
        assert_eq!(meter.write_bytes_per_s(), 1_000_000_000);
        (0..200).for_each(|_| meter.write(1 << 20, 1 << 21, BurstPace::Full));
        assert_eq!(meter.write_bytes_per_s(), 500_000_000);
    }

    #[test]
    fn one_read_of_many_is_a_probe() {
        let meter = LinkMeter::default();
        assert_eq!((0..640).filter(|_| meter.is_read_probe()).count(), 10);
    }
}
