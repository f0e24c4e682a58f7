//! Errors that all file systems report with the same words.
//!
//! All functions are pure.

use std::io;
use std::path::Path;

use archipelago_base::Error;

/// The error that `path` does not exist.
#[must_use]
pub fn not_found(doing: &str, path: &Path) -> Error {
    Error::io(doing, path, io::ErrorKind::NotFound.into())
}

/// The error of a read of `len` bytes at `offset` of a file that ends at `end`.
#[cold]
#[must_use]
pub fn past_end(path: &Path, offset: u64, len: usize, end: u64) -> Error {
    let cause = io::Error::new(
        io::ErrorKind::UnexpectedEof,
        format!("reading past the end: the file has {end} bytes"),
    );
    Error::io(&format!("read {len} bytes at {offset} of"), path, cause)
}

/// The error that the process `pid`, if it is known, holds the lock file at `path`.
#[cold]
#[must_use]
pub fn locked(path: &Path, pid: Option<u32>) -> Error {
    let holder = match pid {
        Some(pid) if pid == std::process::id() => format!("this process (pid {pid})"),
        Some(pid) => format!("process {pid}"),
        None => "another process".to_owned(),
    };
    Error::busy(format!("{} is locked by {holder}: close it there first", path.display()))
}
