//! Decision records: their numbers, their index, and the records that comments name.
//!
//! 1. The numbers run from 0001 to the largest without gaps, except those whose row in the index
//!    says "never used".
//! 2. The index has one row for each record, with its title, a status and a date; and no other row.
//! 3. A comment in Rust that says "decision NNNN" or "decisions/NNNN-…" names a record that exists.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::pages::Page;
use crate::report::Finding;
use crate::sources::Source;

/// Folder of the decision records.
const FOLDER: &str = "docs/decisions";
/// The title cell of a number that no record has.
const UNUSED: &str = "never used";

/// Checks the records, the index and the comments.
pub(crate) fn check(sources: &[Source], pages: &[Page]) -> Vec<Finding> {
    let records = records(pages);
    let index_path = Path::new(FOLDER).join("README.md");
    let Some(index) = pages.iter().find(|page| page.path == index_path) else {
        return vec![Finding::new(&index_path, 0, "no index of the decisions: write one")];
    };
    let (rows, mut findings) = rows(index);
    findings.extend(gaps(&records, &rows, &index_path));
    findings.extend(differences(&records, &rows, &index_path));
    findings.extend(sources.iter().flat_map(|source| unknown_records(source, &records)));
    findings
}

/// A record: its page and its title without the number.
struct Record<'a> {
    path: &'a Path,
    title: &'a str,
}

fn records(pages: &[Page]) -> BTreeMap<u32, Record<'_>> {
    let mut records = BTreeMap::new();
    for page in pages.iter().filter(|page| page.path.starts_with(FOLDER)) {
        let name = page.path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if let Some(number) = number(name) {
            let heading = page.text.lines().next().unwrap_or_default();
            let title = heading.split_once(": ").map_or("", |(_, title)| title.trim());
            records.insert(number, Record { path: &page.path, title });
        }
    }
    records
}

/// The number that a text starts with, if it has exactly four digits.
fn number(text: &str) -> Option<u32> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    if digits == 4 { text[..4].parse().ok() } else { None }
}

/// A row of the index.
struct Row<'a> {
    line: usize,
    title: &'a str,
    status: &'a str,
    date: &'a str,
}

fn rows(index: &Page) -> (BTreeMap<u32, Row<'_>>, Vec<Finding>) {
    let mut rows = BTreeMap::new();
    let mut findings = Vec::new();
    for (at, text) in index.text.lines().enumerate() {
        let cells: Vec<&str> = text.split('|').map(str::trim).collect();
        let [_, first, title, status, date, _] = cells.as_slice() else { continue };
        let Some(number) = number(first.trim_start_matches('[')) else { continue };
        let row = Row { line: at + 1, title, status, date };
        if rows.insert(number, row).is_some() {
            let message = format!("{number:04} has two rows: remove one");
            findings.push(Finding::new(&index.path, at + 1, message));
        }
    }
    (rows, findings)
}

fn gaps(records: &BTreeMap<u32, Record>, rows: &BTreeMap<u32, Row>, index: &Path) -> Vec<Finding> {
    let last = records.keys().max().copied().unwrap_or(0);
    let unused = |number: &u32| rows.get(number).is_some_and(|row| row.title == UNUSED);
    let missing = (1..=last).filter(|number| !records.contains_key(number) && !unused(number));
    let message = |number| {
        format!(
            "there is no record {number:04}: give the number to the next decision, or add the row \
             `| {number:04} | {UNUSED} | | |`"
        )
    };
    missing.map(|number| Finding::new(index, 0, message(number))).collect()
}

/// Rows without a record, records without a row, and rows that say something else.
fn differences(
    records: &BTreeMap<u32, Record>,
    rows: &BTreeMap<u32, Row>,
    index: &Path,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (number, record) in records {
        let Some(row) = rows.get(number) else {
            let message = format!("record {number:04} has no row in {}: add it", index.display());
            findings.push(Finding::new(record.path, 0, message));
            continue;
        };
        if row.title != record.title {
            let message = format!(
                "the title of {number:04} is `{}` here and `{}` in its record: make them equal",
                row.title, record.title
            );
            findings.push(Finding::new(index, row.line, message));
        }
        if row.status.is_empty() || row.date.is_empty() {
            let message = format!("{number:04} needs a status and a date");
            findings.push(Finding::new(index, row.line, message));
        }
    }
    for (number, row) in rows {
        if row.title != UNUSED && !records.contains_key(number) {
            let message = format!("the record of {number:04} does not exist: remove the row");
            findings.push(Finding::new(index, row.line, message));
        }
    }
    findings
}

fn unknown_records(source: &Source, records: &BTreeMap<u32, Record>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for comment in &source.comments {
        let named: BTreeSet<u32> = named(&comment.text).into_iter().collect();
        for number in named.into_iter().filter(|number| !records.contains_key(number)) {
            let message = format!("decision {number:04} does not exist: name the record meant");
            findings.push(Finding::new(&source.path, comment.line, message));
        }
    }
    findings
}

/// The numbers of the records that a comment names.
fn named(text: &str) -> Vec<u32> {
    let lower = text.to_lowercase();
    let ways = ["decision ", "decisions ", "decisions/"];
    let places = ways.iter().flat_map(|way| lower.match_indices(way));
    places.filter_map(|(at, way)| number(&lower[at + way.len()..])).collect()
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::pages::Page;
    use crate::pages::tests::page;
    use crate::sources::tests::source;

    const HEAD: &str = "| number | title | status | date |\n| --- | --- | --- | --- |\n";

    fn record(number: &str, title: &str) -> Page {
        page(&format!("docs/decisions/{number}-x.md"), &format!("# {number}: {title}\n"))
    }

    fn messages(pages: &[Page], comment: &str) -> Vec<String> {
        let found = check(&[source("a.rs", comment)], pages);
        found.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn complete_index_passes() {
        let rows = "| [0001](0001-x.md) | One | accepted | 2026-11-20 |\n| 0002 | never used | | |\n\
                    | [0003](0003-x.md) | Three | superseded by 0004 | 2026-11-20 |\n\
                    | [0004](0004-x.md) | Four | accepted | 2026-11-21 |\n";
        let index = page("docs/decisions/README.md", &format!("{HEAD}{rows}"));
        let pages = [index, record("0001", "One"), record("0003", "Three"), record("0004", "Four")];
        let comment = "// See decision 0003 and docs/decisions/0001-x.md; the mode is 0640.\n";
        assert_eq!(messages(&pages, comment), Vec::<String>::new());
    }

    #[test]
    fn gaps_and_wrong_rows_are_found() {
        let rows =
            "| [0001](0001-x.md) | Other | accepted | |\n| [0004](0004-x.md) | Four | a | b |\n";
        let index = page("docs/decisions/README.md", &format!("{HEAD}{rows}"));
        let found = messages(&[index, record("0001", "One"), record("0003", "Three")], "");
        assert_eq!(found.len(), 5, "{found:?}");
        assert!(found[0].contains("no record 0002"), "{found:?}");
        assert!(found[1].contains("README.md:3: the title of 0001 is `Other`"), "{found:?}");
        assert!(found[2].contains("0001 needs a status and a date"), "{found:?}");
        assert!(found[3].contains("0003-x.md: record 0003 has no row"), "{found:?}");
        assert!(found[4].contains("README.md:4: the record of 0004 does not exist"), "{found:?}");
    }

    #[test]
    fn comment_that_names_no_record_is_found() {
        let index = page("docs/decisions/README.md", HEAD);
        let found = messages(&[index], "//! Why: ([decision 0021]).\nfn f() {}\n");
        assert!(found[0].contains("a.rs:1: decision 0021 does not exist"), "{found:?}");
    }

    #[test]
    fn missing_index_is_found() {
        assert!(messages(&[], "")[0].contains("no index"));
    }
}
