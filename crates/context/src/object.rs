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

type Reader<'a> = cluster::ObjectReader<'a, Kind>;

/// The kinds of object that the provider watches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
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

impl Kind {
    pub const ALL: [Kind; 14] = [
        Kind::Namespace,
        Kind::Pod,
        Kind::NetworkPolicy,
        Kind::Node,
        Kind::ClusterNetworkPolicy,
        Kind::Service,
        Kind::EndpointSlice,
        Kind::Ingress,
        Kind::Gateway,
        Kind::HttpRoute,
        Kind::GrpcRoute,
        Kind::TlsRoute,
        Kind::TcpRoute,
        Kind::UdpRoute,
    ];

    /// Required kinds. The others only classify: identities are published even if these cannot be listed, and the
    /// status reports the missing ones.
    pub const NEEDED: [Kind; 3] = [Kind::Namespace, Kind::Pod, Kind::NetworkPolicy];
}

impl From<policy::Kind> for Kind {
    fn from(kind: policy::Kind) -> Kind {
        match kind {
            policy::Kind::Namespace => Kind::Namespace,
            policy::Kind::Pod => Kind::Pod,
            policy::Kind::NetworkPolicy => Kind::NetworkPolicy,
            policy::Kind::Node => Kind::Node,
            policy::Kind::ClusterNetworkPolicy => Kind::ClusterNetworkPolicy,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Namespace => "Namespace",
            Kind::Pod => "Pod",
            Kind::NetworkPolicy => "NetworkPolicy",
            Kind::Node => "Node",
            Kind::ClusterNetworkPolicy => "ClusterNetworkPolicy",
            Kind::Service => "Service",
            Kind::EndpointSlice => "EndpointSlice",
            Kind::Ingress => "Ingress",
            Kind::Gateway => "Gateway",
            Kind::HttpRoute => "HTTPRoute",
            Kind::GrpcRoute => "GRPCRoute",
            Kind::TlsRoute => "TLSRoute",
            Kind::TcpRoute => "TCPRoute",
            Kind::UdpRoute => "UDPRoute",
        })
    }
}

#[derive(Debug, Clone, PartialEq)]
pub enum Object {
    Namespace(Arc<Namespace>),
    Pod(Arc<Pod>),
    Policy(Arc<Policy>),
    Node(Arc<Node>),
    ClusterPolicy(Arc<ClusterPolicy>),
    Service(Arc<Service>),
    EndpointSlice(Arc<EndpointSlice>),
    /// An Ingress, a Gateway or a route.
    Exposure(Arc<Exposure>),
}

impl Object {
    pub fn kind(&self) -> Kind {
        match self {
            Object::Namespace(_) => Kind::Namespace,
            Object::Pod(_) => Kind::Pod,
            Object::Policy(_) => Kind::NetworkPolicy,
            Object::Node(_) => Kind::Node,
            Object::ClusterPolicy(_) => Kind::ClusterNetworkPolicy,
            Object::Service(_) => Kind::Service,
            Object::EndpointSlice(_) => Kind::EndpointSlice,
            Object::Exposure(exposure) => exposure.kind,
        }
    }

    pub fn name(&self) -> &ObjectName {
        match self {
            Object::Namespace(o) => &o.name,
            Object::Pod(o) => &o.base.name,
            Object::Policy(o) => &o.name,
            Object::Node(o) => &o.base.name,
            Object::ClusterPolicy(o) => &o.name,
            Object::Service(o) => &o.name,
            Object::EndpointSlice(o) => &o.name,
            Object::Exposure(o) => &o.name,
        }
    }

    /// Fields that could not be parsed and that enforcement does not use; the others are in the [`policy::Diagnostic`]s
    /// of the objects.
    pub fn problems(&self) -> &[Problem] {
        match self {
            Object::Namespace(_) | Object::Policy(_) | Object::Node(_) | Object::ClusterPolicy(_) => &[],
            Object::Pod(o) => &o.problems,
            Object::Service(o) => &o.problems,
            Object::EndpointSlice(o) => &o.problems,
            Object::Exposure(o) => &o.problems,
        }
    }
}

/// The enforcement's model of a pod, with the fields that identities need.
#[derive(Debug, Clone, PartialEq)]
pub struct Pod {
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
pub struct Node {
    pub base: Arc<policy::Node>,
    /// It has a control-plane label.
    pub control_plane: bool,
}

/// An object that routes traffic from outside to Services.
#[derive(Debug, Clone, PartialEq)]
pub struct Exposure {
    pub kind: Kind,
    pub name: ObjectName,
    /// The named Services, sorted and unique.
    pub services: Vec<ObjectName>,
    /// Addresses of an Ingress or a Gateway from its status, sorted and unique.
    pub addresses: Vec<IpAddr>,
    pub problems: Box<[Problem]>,
}
