//! The context of I/O: its reason, on which placement, rate limits and statistics depend.

use archipelago_base::codec::Reader;
use archipelago_base::wire::Wire;

/// The kind of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileClass {
    /// Write-ahead log segment.
    Wal,
    /// Sorted string table of a level. It holds keys, with small values or with references.
    Sst,
    /// Manifest, the pointer to it, identity and lock files.
    Manifest,
    /// Any other file, such as settings and exports.
    Other,
    /// Value file: separated values of a column family. It belongs to no level.
    ValueSst,
}

impl FileClass {
    /// Whether the file is a table or a value file. Such a file is written once, keeps its length,
    /// is read at random, and may be large. So handles, drivers and placement treat both alike.
    #[must_use]
    pub const fn is_table(self) -> bool {
        matches!(self, Self::Sst | Self::ValueSst)
    }

    /// The number of the class in stored formats, which never changes.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Wal => 1,
            Self::Sst => 2,
            Self::Manifest => 3,
            Self::Other => 4,
            Self::ValueSst => 5,
        }
    }

    /// The class of a number in a stored format; `None` if no class has it.
    #[must_use]
    pub const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::Wal,
            2 => Self::Sst,
            3 => Self::Manifest,
            4 => Self::Other,
            5 => Self::ValueSst,
            _ => return None,
        })
    }
}

/// The number of the class.
impl Wire for FileClass {
    fn put(&self, out: &mut Vec<u8>) {
        self.code().put(out);
    }
    fn get(reader: &mut Reader<'_>) -> Option<Self> {
        Self::from_code(reader.u8()?)
    }
}

/// The purpose of I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IoPurpose {
    /// A read of a user.
    ForegroundRead,
    /// A write of a user: a log append, or a manifest edit of an API call.
    ForegroundWrite,
    /// The opening of a database, which reads manifest and log.
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
    /// Garbage collection of separated values. Its output is no write of a user.
    Gc,
    /// Ingestion of external files.
    Ingest,
    /// Verification of checksums, dumps, and copies of a checkpoint.
    Maintenance,
}

/// The context in which a file is created or read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IoContext {
    /// The kind of the file.
    pub class: FileClass,
    /// The purpose of the I/O.
    pub purpose: IoPurpose,
    /// Level of the file in the LSM tree, if it is an SST. A value file has none.
    pub level: Option<u8>,
    /// Column family whose levels the file belongs to, if it is known. The number is unique within
    /// the file system, because an engine has one database there.
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

    /// A context of an SST of `level` of a column family.
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
