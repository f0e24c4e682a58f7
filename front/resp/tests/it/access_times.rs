//! Commands that count as accesses of a key (OBJECT IDLETIME), and commands that do not.

use std::sync::Arc;
use std::time::Duration;

use archipelago_base::Result;
use archipelago_base::clock::ManualClock;
use archipelago_resp::mem_store::MemStore;
use archipelago_resp::store::{
    KeyRange, Keyspace, Op, PinnedSlice, Store, StoredValue, Unexecuted, Visit,
};
use archipelago_resp::{Server, ServerOptions};

use crate::client::{Client, START_MS, encode, on_each_store};

/// Time that passes before each command of a test.
const PAUSE: Duration = Duration::from_secs(60);

/// Idle time of a key in seconds. It may be up to two seconds too small.
fn idle_s(client: &mut Client, key: &str) -> u64 {
    let reply = client.ask(&format!("OBJECT IDLETIME {key}"));
    reply.strip_prefix(':').and_then(|number| number.parse().ok()).unwrap_or_else(|| {
        panic!("the idle time of {key} is {reply}");
    })
}

/// Whether `lines` count as an access of `key`. They are sent together.
#[track_caller]
fn counts(client: &mut Client, clock: &ManualClock, key: &str, lines: &[&str]) -> bool {
    clock.advance(PAUSE);
    let bytes = lines.iter().map(|line| encode(&line.split(' ').collect::<Vec<_>>()));
    client.send(&bytes.collect::<Vec<_>>().concat());
    for line in lines {
        let reply = client.reply();
        assert!(!reply.starts_with('-'), "{line}: {reply}");
    }
    match idle_s(client, key) {
        0 => true,
        idle => {
            assert!(idle >= PAUSE.as_secs() - 2, "{lines:?}: {idle}");
            false
        }
    }
}

#[test]
fn idle_time_is_zero_after_commands_that_use_the_value() {
    on_each_store(|server, clock| {
        let mut client = Client::connect(server);
        client.ask("SET k 1");
        for line in [
            "GET k",
            "SET k 1",
            "SET k 1 EX 1000000",
            "GETEX k",
            "APPEND k 2",
            "INCR k",
            "STRLEN k",
            "GETRANGE k 0 1",
            "SETRANGE k 0 3",
            "MGET other k",
            "MSET other 1 k 1",
            "SETBIT k 0 0",
            "BITCOUNT k",
            "EXPIRE k 1000000",
            "PERSIST k",
            "TOUCH k",
            "COPY k copied REPLACE",
        ] {
            assert!(counts(&mut client, clock, "k", &[line]), "{line}");
        }
        for lines in [&["GET other", "GET k"][..], &["SET other 1", "SET k 1", "SET k2 1"]] {
            assert!(counts(&mut client, clock, "k", lines), "{lines:?}");
        }
        assert!(counts(&mut client, clock, "moved", &["RENAME k moved"]));
        assert!(counts(&mut client, clock, "moved", &["MULTI", "GET moved", "EXEC"]));
    });
}

#[test]
fn idle_time_stays_after_commands_that_describe_a_key() {
    on_each_store(|server, clock| {
        let mut client = Client::connect(server);
        client.ask("SET k 1");
        clock.advance(PAUSE);
        for (nth, line) in [
            "EXISTS k",
            "TYPE k",
            "TTL k",
            "PTTL k",
            "EXPIRETIME k",
            "PEXPIRETIME k",
            "OBJECT ENCODING k",
            "OBJECT IDLETIME k",
            "MEMORY USAGE k",
            "WATCH k",
            "SCAN 0",
            "KEYS *",
            "RANGE - +",
            "GET other",
        ]
        .iter()
        .enumerate()
        {
            client.ask(line);
            clock.advance(PAUSE);
            let idle = idle_s(&mut client, "k");
            assert!(idle >= PAUSE.as_secs() * (nth as u64 + 2) - 2, "{line}: {idle}");
        }
    });
}

#[test]
fn no_touch_client_counts_writes_alone() {
    on_each_store(|server, clock| {
        let (mut client, mut other) = (Client::connect(server), Client::connect(server));
        client.expect(&[("SET k 1", "+OK"), ("CLIENT NO-TOUCH ON", "+OK")]);
        assert!(client.ask("CLIENT INFO").contains(" flags=T "));
        for lines in [&["GET k"][..], &["GET k", "GET k"], &["MGET k other"], &["STRLEN k"]] {
            assert!(!counts(&mut client, clock, "k", lines), "{lines:?}");
            client.ask("TOUCH k");
        }
        assert!(counts(&mut client, clock, "k", &["TOUCH k"]));
        assert!(counts(&mut client, clock, "k", &["SET k 1"]));
        assert!(counts(&mut other, clock, "k", &["GET k"]), "another client");
        assert!(!counts(&mut client, clock, "k", &["MULTI", "GET k", "EXEC"]));
        client.expect(&[("CLIENT NO-TOUCH OFF", "+OK")]);
        assert!(counts(&mut client, clock, "k", &["GET k"]));
        client.expect(&[("CLIENT NO-TOUCH ON", "+OK"), ("RESET", "+RESET")]);
        assert!(counts(&mut client, clock, "k", &["GET k"]));
        assert!(client.ask("CLIENT INFO").contains(" flags=N "));
    });
}

#[test]
fn idle_time_is_a_lower_bound_after_a_swap_of_databases() {
    let clock = Arc::new(ManualClock::new(START_MS));
    let (_db, server) = crate::client::over_engine(&Arc::default(), &clock);
    let mut client = Client::connect(&server);
    client.expect(&[("SELECT 3", "+OK")]);
    clock.advance(PAUSE);
    client.expect(&[("SET k 1", "+OK"), ("SET m 1", "+OK"), ("MOVE m 5", ":1")]);
    client.expect(&[("SWAPDB 3 4", "+OK"), ("SELECT 4", "+OK"), ("OBJECT IDLETIME k", ":0")]);
    client.expect(&[("SELECT 5", "+OK"), ("OBJECT IDLETIME m", ":0")]);
    client.expect(&[("OBJECT IDLETIME k", "$-1")]);
}

/// A store in memory that answers reads and writes without waiting.
struct Immediate(MemStore);

impl Store for Immediate {
    fn get(&self, key: &[u8]) -> Result<Option<StoredValue>> {
        self.0.get(key)
    }

    fn multi_get(&self, keys: &[&[u8]]) -> Result<Vec<Option<PinnedSlice>>> {
        self.0.multi_get(keys)
    }

    fn get_now(&self, keys: &[&[u8]], take: &mut dyn FnMut(Option<&[u8]>)) -> usize {
        for key in keys {
            let entry = self.0.get(key).unwrap();
            take(entry.as_ref().map(|entry| &entry.value[..]));
        }
        keys.len()
    }

    fn write_now(&self, ops: &[Op<'_>]) -> Unexecuted {
        self.0.write(ops).unwrap();
        Unexecuted::These(Vec::new())
    }

    fn write(&self, ops: &[Op<'_>]) -> Result<()> {
        self.0.write(ops)
    }

    fn scan(&self, range: KeyRange<'_>, reverse: bool, visit: &mut Visit<'_>) -> Result<()> {
        self.0.scan(range, reverse, visit)
    }

    fn approximate_count(&self) -> Result<u64> {
        self.0.approximate_count()
    }

    fn keyspace(&self) -> Result<Keyspace> {
        self.0.keyspace()
    }

    fn expired_keys(&self) -> u64 {
        0
    }

    fn info(&self) -> String {
        String::new()
    }

    fn overlaps_reads(&self) -> bool {
        true
    }
}

#[test]
fn batches_of_several_connections_count_as_accesses() {
    let clock = Arc::new(ManualClock::new(START_MS));
    let store = Arc::new(Immediate(MemStore::new(Arc::clone(&clock) as _)));
    let options = ServerOptions {
        clock: Arc::clone(&clock) as _,
        worker_threads: 1,
        ..ServerOptions::default()
    };
    let server = Server::start("127.0.0.1:0", store, options).unwrap();
    let mut clients: Vec<Client> = (0..8).map(|_| Client::connect(&server)).collect();
    for client in &mut clients {
        client.expect(&[("PING", "+PONG")]);
    }
    for (word, expected) in [("SET k v", "+OK"), ("GET k", "$1 v")] {
        clock.advance(PAUSE);
        let bytes = encode(&word.split(' ').collect::<Vec<_>>());
        clients.iter_mut().for_each(|client| client.send(&bytes));
        for client in &mut clients {
            assert_eq!(client.reply(), expected);
        }
        assert_eq!(idle_s(&mut clients[0], "k"), 0, "{word}");
    }
    assert!(counts(&mut clients[0], &clock, "k", &["GET k", "GET k", "GET other"]));
}
