//! MULTI, EXEC, DISCARD, WATCH and UNWATCH.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use archipelago_base::clock::ManualClock;
use archipelago_env::mem::MemFs;

use crate::client::{Client, START_MS, encode, on_each_store, over_engine, start_with};

#[test]
fn transaction_answers_all_commands_at_exec() {
    on_each_store(|server, _clock| {
        let mut client = Client::connect(server);
        let mut other = Client::connect(server);
        client.expect(&[
            ("SET n 5", "+OK"),
            ("MULTI", "+OK"),
            ("INCR n", "+QUEUED"),
            ("SET k v", "+QUEUED"),
            ("GET k", "+QUEUED"),
            ("DEL n nothing", "+QUEUED"),
            ("EXISTS n k", "+QUEUED"),
        ]);
        other.expect(&[("GET n", "$1 5"), ("GET k", "$-1")]);
        client.expect(&[
            ("EXEC", "*5 :6 +OK $1 v :1 :1"),
            ("EXEC", "-ERR EXEC without MULTI"),
            ("GET n", "$-1"),
            ("MULTI", "+OK"),
            ("EXEC", "*0"),
        ]);
    });
}

#[test]
fn commands_of_a_transaction_see_each_other() {
    on_each_store(|server, clock| {
        let mut client = Client::connect(server);
        client.expect(&[
            ("MSET a 1 b 2 c 3", "+OK"),
            ("MULTI", "+OK"),
            ("DELRANGE [b (d", "+QUEUED"),
            ("SET bb new", "+QUEUED"),
            ("RANGE - +", "+QUEUED"),
            ("KEYS *", "+QUEUED"),
            ("DBSIZE", "+QUEUED"),
            ("PSETEX bb 50 soon", "+QUEUED"),
            ("PTTL bb", "+QUEUED"),
            ("APPEND a x", "+QUEUED"),
            ("RENAME a z", "+QUEUED"),
            ("MGET a bb z", "+QUEUED"),
            ("FLUSHDB", "+QUEUED"),
            ("MSETNX a 7 b 8", "+QUEUED"),
            ("SCAN 0", "+QUEUED"),
        ]);
        let replies = client.ask("EXEC");
        let expected = "*13 +OK +OK *4 $1 a $1 1 $2 bb $3 new *2 $1 a $2 bb :2 +OK :50 :2 +OK \
                        *3 $-1 $4 soon $2 1x +OK :1 *2 $1 0 *2 $1 a $1 b";
        assert_eq!(replies, expected);
        clock.advance(Duration::from_secs(1));
        client.expect(&[("RANGE - +", "*4 $1 a $1 7 $1 b $1 8")]);
    });
}

#[test]
fn command_that_cannot_be_queued_aborts_the_transaction() {
    on_each_store(|server, _clock| {
        let mut client = Client::connect(server);
        for wrong in [
            "NOPE",
            "GET",
            "SHUTDOWN",
            "CONFIG FOO",
            "CONFIG GET",
            "CLIENT SETNAME",
            "CLIENT ID 1",
            "OBJECT ENCODING",
            "OBJECT FREQ k l",
            "MEMORY USAGE",
            "SLOWLOG LEN 1",
            "LATENCY FOO",
            "COMMAND GETKEYS",
            "ACL WHOAMI k",
            "ACL HELP k",
        ] {
            client.expect(&[("MULTI", "+OK"), ("SET k v", "+QUEUED")]);
            assert!(client.ask(wrong).starts_with("-ERR "), "{wrong}");
            client.expect(&[
                ("PING", "+QUEUED"),
                ("EXEC", "-EXECABORT Transaction discarded because of previous errors."),
                ("GET k", "$-1"),
            ]);
        }
        client.expect(&[
            ("MULTI", "+OK"),
            ("MULTI", "-ERR MULTI calls can not be nested"),
            ("WATCH k", "-ERR WATCH inside MULTI is not allowed"),
            ("SET k v", "+QUEUED"),
            ("EXEC", "*1 +OK"),
            ("DISCARD", "-ERR DISCARD without MULTI"),
        ]);
    });
}

#[test]
fn command_that_fails_in_exec_leaves_the_others() {
    on_each_store(|server, _clock| {
        let mut client = Client::connect(server);
        client.expect(&[
            ("SET text abc", "+OK"),
            ("MULTI", "+OK"),
            ("SET a 1", "+QUEUED"),
            ("INCR text", "+QUEUED"),
            ("INCR a", "+QUEUED"),
            ("EXEC", "*3 +OK -ERR value is not an integer or out of range :2"),
            ("GET a", "$1 2"),
        ]);
    });
}

#[test]
fn discarded_or_reset_transaction_does_nothing() {
    on_each_store(|server, _clock| {
        let mut client = Client::connect(server);
        client.expect(&[
            ("MULTI", "+OK"),
            ("SET k v", "+QUEUED"),
            ("DISCARD", "+OK"),
            ("MULTI", "+OK"),
            ("SET k v", "+QUEUED"),
            ("RESET", "+RESET"),
            ("EXEC", "-ERR EXEC without MULTI"),
            ("GET k", "$-1"),
            ("MULTI", "+OK"),
            ("SET k v", "+QUEUED"),
            ("QUIT", "+OK"),
        ]);
        assert_eq!(client.try_reply(), None);
        Client::connect(server).expect(&[("GET k", "$-1")]);
    });
}

/// A write of another client to the key `k`, and whether a transaction that watches `k` succeeds.
fn watched(setup: &[&str], meanwhile: &[&str], goes_on: bool) {
    on_each_store(|server, clock| {
        let mut client = Client::connect(server);
        let mut other = Client::connect(server);
        setup.iter().for_each(|line| drop(client.ask(line)));
        client.expect(&[("WATCH other k", "+OK")]);
        for line in meanwhile {
            match line.strip_prefix("WAIT ") {
                Some(ms) => clock.advance(Duration::from_millis(ms.parse().unwrap())),
                None => drop(other.ask(line)),
            }
        }
        client.expect(&[
            ("MULTI", "+OK"),
            ("SET done yes", "+QUEUED"),
            ("EXEC", if goes_on { "*1 +OK" } else { "*-1" }),
            ("EXISTS done", if goes_on { ":1" } else { ":0" }),
        ]);
        // The watches end in both cases.
        other.ask("SET k new");
        client.expect(&[("MULTI", "+OK"), ("PING", "+QUEUED"), ("EXEC", "*1 +PONG")]);
    });
}

#[test]
fn watch_sees_every_kind_of_change() {
    let there = ["SET k v"];
    for change in [
        "SET k v",
        "SET k other",
        "APPEND k x",
        "SETRANGE k 0 x",
        "DEL k",
        "UNLINK k",
        "GETDEL k",
        "EXPIRE k 100",
        "GETEX k EX 100",
        "RENAME k elsewhere",
        "MSET a 1 k 2",
        "GETSET k 1",
        "FLUSHALL",
        "DELRANGE [a (z",
    ] {
        watched(&there, &[change], false);
    }
    for change in ["GET k", "SETNX k x", "SET k x NX", "EXPIRE nothing 1", "SET j 1", "PERSIST k"] {
        watched(&there, &[change], true);
    }
    watched(&there, &["DEL k", "SET k v"], false);
    watched(&["SET k v PX 100"], &["WAIT 99"], true);
    watched(&["SET k v PX 100"], &["WAIT 100"], false);
    watched(&["SET k v PX 100"], &["PERSIST k"], false);
}

#[test]
fn watch_of_an_absent_key_sees_that_it_was_there() {
    for change in [
        "SET k v",
        "SETNX k v",
        "MSET j 1 k 2",
        "INCR k",
        "APPEND k x",
        "SET k v PX 5",
        "MSETNX k 1",
    ] {
        watched(&[], &[change], false);
        watched(&[], &[change, "DEL k"], false);
        watched(&[], &[change, "FLUSHALL"], false);
    }
    for change in ["DEL k", "GET k", "FLUSHALL", "SET j v", "EXPIRE k 5", "SET k v XX"] {
        watched(&[], &[change], true);
    }
    watched(&["SET from v"], &["RENAME from k", "DEL k"], false);
    // An expired key is absent, so its removal is no change.
    watched(&["SET k v PX 10", "GET k"], &["WAIT 10"], false);
    on_each_store(|server, clock| {
        let mut client = Client::connect(server);
        client.expect(&[("SET k v PX 10", "+OK")]);
        clock.advance(Duration::from_millis(20));
        client.expect(&[
            ("WATCH k", "+OK"),
            ("DEL k", ":0"),
            ("FLUSHDB", "+OK"),
            ("MULTI", "+OK"),
            ("PING", "+QUEUED"),
            ("EXEC", "*1 +PONG"),
        ]);
    });
}

#[test]
fn watch_sees_what_other_transactions_and_pipelines_write() {
    on_each_store(|server, _clock| {
        for absent in [true, false] {
            let mut client = Client::connect(server);
            let mut other = Client::connect(server);
            client.ask(if absent { "DEL k" } else { "SET k v" });
            client.expect(&[("WATCH k", "+OK")]);
            other.expect(&[
                ("MULTI", "+OK"),
                ("SET k 1", "+QUEUED"),
                ("DEL k", "+QUEUED"),
                ("EXEC", "*2 +OK :1"),
            ]);
            // A transaction that restores the state at its start has changed no absent key for
            // other clients.
            let expected = if absent { "*1 +PONG" } else { "*-1" };
            client.expect(&[("MULTI", "+OK"), ("PING", "+QUEUED"), ("EXEC", expected)]);
            client.expect(&[("DEL k", ":0"), ("WATCH k", "+OK")]);
            other.send(&[encode(&["SET", "a", "1"]), encode(&["SET", "k", "2"])].concat());
            assert_eq!([other.reply(), other.reply()], ["+OK", "+OK"]);
            client.expect(&[("MULTI", "+OK"), ("PING", "+QUEUED"), ("EXEC", "*-1")]);
        }
    });
}

#[test]
fn many_keys_are_watched_once_each() {
    on_each_store(|server, _clock| {
        let (mut client, mut other) = (Client::connect(server), Client::connect(server));
        let keys: Vec<String> = (0..20_000).map(|n| format!("k{n}")).collect();
        let words = |keys: &[String]| format!("WATCH {}", keys.join(" "));
        client.expect(&[("SET k7 v", "+OK")]);
        client.expect(&[(&words(&keys), "+OK"), (&words(&keys[..9000]), "+OK")]);
        client.expect(&[("WATCH k1 k1 other other", "+OK")]);
        let info = client.ask("CLIENT INFO");
        assert!(info.contains(" watch=20001"), "{info}");
        // Another client changes one of them, which two commands have named.
        for (change, expected) in [("SET k7 w", "*-1"), ("SET k8 w", "*-1"), ("GET k7", "*1 +PONG")]
        {
            client.expect(&[(&words(&keys), "+OK"), (&words(&keys[..9]), "+OK")]);
            other.ask(change);
            client.expect(&[("MULTI", "+OK"), ("PING", "+QUEUED"), ("EXEC", expected)]);
        }
        assert!(client.ask("CLIENT INFO").contains(" watch=0"));
    });
}

#[test]
fn unwatch_forgets_the_watched_keys() {
    on_each_store(|server, _clock| {
        let mut client = Client::resp3(server);
        let mut other = Client::connect(server);
        client.expect(&[("WATCH k", "+OK"), ("WATCH k l", "+OK")]);
        let info = client.ask("CLIENT INFO");
        assert!(info.contains("multi=-1") && info.contains("watch=2"), "{info}");
        other.expect(&[("SET k v", "+OK")]);
        client.expect(&[
            ("UNWATCH", "+OK"),
            ("MULTI", "+OK"),
            ("PING", "+QUEUED"),
            ("EXEC", "*1 +PONG"),
            ("WATCH k", "+OK"),
        ]);
        other.expect(&[("SET k w", "+OK")]);
        client.expect(&[("MULTI", "+OK"), ("PING", "+QUEUED"), ("EXEC", "_")]);
    });
}

#[test]
fn transactions_are_isolated_and_lose_nothing() {
    on_each_store(|server, _clock| {
        let stop = AtomicBool::new(false);
        let mut client = Client::connect(server);
        client.expect(&[("MSET x 1000 y 0", "+OK")]);
        std::thread::scope(|scope| {
            let stop = &stop;
            let writers: Vec<_> = (0..4)
                .map(|thread| {
                    scope.spawn(move || {
                        let mut client = Client::connect(server);
                        for round in 0..100 {
                            if (thread + round) % 2 == 0 {
                                client.expect(&[("MULTI", "+OK"), ("DECR x", "+QUEUED")]);
                                client.expect(&[("INCR y", "+QUEUED")]);
                                assert!(client.ask("EXEC").starts_with("*2 :"));
                                continue;
                            }
                            // The same change with WATCH, until no other client has written in
                            // between.
                            loop {
                                client.expect(&[("WATCH x y", "+OK")]);
                                let number = |reply: String| -> i64 {
                                    reply.split(' ').nth(1).unwrap().parse().unwrap()
                                };
                                let (x, y) =
                                    (number(client.ask("GET x")), number(client.ask("GET y")));
                                client.ask("MULTI");
                                client.ask(&format!("SET x {}", x - 1));
                                client.ask(&format!("SET y {}", y + 1));
                                if client.ask("EXEC") == "*2 +OK +OK" {
                                    break;
                                }
                            }
                        }
                    })
                })
                .collect();
            scope.spawn(move || {
                let mut client = Client::connect(server);
                while !stop.load(Ordering::Relaxed) {
                    let reply = client.ask("MGET x y");
                    let words: Vec<&str> = reply.split(' ').collect();
                    let sum: i64 = [2, 4].iter().map(|&at| words[at].parse::<i64>().unwrap()).sum();
                    assert_eq!(sum, 1000, "{reply}");
                }
            });
            writers.into_iter().for_each(|writer| writer.join().unwrap());
            stop.store(true, Ordering::Relaxed);
        });
        client.expect(&[("MGET x y", "*2 $3 600 $3 400")]);
    });
}

#[test]
fn transaction_is_whole_or_absent_after_a_kill() {
    let fs = Arc::new(MemFs::new());
    let clock = Arc::new(ManualClock::new(START_MS));
    let (_db, server) = over_engine(&fs, &clock);
    let mut client = Client::connect(&server);
    for round in 0..20 {
        client.expect(&[("MULTI", "+OK"), ("FLUSHDB", "+QUEUED")]);
        for key in ["a", "b", "c"] {
            assert_eq!(client.ask(&format!("SET {key} {round}")), "+QUEUED");
        }
        client.expect(&[("EXEC", "*4 +OK +OK +OK +OK")]);
        let (_db, copy) = over_engine(&Arc::new(fs.kill_clone()), &clock);
        let round = round.to_string();
        let expected = format!("*3 ${0} {1} ${0} {1} ${0} {1}", round.len(), round);
        assert_eq!(Client::connect(&copy).ask("MGET a b c"), expected);
    }
}

#[test]
fn transactions_are_bounded() {
    let (server, _clock) = start_with(|options| {
        options.limits.request_bytes_max = 100_000;
        options.limits.bulk_bytes_max = 50_000;
        options.reply_bytes_max = 200_000;
    });
    let mut client = Client::connect(&server);
    let value = "v".repeat(40_000);
    client.expect(&[("MULTI", "+OK")]);
    assert_eq!(client.call(&["SET", "a", &value]), "+QUEUED");
    assert_eq!(client.call(&["SET", "b", &value]), "+QUEUED");
    assert!(client.call(&["SET", "c", &value]).contains("would exceed 100000 bytes"));
    client.expect(&[("EXEC", "-EXECABORT Transaction discarded because of previous errors.")]);
    client.expect(&[("MULTI", "+OK"), ("SETRANGE a 45000 x", "+QUEUED")]);
    client.expect(&[("SETRANGE b 45000 x", "+QUEUED"), ("SETRANGE c 45000 x", "+QUEUED")]);
    assert!(client.ask("EXEC").starts_with("-EXECABORT Transaction discarded because of: ERR it"));
    client.expect(&[("EXISTS a b c", ":0")]);
    assert_eq!(client.call(&["SET", "a", &value]), "+OK");
    client.expect(&[("MULTI", "+OK")]);
    (0..6).for_each(|_| assert_eq!(client.ask("GET a"), "+QUEUED"));
    assert!(client.ask("EXEC").contains("answers with more than 200000"));
    client.expect(&[("PING", "+PONG")]);
    // The server keeps three copies of an absent key.
    let keys: Vec<String> = (0..4).map(|nth| format!("{nth:010000}")).collect();
    assert_eq!(client.call(&["WATCH", &keys[0], &keys[1], &keys[2]]), "+OK");
    let refusal = "-ERR the watched keys would take more than 100000 bytes: watch fewer keys";
    assert_eq!(client.call(&["WATCH", "k", &keys[3]]), refusal);
    assert!(client.ask("CLIENT INFO").contains(" watch=3 "));
    client.expect(&[("UNWATCH", "+OK")]);
    assert_eq!(client.call(&["WATCH", &keys[3]]), "+OK");
}

#[test]
fn pipelined_transaction_is_no_batch_of_sets() {
    on_each_store(|server, _clock| {
        let mut client = Client::connect(server);
        let words: [&[&str]; 7] = [
            &["SET", "a", "0"],
            &["MULTI"],
            &["SET", "a", "1"],
            &["SET", "b", "2"],
            &["GET", "a"],
            &["EXEC"],
            &["GET", "b"],
        ];
        let bytes: Vec<u8> = words.iter().flat_map(|words| encode(words)).collect();
        client.send(&bytes);
        let replies: Vec<String> = words.iter().map(|_| client.reply()).collect();
        let expected = ["+OK", "+OK", "+QUEUED", "+QUEUED", "+QUEUED", "*3 +OK +OK $1 1", "$1 2"];
        assert_eq!(replies, expected);
    });
}
