//! The border to code that may panic: extensions of the user, and the jobs that call them.
//!
//! Merge operators, compaction filters, event listeners and job executors are code of the user. The
//! engine calls each of them through a `Border`, which turns a panic into an error that names the
//! extension and its column family. Its cause is an `ExtensionPanic`, by which callers tell it
//! from other errors. `contained` does the same for the engine's own part of a job; the cause of
//! its error is an `EnginePanic`.
//!
//! A program that is built with `panic = "abort"` ends before a panic can be caught. Its panic hook
//! asks [`running_extension`] which extension the thread was in.
//!
//! Invariants:
//! 1. While a thread is inside a border, [`running_extension`] names the innermost one.
//! 2. A border's slot is given back when the border is dropped, so that slots are bounded by the
//!    number of live borders.
//!
//! Thread-safety: any thread may call any method.
//! Failure: a panic becomes an error of kind `Internal`. Values that the panicking code was
//! changing may be left half changed; callers drop them.
//! Cost: making a border takes a lock and allocates. A call sets a thread-local word twice.

use std::any::Any;
use std::cell::Cell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use archipelago_base::{Error, ErrorKind, Result};
use parking_lot::Mutex;

thread_local! {
    /// The slot of the border that the thread is inside of, plus one; 0 outside of all.
    static INSIDE: Cell<usize> = const { Cell::new(0) };
}

/// The extensions of all live borders.
static SLOTS: Mutex<Slots> = Mutex::new(Slots { used: Vec::new(), free: Vec::new() });

struct Slots {
    used: Vec<Option<Arc<Callee>>>,
    free: Vec<usize>,
}

/// The extension behind a border.
#[derive(Debug)]
struct Callee {
    /// Noun for the kind of extension, such as "merge operator" or "compaction filter".
    what: &'static str,
    name: String,
    family: Option<String>,
}

impl fmt::Display for Callee {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} \"{}\"", self.what, self.name)?;
        match &self.family {
            Some(family) => write!(f, " of column family \"{family}\""),
            None => Ok(()),
        }
    }
}

/// The cause of an error after a panic of an extension.
#[derive(Debug)]
pub(crate) struct ExtensionPanic(String);

impl fmt::Display for ExtensionPanic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ExtensionPanic {}

/// The cause of an error after a panic of the engine.
#[derive(Debug)]
pub(crate) struct EnginePanic(String);

impl fmt::Display for EnginePanic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for EnginePanic {}

/// The boundary to one extension of the user, across which panics become errors.
#[derive(Debug)]
pub(crate) struct Border {
    callee: Arc<Callee>,
    slot: usize,
}

impl Border {
    /// Makes the border to the extension `name`, which is a `what` ("merge operator").
    pub(crate) fn new(what: &'static str, name: &str, family: Option<&str>) -> Self {
        let (name, family) = (name.to_owned(), family.map(str::to_owned));
        let callee = Arc::new(Callee { what, name, family });
        let mut slots = SLOTS.lock();
        let slot = slots.free.pop().unwrap_or(slots.used.len());
        if slot == slots.used.len() {
            slots.used.push(None);
        }
        slots.used[slot] = Some(Arc::clone(&callee));
        Self { callee, slot }
    }

    /// Calls `code` of the extension; `Internal` if it panics.
    #[inline]
    pub(crate) fn call<T>(&self, code: impl FnOnce() -> T) -> Result<T> {
        let _inside = Inside(INSIDE.replace(self.slot + 1));
        catch_unwind(AssertUnwindSafe(code)).map_err(|panic| self.error(&*panic))
    }

    #[cold]
    fn error(&self, panic: &(dyn Any + Send)) -> Error {
        Error::with_source(
            ErrorKind::Internal,
            format!("{} panicked: correct it and restart the program", self.callee),
            ExtensionPanic(text_of(panic).to_owned()),
        )
    }
}

impl Drop for Border {
    fn drop(&mut self) {
        let mut slots = SLOTS.lock();
        slots.used[self.slot] = None;
        slots.free.push(self.slot);
    }
}

/// Restores the thread's slot when a call of a border ends.
struct Inside(usize);

impl Drop for Inside {
    fn drop(&mut self) {
        INSIDE.set(self.0);
    }
}

/// The extension that the calling thread is executing, for a panic hook: `merge operator "sum" of
/// column family "counters"`. `None` outside of extensions.
#[must_use]
pub fn running_extension() -> Option<String> {
    let slot = INSIDE.try_with(Cell::get).ok()?.checked_sub(1)?;
    let callee = SLOTS.lock().used.get(slot)?.clone()?;
    Some(callee.to_string())
}

/// Runs `code` of the engine, which is a part of `what`; `Internal` if it panics.
pub(crate) fn contained<T>(what: &str, code: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(code)).unwrap_or_else(|panic| {
        Err(Error::with_source(
            ErrorKind::Internal,
            format!("{what} panicked, which is a defect of the engine: report it"),
            EnginePanic(text_of(&*panic).to_owned()),
        ))
    })
}

fn text_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panic_becomes_error_that_names_the_extension() {
        let border = Border::new("merge operator", "sum", Some("counters"));
        let error = border.call(|| -> u32 { panic!("at {}", 7) }).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Internal);
        assert_eq!(
            error.to_string(),
            "internal error: merge operator \"sum\" of column family \"counters\" panicked: \
             correct it and restart the program: at 7"
        );
        let told = error.context_at("flush").context_at("background");
        assert!(told.cause::<ExtensionPanic>().is_some());
        assert_eq!(border.call(|| 7).unwrap(), 7);
    }

    #[test]
    fn running_extension_is_the_innermost_border() {
        assert_eq!(running_extension(), None);
        let outer = Border::new("job executor", "remote", None);
        let inner = Border::new("compaction filter", "ttl", Some("x"));
        let names = outer.call(|| {
            let first = running_extension();
            let second = inner.call(running_extension).unwrap();
            inner.call(|| panic!("on purpose")).unwrap_err();
            [first, second, running_extension()]
        });
        let [first, second, third] = names.unwrap().map(Option::unwrap);
        assert_eq!(first, "job executor \"remote\"");
        assert_eq!(second, "compaction filter \"ttl\" of column family \"x\"");
        assert_eq!(third, first);
        assert_eq!(running_extension(), None);
    }
}
