//! The state that a manifest describes, and the application of edits to it.
//!
//! A [`State`] is a value: cloning it costs a few words per column family. A [`StateBuilder`]
//! applies edits to a copy. Nothing is visible until the owner makes the result current.

use std::collections::BTreeMap;
use std::sync::Arc;

use archipelago_base::{CfId, Epoch, Error, FileNo, Result, SeqNo};

use crate::key::KeyRange;
use crate::live_file::{LiveFile, LiveInvalidFile, LiveValueFile, Trash};
use crate::manifest::damaged;
use crate::manifest::edit::{CF_NAME_BYTES_MAX, Change, VersionEdit};
use crate::manifest::owner::Owner;
use crate::manifest::space::SpaceFigures;
use crate::version::{HeldNumbers, Version, VersionBuilder};

/// A column family as the manifest knows it.
#[derive(Clone, Debug)]
pub(crate) struct CfState {
    pub(crate) name: Arc<str>,
    pub(crate) version: Arc<Version>,
    /// Figures of the family's space; `None` if no edit has set them.
    pub(crate) space: Option<SpaceFigures>,
}

/// Everything that the manifest says: column families, counters and floors.
#[derive(Clone, Debug)]
pub(crate) struct State {
    pub(crate) cfs: BTreeMap<CfId, CfState>,
    pub(crate) next_file_no: FileNo,
    pub(crate) last_seq: SeqNo,
    pub(crate) next_cf_id: CfId,
    pub(crate) log_floor: FileNo,
    pub(crate) next_incarnation: Epoch,
    /// The owner; `None` if the database was never opened for writing.
    pub(crate) owner: Option<Owner>,
}

impl Default for State {
    fn default() -> Self {
        Self {
            cfs: BTreeMap::new(),
            next_file_no: FileNo(1),
            last_seq: SeqNo::ZERO,
            next_cf_id: CfId(0),
            log_floor: FileNo(0),
            next_incarnation: Epoch(1),
            owner: None,
        }
    }
}

impl State {
    /// Notes that the file number `no` is or was in use.
    fn used(&mut self, no: u64) -> Result<()> {
        let next = no.checked_add(1).ok_or_else(|| damaged("last file number"))?;
        self.next_file_no = self.next_file_no.max(FileNo(next));
        Ok(())
    }

    /// Replaces the owner by `owner`, which must have a larger epoch.
    fn replace_owner(&mut self, owner: &Owner) -> Result<()> {
        let known = self.owner.as_ref().map_or(Epoch(0), |known| known.epoch);
        if owner.epoch <= known {
            return Err(damaged(format!(
                "owner epoch {} follows epoch {known}: an owner that was replaced has written",
                owner.epoch
            )));
        }
        self.owner = Some(owner.clone());
        Ok(())
    }

    /// The edit that makes this state from nothing.
    pub(crate) fn snapshot(&self) -> VersionEdit {
        let mut edit = VersionEdit::new();
        for (&cf, CfState { name, version, space }) in &self.cfs {
            let options = Box::new(version.options().as_ref().clone());
            edit.push(Change::CreateCf { cf, name: name.to_string(), options });
            if version.map().epoch() > Epoch(0) {
                edit.push(Change::SetBucketMap { cf, map: version.map().as_ref().clone() });
            }
            for (level, file) in version.files() {
                edit.add_file(cf, level, file.meta().clone());
            }
            let values = version.values();
            for (file, _) in values.files() {
                edit.add_value_file(cf, file.meta().clone());
            }
            for (old, heir) in values.heirs() {
                edit.inherit(cf, FileNo(old), FileNo(heir));
            }
            for file in values.invalid_files() {
                edit.push(Change::AddInvalidFile { cf, meta: Box::new(file.meta().clone()) });
            }
            let flushed = version.flushed_through().ranges();
            for (range, seq) in flushed.filter(|(_, seq)| *seq > SeqNo::ZERO) {
                edit.flushed_through(cf, range, seq);
            }
            if let Some(figures) = *space {
                edit.push(Change::SetSpaceFigures { cf, figures });
            }
        }
        edit.push(Change::NextFileNo(self.next_file_no));
        edit.push(Change::LastSeq(self.last_seq));
        edit.push(Change::NextCfId(self.next_cf_id));
        edit.push(Change::LogFloor(self.log_floor));
        edit.push(Change::NextIncarnation(self.next_incarnation));
        if let Some(owner) = &self.owner {
            edit.push(Change::OwnerEpoch(Box::new(owner.clone())));
        }
        edit
    }
}

/// Result of an edit.
#[derive(Debug)]
pub(crate) struct Applied {
    pub(crate) state: State,
    /// The versions that changed or are new.
    pub(crate) published: Vec<(CfId, Arc<Version>)>,
    /// Files that no column family holds any more.
    pub(crate) removed: RemovedFiles,
    /// Value files that lost their last reference. The edit must name them before it is written.
    pub(crate) unreferenced: Vec<(CfId, FileNo)>,
}

/// Files that no column family holds any more.
#[derive(Debug, Default)]
pub(crate) struct RemovedFiles {
    pub(crate) tables: Vec<Arc<LiveFile>>,
    pub(crate) values: Vec<Arc<LiveValueFile>>,
    pub(crate) invalid: Vec<Arc<LiveInvalidFile>>,
}

impl RemovedFiles {
    /// Marks every file as obsolete, so that it goes to the trash with its last holder.
    pub(crate) fn mark_obsolete(&self) {
        self.tables.iter().for_each(|file| file.mark_obsolete());
        self.values.iter().for_each(|file| file.mark_obsolete());
        self.invalid.iter().for_each(|file| file.mark_obsolete());
    }
}

/// Applies edits to a copy of a state.
#[derive(Debug)]
pub(crate) struct StateBuilder {
    state: State,
    touched: BTreeMap<CfId, VersionBuilder>,
    removed: RemovedFiles,
}

impl StateBuilder {
    pub(crate) fn new(state: State) -> Self {
        Self { state, touched: BTreeMap::new(), removed: RemovedFiles::default() }
    }

    /// Applies an edit. After an error the builder must be dropped. The order of changes in the
    /// edit does not matter. Tables are removed before files are added. Then value files and
    /// invalid files are removed, and value files inherit. Column families are dropped last.
    pub(crate) fn apply(&mut self, edit: &VersionEdit) -> Result<()> {
        let rank = |change: &Change| match change {
            Change::AddFile { .. }
            | Change::AddValueFile { .. }
            | Change::AddInvalidFile { .. } => 1,
            Change::RemoveValueFile { .. }
            | Change::Inherit { .. }
            | Change::RemoveInvalidFile { .. } => 2,
            Change::DropCf { .. } => 3,
            _ => 0,
        };
        for turn in 0..4 {
            for change in edit.changes.iter().filter(|change| rank(change) == turn) {
                self.apply_change(change)?;
            }
        }
        Ok(())
    }

    fn apply_change(&mut self, change: &Change) -> Result<()> {
        let state = &mut self.state;
        match change {
            Change::CreateCf { cf, name, options } => {
                check_new(state, *cf, name)?;
                options.validate()?;
                let version = Version::empty(*cf, Arc::new(options.as_ref().clone()));
                self.touched.insert(*cf, VersionBuilder::new(&version));
                let name = name.as_str().into();
                state.cfs.insert(*cf, CfState { name, version, space: None });
                let next = cf.0.checked_add(1).ok_or_else(|| damaged("last column family id"))?;
                state.next_cf_id = state.next_cf_id.max(CfId(next));
            }
            Change::DropCf { cf } => {
                if *cf == CfId::DEFAULT {
                    return Err(Error::invalid("the default column family cannot be dropped"));
                }
                let dropped = state.cfs.remove(cf).ok_or_else(|| unknown(*cf))?;
                self.touched.remove(cf);
                let (version, removed) = (&dropped.version, &mut self.removed);
                removed.tables.extend(version.files().map(|(_, file)| Arc::clone(file)));
                removed.values.extend(version.values().files().map(|(file, _)| Arc::clone(file)));
                removed.invalid.extend(version.values().invalid_files().cloned());
            }
            Change::SetCfOptions { cf, options } => {
                options.validate()?;
                self.touch(*cf)?.set_options(options.as_ref().clone());
            }
            Change::AddValueFile { .. }
            | Change::RemoveValueFile { .. }
            | Change::Inherit { .. }
            | Change::AddInvalidFile { .. }
            | Change::RemoveInvalidFile { .. } => self.apply_value_change(change)?,
            Change::AddFile { cf, level, meta } => {
                state.used(meta.no)?;
                state.last_seq = state.last_seq.max(meta.largest_seq());
                self.touch(*cf)?.add(*level, meta.as_ref().clone())?;
            }
            Change::RemoveFile { cf, level, no } => self.touch(*cf)?.remove(*level, no.0)?,
            Change::SetBucketMap { cf, map } => self.touch(*cf)?.set_map(map.clone())?,
            Change::FlushedThrough { cf, range, seq } => {
                // Recovery skips records below this number. So no later write may get such a
                // number, even if all records up to it that were written without the log are lost.
                state.last_seq = state.last_seq.max(*seq);
                self.raise(*cf, range, *seq)?;
            }
            Change::NextFileNo(no) => state.next_file_no = state.next_file_no.max(*no),
            Change::LastSeq(seq) => state.last_seq = state.last_seq.max(*seq),
            Change::NextCfId(cf) => state.next_cf_id = state.next_cf_id.max(*cf),
            Change::LogFloor(no) => state.log_floor = state.log_floor.max(*no),
            Change::NextIncarnation(epoch) => {
                state.next_incarnation = state.next_incarnation.max(*epoch);
            }
            Change::OwnerEpoch(owner) => state.replace_owner(owner)?,
            Change::SetSpaceFigures { cf, figures } => {
                state.cfs.get_mut(cf).ok_or_else(|| unknown(*cf))?.space = Some(*figures);
            }
            Change::Synced(_) => {}
        }
        Ok(())
    }

    fn apply_value_change(&mut self, change: &Change) -> Result<()> {
        match change {
            Change::AddValueFile { cf, meta } => {
                self.state.used(meta.no)?;
                self.touch(*cf)?.add_value_file(meta.as_ref().clone())
            }
            Change::RemoveValueFile { cf, no } => self.touch(*cf)?.remove_value_file(no.0),
            Change::Inherit { cf, old, heir } => self.touch(*cf)?.inherit(old.0, heir.0),
            Change::AddInvalidFile { cf, meta } => {
                self.state.used(meta.no)?;
                self.touch(*cf)?.add_invalid_file(meta.as_ref().clone())
            }
            Change::RemoveInvalidFile { cf, no } => self.touch(*cf)?.remove_invalid_file(no.0),
            _ => Ok(()),
        }
    }

    fn raise(&mut self, cf: CfId, range: &KeyRange, seq: SeqNo) -> Result<()> {
        // Sequence numbers that a flush covers must not be given out again, even if no file has
        // them. Such writes bypassed the log and were deleted, or were lost with the log's tail.
        self.state.last_seq = self.state.last_seq.max(seq);
        self.touch(cf)?.raise_flushed(range, seq);
        Ok(())
    }

    fn touch(&mut self, cf: CfId) -> Result<&mut VersionBuilder> {
        let known = self.state.cfs.get(&cf).ok_or_else(|| unknown(cf))?;
        Ok(self.touched.entry(cf).or_insert_with(|| VersionBuilder::new(&known.version)))
    }

    /// Ends the building and returns the state after all edits. New files belong to `trash`.
    pub(crate) fn finish(self, trash: &Arc<Trash>) -> Result<Applied> {
        self.finish_holding(trash, &HeldNumbers::default())
    }

    /// Does the work of [`StateBuilder::finish`] while running jobs hold numbers of value files.
    pub(crate) fn finish_holding(self, trash: &Arc<Trash>, held: &HeldNumbers) -> Result<Applied> {
        let Self { mut state, touched, mut removed } = self;
        let mut published = Vec::with_capacity(touched.len());
        let mut unreferenced = Vec::new();
        for (cf, builder) in touched {
            let built = builder
                .finish_holding(trash, held)
                .map_err(|error| error.context_at(format_args!("column family {cf}")))?;
            if let Some(known) = state.cfs.get_mut(&cf) {
                known.version = Arc::clone(&built.version);
            }
            published.push((cf, built.version));
            removed.tables.extend(built.removed);
            removed.values.extend(built.removed_values);
            removed.invalid.extend(built.removed_invalid);
            unreferenced.extend(built.unreferenced.iter().map(|&no| (cf, FileNo(no))));
        }
        Ok(Applied { state, published, removed, unreferenced })
    }
}

fn unknown(cf: CfId) -> Error {
    Error::not_found(format!("there is no column family {cf}"))
}

fn check_new(state: &State, cf: CfId, name: &str) -> Result<()> {
    if name.is_empty() || name.len() > CF_NAME_BYTES_MAX {
        return Err(Error::invalid(format!(
            "the name of a column family has 1 to {CF_NAME_BYTES_MAX} bytes, not {}",
            name.len()
        )));
    }
    if state.cfs.values().any(|known| *known.name == *name) {
        return Err(Error::invalid(format!("a column family \"{name}\" exists already")));
    }
    if state.cfs.contains_key(&cf) || (cf < state.next_cf_id) {
        return Err(damaged(format!("column family id {cf} was used before")));
    }
    Ok(())
}
