//! The reason for which an attempt of a job has ended without outputs, for its owner and for
//! operators.
//!
//! Invariant: a text from another process has at most [`TEXT_BYTES_MAX`] bytes of UTF-8 without
//! control characters, so it is one line of a log.
//!
//! Thread-safety: the values are plain.
//! Failure: a decoder refuses other texts.
//! Cost: O(bytes).

use std::fmt;

use archipelago_base::codec::{Reader, put_bytes};
use archipelago_base::wire::Wire;
use archipelago_base::wire_struct;

use crate::ids::{AttemptId, ExecutorId};

/// Bytes of a [`ShortText`] at most.
pub const TEXT_BYTES_MAX: usize = 400;

/// A line of text for people, which other processes get.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct ShortText(String);

impl ShortText {
    /// The text as one line: control characters become spaces, and the text is cut after
    /// [`TEXT_BYTES_MAX`] bytes.
    #[must_use]
    pub fn new(text: &str) -> Self {
        let end = text.floor_char_boundary(TEXT_BYTES_MAX);
        let shown = |c: char| if c.is_control() { ' ' } else { c };
        // A control character of two bytes becomes one byte, so the text gets no longer.
        Self(text[..end].chars().map(shown).collect())
    }

    /// The text itself.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for ShortText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl fmt::Display for ShortText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A varint length and the bytes.
impl Wire for ShortText {
    fn put(&self, out: &mut Vec<u8>) {
        put_bytes(out, self.0.as_bytes());
    }
    fn get(reader: &mut Reader<'_>) -> Option<Self> {
        let text = std::str::from_utf8(reader.bytes()?).ok()?;
        let is_line = text.len() <= TEXT_BYTES_MAX && !text.chars().any(char::is_control);
        is_line.then(|| Self(text.to_owned()))
    }
}

/// An attempt that has ended without outputs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FailedAttempt {
    /// Attempt in question.
    pub at: AttemptId,
    /// Executor that had it.
    pub executor: ExecutorId,
    /// Address of the executor, from its beats; empty if no beat is known.
    pub address: ShortText,
    /// Error of the job, or the observation of the scheduler.
    pub reason: ShortText,
}
wire_struct!(FailedAttempt { at, executor, address, reason });

/// The address follows the number of the executor, if it is known.
impl fmt::Display for FailedAttempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { at, executor, address, reason } = self;
        write!(f, "attempt {at} in executor {:x}", executor.0)?;
        if !address.as_str().is_empty() {
            write!(f, " at {address}")?;
        }
        write!(f, ": {reason}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_attempt_names_its_executor_and_the_known_address() {
        let (address, reason) = (ShortText::new("reef:7"), ShortText::new("full"));
        let executor = ExecutorId(0xab);
        let known = FailedAttempt { executor, address, reason, ..FailedAttempt::default() };
        let unknown = FailedAttempt { address: ShortText::default(), ..known.clone() };
        let at = AttemptId::default();
        assert_eq!(known.to_string(), format!("attempt {at} in executor ab at reef:7: full"));
        assert_eq!(unknown.to_string(), format!("attempt {at} in executor ab: full"));
    }

    #[test]
    fn text_of_another_process_is_a_short_line() {
        let read = |bytes: &[u8]| {
            let mut encoded = Vec::new();
            put_bytes(&mut encoded, bytes);
            ShortText::get(&mut Reader::new(&encoded))
        };
        let longest = "ü".repeat(TEXT_BYTES_MAX / 2);
        assert_eq!(read(longest.as_bytes()).map(|text| text.0), Some(longest.clone()));
        assert_eq!(read(format!("{longest}a").as_bytes()), None, "too long");
        assert_eq!(read(b"one\nline"), None);
        assert_eq!(read(b"\xff\xfe"), None, "no UTF-8");
        // A decoder accepts every text that `ShortText::new` makes.
        for text in [format!("a{longest}"), "one\nline\u{85}".to_owned(), String::new()] {
            let short = ShortText::new(&text);
            assert_eq!(read(short.as_str().as_bytes()), Some(short));
        }
    }
}
