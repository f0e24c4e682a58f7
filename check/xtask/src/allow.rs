//! Allow-lists: the findings of a check that stood in the tree when the check was added.
//!
//! A list has one entry a line: the key of a finding, and after it the number of findings with that
//! key if there is more than one. Blank lines and lines that start with `#` are comments.
//!
//! Invariants:
//! 1. A finding that no entry covers fails the check.
//! 2. An entry that covers more than was found fails the check. So a list only shrinks.
//! 3. [`bless`] removes entries and lowers counts. It adds nothing.
//!
//! The functions are pure; the caller reads and writes the files.

use std::collections::BTreeMap;
use std::path::Path;

use crate::report::Finding;

/// A finding with the key under which an allow-list names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Keyed {
    /// The entry of the list that covers the finding. It contains no line number.
    pub(crate) key: String,
    /// Place and text.
    pub(crate) finding: Finding,
}

impl Keyed {
    /// A finding that the entry `key` covers.
    pub(crate) fn new(key: impl Into<String>, finding: Finding) -> Self {
        Self { key: key.into(), finding }
    }
}

/// Findings that remain after `list`, the text of the file at `path`, has covered `found`.
pub(crate) fn compare(found: &[Keyed], list: &str, path: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let groups = by_key(found);
    let entries: Vec<Entry> = entries(list).collect();
    for (key, group) in &groups {
        let mine = entries.iter().find(|entry| entry.key == *key);
        let allowed = mine.map_or(0, |entry| entry.count);
        if group.len() <= allowed {
            continue;
        }
        findings.extend(group.iter().map(|keyed| keyed.finding.clone()));
        let line = mine.map_or(0, |entry| entry.line);
        let message = format!(
            "found `{key}` {} times, the list allows {allowed}: correct what is new. Only a merge \
             of two branches may raise an entry, here to the line `{}`",
            group.len(),
            render(key, group.len())
        );
        findings.push(Finding::new(Path::new(path), line, message));
    }
    for entry in &entries {
        let count = groups.get(entry.key).map_or(0, Vec::len);
        if count < entry.count {
            let what = match count {
                0 => format!("remove the line `{}`", render(entry.key, entry.count)),
                _ => format!(
                    "write `{}` for `{}`",
                    render(entry.key, count),
                    render(entry.key, entry.count)
                ),
            };
            let message = format!(
                "found `{}` {count} times, the list allows {}: {what}, or run `cargo xtask check \
                 --bless`",
                entry.key, entry.count
            );
            findings.push(Finding::new(Path::new(path), entry.line, message));
        }
    }
    findings
}

/// The list without the entries, and with the lower counts, that `found` no longer needs.
pub(crate) fn bless(found: &[Keyed], list: &str) -> String {
    let groups = by_key(found);
    let mut text = String::new();
    for line in list.lines() {
        match parse(line) {
            None => text.push_str(line),
            Some((key, count)) => match groups.get(key).map_or(0, Vec::len).min(count) {
                0 => continue,
                left => text.push_str(&render(key, left)),
            },
        }
        text.push('\n');
    }
    text
}

struct Entry<'a> {
    line: usize,
    key: &'a str,
    count: usize,
}

fn entries(list: &str) -> impl Iterator<Item = Entry<'_>> {
    list.lines().enumerate().filter_map(|(at, line)| {
        let (key, count) = parse(line)?;
        Some(Entry { line: at + 1, key, count })
    })
}

/// Key and count of a line, or nothing for a comment.
fn parse(line: &str) -> Option<(&str, usize)> {
    let line = line.trim();
    if line.is_empty() || line.starts_with('#') {
        return None;
    }
    match line.rsplit_once(' ') {
        Some((key, count)) => match count.parse() {
            Ok(count) => Some((key, count)),
            Err(_) => Some((line, 1)),
        },
        None => Some((line, 1)),
    }
}

fn render(key: &str, count: usize) -> String {
    if count == 1 { key.to_owned() } else { format!("{key} {count}") }
}

fn by_key(found: &[Keyed]) -> BTreeMap<&str, Vec<&Keyed>> {
    let mut groups: BTreeMap<&str, Vec<&Keyed>> = BTreeMap::new();
    for keyed in found {
        groups.entry(&keyed.key).or_default().push(keyed);
    }
    groups
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{Keyed, bless, compare};
    use crate::report::Finding;

    fn found(keys: &[&str]) -> Vec<Keyed> {
        let finding = |key: &str| Finding::new(Path::new("a.rs"), 7, format!("wrong: {key}"));
        keys.iter().map(|key| Keyed::new(*key, finding(key))).collect()
    }

    fn messages(keys: &[&str], list: &str) -> Vec<String> {
        compare(&found(keys), list, "x.txt").iter().map(ToString::to_string).collect()
    }

    #[test]
    fn listed_findings_pass() {
        let list = "# why\n\na.rs long\na.rs 2\n";
        assert_eq!(messages(&["a.rs", "a.rs long", "a.rs"], list), Vec::<String>::new());
    }

    #[test]
    fn finding_without_entry_fails_and_names_the_line_to_add() {
        let found = messages(&["a.rs", "a.rs"], "# empty\n");
        assert_eq!(found.len(), 3, "{found:?}");
        assert!(found[0].contains("a.rs:7: wrong"), "{found:?}");
        assert!(found[2].contains("allows 0") && found[2].contains("`a.rs 2`"), "{found:?}");
    }

    #[test]
    fn finding_beyond_the_count_fails() {
        let found = messages(&["a.rs", "a.rs", "a.rs"], "a.rs 2\n");
        assert!(found[3].contains("x.txt:1: found `a.rs` 3 times, the list allows 2"));
    }

    #[test]
    fn entry_that_covers_nothing_fails_and_names_the_line_to_remove() {
        let found = messages(&["a.rs"], "a.rs 3\nb.rs\n");
        assert!(found[0].contains("x.txt:1:") && found[0].contains("write `a.rs` for `a.rs 3`"));
        assert!(found[1].contains("x.txt:2:") && found[1].contains("remove the line `b.rs`"));
    }

    #[test]
    fn bless_only_removes_and_lowers() {
        let list = "# why\na.rs 3\nb.rs\nc.rs\n";
        let blessed = bless(&found(&["a.rs", "c.rs", "c.rs", "new.rs"]), list);
        assert_eq!(blessed, "# why\na.rs\nc.rs\n");
    }
}
