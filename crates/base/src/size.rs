//! Sizes as people write and read them: `4GiB`, `16 MiB`, `4096`.

use crate::{Error, Result};

const UNITS: &[(&str, u64)] = &[
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("K", 1 << 10),
    ("M", 1 << 20),
    ("G", 1 << 30),
    ("T", 1 << 40),
    ("B", 1),
];

/// Bytes that `text` names. Units are powers of 1024, and a number alone is bytes. Errors:
/// `InvalidArgument` if `text` is not a size, or is more than 2^64 bytes.
pub fn parse(text: &str) -> Result<u64> {
    let wrong = || {
        Error::invalid(format!("{text:?} is no size: write bytes, or a number with KiB, MiB, GiB"))
    };
    let trimmed = text.trim();
    let unit = UNITS.iter().find(|(unit, _)| trimmed.ends_with(unit));
    let (digits, factor) = match unit {
        Some((unit, factor)) => (trimmed.trim_end_matches(unit).trim_end(), *factor),
        None => (trimmed, 1),
    };
    let number: u64 = digits.parse().map_err(|_| wrong())?;
    number.checked_mul(factor).ok_or_else(wrong)
}

/// Text of `bytes` with a unit and at most one decimal.
#[must_use]
pub fn show(bytes: u64) -> String {
    let unit = UNITS[..4].iter().rev().find(|(_, factor)| bytes >= *factor);
    match unit {
        None => format!("{bytes} B"),
        Some((unit, factor)) if bytes.is_multiple_of(*factor) => {
            format!("{} {unit}", bytes / factor)
        }
        Some((unit, factor)) => format!("{:.1} {unit}", bytes as f64 / *factor as f64),
    }
}

#[cfg(test)]
mod tests {
    use super::{parse, show};

    #[test]
    fn sizes_are_read_and_shown() {
        assert_eq!(parse("4GiB").ok(), Some(4 << 30));
        assert_eq!(parse("16 MiB").ok(), Some(16 << 20));
        assert_eq!(parse("64K").ok(), Some(64 << 10));
        assert_eq!(parse("4096").ok(), Some(4096));
        for wrong in ["", "GiB", "-1", "1.5GiB", "99999999999GiB", "4 apples"] {
            let error = parse(wrong).expect_err("refused").to_string();
            assert!(error.contains("GiB"), "{error}");
        }
        assert_eq!(show(4 << 30), "4 GiB");
        assert_eq!(show(1536), "1.5 KiB");
        assert_eq!(show(17), "17 B");
    }
}
