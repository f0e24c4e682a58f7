//! The end of a run: all faults cease, and then everything that was promised must hold.
//!
//! 1. Every call returns, also those of processes that were killed or cut off.
//! 2. A process takes the volume over and reads everything.
//! 3. Operations of the owner succeed.
//! 4. Repairs end, in runs that have some.
//! 5. Everything is readable while any single node is down. Files that were written as a whole are
//!    readable while any two are down, and so are recovered logs that were repaired. A node that
//!    the run has damaged counts as one of them, unless its damage was repaired.
//! 6. When all files are removed, the nodes hold no chunk, and no extent but those of the
//!    namespace.

use std::collections::BTreeSet;
use std::time::Duration;

use archipelago_base::Result;

use super::cluster::{Losses, SCAN_EVERY};
use super::model::Content;
use super::process::Process;
use super::run::Run;

/// Number of operations of the owner in peace.
const OPERATIONS: usize = 8;
/// Virtual time within which every thread must end.
const END_MAX: Duration = Duration::from_secs(300);
/// Virtual time within which repairs must end.
const REPAIR_MAX: Duration = Duration::from_secs(400);
/// Number of attempts to take the volume over.
const TAKE_OVERS_MAX: usize = 3;
/// Number of attempts to give up all strays, which a passing refusal may delay.
const RELEASES_MAX: usize = 5;

/// Files that are read while nodes are down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SettledFiles {
    All,
    /// Files that were written as a whole. Logs are not among them: a recovery leaves the bytes of
    /// a log on two nodes, and the managers of some runs repair nothing.
    Whole,
}

impl Run {
    /// Ends the faults, and checks everything.
    pub(super) fn peace(&mut self) -> Result<(), String> {
        self.cluster.make_peace();
        self.end_old_owners()?;
        self.note_peace();
        self.take_over_in_peace()?;
        self.operate_in_peace()?;
        self.settle_repairs()?;
        self.check_losses()?;
        self.sharing.check(&self.cluster);
        self.take_violations_of_sharing()?;
        self.check_space()?;
        self.sharing.end(&self.cluster);
        self.take_violations_of_sharing()?;
        self.registers.finish(&self.cluster);
        let wrong = self.registers.violations();
        wrong.into_iter().for_each(|text| self.violation(text));
        self.retire_owner();
        self.end_old_threads()
    }

    fn is_operating(&self) -> bool {
        self.owner.as_ref().is_some_and(|owner| owner.running.is_some())
    }

    /// Lets time pass while `is_busy` holds. Errors: it holds for too long; a violation.
    fn pass_while(
        &mut self,
        step: Duration,
        is_busy: impl Fn(&Self) -> bool,
    ) -> Result<(), String> {
        let end_ns = self.cluster.simulation.now_ns() + END_MAX.as_nanos() as u64;
        while is_busy(self) {
            if self.cluster.simulation.now_ns() > end_ns {
                let all = self.old().iter().chain(&self.owner);
                let stuck = all.filter(|process| !process.thread.has_ended());
                let stuck: Vec<String> = stuck.map(Process::brief).collect();
                return Err(format!("a call did not return within {END_MAX:?}: {stuck:?}"));
            }
            self.pass(step);
        }
        self.has_violations()
    }

    fn has_violations(&self) -> Result<(), String> {
        // The first violation is noted already.
        if self.violations.is_empty() { Ok(()) } else { Err(String::new()) }
    }

    fn take_violations_of_sharing(&mut self) -> Result<(), String> {
        let wrong = self.sharing.take_violations();
        wrong.into_iter().for_each(|text| self.violation(text));
        self.has_violations()
    }

    /// Waits for everything that is under way, and ends all processes without the volume.
    fn end_old_owners(&mut self) -> Result<(), String> {
        self.pass_while(Duration::from_millis(100), |run| {
            run.is_settling() || run.is_operating() || run.sharing.is_busy()
        })?;
        self.retire_owner();
        self.end_old_threads()
    }

    fn end_old_threads(&mut self) -> Result<(), String> {
        self.old().iter().for_each(|process| process.thread.close());
        self.pass_while(Duration::from_millis(200), |run| {
            run.old().iter().any(|process| !process.thread.has_ended())
        })?;
        // Calls that ended in the last step are taken here.
        self.pass(Duration::from_micros(1));
        self.has_violations()
    }

    fn take_over_in_peace(&mut self) -> Result<(), String> {
        for _ in 0..TAKE_OVERS_MAX {
            self.begin_take_over();
            self.pass_while(Duration::from_millis(20), Self::is_settling)?;
            if self.owner.is_some() {
                return Ok(());
            }
            self.pass(Duration::from_secs(1));
        }
        Err(format!("no take-over in peace: {:?}", self.cluster.simulation.notes().last()))
    }

    fn operate_in_peace(&mut self) -> Result<(), String> {
        for _ in 0..OPERATIONS {
            self.operate();
            self.registers.operate(&mut self.cluster.rng);
            self.pass_while(Duration::from_millis(1), Self::is_operating)?;
        }
        Ok(())
    }

    /// Lets all nodes check their bytes, and waits until the manager has all copies made again.
    fn settle_repairs(&mut self) -> Result<(), String> {
        if !self.cluster.has_repairs() {
            return Ok(());
        }
        self.cluster.scrub();
        // The round that is under way may have asked a node before the scrub.
        self.pass(2 * SCAN_EVERY);
        let end_ns = self.cluster.simulation.now_ns() + REPAIR_MAX.as_nanos() as u64;
        loop {
            let status = self.cluster.repair_status().unwrap_or_default();
            if status.is_known && status.chunks_left == 0 && status.extents_left == 0 {
                let lacking =
                    status.waiting_for_domains + status.extents_refused + status.extents_unknown;
                self.counts.whole_logs = u64::from(lacking == 0);
                return self.has_violations();
            }
            if self.cluster.simulation.now_ns() > end_ns {
                return Err(format!("repairs did not end within {REPAIR_MAX:?}: {status:?}"));
            }
            self.pass(Duration::from_millis(500));
        }
    }

    /// Reads settled files. Errors name the first one that is wrong.
    fn read_settled(&mut self, which: SettledFiles, when: &str) -> Result<(), String> {
        let mut settled = self.model.settled();
        if which == SettledFiles::Whole {
            settled.retain(|(_, bytes)| !self.model.were_recovered(bytes));
        }
        let Some(owner) = &self.owner else { return Err("there is no owner".to_owned()) };
        let paths: Vec<String> = settled.iter().map(|file| file.0.clone()).collect();
        let call = owner.thread.call(move |owner| -> Vec<Result<Content>> {
            paths.iter().map(|path| owner.read(path)).collect()
        });
        let found = self.wait(&call, "a read")?;
        self.counts.reads += found.len() as u64;
        for ((path, bytes), content) in settled.into_iter().zip(found) {
            let content = content.map_err(|error| format!("{when}, {path}: {error}"))?;
            if content.as_deref() != Some(&*bytes) {
                return Err(format!("{when}, {path} has other bytes than were written"));
            }
        }
        Ok(())
    }

    /// Reads everything while one node is down, and then files with more copies while two nodes are
    /// down.
    fn check_losses(&mut self) -> Result<(), String> {
        self.read_settled(SettledFiles::All, "with all nodes")?;
        if self.counts.whole_logs > 0 {
            return self.check_two_losses();
        }
        let count = self.cluster.nodes().len();
        let any = self.cluster.rng.usize(..count);
        // A node whose disk was lost or damaged counts as one of the two.
        let lost = match self.cluster.weak_node() {
            None => vec![any, self.cluster.rng.usize(..count)],
            Some(_) if self.has_whole_logs() => vec![any],
            Some(weak) => vec![weak, any],
        };
        for (n, which) in lost.iter().zip([SettledFiles::All, SettledFiles::Whole]) {
            self.cluster.kill_node(*n);
            self.read_settled(which, &format!("without node {n}, of the nodes {lost:?}"))?;
        }
        self.cluster.make_peace();
        Ok(())
    }

    /// Reads everything while two nodes are down, after repairs.
    fn check_two_losses(&mut self) -> Result<(), String> {
        let count = self.cluster.nodes().len();
        let first = self.cluster.rng.usize(..count);
        let second = (first + self.cluster.rng.usize(1..count)) % count;
        for n in [first, second] {
            self.cluster.kill_node(n);
            let when = format!("repaired, without node {n}, of the nodes {first} and {second}");
            self.read_settled(SettledFiles::All, &when)?;
        }
        self.cluster.make_peace();
        Ok(())
    }

    /// Whether the damaged machine has all bytes of its logs, so that only its chunks are lost.
    fn has_whole_logs(&self) -> bool {
        self.cluster.losses() == Losses::Damage && self.cluster.rotten_extents == 0
    }

    /// Removes all files. Afterwards the nodes hold nothing but the namespace.
    fn check_space(&mut self) -> Result<(), String> {
        let Some(owner) = &self.owner else { return Err("there is no owner".to_owned()) };
        let call = owner.thread.call(|owner| -> Result<()> {
            owner.close_files();
            owner.remove_all()
        });
        let removed = self.wait(&call, "the removal of all files")?;
        removed.map_err(|error| format!("the removal of all files failed: {error}"))?;
        for path in self.model.paths() {
            self.model.forget(&path);
        }
        self.retire_owner();
        self.end_old_threads()?;
        self.take_over_in_peace()?;
        let mut held = String::new();
        for _ in 0..RELEASES_MAX {
            self.run_release()?;
            self.sharing.release(&self.cluster);
            self.take_violations_of_sharing()?;
            held = self.held();
            if held.is_empty() {
                return Ok(());
            }
            self.pass(Duration::from_secs(2));
        }
        Err(format!("all files are removed, and strays stay: {held}"))
    }

    fn run_release(&mut self) -> Result<(), String> {
        let Some(owner) = &self.owner else { return Err("there is no owner".to_owned()) };
        let call = owner.thread.call(super::owner::OwnerProcess::release_strays);
        let released = self.wait(&call, "the release of strays")?;
        released.map_err(|error| format!("the release of strays failed: {error}"))
    }

    /// Everything that the nodes hold beyond the log of the namespace, as text. Empty if there is
    /// nothing.
    fn held(&self) -> String {
        let reports = self.cluster.nodes().iter().map(|node| node.report());
        let (mut chunks, mut unsealed, mut extents) = (0, 0, 0);
        let mut volumes = BTreeSet::new();
        for report in reports {
            chunks += report.chunks;
            unsealed += report.chunks_unsealed;
            extents += report.extents;
            volumes.extend(report.volumes.iter().map(|space| space.volume.to_string()));
        }
        // The namespace of the last owner has one extent on three nodes.
        if chunks + unsealed == 0 && extents <= 3 {
            return String::new();
        }
        format!("{chunks} chunks, {unsealed} unsealed chunks and {extents} extents of {volumes:?}")
    }
}
