//! The persistent read-only cache: copies of hot files, or of their hot ranges, on faster devices
//! (Keigo §4.3). This module decides, purely; `crate::mover` does, [`format`] is what a copy looks
//! like.
//!
//! Which: by aged accesses per byte, hottest first; to the fastest device the hottest parts of
//! files (`hot_ranges/mod.rs`). When: while the device serves less than its target of the foreground reads
//! that it could. How many at once: as many as the device takes writers beside those that it has
//! ([`crate::migrate::threads`]), and more into free room where copies pay (`payback.rs`). Out goes
//! what is clearly colder than what comes in, tables of the device's own below L0 among it, and
//! whatever stands in the way of files.

pub(crate) mod ageing;
pub(crate) mod dispersion;
pub(crate) mod format;
pub(crate) mod hot_ranges;
pub(crate) mod payback;
pub(crate) mod ranges;

/// A copy is evicted for another file only if that is hotter by so many standard deviations of what
/// chance does to two that are alike: such two do not push each other out in turn, and the more is
/// known, the smaller differences count. The largest of n differences has about √(2 ln n) of them
/// by chance, so it is one more than that, and four at least, since they are looked at over and
/// over.
#[must_use]
pub fn sure(differences: usize) -> f64 {
    let largest = (2.0 * (differences.max(1) as f64).ln()).sqrt();
    (largest + 1.0).max(4.0)
}

/// Whether the candidate has more accesses than the copy would have if it were as long, beyond
/// chance, and so many that the copying pays.
fn is_clearly_hotter(candidate: &Candidate, held: &Held, sure: f64) -> bool {
    let scaled = candidate.len as f64 / held.len.max(1) as f64;
    let (ours, theirs) = (candidate.heat, held.heat * scaled);
    let variance = candidate.variance * ours + held.variance * theirs * scaled.max(1.0);
    let gained = ours - theirs;
    gained > sure * variance.sqrt() && pays(gained, candidate.bytes)
}

/// Whether writing so many bytes is worth `gained` accesses within some times that they need to
/// age: a copy reads and writes all of its bytes once.
fn pays(gained: f64, bytes: u64) -> bool {
    gained * PAYS_WITHIN > bytes as f64 / BLOCK_BYTES
}

/// Whether a copy of `bytes` with `planned` accesses should take the place of one of the same file
/// with `held`: more, beyond chance, and it pays. Accesses vary by `variance` of their mean, and
/// this is asked of `files`.
#[must_use]
pub fn is_worth_renewing(planned: f64, held: f64, bytes: u64, variance: f64, files: usize) -> bool {
    let gained = planned - held;
    gained > sure(files) * (variance * (planned + held)).sqrt() && pays(gained, bytes)
}

/// A copy costs as many reads as it has bytes of this.
pub(crate) const BLOCK_BYTES: f64 = 4096.0;
/// In how many of the times after which accesses count half a copy has to win them back.
const PAYS_WITHIN: f64 = 8.0;

/// In an interval with fewer foreground reads than this nothing is learnt.
pub const READS_MIN: u64 = 32;

/// Whether copies shall be made: `served` of `possible` foreground reads were by the device.
#[must_use]
pub fn wants_copies(served: u64, possible: u64, target: f64) -> bool {
    possible >= READS_MIN && (served as f64) < target * possible as f64
}

/// A file that could be copied to a device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// Its unique id.
    pub file: u64,
    /// Aged accesses that the device does not serve yet.
    pub heat: f64,
    /// By how much of their mean they vary by chance: 1 if they never aged
    /// (`ageing::Ageing::variance`).
    pub variance: f64,
    /// Bytes that the copy would take, beyond what one of the same file takes that it replaces.
    pub len: u64,
    /// Bytes that have to be written.
    pub bytes: u64,
}

/// A copy on the device, or a file that need not stay there.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Held {
    /// Its number.
    pub number: u64,
    /// Whether it is a file: it can leave for a slower device, but not be dropped.
    pub is_file: bool,
    /// Aged accesses of its file, and by how much of their mean they vary.
    pub heat: f64,
    /// See [`Candidate::variance`].
    pub variance: f64,
    /// Bytes that it takes.
    pub len: u64,
}

/// How much may be copied at once where copies win back what they cost (`payback.rs`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refill {
    /// Copies in all, those of [`CacheInput::slots`] among them.
    pub copies: usize,
    /// Bytes of those beyond.
    pub bytes: u64,
}

/// What [`choose`] decides from.
#[derive(Clone, Copy, Debug)]
pub struct CacheInput<'a> {
    /// Bytes that copies may still take; negative if they take too much already.
    pub room: i64,
    /// Whether copies are wanted at all.
    pub wanted: bool,
    /// Whether it is files that take the room, so that there is more when one leaves.
    pub demotes: bool,
    /// How many files may leave now.
    pub leave: usize,
    /// How many may be begun.
    pub slots: usize,
    /// And how much beyond that, into room that nothing takes.
    pub refill: Refill,
    /// Bytes that files may take until copies are chosen again: nothing is copied into those.
    pub coming: u64,
    /// Bytes that copies will take which wait to be made: as much of the room that is free is
    /// theirs.
    pub waiting: u64,
    /// Files that slower devices serve.
    pub candidates: &'a [Candidate],
    /// What the device holds.
    pub held: &'a [Held],
}

/// What to do with a device's copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheAction {
    /// Remove the copy: files need the room.
    Evict(u64),
    /// Remove the copy: the next one is hotter.
    Replace(u64),
    /// Move the file to a slower device: something there is hotter, and is copied when there is
    /// room.
    Demote(u64),
    /// Copy the file.
    Copy(u64),
}

/// Accesses per byte.
#[must_use]
pub fn density(heat: f64, len: u64) -> f64 {
    heat / len.max(1) as f64
}

/// Room that neither files will take nor copies that wait.
fn left_of(room: i64, input: &CacheInput<'_>) -> i64 {
    let room = room.saturating_sub_unsigned(input.coming);
    if room > 0 { room.saturating_sub_unsigned(input.waiting).max(0) } else { room }
}

/// Whether the candidate is for free room: what takes the place of another copy, also of the same
/// file, is not.
fn refills(candidate: &Candidate, room: i64, won: u64) -> bool {
    let is_new = candidate.len >= candidate.bytes;
    is_new && room >= candidate.len as i64 && won >= candidate.bytes
}

/// Chooses copies and evictions, in order; see the module.
#[must_use]
pub fn choose(input: &CacheInput<'_>) -> Vec<CacheAction> {
    let mut held = input.held.to_vec();
    // Coldest last, to be popped.
    held.sort_by(|a, b| density(b.heat, b.len).total_cmp(&density(a.heat, a.len)));
    let (mut actions, mut leave) = (Vec::new(), input.leave);
    let mut room = input.room;
    while room < 0 {
        let Some(coldest) = held.iter().rposition(|one| !one.is_file) else { break };
        let victim = held.remove(coldest);
        room += victim.len as i64;
        actions.push(CacheAction::Evict(victim.number));
    }
    if !input.wanted {
        return actions;
    }
    room = left_of(room, input);
    held.retain(|one| input.demotes || !one.is_file);
    let mut candidates = input.candidates.to_vec();
    candidates.retain(|candidate| candidate.heat > 0.0);
    // The hottest of those is compared with the coldest of these.
    let sure = sure(candidates.len().saturating_mul(held.len()));
    candidates.sort_by(|a, b| density(b.heat, b.len).total_cmp(&density(a.heat, a.len)));
    let mut refill = input.refill.bytes;
    for (at, candidate) in candidates.into_iter().enumerate() {
        if at >= input.slots {
            if at >= input.refill.copies || refill == 0 {
                break;
            }
            if !refills(&candidate, room, refill) {
                continue;
            }
            refill -= candidate.bytes;
        }
        let mut victims = Vec::new();
        let mut demoted = None;
        let mut gained = room;
        while gained < candidate.len as i64 {
            match held.pop() {
                // It leaves when others have left.
                Some(coldest) if coldest.is_file && leave == 0 => {
                    held.push(coldest);
                    break;
                }
                Some(coldest) if is_clearly_hotter(&candidate, &coldest, sure) => {
                    if coldest.is_file {
                        demoted = Some(CacheAction::Demote(coldest.number));
                        leave -= 1;
                        break;
                    }
                    gained += coldest.len as i64;
                    victims.push(coldest);
                }
                other => {
                    held.extend(other);
                    break;
                }
            }
        }
        if gained < candidate.len as i64 {
            held.extend(victims.into_iter().rev());
            actions.extend(demoted);
            continue;
        }
        room = gained - candidate.len as i64;
        actions.extend(victims.iter().map(|victim| CacheAction::Replace(victim.number)));
        actions.push(CacheAction::Copy(candidate.file));
    }
    actions
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(file: u64, heat: f64) -> Candidate {
        Candidate { file, heat, variance: 0.5, len: 10, bytes: 10 }
    }

    fn held(number: u64, heat: f64) -> Held {
        Held { number, is_file: false, heat, variance: 0.5, len: 10 }
    }

    /// All that may be done, at the old pace.
    fn input<'a>(room: i64, candidates: &'a [Candidate], held: &'a [Held]) -> CacheInput<'a> {
        let (refill, coming, waiting) = (Refill::default(), 0, 0);
        let (wanted, demotes, leave, slots) = (true, true, 8, 8);
        CacheInput {
            room,
            wanted,
            demotes,
            leave,
            slots,
            refill,
            coming,
            waiting,
            candidates,
            held,
        }
    }

    fn run(room: i64, candidates: &[Candidate], held: &[Held]) -> Vec<CacheAction> {
        choose(&input(room, candidates, held))
    }

    #[test]
    fn the_hottest_come_first_and_only_what_fits() {
        let candidates = [candidate(1, 5.0), candidate(2, 9.0), candidate(3, 0.0)];
        assert_eq!(run(25, &candidates, &[]), [CacheAction::Copy(2), CacheAction::Copy(1)]);
        assert_eq!(run(15, &candidates, &[]), [CacheAction::Copy(2)]);
        assert_eq!(run(5, &candidates, &[]), []);
    }

    #[test]
    fn clearly_colder_copies_give_way_and_equals_do_not() {
        let actions = run(0, &[candidate(1, 90.0)], &[held(10, 10.0), held(11, 80.0)]);
        assert_eq!(actions, [CacheAction::Replace(10), CacheAction::Copy(1)]);
        assert_eq!(run(0, &[candidate(1, 90.0)], &[held(10, 70.0), held(11, 80.0)]), []);
    }

    #[test]
    fn the_more_is_known_the_smaller_differences_count_and_a_copy_has_to_pay() {
        let replaces = |heat, other, len| {
            let candidates = [Candidate { file: 1, heat, variance: 0.5, len, bytes: len }];
            let held = [Held { number: 10, is_file: false, heat: other, variance: 0.5, len }];
            let input = CacheInput { leave: 1, slots: 1, ..input(0, &candidates, &held) };
            !choose(&input).is_empty()
        };
        assert!(!replaces(6.0, 3.0, 10), "twice as hot, but of few accesses");
        assert!(replaces(600.0, 300.0, 10));
        assert!(replaces(6000.0, 5500.0, 10), "a tenth, of many");
        assert!(!replaces(6000.0, 5500.0, 64 << 20), "16,384 blocks are not won back");
        assert!(replaces(60_000.0, 55_000.0, 64 << 20));
        // A copy of half the length that has half of the accesses is as hot.
        let half = Held { len: 5, ..held(10, 45.0) };
        assert_eq!(run(5, &[candidate(1, 90.0)], &[half]), []);
    }

    #[test]
    fn what_was_won_fills_free_room_at_once_and_displaces_nothing() {
        let candidates: Vec<Candidate> = (0..20).map(|n| candidate(n, 90.0)).collect();
        let held = [held(10, 1.0)];
        let chosen = |room, slots, copies, bytes| {
            let refill = Refill { copies, bytes };
            let input = input(room, &candidates, &held);
            let actions = choose(&CacheInput { leave: 1, slots, refill, ..input });
            let copies = actions.iter().filter(|one| matches!(one, CacheAction::Copy(_)));
            (copies.count(), actions.contains(&CacheAction::Replace(10)))
        };
        assert_eq!(chosen(100, 2, 0, 1000), (2, false));
        assert_eq!(chosen(100, 2, 64, 1000), (10, false), "all that fits");
        assert_eq!(chosen(100, 2, 5, 1000), (5, false));
        assert_eq!(chosen(100, 2, 64, 30), (5, false), "what was won");
        assert_eq!(chosen(0, 2, 64, 1000), (1, true), "at the old pace");
        assert_eq!(chosen(0, 0, 64, 1000), (0, false));
    }

    #[test]
    fn a_cold_file_leaves_for_hot_ones_and_is_never_dropped() {
        let file = |number, heat| Held { is_file: true, ..held(number, heat) };
        let candidates = [candidate(1, 900.0), candidate(2, 800.0)];
        let actions = run(0, &candidates, &[file(10, 1.0), held(11, 100.0), file(12, 700.0)]);
        assert_eq!(
            actions,
            [CacheAction::Demote(10), CacheAction::Replace(11), CacheAction::Copy(2)],
            "the first waits until the file is gone"
        );
        let leaves = |leave: usize| {
            let (candidates, held) =
                ([candidate(1, 90.0), candidate(2, 80.0)], [1, 2].map(|n| file(n, 1.0)));
            choose(&CacheInput { leave, ..input(0, &candidates, &held) }).len()
        };
        assert_eq!([0, 1, 2, 3].map(leaves), [0, 1, 2, 2], "no more than may");
        assert_eq!(run(-15, &[], &[file(10, 1.0), held(11, 2.0)]), [CacheAction::Evict(11)]);
        assert_eq!(run(0, &[candidate(1, 9.0)], &[file(10, 8.0)]), [], "about as hot");
    }

    #[test]
    fn no_file_leaves_where_the_share_of_copies_is_used_up() {
        let held = [Held { is_file: true, ..held(10, 1.0) }, held(11, 100.0)];
        let candidates = [candidate(1, 900.0)];
        let input = CacheInput { demotes: false, ..input(0, &candidates, &held) };
        assert_eq!(choose(&input), [CacheAction::Replace(11), CacheAction::Copy(1)]);
    }

    #[test]
    fn files_get_their_room_back_even_when_no_copies_are_wanted() {
        let held = [held(10, 3.0), held(11, 1.0), held(12, 2.0)];
        let input = CacheInput { wanted: false, ..input(-15, &[], &held) };
        assert_eq!(choose(&input), [CacheAction::Evict(11), CacheAction::Evict(12)]);
    }

    #[test]
    fn equally_hot_files_do_not_push_each_other_out_for_ever() {
        let mut held: Vec<Held> = (0..4).map(|n| held(n, 5.0 + n as f64 * 0.1)).collect();
        let mut copies = 0;
        for round in 0..50 {
            let outside: Vec<Candidate> = (0..20).map(|n| candidate(100 + n, 5.0)).collect();
            let room = 40 - held.iter().map(|copy| copy.len as i64).sum::<i64>();
            for action in run(room, &outside, &held) {
                match action {
                    CacheAction::Copy(file) => {
                        copies += 1;
                        let number = file * 100 + round;
                        held.push(Held { number, ..held[0] });
                    }
                    CacheAction::Evict(number)
                    | CacheAction::Replace(number)
                    | CacheAction::Demote(number) => {
                        held.retain(|copy| copy.number != number);
                    }
                }
            }
        }
        assert_eq!(copies, 0);
    }

    #[test]
    fn what_never_aged_and_is_compared_with_many_has_to_be_hotter_by_more() {
        let hotter = |variance, sure| {
            let (candidate, held) = (candidate(1, 460.0), held(10, 340.0));
            is_clearly_hotter(
                &Candidate { variance, ..candidate },
                &Held { variance, ..held },
                sure,
            )
        };
        assert!(hotter(0.5, 4.0), "120 of a deviation of 20");
        assert!(hotter(0.5, 5.5) && hotter(1.0, 4.0));
        assert!(!hotter(1.0, 5.5), "of a deviation of 28");
        assert_eq!([0, 1, 50].map(sure), [4.0; 3]);
        assert!((5.5..5.6).contains(&sure(300 * 90)), "{}", sure(300 * 90));
        let many: Vec<Candidate> = (0..300).map(|file| candidate(file, 340.0)).collect();
        let mut held: Vec<Held> = (0..90).map(|number| held(number, 240.0)).collect();
        // 100 of a deviation of 17: 5.9 are enough against one, and against a hundred times as
        // many.
        let coldest = Held { heat: 255.0, ..held[0] };
        assert_eq!(run(0, &many[..1], &[coldest]).len(), 2, "85: five deviations");
        held[0] = coldest;
        held.iter_mut().for_each(|held| held.heat = held.heat.max(255.0));
        assert_eq!(run(0, &many, &held), [], "so many differ by chance");
    }

    #[test]
    fn nothing_is_copied_into_what_files_take_next() {
        let candidates = [candidate(1, 50.0)];
        let chosen = |room, coming, waiting, held| {
            choose(&CacheInput { coming, waiting, ..input(room, &candidates, held) })
        };
        assert_eq!(chosen(15, 5, 0, &[]), [CacheAction::Copy(1)]);
        assert_eq!(chosen(15, 6, 0, &[]), []);
        let warm = [held(10, 49.0)];
        assert_eq!(chosen(0, 6, 0, &warm), [], "nor is a copy dropped for them before they come");
        // What waits has what is free, and takes nothing else.
        assert_eq!(chosen(15, 0, 5, &[]), [CacheAction::Copy(1)]);
        assert_eq!(chosen(15, 0, 6, &[]), []);
        let cold = [held(10, 1.0), held(11, 1.0)];
        let one = [CacheAction::Replace(11), CacheAction::Copy(1)];
        assert_eq!(chosen(5, 0, 1000, &cold), one);
        assert_eq!(chosen(0, 0, 1000, &cold), one);
    }

    #[test]
    fn a_copy_is_renewed_for_a_clear_gain_that_pays() {
        let renewed = |planned, held, bytes| is_worth_renewing(planned, held, bytes, 0.5, 1);
        assert!(!renewed(12.0, 9.0, 4096), "chance");
        assert!(renewed(480.0, 340.0, 30 * 4096));
        assert!(!renewed(480.0, 340.0, 64 << 20), "it would cost more than it brings");
        assert!(!renewed(340.0, 480.0, 4096));
    }

    #[test]
    fn a_device_that_serves_enough_wants_no_copies() {
        assert!(wants_copies(80, 100, 0.95));
        assert!(!wants_copies(95, 100, 0.95));
        assert!(!wants_copies(0, READS_MIN - 1, 0.95), "too little is known");
    }
}
