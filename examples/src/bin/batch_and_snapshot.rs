//! Moves an amount between two accounts in one batch, while a snapshot keeps the old state.
//!
//! Run it: `cargo run -p archipelago-examples --bin batch_and_snapshot`

use std::error::Error;

use archipelago::{Db, DbOptions, ReadOptions, WriteBatch, WriteOptions};

fn main() -> Result<(), Box<dyn Error>> {
    let dir = tempfile::tempdir()?;
    let db = Db::open(dir.path(), DbOptions::default())?;
    let family = db.default_family().id();

    let mut batch = WriteBatch::new();
    batch.put_cf(family, b"alice", &100_u64.to_le_bytes());
    batch.put_cf(family, b"bob", &0_u64.to_le_bytes());
    db.write(&batch, &WriteOptions::default())?;

    // The snapshot names this moment. Reads with it do not see later writes.
    let before = db.snapshot();

    // All operations of a batch become visible together, and after a crash all or none exist.
    batch.clear();
    batch.put_cf(family, b"alice", &70_u64.to_le_bytes());
    batch.put_cf(family, b"bob", &30_u64.to_le_bytes());
    db.write(&batch, &WriteOptions::default())?;

    let old = ReadOptions::new().snapshot(&before);
    println!("before: {:?}", balances(&db, &old)?);
    println!("now:    {:?}", balances(&db, &ReadOptions::default())?);

    // A live snapshot keeps old versions on disk, so a program drops it when it is done.
    drop((old, before));
    db.close()?;
    Ok(())
}

/// The balances of both accounts, as of one moment.
fn balances(db: &Db, options: &ReadOptions) -> Result<Vec<u64>, Box<dyn Error>> {
    let values = db.multi_get(db.default_family(), &[b"alice", b"bob"], options)?;
    let mut balances = Vec::new();
    for value in values {
        let value = value.ok_or("an account is missing")?;
        balances.push(u64::from_le_bytes(value[..].try_into()?));
    }
    Ok(balances)
}
