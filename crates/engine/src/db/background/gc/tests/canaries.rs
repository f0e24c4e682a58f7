//! Defects of the Invalid Tree that its tests must notice. Each test here runs one of those tests
//! with one defect, and expects that test to fail.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::invalid_tree::{
    entries_before_their_edit_are_never_visible,
    entries_of_a_compaction_count_for_an_heir_that_overtook_it,
    invalid_tree_is_the_complement_of_the_look_up,
};
use crate::sabotage::{Defect, with_defect};

fn is_noticed(defect: Defect, core: fn()) -> bool {
    catch_unwind(AssertUnwindSafe(|| with_defect(defect, core))).is_err()
}

#[test]
fn suite_notices_an_entry_that_a_compaction_drops() {
    let core = invalid_tree_is_the_complement_of_the_look_up;
    assert!(is_noticed(Defect::DroppedInvalidEntry, core));
}

#[test]
fn suite_notices_an_entry_that_a_merge_drops() {
    let core = invalid_tree_is_the_complement_of_the_look_up;
    assert!(is_noticed(Defect::DroppedMergedEntry, core));
}

#[test]
fn suite_notices_an_entry_of_another_file_that_counts() {
    let core = invalid_tree_is_the_complement_of_the_look_up;
    assert!(is_noticed(Defect::EntryOfAnotherFile, core));
}

#[test]
fn suite_notices_old_entries_of_ancestors_that_count() {
    let core = invalid_tree_is_the_complement_of_the_look_up;
    assert!(is_noticed(Defect::EntriesWithoutLimit, core));
}

#[test]
fn suite_notices_heirs_that_are_pruned_under_invalid_files() {
    let core = entries_of_a_compaction_count_for_an_heir_that_overtook_it;
    assert!(is_noticed(Defect::PruningUnderInvalidFiles, core));
}

#[test]
fn suite_notices_entries_ahead_of_their_edit() {
    assert!(is_noticed(
        Defect::EntriesAheadOfTheirEdit,
        entries_before_their_edit_are_never_visible
    ));
}
