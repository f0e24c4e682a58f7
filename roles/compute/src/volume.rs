//! The storage of a database in a volume of a storage cluster.
//!
//! A process that opens a volume becomes its owner. It connects to storage nodes by the cluster's
//! managers, and keeps no file of its own. [`VolumeStorage::close`] gives the volume up, so that
//! the next owner does not wait for the end of a lease.
//!
//! Invariants:
//! 1. [`VolumeStorage::open`] creates no volume.
//! 2. An open that fails gives the volume up.
//!
//! Thread-safety: any thread may call any function.
//! Failure: errors name the volume and say what to do. `Busy` names the owner.
//! Cost: see [`Volume::open`].

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use archipelago_base::runtime::{Runtime, ThreadRuntime};
use archipelago_base::{Epoch, Error, ErrorKind, Result};
use archipelago_engine::db::Db;
use archipelago_env::FileSystem;
pub use archipelago_fabric::Secret;
use archipelago_fabric::{Endpoints, Reach};
use archipelago_offload::net::{VolumeFiles, VolumePool};
pub use archipelago_store::nodes::NodeStoresOptions;
pub use archipelago_store::nodes::layout::RedundancyMode;
pub use archipelago_store::nodes::logs::LogWriting;
use archipelago_store::nodes::{NodeStores, NodeStoresReport};
use archipelago_store::volume::{Volume, VolumeOptions, list};
use archipelago_store::{CopyTarget, StoreFs, Stores};

/// Path of the database in its volume.
pub const VOLUME_DATABASE: &str = "/db";

/// The volume that a process opens, and the way in which it opens it.
#[derive(Clone, Debug)]
pub struct VolumeSettings {
    /// Endpoints of the managers of the storage cluster: `tcp:HOST:PORT`.
    pub managers: Vec<String>,
    /// The cluster's secret. Default: none, for a cluster of one machine.
    pub secret: Option<Secret>,
    /// Name of the volume.
    pub name: String,
    /// Description of this process for other openers: its task, its id and its machine.
    pub owner: String,
    /// Whether to take the volume over from an owner whose lease is valid. Default: no.
    pub take_over: bool,
    /// Length of the lease, at least 20 ms. Another process opens the volume of a dead owner after
    /// this time. Default: 10 s.
    pub lease: Duration,
    /// Redundancy of new files. Default: by the class of the file.
    pub stores: NodeStoresOptions,
}

impl VolumeSettings {
    /// Settings with defaults.
    #[must_use]
    pub fn new(managers: Vec<String>, name: impl Into<String>, owner: impl Into<String>) -> Self {
        let owner = owner.into();
        let VolumeOptions { owner, take_over, lease, .. } = VolumeOptions::new(owner);
        let (secret, stores) = (None, NodeStoresOptions::default());
        Self { managers, secret, name: name.into(), owner, take_over, lease, stores }
    }

    /// Connects to the storage cluster. Errors: those of [`connect`].
    fn connect(&self) -> Result<NodeStores> {
        connect(self.managers.clone(), self.secret.clone(), self.stores.clone())
    }

    fn options(&self) -> VolumeOptions {
        let (take_over, lease) = (self.take_over, self.lease);
        VolumeOptions { take_over, lease, ..VolumeOptions::new(&self.owner) }
    }
}

/// Connects to a storage cluster. Errors: `InvalidArgument` for an address or a secret that is
/// wrong; `Busy` if no manager answers, or if the cluster has too few nodes.
fn connect(
    managers: Vec<String>,
    secret: Option<Secret>,
    options: NodeStoresOptions,
) -> Result<NodeStores> {
    let reach: Arc<dyn Reach> = Arc::new(Endpoints::new().with_secret(secret));
    let runtime: Arc<dyn Runtime> = ThreadRuntime::shared()?;
    NodeStores::connect(reach, runtime, managers, options).map_err(|error| match error.kind() {
        // The error names what is wrong with the address or the secret.
        ErrorKind::InvalidArgument => error,
        _ => error.context_at(
            "the storage cluster is not ready: start its manager and its storage nodes \
             (`archipelago cluster up --storage 6` on one machine), or correct the address of the \
             manager",
        ),
    })
}

/// Connects an executor of offloaded jobs to the storage cluster with these managers. Its outputs
/// get the redundancy of `options`. Errors: `InvalidArgument` for an address or a secret that is
/// wrong; `Busy` if no manager answers, or if the cluster has too few nodes.
pub fn pool_of_executor(
    managers: Vec<String>,
    secret: Option<Secret>,
    options: NodeStoresOptions,
) -> Result<VolumePool> {
    let pool = connect(managers, secret, options)?;
    Ok(VolumePool { cluster: cluster_of(&pool)?, stores: pool.stores() })
}

/// Identity of the cluster of a pool. Errors: `Busy` if the managers have not reported it.
fn cluster_of(pool: &NodeStores) -> Result<String> {
    match pool.cluster() {
        Some(cluster) => Ok(cluster.to_string()),
        None => Err(Error::busy("the storage cluster is not founded yet; try again later")),
    }
}

/// A volume that this process owns, and its file system.
#[derive(Clone, Debug)]
pub struct VolumeStorage {
    volume: Arc<Volume>,
    files: Arc<StoreFs>,
    pool: Arc<NodeStores>,
    options: VolumeOptions,
}

impl VolumeStorage {
    /// Becomes the owner of an existing volume; see [`Volume::open`]. Errors: those of
    /// [`Volume::open`]. `NotFound` names the volumes of the cluster.
    pub fn open(settings: &VolumeSettings) -> Result<Self> {
        let pool = Arc::new(settings.connect()?);
        Self::open_on(&pool, settings).map_err(|error| match error.kind() {
            ErrorKind::NotFound => missing(&pool.stores(), &settings.name),
            _ => error,
        })
    }

    /// Becomes the owner of a volume. If it does not exist, the call creates it, unless
    /// `may_create` returns an error. Errors: those of [`Volume::create`], [`Volume::open`] and
    /// `may_create`.
    pub fn open_or_create(
        settings: &VolumeSettings,
        may_create: impl FnOnce() -> Result<()>,
    ) -> Result<Self> {
        let pool = Arc::new(settings.connect()?);
        match Self::open_on(&pool, settings) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                may_create()?;
                let created = Volume::create(&pool.stores(), &settings.name, &settings.options());
                // After an error, the volume may exist, because another process was faster, or
                // because only the answer was lost. The opening shows whether it exists.
                Self::open_on(&pool, settings).map_err(|error| match error.kind() {
                    ErrorKind::NotFound => created.err().unwrap_or(error),
                    _ => error,
                })
            }
            opened => opened,
        }
    }

    fn open_on(pool: &Arc<NodeStores>, settings: &VolumeSettings) -> Result<Self> {
        let options = settings.options();
        let volume = Volume::open(&pool.stores(), &settings.name, &options)?;
        let files = StoreFs::new(Arc::clone(&volume));
        Ok(Self { volume, files, pool: Arc::clone(pool), options })
    }

    /// Removes a volume with its database; see [`Volume::destroy`]. Errors: those of
    /// [`Volume::destroy`]. `NotFound` names the volumes of the cluster.
    pub fn destroy(settings: &VolumeSettings) -> Result<()> {
        let stores = settings.connect()?.stores();
        let removed = Volume::destroy(&stores, &settings.name, &settings.options());
        removed.map_err(|error| match error.kind() {
            ErrorKind::NotFound => missing(&stores, &settings.name),
            _ => error,
        })
    }

    /// Makes a checkpoint of the database of this volume, in a new volume `name` of the same
    /// cluster. Tables are shared by both volumes. On return the checkpoint survives power loss and
    /// the removal of this volume, and can be opened as a database of its own.
    ///
    /// Errors: those of [`Db::checkpoint`] and of [`StoreFs::copy_to_volume`]. After an error the
    /// call may be repeated; the new volume cannot be opened before it is complete.
    pub fn checkpoint_to(&self, db: &Db, name: &str) -> Result<()> {
        let (root, files) = (Path::new("/"), &*self.files);
        let dir = root.join(format!("checkpoint-{name}"));
        // An interrupted call may have left this directory.
        if files.exists(&dir)? {
            files.remove_dir_all(&dir)?;
        }
        db.checkpoint(&dir)?;
        let options = VolumeOptions { take_over: false, ..self.options.clone() };
        let target = CopyTarget { name: name.to_owned(), dir: self.dir().to_owned(), options };
        let copied = files.copy_to_volume(&dir, &target);
        let removed = files.remove_dir_all(&dir).and_then(|()| files.sync_dir(root));
        copied.and(removed)
    }

    /// Name of this volume in the cluster.
    #[must_use]
    pub fn name(&self) -> &str {
        self.volume.name()
    }

    /// Epoch in which this process owns the volume.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.volume.epoch()
    }

    /// The file system of the volume.
    #[must_use]
    pub fn files(&self) -> &Arc<StoreFs> {
        &self.files
    }

    /// The volume for an owner of offloaded jobs. Errors: `Busy` if the managers have not reported
    /// the identity of the cluster.
    pub fn offload_files(&self) -> Result<VolumeFiles> {
        Ok(VolumeFiles { files: Arc::clone(&self.files), cluster: cluster_of(&self.pool)? })
    }

    /// Directory of the database in the volume.
    #[must_use]
    pub fn dir(&self) -> &Path {
        Path::new(VOLUME_DATABASE)
    }

    /// Whether this process may answer reads; see [`Volume::check_lease`]. A caller asks when an
    /// answer is ready, because the database may have read it from memory.
    pub fn check_lease(&self) -> Result<()> {
        self.volume.check_lease()
    }

    /// Whether this process still owns the volume. Errors: `Fenced` names the new owner; `Closed`.
    pub fn check_owner(&self) -> Result<()> {
        self.volume.check_open()
    }

    /// Facts about the volume for INFO, as lines of the form `name:value`.
    #[must_use]
    pub fn facts(&self) -> String {
        format!("volume:{}\nvolume_epoch:{}\n", self.name(), self.epoch())
    }

    /// Counters of this process's work with the storage nodes, for metrics.
    #[must_use]
    pub fn pool_report(&self) -> NodeStoresReport {
        self.pool.report()
    }

    /// Makes everything durable and gives the volume up, after the database was closed. Errors:
    /// those of [`StoreFs::close`].
    pub fn close(&self) -> Result<()> {
        self.files.close()
    }
}

/// The error of a name that no volume has.
fn missing(stores: &Stores, name: &str) -> Error {
    let volumes = match list(&*stores.register) {
        Ok(volumes) if volumes.is_empty() => "it has none".to_owned(),
        Ok(volumes) => {
            let names: Vec<String> = volumes.into_iter().map(|volume| volume.name).collect();
            format!("it has {}", names.join(", "))
        }
        Err(error) => format!("its volumes are not known: {error}"),
    };
    Error::not_found(format!(
        "the cluster has no volume {name} ({volumes}): check the name; `archipelago serve --store \
         HOST:PORT --volume {name}` creates a volume"
    ))
}

/// The error of settings with tiers for a database in a volume.
pub(crate) fn tiers_are_refused() -> Error {
    Error::invalid(
        "the settings have [[tiers]], and the database is to lie in a volume of a storage cluster: \
         tiers keep the log on a disk of this machine, whose loss would lose writes, so leave \
         [[tiers]] out, or serve a directory with --dir",
    )
}
