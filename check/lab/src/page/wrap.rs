//! Wraps Markdown prose at the width that the checks of pages allow. The functions are pure.

/// Columns of a line of prose.
const COLUMNS: usize = 100;

/// `text` with each longer line wrapped at spaces. Tables and blank lines stay.
pub(super) fn wrapped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for line in text.lines() {
        if line.starts_with('|') {
            out += line;
        } else {
            wrap_line(line, &mut out);
        }
        out.push('\n');
    }
    out.truncate(out.trim_end().len());
    out
}

fn wrap_line(line: &str, out: &mut String) {
    let text = line.trim_start_matches(' ');
    let before = &line[..line.len() - text.len()];
    // The further lines of a list's item are indented like its text.
    let indent = format!("{before}{}", if text.starts_with("- ") { "  " } else { "" });
    *out += before;
    let mut columns = 0;
    for word in text.split(' ') {
        let width = word.chars().count();
        if columns > 0 && columns + 1 + width > COLUMNS {
            out.push('\n');
            *out += &indent;
            columns = indent.len();
        } else if columns > 0 {
            out.push(' ');
            columns += 1;
        }
        if columns == 0 {
            columns = before.len();
        }
        *out += word;
        columns += width;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lines_are_wrapped_and_tables_stay() {
        let word = "coral";
        let long = [word; 40].join(" ");
        let text = wrapped(&format!("{long}\n\n- {long}\n| {long} |\nshort"));
        let is_prose = |line: &&str| !line.starts_with('|');
        assert!(text.lines().filter(is_prose).all(|line| line.chars().count() <= COLUMNS));
        assert!(text.contains(&format!("| {long} |\nshort")), "{text}");
        assert_eq!(text.matches("\n  coral").count(), 2, "an item has three lines: {text}");
        assert_eq!(text.matches(word).count(), 120);
    }

    #[test]
    fn items_of_an_inner_list_keep_their_indentation() {
        let long = ["coral"; 30].join(" ");
        let text = wrapped(&format!("- outer\n  - {long}"));
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[1].starts_with("  - coral"), "{text}");
        assert!(lines[2..].iter().all(|line| line.starts_with("    coral")), "{text}");
        assert!(lines.iter().all(|line| line.chars().count() <= COLUMNS));
    }
}
