//! Answers of HELP for the commands that have subcommands.

use crate::args::Args;
use crate::reply::Reply;

/// A command, and the lines that describe its subcommands.
type Topic = (&'static str, &'static [&'static str]);

const TOPICS: [Topic; 8] = [
    ("ACL", &["WHOAMI: shows the user of this connection", "USERS: shows the names of all users"]),
    (
        "CLIENT",
        &[
            "CACHING YES|NO: chooses whether the next command is tracked",
            "GETNAME | SETNAME name: shows or sets the name of this connection",
            "GETREDIR: returns 0 while this connection tracks keys, otherwise -1",
            "ID | INFO: shows the number of this connection, or its line of LIST",
            "KILL address | [ID id] [ADDR address] [LADDR address] [TYPE type] [USER name] \
             [MAXAGE seconds] [SKIPME yes|no]: closes connections",
            "LIST [TYPE type | ID id ...]: shows the connections, one per line",
            "NO-EVICT on|off: has no effect, because there is no eviction",
            "NO-TOUCH on|off: chooses whether reads leave the idle time of keys unchanged",
            "REPLY ON|OFF|SKIP: chooses whether commands are answered",
            "SETINFO LIB-NAME name | LIB-VER version: names the library of the client",
            "TRACKING ON|OFF [PREFIX prefix ...] [BCAST] [OPTIN] [OPTOUT] [NOLOOP]: sends this \
             connection an invalidation when a key that it has read changes",
            "TRACKINGINFO: shows how this connection tracks keys",
        ],
    ),
    (
        "COMMAND",
        &[
            "(alone) | INFO [name ...]: shows arguments, flags and keys of commands",
            "COUNT: returns the number of commands",
            "DOCS [name ...]: describes commands",
            "GETKEYS name argument ...: returns the arguments that are keys",
            "LIST [FILTERBY MODULE|ACLCAT|PATTERN value]: shows the names of commands",
        ],
    ),
    (
        "CONFIG",
        &[
            "GET pattern ...: shows settings and their values",
            "SET name value ...: changes all named settings or none",
            "REWRITE: is refused, because there is no configuration file",
            "RESETSTAT: sets the figures of INFO to zero",
        ],
    ),
    (
        "LATENCY",
        &[
            "HISTOGRAM [name ...]: shows how long commands took",
            "LATEST | HISTORY event | RESET [event ...]: show no events, because none are kept",
        ],
    ),
    ("MEMORY", &["USAGE key [SAMPLES count]: returns the bytes of a record before compression"]),
    (
        "OBJECT",
        &[
            "ENCODING key: returns int, embstr or raw, according to the bytes of the value",
            "REFCOUNT key: returns 1",
            "IDLETIME key: returns a lower bound of the seconds since the last access through this server",
            "FREQ key: is refused, because accesses are not counted",
        ],
    ),
    (
        "SLOWLOG",
        &[
            "GET [count]: shows the slow commands, from the newest on; -1 shows all",
            "LEN: returns the number of entries",
            "RESET: removes all entries",
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

    #[test]
    fn help_names_every_subcommand() {
        for command in list() {
            let has_some = !command.subcommands.is_empty();
            assert_eq!(command.has(flag::CONTAINER), has_some, "{}", command.name);
            let name = command.name.to_ascii_uppercase();
            let lines = TOPICS.iter().filter(|(topic, _)| *topic == name).flat_map(|(_, it)| *it);
            let text: Vec<&str> = lines.copied().collect();
            let text = text.join(" ");
            let is_letter = |letter: char| letter.is_ascii_alphanumeric() || letter == '-';
            let words: Vec<&str> = text.split(|letter: char| !is_letter(letter)).collect();
            for subcommand in command.subcommands {
                let word = subcommand.name.to_ascii_uppercase();
                assert!(word == "HELP" || words.contains(&&word[..]), "{name} {word}");
            }
        }
    }
}
