//! A strict parser of OpenMetrics text (<https://prometheus.io/docs/specs/om/open_metrics_spec/>), limited to what the
//! agent uses: timestamps and exemplars are refused.

use std::collections::{BTreeMap, BTreeSet};

/// A metric with its samples.
#[derive(Debug, Clone, PartialEq)]
pub struct Family {
    pub name: String,
    pub kind: Kind,
    pub unit: Option<String>,
    pub help: String,
    pub samples: Vec<Sample>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Counter,
    Gauge,
    Histogram,
    Info,
}

impl Kind {
    pub fn as_str(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
            Kind::Info => "info",
        }
    }

    fn of(word: &str) -> Option<Kind> {
        [Kind::Counter, Kind::Gauge, Kind::Histogram, Kind::Info].into_iter().find(|kind| kind.as_str() == word)
    }

    /// Suffixes of sample names after the family's name.
    fn endings(self) -> &'static [&'static str] {
        match self {
            Kind::Counter => &["_total"],
            Kind::Gauge => &[""],
            Kind::Histogram => &["_bucket", "_sum", "_count"],
            Kind::Info => &["_info"],
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub value: f64,
}

/// Reads an exposition.
///
/// # Errors
/// The first violation of the specification, with its line.
pub fn parse(text: &str) -> Result<Vec<Family>, String> {
    let body = text.strip_suffix("# EOF\n").ok_or("it does not end with '# EOF'")?;
    if !body.is_empty() && !body.ends_with('\n') {
        return Err("the last line is not ended".into());
    }
    let mut families: Vec<Family> = Vec::new();
    let mut open: Option<Head> = None;
    for line in body.lines() {
        let wrong = |what: &str| format!("{what}: {line}");
        if let Some(rest) = line.strip_prefix("# ") {
            let mut words = rest.splitn(3, ' ');
            let (Some(keyword), Some(name), Some(rest)) = (words.next(), words.next(), words.next()) else {
                return Err(wrong("metadata has three parts"));
            };
            if !is_name(name) {
                return Err(wrong("no name of a metric"));
            }
            let head = match open.take() {
                Some(head) if head.name == name => open.insert(head),
                other => {
                    families.extend(other.map(Head::family).transpose()?);
                    open.insert(Head { name: name.into(), ..Head::default() })
                }
            };
            if !head.samples.is_empty() {
                return Err(wrong("metadata after samples"));
            }
            let before = match keyword {
                "TYPE" => head.kind.replace(Kind::of(rest).ok_or_else(|| wrong("an unknown type"))?).is_some(),
                "UNIT" => head.unit.replace(rest.into()).is_some(),
                "HELP" => head.help.replace(rest.into()).is_some(),
                _ => return Err(wrong("an unknown keyword")),
            };
            if before {
                return Err(wrong("metadata twice"));
            }
        } else {
            let sample = sample(line).ok_or_else(|| wrong("no sample"))?;
            let head = open.as_mut().ok_or_else(|| wrong("a sample before its metadata"))?;
            head.samples.push(sample);
        }
    }
    families.extend(open.map(Head::family).transpose()?);
    let names: BTreeSet<&str> = families.iter().map(|family| family.name.as_str()).collect();
    if names.len() != families.len() {
        return Err("a metric comes twice".into());
    }
    Ok(families)
}

#[derive(Default)]
struct Head {
    name: String,
    kind: Option<Kind>,
    unit: Option<String>,
    help: Option<String>,
    samples: Vec<Sample>,
}

impl Head {
    fn family(self) -> Result<Family, String> {
        let Head { name, kind, unit, help, samples } = self;
        let kind = kind.ok_or_else(|| format!("{name} has no type"))?;
        let help = help.ok_or_else(|| format!("{name} has no help"))?;
        if unit.as_ref().is_some_and(|unit| !name.ends_with(&format!("_{unit}"))) {
            return Err(format!("{name} does not end with its unit"));
        }
        let mut seen = BTreeSet::new();
        for sample in &samples {
            let ending = sample.name.strip_prefix(&name).unwrap_or(" ");
            if !kind.endings().contains(&ending) {
                return Err(format!("{} is no sample of the {} {name}", sample.name, kind.as_str()));
            }
            if !seen.insert((&sample.name, &sample.labels)) {
                return Err(format!("{} {:?} comes twice", sample.name, sample.labels));
            }
            let is_count = sample.value.is_finite() && sample.value >= 0.0;
            if kind != Kind::Gauge && !is_count {
                return Err(format!("{} is {}", sample.name, sample.value));
            }
            if kind == Kind::Info && sample.value != 1.0 {
                return Err(format!("{} is not 1", sample.name));
            }
        }
        if kind == Kind::Histogram {
            buckets(&name, &samples)?;
        }
        Ok(Family { name, kind, unit, help, samples })
    }
}

/// Bucket counts must be cumulative and end with the total count.
fn buckets(name: &str, samples: &[Sample]) -> Result<(), String> {
    let mut series: BTreeMap<BTreeMap<String, String>, Vec<(f64, f64)>> = BTreeMap::new();
    for sample in samples.iter().filter(|sample| sample.name.ends_with("_bucket")) {
        let mut labels = sample.labels.clone();
        let bound = labels.remove("le").and_then(|le| le.parse().ok()).ok_or_else(|| format!("{name}: no bound"))?;
        series.entry(labels).or_default().push((bound, sample.value));
    }
    for (labels, buckets) in series {
        let count = samples.iter().find(|s| s.name.ends_with("_count") && s.labels == labels).map(|s| s.value);
        let grows = buckets.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1);
        let last = buckets.last().copied();
        if !grows || last.is_none_or(|(bound, value)| bound != f64::INFINITY || Some(value) != count) {
            return Err(format!("{name} {labels:?}: the buckets are not a histogram's"));
        }
    }
    Ok(())
}

fn sample(line: &str) -> Option<Sample> {
    let end = line.find(['{', ' '])?;
    let (name, mut rest) = line.split_at(end);
    let mut labels = BTreeMap::new();
    if let Some(inner) = rest.strip_prefix('{') {
        rest = inner;
        while !rest.starts_with('}') {
            let (label, value) = rest.split_once("=\"")?;
            let (value, after) = quoted(value)?;
            if !is_name(label) || label.contains(':') || labels.insert(label.to_owned(), value).is_some() {
                return None;
            }
            rest = match after.strip_prefix(',') {
                Some(next) if !next.starts_with('}') => next,
                Some(_) => return None,
                None => after,
            };
            if rest.is_empty() {
                return None;
            }
        }
        rest = &rest[1..];
    }
    let value = rest.strip_prefix(' ')?;
    let value = if value == "NaN" || !value.contains(char::is_whitespace) { value.parse().ok()? } else { return None };
    is_name(name).then(|| Sample { name: name.into(), labels, value })
}

/// A string up to its closing quotation mark, and the rest.
fn quoted(text: &str) -> Option<(String, &str)> {
    let (mut value, mut letters) = (String::new(), text.char_indices());
    while let Some((index, letter)) = letters.next() {
        match letter {
            '"' => return Some((value, &text[index + 1..])),
            '\\' => value.push(match letters.next()?.1 {
                'n' => '\n',
                escaped @ ('"' | '\\') => escaped,
                _ => return None,
            }),
            other => value.push(other),
        }
    }
    None
}

fn is_name(text: &str) -> bool {
    let ordinary = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    text.starts_with(|c: char| !c.is_ascii_digit()) && text.chars().all(ordinary)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "# HELP a_seconds Some.\n# TYPE a_seconds gauge\n# UNIT a_seconds seconds\n\
                        a_seconds{x=\"b\\\"c\"} NaN\n# EOF\n";

    #[test]
    fn what_is_right_is_read() {
        let families = parse(GOOD).unwrap();
        assert_eq!((families.len(), families[0].kind, families[0].unit.as_deref()), (1, Kind::Gauge, Some("seconds")));
        assert_eq!(families[0].samples[0].labels, BTreeMap::from([("x".to_owned(), "b\"c".to_owned())]));
        assert!(families[0].samples[0].value.is_nan());
    }

    #[test]
    fn what_is_wrong_is_refused() {
        for (from, to) in [
            ("# EOF\n", ""),
            ("# EOF\n", "\n# EOF\n"),
            ("gauge", "thing"),
            ("gauge", "counter"),
            ("# UNIT a_seconds seconds", "# UNIT a_seconds bytes"),
            ("# TYPE a_seconds gauge\n", ""),
            ("NaN\n", "NaN 17\n"),
            ("NaN\n", "NaN\na_seconds{x=\"b\\\"c\"} 1\n"),
            ("{x=", "{1x="),
            ("\"}", "\",}"),
            ("NaN\n", "NaN\nother 1\n"),
            ("# EOF", "# HELP a_seconds Again.\n# EOF"),
        ] {
            assert!(parse(&GOOD.replacen(from, to, 1)).is_err(), "{from} -> {to}");
        }
        let histogram = "# HELP h x\n# TYPE h histogram\nh_bucket{le=\"1.0\"} 2\nh_bucket{le=\"+Inf\"} 3\nh_count 3\nh_sum 4\n# EOF\n";
        assert!(parse(histogram).is_ok());
        for (from, to) in [("} 2", "} 4"), ("h_count 3", "h_count 2"), ("+Inf", "2.0")] {
            assert!(parse(&histogram.replacen(from, to, 1)).is_err(), "{from} -> {to}");
        }
    }
}
