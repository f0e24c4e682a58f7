use proptest::prelude::*;

use super::*;

const MS: u64 = 1_000_000;
const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// A card that sends by class, at one byte per 8 ns.
fn limits() -> Limits {
    Limits {
        order: Order::ByClass,
        bytes_per_s: 125_000_000,
        stream_bytes_per_s: 0,
        latency_ns: 0,
        burst_bytes: 0,
        slice_bytes: 16 * KIB,
        background_bytes_max: 0,
    }
}

/// Pushes a message at time `at_ns`.
fn push<T>(schedule: &mut Schedule<T>, at_ns: u64, message: Message<T>) {
    schedule.advance(at_ns);
    schedule.push(message);
}

/// The messages that have left by time `at_ns`.
fn leave<T>(schedule: &mut Schedule<T>, at_ns: u64) -> Vec<Departure<T>> {
    let mut left = Vec::new();
    schedule.advance(at_ns);
    schedule.leave(&mut left);
    left
}

fn message<T>(class: TrafficClass, stream: u64, bytes: u64, payload: T) -> Message<T> {
    let stream = StreamKey::Link(stream);
    Message { class, stream, bytes, room_bytes: bytes, deadline_ns: u64::MAX, payload }
}

/// Runs the schedule by its own wake-ups. Returns the payloads with their exits and times.
fn run<T>(schedule: &mut Schedule<T>) -> Vec<(u64, Exit, T)> {
    let mut all = Vec::new();
    while let Some(next_ns) = schedule.next_ns() {
        let left = leave(schedule, next_ns);
        all.extend(left.into_iter().map(|left| (next_ns, left.exit, left.payload)));
    }
    assert_eq!(schedule.len(), 0, "a schedule without a next time is empty");
    all
}

/// Times at which the messages `wanted` arrive.
fn arrivals<T: PartialEq>(all: &[(u64, Exit, T)], wanted: &T) -> Vec<u64> {
    all.iter().filter(|(_, _, payload)| payload == wanted).map(|(at_ns, ..)| *at_ns).collect()
}

fn payloads<T>(left: Vec<Departure<T>>) -> Vec<T> {
    left.into_iter().map(|left| left.payload).collect()
}

fn is_close(found: u64, expected: u64) -> bool {
    found.abs_diff(expected) * 100 <= expected
}

#[test]
fn card_keeps_its_rate_over_many_messages() {
    let mut schedule = Schedule::new(limits());
    for number in 0..2000_u64 {
        let bytes = 1000 + number * 97 % 60_000;
        push(&mut schedule, 0, message(TrafficClass::Flush, number % 7, bytes, bytes));
    }
    let all = run(&mut schedule);
    let bytes: u64 = all.iter().map(|(_, _, bytes)| bytes).sum();
    let end_ns = all.last().expect("some").0;
    assert!(is_close(end_ns, bytes * 8), "{bytes} bytes in {end_ns} ns");
    let half = all.len() / 2;
    let first: u64 = all[..half].iter().map(|(_, _, bytes)| bytes).sum();
    assert!(is_close(all[half - 1].0, first * 8), "the rate holds in between");
}

#[test]
fn caller_that_comes_late_loses_no_rate() {
    let mut schedule = Schedule::new(limits());
    for number in 0..100 {
        push(&mut schedule, 0, message(TrafficClass::Flush, 1, 64 * KIB, number));
    }
    let whole_ns = 100 * 64 * KIB * 8;
    for turn in 1..=20 {
        assert_eq!(leave(&mut schedule, turn * whole_ns / 20).len(), 5);
    }
}

#[test]
fn idle_card_spends_its_burst_first() {
    let mut schedule = Schedule::new(Limits { burst_bytes: MIB, ..limits() });
    for number in 0..32 {
        push(&mut schedule, 50 * MS, message(TrafficClass::Foreground, 1, 64 * KIB, number));
    }
    let all = run(&mut schedule);
    let free = all.iter().filter(|(at_ns, ..)| *at_ns == 50 * MS).count();
    assert_eq!(free, 16, "a burst of 1 MiB");
    assert!(is_close(all[31].0 - 50 * MS, MIB * 8));
}

#[test]
fn log_overtakes_background_between_two_slices() {
    let mut schedule = Schedule::new(Limits { latency_ns: MS, ..limits() });
    for _ in 0..8 {
        push(&mut schedule, 0, message(TrafficClass::Compaction, 1, MIB, "background"));
    }
    // The log comes in the middle of the second message.
    let at_ns = 12 * MS;
    push(&mut schedule, at_ns, message(TrafficClass::Log, 2, 8 * KIB, "log"));
    push(&mut schedule, at_ns, message(TrafficClass::Foreground, 3, 8 * KIB, "read"));
    let all = run(&mut schedule);
    let (log, read) = (arrivals(&all, &"log")[0], arrivals(&all, &"read")[0]);
    let slice_ns = 16 * KIB * 8;
    assert!(log <= at_ns + slice_ns + 8 * KIB * 8 + MS, "waited {} ns", log - at_ns);
    assert_eq!(read, log + 8 * KIB * 8, "the read is next");
    let background = arrivals(&all, &"background");
    assert!(is_close(background[7], 8 * MIB * 8 + 16 * KIB * 8 + MS), "nothing is lost");
}

#[test]
fn classes_leave_in_their_order() {
    let mut schedule = Schedule::new(limits());
    push(&mut schedule, 0, message(TrafficClass::Gc, 9, 64 * KIB, TrafficClass::Gc));
    for class in TrafficClass::ALL.into_iter().rev() {
        push(&mut schedule, 0, message(class, class as u64, 32 * KIB, class));
    }
    let order: Vec<_> = run(&mut schedule).into_iter().map(|(_, _, class)| class).collect();
    let mut expected = TrafficClass::ALL.to_vec();
    expected.push(TrafficClass::Gc);
    assert_eq!(order, expected);
}

/// Times of appends of `bytes` to two replicas that are cut into `segments` with a stream each.
fn append_ns(limits: Limits, bytes: u64, segments: u64) -> u64 {
    let mut schedule = Schedule::new(limits);
    for replica in 0..2 {
        for segment in 0..segments {
            let stream = replica * 16 + segment;
            push(&mut schedule, 0, message(TrafficClass::Log, stream, bytes / segments, ()));
        }
    }
    run(&mut schedule).last().expect("some").0
}

#[test]
fn stream_limit_decides_serial_and_parallel_appends() {
    let stream_bytes_per_s = 31_250_000;
    let limits = Limits { stream_bytes_per_s, latency_ns: MS, ..limits() };
    let bytes = 512 * KIB;
    let (card_ns, stream_ns) = (2 * bytes * 8, bytes * 32);
    let serial_ns = append_ns(limits, bytes, 1);
    let parallel_ns = append_ns(limits, bytes, 4);
    assert!(is_close(serial_ns, MS + card_ns + stream_ns), "{serial_ns}");
    assert!(is_close(parallel_ns, MS + card_ns + stream_ns / 4), "{parallel_ns}");
}

#[test]
fn busy_stream_carries_its_limit_and_leaves_the_card_to_others() {
    let limits = Limits { stream_bytes_per_s: 25_000_000, ..limits() };
    let mut schedule = Schedule::new(limits);
    for _ in 0..100 {
        push(&mut schedule, 0, message(TrafficClass::Flush, 1, 64 * KIB, 1));
        push(&mut schedule, 0, message(TrafficClass::Flush, 2, 64 * KIB, 2));
    }
    let all = run(&mut schedule);
    let bytes = 100 * 64 * KIB;
    for stream in [1, 2] {
        let end_ns = *arrivals(&all, &stream).last().expect("some");
        assert!(is_close(end_ns, bytes * 40 + 64 * KIB * 8), "stream {stream}: {end_ns}");
    }
}

#[test]
fn background_in_flight_is_bounded_and_flush_goes_first() {
    let mut schedule =
        Schedule::new(Limits { bytes_per_s: 0, background_bytes_max: 2 * MIB, ..limits() });
    for _ in 0..3 {
        push(&mut schedule, 0, message(TrafficClass::Gc, 1, MIB, TrafficClass::Gc));
    }
    push(&mut schedule, 0, message(TrafficClass::Flush, 2, MIB, TrafficClass::Flush));
    push(&mut schedule, 0, message(TrafficClass::Log, 2, MIB, TrafficClass::Log));
    let classes = payloads(leave(&mut schedule, 0));
    assert_eq!(classes, [TrafficClass::Gc, TrafficClass::Gc, TrafficClass::Log]);
    assert_eq!(schedule.next_ns(), None, "only a landing makes room");
    assert!(!schedule.try_start_background(1), "others wait already");
    schedule.land(MIB);
    assert_eq!(payloads(leave(&mut schedule, 5)), [TrafficClass::Flush]);
    schedule.land(MIB);
    assert_eq!(payloads(leave(&mut schedule, 7)), [TrafficClass::Gc]);
    schedule.land(2 * MIB);
    assert!(schedule.try_start_background(5 * MIB), "a large message may be alone");
    assert!(!schedule.try_start_background(1));
}

#[test]
fn large_background_message_is_not_passed_by_small_ones() {
    let mut schedule =
        Schedule::new(Limits { bytes_per_s: 0, background_bytes_max: MIB, ..limits() });
    push(&mut schedule, 0, message(TrafficClass::Flush, 1, KIB, 1));
    push(&mut schedule, 0, message(TrafficClass::Flush, 1, MIB, 2));
    push(&mut schedule, 0, message(TrafficClass::Flush, 2, KIB, 3));
    push(&mut schedule, 0, message(TrafficClass::Gc, 3, KIB, 4));
    assert_eq!(payloads(leave(&mut schedule, 0)), [1]);
    schedule.land(KIB);
    assert_eq!(payloads(leave(&mut schedule, 1)), [2]);
}

#[test]
fn arriving_streams_take_turns() {
    let mut schedule = Schedule::new(Limits { order: Order::ByTurn, ..limits() });
    push(&mut schedule, 0, message(TrafficClass::Foreground, 1, MIB, 1));
    push(&mut schedule, 0, message(TrafficClass::Foreground, 2, MIB, 2));
    push(&mut schedule, MS, message(TrafficClass::Log, 3, 100, 3));
    let all = run(&mut schedule);
    let slice_ns = 16 * KIB * 8;
    assert!(arrivals(&all, &3)[0] <= MS + 2 * slice_ns, "a small answer passes large ones");
    let ends = (arrivals(&all, &1)[0], arrivals(&all, &2)[0]);
    assert!(ends.1 - ends.0 <= slice_ns, "equal streams end together: {ends:?}");
}

#[test]
fn message_leaves_late_at_its_deadline() {
    let mut schedule = Schedule::new(Limits { background_bytes_max: MIB, ..limits() });
    push(&mut schedule, 0, message(TrafficClass::Flush, 1, MIB, 1));
    let waits = Message { deadline_ns: 30 * MS, ..message(TrafficClass::Flush, 1, MIB, 2) };
    push(&mut schedule, 0, waits);
    let interrupted = Message { deadline_ns: 2 * MS, ..message(TrafficClass::Log, 1, MIB, 3) };
    push(&mut schedule, 0, interrupted);
    let all = run(&mut schedule);
    let found: Vec<_> =
        all.iter().map(|(at_ns, exit, payload)| (*payload, *exit, *at_ns)).collect();
    assert_eq!(found[0], (3, Exit::Late, 2 * MS));
    assert_eq!((found[1].0, found[1].1), (1, Exit::Sent));
    assert_eq!(found[2], (2, Exit::Late, 30 * MS));
}

#[test]
fn ended_stream_gives_its_background_room_back() {
    let mut schedule = Schedule::new(Limits { background_bytes_max: MIB, ..limits() });
    let mut left = Vec::new();
    push(&mut schedule, 0, message(TrafficClass::Flush, 1, MIB, 1));
    push(&mut schedule, 0, message(TrafficClass::Flush, 1, MIB, 2));
    push(&mut schedule, 0, message(TrafficClass::Flush, 2, MIB, 3));
    schedule.advance(MS);
    schedule.end_stream(StreamKey::Link(1), &mut left);
    left.sort_by_key(|left| left.payload);
    let found: Vec<_> = left.iter().map(|left| (left.payload, left.exit)).collect();
    assert_eq!(found, [(1, Exit::Closed), (2, Exit::Closed)]);
    let all = run(&mut schedule);
    assert_eq!((all.len(), all[0].1), (1, Exit::Sent));
}

#[test]
fn end_of_a_link_keeps_a_client_of_its_number() {
    let mut schedule = Schedule::new(limits());
    push(&mut schedule, 0, message(TrafficClass::Log, 3, 100, "link"));
    let of_client = message(TrafficClass::Log, 3, 100, "client");
    push(&mut schedule, 0, Message { stream: StreamKey::Client(3), ..of_client });
    let mut left = Vec::new();
    schedule.end_stream(StreamKey::Link(3), &mut left);
    assert_eq!(payloads(left), ["link"]);
    assert_eq!(run(&mut schedule).len(), 1);
}

#[test]
fn idle_streams_are_forgotten() {
    let mut schedule = Schedule::new(Limits { order: Order::ByTurn, ..limits() });
    for stream in 0..10_000 {
        push(&mut schedule, stream * MS, message(TrafficClass::Log, stream, 100, ()));
        assert_eq!(leave(&mut schedule, stream * MS + MS / 2).len(), 1);
    }
    assert!(schedule.streams.len() <= STREAMS_KEPT);
}

fn any_limits() -> impl Strategy<Value = Limits> {
    let rates = prop_oneof![Just(0), 1_000_u64..10_000_000];
    let orders = prop_oneof![Just(Order::ByClass), Just(Order::ByTurn)];
    (orders, rates.clone(), rates, 0_u64..5 * MS, 0_u64..100_000, 1_u64..20_000, 0_u64..50_000)
        .prop_map(|(order, card, stream, latency_ns, burst_bytes, slice_bytes, background)| {
            Limits {
                order,
                bytes_per_s: card,
                stream_bytes_per_s: stream,
                latency_ns,
                burst_bytes,
                slice_bytes,
                background_bytes_max: if order == Order::ByTurn { 0 } else { background },
            }
        })
}

/// A push after a pause: the pause, the class, the stream and the bytes.
fn any_pushes() -> impl Strategy<Value = Vec<(u64, usize, u64, u64)>> {
    prop::collection::vec((0_u64..2 * MS, 0_usize..5, 0_u64..4, 0_u64..30_000), 1..60)
}

/// Pushes the messages, and lands background bytes when they arrive. If `punctual`, the caller
/// takes messages out in time between the pushes. Returns the messages that arrived, with their
/// times by the schedule.
fn play(
    limits: Limits,
    pushes: &[(u64, usize, u64, u64)],
    punctual: bool,
) -> Vec<(u64, TrafficClass, u64, usize)> {
    let mut schedule = Schedule::new(limits);
    let (mut now_ns, mut all) = (0, Vec::new());
    let mut come = |schedule: &mut Schedule<(u64, usize)>, at_ns: u64| {
        for left in leave(schedule, at_ns) {
            assert_eq!(left.exit, Exit::Sent);
            if left.class.is_background() {
                schedule.land(left.bytes);
            }
            all.push((at_ns, left.class, left.payload.0, left.payload.1));
        }
    };
    for (number, &(pause_ns, class, stream, bytes)) in pushes.iter().enumerate() {
        let until_ns = now_ns + pause_ns;
        while punctual
            && let Some(next_ns) = schedule.next_ns()
            && next_ns <= until_ns
        {
            come(&mut schedule, next_ns);
        }
        now_ns = until_ns;
        push(
            &mut schedule,
            now_ns,
            message(TrafficClass::ALL[class], stream, bytes, (stream, number)),
        );
    }
    while let Some(next_ns) = schedule.next_ns() {
        come(&mut schedule, next_ns);
    }
    assert_eq!(schedule.len(), 0, "everything arrives");
    all
}

proptest! {
    #[test]
    fn stream_and_class_keep_their_order(limits in any_limits(), pushes in any_pushes()) {
        let all = play(limits, &pushes, true);
        prop_assert_eq!(all.len(), pushes.len());
        let mut last = BTreeMap::new();
        for &(_, class, stream, number) in &all {
            let before = last.insert((class, stream), number);
            prop_assert!(before.is_none_or(|before| before < number));
        }
    }

    #[test]
    fn punctual_and_late_callers_get_one_order(limits in any_limits(), pushes in any_pushes()) {
        // Background bytes land when the caller takes messages out, so their limit depends on the
        // caller.
        let limits = Limits { background_bytes_max: 0, ..limits };
        let numbers = |punctual| {
            let all = play(limits, &pushes, punctual);
            all.into_iter().map(|(_, _, _, number)| number).collect::<Vec<_>>()
        };
        prop_assert_eq!(numbers(true), numbers(false));
    }
}
