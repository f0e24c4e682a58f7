//! Random operations on `MemFs`, then power loss. A model knows the bytes that must survive and
//! those that may.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use archipelago_env::mem::MemFs;
use archipelago_env::{CreateOptions, FileSystem, WritableFile};
use proptest::prelude::*;

use crate::any;

#[derive(Clone, Debug)]
enum Step {
    Create(u8),
    Append(u8, u16),
    Flush(u8),
    Sync(u8),
    Rename(u8, u8),
    Remove(u8),
    SyncDir,
    /// Kills the process. It continues with the surviving bytes, and without its open files.
    Kill,
}

fn step() -> impl Strategy<Value = Step> {
    let name = 0..4u8;
    prop_oneof![
        3 => name.clone().prop_map(Step::Create),
        6 => (name.clone(), 1..2000u16).prop_map(|(name, len)| Step::Append(name, len)),
        2 => name.clone().prop_map(Step::Flush),
        3 => name.clone().prop_map(Step::Sync),
        2 => (name.clone(), name.clone()).prop_map(|(from, to)| Step::Rename(from, to)),
        1 => name.prop_map(Step::Remove),
        2 => Just(Step::SyncDir),
        1 => Just(Step::Kill),
    ]
}

/// The model of a file: all its bytes, and the numbers that must survive a kill and a power loss.
#[derive(Clone, Default)]
struct Known {
    bytes: Vec<u8>,
    flushed: usize,
    synced: usize,
}

impl std::fmt::Debug for Known {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes, {} flushed, {} synced", self.bytes.len(), self.flushed, self.synced)
    }
}

type Namespace = BTreeMap<u8, usize>;

struct Model {
    fs: MemFs,
    files: Vec<Known>,
    names: Namespace,
    /// Every state of the names since the last sync of the directory, which is the first.
    states: Vec<Namespace>,
    writers: BTreeMap<usize, Box<dyn WritableFile>>,
    next: u8,
}

fn path(name: u8) -> PathBuf {
    Path::new("/db").join(name.to_string())
}

impl Model {
    fn new() -> Self {
        let fs = MemFs::new();
        fs.create_dir_all(Path::new("/db")).unwrap();
        let names = Namespace::new();
        let (files, writers) = (Vec::new(), BTreeMap::new());
        Self { fs, files, states: vec![names.clone()], names, writers, next: 0 }
    }

    fn run(&mut self, step: &Step) {
        match *step {
            Step::Create(name) if !self.names.contains_key(&name) => {
                let writer = self.fs.create(&path(name), any(), CreateOptions::default()).unwrap();
                self.writers.insert(self.files.len(), writer);
                self.names.insert(name, self.files.len());
                self.files.push(Known::default());
            }
            Step::Rename(from, to) if from != to && self.names.contains_key(&from) => {
                self.fs.rename(&path(from), &path(to)).unwrap();
                let file = self.names.remove(&from).unwrap();
                self.names.insert(to, file);
            }
            Step::Remove(name) if self.names.contains_key(&name) => {
                self.fs.remove(&path(name)).unwrap();
                self.names.remove(&name);
            }
            Step::SyncDir => {
                self.fs.sync_dir(Path::new("/db")).unwrap();
                self.states.clear();
            }
            Step::Kill => {
                self.fs = self.fs.kill_clone();
                self.writers.clear();
            }
            Step::Append(name, _) | Step::Flush(name) | Step::Sync(name) => {
                return self.write(name, step);
            }
            _ => return,
        }
        self.states.push(self.names.clone());
    }

    fn write(&mut self, name: u8, step: &Step) {
        let Some(&index) = self.names.get(&name) else { return };
        let (Some(writer), known) = (self.writers.get_mut(&index), &mut self.files[index]) else {
            return;
        };
        match step {
            Step::Append(_, len) => {
                self.next = self.next % 200 + 1;
                let bytes = vec![self.next; usize::from(*len)];
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
    }

    fn contents(fs: &MemFs) -> BTreeMap<u8, Vec<u8>> {
        let entries = fs.list(Path::new("/db")).unwrap();
        let read = entries.iter().map(|entry| {
            let name = entry.name.parse().unwrap();
            (name, fs.read(&path(name), any()).unwrap())
        });
        read.collect()
    }

    /// Whether `left` may be the files of `names`: each has at least the bytes that `must` says.
    fn allows(
        &self,
        names: &Namespace,
        left: &BTreeMap<u8, Vec<u8>>,
        must: impl Fn(&Known) -> usize,
    ) -> bool {
        names.keys().eq(left.keys())
            && names.iter().all(|(name, &index)| {
                let (known, bytes) = (&self.files[index], &left[name]);
                bytes.starts_with(&known.bytes[..must(known)]) && bytes.len() <= known.bytes.len()
            })
    }

    fn check(&self, seed: u64) {
        let killed = Self::contents(&self.fs.kill_clone());
        assert!(self.allows(&self.names, &killed, |known| known.flushed), "after kill");
        for seed in seed..seed + 4 {
            let left = Self::contents(&self.fs.crash_clone(seed));
            let allowed =
                self.states.iter().any(|names| self.allows(names, &left, |known| known.synced));
            let lens: Vec<_> = left.iter().map(|(name, bytes)| (name, bytes.len())).collect();
            assert!(allowed, "{lens:?} is none of {:?} of {:?}", self.states, self.files);
            assert_eq!(left, Self::contents(&self.fs.crash_clone(seed)), "the seed decides");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(200)
    })]

    #[test]
    fn synced_bytes_survive_and_no_others_appear(
        steps in prop::collection::vec(step(), 1..60),
        seed in 0..u64::MAX / 2,
    ) {
        let mut model = Model::new();
        for step in &steps {
            model.run(step);
        }
        model.check(seed);
    }
}
