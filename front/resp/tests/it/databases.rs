//! SELECT, MOVE, SWAPDB, FLUSHDB, and commands that depend on the selected database.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use archipelago_base::clock::ManualClock;
use archipelago_engine::db::{Components, Db};
use archipelago_engine::key::KeyRange;
use archipelago_engine::options::{DbOptions, WriteOptions};
use archipelago_env::mem::MemFs;
use archipelago_resp::engine_store::EngineStore;
use archipelago_resp::{Server, ServerOptions};

use crate::client::{Client, START_MS, encode, on_each_store, over_engine};

const OUT_OF_RANGE: &str = "-ERR DB index is out of range";
const NOT_AN_INT: &str =
    "-ERR value is out of range, value must between -2147483648 and 2147483647";

#[test]
fn databases_are_separate_keyspaces() {
    on_each_store(|server, _clock| {
        let mut client = Client::connect(server);
        client.expect(&[
            ("MSET a zero b zero", "+OK"),
            ("SELECT 15", "+OK"),
            ("GET a", "$-1"),
            ("EXISTS a b", ":0"),
            ("MGET a b c d e", "*5 $-1 $-1 $-1 $-1 $-1"),
            ("RANDOMKEY", "$-1"),
            ("DBSIZE", ":0"),
            ("SCAN 0", "*2 $1 0 *0"),
            ("DEL a", ":0"),
            ("DELRANGE - +", "+OK"),
            ("FLUSHDB", "+OK"),
            ("APPEND a fifteen", ":7"),
            ("GET a", "$7 fifteen"),
            ("KEYS *", "*1 $1 a"),
            ("RANGE - +", "*2 $1 a $7 fifteen"),
            ("RANDOMKEY", "$1 a"),
            ("DBSIZE", ":1"),
            ("SELECT 0", "+OK"),
            ("MGET a b", "*2 $4 zero $4 zero"),
            ("DELRANGE - +", "+OK"),
            ("DBSIZE", ":0"),
            ("SELECT 15", "+OK"),
            ("DBSIZE", ":1"),
        ]);
        // A new connection begins in database 0.
        Client::connect(server).expect(&[("DBSIZE", ":0")]);
    });
}

#[test]
fn unknown_database_index_is_refused_as_in_redis() {
    on_each_store(|server, _clock| {
        let mut client = Client::connect(server);
        let not_an_integer = "-ERR value is not an integer or out of range";
        client.expect(&[
            ("SELECT 3", "+OK"),
            ("SELECT 16", OUT_OF_RANGE),
            ("SELECT -1", OUT_OF_RANGE),
            ("SELECT x", not_an_integer),
            ("SELECT 2147483648", NOT_AN_INT),
            ("SELECT", "-ERR wrong number of arguments for 'select' command"),
            ("MOVE k 16", OUT_OF_RANGE),
            ("MOVE k x", not_an_integer),
            ("MOVE k 3", "-ERR source and destination objects are the same"),
            ("COPY k l DB 16", OUT_OF_RANGE),
            ("COPY k k DB 3", "-ERR source and destination objects are the same"),
            ("SWAPDB x 1", "-ERR invalid first DB index"),
            ("SWAPDB 1 2147483648", "-ERR invalid second DB index"),
            ("SWAPDB 0 16", OUT_OF_RANGE),
            ("SWAPDB -1 0", OUT_OF_RANGE),
            ("CONFIG GET databases", "*2 $9 databases $2 16"),
        ]);
        assert!(client.ask("CLIENT INFO").contains(" db=3 "), "a refusal changes nothing");
        assert!(Client::connect(server).ask("CLIENT LIST").contains(" db=3 "));
        client.expect(&[("RESET", "+RESET")]);
        assert!(client.ask("CLIENT INFO").contains(" db=0 "));
    });
}

#[test]
fn pipeline_writes_to_the_database_selected_before() {
    on_each_store(|server, _clock| {
        let mut client = Client::connect(server);
        let lines = ["SET k zero", "SELECT 1", "SET k one", "GET k", "SELECT 0", "GET k"];
        let words = lines.map(|line| encode(&line.split(' ').collect::<Vec<_>>()));
        client.send(&words.concat());
        let replies = lines.map(|_| client.reply());
        assert_eq!(replies, ["+OK", "+OK", "+OK", "$3 one", "+OK", "$4 zero"]);
    });
}

#[test]
fn transaction_continues_in_the_database_that_it_selects() {
    on_each_store(|server, _clock| {
        let mut client = Client::connect(server);
        let mut other = Client::connect(server);
        client.expect(&[
            ("MULTI", "+OK"),
            ("SET k zero", "+QUEUED"),
            ("SELECT 2", "+QUEUED"),
            ("GET k", "+QUEUED"),
            ("SET k two", "+QUEUED"),
            ("SELECT 16", "+QUEUED"),
            ("GET k", "+QUEUED"),
            ("DBSIZE", "+QUEUED"),
        ]);
        other.expect(&[("GET k", "$-1")]);
        client.expect(&[
            ("EXEC", &format!("*7 +OK +OK $-1 +OK {OUT_OF_RANGE} $3 two :1")),
            ("GET k", "$3 two"),
        ]);
        assert!(client.ask("CLIENT INFO").contains(" db=2 "));
        other.expect(&[("GET k", "$4 zero")]);
        // A transaction that is discarded or aborted selects nothing.
        client.expect(&[
            ("MULTI", "+OK"),
            ("SELECT 0", "+QUEUED"),
            ("DISCARD", "+OK"),
            ("WATCH k", "+OK"),
            ("SET k again", "+OK"),
            ("MULTI", "+OK"),
            ("SELECT 0", "+QUEUED"),
            ("EXEC", "*-1"),
            ("GET k", "$5 again"),
        ]);
    });
}

#[test]
fn watch_is_of_a_key_in_its_database() {
    on_each_store(|server, _clock| {
        let mut client = Client::connect(server);
        let mut other = Client::connect(server);
        other.expect(&[("SELECT 7", "+OK"), ("SET k seven", "+OK")]);
        // Neither the existing key nor the absent one belongs to database 7.
        client.expect(&[("SET k zero", "+OK"), ("WATCH k absent", "+OK")]);
        other.expect(&[("SET k new", "+OK"), ("SET absent new", "+OK"), ("DEL absent", ":1")]);
        client.expect(&[("MULTI", "+OK"), ("GET k", "+QUEUED"), ("EXEC", "*1 $4 zero")]);
        // The watches are of two databases, and EXEC runs in a third one.
        for (database, result) in [("0", "*-1"), ("7", "*-1"), ("5", "*1 +PONG")] {
            client.expect(&[("SELECT 0", "+OK"), ("WATCH k", "+OK")]);
            client.expect(&[("SELECT 7", "+OK"), ("WATCH k", "+OK"), ("SELECT 9", "+OK")]);
            other.expect(&[(&format!("SELECT {database}"), "+OK"), ("SET k changed", "+OK")]);
            client.expect(&[("MULTI", "+OK"), ("PING", "+QUEUED"), ("EXEC", result)]);
        }
    });
}

#[test]
fn swapdb_wakes_watches_of_keys_in_either_database() {
    on_each_store(|server, _clock| {
        let mut client = Client::connect(server);
        let mut other = Client::connect(server);
        client.expect(&[("SET here v", "+OK"), ("SELECT 1", "+OK"), ("SET there v", "+OK")]);
        for (database, key, result) in [
            ("0", "here", "*-1"),
            ("0", "there", "*-1"),
            ("0", "nowhere", "*1 +PONG"),
            ("1", "here", "*-1"),
            ("1", "there", "*-1"),
            ("2", "here", "*1 +PONG"),
        ] {
            // The second swap restores the order.
            client.expect(&[
                (&format!("SELECT {database}"), "+OK"),
                (&format!("WATCH {key}"), "+OK"),
            ]);
            other.expect(&[("SWAPDB 0 1", "+OK"), ("SWAPDB 1 0", "+OK"), ("SWAPDB 2 2", "+OK")]);
            client.expect(&[("MULTI", "+OK"), ("PING", "+QUEUED"), ("EXEC", result)]);
        }
    });
}

#[test]
fn move_takes_value_and_expiry_along() {
    on_each_store(|server, clock| {
        let mut client = Client::connect(server);
        client.expect(&[
            ("SET k v PX 5000", "+OK"),
            ("MOVE k 3", ":1"),
            ("GET k", "$-1"),
            ("MOVE k 3", ":0"),
            ("SET k again", "+OK"),
            ("MOVE k 3", ":0"),
            ("GET k", "$5 again"),
            ("SELECT 3", "+OK"),
            ("GET k", "$1 v"),
            ("PTTL k", ":5000"),
            ("MULTI", "+OK"),
            ("MOVE k 4", "+QUEUED"),
            ("EXISTS k", "+QUEUED"),
            ("SELECT 4", "+QUEUED"),
            ("PTTL k", "+QUEUED"),
            ("EXEC", "*4 :1 :0 +OK :5000"),
        ]);
        // The expired key of the target does not prevent the move.
        clock.advance(Duration::from_secs(5));
        client.expect(&[("GET k", "$-1"), ("SELECT 0", "+OK"), ("MOVE k 4", ":1")]);
        client.expect(&[("SELECT 4", "+OK"), ("GET k", "$5 again"), ("TTL k", ":-1")]);
    });
}

#[test]
fn copy_reaches_another_database() {
    on_each_store(|server, _clock| {
        let mut client = Client::connect(server);
        client.expect(&[
            ("SET k v EX 9", "+OK"),
            ("COPY k k DB 2", ":1"),
            ("COPY k k DB 2", ":0"),
            ("SET k new", "+OK"),
            ("COPY k k DB 2 REPLACE", ":1"),
            ("COPY k l DB 2", ":1"),
            ("EXISTS l", ":0"),
            ("SELECT 2", "+OK"),
            ("MGET k l", "*2 $3 new $3 new"),
            ("TTL k", ":-1"),
        ]);
    });
}

#[test]
fn swapdb_is_seen_by_all_connections_immediately() {
    on_each_store(|server, clock| {
        let mut client = Client::connect(server);
        let mut other = Client::connect(server);
        client.expect(&[("SET k zero PX 1000", "+OK"), ("SELECT 6", "+OK"), ("SET k six", "+OK")]);
        other.expect(&[("GET k", "$4 zero"), ("SWAPDB 0 6", "+OK"), ("GET k", "$3 six")]);
        client.expect(&[("GET k", "$4 zero"), ("PTTL k", ":1000"), ("SET l v", "+OK")]);
        other.expect(&[("KEYS *", "*1 $1 k"), ("SWAPDB 6 0", "+OK"), ("KEYS *", "*2 $1 k $1 l")]);
        clock.advance(Duration::from_secs(1));
        other.expect(&[("KEYS *", "*1 $1 l"), ("SWAPDB 0 11", "+OK"), ("DBSIZE", ":0")]);
        client.expect(&[("SELECT 11", "+OK"), ("KEYS *", "*1 $1 l")]);
    });
}

#[test]
fn swapdb_that_waits_for_its_sync_holds_up_no_worker() {
    let fs = Arc::new(MemFs::new());
    let components = Components { fs: Arc::clone(&fs) as _, ..Components::default() };
    let db = Db::open_with("/data", DbOptions::default(), components).unwrap();
    let store = Arc::new(EngineStore::new(db, WriteOptions::default()).unwrap());
    let options = ServerOptions { worker_threads: 1, ..ServerOptions::default() };
    let server = Server::start("127.0.0.1:0", store, options).unwrap();
    let mut reader = Client::connect(&server);
    reader.expect(&[("SET k zero", "+OK"), ("SELECT 1", "+OK"), ("SET k one", "+OK")]);
    let mut swapper = Client::connect(&server);
    // This creates the family of the order.
    swapper.expect(&[("SWAPDB 0 1", "+OK"), ("SWAPDB 0 1", "+OK")]);
    let (held, is_waiting) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicBool::new(false)));
    let (gate, waits) = (Arc::clone(&held), Arc::clone(&is_waiting));
    fs.on_sync(Arc::new(move |_, _| {
        while gate.load(Ordering::SeqCst) {
            waits.store(true, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(1));
        }
    }));
    swapper.send_words(&["SWAPDB", "0", "1"]);
    while !is_waiting.load(Ordering::SeqCst) {
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut other = Client::connect(&server);
    reader.expect(&[("GET k", "$4 zero"), ("MGET k", "*1 $4 zero")]);
    other.expect(&[("GET k", "$3 one"), ("PING", "+PONG")]);
    let mut writer = Client::connect(&server);
    writer.send_words(&["SET", "k", "later"]);
    other.expect(&[("GET k", "$3 one"), ("PING", "+PONG")]);
    held.store(false, Ordering::SeqCst);
    assert_eq!([swapper.reply(), writer.reply()], ["+OK", "+OK"]);
    other.expect(&[("GET k", "$5 later")]);
}

#[test]
fn swapdb_in_a_transaction_applies_to_later_commands() {
    on_each_store(|server, _clock| {
        let mut client = Client::connect(server);
        let mut other = Client::connect(server);
        client.expect(&[
            ("SET k zero", "+OK"),
            ("MULTI", "+OK"),
            ("SET before swap", "+QUEUED"),
            ("SWAPDB 0 1", "+QUEUED"),
            ("GET k", "+QUEUED"),
            ("SET k behind", "+QUEUED"),
            ("SWAPDB 1 2", "+QUEUED"),
            ("SELECT 2", "+QUEUED"),
            ("MGET k before", "+QUEUED"),
            ("FLUSHDB", "+QUEUED"),
            ("SET last 1", "+QUEUED"),
        ]);
        other.expect(&[("KEYS *", "*1 $1 k")]);
        let replies = "*9 +OK +OK $-1 +OK +OK +OK *2 $4 zero $4 swap +OK +OK";
        client.expect(&[("EXEC", replies), ("KEYS *", "*1 $4 last")]);
        other.expect(&[("RANGE - +", "*2 $1 k $6 behind"), ("SELECT 1", "+OK"), ("DBSIZE", ":0")]);
    });
}

#[test]
fn clients_that_track_are_notified_of_moves_and_swaps() {
    on_each_store(|server, _clock| {
        let mut writer = Client::connect(server);
        let mut reader = Client::resp3(server);
        writer.expect(&[("SET k v", "+OK")]);
        reader.expect(&[("CLIENT TRACKING ON", "+OK")]);
        let key = ">2 $10 invalidate *1 $1 k";
        for (line, reply, told) in [
            ("MOVE k 1", ":1", key),
            ("SWAPDB 0 1", "+OK", ">2 $10 invalidate _"),
            ("SWAPDB 0 2", "+OK", ">2 $10 invalidate _"),
            ("COPY k k DB 3", ":0", ""),
            ("FLUSHALL", "+OK", ">2 $10 invalidate _"),
        ] {
            assert!(!reader.ask("GET k").starts_with('-'));
            writer.expect(&[(line, reply)]);
            if !told.is_empty() {
                assert_eq!(reader.reply(), told, "{line}");
            }
        }
    });
}

#[test]
fn flushdb_clears_one_database_and_flushall_all() {
    on_each_store(|server, _clock| {
        let mut client = Client::connect(server);
        let fill = |client: &mut Client| {
            for database in ["0", "1", "15"] {
                client.expect(&[(&format!("SELECT {database}"), "+OK"), ("SET k v", "+OK")]);
            }
        };
        let sizes = |client: &mut Client| {
            ["0", "1", "15"].map(|database| {
                client.expect(&[(&format!("SELECT {database}"), "+OK")]);
                client.ask("DBSIZE")
            })
        };
        fill(&mut client);
        client.expect(&[("SELECT 1", "+OK"), ("FLUSHDB SYNC", "+OK")]);
        assert_eq!(sizes(&mut client), [":1", ":0", ":1"]);
        client.expect(&[("SELECT 9", "+OK"), ("FLUSHALL ASYNC", "+OK"), ("FLUSHALL", "+OK")]);
        assert_eq!(sizes(&mut client), [":0", ":0", ":0"]);
        fill(&mut client);
        client.expect(&[("MULTI", "+OK"), ("FLUSHALL", "+QUEUED"), ("SET k v", "+QUEUED")]);
        client.expect(&[("EXEC", "*2 +OK +OK")]);
        assert_eq!(sizes(&mut client), [":0", ":0", ":1"]);
    });
}

#[test]
fn info_has_a_line_of_each_database_with_keys() {
    on_each_store(|server, _clock| {
        let mut client = Client::connect(server);
        client.expect(&[("SET k v", "+OK"), ("SELECT 3", "+OK"), ("MSET k v l v", "+OK")]);
        client.expect(&[("PEXPIRE k 4000", ":1"), ("SELECT 14", "+OK")]);
        let info = client.ask("INFO keyspace");
        let lines = "db0:keys=1,expires=0,avg_ttl=0 db3:keys=2,expires=1,avg_ttl=4000";
        assert!(info.ends_with(&format!("# Keyspace {lines}")), "{info}");
    });
}

#[test]
fn keys_of_database_three_expire_as_those_of_database_zero() {
    on_each_store(|server, clock| {
        let mut client = Client::connect(server);
        client.expect(&[("SELECT 3", "+OK"), ("SET k v EX 10", "+OK"), ("SET l v", "+OK")]);
        client.expect(&[("SELECT 0", "+OK"), ("SET k v EX 20", "+OK"), ("SELECT 3", "+OK")]);
        clock.advance(Duration::from_secs(10));
        client.expect(&[
            ("TTL k", ":-2"),
            ("KEYS *", "*1 $1 l"),
            ("DBSIZE", ":1"),
            ("SELECT 0", "+OK"),
            ("TTL k", ":10"),
        ]);
    });
}

#[test]
fn expired_records_of_database_three_leave_its_files() {
    let clock = Arc::new(ManualClock::new(START_MS));
    let (db, server) = over_engine(&Arc::new(MemFs::new()), &clock);
    let mut client = Client::connect(&server);
    client.expect(&[("SELECT 3", "+OK"), ("SET k v EX 10", "+OK"), ("SET l v", "+OK")]);
    let family = db.family("archipelago.database.3").unwrap();
    assert_eq!(family.options(), db.default_family().options());
    db.flush(&family).unwrap();
    clock.advance(Duration::from_secs(10));
    db.compact_range(&family, &KeyRange::all()).unwrap();
    assert_eq!(db.estimate_keys(&family), 1);
    assert!(client.ask("INFO stats").contains(" expired_keys:1 "));
}

#[test]
fn reads_of_an_empty_database_create_nothing() {
    let clock = Arc::new(ManualClock::new(START_MS));
    let (db, server) = over_engine(&Arc::new(MemFs::new()), &clock);
    let mut client = Client::connect(&server);
    client.expect(&[
        ("SELECT 4", "+OK"),
        ("GET k", "$-1"),
        ("MGET a b c d e f", "*6 $-1 $-1 $-1 $-1 $-1 $-1"),
        ("TTL k", ":-2"),
        ("DEL k l", ":0"),
        ("SCAN 0", "*2 $1 0 *0"),
        ("DBSIZE", ":0"),
        ("WATCH k", "+OK"),
        ("MULTI", "+OK"),
        ("GET k", "+QUEUED"),
        ("FLUSHALL", "+QUEUED"),
        ("EXEC", "*2 $-1 +OK"),
        ("FLUSHALL", "+OK"),
        ("DELRANGE - +", "+OK"),
        ("GETDEL k", "$-1"),
        ("EXPIRE k 5", ":0"),
        ("MOVE k 5", ":0"),
        ("COPY k l DB 5", ":0"),
    ]);
    assert!(client.ask("INFO everything").contains("engine:archipelago"));
    assert_eq!(db.list_families(), ["default"]);
    client.expect(&[("SET k v", "+OK")]);
    assert_eq!(db.list_families(), ["default", "archipelago.database.4"]);
}

#[test]
fn databases_survive_a_kill() {
    let clock = Arc::new(ManualClock::new(START_MS));
    let fs = Arc::new(MemFs::new());
    let (db, server) = over_engine(&fs, &clock);
    let mut client = Client::connect(&server);
    client.expect(&[
        ("SET k zero", "+OK"),
        ("SELECT 1", "+OK"),
        ("SET k one", "+OK"),
        ("SELECT 2", "+OK"),
        ("SET k two", "+OK"),
        ("FLUSHDB", "+OK"),
        ("SWAPDB 0 1", "+OK"),
        ("SET l two", "+OK"),
        ("MULTI", "+OK"),
        ("SELECT 8", "+QUEUED"),
        ("SET k eight", "+QUEUED"),
        ("SELECT 9", "+QUEUED"),
        ("SET k nine", "+QUEUED"),
        ("SWAPDB 9 10", "+QUEUED"),
        ("EXEC", "*5 +OK +OK +OK +OK +OK"),
    ]);
    let expected = [
        ("0", "$3 one"),
        ("1", "$4 zero"),
        ("2", "$-1"),
        ("8", "$5 eight"),
        ("9", "$-1"),
        ("10", "$4 nine"),
    ];
    for flushes in [false, true] {
        if flushes {
            for name in db.list_families() {
                db.flush(&db.family(&name).unwrap()).unwrap();
            }
        }
        let killed = Arc::new(fs.kill_clone());
        let (_db, again) = over_engine(&killed, &clock);
        let mut client = Client::connect(&again);
        for (database, value) in expected {
            client.expect(&[(&format!("SELECT {database}"), "+OK"), ("GET k", value)]);
        }
        client.expect(&[("SELECT 2", "+OK"), ("KEYS *", "*1 $1 l"), ("SWAPDB 0 1", "+OK")]);
        client.expect(&[("SELECT 0", "+OK"), ("GET k", "$4 zero")]);
        client.expect(&[("FLUSHALL", "+OK")]);
        let (_db, emptied) = over_engine(&Arc::new(killed.kill_clone()), &clock);
        assert!(Client::connect(&emptied).ask("INFO keyspace").ends_with("# Keyspace"));
    }
}

#[test]
fn scan_continues_over_restarts_in_database_five() {
    let fs = Arc::new(MemFs::new());
    let clock = Arc::new(ManualClock::new(START_MS));
    let shared = "p".repeat(5000);
    let keys: Vec<String> = (0..30).map(|n| format!("{shared}{n:02}")).collect();
    let (mut returned, mut cursor) = (Vec::new(), "0".to_owned());
    for round in 0.. {
        let (db, server) = over_engine(&fs, &clock);
        let mut client = Client::connect(&server);
        for key in keys.iter().filter(|_| round == 0) {
            // The other database has the same keys, and more of them.
            client.expect(&[("SELECT 0", "+OK"), (&format!("MSET {key} v {key}x v"), "+OK")]);
            client.expect(&[("SELECT 5", "+OK"), (&format!("SET {key} v"), "+OK")]);
        }
        client.expect(&[("SELECT 5", "+OK")]);
        let step = client.ask(&format!("SCAN {cursor} COUNT 7"));
        let words: Vec<&str> = step.split(' ').collect();
        cursor = words[2].to_owned();
        returned.extend(words[5..].iter().step_by(2).map(|key| (*key).to_owned()));
        if cursor == "0" {
            break;
        }
        assert!(server.shutdown());
        drop(client);
        db.close().unwrap();
    }
    assert_eq!(returned, keys);
}

/// A server over the database in `dir` of `fs`, opened with `options`.
fn serve_dir(fs: &Arc<MemFs>, dir: &str, options: DbOptions) -> Server {
    let components = Components { fs: Arc::clone(fs) as _, ..Components::default() };
    let db = Db::open_with(dir, options, components).unwrap();
    let store = Arc::new(EngineStore::new(db, WriteOptions::default()).unwrap());
    Server::start("127.0.0.1:0", store, ServerOptions::default()).unwrap()
}

#[test]
fn checkpoint_and_read_only_server_have_all_databases() {
    let clock = Arc::new(ManualClock::new(START_MS));
    let fs = Arc::new(MemFs::new());
    let (db, server) = over_engine(&fs, &clock);
    let mut client = Client::connect(&server);
    client.expect(&[("SET k zero", "+OK"), ("SELECT 1", "+OK"), ("SET k one", "+OK")]);
    client.expect(&[("SWAPDB 1 13", "+OK")]);
    db.checkpoint("/copy").unwrap();
    client.expect(&[("SWAPDB 0 13", "+OK")]);
    let read_only = DbOptions { read_only: true, create_if_missing: false, ..Default::default() };
    for (dir, options, expected) in [
        ("/copy", DbOptions::default(), ["$4 zero", "$-1", "$3 one"]),
        ("/copy", read_only.clone(), ["$4 zero", "$-1", "$3 one"]),
        ("/data", read_only, ["$3 one", "$-1", "$4 zero"]),
    ] {
        let is_read_only = options.read_only;
        let server = serve_dir(&fs, dir, options);
        let mut client = Client::connect(&server);
        for (database, value) in ["0", "1", "13"].iter().zip(expected) {
            client.expect(&[(&format!("SELECT {database}"), "+OK"), ("GET k", value)]);
        }
        if is_read_only {
            for line in ["SWAPDB 0 1", "SELECT 5", "SET k v"] {
                let reply = client.ask(line);
                assert!(reply == "+OK" || reply.starts_with("-MISCONF"), "{line}: {reply}");
            }
            client.expect(&[("GET k", "$-1"), ("SELECT 0", "+OK"), ("GET k", expected[0])]);
        }
    }
}

/// Body of a thread that runs until the flag is set.
type Work = Box<dyn FnOnce(&AtomicBool) + Send>;

/// Runs `workers` on threads in parallel with `swapper` on this thread, until `swapper` ends.
fn beside(swapper: impl FnOnce(), workers: Vec<Work>) {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for work in workers {
            scope.spawn(|| work(&done));
        }
        swapper();
        done.store(true, Ordering::SeqCst);
    });
}

#[test]
fn no_increment_is_lost_to_swaps() {
    on_each_store(|server, _clock| {
        let total = Arc::new(std::sync::atomic::AtomicU64::new(0));
        let mut swapper = Client::connect(server);
        let addr = server.local_addr();
        let workers = (0..3).map(|n| {
            let total = Arc::clone(&total);
            let work = move |done: &AtomicBool| {
                let mut client = Client::to(addr);
                client.expect(&[(&format!("SELECT {}", n % 2), "+OK")]);
                while !done.load(Ordering::SeqCst) {
                    assert!(client.ask("INCR n").starts_with(':'));
                    total.fetch_add(1, Ordering::SeqCst);
                }
            };
            Box::new(work) as Work
        });
        beside(
            || (0..150).for_each(|_| swapper.expect(&[("SWAPDB 0 1", "+OK")])),
            workers.collect(),
        );
        let mut sum = 0;
        for database in ["0", "1"] {
            swapper.expect(&[(&format!("SELECT {database}"), "+OK")]);
            let reply = swapper.ask("GET n");
            sum += reply.split(' ').nth(1).map_or(0, |count| count.parse::<u64>().unwrap());
        }
        assert_eq!(sum, total.load(Ordering::SeqCst));
    });
}

#[test]
fn no_read_sees_a_part_of_a_transaction_that_swaps() {
    on_each_store(|server, _clock| {
        let mut swapper = Client::connect(server);
        // Each transaction writes to the database that leaves database 0 with it. Database 0 then
        // shows the writes of the transaction before it, so its numbers rise.
        let addr = server.local_addr();
        let readers = ["GET n", "MGET n n n n n", "RANGE - + VALUES"].map(|line| {
            let work = move |done: &AtomicBool| {
                let mut client = Client::to(addr);
                let mut last = 0;
                while !done.load(Ordering::SeqCst) {
                    let reply = client.ask(line);
                    let number = reply.split(' ').next_back().and_then(|n| n.parse().ok());
                    let number: u64 = number.unwrap_or(0);
                    assert!(number >= last, "{line}: {number} behind {last}");
                    last = number;
                }
            };
            Box::new(work) as Work
        });
        let swaps = || {
            for n in 1..150 {
                swapper.expect(&[
                    ("MULTI", "+OK"),
                    (&format!("SET n {n}"), "+QUEUED"),
                    ("SWAPDB 0 1", "+QUEUED"),
                    ("EXEC", "*2 +OK +OK"),
                ]);
            }
        };
        beside(swaps, readers.into());
    });
}
