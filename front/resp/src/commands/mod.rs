//! The commands: a table that describes them ([`table`]), and their functions by group.
//!
//! A function is synchronous. It gets the session, the arguments, whose number and subcommand are
//! checked already, and the output. It writes a whole reply, or it returns a refusal. Then the
//! session removes what the function wrote. The session calls functions through the table only, so
//! nothing below this module depends on it.

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
mod subcommands;
mod table;
mod tracking;
mod transactions;

use std::sync::LazyLock;

use crate::command::Command;
use crate::session::command_table::CommandTable;

static TABLE: LazyLock<CommandTable> = LazyLock::new(|| CommandTable::new(table::ROWS));

static LIST: LazyLock<Vec<&'static Command>> =
    LazyLock::new(|| table::ROWS.iter().map(|row| &row.command).collect());

/// The table of all commands.
pub(crate) fn table() -> &'static CommandTable {
    &TABLE
}

/// All commands in the order of their numbers.
pub(crate) fn list() -> &'static [&'static Command] {
    &LIST
}

/// The command called `name`. Upper and lower case are equal.
fn find(name: &[u8]) -> Option<&'static Command> {
    TABLE.find(name).map(|row| &row.command)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::flag;

    #[test]
    fn positions_of_keys_lie_among_the_arguments() {
        for command in list().iter().copied() {
            for count in (1..=8).filter(|count| command.takes(*count)) {
                let of = command.keys.of(count);
                assert!(of.into_iter().all(|at| (1..count).contains(&at)), "{}", command.name);
            }
        }
    }

    #[test]
    fn commands_are_found_in_any_case() {
        for command in list().iter().copied() {
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
    fn guide_names_every_command() {
        let guide = include_str!("../../../../docs/guide/redis.md");
        let words = guide.split(|letter: char| !letter.is_ascii_alphanumeric());
        let words: std::collections::HashSet<&str> = words.collect();
        for command in list() {
            let name = command.name.to_ascii_uppercase();
            assert!(words.contains(&name[..]), "docs/guide/redis.md does not name {name}");
        }
    }

    #[test]
    fn flags_and_key_positions_are_consistent() {
        for command in list() {
            let is_both = command.has(flag::READONLY) && command.has(flag::WRITE);
            assert!(!is_both, "{}", command.name);
            let keys = command.keys;
            assert_eq!(keys.first == 0, keys.step == 0, "{}", command.name);
            assert!(keys.first == 0 || keys.last != 0, "{}", command.name);
        }
    }
}
