//! Serial and striped logs over emulated connections, in virtual time. One test compares their
//! times, by the size of the groups, the limit of a connection and the number of nodes. Another
//! test measures a take-over, by the number of open logs.
//!
//! Decision 0073 uses the figures. `cargo test -p archipelago-storage --test it log_forms --
//! --nocapture` prints them.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use archipelago_base::Epoch;
use archipelago_env::{FileClass, FileSystem};
use archipelago_fabric::paced::CardSettings;
use archipelago_store::nodes::logs::LogWriting;
use archipelago_store::nodes::stores::NodeStoresOptions;
use archipelago_store::suite::KeptLayouts;
use archipelago_store::{LayoutKeeper, LogId, NewLog, VolumeId};

use crate::world::{Owner, World};

/// Rate of the emulated card of the client: 25 Gbit/s, 25 times slower.
const CARD_BYTES_PER_S: u64 = 125_000_000;
/// Latency of the emulated card in each direction: half of 80 µs, 25 times longer.
const LATENCY: Duration = Duration::from_micros(1000);
/// Groups that are written one after the other for a figure.
const GROUPS: u64 = 20;

/// One cell of the comparison.
#[derive(Clone, Copy, Debug)]
struct Cell {
    nodes: usize,
    /// Rate of the card, divided by the limit of one connection.
    stream_part: u64,
    group_bytes: u64,
}

impl Cell {
    /// Mean time of a group in nanoseconds, from its submission to its acknowledgement.
    fn group_ns(self, log_writing: LogWriting) -> u64 {
        let mut world = World::founded(self.nodes, 11);
        let card = CardSettings {
            out_bytes_per_s: CARD_BYTES_PER_S,
            stream_bytes_per_s: CARD_BYTES_PER_S / self.stream_part,
            latency: LATENCY,
            ..CardSettings::default()
        };
        let process = world.client("writer");
        let options =
            NodeStoresOptions { card: Some(card), log_writing, ..NodeStoresOptions::default() };
        let stores = process.stores_with(options);
        let kept: Arc<KeptLayouts> = Arc::default();
        let new = NewLog {
            id: LogId([7; 16]),
            volume: VolumeId([7; 16]),
            epoch: Epoch(1),
            class: FileClass::Wal,
            keeper: Arc::clone(&kept) as Arc<dyn LayoutKeeper>,
        };
        let (mut writer, layout) = stores.logs.create(new).unwrap();
        kept.keep(LogId([7; 16]), &layout).unwrap();
        let group = vec![5; self.group_bytes as usize];
        let mut append = || {
            writer.submit(&[&group]).unwrap();
            writer.position().wait(writer.len_bytes()).unwrap();
        };
        // The first one opens the connections.
        append();
        let begun_ns = world.simulation.now_ns();
        (0..GROUPS).for_each(|_| append());
        (world.simulation.now_ns() - begun_ns) / GROUPS
    }

    /// Share of the serial time that the model of the paper lets striping save, in per cent.
    fn model_gain(self) -> f64 {
        let (bytes, card) = (self.group_bytes as f64, CARD_BYTES_PER_S as f64);
        let stream = card / self.stream_part as f64;
        let fixed = 2.0 * LATENCY.as_secs_f64() + 2.0 * bytes / card;
        let segments = (self.group_bytes / (16 << 10)).clamp(1, 4);
        let segments = if self.group_bytes < 64 << 10 { 1.0 } else { segments as f64 };
        let (serial, striped) = (fixed + bytes / stream, fixed + bytes / (segments * stream));
        100.0 * (1.0 - striped / serial)
    }

    /// Share of the serial time that striping saves, in per cent.
    fn gain(self) -> f64 {
        let serial = self.group_ns(LogWriting::Serial) as f64;
        let striped = self.group_ns(LogWriting::Striped) as f64;
        let (gain, model) = (100.0 * (1.0 - striped / serial), self.model_gain());
        let Self { nodes, stream_part, group_bytes } = self;
        println!(
            "{nodes:2} nodes, stream 1/{stream_part}, {:4} KiB: serial {:6.2} ms, striped \
             {:6.2} ms, gain {gain:5.1} %, model {model:5.1} %",
            group_bytes >> 10,
            serial / 1e6,
            striped / 1e6,
        );
        gain
    }
}

#[test]
fn striping_gains_where_a_connection_is_slower_than_the_card() {
    for nodes in [6, 12] {
        for stream_part in [1, 4, 8] {
            for kib in [16, 64, 128, 512] {
                let cell = Cell { nodes, stream_part, group_bytes: kib << 10 };
                let gain = cell.gain();
                match (kib, stream_part) {
                    // A group that is not cut costs its header alone.
                    (16, _) => assert!(gain.abs() < 2.0, "{cell:?}: {gain}"),
                    (512, 4..) => assert!(gain > 10.0, "{cell:?}: {gain}"),
                    _ => {}
                }
            }
        }
    }
}

/// Virtual time of a take-over of a volume with open logs of 100,000 bytes.
fn take_over_ns(open_logs: u64) -> u64 {
    let mut world = World::founded(6, 5);
    let owner = Owner::of_new_volume(&mut world);
    owner.fs.create_dir_all(Path::new("/db")).unwrap();
    let mut logs = Vec::new();
    for number in 0..open_logs {
        let path = Path::new("/db").join(format!("{number}.log"));
        let options = archipelago_env::LogOptions {
            incarnation: Epoch(number + 1),
            size_hint_bytes: 0,
            recycle: None,
        };
        let context = archipelago_env::IoContext::new(
            FileClass::Wal,
            archipelago_env::IoPurpose::ForegroundWrite,
        );
        let mut log = owner.fs.create_log(&path, context, options).unwrap();
        log.append(&[&[number as u8; 100_000]]).unwrap();
        logs.push(log);
    }
    // A kill ends no log.
    logs.into_iter().for_each(std::mem::forget);
    owner.kill();
    let begun_ns = world.simulation.now_ns();
    let next = Owner::take_over(&mut world).unwrap();
    let taken_ns = world.simulation.now_ns() - begun_ns;
    let path = Path::new("/db").join("0.log");
    assert_eq!(next.fs.len(&path).unwrap(), 100_000);
    taken_ns
}

#[test]
fn take_over_recovers_logs_in_parallel() {
    let (one, many) = (take_over_ns(1), take_over_ns(40));
    println!("take-over: {} µs with one log, {} µs with 40", one / 1000, many / 1000);
    assert!(many < 2 * one, "{many} ns with 40 logs, {one} ns with one");
}
