//! One object, asked for by name: a pod in the moment in which it starts and the watch has not told of it yet, and the
//! namespace by which a cluster is known.

use kube::api::GetParams;
use kube::core::Request;
use policy::{Kind, Object, ObjectName, lower};
use serde_json::Value;
use tokio::time::timeout;

use super::failure::{Failure, Verb};
use crate::{Connection, Watched};

/// Longest name of a namespace or a pod (RFC 1123 subdomain, as the API server has it).
const LONGEST_NAME: usize = 253;

/// The pod as the API server has it now; none if it has none of the name. The error says what is wrong and what to do.
pub async fn look_up_pod(connection: &Connection, name: &ObjectName) -> Result<Option<Object>, String> {
    if !is_name(&name.namespace) || !is_name(&name.name) {
        return Err(format!("{name} is no name that a pod can have"));
    }
    let resource = Object::resource(Kind::Pod);
    let path = format!("{}/namespaces/{}/{}", resource.path(), name.namespace, resource.plural);
    let request = Request::new(path).get(&name.name, &GetParams::default()).map_err(|e| e.to_string())?;
    let patience = connection.timing.answer;
    match timeout(patience, connection.client.request::<Value>(request)).await {
        Err(_) => Err(Failure::Silent(Verb::Get, patience).explain(resource)),
        Ok(Err(kube::Error::Api(status))) if status.code == 404 => Ok(None),
        Ok(Err(e)) => Err(Failure::of(Verb::Get, e).explain(resource)),
        Ok(Ok(object)) => lower(Kind::Pod, &object).map(Some).map_err(|_| "the API server's pod has no name".into()),
    }
}

/// Every cluster has it from its beginning to its end, so that its UID stands for the cluster.
const OF_THE_CLUSTER: &str = "kube-system";

/// The UID of the namespace `kube-system`. The error says what is wrong and what to do.
pub async fn cluster_uid(connection: &Connection) -> Result<String, String> {
    let resource = Object::resource(Kind::Namespace);
    let path = format!("{}/{}", resource.path(), resource.plural);
    let request = Request::new(path).get(OF_THE_CLUSTER, &GetParams::default()).map_err(|e| e.to_string())?;
    let patience = connection.timing.answer;
    match timeout(patience, connection.client.request::<Value>(request)).await {
        Err(_) => Err(Failure::Silent(Verb::Get, patience).explain(resource)),
        Ok(Err(e)) => Err(Failure::of(Verb::Get, e).explain(resource)),
        Ok(Ok(namespace)) => match namespace["metadata"]["uid"].as_str().filter(|uid| !uid.is_empty()) {
            Some(uid) => Ok(uid.to_owned()),
            None => Err(format!("the API server's namespace {OF_THE_CLUSTER} has no UID")),
        },
    }
}

/// What becomes part of a path must not lead elsewhere.
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
