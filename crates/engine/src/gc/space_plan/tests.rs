use archipelago_base::random::Rng;

use super::*;

const MIB: u64 = 1 << 20;

#[test]
fn rewriting_agrees_with_the_table_of_the_design() {
    let table =
        [(1.10, 4.7), (1.15, 3.0), (1.20, 2.2), (1.25, 1.7), (1.35, 1.1), (1.5, 0.72), (2.0, 0.26)];
    for (amplification, expected) in table {
        let rewritten = rewritten_per_byte(amplification - 1.0);
        let error = (rewritten / expected - 1.0).abs();
        assert!(error < 0.03, "{amplification}: {rewritten}, the table has {expected}");
    }
    assert_eq!(rewritten_per_byte(0.0), f64::INFINITY);
    assert!(rewritten_per_byte(1e9) < 1e-6);
}

fn plan(amplification_max: f64, key_share: f64) -> SpacePlan {
    let (value_redundancy, key_redundancy) = (1.0, 1.0);
    let input = PlanInput { amplification_max, key_share, value_redundancy, key_redundancy };
    space_plan(&input).expect("there is a bound")
}

#[test]
fn plan_divides_the_bound_at_least_cost() {
    for amplification in [1.05, 1.1, 1.25, 1.5, 2.0, 4.0] {
        for key_share in [0.0, 0.004, 0.028, 0.14, 0.5] {
            let plan = plan(amplification, key_share);
            let sum = plan.exposed_share + plan.hidden_share;
            assert!((sum - (amplification - 1.0)).abs() < 1e-9, "{amplification}: {plan:?}");
            assert!(plan.hidden_share >= HIDDEN_SHARE_MIN && plan.exposed_share > 0.0);
            let cost =
                |hidden: f64| rewritten_per_byte(amplification - 1.0 - hidden) + key_share / hidden;
            let chosen = cost(plan.hidden_share);
            for step in 0..1000 {
                let hidden = 0.01 + (amplification - 1.01) * f64::from(step) / 1000.0;
                assert!(cost(hidden) >= chosen * 0.98, "{amplification} {key_share}: {hidden}");
            }
        }
    }
    assert!(plan(1.5, 0.14).hidden_share > plan(1.5, 0.004).hidden_share);
    let unbounded = PlanInput { amplification_max: 0.0, ..PLAIN };
    assert_eq!(space_plan(&unbounded), None);
}

const PLAIN: PlanInput = PlanInput {
    amplification_max: 1.5,
    key_share: 0.004,
    value_redundancy: 1.0,
    key_redundancy: 1.0,
};

#[test]
fn replicated_tables_get_more_room_for_hidden_garbage() {
    let single = space_plan(&PLAIN).expect("there is a bound");
    let tripled = PlanInput { key_redundancy: 3.0, ..PLAIN };
    let tripled = space_plan(&tripled).expect("there is a bound");
    assert!(tripled.hidden_share > single.hidden_share);
}

#[test]
fn urgency_grows_with_hidden_garbage_over_the_plan() {
    let plan = SpacePlan { exposed_share: 0.3, hidden_share: 0.2 };
    assert_eq!(plan.hidden_urgency(0, 0), 1.0);
    assert_eq!(plan.hidden_urgency(20, 100), 1.0);
    assert_eq!(plan.hidden_urgency(40, 100), 2.0);
    assert_eq!(plan.exposed_bytes_max(1000), 300);
}

/// A family under a bound of 1.5 with 100 MiB of live data and `garbage` MiB of exposed garbage.
fn margin(garbage: u64, debt: &SpaceDebt) -> Margin {
    let usage = SpaceUsage {
        version_bytes: (100 + garbage) * MIB,
        exposed_bytes: garbage * MIB,
        ..SpaceUsage::default()
    };
    let slack = SpaceSlack { value_file_bytes: 50 * MIB, ..SpaceSlack::default() };
    Margin::new(1.5, &usage, &slack, debt)
}

#[test]
fn writers_slow_down_from_80_percent_and_stop_at_the_bound() {
    let limit = |garbage| writer_limit(&margin(garbage, &SpaceDebt::default()), SpaceWork::Exists);
    assert_eq!(margin(30, &SpaceDebt::default()).bytes(), 70 * MIB as i64);
    assert_eq!(limit(79), WriterLimit::None);
    for garbage in [80, 99, 100, 150] {
        let WriterLimit::Graded(limit) = limit(garbage) else { panic!("{garbage} is graded") };
        assert_eq!(limit.used_bytes, garbage * MIB);
        assert!(limit.slowdown_bytes <= 80 * MIB && limit.slowdown_bytes > 79 * MIB);
        assert_eq!(limit.stop_bytes, 100 * MIB);
    }
}

#[test]
fn writers_go_on_when_nothing_can_be_collected() {
    let limit = |garbage| writer_limit(&margin(garbage, &SpaceDebt::default()), SpaceWork::Nothing);
    assert_eq!(limit(90), WriterLimit::None);
    assert_eq!(limit(100), WriterLimit::CannotKeep);
    assert_eq!(limit(200), WriterLimit::CannotKeep);
}

#[test]
fn event_becomes_debt_above_90_percent() {
    let mut debt = SpaceDebt::default();
    debt.note(SpaceEvent::RangeDelete, &margin(10, &debt), &margin(85, &debt));
    assert_eq!((debt.bytes(), debt.last_event()), (0, None));
    debt.note(SpaceEvent::RangeDelete, &margin(10, &debt), &margin(300, &debt));
    assert!((debt.bytes() as i64 - 210 * MIB as i64).abs() < 1000);
    assert_eq!(debt.last_event().map(SpaceEvent::name), Some("range_delete"));
    let left = margin(300, &debt).bytes();
    assert!((left - 10 * MIB as i64).abs() < 1000, "a tenth of the allowance is left");
    // Writers have used the tenth: the next event adds only its own bytes.
    debt.note(SpaceEvent::Ingestion, &margin(310, &debt), &margin(320, &debt));
    assert!((margin(320, &debt).bytes()).abs() < 1000);
}

#[test]
fn every_event_has_a_name_of_its_own() {
    let events = [
        SpaceEvent::RangeDelete,
        SpaceEvent::Ingestion,
        SpaceEvent::GarbageFound,
        SpaceEvent::SnapshotReleased,
        SpaceEvent::Opened,
    ];
    let names: std::collections::HashSet<&str> = events.iter().map(|event| event.name()).collect();
    assert_eq!(names.len(), events.len());
}

#[test]
fn half_of_what_is_freed_repays_debt() {
    let mut debt = SpaceDebt::default();
    debt.note(SpaceEvent::Opened, &margin(0, &debt), &margin(300, &debt));
    let (owed, left) = (debt.bytes(), margin(300, &debt).bytes());
    debt.repay(8 * MIB, &margin(292, &debt));
    assert_eq!(debt.bytes(), owed - 4 * MIB);
    assert_eq!(margin(292, &debt).bytes(), left + 4 * MIB as i64, "the other half is for writers");
    // Far below the thresholds, the debt lapses. Otherwise the bound would stay loosened for ever.
    debt.repay(8 * MIB, &margin(20, &debt));
    assert_eq!(debt.bytes(), 0);
}

/// A family whose bytes change as writes, flushes, compactions and collections do.
struct Model {
    usage: SpaceUsage,
    slack: SpaceSlack,
    debt: SpaceDebt,
    amplification_max: f64,
    /// Share of flushed bytes that is estimated to be hidden.
    shadow_share: f64,
    /// Bytes that the running collection frees when it ends.
    collected: Option<u64>,
}

impl Model {
    fn margin(&self) -> Margin {
        Margin::new(self.amplification_max, &self.usage, &self.slack, &self.debt)
    }

    /// Applies an event and adds to the debt what it puts over the bound.
    fn event(&mut self, event: SpaceEvent, apply: impl FnOnce(&mut Self)) {
        let before = self.margin();
        apply(self);
        let after = self.margin();
        self.debt.note(event, &before, &after);
    }

    fn step(&mut self, rng: &mut Rng) {
        match rng.u32(0..100) {
            0 => self.event(SpaceEvent::RangeDelete, |model| {
                model.usage.hidden_bytes += model.usage.live_bytes() / 3;
            }),
            1 => self.event(SpaceEvent::Opened, |model| {
                model.amplification_max = [1.1, 1.25, 1.5][rng.usize(0..3)];
            }),
            2 => self.event(SpaceEvent::GarbageFound, |model| {
                model.usage.exposed_bytes += model.usage.live_bytes() / 10;
            }),
            3..60 => self.write(rng.u64(0..2 * MIB)),
            60..75 => self.flush(),
            75..85 => {
                let sunk = self.usage.hidden_bytes / 2;
                self.usage.hidden_bytes -= sunk;
                self.usage.exposed_bytes += sunk;
            }
            _ => self.collect(rng),
        }
    }

    fn write(&mut self, bytes: u64) {
        let has_room = self.usage.unflushed_bytes + bytes <= self.slack.memtables_bytes;
        if has_room && self.margin().bytes() >= bytes as i64 {
            self.usage.unflushed_bytes += bytes;
        }
    }

    fn flush(&mut self) {
        let bytes = std::mem::take(&mut self.usage.unflushed_bytes);
        self.usage.version_bytes += bytes;
        self.usage.hidden_bytes += (bytes as f64 * self.shadow_share) as u64;
    }

    fn collect(&mut self, rng: &mut Rng) {
        let Some(freed) = self.collected.take() else {
            if self.usage.exposed_bytes > 0 {
                self.collected = Some(rng.u64(0..=self.usage.exposed_bytes));
                self.slack.running_output_bytes = 8 * MIB;
                self.usage.in_flight_bytes = rng.u64(0..=8 * MIB);
            }
            return;
        };
        let freed = freed.min(self.usage.exposed_bytes);
        self.usage.version_bytes -= freed;
        self.usage.exposed_bytes -= freed;
        self.usage.in_flight_bytes = 0;
        self.slack.running_output_bytes = 0;
        let after = self.margin();
        self.debt.repay(freed, &after);
    }
}

#[test]
fn accounted_bytes_keep_the_bound_at_every_step() {
    for seed in 0..200 {
        let mut rng = Rng::with_seed(seed);
        let slack = SpaceSlack {
            value_file_bytes: 8 * MIB,
            running_output_bytes: 0,
            memtables_bytes: 16 * MIB,
        };
        let usage = SpaceUsage { version_bytes: rng.u64(0..400 * MIB), ..SpaceUsage::default() };
        let mut model = Model {
            usage,
            slack,
            debt: SpaceDebt::default(),
            amplification_max: 1.25,
            shadow_share: [0.0, 0.3, 0.9, 1.0][rng.usize(0..4)],
            collected: None,
        };
        for step in 0..1000 {
            let debt = model.debt.bytes();
            model.step(&mut rng);
            let usage = &model.usage;
            let live = usage.live_bytes() as f64;
            let accounted = usage.version_bytes + usage.in_flight_bytes;
            let slack = model.slack.bytes() + model.debt.bytes();
            let limit = model.amplification_max * live + slack as f64;
            assert!(accounted as f64 <= limit + 16.0, "seed {seed}, step {step}");
            let has_event = model.debt.last_event().is_some();
            assert!(model.debt.bytes() <= debt || has_event, "debt rises by events only");
        }
    }
}
