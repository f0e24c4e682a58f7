//! `archipelago-lab model`: throughput of many cores, modelled.
//!
//! The engine's own pure decisions (which flush, which compaction, how far to slow writers) run in
//! virtual time against a store without data, with costs that were measured on one core. So one
//! sees what a machine with 80 threads would do without having it: how throughput grows with the
//! parallelism of L0 compaction in three modes, as BucketLSM's Fig. 10 and 13 show it.
//!
//! [`profile`] is what work costs, [`measure`] measures it; [`keyspace`] says what files of random
//! keys hold, [`split`] how a compaction is cut into parts, [`work`] what a job does; [`store`] is
//! the modelled store, [`writer`] its writers, [`sim`] virtual time; [`sweep`] runs many settings,
//! [`report`] prints. Everything but the command line and `measure` is deterministic from the seed.
//! What the model assumes is in `docs/decisions/0009-many-core-model-assumptions.md`.

mod flags;
mod keyspace;
mod measure;
mod profile;
mod report;
mod setting;
mod sim;
mod split;
mod store;
mod sweep;
#[cfg(test)]
mod tests;
mod trace;
mod work;
mod writer;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use archipelago_env::device::DeviceSpec;
use clap::Parser;

use archipelago_bench::harness::flags::Stop;
use archipelago_bench::harness::json;
use archipelago_bench::harness::report::say;
use archipelago_bench::harness::store::{
    Error, FileClass, FileSystem, IoContext, IoPurpose, LocalFs, Result,
};
use flags::ModelFlags;
use profile::{CostProfile, Machine};
use sweep::Sweep;

/// Runs `archipelago-lab model` with `args`, everything behind the word `model`.
pub(crate) fn model(args: &[OsString]) -> std::result::Result<Result<()>, Stop> {
    let name = OsString::from("archipelago-lab model");
    let flags = ModelFlags::try_parse_from(std::iter::once(name).chain(args.iter().cloned()))?;
    Ok(run(&flags))
}

fn run(flags: &ModelFlags) -> Result<()> {
    if let Some(path) = &flags.measure {
        let profile = measure::measure(flags.machine.clone())?;
        return json::write_file(path, &profile);
    }
    let cost = match &flags.profile {
        Some(path) => CostProfile::parse(&read(path)?)?,
        None => CostProfile::frozen()?,
    };
    let machine = match &flags.device {
        Some(path) if path.as_os_str() == "none" => Machine::of_the_paper().without_device(),
        Some(path) => Machine::of_the_paper().on(DeviceSpec::from_toml(&read(path)?)?),
        None => Machine::of_the_paper(),
    };
    let sweep = Sweep::new(flags, cost, machine);
    let runs = sweep.run()?;
    say(&report::text(&sweep, &runs));
    if let Some(dir) = &flags.svg {
        for (name, svg) in report::charts(&runs) {
            write(&dir.join(name), svg.as_bytes())?;
        }
    }
    match &flags.json {
        Some(path) => json::write_file(path, &report::summary(&sweep, &runs)),
        None => Ok(()),
    }
}

fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path)
        .map_err(|error| Error::invalid(format!("{} is not a path: {error}", path.display())))
}

fn read(path: &Path) -> Result<String> {
    let context = IoContext::new(FileClass::Other, IoPurpose::ForegroundRead);
    let bytes = LocalFs::new().read(&absolute(path)?, context)?;
    String::from_utf8(bytes.to_vec())
        .map_err(|_| Error::invalid(format!("{} is not text", path.display())))
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let (path, fs) = (absolute(path)?, LocalFs::for_reports());
    if let Some(dir) = path.parent() {
        fs.create_dir_all(dir)?;
    }
    fs.write_atomic(&path, bytes, IoContext::new(FileClass::Other, IoPurpose::ForegroundWrite))
}
