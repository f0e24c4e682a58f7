//! Links in Markdown pages: a relative link names a file and a heading that exist.

use std::path::{Component, Path, PathBuf};

use crate::pages::{Page, outside_fences};
use crate::report::Finding;

/// Checks the links of all pages.
pub(crate) fn check(root: &Path, pages: &[Page]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for page in pages {
        for (line, target) in links(&page.text) {
            if let Err(message) = resolve(root, &page.path, &target) {
                findings.push(Finding::new(&page.path, line, message));
            }
        }
    }
    findings
}

fn resolve(root: &Path, page: &Path, target: &str) -> Result<(), String> {
    if target.contains("://") || target.starts_with("mailto:") {
        return Ok(());
    }
    let (path, heading) = target.split_once('#').unwrap_or((target, ""));
    let file = if path.is_empty() {
        page.to_owned()
    } else {
        tidy(&page.parent().unwrap_or(Path::new("")).join(path))
    };
    if !root.join(&file).exists() {
        return Err(format!(
            "the link `{target}` leads to no file: {} is not there",
            file.display()
        ));
    }
    if heading.is_empty() || file.extension().is_none_or(|e| e != "md") {
        return Ok(());
    }
    if headings(&read(&root.join(&file))?).iter().any(|h| h == heading) {
        return Ok(());
    }
    Err(format!("the link `{target}`: {} has no heading `#{heading}`", file.display()))
}

fn read(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))
}

/// `docs/../README.md` → `README.md`, without asking the file system.
pub(crate) fn tidy(path: &Path) -> PathBuf {
    let mut tidy = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                tidy.pop();
            }
            Component::CurDir => {}
            other => tidy.push(other),
        }
    }
    tidy
}

/// The targets of `[text](target)` outside code, each with its line.
fn links(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (line, prose) in prose(text) {
        let mut rest = prose.as_str();
        while let Some(at) = rest.find("](") {
            rest = &rest[at + 2..];
            let Some(end) = rest.find(')') else { break };
            let target = rest[..end].split_whitespace().next().unwrap_or_default();
            found.push((line, target.trim_matches(['<', '>']).to_owned()));
            rest = &rest[end..];
        }
    }
    found
}

/// The names that headings get as link targets.
fn headings(text: &str) -> Vec<String> {
    let lines = outside_fences(text).filter(|(_, line)| line.starts_with('#'));
    lines.map(|(_, line)| slug(line.trim_start_matches('#').trim())).collect()
}

fn slug(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// Lines without code spans.
fn prose(text: &str) -> impl Iterator<Item = (usize, String)> {
    outside_fences(text).map(|(at, line)| (at, line.split('`').step_by(2).collect::<String>()))
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::{check, headings, links};
    use crate::pages::load;

    #[test]
    fn a_link_to_nothing_is_found() {
        let dir = tempfile::tempdir().expect("tempdir");
        let write = |name: &str, text: &str| {
            let path = dir.path().join(name);
            let parent = path.parent().expect("a folder");
            std::fs::DirBuilder::new().recursive(true).create(parent).expect(name);
            let mut file = std::fs::File::create_new(path).expect(name);
            file.write_all(text.as_bytes()).expect(name);
        };
        write(
            "README.md",
            "[a](docs/a.md#the-log-wal)\n[web](https://example.org)\n[b](docs/b.md)\n",
        );
        write("docs/a.md", "# The log (WAL)\n[up](../README.md) [no](#none)\n```\n[x](y)\n```\n");
        let found = check(dir.path(), &load(dir.path()).expect("readable"));
        let places: Vec<String> = found.iter().map(ToString::to_string).collect();
        assert_eq!(places.len(), 2, "{places:?}");
        assert!(places[1].starts_with("docs/a.md:2: the link `#none`"), "{places:?}");
        assert!(places[0].starts_with("README.md:3: the link `docs/b.md`"), "{places:?}");
    }

    #[test]
    fn code_is_not_a_link_and_headings_have_names() {
        assert_eq!(links("`a[0](b)` and [c](d \"title\")"), [(1, "d".to_owned())]);
        assert_eq!(headings("## Disk full, and `resume`\n"), ["disk-full-and-resume"]);
    }
}
