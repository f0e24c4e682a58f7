//! SCAN cursors: a cursor names a position in the key space by a number below 2^53.
//!
//! A cursor combines the number of a kept prefix ([`crate::prefixes`], 20 bits; number 0 is the
//! empty prefix) with one to four bytes that follow the prefix (33 bits). The next step begins at
//! the first key that is not smaller than the prefix followed by these bytes. The server remembers
//! nothing for a cursor. So no client can make another client's cursor invalid, and a cursor holds
//! over a restart. Numbers below 2^53 are exact in clients that keep cursors in doubles.
//! `docs/decisions/0053-cursors-of-scan.md` lists the alternatives.
//!
//! Invariants:
//!
//! 1. A step that returned keys up to `last`, and would continue with `next`, ends with a cursor
//!    whose position `p` satisfies `last < p <= next`. Therefore a key that exists during the whole
//!    iteration is returned exactly once.
//! 2. Let `c` be the number of leading bytes that `last` and `next` share, rounded down to a
//!    multiple of four. A step ends between the two keys only if the first `c` bytes are a kept
//!    prefix. An end with `c` equal to 0 needs no kept prefix.
//! 3. A step that finds no such end within [`LOOKAHEAD_KEYS`] keys after its count adds one prefix:
//!    the shortest that allows an end in that window. Beyond [`FREE_ROWS`] kept prefixes the window
//!    starts [`SPACING_KEYS`] keys (or [`SPACING_BYTES`] bytes of keys) later. Therefore there are
//!    at most `FREE_ROWS` prefixes and one for each `SPACING_KEYS` keys that were written (or each
//!    `SPACING_BYTES` bytes of them), however often clients scan.
//!
//! Pure except for the prefix table that the caller passes in. Cost of a step: one comparison of
//! neighbouring keys, and at most one search of the table, for each key after the count.

use archipelago_base::Result;

use crate::prefixes::{PREFIXES_MAX, PrefixTable};

/// The lengths of kept prefixes are multiples of this number of bytes. A cursor itself holds at
/// most this number of bytes.
const CHUNK_BYTES: usize = 4;
/// Number of values of one digit of a position: 0 for "no byte", otherwise the byte plus one.
const RADIX: u64 = 257;
/// Bits of the position within a cursor: `257^4 < 2^33`.
const POSITION_BITS: u32 = 33;

/// Number of kept prefixes below which a step may add one without first reading beyond its count.
const FREE_ROWS: u32 = 4096;
/// Number of keys after the count among which a step looks for the shortest prefix to keep.
const LOOKAHEAD_KEYS: usize = 64;
/// Bytes of keys that end the window as well.
const LOOKAHEAD_BYTES: usize = 512 << 10;
/// Number of keys after the count before a step may add a prefix, beyond [`FREE_ROWS`].
const SPACING_KEYS: usize = 128;
/// Bytes of keys that count as [`SPACING_KEYS`] keys.
const SPACING_BYTES: usize = 512 << 10;

/// Position at which the next step begins: a kept prefix and the bytes that follow it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Position {
    /// Number of the kept prefix; 0 for the empty one.
    pub(crate) prefix: u32,
    /// One to four bytes.
    pub(crate) rest: Vec<u8>,
}

impl Position {
    /// The position as a cursor; never 0.
    pub(crate) fn encode(&self) -> u64 {
        assert!((1..=CHUNK_BYTES).contains(&self.rest.len()) && self.prefix < PREFIXES_MAX);
        let digit = |at: usize| self.rest.get(at).map_or(0, |&byte| u64::from(byte) + 1);
        let position = (0..CHUNK_BYTES).fold(0, |sum, at| sum * RADIX + digit(at));
        u64::from(self.prefix) << POSITION_BITS | position
    }

    /// The position of a cursor. `None`: no step gives out this number.
    pub(crate) fn decode(cursor: u64) -> Option<Self> {
        let prefix = u32::try_from(cursor >> POSITION_BITS).ok()?;
        let mut left = cursor & ((1 << POSITION_BITS) - 1);
        let mut digits = [0; CHUNK_BYTES];
        for digit in digits.iter_mut().rev() {
            (*digit, left) = (left % RADIX, left / RADIX);
        }
        let len = digits.iter().take_while(|digit| **digit > 0).count();
        let is_ended = digits[len..].iter().all(|digit| *digit == 0);
        if prefix >= PREFIXES_MAX || left > 0 || len == 0 || !is_ended {
            return None;
        }
        let rest = digits[..len].iter().map(|digit| (digit - 1) as u8).collect();
        Some(Self { prefix, rest })
    }

    /// The smallest key that the next step may return. `None`: the prefix is not kept.
    pub(crate) fn key(&self, prefixes: &dyn PrefixTable) -> Result<Option<Vec<u8>>> {
        let prefix = match self.prefix {
            0 => Some(Vec::new()),
            number => prefixes.prefix(number)?,
        };
        Ok(prefix.map(|mut key| {
            key.extend_from_slice(&self.rest);
            key
        }))
    }
}

/// A position at which the step may end once its prefix is kept.
struct Cut<M> {
    prefix: Vec<u8>,
    rest: Vec<u8>,
    mark: M,
}

/// Decision about the next key of a step.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next<M> {
    /// The key belongs to the step.
    Take,
    /// The step ends before the key.
    EndHere(Position),
    /// The step ends at an earlier key. The caller removes the output after the mark.
    EndAt(M, Position),
}

/// Finds the end of one step of SCAN. `M` marks how much was returned so far.
pub(crate) struct StepEnd<'a, M> {
    prefixes: &'a dyn PrefixTable,
    last: Vec<u8>,
    /// Keys after the count, and their bytes.
    over_keys: usize,
    over_bytes: usize,
    /// Those of them that lie in the window for the choice of a prefix.
    window_keys: usize,
    window_bytes: usize,
    best: Option<Cut<M>>,
    /// The prefix that was searched last, if it is not kept.
    missing: Vec<u8>,
}

impl<'a, M: Copy> StepEnd<'a, M> {
    pub(crate) fn new(prefixes: &'a dyn PrefixTable) -> Self {
        Self {
            prefixes,
            last: Vec::new(),
            over_keys: 0,
            over_bytes: 0,
            window_keys: 0,
            window_bytes: 0,
            best: None,
            missing: Vec::new(),
        }
    }

    /// Notes a key that the step returns.
    pub(crate) fn take(&mut self, key: &[u8]) {
        self.last.clear();
        self.last.extend_from_slice(key);
    }

    /// The end of a step after which no key is left. `None`: the step ends after all its keys. If a
    /// prefix for an earlier end cannot be kept, none is needed, because the step has returned
    /// every key.
    pub(crate) fn without_next(self) -> Option<(M, Position)> {
        let cut = self.best?;
        let prefix = self.prefixes.keep(&cut.prefix).ok()?;
        Some((cut.mark, Position { prefix, rest: cut.rest }))
    }

    /// Decides whether a step that has reached its count returns `next` as well. `next` follows the
    /// last returned key, and `mark` says how much was returned up to that key.
    pub(crate) fn before(&mut self, next: &[u8], mark: M) -> Result<Next<M>> {
        let shared = self.last.iter().zip(next).take_while(|(a, b)| a == b).count();
        assert!(shared < next.len(), "keys of a scan ascend");
        let (prefix, rest) = next[..=shared].split_at(shared - shared % CHUNK_BYTES);
        if prefix.is_empty() {
            return Ok(Next::EndHere(Position { prefix: 0, rest: rest.to_vec() }));
        }
        if self.missing != prefix {
            if let Some(number) = self.prefixes.number(prefix)? {
                return Ok(Next::EndHere(Position { prefix: number, rest: rest.to_vec() }));
            }
            self.missing.clear();
            self.missing.extend_from_slice(prefix);
        }
        let is_spaced = self.prefixes.len()? < FREE_ROWS
            || self.over_keys >= SPACING_KEYS
            || self.over_bytes >= SPACING_BYTES;
        self.over_keys += 1;
        self.over_bytes += next.len();
        if is_spaced {
            self.window_keys += 1;
            self.window_bytes += next.len();
            if self.best.as_ref().is_none_or(|best| prefix.len() < best.prefix.len()) {
                self.best = Some(Cut { prefix: prefix.to_vec(), rest: rest.to_vec(), mark });
            }
        }
        let is_enough = self.window_keys >= LOOKAHEAD_KEYS || self.window_bytes >= LOOKAHEAD_BYTES;
        match self.best.take_if(|_| is_enough) {
            None => Ok(Next::Take),
            Some(cut) => {
                let prefix = self.prefixes.keep(&cut.prefix)?;
                Ok(Next::EndAt(cut.mark, Position { prefix, rest: cut.rest }))
            }
        }
    }
}

#[cfg(test)]
mod tests;
