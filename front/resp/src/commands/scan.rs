//! SCAN and KEYS: all keys of a database, in steps or in one reply.
//!
//! Keys come in order, and a step starts after the last key of the previous step. Therefore SCAN
//! returns a key that exists during the whole iteration exactly once, whatever other clients write.
//! [`crate::cursors`] says how a cursor names a position between two keys. A pattern with a literal
//! prefix limits the scan to the range of that prefix. Both commands run off the worker threads of
//! the runtime.
//!
//! A store without an order of keys has cursors of its own ([`crate::store::UnorderedKeys`]). It
//! returns such a key at least once.

use std::ops::{Bound, ControlFlow};

use archipelago_base::Error;

use super::strings::check_reply_size;
use crate::args::Args;
use crate::cursors::{Next, Position, StepEnd};
use crate::glob::{self, Pattern};
use crate::numbers::format_i64;
use crate::refusal::{Handled, Refusal};
use crate::reply::Reply;
use crate::session::Session;
use crate::store::{KeyRange, StepLimits, UnorderedKeys};

/// Bytes of keys after which a step ends, whatever COUNT says.
const STEP_BYTES_MAX: usize = 1 << 20;

/// Default of COUNT: records that a step of SCAN reads.
const COUNT_DEFAULT: usize = 10;

/// Highest effective value of COUNT.
const COUNT_MAX: i64 = 1 << 20;

struct ScanOptions<'a> {
    pattern: Option<&'a [u8]>,
    compiled: Option<Pattern>,
    count: usize,
    /// TYPE names another type than string.
    nothing_fits: bool,
}

impl ScanOptions<'_> {
    fn fits(&self, key: &[u8]) -> bool {
        !self.nothing_fits && self.compiled.as_ref().is_none_or(|pattern| pattern.matches(key))
    }
}

fn scan_options(args: Args<'_>) -> Result<ScanOptions<'_>, Refusal> {
    let mut options =
        ScanOptions { pattern: None, compiled: None, count: COUNT_DEFAULT, nothing_fits: false };
    let mut at = 2;
    while at < args.len() {
        let Some(value) = args.try_get(at + 1) else { return Err(Refusal::SYNTAX) };
        if args.is(at, "match") {
            options.pattern = Some(value);
            options.compiled = Some(Pattern::new(value)?);
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
    if let Some(keys) = session.store().unordered_keys() {
        return unordered_step(keys, &options, cursor, reply);
    }
    let from = match cursor {
        0 => Vec::new(),
        _ => start_of(session, cursor)?.ok_or_else(|| no_such_cursor(cursor))?,
    };
    scan_step(session, &options, &from, reply)
}

fn no_such_cursor(cursor: u64) -> Refusal {
    Refusal::said(format!(
        "ERR SCAN has given out no cursor {cursor} for these data: start again with SCAN 0"
    ))
}

/// Runs a step over a store without an order, which has cursors of its own.
fn unordered_step(
    keys: &dyn UnorderedKeys,
    options: &ScanOptions<'_>,
    cursor: u64,
    reply: &mut Reply,
) -> Handled {
    let (mut found, mut count) = (reply.scratch(), 0);
    let limits = StepLimits { records: options.count, key_bytes: STEP_BYTES_MAX };
    let next = keys.step(cursor, limits, &mut |key| {
        if options.fits(key) {
            found.bulk(key);
            count += 1;
        }
    })?;
    let next = next.ok_or_else(|| no_such_cursor(cursor))?;
    answer_step(next, count, &found, reply);
    Ok(())
}

fn answer_step(next: u64, count: usize, found: &Reply, reply: &mut Reply) {
    reply.array(2);
    reply.bulk(format_i64(next as i64, &mut [0; 20]));
    reply.array(count);
    reply.append(found);
}

/// The key at which the step of a cursor starts. `None`: no step gave out the cursor.
fn start_of(session: &Session, cursor: u64) -> Result<Option<Vec<u8>>, Refusal> {
    match Position::decode(cursor) {
        Some(position) => Ok(position.key(session.shared.prefixes())?),
        None => Ok(None),
    }
}

/// Result of a step: bytes of the scratch reply, and the number of keys.
type Returned = (usize, usize);

fn scan_step(
    session: &Session,
    options: &ScanOptions<'_>,
    from: &[u8],
    reply: &mut Reply,
) -> Handled {
    let prefix = options.pattern.map(glob::literal_prefix).unwrap_or_default();
    let end = glob::prefix_end(&prefix);
    let from = Bound::Included(from.max(&prefix[..]));
    let range = KeyRange { from, to: end.as_deref().map_or(Bound::Unbounded, Bound::Excluded) };
    let (mut found, mut keys, mut seen) = (reply.scratch(), 0, 0);
    let mut step_end = StepEnd::new(session.shared.prefixes());
    let mut ended: Result<Option<(Returned, Position)>, Error> = Ok(None);
    session.store().scan_keys(range, false, &mut |key| {
        let returned = (found.len(), keys);
        if seen >= options.count || returned.0 >= STEP_BYTES_MAX {
            match step_end.before(key, returned) {
                Ok(Next::Take) => {}
                Ok(Next::EndHere(position)) => ended = Ok(Some((returned, position))),
                Ok(Next::EndAt(earlier, position)) => ended = Ok(Some((earlier, position))),
                Err(error) => ended = Err(error),
            }
            if !matches!(ended, Ok(None)) {
                return ControlFlow::Break(());
            }
        }
        seen += 1;
        step_end.take(key);
        if options.fits(key) {
            found.bulk(key);
            keys += 1;
        }
        ControlFlow::Continue(())
    })?;
    let mut next = 0;
    if let Some(((bytes, count), position)) = ended?.or_else(|| step_end.without_next()) {
        (next, keys) = (position.encode(), count);
        found.truncate(bytes);
    }
    answer_step(next, keys, &found, reply);
    Ok(())
}

/// `KEYS pattern` in one reply.
pub(super) fn keys(session: &Session, args: Args<'_>, reply: &mut Reply) -> Handled {
    let pattern = Pattern::new(args.get(1))?;
    let prefix = glob::literal_prefix(args.get(1));
    let end = glob::prefix_end(&prefix);
    let range = KeyRange {
        from: Bound::Included(&prefix),
        to: end.as_deref().map_or(Bound::Unbounded, Bound::Excluded),
    };
    let (mut found, mut keys, mut checked) = (reply.scratch(), 0, Ok(()));
    let mut visit = |key: &[u8]| {
        if pattern.matches(key) {
            found.bulk(key);
            keys += 1;
            checked = check_reply_size(session, found.len(), "use SCAN");
        }
        if checked.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    };
    match session.store().unordered_keys() {
        Some(keys) => keys.each(&mut visit)?,
        None => session.store().scan_keys(range, false, &mut visit)?,
    }
    checked?;
    reply.array(keys);
    reply.append(&found);
    Ok(())
}
