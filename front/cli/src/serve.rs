//! `archipelago serve`: opens the database, serves it over RESP, ends in good order on SIGTERM,
//! SIGINT or a client's SHUTDOWN.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use archipelago::{ComputeNode, Error, Result, Settings, WriteOptions};
use archipelago_resp::engine_store::EngineStore;
use archipelago_resp::{Server, ServerOptions};

use crate::stop::StopSignals;

/// Runs the store until SIGTERM, SIGINT (Ctrl-C) or a client's SHUTDOWN, then ends it in order.
#[derive(clap::Args, Debug)]
pub(crate) struct ServeArgs {
    /// Directory of the data; created if it is not there
    #[arg(long, value_name = "DIR", default_value = "./archipelago-data")]
    dir: PathBuf,
    /// Address to listen on
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:6379")]
    listen: String,
    /// A TOML file with settings ([database], [families.NAME], [[tiers]])
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Acknowledge a write only when it survives power loss, not only the end of the process
    #[arg(long)]
    sync: bool,
    /// Most clients at a time
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    clients_max: usize,
    /// Close clients that say nothing for so many seconds; 0 for never
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    idle_timeout: u64,
    /// Threads that serve clients; 0 for as many as there are cores
    #[arg(long, value_name = "N", default_value_t = 0)]
    threads: usize,
    /// Budget over all memory in MiB; 0 for what the settings say, or half of what the machine or
    /// its cgroup allows
    #[arg(long, value_name = "MIB", default_value_t = 0)]
    memory_mib: u64,
    /// Print the settings that it would run with, as TOML, and end
    #[arg(long)]
    print_settings: bool,
}

/// Serves until told to end. On return everything acknowledged is in the database's files.
pub(crate) fn run(args: &ServeArgs) -> Result<()> {
    let settings = settings(args)?;
    if args.print_settings {
        print!("{}", settings.to_toml()?);
        return Ok(());
    }
    archipelago_resp::server::resolve(&args.listen)?;
    let node = ComputeNode::open(&args.dir, &settings)?;
    let options = ServerOptions {
        worker_threads: args.threads,
        clients_max: args.clients_max,
        idle_timeout: (args.idle_timeout > 0).then(|| Duration::from_secs(args.idle_timeout)),
        budget: Arc::clone(node.budget()),
        ..ServerOptions::default()
    };
    options.validate()?;
    let write_options = WriteOptions { sync: args.sync, ..WriteOptions::default() };
    let mut store = EngineStore::new(node.db().clone(), write_options);
    if let Some(tiers) = node.tiers() {
        let tiers = Arc::clone(tiers);
        store = store.with_facts(Box::new(move || tiers.stats().facts()));
    }
    let store = Arc::new(store);
    let server = Server::start(&args.listen, store, options)?;
    let mut signals = server.within(StopSignals::watch)?;
    let addr = server.local_addr();
    println!("Archipelago serves {} on {addr}", args.dir.display());
    println!("Connect with: redis-cli -h {} -p {}", addr.ip(), addr.port());
    if !addr.ip().is_loopback() {
        println!("Warning: there are no passwords; whoever reaches {addr} can read and write");
    }
    server.wait_or(signals.received());
    println!("Stopping: finishing commands in flight");
    if !server.shutdown() {
        println!("Some clients did not read their replies in time and were cut off");
    }
    node.close()?;
    println!("Stopped");
    Ok(())
}

/// The settings file, or defaults, with what the flags say over it.
fn settings(args: &ServeArgs) -> Result<Settings> {
    let mut settings = match &args.config {
        Some(path) => archipelago::load_settings(path)?,
        None => Settings::default(),
    };
    if args.memory_mib > 0 {
        settings.database.memory_budget_bytes =
            args.memory_mib.checked_mul(1 << 20).ok_or_else(|| {
                Error::invalid(format!(
                    "--memory-mib {}: more than 64 bits of bytes",
                    args.memory_mib
                ))
            })?;
    }
    settings.validate()?;
    Ok(settings)
}
