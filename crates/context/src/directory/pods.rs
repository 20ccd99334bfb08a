//! Index of pods by name.

use std::borrow::Borrow;
use std::collections::HashSet;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use policy::ObjectName;

use crate::object::IdentityPod;
use crate::template::Template;

#[derive(Debug, Clone)]
pub(super) struct PodEntry {
    pub(super) pod: Arc<IdentityPod>,
    /// `None` for a finished pod.
    pub(super) template: Option<Arc<Template>>,
}

impl PodEntry {
    pub(super) fn workload(&self) -> Option<&Arc<str>> {
        self.template.as_ref().map(|template| &template.workload)
    }
}

/// Keys are the names in the pods themselves, so that each name is stored once.
#[derive(Debug, Default)]
pub(super) struct Pods(HashSet<ByName>);

/// A pod that is hashed and compared by name.
#[derive(Debug)]
struct ByName(PodEntry);

impl Pods {
    pub(super) fn get(&self, name: &ObjectName) -> Option<&PodEntry> {
        self.0.get(name).map(|ByName(known)| known)
    }

    /// Inserts the pod, replacing the one of the same name.
    pub(super) fn upsert(&mut self, known: PodEntry) {
        self.0.replace(ByName(known));
    }

    pub(super) fn remove(&mut self, name: &ObjectName) {
        self.0.remove(name);
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &ObjectName> {
        self.0.iter().map(ByName::name)
    }
}

impl ByName {
    fn name(&self) -> &ObjectName {
        &self.0.pod.base.name
    }
}

impl Borrow<ObjectName> for ByName {
    fn borrow(&self) -> &ObjectName {
        self.name()
    }
}

impl Hash for ByName {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name().hash(state);
    }
}

impl PartialEq for ByName {
    fn eq(&self, other: &ByName) -> bool {
        self.name() == other.name()
    }
}

impl Eq for ByName {}
