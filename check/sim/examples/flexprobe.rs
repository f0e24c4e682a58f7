//! One measurement of the store on its testbed.
use archipelago_flex::Rival;
use archipelago_sim::flexstore::*;
use std::sync::Arc;
use std::time::Duration;
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let rival = match args[1].as_str() {
        "base" => Some(Rival::Base),
        "fusee" => Some(Rival::Fusee),
        "clover" => Some(Rival::Clover),
        "op" => Some(Rival::Ownership),
        _ => None,
    };
    let name = args[2].chars().next().unwrap();
    let offload: u32 = args[3].parse().unwrap();
    let keys: u64 = args.get(4).map_or(50_000, |a| a.parse().unwrap());
    let ms: u64 = args.get(5).map_or(10, |a| a.parse().unwrap());
    let clients: usize = args.get(6).map_or(10, |a| a.parse().unwrap());
    let setup = Setup {
        rival,
        offload,
        keys,
        clients,
        partition_bits: 9,
        log2_buckets: 5,
        ..Setup::default()
    };
    let testbed = Testbed::start(&setup).unwrap();
    eprintln!("loaded at {} ms, {} events", testbed.now_ns() / 1_000_000, testbed.events());
    let work = Arc::new(Ycsb::named(name, keys, Ycsb::ALPHA).unwrap());
    let e = testbed.events();
    let m = testbed.measure(work, Duration::from_millis(ms / 2), Duration::from_millis(ms));
    println!(
        "{} {} {}: {:.2} Mops, p50 {:.1} p99 {:.1} us, errors {}, events/op {:.1}",
        args[1],
        name,
        offload,
        m.per_s() / 1e6,
        m.latency_us(0.5),
        m.latency_us(0.99),
        m.errors,
        (testbed.events() - e) as f64 / (m.operations as f64 * 1.5)
    );
}
