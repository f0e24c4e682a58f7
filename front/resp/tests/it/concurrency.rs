//! Atomicity of read-modify-write commands, and many connections.

use std::sync::atomic::{AtomicBool, Ordering};

use archipelago_env::descriptors::raise_limit;

use crate::client::{Client, encode, on_each_store, start};

#[test]
fn increments_are_not_lost() {
    on_each_store(|server, _clock| {
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let server = &server;
                scope.spawn(move || {
                    let mut client = Client::connect(server);
                    // Half of them are sent in pipelines, and half one by one.
                    for _ in 0..20 {
                        client.send(&encode(&["INCR", "n"]).repeat(50));
                        for _ in 0..50 {
                            client.reply();
                        }
                        client.ask(&format!("APPEND log {thread}"));
                    }
                });
            }
        });
        let mut client = Client::connect(server);
        client.expect(&[("GET n", "$4 8000"), ("STRLEN log", ":160")]);
    });
}

#[test]
fn a_plain_set_does_not_slip_into_an_increment() {
    on_each_store(|server, _clock| {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (server, stop) = (&server, &stop);
            scope.spawn(move || {
                let mut client = Client::connect(server);
                while !stop.load(Ordering::Relaxed) {
                    client.ask("INCR k");
                }
            });
            // Each SET writes a much larger number. An increment that has read before it must not
            // undo it.
            let mut client = Client::connect(server);
            for round in 1..=500u64 {
                let floor = round * 1_000_000;
                let set = match round % 3 {
                    0 => format!("SET k {floor}"),
                    1 => format!("MSET other x k {floor}"),
                    _ => format!("GETSET k {floor}"),
                };
                client.ask(&set);
                let reply = client.ask("GET k");
                let now: u64 = reply.split(' ').nth(1).unwrap().parse().unwrap();
                assert!(now >= floor, "{now} after {floor}");
            }
            stop.store(true, Ordering::Relaxed);
        });
    });
}

#[test]
fn msetnx_and_mget_see_all_or_nothing() {
    on_each_store(|server, _clock| {
        let wins: Vec<usize> = std::thread::scope(|scope| {
            let run = |thread: usize| {
                let server = &server;
                move || {
                    let mut client = Client::connect(server);
                    let mut wins = 0;
                    for round in 0..100 {
                        let keys = [format!("a{round}"), format!("b{round}")];
                        let (x, y) = if thread.is_multiple_of(2) { (0, 1) } else { (1, 0) };
                        let set = format!("MSETNX {} {thread} {} {thread}", keys[x], keys[y]);
                        wins += usize::from(client.ask(&set) == ":1");
                        let both = client.ask(&format!("MGET a{round} b{round}"));
                        let words: Vec<&str> = both.split(' ').collect();
                        assert_eq!(words[2], words[4], "{both}");
                    }
                    wins
                }
            };
            let threads: Vec<_> = (0..4).map(|thread| scope.spawn(run(thread))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(wins.iter().sum::<usize>(), 100);
    });
}

#[test]
fn flushdb_runs_in_parallel_with_increments() {
    on_each_store(|server, _clock| {
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let mut client = Client::connect(server);
                    for _ in 0..300 {
                        assert!(client.ask("INCR n").starts_with(':'));
                    }
                });
            }
            let mut client = Client::connect(server);
            for _ in 0..50 {
                client.expect(&[("FLUSHDB", "+OK"), ("DELRANGE [a (z", "+OK")]);
            }
        });
        let mut client = Client::connect(server);
        client.expect(&[("FLUSHDB", "+OK"), ("INCR n", ":1")]);
    });
}

#[test]
fn two_thousand_connections() {
    // Both ends of each connection are in this process, and other tests may run in it, too.
    let limit = raise_limit();
    assert!(limit >= 5000, "5000 descriptors are needed, not {limit}: raise `ulimit -n`");
    let (server, _clock) = start();
    let mut clients: Vec<Client> = (0..2000).map(|_| Client::connect(&server)).collect();
    for (n, client) in clients.iter_mut().enumerate() {
        client.send_words(&["SET", &format!("k{n}"), "v"]);
        client.send_words(&["INCR", "all"]);
    }
    for client in &mut clients {
        assert_eq!(client.reply(), "+OK");
        assert!(client.reply().starts_with(':'));
    }
    assert_eq!(server.clients(), 2000);
    clients[7].expect(&[("GET all", "$4 2000"), ("DBSIZE", ":2001")]);
    assert!(server.shutdown());
}
