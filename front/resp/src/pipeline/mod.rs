//! Pipeline of one connection: it parses all complete commands of the input, runs them in order,
//! and collects their replies for one write to the socket.
//!
//! The task of the connection owns it. `output` has the replies and the memory that they hold, and
//! `plain_commands` the SETs and GETs that wait for their batch. Invariants:
//!
//! 1. `input[consumed..]` starts at the first byte of a command that has not run.
//! 2. Replies are in the order of the commands. Consecutive plain SETs become one write of the
//!    store. They are written and answered before any other command runs, so the connection sees
//!    its own writes. Other connections see at most that the writes appeared together. Consecutive
//!    plain GETs become one read of a store that gains by it. Other stores get a read for each of
//!    them, and the group is counted as one. A few plain commands at the end of the input may join
//!    those of other connections ([`crate::connection_batch`]).
//! 3. Output does not grow beyond [`REPLY_FLUSH_BYTES`] plus one reply before it is sent. So a
//!    client that does not read delays only itself. Meanwhile its input may grow up to a quarter of
//!    the share for requests, but not beyond the size of the largest request. It holds its bytes
//!    beyond [`FREE_BYTES`] of that share.
//! 4. Output of more than [`FREE_BYTES`] holds the bytes of its buffer of the share for replies. If
//!    a command changes nothing and its reply does not fit, the pipeline drops the reply, and runs
//!    the command again when there is memory. A command that changes something and has a large
//!    reply finds out before its change that the reply does not fit ([`Session::hold_reply`]). It
//!    changes nothing then, and runs again as well. Small replies of commands that have taken
//!    effect, and the replies of a batch of GETs, overdraw the share if they do not fit. While the
//!    share is overdrawn or a client waits for it, the pipeline runs each GET alone, and sends
//!    output of more than [`FREE_BYTES`] before it runs more commands. So each client overdraws the
//!    share by at most one batch of GETs that had begun before, and by little more than
//!    [`FREE_BYTES`] of small replies.
//! 5. Output that exceeds the limit of one client is dropped, and the connection closes. No command
//!    runs after that.

mod output;
mod plain_commands;

use archipelago_base::budget::{Charge, MemoryClass, Pressure};
use output::Output;
use plain_commands::{InputSpan, PlainCommand, PlainCommands, at};
use tokio::time::Instant;

use crate::args::Args;
use crate::connection_batch::{Answer, BatchMember};
use crate::memory::{FREE_BYTES, Held};
use crate::refusal::Refusal;
use crate::request::{Parser, Progress};
use crate::server_state::Stat;
use crate::session::Session;

/// Bytes of output after which it is sent before more commands run.
const REPLY_FLUSH_BYTES: usize = 1 << 20;

/// Size in bytes of the input buffer of a connection that sends little.
const INPUT_BYTES_MIN: usize = 4 << 10;

/// Size in bytes up to which input buffers grow by themselves. They grow further only for a single
/// command.
const INPUT_BYTES_USUAL: usize = 64 << 10;

/// Result of [`Pipeline::run`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PipelineProgress {
    /// Every complete command was executed.
    All,
    /// The output has grown large. The caller sends it and runs the pipeline again.
    Early,
    /// The next command needs this number of bytes of the share for replies, which are not free.
    /// The caller sends the output, waits for the share and runs the pipeline again.
    WaitsFor(u64),
}

/// Position in the input of a command that runs again when its reply fits.
#[derive(Clone, Copy)]
struct Blocked {
    start: usize,
    len: usize,
}

/// Plain GETs that were answered one after another and are not counted yet.
#[derive(Clone, Copy, Default)]
struct AnsweredGets {
    count: u64,
    /// Time at which the first of them began.
    started_ns: u64,
    /// Span of the key of the first of them in the input.
    first: InputSpan,
}

/// Input, output and state of the pipeline of one connection.
pub(crate) struct Pipeline {
    pub(crate) input: Vec<u8>,
    pub(crate) output: Output,
    consumed: usize,
    parser: Parser,
    /// Plain commands that wait for their batch.
    pending: PlainCommands,
    answered_gets: AnsweredGets,
    /// The pending commands in a batch of several connections.
    joined: Option<BatchMember>,
    /// Bytes that the incomplete command still needs.
    wanted: usize,
    charge: Charge,
    /// Memory that the incomplete command, or a pipeline that has arrived ahead, holds of the share
    /// for requests.
    pub(crate) incoming: Held,
    /// Whether the input buffer may be larger than its incomplete command needs, because input has
    /// arrived while the output was sent.
    may_be_oversized: bool,
    blocked: Option<Blocked>,
    /// Time from which the blocked command has waited for memory; `None` before its first wait.
    pub(crate) blocked_since: Option<Instant>,
}

impl Pipeline {
    pub(crate) fn new(session: &Session) -> Self {
        let options = &session.shared.options;
        let mut parser = Parser::new(options.limits);
        parser.set_unauthenticated(!session.is_authenticated());
        Self {
            input: Vec::new(),
            output: Output::default(),
            consumed: 0,
            parser,
            pending: PlainCommands::default(),
            answered_gets: AnsweredGets::default(),
            joined: None,
            wanted: 0,
            charge: options.budget.hold(MemoryClass::Request, 0),
            incoming: Held::default(),
            may_be_oversized: false,
            blocked: None,
            blocked_since: None,
        }
    }

    /// Runs every complete command of the input, unless the output grows large. With `joins_batch`,
    /// other connections may be about to run commands, so a few plain commands wait for them. Then
    /// the caller lets the other connections run, and calls [`Pipeline::finish`].
    pub(crate) fn run(&mut self, session: &Session, joins_batch: bool) -> PipelineProgress {
        session.begin_piece();
        let mut ran = match self.blocked.take() {
            Some(Blocked { start, len }) => self.execute_with_memory(session, start, len),
            None => PipelineProgress::All,
        };
        while ran == PipelineProgress::All
            && !session.closing.get()
            && self.consumed < self.input.len()
        {
            let bytes = self.output.reply().len();
            let is_wanted = bytes as u64 > FREE_BYTES && is_short(session);
            if bytes >= REPLY_FLUSH_BYTES || is_wanted {
                ran = PipelineProgress::Early;
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
                    ran = self.one(session, start, len);
                }
                Err(error) => {
                    self.flush(session);
                    if session.closing.get() {
                        break;
                    }
                    self.output.reply_mut().error(&format!("ERR {error}"));
                    session.shared.add(Stat::ProtocolErrors, 1);
                    if error.is_http() {
                        session.shared.note_http(session.client.socket.peer);
                    }
                    session.closing.set(true);
                }
            }
        }
        if joins_batch && ran == PipelineProgress::All && !session.closing.get() {
            self.join_batch(session);
        }
        if self.joined.is_none() {
            self.flush(session);
            session.settle();
        }
        self.charge_memory();
        ran
    }

    /// Whether a reply exists, or will after [`Pipeline::finish`].
    pub(crate) fn has_output(&self) -> bool {
        !self.output.reply().bytes().is_empty() || self.joined.is_some()
    }

    fn join_batch(&mut self, session: &Session) {
        let are_gets = self.pending.are_gets() == Some(true);
        // A batch of several connections is for database 0.
        if self.pending.are_few() && !(are_gets && is_short(session)) && session.database() == 0 {
            // The input may move before the next flush.
            self.count_gets(session);
            self.joined = self.pending.join(&self.input);
        }
    }

    /// Appends the client's invalidations. Every command that has run is answered by then, so each
    /// invalidation follows all replies that it concerns.
    pub(crate) fn push_invalidations(&mut self, session: &Session) {
        if !session.has_invalidations() {
            return;
        }
        assert!(self.pending.is_empty() && self.joined.is_none(), "some reads are not answered");
        session.client.invalidations.write_to(self.output.reply_mut());
        self.output.count(session);
    }

    /// Answers the commands that joined a batch of several connections.
    pub(crate) fn finish(&mut self, session: &Session) {
        let Some(joined) = self.joined.take() else { return };
        session.begin_piece();
        let (mut nth, mut left) = (0, Vec::<usize>::new());
        let now_ns = || session.shared.options.clock.now_ns();
        let done_ns = joined.answers(&*session.shared.store, now_ns, |answer| {
            match answer {
                Answer::NotExecuted => left.push(nth),
                Answer::Set => {}
                // A command that has to wait is answered before the commands after it.
                Answer::Value(value) if left.is_empty() => {
                    session.got(value, self.output.reply_mut());
                }
                Answer::Value(_) => left.push(nth),
            }
            nth += 1;
        });
        if self.pending.are_gets() == Some(true) {
            self.pending.keys(&self.input).for_each(|key| session.note_read(key, done_ns));
        }
        self.pending.execute_left(&left, session, &self.input, self.output.reply_mut());
        self.pending.clear();
        self.output.count(session);
        session.settle();
        self.charge_memory();
    }

    /// Executes the complete command at `start`, or adds it to the pending ones.
    fn one(&mut self, session: &Session, start: usize, len: usize) -> PipelineProgress {
        let spans = self.parser.spans();
        if spans.is_empty() {
            return PipelineProgress::All;
        }
        let command = &self.input[start..start + len];
        if session.takes_plain()
            && let Some(plain) = PlainCommand::parse(command, spans, start)
            && (!plain.is_get() || !session.notes_reads())
        {
            // A GET of a batch does not run again if its reply does not fit.
            if plain.is_get() && (!session.shared.store.overlaps_reads() || is_short(session)) {
                return self.answer_get(session, plain.key(), start, len);
            }
            if self.pending.are_gets().is_some_and(|are_gets| are_gets != plain.is_get()) {
                self.flush(session);
                if session.closing.get() {
                    return PipelineProgress::All;
                }
            }
            self.pending.push(plain, len);
            if self.pending.is_full() {
                self.flush(session);
            }
            return PipelineProgress::All;
        }
        self.flush(session);
        if session.closing.get() {
            return PipelineProgress::All;
        }
        self.run_command(session, start, len)
    }

    /// Answers the plain GET at `start`. Consecutive ones are counted together, with one reading of
    /// the clock.
    fn answer_get(
        &mut self,
        session: &Session,
        key: InputSpan,
        start: usize,
        len: usize,
    ) -> PipelineProgress {
        if !self.pending.is_empty() {
            self.flush(session);
            if session.closing.get() {
                return PipelineProgress::All;
            }
        }
        if self.answered_gets.count == 0 {
            self.answered_gets =
                AnsweredGets { count: 0, started_ns: session.start_ns(), first: key };
        }
        self.answered_gets.count += 1;
        let mark = self.output.reply().len();
        let started_ns = self.answered_gets.started_ns;
        session.get_plain(at(&self.input, key), started_ns, self.output.reply_mut());
        self.bound_reply(session, mark, start, len)
    }

    /// Counts the GETs that were answered since the last call.
    fn count_gets(&mut self, session: &Session) {
        let AnsweredGets { count, started_ns, first } = self.answered_gets;
        if count > 0 {
            session.note_gets(at(&self.input, first), count, started_ns);
            self.answered_gets.count = 0;
        }
    }

    /// Runs the command at `start`, whose reply has waited for memory. If the command has to wait
    /// again, the time of all its waits counts together.
    fn execute_with_memory(
        &mut self,
        session: &Session,
        start: usize,
        len: usize,
    ) -> PipelineProgress {
        session.lend_reply_memory(std::mem::take(self.output.held_mut()));
        let ran = self.run_command(session, start, len);
        if self.blocked.is_none() {
            self.blocked_since = None;
        }
        ran
    }

    /// Runs the command at `start`. The parser has its spans.
    fn run_command(&mut self, session: &Session, start: usize, len: usize) -> PipelineProgress {
        let mark = self.output.reply().len();
        let args = Args::new(&self.input[start..start + len], self.parser.spans());
        session.execute(args, self.output.reply_mut());
        session.move_reply_memory(self.output.held_mut());
        self.parser.set_unauthenticated(!session.is_authenticated());
        match session.take_missing_reply() {
            0 => self.bound_reply(session, mark, start, len),
            bytes => self.block(session, Blocked { start, len }, bytes),
        }
    }

    /// Makes a command, which has no reply and has changed nothing, wait for `bytes` of the share
    /// for replies. It waits for its reply alone, because the output before it is sent first.
    fn block(&mut self, session: &Session, command: Blocked, bytes: u64) -> PipelineProgress {
        self.blocked = Some(command);
        session.will_repeat();
        PipelineProgress::WaitsFor(bytes)
    }

    /// Holds memory for the output, whose last reply begins at `mark` and answers the command at
    /// `start`. If the reply does not fit and the command may run again, the command waits.
    fn bound_reply(
        &mut self,
        session: &Session,
        mark: usize,
        start: usize,
        len: usize,
    ) -> PipelineProgress {
        let (input, parser) = (&self.input, &self.parser);
        let may_repeat =
            || session.may_repeat(Args::new(&input[start..start + len], parser.spans()));
        match self.output.bound(session, mark, may_repeat) {
            None => PipelineProgress::All,
            Some(bytes) => self.block(session, Blocked { start, len }, bytes),
        }
    }

    /// Answers the command that waits for memory with `refusal`.
    pub(crate) fn give_up(&mut self, session: &Session, refusal: Refusal) {
        if let Some(Blocked { start, len }) = self.blocked.take() {
            self.blocked_since = None;
            let args = Args::new(&self.input[start..start + len], self.parser.spans());
            session.give_up(args, refusal, self.output.reply_mut());
        }
    }

    /// Releases all memory. The conversation has ended, but its socket may take time to close, and
    /// other clients may wait for the memory.
    pub(crate) fn release(&mut self) {
        self.input = Vec::new();
        self.output.release();
        self.incoming.shrink(0);
        self.charge_memory();
    }

    /// Bytes that the incomplete command needs of the share for requests; 0 if it is small.
    pub(crate) fn incoming_bytes(&self) -> u64 {
        let bytes = (self.input.len() + self.wanted) as u64;
        if bytes > FREE_BYTES && self.consumed == 0 && !self.input.is_empty() { bytes } else { 0 }
    }

    /// Executes and answers the plain commands that wait for their batch.
    fn flush(&mut self, session: &Session) {
        self.count_gets(session);
        if self.pending.is_empty() {
            return;
        }
        self.pending.execute(session, &self.input, self.output.reply_mut());
        self.pending.clear();
        self.output.count(session);
    }

    /// Whether a command was executed since [`Pipeline::tidy`].
    pub(crate) fn has_consumed(&self) -> bool {
        self.consumed > 0
    }

    /// Removes the output, which was sent, and releases its memory.
    pub(crate) fn sent(&mut self) {
        self.output.sent();
    }

    /// Bytes of the input that were not executed.
    pub(crate) fn unread_bytes(&self) -> u64 {
        (self.input.len() - self.consumed) as u64
    }

    /// Moves an incomplete command to the front of the input, and frees the memory of a large one.
    /// The caller has sent the output.
    pub(crate) fn tidy(&mut self) {
        self.sent();
        self.parser.shrink();
        let is_one_command = self.consumed == 0 && !self.may_be_oversized;
        if self.consumed == self.input.len() {
            self.input.clear();
            self.wanted = 0;
        } else if self.consumed > 0 {
            self.input.drain(..self.consumed);
        }
        if self.input.is_empty() || !is_one_command {
            self.input.shrink_to(INPUT_BYTES_USUAL);
            let bytes = self.input.capacity() as u64;
            self.incoming.shrink(if bytes > FREE_BYTES { bytes } else { 0 });
        }
        (self.consumed, self.may_be_oversized) = (0, false);
    }

    /// Makes room for input that arrives while the client takes no output. What the buffer takes
    /// beyond [`FREE_BYTES`] it holds of the share for requests, without waiting for it. Returns
    /// `false` if the input may not grow now: it has the largest size for one client, memory is
    /// short, or the client has not logged in.
    pub(crate) fn make_room_ahead(&mut self, session: &Session) -> bool {
        self.drop_executed();
        let (len, capacity) = (self.input.len(), self.input.capacity());
        if len < capacity {
            return true;
        }
        let bytes = match capacity < INPUT_BYTES_USUAL {
            true => Some(INPUT_BYTES_USUAL),
            false => self.hold_ahead(session),
        };
        let Some(bytes) = bytes else { return false };
        self.input.reserve_exact(bytes - len);
        self.may_be_oversized = true;
        self.charge_memory();
        true
    }

    /// Holds memory for a larger input buffer. Returns the new size of the buffer in bytes. If the
    /// share has too little left to double the buffer, the buffer grows by a smaller part. Each
    /// part is so large that the copies of a growing buffer stay cheap.
    fn hold_ahead(&mut self, session: &Session) -> Option<usize> {
        if !session.is_authenticated() || self.should_wait(session) {
            return None;
        }
        let (capacity, shared) = (self.input.capacity(), &session.shared);
        let share = &shared.memory.incoming;
        let request_bytes_max = shared.options.limits.request_bytes_max as u64;
        // The rest of the share remains for requests of other clients.
        let most = request_bytes_max.min(share.limit_bytes() / 4) as usize;
        let sizes = [1, 2, 4, 8].map(|part| {
            let growth = (capacity / part).max(INPUT_BYTES_USUAL);
            capacity.saturating_add(growth).min(most)
        });
        let incoming = &mut self.incoming;
        sizes.into_iter().find(|&size| size > capacity && share.try_hold(incoming, size as u64))
    }

    /// Removes the executed commands from the input, if that moves at most as many bytes as it
    /// removes. The command that waits for its reply remains. No span of a pending command exists,
    /// because the output is being sent.
    fn drop_executed(&mut self) {
        assert!(self.pending.is_empty(), "some commands are not answered");
        let executed = self.blocked.map_or(self.consumed, |blocked| blocked.start);
        if executed == 0 || executed < self.input.len() - executed {
            return;
        }
        self.input.drain(..executed);
        self.may_be_oversized = true;
        self.consumed -= executed;
        if let Some(blocked) = &mut self.blocked {
            blocked.start -= executed;
        }
    }

    /// Makes room for the next read, and more room for a command that needs it. The caller has
    /// called [`Pipeline::tidy`], and holds the command's memory.
    pub(crate) fn make_room(&mut self) {
        let (len, capacity) = (self.input.len(), self.input.capacity());
        if capacity < INPUT_BYTES_MIN {
            self.input.reserve_exact(INPUT_BYTES_MIN - len);
        } else if len == capacity && self.incoming.is_some() {
            // The memory is held already, so the buffer need not be moved while it grows.
            self.input.reserve_exact(self.wanted);
        } else if len == capacity {
            // Growth by half moves a large value only a few times. The buffer does not grow beyond
            // the known need of the command, so bytes that were announced and not sent cost
            // nothing.
            let growth = (len / 2).max(INPUT_BYTES_USUAL).min(self.wanted.max(INPUT_BYTES_MIN));
            self.input.reserve_exact(growth);
        }
        self.charge_memory();
    }

    fn charge_memory(&mut self) {
        let bytes =
            self.input.capacity() + self.output.reply().capacity() + self.parser.memory_bytes();
        if self.charge.bytes() != bytes as u64 {
            self.charge.resize(bytes as u64);
        }
    }

    /// Enlarges the buffer after a read that has filled it, because more input is likely.
    pub(crate) fn widen(&mut self) {
        let capacity = self.input.capacity();
        if self.input.len() == capacity && capacity < INPUT_BYTES_USUAL {
            self.input.reserve_exact(INPUT_BYTES_USUAL - self.input.len());
        }
    }

    /// Whether the next read should wait a moment, because memory is short and this command is
    /// large.
    pub(crate) fn should_wait(&self, session: &Session) -> bool {
        self.input.len() > INPUT_BYTES_USUAL
            && session.shared.options.budget.pressure() == Pressure::Over
    }
}

/// Whether other clients need more of the share for replies than is free.
fn is_short(session: &Session) -> bool {
    session.shared.memory.outgoing.is_short()
}

#[cfg(test)]
mod tests;
