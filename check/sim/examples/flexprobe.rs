//! Figures of the store on its testbed, as text.
use archipelago_sim::flexstore::*;
fn main() {
    for name in std::env::args().skip(1) {
        let Some((_, _, make)) = FIGURES.iter().find(|(known, ..)| *known == name) else {
            continue;
        };
        let figure = make(&Setup::default()).unwrap();
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
    }
}
