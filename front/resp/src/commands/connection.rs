//! Commands about the connection itself: PING, ECHO, HELLO, AUTH, ACL, CLIENT, QUIT, RESET.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{help, tracking};
use crate::args::Args;
use crate::clients::{Client, Names};
use crate::numbers::parse_i64;
use crate::refusal::{Handled, Refusal};
use crate::reply::{Reply, Version};
use crate::session::{DEFAULT_USER, ReplyMode, Session};

/// The version of Redis whose behaviour the server follows. INFO and HELLO show it, and clients
/// enable features by it.
pub(crate) const REDIS_VERSION: &str = "7.2.0";

const NO_PASSWORD: Refusal = Refusal::fixed(
    "ERR AUTH <password> called without any password configured for the default user. \
     Are you sure your configuration is correct?",
);

const HELLO_NEEDS_AUTH: Refusal = Refusal::fixed(
    "NOAUTH HELLO must be called with the client already authenticated, otherwise the \
     HELLO <proto> AUTH <user> <pass> option can be used to authenticate the client and select the \
     RESP protocol version at the same time",
);

pub(super) fn ping(_: &Session, args: Args<'_>, reply: &mut Reply) -> Handled {
    match args.len() {
        1 => reply.simple("PONG"),
        2 => reply.bulk(args.get(1)),
        _ => return Err(Refusal::arity("ping")),
    }
    Ok(())
}

pub(super) fn echo(_: &Session, args: Args<'_>, reply: &mut Reply) -> Handled {
    reply.bulk(args.get(1));
    Ok(())
}

/// `AUTH [user] password`.
pub(super) fn auth(session: &Session, args: Args<'_>, reply: &mut Reply) -> Handled {
    let (user, password) = match args.len() {
        2 if session.shared.options.password.is_none() => return Err(NO_PASSWORD),
        2 => (DEFAULT_USER, args.get(1)),
        3 => (args.get(1), args.get(2)),
        _ => return Err(Refusal::SYNTAX),
    };
    session.log_in(user, password)?;
    reply.ok();
    Ok(())
}

/// `ACL WHOAMI` and `ACL USERS`. There is one user, and this user may run every command.
pub(super) fn acl(_: &Session, args: Args<'_>, reply: &mut Reply) -> Handled {
    if help::answers(args, "ACL", reply) {
        return Ok(());
    }
    if args.is(1, "users") {
        reply.array(1);
    }
    reply.bulk(DEFAULT_USER);
    Ok(())
}

pub(super) fn quit(session: &Session, _: Args<'_>, reply: &mut Reply) -> Handled {
    session.closing.set(true);
    reply.ok();
    Ok(())
}

pub(super) fn reset(session: &Session, _: Args<'_>, reply: &mut Reply) -> Handled {
    session.transaction.forget(session);
    session.end_tracking();
    session.set_no_touch(false);
    session.select(0);
    use_version(session, reply, Version::Resp2);
    session.log_out();
    session.client.names.lock().name.clear();
    session.reply_mode.set(ReplyMode::On);
    reply.simple("RESET");
    Ok(())
}

fn use_version(session: &Session, reply: &mut Reply, version: Version) {
    reply.set_version(version);
    session.client.version.store(version.number(), Ordering::Relaxed);
}

/// `HELLO [2|3 [AUTH user password] [SETNAME name]]`. The command checks all arguments before it
/// changes anything.
pub(super) fn hello(session: &Session, args: Args<'_>, reply: &mut Reply) -> Handled {
    let version = match args.try_get(1) {
        None => reply.version(),
        Some(b"2") => Version::Resp2,
        Some(b"3") => Version::Resp3,
        Some(other) if parse_i64(other).is_none() => {
            return Err(Refusal::fixed("ERR Protocol version is not an integer or out of range"));
        }
        Some(_) => return Err(Refusal::fixed("NOPROTO unsupported protocol version")),
    };
    if version == Version::Resp2 && session.tracking.get().is_on() {
        return Err(Refusal::fixed(
            "ERR RESP2 has no messages to tell of tracked keys: send CLIENT TRACKING OFF before HELLO 2",
        ));
    }
    let (mut at, mut name, mut login) = (2, None, None);
    while at < args.len() {
        if args.is(at, "auth") && at + 2 < args.len() {
            login = Some((args.get(at + 1), args.get(at + 2)));
            at += 3;
        } else if args.is(at, "setname") && at + 1 < args.len() {
            name = Some(client_text("name", args.get(at + 1))?);
            at += 2;
        } else {
            let option = args.text(at);
            return Err(Refusal::said(format!("ERR Syntax error in HELLO option '{option}'")));
        }
    }
    if let Some((user, password)) = login {
        session.log_in(user, password)?;
    }
    if !session.is_authenticated() {
        return Err(HELLO_NEEDS_AUTH);
    }
    if let Some(name) = name {
        session.client.names.lock().name = name;
    }
    use_version(session, reply, version);
    reply.map(7);
    for (key, value) in [("server", "redis"), ("version", REDIS_VERSION)] {
        reply.bulk(key.as_bytes());
        reply.bulk(value.as_bytes());
    }
    for (key, value) in [("proto", version.number()), ("id", session.client.id as i64)] {
        reply.bulk(key.as_bytes());
        reply.integer(value);
    }
    for (key, value) in [("mode", "standalone"), ("role", "master")] {
        reply.bulk(key.as_bytes());
        reply.bulk(value.as_bytes());
    }
    reply.bulk(b"modules");
    reply.array(0);
    Ok(())
}

/// The text, if CLIENT LIST can show it: printable ASCII without blanks.
fn client_text(what: &str, bytes: &[u8]) -> Result<String, Refusal> {
    let fine = bytes.len() <= 1024 && bytes.iter().all(u8::is_ascii_graphic);
    let text = std::str::from_utf8(bytes).ok().filter(|_| fine);
    text.map(str::to_owned).ok_or_else(|| {
        Refusal::said(format!(
            "ERR Client {what} cannot contain spaces, newlines or special characters."
        ))
    })
}

pub(super) fn client(session: &Session, args: Args<'_>, reply: &mut Reply) -> Handled {
    if help::answers(args, "CLIENT", reply) {
        return Ok(());
    }
    let word = args.text(1).to_ascii_lowercase();
    let client = &session.client;
    match (&word[..], args.len()) {
        ("id", 2) => reply.integer(client.id as i64),
        ("getname", 2) => {
            let name = client.names.lock().name.clone();
            reply.bulk_or_null((!name.is_empty()).then_some(name.as_bytes()));
        }
        ("setname", 3) => {
            client.names.lock().name = client_text("names", args.get(2))?;
            reply.ok();
        }
        ("setinfo", 4) => {
            set_info(&mut client.names.lock(), args)?;
            reply.ok();
        }
        ("info", 2) => {
            reply.verbatim(&(client.line(session.shared.now_ms(), session.shared.commands) + "\n"));
        }
        ("list", _) => list(session, args, reply)?,
        ("no-evict" | "no-touch", 3) if args.is(2, "on") || args.is(2, "off") => {
            if word == "no-touch" {
                session.set_no_touch(args.is(2, "on"));
            }
            reply.ok();
        }
        ("no-evict" | "no-touch", 3) => return Err(Refusal::SYNTAX),
        ("reply", 3) => set_reply_mode(session, args, reply)?,
        ("kill", 3) => kill_one(session, args, reply)?,
        ("kill", 4..) => kill(session, args, reply)?,
        ("tracking", 3..) => tracking::tracking(session, args, reply)?,
        ("caching", 3) => tracking::caching(session, args, reply)?,
        ("trackinginfo", 2) => tracking::tracking_info(session, reply),
        ("getredir", 2) => reply.integer(if session.tracking.get().is_on() { 0 } else { -1 }),
        _ => return Err(Refusal::unknown_subcommand(&word, "client")),
    }
    Ok(())
}

fn set_info(names: &mut Names, args: Args<'_>) -> Handled {
    if args.is(2, "lib-name") {
        names.lib_name = client_text("lib-name", args.get(3))?;
    } else if args.is(2, "lib-ver") {
        names.lib_version = client_text("lib-ver", args.get(3))?;
    } else {
        let option = args.text(2);
        return Err(Refusal::said(format!("ERR Unrecognized option '{option}'")));
    }
    Ok(())
}

fn set_reply_mode(session: &Session, args: Args<'_>, reply: &mut Reply) -> Handled {
    if args.is(2, "on") {
        session.reply_mode.set(ReplyMode::On);
        reply.ok();
    } else if args.is(2, "off") {
        session.reply_mode.set(ReplyMode::Off);
    } else if args.is(2, "skip") {
        session.reply_mode.set(match session.reply_mode.get() {
            // SKIP within EXEC concerns the command after EXEC, however often it occurs.
            ReplyMode::SkipNext if !session.is_inside() => ReplyMode::SkipAgain,
            ReplyMode::On => ReplyMode::SkipNext,
            mode => mode,
        });
    } else {
        return Err(Refusal::SYNTAX);
    }
    Ok(())
}

/// `CLIENT LIST [TYPE type | ID id…]`.
fn list(session: &Session, args: Args<'_>, reply: &mut Reply) -> Handled {
    let mut clients = session.shared.clients.all();
    if args.len() > 3 && args.is(2, "id") {
        let mut ids = Vec::new();
        for index in 3..args.len() {
            let invalid = |_| Refusal::fixed("ERR Invalid client ID");
            ids.push(args.integer(index).map_err(invalid)? as u64);
        }
        clients.retain(|client| ids.contains(&client.id));
    } else if args.len() == 4 && args.is(2, "type") {
        match args.text(3).to_ascii_lowercase().as_str() {
            "normal" => {}
            "master" | "replica" | "slave" | "pubsub" => clients.clear(),
            other => return Err(Refusal::said(format!("ERR Unknown client type '{other}'"))),
        }
    } else if args.len() > 2 {
        return Err(Refusal::SYNTAX);
    }
    let now_ms = session.shared.now_ms();
    let commands = session.shared.commands;
    let line = |client: &Arc<Client>| client.line(now_ms, commands) + "\n";
    let lines: Vec<String> = clients.iter().map(line).collect();
    reply.verbatim(&lines.concat());
    Ok(())
}

/// `CLIENT KILL address`. The other connection finishes the commands that it has received.
fn kill_one(session: &Session, args: Args<'_>, reply: &mut Reply) -> Handled {
    let target = args.text(2);
    let all = session.shared.clients.all();
    let Some(client) = all.iter().find(|client| client.socket.peer.to_string() == target) else {
        return Err(Refusal::fixed("ERR No such client"));
    };
    client.ask_to_stop();
    reply.ok();
    Ok(())
}

/// Filters of CLIENT KILL. A client must match each filter that is given.
#[derive(Default)]
struct KillFilter {
    id: Option<u64>,
    peer: Option<String>,
    local: Option<String>,
    /// A type was given that no client of this server has.
    fits_none: bool,
    /// Lowest age of the connection in seconds.
    age_s: Option<u64>,
    /// Whether CLIENT KILL may close its own connection.
    kills_self: bool,
}

impl KillFilter {
    fn parse(args: Args<'_>) -> Result<Self, Refusal> {
        let mut filter = Self::default();
        if !args.len().is_multiple_of(2) {
            return Err(Refusal::SYNTAX);
        }
        for at in (2..args.len()).step_by(2) {
            let value = args.text(at + 1);
            let positive = |what: &str| match args.integer(at + 1) {
                Ok(number @ 1..) => Ok(number as u64),
                _ => Err(Refusal::said(format!("ERR {what} should be greater than 0"))),
            };
            if args.is(at, "id") {
                filter.id = Some(positive("client-id")?);
            } else if args.is(at, "addr") {
                filter.peer = Some(value);
            } else if args.is(at, "laddr") {
                filter.local = Some(value);
            } else if args.is(at, "maxage") {
                filter.age_s = Some(positive("maxage")?);
            } else if args.is(at, "type") {
                filter.fits_none |= match &value.to_ascii_lowercase()[..] {
                    "normal" => false,
                    "master" | "replica" | "slave" | "pubsub" => true,
                    _ => {
                        return Err(Refusal::said(format!("ERR Unknown client type '{value}'")));
                    }
                };
            } else if args.is(at, "user") {
                if value != "default" {
                    return Err(Refusal::said(format!("ERR No such user '{value}'")));
                }
            } else if args.is(at, "skipme") {
                filter.kills_self = match &value.to_ascii_lowercase()[..] {
                    "yes" => false,
                    "no" => true,
                    _ => return Err(Refusal::SYNTAX),
                };
            } else {
                return Err(Refusal::SYNTAX);
            }
        }
        Ok(filter)
    }

    fn fits(&self, client: &Client, now_ms: u64) -> bool {
        let age_s = now_ms.saturating_sub(client.connected_ms) / 1000;
        !self.fits_none
            && self.id.is_none_or(|id| id == client.id)
            && self.peer.as_ref().is_none_or(|peer| *peer == client.socket.peer.to_string())
            && self.local.as_ref().is_none_or(|local| *local == client.socket.local.to_string())
            && self.age_s.is_none_or(|least| age_s >= least)
    }
}

/// `CLIENT KILL [ID id] [ADDR address] [LADDR address] [TYPE type] [USER name] [MAXAGE seconds]
/// [SKIPME yes|no]`. It answers how many clients it closes. They finish the commands that they have
/// sent.
fn kill(session: &Session, args: Args<'_>, reply: &mut Reply) -> Handled {
    let filter = KillFilter::parse(args)?;
    let now_ms = session.shared.now_ms();
    let mut killed = 0;
    for client in session.shared.clients.all() {
        let is_self = client.id == session.client.id;
        if filter.fits(&client, now_ms) && (filter.kills_self || !is_self) {
            killed += 1;
            match is_self {
                // The connection sends the reply before it closes.
                true => session.closing.set(true),
                false => client.ask_to_stop(),
            }
        }
    }
    reply.count(killed);
    Ok(())
}
