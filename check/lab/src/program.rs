//! The program that the laboratory measures.
//!
//! The `archipelago` program has an allocator of its own, so a measurement starts that program and
//! does not run the engine in the laboratory's process.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

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

/// Runs `PROGRAM bench WORDS` to its end. An error contains the error output.
pub(crate) fn run_to_end(program: &Path, words: &[String]) -> Result<()> {
    finish(Command::new(program).arg("bench").args(words), words).map(drop)
}

/// The help of `PROGRAM bench`, which names the flags and the modes that a build knows.
pub(crate) fn bench_help(program: &Path) -> Result<String> {
    let mut command = Command::new(program);
    let output = command.args(["bench", "--help"]).stdin(Stdio::null()).output();
    let output = output.map_err(|error| Error::io("run", program, error))?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Number of instructions of `PROGRAM bench WORDS`, which valgrind counts. `out` is a file that
/// valgrind writes.
pub(crate) fn instructions(program: &Path, words: &[String], out: &Path) -> Result<u64> {
    let mut command = Command::new("valgrind");
    command
        .arg("--tool=callgrind")
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(program);
    let said = finish(command.arg("bench").args(words), words)?;
    let said = String::from_utf8_lossy(&said.stderr).into_owned();
    collected(&said)
        .ok_or_else(|| Error::invalid(format!("valgrind counted nothing: {}", said.trim())))
}

/// Runs a process to its end. An error contains its error output.
fn finish(command: &mut Command, words: &[String]) -> Result<Output> {
    let name = command.get_program().to_owned();
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|error| Error::io("run", Path::new(&name), error))?;
    if output.status.success() {
        return Ok(output);
    }
    Err(Error::invalid(format!(
        "{} … bench {} failed ({}): {}",
        name.display(),
        words.join(" "),
        output.status,
        String::from_utf8_lossy(&output.stderr).trim()
    )))
}

/// The number in callgrind's line `==7== Collected : 123`.
fn collected(said: &str) -> Option<u64> {
    let line = said.lines().find(|line| line.contains("Collected"))?;
    line.rsplit(':').next()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn count_of_instructions_is_read_from_the_output_of_valgrind() {
        assert_eq!(collected("==1== \n==1== Collected : 123456\n"), Some(123_456));
        assert_eq!(collected("nothing"), None);
    }
}
