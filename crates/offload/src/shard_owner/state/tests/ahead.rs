//! Room of active shards.

use super::*;

impl World {
    fn begin_ahead(&mut self, memtable: u64, bytes: u64) -> bool {
        self.state.begin_ahead(self.now_ns, id(memtable), bytes, b"").is_some()
    }

    fn verdict(&self, memtable: u64) -> AheadVerdict {
        self.state.judge_ahead(id(memtable))
    }
}

#[test]
fn active_shards_leave_room_for_sealed_ones() {
    let mut world = World::new(1);
    assert!(world.begin_ahead(3, 400) && world.begin_ahead(4, 350));
    assert!(!world.begin_ahead(5, 10), "three quarters of the zone are used");
    assert!(!world.begin_ahead(4, 10), "it has room already");
    let room = world.state.room(world.now_ns);
    assert_eq!((room.sending_bytes, room.free_bytes), (0, 1000), "their room counts as free");
    // The rest of the zone is too small, so the youngest gives its room back.
    assert_eq!(world.begin(2, 300), Pick::Later);
    assert_eq!((world.verdict(4), world.verdict(3)), (AheadVerdict::MustEnd, AheadVerdict::Stays));
    assert_eq!(world.begin(2, 300), Pick::Later, "one at a time");
    world.state.end_ahead(id(4));
    assert!(matches!(world.begin(2, 300), Pick::Node { .. }));
    assert_eq!(world.verdict(3), AheadVerdict::Stays);
    // The image of the other shard is sent in its own room.
    assert!(world.state.send_ahead(id(3), 390));
    assert_eq!(world.state.room(world.now_ns).sending_bytes, 690);
    assert!(!world.state.send_ahead(id(3), 390) && world.state.ahead_count() == 0);
}

#[test]
fn node_that_wants_memory_back_or_is_lost_keeps_no_active_shard() {
    let mut world = World::new(1);
    assert!(world.begin_ahead(3, 300));
    world.now_ns += SECOND;
    world.answer(StoreNode(1), &begun_with(0, 299));
    assert_eq!(world.verdict(3), AheadVerdict::MustEnd);
    assert!(!world.state.is_settled());
    world.state.end_ahead(id(3));
    assert!(world.state.is_settled() && !world.begin_ahead(4, 300) && world.begin_ahead(4, 200));
    world.miss(StoreNode(1), 7);
    assert_eq!(world.verdict(4), AheadVerdict::Lost);
    assert!(!world.state.send_ahead(id(4), 100));
    // The name was never released, so the node may get it in the same life.
    world.state.end_ahead(id(4));
    world.now_ns += SECOND;
    world.answer(StoreNode(1), &begun(0));
    assert!(matches!(world.begin(4, 100), Pick::Node { .. }));
}

#[test]
fn limit_of_the_database_holds_with_active_shards() {
    let terms = OwnerTerms { bytes_max: 500, ..OwnerTerms::default() };
    let mut world = World::with(1, terms);
    assert!(world.begin_ahead(3, 300) && !world.begin_ahead(4, 250));
    assert_eq!(world.begin(2, 250), Pick::Later);
    assert_eq!(world.verdict(3), AheadVerdict::MustEnd);
    world.state.end_ahead(id(3));
    assert!(matches!(world.begin(2, 250), Pick::Node { .. }));
}

#[test]
fn refused_active_shard_keeps_no_sealed_one_away() {
    let mut world = World::new(1);
    assert!(world.begin_ahead(3, 300));
    world.state.ahead_refused(world.now_ns, id(3));
    assert!(!world.begin_ahead(4, 100), "the node has just refused one");
    assert!(matches!(world.begin(2, 300), Pick::Node { .. }));
    world.now_ns += OwnerTerms::default().full.as_nanos() as u64;
    assert!(world.begin_ahead(4, 100));
}

#[test]
fn refusal_of_a_sealed_shard_counts_until_a_grant_is_given_back() {
    let mut world = World::new(1);
    assert!(world.begin_ahead(3, 100) && world.begin_ahead(4, 100));
    let Pick::Node { node, .. } = world.begin(2, 300) else { panic!("the node has room") };
    let end = NotSent { left_bytes: Some(50), ..NotSent::default() };
    world.state.not_sent(world.now_ns, node, id(2), end);
    assert_eq!(world.begin(2, 300), Pick::Later, "an active shard gives its room back");
    assert_eq!((world.verdict(4), world.verdict(3)), (AheadVerdict::MustEnd, AheadVerdict::Stays));
    // Without an answer of the node, the room may still be used there.
    world.state.end_ahead(id(4));
    assert_eq!(world.begin(2, 300), Pick::Later);
    assert_eq!(world.verdict(3), AheadVerdict::MustEnd);
    world.state.take_news();
    world.state.ahead_given_back(id(3));
    assert!(world.state.take_news().has_more_room);
    assert!(matches!(world.begin(2, 300), Pick::Node { .. }));
}

#[test]
fn owner_that_closes_gives_no_room_to_active_shards() {
    let mut world = World::new(1);
    assert!(world.begin_ahead(3, 400) && !world.begin_ahead(4, 400), "only one fits");
    world.state.stop_all_ahead();
    assert_eq!(world.verdict(3), AheadVerdict::MustEnd);
    world.state.ahead_given_back(id(3));
    assert!(!world.begin_ahead(4, 400) && world.state.is_settled());
}

#[test]
fn active_shard_gives_no_room_back_where_that_does_not_help() {
    let mut world = World::new(1);
    assert!(world.begin_ahead(9, 200));
    assert!(matches!(world.begin(1, 400), Pick::Node { .. }));
    assert!(matches!(world.begin(2, 400), Pick::Node { .. }));
    // The transfers alone fill the zone.
    assert_eq!(world.begin(3, 300), Pick::Later);
    assert_eq!(world.verdict(9), AheadVerdict::Stays);
    assert_eq!(world.begin(3, 200), Pick::Later);
    assert_eq!(world.verdict(9), AheadVerdict::MustEnd, "the zone has 200 bytes without it");
    // The sealed shard asks again before an active one gets the room.
    world.state.ahead_given_back(id(9));
    world.state.not_sent(world.now_ns, StoreNode(1), id(2), NotSent::default());
    assert!(!world.begin_ahead(10, 100));
    world.now_ns += SECOND;
    assert!(world.begin_ahead(10, 100));
}

#[test]
fn active_shard_of_a_released_memtable_ends() {
    let mut world = World::new(1);
    assert!(world.begin_ahead(3, 300));
    world.state.release(&[], 3);
    assert_eq!(world.verdict(3), AheadVerdict::Stays);
    world.state.release(&[], 4);
    assert_eq!(world.verdict(3), AheadVerdict::MustEnd);
}
