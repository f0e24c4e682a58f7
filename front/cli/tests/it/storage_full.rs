//! A database on storage nodes that are full by their own limit.

use std::path::Path;

use archipelago_base::random::Rng;

use crate::cluster::until;
use crate::storage::{StorageCluster, settings};
use crate::store::Redis;
use crate::text;

/// Length of a value. One in a file is far below the room of a node.
const VALUE_BYTES: usize = 16 << 10;
/// Number of values that do not fit the nodes by far.
const VALUES_MAX: usize = 8_000;
/// Fewest values that fit the nodes: a quarter of their 64 MiB.
const VALUES_MIN: usize = 1_000;

fn key(number: usize) -> String {
    format!("reef:{number:06}")
}

/// Text that does not compress.
fn value(number: usize) -> String {
    let mut rng = Rng::with_seed(number as u64);
    (0..VALUE_BYTES).map(|_| rng.alphanumeric()).collect()
}

/// Sets keys from `from` on until one is refused. Returns the number of the refused one, and the
/// refusal.
fn fill(redis: &mut Redis, from: usize) -> (usize, String) {
    for number in from..from + VALUES_MAX {
        let reply = redis.ask_long(&["SET", &key(number), &value(number)]).unwrap();
        if reply != "+OK" {
            return (number, reply);
        }
    }
    panic!("{VALUES_MAX} values of {VALUE_BYTES} bytes are taken, so the nodes are never full");
}

fn check(redis: &mut Redis, numbers: &[usize], what: &str) {
    for number in numbers {
        let found = redis.ask_long(&["GET", &key(*number)]).unwrap();
        assert!(found == value(*number), "{what}: key {number} has another value");
    }
}

/// Sends a command until it is not refused for want of room, which must come.
fn taken(redis: &mut Redis, command: &[&str], expected: &str) {
    until("there is room again", || {
        let reply = redis.ask_long(command).unwrap();
        assert!(reply == expected || reply.starts_with("-MISCONF"), "{}: {reply}", command[1]);
        reply == expected
    });
}

/// Fills the nodes, frees space, fills them again, and has another owner take over.
fn story(dir: &Path, node_flags: &[&str]) {
    let cluster = StorageCluster::start_in(dir, 3, node_flags);
    let file = settings(dir, 1 << 20);
    let config = ["--config", file.to_str().unwrap()];
    let (mut owner, at) = cluster.serve("reef", &config);
    let mut redis = Redis::connect(&at).unwrap();
    let (count, refusal) = fill(&mut redis, 0);
    assert!(refusal.starts_with("-MISCONF") && refusal.contains("is full"), "{refusal}");
    assert!(count > VALUES_MIN, "{count} values are taken: {refusal}");
    let all: Vec<usize> = (0..count).collect();
    check(&mut redis, &all, "on full nodes");
    let (mut kept, gone): (Vec<usize>, Vec<usize>) =
        all.iter().partition(|number| *number % 3 == 0);
    for number in &gone {
        taken(&mut redis, &["DEL", &key(*number)], ":1");
    }
    for number in count..count + gone.len() / 2 {
        taken(&mut redis, &["SET", &key(number), &value(number)], "+OK");
    }
    let (end, refusal) = fill(&mut redis, count + gone.len() / 2);
    assert!(refusal.starts_with("-MISCONF") && refusal.contains("is full"), "{refusal}");
    kept.extend(count..end);
    check(&mut redis, &kept, "on nodes that are full again");
    owner.kill();
    let (mut owner, at) = cluster.serve("reef", &[&config[..], &["--take-over"]].concat());
    let mut redis = Redis::connect(&at).unwrap();
    check(&mut redis, &kept, "after a take-over on full nodes");
    assert_eq!(redis.ask_long(&["GET", &key(gone[0])]).unwrap(), "nil");
    drop(redis);
    owner.end();
    let verified = text(&cluster.db("reef", &["verify"]));
    assert!(verified.ends_with("all undamaged\n"), "{verified}");
}

#[test]
fn nodes_at_their_limit_refuse_writes_until_values_are_removed() {
    let dir = tempfile::tempdir().unwrap();
    story(dir.path(), &["--size-max", "64MiB"]);
}
