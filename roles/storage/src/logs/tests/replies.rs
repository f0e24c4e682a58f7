//! Answers of the node while it runs.

use archipelago_store::nodes::wire::{LogEntry, RefusalWhy, StoreMessage};

use super::Durability::{Synced, Written};
use super::{
    AT, LOG, Machine, START, VOLUME, append, ask, fence, inspect, progress, read, remove, replica,
    seal, stamp, stream, sync, why,
};

#[test]
fn append_answers_how_far_the_extent_is() {
    let node = Machine::new().open();
    assert_eq!(append(&node, 1, START..1200, Written), progress(1200, START));
    assert_eq!(append(&node, 1, 1200..1300, Synced), progress(1300, 1300));
    assert_eq!(append(&node, 1, 1300..1400, Written), progress(1400, 1300));
    assert_eq!(sync(&node, 1), progress(1400, 1400));
    assert_eq!(read(&node, START..5000), Ok(stream(START..1400)));
    assert_eq!(read(&node, 1150..1350), Ok(stream(1150..1350)));
}

#[test]
fn repeated_bytes_are_not_written_again() {
    let node = Machine::new().open();
    append(&node, 1, START..1200, Written);
    assert_eq!(append(&node, 1, START..1200, Written), progress(1200, START));
    assert_eq!(append(&node, 1, 1100..1300, Written), progress(1300, START));
    assert_eq!(read(&node, START..1300), Ok(stream(START..1300)));
}

#[test]
fn append_behind_a_gap_is_refused_with_the_end() {
    let node = Machine::new().open();
    assert_eq!(why(&append(&node, 1, 1100..1200, Written)), Some(RefusalWhy::NotThere));
    assert_eq!(inspect(&node), replica(0, 0, None, false), "nothing was created");
    append(&node, 1, START..1200, Written);
    let gap = append(&node, 1, 1201..1300, Written);
    assert_eq!(why(&gap), Some(RefusalWhy::OutOfOrder { len: 1200 }));
}

#[test]
fn fence_refuses_older_writers_even_without_bytes() {
    let node = Machine::new().open();
    assert_eq!(fence(&node, 4), replica(0, 0, None, false));
    let StoreMessage::Refuse { why, epoch, text } = append(&node, 3, START..1200, Written) else {
        panic!("a fenced append was taken");
    };
    assert_eq!((why, epoch.0), (RefusalWhy::Fenced, 4));
    assert!(text.contains("close this handle"), "{text}");
    assert_eq!(super::why(&fence(&node, 3)), Some(RefusalWhy::Fenced));
    assert_eq!(append(&node, 4, START..1200, Written), progress(1200, START));
    assert_eq!(super::why(&sync(&node, 3)), Some(RefusalWhy::Fenced));
    assert_eq!(super::why(&seal(&node, 3, 1200)), Some(RefusalWhy::Fenced));
    assert_eq!(super::why(&remove(&node, 3)), Some(RefusalWhy::Fenced));
}

#[test]
fn inspection_promises_nothing() {
    let node = Machine::new().open();
    append(&node, 1, START..1200, Written);
    assert_eq!(inspect(&node), replica(1200, START, None, false));
    assert_eq!(append(&node, 1, 1200..1300, Written), progress(1300, START));
}

#[test]
fn sealed_extent_takes_no_bytes_and_drops_those_behind() {
    let machine = Machine::new();
    let node = machine.open();
    append(&node, 1, START..1200, Written);
    append(&node, 1, 1200..1400, Written);
    let early = seal(&node, 1, 1500);
    assert_eq!(why(&early), Some(RefusalWhy::OutOfOrder { len: 1400 }));
    assert_eq!(seal(&node, 1, 1250), progress(1250, 1250));
    assert_eq!(seal(&node, 1, 1250), progress(1250, 1250), "a repeated seal");
    assert_eq!(inspect(&node), replica(1250, 1250, Some(1250), false));
    assert_eq!(why(&append(&node, 1, 1250..1300, Written)), Some(RefusalWhy::Sealed));
    assert_eq!(read(&node, START..1400), Ok(stream(START..1250)));
    assert_eq!(seal(&node, 1, 1100), progress(1100, 1100), "a later decision");
}

#[test]
fn seal_of_an_absent_empty_extent_keeps_late_appends_away() {
    let node = Machine::new().open();
    assert_eq!(why(&seal(&node, 1, 1200)), Some(RefusalWhy::NotThere));
    assert_eq!(seal(&node, 1, START), progress(START, START));
    assert_eq!(why(&append(&node, 1, START..1200, Written)), Some(RefusalWhy::Sealed));
}

#[test]
fn requests_that_contradict_the_extent_are_malformed() {
    let node = Machine::new().open();
    append(&node, 1, START..1200, Written);
    let request = |extent_start, start| StoreMessage::Append {
        at: AT,
        stamp: stamp(1),
        class: archipelago_env::FileClass::Wal,
        extent_start,
        start,
        is_synced: false,
    };
    for (extent_start, start) in [(START + 1, 1200), (START, START - 1), (START, u64::MAX)] {
        let answer = ask(&node, request(extent_start, start), b"bytes");
        assert!(why(&answer).is_some(), "{extent_start} {start}: {answer:?}");
    }
    let other = archipelago_store::nodes::wire::Stamp {
        volume: archipelago_store::VolumeId([8; 16]),
        ..stamp(7)
    };
    let answer = ask(&node, StoreMessage::SyncLog { at: AT, stamp: other }, &[]);
    assert_eq!(why(&answer), Some(RefusalWhy::Malformed), "a foreign volume");
    assert_eq!(inspect(&node), replica(1200, START, None, false));
}

#[test]
fn removed_log_is_gone_with_its_files() {
    let machine = Machine::new();
    let node = machine.open();
    append(&node, 2, START..1200, Synced);
    let list = |after| ask(&node, StoreMessage::ListLogs { volume: VOLUME, after }, &[]);
    let entry = LogEntry { log: LOG, epoch: archipelago_base::Epoch(2) };
    assert_eq!(list(None), StoreMessage::Logs { logs: vec![entry], has_more: false });
    assert_eq!(list(Some(LOG)), StoreMessage::Logs { logs: Vec::new(), has_more: false });
    assert_eq!(remove(&node, 2), StoreMessage::Done {});
    assert_eq!(remove(&node, 2), StoreMessage::Done {}, "a repeated removal");
    assert_eq!(list(None), StoreMessage::Logs { logs: Vec::new(), has_more: false });
    assert_eq!(inspect(&node), replica(0, 0, None, false));
    assert_eq!(read(&node, START..1200), Err(RefusalWhy::NotThere));
    assert_eq!(machine.parts(), Vec::<String>::new());
}

#[test]
fn long_extent_is_read_in_pieces_of_an_answer() {
    let node = Machine::new().open();
    let mut at = START;
    while at < START + (6 << 20) {
        append(&node, 1, at..at + 300_001, Written);
        at += 300_001;
    }
    let mut bytes = Vec::new();
    while bytes.len() as u64 + START < at {
        let from = START + bytes.len() as u64;
        let piece = read(&node, from..at).unwrap();
        assert!(piece.len() < 4 << 20 && !piece.is_empty());
        bytes.extend(piece);
    }
    assert!(bytes == stream(START..at));
}

#[test]
fn status_counts_extents_and_their_space() {
    let node = Machine::new().open();
    append(&node, 1, START..1300, Written);
    let report = node.report();
    assert_eq!((report.extents, report.extents_open, report.extents_in_limbo), (1, 1, 0));
    let space = report.volumes.first().unwrap();
    assert_eq!((space.volume, space.objects, space.logical_bytes), (VOLUME, 1, 100));
    assert!(space.bytes > 300, "{space:?}");
    seal(&node, 1, 1300);
    assert_eq!(node.report().extents_open, 0);
}
