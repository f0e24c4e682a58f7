//! Conflicts of transactions, which are the causes of their `Busy` errors.

use archipelago_base::{Error, ErrorKind};

/// Why a transaction failed or must wait because of other work. It is the cause of a `Busy` error.
///
/// ```
/// # use archipelago_engine::{db::Db, options::{DbOptions, WriteOptions}};
/// # use archipelago_engine::transaction::Conflict;
/// # let dir = tempfile::tempdir()?;
/// # let db = Db::open(dir.path(), DbOptions::default())?;
/// let cf = db.default_family();
/// let mut transaction = db.transaction();
/// transaction.get(cf, b"reef")?;
/// transaction.put(cf, b"seen", b"1")?;
/// db.put(b"reef", b"coral")?;
/// let error = transaction.commit(&WriteOptions::default()).unwrap_err();
/// assert_eq!(Conflict::of(&error), Some(Conflict::Key));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Conflict {
    /// Another write changed a key that the transaction read or wrote. Run it again.
    Key,
    /// Another write changed a key of a range that the transaction read or deleted. Run it again.
    Range,
    /// A value that the transaction read has expired. Run it again.
    Expired,
    /// So much was written during the check that it could not be finished. Run it again.
    Overrun,
    /// The row lock would close a circle of waiting transactions. Roll back, so that the others can
    /// go on, and run it again.
    Deadlock,
    /// Another transaction held the row lock beyond the timeout. Request the lock again, or roll
    /// back.
    LockTimeout,
}

impl Conflict {
    /// The conflict that caused `error`; `None` if something else did.
    #[must_use]
    pub fn of(error: &Error) -> Option<Self> {
        error.cause::<Self>().copied()
    }

    /// The error with this cause.
    pub(crate) fn error(self, context: impl Into<String>) -> Error {
        Error::with_source(ErrorKind::Busy, context, self)
    }
}

impl std::fmt::Display for Conflict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Key => "a key was changed by another write",
            Self::Range => "a range was changed by another write",
            Self::Expired => "a value expired",
            Self::Overrun => "too much was written meanwhile",
            Self::Deadlock => "transactions wait for each other",
            Self::LockTimeout => "the row stayed locked",
        })
    }
}

impl std::error::Error for Conflict {}
