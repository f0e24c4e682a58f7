//! Keeps records and an index of them in two column families, which one batch changes together.
//!
//! Run it: `cargo run -p archipelago-examples --bin column_families`

use std::error::Error;

use archipelago::{CfOptions, Db, DbOptions, ReadOptions, WriteBatch, WriteOptions};

fn main() -> Result<(), Box<dyn Error>> {
    let dir = tempfile::tempdir()?;
    let db = Db::open(dir.path(), DbOptions::default())?;

    // Each family has settings, memtables and tables of its own. All families share one log, so a
    // batch over several of them is still whole or absent.
    let fish = db.create_family("fish", CfOptions::default())?;
    let small_buffers = CfOptions { write_buffer_bytes: 1 << 20, ..CfOptions::default() };
    let by_depth = db.create_family("fish-by-depth", small_buffers)?;

    for (name, depth_m) in [("anglerfish", 900_u32), ("clownfish", 12), ("swordfish", 550)] {
        let mut batch = WriteBatch::new();
        batch.put_cf(fish.id(), name.as_bytes(), &depth_m.to_be_bytes());
        // Keys are compared as bytes. Big-endian bytes have the order of the numbers.
        let key = [&depth_m.to_be_bytes()[..], name.as_bytes()].concat();
        batch.put_cf(by_depth.id(), &key, b"");
        db.write(&batch, &WriteOptions::default())?;
    }

    println!("below 100 m:");
    let deep = ReadOptions::new().range(100_u32.to_be_bytes(), u32::MAX.to_be_bytes());
    let mut iter = db.iter(&by_depth, &deep)?;
    iter.seek_to_first();
    while iter.valid() {
        let (depth, name) = iter.key().split_at(4);
        let depth_m = u32::from_be_bytes(depth.try_into()?);
        println!("  {} at {depth_m} m", String::from_utf8_lossy(name));
        iter.next();
    }
    iter.status()?;
    drop(iter);

    // The index can be made again from the records, so it may be dropped as a whole.
    db.drop_family(&by_depth)?;
    println!("the index exists: {}", db.family("fish-by-depth").is_ok());
    println!(
        "the records exist: {}",
        db.get_with(&fish, b"clownfish", &ReadOptions::new())?.is_some()
    );
    db.close()?;
    Ok(())
}
