//! Text of `archipelago cluster status` about storage nodes. Pure functions.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use archipelago_base::size;
use archipelago_env::FileClass;
use archipelago_store::VolumeId;
use archipelago_store::nodes::StorageId;
use archipelago_store::nodes::wire::{
    MemberState, NodeStanding, ScrubStatus, StorageClusterStatus, StorageReport,
};
use archipelago_store::volume::{VolumeInfo, VolumeStage};

/// Number of domains with which value files are erasure-coded.
const DOMAINS_FOR_CODING: usize = 6;
/// Number of domains with which all other files have their copies.
const DOMAINS_FOR_COPIES: usize = 3;

/// The storage nodes of a cluster and its volumes, as far as they are known.
pub(super) struct StorageView<'a> {
    /// The managers' view of the nodes.
    pub(super) status: &'a StorageClusterStatus,
    /// The volumes, or why they are not known.
    pub(super) volumes: Result<Vec<VolumeInfo>, String>,
}

/// The status as text.
pub(super) fn show(view: &StorageView<'_>) -> String {
    let mut out = String::new();
    // Writing to a string does not fail.
    let _infallible = write(&mut out, view);
    out
}

fn write(out: &mut String, view: &StorageView<'_>) -> std::fmt::Result {
    let status = view.status;
    match &status.cluster {
        Some(cluster) => writeln!(out, "Storage: cluster {cluster}, {}", root_set(status))?,
        None => writeln!(out, "Storage: no cluster yet")?,
    }
    if !status.waits_for.is_empty() {
        writeln!(out, "{}", status.waits_for)?;
    }
    nodes(out, status)?;
    devices(out, status)?;
    volumes(out, view)?;
    debt(out, status)?;
    repairs(out, status)
}

/// The nodes that keep owners and leases of volumes.
fn root_set(status: &StorageClusterStatus) -> String {
    let members = &status.root_set.members;
    let number = |storage: &StorageId| {
        let found = status.nodes.iter().find(|node| node.member.storage == *storage);
        found.map_or_else(|| storage.to_string(), |node| node.member.node.to_string())
    };
    let numbers: Vec<String> = members.iter().map(number).collect();
    let is_up = |node: &&NodeStanding| answers(node) && members.contains(&node.member.storage);
    let up = status.nodes.iter().filter(is_up).count();
    format!("root set: nodes {} ({up} up)", numbers.join(" "))
}

fn answers(node: &NodeStanding) -> bool {
    matches!(node.member.state, MemberState::Up | MemberState::Draining)
}

fn state_word(state: MemberState) -> &'static str {
    match state {
        MemberState::Up => "up",
        MemberState::Silent => "silent",
        MemberState::Lost => "lost",
        MemberState::Draining => "draining",
    }
}

fn nodes(out: &mut String, status: &StorageClusterStatus) -> std::fmt::Result {
    writeln!(
        out,
        "\n{:<6} {:<9} {:<17} {:<12} {:>10} {:>10} {:>8} {:>8} {:>6} {:>9}  ADDRESSES",
        "NODE",
        "STATE",
        "IDENTITY",
        "DOMAIN",
        "USED",
        "LEFT",
        "CHUNKS",
        "EXTENTS",
        "LIMBO",
        "HEARD"
    )?;
    let mut by_number: Vec<&NodeStanding> = status.nodes.iter().collect();
    by_number.sort_by_key(|node| (node.member.node, node.member.storage));
    for NodeStanding { member, silent_ms, report } in by_number {
        let left = report.space.capacity_bytes.saturating_sub(report.space.used_bytes);
        writeln!(
            out,
            "{:<6} {:<9} {:<17} {:<12} {:>10} {:>10} {:>8} {:>8} {:>6} {silent_ms:>6} ms  {}",
            member.node.to_string(),
            state_word(member.state),
            member.storage.to_string(),
            member.domain,
            size::show(report.space.used_bytes),
            size::show(left),
            report.chunks + report.chunks_unsealed,
            report.extents,
            report.extents_in_limbo,
            member.endpoints.join(" ")
        )?;
    }
    if status.nodes.is_empty() {
        writeln!(out, "(none has registered)")?;
    }
    Ok(())
}

/// Devices that an operator must look at, and scrubs that run or found damage.
fn devices(out: &mut String, status: &StorageClusterStatus) -> std::fmt::Result {
    for NodeStanding { member, report, .. } in &status.nodes {
        for device in report.devices.iter().filter(|device| device.is_failed) {
            writeln!(
                out,
                "WARNING: node {}: {} failed or is missing: replace it, and see the node's messages",
                member.node, device.path
            )?;
        }
        let scrub = &report.scrub;
        if scrub.is_running || scrub.damaged_chunks + scrub.unread > 0 {
            writeln!(out, "Scrub of node {}: {}", member.node, scrub_words(scrub))?;
        }
    }
    Ok(())
}

/// How far a scrub is, and what it found.
pub(super) fn scrub_words(scrub: &ScrubStatus) -> String {
    let done = match scrub.is_running {
        true => {
            format!("{} of {} read", size::show(scrub.read_bytes), size::show(scrub.total_bytes))
        }
        false => format!("all {} read", size::show(scrub.read_bytes)),
    };
    let unread = match scrub.unread {
        0 => String::new(),
        unread => format!(", {unread} not readable now"),
    };
    format!("{done}, {} damaged chunks{unread}", scrub.damaged_chunks)
}

pub(super) fn class_word(class: FileClass) -> &'static str {
    match class {
        FileClass::Wal => "log",
        FileClass::Sst => "tables",
        FileClass::Manifest => "manifest",
        FileClass::Other => "other",
        FileClass::ValueSst => "values",
    }
}

/// What a class of a volume's files occupies on all nodes together.
#[derive(Clone, Copy, Default)]
struct ClassSpace {
    objects: u64,
    logical_bytes: u64,
    bytes: u64,
}

/// Space of a volume by the code of the class.
type VolumeClasses = BTreeMap<u8, ClassSpace>;

/// Space by volume and class, summed over the nodes.
fn space_of_volumes(status: &StorageClusterStatus) -> BTreeMap<VolumeId, VolumeClasses> {
    let mut volumes = BTreeMap::<VolumeId, VolumeClasses>::new();
    for space in status.nodes.iter().flat_map(|node| &node.report.volumes) {
        let class = volumes.entry(space.volume).or_default().entry(space.class.code()).or_default();
        class.objects += space.objects;
        class.logical_bytes += space.logical_bytes;
        class.bytes += space.bytes;
    }
    volumes
}

fn volumes(out: &mut String, view: &StorageView<'_>) -> std::fmt::Result {
    let mut space = space_of_volumes(view.status);
    writeln!(
        out,
        "\n{:<17} {:>6}  {:<9} {:>8} {:>10} {:>10}  OWNER",
        "VOLUME", "EPOCH", "CLASS", "OBJECTS", "LOGICAL", "ON NODES"
    )?;
    let known = match &view.volumes {
        Ok(known) => known.as_slice(),
        Err(why) => {
            writeln!(out, "(names are not known: {why})")?;
            &[]
        }
    };
    for volume in known {
        let classes = space.remove(&volume.volume).unwrap_or_default();
        let owner = match (volume.stage, volume.owner.as_deref()) {
            (VolumeStage::Filling, _) => "(incomplete copy)",
            (VolumeStage::Removing, _) => "(being removed)",
            (VolumeStage::Whole, owner) => owner.unwrap_or("(closed)"),
        };
        let epoch = volume.epoch.to_string();
        classes_of(out, VolumeWords { name: &volume.name, epoch: &epoch, owner }, &classes)?;
    }
    // Volumes that were removed, or whose names are not known.
    for (volume, classes) in &space {
        let identity = short_identity(*volume);
        let words = VolumeWords { name: &identity, epoch: "", owner: "(no name)" };
        classes_of(out, words, classes)?;
    }
    if known.is_empty() && space.is_empty() {
        writeln!(out, "(none)")?;
    }
    Ok(())
}

/// The name of a volume whose name is not known.
pub(super) fn short_identity(volume: VolumeId) -> String {
    volume.to_string().chars().take(16).collect()
}

/// The columns of a volume that its first line has.
#[derive(Clone, Copy, Default)]
struct VolumeWords<'a> {
    name: &'a str,
    epoch: &'a str,
    owner: &'a str,
}

/// The lines of a volume, one per class.
fn classes_of(
    out: &mut String,
    volume: VolumeWords<'_>,
    classes: &VolumeClasses,
) -> std::fmt::Result {
    let VolumeWords { name, epoch, owner } = volume;
    if classes.is_empty() {
        let (class, none) = ("-", size::show(0));
        return writeln!(
            out,
            "{name:<17} {epoch:>6}  {class:<9} {:>8} {none:>10} {none:>10}  {owner}",
            0
        );
    }
    for (line, (code, space)) in classes.iter().enumerate() {
        let words = if line == 0 { volume } else { VolumeWords::default() };
        let VolumeWords { name, epoch, owner } = words;
        let class = FileClass::from_code(*code).map_or("unknown", class_word);
        let (logical, bytes) = (size::show(space.logical_bytes), size::show(space.bytes));
        let text = format!(
            "{name:<17} {epoch:>6}  {class:<9} {:>8} {logical:>10} {bytes:>10}  {owner}",
            space.objects
        );
        writeln!(out, "{}", text.trim_end())?;
    }
    Ok(())
}

/// Repairs: what is left, what was done, and what cannot be done now.
fn repairs(out: &mut String, status: &StorageClusterStatus) -> std::fmt::Result {
    let repair = &status.repair;
    if status.cluster.is_none() {
        return Ok(());
    }
    let unheard = "not all nodes have listed what they hold yet";
    let left = match (repair.chunks_left, repair.extents_left) {
        (0, 0) if !repair.is_known => unheard.to_owned(),
        (0, 0) => "nothing is left".to_owned(),
        (chunks, extents) => format!(
            "{chunks} chunks and {extents} extents, {} are left{}",
            size::show(repair.bytes_left),
            if repair.is_known { String::new() } else { format!(", and {unheard}") }
        ),
    };
    writeln!(
        out,
        "Repair: {left}; {} chunks and {} extents, {}, were made again",
        repair.chunks_repaired,
        repair.extents_repaired,
        size::show(repair.bytes_repaired)
    )?;
    repairs_of_nodes(out, status)?;
    repair_counts(out, status)
}

/// Repairs that one node causes or holds up.
fn repairs_of_nodes(out: &mut String, status: &StorageClusterStatus) -> std::fmt::Result {
    let number = |storage: StorageId| {
        let known = status.nodes.iter().find(|node| node.member.storage == storage);
        known.map_or_else(|| storage.to_string(), |node| node.member.node.to_string())
    };
    for node in status.repair.unlisted.iter().copied().map(number) {
        writeln!(
            out,
            "WARNING: node {node} answers and does not list what it holds: look at its first disk \
             and at its messages, or stop it, so that other nodes make its copies"
        )?;
    }
    for debt in &status.repair.nodes {
        let node = number(debt.storage);
        if debt.chunks > 0 {
            let (chunks, bytes) = (debt.chunks, size::show(debt.bytes));
            writeln!(out, "Repair: {chunks} chunks of node {node} ({bytes}) move to other nodes")?;
        }
        if debt.stuck > 0 {
            let stuck = debt.stuck;
            writeln!(out, "Repair: {stuck} objects of node {node} cannot move now:")?;
            for example in &debt.examples {
                writeln!(out, "  {example}")?;
            }
        }
    }
    Ok(())
}

/// Numbers of objects that lack something, by what they wait for.
fn repair_counts(out: &mut String, status: &StorageClusterStatus) -> std::fmt::Result {
    let StorageClusterStatus { lost_after_ms, repair, .. } = status;
    if repair.extents_unknown > 0 {
        let extents = repair.extents_unknown;
        writeln!(
            out,
            "Repair: {extents} extents lack copies, unless nodes have them that have not listed \
             what they hold"
        )?;
    }
    if repair.has_more_extents {
        let extents = repair.extents_compared;
        writeln!(out, "Repair: {extents} extents were compared, and the next ones follow")?;
    }
    if repair.waiting_for_domains > 0 {
        let objects = repair.waiting_for_domains;
        writeln!(
            out,
            "Repair: {objects} files and extents of logs have fewer copies until a node of another \
             domain can take one"
        )?;
    }
    if repair.extents_refused > 0 {
        let extents = repair.extents_refused;
        writeln!(
            out,
            "Repair: {extents} extents of logs lack a copy that no node takes, because the other \
             nodes keep longer replicas of their own until the logs are removed"
        )?;
    }
    if repair.coding_files > 0 {
        let (files, bytes) = (repair.coding_files, size::show(repair.coding_bytes));
        writeln!(
            out,
            "Repair: {files} value files ({bytes}) have copies in place of an erasure code, until \
             garbage collection rewrites them while enough domains are up"
        )?;
    }
    if repair.sharing_domains > 0 {
        let objects = repair.sharing_domains;
        writeln!(
            out,
            "Repair: {objects} files and extents of logs have two parts in one domain until another \
             has room, and no domain has changed for {} s",
            lost_after_ms.div_ceil(1000)
        )?;
    }
    if repair.unrepairable > 0 {
        let blobs = repair.unrepairable;
        writeln!(out, "Repair: too few chunks of {blobs} files answer: start the lost nodes")?;
    }
    if repair.failed > 0 {
        writeln!(out, "Repair: {} attempts failed, and are repeated", repair.failed)?;
    }
    Ok(())
}

/// What the cluster lacks: copies on nodes that do not answer, domains, and certainty about bytes.
fn debt(out: &mut String, status: &StorageClusterStatus) -> std::fmt::Result {
    writeln!(out)?;
    let away: Vec<&NodeStanding> = status.nodes.iter().filter(|node| !answers(node)).collect();
    for node in &away {
        let StorageReport { chunks, extents, .. } = node.report;
        let number = node.member.node;
        writeln!(
            out,
            "Debt: node {number} is {} with {chunks} chunks and {extents} extents, whose files have \
             a copy less: {}",
            state_word(node.member.state),
            match node.member.state {
                MemberState::Lost => format!(
                    "start it again, or, if its disks are lost, run: archipelago cluster forget \
                     --storage {number}"
                ),
                _ => format!(
                    "it counts as lost after {} s of silence",
                    status.lost_after_ms.div_ceil(1000)
                ),
            }
        )?;
    }
    for node in status.nodes.iter().filter(|node| node.report.extents_in_limbo > 0) {
        writeln!(
            out,
            "Limbo: node {} may have lost unsynced bytes of {} extents in a power loss; the next \
             owner of their volumes compares them with the other copies",
            node.member.node, node.report.extents_in_limbo
        )?;
    }
    let takes = |node: &&NodeStanding| node.member.state == MemberState::Up;
    let domains: BTreeSet<&str> =
        status.nodes.iter().filter(takes).map(|node| node.member.domain.as_str()).collect();
    let fewer = match domains.len() {
        DOMAINS_FOR_CODING.. => None,
        DOMAINS_FOR_COPIES.. => Some("new value files get three copies, and no erasure code"),
        2 => Some("new files get two copies, and the next loss stops writers"),
        _ => Some("writers wait for a second domain"),
    };
    match fewer {
        Some(fewer) => {
            writeln!(
                out,
                "Domains: {} up of {DOMAINS_FOR_CODING} wanted, so {fewer}",
                domains.len()
            )
        }
        None => writeln!(out, "Domains: {} up", domains.len()),
    }
}

#[cfg(test)]
mod tests {
    use archipelago_base::Epoch;
    use archipelago_fabric::{ClusterId, NodeId};
    use archipelago_store::nodes::register::caspaxos::RootSet;
    use archipelago_store::nodes::wire::{
        NodeDebt, NodeSpace, RepairStatus, StorageMember, VolumeSpace,
    };

    use super::*;

    fn node(number: u64, state: MemberState) -> NodeStanding {
        let space = NodeSpace { capacity_bytes: 10 << 30, used_bytes: 1 << 30 };
        let member = StorageMember {
            storage: StorageId(100 + number),
            node: NodeId(number),
            life: Epoch(1),
            endpoints: vec![format!("tcp:10.0.0.{number}:7701")],
            domain: format!("rack{number}"),
            state,
            space,
        };
        let of = |class, bytes| VolumeSpace {
            volume: VolumeId([7; 16]),
            class,
            objects: 2,
            bytes,
            logical_bytes: bytes / 4,
        };
        let volumes = vec![of(FileClass::Sst, 512 << 20), of(FileClass::Wal, 64 << 20)];
        let report = StorageReport { space, chunks: 3, extents: 1, volumes, ..Default::default() };
        NodeStanding { member, silent_ms: 40, report }
    }

    fn status(states: &[MemberState]) -> StorageClusterStatus {
        let nodes = (1..).zip(states).map(|(number, state)| node(number, *state)).collect();
        StorageClusterStatus {
            cluster: Some(ClusterId([9; 16])),
            root_set: RootSet { number: 1, members: [101, 102, 103].map(StorageId).into() },
            lost_after_ms: 600_000,
            waits_for: String::new(),
            nodes,
            repair: RepairStatus::default(),
        }
    }

    fn shown(status: &StorageClusterStatus) -> String {
        let volume = VolumeId([7; 16]);
        let (name, owner) = ("reef".to_owned(), Some("process 7".to_owned()));
        let (epoch, stage) = (Epoch(3), VolumeStage::Whole);
        let volumes = Ok(vec![VolumeInfo { name, volume, epoch, owner, stage }]);
        show(&StorageView { status, volumes })
    }

    #[test]
    fn whole_cluster_shows_nodes_and_space_by_volume() {
        let text = shown(&status(&[MemberState::Up; 6]));
        for part in [
            "root set: nodes 1 2 3 (3 up)\n",
            "6      up        000000000000006a  rack6",
            "tcp:10.0.0.6:7701",
            "reef                   3  log             12     96 MiB    384 MiB  process 7\n",
            "tables          12    768 MiB      3 GiB\n",
            "Domains: 6 up\n",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert!(!text.contains("Debt") && !text.contains("Limbo"), "{text}");
    }

    #[test]
    fn losses_and_limbo_say_what_to_do() {
        use MemberState::{Draining, Lost, Silent, Up};
        let mut status = status(&[Lost, Silent, Up, Up, Up, Draining]);
        status.nodes[2].report.extents_in_limbo = 4;
        let text = shown(&status);
        for part in [
            "root set: nodes 1 2 3 (1 up)",
            "Debt: node 1 is lost with 3 chunks",
            "cluster forget --storage 1",
            "Debt: node 2 is silent",
            "as lost after 600 s",
            "Limbo: node 3 may have lost unsynced bytes of 4 extents",
            "Domains: 3 up of 6 wanted, so new value files get three copies",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }

    #[test]
    fn repairs_show_what_is_left_and_what_cannot_move() {
        use MemberState::{Draining, Lost, Up};
        let mut status = status(&[Lost, Draining, Up, Up]);
        assert!(shown(&status).contains("Repair: not all nodes have listed what they hold yet"));
        status.repair = RepairStatus { is_known: true, ..RepairStatus::default() };
        assert!(shown(&status).contains("Repair: nothing is left; 0 chunks"));
        let (chunks, stuck, examples) = (7, 2, vec!["blob 9: add nodes".to_owned()]);
        let debt = NodeDebt { storage: StorageId(102), chunks, bytes: 3 << 20, stuck, examples };
        status.repair = RepairStatus {
            chunks_left: 7,
            bytes_left: 3 << 20,
            waiting_for_domains: 4,
            unrepairable: 5,
            failed: 6,
            nodes: vec![debt],
            extents_unknown: 8,
            extents_compared: 9,
            has_more_extents: true,
            unlisted: vec![StorageId(103)],
            sharing_domains: 10,
            coding_files: 11,
            coding_bytes: 5 << 20,
            extents_refused: 12,
            ..status.repair
        };
        let text = shown(&status);
        for part in [
            "Repair: 7 chunks and 0 extents, 3 MiB are left",
            "Repair: 7 chunks of node 2 (3 MiB) move",
            "Repair: 2 objects of node 2 cannot move now:\n  blob 9: add nodes\n",
            "Repair: 4 files and extents of logs have fewer copies until a node of another domain",
            "Repair: too few chunks of 5 files answer",
            "Repair: 6 attempts failed",
            "WARNING: node 3 answers and does not list what it holds",
            "Repair: 8 extents lack copies, unless nodes have them that have not listed",
            "Repair: 11 value files (5 MiB) have copies in place of an erasure code",
            "Repair: 10 files and extents of logs have two parts in one domain",
            "no domain has changed for 600 s",
            "Repair: 9 extents were compared, and the next ones follow",
            "Repair: 12 extents of logs lack a copy that no node takes",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
        status.repair.is_known = false;
        let unheard = "3 MiB are left, and not all nodes have listed what they hold yet";
        assert!(shown(&status).contains(unheard));
    }

    #[test]
    fn cluster_that_waits_says_for_what() {
        let waits_for = "A new cluster needs three domains.".to_owned();
        let waiting = StorageClusterStatus { waits_for, ..Default::default() };
        let view = StorageView { status: &waiting, volumes: Err("no cluster".to_owned()) };
        let text = show(&view);
        for part in ["no cluster yet", "needs three domains", "(none has registered)"] {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert!(text.contains("names are not known: no cluster"), "{text}");
    }
}
