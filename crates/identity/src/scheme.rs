//! Computes identities of pods from the objects of a cluster.

use std::net::IpAddr;
use std::sync::Arc;

use policy::{ClusterState, Holder, Labels, Pod};

use crate::{EndIdentity, Exclusion, LabelFilter, ReservedIdentity, Sid, service_identity};

/// The namespace whose UID names a cluster: it exists throughout the cluster's lifetime.
pub const CLUSTER_NAMESPACE: &str = "kube-system";

/// The name of the cluster of these objects: the UID of [`CLUSTER_NAMESPACE`]; `None` while it is unknown.
pub fn cluster_uid(state: &ClusterState) -> Option<Arc<str>> {
    let namespace = state.namespace(CLUSTER_NAMESPACE)?;
    (!namespace.uid.is_empty()).then(|| namespace.uid.to_string().into())
}

/// The parameters that every component must share to compute the same identities of a cluster.
///
/// ```
/// use identity::{LabelFilter, Scheme};
/// use policy::{Change, ClusterState, Kind, ObjectName, lower};
/// use serde_json::json;
///
/// let mut state = ClusterState::new();
/// let pod = json!({"metadata": {"namespace": "shop", "name": "web-1", "labels": {"app": "web"}}});
/// for (kind, object) in [(Kind::Namespace, json!({"metadata": {"name": "shop"}})), (Kind::Pod, pod)] {
///     state.apply(Change::Set(lower(kind, &object).unwrap()));
/// }
/// let cluster = "0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9".into();
/// let scheme = Scheme { cluster, filter: LabelFilter::default() };
/// let pod = state.pod(&ObjectName::new("shop", "web-1")).unwrap();
/// assert_eq!(scheme.of_pod(&state, pod).to_string(), "shop rdsrexpux6y4o");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scheme {
    /// The name of the cluster, normally its [`cluster_uid`].
    pub cluster: Arc<str>,
    /// The filter of labels.
    pub filter: LabelFilter,
}

/// Inputs of a pod's identity: the canonical form before its encoding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Basis {
    pub namespace: Arc<str>,
    /// The relevant labels of the pod.
    pub labels: Labels,
    /// The relevant labels of its namespace.
    pub namespace_labels: Labels,
}

/// A label that is not part of the identity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExcludedLabel<'a> {
    pub object: LabelledObject,
    pub key: &'a Arc<str>,
    pub value: &'a Arc<str>,
    pub exclusion: Exclusion<'a>,
}

/// The object that has a label.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LabelledObject {
    Pod,
    Namespace,
}

impl Scheme {
    /// The inputs of the pod's identity.
    ///
    /// # Errors
    /// The reserved identity if the pod has no security identity: [`ReservedIdentity::Host`] for a pod on the host network,
    /// [`ReservedIdentity::Init`] while the labels of the pod or of its namespace are unknown.
    pub fn basis(&self, state: &ClusterState, pod: &Pod) -> Result<Basis, ReservedIdentity> {
        if pod.host_network {
            return Err(ReservedIdentity::Host);
        }
        let namespace = pod.name.namespace.clone();
        match state.namespace_labels(&namespace) {
            Some(of_namespace) if !pod.unreadable => Ok(Basis {
                namespace,
                labels: part(&pod.labels, |key| self.filter.includes(key)),
                namespace_labels: match self.filter.is_default() {
                    true => of_namespace.clone(),
                    false => part(of_namespace, |key| self.filter.includes_of_namespace(key)),
                },
            }),
            Some(_) | None => Err(ReservedIdentity::Init),
        }
    }

    /// The security identity with these inputs.
    pub fn sid(&self, basis: &Basis) -> Sid {
        Sid::of(&self.cluster, &basis.namespace, &basis.labels, &basis.namespace_labels)
    }

    /// The identity of the pod, regardless of whether an agent runs on its node.
    pub fn of_pod(&self, state: &ClusterState, pod: &Pod) -> EndIdentity {
        let service = || service_identity(&pod.name.namespace, &pod.labels).into_owned();
        match self.basis(state, pod) {
            Ok(basis) => EndIdentity::of_sid(self.sid(&basis), service()),
            Err(ReservedIdentity::Host) => EndIdentity::reserved(ReservedIdentity::Host, None),
            Err(reserved) => EndIdentity::reserved(reserved, Some(service())),
        }
    }

    /// The identity of an address, by the objects of the cluster alone.
    pub fn of_address(&self, state: &ClusterState, address: IpAddr) -> EndIdentity {
        let reserved = match state.holder(address) {
            Some(Holder::Pod(pod)) => return self.of_pod(state, pod),
            // The labels of a pod are unknown before its object is received.
            Some(Holder::Unknown(_)) => ReservedIdentity::Init,
            None if state.nodes_with(address).next().is_some() => ReservedIdentity::Host,
            None if state.remote_sets_with(address).next().is_some() => ReservedIdentity::Remote,
            None => ReservedIdentity::World,
        };
        EndIdentity::reserved(reserved, None)
    }

    /// The labels of the pod and of its namespace that are not part of the identity, and why.
    pub fn excluded<'a>(&'a self, state: &'a ClusterState, pod: &'a Pod) -> impl Iterator<Item = ExcludedLabel<'a>> {
        let of_pod = pod.labels.iter().filter_map(|(key, value)| {
            let exclusion = self.filter.exclusion(key)?;
            Some(ExcludedLabel { object: LabelledObject::Pod, key, value, exclusion })
        });
        let namespace = state.namespace_labels(&pod.name.namespace).into_iter().flat_map(Labels::iter);
        let of_namespace = namespace.filter_map(|(key, value)| {
            let exclusion = self.filter.exclusion_of_namespace(key)?;
            Some(ExcludedLabel { object: LabelledObject::Namespace, key, value, exclusion })
        });
        of_pod.chain(of_namespace)
    }
}

fn part(labels: &Labels, is_included: impl Fn(&str) -> bool) -> Labels {
    let included = labels.iter().filter(|(key, _)| is_included(key));
    included.map(|(key, value)| (key.clone(), value.clone())).collect()
}

#[cfg(test)]
mod tests {
    use policy::{Change, Kind, ObjectName, lower};
    use serde_json::{Value, json};

    use super::*;

    fn state(objects: &[(Kind, Value)]) -> ClusterState {
        let mut state = ClusterState::new();
        for (kind, object) in objects {
            state.apply(Change::Set(lower(*kind, object).unwrap()));
        }
        state
    }

    fn scheme(patterns: &[&str]) -> Scheme {
        let patterns = patterns.iter().map(|text| text.parse().unwrap());
        Scheme { cluster: "c".into(), filter: LabelFilter::with(patterns) }
    }

    fn namespace(labels: Value) -> (Kind, Value) {
        (Kind::Namespace, json!({"metadata": {"name": "shop", "labels": labels}}))
    }

    fn pod(labels: Value, spec: Value) -> (Kind, Value) {
        (Kind::Pod, json!({"metadata": {"namespace": "shop", "name": "web-1", "labels": labels}, "spec": spec}))
    }

    fn identity(scheme: &Scheme, objects: &[(Kind, Value)]) -> EndIdentity {
        let state = state(objects);
        scheme.of_pod(&state, state.pod(&ObjectName::new("shop", "web-1")).unwrap())
    }

    #[test]
    fn excluded_labels_do_not_change_the_identity() {
        let plain = [namespace(json!({"team": "shop"})), pod(json!({"app": "web"}), json!({}))];
        let more = json!({"app": "web", "job-name": "x", "node.k8s.io/x": "y"});
        let labelled = [namespace(json!({"team": "shop"})), pod(more, json!({}))];
        let scheme = scheme(&[]);
        assert_eq!(identity(&scheme, &plain), identity(&scheme, &labelled));
        let state = state(&labelled);
        let excluded = scheme.excluded(&state, state.pod(&ObjectName::new("shop", "web-1")).unwrap());
        let reasons: Vec<String> = excluded.map(|label| format!("{}: {}", label.key, label.exclusion)).collect();
        assert_eq!(reasons, ["job-name: differs between the pods of a workload", "node.k8s.io/x: pattern !*.k8s.io/"]);
    }

    #[test]
    fn patterns_apply_to_labels_of_namespaces() {
        let teams = ["shop", "data"].map(|team| [namespace(json!({"team": team})), pod(json!({}), json!({}))]);
        let of = |patterns: &[&str]| teams.each_ref().map(|objects| identity(&scheme(patterns), objects));
        let [a, b] = of(&[]);
        assert_ne!(a, b);
        let [a, b] = of(&["!team"]);
        assert_eq!(a, b);
    }

    #[test]
    fn pod_without_known_labels_has_a_reserved_identity() {
        let scheme = scheme(&[]);
        let web = || pod(json!({"app": "web"}), json!({}));
        let init = EndIdentity::reserved(ReservedIdentity::Init, Some("shop".into()));
        assert_eq!(identity(&scheme, &[web()]), init, "namespace not known");
        assert_eq!(identity(&scheme, &[namespace(json!({"a": 7})), web()]), init, "namespace not readable");
        assert_eq!(identity(&scheme, &[namespace(json!({})), pod(json!({"a": 7}), json!({}))]), init);
        let on_host = pod(json!({}), json!({"hostNetwork": true, "nodeName": "node-a"}));
        let host = EndIdentity::reserved(ReservedIdentity::Host, None);
        assert_eq!(identity(&scheme, &[namespace(json!({})), on_host]), host);
    }

    #[test]
    fn cluster_uid_is_uid_of_kube_system() {
        let kube_system = |uid: Value| (Kind::Namespace, json!({"metadata": {"name": "kube-system", "uid": uid}}));
        assert_eq!(cluster_uid(&state(&[kube_system(json!("0a1b"))])).as_deref(), Some("0a1b"));
        assert_eq!(cluster_uid(&state(&[kube_system(json!(null))])), None);
        assert_eq!(cluster_uid(&state(&[namespace(json!({}))])), None);
    }
}
