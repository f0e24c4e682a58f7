//! Cost of a transaction of one write next to a plain write, in alternating rounds on one thread:
//! `cargo bench -p archipelago-engine --bench transaction_bench -- DIR [ROUNDS]`. With a third
//! argument KIND only that kind of operation runs, for a profiler that counts instructions.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, missing_docs)]

use std::time::Instant;

use archipelago_engine::db::{Components, Db};
use archipelago_engine::options::{CfOptions, DbOptions, WriteOptions};
use archipelago_engine::transaction::{LockMode, Transaction, TransactionOptions};

const OPS_OF_A_ROUND: u64 = 20_000;
const KEYS: u64 = 100_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A plain write.
    Put,
    /// A transaction of one write.
    Transaction,
    /// A transaction of one write, in one transaction value that is reused.
    Reused,
    /// A transaction of one write with a row lock.
    Locked,
    /// A plain read, then a plain write.
    GetPut,
    /// A serialisable transaction that reads and writes one key.
    Update,
    /// A serialisable transaction that reads and writes one key, with a row lock.
    LockedUpdate,
}

const KINDS: [Kind; 7] = [
    Kind::Put,
    Kind::Transaction,
    Kind::Reused,
    Kind::Locked,
    Kind::GetPut,
    Kind::Update,
    Kind::LockedUpdate,
];

fn one(db: &Db, reused: &mut Transaction, kind: Kind, key: &[u8], value: &[u8]) {
    let (cf, options) = (db.default_family(), WriteOptions::default());
    match kind {
        Kind::Put => db.put(key, value).unwrap(),
        Kind::Transaction => {
            let mut transaction = db.transaction();
            transaction.put(cf, key, value).unwrap();
            transaction.commit(&options).unwrap();
        }
        Kind::Reused => {
            reused.put(cf, key, value).unwrap();
            reused.commit(&options).unwrap();
        }
        Kind::Locked => {
            let mut transaction = db.transaction_with(TransactionOptions::pessimistic());
            transaction.put(cf, key, value).unwrap();
            transaction.commit(&options).unwrap();
        }
        Kind::GetPut => {
            std::hint::black_box(db.get(key).unwrap());
            db.put(key, value).unwrap();
        }
        Kind::Update => {
            let mut transaction = db.transaction();
            std::hint::black_box(transaction.get(cf, key).unwrap());
            transaction.put(cf, key, value).unwrap();
            transaction.commit(&options).unwrap();
        }
        Kind::LockedUpdate => {
            let mut transaction = db.transaction_with(TransactionOptions::pessimistic());
            let found = transaction.get_for_update(cf, key, LockMode::Exclusive).unwrap();
            std::hint::black_box(found);
            transaction.put(cf, key, value).unwrap();
            transaction.commit(&options).unwrap();
        }
    }
}

fn main() {
    let args: Vec<String> = std::env::args().filter(|argument| argument != "--bench").collect();
    if args.len() < 2 {
        println!("usage: transaction_bench DIR [ROUNDS [KIND]]");
        return;
    }
    let rounds: usize = args.get(2).map_or(15, |rounds| rounds.parse().unwrap());
    let only = args.get(3).map(|name| {
        *KINDS.iter().find(|kind| format!("{kind:?}") == *name).expect("a kind of operation")
    });
    let family = CfOptions { write_buffer_bytes: 1 << 30, buckets: 1, ..CfOptions::default() };
    let components = Components {
        families: [("default".to_owned(), family)].into_iter().collect(),
        ..Components::default()
    };
    let db = Db::open_with(&args[1], DbOptions::default(), components).unwrap();
    let mut reused = db.transaction();
    let mut rng = fastrand::Rng::with_seed(7);
    let mut times = [const { Vec::new() }; KINDS.len()];
    for _ in 0..rounds {
        for (at, kind) in KINDS.into_iter().enumerate() {
            if only.is_some_and(|only| only != kind) {
                continue;
            }
            let start = Instant::now();
            for _ in 0..OPS_OF_A_ROUND {
                let mut key = [b'k'; 16];
                key[8..].copy_from_slice(&rng.u64(..KEYS).to_be_bytes());
                one(&db, &mut reused, kind, &key, &[b'v'; 100]);
            }
            times[at].push(start.elapsed().as_nanos() as f64 / OPS_OF_A_ROUND as f64);
        }
    }
    let median = |times: &mut Vec<f64>| {
        times.sort_by(f64::total_cmp);
        times.get(times.len() / 2).copied().unwrap_or(f64::NAN)
    };
    let medians = times.each_mut().map(median);
    for (kind, ns) in KINDS.iter().zip(medians) {
        let base = if KINDS.iter().position(|of| of == kind).unwrap() < 4 { 0 } else { 4 };
        println!("{kind:?}: {ns:.0} ns, {:.2} of {:?}", ns / medians[base], KINDS[base]);
    }
    drop(reused);
    db.close().unwrap();
}
