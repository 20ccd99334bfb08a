//! The body of `POST /loki/api/v1/push`: JSON, compressed with gzip.

use std::collections::BTreeMap;
use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use serde::Serialize;

use crate::entry::Entry;

/// Request path.
pub const PATH: &str = "/loki/api/v1/push";

/// Value of the label `service_name`.
pub const SERVICE_NAME: &str = "ringfence-flows";

/// Stream labels that a flag may set.
const RESERVED: [&str; 5] = ["service_name", "cluster", "namespace", "direction", "verdict"];

/// A label of every stream, such as one that selects Loki's retention.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExtraLabel {
    name: String,
    value: String,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidLabel {
    #[error("invalid label '{}': expected NAME=VALUE, with letters, digits and _ in the name", .0.escape_debug())]
    Syntax(String),
    #[error("the label '{0}' has a value already")]
    Reserved(String),
    #[error("the value of the label '{0}' is empty or longer than 256 bytes")]
    Value(String),
}

impl std::str::FromStr for ExtraLabel {
    type Err = InvalidLabel;

    fn from_str(text: &str) -> Result<ExtraLabel, InvalidLabel> {
        let (name, value) = text.split_once('=').ok_or_else(|| InvalidLabel::Syntax(text.to_owned()))?;
        let is_letter = |b: u8| b.is_ascii_alphabetic() || b == b'_';
        let is_name = name.len() <= 128
            && name.bytes().next().is_some_and(is_letter)
            && name.bytes().all(|b| is_letter(b) || b.is_ascii_digit())
            && !name.starts_with("__");
        if !is_name {
            return Err(InvalidLabel::Syntax(text.to_owned()));
        }
        if RESERVED.contains(&name) {
            return Err(InvalidLabel::Reserved(name.to_owned()));
        }
        if value.is_empty() || value.len() > 256 {
            return Err(InvalidLabel::Value(name.to_owned()));
        }
        Ok(ExtraLabel { name: name.to_owned(), value: value.to_owned() })
    }
}

#[derive(Serialize)]
struct Push<'a> {
    streams: Vec<PushStream<'a>>,
}

#[derive(Serialize)]
struct PushStream<'a> {
    stream: BTreeMap<&'a str, &'a str>,
    /// Nanoseconds since 1970, the line, structured metadata.
    values: Vec<(String, &'a str, BTreeMap<&'static str, String>)>,
}

/// Encodes entries sorted by stream and time. Equal entries yield equal bytes.
///
/// # Errors
/// If the entries cannot be encoded as JSON.
pub fn encode(cluster: &str, extra: Option<&ExtraLabel>, entries: &[Entry]) -> std::io::Result<Vec<u8>> {
    let mut push = Push { streams: Vec::new() };
    for run in entries.chunk_by(|a, b| a.stream == b.stream) {
        let stream = &run[0].stream;
        let mut labels = BTreeMap::from([
            ("service_name", SERVICE_NAME),
            ("cluster", cluster),
            ("namespace", &*stream.namespace),
            ("direction", stream.direction.as_str()),
            ("verdict", stream.verdict.as_str()),
        ]);
        labels.extend(extra.map(|ExtraLabel { name, value }| (name.as_str(), value.as_str())));
        let values = run.iter().map(|entry| {
            (entry.time.as_nanosecond().to_string(), entry.line.as_str(), entry.metadata().into_iter().collect())
        });
        push.streams.push(PushStream { stream: labels, values: values.collect() });
    }
    gzip(&serde_json::to_vec(&push)?)
}

/// Compresses without a timestamp, so that equal input yields equal bytes.
pub(crate) fn gzip(text: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(text)?;
    encoder.finish()
}

#[cfg(test)]
mod tests;
