//! Column families: create, drop, list.
//!
//! A change holds the commit lock and the manifest lock, so that no write is between the old
//! picture and the new. Creating and dropping are durable on return.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use archipelago_base::{CfId, Error, Result};

use crate::db::inner::{DbInner, State};
use crate::db::state::family::{Family, SuperVersion};
use crate::db::{ColumnFamily, Db};
use crate::event::Event;
use crate::manifest::{Change, VersionEdit};
use crate::options::CfOptions;
use crate::version::Version;

impl Db {
    /// The column family named `name`. `InvalidArgument` lists those that there are.
    pub fn family(&self, name: &str) -> Result<ColumnFamily> {
        self.inner.check_open()?;
        let families = self.inner.live_families();
        let found = families.iter().find(|family| family.name == name).cloned();
        let family = found.ok_or_else(|| {
            let names: Vec<&str> = families.iter().map(|family| family.name.as_str()).collect();
            Error::invalid(format!(
                "there is no column family \"{name}\"; there are: {}",
                names.join(", ")
            ))
        })?;
        Ok(ColumnFamily { family, db_token: self.inner.token })
    }

    /// The names of all column families, the default one first.
    #[must_use]
    pub fn list_families(&self) -> Vec<String> {
        self.inner.live_families().iter().map(|family| family.name.clone()).collect()
    }

    /// Creates a column family. `InvalidArgument` if the name is taken, a setting is out of range,
    /// or an extension is not registered. Survives power loss on return.
    pub fn create_family(&self, name: &str, options: CfOptions) -> Result<ColumnFamily> {
        self.inner.check_open()?;
        self.inner.health.check_writable()?;
        let family = self.inner.create_family(name, options)?;
        Ok(ColumnFamily { family, db_token: self.inner.token })
    }

    /// Drops a column family with all its data. The default one cannot be dropped. Durable on
    /// return: power loss cannot undo it, and everything that was written before the drop survives
    /// with it. Errors: `InvalidArgument` for the default family, `Closed` if it was dropped
    /// before, `Io` if the log cannot be synced or the manifest cannot be written.
    ///
    /// Afterwards every call with a handle of the family is refused with `Closed`, reads at older
    /// snapshots as well, and a writer that waits for its flushes gets an error. Iterators that are
    /// open on the family go on, and values that were read stay. Running flushes and compactions
    /// are not waited for: what they make is removed when they end, and they do not count as
    /// failed.
    ///
    /// Its memtables and tables are freed as soon as no iterator, no running job and no snapshot
    /// holds them (snapshots hold those of families that have a compaction filter). Handles hold
    /// nothing. Background work removes the files that were held, or the next open if the database
    /// was closed before.
    pub fn drop_family(&self, cf: &ColumnFamily) -> Result<()> {
        self.check_family(cf)?;
        self.inner.health.check_writable()?;
        self.inner.drop_family(&cf.family)
    }
}

impl DbInner {
    fn create_family(&self, name: &str, options: CfOptions) -> Result<Arc<Family>> {
        self.refuse_read_only()?;
        options.validate().map_err(|e| e.context_at(format!("column family \"{name}\"")))?;
        Family::extensions(name, &options, &self.registry)?;
        let mut commit = self.committer.lock();
        let mut manifest = self.manifest.lock();
        if self.live_families().iter().any(|family| family.name == name) {
            return Err(Error::invalid(format!("column family \"{name}\" exists already")));
        }
        let id = manifest.next_cf_id();
        let mut edit = VersionEdit::new();
        edit.push(Change::CreateCf {
            cf: id,
            name: name.to_owned(),
            options: Box::new(options.clone()),
        });
        let built = manifest.apply(edit)?;
        self.memory_shares().log_lowered_in_family(name, &options);
        let version = built
            .into_iter()
            .find(|(cf, _)| *cf == id)
            .map(|(_, version)| version)
            .ok_or_else(|| Error::not_found(format!("the version of new family {id}")))?;
        let active = self.new_memtable(&version, &[]);
        let first = SuperVersion { active: Arc::clone(&active), immutables: Vec::new(), version };
        let family = Family::new(id, name.to_owned(), options, &self.registry, first)?;
        commit.set_active(id, Some(active));
        self.set_family(id, Some(Arc::clone(&family)));
        self.tell(&Event::ColumnFamilyChanged { cf: id, created: true });
        Ok(family)
    }

    fn drop_family(&self, family: &Arc<Family>) -> Result<()> {
        self.refuse_read_only()?;
        if family.id == CfId::DEFAULT {
            return Err(Error::invalid("the default column family cannot be dropped"));
        }
        self.leave_log_before_sync()?;
        let mut commit = self.committer.lock();
        family.check_alive()?;
        // Power loss must not keep the drop and lose the writes before it: data may have been
        // moved from this family to another.
        self.committer.wait_all_visible(&commit);
        self.sync_log(commit.last_seq)?;
        let mut manifest = self.manifest.lock();
        let mut edit = VersionEdit::new();
        edit.push(Change::DropCf { cf: family.id });
        manifest.apply(edit)?;
        family.dropped.store(true, Ordering::Release);
        commit.set_active(family.id, None);
        self.set_family(family.id, None);
        let gone = self.empty_family(&mut self.state.lock(), family);
        drop((manifest, commit));
        drop(gone);
        self.recompute_stall(family);
        self.remove_obsolete();
        self.progress.notify_all();
        self.tell(&Event::ColumnFamilyChanged { cf: family.id, created: false });
        Ok(())
    }

    /// Makes a dropped family empty; its last super version. Handles outlive the family and must
    /// not hold its files and memory, and writers that wait for its flushes or compactions must
    /// find nothing to wait for. (Readers that meet the empty family find that it was dropped.)
    pub(crate) fn empty_family(&self, state: &mut State, family: &Family) -> Arc<SuperVersion> {
        state.flushes.remove(&family.id);
        state.balances.remove(&family.id);
        let gone = family.current.load_full();
        let version = Version::empty(family.id, Arc::clone(gone.version.options()));
        let active = self.new_memtable(&version, &[]);
        let empty = SuperVersion { active, immutables: Vec::new(), version };
        self.publish(state, family, empty);
        gone
    }

    /// Sets an entry of the family table (manifest lock held, or before the database is shared).
    pub(crate) fn set_family(&self, id: CfId, family: Option<Arc<Family>>) {
        let mut families = Vec::clone(&self.families.load());
        let index = id.0 as usize;
        if families.len() <= index {
            families.resize(index + 1, None);
        }
        families[index] = family;
        let filtered = families.iter().flatten().filter(|family| family.has_filter()).cloned();
        // Before anybody can write to the family: see `db::read::snapshot`, invariant 3.
        self.filtered.store(Arc::new(filtered.collect()));
        self.families.store(Arc::new(families));
    }

    pub(crate) fn refuse_read_only(&self) -> Result<()> {
        if self.options.read_only {
            return Err(Error::new(
                archipelago_base::ErrorKind::ReadOnly,
                "the database was opened read only",
            ));
        }
        Ok(())
    }
}
