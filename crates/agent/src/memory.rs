//! Estimates the memory of the agent's stores from their values.
//!
//! Memory of objects is maintained by the cluster state ([`policy::ClusterState::footprint`]), without the texts and
//! lists that objects share. Attachments and rules, which are those of one node, are walked. A map entry counts 1.5
//! times its key and value, since B-tree nodes are two thirds full. Allocator overhead is not included.

use std::mem::size_of;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use nft::{Element, Key, KeyType, Rule, Ruleset, Set};
use policy::{Attachment, AttachmentId, ClusterState, Kind, ObjectName};

/// The two reference counters of an `Arc`.
const ARC: usize = 2 * size_of::<usize>();

/// Bytes by store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Stores {
    pub(crate) namespaces: usize,
    pub(crate) pods: usize,
    pub(crate) network_policies: usize,
    pub(crate) nodes: usize,
    pub(crate) cluster_network_policies: usize,
    pub(crate) attachments: usize,
    /// The rules of the last commit.
    pub(crate) rules: usize,
}

impl Stores {
    pub(crate) fn of<'a>(state: &ClusterState, rules: impl IntoIterator<Item = &'a Ruleset>) -> Stores {
        Stores {
            namespaces: state.footprint(Kind::Namespace),
            pods: state.footprint(Kind::Pod),
            network_policies: state.footprint(Kind::NetworkPolicy),
            nodes: state.footprint(Kind::Node),
            cluster_network_policies: state.footprint(Kind::ClusterNetworkPolicy),
            attachments: state.attachments().map(|a| attachment(a)).sum(),
            rules: rules.into_iter().map(ruleset).sum(),
        }
    }
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

/// Includes its `Arc` and its entries in the maps by identifier, pod and address.
fn attachment(attachment: &Attachment) -> usize {
    let directory = entry(size_of::<IpAddr>() + size_of::<AttachmentId>()) + size_of::<IpAddr>();
    ARC + size_of::<Attachment>()
        + entry(size_of::<AttachmentId>() + size_of::<Arc<Attachment>>())
        + entry(size_of::<ObjectName>() + size_of::<AttachmentId>())
        + text(&attachment.id.container)
        + text(&attachment.id.interface)
        + name(&attachment.pod)
        + attachment.uid.as_ref().map_or(0, text)
        + attachment.addresses.len() * directory
}

fn ruleset(ruleset: &Ruleset) -> usize {
    let rules: usize = ruleset.chains.values().map(|chain| chain.rules.len()).sum();
    let elements: usize = ruleset.sets.values().map(|set| set.elements.len() * entry(element(set))).sum();
    elements + rules * size_of::<Rule>()
}

/// Sets of plain addresses store only the addresses.
fn element(set: &Set) -> usize {
    match (&set.types[..], set.verdicts || set.interval) {
        ([KeyType::Ipv4Addr], false) => size_of::<Ipv4Addr>(),
        ([KeyType::Ipv6Addr], false) => size_of::<Ipv6Addr>(),
        (_, _) => size_of::<Key>() + size_of::<Element>(),
    }
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
    fn pod_memory_estimate_is_proportional_to_pod_count() {
        let measured = |pods| Stores::of(&state(pods), []);
        assert_eq!(measured(0), Stores::default());
        assert_eq!(measured(200).pods, 2 * measured(100).pods);
        let each = measured(100).pods / 100;
        assert!((200..500).contains(&each), "{each}");
    }

    #[test]
    fn removed_objects_use_no_memory() {
        let mut filled = state(100);
        for kind in Kind::ALL {
            filled.apply(Change::Replace(kind, vec![]));
        }
        assert_eq!(Stores::of(&filled, []), Stores::default());
    }

    #[test]
    fn rule_memory_estimate_covers_elements() {
        let layout = Layout::for_table("ringfence").unwrap();
        let mut state = state(100);
        let object = json!({
            "apiVersion": "networking.k8s.io/v1", "metadata": {"namespace": "shop", "name": "all"},
            "spec": {"podSelector": {}, "policyTypes": ["Ingress"], "ingress": [{"from": [{"podSelector": {}}]}]},
        });
        state.apply(Change::Set(lower(Kind::NetworkPolicy, &object).unwrap()));
        let translation = translate(&state, "node-a", &layout);
        let stores = Stores::of(&state, [&translation.ruleset.in_first_generation()]);
        assert!(stores.network_policies > 0 && stores.rules > 100 * size_of::<Key>(), "{stores:?}");
    }
}
