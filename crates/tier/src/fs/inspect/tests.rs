use archipelago_base::{Epoch, ErrorKind};
use archipelago_env::fault::{FaultFs, Operation, Rule};
use archipelago_env::mem::MemFs;
use archipelago_env::{CreateOptions, FileSystem, IoPurpose, LogOptions};

use super::*;
use crate::{Components, DeviceKind, DeviceParts, DeviceSettings};

fn tiers() -> Arc<TieredFs> {
    tiers_over(&(Arc::new(MemFs::new()) as Arc<dyn FileSystem>))
}

fn tiers_over(disk: &Arc<dyn FileSystem>) -> Arc<TieredFs> {
    let device = |path: &str| DeviceParts {
        settings: DeviceSettings {
            capacity_bytes: 1 << 20,
            ..DeviceSettings::new(path, DeviceKind::Directory).creating()
        },
        fs: Arc::clone(disk),
        is_local: false,
    };
    let components = Components { spawn: None, seed: Some(1), ..Components::default() };
    TieredFs::open_over("tiers:", vec![device("/fast"), device("/slow")], components).unwrap()
}

#[test]
fn file_info_has_all_properties() {
    let tiers = tiers();
    let dir = Path::new("tiers:/db");
    tiers.create_dir_all(dir).unwrap();
    let path = dir.join("7.sst");
    let context = IoContext::sst(IoPurpose::Compaction { from: 4, to: 5 }, 5);
    let mut file = tiers.create(&path, context, CreateOptions::default()).unwrap();
    file.append(b"four").and_then(|()| file.flush()).unwrap();
    assert!(tiers.file_info(&path).unwrap().is_written);
    drop(file);
    tiers.link(&path, &dir.join("8.sst")).unwrap();
    let found = tiers.file_info(&dir.join("8.sst")).unwrap();
    assert_eq!((found.device, found.level, found.len), (1, Some(5), 4));
    assert_eq!((found.names, found.class, found.is_written), (2, FileClass::Sst, false));
    assert_eq!(found.id, tiers.file_info(&path).unwrap().id);
    assert_eq!(found.copies, Vec::<usize>::new());
    assert!(tiers.file_info(Path::new("/elsewhere")).unwrap_err().to_string().contains("tiers:"));
}

#[test]
fn held_file_stays_readable_without_its_name() {
    let tiers = tiers();
    let (path, other) = (Path::new("tiers:/7.sst"), Path::new("tiers:/8.sst"));
    tiers.create_dir_all(tiers.root()).unwrap();
    let context = IoContext::sst(IoPurpose::Flush, 0);
    let mut writer = tiers.create(path, context, CreateOptions::default()).unwrap();
    let file = tiers.file(path).unwrap();
    writer.append(b"one,").and_then(|()| writer.flush()).unwrap();
    tiers.rename(path, other).unwrap();
    assert_eq!((file.id(), file.info().unwrap().len), (file.id(), 4));
    tiers.remove(other).unwrap();
    assert_eq!(file.info().unwrap_err().kind(), ErrorKind::NotFound);
    writer.append(b"two").and_then(|()| writer.sync()).unwrap();
    assert!(file.is_written());
    drop(writer);
    assert!(!file.is_written());
    tiers.settle();
    let reader = file.open(context, OpenOptions::default()).unwrap();
    let mut bytes = [0; 7];
    reader.read_exact_at(0, &mut bytes, context).unwrap();
    assert_eq!((&bytes, reader.len()), (b"one,two", 7));
}

#[test]
fn direct_reads_are_not_prefetched() {
    let table = IoContext::sst(IoPurpose::ForegroundRead, 0);
    let log = IoContext::new(FileClass::Wal, IoPurpose::Recovery);
    for (kind, expected) in [
        (DeviceKind::Directory, [false, true, false]),
        (DeviceKind::Direct, [true, true, false]),
        (DeviceKind::Mapped, [false, false, false]),
    ] {
        let settings = DeviceSettings::new("/only", kind).creating();
        let fs: Arc<dyn FileSystem> = Arc::new(MemFs::new());
        let parts = vec![DeviceParts { settings, fs, is_local: false }];
        let components = Components { spawn: None, seed: Some(1), ..Components::default() };
        let tiers = TieredFs::open_over("tiers:", parts, components).unwrap();
        tiers.create_dir_all(tiers.root()).unwrap();
        let path = Path::new("tiers:/7.sst");
        drop(tiers.create(path, table, CreateOptions::default()).unwrap());
        let file = tiers.file(path).unwrap();
        let found = [(table, false), (table, true), (log, false)]
            .map(|(context, direct)| file.is_direct(context, OpenOptions { direct }));
        assert_eq!(found, expected, "{kind:?}");
    }
}

#[test]
fn unrecorded_level_is_an_error() {
    let disk = FaultFs::new(Arc::new(MemFs::new()), 1);
    let tiers = tiers_over(&(Arc::new(disk.clone()) as Arc<dyn FileSystem>));
    tiers.create_dir_all(tiers.root()).unwrap();
    let path = Path::new("tiers:/7.sst");
    let context = IoContext::sst(IoPurpose::Compaction { from: 0, to: 1 }, 1);
    drop(tiers.create(path, context, CreateOptions::default()).unwrap());
    let deeper = IoContext::sst(IoPurpose::Compaction { from: 1, to: 2 }, 2);
    let refused = [Operation::LogAppend, Operation::LogSync, Operation::CreateLog];
    disk.add(Rule::on_any(&refused).path("/names/"));
    assert_eq!(tiers.set_level(path, deeper).unwrap_err().kind(), ErrorKind::Io);
    tiers.reassign(path, deeper);
    assert_eq!(tiers.file_info(path).unwrap().level, Some(1));
    disk.clear();
    drop(tiers);
    let tiers = tiers_over(&(Arc::new(disk) as Arc<dyn FileSystem>));
    assert_eq!(tiers.file_info(path).unwrap().level, Some(1), "after the next open, too");
    tiers.set_level(path, deeper).unwrap();
    assert_eq!(tiers.file_info(path).unwrap().level, Some(2));
    let none = tiers.set_level(Path::new("tiers:/none"), deeper).unwrap_err();
    assert_eq!(none.kind(), ErrorKind::NotFound);
    let no_level = IoContext { level: None, ..deeper };
    assert_eq!(tiers.set_level(path, no_level).unwrap_err().kind(), ErrorKind::InvalidArgument);
}

#[test]
fn renamed_directory_keeps_its_files() {
    let disk = Arc::new(MemFs::new()) as Arc<dyn FileSystem>;
    let tiers = tiers_over(&disk);
    let [dir, inner, other, new] =
        ["tiers:/a", "tiers:/a/b", "tiers:/c", "tiers:/d"].map(Path::new);
    tiers.create_dir_all(inner).unwrap();
    tiers.create_dir_all(other).unwrap();
    let context = IoContext::sst(IoPurpose::Flush, 0);
    let write = |path: &Path| {
        let mut file = tiers.create(path, context, CreateOptions::default()).unwrap();
        file.append(b"one").and_then(|()| file.flush()).unwrap();
        file
    };
    let mut growing = write(&inner.join("1.sst"));
    drop(write(&dir.join("2.sst")));
    tiers.link(&dir.join("2.sst"), &other.join("3.sst")).unwrap();
    let refused = |from: &str, to: &str| {
        let error = tiers.rename_dir(Path::new(from), Path::new(to)).unwrap_err();
        (error.kind(), error.io_kind())
    };
    let io = |kind| (ErrorKind::Io, Some(kind));
    assert_eq!(refused("tiers:/a", "tiers:/c"), io(std::io::ErrorKind::DirectoryNotEmpty));
    assert_eq!(refused("tiers:/a/b", "tiers:/a"), io(std::io::ErrorKind::DirectoryNotEmpty));
    assert_eq!(refused("tiers:/a", "tiers:/c/3.sst"), io(std::io::ErrorKind::NotADirectory));
    assert_eq!(refused("tiers:/a", "tiers:/none/a").0, ErrorKind::NotFound);
    assert_eq!(refused("tiers:/none", "tiers:/d").0, ErrorKind::NotFound);
    let no_dir = io(std::io::ErrorKind::NotADirectory);
    assert_eq!(refused("tiers:/a/2.sst", "tiers:/d"), no_dir);
    assert_eq!(refused("tiers:/a", "tiers:/c/3.sst/a"), no_dir);
    for (from, to) in [
        ("tiers:", "tiers:/d"),
        ("tiers:/a", "tiers:"),
        ("tiers:/a", "/d"),
        ("tiers:/a", "tiers:/c/.."),
        ("tiers:/a", "tiers:/a/b/c"),
    ] {
        assert_eq!(refused(from, to).0, ErrorKind::InvalidArgument, "{from} to {to}");
    }
    let lock = tiers.lock(&inner.join("LOCK")).unwrap();
    assert_eq!(refused("tiers:/a", "tiers:/d").0, ErrorKind::Busy);
    drop(lock);

    tiers.create_dir_all(new).unwrap();
    tiers.rename_dir(dir, new).unwrap();
    tiers.rename_dir(new, new).unwrap();
    growing.append(b",two").and_then(|()| growing.sync()).unwrap();
    drop(growing);
    tiers.sync_dir(new).unwrap();
    let is_all_there = |tiers: &TieredFs| {
        assert!(!tiers.exists(dir).unwrap() && !tiers.exists(inner).unwrap());
        let read = |path: &str| tiers.read(Path::new(path), context).unwrap();
        assert_eq!(read("tiers:/d/b/1.sst"), b"one,two");
        assert_eq!(read("tiers:/d/2.sst"), b"one");
        let found = tiers.file_info(Path::new("tiers:/d/2.sst")).unwrap();
        assert_eq!((found.names, found.level), (2, Some(0)));
        assert_eq!(tiers.list(new).unwrap().len(), 2);
    };
    is_all_there(&tiers);
    drop(tiers);
    is_all_there(&tiers_over(&disk));
}

#[test]
fn directory_with_a_database_log_is_not_renamed() {
    let base = tempfile::tempdir().unwrap();
    let devices = [DeviceSettings::new(base.path().join("only"), DeviceKind::Directory).creating()];
    let components = Components { spawn: None, seed: Some(1), ..Components::default() };
    let tiers = TieredFs::open("tiers:", &devices, components).unwrap();
    let [dir, new] = ["tiers:/db", "tiers:/new"].map(Path::new);
    tiers.create_dir_all(dir).unwrap();
    let context = IoContext::new(FileClass::Wal, IoPurpose::ForegroundWrite);
    drop(tiers.create(&dir.join("plain.log"), context, CreateOptions::default()).unwrap());
    tiers.rename_dir(dir, new).unwrap();
    tiers.rename_dir(new, dir).unwrap();
    let options = LogOptions { incarnation: Epoch(1), size_hint_bytes: 1 << 16, recycle: None };
    let mut log = tiers.create_log(&dir.join("1.log"), context, options).unwrap();
    log.append(&[b"kept beside it"]).unwrap();
    let error = tiers.rename_dir(dir, new).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("checkpoint"), "{error}");
}

#[test]
fn file_info_works_without_a_modification_time() {
    let disk = FaultFs::new(Arc::new(MemFs::new()), 1);
    let tiers = tiers_over(&(Arc::new(disk.clone()) as Arc<dyn FileSystem>));
    tiers.create_dir_all(tiers.root()).unwrap();
    let path = Path::new("tiers:/7.sst");
    let context = IoContext::sst(IoPurpose::Flush, 0);
    drop(tiers.create(path, context, CreateOptions::default()).unwrap());
    disk.add(Rule::on_any(&[Operation::Stat]));
    assert_eq!(tiers.file_info(path).unwrap().modified_ms, None);
    assert_eq!(tiers.modified_ms(path).unwrap_err().kind(), ErrorKind::Io);
}

#[test]
fn only_an_empty_directory_is_removed() {
    let tiers = tiers();
    let (dir, inner) = (Path::new("tiers:/a"), Path::new("tiers:/a/b"));
    tiers.create_dir_all(inner).unwrap();
    let kind = |path: &Path| tiers.remove_dir(path).unwrap_err().io_kind();
    assert_eq!(kind(dir), Some(std::io::ErrorKind::DirectoryNotEmpty));
    let file = inner.join("f");
    let context = IoContext::manifest(IoPurpose::ForegroundWrite);
    drop(tiers.create(&file, context, CreateOptions::default()).unwrap());
    assert_eq!(kind(inner), Some(std::io::ErrorKind::DirectoryNotEmpty));
    assert_eq!(kind(&file), Some(std::io::ErrorKind::NotADirectory));
    assert_eq!(kind(Path::new("tiers:/c")), Some(std::io::ErrorKind::NotFound));
    tiers.remove(&file).unwrap();
    tiers.remove_dir(inner).unwrap();
    tiers.remove_dir(dir).unwrap();
    assert!(!tiers.exists(dir).unwrap());
    let upwards = tiers.create_dir_all(Path::new("tiers:/a/..")).unwrap_err();
    assert_eq!(upwards.kind(), ErrorKind::InvalidArgument);
}

#[test]
fn refused_change_of_names_keeps_its_error() {
    let tiers = tiers();
    tiers.create_dir_all(tiers.root()).unwrap();
    let path = Path::new("tiers:/file");
    let context = IoContext::manifest(IoPurpose::ForegroundWrite);
    drop(tiers.create(path, context, CreateOptions::default()).unwrap());
    let refused = |dir: &str| {
        let error = tiers.create_dir_all(Path::new(dir)).unwrap_err();
        (error.kind(), error.io_kind())
    };
    let io = |kind| (ErrorKind::Io, Some(kind));
    assert_eq!(refused("tiers:/file/x"), io(std::io::ErrorKind::NotADirectory));
    assert_eq!(refused("tiers:/file"), io(std::io::ErrorKind::AlreadyExists));
}

#[test]
fn created_file_is_returned_and_what_had_its_name_decides() {
    let tiers = tiers();
    tiers.create_dir_all(tiers.root()).unwrap();
    let (path, other) = (Path::new("tiers:/7.sst"), Path::new("tiers:/8.sst"));
    let context = IoContext::sst(IoPurpose::Flush, 0);
    let create = |existing: ExistingFile| {
        tiers.create_file(path, context, CreateOptions::default(), existing)
    };
    let refused = |existing: ExistingFile| create(existing).unwrap_err().io_kind();
    assert_eq!(refused(ExistingFile::Require), Some(std::io::ErrorKind::NotFound));
    let (writer, first) = create(ExistingFile::Refuse).unwrap();
    assert_eq!(refused(ExistingFile::Refuse), Some(std::io::ErrorKind::AlreadyExists));
    assert_eq!(first.id(), tiers.file_info(path).unwrap().id);
    assert!(first.is_written());
    tiers.rename(path, other).unwrap();
    drop(writer);
    assert_eq!((first.id(), first.is_written()), (tiers.file_info(other).unwrap().id, false));
    let (_, second) = create(ExistingFile::Replace).unwrap();
    let (_, third) = create(ExistingFile::Require).unwrap();
    assert_ne!(second.id(), third.id());
    assert_eq!(tiers.file_info(path).unwrap().id, third.id());
    let elsewhere = Path::new("/elsewhere");
    let options = CreateOptions::default();
    let outside = tiers.create_file(elsewhere, context, options, ExistingFile::Replace);
    assert_eq!(outside.unwrap_err().kind(), ErrorKind::InvalidArgument);
}
