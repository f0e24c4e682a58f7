//! Hostile and slow clients take no more than their part of the memory budget.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use archipelago_base::Result;
use archipelago_base::budget::{ByteBudget, MemoryClass};
use archipelago_resp::mem_store::MemStore;
use archipelago_resp::store::{Op, PinnedSlice, Store, StoredValue};
use archipelago_resp::{Server, ServerOptions};
use socket2::SockRef;

use crate::client::{Client, encode, socket, start, start_with};

/// Each of the shares of the budget of [`bounded`].
const SHARE_BYTES: u64 = 4 << 20;

/// Bytes that connections may take besides the shares: small buffers, and the rest of the last
/// command.
const SLACK_BYTES: u64 = 8 << 20;

fn bounded(change: impl FnOnce(&mut ServerOptions)) -> (Server, Arc<ByteBudget>) {
    let budget = ByteBudget::new(4 * SHARE_BYTES);
    let (server, _clock) = start_with(|options| {
        options.budget = Arc::clone(&budget);
        change(options);
    });
    (server, budget)
}

fn request_bytes(budget: &ByteBudget) -> u64 {
    budget.used_bytes(MemoryClass::Request)
}

#[test]
fn large_requests_wait_for_each_other() {
    let (server, budget) = bounded(|_| {});
    let value = vec![b'v'; 3 << 19];
    let (ended, mut most) = (AtomicBool::new(false), 0);
    std::thread::scope(|scope| {
        let clients = (0..20).map(|n| {
            let (server, value) = (&server, &value);
            scope.spawn(move || {
                let mut client = Client::connect(server);
                for _ in 0..3 {
                    let request = encode(&[b"SET", format!("k{n}").as_bytes(), value]);
                    client.send(&request);
                    assert_eq!(client.reply(), "+OK");
                }
            })
        });
        let clients: Vec<_> = clients.collect();
        let watcher = scope.spawn(|| {
            let mut most = 0;
            while !ended.load(Ordering::Relaxed) {
                most = most.max(request_bytes(&budget));
                std::thread::sleep(Duration::from_millis(1));
            }
            most
        });
        clients.into_iter().for_each(|client| client.join().unwrap());
        ended.store(true, Ordering::Relaxed);
        most = watcher.join().unwrap();
    });
    assert!(most <= SHARE_BYTES + SLACK_BYTES, "{most} bytes of requests");
}

#[test]
fn half_sent_requests_block_no_client_for_ever() {
    let (server, budget) = bounded(|options| options.memory_wait = Duration::from_millis(200));
    let head = b"*3\r\n$3\r\nSET\r\n$4\r\nhalf\r\n$3145728\r\n";
    let mut half_sent: Vec<Client> = (0..10).map(|_| Client::connect(&server)).collect();
    for client in &mut half_sent {
        let _is_sent = client.try_send(&[&head[..], &vec![b'v'; 200 << 10]].concat());
    }
    let mut other = Client::connect(&server);
    other.expect(&[("SET small v", "+OK"), ("GET small", "$1 v")]);
    assert!(request_bytes(&budget) <= SHARE_BYTES + SLACK_BYTES);
    // A large request runs after one that makes no progress was closed.
    let value = vec![b'v'; 3 << 20];
    let is_set = (0..50).any(|_| {
        let mut client = Client::connect(&server);
        let _is_sent = client.try_send(&encode(&[b"SET", &b"large"[..], &value]));
        client.try_reply().as_deref() == Some("+OK")
    });
    assert!(is_set, "large requests are refused for ever");
    other.expect(&[("STRLEN large", ":3145728"), ("EXISTS half", ":0")]);
}

#[test]
fn request_beyond_its_share_is_refused_with_the_limit() {
    let (server, _budget) = bounded(|_| {});
    let mut client = Client::connect(&server);
    let _is_sent = client.try_send(&encode(&[b"SET", &b"k"[..], &vec![b'v'; 5 << 20]]));
    let reply = client.reply();
    assert!(reply.starts_with("-OOM 5242"), "{reply}");
    let limit =
        "requests that are being received may take 4194304 bytes, so this can never be done";
    assert!(reply.contains(limit), "{reply}");
    assert_eq!(client.try_reply(), None);
    Client::connect(&server).expect(&[("EXISTS k", ":0")]);
}

#[test]
fn queue_beyond_its_share_is_refused_and_dropped() {
    let (server, budget) = bounded(|_| {});
    let mut client = Client::connect(&server);
    let value = vec![b'v'; 3 << 19];
    client.expect(&[("MULTI", "+OK")]);
    for key in [b"a", b"b"] {
        assert_eq!(client.call(&[&b"SET"[..], key, &value]), "+QUEUED");
    }
    assert!(request_bytes(&budget) >= 3 << 20, "the queue is charged");
    let reply = client.call(&[&b"SET"[..], b"c", &value]);
    let limit = "may take 4194304 bytes, so this can never be done; raise --memory-mib";
    assert!(reply.starts_with("-OOM 471") && reply.contains(limit), "{reply:.200}");
    // EXEC will refuse the transaction, so nothing is kept for it.
    client.expect(&[("SET d v", "+QUEUED")]);
    assert!(request_bytes(&budget) < 3 << 20, "{} bytes", request_bytes(&budget));
    client.expect(&[
        ("EXEC", "-EXECABORT Transaction discarded because of previous errors."),
        ("EXISTS a b c d", ":0"),
    ]);
}

#[test]
fn queues_and_watched_keys_of_all_clients_are_bounded_together() {
    let (server, budget) = bounded(|_| {});
    let value = vec![b'v'; 3 << 19];
    let mut first = Client::connect(&server);
    first.expect(&[("MULTI", "+OK")]);
    assert_eq!(first.call(&[&b"SET"[..], b"a", &value]), "+QUEUED");
    // A watched key without a value takes three times its length.
    let mut watching = Client::connect(&server);
    let keys = (0..10).map(|nth| format!("{nth:060000}"));
    let watch: Vec<String> = ["WATCH".to_owned()].into_iter().chain(keys).collect();
    assert_eq!(watching.call(&watch), "+OK");
    let mut last = Client::connect(&server);
    last.expect(&[("MULTI", "+OK")]);
    let reply = last.call(&[&b"SET"[..], b"b", &value]);
    let head = "-OOM 157";
    let limit = "may take 4194304 bytes, which others hold; try again, or raise --memory-mib";
    assert!(reply.starts_with(head) && reply.contains(limit), "{reply:.300}");
    let abort = "-EXECABORT Transaction discarded because of previous errors.";
    last.expect(&[("EXEC", abort), ("EXISTS b", ":0")]);
    assert!(request_bytes(&budget) <= SHARE_BYTES + SLACK_BYTES);
    // Small transactions need no memory of the share.
    last.expect(&[("MULTI", "+OK"), ("INCR n", "+QUEUED"), ("EXEC", "*1 :1")]);
    first.expect(&[("EXEC", "*1 +OK")]);
    last.expect(&[("MULTI", "+OK")]);
    assert_eq!(last.call(&[&b"SET"[..], b"b", &value]), "+QUEUED");
    last.expect(&[("EXEC", "*1 +OK"), ("STRLEN b", ":1572864")]);
    watching.expect(&[("UNWATCH", "+OK")]);
    assert!(last.ask("INFO memory").contains("request_memory_transactions:0 "));
}

#[test]
fn client_that_keeps_memory_of_transactions_from_others_is_closed() {
    let (server, _budget) = bounded(|options| options.memory_wait = Duration::from_millis(200));
    let value = vec![b'v'; 3 << 19];
    let (mut idle, mut other) = (Client::connect(&server), Client::connect(&server));
    idle.expect(&[("MULTI", "+OK")]);
    for key in [b"a", b"b"] {
        assert_eq!(idle.call(&[&b"SET"[..], key, &value]), "+QUEUED");
    }
    let mut is_queued = || {
        other.expect(&[("MULTI", "+OK")]);
        let reply = other.call(&[&b"SET"[..], b"c", &value]);
        assert!(reply == "+QUEUED" || reply.starts_with("-OOM 157"), "{reply:.200}");
        let executed = other.ask("EXEC");
        assert!(executed == "*1 +OK" || executed.starts_with("-EXECABORT "), "{executed}");
        reply == "+QUEUED"
    };
    while !is_queued() {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(idle.try_reply(), None);
    other.expect(&[("EXISTS a b", ":0"), ("STRLEN c", ":1572864")]);
}

#[test]
fn watched_keys_beyond_their_share_are_refused() {
    let (server, budget) = bounded(|_| {});
    let (mut client, mut other) = (Client::connect(&server), Client::connect(&server));
    let words = |from: usize| {
        let keys = (from..from + 10).map(|nth| format!("{nth:060000}"));
        ["WATCH".to_owned()].into_iter().chain(keys).collect::<Vec<_>>()
    };
    assert_eq!(client.call(&words(0)), "+OK");
    assert_eq!(client.call(&words(10)), "+OK");
    let reply = client.call(&words(20));
    let limit = "may take 4194304 bytes, so this can never be done; raise --memory-mib";
    assert!(reply.starts_with("-OOM 4") && reply.contains(limit), "{reply:.200}");
    assert!(client.ask("CLIENT INFO").contains(" watch=20 "));
    assert!(request_bytes(&budget) <= SHARE_BYTES + SLACK_BYTES);
    // The keys of the refused command are not watched, and the others are.
    assert_eq!(other.call(&["SET", &words(20)[1], "v"]), "+OK");
    client.expect(&[("MULTI", "+OK"), ("PING", "+QUEUED"), ("EXEC", "*1 +PONG")]);
    assert_eq!(client.call(&words(20)), "+OK");
    assert_eq!(other.call(&["DEL", &words(20)[1]]), ":1");
    client.expect(&[("MULTI", "+OK"), ("PING", "+QUEUED"), ("EXEC", "*-1")]);
}

#[test]
fn values_beyond_their_share_are_not_built() {
    let (server, budget) = bounded(|_| {});
    let mut client = Client::connect(&server);
    client.expect(&[("SETRANGE old 1048575 x", ":1048576")]);
    let tail = "t".repeat(2 << 20);
    for words in [
        &["SETRANGE", "k", "536870911", "x"][..],
        &["SETRANGE", "old", "2097152", "x"],
        &["APPEND", "old", &tail],
    ] {
        let reply = client.call(words);
        assert!(reply.starts_with("-OOM "), "{words:.20?}: {reply:.200}");
        assert!(reply.contains("values that running commands build may take 4194304 bytes"));
    }
    client.expect(&[("EXISTS k", ":0"), ("STRLEN old", ":1048576"), ("APPEND old x", ":1048577")]);
    assert!(request_bytes(&budget) <= SHARE_BYTES + SLACK_BYTES);
}

#[test]
fn unread_replies_are_bounded_and_others_are_served() {
    let (server, budget) = bounded(|options| options.memory_wait = Duration::from_millis(200));
    let mut other = Client::connect(&server);
    assert_eq!(other.ask("SETRANGE big 1572863 x"), ":1572864");
    let mut slow: Vec<Client> = (0..12).map(|_| Client::connect(&server)).collect();
    for client in &mut slow {
        client.send(&encode(&["GET", "big"]).repeat(40));
    }
    let mut reader = Client::connect(&server);
    let mut reads = || {
        let is_sent = reader.try_send(&encode(&["GET", "big"]));
        let reply = if is_sent { reader.try_reply() } else { None };
        if reply.is_none() {
            // A client that reads too slowly is closed like those that do not read.
            reader = Client::connect(&server);
        }
        reply.is_some_and(|reply| reply.starts_with("$1572864 "))
    };
    // Clients that do not read hold the share until other clients need it. The one that checks the
    // rest holds nothing, so it is never closed.
    for _ in 0..3 {
        let is_read = (0..50).any(|_| reads());
        assert!(is_read, "replies are refused for ever");
        assert!(request_bytes(&budget) <= SHARE_BYTES + SLACK_BYTES);
        other.expect(&[("PING", "+PONG")]);
    }
    let line = "request_memory_outgoing_max:4194304";
    assert!(other.ask("INFO memory").contains(line));
}

#[test]
fn unread_pipelines_are_bounded_and_others_are_served() {
    let (server, budget) = bounded(|options| options.memory_wait = Duration::from_millis(200));
    let mut other = Client::connect(&server);
    let key = "k".repeat(1000);
    other.expect(&[(&format!("SETRANGE {key} 9999 x"), ":10000")]);
    let pipeline = encode(&["GET", &key]).repeat(1 << 16);
    // These clients read nothing, and send until the server receives no more.
    let deaf = [socket(server.local_addr()), socket(server.local_addr())];
    std::thread::scope(|scope| {
        for mut stream in &deaf {
            let pipeline = &pipeline;
            stream.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
            SockRef::from(stream).set_send_buffer_size(64 << 10).unwrap();
            scope.spawn(move || assert!(stream.write_all(pipeline).is_err(), "it is received"));
        }
    });
    assert!(request_bytes(&budget) <= SHARE_BYTES + SLACK_BYTES);
    other.expect(&[("PING", "+PONG")]);
    // Each of these clients holds at most a quarter of the share, so a request of another quarter
    // does not wait until they are closed.
    assert_eq!(other.call(&[&b"SET"[..], b"medium", &vec![b'v'; 1 << 20]]), "+OK");
    assert_eq!(server.clients(), 3);
    // A large request runs after the clients that do not read were closed.
    let request = encode(&[b"SET", &b"large"[..], &vec![b'v'; 3 << 20]]);
    let is_set = (0..50).any(|_| {
        let mut client = Client::connect(&server);
        let _is_sent = client.try_send(&request);
        client.try_reply().as_deref() == Some("+OK")
    });
    assert!(is_set, "large requests are refused for ever");
    other.expect(&[("STRLEN large", ":3145728")]);
    drop(deaf);
}

#[test]
fn pipeline_of_changes_with_large_replies_is_answered() {
    let (server, _budget) = bounded(|_| {});
    let mut client = Client::connect(&server);
    for key in ["a", "b", "c"] {
        assert_eq!(client.ask(&format!("SETRANGE {key} 2000000 x")), ":2000001");
    }
    // This is a large pipeline of replies, each of which counts removed keys.
    client.send(&["a", "b", "c"].map(|key| encode(&["GETDEL", key])).concat());
    for _ in 0..3 {
        assert!(client.reply().starts_with("$2000001 "));
    }
    // One reply that is larger than the share is refused before it is made.
    for key in ["a", "b", "c"] {
        assert_eq!(client.ask(&format!("SETRANGE {key} 2000000 x")), ":2000001");
    }
    let reply = client.ask("MGET a b c");
    assert_eq!(reply, "-ERR the reply would exceed 4194304 bytes: ask for fewer keys at once");
}

/// Bytes of unread replies, according to INFO.
fn outgoing_bytes(client: &mut Client) -> u64 {
    let info = client.ask("INFO memory");
    let mut fields = info.split(' ');
    let bytes = fields.find_map(|field| field.strip_prefix("request_memory_outgoing:"));
    bytes.unwrap().parse().unwrap()
}

/// A transaction that answers the value of `key`.
fn reading_transaction(key: &str) -> Vec<u8> {
    let commands: [&[&str]; 3] = [&["MULTI"], &["GET", key], &["EXEC"]];
    commands.map(encode).concat()
}

/// Each of the shares of the budget of [`wide`].
const WIDE_SHARE_BYTES: u64 = 64 << 20;

/// Settings with a budget of which a share has room for two values of `huge` ([`fill`]). A command
/// that waits for memory would wait for ever.
fn wide() -> ServerOptions {
    ServerOptions {
        budget: ByteBudget::new(4 * WIDE_SHARE_BYTES),
        memory_wait: Duration::from_secs(3600),
        worker_threads: 2,
        ..ServerOptions::default()
    }
}

fn start_wide() -> Server {
    let store = Arc::new(MemStore::new(archipelago_base::clock::SystemClock::shared()));
    Server::start("127.0.0.1:0", store, wide()).unwrap()
}

/// Clients that read nothing and hold the whole share for replies. No socket takes a reply of
/// theirs, so they hold it until they are dropped: two hold a reply, and the third waits for memory
/// and gets the rest of the share. `other` is connected to the same server.
fn fill(server: &Server, other: &mut Client) -> [Client; 3] {
    assert_eq!(other.ask("SETRANGE huge 25165823 x"), ":25165824");
    let getex = || encode(&["GETEX", "huge"]);
    let deaf = [getex(), reading_transaction("huge"), getex()].map(|command| {
        let stream = socket(server.local_addr());
        SockRef::from(&stream).set_recv_buffer_size(64 << 10).unwrap();
        let mut client = Client::over(stream);
        client.send(&command);
        client
    });
    while outgoing_bytes(other) < WIDE_SHARE_BYTES {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(outgoing_bytes(other), WIDE_SHARE_BYTES, "a reply is beyond the share");
    deaf
}

/// Waits until the last command of the client called `name` is `command`. A command that waits for
/// memory of its reply counts.
fn await_command(other: &mut Client, name: &str, command: &str) {
    let (name, command) = (format!(" name={name} "), format!(" cmd={command} "));
    let is_it = |line: &str| line.contains(&name) && line.contains(&command);
    while !other.ask("CLIENT LIST").lines().any(is_it) {
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn command_waits_for_memory_of_its_reply_before_it_changes_a_key() {
    let server = start_wide();
    let mut other = Client::connect(&server);
    for key in ["a", "b", "c", "d", "e"] {
        assert_eq!(other.ask(&format!("SETRANGE {key} 99999 x")), ":100000");
    }
    let deaf = fill(&server, &mut other);
    let mut waiting = ["GETDEL a", "GETSET b new", "GETEX c EX 100", "SET d new GET"].map(|line| {
        let mut client = Client::connect(&server);
        let command = line.split(' ').next().unwrap().to_lowercase();
        assert_eq!(client.ask(&format!("CLIENT SETNAME {command}")), "+OK");
        client.send_words(&line.split(' ').collect::<Vec<_>>());
        await_command(&mut other, &command, &command);
        client
    });
    let mut executing = Client::connect(&server);
    executing.expect(&[
        ("CLIENT SETNAME executing", "+OK"),
        ("WATCH n", "+OK"),
        ("MULTI", "+OK"),
        ("SET n 1", "+QUEUED"),
        ("GETDEL e", "+QUEUED"),
    ]);
    executing.send_words(&["EXEC"]);
    await_command(&mut other, "executing", "exec");
    for key in ["a", "b", "c", "d", "e"] {
        let (strlen, ttl) = (format!("STRLEN {key}"), format!("TTL {key}"));
        other.expect(&[(&strlen, ":100000"), (&ttl, ":-1"), (&format!("EXISTS {key}"), ":1")]);
    }
    other.expect(&[("EXISTS n", ":0"), ("PING", "+PONG")]);
    assert_eq!(outgoing_bytes(&mut other), WIDE_SHARE_BYTES);
    drop(deaf);
    for client in &mut waiting {
        assert!(client.reply().starts_with("$100000 "));
    }
    assert!(executing.reply().starts_with("*2 +OK $100000 "));
    let sizes = [("EXISTS a e", ":0"), ("MGET b d n", "*3 $3 new $3 new $1 1")];
    other.expect(&sizes);
    assert_ne!(other.ask("TTL c"), ":-1");
}

#[test]
fn transaction_that_waits_for_its_reply_acts_on_the_server_once() {
    let server = start_wide();
    let (mut client, mut other) = (Client::connect(&server), Client::connect(&server));
    assert_eq!(other.ask("SETRANGE a 99999 x"), ":100000");
    let mut victim = Client::connect(&server);
    let kill = format!("CLIENT KILL ID {}", victim.ask("CLIENT ID").trim_start_matches(':'));
    let deaf = fill(&server, &mut other);
    client.expect(&[
        ("CLIENT SETNAME acting", "+OK"),
        ("MULTI", "+OK"),
        ("CONFIG SET timeout 700", "+QUEUED"),
        (&kill, "+QUEUED"),
        ("GETDEL a", "+QUEUED"),
    ]);
    client.send_words(&["EXEC"]);
    await_command(&mut other, "acting", "exec");
    victim.expect(&[("PING", "+PONG")]);
    other.expect(&[("CONFIG GET timeout", "*2 $7 timeout $1 0"), ("EXISTS a", ":1")]);
    drop(deaf);
    assert!(client.reply().starts_with("*3 +OK :1 $100000 "));
    assert_eq!(victim.try_reply(), None);
    other.expect(&[("CONFIG GET timeout", "*2 $7 timeout $3 700"), ("EXISTS a", ":0")]);
}

#[test]
fn transaction_that_waits_for_its_reply_sees_writes_of_watched_keys() {
    let server = start_wide();
    let (mut client, mut other) = (Client::connect(&server), Client::connect(&server));
    assert_eq!(other.ask("SETRANGE a 99999 x"), ":100000");
    let deaf = fill(&server, &mut other);
    client.expect(&[
        ("CLIENT SETNAME watching", "+OK"),
        ("WATCH n", "+OK"),
        ("MULTI", "+OK"),
        ("GETDEL a", "+QUEUED"),
    ]);
    client.send_words(&["EXEC"]);
    await_command(&mut other, "watching", "exec");
    other.expect(&[("SET n 1", "+OK")]);
    drop(deaf);
    assert_eq!(client.reply(), "*-1");
    other.expect(&[("EXISTS a", ":1")]);
}

#[test]
fn commands_with_small_replies_run_while_the_share_is_full() {
    let server = start_wide();
    let mut other = Client::connect(&server);
    let _deaf = fill(&server, &mut other);
    other.expect(&[
        ("PING", "+PONG"),
        ("SET k v", "+OK"),
        ("SET k w EX 10", "+OK"),
        ("MULTI", "+OK"),
        ("INCR n", "+QUEUED"),
        ("EXEC", "*1 :1"),
        ("GETDEL", "-ERR wrong number of arguments for 'getdel' command"),
    ]);
    // A transaction that cannot be executed has no large reply.
    other.expect(&[("MULTI", "+OK"), ("GETEX k", "+QUEUED")]);
    assert!(other.ask("NOSUCH").starts_with("-ERR unknown command"));
    let refusal = "-EXECABORT Transaction discarded because of previous errors.";
    other.expect(&[("GET k", "+QUEUED"), ("EXEC", refusal)]);
    let commands: [&[&str]; 5] = [
        &["CLIENT", "REPLY", "OFF"],
        &["GETDEL", "k"],
        &["CLIENT", "REPLY", "ON"],
        &["EXISTS", "k"],
        &["INCR", "n"],
    ];
    other.send(&commands.map(encode).concat());
    assert_eq!([other.reply(), other.reply(), other.reply()], ["+OK", ":0", ":2"]);
}

#[test]
fn unread_small_replies_overdraw_the_share_by_little() {
    let server = start_wide();
    let mut other = Client::connect(&server);
    assert_eq!(other.ask("SETRANGE small 999 x"), ":1000");
    let _deaf = fill(&server, &mut other);
    let before = outgoing_bytes(&mut other);
    // Such a command changes the key, and its reply is small, so it does not wait for memory.
    let pipeline = encode(&["SET", "small", &"p".repeat(1000), "GET"]).repeat(1 << 16);
    // These clients read nothing, and send until the server receives no more.
    let deaf: Vec<_> = (0..8).map(|_| socket(server.local_addr())).collect();
    std::thread::scope(|scope| {
        for mut stream in &deaf {
            let pipeline = &pipeline;
            stream.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
            SockRef::from(stream).set_send_buffer_size(64 << 10).unwrap();
            scope.spawn(move || assert!(stream.write_all(pipeline).is_err(), "it is received"));
        }
    });
    let bytes = outgoing_bytes(&mut other);
    // The server stops a client at the bytes that no share counts, and one reply.
    let most = before + 8 * (128 << 10);
    assert!((before..=most).contains(&bytes), "{bytes} bytes, not {before} to {most}");
    other.expect(&[("PING", "+PONG")]);
}

#[test]
fn batches_of_reads_do_not_overdraw_the_share_further() {
    let store = Arc::new(Overlapping::default());
    let server = Server::start("127.0.0.1:0", store, wide()).unwrap();
    let mut other = Client::connect(&server);
    let _deaf = fill(&server, &mut other);
    let readers = [4, 40].map(|reads| {
        let (mut client, name) = (Client::connect(&server), format!("reads{reads}"));
        assert_eq!(client.ask(&format!("CLIENT SETNAME {name}")), "+OK");
        client.send(&encode(&["GET", "huge"]).repeat(reads));
        await_command(&mut other, &name, "get");
        client
    });
    assert_eq!(outgoing_bytes(&mut other), WIDE_SHARE_BYTES);
    other.expect(&[("SET k v", "+OK"), ("GET k", "$1 v")]);
    drop(readers);
}

#[test]
fn descriptions_of_commands_are_bounded() {
    let (server, _budget) = bounded(|_| {});
    let mut client = Client::connect(&server);
    for subcommand in ["INFO", "DOCS"] {
        let names = std::iter::repeat_n("getex", 1 << 16);
        let words: Vec<&str> = ["COMMAND", subcommand].into_iter().chain(names).collect();
        let limit = "-ERR the reply would exceed 4194304 bytes: ask for fewer commands at once";
        assert_eq!(client.call(&words), limit, "{subcommand}");
    }
}

#[test]
fn unread_replies_of_transactions_are_bounded() {
    let (server, _budget) = bounded(|options| options.memory_wait = Duration::from_millis(200));
    let mut other = Client::connect(&server);
    assert_eq!(other.ask("SETRANGE big 1572863 x"), ":1572864");
    assert_eq!(other.ask("SETRANGE small 99999 x"), ":100000");
    let mut deaf: Vec<Client> = (0..24).map(|_| Client::connect(&server)).collect();
    for (nth, client) in deaf.iter_mut().enumerate() {
        let command =
            if nth % 2 == 0 { encode(&["GETEX", "big"]) } else { reading_transaction("big") };
        client.send(&command.repeat(40));
    }
    for _ in 0..300 {
        other.expect(&[("PING", "+PONG"), ("SET k v", "+OK")]);
        let bytes = outgoing_bytes(&mut other);
        assert!(bytes <= SHARE_BYTES, "{bytes} bytes of replies");
    }
    // A command that waits until those clients are closed runs, or is refused as a whole.
    let mut refused = 0;
    let is_removed = (0..50).any(|_| {
        let reply = other.ask("GETDEL small");
        let is_removed = reply.starts_with("$100000 ");
        refused += u32::from(!is_removed);
        assert!(is_removed || reply.starts_with("-OOM 100032 "), "{reply:.200}");
        other.expect(&[("EXISTS small", if is_removed { ":0" } else { ":1" })]);
        is_removed
    });
    assert!(is_removed, "GETDEL is refused for ever");
    let stats = other.ask("INFO commandstats");
    let mut of_getdel = stats.split(' ').filter(|line| line.starts_with("cmdstat_getdel:"));
    let counted = format!("rejected_calls={refused},failed_calls=0");
    assert!(of_getdel.any(|line| line.ends_with(&counted)), "{refused} refusals: {stats}");
    let is_done = (0..50).any(|_| {
        let commands = [("MULTI", "+OK"), ("APPEND done x", "+QUEUED"), ("GET big", "+QUEUED")];
        other.expect(&commands);
        let reply = other.ask("EXEC");
        let is_done = reply.starts_with("*2 :1 $1572864 ");
        let refusal = "-EXECABORT Transaction discarded because of: OOM ";
        assert!(is_done || reply.starts_with(refusal), "{reply:.200}");
        other.expect(&[("EXEC", "-ERR EXEC without MULTI")]);
        is_done
    });
    assert!(is_done, "EXEC is refused for ever");
}

/// A store in memory, which reads the keys of a pipeline together.
#[derive(Default)]
struct Overlapping {
    records: MemStore,
}

impl Store for Overlapping {
    fn get(&self, key: &[u8]) -> Result<Option<StoredValue>> {
        self.records.get(key)
    }

    fn multi_get(&self, keys: &[&[u8]]) -> Result<Vec<Option<PinnedSlice>>> {
        self.records.multi_get(keys)
    }

    fn write(&self, ops: &[Op<'_>]) -> Result<()> {
        self.records.write(ops)
    }

    crate::records::pass_scans_to_records!();

    fn overlaps_reads(&self) -> bool {
        true
    }
}

#[test]
fn batches_of_reads_obey_the_output_limit() {
    let options = ServerOptions { output_bytes_max: 1 << 20, ..ServerOptions::default() };
    let store = Arc::new(Overlapping::default());
    let server = Server::start("127.0.0.1:0", store, options).unwrap();
    let mut other = Client::connect(&server);
    assert_eq!(other.ask("SETRANGE big 599999 x"), ":600000");
    // A few reads join those of other connections, and many are a batch of their own.
    for reads in [4, 12] {
        let mut client = Client::connect(&server);
        client.send(&encode(&["GET", "big"]).repeat(reads));
        assert_eq!(client.try_reply(), None, "{reads} reads");
    }
    let stats = other.ask("INFO stats");
    assert!(stats.contains("client_output_buffer_limit_disconnections:2"), "{stats}");
}

#[test]
fn client_over_its_output_limit_is_closed_and_counted() {
    let (server, _clock) = start_with(|options| options.output_bytes_max = 1 << 20);
    let mut other = Client::connect(&server);
    assert_eq!(other.ask("SETRANGE big 2097151 x"), ":2097152");
    let mut client = Client::connect(&server);
    client.send(&encode(&["GET", "big"]));
    assert_eq!(client.try_reply(), None);
    let stats = other.ask("INFO stats");
    assert!(stats.contains("client_output_buffer_limit_disconnections:1"), "{stats}");
    assert!(other.ask("CONFIG GET client-output*").ends_with(" normal 1048576 0 0"));
}

#[test]
fn client_over_its_soft_output_limit_is_closed_after_a_time() {
    let (server, _clock) = start();
    let mut other = Client::connect(&server);
    let deaf = [("small", 12 << 20), ("large", 24 << 20)].map(|(name, bytes)| {
        assert_eq!(other.ask(&format!("SETRANGE {name} {} x", bytes - 1)), format!(":{bytes}"));
        let stream = socket(server.local_addr());
        SockRef::from(&stream).set_recv_buffer_size(64 << 10).unwrap();
        let mut client = Client::over(stream);
        assert_eq!(client.ask(&format!("CLIENT SETNAME {name}")), "+OK");
        // No socket takes the reply as a whole.
        client.send_words(&["GET", name]);
        client
    });
    other.await_stuck(2);
    let limit = ["CONFIG", "SET", "client-output-buffer-limit", "normal 0 16mb 1"];
    assert_eq!(other.call(&limit), "+OK");
    while server.clients() > 2 {
        std::thread::sleep(Duration::from_millis(5));
    }
    let clients = other.ask("CLIENT LIST");
    assert!(clients.contains(" name=small ") && !clients.contains(" name=large "), "{clients}");
    let stats = other.ask("INFO stats");
    assert!(stats.contains("client_output_buffer_limit_disconnections:1"), "{stats}");
    drop(deaf);
}

#[test]
fn idle_timeout_reaches_clients_that_send_a_byte_now_and_then() {
    let (server, _clock) = start();
    let mut client = Client::connect(&server);
    client.expect(&[("PING", "+PONG")]);
    client.send(b"*2\r\n$3\r\nGET\r\n$1000\r\n");
    Client::connect(&server).expect(&[("CONFIG SET timeout 1", "+OK")]);
    let is_closed = (0..1000).any(|_| {
        std::thread::sleep(Duration::from_millis(20));
        !client.try_send(b"k")
    });
    assert!(is_closed);
}

#[test]
fn idle_timeout_reaches_clients_that_do_not_read() {
    let (server, _clock) = start();
    let mut client = Client::connect(&server);
    assert_eq!(client.ask("SETRANGE big 1048575 x"), ":1048576");
    client.expect(&[("CONFIG SET timeout 1", "+OK")]);
    let _is_sent = client.try_send(&encode(&["GET", "big"]).repeat(64));
    while server.clients() > 0 {
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A budget in which a command that waits for its own memory would wait for ever.
fn bounded_for_ever() -> (Server, Arc<ByteBudget>) {
    bounded(|options| options.memory_wait = Duration::from_secs(3600))
}

#[test]
fn command_does_not_wait_for_memory_that_it_holds() {
    let (server, _budget) = bounded_for_ever();
    let mut client = Client::connect(&server);
    let (patch, word) = ("p".repeat(1 << 20), "w".repeat(900));
    client.expect(&[
        // The table of LCS takes three quarters of the share and the result of BITOP nearly all.
        (&format!("MSET first {word} second {word}"), "+OK"),
        ("LCS first second LEN", ":900"),
        ("SETRANGE a 1899999 x", ":1900000"),
        ("BITOP NOT to a", ":1900000"),
        ("BITOP OR to a to", ":1900000"),
        // The copies of such a patch take the whole share.
        (&format!("SETRANGE k 0 {patch}"), ":1048576"),
        (&format!("SETRANGE k 4 {patch}"), ":1048580"),
        (&format!("SETRANGE new 4 {patch}"), ":1048580"),
        (&format!("APPEND tail {patch}"), ":1048576"),
        (&format!("MSET a {patch} b c"), "+OK"),
    ]);
    assert!(client.ask("INFO memory").contains("request_memory_working:0 "));
}

#[test]
fn transaction_uses_the_memory_that_exec_holds() {
    let (server, _budget) = bounded_for_ever();
    let mut client = Client::connect(&server);
    let (patch, word) = ("p".repeat(1 << 20), "w".repeat(900));
    client.expect(&[("SETRANGE a 1899999 x", ":1900000")]);
    for (line, reply) in [
        (format!("SETRANGE k 0 {patch}"), "*1 :1048576"),
        (format!("APPEND tail {patch}"), "*1 :1048576"),
        ("BITOP NOT to a".to_owned(), "*1 :1900000"),
        (format!("MSET first {word} second {word}"), "*1 +OK"),
        ("LCS first second LEN".to_owned(), "*1 :900"),
        ("RANGE [first [first VALUES".to_owned(), &format!("*1 *1 $900 {word}")),
    ] {
        client.expect(&[("MULTI", "+OK"), (&line, "+QUEUED"), ("EXEC", reply)]);
    }
    assert!(client.ask("INFO memory").contains("request_memory_working:0 "));
}

#[test]
fn transaction_that_writes_more_than_its_share_does_nothing() {
    let (server, budget) = bounded_for_ever();
    let mut client = Client::connect(&server);
    assert_eq!(client.ask("SETRANGE big 1048575 x"), ":1048576");
    let copies = |client: &mut Client, count: usize| {
        client.expect(&[("MULTI", "+OK")]);
        for nth in 0..count {
            // Both databases count.
            let line = format!("COPY big copy{nth} DB {}", nth % 2);
            assert_eq!(client.ask(&line), "+QUEUED");
        }
        client.ask("EXEC")
    };
    let reply = copies(&mut client, 40);
    assert!(reply.starts_with("-EXECABORT Transaction discarded because of: OOM 41"), "{reply}");
    let limit = "values that running commands build may take 4194304 bytes, so this can never";
    assert!(reply.contains(limit), "{reply}");
    assert!(request_bytes(&budget) < SHARE_BYTES, "{} bytes", request_bytes(&budget));
    assert!(client.ask("INFO memory").contains("request_memory_working:0 "));
    client.expect(&[("EXISTS copy0 copy2", ":0"), ("SELECT 1", "+OK"), ("DBSIZE", ":0")]);
    client.expect(&[("SELECT 0", "+OK")]);
    assert_eq!(copies(&mut client, 3), "*3 :1 :1 :1");
    client.expect(&[("STRLEN copy2", ":1048576"), ("EXISTS copy0 copy1", ":1")]);
}

#[test]
fn transaction_builds_values_after_it_has_written_others() {
    let (server, _budget) = bounded_for_ever();
    let mut client = Client::connect(&server);
    assert_eq!(client.ask("SETRANGE big 1048575 x"), ":1048576");
    // The second value that is built takes the whole share alone, and it is built nevertheless.
    client.expect(&[
        ("MULTI", "+OK"),
        ("COPY big copy", "+QUEUED"),
        ("SETRANGE built 1048575 x", "+QUEUED"),
        ("EXEC", "*2 :1 :1048576"),
        ("MULTI", "+OK"),
        ("COPY big copy REPLACE", "+QUEUED"),
        ("SETRANGE built 2097151 x", "+QUEUED"),
        ("EXEC", "*2 :1 :2097152"),
    ]);
}

#[test]
fn commands_that_need_most_of_the_memory_take_turns() {
    let (server, _budget) = bounded_for_ever();
    let (patch, word) = ("p".repeat(1 << 20), "w".repeat(900));
    Client::connect(&server).expect(&[
        (&format!("MSET first {word} second {word}"), "+OK"),
        ("SETRANGE a 1899999 x", ":1900000"),
    ]);
    std::thread::scope(|scope| {
        for nth in 0..8 {
            let (server, patch) = (&server, &patch);
            scope.spawn(move || {
                let mut client = Client::connect(server);
                let (line, reply) = match nth % 4 {
                    0 | 1 => ("LCS first second LEN", ":900"),
                    2 => ("BITOP NOT to a", ":1900000"),
                    _ => (&format!("SETRANGE k 0 {patch}")[..], ":1048576"),
                };
                client.expect(&[(line, reply); 3]);
            });
        }
    });
}
