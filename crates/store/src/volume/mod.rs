//! A volume: the namespace of one database on a storage pool, as its owner holds it.
//!
//! The namespace maps paths to files, and each file to its [`Content`]: bytes inline, a blob, or a
//! log. Its records lie in a log of its own, which all replicas acknowledge after their syncs. The
//! layout of that log, the epoch and the owner's lease stand in the register ([`VolumeRecord`]).
//!
//! [`Volume::open`] becomes the owner: it raises the epoch by compare-and-swap, fences and recovers
//! the namespace's log, then all logs that have no end, and releases strays. A lease keeps other
//! openers away while the owner lives ([`lease`]). Safety rests on the epoch alone.
//!
//! Invariants:
//! 1. A blob is sealed, and a log's layout is complete, before a record with them is submitted.
//! 2. A blob or a log is released only when the record that took its last name is durable, and its
//!    last reader in this process is gone.
//! 3. A file's record is durable before [`Volume::wait`] returns for it; a crash keeps a prefix of
//!    the submitted records.
//! 4. After the first [`Fenced`](archipelago_base::ErrorKind::Fenced) error of any part, the volume
//!    refuses all changes with it.
//!
//! Thread-safety: any thread may call any method. One lock guards state and log, and is not held
//! over a wait for the network.
//! Failure: a failed append of the namespace begins a new generation, whose snapshot has what the
//! failed log may lack. If that fails as well, the error goes to the callers.
//! Cost: a change is one append; changes that are submitted before a wait share its round trip.

pub(crate) mod record;
