//! The drivers of the state machines: threads, locks, and messages over the fabric.
//!
//! Owners and executors do not listen on any port. Each sends its messages to the manager in a
//! [`Post`](crate::wire::OffloadMessage::Post). A second `Post` waits at the manager, and its
//! answer brings messages back. So a machine that runs an executor needs no open port, and an
//! operator configures only the addresses of the managers.
//!
//! | part | file |
//! | --- | --- |
//! | threads that carry the mail of an owner or an executor | `courier.rs` |
//! | the scheduler in the manager's process, and the mail that waits there | `desk.rs` |
//! | messages that wait for a request or an answer | `mail_queue.rs` |
//! | the files of jobs, in directories and in volumes | `files.rs` |
//! | memtable shards of flushes, in place or fetched | `images.rs` |
//! | an executor: it runs jobs on threads of its own | `executing.rs` |
//! | jobs of an executor that wait for a thread | `job_queues.rs` |
//! | the executor seam of the engine, which sends jobs away | `owning.rs` |
//! | flushes that have failed away, and where | `retries.rs` |
//! | the time for which no job leaves, and its cause | `quiet.rs` |
//! | the rate limit of a database, and the parts of its jobs | `rates.rs` |
//! | counters of these jobs | `counters.rs` |
//!
//! Thread-safety: any thread may call any method.
//! Failure: messages may be lost with a connection. The state machines repeat them until they are
//! answered.
//! Cost: an idle owner or executor costs ten small requests a second.

mod awake;
mod counters;
mod courier;
mod desk;
mod executing;
mod files;
mod images;
mod job_queues;
mod mail_queue;
mod owning;
mod quiet;
mod rates;
mod retries;
mod write_rate;

use crate::ids::SchedulerId;

pub use counters::{FlushFigures, OffloadCounters};
pub use desk::SchedulerDesk;
pub use executing::{ExecutorFigures, ExecutorMonitor, ExecutorServer, ExecutorSettings};
pub use files::{VolumeFiles, VolumePool};
pub use owning::{OffloadExecutor, OffloadMode, OwnerSettings};

/// The only scheduler of a cluster. Each term of an acting manager is one life of it.
pub const SCHEDULER: SchedulerId = SchedulerId(1);

/// Bytes of messages that one request or answer carries at most.
const MAIL_BYTES_MAX: usize = 240 << 10;
/// Bytes of a package or a return at most.
const PAYLOAD_BYTES_MAX: usize = 200 << 10;
