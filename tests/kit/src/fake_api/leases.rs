//! Leases: get, create, and update with optimistic concurrency.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State as Extract};
use axum::response::{IntoResponse, Response};
use serde_json::Value;

use super::serve::{status, suffer};
use super::{SharedState, Verb};

#[derive(Default)]
pub(crate) struct Leases {
    version: u64,
    /// By namespace and name.
    objects: BTreeMap<(String, String), Value>,
    /// The verbs of all requests.
    asked: BTreeSet<Verb>,
}

/// A server's response to a write of a stale version.
struct Conflict(&'static str);

impl Leases {
    pub(crate) fn get(&self, namespace: &str, name: &str) -> Option<&Value> {
        self.objects.get(&(namespace.into(), name.into()))
    }

    /// Ignores the object's resource version.
    pub(crate) fn set(&mut self, mut lease: Value) -> Value {
        self.version += 1;
        lease["metadata"]["resourceVersion"] = self.version.to_string().into();
        let text = |field: &str| lease["metadata"][field].as_str().expect("a Lease has a name").to_owned();
        self.objects.insert((text("namespace"), text("name")), lease.clone());
        lease
    }

    pub(crate) fn asked(&self) -> BTreeSet<Verb> {
        self.asked.clone()
    }

    fn create(&mut self, namespace: &str, lease: Value) -> Result<Value, Conflict> {
        let name = lease["metadata"]["name"].as_str().expect("a Lease has a name");
        if self.get(namespace, name).is_some() {
            return Err(Conflict("AlreadyExists"));
        }
        Ok(self.set(lease))
    }

    fn replace(&mut self, lease: Value, known: &Value) -> Result<Value, Conflict> {
        if lease["metadata"]["resourceVersion"] != known["metadata"]["resourceVersion"] {
            return Err(Conflict("Conflict"));
        }
        Ok(self.set(lease))
    }
}

pub(super) async fn get(
    Extract(shared): Extract<Arc<SharedState>>,
    Path((namespace, name)): Path<(String, String)>,
) -> Response {
    if let Some(refusal) = refused(&shared, Verb::Get).await {
        return refusal;
    }
    match shared.lock().leases.get(&namespace, &name) {
        Some(lease) => Json(lease.clone()).into_response(),
        None => missing(&name),
    }
}

pub(super) async fn create(
    Extract(shared): Extract<Arc<SharedState>>,
    Path(namespace): Path<String>,
    Json(lease): Json<Value>,
) -> Response {
    if let Some(refusal) = refused(&shared, Verb::Create).await {
        return refusal;
    }
    answer(shared.change(|state| state.leases.create(&namespace, lease)))
}

pub(super) async fn replace(
    Extract(shared): Extract<Arc<SharedState>>,
    Path((namespace, name)): Path<(String, String)>,
    Json(lease): Json<Value>,
) -> Response {
    if let Some(refusal) = refused(&shared, Verb::Update).await {
        return refusal;
    }
    let replaced = shared.change(|state| {
        let known = state.leases.get(&namespace, &name).cloned();
        known.map(|known| state.leases.replace(lease, &known))
    });
    replaced.map_or_else(|| missing(&name), answer)
}

async fn refused(shared: &SharedState, verb: Verb) -> Option<Response> {
    shared.change(|state| state.leases.asked.insert(verb));
    let (faults, _) = suffer(shared).await;
    let code = faults.lease_refusals.get(&verb)?;
    Some(status(*code, "Refused", &format!("the fake says {code}")))
}

fn answer(written: Result<Value, Conflict>) -> Response {
    match written {
        Ok(lease) => Json(lease).into_response(),
        Err(Conflict(reason)) => status(409, reason, "the object has been modified"),
    }
}

fn missing(name: &str) -> Response {
    status(404, "NotFound", &format!("leases.coordination.k8s.io \"{name}\" not found"))
}
