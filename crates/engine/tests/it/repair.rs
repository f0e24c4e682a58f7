//! Damaged databases, and the results of `repair` and `verify_files` for them.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use archipelago_base::CfId;
use archipelago_base::random::Rng;
use archipelago_engine::db::{Components, Db, IngestOptions, ReadOptions};
use archipelago_engine::key::KeyRange;
use archipelago_engine::options::{CfOptions, DbOptions, WriteOptions};
use archipelago_engine::repair::{
    LinkTables, LogAfterDamage, LossEffect, RepairOptions, RepairReport, repair, verify_files,
};
use archipelago_engine::sst::{SstWriter, TableOptions};
use archipelago_env::FileSystem;

use crate::corruption::{Files, disk, files};
use crate::crash_model::{self as model, Hooks};
use crate::disk::TestDisk;
use crate::support::{Beneath, over, small_db, small_family, stepped};

const SOURCE: &str = "/db";
const TARGET: &str = "/repaired";

fn options() -> RepairOptions {
    RepairOptions { seed: Some(3), ..RepairOptions::default() }
}

fn shared(fs: &TestDisk) -> Arc<dyn FileSystem> {
    Arc::new(fs.clone())
}

/// Repairs, and checks that the original is unchanged.
fn repaired_with(fs: &TestDisk, options: RepairOptions) -> RepairReport {
    let before = files(fs, SOURCE);
    let report =
        repair(&shared(fs), Path::new(SOURCE), Path::new(TARGET), options, |_| {}).unwrap();
    assert!(files(fs, SOURCE) == before, "the original was changed");
    report
}

fn repaired(fs: &TestDisk) -> RepairReport {
    repaired_with(fs, options())
}

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

/// All rows of the default family of the repaired database, which must have no damage.
fn rows(fs: &TestDisk, family: CfOptions) -> Rows {
    let report = verify_files(&shared(fs), Path::new(TARGET), |_| {}).unwrap();
    assert!(report.is_clean(), "{:?}", report.errors);
    let db = Db::open_with(TARGET, small_db(), over(fs, family)).unwrap();
    let rows = rows_of(&db, "default");
    assert!(db.verify(|_, _| {}).unwrap().is_clean());
    db.close().unwrap();
    rows
}

fn rows_of(db: &Db, family: &str) -> Rows {
    let mut iter = db.iter(&db.family(family).unwrap(), &ReadOptions::default()).unwrap();
    let mut rows = Rows::new();
    iter.seek_to_first();
    while iter.valid() {
        rows.insert(iter.key().to_vec(), iter.value().to_vec());
        iter.next();
    }
    iter.status().unwrap();
    rows
}

fn key(n: u32) -> Vec<u8> {
    format!("key{n:05}").into_bytes()
}

fn value(n: u32, round: u32) -> Vec<u8> {
    format!("{n}-{round}-{}", "v".repeat(80)).into_bytes()
}

fn put(db: &Db, key: &[u8], value: &[u8]) {
    db.put_with(db.default_family(), key, value, &WriteOptions::default()).unwrap();
}

/// A closed database with tables at the last level, in L0 and a log, and its content.
fn plain_database() -> (TestDisk, Rows) {
    let fs = TestDisk::new();
    let db = Db::open_with(SOURCE, small_db(), over(&fs, plain_family())).unwrap();
    let mut rows = Rows::new();
    for n in 0..600 {
        put(&db, &key(n), &value(n, 0));
        rows.insert(key(n), value(n, 0));
    }
    db.flush(db.default_family()).unwrap();
    db.compact_range(db.default_family(), &KeyRange::all()).unwrap();
    for n in (0..600).step_by(3) {
        put(&db, &key(n), &value(n, 1));
        rows.insert(key(n), value(n, 1));
    }
    db.delete(&key(301)).unwrap();
    rows.remove(&key(301));
    let range = WriteOptions::default();
    db.delete_range(db.default_family(), &key(400), &key(410), &range).unwrap();
    (400..410).for_each(|n| drop(rows.remove(&key(n))));
    db.flush(db.default_family()).unwrap();
    for n in (0..600).step_by(7) {
        put(&db, &key(n), &value(n, 2));
        rows.insert(key(n), value(n, 2));
    }
    assert_eq!(rows_of(&db, "default"), rows);
    db.close().unwrap();
    (fs, rows)
}

fn plain_family() -> CfOptions {
    CfOptions { write_buffer_bytes: 1 << 20, l0_compaction_trigger: 8, ..small_family() }
}

fn names(fs: &TestDisk, suffix: &str) -> Vec<String> {
    files(fs, SOURCE).into_keys().filter(|name| name.ends_with(suffix)).collect()
}

fn path(name: &str) -> PathBuf {
    Path::new(SOURCE).join(name)
}

fn overwrite(fs: &TestDisk, name: &str, change: impl FnOnce(&mut Vec<u8>)) {
    let mut all = files(fs, SOURCE);
    change(all.get_mut(name).unwrap());
    let context = archipelago_env::IoContext::manifest(archipelago_env::IoPurpose::Maintenance);
    let mut file = fs.create(&path(name), context, Default::default()).unwrap();
    file.append(&all[name]).unwrap();
    file.sync().unwrap();
    fs.sync_dir(Path::new(SOURCE)).unwrap();
}

/// What the report promises of the default family. How many keys it does not promise.
fn judge(report: &RepairReport, got: &Rows, want: &Rows) -> usize {
    let keys: BTreeSet<&Vec<u8>> = got.keys().chain(want.keys()).collect();
    let mut affected = 0;
    for key in keys {
        if report.may_affect(CfId::DEFAULT, key) {
            affected += 1;
        } else {
            assert_eq!(got.get(key), want.get(key), "{}: {report}", key.escape_ascii());
        }
    }
    affected
}

#[test]
fn repair_of_a_whole_database_keeps_everything() {
    let (fs, want) = plain_database();
    let report = repaired(&fs);
    assert!(report.is_lossless() && report.manifest_lost.is_none(), "{report}");
    assert_eq!(rows(&fs, plain_family()), want);
    let copied = TestDisk::clone(&disk(&files(&fs, SOURCE)));
    let options = RepairOptions { link_tables: LinkTables::No, ..options() };
    assert!(repaired_with(&copied, options).is_lossless());
    assert_eq!(rows(&copied, plain_family()), want);
}

#[test]
fn missing_table_costs_its_own_range_only() {
    let (fs, want) = plain_database();
    for name in names(&fs, ".sst") {
        let fs = disk(&files(&fs, SOURCE));
        fs.remove(&path(&name)).unwrap();
        let report = repaired(&fs);
        assert_eq!(report.losses.len(), 1, "{report}");
        assert!(report.losses[0].file == name && report.losses[0].effect == LossEffect::Lost);
        let affected = judge(&report, &rows(&fs, plain_family()), &want);
        assert!(affected > 0 && affected < want.len(), "{affected}: {report}");
    }
}

#[test]
fn flipped_byte_costs_one_block() {
    let (fs, want) = plain_database();
    for name in names(&fs, ".sst") {
        let fs = disk(&files(&fs, SOURCE));
        overwrite(&fs, &name, |bytes| bytes[700] ^= 1);
        let report = repaired(&fs);
        let family = &report.families[0];
        assert_eq!((family.tables_salvaged, family.tables_lost), (1, 0), "{report}");
        assert!(family.records_salvaged > 0 && report.losses.len() == 1, "{report}");
        let affected = judge(&report, &rows(&fs, plain_family()), &want);
        assert!((1..30).contains(&affected), "{affected} keys: {report}");
    }
}

#[test]
fn cut_table_keeps_the_blocks_before_the_cut() {
    let (fs, want) = plain_database();
    for name in names(&fs, ".sst") {
        let fs = disk(&files(&fs, SOURCE));
        overwrite(&fs, &name, |bytes| bytes.truncate(bytes.len() * 3 / 5));
        let report = repaired(&fs);
        assert!(report.families[0].records_salvaged > 0, "{report}");
        judge(&report, &rows(&fs, plain_family()), &want);
    }
}

#[test]
fn damaged_index_or_filter_loses_no_record() {
    let (fs, want) = plain_database();
    for name in names(&fs, ".sst") {
        let len = files(&fs, SOURCE)[&name].len();
        for back in [92 + 10, 40, 4] {
            let fs = disk(&files(&fs, SOURCE));
            overwrite(&fs, &name, |bytes| bytes[len - back] ^= 1);
            let report = repaired(&fs);
            let lost = report.losses.iter().filter(|loss| loss.effect == LossEffect::Lost);
            assert_eq!(lost.count(), 0, "{name}, {back} from the end: {report}");
            judge(&report, &rows(&fs, plain_family()), &want);
        }
    }
}

#[test]
fn foreign_table_is_not_read_as_data() {
    let (fs, want) = plain_database();
    let tables = names(&fs, ".sst");
    let other = files(&fs, SOURCE)[&tables[0]].clone();
    overwrite(&fs, tables.last().unwrap(), |bytes| *bytes = other);
    let report = repaired(&fs);
    assert_eq!(report.families[0].tables_lost, 1, "{report}");
    judge(&report, &rows(&fs, plain_family()), &want);
}

#[test]
fn small_files_come_back() {
    for lost in ["IDENTITY", "CURRENT"] {
        let (fs, want) = plain_database();
        fs.remove(&path(lost)).unwrap();
        let report = repaired(&fs);
        assert!(report.manifest_lost.is_some(), "{report}");
        assert_eq!(rows(&fs, plain_family()), want, "without {lost}");
    }
}

#[test]
fn database_without_a_manifest_keeps_deletes_and_overwrites() {
    let (fs, want) = plain_database();
    for name in files(&fs, SOURCE).keys().filter(|name| name.starts_with("MA")) {
        fs.remove(&path(name)).unwrap();
    }
    let report = repaired(&fs);
    assert!(report.losses.iter().any(|loss| loss.effect == LossEffect::Stale), "{report}");
    assert_eq!(rows(&fs, plain_family()), want);
}

#[test]
fn damaged_manifest_is_no_loss_of_values() {
    let (fs, want) = plain_database();
    let all = files(&fs, SOURCE);
    let name = all.keys().find(|name| name.starts_with("MANIFEST-")).unwrap();
    for at in [0, 40, all[name].len() / 2, all[name].len() - 60] {
        let flipped = disk(&all);
        overwrite(&flipped, name, |bytes| bytes[at] ^= 4);
        repaired(&flipped);
        assert_eq!(rows(&flipped, plain_family()), want, "flipped at {at}");
    }
    // A manifest without a whole header cannot be taken for an older one.
    for at in [0, 40] {
        let cut = disk(&all);
        overwrite(&cut, name, |bytes| bytes.truncate(at));
        repaired(&cut);
        assert_eq!(rows(&cut, plain_family()), want, "cut at {at}");
    }
}

/// A cut manifest looks like an older one. The mark file says that it had more edits.
#[test]
fn manifest_that_lost_edits_is_no_loss_of_values() {
    let (fs, want) = plain_database();
    let all = files(&fs, SOURCE);
    let name = all.keys().find(|name| name.starts_with("MANIFEST-")).unwrap();
    for at in [all[name].len() / 2, all[name].len() - 60] {
        let cut = disk(&all);
        overwrite(&cut, name, |bytes| bytes.truncate(at));
        repaired(&cut);
        assert_eq!(rows(&cut, plain_family()), want, "cut at {at}");
    }
}

/// A database with two values in L0 and operands of one key in several tables, before and after a
/// compaction of them; both are in the directory, as after a crash, and no manifest.
#[test]
fn merge_operands_in_replaced_tables_count_once() {
    let family = CfOptions { merge_operator: Some("append".to_owned()), ..plain_family() };
    let fs = TestDisk::new();
    let db = Db::open_with(SOURCE, small_db(), over(&fs, family.clone())).unwrap();
    put(&db, b"with", b"base");
    for part in ["-a", "-b", "-c"] {
        for key in [&b"with"[..], b"without"] {
            let family = db.default_family();
            db.merge(family, key, part.as_bytes(), &WriteOptions::default()).unwrap();
        }
        db.flush(db.default_family()).unwrap();
    }
    let before = files(&fs, SOURCE);
    db.compact_range(db.default_family(), &KeyRange::all()).unwrap();
    let want = rows_of(&db, "default");
    assert_eq!(want[&b"with"[..]], b"base-a-b-c");
    db.close().unwrap();
    let mut all = files(&fs, SOURCE);
    all.extend(before.into_iter().filter(|(name, _)| name.ends_with(".sst")));
    all.retain(|name, _| !name.starts_with("MA") && name != "CURRENT");
    let fs = disk(&all);
    repaired(&fs);
    let got = rows(&fs, family);
    assert_eq!(got, want);
}

#[test]
fn ingested_table_keeps_its_place_by_the_manifest() {
    let fs = TestDisk::new();
    let db = Db::open_with(SOURCE, small_db(), over(&fs, plain_family())).unwrap();
    put(&db, b"a", b"old");
    db.flush(db.default_family()).unwrap();
    let outside = Path::new("/outside.sst");
    let mut table = SstWriter::create(&shared(&fs), outside, TableOptions::default()).unwrap();
    table.put(b"a", b"new").unwrap();
    table.finish().unwrap();
    db.ingest(db.default_family(), &[outside], &IngestOptions::default()).unwrap();
    let want = rows_of(&db, "default");
    db.close().unwrap();
    let all = files(&fs, SOURCE);
    // The readable part of a manifest that is not whole still knows it.
    let fs = disk(&all);
    fs.remove(&path("CURRENT")).unwrap();
    repaired(&fs);
    assert_eq!(rows(&fs, plain_family()), want);
    let fs = disk(&all);
    names(&fs, "").iter().filter(|name| name.starts_with("MA")).for_each(|name| {
        fs.remove(&path(name)).unwrap();
    });
    let report = repaired(&fs);
    assert!(report.to_string().contains("was ingested"), "{report}");
    assert_eq!(rows(&fs, plain_family())[&b"a"[..]], b"old", "the report says that it is stale");
}

/// A key and its value.
type Row = (Vec<u8>, Vec<u8>);

/// A database whose writes are all in its log: three segments or more.
fn logged_database() -> (TestDisk, Vec<Row>) {
    let fs = TestDisk::new();
    let db = Db::open_with(SOURCE, small_db(), over(&fs, plain_family())).unwrap();
    let mut written = Vec::new();
    for n in 0..1500 {
        put(&db, &key(n), &value(n, 0));
        written.push((key(n), value(n, 0)));
    }
    db.close().unwrap();
    assert!(names(&fs, ".log").len() >= 3);
    (fs, written)
}

#[test]
fn log_damaged_in_the_middle_keeps_both_sides_or_the_first() {
    let (fs, written) = logged_database();
    let logs = names(&fs, ".log");
    overwrite(&fs, &logs[1], |bytes| bytes[9000..9010].fill(0));
    let report = repaired(&fs);
    let text = report.to_string();
    assert!(text.contains(&logs[1]) && text.contains("damaged from offset"), "{text}");
    let got = rows(&fs, plain_family());
    let missing: Vec<usize> =
        (0..1500).filter(|&n| got.get(&written[n].0) != Some(&written[n].1)).collect();
    assert!((1..4).contains(&missing.len()), "{missing:?}");
    // The records after the damage are dropped on request: an earlier state.
    let fs = disk(&files(&fs, SOURCE));
    let options = RepairOptions { log_after_damage: LogAfterDamage::Drop, ..options() };
    repaired_with(&fs, options);
    let got = rows(&fs, plain_family());
    let mut past = Rows::new();
    let matches = written.iter().any(|(key, value)| {
        past.insert(key.clone(), value.clone());
        past == got
    });
    assert!(matches, "it is no state of the past");
}

#[test]
fn missing_log_segment_is_reported_and_the_others_count() {
    let (fs, written) = logged_database();
    for (index, name) in names(&fs, ".log").into_iter().enumerate() {
        let fs = disk(&files(&fs, SOURCE));
        fs.remove(&path(&name)).unwrap();
        let report = repaired(&fs);
        assert!(report.to_string().contains(&format!("{name}: ")), "{name}: {report}");
        let got = rows(&fs, plain_family());
        assert_eq!(got.contains_key(&written[0].0), index > 0, "without {name}");
        assert!(got.len() > 300, "{} rows without {name}", got.len());
    }
}

#[test]
fn log_segment_without_a_header_is_read() {
    let (fs, written) = logged_database();
    let logs = names(&fs, ".log");
    overwrite(&fs, &logs[1], |bytes| bytes[20] ^= 1);
    repaired(&fs);
    let got = rows(&fs, plain_family());
    let last: Rows = written.into_iter().collect();
    assert_eq!(got, last, "the header has no writes");
}

#[test]
fn dry_run_writes_nothing_and_says_the_same() {
    let (fs, _) = plain_database();
    let tables = names(&fs, ".sst");
    fs.remove(&path(&tables[0])).unwrap();
    overwrite(&fs, &tables[1], |bytes| bytes[600] ^= 1);
    let dry = repaired_with(&fs, RepairOptions { dry_run: true, ..options() });
    assert!(!fs.exists(Path::new(TARGET)).unwrap());
    assert_eq!(dry, repaired(&fs));
}

#[test]
fn repair_refuses_what_it_must_not_touch() {
    let (fs, _) = plain_database();
    let run = |target: &str| {
        let target = PathBuf::from(target);
        repair(&shared(&fs), Path::new(SOURCE), &target, options(), |_| {})
    };
    assert!(run("/db/inside").unwrap_err().to_string().contains("beside it"));
    fs.create_dir_all(Path::new("/full/thing")).unwrap();
    assert!(run("/full").unwrap_err().to_string().contains("not empty"));
    let db = Db::open_with(SOURCE, small_db(), over(&fs, plain_family())).unwrap();
    let busy = run(TARGET).unwrap_err();
    assert_eq!(busy.kind(), archipelago_base::ErrorKind::Busy, "{busy}");
    db.close().unwrap();
    let missing = repair(&shared(&fs), Path::new("/full"), Path::new("/x"), options(), |_| {});
    assert!(missing.unwrap_err().to_string().contains("no file of a database"));
}

#[test]
fn verify_names_every_damaged_file_in_one_run() {
    let (fs, _) = plain_database();
    let tables = names(&fs, ".sst");
    assert!(tables.len() >= 4, "{tables:?}");
    let manifest = names(&fs, "").into_iter().find(|name| name.starts_with("MANIFEST-")).unwrap();
    let log = names(&fs, ".log").pop().unwrap();
    fs.remove(&path(&tables[0])).unwrap();
    overwrite(&fs, &tables[1], |bytes| bytes.truncate(900));
    overwrite(&fs, &tables[2], |bytes| bytes[500] ^= 1);
    overwrite(&fs, &log, |bytes| bytes[200] ^= 1);
    let check = |expected: &[&str]| {
        let before = files(&fs, SOURCE);
        let report = verify_files(&shared(&fs), Path::new(SOURCE), |_| {}).unwrap();
        assert!(files(&fs, SOURCE) == before, "verify changed the files");
        let text: Vec<String> = report.errors.iter().map(ToString::to_string).collect();
        for name in expected {
            assert!(text.iter().any(|line| line.contains(name)), "{name} is not in {text:#?}");
        }
    };
    check(&[&tables[0], &tables[1], &tables[2], &log]);
    // Likewise where the database cannot be opened at all. A missing table may have been replaced.
    overwrite(&fs, &manifest, |bytes| bytes[30] ^= 1);
    fs.remove(&path("IDENTITY")).unwrap();
    check(&[&tables[1], &tables[2], &log, "IDENTITY"]);
    let whole = plain_database().0;
    let report = verify_files(&shared(&whole), Path::new(SOURCE), |_| {}).unwrap();
    assert!(report.is_clean() && report.tables >= 4, "{report:?}");
}

/// Every entry that a database ever held.
type Past = HashSet<(&'static str, Vec<u8>, Vec<u8>)>;

/// A closed database of several families with all kinds of files and records, what it holds, and
/// what it ever held.
fn model_database() -> (Files, model::Contents, Past) {
    let fs = TestDisk::new();
    let db = model::create(shared(&fs), model::manual(), &Hooks::default());
    let (mut script, mut model) = (model::Script::new(23), model::Model::default());
    let mut past = Past::new();
    for step in 0..160 {
        let op = script.op(&model);
        model.apply(&op);
        let all =
            model.contents.iter().flat_map(|(&name, held)| held.iter().map(move |e| (name, e)));
        past.extend(all.map(|(name, (key, value))| (name, key.clone(), value.clone())));
        model::perform_stepping(&db, &shared(&fs), &op, &Hooks::default()).unwrap();
        if step == 40 {
            db.compact_range(db.default_family(), &KeyRange::all()).unwrap();
        }
        if step == 90 || step == 140 {
            for family in model::FAMILIES {
                db.flush(&db.family(family).unwrap()).unwrap();
            }
        }
    }
    db.close().unwrap();
    (files(&fs, SOURCE), model.contents, past)
}

/// Truncates, changes or removes up to three files.
fn damage(all: &mut Files, rng: &mut Rng) -> Vec<String> {
    let mut told = Vec::new();
    for _ in 0..rng.usize(1..4) {
        let names: Vec<String> = all.keys().filter(|name| *name != "LOCK").cloned().collect();
        let name = names[rng.usize(..names.len())].clone();
        let bytes = all.get_mut(&name).unwrap();
        let what = match rng.u8(..5) {
            0 => "remove",
            1 | 2 if !bytes.is_empty() => "cut",
            _ if !bytes.is_empty() => "flip",
            _ => continue,
        };
        let at = if bytes.is_empty() { 0 } else { rng.usize(..bytes.len()) };
        match what {
            "remove" => drop(all.remove(&name)),
            "cut" => bytes.truncate(at),
            _ => bytes[at] ^= 1 << rng.u8(..8),
        }
        told.push(format!("{what} {name} at {at}"));
    }
    told
}

#[test]
fn repaired_values_are_right_outside_the_reported_ranges() {
    let (whole, contents, past) = model_database();
    let ids: BTreeMap<&str, CfId> = {
        let db =
            model::open_over(Arc::new(disk(&whole)), model::manual(), &Hooks::default()).unwrap();
        let known =
            model::FAMILIES.iter().filter_map(|name| Some((*name, db.family(name).ok()?.id())));
        known.chain(db.family(model::GUEST).ok().map(|guest| (model::GUEST, guest.id()))).collect()
    };
    let mut promised = 0;
    for seed in 0..160u64 {
        let mut rng = Rng::with_seed(seed);
        let mut all = whole.clone();
        let told = damage(&mut all, &mut rng);
        let fs = disk(&all);
        let source = Path::new(SOURCE);
        if !all.keys().any(|name| name.ends_with(".sst") || name.ends_with(".log")) {
            continue;
        }
        let outcome = repair(&shared(&fs), source, Path::new(TARGET), options(), |_| {});
        let report = outcome.unwrap_or_else(|error| panic!("seed {seed}, {told:?}: {error}"));
        assert!(files(&fs, SOURCE) == all, "seed {seed}: the original was changed");
        let clean = verify_files(&shared(&fs), Path::new(TARGET), |_| {}).unwrap();
        assert!(clean.is_clean(), "seed {seed}, {told:?}: {:?}", clean.errors);
        promised += judge_run(
            &fs,
            &report,
            &Expected { contents: &contents, past: &past },
            &ids,
            &format!("{seed}, {told:?}"),
        );
    }
    assert!(promised > 10_000, "only {promised} values were promised");
}

/// The state of the model that a repaired database is compared with.
struct Expected<'a> {
    contents: &'a model::Contents,
    past: &'a Past,
}

/// Compares the repaired database with the model. How many keys the report promised.
fn judge_run(
    fs: &TestDisk,
    report: &RepairReport,
    expected: &Expected<'_>,
    ids: &BTreeMap<&str, CfId>,
    run: &str,
) -> usize {
    let Expected { contents, past } = *expected;
    let overrides = report.families.iter().filter(|family| family.name != model::GUEST);
    let families = overrides
        .filter(|family| model::FAMILIES.contains(&family.name.as_str()))
        .map(|family| (family.name.clone(), model::family_options(&family.name)))
        .collect();
    let components = Components { fs: shared(fs), families, ..stepped() };
    let db = Db::open_with(TARGET, DbOptions { ..small_db() }, components)
        .unwrap_or_else(|error| panic!("run {run}: {error}\n{report}"));
    let mut promised = 0;
    for (&name, &cf) in ids {
        let got = match db.family(name) {
            Ok(_) => rows_of(&db, name),
            Err(_) => Rows::new(),
        };
        let empty = Rows::new();
        let want = contents.get(name).unwrap_or(&empty);
        let has_operands = model::family_options(name).merge_operator.is_some();
        for key in got.keys().chain(want.keys()).collect::<BTreeSet<_>>() {
            let (got, want) = (got.get(key), want.get(key));
            if !report.may_affect(cf, key) {
                promised += 1;
                assert_eq!(got, want, "run {run}: {name} {}\n{report}", key.escape_ascii());
            } else if let Some(got) = got
                && !has_operands
            {
                let was = past.contains(&(name, key.clone(), got.clone()));
                assert!(was, "run {run}: {name} {} never had this\n{report}", key.escape_ascii());
            }
        }
    }
    assert!(db.verify(|_, _| {}).unwrap().is_clean(), "run {run}");
    db.close().unwrap();
    promised
}

#[test]
fn database_on_tiers_is_repaired_into_a_directory() {
    let disk = TestDisk::new();
    let (fs, _tiers) = Beneath::Tiers.open(&disk);
    let outside = tempfile::tempdir().unwrap();
    let components = || Components {
        fs: Arc::clone(&fs),
        families: [("default".to_owned(), plain_family())].into_iter().collect(),
        ..stepped()
    };
    let db = Db::open_with(SOURCE, small_db(), components()).unwrap();
    (0..300).for_each(|n| put(&db, &key(n), &value(n, 0)));
    db.flush(db.default_family()).unwrap();
    put(&db, b"last", b"in the log");
    let want = rows_of(&db, "default");
    db.close().unwrap();
    let source = Path::new(SOURCE);
    let target = &outside.path().join("repaired");
    fs.remove(&source.join("CURRENT")).unwrap();
    let report = repair(&fs, source, target, options(), |_| {}).unwrap();
    assert!(report.manifest_lost.is_some(), "{report}");
    let db = Db::open(target, DbOptions::default()).unwrap();
    assert_eq!(rows_of(&db, "default"), want);
    db.close().unwrap();
}
