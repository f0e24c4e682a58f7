//! Moves a value from one key to another. The store over remote memory cannot change two keys
//! atomically, so a move is several writes of single keys. Each of them is linearizable.
//!
//! 1. Read the source.
//! 2. Write its value and expiry to the destination.
//! 3. Delete the source if it still has the version that was read. If a client changed it
//!    meanwhile, go on at step 1, so that the destination gets the newer value.
//!
//! Invariants:
//!
//! 1. The value is never lost. A move deletes the source only if it has not changed since the move
//!    read it, and only after the destination was written. Between these two steps both keys have
//!    the value. This also holds for two concurrent moves in opposite directions. Let the last
//!    deletion be that of the source of move A, in version *v*, and let move B have deleted A's
//!    destination before. Then B wrote A's source first, at the latest as *v*. A wrote its
//!    destination after it read *v*, so after B had read it. B's deletion was for the version that
//!    it read, so it came before A's write, and the destination exists.
//! 2. With [`Destination::Kept`], the first write needs a destination that does not exist. A later
//!    write, for a newer value of the source, needs the value that this move wrote before.
//! 3. If another client deletes or moves the source after 2, the move counts as done.
//! 4. A version is the word of a slot, which names another record of the key if the first one was
//!    freed and its memory used again, an address lease later. So a write for a version that was
//!    read that long ago does not apply ([`If::applies`]), and the move goes on at 1.
//!
//! Failure: an error before the destination was written says what became of that write. A later one
//! is of unknown effect: the destination has a value of the source, and the source may still exist.
//! A source that is changed all the time ends the move after [`TRIES_MAX`] tries.
//! Cost: a read, a write and a deletion for each try.

use archipelago_base::{Error, Result};

use super::{If, Value};
use crate::write_error::WriteError;

/// Number of tries after which a move gives up, because the source has changed during each of them.
const TRIES_MAX: usize = 100;

/// Treatment of a destination that exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// The move overwrites it.
    Overwritten,
    /// The destination stays, and nothing is moved.
    Kept,
}

/// Result of a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renamed {
    /// The destination has the value, and the source does not exist.
    Moved,
    /// The source does not exist.
    NoSource,
    /// The destination exists, so nothing was done.
    DestinationExists,
}

/// Reads and writes of single keys.
pub(crate) trait Keys {
    async fn read_key(&self, key: &[u8]) -> Result<Option<Value>>;

    async fn write_key(
        &self,
        key: &[u8],
        value: Option<(&[u8], u64)>,
        when: If,
    ) -> Result<bool, WriteError>;
}

/// The error of a move that has written the destination.
fn half_done(error: &Error) -> WriteError {
    let kind = error.kind();
    let text = error.to_string();
    let why = text.strip_prefix(kind.name()).and_then(|rest| rest.strip_prefix(": "));
    WriteError::of_unknown_effect(Error::new(
        kind,
        format!(
            "the new key has the value and the old one may have it, too: {}",
            why.unwrap_or(&text)
        ),
    ))
}

/// Whether two reads show the same value with the same expiry.
fn is_same(value: &Value, other: &Value) -> bool {
    value.bytes == other.bytes && value.expires_ms == other.expires_ms
}

/// Moves value and expiry of `from` to `to`, which differ.
pub(crate) async fn rename(
    keys: &impl Keys,
    from: &[u8],
    to: &[u8],
    destination: Destination,
) -> Result<Renamed, WriteError> {
    assert_ne!(from, to, "a move has two keys");
    let read = keys.read_key(from).await.map_err(WriteError::without_effect)?;
    let Some(mut source) = read else { return Ok(Renamed::NoSource) };
    let when = match destination {
        Destination::Overwritten => If::Always,
        Destination::Kept => If::Absent,
    };
    if !keys.write_key(to, Some((&source.bytes, source.expires_ms)), when).await? {
        return Ok(Renamed::DestinationExists);
    }
    for _ in 0..TRIES_MAX {
        let deleted = keys.write_key(from, None, If::Version(source.version)).await;
        if deleted.map_err(|failed| half_done(failed.error()))? {
            return Ok(Renamed::Moved);
        }
        let read = keys.read_key(from).await.map_err(|error| half_done(&error))?;
        let Some(newer) = read else { return Ok(Renamed::Moved) };
        // The value is written again even if it has not changed. It may be in the source because
        // another move brought it back from the destination.
        let change = SourceChange { written: &source, newer: &newer };
        write_again(keys, to, change, destination).await?;
        source = newer;
    }
    Err(half_done(&Error::busy(format!(
        "other clients changed the old key {TRIES_MAX} times during the move"
    ))))
}

/// A source that changed while it was moved.
#[derive(Clone, Copy)]
struct SourceChange<'a> {
    /// The value that the move wrote to the destination.
    written: &'a Value,
    newer: &'a Value,
}

/// Writes a newer value of the source to the destination, which this move has written before.
async fn write_again(
    keys: &impl Keys,
    to: &[u8],
    change: SourceChange<'_>,
    destination: Destination,
) -> Result<(), WriteError> {
    let when = match destination {
        Destination::Overwritten => If::Always,
        Destination::Kept => {
            let there = keys.read_key(to).await.map_err(|error| half_done(&error))?;
            match there.filter(|there| is_same(there, change.written)) {
                Some(there) => If::Version(there.version),
                None => return Err(half_done(&changed_too())),
            }
        }
    };
    let value = Some((&change.newer.bytes[..], change.newer.expires_ms));
    let done = keys.write_key(to, value, when).await;
    match done.map_err(|failed| half_done(failed.error()))? {
        true => Ok(()),
        false => Err(half_done(&changed_too())),
    }
}

fn changed_too() -> Error {
    Error::busy(
        "other clients changed both keys during the move, so the new key was left unchanged",
    )
}

#[cfg(test)]
mod tests;
