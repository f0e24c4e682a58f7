//! Task of one connection: it reads, runs the complete commands, sends all their replies together,
//! and begins again.
//!
//! If the store answers within a microsecond, the other connections of the thread run what they
//! have received before anything is sent.
//!
//! The task ends when the client closes the connection or asks for it, after a protocol error,
//! after the idle timeout, or when the server stops. When the server stops, the task first runs the
//! commands that the client has sent. It closes the connection of three kinds of clients without
//! sending all replies:
//!
//! 1. A client that was asked to stop and takes no byte of its replies for [`STALL`].
//! 2. A client that holds memory of a [share](crate::memory) that other clients wait for, and makes
//!    no progress.
//! 3. A client that makes no progress for the idle timeout. Progress is a command, [`FREE_BYTES`]
//!    of one, or any part of a reply that the client takes.
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

/// Time after which a connection that is to end is closed, although its client takes no reply.
const STALL: Duration = Duration::from_millis(500);

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
    let mut connection =
        Connection { session, pipeline, stream, sends_late, since: None, received: 0 };
    if let Err(error) = connection.converse().await {
        tracing::debug!(client = connection.session.client.id, %error, "connection failed");
    }
    // This also sends the end of a TLS session, for which a client that does not read would make
    // the task wait.
    let _ = timeout(STALL, connection.stream.shutdown()).await;
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
            match ran {
                PipelineProgress::All => {}
                PipelineProgress::Early => continue,
                PipelineProgress::WaitsFor(bytes) => {
                    self.wait_to_reply(bytes).await;
                    continue;
                }
            }
            self.pipeline.tidy();
            if let Err(refusal) = self.wait_to_receive().await {
                return self.refuse_request(&refusal).await;
            }
            self.pipeline.make_room();
            self.note_buffers();
            if self.pipeline.should_wait(&self.session) {
                sleep(PRESSURE_PAUSE).await;
            }
            self.send_invalidations().await?;
            let stopping = self.session.client.is_stopping();
            let goes_on =
                if stopping { self.take_what_is_there().await? } else { self.receive().await? };
            if !goes_on {
                return Ok(());
            }
            let unread_bytes = self.pipeline.input.len() as u64;
            self.session.client.unread_bytes.store(unread_bytes, Ordering::Relaxed);
            self.pipeline.widen();
        }
    }

    /// Notes the sizes of the buffers, for CLIENT LIST and INFO.
    fn note_buffers(&self) {
        let (client, pipeline) = (&self.session.client, &self.pipeline);
        client.input_bytes.store(pipeline.input.capacity() as u64, Ordering::Relaxed);
        client.unread_bytes.store(pipeline.input.len() as u64, Ordering::Relaxed);
        client.reply_bytes.store(pipeline.reply.capacity() as u64, Ordering::Relaxed);
    }

    /// Sends invalidations that arrived while the connection waited. Later ones wake
    /// [`Connection::receive`].
    async fn send_invalidations(&mut self) -> io::Result<()> {
        while self.session.has_invalidations() && !self.session.closing.get() {
            self.pipeline.push_invalidations(&self.session);
            self.send().await?;
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

    /// Waits until the reply of the blocked command fits, or answers it with a refusal.
    async fn wait_to_reply(&mut self, bytes: u64) {
        self.pipeline.sent();
        let share = &self.session.shared.memory.outgoing;
        if bytes <= FREE_BYTES {
            return;
        }
        let held = tokio::select! {
            biased;
            held = share.hold(&mut self.pipeline.outgoing, bytes) => held,
            () = self.session.client.stopped() => Err(share.refusal(bytes)),
        };
        if let Err(refusal) = held {
            self.pipeline.give_up(&refusal);
        }
    }

    /// Waits for the memory that the incomplete command needs, or returns the reason for which it
    /// gets none.
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
        self.pipeline.reply.error(&refusal.line());
        self.send().await?;
        let mut dropped = vec![0; FREE_BYTES as usize];
        let rest =
            async { while self.stream.read(&mut dropped).await.is_ok_and(|read| read > 0) {} };
        tokio::select! {
            _ = timeout(LINGER, rest) => {}
            () = self.session.client.stopped() => {}
        }
        Ok(())
    }

    /// Sends the output, if there is any.
    async fn send(&mut self) -> io::Result<()> {
        let bytes = self.pipeline.reply.bytes();
        if bytes.is_empty() {
            return Ok(());
        }
        let (client, shared) = (&self.session.client, &self.session.shared);
        client.output_bytes.store(bytes.len() as u64, Ordering::Relaxed);
        // No other task writes this counter.
        if bytes.len() as u64 > client.reply_bytes_peak.load(Ordering::Relaxed) {
            client.reply_bytes_peak.store(bytes.len() as u64, Ordering::Relaxed);
        }
        // A socket takes almost every reply immediately. Therefore the first attempt prepares
        // nothing for a client that does not read.
        let sent = poll_once(|context| Pin::new(&mut self.stream).poll_write(context, bytes)).await;
        let (mut left, mut since) = (&bytes[taken(sent)?..], None);
        let holds = self.pipeline.outgoing.is_some();
        while !left.is_empty() {
            let sent = tokio::select! {
                biased;
                sent = self.stream.write(left) => sent?,
                failed = hindered(client, shared, holds, &mut since) => {
                    failed?;
                    continue;
                }
            };
            if sent == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            (left, since) = (&left[sent..], None);
        }
        // TLS may still hold the last record. A socket holds nothing.
        match poll_once(|context| Pin::new(&mut self.stream).poll_flush(context)).await {
            Some(flushed) => flushed?,
            None => tokio::select! {
                biased;
                flushed = self.stream.flush() => flushed?,
                () = stalled(client) => return Err(cut_off(shared)),
            },
        }
        client.output_bytes.store(0, Ordering::Relaxed);
        shared.add(Stat::OutputBytes, bytes.len() as u64);
        self.pipeline.reply.truncate(0);
        Ok(())
    }

    /// Waits for input, or until the connection is woken. It returns `false` at the end of the
    /// input.
    async fn receive(&mut self) -> io::Result<bool> {
        let (client, shared) = (&self.session.client, &self.session.shared);
        let (idle_timeout, holds) =
            (shared.settings.idle_timeout(), self.pipeline.incoming.is_some());
        if idle_timeout.is_some() || holds {
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
            () = kept_waiting(&shared.memory.incoming, holds, shared.options.memory_wait, self.since) => {
                Err(timed_out("it does not send the rest of a request, and others need memory"))
            }
        }
    }

    /// Reads the bytes that have arrived, without waiting, because the connection is to stop. It
    /// returns `false` if nothing has arrived.
    async fn take_what_is_there(&mut self) -> io::Result<bool> {
        // Without `unconstrained`, a task that has used up its budget would see no input.
        let read = tokio::task::unconstrained(self.stream.read_buf(&mut self.pipeline.input));
        let mut read = pin!(read);
        match poll_once(|context| read.as_mut().poll(context)).await {
            Some(read) => Ok(read? > 0),
            None => Ok(false),
        }
    }
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

/// The error of a connection whose client makes no progress.
fn timed_out(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, why)
}

/// Returns an error when a client that takes no output has to be closed. It returns without an
/// error when the connection is woken, and then the caller checks everything again. `since` is the
/// time of the client's last progress, or the time from which it was waited for.
async fn hindered(
    client: &Client,
    shared: &ServerState,
    holds: bool,
    since: &mut Option<Instant>,
) -> io::Result<()> {
    let since = *since.get_or_insert_with(Instant::now);
    if client.is_stopping() {
        sleep(STALL).await;
        return Err(cut_off(shared));
    }
    tokio::select! {
        () = client.woken() => Ok(()),
        () = idle(shared.settings.idle_timeout(), Some(since)) => Err(timed_out("it was idle")),
        () = kept_waiting(&shared.memory.outgoing, holds, shared.options.memory_wait, Some(since)) => {
            shared.add(Stat::OutputLimit, 1);
            Err(timed_out("it does not read, and others need memory for replies"))
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

/// Returns when the client was asked to stop and [`STALL`] has passed since.
async fn stalled(client: &Client) {
    client.stopped().await;
    sleep(STALL).await;
}
