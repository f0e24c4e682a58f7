//! The names on a disk in memory: the current ones, the durable ones, and the changes in between in
//! their order.
//!
//! Invariants:
//! 1. Applying `journal` to `durable` gives `names`.
//! 2. Directories are durable once they are created, as `FileSystem::create_dir_all` promises.
//! 3. A change carries its inode. It can be applied whatever happened to earlier changes in other
//!    directories.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use archipelago_base::random::Rng;

use super::inode::Inode;

#[derive(Clone, Debug)]
pub(super) enum Entry {
    Dir,
    File(Arc<Inode>),
}

pub(super) type Names = BTreeMap<PathBuf, Entry>;

#[derive(Clone, Debug)]
enum Change {
    /// The name `path` of the inode was created.
    Set(PathBuf, Arc<Inode>),
    /// The name `path` was removed.
    Remove(PathBuf),
    /// The inode lost its first name and got the second.
    Rename(PathBuf, PathBuf, Arc<Inode>),
    /// The directory and everything in it was removed.
    RemoveTree(PathBuf),
}

#[derive(Debug, Default)]
pub(super) struct Disk {
    pub(super) names: Names,
    durable: Names,
    journal: Vec<Change>,
    pub(super) locks: HashSet<PathBuf>,
    next_inode: u64,
}

/// The path without `.` components and trailing slashes.
pub(super) fn plain(path: &Path) -> PathBuf {
    path.components().filter(|part| *part != Component::CurDir).collect()
}

/// The directory of `path`; `None` for a root.
pub(super) fn parent(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new(""))
}

impl Change {
    fn touches(&self, dir: &Path) -> bool {
        self.dirs().any(|touched| touched == dir)
    }

    fn dirs(&self) -> impl Iterator<Item = &Path> {
        let (first, second) = match self {
            Self::Set(path, _) | Self::Remove(path) | Self::RemoveTree(path) => (path, None),
            Self::Rename(from, to, _) => (from, Some(to)),
        };
        std::iter::once(first).chain(second).map(|path| parent(path))
    }

    fn apply(&self, names: &mut Names) {
        match self {
            Self::Set(path, inode) => {
                names.insert(path.clone(), Entry::File(Arc::clone(inode)));
            }
            Self::Remove(path) => {
                names.remove(path);
            }
            Self::Rename(from, to, inode) => {
                let is_it = |entry: &Entry| matches!(entry, Entry::File(it) if it.id == inode.id);
                if names.get(from).is_some_and(is_it) {
                    names.remove(from);
                }
                names.insert(to.clone(), Entry::File(Arc::clone(inode)));
            }
            Self::RemoveTree(dir) => names.retain(|path, _| !path.starts_with(dir)),
        }
    }
}

impl Disk {
    pub(super) fn is_dir(&self, path: &Path) -> bool {
        path.parent().is_none() || matches!(self.names.get(path), Some(Entry::Dir))
    }

    pub(super) fn file(&self, path: &Path) -> Option<&Arc<Inode>> {
        match self.names.get(path) {
            Some(Entry::File(inode)) => Some(inode),
            _ => None,
        }
    }

    /// The file at `path`, which is created if it does not exist. `None` if its directory is
    /// missing or a directory has the name.
    pub(super) fn create(&mut self, path: &Path) -> Option<Arc<Inode>> {
        match self.names.get(path) {
            Some(Entry::File(inode)) => return Some(Arc::clone(inode)),
            Some(Entry::Dir) => return None,
            None if !self.is_dir(parent(path)) => return None,
            None => (),
        }
        self.next_inode += 1;
        let inode = Arc::new(Inode::new(self.next_inode));
        self.change(Change::Set(path.to_owned(), Arc::clone(&inode)));
        Some(inode)
    }

    pub(super) fn link(&mut self, inode: Arc<Inode>, to: &Path) {
        self.change(Change::Set(to.to_owned(), inode));
    }

    pub(super) fn rename(&mut self, inode: Arc<Inode>, from: &Path, to: &Path) {
        self.change(Change::Rename(from.to_owned(), to.to_owned(), inode));
    }

    pub(super) fn remove(&mut self, path: &Path) {
        self.change(Change::Remove(path.to_owned()));
    }

    pub(super) fn remove_tree(&mut self, dir: &Path) {
        self.change(Change::RemoveTree(dir.to_owned()));
    }

    fn change(&mut self, change: Change) {
        change.apply(&mut self.names);
        self.journal.push(change);
    }

    /// Creates `dir` and its parents durably. Returns `false` if a file has one of the names.
    pub(super) fn create_dirs(&mut self, dir: &Path) -> bool {
        if self.is_dir(dir) {
            return true;
        }
        if self.names.contains_key(dir) || !self.create_dirs(parent(dir)) {
            return false;
        }
        self.sync_dir(parent(dir));
        self.names.insert(dir.to_owned(), Entry::Dir);
        self.durable.insert(dir.to_owned(), Entry::Dir);
        true
    }

    /// Makes the changes in `dir` durable.
    pub(super) fn sync_dir(&mut self, dir: &Path) {
        let durable = &mut self.durable;
        self.journal.retain(|change| {
            let touches = change.touches(dir);
            if touches {
                change.apply(durable);
            }
            !touches
        });
    }

    /// The content of the disk if the process ends now: everything, in inodes of its own.
    pub(super) fn after_kill(&self) -> Self {
        let mut copies = Copies::new(|inode| inode.copy());
        let journal = self.journal.iter().map(|change| match change {
            Change::Set(path, inode) => Change::Set(path.clone(), copies.of(inode)),
            Change::Rename(from, to, inode) => {
                Change::Rename(from.clone(), to.clone(), copies.of(inode))
            }
            other => other.clone(),
        });
        let journal = journal.collect();
        let (names, durable) = (copies.all(&self.names), copies.all(&self.durable));
        Self { names, durable, journal, locks: HashSet::new(), next_inode: self.next_inode }
    }

    /// The content of the disk after power loss: everything synced, and a random share of the rest.
    pub(super) fn after_power_loss(&self, rng: &mut Rng) -> Self {
        let mut names = self.durable.clone();
        let mut changes_by_dir = BTreeMap::<&Path, usize>::new();
        for dir in self.journal.iter().flat_map(Change::dirs) {
            *changes_by_dir.entry(dir).or_default() += 1;
        }
        let mut kept_by_dir: BTreeMap<&Path, usize> =
            changes_by_dir.into_iter().map(|(dir, count)| (dir, rng.usize(..=count))).collect();
        for change in &self.journal {
            let mut kept = false;
            for dir in change.dirs() {
                if let Some(left @ 1..) = kept_by_dir.get_mut(dir) {
                    *left -= 1;
                    kept = true;
                }
            }
            if kept {
                change.apply(&mut names);
            }
        }
        let names = Copies::new(|inode| inode.after_power_loss(rng)).all(&names);
        let durable = names.clone();
        Self { names, durable, next_inode: self.next_inode, ..Self::default() }
    }
}

/// Copies each inode once, so that two names of a file stay names of one file.
struct Copies<F> {
    copy: F,
    made: HashMap<u64, Arc<Inode>>,
}

impl<F: FnMut(&Inode) -> Inode> Copies<F> {
    fn new(copy: F) -> Self {
        Self { copy, made: HashMap::new() }
    }

    fn of(&mut self, inode: &Arc<Inode>) -> Arc<Inode> {
        let made = self.made.entry(inode.id).or_insert_with(|| Arc::new((self.copy)(inode)));
        Arc::clone(made)
    }

    fn all(&mut self, names: &Names) -> Names {
        let copied = names.iter().map(|(path, entry)| match entry {
            Entry::Dir => (path.clone(), Entry::Dir),
            Entry::File(inode) => (path.clone(), Entry::File(self.of(inode))),
        });
        copied.collect()
    }
}
