//! Objects of the pool that no record names: blobs and logs that are not named yet, and those that
//! are not named any more.
//!
//! The volume owns one [`Pending`] under its lock. A blob or a log is *pending* from before its
//! creation until a commit names it or its creator gives it up. An object that lost its name is
//! *due* when the record that took the name is durable, and when no hold of its file is left. The
//! volume then releases it in the pool.
//!
//! Invariants:
//! 1. A commit names only pending objects, or the object that the file already has. So an object
//!    that was given up is never named.
//! 2. An object is named, pending, waiting to be released, or a stray.
//! 3. An object is released only after the record that took its last name is durable.
//! 4. A limited number of releases is due and waits for the pool. Objects beyond this limit become
//!    strays. A release of strays finds them, because they are neither named nor pending.
//! 5. An object waits in one release at most, and so do all strays together.
//!
//! A pure value. Failure: a refused release is put back and is due again after [`RETRY`]. Every
//! further refusal doubles that time, up to [`RETRY_MAX`].
//! Cost: a commit without blobs and logs costs nothing. The search for due releases visits every
//! release that waits, and most of them are due. The question whether an object waits is O(1).

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::time::Duration;

use archipelago_base::{Error, Result};

use super::Moment;
use super::record::{Content, FileKey, FileRecord, Record};
use super::state::{Gone, NamespaceState};
use crate::ids::{BlobId, LogId};
use crate::log::Layout;

/// Time after which a release is repeated that the pool refused.
pub(super) const RETRY: Duration = Duration::from_secs(1);
/// Longest time after which a release is repeated.
const RETRY_MAX: Duration = Duration::from_secs(60);
/// Number of releases that may be due and wait for the pool. Those beyond it are strays.
const DUE_MAX: usize = 16_384;

/// An object, or several, that the pool shall give up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Superfluous {
    Blob(BlobId),
    Log(LogId, Layout),
    /// Everything of the volume that is neither named nor pending.
    Strays,
}

/// A release that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Release {
    pub(super) object: Superfluous,
    /// The file whose holds keep the object.
    file: Option<FileKey>,
    /// The record that took the name is before this position.
    after: Moment,
    /// Earliest time, by the clock of the volume, at which the pool is asked.
    not_before_ns: u64,
    /// Number of times that the pool has refused.
    refusals: u32,
}

impl Release {
    fn new(object: Superfluous, file: Option<FileKey>, after: Moment) -> Self {
        Self { object, file, after, not_before_ns: 0, refusals: 0 }
    }

    /// Whether neither a record nor a hold keeps the object any more.
    fn is_free(&self, durable: Moment, holds: &HashMap<FileKey, usize>) -> bool {
        self.after <= durable && self.file.is_none_or(|file| !holds.contains_key(&file))
    }
}

/// State that decides which releases are due.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReleaseTime {
    /// Position through which records are durable.
    pub(super) durable: Moment,
    pub(super) now_ns: u64,
}

/// Objects that no record names.
#[derive(Debug, Default)]
pub(super) struct Pending {
    blobs: HashSet<BlobId>,
    /// Logs with their newest layouts; `None` before the first one.
    logs: HashMap<LogId, Option<Layout>>,
    /// Number of the holds of each file.
    holds: HashMap<FileKey, usize>,
    releases: Vec<Release>,
    waiting: WaitingObjects,
}

/// The objects of all releases that wait.
#[derive(Debug, Default)]
struct WaitingObjects {
    blobs: HashSet<BlobId>,
    logs: HashSet<LogId>,
    has_strays: bool,
}

impl WaitingObjects {
    /// Adds an object. Returns whether it is new.
    fn insert(&mut self, object: &Superfluous) -> bool {
        match object {
            Superfluous::Blob(blob) => self.blobs.insert(*blob),
            Superfluous::Log(log, _) => self.logs.insert(*log),
            Superfluous::Strays => !std::mem::replace(&mut self.has_strays, true),
        }
    }

    fn remove(&mut self, object: &Superfluous) {
        match object {
            Superfluous::Blob(blob) => {
                self.blobs.remove(blob);
            }
            Superfluous::Log(log, _) => {
                self.logs.remove(log);
            }
            Superfluous::Strays => self.has_strays = false,
        }
    }
}

impl Pending {
    /// Makes a blob pending.
    pub(super) fn add_blob(&mut self, blob: BlobId) {
        self.blobs.insert(blob);
    }

    /// Makes a log pending.
    pub(super) fn add_log(&mut self, log: LogId) {
        self.logs.insert(log, None);
    }

    /// Whether a blob is pending, or waits to be released.
    pub(super) fn has_blob(&self, blob: BlobId) -> bool {
        self.blobs.contains(&blob) || self.waiting.blobs.contains(&blob)
    }

    /// Whether a log is pending, or waits to be released.
    pub(super) fn has_log(&self, log: LogId) -> bool {
        self.logs.contains_key(&log) || self.waiting.logs.contains(&log)
    }

    /// Notes the first layout of a pending log, unless a newer one is known. Returns the newest.
    pub(super) fn note_layout(&mut self, log: LogId, layout: Layout) -> Layout {
        match self.logs.get_mut(&log) {
            Some(kept) => kept.get_or_insert(layout).clone(),
            None => layout,
        }
    }

    /// Replaces the layout of a log if it is pending, or waits to be released. Returns whether it
    /// does.
    pub(super) fn replace_layout(&mut self, log: LogId, layout: &Layout) -> bool {
        if let Some(kept) = self.logs.get_mut(&log) {
            *kept = Some(layout.clone());
            return true;
        }
        let waiting = self.releases.iter_mut().find_map(|release| match &mut release.object {
            Superfluous::Log(id, kept) if *id == log => Some(kept),
            _ => None,
        });
        waiting.map(|kept| kept.clone_from(layout)).is_some()
    }

    /// Forgets a pending blob that the pool does not have.
    pub(super) fn forget_blob(&mut self, blob: BlobId) {
        self.blobs.remove(&blob);
    }

    /// Gives up a blob if it is pending.
    pub(super) fn give_up_blob(&mut self, blob: BlobId) {
        if self.blobs.remove(&blob) {
            self.release(Superfluous::Blob(blob), Moment::default());
        }
    }

    /// Gives up a log if it is pending. If its creation got no answer, its layout is unknown and it
    /// is found as a stray.
    pub(super) fn give_up_log(&mut self, log: LogId) {
        match self.logs.remove(&log) {
            Some(Some(layout)) => self.release(Superfluous::Log(log, layout), Moment::default()),
            Some(None) => self.release(Superfluous::Strays, Moment::default()),
            None => {}
        }
    }

    /// Notes an object that no file has. It is superfluous after `after`.
    pub(super) fn release(&mut self, object: Superfluous, after: Moment) {
        self.add(Release::new(object, None, after));
    }

    /// Adds a release, unless its object waits already.
    fn add(&mut self, release: Release) {
        if self.waiting.insert(&release.object) {
            self.releases.push(release);
        }
    }

    /// Checks that the records name no object that is neither pending nor the present content of
    /// its file. Returns them with the newest layouts of pending logs. Errors: `InvalidArgument`.
    pub(super) fn prepare<'a>(
        &self,
        state: &NamespaceState,
        records: &'a [Record],
    ) -> Result<Cow<'a, [Record]>> {
        let mut prepared = Cow::Borrowed(records);
        for (index, record) in records.iter().enumerate() {
            let (key, content) = match record {
                Record::File(FileRecord { key, content, .. })
                | Record::Content { key, content, .. } => (*key, content),
                _ => continue,
            };
            let newest = match content {
                Content::Inline(_) => None,
                Content::Blob(blob) => {
                    let known = self.blobs.contains(&blob.id);
                    let owned = state.blob_owner(blob.id) == Some(key);
                    (known || owned).then_some(()).ok_or_else(|| unknown("blob", blob.id, key))?;
                    None
                }
                Content::Log { id, layout, len_bytes, .. } => match self.logs.get(id) {
                    Some(Some(newest)) if len_bytes.is_none() && newest != layout => Some(newest),
                    Some(_) => None,
                    None if state.log_owner(*id) == Some(key) => None,
                    None => return Err(unknown("log", id, key)),
                },
            };
            if let Some(newest) = newest {
                set_layout(&mut prepared.to_mut()[index], newest);
            }
        }
        Ok(prepared)
    }

    /// Notes that a commit named the objects of `records`, and made `gone` superfluous after
    /// `after`.
    pub(super) fn committed(&mut self, records: &[Record], gone: Vec<Gone>, after: Moment) {
        for record in records {
            let (Record::File(FileRecord { content, .. }) | Record::Content { content, .. }) =
                record
            else {
                continue;
            };
            match content {
                Content::Inline(_) => {}
                Content::Blob(blob) => {
                    self.blobs.remove(&blob.id);
                }
                Content::Log { id, .. } => {
                    self.logs.remove(id);
                }
            }
        }
        for gone in gone {
            let (file, content) = match gone {
                Gone::File(file) => (file.key, file.content),
                Gone::Content { key, content } => (key, content),
            };
            let object = match content {
                Content::Inline(_) => continue,
                Content::Blob(blob) => Superfluous::Blob(blob.id),
                Content::Log { id, layout, .. } => Superfluous::Log(id, layout),
            };
            self.add(Release::new(object, Some(file), after));
        }
    }

    /// Adds a hold of a file.
    pub(super) fn hold(&mut self, file: FileKey) {
        *self.holds.entry(file).or_default() += 1;
    }

    /// Removes a hold of a file. Returns whether it was the last one and a release waits for it.
    pub(super) fn unhold(&mut self, file: FileKey) -> bool {
        let Some(count) = self.holds.get_mut(&file) else { return false };
        *count -= 1;
        if *count > 0 {
            return false;
        }
        self.holds.remove(&file);
        self.releases.iter().any(|release| release.file == Some(file))
    }

    /// Takes the releases that are due.
    pub(super) fn take_due(&mut self, time: ReleaseTime) -> Vec<Release> {
        if self.releases.is_empty() {
            return Vec::new();
        }
        let holds = &self.holds;
        let is_due = |release: &mut Release| {
            release.not_before_ns <= time.now_ns && release.is_free(time.durable, holds)
        };
        let due: Vec<Release> = self.releases.extract_if(.., is_due).collect();
        due.iter().for_each(|release| self.waiting.remove(&release.object));
        due
    }

    /// Whether releases are due that another thread should take. If more than [`DUE_MAX`] releases
    /// wait for the pool alone, the last ones become strays, and a release of strays is due.
    pub(super) fn has_due(&mut self, time: ReleaseTime) -> bool {
        let (holds, waiting) = (&self.holds, &mut self.waiting);
        let (mut free, mut has_due) = (0, false);
        let before = self.releases.len();
        self.releases.retain(|release| {
            if !release.is_free(time.durable, holds) {
                return true;
            }
            has_due |= release.not_before_ns <= time.now_ns;
            free += 1;
            let stays = free <= DUE_MAX || release.object == Superfluous::Strays;
            if !stays {
                waiting.remove(&release.object);
            }
            stays
        });
        if self.releases.len() < before {
            self.release(Superfluous::Strays, Moment::default());
        }
        has_due
    }

    /// Earliest time at which a release is repeated that the pool has refused; `None` without one.
    pub(super) fn repeated_ns(&self) -> Option<u64> {
        let refused = self.releases.iter().filter(|release| release.refusals > 0);
        refused.map(|release| release.not_before_ns).min()
    }

    /// Puts back a release that the pool refused.
    pub(super) fn put_back(&mut self, mut release: Release, now_ns: u64) {
        let pause = (RETRY * (1 << release.refusals.min(6))).min(RETRY_MAX);
        release.not_before_ns = now_ns.saturating_add(pause.as_nanos() as u64);
        release.refusals += 1;
        if release.object == Superfluous::Strays {
            // A later release of the same object waits as long as this one.
            self.releases.retain(|waiting| waiting.object != Superfluous::Strays);
            self.waiting.remove(&release.object);
        }
        self.add(release);
    }

    /// Puts back a release for which the pool was not asked.
    pub(super) fn put_back_unasked(&mut self, release: Release) {
        self.add(release);
    }

    /// Number of objects that are pending or wait to be released.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.blobs.len() + self.logs.len() + self.releases.len()
    }
}

fn unknown(kind: &str, id: impl std::fmt::Display, key: FileKey) -> Error {
    Error::invalid(format!(
        "{kind} {id} cannot become the content of file {}: it was not begun, or was given up; \
         begin another one",
        key.0
    ))
}

fn set_layout(record: &mut Record, newest: &Layout) {
    if let Record::File(FileRecord { content, .. }) | Record::Content { content, .. } = record
        && let Content::Log { layout, .. } = content
    {
        layout.clone_from(newest);
    }
}

#[cfg(test)]
mod tests;
