//! Names and words that the sources do not have.
//!
//! 1. No module is called `util`, `misc`, `common` or `helpers`: a module is named after a concept.
//! 2. No note of unfinished work, and none of the macros that stand for it, is left in a source.
//!    A double in a test may say `unimplemented!` of what no test calls.

use crate::report::Finding;
use crate::sources::Source;

const MODULES: &[&str] =
    &["util", "utils", "misc", "common", "commons", "helper", "helpers", "shared_utils"];
/// Written in two halves, or this file would find itself.
const NOTES: &[&str] = &[concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X:")];
const MACROS: &[&str] = &["todo", "unimplemented", "dbg"];

/// Checks names of files and modules, notes in comments and texts, and macros.
pub(crate) fn check(sources: &[Source]) -> Vec<Finding> {
    sources.iter().flat_map(|s| module_names(s).chain(notes(s)).chain(macros(s))).collect()
}

fn module_names(source: &Source) -> impl Iterator<Item = Finding> {
    let mut found = Vec::new();
    let message = |name: &str| format!("a module `{name}`: name it after the concept it holds");
    let parts = source.path.iter().filter_map(|part| part.to_str());
    if let Some(name) = parts.map(|p| p.trim_end_matches(".rs")).find(|p| MODULES.contains(p)) {
        found.push(Finding::new(&source.path, 0, message(name)));
    }
    for pair in source.tokens.windows(2) {
        if pair[0].text == "mod" && MODULES.contains(&pair[1].text.as_str()) {
            found.push(Finding::new(&source.path, pair[1].line, message(&pair[1].text)));
        }
    }
    found.into_iter()
}

fn notes(source: &Source) -> impl Iterator<Item = Finding> {
    source.text.lines().enumerate().flat_map(move |(at, line)| {
        NOTES.iter().filter(move |note| line.contains(**note)).map(move |note| {
            let message = format!("`{note}`: finish it, or open an issue and remove the note");
            Finding::new(&source.path, at + 1, message)
        })
    })
}

fn macros(source: &Source) -> impl Iterator<Item = Finding> {
    source.tokens.windows(2).filter_map(move |pair| {
        let (name, line) = (pair[0].text.as_str(), pair[0].line);
        let double = name == "unimplemented" && source.is_test_line(line);
        (MACROS.contains(&name) && pair[1].text == "!" && !double).then(|| {
            Finding::new(&source.path, line, format!("`{name}!`: no unfinished code on main"))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::sources::tests::source;

    #[test]
    fn grab_bags_are_found_as_files_and_as_inline_modules() {
        let found = check(&[
            source("crates/x/src/util/mod.rs", ""),
            source("crates/x/src/helpers.rs", ""),
            source("crates/x/src/lib.rs", "mod fine;\nmod misc {}\n"),
            source("crates/x/src/utility.rs", "mod uncommon {}"),
        ]);
        assert_eq!(found.len(), 3, "{found:?}");
        assert_eq!(found[2].line, 2);
    }

    #[test]
    fn unfinished_work_is_found() {
        let note = ["// TO", "DO: later\nfn f() {}\n"].concat();
        let found = check(&[
            source("a.rs", &note),
            source("b.rs", "fn f() {\n    todo!()\n}\n"),
            source("c.rs", "fn f() {\n    unimplemented!()\n}\n"),
            source("c/tests.rs", "fn f() {\n    unimplemented!()\n}\n"),
            source("d.rs", "fn todo() { todo() }"),
        ]);
        let places: Vec<String> = found.iter().map(|f| format!("{}", f.path.display())).collect();
        assert_eq!(places, ["a.rs", "b.rs", "c.rs"]);
    }
}
