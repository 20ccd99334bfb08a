//! Templates: the common part of pods that are equal to consumers, mostly from their pod template.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::sync::Arc;

use ::identity::{API_SERVER, Component, ReservedIdentity, app_name, service_identity};
use policy::Labels;
use policy::remote::RemoteSet;

use crate::exposure::Exposures;
use crate::labels::bounded;
use crate::object::IdentityPod;

/// The workload in records of Ingresses and Gateways.
const INGRESS: &str = "ingress";

/// Templates of pods are interned, so that most comparisons are by pointer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    /// Empty if the address belongs to no pod; for a pod of another cluster, the namespace there.
    pub namespace: Arc<str>,
    /// A node's name for a node, a set's name for a pod of another cluster.
    pub workload: Arc<str>,
    pub app: Arc<str>,
    pub(crate) component: Component,
    /// All labels, unpublished ones included.
    pub(crate) pod_labels: Labels,
    pub(crate) unreadable: bool,
    pub(crate) host_network: bool,
    pub(crate) host_port: bool,
}

impl Ord for Template {
    fn cmp(&self, other: &Template) -> Ordering {
        let parts = |of: &Template| (of.component, of.unreadable, of.host_network, of.host_port);
        if std::ptr::eq(self, other) {
            return Ordering::Equal;
        }
        let names = self.namespace.cmp(&other.namespace).then_with(|| self.workload.cmp(&other.workload));
        let rest = || self.app.cmp(&other.app).then_with(|| self.pod_labels.cmp(&other.pod_labels));
        names.then_with(rest).then_with(|| parts(self).cmp(&parts(other)))
    }
}

impl PartialOrd for Template {
    fn partial_cmp(&self, other: &Template) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Template {
    pub(crate) fn of(pod: &IdentityPod) -> Template {
        let IdentityPod { base, workload, component, ready: _, failing: _, host_port, problems: _ } = pod;
        Template {
            namespace: base.name.namespace.clone(),
            workload: workload.clone(),
            app: app_name(&base.labels, workload),
            component: *component,
            pod_labels: base.labels.clone(),
            unreadable: base.unreadable,
            host_network: base.host_network,
            // The API server sets one for each port of a pod on the host network, where it has no meaning.
            host_port: *host_port && !base.host_network,
        }
    }

    pub(crate) fn is_exposed(&self, exposures: &Exposures) -> bool {
        self.host_port || exposures.reach(&self.namespace, &self.pod_labels)
    }

    /// The substitute for a node.
    pub(crate) fn of_node(name: &Arc<str>) -> Template {
        Template::of_name(Arc::default(), name)
    }

    /// An API server that is not a pod of this cluster.
    pub(crate) fn of_api_server() -> Template {
        Template { component: Component::Own, ..Template::of_name(Arc::default(), &API_SERVER.into()) }
    }

    /// The substitute for an address of Ingresses or Gateways.
    pub(crate) fn of_ingress() -> Template {
        Template::of_name(Arc::default(), &INGRESS.into())
    }

    /// The substitute for a range, named after its reserved identity.
    pub(crate) fn of_range(state: ReservedIdentity) -> Template {
        Template::of_name(Arc::default(), &state.text().into())
    }

    /// The pods of another cluster in a set.
    pub(crate) fn of_remote(set: &RemoteSet) -> Template {
        Template::of_name(set.namespace.clone(), &set.name)
    }

    fn of_name(namespace: Arc<str>, name: &Arc<str>) -> Template {
        Template {
            namespace,
            workload: name.clone(),
            app: name.clone(),
            component: Component::No,
            pod_labels: Labels::new(),
            unreadable: false,
            host_network: true,
            host_port: false,
        }
    }

    /// The published labels.
    pub fn labels(&self) -> impl Iterator<Item = (&Arc<str>, &Arc<str>)> {
        bounded(&self.pod_labels)
    }

    /// The service identity: `namespace`, or `namespace/part`; empty for a node.
    pub(crate) fn service(&self) -> Cow<'_, str> {
        service_identity(&self.namespace, &self.pod_labels)
    }
}
