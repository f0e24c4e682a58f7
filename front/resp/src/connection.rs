//! Task of one connection: it reads, runs the complete commands, sends all their replies together,
//! and begins again.
//!
//! If the store answers within a microsecond, the other connections of the thread run what they
//! have received before anything is sent.
//!
//! A client may send its whole pipeline before it reads a reply. Therefore the task also receives
//! while the client takes no output, up to a limit ([`Pipeline::make_room_ahead`]). At the limit it
//! waits for the client to read, or for memory.
//!
//! The task ends when the client closes the connection or asks for it, after a protocol error,
//! after the idle timeout, or when it is asked to stop. Then it first runs the commands that it has
//! received, and those that it reads within [`STALL`] after that without a pause. It drops what
//! arrives or waits later. It closes the connection of five kinds of clients without sending all
//! replies:
//!
//! 1. A client that was asked to stop and takes no byte of its replies for [`STALL`].
//! 2. A client that was asked to stop and has commands left after
//!    [`ServerOptions::shutdown_grace`](crate::ServerOptions::shutdown_grace).
//! 3. A client that holds memory of a [share](crate::memory) that other clients wait for, or for
//!    lack of which they were refused, and makes no progress.
//! 4. A client that makes no progress for the idle timeout. Progress is a command, [`FREE_BYTES`]
//!    of input, or any part of a reply that the client takes.
//! 5. A client whose unread output exceeds the soft limit for its time (CONFIG SET).
//!
//! Failure: an error of the socket ends this connection and nothing else. Cost: the stream is a
//! socket, or TLS over a socket ([`serve_tls`]). The compiler generates the code for each, so TLS
//! costs a plain connection nothing.

use std::future::{Future as _, pending, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use archipelago_base::budget::MemoryClass;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_rustls::TlsAcceptor;

use crate::clients::Client;
use crate::commands;
use crate::memory::{FREE_BYTES, Share};
use crate::pipeline::{Pipeline, PipelineProgress};
use crate::refusal::Refusal;
use crate::server_state::{ServerState, Stat};
use crate::session::Session;

/// Pause before the task reads more of a large request while memory is short.
const PRESSURE_PAUSE: Duration = Duration::from_millis(5);

/// Pause before the task checks again whether there is memory for more of a pipeline whose client
/// takes no reply.
const AHEAD_PAUSE: Duration = Duration::from_millis(100);

/// Time after which a connection that is to end is closed, although its client takes no reply. It
/// is also the time for which such a connection still reads what arrives without a pause, and the
/// time for which it drops what arrives after that.
const STALL: Duration = Duration::from_millis(500);

/// Size in bytes of the buffer for input that a connection drops before it is closed. A shutdown
/// may need one for each client.
const DROPPED_BYTES: usize = 4 << 10;

/// Time limit of the TLS handshake.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);

/// Approximate bytes that a connection holds for TLS besides its own buffers: keys, and one record
/// in each direction.
const TLS_BYTES: u64 = 32 << 10;

/// Time for which the task still reads a request that was refused, so that the client gets to read
/// the refusal.
const LINGER: Duration = Duration::from_secs(1);

/// Removes the client from the tracking table and the registry when the task ends, for whatever
/// reason.
struct Leave(Arc<ServerState>, Arc<Client>);

impl Drop for Leave {
    fn drop(&mut self) {
        self.0.tracking.end(&self.1);
        self.0.clients.leave(self.1.id);
    }
}

/// Serves `stream` until the connection ends.
pub(crate) async fn serve(shared: Arc<ServerState>, client: Arc<Client>, stream: TcpStream) {
    let leave = Leave(Arc::clone(&shared), Arc::clone(&client));
    serve_over(leave, client, stream).await;
}

async fn serve_over<S>(leave: Leave, client: Arc<Client>, stream: S)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let shared = Arc::clone(&leave.0);
    let session = Session::new(shared, client, commands::table());
    let pipeline = Pipeline::new(&session);
    let sends_late = session.shared.store.overlaps_reads();
    let mut connection = Connection {
        session,
        pipeline,
        stream,
        sends_late,
        is_ahead: false,
        stopping_since: None,
        stop_noticed: None,
        leaves_input: false,
        input_error: None,
        since: None,
        received: 0,
    };
    if let Err(error) = connection.converse().await {
        tracing::debug!(client = connection.session.client.id, %error, "connection failed");
    }
    connection.pipeline.release();
    // This also sends the end of a TLS session, for which a client that does not read would make
    // the task wait.
    let _ = timeout(STALL, connection.stream.shutdown()).await;
    if connection.leaves_input {
        // A close with unread bytes would discard replies that were sent.
        let _ = timeout(STALL, drop_input(&mut connection.stream, DROPPED_BYTES)).await;
    }
}

/// Serves TLS over `stream` until the connection ends.
pub(crate) async fn serve_tls(
    shared: Arc<ServerState>,
    client: Arc<Client>,
    stream: TcpStream,
    acceptor: TlsAcceptor,
) {
    let leave = Leave(Arc::clone(&shared), Arc::clone(&client));
    let _charge = shared.options.budget.hold(MemoryClass::Request, TLS_BYTES);
    let shaken = tokio::select! {
        shaken = timeout(HANDSHAKE_MAX, acceptor.accept(stream)) => shaken,
        () = client.stopped() => return,
    };
    match shaken {
        Ok(Ok(stream)) => serve_over(leave, client, stream).await,
        Ok(Err(error)) => shared.note_failed_handshake(client.socket.peer, &error.to_string()),
        Err(_) => shared.note_failed_handshake(client.socket.peer, "it took longer than 10 s"),
    }
}

struct Connection<S> {
    session: Session,
    pipeline: Pipeline,
    stream: S,
    /// Whether replies wait until the other connections of the thread have run their commands.
    sends_late: bool,
    /// Whether input has arrived while replies were sent. It runs before the next read.
    is_ahead: bool,
    /// Time from which the task has read only what arrives without a pause, because it is to stop.
    stopping_since: Option<Instant>,
    /// Time at which the task has noticed that it is to stop. Commands may be left then.
    stop_noticed: Option<Instant>,
    /// Whether the task ends before it has read all input.
    leaves_input: bool,
    /// Error of the input that occurred while replies were sent. It ends the task after the
    /// commands that arrived before it.
    input_error: Option<io::Error>,
    /// Time from which the task has waited for the client; `None` after progress of the client.
    since: Option<Instant>,
    /// Bytes received since that time.
    received: u64,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<S> {
    async fn converse(&mut self) -> io::Result<()> {
        loop {
            self.pipeline.push_invalidations(&self.session);
            let late = self.sends_late && self.session.shared.clients.are_several();
            self.is_ahead = false;
            let ran = self.pipeline.run(&self.session, late);
            if self.pipeline.has_consumed() {
                (self.since, self.received) = (None, 0);
            }
            if late && self.pipeline.has_output() {
                self.let_others_run().await;
            }
            self.pipeline.push_invalidations(&self.session);
            self.send().await?;
            if self.session.closing.get() {
                return Ok(());
            }
            if self.is_grace_over() {
                self.leaves_input = true;
                self.session.shared.cut_off.fetch_add(1, Ordering::Relaxed);
                return Ok(());
            }
            match ran {
                PipelineProgress::All => {}
                PipelineProgress::Early => continue,
                PipelineProgress::WaitsFor(bytes) => {
                    self.wait_to_reply(bytes).await;
                    continue;
                }
            }
            self.pipeline.tidy();
            if self.is_ahead {
                continue;
            }
            if let Err(refusal) = self.wait_to_receive().await {
                return self.refuse_request(&refusal).await;
            }
            self.pipeline.make_room();
            self.note_buffers();
            if self.pipeline.should_wait(&self.session) {
                sleep(PRESSURE_PAUSE).await;
            }
            self.send_invalidations().await?;
            if self.is_ahead {
                continue;
            }
            if let Some(error) = self.input_error.take() {
                return Err(error);
            }
            let stopping = self.session.client.is_stopping();
            let goes_on =
                if stopping { self.take_what_is_there().await? } else { self.receive().await? };
            if !goes_on {
                return Ok(());
            }
            let unread_bytes = self.pipeline.unread_bytes();
            self.session.client.unread_bytes.store(unread_bytes, Ordering::Relaxed);
            self.pipeline.widen();
        }
    }

    /// Whether the connection ends although commands may be left, because
    /// [`ServerOptions::shutdown_grace`](crate::ServerOptions::shutdown_grace) has passed since the
    /// first call that noticed that it is to stop.
    fn is_grace_over(&mut self) -> bool {
        if !self.session.client.is_stopping() {
            return false;
        }
        let grace = self.session.shared.options.shutdown_grace;
        self.stop_noticed.get_or_insert_with(Instant::now).elapsed() > grace
    }

    /// Notes the sizes of the buffers, for CLIENT LIST and INFO.
    fn note_buffers(&self) {
        let (client, pipeline) = (&self.session.client, &self.pipeline);
        client.input_bytes.store(pipeline.input.capacity() as u64, Ordering::Relaxed);
        client.unread_bytes.store(pipeline.unread_bytes(), Ordering::Relaxed);
        client.reply_bytes.store(pipeline.output.reply().capacity() as u64, Ordering::Relaxed);
    }

    /// Sends invalidations that arrived while the connection waited. Later ones wake
    /// [`Connection::receive`].
    async fn send_invalidations(&mut self) -> io::Result<()> {
        while self.session.has_invalidations() && !self.session.closing.get() {
            self.pipeline.push_invalidations(&self.session);
            self.send().await?;
            self.pipeline.sent();
            (self.since, self.received) = (None, 0);
        }
        Ok(())
    }

    /// Lets all other connections of this thread run what they have received. A client that waits
    /// for several of the connections is then woken once, and the connections execute their
    /// commands together. This pays only if running a command takes less time than waking a client.
    async fn let_others_run(&mut self) {
        tokio::task::yield_now().await;
        self.pipeline.finish(&self.session);
    }

    /// Waits until the reply of the blocked command fits, or answers it with a refusal. All waits
    /// of the command together last for the time of one wait.
    async fn wait_to_reply(&mut self, bytes: u64) {
        self.pipeline.sent();
        let share = &self.session.shared.memory.outgoing;
        if bytes <= FREE_BYTES {
            return;
        }
        let since = *self.pipeline.blocked_since.get_or_insert_with(Instant::now);
        let until = since + self.session.shared.options.memory_wait;
        let held = tokio::select! {
            biased;
            // The command may have got memory several times, and have needed more each time.
            () = sleep_until(until) => Err(share.refusal(bytes)),
            held = share.hold(self.pipeline.output.held_mut(), bytes) => held,
            () = self.session.client.stopped() => Err(share.refusal(bytes)),
        };
        if let Err(refusal) = held {
            self.pipeline.give_up(&self.session, refusal);
        }
    }

    /// Waits for the memory that the incomplete command needs. Returns a refusal of the command if
    /// the memory is never free.
    async fn wait_to_receive(&mut self) -> Result<(), Refusal> {
        let bytes = self.pipeline.incoming_bytes();
        if bytes == 0 {
            self.pipeline.incoming.shrink(0);
            return Ok(());
        }
        let share = &self.session.shared.memory.incoming;
        tokio::select! {
            biased;
            held = share.hold(&mut self.pipeline.incoming, bytes) => held,
            () = self.session.client.stopped() => Err(share.refusal(bytes)),
        }
    }

    /// Answers a request that is not read to its end, and discards the rest that the client sends.
    /// A close with unread bytes would discard the answer.
    async fn refuse_request(&mut self, refusal: &Refusal) -> io::Result<()> {
        self.session.shared.add(Stat::ErrorReplies, 1);
        self.pipeline.output.reply_mut().error(&refusal.line());
        self.send().await?;
        let rest = drop_input(&mut self.stream, FREE_BYTES as usize);
        tokio::select! {
            _ = timeout(LINGER, rest) => {}
            () = self.session.client.stopped() => {}
        }
        Ok(())
    }

    /// Sends the output, if there is any.
    async fn send(&mut self) -> io::Result<()> {
        let bytes = self.pipeline.output.reply().bytes();
        let len = bytes.len();
        if len == 0 {
            return Ok(());
        }
        let client = &self.session.client;
        client.output_bytes.store(len as u64, Ordering::Relaxed);
        // No other task writes this counter.
        if len as u64 > client.reply_bytes_peak.load(Ordering::Relaxed) {
            client.reply_bytes_peak.store(len as u64, Ordering::Relaxed);
        }
        // A socket takes almost every reply immediately. Therefore the first attempt prepares
        // nothing for a client that does not read.
        let sent = poll_once(|context| Pin::new(&mut self.stream).poll_write(context, bytes)).await;
        let sent = taken(sent)?;
        // TLS may still hold the last record. A socket holds nothing.
        let flushed = match sent < len {
            true => None,
            false => poll_once(|context| Pin::new(&mut self.stream).poll_flush(context)).await,
        };
        match flushed {
            Some(flushed) => flushed?,
            None => self.send_rest(sent).await?,
        }
        self.session.client.output_bytes.store(0, Ordering::Relaxed);
        self.session.shared.add(Stat::OutputBytes, len as u64);
        self.pipeline.sent();
        Ok(())
    }

    /// Sends the output after its first `sent` bytes, which the stream has taken already. While the
    /// client takes nothing, the task receives what the client sends. Otherwise a client that sends
    /// its whole pipeline first would wait for the server, and the server for the client.
    async fn send_rest(&mut self, mut sent: usize) -> io::Result<()> {
        let (client, shared) = (&self.session.client, &self.session.shared);
        let (mut since, mut received, mut has_input) = (None, 0, self.input_error.is_none());
        // Time from which the output has exceeded the soft limit.
        let mut exceeded_since = None;
        loop {
            let unread_bytes = self.pipeline.output.reply().len() - sent;
            let soft = shared.settings.soft_output_limit().filter(|soft| unread_bytes > soft.bytes);
            exceeded_since = soft.map(|_| exceeded_since.unwrap_or_else(Instant::now));
            let wants_input = has_input && !client.is_stopping();
            let receives = wants_input && self.pipeline.make_room_ahead(&self.session);
            let held = HeldShares {
                incoming: self.pipeline.incoming.is_some(),
                outgoing: self.pipeline.output.held().is_some(),
                transactions: self.session.transaction.holds_memory(),
            };
            let (stream, pipeline) = (&mut self.stream, &mut self.pipeline);
            let mut duplex = Duplex { stream, pipeline, sent, receives };
            let transfer = tokio::select! {
                biased;
                transfer = poll_fn(|context| duplex.poll(context)) => transfer?,
                checked = hindered(client, shared, held, &mut since) => {
                    checked?;
                    continue;
                }
                () = idle(soft.map(|soft| Duration::from_secs(soft.seconds)), exceeded_since) => {
                    return Err(over_soft_limit(client, shared, unread_bytes));
                }
                () = sleep(AHEAD_PAUSE), if wants_input && !receives => continue,
            };
            match transfer {
                Transfer::Flushed => return Ok(()),
                Transfer::Sent(0) => return Err(io::ErrorKind::WriteZero.into()),
                Transfer::Sent(bytes) => {
                    sent += bytes;
                    (since, received) = (None, 0);
                }
                Transfer::Received(bytes) => {
                    self.is_ahead = true;
                    shared.add(Stat::InputBytes, bytes as u64);
                    self.note_buffers();
                    received += bytes as u64;
                    if received > FREE_BYTES {
                        (since, received) = (None, 0);
                    }
                }
                Transfer::InputEnded(error) => {
                    has_input = false;
                    self.input_error = error;
                }
            }
        }
    }

    /// Waits for input, or until the connection is woken. It returns `false` at the end of the
    /// input.
    async fn receive(&mut self) -> io::Result<bool> {
        let (client, shared) = (&self.session.client, &self.session.shared);
        let (idle_timeout, holds) =
            (shared.settings.idle_timeout(), self.pipeline.incoming.is_some());
        let (has_transaction, wait) =
            (self.session.transaction.holds_memory(), shared.options.memory_wait);
        if idle_timeout.is_some() || holds || has_transaction {
            self.since.get_or_insert_with(Instant::now);
        }
        tokio::select! {
            biased;
            read = self.stream.read_buf(&mut self.pipeline.input) => {
                let read = read?;
                shared.add(Stat::InputBytes, read as u64);
                self.received += read as u64;
                if self.received > FREE_BYTES {
                    (self.since, self.received) = (None, 0);
                }
                Ok(read > 0)
            }
            () = client.woken() => Ok(true),
            () = idle(idle_timeout, self.since) => Ok(false),
            () = kept_waiting(&shared.memory.incoming, holds, wait, self.since) => {
                Err(timed_out("it does not send the rest of a request, and others need memory"))
            }
            () = made_refuse(&shared.memory.transactions, has_transaction, wait, self.since) => {
                Err(timed_out("it does not end a transaction, and others need memory for theirs"))
            }
        }
    }

    /// Reads the bytes that have arrived, without waiting, because the connection is to stop. It
    /// returns `false` if nothing has arrived. It also does so when [`STALL`] has passed since the
    /// first call, because a client that sends without a pause would never be closed otherwise.
    async fn take_what_is_there(&mut self) -> io::Result<bool> {
        if self.stopping_since.get_or_insert_with(Instant::now).elapsed() > STALL {
            self.leaves_input = true;
            return Ok(false);
        }
        // Without `unconstrained`, a task that has used up its budget would see no input.
        let read = tokio::task::unconstrained(self.stream.read_buf(&mut self.pipeline.input));
        let mut read = pin!(read);
        match poll_once(|context| read.as_mut().poll(context)).await {
            Some(read) => Ok(read? > 0),
            None => Ok(false),
        }
    }
}

/// Progress of a connection in one of its two directions.
enum Transfer {
    /// The stream has taken this number of bytes of the output.
    Sent(usize),
    /// The stream holds no bytes of the output back.
    Flushed,
    /// This number of bytes of input has arrived.
    Received(usize),
    /// No more input arrives, because it has ended, or because of this error. A later read would
    /// not return the error again in every case.
    InputEnded(Option<io::Error>),
}

/// Both directions of a connection whose client does not take all output immediately.
struct Duplex<'a, S> {
    stream: &'a mut S,
    pipeline: &'a mut Pipeline,
    /// Bytes of the output that the stream has taken.
    sent: usize,
    /// Whether input is received. The caller has made room for it.
    receives: bool,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Duplex<'_, S> {
    /// Sends output. It receives input only if the stream takes no output now.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Transfer>> {
        let left = &self.pipeline.output.reply().bytes()[self.sent..];
        let stream = Pin::new(&mut *self.stream);
        let sent = match left.is_empty() {
            true => stream.poll_flush(context).map_ok(|()| Transfer::Flushed),
            false => stream.poll_write(context, left).map_ok(Transfer::Sent),
        };
        if sent.is_ready() || !self.receives {
            return sent;
        }
        let read = pin!(self.stream.read_buf(&mut self.pipeline.input));
        read.poll(context).map(|read| {
            Ok(match read {
                Ok(0) => Transfer::InputEnded(None),
                Ok(bytes) => Transfer::Received(bytes),
                Err(error) => Transfer::InputEnded(Some(error)),
            })
        })
    }
}

/// Reads and drops input until it ends or fails.
async fn drop_input<S: AsyncRead + Unpin>(stream: &mut S, buffer_bytes: usize) {
    let mut dropped = vec![0; buffer_bytes];
    while stream.read(&mut dropped).await.is_ok_and(|read| read > 0) {}
}

/// Polls once and returns the result, or `None` if there is none yet. Then the caller has to poll
/// again, because the waker of this poll belongs to its task.
async fn poll_once<T>(mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>) -> Option<T> {
    poll_fn(|context| match poll(context) {
        Poll::Ready(result) => Poll::Ready(Some(result)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

/// Bytes that the first attempt has sent; 0 if it has no result yet.
fn taken(sent: Option<io::Result<usize>>) -> io::Result<usize> {
    match sent {
        None => Ok(0),
        Some(Ok(0)) => Err(io::ErrorKind::WriteZero.into()),
        Some(sent) => sent,
    }
}

/// The error of a connection whose client does not take its replies.
fn cut_off(shared: &ServerState) -> io::Error {
    shared.cut_off.fetch_add(1, Ordering::Relaxed);
    io::Error::new(io::ErrorKind::TimedOut, "the client does not read")
}

/// The error of a connection whose client leaves `unread_bytes` of output unread for too long.
fn over_soft_limit(client: &Client, shared: &ServerState, unread_bytes: usize) -> io::Error {
    shared.add(Stat::OutputLimit, 1);
    tracing::warn!(
        client = client.id,
        unread_bytes,
        "closed a client whose unread output exceeds the soft limit of client-output-buffer-limit \
         for its time: it must read its replies"
    );
    timed_out("its unread output exceeds the soft limit for too long")
}

/// The error of a connection whose client makes no progress.
fn timed_out(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, why)
}

/// Shares of which a connection holds memory while its client takes no output.
#[derive(Clone, Copy)]
struct HeldShares {
    incoming: bool,
    outgoing: bool,
    transactions: bool,
}

/// Returns an error when a client that takes no output has to be closed. It returns without an
/// error when the connection is woken, and then the caller checks everything again. `since` is the
/// time of the client's last progress, or the time from which it was waited for.
async fn hindered(
    client: &Client,
    shared: &ServerState,
    held: HeldShares,
    since: &mut Option<Instant>,
) -> io::Result<()> {
    let since = *since.get_or_insert_with(Instant::now);
    if client.is_stopping() {
        sleep(STALL).await;
        return Err(cut_off(shared));
    }
    let (memory, wait) = (&shared.memory, shared.options.memory_wait);
    tokio::select! {
        () = client.woken() => Ok(()),
        () = idle(shared.settings.idle_timeout(), Some(since)) => Err(timed_out("it was idle")),
        () = kept_waiting(&memory.outgoing, held.outgoing, wait, Some(since)) => {
            shared.add(Stat::OutputLimit, 1);
            Err(timed_out("it does not read, and others need memory for replies"))
        }
        () = kept_waiting(&memory.incoming, held.incoming, wait, Some(since)) => {
            Err(timed_out("it does not read, and others need memory for requests"))
        }
        () = made_refuse(&memory.transactions, held.transactions, wait, Some(since)) => {
            Err(timed_out("it does not read, and others need memory for transactions"))
        }
    }
}

/// Returns when `timeout` has passed since `since`. Without a timeout or a beginning it never
/// returns.
async fn idle(timeout: Option<Duration>, since: Option<Instant>) {
    match timeout.zip(since) {
        None => pending().await,
        Some((timeout, since)) => sleep_until(since + timeout).await,
    }
}

/// Returns when other clients wait for `share`, but not before `wait` has passed since `since`. It
/// never returns if the client holds nothing of the share.
async fn kept_waiting(share: &Share, holds: bool, wait: Duration, since: Option<Instant>) {
    if !holds {
        return pending().await;
    }
    idle(Some(wait), since).await;
    while !share.is_wanted() {
        sleep(wait / 8).await;
    }
}

/// Returns when `share` has refused other clients since `since`, but not before `wait` has passed
/// since then. It never returns if the client holds nothing of the share.
async fn made_refuse(share: &Share, holds: bool, wait: Duration, since: Option<Instant>) {
    let Some(since) = since.filter(|_| holds) else { return pending().await };
    idle(Some(wait), Some(since)).await;
    while !share.has_refused_since(since) {
        sleep(wait / 8).await;
    }
}
