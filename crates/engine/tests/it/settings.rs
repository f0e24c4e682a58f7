//! Every setting at every value where its meaning changes: it either works or is refused by name.
//!
//! The table of settings is derived from the settings themselves, so that a new one is covered here
//! or must be excepted by name. The tests search for the boundaries of a number: the smallest and
//! the largest value that validation accepts. They also try the neighbours of both, 0, 1 and the
//! default.

use std::fmt::Debug;

use archipelago_base::{ErrorKind, Result};
use archipelago_engine::db::{BackgroundMode, Components, Db, ReadOptions};
use archipelago_engine::key::KeyRange;
use archipelago_engine::options::{CfOptions, DbOptions, WriteOptions};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::disk::TestDisk;
use crate::support::over;

/// Settings that decide whether an open succeeds at all; `api` and `basics` test them.
const EXCEPTED: &[&str] = &["create_if_missing", "error_if_exists", "read_only"];

/// Possible values of settings that are words.
const WORDS: &[(&str, &[&str])] = &[
    ("recovery_mode", &["tolerate-torn-tail", "strict"]),
    ("group_access", &["none", "read", "write"]),
    ("compression", &["none", "lz4", "zstd"]),
    ("compression_last", &["none", "lz4", "zstd"]),
    ("merge_operator", &["u64-counter"]),
    ("compaction_filter", &["ttl"]),
];

/// A table of settings: of a database, or of a column family.
trait Table: Clone + Debug + Default + PartialEq + Serialize + DeserializeOwned {
    fn check(&self) -> Result<()>;
    fn run(&self);
}

impl Table for DbOptions {
    fn check(&self) -> Result<()> {
        self.validate()
    }

    fn run(&self) {
        work(self, &CfOptions::default());
    }
}

impl Table for CfOptions {
    fn check(&self) -> Result<()> {
        self.validate()
    }

    fn run(&self) {
        work(&DbOptions::default(), self);
    }
}

/// Writes, overwrites, deletes, flushes, compacts, reads, and reads again after a second open.
fn work(options: &DbOptions, family: &CfOptions) {
    work_in(BackgroundMode::Threads, options, family);
}

fn work_in(background: BackgroundMode, options: &DbOptions, family: &CfOptions) {
    let fs = TestDisk::new();
    let key = |at: u32| format!("key{at:02}").into_bytes();
    let with = WriteOptions::default();
    let value = 7u64.to_le_bytes();
    for round in 0..2 {
        let components = Components { background, ..over(&fs, family.clone()) };
        let db = Db::open_with("/db", options.clone(), components).unwrap();
        let cf = db.default_family().clone();
        for _flush in 0..3 {
            for at in 0..20 {
                write_or_step(&db, background, || db.put_with(&cf, &key(at), &value, &with));
            }
            write_or_step(&db, background, || db.delete_range(&cf, &key(3), &key(5), &with));
            db.flush(&cf).unwrap();
        }
        db.compact_range(&cf, &KeyRange::all()).unwrap();
        write_or_step(&db, background, || db.delete_with(&cf, &key(19), &with));
        db.wait_for_background().unwrap();
        let live = |at: &u32| !(3..5).contains(at) && *at != 19;
        for at in 0..20 {
            let found = db.get(&key(at)).unwrap();
            let wanted = live(&at).then_some(&value[..]);
            assert_eq!(found.as_deref(), wanted, "key {at}, round {round}");
        }
        let mut iter = db.iter(&cf, &ReadOptions::new()).unwrap();
        let mut seen = 0;
        iter.seek_to_first();
        while iter.valid() {
            seen += 1;
            iter.next();
        }
        iter.status().unwrap();
        assert_eq!(seen, (0..20).filter(live).count());
        drop(iter);
        db.close().unwrap();
    }
}

/// In manual mode a write that would wait is refused: a step of background work makes room.
fn write_or_step(db: &Db, background: BackgroundMode, write: impl Fn() -> Result<()>) {
    while let Err(error) = write() {
        assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
        assert_eq!(background, BackgroundMode::Manual, "{error}");
        assert!(db.step_background().unwrap(), "{error}, and there is nothing to be done");
    }
}

fn with<T: Table>(base: &T, field: &str, value: &Value) -> Option<T> {
    let mut all = serde_json::to_value(base).unwrap();
    all[field] = value.clone();
    serde_json::from_value(all).ok()
}

fn accepts<T: Table>(field: &str, value: u64) -> bool {
    let changed = with(&T::default(), field, &json!(value));
    changed.is_some_and(|options: T| options.check().is_ok())
}

/// The last value from `good`, which is accepted, towards `bad`.
fn last_accepted<T: Table>(field: &str, good: u64, bad: u64) -> u64 {
    let (mut good, mut bad) = (u128::from(good), u128::from(bad));
    if accepts::<T>(field, bad as u64) {
        return bad as u64;
    }
    while good.abs_diff(bad) > 1 {
        let middle = u128::midpoint(good, bad);
        if accepts::<T>(field, middle as u64) {
            good = middle;
        } else {
            bad = middle;
        }
    }
    good as u64
}

/// The smallest accepted value above 0, and the largest.
fn range<T: Table>(field: &str, default: u64) -> (u64, u64) {
    let mut candidates = std::iter::once(default).chain((0..64).map(|bit| 1 << bit));
    let start = candidates.find(|&value| value > 0 && accepts::<T>(field, value)).unwrap();
    (last_accepted::<T>(field, start, 1), last_accepted::<T>(field, start, u64::MAX))
}

/// The values to try for a setting.
fn values<T: Table>(field: &str, default: &Value) -> Vec<Value> {
    let words = || WORDS.iter().find(|(name, _)| *name == field).map(|(_, words)| *words);
    match default {
        Value::Bool(_) => vec![json!(false), json!(true)],
        Value::Number(number) if number.is_f64() => [-1.0, 0.0, 0.5, 1.0, 1.04, 1.05, 1.5, 1e9]
            .into_iter()
            .map(|value| json!(value))
            .collect(),
        Value::Number(number) => {
            let default = number.as_u64().unwrap();
            let (least, most) = range::<T>(field, default);
            let mut all = vec![0, 1, least - 1, least, default, most, most.saturating_add(1)];
            all.sort_unstable();
            all.dedup();
            all.into_iter().map(|value| json!(value)).collect()
        }
        _ => words()
            .unwrap_or_else(|| panic!("list the words of the setting {field} in WORDS"))
            .iter()
            .map(|word| json!(word))
            .collect(),
    }
}

fn try_every_setting<T: Table>() {
    let default = serde_json::to_value(T::default()).unwrap();
    for (field, value) in default.as_object().unwrap() {
        if EXCEPTED.contains(&field.as_str()) {
            continue;
        }
        for value in values::<T>(field, value) {
            // A number that the type cannot hold is refused when the settings are read.
            let Some(options) = with(&T::default(), field, &value) else { continue };
            match options.check() {
                Ok(()) => {
                    println!("{field} = {value}");
                    options.run();
                }
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
                    assert!(error.to_string().contains(field.as_str()), "{field}: {error}");
                }
            }
        }
    }
}

/// All numbers at their smallest accepted value at the same time, or at their largest.
fn all_at_once<T: Table>(largest: bool) -> T {
    let default = serde_json::to_value(T::default()).unwrap();
    let mut options = T::default();
    // Twice, because what one setting allows depends on others.
    for _pass in 0..2 {
        for (field, value) in default.as_object().unwrap() {
            let Some(number) = value.as_u64() else { continue };
            let (least, most) = range::<T>(field, number);
            let wanted = if largest { most } else { least };
            let changed: Option<T> = with(&options, field, &json!(wanted));
            if let Some(changed) = changed.filter(|changed| changed.check().is_ok()) {
                options = changed;
            }
        }
    }
    assert_ne!(options, T::default());
    options
}

#[test]
fn every_database_setting_works_or_is_refused_at_its_bounds() {
    try_every_setting::<DbOptions>();
    work_in(BackgroundMode::Manual, &DbOptions::default(), &CfOptions::default());
}

#[test]
fn every_family_setting_works_or_is_refused_at_its_bounds() {
    try_every_setting::<CfOptions>();
}

#[test]
fn all_settings_work_together_at_their_bounds() {
    for largest in [false, true] {
        all_at_once::<CfOptions>(largest).run();
        let options: DbOptions = all_at_once(largest);
        options.run();
        work(&options, &all_at_once(largest));
    }
}

#[test]
fn thresholds_work_in_every_combination() {
    for (slowdown, stop) in [(0, 0), (0, 1), (1, 0), (1, 1), (1, u64::MAX), (u64::MAX, 0)] {
        CfOptions {
            pending_bytes_slowdown: slowdown,
            pending_bytes_stop: stop,
            ..CfOptions::default()
        }
        .run();
    }
    for most in [1, usize::MAX] {
        CfOptions {
            l0_compaction_trigger: most,
            l0_slowdown: most,
            l0_stop: most,
            write_buffers_max: most.max(2),
            ..CfOptions::default()
        }
        .run();
    }
}
