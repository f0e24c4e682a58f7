//! The journal of a command: one line of JSON for its settings, and one for each result, appended
//! when it arrives.
//!
//! It survives the end of the program for any cause. A torn last line loses one result. Any other
//! line that cannot be read is an error.
//!
//! Failure: an error names the file.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use archipelago_bench::harness::store::{
    Error, FileClass, FileSystem, IoContext, IoPurpose, LocalFs, Result,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// An open journal.
#[derive(Debug)]
pub(crate) struct Journal {
    path: PathBuf,
    file: File,
}

/// The journal of the result file `json`.
pub(crate) fn beside(json: &Path) -> PathBuf {
    json.with_extension("jsonl")
}

impl Journal {
    /// Creates a journal. An existing one is not replaced, because its results may be wanted.
    pub(crate) fn create(path: &Path, head: &impl Serialize) -> Result<Self> {
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

    /// Opens an existing journal, and returns its settings and its entries.
    pub(crate) fn resume<H, E>(path: &Path) -> Result<(Self, H, Vec<E>)>
    where
        H: DeserializeOwned,
        E: DeserializeOwned,
    {
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

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Appends a line to the journal.
    pub(crate) fn append(&mut self, line: &impl Serialize) -> Result<()> {
        let mut bytes = serde_json::to_vec(line)
            .map_err(|error| Error::invalid(format!("a result does not fit JSON: {error}")))?;
        bytes.push(b'\n');
        self.write(&bytes)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes).map_err(|error| Error::io("write", &self.path, error))
    }

    /// Removes the journal, because the result file has everything.
    pub(crate) fn remove(self) -> Result<()> {
        LocalFs::new().remove(&std::path::absolute(&self.path).unwrap_or_default())
    }
}

/// The lines of a journal. A torn last line, and the torn line that a resumed run ended, are left
/// out; the error says which line is wrong.
fn parse<H, E>(text: &str) -> std::result::Result<(H, Vec<E>), String>
where
    H: DeserializeOwned,
    E: DeserializeOwned,
{
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
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Settings {
        rows: Vec<String>,
    }

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Entry {
        round: u64,
        error: Option<String>,
    }

    fn settings() -> Settings {
        Settings { rows: vec!["readcold".to_owned()] }
    }

    fn entry(round: u64) -> Entry {
        Entry { round, error: Some("the disk is full".to_owned()) }
    }

    #[test]
    fn journal_returns_all_but_a_torn_line() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("x.jsonl");
        let mut journal = Journal::create(&path, &settings()).expect("a journal");
        journal.append(&entry(0)).expect("appended");
        // A process that dies in the middle of a line.
        journal.write(b"{\"round\":1,\"error\":\"Co").expect("written");
        let refusal = Journal::create(&path, &settings()).expect_err("it is there").to_string();
        assert!(refusal.contains("--resume"), "{refusal}");
        let (mut journal, found, entries): (Journal, Settings, Vec<Entry>) =
            Journal::resume(&path).expect("a journal");
        assert_eq!((found, entries.len()), (settings(), 1));
        assert_eq!(entries[0].error.as_deref(), Some("the disk is full"));
        journal.append(&entry(2)).expect("appended");
        let (journal, _, entries): (Journal, Settings, Vec<Entry>) =
            Journal::resume(&path).expect("a journal");
        assert_eq!(entries.iter().map(|entry| entry.round).collect::<Vec<_>>(), [0, 2]);
        journal.remove().expect("removed");
        assert!(!path.exists());
    }

    #[test]
    fn journal_line_without_a_result_is_an_error() {
        let head = serde_json::to_string(&settings()).expect("JSON");
        let parsed = parse::<Settings, Entry>(&format!("{head}\n{{\"rounds\":1}}\n"));
        let error = parsed.expect_err("no entry");
        assert!(error.starts_with("line 2: "), "{error}");
        assert!(parse::<Settings, Entry>("").is_err());
    }
}
