//! Jobs of databases that run on other nodes, while owners, schedulers, executors and memory nodes
//! fail.
//!
//! The runs execute the state machines of `archipelago-offload`. A database here is a list of
//! items, each of which one job must install exactly once, and a directory of files by number. The
//! image of a flush lies at one of two memory nodes, and is gone when the node begins another life.
//! The last database loses its owner during the run, and no other process opens it. Half of the
//! owners have file numbers for one session of each job, as calls of the engine have. They plan a
//! job again when its scheduler ends.
//!
//! | part | file |
//! | --- | --- |
//! | the request, the figures and the steps that a run can leave out | `mod.rs` |
//! | events, messages and faults | `world.rs` |
//! | files and manifests of the databases | `storage.rs` |
//! | owners: they draw numbers, install, sweep and run jobs themselves | `owners.rs` |
//! | executors: they write files, one after another | `executors.rs` |
//!
//! Invariants that the run checks at each step:
//! 1. An item is installed at most once.
//! 2. No machine removes or replaces a file that the manifest names, and a file number is created
//!    at most once.
//! 3. Outputs that are installed come from the image that the owner named.
//! 4. First offers of jobs of one queue follow the order of their arrival.
//! 5. Without faults, no scheduler gives up a job that waits for a bounded resource.
//! 6. Without faults, no executor runs an attempt for more than five beats after its scheduler gave
//!    the attempt up.
//!
//! At the end, in a time without faults:
//! 7. All items are installed within a bound, except those of the database without an owner.
//! 8. No state is left over: the files are those of the manifest, no machine holds a job, and no
//!    scheduler knows the owner that has ended.
//!
//! Cost: some milliseconds per seed.

mod executors;
mod owners;
mod storage;
mod world;

use archipelago_offload::sabotage::Sabotage;

use crate::run::{RunOutcome, RunRequest, Scenario, Step};
use crate::scenarios::figures;
use world::World;

/// Steps of the protocol that a run can leave out.
const STEPS: [Step; 9] = [
    Step { name: "forget", about: "an owner discards nothing that it does not know" },
    Step { name: "attempt", about: "an owner installs outputs of live attempts only" },
    Step { name: "epoch", about: "an owner decides about jobs of its own epoch only" },
    Step { name: "term", about: "a scheduler gives out attempts of its own life only" },
    Step { name: "order", about: "a scheduler serves each queue from its head" },
    Step { name: "wait", about: "a scheduler takes a job that waits for a living one" },
    Step { name: "cancel", about: "a scheduler answers beats of attempts that it has given up" },
    Step { name: "image", about: "an executor reads only the image that its package names" },
    Step { name: "lots", about: "an owner makes file numbers durable before it uses them" },
];

pub(super) fn scenario() -> Scenario {
    let about = "jobs of databases on other nodes, with failures of owners, schedulers, executors";
    Scenario::with_steps("offload", about, &STEPS, run)
}

/// Steps that a run leaves out.
#[derive(Clone, Copy, Debug, Default)]
struct Omitted {
    protocol: Sabotage,
    lots: bool,
    image: bool,
    cancel: bool,
}

fn run(request: &RunRequest) -> RunOutcome {
    let omitted = Omitted {
        protocol: Sabotage {
            no_forget: request.leaves_out("forget"),
            no_attempt_check: request.leaves_out("attempt"),
            no_epoch_check: request.leaves_out("epoch"),
            no_term_check: request.leaves_out("term"),
            no_order: request.leaves_out("order"),
            no_wait: request.leaves_out("wait"),
        },
        lots: request.leaves_out("lots"),
        image: request.leaves_out("image"),
        cancel: request.leaves_out("cancel"),
    };
    let mut world = World::new(request, omitted);
    world.trouble();
    world.peace();
    let counted = world.counted();
    RunOutcome {
        violations: world.take_violations(),
        figures: figures([
            ("items installed", counted.installed),
            ("of them by executors", counted.by_executors),
            ("of them through another scheduler", counted.by_other_schedulers),
            ("attempts assigned", counted.assigned),
            ("owners that ended", counted.owners_ended),
            ("schedulers that ended", counted.schedulers_ended),
            ("executors that ended", counted.executors_ended),
            ("memory nodes that ended", counted.memories_ended),
            ("images that were gone", counted.images_gone),
            ("jobs that waited long", counted.waits),
        ]),
        notes: world.take_notes(),
        trace: world.trace(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scheduler_that_does_not_answer_beats_of_given_up_attempts_is_noticed() {
        let is_noticed = |seed| {
            let violations = run(&RunRequest::new(seed).without(&["cancel"])).violations;
            violations.iter().any(|violation| violation.contains("was given up and goes on"))
        };
        assert!((0..300).any(is_noticed));
    }
}
