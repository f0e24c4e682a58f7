//! Sealing: the active memtable of a family becomes immutable, and a new one takes its place.
//!
//! The functions run under the commit lock.
//!
//! Invariants:
//! 1. A sealed memtable holds everything of its family up to the last sequence number that was
//!    given out before the seal, together with older memtables and tables.
//! 2. Readers find each record in exactly one memtable: the swap is one super version.
//!
//! Thread-safety: the caller holds the commit lock.
//! Failure: none.
//! Cost: one allocation for the memtable, its shards and the super version.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::db::inner::DbInner;
use crate::db::read::ReadView;
use crate::db::state::context::Context;
use crate::db::state::family::{Family, SuperVersion};
use crate::db::state::jobs::JobState;
use crate::db::state::sealed::Sealed;
use crate::db::write::commit_state::CommitGuard;
use crate::db::write::{WritePath, stalling};
use crate::event::Event;
use crate::stats::Ticker;
use crate::version::Version;

/// Whether the family has room for one more immutable memtable. Memtables whose shards are all at
/// memory nodes do not count, and neither do those that stay in memory by choice.
pub(crate) fn may_seal(family: &Family) -> bool {
    immutables_here(family, &family.current.load()) + 1 < family.options.write_buffers_max
}

/// Number of immutable memtables that have shards in memory, without those that stay by choice.
pub(crate) fn immutables_here(family: &Family, current: &SuperVersion) -> usize {
    let counted = current.immutables.iter().skip(family.stay_allowance());
    counted.filter(|immutable| immutable.is_here()).count()
}

/// Seals the active memtable (commit lock held). Nothing happens if it is empty.
pub(crate) fn seal_active(db: &DbInner, commit: &mut CommitGuard<'_>, family: &Arc<Family>) {
    let Some(old) = commit.active_of(family.id).cloned() else { return };
    if old.is_empty() {
        return;
    }
    // The credits do not cover the tables of the next memtable, so the next write measures the
    // disk.
    commit.drop_credits();
    old.close_at(commit.last_seq());
    old.note_seal_log(db.logs.open_no());
    let reads =
        db.observers.stats().get(Ticker::GetsMemtable) + db.observers.stats().get(Ticker::Seeks);
    old.note_reads(db.pacing.reads_since_seal(reads));
    let bytes = old.charged_bytes();
    {
        let mut state = db.jobs.lock(commit.order());
        let current = family.current.load_full();
        if immutables_here(family, &current) == 0 {
            family.backlog_since_ns.store(db.context.clock().now_ns(), Ordering::Relaxed);
        }
        if let Some(link) = db.context.away() {
            // The next pick would raise the allowance only after writers have met the limit.
            family.stay_allowance.fetch_max(link.staying_now(), Ordering::Relaxed);
        }
        let cuts = state.memtable_cuts(&current.version);
        let next = db.writes.new_memtable(&db.context, &current.version, &cuts);
        commit.set_active(family.id, Some(Arc::clone(&next)));
        let sealed = Sealed::new(old);
        let mut immutables = Vec::with_capacity(current.immutables.len() + 1);
        immutables.push(Arc::clone(sealed.view()));
        immutables.extend(current.immutables.iter().cloned());
        state.flushes_mut().entry(family.id).or_default().push(sealed);
        let (version, readable) = (Arc::clone(&current.version), Arc::clone(&current.readable));
        let next = SuperVersion { active: next, immutables, version, readable };
        db.view.publish(&mut state, family, next);
    }
    db.pacing.note_seal(db.context.clock().now_ns());
    stalling::recompute_stall(db.stall_owners(), family);
    db.observers.tell(&Event::MemtableSealed { cf: family.id, bytes });
    db.jobs.wake();
}

/// Makes a dropped family empty, and returns its last super version. Handles outlive the family and
/// must not hold its files and memory. Writers that wait for its flushes or compactions must find
/// nothing to wait for. Readers that meet the empty family check whether it was dropped.
pub(crate) fn empty_family(
    context: &Context,
    view: &ReadView,
    writes: &WritePath,
    state: &mut JobState,
    family: &Family,
) -> Arc<SuperVersion> {
    state.forget_family(family.id);
    family.space.set(None, 0);
    let gone = family.current.load_full();
    let version = Version::empty(family.id, Arc::clone(gone.version.options()));
    let active = writes.new_memtable(context, &version, &[]);
    let empty = SuperVersion::new(active, version);
    view.publish(state, family, empty);
    gone
}
