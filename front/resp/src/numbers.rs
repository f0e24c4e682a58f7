//! Numbers as strings hold them: strict integers, and decimal fractions that add exactly.

/// `bytes` as an `i64` written the one canonical way: no plus, no leading zeros or blanks.
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

/// The decimal digits of `value`, in the tail of `buffer`.
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

/// Most digits after the point that are kept.
const FRACTION_MAX: u32 = 17;

/// `mantissa · 10^-scale`.
#[derive(Clone, Copy)]
struct Decimal {
    mantissa: i128,
    scale: u32,
}

impl Decimal {
    /// Plain notation only (`-12.5`), as long as it fits exactly.
    fn parse(text: &str) -> Option<Self> {
        let (negative, digits) = match text.as_bytes() {
            [b'-', rest @ ..] => (true, rest),
            [b'+', rest @ ..] => (false, rest),
            all => (false, all),
        };
        let (mut mantissa, mut scale, mut in_fraction) = (0i128, 0u32, false);
        for &byte in digits {
            match byte {
                b'0'..=b'9' => {
                    mantissa = mantissa.checked_mul(10)?.checked_add(i128::from(byte - b'0'))?;
                    scale += u32::from(in_fraction);
                }
                b'.' if !in_fraction => in_fraction = true,
                _ => return None,
            }
        }
        (scale <= FRACTION_MAX)
            .then_some(Self { mantissa: if negative { -mantissa } else { mantissa }, scale })
    }

    fn add(self, other: Self) -> Option<Self> {
        let scale = self.scale.max(other.scale);
        let raise = |d: Self| d.mantissa.checked_mul(10i128.checked_pow(scale - d.scale)?);
        Some(Self { mantissa: raise(self)?.checked_add(raise(other)?)?, scale })
    }

    fn text(self) -> String {
        let (sign, digits) =
            (if self.mantissa < 0 { "-" } else { "" }, self.mantissa.unsigned_abs().to_string());
        let scale = self.scale as usize;
        let digits = format!("{digits:0>width$}", width = scale + 1);
        let (whole, fraction) = digits.split_at(digits.len() - scale);
        match fraction.trim_end_matches('0') {
            "" => format!("{sign}{whole}"),
            fraction => format!("{sign}{whole}.{fraction}"),
        }
    }
}

/// The number that `bytes` spell, if it is a finite one.
fn parse_float(bytes: &[u8]) -> Option<(&str, f64)> {
    let text = std::str::from_utf8(bytes).ok()?;
    let plain =
        |byte: u8| byte.is_ascii_digit() || matches!(byte, b'.' | b'-' | b'+' | b'e' | b'E');
    if !text.bytes().all(plain) {
        return None;
    }
    Some((text, text.parse::<f64>().ok().filter(|value| value.is_finite())?))
}

/// Why a sum of fractions was refused.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SumError {
    /// One of the two is not a finite number.
    NotANumber,
    /// The sum is not finite.
    Overflow,
}

/// The sum of two numbers, each in decimal or exponent notation, in plain notation with at most
/// 17 digits after the point. Exact where both are plain and fit 38 digits; else as `f64`.
pub(crate) fn add_floats(a: &[u8], b: &[u8]) -> Result<String, SumError> {
    let (a_text, a_float) = parse_float(a).ok_or(SumError::NotANumber)?;
    let (b_text, b_float) = parse_float(b).ok_or(SumError::NotANumber)?;
    let exact = || Decimal::parse(a_text)?.add(Decimal::parse(b_text)?);
    if let Some(sum) = exact() {
        return Ok(sum.text());
    }
    let sum = a_float + b_float;
    if !sum.is_finite() {
        return Err(SumError::Overflow);
    }
    let text = format!("{sum}");
    let short = Decimal::parse(&text).map(Decimal::text);
    Ok(short.unwrap_or_else(|| {
        let fixed = format!("{sum:.17}");
        let short = fixed.trim_end_matches('0').trim_end_matches('.');
        if short == "-0" { "0".to_owned() } else { short.to_owned() }
    }))
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

    #[test]
    fn fractions_add_as_people_do() {
        let sum = |a: &str, b: &str| add_floats(a.as_bytes(), b.as_bytes());
        assert_eq!(sum("0.1", "0.2"), Ok("0.3".into()));
        assert_eq!(sum("10.50", "0.1"), Ok("10.6".into()));
        assert_eq!(sum("5.0e3", "2.0e2"), Ok("5200".into()));
        assert_eq!(sum("3", "-5"), Ok("-2".into()));
        assert_eq!(sum("-0.5", "0.25"), Ok("-0.25".into()));
        assert_eq!(sum("1", "-1.00"), Ok("0".into()));
        assert_eq!(sum("-1e-20", "0"), Ok("0".into()));
        assert_eq!(sum("1e308", "1e308"), Err(SumError::Overflow));
        for bad in ["", "abc", "inf", "nan", "1e999", " 1", "0x10", "."] {
            assert_eq!(sum(bad, "1"), Err(SumError::NotANumber), "{bad:?}");
        }
    }
}
