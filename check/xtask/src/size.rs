//! Size: a file has at most [`FILE_CODE_LINES_MAX`] lines of code, a function at most
//! [`FUNCTION_LINES_MAX`] lines from its first to its last.
//!
//! An entry of the list is `path` for a file and `path function` for a function.

use syn::visit::Visit;

use crate::allow::Keyed;
use crate::report::Finding;
use crate::sources::Source;

/// Largest number of lines of code of a file, without comments, blank lines and `#[cfg(test)]`
/// modules.
pub(crate) const FILE_CODE_LINES_MAX: usize = 800;
/// Largest number of lines of a function. Signature and braces count; attributes and docs do not.
pub(crate) const FUNCTION_LINES_MAX: usize = 70;

/// The files and functions over a limit.
pub(crate) fn check(sources: &[Source]) -> Vec<Keyed> {
    sources.iter().flat_map(over).collect()
}

/// The parts of one file that are over a limit.
fn over(source: &Source) -> Vec<Keyed> {
    let mut found = Vec::new();
    let path = source.path.display();
    let lines = source.code_lines();
    if lines > FILE_CODE_LINES_MAX {
        let message = format!(
            "{lines} lines of code, {FILE_CODE_LINES_MAX} are allowed: split the file by concept"
        );
        found.push(Keyed::new(path.to_string(), Finding::new(&source.path, 0, message)));
    }
    let mut functions = Functions::default();
    functions.visit_file(&source.tree);
    for Function { name, line, lines } in functions.found {
        if lines > FUNCTION_LINES_MAX {
            let message = format!(
                "`{name}` has {lines} lines, {FUNCTION_LINES_MAX} are allowed: give its parts names"
            );
            let finding = Finding::new(&source.path, line, message);
            found.push(Keyed::new(format!("{path} {name}"), finding));
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
        let found = check(&[source("crates/x/src/a.rs", &text)]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].key, "crates/x/src/a.rs too_long");
        assert_eq!(found[0].finding.line, FUNCTION_LINES_MAX + 3);
        assert!(found[0].finding.message.contains("`too_long` has 71 lines"));
    }

    #[test]
    fn a_file_over_the_limit_is_found_and_comments_and_tests_do_not_count() {
        let code = "const A: u8 = 0;\n".repeat(FILE_CODE_LINES_MAX);
        let rest = "// why\n\n#[cfg(test)]\nmod tests {\n    const B: u8 = 0;\n}\n";
        let fits = source("fits.rs", &format!("{code}{rest}"));
        let over = source("over.rs", &format!("{code}const C: u8 = 0;\n"));
        let found = check(&[fits, over]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].finding.to_string().starts_with("over.rs: 801 lines"));
    }
}
