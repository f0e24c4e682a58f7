//! Commands on values as byte strings: GET, MGET, MSET, MSETNX, APPEND, STRLEN, GETRANGE, SETRANGE.

use std::ops::{ControlFlow, Range};

use crate::args::Args;
use crate::growing_reply::GrowingReply;
use crate::refusal::{Handled, Refusal};
use crate::reply::Reply;
use crate::session::Session;
use crate::store::{Change, Op};

pub(super) fn get(session: &Session, args: Args<'_>, reply: &mut Reply) -> Handled {
    let entry = session.read(args.get(1))?;
    reply.bulk_or_null(entry.as_ref().map(|entry| &entry.value[..]));
    Ok(())
}

pub(super) fn mget(session: &Session, args: Args<'_>, reply: &mut Reply) -> Handled {
    let keys: Vec<&[u8]> = args.from(1).collect();
    let start = reply.len();
    let mut memory = session.growing_reply();
    while !mget_within(session, &keys, &mut memory, reply)? {
        reply.take_back(start);
        memory.take_all()?;
    }
    Ok(())
}

/// Answers MGET. Returns whether the reply fitted into `memory`. If not, the reply is incomplete.
fn mget_within(
    session: &Session,
    keys: &[&[u8]],
    memory: &mut GrowingReply<'_>,
    reply: &mut Reply,
) -> Result<bool, Refusal> {
    let start = reply.len();
    reply.array(keys.len());
    let (mut checked, mut fits, mut hits, mut misses) = (Ok(()), true, 0, 0);
    session.store().multi_get_each(keys, &mut |value| {
        let bytes = reply.len() - start + value.map_or(0, <[u8]>::len);
        fits = memory.may_take(bytes);
        if !fits {
            return ControlFlow::Break(());
        }
        *if value.is_some() { &mut hits } else { &mut misses } += 1;
        reply.bulk_or_null(value);
        checked = check_reply_size(session, reply.len() - start, "ask for fewer keys at once");
        if checked.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    if fits {
        session.count_reads(hits, misses);
    }
    checked.map(|()| fits)
}

/// Refuses a reply that is larger than the limit.
pub(super) fn check_reply_size(session: &Session, bytes: usize, advice: &str) -> Handled {
    let most = session.shared.options.reply_bytes_max;
    if bytes > most {
        return Err(Refusal::said(format!("ERR the reply would exceed {most} bytes: {advice}")));
    }
    Ok(())
}

/// The pairs of MSET as operations of the store.
fn puts<'a>(args: Args<'a>, name: &str) -> Result<Vec<Op<'a>>, Refusal> {
    if args.len().is_multiple_of(2) {
        return Err(Refusal::arity(name));
    }
    let put =
        |at: usize| Op::Put { key: args.get(at), value: args.get(at + 1), expires_at_ms: None };
    Ok((1..args.len()).step_by(2).map(put).collect())
}

pub(super) fn mset(session: &Session, args: Args<'_>, reply: &mut Reply) -> Handled {
    let ops = puts(args, "mset")?;
    let _guard = session.lock_many(args.from(1).step_by(2));
    session.write(&ops)?;
    reply.ok();
    Ok(())
}

pub(super) fn msetnx(session: &Session, args: Args<'_>, reply: &mut Reply) -> Handled {
    let ops = puts(args, "msetnx")?;
    session.store().joint_writes()?;
    let keys: Vec<&[u8]> = args.from(1).step_by(2).collect();
    let _guard = session.lock_many(keys.iter().copied());
    let free = !session.store().which_exist(&keys)?.contains(&true);
    if free {
        session.write(&ops)?;
    }
    reply.flag(free);
    Ok(())
}

pub(super) fn strlen(session: &Session, args: Args<'_>, reply: &mut Reply) -> Handled {
    let entry = session.read(args.get(1))?;
    reply.count(entry.map_or(0, |entry| entry.value.len()));
    Ok(())
}

pub(super) fn append(session: &Session, args: Args<'_>, reply: &mut Reply) -> Handled {
    let tail = args.get(2);
    let len = session.modify(args.get(1), |entry| {
        let (old, expires_at_ms) =
            entry.map_or((&b""[..], None), |entry| (&entry.value[..], entry.expires_at_ms));
        check_value_size(session, old.len(), tail.len())?;
        session.build_more(built_bytes(old.len() + tail.len()))?;
        let value = [old, tail].concat();
        let len = value.len();
        Ok((Change::Put { value: value.into(), expires_at_ms }, len))
    })?;
    reply.count(len);
    Ok(())
}

/// Bytes of memory for a value of `len` bytes that a command builds: the value, and the store's
/// copy of it.
pub(super) fn built_bytes(len: usize) -> u64 {
    2 * len as u64
}

/// Refuses to build a value of `a` plus `b` bytes if a client could not send such a value.
pub(super) fn check_value_size(session: &Session, a: usize, b: usize) -> Handled {
    match a.checked_add(b) {
        Some(len) if len <= session.value_bytes_max() => Ok(()),
        _ => Err(Refusal::TOO_LONG),
    }
}

/// The part of a value from `start` to `end`. Both are inclusive, a negative number counts from the
/// end, and the part is clipped to the value. As in Redis, an end before the value means the first
/// byte.
pub(super) fn slice(len: usize, start: i64, end: i64) -> Range<usize> {
    let len = len as i64;
    let from_end = |at: i64| if at < 0 { len.saturating_add(at).max(0) } else { at };
    let (start, end) = (from_end(start), from_end(end).min(len - 1));
    if start > end { 0..0 } else { start as usize..end as usize + 1 }
}

/// The same part for GETRANGE and BITCOUNT. As in Redis, it is empty if both ends count from the
/// end of the value and the start follows the end.
pub(super) fn slice_in_order(len: usize, start: i64, end: i64) -> Range<usize> {
    if start < 0 && end < 0 && start > end { 0..0 } else { slice(len, start, end) }
}

pub(super) fn getrange(session: &Session, args: Args<'_>, reply: &mut Reply) -> Handled {
    let (start, end) = (args.integer(2)?, args.integer(3)?);
    match session.read(args.get(1))? {
        None => reply.bulk(b""),
        Some(entry) => reply.bulk(&entry.value[slice_in_order(entry.value.len(), start, end)]),
    }
    Ok(())
}

pub(super) fn setrange(session: &Session, args: Args<'_>, reply: &mut Reply) -> Handled {
    let (key, offset, patch) = (args.get(1), args.integer(2)?, args.get(3));
    let offset =
        usize::try_from(offset).map_err(|_| Refusal::fixed("ERR offset is out of range"))?;
    if patch.is_empty() {
        let entry = session.store().get(key)?;
        reply.count(entry.map_or(0, |entry| entry.value.len()));
        return Ok(());
    }
    check_value_size(session, offset, patch.len())?;
    session.build(built_bytes(offset + patch.len()))?;
    let len = session.modify(key, |entry| {
        let (old, expires_at_ms) =
            entry.map_or((&b""[..], None), |entry| (&entry.value[..], entry.expires_at_ms));
        let end = offset + patch.len();
        session.build_more(built_bytes(old.len().max(end)))?;
        let mut value = Vec::with_capacity(old.len().max(end));
        value.extend_from_slice(old);
        if value.len() < end {
            value.resize(end, 0);
        }
        value[offset..end].copy_from_slice(patch);
        let len = value.len();
        Ok((Change::Put { value: value.into(), expires_at_ms }, len))
    })?;
    reply.count(len);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{slice, slice_in_order};

    #[test]
    fn slices_are_clipped() {
        for (start, end, expected) in [
            (0, 3, 0..4),
            (-3, -1, 2..5),
            (0, -1, 0..5),
            (3, 1, 0..0),
            (10, 20, 0..0),
            (-100, 1, 0..2),
            (i64::MIN, i64::MAX, 0..5),
            (0, -100, 0..1),
            (1, -100, 0..0),
            (-200, -100, 0..1),
            (-1, -4, 0..0),
        ] {
            assert_eq!(slice(5, start, end), expected, "{start} {end}");
        }
        for (start, end) in [(0, -1), (0, -100), (-2, -1), (0, 5)] {
            assert_eq!(slice(0, start, end), 0..0);
        }
        assert_eq!((slice(5, -100, -200), slice_in_order(5, -100, -200)), (0..1, 0..0));
        assert_eq!(slice_in_order(5, -200, -100), 0..1);
    }
}
