//! State that all connections of a server share.
//!
//! The server owns it, and every connection has a reference. Thread-safety: any thread may call any
//! method. Cost: figures are counters per thread, and settings are atomic numbers.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use archipelago_base::metrics::Counters;
use archipelago_base::random::{Rng, entropy_seed};
use archipelago_base::{Error, Result};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::access_times::AccessTimes;
use crate::clients::Clients;
use crate::command::Command;
use crate::command_stats::CommandStats;
use crate::databases::{DATABASES, Order};
use crate::locks::KeyLocks;
use crate::log_limit::LogLimit;
use crate::memory::Shares;
use crate::options::ServerOptions;
use crate::prefixes::{MemoryPrefixes, PrefixTable};
use crate::settings::Settings;
use crate::slowlog::SlowLog;
use crate::store::{JointWrite, Op, SpaceUse, Store};
use crate::tracking::Tracking;
use crate::watches::Watches;

/// A figure that INFO shows.
#[derive(Clone, Copy)]
pub(crate) enum Stat {
    Commands,
    Connections,
    Rejected,
    InputBytes,
    OutputBytes,
    Hits,
    Misses,
    ErrorReplies,
    ProtocolErrors,
    OutputLimit,
    HttpRequests,
    /// AUTH with a wrong password.
    Denied,
}

/// Number of figures in [`Stat`].
const STATS: usize = 12;

/// Interval in nanoseconds at which each kind of misuse of the port is logged at most once.
const ABUSE_LOG_NS: u64 = 60_000_000_000;

/// State that all connections of a server share.
pub(crate) struct ServerState {
    /// Database 0 of the store that is served.
    pub(crate) store: Arc<dyn Store>,
    /// All databases. A store without several databases has only the first one.
    pub(crate) databases: Arc<[Arc<dyn Store>]>,
    /// Options of the start. `settings` has those that change while the server runs.
    pub(crate) options: ServerOptions,
    pub(crate) settings: Settings,
    pub(crate) locks: KeyLocks,
    pub(crate) memory: Shares,
    pub(crate) access_times: AccessTimes,
    /// Prefixes that SCAN cursors refer to, for a store without a table for them.
    memory_prefixes: MemoryPrefixes,
    pub(crate) clients: Clients,
    pub(crate) watches: Arc<Watches>,
    pub(crate) tracking: Tracking,
    pub(crate) stats: Counters<STATS>,
    pub(crate) command_stats: CommandStats,
    pub(crate) slowlog: SlowLog,
    /// All commands in the order of their numbers.
    pub(crate) commands: &'static [&'static Command],
    /// GET and SET, which a pipeline executes without searching for them.
    pub(crate) get: &'static Command,
    pub(crate) set: &'static Command,
    pub(crate) port: u16,
    pub(crate) started_ms: u64,
    /// Time of the last successful SAVE or BGSAVE, or of the start, in seconds since the Unix
    /// epoch.
    pub(crate) last_save_s: AtomicU64,
    /// Whether the last SAVE or BGSAVE failed.
    pub(crate) last_save_failed: AtomicBool,
    /// Forty hexadecimal digits, new at every start.
    pub(crate) run_id: String,
    pub(crate) shutdown_request: ShutdownRequest,
    /// Time of the last INFO, and the number of commands then, for instantaneous_ops_per_sec.
    pub(crate) last_look: Mutex<(u64, u64)>,
    pub(crate) clients_peak: AtomicU64,
    /// Number of clients whose connections were closed before they had taken all replies.
    pub(crate) cut_off: AtomicU64,
    http_log: LogLimit,
    denied_log: LogLimit,
    handshake_log: LogLimit,
    /// Highest number of resident bytes of memory that INFO has seen.
    pub(crate) resident_peak: AtomicU64,
}

impl ServerState {
    /// State of a server of `store` at `port`. `commands` stand in the order of their numbers.
    pub(crate) fn new(
        store: Arc<dyn Store>,
        mut options: ServerOptions,
        port: u16,
        commands: &'static [&'static Command],
    ) -> Self {
        let started_ms = options.clock.unix_ms();
        let mut random = Rng::with_seed(entropy_seed());
        let run_id = (0..40).map(|_| char::from(b"0123456789abcdef"[random.usize(..16)])).collect();
        let memory = Shares::of(&options.budget, options.memory_wait);
        // A larger reply could never be sent.
        options.reply_bytes_max =
            (memory.outgoing.limit_bytes() as usize).min(options.reply_bytes_max);
        let locks = KeyLocks::new(!store.is_atomic_by_key());
        let settings = Settings::of(&options);
        let access_times = AccessTimes::new(&options.budget, options.clock.now_ns());
        let tracking = Tracking::new(options.tracking_keys_max, Arc::clone(&options.budget));
        let databases = match store.databases() {
            Some(all) => (0..DATABASES).map(|index| all.database(index)).collect(),
            None => [Arc::clone(&store)].into(),
        };
        let named = |name: &str| {
            let found = commands.iter().find(|command| command.name == name);
            *found.expect("GET and SET are commands")
        };
        Self {
            store,
            databases,
            options,
            settings,
            locks,
            memory,
            access_times,
            memory_prefixes: MemoryPrefixes::default(),
            clients: Clients::default(),
            watches: Arc::default(),
            tracking,
            stats: Counters::default(),
            command_stats: CommandStats::new(commands),
            slowlog: SlowLog::default(),
            commands,
            get: named("get"),
            set: named("set"),
            port,
            started_ms,
            last_save_s: AtomicU64::new(started_ms / 1000),
            last_save_failed: AtomicBool::new(false),
            run_id,
            shutdown_request: ShutdownRequest::default(),
            last_look: Mutex::new((started_ms, 0)),
            clients_peak: AtomicU64::new(0),
            cut_off: AtomicU64::new(0),
            http_log: LogLimit::new(ABUSE_LOG_NS),
            denied_log: LogLimit::new(ABUSE_LOG_NS),
            handshake_log: LogLimit::new(ABUSE_LOG_NS),
            resident_peak: AtomicU64::new(0),
        }
    }

    /// Prefixes that SCAN cursors refer to.
    pub(crate) fn prefixes(&self) -> &dyn PrefixTable {
        self.store.scan_prefixes().unwrap_or(&self.memory_prefixes)
    }

    /// Applies a change of the databases atomically for the client `writer`, and notifies clients
    /// that watch or track keys. The caller holds the stripes of the keys, and every stripe if the
    /// order changes.
    pub(crate) fn write_joint(&self, change: &JointWrite<'_>, writer: u64) -> Result<()> {
        let written = match (&change.writes[..], change.order) {
            ([], Order::IDENTITY) => return Ok(()),
            ([(database, ops)], Order::IDENTITY) => match change.space_use {
                SpaceUse::Takes => self.databases[*database].write(ops),
                SpaceUse::Frees => self.databases[*database].write_freeing(ops),
            },
            _ => match self.store.databases() {
                Some(databases) => databases.write_joint(change),
                None => Err(Error::unsupported("this store has one database only")),
            },
        };
        let moved: Vec<usize> = change.order.moved().collect();
        if !moved.is_empty() {
            // After an error the order may have changed nevertheless.
            let has = |key: &[u8], database: &usize| {
                self.databases[*database].exists(key).unwrap_or(true)
            };
            self.watches.tell_swapped(&moved, |key| moved.iter().any(|one| has(key, one)));
        }
        if written.is_ok() {
            for (database, ops) in &change.writes {
                self.tell_written(*database, ops, &moved);
            }
        }
        if self.tracking.is_active() {
            self.tell_tracking(change, writer);
        }
        written
    }

    /// Notifies clients that track keys. A key is tracked in all databases together, as in Redis. A
    /// write that failed may have happened nevertheless. A swap may change every key.
    #[cold]
    fn tell_tracking(&self, change: &JointWrite<'_>, writer: u64) {
        let all = Op::DeleteRange { start: b"", end: None };
        let ops = || change.writes.iter().flat_map(|(_, ops)| ops.iter().copied());
        let is_all = change.order != Order::IDENTITY || ops().any(|op| op == all);
        // An invalidation of all keys comes first. A record that is put after it may have a
        // deadline.
        let told = is_all.then_some(all).into_iter().chain(ops().filter(|op| *op != all));
        self.tracking.written(&told.collect::<Vec<_>>(), writer);
    }

    /// Notifies clients that watch keys of `ops` on `database`, which `moved` may have given
    /// another position.
    fn tell_written(&self, database: usize, ops: &[Op<'_>], moved: &[usize]) {
        self.watches.tell(database, ops);
        if moved.contains(&database) {
            moved.iter().for_each(|other| self.watches.tell(*other, ops));
        }
    }

    pub(crate) fn now_ms(&self) -> u64 {
        self.options.clock.unix_ms()
    }

    pub(crate) fn add(&self, stat: Stat, value: u64) {
        if value > 0 {
            self.stats.add(stat as usize, value);
        }
    }

    pub(crate) fn stat(&self, stat: Stat) -> u64 {
        self.stats.get(stat as usize)
    }

    /// Counts an HTTP request, which is refused. It logs the request unless one was logged
    /// recently.
    pub(crate) fn note_http(&self, peer: SocketAddr) {
        self.add(Stat::HttpRequests, 1);
        if let Some(requests) = self.http_log.note(self.options.clock.now_ns()) {
            tracing::warn!(
                %peer,
                requests,
                "HTTP was refused at the Redis port: a browser or a scanner may be sending it"
            );
        }
    }

    /// Counts an AUTH with a wrong password. It logs the attempt unless one was logged recently.
    pub(crate) fn note_denied(&self, peer: SocketAddr) {
        self.add(Stat::Denied, 1);
        if let Some(attempts) = self.denied_log.note(self.options.clock.now_ns()) {
            tracing::warn!(%peer, attempts, "clients gave a wrong user or password: if this is unexpected, check their settings, or the machines that can reach the port");
        }
    }

    /// Logs a failed handshake of TLS, unless one was logged recently.
    pub(crate) fn note_failed_handshake(&self, peer: SocketAddr, why: &str) {
        if let Some(attempts) = self.handshake_log.note(self.options.clock.now_ns()) {
            tracing::warn!(%peer, attempts, why, "TLS handshakes failed: check that the clients use TLS and trust the server's CA");
        }
    }

    pub(crate) fn note_clients(&self, now: u64) {
        self.clients_peak.fetch_max(now, Ordering::Relaxed);
    }
}

/// Request that the server end.
#[derive(Default)]
pub(crate) struct ShutdownRequest {
    notify: Notify,
}

impl ShutdownRequest {
    /// Wakes the waiting server, now or when it waits.
    pub(crate) fn send(&self) {
        self.notify.notify_one();
    }

    /// Returns when the request was sent.
    pub(crate) async fn received(&self) {
        self.notify.notified().await;
        // A later call has to see the request as well.
        self.notify.notify_one();
    }
}
