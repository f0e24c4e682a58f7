use archipelago_base::clock::ManualClock;

use super::*;

fn input() -> StallInput {
    StallInput {
        l0_slowdown: 20,
        l0_stop: 36,
        memtable_space_bytes: 192 << 20,
        flush_bytes_per_s: 100 << 20,
        pending_slowdown: 1 << 30,
        pending_stop: 4 << 30,
        peak_bytes_per_s: 400 << 20,
        drain_bytes_per_s: 40 << 20,
        ..StallInput::default()
    }
}

fn rate(input: &StallInput) -> u64 {
    match stall(input) {
        StallDecision::None => u64::MAX,
        StallDecision::Delay { bytes_per_s, .. } => bytes_per_s,
        StallDecision::Stop { .. } => 0,
    }
}

#[test]
fn every_cause_slows_smoothly_and_only_full_debt_stops() {
    type Set = fn(&mut StallInput, f64);
    let causes: [(StallCause, Set); 4] = [
        (StallCause::L0Files, |i, d| {
            (i.l0_files, i.l0_slowdown, i.l0_stop) = ((d * 1e4) as usize, 5000, 10_000);
        }),
        (StallCause::PendingBytes, |i, d| {
            i.pending_bytes = (d * f64::from(1 << 30) * 4.0) as u64;
        }),
        (StallCause::Budget, |i, d| {
            (i.budget_used, i.budget_limit) = ((d * 1.5e6) as u64, 1_000_000);
        }),
        (StallCause::Space, |i, d| {
            i.space_freed_bytes_per_s = i.drain_bytes_per_s;
            (i.space_used, i.space_slowdown, i.space_stop) = ((d * 1e6) as u64, 800_000, 1_000_000);
        }),
    ];
    for (cause, set) in causes {
        let mut before = input().peak_bytes_per_s;
        let mut slowed = false;
        for step in 0..1000 {
            let mut at = input();
            set(&mut at, f64::from(step) / 1000.0);
            let now = rate(&at).min(input().peak_bytes_per_s);
            assert!(now <= before, "{cause:?}: more debt must not be faster");
            assert!(now * 100 >= before * 95, "{cause:?} at {step}: cliff {before} to {now}");
            slowed |= now < before;
            before = now;
        }
        assert!(slowed, "{cause:?}");
        assert!(before < input().drain_bytes_per_s / 2, "{cause:?}: debt must shrink at last");
        let mut at = input();
        set(&mut at, 1.0);
        let stops = stall(&at) == StallDecision::Stop { cause };
        assert_eq!(stops, cause != StallCause::Budget, "{cause:?}");
    }
    assert_eq!(stall(&input()), StallDecision::None);
}

#[test]
fn threshold_of_zero_is_none() {
    let at = |pending_bytes, pending_slowdown, pending_stop| {
        let thresholds = StallInput { pending_slowdown, pending_stop, ..input() };
        stall(&StallInput { pending_bytes, ..thresholds })
    };
    let cause = StallCause::PendingBytes;
    let (gb, most) = (1 << 30, u64::MAX);
    assert_eq!(at(most, 0, 0), StallDecision::None);
    assert_eq!(at(4 * gb - 1, 0, 4 * gb), StallDecision::None);
    assert_eq!(at(4 * gb, 0, 4 * gb), StallDecision::Stop { cause });
    assert_eq!(at(gb - 1, gb, 0), StallDecision::None);
    // Writers go as slowly as at the end of the slope, at any debt, and are never stopped.
    let slowest = at(4 * gb, gb, 0);
    assert!(matches!(slowest, StallDecision::Delay { cause: StallCause::PendingBytes, .. }));
    assert_eq!(at(most, gb, 0), slowest);
    assert_eq!(at(4 * gb, gb, 0), slowest);
    assert!(matches!(at(2 * gb, gb, 0), StallDecision::Delay { bytes_per_s, .. }
        if bytes_per_s > 20 << 20));
}

#[test]
fn space_without_a_bound_never_slows_writers() {
    let garbage = StallInput { space_used: u64::MAX, ..input() };
    assert_eq!(stall(&garbage), StallDecision::None);
    assert_eq!(StallCause::ALL.map(StallCause::name)[4], "space");
}

#[test]
fn nearly_full_pool_slows_writers_smoothly_and_never_stops_them() {
    let at = |left: u64| StallInput {
        pool_left_bytes: left << 20,
        pool_slowdown_bytes: 1000 << 20,
        ..input()
    };
    assert_eq!(stall(&at(1000)), StallDecision::None);
    let mut before = input().peak_bytes_per_s;
    for left in (0..1000).rev() {
        let StallDecision::Delay { cause: StallCause::Pool, bytes_per_s } = stall(&at(left)) else {
            panic!("{left} MiB are left: {:?}", stall(&at(left)));
        };
        assert!(bytes_per_s < before, "less room must be slower");
        assert!(bytes_per_s * 100 >= before * 95, "cliff from {before} to {bytes_per_s}");
        before = bytes_per_s;
    }
    let low = input().peak_bytes_per_s / UNMEASURED_FALL;
    assert!((low - 10..low + 10).contains(&before), "{before}");
    // What waits for its flush counts as stored.
    let waiting = StallInput { flush_backlog_bytes: 300 << 20, ..at(1200) };
    assert_eq!(pool_debt(&waiting), Some(0.1));
    assert_eq!(pool_debt(&StallInput { flush_backlog_bytes: 300 << 20, ..input() }), None);
}

#[test]
fn nearly_full_pool_does_not_hold_writers_to_the_rate_of_quiet_times() {
    let at = |left: u64| StallInput {
        peak_bytes_per_s: 10_000,
        pool_left_bytes: left << 20,
        pool_slowdown_bytes: 1000 << 20,
        ..input()
    };
    let [begin, end] = [999, 0].map(|left| rate(&at(left)));
    assert!(begin > 66_000_000, "{begin}");
    assert!((1_048_000..1_049_000).contains(&end), "{end}");
}

#[test]
fn writers_settle_at_the_speed_of_garbage_collection() {
    let freed = 20 << 20;
    let bound = StallInput { space_slowdown: 800 << 20, space_stop: 1000 << 20, ..input() };
    let mut at = StallInput { space_freed_bytes_per_s: freed, ..bound };
    let mut used = 0.0f64;
    for _ in 0..100_000 {
        at.space_used = used as u64;
        let ingest = rate(&at).min(at.peak_bytes_per_s);
        assert!(ingest > 0, "the bound is not reached");
        used = (used + (ingest as f64 - f64::from(freed as u32)) * 0.01).max(0.0);
    }
    let settled = rate(&at) as f64 / freed as f64;
    assert!((0.9..1.1).contains(&settled), "{settled}");
    assert!(matches!(stall(&at), StallDecision::Delay { cause: StallCause::Space, .. }));
}

/// Writes at the allowed rate through one flush that takes `takes_s`. Returns the written bytes and
/// the longest wait of one KiB.
fn through_a_flush(flush_bytes_per_s: u64, takes_s: f64, wish_bytes_per_s: f64) -> (f64, f64) {
    let mut at = StallInput { flush_backlog_bytes: 64 << 20, flush_bytes_per_s, ..input() };
    let (mut space, mut longest_s) = (f64::from(64 << 20), 0.0f64);
    let step_s = 0.001;
    for step in 0..(takes_s / step_s) as u64 {
        at.memtable_space_bytes = space as u64;
        at.flush_elapsed = Duration::from_millis(step);
        let rate = (rate(&at) as f64).min(wish_bytes_per_s);
        assert!(rate > 0.0, "stopped at {step} ms");
        longest_s = longest_s.max(1024.0 / rate);
        space -= rate * step_s;
    }
    (f64::from(64 << 20) - space, longest_s)
}

#[test]
fn writers_meet_the_end_of_a_flush_as_their_space_ends() {
    let mb = f64::from(1 << 20);
    // The speed was right: most of the space is used, and no write waits long.
    let (written, longest_s) = through_a_flush(40 << 20, 1.6, 1e9);
    assert!(written > 50.0 * mb && longest_s < 0.01, "{written} {longest_s}");
    // Writers that are slower than the flush are not slowed at all.
    let (written, _) = through_a_flush(160 << 20, 0.4, 100.0 * mb);
    assert!(written > 39.9 * mb, "{written}");
    // The flush takes three times the expected time: writers slow down and do not stop.
    let (_, longest_s) = through_a_flush(120 << 20, 1.6, 1e9);
    assert!(longest_s < 0.01, "{longest_s}");
    // The speed was never measured.
    let (_, longest_s) = through_a_flush(0, 3.0, 1e9);
    assert!(longest_s < 0.01, "{longest_s}");
    let full = StallInput { flush_backlog_bytes: 1, memtable_space_bytes: 0, ..input() };
    assert_eq!(stall(&full), StallDecision::Stop { cause: StallCause::Memtables });
}

#[test]
fn writers_settle_at_the_drain_rate_short_of_the_stop() {
    let mut at = input();
    let mut debt = 0.0f64;
    for _ in 0..100_000 {
        at.pending_bytes = debt as u64;
        let ingest = rate(&at).min(at.peak_bytes_per_s);
        assert!(ingest > 0, "ran into the stop");
        debt = (debt + (ingest as f64 - at.drain_bytes_per_s as f64) * 0.01).max(0.0);
    }
    let settled = rate(&at) as f64 / at.drain_bytes_per_s as f64;
    assert!((0.9..1.1).contains(&settled), "{settled}");
}

#[test]
fn files_of_l0_go_by_the_speed_of_compactions_and_memory_by_that_of_flushes() {
    let (flushes, compactions) = (40 << 20, 8 << 20);
    let measured =
        StallInput { drain_bytes_per_s: flushes, compaction_bytes_per_s: compactions, ..input() };
    let l0 = StallInput { l0_files: 35, ..measured };
    let pending = StallInput { pending_bytes: (4 << 30) - 1, ..measured };
    for behind in [l0, pending] {
        assert!(rate(&behind) < compactions / 2, "compactions catch up before the stop");
    }
    let memory = StallInput { budget_used: 149, budget_limit: 100, ..measured };
    assert!((flushes / 4..flushes / 3).contains(&rate(&memory)), "flushes free memory");
    let before = StallInput { compaction_bytes_per_s: 0, ..l0 };
    assert!((flushes / 4..flushes / 2).contains(&rate(&before)), "no compaction has ended");
}

#[test]
fn writers_settle_short_of_the_stop_while_buckets_are_compacted_one_after_another() {
    // Two buckets share one compaction, as with a limit on the rate of background writes. Layers of
    // a bucket leave L0 only when its compaction ends.
    let (limit, layer, last_level) = (40e6, 32e6, 600e6);
    let mut at =
        StallInput { peak_bytes_per_s: 32_000_000, drain_bytes_per_s: 40_000_000, ..input() };
    let (mut l0, mut in_job, mut left, mut bucket) = ([0.0f64; 2], 0.0, 0.0f64, 0);
    let (mut step_s, mut job_s, mut most) = (0.1, 0.0, 0.0f64);
    for _ in 0..20_000 {
        at.l0_files = l0[0].max(l0[1]) as usize;
        most = most.max(l0[0].max(l0[1]));
        let ingest = (rate(&at) as f64).min(32e6);
        assert!(ingest > 0.0, "ran into the stop");
        l0 = l0.map(|layers| layers + ingest / 2.0 * step_s / layer);
        if left <= 0.0 {
            if in_job > 0.0 {
                let moved = in_job * layer;
                l0[bucket] -= in_job;
                at.compaction_bytes_per_s = job_speed(
                    at.compaction_bytes_per_s,
                    moved as u64,
                    1,
                    Duration::from_secs_f64(job_s),
                );
            }
            bucket = usize::from(l0[1] > l0[0]);
            (in_job, job_s) = (l0[bucket].floor(), 0.0);
            left = if in_job < 4.0 { 0.0 } else { in_job * layer + last_level };
            in_job = if left > 0.0 { in_job } else { 0.0 };
        }
        left -= (limit - ingest) * step_s;
        job_s += step_s;
        step_s = 0.1;
    }
    assert!(most > 20.0, "writers use the slope: {most}");
}

#[test]
fn a_meter_remembers_what_was_reached_and_not_what_was_delayed() {
    let clock = Arc::new(ManualClock::new(0));
    let second = Duration::from_secs(1);
    let meter = RateMeter::new(Arc::clone(&clock) as Arc<dyn Clock>, second);
    assert_eq!(meter.rate(), 0);
    meter.add(5_000_000);
    clock.advance(second);
    assert_eq!(meter.rate(), 5_000_000);
    for _ in 0..10 {
        meter.add(1000);
        clock.advance(second);
        assert!(meter.rate() > 4_000_000, "an idle moment is not slowness");
    }
    for _ in 0..10 {
        meter.add(100_000_000);
        meter.restart_window();
        clock.advance(second);
    }
    assert!(meter.rate() < 5_000_000);
    clock.advance(600 * second);
    assert!(meter.rate() < 1000, "but it is forgotten");
}

#[test]
fn waits_add_up_to_the_rate() {
    let clock = Arc::new(ManualClock::new(0));
    let controller = DelayController::new(Arc::clone(&clock) as Arc<dyn Clock>);
    for _ in 0..10_000 {
        let wait = controller.admit(100, 1_000_000);
        assert!(wait < Duration::from_millis(2));
        clock.sleep(wait);
    }
    let seconds = clock.now_ns() as f64 / 1e9;
    assert!((0.99..1.01).contains(&seconds), "1 MB at 1 MB/s took {seconds} s");
    assert_eq!(controller.admit(u64::MAX, 1), WAIT_MAX);
}

#[test]
fn space_here_drains_as_fast_as_shards_leave() {
    let at = |send_bytes_per_s| StallInput {
        flush_backlog_bytes: 64 << 20,
        memtable_space_bytes: 64 << 20,
        flush_bytes_per_s: 10 << 20,
        send_bytes_per_s,
        ..input()
    };
    assert_eq!(rate(&at(None)), 10 << 20);
    assert_eq!(rate(&at(Some(100 << 20))), 100 << 20);
    // A speed that was not measured is guessed.
    assert_eq!(rate(&at(Some(0))), 64 << 20);
}

#[test]
fn full_nodes_delay_and_never_stop() {
    let at = |away_space_bytes| StallInput {
        away_backlog_bytes: 100 << 20,
        away_space_bytes,
        away_flush_bytes_per_s: 50 << 20,
        send_bytes_per_s: Some(1 << 30),
        ..input()
    };
    let mut before = u64::MAX;
    for space in (0..=200u64).rev() {
        let now = rate(&at(space << 20));
        assert!(now <= before && now > 0, "{space}: {now} after {before}");
        before = now;
    }
    assert_eq!(rate(&at(0)), 50 << 20, "as fast as flushes make room");
    assert_eq!(rate(&at(100 << 20)), 100 << 20, "the room that is left is used as well");
    // The slower stage decides.
    let both = StallInput { flush_backlog_bytes: 64 << 20, ..at(10 << 20) };
    assert_eq!(rate(&both), rate(&at(10 << 20)));
    let none_away = StallInput { away_backlog_bytes: 0, ..at(0) };
    assert_eq!(stall(&none_away), StallDecision::None);
}

#[test]
fn writers_that_flushes_keep_up_with_are_not_delayed_by_nodes() {
    let (limit, flushed_per_s) = (100u64 << 20, 20u64 << 20);
    for wanted_per_s in [10 << 20, 19 << 20, 40 << 20] {
        let mut held = limit / 20 * 19;
        for _ in 0..100 {
            // A tenth of a second passes in each step.
            let allowed = rate(&StallInput {
                away_backlog_bytes: away_excess_bytes(held, limit).max(1),
                away_space_bytes: limit - held,
                away_flush_bytes_per_s: flushed_per_s,
                send_bytes_per_s: Some(1 << 30),
                ..input()
            });
            assert!(allowed >= wanted_per_s.min(flushed_per_s), "{held}: {allowed}");
            held = (held + allowed.min(wanted_per_s) / 10).saturating_sub(flushed_per_s / 10);
            assert!(held <= limit, "writers of {wanted_per_s} have filled the nodes");
        }
    }
}

#[test]
fn nodes_that_are_nearly_full_are_emptied_to_three_quarters() {
    let cases = [(90, 100, 0), (91, 100, 16), (100, 106, 22), (5, 0, 5), (0, 0, 0)];
    for (held, limit, excess) in cases {
        assert_eq!(away_excess_bytes(held, limit), excess, "{held} of {limit} bytes");
    }
    // Limits of a few bytes are rounded.
    for limit in 0..100 {
        for held in 0..100 {
            let excess = away_excess_bytes(held, limit);
            let left = held.checked_sub(excess).expect("an excess is a part of what is held");
            let left_max = (limit / 10 * 9).max(limit / 4 * 3);
            assert!(left <= left_max, "{held} of {limit} bytes: {excess}");
        }
    }
}

#[test]
fn compactions_are_behind_from_their_slowdown_thresholds_on() {
    let is_behind = |l0_files, pending_bytes| {
        StallInput { l0_files, pending_bytes, ..input() }.is_compaction_behind()
    };
    assert!(!is_behind(0, 0) && !is_behind(19, (1 << 30) - 1));
    assert!(is_behind(20, 0) && is_behind(36, 0));
    assert!(is_behind(0, 1 << 30) && is_behind(0, 4 << 30));
    let no_slowdown = |pending_bytes| StallInput { pending_bytes, pending_slowdown: 0, ..input() };
    assert!(!no_slowdown(2 << 30).is_compaction_behind());
    assert!(no_slowdown(4 << 30).is_compaction_behind(), "writers are stopped");
    let no_thresholds = StallInput { pending_stop: 0, ..no_slowdown(u64::MAX) };
    assert!(!no_thresholds.is_compaction_behind());
    let no_memory = StallInput { budget_used: 2, budget_limit: 1, ..input() };
    assert!(!no_memory.is_compaction_behind(), "compactions free no memory");
}
