//! All commands as data: COMMAND, the check of the number of arguments and the choice of the thread
//! read this table.

use super::{
    bitmaps, connection, counters, databases, expiry, info, inspection, introspection, keyspace,
    lcs, monitoring, ordered, scan, server, set, strings, transactions,
};
use crate::command::flag::{
    ADMIN, CONTAINER, DENYOOM, FAST, LONG, NO_AUTH, NO_MULTI, NO_TOUCH, READONLY, WRITE,
};
use crate::command::{Command, KeyPositions};
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
    CommandRow { command: Command { name, number: 0, arity, flags, keys, group, summary }, handler }
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
    command("auth", -2, FAST | NO_AUTH | NO_MULTI, NONE, connection::auth, CONNECTION, "Gives the password."),
    command("acl", -2, ADMIN | CONTAINER, NONE, connection::acl, SERVER, "Says who the user is, and which users there are."),
    command("select", 2, FAST, NONE, databases::select, CONNECTION, "Selects one of the databases 0 to 15."),
    command("client", -2, CONTAINER, NONE, connection::client, CONNECTION, "Names, lists and sets up connections."),
    command("quit", -1, FAST | NO_AUTH, NONE, connection::quit, CONNECTION, "Closes the connection."),
    command("reset", 1, FAST | NO_AUTH, NONE, connection::reset, CONNECTION, "Sets the connection back to its start."),

    command("get", 2, READONLY | FAST, ONE, strings::get, STRING, "The value of a key."),
    command("set", -3, WRITE | DENYOOM, ONE, set::set, STRING, "Sets a key, perhaps with conditions and an expiry."),
    command("setnx", 3, WRITE | DENYOOM | FAST, ONE, set::setnx, STRING, "Sets a key that is not there."),
    command("setex", 4, WRITE | DENYOOM, ONE, set::setex, STRING, "Sets a key for some seconds."),
    command("psetex", 4, WRITE | DENYOOM, ONE, set::psetex, STRING, "Sets a key for some milliseconds."),
    command("getset", 3, WRITE | DENYOOM | FAST, ONE, set::getset, STRING, "Sets a key and answers its old value."),
    command("getdel", 2, WRITE | FAST, ONE, set::getdel, STRING, "Removes a key and answers its value."),
    command("getex", -2, WRITE | FAST, ONE, set::getex, STRING, "The value of a key, whose expiry it sets."),
    command("mget", -2, READONLY | FAST, ALL, strings::mget, STRING, "The values of several keys at one moment."),
    command("mset", -3, WRITE | DENYOOM, PAIRS, strings::mset, STRING, "Sets several keys, all or none."),
    command("msetnx", -3, WRITE | DENYOOM, PAIRS, strings::msetnx, STRING, "Sets several keys if none of them is there."),
    command("append", 3, WRITE | DENYOOM | FAST, ONE, strings::append, STRING, "Appends to a value."),
    command("strlen", 2, READONLY | FAST, ONE, strings::strlen, STRING, "The length of a value."),
    command("getrange", 4, READONLY, ONE, strings::getrange, STRING, "A part of a value."),
    command("substr", 4, READONLY, ONE, strings::getrange, STRING, "The old name of GETRANGE."),
    command("setrange", 4, WRITE | DENYOOM, ONE, strings::setrange, STRING, "Overwrites a part of a value."),
    command("incr", 2, WRITE | DENYOOM | FAST, ONE, counters::incr, STRING, "Adds one to an integer."),
    command("decr", 2, WRITE | DENYOOM | FAST, ONE, counters::decr, STRING, "Takes one from an integer."),
    command("incrby", 3, WRITE | DENYOOM | FAST, ONE, counters::incrby, STRING, "Adds to an integer."),
    command("decrby", 3, WRITE | DENYOOM | FAST, ONE, counters::decrby, STRING, "Takes from an integer."),
    command("incrbyfloat", 3, WRITE | DENYOOM | FAST, ONE, counters::incrbyfloat, STRING, "Adds to a number."),
    command("lcs", -3, READONLY | LONG, TWO, lcs::lcs, STRING, "What two values have in common, in the same order."),

    command("setbit", 4, WRITE | DENYOOM, ONE, bitmaps::setbit, BITMAP, "Sets or clears a bit; answers what it was."),
    command("getbit", 3, READONLY | FAST, ONE, bitmaps::getbit, BITMAP, "A bit of a value."),
    command("bitcount", -2, READONLY | LONG, ONE, bitmaps::bitcount, BITMAP, "How many bits are set."),
    command("bitpos", -3, READONLY | LONG, ONE, bitmaps::bitpos, BITMAP, "The first bit that is set, or that is not."),
    command("bitop", -4, WRITE | DENYOOM | LONG, ALL_BUT_FIRST, bitmaps::bitop, BITMAP, "Combines values bit by bit into another key."),

    command("del", -2, WRITE | NO_TOUCH, ALL, keyspace::del, GENERIC, "Removes keys; answers how many were there."),
    command("unlink", -2, WRITE | FAST | NO_TOUCH, ALL, keyspace::del, GENERIC, "The same as DEL."),
    command("exists", -2, READONLY | FAST | NO_TOUCH, ALL, keyspace::exists, GENERIC, "How many of the keys are there."),
    command("touch", -2, READONLY | FAST | NO_TOUCH, ALL, keyspace::touch, GENERIC, "Sets the access time of keys; answers how many of them exist."),
    command("type", 2, READONLY | FAST | NO_TOUCH, ONE, keyspace::type_of, GENERIC, "The type of a key: string or none."),
    command("rename", 3, WRITE, TWO, keyspace::rename, GENERIC, "Moves a value to another key."),
    command("renamenx", 3, WRITE | FAST, TWO, keyspace::renamenx, GENERIC, "Moves a value to a key that is not there."),
    command("copy", -3, WRITE | DENYOOM, TWO, keyspace::copy, GENERIC, "Copies a value to another key, perhaps of another database."),
    command("move", 3, WRITE | FAST, ONE, databases::move_key, GENERIC, "Moves a key to another database."),
    command("randomkey", 1, READONLY | LONG, NONE, inspection::randomkey, GENERIC, "Some key."),
    command("object", -2, READONLY | CONTAINER | NO_TOUCH, AFTER_SUBCOMMAND, inspection::object, GENERIC, "Facts about the value of a key."),
    command("keys", 2, READONLY | LONG, NONE, scan::keys, GENERIC, "Every key that fits a pattern."),
    command("scan", -2, READONLY | LONG, NONE, scan::scan, GENERIC, "Some keys, and a cursor to go on with."),
    command("expire", -3, WRITE | FAST, ONE, expiry::expire, GENERIC, "Sets the expiry of a key in seconds from now."),
    command("pexpire", -3, WRITE | FAST, ONE, expiry::pexpire, GENERIC, "Sets the expiry of a key in milliseconds from now."),
    command("expireat", -3, WRITE | FAST, ONE, expiry::expireat, GENERIC, "Sets the expiry of a key to a Unix time in seconds."),
    command("pexpireat", -3, WRITE | FAST, ONE, expiry::pexpireat, GENERIC, "Sets the expiry of a key to a Unix time in milliseconds."),
    command("ttl", 2, READONLY | FAST | NO_TOUCH, ONE, expiry::ttl, GENERIC, "Seconds until a key expires."),
    command("pttl", 2, READONLY | FAST | NO_TOUCH, ONE, expiry::pttl, GENERIC, "Milliseconds until a key expires."),
    command("expiretime", 2, READONLY | FAST | NO_TOUCH, ONE, expiry::expiretime, GENERIC, "Unix time in seconds at which a key expires."),
    command("pexpiretime", 2, READONLY | FAST | NO_TOUCH, ONE, expiry::pexpiretime, GENERIC, "Unix time in milliseconds at which a key expires."),
    command("persist", 2, WRITE | FAST, ONE, expiry::persist, GENERIC, "Takes the expiry off a key."),
    command("wait", 3, 0, NONE, server::wait, GENERIC, "Answers 0: there are no replicas."),

    command("range", -3, READONLY | LONG, NONE, ordered::range, GENERIC, "The keys and values between two bounds ([key, (key, -, +), in order."),
    command("delrange", 3, WRITE | LONG, NONE, ordered::delrange, GENERIC, "Removes the keys between two bounds ([key, (key, -, +)."),

    command("dbsize", 1, READONLY | LONG, NONE, server::dbsize, SERVER, "About how many keys there are."),
    command("flushdb", -1, WRITE | LONG, NONE, databases::flushdb, SERVER, "Removes every key of the selected database."),
    command("flushall", -1, WRITE | LONG, NONE, databases::flushall, SERVER, "Removes every key of all databases."),
    command("swapdb", 3, WRITE | LONG, NONE, databases::swapdb, SERVER, "Lets two databases change places."),
    command("resume", 1, ADMIN | LONG | NO_MULTI, NONE, server::resume, SERVER, "Takes writes again after an error whose cause is gone."),
    command("time", 1, FAST, NONE, server::time, SERVER, "The server's time: seconds and microseconds."),
    command("info", -1, LONG, NONE, info::info, SERVER, "Facts and figures about the server."),
    command("memory", -2, READONLY | CONTAINER | NO_TOUCH, AFTER_SUBCOMMAND, inspection::memory, SERVER, "The memory that a key takes."),
    command("slowlog", -2, ADMIN | CONTAINER, NONE, monitoring::slowlog, SERVER, "Commands that took long."),
    command("latency", -2, ADMIN | CONTAINER, NONE, monitoring::latency, SERVER, "How long commands took."),
    command("config", -2, ADMIN | CONTAINER, NONE, server::config, SERVER, "Shows settings."),
    command("command", -1, CONTAINER, NONE, introspection::command, SERVER, "Describes the commands."),
    command("save", 1, ADMIN | LONG | NO_MULTI, NONE, server::save, SERVER, "Makes everything that was written survive power loss."),
    command("bgsave", -1, ADMIN | LONG | NO_MULTI, NONE, server::bgsave, SERVER, "The same as SAVE."),
    command("lastsave", 1, FAST, NONE, server::lastsave, SERVER, "When SAVE or BGSAVE last succeeded, as a Unix time."),
    command("checkpoint", 2, ADMIN | LONG | NO_MULTI, NONE, server::checkpoint, SERVER, "Makes a copy of the database in a directory."),
    command("shutdown", -1, ADMIN | NO_MULTI, NONE, server::shutdown, SERVER, "Ends the server in good order."),

    command("multi", 1, FAST, NONE, transactions::multi, TRANSACTIONS, "Begins a transaction: commands are queued until EXEC."),
    command("exec", 1, 0, NONE, transactions::exec, TRANSACTIONS, "Does the queued commands, all at one moment."),
    command("discard", 1, FAST, NONE, transactions::discard, TRANSACTIONS, "Forgets the queued commands."),
    command("watch", -2, FAST | NO_TOUCH, ALL, transactions::watch, TRANSACTIONS, "Makes the next EXEC depend on keys staying as they are."),
    command("unwatch", 1, FAST, NONE, transactions::unwatch, TRANSACTIONS, "Forgets the watched keys."),
]);
