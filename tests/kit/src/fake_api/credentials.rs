//! Secrets and ConfigMaps: get, create, and update with optimistic concurrency.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use axum::extract::{Path, State as Extract};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::Value;

use super::serve::{status, suffer};
use super::{SharedState, Verb};

/// The resource, the object's name (`None` for a collection), and the verb.
pub type CredentialRequest = (String, Option<String>, Verb);

#[derive(Default)]
pub(crate) struct Credentials {
    version: u64,
    /// By resource, namespace and name.
    objects: BTreeMap<(String, String, String), Value>,
    pub(super) requests: BTreeSet<CredentialRequest>,
}

impl Credentials {
    pub(super) fn get(&self, resource: &str, namespace: &str, name: &str) -> Option<&Value> {
        self.objects.get(&(resource.into(), namespace.into(), name.into()))
    }

    pub(super) fn set(&mut self, resource: &str, mut object: Value) -> Value {
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        let text = |field: &str| object["metadata"][field].as_str().expect("an object has a name").to_owned();
        self.objects.insert((resource.into(), text("namespace"), text("name")), object.clone());
        object
    }

    pub(super) fn remove(&mut self, resource: &str, namespace: &str, name: &str) {
        self.objects.remove(&(resource.into(), namespace.into(), name.into()));
    }
}

pub(super) fn routes(routes: Router<Arc<SharedState>>) -> Router<Arc<SharedState>> {
    ["secrets", "configmaps"].into_iter().fold(routes, |routes, resource| {
        let of_namespace = format!("/api/v1/namespaces/{{namespace}}/{resource}");
        let read = move |shared: Extract<Arc<SharedState>>, path: Path<(String, String)>| read(shared, resource, path);
        let replace = move |shared: Extract<Arc<SharedState>>, path: Path<(String, String)>, body: Json<Value>| {
            replace(shared, resource, path, body)
        };
        let create = move |shared: Extract<Arc<SharedState>>, body: Json<Value>| create(shared, resource, body);
        routes.route(&of_namespace, post(create)).route(&format!("{of_namespace}/{{name}}"), get(read).put(replace))
    })
}

async fn read(
    Extract(shared): Extract<Arc<SharedState>>,
    resource: &'static str,
    Path((namespace, name)): Path<(String, String)>,
) -> Response {
    record_request(&shared, resource, Some(&name), Verb::Get).await;
    match shared.lock().credentials.get(resource, &namespace, &name) {
        Some(object) => Json(object.clone()).into_response(),
        None => missing(resource, &name),
    }
}

async fn create(
    Extract(shared): Extract<Arc<SharedState>>,
    resource: &'static str,
    Json(object): Json<Value>,
) -> Response {
    record_request(&shared, resource, None, Verb::Create).await;
    let text = |field: &str| object["metadata"][field].as_str().unwrap_or("").to_owned();
    let created = shared.change(|state| {
        let is_there = state.credentials.get(resource, &text("namespace"), &text("name")).is_some();
        (!is_there).then(|| state.credentials.set(resource, object.clone()))
    });
    match created {
        Some(object) => Json(object).into_response(),
        None => status(409, "AlreadyExists", "it is there already"),
    }
}

async fn replace(
    Extract(shared): Extract<Arc<SharedState>>,
    resource: &'static str,
    Path((namespace, name)): Path<(String, String)>,
    Json(object): Json<Value>,
) -> Response {
    record_request(&shared, resource, Some(&name), Verb::Update).await;
    shared.change(|state| {
        let Some(known) = state.credentials.get(resource, &namespace, &name) else { return missing(resource, &name) };
        if known["metadata"]["resourceVersion"] != object["metadata"]["resourceVersion"] {
            return status(409, "Conflict", "another client was faster");
        }
        Json(state.credentials.set(resource, object)).into_response()
    })
}

async fn record_request(shared: &SharedState, resource: &str, name: Option<&str>, verb: Verb) {
    suffer(shared).await;
    shared.change(|state| state.credentials.requests.insert((resource.to_owned(), name.map(str::to_owned), verb)));
}

fn missing(resource: &str, name: &str) -> Response {
    status(404, "NotFound", &format!("{resource} \"{name}\" not found"))
}
