//! The objects of the context provider: those that enforcement uses, with the workloads of pods, those that expose a
//! workload to the outside, and those with the addresses of API servers.

mod exposure;
mod nodes;
mod pod;
#[cfg(test)]
mod tests;
mod watched;

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use ::identity::Component;
use cluster::Problem;
pub use cluster::{EndpointSlice, Service};
use policy::{ClusterPolicy, Namespace, ObjectName, Policy, Problems};

type WatchedReader<'a> = cluster::ObjectReader<'a, WatchedKind>;

/// The kinds of object that the provider watches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WatchedKind {
    Namespace,
    Pod,
    NetworkPolicy,
    /// For the node's addresses and pod ranges.
    Node,
    ClusterNetworkPolicy,
    Service,
    /// Only the slices of the Service `default/kubernetes`: the addresses of API servers.
    EndpointSlice,
    Ingress,
    /// Of the Gateway API, as the routes below.
    Gateway,
    HttpRoute,
    GrpcRoute,
    TlsRoute,
    TcpRoute,
    UdpRoute,
}

impl WatchedKind {
    pub const ALL: [WatchedKind; 14] = [
        WatchedKind::Namespace,
        WatchedKind::Pod,
        WatchedKind::NetworkPolicy,
        WatchedKind::Node,
        WatchedKind::ClusterNetworkPolicy,
        WatchedKind::Service,
        WatchedKind::EndpointSlice,
        WatchedKind::Ingress,
        WatchedKind::Gateway,
        WatchedKind::HttpRoute,
        WatchedKind::GrpcRoute,
        WatchedKind::TlsRoute,
        WatchedKind::TcpRoute,
        WatchedKind::UdpRoute,
    ];

    /// Required kinds. The others only classify: identities are published even if these cannot be listed, and the
    /// status reports the missing ones.
    pub const NEEDED: [WatchedKind; 3] = [WatchedKind::Namespace, WatchedKind::Pod, WatchedKind::NetworkPolicy];
}

impl From<policy::Kind> for WatchedKind {
    fn from(kind: policy::Kind) -> WatchedKind {
        match kind {
            policy::Kind::Namespace => WatchedKind::Namespace,
            policy::Kind::Pod => WatchedKind::Pod,
            policy::Kind::NetworkPolicy => WatchedKind::NetworkPolicy,
            policy::Kind::Node => WatchedKind::Node,
            policy::Kind::ClusterNetworkPolicy => WatchedKind::ClusterNetworkPolicy,
        }
    }
}

impl fmt::Display for WatchedKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            WatchedKind::Namespace => "Namespace",
            WatchedKind::Pod => "Pod",
            WatchedKind::NetworkPolicy => "NetworkPolicy",
            WatchedKind::Node => "Node",
            WatchedKind::ClusterNetworkPolicy => "ClusterNetworkPolicy",
            WatchedKind::Service => "Service",
            WatchedKind::EndpointSlice => "EndpointSlice",
            WatchedKind::Ingress => "Ingress",
            WatchedKind::Gateway => "Gateway",
            WatchedKind::HttpRoute => "HTTPRoute",
            WatchedKind::GrpcRoute => "GRPCRoute",
            WatchedKind::TlsRoute => "TLSRoute",
            WatchedKind::TcpRoute => "TCPRoute",
            WatchedKind::UdpRoute => "UDPRoute",
        })
    }
}

#[derive(Debug, Clone, PartialEq)]
pub enum WatchedObject {
    Namespace(Arc<Namespace>),
    Pod(Arc<IdentityPod>),
    Policy(Arc<Policy>),
    Node(Arc<IdentityNode>),
    ClusterPolicy(Arc<ClusterPolicy>),
    Service(Arc<Service>),
    EndpointSlice(Arc<EndpointSlice>),
    /// An Ingress, a Gateway or a route.
    Exposure(Arc<Exposure>),
}

impl WatchedObject {
    pub fn kind(&self) -> WatchedKind {
        match self {
            WatchedObject::Namespace(_) => WatchedKind::Namespace,
            WatchedObject::Pod(_) => WatchedKind::Pod,
            WatchedObject::Policy(_) => WatchedKind::NetworkPolicy,
            WatchedObject::Node(_) => WatchedKind::Node,
            WatchedObject::ClusterPolicy(_) => WatchedKind::ClusterNetworkPolicy,
            WatchedObject::Service(_) => WatchedKind::Service,
            WatchedObject::EndpointSlice(_) => WatchedKind::EndpointSlice,
            WatchedObject::Exposure(exposure) => exposure.kind,
        }
    }

    pub fn name(&self) -> &ObjectName {
        match self {
            WatchedObject::Namespace(o) => &o.name,
            WatchedObject::Pod(o) => &o.base.name,
            WatchedObject::Policy(o) => &o.name,
            WatchedObject::Node(o) => &o.base.name,
            WatchedObject::ClusterPolicy(o) => &o.name,
            WatchedObject::Service(o) => &o.name,
            WatchedObject::EndpointSlice(o) => &o.name,
            WatchedObject::Exposure(o) => &o.name,
        }
    }

    /// Fields that could not be parsed and that enforcement does not use; the others are in the [`policy::Diagnostic`]s
    /// of the objects.
    pub fn problems(&self) -> &[Problem] {
        match self {
            WatchedObject::Namespace(_)
            | WatchedObject::Policy(_)
            | WatchedObject::Node(_)
            | WatchedObject::ClusterPolicy(_) => &[],
            WatchedObject::Pod(o) => &o.problems,
            WatchedObject::Service(o) => &o.problems,
            WatchedObject::EndpointSlice(o) => &o.problems,
            WatchedObject::Exposure(o) => &o.problems,
        }
    }
}

/// The enforcement's model of a pod, with the fields that identities need.
#[derive(Debug, Clone, PartialEq)]
pub struct IdentityPod {
    pub base: Arc<policy::Pod>,
    /// The workload that it belongs to ([`::identity::Workload`]).
    pub workload: Arc<str>,
    /// Whether it is a component of a control plane.
    pub component: Component,
    /// The condition `Ready` is `True`.
    pub ready: bool,
    /// The pod is not ready, and one of its containers has failed or been restarted.
    pub failing: bool,
    /// Some container has a `hostPort`.
    pub host_port: bool,
    pub problems: Problems<Problem>,
}

/// The enforcement's model of a node, with the fields that identities need.
#[derive(Debug, Clone, PartialEq)]
pub struct IdentityNode {
    pub base: Arc<policy::Node>,
    /// It has a control-plane label.
    pub control_plane: bool,
}

/// An object that routes traffic from outside to Services.
#[derive(Debug, Clone, PartialEq)]
pub struct Exposure {
    pub kind: WatchedKind,
    pub name: ObjectName,
    /// The named Services, sorted and unique.
    pub services: Vec<ObjectName>,
    /// Addresses of an Ingress or a Gateway from its status, sorted and unique.
    pub addresses: Vec<IpAddr>,
    pub problems: Box<[Problem]>,
}
