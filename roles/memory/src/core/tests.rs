//! The rules of a memory node, one per test, over memory that is only counted.

use std::collections::{BTreeMap, BTreeSet};

use archipelago_base::{Epoch, Error, Result};
use archipelago_fabric::{ClientId, NodeId, NodeStats, RegionId, RemoteKey, Rights};
use archipelago_pool::wire::{CopyStep, Message, Purpose, Refused, RefusedFor, Source, Why};
use archipelago_pool::{BlockId, Config, Place, Sharing, asker_of_promises};

use super::{Limits, MemoryCore};
use crate::space::Space;

const ME: Place = Place { node: NodeId(1), life: Epoch(10) };
const MANAGER: ClientId = ClientId(1000);
const OWNER: ClientId = ClientId(1);
const OTHER: ClientId = ClientId(2);
const TERM: u64 = 7;

#[derive(Default)]
struct Counted {
    blocks: BTreeSet<BlockId>,
    valid: BTreeMap<u64, BlockId>,
    /// Keys by which a process has memory mapped, revoked or not.
    held: BTreeSet<u64>,
    next: u64,
    /// Whether the system has no memory, although the node is not full.
    exhausted: bool,
}

impl Space for Counted {
    fn allocate(&mut self, block: BlockId) -> Result<()> {
        if self.exhausted {
            return Err(Error::busy("no memory"));
        }
        assert!(self.blocks.insert(block), "two regions for {block}");
        Ok(())
    }

    fn grant(&mut self, block: BlockId, rights: Rights) -> Result<RemoteKey> {
        self.next += 1;
        self.valid.insert(self.next, block);
        let region = RegionId(self.next as u32);
        Ok(RemoteKey { node: ME.node, epoch: ME.life, region, tag: self.next, len: 4096, rights })
    }

    fn revoke(&mut self, key: &RemoteKey) {
        self.valid.remove(&key.tag);
    }

    fn is_held(&self, key: &RemoteKey) -> bool {
        self.held.contains(&key.tag)
    }

    fn release(&mut self, block: BlockId) {
        assert!(self.blocks.remove(&block));
        assert!(self.valid.values().all(|of| *of != block), "released under a valid key");
    }
}

fn block(number: u32) -> BlockId {
    BlockId { home: ME.node, number }
}

fn config(number: u32, epoch: u64, sharing: Sharing) -> Config {
    Config {
        block: block(number),
        epoch: Epoch(epoch),
        born: Epoch(1),
        owner: Some(OWNER),
        label: 0,
        request: 1,
        sharing,
        wanted: 1,
        copies: vec![ME],
    }
}

struct Node(MemoryCore, Counted);

impl Node {
    fn new() -> Self {
        let limits = Limits { block_bytes: 4096, blocks_max: 2 };
        let mut core = MemoryCore::new(ME.node, ME.life, limits, 0);
        core.on_beat_answer(TERM, MANAGER, true);
        Self(core, Counted::default())
    }

    fn tell(&mut self, message: &Message) -> Message {
        self.0.on_message(&mut self.1, MANAGER, message).0
    }

    fn installed(number: u32, sharing: Sharing) -> Self {
        let mut node = Self::new();
        node.place(number, 1, sharing);
        node
    }

    fn place(&mut self, number: u32, epoch: u64, sharing: Sharing) -> Message {
        let config = config(number, epoch, sharing);
        let answer = self.tell(&Message::Fill { term: TERM, config: config.clone(), source: None });
        self.tell(&Message::Install { term: TERM, config });
        answer
    }

    fn open(&mut self, client: ClientId, number: u32, epoch: u64) -> Result<RemoteKey, Why> {
        let (block, epoch, purpose) = (block(number), Epoch(epoch), Purpose::Use);
        let open = Message::Open { client, block, epoch, purpose };
        match self.0.on_message(&mut self.1, client, &open).0 {
            Message::Opened { key, .. } => Ok(key),
            Message::Refuse { refused } => Err(refused.why),
            other => panic!("{other:?}"),
        }
    }

    fn seal(&mut self, number: u32, epoch: u64) -> Message {
        self.tell(&Message::Seal { term: TERM, block: block(number), epoch: Epoch(epoch) })
    }
}

fn step(message: &Message) -> Result<CopyStep, Why> {
    match message {
        Message::CopyIs { step, .. } => Ok(*step),
        Message::Refuse { refused } => Err(refused.why),
        other => panic!("{other:?}"),
    }
}

#[test]
fn seal_revokes_writes_and_refuses_older_epochs() {
    let mut node = Node::installed(1, Sharing::Owner);
    let key = node.open(OWNER, 1, 1).expect("its owner");
    assert_eq!(key.rights, Rights::ALL);
    assert_eq!(node.open(OTHER, 1, 1).expect("reads").rights, Rights::READ);
    assert_eq!(step(&node.seal(1, 5)), Ok(CopyStep::Sealed));
    assert!(!node.1.valid.contains_key(&key.tag), "revoked before it is answered");
    assert_eq!(node.open(OWNER, 1, 1), Err(Why::OldEpoch));
    assert_eq!(step(&node.seal(1, 4)), Err(Why::OldEpoch), "a seal that came late");
    let late = Message::Install { term: TERM, config: config(1, 4, Sharing::Owner) };
    assert_eq!(step(&node.tell(&late)), Err(Why::OldEpoch));
    let heir = Config { owner: Some(OTHER), ..config(1, 5, Sharing::Owner) };
    let install = Message::Install { term: TERM, config: heir };
    assert_eq!(step(&node.tell(&install)), Ok(CopyStep::Installed));
    assert_eq!(node.open(OTHER, 1, 5).expect("the heir").rights, Rights::ALL);
    assert_eq!(node.open(OWNER, 1, 5).expect("reads").rights, Rights::READ);
}

#[test]
fn mapped_copy_is_not_sealed_and_its_memory_not_reused() {
    let mut node = Node::installed(1, Sharing::Owner);
    let key = node.open(OWNER, 1, 1).expect("its owner");
    node.1.held.insert(key.tag);
    assert_eq!(step(&node.seal(1, 2)), Ok(CopyStep::Sealing));
    assert_eq!(step(&node.seal(1, 2)), Ok(CopyStep::Sealing), "asked again");
    assert_eq!(node.0.held(&node.1), [key]);
    let drop = Message::Drop { term: TERM, block: block(1), epoch: Epoch(2), freed: true };
    assert_eq!(step(&node.tell(&drop)), Ok(CopyStep::Dropped));
    assert_eq!((node.0.blocks_used(), node.1.blocks.len()), (1, 1), "it still takes memory");
    node.place(2, 1, Sharing::Owner);
    assert_eq!(step(&node.place(3, 1, Sharing::Owner)), Err(Why::Full), "with what is given up");
    node.1.held.clear();
    node.0.on_timer(&mut node.1);
    assert_eq!(step(&node.place(3, 1, Sharing::Owner)), Ok(CopyStep::Filled));
    assert_eq!(node.1.blocks.len(), 2);
    let again = node.place(1, 2, Sharing::Owner);
    assert_eq!(step(&again), Err(Why::OldEpoch), "a late order does not revive what was freed");
}

#[test]
fn fenced_client_loses_all_keys_and_gets_none() {
    let mut node = Node::installed(1, Sharing::All);
    let key = node.open(OTHER, 1, 1).expect("all may write");
    assert_eq!(key.rights, Rights::ALL);
    let fence = |tell| Message::Fence { term: TERM, clients: vec![OTHER, ClientId(3)], tell };
    let is = |held: &[ClientId], fenced: &[ClientId]| Message::FenceIs {
        life: ME.life,
        held: held.to_vec(),
        fenced: fenced.to_vec(),
    };
    assert_eq!(node.tell(&fence(false)), is(&[], &[]));
    assert!(!node.1.valid.contains_key(&key.tag));
    assert_eq!(node.tell(&fence(true)), is(&[], &[OTHER, ClientId(3)]), "a manager may ask");
    assert_eq!(node.open(OTHER, 1, 1), Err(Why::Evicted));
    node.open(OWNER, 1, 1).expect("others are not disturbed");
}

#[test]
fn fenced_client_is_held_by_any_key_that_could_write() {
    let mut node = Node::installed(1, Sharing::All);
    let key = node.open(OTHER, 1, 1).expect("all may write");
    node.1.held.insert(key.tag);
    // The key is revoked before the client is fenced. The process may still be writing by it.
    assert_eq!(step(&node.seal(1, 2)), Ok(CopyStep::Sealing));
    let fence = Message::Fence { term: TERM, clients: vec![OTHER], tell: false };
    let is = |held| Message::FenceIs { life: ME.life, held, fenced: Vec::new() };
    assert_eq!(node.tell(&fence), is(vec![OTHER]));
    node.1.held.clear();
    assert_eq!(node.tell(&fence), is(Vec::new()));
}

#[test]
fn node_obeys_only_the_known_manager_in_its_term() {
    let mut node = Node::installed(1, Sharing::Owner);
    let drop = |term| Message::Drop { term, block: block(1), epoch: Epoch(9), freed: true };
    let told = node.0.on_message(&mut node.1, OWNER, &drop(TERM)).0;
    assert_eq!(step(&told), Err(Why::NotAllowed));
    assert_eq!(step(&node.tell(&drop(TERM - 1))), Err(Why::OldTerm));
    node.0.on_beat_answer(TERM - 1, OWNER, true);
    assert_eq!(step(&node.tell(&drop(TERM - 1))), Err(Why::OldTerm), "an earlier manager");
    assert_eq!(node.0.blocks_used(), 1);
}

#[test]
fn copy_is_not_served_before_it_is_filled() {
    let mut node = Node::new();
    let source = Source { node: NodeId(2), life: Epoch(1), endpoints: Vec::new() };
    let fill =
        Message::Fill { term: TERM, config: config(1, 3, Sharing::Owner), source: Some(source) };
    let (answer, order) = node.0.on_message(&mut node.1, MANAGER, &fill);
    assert_eq!(step(&answer), Ok(CopyStep::Filling));
    let order = order.expect("bytes to copy");
    let install = Message::Install { term: TERM, config: config(1, 3, Sharing::Owner) };
    assert_eq!(step(&node.tell(&install)), Err(Why::NotReady));
    assert_eq!(node.open(OWNER, 1, 3), Err(Why::NotReady));
    node.0.on_copied(&mut node.1, &order, false);
    assert_eq!(node.0.blocks_used(), 0, "what did not arrive is given up");
    let again = node.0.on_message(&mut node.1, MANAGER, &fill).1.expect("asked for again");
    node.0.on_copied(&mut node.1, &again, true);
    assert_eq!(step(&node.tell(&fill)), Ok(CopyStep::Filled));
    assert_eq!(step(&node.tell(&install)), Ok(CopyStep::Installed));
}

#[test]
fn refresh_makes_copies_equal_and_refuses_late_bytes() {
    let mut node = Node::installed(1, Sharing::All);
    let source = || Some(Source { node: NodeId(2), life: Epoch(1), endpoints: Vec::new() });
    let fill = |epoch| {
        let config = config(1, epoch, Sharing::All);
        Message::Fill { term: TERM, config, source: source() }
    };
    assert_eq!(step(&node.seal(1, 3)), Ok(CopyStep::Sealed));
    let (answer, first) = node.0.on_message(&mut node.1, MANAGER, &fill(3));
    assert_eq!(step(&answer), Ok(CopyStep::Filling));
    let first = first.expect("bytes to copy");
    assert!(node.0.takes(&first));
    assert_eq!(node.0.on_message(&mut node.1, MANAGER, &fill(3)).1, None, "under way already");
    // The change begins again.
    assert_eq!(step(&node.seal(1, 4)), Ok(CopyStep::Sealed));
    assert!(!node.0.takes(&first), "its bytes are of an epoch that is over");
    node.0.on_copied(&mut node.1, &first, true);
    let (answer, second) = node.0.on_message(&mut node.1, MANAGER, &fill(4));
    assert_eq!(step(&answer), Ok(CopyStep::Filling), "the late end of the first says nothing");
    node.0.on_copied(&mut node.1, &second.expect("bytes to copy"), false);
    let second = node.0.on_message(&mut node.1, MANAGER, &fill(4)).1.expect("asked for again");
    node.0.on_copied(&mut node.1, &second, true);
    assert_eq!(step(&node.tell(&fill(4))), Ok(CopyStep::Filled));
    let config = config(1, 4, Sharing::All);
    assert_eq!(step(&node.tell(&Message::Install { term: TERM, config })), Ok(CopyStep::Installed));
    assert!(!node.0.takes(&second));
    assert_eq!(node.0.blocks_used(), 1, "in place");
}

#[test]
fn node_without_memory_says_how_much_is_left() {
    let mut node = Node::new();
    node.1.exhausted = true;
    let full = |left| Message::refuse(Refused::at(Why::Full, left));
    assert_eq!(node.place(1, 1, Sharing::Owner), full(2 * 4096));
    assert_eq!(node.0.blocks_used(), 0, "nothing is taken by what was refused");
    node.1.exhausted = false;
    assert_eq!(step(&node.place(1, 1, Sharing::Owner)), Ok(CopyStep::Filled));
    node.1.exhausted = true;
    assert_eq!(node.place(2, 1, Sharing::Owner), full(4096));
    node.1.exhausted = false;
    assert_eq!(step(&node.place(2, 1, Sharing::Owner)), Ok(CopyStep::Filled));
    assert_eq!(node.place(3, 1, Sharing::Owner), full(0), "its size is used up");
}

#[test]
fn beat_has_counters_of_copies_and_refusals() {
    let mut node = Node::installed(1, Sharing::Owner);
    let key = node.open(OWNER, 1, 1).expect("its owner");
    let source = Source { node: NodeId(2), life: Epoch(1), endpoints: Vec::new() };
    let config = config(2, 3, Sharing::Owner);
    let fill = Message::Fill { term: TERM, config, source: Some(source) };
    for arrived in [false, true] {
        let order = node.0.on_message(&mut node.1, MANAGER, &fill).1.expect("bytes to copy");
        node.0.on_copied(&mut node.1, &order, arrived);
    }
    assert_eq!(step(&node.place(3, 1, Sharing::Owner)), Err(Why::Full));
    assert_eq!(node.open(OTHER, 9, 1), Err(Why::UnknownBlock));
    assert_eq!(node.open(OTHER, 8, 1), Err(Why::UnknownBlock));
    node.1.held.insert(key.tag);
    let drop = Message::Drop { term: TERM, block: block(1), epoch: Epoch(2), freed: true };
    assert_eq!(step(&node.tell(&drop)), Ok(CopyStep::Dropped));
    assert_eq!(node.0.counters(NodeStats::default()).freed, 1, "the copy that did not arrive");
    node.1.held.clear();
    node.0.on_timer(&mut node.1);
    let fabric = NodeStats {
        operations: 5,
        requests: 6,
        duplicates: 7,
        refused: 8,
        malformed: 6,
        unauthenticated: 3,
        ..NodeStats::default()
    };
    let Message::Beat { counters, blocks_used, .. } = node.0.beat(Vec::new(), fabric) else {
        panic!("a beat");
    };
    assert_eq!((counters.given, counters.freed, blocks_used), (3, 2, 1));
    assert_eq!((counters.filled, counters.filled_bytes), (1, 4096), "whole copies alone");
    // A copy that was not made is not installed either.
    let refused = [(Why::Full, 1), (Why::UnknownBlock, 3)];
    assert_eq!(counters.refusals, refused.map(|(why, count)| RefusedFor { why, count }));
    let of_fabric = (counters.operations, counters.requests, counters.duplicates);
    assert_eq!((of_fabric, counters.refused, counters.malformed), ((5, 6, 7), 8, 9));
}

#[test]
fn node_refuses_orders_of_a_smaller_term_than_it_promised() {
    let mut node = Node::installed(1, Sharing::Owner);
    let next = ClientId(1001);
    node.0.on_beat_answer(0, next, false);
    let promise = Message::Promise { term: TERM + 1, lease_ms: 10 };
    node.0.on_time(9_999_999);
    let asked = node.0.on_message(&mut node.1, asker_of_promises(next), &promise).0;
    assert_eq!(step(&asked), Err(Why::Promised), "it has just started");
    node.0.on_time(10_000_000);
    let asked = node.0.on_message(&mut node.1, asker_of_promises(next), &promise).0;
    assert_eq!(asked, Message::Promised { term: TERM + 1 });
    assert_eq!(step(&node.seal(1, 5)), Err(Why::OldTerm), "of the manager before");
    let drop = Message::Drop { term: TERM + 1, block: block(1), epoch: Epoch(9), freed: true };
    let dropped = node.0.on_message(&mut node.1, next, &drop).0;
    assert_eq!(step(&dropped), Ok(CopyStep::Dropped));
}
