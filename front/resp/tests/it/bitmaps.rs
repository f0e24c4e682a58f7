//! SETBIT, GETBIT, BITCOUNT, BITPOS and BITOP, and LCS: values as bits and as sequences of bytes.

use crate::client::{Client, on_each_store, start_with};

const BAD_OFFSET: &str = "-ERR bit offset is not an integer or out of range";
const BAD_BIT: &str = "-ERR bit is not an integer or out of range";
const SYNTAX: &str = "-ERR syntax error";

#[test]
fn bits_are_set_and_read() {
    on_each_store(|server, _clock| {
        let mut client = Client::connect(server);
        client.expect(&[
            ("SETBIT k 1 1", ":0"),
            ("GET k", "$1 @"),
            ("SETBIT k 1 0", ":1"),
            ("GET k", "$1 \0"),
            ("SETBIT k 18 1", ":0"),
            ("STRLEN k", ":3"),
            ("GETBIT k 18", ":1"),
            ("GETBIT k 17", ":0"),
            ("GETBIT k 1000", ":0"),
            ("GETBIT absent 0", ":0"),
            // The digit 1 is 0x31. SETBIT of the bit of value 2 makes a 3 of it.
            ("SET n 1 EX 100", "+OK"),
            ("SETBIT n 6 1", ":0"),
            ("GET n", "$1 3"),
            ("TTL n", ":100"),
            ("INCR n", ":4"),
            ("SETBIT k 0 2", BAD_BIT),
            ("SETBIT k 0 01", BAD_BIT),
            ("SETBIT k -1 1", BAD_OFFSET),
            ("SETBIT k 4294967296 1", BAD_OFFSET),
            ("SETBIT k x 1", BAD_OFFSET),
            ("GETBIT k 4294967296", BAD_OFFSET),
            ("SETBIT new 0 0", ":0"),
            ("STRLEN new", ":1"),
        ]);
    });
}

#[test]
fn bits_are_counted_and_found() {
    on_each_store(|server, _clock| {
        let mut client = Client::connect(server);
        client.expect(&[
            ("SET k foobar", "+OK"),
            ("BITCOUNT k", ":26"),
            ("BITCOUNT k 0 0", ":4"),
            ("BITCOUNT k 1 1", ":6"),
            ("BITCOUNT k -2 -1", ":7"),
            ("BITCOUNT k 5 30 BIT", ":17"),
            ("BITCOUNT k 0 -100", ":4"),
            ("BITCOUNT k 0 -100 BIT", ":0"),
            ("BITCOUNT k -200 -100", ":4"),
            ("BITCOUNT k -100 -200", ":0"),
            ("BITCOUNT k 2 1 BYTE", ":0"),
            ("BITCOUNT absent", ":0"),
            ("BITCOUNT k 0", SYNTAX),
            ("BITCOUNT k 0 1 NIBBLE", SYNTAX),
            ("BITCOUNT k a 1", "-ERR value is not an integer or out of range"),
            ("BITPOS k 1", ":1"),
            ("BITPOS k 0", ":0"),
            ("BITPOS k 1 2 -1 BIT", ":2"),
            ("BITPOS k 1 -1", ":41"),
            ("BITPOS absent 0", ":0"),
            ("BITPOS absent 1", ":-1"),
            ("BITPOS k 2", "-ERR The bit argument must be 1 or 0."),
            ("BITPOS k 1 0 1 2 3", SYNTAX),
            ("BITPOS k 1 9", ":-1"),
            ("SETBIT z 7 0", ":0"),
            ("BITPOS z 1", ":-1"),
        ]);
        // Zeros follow a value of ones, unless the range has an end.
        client.call(&[&b"SET"[..], b"ones", b"\xff\xff"]);
        client.expect(&[
            ("BITPOS ones 0", ":16"),
            ("BITPOS ones 0 1", ":16"),
            ("BITPOS ones 0 0 -1", ":-1"),
            ("BITPOS ones 1 0 -100", ":0"),
            ("BITPOS ones 1 1 -100", ":-1"),
            ("BITPOS ones 1 -100 -200", ":0"),
            ("BITPOS ones 1 -1 -2", ":-1"),
        ]);
    });
}

#[test]
fn values_are_combined_bit_by_bit() {
    on_each_store(|server, _clock| {
        let mut client = Client::connect(server);
        client.call(&[&b"MSET"[..], b"a", b"abc", b"b", b"\x0f", b"to", b"old"]);
        client.expect(&[
            ("BITOP AND to a b", ":3"),
            ("GET to", "$3 \u{1}\0\0"),
            ("BITOP OR to a b absent", ":3"),
            ("GET to", "$3 obc"),
            ("BITOP XOR to a a", ":3"),
            ("GET to", "$3 \0\0\0"),
            ("BITOP NOT to a", ":3"),
            ("BITOP NOT to to", ":3"),
            ("GET to", "$3 abc"),
            ("BITOP AND to a", ":3"),
            ("GET to", "$3 abc"),
            ("EXPIRE to 100", ":1"),
            ("BITOP OR to to b", ":3"),
            ("TTL to", ":-1"),
            ("BITOP AND to absent", ":0"),
            ("EXISTS to", ":0"),
            ("BITOP NOT to a b", "-ERR BITOP NOT must be called with a single source key."),
            ("BITOP NAND to a b", SYNTAX),
        ]);
    });
}

#[test]
fn longest_common_subsequence_is_found() {
    on_each_store(|server, _clock| {
        let mut client = Client::connect(server);
        client.expect(&[
            ("MSET a ohmytext b mynewtext", "+OK"),
            ("LCS a b", "$6 mytext"),
            ("LCS a b LEN", ":6"),
            ("LCS a absent", "$0"),
            ("LCS a absent LEN", ":0"),
            ("LCS a b IDX", "*4 $7 matches *2 *2 *2 :4 :7 *2 :5 :8 *2 *2 :2 :3 *2 :0 :1 $3 len :6"),
            (
                "LCS a b IDX MINMATCHLEN 4 WITHMATCHLEN",
                "*4 $7 matches *1 *3 *2 :4 :7 *2 :5 :8 :4 $3 len :6",
            ),
            ("LCS a b IDX MINMATCHLEN", SYNTAX),
            ("LCS a b BOTH", SYNTAX),
            (
                "LCS a b IDX LEN",
                "-ERR If you want both the length and indexes, please just use IDX.",
            ),
        ]);
        let mut client = Client::resp3(server);
        assert_eq!(client.ask("LCS a b IDX MINMATCHLEN 5"), "%2 $7 matches *0 $3 len :6");
    });
}

#[test]
fn commands_build_no_value_that_a_client_could_not_send() {
    let (server, _clock) = start_with(|options| options.limits.bulk_bytes_max = 1024);
    let mut client = Client::connect(&server);
    let long = "x".repeat(600);
    const TOO_LONG: &str = "-ERR string exceeds maximum allowed size (proto-max-bulk-len)";
    client.expect(&[
        (&format!("SET k {long}"), "+OK"),
        (&format!("APPEND k {long}"), TOO_LONG),
        ("SETRANGE k 1023 x", ":1024"),
        ("SETRANGE k 1024 x", TOO_LONG),
        ("SETBIT k 8191 1", ":0"),
        ("SETBIT k 8192 1", BAD_OFFSET),
        ("APPEND k x", TOO_LONG),
        ("STRLEN k", ":1024"),
        (
            "LCS k k",
            "-ERR LCS of 1024 and 1024 bytes needs more than 1024 bytes of memory \
             (proto-max-bulk-len)",
        ),
    ]);
}

#[test]
fn bits_can_be_changed_in_a_transaction() {
    on_each_store(|server, _clock| {
        let mut client = Client::connect(server);
        client.expect(&[
            ("SET a @", "+OK"),
            ("MULTI", "+OK"),
            ("SETBIT a 0 1", "+QUEUED"),
            ("BITOP NOT b a", "+QUEUED"),
            ("BITCOUNT b", "+QUEUED"),
            ("EXEC", "*3 :0 :1 :6"),
        ]);
    });
}
