use archipelago_sim::flexstore::*;
use std::sync::Arc;
fn main() {
    let setup = Setup::default();
    for name in std::env::args().skip(1) {
        if let Some((_, _, make)) = FIGURES.iter().find(|(known, ..)| *known == name) {
            let figure = make(&setup).unwrap();
            println!("# {}", figure.title);
            for (name, points) in &figure.lines {
                let points: Vec<String> =
                    points.iter().map(|(x, y)| format!("{x:.1}:{y:.2}")).collect();
                println!("{name:28} {}", points.join(" "));
            }
            for stated in &figure.stated {
                println!("{:50} {:>14} {:.2}", stated.what, stated.paper, stated.here);
            }
            for note in &figure.notes {
                println!("  {note}");
            }
            continue;
        }
        let Some(load) = Ycsb::named(name.chars().next().unwrap(), setup.keys, Ycsb::ALPHA) else {
            continue;
        };
        let load: Arc<dyn Workload> = Arc::new(load);
        for system in System::RIVALS {
            let m = compare(system, &setup, &load).unwrap();
            println!(
                "{name} {:14} {:.2} Mops p50 {:.1} p99 {:.1} met {:.3} missing {} errors {} hits {:?}",
                system.name(),
                m.per_s() / 1e6,
                m.latency_us(0.5),
                m.latency_us(0.99),
                m.met as f64 / m.operations as f64,
                m.missing,
                m.errors,
                m.hits
            );
        }
    }
}
