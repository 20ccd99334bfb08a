//! An estimate of what the agent's stores take, computed from the values in them.
//!
//! A value counts with its own size and with the texts and lists that it holds. An entry of a map counts half as much
//! again as its key and value, since the nodes of a B-tree are two thirds full. Texts that several values share count
//! once for each of them, so that the estimate is rather too high; what the allocator adds is left out.

use std::mem::size_of;
use std::net::IpAddr;
use std::sync::Arc;

use nft::{Element, Key, Rule, Ruleset};
use policy::{
    Attachment, ClusterState, Diagnostic, Labels, NamedPort, Namespace, NamespaceScope, ObjectName, Operator, Peer,
    Peers, Pod, Policy, PolicyRule, PortMatch, PortRange, Ports, Requirement, Selector,
};

/// The two counters before a value in an `Arc`.
const ARC: usize = 2 * size_of::<usize>();

/// Bytes, by what they are taken for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Stores {
    pub(crate) namespaces: usize,
    pub(crate) pods: usize,
    pub(crate) network_policies: usize,
    pub(crate) attachments: usize,
    /// The rules as they were committed last.
    pub(crate) rules: usize,
}

impl Stores {
    pub(crate) fn of<'a>(state: &ClusterState, rules: impl IntoIterator<Item = &'a Ruleset>) -> Stores {
        Stores {
            namespaces: state.namespaces().map(|o| stored::<Namespace>() + name(&o.name) + namespace(o)).sum(),
            pods: state.pods().map(|o| stored::<Pod>() + name(&o.name) + pod(o)).sum(),
            network_policies: state.policies().map(|o| stored::<Policy>() + name(&o.name) + policy(o)).sum(),
            attachments: state.attachments().map(|a| stored::<Attachment>() + attachment(a)).sum(),
            rules: rules.into_iter().map(ruleset).sum(),
        }
    }
}

/// An object in its `Arc`, and its entry in the map of its kind.
fn stored<T>() -> usize {
    ARC + size_of::<T>() + entry(size_of::<ObjectName>() + size_of::<Arc<T>>())
}

fn entry(bytes: usize) -> usize {
    bytes * 3 / 2
}

fn text(text: &Arc<str>) -> usize {
    ARC + text.len()
}

fn name(name: &ObjectName) -> usize {
    text(&name.namespace) + text(&name.name)
}

fn labels(labels: &Labels) -> usize {
    labels.iter().map(|(key, value)| entry(2 * size_of::<Arc<str>>()) + text(key) + text(value)).sum()
}

fn problems(problems: &[Diagnostic]) -> usize {
    problems.iter().map(|p| size_of::<Diagnostic>() + name(&p.object) + p.field.len() + p.message.len()).sum()
}

fn namespace(namespace: &Namespace) -> usize {
    labels(&namespace.labels) + problems(&namespace.problems)
}

/// With its entries in the directory of addresses.
fn pod(pod: &Pod) -> usize {
    let texts = [Some(&pod.uid), pod.mirror_of.as_ref(), pod.node.as_ref()];
    let directory = entry(size_of::<IpAddr>() + size_of::<ObjectName>()) + size_of::<IpAddr>();
    texts.into_iter().flatten().map(text).sum::<usize>()
        + labels(&pod.labels)
        + pod.addresses.len() * directory
        + pod.ports.iter().map(|port| size_of::<NamedPort>() + text(&port.name)).sum::<usize>()
        + problems(&pod.problems)
}

fn attachment(attachment: &Attachment) -> usize {
    let directory = entry(size_of::<IpAddr>() + size_of::<policy::AttachmentId>()) + size_of::<IpAddr>();
    text(&attachment.id.container)
        + text(&attachment.id.interface)
        + name(&attachment.pod)
        + attachment.uid.as_ref().map_or(0, text)
        + attachment.addresses.len() * directory
}

fn policy(policy: &Policy) -> usize {
    let rules = [&policy.ingress, &policy.egress].into_iter().flatten().flatten();
    selector(&policy.selector) + rules.map(rule).sum::<usize>() + problems(&policy.problems)
}

fn rule(rule: &PolicyRule) -> usize {
    let peers = match &rule.peers {
        Peers::Any => 0,
        Peers::Of(peers) => peers.iter().map(peer).sum(),
    };
    let ports = match &rule.ports {
        Ports::Any => 0,
        Ports::Of(ports) => ports.iter().map(port).sum(),
    };
    size_of::<PolicyRule>() + peers + ports
}

fn peer(peer: &Peer) -> usize {
    size_of::<Peer>()
        + match peer {
            Peer::Pods { namespaces: NamespaceScope::Own, pods } => selector(pods),
            Peer::Pods { namespaces: NamespaceScope::Selected(namespaces), pods } => {
                selector(namespaces) + selector(pods)
            }
            Peer::Block(block) => size_of_val(&block.except[..]),
        }
}

fn port(port: &PortMatch) -> usize {
    size_of::<PortMatch>()
        + match &port.range {
            PortRange::Named(name) => text(name),
            PortRange::All | PortRange::Numbers(..) => 0,
        }
}

fn selector(selector: &Selector) -> usize {
    let requirement = |requirement: &Requirement| {
        let values = match &requirement.operator {
            Operator::In(values) | Operator::NotIn(values) => {
                values.iter().map(|value| entry(size_of::<Arc<str>>()) + text(value)).sum()
            }
            Operator::Exists | Operator::DoesNotExist => 0,
        };
        entry(size_of::<Requirement>()) + text(&requirement.key) + values
    };
    selector.requirements().map(requirement).sum()
}

fn ruleset(ruleset: &Ruleset) -> usize {
    let rules: usize = ruleset.chains.values().map(|chain| chain.rules.len()).sum();
    ruleset.element_count() * entry(size_of::<Key>() + size_of::<Element>()) + rules * size_of::<Rule>()
}

#[cfg(test)]
mod tests {
    use policy::{Change, Kind, Layout, lower, translate};
    use serde_json::json;

    use super::*;

    fn state(pods: usize) -> ClusterState {
        let mut state = ClusterState::new();
        for n in 0..pods {
            let object = json!({
                "metadata": {"namespace": "shop", "name": format!("pod-{n:04}"), "labels": {"app": "web"}},
                "spec": {"nodeName": "node-a"}, "status": {"podIPs": [{"ip": format!("10.1.{}.{}", n / 250, n % 250)}]},
            });
            state.apply(Change::Set(lower(Kind::Pod, &object).unwrap()));
        }
        state
    }

    #[test]
    fn nothing_takes_nothing_and_twice_the_pods_take_twice_the_memory() {
        let measured = |pods| Stores::of(&state(pods), []);
        assert_eq!(measured(0), Stores::default());
        assert_eq!(measured(200).pods, 2 * measured(100).pods);
        let each = measured(100).pods / 100;
        assert!((300..2000).contains(&each), "{each}");
    }

    #[test]
    fn rules_take_what_their_elements_do() {
        let layout = Layout::for_table("ringfence").unwrap();
        let mut state = state(100);
        let object = json!({
            "apiVersion": "networking.k8s.io/v1", "metadata": {"namespace": "shop", "name": "all"},
            "spec": {"podSelector": {}, "policyTypes": ["Ingress"], "ingress": [{"from": [{"podSelector": {}}]}]},
        });
        state.apply(Change::Set(lower(Kind::NetworkPolicy, &object).unwrap()));
        let translation = translate(&state, "node-a", &layout);
        let stores = Stores::of(&state, [&translation.ruleset]);
        assert!(stores.network_policies > 0 && stores.rules > 100 * size_of::<Key>(), "{stores:?}");
    }
}
