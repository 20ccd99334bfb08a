//! The get, create and replace requests for a Lease.

use std::time::Duration;

use kube::api::{GetParams, PostParams};
use kube::core::Request;
use policy::ObjectName;
use serde_json::Value;

use super::Lease;
use crate::watch::failure::{Failure, Verb};
use crate::watch::lookup::{is_name, within};
use crate::{ApiClient, Keep, Manifests, Need, Resource};

const LEASES: Resource = Resource {
    plural: "leases",
    group: "coordination.k8s.io",
    version: "v1",
    alternatives: &[],
    need: Need::Needed,
    manifests: Manifests::OfGroup,
    keep: Keep::Whole,
    only: None,
};

/// The result of a write.
pub(super) enum WriteOutcome {
    /// The Lease as stored by the server.
    Stored(Lease),
    /// Another client created, changed or deleted the Lease meanwhile.
    Conflict,
}

/// One Lease in one API server. Errors include the remedy.
pub(super) struct Client {
    connection: ApiClient,
    name: ObjectName,
}

impl Client {
    pub(super) fn new(connection: ApiClient, name: ObjectName) -> Result<Client, String> {
        if is_name(&name.namespace) && is_name(&name.name) {
            Ok(Client { connection, name })
        } else {
            Err(format!("invalid name of a Lease: {name}"))
        }
    }

    /// The current Lease; `None` if it does not exist.
    pub(super) async fn get(&self, patience: Duration) -> Result<Option<Lease>, String> {
        let client = self.client().await?;
        let answer = async {
            let request = self.path().get(&self.name.name, &GetParams::default()).map_err(kube::Error::BuildRequest)?;
            client.request(request).await
        };
        match within(patience, Verb::Get, answer).await {
            Ok(object) => Ok(Some(Lease::of(object))),
            Err(failure) if failure.means_none() => Ok(None),
            Err(failure) => Err(failure.explain(LEASES)),
        }
    }

    pub(super) async fn create(&self, lease: &Lease, patience: Duration) -> Result<WriteOutcome, String> {
        let client = self.client().await?;
        let answer = async {
            let body = lease.object().to_string().into_bytes();
            let request = self.path().create(&PostParams::default(), body).map_err(kube::Error::BuildRequest)?;
            client.request(request).await
        };
        write_outcome(within(patience, Verb::Create, answer).await)
    }

    /// Replaces the Lease if its resource version is still that of `lease`.
    pub(super) async fn replace(&self, lease: &Lease, patience: Duration) -> Result<WriteOutcome, String> {
        let client = self.client().await?;
        let (name, params) = (&self.name.name, PostParams::default());
        let answer = async {
            let body = lease.object().to_string().into_bytes();
            let request = self.path().replace(name, &params, body).map_err(kube::Error::BuildRequest)?;
            client.request(request).await
        };
        write_outcome(within(patience, Verb::Update, answer).await)
    }

    async fn client(&self) -> Result<kube::Client, String> {
        self.connection.client().await.map_err(|failure| failure.explain(LEASES))
    }

    fn path(&self) -> Request {
        Request::new(format!("{}/namespaces/{}/{}", LEASES.path(), self.name.namespace, LEASES.plural))
    }
}

fn write_outcome(answer: Result<Value, Failure>) -> Result<WriteOutcome, String> {
    match answer {
        Ok(object) => Ok(WriteOutcome::Stored(Lease::of(object))),
        Err(Failure::Refused(_, status)) if matches!(status.code, 404 | 409) => Ok(WriteOutcome::Conflict),
        Err(failure) => Err(failure.explain(LEASES)),
    }
}
