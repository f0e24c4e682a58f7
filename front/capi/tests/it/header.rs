//! The header and the library have the same calls, and the test program makes all of them.

use std::collections::BTreeSet;
use std::process::Command;

use crate::{crate_dir, library, output};

/// The names that the header declares: a name before a parenthesis outside of comments and macros.
fn declared() -> BTreeSet<String> {
    let path = crate_dir().join("include/archipelago_tiers.h");
    let text = std::fs::read_to_string(path).unwrap();
    let mut code = String::new();
    let mut rest = text.as_str();
    while let Some(start) = rest.find("/*") {
        code.push_str(&rest[..start]);
        rest = &rest[start + rest[start..].find("*/").unwrap() + 2..];
    }
    code.push_str(rest);
    let lines = code.lines().filter(|line| !line.starts_with('#') && !line.contains("sizeof"));
    let mut names = BTreeSet::new();
    for line in lines {
        let Some((before, _)) = line.split_once('(') else { continue };
        let name = before.rsplit([' ', '*']).next().unwrap();
        assert!(name.starts_with("archipelago_"), "what is declared here? {line}");
        names.insert(name.to_owned());
    }
    names
}

#[test]
fn the_header_and_the_library_have_the_same_calls() {
    let symbols = output(Command::new("nm").args(["-D", "--defined-only"]).arg(library()));
    let exported: BTreeSet<String> =
        symbols.lines().filter_map(|line| line.split(' ').next_back()).map(str::to_owned).collect();
    let declared = declared();
    assert!(declared.len() > 30, "{declared:?}");
    assert_eq!(declared, exported);
}

#[test]
fn the_test_program_makes_every_call() {
    let text = std::fs::read_to_string(crate_dir().join("tests/c/calls.c")).unwrap();
    let left_out: Vec<_> =
        declared().into_iter().filter(|name| !text.contains(&format!("{name}("))).collect();
    assert!(left_out.is_empty(), "calls.c makes no call of {left_out:?}");
}
