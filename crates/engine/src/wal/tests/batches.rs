use archipelago_base::{CfId, ErrorKind};
use proptest::prelude::{Strategy, any, prop, prop_assert_eq, proptest};

use super::super::batch::check_limits;
use super::*;
use crate::key::{KEY_BYTES_MAX, Kind};

type Op = (u32, u8, Vec<u8>, Vec<u8>, u64);

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let bytes = || prop::collection::vec(any::<u8>(), 0..200);
    prop::collection::vec((any::<u32>(), 0u8..5, bytes(), bytes(), any::<u64>()), 0..20)
}

fn build(ops: &[Op]) -> WriteBatch {
    let mut batch = WriteBatch::new();
    for (cf, what, key, value, expiry) in ops {
        match what {
            0 => batch.put_cf(CfId(*cf), key, value),
            1 => batch.delete_cf(CfId(*cf), key),
            2 => batch.merge_cf(CfId(*cf), key, value),
            3 => batch.delete_range_cf(CfId(*cf), key, value),
            _ => batch.put_expiring_cf(CfId(*cf), key, value, *expiry),
        }
    }
    batch
}

proptest! {
    #[test]
    fn operations_come_back_in_order(ops in ops()) {
        let batch = build(&ops);
        prop_assert_eq!((batch.len(), batch.byte_len()), (ops.len(), batch.data().len()));
        let copy = WriteBatch::from_data(batch.data()).unwrap();
        prop_assert_eq!(copy.len(), ops.len());
        let read: Vec<_> = copy.iter().map(Result::unwrap).collect();
        prop_assert_eq!(read.len(), ops.len());
        for (op, (cf, what, key, value, expiry)) in read.iter().zip(&ops) {
            let kinds =
                [Kind::Put, Kind::Delete, Kind::Merge, Kind::RangeDelete, Kind::PutExpiring];
            let stored = match what {
                1 => Vec::new(),
                4 => [&expiry.to_le_bytes()[..], value].concat(),
                _ => value.clone(),
            };
            let expected =
                BatchOp { cf: CfId(*cf), kind: kinds[*what as usize], key, value: &stored };
            prop_assert_eq!(*op, expected);
        }
        let mut twice = batch;
        twice.append(&copy);
        prop_assert_eq!(twice.len(), 2 * ops.len());
        prop_assert_eq!(twice.iter().filter(Result::is_ok).count(), 2 * ops.len());
        twice.clear();
        prop_assert_eq!(twice, WriteBatch::new());
    }
}

/// Decodes foreign bytes: the decoder may read operations, or report damage.
fn survives(bytes: &[u8]) {
    match WriteBatch::from_data(bytes) {
        Ok(batch) => assert_eq!(batch.iter().count(), batch.len()),
        Err(error) => assert_eq!(error.kind(), ErrorKind::Corrupt),
    }
}

#[test]
fn damaged_batches_are_errors() {
    let mut rng = Rng::with_seed(9);
    for seed in 0..200 {
        let good = batch_of(seed);
        for cut in 0..good.byte_len() {
            assert!(WriteBatch::from_data(&good.data()[..cut]).is_err(), "{seed} cut at {cut}");
        }
        let longer = [good.data(), b"x"].concat();
        assert!(WriteBatch::from_data(&longer).is_err());
        for _ in 0..40 {
            let mut bytes = good.data().to_vec();
            for _ in 0..rng.usize(1..4) {
                let at = rng.usize(..bytes.len());
                bytes[at] ^= 1 << rng.u8(..8);
            }
            survives(&bytes);
        }
    }
}

#[test]
fn the_fuzz_corpus_is_survived() {
    for bytes in corpus("wal_batch") {
        survives(&bytes);
    }
}

#[test]
fn limits_are_named() {
    check_limits(&[0; KEY_BYTES_MAX], b"").unwrap();
    let error = check_limits(&[0; KEY_BYTES_MAX + 1], b"").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.context().contains("65537"), "{error}");
}
