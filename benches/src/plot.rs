//! Curves side by side, as SVG. Both axes are logarithmic: windows and sizes go in powers of two,
//! and a ratio between two curves is then the same distance everywhere.

use std::path::Path;

use plotters::prelude::*;
use plotters::style::RGBColor;

use crate::Fault;

const PANEL_PIXELS: (u32, u32) = (440, 420);
const TITLE_PIXELS: u32 = 36;

/// Colours that stay apart for most eyes and in print.
const COLOURS: [RGBColor; 6] = [
    RGBColor(0, 90, 170),
    RGBColor(200, 80, 0),
    RGBColor(0, 130, 80),
    RGBColor(150, 30, 120),
    RGBColor(110, 80, 50),
    RGBColor(60, 60, 60),
];

/// How a curve is drawn; the number picks its colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// A line with a dot at each point: ours.
    Solid(usize),
    /// A thin pale line: a reference.
    Pale(usize),
}

/// One curve.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// In the legend.
    pub name: String,
    /// In ascending order, all above zero.
    pub points: Vec<(f64, f64)>,
    /// How it is drawn.
    pub style: Style,
}

/// Curves with axes in common.
#[derive(Clone, Debug, PartialEq)]
pub struct Panel {
    /// Above it.
    pub title: String,
    /// What the horizontal axis is.
    pub x: String,
    /// What the vertical axis is.
    pub y: String,
    /// The curves.
    pub series: Vec<Series>,
}

/// The smallest and the largest of some values, with room around them.
fn range(values: impl Iterator<Item = f64>) -> std::ops::Range<f64> {
    let (low, high) = values.fold((f64::MAX, f64::MIN), |(low, high), value| {
        (low.min(value), high.max(value))
    });
    if low > high {
        return 1.0..10.0;
    }
    low * 0.8..high * 1.25
}

/// Draws the panels side by side, two in a row, all on the same scale.
///
/// # Errors
/// The file can't be written.
pub fn draw(file: &Path, title: &str, panels: &[Panel]) -> Result<(), Fault> {
    let columns = panels.len().clamp(1, 2);
    let lines = panels.len().div_ceil(columns);
    let pixels = (
        PANEL_PIXELS.0 * u32::try_from(columns)?,
        PANEL_PIXELS.1 * u32::try_from(lines)? + TITLE_PIXELS,
    );
    let root = SVGBackend::new(file, pixels).into_drawing_area();
    root.fill(&WHITE)?;
    let root = root.titled(title, ("sans-serif", 18))?;
    let points = || {
        let series = panels.iter().flat_map(|panel| &panel.series);
        series.flat_map(|series| &series.points)
    };
    let x = range(points().map(|point| point.0));
    let y = range(points().map(|point| point.1));
    for (area, panel) in root.split_evenly((lines, columns)).iter().zip(panels) {
        draw_panel(area, panel, x.clone(), y.clone())?;
    }
    root.present()?;
    Ok(())
}

fn draw_panel(
    area: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>,
    panel: &Panel,
    x: std::ops::Range<f64>,
    y: std::ops::Range<f64>,
) -> Result<(), Fault> {
    let mut chart = ChartBuilder::on(area)
        .caption(&panel.title, ("sans-serif", 15))
        .margin(8)
        .x_label_area_size(36)
        .y_label_area_size(64)
        .build_cartesian_2d(x.log_scale().base(2.0), y.log_scale())?;
    chart
        .configure_mesh()
        .x_desc(&*panel.x)
        .y_desc(&*panel.y)
        .x_label_formatter(&|x| format!("{x:.0}"))
        .y_label_formatter(&|y| crate::report::figure(*y))
        .light_line_style(WHITE.mix(0.0))
        .draw()?;
    for series in &panel.series {
        let (colour, width) = match series.style {
            Style::Solid(number) => (COLOURS[number % COLOURS.len()].mix(1.0), 2),
            Style::Pale(number) => (COLOURS[number % COLOURS.len()].mix(0.4), 1),
        };
        let line = ShapeStyle::from(colour).stroke_width(width);
        chart
            .draw_series(LineSeries::new(series.points.iter().copied(), line))?
            .label(&*series.name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], line));
        if let Style::Solid(_) = series.style {
            let dots = series.points.iter();
            chart.draw_series(dots.map(|point| Circle::new(*point, 2, colour.filled())))?;
        }
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerRight)
        .background_style(WHITE.mix(0.8))
        .label_font(("sans-serif", 11))
        .draw()?;
    Ok(())
}
