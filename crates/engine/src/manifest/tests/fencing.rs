//! Lots of file numbers and owner epochs.

use archipelago_base::random::Rng;
use archipelago_env::fault::{Fault, FaultFs, Operation, Rule};

use super::super::numbers::LOT_NUMBERS;
use super::*;

fn claim_of(set: &mut VersionSet, seed: u8) -> Result<Owner> {
    set.claim(OwnerClaim { token: [seed; 16], offload_id: [seed + 100; 16] })?;
    Ok(set.owner().expect("it was claimed").clone())
}

/// Takes numbers as a job does.
fn take(set: &mut VersionSet, count: u64) -> Result<FileNo> {
    loop {
        match set.file_numbers().take(count) {
            Some(first) => return Ok(first),
            None => set.renew_lot(count)?,
        }
    }
}

#[test]
fn no_crash_gives_a_number_of_a_job_again() {
    let (mem, fs) = mem();
    let mut set = create(&fs).expect("creates");
    claim_of(&mut set, 1).expect("claims");
    let mut rng = Rng::with_seed(3);
    let mut last = FileNo(0);
    let mut disk = mem;
    for round in 0..60 {
        for _ in 0..rng.usize(0..6) {
            let count = *rng.choice(&[1, 70, LOT_NUMBERS, 3 * LOT_NUMBERS]).expect("not empty");
            let first = take(&mut set, count).expect("takes");
            assert!(first > last, "round {round}: {first} follows {last}");
            last = FileNo(first.0 + count - 1);
            if rng.bool() {
                set.apply(VersionEdit::new()).expect("applies");
            }
        }
        // No file has the numbers, so only the manifest knows them.
        disk = if rng.bool() { disk.kill_clone() } else { disk.crash_clone(rng.u64(..)) };
        set = recover(&(Arc::new(disk.clone()) as Arc<dyn FileSystem>)).expect("recovers");
        assert!(set.file_numbers().next() > last, "round {round}");
        assert_eq!(set.file_numbers().take(1), None, "a new owner has no lot yet");
    }
}

#[test]
fn every_edit_renews_the_lot() {
    let (_, fs) = mem();
    let mut set = create(&fs).expect("creates");
    let numbers = Arc::clone(set.file_numbers());
    for _ in 0..20 {
        assert!(numbers.take(LOT_NUMBERS / 2 + 10).is_some(), "no edit of its own is needed");
        assert!(numbers.is_half_used());
        let mut edit = VersionEdit::new();
        edit.push(Change::LastSeq(SeqNo(1)));
        set.apply(edit).expect("applies");
        assert!(!numbers.is_half_used());
    }
}

#[test]
fn lot_of_an_edit_that_failed_is_not_used() {
    let mem = MemFs::new();
    let faulty = FaultFs::new(Arc::new(mem.clone()), 1);
    let fs: Arc<dyn FileSystem> = Arc::new(faulty.clone());
    let mut set = create(&fs).expect("creates");
    let taken = set.file_numbers().take(LOT_NUMBERS - 1).expect("the lot of the creation");
    faulty.add(Rule::on(Operation::Sync).path("MANIFEST").fault(Fault::Io));
    set.renew_lot(10).expect_err("the sync fails");
    assert_eq!(set.file_numbers().take(10), None);
    faulty.clear();
    let next = take(&mut set, 10).expect("takes");
    assert!(next.0 >= taken.0 + LOT_NUMBERS - 1);
    let again = recover(&(Arc::new(mem.crash_clone(5)) as Arc<dyn FileSystem>)).expect("recovers");
    assert!(again.file_numbers().next().0 >= next.0 + 10);
}

#[test]
fn each_owner_has_a_later_epoch_and_the_same_id() {
    let (mem, fs) = mem();
    let mut set = create(&fs).expect("creates");
    assert_eq!(set.owner(), None);
    let first = claim_of(&mut set, 1).expect("claims");
    assert_eq!((first.epoch, first.token, first.offload_id), (Epoch(1), [1; 16], [101; 16]));
    let mut disk = mem;
    let mut last = first.clone();
    for seed in 2..6 {
        disk = disk.crash_clone(u64::from(seed));
        set = recover(&(Arc::new(disk.clone()) as Arc<dyn FileSystem>)).expect("recovers");
        assert_eq!(set.owner(), Some(&last), "a claim survives power loss");
        let next = claim_of(&mut set, seed).expect("claims");
        assert_eq!((next.epoch.0, next.token), (last.epoch.0 + 1, [seed; 16]));
        assert_eq!(next.offload_id, first.offload_id);
        last = next;
    }
    let copy = Path::new("/copy");
    disk.create_dir_all(copy).expect("creates");
    set.export(copy).expect("exports");
    let fs = Arc::new(disk) as Arc<dyn FileSystem>;
    let mut copied =
        VersionSet::recover(Arc::clone(&fs), copy, false, Arc::default()).expect("recovers");
    assert_eq!(copied.owner(), None, "a checkpoint has no owner");
    let owner = claim_of(&mut copied, 9).expect("claims");
    assert_eq!((owner.epoch, owner.offload_id), (Epoch(1), [109; 16]));
    // A reader in parallel claims nothing.
    let mut reader =
        VersionSet::recover(Arc::clone(&fs), dir(), true, Arc::default()).expect("reads");
    assert_eq!(reader.owner(), Some(&last));
    let error = claim_of(&mut reader, 3).expect_err("refused");
    assert_eq!(error.kind(), ErrorKind::ReadOnly);
}

#[test]
fn claim_that_failed_travels_with_the_next_edit() {
    let mem = MemFs::new();
    let faulty = FaultFs::new(Arc::new(mem.clone()), 1);
    let fs: Arc<dyn FileSystem> = Arc::new(faulty.clone());
    let mut set = create(&fs).expect("creates");
    faulty.add(Rule::on(Operation::Sync).path("MANIFEST").fault(Fault::NoSpace));
    assert!(claim_of(&mut set, 1).expect_err("the sync fails").is_no_space());
    assert_eq!(set.owner(), None);
    faulty.clear();
    set.apply(VersionEdit::new()).expect("applies");
    let owner = set.owner().expect("the edit carried the claim").clone();
    assert_eq!((owner.epoch, owner.token), (Epoch(1), [1; 16]));
    let again = recover(&(Arc::new(mem.crash_clone(5)) as Arc<dyn FileSystem>)).expect("recovers");
    assert_eq!(again.owner(), Some(&owner));
}

#[test]
fn owner_that_was_replaced_is_damage_in_a_manifest() {
    let owner = |epoch| Owner {
        epoch: Epoch(epoch),
        token: [1; 16],
        offload_id: [2; 16],
        log_place: String::new(),
    };
    let mut builder = StateBuilder::new(State::default());
    for (epoch, is_later) in [(3, true), (3, false), (2, false), (4, true)] {
        let mut edit = VersionEdit::new();
        edit.push(Change::OwnerEpoch(Box::new(owner(epoch))));
        let applied = builder.apply(&edit);
        assert_eq!(applied.is_ok(), is_later, "epoch {epoch}");
    }
}

#[test]
fn log_in_another_place_is_refused_with_the_place() {
    let (_, fs) = mem();
    let mut set = create(&fs).expect("creates");
    claim_of(&mut set, 1).expect("claims");
    let mut edit = VersionEdit::new();
    let owner = set.owner().expect("claimed").clone();
    let elsewhere = Owner { epoch: Epoch(2), log_place: "node7:/wal/a".into(), ..owner };
    edit.push(Change::OwnerEpoch(Box::new(elsewhere)));
    set.apply(edit).expect("applies");
    let (kind, message) = text(recover(&fs));
    assert_eq!(kind, ErrorKind::Unsupported);
    assert!(message.contains("node7:/wal/a"), "{message}");
}
