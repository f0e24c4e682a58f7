//! Tests of leases under clocks that drift, and a network that loses, delays, repeats and reorders
//! messages.

use std::collections::BinaryHeap;

use archipelago_base::random::Rng;
use proptest::prelude::*;

use super::*;

#[test]
fn a_stamp_is_fresh_for_a_lease_and_a_slot_is_reused_only_after() {
    let owner = SlotLease::new(7, 1_000_000, SLOT_LEASE_US);
    let later = 5_000_000;
    let stamp = owner.stamp(later);
    let slot = Slot::deleted(later, 3);
    for now in (later..later + 2 * SLOT_LEASE_US)
        .step_by(999)
        .chain([later + SLOT_LEASE_US, later + SLOT_LEASE_US + 1])
    {
        let (accepted, reused) = (owner.accepts(stamp, now), owner.may_reuse(slot, now));
        assert!(accepted != reused, "at {now}: never both, never neither");
    }
    assert!(!owner.accepts(Stamp { epoch: 6, ..stamp }, later), "a forerunner's");
}

#[test]
fn a_new_owner_waits_a_lease_before_it_reuses_slots() {
    let owner = SlotLease::new(2, 1_000, SLOT_LEASE_US);
    assert!(owner.may_reuse(Slot::EMPTY, 1_000));
    // The clock of the former owner was hours ahead or behind.
    for deleted_us in [0, 1, 999, 7_200_000_000] {
        let slot = Slot::deleted(deleted_us, 1);
        assert!(!owner.may_reuse(slot, 1_000 + SLOT_LEASE_US));
        assert!(owner.may_reuse(slot, 1_002 + SLOT_LEASE_US), "{deleted_us}");
    }
}

#[test]
fn lapsed_holder_drops_everything_before_it_continues() {
    let terms = Terms { lease_ns: 1_000, drift_ppm: 100, tick_ns: 10 };
    let (mut granter, mut holder) = (Granter::new(terms, 40), Holder::new(terms));
    assert_eq!(granter.may_share(5), None, "no lease, no caching");
    assert_eq!(granter.give_up(5), Waiting::Lapsed, "it was given none");
    let first = granter.on_request(5, None);
    assert_eq!(first, Granted { session: 40, lease_ns: 1_000 });
    assert_eq!(holder.on_answer(0, first), Adopted::DropAll);
    assert!(!holder.may_serve(1, 40), "not before it dropped what it had");
    holder.dropped();
    assert!(holder.may_serve(989, 40) && !holder.may_serve(990, 40) && !holder.may_serve(1, 39));
    assert!(
        holder.wants_renewal(600) && !holder.wants_renewal(400) && !holder.wants_renewal(2_000)
    );
    // 5 + 1,000 + 0.1 of drift, rounded up, + 10.
    assert_eq!(granter.give_up(1_015), Waiting::Until(1_016));
    assert_eq!(granter.may_share(1_015), Some(40));
    assert_eq!(granter.give_up(1_016), Waiting::Lapsed);
    assert_eq!(granter.may_share(1_016), None);
    let second = granter.on_request(1_500, None);
    assert_eq!(second.session, 41);
    assert_eq!(holder.on_answer(1_400, second), Adopted::DropAll);
    assert_eq!(holder.on_answer(1_450, first), Adopted::Ignored, "late, of the old session");
    assert!(!holder.may_serve(1_500, 41));
    holder.dropped();
    assert!(holder.may_serve(1_500, 41) && !holder.may_serve(1_500, 40));
}

#[test]
fn waiting_invalidation_stops_renewals_after_a_while() {
    let mut granter = Granter::new(Terms { lease_ns: 1_000, drift_ppm: 0, tick_ns: 0 }, 1);
    granter.on_request(0, None);
    assert_eq!(
        granter.on_request(800, Some(600)).lease_ns,
        1_000,
        "a stream of writes starves nobody"
    );
    assert_eq!(granter.on_request(900, Some(600)).lease_ns, 0);
    assert_eq!(granter.give_up(1_799), Waiting::Until(1_800));
    assert_eq!(granter.give_up(1_800), Waiting::Lapsed, "1.25 leases at most");
}

#[test]
fn a_hostile_length_is_not_believed() {
    let mut holder = Holder::new(Terms { lease_ns: 1_000, drift_ppm: 0, tick_ns: 0 });
    holder.on_answer(0, Granted { session: 1, lease_ns: u64::MAX });
    holder.dropped();
    assert!(!holder.may_serve(1_000, 1));
}

/// A clock with an error of its rate in parts per billion, an offset and a tick.
struct Clock {
    ppb: i64,
    offset: u64,
    tick: u64,
}

impl Clock {
    fn read(&self, real: u64) -> u64 {
        let drift = i128::from(real) * i128::from(self.ppb) / 1_000_000_000;
        let reading = (i128::from(real) + drift) as u64 + self.offset;
        reading - reading % self.tick
    }
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Request { sent_ns: u64 },
    Answer { sent_ns: u64, session: u64, lease_ns: u64 },
    Send,
    GiveUp,
}

/// Events of one run: `wrong` counts the times that a holder believed in a session that its granter
/// had given up. `lapses` counts the sessions that the granter gave up, and `served` the moments at
/// which the holder could serve.
struct Seen {
    wrong: u32,
    lapses: u32,
    served: u32,
}

/// A granter and a holder, their clocks, and messages that are lost, late, doubled and reordered.
struct Model {
    rng: Rng,
    terms: Terms,
    queue: BinaryHeap<std::cmp::Reverse<(u64, Event)>>,
}

impl Model {
    fn at(&mut self, real: u64, event: Event) {
        self.queue.push(std::cmp::Reverse((real, event)));
    }

    fn deliver(&mut self, real: u64, event: impl Fn() -> Event) {
        let copies = [0, 1, 1, 1, 1, 2][self.rng.usize(..6)];
        for _ in 0..copies {
            let lease = self.terms.lease_ns;
            let slow = [lease / 50, lease / 2, 3 * lease][self.rng.usize(..3)];
            let delay = self.rng.u64(1..=slow);
            self.at(real + delay, event());
        }
    }

    fn run(&mut self, granter_terms: Terms, clocks: [Clock; 2]) -> Seen {
        let [of_granter, of_holder] = clocks;
        let mut granter = Granter::new(granter_terms, 1);
        let mut holder = Holder::new(self.terms);
        let mut seen = Seen { wrong: 0, lapses: 0, served: 0 };
        let mut given_up = 0;
        self.at(1, Event::Send);
        self.at(2, Event::GiveUp);
        for _ in 0..1500 {
            let Some(std::cmp::Reverse((real, event))) = self.queue.pop() else { break };
            let (g, h) = (of_granter.read(real), of_holder.read(real));
            let lease = self.terms.lease_ns;
            match event {
                Event::Send => {
                    self.deliver(real, || Event::Request { sent_ns: h });
                    let longest = [lease / 4, 4 * lease][self.rng.usize(..2)];
                    let pause = self.rng.u64(1..=longest);
                    self.at(real + pause, Event::Send);
                }
                Event::Request { sent_ns } => {
                    let Granted { session, .. } = granter.on_request(g, None);
                    // The lease that the holder was promised, independent of the granter's waits.
                    let lease_ns = lease;
                    self.deliver(real, || Event::Answer { sent_ns, session, lease_ns });
                }
                Event::Answer { sent_ns, session, lease_ns } => {
                    let adopted = holder.on_answer(sent_ns, Granted { session, lease_ns });
                    if adopted == Adopted::DropAll && self.rng.bool() {
                        holder.dropped();
                    }
                }
                Event::GiveUp => match granter.give_up(g) {
                    // The granter gives up as soon as it may by its own clock, or asks again
                    // earlier.
                    Waiting::Until(until) => {
                        let pause = until.saturating_sub(g).max(1);
                        let again =
                            if self.rng.u8(..4) == 0 { pause } else { self.rng.u64(1..=pause) };
                        self.at(real + again, Event::GiveUp);
                    }
                    Waiting::Lapsed => {
                        seen.lapses += u32::from(granter.session() - 1 > given_up);
                        given_up = granter.session() - 1;
                        let pause = self.rng.u64(1..=6 * lease);
                        self.at(real + pause, Event::GiveUp);
                    }
                },
            }
            let serves = holder.may_serve(h, holder.session());
            seen.served += u32::from(serves);
            seen.wrong += u32::from(serves && holder.session() <= given_up);
        }
        seen
    }
}

fn run(seed: u64, granter_terms: impl Fn(Terms) -> Terms) -> Seen {
    let mut rng = Rng::with_seed(seed);
    let terms = Terms { lease_ns: 10_000_000, drift_ppm: 100, tick_ns: 1_000 };
    // The rates of the two clocks differ by up to 10⁻⁴ in both directions.
    let ppb = rng.i64(-49_990..=49_990);
    let mut clock =
        |ppb| Clock { ppb, offset: rng.u64(..1 << 40), tick: rng.u64(1..=terms.tick_ns) };
    let clocks = [clock(ppb), clock(-ppb)];
    let mut model = Model { rng, terms, queue: BinaryHeap::new() };
    model.run(granter_terms(terms), clocks)
}

#[test]
fn a_granter_that_waits_too_short_is_caught() {
    let (mut wrong, mut lapses, mut served) = (0, 0, 0);
    for seed in 0..300 {
        let seen = run(seed, |terms| Terms { lease_ns: terms.lease_ns / 100 * 95, ..terms });
        wrong += seen.wrong;
        let right = run(seed, |terms| terms);
        (lapses, served) = (lapses + right.lapses, served + right.served);
    }
    assert!(wrong > 0, "the model cannot see a holder that believes too long");
    assert!(lapses > 1_000 && served > 10_000, "{lapses} lapses, {served} times served");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn no_holder_believes_in_a_lease_that_its_granter_gave_up(seed: u64) {
        prop_assert_eq!(run(seed, |terms| terms).wrong, 0);
    }

    #[test]
    fn ends_are_in_order_to_the_nanosecond(
        lease_ns in 1u64..1 << 40, ppb in -49_990i64..=49_990, sent in 0u64..1 << 40, way in 0u64..1000, tick in 1u64..1_000_000,
    ) {
        // In the shortest case, the allowance alone separates the two ends.
        let terms = Terms { lease_ns, drift_ppm: 100, tick_ns: tick };
        let (g, h) = (Clock { ppb, offset: 5, tick }, Clock { ppb: -ppb, offset: 77, tick });
        let (mut granter, mut holder) = (Granter::new(terms, 1), Holder::new(terms));
        let granted = granter.on_request(g.read(sent + way), None);
        holder.on_answer(h.read(sent), granted);
        holder.dropped();
        let Waiting::Until(until) = granter.give_up(g.read(sent + way)) else { panic!("just given") };
        // The first real moment at which the granter may give up, by bisection.
        let (mut low, mut high) = (sent, sent + 2 * lease_ns + 4_000_000);
        while low < high {
            let middle = u64::midpoint(low, high);
            if g.read(middle) >= until { high = middle } else { low = middle + 1 }
        }
        prop_assert_eq!(granter.give_up(g.read(low)), Waiting::Lapsed);
        prop_assert!(!holder.may_serve(h.read(low), 1));
    }
}
