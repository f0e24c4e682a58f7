//! The program that the laboratory measures.
//!
//! The `archipelago` program has an allocator of its own, so a measurement starts that program and
//! does not run the engine in the laboratory's process.

use std::path::{Path, PathBuf};

use archipelago_bench::harness::store::{Error, Result};

/// The program that a flag names; without one, `archipelago` in the directory of this program.
pub(crate) fn named_or_beside(named: Option<&PathBuf>) -> Result<PathBuf> {
    if let Some(path) = named {
        return Ok(path.clone());
    }
    let own = std::env::current_exe()
        .map_err(|error| Error::io("find", Path::new("the own program"), error))?;
    let beside = own.with_file_name("archipelago");
    if beside.is_file() {
        return Ok(beside);
    }
    Err(Error::invalid(format!(
        "{} does not exist: build it with `cargo build --release -p archipelago-cli`, or name a \
         program with --archipelago",
        beside.display()
    )))
}
