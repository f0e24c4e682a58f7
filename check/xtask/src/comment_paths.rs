//! Paths in comments: a path to a page in a Rust comment names a file that exists.
//!
//! A path is a word that ends with `.md`, or one that starts with `docs/`. It is looked up from the
//! root, from each folder between the root and the file, and from the file's own folder.

use std::path::Path;

use crate::comments::Comment;
use crate::links::tidy;
use crate::report::Finding;
use crate::sources::Source;

/// Checks the comments of all sources. `exists` says whether a path relative to the root exists.
pub(crate) fn check(sources: &[Source], exists: &dyn Fn(&Path) -> bool) -> Vec<Finding> {
    let mut findings = Vec::new();
    for source in sources {
        for comment in &source.comments {
            for path in paths(comment) {
                let mut bases = source.path.ancestors().skip(1);
                if !bases.any(|base| exists(&tidy(&base.join(&path)))) {
                    let message = format!("`{path}` does not exist: name the page as it is called");
                    findings.push(Finding::new(&source.path, comment.line, message));
                }
            }
        }
    }
    findings
}

/// The paths that a comment names, without the heading that a link may add.
fn paths(comment: &Comment) -> Vec<String> {
    let part_of_path = |c: char| c.is_alphanumeric() || "/._-#{},*…<>".contains(c);
    let words = comment.text.split(|c: char| !part_of_path(c));
    let words = words.map(|word| word.split('#').next().unwrap_or_default());
    let words = words.map(|word| word.trim_end_matches(['.', ',', '/']).to_owned());
    let pattern = |word: &str| word.contains(['{', '*', '…', '<']);
    words.filter(|word| is_path(word) && !pattern(word) && !comment.text.contains("://")).collect()
}

fn is_path(word: &str) -> bool {
    let page = word.strip_suffix(".md").is_some_and(|stem| !stem.is_empty());
    page || word.strip_prefix("docs/").is_some_and(|rest| !rest.is_empty())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::check;
    use crate::sources::tests::source;

    fn lines(text: &str) -> Vec<usize> {
        let there = ["docs/a.md", "docs/devices", "crates/x/data/README.md"];
        let exists = |path: &Path| there.iter().any(|known| Path::new(known) == path);
        let sources = [source("crates/x/src/y/lib.rs", text)];
        check(&sources, &exists).iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn path_to_no_file_is_found() {
        let text =
            "//! See `docs/b.md`.\n//! See [it](../../../docs/b.md#head).\n// In docs/gone/.\n";
        assert_eq!(lines(text), [1, 2, 3]);
    }

    #[test]
    fn path_to_a_file_passes() {
        let text = "//! See `docs/a.md`, (docs/a.md), [it](../../../../docs/a.md#head).\n\
                    //! In `docs/devices/` and `data/README.md`; `docs/{a,b}.md`;
                    //! <https://x.y/z.md>.\n\
                    const A: &str = \"docs/none.md\";\n";
        assert_eq!(lines(text), Vec::<usize>::new());
    }
}
