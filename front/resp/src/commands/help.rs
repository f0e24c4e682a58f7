//! Answers of HELP for the commands that have subcommands.

use crate::args::Args;
use crate::refusal::Refusal;
use crate::reply::Reply;

/// A command, and the lines that describe its subcommands.
type Topic = (&'static str, &'static [&'static str]);

const TOPICS: [Topic; 8] = [
    ("ACL", &["WHOAMI: the user of this connection", "USERS: the names of all users"]),
    (
        "CLIENT",
        &[
            "CACHING YES|NO: whether the next command is tracked",
            "GETNAME | SETNAME name: the name of this connection",
            "GETREDIR: 0 while this connection tracks keys, otherwise -1",
            "ID | INFO: this connection, as LIST shows it",
            "KILL address | [ID id] [ADDR address] [LADDR address] [TYPE type] [USER name] \
             [MAXAGE seconds] [SKIPME yes|no]: closes connections",
            "LIST [TYPE type | ID id ...]: the connections, one a line",
            "NO-EVICT on|off: accepted, without an effect",
            "NO-TOUCH on|off: whether reads leave the idle time of keys as it is",
            "REPLY ON|OFF|SKIP: whether commands are answered",
            "SETINFO LIB-NAME name | LIB-VER version: the library of the client",
            "TRACKING ON|OFF [PREFIX prefix ...] [BCAST] [OPTIN] [OPTOUT] [NOLOOP]: tells this \
             connection which of the keys that it has read have changed",
            "TRACKINGINFO: how this connection tracks keys",
        ],
    ),
    (
        "COMMAND",
        &[
            "(alone) | INFO [name ...]: arguments, flags and keys of commands",
            "COUNT: how many commands there are",
            "DOCS [name ...]: what commands do",
            "GETKEYS name argument ...: which of the arguments are keys",
            "LIST [FILTERBY MODULE|ACLCAT|PATTERN value]: the names of commands",
        ],
    ),
    (
        "CONFIG",
        &[
            "GET pattern ...: settings and their values",
            "SET name value ...: changes settings, all or none",
            "REWRITE: refused, because there is no configuration file",
            "RESETSTAT: sets the figures of INFO to zero",
        ],
    ),
    (
        "LATENCY",
        &[
            "HISTOGRAM [name ...]: how long commands took",
            "LATEST | HISTORY event | RESET [event ...]: events, of which none are kept",
        ],
    ),
    ("MEMORY", &["USAGE key [SAMPLES count]: bytes of a record before compression"]),
    (
        "OBJECT",
        &[
            "ENCODING key: int, embstr or raw, by the bytes of the value",
            "REFCOUNT key: always 1",
            "IDLETIME key: seconds since the last access, at least",
            "FREQ key: refused, because accesses are not counted",
        ],
    ),
    (
        "SLOWLOG",
        &[
            "GET [count]: the slow commands, the newest first; -1 for all of them",
            "LEN: how many there are",
            "RESET: forgets them",
        ],
    ),
];

/// Answers `HELP` of the command `name`. Returns whether the client asked for it.
pub(super) fn answers(args: Args<'_>, name: &str, reply: &mut Reply) -> bool {
    let topic = TOPICS.iter().find(|(command, _)| *command == name);
    let (Some((_, lines)), true) = (topic, args.len() == 2 && args.is(1, "help")) else {
        return false;
    };
    reply.array(lines.len() + 1);
    reply.simple(&format!("{name} <subcommand> [argument ...], where the subcommands are:"));
    lines.iter().for_each(|line| reply.simple(line));
    true
}

/// The refusal of a subcommand that `command` does not have.
pub(super) fn unknown_subcommand(args: Args<'_>, command: &str) -> Refusal {
    let word = args.text(1);
    Refusal::said(format!("ERR unknown subcommand '{word}'. Try {command} HELP."))
}

#[cfg(test)]
mod tests {
    use super::TOPICS;
    use crate::command::flag;
    use crate::commands::list;

    #[test]
    fn commands_with_subcommands_have_help() {
        let names = list().iter().filter(|command| command.has(flag::CONTAINER));
        let mut names: Vec<String> = names.map(|it| it.name.to_ascii_uppercase()).collect();
        names.sort();
        assert_eq!(names, TOPICS.map(|(name, _)| name));
    }
}
