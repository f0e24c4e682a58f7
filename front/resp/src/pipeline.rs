//! From a connection's input to its output: parses all complete commands, runs them in order,
//! collects the replies for one write to the socket.
//!
//! Owned by the connection's task. Invariants:
//!
//! 1. `input[consumed..]` starts at the first byte of a command that has not run.
//! 2. Replies are in the order of the commands. Consecutive plain SETs become one write of the
//!    store; they are written and answered before any other command runs, so the connection sees
//!    its own writes, and others see at most that they came together.
//! 3. Output does not grow past [`REPLY_FLUSH_BYTES`] plus one reply before it is sent, so a client
//!    that does not read holds up itself only.

use archipelago_base::budget::{Charge, MemoryClass, Pressure};

use crate::args::Args;
use crate::reply::Reply;
use crate::request::{Parser, Progress, Span};
use crate::session::{ReplyMode, Session};
use crate::shared::Stat;
use crate::store::{KEY_BYTES_MAX, Op};

/// Output of this size is sent before more commands run.
const REPLY_FLUSH_BYTES: usize = 1 << 20;

/// Input buffer of a connection that says little.
const INPUT_BYTES_MIN: usize = 4 << 10;

/// Input buffers grow to this by themselves, and further only for a single command.
const INPUT_BYTES_USUAL: usize = 64 << 10;

/// Bounds on a batch of SETs: how many, and their bytes.
const BATCH_SETS_MAX: usize = 512;
const BATCH_BYTES_MAX: usize = 1 << 20;

/// A plain SET that waits for its batch: spans of key and value, absolute in the input.
struct PendingSet {
    key: (usize, usize),
    value: (usize, usize),
}

/// See the module.
pub(crate) struct Pipeline {
    pub(crate) input: Vec<u8>,
    pub(crate) reply: Reply,
    consumed: usize,
    parser: Parser,
    pending: Vec<PendingSet>,
    pending_bytes: usize,
    /// Bytes that the unfinished command still needs.
    wanted: usize,
    charge: Charge,
}

impl Pipeline {
    pub(crate) fn new(session: &Session) -> Self {
        let options = &session.shared.options;
        Self {
            input: Vec::new(),
            reply: Reply::default(),
            consumed: 0,
            parser: Parser::new(options.limits),
            pending: Vec::new(),
            pending_bytes: 0,
            wanted: 0,
            charge: options.budget.hold(MemoryClass::Request, 0),
        }
    }

    /// Runs every complete command in the input, unless the output grows large. Returns whether
    /// it stopped early, that is: send the output and call again.
    pub(crate) fn run(&mut self, session: &Session) -> bool {
        let mut early = false;
        while !session.closing.get() && self.consumed < self.input.len() {
            if self.reply.len() >= REPLY_FLUSH_BYTES {
                early = true;
                break;
            }
            let start = self.consumed;
            match self.parser.advance(&mut self.input[start..]) {
                Ok(Progress::Incomplete { wanted }) => {
                    self.wanted = wanted;
                    break;
                }
                Ok(Progress::Complete { len }) => {
                    self.consumed += len;
                    self.one(session, start, len);
                }
                Err(error) => {
                    self.flush_sets(session);
                    self.reply.error(&format!("ERR {error}"));
                    session.shared.add(Stat::ProtocolErrors, 1);
                    session.closing.set(true);
                }
            }
        }
        self.flush_sets(session);
        session.settle();
        self.charge_memory();
        early
    }

    /// The command at `start` is complete.
    fn one(&mut self, session: &Session, start: usize, len: usize) {
        let spans = self.parser.spans();
        if spans.is_empty() {
            return;
        }
        let command = &self.input[start..start + len];
        if session.reply_mode.get() == ReplyMode::On
            && let Some(set) = plain_set(command, spans, start)
        {
            self.pending_bytes += len;
            self.pending.push(set);
            if self.pending.len() >= BATCH_SETS_MAX || self.pending_bytes >= BATCH_BYTES_MAX {
                self.flush_sets(session);
            }
            return;
        }
        self.flush_sets(session);
        let args = Args::new(&self.input[start..start + len], self.parser.spans());
        session.execute(args, &mut self.reply);
    }

    fn flush_sets(&mut self, session: &Session) {
        let put = |set: &PendingSet| Op::Put {
            key: &self.input[set.key.0..set.key.1],
            value: &self.input[set.value.0..set.value.1],
            expires_at_ms: None,
        };
        match &self.pending[..] {
            [] => return,
            [one] => session.set_batch(&[put(one)], &mut self.reply),
            many => session.set_batch(&many.iter().map(put).collect::<Vec<_>>(), &mut self.reply),
        }
        self.pending.clear();
        self.pending_bytes = 0;
    }

    /// Makes room for the next read: moves an unfinished command to the front, gives back what a
    /// large one left, grows for one that needs it. Call when the output was sent.
    pub(crate) fn make_room(&mut self) {
        self.reply.sent(INPUT_BYTES_USUAL);
        self.parser.shrink();
        if self.consumed == self.input.len() {
            self.input.clear();
            self.input.shrink_to(INPUT_BYTES_USUAL);
            self.wanted = 0;
        } else if self.consumed > 0 {
            self.input.drain(..self.consumed);
        }
        self.consumed = 0;
        let (len, capacity) = (self.input.len(), self.input.capacity());
        if capacity < INPUT_BYTES_MIN {
            self.input.reserve_exact(INPUT_BYTES_MIN - len);
        } else if len == capacity {
            // Grow by half, so that a large value is moved a few times only, but not past what
            // the command is known to need: what was announced and not sent costs nothing.
            let growth = (len / 2).max(INPUT_BYTES_USUAL).min(self.wanted.max(INPUT_BYTES_MIN));
            self.input.reserve_exact(growth);
        }
        self.charge_memory();
    }

    fn charge_memory(&mut self) {
        let bytes = self.input.capacity() + self.reply.capacity() + self.parser.memory_bytes();
        if self.charge.bytes() != bytes as u64 {
            self.charge.resize(bytes as u64);
        }
    }

    /// After a read that filled the buffer: there is likely more, so read more at once next time.
    pub(crate) fn widen(&mut self) {
        let capacity = self.input.capacity();
        if self.input.len() == capacity && capacity < INPUT_BYTES_USUAL {
            self.input.reserve_exact(INPUT_BYTES_USUAL - self.input.len());
        }
    }

    /// Whether the next read should wait a little: memory is short and this command is large.
    pub(crate) fn should_wait(&self, session: &Session) -> bool {
        self.input.len() > INPUT_BYTES_USUAL
            && session.shared.options.budget.pressure() == Pressure::Over
    }
}

/// `SET key value` without options, with a key that the store will not refuse.
fn plain_set(command: &[u8], spans: &[Span], start: usize) -> Option<PendingSet> {
    let [name, key, value] = spans else { return None };
    let name = &command[name.0 as usize..name.1 as usize];
    if !name.eq_ignore_ascii_case(b"set") || (key.1 - key.0) as usize > KEY_BYTES_MAX {
        return None;
    }
    let absolute = |span: &Span| (start + span.0 as usize, start + span.1 as usize);
    Some(PendingSet { key: absolute(key), value: absolute(value) })
}
