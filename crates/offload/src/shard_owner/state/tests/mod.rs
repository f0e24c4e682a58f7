mod ahead;
mod shares;

use archipelago_base::SeqNo;
use archipelago_engine::stall::away_excess_bytes;
use archipelago_fabric::{RegionId, Rights};

use super::*;
use crate::ids::{OffloadDb, Token};
use crate::wire::shard::{NodeShare, ShardPlace};

const SECOND: u64 = 1_000_000_000;
const LIFE: Epoch = Epoch(7);

fn owner() -> OwnerStamp {
    OwnerStamp { db: OffloadDb([1; 16]), epoch: Epoch(4), token: Token([2; 16]) }
}

fn id(memtable: u64) -> ShardId {
    ShardId { memtable, shard: 0 }
}

fn member(node: u64, life: Epoch) -> MemoryNode {
    MemoryNode { node: NodeId(node), life, endpoints: vec!["there".to_owned()], is_up: true }
}

fn readable() -> ReadableShard {
    let (node, epoch, region, rights) = (NodeId(1), LIFE, RegionId(3), Rights::READ);
    let key = RemoteKey { node, epoch, region, tag: 9, len: 4096, rights };
    ReadableShard { place: ShardPlace { key, at: 64, bytes: 100 }, head_sum: 5, last_seq: SeqNo(9) }
}

fn begun(shards: u32) -> ShardMessage {
    begun_with(shards, 5000)
}

/// The same with this limit of bytes.
fn begun_with(shards: u32, limit_bytes: u64) -> ShardMessage {
    let (landing_bytes, image_bytes_max) = (1000, 400);
    let share = share(limit_bytes);
    ShardMessage::Begun { life: LIFE, landing_bytes, image_bytes_max, share, shards }
}

fn share(limit_bytes: u64) -> NodeShare {
    NodeShare { limit_bytes, ..NodeShare::default() }
}

/// The answer about a change of this number of shards.
fn done(shards: u32) -> ShardMessage {
    ShardMessage::Done { shards, share: share(5000) }
}

fn refused(why: ShardWhy) -> ShardMessage {
    ShardMessage::Refused { refusal: why.into() }
}

/// A request of this time without an answer. The node has answered no other request.
fn missed(sent_ns: u64, is_other_life: bool) -> MissedAnswer {
    MissedAnswer { sent_ns, heard_ns: 0, is_other_life }
}

/// An owner with some nodes, and its time.
struct World {
    state: OwnerState,
    now_ns: u64,
}

impl World {
    /// An owner that has begun at these nodes.
    fn new(nodes: u64) -> Self {
        Self::with(nodes, OwnerTerms::default())
    }

    fn with(nodes: u64, terms: OwnerTerms) -> Self {
        let mut state = OwnerState::new(owner(), terms);
        assert!(state.purge().is_empty());
        let mut world = Self { state, now_ns: SECOND };
        let list: Vec<MemoryNode> = (1..=nodes).map(|node| member(node, LIFE)).collect();
        for node in world.state.on_members(world.now_ns, &list) {
            world.answer(node, &begun(0));
        }
        assert_eq!(world.state.take_news().has_more_room, nodes > 0);
        world
    }

    fn ask(&mut self, node: StoreNode) -> (NodeTask, ShardMessage) {
        match self.state.next_ask(self.now_ns, node) {
            NextAsk::Ask(task, message) => (task, message),
            other => panic!("{other:?}"),
        }
    }

    /// Answers the next request for a node.
    fn answer(&mut self, node: StoreNode, answer: &ShardMessage) -> ShardMessage {
        let (task, message) = self.ask(node);
        self.state.on_answer(self.now_ns, node, &task, answer);
        message
    }

    /// The node misses beats for this number of seconds.
    fn miss(&mut self, node: StoreNode, seconds: u64) {
        for _ in 0..seconds {
            self.now_ns += SECOND;
            let (task, _) = self.ask(node);
            assert_eq!(task, NodeTask::Begin);
            let none = missed(self.now_ns, false);
            self.state.on_no_answer(self.now_ns + SECOND / 2, node, &task, none);
        }
    }

    fn begin(&mut self, memtable: u64, bytes: u64) -> Pick {
        self.state.begin_send(self.now_ns, id(memtable), bytes, b"")
    }

    fn send(&mut self, memtable: u64) -> StoreNode {
        self.send_from(memtable, b"")
    }

    /// Sends a shard whose bucket begins at `boundary`, which chooses its node.
    fn send_from(&mut self, memtable: u64, boundary: &[u8]) -> StoreNode {
        match self.state.begin_send(self.now_ns, id(memtable), 100, boundary) {
            Pick::Node { node, losses } => {
                self.state.sent(node, id(memtable), losses, readable()).expect("the node is there");
                node
            }
            other => panic!("{other:?}"),
        }
    }

    fn is_readable(&self, node: StoreNode, memtable: u64) -> bool {
        self.state.target(node, &[id(memtable)]).is_ok()
    }
}

#[test]
fn silence_is_counted_in_beats() {
    let mut world = World::new(1);
    let node = world.send(1);
    world.miss(node, 5);
    assert!(world.is_readable(node, 1), "five beats are four and a half seconds");
    // An answer ends the silence.
    world.now_ns += SECOND;
    world.answer(node, &begun(1));
    world.miss(node, 5);
    assert!(world.is_readable(node, 1) && world.state.take_news().lost.is_empty());
    world.miss(node, 1);
    assert!(!world.is_readable(node, 1));
    assert_eq!(world.state.take_news().lost, [id(1)]);
    assert!(matches!(world.begin(2, 100), Pick::NoRoom(_)), "the node is silent");
    assert_eq!(world.state.home(id(1)), None);
}

#[test]
fn node_that_answers_other_requests_is_not_silent() {
    let mut world = World::new(1);
    let node = world.send(1);
    let silent = MemoryNode { is_up: false, ..member(1, LIFE) };
    world.state.on_members(world.now_ns, &[silent]);
    for _ in 0..20 {
        world.now_ns += SECOND;
        let (task, _) = world.ask(node);
        let none = MissedAnswer { heard_ns: world.now_ns + 1, ..missed(world.now_ns, false) };
        world.state.on_no_answer(world.now_ns + SECOND / 2, node, &task, none);
        assert!(world.is_readable(node, 1));
    }
    world.state.on_members(world.now_ns, &[member(1, LIFE)]);
    // An answer between two beats ends the silence as well.
    world.miss(node, 4);
    world.now_ns += SECOND;
    let (task, _) = world.ask(node);
    let none = MissedAnswer { heard_ns: world.now_ns - 1, ..missed(world.now_ns, false) };
    world.state.on_no_answer(world.now_ns + SECOND / 2, node, &task, none);
    world.miss(node, 4);
    assert!(world.is_readable(node, 1));
    world.miss(node, 2);
    assert!(!world.is_readable(node, 1));
}

#[test]
fn process_that_was_stopped_loses_nothing() {
    let mut world = World::new(1);
    let node = world.send(1);
    world.now_ns += SECOND;
    let (task, _) = world.ask(node);
    // The process was stopped for a minute, and finds the beat late.
    let none = missed(world.now_ns, false);
    world.now_ns += 60 * SECOND;
    world.state.on_no_answer(world.now_ns, node, &task, none);
    world.now_ns += SECOND;
    world.answer(node, &begun(1));
    assert!(world.is_readable(node, 1));
}

#[test]
fn node_that_the_pool_does_not_hear_either_is_lost_with_one_beat() {
    let mut world = World::new(1);
    let node = world.send(1);
    let silent = MemoryNode { is_up: false, ..member(1, LIFE) };
    world.state.on_members(world.now_ns, &[silent]);
    assert!(matches!(world.begin(2, 100), Pick::NoRoom(_)), "nothing is sent there");
    // The owner gets answers of the node, so its shards stay.
    world.answer(node, &begun(1));
    assert!(world.is_readable(node, 1));
    world.miss(node, 1);
    assert!(!world.is_readable(node, 1));
}

#[test]
fn another_life_of_the_node_loses_its_shards() {
    let mut world = World::new(2);
    let node = world.send(1);
    let other = member(if node == StoreNode(1) { 2 } else { 1 }, LIFE);
    let number = if node == StoreNode(1) { 1 } else { 2 };
    let new = world.state.on_members(world.now_ns, &[member(number, Epoch(8)), other]);
    assert_eq!(new, [StoreNode(3)], "a life has a number of its own");
    assert_eq!(world.state.take_news().lost, [id(1)]);
    assert!(world.state.target(node, &[id(1)]).is_err());
    assert_eq!(world.state.next_ask(world.now_ns, node), NextAsk::Over);
    // The answer of another life to a beat has the same effect, before the pool reports that life.
    let mut world = World::new(1);
    let node = world.send(1);
    world.now_ns += SECOND;
    let (task, _) = world.ask(node);
    let none = missed(world.now_ns, true);
    world.state.on_no_answer(world.now_ns, node, &task, none);
    assert!(!world.is_readable(node, 1));
}

#[test]
fn node_that_a_new_manager_does_not_know_yet_keeps_its_shards() {
    let mut world = World::new(2);
    let node = world.send(1);
    assert!(world.state.on_members(world.now_ns, &[]).is_empty());
    assert!(world.is_readable(node, 1) && world.state.take_news().lost.is_empty());
    world.now_ns += SECOND;
    world.answer(node, &begun(1));
    assert!(world.is_readable(node, 1));
    // The manager gets beats of the nodes one after another. They are the same nodes as before.
    for count in 1..=2 {
        let list: Vec<MemoryNode> = (1..=count).map(|node| member(node, LIFE)).collect();
        assert!(world.state.on_members(world.now_ns, &list).is_empty());
    }
    assert!(world.is_readable(node, 1) && world.state.take_news().lost.is_empty());
    world.send(2);
    // A silent node is lost, whether the manager knows it or not.
    world.state.on_members(world.now_ns, &[]);
    world.miss(node, 6);
    assert!(!world.is_readable(node, 1));
}

#[test]
fn list_with_an_earlier_life_changes_nothing() {
    let mut world = World::new(1);
    let node = world.send(1);
    assert!(world.state.on_members(world.now_ns, &[member(1, Epoch(6))]).is_empty());
    assert!(world.is_readable(node, 1));
    assert_eq!(world.state.counts(), (1, 1));
}

#[test]
fn lost_shard_is_released_and_never_read_again() {
    let mut world = World::new(1);
    let node = world.send(1);
    let Pick::Node { losses, .. } = world.begin(2, 100) else { panic!("room") };
    world.miss(node, 6);
    world.state.take_news();
    // The transfer ends while the node is lost.
    assert!(world.state.sent(node, id(2), losses, readable()).is_err());
    world.now_ns += SECOND;
    world.answer(node, &begun(2));
    assert!(world.state.take_news().has_more_room, "the node answers again");
    assert!(!world.is_readable(node, 1) && !world.is_readable(node, 2));
    let (task, _) = world.ask(node);
    assert_eq!(task, NodeTask::Release(vec![id(1), id(2)]));
    assert!(!world.state.is_settled());
    world.answer(node, &done(2));
    assert!(world.state.is_settled());
    assert_eq!(world.state.room(world.now_ns).held_bytes, 0);
    // The node does not take the name again. Another life of the node would take it.
    assert_eq!(world.begin(1, 100), Pick::UsedUp);
    world.send(3);
}

#[test]
fn transfer_to_a_node_that_was_lost_or_to_a_closed_owner_is_not_wanted() {
    let mut world = World::new(1);
    let Pick::Node { node, losses } = world.begin(1, 100) else { panic!("room") };
    assert!(world.state.is_sending(node, id(1), losses));
    assert!(!world.state.is_sending(node, id(2), losses));
    world.miss(node, 6);
    assert!(!world.state.is_sending(node, id(1), losses));
    let mut world = World::new(1);
    let Pick::Node { node, losses } = world.begin(1, 100) else { panic!("room") };
    world.state.close();
    assert!(!world.state.is_sending(node, id(1), losses));
}

#[test]
fn loss_of_one_shard_is_not_that_of_the_others() {
    let mut world = World::new(1);
    let node = world.send(1);
    world.send(2);
    let both = [id(1), id(2)];
    assert!(world.state.target(node, &both).is_ok());
    world.state.lose(node, &[id(1)]);
    assert_eq!(world.state.take_news().lost, [id(1)]);
    let some = world.state.target(node, &both);
    assert!(matches!(some, Err(AwayError::Busy(_))), "{some:?}");
    assert!(matches!(world.state.target(node, &[id(1)]), Err(AwayError::Lost(_))));
    assert!(world.is_readable(node, 2));
    world.state.lose(node, &[id(2)]);
    let all = world.state.target(node, &both);
    assert!(matches!(all, Err(AwayError::Lost(_))), "{all:?}");
}

/// After an answer for want of room, the database would send the shard again and again, and no
/// later shard would leave.
#[test]
fn name_that_is_used_up_at_each_node_is_not_refused_for_want_of_room() {
    let mut world = World::new(1);
    let Pick::Node { node, .. } = world.begin(1, 100) else { panic!("room") };
    let failed = NotSent { may_be_known: true, ..NotSent::default() };
    world.state.not_sent(world.now_ns, node, id(1), failed);
    assert_eq!(world.begin(1, 100), Pick::UsedUp, "the release is under way");
    let message = world.answer(node, &done(1));
    assert!(matches!(message, ShardMessage::Release { .. }), "{message:?}");
    assert_eq!(world.begin(1, 100), Pick::UsedUp);
    assert_eq!(world.send(2), node, "later shards leave");
    // A second node takes the name, unless the image is too large for it.
    let list = [member(1, LIFE), member(2, LIFE)];
    let other = world.state.on_members(world.now_ns, &list)[0];
    assert_eq!(world.begin(1, 100), Pick::UsedUp, "the other node has not answered yet");
    world.answer(other, &begun(0));
    assert_eq!(world.begin(1, 401), Pick::UsedUp);
    assert!(matches!(world.begin(1, 100), Pick::Node { node, .. } if node == other));
    // Without a node that takes shards, nothing is known about the name.
    world.state.not_sent(world.now_ns, other, id(1), NotSent::default());
    let silent = list.map(|member| MemoryNode { is_up: false, ..member });
    world.state.on_members(world.now_ns, &silent);
    assert!(matches!(world.begin(1, 100), Pick::NoRoom(_)));
}

#[test]
fn release_names_no_memtable_that_is_in_use() {
    let mut world = World::new(1);
    let node = world.send(5);
    world.send(7);
    assert!(matches!(world.begin(3, 100), Pick::Node { .. }));
    world.state.release(&[id(7)], 9);
    let (_, message) = world.ask(node);
    let shards = vec![world.state.name(id(7))];
    assert_eq!(message, ShardMessage::Release { owner: owner(), shards, oldest: 3 });
    world.answer(node, &done(1));
    let failed = NotSent { may_be_known: true, ..NotSent::default() };
    world.state.not_sent(world.now_ns, node, id(3), failed);
    let message = world.answer(node, &done(0));
    assert!(matches!(message, ShardMessage::Release { oldest: 5, .. }), "{message:?}");
    world.state.release(&[id(5)], 9);
    let message = world.answer(node, &done(1));
    assert!(matches!(message, ShardMessage::Release { oldest: 9, .. }), "{message:?}");
    assert!(matches!(world.begin(8, 100), Pick::NoRoom(_)), "the memtable is retired");
}

#[test]
fn names_that_were_released_take_a_bounded_memory() {
    let mut world = World::new(1);
    let node = world.send(2);
    for memtable in 3..70_000 {
        world.send(memtable);
        world.state.release(&[id(memtable)], 1);
        if memtable % 10 == 0 {
            while let NextAsk::Ask(NodeTask::Release(_), _) =
                world.state.next_ask(world.now_ns, node)
            {
                world.answer(node, &done(1));
            }
        }
    }
    for memtable in [1, 3, 69_000] {
        assert_eq!(world.begin(memtable, 100), Pick::UsedUp, "{memtable}");
    }
    assert!(world.is_readable(node, 2), "it was not released");
    world.send(70_000);
}

#[test]
fn release_is_repeated_until_the_node_has_it() {
    let mut world = World::new(1);
    let node = world.send(1);
    let concerned = world.state.release(&[id(1), id(2)], 0);
    assert_eq!(concerned.into_iter().collect::<Vec<_>>(), [node]);
    assert!(!world.is_readable(node, 1), "nobody asks for it any more");
    let (task, first) = world.ask(node);
    let none = missed(world.now_ns, false);
    world.state.on_no_answer(world.now_ns, node, &task, none);
    // A beat comes first, which finds out whether the node answers.
    world.answer(node, &begun(1));
    let second = world.answer(node, &refused(ShardWhy::Busy));
    assert_eq!(first, second);
    assert!(matches!(world.state.next_ask(world.now_ns, node), NextAsk::Wait(_)), "a pause");
    world.now_ns += SECOND / 10;
    assert_eq!(world.answer(node, &done(1)), first);
    assert!(matches!(world.state.next_ask(world.now_ns, node), NextAsk::Wait(_)));
}

#[test]
fn shards_of_earlier_owners_go_before_anything_is_sent() {
    let mut world = World::new(0);
    let node = world.state.on_members(world.now_ns, &[member(1, LIFE)])[0];
    world.answer(node, &begun(3));
    assert!(matches!(world.begin(1, 100), Pick::NoRoom(_)));
    assert_eq!(world.state.room(world.now_ns).image_bytes_max, 0);
    assert!(!world.state.take_news().has_more_room);
    assert_eq!(world.answer(node, &done(3)), ShardMessage::Purge { owner: owner() });
    assert!(world.state.take_news().has_more_room);
    world.send(1);
    // Later beats count shards of this owner.
    world.now_ns += SECOND;
    world.answer(node, &begun(1));
    world.send(2);
}

#[test]
fn node_with_another_owner_gets_nothing_any_more() {
    for why in [ShardWhy::OldEpoch, ShardWhy::OtherToken] {
        let mut world = World::new(1);
        let node = world.send(1);
        world.send(2);
        world.state.release(&[id(2)], 0);
        world.now_ns += SECOND;
        world.answer(node, &refused(why));
        assert_eq!(world.state.take_news().lost, [id(1)]);
        assert!(matches!(world.begin(3, 100), Pick::NoRoom(_)));
        assert_eq!(world.state.next_ask(world.now_ns, node), NextAsk::Wait(u64::MAX));
        assert!(world.state.is_settled(), "nobody waits for a node that does not obey");
        assert_eq!(world.state.room(world.now_ns).held_bytes, 0);
    }
}

#[test]
fn node_that_has_dropped_the_database_has_no_shards() {
    let mut world = World::new(1);
    let node = world.send(1);
    let refusal = ShardWhy::NotBegun.into();
    world.state.on_refused(world.now_ns, node, &refusal);
    assert_eq!(world.state.take_news().lost, [id(1)]);
    assert!(matches!(world.begin(2, 100), Pick::NoRoom(_)));
    let message = world.answer(node, &begun(0));
    assert!(matches!(message, ShardMessage::Begin { .. }), "the owner begins again");
    world.send(2);
}

#[test]
fn node_that_began_the_database_anew_has_no_shards() {
    let mut world = World::new(1);
    let node = world.send(1);
    world.send(2);
    // The beat is on its way while another shard is registered: it may count the shard or not.
    world.now_ns += SECOND;
    let (task, _) = world.ask(node);
    world.send(3);
    world.state.on_answer(world.now_ns, node, &task, &begun(2));
    assert!(world.is_readable(node, 1) && world.is_readable(node, 3));
    // A release on its way is no loss: the node may have it or not.
    world.state.release(&[id(2)], 0);
    for shards in [3, 2] {
        world.now_ns += SECOND;
        world.answer(node, &begun(shards));
        assert!(world.is_readable(node, 1) && world.is_readable(node, 3));
    }
    // The owner was stopped for so long that the node dropped everything.
    world.now_ns += 700 * SECOND;
    world.answer(node, &begun(0));
    assert_eq!(world.state.take_news().lost, [id(1), id(3)]);
    assert!(!world.is_readable(node, 1) && !world.is_readable(node, 3));
    world.send(4);
}

#[test]
fn room_is_what_nodes_have_promised() {
    let mut world = World::new(2);
    let room = world.state.room(world.now_ns);
    assert_eq!((room.free_bytes, room.image_bytes_max), (2000, 400));
    assert_eq!(room.limit_bytes, 10_000);
    assert!(matches!(world.begin(1, 401), Pick::NoRoom(_)), "too large for each node");
    let Pick::Node { node, losses } = world.begin(1, 400) else { panic!("room") };
    let room = world.state.room(world.now_ns);
    assert_eq!((room.free_bytes, room.sending_bytes, room.held_bytes), (1600, 400, 0));
    world.state.sent(node, id(1), losses, readable()).expect("the node is there");
    let room = world.state.room(world.now_ns);
    assert_eq!((room.free_bytes, room.sending_bytes, room.held_bytes), (2000, 0, 400));
    assert_eq!(room.limit_bytes, 10_000, "what was sent since the last beat is within the limit");
    // Other databases have taken most of the node meanwhile.
    world.now_ns += SECOND;
    world.answer(node, &begun_with(1, 700));
    let room = world.state.room(world.now_ns);
    assert_eq!((room.free_bytes, room.limit_bytes), (1300, 5700));
    world.state.take_news();
    world.now_ns += SECOND;
    world.answer(node, &begun(1));
    assert!(world.state.take_news().has_more_room);
}

#[test]
fn full_node_gets_no_image_until_it_has_room() {
    let mut world = World::new(1);
    let node = world.send(1);
    assert!(matches!(world.begin(2, 100), Pick::Node { .. }));
    let full = NotSent { left_bytes: Some(60), ..NotSent::default() };
    world.state.not_sent(world.now_ns, node, id(2), full);
    let room = world.state.room(world.now_ns);
    assert_eq!((room.free_bytes, room.held_bytes, room.limit_bytes), (60, 100, 5000));
    assert!(matches!(world.begin(2, 61), Pick::NoRoom(_)));
    // A release frees some.
    world.state.release(&[id(1)], 0);
    world.state.take_news();
    world.answer(node, &done(1));
    assert!(world.state.take_news().has_more_room);
    let Pick::Node { .. } = world.begin(2, 100) else { panic!("the name was not used up") };
    // Other databases may free some, too.
    world.state.not_sent(world.now_ns, node, id(2), full);
    world.state.take_news();
    world.now_ns += OwnerTerms::default().full.as_nanos() as u64;
    assert_eq!(world.state.room(world.now_ns).limit_bytes, 5000);
    world.answer(node, &begun(0));
    assert!(world.state.take_news().has_more_room);
}

#[test]
fn transfers_wait_for_the_landing_zone() {
    let mut world = World::new(1);
    for memtable in 1..=2 {
        assert!(matches!(world.begin(memtable, 400), Pick::Node { .. }));
    }
    assert_eq!(world.begin(3, 400), Pick::Later);
    assert!(matches!(world.begin(3, 200), Pick::Node { .. }));
    assert!(matches!(world.begin(3, 10), Pick::NoRoom(_)), "it is on its way");
}

#[test]
fn limit_of_the_database_holds_over_all_nodes() {
    let mut world = World::new(2);
    world.state.terms.bytes_max = 250;
    world.send(1);
    world.send(2);
    assert!(matches!(world.begin(3, 51), Pick::NoRoom(_)));
    let room = world.state.room(world.now_ns);
    assert_eq!((room.limit_bytes, room.free_bytes), (250, 50));
    assert!(matches!(world.begin(3, 50), Pick::Node { .. }));
}

#[test]
fn limit_follows_the_shares_of_several_nodes() {
    let mut world = World::new(2);
    let node = world.send(1);
    world.state.take_news();
    // The other node has much room, and this one wants memory back.
    world.now_ns += SECOND;
    world.answer(node, &begun_with(1, 60));
    assert!(world.state.take_news().must_flush);
    let room = world.state.room(world.now_ns);
    assert_eq!((room.held_bytes, room.limit_bytes, world.state.surplus_bytes()), (100, 106, 40));
    assert!(away_excess_bytes(room.held_bytes, room.limit_bytes) > 0, "flushes are due");
    assert!(room.limit_bytes > room.held_bytes, "writers go on");
    world.now_ns += SECOND;
    world.answer(node, &begun_with(1, 100));
    let room = world.state.room(world.now_ns);
    assert_eq!((room.limit_bytes, world.state.surplus_bytes()), (5100, 0));
    // An answer to a transfer contains the share as well.
    world.state.take_news();
    world.state.on_share(node, &share(99));
    assert!(world.state.take_news().must_flush);
    assert_eq!(world.state.surplus_bytes(), 1);
}

/// The engine counts the images of shards that it can flush, and not those of a lost node.
fn is_due(world: &World, engine_bytes: u64) -> bool {
    let room = world.state.room(world.now_ns);
    away_excess_bytes(engine_bytes, room.limit_bytes) > 0
}

#[test]
fn one_node_that_wants_all_back_does_not_stop_writers() {
    let mut world = World::new(1);
    let node = world.send(1);
    world.send(2);
    world.now_ns += SECOND;
    world.answer(node, &begun_with(2, 0));
    let room = world.state.room(world.now_ns);
    assert_eq!((room.held_bytes, room.limit_bytes), (200, 212));
    let excess = away_excess_bytes(room.held_bytes, room.limit_bytes);
    assert!((1..=50).contains(&excess), "a part is flushed at a time: {excess}");
    // The release of a shard is under way. It lowers the use of the node without another flush.
    world.state.release(&[id(1)], 1);
    let room = world.state.room(world.now_ns);
    assert_eq!((room.held_bytes, room.limit_bytes), (200, 206));
    world.state.on_share(node, &share(100));
    assert_eq!(world.state.surplus_bytes(), 0);
}

#[test]
fn lost_node_does_not_keep_a_drained_one_from_being_emptied() {
    let mut world = World::new(2);
    let nodes: Vec<StoreNode> = (1..=20).map(|at| world.send_from(at, &[at as u8])).collect();
    let lost = nodes[0];
    let drained = *nodes.iter().find(|node| **node != lost).expect("shards at both nodes");
    world.miss(lost, 6);
    world.now_ns += SECOND;
    let kept: Vec<u64> =
        (1..).zip(&nodes).filter(|(_, node)| **node == drained).map(|at| at.0).collect();
    world.answer(drained, &begun_with(kept.len() as u32, 0));
    for (done_before, memtable) in kept.iter().enumerate() {
        let left = (kept.len() - done_before) as u64;
        assert!(is_due(&world, left * 100), "{left} shards are left");
        world.state.release(&[id(*memtable)], 1);
        world.answer(drained, &ShardMessage::Done { shards: 1, share: share(0) });
    }
    let room = world.state.room(world.now_ns);
    assert_eq!((room.held_bytes, world.state.surplus_bytes()), (0, 0));
}

#[test]
fn each_node_guarantees_its_part() {
    let mut world = World::new(2);
    world.state.terms.guaranteed_bytes = 901;
    let node = world.send(1);
    world.now_ns += SECOND;
    let NextAsk::Ask(NodeTask::Begin, ShardMessage::Begin { guaranteed_bytes, .. }) =
        world.state.next_ask(world.now_ns, node)
    else {
        panic!("a beat")
    };
    assert_eq!(guaranteed_bytes, 451);
    let share = NodeShare { guaranteed_bytes: 300, ..share(5000) };
    world.state.on_share(node, &share);
    assert_eq!(world.state.guaranteed_bytes(), 300);
}

/// An owner with two nodes, whose shards have two copies.
fn doubling() -> World {
    World::with(2, OwnerTerms { copies: 2, ..OwnerTerms::default() })
}

/// Sends both copies of a shard. Returns their nodes.
fn send_both(world: &mut World, memtable: u64) -> (StoreNode, StoreNode) {
    let first = world.send(memtable);
    let pick = world.state.begin_copy(world.now_ns, id(memtable), 100, b"");
    let Pick::Node { node, losses } = pick else { panic!("{pick:?}") };
    world.state.copied(node, id(memtable), losses, readable()).expect("the node is there");
    (first, node)
}

#[test]
fn release_goes_to_both_nodes_and_stops_a_copy_that_is_on_its_way() {
    let mut world = doubling();
    let (first, second) = send_both(&mut world, 1);
    assert_ne!(first, second);
    assert_eq!(world.state.release(&[id(1)], 1), [first, second].into());
    let first = world.send(2);
    let pick = world.state.begin_copy(world.now_ns, id(2), 100, b"");
    let Pick::Node { node, losses } = pick else { panic!("{pick:?}") };
    assert!(world.state.is_copying(node, id(2), losses));
    assert_eq!(world.state.release(&[id(2)], 1), [first].into());
    assert!(!world.state.is_copying(node, id(2), losses));
    assert!(world.state.copied(node, id(2), losses, readable()).is_err());
    let (task, _) = world.ask(node);
    assert_eq!(task, NodeTask::Release(vec![id(1), id(2)]));
}

#[test]
fn other_copy_is_read_when_a_node_is_lost_or_silent() {
    let mut world = doubling();
    let (first, second) = send_both(&mut world, 1);
    world.state.avoid(second, &[id(1)]);
    assert_eq!(world.state.home(id(1)), Some(first), "another node was silent");
    world.state.avoid(first, &[id(1)]);
    let news = world.state.take_news();
    assert_eq!((news.moved, news.copies_used), (vec![(id(1), second)], 1));
    // Now the node that is read is lost.
    world.miss(second, 6);
    let news = world.state.take_news();
    assert_eq!((news.moved, news.lost), (vec![(id(1), first)], vec![]));
    assert_eq!(world.state.routes(&[id(1)]).expect("a copy")[0].node, first);
    assert_eq!((world.state.counts().1, world.state.doubled()), (1, 0));
    world.state.lose(first, &[id(1)]);
    assert_eq!(world.state.take_news().lost, [id(1)]);
}

#[test]
fn second_copies_are_released_when_a_first_one_needs_the_room() {
    let terms = OwnerTerms { copies: 2, bytes_max: 400, ..OwnerTerms::default() };
    let mut world = World::with(2, terms);
    let nodes = [send_both(&mut world, 1), send_both(&mut world, 2)];
    let room = world.state.room(world.now_ns);
    assert_eq!((room.held_bytes, room.spare_bytes, room.free_bytes), (400, 200, 200));
    assert!(matches!(world.state.begin_copy(world.now_ns, id(2), 100, b""), Pick::NoRoom(_)));
    assert_eq!(world.begin(3, 100), Pick::Later, "the oldest second copy is given up");
    assert_eq!((world.state.doubled(), world.state.take_news().copies_given_up), (1, 1));
    let (task, _) = world.ask(nodes[0].1);
    assert_eq!(task, NodeTask::Release(vec![id(1)]));
    world.answer(nodes[0].1, &done(1));
    world.send(3);
    assert!(matches!(world.begin(4, 201), Pick::NoRoom(_)), "no second copy is that large");
}

#[test]
fn second_copies_are_given_up_before_flushes_are_due() {
    let mut world = doubling();
    let (first, second) = send_both(&mut world, 1);
    assert_eq!(send_both(&mut world, 2), (first, second));
    world.state.take_news();
    world.state.on_share(second, &share(120));
    let news = world.state.take_news();
    assert_eq!((news.copies_given_up, news.must_flush), (1, false));
    assert_eq!(news.given_up_at, [second].into());
    assert_eq!((world.state.doubled(), world.state.surplus_bytes()), (1, 0));
    let room = world.state.room(world.now_ns);
    assert_eq!((room.held_bytes, room.spare_bytes, room.limit_bytes), (400, 100, 5120));
    // The release is under way, so the next answer changes nothing.
    world.state.on_share(second, &share(120));
    assert_eq!(world.state.take_news(), News::default());
    let (task, _) = world.ask(second);
    assert_eq!(task, NodeTask::Release(vec![id(1)]));
    // An operator drains the node.
    let drained = ShardMessage::Done { shards: 1, share: share(0) };
    world.answer(second, &drained);
    let news = world.state.take_news();
    assert_eq!((news.copies_given_up, news.must_flush, world.state.doubled()), (1, false, 0));
    assert!(world.is_readable(first, 1) && world.is_readable(first, 2));
    assert!(matches!(world.state.begin_copy(world.now_ns, id(1), 100, b""), Pick::NoRoom(_)));
}

#[test]
fn first_copies_leave_a_drained_node_without_a_flush_if_another_node_has_them() {
    let mut world = doubling();
    let (first, second) = send_both(&mut world, 1);
    assert_eq!(world.send(2), first);
    world.state.take_news();
    world.state.on_share(first, &share(0));
    let news = world.state.take_news();
    assert_eq!((news.moved, news.copies_given_up), (vec![(id(1), second)], 1));
    assert!(news.must_flush, "the other shard has one copy");
    assert_eq!((world.state.home(id(1)), world.state.surplus_bytes()), (Some(second), 100));
    assert!(world.is_readable(second, 1) && !world.is_readable(first, 1));
    // A second copy that would exceed the share is stopped on its way.
    let pick = world.state.begin_copy(world.now_ns, id(2), 100, b"");
    let Pick::Node { node, losses } = pick else { panic!("{pick:?}") };
    assert_eq!(node, second);
    world.state.on_share(second, &share(200));
    assert!(world.state.is_copying(node, id(2), losses));
    world.state.on_share(second, &share(199));
    assert!(!world.state.is_copying(node, id(2), losses));
    assert_eq!(world.state.take_news().copies_given_up, 0);
}

#[test]
fn second_copies_at_a_node_that_does_not_answer_leave_no_room() {
    let mut world = doubling();
    let (_, second) = send_both(&mut world, 1);
    let silent = MemoryNode { is_up: false, ..member(second.0, LIFE) };
    world.state.on_members(world.now_ns, &[silent]);
    let room = world.state.room(world.now_ns);
    assert_eq!((room.held_bytes, room.spare_bytes, room.limit_bytes), (200, 100, 5000));
}

#[test]
fn copy_is_kept_while_the_node_of_the_other_one_is_silent() {
    let terms = OwnerTerms { copies: 2, bytes_max: 400, ..OwnerTerms::default() };
    let mut world = World::with(2, terms);
    let (first, second) = send_both(&mut world, 1);
    assert_eq!(send_both(&mut world, 2), (first, second));
    world.miss(first, 1);
    world.state.take_news();
    assert!(matches!(world.begin(3, 100), Pick::NoRoom(_)), "the copies may be the last ones");
    world.state.on_share(second, &share(120));
    assert_eq!((world.state.doubled(), world.state.take_news().copies_given_up), (2, 0));
    world.now_ns += SECOND;
    world.answer(first, &begun(2));
    assert_eq!(world.begin(3, 100), Pick::Later);
    assert_eq!(world.state.doubled(), 1);
}

#[test]
fn room_of_a_stopped_copy_counts_until_its_transfer_has_ended() {
    let mut world = doubling();
    let first = world.send(1);
    let pick = world.state.begin_copy(world.now_ns, id(1), 100, b"");
    let Pick::Node { node: second, losses } = pick else { panic!("{pick:?}") };
    world.state.on_share(first, &share(100));
    world.state.on_share(second, &share(150));
    for _ in 0..2 {
        assert_eq!(world.begin(2, 100), Pick::Later);
        assert!(!world.state.is_copying(second, id(1), losses));
    }
    let end = NotSent::default();
    assert!(world.state.not_copied(world.now_ns, second, id(1), end), "it was stopped");
    assert_eq!(world.send(2), second);
}

#[test]
fn owner_that_closes_begins_no_second_copy() {
    let mut world = doubling();
    world.send(1);
    assert!(world.state.needs_copy(id(1)));
    world.state.end_copies();
    assert!(!world.state.needs_copy(id(1)));
    assert!(matches!(world.state.begin_copy(world.now_ns, id(1), 100, b""), Pick::NoRoom(_)));
}
