//! The bytes of a segment under recovery: its file, and the end of it that the file system kept
//! elsewhere (a ring that had not been drained).
//!
//! There are two views of one segment: the file alone, and the file followed by the kept tail from
//! the tail's offset on. After `kill -9` the second view is complete. After power loss either view
//! may have bytes that the other lost, and checksums decide record by record.
//!
//! Cost: the file is read once, front to back, in windows of 1 MiB (larger for a larger record).

use std::path::Path;
use std::sync::Arc;

use archipelago_base::{Error, Result};
use archipelago_env::{
    FileClass, FileSystem, IoContext, IoPurpose, LogTail, OpenOptions, RandomFile,
};

const WINDOW_BYTES: u64 = 1 << 20;

/// One of the two views of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum View {
    File,
    Stitched,
}

#[derive(Debug)]
pub(super) struct Source {
    file: Arc<dyn RandomFile>,
    tail: Option<LogTail>,
    window: Vec<u8>,
    window_start: u64,
    joint: Vec<u8>,
}

impl Source {
    pub(super) fn open(fs: &dyn FileSystem, path: &Path) -> Result<Self> {
        let context = IoContext::new(FileClass::Wal, IoPurpose::Recovery);
        let file = fs.open(path, context, OpenOptions::default())?;
        Ok(Self { file, tail: None, window: Vec::new(), window_start: 0, joint: Vec::new() })
    }

    pub(super) fn set_tail(&mut self, tail: Option<LogTail>) {
        self.tail = tail;
    }

    pub(super) fn views(&self) -> &'static [View] {
        if self.tail.is_some() { &[View::File, View::Stitched] } else { &[View::File] }
    }

    pub(super) fn file_len(&self) -> u64 {
        self.file.len()
    }

    /// Length of the view in bytes.
    pub(super) fn len(&self, view: View) -> u64 {
        match (view, &self.tail) {
            (View::Stitched, Some(tail)) => tail.offset.saturating_add(tail.bytes.len() as u64),
            _ => self.file.len(),
        }
    }

    /// The `len` bytes at `offset`; `None` if the view does not have all of them.
    pub(super) fn get(&mut self, view: View, offset: u64, len: u64) -> Result<Option<&[u8]>> {
        let Some(end) = offset.checked_add(len) else { return Ok(None) };
        if end > self.len(view) {
            return Ok(None);
        }
        let tail_start = match (view, &self.tail) {
            (View::Stitched, Some(tail)) => tail.offset,
            _ => end,
        };
        if end <= tail_start {
            return self.read_file(offset, len);
        }
        if offset < tail_start {
            let Some(head) = self.read_file(offset, tail_start - offset)? else {
                return Ok(None);
            };
            let mut joint = head.to_vec();
            let tail = self.tail.as_ref().map_or(&[][..], |tail| &tail.bytes);
            joint.extend_from_slice(&tail[..(end - tail_start) as usize]);
            self.joint = joint;
            return Ok(Some(&self.joint));
        }
        let from = (offset - tail_start) as usize;
        Ok(self.tail.as_ref().and_then(|tail| tail.bytes.get(from..from + len as usize)))
    }

    fn read_file(&mut self, offset: u64, len: u64) -> Result<Option<&[u8]>> {
        let file_len = self.file.len();
        let end = offset + len;
        if end > file_len {
            return Ok(None);
        }
        let window_end = self.window_start + self.window.len() as u64;
        if offset < self.window_start || end > window_end {
            let take = len.max(WINDOW_BYTES).min(file_len - offset);
            let take = usize::try_from(take)
                .map_err(|_| Error::unsupported("a log record larger than the address space"))?;
            self.window.clear();
            self.window.resize(take, 0);
            let context = IoContext::new(FileClass::Wal, IoPurpose::Recovery);
            self.file.read_exact_at(offset, &mut self.window, context)?;
            self.window_start = offset;
        }
        let from = (offset - self.window_start) as usize;
        Ok(Some(&self.window[from..from + len as usize]))
    }
}
