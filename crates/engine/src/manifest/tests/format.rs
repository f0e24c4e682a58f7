//! The encoding: golden vectors, and decoders on damaged input.

use std::path::PathBuf;

use archipelago_base::random::Rng;

use super::super::log::{Header, ManifestReader, put_record};
use super::super::mark::{Mark, MarkHeader, decode_marks};
use super::super::state::{State, StateBuilder};
use super::*;
use crate::options::Compression;
use crate::table_content::{CoveredRange, TableContent};
use crate::value_ref::{InvalidFileMeta, ValueFileMeta};

/// Every field by name: a new one changes the format.
fn golden_options() -> CfOptions {
    CfOptions {
        write_buffer_bytes: 64 << 20,
        write_buffers_max: 4,
        buckets: 3,
        buckets_dynamic: true,
        buckets_max: 12,
        bloom_bits_per_key: 10,
        block_bytes: 4096,
        compression: Compression::Lz4,
        compression_last: Compression::Zstd,
        l0_compaction_trigger: 4,
        l0_slowdown: 20,
        l0_stop: 36,
        level_base_bytes: 256 << 20,
        level_multiplier: 10,
        target_file_bytes: 64 << 20,
        pending_bytes_slowdown: 64 << 30,
        pending_bytes_stop: 256 << 30,
        merge_operator: Some("append".into()),
        compaction_filter: None,
        value_separation_bytes: 512,
        value_file_bytes: 256 << 20,
        space_amplification_max: 1.5,
    }
}

fn golden_edit() -> VersionEdit {
    let mut edit = VersionEdit::new();
    let mut meta = meta(300, b"a", b"mz", (5, 900));
    meta.largest_exclusive = true;
    meta.global_seq = Some(7);
    meta.refs.add(250, 16_384);
    meta.refs.add(301, 1000);
    meta.content = TableContent {
        user_keys: 9,
        merges: 1,
        expiring: 2,
        expiring_bytes: 300,
        expiry_ms: [10, 20, 30, 40, 50],
        shadowed: 3,
        shadowed_bytes: 60,
        shadowed_keys: 2,
        shadowed_oldest_seq: 6,
        shadowing_newest_seq: 800,
        compression: Compression::Zstd,
        compaction_filter: Some("ttl".into()),
        covered: vec![CoveredRange {
            start: b"b".to_vec(),
            end: b"c".to_vec(),
            oldest_seq: 5,
            newest_seq: 6,
        }],
    };
    edit.push(Change::CreateCf {
        cf: CfId(2),
        name: "cf".into(),
        options: Box::new(golden_options()),
    });
    let map = BucketMap::new(Epoch(3), vec![b"m".to_vec(), b"t".to_vec()]).expect("valid");
    edit.push(Change::SetBucketMap { cf: CfId(2), map });
    edit.add_file(CfId(2), 6, meta);
    edit.remove_file(CfId(2), 0, FileNo(17));
    let range = KeyRange { start: b"a".to_vec(), end: Some(b"m".to_vec()) };
    edit.flushed_through(CfId(2), range, SeqNo(900));
    edit.flushed_through(CfId(2), KeyRange::all(), SeqNo(1));
    edit.push(Change::SetCfOptions { cf: CfId(2), options: Box::new(golden_options()) });
    edit.push(Change::DropCf { cf: CfId(1) });
    edit.push(Change::NextFileNo(FileNo(301)));
    edit.push(Change::LastSeq(SeqNo(1000)));
    edit.push(Change::NextCfId(CfId(3)));
    edit.push(Change::LogFloor(FileNo(12)));
    edit.push(Change::NextIncarnation(Epoch(65)));
    edit.push(Change::Synced(4096));
    push_value_changes(&mut edit);
    edit.push(Change::OwnerEpoch(Box::new(Owner {
        epoch: Epoch(7),
        token: [5; 16],
        offload_id: [6; 16],
        log_place: "/wal/1".into(),
    })));
    edit.push(Change::SetSpaceFigures { cf: CfId(2), figures: golden_figures() });
    edit
}

fn golden_figures() -> SpaceFigures {
    SpaceFigures {
        shadow: ShadowFigures {
            last: 0.5,
            average: Some(0.25),
            pending_records: 100,
            pending_shadowing: 40,
            pending_sunk: 90,
        },
        bound: Some(BoundFigures {
            used_bytes: 1000,
            allowance_bytes: 5000,
            debt_bytes: 300,
            debt_event: 2,
        }),
    }
}

/// One change of each kind that concerns value files.
fn push_value_changes(edit: &mut VersionEdit) {
    let cf = CfId(2);
    let meta = ValueFileMeta {
        no: 301,
        unique_id: [3; 16],
        size_bytes: 70_000,
        checksum: 0x0102_0304,
        keys_offset: 65_536,
        smallest: b"b".to_vec(),
        largest: b"y".to_vec(),
        smallest_seq: 6,
        largest_seq: 800,
        records: 4,
        created_unix_ms: 1_700_000_000_000,
        basis: 2,
    };
    edit.add_value_file(cf, meta);
    edit.push(Change::RemoveValueFile { cf, no: FileNo(250) });
    edit.inherit(cf, FileNo(250), FileNo(301));
    let meta = InvalidFileMeta {
        no: 302,
        unique_id: [4; 16],
        size_bytes: 900,
        checksum: 5,
        records: 12,
        install_no: 3,
        names: vec![250, 301],
    };
    edit.push(Change::AddInvalidFile { cf, meta: Box::new(meta) });
    edit.push(Change::RemoveInvalidFile { cf, no: FileNo(299) });
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn golden_bytes_do_not_change() {
    let edit = golden_edit();
    let bytes = edit.encode().expect("encodes");
    assert_eq!(VersionEdit::decode(&bytes).expect("decodes"), edit);
    assert_eq!(hex(&bytes), include_str!("golden_edit.txt").trim().replace(['\n', ' '], ""));

    let mut manifest = Vec::new();
    let header = Header { db_id: ID, no: FileNo(5) };
    put_record(&mut manifest, FileNo(5), 0, &header.encode()).expect("fits");
    let mut edit = VersionEdit::new();
    edit.push(Change::LogFloor(FileNo(12)));
    let at = manifest.len() as u64;
    put_record(&mut manifest, FileNo(5), at, &edit.encode().expect("encodes")).expect("fits");
    let expected = include_str!("golden_manifest.txt").trim().replace(['\n', ' '], "");
    assert_eq!(hex(&manifest), expected);

    let identity = Identity { format: 1, db_id: ID };
    assert_eq!(
        String::from_utf8(identity.encode()).expect("text"),
        "archipelago database\nformat 1\nid 30313233343536373839616263646566\ncrc32c d94037e5\n"
    );
    let (mem, _) = mem();
    mem.create_dir_all(dir()).expect("creates");
    set_current(&mem, dir(), FileNo(5)).expect("writes");
    assert_eq!(
        String::from_utf8(get(&mem, &dir().join(CURRENT_NAME))).expect("text"),
        "MANIFEST-000005\ncrc32c 9e7fdadc\n"
    );
}

#[test]
fn golden_mark_file_does_not_change() {
    let header = MarkHeader { db_id: ID, manifest: FileNo(5) };
    let marks = [
        Mark::Manifest { bytes: 0x0203, edits: 7 },
        Mark::Log(LogMark { no: FileNo(9), bytes: 0x60 }),
    ];
    let mut bytes = header.encode();
    for mark in &marks {
        let record = header.encode_record(bytes.len() as u64, mark);
        bytes.extend_from_slice(&record);
    }
    assert_eq!(hex(&bytes), include_str!("golden_mark.txt").trim().replace(['\n', ' '], ""));
    assert_eq!(decode_marks(&bytes).expect("this version"), Some((header, marks.to_vec())));
    // A damaged record claims nothing, and later records still count. A record at another offset
    // does not count.
    let mut damaged = bytes.clone();
    damaged[45] ^= 1;
    let (_, left) = decode_marks(&damaged).expect("this version").expect("a whole header");
    assert_eq!(left, marks[1..]);
    let moved = [&bytes[..40], &bytes[64..]].concat();
    assert_eq!(decode_marks(&moved).expect("this version"), Some((header, Vec::new())));
    let mut other = bytes;
    other[8] += 1;
    other[12..16].fill(0);
    let sum = archipelago_base::checksum::crc(&other[..40]);
    other[12..16].copy_from_slice(&sum.to_le_bytes());
    assert_eq!(decode_marks(&other).expect_err("refused").kind(), ErrorKind::Unsupported);
}

#[test]
fn unknown_tags_and_versions_are_unsupported() {
    for tag in [0, 21, 200] {
        let error = VersionEdit::decode(&[tag, 1, 1]).expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::Unsupported);
    }
    let mut header = Header { db_id: ID, no: FileNo(5) }.encode();
    header[8] += 1;
    assert_eq!(Header::decode(&header).expect_err("refused").kind(), ErrorKind::Unsupported);
}

#[test]
fn impossible_space_figures_are_damage() {
    let whole = golden_figures();
    let decode = |figures: SpaceFigures| {
        let mut edit = VersionEdit::new();
        edit.push(Change::SetSpaceFigures { cf: CfId(2), figures });
        VersionEdit::decode(&edit.encode().expect("encodes"))
    };
    let least = SpaceFigures::default();
    for figures in [whole, least] {
        let changes = decode(figures).expect("decodes").changes;
        assert_eq!(changes, [Change::SetSpaceFigures { cf: CfId(2), figures }]);
    }
    for shadow in [
        ShadowFigures { last: f64::NAN, ..whole.shadow },
        ShadowFigures { last: -0.5, ..whole.shadow },
        ShadowFigures { average: Some(1.5), ..whole.shadow },
        ShadowFigures { pending_shadowing: 101, ..whole.shadow },
        ShadowFigures { pending_sunk: 101, ..whole.shadow },
    ] {
        let error = decode(SpaceFigures { shadow, ..whole }).expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{shadow:?}");
    }
}

/// Calls the decoders, which must return an edit or an error for any bytes.
fn decode_anything(bytes: &[u8]) {
    if let Ok(edit) = VersionEdit::decode(bytes) {
        let mut builder = StateBuilder::new(State::default());
        if builder.apply(&edit).is_ok() {
            let _ = builder.finish(&Arc::default()).map(|applied| applied.state.snapshot());
        }
        let _ = edit.changes.iter().map(ToString::to_string).collect::<Vec<_>>();
    }
    let _ = Header::decode(bytes);
    let _ = decode_marks(bytes);
    let _ = Identity::decode(Path::new("IDENTITY"), bytes);
    let mut reader = ManifestReader::new(PathBuf::from("MANIFEST-000005"), FileNo(5), bytes);
    let _ = reader.begin();
    while let Ok(Some(record)) = reader.next() {
        let _ = reader.decode(&record);
    }
}

#[test]
fn decoders_stand_any_damage() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/manifest");
    let local = archipelago_env::local::LocalFs::new();
    let mut inputs = vec![golden_edit().encode().expect("encodes")];
    for entry in local.list(&corpus).expect("the corpus is there") {
        inputs.push(get(&local, &corpus.join(entry.name)));
    }
    assert!(inputs.len() > 2);
    let mut rng = Rng::with_seed(9);
    for input in &inputs {
        decode_anything(input);
        for _ in 0..3000 {
            let mut bytes = input.clone();
            for _ in 0..rng.usize(1..4) {
                match rng.u8(..4) {
                    0 => bytes.truncate(rng.usize(..=bytes.len())),
                    1 if !bytes.is_empty() => {
                        let at = rng.usize(..bytes.len());
                        bytes[at] = *rng.choice(&[0, 1, 0x7f, 0x80, 0xff]).expect("not empty");
                    }
                    _ if !bytes.is_empty() => {
                        let at = rng.usize(..bytes.len());
                        bytes[at] ^= 1 << rng.u8(..8);
                    }
                    _ => {}
                }
            }
            decode_anything(&bytes);
        }
    }
}
