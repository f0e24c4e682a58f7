//! The workspace's Rust sources, read and parsed once for all checks.
//!
//! A [`Source`] knows its text, its tokens (comments are not among them) and which lines are test
//! code, so that a check is a short walk. Reading and parsing all sources costs well under a second.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use proc_macro2::{Delimiter, Spacing, TokenStream, TokenTree};
use syn::visit::Visit;

/// The folders that hold the project's own files.
pub(crate) const ROOTS: &[&str] = &["crates", "roles", "front", "check"];

/// One `.rs` file.
pub(crate) struct Source {
    /// Relative to the root.
    pub(crate) path: PathBuf,
    /// The file's text.
    pub(crate) text: String,
    /// All tokens, flattened: (kind, first line, last line). Doc comments are left out.
    pub(crate) tokens: Vec<Token>,
    /// The syntax tree, with positions.
    pub(crate) tree: syn::File,
    /// Lines of items under `#[cfg(test)]`.
    pub(crate) test_lines: Vec<RangeInclusive<usize>>,
}

/// A token and the lines that it covers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Token {
    /// Its text, for identifiers; one character for punctuation and brackets; empty for literals.
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
        Ok(Self { path: path.to_owned(), text, tokens, tree, test_lines })
    }

    /// Whether the file as a whole belongs to tests: by its place or by its name.
    pub(crate) fn is_test_file(&self) -> bool {
        let stem = self.path.file_stem().and_then(|s| s.to_str()).unwrap_or_default();
        stem == "tests"
            || stem == "testing"
            || stem.ends_with("_tests")
            || self.path.components().any(|c| c.as_os_str() == "tests")
    }

    /// Whether a line lies in test code.
    pub(crate) fn is_test_line(&self, line: usize) -> bool {
        self.is_test_file() || self.test_lines.iter().any(|lines| lines.contains(&line))
    }

    /// How many lines hold code: no comments, no blank lines, nothing under `#[cfg(test)]`.
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
    Ok(sources)
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

impl<'ast> Visit<'ast> for TestItems {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if item.attrs.iter().any(is_cfg_test) {
            let first = item.attrs.first().map_or(item.mod_token.span, |a| a.pound_token.span);
            let last = item.content.as_ref().map_or(item.mod_token.span, |(b, _)| b.span.close());
            self.lines.push(first.start().line..=last.end().line);
        } else {
            syn::visit::visit_item_mod(self, item);
        }
    }
}

fn is_cfg_test(attr: &syn::Attribute) -> bool {
    let syn::Meta::List(list) = &attr.meta else { return false };
    let words: Vec<String> = list.tokens.clone().into_iter().map(|t| t.to_string()).collect();
    list.path.is_ident("cfg") && words == ["test"]
}

#[cfg(test)]
pub(crate) mod tests {
    use std::path::Path;

    use super::{Source, files};

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
