//! The owner's side of a volume's value in the register: the epoch, the lease and the log of the
//! namespace.
//!
//! One [`Registration`] belongs to one opening. Every change is a compare-and-swap against the
//! version that the owner knows. A swap whose answer was lost may have happened or not, so the
//! owner repeats it. If the repeated swap loses, it shows the present value. The random number of
//! the opening in that value says which opening wrote it. Each swap that succeeds renews the lease.
//!
//! Invariants:
//! 1. This opening does not change the value after another opening has changed it.
//! 2. The lease is counted from the sending of a swap that was answered as done.
//! 3. A log of the namespace is given up only when a swap that succeeded names a later one. Until
//!    then, an unanswered swap may still name the earlier log.
//! 4. The boot id of the volume is the random number of the last opening that found a loss, or that
//!    of the creation. So an opening changes it at most once.
//!
//! Thread-safety: one lock orders the swaps and is held over them. Another one guards the layouts
//! and is never held over a call of the pool. [`Registration::check_lease`] takes neither.
//! Failure: an error of the register leaves the value unknown; the next change finds out. A value
//! of another opening ends the volume.
//! Cost: one round trip per change.

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use archipelago_base::clock::Clock;
use archipelago_base::{Epoch, Error, ErrorKind, Result};
use parking_lot::Mutex;

use super::lease::owner_until_ns;
use super::record::{VolumeRecord, VolumeStage};
use crate::ids::{LogId, VolumeId};
use crate::log::{Layout, LayoutKeeper, LossKeeper};
use crate::register::{Register, Swap, Versioned};

/// Number of times that a change is tried while the register does not answer.
const ATTEMPTS: u32 = 4;
/// Time before the second attempt. It doubles with each one.
const PAUSE: Duration = Duration::from_millis(10);

/// Beginning of the names of all values of volumes.
const NAME_PREFIX: &str = "volume/";

/// Name of the value of a volume.
pub(super) fn register_name(volume: &str) -> String {
    format!("{NAME_PREFIX}{volume}")
}

/// Name of the volume of a value, whose name [`register_name`] made.
pub(super) fn volume_of(register_name: &str) -> &str {
    register_name.strip_prefix(NAME_PREFIX).unwrap_or(register_name)
}

/// The first error that ended an owner. Every later call gets it.
#[derive(Debug, Default)]
pub(super) struct VolumeEnd(OnceLock<Error>);

impl VolumeEnd {
    /// The error of an owner that has ended.
    pub(super) fn check(&self) -> Result<()> {
        self.0.get().map_or(Ok(()), |error| Err(error.clone()))
    }

    /// Ends the owner, unless it has ended already. Returns whether this call did.
    pub(super) fn end(&self, error: &Error) -> bool {
        self.0.set(error.clone()).is_ok()
    }

    /// Passes a result on. The first `Fenced` error ends the owner.
    pub(super) fn observe<T>(&self, result: Result<T>) -> Result<T> {
        if let Err(error) = &result
            && error.kind() == ErrorKind::Fenced
        {
            if self.end(error) {
                tracing::error!(%error, "a volume was lost to another owner");
            }
            self.check()?;
        }
        result
    }
}

/// Parameters of a [`Registration`]: the claim by which its opening became the owner.
#[derive(Debug)]
pub(super) struct Claim {
    pub(super) register: Arc<dyn Register>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) name: String,
    pub(super) lease: Duration,
    /// The value that the claim wrote, and its version.
    pub(super) record: VolumeRecord,
    pub(super) version: u64,
    /// Time at which the claim was sent.
    pub(super) sent_ns: u64,
}

/// A log of the namespace that was not given up.
#[derive(Clone, Debug)]
pub(super) struct NamespaceLogPlace {
    pub(super) log: LogId,
    /// The newest layout; `None` if no answer to its creation came.
    pub(super) layout: Option<Layout>,
}

/// The value of the volume as its owner knows it.
#[derive(Debug)]
struct RootValue {
    version: u64,
    record: VolumeRecord,
}

/// The owner's side of a volume's value in the register.
#[derive(Debug)]
pub(super) struct Registration {
    register: Arc<dyn Register>,
    clock: Arc<dyn Clock>,
    name: String,
    /// Name of the value in the register.
    key: String,
    volume: VolumeId,
    epoch: Epoch,
    opening: [u8; 16],
    lease: Duration,
    end: VolumeEnd,
    /// Time, by `clock`, from which on the owner answers no read.
    until_ns: AtomicU64,
    /// Held over swaps.
    root: Mutex<RootValue>,
    /// All logs of the namespace that were not given up. Never held over a call.
    logs: Mutex<Vec<NamespaceLogPlace>>,
}

impl Registration {
    /// The registration of a claim that succeeded.
    pub(super) fn new(claim: Claim) -> Arc<Self> {
        let Claim { register, clock, name, lease, record, version, sent_ns } = claim;
        Arc::new(Self {
            register,
            clock,
            key: register_name(&name),
            name,
            volume: record.volume,
            epoch: record.epoch,
            opening: record.opening,
            lease,
            end: VolumeEnd::default(),
            until_ns: AtomicU64::new(owner_until_ns(sent_ns, lease)),
            logs: Mutex::new(
                record
                    .namespace
                    .iter()
                    .map(|(log, layout)| NamespaceLogPlace {
                        log: *log,
                        layout: Some(layout.clone()),
                    })
                    .collect(),
            ),
            root: Mutex::new(RootValue { version, record }),
        })
    }

    /// Name of the volume.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Identity of the volume.
    pub(super) fn volume(&self) -> VolumeId {
        self.volume
    }

    /// Epoch of this owner.
    pub(super) fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Length of the lease.
    pub(super) fn lease(&self) -> Duration {
        self.lease
    }

    /// The end of this owner.
    pub(super) fn end(&self) -> &VolumeEnd {
        &self.end
    }

    /// Whether the lease holds now. Errors: `Busy`; the error that ended the owner.
    pub(super) fn check_lease(&self) -> Result<()> {
        self.end.check()?;
        if self.clock.now_ns() < self.until_ns.load(Ordering::Acquire) {
            return Ok(());
        }
        Err(Error::busy(format!(
            "volume {}: the lease of {} ms could not be renewed, so another process may own the \
             volume; try again when the register answers",
            self.name,
            self.lease.as_millis()
        )))
    }

    /// Renews the lease. Errors: those of the register; `Fenced`.
    pub(super) fn renew(&self) -> Result<()> {
        self.change(&mut self.root.lock(), &|_| {})
    }

    /// The log of the namespace that the register names.
    pub(super) fn namespace(&self) -> Option<(LogId, Layout)> {
        self.root.lock().record.namespace.clone()
    }

    /// The boot id that the register has.
    pub(super) fn boot_id(&self) -> [u8; 16] {
        self.root.lock().record.boot_id
    }

    /// Notes a log of the namespace that is about to be created. It is no stray from now on.
    pub(super) fn expect_log(&self, log: LogId) {
        self.logs.lock().push(NamespaceLogPlace { log, layout: None });
    }

    /// Notes the first layout of a log of the namespace, unless its writer has made a newer one.
    pub(super) fn note_layout(&self, log: LogId, layout: Layout) {
        let mut logs = self.logs.lock();
        if let Some(place) = logs.iter_mut().find(|place| place.log == log) {
            place.layout.get_or_insert(layout);
        }
    }

    /// Whether this is a log of the namespace that was not given up.
    pub(super) fn has_log(&self, log: LogId) -> bool {
        self.logs.lock().iter().any(|place| place.log == log)
    }

    /// Keeps a new layout of a log of the namespace. If the register names that log, it has the
    /// layout on return. A log that was given up is no error. Errors: those of the register;
    /// `Fenced`.
    pub(super) fn keep_layout(&self, log: LogId, layout: &Layout) -> Result<()> {
        let mut root = self.root.lock();
        if let Some(place) = self.logs.lock().iter_mut().find(|place| place.log == log) {
            place.layout = Some(layout.clone());
        }
        let named = |record: &VolumeRecord| record.namespace.as_ref().is_some_and(|it| it.0 == log);
        if !named(&root.record) {
            return Ok(());
        }
        // A later log that an unanswered swap installed stays.
        self.change(&mut root, &|record| {
            if named(record) {
                record.namespace = Some((log, layout.clone()));
            }
        })
    }

    /// Makes `log` the log of the namespace. Returns all other logs of the namespace, which no
    /// recovery needs any more. Errors: those of the register, and then the register may name `log`
    /// or the one before; `Fenced`.
    pub(super) fn install(&self, log: LogId) -> Result<Vec<NamespaceLogPlace>> {
        let mut root = self.root.lock();
        let layout = self.layout(log)?;
        self.change(&mut root, &|record| record.namespace = Some((log, layout.clone())))?;
        let mut logs = self.logs.lock();
        let (kept, replaced) = logs.drain(..).partition(|place| place.log == log);
        *logs = kept;
        Ok(replaced)
    }

    /// Gives up the lease; reads are refused from the beginning of this call on. `ended` is the
    /// log of the namespace with its final layout, if it was ended in order. Errors: those of the
    /// register; `Fenced`.
    pub(super) fn give_up(&self, ended: Option<&(LogId, Layout)>) -> Result<()> {
        let mut root = self.root.lock();
        self.until_ns.store(0, Ordering::Release);
        self.change(&mut root, &|record| {
            record.lease_ms = 0;
            if let Some(ended) = ended {
                record.namespace = Some(ended.clone());
            }
        })
    }

    /// Records durably that the volume has all its files and may be used. Errors: those of the
    /// register; `Fenced`.
    pub(super) fn complete(&self) -> Result<()> {
        self.change(&mut self.root.lock(), &|record| record.stage = VolumeStage::Whole)
    }

    /// Removes the value from the register. A value that another process has removed is no error.
    /// Errors: those of the register, and then the value may be removed or not; `Fenced`.
    pub(super) fn remove(&self) -> Result<()> {
        let mut root = self.root.lock();
        self.until_ns.store(0, Ordering::Release);
        let mut pause = PAUSE;
        let mut failed = None;
        for _ in 0..ATTEMPTS {
            self.end.check()?;
            if failed.is_some() {
                self.clock.sleep(pause);
                pause *= 2;
            }
            match self.register.remove(&self.key, root.version) {
                Ok(Swap::Done(_) | Swap::Lost(None)) => {
                    let text = format!("volume {} was removed by this process", self.name);
                    self.end.end(&Error::closed(text));
                    return Ok(());
                }
                // A renewal of this opening was executed, and its answer was lost.
                Ok(Swap::Lost(found)) => {
                    self.end.observe(self.adopt(&mut root, found.as_ref()))?;
                    failed = None;
                }
                Err(error) => failed = Some(error),
            }
        }
        let unanswered =
            || Error::busy("other swaps of this owner were faster in every attempt; try again");
        Err(failed.unwrap_or_else(unanswered).context_at(format!("volume {}", self.name)))
    }

    /// The newest layout of a log of the namespace.
    fn layout(&self, log: LogId) -> Result<Layout> {
        let logs = self.logs.lock();
        let found = logs.iter().find(|place| place.log == log);
        found.and_then(|place| place.layout.clone()).ok_or_else(|| {
            Error::internal(format!("volume {}: log {log} has no layout", self.name))
        })
    }

    /// Changes the value with `edit`, which may run several times. Errors: those of the register;
    /// `Fenced`.
    fn change(&self, root: &mut RootValue, edit: &dyn Fn(&mut VolumeRecord)) -> Result<()> {
        let mut pause = PAUSE;
        let mut failed = None;
        for _ in 0..ATTEMPTS {
            self.end.check()?;
            if failed.is_some() {
                self.clock.sleep(pause);
                pause *= 2;
            }
            let mut wanted = root.record.clone();
            edit(&mut wanted);
            wanted.renewals += 1;
            let sent_ns = self.clock.now_ns();
            match self.register.compare_and_swap(&self.key, root.version, &wanted.encode()) {
                Ok(Swap::Done(version)) => {
                    if wanted.lease_ms > 0 {
                        let until_ns = owner_until_ns(sent_ns, self.lease);
                        self.until_ns.store(until_ns, Ordering::Release);
                    }
                    *root = RootValue { version, record: wanted };
                    return Ok(());
                }
                // An earlier swap of this opening was executed, and its answer was lost.
                Ok(Swap::Lost(found)) => {
                    self.end.observe(self.adopt(root, found.as_ref()))?;
                    failed = None;
                }
                Err(error) => failed = Some(error),
            }
        }
        let unanswered =
            || Error::busy("other swaps of this owner were faster in every attempt; try again");
        let error = failed.unwrap_or_else(unanswered);
        self.end.observe(Err(error.context_at(format!("volume {}", self.name))))
    }

    /// Takes over the value that the register has, if it is of this opening.
    fn adopt(&self, root: &mut RootValue, found: Option<&Versioned>) -> Result<()> {
        let Some(found) = found else {
            return Err(Error::fenced(format!(
                "volume {} was removed from the register; close this handle",
                self.name
            )));
        };
        let record = VolumeRecord::decode(&self.key, &found.value)?;
        if record.opening != self.opening {
            return Err(Error::fenced(format!(
                "volume {} belongs to {} since epoch {} (this owner had epoch {}); close this \
                 handle",
                self.name, record.owner, record.epoch, self.epoch
            )));
        }
        *root = RootValue { version: found.version, record };
        Ok(())
    }
}

/// Records the fact of a loss as another boot id of the volume. The new boot id stays until the
/// engine has seen it, even if this opening fails.
impl LossKeeper for Registration {
    fn keep_loss(&self) -> Result<()> {
        let mut root = self.root.lock();
        if root.record.boot_id == self.opening {
            return Ok(());
        }
        self.change(&mut root, &|record| record.boot_id = self.opening)?;
        let volume = &self.name;
        tracing::warn!(volume, "bytes without a sync may be lost; the volume has another boot id");
        Ok(())
    }
}

/// Keeps the layouts of the namespace's logs in the register.
#[derive(Debug)]
pub(super) struct RootKeeper(pub(super) Arc<Registration>);

impl LayoutKeeper for RootKeeper {
    fn keep(&self, log: LogId, layout: &Layout) -> Result<()> {
        self.0.keep_layout(log, layout)
    }
}
