//! An open file of C: for reading, for writing, or both.
//!
//! A file reads through a handle of the tiers, which it opens once. If this library was writing the
//! file at that time, a read beyond the known end opens the handle again. It reads nothing beyond
//! what was appended, because the file itself may be longer for a moment, with blocks that are cut
//! off later.
//!
//! Thread-safety: any thread may call any method. Reads at an offset take a shared lock. Writes of
//! one file run one after another.

use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

use archipelago_env::{CreateOptions, IoContext, OpenOptions, RandomFile};
use archipelago_tier::{ExistingFile, FileInfo, TierFile};
use parking_lot::{Mutex, RwLock};
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::context::{Context, carried};
use crate::failure::{CallResult, Failure, FailureKind};
use crate::handles::Handles;
use crate::space::{GrowingFile, HeldBySpace, OpenedFile, Space};

/// The files that C holds.
pub(crate) static FILES: LazyLock<Handles<File>> = LazyLock::new(|| Handles::new("file", 2));

/// An open file of C.
#[derive(Debug)]
pub(crate) struct File {
    path: PathBuf,
    file: TierFile,
    context: IoContext,
    options: OpenOptions,
    readable: bool,
    writable: bool,
    /// Whether every write is synced: `O_SYNC` or `O_DSYNC`.
    synced: bool,
    /// Offset at which the next `read` begins.
    position: Mutex<u64>,
    reader: RwLock<Option<Arc<dyn RandomFile>>>,
    /// The writer's side, if the file is being written or was when it was opened.
    growing: Option<Arc<GrowingFile>>,
    // This field is dropped last, because it counts the file as open until the other fields are
    // gone.
    held: HeldBySpace,
}

/// Origin of the offset of `lseek`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum From {
    Start,
    Here,
    End,
}

/// The flags, if all of them are known. Some flags have no meaning in tiers and are accepted.
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
    /// Opens a file as POSIX does, as far as possible for files that are written once. Returns the
    /// number for C.
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
            let OpenedFile { file, growing, reader } = opened;
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
            held: HeldBySpace::by(space),
        };
        Ok(FILES.insert(Arc::new(file)))
    }

    /// Creates the file that a new handle writes.
    fn begin(
        space: &Arc<Space>,
        path: &Path,
        flags: OFlags,
        context: Context,
    ) -> CallResult<Arc<GrowingFile>> {
        let direct = flags.contains(OFlags::DIRECT);
        let options = CreateOptions {
            direct,
            size_hint_bytes: context.size_hint_bytes,
            ..CreateOptions::default()
        };
        let existing = if flags.contains(OFlags::CREATE | OFlags::EXCL) {
            ExistingFile::Refuse
        } else if flags.contains(OFlags::CREATE) {
            ExistingFile::Replace
        } else {
            ExistingFile::Require
        };
        space.create(path, context.io, options, existing, flags.contains(OFlags::TRUNC))
    }

    fn space(&self) -> &Arc<Space> {
        self.held.space()
    }

    fn writer(&self) -> CallResult<&GrowingFile> {
        match &self.growing {
            Some(growing) if self.writable => Ok(growing),
            _ => {
                let message = format!("{} is not open for writing", self.path.display());
                Err(Failure::new(FailureKind::InvalidArgument, Errno::BADF, message))
            }
        }
    }

    /// Appends `data`. If `at` is given, it must be the end of the file.
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

    /// Number of bytes that can be read.
    pub(crate) fn len(&self) -> u64 {
        match &self.growing {
            Some(growing) => growing.len(),
            None => self.reader.read().as_ref().map_or(0, |reader| reader.len()),
        }
    }

    /// A handle that knows the bytes before `end`, as far as they exist.
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

    /// Number of the `len` bytes at `offset` that `reader` can read.
    fn readable(&self, reader: &dyn RandomFile, offset: u64, len: u64) -> u64 {
        let end = match &self.growing {
            Some(growing) => growing.len().min(reader.len()),
            None => reader.len(),
        };
        len.min(end.saturating_sub(offset))
    }

    /// Reads at `offset`. Returns the number of bytes, which is smaller than the buffer only at the
    /// end of the file.
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

    /// Reads from the end of the last read on.
    pub(crate) fn read_on(&self, buf: &mut [u8]) -> CallResult<usize> {
        let mut position = self.position.lock();
        let count = self.read_at(*position, buf)?;
        *position += count as u64;
        Ok(count)
    }

    /// Sets the offset at which the next read begins. Writes always go to the end.
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

    /// Gives advice about bytes that will, or will not, be read soon. Errors: `EOPNOTSUPP` if the
    /// advice to fetch bytes has no effect.
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

    /// Facts about the file, if it still has a name.
    pub(crate) fn info(&self) -> Option<FileInfo> {
        self.file.info().ok()
    }

    /// The context with which it was opened, for a file without a name.
    pub(crate) fn context(&self) -> IoContext {
        self.context
    }
}

impl Drop for File {
    /// Ends the writing if this is the handle that writes.
    fn drop(&mut self) {
        if self.writable
            && let Some(growing) = &self.growing
        {
            self.space().end(growing);
        }
    }
}
