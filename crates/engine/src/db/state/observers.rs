//! Statistics, event listeners and health of an open database.
//!
//! The database owns one [`Observers`]. The other owners report to it what happened.
//!
//! Invariants:
//! 1. A failure of background work is counted, sent to every listener and shown in the health.
//! 2. A listener that panics stops nothing: the panic is counted, logged and shown in the health.
//!
//! Thread-safety: any thread may call any method. Listeners run on the calling thread.
//! Failure: none.
//! Cost: a counter costs one relaxed addition. An event costs one call for each listener.

use std::sync::Arc;

use archipelago_base::Error;

use crate::border::ExtensionPanic;
use crate::db::state::health::Health;
use crate::db::state::jobs::Jobs;
use crate::event::{Event, Listeners};
use crate::manifest::ImpossibleEdit;
use crate::stats::{Statistics, Ticker};

/// The recipients of everything that happens in an open database.
pub(crate) struct Observers {
    stats: Arc<Statistics>,
    listeners: Listeners,
    health: Health,
}

impl Observers {
    pub(crate) fn new(listeners: Listeners) -> Self {
        Self { stats: Arc::default(), listeners, health: Health::default() }
    }

    #[inline]
    pub(crate) fn stats(&self) -> &Arc<Statistics> {
        &self.stats
    }

    #[inline]
    pub(crate) fn health(&self) -> &Health {
        &self.health
    }

    /// Sends an event to all listeners.
    pub(crate) fn tell(&self, event: &Event) {
        for error in self.listeners.tell(event) {
            self.stats.add(Ticker::ListenerPanics, 1);
            tracing::error!(%error, "an event listener panicked; the others were told");
            self.health.note_listener(&error);
        }
    }

    /// Counts a failed job by its cause and sends an event to all listeners.
    pub(crate) fn tell_failure(&self, job: &str, error: &Error) {
        self.stats.add(Ticker::BackgroundErrors, 1);
        if error.cause::<ExtensionPanic>().is_some() {
            self.stats.add(Ticker::ExtensionPanics, 1);
        }
        if error.cause::<ImpossibleEdit>().is_some() {
            self.stats.add(Ticker::EditsRefused, 1);
        }
        self.tell(&Event::BackgroundError { job: job.to_owned(), error: error.clone() });
    }

    /// Reports a background failure that is tried again.
    pub(crate) fn fail_soft(&self, jobs: &Jobs, job: &str, error: &Error) {
        tracing::warn!(job, %error, "background job failed; it will be tried again");
        self.health.set_failing(error);
        self.tell_failure(job, error);
        jobs.notify_progress();
    }

    /// Reports a failure after which the database takes no writes.
    pub(crate) fn fail_read_only(&self, jobs: &Jobs, job: &str, error: &Error) {
        tracing::error!(job, %error, "the database is read only now");
        self.health.set_read_only(error);
        self.tell_failure(job, error);
        jobs.notify_progress();
    }
}
