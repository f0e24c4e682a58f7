//! SET with its options, and the commands that are variants of SET: SETNX, SETEX, PSETEX, GETSET,
//! GETDEL, GETEX.

use super::expiry::{Unit, absolute_ms};
use crate::args::Args;
use crate::refusal::{Handled, Refusal};
use crate::reply::Reply;
use crate::session::Session;
use crate::store::{Change, StoredValue};

/// Condition of SET.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Condition {
    Always,
    /// NX: the key must be absent.
    Absent,
    /// XX: the key must exist.
    Present,
}

/// Effect of SET on the expiry.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Expiry {
    /// The key has no expiry afterwards.
    None,
    /// KEEPTTL: the expiry does not change.
    Keep,
    At(u64),
}

impl Expiry {
    /// The new expiry, where `old` was the one before.
    fn beside(self, old: Option<u64>) -> Option<u64> {
        match self {
            Self::None => None,
            Self::Keep => old,
            Self::At(at_ms) => Some(at_ms),
        }
    }
}

struct SetOptions {
    condition: Condition,
    expiry: Expiry,
    /// GET: the reply is the old value.
    get: bool,
}

/// The option at `at`, if it sets an expiry: EX, PX, EXAT or PXAT with its number.
fn expiry_option(
    session: &Session,
    args: Args<'_>,
    at: usize,
    command: &str,
) -> Result<Option<u64>, Refusal> {
    let unit = [
        ("ex", Unit::Seconds),
        ("px", Unit::Millis),
        ("exat", Unit::SecondsAt),
        ("pxat", Unit::MillisAt),
    ];
    let Some((_, unit)) = unit.into_iter().find(|(word, _)| args.is(at, word)) else {
        return Ok(None);
    };
    if at + 1 >= args.len() {
        return Err(Refusal::SYNTAX);
    }
    let amount = args.integer(at + 1)?;
    if amount <= 0 {
        return Err(Refusal::expire_time(command));
    }
    Ok(Some(absolute_ms(session, unit, amount, command)?))
}

fn set_options(session: &Session, args: Args<'_>) -> Result<SetOptions, Refusal> {
    let mut options = SetOptions { condition: Condition::Always, expiry: Expiry::None, get: false };
    let mut at = 3;
    while at < args.len() {
        let unconditional = options.condition == Condition::Always;
        let unexpiring = options.expiry == Expiry::None;
        if args.is(at, "nx") && (unconditional || options.condition == Condition::Absent) {
            options.condition = Condition::Absent;
        } else if args.is(at, "xx") && (unconditional || options.condition == Condition::Present) {
            options.condition = Condition::Present;
        } else if args.is(at, "get") {
            options.get = true;
        } else if args.is(at, "keepttl") && unexpiring {
            options.expiry = Expiry::Keep;
        } else if let Some(at_ms) = expiry_option(session, args, at, "set")?
            && unexpiring
        {
            options.expiry = Expiry::At(at_ms);
            at += 1;
        } else {
            return Err(Refusal::SYNTAX);
        }
        at += 1;
    }
    Ok(options)
}

pub(super) fn set(session: &Session, args: Args<'_>, reply: &mut Reply) -> Handled {
    let options = set_options(session, args)?;
    let (key, value) = (args.get(1), args.get(2));
    let reads =
        options.get || options.condition != Condition::Always || options.expiry == Expiry::Keep;
    if !reads {
        let expires_at_ms = options.expiry.beside(None);
        let _guard = session.lock_plain(key);
        session.put(key, value, expires_at_ms)?;
        reply.ok();
        return Ok(());
    }
    let (old, acts) = session.modify(key, |entry| {
        if options.get {
            session.hold_value_reply(entry)?;
        }
        let acts = match options.condition {
            Condition::Always => true,
            Condition::Absent => entry.is_none(),
            Condition::Present => entry.is_some(),
        };
        let expires_at_ms = options.expiry.beside(entry.and_then(|entry| entry.expires_at_ms));
        let put = Change::Put { value: value.into(), expires_at_ms };
        Ok((if acts { put } else { Change::Keep }, (entry.cloned(), acts)))
    })?;
    match (options.get, acts) {
        (true, _) => reply.bulk_or_null(old.as_ref().map(|entry| &entry.value[..])),
        (false, true) => reply.ok(),
        (false, false) => reply.null(),
    }
    Ok(())
}

pub(super) fn setnx(session: &Session, args: Args<'_>, reply: &mut Reply) -> Handled {
    let value = args.get(2);
    let free = session.modify(args.get(1), |entry| {
        let put = Change::Put { value: value.into(), expires_at_ms: None };
        Ok((if entry.is_none() { put } else { Change::Keep }, entry.is_none()))
    })?;
    reply.flag(free);
    Ok(())
}

pub(super) fn setex(session: &Session, args: Args<'_>, reply: &mut Reply) -> Handled {
    set_for(session, args, reply, Unit::Seconds, "setex")
}

pub(super) fn psetex(session: &Session, args: Args<'_>, reply: &mut Reply) -> Handled {
    set_for(session, args, reply, Unit::Millis, "psetex")
}

fn set_for(
    session: &Session,
    args: Args<'_>,
    reply: &mut Reply,
    unit: Unit,
    command: &str,
) -> Handled {
    let amount = args.integer(2)?;
    if amount <= 0 {
        return Err(Refusal::expire_time(command));
    }
    let at_ms = absolute_ms(session, unit, amount, command)?;
    let key = args.get(1);
    let _guard = session.lock_plain(key);
    session.put(key, args.get(3), Some(at_ms))?;
    reply.ok();
    Ok(())
}

/// Answers the old value, and counts it as a read.
fn answer_old(session: &Session, old: Option<&StoredValue>, reply: &mut Reply) {
    session.count_read(old.is_some());
    reply.bulk_or_null(old.map(|entry| &entry.value[..]));
}

pub(super) fn getset(session: &Session, args: Args<'_>, reply: &mut Reply) -> Handled {
    let value = args.get(2);
    let old = session.modify(args.get(1), |entry| {
        session.hold_value_reply(entry)?;
        Ok((Change::Put { value: value.into(), expires_at_ms: None }, entry.cloned()))
    })?;
    answer_old(session, old.as_ref(), reply);
    Ok(())
}

pub(super) fn getdel(session: &Session, args: Args<'_>, reply: &mut Reply) -> Handled {
    let old = session.modify(args.get(1), |entry| {
        session.hold_value_reply(entry)?;
        let change = if entry.is_some() { Change::Delete } else { Change::Keep };
        Ok((change, entry.cloned()))
    })?;
    answer_old(session, old.as_ref(), reply);
    Ok(())
}

/// `GETEX key [EX s | PX ms | EXAT s | PXAT ms | PERSIST]`.
pub(super) fn getex(session: &Session, args: Args<'_>, reply: &mut Reply) -> Handled {
    let expiry = match args.len() {
        2 => Expiry::Keep,
        3 if args.is(2, "persist") => Expiry::None,
        4 => match expiry_option(session, args, 2, "getex")? {
            Some(at_ms) => Expiry::At(at_ms),
            None => return Err(Refusal::SYNTAX),
        },
        _ => return Err(Refusal::SYNTAX),
    };
    let entry = session.modify(args.get(1), |entry| {
        session.hold_value_reply(entry)?;
        let expires_at_ms = entry.and_then(|entry| entry.expires_at_ms);
        let new = expiry.beside(expires_at_ms);
        let change = if new == expires_at_ms { Change::Keep } else { Change::Expire(new) };
        Ok((change, entry.cloned()))
    })?;
    answer_old(session, entry.as_ref(), reply);
    Ok(())
}
