//! Functions of `include/archipelago_tiers.h`.
//!
//! The header says what a call does and what it requires of its arguments. A function here takes
//! the pointers apart ([`crate::ffi`]) and calls safe code.
//!
//! Every function that takes a pointer is `unsafe`, because C may pass anything. The contract of
//! all of them is a rule of the header: a pointer is NULL, or valid for its use during the call.

mod files;
mod names;
mod tiers;
