//! Tests of the rounds of the scrub.

use std::sync::Arc;
use std::time::Duration;

use archipelago_env::mem::MemFs;
use archipelago_store::nodes::wire::StoreMessage;

use super::{IDLE, bytes_per_s};
use crate::chunks::tests::{STAMP, is_whole, open_with, options, release, tell, write};
use crate::node::StorageNode;
use crate::parts::{NodeOptions, ScrubOptions};

const DAY_MS: u64 = 24 * 3600 * 1000;
const MIB: usize = 1 << 20;

fn open(fs: &MemFs, scrub: ScrubOptions) -> Arc<StorageNode> {
    open_with(Arc::new(fs.clone()), &["/n"], NodeOptions { scrub, ..options() })
}

/// Steps until the node has nothing to check at `now_ms`. Returns the sum of the pauses.
fn run(node: &StorageNode, now_ms: u64) -> Duration {
    let mut paused = Duration::ZERO;
    for _ in 0..1000 {
        let pause = node.scrub_step(now_ms);
        if pause == IDLE && !node.report().scrub.is_running {
            return paused;
        }
        paused += pause;
    }
    panic!("the round does not end: {:?}", node.report().scrub);
}

#[test]
fn round_reads_all_bytes_and_is_due_after_the_interval() {
    let node = open(&MemFs::new(), ScrubOptions::default());
    write(&node, 1, 3 * MIB);
    write(&node, 2, MIB / 2);
    run(&node, 20 * DAY_MS);
    let status = node.report().scrub;
    assert_eq!((status.rounds, status.is_running, status.damaged_chunks), (1, false, 0));
    assert_eq!(status.read_bytes, (3 * MIB + MIB / 2) as u64);
    assert!(status.total_bytes >= status.read_bytes);
    run(&node, 33 * DAY_MS);
    assert_eq!(node.report().scrub.rounds, 1);
    run(&node, 34 * DAY_MS);
    assert_eq!(node.report().scrub.rounds, 2);
}

#[test]
fn pauses_keep_the_rate() {
    let scrub = ScrubOptions { bytes_per_s_max: 2 << 20, ..ScrubOptions::default() };
    let node = open(&MemFs::new(), scrub);
    write(&node, 1, 4 * MIB);
    assert_eq!(run(&node, DAY_MS * 20).as_secs(), 4, "the slowest rate for few bytes");
    tell(&node, StoreMessage::Scrub {}).unwrap();
    assert_eq!(run(&node, DAY_MS * 20).as_secs(), 2, "the fastest rate on request");
}

#[test]
fn rate_ends_a_round_in_half_of_the_interval() {
    let options = ScrubOptions { interval: Duration::from_secs(1000), bytes_per_s_max: 64 << 20 };
    assert_eq!(bytes_per_s(options, 8 << 30), (8u64 << 30).div_ceil(500));
    assert_eq!(bytes_per_s(options, 0), 1 << 20);
    assert_eq!(bytes_per_s(options, 1 << 60), 64 << 20);
}

#[test]
fn round_continues_after_a_restart() {
    let fs = MemFs::new();
    let node = open(&fs, ScrubOptions::default());
    (1..=4).for_each(|number| write(&node, number, 30 * MIB));
    tell(&node, StoreMessage::Scrub {}).unwrap();
    while node.report().scrub.read_bytes < (90 * MIB) as u64 {
        node.scrub_step(1);
    }
    drop(node);
    let node = open(&fs.kill_clone(), ScrubOptions::default());
    let status = node.report().scrub;
    assert!(status.is_running && status.read_bytes >= (64 * MIB) as u64, "{status:?}");
    run(&node, 2);
    let status = node.report().scrub;
    assert_eq!((status.rounds, status.read_bytes), (1, (120 * MIB) as u64));
}

#[test]
fn chunks_removed_during_a_round_are_no_damage() {
    let node = open(&MemFs::new(), ScrubOptions::default());
    (1..=3).for_each(|number| write(&node, number, 2 * MIB));
    tell(&node, StoreMessage::Scrub {}).unwrap();
    node.scrub_step(1);
    release(&node, 1, STAMP).unwrap();
    release(&node, 2, STAMP).unwrap();
    run(&node, 1);
    let report = node.report();
    assert_eq!((report.scrub.rounds, report.scrub.damaged_chunks), (1, 0));
    assert!(is_whole(&node, 3, 2 * MIB));
}
