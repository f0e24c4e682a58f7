//! The cycles of a run: an owner writes and reads, a fault hits at a step, and a check compares the
//! database with the acknowledged operations.
//!
//! Each cycle has one fault; a cycle of the step `rebuild` kills a memory node before it. The check
//! runs in this process as the next owner, with the processes of the fault still away or back, as
//! the seed decides. It opens the database with offloading or without: a database whose memtables
//! had left must be readable without the memory nodes.
//!
//! In a run with `--messages` the fault hits when a process has received or handled a message. The
//! thread at the message waits until the process of the fault is away, unless its own process has
//! the fault.
//!
//! Invariants that each cycle checks, beyond those of [`crate::check`]:
//! 1. The failure of a server fails no write and no read of the owner, and makes no read wrong
//!    ([`crate::reads`]).
//! 2. A stopped executor that goes on later changes no file that the database has.

use std::path::{Path, PathBuf};
use std::time::Duration;

use archipelago::env::FileSystem as _;
use archipelago::env::local::LocalFs;
use archipelago::{Db, Rng, SystemClock};
use archipelago_offload::message_points::MessageMoment;

use super::cases::{Case, Victim};
use super::cluster::{Cluster, Place};
use super::owner::{DatabasePlan, Leaving, OwnerRole};
use super::steps::Step;
use super::summary::Figures;
use crate::arguments::Arguments;
use crate::children::{
    AT_STEP, ArmedMessage, ArrivesAt, AtStep, AtStepSeen, DISARMED, Deck, Fault, GO_ON, Heard,
    MESSAGES, Message, OPENED, Owner, PATIENCE, Process, RARE, Receiver, Share, StepMoment, Tally,
    await_step, stop_at,
};
use crate::course::Course;
use crate::cycles::{Session, sleep_ms, text};
use crate::sabotage::{Sabotage, damage};
use crate::settings::{COUNTERS, Over, family_name, open};

/// Longest time for which an owner writes before the fault that precedes a rebuild or a take-over.
const FIRST_WRITES_MS_MAX: u64 = 500;
/// Longest time for which an owner is stopped. It is longer than the leases of the servers.
const STOPPED_MS_MAX: u64 = 3000;
/// Time in which a message must arrive while an owner works. Beats come once a second.
const MESSAGE_PATIENCE: Duration = Duration::from_secs(4);
/// Pause between two checks of the lines of server and owner.
const LINE_PAUSE: Duration = Duration::from_millis(1);
/// Longest time between the step and the fault of a server, if the owner goes on first.
const LATE_MS_MAX: u64 = 30;

/// An owner's process, and the last figures that it printed.
#[derive(Debug)]
struct WatchedOwner {
    process: Process,
    figures: Figures,
}

impl WatchedOwner {
    /// Waits until the database is open.
    fn await_open(&mut self) -> Result<(), String> {
        self.process.expect(OPENED, PATIENCE).map(drop)
    }

    /// Reads the last lines of the owner, which has ended.
    fn last_figures(&mut self) -> Figures {
        while self.hear(PATIENCE) != Heard::End {}
        self.figures
    }
}

impl Owner for WatchedOwner {
    /// The next line without figures.
    fn hear(&mut self, patience: Duration) -> Heard {
        let clock = SystemClock::shared();
        let until_ns = clock.now_ns() + patience.as_nanos() as u64;
        loop {
            let left = Duration::from_nanos(until_ns.saturating_sub(clock.now_ns()));
            match self.process.hear(left) {
                Heard::Line(line) => match Figures::parse(&line) {
                    Some(figures) => self.figures = figures,
                    None => return Heard::Line(line),
                },
                other => return other,
            }
        }
    }

    fn process(&mut self) -> &mut Process {
        &mut self.process
    }
}

/// The state of a run with offloading.
pub(super) struct OffloadSession<'a> {
    course: Course<'a>,
    deck: Deck<Case>,
    cluster: Cluster,
    tally: Tally<Case>,
    figures: Figures,
    /// Moment of the message of the present cycle.
    message_moment: MessageMoment,
}

impl<'a> Session<'a> for OffloadSession<'a> {
    type Case = Case;

    fn start(arguments: &'a Arguments, seed: u64, dir: &Path) -> Result<Self, String> {
        let mut seeds = Rng::with_seed(seed);
        let cases = if arguments.messages { Case::of_messages() } else { Case::all() };
        Ok(Self {
            deck: Deck::new(seeds.u64(..), cases.clone()),
            cluster: Cluster::start(&dir.join("servers"), &dir.join("share"))?,
            tally: Tally::new(cases),
            figures: Figures::default(),
            message_moment: MessageMoment::Received,
            course: Course::new(arguments, dir, seeds),
        })
    }

    fn begin_database(&mut self) -> Result<(), String> {
        let (fs, dir) = (LocalFs::new(), self.database_dir());
        if fs.exists(&dir).map_err(text)? {
            fs.remove_dir_all(&dir).map_err(text)?;
        }
        self.course.begin_database()
    }

    fn cycle(&mut self) -> Result<(Case, bool), String> {
        let case = self.deck.draw();
        let told = |problem: String| format!("{case}: {problem}");
        self.course.begin_cycle()?;
        let hit = match case.step {
            Step::Message(index) => self.fault_at_message(case, index),
            Step::TakeOver => self.fault_at_take_over(case),
            Step::Rebuild => self.fault_at_rebuild(case),
            _ => self.fault_under_load(case),
        };
        let hit = hit.map_err(told)?;
        if self.course.rng().bool() {
            self.cluster.restore().map_err(told)?;
        }
        self.check(None).map_err(told)?;
        self.cluster.restore().map_err(told)?;
        self.tally.note(case, hit);
        self.course.count_cycle();
        Ok((case, hit))
    }

    fn damaged_cycle(&mut self, sabotage: Sabotage) -> Result<(), String> {
        self.course.begin_cycle()?;
        let moment = StepMoment { step: Step::Write, after: 1500, reaction: AtStep::Die };
        let mut owner = self.start_owner(moment, Share::All, |leaving| leaving)?;
        await_step(&mut owner, AtStepSeen::Opening)?;
        self.kill(owner)?;
        self.check(Some(sabotage))
    }

    // Checks that nothing is left behind. An owner that sends everything moves all records into
    // tables and ends in order. Then no memory node has a shard of the database, and each table and
    // value file in the directory is one that the database has.
    fn end_database(&mut self) -> Result<(), String> {
        self.course.begin_cycle()?;
        let mut database = self.database();
        database.leaving = database.leaving.with_one_copy();
        let opened = database.open(|_| {}).map_err(text)?;
        for index in 0..=COUNTERS {
            let flushed = opened.db.family(family_name(index)).and_then(|cf| opened.db.flush(&cf));
            flushed.map_err(text)?;
        }
        opened.db.wait_for_background().map_err(text)?;
        opened.db.close().map_err(text)?;
        self.cluster.await_no_shards()?;
        let db = self.open_plain().map_err(text)?;
        db.wait_for_background().map_err(text)?;
        let report = db.verify(|_, _| {}).map_err(text)?;
        db.close().map_err(text)?;
        let entries = LocalFs::new().list(&self.database_dir()).map_err(text)?;
        let count = |ending: &str| {
            entries.iter().filter(|entry| entry.name.ends_with(ending)).count() as u64
        };
        let (tables, values) = (count(".sst"), count(".vsst"));
        if (tables, values) != (report.files, report.value_files) {
            return Err(format!(
                "the directory has {tables} tables and {values} value files, and the database has \
                 {} and {}",
                report.files, report.value_files
            ));
        }
        Ok(())
    }

    fn after_cycles(&mut self) -> Result<String, String> {
        Ok(String::new())
    }

    fn end(self) -> Result<String, String> {
        self.cluster.end()?;
        let tried = self.tally.tried();
        let (table, of_messages) = (self.tally.table(), self.course.arguments().messages);
        if let Some(lacks) = self.figures.lacks(tried, of_messages) {
            return Err(format!(
                "in {tried} cycles {lacks}, so the run shows nothing of it\n{table}"
            ));
        }
        // A message may be rare with the settings of the run. The table then shows that it was not
        // hit.
        let row = if of_messages { None } else { self.tally.lacking_row() };
        if let Some(lacks) = row.or_else(|| self.tally.lacking_column()) {
            return Err(format!("{lacks}, so the run shows nothing of it\n{table}"));
        }
        let left_out = if of_messages { format!("\n  left out: {RARE}") } else { String::new() };
        Ok(format!(
            "{tried} cycles, {} faults at their steps, {} acknowledged operations\n  {}\n\
             {table}{left_out}",
            self.tally.hit(),
            self.course.operations(),
            self.figures,
        ))
    }
}

impl OffloadSession<'_> {
    fn database_dir(&self) -> PathBuf {
        self.course.dir().join("share").join("db")
    }

    fn database(&mut self) -> DatabasePlan {
        DatabasePlan {
            dir: self.database_dir(),
            manager: self.cluster.address().to_owned(),
            seed: self.course.seed(),
            open_seed: self.course.rng().u64(..),
            leaving: Leaving::choose(self.course.rng()),
        }
    }

    /// Lets an owner come to the step, where the fault hits.
    fn fault_under_load(&mut self, case: Case) -> Result<bool, String> {
        let moment = self.moment(case);
        let mut owner = self.start_owner(moment, Share::All, |leaving| leaving)?;
        let seen = await_step(&mut owner, AtStepSeen::Opening)?;
        self.strike(case, StruckOwner { owner, seen })?;
        Ok(seen != AtStepSeen::Never)
    }

    /// Kills an owner whose memtables have left. The fault hits while the next one opens the
    /// database.
    fn fault_at_take_over(&mut self, case: Case) -> Result<bool, String> {
        self.leave_shards()?;
        let moment = self.moment(case);
        let mut second = self.start_owner(moment, Share::SecondHalf, Leaving::with_one_copy)?;
        let seen = await_step(&mut second, AtStepSeen::Opening)?;
        let hit = seen == AtStepSeen::Opening;
        self.strike(case, StruckOwner { owner: second, seen })?;
        Ok(hit)
    }

    /// Kills a memory node that has shards. The fault hits while the owner makes them again.
    fn fault_at_rebuild(&mut self, case: Case) -> Result<bool, String> {
        let moment = self.moment(case);
        let mut owner = self.start_owner(moment, Share::All, Leaving::with_one_copy)?;
        owner.await_open()?;
        sleep_ms(self.course.rng().u64(..FIRST_WRITES_MS_MAX));
        let lost = Cluster::any_memory(self.course.rng());
        self.cluster.take(lost, Fault::Kill)?;
        let seen = await_step(&mut owner, AtStepSeen::Open)?;
        if case.victim == Victim::Memory {
            // The fault may hit the same node.
            self.cluster.restore()?;
        }
        self.strike(case, StruckOwner { owner, seen })?;
        Ok(seen != AtStepSeen::Never)
    }

    /// Kills an owner whose memtables have left, as the message of the next owner needs it.
    fn leave_shards(&mut self) -> Result<(), String> {
        let nothing = StepMoment { step: Step::Write, after: 0, reaction: AtStep::Nothing };
        let mut first = self.start_owner(nothing, Share::FirstHalf, Leaving::with_one_copy)?;
        first.await_open()?;
        sleep_ms(self.course.rng().u64(..FIRST_WRITES_MS_MAX));
        self.kill_healthy(first)?;
        self.figures.shards_left += self.cluster.left()?.shards;
        Ok(())
    }

    /// Lets a process receive or handle the message, where the fault hits.
    fn fault_at_message(&mut self, case: Case, index: usize) -> Result<bool, String> {
        let Message { receiver, arrives, .. } = MESSAGES[index];
        let share = match arrives {
            ArrivesAt::Load => Share::All,
            ArrivesAt::TakeOver => {
                self.leave_shards()?;
                Share::SecondHalf
            }
        };
        let moments = MESSAGES[index].noted();
        self.message_moment = moments[self.course.rng().usize(..moments.len())];
        let (at, is_own) = match receiver {
            Receiver::Owner => (None, case.victim == Victim::Owner),
            Receiver::Memory => {
                let place = Cluster::any_memory(self.course.rng());
                (Some(place), case.victim == Victim::Memory)
            }
            Receiver::Executor => {
                let place = Cluster::any_executor(self.course.rng());
                (Some(place), case.victim == Victim::Executor)
            }
            Receiver::Manager => (Some(Place::Manager), case.victim == Victim::Manager),
        };
        let reaction = AtStep::of_owner(is_own.then_some(case.fault));
        let moment = StepMoment { reaction, ..self.moment(case) };
        if let Some(place) = at {
            let (moment, after) = (self.message_moment, moment.after);
            self.cluster.arm(place, ArmedMessage { index, moment, after, reaction });
        }
        // The owner is at messages that it receives itself.
        let reaction = if at.is_none() { reaction } else { AtStep::Nothing };
        let moment = StepMoment { reaction, ..moment };
        let mut owner = self.start_owner(moment, share, Leaving::with_one_copy)?;
        let seen = self.await_message(&mut owner, at)?;
        let struck = StruckOwner { owner, seen };
        match at {
            Some(place) => self.strike_at_message(case, place, struck)?,
            None => self.strike(case, struck)?,
        }
        Ok(seen != AtStepSeen::Never)
    }

    /// Waits until the message is at the server `at`, or at the owner.
    fn await_message(
        &mut self,
        owner: &mut WatchedOwner,
        at: Option<Place>,
    ) -> Result<AtStepSeen, String> {
        let Some(place) = at else { return await_step(owner, AtStepSeen::Opening) };
        let clock = SystemClock::shared();
        let mut seen = AtStepSeen::Opening;
        let mut until_ns = clock.now_ns() + PATIENCE.as_nanos() as u64;
        loop {
            if self.cluster.hear(place, LINE_PAUSE) == Heard::Line(AT_STEP.to_owned()) {
                return Ok(seen);
            }
            match owner.hear(Duration::ZERO) {
                Heard::Line(line) if line == OPENED => {
                    seen = AtStepSeen::Open;
                    until_ns = clock.now_ns() + MESSAGE_PATIENCE.as_nanos() as u64;
                }
                Heard::Line(_) | Heard::Silence => {}
                Heard::End => {
                    let status = owner.process.wait(PATIENCE)?;
                    let said = owner.process.messages();
                    return match status.success() {
                        // The owner has done all of its operations.
                        true => Ok(AtStepSeen::Never),
                        false => Err(format!("an owner ended by itself ({status}): {said}")),
                    };
                }
            }
            if clock.now_ns() > until_ns {
                return match seen {
                    AtStepSeen::Open => Ok(AtStepSeen::Never),
                    _ => {
                        let said = owner.process.messages();
                        Err(format!("an owner did not open in {PATIENCE:?}: {said}"))
                    }
                };
            }
        }
    }

    /// Makes the fault of the case while a message is at the server `at`. Afterwards no owner runs.
    fn strike_at_message(
        &mut self,
        case: Case,
        at: Place,
        struck: StruckOwner,
    ) -> Result<(), String> {
        let StruckOwner { mut owner, seen } = struck;
        let victim = match (case.victim, at) {
            (Victim::Owner, _) => None,
            (Victim::Memory, Place::Memory(_)) | (Victim::Executor, Place::Executor(_)) => Some(at),
            (Victim::Memory, _) => Some(Cluster::any_memory(self.course.rng())),
            (Victim::Executor, _) => Some(Cluster::any_executor(self.course.rng())),
            (Victim::Manager | Victim::Everything, _) => Some(Place::Manager),
        };
        let (fault, is_there) = (case.fault, seen != AtStepSeen::Never);
        let mut is_stopped = false;
        match victim {
            // The message may have come just after the time in which it should.
            Some(place) if place == at && (is_there || self.came_late(at)) => {
                self.cluster.await_own(place, fault)?;
            }
            Some(place) => self.cluster.take(place, fault)?,
            None if fault == Fault::Kill => {
                let killed = self.kill_healthy(owner);
                self.cluster.disarm(at);
                return killed;
            }
            None => is_stopped = owner.process.stop()?,
        }
        self.cluster.disarm(at);
        if is_stopped {
            sleep_ms(self.course.rng().u64(..STOPPED_MS_MAX));
            owner.process.go_on();
        }
        self.end_struck(case, StruckOwner { owner, seen })
    }

    /// Disarms a server, and returns whether a message has come before that.
    fn came_late(&mut self, at: Place) -> bool {
        self.cluster.disarm(at);
        loop {
            match self.cluster.hear(at, PATIENCE) {
                Heard::Line(line) if line == AT_STEP => return true,
                Heard::Line(line) if line == DISARMED => return false,
                Heard::Line(_) => {}
                // The fault that follows says why the server does not answer.
                Heard::Silence | Heard::End => return false,
            }
        }
    }

    /// Lets an owner that lives go on after the fault, and kills it.
    fn end_struck(&mut self, case: Case, struck: StruckOwner) -> Result<(), String> {
        let StruckOwner { mut owner, seen } = struck;
        if seen == AtStepSeen::Opening {
            owner.await_open()?;
        }
        self.course.run_on();
        if case.fault == Fault::Stop && self.course.rng().bool() {
            // The stopped process continues, in parallel with the process that has replaced it.
            self.cluster.restore()?;
            self.course.run_on();
        }
        self.kill_healthy(owner)
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

    /// Starts an owner that runs a share of the threads.
    fn start_owner(
        &mut self,
        moment: StepMoment<Step>,
        share: Share,
        adjust: impl Fn(Leaving) -> Leaving,
    ) -> Result<WatchedOwner, String> {
        let mut database = self.database();
        database.leaving = adjust(database.leaving);
        let role = OwnerRole {
            database,
            acks: self.course.acks_path(),
            ops_per_thread: self.course.ops_per_thread(),
            threads: self.course.threads(share),
            moment,
            message_moment: self.message_moment,
        };
        let process = Process::start("owner", &role.words(), self.course.dir())?;
        Ok(WatchedOwner { process, figures: Figures::default() })
    }

    /// Makes the fault of the case. Afterwards no owner runs.
    fn strike(&mut self, case: Case, struck: StruckOwner) -> Result<(), String> {
        let StruckOwner { mut owner, seen } = struck;
        match (case.victim, case.fault) {
            (Victim::Owner, Fault::Kill) if seen != AtStepSeen::Never => {
                owner.process.wait_for_death(PATIENCE)?;
                self.figures += owner.last_figures();
                return Ok(());
            }
            (Victim::Owner, Fault::Kill) => return self.kill(owner),
            (Victim::Owner, Fault::Stop) => {
                if stop_at(&mut owner.process, seen)? {
                    sleep_ms(self.course.rng().u64(..STOPPED_MS_MAX));
                    owner.process.go_on();
                }
            }
            (Victim::Everything, _) => {
                if self.course.rng().bool() {
                    owner.process.kill()?;
                }
                self.cluster.take_all(case.fault, self.course.rng())?;
                return self.kill(owner);
            }
            (Victim::Memory, _) => {
                let place = Cluster::any_memory(self.course.rng());
                self.strike_server(case, place, &mut owner)?;
            }
            (Victim::Executor, _) => {
                let place = Cluster::any_executor(self.course.rng());
                self.strike_server(case, place, &mut owner)?;
            }
            (Victim::Manager, _) => self.strike_server(case, Place::Manager, &mut owner)?,
        }
        self.end_struck(case, StruckOwner { owner, seen })
    }

    /// Takes a server away while the owner waits at the step, or soon after it went on.
    fn strike_server(
        &mut self,
        case: Case,
        place: Place,
        owner: &mut WatchedOwner,
    ) -> Result<(), String> {
        // A fault at a message hits while the message is there.
        let is_late = case.step.message().is_none() && self.course.rng().bool();
        if is_late {
            owner.process.tell(GO_ON);
            sleep_ms(self.course.rng().u64(..LATE_MS_MAX));
        }
        self.cluster.take(place, case.fault)?;
        owner.process.tell(GO_ON);
        Ok(())
    }

    /// Kills an owner in any state.
    fn kill(&mut self, mut owner: WatchedOwner) -> Result<(), String> {
        owner.process.kill()?;
        self.figures += owner.last_figures();
        Ok(())
    }

    /// Kills an owner, which must not have ended by itself.
    fn kill_healthy(&mut self, mut owner: WatchedOwner) -> Result<(), String> {
        let healthy = owner.process.kill_healthy();
        self.figures += owner.last_figures();
        healthy
    }

    /// Opens the database as its next owner, with offloading or without, and compares it with the
    /// acknowledged operations.
    fn check(&mut self, sabotage: Option<Sabotage>) -> Result<(), String> {
        let db = match self.course.rng().bool() {
            true => self.database().open(|_| {}).map(|opened| opened.db),
            false => self.open_plain(),
        };
        let db =
            db.map_err(|error| format!("cannot open the database after the fault: {error}"))?;
        let acknowledged = self.course.acknowledged()?;
        if let Some(sabotage) = sabotage {
            damage(&db, sabotage, self.course.seed(), &acknowledged).map_err(text)?;
        }
        self.course.progress().compare(&db, &acknowledged)?;
        db.close().map_err(text)
    }

    /// Opens the database without offloading.
    fn open_plain(&mut self) -> archipelago::Result<Db> {
        open(&self.database_dir(), self.course.seed(), self.course.rng().u64(..), Over::Plain)
    }
}

/// An owner that a fault hits, and its state at that time.
struct StruckOwner {
    owner: WatchedOwner,
    seen: AtStepSeen,
}
