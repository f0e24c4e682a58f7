//! The persistent read-only cache: copies of hot files, or of their hot ranges, on faster devices
//! (Keigo §4.3). This module decides, purely; `crate::work` does, [`format`] is what a copy looks like.
//!
//! Which: by aged accesses per byte, hottest first. Of which parts of files: all that have as many accesses per byte as it takes to fill the
//! room ([`worth`]), in whatever file they lie: where keys lie scattered, files are alike and only their parts differ. When: while the device serves less than its
//! target of the foreground reads that it could. How many at once: as many as the device takes writers beside those that it
//! has ([`crate::migrate::threads`]). Out goes what is clearly colder than what comes in, tables of the device's
//! own below L0 among it, and whatever stands in the way of files.

pub(crate) mod ageing;
pub(crate) mod format;
pub(crate) mod ranges;

use self::ranges::Span;
use crate::settings::CacheBy;

/// A copy is evicted for another file only if that is hotter by so many standard deviations of what chance does to
/// two that are alike: such two do not push each other out in turn, and the more is known, the smaller
/// differences count.
const SURE: f64 = 4.0;

/// Counts of accesses that are halved once a half-life, over and over, vary by half of their mean: the sum of
/// the squared weights of the past is half of the sum of the weights.
const AGED_VARIANCE: f64 = 0.5;

/// Whether the candidate has more accesses than the copy would have if it were as long, beyond chance, and so
/// many that the copying pays.
fn is_clearly_hotter(candidate: &Candidate, held: &Held) -> bool {
    let scaled = candidate.len as f64 / held.len.max(1) as f64;
    let (ours, theirs) = (candidate.heat, held.heat * scaled);
    let deviation = (AGED_VARIANCE * (ours + theirs * scaled.max(1.0))).sqrt();
    let gained = ours - theirs;
    gained > SURE * deviation && pays(gained, candidate.bytes)
}

/// Whether writing so many bytes is worth `gained` accesses within some times that they need to age: a copy reads and writes all of its bytes once.
fn pays(gained: f64, bytes: u64) -> bool {
    gained * PAYS_WITHIN > bytes as f64 / BLOCK_BYTES
}

/// Whether a copy of `bytes` with `planned` accesses should take the place of one of the same file with `held`: more, beyond chance, and it pays.
#[must_use]
pub fn is_worth_renewing(planned: f64, held: f64, bytes: u64) -> bool {
    let gained = planned - held;
    gained > SURE * (AGED_VARIANCE * (planned + held)).sqrt() && pays(gained, bytes)
}

/// A copy costs as many reads as it has bytes of this.
const BLOCK_BYTES: f64 = 4096.0;
/// In how many of the times after which accesses count half a copy has to win them back.
const PAYS_WITHIN: f64 = 8.0;

/// In an interval with fewer foreground reads than this nothing is learnt.
pub const READS_MIN: u64 = 32;

/// A file of which ranges of more than this part would be copied is copied whole.
const RANGES_PART_MAX: f64 = 0.75;

/// If what was read of a file is, range by range, so many times its length, reads overlap.
const OVERLAP_MAX: f64 = 1.5;

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
    /// Aged accesses of its file.
    pub heat: f64,
    /// Bytes that it takes.
    pub len: u64,
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
    /// How many may be begun.
    pub slots: usize,
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
    /// Move the file to a slower device: something there is hotter, and is copied when there is room.
    Demote(u64),
    /// Copy the file.
    Copy(u64),
}

fn density(heat: f64, len: u64) -> f64 {
    heat / len.max(1) as f64
}

/// Chooses copies and evictions, in order; see the module.
#[must_use]
pub fn choose(input: &CacheInput<'_>) -> Vec<CacheAction> {
    let mut held = input.held.to_vec();
    // Coldest last, to be popped.
    held.sort_by(|a, b| density(b.heat, b.len).total_cmp(&density(a.heat, a.len)));
    let mut actions = Vec::new();
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
    held.retain(|one| input.demotes || !one.is_file);
    let mut candidates = input.candidates.to_vec();
    candidates.retain(|candidate| candidate.heat > 0.0);
    candidates.sort_by(|a, b| density(b.heat, b.len).total_cmp(&density(a.heat, a.len)));
    for candidate in candidates.into_iter().take(input.slots) {
        let mut victims = Vec::new();
        let mut demoted = None;
        let mut gained = room;
        while gained < candidate.len as i64 {
            match held.pop() {
                Some(coldest) if is_clearly_hotter(&candidate, &coldest) => {
                    if coldest.is_file {
                        demoted = Some(CacheAction::Demote(coldest.number));
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

/// Accesses of a file, and where in it.
///
/// What a part of it is expected to have lies between what was counted of it and what it would have if all of the file were alike ([`trust`]): few reads
/// say little of a block, and a copy of those blocks that happened to be read first is a copy of any blocks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FileReads {
    /// The file's bytes.
    pub len: u64,
    /// Aged accesses that nobody knows the place of: what it inherited, or kept over a restart.
    pub inherited: f64,
    /// In how many ranges it is counted.
    pub ranges: u64,
    /// Those in which reads began.
    pub spans: Vec<Span>,
    /// How far counts of parts are believed, 0 to 1.
    pub trust: f64,
}

impl FileReads {
    /// All of its aged accesses.
    #[must_use]
    pub fn heat(&self) -> f64 {
        self.inherited + self.counted()
    }

    fn counted(&self) -> f64 {
        self.spans.iter().map(|span| f64::from(span.reads)).sum()
    }

    /// Whether its reads are so long that they overlap: bytes of one range serve reads of others, too, and the file is judged as a whole.
    fn overlaps(&self) -> bool {
        let read: u64 = self.spans.iter().map(|span| span.len).sum();
        read as f64 > OVERLAP_MAX * self.len as f64
    }

    /// The accesses that are expected of `bytes` of it in which `counted` were counted.
    fn expected(&self, counted: f64, bytes: u64) -> f64 {
        let part = (bytes as f64 / self.len.max(1) as f64).min(1.0);
        let alike = (self.inherited + (1.0 - self.trust) * self.counted()) * part;
        alike + self.trust * counted
    }

    fn density_of(&self, span: &Span) -> f64 {
        density(self.expected(f64::from(span.reads), span.len), span.len)
    }

    /// Of what was not read.
    fn density_of_rest(&self) -> f64 {
        density(self.expected(0.0, self.len), self.len)
    }

    /// The accesses that a copy of `ranges` (start and length, in order) serves.
    #[must_use]
    pub fn served_by(&self, ranges: &[(u64, u64)]) -> f64 {
        let held = self.spans.iter().filter(|span| holds(ranges, span));
        let counted = held.map(|span| f64::from(span.reads)).sum();
        self.expected(counted, ranges.iter().map(|range| range.1).sum())
    }

    /// What a copy of `ranges` leaves for slower devices to serve.
    #[must_use]
    pub fn beside(&self, ranges: &[(u64, u64)]) -> Self {
        let spans = self.spans.iter().filter(|span| !holds(ranges, span)).copied().collect();
        let held: u64 = ranges.iter().map(|range| range.1).sum();
        let rest = 1.0 - (held as f64 / self.len.max(1) as f64).min(1.0);
        Self { inherited: self.inherited * rest, spans, ..*self }
    }
}

/// Whether all of the span is in one of the ranges, which are in order.
fn holds(ranges: &[(u64, u64)], span: &Span) -> bool {
    let after = ranges.partition_point(|range| range.0 <= span.start);
    let range = after.checked_sub(1).and_then(|at| ranges.get(at));
    range.is_some_and(|(start, len)| span.start + span.len <= start + len)
}

/// How far counts of parts of files are to be believed: the part of their variance within files that chance does not explain (counts of what is alike
/// have a variance as large as their mean). 0 to 1; what an empirical Bayes estimate of Poisson counts with a common prior takes.
pub fn trust<'a>(files: impl Iterator<Item = &'a FileReads>) -> f64 {
    let (mut spread, mut chance) = (0.0, 0.0);
    for file in files {
        let counted = file.counted();
        let squares: f64 = file.spans.iter().map(|span| f64::from(span.reads).powi(2)).sum();
        spread += squares - counted * counted / file.ranges.max(1) as f64;
        chance += counted * (1.0 - 1.0 / file.ranges.max(1) as f64);
    }
    if spread <= 0.0 { 0.0 } else { (1.0 - chance / spread).max(0.0) }
}

/// Accesses per byte are told apart by a quarter of an octave…
const WORTH_STEPS: f64 = 4.0;
/// …from 2 to the power of minus this on.
const WORTH_OCTAVES: f64 = 48.0;
const WORTH_CLASSES: usize = 256;

/// What it takes to be copied to a device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Worth {
    /// So many accesses per byte. 0 if all files fit that were read at all, so that they can be copied whole.
    pub density: f64,
    /// No more bytes than this, the room of all copies.
    pub room: u64,
}

/// How many accesses per byte a part of a file must have to be copied, so that all such parts fill `room` bytes. Cost: linear in the spans.
pub fn worth<'a>(files: impl Iterator<Item = &'a FileReads> + Clone, room: u64) -> Worth {
    Worth { density: fills(files, room), room }
}

fn fills<'a>(files: impl Iterator<Item = &'a FileReads> + Clone, room: u64) -> f64 {
    let all: u64 = files.clone().filter(|file| file.heat() > 0.0).map(|file| file.len).sum();
    if all <= room {
        return 0.0;
    }
    let class = |density: f64| {
        ((density.log2() + WORTH_OCTAVES) * WORTH_STEPS).clamp(0.0, WORTH_CLASSES as f64 - 1.0)
            as usize
    };
    let mut bytes = vec![0u64; WORTH_CLASSES];
    for file in files {
        let mut rest = file.len;
        if file.overlaps() {
            bytes[class(density(file.heat(), file.len))] += file.len;
            continue;
        }
        for span in &file.spans {
            bytes[class(file.density_of(span))] += span.len;
            rest = rest.saturating_sub(span.len);
        }
        let density = file.density_of_rest();
        if density > 0.0 {
            bytes[class(density)] += rest;
        }
    }
    let mut taken = 0;
    for index in (0..WORTH_CLASSES).rev() {
        taken += bytes[index];
        if taken >= room {
            return (index as f64 / WORTH_STEPS - WORTH_OCTAVES).exp2();
        }
    }
    f64::MIN_POSITIVE
}

/// What of a file to copy.
#[derive(Clone, Debug, PartialEq)]
pub struct CopyPlan {
    /// Start and length of each range, in order.
    pub ranges: Vec<(u64, u64)>,
    /// Whether that is the whole file.
    pub whole: bool,
    /// Aged accesses that the copy would serve.
    pub reads: f64,
}

impl CopyPlan {
    /// All of a file.
    #[must_use]
    pub fn whole(file: &FileReads) -> Self {
        Self { ranges: vec![(0, file.len)], whole: true, reads: file.heat() }
    }

    /// Bytes that are copied.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.ranges.iter().map(|range| range.1).sum()
    }
}

/// Chooses what of a file to copy: the parts that have `worth` accesses per byte ([`worth`]), or all of it. None if nothing is worth it.
#[must_use]
pub fn plan(file: &FileReads, worth: Worth, by: CacheBy) -> Option<CopyPlan> {
    let heat = file.heat();
    if heat <= 0.0 || file.len == 0 {
        return None;
    }
    let is_whole = match by {
        CacheBy::File => true,
        CacheBy::Adaptive => {
            let rest = file.density_of_rest() >= worth.density && file.len <= worth.room;
            rest || file.overlaps()
        }
        CacheBy::Range => file.spans.is_empty(),
    };
    if is_whole {
        let is_worth = density(heat, file.len) >= worth.density || by == CacheBy::File;
        return is_worth.then(|| CopyPlan::whole(file));
    }
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for span in &file.spans {
        let end = (span.start + span.len).min(file.len);
        if span.start >= end || file.density_of(span) < worth.density {
            continue;
        }
        match ranges.last_mut() {
            Some(last) if last.0 + last.1 >= span.start => {
                last.1 = last.1.max(end - last.0);
            }
            _ => ranges.push((span.start, end - span.start)),
        }
    }
    let reads = file.served_by(&ranges);
    let plan = CopyPlan { whole: ranges == [(0, file.len)], ranges, reads };
    if by == CacheBy::Adaptive && plan.bytes() as f64 > RANGES_PART_MAX * file.len as f64 {
        return Some(CopyPlan::whole(file));
    }
    (!plan.ranges.is_empty()).then_some(plan)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(file: u64, heat: f64) -> Candidate {
        Candidate { file, heat, len: 10, bytes: 10 }
    }

    fn held(number: u64, heat: f64) -> Held {
        Held { number, is_file: false, heat, len: 10 }
    }

    fn run(room: i64, candidates: &[Candidate], held: &[Held]) -> Vec<CacheAction> {
        choose(&CacheInput { room, wanted: true, demotes: true, slots: 8, candidates, held })
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
            let candidates = [Candidate { file: 1, heat, len, bytes: len }];
            let held = [Held { number: 10, is_file: false, heat: other, len }];
            !choose(&CacheInput {
                room: 0,
                wanted: true,
                demotes: true,
                slots: 1,
                candidates: &candidates,
                held: &held,
            })
            .is_empty()
        };
        assert!(!replaces(6.0, 3.0, 10), "twice as hot, but of few accesses");
        assert!(replaces(600.0, 300.0, 10));
        assert!(replaces(6000.0, 5500.0, 10), "a tenth, of many");
        assert!(!replaces(6000.0, 5500.0, 64 << 20), "16,384 blocks are not won back");
        assert!(replaces(60_000.0, 55_000.0, 64 << 20));
        // A copy of half the length that has half of the accesses is as hot.
        let half = Held { number: 10, is_file: false, heat: 45.0, len: 5 };
        assert_eq!(run(5, &[candidate(1, 90.0)], &[half]), []);
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
        assert_eq!(run(-15, &[], &[file(10, 1.0), held(11, 2.0)]), [CacheAction::Evict(11)]);
        assert_eq!(run(0, &[candidate(1, 9.0)], &[file(10, 8.0)]), [], "about as hot");
    }

    #[test]
    fn no_file_leaves_where_the_share_of_copies_is_used_up() {
        let held = [Held { is_file: true, ..held(10, 1.0) }, held(11, 100.0)];
        let candidates = [candidate(1, 900.0)];
        let input = CacheInput {
            room: 0,
            wanted: true,
            demotes: false,
            slots: 8,
            candidates: &candidates,
            held: &held,
        };
        assert_eq!(choose(&input), [CacheAction::Replace(11), CacheAction::Copy(1)]);
    }

    #[test]
    fn files_get_their_room_back_even_when_no_copies_are_wanted() {
        let held = [held(10, 3.0), held(11, 1.0), held(12, 2.0)];
        let input = CacheInput {
            room: -15,
            wanted: false,
            demotes: true,
            slots: 8,
            candidates: &[],
            held: &held,
        };
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
                        held.push(Held { number, is_file: false, heat: 5.0, len: 10 });
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

    /// A file of 64 ranges of 1,000 bytes with so many reads.
    fn file(reads: &[(u64, u32)]) -> FileReads {
        let span = |&(index, reads): &(u64, u32)| Span { start: index * 1000, len: 1000, reads };
        let spans = reads.iter().map(span).collect();
        FileReads { len: 64_000, inherited: 0.0, ranges: 64, spans, trust: 1.0 }
    }

    #[test]
    fn the_parts_that_fill_the_room_are_copied_in_whatever_file_they_lie() {
        let hot = file(&[(3, 500), (4, 300), (40, 20), (41, 2)]);
        let cold = file(&[(7, 19), (8, 1)]);
        let files = [hot, cold, FileReads { len: 64_000, ..FileReads::default() }];
        let planned = |room, by| {
            let worth = worth(files.iter(), room);
            files.each_ref().map(|file| plan(file, worth, by).map(|plan| plan.ranges))
        };
        let two = Some(vec![(3000, 2000)]);
        assert_eq!(planned(2000, CacheBy::Adaptive), [two, None, None]);
        let three = Some(vec![(3000, 2000), (40_000, 1000)]);
        let other = Some(vec![(7000, 1000)]);
        assert_eq!(planned(4000, CacheBy::Adaptive), [three, other.clone(), None]);
        let most = Some(vec![(3000, 2000), (40_000, 2000)]);
        assert_eq!(planned(5000, CacheBy::Range), [most, other, None]);
        let all = Some(vec![(3000, 2000), (40_000, 2000)]);
        let both = Some(vec![(7000, 2000)]);
        assert_eq!(planned(100_000, CacheBy::Adaptive), [all, both, None], "more than was counted");
        let whole = Some(vec![(0, 64_000)]);
        assert_eq!(planned(128_000, CacheBy::Adaptive), [whole.clone(), whole.clone(), None]);
        assert_eq!(planned(4000, CacheBy::File), [whole.clone(), whole, None]);
    }

    #[test]
    fn a_file_that_is_evenly_hot_is_copied_whole_and_accesses_of_unknown_place_are_everywhere() {
        let even: Vec<_> = (0..64).map(|index| (index, 10)).collect();
        let plan_of =
            |file: &FileReads| plan(file, Worth { density: 0.01, room: 64_000 }, CacheBy::Adaptive);
        assert!(plan_of(&file(&even)).is_some_and(|plan| plan.whole && plan.reads == 640.0));
        assert_eq!(plan_of(&file(&even[..32])).map(|plan| plan.bytes()), Some(32_000));
        let inherited = FileReads { inherited: 640.0, ..file(&[]) };
        assert!(plan_of(&inherited).is_some_and(|plan| plan.whole), "nothing else is known");
        let cooler = FileReads { inherited: 320.0, ..file(&[(5, 5), (6, 4)]) };
        let plan = plan_of(&cooler).expect("a part is worth it");
        assert_eq!((plan.ranges, plan.reads), (vec![(5000, 1000)], 10.0));
    }

    #[test]
    fn spans_that_overlap_are_copied_once_and_served_only_where_all_of_them_lies() {
        let span = |start, len, reads| Span { start, len, reads };
        let spans = vec![span(900, 4200, 10), span(5000, 4200, 10), span(20_000, 100, 3)];
        let file = FileReads { len: 20_050, spans, ..file(&[]) };
        let plan =
            plan(&file, Worth { density: 0.002, room: 64_000 }, CacheBy::Range).expect("something");
        assert_eq!(plan.ranges, [(900, 8300), (20_000, 50)], "to the end of the file at most");
        assert_eq!(file.served_by(&[(0, 5050), (20_000, 100)]), 3.0);
        assert_eq!(file.served_by(&[(0, 5100)]), 10.0);
        assert_eq!(file.beside(&[(0, 5100)]).heat(), 13.0, "what a faster copy leaves");
    }

    #[test]
    fn a_file_of_which_long_parts_are_read_is_judged_as_a_whole() {
        let scanned = |reads| {
            let span = |index: u64| Span { start: index * 1000, len: 16_000, reads };
            FileReads { spans: (0..20).map(span).collect(), ..file(&[]) }
        };
        let files = [scanned(30), scanned(10), file(&[(3, 40), (5, 2)])];
        let worth = worth(files.iter(), 65_000);
        let plans = files.each_ref().map(|file| plan(file, worth, CacheBy::Adaptive));
        let bytes = plans.map(|plan| plan.map(|plan| (plan.whole, plan.bytes())));
        assert_eq!(bytes, [Some((true, 64_000)), None, Some((false, 1000))]);
    }

    #[test]
    fn counts_are_believed_as_far_as_chance_does_not_explain_them() {
        let mut rng = archipelago_base::random::Rng::with_seed(3);
        let mut draw = |hot: u64| {
            let mut counts = std::collections::BTreeMap::new();
            for _ in 0..256 {
                let index = if rng.u64(..100) < hot { rng.u64(..8) } else { rng.u64(..64) };
                *counts.entry(index).or_insert(0) += 1;
            }
            file(&counts.into_iter().collect::<Vec<_>>())
        };
        let alike: Vec<_> = (0..50).map(|_| draw(0)).collect();
        assert!(trust(alike.iter()) < 0.1, "{}", trust(alike.iter()));
        let skewed: Vec<_> = (0..50).map(|_| draw(50)).collect();
        assert!(trust(skewed.iter()) > 0.8, "{}", trust(skewed.iter()));
        assert_eq!(trust([].iter()), 0.0);
        // Of alike blocks the one that was read is no better than the next; whole files are judged.
        let doubtful = |reads| FileReads { trust: 0.0, ..file(reads) };
        let files = [doubtful(&[(3, 4), (9, 1)]), doubtful(&[(1, 1), (2, 1)])];
        let worth = worth(files.iter(), 64_000);
        let whole = |file| plan(file, worth, CacheBy::Adaptive).map(|plan| plan.whole);
        assert_eq!((whole(&files[0]), whole(&files[1])), (Some(true), None));
        assert_eq!(files[0].served_by(&[(0, 32_000)]), 2.5);
    }

    #[test]
    fn a_copy_is_renewed_for_a_clear_gain_that_pays() {
        assert!(!is_worth_renewing(12.0, 9.0, 4096), "chance");
        assert!(is_worth_renewing(480.0, 340.0, 30 * 4096));
        assert!(!is_worth_renewing(480.0, 340.0, 64 << 20), "it would cost more than it brings");
        assert!(!is_worth_renewing(340.0, 480.0, 4096));
    }

    #[test]
    fn a_device_that_serves_enough_wants_no_copies() {
        assert!(wants_copies(80, 100, 0.95));
        assert!(!wants_copies(95, 100, 0.95));
        assert!(!wants_copies(0, READS_MIN - 1, 0.95), "too little is known");
    }
}
