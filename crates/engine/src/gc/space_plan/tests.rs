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

#[test]
fn exposed_garbage_may_fill_the_room_that_a_pool_has_for_writers() {
    let slowdown_bytes = 50 * MIB;
    let limit = |planned: u64, left_mib: u64| {
        let room = WriterRoom { left_bytes: left_mib * MIB, slowdown_bytes };
        exposed_bytes_in_pool(planned, 160 * MIB, room)
    };
    assert_eq!(limit(40 * MIB, 90), 40 * MIB, "the plan is the limit while there is room");
    assert_eq!(limit(40 * MIB, 80), 30 * MIB);
    assert_eq!(limit(u64::MAX, 80), 30 * MIB, "also without a bound on space");
    for left in [60, 55, 50, 20, 0] {
        assert_eq!(limit(40 * MIB, left), 10 * MIB, "{left}: less would cost too much");
        assert_eq!(limit(0, left), 0, "{left}: delayed writers make all garbage due");
    }
    let mut last = 0;
    for left in 0..200 {
        let now = limit(40 * MIB, left);
        assert!(last <= now, "{left}: more room lowers the limit");
        last = now;
    }
}

#[test]
fn file_system_without_a_pool_keeps_the_plan() {
    for planned in [0, 40 * MIB, u64::MAX] {
        assert_eq!(exposed_bytes_in_pool(planned, 160 * MIB, WriterRoom::default()), planned);
    }
}

/// A family under a bound of 1.5 with 100 MiB of live data and `garbage` MiB of exposed garbage.
fn margin(garbage: u64, debt: &SpaceDebt) -> Margin {
    let usage = SpaceUsage {
        version_bytes: (100 + garbage) * MIB,
        exposed_bytes: garbage * MIB,
        ..SpaceUsage::default()
    };
    Margin::new(1.5, &usage, 50 * MIB, debt)
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
fn opening_with_the_kept_margin_adds_no_debt() {
    let mut debt = SpaceDebt::default();
    debt.note(SpaceEvent::Ingestion, &margin(10, &debt), &margin(150, &debt));
    // Writers have used what the event left them.
    let full = margin(160, &debt);
    assert!(full.bytes().abs() < 1000);
    let opened = |before: Margin, after: Margin| {
        let mut debt = SpaceDebt::kept(&debt.figures(&full));
        assert_eq!(debt.last_event(), Some(SpaceEvent::Ingestion));
        let event = Some(SpaceEvent::Opened);
        debt.settle(&SpaceChange { before, after, event, own_bytes: u64::MAX });
        debt.bytes()
    };
    let kept = Margin::kept(&debt.figures(&full));
    assert_eq!(kept, full);
    assert_eq!(opened(kept, full), debt.bytes());
    let unknown = Margin { used_bytes: 0, ..full };
    assert!(opened(unknown, full) > debt.bytes() + 9 * MIB, "a first open leaves writers a tenth");
    let lower = Margin { allowance_bytes: full.allowance_bytes / 2, ..full };
    assert!(opened(kept, lower) > debt.bytes() + 49 * MIB, "a lower bound does not stop writers");
}

#[test]
fn every_event_has_a_name_of_its_own() {
    let events = [
        SpaceEvent::RangeDelete,
        SpaceEvent::Delete,
        SpaceEvent::Ingestion,
        SpaceEvent::GarbageFound,
        SpaceEvent::SnapshotReleased,
        SpaceEvent::Opened,
    ];
    let names: std::collections::HashSet<&str> = events.iter().map(|event| event.name()).collect();
    assert_eq!(names.len(), events.len());
    // The manifest has the codes.
    for (event, code) in events.into_iter().zip(1..) {
        assert_eq!((event.code(), SpaceEvent::of_code(code)), (code, Some(event)));
    }
    assert_eq!((SpaceEvent::of_code(0), SpaceEvent::of_code(7)), (None, None));
}

/// A family with 100 MiB of live data, before and after a flush. The flush writes `puts` MiB of
/// updates and 1 MiB of deletes, and raises the estimate of hidden garbage by `hidden` MiB.
fn flush_of(puts: u64, hidden: u64) -> (SpaceChange, SpaceUsage) {
    let exposed_bytes = 60 * MIB;
    let before = SpaceUsage { version_bytes: 160 * MIB, exposed_bytes, hidden_bytes: 0 };
    let after =
        SpaceUsage { version_bytes: (161 + puts) * MIB, exposed_bytes, hidden_bytes: hidden * MIB };
    let margin = |usage: &SpaceUsage| Margin::new(1.5, usage, 50 * MIB, &SpaceDebt::default());
    let change = SpaceChange {
        before: margin(&before),
        after: margin(&after),
        event: Some(SpaceEvent::Delete),
        own_bytes: after.hidden_by_deletes(&before, MIB),
    };
    (change, after)
}

#[test]
fn deletes_of_large_values_delay_writers_and_do_not_stop_them() {
    let (change, usage) = flush_of(0, 81);
    assert_eq!(change.own_bytes, 81 * MIB);
    let mut debt = SpaceDebt::default();
    let limit = |debt: &SpaceDebt| {
        let margin = Margin::new(1.5, &usage, 50 * MIB, debt);
        match writer_limit(&margin, SpaceWork::Exists) {
            WriterLimit::Graded(limit) => limit,
            other => panic!("{other:?}"),
        }
    };
    let without = limit(&debt);
    assert!(without.used_bytes >= without.stop_bytes, "without debt, writers stop");
    debt.settle(&change);
    assert_eq!(debt.last_event().map(SpaceEvent::name), Some("delete"));
    let with = limit(&debt);
    assert!(with.slowdown_bytes <= with.used_bytes && with.used_bytes < with.stop_bytes);
}

#[test]
fn garbage_of_updates_is_no_debt_of_a_delete() {
    // As many bytes are hidden as the updates have.
    let (change, usage) = flush_of(100, 100);
    assert_eq!(change.own_bytes, 0);
    let mut debt = SpaceDebt::default();
    debt.settle(&change);
    assert_eq!((debt.bytes(), debt.last_event()), (0, None));
    assert!(Margin::new(1.5, &usage, 50 * MIB, &debt).bytes() < 0, "writers stop");
    // What the deletes hide on top of that is debt, and nothing else.
    let (change, usage) = flush_of(100, 150);
    assert_eq!(change.own_bytes, 50 * MIB);
    debt.settle(&change);
    assert_eq!(debt.last_event(), Some(SpaceEvent::Delete));
    let left = Margin::new(1.5, &usage, 50 * MIB, &debt).bytes();
    assert_eq!(left, change.before.bytes() - 100 * MIB as i64);
}

#[test]
fn install_that_lowers_the_allowance_takes_nothing_from_the_margin() {
    // A compaction frees 1 MiB of garbage, and its tables take 30 MiB less.
    let exposed = |mib: u64, version: u64| SpaceUsage {
        version_bytes: version * MIB,
        exposed_bytes: mib * MIB,
        ..SpaceUsage::default()
    };
    let mut debt = SpaceDebt::default();
    let margin = |usage: &SpaceUsage, debt: &SpaceDebt| Margin::new(1.5, usage, 50 * MIB, debt);
    let (before, after) = (exposed(95, 195), exposed(94, 164));
    debt.settle(&SpaceChange {
        before: margin(&before, &debt),
        after: margin(&after, &debt),
        event: Some(SpaceEvent::GarbageFound),
        own_bytes: u64::MAX,
    });
    let left = margin(&before, &SpaceDebt::default()).bytes();
    assert_eq!(margin(&after, &debt).bytes(), left, "{debt:?}");
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

/// Bytes of one value file, which a family may always write.
const VALUE_FILE: u64 = 8 * MIB;
/// Bytes of all memtables that the settings allow.
const MEMTABLES: u64 = 16 * MIB;
/// Bytes that a running collection may write.
const OUTPUT: u64 = 8 * MIB;

/// Records that are in memtables.
#[derive(Clone, Copy, Debug, Default)]
struct Unflushed {
    /// Bytes of updates.
    puts: u64,
    /// Bytes of deletes.
    tombstones: u64,
    /// Bytes of the values that the deletes may hide.
    deleted: u64,
}

/// A running collection.
#[derive(Clone, Copy, Debug)]
struct Collection {
    /// Bytes that it has written so far.
    written: u64,
    /// Bytes that its end frees.
    freed: u64,
}

/// A family whose bytes change as writes, flushes, compactions and collections do. As in the
/// engine, only installs change the margin, and writers see the limit of the last install.
struct Model {
    usage: SpaceUsage,
    unflushed: Unflushed,
    debt: SpaceDebt,
    limit: WriterLimit,
    amplification_max: f64,
    /// Share of flushed bytes that is estimated to be hidden.
    shadow_share: f64,
    collection: Option<Collection>,
}

impl Model {
    fn margin(&self) -> Margin {
        Margin::new(self.amplification_max, &self.usage, VALUE_FILE, &self.debt)
    }

    /// Applies an install, and examines the space after it. `apply` returns the bytes of garbage
    /// that the event itself made.
    fn install(&mut self, event: SpaceEvent, apply: impl FnOnce(&mut Self) -> u64) {
        let before = self.margin();
        let own_bytes = apply(self);
        let after = self.margin();
        let event = Some(event);
        self.debt.settle(&SpaceChange { before, after, event, own_bytes });
        self.limit = writer_limit(&self.margin(), SpaceWork::Exists);
    }

    fn step(&mut self, rng: &mut Rng) {
        match rng.u32(0..100) {
            0 => self.install(SpaceEvent::RangeDelete, |model| {
                model.usage.hidden_bytes += model.usage.live_bytes() / 3;
                u64::MAX
            }),
            1 => self.install(SpaceEvent::Opened, |model| {
                model.amplification_max = [1.1, 1.25, 1.5][rng.usize(0..3)];
                u64::MAX
            }),
            2 => self.install(SpaceEvent::GarbageFound, |model| {
                model.usage.exposed_bytes += model.usage.live_bytes() / 10;
                u64::MAX
            }),
            3..50 => self.write(Unflushed { puts: rng.u64(0..2 * MIB), ..Unflushed::default() }),
            50..60 => self.write(Unflushed {
                puts: 0,
                tombstones: rng.u64(0..MIB / 8),
                deleted: rng.u64(0..16 * MIB),
            }),
            60..75 => self.flush(),
            75..85 => self.install(SpaceEvent::GarbageFound, |model| {
                let sunk = model.usage.hidden_bytes / 2;
                model.usage.hidden_bytes -= sunk;
                model.usage.exposed_bytes += sunk;
                u64::MAX
            }),
            _ => self.collect(rng),
        }
    }

    /// Writes into the memtables, unless they are full or writers are stopped.
    fn write(&mut self, new: Unflushed) {
        let now = &mut self.unflushed;
        let bytes = now.puts + now.tombstones + new.puts + new.tombstones;
        let is_stopped = matches!(
            self.limit,
            WriterLimit::Graded(limit) if limit.used_bytes >= limit.stop_bytes
        );
        if bytes <= MEMTABLES && !is_stopped {
            now.puts += new.puts;
            now.tombstones += new.tombstones;
            now.deleted += new.deleted;
        }
    }

    fn flush(&mut self) {
        let Unflushed { puts, tombstones, deleted } = std::mem::take(&mut self.unflushed);
        let (debt, before) = (self.debt.bytes(), self.margin().bytes());
        self.install(SpaceEvent::Delete, |model| {
            let before = model.usage;
            model.usage.version_bytes += puts + tombstones;
            let hiding = (puts + tombstones + deleted) as f64;
            model.usage.hidden_bytes += (hiding * model.shadow_share) as u64;
            model.usage.hidden_by_deletes(&before, tombstones)
        });
        if deleted == 0 && tombstones == 0 {
            assert!(self.debt.bytes() <= debt, "updates alone made a debt");
        }
        // A tenth of the allowance is left, or what was left before. Only updates take from it.
        let after = self.margin();
        let tenth = after.allowance_bytes - after.share_bytes(EVENT_PERCENT);
        let least = before.min(tenth as i64) - puts as i64;
        assert!(after.bytes() >= least, "{after:?} after {before} with {puts} bytes of updates");
    }

    fn collect(&mut self, rng: &mut Rng) {
        let exposed = self.usage.exposed_bytes;
        match self.collection.take() {
            Some(Collection { freed, .. }) => self.install(SpaceEvent::GarbageFound, |model| {
                let freed = freed.min(exposed).min(model.usage.version_bytes);
                model.usage.version_bytes -= freed;
                model.usage.exposed_bytes -= freed;
                u64::MAX
            }),
            None if exposed > 0 => {
                let (written, freed) = (rng.u64(0..=OUTPUT), rng.u64(0..=exposed));
                self.collection = Some(Collection { written, freed });
            }
            None => {}
        }
    }
}

#[test]
fn accounted_bytes_keep_the_bound_at_every_step() {
    for seed in 0..200 {
        let mut rng = Rng::with_seed(seed);
        let usage = SpaceUsage { version_bytes: rng.u64(0..400 * MIB), ..SpaceUsage::default() };
        let mut model = Model {
            usage,
            unflushed: Unflushed::default(),
            debt: SpaceDebt::default(),
            limit: WriterLimit::None,
            amplification_max: 1.25,
            shadow_share: [0.0, 0.3, 0.9, 1.0][rng.usize(0..4)],
            collection: None,
        };
        for step in 0..1000 {
            model.step(&mut rng);
            let live = model.usage.live_bytes() as f64;
            let in_flight = model.collection.map_or(0, |collection| collection.written);
            let outputs = model.collection.map_or(0, |_| OUTPUT);
            let accounted = model.usage.version_bytes + in_flight;
            let slack = VALUE_FILE + MEMTABLES + outputs + model.debt.bytes();
            let limit = model.amplification_max * live + slack as f64;
            assert!(accounted as f64 <= limit + 16.0, "seed {seed}, step {step}");
        }
    }
}
