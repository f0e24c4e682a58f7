//! Errors of writes: what went wrong, and whether the write may have happened.
//!
//! There is no conversion from [`Error`] into [`WriteError`]: each place that ends a write with an
//! error names the effect. [`WriteError::into_error`] keeps the effect as the error's cause, so
//! that callers of any layer find it with `error.cause::<WriteEffect>()` and people read it at the
//! end of the text.
//!
//! Invariant: [`WriteEffect::None`] is said only if no request and no operation that could commit
//! the write was sent, or each that was sent was answered with a refusal.
//! Cost: an allocation per error.

use std::fmt;

use archipelago_base::{Error, ErrorKind};

/// Whether a write that ended with an error may have happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WriteEffect {
    /// The write did not happen and never will.
    None,
    /// The write may have happened, may still happen within an address lease, or may never happen.
    Unknown,
}

impl fmt::Display for WriteEffect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "the write did not happen",
            Self::Unknown => "whether the write happened is not known",
        })
    }
}

impl std::error::Error for WriteEffect {}

/// The error of a write, with the effect of the write.
#[derive(Clone, Debug)]
pub struct WriteError {
    effect: WriteEffect,
    error: Error,
}

impl WriteError {
    /// The write did not happen, because of `error`.
    #[must_use]
    pub fn without_effect(error: Error) -> Self {
        Self { effect: WriteEffect::None, error }
    }

    /// The write may have happened. `error` says why the outcome is unknown.
    #[must_use]
    pub fn of_unknown_effect(error: Error) -> Self {
        Self { effect: WriteEffect::Unknown, error }
    }

    /// The same error for a write of several keys, some of which may have been written.
    #[must_use]
    pub fn of_a_part(self) -> Self {
        Self { effect: WriteEffect::Unknown, ..self }
    }

    /// Whether the write may have happened.
    #[must_use]
    pub fn effect(&self) -> WriteEffect {
        self.effect
    }

    /// The kind of the error, which tells the caller how to react.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.error.kind()
    }

    /// The error without its type, with the effect as its cause.
    #[must_use]
    pub fn into_error(self) -> Error {
        let text = self.error.to_string();
        let kind = self.error.kind();
        // The new error names the kind itself.
        let sentence = text.strip_prefix(kind.name()).and_then(|rest| rest.strip_prefix(": "));
        Error::with_source(kind, sentence.unwrap_or(&text), self.effect)
    }

    /// The error without the effect.
    #[must_use]
    pub fn error(&self) -> &Error {
        &self.error
    }
}

impl fmt::Display for WriteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.error, self.effect)
    }
}

impl std::error::Error for WriteError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conversion_keeps_kind_text_and_effect() {
        for effect in [WriteEffect::None, WriteEffect::Unknown] {
            let cause = std::io::Error::from(std::io::ErrorKind::TimedOut);
            let error = Error::with_source(ErrorKind::Busy, "block 3", cause);
            let failed = match effect {
                WriteEffect::None => WriteError::without_effect(error),
                WriteEffect::Unknown => WriteError::of_unknown_effect(error),
            };
            let error = failed.clone().into_error();
            assert_eq!((error.kind(), error.cause()), (ErrorKind::Busy, Some(&effect)));
            assert_eq!(error.to_string(), format!("busy: block 3: timed out: {effect}"));
            assert_eq!(error.to_string(), failed.to_string());
            assert_eq!(failed.of_a_part().effect(), WriteEffect::Unknown);
        }
    }
}
