//! The connected clients: what CLIENT LIST shows, and how a connection is told to stop.
//!
//! Owned by the server; each connection shares its own [`Client`]. Invariant: a client is in the
//! registry from before its first command until its task has ended, so an empty registry means
//! that no command runs. Thread-safe; the registry's mutex is taken on connect, disconnect and
//! by CLIENT LIST only.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;

/// What a client has told about itself.
#[derive(Clone, Debug, Default)]
pub(crate) struct Names {
    /// CLIENT SETNAME.
    pub(crate) name: String,
    /// CLIENT SETINFO LIB-NAME.
    pub(crate) lib_name: String,
    /// CLIENT SETINFO LIB-VER.
    pub(crate) lib_version: String,
}

/// One connection, as others see it.
pub(crate) struct Client {
    pub(crate) id: u64,
    pub(crate) peer: SocketAddr,
    pub(crate) local: SocketAddr,
    pub(crate) names: Mutex<Names>,
    pub(crate) connected_ms: u64,
    /// When its last commands ran, Unix milliseconds.
    pub(crate) active_ms: AtomicU64,
    pub(crate) commands: AtomicU64,
    pub(crate) input_bytes: AtomicU64,
    pub(crate) output_bytes: AtomicU64,
    pub(crate) version: AtomicI64,
    /// Commands that a transaction has queued; -1 without one.
    pub(crate) queued: AtomicI64,
    /// Watched keys.
    pub(crate) watched: AtomicUsize,
    stopping: AtomicBool,
    stop: Notify,
}

impl Client {
    /// Tells the connection to finish what it has read and to close.
    pub(crate) fn ask_to_stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        self.stop.notify_one();
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// Returns when the connection is told to stop; at once if it was before.
    pub(crate) async fn stopped(&self) {
        self.stop.notified().await;
    }

    /// The client as a line of CLIENT LIST.
    pub(crate) fn line(&self, now_ms: u64) -> String {
        let names = self.names.lock().clone();
        let mut line = String::new();
        let seconds_since = |then: u64| now_ms.saturating_sub(then) / 1000;
        // Writing to a string does not fail.
        let _ = write!(
            line,
            "id={} addr={} laddr={} name={} age={} idle={} flags=N db=0 multi={} watch={} qbuf={} omem={} \
             tot-cmds={} user=default resp={} lib-name={} lib-ver={}",
            self.id,
            self.peer,
            self.local,
            names.name,
            seconds_since(self.connected_ms),
            seconds_since(self.active_ms.load(Ordering::Relaxed)),
            self.queued.load(Ordering::Relaxed),
            self.watched.load(Ordering::Relaxed),
            self.input_bytes.load(Ordering::Relaxed),
            self.output_bytes.load(Ordering::Relaxed),
            self.commands.load(Ordering::Relaxed),
            self.version.load(Ordering::Relaxed),
            names.lib_name,
            names.lib_version,
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

/// All connections.
#[derive(Default)]
pub(crate) struct Clients {
    registry: Mutex<Registry>,
    /// How many there are, for who need not know exactly.
    count: AtomicUsize,
    emptied: Notify,
}

/// Why a connection was not let in.
pub(crate) enum NotLetIn {
    /// As many as allowed are connected.
    Full,
    /// The server is shutting down.
    Closed,
}

impl Clients {
    /// Enters a connection, unless `max` are there already.
    pub(crate) fn enter(
        &self,
        (peer, local): (SocketAddr, SocketAddr),
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
            peer,
            local,
            names: Mutex::default(),
            connected_ms: now_ms,
            active_ms: AtomicU64::new(now_ms),
            commands: AtomicU64::new(0),
            input_bytes: AtomicU64::new(0),
            output_bytes: AtomicU64::new(0),
            version: AtomicI64::new(2),
            queued: AtomicI64::new(-1),
            watched: AtomicUsize::new(0),
            stopping: AtomicBool::new(false),
            stop: Notify::new(),
        });
        registry.clients.insert(client.id, Arc::clone(&client));
        self.count.store(registry.clients.len(), Ordering::Relaxed);
        Ok(client)
    }

    /// Takes a connection out.
    pub(crate) fn leave(&self, id: u64) {
        let mut registry = self.registry.lock();
        registry.clients.remove(&id);
        self.count.store(registry.clients.len(), Ordering::Relaxed);
        if registry.clients.is_empty() {
            self.emptied.notify_waiters();
        }
    }

    /// Whether there is more than one.
    pub(crate) fn are_several(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 1
    }

    pub(crate) fn len(&self) -> usize {
        self.registry.lock().clients.len()
    }

    /// Every connection, oldest first.
    pub(crate) fn all(&self) -> Vec<Arc<Client>> {
        self.registry.lock().clients.values().map(Arc::clone).collect()
    }

    /// Lets nobody in any more and asks all to stop.
    pub(crate) fn close(&self) {
        let mut registry = self.registry.lock();
        registry.closed = true;
        for client in registry.clients.values() {
            client.ask_to_stop();
        }
    }

    /// Returns when nobody is connected.
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
