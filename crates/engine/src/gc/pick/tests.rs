use archipelago_base::random::Rng;

use super::*;

const MIB: u64 = 1 << 20;
const FULL: u64 = 8 * MIB;

/// A value file that the tests change.
#[derive(Clone, Debug)]
struct TestFile {
    no: u64,
    smallest: Vec<u8>,
    largest: Vec<u8>,
    value_bytes: u64,
    key_bytes: u64,
    records: u64,
    referenced_bytes: u64,
}

impl TestFile {
    fn state(&self) -> ValueFileState<'_> {
        ValueFileState {
            no: self.no,
            smallest: &self.smallest,
            largest: &self.largest,
            value_bytes: self.value_bytes,
            key_bytes: self.key_bytes,
            records: self.records,
            referenced_bytes: self.referenced_bytes,
        }
    }
}

/// A family whose picks are applied to it.
#[derive(Clone, Debug, Default)]
struct Family {
    files: Vec<TestFile>,
    running: HashSet<u64>,
    left_out: HashSet<u64>,
    suspects: HashSet<u64>,
    exposed_bytes_max: u64,
    refs_bytes: u64,
    /// Bytes of other programs on a disk of `u64::MAX` bytes.
    occupied_bytes: u64,
    /// Bytes of the room that only a pick for space may use.
    reserve_bytes: u64,
    next_no: u64,
}

fn key(number: u64) -> Vec<u8> {
    number.to_be_bytes().to_vec()
}

impl Family {
    fn add(&mut self, keys: (u64, u64), value_bytes: u64, referenced_bytes: u64) -> u64 {
        self.next_no += 1;
        self.files.push(TestFile {
            no: self.next_no,
            smallest: key(keys.0),
            largest: key(keys.1),
            value_bytes,
            key_bytes: value_bytes / 100,
            records: value_bytes.div_ceil(4096),
            referenced_bytes,
        });
        self.next_no
    }

    fn pick(&self) -> Option<GcPick> {
        self.look(pick_gc)
    }

    fn look<R>(&self, look: impl FnOnce(&GcSnapshot<'_>) -> R) -> R {
        let files: Vec<_> = self.files.iter().map(TestFile::state).collect();
        let space_room_bytes = u64::MAX - self.occupied_bytes;
        look(&GcSnapshot {
            files: &files,
            running: &self.running,
            left_out: &self.left_out,
            suspects: &self.suspects,
            value_file_bytes: FULL,
            space_room_bytes,
            merge_room_bytes: space_room_bytes - self.reserve_bytes,
            exposed_bytes_max: self.exposed_bytes_max,
            refs_bytes: self.refs_bytes,
        })
    }

    fn inputs(&self, pick: &GcPick) -> Vec<TestFile> {
        let is_input = |file: &&TestFile| pick.inputs.contains(&file.no);
        self.files.iter().filter(is_input).cloned().collect()
    }

    /// Replaces the inputs by their heir. Returns the bytes that the job copied.
    fn apply(&mut self, pick: &GcPick) -> u64 {
        let inputs = self.inputs(pick);
        self.files.retain(|file| !pick.inputs.contains(&file.no));
        let copied = inputs.iter().map(|file| file.referenced_bytes).sum();
        if copied > 0 {
            let smallest = inputs.iter().map(|file| &file.smallest).min().expect("has inputs");
            let largest = inputs.iter().map(|file| &file.largest).max().expect("has inputs");
            let number = |key: &Vec<u8>| u64::from_be_bytes(key[..].try_into().expect("8 bytes"));
            let keys = (number(smallest), number(largest));
            self.add(keys, copied, copied);
        }
        copied
    }

    fn garbage_bytes(&self) -> u64 {
        self.files.iter().map(|file| file.value_bytes - file.referenced_bytes).sum()
    }
}

fn random_family(seed: u64) -> Family {
    let mut rng = Rng::with_seed(seed);
    let mut family = Family { exposed_bytes_max: rng.u64(0..8 * FULL), ..Family::default() };
    family.refs_bytes = rng.u64(0..2 * REFS_BYTES_CROWDED);
    let width_max = [1, 100, 10_000, 1_000_000][rng.usize(0..4)];
    for _ in 0..rng.usize(0..120) {
        let from = rng.u64(0..100_000);
        let bytes_max = if rng.bool() { FULL } else { FULL / 4 };
        let value_bytes = rng.u64(1..bytes_max);
        let referenced = match rng.u32(0..3) {
            0 => value_bytes,
            1 => 0,
            _ => rng.u64(0..=value_bytes),
        };
        let no = family.add((from, from + rng.u64(0..=width_max)), value_bytes, referenced);
        match rng.u32(0..12) {
            0 => _ = family.left_out.insert(no),
            1 => _ = family.running.insert(no),
            _ => {}
        }
    }
    family
}

fn check_pick(family: &Family, pick: &GcPick) {
    let inputs = family.inputs(pick);
    assert_eq!(inputs.len(), pick.inputs.len(), "every input exists once: {pick:?}");
    assert!(inputs.len() <= INPUTS_MAX);
    for input in &inputs {
        assert!(!family.running.contains(&input.no) && !family.left_out.contains(&input.no));
    }
    let valid_bytes: u64 = inputs.iter().map(|file| file.referenced_bytes).sum();
    let key_bytes: u64 = inputs.iter().map(|file| file.key_bytes).sum();
    assert_eq!(pick.heir_bytes, valid_bytes + key_bytes);
    let key_memory_bytes: u64 = inputs.iter().map(|file| file.state().key_memory_bytes()).sum();
    let fits = valid_bytes <= FULL && key_memory_bytes <= KEY_MEMORY_BYTES_MAX;
    assert!(inputs.len() == 1 || fits);
    match pick.reason {
        GcReason::Space => {
            assert!(family.garbage_bytes() > family.exposed_bytes_max);
            assert!(inputs.iter().all(|file| file.referenced_bytes < file.value_bytes));
        }
        GcReason::SmallFiles => {
            assert!(inputs.len() > 1);
            assert!(inputs.iter().all(|file| file.value_bytes < FULL / 4));
        }
        GcReason::Runs => {
            assert!(inputs.len() >= RUNS_MERGED_MIN);
            let start = inputs.iter().map(|file| &file.smallest).max().expect("has inputs");
            assert!(inputs.iter().all(|file| file.largest >= *start), "they share a key");
        }
    }
}

#[test]
fn pick_exists_while_garbage_exceeds_the_plan() {
    for seed in 0..3000 {
        let family = random_family(seed);
        match family.pick() {
            Some(pick) => check_pick(&family, &pick),
            None => {
                let is_free = |file: &&TestFile| !family.left_out.contains(&file.no);
                let mut free = family.files.iter().filter(is_free);
                assert!(
                    family.garbage_bytes() <= family.exposed_bytes_max
                        || !family.running.is_empty()
                        || free.all(|file| file.referenced_bytes == file.value_bytes),
                    "seed {seed}"
                );
            }
        }
    }
}

#[test]
fn idle_family_comes_to_rest() {
    for seed in 0..1000 {
        let mut family = random_family(seed);
        family.running.clear();
        let steps_max = 2 * family.files.len();
        let mut steps = 0;
        while let Some(pick) = family.pick() {
            check_pick(&family, &pick);
            let before = (family.garbage_bytes(), family.files.len());
            family.apply(&pick);
            let after = (family.garbage_bytes(), family.files.len());
            assert!(after.0 < before.0 || after.1 < before.1, "seed {seed}: {pick:?} does nothing");
            assert!(after.0 <= before.0 && after.1 <= before.1, "seed {seed}: {pick:?}");
            steps += 1;
            assert!(steps <= steps_max, "seed {seed} does not come to rest");
        }
        if family.left_out.is_empty() {
            assert!(family.garbage_bytes() <= family.exposed_bytes_max, "seed {seed}");
        }
    }
}

#[test]
fn running_jobs_are_trusted_to_free_their_garbage() {
    let mut family = Family { exposed_bytes_max: MIB, ..Family::default() };
    let first = family.add((0, 9), FULL, FULL / 2);
    family.add((0, 9), FULL, FULL - MIB);
    family.running.insert(first);
    assert_eq!(family.pick(), None, "one MiB of garbage remains");
    family.exposed_bytes_max = MIB - 1;
    assert_eq!(family.pick().map(|pick| pick.inputs), Some(vec![2]));
}

#[test]
fn neighbours_of_like_share_join_the_seed() {
    let mut family = Family::default();
    let seed = family.add((0, 9), FULL, FULL / 4);
    let like = family.add((10, 19), FULL, FULL * 4 / 10);
    family.add((20, 29), FULL, FULL * 9 / 10);
    (0..30).for_each(|at| _ = family.add((100 + at, 100 + at), FULL, FULL));
    family.add((900, 999), FULL, FULL / 4);
    let pick = family.pick().expect("there is garbage");
    assert_eq!((pick.reason, pick.inputs), (GcReason::Space, vec![seed, like]));
    assert_eq!(pick.reason.name(), "space");
}

#[test]
fn file_without_garbage_is_never_picked_for_space() {
    let mut family = Family::default();
    (0..16).for_each(|at| _ = family.add((at, at), FULL, FULL));
    assert_eq!(family.pick(), None);
}

#[test]
fn most_garbage_is_picked_whatever_the_age_of_its_file() {
    let mut family = Family { exposed_bytes_max: MIB, ..Family::default() };
    (0..50).for_each(|at| _ = family.add((at * 10, at * 10 + 9), FULL, FULL - 1));
    let youngest = family.add((900, 909), FULL, FULL / 4);
    assert_eq!(family.pick().map(|pick| pick.inputs), Some(vec![youngest]));
    family.files.rotate_right(1);
    assert_eq!(family.pick().map(|pick| pick.inputs), Some(vec![youngest]));
}

#[test]
fn heirs_without_room_are_made_of_fewer_files() {
    let mut family = Family::default();
    let files = [6, 5, 4].map(|tenths| family.add((0, 9), 8 * MIB, tenths * MIB / 10)).to_vec();
    let mut pick_in = |room_bytes: u64| {
        family.occupied_bytes = u64::MAX - room_bytes;
        family.pick().map(|pick| pick.inputs)
    };
    assert_eq!(pick_in(u64::MAX), Some(files.clone()));
    // The keys take a hundredth of each file.
    assert_eq!(pick_in(MIB * 16 / 10), Some(vec![files[1], files[2]]));
    assert_eq!(pick_in(MIB * 5 / 10), Some(vec![files[2]]));
    assert_eq!(pick_in(MIB * 3 / 10), None);
}

#[test]
fn memory_of_keys_counts_each_record_and_its_mean_key() {
    assert_eq!(key_memory_bytes(0, b"a", b"b"), 0);
    // A record takes 32 bytes in the list and 16 bytes in the order of the look-up.
    assert_eq!(key_memory_bytes(1000, b"12345678", b"87654321"), 1000 * (32 + 16 + 8));
    assert_eq!(key_memory_bytes(10, b"1", b"1234"), 10 * (48 + 3));
    assert_eq!(key_memory_bytes(u64::MAX, b"a", b"b"), u64::MAX);
}

#[test]
fn inputs_are_limited_by_the_memory_of_their_keys() {
    let mut family = Family::default();
    (0..3).for_each(|_| _ = family.add((0, 9), MIB, MIB / 4));
    assert_eq!(family.pick().expect("garbage is exposed").inputs.len(), 3);
    // Keys of 8 bytes that share their prefixes: 28 MB of memory, and one MiB of key blocks.
    for file in &mut family.files {
        (file.records, file.key_bytes) = (500_000, MIB);
    }
    assert_eq!(family.pick().expect("garbage is exposed").inputs.len(), 2);
    family.files.iter_mut().for_each(|file| file.records = 5_000_000);
    assert_eq!(family.pick().expect("one file is taken in any case").inputs.len(), 1);
}

#[test]
fn merges_do_not_count_on_the_reserve() {
    let mut family = Family { exposed_bytes_max: u64::MAX, ..Family::default() };
    (0..20).for_each(|at| _ = family.add((at, 1000), MIB / 4, MIB / 8));
    family.occupied_bytes = u64::MAX - 8 * MIB;
    let merged = |family: &Family| family.pick().map(|pick| (pick.reason, pick.inputs.len()));
    assert_eq!(merged(&family), Some((GcReason::SmallFiles, 20)));
    family.reserve_bytes = 7 * MIB;
    assert_eq!(merged(&family), Some((GcReason::SmallFiles, 7)), "one MiB is not reserved");
    family.reserve_bytes = 8 * MIB;
    assert_eq!(merged(&family), None);
    family.exposed_bytes_max = 0;
    assert_eq!(merged(&family), Some((GcReason::Space, 20)));
}

#[test]
fn job_without_room_is_told_from_no_job() {
    let mut family = Family::default();
    // It is larger than a full file, as a file with one large value is.
    family.add((0, 9), 4 * FULL, 3 * FULL);
    family.occupied_bytes = u64::MAX - 2 * FULL;
    assert_eq!(family.pick(), None);
    assert!(family.look(is_due_with_room));
    family.exposed_bytes_max = u64::MAX;
    assert!(!family.look(is_due_with_room), "its garbage is not due");
}

#[test]
fn small_neighbours_are_merged_when_there_are_many() {
    let mut family = Family { exposed_bytes_max: u64::MAX, ..Family::default() };
    (0..16).for_each(|at| _ = family.add((at * 10, at * 10 + 9), MIB / 4, MIB / 4));
    assert_eq!(family.pick(), None);
    family.refs_bytes = REFS_BYTES_CROWDED + 1;
    assert_eq!(family.pick().map(|pick| pick.inputs.len()), Some(16));
    family.refs_bytes = 0;
    family.add((160, 169), MIB / 4, MIB / 4);
    let pick = family.pick().expect("17 small files");
    assert_eq!((pick.reason, pick.inputs.len()), (GcReason::SmallFiles, 17));
    // These files are far from the others and so are not neighbours. Only sixteen neighbours
    // remain.
    family.files.pop();
    (0..20).for_each(|at| _ = family.add((1000 + at, 1000 + at), FULL, FULL));
    family.add((2000, 2009), MIB / 4, MIB / 4);
    assert_eq!(family.pick(), None);
}

#[test]
fn runs_are_merged_when_four_fit_into_one_file() {
    let mut family = Family { exposed_bytes_max: u64::MAX, ..Family::default() };
    (0..100).for_each(|at| _ = family.add((at, 1000), FULL, FULL));
    assert_eq!(family.pick(), None, "one heir cannot sort full files");
    let small: Vec<u64> = (0..4).map(|at| family.add((at, 500), FULL, FULL / 4)).collect();
    let pick = family.pick().expect("four fit");
    assert_eq!((pick.reason, pick.inputs), (GcReason::Runs, small));
    let mut few = Family { exposed_bytes_max: u64::MAX, ..Family::default() };
    (0..16).for_each(|at| _ = few.add((at, 1000), FULL / 4, FULL / 4));
    assert_eq!(few.pick(), None, "sixteen runs are allowed");
}

#[test]
fn pause_after_failures_doubles_up_to_an_hour() {
    let second = 1_000_000_000;
    let mut leave = FailureLeave::default();
    let mut now_ns = 0;
    let mut pauses = Vec::new();
    for _ in 0..14 {
        leave.note_failure(7, now_ns);
        let end = leave.next_end_ns(now_ns).expect("the file waits");
        assert!(leave.left_out(end - 1).contains(&7));
        assert!(!leave.left_out(end).contains(&7));
        pauses.push((end - now_ns) / second);
        now_ns = end;
    }
    assert_eq!(pauses[..5], [1, 2, 4, 8, 16]);
    assert_eq!(pauses[11..], [2048, 3600, 3600]);
    leave.retain(|no| no != 7);
    leave.note_failure(7, now_ns);
    assert_eq!(leave.next_end_ns(now_ns), Some(now_ns + second), "a new file starts anew");
}

/// Updates random keys until the ratio of copied to written bytes is steady, and returns it.
fn rewritten_per_update(exposed_share: f64) -> f64 {
    const RECORD: u64 = MIB / 64;
    const KEYS: usize = 1 << 14;
    let mut rng = Rng::with_seed(1);
    let exposed_bytes_max = (KEYS as f64 * RECORD as f64 * exposed_share) as u64;
    let mut family = Family { exposed_bytes_max, ..Family::default() };
    // Number of the file that holds each key, and the keys of each file.
    let mut home = vec![0; KEYS];
    let mut keys_of: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
    let (mut updates, mut copied) = (0, 0);
    for round in 0..6 * KEYS / 256 {
        let mut written: Vec<usize> = match round {
            round if round < KEYS / 256 => (round * 256..(round + 1) * 256).collect(),
            _ => (0..256).map(|_| rng.usize(0..KEYS)).collect(),
        };
        written.sort_unstable();
        written.dedup();
        for key in &written {
            let old = family.files.iter_mut().find(|file| file.no == home[*key]);
            old.into_iter().for_each(|file| file.referenced_bytes -= RECORD);
        }
        let bytes = written.len() as u64 * RECORD;
        let no = family.add((0, KEYS as u64), bytes, bytes);
        written.iter().for_each(|key| home[*key] = no);
        keys_of.insert(no, written);
        let steady = round >= 3 * KEYS / 256;
        updates += if steady { 256 * RECORD } else { 0 };
        while let Some(pick) = family.pick().filter(|pick| pick.reason == GcReason::Space) {
            let moved = pick.inputs.iter().flat_map(|no| {
                let keys = keys_of.remove(no).unwrap_or_default();
                keys.into_iter().filter(|key| home[*key] == *no).collect::<Vec<_>>()
            });
            let moved: Vec<usize> = moved.collect();
            let bytes = family.apply(&pick);
            copied += if steady { bytes } else { 0 };
            moved.iter().for_each(|key| home[*key] = family.next_no);
            keys_of.insert(family.next_no, moved);
        }
    }
    copied as f64 / updates as f64
}

#[test]
fn uniform_updates_cost_what_the_greedy_model_says() {
    // The rates of `docs/design/separation.md` for x = 0.25 and x = 0.5.
    let at_quarter = rewritten_per_update(0.25);
    assert!((1.5..1.9).contains(&at_quarter), "{at_quarter}");
    let at_half = rewritten_per_update(0.5);
    assert!((0.62..0.82).contains(&at_half), "{at_half}");
}

#[test]
fn file_that_failed_before_is_taken_alone() {
    let mut family = Family { exposed_bytes_max: 0, ..Family::default() };
    let files: Vec<u64> = (0..4).map(|at| family.add((0, 10), 8 * MIB, MIB + at)).collect();
    assert!(family.pick().expect("garbage is exposed").inputs.len() > 1);
    let suspect = files[0];
    family.suspects.insert(suspect);
    assert_eq!(family.pick().expect("most garbage").inputs, [suspect]);
    family.left_out.insert(suspect);
    let others = family.pick().expect("the neighbours go on").inputs;
    assert!(others.len() > 1 && !others.contains(&suspect));
}
