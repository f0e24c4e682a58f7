//! The drivers of the state machines: threads, locks, and messages over the fabric.
//!
//! Owners and executors do not listen on any port. Each sends its messages to the manager in a
//! [`Post`](crate::wire::OffloadMessage::Post). A second `Post` waits at the manager, and its
//! answer brings messages back. So a machine that runs an executor needs no open port, and an
//! operator configures only the addresses of the managers. Each manager has a scheduler, and an
//! executor works for all of them.
//!
//! | part | file |
//! | --- | --- |
//! | threads or tasks that carry mail between an owner or executor and the managers | `courier/` |
//! | answers without mail after which a courier pauses | `hasty_answer.rs` |
//! | parts of an owner or an executor in virtual time | `runtime_parts.rs` |
//! | the scheduler in the manager's process, and the mail that waits there | `desk.rs` |
//! | messages that wait for a request or an answer | `mail_queue.rs` |
//! | the files of jobs, in directories and in volumes | `files.rs` |
//! | memtable shards of flushes, in place or fetched | `images.rs` |
//! | an executor: it runs jobs on threads of its own | `executing.rs` |
//! | jobs of an executor that wait for a thread | `job_queues.rs` |
//! | the executor seam of the engine, which sends jobs away | `owning.rs` |
//! | calls of the engine that wait for jobs at executors | `owner_calls.rs` |
//! | what leaves the process of a database, and how it reaches its cluster | `owner_settings.rs` |
//! | flushes that have failed in executors | `retries.rs` |
//! | jobs whose schedulers have ended | `moves.rs` |
//! | the time for which no job leaves, and its cause | `quiet.rs` |
//! | the rate limit of a database, and the parts of its jobs | `rates.rs` |
//! | counters of these jobs | `counters.rs` |
//!
//! Thread-safety: any thread may call any method.
//! Failure: messages may be lost with a connection. The state machines repeat them until they are
//! answered.
//! Cost: an idle owner or executor costs ten small requests a second to each manager.

mod awake;
mod counters;
mod courier;
mod desk;
mod executing;
mod files;
mod hasty_answer;
mod images;
mod job_queues;
mod mail_queue;
mod moves;
mod owner_calls;
mod owner_settings;
mod owning;
mod quiet;
mod rates;
mod retries;
mod runtime_parts;
mod write_rate;

use archipelago_base::checksum::hash64;

use crate::ids::{OffloadDb, SchedulerId};

pub use counters::{FlushFigures, OffloadCounters};
pub use desk::SchedulerDesk;
pub use executing::{ExecutorFigures, ExecutorMonitor, ExecutorServer, ExecutorSettings};
pub use files::{VolumeFiles, VolumePool};
pub use owner_settings::{OffloadMode, OwnerSettings};
pub use owning::OffloadExecutor;
pub use runtime_parts::RuntimeParts;

/// Number of every scheduler in its own messages. A manager has one scheduler, whose life is that
/// of the manager's process. Owners and executors number the schedulers by the position of the
/// manager in their list.
pub const SCHEDULER: SchedulerId = SchedulerId(1);

/// Bytes of messages that one request or answer carries at most.
const MAIL_BYTES_MAX: usize = 240 << 10;
/// Bytes of a package or a return at most.
const PAYLOAD_BYTES_MAX: usize = 200 << 10;

/// The schedulers of these managers in the order in which the owner of a database tries them: by a
/// hash of database and manager. So the databases are spread over the managers. If a manager ends,
/// its databases are spread over all others.
fn scheduler_order(db: OffloadDb, managers: &[String]) -> Vec<SchedulerId> {
    let mut schedulers = courier::schedulers_of(managers.len());
    schedulers.sort_by_cached_key(|scheduler| {
        let manager = managers[scheduler.0 as usize - 1].as_bytes();
        std::cmp::Reverse((hash64(&[&db.0[..], manager].concat()), scheduler.0))
    });
    schedulers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn databases_are_spread_and_stay_when_another_manager_ends() {
        let managers: Vec<String> = (1..=3).map(|host| format!("tcp:10.0.0.{host}:7700")).collect();
        let mut counts = [0; 3];
        for number in 0..120u8 {
            let db = OffloadDb([number; 16]);
            let order = scheduler_order(db, &managers);
            let first = order[0].0 as usize - 1;
            counts[first] += 1;
            let mut all = order.clone();
            all.sort();
            assert_eq!(all, [1, 2, 3].map(SchedulerId));
            // The list of another process has another order, and one of the others has ended.
            let others = [&managers[first], &managers[(first + 1) % 3]].map(String::clone);
            assert_eq!(scheduler_order(db, &others)[0], SCHEDULER);
        }
        assert!(counts.iter().all(|&count| count > 20), "{counts:?}");
    }
}
