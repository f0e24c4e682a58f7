//! The persistent read cache: copies of hot files, or of their hot ranges, on faster devices
//! (Keigo §4.3).
//!
//! This module decides which copies a device gets and which it drops. Its functions are pure:
//! `crate::mover` carries the decisions out, and `format.rs` defines the bytes of a copy.
//!
//! - Which: files are ordered by aged accesses per byte, and the hottest come first. The fastest
//!   device gets the hottest ranges of files (`hot_ranges/`).
//! - When: while the device serves less than its target share of the foreground reads that it could
//!   serve.
//! - How many in parallel: the number of writers that the device takes in addition to its other
//!   writers ([`crate::migrate::threads`]). More copies go into free room if copies win back their
//!   cost (`payback.rs`).
//! - What is dropped: copies that are clearly colder than a new one, tables of the device's own
//!   levels below L0, and every copy whose room files need.
//!
//! Cost: [`choose`] sorts the candidates, and the copies and files of the device.

pub(crate) mod ageing;
pub(crate) mod dispersion;
pub(crate) mod format;
pub(crate) mod hot_ranges;
pub(crate) mod payback;
pub(crate) mod ranges;

/// Number of standard deviations by which a candidate must be hotter than a copy to replace it.
///
/// The standard deviation is that of the difference of two files that are read equally often. So
/// two such files do not evict each other in turn, and smaller differences count as more reads are
/// known. By chance, the largest of n differences has about √(2 ln n) standard deviations. The
/// result is one more than that, and at least four, because the comparison is repeated in every
/// iteration of the control loop.
#[must_use]
pub fn sure(differences: usize) -> f64 {
    let largest = (2.0 * (differences.max(1) as f64).ln()).sqrt();
    (largest + 1.0).max(4.0)
}

/// Whether the candidate has more accesses than a copy of its length would have at the density of
/// `held`. The difference must exceed chance (`sure` standard deviations), and must pay for the
/// copying.
fn is_clearly_hotter(candidate: &Candidate, held: &Held, sure: f64) -> bool {
    let scaled = candidate.len as f64 / held.len.max(1) as f64;
    let (ours, theirs) = (candidate.heat, held.heat * scaled);
    let variance = candidate.variance * ours + held.variance * theirs * scaled.max(1.0);
    let gained = ours - theirs;
    gained > sure * variance.sqrt() && pays(gained, candidate.bytes)
}

/// Whether `gained` aged accesses pay for a copy of `bytes`, which are read and written once.
fn pays(gained: f64, bytes: u64) -> bool {
    gained * PAYS_WITHIN > bytes as f64 / BLOCK_BYTES
}

/// Whether a new copy of `bytes`, which would serve `planned` accesses, should replace the present
/// copy of the same file, which serves `held`. The gain must exceed chance and pay for the copying.
/// `variance` is the variance-to-mean ratio of the accesses. `files` is the number of files for
/// which the caller makes this comparison.
#[must_use]
pub fn is_worth_renewing(planned: f64, held: f64, bytes: u64, variance: f64, files: usize) -> bool {
    let gained = planned - held;
    gained > sure(files) * (variance * (planned + held)).sqrt() && pays(gained, bytes)
}

/// Bytes of one read: a copy of n blocks of this size costs n reads.
pub(crate) const BLOCK_BYTES: f64 = 4096.0;
/// Number of half-lives of access counts within which a copy must win back its cost.
const PAYS_WITHIN: f64 = 8.0;

/// Least number of foreground reads in an interval from which anything is concluded.
pub const READS_MIN: u64 = 32;

/// Whether the device needs more copies: it served `served` of the `possible` foreground reads that
/// it could have served, which is less than the share `target`.
#[must_use]
pub fn wants_copies(served: u64, possible: u64, target: f64) -> bool {
    possible >= READS_MIN && (served as f64) < target * possible as f64
}

/// A file that could be copied to a device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// Unique id of the file.
    pub file: u64,
    /// Aged accesses that the device does not serve yet.
    pub heat: f64,
    /// Variance-to-mean ratio of `heat` by chance: 1 if the counts never aged
    /// (`ageing::Ageing::variance`).
    pub variance: f64,
    /// Bytes that the copy would take in addition to those of the copy that it replaces.
    pub len: u64,
    /// Bytes that the copy would write.
    pub bytes: u64,
}

/// A copy on the device, or a file that may leave the device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Held {
    /// Number of the copy, or unique id of the file.
    pub number: u64,
    /// Whether this is a file, which can move to a slower device but cannot be dropped.
    pub is_file: bool,
    /// Aged accesses that it serves.
    pub heat: f64,
    /// Variance-to-mean ratio of `heat` by chance.
    pub variance: f64,
    /// Bytes that it takes on the device.
    pub len: u64,
}

/// Copies beyond [`CacheInput::slots`] that may be queued into free room, because copies win back
/// their cost (`payback.rs`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refill {
    /// Largest number of copies, including those of [`CacheInput::slots`].
    pub copies: usize,
    /// Largest number of bytes of the copies beyond the slots.
    pub bytes: u64,
}

/// The state of a device from which [`choose`] decides.
#[derive(Clone, Copy, Debug)]
pub struct CacheInput<'a> {
    /// Bytes that copies may still take. Negative if they take too much already.
    pub room: i64,
    /// Whether the device needs more copies ([`wants_copies`]).
    pub wanted: bool,
    /// Whether files of the device limit the room, so that copies gain room if a file leaves.
    pub demotes: bool,
    /// Number of files that may leave in this iteration.
    pub leave: usize,
    /// Number of copies that may begin.
    pub slots: usize,
    /// Copies beyond the slots that may take free room.
    pub refill: Refill,
    /// Bytes that files may grow by until copies are chosen again. No copy takes this room.
    pub coming: u64,
    /// Bytes of the copies that are queued already. They will take this much of the free room.
    pub waiting: u64,
    /// Files of which the device could hold a copy.
    pub candidates: &'a [Candidate],
    /// Copies and files that the device could drop or move away.
    pub held: &'a [Held],
}

/// One step that [`choose`] decides on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheAction {
    /// Drop the copy, because files need its room.
    Evict(u64),
    /// Drop the copy, because the copy that follows is hotter.
    Replace(u64),
    /// Move the file to a slower device, because a file there is hotter. A later iteration copies
    /// that file, once the room is free.
    Demote(u64),
    /// Copy the file to the device.
    Copy(u64),
}

/// Accesses per byte of a file of `len` bytes.
#[must_use]
pub fn density(heat: f64, len: u64) -> f64 {
    heat / len.max(1) as f64
}

/// Room that is left after files have grown and all queued copies were made. Negative if files need
/// room that copies hold.
fn left_of(room: i64, input: &CacheInput<'_>) -> i64 {
    let room = room.saturating_sub_unsigned(input.coming);
    if room > 0 { room.saturating_sub_unsigned(input.waiting).max(0) } else { room }
}

/// Whether the candidate fits into free room and into the bytes that copies have won back. A
/// candidate that replaces a copy of the same file does not count.
fn refills(candidate: &Candidate, room: i64, won: u64) -> bool {
    let is_new = candidate.len >= candidate.bytes;
    is_new && room >= candidate.len as i64 && won >= candidate.bytes
}

/// Chooses which copies to drop, which files to move away and which to copy, in this order.
#[must_use]
pub fn choose(input: &CacheInput<'_>) -> Vec<CacheAction> {
    let mut held = input.held.to_vec();
    // The coldest copy or file is last, so that `pop` returns it.
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
    // Each candidate may be compared with each copy, so the number of comparisons is the product.
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
                // No further file may leave in this iteration.
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
