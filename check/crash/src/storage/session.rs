//! The cycles of a run: an owner writes, a fault hits at a step, and a check compares the volume
//! with the acknowledged operations.
//!
//! Each cycle has one fault. So at most one node is away, unless all processes die and return, and
//! no acknowledged operation may be lost. The check runs in this process, as the next owner of the
//! volume: before the processes of the fault are back or after it, as the seed decides. A cycle of
//! the step `repair` loses a node before its fault. If the fault takes another node away, the lost
//! one returns before the check.
//!
//! Invariants that each cycle checks, beyond those of [`crate::check`]:
//! 1. The failure of a node or of the manager fails no write of the owner.
//! 2. An owner that lives or is stopped while another one takes the volume over ends as fenced. It
//!    acknowledges nothing that the new owner does not have.
//! 3. A second owner that was stopped while it opened the volume either owns it afterwards, or ends
//!    because the volume belongs to another one.
//! 4. After a fault during copies of chunks, the manager has nothing left to copy in the end.

use std::path::Path;
use std::time::Duration;

use archipelago::{Rng, SystemClock};

use super::cases::{Case, Victim};
use super::cluster::{Cluster, ClusterPlan};
use super::losses;
use super::owner::{COPIED, OwnerRole, VolumePlan};
use super::steps::Step;
use crate::arguments::Arguments;
use crate::check::Found;
use crate::children::{
    AtStep, AtStepSeen, BUSY, Deck, FENCED, Fault, GO_ON, Heard, OPENED, PATIENCE, Process, Share,
    StepMoment, Tally, await_step, stop_at,
};
use crate::course::Course;
use crate::cycles::{Session, sleep_ms, text};
use crate::sabotage::{Sabotage, damage};
use crate::settings::{COUNTERS, family_name};

/// Length of the lease of an owner that writes.
const OWNER_LEASE_MS: u64 = 2000;
/// Length of the lease of the check, which nothing disturbs.
const CHECK_LEASE_MS: u64 = 20_000;
/// Pause between two attempts to let an owner go on.
const GO_ON_PAUSE: Duration = Duration::from_millis(50);
/// Number of writes after which nodes are lost.
const LOSS_WRITES: u64 = 800;
/// Longest time between the begin of a copy and the fault. A chunk of 64 KiB takes as long at the
/// rate of the run.
const COPY_MS_MAX: u64 = 60;
/// One owner in this number sends its jobs away although the fault hits no executor.
const OFFLOADS_ONE_IN: u8 = 4;
/// Longest time for which a first owner writes before a second one opens the volume.
const FIRST_OWNER_MS_MAX: u64 = 300;

/// An owner that is left at the end of a cycle, alive or stopped.
#[derive(Debug)]
struct LeftOwner {
    process: Process,
    /// Whether the owner's database was open, so that another owner must have fenced it.
    is_open: bool,
}

/// Choices of the next check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CheckPlan {
    take_over: bool,
    /// Whether nodes that do not answer are given up.
    accept_loss: bool,
    sabotage: Option<Sabotage>,
}

impl CheckPlan {
    /// A check by a new owner that takes the volume over.
    const TAKE_OVER: Self = Self { take_over: true, accept_loss: false, sabotage: None };
}

/// Writes that lie in logs when nodes are lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LastWrites {
    /// The owner is killed during its writes, so two of three nodes may have the last ones.
    UnderWay,
    /// The logs have all their copies before the owner is killed.
    Copied,
}

/// The state of a run over storage nodes.
pub(super) struct StorageSession<'a> {
    course: Course<'a>,
    deck: Deck<Case>,
    cluster: Cluster,
    /// Number of databases so far, each in a volume of its own.
    databases: u64,
    tally: Tally<Case>,
    /// Owners that ended as fenced.
    fenced: u64,
    /// Whether the owners of the present cycle send jobs to executors.
    offloads: bool,
}

impl<'a> Session<'a> for StorageSession<'a> {
    type Case = Case;

    fn start(arguments: &'a Arguments, seed: u64, dir: &Path) -> Result<Self, String> {
        let mut seeds = Rng::with_seed(seed);
        let plan = ClusterPlan {
            dir: dir.join("cluster"),
            nodes: arguments.storage,
            full_disk: arguments.full_disk,
            seed: seeds.u64(..),
        };
        let cases = Case::all(arguments.storage, arguments.full_disk);
        Ok(Self {
            deck: Deck::new(seeds.u64(..), cases.clone()),
            cluster: Cluster::start(&plan)?,
            databases: 0,
            tally: Tally::new(cases),
            fenced: 0,
            offloads: false,
            course: Course::new(arguments, dir, seeds),
        })
    }

    // A new database lies in a new volume, and the last volume is emptied.
    fn begin_database(&mut self) -> Result<(), String> {
        if self.databases > 0 {
            self.volume(true).remove_database().map_err(text)?;
        }
        self.databases += 1;
        self.course.begin_database()
    }

    fn cycle(&mut self) -> Result<(Case, bool), String> {
        let case = self.deck.draw();
        let told = |problem: String| format!("{case}: {problem}");
        self.course.begin_cycle()?;
        let mut left = Vec::new();
        self.offloads = self.chooses_offloading(case);
        let hit = match (case.step, case.victim) {
            (step, _) if step.is_copy() => self.fault_at_copies(case, &mut left),
            (Step::TakeOver, _) => self.fault_at_take_over(case, &mut left),
            (_, Victim::Nobody) => self.second_owner(case, &mut left),
            _ => self.fault_under_load(case, &mut left),
        };
        let hit = hit.map_err(told)?;
        match case.victim == Victim::Everything || self.course.rng().bool() {
            true => self.cluster.restore().map_err(told)?,
            // A volume cannot be opened without a manager.
            false => self.cluster.restore_manager().map_err(told)?,
        }
        let take_over = !left.is_empty() || self.course.rng().u8(..8) > 0;
        let plan = CheckPlan { take_over, ..CheckPlan::TAKE_OVER };
        let found = self.check(plan).map_err(told)?;
        self.cluster.restore().map_err(told)?;
        self.finish(left, &found).map_err(told)?;
        self.cluster.end_copies().map_err(told)?;
        self.offloads = false;
        self.tally.note(case, hit);
        self.course.count_cycle();
        Ok((case, hit))
    }

    fn damaged_cycle(&mut self, sabotage: Sabotage) -> Result<(), String> {
        self.course.begin_cycle()?;
        let moment = StepMoment { step: Step::Write, after: 1500, reaction: AtStep::Die };
        let mut owner = self.start_owner(Share::All, moment)?;
        await_step(&mut owner, AtStepSeen::Opening)?;
        owner.kill()?;
        self.check(CheckPlan { sabotage: Some(sabotage), ..CheckPlan::TAKE_OVER }).map(drop)
    }

    fn end_database(&mut self) -> Result<(), String> {
        Ok(())
    }

    fn after_cycles(&mut self) -> Result<String, String> {
        let Arguments { cycles, losses, .. } = *self.course.arguments();
        if losses == 0 {
            return Ok(String::new());
        }
        if cycles == 0 {
            self.begin_database()?;
        }
        let pairs = losses::try_pairs(self, losses)?;
        Ok(format!("{pairs} pairs of nodes lost, "))
    }

    fn end(self) -> Result<String, String> {
        self.cluster.end()?;
        if let Some(lacks) = self.tally.lacking_row().or_else(|| self.tally.lacking_column()) {
            return Err(format!("{lacks}, so the run shows nothing of it\n{}", self.tally.table()));
        }
        Ok(format!(
            "{} cycles, {} faults at their steps, {} acknowledged operations, {} owners fenced\n{}",
            self.tally.tried(),
            self.tally.hit(),
            self.course.operations(),
            self.fenced,
            self.tally.table()
        ))
    }
}

impl StorageSession<'_> {
    /// The cluster, for losses outside cycles.
    pub(super) fn cluster(&mut self) -> &mut Cluster {
        &mut self.cluster
    }

    /// The choices of the run.
    pub(super) fn rng(&mut self) -> &mut Rng {
        self.course.rng()
    }

    fn volume(&mut self, take_over: bool) -> VolumePlan {
        VolumePlan {
            manager: self.cluster.address().to_owned(),
            volume: format!("database{}", self.databases),
            seed: self.course.seed(),
            open_seed: self.course.rng().u64(..),
            take_over,
            lease_ms: CHECK_LEASE_MS,
            full_disk: self.course.arguments().full_disk,
            accept_loss: false,
            offloads: false,
        }
    }

    /// Whether the owners of a cycle send jobs to executors. An owner whose compactions run
    /// elsewhere writes none of their files, so its own steps have other moments.
    fn chooses_offloading(&mut self, case: Case) -> bool {
        let is_job = matches!(case.step, Step::Compaction | Step::Gc);
        let is_chosen = self.course.rng().u8(..OFFLOADS_ONE_IN) == 0;
        self.cluster.has_executors() && (case.victim == Victim::Executor || (is_chosen && !is_job))
    }

    /// Ends the owners that another owner must have fenced, and compares their acknowledged
    /// operations with the contents that the check has found.
    fn finish(&mut self, left: Vec<LeftOwner>, found: &Found) -> Result<(), String> {
        let mut is_taken_again = false;
        for owner in left {
            is_taken_again |= self.finish_owner(owner)?;
        }
        if is_taken_again {
            return self.check(CheckPlan::TAKE_OVER).map(drop);
        }
        let acknowledged = self.course.acknowledged()?;
        self.course.progress().settle(&acknowledged, found).map_err(|problem| {
            format!("after its take-over, an old owner acknowledged what is lost: {problem}")
        })
    }

    /// Waits for the end of an owner as fenced. An owner that was opening may take the volume
    /// instead, and is killed after some writes. Returns whether it did.
    fn finish_owner(&mut self, mut owner: LeftOwner) -> Result<bool, String> {
        let clock = SystemClock::shared();
        let until_ns = clock.now_ns() + PATIENCE.as_nanos() as u64;
        loop {
            // The process may be stopped, or wait at the step.
            owner.process.go_on();
            owner.process.tell(GO_ON);
            match owner.process.hear(GO_ON_PAUSE) {
                Heard::Line(line) if line == OPENED && !owner.is_open => {
                    self.course.run_on();
                    owner.process.kill()?;
                    return Ok(true);
                }
                Heard::Line(_) | Heard::Silence => {}
                Heard::End => break,
            }
            if clock.now_ns() > until_ns {
                let said = owner.process.messages();
                return Err(format!("an old owner did not end in {PATIENCE:?}: {said}"));
            }
        }
        let status = owner.process.wait(PATIENCE)?;
        let is_late = !owner.is_open && status.code() == Some(i32::from(BUSY));
        if !is_late && status.code() != Some(i32::from(FENCED)) {
            let said = owner.process.messages();
            return Err(format!("an old owner ended, but not as fenced ({status}): {said}"));
        }
        self.fenced += 1;
        Ok(false)
    }

    /// Lets an owner with all threads come to the step, where the fault hits.
    fn fault_under_load(&mut self, case: Case, left: &mut Vec<LeftOwner>) -> Result<bool, String> {
        let moment = self.moment(case);
        let mut owner = self.start_owner(Share::All, moment)?;
        let seen = await_step(&mut owner, AtStepSeen::Opening)?;
        let is_at_work = self.strike(case, StruckOwner { process: owner, seen }, left)?;
        Ok(is_at_work && seen != AtStepSeen::Never)
    }

    /// Lets the nodes copy chunks while an owner with all threads works. The fault hits during a
    /// copy.
    fn fault_at_copies(&mut self, case: Case, left: &mut Vec<LeftOwner>) -> Result<bool, String> {
        let nothing = StepMoment { step: Step::Write, after: 0, reaction: AtStep::Nothing };
        let share = if case.victim == Victim::Nobody { Share::FirstHalf } else { Share::All };
        // An owner that has done all operations stays, so that a copy has an owner in any case.
        let role = OwnerRole { stays: true, ..self.owner(share, nothing) };
        let mut owner = Process::start("owner", &role.words(), self.course.dir())?;
        owner.expect(OPENED, PATIENCE)?;
        let Some(from) = self.cluster.await_chunks()? else {
            return owner.kill_healthy().map(|()| false);
        };
        self.cluster.begin_copies(case.step, from)?;
        let target = self.cluster.await_copy(from);
        sleep_ms(self.course.rng().u64(..COPY_MS_MAX));
        let node = match (case.victim, case.step, target) {
            (Victim::Target, _, Some(target)) => target,
            (Victim::Source, Step::Repair, Some(target)) => self.cluster.other_node(from, target),
            (Victim::Source, Step::Repair, None) => self.cluster.other_node(from, from),
            (Victim::Target, _, None) => self.cluster.other_node(from, from),
            _ => from,
        };
        match (case.victim, case.fault) {
            (Victim::Owner, Fault::Kill) => owner.kill_healthy()?,
            (Victim::Owner, Fault::Stop) => {
                if owner.stop()? {
                    left.push(LeftOwner { process: owner, is_open: true });
                }
            }
            (Victim::Everything, fault) => {
                self.cluster.take_all(fault)?;
                owner.kill().map(drop)?;
            }
            (Victim::Nobody, _) => {
                let mut second = self.start_owner(Share::SecondHalf, nothing)?;
                second.expect(OPENED, PATIENCE)?;
                left.push(LeftOwner { process: owner, is_open: true });
                self.course.run_on();
                second.kill_healthy()?;
            }
            (victim, fault) => {
                match victim {
                    Victim::Manager => self.cluster.take_manager(fault)?,
                    Victim::Executor => {
                        let executor = self.cluster.any_executor();
                        self.cluster.take_executor(executor, fault)?;
                    }
                    _ => self.cluster.take_node(node, fault)?,
                }
                self.course.run_on();
                owner.kill_healthy()?;
            }
        }
        if case.step == Step::Repair && matches!(case.victim, Victim::Source | Victim::Target) {
            self.cluster.restore_node(from)?;
        }
        Ok(target.is_some())
    }

    /// Lets a second owner take the volume over from a first one, which lives, is stopped or is
    /// killed. The fault hits during the opening of the second owner.
    fn fault_at_take_over(
        &mut self,
        case: Case,
        left: &mut Vec<LeftOwner>,
    ) -> Result<bool, String> {
        let nothing = StepMoment { step: Step::Write, after: 0, reaction: AtStep::Nothing };
        let mut first = self.start_owner(Share::FirstHalf, nothing)?;
        first.expect(OPENED, PATIENCE)?;
        sleep_ms(self.course.rng().u64(..FIRST_OWNER_MS_MAX));
        let is_left = match self.course.rng().u8(..3) {
            0 => true,
            1 => first.stop()?,
            _ => !first.kill()?,
        };
        if is_left {
            left.push(LeftOwner { process: first, is_open: true });
        }
        let moment = self.moment(case);
        let mut second = self.start_owner(Share::SecondHalf, moment)?;
        let seen = await_step(&mut second, AtStepSeen::Opening)?;
        let is_at_work = self.strike(case, StruckOwner { process: second, seen }, left)?;
        Ok(is_at_work && seen == AtStepSeen::Opening)
    }

    /// Lets a second owner take the volume over while the first one is at the step.
    fn second_owner(&mut self, case: Case, left: &mut Vec<LeftOwner>) -> Result<bool, String> {
        let moment = self.moment(case);
        let mut first = self.start_owner(Share::FirstHalf, moment)?;
        let seen = await_step(&mut first, AtStepSeen::Opening)?;
        let goes_on_early = self.course.rng().bool();
        if goes_on_early {
            first.tell(GO_ON);
        }
        let nothing = StepMoment { reaction: AtStep::Nothing, ..moment };
        let mut second = self.start_owner(Share::SecondHalf, nothing)?;
        second.expect(OPENED, PATIENCE)?;
        first.tell(GO_ON);
        left.push(LeftOwner { process: first, is_open: true });
        self.course.run_on();
        second.kill_healthy()?;
        Ok(seen != AtStepSeen::Never)
    }

    /// The moment of the step, and the owner's action there.
    fn moment(&mut self, case: Case) -> StepMoment<Step> {
        let own = (case.victim == Victim::Owner).then_some(case.fault);
        let reaction = AtStep::of_owner(own);
        StepMoment {
            step: case.step,
            after: self.course.rng().u64(..case.step.moments()),
            reaction,
        }
    }

    fn start_owner(&mut self, share: Share, moment: StepMoment<Step>) -> Result<Process, String> {
        let role = self.owner(share, moment);
        let name = if share == Share::SecondHalf { "second owner" } else { "owner" };
        Process::start(name, &role.words(), self.course.dir())
    }

    /// An owner that runs a share of the threads. The second owner takes the volume over.
    fn owner(&mut self, share: Share, moment: StepMoment<Step>) -> OwnerRole {
        let threads = self.course.threads(share);
        let ops_per_thread = self.course.ops_per_thread();
        let take_over = share == Share::SecondHalf;
        let (lease_ms, offloads) = (OWNER_LEASE_MS, self.offloads);
        let volume = VolumePlan { lease_ms, offloads, ..self.volume(take_over) };
        OwnerRole {
            volume,
            acks: self.course.acks_path(),
            ops_per_thread,
            threads,
            moment,
            stays: false,
        }
    }

    /// Makes the fault of the case. Afterwards no owner runs, except the owners that are left.
    /// Returns whether the victim was at work for the step.
    fn strike(
        &mut self,
        case: Case,
        struck: StruckOwner,
        left: &mut Vec<LeftOwner>,
    ) -> Result<bool, String> {
        let StruckOwner { process: mut owner, seen } = struck;
        let mut is_at_work = true;
        match (case.victim, case.fault) {
            (Victim::Owner, Fault::Kill) if seen != AtStepSeen::Never => {
                return owner.wait_for_death(PATIENCE).map(|()| true);
            }
            (Victim::Owner, Fault::Kill) => return owner.kill().map(|_| true),
            (Victim::Owner, Fault::Stop) => {
                if stop_at(&mut owner, seen)? {
                    left.push(LeftOwner { process: owner, is_open: seen != AtStepSeen::Opening });
                }
                return Ok(true);
            }
            (Victim::Everything, _) => {
                let is_owner_first = self.course.rng().bool();
                if is_owner_first {
                    owner.kill()?;
                }
                self.cluster.take_all(case.fault)?;
                return owner.kill().map(|_| true);
            }
            (Victim::Executor, fault) => {
                is_at_work = self.strike_executor(case.step, fault, &mut owner)?;
            }
            (Victim::Node | Victim::Source | Victim::Target, fault) => {
                let index = self.course.rng().usize(..self.cluster.node_count());
                self.cluster.take_node(index, fault)?;
            }
            (Victim::Manager, fault) => self.cluster.take_manager(fault)?,
            (Victim::Nobody, _) => {}
        }
        owner.tell(GO_ON);
        if seen == AtStepSeen::Opening {
            if case.victim == Victim::Manager {
                self.course.run_on();
                self.cluster.restore_manager()?;
            }
            owner.expect(OPENED, PATIENCE)?;
        }
        self.course.run_on();
        owner.kill_healthy().map(|()| is_at_work)
    }

    /// Takes an executor away. At the steps of jobs the owner goes on, and the executor that begins
    /// the next job is taken. Returns whether the executor was at work for the step.
    fn strike_executor(
        &mut self,
        step: Step,
        fault: Fault,
        owner: &mut Process,
    ) -> Result<bool, String> {
        let mut busy = None;
        let is_job = matches!(step, Step::Compaction | Step::Gc);
        if is_job {
            self.cluster.forget_jobs();
            owner.tell(GO_ON);
            busy = self.cluster.await_job();
        }
        let index = busy.unwrap_or_else(|| self.cluster.any_executor());
        self.cluster.take_executor(index, fault)?;
        Ok(!is_job || busy.is_some())
    }

    /// Opens the volume as its next owner, and compares it with the acknowledged operations.
    fn check(&mut self, plan: CheckPlan) -> Result<Found, String> {
        let CheckPlan { take_over, accept_loss, .. } = plan;
        let volume = VolumePlan { accept_loss, ..self.volume(take_over) };
        let opened = volume.open(None);
        let opened =
            opened.map_err(|error| format!("cannot open the volume after the fault: {error}"))?;
        let acknowledged = self.course.acknowledged()?;
        if let Some(sabotage) = plan.sabotage {
            damage(&opened.db, sabotage, self.course.seed(), &acknowledged).map_err(text)?;
        }
        let found = self.course.progress().compare(&opened.db, &acknowledged)?;
        opened.close().map_err(text)?;
        Ok(found)
    }

    /// Opens the volume and compares it, as after a fault without writes.
    pub(super) fn check_at_rest(&mut self) -> Result<(), String> {
        self.course.begin_cycle()?;
        self.check(CheckPlan { take_over: false, ..CheckPlan::TAKE_OVER }).map(drop)
    }

    /// Flushes all records that only the log has, so that tables have all records.
    pub(super) fn flush(&mut self) -> Result<(), String> {
        let opened = self.volume(true).open(None).map_err(text)?;
        for index in 0..=COUNTERS {
            let flushed = opened.db.family(family_name(index)).and_then(|cf| opened.db.flush(&cf));
            flushed.map_err(text)?;
        }
        opened.close().map_err(text)
    }

    /// Writes, kills the owner and then these nodes, and checks that nothing is lost. The last
    /// writes lie in logs only.
    pub(super) fn write_and_lose(
        &mut self,
        nodes: &[usize],
        writes: LastWrites,
    ) -> Result<(), String> {
        self.course.begin_cycle()?;
        let is_copied = writes == LastWrites::Copied;
        let reaction = if is_copied { AtStep::Nothing } else { AtStep::Die };
        let moment = StepMoment { step: Step::Write, after: LOSS_WRITES, reaction };
        let mut role = self.owner(Share::All, moment);
        role.stays = is_copied;
        if is_copied {
            role.ops_per_thread = LOSS_WRITES / self.course.arguments().threads;
        }
        let mut owner = Process::start("owner", &role.words(), self.course.dir())?;
        match is_copied {
            true => drop(owner.expect(COPIED, PATIENCE)?),
            false => drop(await_step(&mut owner, AtStepSeen::Opening)?),
        }
        owner.kill()?;
        for node in nodes {
            self.cluster.take_node(*node, Fault::Kill)?;
        }
        self.check(CheckPlan { accept_loss: is_copied, ..CheckPlan::TAKE_OVER })?;
        self.course.count_cycle();
        self.cluster.restore()
    }
}

/// An owner that a fault hits, and its state at that time.
struct StruckOwner {
    process: Process,
    seen: AtStepSeen,
}
