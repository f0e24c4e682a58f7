//! Groups of owners that several steps of the background work need together.
//!
//! A group has only references. It is made from the database where a step begins
//! ([`DbInner::pick_owners`](crate::db::inner::DbInner::pick_owners)), and says what the step may
//! use.
//!
//! Thread-safety: a group is a copy of references to owners that any thread may use.
//! Failure: none.
//! Cost: a few words on the stack.

use crate::db::read::ReadView;
use crate::db::state::context::Context;
use crate::db::state::jobs::Jobs;
use crate::db::state::observers::Observers;
use crate::db::state::pacing::Pacing;
use crate::db::state::storage::Storage;
use crate::db::write::disk_room::Disk;

/// The owners that the pick of a compaction or of a garbage collection needs.
#[derive(Clone, Copy)]
pub(crate) struct PickOwners<'a> {
    pub(crate) context: &'a Context,
    pub(crate) pacing: &'a Pacing,
    pub(crate) jobs: &'a Jobs,
    pub(crate) disk: &'a Disk,
    pub(crate) view: &'a ReadView,
}

/// The owners that the install of an edit changes, and those that it notifies.
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

/// The owners that an examination of the space of families needs.
#[derive(Clone, Copy)]
pub(crate) struct SpaceOwners<'a> {
    pub(crate) context: &'a Context,
    pub(crate) storage: &'a Storage,
    pub(crate) view: &'a ReadView,
}

/// The owners that the plan of a job and its run need.
#[derive(Clone, Copy)]
pub(crate) struct JobOwners<'a> {
    pub(crate) context: &'a Context,
    pub(crate) storage: &'a Storage,
    pub(crate) jobs: &'a Jobs,
    pub(crate) disk: &'a Disk,
    pub(crate) view: &'a ReadView,
}
