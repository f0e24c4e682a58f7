//! A flush and a compaction in another process, which gets only an encoded spec and a directory.
//! The process is this test binary, started again with [`JOB_DIR`] set.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use archipelago_base::SeqNo;
use archipelago_base::budget::ByteBudget;
use archipelago_base::clock::SystemClock;
use archipelago_env::local::LocalFs;
use archipelago_env::{CreateOptions, FileClass, FileSystem, IoContext, IoPurpose};

use super::wire::{self, Message};
use super::*;
use crate::compaction::job::Input;
use crate::extension::Registry;
use crate::file_meta::FileMeta;
use crate::job::spec::{CurrentNumber, ValueSpec};
use crate::job::testing::*;
use crate::job::{Cancel, KnownKeys, ShardRef, ShardSource};
use crate::key::Kind;
use crate::memtable::{SealedImage, SealedShard, Shard, SlabPool};
use crate::sst::BlockCache;
use crate::value_ref::{ValueFileMeta, ValueRefs};

/// Directory of the job that a child process shall run.
const JOB_DIR: &str = "ARCHIPELAGO_TEST_JOB_DIR";
const IO: IoContext = IoContext::new(FileClass::Other, IoPurpose::Maintenance);

/// Sealed shards as files of a directory.
struct ImageDir(PathBuf, LocalFs);

impl ImageDir {
    fn path(dir: &Path, shard: &ShardRef) -> PathBuf {
        dir.join(format!("{}-{}.image", shard.memtable, shard.shard))
    }
}

impl ShardSource for ImageDir {
    fn shard(&self, shard: &ShardRef) -> Result<Arc<dyn SealedShard>> {
        Ok(SealedImage::open(self.1.read(&Self::path(&self.0, shard), IO)?)?)
    }
}

fn write(dir: &Path, name: &str, bytes: &[u8]) {
    LocalFs::new().write_atomic(&dir.join(name), bytes, IO).unwrap();
}

/// The job of the child process. It does nothing in a run of the tests.
#[test]
fn child_process() {
    let Some(dir) = std::env::var_os(JOB_DIR).map(PathBuf::from) else { return };
    let fs = LocalFs::new();
    let budget = ByteBudget::unlimited();
    let images = ImageDir(dir.clone(), LocalFs::new());
    let context = JobContext {
        fs: Arc::new(LocalFs::new()),
        registry: Registry::default(),
        clock: SystemClock::shared(),
        limiter: None,
        cancel: Cancel::default(),
        shards: &images,
        cache: BlockCache::new(1 << 20, &budget),
        warm: false,
        budget,
        more_file_numbers: None,
        value_keys: KnownKeys::default(),
        progress: Arc::default(),
    };
    let message = fs.read(&dir.join("job.spec"), IO).unwrap();
    let output = if message[1] == FlushSpec::TAG {
        wire::decode(&message).and_then(|spec| run_flush(&spec, &context))
    } else {
        wire::decode(&message).and_then(|spec| run_compaction(&spec, &context))
    };
    match output {
        Ok(output) => write(&dir, "job.out", &wire::encode(&output).unwrap()),
        Err(error) => write(&dir, "job.err", error.to_string().as_bytes()),
    }
}

/// Runs a job in a child process.
fn remote<T: Message>(dir: &Path, spec: &T) -> Result<JobOutput, String> {
    write(dir, "job.spec", &wire::encode(spec).unwrap());
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "executor::tests::child_process"])
        .env(JOB_DIR, dir)
        .output()
        .unwrap();
    assert!(status.status.success(), "{}", String::from_utf8_lossy(&status.stdout));
    let fs = LocalFs::new();
    if fs.exists(&dir.join("job.err")).unwrap() {
        return Err(String::from_utf8(fs.read(&dir.join("job.err"), IO).unwrap()).unwrap());
    }
    Ok(wire::decode(&fs.read(&dir.join("job.out"), IO).unwrap()).unwrap())
}

/// Writes the image of a sealed shard with `records`.
fn image(dir: &Path, memtable: u64, records: &[Record], deleted: &[(&str, &str, u64)]) -> ShardRef {
    let shard = Shard::new(&SlabPool::new(ByteBudget::unlimited()));
    for (key, seq, kind, value) in records {
        shard.insert(key, SeqNo(*seq), *kind, value);
    }
    for (start, end, seq) in deleted {
        shard.insert_tombstone(tombstone(start, end, *seq));
    }
    shard.seal();
    let mut bytes = Vec::new();
    shard.write_image(&mut bytes).unwrap();
    let name = ShardRef { memtable, shard: 3 };
    let path = ImageDir::path(dir, &name);
    let mut file = LocalFs::new().create(&path, IO, CreateOptions::default()).unwrap();
    file.append(&bytes).unwrap();
    file.sync().unwrap();
    name
}

fn read_all(
    dir: &Path,
    files: &[FileMeta],
) -> (Vec<Record>, Vec<crate::tombstone::RangeTombstone>) {
    let budget = ByteBudget::unlimited();
    let cache = BlockCache::new(1 << 20, &budget);
    let mut all = (vec![], vec![]);
    for meta in files {
        let path = dir.join(crate::file_meta::sst_name(meta.file_no()));
        let (records, deleted) = contents(&LocalFs::new(), &path, meta, &cache, &budget, IO);
        all.0.extend(records);
        all.1.extend(deleted);
    }
    all
}

#[test]
fn jobs_run_in_another_process() {
    let temporary = tempfile::tempdir().unwrap();
    let dir = temporary.path();
    let here = Executor::new();
    let mut files: Vec<Input> = Vec::new();
    let old: Vec<Record> =
        (0..500).map(|i| put(&format!("k{i:03}"), i + 1, &format!("old {i}"))).collect();
    let new = [
        record("k007", 600, Kind::Merge, "+"),
        record("k008", 601, Kind::Delete, ""),
        put("k009", 602, "new"),
    ];
    for (memtable, records, deleted) in
        [(1, &old[..], &[][..]), (2, &new[..], &[("k100", "k400", 603)][..])]
    {
        let shard = image(dir, memtable, records, deleted);
        let mut spec = here.flush_spec(vec![shard]);
        spec.output.dir = dir.to_owned();
        spec.output.cuts = vec![b"k250".to_vec()];
        let output = remote(dir, &spec).unwrap();
        assert_eq!(output.files.len(), 2, "cut at the boundary");
        files.extend(inputs(0, &output.files));
    }
    let mut spec = here.compaction_spec(files);
    spec.output.dir = dir.to_owned();
    spec.output.target_file_bytes = 1_000;
    let output = remote(dir, &spec).unwrap();
    assert!(output.files.len() > 1);
    assert_disjoint(&output.files);
    let mut expected = old;
    expected.retain(|(key, ..)| !(&b"k100"[..]..&b"k400"[..]).contains(&key.as_slice()));
    expected[7] = put("k007", 600, "old 7+");
    expected[9] = put("k009", 602, "new");
    expected.remove(8);
    assert_eq!(read_all(dir, &output.files), (expected, vec![]));

    let mut spec: CompactionSpec = spec;
    spec.retention.merge_operator = Some("of the owner alone".into());
    let error = remote(dir, &spec).unwrap_err();
    assert!(error.contains("\"of the owner alone\" is registered in this process"), "{error}");
}

/// An output of a flush with two value files, and its spec.
fn separated() -> (FlushSpec, JobOutput) {
    let mut executor = Executor::new();
    let records: Vec<Record> =
        (0..20).map(|i| put(&format!("k{i:02}"), i + 1, &"v".repeat(100))).collect();
    let shard = executor.memtable(1, &records, &[]);
    let mut spec = executor.flush_spec(vec![shard]);
    spec.range = range("k", Some("l"));
    spec.output.cuts = vec![b"k05".to_vec()];
    spec.output.values = ValueSpec { value_file_bytes: 1_050, ..value_spec(64, &[]) };
    let output = run_flush(&spec, &executor.context()).unwrap();
    check(&output, &spec.range, &spec.output).unwrap();
    assert_eq!((output.files.len(), output.value_files.len()), (2, 2));
    (spec, output)
}

#[test]
fn output_whose_references_do_not_add_up_is_refused() {
    let (spec, output) = separated();
    let refused = |expected: &str, change: &dyn Fn(&mut JobOutput)| {
        let mut changed = output.clone();
        change(&mut changed);
        let error = check(&changed, &spec.range, &spec.output).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io);
        assert!(error.context().contains(expected), "{error}");
    };
    refused("not set aside", &|output| output.value_files[0].no = 5_000);
    refused("have the number", &|output| output.value_files[0].no = output.files[0].no);
    refused("have the number", &|output| output.value_files[1].no = output.value_files[0].no);
    refused("out of the range", &|output| output.value_files[0].smallest = b"j".to_vec());
    refused("out of the range", &|output| output.value_files[1].largest = b"l".to_vec());
    refused("cannot be", &|output| output.value_files[0].basis = 1);
    refused("cannot be", &|output| output.value_files[0].keys_offset = u64::MAX);
    refused("not referenced", &|output| output.value_files[0].records += 1);
    refused("not referenced", &|output| output.value_files[0].keys_offset += 1);
    refused("has fewer", &|output| output.value_files[0].records -= 1);
    refused("not one of the job", &|output| drop(output.value_files.pop()));
    refused("not one of the job", &|output| output.files[0].refs.add(900, 100));
    refused("not referenced", &|output| {
        let unnamed = ValueFileMeta { no: 900, ..output.value_files[0].clone() };
        output.value_files.push(unnamed);
    });
    refused("not referenced", &|output| output.files[1].refs = ValueRefs::default());
}

#[test]
fn output_may_reference_current_numbers_of_its_spec() {
    let (mut spec, mut output) = separated();
    output.files[0].refs.add(7_000, 100);
    assert!(check(&output, &spec.range, &spec.output).is_err());
    spec.output.values.current = vec![CurrentNumber { named: 7_000, current: 8_000 }];
    assert!(check(&output, &spec.range, &spec.output).is_err(), "an old number");
    spec.output.values.current[0].current = 7_000;
    check(&output, &spec.range, &spec.output).unwrap();
}
