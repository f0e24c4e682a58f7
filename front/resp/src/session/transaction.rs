//! Transaction of a connection: MULTI, EXEC and WATCH.
//!
//! After MULTI, commands are checked and queued. EXEC locks the stripes of all keys that the queued
//! commands name, and of all watched keys. It compares the watched keys, and runs the commands over
//! [`Overlays`] of the databases. At the end one atomic write applies the overlays. Commands that
//! name no keys but use the keyspace (SCAN, FLUSHDB, SWAPDB) make EXEC lock every stripe. SELECT
//! applies to the commands after it and, once EXEC has succeeded, to the connection.
//!
//! Invariants:
//! 1. No client sees a part of a transaction, and a crash leaves all of it or nothing. Every write
//!    takes the stripes of its keys, so the values that the commands read do not change until EXEC
//!    returns.
//! 2. As in Redis, a command that fails while EXEC runs it (INCR of a text) has its error among the
//!    replies, and the other commands are executed. A command that cannot be queued makes EXEC
//!    refuse the transaction. That includes a subcommand that does not exist.
//! 3. EXEC does nothing and answers null if any client has written or removed a watched key since
//!    WATCH, or if the key has expired, even if it has the same value again. A SWAPDB of its
//!    database counts as a write of every key that one of the two databases has. If clients watch
//!    very many absent keys, it counts as a write of every watched key of both
//!    ([`crate::watches`]).
//! 4. If the write at the end fails, the reply is one error for all commands: that of the store.
//!    It does not begin with `EXECABORT`, because the store may have applied the write, for example
//!    if only its sync failed. `EXECABORT` means that the transaction had no effect.
//!
//! The connection owns the transaction. Cost: a queued command is copied once, and its writes once
//! more. The bytes of the queue, and those that EXEC writes, are each bounded by
//! [`Limits::request_bytes_max`](crate::request::Limits) and charged to the byte budget. The queues
//! and the watched keys of all clients hold their bytes in the share
//! [`crate::memory::Shares::transactions`]. A command or a key that does not fit is refused
//! immediately, and a transaction that EXEC will refuse keeps no memory. If the share has refused
//! an object, and a client that holds some of it makes no progress, the connection of that client
//! is closed. EXEC holds the bytes of its queue in the share [`crate::memory::Shares::working`],
//! too. EXEC also holds the bytes that its commands write, such as many copies of one value, and
//! those of the values that they build. If these bytes exceed the share, EXEC does nothing. It
//! notices that after the command that exceeds the limit. A command that changes only the expiry of
//! a value writes all of it. If other commands hold the memory, EXEC drops its changes and its
//! locks, waits for the whole share, and runs the commands again. If the memory for its reply is
//! not free, EXEC drops them as well, restores the queue and the watches, and the pipeline runs it
//! again (`held_reply`). Each run counts in the statistics of commands and in the access times of
//! keys. Watched keys are charged as well, and their bytes have the same limits as those of the
//! queue. A watch costs one search among those of the connection.
//!
//! EXEC cannot take back what commands such as CONFIG SET and CLIENT KILL do to the server. If the
//! queue has such a command, EXEC first runs all others as a dry run, whose changes are dropped.
//! The dry run finds out the memory that the transaction needs, and EXEC holds it. Its commands
//! count only in the access times of keys. Then EXEC runs all commands under the same locks. So
//! those that act on the server run once, and not at all if EXEC is refused or answers null. There
//! is one exception: a reply that has become much larger by a change of the server, or a key that
//! has expired since the dry run, may need more memory, and then they run again.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::atomic::Ordering;

use archipelago_base::budget::{Charge, MemoryClass};

use crate::args::Args;
use crate::command::{Command, flag};
use crate::locks::KeyGuard;
use crate::memory::{FREE_BYTES, Held};
use crate::overlays::Overlays;
use crate::refusal::{Handled, Refusal};
use crate::reply::Reply;
use crate::request::Span;
use crate::session::{INLINE_KEYS_MAX, ReplyMode, Session};
use crate::store::JointWrite;
use crate::watches::AbsentWatch;

/// Number of bytes by which a reply may grow between the dry run of a transaction and its
/// execution, for example by the errors of commands that the dry run has left out.
const DRY_RUN_SLACK_BYTES: u64 = 4 << 10;

/// A command that waits for EXEC.
struct Queued {
    command: &'static Command,
    bytes: Box<[u8]>,
    spans: Box<[Span]>,
}

impl Queued {
    fn new(command: &'static Command, args: Args<'_>) -> Self {
        let mut bytes = Vec::with_capacity(args.from(0).map(<[u8]>::len).sum());
        let spans = args.from(0).map(|arg| {
            let start = bytes.len() as u32;
            bytes.extend_from_slice(arg);
            (start, bytes.len() as u32)
        });
        let spans = spans.collect();
        Self { command, bytes: bytes.into(), spans }
    }

    fn args(&self) -> Args<'_> {
        Args::new(&self.bytes, &self.spans)
    }

    /// Whether the command changes the server or what the server shows of clients. EXEC cannot take
    /// such a change back.
    fn acts_on_server(&self) -> bool {
        let args = self.args();
        let is_one_of = |words: &[&str]| words.iter().any(|word| args.is(1, word));
        match self.command.name {
            "hello" => args.from(2).any(|arg| arg.eq_ignore_ascii_case(b"setname")),
            "client" => is_one_of(&["kill", "setinfo", "setname"]),
            "config" => is_one_of(&["resetstat", "set"]),
            "slowlog" => is_one_of(&["reset"]),
            _ => false,
        }
    }

    /// Bytes of a command with these arguments.
    fn memory_bytes(args: Args<'_>) -> u64 {
        let texts: usize = args.from(0).map(<[u8]>::len).sum();
        (size_of::<Self>() + texts + args.len() * size_of::<Span>()) as u64
    }
}

/// State of a watched key at WATCH.
enum WatchedState {
    /// The version of its record.
    Present(u64),
    Absent(AbsentWatch),
}

/// What is known of a watched key since WATCH.
struct Watch {
    /// Number of swaps of its database before WATCH.
    swaps: u64,
    was: WatchedState,
}

impl Watch {
    /// Whether `key` of `database` is unchanged. Its stripe is held.
    fn is_same(&self, session: &Session, database: usize, key: &[u8]) -> Result<bool, Refusal> {
        let version = session.store_of(database).version(key)?;
        Ok(match &self.was {
            WatchedState::Present(was) => {
                version == Some(*was) && session.shared.watches.swaps(database) == self.swaps
            }
            WatchedState::Absent(watch) => version.is_none() && !watch.was_put(),
        })
    }

    /// Approximate bytes of the watch of `key`.
    fn memory_bytes(&self, key: &[u8]) -> u64 {
        let copies = match self.was {
            WatchedState::Present(_) => 1,
            // The registry of absent keys has the other two.
            WatchedState::Absent(_) => 3,
        };
        (size_of::<(WatchedKey, Self)>() + copies * key.len()) as u64
    }
}

/// Database and name of a watched key.
type WatchedKey = (usize, Box<[u8]>);

/// The watched keys of one connection, each once.
#[derive(Default)]
struct WatchedKeys {
    by_key: BTreeMap<WatchedKey, Watch>,
    bytes: u64,
    /// `None` before the first watch.
    charge: Option<Charge>,
    /// Memory that the watches hold of the share for transactions.
    held: Held,
}

impl WatchedKeys {
    /// Watches `keys` of the selected database, whose stripes are held. After an error it watches
    /// the same keys as before.
    fn add<'k>(&mut self, session: &Session, keys: impl Iterator<Item = &'k [u8]>) -> Handled {
        let mut new_keys = Vec::new();
        for key in keys {
            match self.add_one(session, key) {
                Ok(is_new) => new_keys.extend(is_new.then_some(key)),
                Err(refusal) => {
                    let database = session.database();
                    new_keys.into_iter().for_each(|key| self.remove(database, key));
                    return Err(refusal);
                }
            }
        }
        Ok(())
    }

    /// Watches `key`. Returns whether it was not watched before.
    fn add_one(&mut self, session: &Session, key: &[u8]) -> Result<bool, Refusal> {
        let (database, registry) = (session.database(), &session.shared.watches);
        let Entry::Vacant(free) = self.by_key.entry((database, key.into())) else {
            return Ok(false);
        };
        let was = match session.store().version(key)? {
            Some(version) => WatchedState::Present(version),
            None => WatchedState::Absent(registry.enter(database, key)),
        };
        let watch = Watch { swaps: registry.swaps(database), was };
        let bytes = self.bytes + watch.memory_bytes(key);
        let most = session.shared.options.limits.request_bytes_max;
        if bytes > most as u64 {
            return Err(Refusal::said(format!(
                "ERR the watched keys would take more than {most} bytes: watch fewer keys"
            )));
        }
        session.shared.memory.transactions.hold_or_refuse(&mut self.held, bytes)?;
        self.bytes = bytes;
        free.insert(watch);
        Ok(true)
    }

    fn remove(&mut self, database: usize, key: &[u8]) {
        if let Some(watch) = self.by_key.remove(&(database, key.into())) {
            self.bytes -= watch.memory_bytes(key);
        }
    }

    /// Charges the bytes of all watches to the byte budget, and releases what the watches do not
    /// need of the share.
    fn charge(&mut self, session: &Session) {
        self.held.shrink(if self.bytes > FREE_BYTES { self.bytes } else { 0 });
        let hold = || session.shared.options.budget.hold(MemoryClass::Request, 0);
        self.charge.get_or_insert_with(hold).resize(self.bytes);
    }
}

/// Commands that were queued since MULTI.
struct Queue {
    commands: Vec<Queued>,
    bytes: u64,
    /// Whether a command could not be queued.
    is_spoilt: bool,
    charge: Charge,
    /// Memory that the commands hold of the share for transactions.
    held: Held,
}

/// The transaction of one connection.
#[derive(Default)]
pub(crate) struct Transaction {
    /// Whether there is a queue. This copy costs nothing to read.
    is_queueing: Cell<bool>,
    queue: RefCell<Option<Queue>>,
    watches: RefCell<WatchedKeys>,
}

impl Transaction {
    /// Whether MULTI was sent, and neither EXEC nor DISCARD since.
    #[inline]
    pub(crate) fn is_queueing(&self) -> bool {
        self.is_queueing.get()
    }

    /// Whether `command` runs immediately although a transaction is being queued.
    pub(crate) fn runs_while_queueing(command: &Command) -> bool {
        ["multi", "exec", "discard", "watch", "quit", "reset"].contains(&command.name)
    }

    /// Whether queued commands or watched keys hold memory of the share for transactions.
    pub(crate) fn holds_memory(&self) -> bool {
        let queue = self.queue.borrow();
        queue.as_ref().is_some_and(|queue| queue.held.is_some())
            || self.watches.borrow().held.is_some()
    }

    /// Notes that a command could not be queued. The queue is dropped, because EXEC will refuse the
    /// transaction.
    pub(crate) fn spoil(&self, session: &Session) {
        if let Some(queue) = &mut *self.queue.borrow_mut() {
            queue.is_spoilt = true;
            queue.commands = Vec::new();
            queue.bytes = 0;
            queue.charge.resize(0);
            queue.held.shrink(0);
            self.note(session, Some(queue));
        }
    }

    /// Queues a command whose number of arguments and subcommand are right.
    pub(crate) fn queue(
        &self,
        session: &Session,
        command: &'static Command,
        args: Args<'_>,
        reply: &mut Reply,
    ) -> Handled {
        if command.has(flag::NO_MULTI) {
            return Err(Refusal::fixed("ERR Command not allowed inside a transaction"));
        }
        let mut queue = self.queue.borrow_mut();
        let Some(queue) = &mut *queue else { return Ok(()) };
        if queue.is_spoilt {
            reply.simple("QUEUED");
            return Ok(());
        }
        let limits = &session.shared.options.limits;
        let bytes = queue.bytes + Queued::memory_bytes(args);
        if bytes > limits.request_bytes_max as u64 || queue.commands.len() >= limits.args_max {
            return Err(Refusal::said(format!(
                "ERR the transaction would exceed {} bytes or {} commands: send fewer commands \
                 between MULTI and EXEC",
                limits.request_bytes_max, limits.args_max
            )));
        }
        session.shared.memory.transactions.hold_or_refuse(&mut queue.held, bytes)?;
        queue.bytes = bytes;
        queue.charge.resize(bytes);
        queue.commands.push(Queued::new(command, args));
        self.note(session, Some(queue));
        reply.simple("QUEUED");
        Ok(())
    }

    fn note(&self, session: &Session, queue: Option<&Queue>) {
        let count = queue.map_or(-1, |queue| queue.commands.len() as i64);
        session.client.queued.store(count, Ordering::Relaxed);
        let bytes = queue.map_or(0, |queue| queue.bytes);
        session.client.queued_bytes.store(bytes, Ordering::Relaxed);
    }

    fn note_watches(&self, session: &Session) {
        let watched = self.watches.borrow().by_key.len();
        session.client.watched.store(watched, Ordering::Relaxed);
    }

    /// Begins a transaction (MULTI).
    pub(crate) fn begin(&self, session: &Session) -> Handled {
        if self.is_queueing() {
            return Err(Refusal::fixed("ERR MULTI calls can not be nested"));
        }
        if let Err(error) = session.store().joint_writes() {
            // Commands that the client has sent after MULTI must not be executed one by one.
            session.closing.set(true);
            return Err(Refusal::Store(error));
        }
        let charge = session.shared.options.budget.hold(MemoryClass::Request, 0);
        let held = Held::default();
        let queue = Queue { commands: Vec::new(), bytes: 0, is_spoilt: false, charge, held };
        self.note(session, Some(&queue));
        *self.queue.borrow_mut() = Some(queue);
        self.is_queueing.set(true);
        Ok(())
    }

    fn end(&self, session: &Session) -> Option<Queue> {
        self.is_queueing.set(false);
        self.note(session, None);
        self.queue.borrow_mut().take()
    }

    /// Drops the queue and all watches (DISCARD).
    pub(crate) fn discard(&self, session: &Session) -> Handled {
        if !self.is_queueing() {
            return Err(Refusal::fixed("ERR DISCARD without MULTI"));
        }
        self.forget(session);
        Ok(())
    }

    /// Drops all watches (UNWATCH).
    pub(crate) fn unwatch(&self, session: &Session) {
        drop(self.watches.take());
        self.note_watches(session);
    }

    /// Ends the queue and all watches.
    pub(crate) fn forget(&self, session: &Session) {
        drop(self.end(session));
        self.unwatch(session);
    }

    /// Watches keys (`WATCH key…`).
    pub(crate) fn watch(&self, session: &Session, args: Args<'_>) -> Handled {
        if self.is_queueing() {
            return Err(Refusal::fixed("ERR WATCH inside MULTI is not allowed"));
        }
        session.store().joint_writes()?;
        let most = session.shared.options.limits.args_max;
        if self.watches.borrow().by_key.len() + args.len() > most {
            return Err(Refusal::said(format!("ERR a client can watch at most {most} keys")));
        }
        let guard = session.lock_many(args.from(1));
        let mut watches = self.watches.borrow_mut();
        let added = watches.add(session, args.from(1));
        drop(guard);
        watches.charge(session);
        drop(watches);
        self.note_watches(session);
        added
    }

    /// Executes the queued commands (EXEC).
    pub(crate) fn exec(&self, session: &Session, reply: &mut Reply) -> Handled {
        if !self.is_queueing() {
            return Err(Refusal::fixed("ERR EXEC without MULTI"));
        }
        let queue = self.end(session);
        let watches = self.watches.take();
        self.note_watches(session);
        let Some(queue) = queue.filter(|queue| !queue.is_spoilt) else {
            return Err(Refusal::fixed(
                "EXECABORT Transaction discarded because of previous errors.",
            ));
        };
        let is_long = queue.commands.len() > INLINE_KEYS_MAX
            || queue.commands.iter().any(|queued| queued.command.has(flag::LONG))
            || session.shared.databases.iter().any(|database| database.would_stall(true));
        let done = match is_long {
            true => tokio::task::block_in_place(|| execute(session, &queue, &watches, reply)),
            false => execute(session, &queue, &watches, reply),
        };
        if session.misses_reply() {
            self.restore(session, queue, watches);
        }
        done
    }

    /// Restores the queue and the watches for an EXEC that runs again, because there was no memory
    /// for its reply.
    fn restore(&self, session: &Session, queue: Queue, watches: WatchedKeys) {
        self.note(session, Some(&queue));
        self.queue.replace(Some(queue));
        self.is_queueing.set(true);
        self.watches.replace(watches);
        self.note_watches(session);
    }
}

fn execute(session: &Session, queue: &Queue, watches: &WatchedKeys, reply: &mut Reply) -> Handled {
    // EXEC waits for no memory while it holds locks, because other clients wait for the locks.
    if queue.bytes > FREE_BYTES {
        session.hold_for_write(queue.bytes).map_err(|refusal| abort(&refusal.line()))?;
    }
    let (mark, version) = (reply.len(), reply.version());
    loop {
        let is_done = execute_within(session, queue, watches, reply);
        if matches!(is_done, Ok(true)) {
            return Ok(());
        }
        reply.take_back(mark);
        reply.set_version(version);
        session.client.version.store(version.number(), Ordering::Relaxed);
        is_done?;
        session.hold_all().map_err(|refusal| abort(&refusal.line()))?;
    }
}

/// Executes a transaction with the memory that is free now. Returns whether that was enough. If
/// not, nothing is done, and the session has to hold the whole share for values first.
fn execute_within(
    session: &Session,
    queue: &Queue,
    watches: &WatchedKeys,
    reply: &mut Reply,
) -> Result<bool, Refusal> {
    let _guard = lock(session, queue, watches);
    for ((database, key), watch) in &watches.by_key {
        if !watch.is_same(session, *database, key)? {
            reply.null_array();
            return Ok(true);
        }
    }
    if queue.commands.iter().any(Queued::acts_on_server) && !dry_run(session, queue, reply)? {
        return Ok(false);
    }
    let (inside, start) = (session.inside(), reply.len());
    if !run_commands(session, &inside, queue, reply)? {
        return Ok(false);
    }
    // After the write, the client must get the reply.
    let bytes = (reply.len() - start) as u64;
    session.hold_reply(bytes).map_err(|refusal| abort(&refusal.line()))?;
    session.count_all_of(&inside);
    let writer = session.client.id;
    let write = |change: &JointWrite<'_>| session.shared.write_joint(change, writer);
    inside.overlays().map_or(Ok(()), |overlays| overlays.commit(write))?;
    session.adopt(&inside);
    Ok(true)
}

/// Runs the commands of a transaction that do not act on the server, and drops their changes and
/// replies. Afterwards the session holds the memory that the transaction needs. Returns whether the
/// memory that is free now was enough for values.
fn dry_run(session: &Session, queue: &Queue, reply: &mut Reply) -> Result<bool, Refusal> {
    let (inside, start, version) = (session.inside(), reply.len(), reply.version());
    inside.is_dry_run.set(true);
    if !run_commands(session, &inside, queue, reply)? {
        return Ok(false);
    }
    // The dry run has refused a reply that never fits, so the slack alone must refuse none.
    let bytes = (reply.len() - start) as u64 + DRY_RUN_SLACK_BYTES;
    let bytes = bytes.min(session.shared.memory.outgoing.limit_bytes());
    session.hold_reply(bytes).map_err(|refusal| abort(&refusal.line()))?;
    session.held.replace(inside.held.take());
    reply.truncate(start);
    reply.set_version(version);
    Ok(true)
}

/// Runs the commands of a transaction in the session `inside`, and writes their replies. A
/// dry run leaves out those that act on the server. Returns whether the memory that is free now
/// was enough for values.
fn run_commands(
    session: &Session,
    inside: &Session,
    queue: &Queue,
    reply: &mut Reply,
) -> Result<bool, Refusal> {
    let (options, overlays) = (&session.shared.options, inside.overlays());
    let (start, mode) = (reply.len(), session.reply_mode.get());
    if mode == ReplyMode::On {
        reply.array(queue.commands.len());
    }
    for queued in &queue.commands {
        let mark = reply.len();
        match inside.is_dry_run.get() && queued.acts_on_server() {
            true => reply.ok(),
            false => inside.execute(queued.args(), reply),
        }
        if is_silent(mode, inside.reply_mode.get()) {
            reply.truncate(mark);
        }
        if inside.lacks_memory() {
            return Ok(false);
        }
        let is_too_large = overlays.is_some_and(Overlays::is_too_large);
        if is_too_large || reply.len() - start > options.reply_bytes_max {
            session.count_all_of(inside);
            return Err(abort(&format!(
                "ERR it writes more than {} bytes or answers with more than {}",
                options.limits.request_bytes_max, options.reply_bytes_max
            )));
        }
        if !inside.hold_written().map_err(|refusal| abort(&refusal.line()))? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether the reply of a command of a transaction is left out. As in Redis, CLIENT REPLY OFF and
/// ON apply from their command on. SKIP applies to the command after EXEC, or to EXEC as a whole if
/// it preceded EXEC. `at_exec` is the mode when EXEC was sent, and `now` the mode after the
/// command.
fn is_silent(at_exec: ReplyMode, now: ReplyMode) -> bool {
    match now {
        ReplyMode::On => false,
        ReplyMode::Off => true,
        ReplyMode::SkipNext | ReplyMode::SkipAgain => at_exec == ReplyMode::SkipNext,
    }
}

/// Refuses a transaction that had no effect.
pub(super) fn abort(why: &str) -> Refusal {
    Refusal::said(format!("EXECABORT Transaction discarded because of: {why}"))
}

/// Locks every key that a queued command may read or write, and every watched key.
fn lock<'s>(session: &'s Session, queue: &Queue, watches: &WatchedKeys) -> KeyGuard<'s> {
    let uses_keyspace = |queued: &Queued| {
        queued.command.has(flag::WRITE | flag::READONLY) && queued.command.keys.first == 0
    };
    if queue.commands.iter().any(uses_keyspace) {
        return session.lock_all();
    }
    let of_commands =
        queue.commands.iter().flat_map(|queued| queued.command.keys_of(queued.args()));
    session.lock_many(of_commands.chain(watches.by_key.keys().map(|(_, key)| &**key)))
}
