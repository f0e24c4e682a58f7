//! Ordered access, our own: RANGE reads the keys between two keys, DELRANGE removes them.
//!
//! The start is inclusive, the end exclusive; `-` as the start is before every key, `+` as the
//! end is after every key. (A start at the key `-` itself cannot be written; nor an end at the
//! key `+`.)

use std::ops::{Bound, ControlFlow};

use super::strings::check_reply_size;
use crate::args::Args;
use crate::refusal::{Handled, Refusal};
use crate::reply::{Reply, Version};
use crate::session::Session;
use crate::store::{KeyRange, Op};

/// The two ends of a range.
fn ends<'a>(args: &Args<'a>) -> (&'a [u8], Option<&'a [u8]>) {
    let start = match args.get(1) {
        b"-" => b"",
        start => start,
    };
    (start, Some(args.get(2)).filter(|end| *end != b"+"))
}

/// What RANGE answers of a record.
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

/// `RANGE start end [LIMIT n] [REV] [KEYS|VALUES]`: keys and values in order, by turns (RESP2) or
/// as pairs (RESP3); with REV from the end of the same range.
pub(super) fn range(session: &Session, args: Args<'_>, reply: &mut Reply) -> Handled {
    let options = range_options(args)?;
    let (start, end) = ends(&args);
    let to = end.map_or(Bound::Unbounded, Bound::Excluded);
    let range = KeyRange { from: Bound::Included(start), to };
    let (mut found, mut count, mut checked) = (reply.scratch(), 0, Ok(()));
    if options.limit > 0 && !range.is_empty() {
        session.store().scan(range, options.reverse, &mut |key, value, _| {
            match options.show {
                Show::Keys => found.bulk(key),
                Show::Values => found.bulk(value),
                Show::Both => {
                    if found.version() == Version::Resp3 {
                        found.array(2);
                    }
                    found.bulk(key);
                    found.bulk(value);
                }
            }
            count += 1;
            checked = check_reply_size(session, found.len(), "use LIMIT");
            if count < options.limit && checked.is_ok() {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        })?;
    }
    checked?;
    let flat = options.show == Show::Both && reply.version() == Version::Resp2;
    reply.array(count as usize * if flat { 2 } else { 1 });
    reply.append(&found);
    Ok(())
}

/// `DELRANGE start end`.
pub(super) fn delrange(session: &Session, args: Args<'_>, reply: &mut Reply) -> Handled {
    let (start, end) = ends(&args);
    if end.is_none_or(|end| start < end) {
        let _guard = session.lock_all();
        session.write(&[Op::DeleteRange { start, end }])?;
    }
    reply.ok();
    Ok(())
}
