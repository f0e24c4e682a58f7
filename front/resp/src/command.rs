//! Description of a command: its name, arguments, subcommands, keys and properties, without its
//! function.
//!
//! Static data that the whole server reads. [`crate::commands`] has the table of all commands, and
//! [`crate::session::command_table::CommandTable`] pairs each description with its function.
//! Descriptions stand below both, so that statistics and client lists do not depend on the
//! functions.
//!
//! Invariant: [`Command::number`] is the position in the table, and no two commands share one.
//! Thread-safety: immutable. Failure: none. Cost: no allocation.

use crate::args::Args;
use crate::refusal::{Handled, Refusal};

/// Properties of a command, as bits.
pub(crate) mod flag {
    /// The command changes keys.
    pub(crate) const WRITE: u16 = 1;
    /// The command reads keys and changes none.
    pub(crate) const READONLY: u16 = 1 << 1;
    /// The command takes constant time.
    pub(crate) const FAST: u16 = 1 << 2;
    /// The command is meant for operators.
    pub(crate) const ADMIN: u16 = 1 << 3;
    /// The command may run long whatever its arguments are. It never runs on a worker thread of
    /// the runtime.
    pub(crate) const LONG: u16 = 1 << 4;
    /// The command may make the data grow.
    pub(crate) const DENYOOM: u16 = 1 << 5;
    /// The command is refused between MULTI and EXEC.
    pub(crate) const NO_MULTI: u16 = 1 << 6;
    /// Clients may send the command before they have given the password.
    pub(crate) const NO_AUTH: u16 = 1 << 7;
    /// The first argument of the command is a subcommand.
    pub(crate) const CONTAINER: u16 = 1 << 8;
    /// The command does not count as an access of its keys, as in Redis.
    pub(crate) const NO_TOUCH: u16 = 1 << 9;

    /// Names of the properties that COMMAND shows to clients. Properties without a name concern
    /// this server alone.
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

/// Positions of the keys among the arguments of a command. The name has position 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyPositions {
    /// Position of the first key; 0 for a command without keys.
    pub(crate) first: i32,
    /// Position of the last key. A negative number counts from the end.
    pub(crate) last: i32,
    /// Distance between two keys.
    pub(crate) step: i32,
}

impl KeyPositions {
    /// Positions of a command without keys.
    pub(crate) const NONE: Self = Self { first: 0, last: 0, step: 0 };

    /// The positions of a command that has `count` arguments, its name included. All are less than
    /// `count`: a subcommand without a key, such as OBJECT HELP, has none.
    pub(crate) fn of(self, count: usize) -> impl Iterator<Item = usize> {
        let last = if self.last < 0 { count as i32 + self.last } else { self.last };
        let last = last.min(count as i32 - 1);
        let positions = (self.first..=last).step_by(self.step.max(1) as usize);
        positions.filter(move |_| self.first > 0).map(|position| position as usize)
    }
}

/// A subcommand, such as GET of CONFIG GET.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Subcommand {
    /// Name in lower case.
    pub(crate) name: &'static str,
    /// Exact number of arguments with the names of command and subcommand. A negative number is a
    /// minimum.
    pub(crate) arity: i32,
}

/// What the server knows of a command, besides its function.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Command {
    /// Name in lower case.
    pub(crate) name: &'static str,
    /// Position in the table of commands.
    pub(crate) number: usize,
    /// Exact number of arguments with the name. A negative number is a minimum.
    pub(crate) arity: i32,
    /// Bits of [`flag`].
    pub(crate) flags: u16,
    pub(crate) keys: KeyPositions,
    /// All subcommands of a command with [`flag::CONTAINER`]; empty for others.
    pub(crate) subcommands: &'static [Subcommand],
    /// Group under which COMMAND DOCS lists the command.
    pub(crate) group: &'static str,
    /// Description of one sentence.
    pub(crate) summary: &'static str,
}

impl Command {
    #[inline]
    pub(crate) fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    /// The keys among its arguments.
    pub(crate) fn keys_of<'a>(&self, args: Args<'a>) -> impl Iterator<Item = &'a [u8]> {
        self.keys.of(args.len()).filter_map(move |position| args.try_get(position))
    }

    /// Whether the command can have `count` arguments, its name included.
    #[inline]
    pub(crate) fn takes(&self, count: usize) -> bool {
        fits(self.arity, count)
    }

    /// Refuses a number of arguments or a subcommand that the command does not have, with the error
    /// of Redis.
    #[inline]
    pub(crate) fn check(&self, args: Args<'_>) -> Handled {
        if !self.takes(args.len()) {
            return Err(Refusal::arity(self.name));
        }
        if self.subcommands.is_empty() { Ok(()) } else { self.check_subcommand(args) }
    }

    fn check_subcommand(&self, args: Args<'_>) -> Handled {
        let Some(word) = args.try_get(1) else { return Ok(()) };
        let is_it = |it: &&Subcommand| it.name.as_bytes().eq_ignore_ascii_case(word);
        match self.subcommands.iter().find(is_it) {
            None => Err(Refusal::unknown_subcommand(&args.text(1), self.name)),
            Some(it) if fits(it.arity, args.len()) => Ok(()),
            Some(it) => Err(Refusal::arity(&format!("{}|{}", self.name, it.name))),
        }
    }
}

/// Whether `arity` allows `count` arguments.
#[inline]
fn fits(arity: i32, count: usize) -> bool {
    let wanted = arity.unsigned_abs() as usize;
    if arity >= 0 { count == wanted } else { count >= wanted }
}
