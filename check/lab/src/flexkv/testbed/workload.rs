//! Requests of clients.

use std::sync::atomic::{AtomicU64, Ordering};

use archipelago_base::random::Rng;

use archipelago_bench::skew::{Skew, scramble};

/// A request for the key of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// SEARCH of this key.
    Read(u64),
    /// UPDATE of this key, or INSERT if it does not exist.
    Write(u64),
    /// DELETE of this key.
    Delete(u64),
}

/// Source of requests.
pub trait Workload: Send + Sync + std::fmt::Debug {
    /// Draws the next request.
    fn next(&self, rng: &mut Rng) -> Request;
}

/// YCSB's core workloads.
#[derive(Debug)]
pub struct Ycsb {
    updates: f64,
    inserts: f64,
    skew: Skew,
    latest: bool,
    loaded: u64,
    keys: AtomicU64,
}

impl Ycsb {
    /// Skew of the Zipfian distribution.
    pub const ALPHA: f64 = 0.99;

    /// Reads and a fraction of updates, over a number of loaded keys.
    #[must_use]
    pub fn updates(share: f64, keys: u64, alpha: f64) -> Self {
        Self {
            updates: share,
            inserts: 0.0,
            skew: Skew::new(keys, alpha),
            latest: false,
            loaded: keys,
            keys: AtomicU64::new(keys),
        }
    }

    /// One of the workloads `a` to `d`.
    #[must_use]
    pub fn named(name: char, keys: u64, alpha: f64) -> Option<Self> {
        let share = match name.to_ascii_lowercase() {
            'a' => 0.5,
            'b' => 0.05,
            'c' => 0.0,
            'd' => {
                let reads = Self::updates(0.0, keys, alpha);
                // A uniform load also reads new keys uniformly.
                return Some(Self { inserts: 0.05, latest: alpha > 0.0, ..reads });
            }
            _ => return None,
        };
        Some(Self::updates(share, keys, alpha))
    }
}

impl Workload for Ycsb {
    fn next(&self, rng: &mut Rng) -> Request {
        let drawn = rng.f64();
        if drawn < self.inserts {
            return Request::Write(self.keys.fetch_add(1, Ordering::Relaxed));
        }
        let rank = self.skew.next(rng);
        if self.latest {
            // The newest keys are drawn most often. Keys that are being inserted may not exist yet.
            let newest = self.keys.load(Ordering::Relaxed) - 1;
            return Request::Read(newest.saturating_sub(rank));
        }
        let key = scramble(rank, self.loaded);
        if drawn < self.inserts + self.updates { Request::Write(key) } else { Request::Read(key) }
    }
}

/// A key of `bytes` bytes, at least 8: its number and zeros.
pub(super) fn key(number: u64, bytes: usize) -> Vec<u8> {
    let mut key = number.to_be_bytes().to_vec();
    key.resize(bytes.max(8), b'0');
    key
}

/// A value of the given number of bytes.
pub(super) fn value(number: u64, bytes: usize) -> Vec<u8> {
    vec![number as u8; bytes]
}
