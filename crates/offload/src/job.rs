//! Jobs as the protocol sees them. The spec and the output are bytes that only the owner and the
//! executor read.

use std::fmt;
use std::sync::Arc;

use archipelago_base::codec::{Reader, put_bytes};
use archipelago_base::wire::Wire;
use archipelago_base::{wire_enum, wire_struct};

use crate::ids::{Attempt, ExecutorId, JobId, NodeLife, NumberRange, Token};

/// Kind of a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum JobKind {
    /// Shards of sealed memtables become tables. Writers may wait for it, so it goes first.
    #[default]
    Flush,
    /// Tables are merged into tables of a lower level.
    Compaction,
    /// Value files are rewritten without their garbage.
    Gc,
}
wire_enum!(JobKind { Flush = 1, Compaction = 2, Gc = 3 });

impl JobKind {
    /// All kinds, in the order of their codes.
    pub const ALL: [Self; 3] = [Self::Flush, Self::Compaction, Self::Gc];
}

/// Bytes in a message. A clone of a payload shares the bytes and does not copy them.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Payload(pub Arc<[u8]>);

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

impl From<Vec<u8>> for Payload {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes.into())
    }
}

impl Wire for Payload {
    fn put(&self, out: &mut Vec<u8>) {
        put_bytes(out, &self.0);
    }
    fn get(reader: &mut Reader<'_>) -> Option<Self> {
        reader.bytes().map(|bytes| Self(bytes.into()))
    }
}

/// Bytes of a job's inputs in the memory of a memory node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InputPlace {
    /// Node that holds the bytes.
    pub at: NodeLife,
    /// Number of bytes.
    pub bytes: u64,
}
wire_struct!(InputPlace { at, bytes });

/// Begin of the name of a build among the names of an executor.
pub(crate) const BUILD: &str = "build ";

/// Everything that the choice of an executor needs to know about a job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobOrder {
    /// Job in question.
    pub id: JobId,
    /// Token of its owner.
    pub token: Token,
    /// Kind of the job.
    pub kind: JobKind,
    /// Bytes that the job reads.
    pub bytes: u64,
    /// Names that an executor must have. They name the build that can read the spec, the place of
    /// the files (directories, or a storage cluster), and the merge operators and filters that the
    /// job calls.
    pub needs: Vec<String>,
    /// Memory nodes that hold inputs of the job. Empty if all inputs are files.
    pub places: Vec<InputPlace>,
    /// Executors at which earlier attempts at the same inputs have failed, as jobs of their own.
    /// The job does not go to these executors. If the list is not empty, the job does not wait for
    /// a free executor either.
    pub avoids: Vec<ExecutorId>,
}
wire_struct!(JobOrder { id, token, kind, bytes, needs, places, avoids });

/// A job that an owner gives to its schedulers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobAsk {
    /// Kind of the job.
    pub kind: JobKind,
    /// Bytes that the job reads.
    pub bytes: u64,
    /// Names that an executor needs ([`JobOrder::needs`]).
    pub needs: Vec<String>,
    /// Memory nodes that hold inputs of the job.
    pub places: Vec<InputPlace>,
    /// Executors that the job must not go to ([`JobOrder::avoids`]).
    pub avoids: Vec<ExecutorId>,
}

/// An attempt that a scheduler may give to an executor, with the file numbers of its outputs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PreparedAttempt {
    /// Number of the attempt.
    pub attempt: Attempt,
    /// File numbers that only this attempt may use.
    pub numbers: NumberRange,
}
wire_struct!(PreparedAttempt { attempt, numbers });

/// Reason for which an owner has to run a job itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LocalWhy {
    /// The mode of the database keeps jobs of this kind local.
    Mode,
    /// No executor is known.
    NoExecutor,
    /// No executor has all names that the job needs ([`JobOrder::needs`]).
    Unknown,
    /// All attempts have failed.
    Failed,
    /// No scheduler answers.
    Silent,
    /// The owner refused what executors have written.
    Refused,
    /// The database has a newer owner.
    Superseded,
    /// The spec of the job does not fit into a message.
    TooLarge,
    /// A file of the job cannot be granted to another process.
    Files,
    /// A memtable shard of the flush lies in the memory of this process.
    InProcess,
    /// Other jobs have the slots of all executors.
    Busy,
    /// The rate limit of the database leaves too little for one more job.
    RateLimit,
}
wire_enum!(LocalWhy {
    Mode = 1,
    NoExecutor = 2,
    Unknown = 3,
    Failed = 4,
    Silent = 5,
    Refused = 6,
    Superseded = 7,
    TooLarge = 8,
    Files = 9,
    InProcess = 10,
    Busy = 11,
    RateLimit = 12,
});

impl LocalWhy {
    /// All reasons, in the order of their codes.
    pub const ALL: [Self; 12] = [
        Self::Mode,
        Self::NoExecutor,
        Self::Unknown,
        Self::Failed,
        Self::Silent,
        Self::Refused,
        Self::Superseded,
        Self::TooLarge,
        Self::Files,
        Self::InProcess,
        Self::Busy,
        Self::RateLimit,
    ];

    /// The reason as a part of the name of a counter.
    #[must_use]
    pub const fn key(self) -> &'static str {
        match self {
            Self::Mode => "mode",
            Self::NoExecutor => "no_executor",
            Self::Unknown => "unknown_name",
            Self::Failed => "failed",
            Self::Silent => "silent",
            Self::Refused => "refused",
            Self::Superseded => "superseded",
            Self::TooLarge => "too_large",
            Self::Files => "files",
            Self::InProcess => "in_process",
            Self::Busy => "busy",
            Self::RateLimit => "rate_limit",
        }
    }

    /// The reason as a phrase for logs and error texts.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::Mode => "the mode keeps jobs of this kind local",
            Self::NoExecutor => "no executor is known",
            Self::Unknown => "no executor has an operator, filter or build of the job",
            Self::Failed => "all attempts have failed",
            Self::Silent => "no scheduler answers",
            Self::Refused => "the outputs of executors were refused",
            Self::Superseded => "the database has a newer owner",
            Self::TooLarge => "the spec of the job does not fit into a message",
            Self::Files => "a file of the job cannot be granted to another process",
            Self::InProcess => "a memtable of the flush lies in this process",
            Self::Busy => "other jobs have the slots of all executors",
            Self::RateLimit => "the rate limit leaves too little for one more job",
        }
    }
}

/// Reason for which an executor does not take an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DeclineWhy {
    /// All slots of the executor are taken.
    Busy,
    /// The executor lacks a name that the job needs ([`JobOrder::needs`]).
    Unknown,
    /// The executor is shutting down, or an operator drains it.
    Leaving,
}
wire_enum!(DeclineWhy { Busy = 1, Unknown = 2, Leaving = 3 });

/// An owner's decision about the outputs of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verdict {
    /// The outputs are live tables of the database.
    Installed,
    /// The owner of the same epoch has abandoned the attempt. The executor removes the outputs.
    Discard,
    /// The owner does not know the job. The files stay, and the owner's sweep decides about them
    /// (docs/design/offload.md, rule 4).
    Forget,
}
wire_enum!(Verdict { Installed = 1, Discard = 2, Forget = 3 });
