//! Line charts as SVG text: axes with round ticks, a grid, a legend, straight and stepped lines.
//!
//! A chart is made for few lines, which must differ in print as well. The colours differ in
//! lightness for readers who do not see the hues, and lines after the first few are dashed. Values
//! that are not finite are left out. Both axes start at zero, so that heights can be compared; with
//! [`Chart::x_doubling`] the x axis doubles instead from tick to tick.

mod bars;

use std::fmt::Write as _;

pub(crate) use bars::Bars;

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 470.0;
const LEFT: f64 = 76.0;
const RIGHT: f64 = 24.0;
const BOTTOM: f64 = 60.0;
const TITLE_Y: f64 = 28.0;
const LEGEND_Y: f64 = 52.0;
const LEGEND_ROW: f64 = 20.0;
/// Approximate width of a letter of the legend, and the width that a name takes in addition to its
/// letters.
const LETTER: f64 = 6.9;
const LEGEND_GAP: f64 = 52.0;
/// Colours of Okabe and Ito, which colour-blind readers can distinguish.
const COLOURS: [&str; 7] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#333333"];
/// Largest number of points for which a line gets a dot at each point.
const DOTS_MAX: usize = 24;

#[derive(Clone, Debug)]
struct Series {
    name: String,
    points: Vec<(f64, f64)>,
    stepped: bool,
}

/// A chart that is being built.
#[derive(Clone, Debug)]
pub(crate) struct Chart {
    title: String,
    x_label: String,
    y_label: String,
    series: Vec<Series>,
    x_doubling: bool,
}

/// Range of an axis.
#[derive(Clone, Copy, Debug)]
struct Axis {
    doubling: bool,
    low: f64,
    high: f64,
    step: f64,
    from: f64,
    to: f64,
}

impl Axis {
    /// An axis from zero over `highest`, drawn from the coordinate `from` to `to`.
    fn linear(highest: f64, from: f64, to: f64) -> Self {
        let step = round_step(highest / 6.0);
        let high = (highest / step).ceil().max(1.0) * step;
        Self { doubling: false, low: 0.0, high, step, from, to }
    }

    /// An axis of powers of two that hold `lowest` and `highest`.
    fn doubling(lowest: f64, highest: f64, from: f64, to: f64) -> Self {
        let low = lowest.max(f64::MIN_POSITIVE).log2().floor();
        let high = highest.max(f64::MIN_POSITIVE).log2().ceil().max(low + 1.0);
        Self { doubling: true, low, high, step: 1.0, from, to }
    }

    fn place(&self, value: f64) -> f64 {
        let value = if self.doubling { value.max(f64::MIN_POSITIVE).log2() } else { value };
        self.from + (value - self.low) / (self.high - self.low) * (self.to - self.from)
    }

    /// Values that have a tick.
    fn ticks(&self) -> Vec<f64> {
        let count = ((self.high - self.low) / self.step).round() as usize;
        let at = (0..=count).map(|tick| self.low + tick as f64 * self.step);
        if self.doubling { at.map(f64::exp2).collect() } else { at.collect() }
    }
}

/// The first of 1, 2, 5, 10, 20, … (or 0.5, 0.2, …) that is not below `least`.
fn round_step(least: f64) -> f64 {
    if !(least.is_finite() && least > 0.0) {
        return 1.0;
    }
    let scale = 10f64.powf(least.log10().floor());
    let factor = [1.0, 2.0, 5.0].into_iter().find(|factor| factor * scale >= least * 0.999_999);
    factor.unwrap_or(10.0) * scale
}

/// A line and a number at each tick of the upright axis.
fn lines_across(out: &mut String, y: Axis) {
    for tick in y.ticks() {
        let at = y.place(tick);
        let _ = writeln!(
            out,
            "<path d=\"M{LEFT} {at:.1}H{right}\" stroke=\"#dddddd\"/><text x=\"{text_x}\" \
             y=\"{text_y:.1}\" text-anchor=\"end\" fill=\"#333333\">{}</text>",
            number(tick),
            right = WIDTH - RIGHT,
            text_x = LEFT - 8.0,
            text_y = at + 4.5,
        );
    }
}

/// Number as text, such as "0", "0.25", "1500", "150k" or "2M".
fn number(value: f64) -> String {
    let (scaled, unit) = match value.abs() {
        size if size >= 1e6 => (value / 1e6, "M"),
        size if size >= 1e4 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let text = format!("{scaled:.3}");
    format!("{}{unit}", text.trim_end_matches('0').trim_end_matches('.'))
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

impl Chart {
    /// A chart without lines.
    pub(crate) fn new(title: &str, x_label: &str, y_label: &str) -> Self {
        let [title, x_label, y_label] = [title, x_label, y_label].map(str::to_owned);
        Self { title, x_label, y_label, series: Vec::new(), x_doubling: false }
    }

    /// Adds a line through `points`, (x, y), in order of x.
    pub(crate) fn line(self, name: &str, points: &[(f64, f64)]) -> Self {
        self.with(name, points, false)
    }

    /// Adds a line that keeps each value until the next point.
    pub(crate) fn step(self, name: &str, points: &[(f64, f64)]) -> Self {
        self.with(name, points, true)
    }

    /// Makes the x axis double from tick to tick; x must be above zero.
    pub(crate) fn x_doubling(self) -> Self {
        Self { x_doubling: true, ..self }
    }

    fn with(mut self, name: &str, points: &[(f64, f64)], stepped: bool) -> Self {
        let finite = |&(x, y): &(f64, f64)| x.is_finite() && y.is_finite();
        let points = points.iter().copied().filter(finite).collect();
        self.series.push(Series { name: name.to_owned(), points, stepped });
        self
    }

    /// The chart as SVG.
    pub(crate) fn svg(&self) -> String {
        let (legend, rows) = self.legend();
        let top = LEGEND_Y + LEGEND_ROW * rows as f64;
        let (x, y) = self.axes(top);
        let mut out = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
             width=\"{WIDTH}\" height=\"{HEIGHT}\" font-family=\"sans-serif\" font-size=\"13\">\n\
             <title>{title}</title>\n\
             <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n\
             <text x=\"{LEFT}\" y=\"{TITLE_Y}\" font-size=\"17\" fill=\"#111111\">{title}</text>\n",
            title = escaped(&self.title),
        );
        out += &legend;
        self.grid(&mut out, x, y, top);
        for (at, series) in self.series.iter().enumerate() {
            curve(&mut out, series, at, x, y);
        }
        out + "</svg>\n"
    }

    fn axes(&self, top: f64) -> (Axis, Axis) {
        let points = || self.series.iter().flat_map(|series| &series.points);
        let highest = |values: &mut dyn Iterator<Item = f64>| values.fold(0.0, f64::max);
        let (x_max, y_max) =
            (highest(&mut points().map(|p| p.0)), highest(&mut points().map(|p| p.1)));
        let (from, to) = (LEFT, WIDTH - RIGHT);
        let x = if self.x_doubling {
            let lowest = points().map(|p| p.0).fold(f64::INFINITY, f64::min);
            Axis::doubling(if lowest.is_finite() { lowest } else { 1.0 }, x_max, from, to)
        } else {
            Axis::linear(x_max, from, to)
        };
        (x, Axis::linear(y_max, HEIGHT - BOTTOM, top))
    }

    /// The names with their line samples, and the number of rows that they take.
    fn legend(&self) -> (String, usize) {
        let (mut out, mut x, mut row) = (String::new(), LEFT, 0);
        for (at, series) in self.series.iter().enumerate() {
            let width = series.name.chars().count() as f64 * LETTER + LEGEND_GAP;
            if x + width > WIDTH && x > LEFT {
                (x, row) = (LEFT, row + 1);
            }
            let y = LEGEND_Y + LEGEND_ROW * row as f64;
            let _ = writeln!(
                out,
                "<path d=\"M{x:.1} {line_y:.1}h24\" {}/><text x=\"{text_x:.1}\" y=\"{y:.1}\" \
                 fill=\"#111111\">{}</text>",
                stroke(at),
                escaped(&series.name),
                line_y = y - 4.5,
                text_x = x + 30.0,
            );
            x += width;
        }
        (out, if self.series.is_empty() { 0 } else { row + 1 })
    }

    fn grid(&self, out: &mut String, x: Axis, y: Axis, top: f64) {
        lines_across(out, y);
        let bottom = HEIGHT - BOTTOM;
        for tick in x.ticks() {
            let at = x.place(tick);
            let _ = writeln!(
                out,
                "<path d=\"M{at:.1} {bottom}v5\" stroke=\"#333333\"/><text x=\"{at:.1}\" \
                 y=\"{text_y}\" text-anchor=\"middle\" fill=\"#333333\">{}</text>",
                number(tick),
                text_y = bottom + 20.0,
            );
        }
        let (middle_x, middle_y) = (f64::midpoint(x.from, x.to), f64::midpoint(top, bottom));
        let _ = writeln!(
            out,
            "<path d=\"M{LEFT} {top:.1}V{bottom}H{right}\" stroke=\"#333333\" fill=\"none\"/>\n\
             <text x=\"{middle_x:.1}\" y=\"{label_y}\" text-anchor=\"middle\" \
             fill=\"#111111\">{}</text>\n\
             <text transform=\"translate(20 {middle_y:.1}) rotate(-90)\" text-anchor=\"middle\" \
             fill=\"#111111\">{}</text>",
            escaped(&self.x_label),
            escaped(&self.y_label),
            right = WIDTH - RIGHT,
            label_y = HEIGHT - 16.0,
        );
    }
}

fn stroke(at: usize) -> String {
    let dashes = match at / 3 {
        0 => "",
        1 => " stroke-dasharray=\"8 4\"",
        _ => " stroke-dasharray=\"2 4\"",
    };
    format!("stroke=\"{}\" stroke-width=\"2\" fill=\"none\"{dashes}", COLOURS[at % COLOURS.len()])
}

fn curve(out: &mut String, series: &Series, at: usize, x: Axis, y: Axis) {
    let mut path = String::new();
    for (index, &(value_x, value_y)) in series.points.iter().enumerate() {
        let (to_x, to_y) = (x.place(value_x), y.place(value_y));
        let _ = match (index, series.stepped) {
            (0, _) => write!(path, "M{to_x:.1} {to_y:.1}"),
            (_, true) => write!(path, "H{to_x:.1}V{to_y:.1}"),
            (_, false) => write!(path, "L{to_x:.1} {to_y:.1}"),
        };
    }
    if path.is_empty() {
        return;
    }
    let _ = writeln!(out, "<path d=\"{path}\" stroke-linejoin=\"round\" {}/>", stroke(at));
    if series.points.len() <= DOTS_MAX && !series.stepped {
        for &(value_x, value_y) in &series.points {
            let (cx, cy) = (x.place(value_x), y.place(value_y));
            let fill = COLOURS[at % COLOURS.len()];
            let _ =
                writeln!(out, "<circle cx=\"{cx:.1}\" cy=\"{cy:.1}\" r=\"3.5\" fill=\"{fill}\"/>");
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Names of the elements of `svg`, after a check that each is closed where it should be.
    pub(crate) fn elements(svg: &str) -> Vec<String> {
        let (mut open, mut seen) = (Vec::new(), Vec::new());
        for piece in svg.split('<').skip(1) {
            let (tag, text) = piece.split_once('>').expect("a tag ends");
            assert!(!text.contains('>'), "text is escaped: {text}");
            assert!(tag.matches('"').count().is_multiple_of(2), "quotes are closed: {tag}");
            let name = tag.trim_matches('/').split_whitespace().next().expect("a name").to_owned();
            if tag.starts_with('/') {
                assert_eq!(open.pop().as_ref(), Some(&name), "closed in order");
            } else {
                seen.push(name.clone());
                if !tag.ends_with('/') {
                    open.push(name);
                }
            }
        }
        assert!(open.is_empty(), "{open:?} are not closed");
        seen
    }

    #[test]
    fn a_chart_is_well_formed_and_has_every_line() {
        let svg = Chart::new("a < b & \"c\"", "time, s", "files")
            .line("classic", &[(0.0, 1.0), (10.0, 36.0), (12.0, f64::NAN)])
            .step("buckets", &[(0.0, 0.0), (5.0, 4.0), (10.0, 2.0)])
            .line("without points", &[])
            .svg();
        let names = elements(&svg);
        assert_eq!(names.iter().filter(|name| *name == "circle").count(), 2, "NaN is left out");
        assert!(svg.contains("a &lt; b &amp; &quot;c&quot;"));
        for name in ["classic", "buckets", "without points", "time, s", "files"] {
            assert!(svg.contains(&format!(">{name}</text>")), "{name}");
        }
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        elements(&Chart::new("nothing", "", "").svg());
    }

    #[test]
    fn everything_is_drawn_inside_the_picture() {
        let points: Vec<(f64, f64)> = (0..50).map(|i| (f64::from(i), f64::from(i * i))).collect();
        let svg = Chart::new("t", "x", "y").line("a", &points).svg();
        let path = svg.split("<path d=\"M").map(|piece| piece.split('"').next().unwrap_or(""));
        let curve = path.filter(|d| d.matches('L').count() == 49).collect::<Vec<_>>();
        assert_eq!(curve.len(), 1);
        for pair in curve[0].split('L') {
            let (x, y) = pair.split_once(' ').expect("two coordinates");
            let (x, y): (f64, f64) = (x.parse().unwrap(), y.parse().unwrap());
            assert!((LEFT..=WIDTH - RIGHT).contains(&x) && (0.0..=HEIGHT - BOTTOM).contains(&y));
        }
    }

    #[test]
    fn ticks_are_round_and_hold_the_values() {
        for (highest, wanted) in [(36.0, 40.0), (8.0, 8.0), (0.7, 0.8), (123_456.0, 150_000.0)] {
            let axis = Axis::linear(highest, 0.0, 100.0);
            assert!((axis.high - wanted).abs() < 1e-9, "{highest}: {axis:?}");
            assert!((3..=9).contains(&axis.ticks().len()), "{highest}: {:?}", axis.ticks());
        }
        let axis = Axis::doubling(1.0, 64.0, 0.0, 100.0);
        assert_eq!(axis.ticks(), [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0]);
        assert_eq!((axis.place(1.0), axis.place(8.0), axis.place(64.0)), (0.0, 50.0, 100.0));
        let labels = [0.0, 0.25, 1500.0, 20_000.0, 2_500_000.0].map(number);
        assert_eq!(labels, ["0", "0.25", "1500", "20k", "2.5M"]);
    }

    #[test]
    fn a_long_legend_takes_more_rows() {
        let mut chart = Chart::new("t", "x", "y");
        for at in 0..12 {
            chart = chart.line(&format!("a mode with a long name {at}"), &[(0.0, 1.0), (1.0, 2.0)]);
        }
        let (_, rows) = chart.legend();
        assert!(rows >= 3, "{rows}");
        elements(&chart.svg());
    }
}
