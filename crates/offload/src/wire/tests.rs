//! Golden bytes of the messages, and messages that are encoded and decoded.

use archipelago_base::Epoch;
use archipelago_base::random::Rng;
use archipelago_fabric::NodeId;

use super::{
    Correspondent, ExecutorStanding, FallbackCount, JobList, JobPhase, JobStanding, OffloadMessage,
    OwnerReport, OwnerStanding, QueueStanding, RecentFailure, Running, SchedulerStatus, VERSION,
    is_offload_message, shard,
};
use crate::decide::{InputReach, Load};
use crate::failure::{FailedAttempt, ShortText};
use crate::ids::{
    Attempt, AttemptId, ExecutorId, JobId, NodeLife, NumberRange, OffloadDb, OwnerSession,
    OwnerStamp, SchedulerId, SchedulerLife, Token,
};
use crate::job::{
    DeclineWhy, InputPlace, JobKind, JobOrder, LocalWhy, Payload, PreparedAttempt, Verdict,
};

fn job() -> JobId {
    JobId { db: OffloadDb([0xd0; 16]), epoch: Epoch(2), number: 0x0304 }
}

fn at() -> AttemptId {
    AttemptId { job: job(), attempt: Attempt(5) }
}

fn stamp() -> OwnerStamp {
    OwnerStamp { db: OffloadDb([0xd0; 16]), epoch: Epoch(2), token: Token([0xaa; 16]) }
}

fn life() -> SchedulerLife {
    SchedulerLife { scheduler: SchedulerId(7), term: 8 }
}

fn session() -> OwnerSession {
    OwnerSession { life: life(), number: 9 }
}

fn order() -> JobOrder {
    JobOrder {
        id: job(),
        token: Token([0xaa; 16]),
        kind: JobKind::Compaction,
        bytes: 0x0900,
        needs: vec!["add".to_owned()],
        places: vec![InputPlace { at: home(), bytes: 0x0a00 }],
        avoids: vec![ExecutorId(13)],
    }
}

fn home() -> NodeLife {
    NodeLife { node: NodeId(11), life: Epoch(12) }
}

fn failure() -> FailedAttempt {
    FailedAttempt {
        at: at(),
        executor: ExecutorId(9),
        address: ShortText::new("reef:7"),
        reason: ShortText::new("full"),
    }
}

fn payload() -> Payload {
    vec![1, 2, 3].into()
}

/// The state of a scheduler with one executor.
fn status(executor: ExecutorId, load: Load, reach: InputReach) -> SchedulerStatus {
    let (address, build) = (ShortText::new("reef:7"), ShortText::new("build 1"));
    let standing = ExecutorStanding {
        executor,
        address,
        build,
        slots: 4,
        taken: 1,
        load,
        reach,
        held: 2,
        is_draining: true,
    };
    SchedulerStatus {
        executors: vec![standing],
        flushes_waiting: 2,
        others_waiting: 3,
        flushes_oldest_ms: 8,
        others_oldest_ms: 9,
        installed: 4,
        failed: 5,
        given_back: 6,
        last_failure: Some(RecentFailure { attempt: failure(), age_ms: 7 }),
        owners: vec![OwnerStanding {
            db: OffloadDb([0xd0; 16]),
            epoch: Epoch(2),
            age_ms: 10,
            report: report(),
        }],
        owners_total: 3,
    }
}

fn report() -> OwnerReport {
    OwnerReport {
        address: ShortText::new("reef:7"),
        away: 11,
        second_attempts: 2,
        fallbacks: vec![FallbackCount { why: LocalWhy::Busy, flushes: 5, others: 1 }],
    }
}

/// A job that runs, one that was given back, and one of an earlier life of the scheduler.
fn job_list() -> JobList {
    let runs = JobStanding {
        at: at(),
        kind: Some(JobKind::Compaction),
        phase: JobPhase::Running,
        input_bytes: 0x0900,
        executor: Some(ExecutorId(9)),
        address: ShortText::new("reef:7"),
        age_ms: 10,
        queued_ms: 11,
        running_ms: 12,
        idle_ms: 13,
        progress_bytes: 14,
        waits: true,
        why: None,
        failure: Some(RecentFailure { attempt: failure(), age_ms: 7 }),
        earlier: 1,
    };
    let back = JobStanding {
        kind: Some(JobKind::Flush),
        phase: JobPhase::GivenBack,
        executor: None,
        address: ShortText::default(),
        running_ms: 0,
        progress_bytes: 0,
        waits: false,
        why: Some(LocalWhy::NoExecutor),
        failure: None,
        earlier: 0,
        ..runs
    };
    let unknown = JobStanding {
        at: at(),
        phase: JobPhase::Committed,
        executor: Some(ExecutorId(9)),
        age_ms: 10,
        idle_ms: 10,
        ..JobStanding::default()
    };
    JobList {
        jobs: vec![runs, back, unknown],
        jobs_total: 4,
        flushes: QueueStanding { waiting: 2, oldest_ms: 15 },
        others: QueueStanding { waiting: 1, oldest_ms: 16 },
    }
}

/// One message of each kind.
fn samples() -> Vec<OffloadMessage> {
    let (at, job, by) = (at(), job(), ExecutorId(9));
    let numbers = NumberRange { first: 0x10, count: 4 };
    let attempts = vec![PreparedAttempt { attempt: Attempt(5), numbers }];
    let running = vec![Running { at, progress_bytes: 77, waits: true }];
    let names = vec!["add".to_owned(), "build 1".to_owned()];
    let address = ShortText::new("reef:7");
    let load = Load { cpu: 1, io: 2, queue: 3 };
    let reach = InputReach { home: Some(home()), fetch: 250 };
    let status = status(by, load, reach);
    vec![
        OffloadMessage::Greet { owner: stamp(), needs: vec!["add".to_owned()] },
        OffloadMessage::Lives { session: session(), slots: 6 },
        OffloadMessage::Prepare {
            order: order(),
            session: session(),
            attempts,
            oldest: 6,
            spec: Some(payload()),
        },
        OffloadMessage::Queued { job, session: session(), slots: 6 },
        OffloadMessage::GiveBack {
            job,
            why: LocalWhy::Failed,
            is_untouched: true,
            failure: Some(failure()),
        },
        OffloadMessage::GiveBack { job, why: LocalWhy::Busy, is_untouched: true, failure: None },
        OffloadMessage::CancelJob { job },
        OffloadMessage::Stale { newest: stamp() },
        OffloadMessage::Report { owner: stamp(), report: report() },
        OffloadMessage::Assign { at, life: life(), order: order() },
        OffloadMessage::Accept { at, by },
        OffloadMessage::Decline { at, by, why: DeclineWhy::Unknown },
        OffloadMessage::Package { at, life: life(), numbers, spec: payload() },
        OffloadMessage::Started { at, by },
        OffloadMessage::NotMine { at, by },
        OffloadMessage::Cancel { at, life: life() },
        OffloadMessage::Beat {
            executor: by,
            names,
            address,
            slots: 4,
            load,
            reach,
            running,
            is_draining: true,
        },
        OffloadMessage::Heard { life: life(), next_ms: 200 },
        OffloadMessage::Commit { at, by, output: payload() },
        OffloadMessage::Abort { at, by, reason: ShortText::new("full") },
        OffloadMessage::Noted { at },
        OffloadMessage::Done { at, output: payload() },
        OffloadMessage::Decided { at, verdict: Verdict::Forget },
        OffloadMessage::Post {
            from: Correspondent::Owner(stamp()),
            wait_ms: 100,
            mail: vec![payload()],
        },
        OffloadMessage::Post { from: Correspondent::Executor(by), wait_ms: 0, mail: Vec::new() },
        OffloadMessage::Mail { mail: vec![payload(), Payload::default()] },
        OffloadMessage::Status {},
        OffloadMessage::StatusIs { status },
        OffloadMessage::Jobs {},
        OffloadMessage::JobsAre { jobs: job_list() },
        OffloadMessage::Drain { executor: by, is_draining: true },
        OffloadMessage::Standby {},
        OffloadMessage::Malformed {},
    ]
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn messages_have_golden_bytes() {
    let word = |low: &str| format!("{low:0<16}");
    let db = "d0".repeat(16);
    let job = [db.as_str(), &word("02"), &word("0403")].concat();
    let decided = OffloadMessage::Decided { at: at(), verdict: Verdict::Discard };
    assert_eq!(hex(&decided.encode()), ["672c", &job, "05000000", "02"].concat());
    let failed = [&job, "05000000", &word("09"), "06726565663a37", "0466756c6c"].concat();
    let back = [&["6705", &job, "040101"].concat(), failed.as_str()].concat();
    assert_eq!(hex(&samples()[4].encode()), back);
    let prepare = samples().swap_remove(2);
    let expected = [
        "6703",
        &job,
        &"aa".repeat(16),
        "02",
        &word("0009"),
        "0103616464",
        "01",
        &word("0b"),
        &word("0c"),
        &word("000a"),
        "01",
        &word("0d"),
        &word("07"),
        &word("08"),
        &word("09"),
        "01",
        "05000000",
        &word("10"),
        &word("04"),
        &word("06"),
        "01",
        "03010203",
    ];
    assert_eq!(hex(&prepare.encode()), expected.concat());
}

#[test]
fn report_of_an_owner_has_golden_bytes() {
    let word = |low: &str| format!("{low:0<16}");
    let report =
        ["06726565663a37", &word("0b"), &word("02"), "01", "0b", &word("05"), &word("01")].concat();
    let owner = ["d0".repeat(16), word("02"), "aa".repeat(16)].concat();
    let sent = OffloadMessage::Report { owner: stamp(), report: self::report() };
    assert_eq!(hex(&sent.encode()), ["6708", &owner, &report].concat());
    let owners = SchedulerStatus {
        last_failure: None,
        executors: Vec::new(),
        ..status(ExecutorId(9), Load::default(), InputReach::default())
    };
    let encoded = hex(&OffloadMessage::StatusIs { status: owners }.encode());
    let standing = ["d0".repeat(16), word("02"), word("0a"), report].concat();
    let counts =
        ["02000000", "03000000"].concat() + &["08", "09", "04", "05", "06"].map(word).concat();
    assert_eq!(encoded, ["6741", "00", &counts, "00", "01", &standing, "03000000"].concat());
}

#[test]
fn list_of_jobs_has_golden_bytes() {
    assert_eq!(hex(&OffloadMessage::Jobs {}.encode()), "6742");
    let drain = OffloadMessage::Drain { executor: ExecutorId(9), is_draining: true };
    assert_eq!(hex(&drain.encode()), ["6744", "0900000000000000", "01"].concat());
    let word = |low: &str| format!("{low:0<16}");
    let at = [&"d0".repeat(16), &word("02"), &word("0403"), "05000000"].concat();
    let (address, input) = ("06726565663a37", word("0009"));
    let (ten, nine, zero) = (word("0a"), word("09"), word("00"));
    let failure = [&at, &nine, address, "0466756c6c", &word("07")].concat();
    let expected = [
        ["6743", "03"].concat(),
        [&at, "0102", "03", &input, "01", &nine, address].concat(),
        [ten.as_str(), &word("0b"), &word("0c"), &word("0d"), &word("0e"), "01"].concat(),
        ["00", "01", &failure, "01000000"].concat(),
        [&at, "0101", "05", &input, "00", "00"].concat(),
        [ten.as_str(), &word("0b"), &zero, &word("0d"), &zero, "00"].concat(),
        ["010200", "00000000"].concat(),
        [&at, "00", "04", &zero, "01", &nine, "00"].concat(),
        [ten.as_str(), &zero, &zero, &ten, &zero, "00", "0000", "00000000"].concat(),
        word("04"),
        ["02000000", &word("0f"), "01000000", &word("10")].concat(),
    ];
    assert_eq!(hex(&OffloadMessage::JobsAre { jobs: job_list() }.encode()), expected.concat());
}

#[test]
fn every_message_is_equal_after_encoding_and_decoding() {
    for message in samples() {
        let bytes = message.encode();
        assert!(is_offload_message(&bytes), "{}", message.name());
        assert_eq!(OffloadMessage::decode(&bytes), Ok(message.clone()), "{}", message.name());
        for cut in 0..bytes.len() {
            let name = message.name();
            assert!(OffloadMessage::decode(&bytes[..cut]).is_err(), "{name} of {cut} bytes");
        }
    }
}

#[test]
fn damaged_messages_are_refused_or_read_as_others() {
    let mut rng = Rng::with_seed(42);
    for message in samples() {
        for _ in 0..200 {
            let mut bytes = message.encode();
            let at = rng.usize(..bytes.len());
            bytes[at] ^= rng.u32(1..256) as u8;
            if let Ok(other) = OffloadMessage::decode(&bytes) {
                assert_eq!(OffloadMessage::decode(&other.encode()), Ok(other));
            }
        }
    }
}

#[test]
fn first_byte_tells_the_protocols_apart() {
    assert_eq!(VERSION, 0x67);
    // All first bytes but those of versions of these messages: those of the pool, of storage nodes,
    // of shards, of FlexKV, and of no protocol.
    for first in 0..=u8::MAX {
        let is_ours = (0x60..=0x6f).contains(&first);
        assert_eq!(is_offload_message(&[first, 1]), is_ours, "{first:#x}");
        assert!(!is_ours || !shard::is_shard_message(&[first, 1]), "{first:#x}");
    }
    assert!(!is_offload_message(&[]));
}
