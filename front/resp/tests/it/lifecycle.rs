//! Start and shutdown of a server, and limits on connections.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use archipelago_base::ErrorKind;
use archipelago_resp::mem_store::MemStore;
use archipelago_resp::{Server, ServerOptions};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::client::{Client, encode, socket, start, start_at, start_with};

#[test]
fn shutdown_finishes_what_was_received_and_closes() {
    // No other test listens at this address of the host, so none takes the port that becomes free.
    let minute = Duration::from_secs(60);
    let (server, _clock) = start_at("127.41.0.1:0", |options| options.shutdown_grace = minute);
    let addr = server.local_addr();
    let mut idle = Client::connect(&server);
    let mut half = Client::connect(&server);
    let mut busy = Client::connect(&server);
    idle.expect(&[("PING", "+PONG")]);
    half.send(b"*2\r\n$3\r\nGET\r\n$10\r\nabc");
    busy.send(&encode(&["INCR", "n"]).repeat(1000));
    assert_eq!(busy.reply(), ":1");
    assert!(server.shutdown(), "within the grace");
    assert_eq!(idle.try_reply(), None);
    assert_eq!(half.try_reply(), None);
    // Every command that ran was answered: replies arrive without a gap up to the end.
    let mut last = 1;
    while let Some(reply) = busy.try_reply() {
        last += 1;
        assert_eq!(reply, format!(":{last}"));
    }
    assert!(TcpStream::connect(addr).is_err(), "the port is free");
}

#[test]
fn the_shutdown_command_and_the_handle_end_the_wait() {
    let (server, _clock) = start();
    let mut client = Client::connect(&server);
    client.expect(&[
        ("SHUTDOWN ABORT", "-ERR No shutdown in progress."),
        ("SHUTDOWN LATER", "-ERR syntax error"),
    ]);
    client.send_words(&["SHUTDOWN", "NOSAVE"]);
    assert_eq!(client.try_reply(), None);
    server.wait();
    server.shutdown_handle().request();
    server.wait();
    server.wait_or(std::future::ready(()));
    assert!(server.shutdown());
}

#[test]
fn surplus_client_gets_an_error() {
    let (server, _clock) = start_with(|options| options.clients_max = 2);
    let mut first = Client::connect(&server);
    let mut second = Client::connect(&server);
    first.expect(&[("PING", "+PONG")]);
    second.expect(&[("PING", "+PONG")]);
    let mut third = Client::connect(&server);
    assert_eq!(third.reply(), "-ERR max number of clients reached");
    assert_eq!(third.try_reply(), None);
    second.send_words(&["QUIT"]);
    assert_eq!((second.reply(), second.try_reply()), ("+OK".into(), None));
    while server.clients() == 2 {
        std::thread::yield_now();
    }
    Client::connect(&server).expect(&[("PING", "+PONG")]);
}

#[test]
fn idle_connections_are_closed_if_asked_for() {
    let (server, _clock) =
        start_with(|options| options.idle_timeout = Some(Duration::from_millis(200)));
    let is_closed = (0..100).any(|_| {
        let mut client = Client::connect(&server);
        // A client that asks too late is closed without a reply.
        let is_served =
            client.try_send(&encode(&["PING"])) && client.try_reply().as_deref() == Some("+PONG");
        is_served && client.try_reply().is_none()
    });
    assert!(is_closed, "no client is served and closed");
}

#[test]
fn a_reader_that_does_not_read_is_cut_off_at_shutdown() {
    let (server, _clock) =
        start_with(|options| options.shutdown_grace = Duration::from_millis(200));
    let mut client = Client::connect(&server);
    assert_eq!(client.call(&["SET", "k", &"v".repeat(1 << 20)]), "+OK");
    client.send(&encode(&["GET", "k"]).repeat(64));
    let mut other = Client::connect(&server);
    // The client that does not read delays only itself.
    other.expect(&[("PING", "+PONG")]);
    other.await_stuck(1);
    assert!(!server.shutdown());
}

#[test]
fn clients_that_do_not_read_do_not_hold_up_a_shutdown() {
    // A shutdown that waited for them would take an hour.
    let hour = Duration::from_secs(3600);
    let (server, _clock) = start_with(|options| options.shutdown_grace = hour);
    let mut client = Client::connect(&server);
    assert_eq!(client.call(&["SET", "k", &"v".repeat(1 << 20)]), "+OK");
    let mut deaf: Vec<Client> = (0..20).map(|_| Client::connect(&server)).collect();
    for one in &mut deaf {
        one.send(&encode(&["GET", "k"]).repeat(64));
    }
    client.await_stuck(deaf.len());
    assert!(!server.shutdown(), "they were cut off");
}

/// Shuts a stream down when it is dropped. Then the threads that use the stream end, even if the
/// server has not closed the connection.
struct ShutOnDrop<'a>(&'a TcpStream);

impl Drop for ShutOnDrop<'_> {
    fn drop(&mut self) {
        let _is_open = self.0.shutdown(Shutdown::Both).is_ok();
    }
}

/// Calls `act` while a client of the server at `addr` sends PING without a pause and reads all
/// replies.
fn while_flooded<T>(addr: SocketAddr, act: impl FnOnce() -> T) -> T {
    let stream = socket(addr);
    let pings = b"PING\r\n".repeat(10_000);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut stream = &stream;
            while stream.write_all(&pings).is_ok() {}
        });
        scope.spawn(|| {
            let (mut stream, mut buffer) = (&stream, vec![0; 1 << 20]);
            while stream.read(&mut buffer).is_ok_and(|read| read > 0) {}
        });
        // The scope waits for the threads, also if `act` panics.
        let _shut = ShutOnDrop(&stream);
        act()
    })
}

fn await_ping(client: &mut Client) {
    while !client.ask("CLIENT LIST").contains(" cmd=ping ") {
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn killed_client_is_closed_although_it_sends_without_a_pause() {
    let (server, _clock) = start();
    let mut other = Client::connect(&server);
    let (killed, is_closed) = while_flooded(server.local_addr(), || {
        await_ping(&mut other);
        let killed = other.ask("CLIENT KILL TYPE normal");
        let is_closed = (0..3000).any(|_| {
            std::thread::sleep(Duration::from_millis(10));
            server.clients() == 1
        });
        (killed, is_closed)
    });
    assert_eq!((&killed[..], is_closed), (":1", true));
    other.expect(&[("PING", "+PONG")]);
}

#[test]
fn client_that_sends_without_a_pause_does_not_hold_up_a_shutdown() {
    // A shutdown that waited for the client would take an hour.
    let hour = Duration::from_secs(3600);
    let (server, _clock) = start_with(|options| options.shutdown_grace = hour);
    let mut other = Client::connect(&server);
    while_flooded(server.local_addr(), || {
        await_ping(&mut other);
        // On a slow machine the client may read too slowly, and is cut off.
        let _is_orderly = server.shutdown();
    });
}

/// The keepalive timer of the server's end of a connection, from the kernel: whether it runs, and
/// hundredths of a second until it fires.
fn keepalive_timer(server: &Server, client: &TcpStream) -> (bool, u64) {
    let ports = [server.local_addr().port(), client.local_addr().unwrap().port()];
    let ends = ports.map(|port| format!("0100007F:{port:04X}"));
    #[expect(clippy::disallowed_methods, reason = "the kernel's list of connections")]
    let table = std::fs::read("/proc/net/tcp").unwrap();
    let table = String::from_utf8(table).unwrap();
    let rows = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let row = rows.into_iter().find(|row| row[1..3] == ends).expect("the connection");
    let (kind, left) = row[5].split_once(':').unwrap();
    (kind == "02", u64::from_str_radix(left, 16).unwrap())
}

#[test]
fn connections_are_kept_alive_as_set() {
    let set = |keepalive| start_with(move |options| options.tcp_keepalive = keepalive).0;
    let minutes = Duration::from_secs(1000);
    for (keepalive, runs, most, told) in [
        (Some(minutes), true, 100_000, "1000"),
        (ServerOptions::default().tcp_keepalive, true, 30_000, "300"),
        (None, false, 0, "0"),
    ] {
        let server = set(keepalive);
        let stream = TcpStream::connect(server.local_addr()).unwrap();
        let (is_on, left) = keepalive_timer(&server, &stream);
        assert_eq!(is_on, runs, "{keepalive:?}");
        // The value is far from both ends, so that a slow machine does not matter.
        assert!(left <= most && left >= most / 10 * 4, "{keepalive:?}: {left}");
        let told = format!("*2 $13 tcp-keepalive ${} {told}", told.len());
        Client::over(stream).expect(&[("CONFIG GET tcp-keepalive", &told)]);
    }
}

#[test]
fn bad_settings_and_addresses_are_refused() {
    let store = Arc::new(MemStore::default());
    let start = |listen: &str, options: ServerOptions| {
        Server::start(listen, Arc::clone(&store) as _, options).expect_err("refused")
    };
    let none = ServerOptions { clients_max: 0, ..ServerOptions::default() };
    let error = start("127.0.0.1:0", none);
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.context().starts_with("clients_max is 0"), "{error}");
    let long = ServerOptions {
        tcp_keepalive: Some(Duration::from_secs(40_000)),
        ..ServerOptions::default()
    };
    let error = start("127.0.0.1:0", long);
    assert!(error.context().starts_with("tcp_keepalive is 40000s"), "{error}");
    assert_eq!(start("nonsense", ServerOptions::default()).kind(), ErrorKind::InvalidArgument);
    let (taken, _clock) = crate::client::start();
    let error = start(&taken.local_addr().to_string(), ServerOptions::default());
    assert_eq!(error.kind(), ErrorKind::Io);
    assert!(error.context().contains("cannot listen on 127.0.0.1:"), "{error}");
}

/// `LIMIT` of the process in which [`child_with_few_descriptors`] runs.
const CHILD: &str = "ARCHIPELAGO_TEST_FEW_DESCRIPTORS";

/// Opens files until the process may open no more.
#[expect(clippy::disallowed_methods, reason = "it takes descriptors, not files")]
fn take_all_descriptors() -> Vec<std::fs::File> {
    std::iter::from_fn(|| std::fs::File::open("/dev/null").ok()).collect()
}

/// Body of the child process of the next test. It does nothing when the tests run.
#[test]
fn child_with_few_descriptors() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: Some(100), maximum }).unwrap();
    let (server, _clock) = start();
    let mut client = Client::connect(&server);
    client.expect(&[("PING", "+PONG")]);
    let mut others = take_all_descriptors();
    // One descriptor is left for the client's end, and none for the server's end.
    drop(others.pop());
    for _attempt in 0..3 {
        let mut refused = Client::connect(&server);
        assert_eq!(refused.reply(), "-ERR max number of clients reached");
        assert_eq!(refused.try_reply(), None);
        client.expect(&[("PING", "+PONG")]);
    }
    drop(others);
    Client::connect(&server).expect(&[("PING", "+PONG")]);
    println!("done");
}

#[test]
fn client_gets_an_error_when_no_descriptor_is_left() {
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "lifecycle::child_with_few_descriptors", "--nocapture"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && out.contains("done"), "{out}\n{err}");
}
