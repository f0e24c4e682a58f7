//! Databases with separated values.

mod read;
