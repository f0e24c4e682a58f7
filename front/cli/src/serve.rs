//! `archipelago serve`: opens the store, serves it, and ends in order on SIGTERM or SIGINT.

use std::path::PathBuf;
use std::sync::Arc;

use archipelago::{ComputeNode, Error, ErrorKind, Result, Settings};
use archipelago_resp::engine_store::EngineStore;
use archipelago_resp::{Server, ServerOptions};
use clap::Args;
use tokio::signal::unix::{SignalKind, signal};

/// Runs the store until SIGTERM or SIGINT (Ctrl-C), then ends it in order.
#[derive(Debug, Args)]
pub(crate) struct Serve {
    /// Where the data is kept; created if it is not there.
    #[arg(long, value_name = "DIR", default_value = "./archipelago-data")]
    dir: PathBuf,
    /// Where to listen for Redis clients; port 0 asks for a free one.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:6379")]
    listen: String,
    /// A TOML file with settings ([database], [families.NAME]).
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl Serve {
    pub(crate) fn run(self) -> Result<()> {
        let settings = match &self.config {
            Some(path) => archipelago::load_settings(path)?,
            None => Settings::default(),
        };
        let node = ComputeNode::open(&self.dir, &settings)?;
        let store = Arc::new(EngineStore::new(node.db().clone(), node.db().default_family().clone()));
        let options = ServerOptions { budget: Arc::clone(node.budget()), ..ServerOptions::default() };
        let server = Server::start(&self.listen, store, options)?;
        let address = server.local_addr();
        println!(
            "archipelago serves {} on {address}\nconnect with: redis-cli -h {} -p {}",
            self.dir.display(),
            address.ip(),
            address.port()
        );
        let stop = stop_signal()?;
        server.wait_or(stop);
        eprintln!("archipelago: stopping: finishing commands, closing the store");
        if !server.shutdown() {
            eprintln!("archipelago: some clients did not finish in time and were cut off");
        }
        node.close()
    }
}

/// Ends at the first SIGTERM or SIGINT. The handlers are in place when this returns.
fn stop_signal() -> Result<impl Future<Output = ()>> {
    let failed = |source| Error::with_source(ErrorKind::Io, "cannot handle signals", source);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(failed)?;
    let guard = runtime.enter();
    let mut term = signal(SignalKind::terminate()).map_err(failed)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    drop(guard);
    Ok(async move {
        let _keep = runtime;
        tokio::select! {
            _ = term.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}
