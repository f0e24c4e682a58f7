//! Adds a merge operator, so that a program changes a value without reading it first.
//!
//! Run it: `cargo run -p archipelago-examples --bin merge_operator`

use std::error::Error;
use std::sync::Arc;

use archipelago::{
    CfOptions, Components, Db, DbOptions, MergeOperator, ReadOptions, Registry, Result,
    WriteOptions,
};

/// Keeps the highest number: value and operands are decimal texts.
struct Highest;

impl MergeOperator for Highest {
    fn name(&self) -> &str {
        "examples.highest"
    }

    fn full_merge(&self, _key: &[u8], base: Option<&[u8]>, operands: &[&[u8]]) -> Result<Vec<u8>> {
        let numbers = base.into_iter().chain(operands.iter().copied());
        Ok(numbers.max_by_key(|bytes| number(bytes)).unwrap_or_default().to_vec())
    }

    // The operator combines neighbouring operands into one, so the engine keeps fewer of them.
    fn partial_merge(&self, key: &[u8], operands: &[&[u8]]) -> Option<Vec<u8>> {
        self.full_merge(key, None, operands).ok()
    }
}

fn number(bytes: &[u8]) -> u64 {
    String::from_utf8_lossy(bytes).parse().unwrap_or(0)
}

fn main() -> std::result::Result<(), Box<dyn Error>> {
    let dir = tempfile::tempdir()?;
    // The database stores the name of the operator. Every open needs an operator of that name.
    let mut registry = Registry::default();
    registry.add_merge_operator(Arc::new(Highest));
    let components = Components { registry, ..Components::default() };
    let db = Db::open_with(dir.path(), DbOptions::default(), components)?;

    let merge_operator = Some("examples.highest".to_owned());
    let scores =
        db.create_family("scores", CfOptions { merge_operator, ..CfOptions::default() })?;
    for score in ["1200", "4711", "900"] {
        db.merge(&scores, b"player:1", score.as_bytes(), &WriteOptions::default())?;
    }
    let best = db.get_with(&scores, b"player:1", &ReadOptions::new())?.ok_or("no score")?;
    println!("the best score of player:1 is {}", String::from_utf8_lossy(&best));
    db.close()?;
    Ok(())
}
