//! An open file of C: for reading, for writing, or both.
//!
//! Reading goes through a handle of the tiers, opened once; where the file was being written by
//! this library then, the handle is opened anew when somebody reads beyond what it knows, and
//! nothing is read beyond what was appended: the file itself may be longer for a moment, with
//! blocks that are cut off again. Thread-safe; reads at a place take a shared lock, writes of a
//! file one after another.

use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

use archipelago_env::{CreateOptions, IoContext, OpenOptions, RandomFile};
use archipelago_tier::{FileInfo, TierFile};
use parking_lot::{Mutex, RwLock};
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::context::{Context, carried};
use crate::failure::{CallResult, Failure, FailureKind};
use crate::handles::Handles;
use crate::space::{Growing, Held, Opened, Space};

/// The files that C holds.
pub(crate) static FILES: LazyLock<Handles<File>> = LazyLock::new(|| Handles::new("file", 2));

/// See the module.
#[derive(Debug)]
pub(crate) struct File {
    path: PathBuf,
    file: TierFile,
    context: IoContext,
    options: OpenOptions,
    readable: bool,
    writable: bool,
    /// Every write is synced: `O_SYNC`, `O_DSYNC`.
    synced: bool,
    /// Where the next `read` begins.
    position: Mutex<u64>,
    reader: RwLock<Option<Arc<dyn RandomFile>>>,
    /// If it is being written, or was when it was opened.
    growing: Option<Arc<Growing>>,
    // Dropped last: what it counts is gone by then.
    held: Held,
}

/// Where `lseek` counts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum From {
    Start,
    Here,
    End,
}

/// Flags that mean something here, and those without meaning in tiers, which are let pass.
fn flags_of(bits: u32) -> CallResult<OFlags> {
    let flags = OFlags::from_bits_retain(bits);
    let known = OFlags::ACCMODE
        | OFlags::CREATE
        | OFlags::EXCL
        | OFlags::TRUNC
        | OFlags::APPEND
        | OFlags::DIRECT
        | OFlags::SYNC
        | OFlags::DSYNC
        | OFlags::CLOEXEC
        | OFlags::NOATIME
        | OFlags::LARGEFILE;
    let unknown = flags.difference(known);
    if unknown.is_empty() {
        return Ok(flags);
    }
    Err(Failure::invalid(format!("open flags {:#o} are not supported", unknown.bits())))
}

impl File {
    /// Opens as POSIX would, as far as files go that are written once; the number for C.
    pub(crate) fn open(
        space: &Arc<Space>,
        path: &Path,
        flags: u32,
        context: Context,
    ) -> CallResult<i32> {
        let flags = flags_of(flags)?;
        let access = flags & OFlags::ACCMODE;
        let writable = access == OFlags::WRONLY || access == OFlags::RDWR;
        let readable = access == OFlags::RDONLY || access == OFlags::RDWR;
        let direct = flags.contains(OFlags::DIRECT);
        let options = OpenOptions { direct };
        let (file, growing, reader) = if writable {
            let growing = Self::begin(space, path, flags, context)?;
            (growing.file.clone(), Some(growing), None)
        } else {
            if flags.intersects(OFlags::CREATE | OFlags::TRUNC) {
                return Err(Failure::invalid("O_CREAT and O_TRUNC need O_WRONLY or O_RDWR"));
            }
            let opened = space.open_reader(space.own(path)?, context.io, options)?;
            let Opened { file, growing, reader } = opened;
            (file, growing, Some(reader))
        };
        let file = Self {
            path: path.to_owned(),
            file,
            context: context.io,
            options,
            readable,
            writable,
            synced: flags.intersects(OFlags::SYNC | OFlags::DSYNC),
            position: Mutex::new(0),
            reader: RwLock::new(reader),
            growing,
            held: Held::by(space),
        };
        Ok(FILES.insert(Arc::new(file)))
    }

    /// Begins to write a file.
    fn begin(
        space: &Arc<Space>,
        path: &Path,
        flags: OFlags,
        context: Context,
    ) -> CallResult<Arc<Growing>> {
        if !flags.contains(OFlags::CREATE) {
            space.file_info(path)?;
        }
        let direct = flags.contains(OFlags::DIRECT);
        let options = CreateOptions {
            direct,
            size_hint_bytes: context.size_hint_bytes,
            ..CreateOptions::default()
        };
        let exclusive = flags.contains(OFlags::CREATE | OFlags::EXCL);
        space.create(path, context.io, options, (exclusive, flags.contains(OFlags::TRUNC)))
    }

    fn space(&self) -> &Arc<Space> {
        self.held.space()
    }

    fn writer(&self) -> CallResult<&Growing> {
        match &self.growing {
            Some(growing) if self.writable => Ok(growing),
            _ => {
                let message = format!("{} is not open for writing", self.path.display());
                Err(Failure::new(FailureKind::InvalidArgument, Errno::BADF, message))
            }
        }
    }

    /// Appends. `at`: where the file is to end before.
    pub(crate) fn write(&self, data: &[u8], at: Option<u64>) -> CallResult<()> {
        self.writer()?.append(data, at, self.synced)
    }

    pub(crate) fn extend(&self, len: u64) -> CallResult<()> {
        self.writer()?.extend(len)
    }

    pub(crate) fn sync(&self) -> CallResult<()> {
        if let Some(growing) = &self.growing
            && growing.sync()?
        {
            return Ok(());
        }
        Err(Failure::unsupported(format!(
            "{} is open for reading only: a file is synced by who writes it, before it is closed",
            self.path.display()
        )))
    }

    /// Bytes that can be read.
    pub(crate) fn len(&self) -> u64 {
        match &self.growing {
            Some(growing) => growing.len(),
            None => self.reader.read().as_ref().map_or(0, |reader| reader.len()),
        }
    }

    /// A handle that knows the bytes before `end`, as far as there are some.
    fn reader(&self, end: u64) -> CallResult<Arc<dyn RandomFile>> {
        if let Some(reader) = &*self.reader.read()
            && reader.len() >= end.min(self.growing.as_ref().map_or(0, |growing| growing.len()))
        {
            return Ok(Arc::clone(reader));
        }
        let mut slot = self.reader.write();
        let reader = self.file.open(self.context, self.options)?;
        *slot = Some(Arc::clone(&reader));
        Ok(reader)
    }

    /// How many of `len` bytes at `offset` there are for `reader` to read.
    fn readable(&self, reader: &dyn RandomFile, offset: u64, len: u64) -> u64 {
        let end = match &self.growing {
            Some(growing) => growing.len().min(reader.len()),
            None => reader.len(),
        };
        len.min(end.saturating_sub(offset))
    }

    /// Reads at `offset`; how many bytes, fewer than asked for only at the end.
    pub(crate) fn read_at(&self, offset: u64, buf: &mut [u8]) -> CallResult<usize> {
        if !self.readable {
            let message = format!("{} is not open for reading", self.path.display());
            return Err(Failure::new(FailureKind::InvalidArgument, Errno::BADF, message));
        }
        if buf.is_empty() {
            return Ok(0);
        }
        let reader = self.reader(offset.saturating_add(buf.len() as u64))?;
        let count = self.readable(&*reader, offset, buf.len() as u64) as usize;
        if count == 0 {
            return Ok(0);
        }
        let purpose = carried().map_or(self.context.purpose, |context| context.io.purpose);
        let context = IoContext { purpose, ..self.context };
        reader.read_exact_at(offset, &mut buf[..count], context)?;
        Ok(count)
    }

    /// Reads on from where the last read ended.
    pub(crate) fn read_on(&self, buf: &mut [u8]) -> CallResult<usize> {
        let mut position = self.position.lock();
        let count = self.read_at(*position, buf)?;
        *position += count as u64;
        Ok(count)
    }

    /// Sets where the next read begins. Writes go to the end whatever it is.
    pub(crate) fn seek(&self, offset: i64, from: From) -> CallResult<u64> {
        let mut position = self.position.lock();
        let base = match from {
            From::Start => 0,
            From::Here => *position,
            From::End => self.len(),
        };
        let place = i128::from(base) + i128::from(offset);
        if place < 0 {
            let message = format!("{offset} from {base} is before the beginning of the file");
            return Err(Failure::invalid(message));
        }
        *position = i64::try_from(place).map(i64::cast_unsigned).map_err(|_| {
            let message = format!("{offset} from {base} is farther than {}", i64::MAX);
            Failure::new(FailureKind::InvalidArgument, Errno::OVERFLOW, message)
        })?;
        Ok(*position)
    }

    /// Advice about bytes that will, or will not, be read soon. Errors: `EOPNOTSUPP` where the
    /// advice that they will does nothing.
    pub(crate) fn advise(&self, offset: u64, len: u64, will_need: bool) -> CallResult<()> {
        let len = if len == 0 { u64::MAX - offset } else { len };
        let reader = self.reader(offset.saturating_add(len))?;
        let len = self.readable(&*reader, offset, len);
        if !will_need {
            reader.forget(offset, len);
        } else if self.file.is_direct(self.context, self.options) {
            return Err(Failure::unsupported(format!(
                "{} is read with O_DIRECT: there is no cache to fetch bytes into",
                self.path.display()
            )));
        } else {
            reader.prefetch(offset, len);
        }
        Ok(())
    }

    /// Where it lies, if it still has a name.
    pub(crate) fn info(&self) -> Option<FileInfo> {
        self.file.info().ok()
    }

    /// What kind of file it was opened as, for when it has no name any more.
    pub(crate) fn context(&self) -> IoContext {
        self.context
    }
}

impl Drop for File {
    /// Ends the writing, by the handle that writes.
    fn drop(&mut self) {
        if self.writable
            && let Some(growing) = &self.growing
        {
            self.space().end(growing);
        }
    }
}
