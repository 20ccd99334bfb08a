//! Calico's GlobalNetworkSets, served once one of their CustomResourceDefinitions is installed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{Path, Query, State as Extract};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde_json::{Value, json};

use super::serve::{status, suffer};
use super::{SharedState, Verb};

/// `crd.projectcalico.org/v1` and `projectcalico.org/v3`.
const GROUPS: [&str; 2] = ["crd.projectcalico.org/v1", "projectcalico.org/v3"];

#[derive(Default)]
pub(crate) struct NetworkSets {
    served: BTreeSet<String>,
    version: u64,
    objects: BTreeMap<String, Value>,
}

impl NetworkSets {
    /// # Panics
    /// If the API group is unknown.
    pub(crate) fn install(&mut self, group: &str) {
        assert!(GROUPS.contains(&group), "{group}");
        self.served.insert(group.to_owned());
    }

    pub(crate) fn objects(&self) -> &BTreeMap<String, Value> {
        &self.objects
    }

    /// Ignores the object's resource version.
    pub(crate) fn set(&mut self, mut object: Value) -> Value {
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        let name = object["metadata"]["name"].as_str().expect("it has a name").to_owned();
        if object["metadata"]["uid"].is_null() {
            object["metadata"]["uid"] = format!("uid-{}", self.version).into();
        }
        self.objects.insert(name, object.clone());
        object
    }

    pub(crate) fn remove(&mut self, name: &str) {
        self.objects.remove(name);
    }
}

pub(super) fn routes(mut routes: Router<Arc<SharedState>>) -> Router<Arc<SharedState>> {
    for group in GROUPS {
        let all =
            get(move |shared, query| list(group, shared, query)).post(move |shared, body| create(group, shared, body));
        let one = get(move |shared, name| read(group, shared, name))
            .put(move |shared, name, body| replace(group, shared, name, body))
            .delete(move |shared, name, body| delete(group, shared, name, body));
        routes = routes
            .route(&format!("/apis/{group}/globalnetworksets"), all)
            .route(&format!("/apis/{group}/globalnetworksets/{{name}}"), one);
    }
    routes
}

async fn refused(group: &str, shared: &SharedState, verb: Verb) -> Option<Response> {
    let (faults, _) = suffer(shared).await;
    if !shared.lock().network_sets.served.contains(group) {
        return Some(status(404, "NotFound", "the server could not find the requested resource"));
    }
    let code = faults.network_set_refusals.get(&verb)?;
    Some(status(*code, "Refused", &format!("the fake says {code}")))
}

async fn list(
    group: &str,
    Extract(shared): Extract<Arc<SharedState>>,
    Query(query): Query<BTreeMap<String, String>>,
) -> Response {
    if let Some(refusal) = refused(group, &shared, Verb::List).await {
        return refusal;
    }
    let selector = query.get("labelSelector").map(|text| {
        let (key, values) = text.split_once(" in (").expect("a label and its values");
        let values = values.strip_suffix(')').expect("the end of the values").split(',');
        (key, values.collect::<Vec<_>>())
    });
    let matches = |object: &&Value| {
        selector.as_ref().is_none_or(|(key, values)| {
            object["metadata"]["labels"][*key].as_str().is_some_and(|value| values.contains(&value))
        })
    };
    let state = shared.lock();
    let items: Vec<&Value> = state.network_sets.objects.values().filter(matches).collect();
    let version = state.network_sets.version.to_string();
    Json(json!({"kind": "GlobalNetworkSetList", "apiVersion": group, "metadata": {"resourceVersion": version}, "items": items}))
        .into_response()
}

async fn read(group: &str, Extract(shared): Extract<Arc<SharedState>>, Path(name): Path<String>) -> Response {
    if let Some(refusal) = refused(group, &shared, Verb::Get).await {
        return refusal;
    }
    match shared.lock().network_sets.objects.get(&name) {
        Some(object) => Json(object.clone()).into_response(),
        None => missing(&name),
    }
}

async fn create(group: &str, Extract(shared): Extract<Arc<SharedState>>, Json(object): Json<Value>) -> Response {
    if let Some(refusal) = refused(group, &shared, Verb::Create).await {
        return refusal;
    }
    if object["apiVersion"] != group || object["kind"] != "GlobalNetworkSet" {
        return status(400, "BadRequest", "the object is of another kind");
    }
    shared.change(|state| {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        match state.network_sets.objects.contains_key(name) {
            true => status(409, "AlreadyExists", "there is one of the name"),
            false => Json(state.network_sets.set(object)).into_response(),
        }
    })
}

async fn replace(
    group: &str,
    Extract(shared): Extract<Arc<SharedState>>,
    Path(name): Path<String>,
    Json(object): Json<Value>,
) -> Response {
    if let Some(refusal) = refused(group, &shared, Verb::Update).await {
        return refusal;
    }
    shared.change(|state| match state.network_sets.objects.get(&name) {
        None => missing(&name),
        Some(known) if known["metadata"]["resourceVersion"] != object["metadata"]["resourceVersion"] => {
            status(409, "Conflict", "the object has been modified")
        }
        Some(_) => Json(state.network_sets.set(object)).into_response(),
    })
}

async fn delete(
    group: &str,
    Extract(shared): Extract<Arc<SharedState>>,
    Path(name): Path<String>,
    body: Bytes,
) -> Response {
    if let Some(refusal) = refused(group, &shared, Verb::Delete).await {
        return refusal;
    }
    let options: Value = if body.is_empty() { json!({}) } else { serde_json::from_slice(&body).expect("JSON") };
    shared.change(|state| {
        let Some(known) = state.network_sets.objects.get(&name) else { return missing(&name) };
        let differs = |field: &str| {
            let asked = &options["preconditions"][field];
            !asked.is_null() && *asked != known["metadata"][field]
        };
        if differs("uid") || differs("resourceVersion") {
            return status(409, "Conflict", "it is another one by now");
        }
        state.network_sets.remove(&name);
        Json(json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"})).into_response()
    })
}

fn missing(name: &str) -> Response {
    status(404, "NotFound", &format!("globalnetworksets \"{name}\" not found"))
}
