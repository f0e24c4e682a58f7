//! Figures of the jobs and shards that left the owners of a run. A run from which none left must
//! not count as a run that survived its faults.
//!
//! An owner prints its figures many times, because it is killed in the end. The parent keeps the
//! last ones of each owner.

use std::fmt;
use std::ops::AddAssign;

/// Begin of the line with the figures of an owner.
const FIGURES: &str = "figures ";

/// Numbers of the jobs and shards that left owners, and of the shards that their successors kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Figures {
    /// Compactions, garbage collections and flushes that other processes ran.
    pub(super) jobs_away: u64,
    /// Shards that went to memory nodes.
    pub(super) shards_sent: u64,
    /// Shards that a next owner kept at memory nodes.
    pub(super) shards_kept: u64,
    /// Lost shards that were made again from the log.
    pub(super) shards_rebuilt: u64,
    /// Shards at memory nodes after the kill of their owner. The parent counts them.
    pub(super) shards_left: u64,
    /// Reads of writing threads that were compared with the acknowledged operations.
    pub(super) reads: u64,
}

impl Figures {
    /// The line that an owner prints.
    pub(super) fn line(&self) -> String {
        let Self { jobs_away, shards_sent, shards_kept, shards_rebuilt, reads, .. } = self;
        format!("{FIGURES}{jobs_away} {shards_sent} {shards_kept} {shards_rebuilt} {reads}")
    }

    /// The figures of a line; `None` for another line.
    pub(super) fn parse(line: &str) -> Option<Self> {
        let words = line.strip_prefix(FIGURES)?.split(' ').map(|word| word.parse().ok());
        let [jobs_away, shards_sent, shards_kept, shards_rebuilt, reads] =
            words.collect::<Option<Vec<u64>>>()?.try_into().ok()?;
        let shards_left = 0;
        Some(Self { jobs_away, shards_sent, shards_kept, shards_rebuilt, shards_left, reads })
    }

    /// A sentence about the first figure that must not be 0 after this number of cycles, but is;
    /// `None` if there is none.
    ///
    /// A run with faults `at_messages` has no step at which an owner outlives a memory node, so no
    /// shard need be made again in it.
    pub(super) fn lacks(&self, cycles: u64, at_messages: bool) -> Option<&'static str> {
        /// Fewest cycles after which every figure must be above 0.
        const CYCLES_MIN: u64 = 60;
        let rebuilt = if at_messages { u64::MAX } else { self.shards_rebuilt };
        let figures = [
            (self.jobs_away, "no job ran in another process"),
            (self.shards_sent, "no shard went to a memory node"),
            (self.shards_kept, "no owner kept the shards of another one"),
            (rebuilt, "no lost shard was made again"),
            (self.shards_left, "no memory node had a shard of a killed owner"),
            (self.reads, "no read was compared"),
        ];
        let lacking = figures.into_iter().find(|(figure, _)| *figure == 0);
        lacking.filter(|_| cycles >= CYCLES_MIN).map(|(_, what)| what)
    }
}

impl AddAssign for Figures {
    fn add_assign(&mut self, other: Self) {
        self.jobs_away += other.jobs_away;
        self.shards_sent += other.shards_sent;
        self.shards_kept += other.shards_kept;
        self.shards_rebuilt += other.shards_rebuilt;
        self.shards_left += other.shards_left;
        self.reads += other.reads;
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { jobs_away, shards_sent, shards_kept, shards_rebuilt, shards_left, reads } = self;
        write!(
            f,
            "{jobs_away} jobs in other processes, {shards_sent} shards sent to memory nodes, \
             {shards_left} there after kills, {shards_kept} kept by the next owner, \
             {shards_rebuilt} made again, {reads} reads compared"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_return_from_their_line() {
        let (jobs_away, shards_sent, shards_kept) = (1, 2, 3);
        let (shards_rebuilt, shards_left, reads) = (4, 0, 5);
        let figures =
            Figures { jobs_away, shards_sent, shards_kept, shards_rebuilt, shards_left, reads };
        assert_eq!(Figures::parse(&figures.line()), Some(figures));
        assert_eq!(Figures::parse("opened"), None);
        assert_eq!(Figures::parse("figures 1 2"), None);
    }

    #[test]
    fn long_run_must_have_offloaded() {
        let mut figures = Figures { jobs_away: 1, ..Figures::default() };
        assert_eq!(figures.lacks(3, false), None, "a short run");
        assert_eq!(figures.lacks(500, false), Some("no shard went to a memory node"));
        figures += Figures { shards_sent: 1, shards_kept: 1, shards_rebuilt: 1, ..figures };
        assert_eq!(figures.lacks(500, false), Some("no memory node had a shard of a killed owner"));
        figures += Figures { shards_left: 1, reads: 1, ..figures };
        assert_eq!(figures.lacks(500, false), None);
        figures.shards_rebuilt = 0;
        assert_eq!(figures.lacks(500, false), Some("no lost shard was made again"));
        assert_eq!(figures.lacks(500, true), None, "an owner at messages does not outlive a node");
    }
}
