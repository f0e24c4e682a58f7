//! Pictures of a read-only database: how reads follow the writer's progress.
//!
//! A picture is the state of the database that a read-only handle shows
//! ([`crate::db::lifecycle::catch_up`] reads it). The read view owns one [`Pictures`]. A read that
//! meets a table that the writer has removed takes a newer picture and is repeated.
//!
//! Invariants:
//! 1. One thread at a time reads a picture.
//! 2. No snapshot is taken while a picture is published. So a snapshot never has parts of two
//!    pictures.
//!
//! Thread-safety: any thread may call any method.
//! Failure: after [`READS_MAX`] newer pictures the read returns its last error.
//! Cost: a read that succeeds pays one comparison.

use std::sync::atomic::{AtomicU64, Ordering};

use archipelago_base::{Error, ErrorKind, Result};
use parking_lot::{Mutex, MutexGuard};

use crate::db::inner::DbInner;
use crate::db::read::options::ReadOptions;
use crate::db::state::context::Context;

/// Number of times that one read takes a newer picture and is repeated.
const READS_MAX: usize = 16;

/// Function that reads and publishes the newest picture. The caller holds the turn. The open
/// provides the function, because it needs the recovery of manifest and log.
pub(crate) type TakePicture = fn(&DbInner) -> Result<()>;

/// The progress of a read-only database through its writer's states.
pub(crate) struct Pictures {
    /// Held while a picture is read.
    turn: Mutex<()>,
    /// Held while a picture is published, and while a snapshot is taken.
    publishing: Mutex<()>,
    /// Number of pictures that were published.
    generation: AtomicU64,
    /// Number of log records that the picture has read and checked.
    log_records: AtomicU64,
    take: TakePicture,
}

impl Pictures {
    pub(crate) fn new(take: TakePicture) -> Self {
        Self {
            turn: Mutex::new(()),
            publishing: Mutex::new(()),
            generation: AtomicU64::new(0),
            log_records: AtomicU64::new(0),
            take,
        }
    }

    /// Keeps other threads from reading a picture.
    pub(crate) fn lock_turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock()
    }

    /// Keeps pictures from being published.
    pub(crate) fn lock_publishing(&self) -> MutexGuard<'_, ()> {
        self.publishing.lock()
    }

    /// Notes a picture that was published, and how many log records it has checked.
    pub(crate) fn note_published(&self, log_records: u64) {
        self.log_records.store(log_records, Ordering::Relaxed);
        self.generation.fetch_add(1, Ordering::AcqRel);
    }

    /// Number of log records that the picture has read and checked.
    pub(crate) fn log_records(&self) -> u64 {
        self.log_records.load(Ordering::Relaxed)
    }

    fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }
}

/// Runs a read. If it meets a table that the writer has removed, takes a newer picture and repeats
/// the read.
#[inline]
pub(crate) fn read_following<T>(
    db: &DbInner,
    options: &ReadOptions,
    read: impl Fn() -> Result<T>,
) -> Result<T> {
    match read() {
        Err(error) if may_follow(&db.context, &error, options) => {
            read_on_new_picture(db, error, options, read)
        }
        result => result,
    }
}

/// Whether a read that met `error` may be repeated on a newer picture.
#[cold]
pub(crate) fn may_follow(context: &Context, error: &Error, options: &ReadOptions) -> bool {
    let is_read_only = context.options().read_only;
    is_read_only && error.kind() == ErrorKind::Fenced && options.snapshot.is_none()
}

/// Repeats a read, which met a table that the writer has removed, on newer pictures.
#[cold]
pub(crate) fn read_on_new_picture<T>(
    db: &DbInner,
    first: Error,
    options: &ReadOptions,
    read: impl Fn() -> Result<T>,
) -> Result<T> {
    let pictures = db.view.pictures();
    let mut error = first;
    for _ in 0..READS_MAX {
        db.context.check_open()?;
        let seen = pictures.generation();
        {
            let _turn = pictures.lock_turn();
            // Another reader may have taken a newer picture while this reader waited for its turn.
            if pictures.generation() == seen {
                (pictures.take)(db)?;
            }
        }
        match read() {
            Err(again) if may_follow(&db.context, &again, options) => error = again,
            result => return result,
        }
    }
    Err(error)
}
