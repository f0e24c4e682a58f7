//! Points at which a checker acts: this process has received a message, or it has handled it.
//!
//! `archipelago-crash --offload --messages` kills and stops processes at these points. Without the
//! cargo feature `fault-points` there is no way to set a hook, and every note is an empty function.
//!
//! A *received* message has not changed anything yet. A *handled* message has changed the state of
//! the process. After a handled message of jobs, the manager may have sent the messages that follow
//! from it. Owners and executors have not sent theirs, and a memory node has not sent its answer.
//! Answers of memory nodes are only noted as received.
//!
//! Thread-safety: any thread may note a point. The hook runs on it, and no lock of this crate is
//! held.
//! Failure: none.
//! Cost: none without the feature; with it the names of all messages.

use std::sync::OnceLock;

use crate::wire::OffloadMessage;
use crate::wire::shard::ShardMessage;

/// Whether a hook may exist.
const HAS_HOOK: bool = cfg!(feature = "fault-points");

/// The two protocols of offloading, which have messages of the same names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageProtocol {
    /// Jobs: messages between owners, schedulers and executors.
    Jobs,
    /// Memtable shards: messages between owners and memory nodes.
    Shards,
}

/// The moment of a message in the process that received it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageMoment {
    /// The message has arrived, and has not changed anything yet.
    Received,
    /// The message has changed the state of the process.
    Handled,
}

/// A message in the process that received it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessagePoint {
    /// Protocol of the message.
    pub protocol: MessageProtocol,
    /// Name of the variant of the message.
    pub name: &'static str,
    /// Moment of the message.
    pub moment: MessageMoment,
}

/// The function that is called at each point.
type Hook = Box<dyn Fn(MessagePoint) + Send + Sync>;

static HOOK: OnceLock<Hook> = OnceLock::new();

/// Has `hook` called at each point of this process from now on. The first call of a process counts.
#[cfg(feature = "fault-points")]
pub fn set_hook(hook: impl Fn(MessagePoint) + Send + Sync + 'static) {
    let _is_first = HOOK.set(Box::new(hook));
}

fn note(point: MessagePoint) {
    if HAS_HOOK && let Some(hook) = HOOK.get() {
        hook(point);
    }
}

/// Names of messages of jobs, to be noted later. Empty without the feature.
pub(crate) fn names_of(messages: &[OffloadMessage]) -> Vec<&'static str> {
    if HAS_HOOK { messages.iter().map(OffloadMessage::name).collect() } else { Vec::new() }
}

/// Notes messages of jobs.
pub(crate) fn note_jobs(moment: MessageMoment, names: &[&'static str]) {
    for &name in names {
        note(MessagePoint { protocol: MessageProtocol::Jobs, name, moment });
    }
}

/// Notes the messages of jobs in a request to the manager.
pub(crate) fn note_request(moment: MessageMoment, body: &[u8]) {
    if HAS_HOOK && let Ok(OffloadMessage::Post { mail, .. }) = OffloadMessage::decode(body) {
        let messages = mail.iter().filter_map(|payload| OffloadMessage::decode(&payload.0).ok());
        note_jobs(moment, &names_of(&messages.collect::<Vec<_>>()));
    }
}

/// Notes a message of memtable shards.
pub(crate) fn note_shards(moment: MessageMoment, message: &ShardMessage) {
    note(MessagePoint { protocol: MessageProtocol::Shards, name: message.name(), moment });
}
