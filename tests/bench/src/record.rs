//! Machine-readable figures: the format of `--json FILE`, and the input of the curves.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use anyhow::Context;
use serde::{Deserialize, Serialize};

use super::figures::Figure;
use super::taken::RunDescription;

/// A point of a curve. Points with the same section, subject and units make one chart, in which each line is a curve.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// The section that measured it.
    pub section: String,
    /// `subject: line`, as in `first packet: ours`; each subject has its own chart.
    pub series: String,
    pub x: f64,
    pub x_unit: String,
    /// The median of the runs.
    pub y: f64,
    pub y_unit: String,
    pub least: f64,
    pub most: f64,
    /// The upper limit of `y` at this `x`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub bar: Option<f64>,
    /// When and on what it was measured; `None` for records that are not saved.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub taken: Option<RunDescription>,
}

impl Record {
    /// The figure of a line of a subject, at one point: a number and its unit.
    pub(super) fn new(
        section: &str,
        (subject, line): (&str, &str),
        (x, x_unit): (f64, &str),
        (figure, y_unit): (&Figure, &str),
    ) -> Record {
        Record {
            section: section.into(),
            series: format!("{subject}: {line}"),
            x,
            x_unit: x_unit.into(),
            y: figure.median(),
            y_unit: y_unit.into(),
            least: figure.least(),
            most: figure.most(),
            bar: None,
            taken: None,
        }
    }

    pub(super) fn below(self, bar: f64) -> Record {
        Record { bar: Some(bar), ..self }
    }
}

/// Results of a section: as a report, and as records.
#[derive(Debug)]
pub struct Measurement {
    pub report: String,
    pub records: Vec<Record>,
}

/// A report without curves.
impl From<String> for Measurement {
    fn from(report: String) -> Measurement {
        Measurement { report, records: Vec::new() }
    }
}

/// Reads the records of a file; empty if the file does not exist.
///
/// # Errors
/// If it cannot be read, or is invalid.
pub(super) fn read(path: &Path) -> anyhow::Result<Vec<Record>> {
    match fs::read(path) {
        Ok(text) => serde_json::from_slice(&text).with_context(|| format!("{} holds no records", path.display())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error).with_context(|| path.display().to_string()),
    }
}

/// Saves the records in the file with this origin. Records of other sections are kept, so that sections can be measured
/// one by one; so are those of the same section at other points, since its sizes can be chosen too.
///
/// # Errors
/// If the file cannot be read or written.
pub(super) fn keep(path: &Path, measured: Vec<Record>, taken: &RunDescription) -> anyhow::Result<()> {
    let place =
        |record: &Record| (record.section.clone(), record.series.clone(), record.x_unit.clone(), record.x.to_bits());
    let measured_places: std::collections::BTreeSet<_> = measured.iter().map(place).collect();
    let mut records = read(path)?;
    records.retain(|record| !measured_places.contains(&place(record)));
    records.extend(measured.into_iter().map(|record| Record { taken: Some(taken.clone()), ..record }));
    records.sort_by(|a, b| (&a.section, &a.series).cmp(&(&b.section, &b.series)).then(a.x.total_cmp(&b.x)));
    let lines: Vec<String> = records.iter().map(serde_json::to_string).collect::<Result<_, _>>()?;
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    }
    fs::write(path, format!("[\n{}\n]\n", lines.join(",\n"))).with_context(|| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_records_replace_same_points_and_keep_others() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("records.json");
        let at = |section: &str, x: f64, y: f64| {
            Record::new(section, ("subject", "line"), (x, "pods"), (&Figure::of([y]), "ms"))
        };
        let taken =
            |date: &str| RunDescription { date: date.into(), commit: "c".into(), machine: "m".into(), load: 0.5 };
        keep(&path, vec![at("events", 1.0, 1.0), at("events", 2.0, 2.0), at("start", 1.0, 3.0)], &taken("a")).unwrap();
        keep(&path, vec![at("events", 2.0, 5.0).below(6.0)], &taken("b")).unwrap();
        let of = |record: Record, date: &str| Record { taken: Some(taken(date)), ..record };
        let (first, last) = (of(at("events", 1.0, 1.0), "a"), of(at("start", 1.0, 3.0), "a"));
        assert_eq!(read(&path).unwrap(), [first, of(at("events", 2.0, 5.0).below(6.0), "b"), last]);
    }
}
