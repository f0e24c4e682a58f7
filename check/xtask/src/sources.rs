//! The workspace's Rust sources, read and parsed once for all checks.
//!
//! A [`Source`] knows its text, its tokens, its comments and which lines are test code, so that a
//! check is a short walk. Reading and parsing all sources takes a few seconds in a build that is
//! not optimised.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use proc_macro2::{Delimiter, Spacing, TokenStream, TokenTree};
use syn::visit::Visit;

use crate::comments::{Comment, comments};

/// The folders that hold the project's own files.
pub(crate) const ROOTS: &[&str] = &["crates", "roles", "front", "check", "examples"];

/// One `.rs` file.
pub(crate) struct Source {
    /// Path of the file, relative to the root.
    pub(crate) path: PathBuf,
    /// Text of the file.
    pub(crate) text: String,
    /// All tokens in order, flattened. Doc comments are left out.
    pub(crate) tokens: Vec<Token>,
    /// The syntax tree, with positions.
    pub(crate) tree: syn::File,
    /// All comments, doc comments too.
    pub(crate) comments: Vec<Comment>,
    /// Lines of the items under `#[cfg(test)]`.
    pub(crate) test_lines: Vec<RangeInclusive<usize>>,
    /// Whether a module declaration under `#[cfg(test)]` brings the file in. Only [`load`] knows.
    pub(crate) declared_for_tests: bool,
}

/// A token and the lines that it covers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Token {
    /// Text of an identifier; one character for punctuation and brackets; empty for literals.
    pub(crate) text: String,
    /// The line of its first character, from 1.
    pub(crate) line: usize,
    /// The line of its last character.
    pub(crate) line_end: usize,
}

impl Source {
    /// Parses a file's text.
    pub(crate) fn parse(path: &Path, text: String) -> Result<Self, String> {
        let at = |e: &dyn std::fmt::Display| format!("{}: not valid Rust: {e}", path.display());
        let stream = TokenStream::from_str(&text).map_err(|e| at(&e))?;
        let mut tokens = Vec::new();
        flatten(stream.clone(), &mut tokens);
        let tree: syn::File = syn::parse2(stream).map_err(|e| at(&e))?;
        let mut finder = TestItems::default();
        finder.visit_file(&tree);
        let test_lines = finder.lines;
        let comments = comments(&text);
        let declared_for_tests = false;
        Ok(Self {
            path: path.to_owned(),
            text,
            tokens,
            tree,
            comments,
            test_lines,
            declared_for_tests,
        })
    }

    /// Whether the file as a whole belongs to tests: by its place, its name or its declaration.
    pub(crate) fn is_test_file(&self) -> bool {
        let stem = self.path.file_stem().and_then(|s| s.to_str()).unwrap_or_default();
        self.declared_for_tests
            || stem == "tests"
            || stem == "testing"
            || stem.ends_with("_tests")
            || self.path.components().any(|c| c.as_os_str() == "tests")
    }

    /// Whether a line lies in test code.
    pub(crate) fn is_test_line(&self, line: usize) -> bool {
        self.is_test_file() || self.test_lines.iter().any(|lines| lines.contains(&line))
    }

    /// Number of lines that hold code: no comments, no blank lines, nothing under `#[cfg(test)]`.
    pub(crate) fn code_lines(&self) -> usize {
        let lines: BTreeSet<usize> = self.tokens.iter().flat_map(|t| t.line..=t.line_end).collect();
        lines.iter().filter(|line| !self.test_lines.iter().any(|t| t.contains(line))).count()
    }
}

/// Reads every `.rs` file below [`ROOTS`].
pub(crate) fn load(root: &Path) -> Result<Vec<Source>, String> {
    let mut sources = Vec::new();
    for path in files(root, ROOTS, "rs")? {
        let text = std::fs::read_to_string(root.join(&path))
            .map_err(|e| format!("{}: {e}", path.display()))?;
        sources.push(Source::parse(&path, text)?);
    }
    let for_tests: Vec<PathBuf> = sources.iter().flat_map(test_modules).collect();
    for source in &mut sources {
        let stem = source.path.with_extension("");
        source.declared_for_tests = for_tests.iter().any(|module| stem.starts_with(module));
    }
    Ok(sources)
}

/// The modules that a file declares under `#[cfg(test)]`, as paths without `.rs` or `/mod.rs`.
fn test_modules(source: &Source) -> Vec<PathBuf> {
    let parent = source.path.parent().unwrap_or(Path::new(""));
    let stem = source.path.file_stem().and_then(|s| s.to_str()).unwrap_or_default();
    let dir = match stem {
        "mod" | "lib" | "main" => parent.to_owned(),
        _ => parent.join(stem),
    };
    let declarations = source.tree.items.iter().filter_map(|item| match item {
        syn::Item::Mod(item) if item.content.is_none() && for_tests_only(&item.attrs) => Some(item),
        _ => None,
    });
    declarations.map(|item| dir.join(item.ident.to_string())).collect()
}

/// All files of an extension below some folders, relative to the root, sorted. Build outputs and
/// hidden folders are left out; a folder that does not exist has no files.
pub(crate) fn files(
    root: &Path,
    folders: &[&str],
    extension: &str,
) -> Result<Vec<PathBuf>, String> {
    let mut found = Vec::new();
    let mut open: Vec<PathBuf> = folders.iter().map(PathBuf::from).collect();
    while let Some(dir) = open.pop() {
        let entries = match std::fs::read_dir(root.join(&dir)) {
            Ok(entries) => entries,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => continue,
            Err(e) => return Err(format!("{}: {e}", dir.display())),
        };
        for entry in entries {
            let entry = entry.map_err(|e| format!("{}: {e}", dir.display()))?;
            let name = entry.file_name();
            let path = dir.join(&name);
            let kind = entry.file_type().map_err(|e| format!("{}: {e}", path.display()))?;
            if kind.is_dir() {
                let hidden = name.to_string_lossy().starts_with('.');
                if !hidden && name != "target" {
                    open.push(path);
                }
            } else if path.extension().is_some_and(|e| e == extension) {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

fn flatten(stream: TokenStream, tokens: &mut Vec<Token>) {
    let mut trees = stream.into_iter().peekable();
    while let Some(tree) = trees.next() {
        let (line, line_end) = (tree.span().start().line, tree.span().end().line);
        let mut push = |text: String, line, line_end| tokens.push(Token { text, line, line_end });
        match tree {
            TokenTree::Ident(ident) => push(ident.to_string(), line, line_end),
            TokenTree::Literal(_) => push(String::new(), line, line_end),
            TokenTree::Punct(punct) => {
                if punct.as_char() == '#' {
                    // `#![doc]` and `#[doc]`: what a doc comment becomes.
                    if let Some(TokenTree::Punct(bang)) = trees.peek()
                        && bang.as_char() == '!'
                        && bang.spacing() == Spacing::Alone
                    {
                        trees.next();
                    }
                    if let Some(TokenTree::Group(group)) = trees.peek()
                        && is_doc(group)
                    {
                        trees.next();
                        continue;
                    }
                }
                push(punct.as_char().to_string(), line, line_end);
            }
            TokenTree::Group(group) => {
                let (open, close) = match group.delimiter() {
                    Delimiter::Parenthesis => ("(", ")"),
                    Delimiter::Brace => ("{", "}"),
                    Delimiter::Bracket => ("[", "]"),
                    Delimiter::None => ("", ""),
                };
                push(open.to_owned(), line, line);
                flatten(group.stream(), tokens);
                tokens.push(Token { text: close.to_owned(), line: line_end, line_end });
            }
        }
    }
}

fn is_doc(group: &proc_macro2::Group) -> bool {
    let mut inner = group.stream().into_iter();
    let doc = matches!(inner.next(), Some(TokenTree::Ident(ident)) if ident == "doc");
    let value = matches!(inner.next(), Some(TokenTree::Punct(punct)) if punct.as_char() == '=');
    doc && value
}

#[derive(Default)]
struct TestItems {
    lines: Vec<RangeInclusive<usize>>,
}

impl TestItems {
    /// Records the lines of an item under `#[cfg(test)]` that ends in `last`; answers whether it
    /// is one.
    fn take(&mut self, attrs: &[syn::Attribute], last: usize) -> bool {
        let for_tests = for_tests_only(attrs);
        if for_tests {
            let first = attrs.first().map_or(last, |attr| attr.pound_token.span.start().line);
            self.lines.push(first..=last);
        }
        for_tests
    }
}

impl<'ast> Visit<'ast> for TestItems {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        if !self.take(item_attrs(item), last_line(item)) {
            syn::visit::visit_item(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.take(&item.attrs, item.block.brace_token.span.close().end().line);
    }

    fn visit_field(&mut self, field: &'ast syn::Field) {
        // The name of a field stands on its last line, unless its type is very long.
        let name = field.ident.as_ref();
        self.take(&field.attrs, name.map_or(0, |name| name.span().end().line));
    }
}

/// The last line of an item, or 0 for kinds of items that the project does not use.
pub(crate) fn last_line(item: &syn::Item) -> usize {
    let span = match item {
        syn::Item::Const(item) => item.semi_token.span,
        syn::Item::Enum(item) => item.brace_token.span.close(),
        syn::Item::Fn(item) => item.block.brace_token.span.close(),
        syn::Item::Impl(item) => item.brace_token.span.close(),
        syn::Item::Macro(item) => match &item.mac.delimiter {
            syn::MacroDelimiter::Paren(paren) => paren.span.close(),
            syn::MacroDelimiter::Brace(brace) => brace.span.close(),
            syn::MacroDelimiter::Bracket(bracket) => bracket.span.close(),
        },
        syn::Item::Mod(item) => match (&item.content, &item.semi) {
            (Some((brace, _)), _) => brace.span.close(),
            (None, Some(semi)) => semi.span,
            (None, None) => item.mod_token.span,
        },
        syn::Item::Static(item) => item.semi_token.span,
        syn::Item::Struct(item) => match (&item.fields, &item.semi_token) {
            (_, Some(semi)) => semi.span,
            (syn::Fields::Named(fields), None) => fields.brace_token.span.close(),
            (_, None) => item.struct_token.span,
        },
        syn::Item::Trait(item) => item.brace_token.span.close(),
        syn::Item::Type(item) => item.semi_token.span,
        syn::Item::Use(item) => item.semi_token.span,
        _ => return 0,
    };
    span.end().line
}

fn item_attrs(item: &syn::Item) -> &[syn::Attribute] {
    match item {
        syn::Item::Const(item) => &item.attrs,
        syn::Item::Enum(item) => &item.attrs,
        syn::Item::Fn(item) => &item.attrs,
        syn::Item::Impl(item) => &item.attrs,
        syn::Item::Macro(item) => &item.attrs,
        syn::Item::Mod(item) => &item.attrs,
        syn::Item::Static(item) => &item.attrs,
        syn::Item::Struct(item) => &item.attrs,
        syn::Item::Trait(item) => &item.attrs,
        syn::Item::Type(item) => &item.attrs,
        syn::Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// Whether one of the attributes is `#[cfg(test)]` or `#[cfg(all(test, …))]`.
pub(crate) fn for_tests_only(attrs: &[syn::Attribute]) -> bool {
    attrs.iter().any(|attr| {
        let syn::Meta::List(list) = &attr.meta else { return false };
        let words: Vec<String> = list.tokens.clone().into_iter().map(|t| t.to_string()).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let all = match words.as_slice() {
            ["test"] => true,
            ["all", group] => group.trim_matches(['(', ')']).split(',').any(|w| w.trim() == "test"),
            _ => false,
        };
        list.path.is_ident("cfg") && all
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use std::path::Path;

    use super::{Source, files, load};

    /// A source at a path, from a text that must be valid.
    pub(crate) fn source(path: &str, text: &str) -> Source {
        Source::parse(Path::new(path), text.to_owned()).expect("a sample is valid Rust")
    }

    #[test]
    fn only_code_lines_count() {
        let text = "//! Head\n\n/// Doc\nfn f() {\n    // why\n    let _ = \"a\nb\";\n}\n\
                    #[cfg(test)]\nmod tests {\n    fn g() {}\n}\n";
        let source = source("crates/x/src/lib.rs", text);
        // `fn f() {`, two lines of `let`, and `}`.
        assert_eq!(source.code_lines(), 4);
        assert!(source.is_test_line(11));
        assert!(!source.is_test_line(4));
    }

    #[test]
    fn test_files_are_known_by_place_and_name() {
        for path in ["crates/x/tests/it/a.rs", "crates/x/src/y/tests.rs", "x/src/model_tests.rs"] {
            assert!(source(path, "").is_test_file(), "{path}");
        }
        assert!(!source("crates/x/src/protests.rs", "").is_test_file());
    }

    #[test]
    fn items_under_cfg_test_are_test_lines() {
        let text = "#[cfg(test)]\nuse a::B;\nstruct S {\n    #[cfg(test)]\n    a: u8,\n    b: u8,\n}\n\
                    impl S {\n    #[cfg(all(test, unix))]\n    fn f() {}\n    fn g() {}\n}\n\
                    #[cfg(any(test, unix))]\nfn h() {}\n";
        let source = source("crates/x/src/lib.rs", text);
        let lines: Vec<usize> = (1..=14).filter(|line| source.is_test_line(*line)).collect();
        assert_eq!(lines, [1, 2, 4, 5, 9, 10]);
    }

    #[test]
    fn modules_declared_for_tests_are_test_files() {
        let dir = tempfile::tempdir().expect("tempdir");
        let folder = dir.path().join("crates/a/src/b/oracle");
        std::fs::DirBuilder::new().recursive(true).create(&folder).expect("folders");
        let write = |path: &str, text: &str| {
            let mut file = std::fs::File::create_new(dir.path().join(path)).expect(path);
            std::io::Write::write_all(&mut file, text.as_bytes()).expect(path);
        };
        write("crates/a/src/b/mod.rs", "#[cfg(test)]\nmod oracle;\nmod real;\n");
        write("crates/a/src/b/oracle/mod.rs", "");
        write("crates/a/src/b/oracle/part.rs", "");
        write("crates/a/src/b/real.rs", "");
        let loaded = load(dir.path()).expect("valid");
        let tests: Vec<_> = loaded.iter().filter(|s| s.is_test_file()).map(|s| &s.path).collect();
        let expected = ["crates/a/src/b/oracle/mod.rs", "crates/a/src/b/oracle/part.rs"];
        assert_eq!(tests, expected.iter().map(Path::new).collect::<Vec<_>>());
    }

    #[test]
    fn bad_rust_is_an_error_that_names_the_file() {
        let error = Source::parse(Path::new("a.rs"), "fn (".to_owned()).err().expect("invalid");
        assert!(error.contains("a.rs"));
    }

    #[test]
    fn build_outputs_are_not_sources() {
        let dir = tempfile::tempdir().expect("tempdir");
        for name in ["crates/a/src", "crates/a/target", "crates/.git"] {
            std::fs::DirBuilder::new().recursive(true).create(dir.path().join(name)).expect(name);
            std::fs::File::create_new(dir.path().join(name).join("x.rs")).expect(name);
        }
        let found = files(dir.path(), &["crates", "roles"], "rs").expect("readable");
        assert_eq!(found, [Path::new("crates/a/src/x.rs")]);
    }
}
