//! The manifests, the chart and the image match the code and each other.

// Objects, RBAC rules, flags and metrics.
mod manifests;
// The optional context provider.
mod context;
// The optional flow records of the agents.
mod flows;
// The optional aggregator of flow records.
mod flow_page;
// Observed edges, and the aggregator's view of the cluster.
mod flow_policies;
mod flow_server;
// The export targets of the aggregator.
mod flow_trail;
// A parser of LogQL, for the dashboard of the trail.
mod logql;
// The kustomize base for a remote cluster.
mod remote_cluster;
// The chart renders to the same objects.
mod chart;
// Alerts, dashboard and documentation match the agent's metrics.
pub(crate) mod monitoring;
// A renderer for the subset of Helm's template language that the chart uses.
mod template;
// The contents and the build of the image.
mod image;

use std::path::PathBuf;

use serde_json::Value;

pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

pub(crate) fn root() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

pub(crate) fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// The documents of a YAML file.
#[track_caller]
pub(crate) fn documents(text: &str) -> Vec<Value> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    documents.into_iter().filter(|document| !document.is_null()).collect()
}

/// The value at a path of keys and indices, as in `spec.containers.0.image`.
#[track_caller]
pub(crate) fn at<'a>(value: &'a Value, path: &str) -> &'a Value {
    let pointer = format!("/{}", path.replace('.', "/"));
    value.pointer(&pointer).unwrap_or_else(|| panic!("no {path} in {value}"))
}

#[track_caller]
pub(crate) fn list<'a>(value: &'a Value, path: &str) -> &'a [Value] {
    at(value, path).as_array().unwrap_or_else(|| panic!("{path} is not a list"))
}

#[track_caller]
pub(crate) fn texts(value: &Value) -> Vec<&str> {
    let items = value.as_array().unwrap_or_else(|| panic!("{value} is not a list"));
    items.iter().map(|item| item.as_str().unwrap_or_else(|| panic!("{item} is not a text"))).collect()
}
