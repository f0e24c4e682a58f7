//! RANGE and DELRANGE.

use crate::client::{Client, on_each_store};

#[test]
fn range_and_delrange() {
    on_each_store(|server, _clock| {
        let mut client = Client::connect(server);
        client.expect(&[
            ("MSET a 1 b 2 c 3 d 4", "+OK"),
            ("RANGE [a (c", "*4 $1 a $1 1 $1 b $1 2"),
            ("RANGE [b + KEYS", "*3 $1 b $1 c $1 d"),
            ("RANGE - (c VALUES", "*2 $1 1 $1 2"),
            ("RANGE - + LIMIT 1", "*2 $1 a $1 1"),
            ("RANGE - + LIMIT 0", "*0"),
            ("RANGE [a (d REV KEYS LIMIT 2", "*2 $1 c $1 b"),
            ("RANGE - + REV KEYS LIMIT 1", "*1 $1 d"),
            ("RANGE [c (a", "*0"),
            ("RANGE [a (a", "*0"),
            ("RANGE (a [c KEYS", "*2 $1 b $1 c"),
            ("RANGE [a [a KEYS", "*1 $1 a"),
            ("RANGE (a (b", "*0"),
            ("RANGE (a [a", "*0"),
            ("RANGE + -", "*0"),
            ("RANGE - -", "*0"),
            ("RANGE + +", "*0"),
            ("RANGE [ [", "*0"),
            ("RANGE - + LIMIT -1", "-ERR LIMIT must not be negative"),
            ("RANGE - + LIMIT", "-ERR syntax error"),
            ("RANGE - + KEYS VALUES", "-ERR syntax error"),
            ("RANGE -", "-ERR wrong number of arguments for 'range' command"),
            ("DELRANGE [b (d", "+OK"),
            ("KEYS *", "*2 $1 a $1 d"),
            ("DELRANGE [d (a", "+OK"),
            ("DBSIZE", ":2"),
            ("DELRANGE - +", "+OK"),
            ("DBSIZE", ":0"),
        ]);
    });
}

#[test]
fn pairs_in_resp3() {
    on_each_store(|server, _clock| {
        let mut client = Client::resp3(server);
        client.expect(&[
            ("MSET a 1 b 2", "+OK"),
            ("RANGE - +", "*2 *2 $1 a $1 1 *2 $1 b $1 2"),
            ("RANGE - + KEYS", "*2 $1 a $1 b"),
        ]);
    });
}

#[test]
fn every_key_can_be_a_bound() {
    const HINT: &str = "-ERR min or max not valid string range item: write [key to include the key, \
                        (key to exclude it, - for the start of all keys, + for their end";
    on_each_store(|server, _clock| {
        let mut client = Client::connect(server);
        client.expect(&[
            ("MSET *tmp:1 a + b - c [ d ( e user:1 f", "+OK"),
            ("DELRANGE * +", HINT),
            ("DELRANGE - user:2", HINT),
            ("RANGE * (+", HINT),
            ("RANGE - ", HINT),
            ("DBSIZE", ":6"),
            ("DELRANGE [* (+", "+OK"),
            ("RANGE - + KEYS", "*5 $1 ( $1 + $1 - $1 [ $6 user:1"),
            ("DELRANGE (( [+", "+OK"),
            ("DELRANGE [[ [[", "+OK"),
            ("RANGE [( [- KEYS", "*2 $1 ( $1 -"),
            ("DELRANGE + -", "+OK"),
            ("DELRANGE - -", "+OK"),
            ("DELRANGE (- (-", "+OK"),
            ("KEYS *", "*3 $1 ( $1 - $6 user:1"),
        ]);
        // The empty key is a key as well.
        assert_eq!(client.call(&["SET", "", "v"]), "+OK");
        client.expect(&[
            ("RANGE [ [ VALUES", "*1 $1 v"),
            ("RANGE ( + LIMIT 1 KEYS", "*1 $1 ("),
            ("DELRANGE [ [", "+OK"),
            ("DBSIZE", ":3"),
        ]);
    });
}

#[test]
fn longest_keys_can_be_bounds() {
    const LEN: usize = 64 << 10;
    on_each_store(|server, _clock| {
        let mut client = Client::connect(server);
        let last = vec![0xff; LEN];
        let (low, high) = ([b"a".repeat(LEN - 1), vec![0xff]].concat(), b"a".repeat(LEN - 2));
        let high = [&high[..], b"b"].concat();
        for key in [&low, &high, &last] {
            assert_eq!(client.call(&[&b"SET"[..], key, b"v"]), "+OK");
        }
        let bound = |mark: u8, key: &[u8]| [&[mark][..], key].concat();
        let longer = [&low[..], b"x"].concat();
        for (start, end, left) in [
            (bound(b'(', &last), b"+".to_vec(), ":3"),
            (bound(b'(', &low), bound(b'(', &high), ":3"),
            (bound(b'[', &longer), bound(b'[', &longer), ":3"),
            (bound(b'[', &low), bound(b'[', &low), ":2"),
            (bound(b'(', &longer), bound(b'[', &high), ":1"),
            (bound(b'[', &last), bound(b'[', &last), ":0"),
        ] {
            assert_eq!(client.call(&[&b"DELRANGE"[..], &start, &end]), "+OK");
            assert_eq!(client.ask("DBSIZE"), left);
        }
    });
}
