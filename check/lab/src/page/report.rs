//! The reports of a command: on the terminal, as files with charts and figures, and as a page of
//! `docs/benchmarks/` if one was asked for.

use std::ffi::OsString;
use std::path::Path;

use archipelago_bench::harness::json;
use archipelago_bench::harness::report::say;
use archipelago_bench::harness::store::Result;
use serde::Serialize;

use super::{Page, Section, Style, write};

/// Results of the runs of a command.
pub(crate) struct Report<'a> {
    /// Title of the report and of the page.
    pub(crate) title: &'a str,
    /// Name of the command.
    pub(crate) command: &'a str,
    /// The words after the name.
    pub(crate) args: &'a [OsString],
    /// Settings of the runs, as Markdown.
    pub(crate) settings: &'a str,
    pub(crate) sections: Vec<Section>,
    /// The last section of the report, which the page leaves out.
    pub(crate) appendix: Option<Section>,
    /// Name and content of each chart.
    pub(crate) plots: Vec<(String, String)>,
}

impl Report<'_> {
    /// The report as text.
    fn text(&self, style: Style) -> String {
        let all = self.sections.iter().chain(&self.appendix);
        let parts: Vec<String> = all.map(|section| section.text(style)).collect();
        format!("# {}\n\n{}\n{}\n", self.title, self.settings, parts.join("\n\n"))
    }

    /// Prints the report and writes its files into `out`: the report in Markdown, `data` as JSON,
    /// and charts. Writes the page if there is one.
    pub(crate) fn publish<T: Serialize>(
        self,
        out: &Path,
        page: Option<&Path>,
        data: &T,
    ) -> Result<()> {
        say(&self.text(Style::Terminal));
        write(&out.join("report.md"), &self.text(Style::Markdown))?;
        for (name, svg) in &self.plots {
            write(&out.join(name), svg)?;
        }
        if let Some(path) = page {
            let page = Page::new(self.title, self.command, self.args);
            page.about(self.settings).sections(self.sections).write(path)?;
        }
        json::write_file(&out.join("report.json"), data)?;
        eprintln!("written: report.md, report.json and plots in {}", out.display());
        Ok(())
    }
}
