//! C programs against the header and the library.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{crate_dir, library, library_dir, output};

/// Compiles a program with all warnings, and links it with the shared or the static library.
/// `CFLAGS` adds options: `.ci/nightly sanitizer` sets it.
fn compile(source: &Path, program: &Path, shared: bool) {
    let mut cc = Command::new("cc");
    cc.args(["-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-g"]);
    cc.arg("-I").arg(crate_dir().join("include")).arg(source).arg("-o").arg(program);
    cc.args(std::env::var("CFLAGS").unwrap_or_default().split_whitespace());
    if shared {
        cc.arg(library()).arg(format!("-Wl,-rpath,{}", library_dir().display()));
    } else {
        cc.arg(library_dir().join("libarchipelago_tiers.a")).args(["-ldl", "-lm"]);
    }
    output(cc.arg("-lpthread"));
}

#[test]
fn every_call_does_what_the_header_says() {
    for shared in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("calls");
        compile(&crate_dir().join("tests/c/calls.c"), &program, shared);
        let data = dir.path().join("data");
        std::fs::create_dir(&data).unwrap();
        let text = output(Command::new(program).arg(&data));
        assert_eq!(text, "every call does what the header says\n");
    }
}

/// The first program of a page, and what the page says that it prints.
fn program_of(page: &str) -> (String, String) {
    let path = crate_dir().join("../../docs/guide").join(page);
    let text = std::fs::read_to_string(path).unwrap();
    let block = |kind: &str| {
        let start = text.find(&format!("```{kind}\n")).unwrap() + kind.len() + 4;
        text[start..start + text[start..].find("```").unwrap()].to_owned()
    };
    (block("c"), block("text"))
}

#[test]
fn program_of_the_page_prints_what_the_page_says() {
    let (source, prints) = program_of("c-library.md");
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| -> PathBuf { dir.path().join(name) };
    std::fs::write(at("example.c"), source).unwrap();
    compile(&at("example.c"), &at("example"), true);
    for _first_and_again in 0..2 {
        let text = output(Command::new(at("example")).arg(at("fast")).arg(at("slow")));
        assert_eq!(text, prints);
    }
}
