//! Rows of inserts, updates, reads and scans (Figures 11 and 12), and of YCSB (Figure 13).

use super::super::modes::{Mode, Workload};
use super::super::plan::{Course, Group, Step};
use super::super::rows::{Claim, Facts, Subject, times};
use super::super::run::Run;
use super::{BOUND_SHARE_MIN, rates, settled, share_of_bound};

pub(super) fn inserts() -> Vec<Claim> {
    use Mode::{AllOn, InlineEc, InlineR3, SeparatedEc, SeparatedR3};
    let group = Group::Insert;
    let of = |workload: Workload| {
        let all_on = Subject { group, workload, mode: AllOn };
        let row = |peer| settled(all_on, peer, "insert until settled", Step::Load);
        let sent = move |facts: &Facts<'_>, run: &Run| {
            let user = run.user_bytes(Step::Load, facts.record_bytes(workload))?;
            Some(run.sent_bytes(Step::Load, None)? / user)
        };
        let flushed = |_: &Facts<'_>, run: &Run| Some(run.flush_rate(Step::Load)? / 1e6);
        let compaction = Claim::new(all_on, "share of compaction on the card", "", |_, run| {
            let share = run.sent_bytes(Step::Load, Some("compaction"))?;
            Some(share / run.sent_bytes(Step::Load, None)?)
        });
        let compaction = match workload {
            Workload::Pareto1k => compaction,
            _ => compaction.within(0.15),
        };
        vec![
            row(InlineR3).at_least(workload.pick([4.0, 3.5, 2.4])).paper("2.72× to 6.70×"),
            share_of_bound(all_on, InlineR3, Step::Load).not_below(BOUND_SHARE_MIN),
            row(SeparatedR3).at_least(workload.pick([1.25, 1.2, 1.1])).paper("1.20× to 1.64×"),
            row(InlineEc),
            row(SeparatedEc),
            Claim::new(all_on, "bytes on the card per user byte", "", sent)
                .over(InlineR3, sent)
                .bound(move |facts| {
                    let bound = facts.card_bound(workload, AllOn, InlineR3, Step::Load)?;
                    Some(times(1.0 / bound))
                })
                .paper("−28.3 % (BlobDB)"),
            Claim::new(all_on, "bytes that flushes write", "MB/s", flushed)
                .over(SeparatedR3, flushed)
                .at_least(1.25)
                .bound(move |facts| {
                    facts.card_bound(workload, AllOn, SeparatedR3, Step::Load).map(times)
                })
                .paper("+37.6 %"),
            compaction,
        ]
    };
    Workload::ALL.into_iter().flat_map(of).collect()
}

pub(super) fn updates() -> Vec<Claim> {
    use Mode::{AllOn, InlineEc, InlineR3, SeparatedEc, SeparatedR3};
    let of = |workload: Workload| {
        let all_on = Subject { group: Group::Update, workload, mode: AllOn };
        let row = |peer| settled(all_on, peer, "update until settled", Step::Update);
        vec![
            row(InlineR3).at_least(workload.pick([3.0, 2.7, 1.9])).paper("2.10× to 6.02×"),
            row(SeparatedR3).at_least(workload.pick([1.3, 1.25, 1.1])).paper("1.21× to 1.63×"),
            row(InlineEc),
            row(SeparatedEc),
        ]
    };
    Workload::ALL.into_iter().flat_map(of).collect()
}

pub(super) fn reads() -> Vec<Claim> {
    use Mode::{AllOn, InlineR3, SeparatedR3};
    let of = |workload: Workload| {
        let all_on = Subject { group: Group::Read, workload, mode: AllOn };
        let benchmark = format!("{}read", workload.name());
        let with = move |_: &Facts<'_>, run: &Run| run.rate_of(Step::Update, &benchmark);
        let without = |_: &Facts<'_>, run: &Run| run.rate(Step::Read);
        let name = "read with the index in memory over without";
        vec![
            Claim::new(all_on, name, "ops/s", with)
                .over(AllOn, without)
                .at_least(workload.pick([0.97, 1.2, 1.15]))
                .bound(move |_| Some(workload.pick(["2.00×", "1.50×", "1.50×"]).to_owned()))
                .paper(workload.pick(["", "+32.1 %", "+25.7 %"])),
            rates(all_on, InlineR3, "read", Step::Read).paper("comparable without the index"),
            rates(all_on, SeparatedR3, "read", Step::Read),
        ]
    };
    Workload::ALL.into_iter().flat_map(of).collect()
}

/// The figure of runs of one course alone.
fn within_course(course: Course, step: Step) -> impl Fn(&Facts<'_>, &Run) -> Option<f64> + Copy {
    move |_, run| if run.cell.course == course { run.rate(step) } else { None }
}

pub(super) fn scans() -> Vec<Claim> {
    use Mode::{AllOn, AllOnNoPrefetch, InlineR3, SeparatedR3};
    let of = |workload: Workload| {
        let all_on = Subject { group: Group::Scan, workload, mode: AllOn };
        let whole = within_course(Course::Whole, Step::Scan);
        let row = |peer| Claim::new(all_on, "scan", "ops/s", whole).over(peer, whole);
        vec![
            row(InlineR3)
                .at_least(workload.pick([0.95, 0.95, 0.6]))
                .bound(|_| Some("about 1×: the same bytes arrive".to_owned()))
                .paper(workload.pick(["similar", "similar", "lower"])),
            row(SeparatedR3).paper("comparable"),
        ]
    };
    let mut rows: Vec<Claim> = Workload::ALL.into_iter().flat_map(of).collect();
    let workload = Workload::Fixed16k;
    let subject = Subject { group: Group::Scan, workload, mode: AllOn };
    let alone = within_course(Course::Scan, Step::Scan);
    rows.push(
        Claim::new(subject, "scan", "ops/s", alone).over(AllOnNoPrefetch, alone).at_least(3.0),
    );
    rows
}

pub(super) fn ycsb() -> Vec<Claim> {
    let workload = Workload::Fixed16k;
    let subject = Subject { group: Group::Ycsb, workload, mode: Mode::AllOn };
    let of = |(letter, least): (char, f64)| {
        let name = format!("ycsb{letter}");
        let rate = move |_: &Facts<'_>, run: &Run| run.rate_of(Step::Ycsb, &name);
        let title = format!("YCSB {}", letter.to_ascii_uppercase());
        let row =
            |peer| Claim::new(subject, &title, "ops/s", rate.clone()).over(peer, rate.clone());
        let paper = if letter == 'a' { "+45.2 % over TerarkDB" } else { "" };
        [row(Mode::SeparatedR3).at_least(least).paper(paper), row(Mode::InlineR3)]
    };
    let targets = [('a', 1.25), ('b', 1.05), ('c', 1.05), ('d', 1.05), ('e', 0.95), ('f', 1.25)];
    targets.into_iter().flat_map(of).collect()
}
