//! Findings of the checks.

use std::fmt;
use std::path::{Path, PathBuf};

/// One thing that is wrong, with its place and with what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Finding {
    /// The file, relative to the workspace's root.
    pub(crate) path: PathBuf,
    /// The line, from 1; 0 if the finding is about the whole file.
    pub(crate) line: usize,
    /// Text that says what is wrong and what to do.
    pub(crate) message: String,
}

impl Finding {
    /// A finding at a line (0 = the whole file).
    pub(crate) fn new(path: &Path, line: usize, message: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line, message: message.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path.display())?;
        if self.line > 0 {
            write!(f, ":{}", self.line)?;
        }
        write!(f, ": {}", self.message)
    }
}
