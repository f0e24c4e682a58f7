//! Width: comments in Rust and prose in Markdown end at column [`COLUMNS_MAX`].
//!
//! Tables, code blocks and the targets of links are exempt, because they cannot be broken. A code
//! span can move to the next line. An entry of the list is a path and a number of lines.

use crate::allow::Keyed;
use crate::comments::{Comment, Doc};
use crate::pages::{Page, outside_fences};
use crate::report::Finding;
use crate::sources::Source;

/// Largest number of columns of a line.
pub(crate) const COLUMNS_MAX: usize = 100;

/// The wide lines of all sources and pages.
pub(crate) fn check(sources: &[Source], pages: &[Page]) -> Vec<Keyed> {
    sources.iter().flat_map(in_source).chain(pages.iter().flat_map(in_page)).collect()
}

fn in_source(source: &Source) -> Vec<Keyed> {
    let lines: Vec<&str> = source.text.lines().collect();
    let mut fenced = false;
    let mut last: (usize, Option<Doc>) = (0, None);
    let mut found = Vec::new();
    for comment in &source.comments {
        let doc = comment.doc();
        if last != (comment.line - 1, doc) {
            fenced = false;
        }
        last = (comment.line, doc);
        let prose = comment.prose().trim_start();
        let fence = doc.is_some() && prose.starts_with("```");
        fenced ^= fence;
        let line = lines[comment.line - 1];
        if !fenced && !fence && is_wide(line, prose) && ends_line(line, comment) {
            found.push(finding(&source.path, comment.line, line));
        }
    }
    found
}

fn ends_line(line: &str, comment: &Comment) -> bool {
    line.trim_end().ends_with(&comment.text)
}

fn in_page(page: &Page) -> Vec<Keyed> {
    let wide = outside_fences(&page.text).filter(|(_, line)| is_wide(line, line.trim_start()));
    wide.map(|(at, line)| finding(&page.path, at, line)).collect()
}

fn finding(path: &std::path::Path, at: usize, line: &str) -> Keyed {
    let columns = line.chars().count();
    let message = format!("{columns} columns, {COLUMNS_MAX} are allowed: break the line");
    Keyed::new(path.display().to_string(), Finding::new(path, at, message))
}

/// Whether a line is too wide. `prose` is its text without indentation and comment marker.
fn is_wide(line: &str, prose: &str) -> bool {
    let columns = line.chars().count();
    if columns <= COLUMNS_MAX || prose.starts_with('|') || is_reference(prose) {
        return false;
    }
    columns - target_columns(prose) > COLUMNS_MAX
}

/// Whether a line is the definition of a link: `[name]: target`.
fn is_reference(prose: &str) -> bool {
    prose.starts_with('[') && prose.contains("]: ")
}

/// The columns that the targets of links and bare addresses take.
fn target_columns(prose: &str) -> usize {
    let inline = prose.match_indices("](").map(|(at, _)| {
        let target = &prose[at + 2..];
        target[..target.find(')').unwrap_or(0)].chars().count()
    });
    let bare = prose.split_whitespace().filter(|word| word.contains("://") && !word.contains("]("));
    inline.sum::<usize>() + bare.map(|word| word.chars().count()).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::pages::tests::page;
    use crate::sources::tests::source;

    fn places(text: &str, markdown: &str) -> Vec<String> {
        let found = check(&[source("a.rs", text)], &[page("b.md", markdown)]);
        found.iter().map(|k| format!("{}:{}", k.key, k.finding.line)).collect()
    }

    #[test]
    fn wide_comments_and_prose_are_found() {
        let wide = "word ".repeat(25);
        let text = format!("//! {wide}\n/// Fits.\nfn f() {{}} // {wide}\n// {wide}\n");
        assert_eq!(
            places(&text, &format!("# T\n\n{wide}\n")),
            ["a.rs:1", "a.rs:3", "a.rs:4", "b.md:3"]
        );
    }

    #[test]
    fn exactly_the_limit_fits() {
        let fits = "é".repeat(97);
        assert_eq!(places(&format!("// {fits}\n"), &"é".repeat(100)), Vec::<String>::new());
        assert_eq!(places(&format!("// {fits}é\n"), &"é".repeat(101)), ["a.rs:1", "b.md:1"]);
    }

    #[test]
    fn tables_links_code_and_texts_are_exempt() {
        let wide = "word ".repeat(25);
        let link = format!("See [the page](https://example.org/{}).", "x".repeat(90));
        let markdown =
            format!("| {wide} |\n```text\n{wide}\n```\n{link}\n[a]: {}\n", "x".repeat(100));
        let text = format!(
            "/// ```text\n/// {wide}\n/// ```\n/// {link}\nconst A: &str = \"{wide} // no\";\n"
        );
        assert_eq!(places(&text, &markdown), Vec::<String>::new());
    }
}
