//! Counters of the jobs that a database sends to executors.
//!
//! Thread-safety: any thread may call any method.
//! Cost: an atomic operation for each count, and a short lock for a failure.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::files::AcceptedOutput;
use crate::failure::{FailedAttempt, ShortText};
use crate::job::{JobKind, LocalWhy};
use crate::wire::{FallbackCount, OwnerReport};

/// Counters of the jobs of one open of a database.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OffloadCounters {
    /// Jobs whose outputs came from executors. The database may have refused the outputs.
    pub ran_away: u64,
    /// Bytes that executors read and wrote for these jobs.
    pub bytes_away: u64,
    /// Bytes that executors wrote within the database's rate limit.
    pub limited_bytes_away: u64,
    /// Jobs that ran in this process although the mode sends them away, by [`LocalWhy::key`].
    pub ran_here: BTreeMap<&'static str, u64>,
    /// Jobs that ended without outputs after an executor may have begun them. The engine plans them
    /// again.
    pub planned_again: u64,
    /// Jobs that left again after their scheduler had ended while another one lived. The parts of a
    /// compaction count each, and its next plan may have more parts.
    pub moved: u64,
    /// Jobs among these whose outputs came from executors.
    pub moved_done: u64,
    /// Attempts that executors got and that gave no outputs, as far as schedulers have reported
    /// them.
    pub failed_away: u64,
    /// The latest of these attempts.
    pub last_failure: Option<FailedAttempt>,
    /// Flushes among these jobs.
    pub flushes: FlushFigures,
}

/// Figures of the flushes that a database sends away.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlushFigures {
    /// Flushes that read all their shards in the process of the memory node that held them.
    pub in_place: u64,
    /// Flushes that fetched at least one shard from a memory node.
    pub remote: u64,
    /// Flushes that ran in this process although the mode sends them away, by [`LocalWhy::key`].
    pub here: BTreeMap<&'static str, u64>,
    /// Second attempts that left the process, after the first one had failed in an executor.
    pub second_attempts: u64,
    /// Flushes that a second attempt has ended.
    pub second_attempts_done: u64,
    /// Packages of flushes that left the process.
    pub packages: u64,
    /// Bytes of these packages.
    pub package_bytes: u64,
    /// Shards that executors read in place.
    pub images_in_place: u64,
    /// Shards that executors fetched.
    pub images_fetched: u64,
    /// Bytes of the fetched shards.
    pub image_bytes_fetched: u64,
    /// Nanoseconds in which this process made the packages of flushes that executors have ended.
    pub package_ns: u64,
    /// Nanoseconds of these flushes without `package_ns`, `open_ns` and `run_ns`. It is the time
    /// for messages, for waits for an executor and for room there, and for the names of outputs in
    /// a volume.
    pub wait_ns: u64,
    /// Nanoseconds in which executors opened or fetched the shards of ended flushes.
    pub open_ns: u64,
    /// Nanoseconds in which executors wrote the tables of ended flushes.
    pub run_ns: u64,
}

/// Times of a job that an executor has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct AwayTimes {
    /// Nanoseconds since the engine's call.
    pub(super) whole_ns: u64,
    /// Nanoseconds of these in which this process made the package.
    pub(super) package_ns: u64,
}

/// The counters while they grow.
///
/// A flush is counted among the jobs before it is counted among the flushes, and
/// [`Tally::counters`] reads them in the opposite order. So no snapshot has more flushes than jobs.
#[derive(Debug, Default)]
pub(super) struct Tally {
    ran_away: AtomicU64,
    bytes_away: AtomicU64,
    limited_bytes_away: AtomicU64,
    ran_here: [AtomicU64; LocalWhy::ALL.len()],
    planned_again: AtomicU64,
    moved: AtomicU64,
    moved_done: AtomicU64,
    failed_away: AtomicU64,
    last_failure: Mutex<Option<FailedAttempt>>,
    flushes_in_place: AtomicU64,
    flushes_remote: AtomicU64,
    flushes_here: [AtomicU64; LocalWhy::ALL.len()],
    second_attempts: AtomicU64,
    second_attempts_done: AtomicU64,
    packages: AtomicU64,
    package_bytes: AtomicU64,
    images_in_place: AtomicU64,
    images_fetched: AtomicU64,
    image_bytes_fetched: AtomicU64,
    package_ns: AtomicU64,
    wait_ns: AtomicU64,
    open_ns: AtomicU64,
    run_ns: AtomicU64,
}

/// Adds to a counter. A thread that reads the sum with [`read`] also sees everything that this
/// thread added before.
fn add(counter: &AtomicU64, more: u64) {
    counter.fetch_add(more, Ordering::Release);
}

fn read(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Acquire)
}

fn by_why(counters: &[AtomicU64; LocalWhy::ALL.len()]) -> BTreeMap<&'static str, u64> {
    let of = |(why, counter): (LocalWhy, &AtomicU64)| {
        let count = read(counter);
        (count > 0).then(|| (why.key(), count))
    };
    LocalWhy::ALL.into_iter().zip(counters).filter_map(of).collect()
}

impl Tally {
    /// Counts a job that runs in this process.
    pub(super) fn here(&self, kind: JobKind, why: LocalWhy) {
        // The order of the reasons is that of their codes.
        let Some(index) = LocalWhy::ALL.iter().position(|known| *known == why) else { return };
        add(&self.ran_here[index], 1);
        if kind == JobKind::Flush {
            add(&self.flushes_here[index], 1);
        }
    }

    /// Counts a job that is planned again.
    pub(super) fn again(&self) {
        add(&self.planned_again, 1);
    }

    /// Counts a job that leaves again now, because its scheduler had ended.
    pub(super) fn moved(&self) {
        add(&self.moved, 1);
    }

    /// Counts a job that an executor has ended after its scheduler had ended.
    pub(super) fn moved_done(&self) {
        add(&self.moved_done, 1);
    }

    /// Counts an attempt that an executor got and that gave no outputs.
    pub(super) fn failed_away(&self, failure: &FailedAttempt) {
        add(&self.failed_away, 1);
        *self.last_failure.lock() = Some(failure.clone());
    }

    /// Counts the second attempt of a flush that leaves the process.
    pub(super) fn second_attempt(&self) {
        add(&self.second_attempts, 1);
    }

    /// Counts a flush that a second attempt has ended.
    pub(super) fn second_attempt_done(&self) {
        add(&self.second_attempts_done, 1);
    }

    /// Counts the package of a job that leaves the process.
    pub(super) fn package(&self, kind: JobKind, bytes: usize) {
        if kind == JobKind::Flush {
            add(&self.packages, 1);
            add(&self.package_bytes, bytes as u64);
        }
    }

    /// Counts a job that an executor has ended.
    pub(super) fn away(&self, accepted: &AcceptedOutput, times: &AwayTimes) {
        let AcceptedOutput { output, images, limited_bytes } = accepted;
        add(&self.ran_away, 1);
        add(&self.limited_bytes_away, *limited_bytes);
        add(&self.bytes_away, output.bytes_read + output.bytes_written);
        let Some(used) = images else { return };
        let place = if used.fetched > 0 { &self.flushes_remote } else { &self.flushes_in_place };
        add(place, 1);
        add(&self.images_in_place, u64::from(used.in_place));
        add(&self.images_fetched, u64::from(used.fetched));
        add(&self.image_bytes_fetched, used.fetched_bytes);
        add(&self.open_ns, used.open_ns);
        add(&self.run_ns, used.run_ns);
        add(&self.package_ns, times.package_ns);
        let known = [times.package_ns, used.open_ns, used.run_ns];
        add(&self.wait_ns, known.into_iter().fold(times.whole_ns, u64::saturating_sub));
    }

    /// The report of an owner with this address to its scheduler.
    pub(super) fn report(&self, address: &str) -> OwnerReport {
        let counted = LocalWhy::ALL.into_iter().zip(&self.ran_here).zip(&self.flushes_here);
        let fallbacks = counted.filter_map(|((why, all), flushes)| {
            // The flushes are read first.
            let flushes = read(flushes);
            let others = read(all).saturating_sub(flushes);
            (flushes + others > 0).then_some(FallbackCount { why, flushes, others })
        });
        OwnerReport {
            address: ShortText::new(address),
            away: read(&self.ran_away),
            second_attempts: read(&self.second_attempts),
            fallbacks: fallbacks.collect(),
        }
    }

    /// The counters as of now.
    pub(super) fn counters(&self) -> OffloadCounters {
        // The flushes are read first.
        let flushes = FlushFigures {
            in_place: read(&self.flushes_in_place),
            remote: read(&self.flushes_remote),
            here: by_why(&self.flushes_here),
            second_attempts_done: read(&self.second_attempts_done),
            second_attempts: read(&self.second_attempts),
            packages: read(&self.packages),
            package_bytes: read(&self.package_bytes),
            images_in_place: read(&self.images_in_place),
            images_fetched: read(&self.images_fetched),
            image_bytes_fetched: read(&self.image_bytes_fetched),
            package_ns: read(&self.package_ns),
            wait_ns: read(&self.wait_ns),
            open_ns: read(&self.open_ns),
            run_ns: read(&self.run_ns),
        };
        OffloadCounters {
            ran_away: read(&self.ran_away),
            bytes_away: read(&self.bytes_away),
            limited_bytes_away: read(&self.limited_bytes_away),
            ran_here: by_why(&self.ran_here),
            moved_done: read(&self.moved_done),
            moved: read(&self.moved),
            planned_again: read(&self.planned_again),
            failed_away: read(&self.failed_away),
            last_failure: self.last_failure.lock().clone(),
            flushes,
        }
    }
}

impl OffloadCounters {
    /// The counters as lines of the form `name:value`.
    #[must_use]
    pub fn facts(&self) -> String {
        let mut text = format!(
            "offload_jobs_away:{}\noffload_bytes_away:{}\noffload_limited_bytes_away:{}\n\
             offload_planned_again:{}\n",
            self.ran_away, self.bytes_away, self.limited_bytes_away, self.planned_again
        );
        let _text_takes_all = writeln!(text, "offload_moved:{}", self.moved);
        let _text_takes_all = writeln!(text, "offload_moved_done:{}", self.moved_done);
        let _text_takes_all = writeln!(text, "offload_failed_away:{}", self.failed_away);
        if let Some(failure) = &self.last_failure {
            let _text_takes_all = writeln!(text, "offload_last_failure:{failure}");
        }
        for (why, count) in &self.ran_here {
            text += &format!("offload_here_{why}:{count}\n");
        }
        text + &self.flushes.facts()
    }
}

impl FlushFigures {
    /// The figures as lines; empty if the database has planned no flush away.
    fn facts(&self) -> String {
        let mut text = String::new();
        if *self == Self::default() {
            return text;
        }
        let lines = [
            ("in_place", self.in_place),
            ("remote", self.remote),
            ("second_attempts", self.second_attempts),
            ("second_attempts_done", self.second_attempts_done),
            ("packages", self.packages),
            ("package_bytes", self.package_bytes),
            ("images_in_place", self.images_in_place),
            ("images_fetched", self.images_fetched),
            ("image_bytes_fetched", self.image_bytes_fetched),
            ("package_us", self.package_ns / 1000),
            ("wait_us", self.wait_ns / 1000),
            ("fetch_us", self.open_ns / 1000),
            ("run_us", self.run_ns / 1000),
        ];
        for (name, value) in lines {
            let _text_takes_all = writeln!(text, "offload_flushes_{name}:{value}");
        }
        for (why, count) in &self.here {
            let _text_takes_all = writeln!(text, "offload_flushes_here_{why}:{count}");
        }
        text
    }
}
