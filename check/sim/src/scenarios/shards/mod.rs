//! Memtable shards on a memory node, while owners change and every part fails at times.
//!
//! The runs execute the shard host of the product over the fabric in virtual time: its queue, its
//! state machine, its copies and its searches, with the keys and the memory of the fabric's node.
//! Owners are tasks that know what each shard holds. Packets are lost, doubled, delayed and torn,
//! and links are cut. One-sided writes arrive after the registration, and messages arrive again.
//! The node restarts empty, and new owners begin while old owners continue. The first records of
//! some shards are written long before the registration, and some of these shards are given up.
//!
//! | part | file |
//! | --- | --- |
//! | the request, the figures and the steps that a run can leave out | `mod.rs` |
//! | the node, the faults, the time of peace and the checks at its end | `world.rs` |
//! | the contents of shards, and their states as owners know them | `model.rs` |
//! | owners: grants, registrations, releases, messages that come again | `owner.rs` |
//! | shards whose first records leave before the others | `ahead.rs` |
//! | searches, and the comparison of their answers | `reader.rs` |
//!
//! Invariants that the run checks at each step:
//! 1. An answer to a search has exactly the versions that the shards have, or it is a refusal. A
//!    refusal as unknown names a shard that is not registered any more.
//! 2. A registration that comes again gets the first answer, and a released shard is not registered
//!    again.
//! 3. After a later owner has begun, an earlier owner gets only refusals.
//! 4. The host takes at most its limit of bytes.
//! 5. A shard that is not registered is not read, even if its bytes lie in the landing zone.
//! 6. A grant that its owner neither uses nor requests again ends.
//!
//! At the end, in a time without faults:
//! 7. After the owners have released everything, the host has no shard and no grant. After they
//!    were silent for a while, it has no memory.
//!
//! Cost: some ten milliseconds per seed.

mod ahead;
mod model;
mod owner;
mod reader;
mod world;

use archipelago_offload::shard_host::HostSabotage;

use crate::run::{RunOutcome, RunRequest, Scenario, Step};
use world::World;

/// Steps of the host that a run can leave out.
const STEPS: [Step; 9] = [
    Step { name: "epoch", about: "the host refuses messages of earlier owners" },
    Step { name: "pieces", about: "the host compares the pieces of an image with checksums" },
    Step { name: "void", about: "a release makes the grants of its shards void" },
    Step { name: "unknown", about: "a search of a shard that is not there is refused" },
    Step { name: "resume", about: "an answer without room for more says where to go on" },
    Step { name: "limit", about: "the host stays within its bytes" },
    Step { name: "orphans", about: "the host drops shards whose owner was silent" },
    Step { name: "grants", about: "the host ends grants that nobody uses" },
    Step { name: "idempotence", about: "a registration that comes again gets the first answer" },
];

pub(super) fn scenario() -> Scenario {
    let about = "memtable shards on a memory node, with late writes, failures and new owners";
    Scenario::with_steps("shards", about, &STEPS, run)
}

fn run(request: &RunRequest) -> RunOutcome {
    let sabotage = HostSabotage {
        no_epoch_check: request.leaves_out("epoch"),
        no_piece_check: request.leaves_out("pieces"),
        no_void: request.leaves_out("void"),
        no_unknown: request.leaves_out("unknown"),
        no_resume: request.leaves_out("resume"),
        no_limit: request.leaves_out("limit"),
        no_orphan_end: request.leaves_out("orphans"),
        no_idempotence: request.leaves_out("idempotence"),
        no_grant_end: request.leaves_out("grants"),
        no_guarantees: false,
    };
    let mut world = World::new(request, sabotage);
    world.trouble();
    world.peace();
    world.outcome()
}
