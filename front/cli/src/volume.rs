//! Flags that name a volume of a storage cluster, in which a database lies instead of a directory.

use std::time::Duration;

use archipelago::volume::{LogWriting, RedundancyMode, VolumeSettings};
use archipelago::{Error, Result};

use crate::managers::managers;
use crate::secret::SecretArgs;

/// Shortest time in milliseconds that an owner has to renew its lease.
const LEASE_MS_MIN: u64 = 100;

/// The volume of a database.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct VolumeArgs {
    /// Addresses of the managers of a storage cluster, separated by commas. The database then lies
    /// in a volume of that cluster (see --volume), and not in a directory of this machine
    #[arg(long, value_name = "HOST:PORT,...", global = true)]
    store: Option<String>,
    /// Name of the volume with the database: letters, digits, '-', '_' and '.' (needs --store).
    /// One process at a time can have a volume open
    #[arg(long, value_name = "NAME", global = true)]
    volume: Option<String>,
    /// Take the volume over from another process without waiting for the end of its lease. That
    /// process can write no more. It may answer reads with old values for up to a lease, so end it
    /// first if you can (needs --store)
    #[arg(long, global = true)]
    take_over: bool,
    /// Length of the lease of the volume in milliseconds. If this process dies, the next one waits
    /// as long before it opens the volume (needs --store)
    #[arg(
        long,
        value_name = "MS",
        default_value_t = 10_000,
        value_parser = clap::value_parser!(u64).range(LEASE_MS_MIN..=3_600_000),
        global = true
    )]
    volume_lease_ms: u64,
    /// Redundancy of new files. Use `by-class`; the other values serve comparisons (needs --store)
    #[arg(long, value_enum, default_value_t = Redundancy::ByClass, global = true)]
    redundancy: Redundancy,
    /// How the log is sent to the storage nodes (needs --store)
    #[arg(long, value_enum, default_value_t = LogForm::Serial, global = true)]
    log_writing: LogForm,
    /// Fewest copies with which a file is written while domains are down: 2, or 1 for a trial on
    /// one storage node (needs --store)
    #[arg(
        long,
        value_name = "N",
        default_value_t = 2,
        value_parser = clap::value_parser!(u8).range(1..=3),
        global = true
    )]
    copies_min: u8,
    /// Open a volume although storage nodes that do not answer may have the last bytes of its log.
    /// The last unsynced writes may be lost. Use it only if the nodes never return (needs --store)
    #[arg(long, global = true)]
    accept_loss: bool,
}

/// Redundancy of the files of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Redundancy {
    /// Value files have four parts and two parities, and other files have three copies
    ByClass,
    /// All files have three copies
    Replicated,
    /// Tables and value files have four parts and two parities
    Coded,
}

/// How the log of a volume is sent to storage nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum LogForm {
    /// Each group of writes to the three nodes of one log
    Serial,
    /// Large groups over four logs. It pays if one connection is slower than the network card
    Striped,
}

impl From<LogForm> for LogWriting {
    fn from(form: LogForm) -> Self {
        match form {
            LogForm::Serial => Self::Serial,
            LogForm::Striped => Self::Striped,
        }
    }
}

impl From<Redundancy> for RedundancyMode {
    fn from(redundancy: Redundancy) -> Self {
        match redundancy {
            Redundancy::ByClass => Self::ByClass,
            Redundancy::Replicated => Self::AllReplicated,
            Redundancy::Coded => Self::AllCoded,
        }
    }
}

impl VolumeArgs {
    /// Whether the database lies in a volume.
    pub(crate) fn is_given(&self) -> bool {
        self.store.is_some() || self.volume.is_some() || self.take_over || self.accept_loss
    }

    /// Addresses of the managers of the storage cluster, if they are given.
    pub(crate) fn store(&self) -> Option<&str> {
        self.store.as_deref()
    }

    /// Flag that says how the log of the volume is written, or that the volume is taken from its
    /// owner. If the log lies in a directory, the first flag would be ignored, and the second one
    /// would open the volume without the log of its owner.
    pub(crate) fn about_log_or_owner(&self) -> Option<&'static str> {
        match (self.take_over, self.log_writing) {
            (true, _) => Some("--take-over"),
            (false, LogForm::Striped) => Some("--log-writing striped"),
            (false, LogForm::Serial) => None,
        }
    }

    /// Redundancy of new files.
    pub(crate) fn redundancy(&self) -> Redundancy {
        self.redundancy
    }

    /// Fewest copies with which a file is written while domains are down.
    pub(crate) fn copies_min(&self) -> u8 {
        self.copies_min
    }

    /// Settings of the volume that the flags name, to open it for `command`. `None`: no volume.
    pub(crate) fn settings(
        &self,
        command: &str,
        secret: &SecretArgs,
    ) -> Result<Option<VolumeSettings>> {
        let (store, name) = match (&self.store, &self.volume) {
            (Some(store), Some(name)) => (store, name),
            (Some(_), None) => {
                return Err(Error::invalid(
                    "--store needs the name of a volume of that cluster: give --volume NAME",
                ));
            }
            (None, Some(name)) => {
                return Err(Error::invalid(format!(
                    "--volume {name} needs the storage cluster: give --store HOST:PORT with the \
                     address of its manager"
                )));
            }
            (None, None) if self.take_over || self.accept_loss => {
                return Err(Error::invalid(
                    "--take-over and --accept-loss need a volume: give --store HOST:PORT and \
                     --volume NAME",
                ));
            }
            (None, None) => return Ok(None),
        };
        let managers =
            managers(store).map_err(|error| error.context_at(format!("--store {store}")))?;
        let mut settings = VolumeSettings::new(managers, name, owner(command));
        settings.secret = secret.read()?;
        settings.take_over = self.take_over;
        settings.lease = self.lease();
        settings.stores.mode = self.redundancy.into();
        settings.stores.log_writing = self.log_writing.into();
        settings.stores.copies_min = self.copies_min;
        settings.stores.accept_loss = self.accept_loss;
        Ok(Some(settings))
    }

    /// Length of the lease of the volume.
    pub(crate) fn lease(&self) -> Duration {
        Duration::from_millis(self.volume_lease_ms)
    }

    /// The volume as the subject of a line, such as "volume reef of the storage cluster at …".
    pub(crate) fn describe(&self) -> String {
        let text = |flag: &Option<String>| flag.clone().unwrap_or_default();
        format!("volume {} of the storage cluster at {}", text(&self.volume), text(&self.store))
    }
}

/// Name of this process, which a process that finds the volume in use shows in its error.
fn owner(command: &str) -> String {
    let machine = rustix::system::uname();
    let machine = machine.nodename().to_string_lossy();
    format!("`archipelago {command}` (process {} on {machine})", std::process::id())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Flags {
        #[command(flatten)]
        volume: VolumeArgs,
    }

    fn settings(flags: &[&str]) -> Result<Option<VolumeSettings>> {
        let flags = Flags::parse_from([&["command"], flags].concat());
        flags.volume.settings("serve", &SecretArgs::default())
    }

    #[test]
    fn store_and_volume_are_given_together() {
        assert!(settings(&[]).unwrap().is_none());
        let both = ["--store", "10.0.0.1:7700,10.0.0.2:7700", "--volume", "reef"];
        let found = settings(&both).unwrap().unwrap();
        assert_eq!(found.managers, ["tcp:10.0.0.1:7700", "tcp:10.0.0.2:7700"]);
        assert_eq!((found.name.as_str(), found.take_over), ("reef", false));
        assert_eq!(found.lease, Duration::from_secs(10));
        assert!(found.owner.contains(&std::process::id().to_string()), "{}", found.owner);
        let refused = |flags: &[&str]| settings(flags).unwrap_err().to_string();
        assert!(refused(&both[..2]).contains("give --volume NAME"));
        assert!(refused(&both[2..]).contains("--volume reef needs"));
        assert!(refused(&["--take-over"]).contains("need a volume"));
        assert!(refused(&["--store", "nowhere", "--volume", "reef"]).contains("--store nowhere"));
    }
}
