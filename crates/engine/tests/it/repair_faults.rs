//! Repairs that fail or are cancelled in the middle, and repairs of arbitrary bytes.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use archipelago_base::Result;
use archipelago_engine::db::{Db, ReadOptions};
use archipelago_engine::key::KeyRange;
use archipelago_engine::options::CfOptions;
use archipelago_engine::repair::{LinkTables, RepairOptions, RepairReport, repair, verify_files};
use archipelago_env::fault::{Fault, FaultFs, Operation, Rule};
use archipelago_env::local::LocalFs;
use archipelago_env::{FileClass, FileSystem, IoContext, IoPurpose};
use parking_lot::Mutex;

use crate::corruption::{Files, disk, files};
use crate::disk::TestDisk;
use crate::support::{over, small_db, small_family};

const SOURCE: &str = "/db";
const TARGET: &str = "/repaired";

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

fn family() -> CfOptions {
    CfOptions { write_buffer_bytes: 1 << 20, l0_compaction_trigger: 8, ..small_family() }
}

fn key(n: u32) -> Vec<u8> {
    format!("key{n:05}").into_bytes()
}

/// The files of a closed database with tables at two levels and a log. One table has a damaged
/// block; and without `with_manifest` there is no `CURRENT`.
fn damaged_database(with_manifest: bool) -> Files {
    let fs = TestDisk::new();
    let db = Db::open_with(SOURCE, small_db(), over(&fs, family())).unwrap();
    for (round, step) in [1, 3, 7].into_iter().enumerate() {
        for n in (0..150).step_by(step) {
            db.put(&key(n), format!("{n}-{round}-{}", "v".repeat(60)).as_bytes()).unwrap();
        }
        match round {
            0 => db.compact_range(db.default_family(), &KeyRange::all()).unwrap(),
            1 => db.flush(db.default_family()).unwrap(),
            _ => {}
        }
    }
    db.close().unwrap();
    let mut all = files(&fs, SOURCE);
    let table = all.keys().find(|name| name.ends_with(".sst")).unwrap().clone();
    all.get_mut(&table).unwrap()[100] ^= 1;
    if !with_manifest {
        all.remove("CURRENT").unwrap();
    }
    all
}

fn run(fs: &Arc<dyn FileSystem>, link_tables: LinkTables) -> Result<RepairReport> {
    let options = RepairOptions { link_tables, seed: Some(3), ..RepairOptions::default() };
    repair(fs, Path::new(SOURCE), Path::new(TARGET), options, |_| {})
}

fn rows(fs: &TestDisk) -> Rows {
    let db = Db::open_with(TARGET, small_db(), over(fs, family())).unwrap();
    let mut iter = db.iter(db.default_family(), &ReadOptions::default()).unwrap();
    let mut rows = Rows::new();
    iter.seek_to_first();
    while iter.valid() {
        rows.insert(iter.key().to_vec(), iter.value().to_vec());
        iter.next();
    }
    iter.status().unwrap();
    drop(iter);
    assert!(db.verify(|_, _| {}).unwrap().is_clean());
    db.close().unwrap();
    rows
}

#[test]
fn repair_whose_target_fails_leaves_nothing_behind() {
    let mut failed = BTreeMap::new();
    for with_manifest in [true, false] {
        for (link_tables, fault) in [(LinkTables::Yes, Fault::Io), (LinkTables::No, Fault::NoSpace)]
        {
            let source = damaged_database(with_manifest);
            let whole = disk(&source);
            run(&(Arc::new(whole.clone()) as Arc<dyn FileSystem>), link_tables).unwrap();
            let want = rows(&whole);
            assert!(want.len() > 80, "{} rows were saved", want.len());
            for operation in Operation::ALL {
                for nth in 1.. {
                    let fs = disk(&source);
                    let faults = FaultFs::new(Arc::new(fs.clone()), 1);
                    let rule = Rule::on(operation).path(TARGET).fault(fault).nth(nth);
                    let rule = faults.add(rule);
                    let shared: Arc<dyn FileSystem> = Arc::new(faults.clone());
                    let outcome = run(&shared, link_tables);
                    if faults.fired_by(rule) == 0 {
                        outcome.unwrap();
                        break;
                    }
                    let what = format!("{operation:?} {nth}, {fault:?}");
                    assert!(files(&fs, SOURCE) == source, "{what}: the original was changed");
                    if outcome.is_err() {
                        *failed.entry(format!("{operation:?}")).or_insert(0) += 1;
                        let left = match fs.exists(Path::new(TARGET)).unwrap() {
                            true => fs.list(Path::new(TARGET)).unwrap(),
                            false => Vec::new(),
                        };
                        assert!(left.is_empty(), "{what}: {left:?} stay");
                        run(&shared, link_tables).unwrap();
                    }
                    assert!(rows(&fs) == want, "{what}: other rows were saved");
                }
            }
        }
    }
    for operation in ["Create", "Append", "Sync", "SyncDir", "Link"] {
        assert!(failed.contains_key(operation), "no {operation} failed a repair: {failed:?}");
    }
}

#[test]
fn repair_that_power_loss_ends_is_whole_or_no_database() {
    for with_manifest in [true, false] {
        let source = damaged_database(with_manifest);
        let fs = disk(&source);
        let states: Arc<Mutex<Vec<TestDisk>>> = Arc::default();
        let into = Arc::clone(&states);
        fs.on_sync(Arc::new(move |fs, _| {
            into.lock().extend((0..3).map(|seed| fs.crash_clone(seed)));
        }));
        run(&(Arc::new(fs.clone()) as Arc<dyn FileSystem>), LinkTables::No).unwrap();
        fs.clear_on_sync();
        let want = rows(&fs);
        let mut whole = 0;
        for state in states.lock().drain(..) {
            assert!(files(&state, SOURCE) == source, "the original was changed");
            if state.exists(&Path::new(TARGET).join("CURRENT")).unwrap() {
                assert!(rows(&state) == want, "other rows were saved");
                whole += 1;
            }
        }
        assert!(whole > 0, "no state was a database");
    }
}

#[test]
fn repair_survives_the_fuzz_corpus() {
    let corpora = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus");
    let mut inputs = Vec::new();
    for corpus in ["repair", "sst", "wal_segment", "manifest"] {
        let (local, dir) = (LocalFs::new(), corpora.join(corpus));
        let context = IoContext::new(FileClass::Other, IoPurpose::Maintenance);
        for entry in local.list(&dir).unwrap() {
            inputs.push(local.read(&dir.join(entry.name), context).unwrap());
        }
    }
    assert!(inputs.len() > 10, "{} inputs", inputs.len());
    for bytes in inputs {
        for name in ["000002.sst", "000003.log", "MANIFEST-000001"] {
            let fs = disk(&Files::from([(name.to_owned(), bytes.clone())]));
            let shared: Arc<dyn FileSystem> = Arc::new(fs.clone());
            let _any = verify_files(&shared, Path::new(SOURCE), |_| {});
            if run(&shared, LinkTables::Yes).is_ok() {
                let report = verify_files(&shared, Path::new(TARGET), |_| {}).unwrap();
                assert!(report.is_clean(), "{name}: {:?}", report.errors);
            }
        }
    }
}
