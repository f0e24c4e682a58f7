//! Slow log: the last commands that took long.
//!
//! The server owns it. Thread-safety: any thread may call any method. Cost: each command is
//! compared with the threshold. A slow command takes a mutex and copies its arguments, which are
//! cut as in Redis.
//!
//! Invariant: no entry has a password.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::args::Args;
use crate::command::Command;

/// Highest number of arguments in an entry.
const ARGS_MAX: usize = 32;
/// Highest number of bytes of an argument in an entry.
const ARG_BYTES_MAX: usize = 128;
/// Highest number of entries that CONFIG SET accepts.
pub(crate) const ENTRIES_MAX: usize = 1 << 16;

/// A command that took long.
#[derive(Clone, Debug)]
pub(crate) struct SlowCommand {
    pub(crate) id: u64,
    /// Time of its end, in seconds since the Unix epoch.
    pub(crate) at_s: u64,
    pub(crate) micros: u64,
    pub(crate) args: Vec<Vec<u8>>,
    pub(crate) client: String,
    pub(crate) client_name: String,
}

/// The slow log of one server.
pub(crate) struct SlowLog {
    /// Microseconds from which a command is slow; below 0: no command is slow.
    threshold_us: AtomicI64,
    entries_max: AtomicUsize,
    entries: Mutex<Entries>,
}

#[derive(Default)]
struct Entries {
    next_id: u64,
    /// Entries from the newest to the oldest.
    entries: VecDeque<SlowCommand>,
}

impl Default for SlowLog {
    fn default() -> Self {
        Self {
            threshold_us: AtomicI64::new(10_000),
            entries_max: AtomicUsize::new(128),
            entries: Mutex::default(),
        }
    }
}

impl SlowLog {
    /// Whether a command that took `nanos` is slow.
    #[inline]
    pub(crate) fn is_slow(&self, nanos: u64) -> bool {
        let threshold = self.threshold_us.load(Ordering::Relaxed);
        threshold >= 0 && nanos / 1000 >= threshold as u64
    }

    /// Adds a slow command.
    pub(crate) fn keep(&self, mut command: SlowCommand) {
        let mut entries = self.entries.lock();
        command.id = entries.next_id;
        entries.next_id += 1;
        entries.entries.push_front(command);
        entries.entries.truncate(self.entries_max.load(Ordering::Relaxed));
    }

    /// The newest `count` entries, from the newest to the oldest.
    pub(crate) fn newest(&self, count: usize) -> Vec<SlowCommand> {
        self.entries.lock().entries.iter().take(count).cloned().collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.lock().entries.len()
    }

    pub(crate) fn clear(&self) {
        self.entries.lock().entries.clear();
    }

    pub(crate) fn threshold_us(&self) -> i64 {
        self.threshold_us.load(Ordering::Relaxed)
    }

    pub(crate) fn set_threshold_us(&self, micros: i64) {
        self.threshold_us.store(micros, Ordering::Relaxed);
    }

    pub(crate) fn entries_max(&self) -> usize {
        self.entries_max.load(Ordering::Relaxed)
    }

    pub(crate) fn set_entries_max(&self, count: usize) {
        let count = count.min(ENTRIES_MAX);
        self.entries_max.store(count, Ordering::Relaxed);
        self.entries.lock().entries.truncate(count);
    }
}

/// Arguments of a command for the slow log, without passwords.
pub(crate) fn args_of(command: &Command, args: Args<'_>) -> Vec<Vec<u8>> {
    let is_secret =
        command.name == "auth" || (command.name == "hello" && args.from(1).any(is_auth_word));
    if is_secret {
        return vec![command.name.to_ascii_uppercase().into_bytes(), b"(redacted)".to_vec()];
    }
    cut(args.from(0))
}

fn is_auth_word(arg: &[u8]) -> bool {
    arg.eq_ignore_ascii_case(b"auth")
}

/// The arguments of a command without passwords, as an entry holds them.
pub(crate) fn cut<'a>(args: impl ExactSizeIterator<Item = &'a [u8]>) -> Vec<Vec<u8>> {
    let count = args.len();
    let kept = if count > ARGS_MAX { ARGS_MAX - 1 } else { count };
    let mut cut: Vec<Vec<u8>> = args.take(kept).map(cut_one).collect();
    if kept < count {
        cut.push(format!("... ({} more arguments)", count - kept).into_bytes());
    }
    cut
}

fn cut_one(arg: &[u8]) -> Vec<u8> {
    if arg.len() <= ARG_BYTES_MAX {
        return arg.to_vec();
    }
    let mut cut = arg[..ARG_BYTES_MAX].to_vec();
    cut.extend_from_slice(format!("... ({} more bytes)", arg.len() - ARG_BYTES_MAX).as_bytes());
    cut
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_keeps_the_newest_and_cuts_arguments() {
        let log = SlowLog::default();
        assert!(!log.is_slow(9_999_999) && log.is_slow(10_000_000));
        log.set_entries_max(2);
        for n in 0..3u8 {
            let args = vec![vec![n]];
            let (client, client_name) = (String::new(), String::new());
            log.keep(SlowCommand { id: 0, at_s: 1, micros: 2, args, client, client_name });
        }
        let ids: Vec<u64> = log.newest(10).iter().map(|entry| entry.id).collect();
        assert_eq!((ids, log.len()), (vec![2, 1], 2));
        log.set_threshold_us(-1);
        assert!(!log.is_slow(u64::MAX));
        let words: Vec<Vec<u8>> = (0..40).map(|n| vec![b'x'; n * 10]).collect();
        let kept = cut(words.iter().map(Vec::as_slice));
        assert_eq!(kept.len(), 32);
        assert_eq!(kept[31], b"... (9 more arguments)");
        assert!(kept[20].ends_with(b"... (72 more bytes)"));
    }
}
