//! Model of a volume: the contents that the files of each new owner are compared with.
//!
//! A path that was written as a whole has one content, or several possible ones while the outcome
//! of an operation is unknown. A file that grows has a prefix of what was submitted, with
//! everything that was acknowledged. If the boot id of the volume has changed, unsynced bytes of a
//! write-ahead log may be missing.
//!
//! A new owner reads everything that it can read, and from then on nothing else may be found
//! there: an operation of an older owner that succeeds later must have had its effect before.
//!
//! A pure value; the acknowledged positions come from the threads of the owners.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Content of a path; `None` if there is no file.
pub(crate) type Content = Option<Arc<Vec<u8>>>;

/// The effect of an operation on a path.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    pub(crate) path: String,
    pub(crate) after: Content,
}

/// How the bytes of a growing file are acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GrowthKind {
    /// A write-ahead log: by a quorum, and synced on request.
    Log,
    /// A manifest: everything acknowledged is synced on all replicas.
    Manifest,
}

/// Positions of a growing file, as its owner learns them.
#[derive(Debug, Default)]
pub(crate) struct Marks {
    acknowledged: AtomicU64,
    synced: AtomicU64,
}

impl Marks {
    /// Notes that everything before `end` is acknowledged.
    pub(crate) fn acknowledge(&self, end: u64) {
        self.acknowledged.fetch_max(end, Ordering::Relaxed);
    }

    /// Notes that everything before `end` is synced.
    pub(crate) fn sync(&self, end: u64) {
        self.acknowledge(end);
        self.synced.fetch_max(end, Ordering::Relaxed);
    }

    fn acknowledged(&self) -> u64 {
        self.acknowledged.load(Ordering::Relaxed)
    }

    fn synced(&self) -> u64 {
        self.synced.load(Ordering::Relaxed)
    }
}

/// A file that grows.
#[derive(Debug)]
struct Growth {
    kind: GrowthKind,
    submitted: Vec<u8>,
    marks: Arc<Marks>,
    /// Whether its creation succeeded.
    must_exist: bool,
    /// Whether a take-over since its creation may have missed unsynced bytes.
    may_miss_unsynced: bool,
}

/// A growing file whose end a new owner has found.
#[derive(Debug)]
struct EndedGrowth {
    path: String,
    marks: Arc<Marks>,
    acknowledged_then: u64,
    content: Content,
}

impl EndedGrowth {
    fn len(&self) -> u64 {
        self.content.as_ref().map_or(0, |bytes| bytes.len() as u64)
    }
}

/// A rename without an outcome.
#[derive(Debug)]
struct FileMove {
    from: String,
    to: String,
}

/// The possible contents of a volume.
#[derive(Debug, Default)]
pub(crate) struct Model {
    whole: BTreeMap<String, Vec<Content>>,
    growing: BTreeMap<String, Growth>,
    ended: Vec<EndedGrowth>,
    moves: Vec<FileMove>,
}

impl Model {
    /// The only content that a path may have; `None` if there are several, or if it grows.
    pub(crate) fn certain(&self, path: &str) -> Option<Content> {
        if self.growing.contains_key(path) {
            return None;
        }
        match self.whole.get(path).map(Vec::as_slice) {
            Some([content]) => Some(content.clone()),
            Some(_) => None,
            None => Some(None),
        }
    }

    /// Paths with bytes that no operation changes now, and those bytes.
    pub(crate) fn settled(&self) -> Vec<(String, Arc<Vec<u8>>)> {
        let settled = self.whole.iter().filter_map(|(path, possible)| match possible.as_slice() {
            [Some(bytes)] => Some((path.clone(), Arc::clone(bytes))),
            _ => None,
        });
        settled.collect()
    }

    /// Whether these bytes were written to a file that grew, and a new owner has found its end.
    pub(crate) fn were_recovered(&self, bytes: &[u8]) -> bool {
        let mut contents = self.ended.iter().filter_map(|ended| ended.content.as_deref());
        contents.any(|content| content == bytes)
    }

    /// All paths that may have a file.
    pub(crate) fn paths(&self) -> Vec<String> {
        self.whole.keys().chain(self.growing.keys()).cloned().collect()
    }

    /// Begins an operation: from now on its effect may be found.
    pub(crate) fn begin(&mut self, changes: &[Change]) {
        for Change { path, after } in changes {
            let possible = self.whole.entry(path.clone()).or_insert_with(|| vec![None]);
            if !possible.contains(after) {
                possible.push(after.clone());
            }
        }
    }

    /// Notes that an operation succeeded: from now on its effect must be found.
    pub(crate) fn succeed(&mut self, changes: &[Change]) {
        for Change { path, after } in changes {
            self.whole.insert(path.clone(), vec![after.clone()]);
        }
    }

    /// Begins a rename to a path without a file.
    pub(crate) fn begin_move(&mut self, from: &str, to: &str) {
        self.moves.push(FileMove { from: from.to_owned(), to: to.to_owned() });
    }

    /// Notes that a rename has succeeded.
    pub(crate) fn end_move(&mut self, from: &str) {
        self.moves.retain(|it| it.from != from);
    }

    /// Checks the renames whose paths a new owner has read: the file is at one of the two.
    pub(crate) fn settle_moves(&mut self) -> Vec<String> {
        let moves = std::mem::take(&mut self.moves);
        let mut torn = Vec::new();
        for it in moves {
            let exists = |path: &str| self.certain(path).map(|content| content.is_some());
            match (exists(&it.from), exists(&it.to)) {
                (Some(is_old), Some(is_new)) if is_old == is_new => {
                    let FileMove { from, to } = it;
                    torn.push(format!("half a rename from {from} to {to}: both are {is_old}"));
                }
                (Some(_), Some(_)) => {}
                _ => self.moves.push(it),
            }
        }
        torn
    }

    /// Notes that there is no file at a path any more.
    pub(crate) fn forget(&mut self, path: &str) {
        self.growing.remove(path);
        self.whole.insert(path.to_owned(), vec![None]);
    }

    /// Begins a growing file.
    pub(crate) fn begin_growth(&mut self, path: &str, kind: GrowthKind) -> Arc<Marks> {
        let marks = Arc::new(Marks::default());
        let growth = Growth {
            kind,
            submitted: Vec::new(),
            marks: Arc::clone(&marks),
            must_exist: false,
            may_miss_unsynced: false,
        };
        self.growing.insert(path.to_owned(), growth);
        marks
    }

    /// Notes that the creation of a growing file succeeded.
    pub(crate) fn growth_exists(&mut self, path: &str) {
        if let Some(growth) = self.growing.get_mut(path) {
            growth.must_exist = true;
        }
    }

    /// Adds bytes that are about to be submitted.
    pub(crate) fn submit(&mut self, path: &str, bytes: &[u8]) {
        if let Some(growth) = self.growing.get_mut(path) {
            growth.submitted.extend_from_slice(bytes);
        }
    }

    /// Notes that a take-over may have missed unsynced bytes.
    pub(crate) fn note_power_loss(&mut self) {
        self.growing.values_mut().for_each(|growth| growth.may_miss_unsynced = true);
    }

    /// Compares the content that a new owner finds at a path with the model. Afterwards, nothing
    /// else may be found there.
    pub(crate) fn settle(&mut self, path: &str, found: Content) -> Result<(), String> {
        if self.growing.contains_key(path) {
            return self.settle_growth(path, found);
        }
        let possible = self.whole.get(path).cloned().unwrap_or_else(|| vec![None]);
        if !possible.contains(&found) {
            let expected: Vec<String> = possible.iter().map(brief).collect();
            return Err(format!("{path} has {} and not {}", brief(&found), expected.join(" or ")));
        }
        self.whole.insert(path.to_owned(), vec![found]);
        Ok(())
    }

    fn settle_growth(&mut self, path: &str, found: Content) -> Result<(), String> {
        let Some(growth) = self.growing.get(path) else { return Ok(()) };
        let acknowledged = growth.marks.acknowledged();
        let is_lossy = growth.may_miss_unsynced && growth.kind == GrowthKind::Log;
        let least = if is_lossy { growth.marks.synced() } else { acknowledged };
        match &found {
            None if growth.must_exist => return Err(format!("the file {path} is lost")),
            None => {}
            Some(bytes) if !growth.submitted.starts_with(bytes) => {
                return Err(format!("{path} has {} bytes that were not submitted", bytes.len()));
            }
            Some(bytes) if (bytes.len() as u64) < least => {
                return Err(format!(
                    "{path} has {} bytes, of {least} that must be there ({acknowledged} \
                     acknowledged, {} synced)",
                    bytes.len(),
                    growth.marks.synced()
                ));
            }
            Some(_) => {}
        }
        self.ended.push(EndedGrowth {
            path: path.to_owned(),
            marks: Arc::clone(&growth.marks),
            acknowledged_then: acknowledged,
            content: found.clone(),
        });
        self.growing.remove(path);
        self.whole.insert(path.to_owned(), vec![found]);
        Ok(())
    }

    /// Acknowledgements that arrived after the end of a file was found, and that lie after that
    /// end.
    pub(crate) fn late_acknowledgements(&self) -> Vec<String> {
        let late = self.ended.iter().filter_map(|ended| {
            let acknowledged = ended.marks.acknowledged();
            let is_late = acknowledged > ended.acknowledged_then && acknowledged > ended.len();
            is_late.then(|| {
                format!(
                    "{}: byte {acknowledged} was acknowledged behind the end {} that a take-over \
                     found",
                    ended.path,
                    ended.len()
                )
            })
        });
        late.collect()
    }
}

fn brief(content: &Content) -> String {
    match content {
        None => "no file".to_owned(),
        Some(bytes) => format!("{} bytes", bytes.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(len: usize) -> Content {
        Some(Arc::new(vec![7; len]))
    }

    fn change(path: &str, after: Content) -> Change {
        Change { path: path.to_owned(), after }
    }

    #[test]
    fn operation_without_an_outcome_may_have_happened_or_not() {
        for found in [None, bytes(3)] {
            let mut model = Model::default();
            model.begin(&[change("a", bytes(3))]);
            assert_eq!(model.certain("a"), None);
            assert_eq!(model.settle("a", found.clone()), Ok(()));
            assert_eq!(model.certain("a"), Some(found));
            assert!(model.settle("a", bytes(4)).is_err());
        }
    }

    #[test]
    fn rename_happens_as_a_whole_or_not_at_all() {
        let run = |old: Content, new: Content| {
            let mut model = Model::default();
            model.succeed(&[change("a", bytes(3))]);
            model.begin(&[change("b", bytes(3)), change("a", None)]);
            model.begin_move("a", "b");
            assert_eq!(model.settle_moves(), Vec::<String>::new(), "nothing was read");
            assert_eq!(model.settle("a", old), Ok(()));
            assert_eq!(model.settle("b", new), Ok(()));
            model.settle_moves().len()
        };
        assert_eq!(run(bytes(3), None), 0);
        assert_eq!(run(None, bytes(3)), 0);
        assert_eq!(run(bytes(3), bytes(3)), 1);
        assert_eq!(run(None, None), 1);
    }

    #[test]
    fn growing_file_has_a_prefix_with_everything_acknowledged() {
        let run = |len: usize, loses_power: bool| {
            let mut model = Model::default();
            let marks = model.begin_growth("log", GrowthKind::Log);
            model.growth_exists("log");
            model.submit("log", &[7; 10]);
            marks.acknowledge(8);
            marks.sync(5);
            if loses_power {
                model.note_power_loss();
            }
            let settled = model.settle("log", bytes(len));
            marks.acknowledge(9);
            (settled.is_ok(), model.late_acknowledgements().len())
        };
        assert_eq!(run(8, false), (true, 1), "byte 9 came too late");
        assert_eq!(run(9, false), (true, 0));
        assert_eq!(run(7, false), (false, 0));
        assert!(run(7, true).0);
        assert!(!run(4, true).0, "synced bytes stay");
        assert!(!run(11, false).0, "more than was submitted");
    }
}
