//! The state machines over the fabric.
//!
//! Owners and executors listen nowhere. Each sends its messages to the manager in a
//! [`Post`](crate::wire::OffloadMessage::Post), and has a second one waiting there, whose answer
//! brings the messages for it. So a machine that offers its processor needs no open port, and one
//! address, that of the manager, is all that an operator configures.
//!
//! | part | file |
//! | --- | --- |
//! | threads that carry the mail of an owner or an executor | `courier.rs` |
//! | the scheduler in the manager's process, and the mail that waits there | `desk.rs` |
//! | the files of jobs, in directories and in volumes | `files.rs` |
//! | memtable shards of flushes, in place or fetched | `images.rs` |
//! | an executor: it runs jobs on threads of its own | `executing.rs` |
//! | the executor seam of the engine, which sends jobs away | `owning.rs` |
//! | counters of these jobs | `counters.rs` |
//!
//! Thread-safety: any thread may call any method.
//! Failure: mail may be lost with a connection. The state machines repeat what matters.
//! Cost: an idle owner or executor costs ten small requests a second.

mod counters;
mod courier;
mod desk;
mod executing;
mod files;
mod images;
mod owning;

use crate::ids::SchedulerId;

pub use counters::{FlushFigures, OffloadCounters};
pub use desk::SchedulerDesk;
pub use executing::{ExecutorFigures, ExecutorServer, ExecutorSettings};
pub use files::{VolumeFiles, VolumePool};
pub use owning::{OffloadExecutor, OffloadMode, OwnerSettings};

/// The scheduler of a cluster. Its managers are lives of it, because at most one of them acts.
pub const SCHEDULER: SchedulerId = SchedulerId(1);

/// Bytes of messages that one request or answer carries at most.
const MAIL_BYTES_MAX: usize = 240 << 10;
/// Bytes of a package or a return at most.
const PAYLOAD_BYTES_MAX: usize = 200 << 10;
