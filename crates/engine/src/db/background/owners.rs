//! Groups of owners that several functions of the background work need together.
//!
//! A group has only references. The function that has the whole database makes it for a step, such
//! as a pick or an install ([`DbInner::pick_owners`](crate::db::inner::DbInner::pick_owners)). The
//! step passes the group on, and reaches no other owner. A group has no methods but those that make
//! a smaller group of it: what its owners do together stands in the modules of the steps.
//!
//! Thread-safety: any thread may use a group, because any thread may use the owners.
//! Failure: none.
//! Cost: a group is a few words on the stack. It takes no lock and counts no reference.

use crate::db::read::ReadView;
use crate::db::state::context::Context;
use crate::db::state::jobs::Jobs;
use crate::db::state::observers::Observers;
use crate::db::state::pacing::Pacing;
use crate::db::state::storage::Storage;
use crate::db::write::disk_room::Disk;

/// The owners that the pick of a compaction or of a garbage collection needs. The pick runs under
/// the jobs lock. So it uses of `jobs` only what that lock does not guard.
#[derive(Clone, Copy)]
pub(crate) struct PickOwners<'a> {
    pub(crate) context: &'a Context,
    pub(crate) pacing: &'a Pacing,
    pub(crate) jobs: &'a Jobs,
    pub(crate) disk: &'a Disk,
    pub(crate) view: &'a ReadView,
}

/// The owners that the plan of a job and its run need. The numbers of a job
/// ([`JobNumbers`](crate::db::background::job_numbers::JobNumbers)) hold this group. A merge of
/// invalid files also installs its output with it, because that install notifies no observer.
#[derive(Clone, Copy)]
pub(crate) struct JobOwners<'a> {
    pub(crate) context: &'a Context,
    pub(crate) storage: &'a Storage,
    pub(crate) jobs: &'a Jobs,
    pub(crate) disk: &'a Disk,
    pub(crate) view: &'a ReadView,
}

/// The owners that the install of an edit needs: those that it changes, those that it notifies, and
/// the settings. Compactions, garbage collections and changes of bucket maps take this group.
#[derive(Clone, Copy)]
pub(crate) struct InstallOwners<'a> {
    pub(crate) context: &'a Context,
    pub(crate) storage: &'a Storage,
    pub(crate) observers: &'a Observers,
    pub(crate) jobs: &'a Jobs,
    pub(crate) view: &'a ReadView,
}

impl<'a> InstallOwners<'a> {
    /// The owners that an examination of space needs, which follows the install.
    pub(crate) fn space_owners(self) -> SpaceOwners<'a> {
        let Self { context, storage, view, .. } = self;
        SpaceOwners { context, storage, view }
    }
}

/// The owners that an examination of the space of families needs. It runs under the jobs lock
/// ([`crate::db::background::space`]).
#[derive(Clone, Copy)]
pub(crate) struct SpaceOwners<'a> {
    pub(crate) context: &'a Context,
    pub(crate) storage: &'a Storage,
    pub(crate) view: &'a ReadView,
}
