//! `unsafe` lives in few named modules, and every use says why it is sound.
//!
//! The modules stand in `check/xtask/unsafe-allow.txt`, one path a line, each group under a comment
//! that says what it is for; an entry whose file has no `unsafe` left is a finding. A block or an
//! `unsafe impl` has a comment `SAFETY` right above its statement, an `unsafe fn` a section
//! `# Safety` (or that comment).

use std::collections::BTreeSet;
use std::path::Path;

use crate::report::Finding;
use crate::sources::Source;

/// The list of modules that may hold `unsafe`.
pub(crate) const ALLOW_PATH: &str = "check/xtask/unsafe-allow.txt";

/// Checks all files; `allow` is the text of [`ALLOW_PATH`].
pub(crate) fn check(sources: &[Source], allow: &str) -> Vec<Finding> {
    let entries: Vec<(usize, &Path)> = allow
        .lines()
        .enumerate()
        .map(|(at, line)| (at + 1, line.trim()))
        .filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
        .map(|(at, line)| (at, Path::new(line)))
        .collect();
    let mut used = BTreeSet::new();
    let mut findings = Vec::new();
    for source in sources {
        let sites = sites(source);
        let Some(first) = sites.first() else { continue };
        match entries.iter().find(|(_, path)| *path == source.path) {
            Some((line, _)) => {
                used.insert(*line);
            }
            None => {
                let message = format!(
                    "`unsafe` outside the modules of {ALLOW_PATH}: use a safe interface of one of \
                     them, or add the file with its reason"
                );
                findings.push(Finding::new(&source.path, *first, message));
            }
        }
        let lines: Vec<&str> = source.text.lines().collect();
        for line in sites.into_iter().filter(|line| !has_note(&lines, *line)) {
            let message = "`unsafe` without a SAFETY comment above: say why it is sound";
            findings.push(Finding::new(&source.path, line, message));
        }
    }
    for (line, path) in entries.iter().filter(|(line, _)| !used.contains(line)) {
        let message = format!("{} has no `unsafe`: remove the entry", path.display());
        findings.push(Finding::new(Path::new(ALLOW_PATH), *line, message));
    }
    findings
}

/// The lines of all `unsafe` that open a block, an impl or a function.
fn sites(source: &Source) -> Vec<usize> {
    let opens = |next: &str| matches!(next, "{" | "impl" | "fn" | "extern" | "trait");
    let pairs = source.tokens.windows(2);
    pairs.filter(|p| p[0].text == "unsafe" && opens(&p[1].text)).map(|p| p[0].line).collect()
}

/// Whether the statement that `line` (from 1) belongs to has a note: on the line itself, or in the
/// comments and attributes above it.
fn has_note(lines: &[&str], line: usize) -> bool {
    let is_note = |text: &str| {
        text.find("//")
            .is_some_and(|at| text[at..].contains("SAFETY") || text[at..].contains("# Safety"))
    };
    if is_note(lines[line - 1]) {
        return true;
    }
    for text in lines[..line - 1].iter().rev().map(|text| text.trim()) {
        if is_note(text) {
            return true;
        }
        let comment = text.starts_with("//");
        let statement_ended = text.ends_with([';', '{', '}']) || text.is_empty();
        if !comment && statement_ended {
            return false;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::sources::tests::source;

    const NOTED: &str = "fn f(p: *const u8) -> u8 {\n    // SAFETY: p is valid.\n    \
                         unsafe { *p }\n}\n";

    #[test]
    fn unsafe_outside_the_list_is_found() {
        let found = check(&[source("a.rs", NOTED), source("b.rs", NOTED)], "a.rs\n");
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].to_string().starts_with("b.rs:3: `unsafe` outside"));
    }

    #[test]
    fn a_block_without_a_note_is_found() {
        let text = "fn f(p: *const u8) -> u8 {\n    // SAFETY: not about this one.\n    g();\n    \
                    unsafe { *p }\n}\n";
        let found = check(&[source("a.rs", text)], "a.rs\n");
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].line, 4);
    }

    #[test]
    fn notes_above_a_statement_or_a_function_count() {
        let text = "/// Reads.\n///\n/// # Safety\n/// p is valid.\npub unsafe fn f(p: *const u8) \
                    -> u8 {\n    // SAFETY: the caller's promise.\n    let value =\n        \
                    unsafe { *p };\n    value\n}\n";
        assert_eq!(check(&[source("a.rs", text)], "a.rs\n"), []);
    }

    #[test]
    fn the_list_may_only_shrink() {
        let found = check(&[source("a.rs", "fn f() {}")], "# memory\na.rs\n");
        assert_eq!(found.len(), 1);
        assert!(found[0].to_string().contains("unsafe-allow.txt:2: a.rs has no `unsafe`"));
    }
}
