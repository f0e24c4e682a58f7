//! `archipelago bench fabric`: measures each provider of the fabric between two processes, next to
//! raw memory and a bare TCP connection in the same run. The column `sim` holds two hosts of the
//! modelled cluster, in virtual time.
//!
//! This process is the client. For each target it starts its own program again with `--target`,
//! reads the address and the key that the target prints, and ends the target by closing its input.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};

use crate::fabric_measure::{self as measure, Effort, Figures, Target};
use archipelago_base::random::entropy_seed;
use archipelago_base::{Error, ErrorKind, Result};
use archipelago_fabric::sim::Model;
use archipelago_fabric::{Provider, Shm, Tcp};
use clap::Parser;
use comfy_table::presets::{ASCII_MARKDOWN, UTF8_FULL_CONDENSED};
use comfy_table::{CellAlignment, Table};

use crate::harness::report::say;

/// Measure the fabric's providers between two processes on this machine.
#[derive(Parser, Debug)]
#[command(name = "archipelago bench fabric", no_binary_name = true)]
struct Arguments {
    /// Number of rounds. All measurements take turns, and the figures are medians over the rounds.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Values that each median of a round is of.
    #[arg(long, default_value_t = Effort::default().samples)]
    samples: usize,
    /// Operations that are timed as one, where they take less than a microsecond.
    #[arg(long, default_value_t = Effort::default().block)]
    block: usize,
    /// Print a Markdown table.
    #[arg(long)]
    markdown: bool,
    /// Provider of libfabric for the column `ofi`, as `fi_info` lists it.
    #[cfg(feature = "ofi")]
    #[arg(long, default_value = "tcp;ofi_rxm", value_name = "NAME")]
    ofi: String,
    /// The address of the interface that `ofi` uses.
    #[cfg(feature = "ofi")]
    #[arg(long, default_value = "127.0.0.1", value_name = "ADDRESS")]
    ofi_address: std::net::IpAddr,
    /// Be the target `shm`, `tcp`, `ofi:PROVIDER` or `echo` (for this program's own use).
    #[arg(long, hide = true, num_args = 2, value_names = ["NAME", "ADDRESS"])]
    target: Option<Vec<String>>,
}

/// Runs with `args`, the words after `fabric`.
pub(crate) fn main(args: &[OsString]) -> std::result::Result<Result<()>, clap::Error> {
    let arguments = Arguments::try_parse_from(args)?;
    if [arguments.rounds, arguments.samples, arguments.block].contains(&0) {
        return Ok(Err(Error::invalid("--rounds, --samples and --block are at least 1")));
    }
    Ok(match arguments.target.as_deref() {
        Some([name, address]) => be_target(name, address),
        _ => run(&arguments),
    })
}

fn provider(name: &str) -> Result<Box<dyn Provider>> {
    match name {
        "shm" => Ok(Box::new(Shm::new())),
        "tcp" => Ok(Box::new(Tcp::new())),
        #[cfg(feature = "ofi")]
        other if other.starts_with("ofi:") => {
            Ok(Box::new(archipelago_fabric::Ofi::over(&other["ofi:".len()..])))
        }
        other => Err(Error::invalid(format!("no provider {other}: there are {PROVIDERS}"))),
    }
}

#[cfg(feature = "ofi")]
const PROVIDERS: &str = "shm, tcp and ofi:NAME";
#[cfg(not(feature = "ofi"))]
const PROVIDERS: &str = "shm and tcp (ofi:NAME when built with the feature `ofi`)";

fn io(doing: &'static str) -> impl Fn(std::io::Error) -> Error {
    move |source| Error::with_source(ErrorKind::Io, doing, source)
}

fn be_target(name: &str, address: &str) -> Result<()> {
    if name == "echo" {
        let listener = TcpListener::bind(address).map_err(io("cannot listen"))?;
        say(&listener.local_addr().map_err(io("cannot listen"))?.to_string());
        return measure::echo(&listener);
    }
    let target = Target::open(&*provider(name)?, address)?;
    let (address, key) = target.invitation();
    let hex: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
    say(&format!("{address} {hex}"));
    // The target runs until the client closes the pipe.
    let mut nothing = Vec::new();
    std::io::stdin().read_to_end(&mut nothing).map_err(io("cannot wait for the client"))?;
    Ok(())
}

/// A target in a process of its own.
struct TargetProcess {
    child: Child,
    input: Option<ChildStdin>,
    said: String,
    is_echo: bool,
}

impl TargetProcess {
    fn start(name: &str, address: &str) -> Result<Self> {
        let program = std::env::current_exe().map_err(io("cannot find this program"))?;
        let mut child = Command::new(program)
            .args(["bench", "fabric", "--target", name, address])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(io("cannot start the target"))?;
        let input = child.stdin.take();
        let mut said = String::new();
        if let Some(output) = child.stdout.take() {
            BufReader::new(output).read_line(&mut said).map_err(io("cannot hear the target"))?;
        }
        let (said, is_echo) = (said.trim().to_owned(), name == "echo");
        let process = Self { child, input, said, is_echo };
        if process.said.is_empty() {
            return Err(Error::new(ErrorKind::Io, format!("the target {name} did not come up")));
        }
        Ok(process)
    }

    fn invitation(&self) -> Result<(String, Vec<u8>)> {
        let wrong = || Error::invalid(format!("the target said {}", self.said));
        let (address, hex) = self.said.rsplit_once(' ').ok_or_else(wrong)?;
        let pairs = hex.as_bytes().chunks(2);
        let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
        let key = pairs.map(byte).collect::<Option<Vec<u8>>>().ok_or_else(wrong)?;
        Ok((address.to_owned(), key))
    }
}

impl Drop for TargetProcess {
    fn drop(&mut self) {
        if let Some(mut input) = self.input.take() {
            let _flushed = input.flush();
        }
        if self.is_echo {
            // The process may still wait for a client that never connected.
            let _killed = self.child.kill();
        }
        // The process ends when its input does. If it ended before, the write fails harmlessly.
        let _reaped = self.child.wait();
    }
}

/// Measurements of one round.
struct Round {
    raw: [f64; 3],
    bare_ns: f64,
    /// Figures of each provider, in the order of [`columns`].
    providers: Vec<Figures>,
}

/// Source of a column's figures.
enum Source {
    /// A target in a process of its own: the provider's name here, and the target's address.
    Processes { name: String, address: String },
    /// Two hosts of a model, in virtual time: the same figures in every round.
    Model(Model),
}

/// A provider, and the heading of its column.
struct Column {
    head: String,
    source: Source,
}

impl Column {
    fn processes(head: &str, name: &str, address: String) -> Self {
        let source = Source::Processes { name: name.to_owned(), address };
        Self { head: head.to_owned(), source }
    }

    fn measure(&self, effort: Effort) -> Result<Figures> {
        match &self.source {
            Source::Processes { name, address } => {
                let target = TargetProcess::start(name, address)?;
                measure::provider(&*provider(name)?, &target.invitation()?, effort)
            }
            Source::Model(model) => measure::simulated(model, SIMULATED),
        }
    }
}

/// Columns of every provider in this build of the program.
#[cfg_attr(not(feature = "ofi"), expect(unused_variables, reason = "only `ofi` has settings"))]
fn columns(arguments: &Arguments) -> Vec<Column> {
    let path: PathBuf =
        std::env::temp_dir().join(format!("archipelago-fabric-{:016x}", entropy_seed()));
    let mut columns = vec![
        Column::processes("shm", "shm", path.display().to_string()),
        Column::processes("tcp (emulated)", "tcp", "127.0.0.1:0".to_owned()),
    ];
    #[cfg(feature = "ofi")]
    columns.push(Column::processes(
        &format!("ofi ({})", arguments.ofi),
        &format!("ofi:{}", arguments.ofi),
        std::net::SocketAddr::new(arguments.ofi_address, 0).to_string(),
    ));
    let source = Source::Model(Model::CONNECTX3);
    columns.push(Column { head: "sim (virtual)".to_owned(), source });
    columns
}

fn round(arguments: &Arguments, effort: Effort) -> Result<Round> {
    let raw = measure::raw_memory(effort)?;
    let bare_ns = {
        let echo = TargetProcess::start("echo", "127.0.0.1:0")?;
        measure::bare_socket(&echo.said, effort)?
    };
    let providers = columns(arguments).into_iter().map(|column| column.measure(effort));
    Ok(Round { raw, bare_ns, providers: providers.collect::<Result<_>>()? })
}

/// Runs all rounds. The measurements take turns, so that other work of the machine affects all
/// providers.
fn run(arguments: &Arguments) -> Result<()> {
    let effort = Effort { samples: arguments.samples, block: arguments.block };
    let rounds = (0..arguments.rounds).map(|_| round(arguments, effort));
    let rounds = rounds.collect::<Result<Vec<Round>>>()?;
    let of = |figure: &dyn Fn(&Round) -> f64| measure::median(rounds.iter().map(figure).collect());
    let raw = [0, 1, 2].map(|at| of(&|round| round.raw[at]));
    let bare_ns = of(&|round| round.bare_ns);
    let columns = columns(arguments);
    let figures: Vec<Figures> = (0..columns.len())
        .map(|at| Figures::median(&rounds.iter().map(|r| r.providers[at]).collect::<Vec<_>>()))
        .collect();
    let heads: Vec<&str> = columns.iter().map(|column| column.head.as_str()).collect();
    say(&text(raw, bare_ns, &heads, &figures, arguments.markdown));
    let ratio = of(&|round| round.providers[TCP_COLUMN].read_small_ns / round.bare_ns);
    say(&format!(
        "A READ of 128 B over tcp takes {ratio:.2} of the bare socket's echo of 128 B (median of the rounds' \
         ratios). One-sided operations of tcp are executed by a thread at the target. Figures of sim are virtual: \
         what a model of a ConnectX-3 says, not what was measured (decision 0012 in docs/decisions)."
    ));
    if cfg!(not(feature = "ofi")) {
        say("Built without the feature `ofi`: no figures over libfabric.");
    }
    Ok(())
}

/// Index of `tcp` in [`columns`].
const TCP_COLUMN: usize = 1;

/// Effort in virtual time, in which every sample is as good as any other.
const SIMULATED: Effort = Effort { samples: 101, block: 1 };

/// Times of two hosts of the modelled cluster, in virtual time, as a table. Every time of the model
/// is multiplied by `scale`.
pub fn simulated_table(scale: u64, markdown: bool) -> Result<String> {
    let two = measure::simulated(&Model::CONNECTX3.scaled(scale), SIMULATED)?;
    let mut table = new_table(markdown, &["two hosts, virtual time", "sim"]);
    for (what, of) in ROWS {
        table.add_row([(*what).to_owned(), of(&two)]);
    }
    Ok(align(table, 1))
}

fn new_table(markdown: bool, header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_preset(if markdown { ASCII_MARKDOWN } else { UTF8_FULL_CONDENSED });
    table.set_header(header);
    table
}

/// The table as text, with the columns from `first` on aligned to the right.
fn align(mut table: Table, first: usize) -> String {
    for column in first..table.column_count() {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.to_string()
}

fn micros(ns: f64) -> String {
    format!("{:.3} µs", ns / 1000.0)
}

fn large(ns: f64) -> String {
    format!("{:.2} µs, {:.1} GB/s", ns / 1000.0, measure::LARGE_BYTES as f64 / ns)
}

fn rate(per_s: f64) -> String {
    format!("{per_s:.0}/s")
}

/// A row's figure of a provider.
type Cell = fn(&Figures) -> String;

const ROWS: &[(&str, Cell)] = &[
    ("READ 128 B", |f| micros(f.read_small_ns)),
    ("READ 64 KiB", |f| large(f.read_large_ns)),
    ("WRITE 128 B", |f| micros(f.write_small_ns)),
    ("CAS", |f| micros(f.swap_ns)),
    ("request/response 128 B", |f| micros(f.request_ns)),
    ("READ 128 B, depth 1", |f| rate(f.reads_depth_1_per_s)),
    ("READ 128 B, depth 16", |f| {
        let times = f.reads_depth_16_per_s / f.reads_depth_1_per_s;
        format!("{} ({times:.1}×)", rate(f.reads_depth_16_per_s))
    }),
    ("READ 128 B, batches of 16", |f| rate(f.reads_batched_per_s)),
    ("packets per 1,000 READs", |f| format!("{:.1}", f.packets_single)),
    ("the same, batches of 16", |f| format!("{:.1}", f.packets_batched)),
];

fn text(
    raw: [f64; 3],
    bare_ns: f64,
    heads: &[&str],
    figures: &[Figures],
    markdown: bool,
) -> String {
    let mut header = vec!["median", "raw memory", "bare socket"];
    header.extend(heads);
    let mut table = new_table(markdown, &header);
    for (what, of) in ROWS {
        let (of_memory, of_socket) = match *what {
            "READ 128 B" => (micros(raw[0]), micros(bare_ns)),
            "READ 64 KiB" => (large(raw[1]), String::new()),
            "CAS" => (micros(raw[2]), String::new()),
            "request/response 128 B" => (String::new(), micros(bare_ns)),
            "READ 128 B, depth 1" => (String::new(), rate(1e9 / bare_ns)),
            _ => (String::new(), String::new()),
        };
        let mut row = vec![(*what).to_owned(), of_memory, of_socket];
        row.extend(figures.iter().map(of));
        table.add_row(row);
    }
    align(table, 1)
}
