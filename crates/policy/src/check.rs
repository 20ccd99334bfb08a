//! Lints policies before they are enforced.

mod cluster_policy;

use std::collections::BTreeSet;

use crate::ambient;
use crate::isolating_policies::IsolatingPolicies;
use crate::peers::{NamedTargets, PeerUnion, PodPeer, named_endpoints};
use crate::{
    ClusterState, Diagnostic, Direction, Enforcement, Kind, Peer, Peers, Pod, Policy, PolicyRule, PortRange, Ports,
    Severity,
};

/// All findings about the objects, errors first: invalid parts ([`Severity::Error`]), and parts that work as written
/// but are probably not intended ([`Severity::Warning`]).
pub fn check(state: &ClusterState) -> Vec<Diagnostic> {
    let mut found = state.problems();
    for policy in state.policies() {
        check_policy(state, policy, &mut found);
    }
    cluster_policy::check(state, &mut found);
    for pod in state.pods() {
        check_addresses(state, pod, &mut found);
    }
    found.sort_by(|a, b| b.severity.cmp(&a.severity).then_with(|| a.cmp(b)));
    found
}

/// An address that two pods claim belongs to one of them; the other is isolated without it.
fn check_addresses(state: &ClusterState, pod: &Pod, found: &mut Vec<Diagnostic>) {
    if pod.finished || pod.host_network {
        return;
    }
    for address in pod.addresses.iter() {
        if let Some(owner) = state.owner(address).filter(|owner| owner.name != pod.name) {
            found.push(Diagnostic {
                severity: Severity::Warning,
                kind: Kind::Pod,
                object: pod.name.clone(),
                field: "status.podIPs".into(),
                message: format!(
                    "duplicate address {address}: it counts as the address of {}, which also claims it",
                    owner.name
                ),
            });
        }
    }
}

fn check_policy(state: &ClusterState, policy: &Policy, found: &mut Vec<Diagnostic>) {
    let mut warn = |field: String, message: String| {
        let object = policy.name.clone();
        found.push(Diagnostic { severity: Severity::Warning, kind: Kind::NetworkPolicy, object, field, message });
    };
    let selected =
        state.pods_in(&policy.name.namespace).filter(|p| !p.host_network && policy.selector.matches(&p.labels));
    if selected.count() == 0 {
        warn("spec.podSelector".into(), "selects no pod".into());
    }
    check_ambient(state, policy, &mut warn);
    match state.enforcement(policy) {
        Enforcement::Enforce => {}
        Enforcement::Audit => check_audited(state, policy, &mut warn),
    }
    for direction in Direction::BOTH {
        for rule in policy.rules(direction).unwrap_or(&[]) {
            check_rule(state, policy, direction, rule, &mut warn);
        }
    }
}

/// Ports in rules have no effect for traffic within the ambient mesh of Istio.
fn check_ambient(state: &ClusterState, policy: &Policy, warn: &mut impl FnMut(String, String)) {
    let mut rules = Direction::BOTH.into_iter().flat_map(|direction| policy.rules(direction).unwrap_or(&[]));
    if !rules.any(|rule| matches!(rule.ports, Ports::Of(_))) {
        return;
    }
    let mut selected = state.pods_in(&policy.name.namespace).filter(|pod| policy.selector.matches(&pod.labels));
    if let Some(pod) = selected.find(|pod| ambient::is_in_mesh(state, pod)) {
        let message = format!("selects pods of the ambient mesh of Istio, as {}: {}", pod.name, ambient::consequence());
        warn("spec.podSelector".into(), message);
    }
}

/// An audited policy reports nothing if an enforced policy selects the same pod.
fn check_audited(state: &ClusterState, policy: &Policy, warn: &mut impl FnMut(String, String)) {
    for direction in Direction::BOTH.into_iter().filter(|direction| policy.rules(*direction).is_some()) {
        let selected = state.pods_in(&policy.name.namespace).filter(|pod| policy.selector.matches(&pod.labels));
        let judged = selected.filter_map(|pod| {
            let enforced = IsolatingPolicies::of(state, pod, direction).enforced;
            enforced.first().map(|enforced| (&pod.name, &enforced.name))
        });
        let judged: Vec<_> = judged.collect();
        if let Some((pod, enforced)) = judged.first() {
            let others = match judged.len() - 1 {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            let message = format!(
                "is audited, but has no effect on {} of {pod}{others}, which {enforced} enforces",
                direction.as_str()
            );
            warn("metadata.annotations".into(), message);
        }
    }
}

fn check_rule(
    state: &ClusterState,
    policy: &Policy,
    direction: Direction,
    rule: &PolicyRule,
    warn: &mut impl FnMut(String, String),
) {
    let path = format!("spec.{}[{}]", direction.as_str(), rule.index);
    let list = match direction {
        Direction::Ingress => "from",
        Direction::Egress => "to",
    };
    if let Peers::Of(peers) = &rule.peers {
        for peer in peers {
            match peer {
                Peer::Pods { namespaces, pods } => {
                    let peer = PodPeer::of(namespaces, pods, &policy.name.namespace);
                    let remote = state.remote();
                    let reaches = peer.reaches_remote(remote.families());
                    let is_remote = reaches && remote.iter().any(|(_, set, _)| peer.selects_remote(set));
                    if peer.members(state).next().is_none() && !is_remote {
                        let or = if reaches { ", and no known pod of another cluster" } else { "" };
                        warn(format!("{path}.{list}"), format!("'{peer}' matches no pod{or}"));
                    }
                }
                Peer::Block(block) => {
                    for except in block.except.iter().filter(|e| !block.cidr.contains(*e)) {
                        let message = format!("except {except} is outside of {} and has no effect", block.cidr);
                        warn(format!("{path}.{list}"), message);
                    }
                }
            }
        }
    }
    if let Ports::Of(ports) = &rule.ports {
        for port in ports {
            if let PortRange::Named(name) = &port.range {
                check_named(state, policy, direction, rule, (name, port.protocol), &path, warn);
            }
        }
    }
}

/// A named port is resolved on the selected pods for ingress and on the peers for egress.
fn check_named(
    state: &ClusterState,
    policy: &Policy,
    direction: Direction,
    rule: &PolicyRule,
    (name, protocol): (&str, nft::Protocol),
    path: &str,
    warn: &mut impl FnMut(String, String),
) {
    let field = format!("{path}.ports");
    let numbers: BTreeSet<u16> = match (direction, &rule.peers) {
        (Direction::Ingress, _) => {
            let selected = state.pods_in(&policy.name.namespace).filter(|p| policy.selector.matches(&p.labels));
            selected.filter_map(|p| p.resolve(name, protocol)).collect()
        }
        (Direction::Egress, Peers::Any) => state.pods().filter_map(|p| p.resolve(name, protocol)).collect(),
        (Direction::Egress, Peers::Of(peers)) => {
            let PeerUnion { any: _, pods, blocks } = PeerUnion::of_listed(peers, &policy.name.namespace);
            let selected = pods.iter().flat_map(|peer| peer.members(state)).filter_map(|p| p.resolve(name, protocol));
            let within = NamedTargets { pods: BTreeSet::new(), blocks };
            let within = named_endpoints(&within, name, protocol, state).into_iter().map(|(_, number)| number);
            selected.chain(within).collect()
        }
    };
    if numbers.is_empty() {
        warn(field, format!("no pod has a container port named '{name}' ({protocol}), so the entry matches nothing"));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::remote::{RemoteChange, RemoteSet};
    use crate::{Change, lower};

    #[test]
    fn selector_matching_remote_set_is_not_reported_unmatched() {
        let mut state = ClusterState::new();
        let namespaces = json!({"matchLabels": {"semaphore.uw.systems/cluster": "east"}});
        let policy = json!({
            "apiVersion": "networking.k8s.io/v1",
            "metadata": {"namespace": "shop", "name": "web"},
            "spec": {"podSelector": {}, "ingress": [{"from": [{"namespaceSelector": namespaces}]}]},
        });
        state.apply(Change::Set(lower(Kind::NetworkPolicy, &policy).unwrap()));
        let of_peers = |state: &ClusterState| -> Vec<String> {
            check(state).into_iter().filter(|d| d.field.ends_with("from")).map(|d| d.message).collect()
        };
        let nothing = "'all pods in namespaces semaphore.uw.systems/cluster=east' matches no pod, and no known pod of \
            another cluster";
        assert_eq!(of_peers(&state), [nothing]);
        for (cluster, found) in [("west", &[nothing][..]), ("east", &[])] {
            let (set, adds) = (RemoteSet::new(cluster, "shop", "api"), vec!["10.9.0.1".parse().unwrap()]);
            state.apply_remote(RemoteChange::Update { set, adds, removes: vec![] });
            assert_eq!(of_peers(&state), found);
        }
    }
}
