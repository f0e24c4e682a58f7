//! LCS: longest common subsequence of two values.
//!
//! The algorithm fills a table with the lengths for all pairs of prefixes. Cost: time and memory
//! grow with the product of the two lengths. The table takes 4 bytes for each pair, and at most as
//! much memory as a value may have.

use std::ops::Range;

use crate::args::Args;
use crate::refusal::{Handled, Refusal};
use crate::reply::Reply;
use crate::session::Session;

/// Bytes of one length in the table.
const CELL_BYTES: usize = 4;

/// A range that both values have in common, with its position in each.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Match {
    first: Range<usize>,
    second: Range<usize>,
}

/// Lengths of the longest common subsequences of all pairs of prefixes of two values.
struct Lengths<'a> {
    first: &'a [u8],
    second: &'a [u8],
    cells: Vec<u32>,
}

impl<'a> Lengths<'a> {
    /// Bytes of the table for values of these lengths.
    fn bytes(first: usize, second: usize) -> Option<usize> {
        (first + 1).checked_mul(second + 1)?.checked_mul(CELL_BYTES)
    }

    fn new(first: &'a [u8], second: &'a [u8]) -> Self {
        let row = second.len() + 1;
        let mut cells = vec![0; (first.len() + 1) * row];
        for (i, a) in first.iter().enumerate() {
            for (j, b) in second.iter().enumerate() {
                cells[(i + 1) * row + j + 1] = match a == b {
                    true => cells[i * row + j] + 1,
                    false => cells[i * row + j + 1].max(cells[(i + 1) * row + j]),
                };
            }
        }
        Self { first, second, cells }
    }

    /// The length for the first `i` bytes of one value and the first `j` bytes of the other.
    fn at(&self, i: usize, j: usize) -> u32 {
        self.cells[i * (self.second.len() + 1) + j]
    }

    fn total(&self) -> u32 {
        self.at(self.first.len(), self.second.len())
    }

    /// The ranges of one longest subsequence, from the last one to the first.
    fn matches(&self) -> Vec<Match> {
        let (mut i, mut j) = (self.first.len(), self.second.len());
        let mut matches: Vec<Match> = Vec::new();
        while i > 0 && j > 0 {
            if self.first[i - 1] == self.second[j - 1] {
                match matches.last_mut() {
                    Some(Match { first, second }) if first.start == i && second.start == j => {
                        (first.start, second.start) = (i - 1, j - 1);
                    }
                    _ => matches.push(Match { first: i - 1..i, second: j - 1..j }),
                }
                (i, j) = (i - 1, j - 1);
            } else if self.at(i - 1, j) > self.at(i, j - 1) {
                i -= 1;
            } else {
                j -= 1;
            }
        }
        matches
    }
}

#[derive(Default)]
struct Options {
    wants_len: bool,
    wants_places: bool,
    with_len: bool,
    len_min: i64,
}

impl Options {
    fn parse(args: Args<'_>) -> Result<Self, Refusal> {
        let (mut options, mut at) = (Self::default(), 3);
        while at < args.len() {
            if args.is(at, "len") {
                options.wants_len = true;
            } else if args.is(at, "idx") {
                options.wants_places = true;
            } else if args.is(at, "withmatchlen") {
                options.with_len = true;
            } else if args.is(at, "minmatchlen") && at + 1 < args.len() {
                at += 1;
                options.len_min = args.integer(at)?;
            } else {
                return Err(Refusal::SYNTAX);
            }
            at += 1;
        }
        if options.wants_len && options.wants_places {
            return Err(Refusal::fixed(
                "ERR If you want both the length and indexes, please just use IDX.",
            ));
        }
        Ok(options)
    }
}

/// `LCS key1 key2 [LEN | IDX [MINMATCHLEN length] [WITHMATCHLEN]]`.
pub(super) fn lcs(session: &Session, args: Args<'_>, reply: &mut Reply) -> Handled {
    let options = Options::parse(args)?;
    session.hold_for_values()?;
    while !answer_within(session, args, &options, reply)? {
        session.hold_all()?;
    }
    Ok(())
}

/// Bytes that two values of these lengths and their table need.
fn needed_bytes(session: &Session, first: &[u8], second: &[u8]) -> Result<u64, Refusal> {
    let most = session.value_bytes_max();
    let bytes = Lengths::bytes(first.len(), second.len()).filter(|bytes| *bytes <= most);
    let bytes = bytes.ok_or_else(|| {
        Refusal::said(format!(
            "ERR LCS of {} and {} bytes needs more than {most} bytes of memory \
             (proto-max-bulk-len)",
            first.len(),
            second.len()
        ))
    })?;
    Ok((bytes + first.len() + second.len()) as u64)
}

/// Answers LCS. Returns whether the session holds the memory for it. If not, nothing is answered,
/// and the session has to hold the whole share first.
fn answer_within(
    session: &Session,
    args: Args<'_>,
    options: &Options,
    reply: &mut Reply,
) -> Result<bool, Refusal> {
    let values = session.store().multi_get(&[args.get(1), args.get(2)])?;
    let value = |nth: usize| values.get(nth).and_then(Option::as_deref).unwrap_or_default();
    let (first, second) = (value(0), value(1));
    if !session.try_build(needed_bytes(session, first, second)?)? {
        return Ok(false);
    }
    let lengths = Lengths::new(first, second);
    if options.wants_len {
        reply.integer(i64::from(lengths.total()));
        return Ok(true);
    }
    let matches = lengths.matches();
    if !options.wants_places {
        let pieces = matches.iter().rev().map(|piece| &first[piece.first.clone()]);
        reply.bulk(&pieces.collect::<Vec<_>>().concat());
        return Ok(true);
    }
    let is_shown = |piece: &&Match| piece.first.len() as i64 >= options.len_min;
    reply.map(2);
    reply.bulk(b"matches");
    reply.array(matches.iter().filter(is_shown).count());
    for piece in matches.iter().filter(is_shown) {
        reply.array(if options.with_len { 3 } else { 2 });
        for place in [&piece.first, &piece.second] {
            reply.array(2);
            reply.count(place.start);
            reply.count(place.end - 1);
        }
        if options.with_len {
            reply.count(piece.first.len());
        }
    }
    reply.bulk(b"len");
    reply.integer(i64::from(lengths.total()));
    Ok(true)
}
