use archipelago_base::random::Rng;
use archipelago_fabric::NodeId;

use super::*;

const BLOCK: u64 = 64 << 10;

fn block(number: u32) -> BlockId {
    BlockId { home: NodeId(1), number }
}

#[test]
fn class_holds_its_sizes_and_wastes_at_most_an_eighth() {
    let mut last = 0;
    for units in 1..=1 << 18 {
        let class = class_of(units);
        let held = units_of(class);
        assert!(held >= units && held - units <= units / 8, "{units} units in {held}");
        assert!(class >= last, "classes grow");
        assert_eq!(class_of(held), class, "a class's size is its own");
        last = class;
    }
}

/// Pieces never overlap under any order of allocations, frees and adoptions, and no byte is
/// lost.
#[test]
fn seeded_run_hands_out_every_byte_once() {
    for seed in 0..30 {
        let mut rng = Rng::with_seed(seed);
        let mut heap = Heap::new(BLOCK);
        let (mut live, mut blocks) = (Vec::<(Piece, u64)>::new(), 0);
        for now in 0..3000_u64 {
            if rng.u32(..100) < 55 {
                let len = if rng.bool() { rng.u64(1..200) } else { rng.u64(1..BLOCK / 2) };
                let piece = match heap.allocate(len, now).expect("fits a block") {
                    Some(piece) => piece,
                    None => {
                        heap.add(block(blocks));
                        blocks += 1;
                        heap.allocate(len, now).expect("fits").expect("a whole block")
                    }
                };
                assert!(piece.bytes >= len && piece.address.offset + piece.bytes <= BLOCK);
                for (other, _) in &live {
                    let apart = other.address.block != piece.address.block
                        || other.address.offset + other.bytes <= piece.address.offset
                        || piece.address.offset + piece.bytes <= other.address.offset;
                    assert!(apart, "seed {seed}: {piece:?} over {other:?}");
                }
                live.push((piece, len));
            } else if !live.is_empty() {
                let (piece, len) = live.swap_remove(rng.usize(..live.len()));
                heap.free(piece.address, len, now + 10);
            }
            let used: u64 = live.iter().map(|(piece, _)| piece.bytes).sum();
            assert_eq!(heap.stats().used_bytes, used);
        }
        let mut held = Vec::new();
        for (piece, len) in live.drain(..) {
            heap.free(piece.address, len, 4000);
            held.push(piece.address.block);
        }
        let early = heap.take_empty(3999);
        assert!(early.iter().all(|block| !held.contains(block)), "it may still be read");
        let empty = (early.len() + heap.take_empty(4000).len()) as u32;
        assert_eq!((empty, heap.stats()), (blocks, HeapStats::default()), "seed {seed}");
    }
}

#[test]
fn pieces_come_from_blocks_in_turn_on_request() {
    let mut heap = Heap::new(BLOCK);
    heap.turn();
    (1..=3).for_each(|number| heap.add(block(number)));
    let mut dealt = |bytes| {
        heap.turn();
        let piece = heap.allocate(bytes, 0).expect("fits").expect("room");
        piece.address.block.number
    };
    let mut small: Vec<u32> = (0..6).map(|_| dealt(64)).collect();
    assert!(small[..3] == small[3..], "one after another: {small:?}");
    small.truncate(3);
    small.sort_unstable();
    assert_eq!(small, [1, 2, 3]);
    // The heap skips a block without room, and loses none of its bytes.
    let half = BLOCK / 2;
    let mut blocks: Vec<u32> = (0..3).map(|_| dealt(half)).collect();
    blocks.sort_unstable();
    assert_eq!(blocks, [1, 2, 3]);
    let rest = 3 * half / 64 - 6;
    assert!((0..rest).all(|_| (1..=3).contains(&dealt(64))), "to the last byte");
    assert_eq!(heap.allocate(64, 0).expect("fits"), None);
    assert_eq!(heap.stats().used_bytes, 3 * BLOCK);
}

#[test]
fn listed_pieces_are_allocated_next() {
    let mut heap = Heap::new(BLOCK);
    heap.add(block(1));
    let take = |heap: &mut Heap| heap.allocate(100, 7).expect("fits").expect("room").address;
    let used: Vec<Address> = (0..5).map(|_| take(&mut heap)).collect();
    used.iter().for_each(|address| heap.free(*address, 100, 7));
    assert_eq!(heap.listed(100, 3).count(), 0, "they wait");
    heap.settle(7);
    assert_eq!(heap.listed(64, 3).count(), 0, "another class");
    let listed: Vec<Address> = heap.listed(100, 3).copied().collect();
    assert_eq!(listed, (0..3).map(|_| take(&mut heap)).collect::<Vec<_>>());
}

#[test]
fn adopted_block_frees_unreferenced_bytes() {
    let mut heap = Heap::new(BLOCK);
    let live = [(128, 100), (0, 64), (8192, 5000)];
    heap.adopt(block(7), &live, 5).expect("sound");
    assert_eq!(heap.allocate(64, 4).expect("fits"), None, "a reader may have the address");
    let mut got = Vec::new();
    while let Some(piece) = heap.allocate(64, 5).expect("fits") {
        got.push(piece.address.offset);
    }
    let held = 2 + 1 + (class_units(5000));
    assert_eq!(got.len() as u64, BLOCK / 64 - held);
    assert!(!got.contains(&0) && !got.contains(&192) && !got.contains(&8192));
    for wrong in [&[(0, 128), (64, 64)][..], &[(32, 8)], &[(BLOCK - 64, 65)]] {
        assert!(Heap::new(BLOCK).adopt(block(8), wrong, 0).is_err(), "{wrong:?}");
    }
}

#[test]
fn lost_block_takes_its_used_bytes_along() {
    let mut heap = Heap::new(BLOCK);
    heap.add(block(1));
    let lost = heap.allocate(100, 0).expect("fits").expect("room");
    heap.adopt(block(2), &[(0, 64), (128, 192)], 0).expect("sound");
    assert_eq!(heap.stats().used_bytes, 128 + 64 + 192);
    heap.remove(block(1));
    assert_eq!((heap.stats().blocks, heap.stats().used_bytes), (1, 64 + 192));
    // The owner of the index frees the piece after the loss of its block.
    heap.free(lost.address, 100, 0);
    assert_eq!((heap.stats().waiting_bytes, heap.stats().used_bytes), (BLOCK - 256, 64 + 192));
    heap.free(Address { block: block(2), offset: 128 }, 192, 0);
    heap.remove(block(2));
    assert_eq!(heap.stats(), HeapStats::default());
}

fn class_units(len: u64) -> u64 {
    units_of(class_of(len.div_ceil(UNIT)))
}

#[test]
fn piece_larger_than_a_block_is_refused() {
    let mut heap = Heap::new(BLOCK);
    assert!(heap.allocate(BLOCK + 1, 0).is_err());
    heap.add(block(1));
    let whole = heap.allocate(BLOCK, 0).expect("fits").expect("a whole block");
    assert_eq!((whole.address.offset, whole.bytes), (0, BLOCK));
    assert_eq!(heap.allocate(1, 0).expect("fits"), None);
}
