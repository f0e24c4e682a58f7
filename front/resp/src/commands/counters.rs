//! Commands on values as numbers: INCR, DECR, INCRBY, DECRBY, INCRBYFLOAT. They keep the expiry of
//! the key.

use crate::args::Args;
use crate::decimal::{self, SumError};
use crate::numbers::{format_i64, parse_i64};
use crate::refusal::{Handled, Refusal};
use crate::reply::Reply;
use crate::session::Session;
use crate::store::Change;

pub(super) fn incr(session: &Session, args: Args<'_>, reply: &mut Reply) -> Handled {
    add(session, args.get(1), 1, reply)
}

pub(super) fn decr(session: &Session, args: Args<'_>, reply: &mut Reply) -> Handled {
    add(session, args.get(1), -1, reply)
}

pub(super) fn incrby(session: &Session, args: Args<'_>, reply: &mut Reply) -> Handled {
    add(session, args.get(1), args.integer(2)?, reply)
}

pub(super) fn decrby(session: &Session, args: Args<'_>, reply: &mut Reply) -> Handled {
    let less = args.integer(2)?;
    let amount = less.checked_neg().ok_or(Refusal::fixed("ERR decrement would overflow"))?;
    add(session, args.get(1), amount, reply)
}

fn add(session: &Session, key: &[u8], amount: i64, reply: &mut Reply) -> Handled {
    let new = session.modify(key, |entry| {
        let (old, expires_at_ms) = match entry {
            Some(entry) => {
                (parse_i64(&entry.value).ok_or(Refusal::NOT_AN_INTEGER)?, entry.expires_at_ms)
            }
            None => (0, None),
        };
        let new = old.checked_add(amount).ok_or(Refusal::OVERFLOW)?;
        let value = format_i64(new, &mut [0; 20]).to_vec().into();
        Ok((Change::Put { value, expires_at_ms }, new))
    })?;
    reply.integer(new);
    Ok(())
}

pub(super) fn incrbyfloat(session: &Session, args: Args<'_>, reply: &mut Reply) -> Handled {
    let (key, amount) = (args.get(1), args.get(2));
    let new = session.modify(key, |entry| {
        let (old, expires_at_ms) = match entry {
            Some(entry) => (&entry.value[..], entry.expires_at_ms),
            None => (&b"0"[..], None),
        };
        let new = decimal::add(old, amount).map_err(|error| match error {
            SumError::NotANumber => Refusal::NOT_A_FLOAT,
            SumError::TooLarge => Refusal::fixed("ERR increment would produce NaN or Infinity"),
        })?;
        let value = new.as_bytes().to_vec().into();
        Ok((Change::Put { value, expires_at_ms }, new))
    })?;
    reply.bulk(new.as_bytes());
    Ok(())
}
