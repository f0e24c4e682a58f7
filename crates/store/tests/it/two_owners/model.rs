//! Contents that the files of a volume may have, given the answers that its owners received.

use std::collections::BTreeMap;

/// Number of bytes at the beginning of a file that no other file has.
pub(super) const OWN_BYTES: usize = 8;

/// Losses since the last owner wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Loss {
    /// Owners died or lost the volume.
    Kill,
    /// All nodes lost power as well.
    Power,
}

/// One possible content of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Expected {
    Missing,
    Exact(Vec<u8>),
    /// A prefix of the submitted bytes, with all that were acknowledged, or synced if power was
    /// lost.
    Growing {
        submitted: Vec<u8>,
        acknowledged: usize,
        synced: usize,
    },
}

impl Expected {
    pub(super) const EMPTY: Self =
        Self::Growing { submitted: Vec::new(), acknowledged: 0, synced: 0 };

    /// The growing file with `bytes` submitted behind its end.
    pub(super) fn submitted(&self, bytes: &[u8]) -> Self {
        let Self::Growing { submitted, acknowledged, synced } = self else {
            panic!("{self:?} does not grow");
        };
        let submitted = [submitted, bytes].concat();
        Self::Growing { submitted, acknowledged: *acknowledged, synced: *synced }
    }

    /// The growing file whose bytes are all acknowledged.
    pub(super) fn acknowledged(&self) -> Self {
        let Self::Growing { submitted, synced, .. } = self else {
            panic!("{self:?} does not grow");
        };
        let acknowledged = submitted.len();
        Self::Growing { submitted: submitted.clone(), acknowledged, synced: *synced }
    }

    /// The growing file whose bytes are all synced.
    pub(super) fn synced(&self) -> Self {
        let Self::Growing { submitted, .. } = self else {
            panic!("{self:?} does not grow");
        };
        let len = submitted.len();
        Self::Growing { submitted: submitted.clone(), acknowledged: len, synced: len }
    }

    fn permits(&self, actual: Option<&[u8]>, loss: Loss) -> bool {
        match (self, actual) {
            (Self::Missing, None) => true,
            (Self::Exact(bytes), Some(actual)) => bytes == actual,
            (Self::Growing { submitted, acknowledged, synced }, Some(actual)) => {
                let least = if loss == Loss::Power { *synced } else { *acknowledged };
                submitted.starts_with(actual) && actual.len() >= least
            }
            _ => false,
        }
    }

    fn brief(&self) -> String {
        match self {
            Self::Missing => "nothing".to_owned(),
            Self::Exact(bytes) => format!("{} bytes", bytes.len()),
            Self::Growing { submitted, acknowledged, synced } => {
                format!("{} bytes, {acknowledged} acknowledged, {synced} synced", submitted.len())
            }
        }
    }
}

/// The effect of an operation on one path.
#[derive(Clone, Debug)]
pub(super) struct Change {
    pub(super) path: String,
    /// Content that the path may have as well, until the operation succeeds.
    pub(super) during: Expected,
    /// Content of the path when the operation has succeeded.
    pub(super) after: Expected,
}

impl Change {
    /// A change that happens as a whole.
    pub(super) fn whole(path: &str, after: Expected) -> Self {
        Self { path: path.to_owned(), during: after.clone(), after }
    }
}

/// Possible contents of all paths.
#[derive(Clone, Debug, Default)]
pub(super) struct Model {
    paths: BTreeMap<String, Vec<Expected>>,
    /// The operation on several paths that has not succeeded; all of its effects are there, or
    /// none.
    undecided: Vec<UndecidedPath>,
}

/// A path of an operation that has not succeeded.
#[derive(Clone, Debug)]
struct UndecidedPath {
    change: Change,
    /// Contents that the path may have if the operation has no effect.
    before: Vec<Expected>,
}

impl Model {
    /// The only content that `path` may have; `None` if there are several.
    pub(super) fn certain(&self, path: &str) -> Option<&Expected> {
        match self.paths.get(path).map(Vec::as_slice) {
            Some([expected]) => Some(expected),
            Some(_) => None,
            None => Some(&Expected::Missing),
        }
    }

    /// Paths with bytes that no operation changes any more, and those bytes.
    pub(super) fn settled(&self) -> Vec<(&str, &[u8])> {
        let settled = self.paths.iter().filter_map(|(path, possible)| match possible.as_slice() {
            [Expected::Exact(bytes)] => Some((path.as_str(), bytes.as_slice())),
            _ => None,
        });
        settled.collect()
    }

    /// Whether two settled paths are names of one file. Every file begins with bytes of its own,
    /// so files with the same bytes are one.
    pub(super) fn are_one_file(&self, one: &str, other: &str) -> bool {
        let bytes = |path: &str| match self.certain(path) {
            Some(Expected::Exact(bytes)) => Some(bytes),
            _ => None,
        };
        bytes(one).is_some() && bytes(one) == bytes(other)
    }

    /// Whether [`Model::are_one_file`] is certain: it is not if both files lost the bytes that
    /// distinguish them.
    pub(super) fn knows_whether_one_file(&self, one: &str, other: &str) -> bool {
        let is_short = |path: &str| match self.certain(path) {
            Some(Expected::Exact(bytes)) => bytes.len() < OWN_BYTES,
            _ => false,
        };
        !(is_short(one) && is_short(other))
    }

    /// All paths that were ever used.
    pub(super) fn paths(&self) -> Vec<String> {
        self.paths.keys().cloned().collect()
    }

    /// Begins an operation: from now on its effect may be there.
    pub(super) fn begin(&mut self, changes: &[Change]) {
        for change in changes {
            let possible = self.paths.entry(change.path.clone());
            let possible = possible.or_insert_with(|| vec![Expected::Missing]);
            let before = possible.clone();
            possible.push(change.during.clone());
            self.undecided.push(UndecidedPath { change: change.clone(), before });
        }
    }

    /// Refuses half of an operation: the state that a new owner finds must have all effects of the
    /// last operation, or none of them.
    pub(super) fn check_whole(
        &self,
        found: &BTreeMap<String, Option<Vec<u8>>>,
        loss: Loss,
    ) -> Result<(), String> {
        let bytes = |path: &UndecidedPath| found.get(&path.change.path).cloned().flatten();
        let is_after = |path: &UndecidedPath| {
            let bytes = bytes(path);
            let possible = [&path.change.during, &path.change.after];
            possible.iter().any(|expected| expected.permits(bytes.as_deref(), loss))
        };
        let is_before = |path: &UndecidedPath| {
            let bytes = bytes(path);
            path.before.iter().any(|expected| expected.permits(bytes.as_deref(), loss))
        };
        if self.undecided.iter().all(is_after) || self.undecided.iter().all(is_before) {
            return Ok(());
        }
        let paths: Vec<&str> =
            self.undecided.iter().map(|path| path.change.path.as_str()).collect();
        Err(format!("a part of one operation is there, and another part is not: {paths:?}"))
    }

    /// Ends an operation that succeeded: from now on its effect must be there.
    pub(super) fn succeed(&mut self, changes: &[Change]) {
        self.undecided.clear();
        for change in changes {
            self.paths.insert(change.path.clone(), vec![change.after.clone()]);
        }
    }

    /// Compares the bytes that a new owner finds at `path`. From then on, `path` may have no other
    /// bytes.
    pub(super) fn settle(
        &mut self,
        path: &str,
        actual: Option<Vec<u8>>,
        loss: Loss,
    ) -> Result<(), String> {
        let possible = self.paths.get(path).cloned().unwrap_or_else(|| vec![Expected::Missing]);
        if !possible.iter().any(|expected| expected.permits(actual.as_deref(), loss)) {
            let found =
                actual.map_or("nothing".to_owned(), |bytes| format!("{} bytes", bytes.len()));
            let expected: Vec<_> = possible.iter().map(Expected::brief).collect();
            return Err(format!(
                "{path} has {found} after {loss:?}, not {}",
                expected.join(" or ")
            ));
        }
        let settled = actual.map_or(Expected::Missing, Expected::Exact);
        self.undecided.retain(|undecided| undecided.change.path != path);
        self.paths.insert(path.to_owned(), vec![settled]);
        Ok(())
    }
}
