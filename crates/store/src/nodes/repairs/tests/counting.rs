//! Tests of the figures that answers to orders change.

use archipelago_base::Error;
use archipelago_env::FileClass;

use super::super::super::StorageId;
use super::super::super::placement::RepairDebt;
use super::super::super::wire::{ExtentAt, RepairStatus, SealedExtent};
use super::super::manager::{count_answer, drop_debts_of};
use super::super::planner::RepairJob;
use crate::ids::{BlobId, LogId, VolumeId};

fn debt() -> RepairDebt {
    RepairDebt {
        blob: BlobId([1; 16]),
        losses_left: 1,
        chunk_bytes: 100,
        sources: vec![StorageId(1)],
        target: StorageId(2),
    }
}

#[test]
fn failed_copy_is_left_until_it_is_made() {
    let mut status =
        RepairStatus { is_known: true, extents_left: 1, bytes_left: 100, ..Default::default() };
    let failed = Err(Error::busy("the node does not answer"));
    count_answer(&mut status, &debt(), false, &failed);
    assert_eq!((status.extents_left, status.bytes_left, status.failed), (1, 100, 1));
    assert_eq!((status.extents_repaired, status.bytes_repaired), (0, 0));
    count_answer(&mut status, &debt(), false, &Ok(()));
    assert_eq!((status.extents_left, status.bytes_left), (0, 0));
    assert_eq!((status.extents_repaired, status.bytes_repaired), (1, 100));
}

#[test]
fn chunk_of_a_released_blob_is_neither_left_nor_made() {
    let mut status = RepairStatus { chunks_left: 1, bytes_left: 100, ..Default::default() };
    count_answer(&mut status, &debt(), true, &Err(Error::not_found("the blob was released")));
    assert_eq!((status.chunks_left, status.bytes_left, status.failed), (0, 0, 0));
    assert_eq!((status.chunks_repaired, status.bytes_repaired), (0, 0));
}

#[test]
fn target_that_does_not_answer_gets_no_further_order() {
    let job = |extent| {
        let at = ExtentAt { log: LogId([1; 16]), extent };
        let (volume, class) = (VolumeId([1; 16]), FileClass::Wal);
        let extent = SealedExtent { at, volume, class, start: 0, end: 100 };
        RepairJob::Extent { extent, sources: vec![StorageId(1)] }
    };
    let on = |target| RepairDebt { target: StorageId(target), ..debt() };
    let (mut debts, mut jobs) =
        (vec![on(2), on(3), on(2), on(4)], vec![job(0), job(1), job(2), job(3)]);
    drop_debts_of(StorageId(2), &mut debts, &mut jobs);
    assert_eq!(debts, [on(3), on(4)]);
    assert_eq!(jobs, [job(1), job(3)]);
}
