//! Errors of an open database, and the calls that they stop.
//!
//! [`Observers`](crate::db::state::observers::Observers) owns one [`Health`]. A database that is
//! not healthy is in one of two states:
//!
//! - It is *failing* if a background job or an append failed for a cause that may pass, such as a
//!   full disk. The database tries the work again. Writes that would have to wait for that work
//!   fail with its error instead of hanging.
//! - It is *read only* if a sync failed or a file is damaged, because it is then unknown which
//!   bytes are on the disk. It refuses writes until `Db::resume` or a reopen, and reads go on. If
//!   the cause was a full device, background work resumes by itself (`db::background::leave_log`).
//!
//! Invariants:
//! 1. The first cause of a read-only state stays until the state ends.
//! 2. A job whose edit does not fit the versions any more, and a job whose extension panicked, make
//!    the database *failing* and never read only: nothing stored is damaged, and the job is planned
//!    again.
//! 3. A panic of the engine itself in a job makes the database read only, because the job may have
//!    stopped halfway.
//!
//! Thread-safety: any thread may call any method.
//! Failure: none.
//! Cost: a write of a healthy database pays one relaxed load.

use std::sync::atomic::{AtomicU8, Ordering};

use archipelago_base::{Error, ErrorKind, Result};
use parking_lot::Mutex;

const HEALTHY: u8 = 0;
const FAILING: u8 = 1;
const READ_ONLY: u8 = 2;

/// Errors that limit what the database does.
#[derive(Debug, Default)]
pub(crate) struct Health {
    level: AtomicU8,
    cause: Mutex<Option<Error>>,
    /// Calls of listeners that panicked since the open, and the error of the last one.
    listeners: Mutex<Option<(u64, Error)>>,
}

impl Health {
    /// Fails with `ReadOnly` if the database is read only. Costs one relaxed load if it is healthy.
    #[inline]
    pub(crate) fn check_writable(&self) -> Result<()> {
        if self.level.load(Ordering::Relaxed) < READ_ONLY {
            return Ok(());
        }
        let cause = self.cause.lock().clone();
        Err(cause.map_or_else(
            || Error::new(ErrorKind::ReadOnly, "the database is read only"),
            |cause| {
                Error::with_source(
                    ErrorKind::ReadOnly,
                    "the database takes no writes since an earlier error: mend the cause, then \
                     resume the database or open it again",
                    cause,
                )
            },
        ))
    }

    /// The error that limits the database now, *failing* or *read only*; `None` if it is healthy.
    pub(crate) fn failing(&self) -> Option<Error> {
        if self.level.load(Ordering::Acquire) == HEALTHY {
            return None;
        }
        self.cause.lock().clone()
    }

    /// Makes the database *failing*: background work failed, and is tried again. Does not change a
    /// read-only state.
    pub(crate) fn set_failing(&self, error: &Error) {
        let mut cause = self.cause.lock();
        if self.level.load(Ordering::Relaxed) < READ_ONLY {
            *cause = Some(error.clone());
            self.level.store(FAILING, Ordering::Release);
        }
    }

    /// Makes the database *read only* until it is resumed. The first cause stays.
    pub(crate) fn set_read_only(&self, error: &Error) {
        let mut cause = self.cause.lock();
        if self.level.load(Ordering::Relaxed) < READ_ONLY {
            *cause = Some(error.clone());
            self.level.store(READ_ONLY, Ordering::Release);
        }
    }

    /// Ends the state *failing*, because background work succeeded again.
    pub(crate) fn clear_failing(&self) {
        if self.level.load(Ordering::Relaxed) != FAILING {
            return;
        }
        let mut cause = self.cause.lock();
        if self.level.load(Ordering::Relaxed) == FAILING {
            *cause = None;
            self.level.store(HEALTHY, Ordering::Release);
        }
    }

    /// Forgets everything, after a successful resume.
    pub(crate) fn clear(&self) {
        let mut cause = self.cause.lock();
        *cause = None;
        self.level.store(HEALTHY, Ordering::Release);
    }

    pub(crate) fn is_read_only(&self) -> bool {
        self.level.load(Ordering::Acquire) == READ_ONLY
    }

    /// Notes that a listener panicked. The panic changes no state. The health text shows it until
    /// the database is closed.
    pub(crate) fn note_listener(&self, error: &Error) {
        let mut listeners = self.listeners.lock();
        let count = listeners.as_ref().map_or(0, |(count, _)| *count);
        *listeners = Some((count + 1, error.clone()));
    }

    /// Health as text: "healthy", or a description of the error.
    pub(crate) fn text(&self) -> String {
        let text = match (self.level.load(Ordering::Acquire), self.cause.lock().as_ref()) {
            (FAILING, Some(cause)) => format!("failing, being tried again: {cause}"),
            (READ_ONLY, Some(cause)) => format!("read only: {cause}"),
            _ => "healthy".to_owned(),
        };
        match &*self.listeners.lock() {
            None => text,
            Some((count, error)) => {
                format!("{text}; {count} calls of event listeners panicked, the last one: {error}")
            }
        }
    }
}
