//! The one error type that crosses crate boundaries.
//!
//! An [`Error`] has a kind, a sentence and an optional cause. The kind says what the caller can do.
//! The sentence names the object, says what was wrong and says what to do.
//!
//! Thread-safety: an error is immutable, and its clones share one allocation.

use std::fmt;
use std::path::Path;

/// A `Result` whose error is [`Error`] unless another type is given.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What the caller can do about an [`Error`]. One kind never means two things.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The call is wrong: a key is too long, a column family is unknown, a setting is out of range.
    /// Correct the call.
    InvalidArgument,
    /// The call would have to wait for something. Try again later.
    Busy,
    /// The named thing does not exist.
    NotFound,
    /// Stored bytes are not the bytes that were written. Restore the named file from a copy.
    Corrupt,
    /// The device or the operating system refused. Look at the named file and the cause.
    Io,
    /// The database takes no writes after an earlier I/O error. Reads continue.
    ReadOnly,
    /// Ownership is lost: another process, or a later epoch, owns what the caller used. A lease
    /// expired, a key was revoked, another manager took over, or the writer of a database removed a
    /// table that a reader still used. Give up what the caller holds, and join, locate or catch up
    /// again.
    Fenced,
    /// This process closed, dropped, finished or cancelled what the caller used: a database, a
    /// column family, a log segment, a membership, a job. Open it again if the end was not
    /// intended.
    Closed,
    /// The file, the message or the platform needs a feature or a version that this program does
    /// not have.
    Unsupported,
    /// Code of this process broke its contract: an extension or a thread panicked, or a change does
    /// not fit the state that it changes. Nothing stored is damaged. Correct the code that the
    /// message names.
    Internal,
}

impl ErrorKind {
    /// The text that stands before the sentence of an error.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::InvalidArgument => "invalid argument",
            Self::Busy => "busy",
            Self::NotFound => "not found",
            Self::Corrupt => "corruption",
            Self::Io => "i/o error",
            Self::ReadOnly => "read only",
            Self::Fenced => "ownership lost",
            Self::Closed => "closed",
            Self::Unsupported => "unsupported",
            Self::Internal => "internal error",
        }
    }
}

/// An error: what the caller can do, what failed, and why.
///
/// Clones share one allocation. Therefore every writer of a group commit can get the same error,
/// and a database can keep its first error.
#[derive(Clone)]
pub struct Error {
    inner: std::sync::Arc<ErrorParts>,
}

struct ErrorParts {
    kind: ErrorKind,
    context: String,
    source: Option<Box<dyn std::error::Error + Send + Sync + 'static>>,
}

impl Error {
    /// An error without a cause. `context` is a sentence for the operator.
    pub fn new(kind: ErrorKind, context: impl Into<String>) -> Self {
        Self {
            inner: std::sync::Arc::new(ErrorParts { kind, context: context.into(), source: None }),
        }
    }

    /// An error with a cause. `context` is a sentence for the operator.
    pub fn with_source(
        kind: ErrorKind,
        context: impl Into<String>,
        source: impl Into<Box<dyn std::error::Error + Send + Sync + 'static>>,
    ) -> Self {
        Self {
            inner: std::sync::Arc::new(ErrorParts {
                kind,
                context: context.into(),
                source: Some(source.into()),
            }),
        }
    }

    /// An error of the kind [`ErrorKind::InvalidArgument`] without a cause.
    pub fn invalid(context: impl Into<String>) -> Self {
        Self::new(ErrorKind::InvalidArgument, context)
    }

    /// An error of the kind [`ErrorKind::Busy`] without a cause.
    pub fn busy(context: impl Into<String>) -> Self {
        Self::new(ErrorKind::Busy, context)
    }

    /// An error of the kind [`ErrorKind::Closed`] without a cause.
    pub fn closed(context: impl Into<String>) -> Self {
        Self::new(ErrorKind::Closed, context)
    }

    /// An error of the kind [`ErrorKind::Fenced`] without a cause.
    pub fn fenced(context: impl Into<String>) -> Self {
        Self::new(ErrorKind::Fenced, context)
    }

    /// An error of the kind [`ErrorKind::Internal`] without a cause.
    pub fn internal(context: impl Into<String>) -> Self {
        Self::new(ErrorKind::Internal, context)
    }

    /// An error of the kind [`ErrorKind::NotFound`] without a cause.
    pub fn not_found(context: impl Into<String>) -> Self {
        Self::new(ErrorKind::NotFound, context)
    }

    /// An error of the kind [`ErrorKind::Unsupported`] without a cause.
    pub fn unsupported(context: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unsupported, context)
    }

    /// An error of the kind [`ErrorKind::Corrupt`] for `file` at byte `offset`. `what` names the
    /// damaged object and the damage ("data block: checksum 0x… does not match 0x…").
    pub fn corrupt(file: &Path, offset: u64, what: impl fmt::Display) -> Self {
        Self::new(
            ErrorKind::Corrupt,
            format!("{}: corrupt at offset {offset}: {what}", file.display()),
        )
    }

    /// An error of the operating system while `doing` ("read 4096 bytes at 0 of") something with
    /// `file`. The kind is `NotFound` if the file does not exist, else `Io`.
    pub fn io(doing: &str, file: &Path, source: std::io::Error) -> Self {
        let kind = match source.kind() {
            std::io::ErrorKind::NotFound => ErrorKind::NotFound,
            _ => ErrorKind::Io,
        };
        Self::with_source(kind, format!("cannot {doing} {}", file.display()), source)
    }

    /// The kind, which says what the caller can do.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.inner.kind
    }

    /// The sentence, without the kind and the cause.
    #[must_use]
    pub fn context(&self) -> &str {
        &self.inner.context
    }

    /// The kind of the operating system's error that is a cause at any depth.
    #[must_use]
    pub fn io_kind(&self) -> Option<std::io::ErrorKind> {
        self.cause::<std::io::Error>().map(std::io::Error::kind)
    }

    /// The cause of the type `T` at any depth.
    #[must_use]
    pub fn cause<T: std::error::Error + 'static>(&self) -> Option<&T> {
        let mut source: &(dyn std::error::Error + 'static) = &**self.inner.source.as_ref()?;
        loop {
            if let Some(error) = source.downcast_ref::<T>() {
                return Some(error);
            }
            source = match source.downcast_ref::<WrappedError>() {
                Some(WrappedError(error)) => &**error.inner.source.as_ref()?,
                None => source.source()?,
            };
        }
    }

    /// Whether a full device or an exceeded quota is the cause. Such an error may end by itself.
    #[must_use]
    pub fn is_no_space(&self) -> bool {
        matches!(
            self.io_kind(),
            Some(std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded)
        )
    }

    /// The same error with the prefix `outer: ` before its sentence.
    #[must_use]
    pub fn context_at(&self, outer: impl fmt::Display) -> Self {
        let context = format!("{outer}: {}", self.inner.context);
        match &self.inner.source {
            None => Self::new(self.inner.kind, context),
            Some(_) => Self::with_source(self.inner.kind, context, WrappedError(self.clone())),
        }
    }
}

/// An error as the cause of another, which keeps the chain of causes when an error is wrapped.
#[derive(Debug)]
struct WrappedError(Error);

impl fmt::Display for WrappedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0.inner.source {
            Some(source) => source.fmt(f),
            None => f.write_str(&self.0.inner.context),
        }
    }
}

impl std::error::Error for WrappedError {}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.inner.kind.name(), self.inner.context)?;
        match &self.inner.source {
            Some(source) => write!(f, ": {source}"),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.inner.source.as_ref().map(|source| &**source as _)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_device_is_found_below_added_context() {
        let full = std::io::Error::from(std::io::ErrorKind::StorageFull);
        let error = Error::io("append to", Path::new("/db/000004.log"), full);
        assert!(error.is_no_space());
        let told = error.context_at("the write was not logged").context_at("column family 1");
        assert!(told.is_no_space());
        let wrapped = Error::with_source(ErrorKind::ReadOnly, "no writes", told);
        assert!(wrapped.is_no_space());
        assert!(!Error::invalid("no cause").is_no_space());
    }

    #[test]
    fn every_kind_has_its_own_name() {
        use ErrorKind::{
            Busy, Closed, Corrupt, Fenced, Internal, InvalidArgument, Io, NotFound, ReadOnly,
            Unsupported,
        };
        let kinds = [
            InvalidArgument,
            Busy,
            NotFound,
            Corrupt,
            Io,
            ReadOnly,
            Fenced,
            Closed,
            Unsupported,
            Internal,
        ];
        let names: std::collections::BTreeSet<_> = kinds.iter().map(|kind| kind.name()).collect();
        assert_eq!(names.len(), kinds.len());
        assert_eq!(Error::closed("the log").to_string(), "closed: the log");
        assert_eq!(Error::fenced("the block").to_string(), "ownership lost: the block");
        assert_eq!(Error::internal("a defect").to_string(), "internal error: a defect");
    }
}
