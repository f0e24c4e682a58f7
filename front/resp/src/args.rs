//! Arguments of one command, in the buffer in which they arrived.

use crate::numbers;
use crate::refusal::Refusal;
use crate::request::Span;

/// Arguments of a command, with its name at index 0. They are borrowed from the connection's input.
#[derive(Clone, Copy)]
pub(crate) struct Args<'a> {
    command: &'a [u8],
    spans: &'a [Span],
}

impl<'a> Args<'a> {
    /// Arguments at `spans`, which are relative to the first byte of `command`.
    pub(crate) fn new(command: &'a [u8], spans: &'a [Span]) -> Self {
        Self { command, spans }
    }

    /// Bytes of the command as it arrived.
    pub(crate) fn byte_len(&self) -> usize {
        self.command.len()
    }

    /// Number of arguments, including the name.
    pub(crate) fn len(&self) -> usize {
        self.spans.len()
    }

    /// Argument `index`. The caller has checked the number of arguments.
    #[inline]
    pub(crate) fn get(&self, index: usize) -> &'a [u8] {
        let (start, end) = self.spans[index];
        &self.command[start as usize..end as usize]
    }

    /// Argument `index`, if it exists.
    pub(crate) fn try_get(&self, index: usize) -> Option<&'a [u8]> {
        (index < self.len()).then(|| self.get(index))
    }

    /// The arguments from `index` on.
    pub(crate) fn from(self, index: usize) -> impl ExactSizeIterator<Item = &'a [u8]> + Clone {
        self.spans[index.min(self.spans.len())..]
            .iter()
            .map(move |&(start, end)| &self.command[start as usize..end as usize])
    }

    /// Whether argument `index` exists and equals `word`. Upper and lower case are equal.
    pub(crate) fn is(&self, index: usize, word: &str) -> bool {
        self.try_get(index).is_some_and(|arg| arg.eq_ignore_ascii_case(word.as_bytes()))
    }

    /// Argument `index` as an integer, or the refusal that clients expect.
    pub(crate) fn integer(&self, index: usize) -> Result<i64, Refusal> {
        let arg = self.try_get(index).ok_or(Refusal::SYNTAX)?;
        numbers::parse_i64(arg).ok_or(Refusal::NOT_AN_INTEGER)
    }

    /// Argument `index` as text for a message. It is cut after 128 bytes, and bytes that are no
    /// UTF-8 are replaced.
    pub(crate) fn text(&self, index: usize) -> String {
        let arg = self.try_get(index).unwrap_or_default();
        String::from_utf8_lossy(&arg[..arg.len().min(128)]).into_owned()
    }
}
