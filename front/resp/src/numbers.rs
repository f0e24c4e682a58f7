//! Integers in strings, in their canonical spelling.

/// The number that `bytes` spell in the canonical way: without a plus sign, leading zeros or
/// blanks.
pub(crate) fn parse_i64(bytes: &[u8]) -> Option<i64> {
    let (negative, digits) = match bytes.strip_prefix(b"-") {
        Some(rest) => (true, rest),
        None => (false, bytes),
    };
    match digits {
        b"0" => return (!negative).then_some(0),
        [b'1'..=b'9', ..] if digits.len() <= 19 => {}
        _ => return None,
    }
    let mut value = 0u64;
    for &digit in digits {
        if !digit.is_ascii_digit() {
            return None;
        }
        value = value.checked_mul(10)?.checked_add(u64::from(digit - b'0'))?;
    }
    if negative { 0i64.checked_sub_unsigned(value) } else { i64::try_from(value).ok() }
}

/// The decimal digits of `value`, at the end of `buffer`.
#[inline]
pub(crate) fn format_i64(value: i64, buffer: &mut [u8; 20]) -> &[u8] {
    let mut left = value.unsigned_abs();
    let mut at = buffer.len();
    loop {
        at -= 1;
        buffer[at] = b'0' + (left % 10) as u8;
        left /= 10;
        if left == 0 {
            break;
        }
    }
    if value < 0 {
        at -= 1;
        buffer[at] = b'-';
    }
    &buffer[at..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_have_one_spelling() {
        for good in [0, 1, -1, 10, i64::MAX, i64::MIN, 1_000_000_000_000] {
            assert_eq!(parse_i64(good.to_string().as_bytes()), Some(good));
            assert_eq!(format_i64(good, &mut [0; 20]), good.to_string().as_bytes());
        }
        for bad in ["", "-", "+1", "01", "-0", " 1", "1 ", "1a", "9223372036854775808", "-01"] {
            assert_eq!(parse_i64(bad.as_bytes()), None, "{bad:?}");
        }
        assert_eq!(parse_i64(b"-9223372036854775809"), None);
    }
}
