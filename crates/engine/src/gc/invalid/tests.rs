use std::path::Path;

use super::*;
use crate::job::spec::{FileNumbers, OutputSpec};
use crate::job::testing::{DIR, Executor};
use archipelago_base::{CfId, FileNo};

const IO: IoContext = IoContext::new(FileClass::Sst, IoPurpose::Gc);

fn output_spec(executor: &Executor, first: u64) -> OutputSpec {
    let mut spec = executor.output_spec(1);
    spec.file_numbers = FileNumbers { first, count: 1 };
    spec.values.invalid = FileNumbers { first, count: 4 };
    spec
}

/// An entry in the notation of the tests: number, user key, sequence number.
type Entry<'a> = (u64, &'a str, u64);

/// Writes the entries as a compaction does, with install number `install_no`.
fn written(
    executor: &Executor,
    no: u64,
    entries: &[Entry<'_>],
    install_no: u64,
) -> InvalidFileMeta {
    let (spec, context) = (output_spec(executor, no), executor.context());
    let mut writer = InvalidWriter::new(&spec, CfId(0), IO, &context);
    for &(no, user_key, seq) in entries {
        let key = key::encode(user_key.as_bytes(), archipelago_base::SeqNo(seq), Kind::Indirect);
        writer.note(FileNo(no), &key).expect("notes");
    }
    writer.finish().expect("writes");
    let mut files = writer.release();
    assert_eq!(files.len(), 1);
    InvalidFileMeta { install_no, ..files.remove(0) }
}

fn source<'a>(context: &'a JobContext<'a>) -> InvalidSource<'a> {
    InvalidSource { cf: 0, dir: Path::new(DIR), direct_reads: false, context }
}

/// The entries of a file with their install numbers.
fn read(executor: &Executor, meta: &InvalidFileMeta) -> Result<Vec<(u64, String, u64, u64)>> {
    let context = executor.context();
    let mut cursor = InvalidCursor::open(meta, &source(&context))?;
    let mut entries = Vec::new();
    while let Some(entry) = cursor.current()? {
        let key = String::from_utf8_lossy(entry.user_key).into_owned();
        entries.push((entry.no, key, entry.seq, entry.install_no));
        cursor.advance();
    }
    Ok(entries)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn entries_come_back_in_order_and_their_bytes_do_not_change() {
    let executor = Executor::new();
    let entries = [(9, "b", 4), (300, "a", 1), (9, "a", 7), (9, "b", 5)];
    let meta = written(&executor, 20, &entries, 3);
    let entry = |no, key: &str, seq| (no, key.to_owned(), seq, 3);
    let expected = [entry(9, "a", 7), entry(9, "b", 5), entry(9, "b", 4), entry(300, "a", 1)];
    assert_eq!(read(&executor, &meta).expect("reads"), expected);
    assert_eq!((meta.records, meta.names.as_slice()), (4, &[9, 300][..]));
    let merged_spec = output_spec(&executor, 30);
    let context = executor.context();
    let merged = merge_invalid(&[meta], |_, _| true, &merged_spec, source(&context));
    let merged = merged.expect("merges").expect("has entries");
    assert_eq!(read(&executor, &merged).expect("reads"), expected);
    let bytes = |no: u64| {
        let path = Path::new(DIR).join(invalid_file_name(FileNo(no)));
        hex(&executor.fs.read(&path, IO).expect("reads"))
    };
    let golden: Vec<&str> = include_str!("golden_invalid_files.txt").lines().collect();
    assert_eq!([bytes(20), bytes(30)].as_slice(), golden);
}

#[test]
fn merge_keeps_install_numbers_and_drops_what_counts_for_none() {
    let executor = Executor::new();
    let one = written(&executor, 20, &[(1, "a", 1), (2, "b", 2)], 5);
    let two = written(&executor, 30, &[(1, "c", 3), (3, "a", 4)], 6);
    let (spec, context) = (output_spec(&executor, 40), executor.context());
    let inputs = [one, two];
    let counts = |no, install_no| no == 1 || install_no == 6;
    let merged = merge_invalid(&inputs, counts, &spec, source(&context)).expect("merges");
    let merged = merged.expect("has entries");
    let entry = |no, key: &str, seq, install_no| (no, key.to_owned(), seq, install_no);
    let expected = [entry(1, "a", 1, 5), entry(1, "c", 3, 6), entry(3, "a", 4, 6)];
    assert_eq!(read(&executor, &merged).expect("reads"), expected);
    assert_eq!((merged.install_no, merged.names.as_slice()), (6, &[1, 3][..]));
    let again = output_spec(&executor, 50);
    let none = merge_invalid(&[merged], |_, _| false, &again, source(&context)).expect("merges");
    assert_eq!(none, None);
    let path = Path::new(DIR).join(invalid_file_name(FileNo(50)));
    assert!(!executor.fs.exists(&path).expect("looks"));
}

#[test]
fn files_are_removed_unless_they_are_released() {
    let executor = Executor::new();
    let (spec, context) = (output_spec(&executor, 20), executor.context());
    let mut writer = InvalidWriter::new(&spec, CfId(0), IO, &context);
    assert_eq!(executor.fs.list(Path::new(DIR)).expect("lists").len(), 0);
    let key = key::encode(b"a", archipelago_base::SeqNo(1), Kind::Indirect);
    writer.note(FileNo(9), &key).expect("notes");
    writer.finish().expect("writes");
    assert_eq!(executor.fs.list(Path::new(DIR)).expect("lists").len(), 1);
    drop(writer);
    assert_eq!(executor.fs.list(Path::new(DIR)).expect("lists").len(), 0);
}

#[test]
fn damage_of_every_byte_is_found_and_never_a_panic() {
    let executor = Executor::new();
    let meta = written(&executor, 20, &[(9, "b", 4), (300, "a", 1), (9, "a", 7)], 3);
    let path = Path::new(DIR).join(invalid_file_name(FileNo(20)));
    let whole = executor.fs.read(&path, IO).expect("reads");
    for at in 0..whole.len() {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x10;
        executor.fs.write_atomic(&path, &damaged, IO).expect("writes");
        let error = read(&executor, &meta).expect_err("damaged");
        assert!(
            matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Unsupported),
            "byte {at}: {error}"
        );
        assert!(error.to_string().contains("000020.inv"), "byte {at}: {error}");
    }
    executor.fs.write_atomic(&path, &whole, IO).expect("writes");
    for wrong in [
        InvalidFileMeta { records: 4, ..meta.clone() },
        InvalidFileMeta { names: vec![9], ..meta.clone() },
        InvalidFileMeta { unique_id: [0; 16], ..meta },
    ] {
        assert_eq!(read(&executor, &wrong).expect_err("refused").kind(), ErrorKind::Corrupt);
    }
}

#[test]
fn entries_that_cannot_be_are_refused() {
    let meta = InvalidFileMeta {
        no: 1,
        unique_id: [0; 16],
        size_bytes: 1,
        checksum: 0,
        records: 1,
        install_no: 5,
        names: vec![9],
    };
    let key = |no: u64, kind| {
        let user_key = [&no.to_be_bytes()[..], b"k"].concat();
        key::encode(&user_key, archipelago_base::SeqNo(3), kind)
    };
    let good = key(9, Kind::Put);
    assert_eq!(decode(&meta, &good, &[]).map(|entry| entry.install_no), Some(5));
    assert_eq!(decode(&meta, &good, &[4]).map(|entry| entry.install_no), Some(4));
    assert_eq!(decode(&meta, &good, &[6]), None, "later than the file");
    assert_eq!(decode(&meta, &good, &[4, 4]), None, "bytes follow");
    assert_eq!(decode(&meta, &good, &[0x80]), None, "cut");
    assert_eq!(decode(&meta, &key(8, Kind::Put), &[]), None, "unknown number");
    assert_eq!(decode(&meta, &key(9, Kind::Delete), &[]), None, "another kind");
    for len in 0..good.len() {
        assert_eq!(decode(&meta, &good[..len], &[]), None, "cut");
    }
}

#[test]
fn merges_take_small_files_and_bound_their_number() {
    assert!(files_to_merge(&[1; 7]).is_empty());
    assert_eq!(files_to_merge(&[1; 8]).len(), 8);
    assert_eq!(files_to_merge(&[100, 1, 1, 1, 1, 1, 1, 1]), [1, 2, 3, 4, 5, 6, 7]);
    let mut sizes: Vec<u64> = Vec::new();
    let mut written = 0;
    for _ in 0..4096 {
        sizes.push(1);
        let taken = files_to_merge(&sizes);
        if taken.is_empty() {
            continue;
        }
        let merged = taken.iter().map(|&at| sizes[at]).sum();
        written += merged;
        let kept = (0..sizes.len()).filter(|at| !taken.contains(at)).map(|at| sizes[at]);
        sizes = kept.chain([merged]).collect();
        assert!(sizes.len() < 8, "{sizes:?}");
    }
    assert!(written <= 4096 * 12, "{written} of 4096 written");
}
