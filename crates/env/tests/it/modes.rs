//! Permission bits of files and directories that the local file systems create.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use archipelago_base::Epoch;
use archipelago_env::local::LocalFs;
use archipelago_env::local::mapped::MappedFs;
use archipelago_env::{
    CreateOptions, FileClass, FileSystem, GroupAccess, IoContext, IoPurpose, LogOptions,
};
use tempfile::TempDir;

use crate::any;

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().mode() & 0o7777
}

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

/// Creates a file in every possible way, and checks the bits.
fn check(fs: &dyn FileSystem, base: &Path, file_mode: u32, dir_mode: u32) {
    let dir = base.join("a/b");
    fs.create_dir_all(&dir).unwrap();
    assert_eq!((mode(&base.join("a")), mode(&dir)), (dir_mode, dir_mode));
    let table = IoContext::sst(IoPurpose::Flush, 0);
    for direct in [false, true] {
        let name = dir.join(format!("table{direct}"));
        let options = CreateOptions { direct, ..CreateOptions::default() };
        fs.create(&name, table, options).unwrap().append(b"x").unwrap();
    }
    fs.write_atomic(&dir.join("CURRENT"), b"x", any()).unwrap();
    let options = |recycle| LogOptions { incarnation: Epoch(1), size_hint_bytes: 0, recycle };
    let log = IoContext::new(FileClass::Wal, IoPurpose::ForegroundWrite);
    drop(fs.create_log(&dir.join("1.log"), log, options(None)).unwrap());
    set_mode(&dir.join("1.log"), 0o644);
    drop(fs.create_log(&dir.join("2.log"), log, options(Some(dir.join("1.log")))).unwrap());
    let _lock = fs.lock(&dir.join("LOCK")).unwrap();
    for entry in fs.list(&dir).unwrap() {
        assert_eq!(mode(&dir.join(&entry.name)), file_mode, "{}", entry.name);
    }
}

#[test]
fn every_created_file_has_the_bits_of_the_setting() {
    let cases = [
        (GroupAccess::None, 0o600, 0o700),
        (GroupAccess::Read, 0o640, 0o750),
        (GroupAccess::Write, 0o660, 0o770),
    ];
    for (access, file_mode, dir_mode) in cases {
        // On tmpfs a log also has a ring file.
        for place in [Path::new(env!("CARGO_TARGET_TMPDIR")), Path::new("/dev/shm")] {
            let dir = TempDir::new_in(place).unwrap();
            check(&LocalFs::for_group(access), &dir.path().join("local"), file_mode, dir_mode);
            check(&MappedFs::for_group(access), &dir.path().join("mapped"), file_mode, dir_mode);
        }
    }
}

#[test]
fn file_written_again_loses_bits_it_must_not_have() {
    let dir = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = dir.path().join("file");
    drop(LocalFs::for_reports().create(&path, any(), CreateOptions::default()).unwrap());
    set_mode(&path, 0o666);
    drop(LocalFs::new().create(&path, any(), CreateOptions::default()).unwrap());
    assert_eq!(mode(&path), 0o600);
}

#[test]
fn directory_keeps_its_set_group_id_bit() {
    let dir = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    set_mode(dir.path(), 0o2700);
    let inner = dir.path().join("inner");
    LocalFs::for_group(GroupAccess::Write).create_dir_all(&inner).unwrap();
    assert_eq!(mode(&inner), 0o2770);
    assert_eq!(mode(dir.path()), 0o2700, "an existing directory is not changed");
}

#[test]
fn device_file_keeps_its_mode() {
    let full = Path::new("/dev/full");
    let before = mode(full);
    drop(LocalFs::new().create(full, any(), CreateOptions::default()).unwrap());
    assert_eq!(mode(full), before);
}
