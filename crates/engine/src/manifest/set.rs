//! The set of all current versions, and the manifest that keeps it.
//!
//! The database owns the set under its manifest lock. [`VersionSet::apply`] costs a copy of the
//! table of column families, the new versions of the changed ones, one write and one sync. Three
//! events start a new manifest with a snapshot: the first edit after an open, a failed write, and
//! growth past four times the snapshot (at least 1 MiB).

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use archipelago_base::{CfId, Epoch, Error, ErrorKind, FileNo, Result, SeqNo};
use archipelago_env::separate_log::is_same_log_place;
use archipelago_env::{DirEntry, FileSystem, IoContext, IoPurpose};

use crate::file_meta::{
    IDENTITY_NAME, invalid_file_name, log_name, manifest_name, mark_name, sst_name, value_file_name,
};
use crate::live_file::Trash;
use crate::manifest::FORMAT_VERSION;
use crate::manifest::edit::{Change, VersionEdit};
use crate::manifest::identity::{DirectoryState, Identity, current, inspect, set_current};
use crate::manifest::log::{Header, ManifestReader, ManifestWriter};
use crate::manifest::mark::{Evidence, MarkHeader, Marks, ReadManifest};
use crate::manifest::numbers::FileNumbers;
use crate::manifest::owner::{Owner, OwnerClaim};
use crate::manifest::space::SpaceFigures;
use crate::manifest::state::{CfState, State, StateBuilder};
use crate::options::CfOptions;
use crate::sabotage::{Defect, has};
use crate::version::{HeldNumbers, Version};

/// Length in bytes below which no new manifest is started because of growth.
const ROTATE_BYTES_MIN: u64 = 1 << 20;
/// Ratio of a manifest's length to that of its snapshot at which a new manifest is started.
const ROTATE_GROWTH: u64 = 4;
/// Number of log incarnations that one edit reserves.
const INCARNATIONS_RESERVED: u64 = 64;
/// Name of the column family that every database has.
pub const DEFAULT_CF_NAME: &str = "default";

/// The current versions of all column families, and the manifest that keeps them.
#[derive(Debug)]
pub struct VersionSet {
    fs: Arc<dyn FileSystem>,
    dir: PathBuf,
    db_id: [u8; 16],
    read_only: bool,
    /// Whether the database was closed.
    closed: bool,
    trash: Arc<Trash>,
    numbers: Arc<FileNumbers>,
    held: HeldNumbers,
    state: State,
    /// Incarnations that an edit has reserved and that were not handed out yet.
    incarnations: Range<u64>,
    /// The owner of this open, until an edit has made it durable.
    claimed: Option<Box<Owner>>,
    /// Writer of the current manifest; `None` if the next edit starts a new one.
    writer: Option<ManifestWriter>,
    /// Number of the manifest that `CURRENT` names, as far as is known.
    manifest_no: FileNo,
    rotate_at_bytes: u64,
    /// Length in bytes below which no new manifest is started because of growth.
    rotate_bytes_min: u64,
    /// Manifests to remove once `CURRENT` is known to name another one.
    stale: Vec<FileNo>,
    /// Whether a write failed and no later edit succeeded.
    unsettled: bool,
    torn_bytes: u64,
    /// Number of edits in the current manifest, without its snapshot.
    edits: u64,
    marks: Arc<Marks>,
    /// Evidence with which recovery has compared the manifest.
    evidence: Evidence,
    /// Offset in the manifest after the last record that was read.
    read_through: u64,
}

impl VersionSet {
    /// Creates a database in `dir`, with the default column family. It is durable on return.
    /// `InvalidArgument` if the directory holds any file, a database included.
    pub fn create(
        fs: Arc<dyn FileSystem>,
        dir: &Path,
        db_id: [u8; 16],
        default_cf: &CfOptions,
        trash: Arc<Trash>,
    ) -> Result<Self> {
        default_cf.validate()?;
        if let DirectoryState::Database(_) = inspect(fs.as_ref(), dir)? {
            return Err(Error::invalid(format!("{} has a database already", dir.display())));
        }
        fs.create_dir_all(dir)?;
        Identity { format: FORMAT_VERSION, db_id }.store(fs.as_ref(), dir)?;
        let mut edit = VersionEdit::new();
        let options = Box::new(default_cf.clone());
        let name = DEFAULT_CF_NAME.to_owned();
        edit.push(Change::CreateCf { cf: CfId::DEFAULT, name, options });
        let mut set = Self::new(fs, dir, db_id, trash, State::default());
        set.apply(edit)?;
        Ok(set)
    }

    fn new(
        fs: Arc<dyn FileSystem>,
        dir: &Path,
        db_id: [u8; 16],
        trash: Arc<Trash>,
        state: State,
    ) -> Self {
        Self {
            fs,
            dir: dir.to_owned(),
            db_id,
            read_only: false,
            closed: false,
            trash,
            numbers: Arc::new(FileNumbers::new(state.next_file_no, state.next_file_no)),
            held: HeldNumbers::default(),
            incarnations: state.next_incarnation.0..state.next_incarnation.0,
            claimed: None,
            state,
            writer: None,
            manifest_no: FileNo(0),
            rotate_at_bytes: 0,
            rotate_bytes_min: ROTATE_BYTES_MIN,
            stale: Vec::new(),
            unsettled: false,
            torn_bytes: 0,
            edits: 0,
            marks: Arc::default(),
            evidence: Evidence::default(),
            read_through: 0,
        }
    }

    /// Reads the database in `dir`. Writes nothing: the first edit starts a new manifest.
    ///
    /// Errors: `NotFound` if there is no database. `Corrupt` (with file and offset) if the manifest
    /// is damaged, has lost durable edits, or names a file that is missing or has another length.
    /// `Unsupported` for another format, and if the log lies elsewhere than in `dir`.
    pub fn recover(
        fs: Arc<dyn FileSystem>,
        dir: &Path,
        read_only: bool,
        trash: Arc<Trash>,
    ) -> Result<Self> {
        let read = read_state(fs.as_ref(), dir, &trash)?;
        let entries = fs.list(dir)?;
        check_log_place(fs.as_ref(), &read.state, dir, &entries)?;
        check_files(&read.state, dir, &entries)?;
        let used = entries.iter().filter_map(|entry| file_number(&entry.name)).max();
        let past = FileNo(used.map_or(0, |FileNo(used)| used.saturating_add(1)));
        let lot_end = read.state.next_file_no;
        let next = if has(Defect::UnfencedFiles) { past } else { past.max(lot_end) };
        let mut set = Self::new(fs, dir, read.header.db_id, trash, read.state);
        set.numbers = Arc::new(match read_only {
            true => FileNumbers::without_lots(next),
            false => FileNumbers::new(next, lot_end),
        });
        set.read_only = read_only;
        set.manifest_no = read.header.no;
        set.torn_bytes = read.torn_bytes;
        set.edits = read.edits;
        set.evidence = read.evidence;
        set.read_through = read.end;
        Ok(set)
    }

    /// Applies `edit`: builds the versions that it makes, appends it to the manifest, syncs, and
    /// only then makes the versions current. Returns the new versions of the column families that
    /// changed. Files that they no longer hold go to the trash with their last reader.
    ///
    /// Errors: `Internal` (with `ImpossibleEdit` as its cause) if the edit does not fit the state.
    /// It was found before anything was written, and nothing changed. `InvalidArgument` if a name
    /// or setting in the edit is wrong; nothing changed. `Closed` after [`VersionSet::close`], and
    /// `ReadOnly` if the set was read only; nothing changed. Any other error comes from a write or
    /// sync. Nothing changed in memory, but **the next open may or may not find the edit**. So its
    /// files must stay until a later edit has succeeded. Any later edit starts a new manifest,
    /// which settles that the failed edit did not happen.
    pub fn apply(&mut self, mut edit: VersionEdit) -> Result<Vec<(CfId, Arc<Version>)>> {
        if self.closed {
            return Err(Error::closed(format!(
                "the database in {} was closed before the change was installed",
                self.dir.display()
            )));
        }
        if self.read_only {
            return Err(Error::new(
                ErrorKind::ReadOnly,
                format!("{} is open for reading only", self.dir.display()),
            ));
        }
        let lot_end = self.numbers.lot_end_for(0);
        if lot_end > self.state.next_file_no {
            edit.push(Change::NextFileNo(lot_end));
        }
        if let Some(owner) = &self.claimed {
            edit.push(Change::OwnerEpoch(owner.clone()));
        }
        if edit.changes.is_empty() {
            return Ok(Vec::new());
        }
        let mut builder = StateBuilder::new(self.state.clone());
        let fits =
            builder.apply(&edit).and_then(|()| builder.finish_holding(&self.trash, &self.held));
        let applied = fits.map_err(|error| does_not_fit(&error))?;
        for &(cf, no) in &applied.unreferenced {
            edit.push(Change::RemoveValueFile { cf, no });
        }
        self.unsettled = true;
        self.persist(&edit, &applied.state)?;
        self.unsettled = false;
        self.state = applied.state;
        self.claimed = None;
        self.numbers.note_lot(self.state.next_file_no);
        applied.removed.mark_obsolete();
        Ok(applied.published)
    }

    /// Refuses every later edit, because another open may own the directory from now on. An edit
    /// to the manifest of this open would be lost.
    pub fn close(&mut self) {
        self.closed = true;
    }

    /// Makes `edit` durable. `state` is the state after it.
    fn persist(&mut self, edit: &VersionEdit, state: &State) -> Result<()> {
        match self.writer.take() {
            Some(mut writer) if writer.bytes() < self.rotate_at_bytes => {
                writer.append(edit)?;
                self.edits += 1;
                self.marks.manifest(writer.durable_bytes(), self.edits);
                match writer.mark() {
                    Ok(()) => self.writer = Some(writer),
                    Err(error) => tracing::warn!(%error, "manifest mark failed; starting anew"),
                }
                Ok(())
            }
            _ => self.rotate(state),
        }
    }

    /// Starts a new manifest with a snapshot of `state`.
    fn rotate(&mut self, state: &State) -> Result<()> {
        let no = self.numbers.allocate();
        // None of these may be removed before CURRENT is known to name another one.
        self.stale.push(no);
        let mut state = state.clone();
        state.next_file_no = state.next_file_no.max(self.numbers.next());
        let header = Header { db_id: self.db_id, no };
        let fs = self.fs.as_ref();
        let snapshot = state.snapshot();
        let purpose = IoPurpose::ForegroundWrite;
        let writer = ManifestWriter::create(fs, &self.dir, &header, &snapshot, purpose)?;
        set_current(fs, &self.dir, no)?;
        self.edits = 0;
        let mark = MarkHeader { db_id: self.db_id, manifest: no };
        self.marks.begin(fs, &self.dir, mark, writer.durable_bytes());
        self.stale.push(std::mem::replace(&mut self.manifest_no, no));
        self.rotate_at_bytes =
            self.rotate_bytes_min.max(ROTATE_GROWTH.saturating_mul(writer.bytes()));
        self.writer = Some(writer);
        for old in std::mem::take(&mut self.stale).into_iter().filter(|&old| old != no && old.0 > 0)
        {
            // The next open removes a file that stays. A manifest that never became the current one
            // has no mark file.
            let _ = fs.remove(&self.dir.join(manifest_name(old)));
            let _ = fs.remove(&self.dir.join(mark_name(old)));
        }
        Ok(())
    }

    /// The edits that a writer has added since the manifest was recovered, or since the last call.
    /// `None` if the writer has started a new manifest. The edits are not applied.
    pub(crate) fn edits_since(&mut self) -> Result<Option<Vec<VersionEdit>>> {
        let fs = self.fs.as_ref();
        if current(fs, &self.dir)? != self.manifest_no {
            return Ok(None);
        }
        let path = self.dir.join(manifest_name(self.manifest_no));
        let bytes = match fs.read(&path, IoContext::manifest(IoPurpose::Recovery)) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            bytes => bytes?,
        };
        let mut reader = ManifestReader::new(path, self.manifest_no, &bytes);
        reader.skip_to(self.read_through);
        let mut edits = Vec::new();
        while let Some(record) = reader.next()? {
            edits.push(reader.decode(&record)?);
        }
        self.read_through = reader.offset();
        Ok(Some(edits))
    }

    /// Starts new manifests from a length of `bytes` on, if that is less than 1 MiB, for a small
    /// disk. They still grow to four times their snapshot. The limit holds from the next manifest
    /// on.
    pub fn limit_length(&mut self, bytes: u64) {
        self.rotate_bytes_min = bytes.min(ROTATE_BYTES_MIN);
    }

    /// Length of the manifest in bytes. It exceeds that of a snapshot of the present state.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        self.writer.as_ref().map_or(0, ManifestWriter::bytes)
    }

    /// The current state without its owner. `Exporter::write` can write it into another directory
    /// later.
    #[must_use]
    pub fn exporter(&self) -> Exporter {
        let no = self.numbers.allocate();
        let mut state = self.state.clone();
        state.next_file_no = state.next_file_no.max(self.numbers.next());
        // The copy is another database, which draws an offload id of its own.
        state.owner = None;
        Exporter { fs: Arc::clone(&self.fs), db_id: self.db_id, no, state }
    }

    /// Writes a database with the current state into another directory, as `Exporter::write` does.
    pub fn export(&self, dir: &Path) -> Result<()> {
        self.exporter().write(dir)
    }

    /// Reads the manifest back, and checks every record and that no durable edit is missing.
    pub fn verify(&self) -> Result<()> {
        if self.unsettled {
            return Ok(());
        }
        let evidence = Evidence::gather(self.fs.as_ref(), &self.dir, &self.db_id)?;
        let no = current(self.fs.as_ref(), &self.dir)?;
        let path = self.dir.join(manifest_name(no));
        let bytes = self.fs.read(&path, IoContext::manifest(IoPurpose::Maintenance))?;
        let mut reader = ManifestReader::new(path, no, &bytes);
        reader.begin()?;
        let mut edits = 0;
        while let Some(record) = reader.next()? {
            edits += u64::from(!reader.decode(&record)?.is_mark());
        }
        evidence.check(&self.dir, &ReadManifest { no, bytes: reader.offset(), edits })
    }

    /// Makes this open the owner, by an edit that raises the owner epoch. The call must come before
    /// the first use of a number of a table. After an error every later edit carries the change,
    /// until one has succeeded.
    pub fn claim(&mut self, claim: OwnerClaim) -> Result<()> {
        self.intend_to_own(claim);
        self.own()
    }

    /// Lets the next edit make this open the owner. An open calls it before it reads the log, so
    /// that it leaves a directory that it refuses unchanged.
    pub fn intend_to_own(&mut self, claim: OwnerClaim) {
        let log_place = self.fs.log_place(&self.dir).unwrap_or_default();
        let owner = Owner::after(self.state.owner.as_ref(), claim, log_place);
        self.claimed = Some(Box::new(owner));
    }

    /// Makes this open the owner now, if its log lies outside the directory and the manifest does
    /// not name the place yet. The call must come before the log is created. Otherwise an open that
    /// looks for the log in the directory would miss acknowledged writes without notice.
    pub fn own_log_place(&mut self) -> Result<()> {
        let named = self.state.owner.as_ref().is_some_and(|owner| !owner.log_place.is_empty());
        let wanted = self.claimed.as_ref().is_some_and(|owner| !owner.log_place.is_empty());
        if wanted && !named { self.own() } else { Ok(()) }
    }

    /// Makes this open the owner now, unless an edit has done so since
    /// [`VersionSet::intend_to_own`].
    pub fn own(&mut self) -> Result<()> {
        match self.claimed {
            Some(_) => self.apply(VersionEdit::new()).map(drop),
            None => Ok(()),
        }
    }

    /// The owner that the manifest names; `None` before the first [`VersionSet::claim`] and in a
    /// checkpoint.
    #[must_use]
    pub fn owner(&self) -> Option<&Owner> {
        self.state.owner.as_ref()
    }

    /// Reserves at least `count` more file numbers durably, for [`FileNumbers::take`]. Other
    /// threads may take them first.
    pub fn renew_lot(&mut self, count: u64) -> Result<()> {
        let mut edit = VersionEdit::new();
        edit.push(Change::NextFileNo(self.numbers.lot_end_for(count)));
        self.apply(edit).map(drop)
    }

    /// A log incarnation larger than any before, reserved in the manifest before it is handed out.
    pub fn next_incarnation(&mut self) -> Result<Epoch> {
        if self.incarnations.is_empty() {
            let from = self.state.next_incarnation.0;
            let to = from.saturating_add(INCARNATIONS_RESERVED);
            let mut edit = VersionEdit::new();
            edit.push(Change::NextIncarnation(Epoch(to)));
            self.apply(edit)?;
            self.incarnations = from..to;
        }
        let next = self.incarnations.next();
        next.map(Epoch).ok_or_else(|| Error::unsupported("log incarnations are exhausted"))
    }

    /// The edit that makes the current state from nothing; a new manifest begins with it.
    #[must_use]
    pub fn snapshot(&self) -> VersionEdit {
        self.state.snapshot()
    }

    /// The source of file numbers.
    #[must_use]
    pub fn file_numbers(&self) -> &Arc<FileNumbers> {
        &self.numbers
    }

    /// Numbers of value files that running jobs may still install references to.
    #[must_use]
    pub fn held_numbers(&self) -> &HeldNumbers {
        &self.held
    }

    /// The trash for removed files, which arrive with their last reader.
    #[must_use]
    pub fn trash(&self) -> &Arc<Trash> {
        &self.trash
    }

    /// An id for a new column family. It counts as used once an edit creates it.
    #[must_use]
    pub fn next_cf_id(&self) -> CfId {
        self.state.next_cf_id
    }

    /// The current version of a column family.
    #[must_use]
    pub fn version(&self, cf: CfId) -> Option<&Arc<Version>> {
        self.state.cfs.get(&cf).map(|known| &known.version)
    }

    /// Figures of a column family's space that an edit has kept; `None` if none has.
    #[must_use]
    pub fn space_figures(&self, cf: CfId) -> Option<SpaceFigures> {
        self.state.cfs.get(&cf).and_then(|known| known.space)
    }

    /// Every column family: id, name, current version.
    pub fn column_families(&self) -> impl Iterator<Item = (CfId, &str, &Arc<Version>)> {
        self.state.cfs.iter().map(|(&cf, known)| (cf, &*known.name, &known.version))
    }

    /// The id of the column family with that name.
    #[must_use]
    pub fn cf_named(&self, name: &str) -> Option<CfId> {
        self.column_families().find(|(_, known, _)| *known == name).map(|(cf, _, _)| cf)
    }

    /// The largest sequence number that the manifest knows of; the log may hold later ones.
    #[must_use]
    pub fn last_seq(&self) -> SeqNo {
        self.state.last_seq
    }

    /// The oldest log segment that is needed.
    #[must_use]
    pub fn log_floor(&self) -> FileNo {
        self.state.log_floor
    }

    /// The writer of durability marks.
    #[must_use]
    pub fn marks(&self) -> &Arc<Marks> {
        &self.marks
    }

    /// Evidence of other files about what was durable, from the recovery of the manifest.
    #[must_use]
    pub fn evidence(&self) -> &Evidence {
        &self.evidence
    }

    /// Random id of the database.
    #[must_use]
    pub fn db_id(&self) -> &[u8; 16] {
        &self.db_id
    }

    /// Number of the current manifest. Other manifests in the directory are remains of interrupted
    /// work, unless the last edit failed ([`VersionSet::is_unsettled`]).
    #[must_use]
    pub fn manifest_no(&self) -> FileNo {
        self.manifest_no
    }

    /// Whether the next open might find a state other than this set's, because a write failed and
    /// no later edit succeeded.
    #[must_use]
    pub fn is_unsettled(&self) -> bool {
        self.unsettled
    }

    /// Bytes of an edit that was cut off at the end of the manifest, as recovery found it.
    #[must_use]
    pub fn torn_bytes(&self) -> u64 {
        self.torn_bytes
    }
}

/// Cause of the error for an edit that does not fit the state that it changes. For example, two
/// files of one level would overlap, or a file to remove is missing. No correct job makes such an
/// edit, and it damages nothing that is stored.
#[derive(Debug)]
pub(crate) struct ImpossibleEdit(String);

impl fmt::Display for ImpossibleEdit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ImpossibleEdit {}

/// Turns the builders' `Corrupt`, which recovery needs, into the error of a wrong edit.
fn does_not_fit(error: &Error) -> Error {
    match error.kind() {
        ErrorKind::Corrupt | ErrorKind::NotFound => Error::with_source(
            ErrorKind::Internal,
            "an edit does not fit the files of the database, so nothing was changed; it is a defect \
             of the engine if this is told again and again",
            ImpossibleEdit(error.context().to_owned()),
        ),
        _ => error.clone(),
    }
}

/// The state of a [`VersionSet`] at one moment, for a checkpoint.
#[derive(Debug)]
pub struct Exporter {
    fs: Arc<dyn FileSystem>,
    db_id: [u8; 16],
    no: FileNo,
    state: State,
}

impl Exporter {
    /// An exporter for a database `db_id` with `state`, whose manifest gets the number `no`.
    pub(crate) fn new(fs: Arc<dyn FileSystem>, db_id: [u8; 16], no: FileNo, state: State) -> Self {
        Self { fs, db_id, no, state }
    }

    /// Replaces the column families by their state when `last_seq` was the last sequence number.
    /// Then applies `edit`, which adds the files that were made for the export. The export has no
    /// log.
    pub(crate) fn of_moment<'a>(
        mut self,
        last_seq: SeqNo,
        families: impl Iterator<Item = (CfId, &'a str, Arc<Version>)>,
        edit: &VersionEdit,
    ) -> Result<Self> {
        let before = std::mem::take(&mut self.state.cfs);
        let known = |(cf, name, version): (CfId, &str, Arc<Version>)| {
            let space = before.get(&cf).and_then(|known| known.space);
            (cf, CfState { name: name.into(), version, space })
        };
        self.state.cfs = families.map(known).collect();
        self.state.last_seq = last_seq;
        self.state.log_floor = self.no;
        let mut builder = StateBuilder::new(self.state);
        builder.apply(edit)?;
        self.state = builder.finish(&Arc::default())?.state;
        Ok(self)
    }

    /// Writes a database with this state into another directory of the same file system:
    /// `IDENTITY`, a manifest and `CURRENT`. All of them are durable on return. The caller has put
    /// the other files there before.
    pub fn write(&self, dir: &Path) -> Result<()> {
        let fs = self.fs.as_ref();
        Identity { format: FORMAT_VERSION, db_id: self.db_id }.store(fs, dir)?;
        let header = Header { db_id: self.db_id, no: self.no };
        let snapshot = self.state.snapshot();
        let writer = ManifestWriter::create(fs, dir, &header, &snapshot, IoPurpose::Maintenance)?;
        set_current(fs, dir, self.no)?;
        let mark = MarkHeader { db_id: self.db_id, manifest: self.no };
        Marks::default().begin(fs, dir, mark, writer.durable_bytes());
        Ok(())
    }
}

/// The number in the name of a table, log segment, manifest or mark file; `None` for other names.
#[must_use]
pub fn file_number(name: &str) -> Option<FileNo> {
    let digits = match name.strip_prefix("MANIFEST-").or_else(|| name.strip_prefix("MARK-")) {
        Some(digits) => digits,
        None => name.split_once('.').map_or("", |(digits, _)| digits),
    };
    let all_digits = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    if all_digits { digits.parse().ok().map(FileNo) } else { None }
}

/// Content of the current manifest, without a check of the files that it names.
#[derive(Debug)]
pub(crate) struct ReadState {
    pub(crate) state: State,
    pub(crate) header: Header,
    /// Bytes of an edit that was cut off after the last whole one.
    pub(crate) torn_bytes: u64,
    /// Number of edits, without the snapshot.
    pub(crate) edits: u64,
    /// Offset after the last whole record.
    pub(crate) end: u64,
    pub(crate) evidence: Evidence,
}

/// Reads the manifest of the database in `dir`; changes nothing. New files belong to `trash`. The
/// errors are those of [`VersionSet::recover`], without those of missing files.
pub(crate) fn read_state(fs: &dyn FileSystem, dir: &Path, trash: &Arc<Trash>) -> Result<ReadState> {
    let DirectoryState::Database(identity) = inspect(fs, dir)? else {
        return Err(Error::not_found(format!("{} has no database", dir.display())));
    };
    // The evidence is gathered before the manifest is read; `Evidence::gather` says why.
    let evidence = Evidence::gather(fs, dir, &identity.db_id)?;
    let no = current(fs, dir)?;
    let path = dir.join(manifest_name(no));
    let context = IoContext::manifest(IoPurpose::Recovery);
    let bytes = fs.read(&path, context).map_err(|error| match error.kind() {
        ErrorKind::NotFound => Error::corrupt(&path, 0, "CURRENT names it, but it is missing"),
        _ => error,
    })?;
    let mut reader = ManifestReader::new(path, no, &bytes);
    let (header, snapshot) = reader.begin()?;
    if header.db_id != identity.db_id {
        return Err(reader.corrupt(0, format_args!("belongs to another {IDENTITY_NAME}")));
    }
    let mut builder = StateBuilder::new(State::default());
    builder.apply(&snapshot).map_err(|error| reader.located(0, &error))?;
    let mut edits = 0;
    while let Some(record) = reader.next()? {
        let edit = reader.decode(&record)?;
        edits += u64::from(!edit.is_mark());
        builder.apply(&edit).map_err(|error| reader.located(record.offset, &error))?;
        if has(Defect::PruningDuringRecovery) {
            let applied = builder.finish(trash);
            builder = StateBuilder::new(
                applied.map_err(|error| reader.located(record.offset, &error))?.state,
            );
        }
    }
    let end = reader.offset();
    evidence.check(dir, &ReadManifest { no, bytes: end, edits })?;
    let applied = builder.finish(trash).map_err(|error| reader.located(end, &error))?;
    let torn_bytes = reader.torn_bytes();
    Ok(ReadState { state: applied.state, header, torn_bytes, edits, end, evidence })
}

/// Refuses a database whose log lies elsewhere than this program would look for it. Without that
/// log, writes would be missing silently.
fn check_log_place(
    fs: &dyn FileSystem,
    state: &State,
    dir: &Path,
    entries: &[DirEntry],
) -> Result<()> {
    let named = state.owner.as_ref().map_or("", |owner| &*owner.log_place);
    let (place, dir) = (fs.log_place(dir), dir.display());
    let refused = |what: String| Err(Error::unsupported(what));
    match place {
        None if named.is_empty() => Ok(()),
        None => refused(format!(
            "the write-ahead log of {dir} lies in {named}, and this program would look for it in \
             the directory: open the database where its log is"
        )),
        Some(place) if is_same_log_place(named, &place) => Ok(()),
        Some(place) if !named.is_empty() => refused(format!(
            "the write-ahead log of {dir} lies in {named}, and this program would look for it in \
             {place}: open the database where its log is"
        )),
        // A new database or a checkpoint. Neither has a log.
        Some(_) if state.owner.is_none() && !entries.iter().any(is_segment) => Ok(()),
        Some(place) => refused(format!(
            "the database in {dir} has no part of its write-ahead log in {place}: the place of the \
             log is chosen when a database is created, with a log directory of its own. The log of \
             a checkpoint may lie elsewhere than that of the original"
        )),
    }
}

fn is_segment(entry: &DirEntry) -> bool {
    file_number(&entry.name).is_some_and(|no| entry.name == log_name(no))
}

/// Checks that every file of the state is in the directory with its length, and in one column
/// family only.
fn check_files(state: &State, dir: &Path, entries: &[DirEntry]) -> Result<()> {
    let lengths: HashMap<&str, u64> = entries.iter().map(|e| (e.name.as_str(), e.len)).collect();
    let mut seen = HashMap::new();
    for (&cf, known) in &state.cfs {
        for (name, no, bytes) in named_files(&known.version) {
            let path = dir.join(&name);
            if let Some(other) = seen.insert(no, cf) {
                let what = format!("the manifest has it in column families {other} and {cf}");
                return Err(Error::corrupt(&path, 0, what));
            }
            match lengths.get(name.as_str()) {
                Some(&len) if len == bytes => {}
                Some(&len) => {
                    let what = format!("{len} bytes long instead of {bytes}");
                    return Err(Error::corrupt(&path, len.min(bytes), what));
                }
                None => return Err(Error::corrupt(&path, 0, "the file is missing")),
            }
        }
    }
    Ok(())
}

/// Name, number and length of every file that a version holds.
fn named_files(version: &Version) -> impl Iterator<Item = (String, u64, u64)> {
    let tables =
        version.files().map(|(_, file)| (sst_name(file.file_no()), file.no, file.size_bytes));
    let values = version
        .values()
        .files()
        .map(|(file, _)| (value_file_name(file.file_no()), file.no, file.size_bytes));
    let invalid = version
        .values()
        .invalid_files()
        .map(|file| (invalid_file_name(file.file_no()), file.no, file.size_bytes));
    tables.chain(values).chain(invalid)
}
