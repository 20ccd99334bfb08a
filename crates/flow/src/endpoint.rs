//! The ends of connections: the endpoint in a record's key, and the members that a record only lists.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use identity::EndIdentity;
use serde::{Deserialize, Serialize};

/// End of a connection as part of a record's key. All pods of a workload are one endpoint.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Endpoint {
    pub kind: EndpointKind,
    /// Namespace of a pod or remote set; `None` for other kinds.
    pub namespace: Option<Arc<str>>,
    /// Workload of a pod, name of a node, or name of a remote set; `None` if there is no name.
    pub name: Option<Arc<str>>,
    /// Namespace, or `namespace/label` (docs/identity.md); only for pods.
    pub service: Option<Arc<str>>,
    /// Name of the other cluster.
    pub cluster: Option<Arc<str>>,
    /// Network of an end outside the cluster; only for the kind `world`.
    pub network: Option<Network>,
}

impl Endpoint {
    /// The names in it.
    pub fn names(&self) -> impl Iterator<Item = &Arc<str>> {
        let Endpoint { kind: _, namespace, name, service, cluster, network: _ } = self;
        [namespace, name, service, cluster].into_iter().flatten()
    }
}

/// Table form: `shop/web`, `node/worker-1`, `east:shop/web` (in another cluster), `kube-apiserver`, `unknown-pod`,
/// `world/private`.
impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Endpoint { kind, namespace, name, service: _, cluster, network } = self;
        if let Some(cluster) = cluster {
            write!(f, "{cluster}:")?;
        }
        match (kind, namespace, name, network) {
            (EndpointKind::Pod | EndpointKind::RemoteCluster, Some(namespace), Some(name), _) => {
                write!(f, "{namespace}/{name}")
            }
            (EndpointKind::World, _, _, Some(Network::Private)) => f.write_str("world/private"),
            (EndpointKind::World, _, _, Some(Network::Public)) => f.write_str("world/public"),
            (kind, _, Some(name), _) => write!(f, "{}/{name}", kind.as_str()),
            (kind, _, None, _) => f.write_str(kind.as_str()),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EndpointKind {
    Pod,
    /// A node of this cluster, and every pod on its network.
    Node,
    /// An API server of this cluster, by the endpoints of the Service default/kubernetes.
    KubeApiserver,
    RemoteCluster,
    /// An address of this node's pod ranges that belongs to no known pod.
    UnknownPod,
    /// Any other address.
    World,
}

impl EndpointKind {
    /// The word of the JSON form.
    pub fn as_str(self) -> &'static str {
        match self {
            EndpointKind::Pod => "pod",
            EndpointKind::Node => "node",
            EndpointKind::KubeApiserver => "kube-apiserver",
            EndpointKind::RemoteCluster => "remote-cluster",
            EndpointKind::UnknownPod => "unknown-pod",
            EndpointKind::World => "world",
        }
    }
}

/// Whether an address outside the cluster is reachable from everywhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Network {
    Private,
    Public,
}

/// One holder of an address at an end, listed in records of its endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    pub address: IpAddr,
    /// `namespace/name` of the pod.
    pub pod: Option<Arc<str>>,
    /// Name of the node that the pod runs on, or that has the address.
    pub node: Option<Arc<str>>,
    /// A subset of the pod's labels.
    pub labels: Arc<[(Arc<str>, Arc<str>)]>,
    pub identity: Option<EndIdentity>,
}

/// Service port that a client connected to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServicePort {
    pub namespace: Arc<str>,
    pub name: Arc<str>,
    /// `None` if the port of the Service has no name.
    pub port_name: Option<Arc<str>>,
    /// Port that the client connected to: the Service port or its NodePort.
    pub port: u16,
}

/// `shop/web:http`; the port number if the port has no name.
impl fmt::Display for ServicePort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ServicePort { namespace, name, port_name, port } = self;
        match port_name {
            Some(port_name) => write!(f, "{namespace}/{name}:{port_name}"),
            None => write!(f, "{namespace}/{name}:{port}"),
        }
    }
}
