//! Statistics: bytes and operations count for their class and purpose.

use std::path::Path;
use std::sync::Arc;

use archipelago_base::Epoch;
use archipelago_env::fault::{FaultFs, Operation, Rule};
use archipelago_env::mem::MemFs;
use archipelago_env::stats::{CountingFs, IoCounts};
use archipelago_env::{
    CreateOptions, FileClass, FileSystem, IoContext, IoPurpose, LogOptions, OpenOptions,
};

#[test]
fn reads_and_writes_count_by_class_and_purpose() {
    let faults = FaultFs::new(Arc::new(MemFs::new()), 0);
    let fs = CountingFs::new(Arc::new(faults.clone()));
    let flush = IoContext::sst(IoPurpose::Flush, 0);
    let mut file = fs.create(Path::new("sst"), flush, CreateOptions::default()).unwrap();
    file.append(&[0; 100]).unwrap();
    file.append(&[0; 50]).unwrap();
    file.sync().unwrap();

    let wal = IoContext::new(FileClass::Wal, IoPurpose::ForegroundWrite);
    let options = LogOptions { incarnation: Epoch(1), size_hint_bytes: 0, recycle: None };
    let mut log = fs.create_log(Path::new("log"), wal, options).unwrap();
    log.append(&[&[0; 7], &[0; 3]]).unwrap();
    log.sync_handle().sync().unwrap();
    let written = fs.snapshot();

    let compaction = |from, to| IoContext::sst(IoPurpose::Compaction { from, to }, from);
    let reader = fs.open(Path::new("sst"), flush, OpenOptions::default()).unwrap();
    reader.read_exact_at(0, &mut [0; 10], compaction(0, 3)).unwrap();
    let (mut a, mut b) = ([0; 4], [0; 6]);
    reader.read_many(&mut [(0, &mut a), (9, &mut b)], compaction(3, 4)).unwrap();
    faults.add(Rule::on(Operation::Read));
    reader.read_exact_at(0, &mut [0; 10], flush).unwrap_err();

    let both = IoCounts { write_ops: 2, write_bytes: 150, syncs: 1, ..IoCounts::default() };
    let log = IoCounts { write_ops: 1, write_bytes: 10, syncs: 1, ..IoCounts::default() };
    let read = IoCounts { read_calls: 2, read_ops: 3, read_bytes: 20, ..IoCounts::default() };
    let now = fs.snapshot();
    assert_eq!(now.of(FileClass::Sst, IoPurpose::Flush), both);
    assert_eq!(now.of(FileClass::Wal, IoPurpose::ForegroundWrite), log);
    assert_eq!(now.of_class(FileClass::Wal), log);
    assert_eq!(now.of_purpose(IoPurpose::Compaction { from: 9, to: 9 }), read);
    assert_eq!(now.since(&written).total(), read);
    assert_eq!(now.total().write_bytes, 160);
    assert_eq!(now.of(FileClass::Manifest, IoPurpose::Recovery), IoCounts::default());
}
