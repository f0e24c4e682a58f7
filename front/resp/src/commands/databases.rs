//! SELECT, MOVE, SWAPDB, FLUSHDB and FLUSHALL: commands on the databases 0 to 15.
//!
//! The store over remote memory has one database. Its server answers as a node of Redis Cluster
//! does.

use crate::args::Args;
use crate::databases::DATABASES;
use crate::numbers::parse_i64;
use crate::refusal::{Handled, Refusal};
use crate::reply::Reply;
use crate::session::Session;
use crate::store::Op;

const OUT_OF_RANGE: Refusal = Refusal::fixed("ERR DB index is out of range");

/// The refusal of a number that does not fit into a C `int`, in the words of Redis.
const NOT_AN_INT: Refusal =
    Refusal::fixed("ERR value is out of range, value must between -2147483648 and 2147483647");

const REMOVE_ALL: Op<'static> = Op::DeleteRange { start: b"", end: None };

/// Argument `at` as a number that Redis accepts as an index, whether such a database exists or not.
/// `invalid` is the refusal of other arguments, if Redis has a special text.
fn number(args: Args<'_>, at: usize, invalid: Option<&'static str>) -> Result<i32, Refusal> {
    let refused = |usual: Refusal| invalid.map_or(usual, Refusal::fixed);
    let number = parse_i64(args.get(at)).ok_or_else(|| refused(Refusal::NOT_AN_INTEGER))?;
    i32::try_from(number).map_err(|_| refused(NOT_AN_INT))
}

/// The index of the database of this number, if it exists.
fn database(number: i32) -> Result<usize, Refusal> {
    usize::try_from(number).ok().filter(|index| *index < DATABASES).ok_or(OUT_OF_RANGE)
}

/// Refuses a command that needs several databases, with the text `refusal`, if the store has one.
fn needs_several(session: &Session, refusal: &'static str) -> Handled {
    match session.shared.databases.len() {
        1 => Err(Refusal::fixed(refusal)),
        _ => Ok(()),
    }
}

/// `SELECT index`. Later commands of the connection use that database.
pub(super) fn select(session: &Session, args: Args<'_>, reply: &mut Reply) -> Handled {
    let number = number(args, 1, None)?;
    if number != 0 {
        needs_several(session, "ERR SELECT is not allowed in cluster mode")?;
    }
    session.select(database(number)?);
    reply.ok();
    Ok(())
}

/// The database that argument `at` of COPY names.
pub(super) fn copy_target(session: &Session, args: Args<'_>, at: usize) -> Result<usize, Refusal> {
    let number = number(args, at, None)?;
    if number != 0 {
        needs_several(session, "ERR Copying to another database is not allowed in cluster mode")?;
    }
    database(number)
}

/// `MOVE key index`. One write moves value and expiry to a database that does not have the key.
pub(super) fn move_key(session: &Session, args: Args<'_>, reply: &mut Reply) -> Handled {
    needs_several(session, "ERR MOVE is not allowed in cluster mode")?;
    let (key, from) = (args.get(1), session.database());
    let to = database(number(args, 2, None)?)?;
    if from == to {
        return Err(Refusal::SAME_OBJECT);
    }
    let moved = session.writing_to(to, || move_to(session, key, from, to))?;
    reply.flag(moved);
    Ok(())
}

/// Moves `key` from the selected database `from` to the database `to`. Returns whether that was
/// possible.
fn move_to(session: &Session, key: &[u8], from: usize, to: usize) -> Result<bool, Refusal> {
    // One stripe covers the key in all databases.
    let _guard = session.lock_plain(key);
    let is_free = !session.store_of(to).exists(key)?;
    let Some(entry) = session.store().get(key)?.filter(|_| is_free) else {
        return Ok(false);
    };
    let put = Op::Put { key, value: &entry.value, expires_at_ms: entry.expires_at_ms };
    session.write_joint(vec![(to, vec![put]), (from, vec![Op::Delete { key }])])?;
    Ok(true)
}

/// `SWAPDB index index`. From now on each client of one database sees the other database.
pub(super) fn swapdb(session: &Session, args: Args<'_>, reply: &mut Reply) -> Handled {
    needs_several(session, "ERR SWAPDB is not allowed in cluster mode")?;
    let first = number(args, 1, Some("ERR invalid first DB index"))?;
    let second = number(args, 2, Some("ERR invalid second DB index"))?;
    let (first, second) = (database(first)?, database(second)?);
    if first != second {
        let _guard = session.lock_all();
        session.swap_databases(first, second)?;
    }
    reply.ok();
    Ok(())
}

/// Checks the option of FLUSHDB and FLUSHALL. ASYNC and SYNC have the same effect, because one
/// range delete removes all keys.
fn check_flush(args: Args<'_>) -> Handled {
    match args.len() {
        1 => Ok(()),
        2 if args.is(1, "async") || args.is(1, "sync") => Ok(()),
        _ => Err(Refusal::SYNTAX),
    }
}

/// `FLUSHDB [ASYNC|SYNC]`. One range delete removes the keys of the selected database.
pub(super) fn flushdb(session: &Session, args: Args<'_>, reply: &mut Reply) -> Handled {
    check_flush(args)?;
    let _guard = session.lock_all();
    session.write(&[REMOVE_ALL])?;
    reply.ok();
    Ok(())
}

/// `FLUSHALL [ASYNC|SYNC]`. One write clears all databases, so a crash leaves all of them or none.
pub(super) fn flushall(session: &Session, args: Args<'_>, reply: &mut Reply) -> Handled {
    check_flush(args)?;
    let _guard = session.lock_all();
    let databases = 0..session.shared.databases.len();
    session.write_joint(databases.map(|index| (index, vec![REMOVE_ALL])).collect())?;
    reply.ok();
    Ok(())
}
