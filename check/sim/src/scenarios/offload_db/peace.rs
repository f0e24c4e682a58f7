//! The time of peace: no fault happens any more, every call returns, and no state is left behind.

use std::time::Duration;

use archipelago_engine::db::Db;
use archipelago_fabric::sim::Faults;

use super::nodes::Office;
use super::owner::Ask;
use super::world::World;
use crate::scenarios::thread::Call;

/// Longest time for a call, and for a condition that must come true in peace.
const BOUND: Duration = Duration::from_secs(240);
/// Longest time until late files of executors are swept. The owner sweeps every ten minutes.
const SWEEP_BOUND: Duration = Duration::from_secs(700);
/// Time between two checks of a condition.
const LOOK: Duration = Duration::from_millis(10);
/// Number of times that a call may be refused as busy.
const BUSY_MAX: u64 = 200;
/// Number of writes in peace.
const WRITES: usize = 8;

/// The files of the manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileCounts {
    tables: u64,
    value_files: u64,
}

fn verified(db: &Db) -> archipelago_base::Result<FileCounts> {
    let report = db.verify(|_, _| {})?;
    match report.is_clean() {
        true => Ok(FileCounts { tables: report.files, value_files: report.value_files }),
        false => Err(archipelago_base::Error::internal(format!("{:?}", report.errors))),
    }
}

impl World {
    /// Ends the faults, and checks the properties that must hold at the end.
    pub(super) fn peace(&mut self) -> Result<(), String> {
        self.begin_peace()?;
        for _ in 0..WRITES {
            let write = self.draw_write();
            self.ask_until_done(&write)?;
        }
        self.check_files()?;
        self.close_owner()?;
        self.check_rest()?;
        self.open_owner();
        self.settle()?;
        self.close_owner()?;
        self.end_processes();
        self.run_until("the end of all processes", Self::has_buried_all)
    }

    fn begin_peace(&mut self) -> Result<(), String> {
        self.is_peace = true;
        self.machines.network.set_faults(Faults::default());
        self.machines.heal();
        self.offices.iter_mut().for_each(Office::restart_if_standing_by);
        self.go_on(true);
        self.mend_files();
        if self.owner.is_none() {
            self.open_owner();
        }
        self.settle()
    }

    /// Runs until a condition holds.
    fn run_until(&mut self, what: &str, holds: impl Fn(&Self) -> bool) -> Result<(), String> {
        let end_ns = self.now_ns() + BOUND.as_nanos() as u64;
        while !holds(self) {
            if self.now_ns() > end_ns {
                return Err(format!("{what} did not come within {BOUND:?}"));
            }
            self.run_for(LOOK);
            self.tend()?;
        }
        Ok(())
    }

    /// Waits until the owner has opened the database, and its state was compared.
    fn settle(&mut self) -> Result<(), String> {
        let is_settled = |world: &Self| {
            let is_free = world.owner.as_ref().is_some_and(|owner| owner.asked.is_none());
            world.is_settled && is_free
        };
        self.run_until("the state of an owner", is_settled)
    }

    /// Makes a call of the user, again and again while it is refused as busy.
    fn ask_until_done(&mut self, ask: &Ask) -> Result<(), String> {
        let busy_max = self.counted.busy + BUSY_MAX;
        while self.counted.busy < busy_max {
            let busy = self.counted.busy;
            self.ask(ask.clone());
            let is_answered =
                |world: &Self| world.owner.as_ref().is_some_and(|owner| owner.asked.is_none());
            self.run_until("an answer", is_answered)?;
            if self.counted.busy == busy {
                return Ok(());
            }
            self.run_for(Duration::from_millis(200));
        }
        Err(format!("in peace, {ask:?} was refused {BUSY_MAX} times"))
    }

    fn wait<T>(&mut self, what: &str, call: &Call<T>) -> Result<T, String> {
        self.run_until(what, |_| call.is_done())?;
        call.take().ok_or_else(|| format!("{what} has no result"))
    }

    /// Flushes everything, compares all records, and checks that the files are those of the
    /// manifest.
    fn check_files(&mut self) -> Result<(), String> {
        self.pause_steps()?;
        self.ask_until_done(&Ask::Flush)?;
        self.ask_until_done(&Ask::Scan { is_backward: false })?;
        self.ask_until_done(&Ask::Scan { is_backward: true })?;
        let end_ns = self.now_ns() + SWEEP_BOUND.as_nanos() as u64;
        loop {
            self.step_until_idle()?;
            let owner = self.owner.as_ref().ok_or("there is no owner")?;
            let call = owner.call(verified);
            let named = self.wait("the check of all files", &call)?;
            let named = named.map_err(|error| format!("the files are damaged: {error}"))?;
            let names = self.names()?;
            let count = |end| names.iter().filter(|name| name.ends_with(end)).count() as u64;
            let found = FileCounts { tables: count(".sst"), value_files: count(".vsst") };
            if found == named {
                return Ok(());
            }
            if self.now_ns() > end_ns {
                return Err(format!("{found:?} are there, and {named:?} are named: {names:?}"));
            }
            self.run_for(Duration::from_secs(20));
        }
    }

    /// Lets no step of background work begin by itself, and waits for the one under way.
    fn pause_steps(&mut self) -> Result<(), String> {
        self.steps_begin = false;
        let is_idle = |world: &Self| world.owner.as_ref().is_none_or(|owner| !owner.is_stepping());
        self.run_until("the end of a step", is_idle)
    }

    /// Runs background work on the user's thread until there is none.
    fn step_until_idle(&mut self) -> Result<(), String> {
        let owner = self.owner.as_ref().ok_or("there is no owner")?;
        let call = owner.call(Db::wait_for_background);
        let stepped = self.wait("the end of background work", &call)?;
        stepped.map_err(|error| format!("in peace, background work failed: {error}"))
    }

    /// Closes the database in good order.
    fn close_owner(&mut self) -> Result<(), String> {
        self.pause_steps()?;
        let owner = self.owner.as_ref().ok_or("there is no owner")?;
        owner.end_background();
        let has_none =
            |world: &Self| world.owner.as_ref().is_none_or(|owner| owner.has_no_background());
        self.run_until("the end of a thread", has_none)?;
        let Some(owner) = self.owner.take() else { return Ok(()) };
        self.note_figures(&owner);
        let call = owner.close_db();
        let closed = self.wait("the close", &call)?;
        self.owner = Some(owner);
        closed.map_err(|error| format!("the close failed: {error}"))?;
        self.kill_owner(true);
        self.steps_begin = true;
        Ok(())
    }

    /// Checks that a closed database has left no shards, grants or jobs.
    fn check_rest(&mut self) -> Result<(), String> {
        let figures = |world: &Self| {
            let all = world.memories.iter().filter_map(|memory| memory.life.shards.figures());
            all.fold((0, 0), |sum, node| (sum.0 + node.shards, sum.1 + node.grants))
        };
        let is_empty = |world: &Self| world.leaves_shards() || figures(world).0 == 0;
        self.run_until("the release of all shards", is_empty)?;
        self.run_until("the end of all grants", |world| figures(world).1 == 0)?;
        self.run_until("the end of all jobs", |world| world.jobs() == 0)?;
        self.run_until("the end of jobs in executors", Self::executors_are_idle)
    }
}
