//! All commands as data: COMMAND, the check of the number of arguments and the choice of the thread
//! read this table.

use super::{
    bitmaps, connection, counters, databases, expiry, info, inspection, introspection, keyspace,
    lcs, monitoring, ordered, scan, server, set, strings, subcommands, transactions,
};
use crate::command::flag::{
    ADMIN, CONTAINER, DENYOOM, FAST, LONG, NO_AUTH, NO_MULTI, NO_TOUCH, READONLY, WRITE,
};
use crate::command::{Command, KeyPositions, Subcommand};
use crate::session::command_table::{CommandRow, Handler};

const NONE: KeyPositions = KeyPositions::NONE;
/// The first argument is the only key.
const ONE: KeyPositions = KeyPositions { first: 1, last: 1, step: 1 };
/// The first two arguments are keys.
const TWO: KeyPositions = KeyPositions { first: 1, last: 2, step: 1 };
/// All arguments are keys.
const ALL: KeyPositions = KeyPositions { first: 1, last: -1, step: 1 };
/// All arguments but the first are keys.
const ALL_BUT_FIRST: KeyPositions = KeyPositions { first: 2, last: -1, step: 1 };
/// Keys and values alternate.
const PAIRS: KeyPositions = KeyPositions { first: 1, last: -1, step: 2 };
/// The key follows a subcommand.
const AFTER_SUBCOMMAND: KeyPositions = KeyPositions { first: 2, last: 2, step: 1 };

const BITMAP: &str = "bitmap";
const CONNECTION: &str = "connection";
const GENERIC: &str = "generic";
const SERVER: &str = "server";
const STRING: &str = "string";
const TRANSACTIONS: &str = "transactions";

const fn command(
    name: &'static str,
    arity: i32,
    flags: u16,
    keys: KeyPositions,
    handler: Handler,
    group: &'static str,
    summary: &'static str,
) -> CommandRow {
    // `numbered` sets the number.
    let subcommands: &[Subcommand] = &[];
    let command = Command { name, number: 0, arity, flags, keys, subcommands, group, summary };
    CommandRow { command, handler }
}

/// The row of a command with these subcommands.
const fn with(subcommands: &'static [Subcommand], mut row: CommandRow) -> CommandRow {
    row.command.subcommands = subcommands;
    row
}

/// Gives each row its position as number.
const fn numbered<const N: usize>(mut rows: [CommandRow; N]) -> [CommandRow; N] {
    let mut number = 0;
    while number < N {
        rows[number].command.number = number;
        number += 1;
    }
    rows
}

/// Every command that the server knows.
#[rustfmt::skip]
pub(super) static ROWS: &[CommandRow] = &numbered([
    command("ping", -1, FAST, NONE, connection::ping, CONNECTION, "Answers PONG or the message."),
    command("echo", 2, FAST, NONE, connection::echo, CONNECTION, "Answers the message."),
    command("hello", -1, FAST | NO_AUTH, NONE, connection::hello, CONNECTION, "Chooses the protocol version."),
    command("auth", -2, FAST | NO_AUTH | NO_MULTI, NONE, connection::auth, CONNECTION, "Logs in with the password."),
    with(subcommands::ACL, command("acl", -2, ADMIN | CONTAINER, NONE, connection::acl, SERVER, "Shows the user of the connection, and all users.")),
    command("select", 2, FAST, NONE, databases::select, CONNECTION, "Selects one of the databases 0 to 15."),
    with(subcommands::CLIENT, command("client", -2, CONTAINER, NONE, connection::client, CONNECTION, "Names, lists and sets up connections.")),
    command("quit", -1, FAST | NO_AUTH, NONE, connection::quit, CONNECTION, "Closes the connection."),
    command("reset", 1, FAST | NO_AUTH, NONE, connection::reset, CONNECTION, "Resets the connection to its initial state."),

    command("get", 2, READONLY | FAST, ONE, strings::get, STRING, "Returns the value of a key."),
    command("set", -3, WRITE | DENYOOM, ONE, set::set, STRING, "Sets a key, optionally with a condition and an expiry."),
    command("setnx", 3, WRITE | DENYOOM | FAST, ONE, set::setnx, STRING, "Sets a key if it does not exist."),
    command("setex", 4, WRITE | DENYOOM, ONE, set::setex, STRING, "Sets a key with an expiry in seconds."),
    command("psetex", 4, WRITE | DENYOOM, ONE, set::psetex, STRING, "Sets a key with an expiry in milliseconds."),
    command("getset", 3, WRITE | DENYOOM | FAST, ONE, set::getset, STRING, "Sets a key and returns its old value."),
    command("getdel", 2, WRITE | FAST, ONE, set::getdel, STRING, "Removes a key and returns its value."),
    command("getex", -2, WRITE | FAST, ONE, set::getex, STRING, "Returns the value of a key and sets its expiry."),
    command("mget", -2, READONLY | FAST, ALL, strings::mget, STRING, "Returns the values of several keys at one moment."),
    command("mset", -3, WRITE | DENYOOM, PAIRS, strings::mset, STRING, "Sets several keys atomically."),
    command("msetnx", -3, WRITE | DENYOOM, PAIRS, strings::msetnx, STRING, "Sets several keys atomically if none of them exists."),
    command("append", 3, WRITE | DENYOOM | FAST, ONE, strings::append, STRING, "Appends to a value."),
    command("strlen", 2, READONLY | FAST, ONE, strings::strlen, STRING, "Returns the length of a value."),
    command("getrange", 4, READONLY, ONE, strings::getrange, STRING, "Returns a part of a value."),
    command("substr", 4, READONLY, ONE, strings::getrange, STRING, "Returns a part of a value: the old name of GETRANGE."),
    command("setrange", 4, WRITE | DENYOOM, ONE, strings::setrange, STRING, "Overwrites a part of a value."),
    command("incr", 2, WRITE | DENYOOM | FAST, ONE, counters::incr, STRING, "Adds one to an integer."),
    command("decr", 2, WRITE | DENYOOM | FAST, ONE, counters::decr, STRING, "Subtracts one from an integer."),
    command("incrby", 3, WRITE | DENYOOM | FAST, ONE, counters::incrby, STRING, "Adds to an integer."),
    command("decrby", 3, WRITE | DENYOOM | FAST, ONE, counters::decrby, STRING, "Subtracts from an integer."),
    command("incrbyfloat", 3, WRITE | DENYOOM | FAST, ONE, counters::incrbyfloat, STRING, "Adds to a number."),
    command("lcs", -3, READONLY | LONG, TWO, lcs::lcs, STRING, "Returns the longest common subsequence of two values."),

    command("setbit", 4, WRITE | DENYOOM, ONE, bitmaps::setbit, BITMAP, "Sets or clears a bit and returns its old value."),
    command("getbit", 3, READONLY | FAST, ONE, bitmaps::getbit, BITMAP, "Returns a bit of a value."),
    command("bitcount", -2, READONLY | LONG, ONE, bitmaps::bitcount, BITMAP, "Counts the bits that are set."),
    command("bitpos", -3, READONLY | LONG, ONE, bitmaps::bitpos, BITMAP, "Returns the position of the first bit that is set, or that is not set."),
    command("bitop", -4, WRITE | DENYOOM | LONG, ALL_BUT_FIRST, bitmaps::bitop, BITMAP, "Combines values bit by bit and stores the result."),

    command("del", -2, WRITE | NO_TOUCH, ALL, keyspace::del, GENERIC, "Removes keys and returns how many existed."),
    command("unlink", -2, WRITE | FAST | NO_TOUCH, ALL, keyspace::del, GENERIC, "Removes keys, as DEL does."),
    command("exists", -2, READONLY | FAST | NO_TOUCH, ALL, keyspace::exists, GENERIC, "Counts how many of the keys exist."),
    command("touch", -2, READONLY | FAST | NO_TOUCH, ALL, keyspace::touch, GENERIC, "Sets the access time of keys and returns how many exist."),
    command("type", 2, READONLY | FAST | NO_TOUCH, ONE, keyspace::type_of, GENERIC, "Returns the type of a key: string or none."),
    command("rename", 3, WRITE, TWO, keyspace::rename, GENERIC, "Moves a value to another key."),
    command("renamenx", 3, WRITE | FAST, TWO, keyspace::renamenx, GENERIC, "Moves a value to another key if that key does not exist."),
    command("copy", -3, WRITE | DENYOOM, TWO, keyspace::copy, GENERIC, "Copies a value to another key, optionally of another database."),
    command("move", 3, WRITE | FAST, ONE, databases::move_key, GENERIC, "Moves a key to another database."),
    command("randomkey", 1, READONLY | LONG, NONE, inspection::randomkey, GENERIC, "Returns some key."),
    with(subcommands::OBJECT, command("object", -2, READONLY | CONTAINER | NO_TOUCH, AFTER_SUBCOMMAND, inspection::object, GENERIC, "Shows facts about the value of a key.")),
    command("keys", 2, READONLY | LONG, NONE, scan::keys, GENERIC, "Returns every key that matches a pattern."),
    command("scan", -2, READONLY | LONG, NONE, scan::scan, GENERIC, "Returns some keys, and a cursor for the next step."),
    command("expire", -3, WRITE | FAST, ONE, expiry::expire, GENERIC, "Sets the expiry of a key in seconds from now."),
    command("pexpire", -3, WRITE | FAST, ONE, expiry::pexpire, GENERIC, "Sets the expiry of a key in milliseconds from now."),
    command("expireat", -3, WRITE | FAST, ONE, expiry::expireat, GENERIC, "Sets the expiry of a key to a Unix time in seconds."),
    command("pexpireat", -3, WRITE | FAST, ONE, expiry::pexpireat, GENERIC, "Sets the expiry of a key to a Unix time in milliseconds."),
    command("ttl", 2, READONLY | FAST | NO_TOUCH, ONE, expiry::ttl, GENERIC, "Returns the seconds until a key expires."),
    command("pttl", 2, READONLY | FAST | NO_TOUCH, ONE, expiry::pttl, GENERIC, "Returns the milliseconds until a key expires."),
    command("expiretime", 2, READONLY | FAST | NO_TOUCH, ONE, expiry::expiretime, GENERIC, "Returns the Unix time in seconds at which a key expires."),
    command("pexpiretime", 2, READONLY | FAST | NO_TOUCH, ONE, expiry::pexpiretime, GENERIC, "Returns the Unix time in milliseconds at which a key expires."),
    command("persist", 2, WRITE | FAST, ONE, expiry::persist, GENERIC, "Removes the expiry of a key."),
    command("wait", 3, 0, NONE, server::wait, GENERIC, "Returns 0, because there are no replicas."),

    command("range", -3, READONLY | LONG, NONE, ordered::range, GENERIC, "Returns the keys and values between two bounds ([key, (key, -, +), in order."),
    command("delrange", 3, WRITE | LONG, NONE, ordered::delrange, GENERIC, "Removes the keys between two bounds ([key, (key, -, +)."),

    command("dbsize", 1, READONLY | LONG, NONE, server::dbsize, SERVER, "Returns the approximate number of keys."),
    command("flushdb", -1, WRITE | LONG, NONE, databases::flushdb, SERVER, "Removes every key of the selected database."),
    command("flushall", -1, WRITE | LONG, NONE, databases::flushall, SERVER, "Removes every key of all databases."),
    command("swapdb", 3, WRITE | LONG, NONE, databases::swapdb, SERVER, "Swaps two databases."),
    command("resume", 1, ADMIN | LONG | NO_MULTI, NONE, server::resume, SERVER, "Accepts writes again after an error whose cause is gone."),
    command("time", 1, FAST, NONE, server::time, SERVER, "Returns the time of the server in seconds and microseconds."),
    command("info", -1, LONG, NONE, info::info, SERVER, "Shows facts and figures about the server."),
    with(subcommands::MEMORY, command("memory", -2, READONLY | CONTAINER | NO_TOUCH, AFTER_SUBCOMMAND, inspection::memory, SERVER, "Shows the memory that a key takes.")),
    with(subcommands::SLOWLOG, command("slowlog", -2, ADMIN | CONTAINER, NONE, monitoring::slowlog, SERVER, "Shows commands that took long.")),
    with(subcommands::LATENCY, command("latency", -2, ADMIN | CONTAINER, NONE, monitoring::latency, SERVER, "Shows how long commands took.")),
    with(subcommands::CONFIG, command("config", -2, ADMIN | CONTAINER, NONE, server::config, SERVER, "Shows and changes settings.")),
    with(subcommands::COMMAND, command("command", -1, CONTAINER, NONE, introspection::command, SERVER, "Describes the commands.")),
    command("save", 1, ADMIN | LONG | NO_MULTI, NONE, server::save, SERVER, "Makes all acknowledged writes survive power loss."),
    command("bgsave", -1, ADMIN | LONG | NO_MULTI, NONE, server::bgsave, SERVER, "Makes all acknowledged writes survive power loss, as SAVE does."),
    command("lastsave", 1, FAST, NONE, server::lastsave, SERVER, "Returns the Unix time of the last successful SAVE or BGSAVE."),
    command("checkpoint", 2, ADMIN | LONG | NO_MULTI, NONE, server::checkpoint, SERVER, "Copies the database to a directory."),
    command("shutdown", -1, ADMIN | NO_MULTI, NONE, server::shutdown, SERVER, "Shuts the server down in order."),

    command("multi", 1, FAST, NONE, transactions::multi, TRANSACTIONS, "Begins a transaction: commands are queued until EXEC."),
    command("exec", 1, 0, NONE, transactions::exec, TRANSACTIONS, "Executes the queued commands atomically."),
    command("discard", 1, FAST, NONE, transactions::discard, TRANSACTIONS, "Drops the queued commands."),
    command("watch", -2, FAST | NO_TOUCH, ALL, transactions::watch, TRANSACTIONS, "Makes the next EXEC fail if one of the keys changes."),
    command("unwatch", 1, FAST, NONE, transactions::unwatch, TRANSACTIONS, "Drops all watches."),
]);
