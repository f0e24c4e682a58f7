//! Why a file is created or read: what placement, rate limiting and statistics go by.

/// What kind of file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileClass {
    /// Write-ahead log segment.
    Wal,
    /// Sorted string table (key SST).
    Sst,
    /// Manifest, the pointer to it, identity and lock files.
    Manifest,
    /// Anything else (settings, exports).
    Other,
}

/// Who does the I/O, and for what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IoPurpose {
    /// A user's read.
    ForegroundRead,
    /// A user's write (log append, manifest edit on an API call).
    ForegroundWrite,
    /// Opening a database: reading manifest and log.
    Recovery,
    /// A memtable flush.
    Flush,
    /// A compaction from level `from` to level `to`.
    Compaction {
        /// Level of the upper inputs.
        from: u8,
        /// Level of the outputs.
        to: u8,
    },
    /// Garbage collection of separated values.
    Gc,
    /// Ingestion of external files.
    Ingest,
    /// Checking checksums, dumping, copying a checkpoint.
    Maintenance,
}

/// The context of one file creation or read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IoContext {
    /// What kind of file.
    pub class: FileClass,
    /// Who does it, and for what.
    pub purpose: IoPurpose,
    /// The LSM level that the file belongs to, when it is an SST.
    pub level: Option<u8>,
    /// The column family whose levels it counts in, where that is known: a number of its own on the
    /// file system (an engine's own, which has one database there).
    pub family: Option<u32>,
}

impl IoContext {
    /// A context without a level.
    #[must_use]
    pub const fn new(class: FileClass, purpose: IoPurpose) -> Self {
        Self { class, purpose, level: None, family: None }
    }

    /// A context of an SST of `level`.
    #[must_use]
    pub fn sst(purpose: IoPurpose, level: u8) -> Self {
        Self { level: Some(level), ..Self::new(FileClass::Sst, purpose) }
    }

    /// The same of the levels of a column family.
    #[must_use]
    pub fn of_family(self, family: u32) -> Self {
        Self { family: Some(family), ..self }
    }

    /// A context of a manifest or other bookkeeping file.
    #[must_use]
    pub fn manifest(purpose: IoPurpose) -> Self {
        Self::new(FileClass::Manifest, purpose)
    }
}
