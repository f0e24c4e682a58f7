//! Settings of separated values: an open refuses them by name, keeps them, and applies them.

use archipelago_base::ErrorKind;
use archipelago_engine::db::Db;
use archipelago_engine::key::{KeyRange, VALUE_BYTES_MAX};
use archipelago_engine::options::{CfOptions, Compression};
use archipelago_engine::stats::Ticker;
use archipelago_env::FileSystem;

use super::world::{key, patiently, step_all};
use crate::disk::TestDisk;
use crate::support::{over, small_db, small_family};

const KEYS: u32 = 120;
const VALUE_BYTES: usize = 600;

fn family() -> CfOptions {
    CfOptions {
        buckets: 1,
        value_separation_bytes: 64,
        value_file_bytes: 64 << 10,
        space_amplification_max: 0.0,
        compression: Compression::None,
        compression_last: Compression::None,
        ..small_family()
    }
}

fn open(fs: &TestDisk, family: CfOptions) -> Db {
    Db::open_with("/db", small_db(), over(fs, family)).unwrap()
}

/// Overwrites the keys for which `is` holds, and compacts.
fn overwrite(db: &Db, round: u8, is: impl Fn(u32) -> bool) {
    for n in (0..KEYS).filter(|n| is(*n)) {
        patiently(db, || db.put(&key(n), &[round; VALUE_BYTES]));
    }
    db.flush(db.default_family()).unwrap();
    db.compact_range(db.default_family(), &KeyRange::all()).unwrap();
}

fn exposed(db: &Db) -> u64 {
    db.values(db.default_family()).unwrap().exposed_bytes()
}

#[test]
fn settings_out_of_range_are_refused_by_name() {
    let most = VALUE_BYTES_MAX as u64;
    let cases: Vec<(CfOptions, String)> = vec![
        (
            CfOptions { value_separation_bytes: most + 1, ..family() },
            format!("value_separation_bytes is {}: it must be at most {most}", most + 1),
        ),
        (
            CfOptions { value_file_bytes: (64 << 10) - 1, ..family() },
            "value_file_bytes is 65535: it must be at least 65536".to_owned(),
        ),
        (
            CfOptions { value_file_bytes: (64 << 30) + 1, ..family() },
            "value_file_bytes is 68719476737: it must be at most 68719476736".to_owned(),
        ),
    ];
    let bounds = [1.0499, 1.0, 0.1, -0.5, f64::NAN, f64::INFINITY];
    let bounds = bounds.map(|bound| {
        let family = CfOptions { space_amplification_max: bound, ..family() };
        (family, format!("space_amplification_max is {bound}: it must be 0, for no bound, or at"))
    });
    for (wrong, why) in cases.into_iter().chain(bounds) {
        let fs = TestDisk::new();
        let error = Db::open_with("/db", small_db(), over(&fs, wrong.clone())).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.to_string().contains(&why), "{why}: {error}");
        assert!(!fs.exists("/db/CURRENT".as_ref()).unwrap(), "a refused open leaves nothing");
        let db = open(&fs, family());
        let error = db.create_family("other", wrong).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.to_string().contains(&why), "{why}: {error}");
        assert!(db.family("other").is_err());
    }
    let edges = [
        CfOptions { value_separation_bytes: most, ..family() },
        CfOptions { value_file_bytes: 64 << 30, ..family() },
        CfOptions { space_amplification_max: 1.05, ..family() },
    ];
    edges.into_iter().for_each(|edge| open(&TestDisk::new(), edge).close().unwrap());
}

#[test]
fn threshold_takes_effect_at_the_open() {
    let fs = TestDisk::new();
    let references = |db: &Db| db.values(db.default_family()).unwrap().references();
    let thresholds = [(VALUE_BYTES as u64 + 1, 0), (VALUE_BYTES as u64, KEYS), (0, 0), (1, KEYS)];
    for (round, (threshold, expected)) in (0..).zip(thresholds) {
        let db = open(&fs, CfOptions { value_separation_bytes: threshold, ..family() });
        overwrite(&db, round, |_| true);
        assert_eq!(references(&db), u64::from(expected), "threshold {threshold}");
        db.close().unwrap();
    }
}

#[test]
fn size_of_value_files_takes_effect_at_the_open() {
    let fs = TestDisk::new();
    let largest = |db: &Db| {
        let files = db.values(db.default_family()).unwrap().files;
        files.iter().map(|file| file.value_bytes).max().unwrap()
    };
    let large = CfOptions { write_buffer_bytes: 1 << 20, ..family() };
    let db = open(&fs, CfOptions { value_file_bytes: 1 << 20, ..large.clone() });
    overwrite(&db, 1, |_| true);
    assert!(largest(&db) > 64 << 10, "{}", largest(&db));
    db.close().unwrap();
    let db = open(&fs, large);
    overwrite(&db, 2, |_| true);
    step_all(&db).unwrap();
    // A file is closed after the record that fills it.
    let most = (64 << 10) + VALUE_BYTES as u64 + 100;
    assert!(largest(&db) <= most, "{} bytes", largest(&db));
    db.close().unwrap();
}

#[test]
fn bound_takes_effect_at_the_open() {
    let fs = TestDisk::new();
    let db = open(&fs, family());
    overwrite(&db, 1, |_| true);
    overwrite(&db, 2, |n| n % 3 > 0);
    step_all(&db).unwrap();
    let garbage = exposed(&db);
    assert!(garbage > 40_000, "{garbage}");
    assert_eq!(db.statistics().get(Ticker::GcJobs), 0, "there is no bound");
    db.close().unwrap();
    for bound in [4.0, 1.05] {
        let db = open(&fs, CfOptions { space_amplification_max: bound, ..family() });
        step_all(&db).unwrap();
        let report = db.values(db.default_family()).unwrap();
        let allowed = report.space.unwrap().allowed_bytes;
        assert!(allowed.is_some(), "bound {bound}");
        assert_eq!(exposed(&db) < garbage, bound < 2.0, "bound {bound}: {}", exposed(&db));
        db.close().unwrap();
    }
    // An open without the settings of the family keeps those that are stored.
    let mut components = over(&fs, family());
    components.families.clear();
    let db = Db::open_with("/db", small_db(), components).unwrap();
    let report = db.values(db.default_family()).unwrap();
    assert_eq!((report.separation_bytes, report.space_amplification_max), (64, 1.05));
    db.close().unwrap();
}
