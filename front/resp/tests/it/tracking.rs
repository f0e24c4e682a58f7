//! CLIENT TRACKING: invalidations that clients of RESP3 receive.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use archipelago_base::Result;
use archipelago_resp::mem_store::MemStore;
use archipelago_resp::store::{Head, Op, PinnedSlice, Store, StoredValue};
use archipelago_resp::{Server, ServerOptions};

use crate::client::{Client, encode, on_each_store, start, start_with};

/// The message that invalidates `keys`.
fn invalid(keys: &[&str]) -> String {
    let keys: String = keys.iter().map(|key| format!(" ${} {key}", key.len())).collect();
    format!(">2 $10 invalidate *{}{keys}", keys.split_whitespace().count() / 2)
}

const ALL_INVALID: &str = ">2 $10 invalidate _";

/// A connection of RESP3 that tracks keys.
fn tracking(server: &Server, options: &str) -> Client {
    let mut client = Client::resp3(server);
    let line = format!("CLIENT TRACKING ON {options}");
    assert_eq!(client.ask(line.trim_end()), "+OK");
    client
}

/// Value of the figure `name` of INFO.
fn figure(client: &mut Client, name: &str) -> u64 {
    let info = client.ask("INFO all");
    let line = info.split(' ').find_map(|word| word.strip_prefix(&format!("{name}:")));
    line.unwrap_or_else(|| panic!("no {name} in {info}")).parse().unwrap()
}

/// The keys that a message invalidates; `None` for all keys.
fn keys_of(message: &str) -> Option<Vec<String>> {
    let mut words = message.strip_prefix(">2 $10 invalidate ").expect(message).split(' ');
    let count: usize = words.next()?.strip_prefix('*')?.parse().unwrap();
    let keys: Vec<String> = words.skip(1).step_by(2).map(str::to_owned).collect();
    assert_eq!(keys.len(), count, "{message}");
    Some(keys)
}

/// Reads messages until they have named all these keys, in any order.
#[track_caller]
fn expect_told(client: &mut Client, keys: &[&str]) {
    let expected: BTreeSet<String> = keys.iter().map(|key| (*key).to_owned()).collect();
    let mut told = BTreeSet::new();
    while told.len() < expected.len() {
        told.extend(keys_of(&client.reply()).expect("keys"));
    }
    assert_eq!(told, expected);
}

#[test]
fn clients_that_track_keys_are_closed_on_request() {
    let (server, _clock) = start();
    let (mut plain, mut tracker) = (Client::connect(&server), tracking(&server, ""));
    plain.expect(&[("SET a 1", "+OK")]);
    tracker.expect(&[("GET a", "$1 1")]);
    let monitor = server.monitor();
    assert_eq!(monitor.close_tracking_clients(), 1);
    assert_eq!(tracker.try_reply(), None, "the connection is closed");
    plain.expect(&[("GET a", "$1 1")]);
    assert_eq!(monitor.close_tracking_clients(), 0);
}

#[test]
fn key_that_was_read_is_invalid_after_a_write_once() {
    on_each_store(|server, _clock| {
        let mut reader = tracking(server, "");
        let mut writer = Client::connect(server);
        reader.expect(&[("GET k", "_"), ("GET other", "_")]);
        writer.expect(&[("SET unread 1", "+OK"), ("SET k 1", "+OK")]);
        assert_eq!(reader.reply(), invalid(&["k"]));
        writer.expect(&[("SET k 2", "+OK")]);
        reader.expect(&[("PING", "+PONG"), ("GET k", "$1 2")]);
        writer.expect(&[("SET k 3", "+OK")]);
        assert_eq!(reader.reply(), invalid(&["k"]));
        reader.expect(&[("CLIENT TRACKING OFF", "+OK"), ("GET k", "$1 3")]);
        writer.expect(&[("SET k 4", "+OK"), ("SET other 1", "+OK")]);
        reader.expect(&[("PING", "+PONG")]);
    });
}

#[test]
fn every_kind_of_write_invalidates_its_key() {
    on_each_store(|server, _clock| {
        let mut reader = tracking(server, "");
        let mut writer = Client::connect(server);
        let pipeline = [encode(&["SET", "k", "1"]), encode(&["SET", "x", "1"])].concat();
        for line in [
            "SET k 2",
            "SET k 2 XX GET",
            "SET k 2 PX 5000",
            "SET k 2 PXAT 1",
            "SETEX k 5 2",
            "GETSET k 2",
            "GETDEL k",
            "GETEX k EX 5",
            "GETEX k PXAT 1",
            "MSET a 1 k 2",
            "APPEND k x",
            "SETRANGE k 3 x",
            "INCR k",
            "DECRBY k 7",
            "INCRBYFLOAT k 0.5",
            "DEL k",
            "DEL other k",
            "UNLINK k",
            "RENAME k new",
            "RENAME from k",
            "COPY from k REPLACE",
            "EXPIRE k 5",
            "PEXPIREAT k 1",
            "DELRANGE [j (l",
            "DELRANGE [k [k",
        ] {
            writer.expect(&[("MSET k 1 from 2 other 3", "+OK"), ("DEL new a", ":0")]);
            for read in ["GET k", "MGET a k", "STRLEN k", "GETRANGE k 0 1", "EXISTS k", "TTL k"] {
                reader.ask(read);
            }
            let reply = writer.ask(line);
            assert!(!reply.starts_with('-') && reply != ":0", "{line}: {reply}");
            let mut told = BTreeSet::new();
            while !told.contains("k") {
                told.extend(keys_of(&reader.reply()).expect("keys"));
            }
            let may = ["a", "k"].map(str::to_owned);
            assert!(told.iter().all(|key| may.contains(key)), "{line}: {told:?}");
            writer.ask("DEL new a");
            reader = tracking(server, "");
        }
        for line in ["SETNX n 1", "MSETNX n 1 m 2", "RENAMENX from n", "COPY from n"] {
            writer.expect(&[("DEL n m", ":0"), ("SET from 1", "+OK")]);
            reader.expect(&[("GET n", "_")]);
            writer.ask(line);
            assert_eq!(reader.reply(), invalid(&["n"]), "{line}");
            assert_ne!(writer.ask("DEL n m"), ":0");
        }
        writer.expect(&[("SET k 1 EX 9", "+OK")]);
        reader.expect(&[("GET k", "$1 1")]);
        writer.expect(&[("PERSIST k", ":1")]);
        assert_eq!(reader.reply(), invalid(&["k"]));
        reader.expect(&[("MGET k x", "*2 $1 1 _")]);
        writer.send(&pipeline);
        assert_eq!([writer.reply(), writer.reply()], ["+OK", "+OK"]);
        expect_told(&mut reader, &["k", "x"]);
        reader.expect(&[("PING", "+PONG")]);
    });
}

#[test]
fn write_that_changes_nothing_invalidates_nothing() {
    on_each_store(|server, _clock| {
        let mut reader = tracking(server, "");
        let mut writer = Client::connect(server);
        writer.expect(&[("SET k text", "+OK")]);
        reader.expect(&[("GET k", "$4 text"), ("GET absent", "_")]);
        for line in ["SETNX k 1", "DEL absent", "SET absent 1 XX", "GETDEL absent", "PERSIST k"] {
            writer.ask(line);
        }
        assert!(writer.ask("INCR k").starts_with("-ERR"));
        writer.expect(&[("MULTI", "+OK"), ("SET k 1", "+QUEUED"), ("DISCARD", "+OK")]);
        reader.expect(&[("PING", "+PONG")]);
    });
}

#[test]
fn own_write_is_invalidated_after_its_reply_unless_noloop() {
    on_each_store(|server, _clock| {
        let mut writer = Client::connect(server);
        let mut client = tracking(server, "");
        client.expect(&[("GET k", "_"), ("SET k 1", "+OK")]);
        assert_eq!(client.reply(), invalid(&["k"]));
        client.expect(&[
            ("MGET k l", "*2 $1 1 _"),
            ("MULTI", "+OK"),
            ("SET k 2", "+QUEUED"),
            ("SET l 2", "+QUEUED"),
            ("EXEC", "*2 +OK +OK"),
        ]);
        assert_eq!(client.reply(), invalid(&["k", "l"]));
        client.expect(&[("DEL k l", ":2"), ("CLIENT TRACKING ON NOLOOP", "+OK")]);
        client.expect(&[("GET k", "_"), ("SET k 1", "+OK"), ("INCR k", ":2"), ("PING", "+PONG")]);
        // The client may keep what it has written, so it receives invalidations for the writes of
        // others.
        writer.expect(&[("SET k 3", "+OK")]);
        assert_eq!(client.reply(), invalid(&["k"]));
        client.expect(&[("GET k", "$1 3"), ("FLUSHDB", "+OK")]);
        assert_eq!(client.reply(), ALL_INVALID, "as in Redis");
    });
}

#[test]
fn transaction_invalidates_its_keys_when_it_is_committed() {
    on_each_store(|server, _clock| {
        let mut reader = tracking(server, "");
        let mut writer = Client::connect(server);
        writer.expect(&[("MSET a 1 b 2 c 3 d 4", "+OK")]);
        reader.expect(&[("MGET a b c d e", "*5 $1 1 $1 2 $1 3 $1 4 _")]);
        writer.expect(&[
            ("MULTI", "+OK"),
            ("INCR a", "+QUEUED"),
            ("DEL b", "+QUEUED"),
            ("DELRANGE [c [c", "+QUEUED"),
            ("COPY d e", "+QUEUED"),
        ]);
        reader.expect(&[("PING", "+PONG")]);
        writer.expect(&[("EXEC", "*4 :2 :1 +OK :1")]);
        expect_told(&mut reader, &["a", "b", "c", "e"]);
        reader.expect(&[("GET d", "$1 4")]);
        writer.expect(&[("MULTI", "+OK"), ("FLUSHDB", "+QUEUED"), ("EXEC", "*1 +OK")]);
        assert_eq!(reader.reply(), ALL_INVALID);
    });
}

#[test]
fn flush_invalidates_all_keys_of_every_tracking_client() {
    on_each_store(|server, _clock| {
        let mut plain = tracking(server, "");
        let mut broadcast = tracking(server, "BCAST PREFIX user:");
        let mut writer = Client::connect(server);
        for flush in ["FLUSHDB", "FLUSHALL"] {
            plain.expect(&[("GET k", "_")]);
            writer.expect(&[(flush, "+OK")]);
            assert_eq!([plain.reply(), broadcast.reply()], [ALL_INVALID, ALL_INVALID]);
            assert_eq!(figure(&mut writer, "tracking_total_keys"), 0);
        }
    });
}

#[test]
fn broadcast_invalidates_all_keys_with_a_prefix() {
    on_each_store(|server, _clock| {
        let mut client = tracking(server, "BCAST PREFIX user: PREFIX item:");
        let mut all = tracking(server, "BCAST NOLOOP");
        let mut writer = Client::connect(server);
        writer.expect(&[("MSET user:1 a other b item:7 c", "+OK")]);
        expect_told(&mut client, &["item:7", "user:1"]);
        expect_told(&mut all, &["item:7", "other", "user:1"]);
        all.expect(&[("SET user:2 x", "+OK"), ("PING", "+PONG")]);
        assert_eq!(client.reply(), invalid(&["user:2"]));
        client.expect(&[("SET user:2 y", "+OK")]);
        assert_eq!(client.reply(), invalid(&["user:2"]));
        assert_eq!(all.reply(), invalid(&["user:2"]));
        // The keys of a range are not known, so all keys with the prefix may be invalid.
        writer.expect(&[("DELRANGE [user:1 (user:2", "+OK"), ("DELRANGE [a (b", "+OK")]);
        assert_eq!(client.reply(), ALL_INVALID);
        client.expect(&[("PING", "+PONG")]);
        assert_eq!(figure(&mut writer, "tracking_total_prefixes"), 3);
        drop(client);
        while figure(&mut writer, "tracking_total_prefixes") > 1 {
            std::thread::sleep(Duration::from_millis(5));
        }
    });
}

#[test]
fn optin_and_optout_follow_client_caching() {
    on_each_store(|server, _clock| {
        let mut writer = Client::connect(server);
        let mut client = tracking(server, "OPTIN");
        client.expect(&[
            ("GET a", "_"),
            ("CLIENT CACHING YES", "+OK"),
            ("GET b", "_"),
            ("GET c", "_"),
            // These are the commands of rueidis for each value that it caches.
            ("CLIENT CACHING YES", "+OK"),
            ("MULTI", "+OK"),
            ("PTTL d", "+QUEUED"),
            ("GET d", "+QUEUED"),
            ("EXEC", "*2 :-2 _"),
            ("GET e", "_"),
        ]);
        writer.expect(&[("MSET a 1 b 1 c 1 d 1 e 1", "+OK")]);
        expect_told(&mut client, &["b", "d"]);
        client.expect(&[("PING", "+PONG"), ("CLIENT TRACKING OFF", "+OK")]);
        client.expect(&[
            ("CLIENT TRACKING ON OPTOUT", "+OK"),
            ("GET a", "$1 1"),
            ("CLIENT CACHING NO", "+OK"),
            ("GET b", "$1 1"),
            ("GET c", "$1 1"),
        ]);
        writer.expect(&[("MSET a 2 b 2 c 2", "+OK")]);
        expect_told(&mut client, &["a", "c"]);
        client.expect(&[("PING", "+PONG")]);
    });
}

#[test]
fn key_is_invalid_when_its_deadline_passes() {
    on_each_store(|server, clock| {
        let mut writer = Client::connect(server);
        let mut reader = tracking(server, "");
        let mut broadcast = tracking(server, "BCAST PREFIX k");
        for read in ["GET k", "MGET x k", "EXISTS k x", "PTTL k"] {
            writer.expect(&[("SET k v PX 50", "+OK"), ("SET stays v PX 5000", "+OK")]);
            assert_eq!(broadcast.reply(), invalid(&["k"]));
            reader.ask("GET stays");
            reader.ask(read);
            clock.advance(Duration::from_millis(50));
            assert_eq!(reader.reply(), invalid(&["k"]), "{read}");
            assert_eq!(broadcast.reply(), invalid(&["k"]), "{read}");
            writer.expect(&[("SET stays v", "+OK")]);
            assert_eq!(reader.reply(), invalid(&["stays"]));
        }
        // Another connection reads on behalf of the client that tracks.
        reader.expect(&[("CLIENT TRACKING OFF", "+OK")]);
        writer.expect(&[("SET k v PX 50", "+OK"), ("GET k", "$1 v")]);
        assert_eq!(broadcast.reply(), invalid(&["k"]));
        clock.advance(Duration::from_millis(50));
        assert_eq!(broadcast.reply(), invalid(&["k"]));
        while figure(&mut writer, "tracking_total_keys") > 0 {
            std::thread::sleep(Duration::from_millis(5));
        }
    });
}

#[test]
fn deadline_read_by_any_command_reaches_broadcast_clients() {
    on_each_store(|server, clock| {
        let mut writer = Client::connect(server);
        for (command, reply) in [
            ("GETEX k", "$1 v"),
            ("SET k w NX GET", "$1 v"),
            ("SETNX k w", ":0"),
            ("RANGE [k [k", "*2 $1 k $1 v"),
        ] {
            // This record is written before any client needs its deadline.
            writer.expect(&[("SET k v PX 50", "+OK")]);
            let mut broadcast = tracking(server, "BCAST PREFIX k");
            assert_eq!(figure(&mut writer, "tracking_total_keys"), 0);
            writer.expect(&[(command, reply)]);
            clock.advance(Duration::from_millis(50));
            assert_eq!(broadcast.reply(), invalid(&["k"]), "{command}");
            broadcast.expect(&[("CLIENT TRACKING OFF", "+OK")]);
        }
    });
}

#[test]
fn own_deadline_of_a_noloop_client_is_invalidated() {
    let (server, clock) = start();
    let mut client = tracking(&server, "NOLOOP");
    client.expect(&[("GET k", "_"), ("SET k v PX 50", "+OK"), ("PING", "+PONG")]);
    clock.advance(Duration::from_millis(50));
    assert_eq!(client.reply(), invalid(&["k"]));
}

#[test]
fn full_table_evicts_keys_and_invalidates_them() {
    let (server, _clock) = start_with(|options| options.tracking_keys_max = 10);
    let mut client = tracking(&server, "");
    let mut other = Client::connect(&server);
    let mut told = Vec::new();
    for n in 0..25 {
        client.send_words(&["GET", &format!("k{n:02}")]);
        let mut reply = client.reply();
        while reply.starts_with('>') {
            told.extend(keys_of(&reply).expect("keys"));
            reply = client.reply();
        }
        assert_eq!(reply, "_");
    }
    while told.len() < 15 {
        told.extend(keys_of(&client.reply()).expect("keys"));
    }
    client.expect(&[("PING", "+PONG")]);
    assert_eq!(figure(&mut other, "tracking_total_keys"), 10);
    assert_eq!(figure(&mut other, "tracking_total_items"), 10);
    other.expect(&[("CONFIG SET tracking-table-max-keys 2", "+OK")]);
    while told.len() < 23 {
        told.extend(keys_of(&client.reply()).expect("keys"));
    }
    assert_eq!(figure(&mut other, "tracking_total_keys"), 2);
    assert_eq!(told.iter().collect::<BTreeSet<_>>().len(), 23, "{told:?}");
    for n in 0..25 {
        other.expect(&[(&format!("SET k{n:02} v"), "+OK")]);
    }
    while told.len() < 25 {
        told.extend(keys_of(&client.reply()).expect("keys"));
    }
    assert_eq!(told.iter().collect::<BTreeSet<_>>().len(), 25, "{told:?}");
}

#[test]
fn client_that_ends_leaves_nothing_in_the_table() {
    let (server, _clock) = start();
    let mut other = Client::connect(&server);
    let mut stays = tracking(&server, "");
    let mut leaves = tracking(&server, "");
    stays.expect(&[("GET k", "_")]);
    leaves.expect(&[("MGET k l m", "*3 _ _ _")]);
    assert_eq!(figure(&mut other, "tracking_clients"), 2);
    assert_eq!(figure(&mut other, "tracking_total_items"), 4);
    drop(leaves);
    while figure(&mut other, "tracking_total_items") > 1 {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(figure(&mut other, "tracking_total_keys"), 1);
    assert_eq!(figure(&mut other, "tracking_clients"), 1);
    drop(stays);
    while figure(&mut other, "tracking_total_keys") > 0 {
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn options_that_contradict_each_other_are_refused() {
    let (server, _clock) = start();
    let mut client = Client::resp3(&server);
    let switch = |what: &str| {
        format!(
            "-ERR You can't switch {what} before disabling tracking for this client, and then \
             re-enabling it with a different mode."
        )
    };
    let overlap =
        |text: &str| format!("-ERR Prefix {text}. Prefixes for a single client must not overlap.");
    client.expect(&[
        ("CLIENT TRACKING", "-ERR wrong number of arguments for 'client|tracking' command"),
        ("CLIENT TRACKING MAYBE", "-ERR syntax error"),
        ("CLIENT TRACKING ON LOUDLY", "-ERR syntax error"),
        ("CLIENT TRACKING ON PREFIX", "-ERR syntax error"),
        ("CLIENT TRACKING ON PREFIX a", "-ERR PREFIX option requires BCAST mode to be enabled"),
        ("CLIENT TRACKING ON BCAST OPTIN", "-ERR OPTIN and OPTOUT are not compatible with BCAST"),
        (
            "CLIENT TRACKING ON OPTIN OPTOUT",
            "-ERR You can't specify both OPTIN mode and OPTOUT mode",
        ),
        (
            "CLIENT TRACKING ON BCAST PREFIX foo PREFIX foobar",
            &overlap("'foo' overlaps with another provided prefix 'foobar'"),
        ),
        (
            "CLIENT CACHING YES",
            "-ERR CLIENT CACHING can be called only when the client is in tracking mode with OPTIN \
             or OPTOUT mode enabled",
        ),
        ("CLIENT GETREDIR", ":-1"),
        ("CLIENT TRACKINGINFO", "%3 $5 flags ~1 $3 off $8 redirect :-1 $8 prefixes *0"),
        ("CLIENT TRACKING ON BCAST PREFIX foo PREFIX bar", "+OK"),
        ("CLIENT TRACKING ON", &switch("BCAST mode on/off")),
        (
            "CLIENT TRACKING ON BCAST PREFIX fo",
            &overlap("'fo' overlaps with an existing prefix 'foo'"),
        ),
        ("CLIENT TRACKING ON BCAST PREFIX baz", "+OK"),
        (
            "CLIENT TRACKINGINFO",
            "%3 $5 flags ~2 $2 on $5 bcast $8 redirect :0 $8 prefixes *3 $3 foo $3 bar $3 baz",
        ),
        ("CLIENT TRACKING OFF", "+OK"),
        ("CLIENT TRACKING ON OPTIN NOLOOP", "+OK"),
        ("CLIENT TRACKING ON OPTOUT", &switch("OPTIN/OPTOUT mode")),
        (
            "CLIENT CACHING NO",
            "-ERR CLIENT CACHING NO is only valid when tracking is enabled in OPTOUT mode.",
        ),
        ("CLIENT CACHING MAYBE", "-ERR syntax error"),
        ("CLIENT CACHING YES", "+OK"),
        (
            "CLIENT TRACKINGINFO",
            "%3 $5 flags ~4 $2 on $5 optin $11 caching-yes $6 noloop $8 redirect :0 $8 prefixes *0",
        ),
        ("CLIENT GETREDIR", ":0"),
        ("MULTI", "+OK"),
        ("CLIENT TRACKING ON OPTIN", "+QUEUED"),
        ("CLIENT GETREDIR", "+QUEUED"),
        (
            "EXEC",
            "*2 -ERR CLIENT TRACKING is not possible inside a transaction: send it before MULTI :0",
        ),
    ]);
}

#[test]
fn tracking_needs_resp3_and_ends_with_it() {
    let (server, _clock) = start();
    let mut two = Client::connect(&server);
    assert!(two.ask("CLIENT TRACKING ON").starts_with("-ERR CLIENT TRACKING needs RESP3"));
    two.expect(&[("CLIENT TRACKING OFF", "+OK"), ("CLIENT GETREDIR", ":-1")]);
    let mut three = tracking(&server, "");
    assert!(three.ask("CLIENT TRACKING ON REDIRECT 1").starts_with("-ERR REDIRECT is not"));
    assert!(three.ask("HELLO 2").starts_with("-ERR RESP2 has no messages"));
    let list = two.ask("CLIENT LIST");
    assert!(list.contains("flags=N ") && list.contains(" redir=-1 "), "{list}");
    assert!(list.contains("flags=t ") && list.contains(" redir=0 "), "{list}");
    three.expect(&[("CLIENT TRACKING OFF", "+OK"), ("CLIENT TRACKING ON BCAST", "+OK")]);
    assert!(three.ask("CLIENT INFO").contains("flags=tB "));
    three.expect(&[("MULTI", "+OK")]);
    assert!(two.ask("CLIENT LIST").contains("flags=xtB "));
    three.expect(&[("DISCARD", "+OK")]);
    three.expect(&[("RESET", "+RESET"), ("CLIENT GETREDIR", ":-1")]);
    assert_eq!(figure(&mut two, "tracking_clients"), 0);
}

#[test]
fn rueidis_connects_with_its_defaults() {
    let (server, _clock) = start();
    let mut client = Client::resp3(&server);
    let lines = [
        "CLIENT TRACKING ON OPTIN",
        "CLIENT SETINFO LIB-NAME rueidis",
        "CLIENT SETINFO LIB-VER 1.0.50",
        "CLIENT NO-TOUCH ON",
    ];
    let words = lines.map(|line| encode(&line.split(' ').collect::<Vec<_>>()));
    client.send(&words.concat());
    assert_eq!(lines.map(|_| client.reply()), ["+OK"; 4]);
}

/// A client that keeps the values that it has read until they are invalidated.
struct Caching {
    client: Client,
    opts_in: bool,
    cache: HashMap<String, String>,
}

impl Caching {
    fn connect(server: &Server, options: &str) -> Self {
        let client = tracking(server, options);
        Self { client, opts_in: options == "OPTIN", cache: HashMap::new() }
    }

    /// The next reply. Invalidations before it are obeyed.
    fn reply(&mut self) -> String {
        loop {
            let reply = self.client.reply();
            if !reply.starts_with('>') {
                return reply;
            }
            match keys_of(&reply) {
                Some(keys) => keys.iter().for_each(|key| drop(self.cache.remove(key))),
                None => self.cache.clear(),
            }
        }
    }

    fn read(&mut self, key: &str) {
        if self.cache.contains_key(key) {
            self.client.send_words(&["PING"]);
            assert_eq!(self.reply(), "+PONG");
            return;
        }
        if self.opts_in {
            let commands: [&[&str]; 5] = [
                &["CLIENT", "CACHING", "YES"],
                &["MULTI"],
                &["PTTL", key],
                &["GET", key],
                &["EXEC"],
            ];
            self.client.send(&commands.map(encode).concat());
            let replies = commands.map(|_| self.reply());
            let value = replies[4].split_once(' ').and_then(|(_, both)| both.split_once(' '));
            self.cache.insert(key.to_owned(), value.expect("two replies").1.to_owned());
        } else {
            self.client.send_words(&["GET", key]);
            let value = self.reply();
            self.cache.insert(key.to_owned(), value);
        }
    }
}

/// One write of a changing kind to one or two of eight keys.
fn write(client: &mut Client, thread: u64, round: u64, value: u64) {
    let key = |n: u64| format!("k{}", (round * 5 + thread * 3 + n) % 8);
    let (a, b) = (key(0), key(1));
    let line = match round % 9 {
        0 => format!("SET {a} {value}"),
        1 => format!("MSET {a} {value} {b} {value}"),
        2 => format!("DEL {a} {b}"),
        3 => format!("GETSET {a} {value}"),
        4 => format!("RENAME {a} {b}"),
        5 => format!("COPY {a} {b} REPLACE"),
        6 => format!("DELRANGE [{a} [{a}"),
        7 => {
            client.expect(&[("MULTI", "+OK"), (&format!("SET {a} {value}"), "+QUEUED")]);
            client.expect(&[(&format!("DEL {b}"), "+QUEUED")]);
            "EXEC".to_owned()
        }
        _ => {
            client.send(&encode(&["SET", &a, &value.to_string()]));
            client.send(&encode(&["SET", &b, &value.to_string()]));
            assert_eq!(client.reply(), "+OK");
            assert_eq!(client.reply(), "+OK");
            return;
        }
    };
    client.ask(&line);
}

#[test]
fn cache_is_never_outdated_when_the_server_is_quiet() {
    on_each_store(|server, _clock| {
        let (values, is_quiet) = (AtomicU64::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let (values, is_quiet) = (&values, &is_quiet);
            let writers: Vec<_> = (0..3u64)
                .map(|thread| {
                    scope.spawn(move || {
                        let mut client = Client::connect(server);
                        for round in 0..300 {
                            let value = values.fetch_add(1, Ordering::Relaxed);
                            write(&mut client, thread, round, value);
                        }
                    })
                })
                .collect();
            for options in ["", "OPTIN", "NOLOOP", "BCAST PREFIX k", "BCAST"] {
                scope.spawn(move || {
                    let mut caching = Caching::connect(server, options);
                    let mut round = 0;
                    while !is_quiet.load(Ordering::SeqCst) {
                        round += 1;
                        caching.read(&format!("k{}", round % 8));
                        if round % 100 == 0 {
                            // The first reads of a client that has just begun matter as well.
                            caching = Caching::connect(server, options);
                            (0..8).for_each(|n| caching.read(&format!("k{n}")));
                        }
                    }
                    caching.client.send_words(&["PING"]);
                    assert_eq!(caching.reply(), "+PONG");
                    let mut other = Client::resp3(server);
                    for (key, cached) in &caching.cache {
                        assert_eq!(other.ask(&format!("GET {key}")), *cached, "{key} {options}");
                    }
                });
            }
            for writer in writers {
                writer.join().unwrap();
            }
            is_quiet.store(true, Ordering::SeqCst);
        });
    });
}

/// A store in memory whose next read waits after it has read, or whose next write waits before it
/// writes.
#[derive(Default)]
struct Gated {
    records: MemStore,
    holds_read: AtomicBool,
    holds_write: AtomicBool,
    /// Whether a read or a write waits.
    is_waiting: AtomicBool,
}

impl Gated {
    /// Waits while `gate` is closed.
    fn pass(&self, gate: &AtomicBool) {
        while gate.load(Ordering::SeqCst) {
            self.is_waiting.store(true, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Closes `gate`, makes `client` run into it, and returns when the client waits there.
    fn hold(&self, gate: &AtomicBool, client: &mut Client, words: &[&str]) {
        self.is_waiting.store(false, Ordering::SeqCst);
        gate.store(true, Ordering::SeqCst);
        client.send_words(words);
        while !self.is_waiting.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Store for Gated {
    fn get(&self, key: &[u8]) -> Result<Option<StoredValue>> {
        let entry = self.records.get(key);
        self.pass(&self.holds_read);
        entry
    }

    fn head(&self, key: &[u8]) -> Result<Option<Head>> {
        self.records.head(key)
    }

    fn multi_get(&self, keys: &[&[u8]]) -> Result<Vec<Option<PinnedSlice>>> {
        self.records.multi_get(keys)
    }

    fn write(&self, ops: &[Op<'_>]) -> Result<()> {
        self.pass(&self.holds_write);
        self.records.write(ops)
    }

    crate::records::pass_scans_to_records!();

    fn would_stall(&self, _: bool) -> bool {
        self.holds_read.load(Ordering::SeqCst) || self.holds_write.load(Ordering::SeqCst)
    }
}

#[test]
fn write_between_read_and_reply_is_invalidated_after_the_reply() {
    let store = Arc::new(Gated::default());
    let options = ServerOptions { worker_threads: 4, ..ServerOptions::default() };
    let server = Server::start("127.0.0.1:0", Arc::clone(&store) as _, options).unwrap();
    let mut writer = Client::connect(&server);
    writer.expect(&[("SET k old", "+OK")]);
    for mode in ["", "BCAST"] {
        let mut reader = tracking(&server, mode);
        store.hold(&store.holds_read, &mut reader, &["GET", "k"]);
        writer.expect(&[("SET k new", "+OK")]);
        store.holds_read.store(false, Ordering::SeqCst);
        assert_eq!([reader.reply(), reader.reply()], ["$3 old", &invalid(&["k"])], "{mode}");
        reader.expect(&[("GET k", "$3 new")]);
        writer.expect(&[("SET k old", "+OK")]);
    }
}

#[test]
fn read_during_a_write_is_invalid_when_the_write_is_done() {
    let store = Arc::new(Gated::default());
    let options = ServerOptions { worker_threads: 4, ..ServerOptions::default() };
    let server = Server::start("127.0.0.1:0", Arc::clone(&store) as _, options).unwrap();
    let mut writer = Client::connect(&server);
    let commands: [&[&str]; 4] =
        [&["SET", "k", "new"], &["INCR", "k"], &["DEL", "k"], &["MSET", "k", "1", "l", "1"]];
    for words in commands {
        writer.expect(&[("SET k 7", "+OK")]);
        let mut reader = tracking(&server, "");
        store.hold(&store.holds_write, &mut writer, words);
        reader.expect(&[("GET k", "$1 7"), ("PING", "+PONG")]);
        store.holds_write.store(false, Ordering::SeqCst);
        assert_eq!(reader.reply(), invalid(&["k"]), "{words:?}");
        assert!(!writer.reply().starts_with('-'));
    }
}

/// A client turns tracking on while a write is running.
#[test]
fn tracking_begins_after_writes_that_have_begun() {
    let store = Arc::new(Gated::default());
    let options = ServerOptions { worker_threads: 4, ..ServerOptions::default() };
    let server = Server::start("127.0.0.1:0", Arc::clone(&store) as _, options).unwrap();
    let (mut writer, mut reader) = (Client::connect(&server), Client::resp3(&server));
    store.hold(&store.holds_write, &mut writer, &["SET", "k", "new"]);
    reader.send(&[encode(&["CLIENT", "TRACKING", "ON"]), encode(&["GET", "k"])].concat());
    store.holds_write.store(false, Ordering::SeqCst);
    assert_eq!([reader.reply(), reader.reply()], ["+OK", "$3 new"]);
    assert_eq!(writer.reply(), "+OK");
}

#[test]
fn client_caching_in_a_transaction_ends_with_it() {
    on_each_store(|server, _clock| {
        let mut writer = Client::connect(server);
        for (mode, said, told) in [("OPTOUT", "NO", "b"), ("OPTIN", "YES", "a")] {
            let mut reader = tracking(server, mode);
            reader.expect(&[
                ("MULTI", "+OK"),
                (&format!("CLIENT CACHING {said}"), "+QUEUED"),
                ("GET a", "+QUEUED"),
                ("EXEC", "*2 +OK _"),
                ("GET b", "_"),
            ]);
            assert!(!reader.ask("CLIENT TRACKINGINFO").contains("caching-"), "{mode}");
            writer.expect(&[("SET a 1", "+OK"), ("SET b 1", "+OK")]);
            assert_eq!(reader.reply(), invalid(&[told]), "{mode}");
            reader.expect(&[("PING", "+PONG")]);
            writer.expect(&[("DEL a b", ":2")]);
        }
    });
}
