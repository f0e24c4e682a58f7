//! The command line of the program, and that of its child process.

use std::path::PathBuf;

/// Text that is shown for `--help`, and after a wrong command line.
pub(crate) const USAGE: &str = "\
usage: archipelago-crash [--cycles N] [--seed S] [--dir D] [--ops-per-cycle N] [--threads N]
                         [--kill-after-ms-max N] [--cycles-per-database N]
                         [--tiers | --full-disk] [--sabotage]
                         [--storage N [--losses N] | --offload [--messages]]

  --cycles N               number of kills, each followed by a check (default 20)
  --seed S                 seed of operations, settings and kill times (default: random, printed)
  --dir D                  make a working directory in D (default: the temporary directory)
  --ops-per-cycle N        largest number of operations of a cycle, over all threads (default 40000)
  --threads N              number of writing threads (default 4)
  --kill-after-ms-max N    largest time until the kill, in milliseconds (default 600); with
                           --storage and --offload, the largest time for which an owner goes on
                           after a fault
  --cycles-per-database N  cycles after which a new database with other settings begins (default 10)
  --tiers                  use three devices, between which files are moved and copied
  --full-disk              fill the disk at random moments, also before an open; with --storage,
                           the disks of the storage nodes
  --sabotage               damage the database before the check, which must notice it
  --storage N              use N storage nodes, and kill and stop owner, nodes, executors and
                           manager; with six nodes or more, also while nodes copy chunks because a
                           node is lost, emptied or too full
  --losses N               after the cycles, lose N pairs of nodes, which the seed chooses; six
                           nodes have 15 pairs (needs --storage 6 or more)
  --offload                send memtables, flushes and compactions to two memory nodes and two
                           executors, and kill and stop owner, nodes, executors and manager
  --messages               make the faults when a process has received or handled a message, once
                           for each message, process and kind of fault (needs --offload)";

/// Task of the program.
pub(crate) enum Command {
    /// Print the usage text.
    Help,
    /// Kill writers, and check the database.
    Parent(Arguments),
    /// Write until killed.
    Child(ChildArguments),
}

/// Command line, as [`USAGE`] describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Arguments {
    pub(crate) cycles: u64,
    pub(crate) seed: Option<u64>,
    pub(crate) dir: Option<PathBuf>,
    pub(crate) ops_per_cycle: u64,
    pub(crate) threads: u64,
    pub(crate) kill_after_ms_max: u64,
    pub(crate) cycles_per_database: u64,
    pub(crate) tiers: bool,
    pub(crate) full_disk: bool,
    pub(crate) sabotage: bool,
    /// Number of storage nodes; 0 for a database in a local directory.
    pub(crate) storage: usize,
    /// Number of pairs of nodes that are lost.
    pub(crate) losses: usize,
    /// Whether memtables and jobs leave the process that writes.
    pub(crate) offload: bool,
    /// Whether faults hit at messages, and not at steps of an owner.
    pub(crate) messages: bool,
}

/// Fewest storage nodes of a run, so that one of them may fail.
const STORAGE_MIN: usize = 3;
/// Fewest storage nodes of a run that loses two of them: four are left for new files.
const LOSSES_MIN: usize = 6;

/// Arguments that the parent passes to the child.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ChildArguments {
    pub(crate) dir: PathBuf,
    pub(crate) seed: u64,
    /// Seed of the settings of the open.
    pub(crate) open_seed: u64,
    pub(crate) ops_per_thread: u64,
    pub(crate) tiers: bool,
    pub(crate) full_disk: bool,
    /// Whether a thread whose write is refused for lack of room says that the write was done, and
    /// ends.
    pub(crate) lies: bool,
    /// Number of the first operation of each thread.
    pub(crate) first: Vec<u64>,
}

impl ChildArguments {
    /// The command line that gives these arguments.
    pub(crate) fn to_command_line(&self) -> Vec<String> {
        let first: Vec<String> = self.first.iter().map(u64::to_string).collect();
        vec![
            "--child".to_owned(),
            self.dir.display().to_string(),
            self.seed.to_string(),
            self.open_seed.to_string(),
            self.ops_per_thread.to_string(),
            u64::from(self.tiers).to_string(),
            u64::from(self.full_disk).to_string(),
            u64::from(self.lies).to_string(),
            first.join(","),
        ]
    }

    fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut next = || arguments.next().ok_or_else(|| "--child takes eight values".to_owned());
        let dir = PathBuf::from(next()?);
        let (seed, open_seed) = (number("seed", &next()?)?, number("open seed", &next()?)?);
        let ops_per_thread = number("operations", &next()?)?;
        let tiers = number("tiers", &next()?)? > 0;
        let full_disk = number("full disk", &next()?)? > 0;
        let lies = number("lies", &next()?)? > 0;
        let first = next()?.split(',').map(|n| number("first", n)).collect::<Result<_, _>>()?;
        Ok(Self { dir, seed, open_seed, ops_per_thread, tiers, full_disk, lies, first })
    }
}

impl Default for Arguments {
    fn default() -> Self {
        Self {
            cycles: 20,
            seed: None,
            dir: None,
            ops_per_cycle: 40_000,
            threads: 4,
            kill_after_ms_max: 600,
            cycles_per_database: 10,
            tiers: false,
            full_disk: false,
            sabotage: false,
            storage: 0,
            losses: 0,
            offload: false,
            messages: false,
        }
    }
}

impl Arguments {
    /// Reads the command line (without the program's name).
    pub(crate) fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Command, String> {
        let mut parsed = Self::default();
        while let Some(name) = arguments.next() {
            let mut value =
                || arguments.next().ok_or_else(|| format!("{name} needs a value after it"));
            match name.as_str() {
                "--help" | "-h" => return Ok(Command::Help),
                "--child" => return ChildArguments::parse(arguments).map(Command::Child),
                "--cycles" => parsed.cycles = number(&name, &value()?)?,
                "--seed" => parsed.seed = Some(number(&name, &value()?)?),
                "--dir" => parsed.dir = Some(PathBuf::from(value()?)),
                "--ops-per-cycle" => parsed.ops_per_cycle = number(&name, &value()?)?,
                "--threads" => parsed.threads = number(&name, &value()?)?,
                "--kill-after-ms-max" => parsed.kill_after_ms_max = number(&name, &value()?)?,
                "--cycles-per-database" => parsed.cycles_per_database = number(&name, &value()?)?,
                "--tiers" => parsed.tiers = true,
                "--full-disk" => parsed.full_disk = true,
                "--sabotage" => parsed.sabotage = true,
                "--storage" => parsed.storage = number(&name, &value()?)? as usize,
                "--offload" => parsed.offload = true,
                "--messages" => parsed.messages = true,
                "--losses" => parsed.losses = number(&name, &value()?)? as usize,
                _ => return Err(format!("unknown argument {name}")),
            }
        }
        if !(1..=64).contains(&parsed.threads) {
            return Err(format!("--threads is {}: 1 to 64 are possible", parsed.threads));
        }
        if parsed.tiers && parsed.full_disk {
            return Err("--tiers and --full-disk exclude each other".to_owned());
        }
        if parsed.offload && parsed.threads < 2 {
            return Err("--threads is 1: with --offload, two owners share the threads".to_owned());
        }
        if parsed.messages && !parsed.offload {
            return Err("--messages needs --offload".to_owned());
        }
        if parsed.cycles_per_database == 0 {
            return Err("--cycles-per-database is 0: it must be at least 1".to_owned());
        }
        if parsed.offload && (parsed.tiers || parsed.full_disk || parsed.storage > 0) {
            return Err("--offload excludes --tiers, --full-disk and --storage".to_owned());
        }
        parsed.check_storage()?;
        Ok(Command::Parent(parsed))
    }

    /// Refuses arguments that do not fit a run over storage nodes.
    fn check_storage(&self) -> Result<(), String> {
        let nodes = self.storage;
        if self.losses > 0 && nodes < LOSSES_MIN {
            return Err(format!("--losses needs --storage {LOSSES_MIN} or more"));
        }
        if nodes == 0 {
            return Ok(());
        }
        if nodes < STORAGE_MIN {
            return Err(format!("--storage is {nodes}: at least {STORAGE_MIN} nodes are needed"));
        }
        if self.tiers {
            return Err("--tiers and --storage exclude each other".to_owned());
        }
        if self.threads < 2 {
            return Err("--threads is 1: with --storage, two owners share the threads".to_owned());
        }
        Ok(())
    }

    /// The command that repeats the run.
    pub(crate) fn replay(&self, seed: u64) -> String {
        format!(
            "archipelago-crash --seed {seed} --cycles {} --ops-per-cycle {} --threads {} \
             --kill-after-ms-max {} --cycles-per-database {}{}{}{}{}{}{}{}",
            self.cycles,
            self.ops_per_cycle,
            self.threads,
            self.kill_after_ms_max,
            self.cycles_per_database,
            if self.tiers { " --tiers" } else { "" },
            if self.full_disk { " --full-disk" } else { "" },
            if self.sabotage { " --sabotage" } else { "" },
            match self.storage {
                0 => String::new(),
                nodes => format!(" --storage {nodes}"),
            },
            match self.losses {
                0 => String::new(),
                pairs => format!(" --losses {pairs}"),
            },
            if self.offload { " --offload" } else { "" },
            if self.messages { " --messages" } else { "" },
        )
    }
}

fn number(name: &str, value: &str) -> Result<u64, String> {
    let digits = value.replace('_', "");
    digits.parse().map_err(|_| format!("{name}: \"{value}\" is not a number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Command, String> {
        Arguments::parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn the_replay_command_gives_the_same_arguments() {
        let Ok(Command::Parent(first)) = parse("--cycles 7 --threads 3 --tiers --sabotage") else {
            panic!("parent arguments")
        };
        let line = first.replay(99);
        let Ok(Command::Parent(again)) = parse(line.trim_start_matches("archipelago-crash "))
        else {
            panic!("parent arguments")
        };
        assert_eq!(again, Arguments { seed: Some(99), ..first });
        let Ok(Command::Parent(first)) = parse("--storage 6 --losses 4 --full-disk") else {
            panic!("parent arguments")
        };
        let line = first.replay(3);
        let Ok(Command::Parent(again)) = parse(line.trim_start_matches("archipelago-crash "))
        else {
            panic!("parent arguments")
        };
        assert_eq!(again, Arguments { seed: Some(3), ..first });
        let Ok(Command::Parent(first)) = parse("--offload --cycles 9") else {
            panic!("parent arguments")
        };
        assert!(first.replay(3).ends_with(" --offload"));
        let Ok(Command::Parent(first)) = parse("--offload --messages") else {
            panic!("parent arguments")
        };
        assert!(first.replay(3).ends_with(" --offload --messages"));
    }

    #[test]
    fn child_gets_every_argument() {
        let child = ChildArguments {
            dir: "/tmp/x".into(),
            seed: 1,
            open_seed: 2,
            ops_per_thread: 3,
            tiers: false,
            full_disk: true,
            lies: true,
            first: vec![4, 5],
        };
        let Ok(Command::Child(parsed)) = Arguments::parse(child.to_command_line().into_iter())
        else {
            panic!("child arguments")
        };
        assert_eq!(parsed, child);
    }

    #[test]
    fn mistakes_are_named() {
        let problem = |line| parse(line).err().unwrap_or_default();
        assert!(problem("--cycles many").contains("\"many\" is not a number"));
        assert!(problem("--cycle 3").contains("unknown argument --cycle"));
        assert!(problem("--seed").contains("--seed needs a value"));
        assert!(problem("--threads 0").contains("--threads is 0"));
        assert!(problem("--tiers --full-disk").contains("exclude each other"));
        assert!(problem("--tiers --storage 6").contains("exclude each other"));
        assert!(problem("--offload --storage 6").contains("--offload excludes"));
        assert!(problem("--messages").contains("--messages needs --offload"));
        assert!(problem("--storage 2").contains("at least 3 nodes"));
        assert!(problem("--storage 5 --losses 1").contains("--storage 6 or more"));
    }
}
