//! Opens a database, writes, reads, scans a range, deletes, and opens the database again.
//!
//! Run it: `cargo run -p archipelago-examples --bin basics`

use std::error::Error;

use archipelago::{Db, DbOptions, ReadOptions, WriteOptions};

fn main() -> Result<(), Box<dyn Error>> {
    let dir = tempfile::tempdir()?;
    let db = Db::open(dir.path(), DbOptions::default())?;
    let family = db.default_family();

    // A write that returned survives `kill -9`. With `WriteOptions::synced` it also survives power
    // loss.
    for (reef, species) in [("reef:1", "coral"), ("reef:2", "sponge"), ("reef:3", "urchin")] {
        db.put(reef.as_bytes(), species.as_bytes())?;
    }
    db.put_with(family, b"wreck:1", b"conger", &WriteOptions::synced())?;

    match db.get(b"reef:2")? {
        Some(value) => println!("reef:2 is {}", text(&value)),
        None => println!("reef:2 has no value"),
    }

    // An iterator sees the database at one moment, even if other writes follow while it moves.
    let mut iter = db.iter(family, &ReadOptions::new().prefix(b"reef:"))?;
    iter.seek_to_first();
    while iter.valid() {
        println!("{} = {}", text(iter.key()), text(iter.value()));
        iter.next();
    }
    // An iterator also becomes invalid after an error, so the program checks its status.
    iter.status()?;
    drop(iter);

    db.delete(b"reef:1")?;
    println!("reef:1 exists: {}", db.contains(family, b"reef:1", &ReadOptions::default())?);

    // Closing ends background work in order. The next open finds all writes.
    db.close()?;
    let db = Db::open(dir.path(), DbOptions::default())?;
    println!("after the restart reef:3 exists: {}", db.get(b"reef:3")?.is_some());
    db.close()?;
    Ok(())
}

fn text(bytes: &[u8]) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(bytes)
}
