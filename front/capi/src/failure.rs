//! Failures of calls: a kind, a number for `errno`, and a sentence.
//!
//! Every call runs in [`guard`], which turns a panic into a failure, so no panic reaches C.
//! Thread-safety: each thread has its own last failure. Cost: a call that succeeds pays for
//! `catch_unwind` only.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use archipelago_base::{Error, ErrorKind};
use rustix::io::Errno;

use crate::errno::set_errno;

/// Kinds of failures, as `ARCHIPELAGO_ERROR_*` of the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub(crate) enum FailureKind {
    InvalidArgument = 1,
    Busy = 2,
    NotFound = 3,
    Corrupt = 4,
    Io = 5,
    ReadOnly = 6,
    Fenced = 7,
    Unsupported = 8,
    /// A panic, which is a mistake in this library.
    Internal = 9,
    Closed = 10,
}

/// The failure of a call.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) kind: FailureKind,
    pub(crate) errno: Errno,
    pub(crate) message: String,
}

pub(crate) type CallResult<T> = Result<T, Failure>;

impl Failure {
    pub(crate) fn new(kind: FailureKind, errno: Errno, message: impl Into<String>) -> Self {
        Self { kind, errno, message: message.into() }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(FailureKind::InvalidArgument, Errno::INVAL, message)
    }

    pub(crate) fn unsupported(message: impl Into<String>) -> Self {
        Self::new(FailureKind::Unsupported, Errno::OPNOTSUPP, message)
    }

    /// The failure of a number that does not belong to an open `what`.
    pub(crate) fn bad_handle(what: &str, handle: i32) -> Self {
        let message = format!("{handle} is not an open {what}");
        Self::new(FailureKind::InvalidArgument, Errno::BADF, message)
    }

    fn of_panic(panic: &(dyn Any + Send)) -> Self {
        let text = panic.downcast_ref::<&str>().copied();
        let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        let message = format!("a mistake in the library: {}", text.unwrap_or("a panic"));
        Self::new(FailureKind::Internal, Errno::IO, message)
    }

    /// Makes this the last failure of the calling thread.
    fn remember(&self) {
        let text: Vec<u8> = self.message.bytes().filter(|&byte| byte != 0).collect();
        let text = CString::new(text).unwrap_or_default();
        // A thread that is ending has no caller that could ask.
        let _gone = LAST.try_with(|last| *last.borrow_mut() = (self.kind as i32, text));
        set_errno(self.errno.raw_os_error());
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let (kind, errno) = match error.kind() {
            ErrorKind::InvalidArgument => (FailureKind::InvalidArgument, Errno::INVAL),
            ErrorKind::Busy => (FailureKind::Busy, Errno::BUSY),
            ErrorKind::NotFound => (FailureKind::NotFound, Errno::NOENT),
            ErrorKind::Corrupt => (FailureKind::Corrupt, Errno::BADMSG),
            ErrorKind::ReadOnly => (FailureKind::ReadOnly, Errno::ROFS),
            ErrorKind::Fenced => (FailureKind::Fenced, Errno::STALE),
            ErrorKind::Closed => (FailureKind::Closed, Errno::SHUTDOWN),
            ErrorKind::Unsupported => (FailureKind::Unsupported, Errno::OPNOTSUPP),
            ErrorKind::Internal => (FailureKind::Internal, Errno::IO),
            _ => (FailureKind::Io, Errno::IO),
        };
        let errno =
            if kind == FailureKind::Io { error.io_kind().map_or(errno, errno_of) } else { errno };
        Self::new(kind, errno, error.to_string())
    }
}

fn errno_of(kind: std::io::ErrorKind) -> Errno {
    use std::io::ErrorKind as Io;
    match kind {
        Io::AlreadyExists => Errno::EXIST,
        Io::IsADirectory => Errno::ISDIR,
        Io::NotADirectory => Errno::NOTDIR,
        Io::DirectoryNotEmpty => Errno::NOTEMPTY,
        Io::PermissionDenied => Errno::ACCESS,
        Io::StorageFull => Errno::NOSPC,
        Io::QuotaExceeded => Errno::DQUOT,
        Io::ReadOnlyFilesystem => Errno::ROFS,
        Io::FileTooLarge => Errno::FBIG,
        _ => Errno::IO,
    }
}

thread_local! {
    static LAST: RefCell<(i32, CString)> = RefCell::new((0, CString::default()));
}

/// The kind of the thread's last failure; 0 if no call has failed.
pub(crate) fn last_kind() -> i32 {
    LAST.try_with(|last| last.borrow().0).unwrap_or(0)
}

/// The sentence of the thread's last failure. The bytes stay until the thread's next failure.
pub(crate) fn last_message() -> *const c_char {
    const NOTHING: &CStr = c"";
    LAST.try_with(|last| last.borrow().1.as_ptr()).unwrap_or(NOTHING.as_ptr())
}

/// Runs a call. Returns its result, or `refused` after a failure, which it remembers.
pub(crate) fn guard<T>(refused: T, call: impl FnOnce() -> CallResult<T>) -> T {
    let failure = match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(value)) => return value,
        Ok(Err(failure)) => failure,
        Err(panic) => Failure::of_panic(&*panic),
    };
    failure.remember();
    refused
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn panic_becomes_an_error_of_the_call() {
        assert_eq!(guard(-1, || Ok(7)), 7);
        assert_eq!(guard(-1, || -> CallResult<i32> { panic!("boom {}", 1) }), -1);
        assert_eq!(last_kind(), FailureKind::Internal as i32);
        let text = LAST.with(|last| last.borrow().1.clone());
        assert_eq!(text.to_str(), Ok("a mistake in the library: boom 1"));
    }

    #[test]
    fn errors_keep_their_kind_and_get_the_posix_number() {
        let of = |kind: std::io::ErrorKind| {
            let failure = Failure::from(Error::io("write to", Path::new("x"), kind.into()));
            (failure.kind, failure.errno)
        };
        assert_eq!(of(std::io::ErrorKind::StorageFull), (FailureKind::Io, Errno::NOSPC));
        assert_eq!(of(std::io::ErrorKind::NotFound), (FailureKind::NotFound, Errno::NOENT));
        assert_eq!(of(std::io::ErrorKind::BrokenPipe), (FailureKind::Io, Errno::IO));
        let failed = |error: Error| {
            let failure = Failure::from(error);
            (failure.kind, failure.errno)
        };
        assert_eq!(failed(Error::fenced("taken over")), (FailureKind::Fenced, Errno::STALE));
        assert_eq!(failed(Error::closed("finished")), (FailureKind::Closed, Errno::SHUTDOWN));
        assert_eq!(failed(Error::internal("panicked")), (FailureKind::Internal, Errno::IO));
        let failure = Failure::from(Error::corrupt(Path::new("f"), 5, "a hole"));
        assert_eq!((failure.kind, failure.errno), (FailureKind::Corrupt, Errno::BADMSG));
        assert!(failure.message.contains("offset 5"), "{}", failure.message);
    }
}
