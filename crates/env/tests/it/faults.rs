//! Faults: they fire as the script says, and leave the file system in the state of a failed device.

use std::path::Path;
use std::sync::Arc;

use archipelago_base::{Epoch, Error, ErrorKind};
use archipelago_env::fault::{Fault, FaultFs, Operation, Rule, When};
use archipelago_env::mem::MemFs;
use archipelago_env::{CreateOptions, FileSystem, LogFile, LogOptions, OpenOptions, WritableFile};

use crate::any;

fn faulty(seed: u64) -> FaultFs {
    let fs = FaultFs::new(Arc::new(MemFs::new()), seed);
    fs.create_dir_all(Path::new("/db")).unwrap();
    fs
}

fn create(fs: &FaultFs, path: &str) -> Result<Box<dyn WritableFile>, Error> {
    fs.create(Path::new(path), any(), CreateOptions::default())
}

fn create_log(fs: &FaultFs, path: &str) -> Result<Box<dyn LogFile>, Error> {
    let options = LogOptions { incarnation: Epoch(1), size_hint_bytes: 0, recycle: None };
    fs.create_log(Path::new(path), any(), options)
}

fn put(fs: &FaultFs, path: &str, bytes: &[u8]) {
    fs.write_atomic(Path::new(path), bytes, any()).unwrap();
}

#[test]
fn every_operation_can_fail_and_names_its_file() {
    let fs = faulty(1);
    put(&fs, "/db/a", b"abc");
    let a = Path::new("/db/a");
    let open = fs.open(a, any(), OpenOptions::default()).unwrap();
    type Attempt<'a> = Box<dyn Fn() -> Result<(), Error> + 'a>;
    let attempts: Vec<(Operation, Attempt<'_>)> = vec![
        (Operation::Create, Box::new(|| create(&fs, "/db/a").map(drop))),
        (Operation::Open, Box::new(|| fs.read(a, any()).map(drop))),
        (Operation::Read, Box::new(|| open.read_exact_at(0, &mut [0; 2], any()))),
        (Operation::Read, Box::new(|| open.read_many(&mut [(0, &mut [0; 2])], any()))),
        (Operation::Append, Box::new(|| create(&fs, "/db/a")?.append(b"x"))),
        (Operation::Flush, Box::new(|| create(&fs, "/db/a")?.flush())),
        (Operation::Flush, Box::new(|| create(&fs, "/db/a")?.submit())),
        (Operation::Sync, Box::new(|| create(&fs, "/db/a")?.sync())),
        (Operation::SyncDir, Box::new(|| fs.sync_dir(a))),
        (Operation::Rename, Box::new(|| fs.rename(a, Path::new("/db/b")))),
        (Operation::Rename, Box::new(|| fs.rename(Path::new("/db/b"), a))),
        (Operation::Link, Box::new(|| fs.link(a, Path::new("/db/b")))),
        (Operation::Remove, Box::new(|| fs.remove(a))),
        (Operation::List, Box::new(|| fs.list(a).map(drop))),
        (Operation::Stat, Box::new(|| fs.len(a).map(drop))),
        (Operation::Stat, Box::new(|| fs.exists(a).map(drop))),
        (Operation::Stat, Box::new(|| fs.free_bytes(a).map(drop))),
        (Operation::CreateDir, Box::new(|| fs.create_dir_all(a))),
        (Operation::RemoveDir, Box::new(|| fs.remove_dir_all(a))),
        (Operation::Lock, Box::new(|| fs.lock(a).map(drop))),
        (Operation::CreateLog, Box::new(|| create_log(&fs, "/db/a").map(drop))),
        (Operation::LogAppend, Box::new(|| create_log(&fs, "/db/a")?.append(&[b"x"]).map(drop))),
        (Operation::LogAppend, Box::new(|| create_log(&fs, "/db/a")?.submit(&[b"x"]).map(drop))),
        (Operation::LogWait, Box::new(|| create_log(&fs, "/db/a")?.sync_handle().wait(0))),
        (Operation::LogSync, Box::new(|| create_log(&fs, "/db/a")?.sync_handle().sync().map(drop))),
        (
            Operation::LogWriteThrough,
            Box::new(|| create_log(&fs, "/db/a")?.sync_handle().write_through().map(drop)),
        ),
        (Operation::LogFinish, Box::new(|| create_log(&fs, "/db/a")?.finish())),
        (Operation::LogTrailer, Box::new(|| create_log(&fs, "/db/a")?.append_trailer(b"x"))),
        (Operation::LogTail, Box::new(|| fs.log_tail(a, Epoch(1)).map(drop))),
        (Operation::LogTail, Box::new(|| fs.clear_log_tails(a))),
    ];
    for (operation, attempt) in &attempts {
        for fault in [Fault::Io, Fault::NoSpace] {
            let rule = fs.add(Rule::on(*operation).path("/db/a").fault(fault));
            let error = attempt().expect_err(&format!("{operation:?}"));
            assert_eq!(error.kind(), ErrorKind::Io, "{error}");
            assert_eq!(error.is_no_space(), fault == Fault::NoSpace, "{error}");
            assert!(error.to_string().contains("/db/a"), "{error}");
            assert_eq!(fs.fired_by(rule), 1);
            fs.clear();
        }
    }
    let missed = Operation::ALL.iter().find(|&&operation| fs.fired(operation) == 0);
    assert_eq!(missed, None);
    assert_eq!(fs.fired_total(), 2 * attempts.len() as u64);
}

#[test]
fn rule_selects_by_path_offset_and_count() {
    let fs = faulty(1);
    let rule = fs.add(Rule::on(Operation::Create).path("*.sst").when(When::From(2)).times(2));
    let outcomes: Vec<bool> = ["1.sst", "1.log", "2.sst", "x.sst.tmp", "3.sst", "4.sst"]
        .map(|name| create(&fs, &format!("/db/{name}")).is_ok())
        .into();
    assert_eq!(outcomes, [true, true, false, true, false, true]);
    assert_eq!((fs.fired_by(rule), fs.seen(Operation::Create)), (2, 6));

    fs.add(Rule::on(Operation::Append).offsets(10..20));
    let mut file = create(&fs, "/db/file").unwrap();
    file.append(&[0; 10]).unwrap();
    fs.set_enabled(false);
    file.append(&[0; 5]).unwrap();
    fs.set_enabled(true);
    file.append(&[0; 1]).unwrap_err();
    assert_eq!(file.len(), 15);
    let mut log = create_log(&fs, "/db/log").unwrap();
    log.append(&[&[0; 30]]).unwrap();

    fs.clear();
    fs.add(Rule::on(Operation::Remove).nth(3));
    for name in ["1.sst", "1.log"] {
        fs.remove(&Path::new("/db").join(name)).unwrap();
    }
    fs.remove(Path::new("/db/file")).unwrap_err();
    fs.remove(Path::new("/db/file")).unwrap();
}

#[test]
fn seed_determines_the_chances() {
    let run = |seed| {
        let fs = faulty(seed);
        fs.add(Rule::on(Operation::Stat).when(When::Chance(0.3)));
        (0..200).map(|_| fs.exists(Path::new("/db")).is_err()).collect::<Vec<_>>()
    };
    let failed = run(5).iter().filter(|&&failed| failed).count();
    assert!((30..90).contains(&failed), "{failed}");
    assert_eq!(run(5), run(5));
    assert_ne!(run(5), run(6));
}

#[test]
fn flipped_byte_changes_only_the_returned_bytes() {
    let fs = faulty(3);
    let whole = vec![7; 1000];
    put(&fs, "/db/a", &whole);
    let file = fs.open(Path::new("/db/a"), any(), OpenOptions::default()).unwrap();
    let flip = Rule::on_any(&Operation::ALL).fault(Fault::FlipByte).offsets(500..510);
    let rule = fs.add(flip);
    for (start, len, hit) in [(0, 1000, true), (0, 500, false), (505, 2, true), (510, 90, false)] {
        let mut buf = vec![0; len];
        file.read_exact_at(start, &mut buf, any()).unwrap();
        let changed: Vec<_> = (0..len).filter(|&at| buf[at] != 7).collect();
        assert_eq!(changed.len(), usize::from(hit), "{len} at {start}");
        assert!(changed.iter().all(|at| (500..510).contains(&(start + *at as u64))));
    }
    assert_eq!(fs.fired_by(rule), 2);
    fs.set_enabled(false);
    assert_eq!(fs.read(Path::new("/db/a"), any()).unwrap(), whole);
}

#[test]
fn short_append_writes_a_part_and_ends_the_file() {
    for seed in 0..20 {
        let fs = faulty(seed);
        let mut file = create(&fs, "/db/a").unwrap();
        let mut log = create_log(&fs, "/db/log").unwrap();
        file.append(b"whole").unwrap();
        log.append(&[b"whole"]).unwrap();
        let appends = [Operation::Append, Operation::LogAppend];
        fs.add(Rule::on_any(&appends).fault(Fault::ShortAppend).times(2));
        let error = file.append(b"0123456789").unwrap_err();
        assert!(error.is_no_space() && error.to_string().contains("/db/a"), "{error}");
        let error = log.append(&[b"01234", b"56789"]).unwrap_err();
        assert!(error.is_no_space() && error.to_string().contains("/db/log"), "{error}");
        for path in ["/db/a", "/db/log"] {
            let left = fs.read(Path::new(path), any()).unwrap();
            assert!(b"whole0123456789".starts_with(&left) && (5..15).contains(&left.len()));
        }
        file.append(b"more").expect_err("a file is unusable after an error");
        file.sync().expect_err("a file is unusable after an error");
        log.append(&[b"more"]).expect_err("a segment takes no more appends");
    }
}

#[test]
fn failed_sync_is_sticky() {
    let fs = faulty(0);
    let mut file = create(&fs, "/db/a").unwrap();
    let log = create_log(&fs, "/db/log").unwrap();
    fs.add(Rule::on(Operation::Sync).times(1));
    fs.add(Rule::on(Operation::LogSync).times(1));
    let sync = log.sync_handle();
    let (first, second) = (file.sync().unwrap_err(), file.sync().unwrap_err());
    assert_eq!(first.to_string(), second.to_string());
    sync.sync().unwrap_err();
    sync.sync().unwrap_err();
    log.sync_handle().sync().unwrap_err();
    assert_eq!(fs.fired_total(), 2);
}

#[test]
fn failed_atomic_write_leaves_the_old_file() {
    let steps = [Operation::Create, Operation::Append, Operation::Sync, Operation::Rename];
    for step in steps {
        let fs = faulty(0);
        put(&fs, "/db/pointer", b"old");
        fs.add(Rule::on(step).times(1));
        fs.write_atomic(Path::new("/db/pointer"), b"new", any()).unwrap_err();
        assert_eq!(fs.read(Path::new("/db/pointer"), any()).unwrap(), b"old", "{step:?}");
        put(&fs, "/db/pointer", b"newer");
    }
}
