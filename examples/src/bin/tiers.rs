//! Puts one database on two devices. Two directories stand for a fast and a slow device.
//!
//! Run it: `cargo run -p archipelago-examples --bin tiers`

use std::error::Error;

use archipelago::{ComputeNode, KeyRange, Settings};

fn main() -> Result<(), Box<dyn Error>> {
    let dir = tempfile::tempdir()?;
    let path = |name: &str| dir.path().join(name).display().to_string();

    // The same text works as the settings file of `archipelago serve --config`. The fastest device
    // comes first. It gets the log, L0 and as many levels as fit, and copies of hot data.
    let settings = Settings::parse(&format!(
        "[[tiers]]\nname = \"fast\"\npath = \"{}\"\ncreate = true\ncapacity_bytes = 1_000_000_000\n\
         [[tiers]]\nname = \"slow\"\npath = \"{}\"\ncreate = true\n",
        path("fast"),
        path("slow"),
    ))?;
    let node = ComputeNode::open(&dir.path().join("db"), &settings)?;
    let db = node.db();
    for number in 0..10_000 {
        db.put(format!("key:{number:06}").as_bytes(), &[b'v'; 100])?;
    }
    db.flush(db.default_family())?;
    db.compact_range(db.default_family(), &KeyRange::all())?;

    let tiers = node.tiers().ok_or("the database does not lie on tiers")?;
    for device in tiers.stats().devices {
        let has_log = device.files.contains_key("log");
        println!("{}: holds the log: {has_log}", device.name);
    }
    node.close()?;

    // The directory names its devices, so it opens without the settings.
    let node = ComputeNode::open(&dir.path().join("db"), &Settings::default())?;
    println!("key:000042 exists: {}", node.db().get(b"key:000042")?.is_some());
    node.close()?;
    Ok(())
}
