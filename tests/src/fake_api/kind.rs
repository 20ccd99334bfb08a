//! The kinds of object that the server has, and what API servers call them.

use std::fmt;

use context::object::Kind as OfContext;

/// A kind of object that some client of ours watches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    Node,
    /// A kind that context is made of, as most kinds of enforcement are.
    Context(OfContext),
}

impl Kind {
    pub fn all() -> impl Iterator<Item = Kind> {
        OfContext::ALL.into_iter().map(Kind::Context).chain([Kind::Node])
    }

    pub(crate) fn api_version(self) -> &'static str {
        match self {
            Kind::Node | Kind::Context(OfContext::Namespace | OfContext::Pod | OfContext::Service) => "v1",
            Kind::Context(OfContext::NetworkPolicy | OfContext::Ingress) => "networking.k8s.io/v1",
            Kind::Context(OfContext::HttpRoute | OfContext::GrpcRoute) => "gateway.networking.k8s.io/v1",
            Kind::Context(OfContext::TlsRoute | OfContext::TcpRoute | OfContext::UdpRoute) => {
                "gateway.networking.k8s.io/v1alpha2"
            }
        }
    }

    pub(crate) fn plural(self) -> &'static str {
        match self {
            Kind::Node => "nodes",
            Kind::Context(OfContext::Namespace) => "namespaces",
            Kind::Context(OfContext::Pod) => "pods",
            Kind::Context(OfContext::NetworkPolicy) => "networkpolicies",
            Kind::Context(OfContext::Service) => "services",
            Kind::Context(OfContext::Ingress) => "ingresses",
            Kind::Context(OfContext::HttpRoute) => "httproutes",
            Kind::Context(OfContext::GrpcRoute) => "grpcroutes",
            Kind::Context(OfContext::TlsRoute) => "tlsroutes",
            Kind::Context(OfContext::TcpRoute) => "tcproutes",
            Kind::Context(OfContext::UdpRoute) => "udproutes",
        }
    }

    /// Whether the kind is there only once its CustomResourceDefinition is.
    pub(crate) fn is_route(self) -> bool {
        match self {
            Kind::Context(
                OfContext::HttpRoute
                | OfContext::GrpcRoute
                | OfContext::TlsRoute
                | OfContext::TcpRoute
                | OfContext::UdpRoute,
            ) => true,
            Kind::Node
            | Kind::Context(
                OfContext::Namespace
                | OfContext::Pod
                | OfContext::NetworkPolicy
                | OfContext::Service
                | OfContext::Ingress,
            ) => false,
        }
    }

    /// The kind of objects that a generated cluster has; `None` for the others.
    pub(crate) fn generated(self) -> Option<policy::Kind> {
        policy::Kind::NEEDED.into_iter().find(|kind| Kind::from(*kind) == self)
    }
}

impl From<OfContext> for Kind {
    fn from(kind: OfContext) -> Kind {
        Kind::Context(kind)
    }
}

impl From<policy::Kind> for Kind {
    fn from(kind: policy::Kind) -> Kind {
        match kind {
            policy::Kind::Namespace => Kind::Context(OfContext::Namespace),
            policy::Kind::Pod => Kind::Context(OfContext::Pod),
            policy::Kind::NetworkPolicy => Kind::Context(OfContext::NetworkPolicy),
            policy::Kind::Node => Kind::Node,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kind::Node => f.write_str("Node"),
            Kind::Context(kind) => kind.fmt(f),
        }
    }
}
