//! The kinds that enforcement watches.

use policy::{ENFORCEMENT_ANNOTATION, Interner, Kind, Object};
use serde_json::Value;

use super::Keep::{self, All, Each, Only, Whole};
use super::{Manifests, MissingName, Need, Resource, Watchable};

impl Watchable for Object {
    const KINDS: &'static [Kind] = &Kind::ALL;
    const NAMESPACE: Option<Kind> = Some(Kind::Namespace);

    fn resource(kind: Kind) -> Resource {
        let (version, alternatives): (_, &[&str]) = match kind {
            Kind::Namespace | Kind::Pod | Kind::NetworkPolicy | Kind::Node => ("v1", &[]),
            Kind::ClusterNetworkPolicy => ("v1alpha2", &["v1beta1"]),
        };
        let (plural, group, need, manifests, keep) = match kind {
            Kind::Namespace => ("namespaces", "", Need::Needed, Manifests::OfGroup, NAMESPACE),
            Kind::Pod => ("pods", "", Need::Needed, Manifests::OfGroup, POD),
            Kind::NetworkPolicy => {
                ("networkpolicies", "networking.k8s.io", Need::Needed, Manifests::OfAnyVersion, POLICY)
            }
            // Without nodes, rules about tunnels are stricter; those of cluster policies wait for the list.
            Kind::Node => ("nodes", "", Need::Optional, Manifests::OfGroup, NODE),
            // Other groups have a kind of this name. Few clusters have its CustomResourceDefinition.
            Kind::ClusterNetworkPolicy => {
                ("clusternetworkpolicies", "policy.networking.k8s.io", Need::IfServed, Manifests::OfGroup, POLICY)
            }
        };
        Resource { plural, group, version, alternatives, need, manifests, keep, only: None }
    }

    fn lower(interner: &mut Interner, kind: Kind, object: &Value) -> Result<Object, MissingName> {
        policy::lower_with(interner, kind, object).map_err(|policy::Nameless(_)| MissingName)
    }
}

const NAMESPACE: Keep = Only(&[(
    "metadata",
    Only(&[
        ("name", Whole),
        ("uid", Whole),
        ("resourceVersion", Whole),
        ("labels", Whole),
        ("annotations", Only(&[(ENFORCEMENT_ANNOTATION, Whole)])),
    ]),
)]);

const POD: Keep = Only(&[
    (
        "metadata",
        Only(&[
            ("name", Whole),
            ("namespace", Whole),
            ("uid", Whole),
            ("resourceVersion", Whole),
            ("labels", Whole),
            ("annotations", Only(&[("kubernetes.io/config.mirror", Whole)])),
            ("deletionTimestamp", Whole),
            ("creationTimestamp", Whole),
            ("ownerReferences", OWNER_REFERENCES),
        ]),
    ),
    ("spec", POD_SPEC),
    ("status", Only(&[("phase", Whole), ("podIP", Whole), ("podIPs", Whole), ("startTime", Whole)])),
]);

/// The fields of owner references that `policy` reads.
pub const OWNER_REFERENCES: Keep = Each(&Only(&[("kind", Whole), ("name", Whole), ("controller", Whole)]));

/// The fields of a pod's `spec` that `policy` reads, with all fields of its ports.
pub const POD_SPEC: Keep = Only(&[
    ("nodeName", Whole),
    ("hostNetwork", Whole),
    ("containers", Each(&Only(&[("ports", Whole)]))),
    ("initContainers", Each(&Only(&[("ports", Whole), ("restartPolicy", Whole)]))),
]);

/// The annotations of a node that contain addresses.
pub const NODE_ANNOTATIONS: Keep = Only(&[
    ("flannel.alpha.coreos.com/public-ip", Whole),
    ("flannel.alpha.coreos.com/public-ipv6", Whole),
    ("alpha.kubernetes.io/provided-node-ip", Whole),
]);

/// Restricted because every heartbeat of a node repeats its whole status, including the list of images.
const NODE: Keep = Only(&[
    (
        "metadata",
        Only(&[("name", Whole), ("resourceVersion", Whole), ("labels", Whole), ("annotations", NODE_ANNOTATIONS)]),
    ),
    ("spec", Only(&[("podCIDR", Whole), ("podCIDRs", Whole)])),
    ("status", Only(&[("addresses", Whole)])),
]);

/// An unknown field may narrow a policy, so all are kept except metadata that has no meaning in one.
const POLICY: Keep = All(&[(
    "metadata",
    Only(&[
        ("name", Whole),
        ("namespace", Whole),
        ("resourceVersion", Whole),
        ("annotations", Only(&[(ENFORCEMENT_ANNOTATION, Whole)])),
    ]),
)]);
