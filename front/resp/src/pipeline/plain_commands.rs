//! Plain SETs and GETs of one pipeline that wait for their batch.
//!
//! The pipeline owns them. A plain command is `SET key value` without options, or `GET key`.
//! Invariants:
//!
//! 1. All waiting commands are SETs, or all of them are GETs.
//! 2. Keys and values lie in the input of the pipeline, which does not move while commands wait.
//! 3. A batch has at most [`BATCH_MAX`] SETs with about [`BATCH_BYTES_MAX`] bytes, or
//!    [`BATCH_GETS_MAX`] GETs. The pipeline executes a full batch immediately.
//!
//! Cost: one entry of a vector for each command. A batch of one SET or GET allocates nothing more.

use crate::connection_batch::BatchMember;
use crate::reply::Reply;
use crate::request::Span;
use crate::session::Session;
use crate::store::{KEY_BYTES_MAX, Op};

/// Limits of a batch: the number of commands, and the bytes of SETs.
const BATCH_MAX: usize = 512;
const BATCH_BYTES_MAX: usize = 1 << 20;
/// Longest value in bytes of a plain SET. Longer values gain nothing from a batch, and a store may
/// refuse them.
const PLAIN_BYTES_MAX: usize = 64 << 10;
/// Highest number of GETs in a batch. All their values are in memory until they are answered.
const BATCH_GETS_MAX: usize = 32;
/// Highest number of commands, and of their bytes, that join a batch of several connections. More
/// are a batch of their own.
const JOINED_MAX: usize = 8;
const JOINED_BYTES_MAX: usize = 2 << 10;

/// First byte in the input of a key or value, and the byte after it.
pub(super) type InputSpan = (usize, usize);

/// The bytes of a key or value.
pub(super) fn at(input: &[u8], span: InputSpan) -> &[u8] {
    &input[span.0..span.1]
}

/// A plain SET or GET.
pub(super) struct PlainCommand {
    key: InputSpan,
    /// The value of a SET.
    value: Option<InputSpan>,
}

impl PlainCommand {
    /// The command at `start` of the input as a plain one, if it is one and the store accepts its
    /// sizes.
    pub(super) fn parse(command: &[u8], spans: &[Span], start: usize) -> Option<Self> {
        let ([name, key] | [name, key, _]) = spans else { return None };
        let wanted: &[u8] = if spans.len() == 2 { b"get" } else { b"set" };
        let name = &command[name.0 as usize..name.1 as usize];
        let bytes = |span: &Span| (span.1 - span.0) as usize;
        let large =
            bytes(key) >= KEY_BYTES_MAX || spans.get(2).is_some_and(|v| bytes(v) > PLAIN_BYTES_MAX);
        if large || !name.eq_ignore_ascii_case(wanted) {
            return None;
        }
        let absolute = |span: &Span| (start + span.0 as usize, start + span.1 as usize);
        Some(Self { key: absolute(key), value: spans.get(2).map(absolute) })
    }

    /// Whether the command is a GET.
    pub(super) fn is_get(&self) -> bool {
        self.value.is_none()
    }

    /// Position of the key in the input.
    pub(super) fn key(&self) -> InputSpan {
        self.key
    }

    /// The write of a SET.
    fn op<'i>(&self, input: &'i [u8]) -> Op<'i> {
        let value = self.value.map(|value| at(input, value)).unwrap_or_default();
        Op::Put { key: at(input, self.key), value, expires_at_ms: None }
    }
}

/// The waiting commands of one pipeline.
#[derive(Default)]
pub(super) struct PlainCommands {
    commands: Vec<PlainCommand>,
    bytes: usize,
}

impl PlainCommands {
    /// Whether no command waits.
    pub(super) fn is_empty(&self) -> bool {
        self.commands.is_empty()
    }

    /// Whether the commands are GETs; `None` without commands.
    pub(super) fn are_gets(&self) -> Option<bool> {
        self.commands.first().map(PlainCommand::is_get)
    }

    /// Adds a command of `bytes` bytes.
    pub(super) fn push(&mut self, command: PlainCommand, bytes: usize) {
        self.bytes += bytes;
        self.commands.push(command);
    }

    /// Whether the batch is to be executed before another command joins it.
    pub(super) fn is_full(&self) -> bool {
        let most = if self.are_gets() == Some(true) { BATCH_GETS_MAX } else { BATCH_MAX };
        self.commands.len() >= most || self.bytes >= BATCH_BYTES_MAX
    }

    /// Whether commands wait, and they are few enough for a batch of several connections.
    pub(super) fn are_few(&self) -> bool {
        (1..=JOINED_MAX).contains(&self.commands.len()) && self.bytes <= JOINED_BYTES_MAX
    }

    /// Adds the commands to a batch of several connections. `None`: they do not fit.
    pub(super) fn join(&self, input: &[u8]) -> Option<BatchMember> {
        let parts =
            |one: &PlainCommand| (at(input, one.key), one.value.map(|value| at(input, value)));
        BatchMember::join(self.commands.iter().map(parts))
    }

    /// Executes and answers the commands.
    pub(super) fn execute(&self, session: &Session, input: &[u8], reply: &mut Reply) {
        match &self.commands[..] {
            [] => {}
            [one] if one.is_get() => session.get_batch(&[at(input, one.key)], reply),
            gets @ [first, ..] if first.is_get() => {
                let keys: Vec<&[u8]> = gets.iter().map(|get| at(input, get.key)).collect();
                session.get_batch(&keys, reply);
            }
            [one] => session.set_batch(&[one.op(input)], reply),
            sets => session.set_batch(&ops(sets, input), reply),
        }
    }

    /// Executes the commands with the numbers `left`, and answers these GETs, or all SETs.
    pub(super) fn execute_left(
        &self,
        left: &[usize],
        session: &Session,
        input: &[u8],
        reply: &mut Reply,
    ) {
        if self.are_gets() == Some(false) {
            return session.set_left(&ops(&self.commands, input), left, reply);
        }
        let key = |nth: &usize| at(input, self.commands[*nth].key);
        let keys: Vec<&[u8]> = left.iter().map(key).collect();
        if !keys.is_empty() {
            session.get_batch(&keys, reply);
        }
    }

    /// The keys of the commands.
    pub(super) fn keys<'i>(&self, input: &'i [u8]) -> impl Iterator<Item = &'i [u8]> {
        self.commands.iter().map(move |one| at(input, one.key))
    }

    /// Removes the commands, which were executed.
    pub(super) fn clear(&mut self) {
        self.commands.clear();
        self.bytes = 0;
    }
}

/// The writes of SETs.
fn ops<'i>(sets: &[PlainCommand], input: &'i [u8]) -> Vec<Op<'i>> {
    sets.iter().map(|set| set.op(input)).collect()
}
