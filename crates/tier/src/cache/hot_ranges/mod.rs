//! What of a file to copy: by how much of it is read how often. Pure.
//!
//! Parts are taken that have as many accesses per byte as it takes to fill the room ([`worth`]), in
//! whatever file they lie: where keys lie scattered, files are alike and only their parts differ.
//! Counts are believed as far as chance does not explain them ([`trust`]). Whole files where all
//! fit, where most of a file is hot, and where reads are so long that they overlap. Decision 0022
//! has the figures. Cost: each function is linear in the spans of the files that it looks at.

use super::density;
use super::dispersion::{Counted, Expected};
use super::format::CopyIndex;
use super::ranges::Span;
use crate::settings::CacheBy;

/// A file of which ranges of more than this part would be copied is copied whole.
const RANGES_PART_MAX: f64 = 0.75;

/// If what was read of a file is, range by range, so many times its length, reads overlap.
const OVERLAP_MAX: f64 = 1.5;

/// Accesses of a file, and where in it.
///
/// What a part of it is expected to have lies between what was counted of it and what it would have
/// if all of the file were alike ([`trust`]): few reads say little of a block, and a copy of those
/// blocks that happened to be read first is a copy of any blocks.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct FileReads {
    len: u64,
    inherited: f64,
    range_bytes: u64,
    spans: Vec<Span>,
    /// Sum of the spans' reads.
    counted: f64,
    /// Those of them in every second interval.
    odd: u32,
    trust: f64,
    /// It would have so many times these accesses if it had been there for as long as others.
    scale: f64,
    /// For what part of the time that others were there it was.
    there: f64,
    /// All of its accesses, as far as they are believed.
    heat: f64,
    /// How far what was counted is believed, and the variance of what its cohort adds.
    own: f64,
    cohort_variance: f64,
}

impl FileReads {
    /// Of a file of `len` bytes that is counted in ranges of `range_bytes`: `spans` are those in
    /// which reads began, `inherited` aged accesses that nobody knows the place of, which it took
    /// over or kept over a restart. Counts are believed until [`Self::believe`] says how far.
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
            there: 1.0,
            heat: inherited + counted,
            own: 1.0,
            cohort_variance: 0.0,
        }
    }

    /// The same of a file that came late: it was `there` for a part of the time, and is scaled for
    /// it ([`super::ageing::Look`]).
    #[must_use]
    pub(crate) fn scaled(self, scale: f64, there: f64) -> Self {
        Self { scale, there, heat: self.heat * scale, ..self }
    }

    /// Counts of parts are believed so far, 0 to 1; see [`trust`].
    pub(crate) fn believe(&mut self, trust: f64) {
        self.trust = trust;
    }

    /// What its cohort has counts as well.
    pub(crate) fn expect(&mut self, Expected { own, mean, doubt }: Expected) {
        let of_cohort = (1.0 - own) * mean * self.len as f64;
        self.heat = own * self.raw() + of_cohort;
        self.own = own;
        self.cohort_variance = doubt * of_cohort * of_cohort;
    }

    /// What was counted of it, which varies by `variance` of its mean.
    pub(crate) fn counted(&self, variance: f64) -> Counted {
        let exposure = self.len as f64 * self.there;
        Counted { accesses: self.inherited + self.counted, exposure, variance }
    }

    /// By how much of their mean its accesses vary by chance, where that is `counted` of what was
    /// counted.
    pub(crate) fn variance(&self, counted: f64) -> f64 {
        let own = self.own * self.own * counted * self.scale * self.raw();
        if self.heat > 0.0 {
            (own + self.cohort_variance) / self.heat
        } else {
            counted * self.scale
        }
    }

    /// All of its aged accesses, as far as they are believed: between what was counted and what its
    /// cohort has.
    #[must_use]
    pub(crate) fn heat(&self) -> f64 {
        self.heat
    }

    /// Its accesses as they were counted.
    fn raw(&self) -> f64 {
        (self.inherited + self.counted) * self.scale
    }

    /// Whether it was read at all.
    #[must_use]
    pub(crate) fn is_read(&self) -> bool {
        self.raw() > 0.0
    }

    /// Each range that was read, and what part of the file's bytes is counted in it: to where the
    /// next one begins, if that was read, or to its end.
    fn parts(&self) -> impl Iterator<Item = (&Span, f64)> {
        self.spans.iter().enumerate().map(move |(at, span)| {
            let end = (span.start / self.range_bytes + 1) * self.range_bytes;
            let next = self.spans.get(at + 1).map_or(self.len, |next| next.start);
            let end = end.max(span.start + span.len).min(next).min(self.len);
            (span, end.saturating_sub(span.start) as f64 / self.len.max(1) as f64)
        })
    }

    /// What is expected of a part of it that had so many accesses: what its cohort has more than it
    /// had may come anywhere.
    fn of_part(&self, part: f64, accesses: f64) -> f64 {
        let (heat, raw, had) = (self.heat, self.raw(), accesses * self.scale);
        if heat >= raw { had + (heat - raw) * part } else { had * heat / raw }
    }

    /// Whether its reads are so long that they overlap: bytes of one range serve reads of others,
    /// too, and the file is judged as a whole.
    fn overlaps(&self) -> bool {
        let read: u64 = self.spans.iter().map(|span| span.len).sum();
        read as f64 > OVERLAP_MAX * self.len as f64
    }

    /// The accesses that are expected of `bytes` of it in which `counted` were counted.
    fn expected(&self, counted: f64, bytes: u64) -> f64 {
        let part = (bytes as f64 / self.len.max(1) as f64).min(1.0);
        let alike = (self.inherited + (1.0 - self.trust) * self.counted) * part;
        self.of_part(part, alike + self.trust * counted)
    }

    fn density_of(&self, span: &Span) -> f64 {
        density(self.expected(f64::from(span.reads), span.len), span.len)
    }

    /// Of what was not read.
    fn density_of_rest(&self) -> f64 {
        density(self.expected(0.0, self.len), self.len)
    }

    /// The accesses that a copy of `ranges` (start and length, in order) serves.
    #[must_use]
    pub(crate) fn served_by(&self, ranges: &[(u64, u64)]) -> f64 {
        let held = self.spans.iter().filter(|span| holds(ranges, span));
        let counted = held.map(|span| f64::from(span.reads)).sum();
        self.expected(counted, ranges.iter().map(|range| range.1).sum())
    }

    /// What a copy of `ranges` leaves for slower devices to serve.
    #[must_use]
    pub(crate) fn beside(&self, ranges: &[(u64, u64)]) -> Self {
        let spans = self.spans.iter().filter(|span| !holds(ranges, span)).copied().collect();
        let held: u64 = ranges.iter().map(|range| range.1).sum();
        let rest = 1.0 - (held as f64 / self.len.max(1) as f64).min(1.0);
        let left = Self::new(self.len, self.inherited * rest, self.range_bytes, spans);
        Self {
            trust: self.trust,
            scale: self.scale,
            there: self.there,
            heat: (self.heat - self.served_by(ranges)).max(0.0),
            own: self.own,
            cohort_variance: self.cohort_variance * rest * rest,
            ..left
        }
    }
}

/// Whether all of the span is in one of the ranges, which are in order.
fn holds(ranges: &[(u64, u64)], span: &Span) -> bool {
    let after = ranges.partition_point(|range| range.0 <= span.start);
    let range = after.checked_sub(1).and_then(|at| ranges.get(at));
    range.is_some_and(|(start, len)| span.start + span.len <= start + len)
}

/// How far counts of parts of files are to be believed: the part of their variance within files
/// that chance does not explain. 0 to 1; what an empirical Bayes estimate of counts with a common
/// prior takes.
///
/// Two halves of the intervals tell what chance does: parts that really differ do so in both, and
/// what they have in the one says nothing of the other otherwise. That holds also where a scan
/// reads several blocks of a part at once, so that counts vary by more than their mean. Reads of a
/// file without two halves are taken to come one by one. A part is expected to have what its bytes
/// have of the file: one in which two blocks begin is read twice as often as the next one, and no
/// hotter. Only parts that were read are asked: how long the others are is not known, and they have
/// a product of 0.
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
                // As much of the whole as of its halves.
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

/// The smaller half has to have so much of a file's reads.
const HALF_MIN: f64 = 0.2;

/// Accesses per byte are told apart by a quarter of an octave…
const WORTH_STEPS: f64 = 4.0;
/// …from 2 to the power of minus this on.
const WORTH_OCTAVES: f64 = 48.0;
const WORTH_CLASSES: usize = 256;

/// What it takes to be copied to a device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Worth {
    /// So many accesses per byte. 0 if all files fit that are asked for, so that they can be copied
    /// whole.
    pub(crate) density: f64,
    /// Of what has no more than this, only a part fits, and is taken of each file; what has more is
    /// taken always.
    pub(crate) above: f64,
    /// That part, 0 to 1.
    pub(crate) part: f64,
    /// No more bytes than this, the room of all copies.
    pub(crate) room: u64,
}

/// How many accesses per byte a part of a file must have to be copied, so that all such parts fill
/// `room` bytes.
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

/// The least accesses per byte of a class.
fn least_of(class: usize) -> f64 {
    (class as f64 / WORTH_STEPS - WORTH_OCTAVES).exp2()
}

fn class_of(density: f64) -> usize {
    ((density.log2() + WORTH_OCTAVES) * WORTH_STEPS).clamp(0.0, WORTH_CLASSES as f64 - 1.0) as usize
}

/// Bytes of the files' parts by their accesses per byte.
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

/// What of a file to copy.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CopyPlan {
    /// Start and length of each range, in order.
    pub(crate) ranges: Vec<(u64, u64)>,
    /// Whether that is the whole file.
    pub(crate) whole: bool,
    /// Aged accesses that the copy would serve.
    pub(crate) reads: f64,
    /// Bytes of the copy of the same file that goes for it.
    pub(crate) replaces: u64,
}

impl CopyPlan {
    /// All of a file.
    #[must_use]
    pub(crate) fn whole(file: &FileReads) -> Self {
        Self { ranges: vec![(0, file.len)], whole: true, reads: file.heat(), replaces: 0 }
    }

    /// Bytes that are copied.
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

    /// Bytes that it takes beyond what goes for it.
    #[must_use]
    pub(crate) fn room(&self) -> u64 {
        self.bytes_taken().saturating_sub(self.replaces)
    }
}

/// Chooses what of a file to copy: the parts that have `worth` accesses per byte ([`worth`]), or
/// all of it. None if nothing is worth it.
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
    // Bytes of spans of which a part fits, and those of them that were taken.
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
