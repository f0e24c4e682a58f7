//! Tests of the bytes of the namespace: golden vectors, damaged input and tails.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io::ErrorKind as IoKind;
use std::path::{Path, PathBuf};

use archipelago_base::ErrorKind;
use archipelago_base::random::Rng;
use archipelago_env::{FileClass, LogTail};

use super::log::{append_framed, decode, encode_generation, merge};
use super::record::{CopyRecord, DeviceRecord, FilePlace, FileRecord, Record};
use super::state::{Gone, NamespaceState};

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn every_record() -> Vec<Record> {
    let place = |device, number| FilePlace { device, number, dir: 0 };
    vec![
        Record::Device(DeviceRecord { no: 0, name: "fast".into(), path: "/mnt/fast".into() }),
        Record::MakeDir { path: "/db".into() },
        Record::File(FileRecord {
            id: 1,
            class: FileClass::Sst,
            level: Some(3),
            place: place(0, 1),
            names: vec!["/db/000001.sst".into()],
            heat: 300,
        }),
        Record::File(FileRecord {
            id: 2,
            class: FileClass::Wal,
            level: None,
            place: FilePlace { device: 0, number: 2, dir: 0x1122_3344_5566_7788 },
            names: vec!["/db/000002.log".into(), "/db/other".into()],
            heat: 0,
        }),
        Record::File(FileRecord {
            id: 3,
            class: FileClass::ValueSst,
            level: None,
            place: place(1, 3),
            names: vec!["/db/000003.vsst".into()],
            heat: 1,
        }),
        Record::Rename { from: "/db/other".into(), to: "/db/renamed".into() },
        Record::Link { from: "/db/000001.sst".into(), to: "/db/linked".into() },
        Record::Move { file: 1, to: place(1, 7) },
        Record::Level { file: 1, level: 4 },
        Record::CopyAdded(CopyRecord {
            file: 1,
            device: 0,
            number: 8,
            len: 70_000,
            crc: 0xdead_beef,
            whole: true,
        }),
        Record::CopyDropped { number: 8 },
        Record::Remove { path: "/db/linked".into() },
        Record::RemoveDir { path: "/db".into() },
        Record::Mark { bytes_through: 1000, names_through: 900, next: 9 },
    ]
}

#[test]
fn golden_bytes_do_not_change() {
    let bytes = encode_generation(&[0x5a; 16], 3, &every_record(), 9);
    let expected = include_str!("golden.txt").replace(['\n', ' '], "");
    assert_eq!(hex(&bytes), expected);
}

#[test]
fn records_decode_as_encoded_and_damage_is_none() {
    let mut rng = Rng::with_seed(3);
    for record in every_record() {
        let mut bytes = Vec::new();
        record.encode(&mut bytes);
        assert_eq!(Record::decode(&bytes).as_ref(), Some(&record));
        for cut in 0..bytes.len() {
            assert_eq!(Record::decode(&bytes[..cut]), None, "{record:?} cut at {cut}");
        }
        for _ in 0..200 {
            let mut damaged = bytes.clone();
            damaged[rng.usize(..bytes.len())] ^= rng.u8(1..);
            let _any_answer = Record::decode(&damaged);
        }
    }
}

/// A generation with a snapshot of one directory, and the bytes of a tail of records.
fn with_tail(records: &[Record]) -> (Vec<u8>, Vec<u8>) {
    let snapshot = encode_generation(&[1; 16], 1, &[Record::MakeDir { path: "/db".into() }], 1);
    let start = snapshot.len();
    // The frame of a record depends only on its offset, so a longer generation has the same bytes
    // there.
    let mut whole = snapshot.clone();
    for record in records {
        append_framed(&[1; 16], record, &mut whole);
    }
    (snapshot, whole[start..].to_vec())
}

fn made(id: u64) -> Record {
    Record::File(FileRecord {
        id,
        class: FileClass::Sst,
        level: Some(0),
        place: FilePlace { device: 0, number: id, dir: 0 },
        names: vec![format!("/db/{id}").into()],
        heat: 0,
    })
}

#[test]
fn torn_tail_ends_the_log_and_durable_damage_is_corruption() {
    let (snapshot, tail) = with_tail(&[made(1), made(2)]);
    let path = Path::new("names");
    let read = |tail: &[u8]| decode(path, 1, &snapshot, tail);
    assert_eq!(read(&tail).unwrap().records.len(), 4);
    for cut in 0..tail.len() {
        let recovered = read(&tail[..cut]).unwrap();
        assert!(recovered.records.len() < 4);
        let mut damaged = tail.clone();
        damaged[cut] ^= 1;
        assert!(read(&damaged).unwrap().records.len() < 4);
    }
    let end = (snapshot.len() + tail.len()) as u64;
    let mark = Record::Mark { bytes_through: end, names_through: end, next: 3 };
    let (_, marked) = with_tail(&[made(1), made(2), mark]);
    let recovered = read(&marked).unwrap();
    assert_eq!((recovered.names_through, recovered.torn_bytes), (end, 0));
    for at in 0..tail.len() {
        let mut damaged = marked.clone();
        damaged[at] ^= 1;
        assert_eq!(read(&damaged).unwrap_err().kind(), ErrorKind::Corrupt, "byte {at}");
    }
    for at in 0..snapshot.len() {
        let mut damaged = snapshot.clone();
        damaged[at] ^= 1;
        assert!(decode(path, 1, &damaged, &marked).is_err(), "byte {at}");
    }
}

#[test]
fn foreign_logs_and_versions_are_refused() {
    let mut bytes = encode_generation(&[1; 16], 1, &[], 1);
    bytes[8] = 1;
    let error = decode(Path::new("names"), 1, &bytes, &[]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("version 1"), "{error}");
    let error = decode(Path::new("names"), 1, b"#!/bin/sh\nexit 0\n", &[]).unwrap_err();
    assert!(error.to_string().contains("not the log of a tier namespace"), "{error}");
}

#[test]
fn snapshot_rebuilds_the_state() {
    let mut state = NamespaceState::default();
    for record in every_record().iter().take(10) {
        state.apply(record).unwrap();
    }
    let mut again = NamespaceState::default();
    for record in state.snapshot() {
        again.apply(&record).unwrap();
    }
    again.next = state.next;
    assert_eq!(format!("{:?}", again.snapshot()), format!("{:?}", state.snapshot()));
    assert_eq!(state.next, 9);
    let before = format!("{:?}", state.snapshot());
    let rename = |from: &str, to: &str| Record::Rename { from: from.into(), to: to.into() };
    for (refused, kind) in [
        (Record::Remove { path: "/db/none".into() }, IoKind::NotFound),
        (rename("/db/none", "/db/x"), IoKind::NotFound),
        (rename("/db/linked", "/none/x"), IoKind::NotFound),
        (rename("/db", "/db/x"), IoKind::InvalidInput),
        (rename("/db", "/none/x"), IoKind::NotFound),
        (rename("/", "/db2"), IoKind::InvalidInput),
        (rename("/db", "/db/.."), IoKind::InvalidInput),
        (
            Record::Link { from: "/db/linked".into(), to: "/db/renamed".into() },
            IoKind::AlreadyExists,
        ),
        (Record::MakeDir { path: "/db/linked/x".into() }, IoKind::NotADirectory),
        (Record::Level { file: 99, level: 1 }, IoKind::InvalidInput),
        (Record::CopyDropped { number: 99 }, IoKind::InvalidInput),
        (made(1), IoKind::InvalidInput),
    ] {
        assert_eq!(state.apply(&refused).unwrap_err().kind, kind, "{refused:?}");
        assert_eq!(format!("{:?}", state.snapshot()), before);
    }
    let gone = state.apply(&Record::Remove { path: "/db/linked".into() }).unwrap();
    assert_eq!(gone, [], "it has another name");
    let gone = state.apply(&Record::Remove { path: "/db/000001.sst".into() }).unwrap();
    assert_eq!(gone, [Gone::File(1)]);
    assert!(state.copies.is_empty(), "copies go with the file");
}

#[test]
fn undone_record_leaves_the_state_as_it_was() {
    let mut state = NamespaceState::default();
    let records = every_record();
    let (build, changes) = records.split_at(10);
    let undone = |state: &mut NamespaceState, record: &Record| {
        let before = state.snapshot();
        let change = state.change(record).unwrap();
        state.undo(change.undo);
        assert_eq!(state.snapshot(), before, "{record:?}");
    };
    for record in build {
        undone(&mut state, record);
        state.apply(record).unwrap();
    }
    let Record::File(file) = made(9) else { unreachable!() };
    let rename = |from: &str, to: &str| Record::Rename { from: from.into(), to: to.into() };
    let more = [
        Record::Device(DeviceRecord { no: 0, name: "new".into(), path: "/mnt/new".into() }),
        // The files that are replaced have other names, copies, or neither.
        Record::File(FileRecord { names: vec!["/db/linked".into()], ..file.clone() }),
        Record::File(FileRecord { names: vec!["/db/000003.vsst".into()], ..file }),
        rename("/db/000003.vsst", "/db/000001.sst"),
        rename("/db/000001.sst", "/db/linked"),
        rename("/db", "/elsewhere"),
        Record::MakeDir { path: "/db/in/side".into() },
        Record::MakeDir { path: "/db".into() },
        Record::Remove { path: "/db/000001.sst".into() },
    ];
    changes.iter().chain(&more).for_each(|record| undone(&mut state, record));
    state.apply(&Record::Remove { path: "/db/linked".into() }).unwrap();
    undone(&mut state, &Record::Remove { path: "/db/000001.sst".into() });
    state.apply(&Record::MakeDir { path: "/empty".into() }).unwrap();
    undone(&mut state, &rename("/db", "/empty"));
    assert_eq!(state.copies.len(), 1);
    assert_eq!(state.id(Path::new("/db/000001.sst")), Some(1));
}

#[test]
fn merge_takes_each_record_from_the_view_that_has_it() {
    let (id, path) = ([7; 16], Path::new("names"));
    let snapshot = encode_generation(&id, 1, &[], 1);
    let mut bytes = snapshot.clone();
    let mut ends = vec![snapshot.len()];
    for number in 1..=4 {
        append_framed(&id, &made(number), &mut bytes);
        ends.push(bytes.len());
    }
    let start = snapshot.len() as u64;
    let part = |from: usize, to: usize| bytes[ends[from]..ends[to]].to_vec();
    let read = |file: &[u8], from: usize, kept: &[u8]| {
        let kept = LogTail { offset: (ends[from] - ends[0]) as u64, bytes: kept.to_vec() };
        let merged = merge(&id, start, file, &kept);
        decode(path, 1, &snapshot, &merged).map(|found| found.records.len() - 1)
    };
    assert_eq!(read(&part(0, 2), 2, &part(2, 4)).unwrap(), 4, "after a kill");
    assert_eq!(read(&part(0, 4), 1, &part(1, 2)).unwrap(), 4, "what was kept is of long before");
    assert_eq!(read(&part(0, 4), 1, &[]).unwrap(), 4);
    assert_eq!(read(&part(0, 4), 1, &vec![0; ends[3] - ends[1]]).unwrap(), 4, "its pages are lost");
    let mut torn = part(0, 4);
    torn[ends[1] - ends[0] + 9] ^= 1;
    assert_eq!(read(&torn, 1, &part(1, 2)).unwrap(), 4, "one from there, the others from the file");
    assert_eq!(read(&torn, 2, &part(2, 4)).unwrap(), 1, "nobody has the second");
    assert_eq!(read(&part(0, 1), 2, &part(2, 4)).unwrap(), 1, "with a hole before it");
    let mut marked = bytes.clone();
    let through = bytes.len() as u64;
    let mark = Record::Mark { bytes_through: through, names_through: through, next: 9 };
    append_framed(&id, &mark, &mut marked);
    marked[ends[1] + 9] ^= 1;
    let error = read(&marked[ends[0]..], 2, &part(2, 3)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "the longer view says that it was durable");
}

/// The expected names and directories of a state, in plain maps.
#[derive(Default)]
struct PlainNames {
    names: BTreeMap<PathBuf, u64>,
    dirs: BTreeSet<PathBuf>,
}

impl PlainNames {
    fn list(&self, dir: &Path) -> Vec<(OsString, Option<u64>)> {
        let here = |path: &Path| {
            (path.parent() == Some(dir)).then(|| path.file_name().map(OsString::from)).flatten()
        };
        let files = self.names.iter().filter_map(|(path, &id)| Some((here(path)?, Some(id))));
        let dirs = self.dirs.iter().filter_map(|path| Some((here(path)?, None)));
        let mut listed: Vec<_> = files.chain(dirs).collect();
        listed.sort();
        listed
    }

    /// Whether a record renames a directory in a way that POSIX allows. `None` for other records.
    fn renames_dir(&self, record: &Record) -> Option<bool> {
        let Record::Rename { from, to } = record else { return None };
        if !self.dirs.contains(from) {
            return None;
        }
        let parent = to.parent()?;
        let has_place = parent.parent().is_none() || self.dirs.contains(parent);
        let is_free = from == to || (!self.dirs.contains(to) || self.list(to).is_empty());
        let is_within = from != to && to.starts_with(from);
        Some(has_place && is_free && !is_within && !self.names.contains_key(to))
    }

    /// Applies a change that the state accepted.
    fn apply(&mut self, record: &Record) {
        match record {
            Record::MakeDir { path } => {
                let parts = path.ancestors().filter(|part| part.parent().is_some());
                self.dirs.extend(parts.map(Path::to_owned));
            }
            Record::RemoveDir { path } => {
                self.dirs.retain(|dir| !dir.starts_with(path));
                self.names.retain(|name, _| !name.starts_with(path));
            }
            Record::File(file) => {
                self.names.insert(file.names[0].clone(), file.id);
            }
            Record::Rename { from, to } if self.dirs.contains(from) => {
                let moved = |path: &Path| match path.strip_prefix(from) {
                    Ok(rest) if rest == Path::new("") => to.clone(),
                    Ok(rest) => to.join(rest),
                    Err(_) => path.to_owned(),
                };
                self.dirs = self.dirs.iter().map(|dir| moved(dir)).collect();
                self.names = self.names.iter().map(|(path, &id)| (moved(path), id)).collect();
            }
            Record::Rename { from, to }
                if self.names[from] != self.names.get(to).copied().unwrap_or(0) =>
            {
                let id = self.names.remove(from).unwrap();
                self.names.insert(to.clone(), id);
            }
            Record::Link { from, to } => {
                self.names.insert(to.clone(), self.names[from]);
            }
            Record::Remove { path } => {
                self.names.remove(path);
            }
            _ => {}
        }
    }
}

#[test]
fn state_equals_a_plain_map_after_random_changes() {
    let places = ["a", "a-b", "a/c", "a.d", "/a", "/a/c", "/a/c/e", "/a-b", "b"];
    let any = |rng: &mut Rng| PathBuf::from(places[rng.usize(..places.len())]);
    let (mut taken, mut renamed_dirs) = (0, 0);
    for seed in 0..40 {
        let mut rng = Rng::with_seed(seed);
        let (mut state, mut plain) = (NamespaceState::default(), PlainNames::default());
        for id in 1..200 {
            let record = match rng.u8(..8) {
                0 => Record::MakeDir { path: any(&mut rng) },
                1 => Record::RemoveDir { path: any(&mut rng) },
                2 => Record::Remove { path: any(&mut rng) },
                3 => Record::Link { from: any(&mut rng), to: any(&mut rng) },
                4 => Record::Rename { from: any(&mut rng), to: any(&mut rng) },
                _ => {
                    let Record::File(file) = made(id) else { unreachable!() };
                    Record::File(FileRecord { names: vec![any(&mut rng)], ..file })
                }
            };
            let renamed = plain.renames_dir(&record);
            let before = state.snapshot();
            if let Ok(change) = state.change(&record) {
                state.undo(change.undo);
            }
            assert_eq!(state.snapshot(), before, "{record:?} is undone");
            let outcome = state.apply(&record);
            if let Some(possible) = renamed {
                assert_eq!(outcome.is_ok(), possible, "{record:?}: {outcome:?}");
                renamed_dirs += usize::from(possible);
            }
            if outcome.is_ok() {
                plain.apply(&record);
                taken += 1;
            }
            for place in places.iter().map(Path::new).chain([Path::new(""), Path::new("/")]) {
                let is_dir = place.parent().is_none() || plain.dirs.contains(place);
                assert_eq!(state.id(place), plain.names.get(place).copied(), "{record:?}");
                assert_eq!(state.is_dir(place), is_dir, "{record:?}");
                let listed = is_dir.then(|| plain.list(place));
                assert_eq!(state.list(place), listed, "{} after {record:?}", place.display());
            }
            let held: BTreeSet<u64> = plain.names.values().copied().collect();
            assert_eq!(state.files.keys().copied().collect::<BTreeSet<_>>(), held);
            for (id, file) in &state.files {
                let names: BTreeSet<&PathBuf> = file.names.iter().collect();
                let named = plain.names.iter().filter(|(_, other)| *other == id);
                assert_eq!(names, named.map(|(path, _)| path).collect(), "{record:?}");
                let is_plain = |name: &PathBuf| {
                    name.as_os_str() == archipelago_env::names::plain(name).as_os_str()
                };
                assert!(file.names.iter().all(is_plain), "{:?} after {record:?}", file.names);
            }
        }
    }
    assert!(taken > 2000, "{taken} changes were taken");
    assert!(renamed_dirs > 20, "{renamed_dirs} directories were renamed");
}
