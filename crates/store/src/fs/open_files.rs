//! State that all handles of a [`StoreFs`](super::StoreFs) share: the volume, the logs that this
//! process writes, and the tables that have no name yet.
//!
//! The file system owns one [`OpenFiles`], and every writer and reader has a reference to it.
//!
//! Invariants:
//! 1. Every log that this process has begun and not ended is in `logs`, with its writer once the
//!    file's writer was dropped.
//! 2. A log without a name and without a file's writer leaves `logs`, so that the volume can give
//!    it up.
//! 3. A table gets its name only while `unnamed` has its blob under its path. A change that takes
//!    the path away forgets that blob under the same lock.
//!
//! Thread-safety: any thread may call any method. The locks are never held over a wait for the
//! pool, and `unnamed` comes before the volume's lock.
//! Failure: errors name the path. An error of the pool that says `Fenced` ends the volume.
//! Cost: a change of names is one commit, and a pass over the logs that this process writes.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use archipelago_base::{ErrorKind, Result};
use archipelago_env::{CreateOptions, FileClass, IoContext};
use parking_lot::Mutex;

use super::failure::{missing, named, refused};
use super::written_log::WrittenLog;
use crate::ids::BlobId;
use crate::log::LogWriter;
use crate::volume::record::{Content, FileKey, FileRecord, Record};
use crate::volume::{Moment, Volume};

/// Number of logs without a file's writer above which the oldest is ended. Fewer of them wait,
/// because most log segments are removed soon, and an end costs a sync.
const IDLE_LOGS_MAX: usize = 8;

/// A log in [`OpenFiles`].
#[derive(Debug)]
struct LogEntry {
    log: Arc<WrittenLog>,
    /// Writer of the log, once that of the file was dropped.
    idle: Option<Box<dyn LogWriter>>,
}

/// Treatment of a file that has the name of a new file already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NewName {
    /// It replaces the file.
    Replacing,
    /// It is refused.
    Exclusive,
}

impl NewName {
    /// Chooses by the `exclusive` flag of `options`.
    pub(super) fn of(options: CreateOptions) -> Self {
        if options.exclusive { Self::Exclusive } else { Self::Replacing }
    }
}

/// A file that gets its first name.
#[derive(Debug)]
pub(super) struct NewFile {
    pub(super) path: PathBuf,
    pub(super) class: FileClass,
    pub(super) content: Content,
}

/// State that all handles of a file system share.
#[derive(Debug)]
pub(super) struct OpenFiles {
    pub(super) volume: Arc<Volume>,
    /// Paths of the lock files that this process holds.
    pub(super) locks: Mutex<HashSet<PathBuf>>,
    logs: Mutex<BTreeMap<FileKey, LogEntry>>,
    /// Blob of the newest table that was created at a path and has no name yet. The path stays when
    /// the writer is dropped, so that the creator can remove the table of a failed job.
    unnamed: Mutex<HashMap<PathBuf, BlobId>>,
}

impl OpenFiles {
    pub(super) fn new(volume: Arc<Volume>) -> Self {
        Self { volume, locks: Mutex::default(), logs: Mutex::default(), unnamed: Mutex::default() }
    }

    /// Passes a result of the pool on. An error gets the operation and the path.
    pub(super) fn heard<T>(&self, result: Result<T>, doing: &str, path: &Path) -> Result<T> {
        self.volume.observe(result).map_err(|error| named(&error, doing, path))
    }

    /// Returns the answer of a read, unless the lease of this owner has ended.
    pub(super) fn answer<T>(&self, answer: T, doing: &str, path: &Path) -> Result<T> {
        self.volume.check_lease().map(|()| answer).map_err(|error| named(&error, doing, path))
    }

    /// Refuses a file name that is a directory, or whose directory does not exist.
    pub(super) fn check_target(&self, doing: &str, path: &Path) -> Result<()> {
        let kind = self.volume.look(|state| {
            if state.is_dir(path) {
                Some(io::ErrorKind::IsADirectory)
            } else if path.parent().is_none_or(|dir| !state.is_dir(dir)) {
                Some(io::ErrorKind::NotFound)
            } else {
                None
            }
        });
        kind.map_or(Ok(()), |kind| Err(refused(doing, path, kind)))
    }

    /// Number of the file at `path`. Errors: `NotFound`, and `Io` for a directory.
    pub(super) fn key(&self, doing: &str, path: &Path) -> Result<FileKey> {
        let (key, is_dir) = self.volume.look(|state| (state.key(path), state.is_dir(path)));
        key.ok_or_else(|| missing(doing, path, is_dir))
    }

    /// Whether the file still has a name.
    pub(super) fn has_name(&self, key: FileKey) -> bool {
        self.volume.look(|state| state.get(key).is_some())
    }

    /// Submits changes. Logs that lost their names with them are forgotten.
    pub(super) fn change(&self, records: &[Record], doing: &str, path: &Path) -> Result<Moment> {
        let moment = self.volume.commit(records).map_err(|error| named(&error, doing, path))?;
        self.forget_nameless();
        Ok(moment)
    }

    /// Submits `records`, which give `path` to a new file. A table that was created at `path`
    /// earlier, and has no name yet, never gets the name. A table that is created at `path`
    /// afterwards gets it.
    pub(super) fn create(&self, records: &[Record], doing: &str, path: &Path) -> Result<Moment> {
        let mut unnamed = self.unnamed.lock();
        let moment = self.volume.commit(records).map_err(|error| named(&error, doing, path))?;
        unnamed.remove(path);
        drop(unnamed);
        self.forget_nameless();
        Ok(moment)
    }

    /// Submits the renaming of a file. A directory at `from` is refused, also if it has just taken
    /// the place of a file.
    pub(super) fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        let mut unnamed = self.unnamed.lock();
        let renamed = self.volume.commit_decided(|state| {
            state.find(from)?;
            Ok(vec![Record::Rename { from: from.to_owned(), to: to.to_owned() }])
        });
        renamed.map_err(|error| {
            named(&error, format_args!("rename to {} the file", to.display()), from)
        })?;
        if from != to {
            unnamed.remove(to);
        }
        drop(unnamed);
        self.forget_nameless();
        Ok(())
    }

    /// Submits the removal of the file at `path`, and of a table there that has no name yet.
    pub(super) fn remove(&self, path: &Path) -> Result<()> {
        let mut unnamed = self.unnamed.lock();
        let table = unnamed.remove(path);
        let removed = self.volume.commit(&[Record::Remove { path: path.to_owned() }]);
        match removed {
            Err(error) if error.kind() == ErrorKind::NotFound && table.is_some() => return Ok(()),
            Err(error) => {
                if let Some(table) = table {
                    unnamed.insert(path.to_owned(), table);
                }
                return Err(named(&error, "remove", path));
            }
            Ok(_) => {}
        }
        drop(unnamed);
        self.forget_nameless();
        Ok(())
    }

    /// Submits the removal of a directory, and denies names to the tables that were created in it
    /// and have none yet.
    pub(super) fn remove_dir(&self, dir: &Path) -> Result<()> {
        let mut unnamed = self.unnamed.lock();
        let removed = self.volume.commit(&[Record::RemoveDir { path: dir.to_owned() }]);
        removed.map_err(|error| named(&error, "remove directory", dir))?;
        unnamed.retain(|path, _| !path.starts_with(dir));
        drop(unnamed);
        self.forget_nameless();
        Ok(())
    }

    /// Submits the new content of the file `key`. `None` if the file has no name any more, so that
    /// no later opening can find the content.
    pub(super) fn set_content(
        &self,
        key: FileKey,
        content: Content,
        doing: &str,
        path: &Path,
    ) -> Result<Option<Moment>> {
        let record = Record::Content { key, content, modified_ms: self.volume.unix_ms() };
        match self.volume.commit(&[record]) {
            Ok(moment) => Ok(Some(moment)),
            Err(_) if !self.has_name(key) => Ok(None),
            Err(error) => Err(named(&error, doing, path)),
        }
    }

    /// The record of a new file with one name.
    pub(super) fn new_file(
        &self,
        key: FileKey,
        class: FileClass,
        path: &Path,
        content: Content,
    ) -> Record {
        let modified_ms = self.volume.unix_ms();
        Record::File(FileRecord { key, class, names: vec![path.to_owned()], content, modified_ms })
    }

    /// Waits until the changes before `moment` are durable.
    pub(super) fn wait(&self, moment: Moment, doing: &str, path: &Path) -> Result<()> {
        self.volume.wait(moment).map_err(|error| named(&error, doing, path))
    }

    /// Notes that the table `blob` was created at `path`. An older table of this path that has no
    /// name yet never gets one. Errors: as of [`OpenFiles::check_target`], if the directory was
    /// removed meanwhile. An [exclusive](NewName::Exclusive) creation refuses a file that exists,
    /// and a table that has no name yet.
    pub(super) fn note_unnamed(&self, path: &Path, blob: BlobId, name: NewName) -> Result<()> {
        let mut unnamed = self.unnamed.lock();
        self.check_target("create", path)?;
        let is_taken =
            || unnamed.contains_key(path) || self.volume.look(|state| state.key(path).is_some());
        if name == NewName::Exclusive && is_taken() {
            return Err(refused("create", path, io::ErrorKind::AlreadyExists));
        }
        unnamed.insert(path.to_owned(), blob);
        Ok(())
    }

    /// Creates the file of `record` at `path`, or replaces the file there by it. Errors: as of
    /// [`OpenFiles::note_unnamed`], and those of a commit.
    pub(super) fn create_file(&self, path: &Path, record: Record, name: NewName) -> Result<Moment> {
        let exists = || refused("create", path, io::ErrorKind::AlreadyExists);
        let mut unnamed = self.unnamed.lock();
        let moment = match name {
            NewName::Exclusive if unnamed.contains_key(path) => return Err(exists()),
            NewName::Exclusive => match self.volume.commit_new(path, record) {
                Ok(moment) => moment.ok_or_else(exists)?,
                Err(error) => return Err(named(&error, "create", path)),
            },
            NewName::Replacing => {
                self.volume.commit(&[record]).map_err(|error| named(&error, "create", path))?
            }
        };
        unnamed.remove(path);
        drop(unnamed);
        self.forget_nameless();
        Ok(moment)
    }

    /// Names the sealed table `blob` with `record`, and returns whether it got the name. It gets
    /// none if the path was removed or created anew since its creation. Errors: a table that was
    /// created [exclusively](NewName::Exclusive) replaces no file; those of a commit.
    pub(super) fn name_table(
        &self,
        path: &Path,
        blob: BlobId,
        record: Record,
        name: NewName,
    ) -> Result<bool> {
        let mut unnamed = self.unnamed.lock();
        if unnamed.get(path) != Some(&blob) {
            return Ok(false);
        }
        let named_at = match name {
            NewName::Exclusive => self.volume.commit_new(path, record),
            NewName::Replacing => self.volume.commit(&[record]).map(Some),
        };
        if named_at.map_err(|error| named(&error, "name", path))?.is_none() {
            return Err(refused("name", path, io::ErrorKind::AlreadyExists));
        }
        unnamed.remove(path);
        drop(unnamed);
        self.forget_nameless();
        Ok(true)
    }

    /// Submits the names of all `files` as one change. Errors: those of a commit; a name that a
    /// file has, or a table that has no name yet, is refused with the cause `AlreadyExists`.
    pub(super) fn name_all(&self, files: Vec<NewFile>) -> Result<Moment> {
        let taken = |path: &Path| refused("name", path, io::ErrorKind::AlreadyExists);
        let paths: Vec<PathBuf> = files.iter().map(|file| file.path.clone()).collect();
        let record = |file: NewFile| {
            let key = self.volume.allocate();
            self.new_file(key, file.class, &file.path, file.content)
        };
        let records: Vec<Record> = files.into_iter().map(record).collect();
        let unnamed = self.unnamed.lock();
        if let Some(path) = paths.iter().find(|path| unnamed.contains_key(*path)) {
            return Err(taken(path));
        }
        let moment = self.volume.commit_decided(|state| {
            match paths.iter().find(|path| state.key(path).is_some()) {
                Some(path) => Err(taken(path)),
                None => Ok(records),
            }
        })?;
        drop(unnamed);
        Ok(moment)
    }

    /// Notes a log that has a file's writer now.
    pub(super) fn add_log(&self, log: &Arc<WrittenLog>) {
        let entry = LogEntry { log: Arc::clone(log), idle: None };
        self.logs.lock().insert(log.key(), entry);
    }

    /// Takes over the writer of a log whose file's writer is dropped. [`OpenFiles::end_logs`] ends
    /// the log later, or this method does when many such logs wait. A log that is removed before is
    /// not ended.
    pub(super) fn retire_log(&self, log: &WrittenLog, writer: Box<dyn LogWriter>) {
        if let Some(entry) = self.logs.lock().get_mut(&log.key()) {
            entry.idle = Some(writer);
        }
        self.forget_nameless();
        while let Some(ended) = self.take_idle(IDLE_LOGS_MAX) {
            if let Err(error) = self.end_log(ended) {
                // The next owner recovers the log, as if this process had been killed.
                tracing::warn!(%error, "a log of the volume could not be ended");
            }
        }
    }

    /// Takes the oldest log without a file's writer if there are more than `most`.
    fn take_idle(&self, most: usize) -> Option<LogEntry> {
        let mut logs = self.logs.lock();
        let idle = || logs.iter().filter(|(_, entry)| entry.idle.is_some());
        let oldest = if idle().count() > most { idle().next().map(|(key, _)| *key) } else { None };
        oldest.and_then(|key| logs.remove(&key))
    }

    /// Ends a log and records its length.
    fn end_log(&self, entry: LogEntry) -> Result<()> {
        let LogEntry { log, idle: Some(mut writer) } = entry else { return Ok(()) };
        let ended = self.heard(writer.finish(), "end the log of", log.path())?;
        let len = writer.len_bytes();
        let content = self.volume.look(|state| match &state.get(log.key())?.content {
            Content::Log { head, id, .. } => {
                let head = head.clone();
                Some(Content::Log { head, id: *id, layout: ended, len_bytes: Some(len) })
            }
            _ => None,
        });
        match content {
            Some(content) => {
                self.set_content(log.key(), content, "record the end of", log.path()).map(drop)
            }
            None => Ok(()),
        }
    }

    /// Ends all logs without a file's writer.
    pub(super) fn end_logs(&self) -> Result<()> {
        while let Some(idle) = self.take_idle(0) {
            self.end_log(idle)?;
        }
        Ok(())
    }

    /// Forgets the logs that have neither a name nor a file's writer.
    fn forget_nameless(&self) {
        let mut logs = self.logs.lock();
        let gone: Vec<FileKey> = self.volume.look(|state| {
            let idle = logs.iter().filter(|(_, entry)| entry.idle.is_some());
            idle.map(|(key, _)| *key).filter(|key| state.get(*key).is_none()).collect()
        });
        let gone: Vec<_> = gone.iter().filter_map(|key| logs.remove(key)).collect();
        drop(logs);
        // The end of a hold may release the log, which takes a round trip.
        drop(gone);
    }

    /// Length of the file at `path`. Errors: as of [`OpenFiles::key`], and those of the pool.
    pub(super) fn len(&self, doing: &str, path: &Path) -> Result<u64> {
        let found = self.volume.look(|state| match state.file(path) {
            Some(file) => Ok((file.key, file.content.len_bytes())),
            None => Err(state.is_dir(path)),
        });
        let (key, len) = found.map_err(|is_dir| missing(doing, path, is_dir))?;
        let len = match len {
            Some(len) => Some(len),
            None => self.log_len(key, path)?,
        };
        len.ok_or_else(|| missing(doing, path, false))
    }

    /// Number of acknowledged bytes of the file `key`, whose log has not ended. `None` if the file
    /// was removed meanwhile.
    pub(super) fn log_len(&self, key: FileKey, path: &Path) -> Result<Option<u64>> {
        let written = self.logs.lock().get(&key).map(|entry| entry.log.acknowledged_len());
        if written.is_some() {
            return Ok(written);
        }
        let _hold = self.volume.hold(key);
        let Some(record) = self.volume.look(|state| state.get(key).cloned()) else {
            return Ok(None);
        };
        match &record.content {
            Content::Log { head, id, layout, len_bytes: None } => {
                let context = IoContext::new(record.class, archipelago_env::IoPurpose::Recovery);
                let log = self.volume.stores().logs.open(*id, layout, context);
                let log = self.heard(log, "find the length of", path)?;
                Ok(Some(head.len() as u64 + log.len()))
            }
            content => Ok(Some(content.len_bytes().unwrap_or(0))),
        }
    }
}
