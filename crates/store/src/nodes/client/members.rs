//! The members of the cluster, as a client knows them, refreshed from the managers.
//!
//! Invariants:
//! 1. One request to the managers is in flight at a time. A caller that waited for another one's
//!    takes its result.
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
/// Age at which members are refreshed while they are used, unless the manager says another one.
const FRESH_FOR: Duration = Duration::from_secs(1);
/// Bounds of the age that a manager may ask for.
const FRESH_BOUNDS: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(10));

#[derive(Debug)]
struct KnownMembers {
    members: Arc<Members>,
    /// Time of the last answer; `None` before the first.
    refreshed_ns: Option<u64>,
    /// Time of the last attempt.
    tried_ns: Option<u64>,
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
        let members = Arc::default();
        let known =
            KnownMembers { members, refreshed_ns: None, tried_ns: None, fresh_for: FRESH_FOR };
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
        let is_due = known.tried_ns.is_none_or(|tried_ns| now_ns >= tried_ns + fresh_ns);
        if is_due {
            known.tried_ns = Some(now_ns);
        }
        is_due
    }

    /// Asks the managers, unless an answer came since the call began.
    pub(super) async fn refresh(&self) -> Result<Arc<Members>> {
        let called_ns = self.runtime.now_ns();
        let _pass = self.refreshing.enter().await;
        let version = {
            let mut known = self.known.lock();
            if known.refreshed_ns.is_some_and(|refreshed_ns| refreshed_ns > called_ns) {
                return Ok(Arc::clone(&known.members));
            }
            known.tried_ns = Some(self.runtime.now_ns());
            known.members.version
        };
        match self.ask(&StoreMessage::AskMembers { version }).await? {
            StoreMessage::MembersAre { members, beat_ms } => {
                let mut known = self.known.lock();
                if let Some(members) = members {
                    known.members = Arc::new(members);
                }
                if beat_ms > 0 {
                    let (least, most) = FRESH_BOUNDS;
                    known.fresh_for = Duration::from_millis(beat_ms).clamp(least, most);
                }
                known.refreshed_ns = Some(self.runtime.now_ns());
                Ok(Arc::clone(&known.members))
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
