//! The flag that names the file with a cluster's secret.
//!
//! A secret comes from a file that only its user may read. It never comes from the command line,
//! which every user of the machine can read.

use std::path::{Path, PathBuf};

use archipelago_base::Result;
use archipelago_fabric::Secret;

use crate::console::print_line;

/// The secret that the processes of a cluster share.
#[derive(clap::Args, Clone, Debug, Default)]
pub(crate) struct SecretArgs {
    /// File with the secret that all processes of the cluster share, which only its user may read.
    /// `archipelago cluster secret FILE` makes one. Without this flag the process listens on
    /// loopback addresses only, and connects to processes without a secret
    #[arg(long, value_name = "FILE", global = true)]
    secret_file: Option<PathBuf>,
}

impl SecretArgs {
    /// The flag with the file of a secret.
    pub(crate) fn of_file(file: &Path) -> Self {
        Self { secret_file: Some(file.to_owned()) }
    }

    /// Whether the flag is given.
    pub(crate) fn is_given(&self) -> bool {
        self.secret_file.is_some()
    }

    /// Reads the secret, if the flag is given.
    pub(crate) fn read(&self) -> Result<Option<Secret>> {
        let read =
            |file: &PathBuf| Secret::read(file).map_err(|error| error.context_at("--secret-file"));
        self.secret_file.as_ref().map(read).transpose()
    }

    /// The same flag, for a child process.
    pub(crate) fn words(&self) -> Vec<String> {
        let file = self.secret_file.iter();
        file.flat_map(|file| ["--secret-file".to_owned(), file.display().to_string()]).collect()
    }

    /// Prints which processes of a cluster can connect to this one.
    pub(crate) fn print_audience(&self) {
        match &self.secret_file {
            Some(file) => {
                print_line!("Only processes with the secret in {} can connect", file.display());
            }
            None => print_line!(
                "There is no secret, so only processes of this machine can connect; for others give \
                 --secret-file FILE"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secret_is_read_from_the_file_of_the_flag() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("secret");
        let made = Secret::create(&file).unwrap();
        let args = SecretArgs::of_file(&file);
        assert!(args.is_given());
        assert_eq!(args.read().unwrap().unwrap().cluster(), made.cluster());
        assert_eq!(args.words(), ["--secret-file", &file.display().to_string()]);
        let none = SecretArgs::default();
        assert!(none.read().unwrap().is_none() && none.words().is_empty() && !none.is_given());
        let error = SecretArgs::of_file(&dir.path().join("none")).read().unwrap_err().to_string();
        assert!(error.contains("--secret-file"), "{error}");
    }
}
