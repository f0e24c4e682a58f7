//! Verification: every checksum of every live table, of the closed log segments and of the
//! manifest.
//!
//! Invariants: nothing is changed.
//!
//! Thread-safety: any thread may verify, also while others write.
//! Failure: damage is listed in the report. An error is returned only for a closed database.
//! Cost: reads all tables and closed log segments once.

use archipelago_base::{Error, ErrorKind, Result, SeqNo};
use archipelago_env::{IoContext, IoPurpose};

use crate::db::inner::DbInner;
use crate::db::read::ReadView;
use crate::db::state::storage::Storage;
use crate::db::write::log_segments::LogSegments;
use crate::file_meta::log_name;
use crate::lock_order::Order;
use crate::options::RecoveryMode;
use crate::wal::{ReadRequest, SegmentFile, read_segment};

/// Result of a verification.
#[derive(Clone, Debug, Default)]
pub struct VerifyReport {
    /// Number of tables that were read.
    pub files: u64,
    /// Bytes of these tables.
    pub bytes: u64,
    /// Records of the log that were checked.
    pub log_records: u64,
    /// Everything that is damaged, each with its file and offset.
    pub errors: Vec<Error>,
}

impl VerifyReport {
    /// Whether nothing is damaged.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.errors.is_empty()
    }
}

/// Reads the closed log segments. Of a read-only database the whole log was read for its
/// picture.
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
            // Removed meanwhile, because its writes are in tables now.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => report.errors.push(error),
        }
    }
}

/// Reads every live table, the closed log segments and the manifest.
pub(crate) fn verify(db: &DbInner, mut progress: impl FnMut(u64, u64)) -> Result<VerifyReport> {
    let mut report = VerifyReport::default();
    let pictures: Vec<_> =
        db.view.live_families().iter().map(|family| family.current.load_full()).collect();
    let total: u64 = pictures
        .iter()
        .flat_map(|picture| picture.version.files())
        .map(|(_, file)| file.size_bytes)
        .sum();
    for picture in &pictures {
        for (level, file) in picture.version.files() {
            let context = IoContext::sst(IoPurpose::Maintenance, level as u8);
            let checked = db.view.tables().get(file).and_then(|table| table.verify(context));
            match checked {
                Err(error) if error.kind() == ErrorKind::Fenced => continue,
                checked => report.errors.extend(checked.err()),
            }
            report.files += 1;
            report.bytes += file.size_bytes;
            progress(report.bytes, total);
        }
    }
    verify_logs(&db.storage, &db.logs, &db.view, &mut report);
    // A read-only database has read the manifest for its picture, and a writer may be
    // replacing it now.
    if !db.context.options().read_only {
        report.errors.extend(db.storage.lock_manifest(Order::none()).verify().err());
    }
    Ok(report)
}
