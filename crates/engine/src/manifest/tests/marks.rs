//! Losses that the durability marks must notice, and states that they must accept: cuts, older
//! manifests, crashes.

use super::*;

/// A manifest with some edits, and the offset at which each of them ends.
fn history(fs: &Arc<dyn FileSystem>) -> (VersionSet, Vec<u64>) {
    let mut set = create(fs).expect("creates");
    let mut ends = vec![set.marks().position().bytes];
    for round in 0..6u8 {
        let added = file(fs.as_ref(), &set, &[round, 1], &[round, 9]);
        set.apply(add(CfId(0), 6, added)).expect("applies");
        ends.push(set.marks().position().bytes);
    }
    (set, ends)
}

/// Every file of the directory with its bytes.
fn contents(fs: &MemFs) -> Vec<(String, Vec<u8>)> {
    let names = fs.list(dir()).expect("lists").into_iter().map(|entry| entry.name);
    names.map(|name| (name.clone(), get(fs, &dir().join(name)))).collect()
}

fn recover_over(mem: &MemFs) -> Result<VersionSet> {
    recover(&(Arc::new(mem.clone()) as Arc<dyn FileSystem>))
}

#[test]
fn a_cut_at_any_byte_that_loses_an_edit_is_refused() {
    let (mem, fs) = mem();
    let (set, ends) = history(&fs);
    let name = manifest_name(set.manifest_no());
    let bytes = get(&mem, &dir().join(&name));
    let durable = *ends.last().expect("not empty");
    assert!(durable < bytes.len() as u64, "an unsynced mark follows");
    for cut in 0..=bytes.len() as u64 {
        let cut_short = mem.kill_clone();
        put(&cut_short, &dir().join(&name), &bytes[..cut as usize]);
        let before = contents(&cut_short);
        let result = recover_over(&cut_short);
        if cut >= durable {
            result.unwrap_or_else(|error| panic!("cut at {cut} of {durable}: {error}"));
            continue;
        }
        let (kind, message) = text(result);
        assert_eq!(kind, ErrorKind::Corrupt, "cut at {cut}: {message}");
        assert!(message.contains(&name), "cut at {cut}: {message}");
        if cut >= ends[0] {
            let whole = ends.iter().filter(|&&end| end <= cut).count();
            let says = format!("{} edits are missing", ends.len() - whole);
            assert!(message.contains(&says), "cut at {cut}: {says}: {message}");
            assert!(message.contains("MARK-") && message.contains("repair"), "{message}");
        }
        assert_eq!(contents(&cut_short), before, "cut at {cut}: something was changed");
    }
}

#[test]
fn an_older_manifest_in_place_of_the_current_one_is_refused() {
    let (mem, fs) = mem();
    let (set, _) = history(&fs);
    let old_no = set.manifest_no();
    let old = get(&mem, &dir().join(manifest_name(old_no)));
    drop(set);
    let mut set = recover(&fs).expect("recovers");
    set.apply(VersionEdit { changes: vec![Change::LogFloor(FileNo(3))] }).expect("starts anew");
    assert!(set.manifest_no() > old_no);
    put(&mem, &dir().join(manifest_name(old_no)), &old);
    set_current(&mem, dir(), old_no).expect("writes");
    let (kind, message) = text(recover(&fs));
    assert_eq!(kind, ErrorKind::Corrupt, "{message}");
    for part in [manifest_name(old_no), manifest_name(set.manifest_no())] {
        assert!(message.contains(&part), "{part} is not in: {message}");
    }
}

#[test]
fn a_lost_current_of_a_database_without_tables_is_refused() {
    let (mem, fs) = mem();
    drop(create(&fs).expect("creates"));
    mem.remove(&dir().join(CURRENT_NAME)).expect("removes");
    let (kind, message) = text(recover(&fs));
    assert!(kind == ErrorKind::Corrupt && message.contains(CURRENT_NAME), "{message}");
}

#[test]
fn a_mark_file_of_another_database_claims_nothing() {
    let (mem, fs) = mem();
    let (set, ends) = history(&fs);
    let name = manifest_name(set.manifest_no());
    let bytes = get(&mem, &dir().join(&name));
    put(&mem, &dir().join(&name), &bytes[..ends[2] as usize]);
    let mark = dir().join(mark_name(set.manifest_no()));
    let header = mark::MarkHeader { db_id: [9; 16], manifest: set.manifest_no() };
    let mut foreign = header.encode();
    let claim = mark::Mark::Manifest { bytes: u64::MAX, edits: 99 };
    foreign.extend_from_slice(&header.encode_record(mark::MARK_HEADER_BYTES as u64, &claim));
    put(&mem, &mark, &foreign);
    recover(&fs).expect("recovers");
}

#[test]
fn any_cut_or_flipped_byte_of_a_mark_file_is_harmless() {
    let (mem, fs) = mem();
    let (set, _) = history(&fs);
    let expected = strip_numbers(&set.snapshot());
    let name = dir().join(mark_name(set.manifest_no()));
    let bytes = get(&mem, &name);
    assert!(bytes.len() > mark::MARK_HEADER_BYTES + 6 * mark::MARK_RECORD_BYTES);
    for at in 0..bytes.len() {
        let cut = mem.kill_clone();
        put(&cut, &name, &bytes[..at]);
        let set = recover_over(&cut).unwrap_or_else(|error| panic!("cut at {at}: {error}"));
        assert_eq!(strip_numbers(&set.snapshot()), expected);
        let mut flipped = bytes.clone();
        flipped[at] ^= 1 << (at % 8);
        put(&cut, &name, &flipped);
        let set = recover_over(&cut).unwrap_or_else(|error| panic!("byte {at}: {error}"));
        assert_eq!(strip_numbers(&set.snapshot()), expected);
    }
}
