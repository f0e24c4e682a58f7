//! Databases with separated values.

mod admin;
mod read;
