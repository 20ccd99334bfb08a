//! The kinds of object that the server has, and their names in the API.

use std::fmt;

/// A kind of object that agents, providers or aggregators watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    Namespace,
    Pod,
    NetworkPolicy,
    Node,
    ClusterNetworkPolicy,
    Service,
    EndpointSlice,
    Ingress,
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

    /// The kind with this name in manifests.
    ///
    /// # Panics
    /// If the server has none.
    pub fn named(name: &str) -> Kind {
        Kind::ALL.into_iter().find(|kind| kind.to_string() == name).expect("a kind of the server")
    }

    pub(crate) fn api_version(self) -> &'static str {
        match self {
            Kind::Namespace | Kind::Pod | Kind::Node | Kind::Service => "v1",
            Kind::NetworkPolicy | Kind::Ingress => "networking.k8s.io/v1",
            Kind::ClusterNetworkPolicy => "policy.networking.k8s.io/v1alpha2",
            Kind::EndpointSlice => "discovery.k8s.io/v1",
            Kind::Gateway | Kind::HttpRoute | Kind::GrpcRoute => "gateway.networking.k8s.io/v1",
            Kind::TlsRoute | Kind::TcpRoute | Kind::UdpRoute => "gateway.networking.k8s.io/v1alpha2",
        }
    }

    /// Versions that the API server may serve instead.
    pub(crate) fn alternative_versions(self) -> &'static [&'static str] {
        let is_cluster_policy = self == Kind::ClusterNetworkPolicy;
        if is_cluster_policy { &["policy.networking.k8s.io/v1beta1"] } else { &[] }
    }

    pub(crate) fn plural(self) -> &'static str {
        match self {
            Kind::Namespace => "namespaces",
            Kind::Pod => "pods",
            Kind::NetworkPolicy => "networkpolicies",
            Kind::Node => "nodes",
            Kind::ClusterNetworkPolicy => "clusternetworkpolicies",
            Kind::Service => "services",
            Kind::EndpointSlice => "endpointslices",
            Kind::Ingress => "ingresses",
            Kind::Gateway => "gateways",
            Kind::HttpRoute => "httproutes",
            Kind::GrpcRoute => "grpcroutes",
            Kind::TlsRoute => "tlsroutes",
            Kind::TcpRoute => "tcproutes",
            Kind::UdpRoute => "udproutes",
        }
    }

    /// Whether the kind needs its CustomResourceDefinition.
    pub(crate) fn is_custom(self) -> bool {
        match self {
            Kind::ClusterNetworkPolicy
            | Kind::Gateway
            | Kind::HttpRoute
            | Kind::GrpcRoute
            | Kind::TlsRoute
            | Kind::TcpRoute
            | Kind::UdpRoute => true,
            Kind::Namespace
            | Kind::Pod
            | Kind::NetworkPolicy
            | Kind::Node
            | Kind::Service
            | Kind::EndpointSlice
            | Kind::Ingress => false,
        }
    }

    /// The kind of objects in a generated cluster; `None` for the others.
    pub(crate) fn generated(self) -> Option<policy::Kind> {
        policy::Kind::NEEDED.into_iter().find(|kind| Kind::from(*kind) == self)
    }
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
