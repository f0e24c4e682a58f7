//! The members of the cluster, as a client knows them, refreshed from the managers.
//!
//! Invariants:
//! 1. One question for the members is in flight at a time. A caller that waited for another
//!    caller's question takes its outcome, also if it is an error.
//! 2. Without an answer of a manager the last members stay in use.
//!
//! Thread-safety: any thread may call any method.
//! Failure: an error names the managers that were asked.
//! Cost: a short lock to read; a round trip to refresh.

use std::sync::Arc;
use std::time::Duration;

use archipelago_base::runtime::{Gate, Runtime};
use archipelago_base::{Error, ErrorKind, Result};
use archipelago_fabric::{ClientId, Reach, Route};
use parking_lot::Mutex;

use super::super::wire::{Members, Refused, StoreMessage};

/// Limit of the time in which a manager must answer.
const ANSWER_MAX: Duration = Duration::from_secs(1);
/// Age at which members are refreshed while they are used, unless the manager names another age.
const FRESH_FOR: Duration = Duration::from_secs(1);
/// Bounds of the age that a manager may ask for.
const FRESH_BOUNDS: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(10));

#[derive(Debug)]
struct KnownMembers {
    members: Arc<Members>,
    /// Time at which the last question ended; `None` before the first.
    ended_ns: Option<u64>,
    /// Reason for which the last question has no answer; `None` if it has one.
    error: Option<Error>,
    /// Time of the last question.
    asked_ns: Option<u64>,
    fresh_for: Duration,
}

/// The answer of a manager.
struct MembersAnswer {
    /// The members, if the known ones have another version.
    members: Option<Members>,
    fresh_for: Duration,
}

/// The members, and the way to the managers.
#[derive(Debug)]
pub(super) struct MembersCache {
    managers: Vec<String>,
    route: Route,
    runtime: Arc<dyn Runtime>,
    known: Mutex<KnownMembers>,
    refreshing: Gate,
}

impl MembersCache {
    pub(super) fn new(
        reach: &Arc<dyn Reach>,
        runtime: &Arc<dyn Runtime>,
        managers: Vec<String>,
    ) -> Self {
        let known = KnownMembers {
            members: Arc::default(),
            ended_ns: None,
            error: None,
            asked_ns: None,
            fresh_for: FRESH_FOR,
        };
        Self {
            managers,
            route: Route::new(reach, ClientId(runtime.seed()), None),
            runtime: Arc::clone(runtime),
            known: Mutex::new(known),
            refreshing: Gate::default(),
        }
    }

    /// The members as they are known.
    pub(super) fn known(&self) -> Arc<Members> {
        Arc::clone(&self.known.lock().members)
    }

    /// Whether the members are old enough to be refreshed. The caller that gets `true` refreshes.
    pub(super) fn is_due(&self) -> bool {
        let now_ns = self.runtime.now_ns();
        let mut known = self.known.lock();
        let fresh_ns = known.fresh_for.as_nanos() as u64;
        let is_due = known.asked_ns.is_none_or(|asked_ns| now_ns >= asked_ns + fresh_ns);
        if is_due {
            known.asked_ns = Some(now_ns);
        }
        is_due
    }

    /// Asks the managers, unless another question ended since the call began.
    pub(super) async fn refresh(&self) -> Result<Arc<Members>> {
        let called_ns = self.runtime.now_ns();
        let _pass = self.refreshing.enter().await;
        let version = {
            let mut known = self.known.lock();
            if known.ended_ns.is_some_and(|ended_ns| ended_ns > called_ns) {
                return known.error.clone().map_or_else(|| Ok(Arc::clone(&known.members)), Err);
            }
            known.asked_ns = Some(self.runtime.now_ns());
            known.members.version
        };
        let answer = self.ask_members(version).await;
        let mut known = self.known.lock();
        known.ended_ns = Some(self.runtime.now_ns());
        known.error = answer.as_ref().err().cloned();
        let MembersAnswer { members, fresh_for } = answer?;
        if let Some(members) = members {
            known.members = Arc::new(members);
        }
        known.fresh_for = fresh_for;
        Ok(Arc::clone(&known.members))
    }

    async fn ask_members(&self, version: u64) -> Result<MembersAnswer> {
        match self.ask(&StoreMessage::AskMembers { version }).await? {
            StoreMessage::MembersAre { members, beat_ms } => {
                let (least, most) = FRESH_BOUNDS;
                let fresh_for = match beat_ms {
                    0 => FRESH_FOR,
                    ms => Duration::from_millis(ms).clamp(least, most),
                };
                Ok(MembersAnswer { members, fresh_for })
            }
            other => Err(Error::unsupported(format!(
                "managers {}: the answer {} does not fit AskMembers: client and manager may have \
                 different versions",
                self.managers.join(", "),
                other.name()
            ))),
        }
    }

    /// Asks the managers, and returns the answer unless it is a refusal.
    pub(super) async fn ask(&self, message: &StoreMessage) -> Result<StoreMessage> {
        let what = || format!("managers {}, {}", self.managers.join(", "), message.name());
        match self.route.ask(&self.managers, message, ANSWER_MAX).await {
            Ok(StoreMessage::Refuse { why, epoch, text }) => {
                Err(Refused { why, epoch, text }.error(what()))
            }
            Ok(answer) => Ok(answer),
            Err(error) => {
                let kind = match error.kind() {
                    kind @ (ErrorKind::InvalidArgument | ErrorKind::Unsupported) => kind,
                    _ => ErrorKind::Busy,
                };
                Err(Error::with_source(kind, what(), error))
            }
        }
    }

    /// The managers, for messages.
    pub(super) fn managers(&self) -> String {
        self.managers.join(", ")
    }
}
