//! The lines of the journal: the settings of a comparison, and a result of each run.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::flags::Settings;
use super::host::Host;
use super::steps::Step;
use crate::compare::run::{Side, SideRun};

/// First line of a journal.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Head {
    pub(super) settings: Settings,
    /// The result file that the run is for.
    pub(super) json: PathBuf,
    pub(super) host: Host,
}

/// A run of a step, or its failure.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Entry {
    pub(super) round: u64,
    pub(super) step: Step,
    pub(super) side: Side,
    /// Wall time, preparation included.
    pub(super) seconds: f64,
    pub(super) run: Option<SideRun>,
    /// A run with one read, to subtract the cost of opening.
    pub(super) opening: Option<SideRun>,
    pub(super) error: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::Journal;
    use crate::rocksdb::flags;

    #[test]
    fn settings_and_failures_survive_the_journal() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("x.jsonl");
        let flags = flags::read(&["--quick".into()]).expect("known flags");
        let host = Host { db_bench: "db_bench version 7.8.3".to_owned(), ..Host::default() };
        let head = Head { settings: flags.settings(), json: PathBuf::from("x.json"), host };
        let mut journal = Journal::create(&path, &head).expect("a journal");
        let error = Some("the disk is full".to_owned());
        let (step, side) = (Step::Cold, Side::RocksDb);
        let entry = Entry { round: 0, step, side, seconds: 1.5, run: None, opening: None, error };
        journal.append(&entry).expect("appended");
        let (_, found, entries): (Journal, Head, Vec<Entry>) =
            Journal::resume(&path).expect("a journal");
        assert_eq!(found.settings, head.settings);
        assert_eq!(entries[0].error.as_deref(), Some("the disk is full"));
        assert_eq!((entries[0].step, entries[0].side), (step, side));
    }
}
