//! How a client of the pool joins, and how long it waits.

use std::time::Duration;

/// How a client joins.
#[derive(Clone, Debug)]
pub struct PoolOptions {
    /// Where the managers are, those that act and those that stand by: `tcp:HOST:PORT`, `shm:PATH`.
    pub manager: Vec<String>,
    /// Whose data this client works on: clients of one label adopt each other's blocks.
    pub label: u64,
    /// Calls end as busy if nodes or the manager keep them waiting for longer. Default: 10 s.
    pub patience: Duration,
    /// How often it asks again.
    pub pace: Pace,
}

/// How long a client waits between two tries.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// A question to a node or the manager is taken for lost after so long. Default: 500 ms.
    pub request: Duration,
    /// After a refusal that passes by itself. Default: 2 ms.
    pub pause: Duration,
    /// After a renewal that was not answered. Default: 20 ms.
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
    /// Options with the default times, for one manager and a label.
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
