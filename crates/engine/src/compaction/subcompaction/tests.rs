use proptest::prelude::*;

use super::*;

fn key(n: u64) -> Vec<u8> {
    format!("{n:06}").into_bytes()
}

fn range(start: u64, end: u64) -> KeyRange {
    KeyRange { start: key(start), end: Some(key(end)) }
}

/// `count` anchors of `bytes` each, at 1, 2, 3 and so on.
fn even(count: u64, bytes: u64) -> Vec<Anchor> {
    (1..=count).map(|n| Anchor { key: key(n), bytes }).collect()
}

/// Bytes of each part, by the anchors. An anchor at the start of a part belongs to the previous
/// part.
fn bytes_of(parts: &[KeyRange], anchors: &[Anchor]) -> Vec<u64> {
    let holds = |part: &KeyRange, anchor: &Anchor| {
        let first = part.start == parts[0].start;
        (first || anchor.key > part.start)
            && (part.end == parts[parts.len() - 1].end
                || part.end.as_ref().is_some_and(|end| anchor.key <= *end))
    };
    let sum = |part| anchors.iter().filter(|a| holds(part, a)).map(|a| a.bytes).sum();
    parts.iter().map(sum).collect()
}

#[test]
fn even_anchors_make_even_parts() {
    let anchors = even(1000, 100);
    let parts = plan_subcompactions(anchors.clone(), 8, 1000, &range(0, 2000));
    assert_eq!(bytes_of(&parts, &anchors), [12_500; 8]);
    assert_eq!(parts[0].start, key(0));
    assert_eq!(parts[7].end, Some(key(2000)));
}

#[test]
fn skewed_anchors_make_parts_of_even_bytes_not_of_even_keys() {
    // Three quarters of the bytes lie within a tenth of the keys. There are two files, whose
    // anchors are unsorted together.
    let weight = |n: u64| if (400..500).contains(&n) { 2700 } else { 100 };
    let file =
        |from: u64| (from..1000).step_by(2).map(move |n| Anchor { key: key(n), bytes: weight(n) });
    let anchors: Vec<Anchor> = file(1).chain(file(2)).collect();
    let total: u64 = anchors.iter().map(|anchor| anchor.bytes).sum();
    let parts = plan_subcompactions(anchors.clone(), 4, 1000, &range(0, 2000));
    assert_eq!(parts.len(), 4);
    for bytes in bytes_of(&parts, &anchors) {
        assert!(bytes.abs_diff(total / 4) <= 2700, "{bytes} of {total}");
    }
    let hot = parts.iter().filter(|part| part.overlaps(&range(400, 500))).count();
    assert_eq!(hot, 4, "every part has its share of the hot keys");
}

#[test]
fn what_cannot_be_cut_stays_whole() {
    let stays_whole = |anchors: Vec<Anchor>, most, least, range: KeyRange| {
        let parts = plan_subcompactions(anchors, most, least, &range);
        assert_eq!(parts.len(), 1, "{parts:?}");
        assert_eq!(parts[0], range);
    };
    let all = || range(0, 2000);
    stays_whole(vec![], 8, 1, all());
    // One key, in one file or in many.
    stays_whole(even(1, 1 << 40), 8, 1, all());
    stays_whole(vec![Anchor { key: key(7), bytes: 1000 }; 50], 8, 1, all());
    // A limit of one part.
    stays_whole(even(1000, 100), 1, 1, all());
    // Fewer bytes than two files have.
    stays_whole(even(1000, 100), 8, 50_001, all());
    stays_whole(even(1000, 100), 8, u64::MAX, all());
    // No anchor strictly inside.
    stays_whole(even(1000, 100), 8, 1, range(1, 2));
}

#[test]
fn fewer_anchors_than_parts_make_as_many_parts_as_they_can() {
    let anchors = even(3, 1000);
    let parts = plan_subcompactions(anchors.clone(), 8, 100, &range(0, 2000));
    assert_eq!(bytes_of(&parts, &anchors), [1000, 1000, 1000]);
}

#[test]
fn parts_are_not_smaller_than_a_file() {
    let parts = plan_subcompactions(even(1000, 100), 64, 30_000, &range(0, 2000));
    assert_eq!(parts.len(), 3, "100,000 bytes fill three files of 30,000");
    // Nearly all bytes lie before the last anchor, so there is nothing to cut off after it.
    let mut anchors = even(4, 10);
    anchors[3].bytes = 10_000;
    let parts = plan_subcompactions(anchors, 4, 1000, &range(0, 2000));
    assert_eq!(parts, [range(0, 2000)]);
}

proptest! {
    #[test]
    fn parts_are_the_range_and_boundaries_lie_inside(
        anchors in prop::collection::vec((0u64..60, 0u64..5000), 0..80),
        parts_max in 1usize..12,
        least in 0u64..20_000,
        start in 0u64..30,
        len in 1u64..60,
        open in any::<bool>(),
    ) {
        let anchors: Vec<Anchor> =
            anchors.into_iter().map(|(n, bytes)| Anchor { key: key(n), bytes }).collect();
        let mut whole = range(start, start + len);
        if open {
            whole.end = None;
        }
        let parts = plan_subcompactions(anchors.clone(), parts_max, least, &whole);
        prop_assert!((1..=parts_max).contains(&parts.len()));
        prop_assert_eq!(&parts[0].start, &whole.start);
        prop_assert_eq!(&parts[parts.len() - 1].end, &whole.end);
        prop_assert!(parts.iter().all(|part| !part.is_empty()));
        for pair in parts.windows(2) {
            prop_assert_eq!(pair[0].end.as_ref(), Some(&pair[1].start));
            prop_assert!(anchors.iter().any(|anchor| anchor.key == pair[1].start));
        }
        if parts.len() > 1 {
            for bytes in bytes_of(&parts, &anchors) {
                prop_assert!(bytes >= least / 2, "{bytes}");
            }
        }
    }

    #[test]
    fn fine_anchors_make_nearly_even_parts(
        weights in prop::collection::vec(1u64..100, 400..800),
        parts_max in 2usize..9,
    ) {
        let anchors: Vec<Anchor> = weights
            .iter()
            .zip(1..)
            .map(|(&bytes, n)| Anchor { key: key(n), bytes })
            .collect();
        let total: u64 = weights.iter().sum();
        let parts = plan_subcompactions(anchors.clone(), parts_max, 1, &range(0, 2000));
        prop_assert_eq!(parts.len(), parts_max);
        for bytes in bytes_of(&parts, &anchors) {
            prop_assert!(bytes.abs_diff(total / parts_max as u64) <= 100, "{bytes} of {total}");
        }
    }
}
