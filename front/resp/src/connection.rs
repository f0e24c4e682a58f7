//! The task of one connection: read, run what is complete, send all replies at once, again. Where the store answers within a microsecond, the other connections of
//! the thread run what they have received before anything is sent.
//!
//! It ends when the client closes or asks to, after a protocol error, on an idle timeout, or when
//! the server stops; then it first runs what the client had already sent. A failure of the socket
//! ends this connection and nothing else.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::clients::Client;
use crate::pipeline::Pipeline;
use crate::session::Session;
use crate::shared::{Shared, Stat};

/// Pause before more of a large request is read while memory is short.
const PRESSURE_PAUSE: Duration = Duration::from_millis(5);

/// A timeout that is none.
const NEVER: Duration = Duration::from_secs(365 * 24 * 3600);

/// Takes the client out of the registry, however the task ends.
struct Leave(Arc<Shared>, u64);

impl Drop for Leave {
    fn drop(&mut self) {
        self.0.clients.leave(self.1);
    }
}

/// Serves `stream` until it ends.
pub(crate) async fn serve(shared: Arc<Shared>, client: Arc<Client>, stream: TcpStream) {
    let _leave = Leave(Arc::clone(&shared), client.id);
    // A socket without it still works, only slower.
    let _ = stream.set_nodelay(true);
    let session = Session::new(shared, client);
    let pipeline = Pipeline::new(&session);
    let sends_late = session.shared.store.overlaps_reads();
    let mut connection = Connection { session, pipeline, stream, sends_late };
    if let Err(error) = connection.converse().await {
        tracing::debug!(client = connection.session.client.id, %error, "connection failed");
    }
    let _ = connection.stream.shutdown().await;
}

struct Connection {
    session: Session,
    pipeline: Pipeline,
    stream: TcpStream,
    /// Whether replies wait for other connections' requests.
    sends_late: bool,
}

impl Connection {
    async fn converse(&mut self) -> io::Result<()> {
        loop {
            let late = self.sends_late && self.session.shared.clients.are_several();
            let more = self.pipeline.run(&self.session, late);
            if late && self.pipeline.has_output() {
                self.let_others_run().await;
            }
            self.send().await?;
            if self.session.closing.get() {
                return Ok(());
            }
            if more {
                continue;
            }
            self.pipeline.make_room();
            let input_bytes = self.pipeline.input.capacity() as u64;
            self.session.client.input_bytes.store(input_bytes, Ordering::Relaxed);
            if self.pipeline.should_wait(&self.session) {
                tokio::time::sleep(PRESSURE_PAUSE).await;
            }
            let stopping = self.session.client.is_stopping();
            let goes_on =
                if stopping { self.take_what_is_there()? } else { self.receive().await? };
            if !goes_on {
                return Ok(());
            }
            self.pipeline.widen();
        }
    }

    /// Replies leave when all connections of this thread that have received something have run it: a client that waits for several of
    /// them is woken once, and not by each; and what they have in common is done together. Only where running takes less time than waking.
    async fn let_others_run(&mut self) {
        tokio::task::yield_now().await;
        self.pipeline.finish(&self.session);
    }

    /// Sends the output, if there is any.
    async fn send(&mut self) -> io::Result<()> {
        let bytes = self.pipeline.reply.bytes();
        if bytes.is_empty() {
            return Ok(());
        }
        let (client, shared) = (&self.session.client, &self.session.shared);
        client.output_bytes.store(bytes.len() as u64, Ordering::Relaxed);
        self.stream.write_all(bytes).await?;
        client.output_bytes.store(0, Ordering::Relaxed);
        shared.add(Stat::OutputBytes, bytes.len() as u64);
        self.pipeline.reply.truncate(0);
        Ok(())
    }

    /// Waits for input. `false`: there will be none.
    async fn receive(&mut self) -> io::Result<bool> {
        let (client, shared) = (&self.session.client, &self.session.shared);
        let idle = shared.options.idle_timeout;
        tokio::select! {
            biased;
            read = self.stream.read_buf(&mut self.pipeline.input) => {
                let read = read?;
                shared.add(Stat::InputBytes, read as u64);
                Ok(read > 0)
            }
            () = client.stopped() => Ok(true),
            () = tokio::time::sleep(idle.unwrap_or(NEVER)), if idle.is_some() => Ok(false),
        }
    }

    /// On a stop: takes what has arrived, without waiting. `false`: nothing.
    fn take_what_is_there(&mut self) -> io::Result<bool> {
        match self.stream.try_read_buf(&mut self.pipeline.input) {
            Ok(read) => Ok(read > 0),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error),
        }
    }
}
