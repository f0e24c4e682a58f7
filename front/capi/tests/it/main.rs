//! The library as C sees it: programs that a C compiler builds against the header and the shared
//! library, and whether header and library agree.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![expect(clippy::disallowed_methods, reason = "sources and programs lie in the file system")]

mod header;
mod programs;

use std::path::{Path, PathBuf};
use std::process::Command;

// The shared library is built because this crate depends on its Rust side.
use archipelago_tiers as _;

fn crate_dir() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Where cargo puts libraries of tests: beside the test.
fn library_dir() -> PathBuf {
    std::env::current_exe().unwrap().parent().unwrap().to_owned()
}

fn library() -> PathBuf {
    let path = library_dir().join("libarchipelago_tiers.so");
    assert!(path.exists(), "{} is missing", path.display());
    path
}

/// What a command prints; it has to succeed.
fn output(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}
