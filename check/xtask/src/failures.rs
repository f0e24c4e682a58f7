//! The failures in the output of a test run. The end of `cargo xtask check` repeats them, because
//! thousands of lines may follow a failed test, and a log often keeps only the last lines.
//!
//! The test runner prints the failures of each program twice, after all of its tests: first with
//! their outputs, and then as a list of names. Both parts begin with the line `failures:`, and the
//! result of the program follows them.

/// Limit of the lines that are kept of the outputs of one program's tests.
const OUTPUT_LINES_MAX: usize = 100;

const START: &str = "running ";
const HEADING: &str = "failures:";
const RESULT: &str = "test result: FAILED";

/// The failures that were printed up to now.
#[derive(Debug, Default)]
pub(crate) struct Failures {
    /// Lines of all programs that have ended.
    lines: Vec<String>,
    /// Lines of the program whose failures are being printed.
    current: Vec<String>,
}

impl Failures {
    /// Takes the next line of the output.
    pub(crate) fn read_line(&mut self, line: &str) {
        if line.starts_with(START) {
            // The program before was killed while it printed its failures.
            self.end_program();
        }
        if self.current.is_empty() && line != HEADING {
            return;
        }
        self.current.push(line.to_owned());
        if line.starts_with(RESULT) {
            self.end_program();
        }
    }

    /// All failures, in the order of the output.
    pub(crate) fn into_lines(mut self) -> Vec<String> {
        self.end_program();
        self.lines
    }

    /// Keeps the failures of a program: the first lines of the outputs, and all names.
    fn end_program(&mut self) {
        let program = std::mem::take(&mut self.current);
        let last = program.iter().rposition(|line| line == HEADING).filter(|&at| at > 0);
        let (outputs, names) = program.split_at(last.unwrap_or(program.len()));
        self.lines.extend(outputs.iter().take(OUTPUT_LINES_MAX).cloned());
        if let Some(more) = outputs.len().checked_sub(OUTPUT_LINES_MAX).filter(|&more| more > 0) {
            self.lines.push(format!("({more} lines more are in the output above)"));
        }
        self.lines.extend_from_slice(names);
    }
}

#[cfg(test)]
mod tests {
    use super::{Failures, OUTPUT_LINES_MAX};

    fn failures_of(output: &str) -> Vec<String> {
        let mut failures = Failures::default();
        output.lines().for_each(|line| failures.read_line(line));
        failures.into_lines()
    }

    #[test]
    fn failures_of_all_programs_are_found() {
        let output = "running 2 tests\n\
            test reef ... FAILED\n\
            test isle ... ok\n\
            \n\
            failures:\n\
            \n\
            ---- reef stdout ----\n\
            thread 'reef' panicked at src/lib.rs:7:5\n\
            \n\
            failures:\n    reef\n\
            \n\
            test result: FAILED. 1 passed; 1 failed; 0 ignored\n\
            running 1 test\n\
            test result: ok. 1 passed; 0 failed; 0 ignored\n\
            failures:\n\
            failures:\n    cove\n\
            test result: FAILED. 0 passed; 1 failed; 0 ignored\n\
            all doctests ran in 0.68s";
        let found = failures_of(output);
        assert_eq!(found.len(), 13);
        assert!(found.contains(&"---- reef stdout ----".to_owned()));
        assert!(found.contains(&"    reef".to_owned()) && found.contains(&"    cove".to_owned()));
        assert!(!found.iter().any(|line| line.contains("isle") || line.contains("doctests")));
    }

    #[test]
    fn long_outputs_are_cut_and_names_are_kept() {
        let long = "noise\n".repeat(OUTPUT_LINES_MAX + 9);
        let names = "failures:\n    reef\ntest result: FAILED";
        let found = failures_of(&format!("failures:\n{long}{names}"));
        assert_eq!(found.len(), OUTPUT_LINES_MAX + 4);
        assert!(found[OUTPUT_LINES_MAX].starts_with("(10 lines more"));
        assert_eq!(found[OUTPUT_LINES_MAX + 2], "    reef");
        // A program that is killed prints no result.
        let killed = failures_of("failures:\n    reef\nrunning 1 test\ntest isle ... ok");
        assert_eq!(killed, ["failures:", "    reef"]);
        assert!(failures_of("test reef ... ok\ntest result: ok").is_empty());
    }
}
