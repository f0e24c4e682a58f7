//! Tests of what waits to be released, and when it is due.

use std::path::PathBuf;

use archipelago_env::FileClass;

use super::*;
use crate::blob::BlobRef;

const BLOB: BlobId = BlobId([1; 16]);
const LOG: LogId = LogId([2; 16]);
const KEY: FileKey = FileKey(7);

fn named(content: Content) -> [Record; 1] {
    [Record::File(FileRecord {
        key: KEY,
        class: FileClass::Sst,
        names: vec![PathBuf::from("/a")],
        content,
        modified_ms: 0,
    })]
}

fn blob() -> Content {
    named_blob(BLOB)
}

fn named_blob(id: BlobId) -> Content {
    Content::Blob(BlobRef { id, len_bytes: 1, hint: Vec::new() })
}

fn log(layout: &[u8]) -> Content {
    Content::Log { head: vec![], id: LOG, layout: Layout(layout.to_vec()), len_bytes: None }
}

fn at(offset: u64) -> Moment {
    Moment { generation: 1, offset }
}

fn due(pending: &mut Pending, durable: Moment, now_ns: u64) -> Vec<Superfluous> {
    let due = pending.take_due(ReleaseTime { durable, now_ns });
    due.into_iter().map(|release| release.object).collect()
}

#[test]
fn blob_that_was_given_up_is_never_named() {
    let (mut pending, state) = (Pending::default(), NamespaceState::default());
    let records = named(blob());
    assert!(pending.prepare(&state, &records).is_err(), "it was not begun");
    pending.add_blob(BLOB);
    assert!(pending.prepare(&state, &records).is_ok());
    pending.give_up_blob(BLOB);
    assert!(pending.prepare(&state, &records).is_err(), "it was given up");
    assert_eq!(due(&mut pending, at(0), 0), [Superfluous::Blob(BLOB)]);
}

#[test]
fn commit_records_the_newest_layout_of_a_pending_log() {
    let (mut pending, state) = (Pending::default(), NamespaceState::default());
    pending.add_log(LOG);
    assert_eq!(pending.note_layout(LOG, Layout(vec![1])), Layout(vec![1]));
    assert!(pending.replace_layout(LOG, &Layout(vec![2])));
    let records = named(log(&[1]));
    assert_eq!(&*pending.prepare(&state, &records).unwrap(), &named(log(&[2])));
    pending.committed(&named(log(&[2])), vec![], at(1));
    assert!(!pending.replace_layout(LOG, &Layout(vec![3])), "it is named now");
}

#[test]
fn release_of_a_log_has_its_newest_layout() {
    let mut pending = Pending::default();
    pending.release(Superfluous::Log(LOG, Layout(vec![1])), at(0));
    assert!(pending.replace_layout(LOG, &Layout(vec![2])));
    assert_eq!(due(&mut pending, at(0), 0), [Superfluous::Log(LOG, Layout(vec![2]))]);
}

#[test]
fn release_waits_for_durability_and_holds() {
    let (mut pending, mut state) = (Pending::default(), NamespaceState::default());
    pending.add_blob(BLOB);
    pending.hold(KEY);
    let records = named(blob());
    state.apply_all(&records).unwrap();
    pending.committed(&records, vec![], at(10));
    let gone = state.apply_all(&[Record::Remove { path: PathBuf::from("/a") }]).unwrap();
    pending.committed(&[], gone, at(20));
    assert_eq!(due(&mut pending, at(20), 0), [], "held");
    assert!(pending.unhold(KEY));
    assert_eq!(due(&mut pending, at(19), 0), [], "not durable");
    assert_eq!(due(&mut pending, at(20), 0), [Superfluous::Blob(BLOB)]);
    assert_eq!(pending.len(), 0);
}

#[test]
fn releases_beyond_the_limit_are_left_to_a_release_of_strays() {
    let mut pending = Pending::default();
    let blob = |number: usize| BlobId((number as u128).to_be_bytes());
    pending.hold(KEY);
    let gone = |number| Gone::Content { key: KEY, content: named_blob(blob(number)) };
    pending.committed(&[], vec![gone(0)], at(1));
    for number in 1..=DUE_MAX + 10 {
        pending.release(Superfluous::Blob(blob(number)), at(1));
    }
    let time = |durable| ReleaseTime { durable, now_ns: 0 };
    assert!(!pending.has_due(time(at(0))));
    assert_eq!(pending.releases.len(), DUE_MAX + 11, "no record is durable yet");
    assert!(pending.has_due(time(at(1))));
    let due = due(&mut pending, at(1), 0);
    assert_eq!((due.len(), due.last()), (DUE_MAX + 1, Some(&Superfluous::Strays)));
    assert!(!pending.has_blob(blob(DUE_MAX + 1)), "it is a stray");
    assert!(pending.has_blob(blob(0)), "it is held");
}

#[test]
fn refused_release_is_due_again_after_a_while() {
    let mut pending = Pending::default();
    pending.release(Superfluous::Strays, at(0));
    let mut taken = pending.take_due(ReleaseTime { durable: at(0), now_ns: 5 });
    pending.put_back(taken.remove(0), 5);
    let retry_ns = RETRY.as_nanos() as u64;
    assert_eq!(pending.repeated_ns(), Some(retry_ns + 5));
    assert_eq!(due(&mut pending, at(0), retry_ns + 4), []);
    assert_eq!(due(&mut pending, at(0), retry_ns + 5), [Superfluous::Strays]);
}

#[test]
fn pause_grows_with_every_refusal_up_to_its_limit() {
    let mut pending = Pending::default();
    pending.release(Superfluous::Blob(BLOB), at(0));
    let (mut now_ns, mut pauses) = (0, Vec::new());
    for _ in 0..9 {
        let mut taken = pending.take_due(ReleaseTime { durable: at(0), now_ns });
        pending.put_back(taken.remove(0), now_ns);
        let next_ns = pending.repeated_ns().expect("it was refused");
        pauses.push((next_ns - now_ns) / RETRY.as_nanos() as u64);
        now_ns = next_ns;
    }
    assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
}

#[test]
fn strays_wait_in_one_release() {
    let mut pending = Pending::default();
    pending.release(Superfluous::Strays, at(0));
    for round in 1..=5_u64 {
        let now_ns = round * 100 * RETRY.as_nanos() as u64;
        let time = ReleaseTime { durable: at(0), now_ns };
        let taken = pending.take_due(time);
        assert_eq!(taken.len(), 1, "round {round}");
        // The release of strays is asked for again while it runs.
        for number in 0..=DUE_MAX {
            let id = (number as u128 + 1).to_be_bytes();
            pending.release(Superfluous::Blob(BlobId(id)), at(0));
        }
        assert!(pending.has_due(time));
        taken.into_iter().for_each(|release| pending.put_back(release, now_ns));
        assert!(pending.has_due(time));
        let is_strays = |release: &&Release| release.object == Superfluous::Strays;
        assert_eq!(pending.releases.iter().filter(is_strays).count(), 1, "round {round}");
        let blobs = due(&mut pending, at(0), now_ns);
        assert_eq!(blobs.len(), DUE_MAX, "round {round}: the strays wait");
    }
}
