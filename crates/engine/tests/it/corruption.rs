//! Damaged files and foreign directories must be detected and named. They must never be read as
//! data, and never be changed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use archipelago_base::random::Rng;
use archipelago_base::{Error, ErrorKind, Result};
use archipelago_engine::compaction::job::CompactionSpec;
use archipelago_engine::db::{Components, Db};
use archipelago_engine::executor::{JobExecutor, LocalExecutor};
use archipelago_engine::flush::FlushSpec;
use archipelago_engine::gc::job::GcSpec;
use archipelago_engine::job::{JobContext, JobOutput};
use archipelago_engine::key::KeyRange;
use archipelago_engine::options::{CfOptions, Compression, DbOptions};
use archipelago_env::{FileClass, FileSystem, IoContext, IoPurpose};

use crate::crash_model::{self as model, Contents, Model, Script};
use crate::disk::TestDisk;
use crate::separation::{self, Separation};
use crate::support::{over, small_db, small_family, stepped};

pub(crate) type Files = BTreeMap<String, Vec<u8>>;

fn context() -> IoContext {
    IoContext::new(FileClass::Other, IoPurpose::Maintenance)
}

/// Every file of the directory.
pub(crate) fn files(fs: &TestDisk, dir: &str) -> Files {
    let entries = fs.list(Path::new(dir)).unwrap();
    let path = |name: &str| PathBuf::from(dir).join(name);
    entries
        .into_iter()
        .filter(|entry| !entry.is_dir)
        .map(|entry| (entry.name.clone(), fs.read(&path(&entry.name), context()).unwrap()))
        .collect()
}

/// A disk with these files in `/db`.
pub(crate) fn disk(files: &Files) -> TestDisk {
    let fs = TestDisk::new();
    fs.create_dir_all(Path::new("/db")).unwrap();
    for (name, bytes) in files {
        let mut file = fs
            .create(
                &PathBuf::from("/db").join(name),
                context(),
                archipelago_env::CreateOptions::default(),
            )
            .unwrap();
        file.append(bytes).unwrap();
        file.sync().unwrap();
    }
    fs.sync_dir(Path::new("/db")).unwrap();
    fs
}

/// A small closed database with all kinds of files and records, and its content.
fn closed_database() -> (Files, Contents) {
    let fs = TestDisk::new();
    let shared: Arc<dyn FileSystem> = Arc::new(fs.clone());
    let db = model::create(Arc::clone(&shared), model::manual(), &model::Hooks::default());
    let (mut script, mut model) = (Script::new(11), Model::default());
    for step in 0..90 {
        let op = script.op(&model);
        model.apply(&op);
        model::perform_stepping(&db, &shared, &op, &model::Hooks::default()).unwrap();
        if step == 30 {
            db.compact_range(db.default_family(), &KeyRange::all()).unwrap();
        }
        if step == 75 {
            for family in model::FAMILIES.into_iter().chain([model::ORDERED]) {
                db.flush(&db.family(family).unwrap()).unwrap();
            }
        }
    }
    assert_eq!(model::contents(&db).unwrap(), without_empty(&model.contents));
    db.close().unwrap();
    let mut files = files(&fs, "/db");
    let floor = log_floor(&fs);
    let needed = |no: &str| no.parse::<u64>().unwrap() >= floor;
    files.retain(|name, _| name.strip_suffix(".log").is_none_or(needed));
    assert!(files.keys().any(|name| name.ends_with(".log")), "no segment is needed");
    (files, without_empty(&model.contents))
}

/// The oldest log segment that the manifest needs. Older ones wait to be overwritten, and their
/// bytes do not matter.
fn log_floor(fs: &TestDisk) -> u64 {
    let mut dump = String::new();
    archipelago_engine::manifest::dump(fs, Path::new("/db"), &mut dump).unwrap();
    let floors = dump.lines().filter_map(|line| line.trim().strip_prefix("log floor "));
    floors.map(|floor| floor.parse().unwrap()).max().unwrap()
}

fn without_empty(contents: &Contents) -> Contents {
    contents.iter().filter(|e| !e.1.is_empty()).map(|(k, v)| (*k, v.clone())).collect()
}

/// Opens, verifies and reads everything in full.
fn read_all(fs: &TestDisk) -> Result<Contents> {
    let db = model::open_over(Arc::new(fs.clone()), model::manual(), &model::Hooks::default())?;
    let report = db.verify(|_, _| {})?;
    if let Some(error) = report.errors.first() {
        return Err(error.clone());
    }
    model::contents(&db)
}

/// Checks that the damage is an error that names the file, or concerns only bytes that do not
/// matter.
fn judge(name: &str, what: &str, result: Result<Contents>, want: &Contents, may_pass: bool) {
    match result {
        Ok(got) => {
            let found = model::differences(&got, want);
            assert!(
                found.is_empty(),
                "{name}: {what}: wrong data: {:#?}",
                &found[..found.len().min(5)]
            );
            assert!(may_pass, "{name}: {what}: not detected");
        }
        Err(error) => {
            let text = error.to_string();
            assert!(text.contains(name), "{name}: {what}: the file is not named: {text}");
            let kinds = [ErrorKind::Corrupt, ErrorKind::Unsupported, ErrorKind::InvalidArgument];
            assert!(kinds.contains(&error.kind()), "{name}: {what}: {text}");
        }
    }
}

/// Whether a changed byte may stay unnoticed, while the data are still correct. The lock file has
/// no content. A mark file is evidence that may be lost. The last record of a log segment and of a
/// manifest says only that the others are durable, or which segment is next.
fn means_nothing(name: &str, offset: usize, len: usize) -> bool {
    let last_is_a_mark = name.ends_with(".log") || name.starts_with("MANIFEST");
    let is_always_right = name == "LOCK" || name.starts_with("MARK-");
    is_always_right || last_is_a_mark && offset.saturating_add(36) >= len
}

/// Offsets of a file to try: all of small files, a sample of large ones, and always the ends.
fn offsets(len: usize, rng: &mut Rng) -> Vec<usize> {
    let full = std::env::var_os("ARCHIPELAGO_CRASH_FULL").is_some();
    if len <= 200 || full {
        return (0..len).collect();
    }
    let mut sample: Vec<usize> = (0..40).map(|_| rng.usize(..len)).collect();
    sample.extend((0..10).chain(len - 60..len));
    sample
}

#[test]
fn a_flipped_byte_anywhere_is_named_and_never_read_as_data() {
    let (files, want) = closed_database();
    assert!(files.keys().filter(|name| name.ends_with(".sst")).count() > 3, "{:?}", files.keys());
    assert!(files.keys().any(|name| name.ends_with(".log")));
    assert_eq!(read_all(&disk(&files)).unwrap(), want);
    let mut rng = Rng::with_seed(5);
    let mut tables = 0;
    for (name, bytes) in &files {
        // The tables have one format, so some of them stand for all.
        tables += usize::from(name.ends_with(".sst"));
        if name.ends_with(".sst") && tables % 4 != 1 {
            continue;
        }
        for offset in offsets(bytes.len(), &mut rng) {
            let mut damaged = files.clone();
            let mask = 1u8 << rng.u32(..8);
            damaged.get_mut(name).unwrap()[offset] ^= mask;
            let what = format!("byte {offset} of {} with mask {mask:#x}", bytes.len());
            let result = read_all(&disk(&damaged));
            judge(name, &what, result, &want, means_nothing(name, offset, bytes.len()));
        }
    }
}

#[test]
fn a_shortened_or_missing_file_is_named() {
    let (files, want) = closed_database();
    let mut rng = Rng::with_seed(6);
    let last_log = files.keys().rfind(|name| name.ends_with(".log")).unwrap();
    // A segment that the manifest does not need waits to be overwritten.
    let is_spare = |name: &str| name.ends_with(".log") && name != last_log;
    for (name, bytes) in &files {
        let mut lens: Vec<usize> = (0..6).map(|_| rng.usize(..bytes.len().max(1))).collect();
        lens.extend([0, bytes.len().saturating_sub(1)]);
        for len in lens {
            let mut damaged = files.clone();
            damaged.get_mut(name).unwrap().truncate(len);
            let what = format!("cut from {} to {len} bytes", bytes.len());
            let result = read_all(&disk(&damaged));
            let harmless = is_spare(name) || means_nothing(name, len, bytes.len());
            judge(name, &what, result, &want, harmless);
        }
        let mut damaged = files.clone();
        damaged.remove(name);
        let result = read_all(&disk(&damaged));
        judge(name, "removed", result, &want, is_spare(name) || means_nothing(name, 0, usize::MAX));
    }
}

/// An executor of this process whose compactions write invalid files.
struct NotingExecutor;

impl JobExecutor for NotingExecutor {
    fn flush(&self, spec: &FlushSpec, context: &JobContext<'_>) -> Result<JobOutput> {
        LocalExecutor.flush(spec, context)
    }

    fn compact(&self, spec: &CompactionSpec, context: &JobContext<'_>) -> Result<JobOutput> {
        LocalExecutor.compact(spec, context)
    }

    fn gc(&self, spec: &GcSpec, context: &JobContext<'_>) -> Result<JobOutput> {
        LocalExecutor.gc(spec, context)
    }

    fn runs_here(&self) -> bool {
        true
    }

    fn prefers_invalid_files(&self) -> bool {
        true
    }
}

/// Opens a database that separates values and collects their garbage eagerly.
pub(crate) fn open_separated(fs: &TestDisk) -> Result<Db> {
    let family = Separation::EAGER.of(CfOptions {
        level_base_bytes: 16 << 10,
        target_file_bytes: 4 << 10,
        l0_compaction_trigger: 2,
        buckets: 1,
        compression: Compression::None,
        compression_last: Compression::None,
        ..small_family()
    });
    let components = Components { executor: Arc::new(NotingExecutor), ..over(fs, family) };
    Db::open_with("/db", small_db(), components)
}

/// A closed database with tables of references, value files and invalid files, and its content. Its
/// manifest has every change of value files and of invalid files.
pub(crate) fn closed_with_separated_values() -> (Files, Contents) {
    let fs = TestDisk::new();
    let db = open_separated(&fs).unwrap();
    let mut rows = BTreeMap::new();
    // From the eighth invalid file on, some are merged.
    for round in 0..10u8 {
        for n in (0..60u32).filter(|n| round == 0 || n % 3 == u32::from(round) % 3) {
            let len = if n % 4 == 0 { 20 } else { 600 };
            let (key, value) = (format!("key{n:04}").into_bytes(), vec![b'a' + round; len]);
            while let Err(error) = db.put(&key, &value) {
                assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
                db.step_background().unwrap();
            }
            rows.insert(key, value);
        }
        db.compact_range(db.default_family(), &KeyRange::all()).unwrap();
        db.wait_for_background().unwrap();
    }
    assert!(separation::audit(&db).references > 0);
    let contents = Contents::from([("default", rows)]);
    assert_eq!(model::contents(&db).unwrap(), contents);
    db.close().unwrap();
    (files(&fs, "/db"), contents)
}

/// Opens, verifies and reads a database with separated values. Of several errors, the first one
/// that names the file counts.
fn read_separated(fs: &TestDisk, damaged: &str) -> Result<Contents> {
    let db = open_separated(fs)?;
    let errors = db.verify(|_, _| {})?.errors;
    let naming = errors.iter().find(|error| error.to_string().contains(damaged));
    match naming.or(errors.first()) {
        Some(error) => Err(error.clone()),
        None => model::contents(&db),
    }
}

/// Flips bytes of a file of a database with separated values, and judges each result.
fn judge_flips(files: &Files, want: &Contents, name: &str, offsets: impl Iterator<Item = usize>) {
    let len = files[name].len();
    for offset in offsets {
        let mut damaged = files.clone();
        damaged.get_mut(name).unwrap()[offset] ^= 1u8 << (offset % 8);
        let what = format!("byte {offset} of {len}");
        let result = read_separated(&disk(&damaged), name);
        judge(name, &what, result, want, means_nothing(name, offset, len));
    }
}

#[test]
fn flipped_byte_of_a_value_file_or_of_references_is_named() {
    let (files, want) = closed_with_separated_values();
    assert_eq!(read_separated(&disk(&files), "").unwrap(), want);
    let mut rng = Rng::with_seed(7);
    for end in [".vsst", ".sst"] {
        let names: Vec<&String> = files.keys().filter(|name| name.ends_with(end)).collect();
        assert!(!names.is_empty(), "no {end}: {:?}", files.keys());
        for name in names.into_iter().take(3) {
            let offsets = offsets(files[name].len(), &mut rng);
            judge_flips(&files, &want, name, offsets.into_iter());
        }
    }
}

/// A record of a manifest: its place, and its changes as a dump prints them.
struct ManifestRecord {
    offset: usize,
    bytes: usize,
    changes: String,
}

/// The records after the snapshot.
fn manifest_records(fs: &TestDisk) -> Vec<ManifestRecord> {
    let mut dump = String::new();
    archipelago_engine::manifest::dump(fs, Path::new("/db"), &mut dump).unwrap();
    let mut records: Vec<ManifestRecord> = Vec::new();
    for line in dump.lines() {
        if let Some(place) = line.strip_prefix("record at ") {
            let (offset, len) = place.split_once(" (").unwrap();
            let (bytes, _) = len.split_once(' ').unwrap();
            let (offset, bytes) = (offset.parse().unwrap(), bytes.parse().unwrap());
            records.push(ManifestRecord { offset, bytes, changes: String::new() });
        } else if let Some(record) = records.last_mut() {
            record.changes.extend([line, "\n"]);
        }
    }
    records
}

#[test]
fn flipped_byte_in_a_change_of_value_files_is_named() {
    let (files, want) = closed_with_separated_values();
    let name = files.keys().rfind(|name| name.starts_with("MANIFEST")).unwrap();
    let records = manifest_records(&disk(&files));
    // One text for each of the tags 14 to 18.
    for change in [
        "add value file ",
        "remove value file ",
        " inherits from ",
        "add invalid file ",
        "remove invalid file ",
    ] {
        let record = records.iter().find(|record| record.changes.contains(change));
        let record = record.unwrap_or_else(|| panic!("no record with \"{change}\""));
        let bytes = record.offset..record.offset + record.bytes;
        judge_flips(&files, &want, name, bytes.step_by(record.bytes.div_ceil(16)));
    }
}

#[test]
fn missing_or_shortened_value_or_invalid_file_is_named() {
    let (files, want) = closed_with_separated_values();
    for end in [".vsst", ".inv"] {
        let name = files.keys().find(|name| name.ends_with(end));
        let name = name.unwrap_or_else(|| panic!("no {end}: {:?}", files.keys()));
        let len = files[name].len();
        for left in [0, len / 2, len - 1] {
            let mut damaged = files.clone();
            damaged.get_mut(name).unwrap().truncate(left);
            let result = read_separated(&disk(&damaged), name);
            judge(name, &format!("cut from {len} to {left} bytes"), result, &want, false);
        }
        let mut damaged = files.clone();
        damaged.remove(name);
        judge(name, "removed", read_separated(&disk(&damaged), name), &want, false);
    }
}

/// Checks that opening fails with all of `says` in its message, and changes nothing.
fn refused(
    fs: &TestDisk,
    options: DbOptions,
    components: Components,
    kind: ErrorKind,
    says: &[&str],
) -> Error {
    let before = files(fs, "/db");
    let error = Db::open_with("/db", options, components).unwrap_err();
    assert_eq!(error.kind(), kind, "{error}");
    for part in says {
        assert!(error.to_string().contains(part), "\"{part}\" is not in: {error}");
    }
    let mut after = files(fs, "/db");
    if !before.contains_key("LOCK") {
        after.remove("LOCK");
    }
    assert_eq!(after.keys().collect::<Vec<_>>(), before.keys().collect::<Vec<_>>(), "{error}");
    assert!(after == before, "a file was changed: {error}");
    error
}

fn components(fs: &TestDisk) -> Components {
    Components { fs: Arc::new(fs.clone()), ..stepped() }
}

#[test]
fn directories_that_cannot_be_opened_are_refused_unchanged() {
    let foreign: Files =
        [("notes.txt".to_owned(), b"not a database".to_vec())].into_iter().collect();
    let fs = disk(&foreign);
    refused(&fs, model::manual(), components(&fs), ErrorKind::InvalidArgument, &["/db"]);

    let (ours, _) = closed_database();
    let mut other_version = ours.clone();
    let identity = String::from_utf8(ours["IDENTITY"].clone()).unwrap();
    let body = identity[..identity.rfind("crc32c").unwrap()].replace("format 5", "format 9999");
    assert!(body.contains("9999"), "{identity}");
    let sealed = format!("{body}crc32c {:08x}\n", archipelago_base::checksum::crc(body.as_bytes()));
    other_version.insert("IDENTITY".to_owned(), sealed.into_bytes());
    let fs = disk(&other_version);
    refused(&fs, model::manual(), components(&fs), ErrorKind::Unsupported, &["9999", "IDENTITY"]);

    let mut headless = ours.clone();
    headless.remove("CURRENT");
    let fs = disk(&headless);
    refused(&fs, model::manual(), components(&fs), ErrorKind::Corrupt, &["CURRENT"]);

    let mut nameless = ours;
    nameless.remove("IDENTITY");
    let fs = disk(&nameless);
    refused(&fs, model::manual(), components(&fs), ErrorKind::InvalidArgument, &["IDENTITY"]);
}

#[test]
fn settings_that_do_not_fit_the_database_are_refused_unchanged() {
    let (ours, _) = closed_database();
    let fs = disk(&ours);
    let mut unknown = components(&fs);
    unknown.families.insert("reefs".to_owned(), CfOptions::default());
    refused(
        &fs,
        model::manual(),
        unknown,
        ErrorKind::InvalidArgument,
        &["\"reefs\"", "does not exist"],
    );

    let mut no_operator = components(&fs);
    let wrong = CfOptions { merge_operator: Some("of-mine".to_owned()), ..CfOptions::default() };
    no_operator.families.insert("counters".to_owned(), wrong);
    refused(
        &fs,
        model::manual(),
        no_operator,
        ErrorKind::InvalidArgument,
        &["of-mine", "counters"],
    );

    let bad = CfOptions { write_buffers_max: 0, ..CfOptions::default() };
    let mut out_of_range = components(&fs);
    out_of_range.families.insert("texts".to_owned(), bad);
    refused(
        &fs,
        model::manual(),
        out_of_range,
        ErrorKind::InvalidArgument,
        &["write_buffers_max is 0"],
    );

    let exclusive = DbOptions { error_if_exists: true, ..model::manual() };
    refused(&fs, exclusive, components(&fs), ErrorKind::InvalidArgument, &["error_if_exists"]);

    let empty = disk(&Files::new());
    let must_exist = DbOptions { create_if_missing: false, ..model::manual() };
    refused(&empty, must_exist, components(&empty), ErrorKind::NotFound, &["/db"]);
}
