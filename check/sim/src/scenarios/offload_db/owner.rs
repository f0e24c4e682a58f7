//! Owners of the database, each in a process of its own.
//!
//! The user of an owner makes one call after another on a thread of its own. Background work runs
//! step by step on a second thread.

use std::sync::{Arc, Weak};
use std::time::Duration;

use archipelago_base::simulation::Host;
use archipelago_base::{Error, ErrorKind, Result};
use archipelago_engine::db::{BackgroundMode, Components, Db, Iter, ReadOptions, Snapshot};
use archipelago_engine::options::{CfOptions, DbOptions, WriteOptions};
use archipelago_engine::sabotage::Defect;
use archipelago_fabric::sim::Sim;
use archipelago_offload::net::{
    OffloadCounters, OffloadExecutor, OffloadMode, OwnerSettings, RuntimeParts,
};
use archipelago_offload::shard_owner::{
    NodeList, OwnerFigures, OwnerParts, OwnerTerms, RemoteShards, Waits,
};

use super::executors::{parts_of, without};
use super::files::ProcessFiles;
use super::model::{State, Write};
use crate::scenarios::shard_parts::KnownNodes;
use crate::scenarios::thread::{Call, SimThread};

/// Directory of the database.
pub(super) const DIR: &str = "/db";
/// Bytes of a landing zone.
const LANDING_BYTES: u64 = 128 << 10;

/// Settings with which the owners of a run use the cluster.
#[derive(Clone, Copy, Debug)]
pub(super) struct OwnerShape {
    /// Number of memory nodes that get each shard.
    pub(super) copies: u32,
    /// Bytes of the key-offset cache.
    pub(super) offsets_bytes: u64,
    /// Bytes from which values are separated; 0 for never.
    pub(super) separation_bytes: u64,
    /// Whether a close leaves the shards at their nodes.
    pub(super) leaves_shards: bool,
    /// Step of the engine that is left out.
    pub(super) defect: Option<Defect>,
}

/// The surroundings of a new owner.
pub(super) struct OwnerPlace {
    pub(super) there: Sim,
    pub(super) files: ProcessFiles,
    pub(super) managers: Vec<String>,
    pub(super) listed: Arc<KnownNodes>,
    pub(super) shape: OwnerShape,
}

/// A call of the user.
#[derive(Clone, Debug)]
pub(super) enum Ask {
    Write(Write),
    Get(Vec<u8>),
    Scan {
        is_backward: bool,
    },
    TakeSnapshot,
    /// Reads a key, or everything, at the snapshot.
    GetAtSnapshot(Vec<u8>),
    ScanAtSnapshot,
    DropSnapshot,
    /// Flushes all memtables.
    Flush,
}

/// The answer to an [`Ask`].
#[derive(Debug)]
pub(super) enum Answer {
    Done,
    Value(Option<Vec<u8>>),
    All(State),
}

/// The user's part of the process.
#[derive(Debug, Default)]
pub(super) struct UserPart {
    snapshot: Option<Snapshot>,
    db: Option<Arc<Db>>,
    defect: Option<Defect>,
}

/// An open database, and parts of it whose figures the run reads.
#[derive(Debug)]
struct Opened {
    db: Arc<Db>,
    jobs: Weak<OffloadExecutor>,
    shards: Weak<RemoteShards>,
}

fn family(shape: OwnerShape) -> CfOptions {
    CfOptions {
        merge_operator: Some("u64-counter".to_owned()),
        write_buffer_bytes: 16 << 10,
        level_base_bytes: 64 << 10,
        target_file_bytes: 16 << 10,
        block_bytes: 512,
        buckets: 3,
        value_separation_bytes: shape.separation_bytes,
        value_file_bytes: 64 << 10,
        ..CfOptions::default()
    }
}

fn terms(shape: OwnerShape) -> OwnerTerms {
    OwnerTerms {
        landing_bytes: LANDING_BYTES,
        copies: shape.copies,
        key_offset_cache_bytes: shape.offsets_bytes,
        leaves_shards: shape.leaves_shards,
        // A close waits for every node that is not lost.
        farewell: Duration::from_secs(20),
        ..OwnerTerms::default()
    }
}

/// Opens the database on the calling thread.
fn open(place: OwnerPlace) -> Result<Opened> {
    let OwnerPlace { there, files, managers, listed, shape } = place;
    let parts = parts_of(&there);
    let RuntimeParts { reach, runtime, clock } = parts.clone();
    let nodes: Arc<dyn NodeList> = listed;
    let terms = terms(shape);
    let waits = Waits::InRuntime;
    let shards = RemoteShards::new(OwnerParts { nodes, reach, runtime, waits, terms });
    let settings = OwnerSettings {
        managers,
        mode: OffloadMode::All,
        address: there.host().name().to_owned(),
        ..OwnerSettings::default()
    };
    let jobs = OffloadExecutor::in_runtime(settings, Some(Arc::clone(&shards)), parts);
    let (weak_jobs, weak_shards) = (Arc::downgrade(&jobs), Arc::downgrade(&shards));
    let components = Components {
        fs: Arc::new(files),
        clock,
        families: [("default".to_owned(), family(shape))].into_iter().collect(),
        executor: jobs,
        shard_store: Some(shards),
        background: BackgroundMode::Manual,
        seed: Some(there.host().scheduler().fresh_seed()),
        ..Components::default()
    };
    let options = DbOptions { wal_segment_bytes: 64 << 10, ..DbOptions::default() };
    let db = Arc::new(Db::open_with(DIR, options, components)?);
    Ok(Opened { db, jobs: weak_jobs, shards: weak_shards })
}

/// All records of an iterator from where it is.
fn walk(iter: &mut Iter, step: impl Fn(&mut Iter)) -> Result<State> {
    let mut state = State::new();
    while iter.valid() {
        state.insert(iter.key().to_vec(), iter.value().to_vec());
        step(iter);
    }
    iter.status()?;
    Ok(state)
}

fn scan(db: &Db, options: &ReadOptions, is_backward: bool) -> Result<Answer> {
    let mut iter = db.iter(db.default_family(), options)?;
    let state = if is_backward {
        iter.seek_to_last();
        walk(&mut iter, Iter::prev)
    } else {
        iter.seek_to_first();
        walk(&mut iter, Iter::next)
    };
    state.map(Answer::All)
}

fn get(db: &Db, key: &[u8], options: &ReadOptions) -> Result<Answer> {
    let value = db.get_with(db.default_family(), key, options)?;
    Ok(Answer::Value(value.map(|value| value.to_vec())))
}

impl UserPart {
    fn db(&self) -> Result<&Arc<Db>> {
        self.db.as_ref().ok_or_else(|| Error::closed("no database is open"))
    }

    fn at_snapshot(&self) -> ReadOptions {
        ReadOptions { snapshot: self.snapshot.clone(), ..ReadOptions::default() }
    }

    fn perform(&mut self, ask: &Ask) -> Result<Answer> {
        let db = Arc::clone(self.db()?);
        match ask {
            Ask::Write(write) => {
                let options = WriteOptions { sync: write.is_synced, ..WriteOptions::default() };
                let batch = write.batch(db.default_family().id());
                db.write(&batch, &options).map(|_| Answer::Done)
            }
            Ask::Get(key) => get(&db, key, &ReadOptions::default()),
            Ask::Scan { is_backward } => scan(&db, &ReadOptions::default(), *is_backward),
            Ask::TakeSnapshot => {
                self.snapshot = Some(db.snapshot());
                Ok(Answer::Done)
            }
            Ask::GetAtSnapshot(key) => get(&db, key, &self.at_snapshot()),
            Ask::ScanAtSnapshot => scan(&db, &self.at_snapshot(), false),
            Ask::DropSnapshot => {
                self.snapshot = None;
                Ok(Answer::Done)
            }
            Ask::Flush => db.flush(db.default_family()).map(|()| Answer::Done),
        }
    }
}

/// An owner in its process.
pub(super) struct Owner {
    host: Host,
    files: ProcessFiles,
    defect: Option<Defect>,
    user: SimThread<UserPart>,
    background: Option<SimThread<Arc<Db>>>,
    jobs: Weak<OffloadExecutor>,
    shards: Weak<RemoteShards>,
    /// The call of the user that has not returned.
    pub(super) asked: Option<(Ask, Call<Result<Answer>>)>,
    stepping: Option<Call<Result<bool>>>,
    opening: Option<Call<Result<Opened>>>,
}

impl Owner {
    /// Starts a process that opens the database.
    pub(super) fn start(place: OwnerPlace) -> Self {
        let (host, files) = (place.there.host().clone(), place.files.clone());
        let defect = place.shape.defect;
        let user = SimThread::start(&host, UserPart { defect, ..UserPart::default() });
        let opening = user.call(move |part: &mut UserPart| {
            let opened = without(part.defect, || open(place))?;
            part.db = Some(Arc::clone(&opened.db));
            Ok(opened)
        });
        Self {
            host,
            files,
            defect,
            user,
            background: None,
            jobs: Weak::new(),
            shards: Weak::new(),
            asked: None,
            stepping: None,
            opening: Some(opening),
        }
    }

    /// Whether the open has ended. Errors: that of the open.
    pub(super) fn is_open(&mut self) -> Result<bool> {
        let Some(opening) = &self.opening else { return Ok(true) };
        let Some(opened) = opening.take() else { return Ok(false) };
        self.opening = None;
        let Opened { db, jobs, shards } = opened?;
        (self.jobs, self.shards) = (jobs, shards);
        self.background = Some(SimThread::start(&self.host, db));
        Ok(true)
    }

    /// Begins a call of the user, which must not have another one.
    pub(super) fn ask(&mut self, ask: Ask) {
        let asked = ask.clone();
        let call = self.user.call(move |part: &mut UserPart| {
            let defect = part.defect;
            without(defect, || part.perform(&asked))
        });
        self.asked = Some((ask, call));
    }

    /// The call of the user that has returned.
    pub(super) fn take_answer(&mut self) -> Option<(Ask, Result<Answer>)> {
        let answer = self.asked.as_ref()?.1.take()?;
        let (ask, _) = self.asked.take()?;
        Some((ask, answer))
    }

    /// Begins a step of background work, unless one is under way.
    pub(super) fn begin_step(&mut self) {
        if let (Some(background), None) = (&self.background, &self.stepping) {
            let defect = self.defect;
            self.stepping =
                Some(background.call(move |db| without(defect, || db.step_background())));
        }
    }

    /// The outcome of the step of background work that has ended.
    pub(super) fn take_step(&mut self) -> Option<Result<bool>> {
        let outcome = self.stepping.as_ref()?.take()?;
        self.stepping = None;
        Some(outcome)
    }

    /// Whether a step of background work is under way.
    pub(super) fn is_stepping(&self) -> bool {
        self.stepping.is_some()
    }

    /// Runs `work` with the database on the user's thread.
    pub(super) fn call<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Db) -> Result<T> + Send + 'static,
    ) -> Call<Result<T>> {
        self.user.call(move |part: &mut UserPart| {
            let db = Arc::clone(part.db()?);
            without(part.defect, || work(&db))
        })
    }

    /// Ends the thread of background work, so that the user's thread has the database alone.
    pub(super) fn end_background(&self) {
        self.background.iter().for_each(SimThread::close);
    }

    /// Whether the thread of background work has ended.
    pub(super) fn has_no_background(&self) -> bool {
        self.background.as_ref().is_none_or(SimThread::has_ended)
    }

    /// Closes the database in good order. Its thread of background work must have ended.
    pub(super) fn close_db(&self) -> Call<Result<()>> {
        self.user.call(|part: &mut UserPart| {
            part.snapshot = None;
            let db = part.db.take().ok_or_else(|| Error::closed("no database is open"))?;
            match Arc::try_unwrap(db) {
                Ok(db) => db.close(),
                Err(_) => Err(Error::new(ErrorKind::Internal, "the database is still used")),
            }
        })
    }

    /// Ends the threads after the calls under way.
    pub(super) fn close(&self) {
        self.end_background();
        self.user.close();
    }

    /// The machine of the process.
    pub(super) fn host(&self) -> &Host {
        &self.host
    }

    /// Ends the access of the process to the disk.
    pub(super) fn lose_files(&self) {
        self.files.kill();
    }

    /// Whether the threads of the process have ended.
    pub(super) fn has_ended(&self) -> bool {
        self.user.has_ended() && self.has_no_background()
    }

    /// The text of a panic of the process.
    pub(super) fn panic_text(&self) -> Option<String> {
        let background = self.background.as_ref().and_then(SimThread::panic_text);
        self.user.panic_text().or(background)
    }

    /// The figures of its jobs and of its shards at memory nodes.
    pub(super) fn figures(&self) -> (OffloadCounters, OwnerFigures) {
        let jobs = self.jobs.upgrade().map(|jobs| jobs.counters());
        let shards = self.shards.upgrade().map(|shards| shards.figures());
        (jobs.unwrap_or_default(), shards.unwrap_or_default())
    }
}
