//! Gets one object by name: a pod that starts before its watch event arrives, and the namespace that identifies a
//! cluster.

use std::time::Duration;

use kube::api::GetParams;
use kube::core::Request;
use policy::{Kind, Object, ObjectName, lower};
use serde_json::Value;
use tokio::time::timeout;

use super::failure::{Failure, Verb};
use crate::{ApiClient, Resource, Watchable};

/// Longest name of a namespace or a pod (RFC 1123 subdomain, as the API server limits it).
const LONGEST_NAME: usize = 253;

/// The pod in the API server; `None` if it does not exist. The error includes the remedy.
pub async fn look_up_pod(connection: &ApiClient, name: &ObjectName) -> Result<Option<Object>, String> {
    if !is_name(&name.namespace) || !is_name(&name.name) {
        return Err(format!("invalid pod name: {name}"));
    }
    match get(connection, Object::resource(Kind::Pod), Some(&name.namespace), &name.name).await? {
        Some(object) => {
            lower(Kind::Pod, &object).map(Some).map_err(|_| "the API server returned a pod without a name".into())
        }
        None => Ok(None),
    }
}

/// This namespace exists for the lifetime of a cluster, so its UID identifies the cluster.
const OF_THE_CLUSTER: &str = "kube-system";

/// The UID of the namespace `kube-system`. The error includes the remedy.
pub async fn cluster_uid(connection: &ApiClient) -> Result<String, String> {
    let namespace = get(connection, Object::resource(Kind::Namespace), None, OF_THE_CLUSTER).await?;
    let namespace = namespace.ok_or_else(|| format!("namespace {OF_THE_CLUSTER} not found"))?;
    match namespace["metadata"]["uid"].as_str().filter(|uid| !uid.is_empty()) {
        Some(uid) => Ok(uid.to_owned()),
        None => Err(format!("the API server returned the namespace {OF_THE_CLUSTER} without a UID")),
    }
}

async fn get(
    connection: &ApiClient,
    resource: Resource,
    namespace: Option<&str>,
    name: &str,
) -> Result<Option<Value>, String> {
    let path = match namespace {
        Some(namespace) => format!("{}/namespaces/{namespace}/{}", resource.path(), resource.plural),
        None => format!("{}/{}", resource.path(), resource.plural),
    };
    let request = Request::new(path).get(name, &GetParams::default()).map_err(|e| e.to_string())?;
    let client = connection.client().await.map_err(|failure| failure.explain(resource))?;
    match within(connection.timing.answer, Verb::Get, client.request(request)).await {
        Ok(object) => Ok(Some(object)),
        Err(failure) if failure.means_none() => Ok(None),
        Err(failure) => Err(failure.explain(resource)),
    }
}

/// The response, unless it times out.
pub(crate) async fn within(
    patience: Duration,
    verb: Verb,
    answer: impl Future<Output = Result<Value, kube::Error>>,
) -> Result<Value, Failure> {
    match timeout(patience, answer).await {
        Err(_) => Err(Failure::Silent(verb, patience)),
        Ok(answer) => answer.map_err(|e| Failure::of(verb, e)),
    }
}

/// A name in a request path must not lead to another path.
pub(crate) fn is_name(text: &str) -> bool {
    let fits = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'.';
    !text.is_empty() && text.len() <= LONGEST_NAME && text.bytes().all(fits) && !text.starts_with('.')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_leads_nowhere_else() {
        assert!(is_name("web-5d9.x"));
        for bad in ["", "..", "a/b", "a?watch=true", "A", "a%2fb"] {
            assert!(!is_name(bad), "{bad}");
        }
    }
}
