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
//! Cost: a change costs a few look-ups in maps. Names are kept by directory, because paths are
//! compared component by component, and thousands of tables are created and removed.

use std::collections::{BTreeMap, HashMap};
use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::path::{Component, Path, PathBuf};

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

/// The state of the namespace.
#[derive(Clone, Debug, Default)]
pub(crate) struct NamespaceState {
    /// Files by unique id.
    pub(crate) files: HashMap<u64, FileRecord>,
    /// Copies by number.
    pub(crate) copies: HashMap<u64, CopyRecord>,
    /// Devices by number.
    pub(crate) devices: BTreeMap<u8, DeviceRecord>,
    /// Names of the files that lie directly in each directory, with the ids of the files. A root is
    /// included only if it was used.
    dirs: BTreeMap<PathBuf, BTreeMap<OsString, u64>>,
    /// The next number that was never used.
    pub(crate) next: u64,
}

/// Normalises a path: removes `.` components and trailing slashes. `..` stays, and later look-ups
/// refuse it, because the tiers create no directory of that name.
pub(crate) fn plain(path: &Path) -> PathBuf {
    path.components().filter(|part| *part != Component::CurDir).collect()
}

/// The directory of a path, and the name in it. `None` for a root.
fn split(path: &Path) -> Option<(&Path, &OsStr)> {
    Some((path.parent()?, path.file_name()?))
}

impl NamespaceState {
    /// Carries out a change. Returns the physical files that it made superfluous, or the reason why
    /// it is refused.
    pub(crate) fn apply(&mut self, record: &Record) -> Result<Vec<Gone>, String> {
        let mut gone = Vec::new();
        match record {
            Record::Device(device) => {
                self.devices.insert(device.no, device.clone());
            }
            Record::File(file) => self.add_file(file, &mut gone)?,
            Record::Rename { from, to } => self.rename(from, to, &mut gone)?,
            Record::Link { from, to } => self.link(from, to)?,
            Record::Remove { path } => {
                let id = self.remove_name(path).ok_or_else(|| missing(path))?;
                self.lose_name(id, path, &mut gone);
            }
            Record::Move { file, to } => {
                let found =
                    self.files.get_mut(file).ok_or_else(|| format!("there is no file {file}"))?;
                gone.push(Gone::Moved(*file, found.place));
                found.place = *to;
                self.use_number(to.number);
            }
            Record::Level { file, level } => {
                let found =
                    self.files.get_mut(file).ok_or_else(|| format!("there is no file {file}"))?;
                found.level = Some(*level);
            }
            Record::CopyAdded(copy) => {
                if !self.files.contains_key(&copy.file) {
                    return Err(format!("there is no file {}", copy.file));
                }
                self.use_number(copy.number);
                self.copies.insert(copy.number, copy.clone());
            }
            Record::CopyDropped { number } => {
                let copy = self.copies.remove(number).ok_or_else(|| format!("no copy {number}"))?;
                gone.push(Gone::Copy(copy.file, *number));
            }
            Record::MakeDir { path } => self.make_dirs(path)?,
            Record::RemoveDir { path } => self.remove_tree(path, &mut gone)?,
            Record::Mark { next, .. } => self.next = self.next.max(*next),
        }
        Ok(gone)
    }

    fn use_number(&mut self, number: u64) {
        self.next = self.next.max(number.saturating_add(1));
    }

    fn check_target(&self, path: &Path) -> Result<(), String> {
        if self.is_dir(path) {
            return Err(format!("{} is a directory", path.display()));
        }
        match split(path) {
            Some((dir, _)) if self.is_dir(dir) => Ok(()),
            _ => Err(format!("there is no directory for {}", path.display())),
        }
    }

    fn add_file(&mut self, file: &FileRecord, gone: &mut Vec<Gone>) -> Result<(), String> {
        if self.files.contains_key(&file.id) {
            return Err(format!("there is a file {} already", file.id));
        }
        if file.names.is_empty() {
            return Err(format!("file {} has no name", file.id));
        }
        file.names.iter().try_for_each(|name| self.check_target(name))?;
        self.use_number(file.id.max(file.place.number));
        for name in &file.names {
            self.take_name(name, file.id, gone);
        }
        self.files.insert(file.id, file.clone());
        Ok(())
    }

    /// Gives a name to a file, and takes it from the file that had it.
    fn take_name(&mut self, name: &Path, id: u64, gone: &mut Vec<Gone>) {
        if let Some(before) = self.insert_name(name, id) {
            self.lose_name(before, name, gone);
        }
    }

    /// Sets the owner of a name, and returns the previous one. The caller has called
    /// [`NamespaceState::check_target`].
    fn insert_name(&mut self, path: &Path, id: u64) -> Option<u64> {
        let (dir, name) = split(path)?;
        if let Some(names) = self.dirs.get_mut(dir) {
            return names.insert(name.to_owned(), id);
        }
        self.dirs.entry(dir.to_owned()).or_default().insert(name.to_owned(), id)
    }

    fn remove_name(&mut self, path: &Path) -> Option<u64> {
        let (dir, name) = split(path)?;
        self.dirs.get_mut(dir)?.remove(name)
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

    fn rename(&mut self, from: &Path, to: &Path, gone: &mut Vec<Gone>) -> Result<(), String> {
        if self.is_dir(from) {
            return self.rename_dir(from, to);
        }
        let id = self.id(from).ok_or_else(|| missing(from))?;
        self.check_target(to)?;
        // Both are names of one file. POSIX says that nothing happens.
        if self.id(to) == Some(id) {
            return Ok(());
        }
        self.remove_name(from);
        if let Some(file) = self.files.get_mut(&id) {
            file.names.retain(|name| name != from);
            file.names.push(to.to_owned());
        }
        self.take_name(to, id, gone);
        Ok(())
    }

    /// Renames a directory with all files in it. It may replace an empty directory. Cost: linear in
    /// the names below it.
    fn rename_dir(&mut self, from: &Path, to: &Path) -> Result<(), String> {
        if from == to {
            return Ok(());
        }
        self.check_dir_target(from, to).map_err(|(_, why)| why)?;
        self.dirs.remove(to);
        let tree: Vec<PathBuf> = self.below(from).map(|(dir, _)| dir.clone()).collect();
        for dir in tree {
            let names = self.dirs.remove(&dir).unwrap_or_default();
            // Joining an empty path would leave a trailing slash.
            let new: PathBuf =
                to.components().chain(dir.components().skip(from.components().count())).collect();
            for (name, id) in &names {
                let old = dir.join(name);
                let file = self.files.get_mut(id);
                let held = file.and_then(|file| file.names.iter_mut().find(|held| **held == old));
                if let Some(held) = held {
                    *held = new.join(name);
                }
            }
            self.dirs.insert(new, names);
        }
        Ok(())
    }

    /// Refuses to rename the directory `from` to `to` if POSIX does. The error says why.
    pub(crate) fn check_dir_target(
        &self,
        from: &Path,
        to: &Path,
    ) -> Result<(), (ErrorKind, String)> {
        let refuse = |kind, path: &Path, what| Err((kind, format!("{} {what}", path.display())));
        if from.parent().is_none() || to.parent().is_none() {
            return refuse(ErrorKind::InvalidInput, from, "or its new name is the root");
        }
        if self.id(from).is_some() {
            return refuse(ErrorKind::NotADirectory, from, "is a file");
        }
        if !self.is_dir(from) {
            return Err((ErrorKind::NotFound, missing(from)));
        }
        if to.file_name().is_none() {
            return refuse(ErrorKind::InvalidInput, to, "is no name");
        }
        if to != from && to.starts_with(from) {
            return refuse(ErrorKind::InvalidInput, to, "lies in the directory itself");
        }
        if self.id(to).is_some() {
            return refuse(ErrorKind::NotADirectory, to, "is a file");
        }
        match to.parent() {
            Some(dir) if self.is_dir(dir) => {}
            Some(dir) if self.id(dir).is_some() => {
                return refuse(ErrorKind::NotADirectory, dir, "is a file");
            }
            _ => return refuse(ErrorKind::NotFound, to, "would lie in no directory"),
        }
        let is_empty = self.below(to).all(|(dir, names)| dir == to && names.is_empty());
        if to != from && !is_empty {
            return refuse(ErrorKind::DirectoryNotEmpty, to, "is a directory that is not empty");
        }
        Ok(())
    }

    fn link(&mut self, from: &Path, to: &Path) -> Result<(), String> {
        let id = self.id(from).ok_or_else(|| missing(from))?;
        self.check_target(to)?;
        if self.id(to).is_some() {
            return Err(format!("{} exists already", to.display()));
        }
        self.insert_name(to, id);
        if let Some(file) = self.files.get_mut(&id) {
            file.names.push(to.to_owned());
        }
        Ok(())
    }

    fn make_dirs(&mut self, path: &Path) -> Result<(), String> {
        if let Some(file) = path.ancestors().find(|part| self.id(part).is_some()) {
            return Err(format!("{} is a file", file.display()));
        }
        for new in path.ancestors().filter(|part| part.parent().is_some()) {
            self.dirs.entry(new.to_owned()).or_default();
        }
        Ok(())
    }

    fn remove_tree(&mut self, path: &Path, gone: &mut Vec<Gone>) -> Result<(), String> {
        if path.parent().is_none() || !self.dirs.contains_key(path) {
            return Err(missing(path));
        }
        let tree: Vec<PathBuf> = self.below(path).map(|(dir, _)| dir.clone()).collect();
        for dir in tree {
            for (name, id) in self.dirs.remove(&dir).unwrap_or_default() {
                self.lose_name(id, &dir.join(name), gone);
            }
        }
        Ok(())
    }

    /// The directory and all directories below it.
    fn below(&self, dir: &Path) -> impl Iterator<Item = (&PathBuf, &BTreeMap<OsString, u64>)> {
        self.dirs.range(dir.to_owned()..).take_while(move |(path, _)| path.starts_with(dir))
    }

    /// Ids of all files below a directory.
    pub(crate) fn ids_below(&self, dir: &Path) -> Vec<u64> {
        self.below(dir).flat_map(|(_, names)| names.values().copied()).collect()
    }

    /// Id of the file of this name.
    pub(crate) fn id(&self, path: &Path) -> Option<u64> {
        let (dir, name) = split(path)?;
        self.dirs.get(dir)?.get(name).copied()
    }

    /// Whether the path is a directory. Roots (`/` and the empty path) are directories.
    pub(crate) fn is_dir(&self, path: &Path) -> bool {
        path.parent().is_none() || self.dirs.contains_key(path)
    }

    /// Entries of a directory, sorted by name: the id of a file, or `None` for a directory. `None`
    /// if there is no such directory.
    pub(crate) fn list(&self, dir: &Path) -> Option<Vec<(OsString, Option<u64>)>> {
        if !self.is_dir(dir) {
            return None;
        }
        let files = self.dirs.get(dir).into_iter().flatten();
        let files = files.map(|(name, &id)| (name.clone(), Some(id)));
        let inside = self.below(dir).filter_map(|(path, _)| split(path));
        let dirs = inside.filter(|(parent, _)| *parent == dir);
        let mut entries: Vec<_> =
            files.chain(dirs.map(|(_, name)| (name.to_owned(), None))).collect();
        entries.sort();
        Some(entries)
    }

    /// Records that build this state from the empty one.
    pub(crate) fn snapshot(&self) -> Vec<Record> {
        let devices = self.devices.values().cloned().map(Record::Device);
        let dirs = self.dirs.keys().filter(|path| path.parent().is_some());
        let dirs = dirs.map(|path| Record::MakeDir { path: path.clone() });
        let mut files: Vec<_> = self.files.values().collect();
        files.sort_by_key(|file| file.id);
        let mut copies: Vec<_> = self.copies.values().collect();
        copies.sort_by_key(|copy| copy.number);
        let files = files.into_iter().cloned().map(Record::File);
        let copies = copies.into_iter().cloned().map(Record::CopyAdded);
        devices.chain(dirs).chain(files).chain(copies).collect()
    }
}

fn missing(path: &Path) -> String {
    format!("there is no {}", path.display())
}
