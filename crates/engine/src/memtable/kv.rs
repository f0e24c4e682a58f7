//! The KV-block: length-prefixed records, appended to slabs by many writers at once.
//!
//! A shard owns the block. A record is laid out as
//!
//! | bytes | what |
//! | --- | --- |
//! | varint | length of the user key |
//! | … | the user key |
//! | 8 | trailer (`seq << 8 \| kind`), little-endian; with the user key it is the encoded internal key |
//! | varint | length of the value |
//! | … | the value |
//! | 4 | CRC-32C of all bytes above, little-endian |
//! | 0–7 | zeros up to a multiple of eight |
//!
//! and named by a [`RecordRef`]: slab number and offset in units of eight bytes, in 32 bits.
//!
//! Invariants:
//! 1. Space is reserved by one `fetch_add` on the current slab. Reserved space belongs to its
//!    writer alone until the index publishes the record, and is never written again after that.
//! 2. Below [`KvSlab::end`] of a slab there are only reserved records, without gaps.
//! 3. A record over [`OWN_SLAB_BYTES`] has a slab to itself, so that at most a quarter of a slab is
//!    left unused when the next one is begun.
//! 4. A slab is *closed* when no reservation in it can succeed any more. A closed slab is
//!    *complete* when the index has published all of its records. No byte of a complete slab
//!    changes before the block is dropped, so it may leave while the shard still takes writes
//!    (O³-LSM §4.2).
//!
//! Thread-safety: any thread may call any method. Cost: a record costs one atomic add, one copy and
//! one CRC; a lock only for a new slab. The counts of published bytes are kept per slab in place of
//! one count per shard. An insert has the same atomic operations as with one count, and dirties one
//! cache line more. Source: O³-LSM §4.2.

use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use archipelago_base::checksum;
use archipelago_base::codec::{VARINT64_BYTES_MAX, get_varint, varint_len};
use archipelago_base::prefetch::prefetch;
use crossbeam_utils::CachePadded;
use parking_lot::Mutex;

use super::slab::{SLAB_BYTES_MAX, SlabPool, SlabTable};
use crate::key::TRAILER_BYTES;

/// Length in bytes above which a record gets a slab of its own.
pub(super) const OWN_SLAB_BYTES: usize = SLAB_BYTES_MAX / 4;
/// Alignment of records in bytes.
pub(super) const UNIT_BYTES: usize = 8;
const UNIT_BITS: u32 = (SLAB_BYTES_MAX / UNIT_BYTES).trailing_zeros();
/// Largest number of slabs of one shard. The last number is not used, so that no reference is
/// [`NO_RECORD`].
pub(super) const KV_SLABS_MAX: usize = (1 << (32 - UNIT_BITS)) - 1;
const CRC_BYTES: usize = 4;

/// Slab number and offset of a record.
pub(super) type RecordRef = u32;
/// Value of a reference that names no record.
pub(super) const NO_RECORD: RecordRef = u32::MAX;

/// Slab number and offset in bytes of a reference.
#[inline(always)]
pub(super) fn place(record: RecordRef) -> (usize, usize) {
    let unit = record & ((1 << UNIT_BITS) - 1);
    ((record >> UNIT_BITS) as usize, unit as usize * UNIT_BYTES)
}

/// A record's parts, borrowed from its slab or image.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record<'a> {
    /// The encoded internal key.
    pub(super) key: &'a [u8],
    /// The stored value.
    pub(super) value: &'a [u8],
    /// All bytes that the checksum covers; `crc` is the stored checksum.
    body: &'a [u8],
    crc: u32,
}

impl<'a> Record<'a> {
    /// Decodes the record at the start of `bytes`; `None` if it does not fit in them.
    #[inline]
    pub(super) fn decode(bytes: &'a [u8]) -> Option<Self> {
        let (key_len, at) = get_varint(bytes)?;
        let key_end = usize::try_from(key_len).ok()?.checked_add(at + TRAILER_BYTES)?;
        let key = bytes.get(at..key_end)?;
        let (value_len, taken) = get_varint(&bytes[key_end..])?;
        let value_at = key_end + taken;
        let value_end = value_at.checked_add(usize::try_from(value_len).ok()?)?;
        let value = bytes.get(value_at..value_end)?;
        let crc = bytes.get(value_end..value_end.checked_add(CRC_BYTES)?)?;
        let crc = u32::from_le_bytes(crc.try_into().ok()?);
        Some(Self { key, value, body: &bytes[..value_end], crc })
    }

    /// Decodes only the encoded internal key.
    #[inline]
    pub(super) fn decode_key(bytes: &'a [u8]) -> Option<&'a [u8]> {
        let (key_len, at) = get_varint(bytes)?;
        bytes.get(at..usize::try_from(key_len).ok()?.checked_add(at + TRAILER_BYTES)?)
    }

    /// Address and length of the record's stored bytes, with the checksum and without the padding.
    pub(super) fn stored_span(&self) -> (usize, usize) {
        (self.body.as_ptr().addr(), self.body.len() + CRC_BYTES)
    }

    /// Whether the checksum matches.
    pub(super) fn is_intact(&self) -> bool {
        checksum::crc(self.body) == self.crc
    }
}

/// A slab of records.
pub(super) struct KvSlab {
    base: *mut u8,
    number: usize,
    capacity: usize,
    /// Bytes reserved, and more once a reservation has failed.
    reserved: AtomicUsize,
    /// Bytes of records at which the slab was closed: the start of the first failed reservation, or
    /// the length of the only record. `usize::MAX` before the slab is closed.
    closed_at: AtomicUsize,
    /// Bytes of records that the index has published. The holder of the index's lock changes it,
    /// and writers that only reserve do not touch its cache line.
    published: CachePadded<AtomicUsize>,
}

/// A record that was appended and is not published yet.
pub(super) struct Appended<'a> {
    pub(super) record: RecordRef,
    /// Length of the record without the padding.
    pub(super) len: usize,
    padded: usize,
    slab: &'a KvSlab,
}

impl Appended<'_> {
    /// Counts the record as published. The caller has put it into the index, and holds the lock of
    /// the index.
    #[inline(always)]
    pub(super) fn note_published(&self) {
        let published = self.slab.published.load(Ordering::Relaxed) + self.padded;
        self.slab.published.store(published, Ordering::Release);
    }
}

// SAFETY: the memory behind `base` is shared by the rules of the module's invariant 1.
unsafe impl Send for KvSlab {}
// SAFETY: as above.
unsafe impl Sync for KvSlab {}

impl KvSlab {
    /// Bytes that hold records; final once no append is in flight and the shard is sealed.
    fn end(&self) -> usize {
        self.closed_at.load(Ordering::Acquire).min(self.reserved.load(Ordering::Acquire))
    }

    /// Whether the index has published every record that was reserved.
    fn is_published(&self) -> bool {
        self.published.load(Ordering::Acquire) == self.end()
    }

    /// Length of a complete slab; `None` if the slab is not complete.
    fn complete_len(&self) -> Option<usize> {
        let closed_at = self.closed_at.load(Ordering::Acquire);
        (self.published.load(Ordering::Acquire) == closed_at).then_some(closed_at)
    }

    /// Reserves `len` bytes; `None` if the slab is full.
    #[inline]
    fn reserve(&self, len: usize) -> Option<usize> {
        let at = self.reserved.fetch_add(len, Ordering::Relaxed);
        if at + len <= self.capacity {
            return Some(at);
        }
        if at <= self.capacity {
            self.closed_at.store(at, Ordering::Release);
        }
        None
    }
}

/// The records of a shard.
pub(super) struct KvBlock {
    table: SlabTable,
    current: AtomicPtr<KvSlab>,
    slabs: Mutex<Vec<*mut KvSlab>>,
}

// SAFETY: the slab descriptors are owned by the block, are shared by reference only, and are
// freed by its drop.
unsafe impl Send for KvBlock {}
// SAFETY: as above.
unsafe impl Sync for KvBlock {}

impl KvBlock {
    pub(super) fn new(pool: &Arc<SlabPool>) -> Self {
        Self {
            table: SlabTable::new(pool),
            current: AtomicPtr::new(std::ptr::null_mut()),
            slabs: Mutex::new(Vec::new()),
        }
    }

    /// Bytes of memory taken from the pool.
    pub(super) fn bytes(&self) -> u64 {
        self.table.bytes()
    }

    /// Appends a record, which no reader finds before the index has it.
    #[inline]
    pub(super) fn append(&self, key: &[u8], trailer: u64, value: &[u8]) -> Appended<'_> {
        let len = varint_len(key.len() as u64)
            + key.len()
            + TRAILER_BYTES
            + varint_len(value.len() as u64)
            + value.len()
            + CRC_BYTES;
        let padded = len.next_multiple_of(UNIT_BYTES);
        let (slab, at) = self.reserve(padded);
        // SAFETY: `reserve` gave this call `padded` bytes of the slab for itself alone.
        unsafe {
            write_record(slab.base.add(at), padded, key, trailer, value);
        }
        let unit = (at / UNIT_BYTES) as u32;
        let record = ((slab.number as u32) << UNIT_BITS) | unit;
        Appended { record, len, padded, slab }
    }

    #[inline]
    fn reserve(&self, len: usize) -> (&KvSlab, usize) {
        if len <= OWN_SLAB_BYTES {
            let current = self.current.load(Ordering::Acquire);
            // SAFETY: null or a descriptor that lives as long as the block.
            if let Some(slab) = unsafe { current.as_ref() }
                && let Some(at) = slab.reserve(len)
            {
                return (slab, at);
            }
        }
        self.reserve_in_new(len)
    }

    /// Reserves space under a lock, if the current slab is full or the record is large.
    #[cold]
    fn reserve_in_new(&self, len: usize) -> (&KvSlab, usize) {
        let mut slabs = self.slabs.lock();
        if len > OWN_SLAB_BYTES {
            // No other record gets into the slab, so it is closed from the beginning.
            let slab = self.add_slab(&mut slabs, len, len);
            let at = slab.reserve(len).expect("the slab was made for this record");
            return (slab, at);
        }
        // SAFETY: as in `reserve`.
        if let Some(slab) = unsafe { self.current.load(Ordering::Acquire).as_ref() }
            && let Some(at) = slab.reserve(len)
        {
            return (slab, at);
        }
        let bytes = self.table.next_bytes().max((len * 4).next_power_of_two()).min(SLAB_BYTES_MAX);
        let slab = self.add_slab(&mut slabs, bytes, usize::MAX);
        let at = slab.reserve(len).expect("a record is at most a quarter of the largest slab");
        self.current.store(std::ptr::from_ref(slab).cast_mut(), Ordering::Release);
        (slab, at)
    }

    fn add_slab(&self, slabs: &mut Vec<*mut KvSlab>, bytes: usize, closed_at: usize) -> &KvSlab {
        let (number, base, capacity) = self.table.add(bytes, KV_SLABS_MAX);
        let slab = Box::into_raw(Box::new(KvSlab {
            base: base.as_ptr(),
            number,
            capacity,
            reserved: AtomicUsize::new(0),
            closed_at: AtomicUsize::new(closed_at),
            published: CachePadded::new(AtomicUsize::new(0)),
        }));
        slabs.push(slab);
        // SAFETY: just made, freed only by the block's drop, never borrowed mutably.
        unsafe { &*slab }
    }

    /// Whether the index has published every record that was reserved.
    pub(super) fn is_published(&self) -> bool {
        // SAFETY: descriptors live as long as the block.
        self.slabs.lock().iter().all(|&slab| unsafe { (*slab).is_published() })
    }

    /// The bytes of complete slabs, from the slab with the number `from` up to the first one that
    /// is not complete. The records section of an image begins with the bytes of slab 0.
    pub(super) fn complete(&self, from: usize) -> Vec<&[u8]> {
        let slabs = self.slabs.lock();
        let complete = slabs.iter().skip(from).map_while(|&slab| {
            // SAFETY: descriptors live as long as the block.
            let slab = unsafe { &*slab };
            // SAFETY: the memory lives as long as the block. A complete slab takes no reservation,
            // every byte below its length was written before it was published, and the acquiring
            // load has seen the last publication. No byte is written again.
            slab.complete_len().map(|len| unsafe { std::slice::from_raw_parts(slab.base, len) })
        });
        complete.collect()
    }

    /// The filled bytes of every slab, by number.
    ///
    /// # Safety
    /// No append may be in flight or begin while the slices are used.
    pub(super) unsafe fn filled(&self) -> Vec<&[u8]> {
        let slabs = self.slabs.lock();
        slabs
            .iter()
            .map(|&slab| {
                // SAFETY: descriptors live as long as the block; below `end` every byte was
                // written by an append that is over, and none is written again.
                unsafe { std::slice::from_raw_parts((*slab).base, (*slab).end()) }
            })
            .collect()
    }

    /// The encoded internal key of a record.
    ///
    /// # Safety
    /// The reference must come from [`KvBlock::append`] and must have been published after it.
    #[inline(always)]
    pub(super) unsafe fn key(&self, record: RecordRef) -> &[u8] {
        // SAFETY: a published record is complete and immutable, and begins with its lengths.
        unsafe {
            let at = self.address(record);
            let (key_len, taken) = trusted_varint(at);
            std::slice::from_raw_parts(at.add(taken), key_len + TRAILER_BYTES)
        }
    }

    /// A record.
    ///
    /// # Safety
    /// As for [`KvBlock::key`].
    #[inline(always)]
    pub(super) unsafe fn record(&self, record: RecordRef) -> Record<'_> {
        // SAFETY: as in `key`.
        unsafe {
            let start = self.address(record);
            let (key_len, taken) = trusted_varint(start);
            let key = std::slice::from_raw_parts(start.add(taken), key_len + TRAILER_BYTES);
            let at = start.add(taken + key.len());
            let (value_len, value_taken) = trusted_varint(at);
            let value = std::slice::from_raw_parts(at.add(value_taken), value_len);
            let body = taken + key.len() + value_taken + value_len;
            let crc = start.add(body).cast::<u32>().read_unaligned();
            let body = std::slice::from_raw_parts(start, body);
            Record { key, value, body, crc: u32::from_le(crc) }
        }
    }

    /// Prefetches the first two cache lines of a record.
    ///
    /// # Safety
    /// As for [`KvBlock::key`].
    #[inline(always)]
    pub(super) unsafe fn prefetch(&self, record: RecordRef) {
        // SAFETY: by contract.
        prefetch(unsafe { self.address(record) }, 128);
    }

    /// Address of a record's first byte.
    ///
    /// # Safety
    /// As for [`KvBlock::key`].
    #[inline(always)]
    unsafe fn address(&self, record: RecordRef) -> *const u8 {
        let (number, at) = place(record);
        // SAFETY: the record was published after its slab was added; the offset lies in it.
        unsafe { self.table.base(number).add(at) }
    }
}

impl Drop for KvBlock {
    fn drop(&mut self) {
        for slab in self.slabs.get_mut().drain(..) {
            // SAFETY: `add_slab` leaked this box; nobody holds the block any more.
            drop(unsafe { Box::from_raw(slab) });
        }
    }
}

/// Reads a varint that this module wrote.
///
/// # Safety
/// `at` must point to a complete varint below 2^56.
#[inline(always)]
unsafe fn trusted_varint(at: *const u8) -> (usize, usize) {
    // SAFETY: by contract.
    let first = unsafe { at.read() };
    if first < 0x80 {
        return (first as usize, 1);
    }
    let mut value = (first & 0x7f) as usize;
    let mut taken = 1;
    loop {
        // SAFETY: the byte before had its continuation bit set.
        let byte = unsafe { at.add(taken).read() };
        value |= ((byte & 0x7f) as usize) << (7 * taken);
        taken += 1;
        if byte < 0x80 {
            return (value, taken);
        }
    }
}

/// Writes a record, its checksum and its padding.
///
/// # Safety
/// `to` must be valid for `padded` bytes that no other thread touches, and `padded` must be the
/// record's length rounded up to [`UNIT_BYTES`].
#[inline(always)]
unsafe fn write_record(to: *mut u8, padded: usize, key: &[u8], trailer: u64, value: &[u8]) {
    // SAFETY: every write below lies within the record's length, which `padded` covers.
    unsafe {
        to.add(padded - UNIT_BYTES).cast::<u64>().write_unaligned(0);
        let mut at = write_varint(to, key.len());
        std::ptr::copy_nonoverlapping(key.as_ptr(), to.add(at), key.len());
        at += key.len();
        to.add(at).cast::<u64>().write_unaligned(trailer.to_le());
        at += TRAILER_BYTES;
        at += write_varint(to.add(at), value.len());
        std::ptr::copy_nonoverlapping(value.as_ptr(), to.add(at), value.len());
        at += value.len();
        let crc = checksum::crc(std::slice::from_raw_parts(to, at));
        to.add(at).cast::<u32>().write_unaligned(crc.to_le());
    }
}

/// Writes a varint; returns its length.
///
/// # Safety
/// `to` must be valid for the varint's bytes.
#[inline(always)]
unsafe fn write_varint(to: *mut u8, value: usize) -> usize {
    if value < 0x80 {
        // SAFETY: by contract.
        unsafe { to.write(value as u8) };
        return 1;
    }
    let mut bytes = [0u8; VARINT64_BYTES_MAX];
    let (mut rest, mut len) = (value, 0);
    while rest >= 0x80 {
        bytes[len] = rest as u8 | 0x80;
        rest >>= 7;
        len += 1;
    }
    bytes[len] = rest as u8;
    // SAFETY: by contract.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, len + 1) };
    len + 1
}
