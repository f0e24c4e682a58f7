use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use archipelago_base::ErrorKind;
use archipelago_base::clock::{ManualClock, SystemClock};

use super::{CONNECTIONS_MAX, DEADLINE, MetricsListener, MetricsServer};
use crate::catalogue::engine;
use crate::parser::parse;
use crate::sources::{Source, process};

/// An endpoint with the sources of a process and one of its own.
fn endpoint(source: Source) -> MetricsServer {
    let listener = MetricsListener::bind("127.0.0.1:0").unwrap();
    listener.serve(vec![process("test", Some(7)), source]).unwrap()
}

fn quiet() -> MetricsServer {
    endpoint(Box::new(|_| {}))
}

/// An endpoint whose time stands still, so that a slow machine meets no deadline, and its clock.
fn timeless(source: Source) -> (MetricsServer, Arc<ManualClock>) {
    let listener = MetricsListener::bind("127.0.0.1:0").unwrap();
    let clock = Arc::new(ManualClock::new(1_000_000_000));
    let sources = vec![process("test", Some(7)), source];
    (listener.serve_by(Arc::clone(&clock) as _, sources).unwrap(), clock)
}

fn connect(server: &MetricsServer) -> TcpStream {
    let stream = TcpStream::connect(server.address()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream
}

/// The whole answer to a request.
fn answer(server: &MetricsServer, request: &str) -> String {
    let mut stream = connect(server);
    stream.write_all(request.as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

fn get(server: &MetricsServer, path: &str) -> (String, String) {
    let text = answer(server, &format!("GET {path} HTTP/1.1\r\nHost: reef\r\n\r\n"));
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    (head.to_owned(), body.to_owned())
}

#[test]
fn scrape_has_the_figures_of_every_source() {
    let server = endpoint(Box::new(|samples| samples.set(&engine::SNAPSHOTS, &[], 3_u64)));
    let (head, body) = get(&server, "/metrics");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(head.contains("Content-Type: application/openmetrics-text; version=1.0.0"), "{head}");
    assert!(head.contains(&format!("Content-Length: {}", body.len())), "{head}");
    let scrape = parse(&body).unwrap();
    assert_eq!(scrape.value("archipelago_engine_snapshots", &[]), Some(3.0));
    let labels = [("role", "test"), ("node", "7")];
    assert_eq!(scrape.value("archipelago_process_info", &labels), Some(1.0));
    assert!(scrape.sum("process_cpu_seconds_total") >= 0.0);
    assert!(scrape.sum("process_resident_memory_bytes") > 1e5);
    assert!(scrape.sum("process_open_fds") >= 3.0);
    assert!(scrape.sum("process_start_time_seconds") > 1.6e9);
}

#[test]
fn other_paths_and_methods_are_refused() {
    let (server, clock) = timeless(Box::new(|_| {}));
    let (head, body) = get(&server, "/");
    assert!(head.starts_with("HTTP/1.1 404 ") && body.contains("/metrics"), "{head} {body}");
    let posted = answer(&server, "POST /metrics HTTP/1.1\r\nContent-Length: 0\r\n\r\n");
    assert!(posted.starts_with("HTTP/1.1 405 ") && posted.contains("Allow: GET, HEAD"), "{posted}");
    let redis = answer(&server, "*1\r\n$4\r\nPING\r\n\r\n");
    assert!(redis.starts_with("HTTP/1.1 400 "), "{redis}");
    let head = answer(&server, "HEAD /metrics HTTP/1.1\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 200 ") && head.ends_with("\r\n\r\n"), "{head}");
    let large = format!("GET /metrics HTTP/1.1\r\nA: {}\r\n\r\n", "b".repeat(9000));
    assert!(answer(&server, &large).starts_with("HTTP/1.1 431 "));
    // A scrape within a tenth of a second gets the text of an earlier collection.
    clock.advance(Duration::from_millis(120));
    let (_, body) = get(&server, "/metrics");
    let scrape = parse(&body).unwrap();
    for (code, count) in [("404", 1.0), ("405", 1.0), ("400", 1.0), ("431", 1.0)] {
        let found = scrape.value("archipelago_metrics_requests_total", &[("code", code)]);
        assert_eq!(found, Some(count), "{code}");
    }
}

#[test]
fn request_in_pieces_is_answered() {
    let (server, _clock) = timeless(Box::new(|_| {}));
    let mut stream = connect(&server);
    for piece in ["GET /met", "rics HTTP/1.1\r\nHost: r", "eef\r\n", "\r\n"] {
        stream.write_all(piece.as_bytes()).unwrap();
        SystemClock::shared().sleep(Duration::from_millis(30));
    }
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert!(text.starts_with("HTTP/1.1 200 OK\r\n") && text.ends_with("# EOF\n"), "{text}");
}

#[test]
fn silent_clients_delay_others_until_the_deadline_only() {
    let (server, time) = timeless(Box::new(|_| {}));
    let mut silent: Vec<TcpStream> = (0..CONNECTIONS_MAX).map(|_| connect(&server)).collect();
    // The accepting thread takes connections in order, so the next one meets the limit.
    let mut text = String::new();
    connect(&server).read_to_string(&mut text).unwrap();
    assert!(text.starts_with("HTTP/1.1 503 "), "{text}");
    // A thread that serves a silent client may read the time late, so the time goes on and on.
    silent[0].set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    while silent[0].peek(&mut [0]).is_err() {
        time.advance(DEADLINE);
    }
    silent[0].set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut late = String::new();
    silent[0].read_to_string(&mut late).unwrap();
    assert!(late.starts_with("HTTP/1.1 408 "), "{late}");
    drop(silent);
    let clock = SystemClock::shared();
    let is_served = || get_quietly(&server).is_some_and(|text| text.contains(" 200 OK"));
    let served = (0..1000).any(|_| {
        clock.sleep(Duration::from_millis(50));
        is_served()
    });
    assert!(served, "after the deadline the connections are free");
}

/// As [`answer`], where the server may reset the connection.
fn get_quietly(server: &MetricsServer) -> Option<String> {
    let mut stream = TcpStream::connect(server.address()).ok()?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    Some(text)
}

#[test]
fn drop_ends_waiting_connections_and_releases_sources() {
    let held = Arc::new(());
    let source = Arc::clone(&held);
    let (server, _clock) = timeless(Box::new(move |_| _ = Arc::strong_count(&source)));
    let mut waiting = connect(&server);
    let clock = SystemClock::shared();
    while server.state.open.count() == 0 {
        clock.sleep(Duration::from_millis(1));
    }
    // The deadline of the silent client never comes, so an end that waited for it would not end.
    drop(server);
    assert_eq!(Arc::strong_count(&held), 1, "the endpoint holds nothing any more");
    let mut answer = String::new();
    waiting.read_to_string(&mut answer).unwrap();
    assert!(!answer.contains(" 408 "), "the deadline has not passed: {answer}");
}

#[test]
fn collections_are_shared_within_a_tenth_of_a_second() {
    let count = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&count);
    let server = endpoint(Box::new(move |_| _ = counted.fetch_add(1, Ordering::SeqCst)));
    let clock = SystemClock::shared();
    let begun_ns = clock.now_ns();
    let mut scrapes = 0;
    while scrapes < 30 {
        assert!(get(&server, "/metrics").0.contains(" 200 OK"));
        scrapes += 1;
    }
    let passed_ms = (clock.now_ns() - begun_ns) / 1_000_000;
    let most = 1 + passed_ms / 100;
    assert!(count.load(Ordering::SeqCst) <= most, "{count:?} collections in {passed_ms} ms");
}

#[test]
fn taken_port_and_wrong_address_are_named() {
    let server = quiet();
    let error = MetricsListener::bind(&server.address().to_string()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io);
    assert!(error.to_string().contains("choose another"), "{error}");
    let error = MetricsListener::bind("9121").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.to_string().contains("HOST:PORT"), "{error}");
}
