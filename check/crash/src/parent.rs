//! The parent process: it starts the writer, kills it and checks the database.

use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use archipelago::env::FileSystem as _;
use archipelago::env::local::LocalFs;
use archipelago::{Db, Error, SystemClock};
use rustix::process::Signal;

use crate::acks;
use crate::arguments::{Arguments, ChildArguments};
use crate::check::Progress;
use crate::sabotage::{SABOTAGES, Sabotage, damage};
use crate::settings::{COUNTERS, Over, Rng, family_name, open};
use crate::shared_disk::SharedDisk;

/// The database's directory inside the working directory.
pub(crate) fn database_path(dir: &Path) -> PathBuf {
    dir.join("db")
}

/// The acknowledgements inside the working directory.
pub(crate) fn acks_path(dir: &Path) -> PathBuf {
    dir.join("acks")
}

/// Cycles in which a thread may meet a full disk and wrongly acknowledge the refused write.
const LYING_CYCLES_MAX: u64 = 50;

struct Session<'a> {
    arguments: &'a Arguments,
    dir: PathBuf,
    rng: Rng,
    progress: Progress,
    /// Number of acknowledged operations, and of kills that hit while the writer ran.
    operations: u64,
    kills: u64,
    /// The first key of every bucket of every family, as the last check found them.
    boundaries: Vec<Vec<u8>>,
    /// Number of checks that found other boundaries than the check before.
    moves: u64,
}

/// Runs all cycles. `Err` has the violation and the command that repeats the run.
pub(crate) fn run(arguments: &Arguments) -> Result<(), String> {
    let seed = arguments.seed.unwrap_or_else(archipelago::entropy_seed);
    let base = arguments.dir.clone().unwrap_or_else(std::env::temp_dir);
    let dir = base.join(format!("archipelago-crash-{}", std::process::id()));
    println!("seed {seed}; working in {}", dir.display());
    let mut session = Session {
        arguments,
        dir: dir.clone(),
        rng: Rng::with_seed(seed),
        progress: Progress::new(0, arguments.threads),
        operations: 0,
        kills: 0,
        boundaries: Vec::new(),
        moves: 0,
    };
    let result = if arguments.sabotage { session.sabotages() } else { session.cycles() };
    match result {
        Ok(()) => {
            println!(
                "passed: {} cycles, {} kills, {} acknowledged operations, bucket boundaries moved \
                 between {} checks",
                if arguments.sabotage { SABOTAGES.len() as u64 } else { arguments.cycles },
                session.kills,
                session.operations,
                session.moves
            );
            LocalFs::new().remove_dir_all(&dir).map_err(|error| error.to_string())
        }
        Err(problem) => Err(format!(
            "FAILED: {problem}\nthe database is kept in {}\nto run it again: {}",
            database_path(&dir).display(),
            arguments.replay(seed)
        )),
    }
}

impl Session<'_> {
    fn cycles(&mut self) -> Result<(), String> {
        for cycle in 0..self.arguments.cycles {
            if cycle % self.arguments.cycles_per_database == 0 {
                self.begin_database().map_err(|error| error.to_string())?;
            }
            self.cycle(None, false).map_err(|problem| format!("cycle {cycle}: {problem}"))?;
            println!(
                "cycle {} of {}: {} operations so far, {} kills",
                cycle + 1,
                self.arguments.cycles,
                self.operations,
                self.kills
            );
        }
        Ok(())
    }

    fn sabotages(&mut self) -> Result<(), String> {
        for sabotage in SABOTAGES {
            self.begin_database().map_err(|error| error.to_string())?;
            // The writer must have written something before the database can be damaged.
            while self.progress.done.iter().any(|&done| done < 200) {
                self.cycle(None, false)?;
            }
            match self.cycle(Some(sabotage), false) {
                Ok(()) => return Err(format!("{sabotage:?} was not seen")),
                Err(problem) => println!("{sabotage:?} is seen: {problem}"),
            }
        }
        if self.arguments.full_disk { self.lie() } else { Ok(()) }
    }

    /// Acknowledges a write that a full disk refused.
    fn lie(&mut self) -> Result<(), String> {
        self.begin_database().map_err(|error| error.to_string())?;
        for _ in 0..LYING_CYCLES_MAX {
            match self.cycle(None, true) {
                Ok(()) => {}
                Err(problem) if problem.contains("operations acknowledged") => {
                    println!("an acknowledged write that was refused is seen: {problem}");
                    return Ok(());
                }
                Err(problem) => return Err(problem),
            }
        }
        Err("an acknowledged write that was refused was not seen".to_owned())
    }

    fn begin_database(&mut self) -> archipelago::Result<()> {
        let fs = LocalFs::new();
        if fs.exists(&self.dir)? {
            fs.remove_dir_all(&self.dir)?;
        }
        fs.create_dir_all(&self.dir)?;
        self.progress = Progress::new(self.rng.u64(..), self.arguments.threads);
        self.boundaries.clear();
        Ok(())
    }

    /// Runs one cycle: writes, kills and checks.
    fn cycle(&mut self, sabotage: Option<Sabotage>, lies: bool) -> Result<(), String> {
        let text = |error: Error| error.to_string();
        acks::create(&acks_path(&self.dir)).map_err(text)?;
        let child = ChildArguments {
            dir: self.dir.clone(),
            seed: self.progress.seed,
            open_seed: self.rng.u64(..),
            ops_per_thread: self.arguments.ops_per_cycle.div_ceil(self.arguments.threads),
            tiers: self.arguments.tiers,
            full_disk: self.arguments.full_disk,
            lies,
            first: self.progress.done.clone(),
        };
        self.write_and_kill(&child)?;
        let acknowledged = acks::read(&acks_path(&self.dir), &self.progress.done).map_err(text)?;
        let before: u64 = self.progress.done.iter().sum();
        let path = database_path(&self.dir);
        let open_seed = self.rng.u64(..);
        let disk = match self.arguments.full_disk {
            true => Some(SharedDisk::new(&path, open_seed).map_err(text)?),
            false => None,
        };
        let over = match &disk {
            Some(disk) => Over::Disk(disk),
            None if self.arguments.tiers => Over::Tiers { dies: false },
            None => Over::Plain,
        };
        let db = open(&path, self.progress.seed, open_seed, over)
            .map_err(|error| format!("cannot open the database after the kill: {error}"))?;
        if let Some(sabotage) = sabotage {
            damage(&db, sabotage, self.progress.seed, &acknowledged).map_err(text)?;
        }
        self.progress.compare(&db, &acknowledged)?;
        self.note_boundaries(&db).map_err(text)?;
        db.close().map_err(text)?;
        self.operations += self.progress.done.iter().sum::<u64>() - before;
        Ok(())
    }

    fn note_boundaries(&mut self, db: &Db) -> archipelago::Result<()> {
        let mut boundaries = Vec::new();
        for index in 0..=COUNTERS {
            let buckets = db.buckets(&db.family(family_name(index))?)?;
            boundaries.extend(buckets.into_iter().map(|bucket| bucket.range.start));
        }
        self.moves += u64::from(!self.boundaries.is_empty() && boundaries != self.boundaries);
        self.boundaries = boundaries;
        Ok(())
    }

    fn write_and_kill(&mut self, arguments: &ChildArguments) -> Result<(), String> {
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let mut child = Command::new(program)
            .args(arguments.to_command_line())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| format!("cannot start the writer: {error}"))?;
        // The kill is often early, to hit recovery, and sometimes late, to hit compactions.
        let most = self.arguments.kill_after_ms_max.max(1);
        let most = if self.rng.u32(..4) == 0 { most / 10 + 1 } else { most };
        let wait = Duration::from_micros(self.rng.u64(..most * 1000));
        SystemClock::shared().sleep(wait);
        self.end(&mut child)
    }

    /// Kills the writer, by its own process id, and makes sure that it did not fail by itself.
    fn end(&mut self, child: &mut Child) -> Result<(), String> {
        let text = |error: std::io::Error| error.to_string();
        if child.try_wait().map_err(text)?.is_none() {
            child.kill().map_err(text)?;
            self.kills += 1;
        }
        let status = child.wait().map_err(text)?;
        // This process killed the writer, or over tiers the writer killed itself at a fault point.
        if status.success() || status.signal() == Some(Signal::KILL.as_raw()) {
            return Ok(());
        }
        let mut said = String::new();
        if let Some(mut stderr) = child.stderr.take() {
            std::io::Read::read_to_string(&mut stderr, &mut said).map_err(text)?;
        }
        Err(format!("the writer failed by itself ({status}): {said}"))
    }
}
