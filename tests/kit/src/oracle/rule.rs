//! One rule: its peers and its ports.

use k8s_openapi::api::core::v1::{Container, Pod};
use serde_json::Value;

use super::address::namespace_of;
use super::json::{NotUnderstood, cidr_holds, fields, list, port_number, string};
use super::{Direction, Flow, Probe, World, remote, selector};

/// How the peer of a flow matches the peers of a rule.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Match {
    /// As a pod, by its address in an ipBlock, or because the rule has no peers.
    Here,
    /// As a pod of another cluster, whose named ports are unknown.
    Remote,
}

/// "Traffic must match both ports and from" (or `to`). An empty or missing `from` or `to` "matches all sources", and
/// empty or missing `ports` "matches all ports (traffic not restricted by port)": every protocol too.
///
/// An invalid peer or port matches nothing, and the others still count.
pub(super) fn allows(rule: &Value, policy_namespace: &str, flow: &Flow<'_>) -> Result<bool, NotUnderstood> {
    let peers_field = match flow.direction {
        Direction::Ingress => "from",
        Direction::Egress => "to",
    };
    let [peers, ports] = fields(rule, [peers_field, "ports"])?;
    let (peers, ports) = (list(peers)?, list(ports)?);

    let matches: Vec<Match> = if peers.is_empty() {
        vec![Match::Here]
    } else {
        peers.iter().filter_map(|peer| matched_peer(peer, policy_namespace, flow).unwrap_or(None)).collect()
    };
    Ok(matches.iter().any(|how| {
        // "port can either be a numerical or named port on a pod": on egress, on the pod that owns the destination,
        // whether a selector or an ipBlock matched it.
        let resolving = match (flow.direction, how) {
            (Direction::Ingress, _) | (Direction::Egress, Match::Here) => flow.destination_pod(),
            (Direction::Egress, Match::Remote) => None,
        };
        ports.is_empty() || ports.iter().any(|port| port_matches(port, resolving, flow.probe) == Ok(true))
    }))
}

/// "podSelector selects pods in the policy's own namespace. namespaceSelector selects all pods in the namespaces it
/// selects. If both are set, the podSelector selects the pods matching it in the namespaces selected by
/// namespaceSelector. If ipBlock is set then neither of the other fields can be."
fn matched_peer(peer: &Value, policy_namespace: &str, flow: &Flow<'_>) -> Result<Option<Match>, NotUnderstood> {
    let [pods, namespaces, block] = fields(peer, ["podSelector", "namespaceSelector", "ipBlock"])?;
    if let Some(block) = block {
        if pods.is_some() || namespaces.is_some() {
            return Err(NotUnderstood);
        }
        return Ok(block_holds(block, flow)?.then_some(Match::Here));
    }
    if pods.is_none() && namespaces.is_none() {
        return Err(NotUnderstood);
    }
    let Some(other) = flow.other_pod else {
        // "An address that a pod of this cluster has is that pod's": this address has no owner here.
        let Some(namespaces) = namespaces else { return Ok(None) };
        return Ok(remote::matches(flow.world, flow.other, namespaces, pods)?.then_some(Match::Remote));
    };
    let in_namespace = match namespaces {
        None => namespace_of(other) == policy_namespace,
        Some(wanted) => match namespace_labels(flow.world, namespace_of(other)) {
            Some(labels) => selector::matches(wanted, &labels)?,
            None => false,
        },
    };
    let by_labels = match pods {
        None => true,
        Some(wanted) => selector::matches(wanted, &other.metadata.labels.clone().unwrap_or_default())?,
    };
    Ok((in_namespace && by_labels).then_some(Match::Here))
}

/// "except is a slice of CIDRs that should not be included within an ipBlock": only of this ipBlock. Addresses of pods
/// are not special. An exception of the other family is invalid.
fn block_holds(block: &Value, flow: &Flow<'_>) -> Result<bool, NotUnderstood> {
    let [cidr, except] = fields(block, ["cidr", "except"])?;
    let cidr = cidr.ok_or(NotUnderstood)?;
    let mut held = cidr_holds(cidr, flow.other)?;
    let is_v6 = |cidr: &Value| cidr.as_str().is_some_and(|text| text.contains(':'));
    for excepted in list(except)? {
        if is_v6(excepted) != is_v6(cidr) {
            return Err(NotUnderstood);
        }
        held &= !cidr_holds(excepted, flow.other)?;
    }
    Ok(held)
}

/// The labels of a namespace that exists, with `kubernetes.io/metadata.name`, which the API server sets on every one.
pub(super) fn namespace_labels(world: &World, name: &str) -> Option<selector::Labels> {
    let namespace = world.namespaces.iter().find(|namespace| namespace.metadata.name.as_deref() == Some(name))?;
    let mut labels = namespace.metadata.labels.clone().unwrap_or_default();
    labels.insert("kubernetes.io/metadata.name".into(), name.into());
    Some(labels)
}

/// "protocol represents the protocol (TCP, UDP, or SCTP) which traffic must match. If not specified, this field
/// defaults to TCP. port can either be a numerical or named port on a pod. If this field is not provided, this
/// matches all port names and numbers. endPort indicates that the range of ports from port to endPort, inclusive,
/// should be allowed. It cannot be defined if the port field is not defined or if the port field is defined as a
/// named port, and must be equal to or greater than port."
fn port_matches(entry: &Value, resolving: Option<&Pod>, probe: &Probe) -> Result<bool, NotUnderstood> {
    let [protocol, port, end_port] = fields(entry, ["protocol", "port", "endPort"])?;
    let name = match protocol {
        None => "TCP",
        Some(name) => string(name)?,
    };
    let protocol = protocol_number(name).ok_or(NotUnderstood)?;
    let covers_port = match (port, end_port) {
        (None, None) => true,
        (None, Some(_)) | (Some(Value::String(_)), Some(_)) => return Err(NotUnderstood),
        (Some(Value::String(port)), None) => {
            let number = resolving.and_then(|pod| named_port(pod, port, protocol));
            number.is_some() && number == probe.port.map(i32::from)
        }
        (Some(port), None) => Some(port_number(port)?) == probe.port,
        (Some(first), Some(last)) => {
            let (first, last) = (port_number(first)?, port_number(last)?);
            if last < first {
                return Err(NotUnderstood);
            }
            probe.port.is_some_and(|port| first <= port && port <= last)
        }
    };
    Ok(probe.protocol == protocol && covers_port)
}

/// The number of a pod's named port with this protocol. The first container that has the name decides; init containers
/// count if they are sidecars (restarted for the life of the pod).
pub(super) fn named_port(pod: &Pod, name: &str, protocol: u8) -> Option<i32> {
    let spec = pod.spec.as_ref()?;
    let restartable = |container: &&Container| container.restart_policy.as_deref() == Some("Always");
    let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten().filter(restartable));
    containers
        .flat_map(|container| container.ports.iter().flatten())
        .find(|port| {
            let under = port.protocol.as_deref().unwrap_or("TCP");
            port.name.as_deref() == Some(name) && protocol_number(under) == Some(protocol)
        })
        .map(|port| port.container_port)
}

/// Names are case-sensitive, as everywhere in the API.
fn protocol_number(name: &str) -> Option<u8> {
    match name {
        "TCP" => Some(Probe::TCP),
        "UDP" => Some(Probe::UDP),
        "SCTP" => Some(Probe::SCTP),
        _ => None,
    }
}
