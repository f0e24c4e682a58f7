//! Settings of a pool client: the managers, the label, and the times that it waits.

use std::time::Duration;

/// Settings of a client.
#[derive(Clone, Debug)]
pub struct PoolOptions {
    /// Endpoints of all managers, of the one in office and of the standby managers: `tcp:HOST:PORT`
    /// or `shm:PATH`.
    pub manager: Vec<String>,
    /// Label of the data that this client works on. Clients of one label adopt each other's blocks.
    pub label: u64,
    /// Time after which a call that waits for nodes or the manager ends as busy. Default: 10 s.
    pub patience: Duration,
    /// Times between retries.
    pub pace: Pace,
}

/// Times that a client waits before it tries again.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Time after which an unanswered request to a node or the manager counts as lost. Default: 500
    /// ms.
    pub request: Duration,
    /// Pause before a request is repeated after a temporary refusal. Default: 2 ms.
    pub pause: Duration,
    /// Pause after a renewal that was not answered. Default: 20 ms.
    pub renewal: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            request: Duration::from_millis(500),
            pause: Duration::from_millis(2),
            renewal: Duration::from_millis(20),
        }
    }
}

impl PoolOptions {
    /// Settings with the default times, for one manager and a label.
    #[must_use]
    pub fn new(manager: impl Into<String>, label: u64) -> Self {
        Self {
            manager: vec![manager.into()],
            label,
            patience: Duration::from_secs(10),
            pace: Pace::default(),
        }
    }
}
