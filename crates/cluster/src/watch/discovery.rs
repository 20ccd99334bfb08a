//! Asks the API server whether it serves a kind, after it has answered 404.
//!
//! A load balancer or ingress before the API server answers 404 to everything while no API server runs, and an API
//! server answers 404 for a custom kind until its handlers are ready. Objects of the kind exist nevertheless: policies
//! must not be removed then.

use kube::Client;
use tokio::time::timeout;

use crate::{ApiClient, Resource};

/// A group of every API server, so that an answer without it is not that of one.
const BUILT_IN: &str = "networking.k8s.io";

/// Whether discovery confirms that the server does not serve the kind in this version. Kinds of the core group are
/// served by every API server.
pub(super) async fn is_unserved(connection: &ApiClient, resource: Resource) -> bool {
    if resource.group.is_empty() {
        return false;
    }
    let Ok(client) = connection.client().await else { return false };
    let asked = timeout(connection.timing.answer, lacks(&client, resource)).await;
    match asked {
        Ok(Ok(lacks)) => lacks,
        // Some clusters restrict discovery (the ClusterRole system:discovery), and such an answer is an API server's.
        Ok(Err(kube::Error::Api(status))) => status.code == 403,
        Ok(Err(_)) | Err(_) => false,
    }
}

async fn lacks(client: &Client, resource: Resource) -> kube::Result<bool> {
    let groups = client.list_api_groups().await?.groups;
    if !groups.iter().any(|group| group.name == BUILT_IN) {
        return Ok(false);
    }
    let Some(group) = groups.iter().find(|group| group.name == resource.group) else { return Ok(true) };
    if !group.versions.iter().any(|served| served.version == resource.version) {
        return Ok(true);
    }
    let served = client.list_api_group_resources(&format!("{}/{}", resource.group, resource.version)).await?;
    Ok(!served.resources.iter().any(|served| served.name == resource.plural))
}
