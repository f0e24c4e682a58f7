//! Permission bits of everything that a database creates, under several umasks.
//!
//! The umask belongs to the whole process. Each case therefore runs in a process of its own. A
//! shell sets the umask and starts it.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use archipelago_engine::db::{Components, Db, IngestOptions};
use archipelago_engine::options::DbOptions;
use archipelago_engine::sst::{SstWriter, TableOptions};
use archipelago_env::local::LocalFs;
use archipelago_env::{FileSystem, GroupAccess};
use archipelago_tier::{DeviceKind, DeviceSettings, TieredFs};
use tempfile::TempDir;

use crate::support::{small_db, small_family};

const DIR: &str = "ARCHIPELAGO_FILE_MODES_DIR";
const ACCESS: &str = "ARCHIPELAGO_FILE_MODES_ACCESS";

fn access_of(name: &str) -> (GroupAccess, u32, u32) {
    match name {
        "none" => (GroupAccess::None, 0o600, 0o700),
        "read" => (GroupAccess::Read, 0o640, 0o750),
        _ => (GroupAccess::Write, 0o660, 0o770),
    }
}

/// Runs [`child_creates_every_kind_of_file`] under a umask.
fn run_child(umask: &str, access: &str) {
    let dir = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let output = Command::new("sh")
        .args(["-c", &format!("umask {umask}; exec \"$0\" \"$@\"")])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "file_modes::child_creates_every_kind_of_file", "--nocapture"])
        .env(DIR, dir.path())
        .env(ACCESS, access)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "umask {umask}, access {access}: {text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(dir.path().join("done").exists(), "the child did its work");
}

#[test]
fn files_are_private_under_a_loose_umask() {
    run_child("000", "none");
    run_child("022", "none");
}

#[test]
fn group_access_does_not_depend_on_the_umask() {
    run_child("000", "read");
    run_child("077", "read");
    run_child("022", "write");
}

#[test]
fn child_creates_every_kind_of_file() {
    let Some(dir) = std::env::var_os(DIR) else { return };
    let dir = Path::new(&dir);
    let access = std::env::var(ACCESS).unwrap();
    plain_database(&dir.join("plain"), &access);
    database_on_tiers(&dir.join("tiers"), &access);
    LocalFs::for_reports().create_dir_all(&dir.join("done")).unwrap();
}

fn plain_database(base: &Path, access: &str) {
    let fs: Arc<dyn FileSystem> = Arc::new(LocalFs::for_group(access_of(access).0));
    fs.create_dir_all(base).unwrap();
    let dir = base.join("a/db");
    let db = fill(&fs, &dir, access);
    let table = base.join("made.sst");
    let mut writer = SstWriter::create(&fs, &table, TableOptions::default()).unwrap();
    writer.put(b"zz", b"ingested").unwrap();
    writer.finish().unwrap();
    db.ingest(db.default_family(), &[&table], &IngestOptions { link: false }).unwrap();
    db.checkpoint(base.join("checkpoint")).unwrap();
    let kinds = walk(base, access, Bits::AtMost);
    db.close().unwrap();
    walk(base, access, Bits::Exactly);
    for kind in ["sst", "log", "MANIFEST", "CURRENT", "IDENTITY", "LOCK"] {
        assert!(kinds.contains(kind), "no {kind} in {kinds:?}");
    }
}

fn database_on_tiers(base: &Path, access: &str) {
    let device = |name: &str, kind| DeviceSettings {
        capacity_bytes: 256 << 20,
        ..DeviceSettings::new(base.join(name), kind).creating()
    };
    let devices = [device("fast", DeviceKind::Mapped), device("slow", DeviceKind::Direct)];
    let group_access = access_of(access).0;
    let components = archipelago_tier::Components {
        group_access,
        outside: Arc::new(LocalFs::for_group(group_access)),
        ..Default::default()
    };
    let tiers = TieredFs::open("tiers:", &devices, components).unwrap();
    let fs = Arc::clone(&tiers) as Arc<dyn FileSystem>;
    let db = fill(&fs, Path::new("tiers:/db"), access);
    db.checkpoint(base.join("checkpoint")).unwrap();
    let kinds = walk(base, access, Bits::AtMost);
    db.close().unwrap();
    tiers.close().unwrap();
    drop(tiers);
    walk(base, access, Bits::Exactly);
    for kind in ["DEVICE", "LOCK", "CURRENT"] {
        assert!(kinds.contains(kind), "no {kind} in {kinds:?}");
    }
}

/// A database with several tables, a recycled log segment and an open log.
fn fill(fs: &Arc<dyn FileSystem>, dir: &Path, access: &str) -> Db {
    let components = Components {
        fs: Arc::clone(fs),
        families: [("default".to_owned(), small_family())].into_iter().collect(),
        ..Components::default()
    };
    let options = DbOptions { group_access: access_of(access).0, ..small_db() };
    let db = Db::open_with(dir, options, components).unwrap();
    for round in 0..4u32 {
        for n in 0..300u32 {
            db.put(format!("key{n:04}").as_bytes(), &[round as u8; 300]).unwrap();
        }
        db.flush(db.default_family()).unwrap();
    }
    db.put(b"last", b"in the log").unwrap();
    db.wait_for_background().unwrap();
    db
}

/// How the bits of a file compare with the wanted ones.
#[derive(Clone, Copy, PartialEq)]
enum Bits {
    /// Never looser. A background thread that creates a file gives it the bits of the group only
    /// after the file exists.
    AtMost,
    /// Equal, once no thread creates files any more.
    Exactly,
}

/// Checks the bits of everything below `base`, itself included. Returns the kinds of files seen.
fn walk(base: &Path, access: &str, bits: Bits) -> BTreeSet<String> {
    let (_, file_mode, dir_mode) = access_of(access);
    let mut kinds = BTreeSet::new();
    let mut left = vec![base.to_owned()];
    while let Some(path) = left.pop() {
        let metadata = match std::fs::symlink_metadata(&path) {
            Ok(metadata) => metadata,
            // The open database removes files that it no longer needs.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            Err(error) => panic!("{}: {error}", path.display()),
        };
        let wanted = if metadata.is_dir() { dir_mode } else { file_mode };
        let mode = metadata.mode() & 0o777;
        let name = path.display();
        assert_eq!(mode & !wanted, 0, "{name} has mode {mode:o}, looser than {wanted:o}");
        if bits == Bits::Exactly {
            assert_eq!(mode, wanted, "{name} has mode {mode:o}, not {wanted:o}");
        }
        if metadata.is_dir() {
            left.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            continue;
        }
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let kind = match name.rsplit_once('.') {
            Some((_, extension)) => extension,
            None => name.split('-').next().unwrap_or_default(),
        };
        kinds.insert(kind.to_owned());
    }
    kinds
}

#[test]
fn existing_directory_keeps_its_mode() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let db = Db::open(dir.path(), DbOptions::default()).unwrap();
    db.put(b"a", b"b").unwrap();
    db.close().unwrap();
    let mode = |name: &str| std::fs::metadata(dir.path().join(name)).unwrap().mode() & 0o777;
    assert_eq!(mode(""), 0o755, "the directory is the user's");
    assert_eq!(mode("CURRENT"), 0o600);
}

#[test]
fn open_refuses_a_file_system_of_another_group_access() {
    let dir = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let options = DbOptions { group_access: GroupAccess::Read, ..DbOptions::default() };
    let path = dir.path().join("db");
    let error = Db::open_with(&path, options, Components::default()).unwrap_err();
    assert!(error.to_string().contains("LocalFs::for_group"), "{error}");
    assert!(!path.exists(), "nothing was created");
}
