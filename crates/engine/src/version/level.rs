//! One sorted level: files that share no key, and a search that touches one of them.
//!
//! Invariants:
//! 1. Files are sorted by their smallest key.
//! 2. A file's content ends before the next file's smallest key ([`FileMeta::ends_before`]).
//!
//! A level is immutable. All versions between which it did not change share it. The search of a key
//! first goes through a dense array of eight-byte *fences*: each file's largest key past the prefix
//! that all of them share. So it misses the cache once or twice instead of twice per step. Only
//! files whose fence equals the key's are compared by key. A search allocates nothing.

use std::sync::Arc;

use archipelago_base::Result;

use crate::file_meta::FileMeta;
use crate::key::KeyRange;
use crate::live_file::LiveFile;
use crate::version::{compensated_bytes, impossible, total_bytes};

/// The files of one level below L0, sorted, with their fences.
#[derive(Debug, Default)]
pub struct Level {
    files: Vec<Arc<LiveFile>>,
    /// For each file, the eight bytes of its largest key past the shared prefix, zero-padded.
    fences: Vec<u64>,
    /// Length of the prefix that all largest keys share; its bytes are those of any file.
    shared: usize,
    bytes: u64,
    compensated_bytes: u64,
}

/// The first eight bytes as a big-endian number, zero-padded. Different numbers order like the
/// bytes.
fn fence(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    let len = bytes.len().min(8);
    word[..len].copy_from_slice(&bytes[..len]);
    u64::from_be_bytes(word)
}

impl Level {
    /// A level of `files`, in any order. `Corrupt` if two of them overlap.
    pub fn new(mut files: Vec<Arc<LiveFile>>) -> Result<Self> {
        files.sort_by(|a, b| a.smallest.cmp(&b.smallest));
        for pair in files.windows(2) {
            if !pair[0].ends_before(&pair[1].smallest) {
                return Err(impossible(format!(
                    "files {} and {} of one level overlap at \"{}\"",
                    pair[0].no,
                    pair[1].no,
                    pair[1].smallest.escape_ascii()
                )));
            }
        }
        let shared = match (files.first(), files.last()) {
            (Some(first), Some(last)) => {
                first.largest.iter().zip(&last.largest).take_while(|(a, b)| a == b).count()
            }
            _ => 0,
        };
        let fences = files.iter().map(|file| fence(&file.largest[shared..])).collect();
        let bytes = total_bytes(&files);
        let compensated_bytes = compensated_bytes(&files);
        Ok(Self { files, fences, shared, bytes, compensated_bytes })
    }

    /// The files, sorted by key.
    #[must_use]
    pub fn files(&self) -> &[Arc<LiveFile>] {
        &self.files
    }

    /// Length of all files in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Length of all files and of the separated values that they reference, in bytes.
    #[must_use]
    pub fn compensated_bytes(&self) -> u64 {
        self.compensated_bytes
    }

    /// Index of the first file that does not end before `key`; the number of files if all do.
    #[inline]
    #[must_use]
    pub fn position(&self, key: &[u8]) -> usize {
        let Some(first) = self.files.first() else { return 0 };
        let prefix = &first.largest[..self.shared];
        let head = &key[..self.shared.min(key.len())];
        match head.cmp(&prefix[..head.len()]) {
            std::cmp::Ordering::Less => return 0,
            std::cmp::Ordering::Greater => return self.files.len(),
            // A proper prefix of the shared prefix is before every largest key.
            std::cmp::Ordering::Equal if head.len() < self.shared => return 0,
            std::cmp::Ordering::Equal => {}
        }
        let target = fence(&key[self.shared..]);
        let from = self.fences.partition_point(|&fence| fence < target);
        if self.fences.get(from) != Some(&target) {
            return from;
        }
        let equal = self.fences[from..].partition_point(|&fence| fence == target);
        let ties = &self.files[from..from + equal];
        from + ties.partition_point(|file| file.ends_before(key))
    }

    /// The file that may say something about `key`.
    #[inline]
    #[must_use]
    pub fn file_for(&self, key: &[u8]) -> Option<&Arc<LiveFile>> {
        self.files.get(self.position(key)).filter(|file| file.smallest.as_slice() <= key)
    }

    /// The files that may say something about a key of `range`.
    #[must_use]
    pub fn overlapping(&self, range: &KeyRange) -> &[Arc<LiveFile>] {
        if range.is_empty() {
            return &[];
        }
        let from = self.position(&range.start);
        let to = match &range.end {
            None => self.files.len(),
            Some(end) => from + self.files[from..].partition_point(|file| file.smallest < *end),
        };
        &self.files[from..to]
    }

    /// The files that may say something about a key that `meta`'s bounds hold.
    #[must_use]
    pub fn overlapping_file(&self, meta: &FileMeta) -> &[Arc<LiveFile>] {
        let from = self.position(&meta.smallest);
        let to =
            from + self.files[from..].partition_point(|file| !meta.ends_before(&file.smallest));
        &self.files[from..to]
    }
}
