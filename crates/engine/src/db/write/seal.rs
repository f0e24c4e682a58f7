//! Sealing: the active memtable of a family becomes immutable and a new one takes its place.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::db::inner::{DbInner, Sealed, ShardState};
use crate::db::state::background_mode::BackgroundMode;
use crate::db::state::family::{Family, SuperVersion};
use crate::db::state::memtable::Immutable;
use crate::db::write::commit::CommitState;
use crate::event::Event;
use crate::stats::Ticker;

impl DbInner {
    pub(crate) fn is_manual(&self) -> bool {
        self.background == BackgroundMode::Manual
    }

    /// Whether the family has room for one more immutable memtable.
    pub(crate) fn may_seal(&self, family: &Family) -> bool {
        family.current.load().immutables.len() + 1 < family.options.write_buffers_max
    }

    /// Seals the active memtable (commit lock held). Nothing happens if it is empty.
    pub(crate) fn seal_active(&self, commit: &mut CommitState, family: &Arc<Family>) {
        let Some(old) = commit.active_of(family.id).cloned() else { return };
        if old.is_empty() {
            return;
        }
        // The next write makes another memtable necessary, and tables of its own.
        (commit.credit_bytes, commit.freeing_credit_bytes) = (0, 0);
        old.close_at(commit.last_seq);
        let reads = self.stats.get(Ticker::GetsMemtable) + self.stats.get(Ticker::Seeks);
        old.note_reads(reads.saturating_sub(self.reads_at_seal.swap(reads, Ordering::Relaxed)));
        let bytes = old.charged_bytes();
        {
            let mut state = self.state.lock();
            let current = family.current.load_full();
            if current.immutables.is_empty() {
                family.backlog_since_ns.store(self.clock.now_ns(), Ordering::Relaxed);
            }
            let cuts = state.planned_cuts(&current.version);
            let next = self.new_memtable(&current.version, &cuts);
            commit.set_active(family.id, Some(Arc::clone(&next)));
            let view = Arc::new(Immutable::of(&old));
            let mut immutables = Vec::with_capacity(current.immutables.len() + 1);
            immutables.push(Arc::clone(&view));
            immutables.extend(current.immutables.iter().cloned());
            let shards = vec![ShardState::Pending; old.shards.len()];
            let sealed = Sealed { memtable: old, view, shards, ready: false };
            state.flushes.entry(family.id).or_default().queue.push_back(sealed);
            let version = Arc::clone(&current.version);
            self.publish(&mut state, family, SuperVersion { active: next, immutables, version });
        }
        let now_ns = self.clock.now_ns();
        let last_ns = self.last_seal_ns.swap(now_ns, Ordering::Relaxed);
        if last_ns > 0 {
            self.seal_interval_ns.store(now_ns.saturating_sub(last_ns), Ordering::Relaxed);
        }
        self.recompute_stall(family);
        self.tell(&Event::MemtableSealed { cf: family.id, bytes });
        self.wake();
    }
}
