//! The bound on space of each family with separated values. It examines the version after every
//! install, and sets limits and demands for writers, compactions and garbage collection.
//!
//! The decisions are pure ([`crate::gc::space_plan`], [`crate::gc::hidden`]); this module fills
//! their inputs and keeps their results in [`FamilySpace`] and in the family's [`SpaceGauge`].
//!
//! Invariants:
//! 1. Every install of a family with value files is followed by an examination, before the jobs
//!    lock is released. So the limit of the writers is that of the newest version.
//! 2. Memtables and the outputs of running jobs count neither as used nor as allowed, so the margin
//!    changes only with installs and with the release of snapshots. The stated slack has room for
//!    one set of memtables, the shards at memory nodes, and the outputs
//!    ([`crate::gc::space_plan`]).
//! 3. After each change of a limit, the throttle of the family's writers is decided again.
//! 4. The edit of each flush, compaction and garbage collection keeps the margin and the debt
//!    before it, and the measured share of shadowing records after it. The first examination after
//!    an open begins with them if the family has value files.
//! 5. The bound of a family ends with its last value file, as at an open without value files. The
//!    next edit removes its margin and its debt from the manifest. It begins anew with the next
//!    value file, whose examination counts as the first since the open.
//! 6. A writer waits only while a job of its family runs or can be picked, or waits for room on the
//!    disk that a running job gives back ([`crate::db::background::space_idle`]).
//!
//! Thread-safety: the functions run under the jobs lock.
//! Failure: none.
//! Cost: linear in the number of tables of the family, once for each install. Families without
//! value files cost one comparison.

use std::sync::Arc;

use archipelago_base::{CfId, SeqNo};
use archipelago_env::FileClass;

use crate::compaction::pick::SpaceDemand;
use crate::db::background::owners::SpaceOwners;
use crate::db::read::ReadView;
use crate::db::state::family::Family;
use crate::db::state::family_space::{FamilySpace, SpaceView};
use crate::db::state::jobs::{JobState, Jobs};
use crate::db::state::storage::Storage;
use crate::file_meta::FileMeta;
use crate::gc::hidden::{HiddenInput, ShadowShare, hidden_garbage};
use crate::gc::space_plan::{
    Margin, PlanInput, SpaceChange, SpaceEvent, SpaceUsage, SpaceWork, WriterLimit, space_plan,
    writer_limit,
};
use crate::job::JobOutput;
use crate::live_file::PinnedFile;
use crate::lock_order::Order;
use crate::manifest::{Change, SpaceFigures, VersionEdit};
use crate::version::{LAST_LEVEL, Version};

/// Examines the space of a family after an install. `event` says whether the install may have put
/// garbage over the bound in one step.
pub(crate) fn note_install(
    owners: SpaceOwners<'_>,
    state: &mut JobState,
    family: &Family,
    event: Option<SpaceEvent>,
) {
    examine(owners, state, family, event.map(SpaceStep::Event));
}

/// Examines the space of a family after the install of a flush.
pub(crate) fn note_flush(
    owners: SpaceOwners<'_>,
    state: &mut JobState,
    family: &Family,
    output: &JobOutput,
) {
    examine(owners, state, family, Some(flush_step(output)));
}

/// A step that may have put garbage over the bound.
#[derive(Clone, Copy, Debug, PartialEq)]
enum SpaceStep {
    Event(SpaceEvent),
    /// A flush without deletes. It may find garbage of a snapshot that was released since the last
    /// examination. It may also raise the estimate of what earlier deletes hide, because it changes
    /// the mean size of a value.
    PlainFlush,
}

impl SpaceStep {
    /// The event of the step, with the bytes of garbage that it may have made itself.
    fn event(self, before: Option<&SpaceView>, after: &SpaceView) -> (SpaceEvent, u64) {
        // Tables that range tombstones cover as a whole are certainly garbage. So are the records
        // that only a snapshot kept.
        let known = before.map_or(0, |view| view.hidden.certain_bytes);
        let certain = after.hidden.certain_bytes.saturating_sub(known);
        let deleted = before.map_or(0, |before| by_deletes(before, after));
        match self {
            Self::Event(event @ SpaceEvent::SnapshotReleased) => (event, certain),
            Self::Event(event @ (SpaceEvent::RangeDelete | SpaceEvent::Delete)) => {
                (event, certain.max(deleted))
            }
            Self::Event(
                event @ (SpaceEvent::Ingestion | SpaceEvent::GarbageFound | SpaceEvent::Opened),
            ) => (event, u64::MAX),
            Self::PlainFlush if certain > 0 && certain >= deleted => {
                (SpaceEvent::SnapshotReleased, certain)
            }
            Self::PlainFlush => (SpaceEvent::Delete, certain.max(deleted)),
        }
    }
}

fn examine(
    owners: SpaceOwners<'_>,
    state: &mut JobState,
    family: &Family,
    step: Option<SpaceStep>,
) {
    let version = Arc::clone(&family.current.load().version);
    if version.values().is_empty() {
        if state.has_space(family.id) {
            let space = state.space_mut(family.id);
            space.end_bound();
            set_gauge(family, space);
        }
        return;
    }
    let space = state.space_mut(family.id);
    let (snapshots, visible) = owners.view.snapshots().list(|| owners.view.visible());
    let before = space.view().copied();
    let kept = space.take_kept_margin();
    let readers = Readers { snapshots: &snapshots, visible };
    let mut view = look(owners.storage, family, &version, space, readers);
    if let Some((plan, after)) = view.bound {
        let known = before.and_then(|view| view.bound);
        // An event takes no more than this from a margin that an earlier open has kept, so that
        // restarts give no room to writers that the bound has stopped.
        let had = known.map(|(_, margin)| margin).or(kept).unwrap_or_else(|| unbounded(&after));
        // Without a known earlier state, this is the first examination since the open, or since
        // the family has had value files again.
        let step = if known.is_some() { step } else { Some(SpaceStep::Event(SpaceEvent::Opened)) };
        let event = step.map(|step| step.event(before.as_ref(), &view));
        let (event, own_bytes) = (event.map(|(event, _)| event), event.map_or(0, |(_, own)| own));
        space.debt_mut().settle(&SpaceChange { before: had, after, event, own_bytes });
        view.bound = Some((plan, margin(family, &view.usage, space)));
    }
    let demand = view.bound.map(|(plan, margin)| SpaceDemand {
        cf: family.id,
        urgency: plan.hidden_urgency(view.usage.hidden_bytes, view.usage.live_bytes()),
        shadow_share: view.shadow_share,
        is_pressed: margin.is_pressed(),
        turn: None,
    });
    space.set_view(view, demand);
    set_gauge(family, space);
    if let Some((_, margin)) = view.bound {
        let pinned = owners.storage.trash().pinned();
        let oldest = snapshots.first().copied();
        let allowance_bytes = margin.allowance_bytes;
        let warning = pinned_warning(&pinned, allowance_bytes, oldest)
            .or_else(|| kept_warning(view.hidden.kept_bytes, allowance_bytes, oldest));
        if let Some(warning) = warning
            && space.may_warn(owners.context.clock().now_ns())
        {
            tracing::warn!(family = family.name.as_str(), "{warning}");
        }
    }
}

/// Smallest age, in nanoseconds, at which a pinned file counts for a warning: a minute. Jobs
/// usually hold their inputs for a shorter time.
const PINNED_NS_MIN: u64 = 60_000_000_000;

/// Warning for an operator if old versions hold more bytes than the bound allows as garbage. Pinned
/// bytes are outside of the bound, so that a forgotten snapshot or iterator does not stop writers.
fn pinned_warning(
    pinned: &[PinnedFile],
    allowance_bytes: u64,
    oldest_snapshot: Option<SeqNo>,
) -> Option<String> {
    let lasting = || pinned.iter().filter(|file| file.age_ns >= PINNED_NS_MIN);
    let bytes = lasting().fold(0, |sum: u64, file| sum.saturating_add(file.bytes));
    if bytes <= allowance_bytes {
        return None;
    }
    let oldest_s = lasting().map(|file| file.age_ns).max().unwrap_or(0) / 1_000_000_000;
    let holder = match oldest_snapshot {
        Some(seq) => {
            format!("the snapshot of sequence number {seq}, or an older iterator, read or job")
        }
        None => "an iterator, a read or a job".to_owned(),
    };
    Some(format!(
        "old versions hold {bytes} bytes of files, for up to {oldest_s} s, and the bound on space \
         allows {allowance_bytes} bytes of garbage: release {holder}"
    ))
}

/// Warning for an operator if snapshots keep more bytes of replaced records than the bound allows
/// as garbage. Such records count as live, so the bound allows more garbage in addition to them.
fn kept_warning(
    kept_bytes: u64,
    allowance_bytes: u64,
    oldest_snapshot: Option<SeqNo>,
) -> Option<String> {
    let seq = oldest_snapshot.filter(|_| kept_bytes > allowance_bytes)?;
    Some(format!(
        "snapshots keep {kept_bytes} bytes of records that newer ones have replaced, and the bound \
         on space allows {allowance_bytes} bytes of garbage in addition: release the snapshot of \
         sequence number {seq}"
    ))
}

/// Examines the space of every family.
pub(crate) fn note_all(owners: SpaceOwners<'_>, state: &mut JobState, event: Option<SpaceEvent>) {
    for family in owners.view.live_families() {
        note_install(owners, state, &family, event);
    }
}

/// Bytes of garbage that the deletes of a flush made.
fn by_deletes(before: &SpaceView, after: &SpaceView) -> u64 {
    let tombstones = after.hidden.tombstone_bytes.saturating_sub(before.hidden.tombstone_bytes);
    after.usage.hidden_by_deletes(&before.usage, tombstones)
}

/// A margin with the same allowance and no used bytes.
fn unbounded(margin: &Margin) -> Margin {
    Margin { used_bytes: 0, ..*margin }
}

/// The sequence numbers as of which readers may read.
#[derive(Clone, Copy)]
struct Readers<'a> {
    snapshots: &'a [SeqNo],
    visible: SeqNo,
}

fn look(
    storage: &Storage,
    family: &Family,
    version: &Version,
    space: &FamilySpace,
    readers: Readers<'_>,
) -> SpaceView {
    let Readers { snapshots, visible } = readers;
    let metas = |is_last: bool| -> Vec<&FileMeta> {
        let files = version.files().filter(|(level, _)| (*level == LAST_LEVEL) == is_last);
        files.map(|(_, file)| file.meta()).collect()
    };
    let (upper, last) = (metas(false), metas(true));
    let hidden = hidden_garbage(&HiddenInput { upper: &upper, last: &last, snapshots, visible });
    let shadow_share = space.shadow_share().share();
    let tables = upper.iter().chain(&last).fold(0, |sum: u64, file| sum + file.size_bytes);
    let values = version.values();
    let usage = SpaceUsage {
        version_bytes: tables.saturating_add(values.file_bytes()),
        exposed_bytes: values.exposed_bytes(),
        hidden_bytes: hidden.estimate_bytes(shadow_share),
    };
    let fs = storage.fs();
    let plan = space_plan(&PlanInput {
        amplification_max: family.options.space_amplification_max,
        key_share: tables as f64 / usage.version_bytes.max(1) as f64,
        value_redundancy: fs.redundancy(FileClass::ValueSst),
        key_redundancy: fs.redundancy(FileClass::Sst),
    });
    let bound = plan.map(|plan| (plan, margin(family, &usage, space)));
    SpaceView { usage, hidden, shadow_share, bound }
}

/// The margin of a family. Invariant 2 of the module says what it leaves out.
fn margin(family: &Family, usage: &SpaceUsage, space: &FamilySpace) -> Margin {
    let options = &family.options;
    Margin::new(options.space_amplification_max, usage, options.value_file_bytes, space.debt())
}

/// Sets the limit that the bound places on writers now. Their throttle is decided again when the
/// jobs lock is released ([`JobState::take_limit_changes`]).
pub(crate) fn set_gauge(family: &Family, space: &mut FamilySpace) {
    let work = if space.has_no_work() { SpaceWork::Nothing } else { SpaceWork::Exists };
    let bound = space.view().and_then(|view| view.bound);
    let limit = bound.map_or(WriterLimit::None, |(_, margin)| writer_limit(&margin, work));
    let limit = match limit {
        WriterLimit::Graded(limit) => Some(limit),
        WriterLimit::None | WriterLimit::CannotKeep => None,
    };
    if family.space.set(limit, space.freed_bytes_per_s()) {
        space.note_limit_change();
    }
}

/// The demands of all families on compactions, with their present turns.
pub(crate) fn demands(state: &JobState) -> Vec<SpaceDemand> {
    let demands = state.spaces().filter_map(FamilySpace::demand);
    demands.map(|demand| SpaceDemand { turn: state.turns().of(demand.cf), ..*demand }).collect()
}

/// The step that an installed flush is: deletes turn live values into garbage without writing much.
fn flush_step(output: &JobOutput) -> SpaceStep {
    if output.files.iter().any(|file| file.range_deletions > 0) {
        SpaceStep::Event(SpaceEvent::RangeDelete)
    } else if output.files.iter().any(|file| file.deletions > 0) {
        SpaceStep::Event(SpaceEvent::Delete)
    } else {
        SpaceStep::PlainFlush
    }
}

/// Examines every family again if the oldest snapshot was released, because records that it kept
/// are garbage now.
pub(crate) fn note_snapshots(owners: SpaceOwners<'_>, state: &mut JobState) {
    if !state.has_any_space() {
        return;
    }
    let (snapshots, _) = owners.view.snapshots().list(|| owners.view.visible());
    if state.has_new_oldest_snapshot(snapshots.first().copied()) {
        note_all(owners, state, Some(SpaceEvent::SnapshotReleased));
    }
}

/// Measures the share of records above the last level that shadow an older record. Returns the
/// measurements after a compaction that wrote into level `to` and had `upper` records of levels
/// above the last. `None` if the family has had no value files.
pub(crate) fn share_after(
    space: Option<&FamilySpace>,
    to: usize,
    upper: u64,
    output: &JobOutput,
) -> Option<ShadowShare> {
    let mut share = *space?.shadow_share();
    // Range tombstones cover records without a newer version of the key.
    let shadowed = output.counts.dropped.shadowed;
    match to {
        LAST_LEVEL if upper == 0 => {}
        LAST_LEVEL => share.note_sunk(upper, shadowed),
        _ => share.note_dropped(shadowed),
    }
    Some(share)
}

/// Adds to the edit of an install what the next open needs of the family's space. The manifest has
/// kept `kept` before. `share` is the share of shadowing records after the install; `None` if the
/// install does not change it.
pub(crate) fn keep_figures(
    edit: &mut VersionEdit,
    state: &JobState,
    cf: CfId,
    kept: Option<SpaceFigures>,
    share: Option<&ShadowShare>,
) {
    let space = state.space(cf);
    let figures =
        space.and_then(|space| space.figures(share.unwrap_or_else(|| space.shadow_share())));
    let waits_for_examination = space.is_some_and(FamilySpace::has_kept_margin);
    let figures = match (figures, kept) {
        (None, Some(kept)) if !waits_for_examination => ended(kept),
        (figures, _) => figures,
    };
    if let Some(figures) = figures {
        edit.push(Change::SetSpaceFigures { cf, figures });
    }
}

/// The figures in place of `kept` after the end of the bound; `None` if they are the same. Without
/// them, an open after the next value file would begin with the margin and the debt that ended.
fn ended(kept: SpaceFigures) -> Option<SpaceFigures> {
    kept.bound.map(|_| SpaceFigures { bound: None, ..kept })
}

/// Takes over what earlier opens of the database kept of the space of each family. A family whose
/// value files are all gone begins without figures, because the bound has no effect on it.
pub(crate) fn restore_figures(storage: &Storage, jobs: &Jobs, view: &ReadView) {
    let manifest = storage.lock_manifest(Order::none());
    let mut state = jobs.lock(manifest.order());
    for family in view.live_families() {
        if family.current.load().version.values().is_empty() {
            continue;
        }
        if let Some(figures) = manifest.space_figures(family.id) {
            state.space_mut(family.id).restore(&figures);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warning_of_pinned_bytes_names_the_oldest_holder() {
        let file = |no, bytes, seconds: u64| {
            let age_ns = seconds * 1_000_000_000;
            PinnedFile { no, bytes, age_ns }
        };
        let pinned = [file(1, 60, 60), file(2, 50, 700), file(3, 1000, 59)];
        assert_eq!(pinned_warning(&pinned, 110, None), None, "young files do not count");
        assert_eq!(pinned_warning(&[], 0, None), None);
        let warning = pinned_warning(&pinned, 109, None).expect("too much is pinned");
        assert!(warning.contains("110 bytes") && warning.contains("700 s"), "{warning}");
        assert!(warning.contains("an iterator"), "{warning}");
        let warning = pinned_warning(&pinned, 109, Some(SeqNo(77))).expect("too much is pinned");
        assert!(warning.contains("the snapshot of sequence number 77"), "{warning}");
    }

    #[test]
    fn warning_of_kept_records_names_the_oldest_snapshot() {
        assert_eq!(kept_warning(110, 110, Some(SeqNo(77))), None);
        assert_eq!(kept_warning(110, 109, None), None, "no snapshot is open");
        let warning = kept_warning(110, 109, Some(SeqNo(77))).expect("too much is kept");
        assert!(warning.contains("110 bytes") && warning.contains("number 77"), "{warning}");
    }
}
