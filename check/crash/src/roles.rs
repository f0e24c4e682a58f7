//! The roles of child processes of a run over a cluster.

use std::process::ExitCode;

use archipelago::ErrorKind;
use rustix::process::{Signal, set_parent_process_death_signal};

use crate::children::{BUSY, FENCED, ManagerRole, ROLE, Words};
use crate::{offload, storage};

/// Runs a child process in its role.
pub(crate) fn run(role: &str, words: impl Iterator<Item = String>) -> ExitCode {
    // A stopped process notices the end of its parent by this signal only.
    if let Err(error) = set_parent_process_death_signal(Some(Signal::KILL)) {
        eprintln!("cannot ask for the end of this process with its parent: {error}");
        return ExitCode::FAILURE;
    }
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false).init();
    let ended = Words::parse(words).and_then(|words| {
        let manager = (role == ManagerRole::NAME).then(|| ManagerRole::parse(&words));
        let ran = manager
            .map(|role| role.map(|role| role.run()))
            .or_else(|| storage::run_role(role, &words))
            .or_else(|| offload::run_role(role, &words));
        ran.unwrap_or_else(|| Err(format!("{ROLE}: there is no role \"{role}\"")))
    });
    match ended {
        Ok(Ok(())) => ExitCode::SUCCESS,
        Ok(Err(error)) => {
            eprintln!("{error}");
            match error.kind() {
                ErrorKind::Fenced => ExitCode::from(FENCED),
                ErrorKind::Busy => ExitCode::from(BUSY),
                _ => ExitCode::FAILURE,
            }
        }
        Err(problem) => {
            eprintln!("{problem}");
            ExitCode::FAILURE
        }
    }
}
