//! The file frame: block handles, block trailers, compression and the footer.
//!
//! Layout of a table (`docs/formats/sst.md`): data blocks, then filter, index, range-tombstone and
//! properties blocks, then the footer. Blocks lie without gaps. A value file
//! (`docs/formats/value-file.md`) has the same frame after a value area, and a magic number and a
//! version of its own. Invariants:
//! 1. A block is `payload ++ compression type (u8) ++ crc (u32)`. The crc covers payload and type,
//!    and is bound to the file's unique id and the block's offset.
//! 2. A compressed payload is `uncompressed length (u32) ++ compressed bytes`.
//! 3. The footer has a crc of its own and names the length of the file.
//!
//! Failure: every decoder takes foreign bytes, and returns an error that names file and offset.

use std::cell::RefCell;
use std::path::Path;

use archipelago_base::checksum::{block_crc, crc};
use archipelago_base::codec::{Reader, put_u32, put_u64};
use archipelago_base::{Error, ErrorKind, Result};
use archipelago_env::FileClass;

use crate::key::VALUE_BYTES_MAX;
use crate::options::Compression;

/// Version of the table format that this program writes, and the only one that it reads.
pub const FORMAT_VERSION: u32 = 3;
/// Version of the format of value files that this program writes, and the only one that it reads.
pub(super) const VALUE_FORMAT_VERSION: u32 = 1;
/// Bytes of the magic number at the end of every file.
const MAGIC_BYTES: usize = 8;
/// Length in bytes of the trailer after every block's payload.
pub(super) const TRAILER_BYTES: usize = 5;
/// Length of the footer in bytes.
pub(super) const FOOTER_BYTES: usize = 92;
/// Offset of the crc within the footer; it covers all bytes before it.
const FOOTER_CRC_AT: usize = 80;
/// Largest length in bytes of a record (internal key and value) in a table.
pub(super) const RECORD_BYTES_MAX: usize = VALUE_BYTES_MAX + (1 << 19);
/// Largest length in bytes of an uncompressed block: the longest record and room for its frame.
const BLOCK_BYTES_MAX: usize = VALUE_BYTES_MAX + (1 << 20);

/// Type of a file with this frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    /// A table of the levels: its data blocks begin at offset 0.
    Table,
    /// A value file: its data blocks hold handles and follow the value area.
    Values,
}

impl Layout {
    /// Last eight bytes of every file of this layout.
    pub(super) fn magic(self) -> [u8; MAGIC_BYTES] {
        match self {
            Self::Table => *b"ArchpSST",
            Self::Values => *b"ArchpVal",
        }
    }

    /// The only version of the layout that this program writes and reads.
    pub(super) fn version(self) -> u32 {
        match self {
            Self::Table => FORMAT_VERSION,
            Self::Values => VALUE_FORMAT_VERSION,
        }
    }

    /// Class of the file in contexts of I/O.
    pub(super) fn class(self) -> FileClass {
        match self {
            Self::Table => FileClass::Sst,
            Self::Values => FileClass::ValueSst,
        }
    }

    /// Name of the layout in error texts.
    fn name(self) -> &'static str {
        match self {
            Self::Table => "SST",
            Self::Values => "value file",
        }
    }

    /// The layout whose magic number ends `bytes`; `None` if there is none.
    pub(super) fn of(bytes: &[u8]) -> Option<Self> {
        [Self::Table, Self::Values].into_iter().find(|layout| bytes.ends_with(&layout.magic()))
    }
}

/// Position of a block. `size` is the length of the payload, without the trailer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Handle {
    /// Offset of the block's first byte in the file.
    pub(super) offset: u64,
    /// Length of the payload; 0 if there is no such block.
    pub(super) size: u32,
}

impl Handle {
    /// Whether there is a block.
    pub(super) fn is_some(self) -> bool {
        self.size > 0
    }

    /// Offset of the first byte after the block and its trailer; `None` past 2^64.
    pub(super) fn end(self) -> Option<u64> {
        self.offset.checked_add(u64::from(self.size) + TRAILER_BYTES as u64)
    }

    fn encode(self, out: &mut Vec<u8>) {
        put_u64(out, self.offset);
        put_u32(out, self.size);
    }

    fn decode(reader: &mut Reader<'_>) -> Option<Self> {
        Some(Self { offset: reader.u64()?, size: reader.u32()? })
    }
}

/// Closes the block at `start..` of `out` by its type and checksum. The block will lie at `offset`
/// of the file.
pub(super) fn seal_block(
    out: &mut Vec<u8>,
    start: usize,
    kind: Compression,
    unique_id: &[u8; 16],
    offset: u64,
) {
    out.push(type_byte(kind));
    let crc = block_crc(unique_id, offset, &out[start..]);
    put_u32(out, crc);
}

fn type_byte(compression: Compression) -> u8 {
    match compression {
        Compression::None => 0,
        Compression::Lz4 => 1,
        Compression::Zstd => 2,
    }
}

/// Checks a block as read (payload and trailer) and decompresses it.
pub(super) fn open_block(
    mut raw: Vec<u8>,
    path: &Path,
    unique_id: &[u8; 16],
    offset: u64,
) -> Result<Vec<u8>> {
    let kind = check_block(&raw, path, unique_id, offset)?;
    if kind == Compression::None {
        raw.truncate(raw.len() - TRAILER_BYTES);
        return Ok(raw);
    }
    let mut out = Vec::new();
    decompress(kind, &raw[..raw.len() - TRAILER_BYTES], &mut out)
        .map_err(|what| Error::corrupt(path, offset, what))?;
    Ok(out)
}

/// Does the work of [`open_block`] on a borrowed slice, into `out`, which is cleared first.
pub(super) fn open_block_into(
    raw: &[u8],
    out: &mut Vec<u8>,
    path: &Path,
    unique_id: &[u8; 16],
    offset: u64,
) -> Result<()> {
    let kind = check_block(raw, path, unique_id, offset)?;
    let payload = &raw[..raw.len() - TRAILER_BYTES];
    out.clear();
    if kind == Compression::None {
        out.extend_from_slice(payload);
        return Ok(());
    }
    decompress(kind, payload, out).map_err(|what| Error::corrupt(path, offset, what))
}

/// Checks the checksum of a block with its trailer. Returns the compression of the payload.
pub(super) fn check_block(
    raw: &[u8],
    path: &Path,
    unique_id: &[u8; 16],
    offset: u64,
) -> Result<Compression> {
    let Some((covered, stored)) = raw.split_last_chunk::<4>() else {
        return Err(Error::corrupt(path, offset, "block: shorter than its trailer"));
    };
    let stored = u32::from_le_bytes(*stored);
    let computed = block_crc(unique_id, offset, covered);
    if stored != computed {
        let what = format!("block: checksum {stored:#010x} does not match {computed:#010x}");
        return Err(Error::corrupt(path, offset, what));
    }
    match covered.last() {
        Some(0) => Ok(Compression::None),
        Some(1) => Ok(Compression::Lz4),
        Some(2) => Ok(Compression::Zstd),
        other => Err(Error::corrupt(path, offset, format!("block: unknown compression {other:?}"))),
    }
}

/// Decompresses a payload into `out`, whose content is overwritten.
pub(super) fn decompress(
    kind: Compression,
    payload: &[u8],
    out: &mut Vec<u8>,
) -> Result<(), String> {
    let Some((len, packed)) = payload.split_first_chunk::<4>() else {
        return Err("compressed block: no length".to_owned());
    };
    let len = u32::from_le_bytes(*len) as usize;
    if len > BLOCK_BYTES_MAX {
        return Err(format!("compressed block: says {len} bytes"));
    }
    let got = match kind {
        Compression::None => return Err("not compressed".to_owned()),
        Compression::Lz4 => {
            if len / 256 > packed.len() {
                return Err(format!("LZ4 block: {} bytes cannot become {len}", packed.len()));
            }
            out.resize(len, 0);
            lz4_flex::block::decompress_into(packed, out).map_err(|err| format!("LZ4: {err}"))?
        }
        Compression::Zstd => {
            out.clear();
            out.reserve_exact(len);
            zstd_decompress(packed, out).map_err(|err| format!("Zstd: {err}"))?
        }
    };
    if got != len {
        return Err(format!("compressed block: {got} bytes where it says {len}"));
    }
    Ok(())
}

fn zstd_decompress(packed: &[u8], out: &mut Vec<u8>) -> std::io::Result<usize> {
    thread_local! {
        static CONTEXT: RefCell<Option<zstd::bulk::Decompressor<'static>>> =
            const { RefCell::new(None) };
    }
    CONTEXT.with_borrow_mut(|slot| {
        let context = match slot {
            Some(context) => context,
            None => slot.insert(zstd::bulk::Decompressor::new()?),
        };
        context.decompress_to_buffer(packed, out)
    })
}

/// Compresses blocks one after another, reusing its contexts.
pub(super) struct Compressor {
    kind: Compression,
    zstd: Option<zstd::bulk::Compressor<'static>>,
    packed: Vec<u8>,
}

impl Compressor {
    /// A compressor for one kind of compression.
    pub(super) fn new(kind: Compression) -> Self {
        Self { kind, zstd: None, packed: Vec::new() }
    }

    /// The payload to write for `block`, and its type. It is compressed if that saves at least an
    /// eighth.
    pub(super) fn pack<'a>(&'a mut self, block: &'a [u8]) -> Result<(&'a [u8], Compression)> {
        if self.kind == Compression::None || u32::try_from(block.len()).is_err() {
            return Ok((block, Compression::None));
        }
        let failed = |err: String| Error::new(ErrorKind::Io, format!("cannot compress: {err}"));
        let bound = match self.kind {
            Compression::Zstd => zstd::zstd_safe::compress_bound(block.len()),
            _ => lz4_flex::block::get_maximum_output_size(block.len()),
        };
        if self.packed.len() < bound + 4 {
            self.packed.resize(bound + 4, 0);
        }
        self.packed[..4].copy_from_slice(&(block.len() as u32).to_le_bytes());
        let space = &mut self.packed[4..];
        let len = match self.kind {
            Compression::Zstd => {
                let context = match &mut self.zstd {
                    Some(context) => context,
                    None => {
                        let context = zstd::bulk::Compressor::new(1);
                        self.zstd.insert(context.map_err(|err| failed(err.to_string()))?)
                    }
                };
                context.compress_to_buffer(block, space).map_err(|err| failed(err.to_string()))?
            }
            _ => lz4_flex::block::compress_into(block, space)
                .map_err(|err| failed(err.to_string()))?,
        } + 4;
        if len > block.len() - block.len() / 8 {
            return Ok((block, Compression::None));
        }
        Ok((&self.packed[..len], self.kind))
    }
}

/// The end of the file, with the positions of all other parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Footer {
    /// Type of the file.
    pub(super) layout: Layout,
    /// The whole-file filter, if there is one. The top index names partitions of a filter.
    pub(super) filter: Handle,
    /// The index block, or the top one of two levels.
    pub(super) index: Handle,
    /// The range tombstones, if there are any.
    pub(super) tombstones: Handle,
    /// The properties block.
    pub(super) properties: Handle,
    /// Whether the index has two levels.
    pub(super) partitioned: bool,
    /// Unique id to which all blocks are bound.
    pub(super) unique_id: [u8; 16],
    /// Length of the file, footer included.
    pub(super) file_bytes: u64,
}

impl Footer {
    /// Appends the footer.
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        for handle in [self.filter, self.index, self.tombstones, self.properties] {
            handle.encode(out);
        }
        out.extend_from_slice(&[u8::from(self.partitioned), 0, 0, 0]);
        out.extend_from_slice(&self.unique_id);
        put_u64(out, self.file_bytes);
        put_u32(out, self.layout.version());
        let crc = crc(&out[start..]);
        put_u32(out, crc);
        out.extend_from_slice(&self.layout.magic());
        debug_assert_eq!(out.len() - start, FOOTER_BYTES);
    }

    /// Decodes the last [`FOOTER_BYTES`] bytes of a file of `file_bytes`, which must have `layout`.
    pub(super) fn decode(
        bytes: &[u8],
        path: &Path,
        file_bytes: u64,
        layout: Layout,
    ) -> Result<Self> {
        let at = file_bytes.saturating_sub(FOOTER_BYTES as u64);
        let corrupt = |what: &str| Error::corrupt(path, at, format!("footer: {what}"));
        let name = layout.name();
        if bytes.len() != FOOTER_BYTES || Layout::of(bytes) != Some(layout) {
            let article = if layout == Layout::Table { "an" } else { "a" };
            return Err(corrupt(&format!("no magic number: not {article} {name}, or cut off")));
        }
        let mut reader = Reader::new(&bytes[FOOTER_CRC_AT - 4..]);
        let (version, stored) = (reader.u32(), reader.u32());
        let computed = crc(&bytes[..FOOTER_CRC_AT]);
        if stored != Some(computed) {
            return Err(corrupt(&format!("checksum {stored:x?} does not match {computed:#x}")));
        }
        if version != Some(layout.version()) {
            return Err(Error::unsupported(format!(
                "{}: {name} format version {}; this program reads version {} only",
                path.display(),
                version.unwrap_or_default(),
                layout.version(),
            )));
        }
        let footer = Self::parse(bytes, layout).ok_or_else(|| corrupt("unknown layout"))?;
        if footer.file_bytes != file_bytes {
            let says = footer.file_bytes;
            return Err(corrupt(&format!("the file has {file_bytes} bytes, not {says}")));
        }
        for handle in [footer.filter, footer.index, footer.tombstones, footer.properties] {
            if handle.is_some() && handle.end().is_none_or(|end| end > at) {
                return Err(corrupt("names a block outside the file"));
            }
        }
        Ok(footer)
    }

    fn parse(bytes: &[u8], layout: Layout) -> Option<Self> {
        let mut reader = Reader::new(bytes);
        let filter = Handle::decode(&mut reader)?;
        let index = Handle::decode(&mut reader)?;
        let tombstones = Handle::decode(&mut reader)?;
        let properties = Handle::decode(&mut reader)?;
        let partitioned = match reader.take(4)? {
            [0, 0, 0, 0] => false,
            [1, 0, 0, 0] => true,
            _ => return None,
        };
        let unique_id = reader.take(16)?.try_into().ok()?;
        let file_bytes = reader.u64()?;
        Some(Self {
            layout,
            filter,
            index,
            tombstones,
            properties,
            partitioned,
            unique_id,
            file_bytes,
        })
    }
}
