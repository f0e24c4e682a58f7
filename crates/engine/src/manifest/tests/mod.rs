//! The manifest as a whole: directories, counters, new manifests. `crash` has crashes and faults,
//! `model` random edits, `format` the encoding, `fencing` lots and owners.

mod crash;
mod fencing;
mod format;
mod marks;
mod model;

use std::path::Path;
use std::sync::Arc;

use archipelago_base::{CfId, Epoch, FileNo, Result, SeqNo};
use archipelago_env::mem::MemFs;
use archipelago_env::{CreateOptions, FileSystem, IoContext, IoPurpose};

use super::identity::{current, set_current};
use super::*;
use crate::bucket::BucketMap;
use crate::file_meta::{CURRENT_NAME, FileMeta, IDENTITY_NAME, manifest_name, mark_name, sst_name};
use crate::key::KeyRange;
use crate::live_file::Trash;
use crate::options::CfOptions;
use crate::version::tests::meta;

pub(super) const DIR: &str = "/db";
pub(super) const ID: [u8; 16] = *b"0123456789abcdef";

pub(super) fn dir() -> &'static Path {
    Path::new(DIR)
}

pub(super) fn create(fs: &Arc<dyn FileSystem>) -> Result<VersionSet> {
    VersionSet::create(Arc::clone(fs), dir(), ID, &CfOptions::default(), Arc::default())
}

pub(super) fn recover(fs: &Arc<dyn FileSystem>) -> Result<VersionSet> {
    VersionSet::recover(Arc::clone(fs), dir(), false, Arc::default())
}

pub(super) fn put(fs: &dyn FileSystem, path: &Path, bytes: &[u8]) {
    let context = IoContext::manifest(IoPurpose::Maintenance);
    let mut file = fs.create(path, context, CreateOptions::default()).expect("create");
    file.append(bytes).expect("append");
    file.sync().expect("sync");
    fs.sync_dir(dir()).expect("sync dir");
}

pub(super) fn get(fs: &dyn FileSystem, path: &Path) -> Vec<u8> {
    fs.read(path, IoContext::manifest(IoPurpose::Maintenance)).expect("read")
}

/// A small file that exists, with a fresh number.
pub(super) fn file(
    fs: &dyn FileSystem,
    set: &VersionSet,
    smallest: &[u8],
    largest: &[u8],
) -> FileMeta {
    let no = set.file_numbers().allocate();
    let mut meta = meta(no.0, smallest, largest, (no.0, no.0));
    meta.size_bytes = 3;
    put(fs, &dir().join(sst_name(no)), b"sst");
    meta
}

pub(super) fn add(cf: CfId, level: usize, meta: FileMeta) -> VersionEdit {
    let mut edit = VersionEdit::new();
    edit.add_file(cf, level, meta);
    edit
}

pub(super) fn mem() -> (MemFs, Arc<dyn FileSystem>) {
    let mem = MemFs::new();
    (mem.clone(), Arc::new(mem))
}

/// The changes of an edit without the next file number, which recovery also takes from the
/// directory.
pub(super) fn strip_numbers(edit: &VersionEdit) -> Vec<Change> {
    let kept = edit.changes.iter().filter(|change| !matches!(change, Change::NextFileNo(_)));
    kept.cloned().collect()
}

fn text(error: Result<VersionSet>) -> (ErrorKind, String) {
    let error = error.expect_err("refused");
    (error.kind(), error.to_string())
}

#[test]
fn a_database_comes_back_as_it_was() {
    let (_, fs) = mem();
    let mut set = create(&fs).expect("creates");
    let range = KeyRange { start: b"a".to_vec(), end: Some(b"m".to_vec()) };
    let mut edit = add(CfId(0), 0, file(&*fs, &set, b"a", b"c"));
    edit.flushed_through(CfId(0), range, SeqNo(9));
    let options = Box::new(CfOptions { buckets: 3, ..CfOptions::default() });
    let second = set.next_cf_id();
    edit.push(Change::CreateCf { cf: second, name: "second".into(), options });
    let map = BucketMap::new(Epoch(4), vec![b"k".to_vec()]).expect("valid");
    edit.push(Change::SetBucketMap { cf: second, map });
    edit.push(Change::LogFloor(FileNo(5)));
    edit.push(Change::LastSeq(SeqNo(77)));
    let shadow = ShadowFigures { last: 0.75, ..ShadowFigures::default() };
    let figures = SpaceFigures { shadow, bound: None };
    edit.push(Change::SetSpaceFigures { cf: second, figures });
    let published = set.apply(edit).expect("applies");
    assert_eq!(published.iter().map(|(cf, _)| cf.0).collect::<Vec<_>>(), [0, 1]);
    let before = set.snapshot();
    drop(set);
    let set = recover(&fs).expect("recovers");
    assert_eq!(set.snapshot(), before);
    assert_eq!((set.last_seq(), set.log_floor(), set.db_id()), (SeqNo(77), FileNo(5), &ID));
    assert_eq!(set.cf_named("second"), Some(second));
    assert_eq!((set.space_figures(second), set.space_figures(CfId(0))), (Some(figures), None));
    let version = set.version(second).expect("there");
    assert_eq!((version.map().len(), version.options().buckets), (2, 3));
    let flushed = set.version(CfId(0)).expect("there").flushed_through();
    assert_eq!((flushed.get(b"b"), flushed.get(b"m")), (SeqNo(9), SeqNo(0)));
}

#[test]
fn counters_never_go_back() {
    let (_, fs) = mem();
    let mut set = create(&fs).expect("creates");
    let mut last = Epoch(0);
    for _ in 0..5 {
        for _ in 0..100 {
            let next = set.next_incarnation().expect("reserves");
            assert!(next > last);
            last = next;
        }
        let cf = set.next_cf_id();
        let mut edit = VersionEdit::new();
        let options = Box::new(CfOptions::default());
        edit.push(Change::CreateCf { cf, name: format!("cf{cf}"), options });
        set.apply(edit).expect("creates");
        let mut edit = VersionEdit::new();
        edit.push(Change::DropCf { cf });
        set.apply(edit).expect("drops");
        set = recover(&fs).expect("recovers");
        assert!(set.next_cf_id() > cf, "a dropped id is not used again");
    }
    // A file whose number no edit carries, because the process was killed.
    let stray = FileNo(set.file_numbers().next().0 + 1000);
    put(&*fs, &dir().join(sst_name(stray)), b"x");
    let set = recover(&fs).expect("recovers");
    assert!(set.file_numbers().allocate() > stray);
}

#[test]
fn bad_edits_are_refused_and_change_nothing() {
    let (_, fs) = mem();
    let mut set = create(&fs).expect("creates");
    let before = set.snapshot();
    let create_cf = |cf, name: &str| Change::CreateCf {
        cf: CfId(cf),
        name: name.into(),
        options: Box::new(CfOptions::default()),
    };
    let no_file = Change::RemoveFile { cf: CfId(0), level: 0, no: FileNo(1) };
    for (change, kind) in [
        (Change::DropCf { cf: CfId(0) }, ErrorKind::InvalidArgument),
        (Change::DropCf { cf: CfId(9) }, ErrorKind::Internal),
        (create_cf(1, "default"), ErrorKind::InvalidArgument),
        (create_cf(1, ""), ErrorKind::InvalidArgument),
        (create_cf(0, "again"), ErrorKind::Internal),
        (no_file, ErrorKind::Internal),
    ] {
        let mut edit = VersionEdit::new();
        edit.push(create_cf(5, "valid part of the same edit"));
        edit.push(change);
        assert_eq!(set.apply(edit).expect_err("refused").kind(), kind);
    }
    assert_eq!(set.snapshot(), before);
    assert!(!set.is_unsettled());
    let again = recover(&fs).expect("recovers").snapshot();
    assert_eq!(strip_numbers(&again), strip_numbers(&before));
    let mut set = VersionSet::recover(Arc::clone(&fs), dir(), true, Arc::default()).expect("reads");
    assert_eq!(set.next_incarnation().expect_err("refused").kind(), ErrorKind::ReadOnly);
}

#[test]
fn dropped_families_and_removed_files_reach_the_trash() {
    let (_, fs) = mem();
    let mut set = create(&fs).expect("creates");
    let trash: Arc<Trash> = Arc::clone(set.trash());
    let cf = set.next_cf_id();
    let mut edit = VersionEdit::new();
    let options = Box::new(CfOptions::default());
    edit.push(Change::CreateCf { cf, name: "short-lived".into(), options });
    let (one, two) = (file(&*fs, &set, b"a", b"b"), file(&*fs, &set, b"a", b"b"));
    let (one_no, two_no) = (one.file_no(), two.file_no());
    edit.add_file(CfId(0), 1, one);
    edit.add_file(cf, 0, two);
    edit.push(Change::SetSpaceFigures { cf, figures: SpaceFigures::default() });
    set.apply(edit).expect("applies");
    let mut edit = VersionEdit::new();
    edit.remove_file(CfId(0), 1, one_no);
    edit.push(Change::DropCf { cf });
    let published = set.apply(edit).expect("applies");
    assert_eq!(published.len(), 1, "a dropped family publishes nothing");
    let mut gone: Vec<FileNo> = trash.take().into_iter().map(|trashed| trashed.no()).collect();
    gone.sort();
    assert_eq!(gone, [one_no, two_no]);
}

#[test]
fn a_manifest_that_grew_is_started_anew_and_the_old_one_goes() {
    let (_, fs) = mem();
    let mut set = create(&fs).expect("creates");
    let first = set.manifest_no();
    let mut seen = 0;
    let mut rotated = 0;
    let mut manifest = first;
    while rotated < 2 {
        let mut long = file(&*fs, &set, b"a", b"z");
        long.median_key = vec![b'x'; 60_000];
        let no = long.file_no();
        set.apply(add(CfId(0), 0, long)).expect("adds");
        let mut edit = VersionEdit::new();
        edit.remove_file(CfId(0), 0, no);
        set.apply(edit).expect("removes");
        if set.manifest_no() != manifest {
            (manifest, rotated) = (set.manifest_no(), rotated + 1);
        }
        seen += 1;
        assert!(seen < 100, "never rotates");
    }
    assert!(seen > 20, "rotates too often");
    let names = fs.list(dir()).expect("lists");
    let manifests: Vec<_> = names.iter().filter(|e| e.name.starts_with("MANIFEST")).collect();
    assert_eq!(manifests.len(), 1);
    assert_eq!(current(&*fs, dir()).expect("names one"), manifest);
    let again = recover(&fs).expect("recovers");
    assert_eq!(strip_numbers(&again.snapshot()), strip_numbers(&set.snapshot()));
}

#[test]
fn directories_of_others_are_refused_and_left_alone() {
    let (mem, fs) = mem();
    assert_eq!(text(recover(&fs)).0, ErrorKind::NotFound);
    let state = |fs: &MemFs| inspect(fs, dir());
    assert_eq!(state(&mem).expect("fine"), DirectoryState::Absent);
    mem.create_dir_all(dir()).expect("creates");
    put(&mem, &dir().join("LOCK"), b"");
    assert_eq!(state(&mem).expect("fine"), DirectoryState::Absent);
    put(&mem, &dir().join("holiday.jpg"), b"");
    let (kind, message) = text(create(&fs));
    assert!(kind == ErrorKind::InvalidArgument && message.contains("holiday.jpg"), "{message}");
    mem.remove(&dir().join("holiday.jpg")).expect("removes");
    // RocksDB has an IDENTITY file too.
    put(&mem, &dir().join(IDENTITY_NAME), b"5a0b7e51-0f40-4a36-b5b7-f9aa2a3e6a01\n");
    let (kind, message) = text(create(&fs));
    assert!(kind == ErrorKind::InvalidArgument && message.contains("something else"), "{message}");
    let newer = Identity { format: FORMAT_VERSION + 1, db_id: ID };
    put(&mem, &dir().join(IDENTITY_NAME), &newer.encode());
    assert_eq!(text(create(&fs)).0, ErrorKind::Unsupported);
    assert_eq!(mem.list(dir()).expect("lists").len(), 2, "nothing changed");
    // A creation may overwrite the files of an interrupted one.
    put(&mem, &dir().join(IDENTITY_NAME), &Identity { format: FORMAT_VERSION, db_id: ID }.encode());
    put(&mem, &dir().join(manifest_name(FileNo(1))), b"half");
    assert_eq!(text(recover(&fs)).0, ErrorKind::NotFound);
    drop(create(&fs).expect("creates"));
    assert!(text(create(&fs)).1.contains("already"));
    recover(&fs).expect("recovers");
    put(&mem, &dir().join("000009.log"), b"");
    mem.remove(&dir().join(CURRENT_NAME)).expect("removes");
    let (kind, message) = text(recover(&fs));
    assert!(kind == ErrorKind::Corrupt && message.contains(CURRENT_NAME), "{message}");
}

#[test]
fn missing_files_and_manifests_are_named() {
    let (mem, fs) = mem();
    let mut set = create(&fs).expect("creates");
    let meta = file(&*fs, &set, b"a", b"b");
    let path = dir().join(sst_name(meta.file_no()));
    set.apply(add(CfId(0), 0, meta)).expect("adds");
    put(&mem, &path, b"short or long");
    assert!(text(recover(&fs)).1.contains(path.to_str().expect("text")));
    mem.remove(&path).expect("removes");
    let (kind, message) = text(recover(&fs));
    assert!(kind == ErrorKind::Corrupt && message.contains("missing"), "{message}");
    set_current(&mem, dir(), FileNo(444)).expect("writes");
    let (kind, message) = text(recover(&fs));
    assert!(kind == ErrorKind::Corrupt && message.contains("MANIFEST-000444"), "{message}");
}

#[test]
fn an_export_is_a_database_of_its_own() {
    let (mem, fs) = mem();
    let mut set = create(&fs).expect("creates");
    let meta = file(&*fs, &set, b"a", b"b");
    let name = sst_name(meta.file_no());
    set.apply(add(CfId(0), 3, meta)).expect("adds");
    let copy = Path::new("/copy");
    mem.create_dir_all(copy).expect("creates");
    mem.link(&dir().join(&name), &copy.join(&name)).expect("links");
    set.export(copy).expect("exports");
    let other =
        VersionSet::recover(Arc::clone(&fs), copy, false, Arc::default()).expect("recovers");
    let files = |set: &VersionSet| {
        set.version(CfId(0)).expect("there").files().map(|(l, f)| (l, f.no)).collect::<Vec<_>>()
    };
    assert_eq!(files(&other), files(&set));
    set.apply(VersionEdit::new()).expect("the original goes on");
}

#[test]
fn the_dump_shows_every_record() {
    let (mem, fs) = mem();
    let mut set = create(&fs).expect("creates");
    set.apply(add(CfId(0), 2, file(&*fs, &set, b"a\x00", b"b"))).expect("adds");
    let mut out = String::new();
    dump(&mem, dir(), &mut out).expect("dumps");
    for part in [
        "database 30313233343536373839616263646566",
        "create column family 0 \"default\"",
        "to cf 0 level 2: 3 bytes, \"a\\x00\" to \"b\"",
        "synced through",
        "\nend\n",
    ] {
        assert!(out.contains(part), "{part} is not in\n{out}");
    }
    let path = dir().join(manifest_name(set.manifest_no()));
    let bytes = get(&mem, &path);
    put(&mem, &path, &bytes[..bytes.len() - 1]);
    let mut out = String::new();
    dump(&mem, dir(), &mut out).expect("dumps");
    assert!(out.contains("cut off"), "{out}");
}
