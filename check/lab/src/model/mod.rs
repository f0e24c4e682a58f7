//! `archipelago-lab model`: throughput of many cores, modelled.
//!
//! The engine's own pure decisions choose flushes and compactions and slow writers down. Here they
//! run in virtual time against a store without data, with costs that were measured on one core. The
//! model shows how the throughput of a machine with 80 threads grows with the parallelism of L0
//! compaction in three modes, as in BucketLSM's Fig. 10 and 13.
//!
//! [`profile`] holds the costs of work, and [`measure`] measures them. [`keyspace`] computes the
//! contents of files of random keys, [`split`] cuts a compaction into parts, and [`work`] computes
//! the work of a job. [`store`] is the modelled store, [`writer`] its writers, and [`sim`] runs
//! them in virtual time. [`sweep`] runs many settings, and [`report`] shows the results.
//!
//! Invariant: everything but the command line and `measure` follows from the seed. The assumptions
//! of the model are in `docs/decisions/0009-many-core-model-assumptions.md`.

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

use crate::page::{self, Page, Style};
use archipelago_bench::harness::flags::Stop;
use archipelago_bench::harness::json;
use archipelago_bench::harness::report::say;
use archipelago_bench::harness::store::{
    Error, FileClass, FileSystem, IoContext, IoPurpose, LocalFs, Result,
};
use flags::ModelFlags;
use profile::{CostProfile, Machine};
use sweep::Sweep;

/// Runs `archipelago-lab model` with `args`, the words after `model`.
pub(crate) fn model(args: &[OsString]) -> std::result::Result<Result<()>, Stop> {
    let name = OsString::from("archipelago-lab model");
    let flags = ModelFlags::try_parse_from(std::iter::once(name).chain(args.iter().cloned()))?;
    Ok(run(&flags, args))
}

fn run(flags: &ModelFlags, args: &[OsString]) -> Result<()> {
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
    let (about, sections) = (report::about(&sweep), report::sections(&sweep, &runs));
    let parts = sections.iter().map(|section| section.text(Style::Markdown));
    say(&format!("{about}\n{}", parts.collect::<Vec<_>>().join("\n\n")));
    if let Some(path) = &flags.page {
        let page = Page::new("Many cores, modelled", "model", args);
        page.about(&about).sections(sections).write(path)?;
    }
    if let Some(dir) = &flags.svg {
        for (name, svg) in report::charts(&runs) {
            page::write(&dir.join(name), &svg)?;
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
