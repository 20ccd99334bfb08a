//! Identifies workloads that are components of a control plane: by the names that Kubernetes, distributions and vendors
//! use, and only where a tenant cannot create a pod of that name.
//!
//! The lists are part of the documentation (docs/identity.md, "The control plane").

use policy::Labels;

/// Whether a pod is a component of a control plane, according to its own object.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Component {
    #[default]
    No,
    /// A component of a control plane that this cluster hosts for another one, if the pod's namespace is labelled for it
    /// ([`hosts_control_plane`]).
    Hosted,
    /// A component of this cluster's control plane.
    Own,
}

/// The namespace in which Kubernetes and vendors run the control plane.
const NAMESPACE: &str = "kube-system";

/// The workload of API servers that run as pods.
pub const API_SERVER: &str = "kube-apiserver";

/// The components, by the name of their workload; other workloads in the namespace are not components.
const COMPONENTS: [&str; 11] = [
    API_SERVER,
    "kube-controller-manager",
    "kube-scheduler",
    "etcd",
    // kops, and the GCE scripts.
    "etcd-manager-main",
    "etcd-manager-events",
    "etcd-server",
    "etcd-server-events",
    // Gardener.
    "etcd-main",
    "etcd-events",
    // The static pod of OpenShift.
    "openshift-kube-scheduler",
];

/// Cloud controller managers that are not called `<vendor>-cloud-controller-manager`. A suffix such as `-ccm` alone would
/// match too much.
const CLOUD_CONTROLLER_MANAGERS: [&str; 7] = [
    "cloud-controller-manager",
    "ccm",
    "ccm-linode",
    "cloud-provider-equinix-metal",
    "harvester-cloud-provider",
    "vsphere-cpi",
    "vultr-ccm",
];

const CLOUD_CONTROLLER_MANAGER_SUFFIX: &str = "-cloud-controller-manager";

/// The namespaces in which OpenShift runs parts of the control plane that are not static pods, and their workloads.
const OPENSHIFT: [(&str, &str); 4] = [
    ("openshift-apiserver", "apiserver"),
    ("openshift-oauth-apiserver", "apiserver"),
    ("openshift-controller-manager", "controller-manager"),
    ("openshift-route-controller-manager", "route-controller-manager"),
];

const OPENSHIFT_CLOUD_CONTROLLERS: &str = "openshift-cloud-controller-manager";

/// HyperShift's components, in addition to those of Kubernetes, in the namespace of a hosted control plane.
const HYPERSHIFT: [&str; 4] = [
    "openshift-apiserver",
    "openshift-oauth-apiserver",
    "openshift-controller-manager",
    "openshift-route-controller-manager",
];

/// Kamaji runs all components in the pods of one Deployment with a user-defined name.
const KAMAJI_CONTROL_PLANE: &str = "kamaji.clastix.io/name";

/// Labels of namespaces with a hosted control plane: Gardener's, HyperShift's, and the one for all others.
const HOSTING: [(&str, &str); 3] = [
    ("gardener.cloud/role", "shoot"),
    ("hypershift.openshift.io/hosted-control-plane", "true"),
    ("ringfence.io/hosted-control-plane", "true"),
];

/// Classifies a pod by its namespace and labels. `is_static` is true if its kubelet runs it from a file of the node.
pub(crate) fn component(namespace: &str, workload: &str, is_static: bool, labels: &Labels) -> Component {
    let is_cloud_controller = is_cloud_controller_manager(workload);
    let is_component = is_cloud_controller || COMPONENTS.contains(&workload);
    let is_of_openshift =
        OPENSHIFT.contains(&(namespace, workload)) || (namespace == OPENSHIFT_CLOUD_CONTROLLERS && is_cloud_controller);
    if (is_component && (is_static || namespace == NAMESPACE)) || is_of_openshift {
        Component::Own
    } else if is_component || HYPERSHIFT.contains(&workload) || labels.contains_key(KAMAJI_CONTROL_PLANE) {
        Component::Hosted
    } else {
        Component::No
    }
}

/// Whether a namespace with these labels holds a control plane of another cluster. Namespace labels are set by cluster
/// administrators and such operators, pod labels by any user who may create a pod.
pub fn hosts_control_plane(namespace_labels: &Labels) -> bool {
    HOSTING.iter().any(|(key, value)| namespace_labels.get(key).is_some_and(|found| **found == **value))
}

fn is_cloud_controller_manager(workload: &str) -> bool {
    let vendor = workload.strip_suffix(CLOUD_CONTROLLER_MANAGER_SUFFIX);
    CLOUD_CONTROLLER_MANAGERS.contains(&workload) || vendor.is_some_and(|vendor| !vendor.is_empty())
}

#[cfg(test)]
mod tests {
    use crate::testing::labels;

    use super::*;

    fn of(namespace: &str, workload: &str, is_static: bool) -> Component {
        component(namespace, workload, is_static, &Labels::new())
    }

    /// Workload names from the vendors' manifests.
    const OF_VENDORS: [&str; 16] = [
        "cloud-controller-manager",
        "ccm",
        "aws-cloud-controller-manager",
        "azure-cloud-controller-manager",
        "digitalocean-cloud-controller-manager",
        "gcp-cloud-controller-manager",
        "hcloud-cloud-controller-manager",
        "oci-cloud-controller-manager",
        "openstack-cloud-controller-manager",
        "rancher-vsphere-cpi-cloud-controller-manager",
        "vsphere-cloud-controller-manager",
        "ccm-linode",
        "cloud-provider-equinix-metal",
        "harvester-cloud-provider",
        "vsphere-cpi",
        "vultr-ccm",
    ];

    #[test]
    fn cloud_controller_managers_of_vendors_are_components() {
        for name in OF_VENDORS {
            assert_eq!(of("kube-system", name, false), Component::Own, "{name}");
            assert_eq!(of("openshift-cloud-controller-manager", name, false), Component::Own, "{name}");
            assert_eq!(of("shop", name, false), Component::Hosted, "{name} of a tenant");
        }
    }

    #[test]
    fn names_that_resemble_components_are_none() {
        for name in [
            "my-ccm",
            "ccm-exporter",
            "-cloud-controller-manager",
            "cloud-controller-manager-exporter",
            "azure-cloud-node-manager",
            "cloud-node-manager",
            "kube-proxy",
            "konnectivity-agent",
            "etcd-operator",
            "etcd-backup",
            "my-kube-apiserver",
            "kube-apiserver-proxy",
            "apiserver",
            "controller-manager",
        ] {
            for is_static in [false, true] {
                assert_eq!(of("kube-system", name, is_static), Component::No, "{name}");
            }
        }
    }

    #[test]
    fn components_count_in_their_own_namespaces_or_static() {
        for name in COMPONENTS {
            assert_eq!(of("kube-system", name, false), Component::Own, "{name}");
            assert_eq!(of("anywhere", name, true), Component::Own, "{name}");
            assert_eq!(of("anywhere", name, false), Component::Hosted, "{name}");
        }
        for (namespace, name) in OPENSHIFT {
            assert_eq!(of(namespace, name, false), Component::Own, "{namespace}/{name}");
            assert_eq!(of("shop", name, false), Component::No, "{name} of a tenant");
        }
    }

    #[test]
    fn kamaji_pods_are_recognised_by_label() {
        let pod_labels = labels(&[(KAMAJI_CONTROL_PLANE, "tenant-00")]);
        assert_eq!(component("tenants", "tenant-00", false, &pod_labels), Component::Hosted);
        assert_eq!(of("tenants", "tenant-00", false), Component::No);
    }

    #[test]
    fn documentation_lists_every_name_and_label() {
        let text = include_str!("../../../docs/identity.md");
        let openshift = OPENSHIFT.iter().flat_map(|(namespace, name)| [*namespace, *name]);
        let others = [NAMESPACE, OPENSHIFT_CLOUD_CONTROLLERS, KAMAJI_CONTROL_PLANE];
        let names = COMPONENTS.into_iter().chain(CLOUD_CONTROLLER_MANAGERS).chain(HYPERSHIFT).chain(openshift);
        for name in names.chain(others) {
            assert!(text.contains(&format!("`{name}`")), "{name}");
        }
        assert!(text.contains(&format!("`<vendor>{CLOUD_CONTROLLER_MANAGER_SUFFIX}`")));
        for (key, value) in HOSTING {
            assert!(text.contains(&format!("`{key}={value}`")), "{key}={value}");
        }
    }

    #[test]
    fn namespaces_host_control_planes_by_label() {
        for pair in HOSTING {
            assert!(hosts_control_plane(&labels(&[pair, ("team", "a")])), "{pair:?}");
            assert!(!hosts_control_plane(&labels(&[(pair.0, "other")])), "{pair:?}");
        }
        assert!(!hosts_control_plane(&Labels::new()));
    }
}
