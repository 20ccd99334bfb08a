//! Calico's GlobalNetworkSets in the API server: list, create, replace and delete those of some managers.
//!
//! An object without the label of one of the managers is never written: replace and delete name the resource version
//! that was read with such a label.

use kube::api::{DeleteParams, GetParams, ListParams, PostParams, Preconditions};
use kube::core::Request;
use serde_json::{Value, json};

use crate::watch::failure::{Failure, Verb};
use crate::watch::lookup::{is_name, within};
use crate::{ApiClient, Keep, Manifests, Need, Resource};

/// Key of the label with the manager of an object.
pub const MANAGED_BY: &str = "managed-by";

/// Page size of lists, the same as client-go's.
const PAGE_OBJECTS: u32 = 500;

/// The API groups of the kind, in order of preference: that of Calico's own API server, and that of the
/// CustomResourceDefinition behind it.
const SERVED: [(&str, &str); 2] = [("projectcalico.org", "v3"), ("crd.projectcalico.org", "v1")];

/// An object, including fields that are not used here.
#[derive(Debug, Clone, PartialEq)]
pub struct NetworkSet(Value);

impl NetworkSet {
    /// Wraps an object returned by the server.
    pub fn of(object: Value) -> NetworkSet {
        NetworkSet(object)
    }

    pub fn name(&self) -> &str {
        self.0["metadata"]["name"].as_str().unwrap_or("")
    }

    pub fn labels(&self) -> impl Iterator<Item = (&str, &str)> {
        let labels = self.0["metadata"]["labels"].as_object().into_iter().flatten();
        labels.filter_map(|(key, value)| Some((key.as_str(), value.as_str()?)))
    }

    /// The value of the label with this key.
    pub fn label(&self, key: &str) -> Option<&str> {
        self.0["metadata"]["labels"][key].as_str()
    }

    /// The nets as written. `None` if they are not a list of strings.
    pub fn nets(&self) -> Option<Vec<&str>> {
        match &self.0["spec"]["nets"] {
            Value::Null => Some(vec![]),
            nets => nets.as_array()?.iter().map(Value::as_str).collect(),
        }
    }

    fn is_managed_by(&self, managers: &[&str]) -> bool {
        self.label(MANAGED_BY).is_some_and(|manager| managers.contains(&manager))
    }
}

/// The wanted contents of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WantedSet {
    pub name: String,
    /// Labels apart from that of the manager.
    pub labels: Vec<(String, String)>,
    pub nets: Vec<String>,
}

/// The objects of some managers. Errors include the remedy.
pub struct NetworkSets {
    connection: ApiClient,
    resource: Resource,
    /// The first one is the manager of every object written.
    managers: &'static [&'static str],
}

impl NetworkSets {
    /// Discovers the API group that serves the kind.
    ///
    /// # Errors
    /// If the kind is not served, or discovery fails.
    pub async fn find(connection: &ApiClient, managers: &'static [&'static str]) -> Result<NetworkSets, String> {
        for (group, version) in SERVED {
            let resource = resource(group, version);
            let sets = NetworkSets { connection: connection.clone(), resource, managers };
            match sets.page(Some(1), None).await {
                Ok(_) => return Ok(sets),
                Err(failure) if failure.means_none() => {}
                Err(failure) => return Err(failure.explain(resource)),
            }
        }
        Err("the API server does not serve GlobalNetworkSets (projectcalico.org/v3 or crd.projectcalico.org/v1); \
            install Calico, or remove --export"
            .into())
    }

    /// All objects of the managers.
    ///
    /// # Errors
    /// If they cannot be listed.
    pub async fn list(&self) -> Result<Vec<NetworkSet>, String> {
        let mut found = vec![];
        let mut next = None;
        loop {
            let page = self.page(Some(PAGE_OBJECTS), next).await.map_err(|failure| self.explain(failure))?;
            let items = page["items"].as_array().into_iter().flatten().cloned().map(NetworkSet::of);
            // A server that ignores the label selector also returns foreign objects.
            found.extend(items.filter(|set| set.is_managed_by(self.managers)));
            next = page["metadata"]["continue"].as_str().filter(|token| !token.is_empty()).map(str::to_owned);
            if next.is_none() {
                return Ok(found);
            }
        }
    }

    /// Creates an object.
    ///
    /// # Errors
    /// If an object of the name exists, which is checked before the write, or the server refuses it.
    pub async fn create(&self, wanted: &WantedSet) -> Result<NetworkSet, String> {
        if !is_name(&wanted.name) {
            return Err(format!("invalid object name: {}", wanted.name));
        }
        let client = self.client().await?;
        let request = self.request().get(&wanted.name, &GetParams::default()).map_err(|e| e.to_string())?;
        match within(self.connection.timing.answer, Verb::Get, client.request::<Value>(request)).await {
            Ok(_) => {
                return Err(format!("GlobalNetworkSet {} belongs to another operator; left unchanged", wanted.name));
            }
            Err(failure) if failure.means_none() => {}
            Err(failure) => return Err(self.explain(failure)),
        }
        let Resource { group, version, .. } = self.resource;
        let object = json!({
            "apiVersion": format!("{group}/{version}"), "kind": "GlobalNetworkSet", "metadata": {"name": wanted.name},
        });
        let body = self.filled(object, wanted).to_string().into_bytes();
        let request = self.request().create(&PostParams::default(), body).map_err(|e| e.to_string())?;
        let created = within(self.connection.timing.answer, Verb::Create, client.request(request)).await;
        created.map(NetworkSet::of).map_err(|failure| self.explain(failure))
    }

    /// Replaces the version of the object that was read.
    ///
    /// # Errors
    /// If the object has changed since, or the server refuses the request.
    pub async fn replace(&self, seen: &NetworkSet, wanted: &WantedSet) -> Result<NetworkSet, String> {
        let client = self.client().await?;
        let body = self.filled(seen.0.clone(), wanted).to_string().into_bytes();
        let request = self.request().replace(seen.name(), &PostParams::default(), body).map_err(|e| e.to_string())?;
        let replaced = within(self.connection.timing.answer, Verb::Update, client.request(request)).await;
        replaced.map(NetworkSet::of).map_err(|failure| self.explain(failure))
    }

    /// Deletes the version of the object that was read.
    ///
    /// # Errors
    /// If the object has changed since, or the server refuses the request. It is not an error if it no longer exists.
    pub async fn delete(&self, seen: &NetworkSet) -> Result<(), String> {
        let client = self.client().await?;
        let text = |field: &str| seen.0["metadata"][field].as_str().map(str::to_owned);
        let preconditions = Some(Preconditions { uid: text("uid"), resource_version: text("resourceVersion") });
        let params = DeleteParams { preconditions, ..DeleteParams::default() };
        let request = self.request().delete(seen.name(), &params).map_err(|e| e.to_string())?;
        match within(self.connection.timing.answer, Verb::Delete, client.request::<Value>(request)).await {
            Ok(_) => Ok(()),
            Err(failure) if failure.means_none() => Ok(()),
            Err(failure) => Err(self.explain(failure)),
        }
    }

    async fn page(&self, limit: Option<u32>, next: Option<String>) -> Result<Value, Failure> {
        let client = self.connection.client().await?;
        let label_selector = Some(format!("{MANAGED_BY} in ({})", self.managers.join(",")));
        let params = ListParams { limit, continue_token: next, label_selector, ..ListParams::default() };
        let answer = async {
            let request = self.request().list(&params).map_err(kube::Error::BuildRequest)?;
            client.request(request).await
        };
        within(self.connection.timing.answer, Verb::List, answer).await
    }

    /// The object with the wanted contents and the label of the first manager.
    fn filled(&self, mut object: Value, wanted: &WantedSet) -> Value {
        object["metadata"]["labels"][MANAGED_BY] = self.managers.first().copied().into();
        for (key, value) in &wanted.labels {
            object["metadata"]["labels"][key] = value.as_str().into();
        }
        object["spec"]["nets"] = json!(wanted.nets);
        object
    }

    async fn client(&self) -> Result<kube::Client, String> {
        self.connection.client().await.map_err(|failure| self.explain(failure))
    }

    fn request(&self) -> Request {
        Request::new(format!("{}/{}", self.resource.path(), self.resource.plural))
    }

    fn explain(&self, failure: Failure) -> String {
        failure.explain(self.resource)
    }
}

fn resource(group: &'static str, version: &'static str) -> Resource {
    Resource {
        plural: "globalnetworksets",
        group,
        version,
        alternatives: &[],
        need: Need::Needed,
        manifests: Manifests::OfGroup,
        keep: Keep::Whole,
        only: None,
    }
}
