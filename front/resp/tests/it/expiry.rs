//! Expiry with a manual clock.

use std::time::Duration;

use crate::client::{Client, on_each_store};

#[test]
fn records_expire() {
    on_each_store(|server, clock| {
        let mut client = Client::connect(server);
        client.expect(&[
            ("SET k v EX 10", "+OK"),
            ("SET stays v", "+OK"),
            ("TTL k", ":10"),
            ("TTL stays", ":-1"),
            ("TTL absent", ":-2"),
            ("PTTL absent", ":-2"),
            ("EXPIRETIME k", ":1000010"),
            ("PEXPIRETIME k", ":1000010000"),
            ("EXPIRETIME stays", ":-1"),
            ("PEXPIRETIME absent", ":-2"),
        ]);
        clock.advance(Duration::from_millis(9_999));
        client.expect(&[("GET k", "$1 v"), ("PTTL k", ":1"), ("TTL k", ":0")]);
        clock.advance(Duration::from_millis(1));
        client.expect(&[
            ("GET k", "$-1"),
            ("EXISTS k stays", ":1"),
            ("TTL k", ":-2"),
            ("KEYS *", "*1 $5 stays"),
            ("RANGE - + KEYS", "*1 $5 stays"),
            ("DBSIZE", ":1"),
            ("DEL k", ":0"),
            ("PERSIST k", ":0"),
            ("EXPIRE k 5", ":0"),
            ("SET k w NX", "+OK"),
            ("TTL k", ":-1"),
        ]);
    });
}

#[test]
fn the_expire_family() {
    on_each_store(|server, _clock| {
        let mut client = Client::connect(server);
        client.expect(&[
            ("SET k v", "+OK"),
            ("EXPIRE k 100 XX", ":0"),
            ("EXPIRE k 100 GT", ":0"),
            ("EXPIRE k 100 LT", ":1"),
            ("EXPIRE k 50 NX", ":0"),
            ("EXPIRE k 50 GT", ":0"),
            ("EXPIRE k 150 GT", ":1"),
            ("EXPIRE k 200 LT", ":0"),
            ("EXPIRE k 40 XX LT", ":1"),
            ("TTL k", ":40"),
            ("PEXPIRE k 1500", ":1"),
            ("PTTL k", ":1500"),
            ("EXPIREAT k 1000100", ":1"),
            ("TTL k", ":100"),
            ("PEXPIREAT k 1000000777", ":1"),
            ("PTTL k", ":777"),
            ("PERSIST k", ":1"),
            ("PERSIST k", ":0"),
            (
                "EXPIRE k 10 NX GT",
                "-ERR NX and XX, GT or LT options at the same time are not compatible",
            ),
            ("EXPIRE k 10 GT LT", "-ERR GT and LT options at the same time are not compatible"),
            ("EXPIRE k 10 ZZ", "-ERR Unsupported option ZZ"),
            ("EXPIRE k ten", "-ERR value is not an integer or out of range"),
            ("EXPIRE k 9223372036854775807", "-ERR invalid expire time in 'expire' command"),
            ("PEXPIRE k 9223372036854775807", "-ERR invalid expire time in 'pexpire' command"),
            ("GET k", "$1 v"),
            ("APPEND k w", ":2"),
            ("EXPIRE k 60", ":1"),
            ("APPEND k x", ":3"),
            ("SETRANGE k 0 y", ":3"),
            ("TTL k", ":60"),
            ("EXPIRE k -1", ":1"),
            ("EXISTS k", ":0"),
        ]);
    });
}
