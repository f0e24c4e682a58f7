//! Commands about the whole server: DBSIZE, FLUSHDB, TIME, CONFIG, SHUTDOWN, WAIT.

use std::path::{Component, Path};
use std::sync::atomic::Ordering;

use super::help::{self, unknown_subcommand};
use crate::args::Args;
use crate::glob::Pattern;
use crate::numbers::parse_i64;
use crate::refusal::{Handled, Refusal};
use crate::reply::Reply;
use crate::session::Session;
use crate::slowlog;
use crate::store::Op;

pub(super) fn dbsize(session: &Session, _: Args<'_>, reply: &mut Reply) -> Handled {
    let keys = session.store().approximate_count()?;
    reply.integer(i64::try_from(keys).unwrap_or(i64::MAX));
    Ok(())
}

/// `FLUSHDB [ASYNC|SYNC]`: one range delete, the same either way.
pub(super) fn flush(session: &Session, args: Args<'_>, reply: &mut Reply) -> Handled {
    let fine = args.len() == 1 || args.len() == 2 && (args.is(1, "async") || args.is(1, "sync"));
    if !fine {
        return Err(Refusal::SYNTAX);
    }
    let _guard = session.lock_all();
    session.write(&[Op::DeleteRange { start: b"", end: None }])?;
    reply.ok();
    Ok(())
}

/// `RESUME`: a database that refuses writes after an error takes them again, if the cause is gone.
pub(super) fn resume(session: &Session, _: Args<'_>, reply: &mut Reply) -> Handled {
    session.shared.store.resume()?;
    reply.ok();
    Ok(())
}

pub(super) fn time(session: &Session, _: Args<'_>, reply: &mut Reply) -> Handled {
    let now_ms = session.shared.now_ms();
    reply.array(2);
    reply.bulk((now_ms / 1000).to_string().as_bytes());
    reply.bulk((now_ms % 1000 * 1000).to_string().as_bytes());
    Ok(())
}

pub(super) fn wait(_: &Session, args: Args<'_>, reply: &mut Reply) -> Handled {
    args.integer(1)?;
    if args.integer(2)? < 0 {
        return Err(Refusal::fixed("ERR timeout is negative"));
    }
    reply.integer(0);
    Ok(())
}

/// `SAVE`: everything that was acknowledged before survives power loss when the reply is sent.
pub(super) fn save(session: &Session, _: Args<'_>, reply: &mut Reply) -> Handled {
    make_durable(session)?;
    reply.ok();
    Ok(())
}

/// `BGSAVE [SCHEDULE]`: the same. It takes no longer than a flush of the log, so it is done when the
/// reply is sent.
pub(super) fn bgsave(session: &Session, args: Args<'_>, reply: &mut Reply) -> Handled {
    if args.len() > 2 || (args.len() == 2 && !args.is(1, "schedule")) {
        return Err(Refusal::SYNTAX);
    }
    make_durable(session)?;
    reply.simple("Background saving started");
    Ok(())
}

fn make_durable(session: &Session) -> Handled {
    let shared = &session.shared;
    let at_s = shared.now_ms() / 1000;
    let done = shared.store.sync();
    shared.last_save_failed.store(done.is_err(), Ordering::Relaxed);
    done?;
    shared.last_save_s.store(at_s, Ordering::Relaxed);
    Ok(())
}

/// `LASTSAVE`: when the last SAVE or BGSAVE succeeded, or the server started.
pub(super) fn lastsave(session: &Session, _: Args<'_>, reply: &mut Reply) -> Handled {
    reply.integer(session.shared.last_save_s.load(Ordering::Relaxed) as i64);
    Ok(())
}

/// `CHECKPOINT directory`: a copy of the served database in a directory below the one that the
/// server was given for that, made while other clients go on. It survives power loss when the reply
/// is sent.
pub(super) fn checkpoint(session: &Session, args: Args<'_>, reply: &mut Reply) -> Handled {
    let Some(base) = &session.shared.options.checkpoints else {
        return Err(Refusal::fixed(
            "ERR checkpoints are not allowed: start the server with --checkpoints DIR",
        ));
    };
    let refused = || {
        Refusal::said(format!(
            "ERR a checkpoint is named by a path below {}, without '..': CHECKPOINT monday",
            base.display()
        ))
    };
    let text = std::str::from_utf8(args.get(1)).map_err(|_| refused())?;
    let named = Path::new(text);
    let below = named.strip_prefix(base).unwrap_or(named);
    let is_plain = |part: Component<'_>| matches!(part, Component::Normal(_));
    if below.as_os_str().is_empty() || !below.components().all(is_plain) {
        return Err(refused());
    }
    session.shared.store.checkpoint(&base.join(below))?;
    reply.ok();
    Ok(())
}

/// `SHUTDOWN [NOSAVE|SAVE] [NOW] [FORCE]`: what is acknowledged is safe whatever is said. Closes
/// without a reply, as clients expect.
pub(super) fn shutdown(session: &Session, args: Args<'_>, _: &mut Reply) -> Handled {
    for index in 1..args.len() {
        if args.is(index, "abort") {
            return Err(Refusal::fixed("ERR No shutdown in progress."));
        }
        if !["nosave", "save", "now", "force"].iter().any(|word| args.is(index, word)) {
            return Err(Refusal::SYNTAX);
        }
    }
    session.closing.set(true);
    session.shared.shutdown_request.send();
    Ok(())
}

/// What CONFIG GET shows: settings by the names that clients and tools ask for.
fn settings(session: &Session) -> Vec<(&'static str, String)> {
    let options = &session.shared.options;
    let budget = options.budget.limit_bytes();
    let keepalive = options.tcp_keepalive.map_or(0, |keepalive| keepalive.as_secs());
    let syncs = session.shared.store.syncs_writes();
    let timeout = options.idle_timeout.map_or(0, |timeout| timeout.as_secs().max(1));
    vec![
        ("appendonly", "yes".to_owned()),
        ("appendfsync", if syncs { "always" } else { "no" }.to_owned()),
        ("bind", String::new()),
        ("daemonize", "no".to_owned()),
        ("databases", "1".to_owned()),
        ("io-threads", options.worker_threads.to_string()),
        ("maxclients", options.clients_max.to_string()),
        ("maxmemory", if budget == u64::MAX { 0 } else { budget }.to_string()),
        ("maxmemory-policy", "noeviction".to_owned()),
        ("port", session.shared.port.to_string()),
        ("proto-max-bulk-len", options.limits.bulk_bytes_max.to_string()),
        ("client-output-buffer-limit", format!("normal {} 0 0", options.output_bytes_max)),
        ("client-query-buffer-limit", options.limits.request_bytes_max.to_string()),
        ("replicaof", String::new()),
        ("save", String::new()),
        ("slaveof", String::new()),
        ("tcp-keepalive", keepalive.to_string()),
        ("slowlog-log-slower-than", session.shared.slowlog.threshold_us().to_string()),
        ("slowlog-max-len", session.shared.slowlog.entries_max().to_string()),
        ("timeout", timeout.to_string()),
    ]
}

pub(super) fn config(session: &Session, args: Args<'_>, reply: &mut Reply) -> Handled {
    if help::answers(args, "CONFIG", reply) {
        return Ok(());
    }
    if args.is(1, "get") {
        if args.len() < 3 {
            return Err(Refusal::arity("config|get"));
        }
        let mut shown = settings(session);
        let mut is_asked_for = vec![false; shown.len()];
        for pattern in args.from(2) {
            let pattern = Pattern::new(&pattern.to_ascii_lowercase())?;
            for ((name, _), asked) in shown.iter().zip(&mut is_asked_for) {
                *asked |= pattern.matches(name.as_bytes());
            }
        }
        let mut asked = is_asked_for.into_iter();
        shown.retain(|_| asked.next().unwrap_or(false));
        reply.map(shown.len());
        for (name, value) in shown {
            reply.bulk(name.as_bytes());
            reply.bulk(value.as_bytes());
        }
        return Ok(());
    }
    if args.is(1, "resetstat") && args.len() == 2 {
        session.shared.stats.reset();
        session.shared.command_stats.reset();
        session.shared.last_look.lock().1 = 0;
        reply.ok();
        return Ok(());
    }
    if args.is(1, "set") {
        return set_config(session, args, reply);
    }
    if args.is(1, "rewrite") {
        return Err(Refusal::fixed(
            "ERR The server is running without a config file: settings are flags of its start",
        ));
    }
    Err(unknown_subcommand(args, "CONFIG"))
}

/// A setting that can be changed while the server runs, with its new value.
enum NewSetting {
    SlowlogThreshold(i64),
    SlowlogEntries(usize),
    /// It has that value.
    Same,
}

/// `CONFIG SET name value…`: all or none. The value that a setting has is accepted for every setting.
fn set_config(session: &Session, args: Args<'_>, reply: &mut Reply) -> Handled {
    if args.len() < 4 || !args.len().is_multiple_of(2) {
        return Err(Refusal::arity("config|set"));
    }
    let mut new = Vec::new();
    for at in (2..args.len()).step_by(2) {
        let name = args.get(at);
        if (2..at).step_by(2).any(|before| args.get(before).eq_ignore_ascii_case(name)) {
            let name = args.text(at).to_ascii_lowercase();
            return Err(config_set_failed(&name, "duplicate parameter"));
        }
        new.push(new_setting(session, args, at)?);
    }
    for setting in new {
        match setting {
            NewSetting::SlowlogThreshold(micros) => {
                session.shared.slowlog.set_threshold_us(micros);
            }
            NewSetting::SlowlogEntries(count) => session.shared.slowlog.set_entries_max(count),
            NewSetting::Same => {}
        }
    }
    reply.ok();
    Ok(())
}

fn new_setting(session: &Session, args: Args<'_>, at: usize) -> Result<NewSetting, Refusal> {
    let name = args.text(at).to_ascii_lowercase();
    let failed = |why: &str| config_set_failed(&name, why);
    let number = |least: i64, most: i64| match parse_i64(args.get(at + 1)) {
        Some(number) if (least..=most).contains(&number) => Ok(number),
        _ => Err(failed(&format!("argument must be between {least} and {most} inclusive"))),
    };
    match &name[..] {
        "slowlog-log-slower-than" => Ok(NewSetting::SlowlogThreshold(number(-1, i64::MAX)?)),
        "slowlog-max-len" => {
            let count = number(0, slowlog::ENTRIES_MAX as i64)?;
            Ok(NewSetting::SlowlogEntries(count as usize))
        }
        name => match settings(session).iter().find(|(known, _)| *known == name) {
            Some((_, value)) if value.as_bytes() == args.get(at + 1) => Ok(NewSetting::Same),
            Some(_) => {
                Err(failed("can't set immutable config: restart the server with another flag"))
            }
            None => Err(Refusal::said(format!(
                "ERR Unknown option or number of arguments for CONFIG SET - '{name}'"
            ))),
        },
    }
}

fn config_set_failed(name: &str, why: &str) -> Refusal {
    Refusal::said(format!("ERR CONFIG SET failed (possibly related to argument '{name}') - {why}"))
}
