//! The objects that context is made of: those of enforcement, with what pods are replicas of, and those that open a
//! workload to the outside.

mod exposure;
mod pod;
mod reader;
mod service;
#[cfg(test)]
mod tests;
mod watched;

use std::fmt;
use std::sync::Arc;

use cluster::Problem;
use policy::{Labels, Namespace, ObjectName, Policy, Problems};

/// The kinds of object that context is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    Namespace,
    Pod,
    NetworkPolicy,
    Service,
    Ingress,
    /// Routes of the Gateway API.
    HttpRoute,
    GrpcRoute,
    TlsRoute,
    TcpRoute,
    UdpRoute,
}

impl Kind {
    pub const ALL: [Kind; 10] = [
        Kind::Namespace,
        Kind::Pod,
        Kind::NetworkPolicy,
        Kind::Service,
        Kind::Ingress,
        Kind::HttpRoute,
        Kind::GrpcRoute,
        Kind::TlsRoute,
        Kind::TcpRoute,
        Kind::UdpRoute,
    ];

    /// Without these nothing can be said. The others only classify: where they cannot be listed, identities go out all
    /// the same, and the status says what is missing.
    pub const NEEDED: [Kind; 3] = [Kind::Namespace, Kind::Pod, Kind::NetworkPolicy];
}

/// A kind of object that only enforcement uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("unsupported kind {0}")]
pub struct UnusedKind(pub policy::Kind);

impl TryFrom<policy::Kind> for Kind {
    type Error = UnusedKind;

    fn try_from(kind: policy::Kind) -> Result<Kind, UnusedKind> {
        match kind {
            policy::Kind::Namespace => Ok(Kind::Namespace),
            policy::Kind::Pod => Ok(Kind::Pod),
            policy::Kind::NetworkPolicy => Ok(Kind::NetworkPolicy),
            policy::Kind::Node => Err(UnusedKind(kind)),
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Namespace => "Namespace",
            Kind::Pod => "Pod",
            Kind::NetworkPolicy => "NetworkPolicy",
            Kind::Service => "Service",
            Kind::Ingress => "Ingress",
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
    Service(Arc<Service>),
    /// An Ingress or a route.
    Exposure(Arc<Exposure>),
}

impl Object {
    pub fn kind(&self) -> Kind {
        match self {
            Object::Namespace(_) => Kind::Namespace,
            Object::Pod(_) => Kind::Pod,
            Object::Policy(_) => Kind::NetworkPolicy,
            Object::Service(_) => Kind::Service,
            Object::Exposure(exposure) => exposure.kind,
        }
    }

    pub fn name(&self) -> &ObjectName {
        match self {
            Object::Namespace(o) => &o.name,
            Object::Pod(o) => &o.base.name,
            Object::Policy(o) => &o.name,
            Object::Service(o) => &o.name,
            Object::Exposure(o) => &o.name,
        }
    }

    /// What was not understood of that which enforcement does not look at; what it does look at is in the
    /// [`policy::Diagnostic`]s of its objects.
    pub fn problems(&self) -> &[Problem] {
        match self {
            Object::Namespace(_) | Object::Policy(_) => &[],
            Object::Pod(o) => &o.problems,
            Object::Service(o) => &o.problems,
            Object::Exposure(o) => &o.problems,
        }
    }
}

/// A pod as enforcement sees it, and what else it says of itself.
#[derive(Debug, Clone, PartialEq)]
pub struct Pod {
    pub base: Arc<policy::Pod>,
    /// What it is a replica of ([`crate::workload::Workload`]).
    pub workload: Arc<str>,
    /// It is a component of the control plane.
    pub control_plane: bool,
    /// The condition `Ready` is `True`.
    pub ready: bool,
    /// The pod is not ready, and one of its containers has failed or been restarted.
    pub failing: bool,
    /// Some container has a `hostPort`.
    pub host_port: bool,
    pub problems: Problems<Problem>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Service {
    pub name: ObjectName,
    /// Empty where the Service selects no pods, and where what it selects is not understood.
    pub selector: Labels,
    /// Of type LoadBalancer or NodePort, or with externalIPs.
    pub exposed: bool,
    pub problems: Box<[Problem]>,
}

/// An object that leads traffic from outside to Services.
#[derive(Debug, Clone, PartialEq)]
pub struct Exposure {
    pub kind: Kind,
    pub name: ObjectName,
    /// The Services it names, each once, sorted.
    pub services: Vec<ObjectName>,
    pub problems: Box<[Problem]>,
}
