//! The end of a table, in memory while the table is opened.
//!
//! Footer, properties, index and filter lie together at the end of a file. Separate reads of them
//! cost four to five operations a file on a device with latency. Read together they cost one, or
//! two if they are longer than [`TAIL_BYTES`]. The memory is freed when the table is open.

use archipelago_base::Result;
use archipelago_env::{IoContext, RandomFile};

/// Number of bytes that are read before the footer gives the positions of the rest.
const TAIL_BYTES: u64 = 8 << 10;

/// A file whose end is in memory.
#[derive(Debug)]
pub(super) struct Tail<'a> {
    file: &'a dyn RandomFile,
    /// Offset in the file at which `bytes` begin; they reach to its end.
    at: u64,
    bytes: Vec<u8>,
}

impl<'a> Tail<'a> {
    /// Reads the last bytes of `file`, and nothing before offset `lowest`.
    pub(super) fn read(file: &'a dyn RandomFile, lowest: u64, context: IoContext) -> Result<Self> {
        let at = file.len().saturating_sub(TAIL_BYTES).max(lowest.min(file.len()));
        let mut bytes = vec![0; (file.len() - at) as usize];
        file.read_exact_at(at, &mut bytes, context)?;
        Ok(Self { file, at, bytes })
    }

    /// Extends the bytes down to offset `from`.
    pub(super) fn lengthen(&mut self, from: u64, context: IoContext) -> Result<()> {
        if from >= self.at {
            return Ok(());
        }
        let more = (self.at - from) as usize;
        let mut bytes = vec![0; more + self.bytes.len()];
        self.file.read_exact_at(from, &mut bytes[..more], context)?;
        bytes[more..].copy_from_slice(&self.bytes);
        (self.at, self.bytes) = (from, bytes);
        Ok(())
    }
}

impl RandomFile for Tail<'_> {
    fn read_exact_at(&self, offset: u64, buf: &mut [u8], context: IoContext) -> Result<()> {
        let from = offset.checked_sub(self.at).and_then(|from| usize::try_from(from).ok());
        let here = from.and_then(|from| self.bytes.get(from..from.checked_add(buf.len())?));
        match here {
            Some(bytes) => {
                buf.copy_from_slice(bytes);
                Ok(())
            }
            None => self.file.read_exact_at(offset, buf, context),
        }
    }

    fn len(&self) -> u64 {
        self.file.len()
    }
}
