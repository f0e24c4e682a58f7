//! Verification: every checksum of every live file.

use std::sync::atomic::Ordering;

use archipelago_base::{Error, ErrorKind, Result, SeqNo};
use archipelago_env::{IoContext, IoPurpose};

use crate::db::Db;
use crate::db::inner::DbInner;
use crate::file_meta::log_name;
use crate::options::RecoveryMode;
use crate::wal::{ReadRequest, SegmentFile, read_segment};

/// What verification found.
#[derive(Clone, Debug, Default)]
pub struct VerifyReport {
    /// Tables read.
    pub files: u64,
    /// Their bytes.
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

impl DbInner {
    /// Reads the closed log segments. Of a read-only database the whole log was read for its
    /// picture.
    fn verify_logs(&self, report: &mut VerifyReport) {
        report.log_records = self.following.log_records.load(Ordering::Relaxed);
        let segments: Vec<_> = self.state.lock().logs.iter().copied().collect();
        for segment in segments {
            let path = self.path_of(&log_name(segment.no));
            let file = SegmentFile { no: segment.no, path };
            let request = ReadRequest {
                mode: RecoveryMode::Strict,
                database_id: self.database_id,
                known_len: Some(segment.bytes),
                after: SeqNo::ZERO,
            };
            let read = read_segment(&*self.fs, &file, &request, &mut |_, batch| {
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
}

impl Db {
    /// Reads every live table in full (each block's checksum, the file's, order and counts), the
    /// closed log segments and the manifest. Changes nothing. A database that was opened read only
    /// is verified as of its picture ([`Db::catch_up`]); a table that its writer has removed since,
    /// and that was not held open, is no damage and is not counted. `progress` is called with the
    /// bytes done and in all. Damage is listed in the report, not returned as an error.
    pub fn verify(&self, mut progress: impl FnMut(u64, u64)) -> Result<VerifyReport> {
        self.inner.check_open()?;
        let mut report = VerifyReport::default();
        let pictures: Vec<_> =
            self.inner.live_families().iter().map(|family| family.current.load_full()).collect();
        let total: u64 = pictures
            .iter()
            .flat_map(|picture| picture.version.files())
            .map(|(_, file)| file.size_bytes)
            .sum();
        for picture in &pictures {
            for (level, file) in picture.version.files() {
                let context = IoContext::sst(IoPurpose::Maintenance, level as u8);
                let checked = self.inner.tables.get(file).and_then(|table| table.verify(context));
                match checked {
                    Err(error) if error.kind() == ErrorKind::Fenced => continue,
                    checked => report.errors.extend(checked.err()),
                }
                report.files += 1;
                report.bytes += file.size_bytes;
                progress(report.bytes, total);
            }
        }
        self.inner.verify_logs(&mut report);
        // A read-only database has read the manifest for its picture, and a writer may be
        // replacing it now.
        if !self.inner.options.read_only {
            report.errors.extend(self.inner.manifest.lock().verify().err());
        }
        Ok(report)
    }
}
