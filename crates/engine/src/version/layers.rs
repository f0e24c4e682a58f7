//! Counts the layers of L0 files over each other, which a read has to search and which triggers and
//! stalls count.
//!
//! BucketLSM (§V-B, §V-D) counts the files of a bucket. While a split is being prepared, a memtable
//! leaves several files in a bucket, next to each other. Counted one by one, they would make the
//! bucket urgent, and writers slow, although its split is near. So files are counted as layers.
//! Their number is the larger of two:
//!
//! - *depth*: the largest number of files that may hold one key;
//! - *runs*: the number of groups, if files with interleaving sequence numbers count once. Such
//!   files come from the same memtables. Keys that arrive in order make files that never overlap:
//!   these count one by one, as in the paper.
//!
//! If every memtable left one file over the whole bucket, layers are files. [`rows`] joins the
//! parts of a memtable again, for merges.
//! Cost: O(files) if all of them share a key, else O(files · log files).

use std::sync::Arc;

use crate::file_meta::FileMeta;
use crate::live_file::LiveFile;

/// Number of layers of `files`, which are L0 files of one bucket, newest first.
#[must_use]
pub fn layers(files: &[Arc<LiveFile>]) -> usize {
    if files.len() <= 1 || all_share_a_key(files) {
        return files.len();
    }
    runs(files).max(depth(files))
}

/// Distributes `files` over the fewest rows of files that share no key, each in key order. A merge
/// of a bucket then has a cursor for each row and not for each part of a memtable. The rows have
/// the order of their first files.
#[must_use]
pub fn rows<T>(mut files: Vec<T>, meta: impl Fn(&T) -> &FileMeta) -> Vec<Vec<T>> {
    files.sort_by(|a, b| meta(a).smallest.cmp(&meta(b).smallest));
    let mut rows: Vec<Vec<T>> = Vec::new();
    for file in files {
        let start = &meta(&file).smallest;
        let is_free =
            |row: &&mut Vec<T>| row.last().is_none_or(|last| meta(last).ends_before(start));
        match rows.iter_mut().find(is_free) {
            Some(row) => row.push(file),
            None => rows.push(vec![file]),
        }
    }
    rows
}

fn all_share_a_key(files: &[Arc<LiveFile>]) -> bool {
    let start = files.iter().map(|file| file.smallest.as_slice()).max();
    start.is_some_and(|start| files.iter().all(|file| !file.ends_before(start)))
}

/// Number of groups of files with interleaved sequence numbers.
fn runs(files: &[Arc<LiveFile>]) -> usize {
    let mut runs = 0;
    let mut oldest = u64::MAX;
    for file in files {
        if file.largest_seq < oldest {
            runs += 1;
        }
        oldest = if file.largest_seq < oldest {
            file.smallest_seq
        } else {
            oldest.min(file.smallest_seq)
        };
    }
    runs
}

/// Largest number of files that may hold one key. It occurs at the first key of one of them.
fn depth(files: &[Arc<LiveFile>]) -> usize {
    let mut starts: Vec<&[u8]> = files.iter().map(|file| file.smallest.as_slice()).collect();
    // A file covers the keys up to its largest, with it or without it.
    let mut ends: Vec<(&[u8], bool)> =
        files.iter().map(|file| (file.largest.as_slice(), !file.largest_exclusive)).collect();
    starts.sort_unstable();
    ends.sort_unstable();
    let mut ended = 0;
    let mut most = 0;
    for (begun, start) in (1..).zip(starts) {
        while ends.get(ended).is_some_and(|&end| end < (start, true)) {
            ended += 1;
        }
        most = most.max(begun - ended);
    }
    most
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::live_file::LiveFile;
    use crate::version::tests::meta;

    /// Files of first and last key and sequence numbers, newest first.
    fn files(of: &[(&str, &str, u64, u64)]) -> Vec<Arc<LiveFile>> {
        (1..)
            .zip(of)
            .map(|(no, &(first, last, from, to))| {
                LiveFile::new(
                    meta(no, first.as_bytes(), last.as_bytes(), (from, to)),
                    Arc::default(),
                )
            })
            .collect()
    }

    #[test]
    fn files_that_lie_over_each_other_count_one_by_one() {
        assert_eq!(layers(&[]), 0);
        assert_eq!(layers(&files(&[("a", "z", 20, 29), ("b", "y", 10, 19), ("c", "x", 0, 9)])), 3);
        // The same memtables, but deep in one place: by depth.
        let chained =
            files(&[("a", "m", 10, 29), ("n", "z", 20, 29), ("n", "z", 10, 19), ("n", "y", 0, 9)]);
        assert_eq!(layers(&chained), 3);
    }

    #[test]
    fn parts_of_a_memtable_count_once() {
        let parts =
            files(&[("m", "z", 11, 19), ("a", "l", 10, 18), ("m", "z", 1, 9), ("a", "l", 0, 8)]);
        assert_eq!(layers(&parts), 2);
        let in_order = files(&[("m", "z", 20, 29), ("g", "l", 10, 19), ("a", "f", 0, 9)]);
        assert_eq!(layers(&in_order), 3);
    }

    #[test]
    fn files_that_share_no_key_make_one_row() {
        let two = files(&[
            ("m", "z", 11, 19),
            ("a", "l", 10, 18),
            ("m", "p", 1, 9),
            ("q", "z", 1, 9),
            ("a", "l", 0, 8),
        ]);
        let two = rows(two, |file| file.meta());
        let starts: Vec<Vec<&[u8]>> =
            two.iter().map(|row| row.iter().map(|file| &*file.smallest).collect()).collect();
        assert_eq!(starts, [vec![&b"a"[..], b"m"], vec![b"a", b"m", b"q"]]);
        let touching = files(&[("f", "k", 1, 2), ("k", "z", 1, 2)]);
        let touching = rows(touching, |file| file.meta());
        assert_eq!(touching.len(), 2, "a row holds each key once");
    }

    #[test]
    fn a_file_ends_with_its_last_key() {
        let touching = files(&[("f", "k", 10, 30), ("a", "f", 5, 20), ("k", "z", 0, 28)]);
        assert_eq!(depth(&touching), 2);
        assert_eq!(runs(&touching), 1);
    }
}
