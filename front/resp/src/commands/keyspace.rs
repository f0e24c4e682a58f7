//! Commands on keys that do not depend on their values: DEL, UNLINK, EXISTS, TOUCH, TYPE, RENAME,
//! RENAMENX, COPY.

use std::borrow::Cow;
use std::collections::HashSet;

use super::databases;
use crate::args::Args;
use crate::refusal::{Handled, Refusal};
use crate::reply::Reply;
use crate::session::Session;
use crate::store::{Change, Moved, Op};

pub(super) fn del(session: &Session, args: Args<'_>, reply: &mut Reply) -> Handled {
    if let (2, key) = (args.len(), args.get(1)) {
        let _guard = session.lock_plain(key);
        reply.count(session.remove(&[key])?);
        return Ok(());
    }
    let mut seen = HashSet::with_capacity(args.len());
    let keys: Vec<&[u8]> = args.from(1).filter(|key| seen.insert(*key)).collect();
    let _guard = session.lock_many(keys.iter().copied());
    reply.count(session.remove(&keys)?);
    Ok(())
}

/// `EXISTS key…`. A key that is named twice counts twice.
pub(super) fn exists(session: &Session, args: Args<'_>, reply: &mut Reply) -> Handled {
    if args.len() == 2 {
        reply.flag(session.exists(args.get(1))?);
        return Ok(());
    }
    let keys: Vec<&[u8]> = args.from(1).collect();
    let exist = session.store().which_exist(&keys)?;
    exist.iter().for_each(|exists| session.count_read(*exists));
    reply.count(exist.iter().filter(|exists| **exists).count());
    Ok(())
}

/// `TOUCH key…`. It counts as an access even after CLIENT NO-TOUCH ON.
pub(super) fn touch(session: &Session, args: Args<'_>, reply: &mut Reply) -> Handled {
    session.touch(args.from(1));
    exists(session, args, reply)
}

pub(super) fn type_of(session: &Session, args: Args<'_>, reply: &mut Reply) -> Handled {
    let there = session.exists(args.get(1))?;
    reply.simple(if there { "string" } else { "none" });
    Ok(())
}

pub(super) fn rename(session: &Session, args: Args<'_>, reply: &mut Reply) -> Handled {
    move_value(session, args, false)?;
    reply.ok();
    Ok(())
}

pub(super) fn renamenx(session: &Session, args: Args<'_>, reply: &mut Reply) -> Handled {
    let moved = move_value(session, args, true)?;
    reply.flag(moved);
    Ok(())
}

/// `COPY source destination [DB index] [REPLACE]`.
pub(super) fn copy(session: &Session, args: Args<'_>, reply: &mut Reply) -> Handled {
    let (mut replaces, mut target, mut at) = (false, session.database(), 3);
    while at < args.len() {
        if args.is(at, "replace") {
            replaces = true;
        } else if args.is(at, "db") && at + 1 < args.len() {
            target = databases::copy_target(session, args, at + 1)?;
            at += 1;
        } else {
            return Err(Refusal::SYNTAX);
        }
        at += 1;
    }
    let (from, to) = (args.get(1), args.get(2));
    if from == to && target == session.database() {
        return Err(Refusal::SAME_OBJECT);
    }
    if session.store().unordered_keys().is_some() {
        reply.flag(copy_by_key(session, from, to, replaces)?);
        return Ok(());
    }
    let destination = Destination { database: target, key: to, replaces };
    let act = || copy_to(session, from, &destination);
    reply.flag(session.writing_to(target, act)?);
    Ok(())
}

/// Destination of COPY.
struct Destination<'a> {
    database: usize,
    key: &'a [u8],
    /// Whether COPY overwrites an existing record.
    replaces: bool,
}

/// Copies the value of `from`. Returns whether that was possible.
fn copy_to(session: &Session, from: &[u8], destination: &Destination<'_>) -> Result<bool, Refusal> {
    let &Destination { database, key, replaces } = destination;
    let _guard = session.lock_many([from, key].into_iter());
    session.store().joint_writes()?;
    let Some(entry) = session.store().get(from)? else { return Ok(false) };
    if !replaces && session.store_of(database).exists(key)? {
        return Ok(false);
    }
    let expires_at_ms = entry.expires_at_ms;
    let put = Op::Put { key, value: &entry.value, expires_at_ms };
    session.write_joint(vec![(database, vec![put])])?;
    Ok(true)
}

/// Copies a value in a store that cannot read and write two keys at one moment. The copy has a
/// value that the source had during the command.
fn copy_by_key(session: &Session, from: &[u8], to: &[u8], replaces: bool) -> Result<bool, Refusal> {
    let Some(entry) = session.store().get(from)? else { return Ok(false) };
    session.modify(to, |there| match there {
        Some(_) if !replaces => Ok((Change::Keep, false)),
        _ => {
            let (value, expires_at_ms) = (Cow::Borrowed(&entry.value[..]), entry.expires_at_ms);
            Ok((Change::Put { value, expires_at_ms }, true))
        }
    })
}

/// Moves value and expiry from the first key to the second. A store that can write two keys at one
/// moment does it in one write.
fn move_value(session: &Session, args: Args<'_>, if_free: bool) -> Result<bool, Refusal> {
    let (from, to) = (args.get(1), args.get(2));
    let _guard = session.lock_many([from, to].into_iter());
    let store = session.store();
    if store.unordered_keys().is_some() && from != to {
        return match session.rename(from, to, !if_free)? {
            Moved::Done => Ok(true),
            Moved::DestinationExists => Ok(false),
            Moved::NoSource => Err(Refusal::NO_SUCH_KEY),
        };
    }
    if store.unordered_keys().is_none() {
        store.joint_writes()?;
    }
    let entry = store.get(from)?.ok_or(Refusal::NO_SUCH_KEY)?;
    if if_free && store.exists(to)? {
        return Ok(false);
    }
    if from != to {
        let expires_at_ms = entry.expires_at_ms;
        session.write(&[
            Op::Put { key: to, value: &entry.value, expires_at_ms },
            Op::Delete { key: from },
        ])?;
    }
    Ok(true)
}
