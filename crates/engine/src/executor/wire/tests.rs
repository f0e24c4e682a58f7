use std::path::PathBuf;

use archipelago_base::random::Rng;

use super::*;
use crate::compaction::job::Input;
use crate::file_meta::FileMeta;
use crate::gc::job::{GcInput, Validity};
use crate::gc::valid_bits::ValidBits;
use crate::gc::windows::ReadaheadLimits;
use crate::job::ShardRef;
use crate::job::below::Below;
use crate::job::spec::{CurrentNumber, FileNumbers, Grandparent, OutputSpec, Retention, ValueSpec};
use crate::key::KeyRange;
use crate::options::Compression;
use crate::table_content::TableContent;
use crate::value_ref::{InvalidFileMeta, ValueFileMeta, ValueRefs};

fn range(start: &str, end: Option<&str>) -> KeyRange {
    KeyRange { start: start.into(), end: end.map(|end| end.as_bytes().to_vec()) }
}

fn retention() -> Retention {
    Retention {
        visible_seq: 300,
        snapshots: vec![7, 299],
        below: Below::Runs(vec![vec![range("a", Some("b"))], vec![]]),
        now_ms: 1000,
        merge_operator: Some("append".into()),
        compaction_filter: None,
    }
}

fn value_file() -> ValueFileMeta {
    ValueFileMeta {
        no: 9,
        unique_id: [2; 16],
        size_bytes: 500,
        checksum: 0xfeed_beef,
        keys_offset: 400,
        smallest: b"a".to_vec(),
        largest: b"c".to_vec(),
        smallest_seq: 1,
        largest_seq: 2,
        records: 3,
        created_unix_ms: 75,
        basis: 4,
    }
}

fn invalid_file() -> InvalidFileMeta {
    InvalidFileMeta {
        no: 41,
        unique_id: [3; 16],
        size_bytes: 300,
        checksum: 0xabcd_ef01,
        records: 6,
        install_no: 8,
        names: vec![5, 9],
    }
}

fn values_spec() -> ValueSpec {
    ValueSpec {
        separation_bytes: 512,
        value_file_bytes: 1 << 20,
        current: vec![CurrentNumber { named: 2, current: 9 }],
        files: vec![value_file()],
        invalid: FileNumbers { first: 40, count: 2 },
    }
}

fn output_spec() -> OutputSpec {
    OutputSpec {
        cf_name: "default".into(),
        dir: PathBuf::from("db"),
        level: 1,
        file_numbers: FileNumbers { first: 12, count: 3 },
        unique_seed: 5,
        target_file_bytes: 64,
        cuts: vec![b"m".to_vec()],
        grandparents: vec![Grandparent { end: b"z".to_vec(), bytes: 9 }],
        block_bytes: 4096,
        compression: Compression::Lz4,
        bloom_bits_per_key: 10,
        created_unix_ms: 77,
        direct_io: false,
        values: values_spec(),
    }
}

fn refs() -> ValueRefs {
    let mut refs = ValueRefs::default();
    refs.add(2, 100);
    refs
}

fn meta() -> FileMeta {
    FileMeta {
        no: 3,
        unique_id: [1; 16],
        size_bytes: 200,
        checksum: 0xdead_beef,
        smallest: b"a".to_vec(),
        largest: b"c".to_vec(),
        largest_exclusive: true,
        smallest_seq: 1,
        largest_seq: 2,
        entries: 3,
        deletions: 1,
        range_deletions: 1,
        raw_bytes: 30,
        global_seq: None,
        median_key: b"b".to_vec(),
        created_unix_ms: 76,
        content: TableContent {
            user_keys: 2,
            expiring: 1,
            expiring_bytes: 20,
            expiry_ms: [300; 5],
            compaction_filter: Some("ttl".into()),
            ..TableContent::default()
        },
        refs: refs(),
    }
}

fn flush_spec() -> FlushSpec {
    FlushSpec {
        cf: 2,
        range: range("", Some("q")),
        shards: vec![ShardRef { memtable: 4, shard: 1 }],
        retention: retention(),
        output: output_spec(),
    }
}

fn compaction_spec() -> CompactionSpec {
    CompactionSpec {
        cf: 2,
        from: 0,
        inputs: vec![Input { level: 0, meta: meta() }],
        range: KeyRange::all(),
        subrange: Some(range("a", None)),
        retention: Retention { below: Below::Everything, ..retention() },
        output: output_spec(),
        readahead_bytes: 1 << 20,
        direct_reads: true,
    }
}

fn gc_spec() -> GcSpec {
    let mut valid = ValidBits::none_of(3);
    valid.set(0);
    valid.set(2);
    GcSpec {
        cf: 2,
        inputs: vec![
            GcInput { meta: value_file(), valid: Validity::Bits(valid) },
            GcInput {
                meta: value_file(),
                valid: Validity::Invalid { ancestors: vec![3, 5], records: 2 },
            },
        ],
        invalid: vec![invalid_file()],
        output: output_spec(),
        basis: 7,
        readahead: ReadaheadLimits::PAPER,
        direct_reads: true,
    }
}

fn job_output() -> JobOutput {
    JobOutput {
        files: vec![meta()],
        value_files: vec![value_file()],
        invalid_files: vec![invalid_file()],
        bytes_read: 1,
        bytes_written: 2,
        ..JobOutput::default()
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn messages_come_back_and_their_bytes_do_not_change() {
    let flush = encode(&flush_spec()).unwrap();
    assert_eq!(decode::<FlushSpec>(&flush).unwrap(), flush_spec());
    let compaction = encode(&compaction_spec()).unwrap();
    assert_eq!(decode::<CompactionSpec>(&compaction).unwrap(), compaction_spec());
    let output = encode(&job_output()).unwrap();
    assert_eq!(decode::<JobOutput>(&output).unwrap(), job_output());
    let gc = encode(&gc_spec()).unwrap();
    assert_eq!(decode::<GcSpec>(&gc).unwrap(), gc_spec());
    let golden = include_str!("golden_messages.txt");
    let lines: Vec<String> = [flush, compaction, output, gc].iter().map(|m| hex(m)).collect();
    assert_eq!(lines, golden.lines().collect::<Vec<_>>());
}

#[test]
fn other_versions_and_other_messages_are_refused() {
    let mut message = encode(&flush_spec()).unwrap();
    let error = decode::<CompactionSpec>(&message).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    message[0] = VERSION + 1;
    let error = decode::<FlushSpec>(&message).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.context().contains("version 5"), "{error}");
    assert_eq!(decode::<FlushSpec>(&[]).unwrap_err().kind(), ErrorKind::Corrupt);
    assert_eq!(decode::<FlushSpec>(&[VERSION]).unwrap_err().kind(), ErrorKind::Corrupt);
}

/// Decodes as every kind of message.
fn decode_all(message: &[u8]) -> usize {
    [
        decode::<FlushSpec>(message).is_ok(),
        decode::<CompactionSpec>(message).is_ok(),
        decode::<JobOutput>(message).is_ok(),
        decode::<GcSpec>(message).is_ok(),
    ]
    .into_iter()
    .filter(|ok| *ok)
    .count()
}

/// Appends a correct checksum, so that the damage reaches the decoder of the value.
fn sealed(mut body: Vec<u8>) -> Vec<u8> {
    let sum = crc(&body);
    body.extend_from_slice(&sum.to_le_bytes());
    body
}

#[test]
fn damage_is_an_error_and_never_a_panic() {
    let mut rng = Rng::with_seed(1);
    let valid = [
        encode(&flush_spec()).unwrap(),
        encode(&compaction_spec()).unwrap(),
        encode(&job_output()).unwrap(),
        encode(&gc_spec()).unwrap(),
    ];
    for message in &valid {
        assert_eq!(decode_all(message), 1);
        for cut in 0..message.len() {
            assert_eq!(decode_all(&message[..cut]), 0);
        }
        for bit in 0..message.len() * 8 {
            let mut damaged = message.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decode_all(&damaged), 0, "bit {bit}");
        }
        for _ in 0..3000 {
            let mut body = message[..message.len() - CRC_BYTES].to_vec();
            for _ in 0..rng.usize(1..4) {
                let at = rng.usize(HEADER_BYTES..body.len());
                body[at] = rng.u8(..);
            }
            body.truncate(rng.usize(body.len() / 2..=body.len()));
            decode_all(&sealed(body));
        }
    }
    // A list that claims to be longer than memory.
    let huge = [VERSION, JobOutput::TAG, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1];
    assert_eq!(decode_all(&sealed(huge.to_vec())), 0);
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the corpus lies in the source tree")]
fn the_fuzz_corpus_replays() {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/job_wire");
    let mut seen = 0;
    for entry in std::fs::read_dir(dir).unwrap() {
        decode_all(&std::fs::read(entry.unwrap().path()).unwrap());
        seen += 1;
    }
    assert!(seen >= 3);
}
