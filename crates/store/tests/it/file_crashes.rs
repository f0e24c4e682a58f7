//! Kills and power losses at random points. A model knows the names and bytes that must survive,
//! and those that may.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use archipelago_base::random::Rng;
use archipelago_env::{FileClass, FileSystem, LogFile, WritableFile};
use archipelago_store::StoreFs;
use archipelago_store::memory::{Fault, MemoryPool, PoolCall};
use parking_lot::Mutex;

use crate::world::{
    CLASSES, DIR, at, context, create, create_log, get, new_world, put, sync_dir, take_over,
};

const NAMES: u8 = 5;

/// The model of a file: its bytes, and the numbers of them that survive a kill and a power loss.
#[derive(Clone, Debug, Default)]
struct KnownFile {
    bytes: Vec<u8>,
    flushed: usize,
    synced: usize,
    /// Index of the first state that has the file.
    born: usize,
}

/// The file of each name.
type Names = BTreeMap<u8, usize>;

/// The strongest durability that a call has reported for the bytes so far.
#[derive(PartialEq)]
enum Reported {
    Nothing,
    Flushed,
    Synced,
}

enum OpenFile {
    Plain(Box<dyn WritableFile>),
    Table(Box<dyn WritableFile>),
    Log(Box<dyn LogFile>),
}

struct Model {
    pool: MemoryPool,
    fs: Arc<StoreFs>,
    rng: Rng,
    files: Vec<KnownFile>,
    /// Every state of the names, in order; the last one is the present.
    states: Vec<Names>,
    /// Index of the first state that a crash may leave.
    settled: usize,
    /// Files that are written, with the name under which they were created.
    open: Vec<(usize, u8, OpenFile)>,
    next: u8,
}

fn name_of(name: u8) -> String {
    name.to_string()
}

impl Model {
    fn new(seed: u64) -> Self {
        let (pool, fs) = new_world(seed);
        Self {
            pool,
            fs,
            rng: Rng::with_seed(seed),
            files: Vec::new(),
            states: vec![Names::new()],
            settled: 0,
            open: Vec::new(),
            next: 0,
        }
    }

    fn names(&self) -> &Names {
        self.states.last().unwrap()
    }

    /// Adds a state in which `change` was made.
    fn change<T>(&mut self, change: impl FnOnce(&mut Names) -> T) {
        let mut names = self.names().clone();
        let _before = change(&mut names);
        self.states.push(names);
    }

    fn some_name(&mut self) -> u8 {
        self.rng.u8(..NAMES)
    }

    fn step(&mut self) {
        if self.rng.u8(..4) == 0 {
            // A replica fails, so some log goes on in a new extent.
            let calls = [PoolCall::LogWait, PoolCall::LogSync, PoolCall::LogFinish];
            self.pool.inject(calls[self.rng.usize(..3)], 1, Fault::EndExtent);
        }
        match self.rng.u8(..40) {
            0..6 => self.create(),
            6..26 => self.write(),
            26..29 => self.rename(),
            29..31 => self.link(),
            31..33 => self.remove(),
            33..35 => self.replace(),
            35..38 => {
                sync_dir(&self.fs);
                self.settled = self.states.len() - 1;
            }
            38 => self.close_one(),
            _ => self.kill(),
        }
    }

    fn create(&mut self) {
        let (name, index) = (self.some_name(), self.files.len());
        let file = match self.rng.usize(..CLASSES.len() + 1) {
            class if class < CLASSES.len() => {
                let class = CLASSES[class];
                let file = create(&self.fs, &name_of(name), class);
                if class.is_table() { OpenFile::Table(file) } else { OpenFile::Plain(file) }
            }
            _ => OpenFile::Log(create_log(&self.fs, &name_of(name))),
        };
        self.files.push(KnownFile { born: self.states.len(), ..KnownFile::default() });
        self.replace_table(name);
        if !matches!(file, OpenFile::Table(_)) {
            self.change(|names| names.insert(name, index));
        }
        self.open.push((index, name, file));
    }

    /// A later file of the same path takes the name from a table that has none yet.
    fn replace_table(&mut self, name: u8) {
        self.open.retain(|open| open.1 != name || !matches!(open.2, OpenFile::Table(_)));
    }

    fn write(&mut self) {
        if self.open.is_empty() {
            return;
        }
        let at = self.rng.usize(..self.open.len());
        let (index, name) = (self.open[at].0, self.open[at].1);
        let known = &mut self.files[index];
        let is_named = self.states.last().unwrap().values().any(|named| *named == index);
        self.next = self.next % 200 + 1;
        let len = self.rng.usize(1..3000);
        let (bytes, action) = (vec![self.next; len], self.rng.u8(..8));
        let reported = match &mut self.open[at].2 {
            OpenFile::Log(log) if action < 5 => {
                log.append(&[&bytes]).unwrap();
                known.bytes.extend_from_slice(&bytes);
                Reported::Flushed
            }
            OpenFile::Log(log) if action < 7 => {
                log.submit(&[&bytes]).unwrap();
                known.bytes.extend_from_slice(&bytes);
                Reported::Nothing
            }
            OpenFile::Log(log) => {
                assert_eq!(log.sync_handle().sync().unwrap(), known.bytes.len() as u64);
                Reported::Synced
            }
            OpenFile::Plain(file) | OpenFile::Table(file) if action < 4 => {
                file.append(&bytes).unwrap();
                known.bytes.extend_from_slice(&bytes);
                Reported::Nothing
            }
            OpenFile::Plain(file) if action < 6 => {
                file.flush().unwrap();
                Reported::Flushed
            }
            OpenFile::Plain(file) if action == 6 => {
                file.submit().unwrap();
                Reported::Nothing
            }
            OpenFile::Plain(file) => {
                file.sync().unwrap();
                Reported::Synced
            }
            OpenFile::Table(file) => {
                file.sync().unwrap();
                let len = known.bytes.len();
                (known.flushed, known.synced, known.born) = (len, len, self.states.len());
                self.open.remove(at);
                self.change(|names| names.insert(name, index));
                return;
            }
        };
        // The bytes of a file without a name are of no use, so nothing is promised about them.
        if is_named && reported != Reported::Nothing {
            known.flushed = known.bytes.len();
            self.settled = self.settled.max(known.born);
        }
        if is_named && reported == Reported::Synced {
            known.synced = known.bytes.len();
        }
    }

    fn rename(&mut self) {
        let (from, to) = (self.some_name(), self.some_name());
        let Some(&file) = self.names().get(&from) else { return };
        self.fs.rename(&at(&name_of(from)), &at(&name_of(to))).unwrap();
        if from != to {
            self.replace_table(to);
        }
        if self.names().get(&to) != Some(&file) {
            self.change(|names| {
                names.remove(&from);
                names.insert(to, file);
            });
        }
    }

    fn link(&mut self) {
        let (from, to) = (self.some_name(), self.some_name());
        let Some(&file) = self.names().get(&from) else { return };
        let linked = self.fs.link(&at(&name_of(from)), &at(&name_of(to)));
        assert_eq!(linked.is_ok(), !self.names().contains_key(&to));
        if linked.is_ok() {
            self.change(|names| names.insert(to, file));
        }
    }

    fn remove(&mut self) {
        let name = self.some_name();
        let tables = self.open.len();
        self.replace_table(name);
        let removed = self.fs.remove(&at(&name_of(name)));
        if self.names().contains_key(&name) {
            self.change(|names| names.remove(&name));
            removed.unwrap();
        } else if self.open.len() < tables {
            removed.unwrap();
        }
    }

    fn replace(&mut self) {
        let (name, index) = (self.some_name(), self.files.len());
        self.replace_table(name);
        let len = [10, 4096, 6000][self.rng.usize(..3)];
        self.next = self.next % 200 + 1;
        let bytes = vec![self.next; len];
        self.fs.write_atomic(&at(&name_of(name)), &bytes, context(FileClass::Manifest)).unwrap();
        let born = self.states.len();
        self.files.push(KnownFile { bytes, flushed: len, synced: len, born });
        self.change(|names| names.insert(name, index));
        self.settled = born;
    }

    /// Drops a writer. Bytes that it did not hand over are lost.
    fn close_one(&mut self) {
        if self.open.is_empty() {
            return;
        }
        let at = self.rng.usize(..self.open.len());
        self.open.swap_remove(at);
    }

    /// Kills the process. Another one continues with what is left.
    fn kill(&mut self) {
        let killed = self.pool.kill_clone(self.rng.u64(..));
        let fs = take_over(&killed);
        let left = contents(&fs);
        let names = self.allowed(&left, |known| known.flushed).expect("after a kill").clone();
        self.open.clear();
        for (name, index) in &names {
            let known = &mut self.files[*index];
            known.bytes.clone_from(&left[name]);
            (known.flushed, known.born) = (known.bytes.len(), 0);
        }
        (self.pool, self.fs) = (killed, fs);
        (self.states, self.settled) = (vec![names], 0);
    }

    /// The newest state whose files may have left `left`, if there is one. Each file has at least
    /// the bytes that `must` says.
    fn allowed(
        &self,
        left: &BTreeMap<u8, Vec<u8>>,
        must: impl Fn(&KnownFile) -> usize,
    ) -> Option<&Names> {
        let may_be = |names: &&Names| {
            names.keys().eq(left.keys())
                && names.iter().all(|(name, &index)| {
                    let (known, bytes) = (&self.files[index], &left[name]);
                    bytes.len() >= must(known) && known.bytes.starts_with(bytes)
                })
        };
        self.states[self.settled..].iter().rev().find(may_be)
    }

    /// Loses processes and power, and checks what is left.
    fn check(&mut self) {
        for _ in 0..3 {
            let seed = self.rng.u64(..);
            let killed = contents(&take_over(&self.pool.kill_clone(seed)));
            assert!(
                self.allowed(&killed, |known| known.flushed).is_some(),
                "{}",
                self.told(&killed)
            );
            let crashed = contents(&take_over(&self.pool.crash_clone(seed)));
            assert!(
                self.allowed(&crashed, |known| known.synced).is_some(),
                "{}",
                self.told(&crashed)
            );
        }
    }

    fn told(&self, left: &BTreeMap<u8, Vec<u8>>) -> String {
        let left: Vec<_> = left.iter().map(|(name, bytes)| (name, bytes.len())).collect();
        let files = self.files.iter().map(|known| {
            let KnownFile { bytes, flushed, synced, .. } = known;
            (bytes.len(), *flushed, *synced)
        });
        let files: Vec<_> = files.collect();
        format!("{left:?} is none of {:?} of {files:?}", &self.states[self.settled..])
    }
}

/// All files of the directory.
fn contents(fs: &StoreFs) -> BTreeMap<u8, Vec<u8>> {
    let entries = fs.list(Path::new(DIR)).unwrap();
    let read = entries.iter().map(|entry| {
        let bytes = get(fs, &entry.name).unwrap();
        assert!(bytes.len() as u64 >= entry.len, "{}", entry.name);
        (entry.name.parse().unwrap(), bytes)
    });
    read.collect()
}

#[test]
fn random_runs_keep_what_was_reported() {
    for seed in 0..150 {
        let mut model = Model::new(seed);
        for _ in 0..60 {
            model.step();
            let present = contents(&model.fs);
            assert!(model.names().keys().eq(present.keys()), "seed {seed}: {present:?}");
        }
        model.check();
    }
}

/// Runs `work`, and gives every pool that a kill or a power loss at one of its calls leaves.
fn crashes(pool: &MemoryPool, work: impl FnOnce()) -> Vec<MemoryPool> {
    let crashed: Arc<Mutex<Vec<MemoryPool>>> = Arc::default();
    let sink = Arc::clone(&crashed);
    pool.on_call(Arc::new(move |pool, _| {
        let mut crashed = sink.lock();
        for seed in 0..3 {
            crashed.push(pool.kill_clone(seed));
            crashed.push(pool.crash_clone(seed));
        }
    }));
    work();
    pool.clear_on_call();
    crashed.lock().drain(..).collect()
}

#[test]
fn growth_loses_no_synced_bytes_at_any_call() {
    for class in [FileClass::Manifest, FileClass::Other] {
        let (pool, fs) = new_world(9);
        let mut file = create(&fs, "grows", class);
        let mut synced = Vec::new();
        for step in 0..6u8 {
            let more = vec![step + 1; 1500];
            file.append(&more).unwrap();
            let whole = [&synced[..], &more].concat();
            let crashed = crashes(&pool, || file.sync().unwrap());
            assert!(!crashed.is_empty());
            for left in crashed {
                let left = get(&take_over(&left), "grows").unwrap_or_default();
                assert!(left.starts_with(&synced) && whole.starts_with(&left), "{step} {class:?}");
            }
            synced = whole;
        }
    }
}

#[test]
fn replaced_file_is_the_old_or_the_new_one_at_any_call() {
    let (pool, fs) = new_world(9);
    put(&fs, "pointer", FileClass::Manifest, b"old");
    for new in [b"newer".to_vec(), vec![7; 9000], b"last".to_vec()] {
        let old = get(&fs, "pointer").unwrap();
        let crashed = crashes(&pool, || {
            fs.write_atomic(&at("pointer"), &new, context(FileClass::Manifest)).unwrap();
        });
        for left in crashed {
            let left = get(&take_over(&left), "pointer").unwrap();
            assert!(left == old || left == new);
        }
    }
}

#[test]
fn removal_releases_no_bytes_that_a_crash_brings_back() {
    let (pool, fs) = new_world(9);
    put(&fs, "table", FileClass::Sst, &[7; 5000]);
    put(&fs, "log", FileClass::Manifest, &[8; 5000]);
    sync_dir(&fs);
    let crashed = crashes(&pool, || {
        fs.remove(&at("table")).unwrap();
        fs.remove(&at("log")).unwrap();
        sync_dir(&fs);
        sync_dir(&fs);
    });
    assert!(crashed.len() > 6);
    for left in crashed {
        let left = take_over(&left);
        for (name, byte) in [("table", 7), ("log", 8)] {
            assert!(get(&left, name).is_none_or(|bytes| bytes == [byte; 5000]), "{name}");
        }
    }
    assert_eq!(pool.blob_list(), []);
}
