//! INFO: facts and figures as text. The sections have the names that tools for Redis expect. The
//! section `archipelago` has the facts of the store.

use std::fmt::Write as _;
use std::sync::atomic::Ordering;

use archipelago_base::ErrorKind;
use archipelago_env::host;

use super::connection::REDIS_VERSION;
use crate::args::Args;
use crate::clients::Client;
use crate::refusal::{Handled, Refusal};
use crate::reply::Reply;
use crate::server_state::Stat;
use crate::session::Session;
use crate::store::Keyspace;

type Section = fn(&Session, &mut String) -> Result<(), Refusal>;

/// A section: its name, its heading, whether INFO shows it by default, and its content.
const SECTIONS: [(&str, &str, bool, Section); 13] = [
    ("server", "Server", true, server),
    ("clients", "Clients", true, clients),
    ("memory", "Memory", true, memory),
    ("persistence", "Persistence", true, persistence),
    ("stats", "Stats", true, stats),
    ("replication", "Replication", true, replication),
    ("cpu", "CPU", true, cpu),
    ("commandstats", "Commandstats", false, commandstats),
    ("errorstats", "Errorstats", true, errorstats),
    ("latencystats", "Latencystats", false, latencystats),
    ("cluster", "Cluster", true, cluster),
    ("keyspace", "Keyspace", true, keyspace),
    ("archipelago", "Archipelago", true, archipelago),
];

/// `INFO [section…]`. `all` and `everything` show all sections. `default`, and no name at all,
/// leave out the figures of single commands. An unknown section is empty.
pub(super) fn info(session: &Session, args: Args<'_>, reply: &mut Reply) -> Handled {
    session.settle();
    let named = |word: &str| (1..args.len()).any(|at| args.is(at, word));
    let wants_all = named("all") || named("everything");
    let wants_default = args.len() == 1 || named("default");
    let mut text = String::new();
    for (name, heading, is_default, section) in SECTIONS {
        if wants_all || (wants_default && is_default) || named(name) {
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
    line(text, format_args!("process_supervised:no"));
    line(text, format_args!("run_id:{}", shared.run_id));
    line(text, format_args!("tcp_port:{}", shared.port));
    line(text, format_args!("server_time_usec:{}", shared.now_ms().saturating_mul(1000)));
    line(text, format_args!("uptime_in_seconds:{uptime_s}"));
    line(text, format_args!("uptime_in_days:{}", uptime_s / 86_400));
    Ok(())
}

fn clients(session: &Session, text: &mut String) -> Result<(), Refusal> {
    let shared = &session.shared;
    line(text, format_args!("connected_clients:{}", shared.clients.len()));
    line(text, format_args!("clients_peak:{}", shared.clients_peak.load(Ordering::Relaxed)));
    line(text, format_args!("maxclients:{}", shared.settings.clients_max()));
    let all = shared.clients.all();
    let largest = |bytes: fn(&Client) -> u64| all.iter().map(|client| bytes(client)).max();
    let input = largest(|client| client.input_bytes.load(Ordering::Relaxed));
    let output = largest(|client| client.output_bytes.load(Ordering::Relaxed));
    line(text, format_args!("client_recent_max_input_buffer:{}", input.unwrap_or(0)));
    line(text, format_args!("client_recent_max_output_buffer:{}", output.unwrap_or(0)));
    line(text, format_args!("blocked_clients:0"));
    line(text, format_args!("tracking_clients:{}", shared.tracking.figures().clients));
    line(text, format_args!("pubsub_clients:0"));
    let watched = all.iter().map(|client| client.watched.load(Ordering::Relaxed));
    line(text, format_args!("watching_clients:{}", watched.clone().filter(|&n| n > 0).count()));
    line(text, format_args!("total_watched_keys:{}", watched.sum::<usize>()));
    Ok(())
}

fn memory(session: &Session, text: &mut String) -> Result<(), Refusal> {
    use archipelago_base::budget::MemoryClass;
    let budget = &session.shared.options.budget;
    let limit = or_zero(budget.process_bytes());
    let used = budget.total_bytes();
    let resident = host::process_usage().map_or(0, |usage| usage.resident_bytes);
    let peak = &session.shared.resident_peak;
    let peak = peak.fetch_max(resident, Ordering::Relaxed).max(resident);
    line(text, format_args!("used_memory:{used}"));
    line(text, format_args!("used_memory_human:{}", human(used)));
    line(text, format_args!("used_memory_rss:{resident}"));
    line(text, format_args!("used_memory_rss_human:{}", human(resident)));
    line(text, format_args!("used_memory_peak:{peak}"));
    line(text, format_args!("used_memory_peak_human:{}", human(peak)));
    let system = host::memory_bytes().unwrap_or(0);
    line(text, format_args!("total_system_memory:{system}"));
    line(text, format_args!("total_system_memory_human:{}", human(system)));
    let ratio = resident as f64 / used.max(1) as f64;
    line(text, format_args!("mem_fragmentation_ratio:{ratio:.2}"));
    line(text, format_args!("maxmemory:{limit}"));
    line(text, format_args!("maxmemory_human:{}", human(limit)));
    line(text, format_args!("maxmemory_policy:noeviction"));
    line(text, format_args!("maxmemory_budget:{}", or_zero(budget.limit_bytes())));
    line(text, format_args!("maxmemory_uncounted:{}", budget.uncounted_bytes()));
    for (name, bytes) in session.store().memory_parts() {
        line(text, format_args!("maxmemory_{name}:{bytes}"));
    }
    let shares = &session.shared.memory;
    for (name, share) in [
        ("incoming", &shares.incoming),
        ("working", &shares.working),
        ("outgoing", &shares.outgoing),
        ("transactions", &shares.transactions),
    ] {
        line(text, format_args!("request_memory_{name}:{}", share.held_bytes()));
        line(text, format_args!("request_memory_{name}_max:{}", or_zero(share.limit_bytes())));
    }
    for class in MemoryClass::ALL {
        let (name, bytes) = (class.name(), budget.used_bytes(class));
        line(text, format_args!("used_memory_{name}:{bytes}"));
    }
    Ok(())
}

/// A number of bytes for INFO, which shows 0 if there is no limit.
fn or_zero(bytes: u64) -> u64 {
    if bytes == u64::MAX { 0 } else { bytes }
}

fn persistence(session: &Session, text: &mut String) -> Result<(), Refusal> {
    let shared = &session.shared;
    let last_save_s = shared.last_save_s.load(Ordering::Relaxed);
    let failed = shared.last_save_failed.load(Ordering::Relaxed);
    line(text, format_args!("loading:0"));
    line(text, format_args!("rdb_bgsave_in_progress:0"));
    line(text, format_args!("rdb_last_save_time:{last_save_s}"));
    line(text, format_args!("rdb_last_bgsave_status:{}", if failed { "err" } else { "ok" }));
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
    line(text, format_args!("expired_keys:{}", session.store().expired_keys()));
    line(text, format_args!("evicted_keys:0"));
    line(text, format_args!("pubsub_channels:0"));
    line(text, format_args!("pubsub_patterns:0"));
    let tracking = shared.tracking.figures();
    line(text, format_args!("tracking_total_keys:{}", tracking.keys));
    line(text, format_args!("tracking_total_items:{}", tracking.items));
    line(text, format_args!("tracking_total_prefixes:{}", tracking.prefixes));
    line(text, format_args!("latest_fork_usec:0"));
    let cut_off = shared.stat(Stat::OutputLimit);
    line(text, format_args!("client_output_buffer_limit_disconnections:{cut_off}"));
    line(text, format_args!("keyspace_hits:{}", shared.stat(Stat::Hits)));
    line(text, format_args!("keyspace_misses:{}", shared.stat(Stat::Misses)));
    line(text, format_args!("total_error_replies:{}", shared.stat(Stat::ErrorReplies)));
    line(text, format_args!("protocol_errors:{}", shared.stat(Stat::ProtocolErrors)));
    line(text, format_args!("acl_access_denied_auth:{}", shared.stat(Stat::Denied)));
    line(text, format_args!("http_requests_refused:{}", shared.stat(Stat::HttpRequests)));
    Ok(())
}

/// Mean number of commands per second since the last INFO.
fn ops_per_second(session: &Session) -> u64 {
    let (now_ms, commands) = (session.shared.now_ms(), session.shared.stat(Stat::Commands));
    let mut last = session.shared.last_look.lock();
    let (since_ms, done) = (now_ms.saturating_sub(last.0), commands.saturating_sub(last.1));
    *last = (now_ms, commands);
    done.saturating_mul(1000) / since_ms.max(1)
}

fn keyspace(session: &Session, text: &mut String) -> Result<(), Refusal> {
    use ErrorKind::{Busy, Closed, Fenced, Unsupported};
    for index in 0..session.shared.databases.len() {
        let keyspace = match session.store_of(index).keyspace() {
            // A node that cannot reach the cluster's keys still shows its other facts.
            Err(error) if matches!(error.kind(), Unsupported | Busy | Fenced | Closed) => {
                return Ok(());
            }
            counted => counted?,
        };
        let Keyspace { keys, expiring, mean_ttl_ms } = keyspace;
        if keys > 0 {
            line(
                text,
                format_args!("db{index}:keys={keys},expires={expiring},avg_ttl={mean_ttl_ms}"),
            );
        }
    }
    Ok(())
}

fn replication(session: &Session, text: &mut String) -> Result<(), Refusal> {
    line(text, format_args!("role:master"));
    line(text, format_args!("connected_slaves:0"));
    line(text, format_args!("master_failover_state:no-failover"));
    line(text, format_args!("master_replid:{}", session.shared.run_id));
    line(text, format_args!("master_replid2:{}", "0".repeat(40)));
    line(text, format_args!("master_repl_offset:0"));
    line(text, format_args!("second_repl_offset:-1"));
    line(text, format_args!("repl_backlog_active:0"));
    line(text, format_args!("repl_backlog_size:0"));
    line(text, format_args!("repl_backlog_first_byte_offset:0"));
    line(text, format_args!("repl_backlog_histlen:0"));
    Ok(())
}

fn cpu(_: &Session, text: &mut String) -> Result<(), Refusal> {
    let usage = host::process_usage().unwrap_or_default();
    let mut seconds = |name: &str, micros: u64| {
        line(text, format_args!("{name}:{}.{:06}", micros / 1_000_000, micros % 1_000_000));
    };
    seconds("used_cpu_sys", usage.system_us);
    seconds("used_cpu_user", usage.user_us);
    seconds("used_cpu_sys_children", 0);
    seconds("used_cpu_user_children", 0);
    Ok(())
}

fn commandstats(session: &Session, text: &mut String) -> Result<(), Refusal> {
    for (command, figures) in session.shared.command_stats.commands() {
        let (micros, calls) = (figures.nanos / 1000, figures.calls);
        let mean = figures.nanos as f64 / 1000.0 / calls.max(1) as f64;
        line(
            text,
            format_args!(
                "cmdstat_{}:calls={calls},usec={micros},usec_per_call={mean:.2},\
                 rejected_calls={},failed_calls={}",
                command.name, figures.rejected, figures.failed
            ),
        );
    }
    Ok(())
}

fn errorstats(session: &Session, text: &mut String) -> Result<(), Refusal> {
    for (code, count) in session.shared.command_stats.errors() {
        line(text, format_args!("errorstat_{code}:count={count}"));
    }
    Ok(())
}

fn latencystats(session: &Session, text: &mut String) -> Result<(), Refusal> {
    for (command, figures) in session.shared.command_stats.commands() {
        if figures.calls > 0 {
            let [p50, p99, p999] = [0.5, 0.99, 0.999].map(|q| figures.percentile_us(q));
            let name = command.name;
            line(
                text,
                format_args!(
                    "latency_percentiles_usec_{name}:p50={p50}.000,p99={p99}.000,p99.9={p999}.000"
                ),
            );
        }
    }
    Ok(())
}

fn cluster(_: &Session, text: &mut String) -> Result<(), Refusal> {
    line(text, format_args!("cluster_enabled:0"));
    Ok(())
}

/// A number of bytes in the format of Redis: `1.50M`.
fn human(bytes: u64) -> String {
    let units = ["K", "M", "G", "T", "P", "E"];
    if bytes < 1024 {
        return format!("{bytes}B");
    }
    let mut amount = bytes as f64 / 1024.0;
    let mut unit = 0;
    while amount >= 1024.0 && unit + 1 < units.len() {
        amount /= 1024.0;
        unit += 1;
    }
    format!("{amount:.2}{}", units[unit])
}

fn archipelago(session: &Session, text: &mut String) -> Result<(), Refusal> {
    for fact in session.store().info().lines() {
        line(text, format_args!("{fact}"));
    }
    Ok(())
}
