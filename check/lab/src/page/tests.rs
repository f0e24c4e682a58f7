use super::*;
use crate::claim::Target;

fn named(name: &str) -> Row {
    Row { name: name.to_owned(), ..Row::default() }
}

fn rows_text(rows: &[Row], style: Style) -> String {
    row::table(rows).text(style)
}

fn compared(name: &str, median: f64, target: Target) -> Row {
    Row {
        unit: "ops/s",
        measured: Some(median * 1000.0),
        peer: Some(1000.0),
        ratio: Some(Ratio { median, min: median - 0.25, max: median + 0.25 }),
        target: Some(RowTarget::Ratio(target)),
        verdict: Verdict::of(Some(target.is_met(median))),
        ..named(name)
    }
}

#[test]
fn table_has_the_columns_that_its_rows_need() {
    let rows = [compared("load", 2.0, Target::AtLeast(1.5)), named("explains another row")];
    let text = rows_text(&rows, Style::Markdown);
    let lines: Vec<&str> = text.lines().collect();
    let cells = |line: &str| {
        let cells = line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned());
        cells.collect::<Vec<String>>()
    };
    let header = ["row", "measured", "peer", "unit", "ratio", "rounds", "target", "verdict"];
    assert_eq!(cells(lines[0]), header);
    let first = ["load", "2,000", "1,000", "ops/s", "2.00×", "1.75× – 2.25×", "≥ 1.5×", "reached"];
    assert_eq!(cells(lines[2]), first);
    assert_eq!(cells(lines[3]), ["explains another row", "", "", "", "", "", "", ""]);
}

#[test]
fn missed_target_names_its_cause() {
    let known = Row { cause: "The disk is full.", ..compared("a", 1.0, Target::AtLeast(2.0)) };
    let unknown = compared("b", 1.0, Target::AtLeast(2.0));
    let met = Row { cause: "No reason to tell.", ..compared("c", 3.0, Target::AtLeast(2.0)) };
    let text = rows_text(&[known, unknown, met], Style::Markdown);
    assert!(text.contains("The disk is full.") && text.contains("The cause is not known."));
    assert!(!text.contains("No reason to tell.") && text.contains("**missed**"), "{text}");
}

#[test]
fn rounding_does_not_show_a_miss_as_a_hit() {
    let narrow = compared("narrow", 2.9999, Target::AtLeast(3.0));
    assert!(rows_text(&[narrow], Style::Markdown).contains("| 2.99990× |"));
    let seconds = Row {
        unit: "s",
        decimals: 1,
        measured: Some(20.01),
        target: Some(RowTarget::Measured(Target::AtMost(20.0))),
        verdict: Verdict::Missed,
        ..named("recovery")
    };
    let text = rows_text(&[seconds], Style::Markdown);
    assert!(text.contains("20.0100") && text.contains("≤ 20 s"), "{text}");
}

#[test]
fn worst_figure_is_shown_with_its_bound() {
    let worst = Row {
        unit: "ms",
        decimals: 1,
        measured: Some(8.0),
        target: Some(RowTarget::Worst { at_most: 100.0, worst: 10.4 }),
        verdict: Verdict::Met,
        ..named("longest write")
    };
    let text = rows_text(&[worst], Style::Markdown);
    assert!(text.contains(" 10.4 ") && text.contains("each run ≤ 100 ms"), "{text}");
}

#[test]
fn figures_that_are_no_numbers_are_empty() {
    let ratio = Ratio { median: f64::NAN, min: f64::INFINITY, max: f64::NEG_INFINITY };
    let nothing = Row {
        measured: Some(f64::NAN),
        ratio: Some(ratio),
        verdict: Verdict::Failed,
        ..named("no run")
    };
    let text = rows_text(&[nothing], Style::Markdown);
    assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
    assert!(text.contains("**failed**"), "{text}");
}

#[test]
fn command_line_shows_no_path_of_a_program() {
    let words = ["--before=/a/b", "--quick", "--by_key", "/c/d", "--runs=5"];
    let args: Vec<OsString> = words.iter().map(OsString::from).collect();
    let line = head::command("terark-nodes", &args);
    assert_eq!(
        line,
        "archipelago-lab terark-nodes --before=PROGRAM --quick --by_key=PROGRAM --runs=5"
    );
}

#[test]
fn page_states_commit_command_machine_and_verdict() {
    let words = ["--page", "a.md", "--quick", "--page=x", "--out", "o", "--out=o", "--flags=a b"];
    let args: Vec<OsString> = words.iter().map(OsString::from).collect();
    let section = Section {
        title: "Loads".to_owned(),
        rows: vec![
            compared("a", 1.0, Target::AtLeast(2.0)),
            compared("b", 3.0, Target::AtLeast(2.0)),
        ],
        grids: vec![Grid { header: vec!["x".into()], rows: vec![vec!["7".into()]] }],
        notes: vec!["Smaller than the paper's.".to_owned()],
    };
    let page = Page::new("Archipelago and a peer", "rocksdb", &args);
    let text = page.about("- both sides: 10 keys\n").sections(vec![section]).markdown(None, None);
    let command = "| command | `archipelago-lab rocksdb --quick '--flags=a b'` |";
    for part in [
        "# Archipelago and a peer\n",
        command,
        "| commit | ",
        "| machine | ",
        "\n- both sides: 10 keys\n",
        "\n## Loads\n",
        "Smaller than the paper's.",
        "1 of 2 targets reached.",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(text.ends_with("-->\n") && !text.contains("\n\n\n"), "{text}");
}

#[test]
fn page_keeps_the_prose_around_its_tables() {
    let page = |rows| {
        let section = Section { title: "Loads".to_owned(), rows, ..Section::default() };
        Page::new("Archipelago and a peer", "rocksdb", &[]).sections(vec![section])
    };
    let first = page(vec![named("an old row")]).markdown(None, None);
    let edited = first.replace("For readers who want the figures.", "For readers of this page.");
    let edited = edited + "\nProse below.\n";
    let again = page(vec![named("a new row")]).markdown(Some(&edited), None);
    for part in ["For readers of this page.", "a new row", "Prose below."] {
        assert!(again.contains(part), "{part}: {again}");
    }
    assert!(!again.contains("an old row"), "{again}");
    assert_eq!(again.matches("# Archipelago and a peer").count(), 1, "{again}");
    // The tables follow a page without marks.
    let appended = page(vec![named("a new row")]).markdown(Some("# Title\n"), None);
    assert!(appended.starts_with("# Title\n\n<!-- "), "{appended}");
}

#[test]
fn command_writes_only_the_named_part_of_a_page() {
    let page = |row| {
        let section = Section { rows: vec![named(row)], ..Section::default() };
        Page::new("Two devices", "model", &[]).sections(vec![section])
    };
    let one = page("old ssd").markdown(None, Some("ssd"));
    let both = page("no device").markdown(Some(&one), Some("cores"));
    let again = page("new ssd").markdown(Some(&both), Some("ssd"));
    assert!(again.contains("new ssd") && again.contains("no device"), "{again}");
    assert!(!again.contains("old ssd"), "{again}");
    assert!(again.find("new ssd") < again.find("no device"), "the order stays: {again}");
    let named = |page: &str| {
        let (file, part) = file_and_part(Path::new(page));
        (file.display().to_string(), part)
    };
    assert_eq!(named("docs/a.md#ssd"), ("docs/a.md".to_owned(), Some("ssd".to_owned())));
    assert_eq!(named("docs/a.md"), ("docs/a.md".to_owned(), None));
    assert_eq!(named("c#/a.md"), ("c#/a.md".to_owned(), None));
}

#[test]
fn large_numbers_have_commas() {
    let row = Row { measured: Some(1_234_567.0), peer: Some(-1000.0), ..named("rate") };
    let text = rows_text(&[row], Style::Markdown);
    assert!(text.contains("1,234,567") && text.contains("-1,000"), "{text}");
}

#[test]
fn terminal_draws_lines() {
    let grid = Grid { header: vec!["degree".into()], rows: vec![vec!["8".into()]] };
    assert!(grid.text(Style::Terminal).contains('│'));
    assert!(!grid.text(Style::Markdown).contains('│'));
    assert_eq!(Style::markdown_if(true), Style::Markdown);
}

#[test]
fn dates_are_in_utc() {
    assert_eq!(date(0), "1970-01-01 00:00 UTC");
    assert_eq!(date(951_782_400_000), "2000-02-29 00:00 UTC");
    assert_eq!(date(1_735_689_599_000), "2024-12-31 23:59 UTC");
}
