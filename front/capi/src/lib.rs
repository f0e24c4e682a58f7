//! The C library over the tiers (`include/archipelago_tiers.h`, `docs/guide/c-library.md`): calls
//! like those of POSIX, which Keigo extends with a context (§4.4, §4.5). Storage engines that are
//! not written in Rust use it.
//!
//! Invariants:
//! 1. C holds numbers only: of tiers, files, directories and locks. A number that was never given
//!    out, or was closed, is refused (`EBADF`), so its misuse reaches no memory.
//! 2. Only `ffi.rs` and `calls/` handle pointers. They call safe code (`space.rs`, `file.rs`).
//! 3. No panic reaches C. Every call runs in `failure::guard`, which turns a panic into an error in
//!    a profile that unwinds. In the profile `release` a panic ends the process.
//!
//! Thread-safety: any thread may make any call at any time. The last failure and the context belong
//! to their thread.

mod calls;
mod context;
mod errno;
mod failure;
mod ffi;
mod file;
mod handles;
mod space;
