//! Security identities as this agent computes them, from its own informers (docs/identity.md).

use std::net::IpAddr;

use identity::{Basis, EndIdentity, LabelledObject, ReservedIdentity, Scheme};
use policy::{ClusterState, Explanation, FlowEnd, Labels, ObjectName, Pod};

use crate::api::ExplainResponse;
use crate::api::drops::{DropEnd, EndKind};
use crate::api::identity::{ExcludedLabel, IdentityReport, IdentitySubject};
use crate::reports::Ends;

/// Why an identity cannot be computed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum IdentityError {
    #[error("pod {0} not found; expected NAMESPACE/NAME of a pod, or an address")]
    UnknownPod(ObjectName),
    #[error(
        "the cluster has no name: namespace kube-system, whose UID is the name of the cluster, not found; set the name \
         with --cluster-id"
    )]
    UnknownCluster,
}

/// Adds the identities of both ends to an explanation.
pub(crate) fn explained(ends: &Ends, explanation: Explanation, notes: Vec<String>) -> ExplainResponse {
    let identity = |party: &FlowEnd| ends.identity(&ends.of_address(party.address));
    let (source_identity, destination_identity) = (identity(&explanation.source), identity(&explanation.destination));
    ExplainResponse { explanation, source_identity, destination_identity, notes, seen: None }
}

/// Computes the identity of a pod or an address, with the labels that it is derived from.
pub(crate) fn identify(ends: &Ends, subject: &IdentitySubject) -> Result<IdentityReport, IdentityError> {
    let scheme = ends.scheme.ok_or(IdentityError::UnknownCluster)?;
    match subject {
        IdentitySubject::Pod(name) => {
            let pod = ends.state.pod(name).ok_or_else(|| IdentityError::UnknownPod(name.clone()))?;
            let addresses = match pod.host_network {
                true => pod.addresses.iter().collect(),
                false => ends.state.addresses_of(pod).collect(),
            };
            Ok(of_pod(ends.state, scheme, pod, addresses))
        }
        IdentitySubject::Address(address) => Ok(of_address(ends, scheme, *address)),
    }
}

fn of_address(ends: &Ends, scheme: &Scheme, address: IpAddr) -> IdentityReport {
    if let Some(pod) = ends.state.owner(address) {
        return of_pod(ends.state, scheme, pod, vec![address]);
    }
    let end = ends.of_address(address);
    let identity = ends.identity(&end).unwrap_or_else(|| EndIdentity::reserved(ReservedIdentity::World, None));
    let DropEnd { address: _, kind: _, pod, node, cluster, set } = &end;
    let or_unnamed = |name: &Option<String>| name.clone().unwrap_or_else(|| "of no known name".into());
    let reason = match end.kind {
        EndKind::Node => format!("the address belongs to node {}", or_unnamed(node)),
        EndKind::RemoteCluster => match set {
            Some(set) => format!("the address belongs to remote set {}/{set}", or_unnamed(cluster)),
            None => format!("the address is in a range of cluster {}", or_unnamed(cluster)),
        },
        EndKind::Pod | EndKind::UnknownPod => format!(
            "the address belongs to a pod of this node ({}) whose object has not been received",
            or_unnamed(pod)
        ),
        EndKind::World | EndKind::Unknown => "no known pod, node or remote set has the address".into(),
    };
    IdentityReport {
        pod: end.pod.clone(),
        addresses: vec![address],
        identity,
        reason: Some(reason),
        cluster: scheme.cluster.to_string(),
        namespace: None,
        labels: Default::default(),
        namespace_labels: Default::default(),
        excluded: vec![],
    }
}

fn of_pod(state: &ClusterState, scheme: &Scheme, pod: &Pod, addresses: Vec<IpAddr>) -> IdentityReport {
    let owned = |labels: &Labels| labels.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
    let basis = scheme.basis(state, pod);
    let reason = basis.as_ref().err().map(|reserved| match reserved {
        ReservedIdentity::Host => "the pod is on the host network: its addresses are those of its node".to_owned(),
        _ if pod.unreadable => "the pod's object was not understood, so its labels are not known".to_owned(),
        _ => format!("the labels of namespace {} are not known", policy::plain(&pod.name.namespace)),
    });
    let excluded = match &basis {
        Ok(_) => scheme.excluded(state, pod).map(excluded_label).collect(),
        Err(_) => vec![],
    };
    let (labels, namespace_labels) = match &basis {
        Ok(Basis { namespace: _, labels, namespace_labels }) => (owned(labels), owned(namespace_labels)),
        Err(_) => Default::default(),
    };
    IdentityReport {
        pod: Some(pod.name.to_string()),
        addresses,
        identity: scheme.of_pod(state, pod),
        reason,
        cluster: scheme.cluster.to_string(),
        namespace: Some(pod.name.namespace.to_string()),
        labels,
        namespace_labels,
        excluded,
    }
}

fn excluded_label(label: identity::ExcludedLabel) -> ExcludedLabel {
    ExcludedLabel {
        object: match label.object {
            LabelledObject::Pod => "pod".into(),
            LabelledObject::Namespace => "namespace".into(),
        },
        key: label.key.to_string(),
        value: label.value.to_string(),
        reason: label.exclusion.to_string(),
    }
}
