//! Writers that wait for space in vain: each family whose writers wait must have a job that ends
//! the wait.
//!
//! Invariants:
//! 1. The decision is made for each family. The jobs of one family free no space of another one, so
//!    writers do not wait for them. Only the room on the disk that such jobs hold counts: while one
//!    of them runs, a job that lacks room can still be picked later.
//! 2. A family keeps its bound while a job of it runs, or can be picked, or while it has sealed
//!    memtables. A family that was released gets its bound back when a job of it starts.
//!
//! Thread-safety: the functions run under the jobs lock.
//! Failure: none.
//! Cost: a visit of each family while writers of any are close to a bound. For each such family
//! without a running job, a pick of a garbage collection, and one or two picks of a compaction if
//! there is none. After a pick, the family is not examined for [`PAUSE_NS`]. The caller makes one
//! comparison for each family with value files while no writers are close to a bound.

use crate::db::background::compaction_pick::{self, PickBasis};
use crate::db::background::gc::HeirRoom;
use crate::db::background::owners::PickOwners;
use crate::db::background::{gc, space};
use crate::db::state::family::Family;
use crate::db::state::jobs::JobState;

/// Nanoseconds for which a family is not examined again after work was found. Writers that wait
/// wake workers more rarely than that.
const PAUSE_NS: u64 = 10_000_000;

/// One examination of all families.
struct Examination<'a> {
    owners: PickOwners<'a>,
    now_ns: u64,
    /// The state that all picks share, once a family needs one.
    shared: Option<SharedState>,
}

/// State of the database that the picks of all families share.
struct SharedState {
    basis: PickBasis,
    heir_room: HeirRoom,
}

/// Releases the writers of families for which no job runs and none can be picked, because nothing
/// else would end their wait for space. Reports then say that the bound cannot be kept. The writers
/// go on once their throttle is decided again ([`JobState::take_limit_changes`]).
pub(crate) fn note_idle(owners: PickOwners<'_>, state: &mut JobState) {
    let now_ns = owners.context.clock().now_ns();
    let mut examination = Examination { owners, now_ns, shared: None };
    for family in owners.view.live_families() {
        examination.note_family(state, &family);
    }
}

impl Examination<'_> {
    /// Decides whether the writers of one family are bounded.
    fn note_family(&mut self, state: &mut JobState, family: &Family) {
        if !state.has_space(family.id) {
            return;
        }
        let is_working = state.is_working_on(family.id);
        let space = state.space_mut(family.id);
        if !space.is_pressed() {
            return;
        }
        match (space.has_no_work(), is_working) {
            (true, false) | (false, true) => return,
            (true, true) => space.note_work(),
            (false, false) => {
                if !space.may_lack_work(self.now_ns) || self.finds_work(state, family) {
                    return;
                }
                state.space_mut(family.id).note_no_work();
            }
        }
        space::set_gauge(family, state.space_mut(family.id));
    }

    /// Whether a job of the family can be picked, and notes it. No job of the family may run.
    fn finds_work(&mut self, state: &mut JobState, family: &Family) -> bool {
        let owners = self.owners;
        let shared = self.shared.get_or_insert_with(|| SharedState {
            basis: PickBasis::new(owners, state),
            heir_room: HeirRoom::now(owners.disk, owners.view, true),
        });
        let has_work = has_work(owners, state, family, shared);
        // In manual mode, each step must tell exactly whether there is work.
        if has_work && !owners.context.is_manual() {
            let until_ns = self.now_ns.saturating_add(PAUSE_NS);
            state.space_mut(family.id).note_work_found(until_ns);
        }
        has_work
    }
}

/// Whether a job of the family can be picked that may free space. Sealed memtables at memory nodes
/// become due if there is no other job, because they may free space once their records are in
/// tables.
fn has_work(
    owners: PickOwners<'_>,
    state: &mut JobState,
    family: &Family,
    shared: &SharedState,
) -> bool {
    if gc::can_collect(owners, state, shared.heir_room, family)
        || compaction_pick::can_compact(owners.disk, owners.view, state, &shared.basis, family)
    {
        return true;
    }
    let Some(tracker) = state.flushes_mut().get_mut(&family.id) else { return false };
    let due_before = tracker.due_below();
    tracker.make_all_due();
    if tracker.due_below() > due_before {
        owners.jobs.wake();
    }
    !tracker.queue().is_empty()
}
