//! The command line of a child process: a role, and words of the form `name=value`.
//!
//! The module consists of pure functions.

use std::collections::BTreeMap;
use std::path::PathBuf;

/// First argument of a child process of a run over a cluster.
pub(crate) const ROLE: &str = "--role";

/// The named values of a command line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Words(BTreeMap<String, String>);

impl Words {
    /// Reads words of the form `name=value`.
    pub(crate) fn parse(words: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut values = BTreeMap::new();
        for word in words {
            let Some((name, value)) = word.split_once('=') else {
                return Err(format!("{ROLE}: \"{word}\" is not of the form name=value"));
            };
            values.insert(name.to_owned(), value.to_owned());
        }
        Ok(Self(values))
    }

    /// Adds a value.
    #[expect(clippy::needless_pass_by_value, reason = "callers pass numbers and texts alike")]
    pub(crate) fn with(mut self, name: &str, value: impl ToString) -> Self {
        self.0.insert(name.to_owned(), value.to_string());
        self
    }

    /// The command line of a process of `role` with these values.
    pub(crate) fn command_line(&self, role: &str) -> Vec<String> {
        let values = self.0.iter().map(|(name, value)| format!("{name}={value}"));
        [ROLE.to_owned(), role.to_owned()].into_iter().chain(values).collect()
    }

    /// The text of a value.
    pub(crate) fn text(&self, name: &str) -> Result<&str, String> {
        self.0.get(name).map(String::as_str).ok_or_else(|| format!("{ROLE}: {name} is missing"))
    }

    /// A value that is a path.
    pub(crate) fn path(&self, name: &str) -> Result<PathBuf, String> {
        self.text(name).map(PathBuf::from)
    }

    /// A value that is a number.
    pub(crate) fn number(&self, name: &str) -> Result<u64, String> {
        let text = self.text(name)?;
        text.parse().map_err(|_| format!("{ROLE}: {name} is \"{text}\", which is not a number"))
    }

    /// A value that is 0 or 1.
    pub(crate) fn switch(&self, name: &str) -> Result<bool, String> {
        self.number(name).map(|number| number > 0)
    }
}

/// The value of a choice by its number on a command line.
pub(crate) fn chosen<T: Copy>(all: &[T], number: u64) -> Result<T, String> {
    let found = usize::try_from(number).ok().and_then(|number| all.get(number));
    found.copied().ok_or_else(|| format!("there is no choice {number} of {}", all.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_return_from_the_command_line() {
        let words = Words::default().with("dir", "/tmp/a=b").with("seed", 7).with("full", 1);
        let line = words.command_line("node");
        assert_eq!(line[..2], [ROLE, "node"]);
        let again = Words::parse(line.into_iter().skip(2)).unwrap();
        assert_eq!(again, words);
        assert_eq!(again.path("dir").unwrap(), PathBuf::from("/tmp/a=b"));
        assert_eq!((again.number("seed").unwrap(), again.switch("full").unwrap()), (7, true));
        assert!(again.number("dir").unwrap_err().contains("not a number"));
        assert!(again.text("manager").unwrap_err().contains("manager is missing"));
    }
}
