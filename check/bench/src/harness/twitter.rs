//! Workloads like those of Twitter's cache clusters, synthesised from published statistics of each
//! cluster (`data/README.md`): mean sizes of keys and values, shares of operations, and a fitted
//! skew. They are not the traces: nothing changes over time, and every key and value of a cluster
//! has its mean size.
//!
//! Three kinds of operations remain: `get` and `gets` read, `delete` deletes, and all others
//! (`set`, `add`, `cas`, `incr`, `prepend`) write a value of the mean size. Operations that the
//! source does not name (shares below a per cent) count as writes. The functions are pure.

use crate::skew::Skew;
use archipelago_base::random::Rng;

use crate::skew::scramble;

const CSV: &str = include_str!("../../data/twitter_clusters.csv");

/// Statistics of one cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct Cluster {
    /// Number in the source, from 1.
    pub number: u32,
    /// Mean bytes of a key.
    pub key_bytes: usize,
    /// Mean bytes of a value.
    pub value_bytes: usize,
    /// Fractions of reads and of deletions. All other operations write.
    pub(crate) reads: f64,
    pub(crate) deletes: f64,
    /// Zipfian skew. The distribution is uniform if the source has no fit.
    pub(crate) alpha: f64,
    /// Whether the source has a fitted skew.
    pub(crate) fitted: bool,
}

/// Request to a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Read this key.
    Read(u64),
    /// Write this key.
    Write(u64),
    /// Delete this key.
    Delete(u64),
}

/// The clusters with known sizes, in the order of the source: all 54 except cluster 5.
pub fn clusters() -> Vec<Cluster> {
    CSV.lines().skip(1).filter_map(cluster).collect()
}

fn cluster(line: &str) -> Option<Cluster> {
    let mut fields = line.split(',');
    let mut field = || fields.next().map(str::trim);
    let number = field()?.parse().ok()?;
    let (key_bytes, value_bytes) = (field()?.parse().ok()?, field()?.parse().ok()?);
    let (mut reads, mut deletes, mut all) = (0.0, 0.0, 0.0);
    for operation in field()?.split_whitespace() {
        let (name, share) = operation.split_once(':')?;
        let share: f64 = share.parse().ok()?;
        all += share;
        match name {
            "get" | "gets" => reads += share,
            "delete" => deletes += share,
            _ => {}
        }
    }
    let alpha = field()?.parse().ok();
    // Rounded shares may sum to a little more than one.
    let all = all.max(1.0);
    Some(Cluster {
        number,
        key_bytes,
        value_bytes,
        reads: reads / all,
        deletes: deletes / all,
        alpha: alpha.unwrap_or(0.0),
        fitted: alpha.is_some(),
    })
}

/// Requests of a cluster over a number of keys.
#[derive(Clone, Debug)]
pub struct Stream {
    keys: u64,
    reads: f64,
    deletes: f64,
    skew: Skew,
}

impl Stream {
    /// Requests over keys `0..keys`, with hot keys scattered.
    pub fn new(cluster: &Cluster, keys: u64) -> Self {
        let skew = Skew::new(keys, cluster.alpha);
        Self { keys, reads: cluster.reads, deletes: cluster.deletes, skew }
    }

    /// Draws the next request.
    pub fn next(&self, rng: &mut Rng) -> Request {
        let key = scramble(self.skew.next(rng), self.keys);
        let drawn = rng.f64();
        if drawn < self.reads {
            Request::Read(key)
        } else if drawn < self.reads + self.deletes {
            Request::Delete(key)
        } else {
            Request::Write(key)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cluster_with_sizes_is_read() {
        let clusters = clusters();
        assert_eq!(clusters.len(), 53, "54 without cluster 5");
        let of = |number| clusters.iter().find(|cluster| cluster.number == number).unwrap();
        let first = of(1);
        assert_eq!((first.key_bytes, first.value_bytes), (80, 267));
        assert_eq!((first.reads, first.alpha), (0.99, 2.6774));
        let mixed = of(14);
        assert!((mixed.reads - 0.65).abs() < 1e-9 && (mixed.deletes - 0.22).abs() < 1e-9);
        assert_eq!(of(21).reads, 0.0, "additions only");
        let unknown: Vec<u32> = clusters.iter().filter(|c| !c.fitted).map(|c| c.number).collect();
        assert_eq!(unknown, [43, 46]);
        for cluster in &clusters {
            assert!(cluster.reads + cluster.deletes <= 1.0 + 1e-9, "{cluster:?}");
        }
    }

    #[test]
    fn a_stream_has_the_shares_and_the_skew() {
        let cluster = clusters().into_iter().find(|cluster| cluster.number == 14).unwrap();
        let stream = Stream::new(&cluster, 10_000);
        let mut rng = Rng::with_seed(9);
        let (mut reads, mut deletes) = (0, 0);
        let mut hits = vec![0_u32; 10_000];
        for _ in 0..100_000 {
            let key = match stream.next(&mut rng) {
                Request::Read(key) => {
                    reads += 1;
                    key
                }
                Request::Delete(key) => {
                    deletes += 1;
                    key
                }
                Request::Write(key) => key,
            };
            hits[key as usize] += 1;
        }
        assert!((64_000..66_000).contains(&reads) && (21_400..22_600).contains(&deletes));
        let hottest = hits.iter().max().copied().unwrap();
        assert!((20_000..32_000).contains(&hottest), "1 / zeta(1.2959): {hottest}");
    }
}
