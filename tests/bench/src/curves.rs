//! Draws the records of `--json` as curves: a chart for each subject, as SVG and as PNG.

mod chart;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;

use super::record::{self, Record};
use chart::Chart;

/// Draws every chart of the file into the folder; returns the paths of the SVG files.
///
/// # Errors
/// If the file cannot be read, the folder cannot be written, or there is no `rsvg-convert`.
pub fn draw(records: &Path, folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let drawn = draw_svg(records, folder)?;
    anyhow::ensure!(!drawn.is_empty(), "{} holds no figures; run 'make bench' first", records.display());
    for svg in &drawn {
        let mut convert = Command::new("rsvg-convert");
        convert.args(["--zoom", "2", "--output"]).arg(svg.with_extension("png")).arg(svg);
        let status = convert.status().context("rsvg-convert makes the PNG files; 'apt-get install librsvg2-bin'")?;
        anyhow::ensure!(status.success(), "rsvg-convert {}: {status}", svg.display());
    }
    Ok(drawn)
}

/// As [`draw`], without PNG.
///
/// # Errors
/// As [`draw`].
pub fn draw_svg(records: &Path, folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let records = record::read(records)?;
    std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    let mut drawn = Vec::new();
    for (name, chart) in charts(&records) {
        let path = folder.join(name).with_extension("svg");
        chart.draw(&path).with_context(|| path.display().to_string())?;
        drawn.push(path);
    }
    Ok(drawn)
}

/// The charts by file name.
fn charts(records: &[Record]) -> BTreeMap<String, Chart> {
    let mut charts: BTreeMap<String, Chart> = BTreeMap::new();
    for record in records {
        let (subject, line) = record.series.split_once(": ").unwrap_or((&record.series, &record.series));
        let name = file_name(&format!("{} {subject} by {} in {}", record.section, record.x_unit, record.y_unit));
        let chart = charts.entry(name).or_insert_with(|| Chart {
            title: format!("{}: {subject}", record.section),
            x_unit: record.x_unit.clone(),
            y_unit: record.y_unit.clone(),
            lines: BTreeMap::new(),
        });
        chart.lines.entry(line.to_owned()).or_default().push(record.clone());
    }
    for line in charts.values_mut().flat_map(|chart| chart.lines.values_mut()) {
        line.sort_by(|a, b| a.x.total_cmp(&b.x));
    }
    charts
}

/// Words joined with hyphens.
fn file_name(text: &str) -> String {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    words.map(str::to_lowercase).collect::<Vec<_>>().join("-")
}
