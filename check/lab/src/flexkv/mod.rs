//! `archipelago-lab flexkv`: the store over remote memory on FlexKV's testbed in virtual time,
//! figure by figure, next to the figures that the paper's text states.
//!
//! [`testbed`] measures. This module prints tables and draws charts, and it makes the figure of
//! Twitter's clusters. Every figure says in which respects the run is smaller than the paper's
//! testbed.

pub mod testbed;
pub mod verbs;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use self::testbed::{FIGURES, Figure, Measured, Request, Setup, Stated, System, Workload};
use archipelago_base::clock::{Clock, SystemClock};
use archipelago_base::random::Rng;
use archipelago_base::{Error, Result};
use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};

use crate::claim::Target;
use crate::page::{self, Grid, Page, Row, RowTarget, Section, Style, Verdict};
use crate::plot::{Bars, Chart};
use archipelago_bench::harness::flags::Stop;
use archipelago_bench::harness::report::say;
use archipelago_bench::harness::twitter::{self, Cluster};

const TWITTER: (&str, &str) = ("fig15", "Twitter's clusters");

/// Run figures of FlexKV's evaluation in virtual time: 20 compute and 3 memory nodes over the
/// modelled network cards of decision 0012, with this store and its rivals.
#[derive(Parser, Debug)]
#[command(name = "archipelago-lab flexkv", no_binary_name = true)]
struct Arguments {
    /// Figures to run, or all of them. `list` prints their names.
    figures: Vec<String>,
    /// Write a chart of each figure to this directory.
    #[arg(long, value_name = "DIR")]
    svg: Option<PathBuf>,
    /// Write the page of docs/benchmarks to this file; FILE#PART writes one part of a page.
    #[arg(long, value_name = "FILE")]
    page: Option<PathBuf>,
    /// Keys that are loaded (the paper: 10 million). Memory of compute nodes is 5 % of keys and
    /// values.
    #[arg(long, default_value_t = Setup::default().keys)]
    keys: u64,
    /// Seed from which everything follows.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print Markdown tables.
    #[arg(long)]
    markdown: bool,
}

/// Runs the command with `args`, the words after `flexkv`.
pub(crate) fn main(args: &[OsString]) -> std::result::Result<Result<()>, Stop> {
    let arguments = Arguments::try_parse_from(args)?;
    if arguments.keys < 1000 {
        return Ok(Err(Error::invalid("--keys is at least 1000")));
    }
    Ok(run(&arguments, args))
}

fn known() -> Vec<(&'static str, &'static str)> {
    let mut known: Vec<_> = FIGURES.iter().map(|(name, what, _)| (*name, *what)).collect();
    known.push(TWITTER);
    known.sort_unstable();
    known
}

fn run(arguments: &Arguments, args: &[OsString]) -> Result<()> {
    let known = known();
    if arguments.figures.iter().any(|name| name == "list") {
        known.iter().for_each(|(name, what)| say(&format!("{name:8} {what}")));
        return Ok(());
    }
    if let Some(name) = arguments.figures.iter().find(|name| known.iter().all(|(k, _)| k != name)) {
        return Err(Error::invalid(format!(
            "there is no figure {name}: `archipelago-lab flexkv list` prints the names"
        )));
    }
    let setup = setup(arguments);
    say(&about(&setup));
    let mut sections = Vec::new();
    for (name, _) in known {
        if !arguments.figures.is_empty() && !arguments.figures.iter().any(|wanted| wanted == name) {
            continue;
        }
        let clock = SystemClock::new();
        let began_ns = clock.now_ns();
        let going = ProgressBar::new_spinner().with_message(format!("{name} (minutes)"));
        going.set_style(ProgressStyle::with_template("{spinner} {msg} {elapsed}").map_err(styled)?);
        going.enable_steady_tick(Duration::from_millis(200));
        let figure = match FIGURES.iter().find(|(figure, ..)| *figure == name) {
            Some((_, _, make)) => make(&setup)?,
            None => clusters(&setup)?,
        };
        going.finish_and_clear();
        let seconds = (clock.now_ns() - began_ns) as f64 / 1e9;
        let section = section(&figure);
        say(&section.text(Style::markdown_if(arguments.markdown)));
        say(&format!("\n{name} took {seconds:.0} s\n"));
        sections.push(section);
        if let Some(dir) = &arguments.svg {
            draw(&figure, dir, name)?;
        }
    }
    match &arguments.page {
        Some(path) => {
            let page = Page::new("FlexKV on its testbed, in virtual time", "flexkv", args);
            page.about(&about(&setup)).sections(sections).write(path)
        }
        None => Ok(()),
    }
}

fn styled(error: impl std::fmt::Display) -> Error {
    Error::invalid(format!("a progress line: {error}"))
}

fn setup(arguments: &Arguments) -> Setup {
    let default = Setup::default();
    let share = arguments.keys as f64 / default.keys as f64;
    // Partitions are as full as with the default.
    let bits = f64::from(default.partition_bits) + share.log2().round();
    Setup {
        keys: arguments.keys,
        memory_bytes: (default.memory_bytes as f64 * share) as u64,
        partition_bits: bits.clamp(5.0, 13.0) as u32,
        seed: arguments.seed,
        ..default
    }
}

fn about(setup: &Setup) -> String {
    format!(
        "{} compute nodes with {} clients of {} requests each and {} threads of a proxy, {} memory nodes, {} copies. Cards, wires and threads: the model \
         of decision 0012, unscaled. Smaller than the paper's testbed: {} keys (10,000,000), {} KiB of memory a compute node (64 MB; both are 5 % of keys \
         and values), 2^{} partitions (2^13), seed {}. A write that meets another write of its key ends immediately, in every system.\n",
        setup.compute,
        setup.clients,
        setup.coroutines,
        setup.proxy_threads,
        setup.memory,
        setup.copies,
        setup.keys,
        setup.memory_bytes >> 10,
        setup.partition_bits,
        setup.seed,
    )
}

/// Largest number of columns of a table of lines.
const COLUMNS_MAX: usize = 12;

fn section(figure: &Figure) -> Section {
    let mut xs: Vec<f64> =
        figure.lines.iter().flat_map(|(_, points)| points.iter().map(|point| point.0)).collect();
    xs.sort_unstable_by(f64::total_cmp);
    xs.dedup();
    let mut grids = Vec::new();
    if xs.len() <= COLUMNS_MAX {
        let place = |x: &f64| figure.places.get(*x as usize).cloned().unwrap_or(format!("{x}"));
        let first = format!("{} by {}", figure.y, figure.x);
        let mut values = Grid::new(std::iter::once(first).chain(xs.iter().map(place)));
        for (name, points) in &figure.lines {
            let value = |x: &f64| {
                let point = points.iter().find(|point| point.0 == *x);
                point.map_or(String::new(), |point| format!("{:.2}", point.1))
            };
            values.push(std::iter::once(name.clone()).chain(xs.iter().map(value)));
        }
        grids.push(values);
    }
    grids.extend(figure.tables.iter().cloned());
    let stated = figure.stated.iter().map(|stated| {
        let target = stated.at_least.map(Target::AtLeast);
        Row {
            name: stated.what.clone(),
            decimals: 2,
            measured: Some(stated.here),
            paper: stated.paper.clone(),
            target: target.map(RowTarget::Measured),
            verdict: Verdict::of(target.map(|target| target.is_met(stated.here))),
            ..Row::default()
        }
    });
    Section {
        title: figure.title.clone(),
        rows: stated.collect(),
        grids,
        notes: figure.notes.clone(),
    }
}

fn draw(figure: &Figure, dir: &Path, name: &str) -> Result<()> {
    let svg = if figure.places.is_empty() {
        let chart = Chart::new(&figure.title, &figure.x, &figure.y);
        figure.lines.iter().fold(chart, |chart, (name, points)| chart.line(name, points)).svg()
    } else {
        let places: Vec<&str> = figure.places.iter().map(String::as_str).collect();
        let bars = Bars::new(&figure.title, &figure.y, &places);
        let series = |bars: Bars, (name, points): &(String, Vec<(f64, f64)>)| {
            let at = |place| points.iter().find(|p| p.0 as usize == place).map(|p| p.1);
            bars.series(name, &(0..places.len()).map(at).collect::<Vec<_>>())
        };
        figure.lines.iter().fold(bars, series).svg()
    };
    page::write(&dir.join(format!("flex-{name}.svg")), &svg)
}

/// Requests like those of one of Twitter's clusters.
#[derive(Debug)]
struct Synthesised(twitter::Stream);

impl Workload for Synthesised {
    fn next(&self, rng: &mut Rng) -> Request {
        match self.0.next(rng) {
            twitter::Request::Read(key) => Request::Read(key),
            twitter::Request::Write(key) => Request::Write(key),
            twitter::Request::Delete(key) => Request::Delete(key),
        }
    }
}

/// Number of keys of a cluster. It is small because each cluster needs a testbed per system.
const CLUSTER_KEYS: u64 = 4000;

fn clusters(setup: &Setup) -> Result<Figure> {
    let jobs: Vec<Cluster> = twitter::clusters();
    let rates = testbed::side_by_side(&jobs, |cluster| {
        let bytes = (cluster.key_bytes.max(8) + cluster.value_bytes) as u64;
        let setup = Setup {
            keys: CLUSTER_KEYS,
            key_bytes: cluster.key_bytes.max(8),
            value_bytes: cluster.value_bytes,
            // 5 % of keys and values, and the size of an empty cache.
            memory_bytes: CLUSTER_KEYS * bytes / 20 + (64 << 10),
            partition_bits: 5,
            // The usual 2 ms are enough only if a card carries thousands of records per
            // millisecond.
            stretch: 1 + (bytes / 2048) as u32,
            ..setup.clone()
        };
        let load: Arc<dyn Workload> =
            Arc::new(Synthesised(twitter::Stream::new(cluster, CLUSTER_KEYS)));
        let per_s = |system| -> Result<f64> {
            Ok(Measured::per_s(&testbed::compare(system, &setup, &load)?) / 1e6)
        };
        Ok([per_s(System::FlexKv)?, per_s(System::Base)?])
    })?;
    let mut found: Vec<(Cluster, [f64; 2])> = jobs.into_iter().zip(rates).collect();
    found.sort_by(|a, b| b.1[0].total_cmp(&a.1[0]));
    let mut figure = Figure {
        title: "Twitter's clusters (Figure 15)".to_owned(),
        x: "cluster, by this store's throughput".to_owned(),
        y: "Mops/s".to_owned(),
        ..Figure::default()
    };
    for (nth, system) in [System::FlexKv, System::Base].into_iter().enumerate() {
        let points = found.iter().enumerate().map(|(at, (_, rates))| (at as f64 + 1.0, rates[nth]));
        figure.lines.push((system.name().to_owned(), points.collect()));
    }
    let ratio = |rates: &[f64; 2]| rates[0] / rates[1];
    let ratios = found.iter().map(|(_, rates)| ratio(rates));
    let (least, most) = ratios.fold((f64::MAX, 0.0_f64), |(a, b), r| (a.min(r), b.max(r)));
    let state = |what: &str, paper: &str, here| Stated {
        what: what.to_owned(),
        paper: paper.to_owned(),
        here,
        at_least: None,
    };
    figure.stated.push(state("least over base", "1.03 over the best rival", least));
    figure.stated.push(state("most over base", "2.94 over the best rival", most));
    let order = found.iter().map(|(cluster, rates)| {
        format!("{} {:.2} ({:.2})", cluster.number, rates[0], ratio(rates))
    });
    let order = order.collect::<Vec<_>>().join(", ");
    figure.notes.push(format!("cluster, Mops/s, over base: {order}"));
    figure.notes.push(format!(
        "53 of 54 clusters, as the source has no sizes of cluster 5; {CLUSTER_KEYS} keys each; clusters without a fitted skew (43, 46) as uniform"
    ));
    Ok(figure)
}
