//! Rows of single features: redundancy (Figure 14), the log (Figure 15) and space (Figure 16).

use super::super::link::{Card, Link};
use super::super::modes::{Mode, Workload};
use super::super::plan::{Group, Step};
use super::super::rows::{Claim, Facts, Subject, times};
use super::super::run::Run;
use super::super::words::{BOUND_STRETCH, BOUND_TIGHT, promised};
use super::{rates, settled};
use crate::claim::median;
use crate::terark_engine::run::Collection;

/// Cause of rows of the log buffer with large values.
const CONNECTIONS_FULL: &str =
    "The connections to the three nodes of the log are full, with the buffer and without it.";
/// Share of the gain of the model that adaptive writing must reach.
const GAIN_SHARE_MIN: f64 = 0.7;
/// Share of the space that collection in batches must save over collection key by key.
const BY_KEY_SAVED_MIN: f64 = 0.12;

pub(super) fn redundancy() -> Vec<Claim> {
    use Mode::{Dr, SeparatedEc, SeparatedR3};
    let of = |workload: Workload| {
        let by_class = Subject { group: Group::Redundancy, workload, mode: Dr };
        let coded = Subject { mode: SeparatedEc, ..by_class };
        let insert = |subject| settled(subject, SeparatedR3, "insert until settled", Step::Load);
        let update = |subject| settled(subject, SeparatedR3, "update until settled", Step::Update);
        let read = |subject| rates(subject, SeparatedR3, "read", Step::Read);
        let lost =
            |subject| rates(subject, SeparatedR3, "read with one node lost", Step::DegradedRead);
        vec![
            insert(by_class).at_least(workload.pick([1.25, 1.2, 1.1])).paper("+22.7 % to +32.0 %"),
            insert(coded).paper("+12.0 % to +21.7 %"),
            update(by_class).paper("+22.7 % to +32.0 %"),
            update(coded).paper("+12.0 % to +21.7 %"),
            read(by_class).at_least(0.97).paper("close to R3"),
            read(coded).paper(workload.pick(["", "−12.9 %", "−15.2 %"])),
            lost(by_class)
                .at_least(0.97)
                .bound(|_| Some("0.67× if the card is full: 1.5 times the bytes".to_owned())),
            lost(coded),
        ]
    };
    Workload::ALL.into_iter().flat_map(of).collect()
}

/// Share of the time of an append that the model of the design saves, for the groups of the serial
/// log.
fn model_gain(facts: &Facts<'_>, workload: Workload, card: Card, step: Step) -> Option<f64> {
    let sizes: Vec<f64> =
        facts.of(workload, Mode::Dr, card).filter_map(|run| run.log_message_bytes(step)).collect();
    let bytes = median(&sizes)?;
    Some(Link::new(card, facts.flags.scale)?.gain_of_segments(bytes))
}

pub(super) fn log() -> Vec<Claim> {
    let of = |(workload, card): (Workload, Card)| {
        let adaptive = Subject { group: Group::Log, workload, mode: Mode::AllOn };
        let is_large = workload != Workload::Pareto1k;
        let least = if is_large && card == Card::Fourfold { 1.08 } else { 0.97 };
        let latency =
            move |_: &Facts<'_>, run: &Run| Some(1e3 * run.latency_s(Step::Load, "write")?);
        let mut rows = vec![
            rates(adaptive, Mode::Dr, "insert", Step::Load)
                .on(card)
                .at_least(least)
                .paper(workload.pick(["+19.6 %", "+6.1 %", "negligible"])),
            Claim::new(adaptive, "mean latency of a write, ms", "ms", latency)
                .over(Mode::Dr, latency)
                .on(card)
                .bound(move |facts| {
                    model_gain(facts, workload, card, Step::Load).map(|gain| times(1.0 - gain))
                })
                .paper(workload.pick(["−17.4 %", "−5.1 %", "−3.1 %"])),
        ];
        if is_large && card == Card::Fourfold {
            let share = move |facts: &Facts<'_>, run: &Run| {
                let serial: Vec<f64> = facts
                    .of(workload, Mode::Dr, card)
                    .filter_map(|run| run.latency_s(Step::Load, "write"))
                    .collect();
                let serial = median(&serial)?;
                let gain = model_gain(facts, workload, card, Step::Load);
                let gain = gain.filter(|gain| *gain > 0.0)?;
                Some((1.0 - run.latency_s(Step::Load, "write")? / serial) / gain)
            };
            let name = "saved latency over that of the model";
            rows.push(
                Claim::new(adaptive, name, "", share).on(card).not_below(GAIN_SHARE_MIN).cause(
                    "A write also waits for the group before it and for its place in the log.",
                ),
            );
        }
        rows
    };
    let cards = [Card::Fourfold, Card::Full];
    let all = cards.into_iter().flat_map(|card| Workload::ALL.map(|workload| (workload, card)));
    all.flat_map(of).chain(cards.into_iter().flat_map(groups)).collect()
}

/// Rows that tell the gain of segments from that of pipelining. A thread that writes batches as
/// long as groups has one group under way at a time, and many threads have several.
fn groups(card: Card) -> Vec<Claim> {
    let workload = Workload::Fixed16k;
    let subject = |mode| Subject { group: Group::Log, workload, mode };
    let several = move |_: &Facts<'_>, run: &Run| run.rate(Step::LoopFill);
    let single = move |_: &Facts<'_>, run: &Run| run.rate(Step::SingleGroups);
    let pipelined = |mode: Mode| {
        let name = "insert, several groups under way over one at a time";
        Claim::new(subject(mode), name, "ops/s", several)
            .over(mode, single)
            .on(card)
            .bound(move |facts| pipelining_allows(facts, mode, card).map(times))
    };
    let name = "insert, one group under way at a time";
    vec![
        rates(subject(Mode::AllOn), Mode::Dr, name, Step::SingleGroups)
            .on(card)
            .bound(move |facts| {
                let gain = model_gain(facts, workload, card, Step::SingleGroups)?;
                Some(times(1.0 / (1.0 - gain)))
            })
            .paper("+19.6 %"),
        pipelined(Mode::Dr),
        pipelined(Mode::AllOn),
    ]
}

/// Highest speed-up by several groups under way that the fullest link allows, by what it carried
/// with one group at a time.
fn pipelining_allows(facts: &Facts<'_>, mode: Mode, card: Card) -> Option<f64> {
    let runs = facts.of(Workload::Fixed16k, mode, card);
    let share = |run: &Run| run.fullest_share(Step::SingleGroups, facts.flags.scale);
    let shares: Vec<f64> = runs.filter_map(share).collect();
    Some(1.0 / median(&shares).filter(|share| *share > 0.0)?)
}

/// Highest speed-up of inserts that the connections to the nodes of the log allow, if the bytes
/// stay the same.
fn connections_allow(facts: &Facts<'_>, workload: Workload) -> Option<f64> {
    let shares: Vec<f64> = facts
        .of(workload, Mode::Dr, Card::Full)
        .filter_map(|run| run.log_connection_share(Step::Load, facts.flags.scale))
        .collect();
    Some(1.0 / median(&shares).filter(|share| *share > 0.0)?)
}

pub(super) fn buffer() -> Vec<Claim> {
    let of = |workload: Workload| {
        let buffered = Subject { group: Group::Buffer, workload, mode: Mode::DrBuffered };
        let adaptive = Subject { mode: Mode::AllOnBuffered, ..buffered };
        vec![
            rates(buffered, Mode::Dr, "insert", Step::Load)
                .at_least(workload.pick([1.15, 1.15, 1.7]))
                .bound(move |facts| {
                    let card = workload.pick(["1.30×", "1.30×", "2.00×"]);
                    let allowed = times(connections_allow(facts, workload)?);
                    Some(format!("{allowed} by connections of the log; {card} in the design"))
                })
                .cause(workload.pick([CONNECTIONS_FULL, CONNECTIONS_FULL, ""]))
                .paper(workload.pick(["+29.8 %", "+29.8 %", "+134 %"])),
            rates(adaptive, Mode::DrBuffered, "insert", Step::Load).paper("+9.5 %"),
        ]
    };
    Workload::ALL.into_iter().flat_map(of).collect()
}

pub(super) fn space() -> Vec<Claim> {
    use Mode::{AllOn, AllOnByKey, InlineEc, InlineR3, SeparatedEc, SeparatedR3};
    let of = |workload: Workload| {
        let all_on = Subject { group: Group::Space, workload, mode: AllOn };
        let mib = |_: &Facts<'_>, run: &Run| Some(run.stored_bytes()? / 1_048_576.0);
        let row = |peer| Claim::new(all_on, "stored bytes", "MiB", mib).over(peer, mib);
        let stored = move |mode: Mode, amplification: f64, facts: &Facts<'_>| {
            let redundancy = mode.redundancy();
            let share = workload.share_in_levels(facts.flags);
            let tables = if mode.is_separated() { share } else { 1.0 };
            amplification * (tables * redundancy.tables + (1.0 - tables) * redundancy.values)
        };
        let least = move |peer: Mode, amplification: f64| {
            move |facts: &Facts<'_>| {
                let own = stored(AllOn, BOUND_TIGHT, facts);
                Some(times(own / stored(peer, amplification, facts)))
            }
        };
        vec![
            largest_space(all_on, BOUND_TIGHT),
            row(InlineR3)
                .at_most(workload.pick([0.62, 0.62, 0.70]))
                .bound(least(InlineR3, 1.12))
                .paper("−30.4 % to −40.1 %"),
            row(SeparatedR3)
                .at_most(0.5)
                .bound(least(SeparatedR3, 1.96))
                .paper("−51.9 % to −77.3 %"),
            row(SeparatedEc)
                .at_most(1.0)
                .bound(least(SeparatedEc, 1.96))
                .paper("−7.9 % to −28.4 %"),
            row(InlineEc).paper("more than RocksDB-EC"),
            row(AllOnByKey)
                .at_most(1.0 - BY_KEY_SAVED_MIN)
                .bound(|_| Some("1.00× where the other collection keeps up".to_owned()))
                .paper("−12 % to −28 %")
                .cause(
                    "Both collections keep the same bound on space as long as both keep up with \
                     the updates.",
                ),
            rates(all_on, InlineR3, "updates under the limit", Step::Throttled),
            Claim::new(
                Subject { mode: AllOnByKey, ..all_on },
                "read calls of garbage collection per record",
                "",
                |_, run| Collection::of(run.main(Step::Throttled)?)?.calls_per_record(),
            ),
        ]
    };
    Workload::ALL
        .into_iter()
        .flat_map(|workload| [of(workload), stretch(workload)])
        .flatten()
        .collect()
}

/// Row about the largest space amplification of throttled updates, which must stay within `limit`.
fn largest_space(subject: Subject, limit: f64) -> Claim {
    let workload = subject.workload;
    let name = "largest space amplification at a sample";
    let largest =
        move |facts: &Facts<'_>, run: &Run| run.space_max(workload.live_bytes(facts.flags));
    Claim::new(subject, name, "", largest).each_within(limit).bound(move |facts| {
        let promised = promised(facts.flags, workload, limit);
        let is_small = promised > limit * 1.0001;
        Some(match is_small {
            true => format!("≥ 1.0; the engine promises {promised:.2} for so few bytes"),
            false => "≥ 1.0".to_owned(),
        })
    })
}

/// Rows of the tighter bound on space, and of its price.
fn stretch(workload: Workload) -> Vec<Claim> {
    let subject = Subject { group: Group::Space, workload, mode: Mode::AllOnStretch };
    vec![
        largest_space(subject, BOUND_STRETCH),
        rates(subject, Mode::AllOn, "updates under the limit", Step::Throttled)
            .bound(|_| Some(times(1.0))),
    ]
}
