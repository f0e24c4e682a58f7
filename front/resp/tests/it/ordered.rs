//! RANGE and DELRANGE.

use crate::client::{Client, on_each_store};

#[test]
fn range_and_delrange() {
    on_each_store(|server, _clock| {
        let mut client = Client::connect(server);
        client.expect(&[
            ("MSET a 1 b 2 c 3 d 4", "+OK"),
            ("RANGE a c", "*4 $1 a $1 1 $1 b $1 2"),
            ("RANGE b + KEYS", "*3 $1 b $1 c $1 d"),
            ("RANGE - c VALUES", "*2 $1 1 $1 2"),
            ("RANGE - + LIMIT 1", "*2 $1 a $1 1"),
            ("RANGE - + LIMIT 0", "*0"),
            ("RANGE a d REV KEYS LIMIT 2", "*2 $1 c $1 b"),
            ("RANGE - + REV KEYS LIMIT 1", "*1 $1 d"),
            ("RANGE c a", "*0"),
            ("RANGE a a", "*0"),
            ("RANGE - + LIMIT -1", "-ERR LIMIT must not be negative"),
            ("RANGE - + LIMIT", "-ERR syntax error"),
            ("RANGE - + KEYS VALUES", "-ERR syntax error"),
            ("RANGE -", "-ERR wrong number of arguments for 'range' command"),
            ("DELRANGE b d", "+OK"),
            ("KEYS *", "*2 $1 a $1 d"),
            ("DELRANGE d a", "+OK"),
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
