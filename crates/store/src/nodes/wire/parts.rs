//! The values that messages consist of, and the reasons of refusals.
//!
//! The types are plain values, and their functions are pure.

use std::fmt;

use archipelago_base::codec::Reader;
use archipelago_base::wire::Wire;
use archipelago_base::{Epoch, Error, ErrorKind, Result, wire_enum, wire_struct};
use archipelago_env::FileClass;
use archipelago_fabric::{ClusterId, NodeId};

use super::super::StorageId;
use super::super::layout::{BlobLayout, CellSize, ChecksumContext, Scheme};
use super::super::log::{ExtentRecord, LogLayout};
use super::super::placement::{NodeReport, WritePurpose};
use super::super::register::caspaxos::RootSet;
use crate::ids::{BlobId, LogId, VolumeId};

macro_rules! wire_tuple {
    ($($name:ident)*) => { $(
        impl Wire for $name {
            #[inline]
            fn put(&self, out: &mut Vec<u8>) {
                self.0.put(out);
            }
            #[inline]
            fn get(reader: &mut Reader<'_>) -> Option<Self> {
                Wire::get(reader).map(Self)
            }
        }
    )* };
}

macro_rules! wire_bytes {
    ($($name:ident)*) => { $(
        impl Wire for $name {
            #[inline]
            fn put(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.0);
            }
            #[inline]
            fn get(reader: &mut Reader<'_>) -> Option<Self> {
                reader.take(16)?.try_into().ok().map(Self)
            }
        }
    )* };
}

wire_tuple! { StorageId }
wire_bytes! { BlobId LogId VolumeId }
wire_enum!(WritePurpose { Ingestion = 1, Repair = 2, Job = 3, Log = 4 });
wire_struct!(RootSet { number, members });
wire_struct!(ExtentRecord { number, start, end, nodes, is_sealed });
wire_struct!(LogLayout { extents, is_ended, may_miss_unsynced });

/// One byte for the kind, and one for the copies or for the cell's size as a power of two.
impl Wire for Scheme {
    fn put(&self, out: &mut Vec<u8>) {
        let (kind, number): (u8, u8) = match self {
            Self::Replicas(copies) => (1, *copies),
            Self::Rs42(CellSize::Small) => (2, 18),
            Self::Rs42(CellSize::Large) => (2, 20),
        };
        kind.put(out);
        number.put(out);
    }
    fn get(reader: &mut Reader<'_>) -> Option<Self> {
        Some(match (reader.u8()?, reader.u8()?) {
            (1, copies) if copies > 0 => Self::Replicas(copies),
            (2, 18) => Self::Rs42(CellSize::Small),
            (2, 20) => Self::Rs42(CellSize::Large),
            _ => return None,
        })
    }
}

/// A chunk of a blob.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChunkId {
    /// Blob of the chunk.
    pub blob: BlobId,
    /// Index that the checksums of the chunk are bound to
    /// ([`BlobLayout::checksum_index`]): 0 for every replica, and the number of the chunk
    /// with RS(4,2).
    pub index: u8,
}
wire_struct!(ChunkId { blob, index });

impl ChunkId {
    /// The context of the checksums of this chunk.
    #[must_use]
    pub fn checksums(self) -> ChecksumContext {
        ChecksumContext { blob: self.blob, index: self.index }
    }
}

impl fmt::Display for ChunkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.blob, self.index)
    }
}

/// The right to write for a volume. Every write of an owner, or of an executor of its jobs, carries
/// a stamp. A node refuses an epoch below the one that it has promised for the volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stamp {
    /// Volume for which the sender writes.
    pub volume: VolumeId,
    /// Epoch of the volume's owner.
    pub epoch: Epoch,
}
wire_struct!(Stamp { volume, epoch });

/// An extent of a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExtentAt {
    /// Log of the extent.
    pub log: LogId,
    /// Number of the extent.
    pub extent: u32,
}
wire_struct!(ExtentAt { log, extent });

impl fmt::Display for ExtentAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.log, self.extent)
    }
}

/// A node that holds a chunk of a blob.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Holder {
    /// Node that holds a chunk.
    pub storage: StorageId,
    /// Index of its chunk, as in [`ChunkId::index`].
    pub chunk: u8,
}
wire_struct!(Holder { storage, chunk });

/// Version of the holders of a blob: larger ones win. The repairer is part of it, so that two
/// repairs never tie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PlacementEpoch {
    /// Number of changes, which begins with 1.
    pub counter: u64,
    /// Node that made the change; 0 for the writer of the blob.
    pub repairer: StorageId,
}
wire_struct!(PlacementEpoch { counter, repairer });

impl PlacementEpoch {
    /// The epoch of the holders that the writer of a blob has chosen.
    pub const WRITTEN: Self = Self { counter: 1, repairer: StorageId(0) };

    /// Whether a repair has chosen the holders, and not the writer of the blob.
    #[must_use]
    pub fn is_repair(self) -> bool {
        self.repairer != Self::WRITTEN.repairer
    }
}

/// Description of a sealed chunk and of its blob, which the chunk's node stores with the chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkDescriptor {
    /// Chunk that the descriptor describes.
    pub chunk: ChunkId,
    /// Volume and epoch under which the blob was written.
    pub written: Stamp,
    /// Class of the file.
    pub class: FileClass,
    /// Redundancy scheme of the blob.
    pub scheme: Scheme,
    /// Whether the blob has replicas because domains were missing for the RS(4,2) that its writer
    /// wanted. It is false for a blob that is to have replicas, and for one with RS(4,2).
    pub is_coding_due: bool,
    /// Length of the blob in bytes. That of the chunk follows ([`Self::chunk_bytes`]).
    pub blob_bytes: u64,
    /// Version of the holders.
    pub placement: PlacementEpoch,
    /// Nodes of all chunks of the blob, by the index of their chunks.
    pub holders: Vec<Holder>,
    /// Volumes that keep the blob, in ascending order and each once. The chunk is deleted when none
    /// is left.
    pub retaining: Vec<VolumeId>,
}

impl ChunkDescriptor {
    /// The layout of the blob.
    #[must_use]
    pub fn layout(&self) -> BlobLayout {
        BlobLayout { scheme: self.scheme, len_bytes: self.blob_bytes }
    }

    /// Length of the chunk in bytes.
    #[must_use]
    pub fn chunk_bytes(&self) -> u64 {
        self.layout().chunk_len(self.chunk.index)
    }

    /// The hint that a namespace keeps about the blob.
    #[must_use]
    pub fn hint(&self) -> BlobHint {
        let (scheme, placement) = (self.scheme, self.placement);
        BlobHint { scheme, placement, holders: self.holders.clone() }
    }

    /// Whether the fields fit together.
    fn is_sound(&self) -> bool {
        let is_index = |index: u8| is_chunk_index(self.scheme, index);
        is_index(self.chunk.index)
            && self.holders.iter().all(|holder| is_index(holder.chunk))
            && self.retaining.is_sorted_by(|before, after| before < after)
    }
}

/// Whether a chunk of a blob with `scheme` can have this index.
fn is_chunk_index(scheme: Scheme, index: u8) -> bool {
    match scheme {
        Scheme::Replicas(_) => index == 0,
        Scheme::Rs42(_) => index < scheme.chunks(),
    }
}

/// A scheme in a descriptor. Replicas in place of RS(4,2) have a kind of their own.
struct DescribedScheme {
    scheme: Scheme,
    is_coding_due: bool,
}

/// Kind of replicas in place of RS(4,2), where a [`Scheme`] has its kind.
const CODING_DUE: u8 = 3;

impl Wire for DescribedScheme {
    fn put(&self, out: &mut Vec<u8>) {
        match (self.scheme, self.is_coding_due) {
            (Scheme::Replicas(copies), true) => {
                CODING_DUE.put(out);
                copies.put(out);
            }
            (scheme, _) => scheme.put(out),
        }
    }
    fn get(reader: &mut Reader<'_>) -> Option<Self> {
        match [reader.u8()?, reader.u8()?] {
            [CODING_DUE, copies] => {
                let scheme = Scheme::Replicas(copies);
                (copies > 0).then_some(Self { scheme, is_coding_due: true })
            }
            other => {
                let scheme = Scheme::get(&mut Reader::new(&other))?;
                Some(Self { scheme, is_coding_due: false })
            }
        }
    }
}

/// The fields in order. A reader refuses fields that do not fit together.
impl Wire for ChunkDescriptor {
    fn put(&self, out: &mut Vec<u8>) {
        let (scheme, is_coding_due) = (self.scheme, self.is_coding_due);
        self.chunk.put(out);
        self.written.put(out);
        self.class.put(out);
        DescribedScheme { scheme, is_coding_due }.put(out);
        self.blob_bytes.put(out);
        self.placement.put(out);
        self.holders.put(out);
        self.retaining.put(out);
    }
    fn get(reader: &mut Reader<'_>) -> Option<Self> {
        let (chunk, written) = (Wire::get(reader)?, Wire::get(reader)?);
        let class = Wire::get(reader)?;
        let DescribedScheme { scheme, is_coding_due } = DescribedScheme::get(reader)?;
        let descriptor = Self {
            chunk,
            written,
            class,
            scheme,
            is_coding_due,
            blob_bytes: Wire::get(reader)?,
            placement: Wire::get(reader)?,
            holders: Wire::get(reader)?,
            retaining: Wire::get(reader)?,
        };
        descriptor.is_sound().then_some(descriptor)
    }
}

/// Hint about a blob in the namespace: the nodes that a reader asks first. A descriptor with a
/// larger placement epoch corrects it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlobHint {
    /// Redundancy scheme of the blob.
    pub scheme: Scheme,
    /// Version of the holders.
    pub placement: PlacementEpoch,
    /// Nodes of all chunks.
    pub holders: Vec<Holder>,
}

/// The fields in order. A reader refuses an index that no chunk of the scheme has.
impl Wire for BlobHint {
    fn put(&self, out: &mut Vec<u8>) {
        self.scheme.put(out);
        self.placement.put(out);
        self.holders.put(out);
    }
    fn get(reader: &mut Reader<'_>) -> Option<Self> {
        let (scheme, placement) = (Wire::get(reader)?, Wire::get(reader)?);
        let hint = Self { scheme, placement, holders: Wire::get(reader)? };
        let is_sound = hint.holders.iter().all(|holder| is_chunk_index(scheme, holder.chunk));
        is_sound.then_some(hint)
    }
}

/// A range of a chunk, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChunkRange {
    /// Offset of the first byte.
    pub start: u64,
    /// Offset after the last byte.
    pub end: u64,
}
wire_struct!(ChunkRange { start, end });

/// A blob of a volume that a node holds a chunk of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlobEntry {
    /// Identity of the blob.
    pub blob: BlobId,
    /// Epoch under which the blob was written.
    pub epoch: Epoch,
    /// Whether the chunk is sealed. Chunks that are being written are listed as well.
    pub is_sealed: bool,
}
wire_struct!(BlobEntry { blob, epoch, is_sealed });

/// A log of a volume that a node holds an extent of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogEntry {
    /// Identity of the log.
    pub log: LogId,
    /// Largest epoch under which an extent of the log was created on this node.
    pub epoch: Epoch,
}
wire_struct!(LogEntry { log, epoch });

/// The state of a storage node in the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberState {
    /// The node beats to the manager.
    Up,
    /// The node has not beaten to the manager lately.
    Silent,
    /// The node has been silent for so long that another one takes its place in the root set.
    Lost,
    /// The node beats to the manager, and an operator empties it.
    Draining,
}
wire_enum!(MemberState { Up = 1, Silent = 2, Lost = 3, Draining = 4 });

/// Room of a storage node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeSpace {
    /// Bytes that the node may use.
    pub capacity_bytes: u64,
    /// Bytes that the node uses.
    pub used_bytes: u64,
}
wire_struct!(NodeSpace { capacity_bytes, used_bytes });

/// A storage node, as the manager knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StorageMember {
    /// Identity of the node's directory. A node whose disks were emptied has another one.
    pub storage: StorageId,
    /// Identity of the node in the fabric, which the operator chose.
    pub node: NodeId,
    /// Life of the node's process.
    pub life: Epoch,
    /// Endpoints of the node: `tcp:HOST:PORT` or `shm:PATH`.
    pub endpoints: Vec<String>,
    /// Set of nodes that fail together with this one.
    pub domain: String,
    /// State of the node in the cluster.
    pub state: MemberState,
    /// Room of the node.
    pub space: NodeSpace,
}
wire_struct!(StorageMember { storage, node, life, endpoints, domain, state, space });

impl StorageMember {
    /// Figures of the node on which placement depends.
    #[must_use]
    pub fn report(&self) -> NodeReport {
        NodeReport {
            id: self.storage,
            domain: self.domain.clone(),
            capacity_bytes: self.space.capacity_bytes,
            used_bytes: self.space.used_bytes,
            is_up: matches!(self.state, MemberState::Up | MemberState::Draining),
            is_draining: self.state == MemberState::Draining,
        }
    }
}

/// The storage nodes of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Members {
    /// Version of the list, which grows within the life of a manager. A version from another life
    /// differs with overwhelming probability, because its upper half is random.
    pub version: u64,
    /// Identity of the cluster; `None` before it is founded.
    pub cluster: Option<ClusterId>,
    /// The newest root set that a node has reported; number 0 before the cluster is founded.
    pub root_set: RootSet,
    /// All nodes, by identity.
    pub members: Vec<StorageMember>,
    /// Whether the list has every node that is not lost. A manager has such a list when it has
    /// listened for as long as a node may be silent, or if it has founded the cluster itself.
    pub is_complete: bool,
    /// Nodes that an operator has given up for good, by identity. Nodes keep them for managers that
    /// are started later.
    pub forgotten: Vec<StorageId>,
}
wire_struct!(Members { version, cluster, root_set, members, is_complete, forgotten });

impl Members {
    /// The node with this identity.
    #[must_use]
    pub fn member(&self, storage: StorageId) -> Option<&StorageMember> {
        self.members.iter().find(|member| member.storage == storage)
    }

    /// The nodes that may still hold something: all that are not lost. Errors: `Busy` if the list
    /// may lack such a node.
    pub fn awaited(&self) -> Result<Vec<StorageId>> {
        if !self.is_complete {
            return Err(Error::busy(
                "the manager was started lately and may not know all storage nodes yet: repeat \
                 this when it has run for as long as a node may be silent (--lost-after)",
            ));
        }
        let members = self.members.iter().filter(|member| member.state != MemberState::Lost);
        Ok(members.map(|member| member.storage).collect())
    }

    /// Those of `nodes` that are lost. A node that is missing in a complete list is lost.
    #[must_use]
    pub fn lost(&self, nodes: &[StorageId]) -> Vec<StorageId> {
        let is_lost = |node: &StorageId| match self.member(*node) {
            Some(member) => member.state == MemberState::Lost,
            None => self.is_complete,
        };
        nodes.iter().copied().filter(is_lost).collect()
    }

    /// Figures of all nodes on which placement depends.
    #[must_use]
    pub fn reports(&self) -> Vec<NodeReport> {
        self.members.iter().map(StorageMember::report).collect()
    }
}

/// The reason of a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RefusalWhy {
    /// The node has promised a later epoch of the volume, which the refusal names.
    Fenced,
    /// The node is overloaded, or the manager waits for nodes.
    Busy,
    /// The node is as full as writes of this purpose may make it.
    Full,
    /// The chunk or the extent takes no more bytes.
    Sealed,
    /// The node has no such chunk, extent or node.
    NotThere,
    /// The node may have lost unsynced bytes of the extent.
    InLimbo,
    /// The bytes do not begin where those of the chunk or the extent end.
    OutOfOrder {
        /// Offset at which they end: of the chunk, or of the log.
        len: u64,
    },
    /// Stored bytes, or bytes of the request, do not have their checksums.
    Damaged,
    /// The node belongs to another cluster.
    WrongCluster,
    /// The node cannot do this.
    Unsupported,
    /// The node's disk failed.
    Failed,
    /// This manager stands by. Another one is in office, or none is.
    Standby,
    /// The message cannot be read, or is not for this role.
    Malformed,
    /// The copy of a repair would be shorter than the replica that the node has, or had before it
    /// was damaged.
    LongerReplica,
    /// A repair would copy an extent whose log the volume has removed on this node.
    RemovedLog,
}

/// One byte for the reason, and the length behind [`RefusalWhy::OutOfOrder`].
impl Wire for RefusalWhy {
    fn put(&self, out: &mut Vec<u8>) {
        let code: u8 = match self {
            Self::Fenced => 1,
            Self::Busy => 2,
            Self::Full => 3,
            Self::Sealed => 4,
            Self::NotThere => 5,
            Self::InLimbo => 6,
            Self::OutOfOrder { .. } => 7,
            Self::Damaged => 8,
            Self::WrongCluster => 9,
            Self::Unsupported => 10,
            Self::Failed => 11,
            Self::Standby => 12,
            Self::Malformed => 13,
            Self::LongerReplica => 14,
            Self::RemovedLog => 15,
        };
        code.put(out);
        if let Self::OutOfOrder { len } = self {
            len.put(out);
        }
    }
    fn get(reader: &mut Reader<'_>) -> Option<Self> {
        Some(match reader.u8()? {
            1 => Self::Fenced,
            2 => Self::Busy,
            3 => Self::Full,
            4 => Self::Sealed,
            5 => Self::NotThere,
            6 => Self::InLimbo,
            7 => Self::OutOfOrder { len: reader.u64()? },
            8 => Self::Damaged,
            9 => Self::WrongCluster,
            10 => Self::Unsupported,
            11 => Self::Failed,
            12 => Self::Standby,
            13 => Self::Malformed,
            14 => Self::LongerReplica,
            15 => Self::RemovedLog,
            _ => return None,
        })
    }
}

impl RefusalWhy {
    /// The reaction that the caller can choose.
    #[must_use]
    pub fn kind(self) -> ErrorKind {
        match self {
            Self::Fenced => ErrorKind::Fenced,
            Self::Busy | Self::Full | Self::InLimbo | Self::Standby | Self::LongerReplica => {
                ErrorKind::Busy
            }
            Self::NotThere | Self::RemovedLog => ErrorKind::NotFound,
            Self::Damaged => ErrorKind::Corrupt,
            Self::Sealed | Self::OutOfOrder { .. } | Self::WrongCluster | Self::Malformed => {
                ErrorKind::InvalidArgument
            }
            Self::Unsupported => ErrorKind::Unsupported,
            Self::Failed => ErrorKind::Io,
        }
    }
}

impl fmt::Display for RefusalWhy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fenced => f.write_str("another process has taken the volume over"),
            Self::Busy => f.write_str("it is overloaded: try again later"),
            Self::Full => f.write_str("it is too full for such writes: add nodes or free space"),
            Self::Sealed => f.write_str("the object is sealed and takes no more bytes"),
            Self::NotThere => f.write_str("it has no such object"),
            Self::InLimbo => {
                f.write_str("it may have lost unsynced bytes of the extent in a power loss")
            }
            Self::OutOfOrder { len } => write!(f, "it has the bytes before offset {len} only"),
            Self::Damaged => f.write_str("bytes do not have their checksums"),
            Self::WrongCluster => f.write_str(
                "the node belongs to another cluster: correct the addresses, or start the node \
                 with an empty directory",
            ),
            Self::Unsupported => {
                f.write_str("the node cannot do this: it may have another version")
            }
            Self::Failed => f.write_str("its disk failed: look at the node's own messages"),
            Self::Standby => f.write_str("this manager stands by, and another one acts"),
            Self::Malformed => f.write_str("the message cannot be read, or is not for this role"),
            Self::LongerReplica => {
                f.write_str("its own replica of the extent has, or had, more bytes than the copy")
            }
            Self::RemovedLog => f.write_str("the volume has removed the log of the extent"),
        }
    }
}

/// A refusal: its reason, and the explanation of the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Reason of the refusal.
    pub why: RefusalWhy,
    /// Epoch that the node has promised for the volume, for [`RefusalWhy::Fenced`]; 0 otherwise.
    pub epoch: Epoch,
    /// Explanation for operators: the object, and the cause. May be empty.
    pub text: String,
}

impl Refused {
    /// A refusal that `text` explains.
    #[must_use]
    pub fn new(why: RefusalWhy, text: impl Into<String>) -> Self {
        Self { why, epoch: Epoch(0), text: text.into() }
    }

    /// A refusal because the node has promised `epoch`.
    #[must_use]
    pub fn fenced(epoch: Epoch, text: impl Into<String>) -> Self {
        Self { why: RefusalWhy::Fenced, epoch, text: text.into() }
    }

    /// The error for the refusal; `what` names the node and the refused request.
    #[must_use]
    pub fn error(&self, what: impl fmt::Display) -> Error {
        Error::new(self.why.kind(), format!("{what}: {self}"))
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.why)?;
        if self.why == RefusalWhy::Fenced {
            write!(f, " (epoch {})", self.epoch)?;
        }
        if self.text.is_empty() { Ok(()) } else { write!(f, " ({})", self.text) }
    }
}
