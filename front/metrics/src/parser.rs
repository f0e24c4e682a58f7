//! A strict parser of the OpenMetrics text format, for tests.
//!
//! It accepts less than Prometheus does, so that a mistake of the exposition is an error. After
//! OpenMetrics 1.0, it checks:
//! 1. The text ends with `# EOF` and a line feed, and nothing follows.
//! 2. Metadata come before the samples of a family, each kind at most once. The families do not
//!    interleave, and no family begins twice.
//! 3. A name of a sample is the name of its family with the suffix of its type. A unit is the end
//!    of the family's name.
//! 4. Names, labels, escapes and numbers follow the grammar. No series occurs twice.
//! 5. A counter is not negative and not NaN. An info is 1. The buckets of a histogram are in
//!    ascending order, grow, and end with `+Inf`, whose count is that of `_count`.
//!
//! Timestamps, exemplars and the other types are refused, because the endpoint offers none. Pure
//! functions. Failure: an error names the line.

use std::collections::{BTreeMap, BTreeSet};

/// One sample of a scrape.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// Name of the sample, with its suffix.
    pub name: String,
    /// Labels with their values.
    pub labels: BTreeMap<String, String>,
    /// Value of the sample.
    pub value: f64,
}

/// Metadata of a family.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Family {
    /// Type of the family.
    pub kind: String,
    /// Meaning of the family.
    pub help: Option<String>,
    /// Unit of the family.
    pub unit: Option<String>,
}

/// A scrape that follows the format.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scrape {
    /// Families by their names.
    pub families: BTreeMap<String, Family>,
    /// Samples in their order.
    pub samples: Vec<Sample>,
}

impl Scrape {
    /// Value of the sample with this name and exactly these labels.
    #[must_use]
    pub fn value(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let wanted: BTreeMap<&str, &str> = labels.iter().copied().collect();
        let is_it = |sample: &&Sample| {
            let own = sample.labels.iter().map(|(key, value)| (key.as_str(), value.as_str()));
            sample.name == name && own.eq(wanted.iter().map(|(key, value)| (*key, *value)))
        };
        self.samples.iter().find(is_it).map(|sample| sample.value)
    }

    /// Sum of all samples with this name.
    #[must_use]
    pub fn sum(&self, name: &str) -> f64 {
        let named = self.samples.iter().filter(|sample| sample.name == name);
        named.map(|sample| sample.value).sum()
    }
}

/// State of the parser.
#[derive(Default)]
struct Reading {
    scrape: Scrape,
    /// Name of the family whose lines are being read.
    current: Option<String>,
    /// Samples of that family so far.
    own: Vec<Sample>,
    series: BTreeSet<(String, Vec<(String, String)>)>,
}

/// Parses a scrape. The error names the line and the rule that it breaks.
///
/// # Errors
/// The text breaks the format.
pub fn parse(text: &str) -> Result<Scrape, String> {
    let body = text.strip_suffix("# EOF\n").ok_or("the text does not end with `# EOF`")?;
    if !body.is_empty() && !body.ends_with('\n') {
        return Err("the last line before `# EOF` has no line feed".to_owned());
    }
    let mut reading = Reading::default();
    for (at, line) in body.lines().enumerate() {
        let parsed = match line.strip_prefix("# ") {
            Some(metadata) => reading.metadata(metadata),
            None => sample(line).and_then(|sample| reading.sample(sample)),
        };
        parsed.map_err(|why| format!("line {}: {why}: {line}", at + 1))?;
    }
    reading.end_family()?;
    Ok(reading.scrape)
}

impl Reading {
    fn metadata(&mut self, text: &str) -> Result<(), String> {
        let mut words = text.splitn(3, ' ');
        let (keyword, name) = (words.next().unwrap_or(""), words.next().ok_or("no name")?);
        let rest = words.next().ok_or("metadata without a value")?;
        check_name(name, true)?;
        if self.current.as_deref() != Some(name) {
            self.end_family()?;
            if self.scrape.families.contains_key(name) {
                return Err("the family begins twice".to_owned());
            }
            self.scrape.families.insert(name.to_owned(), Family::default());
            self.current = Some(name.to_owned());
        }
        if !self.own.is_empty() {
            return Err("metadata after samples".to_owned());
        }
        let Some(family) = self.scrape.families.get_mut(name) else {
            return Err("unknown family".to_owned());
        };
        let twice = Err("the same metadata twice".to_owned());
        match keyword {
            "HELP" if family.help.is_some() => twice,
            "HELP" => {
                family.help = Some(unescaped(rest)?);
                Ok(())
            }
            "TYPE" if !family.kind.is_empty() => twice,
            "TYPE" if ["counter", "gauge", "histogram", "info"].contains(&rest) => {
                family.kind = rest.to_owned();
                Ok(())
            }
            "TYPE" => Err("a type that the endpoint does not offer".to_owned()),
            "UNIT" if family.unit.is_some() => twice,
            "UNIT" if name.ends_with(&format!("_{rest}")) => {
                family.unit = Some(rest.to_owned());
                Ok(())
            }
            "UNIT" => Err("the unit is not the end of the name".to_owned()),
            _ => Err("unknown keyword".to_owned()),
        }
    }

    fn sample(&mut self, sample: Sample) -> Result<(), String> {
        let current = self.current.as_deref().ok_or("a sample before any metadata")?;
        let kind = self.scrape.families.get(current).map_or("", |family| family.kind.as_str());
        let suffixes: &[&str] = match kind {
            "counter" => &["_total"],
            "gauge" => &[""],
            "info" => &["_info"],
            "histogram" => &["_bucket", "_sum", "_count"],
            _ => return Err("a sample of a family without a type".to_owned()),
        };
        let suffix = sample.name.strip_prefix(current).filter(|end| suffixes.contains(end));
        let suffix = suffix.ok_or("the name does not belong to the family")?;
        if sample.labels.contains_key("le") != (suffix == "_bucket") {
            return Err("`le` belongs to the buckets of a histogram".to_owned());
        }
        match kind {
            "counter" if sample.value.is_nan() || sample.value < 0.0 => {
                return Err("a negative counter".to_owned());
            }
            "info" if sample.value != 1.0 => return Err("an info that is not 1".to_owned()),
            _ => {}
        }
        let labels = sample.labels.iter().map(|(key, value)| (key.clone(), value.clone()));
        if !self.series.insert((sample.name.clone(), labels.collect())) {
            return Err("the series occurs twice".to_owned());
        }
        self.own.push(sample);
        Ok(())
    }

    /// Checks what holds for all samples of a family together.
    fn end_family(&mut self) -> Result<(), String> {
        let own = std::mem::take(&mut self.own);
        if let Some(name) = self.current.take() {
            let family = self.scrape.families.get(&name);
            if family.is_some_and(|family| family.kind == "histogram") {
                check_histogram(&name, &own).map_err(|why| format!("{name}: {why}"))?;
            }
        }
        self.scrape.samples.extend(own);
        Ok(())
    }
}

/// Checks the series of a histogram, each by its labels without `le`.
fn check_histogram(name: &str, samples: &[Sample]) -> Result<(), String> {
    #[derive(Default)]
    struct Series {
        buckets: Vec<(f64, f64)>,
        count: Option<f64>,
        sum: Option<f64>,
    }
    let mut all: BTreeMap<Vec<(&String, &String)>, Series> = BTreeMap::new();
    for sample in samples {
        let labels = sample.labels.iter().filter(|(key, _)| *key != "le").collect();
        let series = all.entry(labels).or_default();
        match sample.name.strip_prefix(name) {
            Some("_count") => series.count = Some(sample.value),
            Some("_sum") => series.sum = Some(sample.value),
            _ => {
                let bound = sample.labels.get("le").map_or("", String::as_str);
                series.buckets.push((number(bound)?, sample.value));
            }
        }
    }
    for series in all.values() {
        let grows = |pair: &[(f64, f64)]| pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1;
        if !series.buckets.windows(2).all(grows) {
            return Err("the buckets do not grow".to_owned());
        }
        let last = series.buckets.last().ok_or("no buckets")?;
        if last.0 != f64::INFINITY || Some(last.1) != series.count {
            return Err("the last bucket is not `+Inf` with the count".to_owned());
        }
        if !series.sum.is_some_and(|sum| sum >= 0.0) {
            return Err("no sum".to_owned());
        }
    }
    Ok(())
}

/// One line with a sample.
fn sample(line: &str) -> Result<Sample, String> {
    let end = line.find(['{', ' ']).ok_or("no value")?;
    let (name, rest) = line.split_at(end);
    check_name(name, true)?;
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(rest) => labels(rest)?,
        None => (BTreeMap::new(), rest),
    };
    let value = rest.strip_prefix(' ').ok_or("no blank before the value")?;
    Ok(Sample { name: name.to_owned(), labels, value: number(value)? })
}

/// The labels up to the closing brace, and what follows it.
fn labels(text: &str) -> Result<(BTreeMap<String, String>, &str), String> {
    let (mut found, mut rest) = (BTreeMap::new(), text);
    if let Some(rest) = rest.strip_prefix('}') {
        return Ok((found, rest));
    }
    loop {
        let (name, after) = rest.split_once("=\"").ok_or("a label without a value")?;
        check_name(name, false)?;
        let mut escaped = false;
        let end = after.find(|c: char| {
            let ends = c == '"' && !escaped;
            escaped = c == '\\' && !escaped;
            ends
        });
        let (value, after) = after.split_at(end.ok_or("a label without an end")?);
        if found.insert(name.to_owned(), unescaped(value)?).is_some() {
            return Err("a label occurs twice".to_owned());
        }
        rest = match &after[1..] {
            more if more.starts_with(',') => &more[1..],
            more => return Ok((found, more.strip_prefix('}').ok_or("no closing brace")?)),
        };
    }
}

fn check_name(name: &str, with_colon: bool) -> Result<(), String> {
    let may = |c: char| c.is_ascii_alphanumeric() || c == '_' || (with_colon && c == ':');
    let starts = name.starts_with(|c: char| may(c) && !c.is_ascii_digit());
    if starts && name.chars().all(may) { Ok(()) } else { Err(format!("{name:?} is no name")) }
}

fn unescaped(text: &str) -> Result<String, String> {
    let (mut out, mut chars) = (String::new(), text.chars());
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some('n') => out.push('\n'),
                Some(c @ ('\\' | '"')) => out.push(c),
                _ => return Err("an unknown escape".to_owned()),
            },
            '"' => return Err("a quotation mark without an escape".to_owned()),
            c => out.push(c),
        }
    }
    Ok(out)
}

/// A number as the format spells it.
fn number(text: &str) -> Result<f64, String> {
    match text {
        "+Inf" => return Ok(f64::INFINITY),
        "NaN" => return Ok(f64::NAN),
        _ => {}
    }
    let may = |c: char| c.is_ascii_digit() || matches!(c, '.' | 'e' | 'E' | '+' | '-');
    match text.parse::<f64>() {
        Ok(number) if text.chars().all(may) && number.is_finite() => Ok(number),
        _ => Err(format!("{text:?} is no number")),
    }
}

#[cfg(test)]
mod tests {
    use super::parse;

    const HEAD: &str = "# HELP reef_bytes Size of the reef.\n# TYPE reef_bytes gauge\n";

    #[test]
    fn sound_scrape_is_read() {
        let text = format!(
            "{HEAD}# UNIT reef_bytes bytes\nreef_bytes{{at=\"a,b}}\\\"\",no=\"1\"}} 1.5e3\n\
             # TYPE fish counter\nfish_total 3\n# TYPE about info\nabout_info{{v=\"1\"}} 1\n\
             # TYPE t_seconds histogram\nt_seconds_bucket{{le=\"0.5\"}} 1\n\
             t_seconds_bucket{{le=\"+Inf\"}} 2\nt_seconds_sum 7\nt_seconds_count 2\n# EOF\n"
        );
        let scrape = parse(&text).unwrap();
        assert_eq!(scrape.value("fish_total", &[]), Some(3.0));
        assert_eq!(scrape.value("reef_bytes", &[("no", "1"), ("at", "a,b}\"")]), Some(1500.0));
        assert_eq!(scrape.sum("t_seconds_bucket"), 3.0);
        assert_eq!(scrape.families.len(), 4);
    }

    #[test]
    fn broken_scrapes_are_refused_with_the_reason() {
        for (body, why) in [
            ("reef_bytes 1\nreef_bytes 2\n", "twice"),
            ("reef_bytes{a=\"1\",a=\"2\"} 1\n", "twice"),
            ("reef_bytes{a=\"1} 1\n", "without an end"),
            ("reef_bytes{a=\"\\x\"} 1\n", "unknown escape"),
            ("reef_bytes{a=\"1\" 1\n", "closing brace"),
            ("reef_bytes{1a=\"1\"} 1\n", "no name"),
            ("reef_bytes one\n", "no number"),
            ("reef_bytes inf\n", "no number"),
            ("reef_bytes 1 1234\n", "no number"),
            ("reef_bytes_total 1\n", "does not belong"),
            ("coral 1\n", "does not belong"),
            ("reef_bytes{le=\"1\"} 1\n", "`le`"),
            ("# TYPE reef_bytes gauge\n", "twice"),
            ("reef_bytes 1\n# UNIT reef_bytes bytes\n", "after samples"),
            ("# UNIT reef_bytes seconds\n", "end of the name"),
            ("# TYPE fish counter\nfish_total -1\n", "negative"),
            ("# TYPE fish counter\nfish_total NaN\n", "negative"),
            ("# TYPE fish gauge\nfish 1\n# TYPE reef_bytes gauge\n", "begins twice"),
            ("# TYPE about info\nabout_info 2\n", "not 1"),
            ("# TYPE t summary\n", "does not offer"),
            ("# TYPE t histogram\nt_bucket{le=\"1\"} 1\nt_sum 1\nt_count 1\n", "`+Inf`"),
            (
                "# TYPE t histogram\nt_bucket{le=\"1\"} 2\nt_bucket{le=\"+Inf\"} 1\nt_count 1\n",
                "do not grow",
            ),
            ("# TYPE t histogram\nt_bucket{le=\"+Inf\"} 1\nt_count 2\nt_sum 1\n", "the count"),
            ("# TYPE t histogram\nt_bucket{le=\"+Inf\"} 1\nt_count 1\n", "no sum"),
            ("# reef\n", "no name"),
        ] {
            let error = parse(&format!("{HEAD}{body}# EOF\n")).unwrap_err();
            assert!(error.contains(why), "{body}: {error}");
        }
        for text in ["", "reef 1\n", "# EOF", "# EOF\n\n", "reef 1# EOF\n"] {
            assert!(parse(text).is_err(), "{text:?}");
        }
    }
}
