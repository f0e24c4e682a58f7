//! Commands on the expiry of keys: EXPIRE and its relatives set it, TTL and its relatives show it,
//! and PERSIST removes it.
//!
//! A record holds its expiry in milliseconds since the Unix epoch. A change of the expiry writes a
//! new record.

use crate::args::Args;
use crate::refusal::{Handled, Refusal};
use crate::reply::Reply;
use crate::session::Session;
use crate::store::Change;

/// Unit and origin of a time in a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    /// Seconds from now.
    Seconds,
    /// Milliseconds from now.
    Millis,
    /// Seconds since the Unix epoch.
    SecondsAt,
    /// Milliseconds since the Unix epoch.
    MillisAt,
}

/// The time in milliseconds since the Unix epoch. A time before the epoch becomes 0, which is past.
pub(super) fn absolute_ms(
    session: &Session,
    unit: Unit,
    amount: i64,
    command: &str,
) -> Result<u64, Refusal> {
    let now_ms = session.shared.now_ms() as i64;
    let at_ms = match unit {
        Unit::Seconds => amount.checked_mul(1000).and_then(|ms| ms.checked_add(now_ms)),
        Unit::Millis => amount.checked_add(now_ms),
        Unit::SecondsAt => amount.checked_mul(1000),
        Unit::MillisAt => Some(amount),
    };
    at_ms.map(|ms| ms.max(0) as u64).ok_or_else(|| Refusal::expire_time(command))
}

pub(super) fn expire(session: &Session, args: Args<'_>, reply: &mut Reply) -> Handled {
    set_expiry(session, args, reply, Unit::Seconds, "expire")
}

pub(super) fn pexpire(session: &Session, args: Args<'_>, reply: &mut Reply) -> Handled {
    set_expiry(session, args, reply, Unit::Millis, "pexpire")
}

pub(super) fn expireat(session: &Session, args: Args<'_>, reply: &mut Reply) -> Handled {
    set_expiry(session, args, reply, Unit::SecondsAt, "expireat")
}

pub(super) fn pexpireat(session: &Session, args: Args<'_>, reply: &mut Reply) -> Handled {
    set_expiry(session, args, reply, Unit::MillisAt, "pexpireat")
}

/// Conditions NX, XX, GT and LT of EXPIRE.
#[derive(Clone, Copy, Default)]
struct Conditions {
    if_none: bool,
    if_some: bool,
    if_later: bool,
    if_earlier: bool,
}

impl Conditions {
    fn parse(args: Args<'_>) -> Result<Self, Refusal> {
        let mut conditions = Self::default();
        for index in 3..args.len() {
            if args.is(index, "nx") {
                conditions.if_none = true;
            } else if args.is(index, "xx") {
                conditions.if_some = true;
            } else if args.is(index, "gt") {
                conditions.if_later = true;
            } else if args.is(index, "lt") {
                conditions.if_earlier = true;
            } else {
                let option = args.text(index);
                return Err(Refusal::said(format!("ERR Unsupported option {option}")));
            }
        }
        let Self { if_none, if_some, if_later, if_earlier } = conditions;
        if if_none && (if_some || if_later || if_earlier) {
            return Err(Refusal::fixed(
                "ERR NX and XX, GT or LT options at the same time are not compatible",
            ));
        }
        if if_later && if_earlier {
            return Err(Refusal::fixed(
                "ERR GT and LT options at the same time are not compatible",
            ));
        }
        Ok(conditions)
    }

    /// Whether the expiry may change from `old` to `new`. No expiry counts as later than any other.
    fn allow(self, old: Option<u64>, new: u64) -> bool {
        !(self.if_none && old.is_some()
            || self.if_some && old.is_none()
            || self.if_later && old.is_none_or(|old| new <= old)
            || self.if_earlier && old.is_some_and(|old| new >= old))
    }
}

fn set_expiry(
    session: &Session,
    args: Args<'_>,
    reply: &mut Reply,
    unit: Unit,
    command: &str,
) -> Handled {
    let at_ms = absolute_ms(session, unit, args.integer(2)?, command)?;
    let conditions = Conditions::parse(args)?;
    let key = args.get(1);
    let done = session.modify(key, |entry| {
        let allowed = entry.is_some_and(|entry| conditions.allow(entry.expires_at_ms, at_ms));
        Ok((if allowed { Change::Expire(Some(at_ms)) } else { Change::Keep }, allowed))
    })?;
    reply.flag(done);
    Ok(())
}

pub(super) fn persist(session: &Session, args: Args<'_>, reply: &mut Reply) -> Handled {
    let done = session.modify(args.get(1), |entry| {
        let expires = entry.is_some_and(|entry| entry.expires_at_ms.is_some());
        Ok((if expires { Change::Expire(None) } else { Change::Keep }, expires))
    })?;
    reply.flag(done);
    Ok(())
}

pub(super) fn ttl(session: &Session, args: Args<'_>, reply: &mut Reply) -> Handled {
    // TTL rounds to the nearest second, so that it shows 10 after EXPIRE k 10.
    show(session, args, reply, |at_ms, now_ms| (at_ms.saturating_sub(now_ms) + 500) / 1000)
}

pub(super) fn pttl(session: &Session, args: Args<'_>, reply: &mut Reply) -> Handled {
    show(session, args, reply, |at_ms, now_ms| at_ms.saturating_sub(now_ms))
}

pub(super) fn expiretime(session: &Session, args: Args<'_>, reply: &mut Reply) -> Handled {
    show(session, args, reply, |at_ms, _| (at_ms.saturating_add(500)) / 1000)
}

pub(super) fn pexpiretime(session: &Session, args: Args<'_>, reply: &mut Reply) -> Handled {
    show(session, args, reply, |at_ms, _| at_ms)
}

/// Answers -2 without the key and -1 without an expiry. Otherwise it answers the figure that
/// `figure` computes from the expiry and the current time.
fn show(
    session: &Session,
    args: Args<'_>,
    reply: &mut Reply,
    figure: impl Fn(u64, u64) -> u64,
) -> Handled {
    let value = match session.head(args.get(1))? {
        None => -2,
        Some(head) => match head.expires_at_ms {
            None => -1,
            Some(at_ms) => figure(at_ms, session.shared.now_ms()) as i64,
        },
    };
    reply.integer(value);
    Ok(())
}
