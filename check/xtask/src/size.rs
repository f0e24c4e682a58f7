//! Size: a file has at most [`FILE_CODE_LINES_MAX`] lines of code, a function at most
//! [`FUNCTION_LINES_MAX`] lines from its first to its last.
//!
//! What is over a limit and cannot be cut today stands in `check/xtask/size-allow.txt`, one entry a
//! line: `path` for a file, `path function` for a function. The list may only shrink: an entry
//! that nothing needs is a finding too.

use std::collections::BTreeSet;
use std::path::Path;

use syn::visit::Visit;

use crate::report::Finding;
use crate::sources::Source;

/// Lines of code of a file: without comments, blank lines and `#[cfg(test)]` modules.
pub(crate) const FILE_CODE_LINES_MAX: usize = 800;
/// Lines of a function, signature and braces counted; attributes and docs not.
pub(crate) const FUNCTION_LINES_MAX: usize = 70;
/// The list of what is over a limit.
pub(crate) const ALLOW_PATH: &str = "check/xtask/size-allow.txt";

/// Checks all files; `allow` is the text of [`ALLOW_PATH`].
pub(crate) fn check(sources: &[Source], allow: &str) -> Vec<Finding> {
    let entries: Vec<(usize, &str)> = allow
        .lines()
        .enumerate()
        .map(|(at, line)| (at + 1, line.trim()))
        .filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
        .collect();
    let mut used = BTreeSet::new();
    let mut findings = Vec::new();
    for (key, finding) in sources.iter().flat_map(over) {
        match entries.iter().find(|(_, entry)| *entry == key) {
            Some((line, _)) => {
                used.insert(*line);
            }
            None => findings.push(finding),
        }
    }
    for (line, entry) in entries.iter().filter(|(line, _)| !used.contains(line)) {
        let message = format!("`{entry}` is within the limit or gone: remove the entry");
        findings.push(Finding::new(Path::new(ALLOW_PATH), *line, message));
    }
    findings
}

/// What is over a limit in one file, each with the key of its entry in the list.
fn over(source: &Source) -> Vec<(String, Finding)> {
    let mut found = Vec::new();
    let path = source.path.display();
    let lines = source.code_lines();
    if lines > FILE_CODE_LINES_MAX {
        let message = format!(
            "{lines} lines of code, {FILE_CODE_LINES_MAX} are allowed: split the file by concept"
        );
        found.push((path.to_string(), Finding::new(&source.path, 0, message)));
    }
    let mut functions = Functions::default();
    functions.visit_file(&source.tree);
    for Function { name, line, lines } in functions.found {
        if lines > FUNCTION_LINES_MAX {
            let message = format!(
                "`{name}` has {lines} lines, {FUNCTION_LINES_MAX} are allowed: give its parts names"
            );
            found.push((format!("{path} {name}"), Finding::new(&source.path, line, message)));
        }
    }
    found
}

struct Function {
    name: String,
    line: usize,
    lines: usize,
}

#[derive(Default)]
struct Functions {
    found: Vec<Function>,
}

impl Functions {
    fn add(&mut self, signature: &syn::Signature, block: &syn::Block) {
        let line = signature.fn_token.span.start().line;
        let lines = block.brace_token.span.close().end().line + 1 - line;
        self.found.push(Function { name: signature.ident.to_string(), line, lines });
    }
}

impl<'ast> Visit<'ast> for Functions {
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.add(&item.sig, &item.block);
        syn::visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.add(&item.sig, &item.block);
        syn::visit::visit_impl_item_fn(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if let Some(block) = &item.default {
            self.add(&item.sig, block);
        }
        syn::visit::visit_trait_item_fn(self, item);
    }
}

#[cfg(test)]
mod tests {
    use super::{FILE_CODE_LINES_MAX, FUNCTION_LINES_MAX, check};
    use crate::sources::tests::source;

    fn function(name: &str, lines: usize) -> String {
        format!("fn {name}() {{\n{}}}\n", "    step();\n".repeat(lines - 2))
    }

    #[test]
    fn a_function_over_the_limit_is_found_with_name_and_line() {
        let text = format!(
            "{}struct S;\nimpl S {{\n{}}}\n",
            function("fits", FUNCTION_LINES_MAX),
            function("too_long", FUNCTION_LINES_MAX + 1)
        );
        let found = check(&[source("crates/x/src/a.rs", &text)], "");
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].line, FUNCTION_LINES_MAX + 3);
        assert!(found[0].message.contains("`too_long` has 71 lines"));
    }

    #[test]
    fn a_file_over_the_limit_is_found_and_comments_and_tests_do_not_count() {
        let code = "const A: u8 = 0;\n".repeat(FILE_CODE_LINES_MAX);
        let rest = "// why\n\n#[cfg(test)]\nmod tests {\n    const B: u8 = 0;\n}\n";
        let fits = source("fits.rs", &format!("{code}{rest}"));
        let over = source("over.rs", &format!("{code}const C: u8 = 0;\n"));
        let found = check(&[fits, over], "");
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].to_string().starts_with("over.rs: 801 lines"));
    }

    #[test]
    fn the_list_allows_and_may_only_shrink() {
        let sample = || source("a.rs", &function("long", FUNCTION_LINES_MAX + 9));
        assert_eq!(check(&[sample()], "# known\na.rs long\n"), []);
        let found = check(&[sample()], "a.rs long\na.rs short\n");
        assert_eq!(found.len(), 1);
        assert!(found[0].to_string().contains("size-allow.txt:2: `a.rs short`"));
    }
}
