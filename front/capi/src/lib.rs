//! The C library over the tiers (`include/archipelago_tiers.h`, `docs/guide/c-library.md`): the
//! POSIX-like calls that Keigo extends with a context (§4.4, §4.5), for storage engines that are
//! not written in Rust.
//!
//! Everything that C holds is a number: tiers, files, directories, locks. A number that was never
//! given out or was closed is refused (`EBADF`), so that no misuse of one reaches memory. Pointers
//! cross the border in `ffi.rs` and `calls/` alone; behind them lies safe code (`space.rs`,
//! `file.rs`). No panic crosses: every call runs in `failure::guard`, which turns one into an error
//! (with a profile that unwinds; `release` ends the process).
//!
//! Thread-safety: every call may be made by any thread at any time. What went wrong last and the
//! context are kept by thread.

mod calls;
mod context;
mod errno;
mod failure;
mod ffi;
mod file;
mod handles;
mod space;
