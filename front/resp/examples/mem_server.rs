//! A server over memory alone, for measuring the server without an engine:
//! `cargo run --release -p archipelago-resp --example mem_server -- 127.0.0.1:7777 [THREADS]`.

use std::sync::Arc;

use archipelago_base::{Error, Result};
use archipelago_resp::mem_store::MemStore;
use archipelago_resp::{Server, ServerOptions};

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let listen = args.next().unwrap_or_else(|| "127.0.0.1:7777".to_owned());
    let worker_threads = match args.next() {
        Some(threads) => threads.parse().map_err(|_| Error::invalid("THREADS is not a number"))?,
        None => 0,
    };
    let options = ServerOptions { worker_threads, ..ServerOptions::default() };
    let server = Server::start(&listen, Arc::new(MemStore::default()), options)?;
    println!("listening on {}", server.local_addr());
    server.wait();
    server.shutdown();
    Ok(())
}
