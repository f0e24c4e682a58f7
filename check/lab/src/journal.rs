//! The journal of a command: one line of JSON for its settings, and one for each result, appended
//! when it arrives.
//!
//! It survives the end of the program for any cause. A torn last line loses one result. Any other
//! line that cannot be read is an error.
//!
//! [`Journal`] has lines of any type. [`RunJournal`] is that of a command that makes runs in
//! rounds. Its settings are the words of the command, so that `--resume FILE` needs no others.
//!
//! Failure: an error names the file.

use std::ffi::OsString;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use archipelago_bench::harness::process;
use archipelago_bench::harness::store::{
    Error, FileClass, FileSystem, IoContext, IoPurpose, LocalFs, Result,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::page;
use crate::rounds::absolute;

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

/// First line of the journal of a command that makes runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct RunsHead {
    command: String,
    /// The words after the name of the command.
    words: Vec<String>,
    /// The commit that is measured.
    commit: String,
    /// Directory of the runs.
    dir: PathBuf,
}

/// The runs of a command so far, and the journal that has them.
#[derive(Debug)]
pub(crate) struct RunJournal<R> {
    journal: Journal,
    words: Vec<OsString>,
    dir: PathBuf,
    runs: Vec<R>,
}

impl<R: Serialize + DeserializeOwned> RunJournal<R> {
    /// Name of the file in the directory of the reports.
    const NAME: &'static str = "runs.jsonl";

    /// Begins the journal of `command` with `words`, next to the reports in `out`. The runs lie in
    /// `dir`.
    pub(crate) fn create(
        out: &Path,
        command: &str,
        words: &[OsString],
        dir: PathBuf,
    ) -> Result<Self> {
        let text = |word: &OsString| word.to_string_lossy().into_owned();
        let head = RunsHead {
            command: command.to_owned(),
            words: words.iter().map(text).collect(),
            commit: page::remembered_commit(),
            dir: dir.clone(),
        };
        let journal = Journal::create(&out.join(Self::NAME), &head)?;
        Ok(Self { journal, words: words.to_owned(), dir, runs: Vec::new() })
    }

    /// Goes on with the journal at `path`. It must be one of `command` at the same commit, because
    /// a page measures one commit.
    pub(crate) fn resume(path: &Path, command: &str) -> Result<Self> {
        let path = &absolute(path)?;
        let (journal, head, runs) = Journal::resume::<RunsHead, R>(path)?;
        let commit = page::remembered_commit();
        let refused = |why: String| Error::invalid(format!("{}: {why}", path.display()));
        if head.command != command {
            return Err(refused(format!("it is a journal of {}, not of {command}", head.command)));
        }
        if head.commit != commit {
            return Err(refused(format!(
                "its runs measured commit {}, and this is {commit}: go on with the program of that \
                 commit in its clone, or remove the journal",
                head.commit
            )));
        }
        // A program that was killed may leave the process of its run.
        for flag in ["--db", "--json"] {
            let theirs = format!("{flag}={}{}", head.dir.display(), std::path::MAIN_SEPARATOR);
            if let Some(pid) = process::with_argument(&theirs) {
                let dir = head.dir.display();
                return Err(refused(format!(
                    "process {pid} still works in {dir}: end it, or wait for its end"
                )));
            }
        }
        eprintln!("{} runs are there already", runs.len());
        let words = head.words.into_iter().map(OsString::from).collect();
        Ok(Self { journal, words, dir: head.dir, runs })
    }

    /// Directory of the reports.
    pub(crate) fn out(&self) -> &Path {
        self.journal.path().parent().unwrap_or(Path::new("."))
    }

    /// Directory of the runs.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// The words of the command that began the journal.
    pub(crate) fn words(&self) -> &[OsString] {
        &self.words
    }

    /// The runs so far.
    pub(crate) fn runs(&self) -> &[R] {
        &self.runs
    }

    /// Adds a run. It is in the file when this returns.
    pub(crate) fn push(&mut self, run: R) -> Result<()> {
        self.journal.append(&run)?;
        self.runs.push(run);
        Ok(())
    }

    /// Ends the journal after the reports. If runs failed, it stays, and the next process repeats
    /// them. A journal without runs is of no use and goes, too.
    pub(crate) fn end(self, result: Result<()>) -> Result<()> {
        if result.is_ok() || self.runs.is_empty() {
            return result.and(self.journal.remove());
        }
        eprintln!("--resume={} repeats the runs that failed", self.journal.path().display());
        result
    }
}

#[cfg(test)]
mod tests {
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

    #[test]
    fn runs_go_on_with_the_words_of_their_command() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("runs.jsonl");
        let words = ["--quick", "--only=log"].map(OsString::from);
        let runs_dir = dir.path().join("runs");
        let mut runs =
            RunJournal::create(dir.path(), "o3", &words, runs_dir.clone()).expect("a journal");
        runs.push(entry(0)).expect("appended");
        // The process is killed.
        drop(runs);
        let other = RunJournal::<Entry>::resume(&path, "terark-nodes").expect_err("of o3");
        assert!(other.to_string().contains("a journal of o3"), "{other}");
        let mut runs = RunJournal::<Entry>::resume(&path, "o3").expect("a journal");
        assert_eq!((runs.words(), runs.runs()), (&words[..], &[entry(0)][..]));
        assert_eq!(runs.dir(), runs_dir);
        runs.push(entry(1)).expect("appended");
        assert!(runs.end(Err(Error::invalid("a run failed"))).is_err());
        let runs = RunJournal::<Entry>::resume(&path, "o3").expect("it stays after a failure");
        assert_eq!(runs.runs(), [entry(0), entry(1)]);
        runs.end(Ok(())).expect("the end");
        assert!(!path.exists(), "the reports have everything");
    }

    #[test]
    fn journal_of_another_commit_is_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("runs.jsonl");
        let (command, commit) = ("o3".to_owned(), "of long ago".to_owned());
        let head = RunsHead { command, words: Vec::new(), commit, dir: PathBuf::from("/x") };
        Journal::create(&path, &head).expect("a journal");
        let refusal = RunJournal::<Entry>::resume(&path, "o3").expect_err("another commit");
        assert!(refusal.to_string().contains("of long ago"), "{refusal}");
    }
}
