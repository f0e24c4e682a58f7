//! Shares of the byte budget for requests, values and unread replies.
//!
//! The server owns the shares. A charge of the budget never fails, so the budget alone limits
//! nothing. These shares do. Each is a quarter of the budget: for requests that are being received,
//! for values that commands build, for replies that clients have not read, and for transactions
//! that clients prepare. Invariants:
//!
//! 1. An object larger than [`FREE_BYTES`] holds its bytes of the share for as long as it waits for
//!    something. A request and a value that a command builds hold them before they take the memory.
//!    A reply is made first, because only then its size is known, and it is dropped if its bytes
//!    are not free. So the number of threads bounds the replies that hold nothing. Smaller objects
//!    hold nothing. They are charged, and the number of clients limits them.
//! 2. Requests for memory are served in their order. An object that never fits is refused
//!    immediately, and so is a command that waits for EXEC or a watched key that does not fit now.
//!    An object that waits longer than
//!    [`ServerOptions::memory_wait`](crate::ServerOptions::memory_wait) is refused then. The error
//!    names the share and its limit.
//! 3. A command whose large reply does not fit takes effect only when the reply fits (see
//!    `session/held_reply.rs`). A client may get many small replies of commands that have taken
//!    effect, or the replies of a batch of GETs. If such output does not fit, it overdraws the
//!    share ([`Share::overdraw`]). Bytes that are released settle the overdraft before other
//!    objects get them. The semaphore gives a waiting object free bytes one after another. If
//!    that object stops waiting, its bytes return without a release, and they settle the
//!    overdraft as well.
//!
//! Thread-safety: a share is a fair semaphore that counts KiB. Cost: nothing for small objects and
//! for a budget without a limit, and one short lock otherwise.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use archipelago_base::budget::{ByteBudget, Pressure};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout};

use crate::refusal::{Handled, Refusal};

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
    /// Commands that wait for EXEC, and watched keys.
    pub(crate) transactions: Share,
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
            incoming: Share::new(ShareNames::REQUESTS, bytes, wait_max),
            working: Share::new(ShareNames::VALUES, bytes, wait_max),
            outgoing: Share::new(ShareNames::REPLIES, bytes, wait_max),
            transactions: Share::new(ShareNames::TRANSACTIONS, bytes, wait_max),
        }
    }
}

/// The memory of a share that has a limit.
#[derive(Debug)]
struct ShareMemory {
    /// Number of free KiB.
    free: Semaphore,
    /// Number of KiB that are held beyond the limit.
    overdraft_kib: AtomicUsize,
}

impl ShareMemory {
    /// Takes `kib` of the free memory. The part that is not free becomes overdraft.
    fn overdraw(&self, kib: usize) {
        let taken = self.free.forget_permits(kib);
        self.overdraft_kib.fetch_add(kib - taken, Ordering::AcqRel);
        // Another thread may have released memory between the two steps.
        self.settle();
    }

    /// Settles the overdraft with free memory, as far as there is some.
    fn settle(&self) {
        loop {
            let overdraft = self.overdraft_kib.load(Ordering::Acquire);
            let taken = if overdraft == 0 { 0 } else { self.free.forget_permits(overdraft) };
            if taken == 0 {
                return;
            }
            self.settle_with(taken);
        }
    }

    /// Settles the overdraft with `kib`, and frees the rest.
    fn settle_with(&self, kib: usize) {
        let mut settled = 0;
        let settle = |overdraft: usize| {
            settled = overdraft.min(kib);
            (settled > 0).then(|| overdraft - settled)
        };
        let _is_overdrawn =
            self.overdraft_kib.fetch_update(Ordering::AcqRel, Ordering::Acquire, settle);
        self.free.add_permits(kib - settled);
    }

    /// Takes back `kib`, which settle the overdraft first.
    fn release(&self, kib: usize) {
        self.settle_with(kib);
        // Another thread may have overdrawn the share between the two steps.
        self.settle();
    }
}

/// Words for a share in error texts.
#[derive(Clone, Copy)]
struct ShareNames {
    /// An object that needs memory of the share.
    object: &'static str,
    /// The memory of the share.
    memory: &'static str,
    /// All objects that hold memory of the share.
    objects: &'static str,
}

impl ShareNames {
    const REQUESTS: Self = Self {
        object: "this request",
        memory: "the memory for requests",
        objects: "requests that are being received",
    };
    const VALUES: Self = Self {
        object: "this command",
        memory: "the memory for values",
        objects: "values that running commands build",
    };
    const REPLIES: Self = Self {
        object: "the reply of this command",
        memory: "the memory for replies",
        objects: "replies that clients have not read",
    };
    const TRANSACTIONS: Self = Self {
        object: "the transaction of this client",
        memory: "the memory for transactions",
        objects: "commands that wait for EXEC and watched keys",
    };
}

/// A part of the budget. Only small replies of commands that have taken effect, and replies of
/// batches of GETs, exceed it.
pub(crate) struct Share {
    names: ShareNames,
    limit_bytes: u64,
    /// `None` without a limit.
    memory: Option<Arc<ShareMemory>>,
    waiting: AtomicUsize,
    wait_max: Duration,
    /// Time of the last refusal of an object that does not wait.
    refused_last: Mutex<Option<Instant>>,
}

/// Bytes of a share that are held until this is dropped.
#[derive(Debug, Default)]
pub(crate) struct Held {
    kib: u32,
    /// The memory to which the bytes belong; `None` if it has never held any.
    memory: Option<Arc<ShareMemory>>,
}

/// The number of KiB that the semaphore counts for `bytes`.
fn kib(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(1024)).unwrap_or(u32::MAX)
}

impl Held {
    /// Whether it holds anything.
    pub(crate) fn is_some(&self) -> bool {
        self.kib > 0
    }

    /// Number of KiB that are missing to `bytes`.
    fn missing_kib(&self, bytes: u64) -> u32 {
        kib(bytes).saturating_sub(self.kib)
    }

    /// Adds `kib` that the caller has taken from `memory`.
    fn add(&mut self, memory: &Arc<ShareMemory>, kib: u32) {
        self.kib += kib;
        self.memory.get_or_insert_with(|| Arc::clone(memory));
    }

    /// Adds what `other` holds of the same share.
    pub(crate) fn merge(&mut self, mut other: Self) {
        self.kib += std::mem::take(&mut other.kib);
        if self.memory.is_none() {
            self.memory = other.memory.take();
        }
    }

    /// Releases the held memory beyond `bytes`.
    pub(crate) fn shrink(&mut self, bytes: u64) {
        let surplus = self.kib.saturating_sub(kib(bytes));
        if surplus > 0
            && let Some(memory) = &self.memory
        {
            memory.release(surplus as usize);
            self.kib -= surplus;
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.shrink(0);
    }
}

/// Counts one waiting object until it is dropped. The wait for the semaphore must be dropped
/// before.
struct Waiting<'a> {
    count: &'a AtomicUsize,
    memory: &'a ShareMemory,
}

impl<'a> Waiting<'a> {
    fn begin(count: &'a AtomicUsize, memory: &'a ShareMemory) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self { count, memory }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
        // A wait that ended in vain has returned the bytes that it had got.
        self.memory.settle();
    }
}

impl Share {
    fn new(names: ShareNames, limit_bytes: u64, wait_max: Duration) -> Self {
        let memory = (limit_bytes < u64::MAX).then(|| {
            let kib = usize::try_from(limit_bytes / 1024).unwrap_or(usize::MAX);
            let free = Semaphore::new(kib.min(Semaphore::MAX_PERMITS));
            Arc::new(ShareMemory { free, overdraft_kib: AtomicUsize::new(0) })
        });
        let (waiting, refused_last) = (AtomicUsize::new(0), Mutex::new(None));
        Self { names, limit_bytes, memory, waiting, wait_max, refused_last }
    }

    /// The limit in bytes; `u64::MAX` for none.
    pub(crate) fn limit_bytes(&self) -> u64 {
        self.limit_bytes
    }

    /// Number of held bytes, which exceeds the limit while the share is overdrawn; 0 without a
    /// limit.
    pub(crate) fn held_bytes(&self) -> u64 {
        let Some(memory) = &self.memory else { return 0 };
        let free = memory.free.available_permits() as u64 * 1024;
        let overdraft = memory.overdraft_kib.load(Ordering::Acquire) as u64 * 1024;
        self.limit_bytes.saturating_sub(free) + overdraft
    }

    /// Whether more is held than the limit allows.
    #[inline]
    pub(crate) fn is_overdrawn(&self) -> bool {
        let memory = self.memory.as_ref();
        memory.is_some_and(|memory| memory.overdraft_kib.load(Ordering::Acquire) > 0)
    }

    /// Makes `held` hold at least `bytes`, whether they are free or not.
    pub(crate) fn overdraw(&self, held: &mut Held, bytes: u64) {
        let Some(memory) = &self.memory else { return };
        let more = held.missing_kib(bytes);
        if more > 0 {
            memory.overdraw(more as usize);
            held.add(memory, more);
        }
    }

    /// Whether other objects need more memory of this share than is free: it is overdrawn, or an
    /// object waits for it.
    #[inline]
    pub(crate) fn is_short(&self) -> bool {
        self.is_wanted() || self.is_overdrawn()
    }

    /// Whether an object waits for memory of this share.
    pub(crate) fn is_wanted(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// The refusal of an object of `bytes` bytes.
    pub(crate) fn refusal(&self, bytes: u64) -> Refusal {
        let (ShareNames { object, memory, objects }, limit) = (self.names, self.limit_bytes);
        let why = match bytes > limit {
            true => "so this can never be done; raise --memory-mib",
            false => "which others hold; try again, or raise --memory-mib",
        };
        Refusal::said(format!(
            "OOM {bytes} bytes for {object} do not fit into {memory}: {objects} may take {limit} \
             bytes, {why}"
        ))
    }

    /// Makes `held` hold at least `bytes` without waiting. Returns whether it does.
    pub(crate) fn try_hold(&self, held: &mut Held, bytes: u64) -> bool {
        let Some(memory) = &self.memory else { return true };
        let more = held.missing_kib(bytes);
        if more == 0 {
            return true;
        }
        match memory.free.try_acquire_many(more) {
            Ok(permit) => {
                permit.forget();
                held.add(memory, more);
                true
            }
            Err(_) => false,
        }
    }

    /// Makes `held` hold at least `bytes`, which belong to an object that does not wait, or refuses
    /// them. An object of up to [`FREE_BYTES`] needs none.
    pub(crate) fn hold_or_refuse(&self, held: &mut Held, bytes: u64) -> Handled {
        if bytes <= FREE_BYTES || self.try_hold(held, bytes) {
            return Ok(());
        }
        if bytes <= self.limit_bytes {
            *self.refused_last.lock() = Some(Instant::now());
        }
        Err(self.refusal(bytes))
    }

    /// Whether such an object was refused since `since`, because other objects held the memory.
    pub(crate) fn has_refused_since(&self, since: Instant) -> bool {
        self.refused_last.lock().is_some_and(|refused| refused >= since)
    }

    /// Makes `held` hold at least `bytes`, or returns the reason for which it cannot.
    pub(crate) async fn hold(&self, held: &mut Held, bytes: u64) -> Result<(), Refusal> {
        if bytes > self.limit_bytes {
            return Err(self.refusal(bytes));
        }
        if self.try_hold(held, bytes) {
            return Ok(());
        }
        let Some(memory) = &self.memory else { return Ok(()) };
        let _waiting = Waiting::begin(&self.waiting, memory);
        let more = held.missing_kib(bytes);
        let acquired = timeout(self.wait_max, memory.free.acquire_many(more)).await;
        match acquired {
            Ok(Ok(permit)) => {
                permit.forget();
                held.add(memory, more);
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
        let head = "OOM 17825792 bytes for this command do not fit into the memory for values: ";
        assert!(line.starts_with(head), "{line}");
        assert!(line.contains("may take 16777216 bytes, so this can never be done"), "{line}");
    }

    #[test]
    fn overdraft_is_settled_before_memory_becomes_free() {
        let shares = Shares::of(&ByteBudget::new(64 << 20), WAIT);
        let share = &shares.outgoing;
        let (mut first, mut second, mut third) =
            (Held::default(), Held::default(), Held::default());
        assert!(share.try_hold(&mut first, 10 << 20));
        share.overdraw(&mut second, 6 << 20);
        assert!(!share.is_overdrawn());
        share.overdraw(&mut third, 8 << 20);
        assert!(share.is_overdrawn() && third.is_some());
        assert_eq!(share.held_bytes(), 24 << 20);
        second.shrink(1 << 20);
        assert_eq!(share.held_bytes(), 19 << 20);
        assert!(share.is_overdrawn() && !share.try_hold(&mut second, 2 << 20));
        // The owner of the overdraft returns what others have settled meanwhile.
        drop(third);
        assert!(!share.is_overdrawn());
        assert_eq!(share.held_bytes(), 11 << 20);
        assert!(share.try_hold(&mut second, 6 << 20));
        assert!(!share.try_hold(&mut second, (6 << 20) + 1));
        drop((first, second));
        assert_eq!(share.held_bytes(), 0);
        let mut whole = Held::default();
        assert!(share.try_hold(&mut whole, share.limit_bytes()));
    }

    #[tokio::test]
    async fn wait_in_vain_returns_its_part_to_the_overdraft() {
        let mut shares = Shares::of(&ByteBudget::new(64 << 20), WAIT);
        shares.outgoing.wait_max = Duration::from_millis(1);
        for is_cancelled in [false, true] {
            let share = &shares.outgoing;
            let (mut first, mut second, mut third) =
                (Held::default(), Held::default(), Held::default());
            assert!(share.try_hold(&mut first, 10 << 20));
            // The semaphore gives the waiting object the 6 MiB that are free.
            let overdrawing = async {
                while !share.is_wanted() {
                    tokio::task::yield_now().await;
                }
                share.overdraw(&mut third, 2 << 20);
                assert!(share.is_overdrawn());
            };
            if is_cancelled {
                tokio::select! {
                    biased;
                    _ = share.hold(&mut second, 10 << 20) => panic!("it has to wait"),
                    () = overdrawing => {}
                }
            } else {
                let (held, ()) = tokio::join!(share.hold(&mut second, 10 << 20), overdrawing);
                assert!(held.is_err(), "nobody gave back");
            }
            assert!(!share.is_overdrawn() && !share.is_wanted());
            assert_eq!(share.held_bytes(), 12 << 20);
            drop((first, second, third));
            assert_eq!(share.held_bytes(), 0);
        }
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
        shares.incoming.overdraw(&mut held, u64::MAX);
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
