//! Safe values for libfabric, through `shim.c`. Besides `memory/mapping.rs` this is the only
//! `unsafe` code of the crate.
//!
//! Invariants:
//! 1. Only the value that owns a pointer of the shim uses it, between the call that made it and the
//!    call that ends it.
//! 2. The objects of a domain ([`Registered`], [`End`]) hold it, so that it is closed last.
//! 3. Memory that libfabric knows lies in a [`Mapping`], which is held until the registration or
//!    the endpoint is closed. This module does not access it as plain bytes, because a card may
//!    change it at any moment: it is loaded as atomic words.
//! 4. The shim checks offsets into staging memory in every call.
//!
//! Thread-safety: any thread may call any method, because the domain is `FI_THREAD_SAFE`.
//! Failure: an [`Error`] with libfabric's text, or a [`Code`] if the caller decides by it.
//! Cost: one call and no allocation on the data path.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fmt;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;

use archipelago_base::{Error, ErrorKind, Result};

use crate::ids::Rights;
use crate::memory::Mapping;
use crate::wire::ofi::NAME_BYTES_MAX;

#[repr(C)]
struct RawDomain {
    _opaque: [u8; 0],
}

#[repr(C)]
struct RawRegion {
    _opaque: [u8; 0],
}

#[repr(C)]
struct RawEnd {
    _opaque: [u8; 0],
}

/// Properties of a provider, in the layout of `struct apo_facts`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Facts {
    /// Limit of a message or operation in bytes.
    pub(super) message_bytes_max: u64,
    read_after_read: u32,
    read_after_write: u32,
    write_after_write: u32,
    write_after_read: u32,
}

/// A completion, in the layout of `struct apo_completion`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Completion {
    /// Token of the operation; `u32::MAX` for an error without an operation.
    pub(super) token: u32,
    /// Error code of libfabric; 0 for success.
    pub(super) error: i32,
    /// Length of a message that arrived.
    pub(super) bytes: u64,
}

/// A place in registered memory of another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RemoteAddress {
    /// Key of the registration.
    pub(super) key: u64,
    /// Address as the registration counts it.
    pub(super) address: u64,
}

// SAFETY: the names and types are those of `shim.c`, which is compiled and linked with this crate.
unsafe extern "C" {
    fn apo_domain_open(
        provider: *const c_char,
        local: *const c_char,
        out: *mut *mut RawDomain,
        facts: *mut Facts,
        text: *mut c_char,
        text_bytes: u64,
    ) -> c_int;
    fn apo_domain_close(domain: *mut RawDomain);
    fn apo_region_open(
        domain: *mut RawDomain,
        base: *mut c_void,
        bytes: u64,
        rights: u32,
        wanted: u64,
        out: *mut *mut RawRegion,
        key: *mut u64,
        address: *mut u64,
    ) -> c_int;
    fn apo_region_close(region: *mut RawRegion) -> c_int;
    fn apo_end_open(
        domain: *mut RawDomain,
        staging: *mut c_void,
        staging_bytes: u64,
        tokens: u32,
        out: *mut *mut RawEnd,
        text: *mut c_char,
        text_bytes: u64,
    ) -> c_int;
    fn apo_end_close(end: *mut RawEnd) -> c_int;
    fn apo_end_name(end: *mut RawEnd, name: *mut u8, bytes: *mut u64) -> c_int;
    fn apo_end_join(end: *mut RawEnd, name: *const u8, bytes: u64) -> c_int;
    fn apo_end_fd(end: *const RawEnd) -> c_int;
    fn apo_end_may_sleep(end: *mut RawEnd) -> c_int;
    fn apo_read(end: *mut RawEnd, token: u32, at: u64, bytes: u64, address: u64, key: u64)
    -> c_int;
    fn apo_write(
        end: *mut RawEnd,
        token: u32,
        at: u64,
        bytes: u64,
        address: u64,
        key: u64,
    ) -> c_int;
    fn apo_compare_swap(end: *mut RawEnd, token: u32, at: u64, address: u64, key: u64) -> c_int;
    fn apo_fetch_add(end: *mut RawEnd, token: u32, at: u64, address: u64, key: u64) -> c_int;
    fn apo_send(end: *mut RawEnd, token: u32, at: u64, bytes: u64) -> c_int;
    fn apo_receive(end: *mut RawEnd, token: u32, at: u64, bytes: u64) -> c_int;
    fn apo_poll(end: *mut RawEnd, out: *mut Completion, room: u32) -> c_int;
    fn apo_error_text(code: c_int) -> *const c_char;
}

/// A negative error code of libfabric.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Code(c_int);

impl Code {
    const AGAIN: c_int = -11;

    /// The code of a completion.
    pub(super) fn of(error: i32) -> Self {
        Self(-error.abs())
    }

    /// Whether the call must be repeated after some progress.
    pub(super) fn is_again(self) -> bool {
        self.0 == Self::AGAIN
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // SAFETY: libfabric answers any code with a string that lives forever.
        let text = unsafe { CStr::from_ptr(apo_error_text(self.0)) };
        write!(f, "{} ({})", text.to_string_lossy(), self.0)
    }
}

impl fmt::Debug for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

fn checked(code: c_int) -> Result<c_int, Code> {
    if code < 0 { Err(Code(code)) } else { Ok(code) }
}

const TEXT_BYTES: usize = 256;

fn failed(what: &str, text: &[u8; TEXT_BYTES]) -> Error {
    let text = CStr::from_bytes_until_nul(text).unwrap_or_default().to_string_lossy();
    Error::new(ErrorKind::Unsupported, format!("{what}: {text}"))
}

/// A provider at a network interface of this machine.
pub(super) struct Domain {
    raw: NonNull<RawDomain>,
    facts: Facts,
}

// SAFETY: any thread may use the objects of a domain that is FI_THREAD_SAFE.
unsafe impl Send for Domain {}
// SAFETY: the same reason as for `Send`.
unsafe impl Sync for Domain {}

impl fmt::Debug for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Domain({:?})", self.facts)
    }
}

impl Domain {
    pub(super) fn open(provider: &str, local: IpAddr) -> Result<Arc<Self>> {
        let what = format!("libfabric provider {provider} at {local}");
        let name = CString::new(provider).map_err(|_| Error::invalid(what.clone()))?;
        let address = CString::new(local.to_string()).map_err(|_| Error::invalid(what.clone()))?;
        let (mut raw, mut facts) = (std::ptr::null_mut(), Facts::default());
        let mut text = [0_u8; TEXT_BYTES];
        // SAFETY: the strings end with 0, and strings and results live during the call.
        let code = unsafe {
            apo_domain_open(
                name.as_ptr(),
                address.as_ptr(),
                &raw mut raw,
                &raw mut facts,
                text.as_mut_ptr().cast::<c_char>(),
                TEXT_BYTES as u64,
            )
        };
        let raw = NonNull::new(raw).filter(|_| code == 0).ok_or_else(|| failed(&what, &text))?;
        Ok(Arc::new(Self { raw, facts }))
    }

    pub(super) fn message_bytes_max(&self) -> u64 {
        self.facts.message_bytes_max
    }

    /// The order of operations that the provider keeps.
    pub(super) fn order(&self) -> super::order::Order {
        super::order::Order {
            read_after_read: self.facts.read_after_read != 0,
            read_after_write: self.facts.read_after_write != 0,
            write_after_write: self.facts.write_after_write != 0,
            write_after_read: self.facts.write_after_read != 0,
        }
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: invariants 1 and 2: no object of the domain is left.
        unsafe { apo_domain_close(self.raw.as_ptr()) };
    }
}

/// A region that remote clients reach until this is dropped.
pub(super) struct Registered {
    raw: NonNull<RawRegion>,
    key: u64,
    address: u64,
    _memory: Arc<Mapping>,
    _domain: Arc<Domain>,
}

// SAFETY: the same reason as for `Domain`.
unsafe impl Send for Registered {}
// SAFETY: the same reason as for `Domain`.
unsafe impl Sync for Registered {}

impl fmt::Debug for Registered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Registered")
    }
}

impl Registered {
    /// Registers all of `memory`. `wanted` is the key if the provider does not choose one.
    pub(super) fn new(
        domain: &Arc<Domain>,
        memory: &Arc<Mapping>,
        rights: Rights,
        wanted: u64,
    ) -> Result<Self, Code> {
        let (mut raw, mut key, mut address) = (std::ptr::null_mut(), 0, 0);
        let base = memory.words().as_ptr().cast_mut().cast::<c_void>();
        let (bytes, rights) = (memory.bytes() as u64, u32::from(rights.bits()));
        // SAFETY: the range is mapped while `memory` is held (invariant 3), and this process
        // accesses it only with atomic instructions.
        let code = unsafe {
            apo_region_open(
                domain.raw.as_ptr(),
                base,
                bytes,
                rights,
                wanted,
                &raw mut raw,
                &raw mut key,
                &raw mut address,
            )
        };
        checked(code)?;
        let raw = NonNull::new(raw).ok_or(Code(code))?;
        let (memory, domain) = (Arc::clone(memory), Arc::clone(domain));
        Ok(Self { raw, key, address, _memory: memory, _domain: domain })
    }

    /// Key and first address, as remote clients name them.
    pub(super) fn place(&self) -> (u64, u64) {
        (self.key, self.address)
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        // SAFETY: invariant 1: it is closed once.
        let code = unsafe { apo_region_close(self.raw.as_ptr()) };
        // Otherwise clients could continue to write to memory that its owner has freed.
        assert!(code == 0, "libfabric does not end a registration: {}", Code(code));
    }
}

/// An endpoint with one peer, its completions, and its staging memory.
pub(super) struct End {
    raw: NonNull<RawEnd>,
    staging: Mapping,
    _domain: Arc<Domain>,
}

// SAFETY: the same reason as for `Domain`. The shim changes only atomic values after the opening.
unsafe impl Send for End {}
// SAFETY: the same reason as for `Send`.
unsafe impl Sync for End {}

impl fmt::Debug for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "End({} bytes of staging)", self.staging.bytes())
    }
}

impl End {
    pub(super) fn open(domain: &Arc<Domain>, staging: Mapping, tokens: u32) -> Result<Self> {
        let mut raw = std::ptr::null_mut();
        let mut text = [0_u8; TEXT_BYTES];
        let base = staging.words().as_ptr().cast_mut().cast::<c_void>();
        // SAFETY: the domain lives, and the range is mapped while the endpoint lives (invariant 3).
        let code = unsafe {
            apo_end_open(
                domain.raw.as_ptr(),
                base,
                staging.bytes() as u64,
                tokens,
                &raw mut raw,
                text.as_mut_ptr().cast::<c_char>(),
                TEXT_BYTES as u64,
            )
        };
        let failed = || failed("cannot open an endpoint of libfabric", &text);
        let raw = NonNull::new(raw).filter(|_| code == 0).ok_or_else(failed)?;
        Ok(Self { raw, staging, _domain: Arc::clone(domain) })
    }

    /// Name of the endpoint, which the peer joins.
    pub(super) fn name(&self) -> Result<Vec<u8>, Code> {
        let mut name = vec![0; NAME_BYTES_MAX];
        let mut bytes = NAME_BYTES_MAX as u64;
        // SAFETY: the buffer has `bytes` bytes and lives during the call.
        checked(unsafe { apo_end_name(self.raw.as_ptr(), name.as_mut_ptr(), &raw mut bytes) })?;
        name.truncate(bytes as usize);
        Ok(name)
    }

    /// Makes the endpoint of this name the target of operations.
    pub(super) fn join(&self, name: &[u8]) -> Result<(), Code> {
        // SAFETY: the shim compares the length with the length of its own name before libfabric
        // reads it.
        let code = unsafe { apo_end_join(self.raw.as_ptr(), name.as_ptr(), name.len() as u64) };
        checked(code).map(|_| ())
    }

    pub(super) fn staging(&self) -> &Mapping {
        &self.staging
    }

    /// A descriptor that is readable when there is something to poll.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: libfabric keeps the descriptor open while the queue lives, which `self` owns.
        unsafe { BorrowedFd::borrow_raw(apo_end_fd(self.raw.as_ptr())) }
    }

    /// Whether a thread may sleep on [`End::fd`] now without missing a completion.
    pub(super) fn may_sleep(&self) -> bool {
        // SAFETY: invariant 1.
        unsafe { apo_end_may_sleep(self.raw.as_ptr()) == 0 }
    }

    pub(super) fn read(
        &self,
        token: u32,
        at: u64,
        bytes: u64,
        target: RemoteAddress,
    ) -> Result<(), Code> {
        // SAFETY: invariants 1 and 4.
        let code =
            unsafe { apo_read(self.raw.as_ptr(), token, at, bytes, target.address, target.key) };
        checked(code).map(|_| ())
    }

    /// Posts a WRITE, which completes when its bytes are placed.
    pub(super) fn write(
        &self,
        token: u32,
        at: u64,
        bytes: u64,
        target: RemoteAddress,
    ) -> Result<(), Code> {
        // SAFETY: invariants 1 and 4.
        let code =
            unsafe { apo_write(self.raw.as_ptr(), token, at, bytes, target.address, target.key) };
        checked(code).map(|_| ())
    }

    /// Posts a compare-and-swap. At `at` stand the new word, the expected word, and room for the
    /// old word.
    pub(super) fn compare_swap(
        &self,
        token: u32,
        at: u64,
        target: RemoteAddress,
    ) -> Result<(), Code> {
        // SAFETY: invariants 1 and 4.
        let code =
            unsafe { apo_compare_swap(self.raw.as_ptr(), token, at, target.address, target.key) };
        checked(code).map(|_| ())
    }

    /// Posts a fetch-and-add. At `at` stand the operand, an unused word, and room for the old word.
    pub(super) fn fetch_add(&self, token: u32, at: u64, target: RemoteAddress) -> Result<(), Code> {
        // SAFETY: invariants 1 and 4.
        let code =
            unsafe { apo_fetch_add(self.raw.as_ptr(), token, at, target.address, target.key) };
        checked(code).map(|_| ())
    }

    /// Sends a message. Returns whether a completion will arrive.
    pub(super) fn send(&self, token: u32, at: u64, bytes: u64) -> Result<bool, Code> {
        // SAFETY: invariants 1 and 4.
        let code = unsafe { apo_send(self.raw.as_ptr(), token, at, bytes) };
        checked(code).map(|code| code == 0)
    }

    pub(super) fn receive(&self, token: u32, at: u64, bytes: u64) -> Result<(), Code> {
        // SAFETY: invariants 1 and 4.
        let code = unsafe { apo_receive(self.raw.as_ptr(), token, at, bytes) };
        checked(code).map(|_| ())
    }

    /// Makes progress, and reads completions into the front of `into`. Returns their number.
    pub(super) fn poll(&self, into: &mut [Completion]) -> Result<usize, Code> {
        let room = u32::try_from(into.len()).unwrap_or(u32::MAX);
        // SAFETY: the buffer has room for that many completions, and lives during the call.
        let code = unsafe { apo_poll(self.raw.as_ptr(), into.as_mut_ptr(), room) };
        checked(code).map(|count| count as usize)
    }
}

impl Drop for End {
    fn drop(&mut self) {
        // SAFETY: invariant 1. No operation can complete into the staging memory after this call,
        // and the memory is unmapped next.
        let _closed = unsafe { apo_end_close(self.raw.as_ptr()) };
    }
}
