//! The persistent read-only cache: copies of hot files, or of their hot ranges, on faster devices
//! (Keigo §4.3). This module decides, purely; `crate::mover` does, [`format`] is what a copy looks
//! like.
//!
//! Which: by aged accesses per byte, hottest first; to the fastest device the hottest parts of
//! files (`hot_ranges/mod.rs`). When: while the device serves less than its target of the foreground reads
//! that it could. How many at once: as many as the device takes writers beside those that it has
//! ([`crate::migrate::threads`]), and more into free room where copies pay (`payback.rs`). Out goes
//! what is clearly colder than what comes in, tables of the device's own below L0 among it, and
//! whatever stands in the way of files.

pub(crate) mod ageing;
pub(crate) mod dispersion;
pub(crate) mod format;
pub(crate) mod hot_ranges;
pub(crate) mod payback;
pub(crate) mod ranges;

/// A copy is evicted for another file only if that is hotter by so many standard deviations of what
/// chance does to two that are alike: such two do not push each other out in turn, and the more is
/// known, the smaller differences count. The largest of n differences has about √(2 ln n) of them
/// by chance, so it is one more than that, and four at least, since they are looked at over and
/// over.
#[must_use]
pub fn sure(differences: usize) -> f64 {
    let largest = (2.0 * (differences.max(1) as f64).ln()).sqrt();
    (largest + 1.0).max(4.0)
}

/// Whether the candidate has more accesses than the copy would have if it were as long, beyond
/// chance, and so many that the copying pays.
fn is_clearly_hotter(candidate: &Candidate, held: &Held, sure: f64) -> bool {
    let scaled = candidate.len as f64 / held.len.max(1) as f64;
    let (ours, theirs) = (candidate.heat, held.heat * scaled);
    let variance = candidate.variance * ours + held.variance * theirs * scaled.max(1.0);
    let gained = ours - theirs;
    gained > sure * variance.sqrt() && pays(gained, candidate.bytes)
}

/// Whether writing so many bytes is worth `gained` accesses within some times that they need to
/// age: a copy reads and writes all of its bytes once.
fn pays(gained: f64, bytes: u64) -> bool {
    gained * PAYS_WITHIN > bytes as f64 / BLOCK_BYTES
}

/// Whether a copy of `bytes` with `planned` accesses should take the place of one of the same file
/// with `held`: more, beyond chance, and it pays. Accesses vary by `variance` of their mean, and
/// this is asked of `files`.
#[must_use]
pub fn is_worth_renewing(planned: f64, held: f64, bytes: u64, variance: f64, files: usize) -> bool {
    let gained = planned - held;
    gained > sure(files) * (variance * (planned + held)).sqrt() && pays(gained, bytes)
}

/// A copy costs as many reads as it has bytes of this.
pub(crate) const BLOCK_BYTES: f64 = 4096.0;
/// In how many of the times after which accesses count half a copy has to win them back.
const PAYS_WITHIN: f64 = 8.0;

/// In an interval with fewer foreground reads than this nothing is learnt.
pub const READS_MIN: u64 = 32;

/// Whether copies shall be made: `served` of `possible` foreground reads were by the device.
#[must_use]
pub fn wants_copies(served: u64, possible: u64, target: f64) -> bool {
    possible >= READS_MIN && (served as f64) < target * possible as f64
}

/// A file that could be copied to a device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// Its unique id.
    pub file: u64,
    /// Aged accesses that the device does not serve yet.
    pub heat: f64,
    /// By how much of their mean they vary by chance: 1 if they never aged
    /// (`ageing::Ageing::variance`).
    pub variance: f64,
    /// Bytes that the copy would take, beyond what one of the same file takes that it replaces.
    pub len: u64,
    /// Bytes that have to be written.
    pub bytes: u64,
}

/// A copy on the device, or a file that need not stay there.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Held {
    /// Its number.
    pub number: u64,
    /// Whether it is a file: it can leave for a slower device, but not be dropped.
    pub is_file: bool,
    /// Aged accesses of its file, and by how much of their mean they vary.
    pub heat: f64,
    /// See [`Candidate::variance`].
    pub variance: f64,
    /// Bytes that it takes.
    pub len: u64,
}

/// How much may be copied at once where copies win back what they cost (`payback.rs`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refill {
    /// Copies in all, those of [`CacheInput::slots`] among them.
    pub copies: usize,
    /// Bytes of those beyond.
    pub bytes: u64,
}

/// What [`choose`] decides from.
#[derive(Clone, Copy, Debug)]
pub struct CacheInput<'a> {
    /// Bytes that copies may still take; negative if they take too much already.
    pub room: i64,
    /// Whether copies are wanted at all.
    pub wanted: bool,
    /// Whether it is files that take the room, so that there is more when one leaves.
    pub demotes: bool,
    /// How many files may leave now.
    pub leave: usize,
    /// How many may be begun.
    pub slots: usize,
    /// And how much beyond that, into room that nothing takes.
    pub refill: Refill,
    /// Bytes that files may take until copies are chosen again: nothing is copied into those.
    pub coming: u64,
    /// Bytes that copies will take which wait to be made: as much of the room that is free is
    /// theirs.
    pub waiting: u64,
    /// Files that slower devices serve.
    pub candidates: &'a [Candidate],
    /// What the device holds.
    pub held: &'a [Held],
}

/// What to do with a device's copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheAction {
    /// Remove the copy: files need the room.
    Evict(u64),
    /// Remove the copy: the next one is hotter.
    Replace(u64),
    /// Move the file to a slower device: something there is hotter, and is copied when there is
    /// room.
    Demote(u64),
    /// Copy the file.
    Copy(u64),
}

/// Accesses per byte.
#[must_use]
pub fn density(heat: f64, len: u64) -> f64 {
    heat / len.max(1) as f64
}

/// Room that neither files will take nor copies that wait.
fn left_of(room: i64, input: &CacheInput<'_>) -> i64 {
    let room = room.saturating_sub_unsigned(input.coming);
    if room > 0 { room.saturating_sub_unsigned(input.waiting).max(0) } else { room }
}

/// Whether the candidate is for free room: what takes the place of another copy, also of the same
/// file, is not.
fn refills(candidate: &Candidate, room: i64, won: u64) -> bool {
    let is_new = candidate.len >= candidate.bytes;
    is_new && room >= candidate.len as i64 && won >= candidate.bytes
}

/// Chooses copies and evictions, in order; see the module.
#[must_use]
pub fn choose(input: &CacheInput<'_>) -> Vec<CacheAction> {
    let mut held = input.held.to_vec();
    // Coldest last, to be popped.
    held.sort_by(|a, b| density(b.heat, b.len).total_cmp(&density(a.heat, a.len)));
    let (mut actions, mut leave) = (Vec::new(), input.leave);
    let mut room = input.room;
    while room < 0 {
        let Some(coldest) = held.iter().rposition(|one| !one.is_file) else { break };
        let victim = held.remove(coldest);
        room += victim.len as i64;
        actions.push(CacheAction::Evict(victim.number));
    }
    if !input.wanted {
        return actions;
    }
    room = left_of(room, input);
    held.retain(|one| input.demotes || !one.is_file);
    let mut candidates = input.candidates.to_vec();
    candidates.retain(|candidate| candidate.heat > 0.0);
    // The hottest of those is compared with the coldest of these.
    let sure = sure(candidates.len().saturating_mul(held.len()));
    candidates.sort_by(|a, b| density(b.heat, b.len).total_cmp(&density(a.heat, a.len)));
    let mut refill = input.refill.bytes;
    for (at, candidate) in candidates.into_iter().enumerate() {
        if at >= input.slots {
            if at >= input.refill.copies || refill == 0 {
                break;
            }
            if !refills(&candidate, room, refill) {
                continue;
            }
            refill -= candidate.bytes;
        }
        let mut victims = Vec::new();
        let mut demoted = None;
        let mut gained = room;
        while gained < candidate.len as i64 {
            match held.pop() {
                // It leaves when others have left.
                Some(coldest) if coldest.is_file && leave == 0 => {
                    held.push(coldest);
                    break;
                }
                Some(coldest) if is_clearly_hotter(&candidate, &coldest, sure) => {
                    if coldest.is_file {
                        demoted = Some(CacheAction::Demote(coldest.number));
                        leave -= 1;
                        break;
                    }
                    gained += coldest.len as i64;
                    victims.push(coldest);
                }
                other => {
                    held.extend(other);
                    break;
                }
            }
        }
        if gained < candidate.len as i64 {
            held.extend(victims.into_iter().rev());
            actions.extend(demoted);
            continue;
        }
        room = gained - candidate.len as i64;
        actions.extend(victims.iter().map(|victim| CacheAction::Replace(victim.number)));
        actions.push(CacheAction::Copy(candidate.file));
    }
    actions
}

#[cfg(test)]
mod tests;
