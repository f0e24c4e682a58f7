//! The messages of the store, one variant each: requests and answers.

use std::fmt;

use archipelago_base::codec::put_u8;
use archipelago_base::wire::Malformed;
use archipelago_base::{Epoch, Error, wire_messages};
use archipelago_env::FileClass;
use archipelago_fabric::{ClusterId, NodeId, RouteMessage};

use super::super::StorageId;
use super::super::placement::WritePurpose;
use super::super::register::caspaxos::RootSet;
use super::super::register::caspaxos::acceptor::{AcceptorAnswer, AcceptorRequest};
use super::parts::{
    BlobEntry, ChunkDescriptor, ChunkId, ChunkRange, ExtentAt, LogEntry, Members, PlacementEpoch,
    RefusalWhy, Refused, Stamp,
};
use super::repair::{CodingDue, HeldChunk, MissingChunk, SealedExtent};
use super::status::{StorageClusterStatus, StorageReport};
use super::{VERSION, envelope};
use crate::ids::{BlobId, LogId, VolumeId};

wire_messages! {
    /// A message between clients, storage nodes and the manager. Offsets of logs are those of the
    /// log, not of the extent.
    StoreMessage, version VERSION {
    /// Client → node: append the payload to a chunk that is being written. A piece at offset 0
    /// begins the chunk. Bytes that the chunk has already are not written again. The answer is
    /// *done*, before the bytes are durable.
    PutChunk = 1 {
        /// Chunk to append to.
        chunk: ChunkId,
        /// Volume and epoch of the writer; `None` for a repair, which needs no fence.
        stamp: Option<Stamp>,
        /// Class of the file.
        class: FileClass,
        /// Purpose of the write, which decides how full the node may become.
        purpose: WritePurpose,
        /// Offset in the chunk of the first byte, at a boundary of pieces.
        offset: u64,
        /// Checksums of the pieces ([`ChunkId::checksums`]), all of which are whole except for the
        /// last one of the chunk.
        crcs: Vec<u32>,
    }
    /// Client → node: seal a chunk that has all its bytes. The answer is *done* when bytes,
    /// checksums and descriptor are durable. A chunk that is sealed already keeps the descriptor
    /// with the larger placement epoch, and the volumes of both.
    SealChunk = 2 {
        /// Volume and epoch of the writer; `None` for a repair.
        stamp: Option<Stamp>,
        /// New descriptor of the chunk.
        descriptor: ChunkDescriptor,
    }
    /// Client → node: read ranges of a chunk. Chunks that are being written can be read as well, so
    /// that a writer can copy them to another node.
    ReadChunk = 3 {
        /// Chunk to read.
        chunk: ChunkId,
        /// Ranges, in any order. The node extends each one to whole pieces.
        ranges: Vec<ChunkRange>,
    }
    /// Node → client: answer to [`StoreMessage::ReadChunk`]. The payload has the whole pieces of
    /// all ranges, one range after the other.
    ChunkBytes = 4 {
        /// Checksums of the pieces of the payload, as they are stored. The node has not compared
        /// them with the bytes; the client does.
        crcs: Vec<u32>,
    }
    /// Client → node: return the descriptors of your sealed chunks of this blob.
    Describe = 5 { /** Blob in question. */ blob: BlobId }
    /// Node → client: answer to [`StoreMessage::Describe`]. Empty if the node has no sealed chunk
    /// of the blob.
    Descriptors = 6 { /** Descriptors of the node's chunks. */ descriptors: Vec<ChunkDescriptor> }
    /// Client → node: replace the descriptor of a sealed chunk, because its holders have changed.
    /// The chunk keeps the descriptor with the larger placement epoch, and the volumes of both. The
    /// answer is *done* when that is durable.
    Redescribe = 7 { /** The new descriptor. */ descriptor: ChunkDescriptor }
    /// Client → node: add the volume of the stamp to the sets of these blobs. A request that
    /// arrives after the removal of that volume is fenced, so it keeps no blob for ever. The answer
    /// is *done* when the sets are durable for all of them.
    Retain = 8 {
        /// Blobs to keep, at most 4,096.
        blobs: Vec<BlobId>,
        /// Volume that keeps them, and the epoch of its owner.
        stamp: Stamp,
    }
    /// Client → node: take the volume of the stamp out of the sets of these blobs, sealed or not,
    /// and delete those that have none left. A blob that the node does not have is no error.
    Release = 9 {
        /// Blobs to release, at most 4,096.
        blobs: Vec<BlobId>,
        /// Volume that releases them, and the epoch of its owner.
        stamp: Stamp,
    }
    /// Client → node: drop your chunks of this blob that are not sealed, because another node has
    /// taken their place, or because the writer gave the blob up.
    AbandonBlob = 10 {
        /// Blob to abandon.
        blob: BlobId,
        /// Volume and epoch of the writer.
        stamp: Stamp,
    }
    /// Client → node: list the blobs that this volume retains or writes.
    ListBlobs = 11 {
        /// Volume in question.
        volume: VolumeId,
        /// Blob after which the list continues.
        after: Option<BlobId>,
    }
    /// Node → client: answer to [`StoreMessage::ListBlobs`].
    Blobs = 12 {
        /// Blobs in ascending order, at most 4,096.
        blobs: Vec<BlobEntry>,
        /// Whether further blobs follow.
        has_more: bool,
    }
    /// Repairer → node: delete your copy of this chunk, because the holders of this placement
    /// epoch, which have all confirmed their chunks, do not include you. Refused if the node knows
    /// a larger one, or is among its holders.
    DropChunk = 13 {
        /// Chunk in question.
        chunk: ChunkId,
        /// Placement epoch whose holders do not include the node.
        placement: PlacementEpoch,
    }
    /// Client → node: these bytes did not have their checksums. The node checks the chunk.
    ReportDamage = 14 {
        /// Chunk in question.
        chunk: ChunkId,
        /// Offset of the damaged piece.
        offset: u64,
    }
    /// Client → node: append the payload to an extent, which is created by its first append. Bytes
    /// that the extent has already are not written again. The answer is progress.
    Append = 20 {
        /// Extent to append to.
        at: ExtentAt,
        /// Volume and epoch of the writer.
        stamp: Stamp,
        /// Class of the file.
        class: FileClass,
        /// Offset at which the extent begins.
        extent_start: u64,
        /// Offset of the first byte of the payload.
        start: u64,
        /// Whether the node syncs before it answers.
        is_synced: bool,
    }
    /// Node → client: how far the extent is. The bytes before `written` survive a kill of the
    /// node's process, and those before `synced` a power loss.
    Progress = 21 {
        /// Offset through which the extent was written.
        written: u64,
        /// Offset through which it was synced.
        synced: u64,
    }
    /// Client → node: sync an extent. The answer is progress.
    SyncLog = 22 {
        /// Extent in question.
        at: ExtentAt,
        /// Volume and epoch of the writer.
        stamp: Stamp,
    }
    /// Client → node: end an extent, drop the bytes behind the end, and sync. The node must have
    /// all bytes before the end. An extent without bytes is created, so that it takes no late
    /// append. The answer is progress up to the end.
    SealLog = 23 {
        /// Extent in question.
        at: ExtentAt,
        /// Volume and epoch of the sender.
        stamp: Stamp,
        /// Class of the file.
        class: FileClass,
        /// Offset at which the extent begins.
        extent_start: u64,
        /// Offset at which it ends.
        end: u64,
    }
    /// Client → node: promise the epoch durably for this extent, even if you do not have it. Then
    /// report your replica of the extent.
    FenceLog = 24 {
        /// Extent in question.
        at: ExtentAt,
        /// Volume and epoch of the new owner.
        stamp: Stamp,
    }
    /// Client → node: report your replica of this extent, without a promise.
    InspectLog = 25 { /** The extent. */ at: ExtentAt }
    /// Node → client: answer to [`StoreMessage::FenceLog`] and [`StoreMessage::InspectLog`].
    ReplicaIs = 26 {
        /// Offset after the longest prefix with valid checksums; 0 if the node has no byte of the
        /// extent.
        valid_end: u64,
        /// Offset through which the extent was synced.
        synced: u64,
        /// Offset at which the extent was sealed, if it was.
        sealed: Option<u64>,
        /// Whether the node may have lost unsynced bytes of the extent.
        is_in_limbo: bool,
    }
    /// Client → node: read an extent.
    ReadLog = 27 {
        /// Extent in question.
        at: ExtentAt,
        /// Offset of the first byte.
        start: u64,
        /// Offset after the last byte.
        end: u64,
    }
    /// Node → client: answer to [`StoreMessage::ReadLog`]. The payload has the bytes from the start
    /// on. It is shorter than the range if the valid bytes end before, or at the limit of an
    /// answer.
    LogBytes = 28 {}
    /// Recovery → node: drop what you have of this extent from `start` on, and append the payload.
    /// The extent is created if it does not exist, and leaves limbo when it is sealed. The answer
    /// is progress.
    PutLog = 29 {
        /// Extent in question.
        at: ExtentAt,
        /// Volume and epoch of the new owner.
        stamp: Stamp,
        /// Class of the file.
        class: FileClass,
        /// Offset at which the extent begins.
        extent_start: u64,
        /// Offset of the first byte of the payload.
        start: u64,
    }
    /// Client → node: remove all extents of this log. A log that the node does not have is no
    /// error.
    RemoveLog = 30 {
        /// Log to remove.
        log: LogId,
        /// Volume and epoch of the owner.
        stamp: Stamp,
    }
    /// Client → node: list the logs of this volume.
    ListLogs = 31 {
        /// Volume in question.
        volume: VolumeId,
        /// Log after which the list continues.
        after: Option<LogId>,
    }
    /// Node → client: answer to [`StoreMessage::ListLogs`].
    Logs = 32 {
        /// Logs in ascending order, at most 4,096.
        logs: Vec<LogEntry>,
        /// Whether further logs follow.
        has_more: bool,
    }
    /// Client → node: handle this request as a member of the root set.
    Acceptor = 40 { /** The request. */ request: AcceptorRequest }
    /// Node → client: answer to [`StoreMessage::Acceptor`]. The state behind it is durable.
    AcceptorIs = 41 { /** The answer. */ answer: AcceptorAnswer }
    /// Manager → node: you belong to this new cluster and its first root set. Refused if the node
    /// belongs to another cluster or knows another root set. A node that is no member keeps both as
    /// known.
    Found = 42 {
        /// Identity of the cluster.
        cluster: ClusterId,
        /// The first root set.
        root_set: RootSet,
    }
    /// Client → node: promise this epoch of the volume durably, and refuse smaller ones from then
    /// on.
    PromiseEpoch = 43 { /** The volume, and the epoch of its new owner. */ stamp: Stamp }
    /// Client → node: return your state.
    NodeStatus = 50 {}
    /// Node → client: answer to [`StoreMessage::NodeStatus`].
    NodeStatusIs = 51 {
        /// Identity of the node.
        storage: StorageId,
        /// Life of the node's process.
        life: Epoch,
        /// Set of nodes that fail together with this one.
        domain: String,
        /// Cluster of the node, if it belongs to one.
        cluster: Option<ClusterId>,
        /// The newest root set that the node knows.
        root_set: Option<RootSet>,
        /// State and counters of the node.
        report: StorageReport,
    }
    /// Operator → node: begin a round of the scrub now.
    Scrub = 52 {}
    /// Node → manager: I am alive.
    StorageBeat = 60 {
        /// Identity of the node.
        storage: StorageId,
        /// Identity of the node in the fabric.
        node: NodeId,
        /// Life of the node's process.
        life: Epoch,
        /// Endpoints of the node.
        endpoints: Vec<String>,
        /// Set of nodes that fail together with this one.
        domain: String,
        /// Cluster of the node, if it belongs to one.
        cluster: Option<ClusterId>,
        /// The newest root set that the node knows.
        root_set: Option<RootSet>,
        /// Whether an operator empties the node, as a manager said last.
        is_draining: bool,
        /// Version of the members that the node knows.
        version: u64,
        /// State and counters of the node.
        report: StorageReport,
        /// Nodes that an operator has given up for good, as managers have said.
        forgotten: Vec<StorageId>,
    }
    /// Manager → node, client: answer to [`StoreMessage::StorageBeat`] and
    /// [`StoreMessage::AskMembers`]. A node keeps the cluster, a newer root set, whether it drains,
    /// and the nodes that were given up.
    MembersAre = 61 {
        /// The members, if their version differs from that of the request.
        members: Option<Members>,
        /// Milliseconds until the next beat of a node is due, or until a client should ask again.
        beat_ms: u64,
    }
    /// Client → manager: return the members.
    AskMembers = 62 { /** Version that the client knows; 0 if it knows none. */ version: u64 }
    /// Operator → manager: empty this node, or do not empty it any more.
    DrainNode = 63 {
        /// Node in question.
        storage: StorageId,
        /// Whether the node is to be emptied.
        is_draining: bool,
    }
    /// Operator → manager: this node never returns.
    ForgetNode = 64 { /** The node. */ storage: StorageId }
    /// Operator → manager: return the state of the storage nodes.
    StorageStatus = 65 {}
    /// Manager → operator: answer to [`StoreMessage::StorageStatus`].
    StorageStatusIs = 66 { /** State of the storage nodes. */ status: StorageClusterStatus }
    /// Manager → node: list the chunks that need a repair, as far as you are the first of their
    /// holders that answers, and those of yours that you cannot read.
    ListHeld = 67 {
        /// Nodes that keep their chunks. A chunk that another node holds needs a repair.
        present: Vec<StorageId>,
        /// Nodes that answer.
        answering: Vec<StorageId>,
        /// Whether all chunks of the node are listed, even those that need no repair.
        is_all: bool,
        /// Chunk after which the list continues.
        after: Option<ChunkId>,
        /// Nodes that keep their chunks and share a domain, by domain. A blob with two chunks on
        /// nodes of one domain needs a repair.
        shared: Vec<Vec<StorageId>>,
    }
    /// Node → manager: answer to [`StoreMessage::ListHeld`].
    Held = 68 {
        /// Chunks in ascending order.
        chunks: Vec<HeldChunk>,
        /// Chunk after which the list continues; `None` at its end.
        next: Option<ChunkId>,
        /// Files among the chunks before `next` whose code is due, listed or not. The first of
        /// their holders that answers counts them.
        coding_due: CodingDue,
    }
    /// Manager → node: make this chunk from the other chunks of its blob, and become its holder.
    /// The answer is *done* when the chunk is durable, or if the blob does not need it. The order
    /// is refused as *not there* if no volume keeps the blob any more.
    RepairChunk = 69 {
        /// The newest known descriptor of the blob, with the index of the wanted chunk.
        descriptor: ChunkDescriptor,
        /// Holder whose place the node takes. Its chunk is deleted when all holders have confirmed
        /// theirs. `None` for one more copy, or for a chunk that the node has lost.
        replaces: Option<StorageId>,
        /// Largest rate at which bytes are copied.
        bytes_per_s: u64,
    }
    /// Answer: the request is executed, or was executed before.
    Done = 70 {}
    /// Answer: the request is refused.
    Refuse = 71 {
        /// Reason of the refusal.
        why: RefusalWhy,
        /// Epoch that the node has promised for the volume, for [`RefusalWhy::Fenced`]; 0
        /// otherwise.
        epoch: Epoch,
        /// Explanation for operators: the object, and the cause. May be empty.
        text: String,
    }
    /// Manager → node: list your extents that are sealed and whole.
    ListSealed = 72 { /** Extent after which the list continues. */ after: Option<ExtentAt> }
    /// Node → manager: answer to [`StoreMessage::ListSealed`].
    Sealed = 73 {
        /// Extents in ascending order, at most 1,024.
        extents: Vec<SealedExtent>,
        /// Whether further extents follow.
        has_more: bool,
    }
    /// Manager → node: copy this extent from the sources. The answer is *done* when the copy is
    /// durable.
    RepairExtent = 74 {
        /// The extent to copy.
        extent: SealedExtent,
        /// Nodes that have it.
        sources: Vec<StorageId>,
        /// Largest rate at which bytes are copied.
        bytes_per_s: u64,
    }
    /// Manager → node: compare the next chunks of yours with those of the other holders, because
    /// you or they may have been away.
    CheckHeld = 75 { /** Chunk after which the check continues. */ after: Option<ChunkId> }
    /// Node → manager: answer to [`StoreMessage::CheckHeld`].
    Checked = 76 {
        /// Chunks that other holders lack, although they answer.
        missing: Vec<MissingChunk>,
        /// Chunk after which the check continues; `None` at the end.
        next: Option<ChunkId>,
    }
    /// Node → client: answer to [`StoreMessage::FenceLog`] and [`StoreMessage::InspectLog`] of a
    /// node that has lost synced bytes. A file is damaged, or a file or a device is missing. The
    /// answer proves nothing about the end of the extent. The node can supply the bytes before
    /// `valid_end`, and takes no appends.
    ReplicaDamaged = 95 {
        /// Offset after the longest prefix with valid checksums; the begin of the extent without
        /// any byte.
        valid_end: u64,
        /// Offset through which the bytes that the node still has are synced.
        synced: u64,
        /// Offset at which the extent was sealed, if it was.
        sealed: Option<u64>,
    }
    }
}

impl StoreMessage {
    /// Appends the message with its version.
    pub(super) fn append_to(&self, out: &mut Vec<u8>) {
        put_u8(out, VERSION);
        self.put(out);
    }
}

impl From<Refused> for StoreMessage {
    fn from(refused: Refused) -> Self {
        let Refused { why, epoch, text } = refused;
        Self::Refuse { why, epoch, text }
    }
}

/// Over a route, a message travels in an envelope without a payload.
impl RouteMessage for StoreMessage {
    fn encode(&self) -> Vec<u8> {
        envelope::seal(self, &[])
    }

    fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        match envelope::open(bytes)? {
            (message, []) => Ok(message),
            _ => Err(Malformed("a payload behind a message that has none")),
        }
    }

    fn standby(&self, asked: &dyn fmt::Display) -> Option<Error> {
        match self {
            Self::Refuse { why: RefusalWhy::Standby, epoch, text } => {
                let (why, epoch, text) = (RefusalWhy::Standby, *epoch, text.clone());
                Some(Refused { why, epoch, text }.error(asked))
            }
            _ => None,
        }
    }
}
