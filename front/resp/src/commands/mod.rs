//! The commands: what each is called and takes ([`table`]), and what it does, by group.
//!
//! A handler is a synchronous function of the session, the arguments (their number is checked
//! already) and the output. It writes a whole reply or returns a refusal, upon which whatever it
//! wrote is taken back.

mod bitmaps;
mod connection;
mod counters;
mod databases;
mod expiry;
mod help;
mod info;
mod inspection;
mod introspection;
mod keyspace;
mod lcs;
mod monitoring;
mod ordered;
mod scan;
mod server;
mod set;
mod strings;
mod table;
mod tracking;
mod transactions;

use std::sync::LazyLock;

use crate::args::Args;
use crate::refusal::Handled;
use crate::reply::Reply;
use crate::session::Session;

pub(crate) use table::COMMANDS;

/// Properties of a command.
pub(crate) mod flag {
    /// Changes keys.
    pub(crate) const WRITE: u16 = 1;
    /// Reads keys and changes none.
    pub(crate) const READONLY: u16 = 1 << 1;
    /// Takes constant time.
    pub(crate) const FAST: u16 = 1 << 2;
    /// For operators.
    pub(crate) const ADMIN: u16 = 1 << 3;
    /// May run long whatever its arguments: never on a worker of the runtime.
    pub(crate) const LONG: u16 = 1 << 4;
    /// May make the data grow.
    pub(crate) const DENYOOM: u16 = 1 << 5;
    /// Refused between MULTI and EXEC.
    pub(crate) const NO_MULTI: u16 = 1 << 6;
    /// For clients that have not given the password, too.
    pub(crate) const NO_AUTH: u16 = 1 << 7;
    /// Its first argument names what it does: a subcommand.
    pub(crate) const CONTAINER: u16 = 1 << 8;
    /// Does not count as an access of its keys, as in Redis.
    pub(crate) const NO_TOUCH: u16 = 1 << 9;

    /// How COMMAND spells them; what is not here is our own affair.
    pub(crate) const NAMES: [(u16, &str); 7] = [
        (WRITE, "write"),
        (READONLY, "readonly"),
        (DENYOOM, "denyoom"),
        (ADMIN, "admin"),
        (FAST, "fast"),
        (NO_MULTI, "no_multi"),
        (NO_AUTH, "no_auth"),
    ];
}

/// Runs a command.
pub(crate) type Handler = fn(&Session, Args<'_>, &mut Reply) -> Handled;

/// A command, as [`COMMANDS`] lists them.
pub(crate) struct Command {
    /// In lower case.
    pub(crate) name: &'static str,
    /// Exact number of arguments with the name; negative: at least so many.
    pub(crate) arity: i32,
    /// See [`flag`].
    pub(crate) flags: u16,
    /// Positions of the first and last key (negative: from the end) and the step between keys; 0
    /// for none.
    pub(crate) keys: (i32, i32, i32),
    /// As COMMAND DOCS groups it.
    pub(crate) group: &'static str,
    /// One sentence.
    pub(crate) summary: &'static str,
    pub(crate) handler: Handler,
}

impl Command {
    pub(crate) fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    /// Its place in [`COMMANDS`].
    #[inline]
    pub(crate) fn number(&'static self) -> usize {
        // Commands are the elements of one table.
        let offset = std::ptr::from_ref(self) as usize - COMMANDS.as_ptr() as usize;
        offset / size_of::<Self>()
    }

    /// The keys among its arguments.
    pub(crate) fn keys_of<'a>(&self, args: Args<'a>) -> impl Iterator<Item = &'a [u8]> {
        let (first, last, step) = self.keys;
        let last = if last < 0 { args.len() as i32 + last } else { last };
        let places = (first..=last).step_by(step.max(1) as usize);
        places.filter(move |_| first > 0).filter_map(move |place| args.try_get(place as usize))
    }

    /// Whether it can have `count` arguments, its name included.
    #[inline]
    pub(crate) fn takes(&self, count: usize) -> bool {
        let wanted = self.arity.unsigned_abs() as usize;
        if self.arity >= 0 { count == wanted } else { count >= wanted }
    }
}

/// Slots of the index: a power of two, more than twice the number of commands.
const SLOTS: usize = 512;

/// Longest name of a command.
const NAME_BYTES_MAX: usize = 24;

/// Open addressing from a name's hash to its place in [`COMMANDS`] plus one.
static INDEX: LazyLock<[u8; SLOTS]> = LazyLock::new(|| {
    let mut index = [0; SLOTS];
    for (place, command) in COMMANDS.iter().enumerate() {
        let mut slot = slot_of(command.name.as_bytes());
        while index[slot] != 0 {
            slot = (slot + 1) % SLOTS;
        }
        index[slot] = place as u8 + 1;
    }
    index
});

/// A hash that is the same for both cases of a letter.
fn slot_of(name: &[u8]) -> usize {
    let mix = |hash: u32, byte: &u8| (hash ^ u32::from(byte | 0x20)).wrapping_mul(0x0100_0193);
    let hash = name.iter().fold(0x811c_9dc5, mix);
    (hash ^ (hash >> 15)) as usize % SLOTS
}

/// The command `name`, which there is.
pub(crate) fn named(name: &str) -> &'static Command {
    find(name.as_bytes()).expect("the table has it")
}

/// The command called `name`, in any case.
#[inline]
pub(crate) fn find(name: &[u8]) -> Option<&'static Command> {
    if name.len() > NAME_BYTES_MAX {
        return None;
    }
    let mut slot = slot_of(name);
    loop {
        let place = INDEX[slot].checked_sub(1)?;
        let command = &COMMANDS[place as usize];
        if command.name.as_bytes().eq_ignore_ascii_case(name) {
            return Some(command);
        }
        slot = (slot + 1) % SLOTS;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_is_found_in_any_case_and_nothing_else_is() {
        assert!(COMMANDS.len() < usize::from(u8::MAX));
        for command in COMMANDS {
            assert!(command.name.len() <= NAME_BYTES_MAX);
            assert_eq!(command.name, command.name.to_ascii_lowercase());
            for name in [command.name.to_owned(), command.name.to_uppercase()] {
                assert!(std::ptr::eq(find(name.as_bytes()).unwrap(), command), "{name} twice?");
            }
        }
        for name in ["", "gett", "ge", "\x07et", &"x".repeat(1000)] {
            assert!(find(name.as_bytes()).is_none(), "{name:?}");
        }
    }

    #[test]
    fn readme_names_every_command() {
        let readme = include_str!("../../README.md");
        let words = readme.split(|letter: char| !letter.is_ascii_alphanumeric());
        let words: std::collections::HashSet<&str> = words.collect();
        for command in COMMANDS {
            let name = command.name.to_ascii_uppercase();
            assert!(words.contains(&name[..]), "front/resp/README.md does not name {name}");
        }
    }

    #[test]
    fn what_writes_says_so() {
        for command in COMMANDS {
            assert!(!(command.has(flag::WRITE) && command.has(flag::READONLY)), "{}", command.name);
            let (first, last, step) = command.keys;
            assert_eq!(first == 0, step == 0, "{}", command.name);
            assert!(first == 0 || last != 0, "{}", command.name);
        }
    }
}
