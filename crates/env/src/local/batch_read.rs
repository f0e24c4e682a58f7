//! Batch reads: several reads of one file that are in flight together, with io_uring.
//!
//! Direct reads have no readahead. A batch that is read one piece after the other keeps one request
//! at a device that could take many. Each thread that reads batches has a small ring, which its
//! first batch creates. Single reads do not use it, because they cost one system call with or
//! without it. If the kernel gives no ring (too old, switched off, forbidden to containers),
//! [`read`] returns `None`, and the caller reads piece by piece.
//!
//! Invariants:
//! 1. [`read`] returns only when nothing of the batch is in flight, whatever failed, because the
//!    kernel writes into the buffer until then.
//! 2. At most [`DEPTH`] reads are in flight.
//!
//! Thread-safety: a ring belongs to its thread. Failure: each read fails separately. A ring that
//! cannot be entered is dropped, and the reads that it had not taken count as failed. Cost: one
//! system call per batch, and a descriptor and about 8 KiB per thread that reads batches.

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::sync::Once;

use io_uring::{IoUring, opcode, types};

/// Limit of the reads in flight.
const DEPTH: usize = 32;

/// A range of a file, and its place in the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) offset: u64,
    pub(super) at: usize,
    pub(super) len: usize,
}

enum Ring {
    Untried,
    Missing,
    Ready(Box<IoUring>),
}

thread_local!(static RING: RefCell<Ring> = const { RefCell::new(Ring::Untried) });

fn note_missing(error: &io::Error) {
    static NOTED: Once = Once::new();
    NOTED.call_once(|| tracing::info!(%error, "no io_uring here: batches are read piece by piece"));
}

/// Reads the spans of `file` into `buffer`. Returns the number of bytes of each span, or `None` if
/// there is no ring and nothing was read. Panics if a span does not lie in the buffer.
pub(super) fn read(
    file: &File,
    buffer: &mut [u8],
    spans: &[Span],
) -> Option<Vec<io::Result<usize>>> {
    RING.with_borrow_mut(|ring| {
        if matches!(ring, Ring::Untried) {
            *ring = match IoUring::new(DEPTH as u32) {
                Ok(made) => Ring::Ready(Box::new(made)),
                Err(error) => {
                    note_missing(&error);
                    Ring::Missing
                }
            };
        }
        let Ring::Ready(ready) = ring else { return None };
        let (outcomes, broken) = run(ready, file, buffer, spans);
        if let Some(error) = broken {
            note_missing(&error);
            *ring = Ring::Missing;
        }
        Some(outcomes)
    })
}

/// The outcome of each span, and the reason if the ring is unusable from now on.
fn run(
    ring: &mut IoUring,
    file: &File,
    buffer: &mut [u8],
    spans: &[Span],
) -> (Vec<io::Result<usize>>, Option<io::Error>) {
    let mut outcomes: Vec<io::Result<usize>> =
        spans.iter().map(|_| Err(io::ErrorKind::Interrupted.into())).collect();
    let fd = types::Fd(file.as_raw_fd());
    let (mut next, mut under_way, mut broken) = (0, 0, None);
    while under_way > 0 || (next < spans.len() && broken.is_none()) {
        while broken.is_none() && next < spans.len() && under_way < DEPTH {
            let Span { offset, at, len } = spans[next];
            let into = buffer[at..at + len].as_mut_ptr();
            let entry = opcode::Read::new(fd, into, len as u32).offset(offset).build();
            // SAFETY: the entry names memory within `buffer` and the descriptor of `file`. Both are
            // borrowed until this function returns, which happens after the read has completed or
            // was cancelled. Spans do not overlap.
            if unsafe { ring.submission().push(&entry.user_data(next as u64)) }.is_err() {
                break;
            }
            (next, under_way) = (next + 1, under_way + 1);
        }
        if broken.is_some() {
            // The kernel posts completions while this thread is in the kernel.
            std::thread::yield_now();
        } else if let Err(error) = ring.submit_and_wait(1)
            && !is_transient(&error)
        {
            // The ring is not entered again, so it will not take the remaining entries.
            under_way -= ring.submission().len();
            broken = Some(error);
        }
        for done in ring.completion() {
            outcomes[done.user_data() as usize] = match done.result() {
                failed if failed < 0 => Err(io::Error::from_raw_os_error(-failed)),
                bytes => Ok(bytes as usize),
            };
            under_way -= 1;
        }
    }
    (outcomes, broken)
}

fn is_transient(error: &io::Error) -> bool {
    let busy = rustix::io::Errno::BUSY.raw_os_error();
    matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock)
        || error.raw_os_error() == Some(busy)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn batch_larger_than_the_ring_is_read_completely() {
        let mut file = tempfile::tempfile().unwrap();
        let bytes: Vec<u8> = (0..100_000_u32).map(|at| (at % 251) as u8).collect();
        file.write_all(&bytes).unwrap();
        let spans: Vec<Span> = (0..3 * DEPTH)
            .map(|n| Span { offset: (n * 997) as u64, at: n * 512, len: 1 + n * 5 })
            .chain([Span { offset: 99_990, at: 3 * DEPTH * 512, len: 100 }])
            .collect();
        let mut buffer = vec![0; (3 * DEPTH + 1) * 512];
        let Some(outcomes) = read(&file, &mut buffer, &spans) else {
            // The kernel has no io_uring. The other tests cover the reads without it.
            return;
        };
        for (span, outcome) in spans.iter().zip(outcomes) {
            let got = outcome.unwrap();
            let from = span.offset as usize;
            assert_eq!(got, span.len.min(bytes.len() - from));
            assert_eq!(&buffer[span.at..span.at + got], &bytes[from..from + got]);
        }
    }

    #[test]
    fn failed_read_is_reported_separately() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("write-only");
        let file = File::options().write(true).create(true).truncate(true).open(path).unwrap();
        let spans = [Span { offset: 0, at: 0, len: 8 }];
        if let Some(outcomes) = read(&file, &mut [0; 8], &spans) {
            assert!(outcomes[0].is_err(), "{outcomes:?}");
        }
    }
}
