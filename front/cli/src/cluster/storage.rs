//! `archipelago cluster` for storage nodes: their status, and commands that empty, check and give
//! up a node.
//!
//! The manager acts on a command. The commands here send it and show its progress. Their end, also
//! by Ctrl-C, ends nothing in the cluster.

use std::sync::Arc;
use std::time::Duration;

use archipelago_base::clock::{Clock, SystemClock};
use archipelago_base::runtime::ThreadRuntime;
use archipelago_base::{Error, ErrorKind, Result, size};
use archipelago_fabric::{Endpoints, NodeId, Reach};
use archipelago_store::nodes::wire::{
    MemberState, NodeStanding, Refused, RepairStatus, StorageClusterStatus, StorageMember,
    StorageReport, StoreMessage,
};
use archipelago_store::nodes::{NodeStores, NodeStoresOptions, StorageId};
use archipelago_store::volume::{VolumeInfo, list};

use super::managers::{Managers, other_version};
use super::storage_text::{StorageView, scrub_words, show};
use super::{StatusDetails, space_text};
use crate::console::print_line;
use crate::secret::SecretArgs;

/// Time for which the status waits for the nodes that know the names of volumes.
const PATIENCE: Duration = Duration::from_secs(2);
/// Pause between two checks whether a cluster is founded, and the highest number of checks.
const FOUNDING_LOOK: Duration = Duration::from_millis(100);
const FOUNDING_LOOKS: u32 = 300;
/// Pause between two looks at the progress of a command.
const LOOK: Duration = Duration::from_secs(1);
/// Number of looks without progress after which a drain says so.
const LOOKS_WITHOUT_PROGRESS: u32 = 30;

/// Which node a command is about.
#[derive(clap::Args, Debug)]
pub(crate) struct NodeArgs {
    /// Number of the node, or the identity of a storage node, or the address of an executor.
    /// `archipelago cluster status` shows them
    #[arg(value_name = "NODE")]
    node: String,
}

impl NodeArgs {
    /// The text that the operator gave.
    pub(super) fn name(&self) -> &str {
        &self.node
    }

    /// The number of a memory node. `hint` says how the command takes a storage node.
    pub(super) fn memory(&self, hint: &str) -> Result<NodeId> {
        self.node.parse().map(NodeId).map_err(|_| {
            Error::invalid(format!(
                "{} is no number of a memory node: for a storage node {hint}",
                self.node
            ))
        })
    }
}

/// State of the storage nodes. `None`: the cluster has none.
pub(super) fn status(managers: &Managers) -> Result<Option<StorageClusterStatus>> {
    let status = match managers.ask(&StoreMessage::StorageStatus {}) {
        Ok(StoreMessage::StorageStatusIs { status }) => status,
        Ok(answer) => return Err(unexpected(answer, "the status of the storage nodes")),
        Err(error) => return Err(error),
    };
    Ok((!status.nodes.is_empty() || status.cluster.is_some()).then_some(status))
}

/// Waits until the storage cluster of these managers is founded. Errors: `Busy` after half a
/// minute, with the reason that the manager gives.
pub(super) fn wait_until_founded(at: &str, secret: &SecretArgs) -> Result<()> {
    let managers = Managers::of(at, secret)?;
    let mut why = "no manager answers".to_owned();
    for _ in 0..FOUNDING_LOOKS {
        match status(&managers) {
            Ok(Some(status)) if status.cluster.is_some() => return Ok(()),
            Ok(Some(status)) => why = status.waits_for,
            Ok(None) => why = "no storage node has registered".to_owned(),
            Err(error) => why = error.to_string(),
        }
        SystemClock::shared().sleep(FOUNDING_LOOK);
    }
    Err(Error::busy(format!("the storage nodes found no cluster: {why}")))
}

/// The status as text, with the names of the volumes.
pub(super) fn text(
    managers: &Managers,
    status: &StorageClusterStatus,
    details: StatusDetails,
) -> String {
    let volumes = match status.cluster {
        Some(_) => volumes(managers).map_err(|error| error.to_string()),
        None => Err("there is no cluster yet".to_owned()),
    };
    let view = StorageView { status, volumes };
    let space = if details.by_node { space_text::by_node(&view) } else { String::new() };
    show(&view) + &space
}

/// The volumes of the cluster's register.
fn volumes(managers: &Managers) -> Result<Vec<VolumeInfo>> {
    let endpoints = Arc::new(Endpoints::new().with_secret(managers.secret.clone()));
    let reach: Arc<dyn Reach> = endpoints;
    let options = NodeStoresOptions { patience: PATIENCE, ..NodeStoresOptions::default() };
    let stores = NodeStores::open(reach, ThreadRuntime::shared()?, managers.ways.clone(), options)?;
    list(&*stores.register)
}

/// The node that `args` names.
fn find(status: &StorageClusterStatus, args: &NodeArgs) -> Result<NodeStanding> {
    let text = &args.node;
    let is_named = |node: &&NodeStanding| {
        node.member.node.to_string() == *text || node.member.storage.to_string() == *text
    };
    let mut named = status.nodes.iter().filter(is_named);
    let (first, second) = (named.next(), named.next());
    match (first, second) {
        (Some(node), None) => Ok(node.clone()),
        (Some(_), Some(_)) => Err(Error::invalid(format!(
            "several storage nodes have number {text}, because the disks of one were replaced: name \
             the identity of the node, as `archipelago cluster status` shows it"
        ))),
        (None, _) => Err(Error::not_found(format!(
            "there is no storage node {text}: `archipelago cluster status` shows the nodes"
        ))),
    }
}

/// The status and the node that a command is about.
fn node(managers: &Managers, args: &NodeArgs) -> Result<NodeStanding> {
    match status(managers)? {
        Some(status) => find(&status, args),
        None => Err(Error::not_found(
            "the cluster has no storage nodes: start some with `archipelago node storage`",
        )),
    }
}

/// The node that a command is about, whether it belongs to the root set, and the repairs.
fn node_and_root(
    managers: &Managers,
    args: &NodeArgs,
) -> Result<(NodeStanding, bool, RepairStatus)> {
    let status = status(managers)?.unwrap_or_default();
    let node = find(&status, args)?;
    let is_root = status.root_set.members.contains(&node.member.storage);
    Ok((node, is_root, status.repair))
}

/// The error of an answer that is a refusal, or of another version.
fn unexpected(answer: StoreMessage, what: &str) -> Error {
    match answer {
        StoreMessage::Refuse { why, epoch, text } => Refused { why, epoch, text }.error(what),
        _ => other_version("the manager's answer"),
    }
}

/// Asks for something that is done or refused.
fn done(answer: StoreMessage, what: &str) -> Result<()> {
    match answer {
        StoreMessage::Done {} => Ok(()),
        answer => Err(unexpected(answer, what)),
    }
}

/// Gives up a storage node that will never return.
pub(super) fn forget(managers: &Managers, args: &NodeArgs) -> Result<()> {
    let StorageMember { storage, node: number, .. } = node(managers, args)?.member;
    let answer = managers.ask(&StoreMessage::ForgetNode { storage })?;
    done(answer, &format!("storage node {number} cannot be given up"))?;
    print_line!("Storage node {number} is given up; for the state see: archipelago cluster status");
    Ok(())
}

/// What a drain does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Drain {
    /// Empty the node, and show the progress until it is empty.
    Wait,
    /// Empty the node, without waiting.
    Begin,
    /// Use the node again.
    Cancel,
}

/// Empties a storage node.
pub(super) fn drain(managers: &Managers, args: &NodeArgs, drain: Drain) -> Result<()> {
    let StorageMember { storage, node: number, .. } = node(managers, args)?.member;
    let is_draining = drain != Drain::Cancel;
    let answer = managers.ask(&StoreMessage::DrainNode { storage, is_draining })?;
    done(answer, &format!("storage node {number} cannot be emptied"))?;
    match drain {
        Drain::Cancel => {
            print_line!("Storage node {number} gets new files again");
            return Ok(());
        }
        Drain::Begin => {
            print_line!("Storage node {number} is being emptied: archipelago cluster status");
            return Ok(());
        }
        Drain::Wait => {}
    }
    print_line!(
        "Storage node {number} gets no new files; Ctrl-C ends this command, and not the drain"
    );
    let mut progress = DrainProgress { left: u64::MAX, looks: 0 };
    watch(|| {
        let (found, is_root, repair) = node_and_root(managers, args)?;
        if found.member.state == MemberState::Lost {
            return Err(Error::new(
                ErrorKind::Busy,
                format!("storage node {number} does not answer any more, so it cannot be emptied"),
            ));
        }
        Ok(progress.look(&found, is_root, &repair))
    })
}

/// Whether nothing needs a draining node of which `left` objects are left.
fn is_emptied(left: u64, storage: StorageId, repair: &RepairStatus) -> bool {
    let debt = repair.nodes.iter().find(|debt| debt.storage == storage);
    // An object without a target is not left to be made now, and needs the node all the same.
    left == 0 && repair.is_known && debt.is_none_or(|debt| debt.stuck == 0)
}

/// What a draining node waits for, one sentence per reason.
fn reasons_of_wait(node: &NodeStanding, is_root: bool, repair: &RepairStatus) -> Vec<String> {
    let StorageReport { chunks, chunks_unsealed, extents_open, .. } = node.report;
    let copies = repair.extents_left;
    let counted = [
        (chunks, "chunks are deleted when other nodes have them"),
        (chunks_unsealed, "unsealed chunks leave when their writers are done"),
        (
            extents_open,
            "open extents leave when the owner of their volume runs and other domains have room, \
             or when their logs are removed",
        ),
        (copies, "copies of extents are to be made in the cluster"),
    ];
    let counted = counted.into_iter().filter(|(count, _)| *count > 0);
    let mut reasons: Vec<String> = counted.map(|(count, why)| format!("{count} {why}")).collect();
    if !repair.is_known {
        reasons.push(
            "Not all nodes have listed what they hold since the drain began, and since the node \
             sealed an extent of a log"
                .to_owned(),
        );
    }
    if is_root {
        reasons.push(
            "The node keeps owners and leases of volumes, as a node of the root set: start a node \
             in another domain"
                .to_owned(),
        );
    }
    let debt = repair.nodes.iter().find(|debt| debt.storage == node.member.storage);
    let examples = debt.iter().flat_map(|debt| &debt.examples);
    reasons.extend(examples.map(|example| format!("It cannot move now: {example}")));
    reasons
}

/// Progress of a drain, as this command has shown it.
struct DrainProgress {
    left: u64,
    /// Looks since the last progress.
    looks: u32,
}

impl DrainProgress {
    /// Shows progress. Returns whether the node is empty and can be stopped.
    fn look(&mut self, node: &NodeStanding, is_root: bool, repair: &RepairStatus) -> bool {
        let (report, number) = (&node.report, node.member.node);
        // Copies of sealed extents are made before the node may go.
        let now = report.needed_objects() + repair.extents_left;
        if now < self.left {
            (self.left, self.looks) = (now, 0);
            print_line!(
                "Storage node {number}: {} chunks ({}), {} copies of extents and {} open extents \
                 left",
                report.chunks + report.chunks_unsealed,
                size::show(report.space.used_bytes),
                repair.extents_left,
                report.extents_open
            );
        } else {
            self.looks += 1;
            if self.looks.is_multiple_of(LOOKS_WITHOUT_PROGRESS) {
                let silence = u64::from(self.looks) * LOOK.as_secs();
                print_line!("Storage node {number}: no progress for {silence} s");
                for reason in reasons_of_wait(node, is_root, repair) {
                    print_line!("  {reason}");
                }
            }
        }
        let is_done = !is_root && is_emptied(now, node.member.storage, repair);
        if is_done {
            print_line!(
                "Storage node {number} is empty: stop it, and run: archipelago cluster forget --storage {number}"
            );
        }
        is_done
    }
}

/// Reads and checks everything that a storage node holds.
pub(super) fn scrub(managers: &Managers, args: &NodeArgs) -> Result<()> {
    let node = node(managers, args)?;
    let (member, number) = (&node.member, node.member.node);
    let rounds = ask_report(managers, member)?.scrub.rounds;
    let answer = managers.ask_node(member, &StoreMessage::Scrub {})?;
    done(answer, &format!("storage node {number} cannot be scrubbed"))?;
    let mut damaged = 0;
    watch(|| {
        let scrub = ask_report(managers, member)?.scrub;
        print_line!("Storage node {number}: {}", scrub_words(&scrub));
        damaged = scrub.damaged_chunks;
        Ok(!scrub.is_running && scrub.rounds > rounds)
    })?;
    match damaged {
        0 => Ok(()),
        chunks => Err(Error::new(
            ErrorKind::Corrupt,
            format!(
                "storage node {number} has {chunks} damaged chunks: readers use the other copies; \
                 look at the node's disks"
            ),
        )),
    }
}

fn ask_report(managers: &Managers, member: &StorageMember) -> Result<StorageReport> {
    match managers.ask_node(member, &StoreMessage::NodeStatus {})? {
        StoreMessage::NodeStatusIs { report, .. } => Ok(report),
        answer => Err(unexpected(answer, &format!("the status of storage node {}", member.node))),
    }
}

/// Calls `look` once a second until it says that the command is done.
pub(super) fn watch(mut look: impl FnMut() -> Result<bool>) -> Result<()> {
    let clock = SystemClock::new();
    while !look()? {
        clock.sleep(LOOK);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use archipelago_base::Epoch;
    use archipelago_store::nodes::wire::{NodeDebt, NodeSpace};

    use super::*;

    #[test]
    fn drained_node_is_empty_when_no_object_needs_it() {
        let (node, other) = (StorageId(1), StorageId(2));
        let stuck = |storage, stuck| NodeDebt { storage, stuck, ..NodeDebt::default() };
        let repair = |is_known, nodes| RepairStatus { is_known, nodes, ..RepairStatus::default() };
        assert!(is_emptied(0, node, &repair(true, vec![stuck(node, 0), stuck(other, 3)])));
        assert!(!is_emptied(1, node, &repair(true, Vec::new())));
        assert!(!is_emptied(0, node, &repair(false, Vec::new())));
        let lacks_target = repair(true, vec![stuck(node, 1)]);
        assert!(!is_emptied(0, node, &lacks_target), "an extent has no other place");
    }

    #[test]
    fn drain_without_progress_says_only_what_it_waits_for() {
        let storage = StorageId(1);
        let member = StorageMember {
            storage,
            node: NodeId(1),
            life: Epoch(1),
            endpoints: Vec::new(),
            domain: String::new(),
            state: MemberState::Draining,
            space: NodeSpace { capacity_bytes: 1, used_bytes: 0 },
        };
        let standing = |chunks, extents_open| {
            let report = StorageReport { chunks, extents_open, ..StorageReport::default() };
            NodeStanding { member: member.clone(), silent_ms: 0, report }
        };
        let known = RepairStatus { is_known: true, ..RepairStatus::default() };
        assert!(reasons_of_wait(&standing(0, 0), false, &known).is_empty());
        let open = reasons_of_wait(&standing(0, 4), false, &known);
        assert!(open.len() == 1 && open[0].starts_with("4 open extents leave"), "{open:?}");
        let debt = NodeDebt { storage, examples: vec!["blob 9".into()], ..NodeDebt::default() };
        let nodes = vec![debt];
        let unknown = RepairStatus { extents_left: 2, nodes, ..RepairStatus::default() };
        let all = reasons_of_wait(&standing(3, 0), true, &unknown);
        let begins = ["3 chunks", "2 copies", "Not all nodes have listed", "The node keeps owners"];
        assert_eq!(all.len(), 5, "{all:?}");
        for (reason, begin) in all.iter().zip(begins) {
            assert!(reason.starts_with(begin), "{reason}");
        }
        assert_eq!(all[4], "It cannot move now: blob 9");
    }
}
