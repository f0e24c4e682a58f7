//! A database whose write-ahead log lies in a directory of its own, as operators run it.

use std::path::Path;

use rustix::process::Signal;

use crate::storage::StorageCluster;
use crate::store::Redis;
use crate::{Served, db, refused, text};

fn segments(dir: &Path) -> usize {
    let names = dir.read_dir().unwrap().map(|entry| entry.unwrap().path());
    names.filter(|path| path.extension().is_some_and(|end| end == "log")).count()
}

#[test]
fn log_lies_in_its_own_directory_and_no_open_misses_it() {
    let root = tempfile::tempdir().unwrap();
    let (dir, log) = (root.path().join("data"), root.path().join("wal"));
    let (dir_text, log_text) = (dir.to_str().unwrap(), log.to_str().unwrap());
    let mut served = Served::start_with(&dir, &["--log-dir", log_text]);
    served.say("SET reef coral\r\n", "+OK\r\n");
    served.signal(Signal::KILL);
    served.child.wait().unwrap();
    assert_eq!(segments(&dir), 0);
    assert!(segments(&log) > 0);
    let place = format!("lies in {log_text} of ");
    let serve = ["serve", "--listen", "127.0.0.1:0", "--dir", dir_text];
    let said = refused(&serve);
    assert!(said.contains(&place), "{said}");
    let said = refused(&["db", "--dir", dir_text, "get", "reef"]);
    assert!(said.contains(&place), "{said}");
    let empty = root.path().join("empty");
    let said = refused(&[&serve[..], &["--log-dir", empty.to_str().unwrap()]].concat());
    assert!(said.contains(&place), "{said}");
    let said = refused(&[&serve[..], &["--log-dir", dir_text]].concat());
    assert!(said.contains("is that of the database"), "{said}");
    assert_eq!(text(&db(&dir, &["get", "reef", "--log-dir", log_text])), "coral\n");
    // A checkpoint has no log, so it opens anywhere.
    let copy = root.path().join("copy");
    text(&db(&dir, &["checkpoint", copy.to_str().unwrap(), "--log-dir", log_text]));
    assert_eq!(text(&db(&copy, &["scan"])), "reef\tcoral\n");
}

#[test]
fn volume_with_its_log_on_one_machine_is_not_taken_over_without_it() {
    let cluster = StorageCluster::start(3);
    let log = cluster.dir.path().join("wal");
    let log = log.to_str().unwrap();
    let (mut owner, address) = cluster.serve("reef", &["--log-dir", log]);
    let mut redis = Redis::connect(&address).unwrap();
    assert_eq!(redis.ask_long(&["SET", "reef", "coral"]).unwrap(), "+OK");
    assert!(segments(Path::new(log)) > 0);
    owner.kill();
    let at = cluster.address.as_str();
    let serve =
        ["serve", "--listen", "127.0.0.1:0", "--store", at, "--volume", "reef", "--take-over"];
    let said = refused(&[&serve[..], &["--log-dir", log]].concat());
    assert!(said.contains("--take-over: the log of this database lies in"), "{said}");
    let said = refused(&serve);
    assert!(said.contains(&format!("lies in {log} of ")), "{said}");
    let (_owner, address) = cluster.serve("reef", &["--log-dir", log]);
    let mut redis = Redis::connect(&address).unwrap();
    assert_eq!(redis.ask_long(&["GET", "reef"]).unwrap().trim_end(), "coral");
}

#[test]
fn settings_that_contradict_a_log_directory_are_refused() {
    let said = refused(&["serve", "--log-dir", "wal", "--log-writing", "striped"]);
    assert!(said.contains("--log-writing striped: the log"), "{said}");
    let buffer = ["--store", "127.0.0.1:9", "--log-buffer-bytes", "1048576"];
    let said = refused(&[&["serve", "--log-dir", "wal"][..], &buffer].concat());
    assert!(said.contains("--log-buffer-bytes"), "{said}");
}
