//! Doc comments: each one makes sense without its neighbours, because editors show it alone.
//!
//! 1. It starts with a capital letter, a digit or code. A link to either counts as it.
//! 2. It has at least three words.
//! 3. It does not send its reader away with "See the module".
//!
//! An entry of the list is a path and a number of doc comments.

use crate::allow::Keyed;
use crate::comments::Doc;
use crate::report::Finding;
use crate::sources::Source;

/// The fewest words of a doc comment.
const WORDS_MIN: usize = 3;

/// The incomplete doc comments of all sources.
pub(crate) fn check(sources: &[Source]) -> Vec<Keyed> {
    let mut found = Vec::new();
    for source in sources {
        for block in blocks(source) {
            if let Some(message) = wrong(&block.text) {
                let finding = Finding::new(&source.path, block.line, message);
                found.push(Keyed::new(source.path.display().to_string(), finding));
            }
        }
    }
    found
}

/// A doc comment of one item or module.
struct Block {
    line: usize,
    text: String,
}

/// Joins the lines of comments that stand below each other and belong to one item.
fn blocks(source: &Source) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut last: Option<(usize, Doc)> = None;
    for comment in &source.comments {
        let Some(doc) = comment.doc().filter(|_| comment.alone) else { continue };
        if last == Some((comment.line - 1, doc))
            && let Some(block) = blocks.last_mut()
        {
            block.text.push('\n');
            block.text.push_str(comment.prose());
        } else {
            blocks.push(Block { line: comment.line, text: comment.prose().to_owned() });
        }
        last = Some((comment.line, doc));
    }
    blocks
}

/// What is wrong with a doc comment, and what to do.
fn wrong(text: &str) -> Option<String> {
    let text = text.trim();
    let start = text.trim_start_matches(['[', '*']);
    let first = start.chars().next().unwrap_or(' ');
    if text.starts_with("See the module") {
        return Some("a doc comment that sends its reader to the module: say it here".to_owned());
    }
    if !(first.is_uppercase() || first.is_ascii_digit() || first == '`') {
        return Some(format!(
            "a doc comment that starts with `{first}`: start a sentence with a capital letter, a \
             digit or code"
        ));
    }
    let words = text.split_whitespace().count();
    (words < WORDS_MIN).then(|| {
        format!(
            "a doc comment of {words} words, {WORDS_MIN} are the least: say what the name does \
             not say, or remove it from a private item"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::sources::tests::source;

    fn lines(text: &str) -> Vec<usize> {
        check(&[source("a.rs", text)]).iter().map(|k| k.finding.line).collect()
    }

    #[test]
    fn incomplete_doc_comments_are_found() {
        let text = "//! what it does is said here\n\n/// Two words.\nfn f() {}\n/// … and for more.\n\
                    fn g() {}\n/// See the module.\nfn h() {}\n";
        assert_eq!(lines(text), [1, 3, 5, 7]);
    }

    #[test]
    fn complete_doc_comments_pass() {
        let text = "//! What it does is said here.\n\n/// Two\n/// lines, several words.\nfn f() {}\n\
                    /// `None` before the first.\nfn g() {}\n/// 3 of them exist.\nfn h() {}\n\
                    /// [`f`] and its sum.\nfn i() {}\n// no\nfn k() {}\n";
        assert_eq!(lines(text), Vec::<usize>::new());
    }
}
