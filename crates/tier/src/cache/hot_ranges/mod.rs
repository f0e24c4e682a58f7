//! Choice of the ranges of a file to copy to a faster device, from read counts per range.
//!
//! A copy takes the ranges with enough accesses per byte that all such ranges fill the room of the
//! device ([`worth`]), in any file. If hot keys are scattered over the key space, all files are
//! equally hot and only their ranges differ. Differences between the counts of ranges have weight
//! only as far as chance does not explain them ([`trust`]). A file is copied whole if all files
//! fit, if most of it is hot, or if reads are so long that they overlap. Decision 0022 has the
//! figures.
//!
//! All functions are pure. Cost: each one is linear in the spans of the files that it takes.

use super::density;
use super::dispersion::{Counted, Expected};
use super::format::CopyIndex;
use super::ranges::Span;
use crate::settings::CacheBy;

/// Fraction of a file's bytes above which the file is copied whole instead of by range.
const RANGES_PART_MAX: f64 = 0.75;

/// Ratio of the bytes read per range, summed over the ranges, to the file's length above which
/// reads overlap.
const OVERLAP_MAX: f64 = 1.5;

/// Aged accesses of a file, in total and by range.
///
/// The accesses that a range is expected to have lie between its own count and the count that it
/// would have if the file were read evenly ([`trust`]). A few reads say little about a block. A
/// copy of the blocks that were read first by chance would be a copy of arbitrary blocks.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct FileReads {
    len: u64,
    /// Aged accesses whose place in the file is not known.
    inherited: f64,
    range_bytes: u64,
    spans: Vec<Span>,
    /// Sum of the spans' reads.
    counted: f64,
    /// Reads of the spans in every second interval.
    odd: u32,
    /// Share of the counts per range that is believed, 0 to 1.
    trust: f64,
    /// Factor by which the accesses are scaled, because the file did not exist for the whole
    /// window.
    scale: f64,
    /// Fraction of the observation window in which this file existed.
    presence: f64,
    /// All aged accesses, as far as they are believed.
    heat: f64,
    /// Share of the file's own count in `heat`. The rest comes from the mean of its cohort.
    own: f64,
    /// Variance that the mean of the cohort adds to `heat`.
    cohort_variance: f64,
}

impl FileReads {
    /// The accesses of a file of `len` bytes that is counted in ranges of `range_bytes`. `spans`
    /// are the ranges in which reads began. `inherited` are aged accesses whose place is not known:
    /// the file took them over from the inputs of a compaction, or kept them over a restart. All
    /// counts are believed until [`Self::believe`] lowers that.
    #[must_use]
    pub(crate) fn new(len: u64, inherited: f64, range_bytes: u64, spans: Vec<Span>) -> Self {
        let counted: f64 = spans.iter().map(|span| f64::from(span.reads)).sum();
        let odd = spans.iter().fold(0u32, |odd, span| odd.saturating_add(span.odd));
        Self {
            len,
            inherited,
            range_bytes: range_bytes.max(1),
            spans,
            counted,
            odd,
            trust: 1.0,
            scale: 1.0,
            presence: 1.0,
            heat: inherited + counted,
            own: 1.0,
            cohort_variance: 0.0,
        }
    }

    /// The same accesses for a file that existed in the fraction `presence` of the observation
    /// window, so that its accesses count `scale` times ([`super::ageing::Look`]).
    #[must_use]
    pub(crate) fn scaled(self, scale: f64, presence: f64) -> Self {
        Self { scale, presence, heat: self.heat * scale, ..self }
    }

    /// Sets the share of the counts per range that is believed, 0 to 1 ([`trust`]).
    pub(crate) fn believe(&mut self, trust: f64) {
        self.trust = trust;
    }

    /// Combines the file's own count with the mean of its cohort.
    pub(crate) fn expect(&mut self, expected: Expected) {
        let Expected { own, mean, doubt } = expected;
        let of_cohort = (1.0 - own) * mean * self.len as f64;
        self.heat = own * self.raw() + of_cohort;
        self.own = own;
        self.cohort_variance = doubt * of_cohort * of_cohort;
    }

    /// The file's count as a member of its cohort. `variance` is the variance-to-mean ratio of the
    /// count.
    pub(crate) fn counted(&self, variance: f64) -> Counted {
        let exposure = self.len as f64 * self.presence;
        Counted { accesses: self.inherited + self.counted, exposure, variance }
    }

    /// Variance-to-mean ratio of [`Self::heat`] by chance, if that of the count is `counted`.
    pub(crate) fn variance(&self, counted: f64) -> f64 {
        let own = self.own * self.own * counted * self.scale * self.raw();
        if self.heat > 0.0 {
            (own + self.cohort_variance) / self.heat
        } else {
            counted * self.scale
        }
    }

    /// All aged accesses of the file, as far as they are believed: between its own count and the
    /// mean of its cohort.
    #[must_use]
    pub(crate) fn heat(&self) -> f64 {
        self.heat
    }

    /// Aged accesses as they were counted, scaled for the time in which the file did not exist.
    fn raw(&self) -> f64 {
        (self.inherited + self.counted) * self.scale
    }

    /// Whether the file has any aged access of its own.
    #[must_use]
    pub(crate) fn is_read(&self) -> bool {
        self.raw() > 0.0
    }

    /// Each range that was read, and the fraction of the file's bytes that is counted in it. Such a
    /// range ends where the next read range begins, or at its own end.
    fn parts(&self) -> impl Iterator<Item = (&Span, f64)> {
        self.spans.iter().enumerate().map(move |(at, span)| {
            let end = (span.start / self.range_bytes + 1) * self.range_bytes;
            let next = self.spans.get(at + 1).map_or(self.len, |next| next.start);
            let end = end.max(span.start + span.len).min(next).min(self.len);
            (span, end.saturating_sub(span.start) as f64 / self.len.max(1) as f64)
        })
    }

    /// The share of [`Self::heat`] that falls on the fraction `part` of the file, which had
    /// `accesses`. If the cohort raises the heat above the file's own count, the difference is
    /// spread evenly over the file.
    fn of_part(&self, part: f64, accesses: f64) -> f64 {
        let (heat, raw, own) = (self.heat, self.raw(), accesses * self.scale);
        if heat >= raw { own + (heat - raw) * part } else { own * heat / raw }
    }

    /// Whether reads are so long that they overlap. The bytes of one range then serve reads of
    /// other ranges as well, and the file is judged as a whole.
    fn overlaps(&self) -> bool {
        let read: u64 = self.spans.iter().map(|span| span.len).sum();
        read as f64 > OVERLAP_MAX * self.len as f64
    }

    /// The accesses that are expected of `bytes` of the file in which `counted` accesses were
    /// counted.
    fn expected(&self, counted: f64, bytes: u64) -> f64 {
        let part = (bytes as f64 / self.len.max(1) as f64).min(1.0);
        let even = (self.inherited + (1.0 - self.trust) * self.counted) * part;
        self.of_part(part, even + self.trust * counted)
    }

    fn density_of(&self, span: &Span) -> f64 {
        density(self.expected(f64::from(span.reads), span.len), span.len)
    }

    /// Expected accesses per byte of the ranges that were not read.
    fn density_of_rest(&self) -> f64 {
        density(self.expected(0.0, self.len), self.len)
    }

    /// The accesses that a copy of `ranges` (start and length, in order) would serve.
    #[must_use]
    pub(crate) fn served_by(&self, ranges: &[(u64, u64)]) -> f64 {
        let held = self.spans.iter().filter(|span| holds(ranges, span));
        let counted = held.map(|span| f64::from(span.reads)).sum();
        self.expected(counted, ranges.iter().map(|range| range.1).sum())
    }

    /// The accesses that slower devices still serve if there is a copy of `ranges`.
    #[must_use]
    pub(crate) fn beside(&self, ranges: &[(u64, u64)]) -> Self {
        let spans = self.spans.iter().filter(|span| !holds(ranges, span)).copied().collect();
        let held: u64 = ranges.iter().map(|range| range.1).sum();
        let rest = 1.0 - (held as f64 / self.len.max(1) as f64).min(1.0);
        let left = Self::new(self.len, self.inherited * rest, self.range_bytes, spans);
        Self {
            trust: self.trust,
            scale: self.scale,
            presence: self.presence,
            heat: (self.heat - self.served_by(ranges)).max(0.0),
            own: self.own,
            cohort_variance: self.cohort_variance * rest * rest,
            ..left
        }
    }
}

/// Whether one of the ranges, which are in order, contains the whole span.
fn holds(ranges: &[(u64, u64)], span: &Span) -> bool {
    let after = ranges.partition_point(|range| range.0 <= span.start);
    let range = after.checked_sub(1).and_then(|at| ranges.get(at));
    range.is_some_and(|(start, len)| span.start + span.len <= start + len)
}

/// Share of the counts per range that is believed, 0 to 1: the part of their variance within files
/// that chance does not explain. This is the weight that an empirical Bayes estimate gives to
/// counts with a common prior.
///
/// Two halves of the intervals show how much of the variance is chance. Ranges that really differ
/// also differ in both halves. If ranges differ only by chance, the count in one half says nothing
/// about the other half. This holds also if a scan reads several blocks of a range in one batch, so
/// that counts vary by more than their mean. For a file without two halves, reads are taken as
/// independent. The mean of a range follows from its length: a range in which two blocks begin is
/// read twice as often as the next one, and is no hotter. Ranges without reads are left out: their
/// lengths are not known, and their product is 0.
pub(crate) fn trust<'a>(files: impl Iterator<Item = &'a FileReads>) -> f64 {
    let (mut differ, mut chance) = (0.0, 0.0);
    for file in files {
        let whole_odd = f64::from(file.odd);
        let whole_even = file.counted - whole_odd;
        let odd_part = whole_odd / file.counted.max(1.0);
        let even_part = 1.0 - odd_part;
        let has_halves = odd_part.min(even_part) >= HALF_MIN;
        for (span, part) in file.parts() {
            let (all, odd) = (f64::from(span.reads), f64::from(span.odd));
            let even = all - odd;
            if has_halves {
                // Scaled from the two halves to the whole count.
                let whole = odd_part * even_part;
                let above = odd * (even - whole_even * part) + even * (odd - whole_odd * part);
                differ += above / 2.0 / whole;
                chance += (odd * even_part - even * odd_part).powi(2) / whole;
            } else {
                differ += all * (all - 1.0 - file.counted * part);
                chance += all;
            }
        }
    }
    if differ > 0.0 { differ / (differ + chance) } else { 0.0 }
}

/// Least fraction of a file's reads that the smaller half must have.
const HALF_MIN: f64 = 0.2;

/// Classes of accesses per byte in an octave: densities of one class are not distinguished.
const WORTH_STEPS: f64 = 4.0;
/// The first class begins at 2 to the power of minus this.
const WORTH_OCTAVES: f64 = 48.0;
/// Number of classes; the last one has no upper bound.
const WORTH_CLASSES: usize = 256;

/// Threshold from which on a range is worth a copy on a device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Worth {
    /// Least accesses per byte. 0 if all candidates fit, so that they can be copied whole.
    pub(crate) density: f64,
    /// Accesses per byte from which on a range is always taken. Of the ranges between `density` and
    /// this threshold, only a part fits.
    pub(crate) above: f64,
    /// Fraction of the ranges between `density` and `above` that is taken of each file, 0 to 1.
    pub(crate) part: f64,
    /// Room of all copies of the device, in bytes.
    pub(crate) room: u64,
}

/// The threshold at which the ranges of `files` that reach it fill `room` bytes.
pub(crate) fn worth<'a>(files: impl Iterator<Item = &'a FileReads> + Clone, room: u64) -> Worth {
    let all: u64 = files.clone().filter(|file| file.heat() > 0.0).map(|file| file.len).sum();
    if all <= room {
        return Worth { density: 0.0, above: 0.0, part: 1.0, room };
    }
    let bytes = by_class(files);
    let mut taken = 0;
    for index in (0..WORTH_CLASSES).rev() {
        if bytes[index] > 0 && taken + bytes[index] >= room {
            let part = room.saturating_sub(taken) as f64 / bytes[index] as f64;
            return Worth { density: least_of(index), above: least_of(index + 1), part, room };
        }
        taken += bytes[index];
    }
    Worth { density: f64::MIN_POSITIVE, above: f64::MIN_POSITIVE, part: 1.0, room }
}

/// Least accesses per byte of a class.
fn least_of(class: usize) -> f64 {
    (class as f64 / WORTH_STEPS - WORTH_OCTAVES).exp2()
}

fn class_of(density: f64) -> usize {
    ((density.log2() + WORTH_OCTAVES) * WORTH_STEPS).clamp(0.0, WORTH_CLASSES as f64 - 1.0) as usize
}

/// Bytes of the ranges of `files`, by class of accesses per byte.
fn by_class<'a>(files: impl Iterator<Item = &'a FileReads>) -> Vec<u64> {
    let mut bytes = vec![0; WORTH_CLASSES];
    for file in files {
        if file.overlaps() {
            bytes[class_of(density(file.heat(), file.len))] += file.len;
            continue;
        }
        let mut rest = file.len;
        for span in &file.spans {
            bytes[class_of(file.density_of(span))] += span.len;
            rest = rest.saturating_sub(span.len);
        }
        let density = file.density_of_rest();
        if density > 0.0 {
            bytes[class_of(density)] += rest;
        }
    }
    bytes
}

/// The ranges of a file that are copied.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CopyPlan {
    /// Start and length of each range, in order.
    pub(crate) ranges: Vec<(u64, u64)>,
    /// Whether the ranges are the whole file.
    pub(crate) whole: bool,
    /// Aged accesses that the copy would serve.
    pub(crate) reads: f64,
    /// Bytes of the copy of the same file that this one replaces.
    pub(crate) replaces: u64,
}

impl CopyPlan {
    /// A copy of the whole file.
    #[must_use]
    pub(crate) fn whole(file: &FileReads) -> Self {
        Self { ranges: vec![(0, file.len)], whole: true, reads: file.heat(), replaces: 0 }
    }

    /// Bytes of the file that are copied.
    #[must_use]
    pub(crate) fn bytes(&self) -> u64 {
        self.ranges.iter().map(|range| range.1).sum()
    }

    /// Bytes that the copy takes, its index included.
    #[must_use]
    pub(crate) fn bytes_taken(&self) -> u64 {
        let bytes = self.bytes();
        bytes + CopyIndex::len_of(bytes, self.ranges.len())
    }

    /// Bytes that the copy takes in addition to those of the copy that it replaces.
    #[must_use]
    pub(crate) fn room(&self) -> u64 {
        self.bytes_taken().saturating_sub(self.replaces)
    }
}

/// Chooses the ranges of a file to copy: those that reach the threshold `worth`, or the whole
/// file. `None` if no range reaches it.
#[must_use]
pub(crate) fn plan(file: &FileReads, worth: Worth, by: CacheBy) -> Option<CopyPlan> {
    let heat = file.heat();
    if heat <= 0.0 || file.len == 0 {
        return None;
    }
    let fits = file.len <= worth.room;
    let is_whole = match by {
        CacheBy::File => true,
        CacheBy::Adaptive => file.overlaps() || fits && file.density_of_rest() >= worth.density,
        CacheBy::Range => file.spans.is_empty(),
    };
    if is_whole {
        let is_worth = density(heat, file.len) >= worth.density || by == CacheBy::File;
        return is_worth.then(|| CopyPlan::whole(file));
    }
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    // Bytes of the spans of which only a part fits, and bytes of those that were taken.
    let (mut seen, mut taken) = (0.0, 0.0);
    for span in &file.spans {
        let (end, density) = ((span.start + span.len).min(file.len), file.density_of(span));
        if span.start >= end || density < worth.density {
            continue;
        }
        if density < worth.above {
            seen += span.len as f64;
            if taken + span.len as f64 / 2.0 > worth.part * seen {
                continue;
            }
            taken += span.len as f64;
        }
        match ranges.last_mut() {
            Some(last) if last.0 + last.1 >= span.start => {
                last.1 = last.1.max(end - last.0);
            }
            _ => ranges.push((span.start, end - span.start)),
        }
    }
    let reads = file.served_by(&ranges);
    let plan = CopyPlan { whole: ranges == [(0, file.len)], ranges, reads, replaces: 0 };
    if by == CacheBy::Adaptive && fits && plan.bytes() as f64 > RANGES_PART_MAX * file.len as f64 {
        return Some(CopyPlan::whole(file));
    }
    (!plan.ranges.is_empty()).then_some(plan)
}

#[cfg(test)]
mod tests;
