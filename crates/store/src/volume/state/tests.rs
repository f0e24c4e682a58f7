//! The state of a namespace against a plain model, whose every change copies everything.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::path::PathBuf;

use archipelago_env::FileClass;
use proptest::prelude::{Just, ProptestConfig, Strategy, prop, prop_oneof};
use proptest::test_runner::TestRunner;

use super::*;
use crate::blob::BlobRef;
use crate::log::Layout;

impl NamespaceState {
    fn apply(&mut self, record: &Record) -> Result<Vec<Gone>, Refusal> {
        self.apply_all(std::slice::from_ref(record))
    }
}

fn blob(id: u8) -> Content {
    Content::Blob(BlobRef { id: BlobId([id; 16]), len_bytes: u64::from(id), hint: vec![id] })
}

fn log(id: u8, layout: u8) -> Content {
    let layout = Layout(vec![layout]);
    Content::Log { head: Vec::new(), id: LogId([id; 16]), layout, len_bytes: None }
}

fn file(key: u64, names: &[&str], content: Content) -> Record {
    let names = names.iter().map(PathBuf::from).collect();
    let class = FileClass::Sst;
    Record::File(FileRecord { key: FileKey(key), class, names, content, modified_ms: key })
}

/// The identity of a content that must be released.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Object {
    Blob([u8; 16]),
    Log([u8; 16]),
}

fn object(content: &Content) -> Option<Object> {
    match content {
        Content::Inline(_) => None,
        Content::Blob(blob) => Some(Object::Blob(blob.id.0)),
        Content::Log { id, .. } => Some(Object::Log(id.0)),
    }
}

/// Names, directories and contents in plain maps.
#[derive(Clone, Debug, Default, PartialEq)]
struct PlainNamespace {
    names: BTreeMap<PathBuf, FileKey>,
    dirs: BTreeSet<PathBuf>,
    contents: BTreeMap<FileKey, Content>,
    next: u64,
}

impl PlainNamespace {
    fn is_dir(&self, path: &Path) -> bool {
        path.parent().is_none() || self.dirs.contains(path)
    }

    fn can_name(&self, path: &Path) -> bool {
        is_plain(path) && !self.is_dir(path) && path.parent().is_some_and(|dir| self.is_dir(dir))
    }

    fn can_have(&self, key: FileKey, content: &Content) -> bool {
        let others = self.contents.iter().filter(|(other, _)| **other != key);
        let mut objects = others.filter_map(|(_, content)| object(content));
        object(content).is_none_or(|object| objects.all(|other| other != object))
    }

    fn list(&self, dir: &Path) -> Vec<(OsString, Option<FileKey>)> {
        let here = |path: &Path| {
            (path.parent() == Some(dir)).then(|| path.file_name().map(OsString::from)).flatten()
        };
        let files = self.names.iter().filter_map(|(path, &key)| Some((here(path)?, Some(key))));
        let dirs = self.dirs.iter().filter_map(|path| Some((here(path)?, None)));
        let mut listed: Vec<_> = files.chain(dirs).collect();
        listed.sort();
        listed
    }

    fn can_rename_dir(&self, from: &Path, to: &Path) -> bool {
        let is_free = from == to || !self.dirs.contains(to) || self.list(to).is_empty();
        let has_place = to.parent().is_some_and(|dir| self.is_dir(dir));
        let is_within = from != to && to.starts_with(from);
        from.parent().is_some()
            && is_plain(to)
            && has_place
            && is_free
            && !is_within
            && !self.names.contains_key(to)
    }

    fn rename_dir(&mut self, from: &Path, to: &Path) {
        let moved = |path: &Path| match path.strip_prefix(from) {
            Ok(rest) if rest == Path::new("") => to.to_owned(),
            Ok(rest) => to.join(rest),
            Err(_) => path.to_owned(),
        };
        self.dirs = self.dirs.iter().map(|dir| moved(dir)).collect();
        self.names = self.names.iter().map(|(path, &key)| (moved(path), key)).collect();
    }

    /// The namespace after a change; `None` if the change is refused.
    fn after(&self, record: &Record) -> Option<Self> {
        let mut after = self.clone();
        let is_allowed = match record {
            Record::File(file) => {
                let distinct: BTreeSet<_> = file.names.iter().collect();
                for name in &file.names {
                    after.names.insert(name.clone(), file.key);
                }
                after.contents.insert(file.key, file.content.clone());
                after.next = self.next.max(file.key.0 + 1);
                !self.contents.contains_key(&file.key)
                    && self.can_have(file.key, &file.content)
                    && !distinct.is_empty()
                    && distinct.len() == file.names.len()
                    && file.names.iter().all(|name| self.can_name(name))
            }
            Record::Content { key, content, .. } => {
                after.contents.insert(*key, content.clone());
                self.contents.contains_key(key) && self.can_have(*key, content)
            }
            Record::Rename { from, to } if self.is_dir(from) => {
                after.rename_dir(from, to);
                self.can_rename_dir(from, to)
            }
            // Both are names of one file, and POSIX says that nothing happens.
            Record::Rename { from, to }
                if from != to && self.names.get(from) == self.names.get(to) =>
            {
                self.names.contains_key(from) && self.can_name(to)
            }
            Record::Rename { from, to } => {
                let key = after.names.remove(from);
                after.names.extend(key.map(|key| (to.clone(), key)));
                key.is_some() && self.can_name(to)
            }
            Record::Link { from, to } => {
                let key = self.names.get(from);
                after.names.extend(key.map(|&key| (to.clone(), key)));
                key.is_some() && self.can_name(to) && !self.names.contains_key(to)
            }
            Record::Remove { path } => after.names.remove(path).is_some(),
            Record::MakeDir { path } => {
                let parts = path.ancestors().filter(|part| part.parent().is_some());
                after.dirs.extend(parts.map(Path::to_owned));
                is_plain(path) && !path.ancestors().any(|part| self.names.contains_key(part))
            }
            Record::RemoveDir { path } => {
                after.dirs.retain(|dir| !dir.starts_with(path));
                after.names.retain(|name, _| !name.starts_with(path));
                path.parent().is_some() && self.dirs.contains(path)
            }
            Record::Next { next } => {
                after.next = self.next.max(*next);
                true
            }
        };
        let named: BTreeSet<FileKey> = after.names.values().copied().collect();
        after.contents.retain(|key, _| named.contains(key));
        is_allowed.then_some(after)
    }

    fn objects(&self) -> BTreeSet<Object> {
        self.contents.values().filter_map(object).collect()
    }

    /// The namespace after all changes, with the released objects and the files that are gone;
    /// `None` if they are refused.
    fn after_all(&self, records: &[Record]) -> Option<(Self, Vec<Object>, Vec<FileKey>)> {
        let (mut now, mut released, mut gone) = (self.clone(), Vec::new(), Vec::new());
        for record in records {
            let after = now.after(record)?;
            released.extend(now.objects().difference(&after.objects()));
            gone.extend(now.contents.keys().filter(|key| !after.contents.contains_key(key)));
            now = after;
        }
        let owned = now.objects();
        let is_allowed = released.iter().all(|object| !owned.contains(object));
        is_allowed.then_some((now, released, gone))
    }
}

/// Number of blobs and of logs.
const IDS: u8 = 24;

const PATHS: [&str; 14] = [
    "a", "a-b", "a/c", "a.d", "/a", "/a/c", "/a/c/e", "/a-b", "b", "", "/", "/a/./c", "a/../b",
    "/a/",
];

fn is_plain(path: &Path) -> bool {
    ["/a/./c", "a/../b", "/a/"].iter().all(|odd| path.as_os_str() != *odd)
}

/// A record before it is known which files exist.
#[derive(Clone, Debug)]
struct Draft {
    kind: u8,
    /// Whether the record is about a file, a name or a directory that exists.
    exists: bool,
    from: usize,
    to: usize,
    key: u64,
    content: Content,
}

fn any_draft() -> impl Strategy<Value = Draft> {
    let content = prop_oneof![
        Just(Content::Inline(b"bytes".to_vec())),
        (0..IDS).prop_map(blob),
        (0..IDS, 0..2u8).prop_map(|(id, layout)| log(id, layout)),
    ];
    // Most paths are normalised.
    let path = || prop_oneof![20 => 0..9usize, 1 => 0..PATHS.len()];
    let exists = prop::bool::weighted(0.9);
    (0..16u8, exists, path(), path(), 1..40u64, content).prop_map(
        |(kind, exists, from, to, key, content)| Draft { kind, exists, from, to, key, content },
    )
}

impl Draft {
    fn record(&self, now: &PlainNamespace) -> Record {
        let pick = |mut paths: Vec<PathBuf>| {
            if self.exists && !paths.is_empty() {
                paths.swap_remove(self.from % paths.len())
            } else {
                PathBuf::from(PATHS[self.from])
            }
        };
        let name = || pick(now.names.keys().cloned().collect());
        let dir = || pick(now.dirs.iter().cloned().collect());
        let to = PathBuf::from(PATHS[self.to]);
        let (key, content) = (FileKey(self.key), self.content.clone());
        match self.kind {
            0..4 => {
                let key = if self.exists { FileKey(now.next.max(1)) } else { key };
                let mut names = vec![to, PathBuf::from(PATHS[self.from])];
                names.truncate(if self.key < 6 { self.key as usize % 3 } else { 1 });
                let class = FileClass::Sst;
                Record::File(FileRecord { key, class, names, content, modified_ms: 0 })
            }
            4..8 => {
                let keys: Vec<_> = now.contents.keys().copied().collect();
                let known = (self.exists && !keys.is_empty()).then(|| keys[self.from % keys.len()]);
                Record::Content { key: known.unwrap_or(key), content, modified_ms: 1 }
            }
            8 => Record::Rename { from: name(), to },
            9 => Record::Rename { from: dir(), to },
            10 => Record::Link { from: name(), to },
            11 => Record::Remove { path: name() },
            12 => Record::RemoveDir { path: dir() },
            13 => Record::Next { next: self.key },
            _ => Record::MakeDir { path: to },
        }
    }
}

fn assert_same(state: &NamespaceState, plain: &PlainNamespace) {
    for path in PATHS.map(Path::new) {
        assert_eq!(state.key(path), plain.names.get(path).copied(), "{}", path.display());
        assert_eq!(state.is_dir(path), plain.is_dir(path), "{}", path.display());
        let listed = plain.is_dir(path).then(|| plain.list(path));
        assert_eq!(state.list(path), listed, "{}", path.display());
    }
    let contents: BTreeMap<_, _> = state.files().map(|file| (file.key, &file.content)).collect();
    assert_eq!(contents, plain.contents.iter().map(|(&key, content)| (key, content)).collect());
    assert_eq!((state.len(), state.next()), (plain.contents.len(), plain.next));
    for file in state.files() {
        let names: BTreeSet<&PathBuf> = file.names.iter().collect();
        let named = plain.names.iter().filter(|(_, key)| **key == file.key);
        assert_eq!(names, named.map(|(path, _)| path).collect());
        assert!(file.names.iter().all(|name| is_plain(name)), "{:?}", file.names);
    }
    for id in 0..IDS {
        let find = |wanted: &Content| {
            let has = |content: &&Content| object(content) == object(wanted);
            plain.contents.iter().find(|(_, content)| has(content)).map(|(&key, _)| key)
        };
        assert_eq!(state.blob_owner(BlobId([id; 16])), find(&blob(id)));
        assert_eq!(state.log_owner(LogId([id; 16])), find(&log(id, 0)));
    }
}

fn rebuilt(state: &NamespaceState) -> NamespaceState {
    let mut again = NamespaceState::default();
    let records: Vec<_> = state.snapshot().collect();
    again.apply_all(&records).unwrap();
    again
}

/// Applies the commits to both, and compares them after each one. Returns the number of accepted
/// commits, and of those that gave something up.
fn compare(commits: &[Vec<Draft>]) -> (u64, u64) {
    let (mut state, mut plain) = (NamespaceState::default(), PlainNamespace::default());
    let (mut accepted, mut giving_up) = (0, 0);
    for drafts in commits {
        let (mut now, mut commit) = (plain.clone(), Vec::new());
        for draft in drafts {
            let record = draft.record(&now);
            now = now.after(&record).unwrap_or(now);
            commit.push(record);
        }
        let expected = plain.after_all(&commit);
        let outcome = state.apply_all(&commit);
        assert_eq!(outcome.is_ok(), expected.is_some(), "{commit:?}: {outcome:?}");
        if let (Ok(gone), Some((after, mut released, mut files))) = (outcome, expected) {
            let (mut objects, mut keys) = (Vec::new(), Vec::new());
            for gone in &gone {
                match gone {
                    Gone::File(file) => {
                        assert!(file.names.is_empty());
                        keys.push(file.key);
                        objects.extend(object(&file.content));
                    }
                    Gone::Content { content, .. } => objects.extend(object(content)),
                }
            }
            objects.sort();
            released.sort();
            keys.sort();
            files.sort();
            assert_eq!((objects, keys), (released, files), "{commit:?}");
            plain = after;
            accepted += 1;
            giving_up += u64::from(!gone.is_empty());
        }
        assert_same(&state, &plain);
    }
    assert_same(&rebuilt(&state), &plain);
    (accepted, giving_up)
}

#[test]
fn state_equals_a_plain_model_after_random_commits() {
    let commits = prop::collection::vec(prop::collection::vec(any_draft(), 1..4), 1..60);
    let (all, accepted, giving_up) = (Cell::new(0), Cell::new(0), Cell::new(0));
    let mut runner = TestRunner::new(ProptestConfig::with_cases(300));
    let outcome = runner.run(&commits, |commits| {
        let counts = compare(&commits);
        all.set(all.get() + commits.len() as u64);
        accepted.set(accepted.get() + counts.0);
        giving_up.set(giving_up.get() + counts.1);
        Ok(())
    });
    outcome.unwrap_or_else(|failure| panic!("{failure}"));
    // Otherwise the comparison says little.
    assert!(accepted.get() > all.get() / 4, "{} of {}", accepted.get(), all.get());
    assert!(giving_up.get() > all.get() / 20, "{} of {}", giving_up.get(), all.get());
}

#[test]
fn last_name_of_a_file_gives_its_content_up() {
    let mut state = NamespaceState::default();
    state.apply(&Record::MakeDir { path: "/db".into() }).unwrap();
    state.apply(&file(1, &["/db/1"], blob(1))).unwrap();
    state.apply(&Record::Link { from: "/db/1".into(), to: "/db/2".into() }).unwrap();
    assert_eq!(state.apply(&Record::Remove { path: "/db/1".into() }), Ok(Vec::new()));
    let gone = state.apply(&file(2, &["/db/2"], log(2, 0))).unwrap();
    let Gone::File(lost) = &gone[0] else { panic!("{gone:?}") };
    assert_eq!((lost.key, &lost.content, lost.names.len()), (FileKey(1), &blob(1), 0));
    assert_eq!(state.key(Path::new("/db/2")), Some(FileKey(2)));
    let gone = state.apply(&Record::RemoveDir { path: "/db".into() }).unwrap();
    assert_eq!(gone.len(), 1);
    assert_eq!((state.len(), state.next()), (0, 3));
}

#[test]
fn new_layout_gives_nothing_up_but_another_log_does() {
    let mut state = NamespaceState::default();
    state.apply(&file(1, &["/log"], log(1, 0))).unwrap();
    let change = |content| Record::Content { key: FileKey(1), content, modified_ms: 9 };
    assert_eq!(state.apply(&change(log(1, 7))), Ok(Vec::new()));
    assert_eq!(state.file(Path::new("/log")).unwrap().content, log(1, 7));
    let gone = state.apply(&change(log(2, 0))).unwrap();
    assert_eq!(gone, [Gone::Content { key: FileKey(1), content: log(1, 7) }]);
    assert_eq!(state.log_owner(LogId([1; 16])), None);
}

#[test]
fn refused_record_takes_back_the_records_before_it() {
    let mut state = NamespaceState::default();
    state.apply(&Record::MakeDir { path: "/db/in".into() }).unwrap();
    state.apply(&file(1, &["/db/1", "/db/in/1"], blob(1))).unwrap();
    let before: Vec<_> = state.snapshot().collect();
    let refused = [
        Record::Rename { from: "/db/in".into(), to: "/there".into() },
        Record::MakeDir { path: "/new/dir".into() },
        file(2, &["/new/dir/2"], log(2, 0)),
        Record::Content { key: FileKey(1), content: blob(3), modified_ms: 5 },
        Record::RemoveDir { path: "/db".into() },
        Record::Next { next: 70 },
        Record::Remove { path: "/none".into() },
    ];
    let refusal = state.apply_all(&refused).unwrap_err();
    assert_eq!(refusal.kind, std::io::ErrorKind::NotFound);
    assert_eq!(state.snapshot().collect::<Vec<_>>(), before);
    assert_eq!(state.blob_owner(BlobId([1; 16])), Some(FileKey(1)));
    assert_eq!(state.log_owner(LogId([2; 16])), None);
    let named_again = [
        Record::RemoveDir { path: "/db".into() },
        Record::MakeDir { path: "/db".into() },
        file(2, &["/db/2"], blob(1)),
    ];
    assert!(state.apply_all(&named_again).unwrap_err().why.contains("given up"));
    assert_eq!(state.snapshot().collect::<Vec<_>>(), before);
}

#[test]
fn allocated_numbers_are_never_used_twice() {
    let mut state = NamespaceState::default();
    assert_eq!(state.allocate(), FileKey(1));
    state.apply(&file(7, &["/a"], Content::Inline(Vec::new()))).unwrap();
    state.apply(&Record::Remove { path: "/a".into() }).unwrap();
    assert_eq!(state.allocate(), FileKey(8));
    assert_eq!(rebuilt(&state).allocate(), FileKey(9));
    assert!(state.apply(&Record::Next { next: u64::MAX }).is_err());
    assert!(state.apply(&file(u64::MAX, &["/a"], Content::Inline(Vec::new()))).is_err());
}
