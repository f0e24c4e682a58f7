//! Runs every example and compares what it prints with `expected/NAME.txt`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use archipelago::{Db, DbOptions, WriteOptions};
use archipelago_resp::engine_store::EngineStore;
use archipelago_resp::{Server, ServerOptions};

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// Names of the files in a folder, without their extension, sorted.
fn names(name: &str) -> Vec<String> {
    let entries = std::fs::read_dir(folder(name)).unwrap().map(|entry| entry.unwrap().path());
    let mut names: Vec<String> =
        entries.map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned()).collect();
    names.sort();
    names
}

fn assert_prints_as_expected(name: &str, arguments: &[String]) {
    let program = Path::new(env!("CARGO_BIN_EXE_basics")).with_file_name(name);
    let output = Command::new(program).args(arguments).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name}: {} {errors}", output.status);
    let expected = std::fs::read_to_string(folder("expected").join(format!("{name}.txt"))).unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected, "{name}");
}

#[test]
fn every_embedded_example_prints_what_it_promises() {
    let programs = names("src/bin");
    assert_eq!(programs, names("expected"), "each program needs a file in examples/expected/");
    assert!(programs.len() >= 8, "{programs:?}");
    for name in programs.iter().filter(|name| *name != "redis_client") {
        assert_prints_as_expected(name, &[]);
    }
}

#[test]
fn redis_client_talks_to_a_server() {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(dir.path(), DbOptions::default()).unwrap();
    let store = EngineStore::new(db.clone(), WriteOptions::default()).unwrap();
    let server = Server::start("127.0.0.1:0", Arc::new(store), ServerOptions::default()).unwrap();
    assert_prints_as_expected("redis_client", &[server.local_addr().to_string()]);
    server.shutdown();
    db.close().unwrap();
}
