//! The owners that an open database consists of, and the lock order.
//!
//! [`DbInner`] only holds the owners. Each owner keeps its fields private to its file. A function
//! takes the owners that it needs. Owners that several functions need together form a *group*, a
//! struct of references with a name. A function that needs more owners takes `&DbInner`.
//!
//! | owner | holds |
//! | --- | --- |
//! | [`Context`] | settings, clock, extensions, memory budget, the flags of the close |
//! | [`Storage`] | directory, file system, manifest |
//! | [`Observers`] | statistics, listeners, health |
//! | [`Pacing`] | speeds of writers and flushes |
//! | [`Jobs`] | sealed memtables, running jobs, threads |
//! | [`LogSegments`] | closed segments of the log |
//! | [`Disk`] | room on the disk and the reserve |
//! | [`ReadView`] | families, snapshots, tables, the visible sequence number |
//! | [`WarmPasses`] | the thread and the limits of warm passes |
//! | [`WritePath`] | commit order, active memtables, row locks |
//!
//! | group | for | owners |
//! | --- | --- | --- |
//! | [`Reader`] | reads | `Context`, `Observers`, `ReadView` |
//! | [`StallOwners`] | the speed of writers | `Context`, `Observers`, `Pacing`, `Jobs` |
//! | [`WaitOwners`] | writes that wait | `Context`, `Storage`, `Observers`, `Jobs`, `Disk` |
//! | [`PickOwners`] | compaction and GC picks | `Context`, `Pacing`, `Jobs`, `Disk`, `ReadView` |
//! | [`JobOwners`] | plans and runs of jobs | `Context`, `Storage`, `Jobs`, `Disk`, `ReadView` |
//! | [`InstallOwners`] | installs | `Context`, `Storage`, `Observers`, `Jobs`, `ReadView` |
//! | [`SpaceOwners`] | examinations of space | `Context`, `Storage`, `ReadView` |
//!
//! Invariants:
//! 1. Locks are taken in this order: the **commit lock** (`db::write::commit`: sequence numbers,
//!    log, active memtables), the **manifest lock** (`db::state::storage`: installs, one at a time,
//!    held over the manifest's I/O), the **jobs lock** (`db::state::jobs`: sealed memtables and
//!    running jobs, never held over I/O), the **log lock** (`db::write::log_segments`: closed log
//!    segments, never held over I/O) and, last, the **lock of the reserve**
//!    (`db::write::disk_room`: the reserve for a full disk, held while it is written or removed).
//!    [`lock_order`](crate::lock_order) lets the compiler check the first three. The log lock and
//!    the lock of the reserve are leaves: a thread that holds one of them takes none of the others.
//! 2. Reads take none of these locks. They load a family's
//!    [`SuperVersion`](crate::db::state::family::SuperVersion) and the visible sequence number.
//! 3. A log segment is removed only when no unflushed record lies in it.
//!
//! Thread-safety: any thread may use any owner.
//! Failure: see the owners.
//! Cost: all owners lie in one allocation.

use std::sync::Once;

use crate::db::background::owners::{InstallOwners, JobOwners, PickOwners, SpaceOwners};
use crate::db::background::warm_outputs::WarmPasses;
use crate::db::read::{ReadView, Reader};
use crate::db::state::context::Context;
use crate::db::state::jobs::Jobs;
use crate::db::state::observers::Observers;
use crate::db::state::pacing::Pacing;
use crate::db::state::storage::Storage;
use crate::db::write::WritePath;
use crate::db::write::disk_room::Disk;
use crate::db::write::log_segments::LogSegments;
use crate::db::write::stalling::{StallOwners, WaitOwners};

/// An open database, shared by its handles and its background threads.
pub(crate) struct DbInner {
    pub(crate) context: Context,
    pub(crate) storage: Storage,
    pub(crate) observers: Observers,
    pub(crate) pacing: Pacing,
    pub(crate) jobs: Jobs,
    pub(crate) logs: LogSegments,
    pub(crate) disk: Disk,
    pub(crate) view: ReadView,
    pub(crate) warm_passes: WarmPasses,
    pub(crate) writes: WritePath,
    /// Runs the close once. A second thread waits until the first one has closed the database. No
    /// thread that holds a lock may use it.
    pub(crate) close_once: Once,
}

impl DbInner {
    /// The owners that a read needs.
    #[inline]
    pub(crate) fn reader(&self) -> Reader<'_> {
        Reader { context: &self.context, observers: &self.observers, view: &self.view }
    }

    /// The owners that a decision about the speed of writers needs.
    #[inline]
    pub(crate) fn stall_owners(&self) -> StallOwners<'_> {
        StallOwners {
            context: &self.context,
            observers: &self.observers,
            pacing: &self.pacing,
            jobs: &self.jobs,
        }
    }

    /// The owners that a write needs while it waits for background work.
    #[inline]
    pub(crate) fn wait_owners(&self) -> WaitOwners<'_> {
        WaitOwners {
            context: &self.context,
            storage: &self.storage,
            observers: &self.observers,
            jobs: &self.jobs,
            disk: &self.disk,
        }
    }

    /// The owners that the pick of a compaction or of a garbage collection needs.
    pub(crate) fn pick_owners(&self) -> PickOwners<'_> {
        PickOwners {
            context: &self.context,
            pacing: &self.pacing,
            jobs: &self.jobs,
            disk: &self.disk,
            view: &self.view,
        }
    }

    /// The owners that the plan of a job and its run need.
    pub(crate) fn job_owners(&self) -> JobOwners<'_> {
        JobOwners {
            context: &self.context,
            storage: &self.storage,
            jobs: &self.jobs,
            disk: &self.disk,
            view: &self.view,
        }
    }

    /// The owners that the install of an edit needs.
    pub(crate) fn install_owners(&self) -> InstallOwners<'_> {
        InstallOwners {
            context: &self.context,
            storage: &self.storage,
            observers: &self.observers,
            jobs: &self.jobs,
            view: &self.view,
        }
    }

    /// The owners that an examination of the space of families needs.
    pub(crate) fn space_owners(&self) -> SpaceOwners<'_> {
        SpaceOwners { context: &self.context, storage: &self.storage, view: &self.view }
    }
}
