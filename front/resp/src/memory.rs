//! Shares of the byte budget for requests, values and unread replies.
//!
//! The server owns the shares. A charge of the budget never fails, so the budget alone limits
//! nothing. These shares do. Each is a quarter of the budget: for requests that are being received,
//! for values that commands build, and for replies that clients have not read. Invariants:
//!
//! 1. An object larger than [`FREE_BYTES`] holds its bytes of the share before it takes the memory.
//!    Smaller objects hold nothing. They are charged, and the number of clients limits them.
//! 2. Requests for memory are served in their order. An object that never fits is refused
//!    immediately. One that waits longer than
//!    [`ServerOptions::memory_wait`](crate::ServerOptions::memory_wait) is refused then. The error
//!    names the share and its limit.
//! 3. A command that has taken effect is answered, whether its reply fits or not.
//!
//! Thread-safety: a share is a fair semaphore that counts KiB. Cost: nothing for small objects and
//! for a budget without a limit, and one short lock otherwise.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use archipelago_base::budget::{ByteBudget, Pressure};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};

use crate::refusal::Refusal;

/// Largest size in bytes of a request, value or reply that holds nothing.
pub(crate) const FREE_BYTES: u64 = 64 << 10;

/// Pause between two checks of a budget that is exceeded.
const PRESSURE_PAUSE: Duration = Duration::from_millis(5);

/// Smallest size of a share in bytes, so that a tiny budget still serves requests.
const SHARE_BYTES_MIN: u64 = 1 << 20;

/// The shares of one server.
pub(crate) struct Shares {
    /// Requests that are being received.
    pub(crate) incoming: Share,
    /// Values that running commands build, and their copies on the way to the store.
    pub(crate) working: Share,
    /// Replies that clients have not read.
    pub(crate) outgoing: Share,
}

impl Shares {
    /// The shares of `budget`, for which an object waits at most for `wait_max`. Without a limit of
    /// the budget the shares have none.
    pub(crate) fn of(budget: &ByteBudget, wait_max: Duration) -> Self {
        let bytes = match budget.limit_bytes() {
            u64::MAX => u64::MAX,
            // The semaphore counts whole KiB, so a multiple of KiB can be held completely.
            limit => (limit / 4).max(SHARE_BYTES_MIN) / 1024 * 1024,
        };
        Self {
            incoming: Share::new("requests that are being received", bytes, wait_max),
            working: Share::new("values that running commands build", bytes, wait_max),
            outgoing: Share::new("replies that clients have not read", bytes, wait_max),
        }
    }
}

/// A part of the budget that is never exceeded.
pub(crate) struct Share {
    /// Purpose of the share, for error texts.
    name: &'static str,
    limit_bytes: u64,
    /// Number of free KiB; `None` without a limit.
    free: Option<Arc<Semaphore>>,
    waiting: AtomicUsize,
    wait_max: Duration,
}

/// Bytes of a share that are held until this is dropped.
#[derive(Debug, Default)]
pub(crate) struct Held {
    permit: Option<OwnedSemaphorePermit>,
}

/// The number of KiB that the semaphore counts for `bytes`.
fn kib(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(1024)).unwrap_or(u32::MAX)
}

impl Held {
    fn kib(&self) -> u32 {
        self.permit.as_ref().map_or(0, |permit| permit.num_permits() as u32)
    }

    /// Whether it holds anything.
    pub(crate) fn is_some(&self) -> bool {
        self.kib() > 0
    }

    fn add(&mut self, more: OwnedSemaphorePermit) {
        match &mut self.permit {
            Some(permit) => permit.merge(more),
            None => self.permit = Some(more),
        }
    }

    /// Releases the held memory beyond `bytes`.
    pub(crate) fn shrink(&mut self, bytes: u64) {
        let surplus = self.kib().saturating_sub(kib(bytes));
        if surplus > 0 {
            drop(self.permit.as_mut().and_then(|permit| permit.split(surplus as usize)));
        }
    }
}

/// Counts one waiting object until it is dropped.
struct Waiting<'a>(&'a AtomicUsize);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Share {
    fn new(name: &'static str, limit_bytes: u64, wait_max: Duration) -> Self {
        let free = (limit_bytes < u64::MAX).then(|| {
            let kib = usize::try_from(limit_bytes / 1024).unwrap_or(usize::MAX);
            Arc::new(Semaphore::new(kib.min(Semaphore::MAX_PERMITS)))
        });
        Self { name, limit_bytes, free, waiting: AtomicUsize::new(0), wait_max }
    }

    /// The limit in bytes; `u64::MAX` for none.
    pub(crate) fn limit_bytes(&self) -> u64 {
        self.limit_bytes
    }

    /// Number of held bytes; 0 without a limit.
    pub(crate) fn held_bytes(&self) -> u64 {
        let free = self.free.as_ref().map(|free| free.available_permits() as u64 * 1024);
        free.map_or(0, |free| self.limit_bytes.saturating_sub(free))
    }

    /// Whether an object waits for memory of this share.
    pub(crate) fn is_wanted(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// The refusal of an object of `bytes` bytes.
    pub(crate) fn refusal(&self, bytes: u64) -> Refusal {
        let (name, limit) = (self.name, self.limit_bytes);
        let why = match bytes > limit {
            true => "so this can never be done; raise --memory-mib",
            false => "which others hold; try again, or raise --memory-mib",
        };
        Refusal::said(format!("OOM {bytes} bytes do not fit: {name} may take {limit} bytes, {why}"))
    }

    /// Makes `held` hold at least `bytes` without waiting. Returns whether it does.
    pub(crate) fn try_hold(&self, held: &mut Held, bytes: u64) -> bool {
        let Some(free) = &self.free else { return true };
        let more = kib(bytes).saturating_sub(held.kib());
        if more == 0 {
            return true;
        }
        match Arc::clone(free).try_acquire_many_owned(more) {
            Ok(permit) => {
                held.add(permit);
                true
            }
            Err(_) => false,
        }
    }

    /// Makes `held` hold at least `bytes`, or returns the reason for which it cannot.
    pub(crate) async fn hold(&self, held: &mut Held, bytes: u64) -> Result<(), Refusal> {
        if bytes > self.limit_bytes {
            return Err(self.refusal(bytes));
        }
        if self.try_hold(held, bytes) {
            return Ok(());
        }
        let Some(free) = &self.free else { return Ok(()) };
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let _waiting = Waiting(&self.waiting);
        let more = kib(bytes) - held.kib();
        match timeout(self.wait_max, Arc::clone(free).acquire_many_owned(more)).await {
            Ok(Ok(permit)) => {
                held.add(permit);
                Ok(())
            }
            _ => Err(self.refusal(bytes)),
        }
    }

    /// Waits while `budget` is exceeded, but not longer than an object may wait for memory. After
    /// that nothing is refused, because the store itself slows writes down.
    pub(crate) fn wait_for_budget(&self, budget: &ByteBudget) {
        if budget.pressure() < Pressure::Over {
            return;
        }
        let relief = async {
            while budget.pressure() == Pressure::Over {
                sleep(PRESSURE_PAUSE).await;
            }
        };
        let _waited = tokio::task::block_in_place(|| {
            Handle::current().block_on(async { timeout(self.wait_max, relief).await })
        });
    }

    /// Holds `bytes`. The caller is a thread of the runtime that may block.
    pub(crate) fn hold_blocking(&self, bytes: u64) -> Result<Held, Refusal> {
        let mut held = Held::default();
        if bytes > self.limit_bytes || !self.try_hold(&mut held, bytes) {
            tokio::task::block_in_place(|| {
                Handle::current().block_on(self.hold(&mut held, bytes))
            })?;
        }
        Ok(held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAIT: Duration = Duration::from_secs(60);

    #[test]
    fn share_holds_up_to_its_limit_and_gives_back() {
        let shares = Shares::of(&ByteBudget::new(64 << 20), WAIT);
        let share = &shares.working;
        assert_eq!(share.limit_bytes(), 16 << 20);
        let (mut first, mut second) = (Held::default(), Held::default());
        assert!(share.try_hold(&mut first, 10 << 20));
        assert!(!share.try_hold(&mut second, 7 << 20));
        assert!(share.try_hold(&mut second, 6 << 20));
        assert_eq!(share.held_bytes(), 16 << 20);
        first.shrink(1 << 20);
        assert!(share.try_hold(&mut second, 15 << 20));
        assert!(!share.try_hold(&mut second, (15 << 20) + 1));
        drop((first, second));
        assert_eq!(share.held_bytes(), 0);
        let line = share.refusal(17 << 20).line().into_owned();
        assert!(line.starts_with("OOM 17825792 bytes do not fit"), "{line}");
        assert!(line.contains("may take 16777216 bytes, so this can never be done"), "{line}");
    }

    #[test]
    fn share_of_an_odd_budget_can_be_held_as_a_whole() {
        let shares = Shares::of(&ByteBudget::new((64 << 20) + 4095), WAIT);
        let (share, mut held) = (&shares.working, Held::default());
        assert!(share.try_hold(&mut held, share.limit_bytes()));
        assert_eq!(share.held_bytes(), share.limit_bytes());
    }

    #[test]
    fn unlimited_budget_has_unlimited_shares() {
        let shares = Shares::of(&ByteBudget::unlimited(), WAIT);
        let mut held = Held::default();
        assert!(shares.incoming.try_hold(&mut held, u64::MAX));
        assert_eq!((shares.incoming.held_bytes(), shares.incoming.is_wanted()), (0, false));
    }

    #[tokio::test]
    async fn waiting_ends_with_memory_or_with_a_refusal() {
        let mut shares = Shares::of(&ByteBudget::new(64 << 20), WAIT);
        let share = &shares.incoming;
        let (mut first, mut second) = (Held::default(), Held::default());
        share.hold(&mut first, 16 << 20).await.unwrap();
        assert!(share.hold(&mut second, 17 << 20).await.is_err(), "never fits");
        let giving_back = async {
            while !share.is_wanted() {
                tokio::task::yield_now().await;
            }
            first.shrink(0);
        };
        let (held, ()) = tokio::join!(share.hold(&mut second, 16 << 20), giving_back);
        held.unwrap();
        assert!(!share.is_wanted());
        shares.incoming.wait_max = Duration::from_millis(1);
        assert!(shares.incoming.hold(&mut first, 1 << 20).await.is_err(), "nobody gave back");
        assert!(!shares.incoming.is_wanted());
    }
}
