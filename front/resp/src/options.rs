//! Settings of a server and what it must be given.

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

/// Longest keepalive that Linux takes, in seconds.
const KEEPALIVE_S_MAX: u64 = 32_767;

/// The smallest limit of the output of one client in bytes: output of this size is sent before more
/// is made.
pub(crate) const OUTPUT_BYTES_LEAST: usize = 1 << 20;

/// Settings of a [`crate::Server`]. `Default` suits a small server.
#[derive(Clone)]
pub struct ServerOptions {
    /// Threads that serve connections. Default 0: as many as there are cores.
    pub worker_threads: usize,
    /// Most connections at first (CONFIG SET maxclients changes it); one more gets an error and is
    /// closed. The server lowers it to what the limit of open files leaves for clients
    /// ([`archipelago_env::descriptors::clients_max`]). Default 10,000.
    pub clients_max: usize,
    /// A connection that says nothing for so long is closed. Default `None`: never.
    pub idle_timeout: Option<Duration>,
    /// How long a connection may be silent until TCP asks whether the client is still there, so
    /// that a connection whose client is gone ends. Default 300 s, as in Redis; `None`: never.
    pub tcp_keepalive: Option<Duration>,
    /// What clients must give before anything else is done for them. Default `None`: nothing.
    pub password: Option<Password>,
    /// Whether other machines are served without a password and without certificates of clients. By
    /// default an address outside of loopback is refused then.
    pub allow_unauthenticated: bool,
    /// Speak TLS. Default `None`: connections are plain.
    pub tls: Option<TlsOptions>,
    /// How long a shutdown waits for commands in flight and for slow readers; clients that take
    /// nothing are not waited for. Default 10 s.
    pub shutdown_grace: Duration,
    /// Bounds on a request.
    pub limits: Limits,
    /// Largest reply of a command that collects many records (KEYS, RANGE, MGET), in bytes; a
    /// larger one is refused with advice. Default 1 GiB.
    pub reply_bytes_max: usize,
    /// How long a large request, value or reply may wait for memory before it is refused. A client
    /// that holds such memory and makes no progress for as long, while others wait, is closed.
    /// Default 10 s.
    pub memory_wait: Duration,
    /// Most output that one client may leave unread, in bytes; a client with more is closed and
    /// counted. Output is sent as it is made, so that is the largest reply plus 1 MiB. Default 0:
    /// no limit but that of the share for replies.
    pub output_bytes_max: usize,
    /// Most keys that the server remembers for clients that track what they have cached (CLIENT
    /// TRACKING); beyond that clients are told that a key is invalid although it has not changed. 0
    /// for no limit but a sixteenth of the budget. Default 1,000,000, as in Redis.
    pub tracking_keys_max: usize,
    /// Where the memory of requests and replies is charged, as class Request. Default: a budget
    /// without a limit. Requests that are received, values that commands build and unread replies
    /// may take a quarter of it each: larger ones wait for each other, or are refused.
    pub budget: Arc<ByteBudget>,
    /// Where clients may make checkpoints (CHECKPOINT), each in a directory below this one. Default
    /// `None`: nowhere.
    pub checkpoints: Option<PathBuf>,
    /// The clock for expiry times; the store's own should be the same. Default: the system's.
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
    /// Checks every field; the error names the field, its value and what is allowed.
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

    /// Refuses an address that other machines reach, unless clients are authenticated: by a
    /// password, or by certificates.
    ///
    /// # Errors
    /// `InvalidArgument`, with what to do.
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
