//! SCAN and KEYS: options, cursors, and completeness during concurrent writes.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::client::{Client, encode, on_each_store};

/// Cursor and keys of a reply to SCAN.
fn parse(reply: &str) -> (String, Vec<String>) {
    let words: Vec<&str> = reply.split(' ').collect();
    assert_eq!(words[0], "*2", "{reply}");
    let keys = words[4..].iter().skip(1).step_by(2).map(|key| (*key).to_owned()).collect();
    (words[2].to_owned(), keys)
}

/// All keys of a whole iteration, and its number of steps.
fn scan_all(client: &mut Client, options: &str) -> (Vec<String>, usize) {
    let (mut all, mut cursor, mut steps) = (Vec::new(), "0".to_owned(), 0);
    loop {
        let (next, keys) = parse(&client.ask(format!("SCAN {cursor} {options}").trim_end()));
        all.extend(keys);
        steps += 1;
        if next == "0" {
            return (all, steps);
        }
        cursor = next;
    }
}

#[test]
fn options_and_errors() {
    on_each_store(|server, _clock| {
        let mut client = Client::connect(server);
        for n in 0..100 {
            client.ask(&format!("SET user:{n:03} v"));
            client.ask(&format!("SET item:{n:03} v"));
        }
        assert_eq!(scan_all(&mut client, "").0.len(), 200);
        let (keys, steps) = scan_all(&mut client, "COUNT 50");
        assert_eq!((keys.len(), steps), (200, 4));
        assert_eq!(scan_all(&mut client, "COUNT 10000").1, 1);
        // The literal prefix of the pattern bounds the scan, so half of the keys are never read.
        let (keys, steps) = scan_all(&mut client, "MATCH user:* COUNT 50");
        assert_eq!((keys.len(), steps), (100, 2));
        assert_eq!(scan_all(&mut client, "MATCH *:05?").0.len(), 20);
        assert_eq!(scan_all(&mut client, "MATCH user:007 TYPE string").0, ["user:007"]);
        assert_eq!(scan_all(&mut client, "TYPE list COUNT 1000").0.len(), 0);
        client.expect(&[
            ("SCAN x", "-ERR invalid cursor"),
            ("SCAN -1", "-ERR invalid cursor"),
            ("SCAN 18446744073709551616", "-ERR invalid cursor"),
            ("SCAN 0 COUNT 0", "-ERR syntax error"),
            ("SCAN 0 COUNT x", "-ERR value is not an integer or out of range"),
            ("SCAN 0 MATCH", "-ERR syntax error"),
            ("SCAN 0 BOGUS x", "-ERR syntax error"),
            ("KEYS user:00[0-2]", "*3 $8 user:000 $8 user:001 $8 user:002"),
            ("KEYS nothing*", "*0"),
        ]);
        assert!(client.ask("SCAN 123456").contains("start again with SCAN 0"));
    });
}

#[test]
fn step_can_be_repeated_by_any_client() {
    on_each_store(|server, _clock| {
        let mut client = Client::connect(server);
        let mut other = Client::connect(server);
        client.expect(&[("MSET a 1 b 2 c 3 d 4", "+OK")]);
        let (cursor, first) = parse(&client.ask("SCAN 0 COUNT 2"));
        assert_eq!(first, ["a", "b"]);
        let step = format!("SCAN {cursor} COUNT 2");
        assert_eq!(parse(&client.ask(&step)).1, ["c", "d"]);
        assert_eq!(parse(&other.ask(&step)).1, ["c", "d"]);
        // The key at the cursor may be removed.
        client.expect(&[("DEL b", ":1")]);
        assert_eq!(parse(&client.ask(&step)).1, ["c", "d"]);
    });
}

#[test]
fn cursor_survives_70_000_cursors_of_others() {
    on_each_store(|server, _clock| {
        let mut client = Client::connect(server);
        for n in 0..40 {
            client.ask(&format!("SET session:{n:06} v"));
        }
        let (cursor, first) = parse(&client.ask("SCAN 0 COUNT 10"));
        let mut other = Client::connect(server);
        for _ in 0..70 {
            other.send(&encode(&["SCAN", "0", "COUNT", "1"]).repeat(1000));
            (0..1000).for_each(|_| assert!(other.reply().starts_with("*2 ")));
        }
        let (next, rest) = parse(&client.ask(&format!("SCAN {cursor} COUNT 100")));
        assert_eq!((next.as_str(), first.len() + rest.len()), ("0", 40));
    });
}

#[test]
fn step_ends_after_a_mebibyte_of_keys() {
    on_each_store(|server, _clock| {
        let mut client = Client::connect(server);
        for n in 0..60 {
            let key = format!("{}{n:03}", "k".repeat(60_000));
            assert_eq!(client.call(&["SET", &key, "v"]), "+OK");
        }
        let (keys, steps) = scan_all(&mut client, "COUNT 1000000");
        assert_eq!(keys.len(), 60);
        assert!(steps >= 3, "{steps} steps for 3.6 MB of keys");
    });
}

#[test]
fn keys_that_stay_are_returned_once_during_other_writes() {
    on_each_store(|server, _clock| {
        let stop = AtomicBool::new(false);
        let mut client = Client::connect(server);
        for n in 0..500 {
            client.ask(&format!("SET stay:{n:04} v"));
        }
        std::thread::scope(|scope| {
            let (server, stop) = (&server, &stop);
            for writer in 0..2 {
                scope.spawn(move || {
                    let mut client = Client::connect(server);
                    let mut random = numbers(writer + 1);
                    while !stop.load(Ordering::Relaxed) {
                        let n = random() % 500;
                        client.ask(&format!("SET stay:{n:04}:x{writer} v"));
                        client.ask(&format!("DEL stay:{:04}:x{writer}", random() % 500));
                    }
                });
            }
            for count in [1, 7, 64, 3, 10] {
                let (keys, _) = scan_all(&mut client, &format!("COUNT {count}"));
                let mut seen = BTreeMap::new();
                for key in keys {
                    *seen.entry(key).or_insert(0) += 1;
                }
                for n in 0..500 {
                    assert_eq!(seen.get(&format!("stay:{n:04}")), Some(&1), "COUNT {count}");
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
    });
}

/// A small deterministic generator of numbers.
fn numbers(seed: u64) -> impl FnMut() -> u64 {
    let mut state = seed;
    move || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 33
    }
}
