//! Pages of benchmarks: rows of one type, and one renderer for the terminal and for Markdown.
//!
//! Each command of the laboratory turns its results into [`Row`]s, groups them into [`Section`]s
//! and renders them. Commands with charts and a file of figures publish a [`Report`]. With
//! `--page FILE`, a command also writes a [`Page`], which is a page of `docs/benchmarks/`. Its head
//! states the commit, the command and the machine (`head.rs`). The command writes only the part
//! between two marks, so that people can add prose before and after it. A page that several
//! commands write has several parts, and `--page FILE#PART` names one.
//!
//! Invariants:
//! 1. A cell of a row holds one figure. Ranges stand in a column of their own.
//! 2. A missed target stays in the table, with a sentence about its cause.
//! 3. Rounding never shows a missed target as a met one.
//!
//! Everything but the head is pure. Failure: only [`Page::write`] fails, if the file cannot be
//! written.

mod head;
mod report;
mod row;
#[cfg(test)]
mod tests;
mod wrap;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use archipelago_bench::harness::store::{
    Error, FileClass, FileSystem, IoContext, IoPurpose, LocalFs, Result,
};
use comfy_table::presets::{ASCII_MARKDOWN, UTF8_FULL_CONDENSED};
use comfy_table::{CellAlignment, Table};

pub(crate) use head::{Machine, date, remember_commit, remembered_commit};
pub(crate) use report::Report;
pub(crate) use row::{Ratio, Row, RowTarget, Verdict};

use head::Head;
use wrap::wrapped;

/// How a table is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    /// With lines, for a terminal.
    Terminal,
    Markdown,
}

impl Style {
    /// The style that a flag `--markdown` asks for.
    pub(crate) fn markdown_if(markdown: bool) -> Self {
        if markdown { Self::Markdown } else { Self::Terminal }
    }

    fn preset(self) -> &'static str {
        match self {
            Self::Terminal => UTF8_FULL_CONDENSED,
            Self::Markdown => ASCII_MARKDOWN,
        }
    }
}

/// A table without targets, such as the figures of a chart.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Grid {
    pub(crate) header: Vec<String>,
    pub(crate) rows: Vec<Vec<String>>,
}

impl Grid {
    /// A grid without rows.
    pub(crate) fn new<S: Into<String>>(header: impl IntoIterator<Item = S>) -> Self {
        Self { header: header.into_iter().map(Into::into).collect(), rows: Vec::new() }
    }

    /// Appends a row.
    pub(crate) fn push<S: Into<String>>(&mut self, cells: impl IntoIterator<Item = S>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }

    /// The table as text. The columns after the first one are aligned to the right.
    pub(crate) fn text(&self, style: Style) -> String {
        let mut table = Table::new();
        table.load_preset(style.preset()).set_header(&self.header);
        for row in &self.rows {
            table.add_row(row);
        }
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        table.to_string()
    }
}

/// Rows that belong together, and the tables and notes after them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Section {
    pub(crate) title: String,
    pub(crate) rows: Vec<Row>,
    pub(crate) grids: Vec<Grid>,
    pub(crate) notes: Vec<String>,
}

impl Section {
    /// The section as text, with its title as a heading of the second level.
    pub(crate) fn text(&self, style: Style) -> String {
        let mut parts = vec![format!("## {}", self.title)];
        if !self.rows.is_empty() {
            parts.push(row::table(&self.rows).text(style));
        }
        parts.extend(self.grids.iter().map(|grid| grid.text(style)));
        parts.extend(self.notes.iter().map(|note| match style {
            Style::Terminal => note.clone(),
            Style::Markdown => wrapped(note),
        }));
        parts.join("\n\n")
    }
}

/// A sentence that counts the targets of `rows` and those that are met.
pub(crate) fn verdict_line<'a>(rows: impl Iterator<Item = &'a Row>) -> String {
    let (mut targets, mut met) = (0, 0);
    for row in rows {
        targets += usize::from(row.target.is_some());
        met += usize::from(row.verdict == Verdict::Met);
    }
    format!("{met} of {targets} targets reached.")
}

/// Mark after each part of a page that a command writes.
const END: &str = "<!-- archipelago-lab wrote the part above. -->";

/// Mark before the part of that name, or before the only part of a page.
fn begin(part: Option<&str>) -> String {
    let name = part.map_or_else(String::new, |part| format!(": {part}"));
    format!("<!-- archipelago-lab writes the following part{name}. -->")
}

/// The file and the part that `FILE` or `FILE#PART` names.
fn file_and_part(page: &Path) -> (PathBuf, Option<String>) {
    let text = page.to_string_lossy();
    match text.rsplit_once('#') {
        Some((file, part)) if !part.is_empty() && !part.contains('/') => {
            (PathBuf::from(file), Some(part.to_owned()))
        }
        _ => (page.to_owned(), None),
    }
}

/// A page of `docs/benchmarks/`, or one part of it.
#[derive(Clone, Debug)]
pub(crate) struct Page {
    head: Head,
    /// Settings of the runs, as Markdown.
    about: String,
    sections: Vec<Section>,
}

impl Page {
    /// A page about runs of the command `archipelago-lab NAME ARGS` on this machine.
    pub(crate) fn new(title: &str, name: &str, args: &[OsString]) -> Self {
        Self { head: Head::look(title, name, args), about: String::new(), sections: Vec::new() }
    }

    /// The same page with this Markdown text between the head and the sections.
    pub(crate) fn about(self, about: &str) -> Self {
        Self { about: about.trim().to_owned(), ..self }
    }

    /// The same page with these sections.
    pub(crate) fn sections(self, sections: Vec<Section>) -> Self {
        Self { sections, ..self }
    }

    /// The page as Markdown. The text of an existing page stays: the written part replaces that
    /// between the marks of `part`, or it follows a page without these marks.
    pub(crate) fn markdown(&self, existing: Option<&str>, part: Option<&str>) -> String {
        let begin = begin(part);
        let written = format!("{begin}\n\n{}\n\n{END}", self.written());
        let around = existing.and_then(|text| {
            let (before, rest) = text.split_once(&begin)?;
            Some((before, rest.split_once(END)?.1))
        });
        match (around, existing) {
            (Some((before, after)), _) => format!("{before}{written}{after}"),
            (None, Some(text)) => format!("{}\n\n{written}\n", text.trim_end()),
            (None, None) => format!("{}\n\n{written}\n", self.head.title()),
        }
    }

    /// The part of the page that the command writes.
    fn written(&self) -> String {
        let mut parts = vec![self.head.table()];
        if !self.about.is_empty() {
            parts.push(wrapped(&self.about));
        }
        parts.extend(self.sections.iter().map(|section| section.text(Style::Markdown)));
        let rows = || self.sections.iter().flat_map(|section| &section.rows);
        if rows().any(|row| row.target.is_some()) {
            parts.push(verdict_line(rows()));
        }
        parts.join("\n\n")
    }

    /// Writes the page that `FILE` or `FILE#PART` names, whole or not at all. Prose outside of the
    /// marks stays.
    pub(crate) fn write(&self, page: &Path) -> Result<()> {
        let (path, part) = file_and_part(page);
        let existing = std::fs::read_to_string(&path).ok();
        write(&path, &self.markdown(existing.as_deref(), part.as_deref()))?;
        eprintln!("the page is in {}", path.display());
        Ok(())
    }
}

/// Writes a file for the user, whole or not at all. Missing directories are made.
pub(crate) fn write(path: &Path, text: &str) -> Result<()> {
    let path = std::path::absolute(path)
        .map_err(|error| Error::invalid(format!("{} is not a path: {error}", path.display())))?;
    let fs = LocalFs::for_reports();
    if let Some(dir) = path.parent() {
        fs.create_dir_all(dir)?;
    }
    let context = IoContext::new(FileClass::Other, IoPurpose::ForegroundWrite);
    fs.write_atomic(&path, text.as_bytes(), context)
}
