//! Dead public items: code outside the definition names every `pub` item.
//!
//! The compiler finds what nothing inside a crate uses, except public items. This check counts the
//! words of all sources, so it needs no types: an item is dead if no word outside its definition is
//! its name. A name that another item has, too, is therefore taken for used. A `use` does not
//! count, because a re-export uses nothing; neither do the impl blocks of a type. Code in doc
//! comments counts, because it is tested, and so do names in format texts. Items that C calls
//! (`no_mangle`) are used outside.
//!
//! Functions, methods, types, traits, constants and statics are items; fields and variants are
//! not. An entry of the list is a path and a name.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use syn::visit::Visit;

use crate::allow::Keyed;
use crate::report::Finding;
use crate::sources::{Source, last_line};

/// The folder of the crate whose items are for its users: a re-export there is a use.
const PUBLISHED: &str = "front/api/src";

/// The public items of all sources that nothing names.
pub(crate) fn check(sources: &[Source]) -> Vec<Keyed> {
    let words = words(sources);
    let mut found = Vec::new();
    for (at, source) in sources.iter().enumerate().filter(|(_, source)| !source.is_test_file()) {
        let mut items = Items::default();
        items.visit_file(&source.tree);
        for item in items.found.iter().filter(|item| !source.is_test_line(item.line)) {
            let own = |line: &usize| items.is_own(item, *line);
            let used = words.get(item.name.as_str()).into_iter().flatten();
            let mut outside = used.filter(|(file, line)| *file != at || !own(line));
            if outside.next().is_none() {
                let message = format!(
                    "code outside its definition does not name `{}`: remove it, or narrow its \
                     visibility",
                    item.name
                );
                let key = format!("{} {}", source.path.display(), item.name);
                found.push(Keyed::new(key, Finding::new(&source.path, item.line, message)));
            }
        }
    }
    found
}

/// For each word of code: the files and lines where it stands outside a `use`.
fn words(sources: &[Source]) -> BTreeMap<&str, BTreeSet<(usize, usize)>> {
    let mut words: BTreeMap<&str, BTreeSet<(usize, usize)>> = BTreeMap::new();
    for (at, source) in sources.iter().enumerate() {
        let mut in_use = false;
        for token in source.tokens.iter().filter(|token| !token.text.is_empty()) {
            match token.text.as_str() {
                "use" => in_use = !source.path.starts_with(PUBLISHED),
                ";" => in_use = false,
                word if !in_use && word.starts_with(|c: char| c.is_alphabetic() || c == '_') => {
                    words.entry(word).or_default().insert((at, token.line));
                }
                _ => {}
            }
        }
        for (line, name) in captured(source) {
            words.entry(name).or_default().insert((at, line));
        }
        for (line, text) in doc_code(source) {
            for word in text.split(|c: char| !c.is_alphanumeric() && c != '_') {
                words.entry(word).or_default().insert((at, line));
            }
        }
    }
    words
}

/// The names that texts take in by `{name}` or `{name:…}`.
fn captured(source: &Source) -> impl Iterator<Item = (usize, &str)> {
    source.text.lines().enumerate().flat_map(|(at, line)| {
        let names = line.match_indices('{').filter_map(move |(open, _)| {
            let rest = &line[open + 1..];
            let part_of_name = |c: char| c.is_alphanumeric() || c == '_';
            let end = rest.find(|c| !part_of_name(c))?;
            (end > 0 && rest[end..].starts_with(['}', ':'])).then_some(&rest[..end])
        });
        names.map(move |name| (at + 1, name))
    })
}

/// The lines of code blocks in doc comments.
fn doc_code(source: &Source) -> impl Iterator<Item = (usize, &str)> {
    let mut fenced = false;
    source.comments.iter().filter(|comment| comment.doc().is_some()).filter_map(move |comment| {
        let prose = comment.prose();
        let fence = prose.trim_start().starts_with("```");
        fenced ^= fence;
        (fenced && !fence).then_some((comment.line, prose))
    })
}

struct Item {
    name: String,
    line: usize,
    lines: RangeInclusive<usize>,
}

#[derive(Default)]
struct Items {
    found: Vec<Item>,
    /// The impl blocks of each type.
    impls: BTreeMap<String, Vec<RangeInclusive<usize>>>,
}

impl Items {
    fn add(
        &mut self,
        visibility: &syn::Visibility,
        attrs: &[syn::Attribute],
        name: &syn::Ident,
        last: usize,
    ) {
        let for_c = attrs.iter().any(|attr| {
            let names = ["unsafe", "no_mangle", "export_name"];
            names.iter().any(|name| attr.path().is_ident(name))
        });
        if matches!(visibility, syn::Visibility::Public(_)) && !for_c {
            let line = name.span().start().line;
            self.found.push(Item { name: name.to_string(), line, lines: line..=last });
        }
    }

    /// Whether a line belongs to the definition of an item.
    fn is_own(&self, item: &Item, line: usize) -> bool {
        let mut impls = self.impls.get(&item.name).into_iter().flatten();
        item.lines.contains(&line) || impls.any(|lines| lines.contains(&line))
    }
}

impl<'ast> Visit<'ast> for Items {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        let last = last_line(item);
        match item {
            syn::Item::Fn(item) => self.add(&item.vis, &item.attrs, &item.sig.ident, last),
            syn::Item::Struct(item) => self.add(&item.vis, &item.attrs, &item.ident, last),
            syn::Item::Enum(item) => self.add(&item.vis, &item.attrs, &item.ident, last),
            syn::Item::Trait(item) => self.add(&item.vis, &item.attrs, &item.ident, last),
            syn::Item::Type(item) => self.add(&item.vis, &item.attrs, &item.ident, last),
            syn::Item::Const(item) => self.add(&item.vis, &item.attrs, &item.ident, last),
            syn::Item::Static(item) => self.add(&item.vis, &item.attrs, &item.ident, last),
            syn::Item::Impl(item) => {
                if let syn::Type::Path(path) = &*item.self_ty
                    && let Some(name) = path.path.segments.last()
                {
                    let lines = item.impl_token.span.start().line..=last;
                    self.impls.entry(name.ident.to_string()).or_default().push(lines);
                }
                syn::visit::visit_item_impl(self, item);
            }
            syn::Item::Mod(item) => syn::visit::visit_item_mod(self, item),
            _ => {}
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        let last = item.block.brace_token.span.close().end().line;
        self.add(&item.vis, &item.attrs, &item.sig.ident, last);
    }

    fn visit_impl_item_const(&mut self, item: &'ast syn::ImplItemConst) {
        self.add(&item.vis, &item.attrs, &item.ident, item.semi_token.span.end().line);
    }
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::sources::tests::source;

    fn keys(files: &[(&str, &str)]) -> Vec<String> {
        let sources: Vec<_> = files.iter().map(|(path, text)| source(path, text)).collect();
        check(&sources).into_iter().map(|keyed| keyed.key).collect()
    }

    #[test]
    fn items_that_nothing_names_are_found() {
        let text = "pub fn alone() {\n    alone()\n}\npub struct Lost;\nimpl Lost {\n    \
                    pub fn make() -> Lost {\n        Lost\n    }\n}\npub const UNUSED: u8 = 0;\n\
                    pub trait Nobody {}\n";
        let lib = "mod a;\npub use a::{alone, Lost};\n";
        let found = keys(&[("crates/x/src/a.rs", text), ("crates/x/src/lib.rs", lib)]);
        let names: Vec<&str> =
            found.iter().map(|key| key.rsplit(' ').next().unwrap_or("")).collect();
        assert_eq!(names, ["alone", "Lost", "make", "UNUSED", "Nobody"]);
    }

    #[test]
    fn items_that_code_names_pass() {
        let text = "pub fn called() {}\npub struct Typed;\n/// ```\n/// x::in_doc();\n/// ```\n\
                    pub fn caller(x: Typed) {\n    called()\n}\npub fn in_doc() {}\n\
                    pub fn in_test() {}\npub(crate) fn narrow() {}\n\
                    pub const SHOWN: u8 = 0;\npub const HEX: u8 = 0;\n\
                    #[unsafe(no_mangle)]\npub extern \"C\" fn for_c() {}\n";
        let test = "fn t() {\n    caller(in_test());\n    println!(\"{SHOWN} {HEX:x}\");\n}\n";
        let found = keys(&[("crates/x/src/a.rs", text), ("crates/x/tests/it/main.rs", test)]);
        assert_eq!(found, Vec::<String>::new());
    }

    #[test]
    fn re_export_counts_in_the_published_crate_only() {
        let item = ("crates/x/src/a.rs", "pub fn shown() {}\n");
        let re_export = "pub use x::shown;\n";
        assert_eq!(keys(&[item, ("front/api/src/lib.rs", re_export)]), Vec::<String>::new());
        assert_eq!(keys(&[item, ("front/cli/src/lib.rs", re_export)]).len(), 1);
    }
}
