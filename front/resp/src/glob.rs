//! Patterns of KEYS and SCAN MATCH: `*`, `?`, `[a-c]`, `[^x]`, and a backslash before a literal
//! byte.
//!
//! Pure functions. [`Pattern::new`] cuts a pattern at its stars into runs of elements, each of
//! which matches one byte. The first and the last run stand at the ends of the text. Every other
//! run is searched from the end of the run before it, and the first match is the right one. A run
//! of up to 64 elements is searched with all its partial matches in one word (the Shift-And
//! method). A longer run uses as many words as it needs.
//!
//! Cost: a match takes at most `text · (longest run / 64 + 1)` steps for long runs, and 32 steps
//! for each byte of the text for short runs, whatever the pattern is. A compiled pattern takes at
//! most about 100 bytes for each of its bytes. Most of that is the table of 2 KiB for each 64
//! elements of a long run.

use crate::refusal::Refusal;

/// Longest pattern in bytes: a key of the largest size with every byte escaped.
const PATTERN_BYTES_MAX: usize = 128 << 10;

/// Runs of up to this number of elements are compared at each position of the text.
const SHORT_RUN_MAX: usize = 32;

/// Set of bytes that one element matches.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Element {
    /// Exactly this byte.
    Byte(u8),
    /// Every byte matches.
    Any,
    /// The bytes whose bits are set.
    Class(Box<[u64; 4]>),
}

impl Element {
    fn fits(&self, byte: u8) -> bool {
        match self {
            Self::Byte(wanted) => *wanted == byte,
            Self::Any => true,
            Self::Class(bits) => bits[usize::from(byte / 64)] & (1 << (byte % 64)) != 0,
        }
    }
}

/// Elements between two stars.
#[derive(Debug)]
struct Run {
    elements: Vec<Element>,
    /// The elements that match each byte value: `words` words of 64 elements each. Empty for a
    /// short run.
    fitting: Vec<u64>,
    words: usize,
}

impl Run {
    fn new(elements: Vec<Element>, is_searched: bool) -> Self {
        let words = elements.len().div_ceil(64);
        let mut fitting = Vec::new();
        if is_searched && elements.len() > SHORT_RUN_MAX {
            fitting = vec![0; 256 * words];
            for (at, element) in elements.iter().enumerate() {
                for byte in (0..=u8::MAX).filter(|byte| element.fits(*byte)) {
                    fitting[usize::from(byte) * words + at / 64] |= 1 << (at % 64);
                }
            }
        }
        Self { elements, fitting, words }
    }

    /// Whether the run matches the first bytes of `text`.
    fn fits(&self, text: &[u8]) -> bool {
        text.len() >= self.elements.len()
            && self.elements.iter().zip(text).all(|(element, byte)| element.fits(*byte))
    }

    /// End of the first match of the run.
    fn find(&self, text: &[u8]) -> Option<usize> {
        let len = self.elements.len();
        if self.fitting.is_empty() {
            let last = text.len().checked_sub(len)?;
            return (0..=last).find(|at| self.fits(&text[*at..])).map(|at| at + len);
        }
        // Bit n of `partial` says that the last n + 1 bytes of the text match the first n + 1
        // elements.
        let mut partial = vec![0u64; self.words];
        let (last_word, last_bit) = ((len - 1) / 64, (len - 1) % 64);
        for (at, byte) in text.iter().enumerate() {
            let fitting = &self.fitting[usize::from(*byte) * self.words..][..self.words];
            let mut carry = 1;
            for (word, fits) in partial.iter_mut().zip(fitting) {
                let shifted = *word << 1 | carry;
                carry = *word >> 63;
                *word = shifted & fits;
            }
            if partial[last_word] >> last_bit & 1 == 1 {
                return Some(at + 1);
            }
        }
        None
    }
}

/// A compiled pattern.
#[derive(Debug)]
pub(crate) struct Pattern {
    /// Run before the first star. It is the whole pattern if there is no star.
    first: Run,
    /// Runs between stars. None of them is empty.
    middle: Vec<Run>,
    /// Run after the last star; `None` if there is no star.
    last: Option<Run>,
}

impl Pattern {
    /// Compiles a pattern. A pattern that is longer than any key needs is refused.
    pub(crate) fn new(pattern: &[u8]) -> Result<Self, Refusal> {
        if pattern.len() > PATTERN_BYTES_MAX {
            return Err(Refusal::said(format!(
                "ERR the pattern has {} bytes: at most {PATTERN_BYTES_MAX} are allowed",
                pattern.len()
            )));
        }
        let (mut runs, mut rest) = (vec![Vec::new()], pattern);
        while let [byte, ..] = rest {
            if *byte == b'*' {
                rest = &rest[1..];
                // Adjacent stars are equal to one star.
                if runs.len() == 1 || runs.last().is_some_and(|run| !run.is_empty()) {
                    runs.push(Vec::new());
                }
                continue;
            }
            let (element, taken) = element(rest);
            runs.last_mut().expect("there is always a run").push(element);
            rest = &rest[taken..];
        }
        let last = (runs.len() > 1).then(|| runs.pop()).flatten();
        let mut runs = runs.into_iter();
        let first = Run::new(runs.next().unwrap_or_default(), false);
        let middle = runs.map(|run| Run::new(run, true)).collect();
        Ok(Self { first, middle, last: last.map(|run| Run::new(run, false)) })
    }

    /// Whether the pattern matches all of `text`.
    pub(crate) fn matches(&self, text: &[u8]) -> bool {
        let Some(last) = &self.last else {
            return text.len() == self.first.elements.len() && self.first.fits(text);
        };
        let (head, tail) = (self.first.elements.len(), last.elements.len());
        if text.len() < head + tail || !self.first.fits(text) {
            return false;
        }
        let (mut rest, end) = text[head..].split_at(text.len() - head - tail);
        for run in &self.middle {
            let Some(taken) = run.find(rest) else { return false };
            rest = &rest[taken..];
        }
        last.fits(end)
    }
}

/// The first element of `pattern` and its length. The pattern is not empty and does not begin with
/// a star.
fn element(pattern: &[u8]) -> (Element, usize) {
    match *pattern {
        [b'\\', escaped, ..] => (Element::Byte(escaped), 2),
        [b'[', ref class @ ..] => {
            let (bits, taken) = class_of(class);
            (Element::Class(Box::new(bits)), 1 + taken)
        }
        [b'?', ..] | [] => (Element::Any, 1),
        [plain, ..] => (Element::Byte(plain), 1),
    }
}

/// The bytes of the class whose text follows its `[`, and the length of that text. A class without
/// an end extends to the end of the pattern.
fn class_of(class: &[u8]) -> ([u64; 4], usize) {
    let is_negated = class.first() == Some(&b'^');
    let (mut at, mut bits) = (usize::from(is_negated), [0u64; 4]);
    let mut add = |low: u8, high: u8| {
        (low..=high).for_each(|byte| bits[usize::from(byte / 64)] |= 1 << (byte % 64));
    };
    let taken = loop {
        match &class[at.min(class.len())..] {
            [] => break class.len(),
            [b']', ..] => break at + 1,
            [b'\\', escaped, ..] => {
                add(*escaped, *escaped);
                at += 2;
            }
            // As in Redis, the end of a range may be the bracket that would end the class.
            [low, b'-', high, ..] => {
                add(*low.min(high), *low.max(high));
                at += 3;
            }
            [plain, ..] => {
                add(*plain, *plain);
                at += 1;
            }
        }
    };
    if is_negated {
        bits.iter_mut().for_each(|word| *word = !*word);
    }
    (bits, taken)
}

/// The bytes with which every match begins. A scan need not leave their range.
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

/// The smallest key that follows all keys with `prefix`. `None` if there is none.
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
        Pattern::new(pattern.as_bytes()).unwrap().matches(text.as_bytes())
    }

    #[test]
    fn patterns_match_as_in_redis() {
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
            ("[a-]", "^"),
            ("[a-]x", "x"),
            ("[a-]]", "]"),
            ("[a-", "-"),
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
            ("[a-]x", "-x"),
            ("[a-]", "-"),
        ] {
            assert!(!fits(pattern, text), "{pattern} {text}");
        }
    }

    #[test]
    fn many_stars_stay_cheap() {
        let pattern = "a*".repeat(200) + "b";
        assert!(!fits(&pattern, &"a".repeat(20_000)));
    }

    /// The textbook recursion over stars, one byte at a time.
    fn fits_slowly(elements: &[Option<Element>], text: &[u8]) -> bool {
        match (elements.split_first(), text.split_first()) {
            (None, _) => text.is_empty(),
            (Some((None, rest)), None) => fits_slowly(rest, text),
            (Some((None, rest)), Some((_, shorter))) => {
                fits_slowly(rest, text) || fits_slowly(elements, shorter)
            }
            (Some((Some(_), _)), None) => false,
            (Some((Some(element), rest)), Some((byte, shorter))) => {
                element.fits(*byte) && fits_slowly(rest, shorter)
            }
        }
    }

    #[test]
    fn random_patterns_match_as_the_recursion_says() {
        let mut random = fastrand::Rng::with_seed(3);
        let parts: [&[u8]; 9] =
            [b"a", b"b", b"ab", b"?", b"*", b"[ab]", b"[^a]", b"\\*", b"aaaaaaaaaaaaaaaaaaaaaaaa"];
        let mut fitting = 0;
        for _ in 0..20_000 {
            let (mut pattern, mut elements) = (Vec::new(), Vec::new());
            for _ in 0..random.usize(..7) {
                let mut part = parts[random.usize(..parts.len())];
                pattern.extend_from_slice(part);
                while !part.is_empty() {
                    let (one, taken) = element(part);
                    elements.push((part[0] != b'*').then_some(one));
                    part = &part[taken..];
                }
            }
            let len = random.usize(..80);
            let text: Vec<u8> = (0..len).map(|_| b"aaaaab*"[random.usize(..7)]).collect();
            let expected = fits_slowly(&elements, &text);
            fitting += usize::from(expected);
            let shown = (pattern.escape_ascii().to_string(), text.escape_ascii().to_string());
            assert_eq!(Pattern::new(&pattern).unwrap().matches(&text), expected, "{shown:?}");
        }
        assert!(fitting > 1000, "{fitting} matches");
    }

    #[test]
    fn long_patterns_stay_cheap() {
        let key = "z".repeat(60_000);
        // Worst cases: one class of 40,000 bytes, 20,000 classes, and a run that almost matches
        // everywhere.
        assert!(fits(&("*[".to_owned() + &"z".repeat(40_000)), &key));
        assert!(!fits(&("*".to_owned() + &"[xz]".repeat(20_000) + "[x]*"), &key));
        assert!(!fits(&("*".to_owned() + &"z".repeat(30_000) + "x*"), &key));
        assert!(fits(&("*".to_owned() + &"?*".repeat(60_000)), &key));
        let refusal = Pattern::new(&[b'*'; PATTERN_BYTES_MAX + 1]).unwrap_err();
        assert!(refusal.line().contains("at most 131072"), "{}", refusal.line());
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
