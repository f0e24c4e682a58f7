use proptest::prelude::*;

use super::*;

fn sum(a: &str, b: &str) -> Result<String, SumError> {
    let there = add(a.as_bytes(), b.as_bytes());
    assert_eq!(add(b.as_bytes(), a.as_bytes()), there, "{b} + {a}");
    there
}

#[track_caller]
fn check(a: &str, b: &str, expected: &str) {
    assert_eq!(sum(a, b).as_deref(), Ok(expected), "{a} + {b}");
}

#[test]
fn sums_are_exact_decimals() {
    check("9007199254740993", "1e0", "9007199254740994");
    check("1073741824", "1e20", "100000000001073741824");
    check("1234567890.123456789", "1e-5", "1234567890.123466789");
    check("0.1", "0.2", "0.3");
    check("10.50", "0.1", "10.6");
    check("5.0e3", "2.0e2", "5200");
    check("3", "-5", "-2");
    check("-0.5", "0.25", "-0.25");
    check("1", "-1.00", "0");
    check("-0", "0", "0");
    check("99999999999999999999.9", "0.1", "100000000000000000000");
    check("1e-17", "-1e-17", "0");
    check("100", "-99.99999999999999999", "0.00000000000000001");
    check("1e300", "-1e300", "0");
    check("1e30", "-1", "999999999999999999999999999999");
}

#[test]
fn sums_are_rounded_to_17_digits_ties_to_even() {
    check("0.000003814697265625", "0", "0.00000381469726562");
    check("0.000003814697265635", "0", "0.00000381469726564");
    check("0.0000038146972656250000001", "0", "0.00000381469726563");
    check("-0.000003814697265625", "0", "-0.00000381469726562");
    check("0.999999999999999999", "0", "1");
    check("9.999999999999999995", "0", "10");
    check("5e-18", "0", "0");
    check("5.1e-18", "0", "0.00000000000000001");
    check("-1e-20", "0", "0");
    check("1e-4951", "0.5", "0.5");
    check("1e-4951", "0.000000000000000005", "0.00000000000000001");
    // The sum is rounded once, at the end.
    check("4e-18", "4e-18", "0.00000000000000001");
}

#[test]
fn only_spellings_of_redis_are_accepted() {
    for good in ["1", "+1", "1.", "1e0", "1E+0", "0001.000", ".1e1", "10e-1", "100.e-2"] {
        check(good, "0", "1");
    }
    for zero in ["0e999999999999999999999", "-0", "0.", ".0", "0e-99999", "000"] {
        check(zero, "0", "0");
    }
    let long_zero = "0".repeat(5119);
    check(&long_zero, "7", "7");
    for bad in [
        "", "+", "-", ".", "e5", ".e5", "1e", "1e+", "1e1.5", "1e5e5", "1.2.3", "--1", "+-1", " 1",
        "1 ", "1\n", "\t1", "1\0", "0x10", "1_000", "1,5", "nan", "-nan", "nan(1)", "abc", "1f",
        "infinit", "٣",
    ] {
        assert_eq!(sum(bad, "1"), Err(SumError::NotANumber), "{bad:?}");
    }
    assert_eq!(add(b"\xff", b"1"), Err(SumError::NotANumber));
    assert_eq!(sum(&"0".repeat(5120), "1"), Err(SumError::NotANumber));
}

#[test]
fn infinity_is_refused_as_a_sum_that_is_too_large() {
    for infinite in ["inf", "+inf", "-inf", "Infinity", "-INFINITY"] {
        assert_eq!(sum(infinite, "1"), Err(SumError::TooLarge), "{infinite}");
        assert_eq!(sum(infinite, "nan"), Err(SumError::NotANumber), "{infinite}");
    }
}

#[test]
fn magnitudes_have_the_limits_of_redis() {
    let largest = "1.18973149535723176505e4932";
    assert_eq!(sum(largest, "0").unwrap().len(), 4933);
    assert_eq!(sum(largest, "-0.00000000000000001").unwrap().len(), 4933 + 18);
    check("1e-4951", "0", "0");
    for bad in [
        "1.18973149535723176506e4932",
        "2e4932",
        "1e4933",
        "-1e4933",
        "1e99999999999999999999",
        "9.9e-4952",
        "1e-99999999999999999999",
    ] {
        assert_eq!(sum(bad, "1"), Err(SumError::NotANumber), "{bad}");
    }
    for (a, b) in [("1e4932", "1e4932"), ("-1e4932", "-1e4932"), (largest, "1e4930")] {
        assert_eq!(sum(a, b), Err(SumError::TooLarge), "{a} + {b}");
    }
    // A sum is a number again, whatever its length is.
    let long = sum("1e4932", "0.12345678901234567").unwrap();
    assert_eq!(sum(&long, "-1e4932").as_deref(), Ok("0.12345678901234567"));
}

/// The text of `mantissa · 10^-17`.
fn plain(mantissa: i128) -> String {
    const ONE: u128 = 10u128.pow(17);
    let (sign, size) = (if mantissa < 0 { "-" } else { "" }, mantissa.unsigned_abs());
    let text = format!("{sign}{}.{:017}", size / ONE, size % ONE);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

proptest! {
    #[test]
    fn sums_agree_with_integer_arithmetic(
        a in -(10i128.pow(36))..10i128.pow(36),
        b in -(10i128.pow(36))..10i128.pow(36),
        shift in -40i32..40,
    ) {
        // This is the same number with its point at another place.
        let moved = format!("{a}e{}", -17);
        let far = format!("{}{}e{}", a, "0".repeat(shift.unsigned_abs() as usize), -17 - shift.abs());
        let expected = plain(a + b);
        prop_assert_eq!(sum(&plain(a), &plain(b)), Ok(expected.clone()));
        prop_assert_eq!(sum(&moved, &plain(b)), Ok(expected.clone()));
        prop_assert_eq!(sum(&far, &plain(b)), Ok(expected));
    }

    #[test]
    fn hostile_text_is_refused_or_summed(a in "[0-9.eE+-]{0,12}", b in "[0-9.eE+-]{0,12}") {
        if let Ok(text) = add(a.as_bytes(), b.as_bytes()) {
            prop_assert!(text.len() <= 4952);
            prop_assert_eq!(sum(&text, "0"), Ok(text));
        }
    }
}
