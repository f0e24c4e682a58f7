//! Contexts that C passes, and the context that a thread carries (Keigo §4.4).
//!
//! A context says what a file is, and why it is read or written. Thread-safety: each thread has its
//! own carried context. The other functions are pure.

use std::cell::Cell;
use std::ffi::c_int;
use std::num::NonZero;

use archipelago_env::{FileClass, IoContext, IoPurpose};

use crate::failure::{CallResult, Failure};

/// `archipelago_context` of the header.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct RawContext {
    pub(crate) size: u32,
    pub(crate) file_class: c_int,
    pub(crate) level: c_int,
    pub(crate) reason: c_int,
    pub(crate) from_level: c_int,
    pub(crate) family: u32,
    pub(crate) size_hint_bytes: u64,
}

/// Size of the structure in bytes, which every caller states.
pub(crate) const CONTEXT_BYTES: usize = 32;
const _: () = assert!(size_of::<RawContext>() == CONTEXT_BYTES);

/// A context that was checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Context {
    pub(crate) io: IoContext,
    pub(crate) size_hint_bytes: u64,
}

/// The context of a call without one: a file of no special kind, which is read for a user.
pub(crate) const UNKNOWN: Context =
    Context { io: IoContext::new(FileClass::Other, IoPurpose::ForegroundRead), size_hint_bytes: 0 };

/// Levels are below this limit.
const LEVELS: c_int = 64;

impl RawContext {
    /// Checks the field `size`. The other fields exist only if it is right.
    pub(crate) fn check_size(size: u32) -> CallResult<()> {
        if size as usize == CONTEXT_BYTES {
            return Ok(());
        }
        Err(Failure::invalid(format!(
            "archipelago_context.size is {size}, not {CONTEXT_BYTES}: begin with \
             ARCHIPELAGO_CONTEXT_INIT"
        )))
    }

    /// Checks the context. Errors: a wrong size, and an unknown class, level or reason.
    pub(crate) fn check(&self) -> CallResult<Context> {
        Self::check_size(self.size)?;
        let class = class_of(self.file_class).ok_or_else(|| {
            Failure::invalid(format!("there is no file class {}", self.file_class))
        })?;
        let level = level_of(self.level)?;
        if level.is_some() && class != FileClass::Sst {
            return Err(Failure::invalid("only tables (ARCHIPELAGO_CLASS_TABLE) have a level"));
        }
        let purpose = self.purpose(level)?;
        let io = IoContext {
            class,
            purpose,
            level,
            family: NonZero::new(self.family).map(NonZero::get),
        };
        Ok(Context { io, size_hint_bytes: self.size_hint_bytes })
    }

    fn purpose(&self, level: Option<u8>) -> CallResult<IoPurpose> {
        Ok(match self.reason {
            0 => IoPurpose::ForegroundRead,
            1 => IoPurpose::ForegroundWrite,
            2 => IoPurpose::Recovery,
            3 => IoPurpose::Flush,
            4 => {
                let to = level.unwrap_or(0);
                let from = level_of(self.from_level)?.unwrap_or(to.saturating_sub(1));
                IoPurpose::Compaction { from, to }
            }
            5 => IoPurpose::Gc,
            6 => IoPurpose::Ingest,
            7 => IoPurpose::Maintenance,
            other => return Err(Failure::invalid(format!("there is no reason {other}"))),
        })
    }
}

/// A level of C, where -1 means none.
pub(crate) fn level_of(level: c_int) -> CallResult<Option<u8>> {
    match level {
        -1 => Ok(None),
        0..LEVELS => Ok(Some(level as u8)),
        _ => Err(Failure::invalid(format!("level {level} is not within -1 and {}", LEVELS - 1))),
    }
}

/// The class with a number of `ARCHIPELAGO_CLASS_*`.
pub(crate) fn class_of(class: c_int) -> Option<FileClass> {
    Some(match class {
        0 => FileClass::Other,
        1 => FileClass::Wal,
        2 => FileClass::Sst,
        3 => FileClass::Manifest,
        4 => FileClass::ValueSst,
        _ => return None,
    })
}

/// The number of a class, as in `ARCHIPELAGO_CLASS_*`.
pub(crate) fn class_number(class: FileClass) -> c_int {
    match class {
        FileClass::Other => 0,
        FileClass::Wal => 1,
        FileClass::Sst => 2,
        FileClass::Manifest => 3,
        FileClass::ValueSst => 4,
    }
}

thread_local! {
    static CARRIED: Cell<Option<Context>> = const { Cell::new(None) };
}

/// The context that the calling thread carries.
pub(crate) fn carried() -> Option<Context> {
    CARRIED.try_with(Cell::get).unwrap_or(None)
}

/// Makes the calling thread carry `context`.
pub(crate) fn carry(context: Option<Context>) {
    // A thread that is ending makes no further calls.
    let _gone = CARRIED.try_with(|carried| carried.set(context));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw() -> RawContext {
        RawContext {
            size: CONTEXT_BYTES as u32,
            file_class: 2,
            level: 4,
            reason: 4,
            from_level: -1,
            family: 0,
            size_hint_bytes: 9,
        }
    }

    #[test]
    fn context_of_c_is_converted_or_refused_with_the_reason() {
        let context = raw().check().unwrap();
        let purpose = IoPurpose::Compaction { from: 3, to: 4 };
        assert_eq!(context.io, IoContext::sst(purpose, 4));
        assert_eq!(context.size_hint_bytes, 9);
        let of_family = RawContext { family: 7, ..raw() }.check().unwrap().io;
        assert_eq!(of_family, IoContext { family: Some(7), ..context.io });
        let values =
            RawContext { file_class: 4, level: -1, reason: 5, ..raw() }.check().unwrap().io;
        assert_eq!(values, IoContext::new(FileClass::ValueSst, IoPurpose::Gc));
        assert_eq!(
            (0..5).map(|n| class_number(class_of(n).unwrap())).collect::<Vec<_>>(),
            [0, 1, 2, 3, 4]
        );
        let refused = |raw: RawContext, word: &str| {
            let message = raw.check().unwrap_err().message;
            assert!(message.contains(word), "{message}");
        };
        refused(RawContext { size: 8, ..raw() }, "ARCHIPELAGO_CONTEXT_INIT");
        refused(RawContext { file_class: 9, ..raw() }, "class 9");
        refused(RawContext { level: 64, ..raw() }, "level 64");
        refused(RawContext { level: -2, ..raw() }, "level -2");
        refused(RawContext { file_class: 1, ..raw() }, "only tables");
        refused(RawContext { file_class: 4, ..raw() }, "only tables");
        refused(RawContext { reason: 8, ..raw() }, "reason 8");
    }
}
