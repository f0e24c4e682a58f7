//! Encoding of batches and their outcomes, for providers whose clients do not access memory
//! themselves.
//!
//! The module consists of pure functions. A decoder checks the limits of a batch before it
//! allocates.

use archipelago_base::codec::{Reader, put_u8, put_u32, put_u64};
use archipelago_base::wire::{Malformed, Wire};

use crate::batch::{BATCH_BYTES_MAX, BATCH_OPS_MAX, Batch, Op, Outcome};
use crate::ids::RegionId;
use crate::refusal::{Reason, Refusal};

const READ: u8 = 1;
const WRITE: u8 = 2;
const COMPARE_SWAP: u8 = 3;
const FETCH_ADD: u8 = 4;

/// An operation with its key, and with the bytes of a WRITE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WireOp<'a> {
    /// Region of the key.
    pub region: RegionId,
    /// Tag of the key.
    pub tag: u64,
    /// First byte in the region.
    pub offset: u64,
    /// The operation and its operands.
    pub action: WireAction<'a>,
}

/// The operation of a [`WireOp`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireAction<'a> {
    /// READ of this number of bytes.
    Read(u32),
    /// WRITE of these bytes.
    Write(&'a [u8]),
    /// Replacement of the first value, if the word has it, by the second.
    CompareSwap(u64, u64),
    /// Addition of this value.
    FetchAdd(u64),
}

/// Appends the body of a batch. `keys` has region and tag of each operation.
pub fn encode_ops(out: &mut Vec<u8>, batch: &mut Batch, keys: &[(RegionId, u64)]) {
    put_u32(out, batch.len() as u32);
    for (index, (region, tag)) in keys.iter().enumerate() {
        let (op, bytes) = batch.op_mut(index);
        let mut head = |code: u8, offset: u64| {
            put_u8(out, code);
            put_u32(out, region.0);
            put_u64(out, *tag);
            put_u64(out, offset);
        };
        match op {
            Op::Read { offset, len, .. } => {
                head(READ, offset);
                put_u32(out, len);
            }
            Op::Write { offset, len, .. } => {
                head(WRITE, offset);
                put_u32(out, len);
                out.extend_from_slice(bytes);
            }
            Op::CompareSwap { offset, expect, new, .. } => {
                head(COMPARE_SWAP, offset);
                put_u64(out, expect);
                put_u64(out, new);
            }
            Op::FetchAdd { offset, add, .. } => {
                head(FETCH_ADD, offset);
                put_u64(out, add);
            }
        }
    }
}

/// Reads the body of a batch into `ops`, which is cleared first. All bytes must belong to it, and
/// it must keep the limits of a batch.
pub fn decode_ops<'a>(body: &'a [u8], ops: &mut Vec<WireOp<'a>>) -> Result<(), Malformed> {
    ops.clear();
    let mut reader = Reader::new(body);
    let count = reader.u32().ok_or(Malformed("a batch without a count"))? as usize;
    if count > BATCH_OPS_MAX {
        return Err(Malformed("a batch of more operations than any may have"));
    }
    let mut bytes = 0;
    for _ in 0..count {
        let op = operation(&mut reader)?;
        bytes += match op.action {
            WireAction::Read(len) => len as usize,
            WireAction::Write(bytes) => bytes.len(),
            _ => 0,
        };
        if bytes > BATCH_BYTES_MAX {
            return Err(Malformed("a batch of more bytes than any may have"));
        }
        ops.push(op);
    }
    if reader.is_empty() { Ok(()) } else { Err(Malformed("bytes after the last operation")) }
}

fn operation<'a>(reader: &mut Reader<'a>) -> Result<WireOp<'a>, Malformed> {
    const CUT: Malformed = Malformed("an operation that is cut off");
    let code = reader.u8().ok_or(CUT)?;
    let mut rest = || {
        let (region, tag, offset) = (RegionId(reader.u32()?), reader.u64()?, reader.u64()?);
        let action = match code {
            READ => WireAction::Read(reader.u32()?),
            WRITE => {
                let len = reader.u32()? as usize;
                WireAction::Write(reader.take(len)?)
            }
            COMPARE_SWAP => WireAction::CompareSwap(reader.u64()?, reader.u64()?),
            FETCH_ADD => WireAction::FetchAdd(reader.u64()?),
            _ => return Some(None),
        };
        Some(Some(WireOp { region, tag, offset, action }))
    };
    rest().ok_or(CUT)?.ok_or(Malformed("an operation of an unknown kind"))
}

/// Appends the outcome of a WRITE, or the old word of an atomic operation.
pub(crate) fn put_done(out: &mut Vec<u8>, word: Option<u64>) {
    put_u8(out, 0);
    if let Some(word) = word {
        put_u64(out, word);
    }
}

/// Appends the outcome of a READ. Returns the position at which its bytes go.
pub(crate) fn put_done_read(out: &mut Vec<u8>, len: u32) -> usize {
    put_u8(out, 0);
    put_u32(out, len);
    let at = out.len();
    out.resize(at + len as usize, 0);
    at
}

/// Appends a refusal, which ends the outcomes of a batch.
pub(crate) fn put_refused(out: &mut Vec<u8>, refusal: Refusal) {
    refusal.put(out);
}

/// Reads the rest of a refusal whose code was already read.
fn get_refusal(code: u8, reader: &mut Reader<'_>) -> Option<Refusal> {
    Some(Refusal { reason: Reason::from_code(code)?, limit: reader.u64()? })
}

/// Reads the outcomes of all operations of `batch` up to the first refusal. After an error the
/// content of the batch is arbitrary.
pub fn decode_done(body: &[u8], batch: &mut Batch) -> Result<(), Malformed> {
    const CUT: Malformed = Malformed("outcomes that are cut off");
    let mut reader = Reader::new(body);
    for index in 0..batch.len() {
        let code = reader.u8().ok_or(CUT)?;
        if code != 0 {
            let refusal =
                get_refusal(code, &mut reader).ok_or(Malformed("a refusal that cannot be read"))?;
            batch.refuse_from(index, refusal);
            break;
        }
        let (op, into) = batch.op_mut(index);
        let outcome = match op {
            Op::Read { len, .. } => {
                if reader.u32().ok_or(CUT)? != len {
                    return Err(Malformed("a READ of another length than was asked for"));
                }
                into.copy_from_slice(reader.take(len as usize).ok_or(CUT)?);
                Outcome::Read
            }
            Op::Write { .. } => Outcome::Visible,
            Op::CompareSwap { .. } | Op::FetchAdd { .. } => Outcome::Word(reader.u64().ok_or(CUT)?),
        };
        batch.finish(index, outcome);
    }
    if reader.is_empty() { Ok(()) } else { Err(Malformed("bytes after the last outcome")) }
}
