//! Tests of ranks, displacement and assignment, by brute force and over seeds.

use archipelago_base::random::Rng;
use proptest::prelude::*;

use super::{
    Assignment, NOISE_SIGMAS_DEFAULT, NOISE_SIGMAS_PAPER, Ranking, assign, baseline, detect,
    offloaded, partitions_max,
};
use crate::ids::{ComputeId, PartitionId};
use crate::offload_ratio::Ratio;

fn nodes(count: u32) -> Vec<ComputeId> {
    (1..=count).map(ComputeId).collect()
}

/// A skewed load: count of the k-th partition falls as 1/(k+1), shuffled.
fn skewed(partitions: u32, scale: f64, rng: &mut Rng) -> Vec<u64> {
    let mut counts: Vec<u64> =
        (0..partitions).map(|k| (scale / f64::from(k + 1)) as u64 + 20).collect();
    rng.shuffle(&mut counts);
    counts
}

/// A sample of a count: its root is the standard deviation, from twelve uniform draws.
fn sample(mean: u64, rng: &mut Rng) -> u64 {
    let normal = (0..12).map(|_| rng.f64()).sum::<f64>() - 6.0;
    (mean as f64 + normal * (mean as f64).sqrt()).round().max(0.0) as u64
}

fn loads(assignment: &Assignment, nodes: &[ComputeId], counts: &[u64]) -> Vec<f64> {
    let of =
        |node: &ComputeId| assignment.list(*node).iter().map(|p| counts[p.0 as usize] as f64).sum();
    nodes.iter().map(of).collect()
}

fn variation(loads: &[f64]) -> f64 {
    let mean = loads.iter().sum::<f64>() / loads.len() as f64;
    let square = loads.iter().map(|load| (load - mean).powi(2)).sum::<f64>() / loads.len() as f64;
    square.sqrt() / mean
}

#[test]
fn the_baseline_is_the_papers_where_nodes_divide_partitions() {
    for (partitions, nodes) in [(8192, 16), (8192, 32), (64, 4), (12, 3), (100, 20)] {
        let ranks = partitions / nodes;
        let (numerator, denominator) = baseline(partitions, nodes);
        assert_eq!(numerator, u128::from(nodes * (ranks * ranks - 1)) * denominator / 3);
    }
    assert_eq!(baseline(8, 8), (0, 1));
    assert_eq!(baseline(8, 9), (0, 1));
}

#[test]
fn the_baseline_is_the_mean_of_random_reshuffles() {
    let mut rng = Rng::with_seed(5);
    for (partitions, nodes) in [(64u32, 5u32), (100, 7), (128, 20), (31, 30), (64, 8)] {
        let (numerator, denominator) = baseline(u64::from(partitions), u64::from(nodes));
        let exact = numerator as f64 / denominator as f64;
        let ranks: Vec<u32> = (0..partitions).map(|place| place / nodes).collect();
        let pairs = ranks.iter().flat_map(|a| ranks.iter().map(move |b| a.abs_diff(*b)));
        let by_pairs = pairs.map(f64::from).sum::<f64>() / f64::from(partitions);
        assert!(
            (exact - by_pairs).abs() < 1e-9 * exact,
            "{partitions}/{nodes}: {exact} {by_pairs}"
        );
        let runs = 400;
        let mut sum = 0;
        for _ in 0..runs {
            let mut shuffled = ranks.clone();
            rng.shuffle(&mut shuffled);
            sum += ranks.iter().zip(&shuffled).map(|(a, b)| a.abs_diff(*b)).sum::<u32>();
        }
        let mean = f64::from(sum) / f64::from(runs);
        assert!((mean / exact - 1.0).abs() < 0.05, "{partitions}/{nodes}: {exact} {mean}");
    }
}

#[test]
fn noise_triggers_nothing_and_a_shuffle_does() {
    for (seed, count) in [(1, 20), (2, 7), (3, 3)] {
        let mut rng = Rng::with_seed(seed);
        let means = skewed(1024, 2e6, &mut rng);
        let mut ranking = Ranking::first(&means);
        for second in 0..50 {
            let counts: Vec<u64> = means.iter().map(|&mean| sample(mean, &mut rng)).collect();
            let next = ranking.observe(&counts, NOISE_SIGMAS_DEFAULT);
            let found = detect(&ranking, &next, count);
            assert!(!found.reassign, "seed {seed}, second {second}: {found:?}");
        }
        let mut shifted = means.clone();
        rng.shuffle(&mut shifted);
        let next = ranking.observe(&shifted, NOISE_SIGMAS_DEFAULT);
        let found = detect(&ranking, &next, count);
        assert!(found.reassign && found.displacement as f64 > 0.5 * found.baseline, "{found:?}");
        ranking = next;
        let again = ranking.observe(&shifted, NOISE_SIGMAS_DEFAULT);
        assert_eq!(detect(&ranking, &again, count).displacement, 0, "it is the new order now");
    }
}

#[test]
fn uniform_load_reassigns_only_without_noise_allowance() {
    let mut rng = Rng::with_seed(9);
    let mut draw = || -> Vec<u64> { (0..1024).map(|_| sample(1000, &mut rng)).collect() };
    let ranking = Ranking::first(&draw());
    let (mut printed, mut allowed) = (0, 0);
    for _ in 0..20 {
        let counts = draw();
        let of = |sigmas| detect(&ranking, &ranking.observe(&counts, sigmas), 20).reassign;
        printed += u32::from(of(NOISE_SIGMAS_PAPER));
        allowed += u32::from(of(NOISE_SIGMAS_DEFAULT));
    }
    assert_eq!((printed, allowed), (20, 0));
}

#[test]
fn a_load_that_only_grows_or_shrinks_moves_nothing() {
    let mut rng = Rng::with_seed(3);
    let counts = skewed(512, 1e6, &mut rng);
    let ranking = Ranking::first(&counts);
    for factor in [1, 2, 10] {
        let more: Vec<u64> = counts.iter().map(|count| count * factor).collect();
        let next = ranking.observe(&more, NOISE_SIGMAS_DEFAULT);
        assert_eq!(detect(&ranking, &next, 6).displacement, 0);
    }
    let silence = ranking.observe(&[0; 512], NOISE_SIGMAS_DEFAULT);
    assert_eq!(detect(&ranking, &silence, 6).displacement, 0, "ties keep the old order");
}

#[test]
fn one_rank_is_never_reassigned() {
    let (a, b) = (Ranking::first(&[1, 2, 3]), Ranking::first(&[3, 2, 1]));
    let found = detect(&a, &b, 3);
    assert_eq!((found.displacement, found.reassign), (0, false));
    assert!(detect(&a, &b, 1).reassign);
}

/// Loads of the hottest `offloaded` partitions.
fn proxied(assignment: &Assignment, nodes: &[ComputeId], counts: &[u64], of: &Ranking) -> Vec<f64> {
    let hottest = &of.order()[..counts.len() / 5];
    let load = |node: &ComputeId| {
        let mine = hottest.iter().filter(|&&p| assignment.owner(p) == Some(*node));
        mine.map(|p| counts[p.0 as usize] as f64).sum()
    };
    nodes.iter().map(load).collect()
}

#[test]
fn assignment_by_load_beats_numbers_at_every_ratio() {
    let mut rng = Rng::with_seed(8);
    let nodes = nodes(20);
    // 10 million keys, zipfian 0.99, hashed to partitions: the hottest takes more than a node's
    // share.
    let mut better = 0;
    for _ in 0..9 {
        let mut counts = vec![0_u64; 8192];
        for rank in 1..200_000_u64 {
            let count = (1e9 / (rank as f64).powf(0.99)) as u64;
            counts[rng.usize(..8192)] += count;
        }
        let ranking = Ranking::first(&counts);
        let by_load = assign(&ranking, &nodes, &Assignment::none(8192));
        let mut by_number = vec![0.0; 20];
        for (at, &count) in counts[..8192 / 5].iter().enumerate() {
            by_number[at % 20] += count as f64;
        }
        let all = variation(&loads(&by_load, &nodes, &counts));
        let fifth = variation(&proxied(&by_load, &nodes, &counts, &ranking));
        assert!(all < 0.15 && fifth < 0.3, "{all} {fifth}");
        better += u32::from(fifth < 0.6 * variation(&by_number));
    }
    assert!(better >= 5, "{better} of 9 draws");
}

#[test]
fn a_share_of_the_hottest_is_offloaded() {
    assert_eq!(offloaded(Ratio::NONE, 8192), 0);
    assert_eq!(offloaded(Ratio::ALL, 8192), 8192);
    assert_eq!(offloaded(Ratio::from_permille(300), 8192), 2458);
    assert_eq!(offloaded(Ratio::from_permille(1), 16), 1);
}

#[test]
fn same_load_moves_nothing_and_cold_ones_go_by_number() {
    let mut rng = Rng::with_seed(6);
    let counts = skewed(1024, 1e6, &mut rng);
    let ranking = Ranking::first(&counts);
    let first = assign(&ranking, &nodes(7), &Assignment::none(1024));
    assert_eq!(assign(&ranking, &nodes(7), &first).changes(&first).count(), 0);
    let flat = assign(&Ranking::flat(1024), &nodes(7), &Assignment::none(1024));
    let sizes: Vec<usize> = nodes(7).iter().map(|&node| flat.list(node).len()).collect();
    assert!(sizes.iter().all(|size| (146..=147).contains(size)), "{sizes:?}");
    // All accesses go to one partition. No single node may get all the others.
    let mut counts = vec![0; 1024];
    counts[77] = 1_000_000;
    let one = assign(&Ranking::first(&counts), &nodes(7), &Assignment::none(1024));
    let sizes: Vec<usize> = nodes(7).iter().map(|&node| one.list(node).len()).collect();
    assert!(sizes.iter().all(|size| *size <= partitions_max(1024, 7)), "{sizes:?}");
    let hot = one.owner(PartitionId(77)).expect("owned");
    assert!(one.list(hot).len() < 1024 / 7, "{sizes:?}");
}

#[test]
fn a_death_touches_only_the_dead_nodes_partitions() {
    let mut rng = Rng::with_seed(4);
    let counts = skewed(256, 1e5, &mut rng);
    let ranking = Ranking::first(&counts);
    let all = assign(&ranking, &nodes(6), &Assignment::none(256));
    let dead = ComputeId(3);
    let orphaned = all.without(dead);
    assert!(orphaned.changes(&all).eq(sorted(all.list(dead))));
    assert!(all.list(dead).iter().all(|&p| orphaned.owner(p).is_none()));
    let left: Vec<ComputeId> = nodes(6).into_iter().filter(|&node| node != dead).collect();
    let spread = orphaned.spread_orphans(&ranking, &left);
    assert!(spread.changes(&all).eq(sorted(all.list(dead))), "nobody else's moved");
    let sizes: Vec<usize> = left.iter().map(|&node| spread.list(node).len()).collect();
    assert_eq!(sizes.iter().sum::<usize>(), 256);
    assert!(sizes.iter().all(|size| *size <= partitions_max(256, left.len())), "{sizes:?}");
    let loads = loads(&spread, &left, &counts);
    let (least, most) = loads.iter().fold((f64::MAX, 0f64), |(a, b), &l| (a.min(l), b.max(l)));
    assert!(most - least <= *counts.iter().max().unwrap() as f64, "{loads:?}");
    for &node in &left {
        let list = spread.list(node);
        assert!(list.is_sorted_by_key(|&p| ranking.rank(p, 1)), "hot to cold");
        assert!(list.iter().all(|&p| spread.owner(p) == Some(node)));
    }
}

fn sorted(list: &[PartitionId]) -> Vec<PartitionId> {
    let mut list = list.to_vec();
    list.sort_unstable();
    list
}

proptest! {
    #[test]
    fn loads_differ_by_at_most_the_hottest_partition(
        seed: u64, bits in 0u32..9, count in 1u32..24, before in 1u32..24,
    ) {
        let mut rng = Rng::with_seed(seed);
        let partitions = 1 << bits;
        let old = Ranking::first(&skewed(partitions, 1e5, &mut rng));
        let current = assign(&old, &nodes(before), &Assignment::none(partitions));
        let counts = skewed(partitions, 1e5, &mut rng);
        let ranking = Ranking::first(&counts);
        let nodes = nodes(count);
        let next = assign(&ranking, &nodes, &current);
        prop_assert!((0..partitions).all(|p| next.owner(PartitionId(p)).is_some()));
        let most_partitions = partitions_max(partitions as usize, nodes.len());
        let mut full = false;
        for &node in &nodes {
            let list = next.list(node);
            prop_assert!(list.is_sorted_by_key(|&p| ranking.rank(p, 1)));
            prop_assert!(list.iter().all(|&p| next.owner(p) == Some(node)));
            prop_assert!(list.len() <= most_partitions);
            full |= list.len() == most_partitions;
        }
        let loads = loads(&next, &nodes, &counts);
        let (least, most) = loads.iter().fold((f64::MAX, 0f64), |(a, b), &l| (a.min(l), b.max(l)));
        let hottest = *counts.iter().max().unwrap() as f64;
        let total: f64 = loads.iter().sum();
        // Cold partitions weigh at least a sixteenth of the mean, whatever their counts are.
        let slack = total / f64::from(count) / 16.0 + total / f64::from(partitions) / 16.0 * most_partitions as f64;
        prop_assert!(full || most - least <= hottest + slack, "{} to {}, hottest {}", least, most, hottest);
    }

    #[test]
    fn displacement_equals_the_brute_force_sum(
        counts in proptest::collection::vec((0u64..50, 0u64..50), 1..80), count in 1u32..12,
    ) {
        let (a, b): (Vec<u64>, Vec<u64>) = counts.into_iter().unzip();
        let old = Ranking::first(&a);
        let new = old.observe(&b, NOISE_SIGMAS_PAPER);
        let rank = |counts: &[u64], p: usize, before: &dyn Fn(usize, usize) -> bool| {
            let hotter = (0..counts.len())
                .filter(|&q| counts[q] > counts[p] || counts[q] == counts[p] && before(q, p));
            hotter.count()
        };
        let old_place: Vec<usize> = (0..a.len()).map(|p| rank(&a, p, &|q, p| q < p)).collect();
        let mut displacement = 0;
        for p in 0..a.len() {
            let now = rank(&b, p, &|q, p| old_place[q] < old_place[p]);
            displacement += (now as u64 / u64::from(count)).abs_diff(old_place[p] as u64 / u64::from(count));
        }
        let found = detect(&old, &new, count);
        prop_assert_eq!(found.displacement, displacement);
        let reached = displacement > 0 && displacement as f64 >= found.baseline * 0.25;
        prop_assert_eq!(found.reassign, reached);
    }
}
