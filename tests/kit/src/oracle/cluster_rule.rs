//! One rule of a ClusterNetworkPolicy: its action, its peers and its protocols.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::Pod;
use serde_json::Value;

use super::address::{has_status_address, may_be_unknown_pod, namespace_of};
use super::domain_name::is_named;
use super::json::{NotUnderstood, cidr_holds, fields, list, member, port_number, string};
use super::rule::{named_port, namespace_labels};
use super::{Direction, Flow, Probe, World, selector};

/// "Currently, the following actions are supported."
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    Accept,
    Deny,
    Pass,
}

/// The action on a flow, if the rule decides it.
///
/// "For Accept rules, fail closed means: treat the rule as matching no traffic. For Deny and Pass rules, fail closed
/// means: treat the rule as a 'Deny all' rule." A rule with an unknown action denies everything.
pub(super) fn action_on(rule: &Value, matched: Result<bool, NotUnderstood>) -> Option<Action> {
    match (action(rule), matched) {
        (Err(NotUnderstood), _) => Some(Action::Deny),
        (Ok(action), Ok(matched)) => matched.then_some(action),
        (Ok(Action::Accept), Err(NotUnderstood)) => None,
        (Ok(Action::Deny | Action::Pass), Err(NotUnderstood)) => Some(Action::Deny),
    }
}

fn action(rule: &Value) -> Result<Action, NotUnderstood> {
    match member(rule, "action").and_then(Value::as_str) {
        Some("Accept") => Ok(Action::Accept),
        Some("Deny") => Ok(Action::Deny),
        Some("Pass") => Ok(Action::Pass),
        Some(_) | None => Err(NotUnderstood),
    }
}

/// Whether the rule matches the flow: one of its peers and, if it has `protocols`, one of these. Not understood: a
/// rule with an unknown or invalid part, and one whose peers may match the flow but whose labels are not known.
///
/// An invalid entry of `protocols` matches nothing in an Accept rule.
pub(super) fn matched(rule: &Value, flow: &Flow<'_>) -> Result<bool, NotUnderstood> {
    let peers_field = match flow.direction {
        Direction::Ingress => "from",
        Direction::Egress => "to",
    };
    let [name, _action, peers, protocols] = fields(rule, ["name", "action", peers_field, "protocols"])?;
    if let Some(name) = name {
        string(name)?;
    }
    // "This field must be defined and contain at least one item."
    let peers = one_at_least(peers.ok_or(NotUnderstood)?)?;
    let matches = peers.iter().map(|peer| matched_peer(peer, flow)).collect::<Result<Vec<_>, _>>()?;
    // "DomainNames is only supported for Accept rules."
    if action(rule) != Ok(Action::Accept) && peers.iter().any(|peer| member(peer, "domainNames").is_some()) {
        return Err(NotUnderstood);
    }

    // "You can't use this in a rule that targets resources without named ports (e.g. Nodes or Networks)."
    let with_names = peers.iter().all(|peer| member(peer, "namespaces").or(member(peer, "pods")).is_some());
    let by_protocol = match protocols {
        None => true,
        Some(protocols) => {
            let entry = |entry| match protocol_matches(entry, with_names, flow) {
                Err(NotUnderstood) if action(rule) == Ok(Action::Accept) => Ok(false),
                matched => matched,
            };
            let entries = one_at_least(protocols)?.iter().map(entry).collect::<Result<Vec<bool>, _>>()?;
            entries.contains(&true)
        }
    };
    match (by_protocol, matches.contains(&Some(true)), matches.contains(&None)) {
        (false, _, _) | (true, false, false) => Ok(false),
        (true, true, _) => Ok(true),
        (true, false, true) => Err(NotUnderstood),
    }
}

/// A list with one item at least, as each list of a rule is unless it is absent.
fn one_at_least(value: &Value) -> Result<&[Value], NotUnderstood> {
    let items = list(Some(value))?;
    if items.is_empty() { Err(NotUnderstood) } else { Ok(items) }
}

/// "Exactly one of the fields must be set for a given peer." `None` if the labels of the other end are not known and
/// the peer may match it.
fn matched_peer(peer: &Value, flow: &Flow<'_>) -> Result<Option<bool>, NotUnderstood> {
    let [namespaces, pods, nodes, networks, names] = match flow.direction {
        Direction::Ingress => {
            let [namespaces, pods] = fields(peer, ["namespaces", "pods"])?;
            [namespaces, pods, None, None, None]
        }
        Direction::Egress => fields(peer, ["namespaces", "pods", "nodes", "networks", "domainNames"])?,
    };
    if let Some(names) = names {
        if [namespaces, pods, nodes, networks].iter().any(Option::is_some) {
            return Err(NotUnderstood);
        }
        let named = one_at_least(names)?.iter().map(|name| is_named(flow.world, name, flow.other));
        return Ok(Some(named.collect::<Result<Vec<bool>, _>>()?.contains(&true)));
    }
    match (nodes, networks) {
        (None, None) => {
            let selected = selects_pod(flow.world, namespaces, pods, flow.other_pod)?;
            Ok(if is_to_group(flow) || may_be_unknown_pod(flow.world, flow.other) { None } else { selected })
        }
        (Some(_), Some(_)) => Err(NotUnderstood),
        (Some(_), None) | (None, Some(_)) if namespaces.or(pods).is_some() => Err(NotUnderstood),
        (Some(nodes), None) => node_has(flow.world, nodes, flow.other).map(Some),
        (None, Some(networks)) => {
            let holds = |network| network_holds(network, flow.other);
            let held = one_at_least(networks)?.iter().map(holds).collect::<Result<Vec<bool>, _>>()?;
            Ok(Some(held.contains(&true)))
        }
    }
}

/// Whether `namespaces` ("a way to select all pods within a set of Namespaces") or `pods` ("a set of pods in a set of
/// namespaces") selects the pod, if there is one. Exactly one of the two must be set. `None` if the namespace is not
/// known and may match.
///
/// "NamespaceSelector: if empty, it selects all Namespaces", which is also its default. "PodSelector: if empty, it
/// selects all Pods", and it is required.
pub(super) fn selects_pod(
    world: &World,
    namespaces: Option<&Value>,
    pods: Option<&Value>,
    pod: Option<&Pod>,
) -> Result<Option<bool>, NotUnderstood> {
    let (by_namespace, by_pod) = match (namespaces, pods) {
        (Some(namespaces), None) => (Some(namespaces), None),
        (None, Some(pods)) => {
            let [namespaces, pods] = fields(pods, ["namespaceSelector", "podSelector"])?;
            (namespaces, Some(pods.ok_or(NotUnderstood)?))
        }
        (Some(_), Some(_)) | (None, None) => return Err(NotUnderstood),
    };
    let matches = |wanted: Option<&Value>, labels: &selector::Labels| match wanted {
        None => Ok(true),
        Some(wanted) => selector::matches(wanted, labels),
    };
    let labels = pod.and_then(|pod| pod.metadata.labels.clone()).unwrap_or_default();
    let labels_match = matches(by_pod, &labels)?;
    let namespace = pod.and_then(|pod| namespace_labels(world, namespace_of(pod)));
    let namespace_matches = matches(by_namespace, namespace.as_ref().unwrap_or(&selector::Labels::new()))?;
    Ok(match (pod.is_some() && labels_match, namespace) {
        (false, _) => Some(false),
        (true, Some(_)) => Some(namespace_matches),
        (true, None) => None,
    })
}

/// Whether the destination is a multicast or broadcast address, at which pods on a bridge with the source receive.
/// Which ones do is not known.
fn is_to_group(flow: &Flow<'_>) -> bool {
    let ranges = || {
        let node = flow.subject.spec.as_ref().and_then(|spec| spec.node_name.as_ref());
        let node = flow.world.nodes.iter().find(|other| other.metadata.name.as_ref() == node && node.is_some());
        node.and_then(|node| node.spec.as_ref()).and_then(|spec| spec.pod_cidrs.clone()).unwrap_or_default()
    };
    let is_broadcast = |range: String| match range.parse() {
        Ok(ipnet::IpNet::V4(range)) => range.prefix_len() <= 30 && flow.other == IpAddr::V4(range.broadcast()),
        Ok(ipnet::IpNet::V6(_)) | Err(_) => false,
    };
    let is_any = match flow.other {
        IpAddr::V4(v4) => v4.is_multicast() || v4.is_broadcast() || ranges().into_iter().any(is_broadcast),
        IpAddr::V6(v6) => v6.is_multicast(),
    };
    flow.direction == Direction::Egress && flow.other_pod.is_none() && is_any
}

/// "It selects the nodeIPs as the peer type by matching on the IPs present in the node.Status.Addresses field of the
/// node. If present but empty, it selects all Nodes."
fn node_has(world: &World, wanted: &Value, address: IpAddr) -> Result<bool, NotUnderstood> {
    selector::matches(wanted, &selector::Labels::new())?;
    let mut nodes = world.nodes.iter().filter(|node| has_status_address(node, address));
    Ok(nodes.any(|node| selector::matches(wanted, &node.metadata.labels.clone().unwrap_or_default()) == Ok(true)))
}

/// "Each item in Networks should be provided in the CIDR format and should be IPv4 or IPv6." An IPv4 network in the
/// notation of IPv6 is neither.
fn network_holds(network: &Value, address: IpAddr) -> Result<bool, NotUnderstood> {
    let prefix = string(network)?.split('/').next().unwrap_or_default();
    match prefix.parse() {
        Ok(IpAddr::V6(v6)) if v6.to_ipv4_mapped().is_some() => Err(NotUnderstood),
        Ok(_) | Err(_) => cidr_holds(network, address),
    }
}

/// "Protocols: exactly one field must be set." A named port is that of the destination pod, for each protocol under
/// which the pod has the name.
fn protocol_matches(entry: &Value, with_names: bool, flow: &Flow<'_>) -> Result<bool, NotUnderstood> {
    let probe = flow.probe;
    match fields(entry, ["tcp", "udp", "sctp", "destinationNamedPort"])? {
        [Some(ports), None, None, None] => Ok(port_matches(ports, probe)? && probe.protocol == Probe::TCP),
        [None, Some(ports), None, None] => Ok(port_matches(ports, probe)? && probe.protocol == Probe::UDP),
        [None, None, Some(ports), None] => Ok(port_matches(ports, probe)? && probe.protocol == Probe::SCTP),
        [None, None, None, Some(name)] if with_names => {
            let name = string(name)?;
            if name.is_empty() {
                return Err(NotUnderstood);
            }
            if is_to_group(flow) || flow.direction == Direction::Egress && may_be_unknown_pod(flow.world, flow.other) {
                return Ok([Probe::TCP, Probe::UDP, Probe::SCTP].contains(&probe.protocol));
            }
            let number = flow.destination_pod().and_then(|pod| named_port(pod, name, probe.protocol));
            Ok(number.is_some() && number == probe.port.map(i32::from))
        }
        _ => Err(NotUnderstood),
    }
}

/// "DestinationPort for the match. You must specify either Port or Range. Start port must be less than End port."
/// `{}` lacks the one attribute that the API has, so it has one that is not known.
fn port_matches(attributes: &Value, probe: &Probe) -> Result<bool, NotUnderstood> {
    let [port] = fields(attributes, ["destinationPort"])?;
    match fields(port.ok_or(NotUnderstood)?, ["number", "range"])? {
        [Some(number), None] => Ok(Some(port_number(number)?) == probe.port),
        [None, Some(range)] => {
            let [start, end] = fields(range, ["start", "end"])?;
            let (start, end) = (port_number(start.ok_or(NotUnderstood)?)?, port_number(end.ok_or(NotUnderstood)?)?);
            if start >= end {
                return Err(NotUnderstood);
            }
            Ok(probe.port.is_some_and(|port| start <= port && port <= end))
        }
        _ => Err(NotUnderstood),
    }
}
