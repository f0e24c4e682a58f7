//! Behaviour that only a server over the engine shows: flushed data, restarts, its own figures.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use archipelago_base::Error;
use archipelago_base::clock::ManualClock;
use archipelago_engine::db::{BackgroundMode, Components, Db};
use archipelago_engine::key::KeyRange;
use archipelago_engine::options::{CfOptions, DbOptions, WriteOptions};
use archipelago_env::mem::MemFs;
use archipelago_resp::engine_store::EngineStore;
use archipelago_resp::{Server, ServerOptions};

use crate::client::{Client, START_MS, encode, over_engine, over_engine_with, start};

#[test]
fn data_survives_a_restart_and_a_flush() {
    let fs = Arc::new(MemFs::new());
    let clock = Arc::new(ManualClock::new(START_MS));
    for round in 0..3 {
        let (db, server) = over_engine(&fs, &clock);
        let mut client = Client::connect(&server);
        client.expect(&[
            ("INCR rounds", [":1", ":2", ":3"][round]),
            ("APPEND log x", [":1", ":2", ":3"][round]),
            ("DBSIZE", [":2", ":3", ":3"][round]),
            ("SET brief v EX 100", "+OK"),
        ]);
        if round == 1 {
            db.flush(db.default_family()).unwrap();
            client.expect(&[("TTL brief", ":100"), ("INCRBY rounds 0", ":2")]);
        }
        clock.advance(Duration::from_secs(50));
        assert!(server.shutdown());
        drop(client);
        db.close().unwrap();
    }
    let (_db, server) = over_engine(&fs, &clock);
    let mut client = Client::connect(&server);
    client.expect(&[("TTL brief", ":50"), ("GET log", "$3 xxx")]);
    clock.advance(Duration::from_secs(50));
    client.expect(&[("GET brief", "$-1"), ("KEYS *", "*2 $3 log $6 rounds")]);
}

#[test]
fn scan_continues_over_restarts() {
    let fs = Arc::new(MemFs::new());
    let clock = Arc::new(ManualClock::new(START_MS));
    // These keys share more bytes than a cursor has.
    let shared = "p".repeat(60_000);
    let keys: Vec<String> = (0..30).map(|n| format!("{shared}{n:02}")).collect();
    let (mut returned, mut cursor) = (Vec::new(), "0".to_owned());
    for round in 0.. {
        let (db, server) = over_engine(&fs, &clock);
        let mut client = Client::connect(&server);
        for key in keys.iter().filter(|_| round == 0) {
            assert_eq!(client.call(&["SET", key, "v"]), "+OK");
        }
        let step = client.ask(&format!("SCAN {cursor} COUNT 7"));
        let words: Vec<&str> = step.split(' ').collect();
        cursor = words[2].to_owned();
        returned.extend(words[5..].iter().step_by(2).map(|key| (*key).to_owned()));
        if cursor == "0" {
            break;
        }
        // Other keys need other prefixes, in this run and in the next one.
        let other = format!("other:{round}:{}", "o".repeat(40));
        for n in 0..20 {
            client.ask(&format!("SET {other}{n:02} v"));
        }
        client.ask("SCAN 0 COUNT 1 MATCH other*");
        assert!(server.shutdown());
        drop(client);
        db.close().unwrap();
    }
    assert_eq!(returned, keys);
}

#[test]
fn ranges_over_flushed_and_fresh_records() {
    let clock = Arc::new(ManualClock::new(START_MS));
    let (db, server) = over_engine(&Arc::new(MemFs::new()), &clock);
    let mut client = Client::connect(&server);
    let put = |client: &mut Client, from: usize| {
        let mut pipeline = Vec::new();
        for n in (from..2000).step_by(2) {
            pipeline.extend(encode(&["SET", &format!("k{n:04}"), &n.to_string()]));
        }
        client.send(&pipeline);
        for _ in (from..2000).step_by(2) {
            assert_eq!(client.reply(), "+OK");
        }
    };
    put(&mut client, 0);
    db.flush(db.default_family()).unwrap();
    put(&mut client, 1);
    client.expect(&[
        ("DBSIZE", ":2000"),
        ("RANGE [k0009 (k0012", "*6 $5 k0009 $1 9 $5 k0010 $2 10 $5 k0011 $2 11"),
        ("RANGE - + REV KEYS LIMIT 2", "*2 $5 k1999 $5 k1998"),
        ("MGET k0000 k0001 nothing k1999", "*4 $1 0 $1 1 $-1 $4 1999"),
        ("DELRANGE [k0100 (k1900", "+OK"),
        ("DBSIZE", ":200"),
        ("DEL k0000 k0001 k0100", ":2"),
        ("FLUSHALL", "+OK"),
        ("DBSIZE", ":0"),
        ("FLUSHALL", "+OK"),
        ("RANGE - +", "*0"),
        ("SET k0500 v", "+OK"),
        ("RANGE - + KEYS", "*1 $5 k0500"),
    ]);
    // The largest possible key is removed as well.
    let largest = vec![0xff; 64 << 10];
    assert_eq!(client.call(&[&b"SET"[..], &largest, b"v"]), "+OK");
    assert_eq!(client.call(&[&b"EXISTS"[..], &largest]), ":1");
    // A scan at that key continues after it, where no key exists.
    client.expect(&[("DELRANGE - (l", "+OK"), ("SET k v", "+OK")]);
    let step = client.ask("SCAN 0 COUNT 1");
    let cursor = step.split(' ').nth(2).unwrap().to_owned();
    assert_eq!(client.call(&[&b"DEL"[..], &largest]), ":1");
    client.expect(&[(&format!("SCAN {cursor}"), "*2 $1 0 *0")]);
    client.expect(&[("FLUSHDB", "+OK"), ("DBSIZE", ":0")]);
    let info = client.ask("INFO archipelago");
    assert!(info.contains("engine:archipelago health:healthy estimate_num_keys:"), "{info}");
}

#[test]
fn info_shows_parts_of_separated_space_that_add_up() {
    let family = CfOptions {
        value_separation_bytes: 64,
        space_amplification_max: 0.0,
        ..CfOptions::default()
    };
    let components = Components {
        fs: Arc::new(MemFs::new()),
        families: [("default".to_owned(), family)].into_iter().collect(),
        ..Components::default()
    };
    let db = Db::open_with("/data", DbOptions::default(), components).unwrap();
    let store = Arc::new(EngineStore::new(db.clone(), WriteOptions::default()).unwrap());
    let options = ServerOptions { worker_threads: 2, ..ServerOptions::default() };
    let server = Server::start("127.0.0.1:0", store, options).unwrap();
    let mut client = Client::connect(&server);
    for round in ["one", "two"] {
        for n in (0..200).filter(|n| round == "one" || n % 3 > 0) {
            assert_eq!(client.call(&["SET", &format!("k{n:03}"), &round.repeat(300)]), "+OK");
        }
        db.compact_range(db.default_family(), &KeyRange::all()).unwrap();
    }
    db.wait_for_background().unwrap();
    let info = client.ask("INFO archipelago");
    let number = |name: &str| -> u64 {
        let found = info.split(' ').find_map(|line| line.strip_prefix(&format!("{name}:")));
        found.unwrap_or_else(|| panic!("no {name} in {info}")).parse().unwrap()
    };
    let (files, exposed) = (number("value_file_bytes"), number("value_exposed_bytes"));
    assert!(number("num_value_files") > 0 && exposed > 0, "{info}");
    let report = db.values(db.default_family()).unwrap();
    assert_eq!((files, exposed), (report.file_bytes(), report.exposed_bytes()));
    assert_eq!(number("value_valid_bytes"), report.valid_bytes());
    let parts = number("space_live_bytes") + exposed + number("value_hidden_bytes");
    assert_eq!(parts, number("total_sst_files_size") + files, "{info}");
    assert_eq!((number("space_in_flight_bytes"), number("pinned_file_bytes")), (0, 0));
    let reader = db.iter(db.default_family(), &Default::default()).unwrap();
    client.expect(&[("FLUSHALL", "+OK")]);
    db.compact_range(db.default_family(), &KeyRange::all()).unwrap();
    let pinned = client.ask("INFO archipelago");
    assert!(!pinned.contains("pinned_file_bytes:0 "), "{pinned}");
    drop(reader);
}

#[test]
fn flushall_gives_the_space_back_without_more_writes() {
    let clock = Arc::new(ManualClock::new(START_MS));
    let (db, server) = over_engine(&Arc::new(MemFs::new()), &clock);
    let mut client = Client::connect(&server);
    for n in 0..500 {
        client.expect(&[(&format!("SET k{n:04} value"), "+OK")]);
        if n % 100 == 0 {
            db.flush(db.default_family()).unwrap();
        }
    }
    let files = || {
        let levels = db.report(db.default_family()).unwrap().levels;
        levels.iter().map(|level| level.files).sum::<usize>()
    };
    assert!(files() > 0);
    client.expect(&[("FLUSHALL", "+OK")]);
    db.wait_for_background().unwrap();
    assert_eq!(files(), 0);
}

#[test]
fn dbsize_after_flushall_counts_only_what_was_written_since() {
    let clock = Arc::new(ManualClock::new(START_MS));
    let (db, server) = over_engine(&Arc::new(MemFs::new()), &clock);
    let mut client = Client::connect(&server);
    let fill = |client: &mut Client| {
        for from in (0..200_000).step_by(20_000) {
            let mut pipeline = Vec::new();
            for n in from..from + 20_000 {
                pipeline.extend(encode(&["SET", &format!("key:{n}"), "a value"]));
            }
            client.send(&pipeline);
            for _ in 0..20_000 {
                assert_eq!(client.reply(), "+OK");
            }
        }
    };
    fill(&mut client);
    db.flush(db.default_family()).unwrap();
    client.expect(&[("FLUSHALL", "+OK"), ("DBSIZE", ":0")]);
    fill(&mut client);
    let size = |client: &mut Client| -> u64 {
        client.call(&["DBSIZE"]).trim_start_matches(':').parse().unwrap()
    };
    let within = 180_000..=220_000;
    assert!(within.contains(&size(&mut client)));
    db.flush(db.default_family()).unwrap();
    assert!(within.contains(&size(&mut client)));
}

/// Blocks that were not in the cache when they were read.
fn misses(db: &Db) -> String {
    db.property(db.default_family(), "archipelago.block-cache-data-miss").unwrap()
}

/// Sends `commands` to a server whose database is flushed. Then opens the database again without
/// background work, so that every block that is read is read by a command.
fn over_flushed_engine(commands: &[(&str, &str)], clock: &Arc<ManualClock>) -> (Db, Server) {
    let fs = Arc::new(MemFs::new());
    let (db, server) = over_engine(&fs, clock);
    Client::connect(&server).expect(commands);
    db.flush(db.default_family()).unwrap();
    drop(server);
    db.close().unwrap();
    over_engine_with(&fs, clock, BackgroundMode::Manual)
}

#[test]
fn commands_on_keys_read_no_large_value() {
    let clock = Arc::new(ManualClock::new(START_MS));
    let written = [
        ("SETRANGE big:1 8388607 x", ":8388608"),
        ("SETRANGE big:2 8388607 x", ":8388608"),
        ("SETRANGE big:3 8388607 x", ":8388608"),
        ("SETRANGE big:4 8388607 x", ":8388608"),
        ("EXPIRE big:1 100", ":1"),
        ("EXPIRE big:2 10", ":1"),
    ];
    let (db, server) = over_flushed_engine(&written, &clock);
    let mut client = Client::connect(&server);
    client.expect(&[("DEL big:3", ":1")]);
    clock.advance(Duration::from_secs(10));
    let before = misses(&db);
    let script = [
        ("SCAN 0", "*2 $1 0 *2 $5 big:1 $5 big:4"),
        ("KEYS *", "*2 $5 big:1 $5 big:4"),
        ("TTL big:1", ":90"),
        ("TTL big:2", ":-2"),
        ("PTTL big:4", ":-1"),
        ("EXISTS big:1", ":1"),
        ("EXISTS big:1 big:2 big:3 big:4 big:4", ":3"),
        ("TYPE big:4", "+string"),
        ("DEL big:1 big:2 big:4", ":2"),
        ("SCAN 0", "*2 $1 0 *0"),
    ];
    for (line, expected) in script {
        client.expect(&[(line, expected)]);
        assert_eq!(misses(&db), before, "{line}");
    }
    assert!(client.ask("DBSIZE").starts_with(':'));
    assert_eq!(misses(&db), before, "DBSIZE");
}

#[test]
fn dbsize_reads_no_large_value() {
    let clock = Arc::new(ManualClock::new(START_MS));
    let written = [("SETRANGE big 33554431 x", ":33554432"), ("SET small v", "+OK")];
    let (db, server) = over_flushed_engine(&written, &clock);
    let mut client = Client::connect(&server);
    let before = misses(&db);
    client.expect(&[("DBSIZE", ":2")]);
    assert!(client.call(&["INFO"]).contains("block_cache_miss:"));
    assert_eq!(misses(&db), before);
    // The figure counts reads of values.
    assert_eq!(client.ask("GETRANGE big 0 0"), "$1 \0");
    assert_ne!(misses(&db), before);
}

#[test]
fn appendfsync_says_whether_writes_are_synced() {
    for (sync, says) in [(true, "$6 always"), (false, "$2 no")] {
        let db = Db::open_with(
            "/data",
            DbOptions::default(),
            Components { fs: Arc::new(MemFs::new()), ..Components::default() },
        );
        let options = WriteOptions { sync, ..WriteOptions::default() };
        let store = Arc::new(EngineStore::new(db.unwrap(), options).unwrap());
        let server = Server::start("127.0.0.1:0", store, ServerOptions::default()).unwrap();
        let mut client = Client::connect(&server);
        client.expect(&[("CONFIG GET appendfsync", &format!("*2 $11 appendfsync {says}"))]);
    }
}

#[test]
fn save_makes_writes_survive_power_loss() {
    let clock = Arc::new(ManualClock::new(START_MS));
    let fs = Arc::new(MemFs::new());
    let (_db, server) = over_engine(&fs, &clock);
    let mut client = Client::connect(&server);
    client.expect(&[("LASTSAVE", ":1000000"), ("SET saved 1", "+OK")]);
    clock.advance(Duration::from_secs(5));
    client.expect(&[("SAVE", "+OK"), ("LASTSAVE", ":1000005"), ("SET lost 1", "+OK")]);
    let crashed = Arc::new(fs.crash_clone(7));
    let (_db, restarted) = over_engine(&crashed, &clock);
    Client::connect(&restarted).expect(&[("EXISTS saved", ":1"), ("EXISTS lost", ":0")]);
    clock.advance(Duration::from_secs(5));
    client.expect(&[
        ("BGSAVE", "+Background saving started"),
        ("BGSAVE SCHEDULE", "+Background saving started"),
        ("LASTSAVE", ":1000010"),
        ("BGSAVE NOW", "-ERR syntax error"),
        ("MULTI", "+OK"),
        ("SAVE", "-ERR Command not allowed inside a transaction"),
        ("DISCARD", "+OK"),
    ]);
    let info = client.ask("INFO persistence");
    assert!(info.contains("rdb_last_save_time:1000010 rdb_last_bgsave_status:ok"), "{info}");
}

#[test]
fn save_is_refused_without_files() {
    let (server, _clock) = start();
    let mut client = Client::connect(&server);
    assert!(client.ask("SAVE").starts_with("-ERR "));
    assert!(client.ask("BGSAVE").starts_with("-ERR "));
    assert!(client.ask("INFO persistence").contains("rdb_last_bgsave_status:err"));
}

#[test]
fn failed_read_check_replaces_every_answer() {
    let components = Components { fs: Arc::new(MemFs::new()), ..Components::default() };
    let db = Db::open_with("/data", DbOptions::default(), components).unwrap();
    let has_lease = Arc::new(AtomicBool::new(true));
    let lease = Arc::clone(&has_lease);
    let check = move || match lease.load(Ordering::Relaxed) {
        true => Ok(()),
        false => Err(Error::busy("the lease ended")),
    };
    let store = EngineStore::new(db, WriteOptions::default()).unwrap();
    let store = Arc::new(store.with_read_check(Box::new(check)));
    let options = ServerOptions { worker_threads: 2, ..ServerOptions::default() };
    let server = Server::start("127.0.0.1:0", store, options).unwrap();
    let mut client = Client::connect(&server);
    let reads = [
        ("GET a", "$1 1"),
        ("EXISTS a b", ":2"),
        ("TTL a", ":-1"),
        ("MGET a b c d e f", "*6 $1 1 $1 2 $-1 $-1 $-1 $-1"),
        ("RANGE - +", "*4 $1 a $1 1 $1 b $1 2"),
        ("RANGE [x +", "*0"),
        ("KEYS *", "*2 $1 a $1 b"),
        ("DBSIZE", ":2"),
        // Writes whose answer depends on a value.
        ("SETNX a 9", ":0"),
        ("INCRBY a 0", ":1"),
        ("GETSET b 2", "$1 2"),
    ];
    client.expect(&[("MSET a 1 b 2", "+OK")]);
    client.expect(&reads);
    has_lease.store(false, Ordering::Relaxed);
    for (read, _) in reads {
        assert_eq!(client.ask(read), "-TRYAGAIN busy: the lease ended", "{read}");
    }
    // The epoch of the owner guards writes, so they need no lease.
    client.expect(&[("SET c 3", "+OK")]);
    has_lease.store(true, Ordering::Relaxed);
    client.expect(&reads[..2]);
    client.expect(&[("GET c", "$1 3")]);
}
