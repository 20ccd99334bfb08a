//! Lints ClusterNetworkPolicies: shared priorities, policies without effect, and rules that never match.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use crate::sanitize::plain;
use crate::{
    ClusterPeer, ClusterPeers, ClusterPolicy, ClusterRule, ClusterState, Diagnostic, Direction, Kind, Pod, PodScope,
    PortMatch, PortRange, Ports, Selection, Severity, Tier,
};

pub(super) fn check(state: &ClusterState, found: &mut Vec<Diagnostic>) {
    for policy in state.cluster_policies() {
        let mut warn = |field: String, message: String| found.push(warning(policy, field, message));
        if selected(state, &policy.subject).next().is_none() {
            warn("spec.subject".into(), "selects no pod".into());
        }
        if policy.ingress.is_empty() && policy.egress.is_empty() {
            warn("spec".into(), "has no rules, so the policy has no effect".into());
        }
        for direction in Direction::BOTH {
            check_rules(state, policy, direction, &mut warn);
        }
    }
    for tier in Tier::BOTH {
        check_priorities(state, tier, found);
    }
}

fn warning(policy: &ClusterPolicy, field: String, message: String) -> Diagnostic {
    let object = policy.name.clone();
    Diagnostic { severity: Severity::Warning, kind: Kind::ClusterNetworkPolicy, object, field, message }
}

/// The pods that the scope selects, or may.
fn selected<'a>(state: &'a ClusterState, scope: &'a PodScope) -> impl Iterator<Item = &'a Arc<Pod>> {
    let selects = |pod: &&Arc<Pod>| scope.selects(pod, state.namespace_labels(&pod.name.namespace)) != Selection::No;
    state.pods().filter(selects)
}

fn check_rules(
    state: &ClusterState,
    policy: &ClusterPolicy,
    direction: Direction,
    warn: &mut impl FnMut(String, String),
) {
    let rules = policy.rules(direction);
    for (place, rule) in rules.iter().enumerate() {
        let path = format!("spec.{}[{}]", direction.as_str(), rule.index);
        if let Some(earlier) = rules[..place].iter().find(|earlier| covers(earlier, rule)) {
            let message = format!(
                "never matches: spec.{}[{}] decides about everything that the rule is for",
                direction.as_str(),
                earlier.index
            );
            warn(path, message);
            continue;
        }
        let list = match direction {
            Direction::Ingress => "from",
            Direction::Egress => "to",
        };
        let ClusterPeers::Of(peers) = &rule.peers else { continue };
        for peer in peers {
            match peer {
                ClusterPeer::Pods(scope) if selected(state, scope).next().is_none() => {
                    warn(format!("{path}.{list}"), format!("'{peer}' matches no pod"));
                }
                ClusterPeer::Nodes(selector) if !state.nodes().any(|n| n.unlabelled || selector.matches(&n.labels)) => {
                    warn(format!("{path}.{list}"), format!("'{peer}' matches no node"));
                }
                ClusterPeer::Pods(_)
                | ClusterPeer::Nodes(_)
                | ClusterPeer::Networks(_)
                | ClusterPeer::DomainNames(_) => {}
            }
        }
        check_named_ports(state, policy, direction, rule, peers, &path, warn);
    }
}

/// A named port is resolved on the selected pods for ingress and on the peers for egress.
fn check_named_ports(
    state: &ClusterState,
    policy: &ClusterPolicy,
    direction: Direction,
    rule: &ClusterRule,
    peers: &[ClusterPeer],
    path: &str,
    warn: &mut impl FnMut(String, String),
) {
    let Ports::Of(ports) = &rule.ports else { return };
    let destinations: Vec<&PodScope> = match direction {
        Direction::Ingress => vec![&policy.subject],
        Direction::Egress => {
            fn scope(peer: &ClusterPeer) -> Option<&PodScope> {
                match peer {
                    ClusterPeer::Pods(scope) => Some(scope),
                    ClusterPeer::Nodes(_) | ClusterPeer::Networks(_) | ClusterPeer::DomainNames(_) => None,
                }
            }
            peers.iter().filter_map(scope).collect()
        }
    };
    let is_resolved = |name: &str| {
        let mut pods = destinations.iter().flat_map(|scope| selected(state, scope));
        pods.any(|pod| pod.ports.iter().any(|port| *port.name == *name))
    };
    let names = ports.iter().filter_map(|port| match &port.range {
        PortRange::Named(name) => Some(name),
        PortRange::All | PortRange::Numbers(..) => None,
    });
    let mut names: Vec<&Arc<str>> = names.collect();
    names.dedup();
    for name in names.into_iter().filter(|name| !is_resolved(name)) {
        let message = format!("no pod has a container port named '{}', so the entry matches nothing", plain(name));
        warn(format!("{path}.protocols"), message);
    }
}

/// Two policies of one priority: the API lets an implementation choose which is evaluated first.
fn check_priorities(state: &ClusterState, tier: Tier, found: &mut Vec<Diagnostic>) {
    let policies: Vec<&Arc<ClusterPolicy>> = state.cluster_policies_of(tier).collect();
    for together in policies.chunk_by(|a, b| a.priority == b.priority) {
        for (place, later) in together.iter().enumerate() {
            let conflict = together[..place].iter().find_map(|earlier| {
                let both = |pod: &&Arc<Pod>| {
                    earlier.subject.selects(pod, state.namespace_labels(&pod.name.namespace)) != Selection::No
                };
                let pod = selected(state, &later.subject).find(both)?;
                Direction::BOTH.into_iter().find(|direction| differ(state, earlier, later, *direction))?;
                Some((earlier, pod))
            });
            if let Some((earlier, pod)) = conflict {
                let message = format!(
                    "{} has the same priority in the {tier} tier and other actions for the same traffic of {}; it is \
                     evaluated first because of its name, which other implementations may do differently",
                    earlier.name, pod.name
                );
                found.push(warning(later, "spec.priority".into(), message));
            }
        }
    }
}

/// Whether rules of the two with different actions match the same traffic.
fn differ(state: &ClusterState, a: &ClusterPolicy, b: &ClusterPolicy, direction: Direction) -> bool {
    let pairs = a.rules(direction).iter().flat_map(|x| b.rules(direction).iter().map(move |y| (x, y)));
    let mut pairs = pairs.filter(|(x, y)| x.action != y.action);
    pairs.any(|(x, y)| ports_overlap(&x.ports, &y.ports) && peers_overlap(state, &x.peers, &y.peers))
}

fn ports_overlap(a: &Ports, b: &Ports) -> bool {
    match (a, b) {
        (Ports::Any, Ports::Any) => true,
        (Ports::Any, Ports::Of(ports)) | (Ports::Of(ports), Ports::Any) => !ports.is_empty(),
        (Ports::Of(a), Ports::Of(b)) => a.iter().any(|a| b.iter().any(|b| matches_overlap(a, b))),
    }
}

fn matches_overlap(a: &PortMatch, b: &PortMatch) -> bool {
    a.protocol == b.protocol
        && match (&a.range, &b.range) {
            (PortRange::Numbers(first, last), PortRange::Numbers(other_first, other_last)) => {
                first <= other_last && other_first <= last
            }
            (PortRange::Named(a), PortRange::Named(b)) => a == b,
            (PortRange::All | PortRange::Named(_), _) | (_, PortRange::All | PortRange::Named(_)) => true,
        }
}

fn peers_overlap(state: &ClusterState, a: &ClusterPeers, b: &ClusterPeers) -> bool {
    match (a, b) {
        (ClusterPeers::Any, ClusterPeers::Any) => true,
        (ClusterPeers::Any, ClusterPeers::Of(peers)) | (ClusterPeers::Of(peers), ClusterPeers::Any) => {
            peers.iter().any(|peer| !matches!(peer, ClusterPeer::DomainNames(_)))
        }
        (ClusterPeers::Of(a), ClusterPeers::Of(b)) => a.iter().any(|a| b.iter().any(|b| peer_overlaps(state, a, b))),
    }
}

fn peer_overlaps(state: &ClusterState, a: &ClusterPeer, b: &ClusterPeer) -> bool {
    match (a, b) {
        (ClusterPeer::DomainNames(_), _) | (_, ClusterPeer::DomainNames(_)) => false,
        (ClusterPeer::Networks(a), ClusterPeer::Networks(b)) => {
            a.iter().any(|a| b.iter().any(|b| a.contains(b) || b.contains(a)))
        }
        (ClusterPeer::Networks(networks), other) | (other, ClusterPeer::Networks(networks)) => {
            let within = |address: IpAddr| networks.iter().any(|network| network.contains(&address));
            addresses(state, other).into_iter().any(within)
        }
        (ClusterPeer::Pods(a), ClusterPeer::Pods(b)) => {
            selected(state, a).any(|pod| b.selects(pod, state.namespace_labels(&pod.name.namespace)) != Selection::No)
        }
        (ClusterPeer::Nodes(a), ClusterPeer::Nodes(b)) => {
            state.nodes().any(|node| node.unlabelled || (a.matches(&node.labels) && b.matches(&node.labels)))
        }
        (ClusterPeer::Pods(_), ClusterPeer::Nodes(_)) | (ClusterPeer::Nodes(_), ClusterPeer::Pods(_)) => false,
    }
}

/// The addresses of the pods or nodes.
fn addresses(state: &ClusterState, peer: &ClusterPeer) -> Vec<IpAddr> {
    match peer {
        ClusterPeer::Pods(scope) => selected(state, scope).flat_map(|pod| state.addresses_of(pod)).collect(),
        ClusterPeer::Nodes(selector) => {
            let nodes = state.nodes().filter(|node| node.unlabelled || selector.matches(&node.labels));
            nodes.flat_map(|node| node.status_addresses.iter()).collect()
        }
        ClusterPeer::Networks(_) | ClusterPeer::DomainNames(_) => vec![],
    }
}

/// Whether the rule matches everything that the other one matches, as far as their selectors show it.
fn covers(rule: &ClusterRule, other: &ClusterRule) -> bool {
    let peers = match (&rule.peers, &other.peers) {
        (ClusterPeers::Any, _) => true,
        (ClusterPeers::Of(_), ClusterPeers::Any) => false,
        // A problem says so.
        (_, ClusterPeers::Of(others)) if others.is_empty() => false,
        (ClusterPeers::Of(peers), ClusterPeers::Of(others)) => {
            others.iter().all(|other| peers.iter().any(|peer| peer_covers(peer, other)))
        }
    };
    let ports = match (&rule.ports, &other.ports) {
        (Ports::Any, _) => true,
        (Ports::Of(_), Ports::Any) => false,
        (_, Ports::Of(others)) if others.is_empty() => false,
        (Ports::Of(ports), Ports::Of(others)) => {
            others.iter().all(|other| ports.iter().any(|port| port_covers(port, other)))
        }
    };
    peers && ports
}

fn peer_covers(peer: &ClusterPeer, other: &ClusterPeer) -> bool {
    match (peer, other) {
        (ClusterPeer::Pods(scope), ClusterPeer::Pods(other)) => {
            let covers = |a: &crate::Selector, b: &crate::Selector| a.selects_everything() || a == b;
            covers(&scope.namespaces, &other.namespaces) && covers(&scope.pods, &other.pods)
        }
        (ClusterPeer::Nodes(nodes), ClusterPeer::Nodes(other)) => nodes.selects_everything() || nodes == other,
        (ClusterPeer::Networks(networks), ClusterPeer::Networks(others)) => {
            others.iter().all(|other| networks.iter().any(|network| network.contains(other)))
        }
        (_, _) => false,
    }
}

fn port_covers(port: &PortMatch, other: &PortMatch) -> bool {
    port.protocol == other.protocol
        && match (&port.range, &other.range) {
            (PortRange::All, _) => true,
            (PortRange::Numbers(first, last), PortRange::Numbers(other_first, other_last)) => {
                first <= other_first && other_last <= last
            }
            (PortRange::Named(name), PortRange::Named(other)) => name == other,
            (PortRange::Numbers(..) | PortRange::Named(_), _) => false,
        }
}

impl fmt::Display for ClusterPeer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ClusterPeer::Pods(PodScope { namespaces, pods }) => {
                match pods.selects_everything() {
                    true => f.write_str("all pods")?,
                    false => write!(f, "pods {}", plain(&pods.to_string()))?,
                }
                match namespaces.selects_everything() {
                    true => f.write_str(" in all namespaces"),
                    false => write!(f, " in namespaces {}", plain(&namespaces.to_string())),
                }
            }
            ClusterPeer::Nodes(selector) if selector.selects_everything() => f.write_str("all nodes"),
            ClusterPeer::Nodes(selector) => write!(f, "nodes {}", plain(&selector.to_string())),
            ClusterPeer::Networks(networks) => f.write_str(&joined(networks)),
            ClusterPeer::DomainNames(names) => f.write_str(&joined(names)),
        }
    }
}

fn joined<T: fmt::Display>(items: &[T]) -> String {
    items.iter().map(T::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::{Change, check, lower};

    fn policy(name: &str, tier: &str, priority: u16, rules: Value) -> Value {
        json!({
            "apiVersion": "policy.networking.k8s.io/v1alpha2", "metadata": {"name": name},
            "spec": {
                "tier": tier, "priority": priority,
                "subject": {"pods": {"podSelector": {"matchLabels": {"app": "web"}}}}, "egress": rules,
            },
        })
    }

    fn rule(action: &str, peer: Value) -> Value {
        json!({"action": action, "to": [peer]})
    }

    fn pods(app: &str) -> Value {
        json!({"pods": {"podSelector": {"matchLabels": {"app": app}}}})
    }

    /// The findings about the policies in a cluster with the pods `web` and `db`.
    fn findings(policies: &[Value]) -> Vec<String> {
        let pod = |name: &str, address: &str| {
            json!({
                "metadata": {"namespace": "shop", "name": name, "labels": {"app": name}},
                "spec": {"containers": [{"ports": [{"name": "http", "containerPort": 80}]}]},
                "status": {"podIPs": [{"ip": address}]},
            })
        };
        let mut state = ClusterState::new();
        let others = [
            (Kind::Namespace, json!({"metadata": {"name": "shop"}})),
            (Kind::Pod, pod("web", "10.0.0.1")),
            (Kind::Pod, pod("db", "10.0.0.2")),
        ];
        let policies = policies.iter().map(|policy| (Kind::ClusterNetworkPolicy, policy.clone()));
        for (kind, object) in others.into_iter().chain(policies) {
            state.apply(Change::Set(lower(kind, &object).unwrap()));
        }
        check(&state).iter().map(|found| found.to_string().replace("ClusterNetworkPolicy ", "")).collect()
    }

    #[test]
    fn valid_policies_have_no_findings() {
        let rules = json!([rule("Deny", pods("db")), rule("Pass", json!({"networks": ["::/0"]}))]);
        assert_eq!(findings(&[policy("a", "Admin", 1, rules.clone()), policy("b", "Baseline", 1, rules)]), [""; 0]);
    }

    #[test]
    fn shared_priority_is_reported_where_actions_differ() {
        let with = |tier, priority, action, peer: Value| {
            let a = policy("a", "Admin", 1, json!([rule("Deny", pods("db"))]));
            findings(&[a, policy("b", tier, priority, json!([rule(action, peer)]))])
        };
        for peer in [pods("db"), json!({"networks": ["10.0.0.0/30"]}), json!({"namespaces": {}})] {
            assert_eq!(
                with("Admin", 1, "Accept", peer.clone()),
                [
                    "b spec.priority: a has the same priority in the Admin tier and other actions for the same traffic of \
                     shop/web; it is evaluated first because of its name, which other implementations may do differently"
                ]
            );
            assert_eq!(with("Admin", 1, "Deny", peer.clone()), [""; 0]);
            assert_eq!(with("Admin", 2, "Accept", peer.clone()), [""; 0]);
            assert_eq!(with("Baseline", 1, "Accept", peer), [""; 0]);
        }
        assert_eq!(with("Admin", 1, "Accept", json!({"networks": ["10.0.1.0/24"]})), [""; 0]);
    }

    #[test]
    fn rule_behind_one_that_covers_it_never_matches() {
        let never = "a spec.egress[1]: never matches: spec.egress[0] decides about everything that the rule is for";
        let port = |number: u16| json!([{"tcp": {"destinationPort": {"number": number}}}]);
        let check = |first: Value, second: Value| findings(&[policy("a", "Admin", 1, json!([first, second]))]);
        let on = |mut rule: Value, number: u16| {
            rule["protocols"] = port(number);
            rule
        };
        assert_eq!(check(rule("Pass", json!({"namespaces": {}})), rule("Deny", pods("db"))), [never]);
        assert_eq!(check(rule("Deny", pods("db")), rule("Accept", pods("db"))), [never]);
        assert_eq!(check(rule("Deny", pods("db")), on(rule("Accept", pods("db")), 80)), [never]);
        assert_eq!(check(on(rule("Deny", pods("db")), 80), on(rule("Accept", pods("db")), 80)), [never]);
        let (wide, narrow) = (json!({"networks": ["10.0.0.0/8"]}), json!({"networks": ["10.1.0.0/16"]}));
        assert_eq!(check(rule("Deny", wide.clone()), rule("Accept", narrow.clone())), [never]);
        assert_eq!(check(rule("Deny", narrow), rule("Accept", wide)), [""; 0]);
        assert_eq!(check(on(rule("Deny", pods("db")), 80), rule("Accept", pods("db"))), [""; 0]);
        assert_eq!(check(on(rule("Deny", pods("db")), 80), on(rule("Accept", pods("db")), 81)), [""; 0]);
    }

    #[test]
    fn selectors_and_names_without_match_are_reported() {
        let mut named = rule("Deny", pods("db"));
        named["protocols"] = json!([{"destinationNamedPort": "http"}, {"destinationNamedPort": "admin"}]);
        let mut unselective = policy("b", "Admin", 2, json!([]));
        unselective["spec"]["subject"] = json!({"namespaces": {"matchLabels": {"a": "b"}}});
        let rules = json!([rule("Deny", pods("none")), rule("Deny", json!({"nodes": {}})), named]);
        assert_eq!(
            findings(&[policy("a", "Admin", 1, rules), unselective]),
            [
                "a spec.egress[0].to: 'pods app=none in all namespaces' matches no pod",
                "a spec.egress[1].to: 'all nodes' matches no node",
                "a spec.egress[2].protocols: no pod has a container port named 'admin', so the entry matches nothing",
                "b spec: has no rules, so the policy has no effect",
                "b spec.subject: selects no pod",
            ]
        );
    }
}
