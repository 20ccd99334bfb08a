//! Secrets and ConfigMaps with certificates in one namespace, read by name and written only if they have our label.

use std::collections::BTreeMap;

use kube::api::{GetParams, PostParams};
use kube::core::Request;
use serde_json::{Value, json};

use crate::watch::failure::{Failure, Verb};
use crate::watch::lookup::{is_name, within};
use crate::{ApiClient, Keep, Manifests, Need, Resource};

const SECRETS: Resource = Resource {
    plural: "secrets",
    group: "",
    version: "v1",
    alternatives: &[],
    need: Need::Needed,
    manifests: Manifests::OfGroup,
    keep: Keep::Whole,
    only: None,
};

const CONFIG_MAPS: Resource = Resource { plural: "configmaps", ..SECRETS };

/// The label with the manager of an object.
const MANAGED_BY: &str = "app.kubernetes.io/managed-by";

/// The kind of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum CredentialKind {
    /// A Secret of type kubernetes.io/tls, with `tls.crt` and `tls.key`.
    TlsSecret,
    ConfigMap,
}

/// An object as read from the API server.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredCredential {
    object: Value,
    /// The values that are valid UTF-8.
    pub data: BTreeMap<String, String>,
    pub is_ours: bool,
}

/// Why an object was not written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CredentialsWriteError {
    #[error("another client changed the object at the same time")]
    Conflict,
    #[error("{0}")]
    Failed(String),
}

/// The objects of one namespace.
pub struct Credentials {
    connection: ApiClient,
    namespace: String,
    manager: &'static str,
}

impl CredentialKind {
    fn resource(self) -> Resource {
        match self {
            CredentialKind::TlsSecret => SECRETS,
            CredentialKind::ConfigMap => CONFIG_MAPS,
        }
    }

    fn name(self) -> &'static str {
        match self {
            CredentialKind::TlsSecret => "Secret",
            CredentialKind::ConfigMap => "ConfigMap",
        }
    }
}

impl Credentials {
    /// # Errors
    /// If the name of the namespace is invalid.
    pub fn new(connection: ApiClient, namespace: &str, manager: &'static str) -> Result<Credentials, String> {
        if !is_name(namespace) {
            return Err(format!("invalid namespace: {namespace}"));
        }
        Ok(Credentials { connection, namespace: namespace.to_owned(), manager })
    }

    /// The object of this name; `None` if it does not exist. The error includes the remedy.
    ///
    /// # Errors
    /// If it cannot be read.
    pub async fn get(&self, kind: CredentialKind, name: &str) -> Result<Option<StoredCredential>, String> {
        let explain = |failure: Failure| failure.explain(kind.resource());
        let request = self.request(kind, name)?.get(name, &GetParams::default()).map_err(|error| error.to_string())?;
        let client = self.connection.client().await.map_err(explain)?;
        match within(self.connection.timing.answer, Verb::Get, client.request(request)).await {
            Ok(object) => self.stored(kind, object).map(Some),
            Err(failure) if failure.means_none() => Ok(None),
            Err(failure) => Err(explain(failure)),
        }
    }

    /// Creates the object, or replaces the version that was read.
    ///
    /// # Errors
    /// On a conflict with another client, or if the server refuses the request.
    pub async fn write(
        &self,
        kind: CredentialKind,
        name: &str,
        data: &BTreeMap<String, String>,
        seen: Option<&StoredCredential>,
    ) -> Result<(), CredentialsWriteError> {
        let explain = |failure: Failure| CredentialsWriteError::Failed(failure.explain(kind.resource()));
        let body = self.filled(kind, name, data, seen).to_string().into_bytes();
        let request = self.request(kind, name).map_err(CredentialsWriteError::Failed)?;
        let (verb, request) = match seen {
            Some(_) => (Verb::Update, request.replace(name, &PostParams::default(), body)),
            None => (Verb::Create, request.create(&PostParams::default(), body)),
        };
        let request = request.map_err(|error| CredentialsWriteError::Failed(error.to_string()))?;
        let client = self.connection.client().await.map_err(explain)?;
        match within(self.connection.timing.answer, verb, client.request(request)).await {
            Ok(_) => Ok(()),
            // Creating an object also fails with 404, if its namespace does not exist.
            Err(Failure::Refused(_, status)) if status.code == 409 || (seen.is_some() && status.code == 404) => {
                Err(CredentialsWriteError::Conflict)
            }
            Err(failure) => Err(explain(failure)),
        }
    }

    fn request(&self, kind: CredentialKind, name: &str) -> Result<Request, String> {
        if !is_name(name) {
            return Err(format!("invalid object name: {name}"));
        }
        let resource = kind.resource();
        Ok(Request::new(format!("{}/namespaces/{}/{}", resource.path(), self.namespace, resource.plural)))
    }

    fn filled(
        &self,
        kind: CredentialKind,
        name: &str,
        data: &BTreeMap<String, String>,
        seen: Option<&StoredCredential>,
    ) -> Value {
        let mut object = seen.map_or_else(
            || json!({"apiVersion": "v1", "kind": kind.name(), "metadata": {"name": name, "namespace": self.namespace}}),
            |seen| seen.object.clone(),
        );
        object["metadata"]["labels"][MANAGED_BY] = self.manager.into();
        match kind {
            CredentialKind::TlsSecret => {
                object["type"] = "kubernetes.io/tls".into();
                let encoded = |(key, value): (&String, &String)| {
                    (key.clone(), Value::from(data_encoding::BASE64.encode(value.as_bytes())))
                };
                object["data"] = Value::Object(data.iter().map(encoded).collect());
            }
            CredentialKind::ConfigMap => object["data"] = json!(data),
        }
        object
    }

    fn stored(&self, kind: CredentialKind, object: Value) -> Result<StoredCredential, String> {
        let mut data = BTreeMap::new();
        for (key, value) in object["data"].as_object().into_iter().flatten() {
            let Some(text) = value.as_str() else {
                return Err(format!("the API server returned a {} with data that is not text", kind.name()));
            };
            let decoded = match kind {
                CredentialKind::ConfigMap => Some(text.to_owned()),
                CredentialKind::TlsSecret => {
                    data_encoding::BASE64.decode(text.as_bytes()).ok().and_then(|bytes| String::from_utf8(bytes).ok())
                }
            };
            // Binary data cannot be PEM, and is replaced if the object is ours.
            data.extend(decoded.map(|decoded| (key.clone(), decoded)));
        }
        let is_ours = object["metadata"]["labels"][MANAGED_BY].as_str() == Some(self.manager);
        Ok(StoredCredential { object, data, is_ours })
    }
}
