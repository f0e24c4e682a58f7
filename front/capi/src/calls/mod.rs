//! The calls of `include/archipelago_tiers.h`, one function each. What a call does and what it asks
//! of its arguments stands there; a function here takes the pointers apart ([`crate::ffi`]) and
//! hands on to safe code.
//!
//! Every one is `unsafe` that takes a pointer, for the one reason that C may pass anything: the
//! header's rule "a pointer is NULL or valid for what it is used for, during the call" is the
//! contract of all of them.

mod files;
mod names;
mod tiers;
