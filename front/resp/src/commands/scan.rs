//! SCAN and KEYS: all keys, piece by piece or at once.
//!
//! Keys come in order and a step starts behind the last key of the one before, so a key that was
//! there during the whole iteration is returned, exactly once, however many others come and go. A
//! pattern with a literal start keeps the scan within that start's range.

use std::ops::{Bound, ControlFlow};

use super::strings::check_reply_size;
use crate::args::Args;
use crate::glob;
use crate::numbers::format_i64;
use crate::refusal::{Handled, Refusal};
use crate::reply::Reply;
use crate::session::{INLINE_KEYS_MAX, Session};
use crate::store::KeyRange;

/// Records that a step of SCAN looks at without COUNT.
const COUNT_DEFAULT: usize = 10;

/// Most records that a step looks at, whatever COUNT says.
const COUNT_MAX: i64 = 1 << 20;

struct ScanOptions<'a> {
    pattern: Option<&'a [u8]>,
    count: usize,
    /// TYPE asks for something else than strings.
    nothing_fits: bool,
}

fn scan_options(args: Args<'_>) -> Result<ScanOptions<'_>, Refusal> {
    let mut options = ScanOptions { pattern: None, count: COUNT_DEFAULT, nothing_fits: false };
    let mut at = 2;
    while at < args.len() {
        let Some(value) = args.try_get(at + 1) else { return Err(Refusal::SYNTAX) };
        if args.is(at, "match") {
            options.pattern = Some(value);
        } else if args.is(at, "count") {
            match args.integer(at + 1)? {
                ..=0 => return Err(Refusal::SYNTAX),
                count => options.count = count.min(COUNT_MAX) as usize,
            }
        } else if args.is(at, "type") {
            options.nothing_fits = !args.is(at + 1, "string");
        } else {
            return Err(Refusal::SYNTAX);
        }
        at += 2;
    }
    Ok(options)
}

fn parse_cursor(bytes: &[u8]) -> Result<u64, Refusal> {
    let text = std::str::from_utf8(bytes).ok().filter(|text| !text.starts_with('+'));
    text.and_then(|text| text.parse().ok()).ok_or(Refusal::fixed("ERR invalid cursor"))
}

/// `SCAN cursor [MATCH pattern] [COUNT n] [TYPE type]`.
pub(super) fn scan(session: &Session, args: Args<'_>, reply: &mut Reply) -> Handled {
    let cursor = parse_cursor(args.get(1))?;
    let options = scan_options(args)?;
    let behind = match cursor {
        0 => None,
        _ => Some(session.shared.cursors.follow(cursor).ok_or_else(|| {
            Refusal::said(format!(
                "ERR the server does not know cursor {cursor}, or has forgotten it: \
                 start again with SCAN 0"
            ))
        })?),
    };
    let mut step = || scan_step(session, &options, behind.as_deref(), reply);
    if options.count > INLINE_KEYS_MAX { tokio::task::block_in_place(step) } else { step() }
}

fn scan_step(
    session: &Session,
    options: &ScanOptions<'_>,
    behind: Option<&[u8]>,
    reply: &mut Reply,
) -> Handled {
    let prefix = options.pattern.map(glob::literal_prefix).unwrap_or_default();
    let end = glob::prefix_end(&prefix);
    let from = match behind {
        Some(key) if key >= &prefix[..] => Bound::Excluded(key),
        _ => Bound::Included(&prefix[..]),
    };
    let range = KeyRange { from, to: end.as_deref().map_or(Bound::Unbounded, Bound::Excluded) };
    let (mut found, mut keys) = (reply.scratch(), 0);
    let (mut seen, mut last) = (0, None);
    session.store().scan(range, false, &mut |key, _, _| {
        seen += 1;
        if !options.nothing_fits && options.pattern.is_none_or(|p| glob::matches(p, key)) {
            found.bulk(key);
            keys += 1;
        }
        if seen < options.count {
            return ControlFlow::Continue(());
        }
        last = Some(key.to_vec());
        ControlFlow::Break(())
    })?;
    let next = last.map_or(0, |key| session.shared.cursors.remember(&key));
    reply.array(2);
    reply.bulk(format_i64(next as i64, &mut [0; 20]));
    reply.array(keys);
    reply.append(&found);
    Ok(())
}

/// `KEYS pattern`.
pub(super) fn keys(session: &Session, args: Args<'_>, reply: &mut Reply) -> Handled {
    let pattern = args.get(1);
    let prefix = glob::literal_prefix(pattern);
    let end = glob::prefix_end(&prefix);
    let range = KeyRange {
        from: Bound::Included(&prefix),
        to: end.as_deref().map_or(Bound::Unbounded, Bound::Excluded),
    };
    let (mut found, mut keys, mut checked) = (reply.scratch(), 0, Ok(()));
    session.store().scan(range, false, &mut |key, _, _| {
        if glob::matches(pattern, key) {
            found.bulk(key);
            keys += 1;
            checked = check_reply_size(session, found.len(), "use SCAN");
        }
        if checked.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    checked?;
    reply.array(keys);
    reply.append(&found);
    Ok(())
}
