use super::*;

fn candidate(file: u64, heat: f64) -> Candidate {
    Candidate { file, heat, variance: 0.5, len: 10, bytes: 10 }
}

fn held(number: u64, heat: f64) -> Held {
    Held { number, is_file: false, heat, variance: 0.5, len: 10 }
}

/// An input that limits copies by slots only.
fn input<'a>(room: i64, candidates: &'a [Candidate], held: &'a [Held]) -> CacheInput<'a> {
    let (refill, coming, waiting) = (Refill::default(), 0, 0);
    let (wanted, demotes, leave, slots) = (true, true, 8, 8);
    CacheInput { room, wanted, demotes, leave, slots, refill, coming, waiting, candidates, held }
}

fn run(room: i64, candidates: &[Candidate], held: &[Held]) -> Vec<CacheAction> {
    choose(&input(room, candidates, held))
}

#[test]
fn hottest_candidates_that_fit_come_first() {
    let candidates = [candidate(1, 5.0), candidate(2, 9.0), candidate(3, 0.0)];
    assert_eq!(run(25, &candidates, &[]), [CacheAction::Copy(2), CacheAction::Copy(1)]);
    assert_eq!(run(15, &candidates, &[]), [CacheAction::Copy(2)]);
    assert_eq!(run(5, &candidates, &[]), []);
}

#[test]
fn only_clearly_colder_copies_are_replaced() {
    let actions = run(0, &[candidate(1, 90.0)], &[held(10, 10.0), held(11, 80.0)]);
    assert_eq!(actions, [CacheAction::Replace(10), CacheAction::Copy(1)]);
    assert_eq!(run(0, &[candidate(1, 90.0)], &[held(10, 70.0), held(11, 80.0)]), []);
}

#[test]
fn replacement_needs_certainty_and_payback() {
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
    // A copy of half the length with half of the accesses is equally hot.
    let half = Held { len: 5, ..held(10, 45.0) };
    assert_eq!(run(5, &[candidate(1, 90.0)], &[half]), []);
}

#[test]
fn won_bytes_fill_free_room_and_replace_nothing() {
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
fn cold_file_is_demoted_and_never_dropped() {
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
fn no_file_is_demoted_when_the_share_of_copies_is_used() {
    let held = [Held { is_file: true, ..held(10, 1.0) }, held(11, 100.0)];
    let candidates = [candidate(1, 900.0)];
    let input = CacheInput { demotes: false, ..input(0, &candidates, &held) };
    assert_eq!(choose(&input), [CacheAction::Replace(11), CacheAction::Copy(1)]);
}

#[test]
fn copies_are_evicted_for_files_even_if_none_are_wanted() {
    let held = [held(10, 3.0), held(11, 1.0), held(12, 2.0)];
    let input = CacheInput { wanted: false, ..input(-15, &[], &held) };
    assert_eq!(choose(&input), [CacheAction::Evict(11), CacheAction::Evict(12)]);
}

#[test]
fn equally_hot_files_do_not_evict_each_other() {
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
fn fresh_counts_among_many_files_need_a_larger_gain() {
    let hotter = |variance, sure| {
        let (candidate, held) = (candidate(1, 460.0), held(10, 340.0));
        is_clearly_hotter(&Candidate { variance, ..candidate }, &Held { variance, ..held }, sure)
    };
    assert!(hotter(0.5, 4.0), "120 of a deviation of 20");
    assert!(hotter(0.5, 5.5) && hotter(1.0, 4.0));
    assert!(!hotter(1.0, 5.5), "of a deviation of 28");
    assert_eq!([0, 1, 50].map(sure), [4.0; 3]);
    assert!((5.5..5.6).contains(&sure(300 * 90)), "{}", sure(300 * 90));
    let many: Vec<Candidate> = (0..300).map(|file| candidate(file, 340.0)).collect();
    let mut held: Vec<Held> = (0..90).map(|number| held(number, 240.0)).collect();
    // A difference of 100 is 5.9 standard deviations of 17, which is enough among 27,000
    // comparisons. A difference of 85 is not, but it is enough for a single comparison.
    let coldest = Held { heat: 255.0, ..held[0] };
    assert_eq!(run(0, &many[..1], &[coldest]).len(), 2, "85: five deviations");
    held[0] = coldest;
    held.iter_mut().for_each(|held| held.heat = held.heat.max(255.0));
    assert_eq!(run(0, &many, &held), [], "so many differ by chance");
}

#[test]
fn copies_leave_the_room_that_files_will_take() {
    let candidates = [candidate(1, 50.0)];
    let chosen = |room, coming, waiting, held| {
        choose(&CacheInput { coming, waiting, ..input(room, &candidates, held) })
    };
    assert_eq!(chosen(15, 5, 0, &[]), [CacheAction::Copy(1)]);
    assert_eq!(chosen(15, 6, 0, &[]), []);
    let warm = [held(10, 49.0)];
    assert_eq!(chosen(0, 6, 0, &warm), [], "nor is a copy dropped for them before they come");
    // Queued copies take the free room, and nothing else.
    assert_eq!(chosen(15, 0, 5, &[]), [CacheAction::Copy(1)]);
    assert_eq!(chosen(15, 0, 6, &[]), []);
    let cold = [held(10, 1.0), held(11, 1.0)];
    let one = [CacheAction::Replace(11), CacheAction::Copy(1)];
    assert_eq!(chosen(5, 0, 1000, &cold), one);
    assert_eq!(chosen(0, 0, 1000, &cold), one);
}

#[test]
fn copy_is_renewed_for_a_clear_gain_that_pays() {
    let renewed = |planned, held, bytes| is_worth_renewing(planned, held, bytes, 0.5, 1);
    assert!(!renewed(12.0, 9.0, 4096), "chance");
    assert!(renewed(480.0, 340.0, 30 * 4096));
    assert!(!renewed(480.0, 340.0, 64 << 20), "it would cost more than it brings");
    assert!(!renewed(340.0, 480.0, 4096));
}

#[test]
fn device_that_serves_its_target_wants_no_copies() {
    assert!(wants_copies(80, 100, 0.95));
    assert!(!wants_copies(95, 100, 0.95));
    assert!(!wants_copies(0, READS_MIN - 1, 0.95), "too little is known");
}
