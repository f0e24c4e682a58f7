//! Replies and refusals of each command on strings, numbers and keys.

use crate::client::{Client, on_each_store, start_with};

const NOT_AN_INTEGER: &str = "-ERR value is not an integer or out of range";

#[test]
fn strings() {
    on_each_store(|server, _clock| {
        let mut client = Client::connect(server);
        client.expect(&[
            ("GET k", "$-1"),
            ("SET k v", "+OK"),
            ("get k", "$1 v"),
            ("SETNX k w", ":0"),
            ("SETNX n w", ":1"),
            ("GETSET k x", "$1 v"),
            ("GETSET absent x", "$-1"),
            ("GETDEL absent", "$1 x"),
            ("GETDEL absent", "$-1"),
            ("MSET a 1 b 2", "+OK"),
            ("MGET a nothing b", "*3 $1 1 $-1 $1 2"),
            ("MSETNX c 3 a 9", ":0"),
            ("GET c", "$-1"),
            ("MSETNX c 3 d 4", ":1"),
            ("MSET a 1 b", "-ERR wrong number of arguments for 'mset' command"),
            ("MSETNX a 1 b", "-ERR wrong number of arguments for 'msetnx' command"),
            ("APPEND t Hello", ":5"),
            ("APPEND t _World", ":11"),
            ("STRLEN t", ":11"),
            ("STRLEN absent", ":0"),
            ("GETRANGE t 0 4", "$5 Hello"),
            ("GETRANGE t -5 -1", "$5 World"),
            ("SUBSTR t 0 -1", "$11 Hello_World"),
            ("GETRANGE t 5 3", "$0"),
            ("GETRANGE t 0 -100", "$1 H"),
            ("GETRANGE t -200 -100", "$1 H"),
            ("GETRANGE t -100 -200", "$0"),
            ("GETRANGE absent 0 -1", "$0"),
            ("GETRANGE t a 3", NOT_AN_INTEGER),
            ("SETRANGE t 6 Redis", ":11"),
            ("GET t", "$11 Hello_Redis"),
            ("SETRANGE pad 3 x", ":4"),
            ("GET pad", "$4 \0\0\0x"),
            ("SETRANGE pad -1 x", "-ERR offset is out of range"),
            (
                "SETRANGE pad 536870912 x",
                "-ERR string exceeds maximum allowed size (proto-max-bulk-len)",
            ),
            (
                "SETRANGE pad 9223372036854775807 x",
                "-ERR string exceeds maximum allowed size (proto-max-bulk-len)",
            ),
            ("SETRANGE new 0 ", ":0"),
            ("EXISTS new", ":0"),
            ("SETRANGE pad 100 ", ":4"),
        ]);
    });
}

#[test]
fn set_with_options() {
    on_each_store(|server, _clock| {
        let mut client = Client::connect(server);
        client.expect(&[
            ("SET k v XX", "$-1"),
            ("SET k v NX", "+OK"),
            ("SET k w NX", "$-1"),
            ("SET k w XX GET", "$1 v"),
            ("SET k x NX GET", "$1 w"),
            ("GET k", "$1 w"),
            ("SET new x NX GET", "$-1"),
            ("SET k x EX 100", "+OK"),
            ("TTL k", ":100"),
            ("SET k y KEEPTTL", "+OK"),
            ("TTL k", ":100"),
            ("SET k z", "+OK"),
            ("TTL k", ":-1"),
            ("set k z px 1500 xx get", "$1 z"),
            ("PTTL k", ":1500"),
            ("SET k z EXAT 1000010", "+OK"),
            ("TTL k", ":10"),
            ("SET k z PXAT 1000010500", "+OK"),
            ("PTTL k", ":10500"),
            ("SET k z EXAT 10", "+OK"),
            ("GET k", "$-1"),
            ("SET k v NX XX", "-ERR syntax error"),
            ("SET k v EX", "-ERR syntax error"),
            ("SET k v EX 10 PX 10", "-ERR syntax error"),
            ("SET k v KEEPTTL EX 10", "-ERR syntax error"),
            ("SET k v BOGUS", "-ERR syntax error"),
            ("SET k v EX 0", "-ERR invalid expire time in 'set' command"),
            ("SET k v EX -1", "-ERR invalid expire time in 'set' command"),
            ("SET k v EX 9223372036854775807", "-ERR invalid expire time in 'set' command"),
            ("SET k v EX ten", NOT_AN_INTEGER),
            ("EXISTS k", ":0"),
            ("SETEX k 10 v", "+OK"),
            ("TTL k", ":10"),
            ("PSETEX k 10 v", "+OK"),
            ("PTTL k", ":10"),
            ("SETEX k 0 v", "-ERR invalid expire time in 'setex' command"),
            ("PSETEX k -5 v", "-ERR invalid expire time in 'psetex' command"),
            ("GETEX k PERSIST", "$1 v"),
            ("TTL k", ":-1"),
            ("GETEX k EX 7", "$1 v"),
            ("TTL k", ":7"),
            ("GETEX k", "$1 v"),
            ("TTL k", ":7"),
            ("GETEX k EX 7 PERSIST", "-ERR syntax error"),
            ("GETEX absent EX 7", "$-1"),
        ]);
    });
}

#[test]
fn counters() {
    on_each_store(|server, _clock| {
        let mut client = Client::connect(server);
        client.expect(&[
            ("INCR n", ":1"),
            ("INCRBY n 41", ":42"),
            ("DECR n", ":41"),
            ("DECRBY n 50", ":-9"),
            ("GET n", "$2 -9"),
            ("SET n 9223372036854775807", "+OK"),
            ("INCR n", "-ERR increment or decrement would overflow"),
            ("DECRBY n -9223372036854775808", "-ERR decrement would overflow"),
            ("INCRBY n 1.5", NOT_AN_INTEGER),
            ("INCRBY n 9223372036854775808", NOT_AN_INTEGER),
            ("SET s abc", "+OK"),
            ("INCR s", NOT_AN_INTEGER),
            ("SET s 01", "+OK"),
            ("INCR s", NOT_AN_INTEGER),
            ("SET n 5 EX 100", "+OK"),
            ("INCR n", ":6"),
            ("TTL n", ":100"),
            ("INCRBYFLOAT f 10.50", "$4 10.5"),
            ("INCRBYFLOAT f 0.1", "$4 10.6"),
            ("INCRBYFLOAT f -5", "$3 5.6"),
            ("INCRBYFLOAT f 5.0e3", "$6 5005.6"),
            ("INCRBYFLOAT f abc", "-ERR value is not a valid float"),
            ("INCRBYFLOAT f nan", "-ERR value is not a valid float"),
            ("INCRBYFLOAT f -inf", "-ERR increment would produce NaN or Infinity"),
            ("GET f", "$6 5005.6"),
            ("SET f 9007199254740993", "+OK"),
            ("INCRBYFLOAT f 1e0", "$16 9007199254740994"),
            ("SET f 1073741824", "+OK"),
            ("INCRBYFLOAT f 1e20", "$21 100000000001073741824"),
            ("SET f 1234567890.123456789", "+OK"),
            ("INCRBYFLOAT f 1e-5", "$20 1234567890.123466789"),
            ("SET f 1e4932", "+OK"),
            ("INCRBYFLOAT f 1e4932", "-ERR increment would produce NaN or Infinity"),
            ("INCR f", NOT_AN_INTEGER),
        ]);
    });
}

#[test]
fn commands_on_keys_ignore_values() {
    on_each_store(|server, _clock| {
        let mut client = Client::connect(server);
        client.expect(&[
            ("MSET a 1 b 2 c 3", "+OK"),
            ("DBSIZE", ":3"),
            ("EXISTS a", ":1"),
            ("EXISTS a a nothing b", ":3"),
            ("TOUCH a b nothing", ":2"),
            ("TYPE a", "+string"),
            ("TYPE nothing", "+none"),
            ("DEL a a nothing", ":1"),
            ("DEL a", ":0"),
            ("UNLINK b", ":1"),
            ("EXPIRE c 50", ":1"),
            ("RENAME c d", "+OK"),
            ("TTL d", ":50"),
            ("EXISTS c", ":0"),
            ("RENAME c d", "-ERR no such key"),
            ("SET e 5", "+OK"),
            ("RENAMENX d e", ":0"),
            ("RENAMENX d f", ":1"),
            ("RENAME f f", "+OK"),
            ("GET f", "$1 3"),
            ("FLUSHDB", "+OK"),
            ("DBSIZE", ":0"),
            ("SET a 1", "+OK"),
            ("FLUSHALL ASYNC", "+OK"),
            ("EXISTS a", ":0"),
            ("FLUSHDB NOW", "-ERR syntax error"),
        ]);
        let many: Vec<String> = (0..5000).map(|n| format!("k{n}")).collect();
        let pairs: Vec<&str> = many.iter().flat_map(|key| [&key[..], "v"]).collect();
        assert_eq!(client.call(&[&["MSET"], &pairs[..]].concat()), "+OK");
        let keys: Vec<&str> = many.iter().map(String::as_str).collect();
        assert_eq!(client.call(&[&["EXISTS"], &keys[..]].concat()), ":5000");
        assert_eq!(client.call(&[&["DEL"], &keys[..]].concat()), ":5000");
        client.expect(&[("DBSIZE", ":0")]);
    });
}

#[test]
fn empty_and_binary_and_oversized_keys() {
    on_each_store(|server, _clock| {
        let mut client = Client::connect(server);
        assert_eq!(client.call(&["SET", "", ""]), "+OK");
        assert_eq!(client.call(&["GET", ""]), "$0");
        assert_eq!(client.call(&[&b"SET"[..], b"\0\xff\r\n", b"*3\r\n"]), "+OK");
        assert_eq!(client.call(&[&b"STRLEN"[..], b"\0\xff\r\n"]), ":4");
        // Between good commands of the same pipeline, only its own reply is an error.
        let long = "x".repeat((64 << 10) + 1);
        for key in ["a", &long, "b"] {
            client.send_words(&["SET", key, "v"]);
        }
        assert_eq!(client.reply(), "+OK");
        assert!(
            client.reply().starts_with("-ERR invalid argument: a key of 65537 bytes is too long")
        );
        assert_eq!(client.reply(), "+OK");
        client.expect(&[("EXISTS a b", ":2")]);
    });
}

#[test]
fn refusals() {
    on_each_store(|server, _clock| {
        let mut client = Client::connect(server);
        client.expect(
            &[
                ("GET", "-ERR wrong number of arguments for 'get' command"),
                ("GET a b", "-ERR wrong number of arguments for 'get' command"),
                ("SET k", "-ERR wrong number of arguments for 'set' command"),
                ("NOPE a b", "-ERR unknown command 'NOPE', with args beginning with: 'a' 'b' "),
                ("PING", "+PONG"),
            ]
            .map(|(line, reply)| (line, reply.trim_end())),
        );
        let garbage = "x".repeat(100_000);
        let reply = client.call(&["NOPE\r\n+OK", &garbage, &garbage, &garbage]);
        assert!(reply.starts_with("-ERR unknown command 'NOPE  +OK'") && reply.len() < 1000);
        client.expect(&[("PING", "+PONG")]);
    });
}

#[test]
fn large_replies_are_bounded() {
    let (server, _clock) = start_with(|options| options.reply_bytes_max = 8192);
    let mut client = Client::connect(&server);
    let value = "v".repeat(3000);
    for key in ["a", "b", "c"] {
        assert_eq!(client.call(&["SET", key, &value]), "+OK");
    }
    let refused = "-ERR the reply would exceed 8192 bytes: ";
    assert_eq!(client.ask("MGET a b c"), format!("{refused}ask for fewer keys at once"));
    assert_eq!(client.ask("RANGE - +"), format!("{refused}use LIMIT"));
    assert!(client.ask("MGET a b").len() > 6000);
    assert!(client.ask("RANGE - + LIMIT 2").len() > 6000);
}
