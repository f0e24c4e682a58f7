//! Duties of a log to its users: it returns every acknowledged write in order, or reports the
//! damage.

mod batches;
mod chain;
mod damage;
mod formats;
mod kill;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use archipelago_base::random::Rng;
use archipelago_base::{CfId, FileNo, Result, SeqNo};
use archipelago_env::local::LocalFs;
use archipelago_env::mem::MemFs;
use archipelago_env::{CreateOptions, FileClass, FileSystem, IoContext, IoPurpose};

use super::*;
use crate::options::RecoveryMode;

const DATABASE: [u8; 16] = *b"a test database!";

fn context() -> IoContext {
    IoContext::new(FileClass::Wal, IoPurpose::Maintenance)
}

/// A directory with a log.
struct Bench {
    fs: Arc<dyn FileSystem>,
    dir: PathBuf,
    _keep: Option<tempfile::TempDir>,
}

impl Bench {
    fn memory() -> Self {
        Self::on(MemFs::new())
    }

    fn on(fs: MemFs) -> Self {
        fs.create_dir_all(Path::new("/db")).unwrap();
        Self { fs: Arc::new(fs), dir: PathBuf::from("/db"), _keep: None }
    }

    fn disk() -> Self {
        let keep = tempfile::tempdir().unwrap();
        Self { fs: Arc::new(LocalFs::new()), dir: keep.path().to_owned(), _keep: Some(keep) }
    }

    fn path(&self, no: u64) -> PathBuf {
        self.dir.join(format!("{no}.log"))
    }

    fn file(&self, no: u64) -> SegmentFile {
        SegmentFile { no: FileNo(no), path: self.path(no) }
    }

    fn writer(&self, no: u64, previous: Option<SegmentRef>) -> LogWriter {
        self.recycling_writer(no, previous, None)
    }

    fn recycling_writer(
        &self,
        no: u64,
        previous: Option<SegmentRef>,
        recycle: Option<u64>,
    ) -> LogWriter {
        let config = LogConfig {
            database_id: DATABASE,
            segment_bytes: 1 << 20,
            seed: no,
            manifest: ManifestPosition::default(),
        };
        let recycle = recycle.map(|no| self.path(no));
        let path = self.path(no);
        LogWriter::create(Arc::clone(&self.fs), config, &path, FileNo(no), previous, recycle)
            .unwrap()
    }

    fn bytes(&self, no: u64) -> Vec<u8> {
        self.fs.read(&self.path(no), context()).unwrap()
    }

    fn overwrite(&self, no: u64, bytes: &[u8]) {
        let mut file = self.fs.create(&self.path(no), context(), CreateOptions::default()).unwrap();
        file.append(bytes).unwrap();
        file.sync().unwrap();
    }

    /// The sequence numbers of the records in the segments `nos`, each checked to be whole.
    fn recover(&self, nos: &[u64], mode: RecoveryMode) -> Result<(Vec<u64>, RecoveredLog)> {
        let segments: Vec<SegmentFile> = nos.iter().map(|&no| self.file(no)).collect();
        let chain = LogChain {
            segments: &segments,
            floor: FileNo(nos.first().copied().unwrap_or(0)),
            mode,
            database_id: DATABASE,
        };
        let mut seen = Vec::new();
        let log = recover(&*self.fs, &chain, &mut |seq, batch| {
            assert_batch(seq, batch);
            seen.push(seq.0);
            Ok(())
        })?;
        assert_eq!(log.last_seq.map(|seq| seq.0), seen.last().map(|&seq| seq + ops_of(seq) - 1));
        Ok((seen, log))
    }

    fn tolerant(&self, nos: &[u64]) -> Result<(Vec<u64>, RecoveredLog)> {
        self.recover(nos, RecoveryMode::TolerateTornTail)
    }
}

/// Number of operations of the test batch at `seq`.
fn ops_of(seq: u64) -> u64 {
    1 + seq % 3
}

/// The batch that tests write at `seq`; it differs from every other.
fn batch_of(seq: u64) -> WriteBatch {
    let mut rng = Rng::with_seed(seq);
    let mut batch = WriteBatch::new();
    for op in 0..ops_of(seq) {
        let key = format!("key {seq} {op}");
        let value = vec![rng.u8(..); rng.usize(..60)];
        match rng.u8(..4) {
            0 => batch.delete_cf(CfId(op as u32), key.as_bytes()),
            1 => batch.merge_cf(CfId(300), key.as_bytes(), &value),
            _ => batch.put_cf(CfId(op as u32), key.as_bytes(), &value),
        }
    }
    batch
}

fn assert_batch(seq: SeqNo, batch: BatchView<'_>) {
    let expected = batch_of(seq.0);
    let got: Vec<_> = batch.iter().map(Result::unwrap).collect();
    let wanted: Vec<_> = expected.iter().map(Result::unwrap).collect();
    assert_eq!(got, wanted, "record {seq}");
}

fn append(writer: &mut LogWriter, seq: u64) -> Appended {
    let batch = batch_of(seq);
    let payload = batch.data();
    let entry = Entry { first_seq: SeqNo(seq), payload, payload_crc: payload_crc(payload) };
    writer.append(&entry).unwrap()
}

/// Appends test batches from `seq` on, without gaps. Returns the sequence number and the end offset
/// of each record.
fn fill(writer: &mut LogWriter, mut seq: u64, records: usize) -> Vec<(u64, u64)> {
    let mut written = Vec::new();
    for _ in 0..records {
        written.push((seq, append(writer, seq).end_offset));
        seq += ops_of(seq);
    }
    written
}

fn seqs(written: &[(u64, u64)]) -> Vec<u64> {
    written.iter().map(|&(seq, _)| seq).collect()
}

/// The inputs from which the fuzz target of that name starts.
fn corpus(target: &str) -> Vec<Vec<u8>> {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let fs = LocalFs::new();
    let files: Vec<Vec<u8>> = fs
        .list(&dir)
        .unwrap()
        .iter()
        .map(|entry| fs.read(&dir.join(&entry.name), context()).unwrap())
        .collect();
    assert!(!files.is_empty(), "{} is empty", dir.display());
    files
}
