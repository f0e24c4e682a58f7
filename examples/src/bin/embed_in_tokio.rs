//! A TCP service that embeds the database: each line names a page, and the answer is its visits.
//!
//! Run it: `cargo run -p archipelago-examples --bin embed_in_tokio`

use archipelago::{Conflict, Db, DbOptions, WriteOptions};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::spawn_blocking;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Counts one visit in a transaction, which runs again if another write changed the count.
fn visit(db: &Db, page: &str) -> archipelago::Result<u64> {
    let family = db.default_family();
    let mut transaction = db.transaction();
    loop {
        let old = transaction.get(family, page.as_bytes())?;
        let old = old.and_then(|bytes| bytes[..].try_into().ok()).map_or(0, u64::from_le_bytes);
        transaction.put(family, page.as_bytes(), &(old + 1).to_le_bytes())?;
        match transaction.commit(&WriteOptions::default()) {
            Ok(_) => return Ok(old + 1),
            Err(error) if Conflict::of(&error).is_some() => transaction.rollback(),
            Err(error) => return Err(error),
        }
    }
}

async fn serve(db: Db, client: TcpStream) -> Result<()> {
    let (input, mut output) = client.into_split();
    let mut lines = BufReader::new(input).lines();
    while let Some(page) = lines.next_line().await? {
        let db = db.clone();
        // A call of the database may wait for the disk, so it must not block the runtime.
        let count = spawn_blocking(move || visit(&db, &page)).await??;
        output.write_all(format!("{count}\n").as_bytes()).await?;
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let db = Db::open(dir.path(), DbOptions::default())?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let mut client = BufReader::new(TcpStream::connect(listener.local_addr()?).await?);
    let (accepted, _) = listener.accept().await?;
    let service = tokio::spawn(serve(db.clone(), accepted));

    client.write_all(b"home\nhome\nabout\n").await?;
    client.shutdown().await?;
    let mut answers = client.lines();
    while let Some(answer) = answers.next_line().await? {
        println!("{answer}");
    }
    service.await??;
    db.close()?;
    Ok(())
}
