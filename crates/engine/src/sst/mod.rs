//! Being built.

/// Placeholder until the table module lands.
#[derive(Debug)]
pub struct TableReader;
