//! Patterns of KEYS and SCAN MATCH: `*`, `?`, `[a-c]`, `[^x]`, and a backslash before a byte that
//! is meant as it stands.
//!
//! Pure. Cost: O(pattern · text) at worst, whatever the number of stars: a star is tried again
//! only from the last one.

/// Whether all of `text` fits `pattern`.
pub(crate) fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    // Where to go on when a later part does not fit: behind the last star, one byte further.
    let mut retry: Option<(usize, usize)> = None;
    loop {
        if pattern.get(p) == Some(&b'*') {
            p += 1;
            retry = Some((p, t));
            continue;
        }
        if t == text.len() && p == pattern.len() {
            return true;
        }
        let step = text.get(t).and_then(|&byte| match_one(&pattern[p..], byte));
        match (step, retry) {
            (Some(taken), _) => {
                p += taken;
                t += 1;
            }
            (None, Some((star, from))) if from < text.len() => {
                (p, t) = (star, from + 1);
                retry = Some((star, t));
            }
            _ => return false,
        }
    }
}

/// If the first element of `pattern` (no star) fits `byte`: the element's length.
fn match_one(pattern: &[u8], byte: u8) -> Option<usize> {
    match *pattern {
        [] => None,
        [b'?', ..] => Some(1),
        [b'\\', escaped, ..] => (escaped == byte).then_some(2),
        [b'[', ref class @ ..] => {
            let (fits, taken) = match_class(class, byte);
            fits.then_some(1 + taken)
        }
        [plain, ..] => (plain == byte).then_some(1),
    }
}

/// Whether `byte` is in the class whose text starts after its `[`; and that text's length. A
/// class without an end reaches to the end of the pattern.
fn match_class(class: &[u8], byte: u8) -> (bool, usize) {
    let negated = class.first() == Some(&b'^');
    let mut at = usize::from(negated);
    let mut found = false;
    loop {
        match &class[at.min(class.len())..] {
            [] => return (found != negated, class.len()),
            [b']', ..] => return (found != negated, at + 1),
            [b'\\', escaped, ..] => {
                found |= *escaped == byte;
                at += 2;
            }
            [low, b'-', high, ..] if *high != b']' => {
                let (low, high) = (low.min(high), low.max(high));
                found |= (*low..=*high).contains(&byte);
                at += 3;
            }
            [plain, ..] => {
                found |= *plain == byte;
                at += 1;
            }
        }
    }
}

/// The bytes that every match starts with: a scan need not leave their range.
pub(crate) fn literal_prefix(pattern: &[u8]) -> Vec<u8> {
    let mut prefix = Vec::new();
    let mut rest = pattern;
    loop {
        match *rest {
            [] | [b'*' | b'?' | b'[', ..] => return prefix,
            [b'\\', escaped, ref more @ ..] => {
                prefix.push(escaped);
                rest = more;
            }
            [plain, ref more @ ..] => {
                prefix.push(plain);
                rest = more;
            }
        }
    }
}

/// The smallest key after all keys that start with `prefix`; `None` if there is none.
pub(crate) fn prefix_end(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|&byte| byte != u8::MAX)?;
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    Some(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fits(pattern: &str, text: &str) -> bool {
        matches(pattern.as_bytes(), text.as_bytes())
    }

    #[test]
    fn patterns_fit_as_redis_users_expect() {
        for (pattern, text) in [
            ("*", ""),
            ("**", "abc"),
            ("h?llo", "hallo"),
            ("h*llo", "heeeello"),
            ("h[ae]llo", "hello"),
            ("h[^e]llo", "hallo"),
            ("h[a-c]llo", "hbllo"),
            ("h[c-a]llo", "hbllo"),
            ("a\\*b", "a*b"),
            ("[\\]]x", "]x"),
            ("*a*b*c", "xxaxxbxxc"),
            ("a[b", "ab"),
            ("a\\", "a\\"),
            ("[a-]x", "-x"),
            ("", ""),
        ] {
            assert!(fits(pattern, text), "{pattern} {text}");
        }
        for (pattern, text) in [
            ("", "a"),
            ("?", ""),
            ("h?llo", "hllo"),
            ("h[^e]llo", "hello"),
            ("a\\*b", "axb"),
            ("*a*b", "ab_"),
            ("abc", "ab"),
            ("ab", "abc"),
            ("[", "["),
        ] {
            assert!(!fits(pattern, text), "{pattern} {text}");
        }
    }

    #[test]
    fn many_stars_stay_cheap() {
        let pattern = "a*".repeat(200) + "b";
        assert!(!fits(&pattern, &"a".repeat(20_000)));
    }

    #[test]
    fn prefixes_bound_a_scan() {
        assert_eq!(literal_prefix(b"user:*"), b"user:");
        assert_eq!(literal_prefix(b"a\\*b?"), b"a*b");
        assert_eq!(literal_prefix(b"*"), b"");
        assert_eq!(prefix_end(b"ab"), Some(b"ac".to_vec()));
        assert_eq!(prefix_end(b"a\xff\xff"), Some(b"b".to_vec()));
        assert_eq!(prefix_end(b"\xff"), None);
        assert_eq!(prefix_end(b""), None);
    }
}
