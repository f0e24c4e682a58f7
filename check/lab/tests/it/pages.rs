//! The pages of `docs/benchmarks/`, as they stand in the repository.

use std::path::PathBuf;

const BEGIN: &str = "<!-- archipelago-lab writes the following part";
const END: &str = "<!-- archipelago-lab wrote the part above. -->";

/// The parts of all pages that commands write, with the names of their pages.
fn parts() -> Vec<(String, String)> {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/benchmarks");
    let mut parts = Vec::new();
    for entry in std::fs::read_dir(dir).expect("a folder of pages") {
        let path = entry.expect("readable").path();
        let text = std::fs::read_to_string(&path).expect("a page");
        let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
        for part in text.split(BEGIN).skip(1) {
            let (part, _) = part.split_once(END).expect("each part ends with its mark");
            parts.push((name.clone(), part.to_owned()));
        }
    }
    parts
}

fn cells(line: &str) -> Vec<&str> {
    line.trim_matches('|').split('|').map(str::trim).collect()
}

#[test]
fn every_written_part_names_its_commit_and_command() {
    let parts = parts();
    let mut pages: Vec<&str> = parts.iter().map(|(page, _)| page.as_str()).collect();
    pages.sort_unstable();
    pages.dedup();
    assert_eq!(
        pages,
        ["bucketlsm", "flexkv", "keigo", "model", "o3", "rocksdb", "terark-engine", "terark-nodes"]
    );
    for (page, part) in &parts {
        for fact in ["\n| commit", "\n| command | "] {
            assert!(part.contains(fact), "{page} does not state {fact:?}");
        }
    }
}

#[test]
fn a_measured_cell_holds_one_figure() {
    let is_figure = |word: &str| {
        let digits = word.trim_start_matches(['≥', '≤', '−', '-']);
        digits.starts_with(|first: char| first.is_ascii_digit())
    };
    for (page, part) in parts() {
        // The head has two columns without names. Statements of papers are quoted in full.
        let (mut header, mut checked) = (Vec::new(), 0);
        for line in part.lines() {
            if !line.starts_with('|') {
                header.clear();
                continue;
            }
            if header.is_empty() {
                header = cells(line);
                continue;
            }
            for (name, cell) in header.iter().zip(cells(line)) {
                let measured = !name.is_empty() && !name.contains("paper") && *name != "cause";
                let words: Vec<&str> = cell.split_whitespace().collect();
                let pair = words.windows(3).find(|three| {
                    is_figure(three[0]) && ["/", "→"].contains(&three[1]) && is_figure(three[2])
                });
                assert!(!measured || pair.is_none(), "{page}, column {name}: {cell}");
                checked += 1;
            }
        }
        assert!(checked > 0, "{page} has tables");
    }
}
