//! Discovery: the groups that the server has, and the resources of each version of one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use axum::extract::{Path, State as Extract};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Json, Response};
use serde_json::{Value, json};

use super::{Kind, SharedState, State};

/// The kinds in API groups that are served, with their versions.
fn served(state: &State) -> impl Iterator<Item = (Kind, &'static str)> {
    let version = |kind: Kind| match kind.is_custom() {
        true => state.installed.get(&kind).copied(),
        false => Some(kind.api_version()),
    };
    Kind::ALL
        .into_iter()
        .filter_map(move |kind| Some((kind, version(kind)?)))
        .filter(|(_, version)| version.contains('/'))
}

/// `GET /apis`
pub(super) async fn groups(Extract(shared): Extract<Arc<SharedState>>) -> Response {
    let state = shared.lock();
    if let Some(code) = state.faults.discovery {
        return StatusCode::from_u16(code).expect("a status code").into_response();
    }
    let mut groups: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (group, version) in served(&state).filter_map(|(_, version)| version.split_once('/')) {
        groups.entry(group).or_default().insert(version);
    }
    let groups: Vec<Value> = groups
        .into_iter()
        .map(|(group, versions)| {
            let version = |version: &&str| json!({"groupVersion": format!("{group}/{version}"), "version": version});
            json!({"name": group, "versions": versions.iter().map(version).collect::<Vec<_>>()})
        })
        .collect();
    Json(json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})).into_response()
}

/// `GET /apis/GROUP/VERSION`
pub(super) async fn resources(
    Extract(shared): Extract<Arc<SharedState>>,
    Path((group, version)): Path<(String, String)>,
) -> Response {
    let wanted = format!("{group}/{version}");
    let state = shared.lock();
    let resource = |kind: Kind| json!({"name": kind.plural(), "singularName": "", "namespaced": true, "kind": kind.to_string(), "verbs": ["list"]});
    let of_version = served(&state).filter(|(_, version)| *version == wanted);
    let resources: Vec<Value> = of_version.map(|(kind, _)| resource(kind)).collect();
    if resources.is_empty() {
        return StatusCode::NOT_FOUND.into_response();
    }
    Json(json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": wanted, "resources": resources}))
        .into_response()
}
