//! Damage that the engine must never do, and that each check must notice.

use archipelago::{Db, Error, Result, WriteOptions};

use crate::check::{Progress, read};
use crate::settings::{COUNTERS, FAMILIES, family_name};

/// Ways to damage a database, each of which the check must see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sabotage {
    LostWrite,
    HalfBatch,
    MergedTwice,
}

/// All ways to damage a database.
pub(crate) const SABOTAGES: [Sabotage; 3] =
    [Sabotage::LostWrite, Sabotage::HalfBatch, Sabotage::MergedTwice];

/// Damages the database in a way that the engine never may. `seed` is that of its operations, and
/// `acknowledged` has the number of acknowledged operations by thread.
pub(crate) fn damage(db: &Db, how: Sabotage, seed: u64, acknowledged: &[u64]) -> Result<()> {
    let mut expected = Progress::new(seed, acknowledged.len() as u64);
    let found = read(db, acknowledged.len())?.map_err(Error::invalid)?;
    expected.settle(acknowledged, &found).map_err(Error::invalid)?;
    let model = &expected.models[0];
    let options = WriteOptions::default();
    let missing = || Error::not_found("something to damage");
    match how {
        Sabotage::LostWrite => {
            let ((family, key), _) =
                model.own.iter().find(|((family, _), _)| *family < COUNTERS).ok_or_else(missing)?;
            db.delete_with(&db.family(family_name(*family))?, key, &options)
        }
        Sabotage::HalfBatch => {
            // One key of a multi-key stamp gets a value that it could never have: another stamp.
            let ((family, key), _) = model
                .own
                .iter()
                .rfind(|((family, _), _)| *family < FAMILIES.len())
                .ok_or_else(missing)?;
            db.put_with(&db.family(family_name(*family))?, key, b"t00-000000000-", &options)
        }
        Sabotage::MergedTwice => {
            let key = model.shared.keys().next().ok_or_else(missing)?;
            db.merge(&db.family(family_name(COUNTERS))?, key, &1u64.to_le_bytes(), &options)
        }
    }
}

/// Whether a check found that the database lacks acknowledged operations.
pub(crate) fn is_of_damage(problem: &str) -> bool {
    problem.contains("operations acknowledged") || problem.contains("shared counters")
}
