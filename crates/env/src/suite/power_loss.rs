//! Random operations on a file system, then kills and power losses. A model knows the bytes and
//! names that must survive, and those that may.
//!
//! File systems differ in few points, which [`Guarantees`] describes.
//!
//! Invariants that [`PowerLossModel::check`] checks, for a clone after a kill or a power loss:
//! 1. The names are those of one moment since the last sync of the directory. After a kill they are
//!    those of now, if [`Guarantees::names_survive_kill`].
//! 2. A file has all bytes that were synced, and after a kill all that were flushed. It is not
//!    longer than what was appended, and has nothing else if
//!    [`Guarantees::unsynced_bytes_are_right`].
//! 3. The same seed gives the same clone.
//!
//! Thread-safety: a model has one owner. Failure: a check panics.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use archipelago_base::random::Rng;

use crate::context::{FileClass, IoContext, IoPurpose};
use crate::fs::{CreateOptions, FileSystem, WritableFile};

/// The directory of all files.
const DIR: &str = "/db";
/// Number of names that the operations use.
const NAMES: u8 = 4;

/// A file system that a test can kill and cut the power of.
pub trait CrashTested: Sized {
    /// The file system.
    fn fs(&self) -> &dyn FileSystem;
    /// A clone of the file system with the state after `kill -9` of the process now.
    fn kill_clone(&self) -> Self;
    /// A clone of the file system with the state after power loss now. The same `seed` gives the
    /// same clone.
    fn crash_clone(&self, seed: u64) -> Self;
}

impl CrashTested for crate::mem::MemFs {
    fn fs(&self) -> &dyn FileSystem {
        self
    }

    fn kill_clone(&self) -> Self {
        Self::kill_clone(self)
    }

    fn crash_clone(&self, seed: u64) -> Self {
        Self::crash_clone(self, seed)
    }
}

/// The moment at which a created file gets its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Naming {
    /// A file gets its name at its creation, and takes appends after a sync.
    AtCreation,
    /// A file gets its name at its first sync, which ends the file. The name survives a crash as
    /// any creation does. A file that was not synced is not found. Tables on a storage pool are
    /// such files.
    AtSync,
}

/// The points in which file systems differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guarantees {
    /// Class of the created files.
    pub class: FileClass,
    /// When a file gets its name.
    pub naming: Naming,
    /// Whether creations, renames and removals survive a kill without a sync of the directory. On a
    /// local disk they do, because the kernel has them. On a storage pool they may be on their way:
    /// a kill and a power loss then leave a prefix of them, and a flush or sync of a file that has
    /// bytes makes its creation survive both.
    pub names_survive_kill: bool,
    /// Whether bytes that no sync covers are the appended ones as far as they are there. On a local
    /// disk, the length of a file may be on the device before its bytes are.
    pub unsynced_bytes_are_right: bool,
}

impl Guarantees {
    /// Guarantees of a local disk.
    pub const LOCAL: Self = Self {
        class: FileClass::Other,
        naming: Naming::AtCreation,
        names_survive_kill: true,
        unsynced_bytes_are_right: false,
    };
}

/// One random operation. Numbers name files.
#[derive(Clone, Debug)]
pub enum Step {
    /// Creates a file, if the name is free.
    Create(u8),
    /// Appends bytes to an open file.
    Append(u8, u16),
    /// Flushes an open file.
    Flush(u8),
    /// Syncs an open file.
    Sync(u8),
    /// Renames a file, which may replace another one.
    Rename(u8, u8),
    /// Removes a file.
    Remove(u8),
    /// Syncs the directory.
    SyncDir,
    /// Kills the process. It continues with the surviving bytes, and without its open files.
    Kill,
}

impl Step {
    /// A random operation.
    #[must_use]
    pub fn random(rng: &mut Rng) -> Self {
        let name = rng.u8(..NAMES);
        match rng.u8(..20) {
            0..3 => Self::Create(name),
            3..9 => Self::Append(name, rng.u16(1..2000)),
            9..11 => Self::Flush(name),
            11..14 => Self::Sync(name),
            14..16 => Self::Rename(name, rng.u8(..NAMES)),
            16 => Self::Remove(name),
            17..19 => Self::SyncDir,
            _ => Self::Kill,
        }
    }
}

/// The model of a file: all its bytes, and the numbers that must survive a kill and a power loss.
#[derive(Clone, Default)]
struct KnownFile {
    bytes: Vec<u8>,
    flushed: usize,
    synced: usize,
    /// Number of the state of the names with which the file began.
    created: usize,
}

impl fmt::Debug for KnownFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes, {} flushed, {} synced", self.bytes.len(), self.flushed, self.synced)
    }
}

/// Indexes of files by their names.
type Namespace = BTreeMap<u8, usize>;
/// Bytes of files by their names.
type Contents = BTreeMap<u8, Vec<u8>>;

/// A file system and the model of it.
#[derive(Debug)]
pub struct PowerLossModel<F> {
    tested: F,
    guarantees: Guarantees,
    files: Vec<KnownFile>,
    names: Namespace,
    /// Open files, by the names that they get at their first sync.
    unnamed: Namespace,
    /// Every state of the names since the last sync of the directory. The first element is the
    /// synced state.
    states: Vec<Namespace>,
    /// Number of the first of `states`, counted from the beginning.
    first_state: usize,
    /// Number of the first state that a kill may leave, if a kill may leave several.
    first_left: usize,
    writers: BTreeMap<usize, Box<dyn WritableFile>>,
    next_byte: u8,
    /// All operations, for the message of a failure.
    history: Vec<Step>,
}

fn path(name: u8) -> PathBuf {
    Path::new(DIR).join(name.to_string())
}

impl<F: CrashTested> PowerLossModel<F> {
    /// Begins with the empty file system `tested`.
    ///
    /// # Panics
    ///
    /// It panics if the file system takes no directory.
    #[must_use]
    pub fn new(tested: F, guarantees: Guarantees) -> Self {
        tested.fs().create_dir_all(Path::new(DIR)).unwrap();
        Self {
            tested,
            guarantees,
            files: Vec::new(),
            names: Namespace::new(),
            unnamed: Namespace::new(),
            states: vec![Namespace::new()],
            first_state: 0,
            first_left: 0,
            writers: BTreeMap::new(),
            next_byte: 0,
            history: Vec::new(),
        }
    }

    /// Runs an operation on the file system and on the model.
    ///
    /// # Panics
    ///
    /// It panics if the operation fails, or if a kill leaves other files than it may.
    pub fn run(&mut self, step: &Step) {
        self.history.push(step.clone());
        match *step {
            Step::Create(name) => return self.create(name),
            Step::Rename(from, to) if from != to && self.names.contains_key(&from) => {
                self.tested.fs().rename(&path(from), &path(to)).unwrap();
                let file = self.names.remove(&from).unwrap();
                self.names.insert(to, file);
                // A file that was created there has lost its name, also one that had none yet.
                if let Some(replaced) = self.unnamed.remove(&to) {
                    self.writers.remove(&replaced);
                }
            }
            Step::Remove(name) if self.names.contains_key(&name) => {
                self.tested.fs().remove(&path(name)).unwrap();
                self.names.remove(&name);
            }
            Step::SyncDir => {
                self.tested.fs().sync_dir(Path::new(DIR)).unwrap();
                self.forget_states();
            }
            Step::Kill => return self.kill(),
            Step::Append(name, _) | Step::Flush(name) | Step::Sync(name) => {
                return self.write(name, step);
            }
            _ => return,
        }
        self.states.push(self.names.clone());
    }

    fn create(&mut self, name: u8) {
        if self.names.contains_key(&name) || self.unnamed.contains_key(&name) {
            return;
        }
        let context = IoContext::new(self.guarantees.class, IoPurpose::Maintenance);
        let options = CreateOptions::default();
        let writer = self.tested.fs().create(&path(name), context, options).unwrap();
        let index = self.files.len();
        let created = self.first_state + self.states.len();
        self.files.push(KnownFile { created, ..KnownFile::default() });
        self.writers.insert(index, writer);
        match self.guarantees.naming {
            Naming::AtSync => {
                self.unnamed.insert(name, index);
            }
            Naming::AtCreation => {
                self.names.insert(name, index);
                self.states.push(self.names.clone());
            }
        }
    }

    fn write(&mut self, name: u8, step: &Step) {
        let unnamed = self.unnamed.get(&name).copied();
        let Some(index) = unnamed.or_else(|| self.names.get(&name).copied()) else { return };
        let (Some(writer), known) = (self.writers.get_mut(&index), &mut self.files[index]) else {
            return;
        };
        match step {
            Step::Append(_, len) => {
                self.next_byte = self.next_byte % 200 + 1;
                let bytes = vec![self.next_byte; usize::from(*len)];
                writer.append(&bytes).unwrap();
                known.bytes.extend_from_slice(&bytes);
            }
            Step::Sync(_) => {
                writer.sync().unwrap();
                (known.flushed, known.synced) = (known.bytes.len(), known.bytes.len());
            }
            _ => {
                writer.flush().unwrap();
                known.flushed = known.bytes.len();
            }
        }
        assert_eq!(writer.len(), known.bytes.len() as u64);
        if !self.guarantees.names_survive_kill && unnamed.is_none() && known.flushed > 0 {
            self.first_left = self.first_left.max(known.created);
        }
        if unnamed.is_some() && matches!(step, Step::Sync(_)) {
            self.writers.remove(&index);
            self.unnamed.remove(&name);
            self.names.insert(name, index);
            self.states.push(self.names.clone());
        }
    }

    /// Forgets all states of the names, because a later one is durable.
    fn forget_states(&mut self) {
        self.first_state += self.states.len();
        self.states.clear();
    }

    fn kill(&mut self) {
        self.tested = self.tested.kill_clone();
        self.writers.clear();
        self.unnamed.clear();
        let left = contents(self.tested.fs());
        // The clone continues with the names that are left, and may lose their changes later.
        let survived = self.survived_kill(&left);
        self.names = self.states[survived].clone();
        self.states.truncate(survived + 1);
    }

    /// The index of the state whose names are left after a kill.
    fn survived_kill(&self, left: &Contents) -> usize {
        let flushed = |known: &KnownFile| known.flushed;
        let last = self.states.len() - 1;
        let first = if self.guarantees.names_survive_kill { last } else { self.first_durable() };
        let mut states = (first..=last).rev();
        let survived = states.find(|index| self.allows(&self.states[*index], left, flushed));
        survived.unwrap_or_else(|| self.refuse("a kill", left))
    }

    /// The index of the first state that a power loss may leave.
    fn first_durable(&self) -> usize {
        self.first_left.saturating_sub(self.first_state)
    }

    /// Whether `left` may be the files of `names`: each has at least the bytes that `must` says.
    fn allows(
        &self,
        names: &Namespace,
        left: &Contents,
        must: impl Fn(&KnownFile) -> usize,
    ) -> bool {
        names.keys().eq(left.keys())
            && names.iter().all(|(name, &index)| {
                let (known, bytes) = (&self.files[index], &left[name]);
                let right = match self.guarantees.unsynced_bytes_are_right {
                    true => bytes.len(),
                    false => must(known),
                };
                (must(known)..=known.bytes.len()).contains(&bytes.len())
                    && bytes[..right] == known.bytes[..right]
            })
    }

    fn refuse(&self, after: &str, left: &Contents) -> ! {
        let lens: Vec<_> = left.iter().map(|(name, bytes)| (name, bytes.len())).collect();
        let (states, files, history) = (&self.states, &self.files, &self.history);
        panic!("after {after}: {lens:?} is none of {states:?} of {files:?}; {history:?}")
    }

    /// Checks what is left after a kill, and after power losses with `seed` and three more seeds.
    ///
    /// # Panics
    ///
    /// It panics if bytes are missing that must be there, or others appear.
    pub fn check(&self, seed: u64) {
        self.survived_kill(&contents(self.tested.kill_clone().fs()));
        for seed in seed..seed + 4 {
            let left = contents(self.tested.crash_clone(seed).fs());
            let synced = |known: &KnownFile| known.synced;
            let mut states = self.states[self.first_durable()..].iter();
            if !states.any(|names| self.allows(names, &left, synced)) {
                self.refuse("power loss", &left);
            }
            assert_eq!(left, contents(self.tested.crash_clone(seed).fs()), "the seed decides");
        }
    }
}

fn contents(fs: &dyn FileSystem) -> Contents {
    let entries = fs.list(Path::new(DIR)).unwrap();
    let read = entries.iter().map(|entry| {
        let name = entry.name.parse().unwrap();
        (name, fs.read(&path(name), super::any()).unwrap())
    });
    read.collect()
}
