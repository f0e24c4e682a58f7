//! Column families: found, created and dropped.
//!
//! Invariants: a change holds the commit lock and the manifest lock, so that no write lies between
//! the old family table and the new one.
//!
//! Thread-safety: any thread may call any function.
//! Failure: after an error the family table is as before.
//! Cost: one edit of the manifest. A drop syncs the log first, because power loss must not keep the
//! drop and lose the writes before it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use archipelago_base::{CfId, Error, Result};

use crate::db::background::{leave_log, scheduler};
use crate::db::inner::DbInner;
use crate::db::read::ReadView;
use crate::db::state::family::{Family, SuperVersion};
use crate::db::write::{self, seal, stalling};
use crate::event::Event;
use crate::lock_order::Order;
use crate::manifest::{Change, VersionEdit};
use crate::options::CfOptions;

pub(crate) fn create_family(db: &DbInner, name: &str, options: CfOptions) -> Result<Arc<Family>> {
    db.context.refuse_read_only()?;
    options.validate().map_err(|e| e.context_at(format!("column family \"{name}\"")))?;
    Family::extensions(name, &options, db.context.registry())?;
    let mut commit = db.writes.committer().lock(Order::none());
    let mut manifest = db.storage.lock_manifest(commit.order());
    if db.view.live_families().iter().any(|family| family.name == name) {
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
    db.context.memory_shares().log_lowered_in_family(name, &options);
    let version = built
        .into_iter()
        .find(|(cf, _)| *cf == id)
        .map(|(_, version)| version)
        .ok_or_else(|| Error::not_found(format!("the version of new family {id}")))?;
    let active = db.writes.new_memtable(&db.context, &version, &[]);
    let first = SuperVersion::new(Arc::clone(&active), version);
    let family = Family::new(id, name.to_owned(), options, db.context.registry(), first)?;
    commit.set_active(id, Some(active));
    db.view.set_family(id, Some(Arc::clone(&family)));
    db.observers.tell(&Event::ColumnFamilyChanged { cf: id, created: true });
    Ok(family)
}

pub(crate) fn drop_family(db: &DbInner, family: &Arc<Family>) -> Result<()> {
    db.context.refuse_read_only()?;
    if family.id == CfId::DEFAULT {
        return Err(Error::invalid("the default column family cannot be dropped"));
    }
    leave_log::leave_log_before_sync(db)?;
    let mut commit = db.writes.committer().lock(Order::none());
    family.check_alive()?;
    // Power loss must not keep the drop and lose the writes before it, because a user may have
    // moved data from this family to another.
    db.writes.committer().wait_all_visible(&db.view, &commit);
    write::sync_log(db, commit.last_seq(), commit.order())?;
    let mut manifest = db.storage.lock_manifest(commit.order());
    let mut edit = VersionEdit::new();
    edit.push(Change::DropCf { cf: family.id });
    manifest.apply(edit)?;
    family.dropped.store(true, Ordering::Release);
    commit.set_active(family.id, None);
    db.view.set_family(family.id, None);
    let gone = seal::empty_family(
        &db.context,
        &db.view,
        &db.writes,
        &mut db.jobs.lock(manifest.order()),
        family,
    );
    drop((manifest, commit));
    drop(gone);
    stalling::recompute_stall(db.stall_owners(), family);
    scheduler::remove_obsolete(&db.storage, &db.observers, &db.view);
    db.jobs.notify_progress();
    db.observers.tell(&Event::ColumnFamilyChanged { cf: family.id, created: false });
    Ok(())
}

/// The family named `name`.
pub(crate) fn find_family(view: &ReadView, name: &str) -> Result<Arc<Family>> {
    let families = view.live_families();
    let found = families.iter().find(|family| family.name == name).cloned();
    found.ok_or_else(|| {
        let names: Vec<&str> = families.iter().map(|family| family.name.as_str()).collect();
        Error::invalid(format!(
            "there is no column family \"{name}\"; there are: {}",
            names.join(", ")
        ))
    })
}
