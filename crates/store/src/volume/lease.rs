//! The lease of a volume's owner: when another process may conclude that it has ended, when the
//! owner must stop by itself, and the thread that renews it.
//!
//! The owner changes the value of the volume in the register from time to time. A lease has ended
//! when that value has not changed for the length of the lease, by the clock of the process that
//! observes it. The owner stops answering reads an eighth of the lease earlier, by its own clock,
//! counted from the *sending* of its last change. No clock is compared with another one; only their
//! speeds must agree to within that eighth.
//!
//! Invariants:
//! 1. While an owner regards its lease as valid, no observer regards it as ended. This holds if the
//!    clocks of both run at the same speed to within [`MARGIN`].
//! 2. Safety of writes does not depend on the lease: it rests on the epoch alone.
//!
//! Thread-safety: the decisions are pure. Any thread may stop the thread.
//! Failure: a renewal that fails is repeated sooner. The thread ends when ownership is lost.
//! Cost: four swaps of the register per lease.

use std::sync::Arc;
use std::time::Duration;

use archipelago_base::spawn::Spawn;
use archipelago_base::stop_signal::StopSignal;
use archipelago_base::{ErrorKind, Result};

use super::registration::Registration;
use super::thread::VolumeThread;

/// Share of the lease, as a divisor, that the owner leaves unused.
const MARGIN: u64 = 8;
/// Number of renewals per lease.
const RENEWALS: u32 = 4;
/// Number of attempts per lease while the register does not answer.
const ATTEMPTS: u32 = 16;
/// Shortest time between two renewals or two looks at a lease.
const PAUSE_MIN: Duration = Duration::from_millis(5);
/// Longest time between two looks at the lease of another owner.
const LOOK_MAX: Duration = Duration::from_millis(250);

/// Time, by the owner's clock, from which on the owner answers no read. `sent_ns` is the time at
/// which it sent its last change of the register that succeeded.
pub(super) fn owner_until_ns(sent_ns: u64, lease: Duration) -> u64 {
    let lease_ns = lease.as_nanos() as u64;
    sent_ns.saturating_add(lease_ns - lease_ns / MARGIN)
}

/// Outcome of the last renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Renewal {
    Done,
    Failed,
}

/// Time from the end of one renewal to the next one.
pub(super) fn pause_after(renewal: Renewal, lease: Duration) -> Duration {
    let pause = match renewal {
        Renewal::Done => lease / RENEWALS,
        Renewal::Failed => lease / ATTEMPTS,
    };
    pause.max(PAUSE_MIN)
}

/// Conclusion of an observer about the lease of another owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LeaseView {
    /// The value changed, so its owner lives.
    Renewed,
    /// The value did not change yet. The observer looks again after this time.
    Undecided(Duration),
    /// The value did not change for the length of the lease.
    Ended,
}

/// A look at the register.
#[derive(Clone, Copy, Debug)]
pub(super) struct LeaseLook {
    /// Version that the look found.
    pub(super) version: u64,
    /// Time at which the look was sent.
    pub(super) asked_ns: u64,
}

/// An observation of another owner's lease.
#[derive(Clone, Copy, Debug)]
pub(super) struct LeaseWatch {
    version: u64,
    lease_ns: u64,
    since_ns: u64,
}

impl LeaseWatch {
    /// Begins to observe. `answered_ns` is the time at which the observer got the answer with
    /// `version`, so the value is at least as old as that.
    pub(super) fn begin(version: u64, lease: Duration, answered_ns: u64) -> Self {
        Self { version, lease_ns: lease.as_nanos() as u64, since_ns: answered_ns }
    }

    /// Judges a later look.
    pub(super) fn judge(&self, look: LeaseLook) -> LeaseView {
        if look.version != self.version {
            return LeaseView::Renewed;
        }
        let ends_ns = self.since_ns.saturating_add(self.lease_ns);
        match ends_ns.checked_sub(look.asked_ns) {
            None | Some(0) => LeaseView::Ended,
            Some(left_ns) => {
                let pause = Duration::from_nanos(self.lease_ns / u64::from(ATTEMPTS));
                let pause = pause.clamp(PAUSE_MIN, LOOK_MAX);
                LeaseView::Undecided(pause.min(Duration::from_nanos(left_ns)))
            }
        }
    }
}

/// Starts the thread that renews the lease of `registration`. Errors: those of `spawn`.
pub(super) fn start_renewing(
    spawn: &dyn Spawn,
    registration: &Arc<Registration>,
) -> Result<VolumeThread> {
    let registration = Arc::clone(registration);
    VolumeThread::start(spawn, "volume-lease", move |signal| renew(signal, &registration))
}

/// Renews the lease until the signal comes or the volume has another owner.
fn renew(signal: &StopSignal, registration: &Registration) {
    let mut last = Renewal::Done;
    while !signal.wait(pause_after(last, registration.lease())) {
        last = match registration.renew() {
            Ok(()) => Renewal::Done,
            Err(error) if matches!(error.kind(), ErrorKind::Fenced | ErrorKind::Closed) => return,
            Err(error) => {
                if last == Renewal::Done {
                    let volume = registration.name();
                    tracing::warn!(%error, volume, "the lease could not be renewed; trying again");
                }
                Renewal::Failed
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(8);
    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn owner_stops_an_eighth_before_its_lease_ends() {
        assert_eq!(owner_until_ns(5 * SECOND, LEASE), 12 * SECOND);
        assert_eq!(owner_until_ns(u64::MAX - 1, LEASE), u64::MAX);
    }

    fn judge(watch: &LeaseWatch, version: u64, asked_ns: u64) -> LeaseView {
        watch.judge(LeaseLook { version, asked_ns })
    }

    #[test]
    fn lease_ends_when_the_value_is_unchanged_for_its_length() {
        let watch = LeaseWatch::begin(7, LEASE, 10 * SECOND);
        let look = LeaseView::Undecided(LOOK_MAX);
        assert_eq!(judge(&watch, 7, 10 * SECOND), look);
        assert_eq!(judge(&watch, 7, 17 * SECOND), look);
        assert_eq!(
            judge(&watch, 7, 18 * SECOND - 1),
            LeaseView::Undecided(Duration::from_nanos(1))
        );
        assert_eq!(judge(&watch, 7, 18 * SECOND), LeaseView::Ended);
    }

    #[test]
    fn change_proves_a_living_owner_even_after_the_lease() {
        let watch = LeaseWatch::begin(7, LEASE, 10 * SECOND);
        assert_eq!(judge(&watch, 8, 11 * SECOND), LeaseView::Renewed);
        assert_eq!(judge(&watch, 8, 30 * SECOND), LeaseView::Renewed);
    }

    #[test]
    fn observer_never_ends_a_lease_that_its_owner_uses() {
        // The owner sends at 0, the register changes at any later time, and the observer gets the
        // value later still. Both clocks run at the same speed.
        for changed_ns in [0, SECOND, 6 * SECOND] {
            let watch = LeaseWatch::begin(1, LEASE, changed_ns);
            let until_ns = owner_until_ns(0, LEASE);
            for now_ns in (0..until_ns).step_by(SECOND as usize / 4) {
                assert_ne!(judge(&watch, 1, now_ns), LeaseView::Ended, "{changed_ns} {now_ns}");
            }
        }
    }

    #[test]
    fn failed_renewal_is_repeated_sooner() {
        assert_eq!(pause_after(Renewal::Done, LEASE), Duration::from_secs(2));
        assert_eq!(pause_after(Renewal::Failed, LEASE), Duration::from_millis(500));
        assert_eq!(pause_after(Renewal::Failed, Duration::ZERO), PAUSE_MIN);
    }
}
