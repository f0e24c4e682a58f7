//! The records of a volume's namespace, and the volume's value in the register, as values and as
//! bytes. `docs/formats/volume.md` has the tables.
//!
//! All functions are pure. Failure: the decoders check all bounds, and return `None` for bytes that
//! are no record.

use std::path::PathBuf;

use archipelago_base::Epoch;
use archipelago_env::FileClass;

use crate::blob::BlobRef;
use crate::ids::{LogId, VolumeId};
use crate::log::Layout;

/// Number of a file in its volume, which is never used twice. Names come and go; the number stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct FileKey(pub(crate) u64);

/// The bytes of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// The bytes stand in the record: files that are written whole and small.
    Inline(Vec<u8>),
    /// A sealed blob.
    Blob(BlobRef),
    /// A log after inline bytes. A file that grew out of its record keeps its first bytes there, so
    /// that no moment exists at which neither the record nor the log has them. `len_bytes` is the
    /// length of the log, without `head`, once the log has ended.
    Log { head: Vec<u8>, id: LogId, layout: Layout, len_bytes: Option<u64> },
}

/// A file of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileRecord {
    pub(crate) key: FileKey,
    pub(crate) class: FileClass,
    /// Names of the file; one in a record of creation, all in a snapshot.
    pub(crate) names: Vec<PathBuf>,
    pub(crate) content: Content,
    /// Time of the last change of the content, in milliseconds since 1970.
    pub(crate) modified_ms: u64,
}

/// One change of a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Record {
    /// A file was created. It takes its name over from a file that has it.
    File(FileRecord),
    /// The content of a file changed: an inline file was replaced or became a log, a log got a new
    /// layout, or it ended.
    Content { key: FileKey, content: Content, modified_ms: u64 },
    /// A file got another name, which it may take over from another file. Or a directory did, with
    /// all files in it.
    Rename { from: PathBuf, to: PathBuf },
    /// A file got one more name.
    Link { from: PathBuf, to: PathBuf },
    /// A name was removed.
    Remove { path: PathBuf },
    /// A directory was created, with those above it.
    MakeDir { path: PathBuf },
    /// A directory was removed, with all files in it.
    RemoveDir { path: PathBuf },
    /// File numbers from `next` on were never used.
    Next { next: u64 },
}

/// The value of a volume in the register, under `volume/NAME`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct VolumeRecord {
    pub(crate) volume: VolumeId,
    /// Epoch of the newest owner; it grows with every take-over.
    pub(crate) epoch: Epoch,
    /// The owner as people know it: host, process id and address.
    pub(crate) owner: String,
    /// Random number of the opening. The owner recognises its own value by it after a swap whose
    /// outcome it did not learn.
    pub(crate) opening: [u8; 16],
    /// Length of the lease in milliseconds; 0 if no process holds it.
    pub(crate) lease_ms: u64,
    /// Number of renewals of the lease by this owner.
    pub(crate) renewals: u64,
    /// Log of the namespace's newest generation; `None` before the first one.
    pub(crate) namespace: Option<(LogId, Layout)>,
    /// Number that the engine takes for that of the machine's boot. It changes when a recovery may
    /// have lost bytes without a sync.
    pub(crate) boot_id: [u8; 16],
}
