//! The glossary: the entries of each table are sorted, and no word has two entries on the page.
//!
//! An entry is a row of a table whose first cell starts with a bold word. A heading begins a new
//! table. The order is that of the bold words in lower case. A word with several meanings has one
//! entry that names them all.

use std::collections::BTreeMap;

use crate::pages::Page;
use crate::report::Finding;

/// Path of the glossary.
const PATH: &str = "docs/GLOSSARY.md";

/// Checks the order and the words of the glossary.
pub(crate) fn check(pages: &[Page]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut lines: BTreeMap<String, usize> = BTreeMap::new();
    let mut last: Option<String> = None;
    for page in pages.iter().filter(|page| page.path.ends_with(PATH)) {
        for (at, line) in page.text.lines().enumerate() {
            if line.starts_with('#') {
                last = None;
            }
            let Some(word) = word(line) else { continue };
            let mut find = |message| findings.push(Finding::new(&page.path, at + 1, message));
            if let Some(first) = lines.insert(word.clone(), at + 1) {
                find(format!("`{word}` has an entry in line {first} already: make one of the two"));
            } else if let Some(last) = last.filter(|last| *last > word) {
                find(format!("`{word}` stands behind `{last}`: sort the entries"));
            }
            last = Some(word);
        }
    }
    findings
}

/// The bold word that a row starts with, in lower case.
fn word(line: &str) -> Option<String> {
    let cell = line.strip_prefix("| **")?;
    let (word, _) = cell.split_once("**")?;
    Some(word.to_lowercase())
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::pages::tests::page;

    fn lines(text: &str) -> Vec<usize> {
        check(&[page("docs/GLOSSARY.md", text)]).iter().map(|f| f.line).collect()
    }

    #[test]
    fn breaks_of_order_and_second_entries_are_found() {
        let text = "| word | what |\n| --- | --- |\n| **block** | b |\n| **anchor** | a |\n\
                    | **copy** (of tiers) | c |\n| **copy** (of a pool) | c |\n| **Disk** | d |\n";
        assert_eq!(lines(text), [4, 6]);
    }

    #[test]
    fn sorted_entries_pass_and_other_pages_are_not_read() {
        let text = "| **anchor** | see **zebra** |\n| **L0** | l |\n| **level** | l |\n";
        assert_eq!(lines(text), Vec::<usize>::new());
        assert_eq!(check(&[page("docs/other.md", "| **b** | |\n| **a** | |\n")]), []);
    }

    #[test]
    fn heading_begins_another_order_but_no_second_entry() {
        let text = "## A\n| **log** | l |\n## B\n| **cache** | c |\n| **log** | l |\n";
        assert_eq!(lines(text), [5]);
    }
}
