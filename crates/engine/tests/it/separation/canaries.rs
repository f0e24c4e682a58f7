//! Defects that the suite must find, so that its success means something.
//!
//! Each test runs the core of another one with one defect and expects it to fail. The cores pass
//! without a defect in their own tests.

use archipelago_engine::sabotage::Defect;

use super::world::World;
use super::{audit, races};
use crate::support::is_noticed;

#[test]
fn suite_notices_validity_by_key_alone() {
    assert!(is_noticed(Defect::ValidityByKeyAlone, races::change_separated_values));
}

#[test]
fn suite_notices_pruning_under_running_jobs() {
    let core = races::replace_the_file_that_outputs_will_name;
    assert!(is_noticed(Defect::PruningUnderJobs, core));
}

#[test]
fn suite_notices_pruning_during_recovery() {
    let core = races::replace_the_file_that_outputs_will_name;
    assert!(is_noticed(Defect::PruningDuringRecovery, core));
}

#[test]
fn suite_notices_value_files_that_no_job_holds() {
    let core = races::replace_the_file_that_a_compaction_reads;
    assert!(is_noticed(Defect::UnheldValueFiles, core));
}

/// Reads after a garbage collection that left all tables as they were.
fn collect_and_read() {
    let mut world = World::new(|_| ());
    world.expose_garbage();
    world.settle();
    assert!(world.collections() > 0, "nothing was collected");
    world.check();
    world.finish();
}

#[test]
fn suite_notices_hints_that_are_used_after_garbage_collection() {
    collect_and_read();
    assert!(is_noticed(Defect::StaleHints, collect_and_read));
}

/// Writes and audits, without reads of values.
fn write_and_audit() {
    let mut world = World::new(|_| ());
    world.fill(0, |_| true);
    world.settle();
    audit(&world.db);
}

#[test]
fn suite_notices_a_forgotten_reference() {
    write_and_audit();
    assert!(is_noticed(Defect::ForgottenReferences, write_and_audit));
}
