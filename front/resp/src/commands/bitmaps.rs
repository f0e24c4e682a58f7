//! Commands on values as strings of bits: SETBIT, GETBIT, BITCOUNT, BITPOS, BITOP.
//!
//! Bit 0 is the highest bit of the first byte. A value is read and written as a whole, so SETBIT of
//! a large value costs a copy of the value.

use std::ops::Range;

use super::strings::{built_bytes, check_value_size, slice, slice_in_order};
use crate::args::Args;
use crate::numbers::parse_i64;
use crate::refusal::{Handled, Refusal};
use crate::reply::Reply;
use crate::session::Session;
use crate::store::{Change, Op, PinnedSlice};

const BAD_OFFSET: Refusal = Refusal::fixed("ERR bit offset is not an integer or out of range");

/// The index of the byte that holds the bit at the offset of argument `at`, and the mask of the bit
/// in this byte.
fn bit_place(session: &Session, args: Args<'_>, at: usize) -> Result<(usize, u8), Refusal> {
    let offset = parse_i64(args.get(at)).and_then(|offset| u64::try_from(offset).ok());
    let offset = offset.ok_or(BAD_OFFSET)?;
    match usize::try_from(offset / 8) {
        Ok(byte) if byte < session.value_bytes_max() => Ok((byte, 0x80 >> (offset % 8))),
        _ => Err(BAD_OFFSET),
    }
}

pub(super) fn setbit(session: &Session, args: Args<'_>, reply: &mut Reply) -> Handled {
    let (byte, mask) = bit_place(session, args, 2)?;
    let on = match args.get(3) {
        b"0" => false,
        b"1" => true,
        _ => return Err(Refusal::fixed("ERR bit is not an integer or out of range")),
    };
    session.build(built_bytes(byte + 1))?;
    let was_on = session.modify(args.get(1), |entry| {
        let (old, expires_at_ms) =
            entry.map_or((&b""[..], None), |entry| (&entry.value[..], entry.expires_at_ms));
        let was_on = old.get(byte).is_some_and(|bits| bits & mask != 0);
        if was_on == on && byte < old.len() {
            return Ok((Change::Keep, was_on));
        }
        let len = old.len().max(byte + 1);
        session.build_more(built_bytes(len))?;
        let mut value = Vec::with_capacity(len);
        value.extend_from_slice(old);
        value.resize(len, 0);
        value[byte] = if on { value[byte] | mask } else { value[byte] & !mask };
        Ok((Change::Put { value: value.into(), expires_at_ms }, was_on))
    })?;
    reply.flag(was_on);
    Ok(())
}

pub(super) fn getbit(session: &Session, args: Args<'_>, reply: &mut Reply) -> Handled {
    let (byte, mask) = bit_place(session, args, 2)?;
    let entry = session.read(args.get(1))?;
    let bits = entry.and_then(|entry| entry.value.get(byte).copied());
    reply.flag(bits.is_some_and(|bits| bits & mask != 0));
    Ok(())
}

/// A range as a client gives it. Both ends are inclusive, a negative number counts from the end,
/// and the unit is a byte or a bit.
#[derive(Clone, Copy)]
struct Asked {
    start: i64,
    end: i64,
    is_in_bits: bool,
}

impl Asked {
    /// The range that begins at argument `at`. Without that argument it is the whole value.
    fn parse(args: Args<'_>, at: usize) -> Result<Self, Refusal> {
        let whole = Self { start: 0, end: -1, is_in_bits: false };
        Ok(Self {
            start: if args.len() > at { args.integer(at)? } else { whole.start },
            end: if args.len() > at + 1 { args.integer(at + 1)? } else { whole.end },
            is_in_bits: match args.len() {
                len if len <= at + 2 || args.is(at + 2, "byte") => false,
                len if len == at + 3 && args.is(at + 2, "bit") => true,
                _ => return Err(Refusal::SYNTAX),
            },
        })
    }

    /// The bits of a value of `len` bytes that the range names, if `slice` clips it to the value.
    fn bits(self, len: usize, slice: fn(usize, i64, i64) -> Range<usize>) -> Range<usize> {
        let unit = if self.is_in_bits { 1 } else { 8 };
        let units = slice(8 * len / unit, self.start, self.end);
        units.start * unit..units.end * unit
    }
}

/// The bytes that hold a part of `bits`. Bits outside the range are cleared. An empty range yields
/// no bytes.
fn masked(value: &[u8], bits: Range<usize>) -> impl Iterator<Item = u8> {
    let (first, last) = (bits.start / 8, bits.end.saturating_sub(1) / 8);
    let (head, tail) = (0xff >> (bits.start % 8), !(0x7f >> (bits.end.wrapping_sub(1) % 8)));
    let bytes = if bits.is_empty() { &[][..] } else { &value[first..=last] };
    bytes.iter().enumerate().map(move |(nth, byte)| {
        let byte = if nth == 0 { byte & head } else { *byte };
        if first + nth == last { byte & tail } else { byte }
    })
}

/// `BITCOUNT key [start end [BYTE|BIT]]`.
pub(super) fn bitcount(session: &Session, args: Args<'_>, reply: &mut Reply) -> Handled {
    if args.len() == 3 || args.len() > 5 {
        return Err(Refusal::SYNTAX);
    }
    let asked = Asked::parse(args, 2)?;
    let count = session.read(args.get(1))?.map_or(0, |entry| {
        let bits = asked.bits(entry.value.len(), slice_in_order);
        masked(&entry.value, bits).map(|byte| byte.count_ones() as usize).sum()
    });
    reply.count(count);
    Ok(())
}

/// Position of the first bit of `bits` that equals `on`.
fn find(value: &[u8], bits: Range<usize>, on: bool) -> Option<usize> {
    let (first, start) = (bits.start / 8, bits.start);
    let (end, mut place) = (bits.end, None);
    for (nth, byte) in value.iter().enumerate().take(end.div_ceil(8)).skip(first) {
        let sought = if on { *byte } else { !*byte };
        let sought = if nth == first { sought & (0xff >> (start % 8)) } else { sought };
        if sought != 0 {
            place = Some(8 * nth + sought.leading_zeros() as usize);
            break;
        }
    }
    place.filter(|place| *place < end)
}

/// `BITPOS key bit [start [end [BYTE|BIT]]]`.
pub(super) fn bitpos(session: &Session, args: Args<'_>, reply: &mut Reply) -> Handled {
    let on = match args.integer(2)? {
        0 => false,
        1 => true,
        _ => return Err(Refusal::fixed("ERR The bit argument must be 1 or 0.")),
    };
    if args.len() > 6 {
        return Err(Refusal::SYNTAX);
    }
    let asked = Asked::parse(args, 3)?;
    let Some(entry) = session.read(args.get(1))? else {
        // An absent key counts as a string of zeros without an end.
        reply.integer(if on { -1 } else { 0 });
        return Ok(());
    };
    let bits = asked.bits(entry.value.len(), slice);
    let has_end = args.len() > 4;
    let place = match find(&entry.value, bits.clone(), on) {
        Some(place) => place as i64,
        // The value counts as followed by zeros if the range has no end.
        None if !on && !has_end && !bits.is_empty() => 8 * entry.value.len() as i64,
        None => -1,
    };
    reply.integer(place);
    Ok(())
}

/// `BITOP AND|OR|XOR|NOT destination key…`. A shorter value counts as followed by zeros.
pub(super) fn bitop(session: &Session, args: Args<'_>, reply: &mut Reply) -> Handled {
    let combine: fn(u8, u8) -> u8 = match &args.text(1).to_ascii_lowercase()[..] {
        "and" => |a, b| a & b,
        "or" => |a, b| a | b,
        "xor" => |a, b| a ^ b,
        "not" if args.len() != 4 => {
            return Err(Refusal::fixed("ERR BITOP NOT must be called with a single source key."));
        }
        // NOT is an exclusive or with ones.
        "not" => |a, b| a ^ b,
        _ => return Err(Refusal::SYNTAX),
    };
    session.store().joint_writes()?;
    session.hold_for_values()?;
    loop {
        if let Some(len) = combine_values(session, args, combine)? {
            reply.count(len);
            return Ok(());
        }
        session.hold_all()?;
    }
}

/// Writes the result of BITOP and returns its length. `None`: nothing is done, because the session
/// has to hold more memory first.
fn combine_values(
    session: &Session,
    args: Args<'_>,
    combine: fn(u8, u8) -> u8,
) -> Result<Option<usize>, Refusal> {
    let (target, sources): (_, Vec<&[u8]>) = (args.get(2), args.from(3).collect());
    let _guard = session.lock_many(args.from(2));
    let values = session.store().multi_get(&sources)?;
    let len = values.iter().flatten().map(|value| value.len()).max().unwrap_or(0);
    check_value_size(session, len, 0)?;
    let read_bytes: u64 = values.iter().flatten().map(|value| value.len() as u64).sum();
    let (built, most) = (built_bytes(len), session.shared.memory.working.limit_bytes());
    // Many sources may need more than the share. Then the command holds the whole share.
    if !session.try_build(built.max((built + read_bytes).min(most)))? {
        return Ok(None);
    }
    let byte = |value: &Option<PinnedSlice>, at: usize| {
        value.as_ref().and_then(|value| value.get(at).copied()).unwrap_or(0)
    };
    let mut result: Vec<u8> = match args.is(1, "not") {
        true => vec![0xff; len],
        false => (0..len).map(|at| byte(&values[0], at)).collect(),
    };
    let rest = if args.is(1, "not") { &values[..] } else { &values[1..] };
    for value in rest {
        for (at, bits) in result.iter_mut().enumerate() {
            *bits = combine(*bits, byte(value, at));
        }
    }
    let op = match len {
        0 => Op::Delete { key: target },
        _ => Op::Put { key: target, value: &result, expires_at_ms: None },
    };
    session.write(&[op])?;
    Ok(Some(len))
}

#[cfg(test)]
mod tests {
    use super::{Asked, find, masked, slice};

    /// The bits of `value` in their order.
    fn bits_of(value: &[u8]) -> Vec<bool> {
        (0..8 * value.len()).map(|at| value[at / 8] & (0x80 >> (at % 8)) != 0).collect()
    }

    #[test]
    fn ranges_of_bits_agree_with_single_bits() {
        for value in [&b""[..], b"\0", b"\xff", b"\x80\x01", b"\0\xff\0", b"foobar"] {
            let bits = bits_of(value);
            for start in 0..bits.len() {
                for end in start..=bits.len() {
                    let ones = bits[start..end].iter().filter(|on| **on).count();
                    let counted: u32 = masked(value, start..end).map(u8::count_ones).sum();
                    assert_eq!(counted as usize, ones, "{value:?} {start}..{end}");
                    for on in [false, true] {
                        let place = (start..end).find(|at| bits[*at] == on);
                        assert_eq!(find(value, start..end, on), place, "{value:?} {start}..{end}");
                    }
                }
            }
        }
    }

    #[test]
    fn ranges_are_clipped_to_the_value() {
        let asked = |start, end, is_in_bits| Asked { start, end, is_in_bits }.bits(3, slice);
        assert_eq!(asked(0, -1, false), 0..24);
        assert_eq!(asked(-2, -2, false), 8..16);
        assert_eq!(asked(5, 30, true), 5..24);
        assert_eq!(asked(-5, 100, true), 19..24);
        assert_eq!(asked(i64::MIN, i64::MAX, true), 0..24);
        assert_eq!(asked(2, 1, false), 0..0);
        assert_eq!(asked(3, 9, false), 0..0);
        assert_eq!(asked(0, -100, false), 0..8);
        assert_eq!(asked(0, -100, true), 0..1);
    }
}
