//! Exact sums of decimal numbers, for INCRBYFLOAT.
//!
//! [`add`] accepts the numbers that Redis accepts in decimal notation. It returns the sum as Redis
//! documents it: in plain notation, rounded to 17 digits after the point, without trailing zeros.
//! Redis computes in `long double`, whose sums have binary noise after the 18th digit. Here digits
//! stay decimal, so only the rounding changes a sum. A tie is rounded to the even digit, as in
//! `printf`.
//!
//! A number is an optional sign, digits with at most one point among them, and an optional
//! exponent. It has at most 5,119 bytes and no blanks. Its magnitude must be that of a `long
//! double` of x86: 0, or from 1e-4951 to 1.18973149535723176505e4932. `inf` is recognised, so that
//! it can be refused like a sum that is too large. Hexadecimal numbers are refused.
//!
//! Pure functions. Cost: time and memory in proportion to the digits between the first and the last
//! digit of both numbers, at most about 15,000 (1e4932 and 1e-4951 with long fractions). A result
//! has at most 4,952 bytes.

use std::cmp::Ordering;

/// Digits after the point to which a sum is rounded.
const FRACTION_DIGITS: i32 = 17;

/// Longest number in bytes, as in Redis.
const TEXT_BYTES_MAX: usize = 5 * 1024 - 1;

/// Every number is below ten to this power.
const TOP_MAX: i32 = 4933;

/// No number but 0 is below ten to this power.
const BOTTOM: i32 = -4951;

/// First digits of the largest number, the first of which counts 10^4932. It is the largest `long
/// double`. Larger numbers that round to it are equal to it.
const LARGEST: &[u8] = b"118973149535723176505";

/// Reason for which a sum is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SumError {
    /// One of the two is not a number, or its magnitude is too large or too small.
    NotANumber,
    /// The sum is too large, or one of the two is infinite.
    TooLarge,
}

/// The number `±digits · 10^exponent`. Zero has no digits and exponent 0.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Decimal {
    negative: bool,
    /// Values 0 to 9, the most significant first. Neither the first nor the last is 0.
    digits: Vec<u8>,
    /// Power of ten of the last digit.
    exponent: i32,
}

/// The sum of two numbers in plain notation.
pub(crate) fn add(a: &[u8], b: &[u8]) -> Result<String, SumError> {
    let (a, b) = (Decimal::parse(a)?, Decimal::parse(b)?);
    let sum = match (a, b) {
        (Some(a), Some(b)) => a.plus(b).rounded(),
        _ => return Err(SumError::TooLarge),
    };
    if sum.is_too_large() { Err(SumError::TooLarge) } else { Ok(sum.text()) }
}

/// Removes a leading `+` or `-`, and returns whether it was `-`.
fn split_sign(text: &[u8]) -> (bool, &[u8]) {
    match text {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        all => (false, all),
    }
}

/// The power after an `e`. A power outside all limits stays outside.
fn parse_exponent(text: &[u8]) -> Option<i64> {
    let (negative, digits) = split_sign(text);
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let digit = |value: i64, byte: &u8| {
        value.saturating_mul(10).saturating_add(i64::from(byte - b'0')).min(1 << 32)
    };
    let value = digits.iter().fold(0, digit);
    Some(if negative { -value } else { value })
}

impl Decimal {
    /// `None`: the number is infinite.
    fn parse(text: &[u8]) -> Result<Option<Self>, SumError> {
        let (negative, text_of_size) = split_sign(text);
        if ["inf", "infinity"].iter().any(|name| text_of_size.eq_ignore_ascii_case(name.as_bytes()))
        {
            return Ok(None);
        }
        let number = (text.len() <= TEXT_BYTES_MAX)
            .then(|| Self::parse_finite(negative, text_of_size))
            .flatten();
        number.map(Some).ok_or(SumError::NotANumber)
    }

    fn parse_finite(negative: bool, text: &[u8]) -> Option<Self> {
        let mantissa_end = text.iter().position(|byte| matches!(byte, b'e' | b'E'));
        let (mantissa, power) = match mantissa_end {
            Some(at) => (&text[..at], parse_exponent(&text[at + 1..])?),
            None => (text, 0),
        };
        let mut parts = mantissa.splitn(2, |byte| *byte == b'.');
        let (whole, fraction) =
            (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        if whole.is_empty() && fraction.is_empty() {
            return None;
        }
        let mut digits = Vec::with_capacity(whole.len() + fraction.len());
        for byte in whole.iter().chain(fraction) {
            if !byte.is_ascii_digit() {
                return None;
            }
            digits.push(byte - b'0');
        }
        // Both powers are far from the limits of 64 bits.
        let exponent = power - fraction.len() as i64;
        let first = digits.iter().position(|digit| *digit != 0);
        let Some(first) = first else {
            return Some(Self { negative: false, digits: Vec::new(), exponent: 0 });
        };
        let top = exponent + (digits.len() - first) as i64;
        if top > i64::from(TOP_MAX) || top <= i64::from(BOTTOM) {
            return None;
        }
        let number = Self { negative, digits, exponent: i32::try_from(exponent).ok()? }.trimmed();
        (!number.is_too_large()).then_some(number)
    }

    /// The number without zeros at either end.
    fn trimmed(mut self) -> Self {
        let end = self.digits.iter().rposition(|digit| *digit != 0).map_or(0, |at| at + 1);
        self.exponent += (self.digits.len() - end) as i32;
        self.digits.truncate(end);
        let first = self.digits.iter().position(|digit| *digit != 0).unwrap_or(0);
        self.digits.drain(..first);
        if self.digits.is_empty() {
            return Self { negative: false, digits: self.digits, exponent: 0 };
        }
        self
    }

    /// The smallest power of ten that is larger than the number.
    fn top(&self) -> i32 {
        self.exponent + self.digits.len() as i32
    }

    fn is_too_large(&self) -> bool {
        let digit = |at: usize| self.digits.get(at).map_or(b'0', |digit| digit + b'0');
        match self.top().cmp(&TOP_MAX) {
            Ordering::Less => false,
            Ordering::Equal => {
                let first: Vec<u8> = (0..LARGEST.len()).map(digit).collect();
                first[..] > *LARGEST
            }
            Ordering::Greater => true,
        }
    }

    /// The digits at the powers from `top` down to `bottom`, with zeros where the number has none.
    fn spread(&self, top: i32, bottom: i32) -> Vec<u8> {
        let mut digits = vec![0; (top - self.top()) as usize];
        digits.extend_from_slice(&self.digits);
        digits.resize((top - bottom) as usize, 0);
        digits
    }

    fn plus(self, other: Self) -> Self {
        if self.digits.is_empty() {
            return other;
        }
        if other.digits.is_empty() {
            return self;
        }
        // One digit more than both numbers have, for a carry.
        let top = self.top().max(other.top()) + 1;
        let bottom = self.exponent.min(other.exponent);
        let (mut large, mut small) = (self.spread(top, bottom), other.spread(top, bottom));
        let mut negative = self.negative;
        let same_sign = self.negative == other.negative;
        if !same_sign && large < small {
            (large, small, negative) = (small, large, other.negative);
        }
        let mut carry = 0;
        for (digit, other) in large.iter_mut().zip(&small).rev() {
            if same_sign {
                let sum = *digit + other + carry;
                (*digit, carry) = (sum % 10, sum / 10);
            } else {
                let (take, has) = (other + carry, *digit);
                carry = u8::from(has < take);
                *digit = has + 10 * carry - take;
            }
        }
        assert_eq!(carry, 0, "the first place takes the carry");
        Self { negative, digits: large, exponent: bottom }.trimmed()
    }

    /// The number rounded to [`FRACTION_DIGITS`], with a tie to the even digit.
    fn rounded(self) -> Self {
        let surplus = -FRACTION_DIGITS - self.exponent;
        if surplus <= 0 {
            return self;
        }
        // One more digit for a carry.
        let top = self.top().max(-FRACTION_DIGITS) + 1;
        let mut digits = self.spread(top, self.exponent);
        let rest = digits.split_off(digits.len() - surplus as usize);
        let is_odd = digits.last().is_some_and(|digit| digit % 2 == 1);
        // The remainder ends with a digit that is not 0.
        let up = match rest[0].cmp(&5) {
            Ordering::Equal => rest.len() > 1 || is_odd,
            order => order == Ordering::Greater,
        };
        if up {
            let nines = digits.iter().rev().take_while(|digit| **digit == 9).count();
            let at = digits.len() - nines;
            digits[at..].fill(0);
            digits[at - 1] += 1;
        }
        Self { negative: self.negative, digits, exponent: -FRACTION_DIGITS }.trimmed()
    }

    fn text(&self) -> String {
        if self.digits.is_empty() {
            return "0".to_owned();
        }
        let places = self.spread(self.top().max(1), self.exponent.min(0));
        let whole = places.len() - self.exponent.min(0).unsigned_abs() as usize;
        let mut text = String::with_capacity(places.len() + 2);
        if self.negative {
            text.push('-');
        }
        for (at, digit) in places.iter().enumerate() {
            if at == whole {
                text.push('.');
            }
            text.push(char::from(b'0' + digit));
        }
        text
    }
}

#[cfg(test)]
mod tests;
