//! What is asked of the store: a choice of operation and key per step, and the coroutines that ask it.
//!
//! A client is a thread; its coroutines are futures that it polls in turn, each with one request under way. With one coroutine the
//! thread receives answers by itself.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Poll;

use archipelago_base::Result;
use archipelago_base::clock::{Clock, SystemClock};
use archipelago_base::random::Rng;
use archipelago_flex::ComputeNode;

use crate::histogram::Histogram;
use crate::tally::Progress;
use crate::zipf::{Zipf, scramble};

/// Shares of operations, in per cent; the rest reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mix {
    pub(super) updates: u32,
    pub(super) inserts: u32,
    /// Reads prefer what was inserted last.
    pub(super) latest: bool,
}

/// The mix that a benchmark's name stands for.
pub(super) fn mix(name: &str) -> Option<Mix> {
    let of = |updates| Some(Mix { updates, inserts: 0, latest: false });
    match name {
        "ycsba" => of(50),
        "ycsbb" => of(5),
        "ycsbc" => of(0),
        "ycsbd" => Some(Mix { updates: 0, inserts: 5, latest: true }),
        other => of(other.strip_prefix("update")?.parse().ok().filter(|share| *share <= 100)?),
    }
}

/// The key of a number.
pub(super) fn key(number: u64) -> [u8; 16] {
    let mut key = *b"user000000000000";
    let mut rest = number;
    for digit in key[4..].iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    key
}

/// What all coroutines of a run share.
pub(super) struct Run<'a> {
    pub(super) node: ComputeNode,
    pub(super) mix: Mix,
    /// Numbers of the keys that are used; those inserted come behind the last.
    pub(super) keys: &'a [u64],
    pub(super) inserted: AtomicU64,
    pub(super) zipf: Zipf,
    pub(super) value: Vec<u8>,
    pub(super) clock: &'a SystemClock,
    pub(super) end: AtomicBool,
}

/// What a coroutine measured.
pub(super) struct Measured {
    pub(super) reads: Histogram,
    pub(super) writes: Histogram,
    pub(super) found: u64,
}

impl Measured {
    pub(super) fn new() -> Self {
        Self { reads: Histogram::new(), writes: Histogram::new(), found: 0 }
    }

    pub(super) fn merge(&mut self, other: &Self) {
        self.reads.merge(&other.reads);
        self.writes.merge(&other.writes);
        self.found += other.found;
    }
}

impl Run<'_> {
    fn pick(&self, rng: &mut Rng) -> u64 {
        let count = self.keys.len() as u64;
        let rank = self.zipf.next(rng);
        if self.mix.latest {
            let last = count + self.inserted.load(Ordering::Relaxed) - 1;
            let at = last.saturating_sub(rank);
            return self.number(at);
        }
        self.keys[scramble(rank, count) as usize]
    }

    /// The key at a place: those that were there, then those inserted.
    fn number(&self, at: u64) -> u64 {
        let count = self.keys.len() as u64;
        if at < count { self.keys[at as usize] } else { u64::from(u32::MAX) + at }
    }

    /// One coroutine, until the run ends.
    async fn work(&self, mut rng: Rng, alone: bool, progress: &Progress) -> Result<Measured> {
        let mut measured = Measured::new();
        while !self.end.load(Ordering::Relaxed) {
            let drawn = rng.u32(..100);
            let started_ns = self.clock.now_ns();
            if drawn < self.mix.updates {
                self.node.set(&key(self.pick(&mut rng)), &self.value, 0).await?;
                measured.writes.record_ns(self.clock.now_ns() - started_ns);
            } else if drawn < self.mix.updates + self.mix.inserts {
                let at = self.keys.len() as u64 + self.inserted.fetch_add(1, Ordering::Relaxed);
                self.node.set(&key(self.number(at)), &self.value, 0).await?;
                measured.writes.record_ns(self.clock.now_ns() - started_ns);
            } else {
                let value = self.node.get(&key(self.pick(&mut rng))).await?;
                measured.reads.record_ns(self.clock.now_ns() - started_ns);
                measured.found += u64::from(value.is_some());
            }
            progress.add(1);
            if !alone {
                let mut polled = false;
                poll_fn(|context| {
                    if std::mem::replace(&mut polled, true) {
                        return Poll::Ready(());
                    }
                    context.waker().wake_by_ref();
                    Poll::Pending
                })
                .await;
            }
        }
        Ok(measured)
    }

    /// A client: so many coroutines on this thread, until the run ends.
    pub(super) async fn client(
        &self,
        coroutines: usize,
        seed: u64,
        progress: &Progress,
    ) -> Result<Measured> {
        type Working<'a> = Pin<Box<dyn Future<Output = Result<Measured>> + 'a>>;
        let rng = |nth: usize| Rng::with_seed(seed.wrapping_mul(0x9e37_79b9) ^ nth as u64);
        let work = |nth| Box::pin(self.work(rng(nth), coroutines == 1, progress)) as Working<'_>;
        let mut working: Vec<Working<'_>> = (0..coroutines).map(work).collect();
        let mut all = Measured::new();
        poll_fn(|context| {
            let mut failed = None;
            working.retain_mut(|one| match one.as_mut().poll(context) {
                Poll::Pending => true,
                Poll::Ready(Ok(measured)) => {
                    all.merge(&measured);
                    false
                }
                Poll::Ready(Err(error)) => {
                    failed = Some(error);
                    false
                }
            });
            match failed {
                Some(error) => Poll::Ready(Err(error)),
                None if working.is_empty() => Poll::Ready(Ok(())),
                None => Poll::Pending,
            }
        })
        .await?;
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::{key, mix};

    #[test]
    fn names_of_benchmarks_are_read() {
        assert_eq!(mix("ycsba").map(|mix| mix.updates), Some(50));
        assert_eq!(mix("update37").map(|mix| mix.updates), Some(37));
        assert!(mix("ycsbd").is_some_and(|mix| mix.latest && mix.inserts == 5));
        assert!(mix("update101").is_none() && mix("ycsbe").is_none() && mix("update").is_none());
    }

    #[test]
    fn keys_have_sixteen_bytes_and_differ() {
        assert_eq!(&key(42), b"user000000000042");
        assert_ne!(key(u64::from(u32::MAX)), key(u64::from(u32::MAX) + 1));
    }
}
