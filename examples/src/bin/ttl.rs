//! Stores sessions that expire, and shows that an expired key is gone from that millisecond on.
//!
//! Run it: `cargo run -p archipelago-examples --bin ttl`

use std::error::Error;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use archipelago::{Db, DbOptions, ReadOptions, WriteOptions};

fn main() -> Result<(), Box<dyn Error>> {
    let dir = tempfile::tempdir()?;
    let db = Db::open(dir.path(), DbOptions::default())?;
    let family = db.default_family();
    let options = WriteOptions::default();

    // An expiry is a time in Unix milliseconds, not a duration.
    let soon_ms = unix_ms()? + 2_000;
    db.put_expiring(family, b"session:1", b"alice", soon_ms, &options)?;
    db.put_expiring(family, b"session:2", b"bob", unix_ms()? + 3_600_000, &options)?;
    db.put(b"session:3", b"carol")?;

    let entry = db.get_entry(family, b"session:1", &ReadOptions::new())?.ok_or("no session")?;
    println!("session:1 has an expiry: {}", entry.expires_at_ms == Some(soon_ms));

    while unix_ms()? < soon_ms {
        std::thread::sleep(Duration::from_millis(20));
    }
    println!("session:1 exists: {}", db.get(b"session:1")?.is_some());

    // Scans skip expired keys as well. Background work frees their space later.
    let mut iter = db.iter(family, &ReadOptions::new().prefix(b"session:"))?;
    iter.seek_to_first();
    while iter.valid() {
        let expires = if iter.expires_at_ms().is_some() { "expires" } else { "stays" };
        println!("{} {expires}", String::from_utf8_lossy(iter.key()));
        iter.next();
    }
    iter.status()?;
    drop(iter);
    db.close()?;
    Ok(())
}

fn unix_ms() -> Result<u64, Box<dyn Error>> {
    Ok(u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis())?)
}
