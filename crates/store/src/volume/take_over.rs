//! Creating a volume, and becoming its owner.
//!
//! A take-over has these steps. Each may be repeated by another process after a crash:
//!
//! 1. Read the register. If a lease was not given up, observe it until it ends, unless the caller
//!    takes over.
//! 2. Raise the epoch by compare-and-swap. From now on the old owner changes nothing in the
//!    register, and so begins no generation.
//! 3. Recover the namespace's log, which fences the old owner's commits, keep the recovered end in
//!    the register, and replay the log.
//! 4. Recover all logs without an end in one call, which fences their writers.
//! 5. Begin a generation whose snapshot has all ends. One swap of the register makes the ends
//!    durable before the caller sees a byte.
//! 6. Release strays.
//!
//! If a recovery of step 3 or 4 may miss unsynced bytes, the register gets a new boot id before the
//! pool ends the log ([`LossKeeper`]). A later opener would find the ended log whole, so it could
//! not conclude the loss. It takes the new boot id over instead.
//!
//! Invariants:
//! 1. Of several openers that see the same epoch, the swap of one succeeds.
//! 2. No byte of a log is used before its recovered end is durable.
//! 3. A log that may miss unsynced bytes is ended only after the new boot id is durable.
//!
//! Thread-safety: the functions share nothing.
//! Failure: after an error the lease is given up, so that the next opener does not wait for it.
//! Cost: three swaps of the register, a generation, and one recovery per open log. A loss costs one
//! more swap, and a second recovery of the logs in question.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use archipelago_base::random::{Rng, unique_id};
use archipelago_base::{Epoch, Error, ErrorKind, Result};
use archipelago_env::{FileClass, IoContext, IoPurpose};
use parking_lot::{Condvar, Mutex};

use super::generation::{RecoveredGeneration, decode_generation};
use super::idle_logs::start_keeping;
use super::lease::{LeaseLook, LeaseView, LeaseWatch, start_renewing};
use super::namespace_log::NamespaceCore;
use super::pending::Superfluous;
use super::record::{Content, FileRecord, Record, VolumeRecord, VolumeStage};
use super::registration::{Claim, Registration, register_name};
use super::state::NamespaceState;
use super::strays::start_releasing;
use super::{Moment, Volume, VolumeOptions, log_class};
use crate::Stores;
use crate::ids::{LogId, VolumeId};
use crate::log::{LogToRecover, LossKeeper, NewOwner, RecoveredLog};
use crate::register::{Register, Swap, Versioned};

/// Shortest lease. Below it, an owner has no time to renew.
const LEASE_MIN: Duration = Duration::from_millis(20);
/// Longest name of a volume, in bytes.
const NAME_BYTES_MAX: usize = 200;
/// Number of times that a call of the register is tried while it does not answer.
const ATTEMPTS: u32 = 4;
/// Time between two attempts.
const PAUSE: Duration = Duration::from_millis(20);

/// Purpose for which a process becomes the owner of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Opening {
    /// To read and write its files.
    Use,
    /// To copy a checkpoint into it.
    Fill,
    /// To remove it with all its contents.
    Remove,
    /// To remove what an interrupted copy or removal left.
    Discard,
}

impl Opening {
    /// Stage of the volume while the process owns it.
    fn stage(self) -> VolumeStage {
        match self {
            Self::Use => VolumeStage::Whole,
            Self::Fill => VolumeStage::Filling,
            Self::Remove | Self::Discard => VolumeStage::Removing,
        }
    }

    /// Refuses a volume whose stage does not permit the purpose.
    fn check(self, name: &str, stage: VolumeStage) -> Result<()> {
        let is_good = match self {
            Self::Use | Self::Fill => stage == self.stage(),
            Self::Remove => true,
            Self::Discard => stage != VolumeStage::Whole,
        };
        if is_good {
            return Ok(());
        }
        Err(Error::invalid(match stage {
            VolumeStage::Whole => {
                format!("volume {name} exists; open it, or choose another name for the copy")
            }
            VolumeStage::Filling => format!(
                "volume {name} is not complete, because the checkpoint into it has not ended: make \
                 the checkpoint again, or remove the volume (`archipelago db destroy`)"
            ),
            VolumeStage::Removing => format!(
                "volume {name} is being removed: end that with `archipelago db destroy`, or choose \
                 another name"
            ),
        }))
    }
}

/// Creates the volume `name` ([`Volume::create`]).
pub(super) fn create(
    stores: &Stores,
    name: &str,
    options: &VolumeOptions,
    stage: VolumeStage,
) -> Result<()> {
    check_name(name)?;
    let mut rng = options.rng();
    let record = VolumeRecord {
        volume: VolumeId::random(&mut rng),
        epoch: Epoch(0),
        owner: String::new(),
        opening: [0; 16],
        lease_ms: 0,
        renewals: 0,
        namespace: None,
        boot_id: unique_id(&mut rng),
        stage,
    };
    let key = register_name(name);
    let swap = repeat(options, || stores.register.compare_and_swap(&key, 0, &record.encode()))?;
    match swap {
        Swap::Done(_) => Ok(()),
        // An earlier attempt happened, and its answer was lost.
        Swap::Lost(Some(found))
            if VolumeRecord::decode(&key, &found.value)?.volume == record.volume =>
        {
            Ok(())
        }
        Swap::Lost(_) => {
            Err(Error::invalid(format!("volume {name} exists; open it, or choose another name")))
        }
    }
}

/// Becomes the owner of the volume `name` ([`Volume::open`]).
pub(super) fn open(
    stores: &Stores,
    name: &str,
    options: &VolumeOptions,
    opening: Opening,
) -> Result<Arc<Volume>> {
    let mut rng = options.rng();
    let registration = claim(stores, name, options, (unique_id(&mut rng), opening))?;
    start(stores, &registration, options, rng).map_err(|error| {
        // The swap also shows whether another opener caused the error.
        let lost = registration.give_up(None).err();
        lost.filter(|lost| lost.kind() == ErrorKind::Fenced)
            .unwrap_or_else(|| error.context_at(format!("volume {name} was not opened")))
    })
}

fn check_name(name: &str) -> Result<()> {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if !name.is_empty() && name.len() <= NAME_BYTES_MAX && name.bytes().all(is_allowed) {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "{name:?} is no name of a volume; use letters, digits, '-', '_' and '.', at most \
         {NAME_BYTES_MAX} of them"
    )))
}

/// Repeats a call of the register while it does not answer.
fn repeat<T>(options: &VolumeOptions, mut call: impl FnMut() -> Result<T>) -> Result<T> {
    for _ in 1..ATTEMPTS {
        match call() {
            Err(error) if error.kind() == ErrorKind::Io || error.kind() == ErrorKind::Busy => {
                options.clock.sleep(PAUSE);
            }
            answer => return answer,
        }
    }
    call()
}

/// Random number of an opening.
pub(super) type OpeningNumber = [u8; 16];

/// A value of the register, as an opener found it.
#[derive(Debug)]
struct FoundValue {
    version: u64,
    record: VolumeRecord,
}

impl FoundValue {
    fn read(register: &dyn Register, name: &str, options: &VolumeOptions) -> Result<Self> {
        let found = repeat(options, || register.read(&register_name(name)))?;
        Self::decode(name, found.as_ref())
    }

    fn decode(name: &str, found: Option<&Versioned>) -> Result<Self> {
        let found = found.ok_or_else(|| {
            Error::not_found(format!(
                "there is no volume {name} in the register; create it, or check the name"
            ))
        })?;
        let record = VolumeRecord::decode(&register_name(name), &found.value)?;
        Ok(Self { version: found.version, record })
    }

    /// Whether no process holds the lease: it was given up in order, or by an opener that failed.
    fn is_free(&self) -> bool {
        self.record.lease_ms == 0
    }

    /// The error of an opener that meets this owner.
    fn busy(&self, name: &str) -> Error {
        Error::busy(format!(
            "volume {name} belongs to {} (epoch {}), whose lease is valid; stop that process, or \
             take the volume over (--take-over)",
            self.record.owner, self.record.epoch
        ))
    }
}

/// Waits until no other owner has a lease. Returns the value that must be unchanged when the opener
/// raises the epoch. Another opener that claims the volume meanwhile may fail or die before its
/// first renewal. So the lease of its claim is observed like that of the owner before. Errors:
/// `Busy` if an owner lives; `InvalidArgument` if the volume is not good for the purpose; those of
/// the register.
fn wait_for_lease(
    stores: &Stores,
    name: &str,
    options: &VolumeOptions,
    purpose: Opening,
) -> Result<FoundValue> {
    let clock = &options.clock;
    let mut found = FoundValue::read(&*stores.register, name, options)?;
    while !(found.is_free() || options.take_over) {
        purpose.check(name, found.record.stage)?;
        let lease = Duration::from_millis(found.record.lease_ms);
        let watch = LeaseWatch::begin(found.version, lease, clock.now_ns());
        let owner = &found.record.owner;
        tracing::warn!(volume = name, owner, ?lease, "waiting for the end of an owner's lease");
        let Some(changed) = watch_lease(stores, name, options, &watch)? else { break };
        if !changed.is_free() && changed.record.opening == found.record.opening {
            return Err(changed.busy(name));
        }
        found = changed;
    }
    Ok(found)
}

/// Observes a lease until its value changes, and returns the new value; `None` if the lease ended.
fn watch_lease(
    stores: &Stores,
    name: &str,
    options: &VolumeOptions,
    watch: &LeaseWatch,
) -> Result<Option<FoundValue>> {
    loop {
        let asked_ns = options.clock.now_ns();
        let found = FoundValue::read(&*stores.register, name, options)?;
        match watch.judge(LeaseLook { version: found.version, asked_ns }) {
            LeaseView::Ended => return Ok(None),
            LeaseView::Undecided(pause) => options.clock.sleep(pause),
            LeaseView::Renewed => return Ok(Some(found)),
        }
    }
}

/// Raises the epoch under a random number of this opening. Errors: `Busy` if another opener or a
/// living owner is in the way; `InvalidArgument` if the volume is not good for the purpose; those
/// of the register.
pub(super) fn claim(
    stores: &Stores,
    name: &str,
    options: &VolumeOptions,
    claimed: (OpeningNumber, Opening),
) -> Result<Arc<Registration>> {
    let (opening, purpose) = claimed;
    check_name(name)?;
    if options.lease < LEASE_MIN {
        return Err(Error::invalid(format!(
            "a lease of {:?} is too short to renew; choose at least {LEASE_MIN:?}",
            options.lease
        )));
    }
    let mut found = wait_for_lease(stores, name, options, purpose)?;
    let key = register_name(name);
    let sent_ns = options.clock.now_ns();
    loop {
        purpose.check(name, found.record.stage)?;
        let wanted = VolumeRecord {
            stage: purpose.stage(),
            epoch: Epoch(found.record.epoch.0 + 1),
            owner: options.owner.clone(),
            opening,
            lease_ms: options.lease.as_millis() as u64,
            renewals: 0,
            ..found.record.clone()
        };
        let bytes = wanted.encode();
        let swap = || stores.register.compare_and_swap(&key, found.version, &bytes);
        let (version, record) = match repeat(options, swap)? {
            Swap::Done(version) => (version, wanted),
            Swap::Lost(lost) => {
                let lost = FoundValue::decode(name, lost.as_ref())?;
                let is_own = lost.record.opening == opening;
                // The old owner renewed its lease, which does not matter to a take-over.
                let is_renewal = options.take_over && lost.record.epoch == found.record.epoch;
                if !is_own && (is_renewal || lost.is_free()) {
                    found = lost;
                    continue;
                }
                if !is_own {
                    return Err(lost.busy(name));
                }
                (lost.version, lost.record)
            }
        };
        let (register, clock) = (Arc::clone(&stores.register), Arc::clone(&options.clock));
        let (name, lease) = (name.to_owned(), options.lease);
        let claim = Claim { register, clock, name, lease, record, version, sent_ns };
        return Ok(Registration::new(claim));
    }
}

/// Recovers the volume of a registration, and begins the first generation of its owner.
fn start(
    stores: &Stores,
    registration: &Arc<Registration>,
    options: &VolumeOptions,
    rng: Rng,
) -> Result<Arc<Volume>> {
    let lease = start_renewing(&*options.spawn, registration)?;
    let recovered = registration.end().observe(recover(stores, registration))?;
    let name = registration.name();
    let core = NamespaceCore::new(name, recovered.state, recovered.next_generation, rng);
    let volume = Arc::new(Volume {
        stores: stores.clone(),
        clock: Arc::clone(&options.clock),
        boot_id: registration.boot_id(),
        sabotage: options.sabotage,
        registration: Arc::clone(registration),
        lease,
        core: Mutex::new(core),
        generation_ended: Condvar::new(),
        strays: OnceLock::new(),
        is_releasing: AtomicBool::new(false),
        layouts: OnceLock::new(),
        closing_ns: OnceLock::new(),
    });
    volume.reach(volume.moment())?;
    volume.core.lock().pending.release(Superfluous::Strays, Moment::default());
    volume.release_due();
    let strays = start_releasing(&*options.spawn, &volume, options.strays_every)?;
    assert!(volume.strays.set(strays).is_ok(), "the volume has just been made");
    let layouts = start_keeping(&*options.spawn, &volume)?;
    assert!(volume.layouts.set(layouts).is_ok(), "the volume has just been made");
    Ok(volume)
}

/// A volume as its last owner left it, after the recovery.
#[derive(Debug)]
struct RecoveredVolume {
    /// The state, in which every log has an end.
    state: NamespaceState,
    next_generation: u64,
}

/// A file whose log has no end.
#[derive(Clone, Copy, Debug)]
struct OpenLog<'a> {
    file: &'a FileRecord,
    head: &'a [u8],
    log: LogToRecover<'a>,
}

impl<'a> OpenLog<'a> {
    /// The open log of `file`, if it has one.
    fn of(file: &'a FileRecord) -> Option<Self> {
        match &file.content {
            Content::Log { head, id, layout, len_bytes: None } => {
                let log = LogToRecover { id: *id, class: log_class(file.class), layout };
                Some(Self { file, head, log })
            }
            _ => None,
        }
    }
}

/// Keeps the loss of a recovered log. The pool kept the loss before it ended the log, unless an
/// older version of the program recovered the log.
fn keep_loss(registration: &Registration, recovered: &RecoveredLog) -> Result<()> {
    if recovered.may_miss_unsynced { registration.keep_loss() } else { Ok(()) }
}

/// Recovers the namespace and all logs without an end. On return the boot id is another one if
/// unsynced bytes may be missing. Errors: `Busy` if too few nodes answer; `Corrupt`; `Fenced`.
fn recover(stores: &Stores, registration: &Registration) -> Result<RecoveredVolume> {
    let owner = NewOwner { epoch: registration.epoch(), losses: registration };
    let (mut state, mut next_generation) = (NamespaceState::default(), 1);
    if let Some((log, layout)) = registration.namespace() {
        let recovered = stores.logs.recover(log, FileClass::Manifest, &layout, owner)?;
        keep_loss(registration, &recovered)?;
        registration.keep_layout(log, &recovered.layout)?;
        let generation = read_generation(stores, log, &recovered)?;
        if generation.header.volume != registration.volume() {
            return Err(Error::new(
                ErrorKind::Corrupt,
                format!("its namespace is that of volume {}", generation.header.volume),
            ));
        }
        next_generation = generation.header.number + 1;
        state = generation.state;
    }
    let mut ends = Vec::new();
    let open: Vec<OpenLog<'_>> = state.files().filter_map(OpenLog::of).collect();
    let logs: Vec<LogToRecover<'_>> = open.iter().map(|open| open.log).collect();
    for (open, recovered) in open.iter().zip(stores.logs.recover_all(&logs, owner)) {
        let file = open.file;
        let recovered = recovered.map_err(|error| {
            let name = file.names.first().map(|name| name.display().to_string());
            error.context_at(format!("log file {}", name.unwrap_or_default()))
        })?;
        keep_loss(registration, &recovered)?;
        let (head, id, len_bytes) = (open.head.to_vec(), open.log.id, Some(recovered.len_bytes));
        let content = Content::Log { head, id, layout: recovered.layout, len_bytes };
        ends.push(Record::Content { key: file.key, content, modified_ms: file.modified_ms });
    }
    tracing::info!(
        volume = registration.name(),
        epoch = owner.epoch.0,
        files = state.len(),
        open_logs = ends.len(),
        "a volume was recovered"
    );
    state.apply_all(&ends)?;
    Ok(RecoveredVolume { state, next_generation })
}

fn read_generation(
    stores: &Stores,
    log: LogId,
    recovered: &RecoveredLog,
) -> Result<RecoveredGeneration> {
    let context = IoContext::manifest(IoPurpose::Recovery);
    let file = stores.logs.open(log, &recovered.layout, context)?;
    let mut bytes = vec![0; recovered.len_bytes as usize];
    file.read_exact_at(0, &mut bytes, context)?;
    let generation = decode_generation(log, &bytes)?;
    let RecoveredGeneration { whole_bytes, torn_bytes, commits, .. } = &generation;
    tracing::debug!(%log, whole_bytes, torn_bytes, commits, "a namespace was read");
    Ok(generation)
}
