//! Errors of files on a storage pool, which name the operation and the path.
//!
//! All functions are pure.

use std::fmt;
use std::io;
use std::path::Path;

use archipelago_base::Error;

/// An error of the operating system's `kind`, which names `path`.
pub(super) fn refused(doing: &str, path: &Path, kind: io::ErrorKind) -> Error {
    Error::io(doing, path, kind.into())
}

/// `error` with the operation and the path that it belongs to.
#[cold]
pub(super) fn named(error: &Error, doing: impl fmt::Display, path: &Path) -> Error {
    error.context_at(format_args!("cannot {doing} {}", path.display()))
}

/// The error for a path that does not name a file.
pub(super) fn missing(doing: &str, path: &Path, is_dir: bool) -> Error {
    let kind = if is_dir { io::ErrorKind::IsADirectory } else { io::ErrorKind::NotFound };
    refused(doing, path, kind)
}
