//! Bars in groups, one colour for each series, for figures that have no order on the x axis.

use std::fmt::Write as _;

use super::{
    Axis, BOTTOM, COLOURS, HEIGHT, LEFT, LEGEND_GAP, LEGEND_ROW, LEGEND_Y, LETTER, RIGHT, TITLE_Y,
    WIDTH, escaped, lines_across,
};

/// Fraction of a group's width that its bars take.
const FILLED: f64 = 0.8;

/// A bar chart that is being built.
#[derive(Clone, Debug)]
pub(crate) struct Bars {
    title: String,
    y_label: String,
    groups: Vec<String>,
    series: Vec<(String, Vec<Option<f64>>)>,
}

impl Bars {
    /// A chart of `groups` without bars.
    pub(crate) fn new(title: &str, y_label: &str, groups: &[&str]) -> Self {
        let groups = groups.iter().map(|&name| name.to_owned()).collect();
        Self { title: title.to_owned(), y_label: y_label.to_owned(), groups, series: Vec::new() }
    }

    /// Adds a bar to each group that has a height.
    pub(crate) fn series(mut self, name: &str, heights: &[Option<f64>]) -> Self {
        let finite = |height: &Option<f64>| height.filter(|height| height.is_finite());
        self.series.push((name.to_owned(), heights.iter().map(finite).collect()));
        self
    }

    /// The chart as SVG.
    pub(crate) fn svg(&self) -> String {
        let heights = self.series.iter().flat_map(|(_, heights)| heights).flatten();
        let highest = heights.copied().fold(0.0, f64::max);
        let (bottom, top) = (HEIGHT - BOTTOM, LEGEND_Y + LEGEND_ROW);
        let y = Axis::linear(highest, bottom, top);
        let mut out = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
             width=\"{WIDTH}\" height=\"{HEIGHT}\" font-family=\"sans-serif\" font-size=\"13\">\n\
             <title>{title}</title>\n\
             <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n\
             <text x=\"{LEFT}\" y=\"{TITLE_Y}\" font-size=\"17\" fill=\"#111111\">{title}</text>\n",
            title = escaped(&self.title),
        );
        lines_across(&mut out, y);
        let _ = writeln!(
            out,
            "<text transform=\"translate(20 {middle:.1}) rotate(-90)\" text-anchor=\"middle\" \
             fill=\"#111111\">{}</text>",
            escaped(&self.y_label),
            middle = f64::midpoint(top, bottom),
        );
        self.draw(&mut out, y);
        out + "</svg>\n"
    }

    fn draw(&self, out: &mut String, y: Axis) {
        let each = (WIDTH - RIGHT - LEFT) / self.groups.len().max(1) as f64;
        let width = each * FILLED / self.series.len().max(1) as f64;
        let mut legend_x = LEFT;
        for (at, (name, heights)) in self.series.iter().enumerate() {
            let colour = COLOURS[at % COLOURS.len()];
            let _ = writeln!(
                out,
                "<rect x=\"{legend_x:.1}\" y=\"{y:.1}\" width=\"16\" height=\"10\" \
                 fill=\"{colour}\"/><text x=\"{text_x:.1}\" y=\"{LEGEND_Y}\" \
                 fill=\"#111111\">{}</text>",
                escaped(name),
                y = LEGEND_Y - 10.0,
                text_x = legend_x + 22.0,
            );
            legend_x += name.chars().count() as f64 * LETTER + LEGEND_GAP;
            for (group, height) in heights.iter().enumerate() {
                let Some(height) = height else { continue };
                let x = LEFT + each * (group as f64 + (1.0 - FILLED) / 2.0) + width * at as f64;
                let top = y.place(*height);
                let _ = writeln!(
                    out,
                    "<rect x=\"{x:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{tall:.1}\" \
                     fill=\"{colour}\"/><text x=\"{middle:.1}\" y=\"{text_y:.1}\" \
                     text-anchor=\"middle\" font-size=\"10\" fill=\"#333333\">{height:.2}</text>",
                    tall = HEIGHT - BOTTOM - top,
                    middle = x + width / 2.0,
                    text_y = top - 3.0,
                );
            }
        }
        for (group, name) in self.groups.iter().enumerate() {
            let _ = writeln!(
                out,
                "<text x=\"{x:.1}\" y=\"{text_y}\" text-anchor=\"middle\" \
                 fill=\"#111111\">{}</text>",
                escaped(name),
                x = LEFT + each * (group as f64 + 0.5),
                text_y = HEIGHT - BOTTOM + 20.0,
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plot::tests::elements;

    #[test]
    fn bar_without_a_height_is_not_drawn() {
        let svg = Bars::new("a < b", "times", &["A", "B"])
            .series("one", &[Some(2.0), None])
            .series("two", &[Some(1.0), Some(f64::NAN)])
            .svg();
        let rects = elements(&svg).iter().filter(|name| *name == "rect").count();
        assert_eq!(rects, 1 + 2 + 2, "ground, two legends, two bars");
        assert!(svg.contains("a &lt; b") && svg.contains(">2.00<") && !svg.contains("NaN"));
        elements(&Bars::new("nothing", "", &[]).svg());
    }
}
