//! Tracking mode of a client, and the invalidations that it has not received yet.
//!
//! The client owns both, and shares them with the tracking table ([`crate::tracking`]), which fills
//! the mailbox. The task of the connection empties it between two commands. Invariants:
//!
//! 1. The mode changes, and invalidations are added, only while the tracking table is locked.
//! 2. Invalidations are added after their writes are visible. They are taken out only when the
//!    output has the reply of every command that has read. So an invalidation follows each reply
//!    with an older value.
//! 3. A mailbox holds at most [`MAIL_BYTES_MAX`], or one key. Beyond that it holds one invalidation
//!    of all keys, so a client that does not read takes no more memory than that.
//!
//! Thread-safety: any thread may call any method. Cost: one short lock for each invalidated key,
//! and none for a client that does not track. The bytes are charged to the byte budget.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use archipelago_base::budget::Charge;
use parking_lot::Mutex;

use crate::memory::FREE_BYTES;
use crate::reply::Reply;

/// Bytes of unread invalidations of a client above which they become one invalidation of all keys.
const MAIL_BYTES_MAX: u64 = FREE_BYTES;

/// Bytes that a key takes in a mailbox besides its own.
const KEY_OVERHEAD_BYTES: u64 = 48;

/// Tracking mode of a client: a set of flags.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TrackingMode(u8);

impl TrackingMode {
    /// The client tracks nothing.
    pub(crate) const OFF: Self = Self(0);
    /// The client tracks keys. Every other flag needs this one.
    pub(crate) const ON: Self = Self(1);
    /// The client receives invalidations of all keys with its prefixes, whether it has read them or
    /// not.
    pub(crate) const BCAST: Self = Self(1 << 1);
    /// Only reads after CLIENT CACHING YES are tracked.
    pub(crate) const OPTIN: Self = Self(1 << 2);
    /// Reads after CLIENT CACHING NO are not tracked.
    pub(crate) const OPTOUT: Self = Self(1 << 3);
    /// The client receives no invalidations for its own writes.
    pub(crate) const NOLOOP: Self = Self(1 << 4);

    /// Whether all flags of `flags` are set.
    #[inline]
    pub(crate) fn has(self, flags: Self) -> bool {
        self.0 & flags.0 == flags.0
    }

    /// This mode with the flags of `flags`.
    pub(crate) fn with(self, flags: Self) -> Self {
        Self(self.0 | flags.0)
    }

    /// Whether the client tracks keys at all.
    #[inline]
    pub(crate) fn is_on(self) -> bool {
        self.has(Self::ON)
    }

    /// Whether a command that reads registers its keys. `has_said` says whether CLIENT CACHING
    /// preceded the command.
    pub(crate) fn registers(self, has_said: bool) -> bool {
        let declines = self.has(Self::OPTIN) && !has_said || self.has(Self::OPTOUT) && has_said;
        self.is_on() && !self.has(Self::BCAST) && !declines
    }
}

/// Invalidations of one mailbox.
#[derive(Debug, Default)]
struct Mail {
    /// All keys are invalid. Then there are no single keys.
    is_all: bool,
    keys: BTreeSet<Arc<[u8]>>,
    bytes: u64,
    /// The charge for the bytes, while the client tracks.
    charge: Option<Charge>,
}

impl Mail {
    fn become_all(&mut self) {
        self.is_all = true;
        self.keys.clear();
        self.resize(0);
    }

    fn resize(&mut self, bytes: u64) {
        self.bytes = bytes;
        if let Some(charge) = &mut self.charge {
            charge.resize(bytes);
        }
    }

    fn is_empty(&self) -> bool {
        !self.is_all && self.keys.is_empty()
    }
}

/// The tracking mode and the mailbox of one client.
#[derive(Debug, Default)]
pub(crate) struct Invalidations {
    mode: AtomicU8,
    /// Whether the mailbox holds anything. This copy can be read without the lock.
    has_mail: AtomicBool,
    mail: Mutex<Mail>,
}

impl Invalidations {
    /// The tracking mode of the client.
    pub(crate) fn mode(&self) -> TrackingMode {
        TrackingMode(self.mode.load(Ordering::Relaxed))
    }

    /// Changes the mode. The bytes of the invalidations are added to `charge`.
    pub(crate) fn begin(&self, mode: TrackingMode, charge: Charge) {
        let mut mail = self.mail.lock();
        let bytes = mail.bytes;
        mail.charge = Some(charge);
        mail.resize(bytes);
        self.mode.store(mode.0, Ordering::Relaxed);
    }

    /// Ends tracking, and drops the invalidations that were not sent.
    pub(crate) fn end(&self) {
        let mut mail = self.mail.lock();
        *mail = Mail::default();
        self.mode.store(TrackingMode::OFF.0, Ordering::Relaxed);
        self.has_mail.store(false, Ordering::Release);
    }

    /// Adds a key. Returns whether the mailbox was empty before.
    pub(crate) fn add(&self, key: &Arc<[u8]>) -> bool {
        self.change(|mail| {
            let bytes = key.len() as u64 + KEY_OVERHEAD_BYTES;
            if mail.is_all || mail.keys.contains(key) {
            } else if !mail.keys.is_empty() && mail.bytes + bytes > MAIL_BYTES_MAX {
                mail.become_all();
            } else {
                mail.keys.insert(Arc::clone(key));
                mail.resize(mail.bytes + bytes);
            }
        })
    }

    /// Adds an invalidation of all keys. Returns whether the mailbox was empty before.
    pub(crate) fn add_all(&self) -> bool {
        self.change(Mail::become_all)
    }

    fn change(&self, change: impl FnOnce(&mut Mail)) -> bool {
        let mut mail = self.mail.lock();
        let was_empty = mail.is_empty();
        change(&mut mail);
        self.has_mail.store(true, Ordering::Release);
        was_empty
    }

    /// Whether there are invalidations to send.
    #[inline]
    pub(crate) fn has_mail(&self) -> bool {
        self.has_mail.load(Ordering::Acquire)
    }

    /// Writes the invalidations as one push message, and drops them.
    pub(crate) fn write_to(&self, reply: &mut Reply) {
        let mut mail = self.mail.lock();
        self.has_mail.store(false, Ordering::Release);
        if mail.is_empty() {
            return;
        }
        reply.push(2);
        reply.bulk(b"invalidate");
        if mail.is_all {
            reply.null();
        } else {
            reply.array(mail.keys.len());
            mail.keys.iter().for_each(|key| reply.bulk(key));
        }
        mail.is_all = false;
        mail.keys.clear();
        mail.resize(0);
    }
}

#[cfg(test)]
mod tests {
    use archipelago_base::budget::{ByteBudget, MemoryClass};

    use super::*;
    use crate::reply::Version;

    fn told(invalidations: &Invalidations) -> String {
        let mut reply = Reply::default();
        reply.set_version(Version::Resp3);
        invalidations.write_to(&mut reply);
        String::from_utf8_lossy(reply.bytes()).replace("\r\n", " ")
    }

    #[test]
    fn mode_decides_which_reads_are_registered() {
        let on = TrackingMode::ON;
        for (mode, plain, said) in [
            (TrackingMode::OFF, false, false),
            (on, true, true),
            (on.with(TrackingMode::BCAST), false, false),
            (on.with(TrackingMode::OPTIN), false, true),
            (on.with(TrackingMode::OPTOUT), true, false),
        ] {
            assert_eq!((mode.registers(false), mode.registers(true)), (plain, said), "{mode:?}");
        }
    }

    #[test]
    fn mailbox_sends_each_key_once_and_is_empty_then() {
        let budget = ByteBudget::new(1 << 20);
        let invalidations = Invalidations::default();
        invalidations.begin(TrackingMode::ON, budget.hold(MemoryClass::Request, 0));
        assert!(invalidations.add(&Arc::from(&b"reef"[..])));
        assert!(!invalidations.add(&Arc::from(&b"cay"[..])));
        assert!(!invalidations.add(&Arc::from(&b"reef"[..])));
        assert!(invalidations.has_mail() && budget.total_bytes() > 0);
        assert_eq!(told(&invalidations), ">2 $10 invalidate *2 $3 cay $4 reef ");
        assert_eq!((told(&invalidations), budget.total_bytes()), (String::new(), 0));
        assert!(!invalidations.has_mail());
    }

    #[test]
    fn full_mailbox_invalidates_all_keys() {
        let budget = ByteBudget::new(1 << 20);
        let invalidations = Invalidations::default();
        invalidations.begin(TrackingMode::ON, budget.hold(MemoryClass::Request, 0));
        let longest: Arc<[u8]> = vec![b'k'; 64 << 10].into();
        invalidations.add(&longest);
        assert!(told(&invalidations).starts_with(">2 $10 invalidate *1 $65536 kkk"));
        for n in 0..5000u32 {
            invalidations.add(&Arc::from(&n.to_be_bytes()[..]));
            assert!(budget.total_bytes() <= MAIL_BYTES_MAX);
        }
        assert_eq!(told(&invalidations), ">2 $10 invalidate _ ");
        invalidations.add(&longest);
        invalidations.end();
        assert_eq!((told(&invalidations), budget.total_bytes()), (String::new(), 0));
    }
}
