//! Opens the database again after a close or `kill -9`, and opens copies of it. The model forgets
//! what the database may have lost.

use std::path::Path;
use std::sync::Arc;

use archipelago_engine::db::{Db, ReadOptions};
use archipelago_engine::options::DbOptions;
use archipelago_engine::stats::Ticker;

use super::super::iterator_rows::contents;
use super::super::ordered;
use super::super::setting::Disk;
use super::{Runner, over_nodes};

impl Runner {
    pub(in crate::model) fn forget_readers(&mut self) {
        self.held.clear();
        self.snapshots.clear();
        self.midway.clear();
        self.taker.set(None);
    }

    fn open_again(&mut self) {
        let mut components = Self::components(&self.setting, &self.clock, &self.seals);
        components.fault_point = Some(self.seals.fault_point(&self.taker, self.setting.separation));
        self.sent = self.sent();
        let seed = u64::from(self.steps);
        let mood = self.setting.away;
        self.store = self.store.take().zip(mood).map(|(store, mood)| store.next(seed, mood));
        let components = over_nodes(components, self.store.as_ref(), mood);
        self.db = Db::open_with(self.setting.dir(), self.setting.db.clone(), components).unwrap();
        self.kept += self.db.statistics().get(Ticker::AwayShardsKept);
        self.begin_midway();
        let mut names: Vec<&str> = self.families.iter().map(|(m, _)| m.name.as_str()).collect();
        names.push(ordered::NAME);
        let mut listed = self.db.list_families();
        names.sort_unstable();
        listed.sort_unstable();
        assert_eq!(listed, names);
        for (model, handle) in &mut self.families {
            *handle = self.db.family(&model.name).unwrap();
        }
        self.ordered.handle = self.db.family(ordered::NAME).unwrap();
        self.check_values_at_rest();
    }

    pub(super) fn reopen(&mut self) {
        self.forget_readers();
        self.db.clone().close().unwrap();
        if let Disk::Tiers(tiered) = &mut self.setting.disk {
            *tiered = tiered.reopened();
        }
        self.open_again();
        self.families.iter_mut().for_each(|(model, _)| model.settle());
        self.adopt_seq();
        self.check_all();
    }

    /// `kill -9`: logged writes stay, of the others those of unflushed memtables go, a memtable
    /// with all of them or none.
    pub(super) fn kill(&mut self) {
        let left = match &self.setting.disk {
            Disk::Memory(fs) => Disk::Memory(fs.kill_clone()),
            Disk::Tiers(tiered) => Disk::Tiers(tiered.killed()),
            Disk::Local(..) => return self.reopen(),
        };
        self.forget_readers();
        self.setting.disk = left;
        self.open_again();
        let now_ms = self.now_ms();
        for (model, handle) in &mut self.families {
            let found = contents(&self.db, handle, &ReadOptions::default());
            let mut candidates: Vec<u64> = model.seals.iter().rev().copied().collect();
            candidates.push(0);
            let survivor = candidates.iter().find_map(|&flushed| {
                let left = model.without_unlogged_after(flushed);
                left.accepts(&found, u64::MAX, now_ms).then_some(left)
            });
            let Some(mut survivor) = survivor else {
                let all = model.rows(u64::MAX, now_ms);
                panic!("{}: {found:?} are not what survives of {all:?}", model.name);
            };
            survivor.settle();
            *model = survivor;
        }
        self.adopt_seq();
        self.check_all();
    }

    /// Checks the numbers after an open. They are as before, except for the mark that a close
    /// appends, which takes one. Writes past the log are another exception: they may be lost, or
    /// leave no trace (range deletes of nothing).
    fn adopt_seq(&mut self) {
        let newest = self.families.iter().map(|(model, _)| model.newest_of_all()).max();
        let newest = newest.max(Some(self.ordered.model.newest_of_all()));
        let seq = self.db.latest_seq_of_all().0;
        let before = self.seq;
        let may_fall = std::mem::take(&mut self.past_log);
        assert!(newest <= Some(seq) && seq <= before + 1, "{seq}, {before} before");
        assert!(may_fall || seq >= before, "{seq}, {before} before");
        self.seq = seq;
    }

    /// Opens another copy of the database and compares.
    pub(in crate::model) fn check_copy(&mut self, dir: &Path) {
        for read_only in [true, false] {
            let options = DbOptions { read_only, ..self.setting.db.clone() };
            let components = Self::components(&self.setting, &self.clock, &Arc::default());
            let copy = Db::open_with(dir, options, components).unwrap();
            let ordered = std::iter::once(&self.ordered.model);
            for model in self.families.iter().map(|(model, _)| model).chain(ordered) {
                let handle = copy.family(&model.name).unwrap();
                let found = contents(&copy, &handle, &ReadOptions::default());
                let (at, now_ms) = (u64::MAX, self.now_ms());
                let expected = model.rows(at, now_ms);
                assert!(
                    model.accepts(&found, at, now_ms),
                    "copy of \"{}\", {read_only}: {found:?} instead of {expected:?}",
                    model.name
                );
            }
            copy.close().unwrap();
        }
    }
}
