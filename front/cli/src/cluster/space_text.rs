//! Text of `archipelago cluster status --by-node`: the space of each storage node by volume and
//! class, against the limit of the node and the quota of volumes. Pure functions.
//!
//! The line of a whole node has its garbage, which the lines of volumes contain. Space that no line
//! of a volume has belongs to files that repairs are writing, and to volumes that the report has no
//! room for. Metadata do not count as space in use, so the line shows them apart.

use std::fmt::Write;

use archipelago_base::size;
use archipelago_env::FileClass;
use archipelago_store::VolumeId;
use archipelago_store::nodes::wire::{NodeStanding, StorageReport, VolumeSpace};

use super::storage_text::{StorageView, class_word, short_identity};

/// The table as text.
pub(super) fn by_node(view: &StorageView<'_>) -> String {
    let mut out = String::new();
    // Writing to a string does not fail.
    let _infallible = write(&mut out, view);
    out
}

fn write(out: &mut String, view: &StorageView<'_>) -> std::fmt::Result {
    writeln!(
        out,
        "\n{:<6} {:<17} {:<9} {:>8} {:>10} {:>10} {:>10}  LIMIT",
        "NODE", "VOLUME", "CLASS", "OBJECTS", "LOGICAL", "ON NODE", "GARBAGE"
    )?;
    let mut by_number: Vec<&NodeStanding> = view.status.nodes.iter().collect();
    by_number.sort_by_key(|node| (node.member.node, node.member.storage));
    by_number.into_iter().try_for_each(|node| of_node(out, view, node))
}

/// One line of the table.
#[derive(Clone, Debug, Default)]
struct SpaceLine {
    node: String,
    volume: String,
    class: &'static str,
    objects: u64,
    logical_bytes: u64,
    bytes: u64,
    /// Bytes of garbage as text. Empty for a volume, because a report has the sum only.
    garbage: String,
    limit: String,
}

impl SpaceLine {
    fn write(&self, out: &mut String) -> std::fmt::Result {
        let text = format!(
            "{:<6} {:<17} {:<9} {:>8} {:>10} {:>10} {:>10}  {}",
            self.node,
            self.volume,
            self.class,
            self.objects,
            size::show(self.logical_bytes),
            size::show(self.bytes),
            self.garbage,
            self.limit
        );
        writeln!(out, "{}", text.trim_end())
    }
}

/// The lines of a node: one per volume and class, and one for all of it.
fn of_node(out: &mut String, view: &StorageView<'_>, node: &NodeStanding) -> std::fmt::Result {
    let report = &node.report;
    let mut spaces: Vec<&VolumeSpace> = report.volumes.iter().collect();
    spaces.sort_by_key(|space| (space.volume, space.class.code()));
    let mut all = SpaceLine { volume: "all".to_owned(), class: "-", ..SpaceLine::default() };
    let mut last = None;
    for space in &spaces {
        let mut line = SpaceLine {
            class: class_word(space.class),
            objects: space.objects,
            logical_bytes: space.logical_bytes,
            bytes: space.bytes,
            ..SpaceLine::default()
        };
        if last.is_none() {
            line.node = node.member.node.to_string();
        }
        if last.replace(space.volume) != Some(space.volume) {
            line.volume = name_of(view, space.volume);
            line.limit = quota_words(&spaces, space.volume, report.volume_bytes_max);
        }
        line.write(out)?;
        all.objects += line.objects;
        all.logical_bytes += line.logical_bytes;
        all.bytes += line.bytes;
    }
    if spaces.is_empty() {
        all.node = node.member.node.to_string();
    }
    all.garbage = size::show(report.unserved.garbage_bytes());
    all.limit = limit_words(report, all.bytes);
    all.write(out)
}

/// The use of a node's room, of which the lines of volumes have `listed` bytes, and the space that
/// these lines do not show.
fn limit_words(report: &StorageReport, listed: u64) -> String {
    let (used, capacity) = (report.space.used_bytes, report.space.capacity_bytes);
    let other = size::show(used.saturating_sub(listed));
    let mut words = format!("{}, {other} of them for other files", of_limit(used, capacity));
    if report.unserved.unsealed > 0 {
        words += &format!("; unsealed: {}", size::show(report.unserved.unsealed));
    }
    if let Some(bytes) = report.metadata_bytes {
        words += &format!("; metadata: {}", size::show(bytes));
    }
    words
}

fn name_of(view: &StorageView<'_>, volume: VolumeId) -> String {
    let known = view.volumes.iter().flatten().find(|known| known.volume == volume);
    known.map_or_else(|| short_identity(volume), |known| known.name.clone())
}

/// The use of a volume's quota on a node. Logs do not count for it.
fn quota_words(spaces: &[&VolumeSpace], volume: VolumeId, quota: Option<u64>) -> String {
    let Some(quota) = quota else { return String::new() };
    let is_log = |class: FileClass| matches!(class, FileClass::Wal | FileClass::Manifest);
    let counted = spaces.iter().filter(|space| space.volume == volume && !is_log(space.class));
    format!("quota: {}", of_limit(counted.map(|space| space.bytes).sum(), quota))
}

fn of_limit(bytes: u64, limit: u64) -> String {
    let percent = u128::from(bytes) * 100 / u128::from(limit.max(1));
    format!("{} of {} ({percent} %)", size::show(bytes), size::show(limit))
}

#[cfg(test)]
mod tests {
    use archipelago_base::Epoch;
    use archipelago_fabric::NodeId;
    use archipelago_store::nodes::StorageId;
    use archipelago_store::nodes::wire::{
        MemberState, NodeSpace, StorageClusterStatus, StorageMember, UnservedBytes,
    };
    use archipelago_store::volume::{VolumeInfo, VolumeStage};

    use super::*;

    const REEF: VolumeId = VolumeId([7; 16]);
    const OTHER: VolumeId = VolumeId([9; 16]);

    fn node(number: u64, volumes: Vec<VolumeSpace>, volume_bytes_max: Option<u64>) -> NodeStanding {
        let space = NodeSpace { capacity_bytes: 10 << 30, used_bytes: 1 << 30 };
        let member = StorageMember {
            storage: StorageId(100 + number),
            node: NodeId(number),
            life: Epoch(1),
            endpoints: Vec::new(),
            domain: format!("rack{number}"),
            state: MemberState::Up,
            space,
        };
        let report = StorageReport { space, volumes, volume_bytes_max, ..Default::default() };
        NodeStanding { member, silent_ms: 40, report }
    }

    fn space(volume: VolumeId, class: FileClass, bytes: u64) -> VolumeSpace {
        VolumeSpace { volume, class, objects: 2, bytes, logical_bytes: bytes / 4 }
    }

    #[test]
    fn space_of_each_node_is_shown_by_volume_and_class() {
        let volumes = vec![
            space(OTHER, FileClass::Sst, 128 << 20),
            space(REEF, FileClass::ValueSst, 512 << 20),
            space(REEF, FileClass::Wal, 64 << 20),
        ];
        let nodes = vec![node(2, Vec::new(), None), node(1, volumes, Some(2 << 30))];
        let status = StorageClusterStatus { nodes, ..Default::default() };
        let (name, owner) = ("reef".to_owned(), None);
        let (volume, epoch, stage) = (REEF, Epoch(3), VolumeStage::Whole);
        let known = VolumeInfo { name, volume, epoch, owner, stage };
        let text = by_node(&StorageView { status: &status, volumes: Ok(vec![known]) });
        let lines: Vec<&str> = text.lines().skip(2).collect();
        let wanted = [
            "1      reef              log              2     16 MiB     64 MiB             \
             quota: 512 MiB of 2 GiB (25 %)",
            "                         values           2    128 MiB    512 MiB",
            "       0909090909090909  tables           2     32 MiB    128 MiB             \
             quota: 128 MiB of 2 GiB (6 %)",
            "       all               -                6    176 MiB    704 MiB        0 B  \
             1 GiB of 10 GiB (10 %), 320 MiB of them for other files",
            "2      all               -                0        0 B        0 B        0 B  \
             1 GiB of 10 GiB (10 %), 1 GiB of them for other files",
        ];
        assert_eq!(lines, wanted);
    }

    #[test]
    fn garbage_has_a_column_and_metadata_are_apart() {
        let mut node = node(1, vec![space(REEF, FileClass::Sst, 1 << 30)], None);
        node.report.unserved =
            UnservedBytes { unsealed: 4 << 20, damaged: 96 << 20, removed: 32 << 20 };
        node.report.metadata_bytes = Some(20 << 20);
        let status = StorageClusterStatus { nodes: vec![node], ..Default::default() };
        let view = StorageView { status: &status, volumes: Err("no root set".to_owned()) };
        let text = by_node(&view);
        let lines: Vec<&str> = text.lines().skip(1).collect();
        let wanted = [
            "NODE   VOLUME            CLASS      OBJECTS    LOGICAL    ON NODE    GARBAGE  LIMIT",
            "1      0707070707070707  tables           2    256 MiB      1 GiB",
            "       all               -                2    256 MiB      1 GiB    128 MiB  \
             1 GiB of 10 GiB (10 %), 0 B of them for other files; unsealed: 4 MiB; \
             metadata: 20 MiB",
        ];
        assert_eq!(lines, wanted);
    }

    #[test]
    fn names_and_quotas_that_are_not_known_are_left_out() {
        let nodes = vec![node(1, vec![space(REEF, FileClass::Sst, 4 << 20)], None)];
        let status = StorageClusterStatus { nodes, ..Default::default() };
        let text =
            by_node(&StorageView { status: &status, volumes: Err("no root set".to_owned()) });
        assert!(
            text.contains("1      0707070707070707  tables           2      1 MiB      4 MiB\n")
        );
        assert!(!text.contains("quota"), "{text}");
    }
}
