//! Index of pods by name.

use std::borrow::Borrow;
use std::collections::HashSet;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use policy::ObjectName;

use crate::object::Pod;
use crate::template::Template;

#[derive(Debug, Clone)]
pub(super) struct Known {
    pub(super) pod: Arc<Pod>,
    /// `None` for a finished pod.
    pub(super) template: Option<Arc<Template>>,
}

impl Known {
    pub(super) fn workload(&self) -> Option<&Arc<str>> {
        self.template.as_ref().map(|template| &template.workload)
    }
}

/// Keys are the names in the pods themselves, so that each name is stored once.
#[derive(Debug, Default)]
pub(super) struct Pods(HashSet<Named>);

/// A pod that is hashed and compared by name.
#[derive(Debug)]
struct Named(Known);

impl Pods {
    pub(super) fn get(&self, name: &ObjectName) -> Option<&Known> {
        self.0.get(name).map(|Named(known)| known)
    }

    /// Inserts the pod, replacing the one of the same name.
    pub(super) fn put(&mut self, known: Known) {
        self.0.replace(Named(known));
    }

    pub(super) fn remove(&mut self, name: &ObjectName) {
        self.0.remove(name);
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &ObjectName> {
        self.0.iter().map(Named::name)
    }
}

impl Named {
    fn name(&self) -> &ObjectName {
        &self.0.pod.base.name
    }
}

impl Borrow<ObjectName> for Named {
    fn borrow(&self) -> &ObjectName {
        self.name()
    }
}

impl Hash for Named {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name().hash(state);
    }
}

impl PartialEq for Named {
    fn eq(&self, other: &Named) -> bool {
        self.name() == other.name()
    }
}

impl Eq for Named {}
