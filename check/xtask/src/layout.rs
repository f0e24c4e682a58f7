//! Layout: where tests stand, how modules with children are called, and how long pages for readers
//! are.
//!
//! 1. No file is called `x_tests.rs`.
//! 2. A module with children is `x/mod.rs`, not `x.rs` beside `x/`.
//! 3. Tests inside a file have at most [`INLINE_TESTS_LINES_MAX`] lines.
//! 4. A crate has at most one integration program, `tests/it/main.rs`.
//! 5. An example has at most [`EXAMPLE_LINES_MAX`] lines, the README [`README_LINES_MAX`].
//!
//! An entry of the list is a rule and a path.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::allow::Keyed;
use crate::pages::Page;
use crate::report::Finding;
use crate::sources::{Source, for_tests_only};

/// Largest number of lines of a test module inside a file.
const INLINE_TESTS_LINES_MAX: usize = 150;
/// Largest number of lines of an example.
const EXAMPLE_LINES_MAX: usize = 60;
/// Largest number of lines of the README of the root.
const README_LINES_MAX: usize = 90;

/// Everything that breaks a rule in all sources and pages.
pub(crate) fn check(sources: &[Source], pages: &[Page]) -> Vec<Keyed> {
    let folders: BTreeSet<&Path> =
        sources.iter().flat_map(|s| s.path.ancestors().skip(1)).collect();
    let mut found = Vec::new();
    for source in sources {
        let mut find = |rule: &str, line, message: String| {
            let key = format!("{rule} {}", source.path.display());
            found.push(Keyed::new(key, Finding::new(&source.path, line, message)));
        };
        if let Some(message) = test_name(&source.path) {
            find("name", 0, message);
        }
        if let Some(message) = parent_beside_folder(&source.path, &folders) {
            find("module", 0, message);
        }
        for (line, lines) in inline_tests(source) {
            find(
                "tests",
                line,
                format!(
                    "tests of {lines} lines, {INLINE_TESTS_LINES_MAX} are allowed inside a file: \
                     move them to `tests.rs` in a folder of the module's name"
                ),
            );
        }
        if let Some(message) = second_program(&source.path) {
            find("program", 0, message);
        }
        let lines = source.text.lines().count();
        if is_example(&source.path) && lines > EXAMPLE_LINES_MAX {
            find("example", 0, too_long(lines, EXAMPLE_LINES_MAX));
        }
    }
    for page in pages.iter().filter(|page| page.path == Path::new("README.md")) {
        let lines = page.text.lines().count();
        if lines > README_LINES_MAX {
            let finding = Finding::new(&page.path, 0, too_long(lines, README_LINES_MAX));
            found.push(Keyed::new("readme README.md", finding));
        }
    }
    found
}

fn too_long(lines: usize, allowed: usize) -> String {
    format!("{lines} lines, {allowed} are allowed: shorten it, or move parts to a page of docs/")
}

fn stem(path: &Path) -> &str {
    path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default()
}

fn test_name(path: &Path) -> Option<String> {
    let stem = stem(path).strip_suffix("_tests")?;
    Some(format!("call it `{stem}/tests.rs`, or `tests/{stem}.rs` below its module"))
}

fn parent_beside_folder(path: &Path, folders: &BTreeSet<&Path>) -> Option<String> {
    let folder: PathBuf = path.with_extension("");
    let crate_root = matches!(stem(path), "lib" | "main" | "build");
    (!crate_root && folders.contains(folder.as_path())).then(|| {
        format!("a module with children: move it to `{}`", folder.join("mod.rs").display())
    })
}

/// First line and number of lines of each test module inside a file that is too long.
fn inline_tests(source: &Source) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    for item in &source.tree.items {
        let syn::Item::Mod(item) = item else { continue };
        let Some((brace, _)) = &item.content else { continue };
        let first = item.mod_token.span.start().line;
        let lines = brace.span.close().end().line + 1 - first;
        if for_tests_only(&item.attrs) && lines > INLINE_TESTS_LINES_MAX {
            found.push((first, lines));
        }
    }
    found
}

/// The folder of a crate that holds integration tests is `tests` beside `src`.
fn second_program(path: &Path) -> Option<String> {
    let parts: Vec<&str> = path.iter().filter_map(|part| part.to_str()).collect();
    let at = parts.iter().position(|part| *part == "tests")?;
    let beside_src = !parts[..at].contains(&"src") && at >= 2;
    let program = match parts[at + 1..] {
        [_] => true,
        [folder, "main.rs"] => folder != "it",
        _ => false,
    };
    (beside_src && program).then(|| {
        "a second integration program: make it a module of `tests/it/main.rs`, which saves a link"
            .to_owned()
    })
}

fn is_example(path: &Path) -> bool {
    path.iter().any(|part| part == "examples")
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::pages::tests::page;
    use crate::sources::Source;
    use crate::sources::tests::source;

    fn keys(sources: &[Source]) -> Vec<String> {
        check(sources, &[]).into_iter().map(|keyed| keyed.key).collect()
    }

    #[test]
    fn misplaced_files_are_found() {
        let paths = [
            "crates/x/src/core_tests.rs",
            "crates/x/src/a.rs",
            "crates/x/src/a/b.rs",
            "crates/x/src/a/tests.rs",
            "crates/x/src/a/tests/c.rs",
            "crates/x/tests/it/main.rs",
            "crates/x/tests/more.rs",
            "crates/x/tests/big/main.rs",
        ];
        let expected = [
            "name crates/x/src/core_tests.rs",
            "module crates/x/src/a.rs",
            "module crates/x/src/a/tests.rs",
            "program crates/x/tests/more.rs",
            "program crates/x/tests/big/main.rs",
        ];
        assert_eq!(keys(&paths.map(|path| source(path, ""))), expected);
    }

    #[test]
    fn files_in_their_place_pass() {
        let paths = [
            "crates/x/src/lib.rs",
            "crates/x/src/a/mod.rs",
            "crates/x/src/a/tests/mod.rs",
            "crates/x/src/a/tests/c.rs",
            "crates/x/src/tests.rs",
            "crates/x/tests/it/main.rs",
            "crates/x/tests/it/more.rs",
            "crates/x/fuzz/fuzz_targets/y.rs",
        ];
        assert_eq!(keys(&paths.map(|path| source(path, ""))), Vec::<String>::new());
    }

    #[test]
    fn long_tests_examples_and_readme_are_found() {
        let tests =
            |lines: usize| format!("#[cfg(test)]\nmod tests {{\n{}}}\n", "//\n".repeat(lines - 2));
        let sources = [
            source("crates/x/src/fits.rs", &tests(150)),
            source("crates/x/src/long.rs", &tests(151)),
            source("examples/fits.rs", &"\n".repeat(60)),
            source("examples/long.rs", &"\n".repeat(61)),
        ];
        assert_eq!(keys(&sources), ["tests crates/x/src/long.rs", "example examples/long.rs"]);
        let readme = |lines| check(&[], &[page("README.md", &"\n".repeat(lines))]).len();
        assert_eq!((readme(90), readme(91)), (0, 1));
    }
}
