//! Flows of an observed edge, between addresses that its ends have now.
//!
//! An edge names workloads, and policies select pods: an edge is judged by the flows between pods that are there. An
//! end without any is reported, since labels of pods that are gone would be a guess.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use flow::{EndSample, Endpoint, EndpointKind};
use policy::{ObjectName, Pod, Protocol, Traffic};
use serde::{Deserialize, Serialize};

use crate::{ObservedEdge, WorkloadIndex};

/// Limit of the pods that are judged for one end of an edge. Pods of one workload rarely differ; those with other labels
/// are preferred.
const MOST_PODS: usize = 16;

/// Limit of the flows that are judged for an edge: all pairs of pods, or one pod with all addresses of a sample.
const MOST_FLOWS: usize = MOST_PODS * MOST_PODS;

/// Why an edge has no flows that can be judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NoFlow {
    /// Neither the pods that were seen nor other pods of their workload exist.
    SourceGone,
    DestinationGone,
    /// The end was an unknown pod when it was seen, or its address belongs to a pod now.
    SourceUnknown,
    DestinationUnknown,
    /// A pod of another cluster whose addresses are not known here.
    RemoteUnknown,
    /// The records aggregate many ports.
    ManyPorts,
    /// The ends that exist have no address family in common.
    NoCommonFamily,
}

impl fmt::Display for NoFlow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NoFlow::SourceGone => "no pod of the source exists any more",
            NoFlow::DestinationGone => "no pod of the destination exists any more",
            NoFlow::SourceUnknown => "the source was an unknown pod, or its address has another owner now",
            NoFlow::DestinationUnknown => "the destination was an unknown pod, or its address has another owner now",
            NoFlow::RemoteUnknown => "addresses of pods of the other cluster are not known here",
            NoFlow::ManyPorts => "its records aggregate many ports",
            NoFlow::NoCommonFamily => "its ends have no address family in common",
        })
    }
}

/// Flows of one edge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flows {
    pub traffic: Traffic,
    /// Source and destination; not empty.
    pub pairs: Vec<(IpAddr, IpAddr)>,
}

/// The traffic of an edge; `None` if its records aggregate many ports.
pub fn traffic_of(edge: &ObservedEdge) -> Option<Traffic> {
    match (Protocol::from_number(edge.protocol), edge.port) {
        (Some(protocol), Some(port)) => Some(Traffic::Port(protocol, port)),
        (Some(_), None) => None,
        (None, _) => Some(Traffic::Portless),
    }
}

/// The flows of an edge between addresses that exist now.
///
/// # Errors
/// If there are none.
pub fn flows_of(directory: &WorkloadIndex, edge: &ObservedEdge) -> Result<Flows, NoFlow> {
    let traffic = traffic_of(edge).ok_or(NoFlow::ManyPorts)?;
    let sources = addresses(directory, &edge.source, &edge.sources, (NoFlow::SourceGone, NoFlow::SourceUnknown))?;
    let unknown = (NoFlow::DestinationGone, NoFlow::DestinationUnknown);
    let destinations = addresses(directory, &edge.destination, &edge.destinations, unknown)?;
    let of_family = |(source, destination): &(IpAddr, IpAddr)| source.is_ipv4() == destination.is_ipv4();
    let pairs = sources.iter().flat_map(|source| destinations.iter().map(move |destination| (*source, *destination)));
    let pairs: Vec<(IpAddr, IpAddr)> = pairs.filter(of_family).take(MOST_FLOWS).collect();
    match pairs.is_empty() {
        true => Err(NoFlow::NoCommonFamily),
        false => Ok(Flows { traffic, pairs }),
    }
}

fn addresses(
    directory: &WorkloadIndex,
    end: &Endpoint,
    sample: &EndSample,
    (gone, unknown): (NoFlow, NoFlow),
) -> Result<Vec<IpAddr>, NoFlow> {
    let state = directory.state;
    let (found, missing): (Vec<IpAddr>, NoFlow) = match end.kind {
        EndpointKind::Pod => (pod_addresses(directory, end, sample), gone),
        EndpointKind::UnknownPod => (vec![], unknown),
        EndpointKind::RemoteCluster => {
            let is_known = |address: &&IpAddr| state.remote_sets_with(**address).next().is_some();
            (sample.addresses.iter().filter(is_known).copied().collect(), NoFlow::RemoteUnknown)
        }
        EndpointKind::Node | EndpointKind::KubeApiserver | EndpointKind::World => {
            let is_free = |address: &&IpAddr| state.holder(**address).is_none();
            (sample.addresses.iter().filter(is_free).copied().collect(), unknown)
        }
    };
    if found.is_empty() { Err(missing) } else { Ok(found) }
}

/// Addresses of the pods of the sample that exist or, if none does, of pods of their workload; of the families that were
/// seen.
fn pod_addresses(directory: &WorkloadIndex, end: &Endpoint, sample: &EndSample) -> Vec<IpAddr> {
    let state = directory.state;
    let named = sample.pods.iter().filter_map(|name| state.pod(&name.parse().ok()?));
    let named: Vec<&Arc<Pod>> = named.filter(|pod| !pod.host_network && !pod.finished).collect();
    let pods = match (named.is_empty(), &end.namespace, &end.name) {
        (true, Some(namespace), Some(name)) => {
            directory.pods_of(&ObjectName { namespace: namespace.clone(), name: name.clone() }).to_vec()
        }
        _ => named,
    };
    let families: BTreeSet<bool> = sample.addresses.iter().map(IpAddr::is_ipv4).collect();
    let was_seen = |address: &IpAddr| families.is_empty() || families.contains(&address.is_ipv4());
    let mut kinds = BTreeSet::new();
    let (mut first, more): (Vec<_>, Vec<_>) =
        pods.into_iter().partition(|pod| kinds.insert((&pod.name.namespace, &pod.labels)));
    first.extend(more);
    first.truncate(MOST_PODS);
    first.into_iter().flat_map(|pod| state.addresses_of(pod).filter(was_seen).collect::<Vec<_>>()).collect()
}
