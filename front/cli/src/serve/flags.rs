//! Refusals of flags of `archipelago serve` that mean nothing for the chosen engine or offload
//! mode, or that redis-server has. Pure functions.

use archipelago::{Error, Result};
use archipelago_offload::job::JobKind;

use super::{Engine, Offload, PEERS, ServeArgs};

/// Refuses flags that the server would ignore. An error names the flag and says what to do.
pub(super) fn check(args: &ServeArgs) -> Result<()> {
    refuse_flags_of_redis(args)?;
    refuse_useless_offload_flags(args)?;
    refuse_flags_of_other_engine(args)
}

/// Refuses flags that only the other engine has.
fn refuse_flags_of_other_engine(args: &ServeArgs) -> Result<()> {
    if args.engine == Engine::Lsm {
        let flags = [
            ("--peers", args.peers != PEERS),
            ("--advertise", args.advertise.is_some()),
            ("--shm", args.shm.is_some()),
        ];
        return match given(&flags) {
            Some(flag) => Err(Error::invalid(format!(
                "{flag} is for the engine flexkv, whose compute nodes connect to each other: leave \
                 {flag} out, or choose --engine flexkv"
            ))),
            None => Ok(()),
        };
    }
    if args.offload_mode != Offload::Off {
        return Err(Error::invalid(
            "--offload-mode is for the engine lsm: the engine flexkv has no compactions and no \
             memtables",
        ));
    }
    if args.volume.is_given() {
        return Err(Error::invalid(
            "--store is for the engine lsm: the engine flexkv keeps its data in the memory of the \
             cluster (--manager), so leave --store or --engine out",
        ));
    }
    let flags = [
        ("--config", args.config.is_some()),
        ("--log-dir", args.log_dir.is_some()),
        ("--sync", args.sync),
        ("--checkpoints", args.checkpoints.is_some()),
        ("--print-settings", args.print_settings),
    ];
    match given(&flags) {
        Some(flag) => Err(Error::invalid(format!(
            "{flag} is for the engine lsm: the engine flexkv keeps its data in the memory of the \
             cluster and has no settings file, no log and no checkpoints: leave {flag} out, or \
             choose --engine lsm"
        ))),
        None => Ok(()),
    }
}

/// The first of these flags that is given.
fn given(flags: &[(&'static str, bool)]) -> Option<&'static str> {
    flags.iter().find(|flag| flag.1).map(|flag| flag.0)
}

/// Refuses settings of work and memory that do not leave in the offload mode.
fn refuse_useless_offload_flags(args: &ServeArgs) -> Result<()> {
    if args.remote_memtables_mib > 0 && !args.offload_mode.mode().sends_memtables() {
        return Err(Error::invalid(
            "--remote-memtables-mib is for --offload-mode memtables, flushes and all: add one of \
             them, or leave it out",
        ));
    }
    if args.offload_guaranteed_mib > 0 && !args.offload_mode.mode().sends_memtables() {
        return Err(Error::invalid(
            "--offload-guaranteed-mib is for --offload-mode memtables, flushes and all: add one of \
             them, or leave it out",
        ));
    }
    let (most, guaranteed) = (args.remote_memtables_mib, args.offload_guaranteed_mib);
    if most > 0 && guaranteed > most {
        return Err(Error::invalid(format!(
            "--offload-guaranteed-mib {guaranteed} is more than --remote-memtables-mib {most}, \
             which this server may use: lower the first or raise the second"
        )));
    }
    if args.key_offset_cache_mib.is_some() && !args.offload_mode.mode().sends_memtables() {
        return Err(Error::invalid(
            "--key-offset-cache-mib is for --offload-mode memtables, flushes and all: add one of \
             them, or leave it out",
        ));
    }
    if args.shard_copies.is_some() && !args.offload_mode.mode().sends_memtables() {
        return Err(Error::invalid(
            "--shard-copies is for --offload-mode memtables, flushes and all: add one of them, or \
             leave it out",
        ));
    }
    if args.local_memtables.is_some() && !args.offload_mode.mode().sends_memtables() {
        return Err(Error::invalid(
            "--local-memtables is for --offload-mode memtables, flushes and all: add one of them, \
             or leave it out",
        ));
    }
    if args.gc_invalid_files && !args.offload_mode.mode().sends(JobKind::Gc) {
        return Err(Error::invalid(
            "--gc-invalid-files is for --offload-mode compactions and all: add one of them, or \
             leave it out",
        ));
    }
    Ok(())
}

/// Refuses flags of redis-server, and names the flag of this program.
fn refuse_flags_of_redis(args: &ServeArgs) -> Result<()> {
    let hint = |flag: &str, host: &str, port: &str| {
        Err(Error::invalid(format!(
            "there is no {flag}: use --listen {host}:{port}, which sets the host and the port"
        )))
    };
    match (&args.port, args.bind.as_ref().and_then(|hosts| hosts.first())) {
        (None, None) => Ok(()),
        (Some(port), None) => hint("--port", "127.0.0.1", port),
        (None, Some(host)) => hint("--bind", host, "6379"),
        (Some(port), Some(host)) => hint("--port and no --bind", host, port),
    }
}
