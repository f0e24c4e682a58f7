//! Golden bytes of messages and stored values, and messages that are encoded and decoded.

use std::collections::BTreeMap;

use archipelago_base::random::Rng;
use archipelago_base::{Epoch, ErrorKind};
use archipelago_env::FileClass;
use archipelago_fabric::{ClusterId, NodeId, RouteMessage};

use super::super::StorageId;
use super::super::layout::{CellSize, Scheme};
use super::super::log::{ExtentRecord, LogLayout};
use super::super::logs::VolumeLog;
use super::super::placement::WritePurpose;
use super::super::register::caspaxos::acceptor::{
    AcceptorAnswer, AcceptorHead, AcceptorRequest, AcceptorState, CellPage, CopyProgress,
    Membership, RegisterCell,
};
use super::super::register::caspaxos::{AcceptedValue, Ballot, ChangeId, RootSet, StoredValue};
use super::*;
use crate::ids::{BlobId, LogId, VolumeId};

const BLOB: BlobId = BlobId([0xb0; 16]);
const LOG: LogId = LogId([0x10; 16]);
const VOLUME: VolumeId = VolumeId([0x70; 16]);
const CLUSTER: ClusterId = ClusterId([0xc0; 16]);
const STAMP: Stamp = Stamp { volume: VOLUME, epoch: Epoch(0x0102) };
const CHUNK: ChunkId = ChunkId { blob: BLOB, index: 5 };
const EXTENT: ExtentAt = ExtentAt { log: LOG, extent: 3 };

pub(crate) fn descriptor() -> ChunkDescriptor {
    ChunkDescriptor {
        chunk: CHUNK,
        written: STAMP,
        class: FileClass::ValueSst,
        scheme: Scheme::Rs42(CellSize::Small),
        is_coding_due: false,
        blob_bytes: 3 << 20,
        placement: PlacementEpoch::WRITTEN,
        holders: (0..6).map(|n| Holder { storage: StorageId(0x20 + n), chunk: n as u8 }).collect(),
        retaining: vec![VOLUME, VolumeId([0x71; 16])],
    }
}

pub(crate) fn hint() -> BlobHint {
    descriptor().hint()
}

pub(crate) fn root_set() -> RootSet {
    RootSet { number: 2, members: vec![StorageId(1), StorageId(2), StorageId(3)] }
}

pub(crate) fn layout() -> VolumeLog {
    let nodes = vec![StorageId(1), StorageId(2)];
    let ended = ExtentRecord { number: 1, start: 0, end: Some(0x1234), nodes, is_sealed: true };
    let nodes = vec![StorageId(3)];
    let open = ExtentRecord { number: 2, start: 0x1234, end: None, nodes, is_sealed: false };
    let extents = vec![ended, open];
    let layout = LogLayout { extents, is_ended: false, may_miss_unsynced: true };
    VolumeLog { volume: VOLUME, layout }
}

fn cell() -> RegisterCell {
    let ballot = Ballot { root_set: 1, counter: 2, proposer: 3 };
    let change = ChangeId { proposer: 3, sequence: 4 };
    let value = StoredValue { version: 5, change, value: Some(vec![0xaa, 0xbb]) };
    RegisterCell { promised: ballot, accepted: Some(AcceptedValue { ballot, value }) }
}

fn cells() -> BTreeMap<String, RegisterCell> {
    BTreeMap::from([("volume/a".to_owned(), cell()), ("x".into(), Default::default())])
}

fn page() -> CellPage {
    CellPage { after: Some("m".into()), cells: cells(), has_more: true }
}

fn head() -> AcceptorHead {
    let copy = ChangeId { proposer: 3, sequence: 4 };
    AcceptorHead {
        membership: Membership::Active(root_set()),
        promised_absent: Ballot { root_set: 1, counter: 6, proposer: 3 },
        copy: Some(CopyProgress { root_set: 2, copy, through: "m".into() }),
    }
}

pub(crate) fn state() -> AcceptorState {
    AcceptorState::new(head(), cells())
}

fn report() -> StorageReport {
    let space = NodeSpace { capacity_bytes: 0x1000, used_bytes: 0x10 };
    let class = FileClass::Wal;
    let traffic = ClassTraffic { class, reads: 1, read_bytes: 2, writes: 3, written_bytes: 4 };
    StorageReport {
        space,
        devices: vec![DeviceStatus { path: "/d".into(), space, is_failed: false }],
        chunks: 5,
        extents_in_limbo: 6,
        volumes: vec![VolumeSpace {
            volume: VOLUME,
            class,
            objects: 7,
            bytes: 8,
            logical_bytes: 9,
        }],
        counters: StorageCounters { requests: 9, traffic: vec![traffic], ..Default::default() },
        scrub: ScrubStatus { rounds: 10, is_running: true, ..Default::default() },
        volume_bytes_max: Some(11),
        unserved: UnservedBytes { unsealed: 12, damaged: 13, removed: 14 },
        metadata_bytes: Some(15),
        ..Default::default()
    }
}

fn member() -> StorageMember {
    StorageMember {
        storage: StorageId(0x21),
        node: NodeId(4),
        life: Epoch(5),
        endpoints: vec!["a:b".into()],
        domain: "r".into(),
        state: MemberState::Draining,
        space: NodeSpace { capacity_bytes: 0x1000, used_bytes: 0x10 },
    }
}

fn chunk_messages() -> Vec<StoreMessage> {
    let stamp = Some(STAMP);
    let (class, purpose) = (FileClass::ValueSst, WritePurpose::Job);
    let (chunk, blobs) = (CHUNK, vec![BLOB]);
    let entry = BlobEntry { blob: BLOB, epoch: Epoch(7), is_sealed: true };
    vec![
        StoreMessage::PutChunk { chunk, stamp, class, purpose, offset: 0x1000, crcs: vec![8, 9] },
        StoreMessage::SealChunk { stamp: None, descriptor: descriptor() },
        StoreMessage::ReadChunk { chunk, ranges: vec![ChunkRange { start: 0x1000, end: 0x1010 }] },
        StoreMessage::ChunkBytes { crcs: vec![8] },
        StoreMessage::Describe { blob: BLOB },
        StoreMessage::Descriptors { descriptors: vec![descriptor()] },
        StoreMessage::Redescribe { descriptor: coding_due() },
        StoreMessage::Retain { blobs: blobs.clone(), stamp: STAMP },
        StoreMessage::Release { blobs, stamp: STAMP },
        StoreMessage::AbandonBlob { blob: BLOB, stamp: STAMP },
        StoreMessage::ListBlobs { volume: VOLUME, after: None },
        StoreMessage::Blobs { blobs: vec![entry], has_more: true },
        StoreMessage::DropChunk { chunk, placement: PlacementEpoch::WRITTEN },
        StoreMessage::ReportDamage { chunk, offset: 0x2000 },
    ]
}

fn log_messages() -> Vec<StoreMessage> {
    let (at, stamp, class) = (EXTENT, STAMP, FileClass::Wal);
    let (extent_start, start, end, is_synced) = (0x10, 0x20, 0x30, true);
    let logs = vec![LogEntry { log: LOG, epoch: Epoch(7) }];
    vec![
        StoreMessage::Append { at, stamp, class, extent_start, start, is_synced },
        StoreMessage::Progress { written: 0x30, synced: 0x20 },
        StoreMessage::SyncLog { at, stamp },
        StoreMessage::SealLog { at, stamp, class, extent_start, end },
        StoreMessage::FenceLog { at, stamp },
        StoreMessage::InspectLog { at },
        StoreMessage::ReplicaIs { valid_end: 1, synced: 2, sealed: Some(3), is_in_limbo: true },
        StoreMessage::ReadLog { at, start, end },
        StoreMessage::LogBytes {},
        StoreMessage::PutLog { at, stamp, class, extent_start, start },
        StoreMessage::RemoveLog { log: LOG, stamp },
        StoreMessage::ListLogs { volume: VOLUME, after: Some(LOG) },
        StoreMessage::Logs { logs, has_more: false },
        StoreMessage::ReplicaDamaged { valid_end: 1, synced: 2, sealed: Some(3) },
    ]
}

fn register_messages() -> Vec<StoreMessage> {
    let (name, ballot) = ("n".to_owned(), Ballot { root_set: 1, counter: 2, proposer: 3 });
    let accepted = cell().accepted;
    let value = accepted.clone().expect("a value").value;
    let (root_set, copy) = (root_set(), ChangeId { proposer: 3, sequence: 4 });
    let requests = [
        AcceptorRequest::Prepare { name: name.clone(), ballot },
        AcceptorRequest::Accept { name, ballot, value },
        AcceptorRequest::Names { root_set: 1, prefix: "volume/".into() },
        AcceptorRequest::Retire { next: root_set.clone(), after: Some("x".into()) },
        AcceptorRequest::Install { root_set: root_set.clone(), copy, page: page() },
        AcceptorRequest::Activate { root_set: 2 },
    ];
    let answers = [
        AcceptorAnswer::Promised { ballot, accepted },
        AcceptorAnswer::Accepted { ballot },
        AcceptorAnswer::Outbid { ballot, promised: ballot },
        AcceptorAnswer::Names(vec!["volume/a".into()]),
        AcceptorAnswer::WrongSet { known: Some(root_set) },
        AcceptorAnswer::Retired(page()),
        AcceptorAnswer::Installed,
        AcceptorAnswer::Activated,
        AcceptorAnswer::Copied { root_set: 2, through: "m".into() },
    ];
    let requests = requests.into_iter().map(|request| StoreMessage::Acceptor { request });
    let answers = answers.into_iter().map(|answer| StoreMessage::AcceptorIs { answer });
    requests.chain(answers).collect()
}

fn repair_status() -> RepairStatus {
    let storage = StorageId(0x21);
    let debt = NodeDebt { storage, chunks: 1, bytes: 2, stuck: 3, examples: vec!["a".into()] };
    RepairStatus {
        is_known: true,
        chunks_left: 4,
        nodes: vec![debt],
        has_more_extents: true,
        unlisted: vec![storage],
        ..Default::default()
    }
}

fn repair_messages() -> Vec<StoreMessage> {
    let (storage, other) = (StorageId(0x21), StorageId(0x22));
    let (present, answering, after) = (vec![storage, other], vec![storage], Some(CHUNK));
    let shared = vec![present.clone(), Vec::new()];
    let held = HeldChunk { descriptor: descriptor(), is_readable: true };
    let coding_due = CodingDue { files: 0x50, bytes: 0x60 };
    let missing = MissingChunk { storage, descriptor: descriptor() };
    let (at, class) = (EXTENT, FileClass::Wal);
    let extent = SealedExtent { at, volume: VOLUME, class, start: 0x10, end: 0x30 };
    let (sources, bytes_per_s) = (vec![other], 0x40);
    vec![
        StoreMessage::ListHeld { present, answering, is_all: false, after, shared },
        StoreMessage::Held { chunks: vec![held], next: None, coding_due },
        StoreMessage::RepairChunk { descriptor: descriptor(), replaces: Some(other), bytes_per_s },
        StoreMessage::ListSealed { after: Some(EXTENT) },
        StoreMessage::Sealed { extents: vec![extent], has_more: true },
        StoreMessage::RepairExtent { extent, sources, bytes_per_s },
        StoreMessage::CheckHeld { after: None },
        StoreMessage::Checked { missing: vec![missing], next: Some(CHUNK) },
    ]
}

fn node_messages() -> Vec<StoreMessage> {
    let (storage, life, domain) = (StorageId(0x21), Epoch(5), "r".to_owned());
    let (cluster, root) = (Some(CLUSTER), Some(root_set()));
    let members = Members {
        version: 6,
        cluster,
        root_set: root_set(),
        members: vec![member()],
        is_complete: true,
        forgotten: vec![StorageId(0x22)],
    };
    let standing = NodeStanding { member: member(), silent_ms: 1, report: report() };
    let status = StorageClusterStatus {
        cluster,
        root_set: root_set(),
        lost_after_ms: 2,
        waits_for: "a".into(),
        nodes: vec![standing],
        repair: repair_status(),
    };
    vec![
        StoreMessage::Found { cluster: CLUSTER, root_set: root_set() },
        StoreMessage::PromiseEpoch { stamp: STAMP },
        StoreMessage::NodeStatus {},
        StoreMessage::NodeStatusIs {
            storage,
            life,
            domain: domain.clone(),
            cluster,
            root_set: root.clone(),
            report: report(),
        },
        StoreMessage::Scrub {},
        StoreMessage::StorageBeat {
            storage,
            node: NodeId(4),
            life,
            endpoints: vec!["a:b".into()],
            domain,
            cluster,
            root_set: root,
            is_draining: true,
            version: 6,
            report: report(),
            forgotten: vec![StorageId(0x22)],
        },
        StoreMessage::MembersAre { members: Some(members), beat_ms: 7 },
        StoreMessage::AskMembers { version: 8 },
        StoreMessage::DrainNode { storage, is_draining: true },
        StoreMessage::ForgetNode { storage },
        StoreMessage::StorageStatus {},
        StoreMessage::StorageStatusIs { status },
        StoreMessage::Done {},
        Refused::fenced(Epoch(9), "a").into(),
        Refused::new(RefusalWhy::OutOfOrder { len: 0x44 }, "").into(),
        Refused::new(RefusalWhy::LongerReplica, "").into(),
        Refused::new(RefusalWhy::RemovedLog, "").into(),
    ]
}

/// Messages of every kind.
pub(crate) fn every_message() -> Vec<StoreMessage> {
    let repairs = repair_messages();
    [chunk_messages(), log_messages(), register_messages(), node_messages(), repairs].concat()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A number of eight bytes, little-endian, whose low bytes are `low`.
fn word(low: &str) -> String {
    format!("{low:0<16}")
}

/// An identity of 16 equal bytes.
fn id(byte: &str) -> String {
    byte.repeat(16)
}

fn encoded(message: &StoreMessage) -> String {
    let mut out = Vec::new();
    message.append_to(&mut out);
    hex(&out)
}

#[test]
fn golden_bytes_of_chunk_messages() {
    let stamp = [id("70"), word("0201")].concat();
    let golden = [
        "4501",
        &id("b0"),
        "05",
        "01",
        &stamp,
        "05",
        "03",
        &word("0010"),
        "02",
        "08000000",
        "09000000",
    ];
    let messages = chunk_messages();
    assert_eq!(encoded(&messages[0]), golden.concat());
    let holders: String = (0..6u8).map(|n| word(&format!("2{n}")) + &format!("{n:02x}")).collect();
    let descriptor = [
        "",
        &id("b0"),
        "05",
        &stamp,
        "05",
        "0212",
        &word("000030"),
        &word("01"),
        &word(""),
        "06",
        &holders,
        "02",
        &id("70"),
        &id("71"),
    ]
    .concat();
    assert_eq!(encoded(&messages[1]), ["450200", &descriptor].concat());
    let read = ["4503", &id("b0"), "05", "01", &word("0010"), &word("1010")];
    assert_eq!(encoded(&messages[2]), read.concat());
    assert_eq!(encoded(&messages[5]), ["450601", &descriptor].concat());
    let retain = ["4508", "01", &id("b0"), &stamp];
    assert_eq!(encoded(&messages[7]), retain.concat());
    let release = ["4509", "01", &id("b0"), &stamp];
    assert_eq!(encoded(&messages[8]), release.concat());
}

#[test]
fn golden_bytes_of_log_messages() {
    let stamp = [id("70"), word("0201")].concat();
    let at = ["", &id("10"), "03000000"].concat();
    let append = ["4514", &at, &stamp, "01", &word("10"), &word("20"), "01"];
    let messages = log_messages();
    assert_eq!(encoded(&messages[0]), append.concat());
    assert_eq!(encoded(&messages[1]), ["4515", &word("30"), &word("20")].concat());
    let seal = ["4517", &at, &stamp, "01", &word("10"), &word("30")];
    assert_eq!(encoded(&messages[3]), seal.concat());
    let replica = ["451a", &word("01"), &word("02"), "01", &word("03"), "01"];
    assert_eq!(encoded(&messages[6]), replica.concat());
    let put = ["451d", &at, &stamp, "01", &word("10"), &word("20")];
    assert_eq!(encoded(&messages[9]), put.concat());
    let damaged = ["455f", &word("01"), &word("02"), "01", &word("03")];
    assert_eq!(encoded(&messages[13]), damaged.concat());
}

#[test]
fn golden_bytes_of_register_and_refusals() {
    let ballot = [word("01"), word("02"), word("03")].concat();
    let value = ["", &word("05"), &word("03"), &word("04"), "01", "02aabb"].concat();
    let messages = register_messages();
    assert_eq!(encoded(&messages[0]), ["452801", "016e", &ballot].concat());
    assert_eq!(encoded(&messages[1]), ["452802", "016e", &ballot, &value].concat());
    assert_eq!(encoded(&messages[6]), ["452901", &ballot, "01", &ballot, &value].concat());
    let set = [word("02"), "03".into(), word("01"), word("02"), word("03")].concat();
    assert_eq!(encoded(&messages[3]), ["452804", &set, "01", "0178"].concat());
    let absent = word("").repeat(3);
    let cells = ["02", "08766f6c756d652f61", &ballot, "01", &ballot, &value, "0178", &absent, "00"];
    let page = ["01", "016d", &cells.concat(), "01"].concat();
    let install = ["452805", &set, &word("03"), &word("04"), &page];
    assert_eq!(encoded(&messages[4]), install.concat());
    assert_eq!(encoded(&messages[11]), ["452906", &page].concat());
    assert_eq!(encoded(&messages[14]), ["452909", &word("02"), "016d"].concat());
    let fenced: StoreMessage = Refused::fenced(Epoch(9), "a").into();
    assert_eq!(encoded(&fenced), ["454701", &word("09"), "0161"].concat());
    let order: StoreMessage = Refused::new(RefusalWhy::OutOfOrder { len: 0x44 }, "").into();
    assert_eq!(encoded(&order), ["454707", &word("44"), &word(""), "00"].concat());
    let longer: StoreMessage = Refused::new(RefusalWhy::LongerReplica, "").into();
    assert_eq!(encoded(&longer), ["45470e", &word(""), "00"].concat());
    let removed: StoreMessage = Refused::new(RefusalWhy::RemovedLog, "").into();
    assert_eq!(encoded(&removed), ["45470f", &word(""), "00"].concat());
    assert_eq!(encoded(&StoreMessage::Done {}), "4546");
}

#[test]
fn golden_bytes_of_members() {
    let member = [
        word("21"),
        word("04"),
        word("05"),
        "0103613a62".into(),
        "0172".into(),
        "04".into(),
        word("0010"),
        word("10"),
    ]
    .concat();
    let set = [word("02"), "03".into(), word("01"), word("02"), word("03")].concat();
    let forgotten = ["01", &word("22")].concat();
    let golden = [
        "453d",
        "01",
        &word("06"),
        "01",
        &id("c0"),
        &set,
        "01",
        &member,
        "01",
        &forgotten,
        &word("07"),
    ];
    let messages = node_messages();
    assert_eq!(encoded(&messages[6]), golden.concat());
}

#[test]
fn golden_bytes_of_a_report() {
    let set = [word("02"), "03".into(), word("01"), word("02"), word("03")].concat();
    let head = ["4533", &word("21"), &word("05"), "0172", "01", &id("c0"), "01", &set].concat();
    let space = [word("0010"), word("10")].concat();
    let device = ["01", "022f64", &space, "00"].concat();
    let objects = [word("05"), word("").repeat(4), word("06")].concat();
    let volume = ["01", &id("70"), "01", &word("07"), &word("08"), &word("09")].concat();
    let traffic = ["01", "01", &word("01"), &word("02"), &word("03"), &word("04")].concat();
    let counters = [word("09"), word("").repeat(6), traffic].concat();
    let scrub = [word("0a"), "01".into(), word("").repeat(4)].concat();
    let unserved = [word("0c"), word("0d"), word("0e")].concat();
    let golden = [
        head,
        space,
        device,
        objects,
        volume,
        counters,
        scrub,
        ["01", &word("0b")].concat(),
        unserved,
        ["01", &word("0f")].concat(),
    ];
    let messages = node_messages();
    assert_eq!(encoded(&messages[3]), golden.concat());
}

#[test]
fn unsealed_chunks_are_not_certainly_garbage() {
    assert_eq!(report().unserved.garbage_bytes(), 27);
    let most = UnservedBytes { unsealed: 1, damaged: u64::MAX, removed: 2 };
    assert_eq!(most.garbage_bytes(), u64::MAX);
}

#[test]
fn golden_bytes_of_repairs() {
    let (chunk, at) = ([id("b0"), "05".into()].concat(), [id("10"), "03000000".into()].concat());
    let messages = repair_messages();
    let (both, shared) = (["02", &word("21"), &word("22")].concat(), "02");
    let list = ["4543", &both, "01", &word("21"), "00", "01", &chunk, shared, &both, "00"];
    assert_eq!(encoded(&messages[0]), list.concat());
    let mut described = Vec::new();
    archipelago_base::wire::Wire::put(&descriptor(), &mut described);
    let described = hex(&described);
    let list = ["4544", "01", &described, "01", "00", &word("50"), &word("60")];
    assert_eq!(encoded(&messages[1]), list.concat());
    let order = ["4545", &described, "01", &word("22"), &word("40")];
    assert_eq!(encoded(&messages[2]), order.concat());
    assert_eq!(encoded(&messages[3]), ["4548", "01", &at].concat());
    let extent = [&at, &id("70"), "01", &word("10"), &word("30")].concat();
    assert_eq!(encoded(&messages[4]), ["4549", "01", &extent, "01"].concat());
    let order = ["454a", &extent, "01", &word("22"), &word("40")];
    assert_eq!(encoded(&messages[5]), order.concat());
    assert_eq!(encoded(&messages[6]), "454b00");
    let checked = ["454c", "01", &word("21"), &described, "01", &chunk];
    assert_eq!(encoded(&messages[7]), checked.concat());
}

#[test]
fn golden_bytes_of_an_envelope() {
    let message = StoreMessage::LogBytes {};
    let body = envelope::seal(&message, b"coral");
    assert_eq!(hex(&body), ["45", "02000000", "451c", "636f72616c"].concat());
    assert_eq!(envelope::open(&body), Ok((message, &b"coral"[..])));
    assert!(is_store_message(&body));
    assert!(!is_store_message(&[3]) && !is_store_message(&[0x86]) && !is_store_message(&[]));
}

#[test]
fn every_message_decodes_from_its_own_bytes() {
    for message in every_message() {
        let body = envelope::seal(&message, &[]);
        assert_eq!(envelope::open(&body), Ok((message.clone(), &[][..])), "{}", message.name());
        assert_eq!(<StoreMessage as RouteMessage>::decode(&body), Ok(message));
    }
}

#[test]
fn truncated_extended_or_foreign_message_is_refused() {
    for message in every_message() {
        let mut bytes = Vec::new();
        message.append_to(&mut bytes);
        for cut in 0..bytes.len() {
            assert!(StoreMessage::decode(&bytes[..cut]).is_err(), "{}: {cut}", message.name());
        }
        let longer = [&bytes[..], &[0]].concat();
        assert!(StoreMessage::decode(&longer).is_err(), "{}", message.name());
        bytes[0] = VERSION + 1;
        assert!(StoreMessage::decode(&bytes).is_err(), "{}", message.name());
    }
    let body = envelope::seal(&StoreMessage::Done {}, &[]);
    for cut in 0..body.len() {
        assert!(envelope::open(&body[..cut]).is_err(), "{cut} bytes");
    }
}

#[test]
fn random_bytes_are_refused_or_encoded_as_before() {
    let mut rng = Rng::with_seed(41);
    let seeds: Vec<Vec<u8>> =
        every_message().iter().map(|message| envelope::seal(message, b"x")).collect();
    for _ in 0..50_000 {
        let mut bytes = seeds[rng.usize(..seeds.len())].clone();
        for _ in 0..rng.usize(1..4) {
            let at = rng.usize(..bytes.len());
            bytes[at] = rng.u8(..);
        }
        if let Ok((message, payload)) = envelope::open(&bytes) {
            let again = envelope::seal(&message, payload);
            assert_eq!(envelope::open(&again), Ok((message, payload)));
        }
    }
}

#[test]
fn descriptor_whose_fields_do_not_fit_is_refused() {
    let refused = |descriptor: ChunkDescriptor| {
        let bytes = stored::encode_checked(&descriptor);
        stored::decode_checked::<ChunkDescriptor>(&"chunk 1", &bytes).is_err()
    };
    assert!(!refused(descriptor()));
    assert!(refused(ChunkDescriptor { scheme: Scheme::Replicas(3), ..descriptor() }));
    let chunk = ChunkId { index: 6, ..CHUNK };
    assert!(refused(ChunkDescriptor { chunk, ..descriptor() }));
    assert!(refused(ChunkDescriptor { retaining: vec![VOLUME, VOLUME], ..descriptor() }));
    let holders = vec![Holder { storage: StorageId(1), chunk: 6 }];
    assert!(refused(ChunkDescriptor { holders, ..descriptor() }));
}

/// A descriptor of a blob with replicas in place of RS(4,2).
pub(crate) fn coding_due() -> ChunkDescriptor {
    ChunkDescriptor {
        chunk: ChunkId { index: 0, ..CHUNK },
        scheme: Scheme::Replicas(3),
        is_coding_due: true,
        holders: (0..3).map(|n| Holder { storage: StorageId(0x20 + n), chunk: 0 }).collect(),
        ..descriptor()
    }
}

#[test]
fn only_replicas_in_place_of_a_code_need_version_2() {
    let stamp = [id("70"), word("0201")].concat();
    let chunk = [id("b0"), "00".into()].concat();
    // `ARCHCHNK`, the version, and the fields through the scheme.
    let head = |version: &str, scheme: &str| {
        ["4152434843484e4b", version, &chunk, &stamp, "05", scheme].concat()
    };
    let due = stored::encode_checked(&coding_due());
    assert!(hex(&due).starts_with(&head("02000000", "0303")));
    let replicated = ChunkDescriptor { is_coding_due: false, ..coding_due() };
    assert!(hex(&stored::encode_checked(&replicated)).starts_with(&head("01000000", "0103")));
    let decode = |bytes: &[u8]| stored::decode_checked::<ChunkDescriptor>(&"chunk 1", bytes);
    for descriptor in [coding_due(), replicated, descriptor()] {
        let bytes = stored::encode_checked(&descriptor);
        assert_eq!(decode(&bytes).ok().as_ref(), Some(&descriptor));
    }
    // Neither an older program writes such a version, nor does this one read a newer one.
    for (version, kind) in [(1, ErrorKind::Corrupt), (3, ErrorKind::Unsupported)] {
        let mut other = due[..due.len() - 4].to_vec();
        other[8] = version;
        let sum = archipelago_base::checksum::crc(&other);
        other.extend_from_slice(&sum.to_le_bytes());
        assert_eq!(decode(&other).expect_err("another version").kind(), kind);
    }
}

#[test]
fn golden_bytes_of_enclosed_values() {
    let set = [word("02"), "03".into(), word("01"), word("02"), word("03")].concat();
    assert_eq!(hex(&stored::encode_enclosed(&root_set())), ["01", &set].concat());
    let golden = [
        "01",
        &hex(&VOLUME.0),
        "02",
        "01000000",
        &word(""),
        "01",
        &word("3412"),
        "02",
        &word("01"),
        &word("02"),
        "01",
        "02000000",
        &word("3412"),
        "00",
        "01",
        &word("03"),
        "00",
        "00",
        "01",
    ];
    assert_eq!(hex(&stored::encode_enclosed(&layout())), golden.concat());
    let holders: String = (0..6u8).map(|n| word(&format!("2{n}")) + &format!("{n:02x}")).collect();
    let golden = ["01", "0212", &word("01"), &word(""), "06", &holders];
    assert_eq!(hex(&stored::encode_enclosed(&hint())), golden.concat());
    let object = "file 7";
    assert_eq!(
        stored::decode_enclosed(&object, &stored::encode_enclosed(&layout())).ok(),
        Some(layout())
    );
    assert_eq!(
        stored::decode_enclosed(&object, &stored::encode_enclosed(&hint())).ok(),
        Some(hint())
    );
    let newer = stored::decode_enclosed::<RootSet>(&object, &[2]).expect_err("another version");
    assert_eq!(newer.kind(), ErrorKind::Unsupported);
    let cut = stored::decode_enclosed::<RootSet>(&object, &[1, 0]).expect_err("cut off");
    assert_eq!(cut.kind(), ErrorKind::Corrupt);
    assert!(cut.to_string().contains(object), "{cut}");
}

#[test]
fn golden_bytes_of_checked_values() {
    let bytes = hex(&stored::encode_checked(&cell()));
    let ballot = [word("01"), word("02"), word("03")].concat();
    let value = ["", &word("05"), &word("03"), &word("04"), "01", "02aabb"].concat();
    // `ARCHCELL`, version 1, fields, and the checksum of all before.
    let fields = ["4152434843454c4c", "01000000", &ballot, "01", &ballot, &value].concat();
    assert_eq!(bytes[..bytes.len() - 8], fields);
    let bytes = hex(&stored::encode_checked(&head()));
    let set = [word("02"), "03".into(), word("01"), word("02"), word("03")].concat();
    let promised = [word("01"), word("06"), word("03")].concat();
    let copy = [word("02"), word("03"), word("04"), "016d".into()].concat();
    // `ARCHMEMB`, version 2, fields, and the checksum.
    let fields = ["415243484d454d42", "02000000", "01", &set, &promised, "01", &copy].concat();
    assert_eq!(bytes[..bytes.len() - 8], fields);
    let parts = [
        (Membership::None, "00".to_owned()),
        (Membership::Retired { next: root_set() }, ["02", &set].concat()),
        (Membership::Joining(root_set()), ["03", &set].concat()),
        (Membership::Copying { least: 7 }, ["04", &word("07")].concat()),
    ];
    for (membership, golden) in parts {
        let mut bytes = Vec::new();
        archipelago_base::wire::Wire::put(&membership, &mut bytes);
        assert_eq!(hex(&bytes), golden);
    }
}

#[test]
fn damaged_checked_value_is_corrupt() {
    let bytes = stored::encode_checked(&state());
    let decode = |bytes: &[u8]| stored::decode_checked::<AcceptorState>(&"key 1", bytes);
    assert_eq!(decode(&bytes).ok(), Some(state()));
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1;
        let error = decode(&damaged).expect_err("damaged");
        let is_version = (8..12).contains(&at);
        let wanted = if is_version { ErrorKind::Unsupported } else { ErrorKind::Corrupt };
        assert_eq!(error.kind(), wanted, "byte {at}: {error}");
        assert!(decode(&bytes[..at]).is_err(), "{at} bytes");
    }
}

#[test]
fn fence_is_the_only_refusal_that_ends_an_owner() {
    for code in 1..=14u8 {
        let bytes = [code, 0, 0, 0, 0, 0, 0, 0, 0];
        let mut reader = archipelago_base::codec::Reader::new(&bytes);
        let why = <RefusalWhy as archipelago_base::wire::Wire>::get(&mut reader).expect("a reason");
        assert_eq!(why.kind() == ErrorKind::Fenced, why == RefusalWhy::Fenced, "{why:?}");
        let error = Refused::new(why, "chunk 1").error("storage node 7, SealChunk");
        assert!(error.to_string().contains("node 7") && error.to_string().contains("chunk 1"));
    }
}

#[test]
fn silent_member_is_down_for_placement() {
    let report = |state| StorageMember { state, ..member() }.report();
    assert!(report(MemberState::Up).is_up && !report(MemberState::Up).is_draining);
    assert!(report(MemberState::Draining).is_up && report(MemberState::Draining).is_draining);
    assert!(!report(MemberState::Silent).is_up && !report(MemberState::Lost).is_up);
}

#[test]
fn node_that_only_a_complete_list_lacks_is_lost() {
    let known = member();
    let asked = [known.storage, StorageId(77)];
    let list = |state, is_complete| {
        let members = vec![StorageMember { state, ..known.clone() }];
        Members { members, is_complete, ..Members::default() }
    };
    assert_eq!(list(MemberState::Up, true).lost(&asked), [StorageId(77)]);
    assert_eq!(list(MemberState::Silent, false).lost(&asked), []);
    assert_eq!(list(MemberState::Lost, false).lost(&asked), [known.storage]);
    assert_eq!(list(MemberState::Silent, true).awaited().unwrap(), [known.storage]);
    assert_eq!(list(MemberState::Silent, false).awaited().unwrap_err().kind(), ErrorKind::Busy);
}
