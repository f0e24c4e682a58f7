//! Losses beyond one fault: the promises of a volume while two nodes are away.
//!
//! For each pair of nodes, three losses are tried:
//! 1. Both nodes, with a database at rest: tables, values and the manifest are readable.
//! 2. Both nodes, with a log whose copies are all there: an opening that accepts the loss of the
//!    nodes finds every acknowledged write, on the third node if no other one is left.
//! 3. The first of them, with an owner that is killed during its writes: the log has every
//!    acknowledged write.

use super::session::{LastWrites, StorageSession};
use crate::children::Fault;

/// Tries the losses of at most `pairs_max` pairs of nodes, which the seed chooses. Returns the
/// number of pairs.
pub(super) fn try_pairs(
    session: &mut StorageSession<'_>,
    pairs_max: usize,
) -> Result<usize, String> {
    let nodes = session.cluster().node_count();
    let mut pairs: Vec<[usize; 2]> =
        (0..nodes).flat_map(|one| (one + 1..nodes).map(move |other| [one, other])).collect();
    session.rng().shuffle(&mut pairs);
    pairs.truncate(pairs_max);
    for pair in &pairs {
        let [one, other] = *pair;
        let told =
            |problem: String| format!("without nodes {} and {}: {problem}", one + 1, other + 1);
        try_pair(session, *pair).map_err(told)?;
        println!("nothing is lost without nodes {} and {}", one + 1, other + 1);
    }
    Ok(pairs.len())
}

fn try_pair(session: &mut StorageSession<'_>, pair: [usize; 2]) -> Result<(), String> {
    session.flush()?;
    for node in pair {
        session.cluster().take_node(node, Fault::Kill)?;
    }
    session.check_at_rest().map_err(|problem| format!("at rest: {problem}"))?;
    session.cluster().restore()?;
    let copied = session.write_and_lose(&pair, LastWrites::Copied);
    copied.map_err(|problem| format!("with all copies of the log: {problem}"))?;
    let under_way = session.write_and_lose(&pair[..1], LastWrites::UnderWay);
    under_way.map_err(|problem| format!("the first only, during writes: {problem}"))
}
