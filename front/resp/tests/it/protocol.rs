//! Pipelines, torn and malformed requests, limits.

use std::time::Duration;

use archipelago_base::budget::{ByteBudget, MemoryClass};
use socket2::SockRef;

use crate::client::{Client, encode, socket, start, start_with};

#[test]
fn a_pipeline_is_answered_in_order() {
    let (server, _clock) = start();
    let mut client = Client::connect(&server);
    let mut pipeline = Vec::new();
    for n in 0..1500 {
        pipeline.extend(encode(&["SET", "k", &n.to_string()]));
        if n % 3 == 0 {
            pipeline.extend(encode(&["GET", "k"]));
            pipeline.extend(encode(&["INCR", "k"]));
        }
        if n % 100 == 0 {
            pipeline.extend(b"PING inline\r\n");
        }
    }
    client.send(&pipeline);
    for n in 0..1500 {
        assert_eq!(client.reply(), "+OK", "{n}");
        if n % 3 == 0 {
            assert_eq!(client.reply(), format!("${} {n}", n.to_string().len()));
            assert_eq!(client.reply(), format!(":{}", n + 1));
        }
        if n % 100 == 0 {
            assert_eq!(client.reply(), "$6 inline");
        }
    }
}

#[test]
fn commands_may_come_in_pieces() {
    let (server, _clock) = start();
    let mut client = Client::connect(&server);
    let bytes = [encode(&["SET", "key", "a\r\nb"]), encode(&["STRLEN", "key"])].concat();
    for byte in bytes {
        client.send(&[byte]);
        std::thread::sleep(Duration::from_micros(300));
    }
    assert_eq!((client.reply(), client.reply()), ("+OK".into(), ":4".into()));
}

#[test]
fn large_values_come_back() {
    let budget = ByteBudget::new(1 << 30);
    let shared = std::sync::Arc::clone(&budget);
    let (server, _clock) = start_with(move |options| options.budget = shared);
    let mut client = Client::connect(&server);
    let value: Vec<u8> = (0..8 << 20).map(|n: u32| (n % 251) as u8).collect();
    assert_eq!(client.call(&[&b"SET"[..], b"big", &value]), "+OK");
    assert_eq!(client.ask("STRLEN big"), format!(":{}", value.len()));
    client.send_words(&["GETRANGE", "big", "251", "255"]);
    assert_eq!(client.reply(), "$5 \0\u{1}\u{2}\u{3}\u{4}");
    // Four replies of 8 MiB to one pipeline are sent in turn, and not held together.
    client.send(&encode(&["GET", "big"]).repeat(4));
    for _ in 0..4 {
        assert!(client.reply().len() > value.len() / 2);
    }
    // The memory of the large requests is freed, and an idle connection holds little.
    client.expect(&[("PING", "+PONG"), ("PING", "+PONG")]);
    let held = budget.used_bytes(MemoryClass::Request);
    assert!(held > 0 && held <= 256 << 10, "{held}");
    drop((client, server));
    assert_eq!(budget.used_bytes(MemoryClass::Request), 0);
}

#[test]
fn whole_pipeline_may_be_sent_before_a_reply_is_read() {
    let budget = ByteBudget::new(256 << 20);
    let shared = std::sync::Arc::clone(&budget);
    let (server, _clock) = start_with(move |options| options.budget = shared);
    let stream = socket(server.local_addr());
    // If the server did not receive while its replies wait, this client would fail to send.
    stream.set_write_timeout(Some(Duration::from_secs(60))).unwrap();
    SockRef::from(&stream).set_send_buffer_size(64 << 10).unwrap();
    let mut client = Client::over(stream);
    // The buffers of the sockets hold neither 16 MB of commands nor 64 MB of replies.
    let (key, value) = ("k".repeat(4000), "v".repeat(16_000));
    assert_eq!(client.call(&["SET", &key, &value]), "+OK");
    let count = 4000;
    let pipeline = [encode(&["GET", &key]).repeat(count), encode(&["INCR", "n"])].concat();
    client.send(&pipeline);
    let expected = format!("$16000 {value}");
    for n in 0..count {
        assert!(client.reply() == expected, "{n}");
    }
    assert_eq!(client.reply(), ":1");
    client.expect(&[("INCR n", ":2"), ("PING", "+PONG")]);
    // The memory of the pipeline is freed.
    assert!(client.ask("INFO memory").contains("request_memory_incoming:0 "));
    let held = budget.used_bytes(MemoryClass::Request);
    assert!(held <= 256 << 10, "{held}");
}

#[test]
fn announced_bytes_that_are_not_sent_cost_nothing() {
    let budget = ByteBudget::new(1 << 30);
    let shared = std::sync::Arc::clone(&budget);
    let (server, _clock) = start_with(move |options| options.budget = shared);
    let mut liars: Vec<Client> = (0..50).map(|_| Client::connect(&server)).collect();
    for liar in &mut liars {
        liar.send(b"PING\r\n*1048576\r\n$536870912\r\nx");
        assert_eq!(liar.reply(), "+PONG");
    }
    let mut client = Client::connect(&server);
    client.expect(&[("PING", "+PONG")]);
    let held = budget.used_bytes(MemoryClass::Request);
    assert!(held <= 51 * (8 << 10), "{held}");
}

#[test]
fn garbage_is_answered_and_the_connection_closed() {
    let (server, _clock) = start_with(|options| {
        options.limits.bulk_bytes_max = 4096;
        options.limits.request_bytes_max = 64 << 10;
        options.limits.inline_bytes_max = 1024;
    });
    let long_inline = vec![b'x'; 5000];
    let many = encode(&vec!["x".repeat(4000); 17]);
    let cases: [(&[u8], &str); 7] = [
        (b"*1\r\n:5\r\n", "expected '$', got ':'"),
        (b"*abc\r\n", "invalid multibulk length"),
        (b"*1048577\r\n", "invalid multibulk length"),
        (b"*1\r\n$4097\r\n", "invalid bulk length"),
        (b"get \"k\r\n", "unbalanced quotes in request"),
        (&long_inline, "too big inline request"),
        (&many, "too big request"),
    ];
    for (bytes, what) in cases {
        let mut client = Client::connect(&server);
        // Commands before the error are executed and answered.
        client.send(&[&encode(&["SET", "k", "v"])[..], b"PING\r\n", bytes].concat());
        assert_eq!((client.reply(), client.reply()), ("+OK".into(), "+PONG".into()));
        assert_eq!(client.reply(), format!("-ERR Protocol error: {what}"));
        assert_eq!(client.try_reply(), None, "{what}");
    }
    let mut client = Client::connect(&server);
    client.expect(&[("PING", "+PONG")]);
    assert!(client.ask("INFO stats").contains("protocol_errors:7"));
}

#[test]
fn no_line_of_an_http_request_is_executed() {
    let (server, _clock) = start();
    let mut client = Client::connect(&server);
    client.expect(&[("SET reef coral", "+OK")]);
    let body = "FLUSHALL\r\nSET reef gone\r\n";
    let headers = "Host: 127.0.0.1\r\nContent-Length: 25\r\n\r\n";
    let requests = [
        format!("POST / HTTP/1.1\r\n{headers}{body}"),
        format!("DELETE /x HTTP/1.1\r\n{headers}{body}"),
        format!("{headers}{body}"),
        // Lines before the first line that is known as HTTP are no commands.
        format!("GET /\r\n{headers}{body}"),
    ];
    for request in &requests {
        let mut browser = Client::connect(&server);
        browser.send(request.as_bytes());
        let mut last = None;
        while let Some(reply) = browser.try_reply() {
            last = Some(reply);
        }
        let said = "-ERR Protocol error: this server speaks the Redis protocol, not HTTP";
        assert_eq!(last.as_deref(), Some(said), "{request}");
    }
    client.expect(&[("GET reef", "$5 coral")]);
    assert!(client.ask("INFO stats").contains("http_requests_refused:4"));
}
