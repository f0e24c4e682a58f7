//! Column families: create, drop, list.
//!
//! A change holds the commit lock and the manifest lock, so that no write is between the old
//! picture and the new. Creating and dropping are durable on return.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use archipelago_base::{CfId, Error, Result};

use crate::db::family::{Family, SuperVersion};
use crate::db::inner::DbInner;
use crate::db::{ColumnFamily, Db};
use crate::event::Event;
use crate::manifest::{Change, VersionEdit};
use crate::options::CfOptions;

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

    /// Drops a column family with all its data. Iterators that are open on it go on; its files go
    /// with the last of them. Survives power loss on return. The default one cannot be dropped.
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
        self.listeners.tell(&Event::ColumnFamilyChanged { cf: id, created: true });
        Ok(family)
    }

    fn drop_family(&self, family: &Arc<Family>) -> Result<()> {
        self.refuse_read_only()?;
        if family.id == CfId::DEFAULT {
            return Err(Error::invalid("the default column family cannot be dropped"));
        }
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
        let mut state = self.state.lock();
        state.flushes.remove(&family.id);
        state.balances.remove(&family.id);
        drop(state);
        drop((manifest, commit));
        self.progress.notify_all();
        self.listeners.tell(&Event::ColumnFamilyChanged { cf: family.id, created: false });
        Ok(())
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
        // Before anybody can write to the family: see `db::snapshot`, invariant 3.
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
