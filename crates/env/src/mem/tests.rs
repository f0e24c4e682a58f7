use std::path::{Path, PathBuf};
use std::sync::Arc;

use archipelago_base::Epoch;
use parking_lot::Mutex;

use super::MemFs;
use crate::context::{FileClass, IoContext, IoPurpose};
use crate::fs::{CreateOptions, FileSystem, LogFile, LogOptions, WritableFile};

const DIR: &str = "/db";

fn context() -> IoContext {
    IoContext::new(FileClass::Other, IoPurpose::ForegroundWrite)
}

fn at(name: &str) -> PathBuf {
    Path::new(DIR).join(name)
}

fn disk() -> MemFs {
    let fs = MemFs::new();
    fs.create_dir_all(Path::new(DIR)).unwrap();
    fs
}

fn create(fs: &MemFs, name: &str) -> Box<dyn WritableFile> {
    fs.create(&at(name), context(), CreateOptions::default()).unwrap()
}

fn log(fs: &MemFs, name: &str, recycle: Option<&str>) -> Box<dyn LogFile> {
    let options =
        LogOptions { incarnation: Epoch(1), size_hint_bytes: 0, recycle: recycle.map(at) };
    fs.create_log(&at(name), context(), options).unwrap()
}

fn sync_dir(fs: &MemFs) {
    fs.sync_dir(Path::new(DIR)).unwrap();
}

fn get(fs: &MemFs, name: &str) -> Option<Vec<u8>> {
    fs.read(&at(name), context()).ok()
}

fn everything(fs: &MemFs) -> Vec<(String, Vec<u8>)> {
    let entries = fs.list(Path::new(DIR)).unwrap();
    entries.iter().map(|e| (e.name.clone(), get(fs, &e.name).unwrap())).collect()
}

#[test]
fn synced_bytes_under_a_synced_name_survive_power_loss() {
    let fs = disk();
    let mut file = create(&fs, "a");
    file.append(b"durable").unwrap();
    file.sync().unwrap();
    sync_dir(&fs);
    file.append(&[b'u'; 3000]).unwrap();
    file.flush().unwrap();
    let mut lens = Vec::new();
    for seed in 0..200 {
        let left = get(&fs.crash_clone(seed), "a").unwrap();
        assert!(left.starts_with(b"durable"), "seed {seed}");
        assert!(left.len() <= 3007);
        lens.push(left.len());
    }
    assert!(lens.contains(&7) && lens.contains(&3007), "both ends happen");
    assert!(lens.iter().any(|len| (8..3007).contains(len)), "and the middle");
}

#[test]
fn lost_tail_leaves_a_prefix_zeroes_or_garbage() {
    let fs = disk();
    let mut file = create(&fs, "a");
    file.append(&[b'u'; 10_000]).unwrap();
    file.flush().unwrap();
    sync_dir(&fs);
    let damaged = (0..300).filter(|&seed| {
        let left = get(&fs.crash_clone(seed), "a").unwrap();
        let good = left.iter().take_while(|&&byte| byte == b'u').count();
        let damaged = good < left.len();
        assert!(!damaged || good % 512 == 0 || left[good - 1] == b'u');
        damaged
    });
    let damaged = damaged.count();
    assert!((10..150).contains(&damaged), "{damaged} of 300");
}

#[test]
fn unsynced_changes_of_names_survive_in_order() {
    let fs = disk();
    for name in ["1", "2", "3", "4"] {
        let mut file = create(&fs, name);
        file.append(name.as_bytes()).unwrap();
        file.sync().unwrap();
    }
    fs.rename(&at("1"), &at("5")).unwrap();
    fs.remove(&at("2")).unwrap();
    let allowed: [&[&str]; 7] = [
        &[],
        &["1"],
        &["1", "2"],
        &["1", "2", "3"],
        &["1", "2", "3", "4"],
        &["2", "3", "4", "5"],
        &["3", "4", "5"],
    ];
    let mut seen = [false; 7];
    for seed in 0..300 {
        let left = everything(&fs.crash_clone(seed));
        let names: Vec<_> = left.iter().map(|(name, _)| name.as_str()).collect();
        let index = allowed.iter().position(|state| **state == names).expect("not a prefix");
        seen[index] = true;
    }
    assert_eq!(seen, [true; 7]);
    sync_dir(&fs);
    for seed in 0..20 {
        let left = everything(&fs.crash_clone(seed));
        let text = |name: &str, bytes: &str| (name.to_owned(), bytes.as_bytes().to_vec());
        assert_eq!(left, [text("3", "3"), text("4", "4"), text("5", "1")]);
    }
}

#[test]
fn replaced_file_is_the_old_or_the_new_one() {
    let fs = disk();
    fs.write_atomic(&at("pointer"), b"old", context()).unwrap();
    let mut file = create(&fs, "pointer.tmp");
    file.append(b"newer").unwrap();
    file.sync().unwrap();
    fs.rename(&at("pointer.tmp"), &at("pointer")).unwrap();
    for seed in 0..100 {
        let left = get(&fs.crash_clone(seed), "pointer").unwrap();
        assert!(left == b"old" || left == b"newer");
    }
}

#[test]
fn same_seed_gives_the_same_clone() {
    let fs = disk();
    let mut files: Vec<_> = (0..8).map(|index| create(&fs, &index.to_string())).collect();
    for file in &mut files {
        file.append(&[7; 5000]).unwrap();
        file.flush().unwrap();
    }
    let clone = fs.crash_clone(9);
    let before = everything(&clone);
    assert_eq!(before, everything(&fs.crash_clone(9)));
    assert!((0..10).any(|seed| everything(&fs.crash_clone(seed)) != before));
    for file in &mut files {
        file.append(b"more").unwrap();
        file.sync().unwrap();
    }
    fs.remove(&at("3")).unwrap();
    sync_dir(&fs);
    assert_eq!(before, everything(&clone));
    assert_eq!(everything(&clone.crash_clone(1)), before, "a crash clone is synced");
}

#[test]
fn kill_loses_only_bytes_that_were_held_back() {
    let fs = disk();
    let mut file = create(&fs, "sst");
    file.append(b"flushed ").unwrap();
    file.flush().unwrap();
    file.append(b"held back").unwrap();
    let mut log = log(&fs, "log", None);
    log.append(&[b"rec", b"ord"]).unwrap();
    let _lock = fs.lock(&at("LOCK")).unwrap();
    let killed = fs.kill_clone();
    assert_eq!(get(&killed, "sst").unwrap(), b"flushed ");
    assert_eq!(get(&killed, "log").unwrap(), b"record");
    killed.lock(&at("LOCK")).expect("the lock ended with the process");
    let lost = (0..50).any(|seed| get(&killed.crash_clone(seed), "log").is_none());
    assert!(lost, "what was not synced before the kill is not synced after it");
}

#[test]
fn recycled_log_keeps_old_bytes_after_new_ones() {
    let fs = disk();
    let mut old = log(&fs, "1", None);
    old.append(&[&[b'o'; 4000]]).unwrap();
    old.sync_handle().sync().unwrap();
    drop(old);
    let mut new = log(&fs, "2", Some("1"));
    sync_dir(&fs);
    new.append(&[&[b's'; 700]]).unwrap();
    assert_eq!(new.sync_handle().sync().unwrap(), 700);
    new.append(&[&[b'n'; 900]]).unwrap();
    assert_eq!(get(&fs.kill_clone(), "2").unwrap().len(), 4000);
    for seed in 0..100 {
        let left = get(&fs.crash_clone(seed), "2").unwrap();
        assert_eq!(left.len(), 4000);
        assert!(left[..700].iter().all(|&byte| byte == b's'), "synced");
        assert!(left[1600..].iter().all(|&byte| byte == b'o'), "never overwritten");
    }
}

#[test]
fn unsynced_truncation_may_be_lost() {
    let fs = disk();
    fs.write_atomic(&at("a"), b"first", context()).unwrap();
    let mut file = create(&fs, "a");
    let outcomes: Vec<_> = (0..50).map(|seed| get(&fs.crash_clone(seed), "a").unwrap()).collect();
    assert!(outcomes.contains(&b"first".to_vec()) && outcomes.contains(&Vec::new()));
    file.append(b"2").unwrap();
    file.sync().unwrap();
    assert!((0..50).all(|seed| get(&fs.crash_clone(seed), "a").unwrap() == b"2"));
}

#[test]
fn removed_tree_may_return_until_synced() {
    let fs = disk();
    fs.create_dir_all(&at("sub")).unwrap();
    let mut file = create(&fs, "sub/x");
    file.append(b"x").unwrap();
    fs.link(&at("sub/x"), &at("y")).unwrap();
    fs.sync_dir(&at("sub")).unwrap();
    sync_dir(&fs);
    for seed in 0..20 {
        let left = fs.crash_clone(seed);
        assert_eq!(get(&left, "sub/x"), get(&left, "y"));
    }
    file.sync().unwrap();
    fs.remove_dir_all(&at("sub")).unwrap();
    let back = (0..50).filter(|&seed| fs.crash_clone(seed).exists(&at("sub/x")).unwrap()).count();
    assert!((1..50).contains(&back), "{back}");
    sync_dir(&fs);
    assert!((0..50).all(|seed| !fs.crash_clone(seed).exists(&at("sub")).unwrap()));
    assert_eq!(get(&fs, "y").unwrap(), b"x");
}

#[test]
fn callback_runs_after_every_sync_and_may_clone() {
    let fs = disk();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&seen);
    fs.on_sync(Arc::new(move |fs, path| {
        let clone = fs.crash_clone(sink.lock().len() as u64);
        sink.lock().push((path.to_owned(), get(&clone, "a")));
    }));
    let mut file = create(&fs, "a");
    file.append(b"1").unwrap();
    file.sync().unwrap();
    sync_dir(&fs);
    let log = log(&fs, "log", None);
    log.sync_handle().sync().unwrap();
    fs.clear_on_sync();
    file.sync().unwrap();
    let seen = seen.lock();
    let paths: Vec<_> = seen.iter().map(|(path, _)| path.clone()).collect();
    assert_eq!(paths, [at("a"), PathBuf::from(DIR), at("log")]);
    assert_eq!(seen[1].1.as_deref(), Some(&b"1"[..]));
    assert_eq!(fs.sync_count(), 4);
}
