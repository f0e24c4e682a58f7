//! Requests to the store: a choice of operation and key per step, and the coroutines that make
//! them.
//!
//! A client is a thread. Its coroutines are futures that the thread polls in turn, each with one
//! request in flight. With one coroutine, the thread itself receives answers.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Poll;

use crate::skew::{Skew, scramble};
use archipelago_base::Result;
use archipelago_base::clock::{Clock, SystemClock};
use archipelago_base::random::Rng;
use archipelago_flexkv::{ComputeNode, WriteError};

use crate::harness::histogram::Histogram;
use crate::harness::tally::Progress;
use crate::harness::twitter::{self, Cluster, Request};

/// Shares of operations, in per cent; the rest reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mix {
    pub(super) updates: u32,
    pub(super) inserts: u32,
    /// Whether reads prefer the keys that were inserted last.
    pub(super) latest: bool,
}

/// A benchmark, by its name.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Kind {
    /// YCSB's mix or any share of updates, over the keys that all mixes share.
    Mix(Mix),
    /// Requests like those of one of Twitter's clusters, with keys of their own.
    Cluster(Cluster),
}

/// The benchmarks that `name` selects; an empty list if the name is unknown.
pub(super) fn kinds(name: &str) -> Vec<(String, Kind)> {
    let mix = |updates, inserts, latest| {
        vec![(name.to_owned(), Kind::Mix(Mix { updates, inserts, latest }))]
    };
    let clusters = |wanted: Option<u32>| {
        let all = twitter::clusters().into_iter();
        let named = all.map(|cluster| (format!("twitter{}", cluster.number), cluster));
        named
            .filter(|(_, cluster)| wanted.is_none_or(|wanted| cluster.number == wanted))
            .map(|(name, cluster)| (name, Kind::Cluster(cluster)))
            .collect()
    };
    match name {
        "ycsba" => mix(50, 0, false),
        "ycsbb" => mix(5, 0, false),
        "ycsbc" => mix(0, 0, false),
        "ycsbd" => mix(0, 5, true),
        "twitter" => clusters(None),
        other => {
            if let Some(share) = other.strip_prefix("update").and_then(|n| n.parse().ok()) {
                return if share <= 100 { mix(share, 0, false) } else { Vec::new() };
            }
            match other.strip_prefix("twitter").and_then(|n| n.parse().ok()) {
                Some(number) => clusters(Some(number)),
                None => Vec::new(),
            }
        }
    }
}

/// Text of keys: a prefix, and the number in digits for the rest of their bytes.
#[derive(Clone, Debug)]
pub(super) struct Naming {
    prefix: String,
    bytes: usize,
}

/// Least bytes of a key: a prefix of two bytes and eight digits.
const KEY_BYTES_MIN: usize = 10;
/// Largest bytes of a key of a benchmark. Other keys may be longer.
const KEY_BYTES_MAX: usize = 256;

/// A key in an array, and its length.
pub(super) struct Key([u8; KEY_BYTES_MAX], usize);

impl std::ops::Deref for Key {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0[..self.1]
    }
}

impl Naming {
    /// Keys of 16 bytes.
    pub(super) fn ycsb() -> Self {
        Self { prefix: "user".to_owned(), bytes: 16 }
    }

    /// Keys of a cluster's size, which no other cluster uses.
    pub(super) fn of_cluster(cluster: &Cluster) -> Self {
        let bytes = cluster.key_bytes.clamp(KEY_BYTES_MIN, KEY_BYTES_MAX);
        // Each of the 54 clusters has a character of its own.
        let letter = char::from(b'A' + (cluster.number % 58) as u8);
        Self { prefix: format!("t{letter}"), bytes }
    }

    /// The key of a number.
    pub(super) fn key(&self, number: u64) -> Key {
        let mut key = Key([b'0'; KEY_BYTES_MAX], self.bytes);
        let prefix = self.prefix.len();
        key.0[..prefix].copy_from_slice(self.prefix.as_bytes());
        let mut rest = number;
        for digit in key.0[prefix..self.bytes].iter_mut().rev() {
            *digit = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
        debug_assert_eq!(rest, 0, "more digits than the key has room for");
        key
    }
}

/// Source of operations.
pub(super) enum Source {
    Mix(Mix, Skew),
    Cluster(twitter::Stream),
}

/// State that all coroutines of a run share.
pub(super) struct Run<'a> {
    pub(super) node: ComputeNode,
    pub(super) source: Source,
    pub(super) naming: &'a Naming,
    /// Numbers of the keys that are used. Inserted keys follow the last number.
    pub(super) keys: &'a [u64],
    pub(super) inserted: AtomicU64,
    pub(super) value: Vec<u8>,
    pub(super) clock: &'a SystemClock,
    pub(super) end: AtomicBool,
}

/// Measurements of a coroutine.
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
    /// The next operation, by the key's number.
    fn next(&self, rng: &mut Rng) -> Request {
        let count = self.keys.len() as u64;
        let (mix, skew) = match &self.source {
            Source::Mix(mix, skew) => (mix, skew),
            Source::Cluster(stream) => {
                return match stream.next(rng) {
                    Request::Read(at) => Request::Read(self.number(at)),
                    Request::Write(at) => Request::Write(self.number(at)),
                    Request::Delete(at) => Request::Delete(self.number(at)),
                };
            }
        };
        let drawn = rng.u32(..100);
        if drawn >= mix.updates && drawn < mix.updates + mix.inserts {
            let at = count + self.inserted.fetch_add(1, Ordering::Relaxed);
            return Request::Write(self.number(at));
        }
        let rank = skew.next(rng);
        let key = if mix.latest {
            let last = count + self.inserted.load(Ordering::Relaxed) - 1;
            self.number(last.saturating_sub(rank))
        } else {
            self.number(scramble(rank, count))
        };
        if drawn < mix.updates { Request::Write(key) } else { Request::Read(key) }
    }

    /// The key at a position: first the loaded keys, then the inserted ones.
    fn number(&self, at: u64) -> u64 {
        let count = self.keys.len() as u64;
        if at < count { self.keys[at as usize] } else { u64::from(u32::MAX) + at }
    }

    /// One coroutine, until the run ends.
    async fn work(&self, mut rng: Rng, alone: bool, progress: &Progress) -> Result<Measured> {
        let mut measured = Measured::new();
        while !self.end.load(Ordering::Relaxed) {
            let request = self.next(&mut rng);
            let (Request::Read(number) | Request::Write(number) | Request::Delete(number)) =
                request;
            let key = self.naming.key(number);
            let started_ns = self.clock.now_ns();
            match request {
                Request::Read(_) => {
                    let value = self.node.get(&key).await?;
                    measured.reads.record_ns(self.clock.now_ns() - started_ns);
                    measured.found += u64::from(value.is_some());
                }
                Request::Write(_) => {
                    self.node.set(&key, &self.value, 0).await.map_err(WriteError::into_error)?;
                    measured.writes.record_ns(self.clock.now_ns() - started_ns);
                }
                Request::Delete(_) => {
                    self.node.delete(&key).await.map_err(WriteError::into_error)?;
                    measured.writes.record_ns(self.clock.now_ns() - started_ns);
                }
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

    /// A client: its coroutines run on this thread until the run ends.
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
    use super::*;

    fn only(name: &str) -> Kind {
        let mut kinds = kinds(name);
        assert_eq!(kinds.len(), 1, "{name}");
        kinds.remove(0).1
    }

    #[test]
    fn names_of_benchmarks_are_read() {
        let mix = |updates, inserts, latest| Kind::Mix(Mix { updates, inserts, latest });
        assert_eq!(only("ycsba"), mix(50, 0, false));
        assert_eq!(only("update37"), mix(37, 0, false));
        assert_eq!(only("ycsbd"), mix(0, 5, true));
        let Kind::Cluster(cluster) = only("twitter14") else { panic!("a cluster") };
        assert_eq!(cluster.number, 14);
        assert_eq!(kinds("twitter").len(), 53);
        for unknown in ["update101", "ycsbe", "update", "twitter5", "twitter55", "twitterx", ""] {
            assert!(kinds(unknown).is_empty(), "{unknown}");
        }
    }

    #[test]
    fn keys_have_their_size_and_differ() {
        let ycsb = Naming::ycsb();
        assert_eq!(&ycsb.key(42)[..], b"user000000000042");
        assert_ne!(ycsb.key(u64::from(u32::MAX))[..], ycsb.key(u64::from(u32::MAX) + 1)[..]);
        let mut prefixes = std::collections::BTreeSet::new();
        for cluster in twitter::clusters() {
            let naming = Naming::of_cluster(&cluster);
            let key = naming.key(7);
            assert_eq!(key.len(), cluster.key_bytes.max(KEY_BYTES_MIN), "{cluster:?}");
            assert!(key.ends_with(b"00000007"));
            assert!(prefixes.insert(key[..2].to_vec()), "two clusters share keys");
        }
    }
}
