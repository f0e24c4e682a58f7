//! Tables in memory, and common parts of all their tests.

mod damage;
mod flat;
mod golden;
mod indirect;
mod many;
mod model;
mod readers;
pub(in crate::sst) mod stub;
mod warming;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use archipelago_base::budget::ByteBudget;
use archipelago_base::{FileNo, Result, SeqNo};
use archipelago_env::{IoContext, IoPurpose, RandomFile};

use super::*;
use crate::file_meta::FileMeta;
use crate::key::{self, Kind};
use crate::lookup::{Lookup, Visit};
use crate::options::Compression;
use crate::tombstone::RangeTombstone;
use stub::{Bytes, VecFile, VecWriter};

/// Records in internal-key order: (user key, sequence number descending) to kind and value.
type Records = BTreeMap<(Vec<u8>, std::cmp::Reverse<u64>), (Kind, Vec<u8>)>;

fn path() -> PathBuf {
    PathBuf::from("/db/000007.sst")
}

fn context() -> IoContext {
    IoContext::sst(IoPurpose::Maintenance, 3)
}

fn plain() -> TableOptions {
    TableOptions { compression: Compression::None, ..TableOptions::default() }
}

/// Options with small blocks and small partitions: a few hundred records have two index levels.
fn tiny(compression: Compression) -> TableOptions {
    TableOptions {
        block_bytes: 256,
        compression,
        pinned_bytes_max: 0,
        partition_bytes: 100,
        ..TableOptions::default()
    }
}

fn build(
    records: &Records,
    tombstones: &[RangeTombstone],
    options: TableOptions,
) -> (Bytes, FileMeta) {
    let bytes = Bytes::default();
    let file = Box::new(VecWriter(Arc::clone(&bytes)));
    let mut builder = TableBuilder::new(file, &path(), FileNo(7), [9; 16], options);
    for ((user_key, seq), (kind, value)) in records {
        builder.add(&key::encode(user_key, SeqNo(seq.0), *kind), value).unwrap();
    }
    for tombstone in tombstones {
        builder.add_tombstone(tombstone).unwrap();
    }
    let estimated = builder.estimated_bytes();
    let meta = builder.finish().unwrap();
    assert_eq!(meta.size_bytes, bytes.lock().len() as u64);
    assert!(estimated < meta.size_bytes * 2 + 8192, "{estimated} for {}", meta.size_bytes);
    (bytes, meta)
}

fn open_with(
    bytes: &Bytes,
    meta: Option<&FileMeta>,
    cache_bytes: u64,
) -> Result<(Arc<TableReader>, Arc<VecFile>)> {
    let budget = ByteBudget::unlimited();
    let cache = BlockCache::new(cache_bytes, &budget);
    let file = VecFile::new(bytes);
    let shared: Arc<dyn RandomFile> = Arc::clone(&file) as _;
    TableReader::open(shared, &path(), meta, &cache, &budget).map(|reader| (reader, file))
}

fn open(bytes: &Bytes, meta: &FileMeta) -> Arc<TableReader> {
    open_with(bytes, Some(meta), 8 << 20).unwrap().0
}

/// All versions that a look-up visits.
fn versions(table: &TableReader, user_key: &[u8], snapshot: u64) -> Vec<(u64, Kind, Vec<u8>)> {
    let mut found = Vec::new();
    let lookup = Lookup::new(user_key, SeqNo(snapshot));
    table
        .lookup(&lookup, &TableReadOptions::foreground(), &mut |version| {
            let pinned = version.pin();
            assert_eq!(pinned, version.value);
            found.push((version.seq.0, version.kind, pinned.into_vec()));
            Visit::Continue(())
        })
        .unwrap();
    found
}

fn expected_versions(
    records: &Records,
    user_key: &[u8],
    snapshot: u64,
) -> Vec<(u64, Kind, Vec<u8>)> {
    let from = (user_key.to_vec(), std::cmp::Reverse(snapshot));
    let to = (user_key.to_vec(), std::cmp::Reverse(0));
    records
        .range(from..=to)
        .map(|((_, seq), (kind, value))| (seq.0, *kind, value.clone()))
        .collect()
}

fn numbered(count: u64) -> Records {
    (0..count)
        .map(|n| {
            let user_key = format!("key{n:08}").into_bytes();
            ((user_key, std::cmp::Reverse(n + 1)), (Kind::Put, format!("value {n}").into_bytes()))
        })
        .collect()
}

pub(in crate::sst) fn file_named(path: &Path, error: &archipelago_base::Error) -> bool {
    error.to_string().contains(&path.display().to_string())
}

/// The inputs from which the fuzzer starts; tests replay them.
pub(in crate::sst) fn corpus(target: &str) -> Vec<Vec<u8>> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let entries = std::fs::read_dir(dir).expect("the corpus is there");
    entries
        .map(|entry| {
            #[expect(clippy::disallowed_methods, reason = "the corpus lies in the source tree")]
            std::fs::read(entry.unwrap().path()).unwrap()
        })
        .collect()
}
