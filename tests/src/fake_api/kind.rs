//! The kinds of object that the server has, and their names in the API.

use std::fmt;

use context::object::Kind as OfContext;

/// A kind of object that one of our clients watches: the kinds of context, which include those of enforcement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Kind(OfContext);

impl Kind {
    pub fn all() -> impl Iterator<Item = Kind> {
        OfContext::ALL.into_iter().map(Kind)
    }

    pub(crate) fn api_version(self) -> &'static str {
        match self.0 {
            OfContext::Namespace | OfContext::Pod | OfContext::Node | OfContext::Service => "v1",
            OfContext::NetworkPolicy | OfContext::Ingress => "networking.k8s.io/v1",
            OfContext::ClusterNetworkPolicy => "policy.networking.k8s.io/v1alpha2",
            OfContext::EndpointSlice => "discovery.k8s.io/v1",
            OfContext::Gateway | OfContext::HttpRoute | OfContext::GrpcRoute => "gateway.networking.k8s.io/v1",
            OfContext::TlsRoute | OfContext::TcpRoute | OfContext::UdpRoute => "gateway.networking.k8s.io/v1alpha2",
        }
    }

    pub(crate) fn plural(self) -> &'static str {
        match self.0 {
            OfContext::Namespace => "namespaces",
            OfContext::Pod => "pods",
            OfContext::NetworkPolicy => "networkpolicies",
            OfContext::Node => "nodes",
            OfContext::ClusterNetworkPolicy => "clusternetworkpolicies",
            OfContext::Service => "services",
            OfContext::EndpointSlice => "endpointslices",
            OfContext::Ingress => "ingresses",
            OfContext::Gateway => "gateways",
            OfContext::HttpRoute => "httproutes",
            OfContext::GrpcRoute => "grpcroutes",
            OfContext::TlsRoute => "tlsroutes",
            OfContext::TcpRoute => "tcproutes",
            OfContext::UdpRoute => "udproutes",
        }
    }

    /// Whether the kind needs its CustomResourceDefinition.
    pub(crate) fn is_custom(self) -> bool {
        match self.0 {
            OfContext::ClusterNetworkPolicy
            | OfContext::Gateway
            | OfContext::HttpRoute
            | OfContext::GrpcRoute
            | OfContext::TlsRoute
            | OfContext::TcpRoute
            | OfContext::UdpRoute => true,
            OfContext::Namespace
            | OfContext::Pod
            | OfContext::NetworkPolicy
            | OfContext::Node
            | OfContext::Service
            | OfContext::EndpointSlice
            | OfContext::Ingress => false,
        }
    }

    /// The kind of objects in a generated cluster; `None` for the others.
    pub(crate) fn generated(self) -> Option<policy::Kind> {
        policy::Kind::NEEDED.into_iter().find(|kind| Kind::from(*kind) == self)
    }
}

impl From<OfContext> for Kind {
    fn from(kind: OfContext) -> Kind {
        Kind(kind)
    }
}

impl From<policy::Kind> for Kind {
    fn from(kind: policy::Kind) -> Kind {
        Kind(kind.into())
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
