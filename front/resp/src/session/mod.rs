//! State of one connection: it finds, runs and answers commands.
//!
//! The task of the connection owns the session, and one thread at a time uses it. Functions of
//! commands are synchronous and do not wait for the network.
//!
//! A session has selected one database. The store of that database follows SWAPDB by itself
//! ([`crate::store::Databases`]), so a session needs no lookup when another client swaps.
//!
//! `held_memory` has the memory that a command holds for values, `held_reply` the memory that it
//! holds for its reply, `plain_batch` the SETs and GETs that a pipeline executes together,
//! `transaction` MULTI and EXEC, `writes` the changes of keys and the notification of clients,
//! `accesses` the access times of keys, and `tally` the figures of the connection. Cost: a command
//! reads the index of the database and the server's store of that index, and the clock once.

mod accesses;
pub(crate) mod command_table;
mod held_memory;
mod held_reply;
mod plain_batch;
mod tally;
pub(crate) mod transaction;
mod writes;

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use command_table::{CommandRow, CommandTable};
use tally::Tally;
use transaction::Transaction;

use crate::args::Args;
use crate::clients::Client;
use crate::command::{Command, flag};
use crate::invalidations::TrackingMode;
use crate::locks::KeyGuard;
use crate::memory::{FREE_BYTES, Held};
use crate::overlays::Overlays;
use crate::refusal::{Handled, Refusal};
use crate::reply::Reply;
use crate::server_state::{ServerState, Stat};
use crate::slowlog::{self, SlowCommand};
use crate::store::{Head, KEY_BYTES_MAX, Store, StoredValue};

/// Whether replies are sent (CLIENT REPLY).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReplyMode {
    On,
    Off,
    /// The next command is not answered.
    SkipNext,
    /// The running command, which is CLIENT REPLY SKIP, is not answered, and neither is the next
    /// one.
    SkipAgain,
}

/// Number of keys of a command, or of records of a scan, above which it leaves the worker threads
/// of the runtime.
pub(crate) const INLINE_KEYS_MAX: usize = 256;

/// Name of the only user.
pub(crate) const DEFAULT_USER: &[u8] = b"default";

/// State of one connection.
pub(crate) struct Session {
    table: &'static CommandTable,
    pub(crate) shared: Arc<ServerState>,
    pub(crate) client: Arc<Client>,
    pub(crate) reply_mode: Cell<ReplyMode>,
    /// Whether the connection closes after its replies are sent.
    pub(crate) closing: Cell<bool>,
    pub(crate) transaction: Transaction,
    /// Tracking mode of the client. It is a copy of the mode in [`Client::invalidations`].
    pub(crate) tracking: Cell<TrackingMode>,
    /// Whether CLIENT CACHING applies to the next command.
    pub(crate) caching: Cell<bool>,
    /// Whether CLIENT CACHING applies to the running command, or applied to the last one.
    was_caching: Cell<bool>,
    /// Whether reads of this piece of input note deadlines in the tracking table.
    notes_reads: Cell<bool>,
    /// Index of the selected database.
    database: Cell<usize>,
    /// Overlays of the databases, while EXEC runs the commands of a transaction in this session.
    /// EXEC holds the stripes of their keys then.
    overlays: Option<Overlays>,
    /// Whether the client has logged in, or the server has no password.
    authenticated: Cell<bool>,
    /// Whether reads leave access times as they are (CLIENT NO-TOUCH).
    is_no_touch: Cell<bool>,
    /// Time at which the last command of this piece of input ended, in nanoseconds of the server's
    /// clock; 0 before the first one.
    last_end_ns: Cell<u64>,
    tally: Tally,
    /// Memory that the running command holds of the share for values. In a session that runs the
    /// commands of a transaction, it is the memory of EXEC and its commands until EXEC ends.
    held: RefCell<Held>,
    /// Memory that the running command holds of the share for replies.
    held_reply: RefCell<Held>,
    /// Bytes of its reply for which the running command has found no memory; 0 if it has found
    /// enough.
    missing_reply: Cell<u64>,
    /// Whether a command of a transaction has found too little memory for values, because other
    /// commands hold it.
    lacks_memory: Cell<bool>,
    /// Whether the commands of a transaction run only to find out which memory they need. They do
    /// not count in the statistics of commands.
    is_dry_run: Cell<bool>,
}

impl Session {
    pub(crate) fn new(
        shared: Arc<ServerState>,
        client: Arc<Client>,
        table: &'static CommandTable,
    ) -> Self {
        let authenticated = Cell::new(shared.options.password.is_none());
        Self {
            table,
            shared,
            client,
            reply_mode: Cell::new(ReplyMode::On),
            closing: Cell::new(false),
            transaction: Transaction::default(),
            tracking: Cell::default(),
            caching: Cell::new(false),
            was_caching: Cell::new(false),
            notes_reads: Cell::new(false),
            database: Cell::new(0),
            overlays: None,
            authenticated,
            is_no_touch: Cell::new(false),
            last_end_ns: Cell::new(0),
            tally: Tally::default(),
            held: RefCell::default(),
            held_reply: RefCell::default(),
            missing_reply: Cell::new(0),
            lacks_memory: Cell::new(false),
            is_dry_run: Cell::new(false),
        }
    }

    /// A session for the commands of a transaction of this session. They read and change overlays
    /// of the databases, and EXEC holds the stripes of their keys. It takes over the memory that
    /// this session holds.
    pub(crate) fn inside(&self) -> Self {
        let (shared, client) = (Arc::clone(&self.shared), Arc::clone(&self.client));
        let overlays = Some(Overlays::new(Arc::clone(&shared.databases), &shared.options));
        let inside = Self { overlays, ..Self::new(shared, client, self.table) };
        inside.database.set(self.database.get());
        inside.authenticated.set(self.authenticated.get());
        inside.tracking.set(self.tracking.get());
        inside.caching.set(self.caching.get());
        inside.is_no_touch.set(self.is_no_touch.get());
        inside.reply_mode.set(self.reply_mode.get());
        inside.held.replace(self.held.take());
        inside
    }

    /// Overlays of the databases, in a session that runs the commands of a transaction.
    pub(crate) fn overlays(&self) -> Option<&Overlays> {
        self.overlays.as_ref()
    }

    /// Takes over the changes that the commands of a transaction have made to the connection.
    pub(crate) fn adopt(&self, inside: &Self) {
        self.reply_mode.set(inside.reply_mode.get());
        self.authenticated.set(inside.authenticated.get());
        self.tracking.set(inside.tracking.get());
        self.set_no_touch(inside.is_no_touch.get());
        self.closing.set(self.closing.get() || inside.closing.get());
        self.select(inside.database());
    }

    /// Adds the figures of the commands of a transaction.
    pub(crate) fn count_all_of(&self, inside: &Self) {
        self.tally.add_all_of(&inside.tally);
    }

    /// The index of the selected database.
    #[inline]
    pub(crate) fn database(&self) -> usize {
        self.database.get()
    }

    /// Selects database `index`, which exists.
    pub(crate) fn select(&self, index: usize) {
        self.database.set(index);
        if !self.is_inside() {
            self.client.database.store(index, std::sync::atomic::Ordering::Relaxed);
        }
    }

    /// The selected database. Commands write through [`Session::write`] and similar methods, and
    /// through [`Session::modify`], which notify clients that watch or track keys.
    #[inline]
    pub(crate) fn store(&self) -> &dyn Store {
        self.store_of(self.database.get())
    }

    /// Database `index`, which exists.
    #[inline]
    pub(crate) fn store_of(&self, index: usize) -> &dyn Store {
        match &self.overlays {
            None => &*self.shared.databases[index],
            Some(overlays) => overlays.database(index),
        }
    }

    /// Locks a key for a write that does not read it.
    #[inline]
    pub(crate) fn lock_plain(&self, key: &[u8]) -> KeyGuard<'_> {
        if self.is_inside() { KeyGuard::None } else { self.shared.locks.lock_plain(key) }
    }

    /// Locks several keys. A key may occur twice.
    pub(crate) fn lock_many<'k>(&self, keys: impl Iterator<Item = &'k [u8]>) -> KeyGuard<'_> {
        if self.is_inside() { KeyGuard::None } else { self.shared.locks.lock_many(keys) }
    }

    /// Locks every key.
    pub(crate) fn lock_all(&self) -> KeyGuard<'_> {
        if self.is_inside() { KeyGuard::None } else { self.shared.locks.lock_all() }
    }

    /// Whether the client has logged in, or the server has no password.
    #[inline]
    pub(crate) fn is_authenticated(&self) -> bool {
        self.authenticated.get()
    }

    /// Whether plain SETs and GETs need no check of the connection's state.
    #[inline]
    pub(crate) fn takes_plain(&self) -> bool {
        self.reply_mode.get() == ReplyMode::On
            && self.is_authenticated()
            && !self.transaction.is_queueing()
            && !self.tracking.get().is_on()
    }

    /// Whether EXEC runs the commands of this session.
    #[inline]
    pub(crate) fn is_inside(&self) -> bool {
        self.overlays.is_some()
    }

    /// Turns tracking on for this client, or changes its mode. Reads of the next command are
    /// registered. The caller holds no stripe.
    pub(crate) fn begin_tracking(&self, mode: TrackingMode, prefixes: &[&[u8]]) -> Handled {
        self.store().sees_all_writes()?;
        self.shared.tracking.begin(&self.client, mode, prefixes);
        self.tracking.set(mode);
        // Afterwards, no writer runs that has seen no tracking client.
        tokio::task::block_in_place(|| drop(self.lock_all()));
        Ok(())
    }

    /// Turns tracking off for this client.
    pub(crate) fn end_tracking(&self) {
        self.shared.tracking.end(&self.client);
        self.tracking.set(TrackingMode::OFF);
        self.caching.set(false);
    }

    /// Whether the client has invalidations to receive.
    #[inline]
    pub(crate) fn has_invalidations(&self) -> bool {
        self.tracking.get().is_on() && self.client.invalidations.has_mail()
    }

    /// Registers the keys that `command` will read if the client tracks them, and notes their
    /// expiry.
    #[cold]
    fn track_reads(&self, command: &Command, args: Args<'_>) -> Handled {
        let tracking = &self.shared.tracking;
        let keys: Vec<&[u8]> = if self.tracking.get().registers(self.caching.get()) {
            tracking.register(&self.client, command.keys_of(args));
            command.keys_of(args).filter(|key| key.len() <= KEY_BYTES_MAX).collect()
        } else if tracking.has_prefixes() {
            tracking.with_prefix(command.keys_of(args))
        } else {
            return Ok(());
        };
        let mut deadlines = Vec::new();
        for key in keys {
            let head = self.store().head(key)?;
            deadlines.extend(head.and_then(|head| head.expires_at_ms).map(|at_ms| (key, at_ms)));
        }
        tracking.note_deadlines(&deadlines);
        Ok(())
    }

    /// Notes the expiry of a record that was read, for clients of the mode BCAST.
    #[inline]
    pub(crate) fn note_deadline(&self, key: &[u8], at_ms: u64) {
        if self.shared.tracking.has_prefixes() {
            self.shared.tracking.note_deadlines(&[(key, at_ms)]);
        }
    }

    /// Restores CLIENT CACHING for a command that runs again.
    pub(crate) fn will_repeat(&self) {
        self.caching.set(self.was_caching.get());
    }

    /// Logs the client in if user and password are right. If the server has no password, the user
    /// `default` may give any, as in Redis.
    pub(crate) fn log_in(&self, user: &[u8], password: &[u8]) -> Handled {
        let is_it = match &self.shared.options.password {
            None => user == DEFAULT_USER,
            // The password is compared for every user, so the time of the comparison does not
            // reveal user names.
            Some(right) => right.is(password) & (user == DEFAULT_USER),
        };
        if is_it {
            self.authenticated.set(true);
            return Ok(());
        }
        self.shared.note_denied(self.client.socket.peer);
        Err(Refusal::WRONG_PASSWORD)
    }

    /// Logs the client out.
    pub(crate) fn log_out(&self) {
        self.authenticated.set(self.shared.options.password.is_none());
    }

    /// Runs one command and writes its reply.
    pub(crate) fn execute(&self, args: Args<'_>, reply: &mut Reply) {
        self.was_caching.set(self.caching.get());
        self.execute_command(args, reply);
        self.end_caching(args);
    }

    /// Ends CLIENT CACHING after the command `args`. It applies to one command, or to one
    /// transaction.
    fn end_caching(&self, args: Args<'_>) {
        if self.caching.get()
            && !self.is_inside()
            && !self.transaction.is_queueing()
            && !args.is(0, "client")
        {
            self.caching.set(false);
        }
    }

    fn execute_command(&self, args: Args<'_>, reply: &mut Reply) {
        let (mark, mode) = (reply.len(), self.reply_mode.get());
        self.tally.add_commands(1);
        let queues = self.transaction.is_queueing();
        let done = match self.table.find(args.get(0)) {
            None => Err(unknown_command(args)),
            Some(row) => {
                let command = &row.command;
                let runs = !queues || Transaction::runs_while_queueing(command);
                let may_run = self.is_authenticated() || command.has(flag::NO_AUTH);
                let is_container = command.has(flag::CONTAINER) && command.takes(args.len());
                if runs && may_run && is_container {
                    self.client.last_command.note_with_subcommand(command, &args.text(1));
                }
                let checked = command.check(args);
                let rejected = if checked.is_err() {
                    checked
                } else if !may_run {
                    Err(Refusal::NO_AUTH)
                } else if !runs {
                    self.transaction.queue(self, command, args, reply)
                } else {
                    // A refusal of EXEC, DISCARD and similar commands does not spoil the
                    // transaction.
                    let started_ns = self.start_ns();
                    let done = self.run(row, args, reply, started_ns);
                    if self.misses_reply() {
                        reply.take_back(mark);
                        self.client.last_command.note(command);
                        self.uncount();
                        return;
                    }
                    self.note_time(command, 1, started_ns, || slowlog::args_of(command, args));
                    if done.is_err() && !self.is_dry_run.get() {
                        self.shared.command_stats.failed(command, 1);
                    }
                    return self.answered(done, mark, mode, reply);
                };
                if rejected.is_err() && !self.is_dry_run.get() {
                    self.shared.command_stats.rejected(command);
                }
                rejected
            }
        };
        if queues && done.is_err() {
            self.transaction.spoil(self);
        }
        self.answered(done, mark, mode, reply);
    }

    /// Time at which a command begins: now, or the end of the previous command in the same piece of
    /// input.
    #[inline]
    pub(crate) fn start_ns(&self) -> u64 {
        match self.last_end_ns.get() {
            0 => self.shared.options.clock.now_ns(),
            ended => ended,
        }
    }

    /// Begins a piece of input. Time before it does not count as time of its commands.
    #[inline]
    pub(crate) fn begin_piece(&self) {
        self.last_end_ns.set(0);
        self.notes_reads.set(self.shared.tracking.has_prefixes());
    }

    /// Whether plain GETs of this piece of input concern clients that track keys by prefixes.
    #[inline]
    pub(crate) fn notes_reads(&self) -> bool {
        self.notes_reads.get()
    }

    /// Counts `calls` of a command that began at `started_ns` and have ended now. If they were
    /// slow, the slow log keeps `args`.
    #[inline]
    fn note_time(
        &self,
        command: &'static Command,
        calls: u64,
        started_ns: u64,
        args: impl FnOnce() -> Vec<Vec<u8>>,
    ) {
        let ended_ns = self.shared.options.clock.now_ns();
        self.last_end_ns.set(ended_ns);
        if self.is_dry_run.get() {
            return;
        }
        let nanos = ended_ns.saturating_sub(started_ns);
        self.shared.command_stats.ran(command, calls, nanos);
        self.client.last_command.note(command);
        // EXEC itself is not in the slow log, because its commands have entries of their own.
        if self.shared.slowlog.is_slow(nanos) && command.name != "exec" {
            self.keep_slow(nanos, args());
        }
    }

    #[cold]
    fn keep_slow(&self, nanos: u64, args: Vec<Vec<u8>>) {
        self.shared.slowlog.keep(SlowCommand {
            id: 0,
            at_s: self.shared.now_ms() / 1000,
            micros: nanos / 1000,
            args,
            client: self.client.socket.peer.to_string(),
            client_name: self.client.names.lock().name.clone(),
        });
    }

    /// Completes a reply that began at `mark` in the mode `mode`.
    fn answered(&self, done: Handled, mark: usize, mode: ReplyMode, reply: &mut Reply) {
        if let Err(refusal) = done {
            self.tally.add_errors(1);
            reply.truncate(mark);
            let line = refusal.line();
            if !self.is_dry_run.get() {
                self.shared.command_stats.told_error(&line, 1);
            }
            reply.error(&line);
        }
        if self.is_inside() {
            // EXEC decides which replies of its commands are sent.
            return;
        }
        // Only CLIENT REPLY changes the mode, and then only CLIENT REPLY ON is answered.
        match (mode, self.reply_mode.get()) {
            (ReplyMode::On, _) | (_, ReplyMode::On) => {}
            (_, ReplyMode::SkipAgain) => {
                reply.truncate(mark);
                self.reply_mode.set(ReplyMode::SkipNext);
            }
            (ReplyMode::SkipNext, ReplyMode::SkipNext) => {
                reply.truncate(mark);
                self.reply_mode.set(ReplyMode::On);
            }
            _ => reply.truncate(mark),
        }
    }

    fn run(&self, row: &CommandRow, args: Args<'_>, reply: &mut Reply, started_ns: u64) -> Handled {
        let command = &row.command;
        let is_large = args.byte_len() as u64 > FREE_BYTES;
        if is_large && command.has(flag::WRITE) {
            self.hold_for_write(args.byte_len() as u64)?;
        }
        let long = command.has(flag::LONG)
            || args.len() > INLINE_KEYS_MAX
            || is_large
            || (command.has(flag::WRITE | flag::READONLY)
                && self.store().would_stall(command.has(flag::WRITE)));
        let mut act = || {
            self.note_accesses(command, args, started_ns);
            if command.has(flag::READONLY) && self.shared.tracking.is_active() {
                self.track_reads(command, args)?;
            }
            (row.handler)(self, args, reply)
        };
        let done = if long { tokio::task::block_in_place(act) } else { act() };
        if !self.is_inside() && self.held.borrow().is_some() {
            drop(self.held.take());
        }
        done
    }

    /// Calls `write`, which writes to database `index`. If the write would wait, it leaves the
    /// worker threads of the runtime. [`Session::run`] has checked the selected database only.
    pub(crate) fn writing_to<T>(&self, index: usize, write: impl FnOnce() -> T) -> T {
        let waits = self.store_of(index).would_stall(true);
        if waits { tokio::task::block_in_place(write) } else { write() }
    }

    /// Whether a command has changed nothing, so that it may run again.
    pub(crate) fn may_repeat(&self, args: Args<'_>) -> bool {
        let queues = self.transaction.is_queueing();
        let row = self.table.find(args.get(0));
        !queues && row.is_some_and(|row| changes_nothing(&row.command, args))
    }

    /// Answers a command with `refusal`, because its reply gets no memory. EXEC ends its
    /// transaction.
    pub(crate) fn give_up(&self, args: Args<'_>, refusal: Refusal, reply: &mut Reply) {
        let is_exec = args.is(0, "exec") && self.transaction.is_queueing();
        let refusal = if is_exec { transaction::abort(&refusal.line()) } else { refusal };
        if is_exec {
            self.transaction.forget(self);
        }
        self.tally.add_commands(1);
        if let Some(row) = self.table.find(args.get(0)) {
            self.shared.command_stats.rejected(&row.command);
        }
        self.answered(Err(refusal), reply.len(), self.reply_mode.get(), reply);
        self.end_caching(args);
    }

    /// Whether output of `bytes` exceeds the limit of one client.
    pub(crate) fn is_over_output_limit(&self, bytes: u64) -> bool {
        let most = self.shared.settings.output_bytes_max();
        most > 0 && bytes > most as u64
    }

    /// Closes the connection, whose client does not read, without sending its `bytes` of output.
    pub(crate) fn cut_off(&self, bytes: u64) {
        self.shared.add(Stat::OutputLimit, 1);
        self.closing.set(true);
        tracing::warn!(
            client = self.client.id,
            bytes,
            "closed a client whose unread output exceeds the hard limit (--output-mib-max, or \
             client-output-buffer-limit of CONFIG SET): it must read its replies"
        );
    }

    /// The record at `key`. It counts as a hit or a miss.
    #[inline]
    pub(crate) fn read(&self, key: &[u8]) -> Result<Option<StoredValue>, Refusal> {
        let entry = self.store().get(key)?;
        self.count_read(entry.is_some());
        Ok(entry)
    }

    /// The record at `key` without its value. It counts as a hit or a miss.
    pub(crate) fn head(&self, key: &[u8]) -> Result<Option<Head>, Refusal> {
        let head = self.store().head(key)?;
        self.count_read(head.is_some());
        Ok(head)
    }

    /// Whether `key` has a record. It counts as a hit or a miss.
    pub(crate) fn exists(&self, key: &[u8]) -> Result<bool, Refusal> {
        let there = self.store().exists(key)?;
        self.count_read(there);
        Ok(there)
    }

    pub(crate) fn count_reads(&self, hits: u64, misses: u64) {
        self.tally.add_reads(hits, misses);
    }

    pub(crate) fn count_read(&self, hit: bool) {
        self.tally.add_read(hit);
    }

    /// Adds the figures of this connection to those of the server.
    pub(crate) fn settle(&self) {
        self.tally.settle(&self.shared, &self.client);
    }
}

/// Whether a command with these arguments changes neither keys nor the state of the server or of
/// the connection. Of such commands without keys, only those with large replies are named.
fn changes_nothing(command: &Command, args: Args<'_>) -> bool {
    match command.name {
        "client" => args.is(1, "list"),
        "slowlog" => args.is(1, "get"),
        "ping" | "echo" | "command" => true,
        _ => command.has(flag::READONLY),
    }
}

fn unknown_command(args: Args<'_>) -> Refusal {
    let mut line = format!("ERR unknown command '{}', with args beginning with: ", args.text(0));
    for index in 1..args.len().min(20) {
        if line.len() > 256 {
            break;
        }
        line.push_str(&format!("'{}' ", args.text(index)));
    }
    Refusal::said(line)
}
