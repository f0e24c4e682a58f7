//! The state of the namespace as a value: logical names, and the place of each file.
//!
//! [`super::Namespace`] owns it while tiers are open. An open builds it by replaying records. Both
//! go through [`NamespaceState::apply`].
//!
//! Invariants:
//! 1. Every name belongs to a file that exists. A file without a name is forgotten.
//! 2. Every name lies in a directory that exists.
//! 3. `next` is above all numbers that were used, so that no number is used twice.
//! 4. A file lies in exactly one place.
//!
//! A pure value. Failure: a record that would break an invariant is refused and changes nothing.
//! Cost: a change costs a few look-ups in maps ([`NameTree`]).

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::Path;

use archipelago_env::names::{NameTree, Refusal};

use super::record::{CopyRecord, DeviceRecord, FilePlace, FileRecord, Record};

/// A physical file that a change made superfluous.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gone {
    /// The file of this id was removed, and so were its copies.
    File(u64),
    /// The file of this id moved. The place is its previous one.
    Moved(u64, FilePlace),
    /// A copy was dropped: the id of its file, and its number.
    Copy(u64, u64),
}

/// The refusal of a record that contradicts the state in another way than by its names.
fn contradiction(why: String) -> Refusal {
    Refusal { kind: ErrorKind::InvalidInput, why }
}

fn no_file(id: u64) -> Refusal {
    contradiction(format!("there is no file {id}"))
}

/// The state of the namespace.
#[derive(Clone, Debug, Default)]
pub(crate) struct NamespaceState {
    /// Files by unique id.
    pub(crate) files: HashMap<u64, FileRecord>,
    /// Copies by number.
    pub(crate) copies: HashMap<u64, CopyRecord>,
    /// Devices by number.
    pub(crate) devices: BTreeMap<u8, DeviceRecord>,
    /// Names and directories, each name with the id of its file.
    names: NameTree<u64>,
    /// The next number that was never used.
    pub(crate) next: u64,
}

impl NamespaceState {
    /// Carries out a change. Returns the physical files that it made superfluous, or the reason why
    /// it is refused.
    pub(crate) fn apply(&mut self, record: &Record) -> Result<Vec<Gone>, Refusal> {
        let mut gone = Vec::new();
        match record {
            Record::Device(device) => {
                self.devices.insert(device.no, device.clone());
            }
            Record::File(file) => self.add_file(file, &mut gone)?,
            Record::Rename { from, to } => self.rename(from, to, &mut gone)?,
            Record::Link { from, to } => self.link(from, to)?,
            Record::Remove { path } => {
                let id = self.names.find(path)?;
                self.names.remove(path);
                self.lose_name(id, path, &mut gone);
            }
            Record::Move { file, to } => {
                let found = self.files.get_mut(file).ok_or_else(|| no_file(*file))?;
                gone.push(Gone::Moved(*file, found.place));
                found.place = *to;
                self.use_number(to.number);
            }
            Record::Level { file, level } => {
                let found = self.files.get_mut(file).ok_or_else(|| no_file(*file))?;
                found.level = Some(*level);
            }
            Record::CopyAdded(copy) => {
                if !self.files.contains_key(&copy.file) {
                    return Err(no_file(copy.file));
                }
                self.use_number(copy.number);
                self.copies.insert(copy.number, copy.clone());
            }
            Record::CopyDropped { number } => {
                let none = || contradiction(format!("no copy {number}"));
                let copy = self.copies.remove(number).ok_or_else(none)?;
                gone.push(Gone::Copy(copy.file, *number));
            }
            Record::MakeDir { path } => drop(self.names.make_dirs(path)?),
            Record::RemoveDir { path } => self.remove_tree(path, &mut gone)?,
            Record::Mark { next, .. } => self.next = self.next.max(*next),
        }
        Ok(gone)
    }

    fn use_number(&mut self, number: u64) {
        self.next = self.next.max(number.saturating_add(1));
    }

    fn add_file(&mut self, file: &FileRecord, gone: &mut Vec<Gone>) -> Result<(), Refusal> {
        if self.files.contains_key(&file.id) {
            return Err(contradiction(format!("there is a file {} already", file.id)));
        }
        if file.names.is_empty() {
            return Err(contradiction(format!("file {} has no name", file.id)));
        }
        file.names.iter().try_for_each(|name| self.names.check_target(name))?;
        self.use_number(file.id.max(file.place.number));
        for name in &file.names {
            self.take_name(name, file.id, gone);
        }
        self.files.insert(file.id, file.clone());
        Ok(())
    }

    /// Gives a name to a file, and takes it from the file that had it.
    fn take_name(&mut self, name: &Path, id: u64, gone: &mut Vec<Gone>) {
        if let Some(before) = self.names.insert(name, id) {
            self.lose_name(before, name, gone);
        }
    }

    /// Takes a name from a file. A file without names is forgotten.
    fn lose_name(&mut self, id: u64, name: &Path, gone: &mut Vec<Gone>) {
        let Some(file) = self.files.get_mut(&id) else { return };
        file.names.retain(|held| held != name);
        if file.names.is_empty() {
            self.files.remove(&id);
            self.copies.retain(|_, copy| copy.file != id);
            gone.push(Gone::File(id));
        }
    }

    fn rename(&mut self, from: &Path, to: &Path, gone: &mut Vec<Gone>) -> Result<(), Refusal> {
        if self.names.is_dir(from) {
            return self.rename_dir(from, to);
        }
        let id = self.names.find(from)?;
        self.names.check_target(to)?;
        // Both are names of one file. POSIX says that nothing happens.
        if self.names.id(to) == Some(id) {
            return Ok(());
        }
        self.names.remove(from);
        if let Some(file) = self.files.get_mut(&id) {
            file.names.retain(|name| name != from);
            file.names.push(to.to_owned());
        }
        self.take_name(to, id, gone);
        Ok(())
    }

    /// Renames a directory with all files in it. It may replace an empty directory. Cost: linear in
    /// the names below it.
    fn rename_dir(&mut self, from: &Path, to: &Path) -> Result<(), Refusal> {
        for moved in self.names.rename_dir(from, to)? {
            let file = self.files.get_mut(&moved.id);
            let held =
                file.and_then(|file| file.names.iter_mut().find(|held| **held == moved.from));
            if let Some(held) = held {
                *held = moved.to;
            }
        }
        Ok(())
    }

    /// Refuses to rename the directory `from` to `to` if POSIX does.
    pub(crate) fn check_dir_target(&self, from: &Path, to: &Path) -> Result<(), Refusal> {
        self.names.check_dir_target(from, to)
    }

    fn link(&mut self, from: &Path, to: &Path) -> Result<(), Refusal> {
        let id = self.names.find(from)?;
        self.names.check_target(to)?;
        if self.names.id(to).is_some() {
            return Err(Refusal::of(ErrorKind::AlreadyExists, to, "exists already"));
        }
        self.names.insert(to, id);
        if let Some(file) = self.files.get_mut(&id) {
            file.names.push(to.to_owned());
        }
        Ok(())
    }

    fn remove_tree(&mut self, path: &Path, gone: &mut Vec<Gone>) -> Result<(), Refusal> {
        let removed = self.names.remove_tree(path)?;
        for (name, id) in removed.names() {
            self.lose_name(id, &name, gone);
        }
        Ok(())
    }

    /// Ids of all files below a directory.
    pub(crate) fn ids_below(&self, dir: &Path) -> Vec<u64> {
        self.names.ids_below(dir)
    }

    /// Id of the file of this name.
    pub(crate) fn id(&self, path: &Path) -> Option<u64> {
        self.names.id(path)
    }

    /// Whether the path is a directory. Roots (`/` and the empty path) are directories.
    pub(crate) fn is_dir(&self, path: &Path) -> bool {
        self.names.is_dir(path)
    }

    /// Entries of a directory, sorted by name: the id of a file, or `None` for a directory. `None`
    /// if there is no such directory.
    pub(crate) fn list(&self, dir: &Path) -> Option<Vec<(OsString, Option<u64>)>> {
        self.names.list(dir)
    }

    /// Records that build this state from the empty one.
    pub(crate) fn snapshot(&self) -> Vec<Record> {
        let devices = self.devices.values().cloned().map(Record::Device);
        let dirs = self.names.dirs().map(|path| Record::MakeDir { path: path.to_owned() });
        let mut files: Vec<_> = self.files.values().collect();
        files.sort_by_key(|file| file.id);
        let mut copies: Vec<_> = self.copies.values().collect();
        copies.sort_by_key(|copy| copy.number);
        let files = files.into_iter().cloned().map(Record::File);
        let copies = copies.into_iter().cloned().map(Record::CopyAdded);
        devices.chain(dirs).chain(files).chain(copies).collect()
    }
}
