//! Subcommands of the commands that have some, with their numbers of arguments.
//!
//! Static data of [`super::table`]. The session checks a subcommand before it runs or queues the
//! command, so the functions of these commands get only subcommands that stand here.

use crate::command::Subcommand;

const fn subcommand(name: &'static str, arity: i32) -> Subcommand {
    Subcommand { name, arity }
}

const HELP: Subcommand = subcommand("help", 2);

pub(super) const ACL: &[Subcommand] = &[HELP, subcommand("users", 2), subcommand("whoami", 2)];

pub(super) const CLIENT: &[Subcommand] = &[
    HELP,
    subcommand("caching", 3),
    subcommand("getname", 2),
    subcommand("getredir", 2),
    subcommand("id", 2),
    subcommand("info", 2),
    subcommand("kill", -3),
    subcommand("list", -2),
    subcommand("no-evict", 3),
    subcommand("no-touch", 3),
    subcommand("reply", 3),
    subcommand("setinfo", 4),
    subcommand("setname", 3),
    subcommand("tracking", -3),
    subcommand("trackinginfo", 2),
];

pub(super) const COMMAND: &[Subcommand] = &[
    HELP,
    subcommand("count", 2),
    subcommand("docs", -2),
    subcommand("getkeys", -3),
    subcommand("info", -2),
    subcommand("list", -2),
];

pub(super) const CONFIG: &[Subcommand] = &[
    HELP,
    subcommand("get", -3),
    subcommand("resetstat", 2),
    subcommand("rewrite", 2),
    subcommand("set", -4),
];

pub(super) const LATENCY: &[Subcommand] = &[
    HELP,
    subcommand("histogram", -2),
    subcommand("history", 3),
    subcommand("latest", 2),
    subcommand("reset", -2),
];

pub(super) const MEMORY: &[Subcommand] = &[HELP, subcommand("usage", -3)];

pub(super) const OBJECT: &[Subcommand] = &[
    HELP,
    subcommand("encoding", 3),
    subcommand("freq", 3),
    subcommand("idletime", 3),
    subcommand("refcount", 3),
];

pub(super) const SLOWLOG: &[Subcommand] =
    &[HELP, subcommand("get", -2), subcommand("len", 2), subcommand("reset", 2)];
