//! Commands of our own for ordered access: RANGE reads the keys between two bounds, and DELRANGE
//! removes them.
//!
//! A bound is spelt as in ZRANGEBYLEX, so that every key can be a bound: `[key` includes the key,
//! `(key` excludes it, `-` precedes all keys and `+` follows all keys. A key without a mark is
//! refused, because it may be a mistake, and nothing undoes DELRANGE.

use std::borrow::Cow;
use std::ops::{Bound, ControlFlow};

use super::strings::check_reply_size;
use crate::args::Args;
use crate::growing_reply::GrowingReply;
use crate::refusal::{Handled, Refusal};
use crate::reply::{Reply, Version};
use crate::session::Session;
use crate::store::{KEY_BYTES_MAX, KeyRange, Op};

/// A position between two neighbouring keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeyGap<'a> {
    /// The position before every key.
    First,
    Before(&'a [u8]),
    After(&'a [u8]),
    /// The position after every key.
    Last,
}

/// The end of a range that a bound is for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Start,
    End,
}

impl<'a> KeyGap<'a> {
    fn parse(bound: &'a [u8], side: Side) -> Result<Self, Refusal> {
        match (bound, side) {
            (b"-", _) => Ok(Self::First),
            (b"+", _) => Ok(Self::Last),
            ([b'[', key @ ..], Side::Start) | ([b'(', key @ ..], Side::End) => {
                Ok(Self::Before(key))
            }
            ([b'(', key @ ..], Side::Start) | ([b'[', key @ ..], Side::End) => Ok(Self::After(key)),
            _ => Err(Refusal::fixed(
                "ERR min or max not valid string range item: write [key to include the key, \
                 (key to exclude it, - for the start of all keys, + for their end",
            )),
        }
    }

    /// The first possible key after this position. `None`: no key can follow.
    fn next_key(self) -> Option<Cow<'a, [u8]>> {
        match self {
            Self::First => Some(Cow::Borrowed(b"")),
            Self::Before(key) if key.len() <= KEY_BYTES_MAX => Some(Cow::Borrowed(key)),
            Self::After(key) if key.len() < KEY_BYTES_MAX => {
                Some(Cow::Owned([key, &[0][..]].concat()))
            }
            // No key is longer than the limit, so the next key differs in an earlier byte.
            Self::Before(key) | Self::After(key) => {
                let mut next = key[..KEY_BYTES_MAX].to_vec();
                while next.pop_if(|byte| *byte == u8::MAX).is_some() {}
                *next.last_mut()? += 1;
                Some(Cow::Owned(next))
            }
            Self::Last => None,
        }
    }
}

/// The two bounds of a command as positions.
fn gaps<'a>(args: &Args<'a>) -> Result<(KeyGap<'a>, KeyGap<'a>), Refusal> {
    Ok((KeyGap::parse(args.get(1), Side::Start)?, KeyGap::parse(args.get(2), Side::End)?))
}

/// The range between two positions. `None`: no key can lie there.
fn range_between<'a>(start: KeyGap<'a>, end: KeyGap<'a>) -> Option<KeyRange<'a>> {
    let from = match start {
        KeyGap::First => Bound::Unbounded,
        KeyGap::Before(key) => Bound::Included(key),
        KeyGap::After(key) => Bound::Excluded(key),
        KeyGap::Last => return None,
    };
    let to = match end {
        KeyGap::First => return None,
        KeyGap::Before(key) => Bound::Excluded(key),
        KeyGap::After(key) => Bound::Included(key),
        KeyGap::Last => Bound::Unbounded,
    };
    Some(KeyRange { from, to }).filter(|range| !range.is_empty())
}

/// The part of a record that RANGE answers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Show {
    Both,
    Keys,
    Values,
}

struct RangeOptions {
    limit: u64,
    reverse: bool,
    show: Show,
}

fn range_options(args: Args<'_>) -> Result<RangeOptions, Refusal> {
    let mut options = RangeOptions { limit: u64::MAX, reverse: false, show: Show::Both };
    let mut at = 3;
    while at < args.len() {
        if args.is(at, "limit") {
            let limit = u64::try_from(args.integer(at + 1)?);
            options.limit = limit.map_err(|_| Refusal::fixed("ERR LIMIT must not be negative"))?;
            at += 1;
        } else if args.is(at, "rev") {
            options.reverse = true;
        } else if args.is(at, "keys") && options.show != Show::Values {
            options.show = Show::Keys;
        } else if args.is(at, "values") && options.show != Show::Keys {
            options.show = Show::Values;
        } else {
            return Err(Refusal::SYNTAX);
        }
        at += 1;
    }
    Ok(options)
}

/// `RANGE start end [LIMIT n] [REV] [KEYS|VALUES]`. It answers keys and values in order,
/// alternating in RESP2 and as pairs in RESP3. REV answers the same range from its end.
pub(super) fn range(session: &Session, args: Args<'_>, reply: &mut Reply) -> Handled {
    let options = range_options(args)?;
    let (start, end) = gaps(&args)?;
    let range = range_between(start, end).filter(|_| options.limit > 0);
    let mut found = Found { output: reply.scratch(), keys: 0 };
    if let Some(range) = range {
        if options.show != Show::Keys {
            session.hold_for_values()?;
        }
        let mut memory = session.growing_reply();
        while !found_within(session, range, &options, &mut memory, &mut found)? {
            found = Found { output: reply.scratch(), keys: 0 };
            memory.take_all()?;
        }
    }
    let flat = options.show == Show::Both && reply.version() == Version::Resp2;
    reply.array(found.keys as usize * if flat { 2 } else { 1 });
    reply.append(&found.output);
    Ok(())
}

/// Keys and values that RANGE has collected so far.
struct Found {
    /// Elements of the reply, without the header.
    output: Reply,
    /// Number of keys in the output.
    keys: u64,
}

/// Adds the records of `range` to `found`. Returns whether they fitted into `memory`. If not, the
/// output is incomplete.
fn found_within(
    session: &Session,
    range: KeyRange<'_>,
    options: &RangeOptions,
    memory: &mut GrowingReply<'_>,
    found: &mut Found,
) -> Result<bool, Refusal> {
    let (mut checked, mut fits) = (Ok(()), true);
    let Found { output, keys } = found;
    let mut show = |key: &[u8], value: &[u8]| {
        // The output is copied into the reply at the end, so both count.
        fits = memory.may_take(2 * (output.len() + key.len() + value.len()));
        if !fits {
            return ControlFlow::Break(());
        }
        match options.show {
            Show::Keys => output.bulk(key),
            Show::Values => output.bulk(value),
            Show::Both => {
                if output.version() == Version::Resp3 {
                    output.array(2);
                }
                output.bulk(key);
                output.bulk(value);
            }
        }
        *keys += 1;
        checked = check_reply_size(session, output.len(), "use LIMIT");
        if *keys < options.limit && checked.is_ok() {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break(())
        }
    };
    let (store, reverse) = (session.store(), options.reverse);
    match options.show {
        Show::Keys => store.scan_keys(range, reverse, &mut |key| show(key, b""))?,
        _ => store.scan(range, reverse, &mut |key, value, expires_at_ms| {
            if let Some(at_ms) = expires_at_ms {
                session.note_deadline(key, at_ms);
            }
            show(key, value)
        })?,
    }
    checked.map(|()| fits)
}

/// `DELRANGE start end`.
pub(super) fn delrange(session: &Session, args: Args<'_>, reply: &mut Reply) -> Handled {
    let (start, end) = gaps(&args)?;
    let first = start.next_key().filter(|_| end != KeyGap::First);
    let kept = end.next_key();
    if let Some(first) = first
        && kept.as_ref().is_none_or(|kept| first < *kept)
    {
        let (start, end) = (&first[..], kept.as_deref());
        let _guard = session.lock_all();
        session.write(&[Op::DeleteRange { start, end }])?;
    }
    reply.ok();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gap_has_a_first_key_after_it() {
        let next = |place: KeyGap<'_>| place.next_key().map(Cow::into_owned);
        let longest = [b"a".repeat(KEY_BYTES_MAX - 1), vec![0xff]].concat();
        let longer = [&longest[..], b"x"].concat();
        let behind = [b"a".repeat(KEY_BYTES_MAX - 2), b"b".to_vec()].concat();
        let last = vec![0xff; KEY_BYTES_MAX];
        assert_eq!(next(KeyGap::First), Some(Vec::new()));
        assert_eq!(next(KeyGap::Last), None);
        assert_eq!(next(KeyGap::Before(b"k")), Some(b"k".to_vec()));
        assert_eq!(next(KeyGap::After(b"k")), Some(b"k\0".to_vec()));
        assert_eq!(next(KeyGap::Before(&longest)), Some(longest.clone()));
        assert_eq!(next(KeyGap::After(&longest)), Some(behind.clone()));
        assert_eq!(next(KeyGap::Before(&longer)), Some(behind.clone()));
        assert_eq!(next(KeyGap::After(&longer)), Some(behind));
        assert_eq!(next(KeyGap::Before(&last)), Some(last.clone()));
        assert_eq!(next(KeyGap::After(&last)), None);
    }
}
