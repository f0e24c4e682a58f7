//! The endpoint: HTTP over TCP for one path, `/metrics`.
//!
//! The program that opens a port owns the [`MetricsListener`], and then the [`MetricsServer`].
//! Nothing here is needed to serve data, so every limit is small and nothing waits for a client.
//! There is no TLS and no password: every program that reaches the port may read the figures, which
//! hold no keys and no values.
//!
//! Invariants:
//! 1. At most [`CONNECTIONS_MAX`] connections are served at a time. Further ones get status 503.
//! 2. A connection is closed after one answer, and [`DEADLINE`] after its begin at the latest,
//!    apart from the time that the collection takes.
//! 3. A request has at most 8 KiB.
//! 4. Figures are collected by one thread at a time, and at most ten times a second. Scrapes in
//!    between get the text of the last collection.
//! 5. A thread that serves a connection releases the state, with its sources, before the connection
//!    no longer counts as open. So the drop of a [`MetricsServer`], which waits until no connection
//!    is open, returns when no thread holds a source.
//!
//! Thread-safety: any thread may call any method.
//! Failure: a port that is taken is an error of the bind. Later failures are logged.
//! Cost: one thread that sleeps, and a thread per connection while it lasts.

mod request;

use std::io::{ErrorKind as IoErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use archipelago_base::clock::{Clock, SystemClock};
use archipelago_base::spawn::{Joiner, Spawn, SystemSpawn};
use archipelago_base::{Error, ErrorKind, Result};
use parking_lot::{Condvar, Mutex};
use socket2::SockRef;

use crate::catalogue::process as metric;
use crate::samples::{Samples, seconds};
use crate::sources::Source;
use request::{Asked, HEAD_BYTES_MAX, Status};

/// Connections that are served at the same time.
pub const CONNECTIONS_MAX: usize = 4;
/// Time within which a request must arrive, and within which its answer must be taken.
pub const DEADLINE: Duration = Duration::from_secs(5);
/// Time after which a waiting connection checks whether the endpoint ends.
const LOOK: Duration = Duration::from_millis(100);
/// Age up to which a collection is used again, in nanoseconds.
const COLLECTION_AGE_NS: u64 = 100_000_000;
/// Pause after a failed accept, for example without free file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Bytes that are read and discarded after an early answer, so that the client sees the answer.
const DISCARDED_BYTES_MAX: usize = 64 << 10;

/// The last collection.
#[derive(Default)]
struct Collection {
    taken_ns: u64,
    text: Arc<String>,
    /// Time that it took, in nanoseconds.
    took_ns: u64,
    count: u64,
}

struct EndpointState {
    listener: TcpListener,
    clock: Arc<dyn Clock>,
    sources: Vec<Source>,
    collection: Mutex<Collection>,
    stop: AtomicBool,
    open: Arc<OpenConnections>,
    answers: [AtomicU64; Status::ALL.len()],
    refused: AtomicU64,
}

/// The connections that are being served. It is separate from the state, because the thread of a
/// connection uses it after it has released the state.
#[derive(Default)]
struct OpenConnections {
    count: Mutex<usize>,
    closed: Condvar,
}

impl OpenConnections {
    fn count(&self) -> usize {
        *self.count.lock()
    }

    /// Counts one more connection until the returned guard is dropped.
    fn add(self: &Arc<Self>) -> Counted {
        *self.count.lock() += 1;
        Counted(Arc::clone(self))
    }

    fn wait_until_none(&self) {
        let mut count = self.count.lock();
        while *count > 0 {
            self.closed.wait(&mut count);
        }
    }
}

/// Counts an open connection until it is dropped.
struct Counted(Arc<OpenConnections>);

impl Drop for Counted {
    fn drop(&mut self) {
        *self.0.count.lock() -= 1;
        self.0.closed.notify_all();
    }
}

/// A port that is open and does not serve yet.
///
/// It is opened before a database, so that a start that must fail fails before it has changed
/// anything. Clients that connect before the endpoint serves wait.
#[derive(Debug)]
pub struct MetricsListener {
    listener: TcpListener,
    address: SocketAddr,
}

/// A running endpoint. Drop ends it, and waits until no source is used any more.
pub struct MetricsServer {
    state: Arc<EndpointState>,
    address: SocketAddr,
    accepting: Option<Joiner>,
}

impl std::fmt::Debug for MetricsServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "MetricsServer({})", self.address)
    }
}

impl MetricsListener {
    /// Opens the port of `address` (`HOST:PORT`; port 0 for a free one).
    ///
    /// # Errors
    /// `InvalidArgument` if the address does not resolve, and `Io` if the port is taken or the
    /// system refuses.
    pub fn bind(address: &str) -> Result<Self> {
        let advice = "write it as HOST:PORT, such as 127.0.0.1:9121";
        let mut found = address.to_socket_addrs().map_err(|source| {
            let what = format!("cannot resolve the address for metrics {address:?}: {advice}");
            Error::with_source(ErrorKind::InvalidArgument, what, source)
        })?;
        let resolved = found.next().ok_or_else(|| {
            Error::invalid(format!("the address for metrics {address:?} has no host: {advice}"))
        })?;
        let failed = |source| {
            let what = format!(
                "cannot listen for metrics on {resolved}: if another program has the port, choose \
                 another"
            );
            Error::with_source(ErrorKind::Io, what, source)
        };
        let listener = TcpListener::bind(resolved).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(Self { listener, address })
    }

    /// The address with the port that was chosen.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves the figures of `sources` from now on.
    ///
    /// # Errors
    /// `Io` if the system starts no thread.
    pub fn serve(self, sources: Vec<Source>) -> Result<MetricsServer> {
        self.serve_by(SystemClock::shared(), sources)
    }

    /// Serves the figures of `sources`. `clock` measures deadlines and the age of a collection.
    fn serve_by(self, clock: Arc<dyn Clock>, sources: Vec<Source>) -> Result<MetricsServer> {
        let state = Arc::new(EndpointState {
            listener: self.listener,
            clock,
            sources,
            collection: Mutex::default(),
            stop: AtomicBool::new(false),
            open: Arc::default(),
            answers: Default::default(),
            refused: AtomicU64::new(0),
        });
        let accepting = Arc::clone(&state);
        let thread = SystemSpawn.spawn("metrics", Box::new(move || accepting.accept()))?;
        Ok(MetricsServer { state, address: self.address, accepting: Some(thread) })
    }
}

impl MetricsServer {
    /// The address at which the endpoint listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Address of the metrics for a browser or a scraper.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}{}", self.address, request::PATH)
    }
}

impl Drop for MetricsServer {
    fn drop(&mut self) {
        self.state.stop.store(true, Ordering::SeqCst);
        // On Linux this ends the wait of the accepting thread.
        if let Err(error) = SockRef::from(&self.state.listener).shutdown(Shutdown::Both) {
            tracing::debug!(%error, "the port of the metrics was not shut");
        }
        if let Some(Err(error)) = self.accepting.take().map(Joiner::join) {
            tracing::error!(%error, "the thread of the metrics ended early");
        }
        self.state.open.wait_until_none();
    }
}

/// An open connection, as its thread holds it. Rust drops the fields in their order, so the state
/// is released before the connection no longer counts (invariant 5).
struct OpenConnection {
    state: Arc<EndpointState>,
    _counted: Counted,
}

impl OpenConnection {
    fn serve(&self, stream: &TcpStream) {
        self.state.serve(stream);
    }
}

impl EndpointState {
    fn is_ending(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }

    fn accept(self: &Arc<Self>) {
        let mut logged = false;
        while !self.is_ending() {
            match self.listener.accept() {
                Ok((stream, _)) => {
                    logged = false;
                    self.admit(stream);
                }
                Err(_) if self.is_ending() => return,
                Err(error) => {
                    if !std::mem::replace(&mut logged, true) {
                        tracing::warn!(%error, "the metrics accept no connection at the moment");
                    }
                    self.clock.sleep(ACCEPT_PAUSE);
                }
            }
        }
    }

    /// Serves a connection on a thread of its own, or refuses it.
    fn admit(self: &Arc<Self>, stream: TcpStream) {
        // Only this thread adds connections.
        if self.open.count() >= CONNECTIONS_MAX {
            self.refused.fetch_add(1, Ordering::Relaxed);
            self.count(Status::Unavailable);
            // The answer fits into the buffer of the socket, so that nothing waits.
            let _sent = stream
                .set_nonblocking(true)
                .and_then(|()| (&stream).write_all(&request::refusal(Status::Unavailable, true)));
            return;
        }
        let connection = OpenConnection { state: Arc::clone(self), _counted: self.open.add() };
        let body = Box::new(move || connection.serve(&stream));
        if let Err(error) = SystemSpawn.spawn("metrics-scrape", body) {
            tracing::warn!(%error, "a scrape of the metrics was refused");
        }
    }

    fn serve(&self, stream: &TcpStream) {
        let asked = match self.read_head(stream) {
            Ok(head) => request::parse(&head),
            Err(Some(status)) => Asked::Nothing { status, with_body: true },
            Err(None) => return,
        };
        let may_send_more = !matches!(asked, Asked::Metrics { .. });
        let answer = match asked {
            Asked::Metrics { with_body } => match self.collect() {
                Ok(text) => {
                    self.count(Status::Ok);
                    request::metrics(&text, with_body)
                }
                Err(error) => {
                    tracing::error!(%error, "a scrape of the metrics failed");
                    self.count(Status::InternalError);
                    request::refusal(Status::InternalError, with_body)
                }
            },
            Asked::Nothing { status, with_body } => {
                self.count(status);
                request::refusal(status, with_body)
            }
        };
        let is_sent = self
            .send(stream, &answer)
            .and_then(|()| stream.shutdown(Shutdown::Write).map_err(|error| error.kind()));
        if is_sent.is_ok() && may_send_more {
            self.discard(stream);
        }
    }

    fn count(&self, status: Status) {
        self.answers[status as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Reads a request up to the empty line. The error is the status to answer, or `None` if the
    /// client is gone.
    fn read_head(&self, stream: &TcpStream) -> std::result::Result<Vec<u8>, Option<Status>> {
        let mut head = Vec::new();
        let begun_ns = self.clock.now_ns();
        let mut part = [0; 2048];
        loop {
            match self.wait_read(stream, begun_ns, &mut part) {
                Ok(0) => return Err(None),
                Ok(bytes) => head.extend_from_slice(&part[..bytes]),
                Err(IoErrorKind::TimedOut) if !self.is_ending() => {
                    return Err(Some(Status::RequestTimeout));
                }
                Err(_) => return Err(None),
            }
            if let Some(len) = request::head_len(&head).filter(|len| *len <= HEAD_BYTES_MAX) {
                head.truncate(len);
                return Ok(head);
            }
            if head.len() >= HEAD_BYTES_MAX {
                return Err(Some(Status::HeadersTooLarge));
            }
            // A client that sends a few bytes at a time does not hold the connection.
            if self.is_late(begun_ns) {
                return Err(Some(Status::RequestTimeout));
            }
        }
    }

    /// Reads some bytes until the deadline of a connection that began at `begun_ns`.
    fn wait_read(
        &self,
        mut stream: &TcpStream,
        begun_ns: u64,
        part: &mut [u8],
    ) -> std::result::Result<usize, IoErrorKind> {
        stream.set_read_timeout(Some(LOOK)).map_err(|error| error.kind())?;
        loop {
            match stream.read(part) {
                Ok(bytes) => return Ok(bytes),
                Err(error) => self.go_on(error.kind(), begun_ns)?,
            }
        }
    }

    /// Whether a wait that ended with `error` continues. The error is the reason to give up.
    fn go_on(&self, error: IoErrorKind, begun_ns: u64) -> std::result::Result<(), IoErrorKind> {
        match error {
            IoErrorKind::Interrupted => Ok(()),
            IoErrorKind::WouldBlock | IoErrorKind::TimedOut => {
                let gives_up = self.is_late(begun_ns) || self.is_ending();
                if gives_up { Err(IoErrorKind::TimedOut) } else { Ok(()) }
            }
            other => Err(other),
        }
    }

    fn send(
        &self,
        mut stream: &TcpStream,
        mut answer: &[u8],
    ) -> std::result::Result<(), IoErrorKind> {
        let begun_ns = self.clock.now_ns();
        stream.set_write_timeout(Some(LOOK)).map_err(|error| error.kind())?;
        while !answer.is_empty() {
            match stream.write(answer) {
                Ok(0) => return Err(IoErrorKind::WriteZero),
                Ok(bytes) => answer = &answer[bytes..],
                Err(error) => self.go_on(error.kind(), begun_ns)?,
            }
            // A client that takes a few bytes at a time does not hold the connection.
            if self.is_late(begun_ns) {
                return Err(IoErrorKind::TimedOut);
            }
        }
        Ok(())
    }

    /// Whether the deadline of something that began at `begun_ns` has passed.
    fn is_late(&self, begun_ns: u64) -> bool {
        self.clock.now_ns().saturating_sub(begun_ns) >= DEADLINE.as_nanos() as u64
    }

    /// Reads what the client still sends, for a moment. The system would otherwise reset the
    /// connection, and the client might not see the answer.
    fn discard(&self, mut stream: &TcpStream) {
        let mut part = [0; 2048];
        let mut left = DISCARDED_BYTES_MAX;
        let begun_ns = self.clock.now_ns();
        let until_ns = begun_ns + 2 * LOOK.as_nanos() as u64;
        while left > 0 && self.clock.now_ns() < until_ns && !self.is_ending() {
            match stream.read(&mut part) {
                Ok(0) => return,
                Ok(bytes) => left = left.saturating_sub(bytes),
                Err(error) if error.kind() == IoErrorKind::WouldBlock => {}
                Err(_) => return,
            }
        }
    }

    /// The text of a collection that is at most [`COLLECTION_AGE_NS`] old.
    fn collect(&self) -> Result<Arc<String>> {
        let mut last = self.collection.lock();
        let begun_ns = self.clock.now_ns();
        if last.count > 0 && begun_ns.saturating_sub(last.taken_ns) < COLLECTION_AGE_NS {
            return Ok(Arc::clone(&last.text));
        }
        let mut samples = Samples::default();
        for source in &self.sources {
            source(&mut samples);
        }
        let count = last.count + 1;
        samples.set(&metric::COLLECTIONS, &[], count);
        samples.set(&metric::COLLECTION_TIME, &[], seconds(last.took_ns));
        self.own(&mut samples);
        last.text = Arc::new(samples.into_text()?);
        last.count = count;
        last.taken_ns = self.clock.now_ns();
        last.took_ns = last.taken_ns.saturating_sub(begun_ns);
        Ok(Arc::clone(&last.text))
    }

    /// Sets the figures of the endpoint itself.
    fn own(&self, samples: &mut Samples) {
        for (status, count) in Status::ALL.iter().zip(&self.answers) {
            samples.set(&metric::REQUESTS, &[status.code()], count.load(Ordering::Relaxed));
        }
        samples.set(&metric::REFUSED, &[], self.refused.load(Ordering::Relaxed));
        samples.set(&metric::LEFT_OUT, &[], samples.left_out());
    }
}

#[cfg(test)]
mod tests;
