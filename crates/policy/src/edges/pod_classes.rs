//! Index from pods to their classes.

use std::borrow::Borrow;
use std::collections::HashSet;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use super::numbering::Numbers;
use crate::{ObjectName, Pod};

/// By name. The names are those inside the pods, so that each is stored once.
#[derive(Debug, Clone, Default)]
pub(super) struct Pods(HashSet<ClassifiedPod>);

/// A pod, hashed by its name, and its classes, one per family of its addresses.
#[derive(Debug, Clone)]
struct ClassifiedPod {
    pod: Arc<Pod>,
    classes: Numbers,
}

impl Pods {
    /// Returns the previous classes.
    pub(super) fn upsert(&mut self, pod: Arc<Pod>, classes: Numbers) -> Option<Numbers> {
        self.0.replace(ClassifiedPod { pod, classes }).map(|before| before.classes)
    }

    pub(super) fn remove(&mut self, name: &ObjectName) -> Option<Numbers> {
        self.0.take(name).map(|before| before.classes)
    }
}

impl Borrow<ObjectName> for ClassifiedPod {
    fn borrow(&self) -> &ObjectName {
        &self.pod.name
    }
}

impl Hash for ClassifiedPod {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.pod.name.hash(state);
    }
}

impl PartialEq for ClassifiedPod {
    fn eq(&self, other: &ClassifiedPod) -> bool {
        self.pod.name == other.pod.name
    }
}

impl Eq for ClassifiedPod {}
