//! Figures of a running server as values, for tools that watch it. INFO shows the same as text.
//!
//! A [`ServerMonitor`] keeps the state of the server alive, but neither its port nor its threads.
//!
//! Thread-safety: any thread may take the figures. Failure: none. Cost: a sum over the counters of
//! all threads, about 4,000 additions for each command that was called, and one short lock each of
//! the clients, the tracked keys and the error codes. No command waits for it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::clients::Client;
use crate::command::Command;
use crate::command_stats::{BUCKETS, Figures};
use crate::memory::Share;
use crate::server_state::{ServerState, Stat};

/// Number of upper bounds in [`CommandFigures::buckets`].
pub const COMMAND_BUCKETS: usize = BUCKETS;

/// Figures of one command since the start, or since CONFIG RESETSTAT.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandFigures {
    /// Name of the command in lower case.
    pub name: &'static str,
    /// Number of calls.
    pub calls: u64,
    /// Sum of the times of all calls in nanoseconds.
    pub nanos: u64,
    /// Number of calls that were refused before the command ran.
    pub rejected: u64,
    /// Number of calls that ended with an error.
    pub failed: u64,
    /// Number of calls by their time. Element `n` counts calls of at most `2^n` microseconds that
    /// exceed the bound of the element before. The last element counts all longer ones, too.
    pub buckets: [u64; COMMAND_BUCKETS],
}

/// Memory that requests, values, replies or transactions hold, and how much they may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShareFigures {
    /// Name of the share.
    pub name: &'static str,
    /// Bytes that are held now.
    pub held_bytes: u64,
    /// Bytes that may be held; `None` without a limit.
    pub limit_bytes: Option<u64>,
}

/// Figures of a server at one moment.
#[derive(Clone, Debug)]
pub struct ServerFigures {
    /// Number of connected clients.
    pub clients: u64,
    /// Highest number of clients that may be connected.
    pub clients_max: u64,
    /// Highest number of clients that were connected at the same time.
    pub clients_peak: u64,
    /// Bytes of the largest request that a client is sending.
    pub largest_input_bytes: u64,
    /// Bytes of the largest output that a client has not read.
    pub largest_output_bytes: u64,
    /// Number of clients that watch keys.
    pub watching_clients: u64,
    /// Sum of the numbers of keys that they watch.
    pub watched_keys: u64,
    /// Number of clients that track keys.
    pub tracking_clients: u64,
    /// Number of keys that the server remembers for clients that track them.
    pub tracked_keys: u64,
    /// Number of pairs of such a key and a client.
    pub tracked_items: u64,
    /// Number of prefixes that clients track.
    pub tracked_prefixes: u64,
    /// Number of connections that were accepted.
    pub connections: u64,
    /// Number of connections that were refused because of the limit of clients.
    pub rejected_connections: u64,
    /// Number of clients that were closed because they left too much output unread.
    pub output_limit_disconnections: u64,
    /// Bytes that clients sent.
    pub input_bytes: u64,
    /// Bytes that were sent to clients.
    pub output_bytes: u64,
    /// Number of keys that reading commands found.
    pub keyspace_hits: u64,
    /// Number of keys that reading commands did not find.
    pub keyspace_misses: u64,
    /// Number of connections that broke the protocol.
    pub protocol_errors: u64,
    /// Number of attempts to authenticate with a wrong user or password.
    pub denied: u64,
    /// Number of HTTP requests that were refused at the port of Redis.
    pub http_requests: u64,
    /// Number of error replies by code. Rare codes beyond the first 128 share one entry.
    pub errors: Vec<(String, u64)>,
    /// Figures of each command that was called or refused.
    pub commands: Vec<CommandFigures>,
    /// Shares of the memory budget for requests, values, replies and transactions.
    pub shares: [ShareFigures; 4],
    /// Time of the last successful SAVE or BGSAVE, or of the start, in seconds since the Unix
    /// epoch.
    pub last_save_s: u64,
    /// Whether the last SAVE or BGSAVE failed.
    pub last_save_failed: bool,
}

/// Handle with which any thread can take the figures of a server.
#[derive(Clone)]
pub struct ServerMonitor(Arc<ServerState>);

impl std::fmt::Debug for ServerMonitor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ServerMonitor")
    }
}

impl ServerMonitor {
    pub(crate) fn new(state: &Arc<ServerState>) -> Self {
        Self(Arc::clone(state))
    }

    /// Closes the connections of the clients that track keys, after the commands that they have
    /// sent, and returns their number. Commands that are left after
    /// [`ServerOptions::shutdown_grace`](crate::ServerOptions::shutdown_grace) are dropped. A
    /// server that may not answer reads any more calls it, because it cannot tell these clients
    /// which of their cached values change.
    pub fn close_tracking_clients(&self) -> usize {
        let clients = self.0.clients.all();
        let tracking = clients
            .iter()
            .filter(|client| client.invalidations.mode().is_on() && !client.is_stopping());
        tracking.inspect(|client| client.ask_to_stop()).count()
    }

    /// The figures of the server now.
    #[must_use]
    pub fn figures(&self) -> ServerFigures {
        let state = &self.0;
        let clients = state.clients.all();
        let watched = clients.iter().map(|client| client.watched.load(Ordering::Relaxed) as u64);
        let largest = |bytes: fn(&Client) -> u64| clients.iter().map(|client| bytes(client)).max();
        let input = largest(|client| client.input_bytes.load(Ordering::Relaxed));
        let output = largest(|client| client.output_bytes.load(Ordering::Relaxed));
        let tracking = state.tracking.figures();
        ServerFigures {
            clients: clients.len() as u64,
            clients_max: state.settings.clients_max() as u64,
            clients_peak: state.clients_peak.load(Ordering::Relaxed),
            largest_input_bytes: input.unwrap_or(0),
            largest_output_bytes: output.unwrap_or(0),
            watching_clients: watched.clone().filter(|keys| *keys > 0).count() as u64,
            watched_keys: watched.sum(),
            tracking_clients: tracking.clients as u64,
            tracked_keys: tracking.keys as u64,
            tracked_items: tracking.items as u64,
            tracked_prefixes: tracking.prefixes as u64,
            connections: state.stat(Stat::Connections),
            rejected_connections: state.stat(Stat::Rejected),
            output_limit_disconnections: state.stat(Stat::OutputLimit),
            input_bytes: state.stat(Stat::InputBytes),
            output_bytes: state.stat(Stat::OutputBytes),
            keyspace_hits: state.stat(Stat::Hits),
            keyspace_misses: state.stat(Stat::Misses),
            protocol_errors: state.stat(Stat::ProtocolErrors),
            denied: state.stat(Stat::Denied),
            http_requests: state.stat(Stat::HttpRequests),
            errors: state.command_stats.errors(),
            commands: state.command_stats.commands().map(command_figures).collect(),
            shares: [
                share_figures("incoming", &state.memory.incoming),
                share_figures("working", &state.memory.working),
                share_figures("outgoing", &state.memory.outgoing),
                share_figures("transactions", &state.memory.transactions),
            ],
            last_save_s: state.last_save_s.load(Ordering::Relaxed),
            last_save_failed: state.last_save_failed.load(Ordering::Relaxed),
        }
    }
}

fn command_figures(called: (&'static Command, Figures)) -> CommandFigures {
    let (command, figures) = called;
    CommandFigures {
        name: command.name,
        calls: figures.calls,
        nanos: figures.nanos,
        rejected: figures.rejected,
        failed: figures.failed,
        buckets: figures.buckets,
    }
}

fn share_figures(name: &'static str, share: &Share) -> ShareFigures {
    let limit = share.limit_bytes();
    ShareFigures {
        name,
        held_bytes: share.held_bytes(),
        limit_bytes: (limit < u64::MAX).then_some(limit),
    }
}
