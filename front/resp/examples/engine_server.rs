//! A server over the engine, without the rest of the program:
//! `cargo run --release -p archipelago-resp --example engine_server -- DIR 127.0.0.1:7777`.

use std::sync::Arc;

use archipelago_base::{Error, Result};
use archipelago_engine::db::Db;
use archipelago_engine::options::{DbOptions, WriteOptions};
use archipelago_resp::engine_store::EngineStore;
use archipelago_resp::{Server, ServerOptions};

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let dir = args.next().ok_or_else(|| Error::invalid("say which directory"))?;
    let listen = args.next().unwrap_or_else(|| "127.0.0.1:7777".to_owned());
    let db = Db::open(dir, DbOptions::default())?;
    let store = Arc::new(EngineStore::new(db.clone(), WriteOptions::default())?);
    let server = Server::start(&listen, store, ServerOptions::default())?;
    println!("listening on {}", server.local_addr());
    server.wait();
    server.shutdown();
    db.close()
}
