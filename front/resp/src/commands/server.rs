//! Commands about the whole server: DBSIZE, TIME, SAVE, CHECKPOINT, CONFIG, SHUTDOWN, WAIT, RESUME.

use std::path::{Component, Path};
use std::sync::atomic::Ordering;
use std::time::Duration;

use archipelago_env::descriptors;

use super::help;
use crate::args::Args;
use crate::glob::Pattern;
use crate::numbers::parse_i64;
use crate::options;
use crate::refusal::{Handled, Refusal};
use crate::reply::Reply;
use crate::session::Session;
use crate::settings::SoftOutputLimit;
use crate::slowlog;

pub(super) fn dbsize(session: &Session, _: Args<'_>, reply: &mut Reply) -> Handled {
    let keys = session.store().approximate_count()?;
    reply.integer(i64::try_from(keys).unwrap_or(i64::MAX));
    Ok(())
}

/// `RESUME`. A database that refuses writes after an error accepts them again, if the cause is
/// gone.
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

/// `SAVE`. When the reply is sent, all acknowledged writes survive power loss.
pub(super) fn save(session: &Session, _: Args<'_>, reply: &mut Reply) -> Handled {
    make_durable(session)?;
    reply.ok();
    Ok(())
}

/// `BGSAVE [SCHEDULE]`. It does the same as SAVE. It only flushes the log, so it is done when the
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

/// `LASTSAVE`. It answers when the last SAVE or BGSAVE succeeded, or when the server started.
pub(super) fn lastsave(session: &Session, _: Args<'_>, reply: &mut Reply) -> Handled {
    reply.integer(session.shared.last_save_s.load(Ordering::Relaxed) as i64);
    Ok(())
}

/// `CHECKPOINT directory`. It copies the database while other clients go on. The copy is a
/// directory in the one that the server was started with, and survives power loss when the reply is
/// sent.
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

/// `SHUTDOWN [NOSAVE|SAVE] [NOW] [FORCE]`. Acknowledged writes are safe with every option. The
/// connection closes without a reply, as clients expect.
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

/// The settings that CONFIG GET shows, under the names that clients and tools ask for.
fn settings(session: &Session) -> Vec<(&'static str, String)> {
    let options = &session.shared.options;
    let budget = options.budget.process_bytes();
    let keepalive = options.tcp_keepalive.map_or(0, |keepalive| keepalive.as_secs());
    let syncs = session.shared.store.syncs_writes();
    let settings = &session.shared.settings;
    let timeout = settings.idle_timeout().map_or(0, |timeout| timeout.as_secs().max(1));
    let soft = settings.soft_output_limit().map_or((0, 0), |soft| (soft.bytes, soft.seconds));
    let output = format!("normal {} {} {}", settings.output_bytes_max(), soft.0, soft.1);
    vec![
        ("appendonly", "yes".to_owned()),
        ("appendfsync", if syncs { "always" } else { "no" }.to_owned()),
        ("bind", String::new()),
        ("daemonize", "no".to_owned()),
        ("databases", session.shared.databases.len().to_string()),
        ("io-threads", options.worker_threads.to_string()),
        ("maxclients", settings.clients_max().to_string()),
        ("maxmemory", if budget == u64::MAX { 0 } else { budget }.to_string()),
        ("maxmemory-policy", "noeviction".to_owned()),
        ("port", session.shared.port.to_string()),
        ("proto-max-bulk-len", options.limits.bulk_bytes_max.to_string()),
        ("client-output-buffer-limit", output),
        ("client-query-buffer-limit", options.limits.request_bytes_max.to_string()),
        ("replicaof", String::new()),
        ("save", String::new()),
        ("slaveof", String::new()),
        ("tcp-keepalive", keepalive.to_string()),
        ("slowlog-log-slower-than", session.shared.slowlog.threshold_us().to_string()),
        ("slowlog-max-len", session.shared.slowlog.entries_max().to_string()),
        ("timeout", timeout.to_string()),
        ("tracking-table-max-keys", session.shared.tracking.keys_max().to_string()),
    ]
}

pub(super) fn config(session: &Session, args: Args<'_>, reply: &mut Reply) -> Handled {
    if help::answers(args, "CONFIG", reply) {
        return Ok(());
    }
    if args.is(1, "get") {
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
    if args.is(1, "resetstat") {
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
        return Err(Refusal::fixed("ERR The server is running without a config file"));
    }
    Err(Refusal::unknown_subcommand(&args.text(1), "config"))
}

/// A setting that CONFIG SET can change, with its new value.
enum NewSetting {
    SlowlogThreshold(i64),
    SlowlogEntries(usize),
    IdleTimeout(Option<Duration>),
    ClientsMax(usize),
    OutputLimits(OutputLimits),
    TrackingKeysMax(usize),
    /// The setting already has this value.
    Same,
}

/// `CONFIG SET name value…`. It changes all settings or none, because it checks every value before
/// it uses the first one. Every setting accepts the value that it has.
fn set_config(session: &Session, args: Args<'_>, reply: &mut Reply) -> Handled {
    if !args.len().is_multiple_of(2) {
        return Err(Refusal::SYNTAX);
    }
    let mut new = Vec::new();
    for at in (2..args.len()).step_by(2) {
        let name = args.text(at).to_ascii_lowercase();
        if (2..at).step_by(2).any(|other| args.is(other, &name)) {
            return Err(cannot_set(&name, "duplicate parameter"));
        }
        new.push(new_setting(session, &name, args.get(at + 1))?);
    }
    let (shared, settings) = (&session.shared, &session.shared.settings);
    for setting in new {
        match setting {
            NewSetting::SlowlogThreshold(micros) => shared.slowlog.set_threshold_us(micros),
            NewSetting::SlowlogEntries(count) => shared.slowlog.set_entries_max(count),
            NewSetting::IdleTimeout(timeout) => {
                settings.set_idle_timeout(timeout);
                shared.clients.all().iter().for_each(|client| client.wake());
            }
            NewSetting::ClientsMax(clients) => settings.set_clients_max(clients),
            NewSetting::OutputLimits(limits) => {
                settings.set_output_bytes_max(limits.hard_bytes);
                settings.set_soft_output_limit(limits.soft);
                shared.clients.all().iter().for_each(|client| client.wake());
            }
            NewSetting::TrackingKeysMax(keys) => shared.tracking.set_keys_max(keys),
            NewSetting::Same => {}
        }
    }
    reply.ok();
    Ok(())
}

fn cannot_set(name: &str, why: &str) -> Refusal {
    Refusal::said(format!("ERR CONFIG SET failed (possibly related to argument '{name}') - {why}"))
}

fn new_setting(session: &Session, name: &str, value: &[u8]) -> Result<NewSetting, Refusal> {
    let number = |least: i64, most: i64| match parse_i64(value) {
        None => Err(cannot_set(name, "argument couldn't be parsed into an integer")),
        Some(number) if (least..=most).contains(&number) => Ok(number),
        Some(_) => {
            let why = format!("argument must be between {least} and {most} inclusive");
            Err(cannot_set(name, &why))
        }
    };
    let count = |least: i64, most: i64| number(least, most).map(|number| number as usize);
    match name {
        "slowlog-log-slower-than" => Ok(NewSetting::SlowlogThreshold(number(-1, i64::MAX)?)),
        "slowlog-max-len" => Ok(NewSetting::SlowlogEntries(count(0, slowlog::ENTRIES_MAX as i64)?)),
        "timeout" => {
            let seconds = number(0, i64::from(i32::MAX))? as u64;
            let timeout = (seconds > 0).then(|| Duration::from_secs(seconds));
            Ok(NewSetting::IdleTimeout(timeout))
        }
        "maxclients" => {
            let clients = count(1, i64::from(u32::MAX))?;
            let most = descriptors::clients_max(descriptors::limit());
            if clients > most {
                let why = format!(
                    "The operating system is not able to handle the specified number of clients, \
                     try with {most}"
                );
                return Err(cannot_set(name, &why));
            }
            Ok(NewSetting::ClientsMax(clients))
        }
        "client-output-buffer-limit" => {
            output_limit(value).map(NewSetting::OutputLimits).map_err(|why| cannot_set(name, &why))
        }
        "tracking-table-max-keys" => Ok(NewSetting::TrackingKeysMax(count(0, i64::MAX)?)),
        name => match settings(session).iter().find(|(known, _)| *known == name) {
            Some((_, same)) if same.as_bytes() == value => Ok(NewSetting::Same),
            Some(_) => Err(cannot_set(name, "can't set immutable config")),
            None => Err(Refusal::said(format!(
                "ERR Unknown option or number of arguments for CONFIG SET - '{name}'"
            ))),
        },
    }
}

/// Longest time, in seconds, for which output may exceed the soft limit.
const SOFT_SECONDS_MAX: i64 = 2_147_483_647;

/// Limits of the unread output of one client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct OutputLimits {
    /// Bytes that no output may exceed; 0 for no limit.
    hard_bytes: usize,
    /// The limit that output may exceed for a time.
    soft: Option<SoftOutputLimit>,
}

/// The limits of `normal HARD SOFT SECONDS`. Other classes of clients do not exist. An error names
/// the fault.
fn output_limit(value: &[u8]) -> Result<OutputLimits, String> {
    let text = String::from_utf8_lossy(value).to_ascii_lowercase();
    let words: Vec<&str> = text.split_ascii_whitespace().collect();
    let [class, hard, soft, seconds] = words[..] else {
        return Err("Wrong number of arguments in buffer limit configuration.".to_owned());
    };
    if class != "normal" {
        return Err("Invalid client class specified in buffer limit configuration.".to_owned());
    }
    let seconds = parse_i64(seconds.as_bytes()).filter(|seconds| *seconds <= SOFT_SECONDS_MAX);
    let seconds = seconds.and_then(|seconds| u64::try_from(seconds).ok());
    let soft = match (memory_bytes(soft), seconds) {
        (Some(0), Some(0)) => Some(None),
        (Some(bytes @ 1..), Some(seconds @ 1..)) => Some(Some(SoftOutputLimit { bytes, seconds })),
        _ => None,
    };
    let hard = memory_bytes(hard);
    match hard.filter(|bytes| *bytes == 0 || *bytes >= options::OUTPUT_BYTES_LEAST).zip(soft) {
        Some((hard_bytes, soft)) => Ok(OutputLimits { hard_bytes, soft }),
        None => Err(format!(
            "Error in hard, soft or soft_seconds setting in buffer limit configuration. The hard \
             limit is 0 or at least {} bytes here. The soft limit and its seconds are both 0, or \
             none of them is, and the seconds are at most {SOFT_SECONDS_MAX}.",
            options::OUTPUT_BYTES_LEAST
        )),
    }
}

/// Parses a number of bytes as Redis does: `1048576`, `1024kb` or `1m`.
fn memory_bytes(text: &str) -> Option<usize> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let unit: usize = match &text[digits.len()..] {
        "" | "b" => 1,
        "k" => 1000,
        "kb" => 1 << 10,
        "m" => 1_000_000,
        "mb" => 1 << 20,
        "g" => 1_000_000_000,
        "gb" => 1 << 30,
        _ => return None,
    };
    usize::try_from(parse_i64(digits.as_bytes())?).ok()?.checked_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::{OutputLimits, SoftOutputLimit, memory_bytes, output_limit};

    #[test]
    fn amount_of_memory_may_have_a_unit() {
        for (text, bytes) in [("0", 0), ("7", 7), ("2k", 2000), ("2kb", 2048), ("1gb", 1 << 30)] {
            assert_eq!(memory_bytes(text), Some(bytes), "{text}");
        }
        for text in ["", "k", "-1", "1x", "1 k", "9223372036854775807gb"] {
            assert_eq!(memory_bytes(text), None, "{text}");
        }
    }

    #[test]
    fn output_limit_accepts_limits_of_normal_clients() {
        let limits = |hard_bytes, soft| Ok(OutputLimits { hard_bytes, soft });
        let soft = Some(SoftOutputLimit { bytes: 1 << 20, seconds: 60 });
        assert_eq!(output_limit(b"normal 2MB 0 0"), limits(2 << 20, None));
        assert_eq!(output_limit(b"normal 0 0 0"), limits(0, None));
        assert_eq!(output_limit(b"normal 2mb 1mb 60"), limits(2 << 20, soft));
        assert_eq!(output_limit(b"normal 0 1048576 60"), limits(0, soft));
        for wrong in [
            "normal 1 0 0",
            "normal 2mb 1mb 0",
            "normal 2mb 0 60",
            "normal 2mb 1mb -1",
            "normal 2mb 1mb 2147483648",
            "normal 2mb 1xb 60",
            "pubsub 2mb 0 0",
            "normal 2mb",
            "",
        ] {
            assert!(output_limit(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }
}
