//! Names of databases, jobs, attempts, schedulers and executors in the protocol.

use std::fmt;

use archipelago_base::codec::Reader;
use archipelago_base::wire::Wire;
use archipelago_base::{Epoch, wire_struct};
use archipelago_fabric::NodeId;

/// Identity of a database for offloading (its *offload id*). The first open with offloading draws
/// it at random and stores it in the manifest. A checkpoint of the database gets another one.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OffloadDb(pub [u8; 16]);

impl fmt::Debug for OffloadDb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for OffloadDb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0[..4].iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A random number that one open of a database draws. Two owners with the same epoch, which only a
/// copied database can have, differ in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub [u8; 16]);

macro_rules! wire_bytes {
    ($($name:ident)*) => { $(
        impl Wire for $name {
            fn put(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.0);
            }
            fn get(reader: &mut Reader<'_>) -> Option<Self> {
                reader.take(16)?.try_into().ok().map(Self)
            }
        }
    )* };
}

macro_rules! wire_number {
    ($($name:ident)*) => { $(
        impl Wire for $name {
            fn put(&self, out: &mut Vec<u8>) {
                self.0.put(out);
            }
            fn get(reader: &mut Reader<'_>) -> Option<Self> {
                Wire::get(reader).map(Self)
            }
        }
    )* };
}

wire_bytes! { OffloadDb Token }
wire_number! { Attempt ExecutorId SchedulerId }

/// The process that has a database open for writing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OwnerStamp {
    /// Database of the owner.
    pub db: OffloadDb,
    /// Owner epoch, which each open for writing raises durably before it sends anything.
    pub epoch: Epoch,
    /// Token of this open.
    pub token: Token,
}
wire_struct!(OwnerStamp { db, epoch, token });

/// A job of a database.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId {
    /// Database of the job.
    pub db: OffloadDb,
    /// Epoch of the owner that planned the job.
    pub epoch: Epoch,
    /// Number of the job within the epoch, from 1 in ascending order.
    pub number: u64,
}
wire_struct!(JobId { db, epoch, number });

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.db, self.epoch, self.number)
    }
}

/// Number of an assignment within its job, from 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Attempt(pub u32);

/// One assignment of a job to one executor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttemptId {
    /// Job in question.
    pub job: JobId,
    /// Number of the assignment within the job.
    pub attempt: Attempt,
}
wire_struct!(AttemptId { job, attempt });

impl fmt::Display for AttemptId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{}", self.job, self.attempt.0)
    }
}

/// Consecutive file numbers. The manifest of the database never gives them out again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NumberRange {
    /// First number of the range.
    pub first: u64,
    /// Quantity of numbers.
    pub count: u64,
}
wire_struct!(NumberRange { first, count });

impl NumberRange {
    /// Whether the range has that number.
    #[must_use]
    pub fn contains(&self, number: u64) -> bool {
        number.checked_sub(self.first).is_some_and(|at| at < self.count)
    }
}

/// Identity of a scheduler. A manager keeps it over its lives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SchedulerId(pub u64);

/// One life of one scheduler.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SchedulerLife {
    /// Scheduler in question.
    pub scheduler: SchedulerId,
    /// Number of the life. A later life of the same scheduler has a larger one.
    pub term: u64,
}
wire_struct!(SchedulerLife { scheduler, term });

/// A period in which one life of a scheduler knows an owner. It begins with the first message of
/// the owner, and ends when the owner was silent for long or has a successor. Attempts are prepared
/// for one session. At its end, the scheduler forgets which of the attempts it has given out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OwnerSession {
    /// Life of the scheduler.
    pub life: SchedulerLife,
    /// Number of the session within the life. A later session has a larger one.
    pub number: u64,
}
wire_struct!(OwnerSession { life, number });

/// Identity of a process that runs jobs. A process draws it when it starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExecutorId(pub u64);

/// One life of a memory node. Its memory ends with it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeLife {
    /// Number of the node.
    pub node: NodeId,
    /// Number of the life. A later life of the same node has a larger one.
    pub life: Epoch,
}
wire_struct!(NodeLife { node, life });

impl fmt::Display for NodeLife {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in life {}", self.node, self.life)
    }
}
