//! Records of a buffered log that readers may have seen and no acknowledgement covers yet.
//!
//! A buffered log publishes a write before its record was sent. If the segment then loses the
//! record, the log writes it again as one of the first records of the next segment. So the log
//! keeps the payload until the record is acknowledged.
//!
//! Invariants: the records are in the order of the log, and all of them may still be lost.
//!
//! Thread-safety: one owner. Failure: none. Cost: one copy of each payload.

use std::collections::VecDeque;
use std::sync::Arc;

use archipelago_base::{FileNo, SeqNo};

use super::record::Entry;
use super::segment::Segment;

/// A record that may be lost.
#[derive(Debug)]
pub(super) struct RetainedRecord {
    segment: Arc<Segment>,
    end_offset: u64,
    first_seq: SeqNo,
    payload: Vec<u8>,
    payload_crc: u32,
}

impl RetainedRecord {
    /// The record in the form in which it is appended again.
    pub(super) fn entry(&self) -> Entry<'_> {
        Entry { first_seq: self.first_seq, payload: &self.payload, payload_crc: self.payload_crc }
    }

    fn is_acknowledged(&self) -> bool {
        self.end_offset <= self.segment.handle().acknowledged()
    }
}

/// The records that may be lost, oldest first.
#[derive(Debug, Default)]
pub(super) struct RetainedRecords(VecDeque<RetainedRecord>);

impl RetainedRecords {
    /// Keeps a record that ends at `end_offset` of `segment`, and forgets acknowledged ones.
    pub(super) fn keep(&mut self, segment: &Arc<Segment>, end_offset: u64, entry: &Entry<'_>) {
        while self.0.front().is_some_and(RetainedRecord::is_acknowledged) {
            self.0.pop_front();
        }
        self.0.push_back(RetainedRecord {
            segment: Arc::clone(segment),
            end_offset,
            first_seq: entry.first_seq,
            payload: entry.payload.to_vec(),
            payload_crc: entry.payload_crc,
        });
    }

    /// Forgets the newest records, from the sequence number `first` on. Their append failed, and
    /// they were not published.
    pub(super) fn forget_from(&mut self, first: SeqNo) {
        while self.0.back().is_some_and(|record| record.first_seq >= first) {
            self.0.pop_back();
        }
    }

    /// The newest record that ends at or before `end` of the segment `no`: its segment, and its end
    /// there. `None` if no such record may be lost.
    pub(super) fn newest_before(&self, no: FileNo, end: u64) -> Option<(&Arc<Segment>, u64)> {
        let is_before =
            |record: &RetainedRecord| (record.segment.no(), record.end_offset) <= (no, end);
        let newest = self.0.partition_point(is_before).checked_sub(1)?;
        let record = &self.0[newest];
        Some((&record.segment, record.end_offset))
    }

    /// Removes and returns the records that are not acknowledged.
    pub(super) fn take(&mut self) -> VecDeque<RetainedRecord> {
        let mut records = std::mem::take(&mut self.0);
        while records.front().is_some_and(RetainedRecord::is_acknowledged) {
            records.pop_front();
        }
        records
    }

    /// Puts records back that could not be appended again, after those that could.
    pub(super) fn put_back(&mut self, records: VecDeque<RetainedRecord>) {
        self.0.extend(records);
    }
}
