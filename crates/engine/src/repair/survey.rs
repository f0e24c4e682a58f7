//! Survey of a damaged directory: its manifest, or the readable records of it, and its files.
//!
//! A whole manifest is followed exactly. Otherwise every manifest in the directory is read record
//! by record, and only whole records count. They provide [`Facts`]: families and their settings,
//! the family of each table and value file, the sequence numbers of ingested tables, the removed
//! tables, and which value file inherited from which. Nothing is changed.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use archipelago_base::{CfId, FileNo, Result, SeqNo};
use archipelago_env::separate_log::is_same_log_place;
use archipelago_env::{DirEntry, FileSystem, IoContext, IoPurpose};

use crate::file_meta::{FileMeta, IDENTITY_NAME, log_name, manifest_name, sst_name};
use crate::live_file::Trash;
use crate::manifest::edit::{Change, VersionEdit};
use crate::manifest::log::{Header, ManifestReader};
use crate::manifest::{Evidence, Identity, State, file_number, read_state};
use crate::options::CfOptions;
use crate::value_ref::ValueFileMeta;

/// Known properties of a column family.
#[derive(Clone, Debug)]
pub(super) struct FamilyFacts {
    pub(super) name: String,
    pub(super) options: CfOptions,
    pub(super) is_dropped: bool,
}

/// Known properties of a table.
#[derive(Clone, Debug)]
pub(super) struct TableFacts {
    pub(super) cf: CfId,
    pub(super) meta: FileMeta,
}

/// Known properties of a value file.
#[derive(Clone, Debug)]
pub(super) struct ValueFacts {
    pub(super) cf: CfId,
    pub(super) meta: ValueFileMeta,
}

/// Facts from the whole records of all manifests. Later records override earlier ones.
#[derive(Debug, Default)]
pub(super) struct Facts {
    pub(super) families: BTreeMap<CfId, FamilyFacts>,
    pub(super) tables: HashMap<u64, TableFacts>,
    /// Tables that a record removed and no later one added.
    pub(super) removed: HashSet<u64>,
    /// Value files, including those that a record removed.
    pub(super) values: HashMap<u64, ValueFacts>,
    /// Heir of each value file that a garbage collection replaced. Chains are resolved to the last
    /// heir.
    pub(super) heirs: BTreeMap<u64, u64>,
    /// End of the last lot of file numbers.
    pub(super) next_file_no: FileNo,
    pub(super) log_floor: FileNo,
    pub(super) last_seq: SeqNo,
    /// Place of the log that the newest owner has named, which is empty for a log in the directory.
    /// `None` without an owner.
    pub(super) log_place: Option<String>,
}

/// The manifest, if it can be used.
#[derive(Debug)]
pub(super) enum ManifestFound {
    Whole(Box<State>),
    /// The reason for which it cannot be used.
    Unusable(String),
}

/// Everything that the files of a database's directory tell about it.
#[derive(Debug)]
pub(super) struct Survey {
    pub(super) dir: PathBuf,
    pub(super) entries: Vec<DirEntry>,
    /// Id of the database, if a file has it.
    pub(super) db_id: Option<[u8; 16]>,
    pub(super) manifest: ManifestFound,
    pub(super) facts: Facts,
    /// Evidence of other files about what was durable.
    pub(super) evidence: Evidence,
}

impl Survey {
    pub(super) fn take(fs: &dyn FileSystem, dir: &Path) -> Result<Self> {
        let entries = fs.list(dir)?;
        let (facts, header_id) = Facts::gather(fs, dir, &entries);
        let context = IoContext::manifest(IoPurpose::Recovery);
        let path = dir.join(IDENTITY_NAME);
        let identity = fs.read(&path, context).and_then(|bytes| Identity::decode(&path, &bytes));
        let db_id = identity.ok().map(|identity| identity.db_id).or(header_id);
        let trash = Arc::new(Trash::default());
        let (manifest, evidence) = match read_state(fs, dir, &trash) {
            Ok(read) => (ManifestFound::Whole(Box::new(read.state)), read.evidence),
            Err(error) => {
                let evidence = db_id.map(|id| Evidence::gather(fs, dir, &id));
                let evidence = evidence.transpose().ok().flatten().unwrap_or_default();
                (ManifestFound::Unusable(error.to_string()), evidence)
            }
        };
        Ok(Self { dir: dir.to_owned(), entries, db_id, manifest, facts, evidence })
    }

    /// Whether the directory holds any file of a database.
    pub(super) fn has_data(&self) -> bool {
        self.entries.iter().any(|entry| {
            file_number(&entry.name).is_some_and(|no| {
                entry.name == sst_name(no)
                    || entry.name == log_name(no)
                    || entry.name == manifest_name(no)
            })
        })
    }

    /// Place of the log, if the owner has named another one than that in which `fs` looks for it.
    pub(super) fn log_elsewhere(&self, fs: &dyn FileSystem) -> Option<String> {
        let named = match &self.manifest {
            ManifestFound::Whole(state) => state.owner.as_ref().map(|owner| &*owner.log_place),
            ManifestFound::Unusable(_) => self.facts.log_place.as_deref(),
        }?;
        let is_read = match fs.log_place(&self.dir) {
            Some(place) => is_same_log_place(named, &place),
            None => named.is_empty(),
        };
        let place = || match named {
            "" => self.dir.display().to_string(),
            named => named.to_owned(),
        };
        (!is_read).then(place)
    }

    /// The numbers of all files whose name is `name_of` of the number, ascending.
    pub(super) fn numbers(&self, name_of: impl Fn(FileNo) -> String) -> Vec<FileNo> {
        let numbers =
            self.entries.iter().filter(|entry| !entry.is_dir).filter_map(|entry| {
                file_number(&entry.name).filter(|&no| entry.name == name_of(no))
            });
        let mut numbers: Vec<FileNo> = numbers.collect();
        numbers.sort_unstable();
        numbers
    }

    /// The length of a file; `None` if it is missing.
    pub(super) fn len_of(&self, name: &str) -> Option<u64> {
        self.entries.iter().find(|entry| entry.name == name).map(|entry| entry.len)
    }

    /// A file number that no file of the directory has.
    pub(super) fn next_file_no(&self) -> FileNo {
        let used = self.entries.iter().filter_map(|entry| file_number(&entry.name)).max();
        let past = FileNo(used.map_or(1, |FileNo(used)| used.saturating_add(1)));
        // A log with a number below the floor would not count in the repaired database.
        let known = match &self.manifest {
            ManifestFound::Whole(state) => state.next_file_no.max(state.log_floor),
            ManifestFound::Unusable(_) => self.facts.next_file_no.max(self.facts.log_floor),
        };
        past.max(known)
    }
}

impl Facts {
    /// Reads all manifests, oldest first. Also returns the database's id, as the newest manifest
    /// states it.
    fn gather(fs: &dyn FileSystem, dir: &Path, entries: &[DirEntry]) -> (Self, Option<[u8; 16]>) {
        let mut facts = Self::default();
        let mut db_id = None;
        let mut numbers: Vec<FileNo> = entries
            .iter()
            .filter_map(|entry| {
                file_number(&entry.name).filter(|&no| entry.name == manifest_name(no))
            })
            .collect();
        numbers.sort_unstable();
        for no in numbers {
            let path = dir.join(manifest_name(no));
            // A manifest that cannot be read yields no facts; the survey reports the current one.
            let Ok(bytes) = fs.read(&path, IoContext::manifest(IoPurpose::Recovery)) else {
                continue;
            };
            let mut reader = ManifestReader::new(path, no, &bytes);
            while let Some(record) = reader.next_whole() {
                if record.offset == 0 {
                    db_id =
                        Header::decode(record.payload).ok().map(|header| header.db_id).or(db_id);
                } else if let Ok(edit) = reader.decode(&record) {
                    facts.apply(&edit);
                }
            }
        }
        (facts, db_id)
    }

    fn apply(&mut self, edit: &VersionEdit) {
        // A snapshot names everything that exists.
        let is_snapshot = edit
            .changes
            .iter()
            .any(|change| matches!(change, Change::CreateCf { cf, .. } if *cf == CfId::DEFAULT));
        if is_snapshot {
            self.removed.extend(self.tables.drain().map(|(no, _)| no));
            self.families.values_mut().for_each(|family| family.is_dropped = true);
        }
        for change in &edit.changes {
            if let Change::RemoveFile { no, .. } = change {
                self.tables.remove(&no.0);
                self.removed.insert(no.0);
            }
        }
        edit.changes.iter().for_each(|change| self.apply_change(change));
    }

    fn apply_change(&mut self, change: &Change) {
        match change {
            Change::CreateCf { cf, name, options } => {
                let (name, options) = (name.clone(), options.as_ref().clone());
                self.families.insert(*cf, FamilyFacts { name, options, is_dropped: false });
            }
            Change::DropCf { cf } => {
                if let Some(family) = self.families.get_mut(cf) {
                    family.is_dropped = true;
                }
            }
            Change::SetCfOptions { cf, options } => {
                if let Some(family) = self.families.get_mut(cf) {
                    family.options = options.as_ref().clone();
                }
            }
            Change::AddFile { cf, meta, .. } => {
                self.removed.remove(&meta.no);
                let meta = meta.as_ref().clone();
                self.tables.insert(meta.no, TableFacts { cf: *cf, meta });
            }
            Change::AddValueFile { cf, meta } => {
                let meta = meta.as_ref().clone();
                self.values.insert(meta.no, ValueFacts { cf: *cf, meta });
            }
            Change::Inherit { old, heir, .. } => {
                let (old, heir) = (old.0, heir.0);
                self.heirs.values_mut().filter(|at| **at == old).for_each(|at| *at = heir);
                self.heirs.insert(old, heir);
            }
            Change::NextFileNo(no) => self.next_file_no = self.next_file_no.max(*no),
            Change::LogFloor(no) => self.log_floor = self.log_floor.max(*no),
            Change::LastSeq(seq) => self.last_seq = self.last_seq.max(*seq),
            Change::OwnerEpoch(owner) => self.log_place = Some(owner.log_place.clone()),
            _ => {}
        }
    }
}
