//! Clients of a store that stalls or fails.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use archipelago_base::budget::ByteBudget;
use archipelago_base::{Error, ErrorKind, Result};
use archipelago_resp::mem_store::MemStore;
use archipelago_resp::store::{
    Databases, JointWrite, KeyRange, Keyspace, Op, PinnedSlice, Store, StoredValue, Visit,
};
use archipelago_resp::{Server, ServerOptions};

use crate::client::{Client, encode};

/// A store in memory whose writes and scans can be made to wait, whose writes can be made to fail,
/// and whose key `bad` cannot be read.
#[derive(Default)]
struct Faulty {
    records: MemStore,
    stalled: AtomicBool,
    /// Whether writes wait although [`Store::would_stall`] has not said so.
    writes_wait: AtomicBool,
    /// Whether every call that reads many keys waits.
    scans_stalled: AtomicBool,
    /// Whether a write or a scan has begun to wait.
    is_waiting: AtomicBool,
    /// Number of writes and scans that wait now.
    waiting: AtomicUsize,
    /// Keys that were read.
    read: Mutex<BTreeSet<Vec<u8>>>,
    refusing: Mutex<Option<Error>>,
    /// Whether a write that fails is executed nevertheless, as one is whose sync fails.
    executes_failed_writes: AtomicBool,
}

impl Faulty {
    fn wait_while(&self, stalled: &AtomicBool) {
        let mut waits = false;
        while stalled.load(Ordering::SeqCst) {
            if !std::mem::replace(&mut waits, true) {
                self.waiting.fetch_add(1, Ordering::SeqCst);
            }
            self.is_waiting.store(true, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(1));
        }
        if waits {
            self.waiting.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Waits until `key` is read.
    fn await_read(&self, key: &[u8]) {
        while !self.read.lock().unwrap().contains(key) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Store for Faulty {
    fn get(&self, key: &[u8]) -> Result<Option<StoredValue>> {
        if key == b"bad" {
            let file = std::path::Path::new("/data/000007.sst");
            return Err(Error::corrupt(file, 4096, "data block: wrong checksum"));
        }
        self.read.lock().unwrap().insert(key.to_vec());
        self.records.get(key)
    }

    fn multi_get(&self, keys: &[&[u8]]) -> Result<Vec<Option<PinnedSlice>>> {
        self.records.multi_get(keys)
    }

    fn write(&self, ops: &[Op<'_>]) -> Result<()> {
        self.wait_while(&self.stalled);
        self.wait_while(&self.writes_wait);
        if ops.iter().any(|op| matches!(op, Op::DeleteRange { .. })) {
            self.wait_while(&self.scans_stalled);
        }
        let refusal = self.refusing.lock().unwrap().clone();
        if refusal.is_none() || self.executes_failed_writes.load(Ordering::SeqCst) {
            self.records.write(ops)?;
        }
        refusal.map_or(Ok(()), Err)
    }

    fn version(&self, key: &[u8]) -> Result<Option<u64>> {
        self.records.version(key)
    }

    fn scan(&self, range: KeyRange<'_>, reverse: bool, visit: &mut Visit<'_>) -> Result<()> {
        self.wait_while(&self.scans_stalled);
        self.records.scan(range, reverse, visit)
    }

    fn approximate_count(&self) -> Result<u64> {
        self.wait_while(&self.scans_stalled);
        self.records.approximate_count()
    }

    fn keyspace(&self) -> Result<Keyspace> {
        self.wait_while(&self.scans_stalled);
        self.records.keyspace()
    }

    fn expired_keys(&self) -> u64 {
        0
    }

    fn info(&self) -> String {
        String::new()
    }

    fn would_stall(&self, _: bool) -> bool {
        self.stalled.load(Ordering::SeqCst)
    }
}

fn start() -> (Server, Arc<Faulty>) {
    let store = Arc::new(Faulty::default());
    // With one worker, a write that held it would delay every client.
    let options = ServerOptions { worker_threads: 1, ..ServerOptions::default() };
    (Server::start("127.0.0.1:0", Arc::clone(&store) as _, options).unwrap(), store)
}

#[test]
fn stalled_writes_do_not_hold_up_other_connections() {
    let (server, store) = start();
    let mut reader = Client::connect(&server);
    reader.expect(&[("SET there v", "+OK")]);
    store.stalled.store(true, Ordering::SeqCst);
    let mut writers: Vec<Client> = (0..20).map(|_| Client::connect(&server)).collect();
    for (n, writer) in writers.iter_mut().enumerate() {
        let key = format!("k{n}");
        let line = if n % 2 == 0 { vec!["SET", &key, "v"] } else { vec!["INCR", &key] };
        writer.send(&encode(&line).repeat(2));
    }
    for _ in 0..100 {
        reader.expect(&[("PING", "+PONG"), ("GET there", "$1 v")]);
    }
    store.stalled.store(false, Ordering::SeqCst);
    for (n, writer) in writers.iter_mut().enumerate() {
        let expected = if n % 2 == 0 { ["+OK", "+OK"] } else { [":1", ":2"] };
        assert_eq!([writer.reply(), writer.reply()], expected);
    }
    assert!(server.shutdown());
}

#[test]
fn writes_of_a_contended_key_hold_up_no_other_connection() {
    let (server, store) = start();
    let mut other = Client::connect(&server);
    other.expect(&[("SET there v", "+OK")]);
    store.writes_wait.store(true, Ordering::SeqCst);
    // A large write leaves the only worker, and waits in the store with the stripe of its key.
    let mut first = Client::connect(&server);
    first.send(&encode(&[&b"SET"[..], b"k", &vec![b'v'; 1 << 20]]));
    while !store.is_waiting.load(Ordering::SeqCst) {
        std::thread::sleep(Duration::from_millis(1));
    }
    let words: [&[&str]; 4] = [
        &["SET", "k", "small"],
        &["APPEND", "k", "x"],
        &["MSET", "k", "1", "l", "2"],
        &["DELRANGE", "[k", "(l"],
    ];
    let mut waiting = words.map(|words| {
        let mut client = Client::connect(&server);
        client.send_words(words);
        client
    });
    for _ in 0..100 {
        other.expect(&[("PING", "+PONG"), ("GET there", "$1 v")]);
    }
    store.writes_wait.store(false, Ordering::SeqCst);
    assert_eq!(first.reply(), "+OK");
    for client in &mut waiting {
        let reply = client.reply();
        assert!(!reply.starts_with('-'), "{reply}");
    }
    other.expect(&[("PING", "+PONG")]);
    assert!(server.shutdown());
}

#[test]
fn commands_over_many_keys_hold_up_no_other_connection() {
    let (server, store) = start();
    let mut reader = Client::connect(&server);
    reader.expect(&[("SET there v", "+OK")]);
    for (line, reply) in [
        ("SCAN 0", "*2 $1 0 *1 $5 there"),
        ("SCAN 0 MATCH x*", "*2 $1 0 *0"),
        ("KEYS *", "*1 $5 there"),
        ("RANDOMKEY", "$5 there"),
        ("RANGE - +", "*2 $5 there $1 v"),
        ("DBSIZE", ":1"),
        ("INFO keyspace", ""),
        ("DELRANGE [x (y", "+OK"),
        ("FLUSHDB", "+OK"),
        ("FLUSHALL", "+OK"),
    ] {
        reader.expect(&[("SET there v", "+OK")]);
        store.is_waiting.store(false, Ordering::SeqCst);
        store.scans_stalled.store(true, Ordering::SeqCst);
        let mut client = Client::connect(&server);
        client.send_words(&line.split(' ').collect::<Vec<_>>());
        while !store.is_waiting.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        // The commands hold the only worker no longer than it takes to leave it.
        reader.expect(&[("PING", "+PONG"), ("GET there", "$1 v")]);
        store.scans_stalled.store(false, Ordering::SeqCst);
        let told = client.reply();
        assert!(told.starts_with(reply), "{line}: {told}");
    }
    assert!(server.shutdown());
}

#[test]
fn errors_give_advice_and_change_nothing() {
    let (server, store) = start();
    let mut client = Client::connect(&server);
    client.expect(&[("SET n 1", "+OK")]);
    for (kind, code) in [
        (ErrorKind::ReadOnly, "-MISCONF read only: disk full"),
        (ErrorKind::Io, "-MISCONF i/o error: disk full"),
        (ErrorKind::Busy, "-TRYAGAIN busy: disk full"),
        (ErrorKind::InvalidArgument, "-ERR invalid argument: disk full"),
    ] {
        *store.refusing.lock().unwrap() = Some(Error::new(kind, "disk full"));
        // The reply to every SET of a batch is the error.
        client.send(&[encode(&["SET", "n", "5"]).repeat(3), encode(&["GET", "n"])].concat());
        assert_eq!([client.reply(), client.reply(), client.reply()], [code, code, code]);
        assert_eq!(client.reply(), "$1 1", "reads go on");
        for line in ["INCR n", "DEL n", "FLUSHDB", "MSET n 7", "EXPIRE n 5", "GETDEL n"] {
            assert_eq!(client.ask(line), code, "{line}");
        }
    }
    *store.refusing.lock().unwrap() = None;
    client.expect(&[
        ("INCR n", ":2"),
        (
            "GET bad",
            "-ERR corruption: /data/000007.sst: corrupt at offset 4096: data block: wrong checksum",
        ),
        ("PING", "+PONG"),
    ]);
}

#[test]
fn transaction_whose_write_fails_answers_one_error() {
    let (server, store) = start();
    let mut client = Client::connect(&server);
    client.expect(&[("MULTI", "+OK"), ("SET a 1", "+QUEUED"), ("INCR b", "+QUEUED")]);
    *store.refusing.lock().unwrap() = Some(Error::new(ErrorKind::ReadOnly, "the disk is gone"));
    // EXECABORT would promise that nothing was done. The server cannot know that after a failed
    // write, so the error is that of a single command.
    client.expect(&[("EXEC", "-MISCONF read only: the disk is gone")]);
    *store.refusing.lock().unwrap() = None;
    client.expect(&[("EXISTS a b", ":0"), ("PING", "+PONG")]);
}

#[test]
fn executed_transaction_whose_sync_fails_is_not_called_discarded() {
    let (server, store) = start();
    let mut client = Client::connect(&server);
    client.expect(&[("MULTI", "+OK"), ("SET a 1", "+QUEUED"), ("INCR b", "+QUEUED")]);
    *store.refusing.lock().unwrap() = Some(Error::new(ErrorKind::Io, "the sync failed"));
    store.executes_failed_writes.store(true, Ordering::SeqCst);
    client.expect(&[("EXEC", "-MISCONF i/o error: the sync failed"), ("MGET a b", "*2 $1 1 $1 1")]);
}

/// A server whose key `medium` has 100,000 bytes, and a client whose stalled write holds all memory
/// for values.
fn start_without_memory(memory_wait: Duration) -> (Server, Arc<Faulty>, Client) {
    let store = Arc::new(Faulty::default());
    let budget = ByteBudget::new(16 << 20);
    let options =
        ServerOptions { worker_threads: 2, budget, memory_wait, ..ServerOptions::default() };
    let server = Server::start("127.0.0.1:0", Arc::clone(&store) as _, options).unwrap();
    let mut writer = Client::connect(&server);
    writer.expect(&[("SETRANGE medium 99999 x", ":100000")]);
    store.stalled.store(true, Ordering::SeqCst);
    writer.send(&encode(&[&b"SET"[..], b"large", &vec![b'v'; 3 << 19]]));
    while !store.is_waiting.load(Ordering::SeqCst) {
        std::thread::sleep(Duration::from_millis(1));
    }
    (server, store, writer)
}

#[test]
fn transaction_waits_for_no_memory_while_it_holds_locks() {
    let (server, store, mut writer) = start_without_memory(Duration::from_secs(3600));
    let (mut client, mut other) = (Client::connect(&server), Client::connect(&server));
    let mut builder = Client::connect(&server);
    builder.expect(&[("MULTI", "+OK"), ("GET k", "+QUEUED"), ("SETRANGE k 1000000 x", "+QUEUED")]);
    builder.send(&encode(&["EXEC"]));
    store.await_read(b"k");
    client.expect(&[
        ("MULTI", "+OK"),
        ("SETRANGE small 9999 x", "+QUEUED"),
        ("EXPIRE medium 100", "+QUEUED"),
        ("PTTL medium", "+QUEUED"),
    ]);
    client.send(&encode(&["EXEC"]));
    store.await_read(b"small");
    // WATCH takes the locks of its keys.
    for _ in 0..50 {
        other.expect(&[("WATCH k small medium", "+OK"), ("TTL medium", ":-1"), ("UNWATCH", "+OK")]);
    }
    store.stalled.store(false, Ordering::SeqCst);
    assert_eq!(writer.reply(), "+OK");
    let reply = client.reply();
    assert!(reply.starts_with("*3 :10000 :1 :"), "{reply}");
    assert_eq!(builder.reply(), "*2 $-1 :1000001");
    assert!(client.ask("INFO memory").contains("request_memory_working:0 "));
    client.expect(&[
        ("STRLEN medium", ":100000"),
        ("MULTI", "+OK"),
        ("SETRANGE k 1000000 x", "+QUEUED"),
        ("COPY medium copy", "+QUEUED"),
        ("EXEC", "*2 :1000001 :1"),
    ]);
}

#[test]
fn transaction_builds_small_values_without_memory_of_the_share() {
    let (server, store, mut writer) = start_without_memory(Duration::from_secs(3600));
    let mut client = Client::connect(&server);
    client.expect(&[
        ("MULTI", "+OK"),
        (&format!("SET a {}", "t".repeat(40_000)), "+QUEUED"),
        (&format!("APPEND b {}", "t".repeat(15_000)), "+QUEUED"),
    ]);
    client.send(&encode(&["EXEC"]));
    // The write of EXEC follows its commands, and it waits as that of the writer does.
    while store.waiting.load(Ordering::SeqCst) < 2 {
        std::thread::sleep(Duration::from_millis(1));
    }
    store.stalled.store(false, Ordering::SeqCst);
    assert_eq!(writer.reply(), "+OK");
    assert_eq!(client.reply(), "*2 +OK :15000");
}

#[test]
fn transaction_that_waits_for_memory_in_vain_does_nothing() {
    let (server, store, mut writer) = start_without_memory(Duration::from_millis(50));
    let mut client = Client::connect(&server);
    client.expect(&[("MULTI", "+OK"), ("COPY medium copy", "+QUEUED")]);
    let reply = client.ask("EXEC");
    assert!(reply.starts_with("-EXECABORT Transaction discarded because of: OOM "), "{reply}");
    assert!(reply.contains("which others hold; try again"), "{reply}");
    store.stalled.store(false, Ordering::SeqCst);
    assert_eq!(writer.reply(), "+OK");
    client.expect(&[("EXISTS copy", ":0")]);
}

#[test]
fn failed_write_invalidates_its_key() {
    let (server, store) = start();
    let mut writer = Client::connect(&server);
    let mut reader = Client::resp3(&server);
    for line in ["SET k 1", "SET k 1 GET", "DEL k", "MSET k 1 l 2"] {
        *store.refusing.lock().unwrap() = None;
        writer.expect(&[("SET k 0", "+OK")]);
        reader.expect(&[("CLIENT TRACKING ON", "+OK"), ("GET k", "$1 0")]);
        *store.refusing.lock().unwrap() = Some(Error::new(ErrorKind::Io, "half written"));
        assert!(writer.ask(line).starts_with('-'), "{line}");
        assert_eq!(reader.reply(), ">2 $10 invalidate *1 $1 k", "{line}");
    }
}

#[test]
fn store_with_one_database_answers_as_a_cluster_node() {
    let (server, _store) = start();
    let mut client = Client::connect(&server);
    let copy = "-ERR Copying to another database is not allowed in cluster mode";
    client.expect(&[
        ("SET k v", "+OK"),
        ("SELECT 0", "+OK"),
        ("SELECT 1", "-ERR SELECT is not allowed in cluster mode"),
        ("SELECT 99", "-ERR SELECT is not allowed in cluster mode"),
        ("SELECT x", "-ERR value is not an integer or out of range"),
        ("MOVE k 1", "-ERR MOVE is not allowed in cluster mode"),
        ("SWAPDB 0 0", "-ERR SWAPDB is not allowed in cluster mode"),
        ("COPY k l DB 1", copy),
        ("COPY k l DB 0", ":1"),
        ("CONFIG GET databases", "*2 $9 databases $1 1"),
        ("FLUSHALL", "+OK"),
        ("DBSIZE", ":0"),
        ("MULTI", "+OK"),
        ("SET k v", "+QUEUED"),
        ("SELECT 1", "+QUEUED"),
        ("EXEC", "*2 +OK -ERR SELECT is not allowed in cluster mode"),
        ("GET k", "$1 v"),
    ]);
}

/// A database in memory among others. Writes to database 1 can be made to wait.
struct Beside {
    records: Arc<dyn Store>,
    index: usize,
    stalled: Arc<AtomicBool>,
    is_waiting: Arc<AtomicBool>,
}

impl Beside {
    fn wait_in(&self, index: usize) {
        while index == 1 && self.stalled.load(Ordering::SeqCst) {
            self.is_waiting.store(true, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Databases for Beside {
    fn database(&self, index: usize) -> Arc<dyn Store> {
        let records = self.records.databases().unwrap().database(index);
        let (stalled, is_waiting) = (Arc::clone(&self.stalled), Arc::clone(&self.is_waiting));
        Arc::new(Self { records, index, stalled, is_waiting })
    }

    fn write_joint(&self, change: &JointWrite<'_>) -> Result<()> {
        change.writes.iter().for_each(|(index, _)| self.wait_in(*index));
        self.records.databases().unwrap().write_joint(change)
    }
}

impl Store for Beside {
    fn databases(&self) -> Option<&dyn Databases> {
        Some(self)
    }

    fn get(&self, key: &[u8]) -> Result<Option<StoredValue>> {
        self.records.get(key)
    }

    fn multi_get(&self, keys: &[&[u8]]) -> Result<Vec<Option<PinnedSlice>>> {
        self.records.multi_get(keys)
    }

    fn write(&self, ops: &[Op<'_>]) -> Result<()> {
        self.wait_in(self.index);
        self.records.write(ops)
    }

    crate::records::pass_scans_to_records!();

    fn would_stall(&self, write: bool) -> bool {
        write && self.index == 1 && self.stalled.load(Ordering::SeqCst)
    }
}

#[test]
fn writes_to_a_stalled_database_delay_no_other_client() {
    let (stalled, is_waiting) = (Arc::new(AtomicBool::new(false)), Arc::default());
    let clock = archipelago_base::clock::SystemClock::shared();
    let store = Beside {
        records: Arc::new(MemStore::new(clock)),
        index: 0,
        stalled: Arc::clone(&stalled),
        is_waiting: Arc::clone(&is_waiting),
    };
    let options = ServerOptions { worker_threads: 1, ..ServerOptions::default() };
    let server = Server::start("127.0.0.1:0", Arc::new(store), options).unwrap();
    let mut other = Client::connect(&server);
    for line in ["COPY k l DB 1", "COPY k l DB 1 REPLACE", "MOVE k 1"] {
        other.expect(&[("SET k v", "+OK")]);
        is_waiting.store(false, Ordering::SeqCst);
        stalled.store(true, Ordering::SeqCst);
        let mut client = Client::connect(&server);
        client.send_words(&line.split(' ').collect::<Vec<_>>());
        while !is_waiting.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        other.expect(&[("PING", "+PONG"), ("GET k", "$1 v")]);
        stalled.store(false, Ordering::SeqCst);
        assert_eq!(client.reply(), ":1", "{line}");
    }
    other.expect(&[("GET k", "$-1"), ("SELECT 1", "+OK"), ("MGET k l", "*2 $1 v $1 v")]);
}
