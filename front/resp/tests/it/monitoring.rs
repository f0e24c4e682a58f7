//! INFO, SLOWLOG, LATENCY, OBJECT, MEMORY, RANDOMKEY and CONFIG SET, which operators and their
//! tools use.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use archipelago_base::clock::ManualClock;
use archipelago_engine::key::KeyRange;
use archipelago_env::mem::MemFs;

use crate::client::{Client, START_MS, encode, on_each_store, over_engine, start};

/// Value of a line of INFO.
fn info(client: &mut Client, section: &str, name: &str) -> String {
    let text = client.ask(&format!("INFO {section}"));
    let found = text.split(' ').find_map(|line| line.strip_prefix(&format!("{name}:")));
    found.unwrap_or_else(|| panic!("no {name} in {text}")).to_owned()
}

#[test]
fn info_has_what_exporters_ask_for() {
    on_each_store(|server, _clock| {
        let mut client = Client::connect(server);
        let all = client.ask("INFO everything");
        for section in [
            "Server",
            "Clients",
            "Memory",
            "Persistence",
            "Stats",
            "Replication",
            "CPU",
            "Commandstats",
            "Errorstats",
            "Latencystats",
            "Cluster",
            "Keyspace",
            "Archipelago",
        ] {
            assert!(all.contains(&format!("# {section} ")), "{section}");
        }
        for name in [
            "used_cpu_sys",
            "used_cpu_user",
            "used_memory_rss",
            "used_memory_peak",
            "maxmemory",
            "mem_fragmentation_ratio",
            "expired_keys",
            "evicted_keys",
            "role",
            "connected_slaves",
            "master_repl_offset",
            "connected_clients",
            "blocked_clients",
            "uptime_in_seconds",
            "total_commands_processed",
            "keyspace_hits",
            "rejected_connections",
            "loading",
            "total_net_input_bytes",
            "instantaneous_ops_per_sec",
            "cluster_enabled",
            "run_id",
        ] {
            assert!(all.contains(&format!(" {name}:")), "{name}");
        }
        let number = |client: &mut Client, section: &str, name: &str| -> f64 {
            info(client, section, name).parse().unwrap()
        };
        assert!(number(&mut client, "memory", "used_memory_rss") > 1e6);
        // The peak is asked last, because INFO updates it.
        let resident = number(&mut client, "memory", "used_memory_rss");
        assert!(number(&mut client, "memory", "used_memory_peak") >= resident);
        assert!(number(&mut client, "cpu", "used_cpu_user") >= 0.0);
        assert_eq!(info(&mut client, "replication", "role"), "master");
        let default = client.ask("INFO");
        assert!(default.contains("# Errorstats") && !default.contains("# Commandstats"));
    });
}

#[test]
fn commands_and_errors_are_counted() {
    on_each_store(|server, _clock| {
        let mut client = Client::connect(server);
        client.ask("CONFIG RESETSTAT");
        client.expect(&[("SET k v", "+OK"), ("SET k v NX", "$-1")]);
        let sets = encode(&["SET", "a", "b"]).repeat(5);
        client.send(&sets);
        (0..5).for_each(|_| assert_eq!(client.reply(), "+OK"));
        assert!(client.ask("INCR k").starts_with("-ERR"));
        assert!(client.ask("GET").starts_with("-ERR"));
        assert!(client.ask("NOPE").starts_with("-ERR"));
        client.expect(&[("MULTI", "+OK"), ("GET k", "+QUEUED"), ("EXEC", "*1 $1 v")]);
        let stat = |client: &mut Client, name: &str| info(client, "commandstats", name);
        assert!(stat(&mut client, "cmdstat_set").starts_with("calls=7,"));
        assert!(stat(&mut client, "cmdstat_incr").ends_with("rejected_calls=0,failed_calls=1"));
        let get = stat(&mut client, "cmdstat_get");
        assert!(get.starts_with("calls=1,") && get.ends_with("rejected_calls=1,failed_calls=0"));
        assert!(stat(&mut client, "cmdstat_exec").starts_with("calls=1,"));
        assert_eq!(info(&mut client, "errorstats", "errorstat_ERR"), "count=3");
        let latency = info(&mut client, "latencystats", "latency_percentiles_usec_set");
        assert!(latency.starts_with("p50=1.000,p99="), "{latency}");
        client.expect(&[
            (
                "LATENCY HISTOGRAM set nothing",
                "*2 $3 set *4 $5 calls :7 $14 histogram_usec *2 :1 :7",
            ),
            ("LATENCY LATEST", "*0"),
            ("LATENCY RESET", ":0"),
        ]);
        client.ask("CONFIG RESETSTAT");
        assert!(!client.ask("INFO commandstats").contains("cmdstat_set"));
    });
}

#[test]
fn slow_log_keeps_what_takes_long() {
    on_each_store(|server, _clock| {
        let mut client = Client::connect(server);
        client.expect(&[
            ("SLOWLOG LEN", ":0"),
            ("CONFIG SET slowlog-log-slower-than 0 slowlog-max-len 3", "+OK"),
            ("CONFIG GET slowlog-log-slower-than", "*2 $23 slowlog-log-slower-than $1 0"),
            ("CLIENT SETNAME worker", "+OK"),
            ("ECHO hello", "$5 hello"),
            ("SET k v", "+OK"),
            ("GET k", "$1 v"),
        ]);
        let log = client.ask("SLOWLOG GET 2");
        assert!(log.starts_with("*2 *6 :"), "{log}");
        assert!(log.contains(" :1000000 :0 *2 $3 GET $1 k $"), "{log}");
        assert!(log.contains("*3 $3 SET $1 k $1 v") && log.contains("$6 worker"), "{log}");
        client.expect(&[
            ("SLOWLOG LEN", ":3"),
            ("CONFIG SET slowlog-log-slower-than -1", "+OK"),
            ("SLOWLOG RESET", "+OK"),
            ("PING", "+PONG"),
            ("SLOWLOG LEN", ":0"),
            ("SLOWLOG GET -2", "-ERR count should be greater than or equal to -1"),
        ]);
    });
}

#[test]
fn config_set_changes_all_or_nothing() {
    let (server, _clock) = start();
    let mut client = Client::connect(&server);
    for line in [
        "CONFIG SET slowlog-max-len 7 slowlog-log-slower-than x",
        "CONFIG SET slowlog-max-len 7 databases 3",
        "CONFIG SET slowlog-max-len 7 nothing 3",
        "CONFIG SET slowlog-max-len -1",
        "CONFIG SET slowlog-max-len 7 timeout -1",
        "CONFIG SET slowlog-max-len 7 maxclients 4294967295",
        "CONFIG SET slowlog-max-len 7 tracking-table-max-keys many",
        "CONFIG SET slowlog-max-len 7 timeout 5 TIMEOUT 6",
        "CONFIG SET slowlog-max-len 7 timeout",
    ] {
        assert!(client.ask(line).starts_with("-ERR "), "{line}");
        client.expect(&[
            ("CONFIG GET slowlog-max-len", "*2 $15 slowlog-max-len $3 128"),
            ("CONFIG GET timeout", "*2 $7 timeout $1 0"),
        ]);
    }
    let failed = |name: &str, why: &str| {
        format!("-ERR CONFIG SET failed (possibly related to argument '{name}') - {why}")
    };
    client.expect(&[
        ("CONFIG SET databases 3", &failed("databases", "can't set immutable config")),
        ("CONFIG SET timeout x", &failed("timeout", "argument couldn't be parsed into an integer")),
        (
            "CONFIG SET maxclients 0",
            &failed("maxclients", "argument must be between 1 and 4294967295 inclusive"),
        ),
        ("CONFIG SET timeout 1 timeout 2", &failed("timeout", "duplicate parameter")),
        (
            "CONFIG SET nothing 3",
            "-ERR Unknown option or number of arguments for CONFIG SET - 'nothing'",
        ),
        ("CONFIG SET timeout 10 maxclients", "-ERR syntax error"),
        ("CONFIG SET timeout", "-ERR wrong number of arguments for 'config|set' command"),
        ("CONFIG REWRITE", "-ERR The server is running without a config file"),
    ]);
    let refusal = client.ask("CONFIG SET maxclients 4294967295");
    assert!(refusal.contains("The operating system is not able to handle"), "{refusal}");
}

#[test]
fn config_set_changes_what_config_get_shows() {
    let (server, _clock) = start();
    let mut client = Client::connect(&server);
    client.expect(&[
        ("CONFIG SET timeout 77 maxclients 5 tracking-table-max-keys 0", "+OK"),
        ("CONFIG GET timeout maxclients", "*4 $10 maxclients $1 5 $7 timeout $2 77"),
        ("CONFIG GET tracking-table-max-keys", "*2 $23 tracking-table-max-keys $1 0"),
    ]);
    let limit = ["CONFIG", "SET", "client-output-buffer-limit", "normal 2mb 0 0"];
    assert_eq!(client.call(&limit), "+OK");
    assert!(client.ask("CONFIG GET client-output*").ends_with(" normal 2097152 0 0"));
    let limit = ["CONFIG", "SET", "client-output-buffer-limit", "normal 0 1mb 60"];
    assert_eq!(client.call(&limit), "+OK");
    assert!(client.ask("CONFIG GET client-output*").ends_with(" normal 0 1048576 60"));
    assert!(client.ask("INFO clients").contains("maxclients:5 "));
}

#[test]
fn maxclients_applies_to_later_connections() {
    let (server, _clock) = start();
    let (mut first, mut second) = (Client::connect(&server), Client::connect(&server));
    second.expect(&[("PING", "+PONG")]);
    first.expect(&[("CONFIG SET maxclients 1", "+OK")]);
    let mut third = Client::connect(&server);
    assert_eq!(third.try_reply().as_deref(), Some("-ERR max number of clients reached"));
    second.expect(&[("PING", "+PONG"), ("CONFIG SET maxclients 3", "+OK")]);
    Client::connect(&server).expect(&[("PING", "+PONG")]);
}

#[test]
fn timeout_reaches_connections_that_wait_already() {
    let (server, _clock) = start();
    let mut silent = Client::connect(&server);
    silent.expect(&[("PING", "+PONG")]);
    let mut deaf = Client::connect(&server);
    deaf.expect(&[("CONFIG SET timeout 86400", "+OK")]);
    let large = vec![b'v'; 8 << 20];
    assert_eq!(deaf.call(&[&b"SET"[..], b"k", &large]), "+OK");
    // The client takes no reply, so its connection waits for it.
    deaf.send(&encode(&["GET", "k"]).repeat(8));
    let mut other = Client::connect(&server);
    other.expect(&[("CONFIG SET timeout 1", "+OK")]);
    assert_eq!(silent.try_reply(), None);
    while server.clients() > 0 {
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn keys_and_their_expiries_are_counted() {
    let clock = Arc::new(ManualClock::new(START_MS));
    let (db, server) = over_engine(&Arc::new(MemFs::new()), &clock);
    let mut client = Client::connect(&server);
    for n in 0..40 {
        client.ask(&format!("SET k{n} v"));
    }
    for n in 0..10 {
        client.ask(&format!("PEXPIRE k{n} 3000"));
    }
    for flushed in [false, true] {
        if flushed {
            db.flush(db.default_family()).unwrap();
        }
        assert_eq!(info(&mut client, "keyspace", "db0"), "keys=40,expires=10,avg_ttl=3000");
    }
    clock.advance(Duration::from_secs(1));
    assert_eq!(info(&mut client, "keyspace", "db0"), "keys=40,expires=10,avg_ttl=2000");
    clock.advance(Duration::from_secs(5));
    assert_eq!(info(&mut client, "keyspace", "db0"), "keys=30,expires=0,avg_ttl=0");
    assert_eq!(info(&mut client, "stats", "expired_keys"), "0");
    db.compact_range(db.default_family(), &KeyRange::all()).unwrap();
    assert_eq!(info(&mut client, "stats", "expired_keys"), "10");
}

#[test]
fn objects_are_described() {
    on_each_store(|server, _clock| {
        let mut client = Client::connect(server);
        let long = "x".repeat(45);
        assert_eq!(client.call(&["SET", "long", &long]), "+OK");
        client.expect(&[
            ("MSET number 12345678901234567 short hello", "+OK"),
            ("OBJECT ENCODING number", "$3 int"),
            ("OBJECT ENCODING short", "$6 embstr"),
            ("OBJECT ENCODING long", "$3 raw"),
            ("OBJECT ENCODING nothing", "$-1"),
            ("OBJECT REFCOUNT short", ":1"),
            ("MEMORY USAGE short", ":42"),
            ("MEMORY USAGE short SAMPLES 0", ":42"),
            ("MEMORY USAGE nothing", "$-1"),
            ("OBJECT ENCODING", "-ERR wrong number of arguments for 'object|encoding' command"),
        ]);
        assert!(client.ask("OBJECT FREQ short").starts_with("-ERR An LFU maxmemory policy is not"));
        client.expect(&[("OBJECT FREQ nothing", "$-1"), ("OBJECT IDLETIME short", ":0")]);
        assert!(client.ask("OBJECT NOPE short").starts_with("-ERR unknown subcommand"));
    });
}

#[test]
fn random_keys_are_keys_that_are_there() {
    on_each_store(|server, _clock| {
        let mut client = Client::connect(server);
        client.expect(&[("RANDOMKEY", "$-1"), ("SET only v", "+OK"), ("RANDOMKEY", "$4 only")]);
        client.ask("DEL only");
        for n in 0..100 {
            client.ask(&format!("SET k{n:02} v"));
        }
        let found: BTreeSet<String> = (0..2000).map(|_| client.ask("RANDOMKEY")).collect();
        assert!(found.iter().all(|key| key.starts_with("$3 k")), "{found:?}");
        assert!(found.len() > 90, "{} of 100 keys were found", found.len());
    });
}

#[test]
fn copy_takes_value_and_expiry() {
    on_each_store(|server, clock| {
        let mut client = Client::connect(server);
        client.expect(&[
            ("SET a v PX 5000", "+OK"),
            ("COPY a b", ":1"),
            ("PTTL b", ":5000"),
            ("SET c other", "+OK"),
            ("COPY a c", ":0"),
            ("COPY a c DB 0 REPLACE", ":1"),
            ("MGET a b c", "*3 $1 v $1 v $1 v"),
            ("COPY nothing d", ":0"),
            ("COPY a a", "-ERR source and destination objects are the same"),
            ("COPY a b DB 99", "-ERR DB index is out of range"),
            ("COPY a b NOPE", "-ERR syntax error"),
        ]);
        clock.advance(Duration::from_secs(5));
        client.expect(&[("EXISTS a b c", ":0")]);
    });
}
