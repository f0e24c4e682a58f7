//! The files of jobs: which ones a job reads and writes, and how owner and executor reach them.
//!
//! A database lies in a directory, which its executors reach under the same path, or in a volume of
//! a storage cluster. In a volume only the owner may name files. So an attempt of a job in a volume
//! gets a grant: blobs that it reads, and identities of blobs that it may write. The owner names
//! the outputs in one commit before it hands them to the engine, which opens them, compares them
//! with their metadata, and installs them.
//!
//! Invariants:
//! 1. An owner names only files of the attempt: each has a number of the spec and a blob of the
//!    grant.
//! 2. Each identity of an attempt is named or given up in the end, unless no executor got the
//!    grant.
//! 3. A job runs only at an executor that reaches its files. The names of the executor say which
//!    places it reaches.
//!
//! Thread-safety: the types are plain values; one thread at a time uses a [`PreparedJob`].
//! Failure: every error of a returned job becomes the kind `Io`, because `Corrupt` would make the
//! database read-only. Only `Fenced` keeps its kind.
//! Cost: a grant has about 120 bytes for each input. The names of the outputs take a round trip.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use archipelago_base::{Error, ErrorKind, FileNo, Result};
use archipelago_engine::compaction::job::CompactionSpec;
use archipelago_engine::executor::wire::{self, Message};
use archipelago_engine::file_meta::{invalid_file_name, sst_name, value_file_name};
use archipelago_engine::flush::FlushSpec;
use archipelago_engine::gc::job::GcSpec;
use archipelago_engine::job::JobOutput;
use archipelago_engine::job::spec::{FileNumbers, OutputSpec};
use archipelago_store::{BlobGrant, PendingOutputs, StoreFs, Stores, WrittenBlobs};

use crate::job::Payload;
use crate::parcel::{ImageUse, JobImages, JobParcel};

/// Name that an executor has if it reaches shared directories.
pub(super) const DIRECTORIES: &str = "files in directories";

/// Name that an executor has if it reaches the volumes of this storage cluster.
pub(super) fn volumes_of(cluster: &str) -> String {
    format!("volumes of storage cluster {cluster}")
}

/// The volume that holds a database, for the owner of both.
#[derive(Clone, Debug)]
pub struct VolumeFiles {
    /// File system of the volume.
    pub files: Arc<StoreFs>,
    /// Identity of the storage cluster.
    pub cluster: String,
}

/// A storage cluster, as an executor reaches it.
#[derive(Clone, Debug)]
pub struct VolumePool {
    /// The parts of the cluster.
    pub stores: Stores,
    /// Identity of the storage cluster.
    pub cluster: String,
}

/// Files that a job reads and may write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct JobFiles {
    dir: PathBuf,
    /// Names of the files that it reads. Those that it replaces come first.
    inputs: Vec<String>,
    /// Number of the files that it replaces.
    replaced: usize,
    /// Numbers that tables and value files of the job may have.
    numbers: FileNumbers,
    invalid: FileNumbers,
}

impl JobFiles {
    /// The files of a compaction.
    pub(super) fn of_compaction(spec: &CompactionSpec) -> Self {
        let tables = spec.inputs.iter().map(|input| sst_name(FileNo(input.meta.no)));
        let values = spec.output.values.files.iter();
        let values = values.map(|file| value_file_name(FileNo(file.no)));
        Self::of(&spec.output, tables.chain(values).collect(), spec.inputs.len())
    }

    /// The files of a garbage collection.
    pub(super) fn of_gc(spec: &GcSpec) -> Self {
        let values = spec.inputs.iter().map(|input| value_file_name(FileNo(input.meta.no)));
        let invalid = spec.invalid.iter().map(|file| invalid_file_name(FileNo(file.no)));
        Self::of(&spec.output, values.chain(invalid).collect(), spec.inputs.len())
    }

    /// The files of a flush, which reads no files.
    pub(super) fn of_flush(spec: &FlushSpec) -> Self {
        Self::of(&spec.output, Vec::new(), 0)
    }

    fn of(output: &OutputSpec, inputs: Vec<String>, replaced: usize) -> Self {
        let (numbers, invalid) = (output.file_numbers, output.values.invalid);
        Self { dir: output.dir.clone(), inputs, replaced, numbers, invalid }
    }

    /// Names of the files that the job replaces: tables of a compaction, and value files of a
    /// garbage collection. No other job with these files runs at the same time, except for parts of
    /// the same compaction.
    pub(super) fn replaced(&self) -> &[String] {
        &self.inputs[..self.replaced]
    }

    /// Number of files that the job can create.
    fn outputs(&self) -> usize {
        usize::try_from(self.numbers.count.saturating_add(self.invalid.count)).unwrap_or(usize::MAX)
    }

    /// Checks that the blobs are those of the output, and that the files have numbers of the
    /// attempt. Errors: `Io`.
    fn check(&self, output: &JobOutput, written: &WrittenBlobs) -> Result<()> {
        let is_in =
            |no: u64, of: FileNumbers| no.checked_sub(of.first).is_some_and(|at| at < of.count);
        let tables = output.files.iter().map(|file| file.no);
        let values = output.value_files.iter().map(|file| file.no);
        let mut regular = tables.chain(values);
        let mut invalid = output.invalid_files.iter().map(|file| file.no);
        if !regular.all(|no| is_in(no, self.numbers)) || !invalid.all(|no| is_in(no, self.invalid))
        {
            return Err(Error::new(ErrorKind::Io, "an output has a number of another attempt"));
        }
        let named: BTreeSet<String> = output.file_names().collect();
        let sealed: BTreeSet<String> = written.files.iter().map(|file| file.name.clone()).collect();
        match named == sealed {
            true => Ok(()),
            false => Err(Error::new(ErrorKind::Io, "the blobs are not those of the output")),
        }
    }
}

/// A job that is ready to leave the owner.
#[derive(Debug)]
pub(super) struct PreparedJob {
    files: JobFiles,
    /// Identities of the outputs in a volume.
    pending: Option<PendingOutputs>,
}

impl PreparedJob {
    /// Prepares an attempt of the job `spec`, which may write `bytes_per_s` (0 for no limit), and
    /// returns the package for its executor. Errors: those of [`StoreFs::grant`].
    pub(super) fn new(
        files: JobFiles,
        spec: Vec<u8>,
        images: Option<JobImages>,
        bytes_per_s: u64,
        volume: Option<&VolumeFiles>,
    ) -> Result<(Self, Payload)> {
        let granted = volume.map(|of| of.files.grant(&files.dir, &files.inputs, files.outputs()));
        let (grant, pending) = granted.transpose()?.unzip();
        let package = JobParcel::Package { spec: spec.into(), grant, images, bytes_per_s };
        let package = package.encode();
        Ok((Self { files, pending }, package.into()))
    }

    /// Ends a job whose package went to no executor, so that no file has to be given up.
    pub(super) fn unused(self) {
        if let Some(pending) = self.pending {
            pending.unused();
        }
    }

    /// Decodes what an executor has returned, and names its outputs durably. Errors: `Fenced`, and
    /// `Io` for everything else. After an error the outputs are given up.
    pub(super) fn accept(self, returned: &Payload) -> Result<AcceptedOutput> {
        self.try_accept(returned).map_err(|error| match error.kind() {
            ErrorKind::Fenced => error,
            _ => trouble(error),
        })
    }

    fn try_accept(self, returned: &Payload) -> Result<AcceptedOutput> {
        let parcel = JobParcel::decode(&returned.0);
        let Ok(JobParcel::Return { output, written, images, limited_bytes }) = parcel else {
            return Err(Error::new(ErrorKind::Io, "an executor returned something else"));
        };
        let output: JobOutput = wire::decode(&output.0)?;
        match (self.pending, written) {
            (None, None) => {}
            (Some(pending), Some(written)) => {
                self.files.check(&output, &written)?;
                pending.name(&written)?;
            }
            (None, Some(_)) | (Some(_), None) => {
                let what = "owner and executor have the files of the job in different places";
                return Err(Error::new(ErrorKind::Io, what));
            }
        }
        Ok(AcceptedOutput { output, images, limited_bytes })
    }
}

/// Turns an error into one of kind `Io`, which does not make the database read-only.
fn trouble(error: Error) -> Error {
    let context = "the output of an offloaded job cannot be used";
    Error::with_source(ErrorKind::Io, context, error)
}

/// Parts of a return parcel that an owner uses.
#[derive(Debug)]
pub(super) struct AcceptedOutput {
    /// Output of the job.
    pub(super) output: JobOutput,
    /// How the executor got the images of a flush.
    pub(super) images: Option<ImageUse>,
    /// Bytes that the executor has charged to the job's part of the rate limit.
    pub(super) limited_bytes: u64,
}

/// A package as an executor reads it.
#[derive(Debug)]
pub(super) struct OpenedPackage {
    /// Spec of the job.
    pub(super) spec: DecodedSpec,
    /// Files of the job, if they lie in a volume.
    pub(super) grant: Option<BlobGrant>,
    /// Bytes a second that the job may write; 0 for no limit.
    pub(super) bytes_per_s: u64,
}

/// The spec of a job that an executor got.
#[derive(Debug)]
pub(super) enum DecodedSpec {
    /// The spec of a flush, with the images of its shards.
    Flush(FlushSpec, JobImages),
    /// The spec of a compaction.
    Compaction(CompactionSpec),
    /// The spec of a garbage collection.
    Gc(GcSpec),
}

impl DecodedSpec {
    /// Decodes the package of an attempt. Errors: `Unsupported` for a package or a kind of job that
    /// this build does not know; `Corrupt` for a damaged spec.
    pub(super) fn of(package: &Payload) -> Result<OpenedPackage> {
        let parcel = JobParcel::decode(&package.0);
        let Ok(JobParcel::Package { spec, grant, images, bytes_per_s }) = parcel else {
            return Err(Error::unsupported("the package of the job cannot be read"));
        };
        let decoded = match spec.0.get(1) {
            Some(&FlushSpec::TAG) => {
                let none = || Error::unsupported("the package of the flush has no images");
                Self::Flush(wire::decode(&spec.0)?, images.ok_or_else(none)?)
            }
            Some(&CompactionSpec::TAG) => Self::Compaction(wire::decode(&spec.0)?),
            Some(&GcSpec::TAG) => Self::Gc(wire::decode(&spec.0)?),
            _ => {
                return Err(Error::unsupported("this executor does not know the kind of the job"));
            }
        };
        Ok(OpenedPackage { spec: decoded, grant, bytes_per_s })
    }

    /// How the job writes its outputs.
    pub(super) fn output(&self) -> &OutputSpec {
        match self {
            Self::Flush(spec, _) => &spec.output,
            Self::Compaction(spec) => &spec.output,
            Self::Gc(spec) => &spec.output,
        }
    }
}

#[cfg(test)]
mod tests {
    use archipelago_engine::compaction::job::Input;
    use archipelago_engine::file_meta::FileMeta;
    use archipelago_engine::gc::job::{GcInput, Validity};
    use archipelago_engine::gc::windows::ReadaheadLimits;
    use archipelago_engine::job::below::Below;
    use archipelago_engine::job::spec::{Retention, ValueSpec};
    use archipelago_engine::key::KeyRange;
    use archipelago_engine::options::Compression;
    use archipelago_engine::table_content::TableContent;
    use archipelago_engine::value_ref::{InvalidFileMeta, ValueFileMeta, ValueRefs};

    use super::*;

    fn table(no: u64) -> FileMeta {
        FileMeta {
            no,
            unique_id: [1; 16],
            size_bytes: 9,
            checksum: 0,
            smallest: b"a".to_vec(),
            largest: b"c".to_vec(),
            largest_exclusive: false,
            smallest_seq: 1,
            largest_seq: 2,
            entries: 2,
            deletions: 0,
            range_deletions: 0,
            raw_bytes: 9,
            global_seq: None,
            median_key: b"b".to_vec(),
            created_unix_ms: 0,
            content: TableContent::default(),
            refs: ValueRefs::default(),
        }
    }

    fn value_file(no: u64) -> ValueFileMeta {
        ValueFileMeta {
            no,
            unique_id: [1; 16],
            size_bytes: 9,
            checksum: 0,
            keys_offset: 5,
            smallest: b"a".to_vec(),
            largest: b"c".to_vec(),
            smallest_seq: 1,
            largest_seq: 2,
            records: 1,
            created_unix_ms: 0,
            basis: 0,
        }
    }

    fn output(files: Vec<ValueFileMeta>) -> OutputSpec {
        OutputSpec {
            cf_name: "default".to_owned(),
            dir: "/db".into(),
            level: 1,
            file_numbers: FileNumbers { first: 90, count: 2 },
            unique_seed: 1,
            target_file_bytes: 9,
            cuts: Vec::new(),
            grandparents: Vec::new(),
            block_bytes: 4096,
            compression: Compression::None,
            bloom_bits_per_key: 10,
            created_unix_ms: 0,
            direct_io: false,
            values: ValueSpec { files, ..ValueSpec::default() },
        }
    }

    #[test]
    fn job_replaces_no_files_that_other_jobs_read() {
        let compaction = CompactionSpec {
            cf: 0,
            from: 0,
            inputs: [1, 2].map(|no| Input { level: 0, meta: table(no) }).into(),
            range: KeyRange::all(),
            subrange: None,
            retention: Retention {
                visible_seq: 9,
                snapshots: Vec::new(),
                below: Below::Everything,
                now_ms: 0,
                merge_operator: None,
                compaction_filter: None,
            },
            output: output(vec![value_file(3)]),
            readahead_bytes: 0,
            direct_reads: false,
        };
        let files = JobFiles::of_compaction(&compaction);
        assert_eq!(files.replaced(), [1, 2].map(|no| sst_name(FileNo(no))));
        assert_eq!(files.inputs[2..], [value_file_name(FileNo(3))]);
        let valid = Validity::Invalid { ancestors: Vec::new(), records: 1 };
        let notes = InvalidFileMeta {
            no: 4,
            unique_id: [1; 16],
            size_bytes: 9,
            checksum: 0,
            records: 1,
            install_no: 1,
            names: vec![3],
        };
        let collection = GcSpec {
            cf: 0,
            inputs: vec![GcInput { meta: value_file(3), valid }],
            invalid: vec![notes],
            output: output(Vec::new()),
            basis: 1,
            readahead: ReadaheadLimits {
                gap_bytes_max: 0,
                valid_percent_min: 0,
                window_bytes_max: 0,
            },
            direct_reads: false,
        };
        let files = JobFiles::of_gc(&collection);
        assert_eq!(files.replaced(), [value_file_name(FileNo(3))]);
        assert_eq!(files.inputs[1..], [invalid_file_name(FileNo(4))]);
    }
}
