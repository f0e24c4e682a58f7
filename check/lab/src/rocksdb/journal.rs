//! The journal: one line of JSON for the settings, and one for each result, appended when it
//! arrives.
//!
//! It survives the end of the program for any cause. A torn last line loses one result. Any other
//! line that cannot be read is an error.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::flags::Settings;
use super::host::Host;
use super::steps::Step;
use crate::compare::run::{Side, SideRun};
use archipelago_bench::harness::store::{
    Error, FileClass, FileSystem, IoContext, IoPurpose, LocalFs, Result,
};

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

/// An open journal.
#[derive(Debug)]
pub(super) struct Journal {
    path: PathBuf,
    file: File,
}

/// The journal of the result file `json`.
pub(super) fn beside(json: &Path) -> PathBuf {
    json.with_extension("jsonl")
}

impl Journal {
    /// Creates a journal. An existing one is not replaced, because its results may be wanted.
    pub(super) fn create(path: &Path, head: &Head) -> Result<Self> {
        if LocalFs::new().exists(&std::path::absolute(path).unwrap_or_default())? {
            return Err(Error::invalid(format!(
                "{0} is the journal of a run that was cut short: go on with it by --resume {0}, or \
                 remove it",
                path.display()
            )));
        }
        let mut journal = Self::open(path)?;
        journal.append(head)?;
        Ok(journal)
    }

    /// Opens an existing journal, and returns its entries.
    pub(super) fn resume(path: &Path) -> Result<(Self, Head, Vec<Entry>)> {
        let context = IoContext::new(FileClass::Other, IoPurpose::Maintenance);
        let bytes = LocalFs::new().read(&std::path::absolute(path).unwrap_or_default(), context)?;
        let text = String::from_utf8_lossy(&bytes);
        let (head, entries) =
            parse(&text).map_err(|error| Error::invalid(format!("{}: {error}", path.display())))?;
        let mut journal = Self::open(path)?;
        if !text.ends_with('\n') {
            journal.write(b"\n")?;
        }
        Ok((journal, head, entries))
    }

    fn open(path: &Path) -> Result<Self> {
        let file = File::options().create(true).append(true).open(path);
        let file = file.map_err(|error| Error::io("open", path, error))?;
        Ok(Self { path: path.to_owned(), file })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Appends a line to the journal.
    pub(super) fn append(&mut self, line: &impl Serialize) -> Result<()> {
        let mut bytes = serde_json::to_vec(line)
            .map_err(|error| Error::invalid(format!("a result does not fit JSON: {error}")))?;
        bytes.push(b'\n');
        self.write(&bytes)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes).map_err(|error| Error::io("write", &self.path, error))
    }

    /// Removes the journal, because the result file has everything.
    pub(super) fn remove(self) -> Result<()> {
        LocalFs::new().remove(&std::path::absolute(&self.path).unwrap_or_default())
    }
}

/// The lines of a journal. A torn last line, and the torn line that a resumed run ended, are left
/// out; the error says which line is wrong.
fn parse(text: &str) -> std::result::Result<(Head, Vec<Entry>), String> {
    let mut lines = text.lines();
    let head = lines.next().ok_or("it is empty")?;
    let head = serde_json::from_str(head).map_err(|error| format!("line 1: {error}"))?;
    let mut entries = Vec::new();
    for (at, line) in lines.enumerate() {
        match serde_json::from_str(line) {
            Ok(entry) => entries.push(entry),
            // Cut off in the middle of a write.
            Err(error) if error.is_eof() => {}
            Err(error) => return Err(format!("line {}: {error}", at + 2)),
        }
    }
    Ok((head, entries))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rocksdb::flags;

    fn head() -> Head {
        let flags = flags::read(&["--quick".into()]).expect("known flags");
        let host = Host { db_bench: "db_bench version 7.8.3".to_owned(), ..Host::default() };
        Head { settings: flags.settings(), json: PathBuf::from("x.json"), host }
    }

    fn entry(round: u64) -> Entry {
        let error = Some("the disk is full".to_owned());
        let (step, side) = (Step::Cold, Side::RocksDb);
        Entry { round, step, side, seconds: 1.5, run: None, opening: None, error }
    }

    #[test]
    fn journal_returns_all_but_a_torn_line() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("x.jsonl");
        let mut journal = Journal::create(&path, &head()).expect("a journal");
        journal.append(&entry(0)).expect("appended");
        // A process that dies in the middle of a line.
        journal.write(b"{\"round\":1,\"step\":\"Co").expect("written");
        let refusal = Journal::create(&path, &head()).expect_err("it is there").to_string();
        assert!(refusal.contains("--resume"), "{refusal}");
        let (mut journal, found, entries) = Journal::resume(&path).expect("a journal");
        assert_eq!((found.settings, entries.len()), (head_like(&path), 1));
        assert_eq!(entries[0].error.as_deref(), Some("the disk is full"));
        journal.append(&entry(2)).expect("appended");
        let (journal, _, entries) = Journal::resume(&path).expect("a journal");
        assert_eq!(entries.iter().map(|entry| entry.round).collect::<Vec<_>>(), [0, 2]);
        journal.remove().expect("removed");
        assert!(!path.exists());
    }

    /// Settings of the first line.
    fn head_like(path: &Path) -> Settings {
        let text = std::fs::read_to_string(path).expect("the journal");
        let first: serde_json::Value =
            serde_json::from_str(text.lines().next().expect("a line")).expect("JSON");
        serde_json::from_value(first["settings"].clone()).expect("settings")
    }

    #[test]
    fn journal_line_without_a_result_is_an_error() {
        let head = serde_json::to_string(&head()).expect("JSON");
        let error = parse(&format!("{head}\n{{\"rounds\":1}}\n")).expect_err("no entry");
        assert!(error.starts_with("line 2: "), "{error}");
        assert!(parse("").is_err());
    }
}
