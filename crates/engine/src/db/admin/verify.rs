//! Verification: checks every checksum of live tables, value files, invalid files, closed log
//! segments and the manifest, and every reference from a table to a value.
//!
//! Invariants: nothing is changed.
//!
//! Thread-safety: any thread may verify, also while others write.
//! Failure: damage is listed in the report. An error is returned only for a closed database.
//! Cost: two reads of all tables and value files, one read of the closed log segments, and a third
//! read of tables with separated values ([`crate::value_check`]) and of invalid files.

use archipelago_base::{Error, ErrorKind, Result, SeqNo};
use archipelago_env::{FileClass, IoContext, IoPurpose, OpenOptions};

use crate::db::inner::DbInner;
use crate::db::read::ReadView;
use crate::db::state::context::Context;
use crate::db::state::family::SuperVersion;
use crate::db::state::storage::Storage;
use crate::db::write::log_segments::LogSegments;
use crate::file_meta::{invalid_file_name, log_name, value_file_name};
use crate::gc::invalid::verify_invalid_file;
use crate::live_file::{LiveInvalidFile, LiveValueFile};
use crate::lock_order::Order;
use crate::options::RecoveryMode;
use crate::value_check::{OpenedFile, ValueCheck};
use crate::wal::{ReadRequest, SegmentFile, read_segment};

/// Result of a verification.
#[derive(Clone, Debug, Default)]
pub struct VerifyReport {
    /// Number of tables that were read.
    pub files: u64,
    /// Number of value files that were read.
    pub value_files: u64,
    /// Number of invalid files that were read. They name garbage in value files.
    pub invalid_files: u64,
    /// Bytes of these tables, value files and invalid files.
    pub bytes: u64,
    /// Records of the log that were checked.
    pub log_records: u64,
    /// One error for each damage, with its file and offset.
    pub errors: Vec<Error>,
}

impl VerifyReport {
    /// Whether nothing is damaged.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.errors.is_empty()
    }
}

/// Reads the closed log segments. The whole log of a read-only database was read for its picture.
fn verify_logs(storage: &Storage, logs: &LogSegments, view: &ReadView, report: &mut VerifyReport) {
    report.log_records = view.pictures().log_records();
    let segments: Vec<_> = logs.closed_segments();
    for segment in segments {
        let path = storage.path_of(&log_name(segment.no));
        let file = SegmentFile { no: segment.no, path };
        let request = ReadRequest {
            mode: RecoveryMode::Strict,
            database_id: storage.database_id(),
            known_len: Some(segment.bytes),
            after: SeqNo::ZERO,
        };
        let read = read_segment(&**storage.fs(), &file, &request, &mut |_, batch| {
            batch.iter().try_for_each(|op| op.map(|_| ()))
        });
        match read {
            Ok(end) => report.log_records += end.records,
            // The segment was removed meanwhile, because its writes are in tables now.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => report.errors.push(error),
        }
    }
}

/// A check of the files of families, with the owners that it needs.
struct FileCheck<'a> {
    context: &'a Context,
    storage: &'a Storage,
    view: &'a ReadView,
}

impl FileCheck<'_> {
    /// Opens a value file for a check. A writer may have removed the value file of a read-only
    /// database. Then the open file that the database holds is used; `None` if it holds none.
    fn open_values(&self, file: &LiveValueFile) -> Result<Option<OpenedFile>> {
        let path = self.storage.path_of(&value_file_name(file.file_no()));
        let io = IoContext::new(FileClass::ValueSst, IoPurpose::Maintenance);
        if let Some(file) = file.held() {
            return Ok(Some(OpenedFile { path, file }));
        }
        match self.storage.fs().open(&path, io, OpenOptions::default()) {
            Ok(file) => Ok(Some(OpenedFile { path, file })),
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            Err(_) if self.context.options().read_only => Ok(None),
            Err(_) => {
                Err(Error::corrupt(&path, 0, "the file is missing, though the manifest names it"))
            }
        }
    }

    /// Reads one invalid file. `false` if the writer of a read-only database has removed it.
    fn verify_invalid(&self, file: &LiveInvalidFile) -> Result<bool> {
        let path = self.storage.path_of(&invalid_file_name(file.file_no()));
        let io = IoContext::new(FileClass::Sst, IoPurpose::Maintenance);
        match self.storage.fs().open(&path, io, OpenOptions::default()) {
            Ok(opened) => verify_invalid_file(opened, &path, file.meta()).map(|()| true),
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            Err(_) if self.context.options().read_only => Ok(false),
            Err(_) => {
                Err(Error::corrupt(&path, 0, "the file is missing, though the manifest names it"))
            }
        }
    }

    /// Reads the tables, the value files and the invalid files of one family, and resolves its
    /// references.
    fn verify_family(
        &self,
        picture: &SuperVersion,
        report: &mut VerifyReport,
        progress: &mut dyn FnMut(u64),
    ) {
        let version = &picture.version;
        let open = |file: &LiveValueFile| self.open_values(file);
        let mut values = ValueCheck::new(version, &open, self.context.budget());
        for (file, refs) in version.values().files() {
            match values.file(file, refs) {
                Ok(false) => continue,
                Ok(true) => {}
                Err(error) => report.errors.push(error),
            }
            report.value_files += 1;
            report.bytes += file.size_bytes;
            progress(report.bytes);
        }
        for (level, file) in version.files() {
            let io = IoContext::sst(IoPurpose::Maintenance, level as u8);
            let table = self.view.tables().get(file);
            match table.and_then(|table| table.verify(io).map(|()| table)) {
                Err(error) if error.kind() == ErrorKind::Fenced => continue,
                Err(error) => report.errors.push(error),
                Ok(table) => report.errors.extend(values.table(&table, file, io)),
            }
            report.files += 1;
            report.bytes += file.size_bytes;
            progress(report.bytes);
        }
        for file in version.values().invalid_files() {
            match self.verify_invalid(file) {
                Ok(false) => continue,
                Ok(true) => {}
                Err(error) => report.errors.push(error),
            }
            report.invalid_files += 1;
            report.bytes += file.size_bytes;
            progress(report.bytes);
        }
    }
}

/// Reads every live table, value file and invalid file, the closed log segments and the manifest.
pub(crate) fn verify(db: &DbInner, mut progress: impl FnMut(u64, u64)) -> Result<VerifyReport> {
    let mut report = VerifyReport::default();
    let pictures: Vec<_> =
        db.view.live_families().iter().map(|family| family.current.load_full()).collect();
    let total: u64 = pictures
        .iter()
        .map(|picture| {
            let tables = picture.version.files().map(|(_, file)| file.size_bytes);
            let values = picture.version.values();
            let invalid = values.invalid_files().map(|file| file.size_bytes);
            tables.sum::<u64>() + values.file_bytes() + invalid.sum::<u64>()
        })
        .sum();
    let check = FileCheck { context: &db.context, storage: &db.storage, view: &db.view };
    for picture in &pictures {
        check.verify_family(picture, &mut report, &mut |bytes| progress(bytes, total));
    }
    verify_logs(&db.storage, &db.logs, &db.view, &mut report);
    // A read-only database has read the manifest for its picture, and a writer may be
    // replacing it now.
    if !db.context.options().read_only {
        report.errors.extend(db.storage.lock_manifest(Order::none()).verify().err());
    }
    Ok(report)
}
