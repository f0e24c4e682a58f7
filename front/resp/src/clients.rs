//! Registry of the connected clients, with the facts that CLIENT LIST shows and the signal that
//! wakes a connection.
//!
//! The server owns the registry. Each connection shares its own [`Client`].
//!
//! Invariant: a client is in the registry from before its first command until its task has ended.
//! An empty registry therefore means that no command runs.
//!
//! Thread-safety: any thread may call any method. Cost: the mutex of the registry is taken when a
//! client connects or disconnects, and by CLIENT LIST.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::command::{Command, flag};
use crate::invalidations::{Invalidations, TrackingMode};

/// Names that a client has given itself.
#[derive(Clone, Debug, Default)]
pub(crate) struct Names {
    /// The name of CLIENT SETNAME.
    pub(crate) name: String,
    /// The name of CLIENT SETINFO LIB-NAME.
    pub(crate) lib_name: String,
    /// The version of CLIENT SETINFO LIB-VER.
    pub(crate) lib_version: String,
}

/// The two ends of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Socket {
    pub(crate) peer: SocketAddr,
    pub(crate) local: SocketAddr,
    /// Number of the socket's descriptor in this process.
    pub(crate) descriptor: i32,
}

/// The last command of a client, as CLIENT LIST names it.
#[derive(Debug, Default)]
pub(crate) struct LastCommand {
    /// Number of the command plus one; 0 before the first command.
    number: AtomicUsize,
    /// First argument of the last command that has subcommands, in lower case.
    subcommand: Mutex<String>,
}

impl LastCommand {
    /// Notes a command. It costs one store.
    #[inline]
    pub(crate) fn note(&self, command: &'static Command) {
        self.number.store(command.number + 1, Ordering::Relaxed);
    }

    /// Notes a command that has subcommands. The caller notes it before it runs, because the
    /// command may show itself.
    #[cold]
    pub(crate) fn note_with_subcommand(&self, command: &'static Command, subcommand: &str) {
        let mut noted = self.subcommand.lock();
        let is_word = subcommand.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        noted.clear();
        if is_word {
            noted.push_str(&subcommand.to_ascii_lowercase());
        }
        self.note(command);
    }

    /// `get` or `client|list`, or `NULL` before the first command.
    fn name(&self, commands: &[&Command]) -> String {
        let number = self.number.load(Ordering::Relaxed);
        let Some(command) = number.checked_sub(1).and_then(|at| commands.get(at)) else {
            return "NULL".to_owned();
        };
        let subcommand = self.subcommand.lock();
        match command.has(flag::CONTAINER) && !subcommand.is_empty() {
            true => format!("{}|{subcommand}", command.name),
            false => command.name.to_owned(),
        }
    }
}

/// One connection, as other connections see it.
pub(crate) struct Client {
    pub(crate) id: u64,
    pub(crate) socket: Socket,
    pub(crate) names: Mutex<Names>,
    pub(crate) last_command: LastCommand,
    pub(crate) connected_ms: u64,
    /// Time of the last commands, in milliseconds since the Unix epoch.
    pub(crate) active_ms: AtomicU64,
    pub(crate) commands: AtomicU64,
    /// Size of the input buffer in bytes.
    pub(crate) input_bytes: AtomicU64,
    /// Bytes received that were not executed.
    pub(crate) unread_bytes: AtomicU64,
    /// Size of the output buffer when the last replies were sent, in bytes.
    pub(crate) reply_bytes: AtomicU64,
    /// Largest number of bytes of replies that were sent together.
    pub(crate) reply_bytes_peak: AtomicU64,
    pub(crate) output_bytes: AtomicU64,
    pub(crate) version: AtomicI64,
    /// Number of commands that a transaction has queued; -1 without a transaction.
    pub(crate) queued: AtomicI64,
    /// Bytes of the queued commands.
    pub(crate) queued_bytes: AtomicU64,
    /// Number of watched keys.
    pub(crate) watched: AtomicUsize,
    /// The invalidations of tracked keys that the client has not received.
    pub(crate) invalidations: Invalidations,
    /// Whether reads of the client leave access times as they are (CLIENT NO-TOUCH).
    pub(crate) is_no_touch: AtomicBool,
    /// Index of the selected database.
    pub(crate) database: AtomicUsize,
    stopping: AtomicBool,
    wake: Notify,
}

impl Client {
    /// Asks the connection to finish the commands that it has received, and to close.
    pub(crate) fn ask_to_stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        self.wake();
    }

    /// Wakes the connection, now or when it waits next. The connection then checks whether it is to
    /// stop, whether it has invalidations to send, and whether a setting has changed.
    pub(crate) fn wake(&self) {
        self.wake.notify_one();
    }

    /// Returns when the connection is woken. It returns immediately if that happened since the last
    /// call.
    pub(crate) async fn woken(&self) {
        self.wake.notified().await;
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// Returns when the connection is asked to stop, now or earlier. It consumes other reasons to
    /// wake, so the connection checks for them before it waits for input.
    pub(crate) async fn stopped(&self) {
        while !self.is_stopping() {
            self.woken().await;
        }
    }

    /// Flags of CLIENT LIST in the order of Redis: `x` between MULTI and EXEC, `t` for a client
    /// that tracks keys, `B` for the mode BCAST, `T` after CLIENT NO-TOUCH ON, and `N` for none of
    /// these.
    fn flags(&self) -> String {
        let mode = self.invalidations.mode();
        let flags = [
            ('x', self.queued.load(Ordering::Relaxed) >= 0),
            ('t', mode.is_on()),
            ('B', mode.is_on() && mode.has(TrackingMode::BCAST)),
            ('T', self.is_no_touch.load(Ordering::Relaxed)),
        ];
        let shown: String =
            flags.iter().filter(|(_, is_set)| *is_set).map(|(flag, _)| *flag).collect();
        if shown.is_empty() { "N".to_owned() } else { shown }
    }

    /// The client as a line of CLIENT LIST. It has the fields of Redis 7.2 in their order, and then
    /// `watch` and `tot-cmds`. `argv-mem`, `obl` and `oll` are 0, because arguments lie in the
    /// input buffer and there are no lists of replies.
    pub(crate) fn line(&self, now_ms: u64, commands: &[&Command]) -> String {
        let names = self.names.lock().clone();
        let seconds_since = |then: u64| now_ms.saturating_sub(then) / 1000;
        let figure = |figure: &AtomicU64| figure.load(Ordering::Relaxed);
        let (input, reply) = (figure(&self.input_bytes), figure(&self.reply_bytes));
        let (unread, output) = (figure(&self.unread_bytes), figure(&self.output_bytes));
        let queued = figure(&self.queued_bytes);
        let total = size_of::<Self>() as u64 + input.max(unread) + reply.max(output) + queued;
        let mut line = String::new();
        // Writing to a string does not fail.
        let _ = write!(
            line,
            "id={} addr={} laddr={} fd={} name={} age={} idle={} flags={} db={} sub=0 psub=0 ssub=0 \
             multi={} qbuf={unread} qbuf-free={} argv-mem=0 multi-mem={queued} rbs={reply} rbp={} \
             obl=0 oll=0 omem={output} tot-mem={total} events={} cmd={} user=default redir={} \
             resp={} lib-name={} lib-ver={} watch={} tot-cmds={}",
            self.id,
            self.socket.peer,
            self.socket.local,
            self.socket.descriptor,
            names.name,
            seconds_since(self.connected_ms),
            seconds_since(figure(&self.active_ms)),
            self.flags(),
            self.database.load(Ordering::Relaxed),
            self.queued.load(Ordering::Relaxed),
            input.saturating_sub(unread),
            figure(&self.reply_bytes_peak),
            if output > 0 { "rw" } else { "r" },
            self.last_command.name(commands),
            if self.invalidations.mode().is_on() { 0 } else { -1 },
            self.version.load(Ordering::Relaxed),
            names.lib_name,
            names.lib_version,
            self.watched.load(Ordering::Relaxed),
            figure(&self.commands),
        );
        line
    }
}

#[derive(Default)]
struct Registry {
    next_id: u64,
    clients: BTreeMap<u64, Arc<Client>>,
    closed: bool,
}

/// All connections of a server.
#[derive(Default)]
pub(crate) struct Clients {
    registry: Mutex<Registry>,
    /// Number of clients, which readers may see a moment late.
    count: AtomicUsize,
    emptied: Notify,
}

/// Reason for which a connection is not accepted.
pub(crate) enum NotLetIn {
    /// The highest allowed number of clients is connected.
    Full,
    /// The server is shutting down.
    Closed,
}

impl Clients {
    /// Registers a connection, unless `max` clients are connected.
    pub(crate) fn enter(
        &self,
        socket: Socket,
        now_ms: u64,
        max: usize,
    ) -> Result<Arc<Client>, NotLetIn> {
        let mut registry = self.registry.lock();
        if registry.closed {
            return Err(NotLetIn::Closed);
        }
        if registry.clients.len() >= max {
            return Err(NotLetIn::Full);
        }
        registry.next_id += 1;
        let client = Arc::new(Client {
            id: registry.next_id,
            socket,
            names: Mutex::default(),
            last_command: LastCommand::default(),
            connected_ms: now_ms,
            active_ms: AtomicU64::new(now_ms),
            commands: AtomicU64::new(0),
            input_bytes: AtomicU64::new(0),
            unread_bytes: AtomicU64::new(0),
            reply_bytes: AtomicU64::new(0),
            reply_bytes_peak: AtomicU64::new(0),
            output_bytes: AtomicU64::new(0),
            version: AtomicI64::new(2),
            queued: AtomicI64::new(-1),
            queued_bytes: AtomicU64::new(0),
            watched: AtomicUsize::new(0),
            invalidations: Invalidations::default(),
            is_no_touch: AtomicBool::new(false),
            database: AtomicUsize::new(0),
            stopping: AtomicBool::new(false),
            wake: Notify::new(),
        });
        registry.clients.insert(client.id, Arc::clone(&client));
        self.count.store(registry.clients.len(), Ordering::Relaxed);
        Ok(client)
    }

    /// Removes a connection.
    pub(crate) fn leave(&self, id: u64) {
        let mut registry = self.registry.lock();
        registry.clients.remove(&id);
        self.count.store(registry.clients.len(), Ordering::Relaxed);
        if registry.clients.is_empty() {
            self.emptied.notify_waiters();
        }
    }

    /// Whether more than one client is connected.
    pub(crate) fn are_several(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 1
    }

    pub(crate) fn len(&self) -> usize {
        self.registry.lock().clients.len()
    }

    /// All connections, from the oldest to the newest.
    pub(crate) fn all(&self) -> Vec<Arc<Client>> {
        self.registry.lock().clients.values().map(Arc::clone).collect()
    }

    /// Accepts no further connection, and asks all connections to stop.
    pub(crate) fn close(&self) {
        let mut registry = self.registry.lock();
        registry.closed = true;
        for client in registry.clients.values() {
            client.ask_to_stop();
        }
    }

    /// Returns when no client is connected.
    pub(crate) async fn wait_until_empty(&self) {
        loop {
            let emptied = self.emptied.notified();
            tokio::pin!(emptied);
            emptied.as_mut().enable();
            if self.len() == 0 {
                return;
            }
            emptied.await;
        }
    }
}
