//! The state of the namespace as a value: logical names, and the place of each file.
//!
//! [`super::Namespace`] owns it while tiers are open. An open builds it by replaying records. Both
//! call [`NamespaceState::change`], which returns the state that [`NamespaceState::undo`] needs.
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
use std::hash::Hash;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use archipelago_env::names::{NameTree, Refusal, Subtree};

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

/// Effects of a record.
#[derive(Debug, Default)]
pub(crate) struct Change {
    /// Physical files that it made superfluous.
    pub(crate) gone: Vec<Gone>,
    /// Parts of the previous state, for [`NamespaceState::undo`].
    pub(crate) undo: Undo,
}

/// The parts of the state that a record changed, as they were, in the order of the changes.
#[derive(Debug, Default)]
pub(crate) struct Undo(Vec<Before>);

/// One part of the state before a change.
#[derive(Debug)]
enum Before {
    /// The file of a name; `None` if the name was free.
    Name(PathBuf, Option<u64>),
    File(u64, Option<FileRecord>),
    Copy(u64, Option<CopyRecord>),
    Device(u8, Option<DeviceRecord>),
    /// A path at which there was no directory.
    NoDir(PathBuf),
    /// An empty directory.
    EmptyDir(PathBuf),
    /// A directory with everything below it.
    Tree(Subtree<u64>),
}

impl Change {
    fn was(&mut self, before: Before) {
        self.undo.0.push(before);
    }
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
    /// Carries out a change that is not undone. Returns the physical files that it made
    /// superfluous, or the reason why it is refused.
    pub(crate) fn apply(&mut self, record: &Record) -> Result<Vec<Gone>, Refusal> {
        self.change(record).map(|change| change.gone)
    }

    /// Carries out a change. Returns what it changed, or the reason why it is refused.
    pub(crate) fn change(&mut self, record: &Record) -> Result<Change, Refusal> {
        let mut change = Change::default();
        match record {
            Record::Device(device) => {
                let before = self.devices.insert(device.no, device.clone());
                change.was(Before::Device(device.no, before));
            }
            Record::File(file) => self.add_file(file, &mut change)?,
            Record::Rename { from, to } => self.rename(from, to, &mut change)?,
            Record::Link { from, to } => self.link(from, to, &mut change)?,
            Record::Remove { path } => {
                let id = self.names.find(path)?;
                self.names.remove(path);
                change.was(Before::Name(path.clone(), Some(id)));
                self.lose_name(id, path, &mut change);
            }
            Record::Move { file, to } => {
                let found = self.files.get_mut(file).ok_or_else(|| no_file(*file))?;
                change.was(Before::File(*file, Some(found.clone())));
                change.gone.push(Gone::Moved(*file, found.place));
                found.place = *to;
                self.use_number(to.number);
            }
            Record::Level { file, level } => {
                let found = self.files.get_mut(file).ok_or_else(|| no_file(*file))?;
                change.was(Before::File(*file, Some(found.clone())));
                found.level = Some(*level);
            }
            Record::CopyAdded(copy) => {
                if !self.files.contains_key(&copy.file) {
                    return Err(no_file(copy.file));
                }
                self.use_number(copy.number);
                let before = self.copies.insert(copy.number, copy.clone());
                change.was(Before::Copy(copy.number, before));
            }
            Record::CopyDropped { number } => {
                let none = || contradiction(format!("no copy {number}"));
                let copy = self.copies.remove(number).ok_or_else(none)?;
                change.gone.push(Gone::Copy(copy.file, *number));
                change.was(Before::Copy(*number, Some(copy)));
            }
            Record::MakeDir { path } => {
                if let Some(uppermost) = self.names.make_dirs(path)? {
                    change.was(Before::NoDir(uppermost));
                }
            }
            Record::RemoveDir { path } => self.remove_tree(path, &mut change)?,
            Record::Mark { next, .. } => self.next = self.next.max(*next),
        }
        Ok(change)
    }

    /// Undoes the latest change, except that its numbers count as used.
    pub(crate) fn undo(&mut self, undo: Undo) {
        for before in undo.0.into_iter().rev() {
            match before {
                Before::Name(path, Some(id)) => {
                    self.names.insert(&path, id);
                }
                Before::Name(path, None) => {
                    self.names.remove(&path);
                }
                Before::File(id, file) => put_back(&mut self.files, id, file),
                Before::Copy(number, copy) => put_back(&mut self.copies, number, copy),
                Before::Device(no, Some(device)) => {
                    self.devices.insert(no, device);
                }
                Before::Device(no, None) => {
                    self.devices.remove(&no);
                }
                Before::NoDir(path) => {
                    // The change created this entry, so it exists.
                    let _made = self.names.remove_tree(&path);
                }
                Before::EmptyDir(path) => {
                    // The change removed this name, so no file has it.
                    let _made = self.names.make_dirs(&path);
                }
                Before::Tree(tree) => self.names.restore(tree),
            }
        }
    }

    fn use_number(&mut self, number: u64) {
        self.next = self.next.max(number.saturating_add(1));
    }

    fn add_file(&mut self, file: &FileRecord, change: &mut Change) -> Result<(), Refusal> {
        if self.files.contains_key(&file.id) {
            return Err(contradiction(format!("there is a file {} already", file.id)));
        }
        if file.names.is_empty() {
            return Err(contradiction(format!("file {} has no name", file.id)));
        }
        file.names.iter().try_for_each(|name| self.names.check_target(name))?;
        self.use_number(file.id.max(file.place.number));
        for name in &file.names {
            self.take_name(name, file.id, change);
        }
        let before = self.files.insert(file.id, file.clone());
        change.was(Before::File(file.id, before));
        Ok(())
    }

    /// Gives a name to a file, and takes it from the file that had it.
    fn take_name(&mut self, name: &Path, id: u64, change: &mut Change) {
        let before = self.names.insert(name, id);
        change.was(Before::Name(name.to_owned(), before));
        if let Some(before) = before {
            self.lose_name(before, name, change);
        }
    }

    /// Takes a name from a file. A file without names is forgotten.
    fn lose_name(&mut self, id: u64, name: &Path, change: &mut Change) {
        let Some(file) = self.files.get_mut(&id) else { return };
        change.was(Before::File(id, Some(file.clone())));
        file.names.retain(|held| held != name);
        if file.names.is_empty() {
            self.files.remove(&id);
            for (number, copy) in self.copies.extract_if(|_, copy| copy.file == id) {
                change.was(Before::Copy(number, Some(copy)));
            }
            change.gone.push(Gone::File(id));
        }
    }

    fn rename(&mut self, from: &Path, to: &Path, change: &mut Change) -> Result<(), Refusal> {
        if self.names.is_dir(from) {
            return self.rename_dir(from, to, change);
        }
        let id = self.names.find(from)?;
        self.names.check_target(to)?;
        // Both are names of one file. POSIX says that nothing happens.
        if self.names.id(to) == Some(id) {
            return Ok(());
        }
        self.names.remove(from);
        change.was(Before::Name(from.to_owned(), Some(id)));
        if let Some(file) = self.files.get_mut(&id) {
            change.was(Before::File(id, Some(file.clone())));
            file.names.retain(|name| name != from);
            file.names.push(to.to_owned());
        }
        self.take_name(to, id, change);
        Ok(())
    }

    /// Renames a directory with all files in it. It may replace an empty directory. Cost: linear in
    /// the names below it.
    fn rename_dir(&mut self, from: &Path, to: &Path, change: &mut Change) -> Result<(), Refusal> {
        self.names.check_dir_target(from, to)?;
        if from == to {
            return Ok(());
        }
        if self.names.is_dir(to) {
            change.was(Before::EmptyDir(to.to_owned()));
        }
        let tree = self.names.remove_tree(from)?;
        self.names.restore(tree.clone());
        change.was(Before::Tree(tree));
        change.was(Before::NoDir(to.to_owned()));
        for moved in self.names.rename_dir(from, to)? {
            let Some(file) = self.files.get_mut(&moved.id) else { continue };
            change.was(Before::File(moved.id, Some(file.clone())));
            if let Some(held) = file.names.iter_mut().find(|held| **held == moved.from) {
                *held = moved.to;
            }
        }
        Ok(())
    }

    /// Refuses to rename the directory `from` to `to` if POSIX does.
    pub(crate) fn check_dir_target(&self, from: &Path, to: &Path) -> Result<(), Refusal> {
        self.names.check_dir_target(from, to)
    }

    fn link(&mut self, from: &Path, to: &Path, change: &mut Change) -> Result<(), Refusal> {
        let id = self.names.find(from)?;
        self.names.check_target(to)?;
        if self.names.id(to).is_some() {
            return Err(Refusal::of(ErrorKind::AlreadyExists, to, "exists already"));
        }
        self.names.insert(to, id);
        change.was(Before::Name(to.to_owned(), None));
        if let Some(file) = self.files.get_mut(&id) {
            change.was(Before::File(id, Some(file.clone())));
            file.names.push(to.to_owned());
        }
        Ok(())
    }

    fn remove_tree(&mut self, path: &Path, change: &mut Change) -> Result<(), Refusal> {
        let removed = self.names.remove_tree(path)?;
        for (name, id) in removed.names() {
            self.lose_name(id, &name, change);
        }
        change.was(Before::Tree(removed));
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

/// Puts an element of a map back as it was.
fn put_back<K: Eq + Hash, V>(map: &mut HashMap<K, V>, key: K, before: Option<V>) {
    match before {
        Some(value) => {
            map.insert(key, value);
        }
        None => {
            map.remove(&key);
        }
    }
}
