//! Tests of the order of a stream's messages, with and without failures.

use std::time::Duration;

use super::super::super::StorageId;
use super::super::super::log::ReplicaId;
use super::super::super::log::quorum::ReplicaProgress;
use super::super::requests::LogFailure;
use super::{APPEND_BYTES_MAX, PAUSE_NS, ReplicaStream, StreamMessage, StreamStep, StreamVerdict};

const PATIENCE: Duration = Duration::from_secs(2);
const S: u64 = 1_000_000_000;

fn stream() -> ReplicaStream {
    ReplicaStream::new(ReplicaId { extent: 1, node: StorageId(7) }, 0, false)
}

/// A stream that has confirmed `len` bytes.
fn steady(len: u64) -> ReplicaStream {
    let mut stream = stream();
    stream.extend(len);
    let message = sent(&mut stream, 0);
    answer(&mut stream, &message, Ok(written(len)));
    stream
}

fn sent(stream: &mut ReplicaStream, now_ns: u64) -> StreamMessage {
    match stream.step(now_ns) {
        StreamStep::Send(message) => message,
        step => panic!("{step:?}"),
    }
}

fn append(start: u64, end: u64) -> StreamMessage {
    StreamMessage::Append { start, end, is_synced: false }
}

fn written(end: u64) -> ReplicaProgress {
    ReplicaProgress { written: end, synced: 0 }
}

fn passing() -> Result<ReplicaProgress, LogFailure> {
    Err(LogFailure::Passing("no answer".to_owned()))
}

fn answer(
    stream: &mut ReplicaStream,
    message: &StreamMessage,
    answer: Result<ReplicaProgress, LogFailure>,
) -> StreamVerdict {
    stream.answered(message, answer, 0, PATIENCE)
}

#[test]
fn first_append_is_alone_and_later_ones_fill_the_window() {
    let mut stream = stream();
    stream.extend(10);
    let first = sent(&mut stream, 0);
    assert_eq!(first, append(0, 10));
    stream.extend(20);
    assert_eq!(stream.step(0), StreamStep::Wait, "the link may be new");
    answer(&mut stream, &first, Ok(written(10)));
    for at in 1..5 {
        stream.extend((at + 1) * 10);
        assert_eq!(sent(&mut stream, 0), append(at * 10, (at + 1) * 10));
    }
    stream.extend(60);
    stream.extend(90);
    assert_eq!(stream.step(0), StreamStep::Wait, "the window is full");
    answer(&mut stream, &append(10, 20), Ok(written(20)));
    assert_eq!(sent(&mut stream, 0), append(50, 90), "what gathered travels together");
}

#[test]
fn long_range_is_cut_into_messages() {
    let mut stream = steady(1);
    stream.extend(2 * APPEND_BYTES_MAX);
    assert_eq!(sent(&mut stream, 0), append(1, APPEND_BYTES_MAX + 1));
    assert_eq!(sent(&mut stream, 0), append(APPEND_BYTES_MAX + 1, 2 * APPEND_BYTES_MAX));
    assert_eq!(stream.step(0), StreamStep::Wait);
}

#[test]
fn sync_travels_with_the_append_that_completes_it() {
    let mut stream = steady(10);
    stream.extend(30);
    stream.want_sync(30);
    let both = sent(&mut stream, 0);
    assert_eq!(both, StreamMessage::Append { start: 10, end: 30, is_synced: true });
    assert_eq!(stream.step(0), StreamStep::Wait);
    let progress = ReplicaProgress { written: 30, synced: 30 };
    assert_eq!(answer(&mut stream, &both, Ok(progress)), StreamVerdict::Progress(progress));
    assert!(!stream.is_busy());
}

#[test]
fn sync_of_sent_bytes_waits_for_their_answer() {
    let mut stream = steady(10);
    stream.extend(20);
    let message = sent(&mut stream, 0);
    stream.want_sync(20);
    assert_eq!(stream.step(0), StreamStep::Wait);
    answer(&mut stream, &message, Ok(written(20)));
    assert_eq!(sent(&mut stream, 0), StreamMessage::Sync);
    // The answer says less than was asked for, so the sync is repeated.
    answer(&mut stream, &StreamMessage::Sync, Ok(written(20)));
    assert_eq!(sent(&mut stream, 0), StreamMessage::Sync);
    answer(&mut stream, &StreamMessage::Sync, Ok(ReplicaProgress { written: 20, synced: 20 }));
    assert!(!stream.is_busy());
}

#[test]
fn lost_answer_goes_back_to_the_confirmed_end() {
    let mut stream = steady(10);
    stream.extend(20);
    let first = sent(&mut stream, 0);
    stream.extend(30);
    let second = sent(&mut stream, 0);
    assert_eq!(answer(&mut stream, &first, passing()), StreamVerdict::Repeat);
    assert_eq!(stream.step(0), StreamStep::Wait, "the second is under way");
    let len = Err(LogFailure::OtherLength(10));
    assert_eq!(answer(&mut stream, &second, len), StreamVerdict::Repeat);
    assert_eq!(stream.step(0), StreamStep::Pause { until_ns: PAUSE_NS });
    let again = sent(&mut stream, PAUSE_NS);
    assert_eq!(again, append(10, 30));
    // The first append had arrived, and only its answer was lost.
    let len = Err(LogFailure::OtherLength(20));
    assert_eq!(answer(&mut stream, &again, len), StreamVerdict::Progress(written(20)));
    assert_eq!(sent(&mut stream, S), append(20, 30));
}

#[test]
fn bytes_of_an_earlier_attempt_are_progress() {
    let mut stream = steady(10);
    stream.extend(10 + 2 * APPEND_BYTES_MAX);
    let attempts = [sent(&mut stream, 0), sent(&mut stream, 0)];
    attempts.iter().for_each(|message| {
        assert_eq!(answer(&mut stream, message, passing()), StreamVerdict::Repeat);
    });
    let again = sent(&mut stream, S);
    assert_eq!(again, append(10, 10 + APPEND_BYTES_MAX));
    let end = 10 + 2 * APPEND_BYTES_MAX;
    let verdict = answer(&mut stream, &again, Err(LogFailure::OtherLength(end)));
    assert_eq!(verdict, StreamVerdict::Progress(written(end)));
    assert!(stream.is_busy(), "it goes back, and finds that nothing is missing");
    assert_eq!(stream.step(S), StreamStep::Wait);
    assert!(!stream.is_busy());
}

#[test]
fn replica_without_success_fails_after_the_patience() {
    let mut stream = steady(10);
    stream.extend(20);
    let mut now_ns = 0;
    loop {
        match stream.step(now_ns) {
            StreamStep::Send(message) => {
                let verdict = stream.answered(&message, passing(), now_ns, PATIENCE);
                if verdict != StreamVerdict::Repeat {
                    assert_eq!(verdict, StreamVerdict::Failed("no answer".to_owned()));
                    break;
                }
            }
            StreamStep::Pause { until_ns } => now_ns = until_ns,
            step => panic!("{step:?}"),
        }
    }
    assert!((2 * S..3 * S).contains(&now_ns), "{now_ns}");
    assert_eq!(stream.step(now_ns), StreamStep::Over);
}

#[test]
fn foreign_or_lost_bytes_fail_the_replica() {
    for len in [9, 21] {
        let mut stream = steady(10);
        stream.extend(20);
        let message = sent(&mut stream, 0);
        let verdict = answer(&mut stream, &message, Err(LogFailure::OtherLength(len)));
        assert!(matches!(verdict, StreamVerdict::Failed(_)), "{len}: {verdict:?}");
    }
}

#[test]
fn refusal_fails_and_fence_ends() {
    let refused = LogFailure::Refused("in limbo".to_owned());
    let fenced = LogFailure::Fenced("epoch 2".to_owned());
    let verdicts = [refused, fenced].map(|failure| {
        let mut stream = steady(10);
        stream.extend(20);
        let message = sent(&mut stream, 0);
        let verdict = answer(&mut stream, &message, Err(failure));
        assert_eq!(stream.step(0), StreamStep::Over);
        verdict
    });
    let failed = StreamVerdict::Failed("in limbo".to_owned());
    assert_eq!(verdicts, [failed, StreamVerdict::Fenced("epoch 2".to_owned())]);
}

#[test]
fn ended_extent_sends_nothing_behind_its_end() {
    let mut stream = steady(10);
    stream.extend(100);
    stream.cap(40);
    let message = sent(&mut stream, 0);
    assert_eq!(message, append(10, 40));
    stream.want_seal(40);
    assert_eq!(stream.step(0), StreamStep::Wait, "the seal follows the bytes");
    answer(&mut stream, &message, Ok(written(40)));
    let seal = sent(&mut stream, 0);
    assert_eq!(seal, StreamMessage::Seal { end: 40 });
    assert_eq!(answer(&mut stream, &seal, passing()), StreamVerdict::Repeat);
    assert_eq!(sent(&mut stream, S), seal, "a seal may be repeated");
    answer(&mut stream, &seal, Ok(ReplicaProgress { written: 40, synced: 40 }));
    assert_eq!(stream.step(S), StreamStep::Over);
}
