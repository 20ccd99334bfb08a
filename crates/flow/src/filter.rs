//! Filters of records.

mod alternatives;
mod parse;

use std::sync::Arc;

use ipnet::IpNet;
use jiff::Timestamp;

use crate::{EndSample, Endpoint, EndpointKind, FlowRecord, FlowVerdict};

pub use alternatives::FlowFilters;
pub use parse::{FilterError, parse_label, parse_time};

/// Conditions on records; a record is admitted if it meets all that are set.
///
/// `namespace` and `workload` are conditions on one end, whichever it is; `peer` is one on the other end. Addresses, pods and
/// so on are those that the record lists, at most [`crate::MOST_MEMBERS`] of each.
///
/// ```
/// use flow::FlowFilter;
///
/// let now = "2026-05-04T12:00:00Z".parse()?;
/// let mut filter = FlowFilter::default();
/// for (field, text) in [("since", "10m"), ("workload", "shop/web"), ("peer", "world"), ("verdict", "denied")] {
///     filter.set(field, text, now)?;
/// }
/// assert_eq!(filter.since, Some("2026-05-04T11:50:00Z".parse()?));
/// assert_eq!(
///     filter.set("port", "80x", now).unwrap_err().to_string(),
///     "invalid port '80x': expected a number from 0 to 65535"
/// );
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FlowFilter {
    /// The record's window ends after this time.
    pub since: Option<Timestamp>,
    /// The record's window begins before this time.
    pub until: Option<Timestamp>,
    /// Namespace of an end; may be a namespace of another cluster.
    pub namespace: Option<Arc<str>>,
    /// Workload of the same end as `namespace`.
    pub workload: Option<WorkloadName>,
    /// The opposite end of `namespace` and `workload`; either end if neither is set.
    pub peer: Option<PeerFilter>,
    /// The destination's port, or the Service port that the client connected to.
    pub port: Option<u16>,
    /// IANA number.
    pub protocol: Option<u8>,
    pub verdict: Option<FlowVerdict>,
    /// A policy in the trace of either side, enforced or audited.
    pub policy: Option<PolicyName>,
}

/// A workload of this cluster or another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkloadName {
    /// `None` matches the name in every namespace.
    pub namespace: Option<Arc<str>>,
    pub name: Arc<str>,
}

/// A policy by its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyName {
    /// `None` matches the name in every namespace.
    pub namespace: Option<Arc<str>>,
    pub name: Arc<str>,
}

/// The other end of flows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PeerFilter {
    /// `world`, `kube-apiserver`, `unknown-pod` or `remote-cluster`. A filter cannot name a namespace with one of these
    /// names.
    Kind(EndpointKind),
    /// Address, or CIDR that contains one of the listed addresses.
    Network(IpNet),
    /// `NAMESPACE/NAME` of a workload, or of a listed pod.
    NamespacedName { namespace: Arc<str>, name: Arc<str> },
    /// A namespace, or a node itself.
    Name(Arc<str>),
}

/// One end of a record.
#[derive(Clone, Copy)]
struct End<'a> {
    endpoint: &'a Endpoint,
    sample: &'a EndSample,
}

impl FlowFilter {
    pub fn admits(&self, record: &FlowRecord) -> bool {
        let FlowFilter { since, until, namespace, workload, peer, port, protocol, verdict, policy } = self;
        let key = &record.key;
        since.is_none_or(|since| record.window_end() > since)
            && until.is_none_or(|until| record.window < until)
            && port.is_none_or(|port| {
                key.port == Some(port) || key.service.as_ref().is_some_and(|service| service.port == port)
            })
            && protocol.is_none_or(|protocol| key.protocol == protocol)
            && verdict.is_none_or(|verdict| key.verdict == verdict)
            && policy.as_ref().is_none_or(|policy| {
                key.policies().any(|hit| {
                    hit.name == policy.name && policy.namespace.as_ref().is_none_or(|wanted| hit.namespace == *wanted)
                })
            })
            && {
                let source = End { endpoint: &key.source, sample: &record.sources };
                let destination = End { endpoint: &key.destination, sample: &record.destinations };
                [(source, destination), (destination, source)].into_iter().any(|(this, other)| {
                    namespace.as_ref().is_none_or(|namespace| this.endpoint.namespace.as_ref() == Some(namespace))
                        && workload.as_ref().is_none_or(|workload| workload.names(this.endpoint))
                        && peer.as_ref().is_none_or(|peer| peer.names(other))
                })
            }
    }
}

impl WorkloadName {
    fn names(&self, endpoint: &Endpoint) -> bool {
        is_workload(endpoint.kind)
            && endpoint.name.as_ref() == Some(&self.name)
            && self.namespace.as_ref().is_none_or(|namespace| endpoint.namespace.as_ref() == Some(namespace))
    }
}

impl PeerFilter {
    fn names(&self, End { endpoint, sample }: End<'_>) -> bool {
        match self {
            PeerFilter::Kind(kind) => endpoint.kind == *kind,
            PeerFilter::Network(network) => sample.addresses.iter().any(|address| network.contains(address)),
            PeerFilter::NamespacedName { namespace, name } => {
                let is_named = is_workload(endpoint.kind)
                    && endpoint.namespace.as_ref() == Some(namespace)
                    && endpoint.name.as_ref() == Some(name);
                is_named || sample.pods.contains(format!("{namespace}/{name}").as_str())
            }
            PeerFilter::Name(name) => {
                endpoint.namespace.as_ref() == Some(name)
                    || (endpoint.kind == EndpointKind::Node && endpoint.name.as_ref() == Some(name))
            }
        }
    }
}

fn is_workload(kind: EndpointKind) -> bool {
    match kind {
        EndpointKind::Pod | EndpointKind::RemoteCluster => true,
        EndpointKind::Node | EndpointKind::KubeApiserver | EndpointKind::UnknownPod | EndpointKind::World => false,
    }
}

#[cfg(test)]
mod tests;
