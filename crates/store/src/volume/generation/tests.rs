//! Bytes of generations: golden vectors, cuts, damage and commits that are whole or absent.

use std::path::PathBuf;

use archipelago_base::random::Rng;
use archipelago_env::FileClass;

use super::*;
use crate::blob::BlobRef;
use crate::ids::BlobId;
use crate::log::Layout;
use crate::volume::record::{Content, FileKey, FileRecord};

const LOG: LogId = LogId([0x5a; 16]);
const HEADER: GenerationHeader =
    GenerationHeader { volume: VolumeId([0x77; 16]), number: 3, epoch: Epoch(9) };

fn named(key: u64, class: FileClass, names: &[&str], content: Content) -> Record {
    let names = names.iter().map(PathBuf::from).collect();
    Record::File(FileRecord { key: FileKey(key), class, names, content, modified_ms: 1_000 })
}

fn log_content(id: u8, head: &[u8], len_bytes: Option<u64>) -> Content {
    let layout = Layout(vec![id, 0xee]);
    Content::Log { head: head.to_vec(), id: LogId([id; 16]), layout, len_bytes }
}

/// A record of each kind with each content, in commits that the state accepts one after the other.
pub(crate) fn every_commit() -> Vec<Vec<Record>> {
    let blob = BlobRef { id: BlobId([0xb1; 16]), len_bytes: 70_000, hint: vec![1, 2, 3] };
    let current = Content::Inline(b"MANIFEST-000001".to_vec());
    let changed = |key, content| Record::Content { key: FileKey(key), content, modified_ms: 2_000 };
    vec![
        vec![Record::MakeDir { path: "/db/lost".into() }],
        vec![
            named(1, FileClass::Sst, &["/db/000001.sst"], Content::Blob(blob.clone())),
            named(
                2,
                FileClass::Wal,
                &["/db/000002.log", "/db/other"],
                log_content(0x10, b"", None),
            ),
        ],
        vec![named(3, FileClass::Manifest, &["/db/CURRENT"], current.clone())],
        vec![changed(2, log_content(0x10, b"", Some(300)))],
        vec![
            changed(3, log_content(0x11, b"MANIFEST", None)),
            named(4, FileClass::ValueSst, &["/db/000004.vsst"], Content::Inline(Vec::new())),
        ],
        vec![changed(1, Content::Blob(BlobRef { hint: Vec::new(), ..blob }))],
        vec![changed(4, current), Record::Next { next: 70 }],
        vec![named(5, FileClass::Other, &["/db/000005.dat"], Content::Inline(vec![5]))],
        vec![
            Record::Rename { from: "/db/other".into(), to: "/db/renamed".into() },
            Record::Link { from: "/db/CURRENT".into(), to: "/db/linked".into() },
        ],
        vec![Record::Remove { path: "/db/linked".into() }],
        vec![Record::RemoveDir { path: "/db/lost".into() }],
    ]
}

fn state_after(commits: &[Vec<Record>]) -> NamespaceState {
    let mut state = NamespaceState::default();
    for commit in commits {
        state.apply_all(commit).unwrap();
    }
    state
}

fn records(state: &NamespaceState) -> Vec<Record> {
    state.snapshot().collect()
}

/// A generation that begins with `state`, with a frame for each commit. Also the offset of the end
/// of the snapshot and of each frame. Each frame says that `acknowledged(at)` was acknowledged,
/// where `at` is its offset.
fn generation(
    state: &NamespaceState,
    commits: &[Vec<Record>],
    acknowledged: impl Fn(u64) -> u64,
) -> (Vec<u8>, Vec<usize>) {
    let mut bytes = encode_generation(LOG, &HEADER, state).unwrap();
    let mut ends = vec![bytes.len()];
    for commit in commits {
        let offset = bytes.len() as u64;
        let place = CommitPlace { log: LOG, offset, acknowledged: acknowledged(offset) };
        encode_commit(place, commit, &mut bytes).unwrap();
        ends.push(bytes.len());
    }
    (bytes, ends)
}

fn kind(bytes: &[u8]) -> ErrorKind {
    decode_generation(LOG, bytes).unwrap_err().kind()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn golden_bytes_do_not_change() {
    let commits = every_commit();
    let begin = state_after(&commits[..1]);
    let (bytes, _) = generation(&begin, &commits[1..], |at| at);
    let expected = include_str!("golden.txt").replace(['\n', ' '], "");
    assert_eq!(hex(&bytes), expected);
    let recovered = decode_generation(LOG, &bytes).unwrap();
    assert_eq!((recovered.header, recovered.torn_bytes), (HEADER, 0));
    assert_eq!((recovered.whole_bytes, recovered.commits), (bytes.len() as u64, 10));
    assert_eq!(records(&recovered.state), records(&state_after(&commits)));
}

#[test]
fn records_decode_as_encoded_and_never_from_a_part() {
    let mut rng = Rng::with_seed(3);
    for record in every_commit().concat() {
        let mut bytes = Vec::new();
        record.encode(&mut bytes);
        let read = |bytes: &[u8]| Record::read(&mut Reader::new(bytes));
        assert_eq!(read(&bytes).as_ref(), Some(&record));
        for cut in 0..bytes.len() {
            assert_eq!(read(&bytes[..cut]), None, "{record:?} cut at {cut}");
        }
        for _ in 0..200 {
            let mut damaged = bytes.clone();
            damaged[rng.usize(..bytes.len())] ^= rng.u8(1..);
            let _any_answer = read(&damaged);
        }
    }
}

#[test]
fn snapshot_rebuilds_the_state() {
    let state = state_after(&every_commit());
    let (bytes, _) = generation(&state, &[], |at| at);
    let recovered = decode_generation(LOG, &bytes).unwrap();
    assert_eq!(records(&recovered.state), records(&state));
    assert_eq!(recovered.state.next(), 70);
}

#[test]
fn snapshot_that_is_not_whole_is_corruption() {
    let commits = every_commit();
    let (bytes, ends) = generation(&state_after(&commits[..3]), &commits[3..], |at| at);
    for at in 0..ends[0] {
        assert_eq!(kind(&bytes[..at]), ErrorKind::Corrupt, "cut at {at}");
        let mut damaged = bytes.clone();
        damaged[at] ^= 1;
        let expected =
            if (8..12).contains(&at) { ErrorKind::Unsupported } else { ErrorKind::Corrupt };
        assert_eq!(kind(&damaged), expected, "byte {at}");
    }
}

#[test]
fn foreign_logs_and_versions_are_refused() {
    let (mut bytes, _) = generation(&NamespaceState::default(), &[], |at| at);
    let error = decode_generation(LogId([1; 16]), &bytes).unwrap_err();
    assert!(error.to_string().contains("belongs to another log"), "{error}");
    bytes[8] = 2;
    let error = decode_generation(LOG, &bytes).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("format version 2"), "{error}");
    let error = decode_generation(LOG, b"#!/bin/sh\nexit 0\n").unwrap_err();
    assert!(error.to_string().contains("does not begin as a namespace"), "{error}");
}

#[test]
fn damage_before_an_acknowledged_end_is_corruption() {
    let commits = every_commit();
    let begin = state_after(&commits[..1]);
    // Each commit was acknowledged before the next one was submitted, except for the last three.
    let (_, ends) = generation(&begin, &commits[1..], |at| at);
    let acknowledged = ends[ends.len() - 4];
    let (bytes, _) = generation(&begin, &commits[1..], |at| at.min(acknowledged as u64));
    for at in ends[0]..acknowledged {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1;
        assert_eq!(kind(&damaged), ErrorKind::Corrupt, "byte {at}");
    }
    for at in acknowledged..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1;
        let recovered = decode_generation(LOG, &damaged).unwrap();
        let whole = ends.iter().rev().find(|end| **end <= at).unwrap();
        assert_eq!(recovered.whole_bytes, *whole as u64, "byte {at}");
        assert_eq!(recovered.torn_bytes, (bytes.len() - whole) as u64, "byte {at}");
    }
}

#[test]
fn frame_at_another_offset_or_of_another_log_is_no_commit() {
    let state = state_after(&every_commit()[..1]);
    let commit = [Record::Remove { path: "/none".into() }];
    let begin = generation(&state, &[], |at| at).0;
    let here = CommitPlace { log: LOG, offset: begin.len() as u64, acknowledged: 0 };
    for place in [
        CommitPlace { offset: here.offset + 1, ..here },
        CommitPlace { log: LogId([1; 16]), ..here },
        CommitPlace { acknowledged: here.offset + 1, ..here },
    ] {
        let mut bytes = begin.clone();
        encode_commit(place, &commit, &mut bytes).unwrap();
        let recovered = decode_generation(LOG, &bytes).unwrap();
        assert_eq!(recovered.whole_bytes, begin.len() as u64, "{place:?}");
    }
    let mut bytes = begin;
    encode_commit(here, &commit, &mut bytes).unwrap();
    let error = decode_generation(LOG, &bytes).unwrap_err();
    assert!(error.to_string().contains("there is no /none"), "{error}");
}

#[test]
fn empty_or_huge_commit_is_refused() {
    let place = CommitPlace { log: LOG, offset: 0, acknowledged: 0 };
    let mut out = b"before".to_vec();
    assert_eq!(encode_commit(place, &[], &mut out).unwrap_err().kind(), ErrorKind::InvalidArgument);
    let huge = Content::Inline(vec![0; RECORDS_BYTES_MAX]);
    let huge = named(1, FileClass::Other, &["/a"], huge);
    let error = encode_commit(place, &[huge], &mut out).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert_eq!(out, b"before");
}

/// A record that the state may accept or refuse.
fn random_record(rng: &mut Rng) -> Record {
    let paths = ["/a", "/b", "/d", "/d/a", "/d/b", "/d/e", "/d/e/a", "/é", "/long-name-of-a-file"];
    let path = |rng: &mut Rng| PathBuf::from(paths[rng.usize(..paths.len())]);
    let bytes = |rng: &mut Rng| (0..rng.usize(..40)).map(|_| rng.u8(..)).collect::<Vec<u8>>();
    let content = |rng: &mut Rng| match rng.u8(..4) {
        0 => Content::Inline(bytes(rng)),
        1 => Content::Blob(BlobRef {
            id: BlobId::random(rng),
            len_bytes: rng.u64(..),
            hint: bytes(rng),
        }),
        _ => Content::Log {
            head: bytes(rng),
            id: LogId::random(rng),
            layout: Layout(bytes(rng)),
            len_bytes: rng.bool().then(|| rng.u64(..)),
        },
    };
    let key = FileKey(rng.u64(1..60));
    match rng.u8(..10) {
        0 => Record::MakeDir { path: path(rng) },
        1 => Record::Link { from: path(rng), to: path(rng) },
        2 => Record::Rename { from: path(rng), to: path(rng) },
        3 => Record::Remove { path: path(rng) },
        4 if rng.u8(..4) == 0 => Record::RemoveDir { path: path(rng) },
        5 => Record::Next { next: rng.u64(..1 << 40) },
        6 | 7 => Record::Content { key, content: content(rng), modified_ms: rng.u64(..) },
        _ => Record::File(FileRecord {
            key,
            class: FileClass::from_code(rng.u8(1..6)).unwrap(),
            names: vec![path(rng)],
            content: content(rng),
            modified_ms: rng.u64(..),
        }),
    }
}

#[test]
fn cut_at_every_byte_leaves_a_prefix_of_commits() {
    let mut accepted = 0;
    for seed in 0..30 {
        let mut rng = Rng::with_seed(seed);
        let mut state = NamespaceState::default();
        let mut commit = |rng: &mut Rng| loop {
            let records: Vec<_> = (0..rng.usize(1..4)).map(|_| random_record(rng)).collect();
            if state.apply_all(&records).is_ok() {
                return (records, state.clone());
            }
        };
        let mut begin = NamespaceState::default();
        for _ in 0..rng.usize(..20) {
            begin = commit(&mut rng).1;
        }
        let commits: Vec<_> = (0..12).map(|_| commit(&mut rng)).collect();
        let (records_of, states): (Vec<_>, Vec<_>) = commits.into_iter().unzip();
        // A random part of what lies before each commit was acknowledged.
        let acknowledged = Rng::with_seed(seed).u64(..100);
        let (bytes, ends) = generation(&begin, &records_of, |at| at * acknowledged / 100);
        for cut in ends[0]..=bytes.len() {
            let recovered = decode_generation(LOG, &bytes[..cut]).unwrap();
            let whole = ends.iter().filter(|end| **end <= cut).count() - 1;
            let expected = if whole == 0 { &begin } else { &states[whole - 1] };
            assert_eq!(recovered.commits, whole as u64, "seed {seed} cut at {cut}");
            assert_eq!(recovered.whole_bytes, ends[whole] as u64);
            assert_eq!(recovered.torn_bytes, (cut - ends[whole]) as u64);
            assert_eq!(records(&recovered.state), records(expected), "seed {seed} cut at {cut}");
        }
        accepted += states.len();
    }
    assert_eq!(accepted, 30 * 12);
}

#[test]
fn random_damage_gives_a_prefix_or_an_error() {
    let commits = every_commit();
    let begin = state_after(&commits[..1]);
    let (bytes, ends) = generation(&begin, &commits[1..], |at| at.saturating_sub(200));
    let prefixes: Vec<_> =
        (1..=commits.len()).map(|count| records(&state_after(&commits[..count]))).collect();
    let mut outcomes = [0, 0];
    for seed in 0..2_000 {
        let mut rng = Rng::with_seed(seed);
        let mut damaged = bytes.clone();
        for _ in 0..rng.usize(1..5) {
            let at = rng.usize(..damaged.len());
            match rng.u8(..4) {
                0 => damaged.truncate(at.max(1)),
                1 => damaged[at..].fill(0),
                2 => damaged[at] = rng.u8(..),
                _ => damaged.extend_from_slice(&bytes[at.min(bytes.len())..]),
            }
        }
        let recovered = decode_generation(LOG, &damaged);
        outcomes[usize::from(recovered.is_ok())] += 1;
        let Ok(recovered) = recovered else { continue };
        let count = recovered.commits as usize;
        assert_eq!(records(&recovered.state), prefixes[count], "seed {seed}");
        assert_eq!(recovered.whole_bytes, ends[count] as u64, "seed {seed}");
    }
    assert!(outcomes.iter().all(|count| *count > 100), "{outcomes:?}");
}
