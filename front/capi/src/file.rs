//! An open file of C: for reading, for writing, or both.
//!
//! Reading goes through a handle of the tiers, opened once; where the file is still being written by this
//! library, the handle is opened anew when somebody reads beyond what it knows. Thread-safe; reads at a place take a
//! shared lock, writes of a file one after another.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use archipelago_env::{CreateOptions, IoContext, OpenOptions, RandomFile};
use archipelago_tier::Whereabouts;
use parking_lot::{Mutex, RwLock};
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::context::{Context, carried};
use crate::failure::{Failure, Kind, Outcome};
use crate::space::{FILES, Growing, Held, Space};

/// See the module.
#[derive(Debug)]
pub(crate) struct File {
    path: PathBuf,
    id: u64,
    context: IoContext,
    options: OpenOptions,
    readable: bool,
    writable: bool,
    /// Every write is synced: `O_SYNC`, `O_DSYNC`.
    synced: bool,
    /// Where the next `read` begins.
    position: Mutex<u64>,
    reader: RwLock<Option<Arc<dyn RandomFile>>>,
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
fn flags_of(bits: u32) -> Outcome<OFlags> {
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
    ) -> Outcome<i32> {
        let flags = flags_of(flags)?;
        let access = flags & OFlags::ACCMODE;
        let writable = access == OFlags::WRONLY || access == OFlags::RDWR;
        let readable = access == OFlags::RDONLY || access == OFlags::RDWR;
        let direct = flags.contains(OFlags::DIRECT);
        let options = OpenOptions { direct };
        let (growing, id, reader) = if writable {
            let growing = Self::begin(space, path, flags, context)?;
            let id = growing.id;
            (Some(growing), id, None)
        } else {
            if flags.intersects(OFlags::CREATE | OFlags::TRUNC) {
                return Err(Failure::invalid("O_CREAT and O_TRUNC need O_WRONLY or O_RDWR"));
            }
            let (id, reader) = space.open_reader(space.own(path)?, context.io, options)?;
            (space.growing(id), id, Some(reader))
        };
        let file = Self {
            path: path.to_owned(),
            id,
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
    ) -> Outcome<Arc<Growing>> {
        if !flags.contains(OFlags::CREATE) {
            space.whereabouts(path)?;
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

    fn writer(&self) -> Outcome<&Growing> {
        match &self.growing {
            Some(growing) if self.writable => Ok(growing),
            _ => {
                let message = format!("{} is not open for writing", self.path.display());
                Err(Failure::new(Kind::InvalidArgument, Errno::BADF, message))
            }
        }
    }

    /// Appends. `at`: where the file is to end before.
    pub(crate) fn write(&self, data: &[u8], at: Option<u64>) -> Outcome<()> {
        self.writer()?.append(data, at, self.synced)
    }

    pub(crate) fn extend(&self, len: u64) -> Outcome<()> {
        self.writer()?.extend(len)
    }

    pub(crate) fn sync(&self) -> Outcome<()> {
        match &self.growing {
            Some(growing) => growing.sync(),
            None => Err(Failure::unsupported(format!(
                "{} is open for reading only: a file is synced by who writes it, before it is closed",
                self.path.display()
            ))),
        }
    }

    /// Bytes that can be read.
    pub(crate) fn len(&self) -> u64 {
        let known = self.reader.read().as_ref().map_or(0, |reader| reader.len());
        self.growing.as_ref().map_or(known, |growing| growing.len().max(known))
    }

    /// A handle that knows the bytes before `end`, as far as there are some.
    fn reader(&self, end: u64) -> Outcome<Arc<dyn RandomFile>> {
        if let Some(reader) = &*self.reader.read() {
            let more = self.growing.as_ref().is_some_and(|growing| growing.len() > reader.len());
            if end <= reader.len() || !more {
                return Ok(Arc::clone(reader));
            }
        }
        let mut slot = self.reader.write();
        let name = self.name();
        match (self.space().open_reader(&name, self.context, self.options), &*slot) {
            (Ok((id, reader)), _) if id == self.id => {
                *slot = Some(Arc::clone(&reader));
                Ok(reader)
            }
            // The file lost the name that was known: what could be read before still can.
            (_, Some(reader)) => Ok(Arc::clone(reader)),
            (Ok(_), None) => Err(Failure::new(
                Kind::NotFound,
                Errno::NOENT,
                format!("{} was replaced before its writer read it", name.display()),
            )),
            (Err(failure), None) => Err(failure),
        }
    }

    /// The last name of it that is known.
    fn name(&self) -> PathBuf {
        self.growing.as_ref().map_or_else(|| self.path.clone(), |growing| growing.name())
    }

    /// Reads at `offset`; how many bytes, fewer than asked for only at the end.
    pub(crate) fn read_at(&self, offset: u64, buf: &mut [u8]) -> Outcome<usize> {
        if !self.readable {
            let message = format!("{} is not open for reading", self.path.display());
            return Err(Failure::new(Kind::InvalidArgument, Errno::BADF, message));
        }
        if buf.is_empty() {
            return Ok(0);
        }
        let reader = self.reader(offset.saturating_add(buf.len() as u64))?;
        let left = reader.len().saturating_sub(offset);
        let count = buf.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        if count == 0 {
            return Ok(0);
        }
        let purpose = carried().map_or(self.context.purpose, |context| context.io.purpose);
        let context = IoContext { purpose, ..self.context };
        reader.read_exact_at(offset, &mut buf[..count], context)?;
        Ok(count)
    }

    /// Reads on from where the last read ended.
    pub(crate) fn read_on(&self, buf: &mut [u8]) -> Outcome<usize> {
        let mut position = self.position.lock();
        let count = self.read_at(*position, buf)?;
        *position += count as u64;
        Ok(count)
    }

    /// Sets where the next read begins. Writes go to the end whatever it is.
    pub(crate) fn seek(&self, offset: i64, from: From) -> Outcome<u64> {
        let mut position = self.position.lock();
        let base = match from {
            From::Start => 0,
            From::Here => *position,
            From::End => self.len(),
        };
        *position = base.checked_add_signed(offset).ok_or_else(|| {
            Failure::invalid(format!("{offset} from {base} is before the beginning of the file"))
        })?;
        Ok(*position)
    }

    /// Advice about bytes that will, or will not, be read soon.
    pub(crate) fn advise(&self, offset: u64, len: u64, will_need: bool) -> Outcome<()> {
        let len = if len == 0 { u64::MAX - offset } else { len };
        let reader = self.reader(offset.saturating_add(len))?;
        let len = len.min(reader.len().saturating_sub(offset));
        if will_need {
            reader.prefetch(offset, len);
        } else {
            reader.forget(offset, len);
        }
        Ok(())
    }

    /// Where it lies, if it still has a name that is known.
    pub(crate) fn whereabouts(&self) -> Option<Whereabouts> {
        self.space().whereabouts(&self.name()).ok().filter(|found| found.id == self.id)
    }

    /// What kind of file it was opened as, for when it has no name any more.
    pub(crate) fn context(&self) -> IoContext {
        self.context
    }
}
