//! INFO: facts and figures as text, in the sections that Redis's tools look for, and the store's
//! own under `archipelago`.

use std::fmt::Write as _;
use std::sync::atomic::Ordering;

use archipelago_base::ErrorKind;

use super::connection::REDIS_VERSION;
use crate::args::Args;
use crate::refusal::{Handled, Refusal};
use crate::reply::Reply;
use crate::session::Session;
use crate::shared::Stat;

type Section = fn(&Session, &mut String) -> Result<(), Refusal>;

/// Name, heading, content.
const SECTIONS: [(&str, &str, Section); 7] = [
    ("server", "Server", server),
    ("clients", "Clients", clients),
    ("memory", "Memory", memory),
    ("persistence", "Persistence", persistence),
    ("stats", "Stats", stats),
    ("keyspace", "Keyspace", keyspace),
    ("archipelago", "Archipelago", archipelago),
];

/// `INFO [section…]`; `all`, `default` and `everything` mean all. An unknown section is empty.
pub(super) fn info(session: &Session, args: Args<'_>, reply: &mut Reply) -> Handled {
    session.settle();
    let wants_all = args.len() == 1
        || (1..args.len())
            .any(|at| ["all", "default", "everything"].iter().any(|word| args.is(at, word)));
    let mut text = String::new();
    for (name, heading, section) in SECTIONS {
        if wants_all || (1..args.len()).any(|at| args.is(at, name)) {
            if !text.is_empty() {
                text.push_str("\r\n");
            }
            line(&mut text, format_args!("# {heading}"));
            section(session, &mut text)?;
        }
    }
    reply.verbatim(&text);
    Ok(())
}

fn line(text: &mut String, content: std::fmt::Arguments<'_>) {
    // Writing to a string does not fail.
    let _ = write!(text, "{content}\r\n");
}

fn server(session: &Session, text: &mut String) -> Result<(), Refusal> {
    let shared = &session.shared;
    let uptime_s = shared.now_ms().saturating_sub(shared.started_ms) / 1000;
    line(text, format_args!("redis_version:{REDIS_VERSION}"));
    line(text, format_args!("redis_mode:standalone"));
    line(text, format_args!("archipelago_version:{}", env!("CARGO_PKG_VERSION")));
    line(text, format_args!("os:{} {}", std::env::consts::OS, std::env::consts::ARCH));
    line(text, format_args!("arch_bits:{}", usize::BITS));
    line(text, format_args!("multiplexing_api:epoll"));
    line(text, format_args!("process_id:{}", std::process::id()));
    line(text, format_args!("run_id:{}", shared.run_id));
    line(text, format_args!("tcp_port:{}", shared.port));
    line(text, format_args!("uptime_in_seconds:{uptime_s}"));
    line(text, format_args!("uptime_in_days:{}", uptime_s / 86_400));
    Ok(())
}

fn clients(session: &Session, text: &mut String) -> Result<(), Refusal> {
    let shared = &session.shared;
    line(text, format_args!("connected_clients:{}", shared.clients.len()));
    line(text, format_args!("clients_peak:{}", shared.clients_peak.load(Ordering::Relaxed)));
    line(text, format_args!("maxclients:{}", shared.options.clients_max));
    line(text, format_args!("blocked_clients:0"));
    Ok(())
}

fn memory(session: &Session, text: &mut String) -> Result<(), Refusal> {
    use archipelago_base::budget::MemoryClass;
    let budget = &session.shared.options.budget;
    let limit = if budget.limit_bytes() == u64::MAX { 0 } else { budget.limit_bytes() };
    line(text, format_args!("used_memory:{}", budget.total_bytes()));
    line(text, format_args!("maxmemory:{limit}"));
    line(text, format_args!("maxmemory_policy:noeviction"));
    for class in MemoryClass::ALL {
        let (name, bytes) = (class.name(), budget.used_bytes(class));
        line(text, format_args!("used_memory_{name}:{bytes}"));
    }
    Ok(())
}

fn persistence(_: &Session, text: &mut String) -> Result<(), Refusal> {
    line(text, format_args!("loading:0"));
    line(text, format_args!("rdb_bgsave_in_progress:0"));
    line(text, format_args!("aof_enabled:1"));
    line(text, format_args!("aof_rewrite_in_progress:0"));
    Ok(())
}

fn stats(session: &Session, text: &mut String) -> Result<(), Refusal> {
    let shared = &session.shared;
    line(text, format_args!("total_connections_received:{}", shared.stat(Stat::Connections)));
    line(text, format_args!("total_commands_processed:{}", shared.stat(Stat::Commands)));
    line(text, format_args!("instantaneous_ops_per_sec:{}", ops_per_second(session)));
    line(text, format_args!("total_net_input_bytes:{}", shared.stat(Stat::InputBytes)));
    line(text, format_args!("total_net_output_bytes:{}", shared.stat(Stat::OutputBytes)));
    line(text, format_args!("rejected_connections:{}", shared.stat(Stat::Rejected)));
    line(text, format_args!("keyspace_hits:{}", shared.stat(Stat::Hits)));
    line(text, format_args!("keyspace_misses:{}", shared.stat(Stat::Misses)));
    line(text, format_args!("total_error_replies:{}", shared.stat(Stat::ErrorReplies)));
    line(text, format_args!("protocol_errors:{}", shared.stat(Stat::ProtocolErrors)));
    line(text, format_args!("acl_access_denied_auth:{}", shared.stat(Stat::Denied)));
    line(text, format_args!("http_requests_refused:{}", shared.stat(Stat::HttpRequests)));
    Ok(())
}

/// The mean rate since INFO last asked for it.
fn ops_per_second(session: &Session) -> u64 {
    let (now_ms, commands) = (session.shared.now_ms(), session.shared.stat(Stat::Commands));
    let mut last = session.shared.last_look.lock();
    let (since_ms, done) = (now_ms.saturating_sub(last.0), commands.saturating_sub(last.1));
    *last = (now_ms, commands);
    done.saturating_mul(1000) / since_ms.max(1)
}

fn keyspace(session: &Session, text: &mut String) -> Result<(), Refusal> {
    let keys = match session.store().approximate_count() {
        Err(error) if error.kind() == ErrorKind::Unsupported => return Ok(()),
        counted => counted?,
    };
    if keys > 0 {
        line(text, format_args!("db0:keys={keys},expires=0,avg_ttl=0"));
    }
    Ok(())
}

fn archipelago(session: &Session, text: &mut String) -> Result<(), Refusal> {
    for fact in session.store().info().lines() {
        line(text, format_args!("{fact}"));
    }
    Ok(())
}
