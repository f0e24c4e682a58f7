//! SLOWLOG and LATENCY: which commands took long.

use super::{find, help};
use crate::args::Args;
use crate::command_stats::BUCKETS;
use crate::refusal::{Handled, Refusal};
use crate::reply::Reply;
use crate::session::Session;

/// Entries that SLOWLOG GET answers without a count.
const SLOWLOG_COUNT: usize = 10;

/// `SLOWLOG GET [count] | LEN | RESET`.
pub(super) fn slowlog(session: &Session, args: Args<'_>, reply: &mut Reply) -> Handled {
    if help::answers(args, "SLOWLOG", reply) {
        return Ok(());
    }
    let log = &session.shared.slowlog;
    match (&args.text(1).to_ascii_lowercase()[..], args.len()) {
        ("len", 2) => reply.count(log.len()),
        ("reset", 2) => {
            log.clear();
            reply.ok();
        }
        ("get", 2 | 3) => {
            let count = match args.len() {
                2 => SLOWLOG_COUNT,
                _ => match args.integer(2)? {
                    -1 => usize::MAX,
                    count => usize::try_from(count).map_err(|_| {
                        Refusal::fixed("ERR count should be greater than or equal to -1")
                    })?,
                },
            };
            let entries = log.newest(count);
            reply.array(entries.len());
            for entry in entries {
                reply.array(6);
                reply.integer(entry.id as i64);
                reply.integer(entry.at_s as i64);
                reply.integer(entry.micros as i64);
                reply.array(entry.args.len());
                entry.args.iter().for_each(|arg| reply.bulk(arg));
                reply.bulk(entry.client.as_bytes());
                reply.bulk(entry.client_name.as_bytes());
            }
        }
        ("get", _) => return Err(Refusal::arity("slowlog|get")),
        (word, _) => return Err(Refusal::unknown_subcommand(word, "slowlog")),
    }
    Ok(())
}

/// `LATENCY HISTOGRAM [command…] | LATEST | HISTORY event | RESET [event…]`. There is no monitor
/// of events, so LATEST and HISTORY answer nothing, as Redis does until its monitor is enabled.
pub(super) fn latency(session: &Session, args: Args<'_>, reply: &mut Reply) -> Handled {
    if help::answers(args, "LATENCY", reply) {
        return Ok(());
    }
    match &args.text(1).to_ascii_lowercase()[..] {
        "latest" | "history" => reply.array(0),
        "reset" => reply.integer(0),
        "histogram" => histogram(session, args, reply),
        word => return Err(Refusal::unknown_subcommand(word, "latency")),
    }
    Ok(())
}

fn histogram(session: &Session, args: Args<'_>, reply: &mut Reply) {
    let stats = &session.shared.command_stats;
    let named: Vec<_> = args.from(2).filter_map(find).collect();
    let wanted = |name: &str| args.len() == 2 || named.iter().any(|command| command.name == name);
    let shown: Vec<_> = stats
        .commands()
        .filter(|(command, figures)| figures.calls > 0 && wanted(command.name))
        .collect();
    reply.map(shown.len());
    for (command, figures) in shown {
        reply.bulk(command.name.as_bytes());
        reply.map(2);
        reply.bulk(b"calls");
        reply.integer(figures.calls as i64);
        reply.bulk(b"histogram_usec");
        // Sums up to each power of two, from the first that counts anything to the last.
        let counts = |at: &usize| figures.buckets[*at] > 0;
        let first = (0..BUCKETS).find(counts).unwrap_or_default();
        let last = (0..BUCKETS).rfind(counts).unwrap_or_default();
        reply.map(last - first + 1);
        let mut sum = 0;
        for at in first..=last {
            sum += figures.buckets[at];
            reply.integer(1 << at);
            reply.integer(sum as i64);
        }
    }
}
