//! A client that shows replies as they are on the wire, with each line end as one blank: the answer
//! of `GET` is `$1 v`. redis-protocol cuts the frames, so it also checks that every reply is well
//! formed.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use archipelago_base::clock::{Clock, ManualClock};
use archipelago_engine::db::{BackgroundMode, Components, Db};
use archipelago_engine::options::{DbOptions, WriteOptions};
use archipelago_env::mem::MemFs;
use archipelago_resp::engine_store::EngineStore;
use archipelago_resp::mem_store::MemStore;
use archipelago_resp::{Server, ServerOptions};

/// Start of the manual clock of [`start`]: 1,000,000 seconds after the epoch.
pub(crate) const START_MS: u64 = 1_000_000_000;

/// A server over memory with a manual clock.
pub(crate) fn start() -> (Server, Arc<ManualClock>) {
    start_with(|_| {})
}

/// Runs `test` against a server over memory and one over the engine.
pub(crate) fn on_each_store(test: impl Fn(&Server, &ManualClock)) {
    let (server, clock) = start();
    test(&server, &clock);
    let clock = Arc::new(ManualClock::new(START_MS));
    let (_db, server) = over_engine(&Arc::new(MemFs::new()), &clock);
    test(&server, &clock);
}

/// A server over an engine whose files are in `fs`, and its database.
pub(crate) fn over_engine(fs: &Arc<MemFs>, clock: &Arc<ManualClock>) -> (Db, Server) {
    over_engine_with(fs, clock, BackgroundMode::Threads)
}

/// The same, with a choice of the threads that run flushes and compactions.
pub(crate) fn over_engine_with(
    fs: &Arc<MemFs>,
    clock: &Arc<ManualClock>,
    background: BackgroundMode,
) -> (Db, Server) {
    let components = Components {
        fs: Arc::clone(fs) as _,
        clock: Arc::clone(clock) as _,
        background,
        ..Components::default()
    };
    let db = Db::open_with("/data", DbOptions::default(), components).unwrap();
    let store = Arc::new(EngineStore::new(db.clone(), WriteOptions::default()).unwrap());
    let options = ServerOptions {
        clock: Arc::clone(clock) as _,
        worker_threads: 2,
        ..ServerOptions::default()
    };
    (db, Server::start("127.0.0.1:0", store, options).unwrap())
}

/// Starts the server of [`start`] with other settings.
pub(crate) fn start_with(change: impl FnOnce(&mut ServerOptions)) -> (Server, Arc<ManualClock>) {
    start_at("127.0.0.1:0", change)
}

/// The same at another address.
pub(crate) fn start_at(
    listen: &str,
    change: impl FnOnce(&mut ServerOptions),
) -> (Server, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::new(START_MS));
    let shared: Arc<dyn Clock> = Arc::clone(&clock) as _;
    let mut options = ServerOptions {
        clock: Arc::clone(&shared),
        worker_threads: 2,
        shutdown_grace: Duration::from_secs(5),
        ..ServerOptions::default()
    };
    change(&mut options);
    let store = Arc::new(MemStore::new(shared));
    (Server::start(listen, store, options).unwrap(), clock)
}

/// A socket, or TLS over one.
trait Stream: Read + Write {}

impl<S: Read + Write> Stream for S {}

pub(crate) struct Client {
    stream: Box<dyn Stream>,
    buffer: Vec<u8>,
    resp3: bool,
}

/// A connection whose reads fail after a while instead of waiting for ever.
pub(crate) fn socket(addr: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(addr).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream
}

impl Client {
    pub(crate) fn connect(server: &Server) -> Self {
        Self::to(server.local_addr())
    }

    pub(crate) fn to(addr: SocketAddr) -> Self {
        Self::over(socket(addr))
    }

    /// A client that speaks over `stream`.
    pub(crate) fn over(stream: impl Read + Write + 'static) -> Self {
        Self { stream: Box::new(stream), buffer: Vec::new(), resp3: false }
    }

    /// A connection after `HELLO 3`.
    pub(crate) fn resp3(server: &Server) -> Self {
        let mut client = Self::connect(server);
        client.resp3 = true;
        assert!(client.ask("HELLO 3").starts_with("%7 "));
        client
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).and_then(|()| self.stream.flush()).unwrap();
    }

    /// Sends as long as the server accepts bytes. Returns whether it accepted all of them.
    pub(crate) fn try_send(&mut self, bytes: &[u8]) -> bool {
        self.stream.write_all(bytes).and_then(|()| self.stream.flush()).is_ok()
    }

    /// Sends a command of these words.
    pub(crate) fn send_words<W: AsRef<[u8]>>(&mut self, words: &[W]) {
        let bytes = encode(words);
        self.send(&bytes);
    }

    /// The next reply.
    pub(crate) fn reply(&mut self) -> String {
        self.try_reply().expect("a reply, not the end")
    }

    /// The next reply; `None` at the end of the stream.
    pub(crate) fn try_reply(&mut self) -> Option<String> {
        use redis_protocol::{resp2, resp3};
        loop {
            let cut = if self.resp3 {
                resp3::decode::complete::decode(&self.buffer).unwrap().map(|(_, len)| len)
            } else {
                resp2::decode::decode(&self.buffer).unwrap().map(|(_, len)| len)
            };
            if let Some(len) = cut {
                let raw: Vec<u8> = self.buffer.drain(..len).collect();
                let text = String::from_utf8_lossy(&raw).replace("\r\n", " ");
                return Some(text.trim_end_matches(' ').to_owned());
            }
            let mut piece = [0; 64 << 10];
            match self.stream.read(&mut piece) {
                Ok(0) => return None,
                Ok(len) => self.buffer.extend_from_slice(&piece[..len]),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("{error}"),
            }
        }
    }

    pub(crate) fn call<W: AsRef<[u8]>>(&mut self, words: &[W]) -> String {
        self.send_words(words);
        self.reply()
    }

    /// Sends the words of `line` and returns the reply.
    pub(crate) fn ask(&mut self, line: &str) -> String {
        self.call(&line.split(' ').collect::<Vec<_>>())
    }

    /// Sends each line and compares its reply.
    #[track_caller]
    pub(crate) fn expect(&mut self, script: &[(&str, &str)]) {
        for (line, expected) in script {
            assert_eq!(self.ask(line), *expected, "{line}");
        }
    }

    /// Waits until each of `count` clients has a reply of GET that does not fit into the buffers of
    /// its socket.
    pub(crate) fn await_stuck(&mut self, count: usize) {
        let is_stuck = |line: &str| line.contains(" cmd=get ") && !line.contains(" omem=0 ");
        while self.ask("CLIENT LIST").lines().filter(|line| is_stuck(line)).count() < count {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

pub(crate) fn encode<W: AsRef<[u8]>>(words: &[W]) -> Vec<u8> {
    let mut out = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        out.extend_from_slice(format!("${}\r\n", word.as_ref().len()).as_bytes());
        out.extend_from_slice(word.as_ref());
        out.extend_from_slice(b"\r\n");
    }
    out
}
