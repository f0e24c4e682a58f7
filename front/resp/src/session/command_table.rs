//! Table of commands with their functions, and the search for a command by its name.
//!
//! [`crate::commands`] fills one table, and every session refers to it. The session therefore does
//! not depend on the functions that it calls.
//!
//! Thread-safety: immutable. Failure: none. Cost of a search: a hash over the name, and usually one
//! comparison of names. It allocates nothing.

use super::Session;
use crate::args::Args;
use crate::command::Command;
use crate::refusal::Handled;
use crate::reply::Reply;

/// Slots of the index: a power of two, and more than twice the number of commands.
const SLOTS: usize = 512;

/// Longest name of a command in bytes.
const NAME_BYTES_MAX: usize = 24;

/// Function of a command. The number of arguments and the subcommand are checked already. The
/// function writes a whole reply, or it returns a refusal. Then the session removes what the
/// function wrote.
pub(crate) type Handler = fn(&Session, Args<'_>, &mut Reply) -> Handled;

/// A command and its function.
#[derive(Clone, Copy)]
pub(crate) struct CommandRow {
    pub(crate) command: Command,
    pub(crate) handler: Handler,
}

/// All commands with their functions.
pub(crate) struct CommandTable {
    rows: &'static [CommandRow],
    /// Open addressing from the hash of a name to the position of its row plus one.
    index: [u8; SLOTS],
}

impl CommandTable {
    pub(crate) fn new(rows: &'static [CommandRow]) -> Self {
        assert!(rows.len() < SLOTS / 2 && rows.len() < usize::from(u8::MAX));
        let mut index = [0; SLOTS];
        for (position, row) in rows.iter().enumerate() {
            assert!(row.command.number == position && row.command.name.len() <= NAME_BYTES_MAX);
            let mut slot = slot_of(row.command.name.as_bytes());
            while index[slot] != 0 {
                slot = (slot + 1) % SLOTS;
            }
            index[slot] = position as u8 + 1;
        }
        Self { rows, index }
    }

    /// The row of the command called `name`. Upper and lower case are equal.
    #[inline]
    pub(crate) fn find(&self, name: &[u8]) -> Option<&'static CommandRow> {
        if name.len() > NAME_BYTES_MAX {
            return None;
        }
        let mut slot = slot_of(name);
        loop {
            let position = self.index[slot].checked_sub(1)?;
            let row = &self.rows[usize::from(position)];
            if row.command.name.as_bytes().eq_ignore_ascii_case(name) {
                return Some(row);
            }
            slot = (slot + 1) % SLOTS;
        }
    }
}

/// A hash that is equal for both cases of a letter.
fn slot_of(name: &[u8]) -> usize {
    let mix = |hash: u32, byte: &u8| (hash ^ u32::from(byte | 0x20)).wrapping_mul(0x0100_0193);
    let hash = name.iter().fold(0x811c_9dc5, mix);
    (hash ^ (hash >> 15)) as usize % SLOTS
}
