//! Settings of a server.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use archipelago_base::budget::ByteBudget;
use archipelago_base::clock::{Clock, SystemClock};
use archipelago_base::{Error, Result};

use crate::access::Password;
use crate::request::Limits;
use crate::tls::TlsOptions;

/// Longest keepalive that Linux accepts, in seconds.
const KEEPALIVE_S_MAX: u64 = 32_767;

/// Smallest limit of the output of one client, in bytes. Output of this size is sent before the
/// server makes more.
pub(crate) const OUTPUT_BYTES_LEAST: usize = 1 << 20;

/// Settings of a [`crate::Server`]. `Default` suits a small server.
#[derive(Clone)]
pub struct ServerOptions {
    /// Number of threads that serve connections. Default 0: the number of cores.
    pub worker_threads: usize,
    /// Highest number of connections at the start. CONFIG SET maxclients changes it. A further
    /// client gets an error, and its connection is closed. The server lowers the number if the
    /// limit of open files requires it ([`archipelago_env::descriptors::clients_max`]). Default
    /// 10,000.
    pub clients_max: usize,
    /// Time without progress after which a connection is closed. Default `None`: never.
    pub idle_timeout: Option<Duration>,
    /// Time of silence after which TCP probes whether the client still exists, so that connections
    /// of vanished clients end. Default 300 s, as in Redis. `None`: never.
    pub tcp_keepalive: Option<Duration>,
    /// Password that clients must give before they may run commands. Default `None`: no password.
    pub password: Option<Password>,
    /// Whether other machines are served without a password and without client certificates. By
    /// default such an address is refused.
    pub allow_unauthenticated: bool,
    /// Settings of TLS. Default `None`: connections are plain.
    pub tls: Option<TlsOptions>,
    /// Time that a shutdown waits for running commands and for slow readers. It does not wait for
    /// clients that take nothing. After this time, a connection that was asked to stop, for example
    /// by CLIENT KILL, executes no more of the commands that it has received. Default 10 s.
    pub shutdown_grace: Duration,
    /// Limits of a request.
    pub limits: Limits,
    /// Largest reply in bytes of a command that collects many records (KEYS, RANGE, MGET). A larger
    /// reply is refused with advice. Default 1 GiB.
    pub reply_bytes_max: usize,
    /// Time that a large request, value or reply may wait for memory before it is refused. A client
    /// that holds such memory is closed if it makes no progress for as long while others wait.
    /// Default 10 s.
    pub memory_wait: Duration,
    /// Bytes of unread output of a client above which the server closes its connection and counts
    /// it. Output is sent while it is made, so a client needs room for the largest reply plus 1
    /// MiB. Default 0: only the share for replies limits it.
    pub output_bytes_max: usize,
    /// Highest number of keys that the server remembers for clients with CLIENT TRACKING. Beyond it
    /// the server sends an invalidation of a key that has not changed, and forgets the key. 0: only
    /// a sixteenth of the budget limits it. Default 1,000,000, as in Redis.
    pub tracking_keys_max: usize,
    /// Budget to which the memory of requests and replies is charged, as class Request. Received
    /// requests, values that commands build, unread replies, and queued commands with watched keys
    /// may each take a quarter of it.
    /// Objects that do not fit wait, or are refused. Besides the quarter for replies, each client
    /// may have some 64 KiB of replies, and each thread one reply that it is making. Default: a
    /// budget without a limit.
    pub budget: Arc<ByteBudget>,
    /// Directory for checkpoints of clients (CHECKPOINT), each in a directory of its own. Default
    /// `None`: CHECKPOINT is refused.
    pub checkpoints: Option<PathBuf>,
    /// Clock for expiry times. The store should use the same clock. Default: the system's clock.
    pub clock: Arc<dyn Clock>,
}

impl fmt::Debug for ServerOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerOptions")
            .field("worker_threads", &self.worker_threads)
            .field("clients_max", &self.clients_max)
            .field("idle_timeout", &self.idle_timeout)
            .field("tcp_keepalive", &self.tcp_keepalive)
            .field("password", &self.password)
            .field("allow_unauthenticated", &self.allow_unauthenticated)
            .field("tls", &self.tls)
            .field("shutdown_grace", &self.shutdown_grace)
            .field("limits", &self.limits)
            .field("reply_bytes_max", &self.reply_bytes_max)
            .field("checkpoints", &self.checkpoints)
            .field("tracking_keys_max", &self.tracking_keys_max)
            .field("memory_wait", &self.memory_wait)
            .field("output_bytes_max", &self.output_bytes_max)
            .finish_non_exhaustive()
    }
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            worker_threads: 0,
            clients_max: 10_000,
            idle_timeout: None,
            tcp_keepalive: Some(Duration::from_secs(300)),
            password: None,
            allow_unauthenticated: false,
            tls: None,
            shutdown_grace: Duration::from_secs(10),
            limits: Limits::default(),
            reply_bytes_max: 1 << 30,
            memory_wait: Duration::from_secs(10),
            output_bytes_max: 0,
            tracking_keys_max: 1_000_000,
            budget: ByteBudget::unlimited(),
            checkpoints: None,
            clock: SystemClock::shared(),
        }
    }
}

impl ServerOptions {
    /// Checks every field. The error names the field, its value and the allowed values.
    pub fn validate(&self) -> Result<()> {
        let between = |name: &str, value: usize, least: usize, most: usize| {
            if (least..=most).contains(&value) {
                return Ok(());
            }
            Err(Error::invalid(format!("{name} is {value}: it must lie in {least}..={most}")))
        };
        between("worker_threads", self.worker_threads, 0, 1024)?;
        between("clients_max", self.clients_max, 1, 1_000_000)?;
        between("limits.args_max", self.limits.args_max, 16, 1 << 24)?;
        between("limits.bulk_bytes_max", self.limits.bulk_bytes_max, 1024, 1 << 30)?;
        between("limits.inline_bytes_max", self.limits.inline_bytes_max, 1024, 1 << 20)?;
        between("limits.request_bytes_max", self.limits.request_bytes_max, 4096, 3 << 30)?;
        between("reply_bytes_max", self.reply_bytes_max, 4096, 3 << 30)?;
        if self.output_bytes_max > 0 {
            between("output_bytes_max", self.output_bytes_max, OUTPUT_BYTES_LEAST, usize::MAX)?;
        }
        if self.idle_timeout == Some(Duration::ZERO) {
            return Err(Error::invalid("idle_timeout is 0: leave it out for no timeout"));
        }
        if let Some(keepalive) = self.tcp_keepalive
            && !(1..=KEEPALIVE_S_MAX).contains(&keepalive.as_secs())
        {
            return Err(Error::invalid(format!(
                "tcp_keepalive is {keepalive:?}: it must lie in 1 s..={KEEPALIVE_S_MAX} s; \
                 leave it out for none"
            )));
        }
        Ok(())
    }

    /// Refuses an address that other machines reach, unless clients need a password or
    /// certificates.
    ///
    /// # Errors
    /// `InvalidArgument`, with advice.
    pub fn check_address(&self, address: SocketAddr) -> Result<()> {
        let asks_for_certificates = self.tls.as_ref().is_some_and(|tls| tls.client_ca.is_some());
        if address.ip().to_canonical().is_loopback()
            || self.password.is_some()
            || asks_for_certificates
            || self.allow_unauthenticated
        {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "{address} can be reached from other machines, and clients are not authenticated: set a \
             password (--password-file FILE, or ARCHIPELAGO_PASSWORD in the environment), require \
             certificates of clients (--tls-client-ca FILE), listen on 127.0.0.1, or allow it with \
             --no-password"
        )))
    }
}
