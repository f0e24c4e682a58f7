//! Writers that wait for space in vain: each family whose writers wait must have a job that ends
//! the wait.
//!
//! Invariants:
//! 1. The decision is made for each family. The jobs of one family free no space of another one, so
//!    writers do not wait for them.
//! 2. A family keeps its bound while a job of it runs, or can be picked, or while it has sealed
//!    memtables.
//!
//! Thread-safety: the functions run under the jobs lock.
//! Failure: none.
//! Cost: one comparison for each family while no writers are close to a bound. Otherwise one pick
//! of a compaction and of a garbage collection for each such family without a running job.

use crate::db::background::{compaction, gc, space};
use crate::db::inner::DbInner;
use crate::db::state::family::Family;
use crate::db::state::jobs::JobState;

/// Releases the writers of families for which no job runs and none can be picked, because nothing
/// else would end their wait for space. Reports then say that the bound cannot be kept. The writers
/// go on once their throttle is decided again ([`JobState::take_limit_changes`]).
pub(crate) fn note_idle(db: &DbInner, state: &mut JobState) {
    if !state.is_any_pressed() {
        return;
    }
    for family in db.view.live_families() {
        if may_be_released(state, &family) && !has_work(db, state, &family) {
            let space = state.space_mut(family.id);
            space.note_no_work();
            space::set_gauge(&family, space);
        }
    }
}

/// Whether the family is close to its bound, and its writers were not released before.
fn may_be_released(state: &mut JobState, family: &Family) -> bool {
    if !state.has_space(family.id) {
        return false;
    }
    let space = state.space_mut(family.id);
    space.is_pressed() && !space.has_no_work()
}

/// Whether a job of the family runs or can be picked that may free space. Sealed memtables at
/// memory nodes become due if there is no other job, because they may free space once their records
/// are in tables.
fn has_work(db: &DbInner, state: &mut JobState, family: &Family) -> bool {
    if state.is_working_on(family.id)
        || compaction::can_compact(db, state, family)
        || gc::can_collect(db, state, family)
    {
        return true;
    }
    let Some(tracker) = state.flushes_mut().get_mut(&family.id) else { return false };
    let due_before = tracker.due_below();
    tracker.make_all_due();
    if tracker.due_below() > due_before {
        db.jobs.wake();
    }
    !tracker.queue.is_empty()
}
