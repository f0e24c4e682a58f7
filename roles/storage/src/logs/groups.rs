//! Reads the groups of one part in order, and checks them.
//!
//! A restarted node finds the end of its open extents with a [`GroupReader`], and every read of log
//! bytes goes through one. After a kill some bytes may lie in the kept tail of the file system
//! ([`LogTail`]) and not in the file. The reader tries the file first, and then both together,
//! because the tail may be older than the file after power loss.
//!
//! Invariants:
//! 1. A group is returned only if its checksum holds in its place.
//! 2. Groups are returned in order and without gaps.
//!
//! Thread-safety: none; the caller owns the reader.
//! Failure: errors of the file are returned. Bytes that are no group end the part ([`GroupStep`]).
//! Cost: one read per 256 KiB, and a copy of the bytes in the window. A group that looks torn, with
//! the kept tail if there is one, is read once more as a whole, because its length may have rotted.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use archipelago_base::{ErrorKind, Result};
use archipelago_env::{FileSystem, IoContext, LogTail, OpenOptions, RandomFile};
use archipelago_store::nodes::wire::ExtentAt;

use super::format::{BadHeader, GROUP_HEADER_BYTES, GroupHeader, HEADER_BYTES, PartHeader};

/// Bytes of one read of the file.
const WINDOW_BYTES: u64 = 256 << 10;

/// Sources from which a reader takes the bytes of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum View {
    /// The bytes of the file.
    File,
    /// The bytes of the kept tail from its offset on, and those of the file before.
    Stitched,
}

/// The bytes of a part: its file, and the tail that the file system kept of it.
#[derive(Debug)]
pub(crate) struct PartSource {
    /// The file; `None` if it does not exist.
    file: Option<Arc<dyn RandomFile>>,
    tail: Option<LogTail>,
    context: IoContext,
}

impl PartSource {
    /// The file at `path` alone, for a part that this process writes or that was settled.
    pub(crate) fn open(fs: &dyn FileSystem, path: &Path, context: IoContext) -> Result<Self> {
        let file = match fs.open(path, context, OpenOptions::default()) {
            Ok(file) => Some(file),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        Ok(Self { file, tail: None, context })
    }

    /// The same part with the bytes that the file system kept for it.
    pub(crate) fn with_tail(self, tail: Option<LogTail>) -> Self {
        Self { tail, ..self }
    }

    /// The header of the part. The inner error is the reason why there is none.
    pub(crate) fn header(&self) -> Result<Result<PartHeader, BadHeader>> {
        let mut bytes = [0; HEADER_BYTES];
        let mut found = Err(BadHeader::Damaged);
        for view in self.views() {
            if self.end(view) >= HEADER_BYTES as u64 {
                self.fill(view, 0, &mut bytes)?;
                found = PartHeader::decode(&bytes);
                if found.is_ok() {
                    break;
                }
            }
        }
        Ok(found)
    }

    /// The view whose answer counts if no view has a group.
    fn last_view(&self) -> View {
        if self.tail.is_some() { View::Stitched } else { View::File }
    }

    fn views(&self) -> impl Iterator<Item = View> + use<> {
        let stitched = self.tail.as_ref().map(|_| View::Stitched);
        [Some(View::File), stitched].into_iter().flatten()
    }

    fn end(&self, view: View) -> u64 {
        let file = self.file.as_ref().map_or(0, |file| file.len());
        match (view, &self.tail) {
            // If the file ends before the tail begins, bytes between them are missing, so the tail
            // is of no use.
            (View::Stitched, Some(tail)) if tail.offset <= file => {
                tail.offset + tail.bytes.len() as u64
            }
            _ => file,
        }
    }

    /// Fills `buf` from `offset`. The range ends before [`Self::end`].
    fn fill(&self, view: View, offset: u64, buf: &mut [u8]) -> Result<()> {
        let end = offset + buf.len() as u64;
        let from_tail = match (view, &self.tail) {
            (View::Stitched, Some(tail)) if tail.offset < end => Some(tail),
            _ => None,
        };
        let file_end = from_tail.map_or(end, |tail| tail.offset.max(offset));
        let (head, rest) = buf.split_at_mut((file_end - offset) as usize);
        if let (Some(file), false) = (&self.file, head.is_empty()) {
            file.read_exact_at(offset, head, self.context)?;
        }
        if let Some(tail) = from_tail {
            let start = (file_end - tail.offset) as usize;
            rest.copy_from_slice(&tail.bytes[start..start + rest.len()]);
        }
        Ok(())
    }
}

/// A place in a part at which a group begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GroupPlace {
    /// Offset in the log.
    pub(crate) log: u64,
    /// Offset in the file.
    pub(crate) file: u64,
}

impl GroupPlace {
    /// The place of the first group of a part that starts at `start`.
    pub(crate) fn first(start: u64) -> Self {
        Self { log: start, file: HEADER_BYTES as u64 }
    }
}

/// Next item that a reader finds in a part.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum GroupStep<'a> {
    /// A group with a valid checksum.
    Group {
        /// Place at which the group begins.
        place: GroupPlace,
        /// Bytes of the log.
        bytes: &'a [u8],
        /// Range in the file if the file does not have the group, and only the kept tail does.
        in_tail: Option<Range<u64>>,
    },
    /// The end of the written bytes.
    End,
    /// A group whose append did not return, because the process was killed.
    Torn,
    /// Bytes that are no group, and that a kill of the process cannot have left.
    Damaged,
}

/// Reason for which there is no group in a view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NoGroup {
    End,
    Torn,
    Damaged,
}

/// Reads the groups of a part.
#[derive(Debug)]
pub(crate) struct GroupReader<'a> {
    source: &'a PartSource,
    at: ExtentAt,
    next: GroupPlace,
    window: Vec<u8>,
    window_start: u64,
    window_view: View,
    ignores_checksums: bool,
}

impl<'a> GroupReader<'a> {
    /// A reader of the part `source` of the extent `at`, whose first group is at `from`.
    pub(crate) fn new(source: &'a PartSource, at: ExtentAt, from: GroupPlace) -> Self {
        Self {
            source,
            at,
            next: from,
            window: Vec::new(),
            window_start: 0,
            window_view: View::File,
            ignores_checksums: false,
        }
    }

    /// The same reader, which checks nothing if `ignores` is set: a fault that a checker notices.
    pub(crate) fn ignoring_checksums(self, ignores: bool) -> Self {
        Self { ignores_checksums: ignores, ..self }
    }

    /// The place behind the last group that was returned.
    pub(crate) fn place(&self) -> GroupPlace {
        self.next
    }

    /// The next group.
    pub(crate) fn step(&mut self) -> Result<GroupStep<'_>> {
        let mut found = Err(NoGroup::End);
        let mut in_tail = false;
        for view in self.source.views() {
            found = self.check(view)?;
            in_tail = view == View::Stitched;
            if found.is_ok() {
                break;
            }
        }
        let len = match found {
            Ok(len) => len,
            Err(NoGroup::End) => return Ok(GroupStep::End),
            Err(NoGroup::Torn) => return Ok(GroupStep::Torn),
            Err(NoGroup::Damaged) => return Ok(GroupStep::Damaged),
        };
        let place = self.next;
        let first = place.file + GROUP_HEADER_BYTES as u64;
        self.next = GroupPlace { log: place.log + len, file: first + len };
        let bytes = self.in_window(first, len);
        let in_tail = in_tail.then_some(place.file..first + len);
        Ok(GroupStep::Group { place, bytes: &self.window[bytes], in_tail })
    }

    /// Loads and checks the next group of a view. Returns its length.
    fn check(&mut self, view: View) -> Result<Result<u64, NoGroup>> {
        let at = self.next.file;
        let remaining = self.source.end(view).saturating_sub(at);
        let header_bytes = GROUP_HEADER_BYTES as u64;
        if remaining < header_bytes {
            return Ok(Err(if remaining == 0 { NoGroup::End } else { NoGroup::Torn }));
        }
        self.load(view, at, header_bytes)?;
        let mut header = [0; GROUP_HEADER_BYTES];
        header.copy_from_slice(&self.window[self.in_window(at, header_bytes)]);
        let header = GroupHeader::decode(header);
        if header.is_unwritten() {
            return Ok(Err(NoGroup::End));
        }
        if !header.has_plausible_length() {
            return Ok(Err(NoGroup::Damaged));
        }
        let len = u64::from(header.len);
        if self.next.log.checked_add(len).is_none() {
            // No log has bytes at such an offset, so a length or an offset is damaged.
            return Ok(Err(NoGroup::Damaged));
        }
        if remaining - header_bytes < len {
            if view != self.source.last_view() {
                return Ok(Err(NoGroup::Torn));
            }
            self.load(view, at, remaining)?;
            let rest = &self.window[self.in_window(at + header_bytes, remaining - header_bytes)];
            let is_whole = header.has_rotten_length(self.at, self.next.log, rest);
            return Ok(Err(if is_whole { NoGroup::Damaged } else { NoGroup::Torn }));
        }
        self.load(view, at, header_bytes + len)?;
        let bytes = &self.window[self.in_window(at + header_bytes, len)];
        let is_valid = self.ignores_checksums || header.matches(self.at, self.next.log, bytes);
        Ok(if is_valid { Ok(len) } else { Err(NoGroup::Damaged) })
    }

    /// Makes the window cover `len` bytes at `at`, which the view has.
    fn load(&mut self, view: View, at: u64, len: u64) -> Result<()> {
        let end = self.window_start + self.window.len() as u64;
        if self.window_view == view && at >= self.window_start && at + len <= end {
            return Ok(());
        }
        let wanted = len.max(WINDOW_BYTES.min(self.source.end(view) - at));
        self.window.clear();
        self.window.resize(wanted as usize, 0);
        (self.window_start, self.window_view) = (at, view);
        self.source.fill(view, at, &mut self.window)
    }

    fn in_window(&self, at: u64, len: u64) -> Range<usize> {
        let start = (at - self.window_start) as usize;
        start..start + len as usize
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use archipelago_env::IoPurpose;
    use archipelago_store::LogId;

    use super::*;

    const AT: ExtentAt = ExtentAt { log: LogId([1; 16]), extent: 1 };
    const START: u64 = 1000;

    /// A file that counts the bytes of its reads.
    #[derive(Debug)]
    struct CountedFile {
        bytes: Vec<u8>,
        read_bytes: AtomicU64,
    }

    impl RandomFile for CountedFile {
        fn read_exact_at(&self, offset: u64, buf: &mut [u8], _context: IoContext) -> Result<()> {
            buf.copy_from_slice(&self.bytes[offset as usize..][..buf.len()]);
            self.read_bytes.fetch_add(buf.len() as u64, Ordering::Relaxed);
            Ok(())
        }

        fn len(&self) -> u64 {
            self.bytes.len() as u64
        }
    }

    /// A part with one group that is longer than a window.
    fn part() -> Vec<u8> {
        let bytes = vec![7u8; WINDOW_BYTES as usize + 50_000];
        let header = GroupHeader::new(AT, START, &bytes).encode();
        [&[0; HEADER_BYTES][..], &header[..], &bytes[..]].concat()
    }

    /// The part whose file has the first `file_bytes`, and whose tail has those from `tail_at` on.
    fn source(part: &[u8], file_bytes: usize, tail_at: usize) -> (PartSource, Arc<CountedFile>) {
        let (bytes, read_bytes) = (part[..file_bytes].to_vec(), AtomicU64::new(0));
        let file = Arc::new(CountedFile { bytes, read_bytes });
        let tail = LogTail { offset: tail_at as u64, bytes: part[tail_at..].to_vec() };
        let context = IoContext::manifest(IoPurpose::Recovery);
        let shared: Arc<dyn RandomFile> = Arc::<CountedFile>::clone(&file);
        (PartSource { file: Some(shared), tail: Some(tail), context }, file)
    }

    #[test]
    fn group_that_only_the_file_lacks_is_read_once() {
        let (part, tail_at) = (part(), HEADER_BYTES + GROUP_HEADER_BYTES + 1000);
        let (source, file) = source(&part, part.len() - 1, tail_at);
        let mut reader = GroupReader::new(&source, AT, GroupPlace::first(START));
        let step = reader.step().expect("no device");
        assert!(matches!(step, GroupStep::Group { in_tail: Some(_), .. }));
        assert!(file.read_bytes.load(Ordering::Relaxed) < file.len());
    }

    #[test]
    fn rotten_length_is_found_in_the_last_view() {
        let tail_at = HEADER_BYTES + GROUP_HEADER_BYTES + 1000;
        for (lost, expected) in [(0, GroupStep::Damaged), (1, GroupStep::Torn)] {
            let mut part = part();
            part[HEADER_BYTES + 2] ^= 0x40;
            part.truncate(part.len() - lost);
            for file_bytes in [part.len(), part.len() - 10] {
                let (source, _) = source(&part, file_bytes, tail_at);
                let mut reader = GroupReader::new(&source, AT, GroupPlace::first(START));
                let step = reader.step().expect("no device");
                assert_eq!(step, expected, "{lost} bytes are missing");
            }
        }
    }
}
