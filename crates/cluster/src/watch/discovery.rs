//! Asks the API server whether it serves a kind, after it has answered 404.
//!
//! A load balancer or ingress before the API server answers 404 to everything while no API server runs, and an API
//! server answers 404 for a custom kind until its handlers are ready. Objects of the kind exist nevertheless: policies
//! must not be removed then.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{APIGroupList, APIResourceList};
use kube::Client;
use tokio::time::timeout;

use super::api::document;
use super::failure::{Failure, Verb};
use crate::{ApiClient, Resource};

/// A group of every API server, so that an answer without it is not that of one.
const BUILT_IN: &str = "networking.k8s.io";

/// Whether the server serves a kind for which it has answered 404.
#[derive(Debug)]
pub(super) enum Discovery {
    /// Discovery confirms that it does not serve the kind in this version.
    Unserved,
    /// It serves the kind, or the answer is not that of an API server. Kinds of the core group are served by every one.
    Unconfirmed,
    /// Discovery failed, for this reason. An answer 403 confirms nothing: a proxy may give it.
    Failed(String),
}

pub(super) async fn discover(connection: &ApiClient, resource: Resource) -> Discovery {
    if resource.group.is_empty() {
        return Discovery::Unconfirmed;
    }
    let asked = async { lacks(&connection.client().await?, resource).await };
    match timeout(connection.timing.answer, asked).await {
        Ok(Ok(true)) => Discovery::Unserved,
        Ok(Ok(false)) => Discovery::Unconfirmed,
        Ok(Err(failure)) => Discovery::Failed(explain(&failure, resource)),
        Err(_) => Discovery::Failed(explain(&Failure::Silent(Verb::Get, connection.timing.answer), resource)),
    }
}

async fn lacks(client: &Client, resource: Resource) -> Result<bool, Failure> {
    let Resource { group, version, plural, .. } = resource;
    let groups = document::<APIGroupList>(client, "/apis").await?.groups;
    if !groups.iter().any(|known| known.name == BUILT_IN) {
        return Ok(false);
    }
    let Some(served) = groups.iter().find(|known| known.name == group) else { return Ok(true) };
    if !served.versions.iter().any(|served| served.version == version) {
        return Ok(true);
    }
    let resources = document::<APIResourceList>(client, &format!("/apis/{group}/{version}")).await?.resources;
    Ok(!resources.iter().any(|served| served.name == plural))
}

fn explain(failure: &Failure, resource: Resource) -> String {
    match failure {
        Failure::Refused(_, status) if status.code == 403 => {
            "forbidden (403): it needs 'get' on the non-resource URL /apis and those below, which the ClusterRole \
             system:discovery grants"
                .into()
        }
        other => other.explain(Resource { group: "", plural: "API groups", ..resource }),
    }
}
