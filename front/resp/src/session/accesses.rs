//! Which commands of a client count as accesses of keys ([`crate::access_times`]).
//!
//! As in Redis, a command counts for each key that it names, unless it only describes keys
//! ([`flag::NO_TOUCH`]) or names no keys (SCAN, RANGE). After CLIENT NO-TOUCH ON only writes and
//! TOUCH count: a write makes a new value, and the value begins with an access.
//! Cost: that of [`AccessTimes::note`](crate::access_times::AccessTimes::note) for each key. The
//! time is that at which the command began, or the group of plain commands that it belongs to. Keys
//! that no store accepts are left out.

use std::sync::atomic::Ordering;

use super::Session;
use crate::args::Args;
use crate::command::{Command, flag};
use crate::store::KEY_BYTES_MAX;

impl Session {
    /// Turns CLIENT NO-TOUCH on or off.
    pub(crate) fn set_no_touch(&self, is_no_touch: bool) {
        self.is_no_touch.set(is_no_touch);
        if !self.is_inside() {
            self.client.is_no_touch.store(is_no_touch, Ordering::Relaxed);
        }
    }

    /// Notes that a command reads `key`, unless the client asked not to.
    #[inline]
    pub(crate) fn note_read(&self, key: &[u8], now_ns: u64) {
        if !self.is_no_touch.get() {
            self.shared.access_times.note(key, now_ns);
        }
    }

    /// Notes the keys of a command that begins at `now_ns`.
    pub(super) fn note_accesses(&self, command: &Command, args: Args<'_>, now_ns: u64) {
        let counts = command.has(flag::WRITE) || !self.is_no_touch.get();
        if counts && !command.has(flag::NO_TOUCH) {
            let times = &self.shared.access_times;
            let keys = command.keys_of(args).filter(|key| key.len() <= KEY_BYTES_MAX);
            keys.for_each(|key| times.note(key, now_ns));
        }
    }

    /// Notes an access of each of `keys`, whatever the client asked for.
    pub(crate) fn touch<'k>(&self, keys: impl Iterator<Item = &'k [u8]>) {
        let now_ns = self.start_ns();
        keys.for_each(|key| self.shared.access_times.note(key, now_ns));
    }

    /// Seconds for which `key` has been idle, at least.
    pub(crate) fn idle_s(&self, key: &[u8]) -> u64 {
        self.shared.access_times.idle_s(key, self.start_ns())
    }
}
