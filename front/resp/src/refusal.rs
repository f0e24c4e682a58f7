//! Refusals of commands, and the error lines that clients get.

use std::borrow::Cow;

use archipelago_base::{Error, ErrorKind};
use archipelago_flexkv::WriteEffect;

/// Result of a command's function. After `Ok` the reply is complete.
pub(crate) type Handled = Result<(), Refusal>;

/// Reason for which a command was not executed. It had no effect on the store, unless the store's
/// error says otherwise.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// The error line without the leading minus. It begins with a code word.
    Said(Cow<'static, str>),
    /// The error of the store.
    Store(Error),
}

impl Refusal {
    pub(crate) const SYNTAX: Self = Self::fixed("ERR syntax error");
    pub(crate) const NOT_AN_INTEGER: Self =
        Self::fixed("ERR value is not an integer or out of range");
    pub(crate) const NOT_A_FLOAT: Self = Self::fixed("ERR value is not a valid float");
    pub(crate) const OVERFLOW: Self = Self::fixed("ERR increment or decrement would overflow");
    pub(crate) const SAME_OBJECT: Self =
        Self::fixed("ERR source and destination objects are the same");
    pub(crate) const NO_SUCH_KEY: Self = Self::fixed("ERR no such key");
    pub(crate) const TOO_LONG: Self =
        Self::fixed("ERR string exceeds maximum allowed size (proto-max-bulk-len)");

    pub(crate) const NO_AUTH: Self = Self::fixed("NOAUTH Authentication required.");
    pub(crate) const WRONG_PASSWORD: Self =
        Self::fixed("WRONGPASS invalid username-password pair or user is disabled.");

    /// A refusal with a constant line.
    pub(crate) const fn fixed(line: &'static str) -> Self {
        Self::Said(Cow::Borrowed(line))
    }

    /// A refusal with a line that is made now.
    pub(crate) fn said(line: impl Into<String>) -> Self {
        Self::Said(Cow::Owned(line.into()))
    }

    /// Refuses a wrong number of arguments of `command`.
    pub(crate) fn arity(command: &str) -> Self {
        Self::said(format!("ERR wrong number of arguments for '{command}' command"))
    }

    /// Refuses the subcommand `word`, which `command` does not have.
    pub(crate) fn unknown_subcommand(word: &str, command: &str) -> Self {
        let command = command.to_ascii_uppercase();
        Self::said(format!("ERR unknown subcommand '{word}'. Try {command} HELP."))
    }

    /// Refuses an expiry that is not in the future, or that does not fit.
    pub(crate) fn expire_time(command: &str) -> Self {
        Self::said(format!("ERR invalid expire time in '{command}' command"))
    }

    /// The error line. The code tells a client what to do. With `TRYAGAIN` the client may repeat
    /// the command later. With `MISCONF` an operator must look at the disk of this server. With
    /// `ERR` the client must not repeat the command here: the command is wrong, this server is
    /// closed, or another server owns the keys now.
    pub(crate) fn line(&self) -> Cow<'_, str> {
        match self {
            Self::Said(line) => Cow::Borrowed(line),
            Self::Store(error) => Cow::Owned(match error.kind() {
                // Some clients repeat a command after TRYAGAIN. A write that may have happened must
                // not be repeated.
                ErrorKind::Busy if error.cause() == Some(&WriteEffect::Unknown) => {
                    format!("ERR {error}")
                }
                ErrorKind::Busy => format!("TRYAGAIN {error}"),
                ErrorKind::ReadOnly | ErrorKind::Io => format!("MISCONF {error}"),
                _ => format!("ERR {error}"),
            }),
        }
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self::Store(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_line_says_what_the_client_can_do() {
        let line = |error: Error| Refusal::from(error).line().into_owned();
        assert_eq!(line(Error::busy("full")), "TRYAGAIN busy: full");
        let stopped = Error::new(ErrorKind::ReadOnly, "the disk failed");
        assert_eq!(line(stopped), "MISCONF read only: the disk failed");
        assert_eq!(
            line(Error::closed("the database is closed")),
            "ERR closed: the database is closed"
        );
        assert_eq!(line(Error::fenced("taken over")), "ERR ownership lost: taken over");
        assert_eq!(line(Error::internal("a defect")), "ERR internal error: a defect");
    }
}
