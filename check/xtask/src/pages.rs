//! The Markdown pages of the project, read once for all checks.

use std::path::{Path, PathBuf};

use crate::sources::{ROOTS, files};

/// A page in Markdown.
#[derive(Debug, Clone)]
pub(crate) struct Page {
    /// Path of the page, relative to the root.
    pub(crate) path: PathBuf,
    /// Text of the page.
    pub(crate) text: String,
}

/// Reads the pages of the root and all below `docs`, `examples` and the crates' folders.
pub(crate) fn load(root: &Path) -> Result<Vec<Page>, String> {
    let folders: Vec<&str> = ["docs", "examples"].iter().chain(ROOTS).copied().collect();
    let mut paths = files(root, &folders, "md")?;
    for entry in std::fs::read_dir(root).map_err(|e| format!("{}: {e}", root.display()))? {
        let name = entry.map_err(|e| format!("{}: {e}", root.display()))?.file_name();
        let path = PathBuf::from(name);
        if path.extension().is_some_and(|extension| extension == "md") {
            paths.push(path);
        }
    }
    paths.sort();
    let read = |path: PathBuf| match std::fs::read_to_string(root.join(&path)) {
        Ok(text) => Ok(Page { path, text }),
        Err(e) => Err(format!("{}: {e}", path.display())),
    };
    paths.into_iter().map(read).collect()
}

/// The lines outside code blocks, each with its number from 1.
pub(crate) fn outside_fences(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fenced = false;
    text.lines().enumerate().filter_map(move |(at, line)| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        (!fenced && !fence).then_some((at + 1, line))
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::{Page, outside_fences};

    /// A page at a path.
    pub(crate) fn page(path: &str, text: &str) -> Page {
        Page { path: path.into(), text: text.to_owned() }
    }

    #[test]
    fn code_blocks_are_left_out() {
        let lines: Vec<_> = outside_fences("a\n```text\nb\n```\nc\n").collect();
        assert_eq!(lines, [(1, "a"), (5, "c")]);
    }
}
