//! The comments of a Rust text, with their places. The parser of the syntax tree drops them.
//!
//! A pure function over characters. It knows strings, raw strings, characters and lifetimes, so
//! that it takes no text for a comment. It costs one pass over the text.

/// One line of a comment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Comment {
    /// The line, from 1.
    pub(crate) line: usize,
    /// The text from its marker (`//`, `///`, `//!`, `/*`) to the end of the line or comment.
    pub(crate) text: String,
    /// Whether nothing but blanks stands before it on its line.
    pub(crate) alone: bool,
}

impl Comment {
    /// The text without the marker.
    pub(crate) fn prose(&self) -> &str {
        let text = self.text.as_str();
        let markers = ["//!", "////", "///", "//", "/**", "/*!", "/*"];
        let marker = markers.iter().find(|marker| text.starts_with(**marker));
        marker.map_or(text, |marker| &text[marker.len()..])
    }

    /// Kind of the doc comment that the line belongs to, if it belongs to one.
    pub(crate) fn doc(&self) -> Option<Doc> {
        if self.text.starts_with("//!") {
            Some(Doc::Inner)
        } else if self.text.starts_with("///") && !self.text.starts_with("////") {
            Some(Doc::Outer)
        } else {
            None
        }
    }
}

/// Whether a doc comment describes what follows or what contains it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Doc {
    /// `///`, of the item that follows.
    Outer,
    /// `//!`, of the module that it stands in.
    Inner,
}

/// All comments of a text, one for each line that has one, in order.
pub(crate) fn comments(text: &str) -> Vec<Comment> {
    let mut reader = Reader { chars: text.char_indices().peekable(), text, line: 1, start: 0 };
    let mut found = Vec::new();
    while let Some((at, c)) = reader.next() {
        match c {
            '/' if reader.peek() == Some('/') => {
                let end = text[at..].find('\n').map_or(text.len(), |length| at + length);
                found.push(reader.comment(at, end));
                reader.skip_to(end);
            }
            '/' if reader.peek() == Some('*') => reader.block(at, &mut found),
            '"' => reader.string(at),
            '\'' => reader.quote(),
            _ => {}
        }
    }
    found
}

struct Reader<'a> {
    chars: std::iter::Peekable<std::str::CharIndices<'a>>,
    text: &'a str,
    line: usize,
    /// Position at which the current line starts.
    start: usize,
}

impl Reader<'_> {
    fn next(&mut self) -> Option<(usize, char)> {
        let (at, c) = self.chars.next()?;
        if c == '\n' {
            self.line += 1;
            self.start = at + 1;
        }
        Some((at, c))
    }

    fn peek(&mut self) -> Option<char> {
        self.chars.peek().map(|&(_, c)| c)
    }

    fn skip_to(&mut self, end: usize) {
        while self.chars.peek().is_some_and(|&(at, _)| at < end) {
            self.next();
        }
    }

    fn comment(&self, at: usize, end: usize) -> Comment {
        let alone = self.text[self.start..at].trim().is_empty();
        Comment { line: self.line, text: self.text[at..end].trim_end().to_owned(), alone }
    }

    /// Reads a block comment that starts at `at`. Block comments nest.
    fn block(&mut self, at: usize, found: &mut Vec<Comment>) {
        let mut depth = 1;
        let mut from = at;
        self.next();
        while let Some(&(here, c)) = self.chars.peek() {
            if c == '\n' {
                found.push(self.comment(from, here));
                from = here + 1;
            }
            self.next();
            match (c, self.peek()) {
                ('/', Some('*')) => depth += 1,
                ('*', Some('/')) => depth -= 1,
                _ => continue,
            }
            self.next();
            if depth == 0 {
                found.push(self.comment(from, here + 2));
                return;
            }
        }
    }

    /// Skips a string whose first quote, at `at`, was read.
    fn string(&mut self, at: usize) {
        let before = &self.text[..at];
        let hashes = before.len() - before.trim_end_matches('#').len();
        if before[..at - hashes].ends_with('r') {
            let end = format!("\"{}", "#".repeat(hashes));
            let rest = &self.text[at + 1..];
            self.skip_to(rest.find(&end).map_or(self.text.len(), |n| at + 1 + n + end.len()));
            return;
        }
        while let Some((_, c)) = self.next() {
            match c {
                '\\' => {
                    self.next();
                }
                '"' => return,
                _ => {}
            }
        }
    }

    /// Skips a character whose first quote was read. A lifetime has no second quote.
    fn quote(&mut self) {
        let mut ahead = self.chars.clone();
        match ahead.next().map(|(_, c)| c) {
            Some('\\') => {
                self.next();
                self.next();
                while self.next().is_some_and(|(_, c)| c != '\'') {}
            }
            Some(_) if ahead.next().is_some_and(|(_, c)| c == '\'') => {
                self.next();
                self.next();
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Doc, comments};

    fn lines(text: &str) -> Vec<(usize, String, bool)> {
        comments(text).into_iter().map(|c| (c.line, c.text, c.alone)).collect()
    }

    #[test]
    fn comments_are_found_with_line_and_place() {
        let text = "//! Head\nfn f() {} // end\n    /* a\n    b */ fn g() {}\n";
        let expected =
            [(1, "//! Head", true), (2, "// end", false), (3, "/* a", true), (4, "    b */", true)];
        let expected: Vec<_> = expected.map(|(line, t, a)| (line, t.to_owned(), a)).into();
        assert_eq!(lines(text), expected);
    }

    #[test]
    fn texts_that_look_like_comments_are_not_found() {
        let text = "const A: &str = \"// a \\\" // b\";\nconst B: &str = r#\"\" // c\"#;\n\
                    const C: char = '\"'; // yes\nfn f<'a>(x: &'a str) -> char { '\\'' } // too\n";
        let found: Vec<usize> = lines(text).into_iter().map(|(line, ..)| line).collect();
        assert_eq!(found, [3, 4]);
    }

    #[test]
    fn doc_comments_are_told_from_others() {
        let kinds: Vec<_> =
            comments("//! a\n/// b\n//// c\n// d\n").iter().map(|c| c.doc()).collect();
        assert_eq!(kinds, [Some(Doc::Inner), Some(Doc::Outer), None, None]);
        assert_eq!(comments("/// b")[0].prose(), " b");
    }
}
