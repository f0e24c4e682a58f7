//! Settings that CONFIG SET changes while the server runs.
//!
//! The server owns them. They begin with the values of its options. Thread-safety: each is an
//! atomic number, which is read with one relaxed load, except the soft limit of output, which a
//! lock guards. The caller of a change of the idle timeout or of the soft limit wakes the waiting
//! connections.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::options::ServerOptions;

/// Limit of the unread output of one client that holds for a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SoftOutputLimit {
    /// Bytes of unread output that a client may exceed for a time only.
    pub(crate) bytes: usize,
    /// Time for which a client may exceed them without a pause, in seconds.
    pub(crate) seconds: u64,
}

/// The settings of one server that CONFIG SET changes.
pub(crate) struct Settings {
    /// Milliseconds; 0 for never.
    idle_timeout_ms: AtomicU64,
    clients_max: AtomicUsize,
    /// Bytes; 0 for no limit.
    output_bytes_max: AtomicUsize,
    soft_output_limit: Mutex<Option<SoftOutputLimit>>,
}

impl Settings {
    pub(crate) fn of(options: &ServerOptions) -> Self {
        let settings = Self {
            idle_timeout_ms: AtomicU64::new(0),
            clients_max: AtomicUsize::new(options.clients_max),
            output_bytes_max: AtomicUsize::new(options.output_bytes_max),
            soft_output_limit: Mutex::new(None),
        };
        settings.set_idle_timeout(options.idle_timeout);
        settings
    }

    /// Time without progress after which a connection is closed; `None` for never.
    pub(crate) fn idle_timeout(&self) -> Option<Duration> {
        match self.idle_timeout_ms.load(Ordering::Relaxed) {
            0 => None,
            millis => Some(Duration::from_millis(millis)),
        }
    }

    /// Changes the idle timeout, in steps of a millisecond. The caller wakes the connections.
    pub(crate) fn set_idle_timeout(&self, timeout: Option<Duration>) {
        let millis = timeout.map_or(0, |timeout| timeout.as_millis().max(1));
        let millis = u64::try_from(millis).unwrap_or(u64::MAX);
        self.idle_timeout_ms.store(millis, Ordering::Relaxed);
    }

    /// Highest number of connections.
    pub(crate) fn clients_max(&self) -> usize {
        self.clients_max.load(Ordering::Relaxed)
    }

    /// Changes that limit. Clients beyond a lower limit stay connected.
    pub(crate) fn set_clients_max(&self, clients: usize) {
        self.clients_max.store(clients, Ordering::Relaxed);
    }

    /// Bytes of unread output that one client may have; 0 for no limit.
    pub(crate) fn output_bytes_max(&self) -> usize {
        self.output_bytes_max.load(Ordering::Relaxed)
    }

    /// Changes that limit, for output that is made from now on.
    pub(crate) fn set_output_bytes_max(&self, bytes: usize) {
        self.output_bytes_max.store(bytes, Ordering::Relaxed);
    }

    /// The limit that the unread output of one client may exceed for a time; `None` for no such
    /// limit.
    pub(crate) fn soft_output_limit(&self) -> Option<SoftOutputLimit> {
        *self.soft_output_limit.lock()
    }

    /// Changes that limit, also for output that clients have not read. The caller wakes the
    /// connections.
    pub(crate) fn set_soft_output_limit(&self, limit: Option<SoftOutputLimit>) {
        *self.soft_output_limit.lock() = limit;
    }
}
