//! Failures that the manifest survives: cuts at every byte, flipped bits, power loss at every sync,
//! and failing devices.

use archipelago_base::random::Rng;
use archipelago_env::fault::{Fault, FaultFs, Operation, Rule};
use parking_lot::Mutex;

use super::*;

/// The bytes of a short manifest. It comes with the state after each edit, and the length that the
/// manifest had then.
fn history(fs: &Arc<dyn FileSystem>) -> (VersionSet, Vec<(usize, VersionEdit)>) {
    let mut set = create(fs).expect("creates");
    let mut states = Vec::new();
    let len =
        |set: &VersionSet| get(fs.as_ref(), &dir().join(manifest_name(set.manifest_no()))).len();
    states.push((len(&set), set.snapshot()));
    for round in 0..6u8 {
        let mut edit = VersionEdit::new();
        let range = KeyRange { start: vec![round], end: Some(vec![round + 2]) };
        edit.flushed_through(CfId(0), range, SeqNo(u64::from(round) + 1));
        let added = file(fs.as_ref(), &set, &[round, 1], &[round, 9]);
        edit.add_file(CfId(0), 6, added);
        set.apply(edit).expect("applies");
        states.push((len(&set), set.snapshot()));
    }
    (set, states)
}

/// A disk of its own, with one file replaced.
fn with_file(mem: &MemFs, name: &str, bytes: &[u8]) -> Arc<dyn FileSystem> {
    let other = mem.kill_clone();
    put(&other, &dir().join(name), bytes);
    Arc::new(other)
}

#[test]
fn a_cut_without_evidence_recovers_the_edits_before_it() {
    let (mem, fs) = mem();
    let (set, states) = history(&fs);
    let name = manifest_name(set.manifest_no());
    mem.remove(&dir().join(mark_name(set.manifest_no()))).expect("removes");
    let bytes = get(&mem, &dir().join(&name));
    let mut recovered = 0;
    for cut in 0..=bytes.len() {
        match recover(&with_file(&mem, &name, &bytes[..cut])) {
            Ok(cut_set) => {
                let snapshot = cut_set.snapshot();
                let at =
                    states.iter().position(|(_, s)| strip_numbers(s) == strip_numbers(&snapshot));
                let at = at.expect("a state between two edits");
                assert!(at >= recovered, "at cut {cut}");
                let acknowledged = states.iter().rposition(|(len, _)| *len <= cut);
                assert!(Some(at) >= acknowledged, "cut {cut} lost an acknowledged edit");
                recovered = at;
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
                assert!(cut < states[0].0, "at cut {cut}: {error}");
            }
        }
    }
    assert_eq!(recovered, states.len() - 1);
}

#[test]
fn every_flipped_bit_is_found_and_its_file_named() {
    let (mem, fs) = mem();
    let (mut set, states) = history(&fs);
    set.apply(add(CfId(0), 0, file(&*fs, &set, b"a", b"b"))).expect("applies");
    let expected = set.snapshot();
    let names = [manifest_name(set.manifest_no()), CURRENT_NAME.into(), IDENTITY_NAME.into()];
    let mut harmless = 0;
    for name in &names {
        let bytes = get(&mem, &dir().join(name));
        for bit in 0..bytes.len() * 8 {
            // One bit of each byte of the long manifest, every bit of the short files.
            if bytes.len() > 256 && bit % 8 != bit / 8 % 8 {
                continue;
            }
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            match recover(&with_file(&mem, name, &flipped)) {
                Ok(set) => {
                    assert_eq!(set.snapshot(), expected, "bit {bit} of {name} changed the state");
                    harmless += 1;
                }
                Err(error) => {
                    let named = error.to_string().contains(name);
                    let foreign = error.kind() == ErrorKind::InvalidArgument;
                    assert!(named && !foreign, "bit {bit} of {name}: {error}");
                }
            }
        }
    }
    // Only the mark after the last edit can be damaged without a loss.
    assert!(harmless <= 16, "{harmless} flips passed");
    assert!(states.len() > 5);
}

#[test]
fn garbage_and_zeros_behind_the_end_are_a_torn_record() {
    let (mem, fs) = mem();
    let (set, _) = history(&fs);
    let name = manifest_name(set.manifest_no());
    let bytes = get(&mem, &dir().join(&name));
    let mut rng = Rng::with_seed(3);
    for round in 0..40 {
        let tail: Vec<u8> =
            (0..rng.usize(1..2000)).map(|_| if round % 2 == 0 { 0 } else { rng.u8(..) }).collect();
        let torn = recover(&with_file(&mem, &name, &[&bytes[..], &tail].concat()));
        let torn = torn.expect("recovers");
        assert_eq!((torn.snapshot(), torn.torn_bytes()), (set.snapshot(), tail.len() as u64));
        // Records of another manifest, or of another place, do not count.
        let moved = [&bytes[..], &bytes[..]].concat();
        let moved = recover(&with_file(&mem, &name, &moved)).expect("recovers");
        assert_eq!(moved.snapshot(), set.snapshot());
    }
}

/// Runs random edits, some of which fail, and keeps the state after each that was acknowledged.
fn life(fs: &Arc<dyn FileSystem>, seed: u64, states: &Mutex<Vec<VersionEdit>>) {
    let mut rng = Rng::with_seed(seed);
    let Ok(mut set) = create(fs) else { return };
    states.lock().push(set.snapshot());
    for round in 0..12u8 {
        let mut edit = VersionEdit::new();
        for _ in 0..rng.u8(1..4) {
            let start = vec![rng.u8(..)];
            let range = KeyRange { start, end: None };
            edit.flushed_through(CfId(0), range, SeqNo(u64::from(round) * 10 + 1));
        }
        edit.push(Change::LogFloor(FileNo(u64::from(round) + 1)));
        // An attempted edit may be found after a crash, so its state counts too.
        states.lock().push(attempt(&set, &edit));
        let _ = set.apply(edit);
        states.lock().push(set.snapshot());
        if rng.u8(..6) == 0 {
            match recover(fs) {
                Ok(reopened) => set = reopened,
                Err(_) => return,
            }
        }
    }
}

/// The state that `edit` would make.
fn attempt(set: &VersionSet, edit: &VersionEdit) -> VersionEdit {
    let mut builder = StateBuilder::new(State::default());
    builder.apply(&set.snapshot()).expect("own snapshot");
    builder.apply(edit).expect("valid");
    builder.finish(&Arc::default()).expect("valid").state.snapshot()
}

#[test]
fn power_loss_at_every_sync_keeps_what_was_acknowledged() {
    for seed in 0..6 {
        let (mem, fs) = mem();
        let states: Arc<Mutex<Vec<VersionEdit>>> = Arc::default();
        let crashes: Arc<Mutex<Vec<(MemFs, usize)>>> = Arc::default();
        let (seen, taken) = (Arc::clone(&states), Arc::clone(&crashes));
        mem.on_sync(Arc::new(move |mem, _| {
            let acknowledged = seen.try_lock().map_or(0, |states| states.len());
            let mut crashes = taken.lock();
            let crash_seed = crashes.len() as u64 ^ seed;
            crashes.push((mem.crash_clone(crash_seed), acknowledged));
        }));
        life(&fs, seed, &states);
        mem.clear_on_sync();
        let states = states.lock();
        let crashes = crashes.lock();
        assert!(crashes.len() > 15);
        for (crashed, acknowledged) in crashes.iter() {
            let crashed: Arc<dyn FileSystem> = Arc::new(crashed.clone());
            match recover(&crashed) {
                Ok(set) => {
                    let found = strip_numbers(&set.snapshot());
                    // The last acknowledged state, or the attempt after it.
                    let from = acknowledged.saturating_sub(2);
                    let likely = &states[from..(acknowledged + 1).min(states.len())];
                    assert!(likely.iter().any(|s| strip_numbers(s) == found), "seed {seed}");
                }
                Err(error) => {
                    let creating = *acknowledged == 0 && error.kind() == ErrorKind::NotFound;
                    assert!(creating, "seed {seed}: {error}");
                    create(&crashed).expect("an interrupted creation can be repeated");
                }
            }
        }
    }
}

#[test]
fn next_edit_settles_a_failed_write_or_sync() {
    use Operation::{Append, Create, Flush, Rename, Sync, SyncDir};
    for operation in [Append, Create, Flush, Rename, Sync, SyncDir] {
        for nth in 1..8 {
            for fault in [Fault::Io, Fault::NoSpace, Fault::ShortAppend] {
                if fault == Fault::ShortAppend && operation != Append {
                    continue;
                }
                failing(operation, nth, fault);
            }
        }
    }
}

fn failing(operation: Operation, nth: u64, fault: Fault) {
    let mem = MemFs::new();
    let faults = FaultFs::new(Arc::new(mem.clone()), 1);
    let fs: Arc<dyn FileSystem> = Arc::new(faults.clone());
    let mut set = create(&fs).expect("creates");
    set = if nth.is_multiple_of(2) { recover(&fs).expect("recovers") } else { set };
    faults.add(Rule::on(operation).nth(nth).times(1).fault(fault));
    let what = format!("{operation:?} {nth} {fault:?}");
    let mut last_good = set.snapshot();
    for round in 0..6 {
        let mut edit = VersionEdit::new();
        edit.push(Change::LogFloor(FileNo(round + 1)));
        let attempted = attempt(&set, &edit);
        let result = set.apply(edit);
        let found = recover(&(Arc::new(mem.crash_clone(round)) as Arc<dyn FileSystem>));
        let found = strip_numbers(&found.expect("always opens").snapshot());
        match result {
            Ok(_) => {
                last_good = set.snapshot();
                assert!(!set.is_unsettled());
                assert_eq!(found, strip_numbers(&last_good), "{what}: acknowledged but lost");
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Io, "{what}");
                assert!(error.to_string().contains(DIR), "{what}: {error} names no file");
                assert!(set.is_unsettled());
                assert_eq!(strip_numbers(&set.snapshot()), strip_numbers(&last_good), "{what}");
                let either = [strip_numbers(&last_good), strip_numbers(&attempted)];
                assert!(either.contains(&found), "{what}: neither before nor after");
            }
        }
    }
    faults.clear();
    set.apply(VersionEdit::new()).expect("the device works again");
    drop(set);
    assert_eq!(strip_numbers(&recover(&fs).expect("opens").snapshot()), strip_numbers(&last_good));
}
