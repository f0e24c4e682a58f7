//! Conversion of keys and values between bytes and the text that a person types.
//!
//! Printable ASCII stands for itself. Other bytes and the backslash are written `\xNN`. Pure
//! functions.

use archipelago::{Error, Result};

/// The bytes of `text`. It replaces `\xNN`, `\n`, `\r`, `\t`, `\0` and `\\`.
pub(crate) fn unescape(text: &str) -> Result<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'\\' {
            out.push(byte);
            continue;
        }
        let wrong = || {
            Error::invalid(format!(
                "\"{text}\": a backslash must be followed by xNN, n, r, t, 0 or \\"
            ))
        };
        out.push(match bytes.next().ok_or_else(wrong)? {
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'0' => 0,
            b'\\' => b'\\',
            b'x' => {
                let mut digit = || {
                    let digit = char::from(bytes.next().ok_or_else(wrong)?);
                    digit.to_digit(16).ok_or_else(wrong)
                };
                (digit()? * 16 + digit()?) as u8
            }
            _ => return Err(wrong()),
        });
    }
    Ok(out)
}

/// The text that [`unescape`] reads back.
pub(crate) fn escape(bytes: &[u8]) -> String {
    bytes.escape_ascii().to_string().replace("\\'", "'").replace("\\\"", "\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_bytes_round_trip() {
        let every: Vec<u8> = (0..=255).collect();
        assert_eq!(unescape(&escape(&every)).unwrap(), every);
        assert_eq!(unescape("a\\x00\\n").unwrap(), b"a\0\n");
        for wrong in ["\\", "\\q", "\\x1", "\\xzz"] {
            assert!(unescape(wrong).is_err(), "{wrong}");
        }
    }
}
