//! The server: its runtime, its listener and its shutdown.
//!
//! The program that starts a server owns it. The interface is synchronous. The server has a tokio
//! runtime of its own, so it must not be started, stopped or dropped inside another runtime.
//! Dropping it shuts it down.
//!
//! Thread-safety: any thread may use a [`ShutdownHandle`]. Failure: a port that is taken and
//! settings that are out of range are errors of the start. Later, failures of accepting are logged.

use std::future::Future;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use archipelago_base::budget::ByteBudget;
use archipelago_base::{Error, ErrorKind, Result};
use archipelago_env::descriptors;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use crate::clients::{NotLetIn, Socket};
use crate::commands;
use crate::connection;
use crate::figures::ServerMonitor;
use crate::log_limit::LogLimit;
use crate::options::ServerOptions;
use crate::server_state::{ServerState, Stat};
use crate::store::Store;
use crate::tls;
use crate::tracking::UPKEEP_PERIOD;

/// Number of connections that the kernel queues until they are accepted.
const BACKLOG: u32 = 4096;

/// Pause after a failed accept, for example without free file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// Interval in nanoseconds at which failures to accept are logged at most once.
const ACCEPT_LOG_NS: u64 = 10_000_000_000;

/// A running server.
pub struct Server {
    shared: Arc<ServerState>,
    local_addr: SocketAddr,
    /// `None` after the shutdown.
    running: Option<(Runtime, JoinHandle<()>)>,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Server({})", self.local_addr)
    }
}

/// Handle with which any thread can ask a server to end.
#[derive(Clone)]
pub struct ShutdownHandle(Arc<ServerState>);

impl std::fmt::Debug for ShutdownHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ShutdownHandle")
    }
}

impl ShutdownHandle {
    /// Makes [`Server::wait`] return, now or when it is called.
    pub fn request(&self) {
        self.0.shutdown_request.send();
    }
}

fn failed(what: String) -> impl FnOnce(io::Error) -> Error {
    move |source| Error::with_source(ErrorKind::Io, what, source)
}

/// A port that the server listens on without serving yet.
///
/// It is created before a store is opened or created. So a start that must fail (the port is taken,
/// a setting is out of range) fails before it has changed anything. Clients that connect before the
/// server serves wait. Dropping it closes their connections.
pub struct Listening {
    runtime: Runtime,
    listener: TcpListener,
    local_addr: SocketAddr,
    options: ServerOptions,
    tls: Option<TlsAcceptor>,
}

impl std::fmt::Debug for Listening {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Listening({})", self.local_addr)
    }
}

impl Listening {
    /// Charges the memory of requests and replies to `budget`, in the place of the budget of the
    /// options.
    #[must_use]
    pub fn with_budget(mut self, budget: Arc<ByteBudget>) -> Self {
        self.options.budget = budget;
        self
    }

    /// Serves `store` from now on.
    #[must_use]
    pub fn serve(self, store: Arc<dyn Store>) -> Server {
        let Self { runtime, listener, local_addr, options, tls } = self;
        let shared =
            Arc::new(ServerState::new(store, options, local_addr.port(), commands::list()));
        let accepting = runtime.spawn(accept(listener, tls, Arc::clone(&shared)));
        runtime.spawn(keep_up_tracking(Arc::clone(&shared)));
        tracing::info!(%local_addr, "RESP server is up");
        Server { shared, local_addr, running: Some((runtime, accepting)) }
    }
}

impl Server {
    /// Listens on `listen` (`HOST:PORT`; port 0 for a free one) and serves `store` from threads of
    /// its own. Returns as soon as clients can connect.
    ///
    /// # Errors
    /// Those of [`Server::listen`].
    pub fn start(listen: &str, store: Arc<dyn Store>, options: ServerOptions) -> Result<Self> {
        Ok(Self::listen(listen, options)?.serve(store))
    }

    /// Listens on `listen` (`HOST:PORT`; port 0 for a free one) and starts the threads, without
    /// serving yet.
    ///
    /// # Errors
    /// `InvalidArgument` for settings out of range, an address that does not resolve, files for TLS
    /// that cannot be used, and an address that other machines reach if clients are not
    /// authenticated. `Io` if the port is taken or the operating system refuses.
    pub fn listen(listen: &str, mut options: ServerOptions) -> Result<Listening> {
        options.validate()?;
        fit_clients(&mut options);
        let addr = resolve(listen)?;
        options.check_address(addr)?;
        let tls = options.tls.as_ref().map(tls::acceptor).transpose()?;
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder.enable_all().thread_name("resp");
        if options.worker_threads > 0 {
            builder.worker_threads(options.worker_threads);
        }
        let runtime =
            builder.build().map_err(failed("cannot start the server's threads".to_owned()))?;
        let listener = runtime
            .block_on(async { bind(addr, options.tcp_keepalive) })
            .map_err(failed(format!("cannot listen on {addr}")))?;
        let local_addr =
            listener.local_addr().map_err(failed(format!("cannot listen on {addr}")))?;
        Ok(Listening { runtime, listener, local_addr, options, tls })
    }

    /// The address on which it listens, with the port that was chosen.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Number of connected clients.
    #[must_use]
    pub fn clients(&self) -> usize {
        self.shared.clients.len()
    }

    /// A handle that makes [`Server::wait`] return.
    #[must_use]
    pub fn shutdown_handle(&self) -> ShutdownHandle {
        ShutdownHandle(Arc::clone(&self.shared))
    }

    /// A handle that takes figures of the server.
    #[must_use]
    pub fn monitor(&self) -> ServerMonitor {
        ServerMonitor::new(&self.shared)
    }

    /// Blocks until a client sends SHUTDOWN or a [`ShutdownHandle`] is used. The server continues
    /// until [`Server::shutdown`].
    pub fn wait(&self) {
        self.wait_or(std::future::pending::<()>());
    }

    /// Calls `make` in the context of the server's runtime. For example, `make` creates tokio's
    /// signal streams before clients learn that the server is up.
    pub fn within<T>(&self, make: impl FnOnce() -> T) -> T {
        let _within = self.running.as_ref().map(|(runtime, _)| runtime.enter());
        make()
    }

    /// Like [`Server::wait`], but returns also when `other` is ready, for example a signal. `other`
    /// runs in the runtime of the server.
    pub fn wait_or(&self, other: impl Future<Output = ()>) {
        if let Some((runtime, _)) = &self.running {
            runtime.block_on(async {
                tokio::select! {
                    () = self.shared.shutdown_request.received() => {}
                    () = other => {}
                }
            });
        }
    }

    /// Stops accepting, lets every connection finish the commands that it has received and send
    /// their replies, closes the connections, and ends the threads. It closes a connection early if
    /// its client takes nothing for half a second, or if it is not done within
    /// [`ServerOptions::shutdown_grace`]. Returns whether no connection was closed early.
    pub fn shutdown(mut self) -> bool {
        self.stop()
    }

    fn stop(&mut self) -> bool {
        let Some((runtime, accepting)) = self.running.take() else { return true };
        let grace = self.shared.options.shutdown_grace;
        let cut_off = || self.shared.cut_off.load(Ordering::Relaxed);
        let cut_off_before = cut_off();
        accepting.abort();
        self.shared.clients.close();
        let emptied = runtime.block_on(async {
            let empty = self.shared.clients.wait_until_empty();
            timeout(grace, empty).await.is_ok()
        });
        let left = self.shared.clients.len() as u64 + cut_off() - cut_off_before;
        if left > 0 {
            tracing::warn!(
                left,
                "connections were closed before their clients had read all replies"
            );
        }
        runtime.shutdown_timeout(Duration::from_secs(1));
        emptied && left == 0
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The address that `listen` (`HOST:PORT`) names. If it names several, it is the first one.
///
/// # Errors
/// `InvalidArgument` if it names none.
pub fn resolve(listen: &str) -> Result<SocketAddr> {
    let advice = "write it as HOST:PORT, such as 127.0.0.1:6379";
    let mut addrs = listen.to_socket_addrs().map_err(|source| {
        let what = format!("cannot resolve the listen address {listen:?}: {advice}");
        Error::with_source(ErrorKind::InvalidArgument, what, source)
    })?;
    let none = || Error::invalid(format!("the listen address {listen:?} has no host: {advice}"));
    addrs.next().ok_or_else(none)
}

/// Connections inherit the options of the listening socket, which saves system calls per
/// connection.
fn bind(addr: SocketAddr, keepalive: Option<Duration>) -> io::Result<TcpListener> {
    let socket = if addr.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    socket.set_nodelay(true)?;
    if let Some(silence) = keepalive {
        // The kernel notices a vanished client after twice that time, as in Redis.
        let again = (silence / 3).max(Duration::from_secs(1));
        let keepalive = TcpKeepalive::new().with_time(silence).with_interval(again).with_retries(3);
        SockRef::from(&socket).set_tcp_keepalive(&keepalive)?;
    }
    socket.bind(addr)?;
    socket.listen(BACKLOG)
}

/// Lowers the number of clients if the limit of open files requires it.
fn fit_clients(options: &mut ServerOptions) {
    let limit = descriptors::limit();
    let most = descriptors::clients_max(limit);
    if options.clients_max > most {
        tracing::warn!(
            wanted = options.clients_max,
            "at most {most} clients, because the process may open {limit} files: raise `ulimit -n`"
        );
        options.clients_max = most;
    }
}

/// Notifies clients that track keys of expiry, and keeps the table of tracked keys small. It waits
/// while no client tracks keys.
async fn keep_up_tracking(shared: Arc<ServerState>) {
    loop {
        shared.tracking.must_keep_up().await;
        tokio::time::sleep(UPKEEP_PERIOD).await;
        while shared.tracking.keep_up(shared.now_ms()) {
            tokio::task::yield_now().await;
        }
    }
}

async fn accept(listener: TcpListener, tls: Option<TlsAcceptor>, shared: Arc<ServerState>) {
    let (mut spare, failures_log) = (take_spare(), LogLimit::new(ACCEPT_LOG_NS));
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => admit(&shared, tls.as_ref(), stream, peer).await,
            Err(error) => {
                if let Some(failures) = failures_log.note(shared.options.clock.now_ns()) {
                    tracing::warn!(%error, failures, "cannot accept connections: if descriptors are exhausted, raise `ulimit -n` or lower --clients-max");
                }
                if is_exhausted(&error) && spare.take().is_some() {
                    // The spare descriptor is free now, so the client gets an error instead of
                    // silence.
                    if let Ok(Ok((stream, _))) = timeout(ACCEPT_PAUSE, listener.accept()).await {
                        refuse(&shared, stream).await;
                    }
                    spare = take_spare();
                }
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
        if spare.is_none() {
            spare = take_spare();
        }
    }
}

/// A descriptor that is closed to accept and refuse a client when no other is free.
fn take_spare() -> Option<TcpSocket> {
    TcpSocket::new_v4().ok()
}

fn is_exhausted(error: &io::Error) -> bool {
    // These are EMFILE and ENFILE, for which the standard library has no kinds.
    matches!(error.raw_os_error(), Some(24 | 23))
}

/// Tells a client that too many clients are connected, and closes its connection.
async fn refuse(shared: &ServerState, mut stream: TcpStream) {
    shared.add(Stat::Rejected, 1);
    if shared.options.tls.is_some() {
        // Before the handshake no text can be sent.
        return;
    }
    // The line fits into the empty buffer of the socket, so this does not wait for the client.
    let _ = stream.write_all(b"-ERR max number of clients reached\r\n").await;
}

async fn admit(
    shared: &Arc<ServerState>,
    tls: Option<&TlsAcceptor>,
    stream: TcpStream,
    peer: SocketAddr,
) {
    let local = stream.local_addr().unwrap_or(peer);
    let socket = Socket { peer, local, descriptor: stream.as_raw_fd() };
    match shared.clients.enter(socket, shared.now_ms(), shared.settings.clients_max()) {
        Ok(client) => {
            shared.add(Stat::Connections, 1);
            shared.note_clients(shared.clients.len() as u64);
            let shared = Arc::clone(shared);
            match tls.cloned() {
                None => tokio::spawn(connection::serve(shared, client, stream)),
                Some(tls) => tokio::spawn(connection::serve_tls(shared, client, stream, tls)),
            };
        }
        Err(NotLetIn::Full) => refuse(shared, stream).await,
        Err(NotLetIn::Closed) => {}
    }
}
