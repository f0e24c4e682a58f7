//! Names of files by directory, as a value: the paths of a file system that keeps a namespace of
//! its own, such as tiers and volumes of a storage pool.
//!
//! Invariants:
//! 1. Every name lies in a directory that exists.
//! 2. No path is both a name and a directory.
//!
//! The owner of the tree maps the numbers of files to what they are, and normalises paths with
//! [`plain`] first.
//!
//! A pure value. Failure: a change that POSIX refuses is refused with its error, and changes
//! nothing.
//! Cost: a change of a name costs one look-up in each of two maps. Names are kept by directory,
//! because paths are compared component by component, and thousands of tables come and go.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};

use archipelago_base::codec::{Reader, put_bytes};
use archipelago_base::{Error, ErrorKind};

/// Normalises a path: removes `.` components and trailing slashes. `..` stays, and later look-ups
/// do not find it, because no directory has that name.
#[must_use]
pub fn plain(path: &Path) -> PathBuf {
    path.components().filter(|part| *part != Component::CurDir).collect()
}

/// The directory of a path, and the name in it. `None` for a root.
fn split(path: &Path) -> Option<(&Path, &OsStr)> {
    Some((path.parent()?, path.file_name()?))
}

/// Appends a path to the bytes of a format: its length as a varint, and its bytes.
pub fn put_path(out: &mut Vec<u8>, path: &Path) {
    put_bytes(out, path.as_os_str().as_bytes());
}

/// Reads a path that [`put_path`] wrote. `None` if it is cut off.
pub fn read_path(reader: &mut Reader<'_>) -> Option<PathBuf> {
    Some(PathBuf::from(OsStr::from_bytes(reader.bytes()?)))
}

/// The reason why a change of names is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Kind of the error that an operating system would return.
    pub kind: io::ErrorKind,
    /// A clause that names the path and says what is wrong with it.
    pub why: String,
}

impl Refusal {
    /// A refusal because of `path`; `what` follows the path in the clause.
    #[must_use]
    pub fn of(kind: io::ErrorKind, path: &Path, what: &str) -> Self {
        Self { kind, why: format!("{} {what}", path.display()) }
    }

    fn missing(path: &Path) -> Self {
        Self { kind: io::ErrorKind::NotFound, why: format!("there is no {}", path.display()) }
    }
}

/// The kind is `InvalidArgument` for a change that has no meaning, `NotFound` for a path that does
/// not exist, and `Io` otherwise. The cause is an error of the operating system's kind.
impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        let kind = match refusal.kind {
            io::ErrorKind::InvalidInput => ErrorKind::InvalidArgument,
            io::ErrorKind::NotFound => ErrorKind::NotFound,
            _ => ErrorKind::Io,
        };
        Self::with_source(kind, refusal.why, io::Error::from(refusal.kind))
    }
}

impl From<Refusal> for String {
    fn from(refusal: Refusal) -> Self {
        refusal.why
    }
}

/// A name that changed with its directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MovedName<Id> {
    /// Number of the file.
    pub id: Id,
    /// Name before the change.
    pub from: PathBuf,
    /// Name after the change.
    pub to: PathBuf,
}

/// Directories that were removed with the names in them.
#[derive(Clone, Debug)]
pub struct Subtree<Id> {
    dirs: Vec<(PathBuf, BTreeMap<OsString, Id>)>,
}

impl<Id: Copy> Subtree<Id> {
    /// All names with the numbers of their files.
    pub fn names(&self) -> impl Iterator<Item = (PathBuf, Id)> {
        self.dirs
            .iter()
            .flat_map(|(dir, names)| names.iter().map(move |(name, &id)| (dir.join(name), id)))
    }
}

/// Names and directories, each name with the number of its file.
#[derive(Clone, Debug)]
pub struct NameTree<Id> {
    /// Names of the files that lie directly in each directory. A root is included only if it was
    /// used.
    dirs: BTreeMap<PathBuf, BTreeMap<OsString, Id>>,
}

impl<Id> Default for NameTree<Id> {
    fn default() -> Self {
        Self { dirs: BTreeMap::new() }
    }
}

impl<Id: Copy> NameTree<Id> {
    /// Number of the file of this name.
    #[must_use]
    pub fn id(&self, path: &Path) -> Option<Id> {
        let (dir, name) = split(path)?;
        self.dirs.get(dir)?.get(name).copied()
    }

    /// Number of the file of this name, which must exist.
    pub fn find(&self, path: &Path) -> Result<Id, Refusal> {
        match self.id(path) {
            Some(id) => Ok(id),
            None if self.is_dir(path) => {
                Err(Refusal::of(io::ErrorKind::IsADirectory, path, "is a directory"))
            }
            None => Err(Refusal::missing(path)),
        }
    }

    /// Whether the path is a directory. Roots (`/` and the empty path) are directories.
    #[must_use]
    pub fn is_dir(&self, path: &Path) -> bool {
        path.parent().is_none() || self.dirs.contains_key(path)
    }

    /// Entries of a directory, sorted by name: the number of a file, or `None` for a directory.
    /// `None` if there is no such directory.
    #[must_use]
    pub fn list(&self, dir: &Path) -> Option<Vec<(OsString, Option<Id>)>> {
        if !self.is_dir(dir) {
            return None;
        }
        let files = self.dirs.get(dir).into_iter().flatten();
        let files = files.map(|(name, &id)| (name.clone(), Some(id)));
        let inside = self.below(dir).filter_map(|(path, _)| split(path));
        let dirs = inside.filter(|(parent, _)| *parent == dir);
        let mut entries: Vec<_> =
            files.chain(dirs.map(|(_, name)| (name.to_owned(), None))).collect();
        entries.sort_by(|a, b| a.0.cmp(&b.0));
        Some(entries)
    }

    /// All directories except roots, each after those above it.
    pub fn dirs(&self) -> impl Iterator<Item = &Path> {
        self.dirs.keys().map(PathBuf::as_path).filter(|path| path.parent().is_some())
    }

    /// Numbers of all files below a directory.
    #[must_use]
    pub fn ids_below(&self, dir: &Path) -> Vec<Id> {
        self.below(dir).flat_map(|(_, names)| names.values().copied()).collect()
    }

    /// The directory and all directories below it.
    fn below(&self, dir: &Path) -> impl Iterator<Item = (&PathBuf, &BTreeMap<OsString, Id>)> {
        self.dirs.range(dir.to_owned()..).take_while(move |(path, _)| path.starts_with(dir))
    }

    /// Refuses a path that cannot be the name of a file: a directory, or a path whose directory
    /// does not exist.
    pub fn check_target(&self, path: &Path) -> Result<(), Refusal> {
        if self.is_dir(path) {
            return Err(Refusal::of(io::ErrorKind::IsADirectory, path, "is a directory"));
        }
        match split(path) {
            Some((dir, _)) => self.check_dir(dir),
            None => Err(Refusal::of(io::ErrorKind::InvalidInput, path, "is no name")),
        }
    }

    fn check_dir(&self, dir: &Path) -> Result<(), Refusal> {
        if self.is_dir(dir) {
            Ok(())
        } else if self.id(dir).is_some() {
            Err(Refusal::of(io::ErrorKind::NotADirectory, dir, "is a file"))
        } else {
            Err(Refusal::of(io::ErrorKind::NotFound, dir, "is no directory"))
        }
    }

    /// Refuses to rename the directory `from` to `to` if POSIX does.
    pub fn check_dir_target(&self, from: &Path, to: &Path) -> Result<(), Refusal> {
        let refuse = |kind, path: &Path, what| Err(Refusal::of(kind, path, what));
        if from.parent().is_none() || to.parent().is_none() {
            return refuse(io::ErrorKind::InvalidInput, from, "or its new name is the root");
        }
        if self.id(from).is_some() {
            return refuse(io::ErrorKind::NotADirectory, from, "is a file");
        }
        if !self.is_dir(from) {
            return Err(Refusal::missing(from));
        }
        if to.file_name().is_none() {
            return refuse(io::ErrorKind::InvalidInput, to, "is no name");
        }
        if to != from && to.starts_with(from) {
            return refuse(io::ErrorKind::InvalidInput, to, "lies in the directory itself");
        }
        if self.id(to).is_some() {
            return refuse(io::ErrorKind::NotADirectory, to, "is a file");
        }
        if let Some(dir) = to.parent() {
            self.check_dir(dir)?;
        }
        let is_empty = self.below(to).all(|(dir, names)| dir == to && names.is_empty());
        if to != from && !is_empty {
            let what = "is a directory that is not empty";
            return refuse(io::ErrorKind::DirectoryNotEmpty, to, what);
        }
        Ok(())
    }

    /// Gives a name to a file, and returns the number of the file that had it. The caller has
    /// called [`NameTree::check_target`].
    pub fn insert(&mut self, path: &Path, id: Id) -> Option<Id> {
        let (dir, name) = split(path)?;
        if let Some(names) = self.dirs.get_mut(dir) {
            return names.insert(name.to_owned(), id);
        }
        self.dirs.entry(dir.to_owned()).or_default().insert(name.to_owned(), id)
    }

    /// Removes a name, and returns the number of the file that had it.
    pub fn remove(&mut self, path: &Path) -> Option<Id> {
        let (dir, name) = split(path)?;
        self.dirs.get_mut(dir)?.remove(name)
    }

    /// Creates a directory and those above it. Returns the uppermost one that is new; `None` if the
    /// directory existed.
    pub fn make_dirs(&mut self, path: &Path) -> Result<Option<PathBuf>, Refusal> {
        if let Some(file) = path.ancestors().find(|part| self.id(part).is_some()) {
            let kind = if file == path {
                io::ErrorKind::AlreadyExists
            } else {
                io::ErrorKind::NotADirectory
            };
            return Err(Refusal::of(kind, file, "is a file"));
        }
        let mut uppermost = None;
        for dir in path.ancestors().filter(|part| part.parent().is_some()) {
            if !self.dirs.contains_key(dir) {
                self.dirs.insert(dir.to_owned(), BTreeMap::new());
                uppermost = Some(dir.to_owned());
            }
        }
        Ok(uppermost)
    }

    /// Removes a directory with everything below it, and returns that.
    pub fn remove_tree(&mut self, path: &Path) -> Result<Subtree<Id>, Refusal> {
        if self.id(path).is_some() {
            return Err(Refusal::of(io::ErrorKind::NotADirectory, path, "is a file"));
        }
        if path.parent().is_none() {
            return Err(Refusal::of(io::ErrorKind::InvalidInput, path, "is the root"));
        }
        if !self.dirs.contains_key(path) {
            return Err(Refusal::missing(path));
        }
        let tree: Vec<PathBuf> = self.below(path).map(|(dir, _)| dir.clone()).collect();
        let dirs = tree.into_iter().filter_map(|dir| self.dirs.remove_entry(&dir)).collect();
        Ok(Subtree { dirs })
    }

    /// Puts back what [`NameTree::remove_tree`] removed, if nothing took its place.
    pub fn restore(&mut self, tree: Subtree<Id>) {
        self.dirs.extend(tree.dirs);
    }

    /// Renames a directory with everything below it. It may replace an empty directory. Returns the
    /// names that changed. Cost: linear in the names below it.
    pub fn rename_dir(&mut self, from: &Path, to: &Path) -> Result<Vec<MovedName<Id>>, Refusal> {
        self.check_dir_target(from, to)?;
        if from == to {
            return Ok(Vec::new());
        }
        self.dirs.remove(to);
        let tree: Vec<PathBuf> = self.below(from).map(|(dir, _)| dir.clone()).collect();
        let mut moved = Vec::new();
        for dir in tree {
            let names = self.dirs.remove(&dir).unwrap_or_default();
            // Joining an empty path would leave a trailing slash.
            let new: PathBuf =
                to.components().chain(dir.components().skip(from.components().count())).collect();
            for (name, &id) in &names {
                moved.push(MovedName { id, from: dir.join(name), to: new.join(name) });
            }
            self.dirs.insert(new, names);
        }
        Ok(moved)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree() -> NameTree<u64> {
        let mut tree = NameTree::default();
        tree.make_dirs(Path::new("/db/in")).unwrap();
        tree.insert(Path::new("/db/a"), 1);
        tree.insert(Path::new("/db/in/b"), 2);
        tree
    }

    fn listed(tree: &NameTree<u64>) -> String {
        let dirs: Vec<_> = tree.dirs().map(|dir| (dir, tree.list(dir))).collect();
        format!("{dirs:?}")
    }

    #[test]
    fn plain_path_has_no_dots_or_slashes_at_its_end() {
        for (path, normalised) in
            [("/db/./a", "/db/a"), ("./a/", "a"), ("/db//a", "/db/a"), ("a/../b", "a/../b")]
        {
            assert_eq!(plain(Path::new(path)).as_os_str(), normalised, "{path}");
        }
        assert_eq!(split(Path::new("/")), None);
        assert_eq!(split(Path::new("a")), Some((Path::new(""), OsStr::new("a"))));
    }

    #[test]
    fn refusals_have_the_kind_that_posix_says() {
        use io::ErrorKind::{
            AlreadyExists, DirectoryNotEmpty, InvalidInput, IsADirectory, NotADirectory, NotFound,
        };
        let mut tree = tree();
        let before = listed(&tree);
        let path = Path::new;
        assert_eq!(tree.check_target(path("/db/in")).unwrap_err().kind, IsADirectory);
        assert_eq!(tree.check_target(path("/none/a")).unwrap_err().kind, NotFound);
        assert_eq!(tree.check_target(path("/db/a/b")).unwrap_err().kind, NotADirectory);
        assert_eq!(tree.check_target(path("/db/..")).unwrap_err().kind, InvalidInput);
        assert_eq!(tree.find(path("/db/none")).unwrap_err().kind, NotFound);
        assert_eq!(tree.find(path("/db")).unwrap_err().kind, IsADirectory);
        assert_eq!(tree.make_dirs(path("/db/a")).unwrap_err().kind, AlreadyExists);
        assert_eq!(tree.make_dirs(path("/db/a/b")).unwrap_err().kind, NotADirectory);
        assert_eq!(tree.remove_tree(path("/")).unwrap_err().kind, InvalidInput);
        assert_eq!(tree.remove_tree(path("/db/a")).unwrap_err().kind, NotADirectory);
        assert_eq!(tree.remove_tree(path("/none")).unwrap_err().kind, NotFound);
        let mut renamed =
            |from: &str, to: &str| tree.rename_dir(path(from), path(to)).unwrap_err().kind;
        assert_eq!(renamed("/", "/x"), InvalidInput);
        assert_eq!(renamed("/db", "/db/in/x"), InvalidInput);
        assert_eq!(renamed("/db/in", "/db"), DirectoryNotEmpty);
        assert_eq!(renamed("/db/in", "/db/a"), NotADirectory);
        assert_eq!(renamed("/db/in", "/none/x"), NotFound);
        assert_eq!(renamed("/none", "/x"), NotFound);
        assert_eq!(listed(&tree), before, "a refusal changes nothing");
    }

    #[test]
    fn refusal_becomes_an_error_of_the_system() {
        let missing = Error::from(tree().find(Path::new("/x")).unwrap_err());
        assert_eq!(missing.kind(), ErrorKind::NotFound);
        assert_eq!(missing.io_kind(), Some(io::ErrorKind::NotFound));
        assert!(missing.to_string().contains("there is no /x"), "{missing}");
        let is_dir = Error::from(tree().find(Path::new("/db")).unwrap_err());
        assert_eq!(
            (is_dir.kind(), is_dir.io_kind()),
            (ErrorKind::Io, Some(io::ErrorKind::IsADirectory))
        );
    }

    #[test]
    fn removed_tree_is_restored_whole() {
        let mut tree = tree();
        let before = listed(&tree);
        let removed = tree.remove_tree(Path::new("/db")).unwrap();
        let names: Vec<_> = removed.names().collect();
        assert_eq!(names, [("/db/a".into(), 1), ("/db/in/b".into(), 2)]);
        assert!(!tree.is_dir(Path::new("/db/in")));
        tree.restore(removed);
        assert_eq!(listed(&tree), before);
    }

    #[test]
    fn renamed_directory_takes_names_and_directories_along() {
        let mut tree = tree();
        assert_eq!(tree.make_dirs(Path::new("/x/y")), Ok(Some("/x".into())));
        assert_eq!(tree.make_dirs(Path::new("/x/y")), Ok(None));
        let moved = tree.rename_dir(Path::new("/db"), Path::new("/x/y")).unwrap();
        assert_eq!(moved.len(), 2);
        assert_eq!(moved[1], MovedName { id: 2, from: "/db/in/b".into(), to: "/x/y/in/b".into() });
        assert_eq!(tree.id(Path::new("/x/y/in/b")), Some(2));
        assert_eq!(tree.ids_below(Path::new("/x")), [1, 2]);
        assert!(!tree.is_dir(Path::new("/db")));
    }
}
