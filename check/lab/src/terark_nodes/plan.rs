//! The runs: groups of rows, the cells that they need, and the steps of a cell. The functions are
//! pure.
//!
//! A *cell* is a mode, a workload, a card and a course. A *course* is a list of steps on one
//! database. A step is a process of the client, or an action on the storage nodes.

use serde::{Deserialize, Serialize};

use super::flags::NodesFlags;
use super::link::Card;
use super::modes::{Mode, Workload};

/// A group of rows, by its name in `--only`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
#[value(rename_all = "lower")]
pub(super) enum Group {
    Insert,
    Update,
    Read,
    Scan,
    Ycsb,
    Redundancy,
    Log,
    Buffer,
    Space,
    Gc,
    Cpu,
    Cost,
    Model,
    Motivation,
    Loopback,
    Recovery,
    Growth,
    Embedded,
}

impl Group {
    pub(super) const ALL: [Self; 18] = [
        Self::Insert,
        Self::Update,
        Self::Read,
        Self::Scan,
        Self::Ycsb,
        Self::Redundancy,
        Self::Log,
        Self::Buffer,
        Self::Space,
        Self::Gc,
        Self::Cpu,
        Self::Cost,
        Self::Model,
        Self::Motivation,
        Self::Loopback,
        Self::Recovery,
        Self::Growth,
        Self::Embedded,
    ];

    /// Title of its section.
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Insert => "Inserts (Figures 11 and 12)",
            Self::Update => "Updates at a bound of 1.5 on space (Figure 11)",
            Self::Read => "Point reads (Figure 11)",
            Self::Scan => "Range reads (Figure 11)",
            Self::Ycsb => "YCSB with values of 16 KiB (Figure 13)",
            Self::Redundancy => "Redundancy by class (Figure 14)",
            Self::Log => "Adaptive log writing (Figure 15a)",
            Self::Buffer => "The log buffer (Figure 15b)",
            Self::Space => "Space under throttled updates (Figure 16)",
            Self::Gc => "Garbage collection, index not cached (section 4.4)",
            Self::Cpu => "Processor time (Figure 17)",
            Self::Cost => "Cost at the paper's prices (Table 4)",
            Self::Model => "The model of redundancy (Figure 7)",
            Self::Motivation => "Local and remote, with and without a log (Figures 3 and 4)",
            Self::Loopback => "Nothing emulated: loopback",
            Self::Recovery => "Repair of a lost node, and take-over of a volume",
            Self::Growth => "Growth from 6 to 60 nodes in virtual time",
            Self::Embedded => "An embedded database, against an earlier program",
        }
    }

    /// Whether network and devices are emulated in all runs of the group.
    pub(super) fn is_emulated(self) -> bool {
        !matches!(self, Self::Loopback | Self::Recovery | Self::Growth | Self::Embedded)
    }

    /// Whether runs of the group have processes of storage nodes.
    pub(super) fn has_nodes(self) -> bool {
        !matches!(self, Self::Growth | Self::Embedded)
    }
}

/// A step of a course.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Step {
    /// Each record once into an empty database, measured.
    Load,
    /// Each record once into an empty database, to prepare another step.
    Prepare,
    /// Three updates per record, and then point reads by the same process.
    Update,
    /// Point reads by a new process. The first ones fill the cache.
    Read,
    /// Point reads by a new process after a storage node was killed.
    DegradedRead,
    Scan,
    /// Updates at a limited rate.
    Throttled,
    /// Updates with a cache that holds no index.
    ColdUpdate,
    /// Point reads of one thread without a cache.
    KeyByKey,
    /// Point reads of one thread that measure the latency of a request.
    Latency,
    /// The load and the six workloads of YCSB.
    Ycsb,
    /// A load of 16 KiB values by one thread, in batches that are as long as a group of many
    /// threads. So one group of the log is under way at a time.
    SingleGroups,
    /// A load of 16 KiB values by all threads.
    LoopFill,
    /// Reads of these values with a cache that holds all of them.
    LoopRead,
    /// A node is killed, and its bytes come back on the others.
    Repair,
    /// The owner is killed, and another process opens the volume when its lease has ended.
    TakeOver,
    /// The updates of the owner of a take-over, which continue until it is killed.
    Owner,
    /// Point reads at a limited rate for some seconds, while a node is lost or repaired.
    Foreground,
    /// Clusters of growing size in virtual time.
    Growth,
    /// Rates, instructions and files of an embedded database.
    Embedded,
}

/// A list of steps on one database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Course {
    Fill,
    Whole,
    Scan,
    Degraded,
    Throttled,
    Collection,
    Latency,
    Ycsb,
    /// Loads with one group of the log under way at a time, and with several.
    Groups,
    Loopback,
    Repair,
    TakeOver,
    Growth,
    Embedded,
}

impl Course {
    pub(super) fn steps(self) -> &'static [Step] {
        match self {
            Self::Fill => &[Step::Load],
            Self::Whole => &[Step::Load, Step::Update, Step::Read, Step::Scan],
            Self::Scan => &[Step::Prepare, Step::Scan],
            Self::Degraded => &[Step::Prepare, Step::DegradedRead],
            Self::Throttled => &[Step::Prepare, Step::Throttled],
            Self::Collection => &[Step::Prepare, Step::ColdUpdate, Step::KeyByKey],
            Self::Latency => &[Step::Prepare, Step::Latency],
            Self::Ycsb => &[Step::Ycsb],
            Self::Groups => &[Step::SingleGroups, Step::LoopFill],
            Self::Loopback => &[Step::LoopFill, Step::LoopRead],
            Self::Repair => &[Step::Prepare, Step::Repair],
            Self::TakeOver => &[Step::Prepare, Step::TakeOver],
            Self::Growth => &[Step::Growth],
            Self::Embedded => &[Step::Embedded],
        }
    }

    /// Number of storage nodes. A repair of coded files needs one more than their chunks.
    pub(super) fn nodes(self) -> u64 {
        if self == Self::Repair { 7 } else { 6 }
    }
}

/// Mode, workload, card and course that are measured together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct Cell {
    pub(super) workload: Workload,
    pub(super) mode: Mode,
    pub(super) card: Card,
    pub(super) course: Course,
}

impl Cell {
    pub(super) fn name(&self) -> String {
        let Self { workload, mode, card, course } = self;
        format!("{}, {}, card {}, {course:?}", workload.name(), mode.name(), card.name())
    }
}

/// The cells of a group, in the order of its runs.
pub(super) fn cells_of(group: Group) -> Vec<Cell> {
    use Mode::{
        AllOn, AllOnBuffered, AllOnByKey, AllOnNoPrefetch, AllOnStretch, Dr, DrBuffered, Embedded,
        EmbeddedBefore, InlineEc, InlineEcRows, InlineNoLog, InlineR3, LocalInline,
        LocalInlineNoLog, LocalSeparated, LocalSeparatedNoLog, SeparatedEc, SeparatedNoLog,
        SeparatedR3, Simulated,
    };
    let mut cells = Vec::new();
    let mut add = |workloads: &[Workload], modes: &[Mode], card, course| {
        for &workload in workloads {
            cells.extend(modes.iter().map(|&mode| Cell { workload, mode, card, course }));
        }
    };
    let six = [InlineR3, InlineEc, SeparatedR3, SeparatedEc, Dr, AllOn];
    let (all, fixed, mixed) = (&Workload::ALL, &[Workload::Fixed16k], &[Workload::Mixed8k]);
    match group {
        Group::Insert => add(all, &six, Card::Full, Course::Fill),
        Group::Update | Group::Read => add(all, &six, Card::Full, Course::Whole),
        Group::Scan => {
            add(all, &[InlineR3, SeparatedR3, AllOn], Card::Full, Course::Whole);
            add(fixed, &[AllOn, AllOnNoPrefetch], Card::Full, Course::Scan);
        }
        Group::Ycsb => add(fixed, &[InlineR3, SeparatedR3, AllOn], Card::Full, Course::Ycsb),
        Group::Redundancy => {
            add(all, &[SeparatedR3, SeparatedEc, Dr], Card::Full, Course::Whole);
            add(all, &[SeparatedR3, SeparatedEc, Dr], Card::Full, Course::Degraded);
        }
        Group::Log => {
            add(all, &[Dr, AllOn], Card::Full, Course::Fill);
            add(all, &[Dr, AllOn], Card::Fourfold, Course::Fill);
            add(fixed, &[Dr, AllOn], Card::Full, Course::Groups);
            add(fixed, &[Dr, AllOn], Card::Fourfold, Course::Groups);
        }
        Group::Buffer => add(all, &[Dr, DrBuffered, AllOnBuffered], Card::Full, Course::Fill),
        Group::Space => {
            let modes =
                [InlineR3, InlineEc, SeparatedR3, SeparatedEc, AllOn, AllOnStretch, AllOnByKey];
            add(all, &modes, Card::Full, Course::Throttled);
        }
        Group::Gc => add(fixed, &[AllOn], Card::Full, Course::Collection),
        Group::Cpu => add(mixed, &[SeparatedR3, SeparatedEc, Dr, AllOn], Card::Full, Course::Whole),
        Group::Cost => {
            let modes = [InlineR3, InlineEc, SeparatedR3, SeparatedEc, AllOn];
            add(mixed, &modes, Card::Full, Course::Whole);
            add(mixed, &modes, Card::Full, Course::Throttled);
        }
        Group::Model => {
            let modes = [InlineR3, InlineEc, InlineEcRows];
            add(&[Workload::Pareto1k], &modes, Card::Full, Course::Latency);
            add(fixed, &[Dr], Card::Full, Course::Latency);
        }
        Group::Motivation => {
            let local = [LocalInline, LocalInlineNoLog, LocalSeparated, LocalSeparatedNoLog];
            let remote = [InlineR3, InlineNoLog, SeparatedR3, SeparatedNoLog];
            add(mixed, &local, Card::Full, Course::Whole);
            add(mixed, &remote, Card::Full, Course::Whole);
        }
        Group::Loopback => add(fixed, &[Dr, LocalSeparated], Card::Absent, Course::Loopback),
        Group::Recovery => {
            add(fixed, &[Dr], Card::Full, Course::Repair);
            add(fixed, &[Dr], Card::Absent, Course::TakeOver);
        }
        Group::Growth => add(fixed, &[Simulated], Card::Absent, Course::Growth),
        Group::Embedded => {
            add(fixed, &[EmbeddedBefore, Embedded], Card::Absent, Course::Embedded);
        }
    }
    cells
}

/// The cells of the wanted groups, each once. A whole course contains a load, so that the course of
/// a load alone is left out.
pub(super) fn cells(flags: &NodesFlags) -> Vec<Cell> {
    let mut cells: Vec<Cell> = Vec::new();
    for cell in flags.groups().into_iter().flat_map(cells_of) {
        if flags.has(cell.workload, cell.mode) && !cells.contains(&cell) {
            cells.push(cell);
        }
    }
    let whole = cells.clone();
    let is_contained = |cell: &Cell| {
        cell.course == Course::Fill && whole.contains(&Cell { course: Course::Whole, ..*cell })
    };
    cells.retain(|cell| !is_contained(cell));
    cells
}
