//! One change of a namespace: a list of records that are applied together, or not at all.
//!
//! [`NamespaceState::apply_all`] owns a [`Change`] while it runs. Each step is noted with the value
//! that it replaced. A refusal undoes the steps in reverse order.
//!
//! Invariant: after [`Change::take_back`], the state is the one before the change.
//!
//! Failure: a refused record leaves the change half-done, and the caller takes it back.
//! Cost: one note for each step. A step on a file copies the file's record.

use std::collections::BTreeSet;
use std::io;
use std::path::{Component, Path, PathBuf};

use archipelago_env::names::{Refusal, Subtree, plain};

use super::{Gone, NEXT_MAX, NamespaceState};
use crate::volume::record::{Content, FileKey, FileRecord, Record};

/// One step of a change, as it is undone.
#[derive(Debug)]
enum Undo {
    /// A file was added, changed or removed.
    File { key: FileKey, before: Option<FileRecord> },
    /// A name was given to a file, or removed.
    Name { path: PathBuf, before: Option<FileKey> },
    /// A directory was made, with all below it.
    MadeDirs(PathBuf),
    /// A directory was removed, with all below it.
    RemovedDirs(Subtree<FileKey>),
    /// A directory was renamed, and may have replaced an empty one.
    RenamedDir { from: PathBuf, to: PathBuf, replaced: bool },
    /// The next file number rose.
    Next(u64),
}

/// A list of records while it is applied.
pub(super) struct Change<'a> {
    state: &'a mut NamespaceState,
    gone: Vec<Gone>,
    /// The steps so far, in order.
    undo: Vec<Undo>,
}

/// Whether both are the same blob or the same log, whose description may differ.
fn is_same_object(one: &Content, other: &Content) -> bool {
    match (one, other) {
        (Content::Blob(one), Content::Blob(other)) => one.id == other.id,
        (Content::Log { id: one, .. }, Content::Log { id: other, .. }) => one == other,
        _ => false,
    }
}

/// Refuses a path that a later look-up would not find under the same bytes.
fn check_plain(path: &Path) -> Result<(), Refusal> {
    let has_parents = path.components().any(|part| part == Component::ParentDir);
    if has_parents || plain(path).as_os_str() != path.as_os_str() {
        return Err(Refusal::of(io::ErrorKind::InvalidInput, path, "is not normalised"));
    }
    Ok(())
}

fn invalid(why: String) -> Refusal {
    Refusal { kind: io::ErrorKind::InvalidInput, why }
}

impl<'a> Change<'a> {
    /// Begins a change of `state`.
    pub(super) fn new(state: &'a mut NamespaceState) -> Self {
        Self { state, gone: Vec::new(), undo: Vec::new() }
    }

    /// Carries out one record. After a refusal, the caller takes the whole change back.
    pub(super) fn apply(&mut self, record: &Record) -> Result<(), Refusal> {
        match record {
            Record::File(file) => self.add_file(file),
            Record::Content { key, content, modified_ms } => {
                self.set_content(*key, content, *modified_ms)
            }
            Record::Rename { from, to } if self.state.is_dir(from) => self.rename_dir(from, to),
            Record::Rename { from, to } => self.rename_file(from, to),
            Record::Link { from, to } => self.link(from, to),
            Record::Remove { path } => {
                let key = self.state.names.find(path)?;
                self.set_name(path, None);
                self.lose_name(key, path);
                Ok(())
            }
            Record::MakeDir { path } => {
                check_plain(path)?;
                let made = self.state.names.make_dirs(path)?;
                self.undo.extend(made.map(Undo::MadeDirs));
                Ok(())
            }
            Record::RemoveDir { path } => self.remove_dir(path),
            Record::Next { next } => self.raise_next(*next),
        }
    }

    /// Ends the change. Returns what it made superfluous. The change is refused if a file has a
    /// content that the same change gave up, because that content will be released.
    pub(super) fn finish(self) -> Result<Vec<Gone>, Refusal> {
        let owner = self.gone.iter().find_map(|gone| {
            let (Gone::File(FileRecord { content, .. }) | Gone::Content { content, .. }) = gone;
            self.state.content_owner(content)
        });
        let Some(owner) = owner else { return Ok(self.gone) };
        self.take_back();
        Err(invalid(format!("the content of file {} was given up by the same change", owner.0)))
    }

    /// Undoes all steps.
    pub(super) fn take_back(self) {
        let state = self.state;
        for step in self.undo.into_iter().rev() {
            match step {
                Undo::File { key, before } => drop(state.set_file(key, before)),
                Undo::Name { path, before } => {
                    let _undone = match before {
                        Some(key) => state.names.insert(&path, key),
                        None => state.names.remove(&path),
                    };
                }
                Undo::MadeDirs(path) => {
                    let removed = state.names.remove_tree(&path);
                    assert!(removed.is_ok(), "{} was made before", path.display());
                }
                Undo::RemovedDirs(tree) => state.names.restore(tree),
                Undo::RenamedDir { from, to, replaced } => {
                    let renamed = state.names.rename_dir(&to, &from);
                    assert!(renamed.is_ok(), "{} was renamed before", to.display());
                    if replaced {
                        let made = state.names.make_dirs(&to);
                        assert!(made.is_ok(), "{} was a directory before", to.display());
                    }
                }
                Undo::Next(next) => state.next = next,
            }
        }
    }

    fn set_file(&mut self, key: FileKey, file: Option<FileRecord>) {
        let before = self.state.set_file(key, file);
        self.undo.push(Undo::File { key, before });
    }

    /// Gives a name to a file, or removes the name. The caller has checked the path.
    fn set_name(&mut self, path: &Path, key: Option<FileKey>) -> Option<FileKey> {
        let before = match key {
            Some(key) => self.state.names.insert(path, key),
            None => self.state.names.remove(path),
        };
        self.undo.push(Undo::Name { path: path.to_owned(), before });
        before
    }

    fn raise_next(&mut self, next: u64) -> Result<(), Refusal> {
        if next > NEXT_MAX {
            return Err(invalid(format!("file number {next} is too large")));
        }
        if next > self.state.next {
            self.undo.push(Undo::Next(self.state.next));
            self.state.next = next;
        }
        Ok(())
    }

    fn check_target(&self, path: &Path) -> Result<(), Refusal> {
        check_plain(path)?;
        self.state.names.check_target(path)
    }

    /// Refuses a content that another file has.
    fn check_content(&self, key: FileKey, content: &Content) -> Result<(), Refusal> {
        match self.state.content_owner(content) {
            Some(owner) if owner != key => {
                Err(invalid(format!("file {} has the content of file {} already", owner.0, key.0)))
            }
            _ => Ok(()),
        }
    }

    fn add_file(&mut self, file: &FileRecord) -> Result<(), Refusal> {
        let key = file.key;
        if self.state.files.contains_key(&key) {
            return Err(invalid(format!("there is a file {} already", key.0)));
        }
        let distinct: BTreeSet<&PathBuf> = file.names.iter().collect();
        if file.names.is_empty() || distinct.len() < file.names.len() {
            return Err(invalid(format!("file {} has no names, or one of them twice", key.0)));
        }
        self.check_content(key, &file.content)?;
        file.names.iter().try_for_each(|name| self.check_target(name))?;
        self.raise_next(key.0.saturating_add(1))?;
        for name in &file.names {
            self.take_name(name, key);
        }
        self.set_file(key, Some(file.clone()));
        Ok(())
    }

    fn set_content(
        &mut self,
        key: FileKey,
        content: &Content,
        modified_ms: u64,
    ) -> Result<(), Refusal> {
        let Some(file) = self.state.get(key) else {
            let why = format!("there is no file {}", key.0);
            return Err(Refusal { kind: io::ErrorKind::NotFound, why });
        };
        self.check_content(key, content)?;
        let (class, names) = (file.class, file.names.clone());
        let new = FileRecord { key, class, names, content: content.clone(), modified_ms };
        let has_object = !matches!(file.content, Content::Inline(_));
        if has_object && !is_same_object(&file.content, content) {
            self.gone.push(Gone::Content { key, content: file.content.clone() });
        }
        self.set_file(key, Some(new));
        Ok(())
    }

    /// Gives a name to a file, and takes it from the file that had it.
    fn take_name(&mut self, name: &Path, key: FileKey) {
        if let Some(before) = self.set_name(name, Some(key)) {
            self.lose_name(before, name);
        }
    }

    /// Takes a name from a file. A file without names is forgotten.
    fn lose_name(&mut self, key: FileKey, name: &Path) {
        let Some(mut file) = self.state.get(key).cloned() else { return };
        file.names.retain(|held| held != name);
        if file.names.is_empty() {
            self.set_file(key, None);
            self.gone.push(Gone::File(file));
        } else {
            self.set_file(key, Some(file));
        }
    }

    /// Replaces one name in the record of a file by another one. Without `from`, adds a name.
    fn record_name(&mut self, key: FileKey, from: Option<&Path>, to: PathBuf) {
        let Some(mut file) = self.state.get(key).cloned() else { return };
        file.names.retain(|held| Some(held.as_path()) != from);
        file.names.push(to);
        self.set_file(key, Some(file));
    }

    fn rename_file(&mut self, from: &Path, to: &Path) -> Result<(), Refusal> {
        let key = self.state.names.find(from)?;
        self.check_target(to)?;
        // Both are names of one file. POSIX says that nothing happens.
        if self.state.key(to) == Some(key) {
            return Ok(());
        }
        self.set_name(from, None);
        self.record_name(key, Some(from), to.to_owned());
        self.take_name(to, key);
        Ok(())
    }

    fn rename_dir(&mut self, from: &Path, to: &Path) -> Result<(), Refusal> {
        check_plain(to)?;
        let replaced = self.state.is_dir(to);
        let moved = self.state.names.rename_dir(from, to)?;
        if from == to {
            return Ok(());
        }
        self.undo.push(Undo::RenamedDir { from: from.to_owned(), to: to.to_owned(), replaced });
        for name in moved {
            self.record_name(name.id, Some(&name.from), name.to);
        }
        Ok(())
    }

    fn link(&mut self, from: &Path, to: &Path) -> Result<(), Refusal> {
        let key = self.state.names.find(from)?;
        self.check_target(to)?;
        if self.state.key(to).is_some() {
            return Err(Refusal::of(io::ErrorKind::AlreadyExists, to, "exists already"));
        }
        self.set_name(to, Some(key));
        self.record_name(key, None, to.to_owned());
        Ok(())
    }

    fn remove_dir(&mut self, path: &Path) -> Result<(), Refusal> {
        let tree = self.state.names.remove_tree(path)?;
        let names: Vec<_> = tree.names().collect();
        self.undo.push(Undo::RemovedDirs(tree));
        for (name, key) in names {
            self.lose_name(key, &name);
        }
        Ok(())
    }
}
