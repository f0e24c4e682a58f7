//! Scripts that tests run as programs.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// An executable script at `dir/name`.
pub(crate) fn script(dir: &Path, name: &str, text: &str) -> PathBuf {
    let path = dir.join(name);
    let source = dir.join(format!("{name}.text"));
    #[expect(clippy::disallowed_methods, reason = "a script, no database file")]
    std::fs::write(&source, text).expect("a script");
    // Another process makes the script. If this process wrote it, a thread that forks meanwhile
    // would keep it open, and a file that is open for writing cannot be run ("text file busy").
    let copied = Command::new("cp").args([&source, &path]).status().expect("cp");
    assert!(copied.success());
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(&path, mode).expect("an executable script");
    path
}

/// A script that runs this program as `archipelago`, with `options` for the test harness.
pub(crate) fn program(dir: &Path, options: &str) -> PathBuf {
    let own = std::env::current_exe().expect("this program");
    let text = format!(
        "#!/bin/sh\nexport {}=\"$(printf '%s\\n' \"$@\")\"\nexec {} --exact comparisons::program \
         {options}\n",
        crate::comparisons::WORDS,
        own.display()
    );
    script(dir, "archipelago", &text)
}
